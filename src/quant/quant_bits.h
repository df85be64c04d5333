/* quant_bits: reading little-endian fields of blocks, whose bytes have no alignment. Private to quant and cpu. */
#ifndef SL_QUANT_BITS_H
#define SL_QUANT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint16_t quant_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t quant_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float quant_f32(const uint8_t *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float quant_float_of(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint32_t quant_bits_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* The 6-bit scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K block; s is its 12 bytes of packed scales: the
 * low six bits of bytes 0..3 and 4..7 hold scales and minima of 0..3; for 4..7 the low four bits are in bytes 8..11,
 * the high two in bytes 0..7. */
static inline void quant_k_scale_min(const uint8_t *s, int j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
        *min = (uint8_t)((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
    }
}

#endif
