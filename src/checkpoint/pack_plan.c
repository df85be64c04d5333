/* Lays a pack out: where tensors, blobs and parts will lie; lists side files; fingerprints the source. */
#include "checkpoint/pack_plan.h"

#define XXH_INLINE_ALL
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

static bool no_memory(const sl_ckpt *c, sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", sl_ckpt_path(c));
}

/* ---- side files ---------------------------------------------------------------------------------------------------
 */

/* What describes a model beside its weights. */
static bool is_side_file(const char *name) {
    static const char *const suffixes[] = {".json", ".jinja", ".txt", ".model"};
    static const char *const prefixes[] = {"LICENSE", "NOTICE"};
    if (!ckpt_plain_name(name) || strlen(name) > 200 || strcmp(name, PACK_JSON) == 0 ||
        ckpt_has_suffix(name, ".safetensors.index.json")) {
        return false;
    }
    for (size_t i = 0; i < SL_COUNT(suffixes); i++) {
        if (ckpt_has_suffix(name, suffixes[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < SL_COUNT(prefixes); i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const pack_side *)a)->name, ((const pack_side *)b)->name);
}

static bool add_side(pack *p, size_t *capacity, const char *name) {
    void *v = p->sides;
    bool room = sl_grow(&v, capacity, p->side_count + 1, sizeof *p->sides);
    p->sides = v;
    char *copy = room ? sl_strdup(name) : NULL;
    if (copy) {
        p->sides[p->side_count++] = (pack_side){.name = copy};
    }
    return copy != NULL;
}

static bool list_directory(pack *p, const sl_ckpt *c, sl_error *err) {
    DIR *d = opendir(sl_ckpt_path(c));
    size_t capacity = 0;
    bool ok = true;
    for (const struct dirent *e; ok && d && (e = readdir(d));) {
        char *path = sl_path_join(sl_ckpt_path(c), e->d_name);
        ok = path && (!is_side_file(e->d_name) || sl_path_is_dir(path) || add_side(p, &capacity, e->d_name));
        free(path);
    }
    if (d) {
        closedir(d);
    }
    if (p->side_count) {
        qsort(p->sides, p->side_count, sizeof *p->sides, by_name);
    }
    return ok || no_memory(c, err);
}

/* A GGUF header with the source's keys, byte for byte, and no tensors. */
static uint8_t *metadata_bytes(const sl_ckpt *c, size_t *size, sl_error *err) {
    const sl_gguf *g = c->gguf;
    uint8_t *out = malloc((size_t)g->keys_end);
    if (!out) {
        no_memory(c, err);
        return NULL;
    }
    memcpy(out, g->owned, (size_t)g->keys_end);
    memset(out + 8, 0, 8); /* the number of tensors */
    *size = (size_t)g->keys_end;
    return out;
}

uint8_t *pack_side_bytes(const sl_ckpt *c, const char *name, size_t *size, sl_error *err) {
    if (c->kind == SL_CKPT_GGUF) {
        return metadata_bytes(c, size, err);
    }
    char *path = sl_path_join(sl_ckpt_path(c), name);
    char *text = path ? sl_read_text(path, CKPT_SIDE_FILE_LIMIT, size, err) : NULL;
    free(path);
    return (uint8_t *)text;
}

static bool plan_sides(pack *p, const sl_ckpt *c, sl_error *err) {
    size_t capacity = 0;
    if (c->kind == SL_CKPT_GGUF ? !add_side(p, &capacity, PACK_METADATA) && no_memory(c, err)
                                : !list_directory(p, c, err)) {
        return false;
    }
    for (size_t i = 0; i < p->side_count; i++) {
        size_t n = 0;
        uint8_t *bytes = pack_side_bytes(c, p->sides[i].name, &n, err);
        if (!bytes) {
            return false;
        }
        p->sides[i].bytes = n;
        p->sides[i].sum = sl_pack_sum(bytes, n);
        free(bytes);
    }
    return true;
}

/* ---- the source's identity ----------------------------------------------------------------------------------------
 */

static void hash_u64(XXH3_state_t *h, uint64_t v) {
    XXH3_64bits_update(h, &v, sizeof v);
}

static void hash_layout(XXH3_state_t *h, const sl_tensor *t) {
    XXH3_64bits_update(h, t->name, strlen(t->name) + 1);
    hash_u64(h, (uint64_t)t->format << 32 | (uint32_t)t->group);
    hash_u64(h, (uint64_t)t->side);
    for (int32_t i = 0; i < t->dims; i++) {
        hash_u64(h, (uint64_t)t->shape[i]);
    }
    for (int32_t i = 0; i < t->parts; i++) {
        hash_u64(h, (uint64_t)t->part[i].file);
        hash_u64(h, t->part[i].offset);
        hash_u64(h, t->part[i].bytes);
    }
}

/* Bytes at even distances: models of one shape that differ in their training differ there. */
static bool hash_samples(XXH3_state_t *h, const sl_file *f, sl_error *err) {
    uint8_t bytes[SAMPLE_BYTES];
    for (uint64_t i = 0; i < SAMPLES; i++) {
        uint64_t at = f->size / SAMPLES * i, n = f->size - at < SAMPLE_BYTES ? f->size - at : SAMPLE_BYTES;
        if (!sl_file_read(f, at, bytes, n, err)) {
            return false;
        }
        sl_file_drop(f, at, n);
        XXH3_64bits_update(h, bytes, (size_t)n);
    }
    return true;
}

static bool hash_source(pack *p, const sl_ckpt *c, XXH3_state_t *h, sl_error *err) {
    for (size_t i = 0; i < sl_ckpt_tensor_count(c); i++) {
        hash_layout(h, sl_ckpt_tensor(c, i));
    }
    for (size_t i = 0; i < p->side_count; i++) {
        hash_u64(h, p->sides[i].sum);
    }
    for (int i = 0; i < sl_ckpt_file_count(c); i++) {
        if (!hash_samples(h, sl_ckpt_file(c, i), err)) {
            return false;
        }
    }
    p->source.fingerprint = XXH3_64bits_digest(h);
    return true;
}

static bool plan_source(pack *p, const sl_ckpt *c, sl_error *err) {
    int n = sl_ckpt_file_count(c);
    p->source.files = calloc((size_t)n + 1, sizeof *p->source.files);
    for (int i = 0; p->source.files && i < n; i++) {
        const sl_file *f = sl_ckpt_file(c, i);
        const char *slash = strrchr(f->path, '/');
        pack_side *s = &p->source.files[p->source.count];
        s->bytes = f->size;
        s->name = sl_strdup(slash ? slash + 1 : f->path);
        p->source.count += s->name != NULL;
    }
    XXH3_state_t *h = XXH3_createState();
    if (!h || p->source.count != (size_t)n) {
        XXH3_freeState(h);
        return no_memory(c, err);
    }
    XXH3_64bits_reset(h);
    bool ok = hash_source(p, c, h, err);
    XXH3_freeState(h);
    return ok;
}

/* ---- places -------------------------------------------------------------------------------------------------------
 */

/* Gives the parts of t places from `at` on; returns where the last one ends. */
static uint64_t place_parts(sl_tensor *t, uint64_t at) {
    for (int32_t i = 0; i < t->parts; i++) {
        at = sl_round_up(at, SL_PACK_PART_ALIGN);
        t->part[i].file = 0;
        t->part[i].offset = at;
        at += t->part[i].bytes;
    }
    return at;
}

static bool plan_resident(pack *p, const sl_pack_job *job, sl_error *err) {
    size_t n = job->tensor_count;
    uint64_t at = 0;
    p->resident.name = sl_strdup(PACK_RESIDENT);
    p->resident.v = calloc(n + 1, sizeof *p->resident.v);
    p->tensors = calloc(n + 1, sizeof *p->tensors);
    if (!p->resident.name || !p->resident.v || !p->tensors) {
        return no_memory(job->source, err);
    }
    p->resident.count = n;
    for (size_t i = 0; i < n; i++) {
        sl_tensor *t = &p->tensors[i];
        *t = *sl_ckpt_tensor(job->source, job->tensors[i]);
        t->name = sl_strdup(t->name);
        if (!t->name) {
            return no_memory(job->source, err);
        }
        uint64_t end = place_parts(t, at);
        p->resident.v[i] = (pack_unit){.offset = at, .bytes = end - at};
        at = sl_round_up(end, SL_PACK_BLOB_ALIGN);
    }
    p->resident.bytes = at;
    return true;
}

/* An expert's projection requantised: its format and the lengths of its parts. */
static bool affine_layout(sl_tensor *t, const sl_pack_affine *a, sl_error *err) {
    *t = (sl_tensor){
        .name = t->name, .group = a->group, .side = SL_F16, .dims = 2, .parts = 3, .shape = {t->shape[0], t->shape[1]}};
    sl_affine_by_bits(a->bits, &t->format);
    sl_matrix m = {.format = t->format, .group = t->group, .side = t->side, .rows = t->shape[0], .cols = t->shape[1]};
    if (!sl_matrix_layout(&m, err)) {
        return sl_fail_prefix(err, "--experts %dbit --group %d", (int)a->bits, (int)a->group);
    }
    for (int i = 0; i < 3; i++) {
        t->part[i].bytes = sl_matrix_part_bytes(&m, i);
    }
    return true;
}

static bool plan_layer(pack *p, const sl_pack_job *job, size_t i, sl_error *err) {
    const sl_pack_layer *from = &job->layers[i];
    pack_layer *l = &p->layers[i];
    uint64_t end = 0;
    l->layer = from->layer;
    l->packed.experts = from->experts;
    l->file.name = sl_asprintf("layer-%03d.bin", (int)from->layer);
    l->file.count = (size_t)from->experts;
    l->file.v = calloc(l->file.count, sizeof *l->file.v);
    if (!l->file.name || !l->file.v) {
        return no_memory(job->source, err);
    }
    for (int proj = 0; proj < 3; proj++) {
        sl_tensor *t = &l->packed.proj[proj];
        *t = from->proj[proj];
        t->name = "";
        if (job->affine.bits && !affine_layout(t, &job->affine, err)) {
            return sl_fail_prefix(err, "layer %d", (int)from->layer);
        }
        end = place_parts(t, end);
    }
    uint64_t stride = sl_round_up(end, SL_PACK_BLOB_ALIGN);
    for (size_t x = 0; x < l->file.count; x++) {
        l->file.v[x] = (pack_unit){.offset = stride * x, .bytes = end};
    }
    l->file.bytes = stride * l->file.count;
    return true;
}

static bool plan_layers(pack *p, const sl_pack_job *job, sl_error *err) {
    p->layers = calloc(job->layer_count + 1, sizeof *p->layers);
    if (!p->layers) {
        return no_memory(job->source, err);
    }
    for (size_t i = 0; i < job->layer_count; i++) {
        p->layer_count++;
        if (!plan_layer(p, job, i, err)) {
            return false;
        }
    }
    return true;
}

pack *pack_plan(const sl_pack_job *job, sl_error *err) {
    pack *p = calloc(1, sizeof *p);
    if (!p) {
        no_memory(job->source, err);
        return NULL;
    }
    p->kind = sl_ckpt_get_kind(job->source);
    p->affine = job->affine;
    pack_doc_note(p);
    if (plan_sides(p, job->source, err) && plan_source(p, job->source, err) && plan_resident(p, job, err) &&
        plan_layers(p, job, err)) {
        return p;
    }
    pack_free(p);
    return NULL;
}
