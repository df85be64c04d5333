/* Tensors that are not what the configuration says: one line that names file and tensor, what was found and what was
 * expected; numbers that are none are found before anybody reads text made of them. */
#include "support_edit.h"
#include "support_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 6, VOCAB = 272 };

static const int32_t tokens[ROWS] = {3, 9, 27, 81, 200, 9};

/* How far a checkpoint gets. */
typedef enum stage { STAGE_OPEN, STAGE_LOAD, STAGE_FORWARD, STAGE_WELL } stage;

typedef void (*change_fn)(edit *e);

typedef struct change {
    const char *base;
    change_fn change;
    stage stage; /* where the error comes */
    sl_code code;
    const char *message; /* parts, '|' between them */
} change;

static fixture *open_fixture(const char *path, sl_numeric numeric, sl_error *err) {
    fixture_options o = {.path = path,
                         .numeric = numeric,
                         .kv = SL_KV_F16,
                         .threads = 2,
                         .max_rows = ROWS,
                         .sequences = 1,
                         .context = 64,
                         .fail_expert = -1};
    return fixture_open(&o, err);
}

static bool forward(fixture *f, float *logits, sl_error *err) {
    static const int32_t seq[ROWS] = {0}, position[ROWS] = {0, 1, 2, 3, 4, 5};
    return fixture_run(f, tokens, seq, position, ROWS, logits, NULL, err);
}

/* Logits of a checkpoint that is well. */
static void logits_of(edit *e, sl_numeric numeric, float out[ROWS * VOCAB]) {
    sl_error err = {0};
    fixture *f = open_fixture(edit_write(e), numeric, &err);
    if (!f || !forward(f, out, &err))
        fail_msg("%s", err.message);
    fixture_close(f);
}

static stage run_to_error(const char *path, sl_numeric numeric, sl_error *err) {
    sl_ckpt *c = sl_ckpt_open(path, err);
    sl_model *m = c ? sl_model_open(c, err) : NULL;
    bool opened = m != NULL;
    sl_model_free(m);
    sl_ckpt_close(c);
    if (!opened)
        return STAGE_OPEN;
    fixture *f = open_fixture(path, numeric, err);
    if (!f)
        return STAGE_LOAD;
    static float logits[ROWS * VOCAB];
    bool ok = forward(f, logits, err);
    fixture_close(f);
    return ok ? STAGE_WELL : STAGE_FORWARD;
}

static void check_change(const change *list, int index, sl_numeric numeric) {
    const change *c = &list[index];
    static const char *const stages[] = {"opening", "loading", "the forward pass", "nowhere"};
    edit *e = edit_open(c->base);
    c->change(e);
    const char *path = edit_write(e);
    sl_error err = {0};
    stage s = run_to_error(path, numeric, &err);
    if (s != c->stage)
        fail_msg("case %d of %s, %s: expected '%s' in %s; it came in %s: %s", index, c->base,
                 numeric == SL_NUMERIC_Q8 ? "q8" : "exact", c->message, stages[c->stage], stages[s], err.message);
    if (s != STAGE_WELL && err.code != c->code)
        fail_msg("'%s' has code %d, expected %d", err.message, err.code, c->code);
    char parts[400];
    snprintf(parts, sizeof parts, "%s|%s", s == STAGE_WELL ? "" : path, c->message);
    for (char *save = NULL, *p = strtok_r(parts, "|", &save); p; p = strtok_r(NULL, "|", &save))
        if (!strstr(err.message, p))
            fail_msg("'%s' lacks '%s'", err.message, p);
    assert_null(strchr(err.message, '\n'));
    edit_close(e);
}

#define L0 "model.layers.0."
#define L1 "model.layers.1."
#define CHANGE(name, ...)                                                                                              \
    static void name(edit *e) {                                                                                        \
        __VA_ARGS__;                                                                                                   \
    }

/* ---- names and shapes -------------------------------------------------------------------------------------------- */

CHANGE(no_embedding, edit_remove(e, "model.embed_tokens.weight"))
CHANGE(no_final_norm, edit_remove(e, "model.norm.weight"))
CHANGE(no_head, edit_remove(e, "lm_head.weight"))
CHANGE(no_q, edit_remove(e, L1 "self_attn.q_proj.weight"))
CHANGE(no_up, edit_remove(e, L0 "mlp.up_proj.weight"))
CHANGE(no_q_norm, edit_remove(e, L0 "self_attn.q_norm.weight"))
CHANGE(no_bias, edit_remove(e, L0 "self_attn.v_proj.bias"))
CHANGE(no_router, edit_remove(e, L1 "mlp.gate.weight"))
CHANGE(no_expert, edit_remove(e, L1 "mlp.experts.5.up_proj.weight"))
CHANGE(no_first_expert, edit_remove(e, L1 "mlp.experts.0.gate_proj.weight"))
CHANGE(no_shared, edit_remove(e, L0 "mlp.shared_expert.down_proj.weight"))
CHANGE(no_shared_sigmoid, edit_remove(e, L0 "mlp.shared_expert_gate.weight"))
CHANGE(extra, edit_copy(e, "model.norm.weight", L0 "mystery.weight"))
CHANGE(extra_layer, edit_copy(e, L0 "self_attn.q_proj.weight", "model.layers.2.self_attn.q_proj.weight"))
CHANGE(extra_expert, edit_copy(e, L0 "mlp.experts.7.up_proj.weight", L0 "mlp.experts.8.up_proj.weight"))
CHANGE(extra_bias, edit_copy(e, "model.norm.weight", L0 "self_attn.q_proj.bias"))
CHANGE(extra_norm, edit_copy(e, "model.norm.weight", L0 "self_attn.q_norm.weight"))
CHANGE(ignorable, edit_copy(e, "model.norm.weight", L0 "self_attn.rotary_emb.inv_freq"))
CHANGE(vocab_short, edit_shape(edit_find(e, "lm_head.weight"), 2, 271, 64))
CHANGE(embed_vector, edit_shape(edit_find(e, "model.embed_tokens.weight"), 1, 272 * 64, 0))
CHANGE(q_transposed, edit_shape(edit_find(e, L0 "self_attn.k_proj.weight"), 2, 64, 32))
CHANGE(q_vector, edit_shape(edit_find(e, L0 "self_attn.q_proj.weight"), 1, 4096, 0))
CHANGE(norm_short, edit_shape(edit_find(e, L1 "input_layernorm.weight"), 1, 63, 0))
CHANGE(norm_matrix, edit_shape(edit_find(e, L1 "input_layernorm.weight"), 2, 8, 8))
CHANGE(norm_row, edit_shape(edit_find(e, L1 "input_layernorm.weight"), 2, 1, 64))
CHANGE(down_shape, edit_shape(edit_find(e, L0 "mlp.down_proj.weight"), 2, 63, 64))
CHANGE(expert_shape, edit_shape(edit_find(e, L0 "mlp.experts.3.down_proj.weight"), 2, 32, 64))
CHANGE(router_shape, edit_shape(edit_find(e, L0 "mlp.gate.weight"), 2, 64, 8))
CHANGE(shared_shape, edit_shape(edit_find(e, L0 "mlp.shared_expert.up_proj.weight"), 2, 31, 64))
CHANGE(sigmoid_shape, edit_shape(edit_find(e, L0 "mlp.shared_expert_gate.weight"), 2, 64, 1))
CHANGE(bias_shape, edit_shape(edit_find(e, L0 "self_attn.k_proj.bias"), 1, 31, 0))
CHANGE(q_norm_shape, edit_shape(edit_find(e, L0 "self_attn.q_norm.weight"), 1, 64, 0))

static void fused_odd(edit *e) {
    edit_tensor *t = edit_find(e, L1 "mlp.experts.gate_up_proj");
    edit_shape(t, 1, 8 * 127 * 64, 0);
    t->dims = 3;
    t->shape[0] = 8;
    t->shape[1] = 127;
    t->shape[2] = 64;
}

static void fused_experts(edit *e) {
    edit_tensor *t = edit_find(e, L1 "mlp.experts.gate_up_proj");
    edit_shape(t, 1, 7 * 128 * 64, 0);
    t->dims = 3;
    t->shape[0] = 7;
    t->shape[1] = 128;
    t->shape[2] = 64;
}

CHANGE(fused_flat, edit_shape(edit_find(e, L1 "mlp.experts.gate_up_proj"), 2, 8 * 128, 64))

static void fused_transposed(edit *e) {
    edit_tensor *t = edit_find(e, L1 "mlp.experts.gate_up_proj");
    t->shape[1] = 64;
    t->shape[2] = 128;
}

static void other_format(edit *e) {
    edit_tensor *t = edit_find(e, L1 "mlp.experts.4.up_proj.weight");
    snprintf(t->dtype, sizeof t->dtype, "F16");
}

static void whole_layer_in_another_format(edit *e) {
    for (int x = 0; x < 8; x++) {
        char name[100];
        snprintf(name, sizeof name, L1 "mlp.experts.%d.up_proj.weight", x);
        snprintf(edit_find(e, name)->dtype, 8, "F16");
    }
}

#define DELTA0 L0 "linear_attn."
#define DELTA2 "model.layers.2.linear_attn."

CHANGE(no_conv, edit_remove(e, DELTA0 "conv1d.weight"))
CHANGE(no_later_conv, edit_remove(e, DELTA2 "conv1d.weight"))
CHANGE(no_qkvz, edit_remove(e, DELTA2 "in_proj_qkvz.weight"))
CHANGE(no_ba, edit_remove(e, DELTA0 "in_proj_ba.weight"))
CHANGE(no_a_log, edit_remove(e, DELTA0 "A_log"))
CHANGE(no_dt_bias, edit_remove(e, DELTA2 "dt_bias"))
CHANGE(no_delta_norm, edit_remove(e, DELTA0 "norm.weight"))
CHANGE(no_out_proj, edit_remove(e, DELTA0 "out_proj.weight"))
CHANGE(ba_shape, edit_shape(edit_find(e, DELTA0 "in_proj_ba.weight"), 2, 11, 32))
CHANGE(qkvz_shape, edit_shape(edit_find(e, DELTA2 "in_proj_qkvz.weight"), 2, 32, 256))
CHANGE(a_log_shape, edit_shape(edit_find(e, DELTA0 "A_log"), 1, 5, 0))
CHANGE(out_proj_shape, edit_shape(edit_find(e, DELTA0 "out_proj.weight"), 2, 32, 95))
CHANGE(delta_norm_shape, edit_shape(edit_find(e, DELTA0 "norm.weight"), 1, 96, 0))
CHANGE(conv_flat, edit_shape(edit_find(e, DELTA0 "conv1d.weight"), 2, 160, 4))
CHANGE(conv_short, edit_find(e, DELTA2 "conv1d.weight")->shape[0] = 80,
       edit_find(e, DELTA2 "conv1d.weight")->shape[1] = 2)
CHANGE(q_without_gate, edit_shape(edit_find(e, L1 "self_attn.q_proj.weight"), 2, 64, 32))
CHANGE(vision, edit_copy(e, "model.norm.weight", "model.visual.merger.norm.weight"))
CHANGE(next_token, edit_copy(e, "model.norm.weight", "mtp.norm.weight"))

#define MLX1 "language_model.model.layers.1."

/* Codes and scales of other matrices: together they are no matrix. */
static void copy_of_two(edit *e, const char *module) {
    char name[100];
    snprintf(name, sizeof name, "%s.weight", module);
    edit_copy(e, MLX1 "self_attn.q_proj.weight", name);
    snprintf(name, sizeof name, "%s.scales", module);
    edit_copy(e, MLX1 "self_attn.o_proj.scales", name);
}

CHANGE(sidecar, copy_of_two(e, "mtp.fc"))
CHANGE(no_sidecar, copy_of_two(e, MLX1 "fc"))

/* As MLX has it, in one layer only. */
static void conv_of_another_order(edit *e) {
    edit_tensor *t = edit_find(e, DELTA2 "conv1d.weight");
    t->shape[1] = 4;
    t->shape[2] = 1;
}

static const change delta[] = {
    {"qwen3_next", no_conv, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "conv1d.weight|is missing"},
    {"qwen3_next", no_later_conv, STAGE_OPEN, SL_ERR_FORMAT, DELTA2 "conv1d.weight|is missing"},
    {"qwen3_next", no_qkvz, STAGE_OPEN, SL_ERR_FORMAT, DELTA2 "in_proj_qkvz.weight|is missing"},
    {"qwen3_next", no_ba, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "in_proj_ba.weight|is missing"},
    {"qwen3_next", no_a_log, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "A_log|is missing"},
    {"qwen3_next", no_dt_bias, STAGE_OPEN, SL_ERR_FORMAT, DELTA2 "dt_bias|is missing"},
    {"qwen3_next", no_delta_norm, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "norm.weight|is missing"},
    {"qwen3_next", no_out_proj, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "out_proj.weight|is missing"},
    {"qwen3_next", ba_shape, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "in_proj_ba.weight|11x32|12x32"},
    {"qwen3_next", qkvz_shape, STAGE_OPEN, SL_ERR_FORMAT, DELTA2 "in_proj_qkvz.weight|32x256|256x32"},
    {"qwen3_next", a_log_shape, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "A_log has shape 5, the configuration gives 6"},
    {"qwen3_next", out_proj_shape, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "out_proj.weight|32x95|32x96"},
    {"qwen3_next", delta_norm_shape, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "norm.weight|shape 96|gives 16"},
    {"qwen3_next", conv_flat, STAGE_OPEN, SL_ERR_FORMAT, DELTA0 "conv1d.weight|160x4"},
    {"qwen3_next", conv_short, STAGE_OPEN, SL_ERR_FORMAT, DELTA2 "conv1d.weight|80x2x4|160x4"},
    {"qwen3_next", conv_of_another_order, STAGE_OPEN, SL_ERR_FORMAT,
     DELTA2 "conv1d.weight has shape 160x4x1, another order of dimensions"},
    {"qwen3_next", q_without_gate, STAGE_OPEN, SL_ERR_FORMAT, L1 "self_attn.q_proj.weight|64x32|128x32"},
    {"qwen3_next", vision, STAGE_WELL, SL_OK, ""},
    {"qwen3_next", next_token, STAGE_WELL, SL_OK, ""},
    {"qwen3_5_moe-mlx8", sidecar, STAGE_WELL, SL_OK, ""},
    {"llama", next_token, STAGE_OPEN, SL_ERR_UNSUPPORTED, "mtp.norm.weight has no place"},
};

static void layers_of_linear_attention(void **state) {
    for (size_t i = 0; i < SL_COUNT(delta); i++)
        check_change(delta, (int)i, SL_NUMERIC_EXACT);
    edit *e = edit_open("qwen3_5_moe-mlx8"); /* the same anywhere else is an error of the checkpoint */
    sl_error err = {0};
    no_sidecar(e);
    assert_null(sl_ckpt_open(edit_write(e), &err));
    assert_non_null(strstr(err.message, "layers.1.fc"));
    edit_close(e);
}

static const change shapes[] = {
    {"llama", no_embedding, STAGE_OPEN, SL_ERR_FORMAT, "model.embed_tokens.weight|is missing"},
    {"llama", no_final_norm, STAGE_OPEN, SL_ERR_FORMAT, "model.norm.weight|is missing"},
    {"llama", no_head, STAGE_OPEN, SL_ERR_FORMAT, "lm_head.weight|is missing"},
    {"llama", no_q, STAGE_OPEN, SL_ERR_FORMAT, L1 "self_attn.q_proj.weight|is missing"},
    {"llama", no_up, STAGE_OPEN, SL_ERR_FORMAT, L0 "mlp.up_proj.weight|is missing"},
    {"qwen3_moe", no_q_norm, STAGE_OPEN, SL_ERR_FORMAT, L0 "self_attn.q_norm.weight|is missing"},
    {"qwen2_moe", no_bias, STAGE_OPEN, SL_ERR_FORMAT, L0 "self_attn.v_proj.bias|is missing"},
    {"qwen3_moe", no_router, STAGE_OPEN, SL_ERR_FORMAT, L1 "mlp.gate.weight|is missing"},
    {"qwen3_moe", no_expert, STAGE_OPEN, SL_ERR_FORMAT, L1 "mlp.experts.5.up_proj.weight|is missing"},
    {"qwen3_moe", no_first_expert, STAGE_OPEN, SL_ERR_FORMAT,
     "layer 1 has no routed experts|" L1 "mlp.experts.0.gate_proj.weight"},
    {"qwen2_moe", no_shared, STAGE_OPEN, SL_ERR_FORMAT, L0 "mlp.shared_expert.down_proj.weight|is missing"},
    {"qwen2_moe", no_shared_sigmoid, STAGE_OPEN, SL_ERR_FORMAT, L0 "mlp.shared_expert_gate.weight|is missing"},
    {"llama", extra, STAGE_OPEN, SL_ERR_UNSUPPORTED, "model.safetensors|tensor " L0 "mystery.weight has no place"},
    {"llama", extra_layer, STAGE_OPEN, SL_ERR_UNSUPPORTED, "model.layers.2.self_attn.q_proj.weight has no place"},
    {"qwen3_moe", extra_expert, STAGE_OPEN, SL_ERR_UNSUPPORTED, L0 "mlp.experts.8.up_proj.weight has no place"},
    {"llama", extra_bias, STAGE_OPEN, SL_ERR_UNSUPPORTED, L0 "self_attn.q_proj.bias has no place"},
    {"llama", extra_norm, STAGE_OPEN, SL_ERR_UNSUPPORTED, L0 "self_attn.q_norm.weight has no place"},
    {"llama", ignorable, STAGE_WELL, SL_OK, ""},
    {"llama", vocab_short, STAGE_OPEN, SL_ERR_FORMAT, "lm_head.weight|271x64|272x64"},
    {"llama", embed_vector, STAGE_OPEN, SL_ERR_FORMAT, "model.embed_tokens.weight|17408"},
    {"llama", q_transposed, STAGE_OPEN, SL_ERR_FORMAT, L0 "self_attn.k_proj.weight|64x32|32x64"},
    {"llama", q_vector, STAGE_OPEN, SL_ERR_FORMAT, L0 "self_attn.q_proj.weight|shape 4096|64x64"},
    {"llama", norm_short, STAGE_OPEN, SL_ERR_FORMAT, L1 "input_layernorm.weight|shape 63|gives 64"},
    {"llama", norm_matrix, STAGE_OPEN, SL_ERR_FORMAT, L1 "input_layernorm.weight|shape 8x8|gives 64"},
    {"llama", norm_row, STAGE_WELL, SL_OK, ""},
    {"llama", down_shape, STAGE_OPEN, SL_ERR_FORMAT, L0 "mlp.down_proj.weight|63x64|64x64"},
    {"qwen3_moe", expert_shape, STAGE_OPEN, SL_ERR_FORMAT,
     L0 "mlp.experts.3.down_proj.weight|down of expert 3 is 32x64|64x32"},
    {"qwen3_moe", router_shape, STAGE_OPEN, SL_ERR_FORMAT, L0 "mlp.gate.weight|64x8|8x64"},
    {"qwen2_moe", shared_shape, STAGE_OPEN, SL_ERR_FORMAT, L0 "mlp.shared_expert.up_proj.weight|31x64|32x64"},
    {"qwen2_moe", sigmoid_shape, STAGE_OPEN, SL_ERR_FORMAT, L0 "mlp.shared_expert_gate.weight|64x1|1x64"},
    {"qwen2_moe", bias_shape, STAGE_OPEN, SL_ERR_FORMAT, L0 "self_attn.k_proj.bias|shape 31|gives 32"},
    {"qwen3_moe", q_norm_shape, STAGE_OPEN, SL_ERR_FORMAT, L0 "self_attn.q_norm.weight|shape 64|gives 32"},
    {"qwen3_moe-fused", fused_odd, STAGE_OPEN, SL_ERR_FORMAT,
     L1 "mlp.experts.gate_up_proj has 127 rows per expert, an even number"},
    {"qwen3_moe-fused", fused_experts, STAGE_OPEN, SL_ERR_FORMAT,
     L1 "mlp.experts.gate_up_proj|outermost 7|[8 experts]"},
    {"qwen3_moe-fused", fused_flat, STAGE_OPEN, SL_ERR_FORMAT,
     L1 "mlp.experts.gate_up_proj has 2 dimensions|[8 experts][rows][cols] expected"},
    {"qwen3_moe-fused", fused_transposed, STAGE_OPEN, SL_ERR_FORMAT,
     L1 "mlp.experts.gate_up_proj|gate of expert 0 is 32x128|64x64"},
    {"qwen3_moe", other_format, STAGE_OPEN, SL_ERR_UNSUPPORTED,
     L1 "mlp.experts.4.up_proj.weight is F16, expert 0 of the same layer is BF16"},
    {"qwen3_moe", whole_layer_in_another_format, STAGE_WELL, SL_OK, ""},
};

static void names_and_shapes(void **state) {
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        check_change(shapes, (int)i, SL_NUMERIC_EXACT);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

CHANGE(nan_norm, edit_bf16(edit_find(e, L1 "post_attention_layernorm.weight"), 63, NAN))
CHANGE(inf_norm, edit_bf16(edit_find(e, "model.norm.weight"), 0, -INFINITY))
CHANGE(nan_bias, edit_bf16(edit_find(e, L0 "self_attn.k_proj.bias"), 31, NAN))
CHANGE(nan_q_norm, edit_bf16(edit_find(e, L0 "self_attn.q_norm.weight"), 5, NAN))
CHANGE(inf_embedding, edit_bf16(edit_find(e, "model.embed_tokens.weight"), 27 * 64 + 5, INFINITY))
CHANGE(nan_embedding, edit_bf16(edit_find(e, "model.embed_tokens.weight"), 200 * 64 + 63, NAN))
CHANGE(inf_q, edit_bf16(edit_find(e, L0 "self_attn.q_proj.weight"), 100, INFINITY))
CHANGE(nan_k, edit_bf16(edit_find(e, L1 "self_attn.k_proj.weight"), 7, NAN))
CHANGE(inf_k, edit_bf16(edit_find(e, L1 "self_attn.k_proj.weight"), 7, INFINITY))
CHANGE(inf_v, edit_bf16(edit_find(e, L1 "self_attn.v_proj.weight"), 7, INFINITY))
CHANGE(inf_down, edit_bf16(edit_find(e, L0 "mlp.down_proj.weight"), 4095, -INFINITY))
CHANGE(nan_gate, edit_bf16(edit_find(e, L0 "mlp.gate_proj.weight"), 1, NAN))
CHANGE(inf_head, edit_bf16(edit_find(e, "lm_head.weight"), 271 * 64, INFINITY))
CHANGE(nan_router, edit_bf16(edit_find(e, L0 "mlp.gate.weight"), 3 * 64 + 1, NAN))
CHANGE(inf_router, edit_bf16(edit_find(e, L0 "mlp.gate.weight"), 3 * 64 + 1, INFINITY))
CHANGE(nan_shared, edit_bf16(edit_find(e, L1 "mlp.shared_expert.down_proj.weight"), 9, NAN))
CHANGE(nan_shared_sigmoid, edit_bf16(edit_find(e, L1 "mlp.shared_expert_gate.weight"), 9, NAN))

static void nan_in_every_expert(edit *e) {
    for (int x = 0; x < 8; x++) {
        char name[100];
        snprintf(name, sizeof name, L1 "mlp.experts.%d.down_proj.weight", x);
        edit_bf16(edit_find(e, name), 2047, NAN);
    }
}

/* Scales of the attention's output projection in an MLX checkpoint. */
CHANGE(nan_scale, edit_bf16(edit_find(e, L0 "self_attn.o_proj.scales"), 3, NAN))

/* A_log is F32. */
static void set_f32(edit *e, const char *name, float value) {
    edit_tensor *t = edit_find(e, name);
    assert_string_equal(t->dtype, "F32");
    memcpy(t->bytes, &value, sizeof value);
}

CHANGE(nan_a_log, set_f32(e, DELTA0 "A_log", NAN))
CHANGE(large_a_log, set_f32(e, DELTA2 "A_log", 100))
CHANGE(nan_dt_bias, edit_bf16(edit_find(e, DELTA2 "dt_bias"), 3, NAN))
CHANGE(inf_conv, edit_bf16(edit_find(e, DELTA0 "conv1d.weight"), 17, INFINITY))
CHANGE(nan_delta_norm, edit_bf16(edit_find(e, DELTA0 "norm.weight"), 1, NAN))

/* Tokens are 3, 9, 27, 81, 200, 9. */
static const change numbers[] = {
    {"llama", nan_norm, STAGE_LOAD, SL_ERR_NUMERIC, L1 "post_attention_layernorm.weight: element 63 is not a finite"},
    {"llama", inf_norm, STAGE_LOAD, SL_ERR_NUMERIC, "tensor model.norm.weight: element 0 is not a finite number"},
    {"qwen2_moe", nan_bias, STAGE_LOAD, SL_ERR_NUMERIC, L0 "self_attn.k_proj.bias: element 31"},
    {"qwen3_moe", nan_q_norm, STAGE_LOAD, SL_ERR_NUMERIC, L0 "self_attn.q_norm.weight: element 5"},
    {"llama", inf_embedding, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 27 at position 2 are not finite"},
    {"llama", nan_embedding, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 200 at position 4 are not finite"},
    {"llama", inf_q, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"llama", nan_k, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"llama", inf_k, STAGE_FORWARD, SL_ERR_NUMERIC, "are not finite"},
    {"llama", inf_v, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"llama", inf_down, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"llama", nan_gate, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"llama", inf_head, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"qwen3_moe", nan_router, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"qwen3_moe", inf_router, STAGE_FORWARD, SL_ERR_NUMERIC, "are not finite"},
    {"qwen3_moe", nan_in_every_expert, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"qwen2_moe", nan_shared, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"qwen2_moe", nan_shared_sigmoid, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
    {"qwen3_next", nan_a_log, STAGE_LOAD, SL_ERR_NUMERIC, DELTA0 "A_log: element 0 is not a finite number"},
    {"qwen3_next", large_a_log, STAGE_LOAD, SL_ERR_NUMERIC, DELTA2 "A_log: element 0 is not a finite number"},
    {"qwen3_next", nan_dt_bias, STAGE_LOAD, SL_ERR_NUMERIC, DELTA2 "dt_bias: element 3"},
    {"qwen3_next", inf_conv, STAGE_LOAD, SL_ERR_NUMERIC, DELTA0 "conv1d.weight: element 17"},
    {"qwen3_next", nan_delta_norm, STAGE_LOAD, SL_ERR_NUMERIC, DELTA0 "norm.weight: element 1"},
    {"qwen3_moe-mlx4", nan_scale, STAGE_FORWARD, SL_ERR_NUMERIC, "logits of token 3 at position 0 are not finite"},
};

static void numbers_that_are_none(void **state) {
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        check_change(numbers, (int)i, SL_NUMERIC_EXACT);
        check_change(numbers, (int)i, SL_NUMERIC_Q8);
    }
}

/* ---- the same model said otherwise ---------------------------------------------------------------------------------
 */

/* As transformers 5.24 does with llama, qwen3_moe and gemma. */
static void a_tied_checkpoint_with_a_head_of_its_own_is_not_tied(void **state) {
    static float got[ROWS * VOCAB], tied[ROWS * VOCAB], untied[ROWS * VOCAB];
    static const char *const names[] = {"llama", "qwen3_moe"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        edit *e = edit_open(names[i]);
        logits_of(e, SL_NUMERIC_Q8, untied);
        edit_config(e, "tie_word_embeddings", "true");
        logits_of(e, SL_NUMERIC_Q8, got);
        assert_memory_equal(got, untied, sizeof got);
        edit_remove(e, "lm_head.weight");
        logits_of(e, SL_NUMERIC_Q8, tied);
        assert_memory_not_equal(tied, untied, sizeof tied);
        edit_copy(e, "model.embed_tokens.weight", "lm_head.weight"); /* both, the same */
        logits_of(e, SL_NUMERIC_Q8, got);
        assert_memory_equal(got, tied, sizeof got);
        edit_config(e, "tie_word_embeddings", "false");
        logits_of(e, SL_NUMERIC_Q8, got);
        assert_memory_equal(got, tied, sizeof got);
        edit_remove(e, "model.embed_tokens.weight"); /* the head alone */
        sl_error err = {0};
        assert_int_equal(run_to_error(edit_write(e), SL_NUMERIC_Q8, &err), STAGE_OPEN);
        assert_non_null(strstr(err.message, "model.embed_tokens.weight"));
        edit_config(e, "tie_word_embeddings", "true");
        logits_of(e, SL_NUMERIC_Q8, got);
        assert_memory_equal(got, tied, sizeof got);
        edit_remove(e, "lm_head.weight"); /* none */
        assert_int_equal(run_to_error(edit_write(e), SL_NUMERIC_Q8, &err), STAGE_OPEN);
        assert_non_null(strstr(err.message, "model.embed_tokens.weight"));
        edit_close(e);
    }
}

/* Hugging Face's qwen3_5_moe, mixtral and minimax_m2 divide by the sum whatever norm_topk_prob says; qwen3_next does
 * as it says. */
static void weights_of_experts_sum_to_one_where_transformers_has_it_so(void **state) {
    static float usual[ROWS * VOCAB], got[ROWS * VOCAB];
    static const char *const always[] = {"qwen3_5_moe", "mixtral", "minimax_m2"}, *const asks[] = {"qwen3_next"};
    for (size_t i = 0; i < SL_COUNT(always) + SL_COUNT(asks); i++) {
        bool ignored = i < SL_COUNT(always);
        edit *e = edit_open(ignored ? always[i] : asks[i - SL_COUNT(always)]);
        logits_of(e, SL_NUMERIC_EXACT, usual);
        json_t *text = json_object_get(e->config, "text_config");
        assert_int_equal(json_object_set_new(text ? text : e->config, "norm_topk_prob", json_false()), 0);
        logits_of(e, SL_NUMERIC_EXACT, got);
        assert_int_equal(memcmp(got, usual, sizeof got) == 0, ignored);
        edit_close(e);
    }
}

static void biases_are_added_where_the_configuration_has_them(void **state) {
    static const char *const names[] = {"q", "k", "v", "o"};
    static float plain[ROWS * VOCAB], zero[ROWS * VOCAB], biased[ROWS * VOCAB];
    edit *e = edit_open("llama");
    logits_of(e, SL_NUMERIC_EXACT, plain);
    edit_config(e, "attention_bias", "true");
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char name[80];
        snprintf(name, sizeof name, L0 "self_attn.%s_proj.bias", names[i]);
        edit_tensor *t = edit_copy(e, "model.norm.weight", name);
        if (i == 1 || i == 2)
            edit_shape(t, 1, 32, 0);
        memset(t->bytes, 0, t->size);
        name[13] = '1';
        edit_copy(e, t->name, name);
    }
    logits_of(e, SL_NUMERIC_EXACT, zero);
    for (int i = 0; i < ROWS * VOCAB; i++)
        assert_true(plain[i] == zero[i]);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char name[80];
        snprintf(name, sizeof name, L1 "self_attn.%s_proj.bias", names[i]);
        edit_bf16(edit_find(e, name), 5, 0.75f);
        logits_of(e, SL_NUMERIC_EXACT, biased);
        assert_memory_not_equal(biased, zero, sizeof zero);
        edit_bf16(edit_find(e, name), 5, 0);
    }
    edit_remove(e, L1 "self_attn.o_proj.bias");
    sl_error err = {0};
    assert_int_equal(run_to_error(edit_write(e), SL_NUMERIC_EXACT, &err), STAGE_OPEN);
    assert_non_null(strstr(err.message, L1 "self_attn.o_proj.bias"));
    edit_close(e);
}

/* A shared expert of width 0 is none. */
static void without_shared_experts(void **state) {
    static const char *const names[] = {"shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj",
                                        "shared_expert_gate"};
    static float with[ROWS * VOCAB], without[ROWS * VOCAB];
    edit *e = edit_open("qwen2_moe");
    logits_of(e, SL_NUMERIC_EXACT, with);
    edit_config(e, "shared_expert_intermediate_size", "0");
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < SL_COUNT(names); i++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.%d.mlp.%s.weight", layer, names[i]);
            edit_remove(e, name);
        }
    logits_of(e, SL_NUMERIC_EXACT, without);
    assert_memory_not_equal(with, without, sizeof with);
    edit_close(e);
}

/* Whether the norms of a checkpoint are w or 1 + w is told by its convolution, whatever else lies beside it: turning
 * all convolutions, and folding all norms, is the same model; only one of the two is not. */
static void norms_folded_with_the_convolution(void **state) {
    static float raw[ROWS * VOCAB], folded[ROWS * VOCAB], mixed[ROWS * VOCAB];
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                                        "self_attn.k_norm"};
    edit *e = edit_open("qwen3_next-mtp");
    logits_of(e, SL_NUMERIC_EXACT, raw);
    for (int layer = 0; layer < 3; layer += 2) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.%d.linear_attn.conv1d.weight", layer);
        edit_tensor *t = edit_find(e, name);
        t->shape[1] = t->shape[2];
        t->shape[2] = 1;
    }
    logits_of(e, SL_NUMERIC_EXACT, mixed);
    assert_memory_not_equal(raw, mixed, sizeof raw);
    for (int i = 0; i < 3 * 4 + 1; i++) {
        char name[100] = "model.norm.weight";
        if (i < 12)
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", i / 4, norms[i % 4]);
        if (i < 12 && i % 4 >= 2 && i / 4 % 2 == 0)
            continue; /* no attention there */
        edit_tensor *t = edit_find(e, name);
        for (int64_t k = 0; k < t->shape[0]; k++) {
            uint16_t h;
            memcpy(&h, t->bytes + 2 * k, 2);
            edit_bf16(t, k, 1 + sl_bf16_to_f32(h));
        }
    }
    logits_of(e, SL_NUMERIC_EXACT, folded);
    assert_memory_equal(raw, folded, sizeof raw);
    edit_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_shapes),
        cmocka_unit_test(layers_of_linear_attention),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(a_tied_checkpoint_with_a_head_of_its_own_is_not_tied),
        cmocka_unit_test(weights_of_experts_sum_to_one_where_transformers_has_it_so),
        cmocka_unit_test(biases_are_added_where_the_configuration_has_them),
        cmocka_unit_test(without_shared_experts),
        cmocka_unit_test(norms_folded_with_the_convolution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
