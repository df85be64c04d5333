/* group: what the methods of quantisation share that turn several safetensors tensors into a logical one.
 *
 * May include: internal.h. Included by group.c, mlx.c, hf_quant.c. */
#ifndef SL_CHECKPOINT_GROUP_H
#define SL_CHECKPOINT_GROUP_H

#include "checkpoint/internal.h"

typedef struct group {
    sl_ckpt *c;
    ckpt_raws *raws;
    const char *config_path;
    const char *field;   /* of config.json: "quantization" or "quantization_config" */
    const json_t *quant; /* what it holds, an object; NULL: nothing */
    bool *used;          /* per raw tensor: it is a part of a logical tensor */
} group;

/* The methods: each takes what is its own. Nothing is guessed: what config.json says must agree with all shapes. */
bool mlx_group(group *g, sl_error *err);
bool fp8_group(group *g, sl_error *err);
bool mxfp4_group(group *g, sl_error *err);

/* A dtype of scales: F32, F16 or BF16. */
bool group_float_format(const char *dtype, sl_format_id *out);
/* Number of the raw tensor named by the first n bytes of module and a suffix, or CKPT_NONE. False: out of memory. */
bool group_find(const group *g, const char *module, size_t n, const char *suffix, size_t *out, sl_error *err);
/* Path of a raw tensor's file. */
const char *group_file(const group *g, size_t raw);
enum { GROUP_SHAPE = 120 };
/* "[3, 8]" */
const char *group_shape(const ckpt_raw *r, char out[GROUP_SHAPE]);
/* Adds t, whose parts are these raw tensors: their extents and, where name (allocated, taken) is NULL, the first one's
 * name. */
bool group_add(group *g, sl_tensor *t, const size_t *raw, char *name, sl_error *err);

#endif
