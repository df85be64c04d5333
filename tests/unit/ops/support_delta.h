/* The delta op on a device beside the CPU's exact mode: the same operands and steps for both, state in slabs. */
#ifndef SUPPORT_DELTA_H
#define SUPPORT_DELTA_H

#include "support_ops.h"

enum { DELTA_ROWS = 1100, DELTA_STEPS = 6 };

/* How much of the state a row leaves: as models do; 1e-4 or 50 in the exponent; anything between. */
typedef enum delta_decay { DECAY_USUAL, DECAY_WEAK, DECAY_STRONG, DECAY_MIXED } delta_decay;

typedef struct delta_case {
    int32_t key_heads, value_heads, key_dim, value_dim, width;
    bool tiled, bias, in_place; /* in_place: z is dst */
    delta_decay decay;
    float magnitude, keys;         /* of qkv, and of q and k beside that; 0: 1 */
    int32_t steps[DELTA_STEPS][2]; /* rows of sequences 0 and 1, in this order, in each step */
} delta_case;

typedef struct delta_twin {
    rig g;
    sl_program *p;
    sl_view dst, qkv, z, beta, alpha;
    sl_state_layout state;
    delta_decay decay;
    float magnitude, keys;
    int32_t bad_position; /* > 0: the last key there is NaN in every head */
    uint8_t *slabs[16];
    int32_t blocks[2][2];
    sl_step_seq seqs[2];
} delta_twin;

/* Compiled kernels are kept for all tests of a program; for cmocka's group. */
int delta_cache_make(void **state);
int delta_cache_remove(void **state);

/* False: no such device. */
bool delta_open(delta_twin *t, const delta_case *c, bool device, bool check);
void delta_close(delta_twin *t);
/* One step of n[0] rows of sequence 0, then n[1] of sequence 1, from these positions on; a row's operands are random
 * and its position's. */
void delta_run(delta_twin *t, const int32_t n[2], const int32_t from[2]);
const float *delta_state_of(const delta_twin *t, int32_t seq);
/* The case's steps on both; outputs and states within `limit`. */
void delta_compare(const delta_case *c, bool check, double limit);

#endif
