/* The table of architectures. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

enum { ATTENTION = 1u << MIXER_ATTENTION, DELTA = 1u << MIXER_DELTA };

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
     .shared_expert = true,
     .bias_field = "qkv_bias",
     .bias_default = true},
    {.name = "qwen3_moe",
     .gguf = "qwen3moe",
     .mixers = ATTENTION,
     .moe = true,
     .qk_norm = true,
     .gguf_normalize = true,
     .bias_field = "attention_bias",
     .bias_of_o = true},
    {.name = "qwen3_next",
     .gguf = "qwen3next",
     .mixers = ATTENTION | DELTA,
     .moe = true,
     .qk_norm = true,
     .shared_expert = true,
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
     .qk_norm = true,
     .shared_expert = true,
     .normalize = true,
     .gguf_normalize = true,
     .gguf_tiled = true,
     .attn_gate = true,
     .zero_centred = true,
     .rotary = 0.25,
     .bias_field = "attention_bias",
     .bias_of_o = true,
     .aliases = qwen3_next_names,
     .ignored = qwen3_next_ignored},
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

const arch *arch_by_gguf(const char *name, size_t n) {
    for (size_t i = 0; i < SL_COUNT(archs); i++)
        if (is(archs[i].gguf, name, n))
            return &archs[i];
    return NULL;
}

void arch_list(char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < SL_COUNT(archs) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", archs[i].name);
}
