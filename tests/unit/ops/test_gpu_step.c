/* Whole steps with the kernels on the software device, beside the CPU's exact mode: logits agree, and bits depend
 * neither on which experts arrive first nor on the order in which threads run. */
#include "support_tiny.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_ROWS = 48 };

static char cache[] = "/tmp/sluice-kernels-XXXXXX"; /* compiled once for all tests here */

static int make_cache(void **state) {
    return mkdtemp(cache) ? 0 : -1;
}

static int remove_cache(void **state) {
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return rmdir(cache);
}

typedef struct outcome {
    float logits[MAX_ROWS][TINY_VOCAB];
    uint8_t failed[MAX_ROWS];
} outcome;

static tiny *open_on(const char *device, bool check, uint64_t seed, sl_kv_format kv, sl_format_id format) {
    return tiny_open(&(tiny_options){.rig = {.numeric = SL_NUMERIC_EXACT,
                                             .device = device,
                                             .cache_dir = cache,
                                             .check = check,
                                             .seed = seed,
                                             .threads = 2},
                                     .kv = kv,
                                     .format = format,
                                     .rank_bytes = 1 << 20,
                                     .max_rows = MAX_ROWS,
                                     .max_outs = MAX_ROWS});
}

/* n rows of sequence `seq` from `position` on, all with logits. */
static bool run_rows(tiny *t, int32_t seq, int32_t position, int32_t n, outcome *out, sl_error *err) {
    int32_t token[MAX_ROWS], seqs[MAX_ROWS], positions[MAX_ROWS], outs[MAX_ROWS];
    for (int32_t i = 0; i < n; i++) {
        token[i] = (7 * (position + i) + 3 * seq) % TINY_VOCAB;
        seqs[i] = seq;
        positions[i] = position + i;
        outs[i] = i;
    }
    sl_step s = tiny_step(t, n, token, seqs, positions);
    memset(out, 0xff, sizeof *out);
    memset(out->failed, 0, sizeof out->failed);
    s.outs = n;
    s.out_rows = outs;
    s.logits = out->logits[0];
    s.row_failed = out->failed;
    return sl_program_run(t->p, &s, err);
}

static void must_run(tiny *t, int32_t seq, int32_t position, int32_t n, outcome *out) {
    sl_error err = {0};
    if (!run_rows(t, seq, position, n, out, &err))
        fail_msg("%s", err.message);
}

/* Greatest difference of a row over the greatest logit of all n. */
static double row_distance(const outcome *a, const outcome *b, int32_t row, int32_t n) {
    double worst = 0, most = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t v = 0; v < TINY_VOCAB; v++)
            most = fmax(most, fabs((double)b->logits[i][v]));
    for (int32_t v = 0; v < TINY_VOCAB; v++) {
        double d = fabs((double)a->logits[row][v] - (double)b->logits[row][v]);
        worst = !(d <= worst) ? d : worst; /* a NaN stays */
    }
    return worst / most;
}

/* Rows within the limit. With half tiles a router's decision between two nearly equal experts may fall the other way:
 * such a row is far off, and so are some behind it, so not all are asked for. */
static int32_t rows_within(const outcome *a, const outcome *b, int32_t n, double limit) {
    int32_t within = 0;
    for (int32_t i = 0; i < n; i++)
        within += row_distance(a, b, i, n) <= limit;
    return within;
}

/* A few rows (vector kernels) and many (matrix units), several times, of two sequences. */
static void compare(sl_kv_format kv, sl_format_id format, double few, double many) {
    static const int32_t runs[][3] = {{0, 0, 1}, {0, 1, 3}, {1, 0, 40}, {0, 4, 1}, {1, 40, 30}};
    tiny *cpu = open_on(NULL, false, 0, kv, format), *gpu = open_on("soft", false, 0, kv, format);
    if (!gpu) {
        tiny_close(cpu);
        skip();
    }
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        outcome a, b;
        must_run(cpu, runs[i][0], runs[i][1], runs[i][2], &a);
        must_run(gpu, runs[i][0], runs[i][1], runs[i][2], &b);
        bool matrix_units = runs[i][0] == 1; /* or rows behind such */
        int32_t n = runs[i][2], within = rows_within(&b, &a, n, matrix_units ? many : few);
        print_message("%s: %d of %d rows within the limit\n", sl_format_get(format)->name, within, n);
        assert_true(matrix_units ? within >= n * 3 / 4 : within == n);
    }
    tiny_close(cpu);
    tiny_close(gpu);
}

static void logits_equal_the_cpus(void **state) {
    compare(SL_KV_F32, SL_F32, 1e-5, 4e-3);
}

static void quantised_weights_and_half_kv_too(void **state) {
    compare(SL_KV_F16, SL_Q8_0, 1e-3, 4e-3);
}

static void order_of_threads_and_experts_changes_no_bit(void **state) {
    static outcome first[2], other;
    for (uint64_t seed = 0; seed < 3; seed++) {
        tiny *t = open_on("soft", false, seed, SL_KV_F16, SL_Q8_0);
        if (!t)
            skip();
        t->src.r.state = 100 + seed; /* experts arrive in another order */
        must_run(t, 0, 0, 4, seed ? &other : &first[0]);
        if (seed)
            assert_memory_equal(first[0].logits, other.logits, sizeof(float) * 4 * TINY_VOCAB);
        must_run(t, 1, 0, 40, seed ? &other : &first[1]);
        if (seed)
            assert_memory_equal(first[1].logits, other.logits, sizeof(float) * 40 * TINY_VOCAB);
        tiny_close(t);
    }
}

static uint64_t phases_of(const sl_ops_times *t) {
    return t->attention + t->delta + t->linear + t->router + t->expert_compute + t->shared + t->head;
}

/* With few rows and with many; the source here delivers at once, so nothing is waited for on the device. */
static void phases_add_up_to_no_more_than_the_device_ran(void **state) {
    static outcome plain, timed;
    tiny *t = open_on("soft", false, 0, SL_KV_F16, SL_Q8_0);
    if (!t)
        skip();
    for (int32_t rows = 3; rows <= 40; rows += 37) {
        sl_ops_times before, all;
        must_run(t, rows == 3 ? 0 : 1, 0, rows, &plain);
        sl_ops_times_get(t->g.ops, &before);
        assert_int_equal(before.gpu_phase_time, 0);
        assert_int_equal(before.attention, 0);
        sl_ops_set_timing(t->g.ops, true);
        sl_ops_times_reset(t->g.ops);
        must_run(t, rows == 3 ? 0 : 1, 0, rows, &timed);
        sl_ops_times_get(t->g.ops, &all);
        assert_memory_equal(plain.logits, timed.logits, sizeof(float) * (size_t)rows * TINY_VOCAB);
        assert_true(all.attention && all.linear && all.router && all.expert_compute && all.head);
        print_message("%llu of %llu of %llu ns\n", (unsigned long long)phases_of(&all),
                      (unsigned long long)all.gpu_phase_time, (unsigned long long)all.gpu_time);
        assert_true(phases_of(&all) <= all.gpu_phase_time && all.gpu_phase_time <= all.gpu_time);
        assert_true(all.gpu_phase_time > all.gpu_time / 4); /* not a part of them only */
        sl_ops_set_timing(t->g.ops, false);
        sl_ops_times_reset(t->g.ops);
    }
    tiny_close(t);
}

/* ---- steps given to the device whole ----------------------------------------------------------------------------- */

/* Every expert in one piece of the allocator's memory. */
typedef struct resident {
    tiny *t;
    uint8_t *block;
    uint64_t bytes, generation, at[2][TINY_EXPERTS][SL_PROJ_COUNT];
    bool all, known;
    int32_t ids[TINY_EXPERTS], n, layer;
    int looked;
} resident;

static void view_of(const resident *s, int32_t layer, int32_t id, sl_expert_view *out) {
    *out = (sl_expert_view){.id = id};
    for (int i = 0; i < SL_PROJ_COUNT; i++)
        out->part[3 * i] = s->block + s->at[layer][id][i];
}

static bool resident_begin(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order,
                           sl_error *err) {
    resident *s = self;
    memcpy(s->ids, ids, (size_t)n * sizeof *ids);
    s->n = n;
    s->layer = layer;
    return true;
}

static int resident_next(void *self, sl_expert_view *out, int max, sl_error *err) {
    resident *s = self;
    int n = 0;
    while (s->n > 0 && n < max)
        view_of(s, s->layer, s->ids[--s->n], &out[n++]);
    return n;
}

static void resident_done(void *self, const sl_expert_view *views, int n) {}
static void resident_end(void *self) {}

static bool resident_peek(void *self, int32_t layer, sl_expert_peek *out) {
    resident *s = self;
    *out = (sl_expert_peek){.holds = 100, .all_resident = s->all, .align = 4, .blocks = 1, .block_bytes = s->bytes};
    out->block[0] = s->block;
    return true;
}

/* Not all are there: only the even ones. */
static int32_t resident_list(void *self, int32_t layer, sl_expert_view *out, int32_t max) {
    resident *s = self;
    int32_t n = 0;
    s->looked++;
    for (int32_t id = 0; id < TINY_EXPERTS; id += s->all ? 1 : 2)
        view_of(s, layer, id, &out[n++]);
    return n;
}

static uint64_t resident_generation(void *self, int32_t layer) {
    const resident *s = self;
    return s->known ? s->generation : 0;
}

/* Copies all experts, to another place each time. */
static void place(resident *s, uint64_t from) {
    uint64_t at = from;
    for (int32_t layer = 0; layer < 2; layer++)
        for (int32_t id = 0; id < TINY_EXPERTS; id++)
            for (int i = 0; i < SL_PROJ_COUNT; i++) {
                const sl_matrix *m = &s->t->src.matrix[layer][id][i];
                uint64_t bytes = (uint64_t)m->rows * m->row_bytes[0];
                s->at[layer][id][i] = at;
                memcpy(s->block + at, m->part[0], bytes);
                at += sl_round_up(bytes, 64);
                assert_true(at <= s->bytes);
            }
    s->generation++;
}

static void make_resident(resident *s, tiny *t, bool all) {
    *s = (resident){.t = t, .bytes = 4 << 20, .all = all, .known = true};
    s->block = sl_mem_span(t->g.mem, s->bytes, SL_USE_SLOTS, NULL);
    assert_non_null(s->block);
    place(s, 0);
    sl_expert_source all_there = {.self = s,
                                  .begin = resident_begin,
                                  .next = resident_next,
                                  .done = resident_done,
                                  .end = resident_end,
                                  .peek = resident_peek,
                                  .resident = resident_list,
                                  .generation = resident_generation};
    sl_ops_set_experts(t->g.ops, &all_there);
}

static uint64_t tables_written(const tiny *t) {
    sl_ops_times times;
    sl_ops_times_get(t->g.ops, &times);
    return times.gpu_tables;
}

/* Tables of experts are written when something moved, and only then: bits are those of the step that waits. */
static bool has_memory_of_its_own(const tiny *t) {
    sl_gpu_info info = {.size = sizeof info};
    sl_gpu_get_info(t->g.gpu, &info);
    return !info.unified;
}

static void tables_are_written_when_experts_move(void **state) {
    static outcome waits, whole;
    static resident s;
    for (int all = 0; all < 2; all++) {
        tiny *t = open_on("soft", false, 0, SL_KV_F16, SL_Q8_0);
        if (!t)
            skip();
        if (has_memory_of_its_own(t)) { /* there nothing moves: tables are of the device's own slots */
            tiny_close(t);
            return;
        }
        must_run(t, 0, 0, 3, &waits);
        assert_int_equal(tables_written(t), 0);
        make_resident(&s, t, all);
        for (int step = 0; step < 3; step++) {
            must_run(t, 0, 0, 3, &whole);
            assert_memory_equal(waits.logits, whole.logits, sizeof(float) * 3 * TINY_VOCAB);
            assert_int_equal(tables_written(t), 2); /* one for each MoE layer, at the first step */
        }
        memset(s.block, 0xff, s.bytes); /* what is left at the old places counts for nothing */
        place(&s, 1 << 20);
        must_run(t, 0, 0, 3, &whole);
        assert_memory_equal(waits.logits, whole.logits, sizeof(float) * 3 * TINY_VOCAB);
        assert_int_equal(tables_written(t), 4);
        s.known = false; /* a source that does not say */
        must_run(t, 0, 0, 3, &whole);
        assert_int_equal(tables_written(t), 6);
        tiny_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_the_cpus),
        cmocka_unit_test(quantised_weights_and_half_kv_too),
        cmocka_unit_test(order_of_threads_and_experts_changes_no_bit),
        cmocka_unit_test(tables_are_written_when_experts_move),
        cmocka_unit_test(phases_add_up_to_no_more_than_the_device_ran),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
