/* cpu_tile_neon: the tile of the NEON products; private to cpu. */
#ifndef SL_CPU_TILE_NEON_H
#define SL_CPU_TILE_NEON_H

#include "cpu/cpu_matmul.h"

enum { CPU_TILE_ACTS_NEON = 4 };

cpu_tile_pack_fn cpu_tile_pack_neon;
cpu_tile_mul_fn cpu_tile_mul_neon;

#endif
