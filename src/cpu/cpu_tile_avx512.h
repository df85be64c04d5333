/* cpu_tile_avx512: the tile of the AVX-512 products; private to cpu. */
#ifndef SL_CPU_TILE_AVX512_H
#define SL_CPU_TILE_AVX512_H

#include "cpu/cpu_matmul.h"

cpu_tile_pack_fn cpu_tile_pack_avx512;
cpu_tile_mul_fn cpu_tile_mul_avx512;

#endif
