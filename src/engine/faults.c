/* What is to go wrong with reads of experts, from a line of text (docs/faults.md):
 *
 *   KIND=RATE                  a share of all reads
 *   KIND@LAYER:EXPERT[*N]      what is read of one expert, or only the first N times
 *   KIND@FILE:OFFSET[*N]       what touches that byte of a file
 *   gone=N  delay=MS  seed=N   after N reads the disk is gone; how late `late` is; of what RATE draws
 *
 * joined by commas. KIND: eio, short, late, never. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t rate; /* where in the plan */
    bool counts; /* can be limited to the first reads */
} kinds[] = {
    [SL_FAULT_EIO] = {"eio", offsetof(sl_fault_plan, error_rate), true},
    [SL_FAULT_SHORT] = {"short", offsetof(sl_fault_plan, short_rate), false},
    [SL_FAULT_LATE] = {"late", offsetof(sl_fault_plan, delay_rate), true},
    [SL_FAULT_NEVER] = {"never", offsetof(sl_fault_plan, never_rate), true},
};

enum { DEFAULT_DELAY_MS = 100, MAX_DELAY_MS = 3600 * 1000 };

/* One item of the text, cut out of it. */
typedef struct item {
    sl_engine *e;
    char *text; /* as given, for messages */
    char *name, *value;
    char sign; /* '=' or '@' */
} item;

static bool complain(const item *it, const char *what, sl_error *err) {
    return sl_fail(err, SL_ERR_ARGUMENT, "faults: \"%s\": %s", it->text, what);
}

static bool parse_number(const char *text, uint64_t most, uint64_t *out) {
    char *end;
    if (text[strspn(text, "0123456789")] || !*text || strlen(text) > 19)
        return false;
    *out = strtoull(text, &end, 10);
    return *out <= most;
}

static bool parse_rate(const char *text, double *out) {
    char *end;
    if (!*text || text[strspn(text, "0123456789.")])
        return false;
    *out = strtod(text, &end);
    return !*end && *out >= 0 && *out <= 1;
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

static bool add_place(sl_engine *e, const sl_fault_place *p, sl_error *err) {
    sl_fault_place *more = realloc(e->fault_places, sizeof *more * (size_t)(e->faults.place_count + 1));
    if (!more)
        return sl_fail(err, SL_ERR_MEMORY, "faults: out of memory");
    more[e->faults.place_count++] = *p;
    e->faults.places = e->fault_places = more;
    return true;
}

/* The number among the layers with experts of a layer of the model; -1: it has none. */
static int32_t moe_layer(const sl_engine *e, uint64_t number) {
    int32_t n, layer;
    sl_model_expert_layers(e->model, &n);
    for (int32_t i = 0; i < n; i++) {
        sl_model_expert_matrices(e->model, i, &layer);
        if ((uint64_t)layer == number)
            return i;
    }
    return -1;
}

static bool add_expert(const item *it, sl_fault_place p, uint64_t layer, uint64_t expert, sl_error *err) {
    int32_t n, at = moe_layer(it->e, layer);
    const sl_model_experts *x = sl_model_expert_layers(it->e->model, &n);
    if (at < 0)
        return complain(it, "the model has no such layer, or it has no experts", err);
    if (expert >= (uint64_t)x[at].experts)
        return sl_fail(err, SL_ERR_ARGUMENT, "faults: \"%s\": layer %llu has %d experts", it->text,
                       (unsigned long long)layer, x[at].experts);
    for (int part = 0; part < SL_EXPERT_PARTS; part++) {
        const sl_extent *ext = &x[at].extent[expert * SL_EXPERT_PARTS + (uint64_t)part];
        if (ext->bytes == 0)
            continue;
        p.file = sl_ckpt_file(it->e->ckpt, ext->file);
        p.offset = ext->offset;
        p.bytes = ext->bytes;
        if (!add_place(it->e, &p, err))
            return false;
    }
    return true;
}

static const sl_file *find_file(const sl_engine *e, const char *name) {
    for (int i = 0; i < sl_ckpt_file_count(e->ckpt); i++) {
        const sl_file *f = sl_ckpt_file(e->ckpt, i);
        const char *slash = strrchr(f->path, '/');
        if (strcmp(f->path, name) == 0 || (slash && strcmp(slash + 1, name) == 0))
            return f;
    }
    return NULL;
}

static bool parse_place(item *it, sl_fault_kind kind, sl_error *err) {
    sl_fault_place p = {.kind = kind, .bytes = 1};
    uint64_t first, second, times = 0;
    char *star = strrchr(it->value, '*');
    if (star && (!kinds[kind].counts || !parse_number(star + 1, INT64_MAX, &times) || times == 0))
        return complain(it, kinds[kind].counts ? "a number of reads is expected after *" : "it cannot be counted", err);
    if (star)
        *star = 0;
    p.times = (int64_t)times;
    char *colon = strrchr(it->value, ':');
    if (!colon || !parse_number(colon + 1, INT64_MAX, &second))
        return complain(it, "LAYER:EXPERT or FILE:OFFSET is expected after @", err);
    *colon = 0;
    if (parse_number(it->value, INT32_MAX, &first))
        return add_expert(it, p, first, second, err);
    p.file = find_file(it->e, it->value);
    p.offset = second;
    if (!p.file)
        return complain(it, "the model has no such file", err);
    return second < p.file->size ? add_place(it->e, &p, err) : complain(it, "the file ends before that", err);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

static bool parse_setting(const item *it, bool *known, sl_error *err) {
    enum { GONE, DELAY, SEED, DISK, PACE };
    static const struct {
        const char *name, *expected;
        uint64_t most;
    } settings[] = {[GONE] = {"gone", "a number of reads is expected", INT64_MAX},
                    [DELAY] = {"delay", "milliseconds are expected", MAX_DELAY_MS},
                    [SEED] = {"seed", "a number is expected", INT64_MAX},
                    [DISK] = {"disk", "1, or 2 for the mirror, is expected", SL_READER_DISKS},
                    [PACE] = {"pace", "megabytes per second are expected", 1000000}};
    sl_fault_plan *p = &it->e->faults;
    uint64_t v = 0;
    size_t k = 0;
    while (k < SL_COUNT(settings) && strcmp(it->name, settings[k].name) != 0)
        k++;
    *known = k < SL_COUNT(settings);
    if (!*known)
        return true;
    if (it->sign != '=' || !parse_number(it->value, settings[k].most, &v))
        return complain(it, settings[k].expected, err);
    if (k == GONE)
        p->fail_after = (int64_t)v;
    else if (k == DELAY)
        p->delay_ns = v * 1000000;
    else if (k == SEED)
        p->seed = v;
    else if (k == DISK)
        p->disk = (int)v;
    else
        p->bytes_per_second = (double)v * 1e6;
    return true;
}

static bool parse_item(item *it, sl_error *err) {
    bool known;
    if (!parse_setting(it, &known, err))
        return false;
    if (known)
        return true;
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        if (strcmp(it->name, kinds[k].name) != 0)
            continue;
        if (it->sign == '@')
            return parse_place(it, (sl_fault_kind)k, err);
        return parse_rate(it->value, (double *)((char *)&it->e->faults + kinds[k].rate)) ||
               complain(it, "a share of all reads, 0 to 1, is expected", err);
    }
    return complain(it, "eio, short, late, never, gone, delay, seed, disk or pace is expected", err);
}

static bool parse_copy(sl_engine *e, const char *text, sl_error *err) {
    item it = {.e = e, .text = sl_strdup(text), .name = sl_strdup(text)};
    char *name = it.name;
    size_t at = name ? strcspn(name, "=@") : 0;
    bool ok = (it.text && name) || sl_fail(err, SL_ERR_MEMORY, "faults: out of memory");
    if (ok) {
        it.sign = name[at];
        it.value = name + at + (name[at] != 0);
        name[at] = 0;
        ok = parse_item(&it, err);
    }
    free(it.text);
    free(name);
    return ok;
}

bool engine_faults_open(sl_engine *e, sl_error *err) {
    const char *text = e->options.faults;
    if (!text)
        return true;
    e->faults = (sl_fault_plan){.fail_after = -1, .fail_layer_tag = -1, .delay_ns = DEFAULT_DELAY_MS * 1000000ull};
    sl_buf one = {0};
    bool ok = true;
    for (const char *p = text; ok && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        sl_buf_clear(&one);
        ok = sl_buf_printf(&one, "%.*s", (int)strcspn(p, ","), p)
                 ? parse_copy(e, one.data, err)
                 : sl_fail(err, SL_ERR_MEMORY, "faults: out of memory");
    }
    sl_buf_free(&one);
    if (!ok)
        return false;
    e->reading.disk[0].faults = &e->faults;
    sl_logf(&e->log, SL_LOG_WARN, "faults are injected into reads of experts: %s", text);
    return true;
}
