/* Reads the resident weights into one span of the budgeted memory.
 *
 * Bytes go in as they are in the file; norms and biases become f32. They pass by the page cache: what lies there counts
 * against the machine too, and mapped weights would be reclaimed under pressure. */
#include "model/model_internal.h"

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

/* Norms and biases: any format, to f32; a NaN here would spoil every token. */
static bool load_vector(loader *l, const resident *r, sl_error *err) {
    const sl_tensor *t = r->tensor;
    float *dst = (float *)(void *)(l->base + r->weight.offset[0]);
    sl_matrix m;
    if (!sl_tensor_matrix(t, &m, err))
        return false;
    uint8_t *raw[3] = {0};
    bool ok = true;
    for (int32_t i = 0; ok && i < t->parts; i++) {
        raw[i] = malloc(t->part[i].bytes ? t->part[i].bytes : 1);
        ok =
            raw[i] ? read_part(l, t, i, raw[i], err) : sl_fail(err, SL_ERR_MEMORY, "tensor %s: out of memory", t->name);
        m.part[i] = raw[i];
    }
    if (ok)
        sl_format_get(m.format)->dequantize(&m, 0, 0, m.cols, dst);
    for (int64_t i = 0; ok && i < m.cols; i++)
        if (!isfinite(dst[i]))
            ok = sl_fail(err, SL_ERR_NUMERIC, "%s: tensor %s: element %lld is not a finite number",
                         model_tensor_file(l->m, t), t->name, (long long)i);
    for (int i = 0; i < 3; i++)
        free(raw[i]);
    return ok;
}

static bool load_one(loader *l, resident *r, sl_error *err) {
    if (!r->tensor)
        return true;
    r->weight.buffer = l->m->weights_buffer;
    if (r->vector)
        return load_vector(l, r, err);
    for (int32_t i = 0; i < r->tensor->parts; i++)
        if (!read_part(l, r->tensor, i, l->base + r->weight.offset[i], err))
            return false;
    return true;
}

static bool load_all(loader *l, sl_error *err) {
    sl_model *m = l->m;
    for (int i = 0; i < ROLE_LAYER_FIRST; i++)
        if (!load_one(l, &m->global[i], err))
            return false;
    for (int32_t layer = 0; layer < m->config.layers; layer++)
        for (int i = ROLE_LAYER_FIRST; i < ROLE_COUNT; i++)
            if (!load_one(l, &m->layers[layer].r[i], err))
                return false;
    return true;
}

bool sl_model_load(sl_model *m, sl_mem *mem, sl_ops *ops, int32_t max_rows, int32_t max_outs,
                   void (*progress)(void *, uint64_t, uint64_t), void *user, sl_error *err) {
    if (m->weights)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: the model was loaded before", sl_ckpt_path(m->ckpt));
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
