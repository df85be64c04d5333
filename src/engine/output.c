/* Two filters in a row: bytes to whole characters, characters to text without stop strings. */
#include "engine/output.h"

#include <stdlib.h>
#include <string.h>

/* ---- stop strings ----------------------------------------------------------------------------------------------- */

static bool stop_init(engine_stop *s, const char *text, size_t index, sl_error *err) {
    size_t n = text ? strlen(text) : 0;
    if (n == 0 || n > ENGINE_MAX_STOP_BYTES)
        return sl_fail(err, SL_ERR_ARGUMENT, "stop string %zu: %zu bytes, expected 1 to %d", index, n,
                       ENGINE_MAX_STOP_BYTES);
    s->text = sl_strndup(text, n);
    s->fallback = calloc(n + 1, sizeof *s->fallback);
    s->size = n;
    if (!s->text || !s->fallback)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a stop string");
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && text[i] != text[k])
            k = s->fallback[k];
        k += text[i] == text[k];
        s->fallback[i + 1] = k;
    }
    return true;
}

/* Advances by one byte; true: the string is complete. */
static bool stop_advance(engine_stop *s, char c) {
    while (s->matched > 0 && s->text[s->matched] != c)
        s->matched = s->fallback[s->matched];
    s->matched += s->text[s->matched] == c;
    return s->matched == s->size;
}

bool engine_output_init(engine_output *o, const sl_tokenizer *t, bool at_start, const char *const *stop,
                        size_t stop_count, sl_error *err) {
    *o = (engine_output){.tokenizer = t, .at_start = at_start};
    if (stop_count > ENGINE_MAX_STOPS || (stop_count && !stop))
        return sl_fail(err, SL_ERR_ARGUMENT, "%zu stop strings, at most %d expected", stop_count, ENGINE_MAX_STOPS);
    o->stop = calloc(stop_count + 1, sizeof *o->stop);
    if (!o->stop)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for stop strings");
    for (; o->stop_count < stop_count; o->stop_count++) {
        if (!stop_init(&o->stop[o->stop_count], stop[o->stop_count], o->stop_count, err)) {
            o->stop_count++;
            engine_output_free(o);
            return false;
        }
    }
    return true;
}

void engine_output_free(engine_output *o) {
    for (size_t i = 0; i < o->stop_count; i++) {
        free(o->stop[i].text);
        free(o->stop[i].fallback);
    }
    free(o->stop);
    sl_buf_free(&o->held);
    *o = (engine_output){0};
}

/* The stop string that the output ends with, the longest if several do; advances all. */
static const engine_stop *match_stops(engine_output *o, char c) {
    const engine_stop *found = NULL;
    for (size_t i = 0; i < o->stop_count; i++)
        if (stop_advance(&o->stop[i], c) && (!found || o->stop[i].size > found->size))
            found = &o->stop[i];
    return found;
}

/* Appends whole characters to what is held, up to and without the first stop string to be complete. */
static void hold_text(engine_output *o, const char *text, size_t n) {
    for (size_t i = 0; i < n && !o->stopped; i++) {
        sl_buf_append(&o->held, text + i, 1);
        const engine_stop *stop = match_stops(o, text[i]);
        if (stop && !o->held.failed) {
            o->held.size -= stop->size;
            o->stopped = true;
        }
    }
}

/* Gives out what no stop string can begin with any more. */
static void release_text(engine_output *o, sl_buf *text) {
    size_t keep = 0;
    for (size_t i = 0; i < o->stop_count && !o->stopped; i++)
        if (o->stop[i].matched > keep)
            keep = o->stop[i].matched;
    size_t n = o->held.size - keep;
    sl_buf_append(text, o->held.data ? o->held.data : "", n);
    if (keep)
        memmove(o->held.data, o->held.data + n, keep);
    o->held.size = keep;
}

/* ---- characters ------------------------------------------------------------------------------------------------- */

/* Length of the whole character at s; 0 where it is so far valid and more bytes are needed; -n where the first n bytes
 * are the longest part of a character that cannot go on. (Unicode 15, table 3-7.) */
static int classify(const uint8_t *s, size_t n) {
    static const struct {
        uint8_t first, last, low, high, size; /* range of the lead byte, of the second byte, length */
    } forms[] = {{0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
                 {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
                 {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    for (size_t f = 0; f < SL_COUNT(forms); f++) {
        if (s[0] < forms[f].first || s[0] > forms[f].last)
            continue;
        for (size_t i = 1; i < forms[f].size; i++) {
            if (i == n)
                return 0;
            uint8_t low = i == 1 ? forms[f].low : 0x80, high = i == 1 ? forms[f].high : 0xbf;
            if (s[i] < low || s[i] > high)
                return -(int)i;
        }
        return forms[f].size;
    }
    return -1;
}

/* Splits bytes into characters; at the end even an unfinished one is given up. */
static void take_bytes(engine_output *o, const uint8_t *s, size_t n, bool at_end) {
    while (n > 0) {
        int k = classify(s, n);
        if (k == 0 && !at_end)
            break;
        size_t used = k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n;
        if (k > 0)
            hold_text(o, (const char *)s, used);
        else
            hold_text(o, "\xef\xbf\xbd", 3);
        s += used;
        n -= used;
    }
    memmove(o->partial, s, n);
    o->partial_size = n;
}

static bool check_memory(const engine_output *o, const sl_buf *text, sl_error *err) {
    return !(o->held.failed || text->failed) || sl_fail(err, SL_ERR_MEMORY, "out of memory for generated text");
}

bool engine_output_bytes(engine_output *o, const char *bytes, size_t n, sl_buf *text, sl_error *err) {
    sl_buf all = {0};
    sl_buf_append(&all, o->partial, o->partial_size);
    bool ok = sl_buf_append(&all, bytes, n) && !all.failed;
    if (ok && !o->stopped) {
        take_bytes(o, (const uint8_t *)all.data, all.size, false);
        release_text(o, text);
    }
    sl_buf_free(&all);
    return ok ? check_memory(o, text, err) : sl_fail(err, SL_ERR_MEMORY, "out of memory for generated text");
}

bool engine_output_token(engine_output *o, int32_t token, sl_buf *text, sl_error *err) {
    if (!o->tokenizer || token >= sl_tokenizer_size(o->tokenizer) || sl_tokenizer_is_control(o->tokenizer, token))
        return true;
    sl_buf piece = {0};
    bool ok;
    if (o->at_start)
        ok = sl_decode_ids(o->tokenizer, &token, 1, false, &piece, err);
    else
        ok = sl_decode_piece(o->tokenizer, token, false, &piece) ||
             sl_fail(err, SL_ERR_MEMORY, "out of memory for the text of token %d", token);
    o->at_start = false;
    ok = ok && engine_output_bytes(o, piece.data ? piece.data : "", piece.size, text, err);
    sl_buf_free(&piece);
    return ok;
}

bool engine_output_finish(engine_output *o, sl_buf *text, sl_error *err) {
    if (!o->stopped) {
        uint8_t rest[sizeof o->partial];
        memcpy(rest, o->partial, o->partial_size);
        take_bytes(o, rest, o->partial_size, true);
    }
    for (size_t i = 0; i < o->stop_count; i++)
        o->stop[i].matched = 0;
    release_text(o, text);
    return check_memory(o, text, err);
}
