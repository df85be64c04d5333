/* Experts of a step in which many sequences decode, on the CUDA stand-in, which has memory of its own and so a tier of
 * experts in it: the layer is the CPU's, by batch.metal where its sizes fit and by tiles where they do not. */
#include "ops/ops_gpu.h"
#include "support_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t seed = 20261203;
static char cache[] = "/tmp/sluice-gpu-batch-XXXXXX"; /* compiled once for all tests here */

static int make_cache(void **state) {
#ifdef SL_CUDA_STANDIN
    setenv("SLUICE_CUDA_LIBRARY", SL_CUDA_STANDIN, 1);
    setenv("SLUICE_NVRTC_LIBRARY", SL_CUDA_STANDIN, 1);
#endif
    return mkdtemp(cache) ? 0 : -1;
}

static int remove_cache(void **state) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

typedef struct moe_case {
    sl_format_id format;
    int32_t experts, top_k, hidden, inner, rows;
    bool biases, run; /* run: all rows are of one sequence */
} moe_case;

static void make_layer(rig *g, rng *r, const moe_case *c, source *src, sl_moe *moe) {
    sl_matrix router = rig_matrix(g, r, SL_F32, c->experts, c->hidden, 3 / sqrtf((float)c->hidden), NULL);
    *moe = (sl_moe){.experts = c->experts,
                    .top_k = c->top_k,
                    .kind = SL_ROUTER_SOFTMAX_CHOSEN,
                    .swiglu_limit = c->biases ? 2 : 0,
                    .swiglu_alpha = 1.702f,
                    .router = rig_weight(g, &router)};
    for (int32_t e = 0; e < c->experts; e++)
        for (int i = 0; i < SL_PROJ_COUNT; i++)
            src->matrix[0][e][i] = rig_matrix(g, r, c->format, i == SL_PROJ_DOWN ? c->hidden : c->inner,
                                              i == SL_PROJ_DOWN ? c->inner : c->hidden, 0.1f, NULL);
    for (int i = 0; i < SL_PROJ_COUNT; i++) {
        moe->proj[i] = src->matrix[0][0][i];
        memset(moe->proj[i].part, 0, sizeof moe->proj[i].part);
        sl_matrix b = rig_matrix(g, r, SL_F32, c->experts, i == SL_PROJ_DOWN ? c->hidden : c->inner, 1, NULL);
        if (c->biases)
            moe->bias[i] = rig_weight(g, &b);
    }
    src->experts = c->experts;
}

static bool peek(void *self, int32_t layer, sl_expert_peek *out) {
    *out = (sl_expert_peek){.align = 16};
    return true;
}

static sl_view run_layer(rig *g, source *src, const moe_case *c) {
    rng r = {seed};
    sl_error err = {0};
    sl_moe moe;
    make_layer(g, &r, c, src, &moe);
    sl_view x = rig_view(g, SL_ROWS_ALL, c->rows, c->hidden, 4),
            residual = rig_view(g, SL_ROWS_ALL, c->rows, c->hidden, 8);
    int32_t *zeros = rig_memory(g, (size_t)c->rows * sizeof *zeros),
            *seqs = rig_memory(g, (size_t)c->rows * sizeof *seqs);
    for (int32_t i = 0; i < c->rows; i++) {
        seqs[i] = c->run ? 0 : i;
        for (int32_t k = 0; k < c->hidden; k++) {
            rig_row(g, &x, i)[k] = rng_normal(&r);
            rig_row(g, &residual, i)[k] = rng_normal(&r) * 0.1f;
        }
    }
    sl_expert_source s = source_of(src);
    s.peek = peek;
    sl_ops_set_experts(g->ops, &s);
    sl_program *p = sl_program_new(g->ops, c->rows, 1, &err);
    sl_op_moe(p, residual, x, &moe);
    if (!sl_program_end(p, &err) ||
        !sl_program_run(p, &(sl_step){.rows = c->rows, .token = zeros, .seq = seqs, .position = zeros}, &err))
        fail_msg("%s", err.message);
    if (*src->wrong)
        fail_msg("%s", src->wrong);
    sl_program_free(p);
    return residual;
}

static bool has_kernel(rig *g, const char *entry) {
    sl_ops_gpu *o = (sl_ops_gpu *)(void *)g->ops;
    for (size_t i = 0; i < o->pipe_count; i++)
        if (o->pipes[i].file == GPU_BATCH && strcmp(o->pipes[i].entry, entry) == 0)
            return true;
    return false;
}

static void compare(const moe_case *c, bool batch) {
    rig cpu, gpu;
    static source of_cpu, of_gpu;
    char entry[64];
    of_cpu = of_gpu = (source){.r = {seed}};
    assert_true(rig_open(&cpu, &(rig_options){.numeric = SL_NUMERIC_EXACT, .threads = 2}));
    if (!rig_open(&gpu, &(rig_options){.device = "cuda", .cache_dir = cache, .threads = 2})) {
        rig_close(&cpu);
        print_message("SKIP: no stand-in for CUDA on this system\n");
        skip();
    }
    cpu.aligned = gpu.aligned = true;
    sl_view want = run_layer(&cpu, &of_cpu, c), got = run_layer(&gpu, &of_gpu, c);
    double e = rig_view_error(&gpu, &got, &cpu, &want, c->rows);
    print_message("%s, %d rows of %d sequences: %.2g\n", sl_format_get(c->format)->name, c->rows, c->run ? 1 : c->rows,
                  e);
    assert_true(e <= 6e-3); /* the router's logits are of half rows, and weigh the experts */
    snprintf(entry, sizeof entry, "batch_expert_%s", c->format == SL_Q4_0 ? "q4_0" : "mxfp4");
    assert_int_equal(has_kernel(&gpu, entry), batch);
    rig_close(&cpu);
    rig_close(&gpu);
}

static void experts_of_a_batch_are_the_cpus(void **state) {
    compare(&(moe_case){SL_Q4_0, 7, 3, 512, 256, .rows = 16}, true);
    compare(&(moe_case){SL_MXFP4, 5, 2, 256, 768, .rows = 37, .biases = true}, true);
    compare(&(moe_case){SL_Q4_0, 2, 2, 256, 256, .rows = 64}, true); /* eight tiles of each expert */
}

static void a_prompts_experts_are_left_to_the_tiles(void **state) {
    compare(&(moe_case){SL_Q4_0, 7, 3, 512, 256, .rows = 20, .run = true}, false);
    compare(&(moe_case){SL_Q4_0, 7, 3, 512, 256, .rows = 65}, false);
    compare(&(moe_case){SL_Q4_0, 7, 3, 512, 96, .rows = 20}, false); /* columns that batch.metal has not */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_a_batch_are_the_cpus),
        cmocka_unit_test(a_prompts_experts_are_left_to_the_tiles),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
