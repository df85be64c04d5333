/* Kernels for the formats a program has: libraries compiled at first use, pipelines kept. */
#include "ops/ops_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is instantiated ---------------------------------------------------------------------------------------- */

kernel_format gpu_format_of(const sl_matrix *m, const void *const part[3]) {
    uint64_t address[3];
    for (int i = 0; i < 3; i++)
        address[i] = (uint64_t)(uintptr_t)part[i];
    return kernel_format_of(m, address);
}

static bool add_variant(sl_ops_gpu *o, const kernel_format *f, sl_error *err) {
    for (size_t i = 0; i < o->format_count; i++)
        if (o->formats[i].align == f->align && strcmp(o->formats[i].name, f->name) == 0)
            return true;
    void *list = o->formats;
    if (!sl_grow(&list, &o->format_capacity, o->format_count + 1, sizeof *o->formats))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    o->formats = list;
    o->formats[o->format_count++] = *f;
    gpu_libraries_drop(o);
    return true;
}

bool gpu_format_add(sl_ops_gpu *o, const sl_matrix *m, const void *const part[3], sl_error *err) {
    if (!kernel_format_has(m->format))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "kernels for format %s are not built in",
                       sl_format_get(m->format)->name);
    if (part) {
        kernel_format f = gpu_format_of(m, part);
        return add_variant(o, &f, err);
    }
    for (uint64_t align = 16; align; align /= 2) {
        uint64_t address[3] = {align, align, align};
        kernel_format f = kernel_format_of(m, address);
        if (!add_variant(o, &f, err))
            return false;
    }
    return true;
}

enum { DECLARED_MOST = 48 << 10 /* bytes: no more on an NVIDIA GPU */ };

/* ---- libraries --------------------------------------------------------------------------------------------------- */

static const char *const file_names[GPU_FILES] = {
    [GPU_MATVEC] = "matvec.metal",
    [GPU_MATMUL] = "matmul.metal",
    [GPU_LARGE] = "matmul_large.metal",
    [GPU_ROWS] = "rows.metal",
    [GPU_PREPARE] = "attention_prepare.metal",
    [GPU_DECODE] = "attention_decode.metal",
    [GPU_DECODE_FEW] = "attention_few.metal",
    [GPU_PREFILL] = "attention_prefill.metal",
    [GPU_PREFILL_LARGE] = "attention_large.metal",
    [GPU_WIDE] = "attention_wide.metal",
    [GPU_HEADS] = "heads.metal",
    [GPU_MOE] = "moe.metal",
    [GPU_EXPERT] = "expert.metal",
    [GPU_NARROW] = "narrow.metal",
    [GPU_SPLIT] = "split.metal",
    [GPU_FEW] = "few.metal",
    [GPU_BATCH] = "batch.metal",
    [GPU_DELTA] = "delta.metal",
    [GPU_DELTA_CHUNK] = "delta_chunk.metal",
};

/* What the model has, and no more, is compiled: its formats, its KV. */
static bool put_source(const sl_ops_gpu *o, gpu_file file, sl_buf *out, sl_error *err) {
    size_t size;
    const sl_kv_layout *kv = &o->known.kv;
    char *source = kernel_source(file_names[file], o->formats, o->format_count, &size, err);
    if (!source)
        return false;
    sl_buf_puts(out, "#define SL_FMA_FORMATS(X)\n"); /* measured beside the others, not used */
    if (o->few)
        sl_buf_puts(out, "#define SL_TILE_FRAGMENTS\n");
    if (file == GPU_PREFILL_LARGE)
        sl_buf_printf(out, "#define SL_ATTENTION_ROOM %u\n", o->room < DECLARED_MOST ? o->room : DECLARED_MOST);
    if (file == GPU_DECODE_FEW)
        sl_buf_printf(out, "#define SL_FEW_SIMDS %u\n", kernel_few_attention_of(kv->head_dim, o->room).simds);
    if (file == GPU_FEW)
        sl_buf_printf(out, "#define SL_FEW_PANEL %d\n", o->room >= 48 << 10 ? 128 : 64); /* 41 KiB, or 31 */
    if (file == GPU_BATCH)
        sl_buf_printf(out, "#define SL_BATCH_LOTS %d\n", o->room >= 40 << 10 ? 4 : 3); /* 36 KiB, or 27 */
    if (kv->head_dim)
        sl_buf_printf(out, "#define SL_ATTENTION_KV %s\n#define SL_ATTENTION_DIM %d\n", gpu_kv_name(kv->format),
                      kv->head_dim);
    if (o->value_dim)
        sl_buf_printf(out, "#define SL_ATTENTION_VALUES %d\n", o->value_dim);
    if (o->known.state.key_dim)
        sl_buf_printf(out, "#define SL_DELTA_KEY %d\n", o->known.state.key_dim);
    sl_buf_append(out, source, size);
    free(source);
    return !out->failed || sl_fail(err, SL_ERR_MEMORY, "out of memory for the source of %s", file_names[file]);
}

sl_gpu_library *gpu_library(sl_ops_gpu *o, gpu_file file, sl_error *err) {
    if (o->library[file])
        return o->library[file];
    sl_gpu_compile_options options = SL_GPU_COMPILE_OPTIONS_INIT;
    options.name = file_names[file];
    sl_buf source = {0};
    if (put_source(o, file, &source, err))
        o->library[file] = sl_gpu_library_new(o->gpu, source.data, source.size, &options, err);
    sl_buf_free(&source);
    return o->library[file];
}

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

/* The constants each file has. */
static const uint32_t file_constants[GPU_FILES] = {
    [GPU_MATVEC] = 1u << SL_FC_ADD | 1u << SL_FC_BIAS | 1u << SL_FC_OUTS,
    [GPU_MATMUL] = 1u << SL_FC_ADD | 1u << SL_FC_BIAS | 1u << SL_FC_OUTS | 1u << SL_FC_LEAVES,
    [GPU_LARGE] = 1u << SL_FC_ADD | 1u << SL_FC_BIAS | 1u << SL_FC_OUTS | 1u << SL_FC_LEAVES | 1u << SL_FC_CLAMP,
    [GPU_ROWS] = 1u << SL_FC_OUTS | 1u << SL_FC_CLAMP | 1u << SL_FC_HALF,
    [GPU_PREPARE] =
        1u << SL_FC_OUTS | 1u << SL_FC_NORM_Q | 1u << SL_FC_NORM_K | 1u << SL_FC_ROPE | 1u << SL_FC_INTERLEAVED,
    [GPU_DECODE] = 1u << SL_FC_OUTS | 1u << SL_FC_GATE | 1u << SL_FC_SINKS,
    [GPU_DECODE_FEW] = 1u << SL_FC_OUTS | 1u << SL_FC_GATE | 1u << SL_FC_SINKS | 1u << SL_FC_PREPARE |
                       1u << SL_FC_NORM_Q | 1u << SL_FC_NORM_K | 1u << SL_FC_ROPE | 1u << SL_FC_INTERLEAVED,
    [GPU_PREFILL] = 1u << SL_FC_OUTS | 1u << SL_FC_GATE | 1u << SL_FC_SINKS,
    [GPU_PREFILL_LARGE] = 1u << SL_FC_OUTS | 1u << SL_FC_GATE | 1u << SL_FC_SINKS,
    [GPU_WIDE] = 1u << SL_FC_OUTS | 1u << SL_FC_GATE | 1u << SL_FC_SINKS,
    [GPU_HEADS] = 1u << SL_FC_OUTS,
    [GPU_MOE] = 1u << SL_FC_OUTS | 1u << SL_FC_BIAS | 1u << SL_FC_SIGMOID | 1u << SL_FC_NORMALIZE |
                1u << SL_FC_SELECT_BIAS | 1u << SL_FC_SHARED | 1u << SL_FC_SHARED_GATE | 1u << SL_FC_BY_LOGIT |
                1u << SL_FC_GROUPS,
    [GPU_EXPERT] = 1u << SL_FC_OUTS | 1u << SL_FC_LEAVES | 1u << SL_FC_BIAS | 1u << SL_FC_CLAMP,
    [GPU_NARROW] = 1u << SL_FC_OUTS | 1u << SL_FC_BIAS,
    [GPU_SPLIT] = 1u << SL_FC_OUTS,
    [GPU_FEW] = 1u << SL_FC_OUTS | 1u << SL_FC_ADD | 1u << SL_FC_LEAVES | 1u << SL_FC_BIAS | 1u << SL_FC_CLAMP,
    [GPU_BATCH] = 1u << SL_FC_OUTS | 1u << SL_FC_ADD | 1u << SL_FC_LEAVES | 1u << SL_FC_BIAS | 1u << SL_FC_CLAMP,
    [GPU_DELTA] = 1u << SL_FC_OUTS | 1u << SL_FC_BIAS | 1u << SL_FC_IN_PLACE,
    [GPU_DELTA_CHUNK] = 1u << SL_FC_OUTS,
};

uint32_t gpu_few_groups(int64_t rows, int64_t n) {
    int64_t tiles = rows / SL_FEW_ROWS, most = n < GPU_FEW_GROUPS ? GPU_FEW_GROUPS / n : 1;
    int64_t each = (tiles + most - 1) / most; /* the same number of tiles for all, but for the last */
    return (uint32_t)((tiles + each - 1) / each);
}

sl_gpu_pipeline *gpu_make_pipeline(sl_ops_gpu *o, const gpu_pipe *pipe, sl_error *err) {
    sl_gpu_constant list[32];
    size_t n = 0;
    for (int i = 0; i < 32; i++)
        if (file_constants[pipe->file] >> i & 1)
            list[n++] = (sl_gpu_constant){.id = i, .type = SL_GPU_BOOL, .value.b = pipe->constants >> i & 1};
    sl_gpu_library *l = gpu_library(o, pipe->file, err);
    return l ? sl_gpu_pipeline_new(l, pipe->entry, list, n, err) : NULL;
}

sl_gpu_pipeline *gpu_pipeline(sl_ops_gpu *o, gpu_file file, const char *entry, uint32_t constants, sl_error *err) {
    for (size_t i = 0; i < o->pipe_count; i++) {
        const gpu_pipe *p = &o->pipes[i];
        if (p->file == file && p->constants == constants && strcmp(p->entry, entry) == 0)
            return p->pipeline;
    }
    gpu_pipe p = {.file = file, .constants = constants};
    snprintf(p.entry, sizeof p.entry, "%s", entry);
    if (o->wanted)
        return gpu_want(o, &p);
    void *list = o->pipes;
    if (!sl_grow(&list, &o->pipe_capacity, o->pipe_count + 1, sizeof *o->pipes))
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    o->pipes = list;
    p.pipeline = gpu_make_pipeline(o, &p, err);
    if (p.pipeline)
        o->pipes[o->pipe_count++] = p;
    return p.pipeline;
}

void gpu_libraries_drop(sl_ops_gpu *o) {
    gpu_kept_drop(o);
    for (size_t i = 0; i < o->pipe_count; i++)
        sl_gpu_pipeline_free(o->pipes[i].pipeline);
    o->pipe_count = 0;
    o->warm = 0;
    for (int i = 0; i < GPU_FILES; i++) {
        sl_gpu_library_free(o->library[i]);
        o->library[i] = NULL;
    }
}
