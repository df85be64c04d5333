/* The wordwrap filter: Python's textwrap.wrap of every line. Its rules where a line may break, restated: behind white
 * space; behind a hyphen between letters; before and behind a dash of two or more hyphens between words. */
#include "text/jinja.h"

#include <string.h>

typedef struct wrap {
    jinja *j;
    const jstr *s; /* one line */
    int32_t *points;
    size_t *offsets; /* n + 1, bytes */
    size_t n;
    int64_t width;
    bool break_words, break_hyphens;
    bool started; /* a line was made of this paragraph */
    jtext *out;
    bool *first; /* no line at all yet */
    const jstr *newline;
} wrap;

typedef struct chunk {
    size_t from, to;
} chunk;

static bool is_blank(int32_t cp) {
    return (cp >= 9 && cp <= 13) || cp == ' ';
}

static bool is_letter(const wrap *w, size_t at) {
    return at < w->n && jinja_is_word(w->points[at]) && !jinja_is_decimal(w->points[at]);
}

static bool ends_word(const wrap *w, size_t at) {
    if (at == 0 || at > w->n)
        return false;
    int32_t cp = w->points[at - 1];
    return jinja_is_word(cp) || (cp < 0x80 && cp && strchr("!\"'&.,?", cp));
}

/* Length of a dash at `at` that a word follows, 0: none. */
static size_t dash(const wrap *w, size_t at) {
    size_t end = at;
    while (end < w->n && w->points[end] == '-')
        end++;
    jinja_work(w->j, end - at);
    return end - at >= 2 && end < w->n && jinja_is_word(w->points[end]) ? end - at : 0;
}

/* A hyphen at `at`, in a word that may be cut behind it. */
static bool is_hyphen(const wrap *w, size_t at) {
    if (at >= w->n || w->points[at] != '-')
        return false;
    bool two = at >= 2 && is_letter(w, at - 1) && is_letter(w, at - 2);
    bool one = at >= 3 && is_letter(w, at - 1) && w->points[at - 2] == '-' && is_letter(w, at - 3);
    if (!two && !one)
        return false;
    return is_letter(w, at + 1) &&
           (is_letter(w, at + 2) || (at + 2 < w->n && w->points[at + 2] == '-' && is_letter(w, at + 3)));
}

static size_t chunk_end(const wrap *w, size_t at) {
    size_t end = at;
    if (is_blank(w->points[at])) {
        while (end < w->n && is_blank(w->points[end]))
            end++;
        return end;
    }
    if (!w->break_hyphens) {
        while (end < w->n && !is_blank(w->points[end]))
            end++;
        return end;
    }
    if (ends_word(w, at) && dash(w, at))
        return at + dash(w, at);
    for (end = at + 1; end < w->n && !is_blank(w->points[end]); end++) {
        if (is_hyphen(w, end))
            return end + 1;
        if (ends_word(w, end) && dash(w, end))
            return end;
    }
    return end;
}

static bool all_blank(const wrap *w, chunk c) {
    for (size_t i = c.from; i < c.to; i++)
        if (!jinja_is_space(w->points[i]))
            return false;
    return true;
}

/* Where to cut a chunk of which `room` characters fit. */
static size_t cut_at(const wrap *w, chunk c, size_t room) {
    size_t end = c.from + room;
    if (!w->break_hyphens || c.to - c.from <= room)
        return end < c.to ? end : c.to;
    for (size_t i = end; i-- > c.from + 1;) {
        if (w->points[i] != '-')
            continue;
        for (size_t k = c.from; k < i; k++)
            if (w->points[k] != '-')
                return i + 1;
        break;
    }
    return end;
}

static void put_line(wrap *w, size_t from, size_t to) {
    if (!*w->first)
        jinja_put_str(w->out, w->newline);
    *w->first = false;
    w->started = true;
    jinja_put(w->out, w->s->p + w->offsets[from], w->offsets[to] - w->offsets[from]);
}

/* The chunks of a line are neighbours, so a line is a span: [from, to), without its last chunk if that is blank. */
static void wrap_chunks(wrap *w, chunk *chunks, size_t n) {
    for (size_t i = 0; i < n;) {
        if (w->started && all_blank(w, chunks[i]) && ++i == n)
            return;
        size_t from = chunks[i].from, to = from, last = from;
        int64_t used = 0;
        for (; i < n && used + (int64_t)(chunks[i].to - chunks[i].from) <= w->width; i++) {
            used += (int64_t)(chunks[i].to - chunks[i].from);
            last = chunks[i].from;
            to = chunks[i].to;
        }
        if (i < n && (int64_t)(chunks[i].to - chunks[i].from) > w->width) {
            if (w->break_words) {
                last = chunks[i].from;
                to = chunks[i].from = cut_at(w, chunks[i], (size_t)(w->width - used));
            } else if (to == from) {
                last = chunks[i].from;
                to = chunks[i++].to;
            }
        }
        if (to > last && all_blank(w, (chunk){last, to}))
            to = last;
        if (to > from)
            put_line(w, from, to);
    }
}

static void wrap_line(wrap *w) {
    jinja *j = w->j;
    w->points = jinja_alloc_array(j, w->s->n + 1, sizeof *w->points);
    w->offsets = jinja_alloc_array(j, w->s->n + 1, sizeof *w->offsets);
    for (size_t at = 0; at < w->s->n; w->n++) {
        w->offsets[w->n] = at;
        at += (size_t)sl_utf8_decode(w->s->p + at, w->s->n - at, &w->points[w->n]);
    }
    w->offsets[w->n] = w->s->n;
    chunk *chunks = jinja_alloc_array(j, w->n + 1, sizeof *chunks);
    size_t n = 0;
    for (size_t at = 0; at < w->n; at = chunks[n++].to)
        chunks[n] = (chunk){at, chunk_end(w, at)};
    wrap_chunks(w, chunks, n);
}

/* wordwrap(s, width=79, break_long_words=True, wrapstring=None, break_on_hyphens=True) */
jval jinja_filter_wordwrap(jinja *j, jval self, const jval *a) {
    int64_t width = a[0].kind == J_MISSING ? 79 : jinja_arg_int(j, a[0], "wordwrap: width");
    const jstr *newline = jinja_given(a[2]) ? jinja_arg_str(j, a[2], "wordwrap: wrapstring") : jinja_str(j, "\n").s;
    if (self.kind == J_UNDEFINED)
        jinja_raise_undefined(j, self.u);
    jval lines = jinja_splitlines(j, jinja_arg_str(j, self, "wordwrap: the value"), false);
    jtext out = {.j = j};
    if (width <= 0 && lines.seq->n)
        jinja_raise(j, "wordwrap: a width of %lld", (long long)width);
    for (size_t i = 0; i < lines.seq->n; i++) {
        bool first = true;
        wrap w = {.j = j, .s = lines.seq->at[i].s, .width = width, .out = &out, .first = &first, .newline = newline};
        w.break_words = a[1].kind == J_MISSING || jinja_truth(j, a[1]);
        w.break_hyphens = a[3].kind == J_MISSING || jinja_truth(j, a[3]);
        if (i)
            jinja_put_str(&out, newline);
        wrap_line(&w);
    }
    return jinja_text(&out);
}
