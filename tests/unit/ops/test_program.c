/* Recording: operands that do not fit are reported when the program ends, in one line that says which. */
#include "support_tiny.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 6, OUTS = 3 };

/* Operands that fit each other; a case spoils one of them. */
typedef struct parts {
    rig g;
    sl_view a, b, wide, kv, out; /* 8, 8, 16, 4, 8 columns */
    sl_weight norm, square, up, down, table, bias, one, head_norm;
    sl_moe moe;
    sl_attention attention;
    float freq[2];
} parts;

static void parts_open(parts *p) {
    rng r = {1};
    assert_true(rig_open(&p->g, &(rig_options){.numeric = SL_NUMERIC_EXACT}));
    p->a = rig_view(&p->g, SL_ROWS_ALL, ROWS, 8, 0);
    p->b = rig_view(&p->g, SL_ROWS_ALL, ROWS, 8, 1);
    p->wide = rig_view(&p->g, SL_ROWS_ALL, ROWS, 16, 0);
    p->kv = rig_view(&p->g, SL_ROWS_ALL, ROWS, 4, 0);
    p->out = rig_view(&p->g, SL_ROWS_OUT, OUTS, 8, 0);
    struct {
        sl_weight *w;
        int64_t rows, cols;
    } list[] = {{&p->norm, 1, 8},   {&p->square, 8, 8}, {&p->up, 16, 8}, {&p->down, 8, 16},
                {&p->table, 20, 8}, {&p->bias, 1, 8},   {&p->one, 1, 8}, {&p->head_norm, 1, 4}};
    for (size_t i = 0; i < SL_COUNT(list); i++) {
        sl_matrix m = rig_matrix(&p->g, &r, SL_F32, list[i].rows, list[i].cols, 1, NULL);
        *list[i].w = rig_weight(&p->g, &m);
    }
    p->moe = (sl_moe){.experts = 20,
                      .top_k = 2,
                      .router = p->table,
                      .proj = {p->up.matrix, p->up.matrix, p->down.matrix},
                      .shared = {p->up, p->up, p->down},
                      .shared_gate = p->one};
    p->attention = (sl_attention){.heads = 2,
                                  .kv_heads = 1,
                                  .head_dim = 4,
                                  .scale = 1,
                                  .q_norm = p->head_norm,
                                  .k_norm = p->head_norm,
                                  .rope = {.dims = 4, .inv_freq = p->freq, .scale = 1}};
}

typedef void (*record_fn)(sl_program *p, parts *x);

static void good(sl_program *p, parts *x) {
    const sl_linear two[] = {{x->b, &x->square, &x->bias, false}, {x->wide, &x->up, NULL, true}};
    sl_op_embed(p, x->a, &x->table);
    sl_op_rms_norm(p, x->b, x->a, &x->norm, 1e-6f);
    sl_op_linear(p, x->a, two, 2);
    sl_op_gate_up(p, x->wide, x->a, &x->up, &x->up);
    sl_op_attention(p, x->a, x->b, x->kv, x->kv, &x->attention);
    sl_op_moe(p, x->a, x->b, &x->moe);
    sl_op_checkpoint(p, 0);
    sl_op_gather_outs(p, x->out, x->a);
    sl_op_logits(p, x->out, &x->table);
}

/* Each changes one thing of the good recording. */
#define CASE(name, change)                                                                                             \
    static void name(sl_program *p, parts *x) {                                                                        \
        change;                                                                                                        \
        good(p, x);                                                                                                    \
    }
CASE(embed_cols, x->table.matrix.cols = 9)
CASE(norm_cols, x->norm.matrix.cols = 7)
CASE(norm_rows, x->norm.matrix.rows = 2)
CASE(linear_dst, x->b.cols = 7)
CASE(bias_cols, x->bias.matrix.cols = 9)
CASE(gate_rows, x->up.matrix.rows = 17)
CASE(heads, x->attention.heads = 3)
CASE(kv_heads, x->attention.kv_heads = 0)
CASE(no_heads, (x->attention.heads = 0, x->attention.kv_heads = 1))
CASE(head_dim, x->attention.head_dim = -4)
CASE(rope_odd, x->attention.rope.dims = 3)
CASE(rope_wide, x->attention.rope.dims = 6)
CASE(rope_negative, x->attention.rope.dims = -2)
CASE(q_norm_cols, x->attention.q_norm.matrix.cols = 8)
CASE(k_norm_cols, x->attention.k_norm.matrix.cols = 3)
CASE(experts, x->moe.experts = 19)
CASE(top_k_zero, x->moe.top_k = 0)
CASE(top_k_many, x->moe.top_k = 21)
CASE(expert_up, x->moe.proj[SL_PROJ_UP].rows = 15)
CASE(expert_up_cols, x->moe.proj[SL_PROJ_UP].cols = 9)
CASE(expert_gate, x->moe.proj[SL_PROJ_GATE].cols = 9)
CASE(expert_down, x->moe.proj[SL_PROJ_DOWN].cols = 15)
CASE(expert_down_rows, x->moe.proj[SL_PROJ_DOWN].rows = 9)
CASE(shared_gate, x->moe.shared[SL_PROJ_GATE].matrix.cols = 9)
CASE(shared_up, x->moe.shared[SL_PROJ_UP].matrix.rows = 15)
CASE(shared_down, x->moe.shared[SL_PROJ_DOWN].matrix.rows = 7)
CASE(shared_sigmoid, x->moe.shared_gate = x->square)
CASE(moe_residual, x->moe.proj[SL_PROJ_DOWN].rows = x->a.cols = 16)
CASE(out_as_all, x->out.rows = SL_ROWS_ALL)
CASE(all_as_out, x->a.rows = SL_ROWS_OUT)
CASE(kv_as_out, x->kv.rows = SL_ROWS_OUT)
CASE(no_buffer, x->a.buffer = 0)
CASE(far_buffer, x->b.buffer = 1u << 30)
CASE(unwrapped, sl_ops_unwrap(x->g.ops, x->wide.buffer))
CASE(view_too_long, x->kv.offset += 4)
CASE(view_offset_overflows, x->kv.offset = UINT64_MAX - 15)
CASE(view_unaligned, x->a.offset -= 2)
CASE(stride_short, x->a.stride = 7)
CASE(stride_huge, x->a.stride = INT64_MAX / 2)
CASE(weight_too_long, x->square.offset[0] = 4)
CASE(weight_row_bytes, x->square.matrix.row_bytes[0] = 28)
CASE(weight_rows, (x->table.matrix.rows = INT64_MAX, x->moe.router.matrix.rows = INT64_MAX, x->moe.experts = 20))
CASE(vector_format, x->norm.matrix.format = SL_F16)
#undef CASE

static void no_linear(sl_program *p, parts *x) {
    sl_op_linear(p, x->a, NULL, 0);
    good(p, x);
}

static void many_linear(sl_program *p, parts *x) {
    sl_linear five[5];
    for (int i = 0; i < 5; i++)
        five[i] = (sl_linear){x->b, &x->square, NULL, false};
    sl_op_linear(p, x->a, five, 5);
    good(p, x);
}

static void first_error_counts(sl_program *p, parts *x) {
    sl_op_linear(p, x->a, NULL, 0);
    x->norm.matrix.cols = 3;
    good(p, x);
}

static const struct {
    record_fn record;
    const char *message;
} cases[] = {
    {embed_cols, "embed: 9 columns or rows, 8 expected"},
    {norm_cols, "rms_norm weight: 7"},
    {norm_rows, "rms_norm weight rows: 2"},
    {linear_dst, "rms_norm: 7"},
    {bias_cols, "linear bias: 9"},
    {gate_rows, "linear dst: 16 columns or rows, 17 expected"},
    {heads, "attention q: 8 columns or rows, 12 expected"},
    {kv_heads, "attention"},
    {no_heads, "attention q: 8 columns or rows, 0 expected"},
    {head_dim, "attention head_dim: -4"},
    {rope_odd, "attention rope: 3"},
    {rope_wide, "attention rope: 6"},
    {rope_negative, "attention rope: -2"},
    {q_norm_cols, "attention q_norm: 8"},
    {k_norm_cols, "attention k_norm: 3"},
    {experts, "router rows: 20 columns or rows, 19 expected"},
    {top_k_zero, "moe top_k: 0"},
    {top_k_many, "moe top_k: 21"},
    {expert_up, "expert up rows: 15"},
    {expert_up_cols, "expert up: 9"},
    {expert_gate, "expert gate: 9"},
    {expert_down, "expert down: 15"},
    {expert_down_rows, "expert down rows: 9"},
    {shared_gate, "shared gate: 9"},
    {shared_up, "shared up rows: 15"},
    {shared_down, "shared down rows: 7"},
    {shared_sigmoid, "shared expert's gate rows: 8"},
    {moe_residual, "embed: 8 columns or rows, 16 expected"},
    {out_as_all, "gather dst: over all rows, output rows expected"},
    {all_as_out, "embed: over output rows, all rows expected"},
    {kv_as_out, "attention k: over output rows"},
    {no_buffer, "buffer 0 does not exist"},
    {far_buffer, "buffer 1073741824 does not exist"},
    {unwrapped, "does not exist"},
    {view_too_long, "attention k: 96 bytes at offset 68 of buffer"},
    {view_offset_overflows, "attention k: 96 bytes at offset"},
    {view_unaligned, "is not a multiple of 4"},
    {stride_short, "8 columns in rows of 7"},
    {stride_huge, "rows of 4611686018427387903 columns overflow"},
    {weight_too_long, "linear weight: 256 bytes at offset 4 of buffer"},
    {weight_row_bytes, "linear weight: part 0 has rows of 28 bytes, 32 expected"},
    {weight_rows, "router rows: 9223372036854775807"},
    {vector_format, "a vector of format F16, F32 expected"},
    {no_linear, "linear outputs: 0 columns or rows, 4 expected"},
    {many_linear, "linear outputs: 5"},
    {first_error_counts, "linear outputs: 0"},
};

static void what_does_not_fit_is_reported_at_the_end(void **state) {
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        parts x;
        parts_open(&x);
        sl_error err = {0};
        sl_program *p = sl_program_new(x.g.ops, ROWS, OUTS, &err);
        assert_non_null(p);
        cases[i].record(p, &x);
        if (sl_program_end(p, &err))
            fail_msg("accepted: %s", cases[i].message);
        if (err.code != SL_ERR_ARGUMENT || strncmp(err.message, "recording ", 10) ||
            !strstr(err.message, cases[i].message))
            fail_msg("'%s' lacks '%s'", err.message, cases[i].message);
        assert_false(sl_program_end(p, NULL));
        sl_step step = {.rows = 1};
        assert_false(sl_program_run(p, &step, &err)); /* and it does not run */
        sl_program_free(p);
        rig_close(&x.g);
    }
}

static void what_fits_is_accepted(void **state) {
    parts x;
    parts_open(&x);
    sl_error err = {0};
    sl_program *p = sl_program_new(x.g.ops, ROWS, OUTS, &err);
    good(p, &x);
    sl_step step = {.rows = 1};
    assert_false(sl_program_run(p, &step, &err)); /* not yet ended */
    assert_non_null(strstr(err.message, "not ended"));
    if (!sl_program_end(p, &err))
        fail_msg("%s", err.message);
    sl_program_free(p);
    sl_program_free(NULL);
    rig_close(&x.g);
}

static void sizes_of_programs(void **state) {
    static const int32_t bad[][2] = {{0, 1}, {1, 0}, {1, 2}, {-1, -1}, {INT32_MIN, 1}};
    rig g;
    assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT}));
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_error err = {0};
        assert_null(sl_program_new(g.ops, bad[i][0], bad[i][1], &err));
        assert_int_equal(err.code, SL_ERR_ARGUMENT);
    }
    rig_close(&g);
}

/* Row and expert pairs are counted in 32 bits. */
static void too_many_pairs_are_refused(void **state) {
    parts x;
    parts_open(&x);
    sl_error err = {0};
    sl_program *p = sl_program_new(x.g.ops, INT32_MAX / 2 + 1, 1, &err);
    sl_op_moe(p, x.a, x.b, &x.moe);
    assert_false(sl_program_end(p, &err));
    assert_non_null(strstr(err.message, "moe pairs of row and expert: 2147483648"));
    sl_program_free(p);
    rig_close(&x.g);
}

static void names_of_instruction_sets(void **state) {
    sl_error err = {0};
    sl_pool *pool = sl_pool_new(1, &err);
    sl_mem *mem = sl_mem_new(1 << 20, 1 << 16, &err);
    assert_null(sl_ops_cpu_new(&(sl_ops_cpu_options){.pool = pool, .mem = mem, .isa = "sse9"}, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "sse9"));
    sl_ops *o = sl_ops_cpu_new(&(sl_ops_cpu_options){.pool = pool, .mem = mem, .isa = "scalar"}, &err);
    assert_string_equal(sl_ops_isa(o), "scalar");
    assert_int_equal(sl_ops_wrap(o, NULL, 10, &err), 0);
    sl_ops_free(o);
    o = sl_ops_cpu_new(&(sl_ops_cpu_options){.pool = pool, .mem = mem, .numeric = SL_NUMERIC_EXACT}, &err);
    assert_string_equal(sl_ops_isa(o), "exact");
    sl_ops_free(o);
    sl_ops_free(NULL);
    sl_pool_free(pool);
    sl_mem_free(mem);
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

static void scratch_beyond_the_budget_is_an_error(void **state) {
    parts x;
    parts_open(&x);
    sl_error err = {0};
    uint64_t free_bytes = sl_mem_budget(x.g.mem) - sl_mem_used(x.g.mem, SL_USE_COUNT);
    assert_true(sl_mem_charge(x.g.mem, free_bytes - 100, SL_USE_OTHER, &err));
    sl_program *p = sl_program_new(x.g.ops, ROWS, OUTS, &err);
    good(p, &x);
    assert_false(sl_program_end(p, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    sl_step step = {.rows = 1};
    assert_false(sl_program_run(p, &step, &err));
    sl_mem_uncharge(x.g.mem, free_bytes - 100, SL_USE_OTHER);
    assert_true(sl_program_end(p, &err)); /* asked again with room */
    sl_program_free(p);
    assert_int_equal(sl_ops_scratch(x.g.ops, 1ull << 40, &err), 0);
    assert_int_equal(err.code, SL_ERR_BUDGET);
    rig_close(&x.g);
}

/* Two programs of different shape over one implementation: recording the second leaves the first as it was. */
static void programs_share_scratch(void **state) {
    for (int order = 0; order < 2; order++) {
        rig g;
        rng r = {7};
        sl_error err = {0};
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_Q8, .threads = 2}));
        /* many narrow pairs kept, and one wide hidden size of which few are */
        struct {
            int32_t rows, hidden, inner, top_k, experts;
        } shapes[2] = {{64, 32, 512, 4, 6}, {2, 4096, 32, 2, 3}};
        sl_program *p[2];
        sl_view residual[2], src[2];
        static source s[2];
        memset(s, 0, sizeof s);
        rig_rank_bytes(&g, 1 << 18);
        for (int i = 0; i < 2; i++) {
            int k = i ^ order;
            sl_matrix router = rig_matrix(&g, &r, SL_F32, shapes[k].experts, shapes[k].hidden, 0.1f, NULL);
            sl_moe m = {.experts = shapes[k].experts, .top_k = shapes[k].top_k, .router = rig_weight(&g, &router)};
            for (int32_t e = 0; e < shapes[k].experts; e++)
                for (int proj = 0; proj < SL_PROJ_COUNT; proj++) {
                    bool down = proj == SL_PROJ_DOWN;
                    s[k].matrix[0][e][proj] = rig_matrix(&g, &r, SL_Q8_0, down ? shapes[k].hidden : shapes[k].inner,
                                                         down ? shapes[k].inner : shapes[k].hidden, 0.1f, NULL);
                    m.proj[proj] = s[k].matrix[0][e][proj];
                }
            s[k].experts = shapes[k].experts;
            residual[k] = rig_view(&g, SL_ROWS_ALL, shapes[k].rows, shapes[k].hidden, 0);
            src[k] = rig_view(&g, SL_ROWS_ALL, shapes[k].rows, shapes[k].hidden, 0);
            p[k] = sl_program_new(g.ops, shapes[k].rows, 1, &err);
            sl_op_moe(p[k], residual[k], src[k], &m);
            assert_true(sl_program_end(p[k], &err));
        }
        float *first[2];
        for (int round = 0; round < 2; round++) {
            for (int k = 0; k < 2; k++) {
                size_t n = (size_t)shapes[k].rows * (size_t)shapes[k].hidden;
                sl_expert_source x = source_of(&s[k]);
                sl_ops_set_experts(g.ops, &x);
                rng fill = {11};
                for (size_t i = 0; i < n; i++) {
                    rig_row(&g, &src[k], 0)[i] = rng_normal(&fill);
                    rig_row(&g, &residual[k], 0)[i] = 0;
                }
                sl_step step = {.rows = shapes[k].rows};
                if (!sl_program_run(p[k], &step, &err))
                    fail_msg("%s", err.message);
                if (round == 0) {
                    first[k] = rig_memory(&g, n * sizeof(float));
                    memcpy(first[k], rig_row(&g, &residual[k], 0), n * sizeof(float));
                }
                assert_memory_equal(first[k], rig_row(&g, &residual[k], 0), n * sizeof(float));
            }
        }
        sl_program_free(p[0]);
        sl_program_free(p[1]);
        rig_close(&g);
    }
}

/* Two sums in one operation, biases on both. */
static void several_products_may_be_added(void **state) {
    for (int threads = 1; threads < 4; threads++) {
        parts x;
        parts_open(&x);
        rng r = {3};
        rig_close(&x.g);
        rig g;
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT, .threads = threads}));
        double *values[3];
        sl_weight w[3], bias;
        static const int64_t rows[3] = {70, 33, 130};
        sl_matrix m;
        for (int i = 0; i < 3; i++) {
            m = rig_matrix(&g, &r, SL_F32, rows[i], 24, 1, &values[i]);
            w[i] = rig_weight(&g, &m);
        }
        double *bias_values;
        m = rig_matrix(&g, &r, SL_F32, 1, 130, 1, &bias_values);
        bias = rig_weight(&g, &m);
        sl_view src = rig_view(&g, SL_ROWS_ALL, 5, 24, 1), dst[3];
        sl_linear out[3];
        for (int i = 0; i < 3; i++) {
            dst[i] = rig_view(&g, SL_ROWS_ALL, 5, (int32_t)rows[i], i);
            out[i] = (sl_linear){dst[i], &w[i], i == 2 ? &bias : NULL, i != 1};
        }
        sl_error err = {0};
        sl_program *p = sl_program_new(g.ops, 5, 1, &err);
        sl_op_linear(p, src, out, 3);
        assert_true(sl_program_end(p, &err));
        for (int32_t row = 0; row < 5; row++) {
            for (int32_t c = 0; c < 24; c++)
                rig_row(&g, &src, row)[c] = rng_normal(&r);
            for (int i = 0; i < 3; i++)
                for (int64_t c = 0; c < rows[i]; c++)
                    rig_row(&g, &dst[i], row)[c] = (float)c;
        }
        sl_step step = {.rows = 5};
        assert_true(sl_program_run(p, &step, &err));
        for (int32_t row = 0; row < 5; row++)
            for (int i = 0; i < 3; i++)
                for (int64_t c = 0; c < rows[i]; c++) {
                    double expected = (i != 1 ? (double)c : 0) + (i == 2 ? bias_values[c] : 0);
                    for (int k = 0; k < 24; k++)
                        expected += rig_row(&g, &src, row)[k] * values[i][c * 24 + k];
                    double got = rig_row(&g, &dst[i], row)[c];
                    if (!(got - expected < 1e-4 && expected - got < 1e-4))
                        fail_msg("output %d, row %d, column %lld: %g, expected %g", i, row, (long long)c, got,
                                 expected);
                }
        sl_program_free(p);
        rig_close(&g);
    }
}

/* ---- KV layout --------------------------------------------------------------------------------------------------- */

static void kv_layouts(void **state) {
    sl_error err = {0};
    sl_kv_layout l = {.format = SL_KV_F16, .layers = 3, .kv_heads = 2, .head_dim = 33};
    assert_true(sl_kv_layout_init(&l, 1 << 20, &err));
    assert_int_equal(l.head_bytes, 66);
    assert_int_equal(l.plane_bytes, 66 * 64 * 2);
    assert_int_equal(l.block_bytes, 66 * 64 * 2 * 6);
    assert_int_equal(l.blocks_per_slab, (1 << 20) / (66 * 64 * 2 * 6));
    l = (sl_kv_layout){.format = SL_KV_Q8_0, .layers = 1, .kv_heads = 1, .head_dim = 64};
    assert_true(sl_kv_layout_init(&l, 1 << 20, &err));
    assert_int_equal(l.head_bytes, 68);
    static const struct {
        sl_kv_layout l;
        sl_code code;
    } bad[] = {
        {{.layers = 0, .kv_heads = 1, .head_dim = 1}, SL_ERR_ARGUMENT},
        {{.layers = 1, .kv_heads = -1, .head_dim = 1}, SL_ERR_ARGUMENT},
        {{.layers = 1, .kv_heads = 1, .head_dim = 0}, SL_ERR_ARGUMENT},
        {{.layers = 1, .kv_heads = 1, .head_dim = 33, .format = SL_KV_Q8_0}, SL_ERR_UNSUPPORTED},
        {{.layers = INT32_MAX, .kv_heads = INT32_MAX, .head_dim = INT32_MAX}, SL_ERR_ARGUMENT},
        {{.layers = INT32_MAX, .kv_heads = 1, .head_dim = INT32_MAX, .format = SL_KV_F32}, SL_ERR_ARGUMENT},
        {{.layers = 4096, .kv_heads = 128, .head_dim = 128}, SL_ERR_ARGUMENT}, /* more than a slab */
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        l = bad[i].l;
        err = (sl_error){0};
        assert_false(sl_kv_layout_init(&l, 1 << 20, &err));
        assert_int_equal(err.code, bad[i].code);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_reported_at_the_end),
        cmocka_unit_test(what_fits_is_accepted),
        cmocka_unit_test(sizes_of_programs),
        cmocka_unit_test(too_many_pairs_are_refused),
        cmocka_unit_test(names_of_instruction_sets),
        cmocka_unit_test(scratch_beyond_the_budget_is_an_error),
        cmocka_unit_test(programs_share_scratch),
        cmocka_unit_test(several_products_may_be_added),
        cmocka_unit_test(kv_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
