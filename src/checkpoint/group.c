/* What safetensors files hold becomes logical tensors: quantised weights lie in several tensors, and config.json says
 * by which method. MLX's are grouped in mlx.c, those of Hugging Face's fine-grained FP8 and MXFP4 in hf_quant.c; what
 * no method took is a tensor as it is. */
#include "checkpoint/group.h"

#include <stdlib.h>
#include <string.h>

/* ---- for the methods --------------------------------------------------------------------------------------------- */

bool group_float_format(const char *dtype, sl_format_id *out) {
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        const char *name = sl_format_get((sl_format_id)i)->safetensors;
        if (name && strcmp(name, dtype) == 0) {
            *out = (sl_format_id)i;
            return true;
        }
    }
    return false;
}

bool group_find(const group *g, const char *module, size_t n, const char *suffix, size_t *out, sl_error *err) {
    char *name = sl_asprintf("%.*s%s", (int)n, module, suffix);
    if (!name) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", g->config_path);
    }
    *out = ckpt_raws_find(g->raws, name);
    free(name);
    return true;
}

const char *group_file(const group *g, size_t raw) {
    return g->c->files[g->raws->v[raw].at.file]->path;
}

const char *group_shape(const ckpt_raw *r, char out[GROUP_SHAPE]) {
    sl_buf b = {0};
    for (int32_t i = 0; i < r->dims; i++) {
        sl_buf_printf(&b, "%s%lld", i ? ", " : "", (long long)r->shape[i]);
    }
    snprintf(out, GROUP_SHAPE, "[%.*s]", GROUP_SHAPE - 3, b.size ? (const char *)b.data : "");
    sl_buf_free(&b);
    return out;
}

static char *take_name(ckpt_raw *r) {
    char *name = r->name;
    r->name = NULL;
    return name;
}

bool group_add(group *g, sl_tensor *t, const size_t *raw, char *name, sl_error *err) {
    for (int32_t i = 0; i < t->parts; i++) {
        t->part[i] = g->raws->v[raw[i]].at;
        g->used[raw[i]] = true;
    }
    sl_matrix m = {.format = t->format, .group = t->group, .side = t->side, .rows = 1, .cols = t->shape[t->dims - 1]};
    if (m.cols > 0 && !sl_matrix_layout(&m, err)) {
        sl_fail_prefix(err, "%s: tensor \"%s\"", group_file(g, raw[0]), name ? name : g->raws->v[raw[0]].name);
        free(name);
        return false;
    }
    t->name = name ? name : take_name(&g->raws->v[raw[0]]);
    return ckpt_add_tensor(g->c, t, err);
}

/* ---- tensors as they are ----------------------------------------------------------------------------------------- */

static bool add_plain(group *g, size_t i, sl_error *err) {
    ckpt_raw *r = &g->raws->v[i];
    sl_tensor t = {.dims = r->dims, .parts = 1, .part = {r->at}};
    if (r->dims > SL_MAX_DIMS || !group_float_format(r->dtype->name, &t.format)) {
        ckpt_other other = {.dtype = r->dtype->name, .dims = r->dims, .file = r->at.file};
        other.name = take_name(r);
        return ckpt_add_other(g->c, other, err);
    }
    memcpy(t.shape, r->shape, sizeof t.shape);
    t.name = take_name(r);
    return ckpt_add_tensor(g->c, &t, err);
}

static bool add_rest(group *g, sl_error *err) {
    for (size_t i = 0; i < g->raws->count; i++) {
        if (!g->used[i] && !add_plain(g, i, err)) {
            return false;
        }
    }
    return true;
}

/* ---- which method ------------------------------------------------------------------------------------------------ */

/* A field of config.json, or of its text_config; null is as absent. */
static const json_t *config_field(const json_t *config, const char *field) {
    const json_t *v = json_object_get(config, field);
    if (!v || json_is_null(v)) {
        v = json_object_get(json_object_get(config, "text_config"), field);
    }
    return json_is_null(v) ? NULL : v;
}

const char *ckpt_quant_method(const json_t *config) {
    return json_string_value(json_object_get(config_field(config, "quantization_config"), "quant_method"));
}

/* MLX writes its "quantization" a second time as "quantization_config", which Hugging Face's methods have with the
 * field quant_method. */
static bool group_by_method(group *g, const json_t *config, sl_error *err) {
    static const char *const fields[] = {"quantization", "quantization_config"};
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        g->field = fields[i];
        g->quant = config_field(config, fields[i]);
        if (g->quant && !json_is_object(g->quant)) {
            return sl_fail(err, SL_ERR_FORMAT, "%s: %s is not an object", g->config_path, g->field);
        }
        if (g->quant && (i == 0 || !json_object_get(g->quant, "quant_method"))) {
            return mlx_group(g, err);
        }
    }
    const char *method = ckpt_quant_method(config);
    if (method && strcmp(method, "fp8") == 0) {
        return fp8_group(g, err);
    }
    if (method && strcmp(method, "mxfp4") == 0) {
        return mxfp4_group(g, err);
    }
    g->quant = NULL;
    return mlx_group(g, err);
}

bool ckpt_group_tensors(sl_ckpt *c, ckpt_raws *r, const json_t *config, const char *config_path, sl_error *err) {
    group g = {.c = c, .raws = r, .config_path = config_path, .used = calloc(r->count + 1, sizeof *g.used)};
    if (!g.used) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tensors", config_path, r->count);
    }
    bool ok = group_by_method(&g, config, err) && add_rest(&g, err);
    free(g.used);
    return ok;
}
