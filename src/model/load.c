/* Reads the resident weights into one span of the budgeted memory.
 *
 * Bytes go in as they are in the file; norms and biases become f32, and rows of fused matrices are brought together.
 * They pass by the page cache: what lies there counts against the machine too, and mapped weights would be reclaimed
 * under pressure. */
#include "model/bind.h"

#include <math.h>
#include <stdlib.h>

enum { PIECE = 8 << 20 };

typedef struct loader {
    sl_model *m;
    uint8_t *base;
    uint64_t done, total;
    void (*progress)(void *, uint64_t, uint64_t);
    void *user;
} loader;

static bool read_extent(loader *l, const sl_extent *x, uint8_t *dst, sl_error *err) {
    const sl_file *f = sl_ckpt_file(l->m->ckpt, x->file);
    for (uint64_t at = 0; at < x->bytes; at += PIECE) {
        uint64_t n = x->bytes - at < PIECE ? x->bytes - at : PIECE;
        if (!sl_file_read_uncached(f, x->offset + at, dst + at, n, err))
            return false;
        l->done += n;
        if (l->progress)
            l->progress(l->user, l->done < l->total ? l->done : l->total, l->total);
    }
    return true;
}

static bool read_part(loader *l, const sl_tensor *t, int32_t part, uint8_t *dst, sl_error *err) {
    return read_extent(l, &t->part[part], dst, err) || sl_fail_prefix(err, "tensor %s", t->name);
}

/* The tensor as one row of numbers, whatever its dimensions. */
static bool flat_matrix(const sl_tensor *t, sl_matrix *out, sl_error *err) {
    sl_tensor flat = *t;
    flat.dims = 1;
    flat.shape[0] = sl_tensor_elements(t);
    return sl_tensor_matrix(&flat, out, err);
}

static float folded(fold f, float w) {
    return f == FOLD_ONE_PLUS ? 1 + w : f == FOLD_MINUS_EXP ? -expf(w) : w;
}

/* A NaN here would spoil every token, and a decay that grows every later one. */
static bool check_vector(const loader *l, const resident *r, const float *v, int64_t n, role what, sl_error *err) {
    const sl_tensor *t = r->tensor;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(v[i]))
            return sl_fail(err, SL_ERR_NUMERIC, "%s: tensor %s: element %lld is not a finite number",
                           model_tensor_file(l->m, t), t->name, (long long)i);
        if (what == ROLE_DELTA_DECAY && v[i] > 0)
            return sl_fail(err, SL_ERR_NUMERIC, "%s: tensor %s: element %lld is %g, a decay of at most 0 expected",
                           model_tensor_file(l->m, t), t->name, (long long)i, v[i]);
    }
    return true;
}

/* The vector's elements, or every so-many-th of them, to floats. */
static bool take_elements(const resident *r, const sl_matrix *m, float *dst, sl_error *err) {
    int64_t every = r->every ? r->every : 1, n = r->weight.matrix.rows * r->weight.matrix.cols;
    float *all = every > 1 ? malloc((size_t)m->cols * sizeof *all) : dst;
    if (!all)
        return sl_fail(err, SL_ERR_MEMORY, "tensor %s: out of memory", r->tensor->name);
    sl_format_get(m->format)->dequantize(m, 0, 0, m->cols, all);
    for (int64_t i = 0; i < n; i++)
        dst[i] = folded(r->fold, all[i * every + r->first]);
    if (all != dst)
        free(all);
    return true;
}

/* Norms, biases and other small ones: any float format, to f32. */
static bool load_vector(loader *l, const resident *r, role what, sl_error *err) {
    const sl_tensor *t = r->tensor;
    float *dst = (float *)(void *)(l->base + r->weight.offset[0]);
    sl_matrix m;
    if (!flat_matrix(t, &m, err))
        return false;
    uint8_t *raw[3] = {0};
    bool ok = true;
    for (int32_t i = 0; ok && i < t->parts; i++) {
        raw[i] = malloc(t->part[i].bytes ? t->part[i].bytes : 1);
        ok =
            raw[i] ? read_part(l, t, i, raw[i], err) : sl_fail(err, SL_ERR_MEMORY, "tensor %s: out of memory", t->name);
        m.part[i] = raw[i];
    }
    ok = ok && take_elements(r, &m, dst, err);
    for (int i = 0; i < 3; i++)
        free(raw[i]);
    return ok && check_vector(l, r, dst, r->weight.matrix.rows * r->weight.matrix.cols, what, err);
}

/* Rows [row0, row0 + n) of one part; scales of a format may serve several rows. */
static sl_extent rows_of(const resident *r, int32_t part, int64_t row0, int64_t n) {
    const sl_matrix *x = &r->weight.matrix;
    sl_extent e = r->tensor->part[part];
    int64_t per = x->format == SL_FP8 && part == 1 ? x->group : 1;
    e.offset += (uint64_t)(row0 / per) * x->row_bytes[part];
    e.bytes = (uint64_t)(n / per) * x->row_bytes[part];
    return e;
}

/* Brings together what the tensor has interleaved: whole rows move, in runs. */
static bool load_split(loader *l, const resident *r, int32_t part, sl_error *err) {
    const row_split *s = &r->split;
    uint8_t *dst = l->base + r->weight.offset[part];
    int64_t group = 0, before = 0;
    for (int i = 0; i < ROW_SEGMENTS; i++)
        group += s->segment[i];
    for (int i = 0; i < s->first + s->count; before += s->segment[i++]) {
        for (int32_t g = 0; i >= s->first && g < s->groups; g++) {
            sl_extent run = rows_of(r, part, g * group + before, s->segment[i]);
            if (!read_extent(l, &run, dst, err))
                return sl_fail_prefix(err, "tensor %s", r->tensor->name);
            dst += run.bytes;
        }
    }
    return true;
}

static bool load_one(loader *l, resident *r, role what, sl_error *err) {
    if (!r->tensor)
        return true;
    r->weight.buffer = l->m->weights_buffer;
    if (r->vector)
        return load_vector(l, r, what, err);
    for (int32_t i = 0; i < r->tensor->parts; i++)
        if (!(r->split.groups ? load_split(l, r, i, err)
                              : read_part(l, r->tensor, i, l->base + r->weight.offset[i], err)))
            return false;
    return true;
}

static bool load_all(loader *l, sl_error *err) {
    sl_model *m = l->m;
    for (int i = 0; i < ROLE_LAYER_FIRST; i++)
        if (!load_one(l, &m->global[i], (role)i, err))
            return false;
    for (int32_t layer = 0; layer < m->config.layers; layer++)
        for (int i = ROLE_LAYER_FIRST; i < ROLE_COUNT; i++)
            if (!load_one(l, &m->layers[layer].r[i], (role)i, err))
                return false;
    return true;
}

bool sl_model_load(sl_model *m, sl_mem *mem, sl_ops *ops, int32_t max_rows, int32_t max_outs,
                   void (*progress)(void *, uint64_t, uint64_t), void *user, sl_error *err) {
    if (m->weights)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: the model was loaded before", sl_ckpt_path(m->ckpt));
    if (!sl_model_accepted(m, ops, err))
        return false;
    m->mem = mem;
    m->ops = ops;
    m->weights = sl_mem_span(mem, m->resident_bytes, SL_USE_WEIGHTS, err);
    if (!m->weights)
        return false;
    m->weights_buffer = sl_ops_wrap(ops, m->weights, m->resident_bytes, err);
    if (!m->weights_buffer)
        return false;
    loader l = {.m = m, .base = m->weights, .total = m->resident_bytes, .progress = progress, .user = user};
    if (!load_all(&l, err))
        return false;
    if (progress)
        progress(user, m->resident_bytes, m->resident_bytes);
    const resident *freqs = &m->global[ROLE_ROPE_FREQS];
    const float *factors = freqs->tensor ? (const float *)(void *)(l.base + freqs->weight.offset[0]) : NULL;
    return model_rope_frequencies(m, factors, err) && model_record(m, max_rows, max_outs, err);
}
