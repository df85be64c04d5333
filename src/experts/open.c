/* The store as the engine opens it: over a checkpoint's files. */
#include "experts/reader.h"
#include "experts/store.h"

#include <stdlib.h>

/* The checkpoint's files as an array, which the caller frees; NULL: no memory. */
static const sl_file **list_files(const sl_ckpt *c, bool direct, experts_files *out) {
    int n = sl_ckpt_file_count(c);
    const sl_file **file = malloc(sizeof *file * (size_t)(n > 0 ? n : 1));
    for (int i = 0; file && i < n; i++)
        file[i] = sl_ckpt_file(c, i);
    *out = (experts_files){file, n, direct};
    return file;
}

uint64_t sl_experts_slot_bytes(const sl_expert_layer *layer, const sl_ckpt *c, bool direct) {
    experts_files files;
    const sl_file **file = list_files(c, direct, &files);
    uint64_t bytes = 0;
    if (!file || !experts_layer_slot_bytes(&files, layer, &bytes, NULL))
        bytes = 0;
    free(file);
    return bytes;
}

uint64_t sl_experts_least_bytes(const sl_expert_layer *layers, int32_t n, const sl_ckpt *c, int32_t top_k, bool direct,
                                uint64_t slab_bytes) {
    uint64_t most = 0;
    for (int32_t i = 0; i < n; i++) {
        uint64_t bytes = sl_experts_slot_bytes(&layers[i], c, direct);
        if (bytes == 0 || bytes > slab_bytes)
            return 0;
        most = bytes > most ? bytes : most;
    }
    return (uint64_t)experts_least_slabs(most, slab_bytes, top_k) * slab_bytes;
}

int32_t sl_experts_reads_of(const sl_expert_layer *layer, const sl_ckpt *c, int32_t expert, bool direct,
                            sl_trace_read out[SL_EXPERT_PARTS]) {
    experts_files files;
    const sl_file **file = list_files(c, direct, &files);
    experts_layout l = {.areas = 0};
    if (!file || !experts_layout_make(&files, layer->extent + (size_t)expert * SL_EXPERT_PARTS, &l, NULL))
        l.areas = 0;
    for (int32_t i = 0; i < l.areas; i++)
        out[i] = (sl_trace_read){.file = l.area[i].file, .offset = l.area[i].offset, .bytes = l.area[i].bytes};
    free(file);
    return l.areas;
}

sl_experts *sl_experts_open(const sl_experts_options *o, sl_error *err) {
    experts_files files;
    const sl_file **file = list_files(o->ckpt, o->reader->direct, &files);
    if (!file) {
        o->reader->close(o->reader);
        return sl_fail_null(err, SL_ERR_MEMORY, "experts: out of memory");
    }
    sl_experts *e = experts_open(o, &files, err);
    free(file);
    return e;
}
