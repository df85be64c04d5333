/* config.json and MLX's grouping. Input: the JSON, a zero byte, then bytes that choose types and shapes of the tensors
 * of four modules. What comes out must be tensors whose shapes and extents agree. */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok) {
    if (!ok) {
        abort();
    }
}

/* The bytes after the JSON; zeros when they are used up. */
typedef struct choices {
    const uint8_t *p, *end;
} choices;

static uint8_t choose(choices *c) {
    return c->p < c->end ? *c->p++ : 0;
}

static void fill_tensor(ckpt_raw *t, const char *module, const char *suffix, choices *c, uint64_t *at) {
    static const ckpt_dtype dtypes[] = {{"U32", 32}, {"BF16", 16}, {"F16", 16},
                                        {"F32", 32}, {"I64", 64},  {"F8_E4M3", 8}};
    t->name = sl_asprintf("%s%s", module, suffix);
    check(t->name != NULL);
    t->dtype = &dtypes[choose(c) % SL_COUNT(dtypes)];
    t->dims = choose(c) % 6;
    uint64_t bytes = t->dtype->bits / 8;
    for (int32_t i = 0; i < t->dims; i++) {
        t->shape[i] = choose(c);
        bytes *= (uint64_t)t->shape[i];
    }
    t->at = (sl_extent){.offset = *at, .bytes = bytes};
    *at += bytes;
}

static void fill_raws(ckpt_raws *r, choices *c) {
    static const char *const modules[] = {"a", "b", "model.layers.0.mlp", "bits"};
    static const char *const suffixes[] = {".weight", ".scales", ".biases"};
    uint64_t at = 8;
    uint8_t present = choose(c);
    r->v = calloc(16, sizeof *r->v);
    check(r->v != NULL);
    for (size_t i = 0; i < 12; i++) {
        if (present >> i % 8 & 1) {
            continue;
        }
        fill_tensor(&r->v[r->count], modules[i / 3], suffixes[i % 3], c, &at);
        check(ckpt_names_add(&r->names, r->v[r->count].name, strlen(r->v[r->count].name), r->count));
        r->count++;
    }
}

static void check_tensor(const sl_ckpt *c, const sl_tensor *t) {
    sl_matrix m;
    sl_tensor slice;
    sl_error err = {0};
    check(sl_ckpt_find(c, t->name) == t && t->dims <= SL_MAX_DIMS && (t->parts == 1 || t->parts == 3));
    if (t->dims > 2 && sl_tensor_slice(t, 0, &slice, &err)) {
        check(sl_tensor_bytes(&slice) * (uint64_t)t->shape[0] == sl_tensor_bytes(t));
    }
    if ((t->dims == 2 || t->dims == 1) && t->shape[t->dims - 1] > 0 && t->shape[0] > 0) {
        check(sl_tensor_matrix(t, &m, &err));
    }
}

static void group(json_t *config, choices *bytes) {
    static char path[] = "fuzz.safetensors";
    sl_file file = {.path = path};
    sl_file *files[] = {&file};
    sl_error err = {0};
    ckpt_raws raws = {0};
    sl_ckpt *c = calloc(1, sizeof *c);
    check(c != NULL);
    c->files = files;
    fill_raws(&raws, bytes);
    bool ok = ckpt_group_tensors(c, &raws, config, "config.json", &err);
    check(ok || err.code != SL_OK);
    for (size_t i = 0; i < c->tensor_count; i++) {
        check_tensor(c, &c->tensors[i]);
    }
    ckpt_raws_free(&raws);
    c->files = NULL;
    sl_ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    choices rest = {.p = data + n + (zero != NULL), .end = data + size};
    sl_error err = {0};
    json_t *config = ckpt_json_parse((const char *)data, n, "config.json", &err);
    check(config || err.code != SL_OK);
    if (config) {
        group(config, &rest);
    }
    json_decref(config);
    return 0;
}
