/* sluice pack: a model rewritten for streaming; and the check of one. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct bars {
    cli_bar calibrate, write;
    bool resumed;
} bars;

static bool show_pack(void *user, sl_pack_stage stage, uint64_t done, uint64_t total) {
    bars *b = user;
    char there[16], all[16];
    if (stage == SL_PACK_WRITE && !b->write.begun && done > 0 && done < total) {
        cli_note("going on with an unfinished pack: %s of %s are there", cli_size(done, there), cli_size(total, all));
        b->resumed = true;
    }
    cli_bar_show(stage == SL_PACK_WRITE ? &b->write : &b->calibrate, done, total);
    return !cli_interrupted();
}

static bool show_verify(void *user, uint64_t done, uint64_t total) {
    cli_bar_show(user, done, total);
    return !cli_interrupted();
}

static void on_log(void *user, sl_log_level level, const char *line) {
    cli_note("%s%s", level == SL_LOG_WARN ? "warning: " : "", line);
}

static int verify(const cli_args *a) {
    sl_error err = {0};
    uint64_t damaged = 0;
    cli_bar bar = {.what = "verifying", .bytes = true};
    if (a->operands != 1)
        return cli_complain(CLI_USAGE, "'pack --verify' takes one directory");
    if (a->bits || a->calibrate || a->group)
        return cli_complain(CLI_USAGE, "'pack --verify' only reads: no --experts, --group or --calibrate");
    cli_stop_begin();
    bool ok = sl_pack_verify(a->operand[0], show_verify, &bar, &damaged, &err);
    cli_interrupt_end();
    cli_status_clear();
    if (!ok && err.code == SL_ERR_CANCELLED) {
        cli_note("%s: stopped; nothing was changed, and of what was read %s", a->operand[0],
                 damaged ? "something is damaged" : "every byte is as it was packed");
        return cli_stop_status();
    }
    if (!ok && damaged > 1)
        cli_complain(CLI_FAILED, "%s: %llu of its checksums are wrong; the first:", a->operand[0],
                     (unsigned long long)damaged);
    if (!ok)
        return cli_report(&err);
    cli_note("%s: every byte is as it was packed", a->operand[0]);
    return CLI_OK;
}

static void tell_result(const cli_args *a, const sl_pack_result *r) {
    char from[16], to[16];
    if (r->was_complete) {
        cli_note("%s: complete already", a->operand[1]);
        return;
    }
    cli_note("%s: %d layers of %d experts, %s (%s in the model)%s", a->operand[1], r->layers, r->experts,
             cli_size(r->bytes, to), cli_size(r->source_bytes, from),
             a->bits ? "; what it costs: 'sluice eval --record' on the model, 'eval --reference' on the pack" : "");
}

static int fail(const cli_args *a, const sl_error *err) {
    if (err->code != SL_ERR_CANCELLED) {
        cli_report(err);
        return CLI_FAILED;
    }
    cli_note("%s: stopped; the same command goes on with it", a->operand[1]);
    return cli_stop_status();
}

/* A calibration with what is no text would be paid for with quality, and nothing would tell. */
static bool is_text(const char *file, const char *text, size_t n, sl_error *err) {
    int32_t cp;
    for (size_t i = 0; i < n;) {
        int used = sl_utf8_decode(text + i, n - i, &cp);
        if (cp <= 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: byte 0x%02x at offset %zu, a text in UTF-8 expected", file,
                           (unsigned char)text[i], i);
        i += (size_t)used;
    }
    return true;
}

int cli_pack(const cli_args *a) {
    sl_error err = {0};
    sl_pack_options o = SL_PACK_OPTIONS_INIT;
    sl_pack_result result = {.size = sizeof result};
    bars b = {.calibrate = {.what = "calibrating"}, .write = {.what = "packing", .bytes = true}};
    char *text = NULL;
    if (a->verify)
        return verify(a);
    if (a->operands < 2)
        return cli_complain(CLI_USAGE, "'pack' needs a MODEL and OUT, the directory it makes");
    if (!a->bits && (a->group || a->calibrate))
        return cli_complain(CLI_USAGE, "%s needs --experts", a->group ? "--group" : "--calibrate");
    if (a->group && a->group != 32 && a->group != 64 && a->group != 128)
        return cli_complain(CLI_USAGE, "--group: '%d': expected 32, 64 or 128", a->group);
    if (a->tokens > 0 && !a->calibrate)
        return cli_complain(CLI_USAGE, "--tokens is of the text that --calibrate names");
    if (a->calibrate) {
        text = cli_read_input(a->calibrate, 1 << 30, &o.calibration_size, &err);
        if (!text || !is_text(a->calibrate, text, o.calibration_size, &err)) {
            free(text);
            return cli_report(&err);
        }
        o.calibration_tokens = a->tokens > 0 ? a->tokens : 0;
    }
    o.model = a->operand[0];
    o.out = a->operand[1];
    o.bits = a->bits ? a->bits[0] - '0' : 0;
    o.group = a->group;
    o.calibration = text;
    o.memory = a->memory;
    o.threads = a->threads;
    o.log = on_log;
    o.log_level = a->log_level;
    o.progress = show_pack;
    o.progress_user = &b;
    cli_stop_begin();
    bool ok = sl_pack(&o, &result, &err);
    cli_interrupt_end();
    cli_status_clear();
    free(text);
    if (!ok)
        return fail(a, &err);
    tell_result(a, &result);
    return CLI_OK;
}
