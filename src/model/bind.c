/* Binds tensors to their roles: each is looked up by the tables of names and its shape compared with what the
 * configuration gives. */
#include "model/bind.h"

#include <stdio.h>

void model_mark_used(sl_model *m, const sl_tensor *t) {
    size_t i = (size_t)(t - sl_ckpt_tensor(m->ckpt, 0));
    if (i < sl_ckpt_tensor_count(m->ckpt))
        m->used[i] = 1;
}

const char *model_tensor_file(const sl_model *m, const sl_tensor *t) {
    return sl_ckpt_file(m->ckpt, t->part[0].file)->path;
}

bool model_is_gguf(const sl_model *m) {
    return sl_ckpt_get_kind(m->ckpt) == SL_CKPT_GGUF;
}

const sl_tensor *bind_find(const sl_model *m, role r, int32_t layer) {
    char name[NAME_MAX_BYTES];
    role_name(&m->naming, r, layer, name);
    return *name ? sl_ckpt_find(m->ckpt, name) : NULL;
}

bool bind_shape_error(const sl_model *m, const sl_tensor *t, int64_t rows, int64_t cols, sl_error *err) {
    char found[96] = "";
    size_t used = 0;
    for (int32_t i = 0; i < t->dims && used < sizeof found; i++)
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%lld", i ? "x" : "", (long long)t->shape[i]);
    if (rows)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, the configuration gives %lldx%lld",
                       model_tensor_file(m, t), t->name, found, (long long)rows, (long long)cols);
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, the configuration gives %lld",
                   model_tensor_file(m, t), t->name, found, (long long)cols);
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* What no writer quantises: norms, biases, and in GGUF the router. Such a format is a damaged type. */
static bool check_float(const sl_model *m, const sl_tensor *t, sl_error *err) {
    const sl_format *f = sl_format_get(t->format);
    return (f->block_weights == 1 && f->parts == 1) ||
           sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is %s, a float format expected (a damaged type?)",
                   model_tensor_file(m, t), t->name, f->name);
}

static bool set_floats(const sl_model *m, resident *r, int64_t rows, int64_t cols, sl_error *err) {
    if (!check_float(m, r->tensor, err))
        return false;
    r->vector = true;
    r->weight.matrix = (sl_matrix){.format = SL_F32, .rows = rows, .cols = cols};
    return sl_matrix_layout(&r->weight.matrix, err) || sl_fail_prefix(err, "tensor %s", r->tensor->name);
}

static bool is_vector(const sl_tensor *t, int64_t n) {
    return (t->dims == 1 && t->shape[0] == n) || (t->dims == 2 && t->shape[0] == 1 && t->shape[1] == n);
}

/* The norms that are trained around zero: all but that inside a delta layer. */
static bool is_zero_centred(role r) {
    return r == ROLE_ATTN_NORM || r == ROLE_FFN_NORM || r == ROLE_FINAL_NORM || r == ROLE_Q_NORM || r == ROLE_K_NORM;
}

static bool bind_vector(sl_model *m, resident *r, role what, int64_t n, sl_error *err) {
    if (!is_vector(r->tensor, n))
        return bind_shape_error(m, r->tensor, 0, n, err);
    if (m->one_plus && is_zero_centred(what))
        r->fold = FOLD_ONE_PLUS;
    if (what == ROLE_DELTA_DECAY && !model_is_gguf(m))
        r->fold = FOLD_MINUS_EXP;
    return set_floats(m, r, 1, n, err);
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static bool bind_matrix(sl_model *m, resident *r, int64_t rows, int64_t cols, sl_error *err) {
    const sl_tensor *t = r->tensor;
    bool row = rows == 1 && t->dims == 1 && t->shape[0] == cols;
    if (!row && (t->dims != 2 || t->shape[0] != rows || t->shape[1] != cols))
        return bind_shape_error(m, t, rows, cols, err);
    return sl_tensor_matrix(t, &r->weight.matrix, err);
}

/* Looks a role up; an absent tensor is an error only where it is required. */
static bool find(sl_model *m, resident *r, role what, bool optional, int32_t layer, sl_error *err) {
    char name[NAME_MAX_BYTES];
    role_name(&m->naming, what, layer, name);
    r->tensor = *name ? sl_ckpt_find(m->ckpt, name) : NULL;
    if (!r->tensor)
        return optional || sl_ckpt_require(m->ckpt, name, err) != NULL;
    model_mark_used(m, r->tensor);
    return true;
}

static bool bind(sl_model *m, resident *r, const expected *e, int32_t layer, sl_error *err) {
    if (!find(m, r, e->role, e->optional, layer, err))
        return false;
    if (!r->tensor)
        return true;
    bool plain = e->role == ROLE_ROUTER || e->role == ROLE_SHARED_SIGMOID;
    if (plain && model_is_gguf(m) && !check_float(m, r->tensor, err))
        return false;
    return e->rows ? bind_matrix(m, r, e->rows, e->cols, err) : bind_vector(m, r, e->role, e->cols, err);
}

bool bind_all(sl_model *m, resident *slots, const expected *list, size_t n, int32_t layer, sl_error *err) {
    for (size_t i = 0; i < n; i++)
        if (!bind(m, &slots[list[i].role], &list[i], layer, err))
            return false;
    return true;
}

/* Whether the tensor has these dimensions, whatever ones of size 1 lie between or behind them. */
static bool has_shape(const sl_tensor *t, int64_t rows, int64_t cols) {
    int64_t want[2] = {rows, cols};
    int at = 0;
    for (int32_t i = 0; i < t->dims; i++) {
        if (at < 2 && t->shape[i] == want[at])
            at++;
        else if (t->shape[i] != 1)
            return false;
    }
    return at == 2;
}

bool bind_floats(sl_model *m, resident *slots, role to, role from, int64_t rows, int64_t cols, int32_t layer,
                 sl_error *err) {
    resident *r = &slots[to];
    if (!find(m, r, from, false, layer, err))
        return false;
    return has_shape(r->tensor, rows, cols) ? set_floats(m, r, rows, cols, err)
                                            : bind_shape_error(m, r->tensor, rows, cols, err);
}

bool bind_alternate(sl_model *m, resident *slots, role to, role from, int32_t first, int64_t rows, int64_t cols,
                    int32_t layer, sl_error *err) {
    resident *r = &slots[to];
    if (!find(m, r, from, false, layer, err))
        return false;
    r->every = 2;
    r->first = first;
    return has_shape(r->tensor, rows, 2 * cols) ? set_floats(m, r, rows, cols, err)
                                                : bind_shape_error(m, r->tensor, rows, 2 * cols, err);
}

bool bind_stacked(sl_model *m, resident *slots, role what, int64_t count, int64_t rows, int64_t cols, int32_t layer,
                  sl_error *err) {
    resident *r = &slots[what];
    if (!find(m, r, what, false, layer, err))
        return false;
    sl_tensor flat = *r->tensor;
    if (flat.dims != 3 || flat.shape[0] != count || flat.shape[1] != rows || flat.shape[2] != cols)
        return bind_shape_error(m, r->tensor, count * rows, cols, err);
    flat.dims = 2;
    flat.shape[0] = count * rows;
    flat.shape[1] = cols;
    return sl_tensor_matrix(&flat, &r->weight.matrix, err);
}

/* ---- rows of a fused matrix -------------------------------------------------------------------------------------- */

/* Scales that serve a block of rows go with whole blocks only. */
static bool check_row_blocks(const sl_model *m, const resident *r, sl_error *err) {
    const sl_matrix *x = &r->weight.matrix;
    for (int i = 0; x->format == SL_FP8 && i < ROW_SEGMENTS; i++)
        if (r->split.segment[i] % x->group)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s: tensor %s: runs of %lld rows, a multiple of the scales' blocks of %d rows expected",
                           model_tensor_file(m, r->tensor), r->tensor->name, (long long)r->split.segment[i], x->group);
    return true;
}

bool bind_split(sl_model *m, resident *slots, role to, role from, const row_split *split, int64_t cols, int32_t layer,
                sl_error *err) {
    resident *r = &slots[to];
    int64_t all = 0, taken = 0;
    for (int i = 0; i < ROW_SEGMENTS; i++) {
        all += split->segment[i];
        taken += i >= split->first && i < split->first + split->count ? split->segment[i] : 0;
    }
    r->split = *split;
    if (!find(m, r, from, false, layer, err) || !bind_matrix(m, r, all * split->groups, cols, err) ||
        !check_row_blocks(m, r, err))
        return false;
    r->weight.matrix.rows = taken * split->groups;
    return sl_matrix_layout(&r->weight.matrix, err) || sl_fail_prefix(err, "tensor %s", r->tensor->name);
}
