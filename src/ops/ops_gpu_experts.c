/* Passes of experts: what is in a table is computed for all pairs that chose it, few rows or grouped for the matrix
 * units; pairs whose expert is absent are left to another pass. Each pair has its own row of out. */
#include "ops/ops_gpu.h"

#include <string.h>

uint64_t gpu_table_bytes(const sl_moe *m) {
    return (uint64_t)m->experts * SL_PARTS * sizeof(uint64_t);
}

/* ---- an expert as kernels see it --------------------------------------------------------------------------------- */

static bool alternates(const sl_moe *m, int proj) {
    return m->alternating && proj != SL_PROJ_DOWN;
}

sl_matrix gpu_moe_matrix(const sl_moe *m, int proj) {
    if (!alternates(m, proj))
        return m->proj[proj];
    sl_matrix whole = m->proj[SL_PROJ_GATE];
    memset(whole.part, 0, sizeof whole.part);
    return sl_matrix_every(&whole, proj == SL_PROJ_UP, 2);
}

gpu_part gpu_moe_part(const sl_moe *m, const sl_expert_view *v, int i) {
    int proj = i / 3, part = i % 3, from = alternates(m, proj) ? SL_PROJ_GATE : proj;
    uint64_t row = m->proj[from].row_bytes[part];
    return (gpu_part){.base = row ? v->part[3 * from + part] : NULL,
                      .bytes = sl_matrix_part_bytes(&m->proj[from], part),
                      .skip = from != proj ? row : 0};
}

kernel_format gpu_moe_format(const sl_moe *m, int proj, uint32_t align) {
    sl_matrix w = gpu_moe_matrix(m, proj);
    uint64_t address[3];
    for (int i = 0; i < 3; i++)
        address[i] = align | (alternates(m, proj) && proj == SL_PROJ_UP ? m->proj[SL_PROJ_GATE].row_bytes[i] : 0);
    return kernel_format_of(&w, address);
}

/* ---- a pass over what is ready ----------------------------------------------------------------------------------- */

/* The number of the slab that span s lies in; -1: no room for another. */
static int slab_number(gpu_pass *p, const gpu_span *s) {
    for (int i = 0; i < p->slabs; i++)
        if (p->slab[i].buffer == s->buffer)
            return i;
    if (p->slabs == SL_SLAB_COUNT)
        return -1;
    p->slab[p->slabs] = (gpu_span){s->buffer, 0, sl_gpu_buffer_size(s->buffer)};
    return p->slabs++;
}

/* Kernels read slots of the device's own, which are as aligned as can be. */
void gpu_pass_aligned(gpu_pass *p) {
    uint32_t align = gpu_tier_align(p->x->r->o, p->x->m->layer);
    for (int i = 0; i < SL_PROJ_COUNT; i++)
        p->format[i] = gpu_moe_format(p->x->m, i, align);
}

static bool enter_tier(gpu_pass *p, const sl_expert_view *v, bool *full) {
    gpu_run *r = p->x->r;
    uint64_t entry[SL_PARTS];
    if (!gpu_list_begin(r) || !gpu_tier_put(r->o, r->o->list, p->x->m, v, entry, full, r->err))
        return false;
    gpu_pass_aligned(p);
    memcpy(p->table + (uint64_t)v->id * sizeof entry, entry, sizeof entry);
    return true;
}

/* Enters an expert; false without an error (err untouched, *full): its slabs do not fit beside the others'. */
bool gpu_pass_enter(gpu_pass *p, const sl_expert_view *v, bool *full) {
    gpu_run *r = p->x->r;
    if (r->o->tier)
        return enter_tier(p, v, full);
    uint64_t entry[SL_PARTS] = {0};
    int slabs = p->slabs;
    *full = false;
    for (int i = 0; i < SL_PARTS; i++) {
        gpu_part part = gpu_moe_part(p->x->m, v, i);
        if (!part.base)
            continue;
        gpu_span s = gpu_span_of(r->o, part.base, part.bytes, r->err);
        int number = s.buffer ? slab_number(p, &s) : -1;
        if (number < 0) {
            *full = s.buffer != NULL;
            p->slabs = slabs;
            return false;
        }
        entry[i] = (uint64_t)number << 56 | (s.offset + part.skip + 1);
    }
    for (int proj = 0; proj < SL_PROJ_COUNT; proj++) {
        const void *part[3];
        for (int i = 0; i < 3; i++) {
            gpu_part whole = gpu_moe_part(p->x->m, v, 3 * proj + i);
            part[i] = whole.base ? whole.base + whole.skip : NULL;
        }
        kernel_format f = gpu_format_of(&p->x->proj[proj], part);
        bool all = p->format[proj].align == 0 || p->format[proj].few;
        if (p->format[proj].align == 0 || f.align < p->format[proj].align)
            p->format[proj] = f;
        p->format[proj].few = all && f.few;
    }
    memcpy(p->table + (uint64_t)v->id * sizeof entry, entry, sizeof entry);
    return true;
}

void gpu_pass_slabs(gpu_call *c, const gpu_pass *p) {
    gpu_span piece[SL_SLAB_COUNT];
    if (c->r->o->tier) {
        int pieces = gpu_tier_pieces(c->r->o, piece);
        gpu_call_pieces(c, piece, pieces, SL_GPU_READ);
        return;
    }
    gpu_call_pieces(c, p->slab, p->slabs, SL_GPU_READ);
}

sl_expert_args gpu_expert_args(const gpu_moe *x, int proj, int64_t x_stride, int64_t y_stride, bool per_pair) {
    return (sl_expert_args){.w = gpu_weights_args(&x->proj[proj]),
                            .x_stride = (uint64_t)x_stride,
                            .y_stride = (uint64_t)y_stride,
                            .experts = (uint32_t)x->m->experts,
                            .top_k = (uint32_t)x->m->top_k,
                            .projection = (uint32_t)proj,
                            .per_pair = per_pair,
                            .limit = x->m->swiglu_limit,
                            .alpha = x->m->swiglu_alpha};
}

uint32_t gpu_expert_bits(const gpu_moe *x, int proj) {
    return (proj == SL_PROJ_DOWN ? 1u << SL_FC_LEAVES : 0) | (has_weight(&x->m->bias[proj]) ? 1u << SL_FC_BIAS : 0);
}

void gpu_expert_bias(gpu_call *c, int slot, const gpu_moe *x, int proj) {
    const sl_weight *w = &x->m->bias[proj];
    gpu_call_bind(c, slot, has_weight(w) ? gpu_at(x->r->o, w->buffer, w->offset[0]) : NULL,
                  (uint64_t)x->m->experts * (uint64_t)x->proj[proj].rows * sizeof(float));
}

static uint64_t pair_count(const gpu_moe *x) {
    return (uint64_t)x->rows * (uint64_t)x->m->top_k;
}

/* One projection of few rows: x [rows or pairs], y [pairs]. */
static bool few(gpu_pass *p, int proj, const float *from, int64_t from_stride, uint64_t from_bytes, float *to,
                int64_t to_stride, bool per_pair) {
    gpu_moe *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    char entry[64];
    sl_expert_args a = gpu_expert_args(x, proj, from_stride, to_stride, per_pair);
    bool fragments = x->r->o->few && p->format[proj].few;
    (fragments ? kernel_few_entry : kernel_entry)(entry, sizeof entry,
                                                  fragments ? "few_expert_matvec" : "expert_matvec", &p->format[proj]);
    gpu_call c = gpu_call_begin(x->r, fragments ? GPU_FEW : GPU_EXPERT, gpu_expert_bits(x, proj), &a, sizeof a, entry);
    gpu_call_bind(&c, 1, p->table, gpu_table_bytes(x->m));
    gpu_call_bind(&c, 2, x->chosen, pair_count(x) * sizeof(int32_t));
    gpu_call_bind(&c, 3, from, from_bytes);
    gpu_call_bind(&c, 4, to, pair_count(x) * (uint64_t)to_stride * sizeof(float));
    gpu_call_bind(&c, 5, s->done, pair_count(x));
    gpu_bind_step(&c, 6);
    gpu_expert_bias(&c, 7, x, proj);
    gpu_pass_slabs(&c, p);
    if (fragments)
        return gpu_call_end(&c, gpu_few_groups(a.w.rows, (int64_t)pair_count(x)), (uint32_t)pair_count(x), 1,
                            SL_FEW_THREADS);
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, SL_MATVEC_ROWS), (uint32_t)pair_count(x), 1, SL_MATVEC_THREADS);
}

static bool few_gate_up(gpu_pass *p) {
    gpu_moe *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    char entry[64];
    const float *src = gpu_view_at(x->r, &x->o->src);
    uint64_t src_bytes = gpu_rows_bytes(x->rows, x->o->src.stride, x->o->src.cols);
    float *inner = (float *)(void *)s->inner, *up = (float *)(void *)s->up;
    if (!gpu_same_layout(&x->proj[SL_PROJ_GATE], &x->proj[SL_PROJ_UP]))
        return few(p, SL_PROJ_GATE, src, x->o->src.stride, src_bytes, inner, x->inner, false) &&
               few(p, SL_PROJ_UP, src, x->o->src.stride, src_bytes, up, x->inner, false) &&
               gpu_silu_mul(x->r, inner, up, x->inner, x->inner, x->m->top_k, false, x->m);
    const kernel_format *f = &p->format[SL_PROJ_GATE], *g = &p->format[SL_PROJ_UP];
    sl_expert_args a = gpu_expert_args(x, SL_PROJ_GATE, x->o->src.stride, x->inner, false);
    bool fragments = x->r->o->few && f->few && g->few;
    (fragments ? kernel_few_entry : kernel_entry)(
        entry, sizeof entry, fragments ? "few_expert_gate_up" : "expert_gate_up", f->align < g->align ? f : g);
    uint32_t clamp = x->m->swiglu_limit > 0 ? 1u << SL_FC_CLAMP : 0;
    gpu_call c = gpu_call_begin(x->r, fragments ? GPU_FEW : GPU_EXPERT, gpu_expert_bits(x, SL_PROJ_GATE) | clamp, &a,
                                sizeof a, entry);
    gpu_call_bind(&c, 1, p->table, gpu_table_bytes(x->m));
    gpu_call_bind(&c, 2, x->chosen, pair_count(x) * sizeof(int32_t));
    gpu_call_bind(&c, 3, src, src_bytes);
    gpu_call_bind(&c, 4, inner, pair_count(x) * (uint64_t)x->inner * sizeof(float));
    gpu_bind_step(&c, 6);
    gpu_expert_bias(&c, 7, x, SL_PROJ_GATE);
    gpu_expert_bias(&c, 8, x, SL_PROJ_UP);
    gpu_pass_slabs(&c, p);
    if (fragments)
        return gpu_call_end(&c, gpu_few_groups(a.w.rows, (int64_t)pair_count(x)), (uint32_t)pair_count(x), 1,
                            SL_FEW_THREADS);
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, SL_MATVEC_ROWS), (uint32_t)pair_count(x), 1, SL_MATVEC_THREADS);
}

/* A projection grouped by expert, or two; what it reads is in half rows. Binds all but what is written. */
static gpu_call begin_many(gpu_pass *p, const char *kernel, const kernel_format *f, uint32_t bits,
                           const sl_expert_args *a) {
    gpu_moe *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    char entry[64];
    uint64_t from_rows = a->per_pair ? pair_count(x) : (uint64_t)x->rows;
    kernel_entry(entry, sizeof entry, kernel, f);
    gpu_call c = gpu_call_begin(x->r, x->r->o->few ? GPU_LARGE : GPU_MATMUL, bits, a, sizeof *a, entry);
    gpu_call_bind(&c, 1, p->table, gpu_table_bytes(x->m));
    gpu_call_bind(&c, 2, s->tiles, (uint64_t)s->extent.tiles * sizeof(sl_pair_tile));
    gpu_call_bind(&c, 3, s->pairs, pair_count(x) * sizeof(int32_t));
    gpu_call_bind(&c, 4, s->half, from_rows * a->x_stride * 2);
    gpu_call_bind(&c, 5, s->unscale, from_rows * sizeof(float));
    gpu_bind_step(&c, 8);
    gpu_call_bind(&c, 9, s->tile_count, 2 * sizeof(uint32_t));
    gpu_pass_slabs(&c, p);
    return c;
}

/* Tiles there are at most: each expert may have one that is not full. */
static uint32_t most_tiles(const gpu_moe *x) {
    return gpu_ceil_div((int64_t)pair_count(x), gpu_moe_tile(x)) + (uint32_t)x->m->experts;
}

static bool many(gpu_pass *p, int proj, float *to, int64_t to_stride, bool per_pair) {
    gpu_moe *x = p->x;
    bool large = x->r->o->few;
    int64_t padded = (int64_t)sl_round_up((uint64_t)x->proj[proj].cols, SL_HALF_PAD);
    sl_expert_args a = gpu_expert_args(x, proj, padded, to_stride, per_pair);
    gpu_call c =
        begin_many(p, large ? "matmul_expert_large" : "matmul_expert", &p->format[proj], gpu_expert_bits(x, proj), &a);
    gpu_call_bind(&c, 6, to, pair_count(x) * (uint64_t)to_stride * sizeof(float));
    gpu_call_bind(&c, 7, x->r->o->scratch.done, pair_count(x));
    gpu_expert_bias(&c, 10, x, proj);
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, large ? SL_LARGE_ROWS : SL_MATMUL_ROWS), most_tiles(x), 1,
                        large ? SL_LARGE_THREADS : SL_MATMUL_THREADS);
}

/* silu(gate) * up of all pairs, place by place, as half rows. */
static bool many_gate_up(gpu_pass *p) {
    gpu_moe *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    float *inner = (float *)(void *)s->inner, *up = (float *)(void *)s->up;
    const kernel_format *f = &p->format[SL_PROJ_GATE], *g = &p->format[SL_PROJ_UP];
    if (!x->r->o->few || !gpu_same_layout(&x->proj[SL_PROJ_GATE], &x->proj[SL_PROJ_UP]))
        return many(p, SL_PROJ_GATE, inner, x->inner, false) && many(p, SL_PROJ_UP, up, x->inner, false) &&
               gpu_silu_half(x->r, inner, up, x->inner, x->inner, x->m->top_k, x->m);
    int64_t padded = (int64_t)sl_round_up((uint64_t)x->proj[SL_PROJ_GATE].cols, SL_HALF_PAD);
    sl_expert_args a = gpu_expert_args(x, SL_PROJ_GATE, padded, x->inner, false);
    uint32_t bits = gpu_expert_bits(x, SL_PROJ_GATE) | (x->m->swiglu_limit > 0 ? 1u << SL_FC_CLAMP : 0);
    gpu_call c = begin_many(p, "matmul_gate_up", f->align < g->align ? f : g, bits, &a);
    gpu_call_bind(&c, 6, inner, pair_count(x) * (uint64_t)x->inner * sizeof(float));
    gpu_expert_bias(&c, 10, x, SL_PROJ_GATE);
    gpu_expert_bias(&c, 11, x, SL_PROJ_UP);
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, SL_LARGE_ROWS / 2), most_tiles(x), 1, SL_LARGE_THREADS) &&
           gpu_to_half(x->r, inner, x->inner, x->inner, x->m->top_k, false);
}

bool gpu_pass_encode(gpu_pass *p) {
    gpu_moe *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    float *inner = (float *)(void *)s->inner, *out = (float *)(void *)s->out;
    if (!gpu_phase_begin(x->r, GPU_PHASE_EXPERTS))
        return false;
    if (!x->many)
        return few_gate_up(p) && few(p, SL_PROJ_DOWN, inner, x->inner,
                                     pair_count(x) * (uint64_t)x->inner * sizeof(float), out, x->hidden, true);
    if (gpu_batch_moe(x))
        return gpu_batch_pass(p);
    return gpu_to_half(x->r, gpu_view_at(x->r, &x->o->src), x->o->src.stride, x->o->src.cols, 1, false) &&
           many_gate_up(p) && many(p, SL_PROJ_DOWN, out, x->hidden, true);
}
