/* Attention: angles, norms, rotation and the new keys and values; then few rows split their keys, many go in blocks. */
#include "ops/ops_gpu.h"

#include <stdio.h>

const char *gpu_kv_name(sl_kv_format format) {
    static const char *const names[] = {[SL_KV_F16] = "f16", [SL_KV_Q8_0] = "q8_0", [SL_KV_F32] = "f32"};
    return names[format];
}

static int32_t value_dim(const sl_attention *a) {
    return a->value_dim ? a->value_dim : a->head_dim;
}

static sl_attention_args args_of(const gpu_run *r, const op *o) {
    const sl_attention *a = &o->u.attention.a;
    const sl_kv_layout *kv = &r->o->known.kv;
    return (sl_attention_args){.q_stride = (uint64_t)o->src.stride,
                               .k_stride = (uint64_t)o->u.attention.k.stride,
                               .v_stride = (uint64_t)o->u.attention.v.stride,
                               .gate_stride = (uint64_t)a->gate.stride,
                               .dst_stride = (uint64_t)o->dst.stride,
                               .head_bytes = kv->head_bytes,
                               .plane_bytes = kv->plane_bytes,
                               .layer = (uint32_t)a->layer,
                               .heads = (uint32_t)a->heads,
                               .kv_heads = (uint32_t)a->kv_heads,
                               .head_dim = (uint32_t)a->head_dim,
                               .rope_dims = (uint32_t)a->rope.dims,
                               .rope_first = (uint32_t)a->rope.first,
                               .planes = (uint32_t)kv->planes,
                               .value_dim = (uint32_t)value_dim(a),
                               .head_stride = (uint32_t)(a->head_stride ? a->head_stride : a->head_dim),
                               .window = (uint32_t)a->window,
                               .scale = a->scale,
                               .eps = a->norm_eps,
                               .rope_scale = a->rope.scale};
}

static void bind_kv(gpu_call *c, sl_gpu_access access) {
    gpu_call_pieces(c, c->r->o->kv.piece, c->r->o->kv.pieces, access);
}

static const void *norm_at(const gpu_run *r, const sl_weight *w) {
    return has_weight(w) ? gpu_at(r->o, w->buffer, w->offset[0]) : NULL;
}

/* cos and sin of the step's angles, for all layers that rotate alike. */
static bool rope_table(gpu_run *r, const sl_attention_args *a, const sl_rope *rope) {
    gpu_call c = gpu_call_begin(r, GPU_PREPARE, 0, a, sizeof *a, "rope_table");
    gpu_call_bytes(&c, 1, rope->inv_freq, (uint64_t)(rope->dims / 2) * sizeof(float));
    gpu_call_bind(&c, 2, r->o->scratch.cos_sin, (uint64_t)r->step->rows * (uint64_t)rope->dims * sizeof(float));
    gpu_bind_step(&c, 3);
    return gpu_call_end(&c, (uint32_t)r->step->rows, 1, 1, SL_SIMD);
}

static uint32_t prepare_bits(const sl_attention *a) {
    return (has_weight(&a->q_norm) ? 1u << SL_FC_NORM_Q : 0) | (has_weight(&a->k_norm) ? 1u << SL_FC_NORM_K : 0) |
           (a->rope.dims ? 1u << SL_FC_ROPE : 0) | (a->rope.interleaved ? 1u << SL_FC_INTERLEAVED : 0);
}

/* k, v, their norms and the angles, at slots from `first` on. */
static void bind_new(gpu_call *c, const op *o, int first) {
    const sl_attention *a = &o->u.attention.a;
    const sl_view *k = &o->u.attention.k, *v = &o->u.attention.v;
    int32_t rows = c->r->step->rows;
    uint64_t norm = (uint64_t)a->head_dim * sizeof(float), dims = (uint64_t)a->rope.dims;
    gpu_call_bind(c, first, gpu_view_at(c->r, k), gpu_rows_bytes(rows, k->stride, k->cols));
    gpu_call_bind(c, first + 1, a->value_dim ? NULL : gpu_view_at(c->r, v), gpu_rows_bytes(rows, v->stride, v->cols));
    gpu_call_bind(c, first + 2, norm_at(c->r, &a->q_norm), norm);
    gpu_call_bind(c, first + 3, norm_at(c->r, &a->k_norm), norm);
    gpu_call_bind(c, first + 4, dims ? c->r->o->scratch.cos_sin : NULL, (uint64_t)rows * dims * sizeof(float));
}

static bool prepare(gpu_run *r, const op *o, const sl_attention_args *args) {
    const sl_attention *a = &o->u.attention.a;
    char entry[64];
    int32_t rows = r->step->rows;
    snprintf(entry, sizeof entry, "attention_prepare_%s", gpu_kv_name(r->o->known.kv.format));
    gpu_call c = gpu_call_begin(r, GPU_PREPARE, prepare_bits(a), args, sizeof *args, entry);
    gpu_call_bind(&c, 1, gpu_view_at(r, &o->src), gpu_rows_bytes(rows, o->src.stride, o->src.cols));
    bind_new(&c, o, 2);
    gpu_bind_step(&c, 7);
    bind_kv(&c, SL_GPU_READ_WRITE);
    return gpu_call_end(&c, (uint32_t)a->heads + args->planes * (uint32_t)a->kv_heads, (uint32_t)rows, 1, SL_SIMD);
}

static uint32_t result_bits(const sl_attention *a) {
    return (a->gate.buffer ? 1u << SL_FC_GATE : 0) | (has_weight(&a->sinks) ? 1u << SL_FC_SINKS : 0);
}

static void bind_rows(gpu_call *c, int slot, const sl_view *v, const gpu_group *g) {
    bool is_there = v->buffer != 0;
    gpu_call_bind(c, slot, is_there ? gpu_view_at(c->r, v) + g->first * v->stride : NULL,
                  is_there ? gpu_rows_bytes(g->rows, v->stride, v->cols) : 0);
}

static void bind_head(gpu_call *c, int slot, const gpu_group *g) {
    const gpu_scratch *m = &c->r->o->scratch;
    gpu_call_bind(c, slot, m->step + g->head, m->step_bytes - g->head);
}

/* What changes attention's result behind the values: its gate and the sinks. */
static void bind_result(gpu_call *c, const sl_attention *a, const gpu_group *g) {
    bind_rows(c, 4, &a->gate, g);
    gpu_call_bind(c, 5, norm_at(c->r, &a->sinks), (uint64_t)a->heads * sizeof(float));
}

static bool attend_few(gpu_run *r, const op *o, const sl_attention_args *args, const gpu_group *g) {
    const sl_attention *a = &o->u.attention.a;
    char entry[64];
    uint32_t rows = (uint32_t)g->rows;
    uint64_t partial = (uint64_t)rows * args->heads * args->splits * (args->value_dim + 2) * sizeof(float);
    snprintf(entry, sizeof entry, "attention_decode_%s_%d", gpu_kv_name(r->o->known.kv.format), a->head_dim);
    gpu_call c = gpu_call_begin(r, GPU_DECODE, 0, args, sizeof *args, entry);
    bind_rows(&c, 1, &o->src, g);
    gpu_call_bind(&c, 2, r->o->scratch.partial, partial);
    bind_head(&c, 3, g);
    bind_kv(&c, SL_GPU_READ);
    uint32_t tiles = gpu_ceil_div(a->heads / a->kv_heads, SL_DECODE_HEADS(a->head_dim));
    if (!gpu_call_end(&c, args->splits, (uint32_t)a->kv_heads * tiles, rows, SL_ATTENTION_THREADS))
        return false;
    c = gpu_call_begin(r, GPU_DECODE, result_bits(a), args, sizeof *args, "attention_combine");
    gpu_call_bind(&c, 1, r->o->scratch.partial, partial);
    bind_rows(&c, 2, &o->dst, g);
    bind_head(&c, 3, g);
    bind_result(&c, a, g);
    return gpu_call_end(&c, (uint32_t)a->heads, rows, 1, SL_ATTENTION_THREADS);
}

/* ---- few rows, with fragments in registers ----------------------------------------------------------------------- */

/* attention_few.metal knows these. */
static bool has_few(const gpu_run *r, const sl_attention *a, uint32_t groups) {
    return r->o->few && r->o->known.kv.format == SL_KV_F16 && !a->value_dim && a->head_dim % 64 == 0 &&
           a->head_dim <= 256 && groups * GPU_ALONE_ROWS * sizeof(uint32_t) <= GPU_COUNTERS;
}

/* Is every row of a sequence of its own? */
static bool are_alone(const sl_step *s) {
    for (int32_t i = 1; i < s->rows && s->rows <= GPU_ALONE_ROWS; i++)
        for (int32_t j = 0; j < i; j++)
            if (s->seq[i] == s->seq[j])
                return false;
    return s->rows <= GPU_ALONE_ROWS;
}

/* alone: the kernel prepares, too. */
static bool attend_launch(gpu_run *r, const op *o, const sl_attention_args *args, uint32_t groups, uint32_t rows,
                          bool alone) {
    const sl_attention *a = &o->u.attention.a;
    const gpu_group all = {.rows = r->step->rows};
    kernel_few_attention f = kernel_few_attention_of(a->head_dim, r->o->room);
    uint32_t bits = result_bits(a) | (alone ? prepare_bits(a) | 1u << SL_FC_PREPARE : 0);
    char entry[64];
    snprintf(entry, sizeof entry, "attention_few_%d", a->head_dim);
    gpu_call c = gpu_call_begin(r, GPU_DECODE_FEW, bits, args, sizeof *args, entry);
    bind_rows(&c, 1, &o->src, &all);
    gpu_call_bind(&c, 2, r->o->scratch.partial,
                  (uint64_t)rows * args->heads * args->splits * (args->value_dim + 4) * sizeof(float));
    gpu_bind_step(&c, 3);
    bind_result(&c, a, &all);
    bind_new(&c, o, 6);
    bind_rows(&c, 11, &o->dst, &all);
    gpu_call_bind(&c, 12, r->o->scratch.counters, (uint64_t)rows * groups * sizeof(uint32_t));
    bind_kv(&c, SL_GPU_READ_WRITE);
    gpu_call_threadgroup(&c, 0, f.bytes);
    return gpu_call_end(&c, args->splits, groups, rows, f.simds * SL_SIMD);
}

/* As many rows at a time as scratch has room for. */
static bool attend_fragments(gpu_run *r, const op *o, sl_attention_args *args, uint32_t groups, bool alone) {
    kernel_few_plan plan = kernel_few_plan_of(r->step->rows, o->u.attention.a.heads, o->u.attention.a.kv_heads);
    uint32_t rows = (uint32_t)r->step->rows;
    args->splits = plan.splits;
    for (args->first_row = 0; args->first_row < rows; args->first_row += plan.rows) {
        uint32_t left = rows - args->first_row;
        if (!attend_launch(r, o, args, groups, left < plan.rows ? left : plan.rows, alone))
            return false;
    }
    return true;
}

/* ---- blocks of rows ---------------------------------------------------------------------------------------------- */

/* How kernels take blocks of rows. */
typedef struct many_way {
    gpu_file file;
    char entry[64];
    uint32_t heads, blocks, threads; /* query heads and blocks of a threadgroup */
} many_way;

static many_way way_of_many(const gpu_run *r, const sl_attention *a) {
    const char *kv = gpu_kv_name(r->o->known.kv.format);
    int32_t of_kv = a->heads / a->kv_heads;
    many_way w = {GPU_WIDE, .heads = 1, .blocks = 1, .threads = SL_ATTENTION_THREADS};
    if (a->value_dim || a->head_dim > 256) {
        snprintf(w.entry, sizeof w.entry, "attention_wide_%s_%d", kv, a->head_dim);
    } else if (r->o->few && a->head_dim % 16 == 0) {
        kernel_large_attention l = kernel_large_attention_of(a->heads, a->kv_heads);
        w = (many_way){GPU_PREFILL_LARGE, .heads = l.heads, .blocks = l.blocks, .threads = SL_ATTENTION_LARGE_THREADS};
        snprintf(w.entry, sizeof w.entry, "attention_large_%s_%d", kv, a->head_dim);
    } else {
        w.file = GPU_PREFILL;
        w.heads = a->head_dim <= 128 && of_kv % 2 == 0 ? 2 : 1;
        snprintf(w.entry, sizeof w.entry, "attention_prefill_%s_%d_%u", kv, a->head_dim, w.heads);
    }
    return w;
}

static bool attend_many(gpu_run *r, const op *o, const sl_attention_args *args, const gpu_group *g) {
    const sl_attention *a = &o->u.attention.a;
    const sl_step_head *head = (const sl_step_head *)(const void *)(r->o->scratch.step + g->head);
    many_way w = way_of_many(r, a);
    gpu_call c = gpu_call_begin(r, w.file, result_bits(a), args, sizeof *args, w.entry);
    bind_rows(&c, 1, &o->src, g);
    bind_rows(&c, 2, &o->dst, g);
    bind_head(&c, 3, g);
    bind_result(&c, a, g);
    bind_kv(&c, SL_GPU_READ);
    return gpu_call_end(&c, (uint32_t)a->heads / w.heads, ((uint32_t)head->blocks + w.blocks - 1) / w.blocks, 1,
                        w.threads);
}

bool gpu_run_attention(gpu_run *r, const op *o) {
    sl_attention_args a = args_of(r, o);
    const sl_rope *rope = &o->u.attention.a.rope;
    if (rope->dims && !(r->rope_of && ops_same_rotation(r->rope_of, rope))) {
        if (!rope_table(r, &a, rope))
            return false;
        r->rope_of = rope;
    }
    const gpu_group all = {.rows = r->step->rows};
    uint32_t groups = a.kv_heads * gpu_ceil_div(o->u.attention.a.heads / o->u.attention.a.kv_heads, SL_FEW_HEADS);
    bool alone = are_alone(r->step), few = (alone || r->groups) && has_few(r, &o->u.attention.a, groups);
    if (!(few && alone) && !prepare(r, o, &a))
        return false;
    if (few)
        return attend_fragments(r, o, &a, groups, alone);
    if (r->groups == 0)
        return attend_many(r, o, &a, &all);
    for (int i = 0; i < r->groups; i++) {
        const gpu_group *g = &r->group[i];
        a.splits = (uint32_t)g->splits;
        if (!(g->rows * g->splits <= GPU_SPLITS ? attend_few : attend_many)(r, o, &a, g))
            return false;
    }
    return true;
}
