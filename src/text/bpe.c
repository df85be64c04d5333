/* Byte pair encoding of one piece.
 *
 * A piece begins as symbols (bytes or characters); while some neighbours are a merge, the merge of lowest rank,
 * leftmost of equals, is done. Short pieces find it by looking at all neighbours; long ones keep candidates in a heap
 * and symbols in a linked list, so that a piece of n symbols costs n log n. Most words are a piece of the vocabulary
 * that their own merges lead to: the first time such a word is encoded that is noted in `whole`, and from then on the
 * word costs one look-up. */
#include "text/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX
#define END     UINT32_MAX
/* Above this many symbols the heap is faster than looking at all neighbours. */
#define SHORT_PIECE 48

/* ---- table of merges -------------------------------------------------------------------------------------------- */

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t pair_slot(const text_bpe *b, uint64_t key) {
    uint64_t h = key * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 31) & (b->merge_slots - 1);
}

static const text_merge *find_merge(const text_bpe *b, int32_t left, int32_t right) {
    uint64_t key = pair_key(left, right);
    for (size_t i = pair_slot(b, key);; i = (i + 1) & (b->merge_slots - 1)) {
        const text_merge *m = &b->merges[i];
        if (m->pair == key)
            return m;
        if (m->pair == UINT64_MAX)
            return NULL;
    }
}

static void put_merge(text_bpe *b, text_merge m) {
    size_t i = pair_slot(b, m.pair);
    while (b->merges[i].pair != UINT64_MAX && b->merges[i].pair != m.pair)
        i = (i + 1) & (b->merge_slots - 1);
    if (b->merges[i].pair == UINT64_MAX)
        b->merge_count++;
    b->merges[i] = m;
}

bool text_bpe_reserve(text_bpe *b, size_t n) {
    size_t slots = b->merge_slots ? b->merge_slots : 16;
    while (slots < n + n / 2)
        slots *= 2;
    if (b->merges && slots == b->merge_slots)
        return true;
    text_merge *old = b->merges, *table = malloc(slots * sizeof *table);
    size_t old_slots = b->merge_slots;
    if (!table)
        return false;
    memset(table, 0xff, slots * sizeof *table);
    b->merges = table;
    b->merge_slots = slots;
    b->merge_count = 0;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].pair != UINT64_MAX)
            put_merge(b, old[i]);
    free(old);
    return true;
}

bool text_bpe_add_merge(text_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged) {
    if (!text_bpe_reserve(b, b->merge_count + 1))
        return false;
    put_merge(b, (text_merge){pair_key(left, right), rank, merged});
    return true;
}

/* ---- symbols ---------------------------------------------------------------------------------------------------- */

/* A vocabulary entry that text can become: not a control token, not the "<0xXX>" of a byte. */
static bool reachable(const text_bpe *b, int32_t id) {
    return id >= 0 && !(b->attr[id] & TEXT_ATTR_NO_MODEL);
}

/* Symbol of the bytes of a character (or of a piece, when scores make the merges); -1: none. */
static int32_t find_symbol(const text_bpe *b, const char *p, size_t n) {
    int32_t id = text_vocab_find(b->vocab, p, n);
    if (reachable(b, id))
        return id;
    id = b->extra.size ? text_vocab_find(&b->extra, p, n) : -1;
    return id < 0 ? -1 : (int32_t)b->vocab->size + id;
}

static bool push_symbol(text_scratch *s, size_t *count, int32_t id) {
    if (*count + 1 >= s->symbols_capacity &&
        !sl_grow((void **)&s->symbols, &s->symbols_capacity, *count + 2, sizeof *s->symbols))
        return false;
    s->symbols[(*count)++].id = id;
    return true;
}

/* The bytes of a character that is no symbol. False where a byte has no piece. */
static bool bytes_known(const text_bpe *b, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (b->byte_ids[(uint8_t)p[i]] < 0)
            return false;
    return true;
}

static bool push_bytes(const text_bpe *b, text_scratch *s, size_t *count, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!push_symbol(s, count, b->byte_ids[(uint8_t)p[i]]))
            return false;
    return true;
}

/* "the character as the vocabulary writes it": with continuing prefix and end-of-word suffix. */
static int32_t find_affixed(const text_bpe *b, text_scratch *s, const char *p, size_t n, bool first, bool last) {
    if (!b->prefix && !b->suffix)
        return find_symbol(b, p, n);
    sl_buf_clear(&s->key);
    if (b->prefix && !first)
        sl_buf_puts(&s->key, b->prefix);
    sl_buf_append(&s->key, p, n);
    if (b->suffix && last)
        sl_buf_puts(&s->key, b->suffix);
    return s->key.failed ? -1 : find_symbol(b, s->key.data, s->key.size);
}

static bool characters_to_symbols(const text_bpe *b, text_scratch *s, const char *p, size_t n, size_t *count,
                                  sl_error *err) {
    bool after_unknown = false;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t len = (size_t)sl_utf8_decode(p + i, n - i, &cp);
        int32_t id = find_affixed(b, s, p + i, len, i == 0, i + len == n);
        bool unknown = false, ok = true;
        if (id >= 0)
            ok = push_symbol(s, count, id);
        else if (b->byte_fallback && bytes_known(b, p + i, len))
            ok = push_bytes(b, s, count, p + i, len);
        else if (b->unk >= 0 && (unknown = true) && !(after_unknown && b->fuse_unk))
            ok = push_symbol(s, count, b->unk);
        if (!ok)
            return text_no_memory(err);
        after_unknown = unknown;
        i += len;
    }
    return true;
}

/* Whether p[at] is a byte of a valid character. */
static bool in_character(const char *p, size_t n, size_t at) {
    size_t lead = at;
    while (lead > 0 && at - lead < 3 && (p[lead] & 0xc0) == 0x80)
        lead--;
    int32_t cp;
    int len = sl_utf8_decode(p + lead, n - lead, &cp);
    return cp >= 0 && lead + (size_t)len > at;
}

/* Some vocabularies have no token for some bytes. In a valid character such a byte is the unknown token or nothing, as
 * in the reference; elsewhere it is written as U+FFFD, as a reader of broken text would. */
static bool bytes_to_symbols(const text_bpe *b, text_scratch *s, const char *p, size_t n, size_t *count,
                             sl_error *err) {
    static const char replacement[] = {'\xef', '\xbf', '\xbd'};
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_ids[(uint8_t)p[i]];
        bool ok = true;
        if (id >= 0)
            ok = push_symbol(s, count, id);
        else if (!in_character(p, n, i) && bytes_known(b, replacement, 3))
            ok = push_bytes(b, s, count, replacement, 3);
        else if (b->unk >= 0)
            ok = push_symbol(s, count, b->unk);
        if (!ok)
            return text_no_memory(err);
    }
    return true;
}

/* ---- merging ---------------------------------------------------------------------------------------------------- */

/* next of a symbol holds the rank of its merge with the right neighbour, prev the id that gives: here both are free to
 * use. */
static void rank_neighbours(const text_bpe *b, text_symbol *y, size_t i, size_t count) {
    const text_merge *m = i + 1 < count ? find_merge(b, y[i].id, y[i + 1].id) : NULL;
    y[i].next = m ? m->rank : NO_RANK;
    y[i].prev = m ? (uint32_t)m->merged : 0;
}

static size_t merge_short(const text_bpe *b, text_symbol *y, size_t count) {
    for (size_t i = 0; i < count; i++)
        rank_neighbours(b, y, i, count);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < count; i++)
            if (y[i].next < y[best].next)
                best = i;
        if (count < 2 || y[best].next == NO_RANK)
            return count;
        y[best].id = (int32_t)y[best].prev;
        memmove(y + best + 1, y + best + 2, (count - best - 2) * sizeof *y);
        count--;
        rank_neighbours(b, y, best, count);
        if (best > 0)
            rank_neighbours(b, y, best - 1, count);
    }
}

static bool before(const text_candidate *a, const text_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static bool heap_push(text_scratch *s, text_candidate c) {
    if (s->heap_count == s->heap_capacity &&
        !sl_grow((void **)&s->heap, &s->heap_capacity, s->heap_count + 1, sizeof *s->heap))
        return false;
    size_t i = s->heap_count++;
    while (i && before(&c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
    return true;
}

static text_candidate heap_pop(text_scratch *s) {
    text_candidate top = s->heap[0], c = s->heap[--s->heap_count];
    size_t n = s->heap_count, i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &c))
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = c;
    return top;
}

static bool offer(const text_bpe *b, text_scratch *s, uint32_t left) {
    uint32_t right = s->symbols[left].next;
    if (right == END)
        return true;
    int32_t l = s->symbols[left].id, r = s->symbols[right].id;
    const text_merge *m = find_merge(b, l, r);
    return !m || heap_push(s, (text_candidate){m->rank, left, l, r, m->merged});
}

static size_t compact(text_symbol *y, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (y[i].id >= 0)
            y[kept++].id = y[i].id;
    return kept;
}

static bool merge_long(const text_bpe *b, text_scratch *s, size_t *count) {
    text_symbol *y = s->symbols;
    s->heap_count = 0;
    for (size_t i = 0; i < *count; i++) {
        y[i].prev = i ? (uint32_t)(i - 1) : END;
        y[i].next = i + 1 < *count ? (uint32_t)(i + 1) : END;
    }
    for (size_t i = 0; i + 1 < *count; i++)
        if (!offer(b, s, (uint32_t)i))
            return false;
    while (s->heap_count) {
        text_candidate c = heap_pop(s);
        uint32_t right = y[c.at].next;
        /* symbols only grow, so that equal ids on both sides mean that nothing changed since the offer */
        if (y[c.at].id != c.left || right == END || y[right].id != c.right)
            continue;
        y[c.at].id = c.merged;
        y[c.at].next = y[right].next;
        y[right].id = -1;
        if (y[right].next != END)
            y[y[right].next].prev = c.at;
        if (!offer(b, s, c.at) || (y[c.at].prev != END && !offer(b, s, y[c.at].prev)))
            return false;
    }
    *count = compact(y, *count);
    return true;
}

/* ---- a piece ---------------------------------------------------------------------------------------------------- */

/* The vocabulary id of exactly these bytes; -1: none, or too long to be one. */
static int32_t find_whole(const text_bpe *b, text_scratch *s, const char *p, size_t n) {
    if (n > b->vocab->longest)
        return -1;
    if (b->byte_level) {
        sl_buf_clear(&s->key);
        if (!text_append_byte_chars(&s->key, p, n))
            return -1;
        p = s->key.data;
        n = s->key.size;
    }
    int32_t id = text_vocab_find(b->vocab, p, n);
    return reachable(b, id) ? id : -1;
}

/* Characters that were symbols for the sake of merges but have no id become bytes or unknown. */
static bool emit_extra(const text_bpe *b, text_scratch *s, int32_t symbol, sl_error *err) {
    sl_str c = text_vocab_get(&b->extra, symbol - (int32_t)b->vocab->size);
    if (b->byte_fallback && bytes_known(b, c.p, c.n)) {
        for (size_t i = 0; i < c.n; i++)
            if (!text_ids_push(&s->ids, b->byte_ids[(uint8_t)c.p[i]]))
                return text_no_memory(err);
        return true;
    }
    return b->unk < 0 || text_ids_push(&s->ids, b->unk) || text_no_memory(err);
}

static bool emit(const text_bpe *b, text_scratch *s, size_t count, sl_error *err) {
    for (size_t i = 0; i < count; i++) {
        int32_t id = s->symbols[i].id;
        if ((size_t)id >= b->vocab->size) {
            if (!emit_extra(b, s, id, err))
                return false;
        } else if (!text_ids_push(&s->ids, id)) {
            return text_no_memory(err);
        }
    }
    return true;
}

static bool encode_word(const text_bpe *b, text_scratch *s, const char *p, size_t n, sl_error *err) {
    if (n >= END / 4)
        return sl_fail(err, SL_ERR_TEXT, "encode: a piece of %zu bytes without a place to cut; at most %u", n, END / 4);
    int32_t id = find_whole(b, s, p, n);
    uint8_t whole = 0;
    if (id >= 0) {
        whole = b->ignore_merges ? 1 : atomic_load_explicit(&b->whole[id], memory_order_relaxed);
        if (whole == 1)
            return text_ids_push(&s->ids, id) || text_no_memory(err);
    }
    size_t count = 0;
    if (!(b->byte_level ? bytes_to_symbols : characters_to_symbols)(b, s, p, n, &count, err))
        return false;
    if (count <= SHORT_PIECE)
        count = merge_short(b, s->symbols, count);
    else if (!merge_long(b, s, &count))
        return text_no_memory(err);
    if (id >= 0 && !whole)
        atomic_store_explicit(&b->whole[id], count == 1 && s->symbols[0].id == id ? 1 : 2, memory_order_relaxed);
    return emit(b, s, count, err);
}

static const char mark[] = "\xe2\x96\x81";

/* End of the part of p that begins at `from` and ends before a U+2581 that follows another character. */
static size_t next_mark(const char *p, size_t n, size_t from) {
    size_t i = from;
    while (i + 3 <= n && memcmp(p + i, mark, 3) == 0)
        i += 3;
    const char *hit = i < n ? memmem(p + i, n - i, mark, 3) : NULL;
    return hit ? (size_t)(hit - p) : n;
}

bool text_bpe_encode(const text_bpe *b, text_scratch *s, const char *p, size_t n, sl_error *err) {
    if (!b->cut_marks)
        return encode_word(b, s, p, n, err);
    for (size_t from = 0; from < n;) {
        size_t to = next_mark(p, n, from);
        if (!encode_word(b, s, p + from, to - from, err))
            return false;
        from = to;
    }
    return true;
}

/* ---- loading ---------------------------------------------------------------------------------------------------- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int by_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score;
}

/* Symbol of bytes, new in `extra` where they are one character without an id; -1: cannot be a symbol; -2: no memory. */
static int32_t symbol_of(text_bpe *b, const char *p, size_t n) {
    int32_t id = find_symbol(b, p, n), cp;
    if (id >= 0 || (size_t)sl_utf8_decode(p, n, &cp) != n)
        return id;
    id = (int32_t)b->extra.size;
    return text_vocab_add(&b->extra, id, p, n) ? (int32_t)b->vocab->size + id : -2;
}

static bool merges_of_piece(text_bpe *b, int32_t id, uint32_t rank) {
    for (size_t at = 0;;) {
        sl_str s = text_vocab_get(b->vocab, id);
        int32_t cp;
        at += at < s.n ? (size_t)sl_utf8_decode(s.p + at, s.n - at, &cp) : 0;
        if (at >= s.n)
            return true;
        int32_t left = symbol_of(b, s.p, at);
        int32_t right = left >= 0 ? symbol_of(b, s.p + at, s.n - at) : left;
        if (left == -2 || right == -2)
            return false;
        if (left >= 0 && right >= 0 && !text_bpe_add_merge(b, left, right, rank, id))
            return false;
    }
}

bool text_bpe_merges_from_scores(text_bpe *b, const float *scores, sl_error *err) {
    size_t n = b->vocab->size, count = 0;
    scored *order = malloc((n ? n : 1) * sizeof *order);
    if (!order)
        return text_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        sl_str s = text_vocab_get(b->vocab, (int32_t)i);
        if (s.n > 1 && reachable(b, (int32_t)i) && text_vocab_find(b->vocab, s.p, s.n) == (int32_t)i)
            order[count++] = (scored){scores[i], (int32_t)i};
    }
    qsort(order, count, sizeof *order, by_score);
    bool ok = text_bpe_reserve(b, count * 4);
    uint32_t rank = 0;
    for (size_t i = 0; ok && i < count; i++) {
        if (i && order[i].score < order[i - 1].score)
            rank++;
        ok = merges_of_piece(b, order[i].id, rank);
    }
    free(order);
    return ok || text_no_memory(err);
}

static void find_byte_ids(text_bpe *b) {
    for (int i = 0; i < 256; i++) {
        char text[8];
        int n = b->byte_level ? sl_utf8_encode(text_byte_char((uint8_t)i), text)
                              : snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        int32_t id = text_vocab_find(b->vocab, text, (size_t)n);
        /* an added token such as "\u00f5" means that letter, not byte F5, which no UTF-8 text holds */
        uint8_t other = TEXT_ATTR_CONTROL | (i == 0xc0 || i == 0xc1 || i >= 0xf5 ? TEXT_ATTR_ADDED : 0);
        b->byte_ids[i] = id >= 0 && (b->attr[id] & other) ? -1 : id;
    }
}

static sl_str symbol_text(const text_bpe *b, uint32_t symbol) {
    return symbol < b->vocab->size ? text_vocab_get(b->vocab, (int32_t)symbol)
                                   : text_vocab_get(&b->extra, (int32_t)(symbol - b->vocab->size));
}

/* Whether no merge joins something that does not end in U+2581 to something that begins with it. */
static bool marks_begin_words(const text_bpe *b) {
    int32_t id = find_symbol(b, mark, 3);
    if (id < 0 || b->byte_level || b->ignore_merges || b->prefix || b->suffix)
        return false;
    for (size_t i = 0; i < b->merge_slots; i++) {
        if (b->merges[i].pair == UINT64_MAX)
            continue;
        sl_str l = symbol_text(b, (uint32_t)(b->merges[i].pair >> 32));
        sl_str r = symbol_text(b, (uint32_t)b->merges[i].pair);
        if (r.n >= 3 && memcmp(r.p, mark, 3) == 0 && !(l.n >= 3 && memcmp(l.p + l.n - 3, mark, 3) == 0))
            return false;
    }
    return true;
}

/* Merges that would make a control token, or the "<0xXX>" of a byte, out of plain text. */
static bool drop_unreachable(text_bpe *b) {
    size_t slots = b->merge_slots;
    text_merge *old = b->merges;
    bool any = false;
    for (size_t i = 0; i < slots && !any; i++)
        any = old[i].pair != UINT64_MAX && !reachable(b, old[i].merged);
    if (!any)
        return true;
    size_t count = b->merge_count;
    b->merges = NULL;
    b->merge_slots = b->merge_count = 0;
    bool ok = text_bpe_reserve(b, count);
    for (size_t i = 0; ok && i < slots; i++)
        if (old[i].pair != UINT64_MAX && reachable(b, old[i].merged))
            put_merge(b, old[i]);
    free(old);
    return ok;
}

bool text_bpe_finish(text_bpe *b, sl_error *err) {
    if (!drop_unreachable(b))
        return text_no_memory(err);
    find_byte_ids(b);
    if (b->unk >= 0 && (b->attr[b->unk] & TEXT_ATTR_STOP))
        b->unk = -1; /* no text may end a generation */
    b->cut_marks = marks_begin_words(b);
    b->whole = calloc(b->vocab->size ? b->vocab->size : 1, sizeof *b->whole);
    return (b->whole && text_bpe_reserve(b, b->merge_count)) || text_no_memory(err);
}

void text_bpe_free(text_bpe *b) {
    free(b->merges);
    free(b->prefix);
    free(b->suffix);
    free((void *)b->whole);
    text_vocab_free(&b->extra);
    *b = (text_bpe){0};
}
