// moe: routing, grouping and combining of a mixture of experts; the experts themselves are
// expert.metal and matmul.metal.
//
//   router_<n>   the k best experts of a row's logits in ascending id, and their weights. Softmax over all experts, or
//                sigmoid of each; ties go to the lower id; optionally weights are divided by their sum (added in
//                descending order, as transformers does), then multiplied by args.scale. What experts are chosen by may
//                be the logits themselves, may have a bias, and may leave out all but the best groups of experts (those
//                with the highest sums of their two best). Marks the pairs as not done.
//                A row with a NaN gets NaN weights. Grid (rows), threadgroup (32): one SIMD-group, for n experts at most
//                (128, 256, 512, 2048); a lane has every 32nd in registers, k passes choose. Threadgroup memory 0:
//                experts floats with groups, else any. Logits may be partial ones (split.metal): args.splits are added,
//                and with BIAS one of the logits. Slots: 1 logits, 2 chosen, 3 weight, 4 done, 5 bias[experts] (for
//                choosing), 6 step, 7 bias[experts] of the logits
//   group_pairs  the pairs by expert: pairs[list] ascending by expert, then by pair; for matmul_expert tiles of one expert's
//                pairs, as few as tile_rows (a multiple of 8) allows, of equal multiples of 8 but for the last; counts[0]
//                tiles. Grid (experts), threadgroups of any size: each counts the
//                pairs of the experts before its own, so that none waits for another, and lists its own; 4 bytes a pair
//                and expert, from cache. Threadgroup memory 0: experts words.
//                Slots: 1 chosen, 2 pairs, 3 tiles, 4 counts[2] {tiles, pairs}, 5 step
//   combine      residual += sum over ranks ascending of weight * out[pair], + shared * sigmoid(gate). A pair not done
//                leaves its row alone and sets status[row]. Grid (any, rows); bytes 4 * (k + 3) per element; the
//                order and the roundings are the CPU's. Slots: 1 out, 2 weight, 3 done, 4 shared, 5 gate[rows],
//                6 residual, 7 status[rows], 8 step
#include "step.h"

SL_SWITCH(fc_bias, SL_FC_BIAS)
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

// A number as a word of the same order, 0 and -0 as one; a NaN is less than any number, a taken expert (0) less still.
inline uint order_of(float v) {
    uint bits = as_type<uint>(v + 0.0f);
    return v != v ? 1 : bits >> 31 ? ~bits : bits | 0x80000000u;
}

template <uint N>
[[kernel, max_total_threads_per_threadgroup(32)]] void
router(constant sl_router_args &a [[buffer(0)]], device const float *logits [[buffer(1)]],
       device int *chosen [[buffer(2)]], device float *weight [[buffer(3)]], device uchar *done [[buffer(4)]],
       device const float *bias [[buffer(5)]], device const int *step [[buffer(6)]],
       device const float *logit_bias [[buffer(7)]], threadgroup float *keys [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],
       uint lane [[thread_index_in_simdgroup]]) {
    if (group >= uint(step_head(step).rows))
        return;
    uint k = a.top_k;
    device const float *mine = logits + ulong(group) * a.logits_stride;
    float logit[N], score[N], largest, sum = 0.0f;
    uint order[N]; // of what experts are chosen by
#pragma unroll
    for (uint i = 0; i < N; i++)
        logit[i] = mine[i * SL_SIMD + lane < a.experts ? i * SL_SIMD + lane : 0];
    for (uint s = 1; s < a.splits; s++) {
        mine += a.split_stride;
#pragma unroll
        for (uint i = 0; i < N; i++)
            logit[i] += mine[i * SL_SIMD + lane < a.experts ? i * SL_SIMD + lane : 0];
    }
#pragma unroll
    for (uint i = 0; i < N; i++) {
        if (fc_bias)
            logit[i] += logit_bias[i * SL_SIMD + lane < a.experts ? i * SL_SIMD + lane : 0];
        largest = i == 0 || logit[i] > largest ? logit[i] : largest;
    }
    largest = simd_max(largest);
#pragma unroll
    for (uint i = 0; i < N; i++) {
        score[i] = score_of(logit[i], largest);
        sum += i * SL_SIMD + lane < a.experts ? score[i] : 0.0f;
    }
    float total = simd_sum(sum);
#pragma unroll
    for (uint i = 0; i < N; i++) {
        uint e = i * SL_SIMD + lane;
        float key = fc_by_logit ? logit[i] : score[i];
        if (fc_select_bias && e < a.experts)
            key = (fc_sigmoid || fc_by_logit ? key : key / total) + bias[e];
        order[i] = e < a.experts ? order_of(key) : 0;
        if (fc_groups && e < a.experts)
            keys[e] = key;
    }
    if (fc_groups) {
        leave_groups(keys, a.experts, a.groups, a.top_groups, lane);
#pragma unroll
        for (uint i = 0; i < N; i++)
            order[i] = i * SL_SIMD + lane < a.experts ? order_of(keys[i * SL_SIMD + lane]) : 0;
    }
    sum = 0.0f;
    for (uint n = 0; n < k; n++) {
        uint best = order[0], at = lane;
        float own = score[0];
#pragma unroll
        for (uint i = 1; i < N; i++) {
            bool more = order[i] > best; // of equals the first
            best = more ? order[i] : best;
            at = more ? i * SL_SIMD + lane : at;
            own = more ? score[i] : own;
        }
        uint id = simd_min(best == simd_max(best) ? at : 0xffffffffu);
        sum += simd_shuffle(own, ushort(id % SL_SIMD));
#pragma unroll
        for (uint i = 0; i < N; i++)
            order[i] = i * SL_SIMD + lane == id ? 0 : order[i];
    }
    // softmax: all of all experts need no second norm; total tells of a NaN that was not chosen
    bool by_sum = fc_normalize && (fc_sigmoid || k < a.experts);
    float norm = by_sum ? sum : fc_sigmoid ? 1.0f : total;
    if (total != total)
        norm = total;
    ulong pair = ulong(group) * k;
#pragma unroll
    for (uint i = 0; i < N; i++) {
        uint e = i * SL_SIMD + lane;
        bool taken = e < a.experts && order[i] == 0;
        uint all = uint(ulong(simd_ballot(taken)));
        if (taken) {
            ulong at = pair + popcount(all & ((1u << lane) - 1)); // ascending id
            chosen[at] = int(e);
            weight[at] = score[i] / norm * a.scale;
            done[at] = 0;
        }
        pair += popcount(all);
    }
}

SL_KERNEL("router_128", router, 4)
SL_KERNEL("router_256", router, 8)
SL_KERNEL("router_512", router, 16)
SL_KERNEL("router_2048", router, 64)

// ---- pairs by expert -----------------------------------------------------------------------------------------------

[[kernel]] void group_pairs(constant sl_router_args &a [[buffer(0)]], device const int *chosen [[buffer(1)]],
                            device int *pairs [[buffer(2)]], device sl_pair_tile *tiles [[buffer(3)]],
                            device uint *counts [[buffer(4)]], device const int *step [[buffer(5)]],
                            threadgroup atomic_uint *count [[threadgroup(0)]],
                            uint expert [[threadgroup_position_in_grid]],
                            uint thread_at [[thread_position_in_threadgroup]],
                            uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                            uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup uint3 part[32]; // of each SIMD-group: pairs and tiles of experts before this one, pairs of this one
    if (expert >= a.experts)
        return;
    uint n = uint(step_head(step).rows) * a.top_k, each = (n + threads - 1) / threads * SL_SIMD;
    uint begin = simd * each, end = min(n, begin + each); // a SIMD-group's pairs
    for (uint e = thread_at; e < expert; e += threads)
        atomic_store_explicit(&count[e], 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint3 sums = uint3(0);
    for (uint i = begin + lane; i < end; i += SL_SIMD) {
        uint e = uint(chosen[i]);
        sums.z += e == expert ? 1 : 0;
        if (e < expert)
            atomic_fetch_add_explicit(&count[e], 1, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_at; e < expert; e += threads) {
        uint c = atomic_load_explicit(&count[e], memory_order_relaxed);
        sums.x += c;
        sums.y += (c + a.tile_rows - 1) / a.tile_rows;
    }
    sums = uint3(simd_sum(sums.x), simd_sum(sums.y), simd_sum(sums.z));
    if (lane == 0)
        part[simd] = sums;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint3 theirs = uint3(0);
    if (lane < simds)
        theirs = part[lane];
    uint first = simd_sum(theirs.x), tile = simd_sum(theirs.y), own = simd_sum(theirs.z);
    uint at = first + simd_sum(lane < simd ? theirs.z : 0);
    for (uint i = begin; i < end && sums.z != 0; i += SL_SIMD) {
        bool mine = i + lane < end && uint(chosen[i + lane]) == expert;
        uint all = uint(ulong(simd_ballot(mine)));
        if (mine)
            pairs[at + popcount(all & ((1u << lane) - 1))] = int(i + lane);
        at += popcount(all);
    }
    uint own_tiles = (own + a.tile_rows - 1) / a.tile_rows;
    uint size = own_tiles ? ((own + own_tiles - 1) / own_tiles + 7) / 8 * 8 : 0;
    for (uint t = thread_at; t < own_tiles && tile + t < a.tiles; t += threads) {
        uint from = first + t * size;
        sl_pair_tile made = {int(expert), from, min(from + size, first + own), 0};
        tiles[tile + t] = made;
    }
    if (expert + 1 == a.experts && thread_at == 0) {
        counts[0] = min(tile + own_tiles, a.tiles);
        counts[1] = first + own;
    }
}

// ---- combine -------------------------------------------------------------------------------------------------------

enum { RANKS = 8 }; // that are loaded together

struct combined {
    device const float *out, *weight, *shared; // of the row; shared: or null
    ulong out_stride;
    uint k;
    float gate; // of the shared expert
};

inline combined combined_of(constant sl_combine_args &a, device const float *out, device const float *weight,
                            device const float *shared, device const float *gate, uint row) {
    ulong pair = ulong(row) * a.top_k;
    combined r = {out + pair * a.out_stride, weight + pair,
                  shared + (fc_shared ? ulong(row) * a.shared_stride : 0), a.out_stride, a.top_k,
                  fc_shared_gate ? sigmoid(gate[row]) : 1.0f};
    return r;
}

// What is added is asked for at once, before it is known whether all of it is there.
inline float combine_at(thread const combined &r, uint c) {
    float sum = 0.0f;
    for (uint i = 0; i < r.k; i += RANKS) {
        float v[RANKS], w[RANKS];
#pragma unroll
        for (uint j = 0; j < RANKS; j++) {
            uint at = min(i + j, r.k - 1);
            v[j] = r.out[at * r.out_stride + c];
            w[j] = r.weight[at];
        }
#pragma unroll
        for (uint j = 0; j < RANKS; j++)
            sum = i + j < r.k ? sum + v[j] * w[j] : sum;
    }
    return fc_shared ? sum + r.shared[c] * r.gate : sum;
}

// Is every pair of the row done? The same in all lanes.
inline bool is_complete(device const uchar *done, device const int *step, uint row, uint k, uint lane) {
    bool complete = step_head(step).aborted == 0;
    for (uint i = lane; i < k; i += SL_SIMD)
        complete = complete && done[ulong(row) * k + i] != 0;
    return simd_all(complete);
}

[[kernel]] void combine(constant sl_combine_args &a [[buffer(0)]], device const float *out [[buffer(1)]],
                        device const float *weight [[buffer(2)]], device const uchar *done [[buffer(3)]],
                        device const float *shared [[buffer(4)]], device const float *gate [[buffer(5)]],
                        device float *residual [[buffer(6)]], device int *status [[buffer(7)]],
                        device const int *step [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                        uint3 groups [[threadgroups_per_grid]], uint3 thread_at [[thread_position_in_threadgroup]],
                        uint3 threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    uint row = group.y;
    if (row >= uint(step_head(step).rows))
        return;
    bool complete = is_complete(done, step, row, a.top_k, lane);
    if (group.x == 0 && thread_at.x == 0)
        status[row] = complete ? 0 : 1;
    combined r = combined_of(a, out, weight, shared, gate, row);
    for (uint c = group.x * threads.x + thread_at.x; c < a.cols; c += groups.x * threads.x) {
        device float *to = residual + ulong(row) * a.residual_stride + c;
        float v = *to + combine_at(r, c);
        if (complete)
            *to = v;
    }
}
