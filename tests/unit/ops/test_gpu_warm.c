/* Kernels compiled ahead of a step, side by side: those that the step asks for and no others, and the same bits. */
#include "support_tiny.h"

#include "ops/ops_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_ROWS = 40 };

static char cache[] = "/tmp/sluice-warm-XXXXXX";

static int make_cache(void **state) {
    return mkdtemp(cache) ? 0 : -1;
}

static int remove_cache(void **state) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

static sl_ops_gpu *gpu_of(tiny *t) {
    return (sl_ops_gpu *)t->g.ops;
}

static tiny *open_tiny(void) {
    return tiny_open(
        &(tiny_options){.rig = {.numeric = SL_NUMERIC_EXACT, .device = "soft:2", .cache_dir = cache, .threads = 2},
                        .kv = SL_KV_F16,
                        .format = SL_Q8_0,
                        .rank_bytes = 1 << 20,
                        .max_rows = MAX_ROWS,
                        .max_outs = MAX_ROWS});
}

/* n rows of sequence seq from its beginning on. */
static void run_rows(tiny *t, int32_t seq, int32_t n, float logits[][TINY_VOCAB]) {
    int32_t token[MAX_ROWS], seqs[MAX_ROWS], positions[MAX_ROWS], outs[MAX_ROWS];
    uint8_t failed[MAX_ROWS] = {0};
    sl_error err = {0};
    for (int32_t i = 0; i < n; i++) {
        token[i] = (5 * i + seq) % TINY_VOCAB;
        seqs[i] = seq;
        positions[i] = outs[i] = i;
    }
    sl_step s = tiny_step(t, n, token, seqs, positions);
    s.outs = n;
    s.out_rows = outs;
    s.logits = logits[0];
    s.row_failed = failed;
    if (!sl_program_run(t->p, &s, &err))
        fail_msg("%s", err.message);
}

static bool has_pipe(const sl_ops_gpu *o, const gpu_pipe *p) {
    for (size_t i = 0; i < o->pipe_count; i++)
        if (o->pipes[i].file == p->file && o->pipes[i].constants == p->constants &&
            strcmp(o->pipes[i].entry, p->entry) == 0)
            return true;
    return false;
}

static void expect_all(const sl_ops_gpu *of, const sl_ops_gpu *in, const char *what) {
    for (size_t i = 0; i < of->pipe_count; i++)
        if (!has_pipe(in, &of->pipes[i]))
            fail_msg("%s, constants %x: %s", of->pipes[i].entry, of->pipes[i].constants, what);
}

static void a_rehearsal_meets_what_the_step_asks_for(void **state) {
    static float plain[MAX_ROWS][TINY_VOCAB], warm[MAX_ROWS][TINY_VOCAB];
    for (int32_t rows = 3; rows <= MAX_ROWS; rows += MAX_ROWS - 3) {
        tiny *a = open_tiny(), *b = open_tiny();
        if (!a || !b) {
            tiny_close(a);
            tiny_close(b);
            skip();
        }
        gpu_of(a)->warm = UINT32_MAX; /* every kind has been: compiled as they are asked for */
        memset(warm, 0xff, sizeof warm);
        run_rows(a, 0, rows, plain);
        run_rows(b, 0, rows, warm);
        print_message("%d rows: %zu kernels\n", rows, gpu_of(b)->pipe_count);
        assert_true(gpu_of(a)->pipe_count > 5);
        expect_all(gpu_of(a), gpu_of(b), "the rehearsal did not meet it");
        expect_all(gpu_of(b), gpu_of(a), "nobody asks for it");
        assert_memory_equal(plain, warm, (size_t)rows * sizeof *plain);
        tiny_close(a);
        tiny_close(b);
    }
}

/* Everything that a step compiles, it compiles in its rehearsal: taken out again, it comes back in one go. */
static void libraries_that_are_dropped_are_made_again(void **state) {
    static float first[MAX_ROWS][TINY_VOCAB], second[MAX_ROWS][TINY_VOCAB];
    tiny *t = open_tiny();
    if (!t)
        skip();
    run_rows(t, 0, 3, first);
    size_t n = gpu_of(t)->pipe_count;
    gpu_libraries_drop(gpu_of(t));
    assert_int_equal(gpu_of(t)->pipe_count, 0);
    run_rows(t, 0, 3, second);
    assert_int_equal(gpu_of(t)->pipe_count, n);
    assert_memory_equal(first, second, 3 * sizeof *first);
    tiny_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rehearsal_meets_what_the_step_asks_for),
        cmocka_unit_test(libraries_that_are_dropped_are_made_again),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
