/* Single operations with the kernels on the software device beside the CPU's exact mode: the same operands, random and
 * odd, in both. */
#include "kernels/args.h"
#include "ops/ops_gpu.h"
#include "support_ops.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t seed = 20261130;
static char cache[] = "/tmp/sluice-gpu-ops-XXXXXX"; /* compiled once for all tests here */

static int make_cache(void **state) {
    print_message("seed %llu\n", (unsigned long long)seed);
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

static bool open_rig(rig *g, bool device, bool scattered) {
    return rig_open(g, &(rig_options){.numeric = SL_NUMERIC_EXACT,
                                      .device = device ? "soft:2" : NULL,
                                      .cache_dir = cache,
                                      .scattered = scattered,
                                      .threads = 2});
}

/* A view with random contents. */
static sl_view random_view(rig *g, rng *r, int32_t rows, int32_t cols, int32_t pad, float magnitude) {
    sl_view v = rig_view(g, SL_ROWS_ALL, rows, cols, pad);
    for (int32_t i = 0; i < rows; i++)
        for (int32_t c = 0; c < cols; c++)
            rig_row(g, &v, i)[c] = rng_normal(r) * magnitude;
    return v;
}

/* ---- attention over many slabs ----------------------------------------------------------------------------------- */

typedef struct attention_case {
    sl_kv_format kv;
    int32_t heads, kv_heads, dim, apart, window;
    bool gate, sinks;
    int32_t rows, position, pages; /* pages: that there are; the sequence's lie among them in no order */
    double limit;
    int32_t values; /* > 0: the first dimensions of the keys, in pages of one plane; rotated is what lies behind */
} attention_case;

typedef struct attention_twin {
    rig g;
    sl_program *p;
    sl_view dst;
    int32_t *pages;
    sl_kv_layout kv;
} attention_twin;

static void fill_block(rng *r, const sl_kv_layout *l, uint8_t *block) {
    for (uint64_t i = 0; i + 2 <= l->block_bytes; i += 2) {
        uint16_t h = sl_f32_to_f16(rng_normal(r));
        memcpy(block + i, &h, 2);
    }
}

static void make_kv(attention_twin *t, rng *r, const attention_case *c) {
    enum { SLAB = 1 << 20 };
    sl_error err = {0};
    t->kv = (sl_kv_layout){
        .format = c->kv, .layers = 2, .kv_heads = c->kv_heads, .head_dim = c->dim, .planes = c->values ? 1 : 2};
    assert_true(sl_kv_layout_init(&t->kv, SLAB, &err));
    sl_ops_set_kv(t->g.ops, &t->kv);
    for (int32_t b = 0; b < c->pages; b += t->kv.blocks_per_slab) {
        uint8_t *slab = sl_mem_slab(t->g.mem, SL_USE_KV, &err);
        assert_non_null(slab);
        for (int32_t i = 0; i < t->kv.blocks_per_slab; i++)
            fill_block(r, &t->kv, slab + (uint64_t)i * t->kv.block_bytes);
        assert_true(sl_ops_add_kv_slab(t->g.ops, slab, &err));
    }
    t->pages = rig_memory(&t->g, (size_t)c->pages * sizeof *t->pages);
    for (int32_t i = 0; i < c->pages; i++)
        t->pages[i] = (int32_t)((int64_t)i * 37 % c->pages);
}

static void make_attention(attention_twin *t, const attention_case *c) {
    rng r = {seed};
    sl_error err = {0};
    rig *g = &t->g;
    int32_t stride = c->dim + c->apart, cols = (c->heads - 1) * stride + c->dim;
    sl_view q = random_view(g, &r, c->rows, cols + c->dim, 3, 1), gate = q;
    q.cols = gate.cols = cols;
    gate.offset += (uint64_t)c->dim * sizeof(float); /* [q | gate] per head where heads are that far apart */
    sl_view k = random_view(g, &r, c->rows, c->kv_heads * c->dim, 1, 1);
    sl_view v = random_view(g, &r, c->rows, c->kv_heads * c->dim, 2, 1);
    t->dst = rig_view(g, SL_ROWS_ALL, c->rows, c->heads * (c->values ? c->values : c->dim), 5);
    float inv_freq[SL_ATTENTION_DIM_MAX / 2];
    for (int32_t i = 0; i < (c->dim - c->values) / 2; i++)
        inv_freq[i] = powf(10000, -2.0f * (float)i / (float)c->dim);
    sl_attention a = {.layer = 1,
                      .heads = c->heads,
                      .kv_heads = c->kv_heads,
                      .head_dim = c->dim,
                      .scale = 1 / sqrtf((float)c->dim),
                      .head_stride = c->apart ? stride : 0,
                      .window = c->window,
                      .value_dim = c->values};
    if (c->values)
        a.rope = (sl_rope){.first = c->values, .dims = c->dim - c->values, .inv_freq = inv_freq, .scale = 1};
    if (c->gate)
        a.gate = gate;
    if (c->sinks)
        a.sinks = rig_vector(g, &r, c->heads);
    make_kv(t, &r, c);
    t->p = sl_program_new(g->ops, c->rows, 1, &err);
    sl_op_attention(t->p, t->dst, q, k, c->values ? (sl_view){0} : v, &a);
    if (!sl_program_end(t->p, &err))
        fail_msg("%s", err.message);
}

static bool run_attention(attention_twin *t, const attention_case *c, sl_error *err) {
    int32_t *zeros = rig_memory(&t->g, (size_t)c->rows * sizeof *zeros),
            *position = rig_memory(&t->g, (size_t)c->rows * 4);
    for (int32_t i = 0; i < c->rows; i++)
        position[i] = c->position + i;
    sl_step_seq seq = {.pages = t->pages, .page_count = c->pages};
    sl_step s = {.rows = c->rows, .token = zeros, .seq = zeros, .position = position, .seq_count = 1, .seqs = &seq};
    return sl_program_run(t->p, &s, err);
}

static void close_attention(attention_twin *t) {
    sl_program_free(t->p);
    rig_close(&t->g);
}

static void compare_attention(const attention_case *c) {
    sl_error err = {0};
    attention_twin cpu = {0}, gpu = {0};
    assert_true(open_rig(&cpu.g, false, false));
    if (!open_rig(&gpu.g, true, false)) {
        rig_close(&cpu.g);
        skip();
    }
    make_attention(&cpu, c);
    make_attention(&gpu, c);
    if (!run_attention(&cpu, c, &err) || !run_attention(&gpu, c, &err))
        fail_msg("%s", err.message);
    double e = rig_view_error(&gpu.g, &gpu.dst, &cpu.g, &cpu.dst, c->rows);
    print_message("attention of %d rows at %d, heads of %d: %.2g\n", c->rows, c->position, c->dim, e);
    assert_true(e <= c->limit);
    close_attention(&cpu);
    close_attention(&gpu);
}

static void a_context_of_64k_lies_in_any_number_of_slabs(void **state) {
    compare_attention(&(attention_case){SL_KV_F16, 2, 1, 64, .rows = 1, .position = 65535, .pages = 1024,
                                        .limit = 1e-4}); /* 32 slabs */
    compare_attention(
        &(attention_case){SL_KV_F16, 2, 1, 64, .rows = 20, .position = 1500, .pages = 1024, .limit = 4e-3});
}

static void attention_is_the_cpus(void **state) {
    static const attention_case cases[] = {
        {SL_KV_F16, 6, 2, 64, .rows = 3, .position = 70, .pages = 3, .apart = 64, .gate = true, .limit = 1e-4},
        {SL_KV_F16, 6, 2, 64, .rows = 21, .position = 70, .pages = 3, .apart = 64, .gate = true, .limit = 4e-3},
        {SL_KV_F16, 4, 2, 80, .rows = 2, .position = 62, .pages = 2, .window = 9, .sinks = true, .limit = 1e-4},
        {SL_KV_F16, 4, 2, 80, .rows = 18, .position = 62, .pages = 2, .window = 9, .sinks = true, .limit = 4e-3},
        {SL_KV_F16, 3, 1, 192, .rows = 17, .position = 5, .pages = 2, .limit = 4e-3},
        {SL_KV_F16, 2, 1, 24, .rows = 1, .position = 70, .pages = 2, .limit = 1e-4},
        {SL_KV_F16, 2, 1, 24, .rows = 17, .position = 70, .pages = 2, .limit = 4e-3},
        {SL_KV_F16, 9, 1, 576, .rows = 2, .position = 530, .pages = 10, .values = 512, .limit = 1e-4},
        {SL_KV_F16, 2, 1, 576, .rows = 18, .position = 60, .pages = 3, .values = 512, .limit = 4e-3},
        {SL_KV_F16, 2, 1, 288, .rows = 2, .position = 5, .pages = 1, .gate = true, .apart = 288, .limit = 1e-4},
        {SL_KV_F16, 2, 1, 288, .rows = 18, .position = 5, .pages = 1, .gate = true, .apart = 288, .limit = 4e-3},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        compare_attention(&cases[i]);
}

/* Fifteen rows of so many splits do not fit the scratch together: they are computed in groups, not in half tiles, and
 * a row has the bits that it has alone. */
static void few_rows_far_into_a_context_stay_few(void **state) {
    const attention_case all = {
        SL_KV_F16,    4, 2, 64, .apart = 64, .gate = true, .sinks = true, .rows = 15, .position = 9200, .pages = 150,
        .limit = 1e-4};
    attention_case one = all;
    compare_attention(&all);
    one.rows = 1;
    sl_error err = {0};
    attention_twin t[2] = {0};
    for (int i = 0; i < 2; i++) {
        if (!open_rig(&t[i].g, true, false))
            skip();
        make_attention(&t[i], &all);
        if (!run_attention(&t[i], i ? &one : &all, &err))
            fail_msg("%s", err.message);
    }
    assert_memory_equal(rig_row(&t[0].g, &t[0].dst, 0), rig_row(&t[1].g, &t[1].dst, 0), 4 * 64 * sizeof(float));
    for (int i = 0; i < 2; i++)
        close_attention(&t[i]);
}

/* A step of rows that no operation looks at but for their number. */
static bool run_alone(rig *g, sl_program *p, int32_t rows, sl_error *err) {
    int32_t *zeros = rig_memory(g, (size_t)rows * sizeof *zeros);
    return sl_program_run(p, &(sl_step){.rows = rows, .token = zeros, .seq = zeros, .position = zeros}, err);
}

/* Each row is of a sequence of its own. */
static bool run_apart(rig *g, sl_program *p, int32_t rows, sl_error *err) {
    int32_t *zeros = rig_memory(g, (size_t)rows * sizeof *zeros), *seqs = rig_memory(g, (size_t)rows * sizeof *seqs);
    for (int32_t i = 0; i < rows; i++)
        seqs[i] = i;
    return sl_program_run(p, &(sl_step){.rows = rows, .token = zeros, .seq = seqs, .position = zeros}, err);
}

/* ---- a matrix for each head -------------------------------------------------------------------------------------- */

typedef struct heads_case {
    sl_head_linear h;
    sl_format_id format;
    int32_t rows;
} heads_case;

/* The view that it wrote. */
static sl_view run_heads(rig *g, const heads_case *c) {
    rng r = {seed + 1};
    sl_error err = {0};
    const sl_head_linear *h = &c->h;
    sl_matrix m = rig_matrix(g, &r, c->format, (int64_t)h->heads * h->rows_per_head,
                             h->transposed ? h->out_dim : h->in_dim, 0.5f, NULL);
    sl_weight weight = rig_weight(g, &m);
    sl_view src = random_view(g, &r, c->rows, h->heads * (h->in_dim + h->tail), 3, 1);
    sl_view dst = rig_view(g, SL_ROWS_ALL, c->rows, h->heads * (h->out_dim + h->tail), 5);
    sl_head_linear linear = *h;
    linear.weight = &weight;
    sl_program *p = sl_program_new(g->ops, c->rows, 1, &err);
    sl_op_head_linear(p, dst, src, &linear);
    if (!sl_program_end(p, &err) || !run_alone(g, p, c->rows, &err))
        fail_msg("%s", err.message);
    sl_program_free(p);
    return dst;
}

static void a_matrix_for_each_head_is_the_cpus(void **state) {
    static const heads_case cases[] = {
        {{.heads = 3, .in_dim = 96, .out_dim = 37, .first_row = 2, .rows_per_head = 41}, SL_Q8_0, 3},
        {{.heads = 3, .in_dim = 96, .out_dim = 70, .first_row = 2, .rows_per_head = 75}, SL_Q8_0, 37},
        {{.heads = 5, .in_dim = 37, .out_dim = 45, .tail = 7, .rows_per_head = 50, .transposed = true}, SL_F32, 2},
        {{.heads = 5, .in_dim = 70, .out_dim = 45, .tail = 7, .rows_per_head = 90, .transposed = true}, SL_F32, 19},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const heads_case *c = &cases[i];
        rig cpu, gpu;
        assert_true(open_rig(&cpu, false, false));
        if (!open_rig(&gpu, true, false)) {
            rig_close(&cpu);
            skip();
        }
        sl_view want = run_heads(&cpu, c), got = run_heads(&gpu, c);
        double e = rig_view_error(&gpu, &got, &cpu, &want, c->rows);
        print_message("%d rows of %d heads: %.2g\n", c->rows, c->h.heads, e);
        assert_true(e <= (c->rows < 16 ? 1e-5 : 3e-3));
        rig_close(&cpu);
        rig_close(&gpu);
    }
}

/* ---- fragments in registers -------------------------------------------------------------------------------------- */

static sl_ops_gpu *gpu_of(rig *g) {
    return (sl_ops_gpu *)(void *)g->ops;
}

static bool has_kernel(rig *g, gpu_file file, const char *entry) {
    for (size_t i = 0; i < gpu_of(g)->pipe_count; i++)
        if (gpu_of(g)->pipes[i].file == file && strcmp(gpu_of(g)->pipes[i].entry, entry) == 0)
            return true;
    return false;
}

/* dst += x W^T + bias, dst[1] = silu(x G^T) * (x U^T) */
static void run_products(rig *g, int32_t rows, bool apart, sl_view dst[2]) {
    rng r = {seed + 3};
    sl_error err = {0};
    sl_matrix w = rig_matrix(g, &r, SL_Q4_0, 48, 512, 0.3f, NULL);
    sl_matrix gate = rig_matrix(g, &r, SL_Q4_0, 32, 512, 0.3f, NULL),
              up = rig_matrix(g, &r, SL_Q4_0, 32, 512, 0.3f, NULL);
    sl_weight bias = rig_vector(g, &r, 48), first = rig_weight(g, &w), of_gate = rig_weight(g, &gate),
              of_up = rig_weight(g, &up);
    sl_view x = random_view(g, &r, rows, 512, 4, 1);
    dst[0] = random_view(g, &r, rows, 48, 3, 1);
    dst[1] = rig_view(g, SL_ROWS_ALL, rows, 32, 1);
    sl_program *p = sl_program_new(g->ops, rows, 1, &err);
    sl_linear out = {dst[0], &first, &bias, true};
    sl_op_linear(p, x, &out, 1);
    sl_op_gate_up(p, dst[1], x, &of_gate, &of_up);
    if (!sl_program_end(p, &err) || !(apart ? run_apart : run_alone)(g, p, rows, &err))
        fail_msg("%s", err.message);
    sl_program_free(p);
}

static void products_in_fragments_are_the_cpus(void **state) {
    rig cpu, gpu;
    sl_view want[2], got[2];
    assert_true(open_rig(&cpu, false, false));
    if (!open_rig(&gpu, true, false)) {
        rig_close(&cpu);
        skip();
    }
    gpu_of(&gpu)->few = cpu.aligned = gpu.aligned = true;
    run_products(&cpu, 2, false, want);
    run_products(&gpu, 2, false, got);
    assert_true(has_kernel(&gpu, GPU_FEW, "few_q4_0") && has_kernel(&gpu, GPU_FEW, "few_gate_up_q4_0"));
    for (int i = 0; i < 2; i++)
        assert_true(rig_view_error(&gpu, &got[i], &cpu, &want[i], 2) <= 1e-5);
    rig_close(&cpu);
    rig_close(&gpu);
}

/* Rows of 16 sequences and more, one each; as many of one sequence are left to the tiles, as a prompt's bits are
 * theirs.
 */
static void a_batch_that_decodes_has_products_of_its_own(void **state) {
    static const int32_t rows[] = {16, 37, 64, 65, 20};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        rig cpu, gpu;
        sl_view want[2], got[2];
        bool apart = rows[i] != 20, batch = apart && rows[i] <= 64;
        assert_true(open_rig(&cpu, false, false));
        if (!open_rig(&gpu, true, false)) {
            rig_close(&cpu);
            skip();
        }
        gpu_of(&gpu)->few = cpu.aligned = gpu.aligned = true;
        run_products(&cpu, rows[i], apart, want);
        run_products(&gpu, rows[i], apart, got);
        assert_int_equal(has_kernel(&gpu, GPU_BATCH, rows[i] == 16 ? "batch_t1_n2_q4_0" : "batch_t1_n4_q4_0"), batch);
        assert_int_equal(has_kernel(&gpu, GPU_BATCH, "batch_lines_q4_0"), batch);
        for (int k = 0; k < 2; k++) {
            double e = rig_view_error(&gpu, &got[k], &cpu, &want[k], rows[i]);
            print_message("%d rows: %.2g\n", rows[i], e);
            assert_true(e <= 5e-3); /* of silu(g) * u, where both are rounded */
        }
        rig_close(&cpu);
        rig_close(&gpu);
    }
}

/* ---- experts whose rows of gate and up alternate ----------------------------------------------------------------- */

typedef struct moe_case {
    sl_format_id format;
    int32_t experts, top_k, hidden, inner, rows;
    bool biases;
} moe_case;

static void make_expert(rig *g, rng *r, const moe_case *c, sl_matrix m[SL_PROJ_COUNT]) {
    m[SL_PROJ_GATE] = rig_matrix(g, r, c->format, 2 * c->inner, c->hidden, 0.3f, NULL);
    m[SL_PROJ_UP] = (sl_matrix){.part[0] = m[SL_PROJ_GATE].part[0]}; /* of no rows */
    m[SL_PROJ_DOWN] = rig_matrix(g, r, c->format, c->hidden, c->inner, 0.3f, NULL);
}

static void make_biases(rig *g, rng *r, const moe_case *c, sl_moe *moe) {
    for (int i = 0; i < SL_PROJ_COUNT && c->biases; i++) {
        sl_matrix b = rig_matrix(g, r, SL_F32, c->experts, i == SL_PROJ_DOWN ? c->hidden : c->inner, 1, NULL);
        moe->bias[i] = rig_weight(g, &b);
    }
}

static sl_view run_alternating(rig *g, source *src, const moe_case *c) {
    rng r = {seed + 2};
    sl_error err = {0};
    sl_matrix router = rig_matrix(g, &r, SL_F32, c->experts, c->hidden, 3 / sqrtf((float)c->hidden), NULL);
    sl_moe moe = {.experts = c->experts,
                  .top_k = c->top_k,
                  .kind = SL_ROUTER_SOFTMAX_CHOSEN,
                  .swiglu_limit = c->biases ? 7 : 0,
                  .swiglu_alpha = 1.702f,
                  .router = rig_weight(g, &router),
                  .alternating = true};
    for (int32_t e = 0; e < c->experts; e++)
        make_expert(g, &r, c, src->matrix[0][e]);
    for (int i = 0; i < SL_PROJ_COUNT; i++) {
        moe.proj[i] = src->matrix[0][0][i];
        moe.proj[i].part[0] = NULL;
    }
    make_biases(g, &r, c, &moe);
    if (c->biases)
        moe.router_bias = rig_vector(g, &r, c->experts);
    sl_view x = random_view(g, &r, c->rows, c->hidden, 3, 1), residual = random_view(g, &r, c->rows, c->hidden, 5, 1);
    src->experts = c->experts;
    sl_expert_source s = source_of(src);
    sl_ops_set_experts(g->ops, &s);
    sl_program *p = sl_program_new(g->ops, c->rows, 1, &err);
    sl_op_moe(p, residual, x, &moe);
    if (!sl_program_end(p, &err) || !run_alone(g, p, c->rows, &err))
        fail_msg("%s", err.message);
    if (*src->wrong)
        fail_msg("%s", src->wrong);
    sl_program_free(p);
    return residual;
}

/* Rows of 18 bytes: the second one's begin at another alignment than the first one's. */
static void alternating_gate_and_up_are_the_cpus(void **state) {
    static const moe_case cases[] = {
        {SL_F32, 5, 2, 45, 19, .rows = 3, .biases = true},
        {SL_F32, 5, 2, 45, 19, .rows = 21, .biases = true},
        {SL_Q4_0, 7, 3, 32, 32, .rows = 4},
        {SL_Q4_0, 7, 3, 32, 64, .rows = 40, .biases = true},
        {SL_F32, 40, 3, 600, 20, .rows = 20, .biases = true}, /* the router's columns in three parts */
        {SL_Q4_0, 9, 2, 544, 32, .rows = 17},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const moe_case *c = &cases[i];
        rig cpu, gpu;
        static source of_cpu, of_gpu;
        of_cpu = of_gpu = (source){.r = {i}};
        assert_true(open_rig(&cpu, false, false));
        if (!open_rig(&gpu, true, false)) {
            rig_close(&cpu);
            skip();
        }
        sl_view want = run_alternating(&cpu, &of_cpu, c), got = run_alternating(&gpu, &of_gpu, c);
        double e = rig_view_error(&gpu, &got, &cpu, &want, c->rows);
        print_message("%s, %d rows: %.2g\n", sl_format_get(c->format)->name, c->rows, e);
        assert_true(e <= (c->rows < 16 ? 1e-5 : 5e-3));
        rig_close(&cpu);
        rig_close(&gpu);
    }
}

static void kv_in_too_many_pieces_is_said(void **state) {
    sl_error err = {0};
    attention_case c = {SL_KV_F16, 2, 1, 64, .rows = 1, .position = 65, .pages = 1024};
    attention_twin t = {0};
    if (!open_rig(&t.g, true, true))
        skip();
    make_attention(&t, &c);
    sl_gpu_info info = {.size = sizeof info};
    sl_gpu_get_info(t.g.gpu, &info);
    if (!info.unified) { /* there the pieces are the device's own, and few */
        assert_true(run_attention(&t, &c, &err));
        close_attention(&t);
        return;
    }
    assert_false(run_attention(&t, &c, &err));
    assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "KV in more than 16 pieces of memory, which is what kernels can see");
    close_attention(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_the_cpus),
        cmocka_unit_test(few_rows_far_into_a_context_stay_few),
        cmocka_unit_test(a_matrix_for_each_head_is_the_cpus),
        cmocka_unit_test(products_in_fragments_are_the_cpus),
        cmocka_unit_test(a_batch_that_decodes_has_products_of_its_own),
        cmocka_unit_test(alternating_gate_and_up_are_the_cpus),
        cmocka_unit_test(a_context_of_64k_lies_in_any_number_of_slabs),
        cmocka_unit_test(kv_in_too_many_pieces_is_said),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
