/* model: architectures as rows of a table over shared blocks; from a checkpoint's configuration and tensors to a
 * recorded forward pass.
 *
 * May include: ops, checkpoint, quant, base. Called by engine. */
#ifndef SL_MODEL_H
#define SL_MODEL_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "ops/ops.h"

typedef struct sl_model_config {
    const char *arch; /* "llama", "qwen2_moe", ... */
    int32_t hidden, layers, heads, kv_heads, head_dim, vocab, context;
    int32_t attention_layers, delta_layers; /* by their mixer */
    int32_t nextn_layers;                   /* layers behind these that predict further tokens: not read */
    bool attn_gate;                         /* attention has an output gate */
    int32_t delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim, delta_kernel;
    int32_t ffn;        /* width of dense FFN layers */
    int32_t moe_layers; /* 0: dense */
    int32_t experts, top_k, expert_ffn, shared_ffn;
    bool normalize_topk;
    float weight_scale;         /* of the chosen experts' weights; 0: none */
    int32_t groups, top_groups; /* of experts to choose from; 0: none */
    int32_t shared_count;       /* shared experts, each of expert_ffn */
    int32_t first_dense;        /* so many first layers have no routed experts */
    int32_t window;             /* positions that layers with a window see; 0: none has one */
    float swiglu_limit;         /* 0: plain SwiGLU */
    /* MLA: width of the queries' narrow space (0: none) and of the latent; of a head: part of a key that is not
     * rotated, part that is, a value. kv_heads is 1 then, head_dim the latent and the rotated part. */
    int32_t q_lora, kv_lora, qk_nope, qk_rope, v_dim;
    float norm_eps;
    double rope_theta;
    int32_t rope_dims;
    bool tied; /* output head = embedding */
} sl_model_config;

typedef struct sl_model sl_model;

/* Reads configuration, resolves every tensor (a missing one, a shape that contradicts the config, a tensor nothing uses
 * are errors). Reads no weights. c is borrowed. */
sl_model *sl_model_open(const sl_ckpt *c, sl_error *err);
void sl_model_free(sl_model *m);
const sl_model_config *sl_model_config_get(const sl_model *m);

/* Overrides num_experts_per_tok (0: as the checkpoint has it); before load. */
bool sl_model_set_top_k(sl_model *m, int32_t top_k, sl_error *err);

uint64_t sl_model_resident_bytes(const sl_model *m); /* as loaded into slabs */
uint64_t sl_model_token_bytes(const sl_model *m);    /* of them, what the step of one token reads */
uint64_t sl_model_expert_bytes(const sl_model *m);   /* of all routed experts on disk */
/* Scratch that loading takes for a forward pass over max_rows rows of which max_outs want logits; before or after
 * loading. 0: an error. */
uint64_t sl_model_scratch_bytes(const sl_model *m, sl_ops *ops, int32_t max_rows, int32_t max_outs, sl_error *err);
bool sl_model_kv_layout(const sl_model *m, sl_kv_format format, sl_kv_layout *out,
                        sl_error *err); /* derived fields not yet set */
/* Recurrent state of a sequence (keeps: sl_state_keeps); layers 0 where the model has none. Derived fields not yet
 * set. */
void sl_model_state(const sl_model *m, bool keeps, sl_state_layout *out);

/* Extents of routed experts for the store, one entry per MoE layer; owned by the model. */
typedef struct sl_model_experts {
    int32_t experts;
    const sl_extent *extent; /* [experts][SL_EXPERT_PARTS] */
} sl_model_experts;
const sl_model_experts *sl_model_expert_layers(const sl_model *m, int32_t *count);
/* Layout of a MoE layer's projections (gate, up, down; part[] NULL), and its number in the model. i: as in
 * expert_layers. */
const sl_matrix *sl_model_expert_matrices(const sl_model *m, int32_t i, int32_t *layer);
/* Gate of that MoE layer holds the rows of gate and up in turn; up has no extents. */
bool sl_model_experts_alternate(const sl_model *m, int32_t i);
/* Whether the forward pass reads this tensor of the checkpoint (one that is not is known to be of no use). */
bool sl_model_uses(const sl_model *m, size_t tensor);
/* Formats in use, "Q4_1, Q8_0", for info; buffer owned by the model. */
const char *sl_model_formats(const sl_model *m);
/* GGUF's keys of the architecture that were not understood, "" for none: worth a warning. */
const char *sl_model_unknown_keys(const sl_model *m);

/* Are there kernels for the shapes of all its layers? Before load, which asks it too. */
bool sl_model_accepted(const sl_model *m, const sl_ops *ops, sl_error *err);

/* Reads the resident weights into spans of mem (the page cache is left as it was found), checks norms for NaN, wraps
 * them for ops and records the forward pass. progress(user, done, total) may be NULL. */
bool sl_model_load(sl_model *m, sl_mem *mem, sl_ops *ops, int32_t max_rows, int32_t max_outs,
                   void (*progress)(void *, uint64_t, uint64_t), void *user, sl_error *err);

/* The same pass over another number of rows, in scratch that takes the place of what there was: on the CPU, after load,
 * between steps. false: there is none now, no step runs until a call succeeds. */
bool sl_model_fit_rows(sl_model *m, int32_t max_rows, int32_t max_outs, sl_error *err);

/* Seconds of one decoded token, where nothing is read from the disk. */
typedef struct sl_model_cost {
    double head;    /* embedding, last norm and head */
    double layer;   /* of one layer, without its routed experts */
    double experts; /* of one layer: the routed experts of the token */
} sl_model_cost;

/* Experts that are not there: begin sets the reads of some of a layer's n experts going and returns of how many (-1: an
 * error); wait returns when at least one of them has come, how many of them did, max at most. */
typedef struct sl_measure_reads {
    void *self;
    int32_t (*begin)(void *self, int32_t n, sl_error *err);
    int32_t (*wait)(void *self, int32_t max, sl_error *err);
} sl_measure_reads;

typedef struct sl_model_measure_options {
    sl_ops_cpu_options ops; /* mem is not used */
    sl_kv_format kv;
    uint64_t room;                 /* takes no more bytes, and gives them back */
    double seconds;                /* about as long */
    const sl_measure_reads *reads; /* NULL: every expert is there */
} sl_model_measure_options;

enum { SL_PROBE_TOP_K = 256 };

/* Measures, on the CPU, layers of the model's shapes and formats (those with experts, or the dense ones) over weights
 * of zeros. Before load. */
bool sl_model_measure(const sl_model *m, bool moe, const sl_model_measure_options *o, sl_model_cost *out,
                      sl_error *err);

/* One step. Logits are checked for NaN: SL_ERR_NUMERIC names the row. */
bool sl_model_forward(sl_model *m, sl_step *step, sl_error *err);

#endif
