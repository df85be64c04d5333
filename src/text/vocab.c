/* Vocabulary: the bytes of every id in one block, and a hash table from bytes to id. */
#include "text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

uint64_t text_hash(const char *p, size_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    uint64_t w = 0;
    memcpy(&w, p, n);
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 29;
}

static void slot_insert(text_vocab *v, int32_t id) {
    sl_str s = text_vocab_get(v, id);
    size_t mask = v->slot_count - 1;
    size_t i = text_hash(s.p, s.n) & mask;
    while (v->slots[i])
        i = (i + 1) & mask;
    v->slots[i] = (uint32_t)id + 1;
    v->filled++;
}

static bool slots_grow(text_vocab *v) {
    size_t old_count = v->slot_count;
    uint32_t *old = v->slots;
    size_t count = old_count ? old_count * 2 : 1024;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (!slots)
        return false;
    v->slots = slots;
    v->slot_count = count;
    v->filled = 0;
    for (size_t i = 0; i < old_count; i++)
        if (old[i])
            slot_insert(v, (int32_t)(old[i] - 1));
    free(old);
    return true;
}

static bool pieces_grow(text_vocab *v, size_t need) {
    size_t before = v->pieces_capacity;
    if (!sl_grow((void **)&v->pieces, &v->pieces_capacity, need, sizeof *v->pieces))
        return false;
    for (size_t i = before; i < v->pieces_capacity; i++)
        v->pieces[i] = (text_piece){UINT32_MAX, 0};
    return true;
}

bool text_vocab_add(text_vocab *v, int32_t id, const char *p, size_t n) {
    if (id < 0 || id > TEXT_MAX_ID || n >= UINT32_MAX - v->used)
        return false;
    if (!pieces_grow(v, (size_t)id + 1) || !sl_grow((void **)&v->bytes, &v->capacity, v->used + n + 1, 1))
        return false;
    if ((v->filled + 1) * 2 > v->slot_count && !slots_grow(v))
        return false;
    bool known = text_vocab_find(v, p, n) >= 0;
    if (n)
        memcpy(v->bytes + v->used, p, n);
    v->pieces[id] = (text_piece){(uint32_t)v->used, (uint32_t)n};
    v->used += n;
    if ((size_t)id >= v->size)
        v->size = (size_t)id + 1;
    if (n > v->longest)
        v->longest = n;
    if (!known)
        slot_insert(v, id);
    return true;
}

int32_t text_vocab_find(const text_vocab *v, const char *p, size_t n) {
    if (!v->slot_count)
        return -1;
    size_t mask = v->slot_count - 1;
    for (size_t i = text_hash(p, n) & mask; v->slots[i]; i = (i + 1) & mask) {
        text_piece s = v->pieces[v->slots[i] - 1];
        if (s.length == n && memcmp(v->bytes + s.offset, p, n) == 0)
            return (int32_t)(v->slots[i] - 1);
    }
    return -1;
}

bool text_vocab_has(const text_vocab *v, int64_t id) {
    return id >= 0 && (uint64_t)id < v->size && v->pieces[id].offset != UINT32_MAX;
}

sl_str text_vocab_get(const text_vocab *v, int32_t id) {
    if (!text_vocab_has(v, id))
        return (sl_str){NULL, 0};
    return (sl_str){v->bytes + v->pieces[id].offset, v->pieces[id].length};
}

void text_vocab_free(text_vocab *v) {
    free(v->bytes);
    free(v->pieces);
    free(v->slots);
    *v = (text_vocab){0};
}
