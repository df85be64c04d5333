/* UTF-8 against the definition: the set of encodings of all code points, made here by arithmetic. */
#include "support_base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool is_scalar(int32_t cp) {
    return cp >= 0 && cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff);
}

/* The encoding of cp as RFC 3629's table has it. */
static int encode(int32_t cp, uint8_t out[4]) {
    if (cp < 0x80)
        return out[0] = (uint8_t)cp, 1;
    if (cp < 0x800)
        return out[0] = (uint8_t)(0xc0 + cp / 64), out[1] = (uint8_t)(0x80 + cp % 64), 2;
    if (cp < 0x10000)
        return out[0] = (uint8_t)(0xe0 + cp / 4096), out[1] = (uint8_t)(0x80 + cp / 64 % 64),
               out[2] = (uint8_t)(0x80 + cp % 64), 3;
    return out[0] = (uint8_t)(0xf0 + cp / 262144), out[1] = (uint8_t)(0x80 + cp / 4096 % 64),
           out[2] = (uint8_t)(0x80 + cp / 64 % 64), out[3] = (uint8_t)(0x80 + cp % 64), 4;
}

/* One bit per string of one to three bytes: is it the beginning of an encoding and not all of it? */
static uint8_t begins1[256], begins2[65536], *begins3; /* [1 << 24] */

static int set_up(void **state) {
    begins3 = calloc(1, 1 << 24);
    for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
        uint8_t e[4];
        int n = is_scalar(cp) ? encode(cp, e) : 0;
        if (n > 1)
            begins1[e[0]] = 1;
        if (n > 2)
            begins2[e[0] << 8 | e[1]] = 1;
        if (n > 3)
            begins3[e[0] << 16 | e[1] << 8 | e[2]] = 1;
    }
    return begins3 ? 0 : -1;
}

static int tear_down(void **state) {
    free(begins3);
    return 0;
}

static void every_code_point_comes_back(void **state) {
    for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (!is_scalar(cp))
            continue;
        uint8_t e[4];
        char out[5] = {0x55, 0x55, 0x55, 0x55, 0x55};
        int n = encode(cp, e), got = sl_utf8_encode(cp, out);
        int32_t back = -2;
        if (got != n || memcmp(out, e, (size_t)n) || out[n] != 0x55)
            fail_msg("U+%04X is encoded wrongly", (unsigned)cp);
        if (sl_utf8_decode(out, (size_t)n, &back) != n || back != cp)
            fail_msg("U+%04X is decoded as %d", (unsigned)cp, (int)back);
        for (int cut = 1; cut < n; cut++)
            if (sl_utf8_decode(out, (size_t)cut, &back) != 1 || back != -1)
                fail_msg("U+%04X cut to %d bytes is taken for %d", (unsigned)cp, cut, (int)back);
    }
}

/* What the bytes s[0..4) decode to, by looking for a code point whose encoding they begin with. */
static int expected_decode(const uint8_t s[4], int32_t *cp) {
    static const int32_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    int32_t v = s[0];
    *cp = v < 0x80 ? v : -1;
    for (int n = 2; n <= 4; n++) {
        uint8_t e[4];
        v = s[0] - lead[n];
        for (int i = 1; i < n; i++)
            v = v * 64 + (s[i] - 0x80);
        if (is_scalar(v) && encode(v, e) == n && memcmp(e, s, (size_t)n) == 0)
            return *cp = v, n;
    }
    return 1;
}

static void check_decode(const uint8_t s[4]) {
    int32_t cp, expected;
    int n = sl_utf8_decode((const char *)s, 4, &cp), m = expected_decode(s, &expected);
    if (n != m || cp != expected)
        fail_msg("%02x %02x %02x %02x: %d bytes, %d; expected %d bytes, %d", s[0], s[1], s[2], s[3], n, (int)cp, m,
                 (int)expected);
}

static const uint8_t edges[] = {0,    1,    0x41, 0x7f, 0x80, 0x81, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
                                0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf3, 0xf4, 0xf5, 0xff};

static void invalid_bytes_are_one_at_a_time(void **state) {
    for (int i = 0; i < 1 << 16; i++)
        for (size_t k = 0; k < SL_COUNT(edges); k++)
            for (size_t l = 0; l < SL_COUNT(edges); l++)
                check_decode((uint8_t[4]){(uint8_t)(i >> 8), (uint8_t)i, edges[k], edges[l]});
}

/* Where s ends inside a sequence that may still become valid, where that begins; else n. */
static size_t expected_complete(const uint8_t *s, size_t n) {
    if (n >= 1 && begins1[s[n - 1]])
        return n - 1;
    if (n >= 2 && begins2[s[n - 2] << 8 | s[n - 1]])
        return n - 2;
    if (n >= 3 && begins3[s[n - 3] << 16 | s[n - 2] << 8 | s[n - 1]])
        return n - 3;
    return n;
}

static void check_complete(const uint8_t *s, size_t n) {
    size_t got = sl_utf8_complete((const char *)s, n), expected = expected_complete(s, n);
    if (got != expected)
        fail_msg("%zu bytes that end with %02x: complete up to %zu, expected %zu", n, n ? s[n - 1] : 0, got, expected);
}

static void complete_holds_back_what_may_still_become_valid(void **state) {
    check_complete((const uint8_t *)"", 0);
    for (int i = 0; i < 256; i++)
        check_complete((uint8_t[1]){(uint8_t)i}, 1);
    for (int i = 0; i < 1 << 16; i++) {
        check_complete((uint8_t[2]){(uint8_t)(i >> 8), (uint8_t)i}, 2);
        for (size_t k = 0; k < SL_COUNT(edges); k++) {
            check_complete((uint8_t[3]){(uint8_t)(i >> 8), (uint8_t)i, edges[k]}, 3);
            for (size_t l = 0; l < SL_COUNT(edges); l++) {
                check_complete((uint8_t[4]){(uint8_t)(i >> 8), (uint8_t)i, edges[k], edges[l]}, 4);
                check_complete((uint8_t[4]){edges[k], (uint8_t)(i >> 8), (uint8_t)i, edges[l]}, 4);
            }
        }
    }
}

/* Streaming: text cut anywhere, the held-back rest put before the next piece, never shows a broken character. */
static void text_streamed_in_pieces_stays_whole(void **state) {
    rng r = {9};
    print_message("seed %llu\n", (unsigned long long)r.state);
    for (int round = 0; round < 200; round++) {
        char text[400];
        size_t n = 0;
        while (n + 4 <= sizeof text) {
            int32_t cp = (int32_t)(rng_next(&r) & (0x1fffffu >> rng_below(&r, 15)));
            n += is_scalar(cp) ? (size_t)sl_utf8_encode(cp, text + n) : 0;
        }
        size_t shown = 0;
        for (size_t at = 0; at < n; at++) { /* one byte arrives */
            size_t ready = shown + sl_utf8_complete(text + shown, at + 1 - shown);
            while (shown < ready) {
                int32_t cp;
                int len = sl_utf8_decode(text + shown, ready - shown, &cp);
                assert_true(cp >= 0);
                shown += (size_t)len;
            }
        }
        assert_int_equal(shown, n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_comes_back),
        cmocka_unit_test(invalid_bytes_are_one_at_a_time),
        cmocka_unit_test(complete_holds_back_what_may_still_become_valid),
        cmocka_unit_test(text_streamed_in_pieces_stays_whole),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
