// moe: routing, grouping and combining of a mixture of experts; the experts themselves are
// expert.metal and matmul.metal.
//
//   router       the k best experts of a row's logits in ascending id, and their weights. Softmax over all experts, or
//                sigmoid of each; ties go to the lower id; optionally weights are divided by their sum (added in
//                descending order, as transformers does), then multiplied by args.scale. What experts are chosen by may
//                be the logits themselves, may have a bias, and may leave out all but the best groups of experts (those
//                with the highest sums of their two best). Marks the pairs as not done.
//                A row with a NaN gets NaN weights. Grid (rows), threadgroup (32): one SIMD-group, k passes over the
//                experts, a lane takes every 32nd. Threadgroup memory: 0: experts floats, 1: 2 * top_k words.
//                Slots: 1 logits, 2 chosen, 3 weight, 4 done, 5 bias[experts] (for choosing), 6 step
//   group_pairs  the pairs by expert: pairs[list] ascending by expert, then by pair; tiles of up to tile_rows pairs of
//                one expert for matmul_expert; counts[0] tiles. One threadgroup (any size); a thread per expert reads all
//                pairs twice, in step with the others. Threadgroup memory 0: 2 * (experts + 1) words.
//                Slots: 1 chosen, 2 pairs, 3 tiles, 4 counts[2] {tiles, pairs}, 5 step
//   combine      residual += sum over ranks ascending of weight * out[pair], + shared * sigmoid(gate). A pair not done
//                leaves its row alone and sets status[row]. Grid (any, rows); bytes 4 * (k + 3) per element; the
//                order and the roundings are the CPU's. Slots: 1 out, 2 weight, 3 done, 4 shared, 5 gate[rows],
//                6 residual, 7 status[rows], 8 step
#include "step.h"

SL_SWITCH(fc_sigmoid, SL_FC_SIGMOID)
SL_SWITCH(fc_normalize, SL_FC_NORMALIZE)
SL_SWITCH(fc_select_bias, SL_FC_SELECT_BIAS)
SL_SWITCH(fc_by_logit, SL_FC_BY_LOGIT)
SL_SWITCH(fc_groups, SL_FC_GROUPS)
SL_SWITCH(fc_shared, SL_FC_SHARED)
SL_SWITCH(fc_shared_gate, SL_FC_SHARED_GATE)

// ---- router --------------------------------------------------------------------------------------------------------

// A number to choose by from a logit less the largest (softmax) or a logit (sigmoid).
inline float score_of(float logit, float largest) {
    return fc_sigmoid ? sigmoid(logit) : exp(logit - largest);
}

inline float largest_logit(device const float *logits, uint experts, uint lane) {
    float largest = logits[0];
    for (uint e = lane; e < experts; e += SL_SIMD)
        largest = logits[e] > largest ? logits[e] : largest;
    return simd_max(largest);
}

// Fills key[e], what experts are chosen by; returns the sum of the scores.
inline float fill_keys(threadgroup float *key, device const float *logits, device const float *bias, uint experts,
                       float largest, uint lane) {
    float sum = 0.0f;
    for (uint e = lane; e < experts; e += SL_SIMD) {
        float s = score_of(logits[e], largest);
        sum += s;
        key[e] = fc_by_logit ? logits[e] : s;
    }
    sum = simd_sum(sum);
    for (uint e = lane; e < experts && fc_select_bias; e += SL_SIMD)
        key[e] = (fc_sigmoid || fc_by_logit ? key[e] : key[e] / sum) + bias[e];
    return sum;
}

// The sum of a group's two best keys.
inline float group_score(threadgroup const float *key, uint size) {
    float first = -FLT_MAX, second = -FLT_MAX;
    for (uint e = 0; e < size; e++) {
        float v = key[e];
        second = v > first ? first : v > second ? v : second;
        first = v > first ? v : first;
    }
    return first + second;
}

// The keys of all but the best groups become the lowest number. A lane has two groups, its own and the one 32 on.
inline void leave_groups(threadgroup float *key, uint experts, uint groups, uint top, uint lane) {
    uint size = experts / groups;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float score[2];
    bool in[2];
    for (uint i = 0; i < 2; i++) {
        uint g = lane + i * SL_SIMD;
        score[i] = g < groups ? group_score(key + g * size, size) : -FLT_MAX;
        in[i] = false;
    }
    for (uint n = 0; n < top; n++) {
        bool free0 = !in[0] && lane < groups, free1 = !in[1] && lane + SL_SIMD < groups;
        float mine = free0 && !(free1 && score[1] > score[0]) ? score[0] : free1 ? score[1] : -FLT_MAX;
        float best = simd_max(mine);
        uint g = free0 && score[0] == best ? lane : free1 && score[1] == best ? lane + SL_SIMD : 0xffffffffu;
        g = simd_min(g);
        in[0] = in[0] || g == lane;
        in[1] = in[1] || g == lane + SL_SIMD;
    }
    for (uint i = 0; i < 2; i++) {
        uint g = lane + i * SL_SIMD;
        for (uint e = g * size; e < (g + 1) * size && g < groups && !in[i]; e++)
            key[e] = -FLT_MAX;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The expert with the largest key among those not taken, the lowest of equals; a NaN counts as less than any number.
inline uint best_expert(threadgroup const float *key, threadgroup const uint *taken, uint count, uint experts,
                        uint lane) {
    float best = 0.0f;
    uint id = 0xffffffffu;
    for (uint e = lane; e < experts; e += SL_SIMD) {
        bool free = true;
        for (uint i = 0; i < count; i++)
            free = free && taken[i] != e;
        if (free && (id == 0xffffffffu || key[e] > best || (best != best && key[e] == key[e]))) {
            best = key[e];
            id = e;
        }
    }
    bool number = id != 0xffffffffu && best == best;
    bool any = simd_max(number ? 1 : 0) != 0;
    float largest = simd_max(number ? best : -FLT_MAX);
    bool mine = any ? number && best == largest : id != 0xffffffffu;
    return simd_min(mine ? id : 0xffffffffu);
}

[[kernel, max_total_threads_per_threadgroup(32)]] void
router(constant sl_router_args &a [[buffer(0)]], device const float *logits [[buffer(1)]],
       device int *chosen [[buffer(2)]], device float *weight [[buffer(3)]], device uchar *done [[buffer(4)]],
       device const float *bias [[buffer(5)]], device const int *step [[buffer(6)]],
       threadgroup float *key [[threadgroup(0)]], threadgroup uint *taken [[threadgroup(1)]],
       uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (group >= uint(step_head(step).rows))
        return;
    uint k = a.top_k;
    threadgroup float *score = (threadgroup float *)(taken + k);
    device const float *mine = logits + ulong(group) * a.logits_stride;
    float largest = largest_logit(mine, a.experts, lane), sum = 0.0f;
    float total = fill_keys(key, mine, bias, a.experts, largest, lane); // a lane reads only the keys it wrote
    if (fc_groups)
        leave_groups(key, a.experts, a.groups, a.top_groups, lane);
    for (uint i = 0; i < k; i++) {
        uint id = best_expert(key, taken, i, a.experts, lane);
        float s = score_of(mine[id], largest);
        sum += s;
        if (lane == 0) {
            taken[i] = id;
            score[i] = s;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    // softmax: all of all experts need no second norm; total tells of a NaN that was not chosen
    bool by_sum = fc_normalize && (fc_sigmoid || k < a.experts);
    float norm = by_sum ? sum : fc_sigmoid ? 1.0f : total;
    if (total != total)
        norm = total;
    for (uint i = lane; i < k; i += SL_SIMD) {
        uint at = 0; // place in ascending id
        for (uint j = 0; j < k; j++)
            at += taken[j] < taken[i] ? 1 : 0;
        ulong pair = ulong(group) * k + at;
        chosen[pair] = int(taken[i]);
        weight[pair] = score[i] / norm * a.scale;
        done[pair] = 0;
    }
}

// ---- pairs by expert -----------------------------------------------------------------------------------------------

[[kernel]] void group_pairs(constant sl_router_args &a [[buffer(0)]], device const int *chosen [[buffer(1)]],
                            device int *pairs [[buffer(2)]], device sl_pair_tile *tiles [[buffer(3)]],
                            device uint *counts [[buffer(4)]], device const int *step [[buffer(5)]],
                            threadgroup uint *first [[threadgroup(0)]],
                            uint thread_at [[thread_position_in_threadgroup]],
                            uint threads [[threads_per_threadgroup]]) {
    uint n = uint(step_head(step).rows) * a.top_k, experts = a.experts;
    threadgroup uint *tile = first + experts + 1;
    for (uint e = thread_at; e < experts; e += threads) {
        uint count = 0;
        for (uint i = 0; i < n; i++)
            count += uint(chosen[i]) == e ? 1 : 0;
        first[e + 1] = count;
        tile[e + 1] = (count + a.tile_rows - 1) / a.tile_rows;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_at == 0) {
        first[0] = tile[0] = 0;
        for (uint e = 0; e < experts; e++) {
            first[e + 1] += first[e];
            tile[e + 1] += tile[e];
        }
        counts[0] = min(tile[experts], a.tiles);
        counts[1] = first[experts];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_at; e < experts; e += threads) {
        uint at = first[e];
        for (uint i = 0; i < n; i++)
            if (uint(chosen[i]) == e)
                pairs[at++] = int(i);
        for (uint t = tile[e]; t < tile[e + 1] && t < a.tiles; t++) {
            uint begin = first[e] + (t - tile[e]) * a.tile_rows;
            sl_pair_tile made = {int(e), begin, min(begin + a.tile_rows, first[e + 1]), 0};
            tiles[t] = made;
        }
    }
}

// ---- combine -------------------------------------------------------------------------------------------------------

[[kernel]] void combine(constant sl_combine_args &a [[buffer(0)]], device const float *out [[buffer(1)]],
                        device const float *weight [[buffer(2)]], device const uchar *done [[buffer(3)]],
                        device const float *shared [[buffer(4)]], device const float *gate [[buffer(5)]],
                        device float *residual [[buffer(6)]], device int *status [[buffer(7)]],
                        device const int *step [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                        uint3 groups [[threadgroups_per_grid]], uint3 thread_at [[thread_position_in_threadgroup]],
                        uint3 threads [[threads_per_threadgroup]]) {
    uint row = group.y, k = a.top_k;
    if (row >= uint(step_head(step).rows))
        return;
    ulong pair = ulong(row) * k;
    bool complete = step_head(step).aborted == 0;
    for (uint i = 0; i < k; i++)
        complete = complete && done[pair + i] != 0;
    if (group.x == 0 && thread_at.x == 0)
        status[row] = complete ? 0 : 1;
    if (!complete)
        return;
    float g = fc_shared_gate ? sigmoid(gate[row]) : 1.0f;
    for (uint c = group.x * threads.x + thread_at.x; c < a.cols; c += groups.x * threads.x) {
        float sum = 0.0f;
        for (uint i = 0; i < k; i++)
            sum = sum + out[(pair + i) * a.out_stride + c] * weight[pair + i];
        if (fc_shared)
            sum = sum + shared[ulong(row) * a.shared_stride + c] * g;
        device float *to = residual + ulong(row) * a.residual_stride + c;
        *to = *to + sum;
    }
}
