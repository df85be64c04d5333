/* quant_grids: the tables of GGUF's IQ formats. Private to quant, cpu and the source of kernels (ops/kernels.c). */
#ifndef SL_QUANT_GRIDS_H
#define SL_QUANT_GRIDS_H

#include <stdint.h>

/* Eight signs from seven bits: bit k set: weight k is negative. Their number is even. */
extern const uint8_t quant_iq_signs[128];

/* Eight (uint64_t) or four (uint32_t) weights without sign, one a byte, the first in the least significant byte. */
extern const uint64_t quant_iq2xxs_grid[256];
extern const uint64_t quant_iq2xs_grid[512];
extern const uint64_t quant_iq2s_grid[1024];
extern const uint32_t quant_iq3xxs_grid[256];
extern const uint32_t quant_iq3s_grid[512];
/* Eight of -1, 0, 1: int8. */
extern const uint64_t quant_iq1s_grid[2048];

/* The same rows as codes of two bits (IQ3: three), the first weight's lowest: of the values in ascending order. */
extern const uint16_t quant_iq2xxs_codes[256];
extern const uint16_t quant_iq2xs_codes[512];
extern const uint16_t quant_iq2s_codes[1024];
extern const uint16_t quant_iq3xxs_codes[256];
extern const uint16_t quant_iq3s_codes[512];
extern const uint16_t quant_iq1s_codes[2048];

#endif
