/* Configurations that cannot be: each gives one line that names the file, the field, what was found and what was
 * expected; nothing is passed over because it looks odd. */
#include "support_edit.h"

#include "model/model.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ALL "llama"

/* One field of config.json set to a JSON text (NULL: removed). message: all of these parts, '|' between them; NULL: the
 * model opens. */
typedef struct field_case {
    const char *base, *field, *json;
    sl_code code;
    const char *message;
} field_case;

static const field_case cases[] = {
    {ALL, "model_type", NULL, SL_ERR_FORMAT, "field model_type is missing"},
    {ALL, "model_type", "null", SL_ERR_FORMAT, "field model_type is missing"},
    {ALL, "model_type", "7", SL_ERR_FORMAT, "field model_type is 7, a string expected"},
    {ALL, "model_type", "\"gpt9\"", SL_ERR_UNSUPPORTED,
     "architecture 'gpt9' is not supported|llama, qwen2_moe, qwen3_moe"},
    {ALL, "model_type", "\"\"", SL_ERR_UNSUPPORTED, "architecture '' is not supported"},
    {ALL, "model_type", "\"llama\\u0000x\"", SL_ERR_UNSUPPORTED, "is not supported"},
    {ALL, "model_type", "\"a\\nb\\u001b[2J\"", SL_ERR_UNSUPPORTED, "architecture 'a\\x0ab\\x1b[2J' is not"},
    /* sizes: missing, of another type, out of range, contradicting the tensors */
    {ALL, "hidden_size", NULL, SL_ERR_FORMAT, "field hidden_size is missing"},
    {ALL, "hidden_size", "64.0", SL_ERR_FORMAT, "field hidden_size is 64.0, one integer from 1 to 1048576 expected"},
    {ALL, "hidden_size", "\"64\"", SL_ERR_FORMAT, "field hidden_size is \"64\", one integer"},
    {ALL, "hidden_size", "[64]", SL_ERR_FORMAT, "field hidden_size is [64], one integer"},
    {ALL, "hidden_size", "{}", SL_ERR_FORMAT, "field hidden_size is {}, one integer"},
    {ALL, "hidden_size", "true", SL_ERR_FORMAT, "field hidden_size is true, one integer"},
    {ALL, "hidden_size", "0", SL_ERR_FORMAT, "field hidden_size is 0, one integer"},
    {ALL, "hidden_size", "-64", SL_ERR_FORMAT, "field hidden_size is -64, one integer"},
    {ALL, "hidden_size", "9223372036854775807", SL_ERR_FORMAT, "field hidden_size is 9"},
    {ALL, "hidden_size", "4294967360", SL_ERR_FORMAT, "field hidden_size is 4294967360, one integer"},
    {ALL, "hidden_size", "1048576", SL_ERR_FORMAT, "model.embed_tokens.weight|272x64|272x1048576"},
    {ALL, "hidden_size", "63", SL_ERR_FORMAT, "hidden size 63|multiple of the 4 heads"},
    {ALL, "num_hidden_layers", NULL, SL_ERR_FORMAT, "field num_hidden_layers is missing"},
    {ALL, "num_hidden_layers", "0", SL_ERR_FORMAT, "num_hidden_layers is 0"},
    {ALL, "num_hidden_layers", "4097", SL_ERR_FORMAT, "num_hidden_layers is 4097, one integer from 1 to 4096"},
    {ALL, "num_hidden_layers", "4096", SL_ERR_FORMAT, "model.layers.2."},
    {ALL, "num_hidden_layers", "1", SL_ERR_UNSUPPORTED, "tensor model.layers.1.|has no place in architecture llama"},
    {ALL, "num_attention_heads", "0", SL_ERR_FORMAT, "num_attention_heads is 0"},
    {ALL, "num_attention_heads", "3", SL_ERR_FORMAT, "3 attention heads, a multiple of the 2 KV heads expected"},
    {ALL, "num_attention_heads", "100000", SL_ERR_FORMAT, "num_attention_heads is 100000"},
    {ALL, "num_attention_heads", "16384", SL_ERR_FORMAT, "hidden size 64"},
    {ALL, "num_key_value_heads", "4", SL_ERR_FORMAT, "self_attn.k_proj.weight|32x64|64x64"},
    {ALL, "num_key_value_heads", "-1", SL_ERR_FORMAT, "num_key_value_heads is -1"},
    {ALL, "num_key_value_heads", NULL, SL_ERR_FORMAT, "self_attn.k_proj.weight|32x64|64x64"}, /* as many as heads */
    {ALL, "head_dim", "32", SL_ERR_FORMAT, "self_attn.q_proj.weight|64x64|128x64"},
    {ALL, "head_dim", "4097", SL_ERR_FORMAT, "head_dim is 4097"},
    {ALL, "head_dim", "null", SL_OK, NULL},
    {"qwen3_moe", "head_dim", NULL, SL_ERR_FORMAT, "self_attn.q_proj.weight|128x64|64x64"},
    {"qwen3_moe", "head_dim", "33", SL_ERR_FORMAT, "33 rotated dimensions of a head, an even number expected"},
    {ALL, "intermediate_size", "65", SL_ERR_FORMAT, "mlp.gate_proj.weight|64x64|65x64"},
    {ALL, "intermediate_size", "0", SL_ERR_FORMAT, "layer 0 is dense"},
    {ALL, "intermediate_size", NULL, SL_ERR_FORMAT, "layer 0 is dense"},
    {ALL, "intermediate_size", "1e3", SL_ERR_FORMAT, "intermediate_size is 1000.0, one integer"},
    {ALL, "max_position_embeddings", NULL, SL_ERR_FORMAT, "max_position_embeddings is missing"},
    {ALL, "max_position_embeddings", "0", SL_ERR_FORMAT, "max_position_embeddings is 0"},
    {ALL, "max_position_embeddings", "2147483648", SL_ERR_FORMAT, "max_position_embeddings is 2147483648"},
    {ALL, "vocab_size", "271", SL_ERR_FORMAT, "model.embed_tokens.weight|272x64|271x64"},
    {ALL, "vocab_size", "\"many\"", SL_ERR_FORMAT, "vocab_size is \"many\", one integer"},
    {ALL, "vocab_size", "-5", SL_ERR_FORMAT, "vocab_size is -5"},
    {ALL, "vocab_size", NULL, SL_OK, NULL}, /* the embedding has it */
    /* experts */
    {"qwen3_moe", "num_experts", NULL, SL_ERR_FORMAT, "num_experts is missing"},
    {"qwen3_moe", "num_experts", "0", SL_ERR_FORMAT, "num_experts is 0"},
    {"qwen3_moe", "num_experts", "65537", SL_ERR_FORMAT, "num_experts is 65537"},
    {"qwen3_moe", "num_experts", "65536", SL_ERR_FORMAT, "mlp.gate.weight|8x64|65536x64"},
    {"qwen3_moe", "num_experts", "7", SL_ERR_FORMAT, "mlp.gate.weight|8x64|7x64"},
    {"qwen3_moe", "num_local_experts", "8", SL_OK, NULL}, /* beside num_experts, which says the same */
    {"qwen3_moe", "num_local_experts", "7", SL_ERR_FORMAT, "num_local_experts is 7, the same as field num_experts"},
    {"qwen3_moe", "num_experts_per_tok", NULL, SL_ERR_FORMAT, "num_experts_per_tok is missing"},
    {"qwen3_moe", "num_experts_per_tok", "0", SL_ERR_FORMAT, "num_experts_per_tok is 0"},
    {"qwen3_moe", "num_experts_per_tok", "9", SL_ERR_FORMAT, "9 experts per token, at most the 8 experts"},
    {"qwen3_moe", "num_experts_per_tok", "8", SL_OK, NULL},
    {"qwen3_moe", "moe_intermediate_size", "31", SL_ERR_FORMAT, "mlp.experts.0.gate_proj.weight|32x64|31x64"},
    {"qwen3_moe", "moe_intermediate_size", NULL, SL_OK, NULL}, /* the tensors have it */
    {"qwen2_moe", "shared_expert_intermediate_size", "33", SL_ERR_FORMAT, "shared_expert.gate_proj.weight|32x64|33x64"},
    {"qwen2_moe", "shared_expert_intermediate_size", "-1", SL_ERR_FORMAT, "shared_expert_intermediate_size is -1"},
    {"qwen3_moe", "mlp_only_layers", "[2]", SL_ERR_FORMAT, "mlp_only_layers is [2], a list of layers from 0 to 1"},
    {"qwen3_moe", "mlp_only_layers", "[-1]", SL_ERR_FORMAT, "mlp_only_layers is [-1]"},
    {"qwen3_moe", "mlp_only_layers", "[0.0]", SL_ERR_FORMAT, "mlp_only_layers is [0.0]"},
    {"qwen3_moe", "mlp_only_layers", "[\"0\"]", SL_ERR_FORMAT, "mlp_only_layers is [\"0\"]"},
    {"qwen3_moe", "mlp_only_layers", "1", SL_ERR_FORMAT, "mlp_only_layers is 1, a list of layers"},
    {"qwen3_moe", "mlp_only_layers", "{}", SL_ERR_FORMAT, "mlp_only_layers is {}"},
    {"qwen3_moe", "mlp_only_layers", "[0]", SL_ERR_FORMAT, "model.layers.0.mlp.gate_proj.weight\" is missing"},
    {"qwen3_moe", "mlp_only_layers", "null", SL_OK, NULL},
    {"qwen3_moe", "decoder_sparse_step", "0", SL_ERR_FORMAT, "decoder_sparse_step is 0"},
    {"qwen3_moe", "decoder_sparse_step", "1.5", SL_ERR_FORMAT, "decoder_sparse_step is 1.5"},
    {"qwen3_moe", "decoder_sparse_step", "2", SL_ERR_FORMAT, "model.layers.0.mlp.gate_proj.weight\" is missing"},
    {"qwen3_moe", "norm_topk_prob", "1", SL_ERR_FORMAT, "norm_topk_prob is 1, true or false expected"},
    {"qwen3_moe", "norm_topk_prob", "\"true\"", SL_ERR_FORMAT, "norm_topk_prob is \"true\", true or false"},
    /* what the blocks cannot do */
    {ALL, "hidden_act", "\"gelu\"", SL_ERR_UNSUPPORTED, "hidden_act is \"gelu\", silu"},
    {ALL, "hidden_act", "3", SL_ERR_FORMAT, "hidden_act is 3, a string"},
    {ALL, "mlp_bias", "true", SL_ERR_UNSUPPORTED, "mlp_bias is true, false"},
    {ALL, "mlp_bias", "0", SL_ERR_FORMAT, "mlp_bias is 0, true or false"},
    {"qwen3_moe", "use_sliding_window", "true", SL_ERR_UNSUPPORTED, "use_sliding_window is true, false"},
    {"qwen2_moe", "layer_types", "[\"full_attention\",\"full_attention\"]", SL_OK, NULL},
    {"qwen2_moe", "layer_types", "[\"sliding_attention\",\"full_attention\"]", SL_ERR_UNSUPPORTED,
     "layer_types is [\"sliding_attention\",|full_attention for each layer"},
    {"qwen2_moe", "layer_types", "\"full_attention\"", SL_ERR_FORMAT, "layer_types is \"full_attention\", a list"},
    {ALL, "attention_bias", "true", SL_ERR_FORMAT, "self_attn.q_proj.bias\" is missing"},
    {ALL, "attention_bias", "\"no\"", SL_ERR_FORMAT, "attention_bias is \"no\", true or false"},
    {"qwen2_moe", "qkv_bias", "false", SL_ERR_UNSUPPORTED, "self_attn.q_proj.bias has no place"},
    {ALL, "partial_rotary_factor", "0.5", SL_ERR_FORMAT, "partial_rotary_factor is 0.5"},
    {ALL, "partial_rotary_factor", "1", SL_OK, NULL},
    /* numbers */
    {ALL, "rms_norm_eps", "\"small\"", SL_ERR_FORMAT, "rms_norm_eps is \"small\", a number from 0 to 1"},
    {ALL, "rms_norm_eps", "-1e-6", SL_ERR_FORMAT, "rms_norm_eps is -"},
    {ALL, "rms_norm_eps", "1e30", SL_ERR_FORMAT, "rms_norm_eps is 1e30"},
    {ALL, "rope_theta", "0", SL_ERR_FORMAT, "rope_theta is 0, a number from"},
    {ALL, "rope_theta", "-10000", SL_ERR_FORMAT, "rope_theta is -10000"},
    {ALL, "rope_theta", "1e300", SL_ERR_FORMAT, "rope_theta is 1e300"},
    {ALL, "rope_theta", "[1]", SL_ERR_FORMAT, "rope_theta is [1]"},
    /* rotation */
    {ALL, "rope_scaling", "\"linear\"", SL_ERR_FORMAT, "rope_scaling is \"linear\", an object expected"},
    {ALL, "rope_scaling", "[]", SL_ERR_FORMAT, "rope_scaling is [], an object expected"},
    {ALL, "rope_scaling", "{}", SL_OK, NULL},
    {ALL, "rope_scaling", "{\"type\":\"spiral\",\"factor\":2}", SL_ERR_UNSUPPORTED,
     "rope scaling type 'spiral' is not supported (default, linear, llama3, yarn are)"},
    {ALL, "rope_scaling", "{\"rope_type\":\"dynamic\",\"factor\":2}", SL_ERR_UNSUPPORTED, "'dynamic' is not supported"},
    {ALL, "rope_scaling", "{\"rope_type\":2}", SL_ERR_FORMAT, "rope_type is 2, a string"},
    {ALL, "rope_scaling", "{\"rope_type\":\"linear\"}", SL_ERR_FORMAT, "field factor is missing"},
    {ALL, "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":0}", SL_ERR_FORMAT, "factor is 0, a number above 0"},
    {ALL, "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":\"2\"}", SL_ERR_FORMAT, "factor is \"2\", a number"},
    {ALL, "rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8}", SL_ERR_FORMAT, "low_freq_factor is missing"},
    {ALL, "rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}", SL_ERR_FORMAT,
     "high_freq_factor is missing"},
    {ALL, "rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}",
     SL_ERR_FORMAT, "high_freq_factor is 4, more than low_freq_factor 4"},
    {ALL, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":2,\"truncate\":1}", SL_ERR_FORMAT, "truncate is 1"},
    {ALL, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":0}", SL_ERR_FORMAT,
     "original_max_position_embeddings is 0"},
    {ALL, "rope_parameters", "{\"full_attention\":{\"rope_theta\":1000.0}}", SL_ERR_UNSUPPORTED,
     "rope parameters have an object 'full_attention'"},
    {ALL, "rope_parameters", "{\"rope_theta\":0.5}", SL_ERR_FORMAT, "rope_theta is 0.5"},
    {ALL, "rope_parameters", "{\"rope_theta\":1000.0,\"partial_rotary_factor\":0.25}", SL_ERR_FORMAT,
     "partial_rotary_factor is 0.25"},
    /* layers of linear attention */
    {"qwen3_next", "linear_num_key_heads", NULL, SL_ERR_FORMAT, "linear_num_key_heads is missing"},
    {"qwen3_next", "linear_num_key_heads", "0", SL_ERR_FORMAT, "linear_num_key_heads is 0, one integer"},
    {"qwen3_next", "linear_num_key_heads", "4", SL_ERR_FORMAT,
     "6 value heads of linear attention, a multiple of its 4 key heads"},
    {"qwen3_next", "linear_num_key_heads", "3", SL_ERR_FORMAT, "tensor model.layers.0.linear_attn.|configuration"},
    {"qwen3_next", "linear_num_value_heads", NULL, SL_ERR_FORMAT, "linear_num_value_heads is missing"},
    {"qwen3_next", "linear_num_value_heads", "4", SL_ERR_FORMAT, "A_log has shape 6, the configuration gives 4"},
    {"qwen3_next", "linear_key_head_dim", "17", SL_ERR_FORMAT, "conv1d.weight|160x1x4|164x4"},
    {"qwen3_next", "linear_value_head_dim", "\"16\"", SL_ERR_FORMAT, "linear_value_head_dim is \"16\", one integer"},
    {"qwen3_next", "linear_value_head_dim", "4097", SL_ERR_FORMAT, "linear_value_head_dim is 4097"},
    {"qwen3_next", "linear_conv_kernel_dim", NULL, SL_ERR_FORMAT, "linear_conv_kernel_dim is missing"},
    {"qwen3_next", "linear_conv_kernel_dim", "1", SL_ERR_FORMAT,
     "linear_conv_kernel_dim is 1, one integer from 2 to 8"},
    {"qwen3_next", "linear_conv_kernel_dim", "9", SL_ERR_FORMAT,
     "linear_conv_kernel_dim is 9, one integer from 2 to 8"},
    {"qwen3_next", "linear_conv_kernel_dim", "3", SL_ERR_FORMAT, "conv1d.weight has shape 160x1x4|160x3"},
    {"qwen3_next", "full_attention_interval", "0", SL_ERR_FORMAT, "full_attention_interval is 0"},
    {"qwen3_next", "full_attention_interval", "3", SL_ERR_FORMAT, "model.layers.1.linear_attn."},
    {"qwen3_next", "full_attention_interval", "1", SL_ERR_UNSUPPORTED, "no layer is linear attention"},
    {"qwen3_next", "full_attention_interval", NULL, SL_ERR_UNSUPPORTED, "3 layers, none of them of full attention"},
    {"qwen3_next", "layer_types", "[\"linear_attention\",\"full_attention\",\"linear_attention\"]", SL_OK, NULL},
    {"qwen3_next", "layer_types", "[\"linear_attention\",\"full_attention\",\"mamba\"]", SL_ERR_UNSUPPORTED,
     "layer_types is [|full_attention or linear_attention for each layer"},
    {"qwen3_next", "layer_types", "[\"linear_attention\",\"full_attention\"]", SL_ERR_FORMAT,
     "layer_types is [\"linear_attention\",\"full_attention\"], a list of 3 kinds"},
    {"qwen3_next", "layer_types", "[0,1,0]", SL_ERR_UNSUPPORTED, "layer_types is [0,1,0], full_attention or linear"},
    {"qwen2_moe", "layer_types", "[\"linear_attention\",\"full_attention\"]", SL_ERR_UNSUPPORTED,
     "layer_types is [\"linear_attention\",\"full_attention\"], full_attention for each layer"},
    {"qwen3_next", "attn_output_gate", "false", SL_ERR_FORMAT, "self_attn.q_proj.weight|128x32|64x32"},
    {"qwen3_next", "attn_output_gate", "1", SL_ERR_FORMAT, "attn_output_gate is 1, true or false"},
    {"qwen3_next", "num_nextn_predict_layers", "1", SL_OK, NULL},
    {"qwen3_next", "rope_parameters", "{\"rope_theta\":1000.0,\"partial_rotary_factor\":0.27}", SL_OK, NULL},
    {"qwen3_next", "rope_parameters", "{\"rope_theta\":1000.0,\"partial_rotary_factor\":0.2}", SL_ERR_FORMAT,
     "3 rotated dimensions of a head, an even number"},
    {"qwen3_next", "rope_parameters", "{\"partial_rotary_factor\":1.5}", SL_ERR_FORMAT,
     "partial_rotary_factor is 1.5, a number from 0 to 1"},
    {"qwen3_next", "text_config", "{}", SL_ERR_FORMAT, "field text_config.hidden_size is missing"},
    /* output head */
    {ALL, "tie_word_embeddings", "\"yes\"", SL_ERR_FORMAT, "tie_word_embeddings is \"yes\", true or false"},
    {ALL, "tie_word_embeddings", "true", SL_OK, NULL}, /* lm_head.weight is there and used */
    {"llama-tied", "tie_word_embeddings", "false", SL_ERR_FORMAT, "lm_head.weight\" is missing"},
    {"llama-tied", "tie_word_embeddings", NULL, SL_ERR_FORMAT, "lm_head.weight\" is missing"},
};

static void check_line(const char *line) {
    size_t n = strlen(line);
    assert_in_range(n, 10, 1000);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20)
            fail_msg("more than a line: %s", line);
}

static void check_parts(const char *line, const char *parts) {
    char copy[300];
    snprintf(copy, sizeof copy, "%s", parts);
    for (char *save = NULL, *p = strtok_r(copy, "|", &save); p; p = strtok_r(NULL, "|", &save))
        if (!strstr(line, p))
            fail_msg("'%s' lacks '%s'", line, p);
}

/* Opens what lies at path; NULL message: it must open. Every message names the directory or a file in it. */
static void check_open(const char *path, sl_code code, const char *message) {
    sl_error err = {0};
    sl_ckpt *c = sl_ckpt_open(path, &err);
    if (!c)
        fail_msg("%s", err.message);
    sl_model *m = sl_model_open(c, &err);
    if (m && message)
        fail_msg("opened, expected '%s'", message);
    if (!m && !message)
        fail_msg("%s", err.message);
    if (!m && message) {
        check_line(err.message);
        check_parts(err.message, message);
        check_parts(err.message, path);
        if (err.code != code)
            fail_msg("'%s' has code %d, expected %d", err.message, err.code, code);
        assert_null(sl_model_open(c, NULL));
    }
    sl_model_free(m);
    sl_ckpt_close(c);
}

static void check_field(const field_case *f) {
    edit *e = edit_open(f->base);
    edit_config(e, f->field, f->json);
    check_open(edit_write(e), f->code, f->message);
    edit_close(e);
}

static void fields_of_config_json(void **state) {
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        check_field(&cases[i]);
}

static const field_case family_cases[] = {
    {"deepseek_v3", "kv_lora_rank", NULL, SL_ERR_FORMAT, "field kv_lora_rank is missing"},
    {"deepseek_v3", "kv_lora_rank", "0", SL_ERR_FORMAT, "kv_lora_rank is 0, one integer from 1"},
    {"deepseek_v3", "kv_lora_rank", "16", SL_ERR_FORMAT, "kv_a_proj_with_mqa.weight|48x32|32x32"},
    {"deepseek_v3", "q_lora_rank", "null", SL_ERR_FORMAT, "self_attn.q_proj.weight"},
    {"deepseek_v3", "qk_rope_head_dim", "15", SL_ERR_FORMAT, "15 rotated dimensions of a head, an even number"},
    {"deepseek_v3", "v_head_dim", "25", SL_ERR_FORMAT, "self_attn.o_proj.weight|32x96|32x100"},
    {"deepseek_v3", "attention_bias", "true", SL_ERR_UNSUPPORTED, "attention_bias is true, false"},
    {"deepseek_v3", "n_group", NULL, SL_ERR_FORMAT, "field n_group is missing"},
    {"deepseek_v3", "topk_group", NULL, SL_ERR_FORMAT, "0 of 4 groups"},
    {"deepseek_v3", "routed_scaling_factor", NULL, SL_ERR_FORMAT, "field routed_scaling_factor is missing"},
    {"glm4_moe", "routed_scaling_factor", NULL, SL_OK, NULL},
    {"deepseek_v3", "n_group", "3", SL_ERR_FORMAT, "2 of 3 groups of 8 experts for 3 per token"},
    {"deepseek_v3", "n_group", "65", SL_ERR_FORMAT, "n_group is 65"},
    {"deepseek_v3", "topk_group", "1", SL_ERR_FORMAT, "1 of 4 groups of 8 experts for 3 per token"},
    {"deepseek_v3", "topk_group", "5", SL_ERR_FORMAT, "5 of 4 groups"},
    {"deepseek_v3", "scoring_func", "\"softmax\"", SL_ERR_UNSUPPORTED, "scoring_func is \"softmax\", sigmoid"},
    {"deepseek_v3", "topk_method", "\"greedy\"", SL_ERR_UNSUPPORTED, "topk_method is \"greedy\", noaux_tc"},
    {"deepseek_v3", "topk_method", "\"noaux_tc\"", SL_OK, NULL},
    {"deepseek_v3", "routed_scaling_factor", "-1", SL_ERR_FORMAT, "routed_scaling_factor is -1"},
    {"deepseek_v3", "first_k_dense_replace", "0", SL_ERR_FORMAT, "layer|mlp.gate.weight"},
    {"deepseek_v3", "n_shared_experts", "3", SL_ERR_FORMAT, "shared_experts.gate_proj.weight|64x32|96x32"},
    {"deepseek_v3", "n_routed_experts", "9", SL_ERR_FORMAT, "groups of 9 experts"},
    {"glm4_moe", "use_qk_norm", "false", SL_ERR_UNSUPPORTED, "q_norm.weight|has no place"},
    {"glm4_moe", "use_qk_norm", "1", SL_ERR_FORMAT, "use_qk_norm is 1, true or false"},
    {"glm4_moe", "attention_bias", "false", SL_ERR_UNSUPPORTED, "proj.bias|has no place"},
    {"olmoe", "clip_qkv", "8.0", SL_ERR_UNSUPPORTED, "clip_qkv is 8.0, not set"},
    {"olmoe", "clip_qkv", "null", SL_OK, NULL},
    {"olmoe", "num_key_value_heads", "2", SL_ERR_FORMAT, "self_attn.k_proj.weight"},
    {"olmoe", "routed_scaling_factor", "2", SL_ERR_UNSUPPORTED, "routed_scaling_factor is 2, 1"},
    {"mixtral", "intermediate_size", "64", SL_ERR_FORMAT, "gate of expert 0 is 32x32|64x32"},
    {"mixtral", "sliding_window", "\"all\"", SL_ERR_FORMAT, "sliding_window is \"all\""},
    {"minimax_m2", "use_qk_norm", "false", SL_ERR_UNSUPPORTED, "use_qk_norm is false, true"},
    {"minimax_m2", "scoring_func", "\"softmax\"", SL_ERR_UNSUPPORTED, "scoring_func is \"softmax\", sigmoid"},
    {"minimax_m2", "num_local_experts", "6", SL_ERR_FORMAT, "gate.weight|5x32|6x32"},
    {"gpt_oss", "sliding_window", "null", SL_ERR_UNSUPPORTED, "layer_types|full_attention"},
    {"gpt_oss", "layer_types", "[\"full_attention\"]", SL_ERR_FORMAT, "layer_types|a list of 2 kinds"},
    {"gpt_oss", "swiglu_limit", "0", SL_ERR_FORMAT, "swiglu_limit is 0"},
    {"gpt_oss", "num_local_experts", "7", SL_ERR_FORMAT, "router.weight|6x32|7x32"},
};

static void fields_of_families(void **state) {
    for (size_t i = 0; i < SL_COUNT(family_cases); i++)
        check_field(&family_cases[i]);
}

static void experts_counted_under_the_name_of_transformers_5(void **state) {
    static const char *const bases[] = {"qwen2_moe", "qwen3_moe"};
    for (size_t i = 0; i < SL_COUNT(bases); i++) {
        edit *e = edit_open(bases[i]);
        json_t *n = json_incref(json_object_get(e->config, "num_experts"));
        edit_config(e, "num_experts", NULL);
        json_object_set_new(e->config, "num_local_experts", n);
        check_open(edit_write(e), SL_OK, NULL);
        edit_config(e, "num_experts", "null");
        check_open(edit_write(e), SL_OK, NULL);
        edit_config(e, "num_local_experts", "\"8\"");
        check_open(edit_write(e), SL_ERR_FORMAT, "field num_local_experts is \"8\", one integer");
        edit_close(e);
    }
}

/* The text model within one of text and images. */
static void fields_of_a_nested_configuration(void **state) {
    static const struct {
        const char *field, *json;
        sl_code code;
        const char *message;
    } rows[] = {
        {"num_experts", "0", SL_ERR_FORMAT, "config.json: field text_config.num_experts is 0, one integer from 1"},
        {"linear_num_key_heads", "null", SL_ERR_FORMAT, "field text_config.linear_num_key_heads is missing"},
        {"layer_types", "7", SL_ERR_FORMAT, "field text_config.layer_types is 7, a list of 3 kinds"},
        {"model_type", "\"other\"", SL_OK, NULL}, /* the whole model's name counts */
        {"hidden_act", "\"gelu\"", SL_ERR_UNSUPPORTED, "field text_config.hidden_act is \"gelu\", silu"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        edit *e = edit_open("qwen3_5_moe");
        json_t *v = json_loads(rows[i].json, JSON_DECODE_ANY, NULL);
        json_object_set_new(json_object_get(e->config, "text_config"), rows[i].field, v);
        check_open(edit_write(e), rows[i].code, rows[i].message);
        edit_close(e);
    }
    edit *e = edit_open("qwen3_5_moe");
    edit_config(e, "model_type", "\"qwen9_moe\"");
    check_open(edit_write(e), SL_OK, NULL); /* an unknown whole around a known text model */
    edit_config(e, "model_type", NULL);
    check_open(edit_write(e), SL_ERR_FORMAT, "config.json: field model_type is missing");
    edit_close(e);
}

static void long_values_are_cut(void **state) {
    edit *e = edit_open("llama");
    json_t *list = json_array();
    for (int i = 0; i < 100000; i++)
        json_array_append_new(list, json_integer(i));
    json_object_set_new(e->config, "hidden_size", list);
    check_open(edit_write(e), SL_ERR_FORMAT, "field hidden_size is [0,1,2|..., one integer");
    char *text = malloc(100001);
    memset(text, 'x', 100000);
    text[100000] = 0;
    json_object_set_new(e->config, "hidden_size", json_integer(64));
    json_object_set_new(e->config, "model_type", json_string(text));
    check_open(edit_write(e), SL_ERR_UNSUPPORTED, "architecture 'xxxx");
    json_object_set_new(e->config, "model_type", json_string("llama"));
    json_object_set_new(e->config, "rms_norm_eps", json_string(text));
    check_open(edit_write(e), SL_ERR_FORMAT, "field rms_norm_eps is \"xxxx");
    free(text);
    edit_close(e);
}

static void every_golden_checkpoint_opens(void **state) {
    static const char *const names[] = {"llama",      "llama-tied",      "qwen2_moe",      "qwen2_moe-mixed",
                                        "qwen3_moe",  "qwen3_moe-fused", "qwen3_moe-mlx4", "qwen3_moe-mlx8",
                                        "qwen3_next", "qwen3_next-mtp",  "qwen3_next-mlx4"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        edit *e = edit_open(names[i]);
        check_open(edit_write(e), SL_OK, NULL);
        edit_close(e);
    }
}

/* ---- GGUF: values changed where they lie ----------------------------------------------------------------------------
 */

static char *find_bytes(char *text, size_t size, const char *what) {
    char *at = memmem(text, size, what, strlen(what));
    if (!at)
        fail_msg("the golden file has no %s", what);
    return at;
}

/* NEW: another name of the same length; else the u32, i32 or f32 behind key and type becomes value. */
static const struct {
    const char *base, *key, *new_name;
    uint32_t value;
    sl_code code;
    const char *message;
} gguf_cases[] = {
    {"llama-gguf", "general.architecture", "general.architecturE", 0, SL_ERR_FORMAT,
     "field general.architecture is missing"},
    {"llama-gguf", "llama.block_count", NULL, 0, SL_ERR_FORMAT, "field llama.block_count is 0, one integer from 1"},
    {"llama-gguf", "llama.block_count", NULL, 0xffffffff, SL_ERR_FORMAT, "llama.block_count is 4294967295"},
    {"llama-gguf", "llama.block_count", NULL, 3, SL_ERR_FORMAT, "blk.2.attn_norm.weight"},
    {"llama-gguf", "llama.block_count", NULL, 1, SL_ERR_UNSUPPORTED, "tensor blk.1.|has no place"},
    {"llama-gguf", "llama.block_count", "llama.block_counT", 0, SL_ERR_FORMAT, "llama.block_count is missing"},
    {"llama-gguf", "llama.embedding_length", NULL, 128, SL_ERR_FORMAT, "token_embd.weight|272x64|272x128"},
    {"llama-gguf", "llama.attention.head_count", NULL, 0, SL_ERR_FORMAT, "llama.attention.head_count is 0"},
    {"llama-gguf", "llama.attention.head_count", NULL, 5, SL_ERR_FORMAT, "multiple of the"},
    {"llama-gguf", "llama.attention.layer_norm_rms_epsilon", NULL, 0x7fc00000, SL_ERR_FORMAT,
     "llama.attention.layer_norm_rms_epsilon is nan, a number from 0 to 1"},
    {"llama-gguf", "llama.rope.freq_base", NULL, 0xff800000, SL_ERR_FORMAT, "llama.rope.freq_base is -inf"},
    {"llama-gguf", "blk.0.attn_q.weight", "blk.0.attn_Q.weight", 0, SL_ERR_FORMAT, "blk.0.attn_q.weight"},
    {"qwen3_moe-gguf", "qwen3moe.expert_used_count", NULL, 9, SL_ERR_FORMAT, "9 experts per token, at most the 8"},
    {"qwen3_moe-gguf", "qwen3moe.expert_count", NULL, 7, SL_ERR_FORMAT, "ffn_gate_inp.weight"},
    {"qwen3_5_moe-gguf", "qwen35moe.ssm.inner_size", NULL, 100, SL_ERR_FORMAT,
     "field qwen35moe.ssm.inner_size is 100, up to 4096 for each of 6 value heads"},
    {"qwen3_5_moe-gguf", "qwen35moe.ssm.inner_size", "qwen35moe.ssm.inner_sizE", 0, SL_ERR_FORMAT,
     "qwen35moe.ssm.inner_size is missing"},
    {"qwen3_5_moe-gguf", "qwen35moe.ssm.inner_size", NULL, 48, SL_ERR_FORMAT, "|blk.0.ssm_"},
    {"qwen3_5_moe-gguf", "qwen35moe.ssm.group_count", NULL, 4, SL_ERR_FORMAT, "multiple of its 4 key heads"},
    {"qwen3_5_moe-gguf", "qwen35moe.ssm.time_step_rank", NULL, 0, SL_ERR_FORMAT, "ssm.time_step_rank is 0"},
    {"qwen3_5_moe-gguf", "qwen35moe.ssm.conv_kernel", NULL, 3, SL_ERR_FORMAT, "blk.0.ssm_conv1d.weight|160x4|160x3"},
    {"qwen3_5_moe-gguf", "qwen35moe.nextn_predict_layers", NULL, 4, SL_ERR_FORMAT,
     "4 of 4 blocks predict further tokens, fewer expected"},
    {"qwen3_5_moe-gguf", "qwen35moe.nextn_predict_layers", NULL, 2, SL_OK, NULL}, /* two layers, as it says */
    {"qwen3_5_moe-gguf", "qwen35moe.nextn_predict_layers", NULL, 0, SL_ERR_UNSUPPORTED,
     "tensor blk.3.nextn.|has no place"},
    {"qwen3_5_moe-gguf", "qwen35moe.full_attention_interval", NULL, 3, SL_ERR_FORMAT, "blk.1.ssm_"},
    {"qwen3_moe-gguf", "blk.1.ffn_down_exps.weight", "blk.1.ffn_down_exps.weighT", 0, SL_ERR_FORMAT,
     "blk.1.ffn_down_exps.weight"},
};

static void values_of_gguf_metadata(void **state) {
    for (size_t i = 0; i < SL_COUNT(gguf_cases); i++) {
        char path[600];
        size_t size;
        snprintf(path, sizeof path, SL_SOURCE_DIR "/tests/golden/arch/%s/model.gguf", gguf_cases[i].base);
        char *text = sl_read_text(path, 1 << 24, &size, NULL);
        assert_non_null(text);
        char *at = find_bytes(text, size, gguf_cases[i].key);
        if (gguf_cases[i].new_name)
            memcpy(at, gguf_cases[i].new_name, strlen(gguf_cases[i].new_name));
        else
            memcpy(at + strlen(gguf_cases[i].key) + 4, &gguf_cases[i].value, 4);
        char *out = sl_asprintf("%s/sluice-gguf-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        FILE *f = fdopen(mkstemp(out), "wb");
        assert_int_equal(fwrite(text, 1, size, f), size);
        fclose(f);
        check_open(out, gguf_cases[i].code, gguf_cases[i].message);
        remove(out);
        free(out);
        free(text);
    }
}

static void damaged_keys_of_the_architecture_are_listed(void **state) {
    static const struct {
        const char *base, *key, *new_name, *listed;
    } rows[] = {{"qwen3_moe-gguf", "qwen3moe.rope.freq_base", "qwen3moe*rope.freq_base", "qwen3moe*rope.freq_base"},
                {"llama-gguf", "llama.rope.freq_base", "llama.rope.freq_bAse", "llama.rope.freq_bAse"},
                {"llama-gguf", "llama.rope.freq_base", "llama.rope.freq_base", ""},
                {"qwen2_moe-gguf", "qwen2moe.block_count", "qwen2moe.block_count", ""},
                {"qwen3_next-gguf", "qwen3next.block_count", "qwen3next.block_count", ""},
                {"qwen3_5_moe-gguf", "qwen35moe.block_count", "qwen35moe.block_count", ""},
                {"qwen3_moe-gguf", "general.", "generaX.", ""}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char path[600];
        size_t size;
        snprintf(path, sizeof path, SL_SOURCE_DIR "/tests/golden/arch/%s/model.gguf", rows[i].base);
        char *text = sl_read_text(path, 1 << 24, &size, NULL);
        assert_non_null(text);
        char *at = find_bytes(text, size, rows[i].key);
        if (memcmp(rows[i].key, "general.", 8) == 0) /* not the one that names the architecture */
            at = find_bytes(at + 24, size - (size_t)(at + 24 - text), rows[i].key);
        memcpy(at, rows[i].new_name, strlen(rows[i].new_name));
        char *out = sl_asprintf("%s/sluice-gguf-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        FILE *f = fdopen(mkstemp(out), "wb");
        assert_int_equal(fwrite(text, 1, size, f), size);
        fclose(f);
        sl_error err = {0};
        sl_ckpt *c = sl_ckpt_open(out, &err);
        sl_model *m = c ? sl_model_open(c, &err) : NULL;
        if (!m)
            fail_msg("%s", err.message);
        assert_string_equal(sl_model_unknown_keys(m), rows[i].listed);
        sl_model_free(m);
        sl_ckpt_close(c);
        remove(out);
        free(out);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_checkpoint_opens),
        cmocka_unit_test(fields_of_config_json),
        cmocka_unit_test(fields_of_families),
        cmocka_unit_test(experts_counted_under_the_name_of_transformers_5),
        cmocka_unit_test(fields_of_a_nested_configuration),
        cmocka_unit_test(long_values_are_cut),
        cmocka_unit_test(values_of_gguf_metadata),
        cmocka_unit_test(damaged_keys_of_the_architecture_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
