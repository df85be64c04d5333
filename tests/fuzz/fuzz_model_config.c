/* config.json of a model. Input: one byte that chooses the architecture whose tensors lie beside it, then the JSON.
 * What opens must have a configuration that agrees with its tensors, and must load or say why not. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok) {
    if (!ok) {
        abort();
    }
}

/* ---- the tensors ------------------------------------------------------------------------------------------------- */

enum { HIDDEN = 8, HEADS = 2, KV_HEADS = 1, HEAD_DIM = 4, FFN = 6, EXPERTS = 2, VOCAB = 10, LAYERS = 2, ARCHS = 4 };
/* Of the linear attention of layer 0 in the last of them. */
enum { KEY_HEADS = 1, VALUE_HEADS = 2, KEY_DIM = 4, VALUE_DIM = 3, KERNEL = 2 };
enum { VALUES = VALUE_HEADS * VALUE_DIM, CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUES };

/* One safetensors file being put together: all elements are BF16 zeros. */
typedef struct writer {
    sl_buf header;
    uint64_t at;
} writer;

static void add(writer *w, const char *name, int64_t rows, int64_t cols) {
    uint64_t end = w->at + 2 * (uint64_t)((rows ? rows : 1) * cols);
    sl_buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", w->at ? "," : "{", name);
    if (rows) {
        sl_buf_printf(&w->header, strstr(name, "conv1d") ? "%lld,1," : "%lld,", (long long)rows);
    }
    sl_buf_printf(&w->header, "%lld],\"data_offsets\":[%llu,%llu]}", (long long)cols, (unsigned long long)w->at,
                  (unsigned long long)end);
    w->at = end;
}

typedef struct shape {
    const char *name; /* behind "model.layers.N." */
    int64_t rows, cols;
    unsigned archs; /* bits: llama, qwen2_moe, qwen3_moe; qwen3_next: a bit for each of its two layers */
} shape;

enum { LLAMA = 1, QWEN2 = 2, QWEN3 = 4, NEXT0 = 8, NEXT1 = 16, NEXT = NEXT0 | NEXT1, ALL = 31 };

static const shape shapes[] = {
    {"input_layernorm.weight", 0, HIDDEN, ALL},
    {"post_attention_layernorm.weight", 0, HIDDEN, ALL},
    {"self_attn.q_proj.weight", HEADS *HEAD_DIM, HIDDEN, LLAMA | QWEN2 | QWEN3},
    {"self_attn.q_proj.weight", 2 * HEADS *HEAD_DIM, HIDDEN, NEXT1},
    {"self_attn.k_proj.weight", KV_HEADS *HEAD_DIM, HIDDEN, LLAMA | QWEN2 | QWEN3 | NEXT1},
    {"self_attn.v_proj.weight", KV_HEADS *HEAD_DIM, HIDDEN, LLAMA | QWEN2 | QWEN3 | NEXT1},
    {"self_attn.o_proj.weight", HIDDEN, HEADS *HEAD_DIM, LLAMA | QWEN2 | QWEN3 | NEXT1},
    {"self_attn.q_proj.bias", 0, HEADS *HEAD_DIM, QWEN2},
    {"self_attn.k_proj.bias", 0, KV_HEADS *HEAD_DIM, QWEN2},
    {"self_attn.v_proj.bias", 0, KV_HEADS *HEAD_DIM, QWEN2},
    {"self_attn.q_norm.weight", 0, HEAD_DIM, QWEN3 | NEXT1},
    {"self_attn.k_norm.weight", 0, HEAD_DIM, QWEN3 | NEXT1},
    {"mlp.gate_proj.weight", FFN, HIDDEN, LLAMA},
    {"mlp.up_proj.weight", FFN, HIDDEN, LLAMA},
    {"mlp.down_proj.weight", HIDDEN, FFN, LLAMA},
    {"mlp.gate.weight", EXPERTS, HIDDEN, QWEN2 | QWEN3 | NEXT},
    {"mlp.experts.0.gate_proj.weight", FFN, HIDDEN, QWEN2 | QWEN3 | NEXT},
    {"mlp.experts.0.up_proj.weight", FFN, HIDDEN, QWEN2 | QWEN3 | NEXT},
    {"mlp.experts.0.down_proj.weight", HIDDEN, FFN, QWEN2 | QWEN3 | NEXT},
    {"mlp.experts.1.gate_proj.weight", FFN, HIDDEN, QWEN2 | QWEN3 | NEXT},
    {"mlp.experts.1.up_proj.weight", FFN, HIDDEN, QWEN2 | QWEN3 | NEXT},
    {"mlp.experts.1.down_proj.weight", HIDDEN, FFN, QWEN2 | QWEN3 | NEXT},
    {"mlp.shared_expert.gate_proj.weight", FFN, HIDDEN, QWEN2 | NEXT},
    {"mlp.shared_expert.up_proj.weight", FFN, HIDDEN, QWEN2 | NEXT},
    {"mlp.shared_expert.down_proj.weight", HIDDEN, FFN, QWEN2 | NEXT},
    {"mlp.shared_expert_gate.weight", 1, HIDDEN, QWEN2 | NEXT},
    {"linear_attn.in_proj_qkvz.weight", CHANNELS + VALUES, HIDDEN, NEXT0},
    {"linear_attn.in_proj_ba.weight", 2 * VALUE_HEADS, HIDDEN, NEXT0},
    {"linear_attn.conv1d.weight", CHANNELS, KERNEL, NEXT0}, /* [channels][1][kernel] */
    {"linear_attn.A_log", 0, VALUE_HEADS, NEXT0},
    {"linear_attn.dt_bias", 0, VALUE_HEADS, NEXT0},
    {"linear_attn.norm.weight", 0, VALUE_DIM, NEXT0},
    {"linear_attn.out_proj.weight", HIDDEN, VALUES, NEXT0},
};

static void write_file(const char *dir, const char *name, const void *head, size_t head_bytes, const void *bytes,
                       size_t n) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    check(f && fwrite(head, 1, head_bytes, f) == head_bytes && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

static void write_tensors(const char *dir, unsigned arch) {
    writer w = {.at = 0};
    add(&w, "model.embed_tokens.weight", VOCAB, HIDDEN);
    add(&w, "model.norm.weight", 0, HIDDEN);
    add(&w, "lm_head.weight", VOCAB, HIDDEN);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < SL_COUNT(shapes); i++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, shapes[i].name);
            if (shapes[i].archs & (arch == NEXT0 ? NEXT0 << layer : arch)) {
                add(&w, name, shapes[i].rows, shapes[i].cols);
            }
        }
    }
    sl_buf_puts(&w.header, "}");
    uint64_t length = w.header.size;
    sl_buf whole = {0};
    uint8_t *zeros = calloc(1, (size_t)w.at);
    check(zeros && sl_buf_append(&whole, w.header.data, w.header.size) && sl_buf_append(&whole, zeros, (size_t)w.at));
    write_file(dir, "model.safetensors", &length, sizeof length, whole.data, whole.size);
    free(zeros);
    sl_buf_free(&whole);
    sl_buf_free(&w.header);
}

/* ---- directories, one per architecture -----------------------------------------------------------------------------
 */

static char dirs[ARCHS][64];

static void remove_dirs(void) {
    for (int i = 0; i < ARCHS; i++) {
        char path[100];
        snprintf(path, sizeof path, "%s/config.json", dirs[i]);
        unlink(path);
        snprintf(path, sizeof path, "%s/model.safetensors", dirs[i]);
        unlink(path);
        rmdir(dirs[i]);
    }
}

static void make_dirs(void) {
    const char *root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    for (int i = 0; i < ARCHS; i++) {
        snprintf(dirs[i], sizeof dirs[i], "%s/sluice-fuzz-XXXXXX", root);
        check(mkdtemp(dirs[i]) != NULL);
        write_tensors(dirs[i], 1u << i);
    }
    atexit(remove_dirs);
}

/* ---- one input --------------------------------------------------------------------------------------------------- */

static void check_config(const sl_model *m) {
    const sl_model_config *c = sl_model_config_get(m);
    int32_t layers;
    check(c->hidden == HIDDEN && c->vocab == VOCAB && c->layers == LAYERS);
    check(c->heads * c->head_dim == HEADS * HEAD_DIM && c->kv_heads * c->head_dim == KV_HEADS * HEAD_DIM);
    check(c->heads % c->kv_heads == 0 && c->rope_dims >= 0 && c->rope_dims <= c->head_dim && c->rope_dims % 2 == 0);
    check(c->rope_theta > 1 && c->norm_eps >= 0 && c->norm_eps <= 1 && c->context >= 1);
    sl_model_expert_layers(m, &layers);
    check(layers == c->moe_layers && (layers == 0 || (c->top_k >= 1 && c->top_k <= c->experts)));
}

static void load(sl_model *m) {
    static sl_pool *pool;
    sl_error err = {0};
    if (!pool) {
        pool = sl_pool_new(1, &err);
    }
    sl_mem *mem = sl_mem_new(8 << 20, 1 << 16, &err);
    check(pool && mem);
    sl_ops *ops = sl_ops_cpu_new(&(sl_ops_cpu_options){.pool = pool, .mem = mem, .numeric = SL_NUMERIC_EXACT}, &err);
    check(ops != NULL);
    check(sl_model_load(m, mem, ops, 2, 1, NULL, NULL, &err) || err.code != SL_OK);
    sl_model_free(m);
    sl_ops_free(ops);
    sl_mem_free(mem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    if (!*dirs[0]) {
        make_dirs();
    }
    const char *dir = dirs[data[0] % ARCHS];
    write_file(dir, "config.json", "", 0, data + 1, size - 1);
    sl_error err = {0};
    sl_ckpt *c = sl_ckpt_open(dir, &err);
    check(c || (err.code != SL_OK && *err.message));
    if (!c) {
        return 0;
    }
    sl_model *m = sl_model_open(c, &err);
    check(m || (err.code != SL_OK && *err.message && !strchr(err.message, '\n')));
    if (m) {
        check_config(m);
        load(m);
    }
    sl_ckpt_close(c);
    return 0;
}
