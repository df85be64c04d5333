/* Name table: SipHash-1-3 with a seed of this run and linear probing. Names come from files; with a fixed hash a file
 * could choose names that all collide and make opening it quadratic. */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t rotate(uint64_t v, int by) {
    return v << by | v >> (64 - by);
}

static void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static void sip_word(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
}

/* Aumasson, Bernstein: "SipHash: a fast short-input PRF" (2012), with 1 and 3 rounds. */
static uint64_t hash_name(const uint64_t seed[2], const char *p, size_t n) {
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575, seed[1] ^ 0x646f72616e646f6d, seed[0] ^ 0x6c7967656e657261,
                     seed[1] ^ 0x7465646279746573};
    uint64_t word;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&word, p + i, 8);
        sip_word(v, word);
    }
    word = (uint64_t)n << 56;
    for (int shift = 0; i < n; i++, shift += 8) {
        word |= (uint64_t)(uint8_t)p[i] << shift;
    }
    sip_word(v, word);
    v[2] ^= 0xff;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The place of a name, or the free place where it belongs. */
static ckpt_name *find_place(const ckpt_names *t, const char *p, size_t n, uint64_t hash) {
    size_t mask = t->capacity - 1;
    for (size_t i = (size_t)hash & mask;; i = (i + 1) & mask) {
        ckpt_name *e = &t->place[i];
        if (!e->p || (e->hash == hash && e->n == n && memcmp(e->p, p, n) == 0)) {
            return e;
        }
    }
}

size_t ckpt_names_find(const ckpt_names *t, const char *p, size_t n) {
    if (t->capacity == 0) {
        return CKPT_NONE;
    }
    const ckpt_name *e = find_place(t, p, n, hash_name(t->seed, p, n));
    return e->p ? e->value : CKPT_NONE;
}

static bool grow(ckpt_names *t) {
    ckpt_names bigger = *t;
    bigger.capacity = t->capacity ? t->capacity * 2 : 64;
    bigger.place = calloc(bigger.capacity, sizeof *bigger.place);
    if (!bigger.place) {
        return false;
    }
    if (t->capacity == 0) {
        bigger.seed[0] = sl_now_ns();
        bigger.seed[1] = (uint64_t)(uintptr_t)bigger.place ^ bigger.seed[0] * 0x9e3779b97f4a7c15;
        for (int i = 0; i < 2; i++) { /* few bits of clock and address are unknown: spread them */
            bigger.seed[i] = hash_name(bigger.seed, "seed", 4);
        }
    }
    for (size_t i = 0; i < t->capacity; i++) {
        if (t->place[i].p) {
            const ckpt_name *e = &t->place[i];
            *find_place(&bigger, e->p, e->n, e->hash) = *e;
        }
    }
    free(t->place);
    *t = bigger;
    return true;
}

bool ckpt_names_add(ckpt_names *t, const char *p, size_t n, size_t value) {
    if (t->count >= t->capacity / 2 && !grow(t)) {
        return false;
    }
    uint64_t hash = hash_name(t->seed, p, n);
    ckpt_name *e = find_place(t, p, n, hash);
    if (!e->p) {
        t->count++;
        *e = (ckpt_name){.p = p, .n = n, .hash = hash, .value = value};
    }
    return true;
}

void ckpt_names_free(ckpt_names *t) {
    free(t->place);
    *t = (ckpt_names){0};
}
