// delta: what the kernels of Gated DeltaNet share: runs of rows, where a sequence's state lies, the decay.
#ifndef SL_KERNELS_DELTA_H
#define SL_KERNELS_DELTA_H

#include "step.h"

// A run: the rows of one sequence.
inline uint run_first(device const int *step, uint run) {
    return uint(step[step_head(step).run_row + run]);
}

// The state block of a run's sequence.
inline device float *run_state(thread const slab_list<device uchar *> &slabs, device const int *step, uint run,
                               uint layer) {
    uint seq = uint(step[step_head(step).seq + run_first(step, run)]);
    device const uint *entry = (device const uint *)step + step[step_head(step).state_first + seq] + 2 * layer;
    return (device float *)(slab_base(slabs, entry[1] >> 24) + (ulong(entry[0]) | ulong(entry[1] & 0xffffff) << 32));
}

inline uint key_head_of(constant sl_delta_args &a, uint head) {
    return a.tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
}

// log(1 + exp(x)): 1 + u rounds what is small away, which the quotient puts back.
inline float softplus(float x) {
    float u = exp(-fabs(x)), w = 1.0f + u;
    return (x > 0.0f ? x : 0.0f) + (w == 1.0f ? u : log(w) * (u / (w - 1.0f)));
}

// What is left of the state after a row; rate < 0.
inline float decay_of(float rate, float bias, float alpha) {
    return exp(rate * softplus(alpha + bias));
}

#endif
