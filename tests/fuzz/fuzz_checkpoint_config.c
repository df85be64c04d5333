/* config.json and the grouping of quantised weights. Input: the JSON, a zero byte, then bytes that choose MLX's or
 * Hugging Face's names, types and shapes of the tensors. What comes out must be tensors whose shapes and extents agree,
 * so that dequantising them reads what they have and no more. */
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

static void fill_tensor(ckpt_raw *t, const char *name, choices *c, uint64_t *at) {
    static const ckpt_dtype dtypes[] = {{"U32", 32}, {"BF16", 16},   {"F16", 16}, {"F32", 32},
                                        {"I64", 64}, {"F8_E4M3", 8}, {"U8", 8},   {"F8_E8M0", 8}};
    t->name = sl_strdup(name);
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
    static const char *const names[2][12] = {
        {"a.weight", "a.scales", "a.biases", "b.weight", "b.scales", "b.biases", "model.layers.0.mlp.weight",
         "model.layers.0.mlp.scales", "model.layers.0.mlp.biases", "bits.weight", "bits.scales", "bits.biases"},
        {"a.weight", "a.weight_scale_inv", "b", "b_scale_inv", "e_blocks", "e_scales", "f_blocks", "f_scales", "e",
         "_blocks", "_scales", "lm_head.weight"},
    };
    uint64_t at = 8;
    uint8_t present = choose(c), kind = choose(c) % 2;
    r->v = calloc(16, sizeof *r->v);
    check(r->v != NULL);
    for (size_t i = 0; i < 12; i++) {
        if (present >> i % 8 & 1) {
            continue;
        }
        fill_tensor(&r->v[r->count], names[kind][i], c, &at);
        check(ckpt_names_add(&r->names, r->v[r->count].name, strlen(r->v[r->count].name), r->count));
        r->count++;
    }
}

/* In memory that ends where the parts end. */
static void read_all(const sl_tensor *t, sl_matrix *m) {
    uint8_t *parts[3] = {NULL, NULL, NULL};
    float *row = malloc((size_t)m->cols * sizeof *row);
    check(row != NULL);
    for (int32_t i = 0; i < t->parts; i++) {
        parts[i] = calloc(1, t->part[i].bytes);
        check(parts[i] != NULL);
        m->part[i] = parts[i];
    }
    for (int64_t r = 0; r < m->rows; r++) {
        sl_format_get(m->format)->dequantize(m, r, 0, m->cols, row);
    }
    for (int i = 0; i < 3; i++) {
        free(parts[i]);
    }
    free(row);
}

static void check_rows(const sl_tensor *t, const sl_matrix *m) {
    sl_tensor head, tail;
    sl_error err = {0};
    int64_t cut = t->format == SL_FP8 ? 128 : 1;
    if (m->rows > cut) {
        check(sl_tensor_rows(t, 0, cut, &head, &err) && sl_tensor_rows(t, cut, m->rows - cut, &tail, &err));
        for (int32_t i = 0; i < t->parts; i++) {
            check(tail.part[i].offset == head.part[i].offset + head.part[i].bytes);
            check(head.part[i].bytes + tail.part[i].bytes == t->part[i].bytes);
        }
    }
}

static void check_tensor(const sl_ckpt *c, const sl_tensor *t) {
    sl_matrix m;
    sl_tensor slice;
    sl_error err = {0};
    check(sl_ckpt_find(c, t->name) == t && t->dims <= SL_MAX_DIMS && t->parts == sl_format_get(t->format)->parts);
    if (t->dims > 2 && sl_tensor_slice(t, 0, &slice, &err)) {
        check(sl_tensor_bytes(&slice) * (uint64_t)t->shape[0] == sl_tensor_bytes(t));
    }
    if ((t->dims == 2 || t->dims == 1) && t->shape[t->dims - 1] > 0 && t->shape[0] > 0) {
        check(sl_tensor_matrix(t, &m, &err));
        read_all(t, &m);
        if (t->dims == 2) {
            check_rows(t, &m);
        }
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
