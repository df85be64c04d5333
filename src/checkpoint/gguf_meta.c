/* Look-ups in GGUF's metadata. A value of another kind than asked for counts as absent; integers must fit. */
#include "checkpoint/internal.h"

#include <string.h>

const gguf_kv *gguf_find(const sl_gguf *g, const char *key) {
    size_t i = ckpt_names_find(&g->keys, key, strlen(key));
    return i == CKPT_NONE ? NULL : &g->kv[i];
}

static uint64_t load(const uint8_t *p, uint32_t size) {
    uint64_t v = 0;
    for (uint32_t i = size; i-- > 0;) {
        v = v << 8 | p[i];
    }
    return v;
}

static bool is_signed(uint32_t type) {
    return type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
}

static bool is_float(uint32_t type) {
    return type == GGUF_F32 || type == GGUF_F64;
}

/* Any integer or bool at p. */
static bool number_i64(uint32_t type, const uint8_t *p, int64_t *out) {
    uint32_t size = gguf_value_size(type);
    if (size == 0 || is_float(type)) {
        return false;
    }
    uint64_t v = load(p, size);
    if (is_signed(type)) {
        uint32_t spare = 64 - 8 * size;
        *out = (int64_t)(v << spare) >> spare;
        return true;
    }
    *out = (int64_t)v;
    return v <= INT64_MAX;
}

/* Any float or integer at p. */
static bool number_f64(uint32_t type, const uint8_t *p, double *out) {
    uint32_t size = gguf_value_size(type);
    if (size == 0 || type == GGUF_BOOL) {
        return false;
    }
    uint64_t v = load(p, size);
    if (type == GGUF_F64) {
        memcpy(out, &v, sizeof *out);
    } else if (type == GGUF_F32) {
        uint32_t bits = (uint32_t)v;
        float f;
        memcpy(&f, &bits, sizeof f);
        *out = (double)f;
    } else if (type == GGUF_U64) {
        *out = (double)v;
    } else {
        int64_t i = 0;
        number_i64(type, p, &i);
        *out = (double)i;
    }
    return true;
}

static const gguf_kv *find_number(const sl_gguf *g, const char *key) {
    const gguf_kv *kv = gguf_find(g, key);
    return kv && kv->number ? kv : NULL;
}

bool gguf_get_i64(const sl_gguf *g, const char *key, int64_t *out) {
    const gguf_kv *kv = find_number(g, key);
    return kv && number_i64(kv->type, kv->number, out);
}

bool gguf_get_f64(const sl_gguf *g, const char *key, double *out) {
    const gguf_kv *kv = find_number(g, key);
    return kv && number_f64(kv->type, kv->number, out);
}

bool gguf_get_bool(const sl_gguf *g, const char *key, bool *out) {
    const gguf_kv *kv = find_number(g, key);
    if (!kv || kv->type != GGUF_BOOL) {
        return false;
    }
    *out = kv->number[0] != 0;
    return true;
}

bool gguf_get_str(const sl_gguf *g, const char *key, sl_str *out) {
    const gguf_kv *kv = gguf_find(g, key);
    if (!kv || kv->type != GGUF_STRING) {
        return false;
    }
    *out = kv->string;
    return true;
}

bool gguf_get_arr(const sl_gguf *g, const char *key, sl_gguf_array *out) {
    const gguf_kv *kv = gguf_find(g, key);
    if (!kv || kv->type != GGUF_ARRAY) {
        return false;
    }
    *out = kv->array;
    return true;
}

bool sl_gguf_arr_i64(const sl_gguf_array *a, uint64_t i, int64_t *out) {
    return i < a->count && number_i64(a->type, a->bytes + i * gguf_value_size(a->type), out);
}

bool sl_gguf_arr_f64(const sl_gguf_array *a, uint64_t i, double *out) {
    return i < a->count && number_f64(a->type, a->bytes + i * gguf_value_size(a->type), out);
}

/* ---- of a checkpoint
 * --------------------------------------------------------------------------------------------------- */

bool sl_gguf_str(const sl_ckpt *c, const char *key, sl_str *out) {
    return c->gguf && gguf_get_str(c->gguf, key, out);
}

bool sl_gguf_i64(const sl_ckpt *c, const char *key, int64_t *out) {
    return c->gguf && gguf_get_i64(c->gguf, key, out);
}

bool sl_gguf_f64(const sl_ckpt *c, const char *key, double *out) {
    return c->gguf && gguf_get_f64(c->gguf, key, out);
}

bool sl_gguf_bool(const sl_ckpt *c, const char *key, bool *out) {
    return c->gguf && gguf_get_bool(c->gguf, key, out);
}

bool sl_gguf_arr(const sl_ckpt *c, const char *key, sl_gguf_array *out) {
    return c->gguf && gguf_get_arr(c->gguf, key, out);
}

size_t sl_gguf_key_count(const sl_ckpt *c) {
    return c->gguf ? c->gguf->kv_count : 0;
}

sl_str sl_gguf_key(const sl_ckpt *c, size_t i) {
    return i < sl_gguf_key_count(c) ? c->gguf->kv[i].key : (sl_str){.p = "", .n = 0};
}
