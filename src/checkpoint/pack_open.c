/* Opens a pack: pack.json, the files it names, and what the source kept beside its weights. */
#include "checkpoint/pack_doc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool has_file(const char *dir, const char *name) {
    char *path = sl_path_join(dir, name);
    bool there = path && sl_path_exists(path);
    free(path);
    return there;
}

/* A model directory of its own that has such a file by chance stays one. */
bool pack_is_dir(const char *dir) {
    return (has_file(dir, PACK_JSON) || has_file(dir, PACK_JOURNAL)) && !has_file(dir, "model.safetensors") &&
           !has_file(dir, "model.safetensors.index.json");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static bool check_size(const char *path, uint64_t found, uint64_t expected, sl_error *err) {
    return found == expected || sl_fail(err, SL_ERR_FORMAT, "%s: %" PRIu64 " bytes, expected %" PRIu64 " by " PACK_JSON,
                                        path, found, expected);
}

static bool fail_missing(const char *path, sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%s: file is missing; " PACK_JSON " names it", path);
}

/* Makes a file of units the checkpoint's next one. */
static bool add_units(sl_ckpt *c, const pack_units *u, sl_error *err) {
    char *path = sl_path_join(c->path, u->name);
    bool ok = path || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    if (ok && !sl_path_exists(path)) {
        ok = fail_missing(path, err);
    }
    const sl_file *f = ok ? ckpt_add_file(c, path, err) : NULL;
    ok = f && check_size(path, f->size, u->bytes, err);
    free(path);
    return ok;
}

static bool check_side(const sl_ckpt *c, const pack_side *s, sl_error *err) {
    char *path = sl_path_join(c->path, s->name);
    bool ok = path || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    if (ok && !sl_path_exists(path)) {
        ok = fail_missing(path, err);
    }
    sl_file *f = ok ? sl_file_open(path, err) : NULL;
    ok = f && check_size(path, f->size, s->bytes, err);
    sl_file_close(f);
    free(path);
    return ok;
}

static bool open_files(sl_ckpt *c, sl_error *err) {
    const pack *p = c->pack;
    for (size_t i = 0; i < p->side_count; i++) {
        if (!check_side(c, &p->sides[i], err)) {
            return false;
        }
    }
    if (!add_units(c, &p->resident, err)) {
        return false;
    }
    for (size_t i = 0; i < p->layer_count; i++) {
        if (!add_units(c, &p->layers[i].file, err)) {
            return false;
        }
    }
    return true;
}

/* ---- what the source kept beside its weights --------------------------------------------------------------------- */

static bool open_metadata(sl_ckpt *c, sl_error *err) {
    char *path = sl_path_join(c->path, PACK_METADATA);
    sl_file *f = path ? sl_file_open(path, err) : NULL;
    c->gguf = f ? gguf_read(f, err) : NULL;
    bool ok = c->gguf && (c->gguf->tensor_count == 0 ||
                          sl_fail(err, SL_ERR_FORMAT, "%s: %zu tensors, expected none", path, c->gguf->tensor_count));
    sl_file_close(f);
    free(path);
    return ok;
}

/* ---- tensors and experts ------------------------------------------------------------------------------------------
 */

static bool add_tensors(sl_ckpt *c, sl_error *err) {
    const pack *p = c->pack;
    for (size_t i = 0; i < p->resident.count; i++) {
        sl_tensor t = p->tensors[i];
        t.name = sl_strdup(t.name);
        if (!t.name) {
            return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
        }
        if (!ckpt_add_tensor(c, &t, err)) {
            return false;
        }
    }
    return true;
}

/* Extents of every expert from the blobs and the parts' places in them. */
static bool place_experts(sl_ckpt *c, pack_layer *l, int32_t file, sl_error *err) {
    size_t n = l->file.count;
    l->extent = calloc(n * SL_PACK_PARTS, sizeof *l->extent);
    l->sum = calloc(n, sizeof *l->sum);
    if (!l->extent || !l->sum) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu experts", c->path, n);
    }
    for (size_t x = 0; x < n; x++) {
        l->sum[x] = l->file.v[x].sum;
        for (int proj = 0; proj < 3; proj++) {
            const sl_tensor *t = &l->packed.proj[proj];
            for (int32_t i = 0; i < t->parts; i++) {
                l->extent[x * SL_PACK_PARTS + (size_t)proj * 3 + (size_t)i] = (sl_extent){
                    .file = file, .offset = l->file.v[x].offset + t->part[i].offset, .bytes = t->part[i].bytes};
                c->bytes += t->part[i].bytes;
            }
        }
    }
    for (int proj = 0; proj < 3; proj++) {
        for (int32_t i = 0; i < l->packed.proj[proj].parts; i++) {
            l->packed.proj[proj].part[i] = l->extent[proj * 3 + i];
        }
    }
    l->packed.extent = l->extent;
    l->packed.sum = l->sum;
    return true;
}

bool pack_open(sl_ckpt *c, sl_error *err) {
    if (!has_file(c->path, PACK_JSON)) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: an unfinished pack (no " PACK_JSON "): 'sluice pack' goes on with it",
                       c->path);
    }
    c->pack = pack_doc_load(c->path, err);
    if (!c->pack) {
        return false;
    }
    c->kind = c->pack->kind;
    if (!open_files(c, err) || !(c->kind == SL_CKPT_GGUF ? open_metadata(c, err) : hf_load_side_files(c, err)) ||
        !add_tensors(c, err)) {
        return false;
    }
    for (size_t i = 0; i < c->pack->layer_count; i++) {
        if (!place_experts(c, &c->pack->layers[i], (int32_t)i + 1, err)) {
            return false;
        }
    }
    return true;
}

/* ---- what is there ------------------------------------------------------------------------------------------------
 */

bool sl_ckpt_is_pack(const sl_ckpt *c) {
    return c->pack != NULL;
}

const sl_packed_experts *sl_ckpt_packed(const sl_ckpt *c, int32_t layer) {
    for (size_t i = 0; c->pack && i < c->pack->layer_count; i++) {
        if (c->pack->layers[i].layer == layer) {
            return &c->pack->layers[i].packed;
        }
    }
    return NULL;
}

uint64_t sl_ckpt_pack_sum(const sl_ckpt *c) {
    return c->pack ? c->pack->sum : 0;
}

const char *sl_ckpt_pack_note(const sl_ckpt *c) {
    return c->pack ? c->pack->note : "";
}

static void free_sides(pack_side *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(v[i].name);
    }
    free(v);
}

static void free_units(pack_units *u) {
    free(u->name);
    free(u->v);
}

void pack_free(pack *p) {
    if (!p) {
        return;
    }
    for (size_t i = 0; p->tensors && i < p->resident.count; i++) {
        free((char *)p->tensors[i].name);
    }
    for (size_t i = 0; i < p->layer_count; i++) {
        free_units(&p->layers[i].file);
        free(p->layers[i].extent);
        free(p->layers[i].sum);
    }
    free_sides(p->source.files, p->source.count);
    free_sides(p->sides, p->side_count);
    free_units(&p->resident);
    free(p->tensors);
    free(p->layers);
    free(p);
}
