/* A Hugging Face directory: config.json and its side files, one model.safetensors or shards listed in an index.
 *
 * model.safetensors wins over an index, as it does in Python's transformers: an index beside it is a leftover. */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

static const char *const json_files[CKPT_JSON_COUNT] = {
    [CKPT_CONFIG] = "config.json",
    [CKPT_GENERATION_CONFIG] = "generation_config.json",
    [CKPT_TOKENIZER_CONFIG] = "tokenizer_config.json",
};

/* ---- raw tensors ------------------------------------------------------------------------------------------------- */

size_t ckpt_raws_find(const ckpt_raws *r, const char *name) {
    return ckpt_names_find(&r->names, name, strlen(name));
}

void ckpt_raws_free(ckpt_raws *r) {
    for (size_t i = 0; i < r->count; i++) {
        free(r->v[i].name);
    }
    free(r->v);
    ckpt_names_free(&r->names);
    *r = (ckpt_raws){0};
}

bool ckpt_raws_take(ckpt_raws *r, sl_safetensors *s, int file, const sl_ckpt *c, sl_error *err) {
    const char *path = c->files[file]->path;
    void *v = r->v;
    bool room = sl_grow(&v, &r->capacity, r->count + s->count, sizeof *r->v);
    r->v = v;
    for (size_t i = 0; room && i < s->count; i++) {
        ckpt_raw *t = &s->tensors[i];
        size_t there = ckpt_raws_find(r, t->name);
        if (there != CKPT_NONE) {
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is in %s too", path, t->name,
                           c->files[r->v[there].at.file]->path);
        }
        room = ckpt_names_add(&r->names, t->name, strlen(t->name), r->count);
        t->at.file = file;
        r->v[r->count++] = *t;
        t->name = NULL;
    }
    return room || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tensors", path, s->count);
}

/* ---- shards ---------------------------------------------------------------------------------------------------------
 */

static bool read_shard(sl_ckpt *c, ckpt_raws *raws, const char *path, sl_error *err) {
    sl_file *f = ckpt_add_file(c, path, err);
    sl_safetensors *s = f ? safetensors_read(f, err) : NULL;
    bool ok = s && ckpt_raws_take(raws, s, (int)c->file_count - 1, c, err);
    sl_safetensors_free(s);
    return ok;
}

/* Reads the shard that the index names for a tensor. */
static bool read_indexed_shard(sl_ckpt *c, ckpt_raws *raws, const char *index_path, const char *shard,
                               const char *tensor, sl_error *err) {
    if (!ckpt_plain_name(shard)) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: weight_map: tensor \"%s\" is in \"%s\", expected the plain name of a file beside the index",
                       index_path, tensor, shard);
    }
    char *path = sl_path_join(c->path, shard);
    if (!path) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", index_path);
    }
    bool ok = false;
    if (!sl_path_exists(path)) {
        sl_fail(err, SL_ERR_IO, "%s: shard is missing; %s needs it for tensor \"%s\"", path, INDEX_FILE, tensor);
    } else {
        ok = read_shard(c, raws, path, err);
    }
    free(path);
    return ok;
}

/* Number in c->files of a shard by its file name, or CKPT_NONE. */
static bool read_all_shards(sl_ckpt *c, ckpt_raws *raws, json_t *weight_map, const char *index_path, ckpt_names *shards,
                            sl_error *err) {
    const char *tensor;
    json_t *value;
    json_object_foreach(weight_map, tensor, value) {
        const char *shard = json_string_value(value);
        if (!shard) {
            return sl_fail(err, SL_ERR_FORMAT, "%s: weight_map: tensor \"%s\" has no file name (a string)", index_path,
                           tensor);
        }
        if (ckpt_names_find(shards, shard, strlen(shard)) != CKPT_NONE) {
            continue;
        }
        if (!ckpt_names_add(shards, shard, strlen(shard), c->file_count)) {
            return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", index_path);
        }
        if (!read_indexed_shard(c, raws, index_path, shard, tensor, err)) {
            return false;
        }
    }
    return true;
}

/* Each tensor that the index lists is in the shard that it names. */
static bool check_index(const sl_ckpt *c, const ckpt_raws *raws, json_t *weight_map, const ckpt_names *shards,
                        sl_error *err) {
    const char *tensor;
    json_t *value;
    json_object_foreach(weight_map, tensor, value) {
        const char *shard = json_string_value(value);
        size_t file = ckpt_names_find(shards, shard, strlen(shard));
        size_t i = ckpt_raws_find(raws, tensor);
        if (i == CKPT_NONE || (size_t)raws->v[i].at.file != file) {
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is not in it, though %s says so",
                           c->files[file]->path, tensor, INDEX_FILE);
        }
    }
    return true;
}

static bool read_index(sl_ckpt *c, ckpt_raws *raws, const char *index_path, sl_error *err) {
    size_t n;
    char *text = sl_read_text(index_path, CKPT_SIDE_FILE_LIMIT, &n, err);
    json_t *root = text ? ckpt_json_parse_strict(text, n, index_path, err) : NULL;
    free(text);
    if (!root) {
        return false;
    }
    bool ok = false;
    ckpt_names shards = {0};
    json_t *weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map)) {
        sl_fail(err, SL_ERR_FORMAT, "%s: no \"weight_map\" object", index_path);
    } else {
        ok = read_all_shards(c, raws, weight_map, index_path, &shards, err) &&
             check_index(c, raws, weight_map, &shards, err);
    }
    ckpt_names_free(&shards);
    json_decref(root);
    return ok;
}

static bool read_weights(sl_ckpt *c, ckpt_raws *raws, sl_error *err) {
    char *single = sl_path_join(c->path, SINGLE_FILE);
    char *index = sl_path_join(c->path, INDEX_FILE);
    bool ok = false;
    if (!single || !index) {
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    } else if (sl_path_exists(single)) {
        ok = read_shard(c, raws, single, err);
    } else if (sl_path_exists(index)) {
        ok = read_index(c, raws, index, err);
    } else {
        sl_fail(err, SL_ERR_IO, "%s: neither %s nor %s is there", c->path, SINGLE_FILE, INDEX_FILE);
    }
    free(single);
    free(index);
    return ok;
}

/* ---- side files -------------------------------------------------------------------------------------------------- */

static bool load_json_file(sl_ckpt *c, int which, sl_error *err) {
    char *path = sl_path_join(c->path, json_files[which]);
    if (!path) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    }
    bool ok = true;
    if (sl_path_exists(path)) {
        c->json[which] = ckpt_json_load(path, err);
        ok = c->json[which] != NULL;
    } else if (which == CKPT_CONFIG) {
        ok = sl_fail(err, SL_ERR_IO, "%s: file is missing; a model directory needs it", path);
    }
    free(path);
    return ok;
}

json_t *sl_ckpt_json(const sl_ckpt *c, const char *file_name) {
    for (int i = 0; i < CKPT_JSON_COUNT; i++) {
        if (strcmp(file_name, json_files[i]) == 0) {
            return c->json[i];
        }
    }
    return NULL;
}

char *sl_ckpt_text(const sl_ckpt *c, const char *file_name, size_t *size, sl_error *err) {
    if (err) {
        *err = (sl_error){0};
    }
    *size = 0;
    if (c->kind != SL_CKPT_HF) {
        return NULL;
    }
    if (!ckpt_plain_name(file_name)) {
        return sl_fail_null(err, SL_ERR_ARGUMENT, "%s: \"%s\" is not the plain name of a file", c->path, file_name);
    }
    char *path = sl_path_join(c->path, file_name);
    if (!path) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    }
    char *text = sl_path_exists(path) ? sl_read_text(path, CKPT_SIDE_FILE_LIMIT, size, err) : NULL;
    free(path);
    return text;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

bool hf_load_side_files(sl_ckpt *c, sl_error *err) {
    for (int i = 0; i < CKPT_JSON_COUNT; i++) {
        if (!load_json_file(c, i, err)) {
            return false;
        }
    }
    return true;
}

bool hf_open(sl_ckpt *c, sl_error *err) {
    ckpt_raws raws = {0};
    char *config_path = sl_path_join(c->path, json_files[CKPT_CONFIG]);
    bool ok = config_path || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
    ok = ok && hf_load_side_files(c, err) && read_weights(c, &raws, err) &&
         ckpt_group_tensors(c, &raws, c->json[CKPT_CONFIG], config_path, err);
    ckpt_raws_free(&raws);
    free(config_path);
    return ok;
}
