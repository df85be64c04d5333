/* Private to model: the opened model. */
#ifndef SL_MODEL_INTERNAL_H
#define SL_MODEL_INTERNAL_H

#include "model/arch.h"

/* Rotation as the checkpoint asks for it. */
typedef struct rope_config {
    enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } type;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_context;                  /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn: turns over the original context */
    bool fractional;                          /* yarn: the dimensions of those are not rounded to whole ones */
    double attention_factor;       /* yarn: of cos and sin; 0: from mscale and mscale_all_dim, or 0.1 ln(factor) + 1 */
    double mscale, mscale_all_dim; /* yarn; 0: not given */
    double attention_times;        /* yarn in GGUF: multiplies that */
    bool interleaved;              /* MLA: neighbours are rotated together */
} rope_config;

/* Biases of the attention's projections. */
typedef enum biases { BIASES_NONE, BIASES_REQUIRED, BIASES_OPTIONAL /* GGUF: those that are there */ } biases;

/* What loading does to the numbers of a vector. */
typedef enum fold { FOLD_NONE, FOLD_ONE_PLUS /* w -> 1 + w */, FOLD_MINUS_EXP /* w -> -exp(w) */ } fold;

enum { ROW_SEGMENTS = 4 };

/* Rows of a tensor that holds several matrices, interleaved: `groups` times the rows of every segment one after the
 * other. Of them a resident takes `count` segments from `first` on, each brought together over the groups. groups 0:
 * the tensor is the matrix. */
typedef struct row_split {
    int32_t groups;
    int64_t segment[ROW_SEGMENTS]; /* rows of each in a group; 0: no such segment */
    int32_t first, count;
} row_split;

/* A resident weight: where it is in the file and where it lies in memory. */
typedef struct resident {
    const sl_tensor *tensor; /* NULL: absent */
    sl_weight weight;        /* offsets are set by layout, buffer by load */
    bool vector;             /* becomes f32, matrix.rows * matrix.cols of them */
    fold fold;
    int32_t every, first; /* vector: takes elements first, first + every, ...; every 0: all */
    row_split split;
} resident;

struct block;

typedef struct model_layer {
    resident r[ROLE_COUNT];          /* those of a layer */
    const struct block *mixer, *ffn; /* what the layer is made of */
    int32_t mixer_index;             /* among the layers of its mixer */
    bool moe;
    bool alternating; /* proj[gate] has the rows of gate and up in turn */
    int32_t moe_index;
    sl_matrix proj[SL_PROJ_COUNT]; /* layout of an expert */
} model_layer;

struct sl_model {
    const sl_ckpt *ckpt;
    const arch *arch;
    naming naming;
    sl_model_config config;
    rope_config rope;
    biases biases;
    bool qk_norm, qk_norm_optional; /* norms of q and k; may lack (GGUF) */
    bool one_plus;                  /* norms are stored as trained: they multiply by 1 + w */
    uint8_t *mixers;                /* [layers]: mixer of each */
    uint8_t *dense;                 /* [layers]: not MoE by configuration */
    uint8_t *windowed;              /* [layers]: attention sees config.window positions */
    resident global[ROLE_LAYER_FIRST];
    model_layer *layers;
    sl_model_experts *experts; /* [moe_layers] */
    uint8_t *used;             /* [tensors of the checkpoint] */
    uint64_t resident_bytes, expert_bytes;
    char formats[256];
    char unknown_keys[256];
    float *inv_freq;
    float rope_scale;
    /* after load */
    sl_mem *mem;
    sl_ops *ops;
    void *weights;
    sl_buffer weights_buffer, scratch;
    sl_program *program;
};

/* config.c: fills config, rope, biases, mixers, dense from config.json or metadata. */
bool model_read_config(sl_model *m, sl_error *err);
/* resolve.c: finds every tensor, checks shapes, lays out resident weights, lists expert extents. */
bool model_resolve(sl_model *m, sl_error *err);
/* Gives every resident weight its place in the span. */
void model_place(sl_model *m);
/* resolve_experts.c */
bool model_resolve_experts(sl_model *m, int32_t layer, sl_error *err);
/* rope.c: fills inv_freq and rope_scale. factors: per-dimension divisors (GGUF rope_freqs) or NULL. */
bool model_rope_frequencies(sl_model *m, const float *factors, sl_error *err);
/* Of q.k for heads of dim: MLA's grows with yarn. */
float model_attention_scale(const sl_model *m, int32_t dim);
/* record.c: the forward pass. */
bool model_record(sl_model *m, int32_t max_rows, int32_t max_outs, sl_error *err);
uint64_t model_view_bytes(const sl_model *m, int32_t max_rows, int32_t max_outs);

#endif
