/* The tables of names: roles, expert namings, beginnings. */
#include "model/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const name_scheme schemes[] = {
    {"model.", "lm_head."},
    {"model.language_model.", "lm_head."},                /* transformers: text part of a multimodal model */
    {"language_model.model.", "language_model.lm_head."}, /* the same from MLX */
};

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
    [ROLE_SINKS] = {"model.layers.%d.self_attn.sinks", "blk.%d.attn_sinks.weight"},
    [ROLE_Q_A] = {"model.layers.%d.self_attn.q_a_proj.weight", "blk.%d.attn_q_a.weight"},
    [ROLE_Q_A_NORM] = {"model.layers.%d.self_attn.q_a_layernorm.weight", "blk.%d.attn_q_a_norm.weight"},
    [ROLE_Q_B] = {"model.layers.%d.self_attn.q_b_proj.weight", "blk.%d.attn_q_b.weight"},
    [ROLE_KV_A] = {"model.layers.%d.self_attn.kv_a_proj_with_mqa.weight", "blk.%d.attn_kv_a_mqa.weight"},
    [ROLE_KV_A_NORM] = {"model.layers.%d.self_attn.kv_a_layernorm.weight", "blk.%d.attn_kv_a_norm.weight"},
    [ROLE_KV_B] = {"model.layers.%d.self_attn.kv_b_proj.weight", "blk.%d.attn_kv_b.weight"},
    [ROLE_K_B] = {"", "blk.%d.attn_k_b.weight"},
    [ROLE_V_B] = {"", "blk.%d.attn_v_b.weight"},
    [ROLE_DELTA_QKV] = {"model.layers.%d.linear_attn.in_proj_qkv.weight", "blk.%d.attn_qkv.weight"},
    [ROLE_DELTA_Z] = {"model.layers.%d.linear_attn.in_proj_z.weight", "blk.%d.attn_gate.weight"},
    [ROLE_DELTA_B] = {"model.layers.%d.linear_attn.in_proj_b.weight", "blk.%d.ssm_beta.weight"},
    [ROLE_DELTA_A] = {"model.layers.%d.linear_attn.in_proj_a.weight", "blk.%d.ssm_alpha.weight"},
    [ROLE_DELTA_CONV] = {"model.layers.%d.linear_attn.conv1d.weight", "blk.%d.ssm_conv1d.weight"},
    [ROLE_DELTA_DECAY] = {"model.layers.%d.linear_attn.A_log", "blk.%d.ssm_a"},
    [ROLE_DELTA_DT] = {"model.layers.%d.linear_attn.dt_bias", "blk.%d.ssm_dt.bias"},
    [ROLE_DELTA_NORM] = {"model.layers.%d.linear_attn.norm.weight", "blk.%d.ssm_norm.weight"},
    [ROLE_DELTA_OUT] = {"model.layers.%d.linear_attn.out_proj.weight", "blk.%d.ssm_out.weight"},
    [ROLE_DELTA_QKVZ] = {"model.layers.%d.linear_attn.in_proj_qkvz.weight", "blk.%d.ssm_in.weight"},
    [ROLE_DELTA_BA] = {"model.layers.%d.linear_attn.in_proj_ba.weight", "blk.%d.ssm_ba.weight"},
    [ROLE_FFN_NORM] = {"model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight"},
    [ROLE_GATE] = {"model.layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight"},
    [ROLE_UP] = {"model.layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight"},
    [ROLE_DOWN] = {"model.layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight"},
    [ROLE_ROUTER] = {"model.layers.%d.mlp.gate.weight", "blk.%d.ffn_gate_inp.weight"},
    [ROLE_ROUTER_BIAS] = {"model.layers.%d.mlp.router.bias", "blk.%d.ffn_gate_inp.bias"},
    [ROLE_CHOICE_BIAS] = {"model.layers.%d.mlp.gate.e_score_correction_bias", "blk.%d.exp_probs_b.bias"},
    [ROLE_EXPERT_GATE_BIAS] = {"model.layers.%d.mlp.experts.gate_proj.bias", "blk.%d.ffn_gate_exps.bias"},
    [ROLE_EXPERT_UP_BIAS] = {"model.layers.%d.mlp.experts.up_proj.bias", "blk.%d.ffn_up_exps.bias"},
    [ROLE_EXPERT_DOWN_BIAS] = {"model.layers.%d.mlp.experts.down_proj_bias", "blk.%d.ffn_down_exps.bias"},
    [ROLE_EXPERT_DOWN_BIAS_MLX] = {"model.layers.%d.mlp.experts.down_proj.bias", ""},
    [ROLE_EXPERT_GATE_UP_BIAS] = {"model.layers.%d.mlp.experts.gate_up_proj_bias", ""},
    [ROLE_SHARED_GATE] = {"model.layers.%d.mlp.shared_expert.gate_proj.weight", "blk.%d.ffn_gate_shexp.weight"},
    [ROLE_SHARED_UP] = {"model.layers.%d.mlp.shared_expert.up_proj.weight", "blk.%d.ffn_up_shexp.weight"},
    [ROLE_SHARED_DOWN] = {"model.layers.%d.mlp.shared_expert.down_proj.weight", "blk.%d.ffn_down_shexp.weight"},
    [ROLE_SHARED_SIGMOID] = {"model.layers.%d.mlp.shared_expert_gate.weight", "blk.%d.ffn_gate_inp_shexp.weight"},
};

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
    /* mixtral and minimax_m2, from their makers and from MLX */
    {SL_CKPT_HF,
     false,
     false,
     {"model.layers.%d.block_sparse_moe.experts.%d.w1.weight", "model.layers.%d.block_sparse_moe.experts.%d.w3.weight",
      "model.layers.%d.block_sparse_moe.experts.%d.w2.weight"}},
    {SL_CKPT_HF,
     true,
     false,
     {"model.layers.%d.block_sparse_moe.switch_mlp.gate_proj.weight",
      "model.layers.%d.block_sparse_moe.switch_mlp.up_proj.weight",
      "model.layers.%d.block_sparse_moe.switch_mlp.down_proj.weight"}},
    /* gpt_oss from MLX */
    {SL_CKPT_HF,
     true,
     false,
     {"model.layers.%d.mlp.experts.gate_proj.weight", "model.layers.%d.mlp.experts.up_proj.weight",
      "model.layers.%d.mlp.experts.down_proj.weight"}},
    {SL_CKPT_GGUF,
     true,
     false,
     {"blk.%d.ffn_gate_exps.weight", "blk.%d.ffn_up_exps.weight", "blk.%d.ffn_down_exps.weight"}},
    {SL_CKPT_GGUF,
     true,
     true,
     {"blk.%d.ffn_gate_up_exps.weight", "blk.%d.ffn_gate_up_exps.weight", "blk.%d.ffn_down_exps.weight"}},
};
const int expert_naming_count = SL_COUNT(expert_namings);

/* ---- beginnings -------------------------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* The table's name as this scheme begins it. */
static void apply_scheme(const naming *n, const char *name, char out[NAME_MAX_BYTES]) {
    const name_scheme *first = &schemes[0];
    bool hf = n->kind == SL_CKPT_HF;
    if (hf && begins(name, first->body))
        snprintf(out, NAME_MAX_BYTES, "%s%s", n->scheme->body, name + strlen(first->body));
    else if (hf && begins(name, first->head))
        snprintf(out, NAME_MAX_BYTES, "%s%s", n->scheme->head, name + strlen(first->head));
    else
        snprintf(out, NAME_MAX_BYTES, "%s", name);
}

const name_scheme *name_scheme_of(const sl_ckpt *c) {
    for (size_t i = 0; i < SL_COUNT(schemes); i++) {
        const naming n = {.kind = SL_CKPT_HF, .scheme = &schemes[i]};
        char name[NAME_MAX_BYTES];
        role_name(&n, ROLE_EMBED, 0, name);
        if (sl_ckpt_find(c, name))
            return &schemes[i];
    }
    return &schemes[0];
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const char *role_format(const naming *n, role r) {
    for (const role_alias *a = n->aliases; a && a->role != ROLE_COUNT; a++)
        if (a->role == r && a->kind == n->kind)
            return a->name;
    return n->kind == SL_CKPT_HF ? role_names[r].hf : role_names[r].gguf;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
void role_name(const naming *n, role r, int32_t layer, char out[NAME_MAX_BYTES]) {
    char format[NAME_MAX_BYTES];
    apply_scheme(n, role_format(n, r), format);
    snprintf(out, NAME_MAX_BYTES, format, (int)layer);
}

void expert_name(const naming *n, const expert_naming *e, int proj, int32_t layer, int32_t expert,
                 char out[NAME_MAX_BYTES]) {
    char format[NAME_MAX_BYTES];
    apply_scheme(n, e->name[proj], format);
    snprintf(out, NAME_MAX_BYTES, format, (int)layer, (int)expert);
}
#pragma GCC diagnostic pop

int32_t name_layer(const naming *n, const char *name) {
    char first[NAME_MAX_BYTES], *end;
    apply_scheme(n, n->kind == SL_CKPT_HF ? "model.layers." : "blk.", first);
    if (!begins(name, first) || name[strlen(first)] < '0' || name[strlen(first)] > '9')
        return -1;
    long layer = strtol(name + strlen(first), &end, 10);
    return *end == '.' && layer <= INT32_MAX ? (int32_t)layer : -1;
}

bool name_ignorable(const char *name) {
    static const char *const suffixes[] = {".rotary_emb.inv_freq", ".attn_rot_embd", ".attention.masked_bias"};
    size_t n = strlen(name);
    for (size_t i = 0; i < SL_COUNT(suffixes); i++) {
        size_t s = strlen(suffixes[i]);
        if (n >= s && strcmp(name + n - s, suffixes[i]) == 0)
            return true;
    }
    return false;
}
