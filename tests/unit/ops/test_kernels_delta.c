/* Gated DeltaNet with the kernels on the software device beside the CPU's exact mode: the same operands, random and
 * odd, over several steps, outputs and states; in checking mode too. */
#include "support_ops.h"

#include "ops/ops_memory.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t seed = 20261130;
static char own_cache[] = "/tmp/sluice-delta-XXXXXX"; /* compiled once for all tests here */
static const char *cache = own_cache;

static int make_cache(void **state) {
    print_message("seed %llu\n", (unsigned long long)seed);
    if (getenv("SL_KERNELS_CACHE")) /* as of the other kernels' tests */
        cache = getenv("SL_KERNELS_CACHE");
    return cache != own_cache || mkdtemp(own_cache) ? 0 : -1;
}

static int remove_cache(void **state) {
    if (cache != own_cache)
        return 0;
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return rmdir(cache);
}

static bool open_rig(rig *g, bool device, bool check) {
    return rig_open(g, &(rig_options){.numeric = SL_NUMERIC_EXACT,
                                      .device = device ? "soft:2" : NULL,
                                      .cache_dir = cache,
                                      .check = check,
                                      .threads = 2});
}

typedef struct delta_case {
    int32_t key_heads, value_heads, key_dim, value_dim, width;
    bool tiled, bias, in_place; /* in_place: z is dst */
    int32_t steps[4][2];        /* rows of sequences 0 and 1, in this order, in each step */
} delta_case;

typedef struct delta_twin {
    rig g;
    sl_program *p;
    sl_view dst, qkv, z, beta, alpha;
    sl_state_layout state;
    uint8_t *slabs[8];
    int32_t blocks[2][2];
    sl_step_seq seqs[2];
} delta_twin;

enum { DELTA_ROWS = 40, DELTA_LAYER = 1 };

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

static const float *state_of(const delta_twin *t, int32_t seq) {
    int32_t b = t->blocks[seq][DELTA_LAYER], per = t->state.blocks_per_slab;
    return (const float *)(const void *)(t->slabs[b / per] + (uint64_t)(b % per) * t->state.block_bytes);
}

static void make_delta(delta_twin *t, const delta_case *c) {
    rng r = {seed + 1};
    sl_error err = {0};
    rig *g = &t->g;
    int32_t channels = 2 * c->key_heads * c->key_dim + c->value_heads * c->value_dim;
    t->qkv = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, channels, 3);
    t->z = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads * c->value_dim, 1);
    t->beta = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads, 2);
    t->alpha = rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads, 0);
    t->dst = c->in_place ? t->z : rig_view(g, SL_ROWS_ALL, DELTA_ROWS, c->value_heads * c->value_dim, 5);
    sl_matrix conv = rig_matrix(g, &r, SL_F32, channels, c->width, 0.5f, NULL);
    sl_delta d = {.layer = DELTA_LAYER,
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
    for (int32_t i = 0; i < c->value_heads; i++) {
        float *rate = (float *)(void *)(((ops_common *)g->ops)->known.buffers[d.decay.buffer].base) + i;
        *rate = -expf(*rate);
    }
    if (c->bias)
        d.conv_bias = rig_vector(g, &r, channels);
    make_state(t, c);
    t->p = sl_program_new(g->ops, DELTA_ROWS, 1, &err);
    sl_op_delta(t->p, t->dst, t->qkv, t->z, t->beta, t->alpha, &d);
    if (!sl_program_end(t->p, &err))
        fail_msg("%s", err.message);
}

static void fill_view(const rig *g, rng *r, const sl_view *v, int32_t rows) {
    for (int32_t i = 0; i < rows; i++)
        for (int32_t c = 0; c < v->cols; c++)
            rig_row(g, v, i)[c] = rng_normal(r);
}

/* One step of n[0] rows of sequence 0, then n[1] of sequence 1, from these positions on. */
static void run_delta(delta_twin *t, uint64_t state, const int32_t n[2], const int32_t from[2]) {
    rng r = {state};
    sl_error err = {0};
    int32_t seq[DELTA_ROWS], position[DELTA_ROWS], zeros[DELTA_ROWS] = {0}, rows = 0;
    for (int32_t s = 0; s < 2; s++)
        for (int32_t i = 0; i < n[s]; i++, rows++) {
            seq[rows] = s;
            position[rows] = from[s] + i;
        }
    const sl_view *views[] = {&t->qkv, &t->z, &t->beta, &t->alpha};
    for (size_t i = 0; i < SL_COUNT(views); i++)
        fill_view(&t->g, &r, views[i], rows);
    sl_step s = {.rows = rows, .token = zeros, .seq = seq, .position = position, .seq_count = 2, .seqs = t->seqs};
    if (!sl_program_run(t->p, &s, &err))
        fail_msg("%s", err.message);
}

static void close_delta(delta_twin *t) {
    sl_program_free(t->p);
    rig_close(&t->g);
}

static void compare_delta(const delta_case *c, bool check) {
    delta_twin cpu = {0}, gpu = {0};
    assert_true(open_rig(&cpu.g, false, false));
    if (!open_rig(&gpu.g, true, check)) {
        rig_close(&cpu.g);
        skip();
    }
    make_delta(&cpu, c);
    make_delta(&gpu, c);
    int32_t from[2] = {0, 0};
    double worst = 0, states = 0;
    for (int32_t i = 0; i < 4 && c->steps[i][0] + c->steps[i][1] > 0; i++) {
        int32_t rows = c->steps[i][0] + c->steps[i][1];
        run_delta(&cpu, seed + (uint64_t)i, c->steps[i], from);
        run_delta(&gpu, seed + (uint64_t)i, c->steps[i], from);
        double e = rig_view_error(&gpu.g, &gpu.dst, &cpu.g, &cpu.dst, rows);
        worst = e <= worst ? worst : e;
        for (int32_t s = 0; s < 2; s++) {
            int32_t delta = c->value_heads * c->key_dim * c->value_dim, conv = (c->width - 1) * cpu.state.channels;
            from[s] += c->steps[i][s];
            if (from[s] == 0)
                continue;
            e = rig_row_error(state_of(&gpu, s), state_of(&cpu, s), delta);
            states = e <= states ? states : e;
            assert_memory_equal(state_of(&gpu, s) + cpu.state.conv_offset / 4,
                                state_of(&cpu, s) + cpu.state.conv_offset / 4, (size_t)conv * sizeof(float));
        }
    }
    print_message("delta of %d x %d, %d heads: outputs %.2g, states %.2g\n", c->key_dim, c->value_dim, c->value_heads,
                  worst, states);
    assert_true(worst <= 1e-4 && states <= 1e-4);
    close_delta(&cpu);
    close_delta(&gpu);
}

static void the_delta_rule_is_the_cpus(void **state) {
    static const delta_case cases[] = {
        {2, 4, 128, 128, 4, .bias = false, .steps = {{5, 0}, {1, 3}, {1, 1}, {20, 17}}},
        {2, 4, 64, 32, 4, .tiled = true, .in_place = true, .steps = {{0, 7}, {2, 1}}},
        {1, 3, 37, 45, 2, .bias = true, .steps = {{9, 1}, {1, 1}, {0, 30}}},
        {3, 3, 16, 100, 8, .bias = true, .steps = {{3, 3}, {2, 8}}},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        compare_delta(&cases[i], false);
}

static void the_delta_rule_is_sound(void **state) {
    compare_delta(&(delta_case){2, 2, 24, 40, 3, .bias = true, .in_place = true, .steps = {{3, 2}, {1, 1}}}, true);
}

/* A prompt in pieces has the bits of the prompt at once. */
static void pieces_of_a_prompt_change_no_bit(void **state) {
    static const delta_case c = {2, 4, 64, 64, 4, .bias = true, .in_place = true, .steps = {{0, 0}}};
    static const int32_t cuts[][3] = {{30, 0, 0}, {7, 22, 1}};
    static float outputs[2][30][4 * 64], states[2][4 * 64 * 64];
    for (int k = 0; k < 2; k++) {
        delta_twin t = {0};
        if (!open_rig(&t.g, true, false))
            skip();
        make_delta(&t, &c);
        int32_t at = 0;
        for (int i = 0; i < 3 && cuts[k][i]; i++) {
            static float all[5][30][512];
            const sl_view *views[] = {&t.qkv, &t.z, &t.beta, &t.alpha};
            rng r = {seed};
            for (size_t v = 0; v < SL_COUNT(views); v++)
                for (int32_t row = 0; row < 30; row++)
                    for (int32_t x = 0; x < views[v]->cols; x++)
                        all[v][row][x] = rng_normal(&r);
            int32_t n = cuts[k][i], zeros[30] = {0}, position[30];
            for (int32_t row = 0; row < n; row++) {
                position[row] = at + row;
                for (size_t v = 0; v < SL_COUNT(views); v++)
                    memcpy(rig_row(&t.g, views[v], row), all[v][at + row], (size_t)views[v]->cols * sizeof(float));
            }
            sl_error err = {0};
            sl_step s = {.rows = n, .token = zeros, .seq = zeros, .position = position, .seq_count = 2, .seqs = t.seqs};
            if (!sl_program_run(t.p, &s, &err))
                fail_msg("%s", err.message);
            for (int32_t row = 0; row < n; row++)
                memcpy(outputs[k][at + row], rig_row(&t.g, &t.dst, row), sizeof outputs[k][0]);
            at += n;
        }
        memcpy(states[k], state_of(&t, 0), sizeof states[k]);
        close_delta(&t);
    }
    assert_memory_equal(outputs[0], outputs[1], sizeof outputs[0]);
    assert_memory_equal(states[0], states[1], sizeof states[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_delta_rule_is_the_cpus),
        cmocka_unit_test(the_delta_rule_is_sound),
        cmocka_unit_test(pieces_of_a_prompt_change_no_bit),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
