/* Published shapes as rows, and the tensors that a shape has. Deviations keep a forward pass in a sane range: a matrix
 * of `in` columns has 1/sqrt(in), those that write to the residual stream are smaller by sqrt(2 * layers), and the
 * router's logits spread enough for tokens to choose differently. */
#include "synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const synth_shape synth_shapes[] = {
    {.name = "qwen3-30b-a3b",
     .note = "Qwen3-30B-A3B, 17.4 GB as Q4_0",
     .arch = "qwen3_moe",
     .layers = 48,
     .hidden = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .experts = 128,
     .top_k = 8,
     .expert_ffn = 768,
     .ffn = 6144,
     .vocab = 151936,
     .context = 40960,
     .normalize = true},
    {.name = "qwen3-moe-24l",
     .note = "its first 24 layers with a tied head, 8.6 GB as Q4_0: the benchmark's shape",
     .arch = "qwen3_moe",
     .layers = 24,
     .hidden = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .experts = 128,
     .top_k = 8,
     .expert_ffn = 768,
     .ffn = 6144,
     .vocab = 151936,
     .context = 40960,
     .tied = true,
     .normalize = true},
    {.name = "qwen1.5-moe-a2.7b",
     .note = "Qwen1.5-MoE-A2.7B, 8.1 GB as Q4_0",
     .arch = "qwen2_moe",
     .layers = 24,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128,
     .experts = 60,
     .top_k = 4,
     .expert_ffn = 1408,
     .shared_ffn = 5632,
     .ffn = 5632,
     .vocab = 151936,
     .context = 8192},
    /* The checkpoints' own config.json: Qwen/Qwen3.5-35B-A3B (Qwen3.6-35B-A3B has the same sizes), -122B-A10B and
     * -397B-A17B; Qwen/Qwen3-Next-80B-A3B-Instruct, whose sizes are also the defaults of transformers' Qwen3NextConfig.
     */
    {.name = "qwen3.5-35b-a3b",
     .note = "Qwen3.5-35B-A3B and Qwen3.6, 19.5 GB at 4 bit",
     .arch = "qwen3_5_moe",
     .layers = 40,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 2,
     .head_dim = 256,
     .experts = 256,
     .top_k = 8,
     .expert_ffn = 512,
     .shared_ffn = 512,
     .vocab = 248320,
     .context = 262144,
     .normalize = true,
     .rope_theta = 1e7,
     .interval = 4,
     .delta_key_heads = 16,
     .delta_value_heads = 32,
     .delta_key_dim = 128,
     .delta_value_dim = 128,
     .delta_kernel = 4,
     .rotary = 0.25},
    {.name = "qwen3.5-122b-a10b",
     .note = "Qwen3.5-122B-A10B, 69 GB at 4 bit",
     .arch = "qwen3_5_moe",
     .layers = 48,
     .hidden = 3072,
     .heads = 32,
     .kv_heads = 2,
     .head_dim = 256,
     .experts = 256,
     .top_k = 8,
     .expert_ffn = 1024,
     .shared_ffn = 1024,
     .vocab = 248320,
     .context = 262144,
     .normalize = true,
     .rope_theta = 1e7,
     .interval = 4,
     .delta_key_heads = 16,
     .delta_value_heads = 64,
     .delta_key_dim = 128,
     .delta_value_dim = 128,
     .delta_kernel = 4,
     .rotary = 0.25},
    {.name = "qwen3.5-397b-a17b",
     .note = "Qwen3.5-397B-A17B, 223 GB at 4 bit",
     .arch = "qwen3_5_moe",
     .layers = 60,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 2,
     .head_dim = 256,
     .experts = 512,
     .top_k = 10,
     .expert_ffn = 1024,
     .shared_ffn = 1024,
     .vocab = 248320,
     .context = 262144,
     .normalize = true,
     .rope_theta = 1e7,
     .interval = 4,
     .delta_key_heads = 16,
     .delta_value_heads = 64,
     .delta_key_dim = 128,
     .delta_value_dim = 128,
     .delta_kernel = 4,
     .rotary = 0.25},
    {.name = "qwen3-next-80b-a3b",
     .note = "Qwen3-Next-80B-A3B, 45 GB at 4 bit",
     .arch = "qwen3_next",
     .layers = 48,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 2,
     .head_dim = 256,
     .experts = 512,
     .top_k = 10,
     .expert_ffn = 512,
     .shared_ffn = 512,
     .ffn = 5120,
     .vocab = 151936,
     .context = 262144,
     .normalize = true,
     .rope_theta = 1e7,
     .interval = 4,
     .delta_key_heads = 16,
     .delta_value_heads = 32,
     .delta_key_dim = 128,
     .delta_value_dim = 128,
     .delta_kernel = 4,
     .rotary = 0.25},
    {.name = "small-qwen3-moe",
     .note = "a shape for tests, 12 MB as Q4_0",
     .arch = "qwen3_moe",
     .layers = 6,
     .hidden = 256,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 64,
     .experts = 32,
     .top_k = 4,
     .expert_ffn = 128,
     .ffn = 512,
     .vocab = 512,
     .context = 2048,
     .normalize = true},
    {.name = "tiny-qwen3-moe",
     .note = "a shape for tests, 0.2 MB as Q4_0",
     .arch = "qwen3_moe",
     .layers = 2,
     .hidden = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 64,
     .ffn = 128,
     .vocab = 320,
     .context = 512,
     .normalize = true},
    {.name = "tiny-qwen2-moe",
     .note = "a shape for tests, 0.2 MB as Q4_0",
     .arch = "qwen2_moe",
     .layers = 2,
     .hidden = 64,
     .heads = 4,
     .kv_heads = 4,
     .head_dim = 16,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 64,
     .shared_ffn = 128,
     .ffn = 128,
     .vocab = 320,
     .context = 512},
    {.name = "small-qwen3.5-moe",
     .note = "a shape for tests, 12 MB as Q4_0",
     .arch = "qwen3_5_moe",
     .layers = 8,
     .hidden = 256,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 64,
     .experts = 24,
     .top_k = 4,
     .expert_ffn = 128,
     .shared_ffn = 128,
     .vocab = 512,
     .context = 2048,
     .normalize = true,
     .rope_theta = 1e7,
     .interval = 4,
     .delta_key_heads = 2,
     .delta_value_heads = 6,
     .delta_key_dim = 32,
     .delta_value_dim = 32,
     .delta_kernel = 4,
     .rotary = 0.25},
    {.name = "tiny-qwen3.5-moe",
     .note = "a shape for tests, 0.4 MB as Q4_0",
     .arch = "qwen3_5_moe",
     .layers = 4,
     .hidden = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .experts = 8,
     .top_k = 3,
     .expert_ffn = 64,
     .shared_ffn = 64,
     .vocab = 320,
     .context = 512,
     .normalize = true,
     .rope_theta = 1e7,
     .interval = 2,
     .delta_key_heads = 2,
     .delta_value_heads = 4,
     .delta_key_dim = 16,
     .delta_value_dim = 16,
     .delta_kernel = 4,
     .rotary = 0.25},
    {.name = "tiny-qwen3-next",
     .note = "a shape for tests, 0.4 MB as Q4_0",
     .arch = "qwen3_next",
     .layers = 3,
     .hidden = 64,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 64,
     .experts = 8,
     .top_k = 3,
     .expert_ffn = 64,
     .shared_ffn = 64,
     .ffn = 128,
     .vocab = 320,
     .context = 512,
     .normalize = true,
     .rope_theta = 1e7,
     .interval = 3,
     .delta_key_heads = 2,
     .delta_value_heads = 4,
     .delta_key_dim = 16,
     .delta_value_dim = 16,
     .delta_kernel = 4,
     .rotary = 0.25},
    {.name = NULL}};

const synth_shape *synth_find_shape(const char *name) {
    for (const synth_shape *s = synth_shapes; s->name; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

int64_t synth_elements(const synth_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->dims; d++)
        n *= t->shape[d];
    return n;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

typedef struct tensor_list {
    synth_tensor *items;
    size_t count, capacity;
    int layer;            /* < 0: outside the layers */
    const char *hf_begin; /* of names in MLX directories */
    bool mlx, failed;
} tensor_list;

/* NULL for the name in one of the containers: there it has no such tensor. */
static synth_tensor *add(tensor_list *l, const char *gguf, const char *hf) {
    static synth_tensor nowhere;
    if (!(l->mlx ? hf : gguf))
        return &nowhere;
    if (l->failed || !sl_grow((void **)&l->items, &l->capacity, l->count + 1, sizeof *l->items)) {
        l->failed = true;
        return &nowhere;
    }
    synth_tensor *t = &l->items[l->count++];
    *t = (synth_tensor){.dims = 1};
    if (l->layer < 0) {
        snprintf(t->gguf, sizeof t->gguf, "%s", gguf ? gguf : "");
        snprintf(t->hf, sizeof t->hf, "%s%s", l->hf_begin, hf ? hf : "");
    } else {
        snprintf(t->gguf, sizeof t->gguf, "blk.%d.%s", l->layer, gguf ? gguf : "");
        snprintf(t->hf, sizeof t->hf, "%smodel.layers.%d.%s", l->hf_begin, l->layer, hf ? hf : "");
    }
    return t;
}

static void add_matrix(tensor_list *l, const char *gguf, const char *hf, int64_t rows, int64_t cols, double factor) {
    synth_tensor *t = add(l, gguf, hf);
    t->quantised = true;
    t->dims = 2;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->deviation = factor / sqrt((double)cols);
}

static void add_stack(tensor_list *l, const char *gguf, const char *hf, int64_t n, int64_t rows, int64_t cols,
                      double factor) {
    synth_tensor *t = add(l, gguf, hf);
    t->quantised = true;
    t->dims = 3;
    t->shape[0] = n;
    t->shape[1] = rows;
    t->shape[2] = cols;
    t->deviation = factor / sqrt((double)cols);
}

static void add_vector(tensor_list *l, const char *gguf, const char *hf, int64_t n, double mean, double deviation) {
    synth_tensor *t = add(l, gguf, hf);
    t->shape[0] = n;
    t->mean = mean;
    t->deviation = deviation;
}

/* Stays float: which experts are chosen hangs on it. */
static void add_router(tensor_list *l, const char *gguf, const char *hf, int64_t rows, int64_t cols) {
    synth_tensor *t = add(l, gguf, hf);
    t->router = true;
    t->dims = 2;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->deviation = 2 / sqrt((double)cols);
}

/* With Gated DeltaNet goes a gate of attention's output, in the product of q. */
static void add_attention(tensor_list *l, const synth_shape *s, double out_factor) {
    int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    bool qwen2 = strcmp(s->arch, "qwen2_moe") == 0;
    add_matrix(l, "attn_q.weight", "self_attn.q_proj", s->interval ? 2 * q : q, s->hidden, 1);
    add_matrix(l, "attn_k.weight", "self_attn.k_proj", kv, s->hidden, 1);
    add_matrix(l, "attn_v.weight", "self_attn.v_proj", kv, s->hidden, 1);
    if (qwen2) {
        add_vector(l, "attn_q.bias", "self_attn.q_proj.bias", q, 0, 0.1);
        add_vector(l, "attn_k.bias", "self_attn.k_proj.bias", kv, 0, 0.1);
        add_vector(l, "attn_v.bias", "self_attn.v_proj.bias", kv, 0, 0.1);
    } else {
        add_vector(l, "attn_q_norm.weight", "self_attn.q_norm.weight", s->head_dim, 1, 0.05);
        add_vector(l, "attn_k_norm.weight", "self_attn.k_norm.weight", s->head_dim, 1, 0.05);
    }
    add_matrix(l, "attn_output.weight", "self_attn.o_proj", s->hidden, q, out_factor);
}

/* The four inputs as one matrix (qwen3_next outside of GGUF) or as two and two. */
static void add_delta_inputs(tensor_list *l, const synth_shape *s) {
    int64_t value = (int64_t)s->delta_value_heads * s->delta_value_dim, heads = s->delta_value_heads,
            qkv = 2 * (int64_t)s->delta_key_heads * s->delta_key_dim + value;
    bool next = strcmp(s->arch, "qwen3_next") == 0;
    add_matrix(l, NULL, next ? "linear_attn.in_proj_qkvz" : NULL, qkv + value, s->hidden, 1);
    add_matrix(l, "attn_qkv.weight", next ? NULL : "linear_attn.in_proj_qkv", qkv, s->hidden, 1);
    add_matrix(l, "attn_gate.weight", next ? NULL : "linear_attn.in_proj_z", value, s->hidden, 1);
    add_matrix(l, next ? "ssm_ba.weight" : NULL, next ? "linear_attn.in_proj_ba" : NULL, 2 * heads, s->hidden, 1);
    add_matrix(l, next ? NULL : "ssm_beta.weight", next ? NULL : "linear_attn.in_proj_b", heads, s->hidden, 1);
    add_matrix(l, next ? NULL : "ssm_alpha.weight", next ? NULL : "linear_attn.in_proj_a", heads, s->hidden, 1);
}

/* A step forgets a tenth or so, more in some heads than in others. */
static void add_delta(tensor_list *l, const synth_shape *s, double out_factor) {
    int64_t value = (int64_t)s->delta_value_heads * s->delta_value_dim, heads = s->delta_value_heads;
    add_delta_inputs(l, s);
    synth_tensor *conv = add(l, "ssm_conv1d.weight", "linear_attn.conv1d.weight");
    conv->kernel = true;
    conv->dims = 2;
    conv->shape[0] = 2 * (int64_t)s->delta_key_heads * s->delta_key_dim + value;
    conv->shape[1] = s->delta_kernel;
    conv->deviation = 1 / sqrt((double)s->delta_kernel);
    add_vector(l, "ssm_dt.bias", "linear_attn.dt_bias", heads, -2, 1);
    add_vector(l, "ssm_norm.weight", "linear_attn.norm.weight", s->delta_value_dim, 1, 0.05);
    add_matrix(l, "ssm_out.weight", "linear_attn.out_proj", s->hidden, value, out_factor);
    synth_tensor *a = add(l, "ssm_a", "linear_attn.A_log");
    a->logarithm = true;
    a->shape[0] = heads;
    a->deviation = 0.7;
}

static void add_mixer(tensor_list *l, const synth_shape *s, double out_factor) {
    add_vector(l, "attn_norm.weight", "input_layernorm.weight", s->hidden, 1, 0.05);
    if (s->interval && (l->layer + 1) % s->interval)
        add_delta(l, s, out_factor);
    else
        add_attention(l, s, out_factor);
}

static void add_experts(tensor_list *l, const synth_shape *s, double out_factor) {
    add_vector(l, s->interval ? "post_attention_norm.weight" : "ffn_norm.weight", "post_attention_layernorm.weight",
               s->hidden, 1, 0.05);
    add_router(l, "ffn_gate_inp.weight", "mlp.gate.weight", s->experts, s->hidden);
    add_stack(l, "ffn_gate_exps.weight", "mlp.switch_mlp.gate_proj", s->experts, s->expert_ffn, s->hidden, 1);
    add_stack(l, "ffn_up_exps.weight", "mlp.switch_mlp.up_proj", s->experts, s->expert_ffn, s->hidden, 1);
    add_stack(l, "ffn_down_exps.weight", "mlp.switch_mlp.down_proj", s->experts, s->hidden, s->expert_ffn, out_factor);
    if (s->shared_ffn == 0)
        return;
    add_matrix(l, "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj", s->shared_ffn, s->hidden, 1);
    add_matrix(l, "ffn_up_shexp.weight", "mlp.shared_expert.up_proj", s->shared_ffn, s->hidden, 1);
    add_matrix(l, "ffn_down_shexp.weight", "mlp.shared_expert.down_proj", s->hidden, s->shared_ffn, out_factor);
    add_vector(l, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", s->hidden, 0,
               1 / sqrt((double)s->hidden));
}

bool synth_is_nested(const synth_shape *s) {
    return strcmp(s->arch, "qwen3_5_moe") == 0;
}

synth_tensor *synth_tensors(const synth_shape *s, bool mlx, size_t *count, sl_error *err) {
    tensor_list l = {.layer = -1, .hf_begin = synth_is_nested(s) ? "language_model." : "", .mlx = mlx};
    double out_factor = 1 / sqrt(2.0 * s->layers);
    /* Wide enough that a token's own embedding outweighs what attention mixes in from all others: else every token
     * would look alike to the routers and ask for the same few experts. */
    add_matrix(&l, "token_embd.weight", "model.embed_tokens", s->vocab, s->hidden, 0.5 * sqrt((double)s->hidden));
    for (l.layer = 0; l.layer < s->layers; l.layer++) {
        add_mixer(&l, s, out_factor);
        add_experts(&l, s, out_factor);
    }
    l.layer = -1;
    add_vector(&l, "output_norm.weight", "model.norm.weight", s->hidden, 1, 0.05);
    if (!s->tied)
        add_matrix(&l, "output.weight", "lm_head", s->vocab, s->hidden, 1);
    if (l.failed) {
        free(l.items);
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for the list of tensors");
    }
    *count = l.count;
    return l.items;
}
