/* The open checkpoint: its files, its table of tensors and the look-up by name. What fills it is hf_dir.c and
 * gguf_open.c. */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

sl_ckpt *sl_ckpt_open(const char *path, sl_error *err) {
    sl_ckpt *c = calloc(1, sizeof *c);
    if (!c || !(c->path = sl_strdup(path))) {
        free(c);
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    bool dir = sl_path_is_dir(path);
    c->kind = dir ? SL_CKPT_HF : SL_CKPT_GGUF;
    if (!(dir && pack_is_dir(path) ? pack_open(c, err) : dir ? hf_open(c, err) : gguf_open(c, err))) {
        sl_ckpt_close(c);
        return NULL;
    }
    return c;
}

void sl_ckpt_close(sl_ckpt *c) {
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->file_count; i++) {
        sl_file_close(c->files[i]);
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        free((char *)c->tensors[i].name);
    }
    for (size_t i = 0; i < c->other_count; i++) {
        free(c->others[i].name);
    }
    for (int i = 0; i < CKPT_JSON_COUNT; i++) {
        json_decref(c->json[i]);
    }
    sl_gguf_free(c->gguf);
    pack_free(c->pack);
    ckpt_names_free(&c->names);
    free(c->files);
    free(c->tensors);
    free(c->others);
    free(c->path);
    free(c);
}

sl_file *ckpt_add_file(sl_ckpt *c, const char *path, sl_error *err) {
    void *files = c->files;
    bool room = sl_grow(&files, &c->file_capacity, c->file_count + 1, sizeof *c->files);
    c->files = files;
    if (!room) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    sl_file *f = sl_file_open(path, err);
    if (f) {
        c->files[c->file_count++] = f;
    }
    return f;
}

static const char *file_path(const sl_ckpt *c, int32_t file) {
    return c->files[file]->path;
}

/* Which file has the tensor of this name already? */
static const char *holder(const sl_ckpt *c, size_t value) {
    return value & CKPT_OTHER ? file_path(c, c->others[value & ~CKPT_OTHER].file)
                              : file_path(c, c->tensors[value].part[0].file);
}

static bool claim_name(sl_ckpt *c, const char *name, size_t value, int32_t file, sl_error *err) {
    size_t there = ckpt_names_find(&c->names, name, strlen(name));
    if (there != CKPT_NONE) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is in %s too", file_path(c, file), name,
                       holder(c, there));
    }
    return ckpt_names_add(&c->names, name, strlen(name), value) ||
           sl_fail(err, SL_ERR_MEMORY, "%s: out of memory at tensor \"%s\"", file_path(c, file), name);
}

bool ckpt_add_tensor(sl_ckpt *c, const sl_tensor *t, sl_error *err) {
    void *v = c->tensors;
    bool room = sl_grow(&v, &c->tensor_capacity, c->tensor_count + 1, sizeof *c->tensors);
    c->tensors = v;
    if (!room) {
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory at tensor \"%s\"", file_path(c, t->part[0].file), t->name);
    }
    if (!room || !claim_name(c, t->name, c->tensor_count, t->part[0].file, err)) {
        free((char *)t->name);
        return false;
    }
    c->bytes += sl_tensor_bytes(t);
    c->tensors[c->tensor_count++] = *t;
    return true;
}

bool ckpt_add_other(sl_ckpt *c, ckpt_other o, sl_error *err) {
    void *v = c->others;
    bool room = sl_grow(&v, &c->other_capacity, c->other_count + 1, sizeof *c->others);
    c->others = v;
    if (!room) {
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory at tensor \"%s\"", file_path(c, o.file), o.name);
    }
    if (!room || !claim_name(c, o.name, CKPT_OTHER | c->other_count, o.file, err)) {
        free(o.name);
        return false;
    }
    c->others[c->other_count++] = o;
    return true;
}

/* ---- what is there -------------------------------------------------------------------------------------------------
 */

sl_ckpt_kind sl_ckpt_get_kind(const sl_ckpt *c) {
    return c->kind;
}

const char *sl_ckpt_path(const sl_ckpt *c) {
    return c->path;
}

int sl_ckpt_file_count(const sl_ckpt *c) {
    return (int)c->file_count;
}

const sl_file *sl_ckpt_file(const sl_ckpt *c, int file) {
    return file >= 0 && (size_t)file < c->file_count ? c->files[file] : NULL;
}

uint64_t sl_ckpt_bytes(const sl_ckpt *c) {
    return c->bytes;
}

size_t sl_ckpt_tensor_count(const sl_ckpt *c) {
    return c->tensor_count;
}

const sl_tensor *sl_ckpt_tensor(const sl_ckpt *c, size_t i) {
    return i < c->tensor_count ? &c->tensors[i] : NULL;
}

const sl_tensor *sl_ckpt_find(const sl_ckpt *c, const char *name) {
    size_t i = ckpt_names_find(&c->names, name, strlen(name));
    return i == CKPT_NONE || i & CKPT_OTHER ? NULL : &c->tensors[i];
}

/* Other tools' quantisation leaves weights under other names; saying so explains a missing tensor. */
static const char *foreign_method(const sl_ckpt *c) {
    const char *method = ckpt_quant_method(c->json[CKPT_CONFIG]);
    return method && strcmp(method, "fp8") != 0 && strcmp(method, "mxfp4") != 0 ? method : NULL;
}

static bool fail_unreadable(const sl_ckpt *c, const ckpt_other *o, sl_error *err) {
    if (o->dims > SL_MAX_DIMS) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor \"%s\": %d dimensions, expected at most %d",
                       file_path(c, o->file), o->name, (int)o->dims, SL_MAX_DIMS);
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor \"%s\": dtype %s is not built in for weights",
                   file_path(c, o->file), o->name, o->dtype);
}

const sl_tensor *sl_ckpt_require(const sl_ckpt *c, const char *name, sl_error *err) {
    const sl_tensor *t = sl_ckpt_find(c, name);
    if (t) {
        return t;
    }
    size_t i = ckpt_names_find(&c->names, name, strlen(name));
    const char *method = foreign_method(c);
    if (i != CKPT_NONE) {
        fail_unreadable(c, &c->others[i & ~CKPT_OTHER], err);
    } else if (method) {
        sl_fail(err, SL_ERR_UNSUPPORTED,
                "%s: tensor \"%s\" is missing; config.json: quantization_config.quant_method \"%s\" is not built in",
                c->path, name, method);
    } else {
        sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is missing (the checkpoint has %zu others)", c->path, name,
                c->tensor_count + c->other_count);
    }
    return NULL;
}

/* ---- names of files ------------------------------------------------------------------------------------------------
 */

bool ckpt_plain_name(const char *s) {
    if (!s || s[0] == 0 || strcmp(s, ".") == 0 || strcmp(s, "..") == 0) {
        return false;
    }
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == '/' || *s == '\\' || *s == 0x7f) {
            return false;
        }
    }
    return true;
}

bool ckpt_has_suffix(const char *s, const char *suffix) {
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && memcmp(s + n - k, suffix, k) == 0;
}
