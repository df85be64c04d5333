/* cpu_tile_avx2: the tile of the AVX2 products; private to cpu. */
#ifndef SL_CPU_TILE_AVX2_H
#define SL_CPU_TILE_AVX2_H

#include "cpu/cpu_matmul.h"

enum { CPU_TILE_ACTS_AVX2 = 4 };

cpu_tile_pack_fn cpu_tile_pack_avx2;
cpu_tile_mul_fn cpu_tile_mul_avx2;

#endif
