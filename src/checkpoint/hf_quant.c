/* Hugging Face's methods of quantisation whose weights lie in several tensors.
 *
 * fp8: NAME (F8_E4M3, a matrix or a stack of them) with NAME_scale_inv, one scale for each block of 128 x 128; the
 * weight is code * scale. What config.json lists in modules_to_not_convert is of another dtype, and that is what
 * counts.
 *
 * mxfp4 (gpt_oss): NAME_blocks (U8: .., rows, groups, 16 bytes of codes, the first weight in the low bits) with
 * NAME_scales (U8: .., rows, groups) are the logical tensor NAME; its gate and up rows alternate (sl_matrix_every). */
#include "checkpoint/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fp8 --------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 128 };

#define SCALE_SUFFIX "_scale_inv"

static bool is_block(const json_t *size) {
    return json_is_array(size) && json_array_size(size) == 2 && json_integer_value(json_array_get(size, 0)) == BLOCK &&
           json_integer_value(json_array_get(size, 1)) == BLOCK;
}

static bool check_block_size(const group *g, sl_error *err) {
    const json_t *size = json_object_get(g->quant, "weight_block_size");
    if (is_block(size)) {
        return true;
    }
    char *text = size ? json_dumps(size, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %s.weight_block_size is %.60s, expected [128,128]", g->config_path, g->field,
            text ? text : "missing");
    free(text);
    return false;
}

static int64_t blocks(int64_t n) {
    return n / BLOCK + (n % BLOCK != 0);
}

/* One scale for each block of the last two dimensions, the same leading dimensions. */
static bool fits_blocks(const ckpt_raw *w, const ckpt_raw *s) {
    for (int32_t i = 0; i < w->dims; i++) {
        if (s->dims != w->dims || s->shape[i] != (i < w->dims - 2 ? w->shape[i] : blocks(w->shape[i]))) {
            return false;
        }
    }
    return true;
}

static bool check_fp8(const group *g, size_t weight, size_t scale, sl_format_id *side, sl_error *err) {
    const ckpt_raw *w = &g->raws->v[weight];
    if (scale == CKPT_NONE) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": dtype F8_E4M3, but \"%s" SCALE_SUFFIX "\" is missing",
                       group_file(g, weight), w->name, w->name);
    }
    const ckpt_raw *s = &g->raws->v[scale];
    char found[GROUP_SHAPE], of[GROUP_SHAPE];
    if (!group_float_format(s->dtype->name, side)) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor \"%s\": dtype %s, expected F32, F16 or BF16 scales",
                       group_file(g, scale), s->name, s->dtype->name);
    }
    if (w->dims < 2 || w->dims > SL_MAX_DIMS || !fits_blocks(w, s)) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": shape %s, expected a scale for each block of 128 x 128 of \"%s\", shape %s",
                       group_file(g, scale), s->name, group_shape(s, found), w->name, group_shape(w, of));
    }
    return true;
}

static bool add_fp8(group *g, size_t weight, sl_error *err) {
    const ckpt_raw *w = &g->raws->v[weight];
    sl_tensor t = {.format = SL_FP8, .group = BLOCK, .dims = w->dims, .parts = 2};
    size_t parts[2] = {weight, CKPT_NONE};
    if (!group_find(g, w->name, strlen(w->name), SCALE_SUFFIX, &parts[1], err) ||
        !check_fp8(g, weight, parts[1], &t.side, err)) {
        return false;
    }
    memcpy(t.shape, w->shape, sizeof t.shape);
    return group_add(g, &t, parts, NULL, err);
}

bool fp8_group(group *g, sl_error *err) {
    bool checked = false;
    for (size_t i = 0; i < g->raws->count; i++) {
        if (strcmp(g->raws->v[i].dtype->name, "F8_E4M3") != 0) {
            continue;
        }
        if ((!checked && !check_block_size(g, err)) || !add_fp8(g, i, err)) {
            return false;
        }
        checked = true;
    }
    return true;
}

/* ---- mxfp4 ------------------------------------------------------------------------------------------------------- */

#define BLOCKS_SUFFIX "_blocks"
#define SCALES_SUFFIX "_scales"

enum { GROUP = 32, GROUP_BYTES = GROUP / 2 };

static bool check_mxfp4(const group *g, size_t codes, size_t scales, sl_error *err) {
    const ckpt_raw *b = &g->raws->v[codes];
    if (scales == CKPT_NONE) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" has no " SCALES_SUFFIX " beside it", group_file(g, codes),
                       b->name);
    }
    const ckpt_raw *s = &g->raws->v[scales];
    char found[GROUP_SHAPE], of[GROUP_SHAPE];
    if (strcmp(b->dtype->name, "U8") != 0 || strcmp(s->dtype->name, "U8") != 0) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": dtype %s, its scales %s, expected both U8",
                       group_file(g, codes), b->name, b->dtype->name, s->dtype->name);
    }
    if (b->dims < 3 || b->dims > SL_MAX_DIMS || b->shape[b->dims - 1] != GROUP_BYTES) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": shape %s, expected [.., rows, groups, 16]",
                       group_file(g, codes), b->name, group_shape(b, found));
    }
    if (s->dims != b->dims - 1 || memcmp(s->shape, b->shape, sizeof(int64_t) * (size_t)s->dims) != 0) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": shape %s, expected that of \"%s\", %s, without the last",
                       group_file(g, scales), s->name, group_shape(s, found), b->name, group_shape(b, of));
    }
    return true;
}

static bool add_mxfp4(group *g, size_t codes, sl_error *err) {
    const ckpt_raw *b = &g->raws->v[codes];
    size_t n = strlen(b->name) - strlen(BLOCKS_SUFFIX);
    size_t parts[2] = {codes, CKPT_NONE};
    if (!group_find(g, b->name, n, SCALES_SUFFIX, &parts[1], err) || !check_mxfp4(g, codes, parts[1], err)) {
        return false;
    }
    sl_tensor t = {.format = SL_MXFP4_SPLIT, .group = GROUP, .dims = b->dims - 1, .parts = 2};
    memcpy(t.shape, b->shape, sizeof t.shape);
    t.shape[t.dims - 1] = b->shape[b->dims - 2] * GROUP; /* half as many bytes are in the file */
    t.shape[b->dims - 1] = 0;
    char *name = sl_strndup(b->name, n);
    return name ? group_add(g, &t, parts, name, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", g->config_path);
}

bool mxfp4_group(group *g, sl_error *err) {
    for (size_t i = 0; i < g->raws->count; i++) {
        if (ckpt_has_suffix(g->raws->v[i].name, BLOCKS_SUFFIX) && !add_mxfp4(g, i, err)) {
            return false;
        }
    }
    return true;
}
