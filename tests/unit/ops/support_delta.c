#include "support_delta.h"

#include "ops/ops_memory.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYER = 1 };

static const uint64_t seed = 20261130;
static char own_cache[] = "/tmp/sluice-delta-XXXXXX";
static const char *cache = own_cache;

int delta_cache_make(void **state) {
    print_message("seed %llu\n", (unsigned long long)seed);
    if (getenv("SL_KERNELS_CACHE")) /* as of the other kernels' tests */
        cache = getenv("SL_KERNELS_CACHE");
    return cache != own_cache || mkdtemp(own_cache) ? 0 : -1;
}

int delta_cache_remove(void **state) {
    if (cache != own_cache)
        return 0;
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return rmdir(cache);
}

/* Each block in a slab of its own. */
static void make_state(delta_twin *t, const delta_case *c) {
    enum { SLAB = 1 << 20 };
    sl_error err = {0};
    t->state = (sl_state_layout){.layers = 2,
                                 .key_heads = c->key_heads,
                                 .value_heads = c->value_heads,
                                 .key_dim = c->key_dim,
                                 .value_dim = c->value_dim,
                                 .kernel = c->width};
    assert_true(sl_state_layout_init(&t->state, SLAB, &err));
    assert_true(sl_state_layout_init(&t->state, t->state.block_bytes, &err));
    sl_ops_set_state(t->g.ops, &t->state);
    for (int32_t b = 0, i = 0; b < 4; b += t->state.blocks_per_slab, i++) {
        t->slabs[i] = sl_mem_slab(t->g.mem, SL_USE_KV, &err);
        assert_non_null(t->slabs[i]);
        memset(t->slabs[i], 0xff, SLAB); /* what nobody wrote is NaN */
        assert_true(sl_ops_add_state_slab(t->g.ops, t->slabs[i], &err));
    }
    for (int32_t i = 0; i < 4; i++)
        t->blocks[i % 2][i / 2] = 3 - i;
    for (int32_t i = 0; i < 2; i++)
        t->seqs[i].state = t->blocks[i];
}

const float *delta_state_of(const delta_twin *t, int32_t seq) {
    int32_t b = t->blocks[seq][LAYER], per = t->state.blocks_per_slab;
    uint8_t *at = t->slabs[b / per] + (uint64_t)(b % per) * t->state.block_bytes;
    assert_true(sl_ops_pull(t->g.ops, at, t->state.used_bytes, NULL));
    return (const float *)(const void *)at;
}

static float *values_of(const delta_twin *t, const sl_weight *w) {
    return (float *)(void *)(((ops_common *)t->g.ops)->known.buffers[w->buffer].base + w->offset[0]);
}

/* decay * softplus(alpha + dt_bias) is what a case wants where both of these are 1 and 0. */
static void make_gates(delta_twin *t, const delta_case *c, const sl_delta *d) {
    for (int32_t i = 0; i < c->value_heads; i++) {
        float *rate = values_of(t, &d->decay) + i, *bias = values_of(t, &d->dt_bias) + i;
        *rate = c->decay == DECAY_USUAL ? -expf(*rate) : -1;
        *bias = c->decay == DECAY_USUAL ? *bias : 0;
    }
}

static void make_delta(delta_twin *t, const delta_case *c) {
    rng r = {seed + 1};
    sl_error err = {0};
    rig *g = &t->g;
    int32_t channels = 2 * c->key_heads * c->key_dim + c->value_heads * c->value_dim;
    t->decay = c->decay;
    t->magnitude = c->magnitude != 0 ? c->magnitude : 1;
    t->keys = c->keys != 0 ? c->keys : 1;
    t->qkv = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, channels, 3);
    t->z = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads * c->value_dim, 1);
    t->beta = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads, 2);
    t->alpha = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads, 0);
    t->dst = c->in_place ? t->z : rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads * c->value_dim, 5);
    sl_matrix conv = rig_matrix(g, &r, SL_F32, channels, c->width, 0.5f, NULL);
    sl_delta d = {.layer = LAYER,
                  .key_heads = c->key_heads,
                  .value_heads = c->value_heads,
                  .key_dim = c->key_dim,
                  .value_dim = c->value_dim,
                  .kernel = c->width,
                  .conv = rig_weight(g, &conv),
                  .decay = rig_vector(g, &r, c->value_heads),
                  .dt_bias = rig_vector(g, &r, c->value_heads),
                  .norm = rig_vector(g, &r, c->value_dim),
                  .norm_eps = 1e-6f,
                  .tiled = c->tiled};
    make_gates(t, c, &d);
    if (c->bias)
        d.conv_bias = rig_vector(g, &r, channels);
    make_state(t, c);
    t->p = sl_program_new(g->ops, DELTA_ROWS, 1, &err);
    sl_op_delta(t->p, t->dst, t->qkv, t->z, t->beta, t->alpha, &d);
    if (!sl_program_end(t->p, &err))
        fail_msg("%s", err.message);
}

bool delta_open(delta_twin *t, const delta_case *c, bool device, bool check) {
    *t = (delta_twin){0};
    rig_options o = {.numeric = SL_NUMERIC_EXACT,
                     .device = device ? "soft:2" : NULL,
                     .cache_dir = cache,
                     .check = check,
                     .scattered = check,
                     .threads = 2};
    if (!rig_open(&t->g, &o))
        return false;
    make_delta(t, c);
    return true;
}

void delta_close(delta_twin *t) {
    sl_program_free(t->p);
    rig_close(&t->g);
}

/* alpha whose softplus is y */
static float inverse_softplus(double y) {
    return (float)(y > 30 ? y : log(expm1(y)));
}

static float alpha_of(delta_decay decay, rng *r) {
    float x = rng_normal(r);
    float share = (float)rng_below(r, 1000) / 1000;
    switch (decay) {
    case DECAY_WEAK:
        return inverse_softplus(1e-4);
    case DECAY_STRONG:
        return inverse_softplus(50);
    case DECAY_MIXED:
        return inverse_softplus(1e-4 * pow(5e5, share));
    default:
        return x;
    }
}

static void fill_row(const delta_twin *t, int32_t row, int32_t seq, int32_t position) {
    rng r = {seed + 1000003 * (uint64_t)(seq + 1) + (uint64_t)position};
    int32_t keys = 2 * t->state.key_heads * t->state.key_dim;
    for (int32_t c = 0; c < t->qkv.cols; c++)
        rig_row(&t->g, &t->qkv, row)[c] = rng_normal(&r) * t->magnitude * (c < keys ? t->keys : 1);
    for (int32_t c = 0; c < t->state.key_heads && t->bad_position > 0 && position == t->bad_position; c++)
        rig_row(&t->g, &t->qkv, row)[(t->state.key_heads + c + 1) * t->state.key_dim - 1] = NAN;
    for (int32_t c = 0; c < t->z.cols; c++)
        rig_row(&t->g, &t->z, row)[c] = rng_normal(&r);
    for (int32_t c = 0; c < t->beta.cols; c++) {
        rig_row(&t->g, &t->beta, row)[c] = rng_normal(&r);
        rig_row(&t->g, &t->alpha, row)[c] = alpha_of(t->decay, &r);
    }
}

void delta_run(delta_twin *t, const int32_t n[2], const int32_t from[2]) {
    sl_error err = {0};
    int32_t seq[DELTA_ROWS], position[DELTA_ROWS], zeros[DELTA_ROWS] = {0}, rows = 0;
    for (int32_t s = 0; s < 2; s++)
        for (int32_t i = 0; i < n[s]; i++, rows++) {
            seq[rows] = s;
            position[rows] = from[s] + i;
            fill_row(t, rows, s, position[rows]);
        }
    sl_step s = {.rows = rows, .token = zeros, .seq = seq, .position = position, .seq_count = 2, .seqs = t->seqs};
    if (!sl_program_run(t->p, &s, &err))
        fail_msg("%s", err.message);
}

/* On a device nothing is written behind the convolution's rows, nor in blocks of the layer that no program has. */
static void check_surroundings(const delta_twin *t, const delta_case *c) {
    uint64_t end = t->state.conv_offset + (uint64_t)(c->width - 1) * (uint64_t)t->state.channels * sizeof(float);
    for (int32_t i = 0; i < 4; i++) {
        int32_t b = t->blocks[i % 2][i / 2], per = t->state.blocks_per_slab;
        const uint8_t *block = t->slabs[b / per] + (uint64_t)(b % per) * t->state.block_bytes;
        for (uint64_t k = i / 2 == LAYER ? end : 0; k < t->state.block_bytes; k++)
            if (block[k] != 0xff)
                fail_msg("byte %llu of block %d was written, which nobody's state is", (unsigned long long)k, b);
    }
}

void delta_compare(const delta_case *c, bool check, double limit) {
    delta_twin cpu, gpu;
    if (!delta_open(&gpu, c, true, check))
        skip();
    assert_true(delta_open(&cpu, c, false, false));
    int32_t from[2] = {0, 0};
    double worst = 0, states = 0;
    for (int32_t i = 0; i < DELTA_STEPS && c->steps[i][0] + c->steps[i][1] > 0; i++) {
        delta_run(&cpu, c->steps[i], from);
        delta_run(&gpu, c->steps[i], from);
        double e = rig_view_error(&gpu.g, &gpu.dst, &cpu.g, &cpu.dst, c->steps[i][0] + c->steps[i][1]);
        worst = worse_of(worst, e);
        for (int32_t s = 0; s < 2; s++) {
            int32_t delta = c->value_heads * c->key_dim * c->value_dim, conv = (c->width - 1) * cpu.state.channels;
            const float *got = delta_state_of(&gpu, s), *want = delta_state_of(&cpu, s);
            from[s] += c->steps[i][s];
            if (from[s] == 0)
                continue;
            e = rig_row_error(got, want, delta);
            states = worse_of(states, e);
            assert_memory_equal(got + gpu.state.conv_offset / 4, want + cpu.state.conv_offset / 4,
                                (size_t)conv * sizeof(float));
        }
    }
    check_surroundings(&gpu, c);
    print_message("delta of %d x %d, %d heads: outputs %.2g, states %.2g\n", c->key_dim, c->value_dim, c->value_heads,
                  worst, states);
    assert_true(worst <= limit && states <= limit);
    delta_close(&cpu);
    delta_close(&gpu);
}
