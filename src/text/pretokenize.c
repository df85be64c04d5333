/* Pre-tokenizer: cuts text into pieces, step after step. A step sees each piece of the step before on its own: what
 * lies around it does not count. Steps that change the text write a new one and move the pieces along. */
#include "text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

bool text_cuts_push(text_cuts *c, text_cut cut) {
    if (sl_grow((void **)&c->at, &c->capacity, c->count + 1, sizeof *c->at)) {
        c->at[c->count++] = cut;
        return true;
    }
    text_regex_free(cut.regex);
    return false;
}

void text_cuts_free(text_cuts *c) {
    for (size_t i = 0; i < c->count; i++)
        text_regex_free(c->at[i].regex);
    free(c->at);
    *c = (text_cuts){0};
}

/* ---- splits ----------------------------------------------------------------------------------------------------- */

/* What a split does with a stream of parts that match and parts between them. `open`: the last part pushed may still
 * grow. */
typedef struct splitter {
    const text_cut *cut;
    text_spans *out;
    bool any, open, previous_match;
    text_span last;
} splitter;

static bool flush_last(splitter *s) {
    bool ok = !s->any || s->last.begin == s->last.end || text_spans_push(s->out, s->last.begin, s->last.end);
    s->any = false;
    return ok;
}

static bool add_part(splitter *s, size_t begin, size_t end, bool match) {
    match ^= s->cut->invert;
    bool join = false;
    switch (s->cut->behavior) {
    case TEXT_REMOVED:
        return match || begin == end || text_spans_push(s->out, begin, end);
    case TEXT_ISOLATED:
        return begin == end || text_spans_push(s->out, begin, end);
    case TEXT_CONTIGUOUS:
        join = match == s->previous_match;
        break;
    case TEXT_MERGED_WITH_PREVIOUS:
        join = match && !s->previous_match;
        break;
    case TEXT_MERGED_WITH_NEXT:
        join = !match && s->previous_match;
        break;
    }
    s->previous_match = match;
    if (join && s->any) {
        s->last.end = end;
        return true;
    }
    if (!flush_last(s))
        return false;
    s->last = (text_span){begin, end};
    s->any = true;
    return true;
}

/* Matches in one piece, in order; an empty match right behind the match before it does not count. */
static bool split_piece(const text_cut *cut, text_scratch *s, const char *subject, text_span piece, sl_error *err) {
    splitter out = {.cut = cut, .out = &s->pieces_next};
    const char *p = subject + piece.begin;
    size_t n = piece.end - piece.begin, done = 0, from = 0, last_end = SIZE_MAX;
    while (from <= n) {
        size_t begin, end;
        int found = text_regex_find(cut->regex, &s->matcher, p, n, from, &begin, &end, err);
        if (found < 0)
            return false;
        if (!found)
            break;
        if (begin == end && begin == last_end) {
            int32_t cp;
            from += from < n ? (size_t)sl_utf8_decode(p + from, n - from, &cp) : 1;
            continue;
        }
        if (done < begin && !add_part(&out, piece.begin + done, piece.begin + begin, false))
            return text_no_memory(err);
        if (!add_part(&out, piece.begin + begin, piece.begin + end, true))
            return text_no_memory(err);
        done = from = last_end = end;
    }
    if (done < n && !add_part(&out, piece.begin + done, piece.begin + n, false))
        return text_no_memory(err);
    return flush_last(&out) || text_no_memory(err);
}

static bool cut_fixed(const text_cut *cut, text_scratch *s, const char *text, text_span piece) {
    size_t begin = piece.begin, at = begin, count = 0;
    while (at < piece.end) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(text + at, piece.end - at, &cp);
        if (++count == cut->length || at >= piece.end) {
            if (!text_spans_push(&s->pieces_next, begin, at))
                return false;
            begin = at;
            count = 0;
        }
    }
    return true;
}

/* ---- steps that change the text --------------------------------------------------------------------------------- */

static bool metaspace(const text_cut *cut, sl_buf *out, const char *p, size_t n, bool first) {
    size_t mark = strlen(cut->mark);
    bool begins = n && (p[0] == ' ' || (n >= mark && memcmp(p, cut->mark, mark) == 0));
    bool prepend = cut->prepend == TEXT_PREPEND_ALWAYS || (cut->prepend == TEXT_PREPEND_FIRST && first);
    if (prepend && !begins && !sl_buf_append(out, cut->mark, mark))
        return false;
    for (size_t i = 0; i < n;) {
        const char *space = memchr(p + i, ' ', n - i);
        size_t to = space ? (size_t)(space - p) : n;
        if (!sl_buf_append(out, p + i, to - i) || (space && !sl_buf_append(out, cut->mark, mark)))
            return false;
        i = to + (space != NULL);
    }
    return true;
}

static bool rewrite_piece(const text_cut *cut, sl_buf *out, const char *p, size_t n, bool first) {
    switch (cut->kind) {
    case TEXT_SPACE_FIRST:
        return (p[0] == ' ' || sl_buf_append(out, " ", 1)) && sl_buf_append(out, p, n);
    case TEXT_METASPACE:
        return metaspace(cut, out, p, n, first);
    default:
        return text_append_byte_chars(out, p, n);
    }
}

/* Writes every piece anew into out. */
static bool rewrite(const text_cut *cut, text_scratch *s, const char *text, sl_buf *out, bool at_start) {
    sl_buf_clear(out);
    if (!sl_buf_append(out, "", 0))
        return false;
    for (size_t i = 0; i < s->pieces.count; i++) {
        text_span piece = s->pieces.at[i];
        size_t begin = out->size;
        bool first = at_start && piece.begin == 0;
        if (!rewrite_piece(cut, out, text + piece.begin, piece.end - piece.begin, first) ||
            !text_spans_push(&s->pieces_next, begin, out->size))
            return false;
    }
    return true;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static void swap_spans(text_spans *a, text_spans *b) {
    text_spans t = *a;
    *a = *b;
    *b = t;
}

static void swap_bufs(sl_buf *a, sl_buf *b) {
    sl_buf t = *a;
    *a = *b;
    *b = t;
}

static bool split_all(const text_cut *cut, text_scratch *s, const char *text, const char *shadow, sl_error *err) {
    for (size_t i = 0; i < s->pieces.count; i++) {
        if (cut->kind == TEXT_FIXED ? !cut_fixed(cut, s, text, s->pieces.at[i])
                                    : !split_piece(cut, s, shadow, s->pieces.at[i], err))
            return cut->kind == TEXT_FIXED ? text_no_memory(err) : false;
    }
    return true;
}

bool text_cuts_run(const text_cuts *c, text_scratch *s, const char *text, size_t n, bool at_start, const char **out,
                   sl_error *err) {
    const char *shadow = NULL;
    size_t size = n;
    s->pieces.count = 0;
    if (n && !text_spans_push(&s->pieces, 0, n))
        return text_no_memory(err);
    for (size_t i = 0; i < c->count; i++) {
        const text_cut *cut = &c->at[i];
        s->pieces_next.count = 0;
        if (cut->kind == TEXT_SPLIT || cut->kind == TEXT_FIXED) {
            bool literal = cut->kind == TEXT_FIXED || text_regex_is_literal(cut->regex);
            if (!literal && !shadow && !(shadow = text_shadow(text, size, &s->shadow)))
                return text_no_memory(err);
            if (!split_all(cut, s, text, literal ? text : shadow, err))
                return false;
        } else {
            if (!rewrite(cut, s, text, &s->edit_spare, at_start))
                return text_no_memory(err);
            swap_bufs(&s->edited, &s->edit_spare);
            text = s->edited.data;
            size = s->edited.size;
            shadow = NULL;
        }
        swap_spans(&s->pieces, &s->pieces_next);
    }
    *out = text;
    return true;
}
