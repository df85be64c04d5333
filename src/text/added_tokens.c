/* Added tokens: found in the text itself, before pre-tokenizing. Two tries of bytes: one for tokens that are looked for
 * in the text as written, one for those looked for after normalising. At each place the longest token counts; a walk is
 * as long as the longest token at most. */
#include "text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

bool text_added_push(text_added_list *l, text_added token) {
    if (!sl_grow((void **)&l->at, &l->capacity, l->count + 1, sizeof *l->at))
        return false;
    token.content = sl_strndup(token.content, token.size);
    if (!token.content)
        return false;
    l->at[l->count++] = token;
    return true;
}

static int32_t new_node(text_trie *t, uint8_t byte, int32_t sibling) {
    if (t->count >= INT32_MAX || !sl_grow((void **)&t->nodes, &t->capacity, t->count + 1, sizeof *t->nodes))
        return -1;
    t->nodes[t->count] = (text_trie_node){sibling, -1, -1, byte};
    return (int32_t)t->count++;
}

static int32_t child_of(const text_trie *t, int32_t node, uint8_t byte) {
    int32_t i = t->nodes[node].child;
    while (i >= 0 && t->nodes[i].byte != byte)
        i = t->nodes[i].sibling;
    return i;
}

/* The first of equal tokens counts. */
static bool trie_add(text_trie *t, const char *p, size_t n, int32_t token) {
    if (!n)
        return true;
    int32_t *root = &t->root[(uint8_t)p[0]];
    if (*root < 0 && (*root = new_node(t, (uint8_t)p[0], -1)) < 0)
        return false;
    int32_t node = *root;
    for (size_t i = 1; i < n; i++) {
        int32_t child = child_of(t, node, (uint8_t)p[i]);
        if (child < 0) {
            child = new_node(t, (uint8_t)p[i], t->nodes[node].child);
            if (child < 0)
                return false;
            t->nodes[node].child = child;
        }
        node = child;
    }
    if (t->nodes[node].token < 0)
        t->nodes[node].token = token;
    return true;
}

/* Longest token at p; -1: none. */
static int32_t trie_longest(const text_trie *t, const char *p, size_t n, size_t *length) {
    int32_t best = -1, node = t->root[(uint8_t)p[0]];
    for (size_t i = 1; node >= 0; i++) {
        if (t->nodes[node].token >= 0) {
            best = t->nodes[node].token;
            *length = i;
        }
        node = i < n ? child_of(t, node, (uint8_t)p[i]) : -1;
    }
    return best;
}

static bool add_normalised(text_added_list *l, size_t i, const text_edits *edits, text_scratch *s, sl_error *err) {
    const char *p;
    size_t n;
    return text_edits_run(edits, &s->matcher, &s->normal, &s->spare, l->at[i].content, l->at[i].size, &p, &n, err) &&
           (trie_add(&l->normal, p, n, (int32_t)i) || text_no_memory(err));
}

bool text_added_finish(text_added_list *l, const text_edits *edits, sl_error *err) {
    for (int i = 0; i < 256; i++)
        l->raw.root[i] = l->normal.root[i] = -1;
    text_scratch s = {0};
    bool ok = true;
    /* control tokens first: where two tokens are equal, the stricter one counts */
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; ok && i < l->count; i++) {
            if (l->at[i].special != (pass == 0))
                continue;
            if (l->at[i].normalized)
                ok = add_normalised(l, i, edits, &s, err);
            else
                ok = trie_add(&l->raw, l->at[i].content, l->at[i].size, (int32_t)i) || text_no_memory(err);
        }
    text_scratch_free(&s);
    return ok;
}

/* Start of the character that ends before `at`. */
static size_t char_before(const char *text, size_t at) {
    size_t i = at - 1;
    while (i > 0 && at - i < 4 && (text[i] & 0xc0) == 0x80)
        i--;
    int32_t cp;
    return i + (size_t)sl_utf8_decode(text + i, at - i, &cp) == at ? i : at - 1;
}

static int32_t code_before(const char *text, size_t at) {
    int32_t cp;
    size_t i = char_before(text, at);
    sl_utf8_decode(text + i, at - i, &cp);
    return cp;
}

static bool is_single_word(const char *text, size_t n, size_t begin, size_t end) {
    int32_t cp;
    if (begin > 0 && text_is_word(code_before(text, begin)))
        return false;
    if (end >= n)
        return true;
    sl_utf8_decode(text + end, n - end, &cp);
    return !text_is_word(cp);
}

static size_t skip_space_back(const char *text, size_t begin, size_t floor) {
    while (begin > floor && text_is_space(code_before(text, begin)))
        begin = char_before(text, begin);
    return begin < floor ? floor : begin;
}

static size_t skip_space(const char *text, size_t n, size_t end) {
    while (end < n) {
        int32_t cp;
        int len = sl_utf8_decode(text + end, n - end, &cp);
        if (!text_is_space(cp))
            break;
        end += (size_t)len;
    }
    return end;
}

bool text_added_next(const text_added_list *l, bool normal, bool special, const char *text, size_t n, size_t floor,
                     size_t *from, text_hit *hit) {
    const text_trie *t = normal ? &l->normal : &l->raw;
    if (!t->count)
        return false;
    while (*from < n) {
        size_t length = 0, at = *from;
        int32_t found = t->root[(uint8_t)text[at]] < 0 ? -1 : trie_longest(t, text + at, n - at, &length);
        if (found < 0) {
            ++*from;
            continue;
        }
        /* what is found is stepped over even where it does not count */
        *from = at + length;
        const text_added *token = &l->at[found];
        if ((token->special && !special) || (token->single_word && !is_single_word(text, n, at, at + length)))
            continue;
        *hit = (text_hit){token->lstrip ? skip_space_back(text, at, floor) : at,
                          token->rstrip ? skip_space(text, n, at + length) : at + length, token};
        return true;
    }
    return false;
}

static void trie_free(text_trie *t) {
    free(t->nodes);
    *t = (text_trie){0};
}

void text_added_free(text_added_list *l) {
    for (size_t i = 0; i < l->count; i++)
        free(l->at[i].content);
    free(l->at);
    trie_free(&l->raw);
    trie_free(&l->normal);
    *l = (text_added_list){0};
}
