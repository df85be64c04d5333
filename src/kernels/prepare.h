// prepare: norm and rotation of a head before attention, a lane of a SIMD-group for every 32nd dimension.
#ifndef SL_KERNELS_PREPARE_H
#define SL_KERNELS_PREPARE_H

#include "pages.h"

SL_SWITCH(fc_norm_q, SL_FC_NORM_Q)
SL_SWITCH(fc_norm_k, SL_FC_NORM_K)
SL_SWITCH(fc_rope, SL_FC_ROPE)
SL_SWITCH(fc_interleaved, SL_FC_INTERLEAVED)

// 1 / sqrt(mean of squares + eps) of one head.
inline float head_inverse(device const float *x, uint dim, float eps, uint lane) {
    float sum = 0.0f;
    for (uint d = lane; d < dim; d += SL_SIMD)
        sum = fma(x[d], x[d], sum);
    return 1.0f / sqrt(simd_sum(sum) / float(dim) + eps);
}

inline float normed(device const float *x, device const float *weight, uint d, bool norm, float inv) {
    return norm ? x[d] * inv * weight[d] : x[d];
}

// Dimension d of a head, normed and rotated.
inline float prepared(device const float *x, device const float *weight, uint d, bool norm, float inv,
                      constant sl_attention_args &a, device const float *cos_sin) {
    float own = normed(x, weight, d, norm, inv);
    uint at = d - a.rope_first, pairs = a.rope_dims / 2;
    if (!fc_rope || at >= a.rope_dims) // before them or behind
        return own;
    bool second = fc_interleaved ? (at & 1) != 0 : at >= pairs;
    uint pair = fc_interleaved ? at / 2 : second ? at - pairs : at, apart = fc_interleaved ? 1 : pairs;
    float other = normed(x, weight, second ? d - apart : d + apart, norm, inv);
    float c = cos_sin[pair], s = cos_sin[pairs + pair];
    return second ? own * c + other * s : own * c - other * s;
}

#endif
