/* Gated DeltaNet: the convolution over slices of channels, then the delta rule over heads, each a piece of work for the
 * pool per sequence. One row and many have the same formula (cpu_delta_impl.h), so that no cut of a prompt shows in a
 * bit. */
#include "ops/ops_cpu.h"

enum { CONV_CHANNELS = 256 /* of a piece of work */ };

typedef struct delta_job {
    const sl_ops_cpu *o;
    const sl_step *step;
    const sl_delta *d;
    float *qkv, *dst;
    const float *z, *beta, *alpha;
    int64_t qkv_stride, dst_stride, z_stride, beta_stride, alpha_stride;
    int32_t channels, slices;
    const int32_t *first; /* first row of each sequence; sequences + 1 entries */
} delta_job;

/* The block of state of the i-th sequence among the rows. */
static uint8_t *state_of(const delta_job *j, int32_t i) {
    const ops_memory *m = &j->o->known;
    int32_t block = j->step->seqs[j->step->seq[j->first[i]]].state[j->d->layer];
    return m->state_slabs[block / m->state.blocks_per_slab] +
           (uint64_t)(block % m->state.blocks_per_slab) * m->state.block_bytes;
}

static int32_t rows_of(const delta_job *j, int32_t i) {
    return j->first[i + 1] - j->first[i];
}

static bool begins(const delta_job *j, int32_t i) {
    return j->step->position[j->first[i]] == 0;
}

static void convolve(const delta_job *j, int32_t i, int32_t channel) {
    const sl_delta *d = j->d;
    const float *bias = vector_of(j->o, &d->conv_bias);
    cpu_conv c = {.x = j->qkv + j->first[i] * j->qkv_stride + channel,
                  .x_stride = j->qkv_stride,
                  .state = (float *)(void *)(state_of(j, i) + j->o->known.state.conv_offset) + channel,
                  .state_stride = j->channels,
                  .weight = vector_of(j->o, &d->conv) + (int64_t)channel * d->kernel,
                  .bias = bias ? bias + channel : NULL,
                  .rows = rows_of(j, i),
                  .channels = (int32_t)sl_min_i64(CONV_CHANNELS, j->channels - channel),
                  .kernel = d->kernel,
                  .fresh = begins(j, i)};
    if (j->o->numeric == SL_NUMERIC_EXACT)
        cpu_conv_exact(&c);
    else
        j->o->ops->conv(&c);
}

static void convolve_slices(void *ctx, int64_t begin, int64_t end, int worker) {
    const delta_job *j = ctx;
    for (int64_t item = begin; item < end; item++)
        convolve(j, (int32_t)(item / j->slices), (int32_t)(item % j->slices) * CONV_CHANNELS);
}

static void recur(const delta_job *j, int32_t i, int32_t head, float *scratch) {
    const sl_delta *d = j->d;
    const sl_state_layout *l = &j->o->known.state;
    int32_t key_head = d->tiled ? head % d->key_heads : head / (d->value_heads / d->key_heads);
    int64_t row = j->first[i], keys = (int64_t)d->key_heads * d->key_dim, at = (int64_t)head * d->value_dim;
    const float *x = j->qkv + row * j->qkv_stride;
    cpu_delta c = {.q = x + (int64_t)key_head * d->key_dim,
                   .k = x + keys + (int64_t)key_head * d->key_dim,
                   .v = x + 2 * keys + at,
                   .x_stride = j->qkv_stride,
                   .z = j->z + row * j->z_stride + at,
                   .z_stride = j->z_stride,
                   .beta = j->beta + row * j->beta_stride + head,
                   .alpha = j->alpha + row * j->alpha_stride + head,
                   .beta_stride = j->beta_stride,
                   .alpha_stride = j->alpha_stride,
                   .dst = j->dst + row * j->dst_stride + at,
                   .dst_stride = j->dst_stride,
                   .state = (float *)(void *)state_of(j, i) + at * d->key_dim,
                   .kept = (float *)(void *)(state_of(j, i) + l->kept_offset + (uint64_t)head * l->kept_bytes),
                   .decay = vector_of(j->o, &d->decay)[head],
                   .dt_bias = vector_of(j->o, &d->dt_bias)[head],
                   .norm = vector_of(j->o, &d->norm),
                   .norm_eps = d->norm_eps,
                   .rows = rows_of(j, i),
                   .key_dim = d->key_dim,
                   .value_dim = d->value_dim,
                   .position = j->step->position[row],
                   .scratch = scratch};
    if (j->o->numeric == SL_NUMERIC_EXACT)
        cpu_delta_exact(&c);
    else
        j->o->ops->delta(&c);
}

static void recur_heads(void *ctx, int64_t begin, int64_t end, int worker) {
    const delta_job *j = ctx;
    int32_t heads = j->d->value_heads;
    for (int64_t item = begin; item < end; item++)
        recur(j, (int32_t)(item / heads), (int32_t)(item % heads), cpu_thread_scratch(j->o, worker));
}

/* First row of each sequence of the step; returns how many. */
static int32_t cut_sequences(const sl_step *s, int32_t *first) {
    int32_t n = 0;
    for (int32_t row = 0; row < s->rows; row++)
        if (row == 0 || s->seq[row] != s->seq[row - 1])
            first[n++] = row;
    first[n] = s->rows;
    return n;
}

void cpu_run_delta(cpu_run *r, const op *o) {
    const sl_view *z = &o->u.delta.z, *beta = &o->u.delta.beta, *alpha = &o->u.delta.alpha;
    delta_job j = {.o = r->o,
                   .step = r->step,
                   .d = &o->u.delta.d,
                   .qkv = view_rows(r->o, &o->src),
                   .dst = view_rows(r->o, &o->dst),
                   .z = view_rows(r->o, z),
                   .beta = view_rows(r->o, beta),
                   .alpha = view_rows(r->o, alpha),
                   .qkv_stride = o->src.stride,
                   .dst_stride = o->dst.stride,
                   .z_stride = z->stride,
                   .beta_stride = beta->stride,
                   .alpha_stride = alpha->stride,
                   .channels = o->src.cols,
                   .slices = (o->src.cols + CONV_CHANNELS - 1) / CONV_CHANNELS,
                   .first = r->o->scratch.blocks};
    ops_spread_failures(r->step);
    int32_t sequences = cut_sequences(r->step, r->o->scratch.blocks);
    sl_pool_run(r->o->pool, (int64_t)sequences * j.slices, 1, convolve_slices, &j);
    sl_pool_run(r->o->pool, (int64_t)sequences * j.d->value_heads, 1, recur_heads, &j);
}
