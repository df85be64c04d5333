/* From what a person typed to token ids: input, messages, the chat template. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INPUT_LIMIT = 256 << 20 };

/* ---- input ------------------------------------------------------------------------------------------------------- */

static char *read_stdin(uint64_t limit, size_t *size, sl_error *err) {
    sl_buf text = {0};
    char block[8192];
    for (;;) {
        ssize_t n = read(STDIN_FILENO, block, sizeof block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            sl_fail_errno(err, SL_ERR_IO, errno, "standard input");
            break;
        }
        if (n == 0)
            return sl_buf_append(&text, "", 0) ? sl_buf_take(&text, size)
                                               : sl_fail_null(err, SL_ERR_MEMORY, "no memory");
        if (text.size + (size_t)n > limit) {
            sl_fail(err, SL_ERR_ARGUMENT, "standard input: more than %llu bytes", (unsigned long long)limit);
            break;
        }
        if (!sl_buf_append(&text, block, (size_t)n)) {
            sl_fail(err, SL_ERR_MEMORY, "standard input: out of memory after %zu bytes", text.size);
            break;
        }
    }
    sl_buf_free(&text);
    return NULL;
}

char *cli_read_input(const char *file, uint64_t limit, size_t *size, sl_error *err) {
    return strcmp(file, "-") == 0 ? read_stdin(limit, size, err) : sl_read_text(file, limit, size, err);
}

char *cli_read_prompt(const char *text, const char *file, bool chomp, size_t *size, sl_error *err) {
    if (text && file)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "a prompt as an argument and --file exclude each other");
    if (text && strcmp(text, "-") != 0) {
        *size = strlen(text);
        if (*size == 0)
            return sl_fail_null(err, SL_ERR_ARGUMENT, "the prompt is empty");
        char *copy = sl_strdup(text);
        return copy ? copy : sl_fail_null(err, SL_ERR_MEMORY, "out of memory for the prompt");
    }
    if (!file && !text && isatty(STDIN_FILENO))
        return sl_fail_null(err, SL_ERR_ARGUMENT, "no text: give it as an argument, with --file, or on standard input");
    char *input = cli_read_input(file ? file : "-", INPUT_LIMIT, size, err);
    if (!input)
        return NULL;
    /* The newline that ends a file or echo's output is not part of what a person says. */
    if (chomp && *size > 0 && input[*size - 1] == '\n')
        input[--*size] = 0;
    if (*size == 0) {
        sl_fail(err, SL_ERR_ARGUMENT, "the prompt is empty (read from %s)",
                file && strcmp(file, "-") ? file : "standard input");
        free(input);
        return NULL;
    }
    return input;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

json_t *cli_message(const char *role, const char *text, size_t n) {
    sl_buf valid = {0};
    int32_t cp;
    for (size_t i = 0; i < n;) {
        int used = sl_utf8_decode(text + i, n - i, &cp);
        if (cp <= 0)
            sl_buf_puts(&valid, "\xEF\xBF\xBD");
        else
            sl_buf_append(&valid, text + i, (size_t)used);
        i += (size_t)used;
    }
    json_t *message =
        valid.failed ? NULL
                     : json_pack("{s:s, s:s#}", "role", role, "content", valid.data ? valid.data : "", (int)valid.size);
    sl_buf_free(&valid);
    return message;
}

/* ---- control tokens spelled in messages -------------------------------------------------------------------------- */

/* A template's own control tokens must become ids, those that a person typed must not. A mark (a Unicode noncharacter
 * that no message contains) is put inside each control token spelled in a message; the rendered text is cut at the
 * marks and the pieces are tokenised apart, so that the spelling stays ordinary text and the mark is gone. */
typedef struct shield {
    char mark[4]; /* UTF-8, 3 bytes and NUL */
} shield;

static bool any_message_has(const json_t *messages, const char *s) {
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) if (strstr(json_string_value(json_object_get(m, "content")), s)) return true;
    return false;
}

static bool choose_mark(const json_t *messages, shield *s, sl_error *err) {
    for (int32_t cp = 0xFDD0; cp <= 0xFDEF; cp++) {
        s->mark[sl_utf8_encode(cp, s->mark)] = 0;
        if (!any_message_has(messages, s->mark))
            return true;
    }
    return sl_fail(err, SL_ERR_TEXT, "the messages use every Unicode noncharacter from U+FDD0 to U+FDEF");
}

static bool same_ids(const int32_t *a, size_t n, const int32_t *b, size_t m) {
    return n == m && (n == 0 || memcmp(a, b, n * sizeof *a) == 0);
}

/* The spelling of `id` if it is a control token (one that is not shown), else NULL. Allocated. */
static char *control_spelling(const sl_engine *e, int32_t id) {
    char *shown = NULL, *spelled = NULL;
    size_t shown_size = 0, size = 0;
    bool control = sl_detokenize(e, &id, 1, false, &shown, &shown_size, NULL) &&
                   sl_detokenize(e, &id, 1, true, &spelled, &size, NULL) && shown_size == 0 && size > 1;
    char *copy = control ? sl_strndup(spelled, size) : NULL;
    sl_free(shown);
    sl_free(spelled);
    return copy;
}

/* Every `spelling` in the text gets the mark after its first character. */
static char *mark_spelling(const char *text, const char *spelling, const shield *s) {
    sl_buf out = {0};
    int32_t cp;
    size_t first = (size_t)sl_utf8_decode(spelling, strlen(spelling), &cp);
    const char *p = text, *hit;
    while ((hit = strstr(p, spelling))) {
        sl_buf_append(&out, p, (size_t)(hit - p) + first);
        sl_buf_puts(&out, s->mark);
        p = hit + first;
    }
    sl_buf_puts(&out, p);
    return sl_buf_take(&out, NULL);
}

static bool shield_text(const sl_engine *e, const shield *s, char **text, sl_error *err) {
    int32_t *with = NULL, *without = NULL;
    size_t n = 0, m = 0, len = strlen(*text);
    bool ok = sl_tokenize(e, *text, len, true, false, &with, &n, err) &&
              sl_tokenize(e, *text, len, false, false, &without, &m, err);
    if (ok && !same_ids(with, n, without, m)) {
        for (size_t i = 0; ok && i < n; i++) {
            char *spelling = control_spelling(e, with[i]);
            char *marked = spelling ? mark_spelling(*text, spelling, s) : NULL;
            if (spelling && !marked)
                ok = sl_fail(err, SL_ERR_MEMORY, "out of memory for a message");
            if (marked) {
                free(*text);
                *text = marked;
            }
            free(spelling);
        }
    }
    sl_free(with);
    sl_free(without);
    return ok;
}

/* A copy of the messages whose contents are shielded. */
static json_t *shield_messages(const sl_engine *e, const json_t *messages, const shield *s, sl_error *err) {
    json_t *copy = json_deep_copy(messages), *m;
    size_t i;
    bool ok = copy || sl_fail(err, SL_ERR_MEMORY, "out of memory for the messages");
    json_array_foreach(copy, i, m) {
        char *text = ok ? sl_strdup(json_string_value(json_object_get(m, "content"))) : NULL;
        ok = ok && (text || sl_fail(err, SL_ERR_MEMORY, "out of memory for the messages"));
        ok = ok && shield_text(e, s, &text, err);
        if (ok)
            json_object_set_new(m, "content", json_string(text));
        free(text);
    }
    if (!ok)
        json_decref(copy);
    return ok ? copy : NULL;
}

/* Tokenises the text between marks, control tokens allowed: what is left of them is the template's. */
static bool tokenize_pieces(const sl_engine *e, const char *text, size_t size, const shield *s, int32_t **ids,
                            size_t *count, sl_error *err) {
    size_t capacity = 0;
    const char *end = text + size;
    *ids = NULL;
    *count = 0;
    for (const char *p = text; p <= end;) {
        const char *mark = memmem(p, (size_t)(end - p), s->mark, strlen(s->mark));
        size_t n = (size_t)((mark ? mark : end) - p), got = 0;
        int32_t *piece = NULL;
        if (!sl_tokenize(e, p, n, true, false, &piece, &got, err))
            return false;
        bool grown = sl_grow((void **)ids, &capacity, *count + got, sizeof **ids);
        if (grown && got > 0)
            memcpy(*ids + *count, piece, got * sizeof **ids);
        sl_free(piece);
        if (!grown)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu token ids", *count + got);
        *count += got;
        p = (mark ? mark + strlen(s->mark) : end + 1);
    }
    return true;
}

bool cli_chat_ids(const sl_engine *e, const json_t *messages, int think, int32_t **ids, size_t *count, sl_error *err) {
    shield s;
    char *text = NULL;
    size_t size = 0;
    *ids = NULL;
    *count = 0;
    if (!choose_mark(messages, &s, err))
        return false;
    json_t *safe = shield_messages(e, messages, &s, err);
    if (!safe)
        return false;
    char *dump = json_dumps(safe, JSON_COMPACT);
    const char *extra = think < 0 ? NULL : think ? "{\"enable_thinking\": true}" : "{\"enable_thinking\": false}";
    bool ok = dump || sl_fail(err, SL_ERR_MEMORY, "out of memory for the messages");
    ok = ok && sl_chat_render(e, dump, extra, true, &text, &size, err) &&
         tokenize_pieces(e, text, size, &s, ids, count, err);
    if (!ok) {
        free(*ids);
        *ids = NULL;
    }
    sl_free(text);
    free(dump);
    json_decref(safe);
    return ok;
}
