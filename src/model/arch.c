/* The tables: architectures, roles, expert namings. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

static const arch archs[] = {
    /* name       gguf      moe    qknorm shared gnorm  ginterl biases */
    {"llama", "llama", false, false, false, false, true, "attention_bias", false, true},
    {"qwen2_moe", "qwen2moe", true, false, true, false, false, "qkv_bias", true, false},
    {"qwen3_moe", "qwen3moe", true, true, false, true, false, "attention_bias", false, true},
};

const arch *arch_by_hf(const char *model_type, size_t n) {
    for (size_t i = 0; i < SL_COUNT(archs); i++)
        if (strlen(archs[i].name) == n && memcmp(archs[i].name, model_type, n) == 0)
            return &archs[i];
    return NULL;
}

const arch *arch_by_gguf(const char *name, size_t n) {
    for (size_t i = 0; i < SL_COUNT(archs); i++)
        if (strlen(archs[i].gguf) == n && memcmp(archs[i].gguf, name, n) == 0)
            return &archs[i];
    return NULL;
}

void arch_list(char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < SL_COUNT(archs) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", archs[i].name);
}

/* Indexed by role; %d is the layer. */
static const struct {
    const char *hf, *gguf;
} role_names[ROLE_COUNT] = {
    [ROLE_EMBED] = {"model.embed_tokens.weight", "token_embd.weight"},
    [ROLE_FINAL_NORM] = {"model.norm.weight", "output_norm.weight"},
    [ROLE_HEAD] = {"lm_head.weight", "output.weight"},
    [ROLE_ROPE_FREQS] = {"", "rope_freqs.weight"},
    [ROLE_ATTN_NORM] = {"model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight"},
    [ROLE_Q] = {"model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight"},
    [ROLE_Q_BIAS] = {"model.layers.%d.self_attn.q_proj.bias", "blk.%d.attn_q.bias"},
    [ROLE_K] = {"model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight"},
    [ROLE_K_BIAS] = {"model.layers.%d.self_attn.k_proj.bias", "blk.%d.attn_k.bias"},
    [ROLE_V] = {"model.layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight"},
    [ROLE_V_BIAS] = {"model.layers.%d.self_attn.v_proj.bias", "blk.%d.attn_v.bias"},
    [ROLE_O] = {"model.layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight"},
    [ROLE_O_BIAS] = {"model.layers.%d.self_attn.o_proj.bias", "blk.%d.attn_output.bias"},
    [ROLE_Q_NORM] = {"model.layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight"},
    [ROLE_K_NORM] = {"model.layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight"},
    [ROLE_FFN_NORM] = {"model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight"},
    [ROLE_GATE] = {"model.layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight"},
    [ROLE_UP] = {"model.layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight"},
    [ROLE_DOWN] = {"model.layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight"},
    [ROLE_ROUTER] = {"model.layers.%d.mlp.gate.weight", "blk.%d.ffn_gate_inp.weight"},
    [ROLE_SHARED_GATE] = {"model.layers.%d.mlp.shared_expert.gate_proj.weight", "blk.%d.ffn_gate_shexp.weight"},
    [ROLE_SHARED_UP] = {"model.layers.%d.mlp.shared_expert.up_proj.weight", "blk.%d.ffn_up_shexp.weight"},
    [ROLE_SHARED_DOWN] = {"model.layers.%d.mlp.shared_expert.down_proj.weight", "blk.%d.ffn_down_shexp.weight"},
    [ROLE_SHARED_SIGMOID] = {"model.layers.%d.mlp.shared_expert_gate.weight", "blk.%d.ffn_gate_inp_shexp.weight"},
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
void role_name(role r, sl_ckpt_kind kind, int32_t layer, char out[NAME_MAX_BYTES]) {
    snprintf(out, NAME_MAX_BYTES, kind == SL_CKPT_HF ? role_names[r].hf : role_names[r].gguf, (int)layer);
}
#pragma GCC diagnostic pop

const expert_naming expert_namings[] = {
    {SL_CKPT_HF,
     false,
     false,
     {"model.layers.%d.mlp.experts.%d.gate_proj.weight", "model.layers.%d.mlp.experts.%d.up_proj.weight",
      "model.layers.%d.mlp.experts.%d.down_proj.weight"}},
    /* MLX */
    {SL_CKPT_HF,
     true,
     false,
     {"model.layers.%d.mlp.switch_mlp.gate_proj.weight", "model.layers.%d.mlp.switch_mlp.up_proj.weight",
      "model.layers.%d.mlp.switch_mlp.down_proj.weight"}},
    /* transformers 5 */
    {SL_CKPT_HF,
     true,
     true,
     {"model.layers.%d.mlp.experts.gate_up_proj", "model.layers.%d.mlp.experts.gate_up_proj",
      "model.layers.%d.mlp.experts.down_proj"}},
    {SL_CKPT_GGUF,
     true,
     false,
     {"blk.%d.ffn_gate_exps.weight", "blk.%d.ffn_up_exps.weight", "blk.%d.ffn_down_exps.weight"}},
};
const int expert_naming_count = SL_COUNT(expert_namings);

bool tensor_ignorable(const char *name) {
    static const char *const suffixes[] = {".rotary_emb.inv_freq", ".attn_rot_embd", ".attention.masked_bias"};
    size_t n = strlen(name);
    for (size_t i = 0; i < SL_COUNT(suffixes); i++) {
        size_t s = strlen(suffixes[i]);
        if (n >= s && strcmp(name + n - s, suffixes[i]) == 0)
            return true;
    }
    return false;
}
