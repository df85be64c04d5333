/* sluice tokenize: a text's token ids, or the text of ids. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static json_t *text_json(const char *text, size_t n) {
    json_t *message = cli_message("", text, n), *value = json_incref(json_object_get(message, "content"));
    json_decref(message);
    return value;
}

static json_t *piece_json(const sl_engine *e, int32_t id) {
    char piece[512];
    size_t n = sl_token_text(e, id, piece, sizeof piece);
    return text_json(piece, n < sizeof piece ? n : sizeof piece - 1);
}

static int print_ids_json(const sl_engine *e, const cli_args *a, const int32_t *ids, size_t n) {
    json_t *list = json_array(), *pieces = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(ids[i]));
        if (a->pieces)
            json_array_append_new(pieces, piece_json(e, ids[i]));
    }
    json_t *doc = json_pack("{s:I, s:o}", "count", (json_int_t)n, "ids", list);
    if (a->pieces)
        json_object_set(doc, "pieces", pieces);
    json_decref(pieces);
    return cli_print_json(doc);
}

static int print_ids(const sl_engine *e, const cli_args *a, const int32_t *ids, size_t n) {
    sl_buf out = {0};
    if (a->json)
        return print_ids_json(e, a, ids, n);
    for (size_t i = 0; i < n; i++) {
        if (!a->pieces) {
            sl_buf_printf(&out, "%s%d", i ? " " : "", ids[i]);
            continue;
        }
        /* As a JSON string, so that one line is one token whatever it holds. */
        json_t *piece = piece_json(e, ids[i]);
        char *quoted = json_dumps(piece, JSON_ENCODE_ANY);
        sl_buf_printf(&out, "%d\t%s\n", ids[i], quoted ? quoted : "null");
        free(quoted);
        json_decref(piece);
    }
    if (!a->pieces)
        sl_buf_puts(&out, "\n");
    if (out.failed)
        return cli_complain(CLI_FAILED, "out of memory for %zu ids", n);
    cli_put(out.data ? out.data : "", out.size);
    sl_buf_free(&out);
    return CLI_OK;
}

static int print_text(const cli_args *a, const char *text, size_t n) {
    if (a->json)
        return cli_print_json(json_pack("{s:o}", "text", text_json(text, n)));
    cli_put(text, n);
    cli_put("\n", 1);
    return CLI_OK;
}

bool cli_parse_ids(const char *text, int32_t **ids, size_t *count, sl_error *err) {
    size_t capacity = 0;
    static const char between[] = " \t\r\n,[]";
    *ids = NULL;
    *count = 0;
    for (const char *p = text + strspn(text, between); *p; p += strspn(p, between)) {
        char word[16];
        int64_t id;
        size_t n = strcspn(p, between);
        snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : (int)sizeof word - 1, p);
        if (n >= sizeof word || !cli_parse_int(word, 0, INT32_MAX, &id)) {
            free(*ids);
            *ids = NULL;
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s' at byte %zu of the ids: expected a token id", word,
                           (size_t)(p - text));
        }
        if (!sl_grow((void **)ids, &capacity, *count + 1, sizeof **ids))
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu ids", *count + 1);
        (*ids)[(*count)++] = (int32_t)id;
        p += n;
    }
    return true;
}

static int decode(const sl_engine *e, const cli_args *a, const char *input) {
    sl_error err = {0};
    int32_t *ids = NULL;
    size_t count = 0, size = 0;
    char *text = NULL;
    int status = CLI_FAILED;
    if (!cli_parse_ids(input, &ids, &count, &err) || !sl_detokenize(e, ids, count, a->special, &text, &size, &err))
        cli_report(&err);
    else
        status = print_text(a, text, size);
    sl_free(text);
    free(ids);
    return status;
}

static int encode(const sl_engine *e, const cli_args *a, const char *text, size_t n) {
    sl_error err = {0};
    int32_t *ids = NULL;
    size_t count = 0;
    if (!sl_tokenize(e, text, n, a->special, !a->no_bos, &ids, &count, &err))
        return cli_report(&err);
    int status = print_ids(e, a, ids, count);
    sl_free(ids);
    return status;
}

int cli_tokenize(const cli_args *a) {
    sl_error err = {0};
    size_t size = 0;
    char *text = cli_read_prompt(a->operand[1], a->file, false, &size, &err);
    sl_engine *e = text ? cli_open(a, true, &err) : NULL;
    int status = !e ? cli_report(&err) : a->decode ? decode(e, a, text) : encode(e, a, text, size);
    cli_close(a, e);
    free(text);
    return status;
}
