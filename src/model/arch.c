/* The table of architectures. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

enum { ATTENTION = 1u << MIXER_ATTENTION, DELTA = 1u << MIXER_DELTA, MLA = 1u << MIXER_MLA };

/* The layer's second norm has another name in GGUF where attention is followed by it in all layers. */
static const role_alias qwen3_next_names[] = {
    {ROLE_FFN_NORM, SL_CKPT_GGUF, "blk.%d.post_attention_norm.weight"},
    {.role = ROLE_COUNT},
};

/* Images' and videos' encoder, and the head that predicts one token more. */
static const char *const qwen3_next_ignored[] = {
    "mtp.",
    "model.mtp.",
    "model.language_model.mtp.",
    "language_model.mtp.",
    "model.visual.",
    "visual.",
    "vision_tower.",
    "model.vision_tower.",
    NULL,
};

/* What mixtral's makers, and minimax_m2's, call their routers. */
static const role_alias mixtral_names[] = {
    {ROLE_ROUTER, SL_CKPT_HF, "model.layers.%d.block_sparse_moe.gate.weight"},
    {ROLE_CHOICE_BIAS, SL_CKPT_HF, "model.layers.%d.block_sparse_moe.e_score_correction_bias"},
    {.role = ROLE_COUNT},
};

static const role_alias deepseek_names[] = {
    {ROLE_SHARED_GATE, SL_CKPT_HF, "model.layers.%d.mlp.shared_experts.gate_proj.weight"},
    {ROLE_SHARED_UP, SL_CKPT_HF, "model.layers.%d.mlp.shared_experts.up_proj.weight"},
    {ROLE_SHARED_DOWN, SL_CKPT_HF, "model.layers.%d.mlp.shared_experts.down_proj.weight"},
    {.role = ROLE_COUNT},
};

static const role_alias glm4_names[] = {
    {ROLE_SHARED_GATE, SL_CKPT_HF, "model.layers.%d.mlp.shared_experts.gate_proj.weight"},
    {ROLE_SHARED_UP, SL_CKPT_HF, "model.layers.%d.mlp.shared_experts.up_proj.weight"},
    {ROLE_SHARED_DOWN, SL_CKPT_HF, "model.layers.%d.mlp.shared_experts.down_proj.weight"},
    {ROLE_FFN_NORM, SL_CKPT_GGUF, "blk.%d.post_attention_norm.weight"},
    {.role = ROLE_COUNT},
};

static const role_alias gpt_oss_names[] = {
    {ROLE_ROUTER, SL_CKPT_HF, "model.layers.%d.mlp.router.weight"},
    {ROLE_FFN_NORM, SL_CKPT_GGUF, "blk.%d.post_attention_norm.weight"},
    {.role = ROLE_COUNT},
};

static const arch archs[] = {
    {.name = "llama",
     .gguf = "llama",
     .mixers = ATTENTION,
     .gguf_interleaved = true,
     .bias_field = "attention_bias",
     .bias_of_o = true},
    {.name = "qwen2_moe",
     .gguf = "qwen2moe",
     .mixers = ATTENTION,
     .moe = true,
     .shared = SHARED_GATED,
     .bias_field = "qkv_bias",
     .bias_default = true},
    {.name = "qwen3_moe",
     .gguf = "qwen3moe",
     .mixers = ATTENTION,
     .moe = true,
     .qk_norm = QK_NORM_HEAD,
     .gguf_normalize = true,
     .bias_field = "attention_bias",
     .bias_of_o = true},
    {.name = "qwen3_next",
     .gguf = "qwen3next",
     .mixers = ATTENTION | DELTA,
     .moe = true,
     .qk_norm = QK_NORM_HEAD,
     .shared = SHARED_GATED,
     .normalize = true,
     .gguf_normalize = true,
     .delta_fused = true,
     .attn_gate = true,
     .zero_centred = true,
     .rotary = 0.25,
     .bias_field = "attention_bias",
     .bias_of_o = true,
     .aliases = qwen3_next_names,
     .ignored = qwen3_next_ignored},
    {.name = "qwen3_5_moe",
     .text_name = "qwen3_5_moe_text",
     .gguf = "qwen35moe",
     .mixers = ATTENTION | DELTA,
     .moe = true,
     .qk_norm = QK_NORM_HEAD,
     .shared = SHARED_GATED,
     .normalize = true,
     .always_normalizes = true,
     .gguf_normalize = true,
     .gguf_tiled = true,
     .attn_gate = true,
     .zero_centred = true,
     .rotary = 0.25,
     .bias_field = "attention_bias",
     .bias_of_o = true,
     .aliases = qwen3_next_names,
     .ignored = qwen3_next_ignored},
    /* In GGUF a llama with experts. */
    {.name = "mixtral",
     .gguf_experts_of = "llama",
     .mixers = ATTENTION,
     .moe = true,
     .normalize = true,
     .always_normalizes = true,
     .gguf_normalize = true,
     .gguf_interleaved = true,
     .ffn_of_experts = true,
     .sliding = 1,
     .aliases = mixtral_names},
    {.name = "olmoe",
     .gguf = "olmoe",
     .mixers = ATTENTION,
     .moe = true,
     .qk_norm = QK_NORM_WHOLE,
     .ffn_of_experts = true,
     .bias_field = "attention_bias",
     .bias_of_o = true},
    {.name = "glm4_moe",
     .gguf = "glm4moe",
     .mixers = ATTENTION,
     .moe = true,
     .qk_norm = QK_NORM_HEAD,
     .qk_norm_optional = true,
     .shared = SHARED_PLAIN,
     .router = SL_ROUTER_SIGMOID,
     .choice_bias = true,
     .normalize = true,
     .gguf_normalize = true,
     .rotary = 0.5,
     .bias_field = "attention_bias",
     .aliases = glm4_names},
    {.name = "deepseek_v3",
     .gguf = "deepseek2",
     .mixers = MLA,
     .moe = true,
     .shared = SHARED_PLAIN,
     .router = SL_ROUTER_SIGMOID,
     .choice_bias = true,
     .normalize = true,
     .gguf_normalize = true,
     .bias_field = "attention_bias",
     .aliases = deepseek_names},
    {.name = "minimax_m2",
     .gguf = "minimax-m2",
     .mixers = ATTENTION,
     .moe = true,
     .qk_norm = QK_NORM_WHOLE,
     .router = SL_ROUTER_SIGMOID,
     .choice_bias = true,
     .normalize = true,
     .always_normalizes = true,
     .gguf_normalize = true,
     .ffn_of_experts = true,
     .rotary = 1,
     .aliases = mixtral_names},
    {.name = "gpt_oss",
     .gguf = "gpt-oss",
     .mixers = ATTENTION,
     .moe = true,
     .router = SL_ROUTER_SOFTMAX_CHOSEN,
     .router_bias = true,
     .expert_bias = true,
     .ffn_of_experts = true,
     .sinks = true,
     .alternating = true,
     .yarn_fractional = true,
     .sliding = 2,
     .swiglu_alpha = 1.702f,
     .bias_field = "attention_bias",
     .bias_default = true,
     .bias_of_o = true,
     .aliases = gpt_oss_names},
};

static bool is(const char *name, const char *p, size_t n) {
    return name && strlen(name) == n && memcmp(name, p, n) == 0;
}

const arch *arch_by_hf(const char *model_type, size_t n) {
    for (size_t i = 0; i < SL_COUNT(archs); i++)
        if (is(archs[i].name, model_type, n) || is(archs[i].text_name, model_type, n))
            return &archs[i];
    return NULL;
}

const arch *arch_by_gguf(const char *name, size_t n, bool experts) {
    for (size_t i = 0; experts && i < SL_COUNT(archs); i++)
        if (is(archs[i].gguf_experts_of, name, n))
            return &archs[i];
    for (size_t i = 0; i < SL_COUNT(archs); i++)
        if (is(archs[i].gguf, name, n))
            return &archs[i];
    return NULL;
}

const char *arch_gguf(const arch *a) {
    return a->gguf ? a->gguf : a->gguf_experts_of;
}

void arch_list(char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < SL_COUNT(archs) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", archs[i].name);
}
