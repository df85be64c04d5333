#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static bool has_compiler(void) {
    return system("command -v clang++ >/dev/null 2>&1") == 0;
}

/* Is it the soft device? Others run twice, for the same bits. */
static bool on_soft(void) {
    return strncmp(rig_device("soft"), "soft", 4) == 0;
}

/* tools/mutate_kernels.py runs a program a thousand times and compiles it once; other devices keep what they compile.
 */
static const char *cache_folder(void) {
    const char *given = getenv("SL_KERNELS_CACHE");
    return given ? given : on_soft() ? "" : NULL;
}

static sl_gpu *open_device(int i, sl_error *err) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = rig_device("soft:2");
    o.cache_dir = cache_folder();
    o.check = on_soft() && i == KERNEL_DEVICES - 1;
    o.seed = (uint64_t)(o.check ? 0 : i);
    return sl_gpu_open(&o, err);
}

/* The host's definitions before the source of the file, more kernels behind it. */
static char *source_with(const char *defines, const char *file, const kernel_format *formats, size_t n,
                         const char *behind, size_t *size) {
    sl_error err = {0};
    char *text = kernel_source(file, formats, n, size, &err);
    if (!text)
        fail_msg("%s", err.message);
    size_t before = strlen(defines), after = strlen(behind);
    char *all = malloc(before + *size + after + 1);
    memcpy(all, defines, before);
    memcpy(all + before, text, *size);
    memcpy(all + before + *size, behind, after);
    *size += before + after;
    free(text);
    return all;
}

bool kernels_open(kernels *k, const char *file, const kernel_format *formats, size_t n) {
    return kernels_open_with(k, file, formats, n, "");
}

bool kernels_open_with(kernels *k, const char *file, const kernel_format *formats, size_t n, const char *defines) {
    return kernels_open_text(k, file, formats, n, defines, "");
}

bool kernels_open_text(kernels *k, const char *file, const kernel_format *formats, size_t n, const char *defines,
                       const char *behind) {
    *k = (kernels){0};
    sl_error err = {0};
    size_t size, bytes_size = 0;
    k->devices = on_soft() ? KERNEL_DEVICES : 2;
    if (on_soft() && !has_compiler()) {
        print_message("SKIP: %s: the soft device needs clang++, which is not installed\n", file);
        return false;
    }
    char *text = source_with(defines, file, formats, n, behind, &size);
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.name = file;
    void *bytes = NULL;
    uint64_t start = sl_now_ns();
    for (int i = 0; i < k->devices; i++) {
        k->gpu[i] = open_device(i, &err);
        if (!k->gpu[i])
            fail_msg("%s", err.message);
        /* the checking device's code is another */
        if (i == 0 || i == k->devices - 1) {
            sl_gpu_free(bytes);
            if (!sl_gpu_compile(k->gpu[i], text, size, &o, &bytes, &bytes_size, &err))
                fail_msg("%s", err.message);
        }
        k->library[i] = sl_gpu_library_load(k->gpu[i], bytes, bytes_size, &err);
        if (!k->library[i])
            fail_msg("%s", err.message);
    }
    sl_gpu_free(bytes);
    free(text);
    k->compile_seconds = (double)(sl_now_ns() - start) * 1e-9;
    return true;
}

void kernels_close(kernels *k) {
    print_message("%-40s %7s %10s\n", "kernel", "shapes", "worst");
    for (int i = 0; i < k->result_count; i++)
        print_message("%-40s %7d %10.2g\n", k->results[i].name, k->results[i].shapes, k->results[i].worst);
    print_message("compiled in %.1f s\n", k->compile_seconds);
    for (int i = 0; i < k->devices; i++) {
        sl_gpu_library_free(k->library[i]);
        if (k->gpu[i])
            sl_gpu_close(k->gpu[i]);
    }
}

void kernels_result(kernels *k, const char *name, double error, double limit) {
    int i = 0;
    while (i < k->result_count && strcmp(k->results[i].name, name) != 0)
        i++;
    if (i == k->result_count) {
        assert_true(k->result_count < (int)SL_COUNT(k->results));
        snprintf(k->results[k->result_count++].name, sizeof k->results[i].name, "%s", name);
    }
    k->results[i].shapes++;
    if (!(error <= k->results[i].worst))
        k->results[i].worst = error;
    if (!(error <= limit))
        fail_msg("%s: error %g, at most %g expected", name, error, limit);
}

/* ---- a dispatch -------------------------------------------------------------------------------------------------- */

enum { SLOTS = SL_GPU_SLOTS };

typedef struct bound {
    sl_gpu_buffer *buffer[SLOTS];
    uint64_t offset[SLOTS], bytes[SLOTS];
    uint8_t *start[SLOTS]; /* what an output held before */
} bound;

static void must(bool ok, const kernel_call *c, const sl_error *err) {
    if (!ok)
        fail_msg("%s: %s", c->entry, err->message);
}

static void make_buffer(sl_gpu *g, bound *b, const kernel_call *c, const kernel_binding *x) {
    sl_error err = {0};
    if (x->same_as) {
        b->buffer[x->slot] = b->buffer[x->same_as];
        b->offset[x->slot] = b->offset[x->same_as];
        b->bytes[x->slot] = b->bytes[x->same_as];
        return;
    }
    b->buffer[x->slot] = sl_gpu_alloc(g, x->bytes + x->offset, SL_GPU_SHARED, &err);
    must(b->buffer[x->slot] != NULL, c, &err);
    b->offset[x->slot] = x->offset;
    b->bytes[x->slot] = x->bytes;
    void *to = sl_gpu_map(b->buffer[x->slot], x->offset, x->bytes, SL_GPU_WRITE, &err);
    must(to != NULL, c, &err);
    memcpy(to, b->start[x->slot] ? b->start[x->slot] : x->data, x->bytes);
    must(sl_gpu_unmap(b->buffer[x->slot], &err), c, &err);
}

static size_t all_bindings(const kernel_call *c, const bound *b, sl_gpu_binding *list) {
    size_t n = 0;
    int slab = 0;
    for (int s = SL_SLAB_FIRST; c->slabs && s < SLOTS && !slab; s++)
        slab = b->buffer[s] ? s : 0;
    for (int s = 0; s < SLOTS; s++) {
        int from = c->slabs && s >= SL_SLAB_FIRST && !b->buffer[s] ? slab : s;
        if (b->buffer[from])
            list[n++] = (sl_gpu_binding){
                .slot = s, .buffer = b->buffer[from], .offset = b->offset[from], .length = b->bytes[from]};
    }
    return n;
}

/* The checking device, which is the last, comes first: where a kernel is at fault it says so, others may end the
 * process. */
static int first_device(const kernels *k) {
    return k->devices - 1;
}

/* Outputs of the first device go to the caller; those of others must be the same. */
static void take_outputs(const kernels *k, const kernel_call *c, const bound *b, int device) {
    sl_error err = {0};
    for (size_t i = 0; i < c->count; i++) {
        const kernel_binding *x = &c->bindings[i];
        if (!x->out || x->same_as)
            continue;
        const void *from = sl_gpu_map(b->buffer[x->slot], x->offset, x->bytes, SL_GPU_READ, &err);
        must(from != NULL, c, &err);
        if (device == first_device(k))
            memcpy(x->data, from, x->bytes);
        else if (memcmp(x->data, from, x->bytes) != 0)
            fail_msg("%s: slot %d on device %d (another order of threads) differs from the checking run's", c->entry,
                     x->slot, device);
        must(sl_gpu_unmap(b->buffer[x->slot], &err), c, &err);
    }
}

static void run_on(kernels *k, const kernel_call *c, bound *b, int device) {
    sl_error err = {0};
    sl_gpu *g = k->gpu[device];
    for (size_t i = 0; i < c->count; i++)
        make_buffer(g, b, c, &c->bindings[i]);
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(k->library[device], c->entry, c->constants, c->constant_count, &err);
    must(p != NULL, c, &err);
    sl_gpu_binding list[SLOTS];
    sl_gpu_dispatch d = {.pipeline = p, .bindings = list, .lengths = c->lengths, .length_count = c->length_count};
    d.binding_count = all_bindings(c, b, list);
    memcpy(d.groups, c->groups, sizeof d.groups);
    memcpy(d.threads, c->threads, sizeof d.threads);
    sl_gpu_stream *s = sl_gpu_stream_new(g, &err);
    must(s != NULL, c, &err);
    sl_gpu_list *l = sl_gpu_begin(s, c->entry, &err);
    must(l != NULL, c, &err);
    must(sl_gpu_encode(l, &d, &err), c, &err);
    sl_gpu_ticket t;
    must(sl_gpu_submit(l, &t, &err), c, &err);
    must(sl_gpu_wait(s, t, 60ull * 1000000000, NULL, &err), c, &err);
    take_outputs(k, c, b, device);
    sl_gpu_stream_free(s);
    sl_gpu_pipeline_free(p);
    for (size_t i = 0; i < c->count; i++)
        if (!c->bindings[i].same_as)
            sl_gpu_buffer_free(b->buffer[c->bindings[i].slot]);
}

void kernels_run(kernels *k, const kernel_call *c) {
    bound b = {0};
    for (size_t i = 0; i < c->count; i++) {
        const kernel_binding *x = &c->bindings[i];
        if (x->out && !x->same_as) {
            b.start[x->slot] = malloc(x->bytes);
            memcpy(b.start[x->slot], x->data, x->bytes);
        }
    }
    run_on(k, c, &b, first_device(k));
    for (int i = 0; i < first_device(k); i++)
        run_on(k, c, &b, i);
    for (int i = 0; i < SLOTS; i++)
        free(b.start[i]);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

float *kernel_floats(rng *r, size_t n, float magnitude) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = rng_normal(r) * magnitude;
    return x;
}

float *kernel_poison(size_t n) {
    float *x = malloc(n * sizeof *x);
    memset(x, 0xff, n * sizeof *x);
    return x;
}

static void put_half(uint8_t *p, float v) {
    uint16_t h = sl_f32_to_f16(v);
    memcpy(p, &h, 2);
}

/* Where the half-precision scales of a block are; the rest of its bytes is random. */
static void set_scales(rng *r, sl_format_id f, uint8_t *block) {
    float d = 0.01f * (1.0f + (float)rng_below(r, 100) * 0.01f), m = rng_normal(r) * 0.02f;
    switch (f) {
    case SL_Q4_1:
    case SL_Q5_1:
        put_half(block + 2, m);
        break;
    case SL_Q4_K:
    case SL_Q5_K:
        d *= 0.03f;
        put_half(block + 2, d * 8);
        break;
    case SL_Q6_K:
        put_half(block + 208, d * 0.01f);
        return;
    case SL_Q2_K:
        put_half(block + 80, d);
        put_half(block + 82, d);
        return;
    case SL_Q3_K:
        put_half(block + 108, d * 0.1f);
        return;
    case SL_TQ2_0:
        put_half(block + 64, d);
        return;
    case SL_TQ1_0:
        put_half(block + 52, d);
        return;
    case SL_IQ4_NL:
        d *= 0.05f;
        break;
    case SL_IQ4_XS:
        d *= 0.005f;
        break;
    case SL_MXFP4:
        block[0] = (uint8_t)(118 + rng_below(r, 6));
        return;
    case SL_NVFP4:
        for (int i = 0; i < 4; i++)
            block[i] = (uint8_t)(rng_below(r, 48) | (i == 3 ? 0 : 8));
        return;
    case SL_MXFP4_SPLIT:
    case SL_FP8:
        return;
    case SL_IQ1_M: /* d in the high four bits of four words: 0x2000 + .. */
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (i == 3 ? 0x20 : 0x10));
        return;
    case SL_IQ2_XXS:
    case SL_IQ2_XS:
    case SL_IQ2_S:
    case SL_IQ3_XXS:
    case SL_IQ3_S:
        d *= 0.01f;
        break;
    default:
        break;
    }
    put_half(block, d);
}

static void fill_codes(rng *r, kernel_matrix *w, uint8_t *p) {
    const sl_format *f = sl_format_get(w->m.format);
    uint64_t bytes = kernel_matrix_bytes(w, 0);
    if (f->block_weights == 1 && f->quantize) {
        for (uint64_t i = 0; i < bytes; i += f->block_bytes) {
            float x = rng_normal(r) * 0.1f;
            f->quantize(&x, 1, p + i);
        }
        return;
    }
    for (uint64_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)rng_next(r);
    for (uint64_t i = 0; i < bytes && !w->m.group; i += f->block_bytes)
        set_scales(r, w->m.format, p + i);
    for (uint64_t i = 0; i < bytes && (w->m.format == SL_FP8 || w->m.format == SL_MXFP8_SPLIT); i++)
        p[i] = (p[i] & 0x7f) == 0x7f ? 0 : p[i]; /* no NaN */
}

static void fill_sides(rng *r, kernel_matrix *w, int part, uint8_t *p) {
    const sl_format *f = sl_format_get(w->m.side);
    bool nvfp4 = w->m.format == SL_NVFP4_SPLIT;
    bool bytes = nvfp4 || w->m.format == SL_MXFP4_SPLIT || w->m.format == SL_MXFP8_SPLIT;
    for (uint64_t i = 0; i < kernel_matrix_bytes(w, part) && bytes; i++)
        p[i] = (uint8_t)(nvfp4 ? 8 + rng_below(r, 40) : 118 + rng_below(r, 6));
    for (uint64_t i = 0; i < kernel_matrix_bytes(w, part) && !bytes; i += f->block_bytes) {
        float x = part == 1 ? 0.01f * (1.0f + 0.3f * rng_normal(r)) : rng_normal(r) * 0.1f;
        f->quantize(&x, 1, p + i);
    }
}

kernel_matrix kernel_matrix_new(rng *r, sl_format_id format, int32_t group, sl_format_id side, int64_t rows,
                                int64_t cols) {
    kernel_matrix w = {.m = {.format = format, .group = group, .side = side, .rows = rows, .cols = cols}};
    sl_error err = {0};
    if (!sl_matrix_layout(&w.m, &err))
        fail_msg("%s", err.message);
    w.m.row_in_block = format == SL_FP8 ? (int32_t)(37 * rows % 128) : 0; /* equal for equal shapes */
    for (int i = 0; i < 3; i++) {
        if (!w.m.row_bytes[i])
            continue;
        uint8_t *p = malloc(kernel_matrix_bytes(&w, i));
        w.m.part[i] = p;
        if (i == 0)
            fill_codes(r, &w, p);
        else
            fill_sides(r, &w, i, p);
    }
    w.values = malloc((size_t)(rows * cols) * sizeof *w.values);
    float *row = malloc((size_t)cols * sizeof *row);
    for (int64_t i = 0; i < rows; i++) {
        sl_format_get(format)->dequantize(&w.m, i, 0, cols, row);
        for (int64_t c = 0; c < cols; c++)
            w.values[i * cols + c] = row[c];
    }
    free(row);
    return w;
}

void kernel_matrix_free(kernel_matrix *w) {
    for (int i = 0; i < 3; i++)
        free((void *)w->m.part[i]);
    free(w->values);
}

uint64_t kernel_matrix_bytes(const kernel_matrix *w, int part) {
    return sl_matrix_part_bytes(&w->m, part);
}

sl_weights_args kernel_weights(const sl_matrix *m) {
    uint32_t shift = 0;
    while (m->group >> (shift + 1))
        shift++;
    return (sl_weights_args){.row_bytes = m->row_bytes[0],
                             .side_bytes = m->row_bytes[1],
                             .rows = (uint32_t)m->rows,
                             .cols = (uint32_t)m->cols,
                             .group_shift = shift,
                             .side_rows = m->format == SL_FP8 ? shift << 16 | (uint32_t)m->row_in_block : 0};
}

/* ---- variants, experts ------------------------------------------------------------------------------------------- */

kernel_format kernel_variant_format(const kernel_variant *v) {
    sl_matrix m = {.format = v->format, .group = v->group, .side = v->side, .rows = 1, .cols = 256};
    assert_true(sl_matrix_layout(&m, NULL));
    kernel_format f = kernel_format_of(&m, (uint64_t[3]){(uint64_t)(v->align % 16), v->align == 1, 0});
    assert_int_equal(f.align, v->align);
    return f;
}

int64_t kernel_variant_cols(rng *r, const kernel_variant *v, int64_t most) {
    const sl_format *f = sl_format_get(v->format);
    int64_t unit = v->group && v->format != SL_FP8 ? v->group : (int64_t)f->block_weights;
    if (f->block_weights == 1 && v->align > (int)f->block_bytes)
        unit = v->align / (int)f->block_bytes; /* a row's bytes keep the alignment */
    return unit * (1 + rng_below(r, (int32_t)(most / unit)));
}

size_t kernel_bind_weights(kernel_binding *b, const kernel_matrix *w, int first, int align) {
    for (int i = 0; i < 3; i++) {
        int part = w->m.row_bytes[i] ? i : 0;
        b[i] = in(first + i, w->m.part[part], kernel_matrix_bytes(w, part));
        b[i].offset = part == 0 || align == 1 ? (uint32_t)(align % 16) : 0;
        b[i].same_as = i && !w->m.row_bytes[i] ? first : 0;
    }
    return 3;
}

void kernel_experts_add(kernel_experts *m, const kernel_matrix w[KERNEL_EXPERTS], int projection, int align) {
    for (int e = 0; e < KERNEL_EXPERTS; e++)
        for (int p = 0; p < 3; p++) {
            size_t bytes = kernel_matrix_bytes(&w[e], p), skew = (size_t)(p == 0 || align == 1 ? align % 16 : 0);
            int s = e % 2;
            size_t at = (m->bytes[s] + 31) / 16 * 16 + skew;
            if (e == KERNEL_ABSENT)
                bytes = 0;
            m->slab[s] = realloc(m->slab[s], at + bytes + 1);
            memset(m->slab[s] + m->bytes[s], 0, at + bytes + 1 - m->bytes[s]);
            if (bytes) {
                memcpy(m->slab[s] + at, w[e].m.part[p], bytes);
                m->table[e * SL_PARTS + projection * 3 + p] = (uint64_t)s << 56 | (at + 1);
            }
            m->bytes[s] = at + bytes;
        }
}

void kernel_experts_free(kernel_experts *m) {
    free(m->slab[0]);
    free(m->slab[1]);
}

void kernel_product(const kernel_matrix *w, const float *x, double *y, double *size) {
    for (int64_t r = 0; r < w->m.rows; r++) {
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < w->m.cols; c++) {
            double p = w->values[r * w->m.cols + c] * (double)x[c];
            sum += p;
            squares += p * p;
        }
        y[r] = sum;
        size[r] = sqrt(squares);
    }
}

double kernel_swiglu(double gate, double up, double limit, double alpha) {
    if (limit == 0)
        return gate / (1 + exp(-gate)) * up;
    gate = fmin(gate, limit);
    return gate / (1 + exp(-alpha * gate)) * (fmax(fmin(up, limit), -limit) + 1);
}

double kernel_expert_error(const kernel_matrix *w, const kernel_matrix *up, const float *x, const float *bias,
                           const float *up_bias, bool gate_up, double limit, double alpha, const float *got) {
    size_t bytes = (size_t)w->m.rows * sizeof(double);
    double *a = malloc(bytes), *b = malloc(bytes), *sa = malloc(bytes), *sb = malloc(bytes), worst = 0;
    kernel_product(w, x, a, sa);
    kernel_product(up, x, b, sb);
    for (int64_t i = 0; i < w->m.rows; i++) {
        double first = a[i] + (bias ? bias[i] : 0), second = b[i] + (up_bias ? up_bias[i] : 0);
        double ref = gate_up ? kernel_swiglu(first, second, limit, alpha) : first;
        double e = fabs(got[i] - ref) / (gate_up ? fabs(ref) + (1 + sa[i]) * (1 + sb[i]) : 1 + sa[i]);
        worst = worse_of(worst, e);
    }
    free(a);
    free(b);
    free(sa);
    free(sb);
    return worst;
}

/* ---- the step buffer --------------------------------------------------------------------------------------------- */

static int32_t word_of(const int32_t *list, int32_t i) {
    return list ? list[i] : 0;
}

static int32_t list_blocks(const kernel_rows *r, int32_t *first) {
    int32_t n = 0;
    for (int32_t i = 0; i < r->rows; i++)
        if (i == 0 || word_of(r->seq, i) != word_of(r->seq, i - 1) || i - first[n - 1] == SL_ATTENTION_ROWS)
            first[n++] = i;
    first[n] = r->rows;
    return n;
}

kernel_step kernel_step_new(const kernel_rows *r) {
    uint32_t at = sizeof(sl_step_head) / 4, rows = (uint32_t)r->rows;
    sl_step_head h = {.rows = r->rows, .outs = r->outs, .seqs = r->seqs};
    h.token = at;
    h.seq = h.token + rows;
    h.position = h.seq + rows;
    h.out_row = h.position + rows;
    h.block_row = h.out_row + (uint32_t)r->outs;
    h.page_first = h.block_row + rows + 1;
    uint32_t pages = h.page_first + (uint32_t)r->seqs, end = pages + 2 * (uint32_t)(r->seqs * r->pages_per_seq);
    kernel_step s = {calloc(end, 4), end * 4};
    for (int32_t i = 0; i < r->rows; i++) {
        s.words[h.token + (uint32_t)i] = word_of(r->token, i);
        s.words[h.seq + (uint32_t)i] = word_of(r->seq, i);
        s.words[h.position + (uint32_t)i] = word_of(r->position, i);
    }
    for (int32_t i = 0; i < r->outs; i++)
        s.words[h.out_row + (uint32_t)i] = word_of(r->out_row, i);
    h.blocks = list_blocks(r, s.words + h.block_row);
    for (int32_t i = 0; i < r->seqs; i++) {
        s.words[h.page_first + (uint32_t)i] = (int32_t)pages + 2 * i * r->pages_per_seq;
        for (int32_t p = 0; p < r->pages_per_seq; p++) {
            int32_t block = r->pages[i * r->pages_per_seq + p];
            uint64_t entry = (uint64_t)(block / r->per_slab) << 56 | (uint64_t)(block % r->per_slab) * r->block_bytes;
            memcpy(&s.words[pages + 2 * (uint32_t)(i * r->pages_per_seq + p)], &entry, sizeof entry);
        }
    }
    memcpy(s.words, &h, sizeof h);
    return s;
}
