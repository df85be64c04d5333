/* ops: the forward pass as recorded work over a batch of rows, independent of what executes it.
 *
 * A model records a program ONCE: a list of operations whose operands are handles (buffer, offset, shape), never host
 * pointers. What changes per step (number of rows, tokens, positions, page tables) is in sl_step, so a program is run
 * again and again without patching. Implementations: the native CPU (sl_ops_cpu_new); GPU devices later through the
 * same table. May include: cpu, gpu, quant, base. Called by model (records), engine (runs), experts (implements
 * sl_expert_source). */
#ifndef SL_OPS_H
#define SL_OPS_H

#include "base/base.h"
#include "quant/quant.h"
#include "sluice/gpu.h"

typedef struct sl_ops sl_ops;

/* ---- operands --------------------------------------------------------------------------------------------------- */

typedef uint32_t sl_buffer; /* memory known to the implementation; 0 is none */

/* How many rows an operand has in a step. */
typedef enum sl_rows { SL_ROWS_ALL /* step->rows */, SL_ROWS_OUT /* step->outs: rows that want logits */ } sl_rows;

/* A float32 activation [rows][cols], row stride in elements. */
typedef struct sl_view {
    sl_buffer buffer;
    uint64_t offset; /* bytes */
    sl_rows rows;
    int32_t cols;
    int64_t stride;
} sl_view;

/* A resident weight: sl_matrix with its parts as handles. buffer 0: absent. Vectors (norms, biases) are f32 [1][n]
 * after loading. */
typedef struct sl_weight {
    sl_matrix matrix; /* part[] unused */
    sl_buffer buffer;
    uint64_t offset[3];
} sl_weight;

/* ---- KV pages ------------------------------------------------------------------------------------------------------
 */

enum { SL_KV_PAGE_TOKENS = 64 };

/* F16 is the default; F32 that of the exact numeric mode, where half precision would be the largest error. */
typedef enum sl_kv_format { SL_KV_F16, SL_KV_Q8_0, SL_KV_F32 } sl_kv_format;

/* A block holds 64 tokens of all attention layers of one sequence: [layer][K|V][kv_head][token][head_dim], or K alone
 * where the values are a part of the keys. A page table
 * lists block numbers; block b lies in slab b / blocks_per_slab at (b % blocks_per_slab) * block_bytes. */
typedef struct sl_kv_layout {
    sl_kv_format format;
    int32_t layers, kv_heads, head_dim;
    int32_t planes;       /* 2, or 1: keys only (0 is made 2) */
    uint64_t head_bytes;  /* one token of one head: head_dim * 2 or * 4, or head_dim / 32 * 34 */
    uint64_t plane_bytes; /* K or V of one layer: kv_heads * 64 * head_bytes */
    uint64_t block_bytes; /* layers * planes * plane_bytes, rounded up to 64 */
    int32_t blocks_per_slab;
} sl_kv_layout;

/* Computes the derived fields; head_dim must be a multiple of 32 for Q8_0. */
bool sl_kv_layout_init(sl_kv_layout *l, uint64_t slab_bytes, sl_error *err);

/* ---- recurrent state ----------------------------------------------------------------------------------------------
 */

/* A block holds what one delta layer keeps of one sequence, all f32: the delta state [value_head][key_dim][value_dim];
 * at conv_offset the last kernel - 1 rows of the convolution's input [kernel - 1][channels], oldest first; at
 * kept_offset, where the implementation works in chunks (sl_state_keeps), what the rows of the current one added
 * [value_head]. Block b lies in slab b / blocks_per_slab at (b % blocks_per_slab) * block_bytes. */
typedef struct sl_state_layout {
    int32_t layers; /* delta layers: blocks of one sequence; 0: the model has none */
    int32_t key_heads, value_heads, key_dim, value_dim;
    int32_t kernel;       /* width of the convolution */
    bool keeps;           /* rows of the current chunk */
    int32_t channels;     /* 2 * key_heads * key_dim + value_heads * value_dim */
    uint64_t conv_offset; /* bytes */
    uint64_t kept_offset;
    uint64_t kept_bytes;  /* of a value head */
    uint64_t block_bytes; /* a multiple of 64 */
    uint64_t used_bytes;  /* of a block: what a snapshot keeps */
    int32_t blocks_per_slab;
} sl_state_layout;

/* Computes channels and what follows it. */
bool sl_state_layout_init(sl_state_layout *l, uint64_t slab_bytes, sl_error *err);

/* What `keeps` must be: the CPU's q8 mode takes the delta rule in chunks at fixed positions; its exact mode, and
 * devices, have the state after the last row. */
static inline bool sl_state_keeps(bool device, bool exact) {
    return !device && !exact;
}

/* ---- the step -------------------------------------------------------------------------------------------------------
 */

/* One sequence as a step sees it. */
typedef struct sl_step_seq {
    const int32_t *pages; /* block numbers; covers every position the step reads or writes */
    int32_t page_count;
    const int32_t *state; /* block numbers, one per delta layer; NULL: the program has none */
} sl_step_seq;

/* What changes from step to step. Arrays are owned by the caller and live until the run returns. */
typedef struct sl_step {
    int32_t rows;            /* >= 1, <= max_rows of the program */
    const int32_t *token;    /* [rows] */
    const int32_t *seq;      /* [rows] index into seqs */
    const int32_t *position; /* [rows]; the rows of one sequence are consecutive, positions ascending by one */
    int32_t seq_count;
    const sl_step_seq *seqs;
    int32_t outs;            /* rows that want logits */
    const int32_t *out_rows; /* [outs] ascending row numbers */
    float *logits;           /* [outs][vocab], filled on return (host memory) */
    /* Set per row where an expert it needs could not be read, or that attends to such a row of this step; the other
     * rows' results stand. row_error says the first reason. NULL: such an expert fails the step. */
    uint8_t *row_failed; /* [rows], zeroed by the caller */
    sl_error row_error;
    /* Polled at every layer; a true ends the run with SL_ERR_CANCELLED. May be NULL. Called on the thread that runs the
     * step. */
    bool (*cancelled)(void *user);
    void *user;
} sl_step;

/* ---- experts as the moe op sees them
 * --------------------------------------------------------------------------------- */

enum { SL_PROJ_GATE, SL_PROJ_UP, SL_PROJ_DOWN, SL_PROJ_COUNT };
enum { SL_EXPERT_PARTS = 9 }; /* projection * 3 + part (codes, scales, biases) */

typedef struct sl_expert_view {
    int32_t id;
    int32_t slot;
    const uint8_t *part[SL_EXPERT_PARTS]; /* NULL where the format has no such part; no alignment promised */
} sl_expert_view;

typedef enum sl_expert_order { SL_ORDER_READY /* hits first */, SL_ORDER_ASCENDING } sl_expert_order;

enum { SL_PEEK_BLOCKS = 16 };

/* The slots as a device sees them. */
typedef struct sl_expert_peek {
    int32_t holds;     /* experts that may be claimed at once; 0: slots may change without being asked */
    bool all_resident; /* every expert of every layer is in a slot, so nothing will be read or moved */
    uint32_t align;    /* every part of this layer's experts begins at a multiple of it: 1..16 */
    int32_t blocks;    /* pieces of memory (sl_mem_find) that all slots lie in; 0: more than SL_PEEK_BLOCKS */
    void *block[SL_PEEK_BLOCKS];
    uint64_t block_bytes; /* of each */
} sl_expert_peek;

/* The step's iterator over one layer's experts; implemented by experts/, called by the moe op on the thread that runs
 * the step. */
typedef struct sl_expert_source {
    void *self;
    /* Wants n distinct experts, ids ascending; n may exceed the slots. Reads of misses begin before it returns. */
    bool (*begin)(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, sl_error *err);
    /* Waits until at least one further expert is ready and returns up to max of them (at most what the order allows);
     * 0: all were handed out. -1: one expert failed (its id in out[0].id, the reason in err); iteration goes on. Those
     * handed out stay valid until done. */
    int (*next)(void *self, sl_expert_view *out, int max, sl_error *err);
    void (*done)(void *self, const sl_expert_view *views, int n);
    /* Ends the iteration, also after an early stop: nothing of it stays claimed. */
    void (*end)(void *self);
    /* For a device that is given work before it is known which experts a token wants; NULL: such work waits. What peek
     * says holds until the step ends, as long as no more than `holds` experts are claimed at once. */
    bool (*peek)(void *self, int32_t layer, sl_expert_peek *out);
    /* The experts of a layer that are in slots now, claimed or not; returns how many, <= max. They stay while they are
     * claimed, or until an iteration begins that does not want them. */
    int32_t (*resident)(void *self, int32_t layer, sl_expert_view *out, int32_t max);
    /* A number that is another one whenever resident, or the blocks of peek, would say something else of the layer than
     * before. NULL or 0: not known. */
    uint64_t (*generation)(void *self, int32_t layer);
    /* Whether the running iteration wants to know what the next MoE layer will probably ask for; NULL: never. / n ids
     * of that layer, distinct. Between begin and end. */
    bool (*wants_guess)(void *self);
    void (*guess)(void *self, const int32_t *ids, int32_t n);
} sl_expert_source;

/* ---- operations ----------------------------------------------------------------------------------------------------
 */

typedef struct sl_rope {
    int32_t first;         /* of them (MLA rotates the end of a head); even */
    int32_t dims;          /* rotated dimensions of a head (<= head_dim, even) */
    bool interleaved;      /* pairs (2i, 2i+1) as GGUF llama has them; else (i, i + dims/2) */
    const float *inv_freq; /* [dims/2], angle = position * inv_freq[i]; owned by the model, copied at record time */
    float scale;           /* multiplies cos and sin (yarn's attention factor); 1 else */
} sl_rope;

typedef struct sl_attention {
    int32_t layer; /* index among attention layers */
    int32_t heads, kv_heads, head_dim;
    float scale;              /* of q.k */
    sl_weight q_norm, k_norm; /* per-head RMSNorm, optional */
    float norm_eps;
    sl_rope rope;
    /* Elements from one head of q to the next, and of the gate: where a product gives [q | gate] per head, both are
     * views of it. The view's columns are (heads - 1) * head_stride + head_dim. 0: head_dim. */
    int32_t head_stride;
    sl_view gate; /* dst = attention * sigmoid(gate); buffer 0: none */
    /* 0: head_dim. Else no V is stored (KV of one plane) and v is not looked at: values are the first value_dim columns
     * of the keys (MLA's latent, one KV head); dst has heads * value_dim columns. */
    int32_t value_dim;
    int32_t window;  /* a row sees itself and window - 1 positions before it; 0: all */
    sl_weight sinks; /* [1][heads]: a score that every row of a head has beside its keys', without a value; optional */
} sl_attention;

/* Gated DeltaNet: what lies between the layer's input products and its output product (formulas: transformers,
 * models/qwen3_next/modeling_qwen3_next.py, torch_recurrent_gated_delta_rule). For every row, in order of position:
 *   x = silu(conv over this row and the kernel - 1 before it of q | k | v, each channel by itself, + bias)
 *   q, k = l2norm per head (x * rsqrt(sum x^2 + 1e-6)), q also / sqrt(key_dim)
 *   g = decay * softplus(alpha + dt_bias), b = sigmoid(beta)
 *   S = S * exp(g);  S += k (b * (v - S^T k))^T;  o = S^T q          S [key_dim][value_dim], per value head
 *   dst = o / sqrt(mean(o^2) + norm_eps) * norm * silu(z)             per value head
 * Weights are f32. */
typedef struct sl_delta {
    int32_t layer; /* index among delta layers: step_seq.state[layer] */
    int32_t key_heads, value_heads, key_dim, value_dim;
    int32_t kernel;      /* width of the convolution, 2 to SL_DELTA_KERNEL; the last tap is the row itself */
    sl_weight conv;      /* [channels][kernel], channels as qkv's columns */
    sl_weight conv_bias; /* [1][channels], optional */
    sl_weight decay;     /* [1][value_heads], -exp(A_log): negative */
    sl_weight dt_bias;   /* [1][value_heads] */
    sl_weight norm;      /* [1][value_dim], as it multiplies (not 1 + w) */
    float norm_eps;
    /* Value head h reads key head h % key_heads (order of GGUF files of qwen3.5); else h / (value_heads / key_heads).
     */
    bool tiled;
} sl_delta;

enum { SL_DELTA_KERNEL = 8 };

/* What router logits become; the k experts of the highest p (+ choice_bias) are chosen, ties to the lower id. */
typedef enum sl_router {
    SL_ROUTER_SOFTMAX,       /* p = softmax over all experts */
    SL_ROUTER_SIGMOID,       /* p = sigmoid of each (deepseek_v3, glm4_moe, minimax_m2) */
    SL_ROUTER_SOFTMAX_CHOSEN /* p = the logits; weights are their softmax over the chosen (gpt_oss) */
} sl_router;

enum { SL_ROUTER_GROUPS = 64 };

typedef struct sl_moe {
    int32_t layer; /* index among MoE layers: what the expert source is asked for */
    int32_t experts, top_k;
    sl_router kind;
    bool normalize;        /* weights of the chosen experts are divided by their sum */
    float weight_scale;    /* then multiplied by this (routed_scaling_factor); 0: 1 */
    sl_weight router;      /* [experts][hidden] */
    sl_weight router_bias; /* [1][experts] added to the logits; optional */
    sl_weight choice_bias; /* [1][experts] added to p for choosing, not in weights; optional */
    /* Experts in so many equal groups, of which those with the highest sum of their two best p + choice_bias may be
     * chosen from; 0 or 1: no groups. */
    int32_t groups, top_groups;
    /* 0: an expert's inner row is silu(gate) * up. Else, gate <= swiglu_limit and -swiglu_limit <= up <= swiglu_limit
     * being clamped, gate * sigmoid(swiglu_alpha * gate) * (up + 1) (gpt_oss). Not of the shared expert. */
    float swiglu_limit, swiglu_alpha;
    sl_weight bias[SL_PROJ_COUNT]; /* [experts][rows of the projection], F32: of the experts; all or none */
    sl_matrix proj[SL_PROJ_COUNT]; /* layout of an expert's projections (part[] unused) */
    /* Rows of gate and up alternate in one matrix (gpt_oss as Hugging Face has it): gate is that matrix, of twice the
     * rows, and up is not looked at, nor are its parts in what the source hands out. */
    bool alternating;
    sl_weight shared[SL_PROJ_COUNT]; /* shared expert; buffer 0: none */
    sl_weight shared_gate;           /* [1][hidden], sigmoid; optional */
} sl_moe;

/* Rows of an expert's gate. */
static inline int64_t sl_moe_inner(const sl_moe *m) {
    return m->alternating ? m->proj[SL_PROJ_GATE].rows / 2 : m->proj[SL_PROJ_GATE].rows;
}

/* A recorded program: created by an implementation, filled by sl_op_* calls, run many times. Recording errors are kept
 * and returned by sl_program_end. */
typedef struct sl_program sl_program;

sl_program *sl_program_new(sl_ops *ops, int32_t max_rows, int32_t max_outs, sl_error *err);
bool sl_program_end(sl_program *p, sl_error *err);
void sl_program_free(sl_program *p);

/* dst[row] = row token[row] of table */
void sl_op_embed(sl_program *p, sl_view dst, const sl_weight *table);
/* dst = src / sqrt(mean(src^2) + eps) * weight   (RMSNorm) */
void sl_op_rms_norm(sl_program *p, sl_view dst, sl_view src, const sl_weight *weight, float eps);
/* dst[i] = src . W[i]^T (+ bias[i]) for up to 4 weights that share src; dst may be accumulated onto (residual) with
 * add. */
typedef struct sl_linear {
    sl_view dst;
    const sl_weight *weight, *bias; /* bias NULL: none */
    bool add;
} sl_linear;
void sl_op_linear(sl_program *p, sl_view src, const sl_linear *out, int n);
/* A matrix for each head. src has heads vectors of in_dim + tail elements one after the other, dst heads vectors of
 * out_dim + tail: the product, then the tail as it is. weight: the matrices one below the other, each of rows_per_head
 * rows, of which out_dim rows from first_row on are W [out_dim][in_dim]: dst = W src; transposed: in_dim rows from
 * first_row on, W [in_dim][out_dim]: dst = W^T src, in float32, rows ascending. */
typedef struct sl_head_linear {
    const sl_weight *weight;
    int32_t heads, in_dim, out_dim, tail;
    int32_t first_row, rows_per_head;
    bool transposed;
} sl_head_linear;
void sl_op_head_linear(sl_program *p, sl_view dst, sl_view src, const sl_head_linear *h);
/* dst = silu(src . gate^T) * (src . up^T) */
void sl_op_gate_up(sl_program *p, sl_view dst, sl_view src, const sl_weight *gate, const sl_weight *up);
/* Norms q and k per head, rotates them, appends k and v to the pages, attends causally over positions 0..position;
 * dst[row][heads*head_dim]. q, k are overwritten; the gate, if any, is not. */
void sl_op_attention(sl_program *p, sl_view dst, sl_view q, sl_view k, sl_view v, const sl_attention *a);
/* dst[row][value_heads*value_dim]; qkv[row][channels] = q of all key heads | k of all key heads | v, overwritten; z as
 * dst, which may be the same view; beta, alpha [row][value_heads]. Reads and writes the state block of each sequence: a
 * row at position 0 begins from zeros, any other continues what the last step left. A step that fails, also one row
 * that fails, leaves the state of its sequences as something between before and after: it is lost. */
void sl_op_delta(sl_program *p, sl_view dst, sl_view qkv, sl_view z, sl_view beta, sl_view alpha, const sl_delta *d);
/* residual += experts(src) weighted + shared expert. Addition is in ascending expert id, then the shared expert,
 * whatever the order of arrival. */
void sl_op_moe(sl_program *p, sl_view residual, sl_view src, const sl_moe *m);
/* dst rows (SL_ROWS_OUT) = src rows named by step->out_rows */
void sl_op_gather_outs(sl_program *p, sl_view dst, sl_view src);
/* step->logits = src (SL_ROWS_OUT) . head^T */
void sl_op_logits(sl_program *p, sl_view src, const sl_weight *head);
/* A place where cancellation is looked at; one per layer. */
void sl_op_checkpoint(sl_program *p, int32_t layer);

/* ---- implementations ------------------------------------------------------------------------------------------------
 */

/* Numeric mode of the CPU: exact = f32 activations, scalar, the oracle; q8 = int8 activations, SIMD. */
typedef enum sl_numeric { SL_NUMERIC_Q8, SL_NUMERIC_EXACT } sl_numeric;

typedef struct sl_ops_cpu_options {
    sl_pool *pool; /* borrowed */
    sl_mem *mem;   /* scratch is taken from it; borrowed */
    sl_numeric numeric;
    const char *isa; /* NULL: best; "scalar", "avx2", "avx512", "neon" forced */
} sl_ops_cpu_options;

sl_ops *sl_ops_cpu_new(const sl_ops_cpu_options *options, sl_error *err);
/* Kernels on a device of gpu.h, which is borrowed, as is mem; numerics are the kernels' own (float, half tiles where
 * there are many rows). */
sl_ops *sl_ops_gpu_new(sl_gpu *gpu, sl_mem *mem, sl_error *err);

/* Rows of a step on a device up to which each is computed by itself: its bits are the same whatever comes with it. In a
 * larger step rows are computed in half tiles: other bits, but they do not depend on the step's other rows either. On
 * the CPU there is no such difference. */
enum { SL_GPU_FEW_ROWS = 15 };
/* What may be taken of the memory of a device that has its own; elsewhere it means nothing. */
typedef struct sl_ops_vram {
    uint64_t
        limit;     /* bytes for weights, scratch, logits, KV, state and experts; 0: sl_ops_vram_share of what is free */
    uint64_t keep; /* of them for KV and state, before experts take the rest */
} sl_ops_vram;
/* Before anything is loaded. */
void sl_ops_set_vram(sl_ops *ops, const sl_ops_vram *v);
/* What may be taken of so many free bytes without being asked: the driver needs some for code, graphs and stacks. */
uint64_t sl_ops_vram_share(uint64_t room);
/* Bytes of an expert's slot there; proj, alternating: as in sl_moe. */
uint64_t sl_ops_vram_slot(const sl_matrix proj[SL_PROJ_COUNT], bool alternating);

enum { SL_GPU_PIECES = 16 }; /* pieces of memory in which its kernels can see KV, state or expert slots */

void sl_ops_free(sl_ops *ops);
const char *sl_ops_isa(const sl_ops *ops);

/* Makes host memory known; the memory outlives the handle's last use. */
sl_buffer sl_ops_wrap(sl_ops *ops, void *base, uint64_t bytes, sl_error *err);
void sl_ops_unwrap(sl_ops *ops, sl_buffer b);
/* Scratch for views of a program, from the budget. */
sl_buffer sl_ops_scratch(sl_ops *ops, uint64_t bytes, sl_error *err);
/* Gives it back, when no program uses it any more. On the CPU alone: elsewhere scratch stays until the ops are freed.
 */
void sl_ops_scratch_free(sl_ops *ops, sl_buffer b);
/* Bytes of scratch that sl_program_end will take for the implementation itself (activations in int8 or halves, moe,
 * attention, delta), where the ops run no other program. For a program that was recorded but not ended: weights, views
 * and frequencies need not be in memory, only their sizes count. 0: an error while recording. */
uint64_t sl_program_scratch_bytes(const sl_program *p, sl_error *err);
/* Can such operations be recorded? Asked before anything is loaded: only their sizes count. NULL: there is none. */
bool sl_ops_accepts(const sl_ops *ops, const sl_attention *a, const sl_moe *moe, const sl_delta *delta, sl_error *err);
void sl_ops_set_experts(sl_ops *ops, const sl_expert_source *source);

/* Looks at the mixture of experts while it runs: which experts rows chose, and what these are multiplied with. Called
 * on the step's thread. Either function may be NULL. */
typedef struct sl_moe_watch {
    void *self;
    /* ids, weights: [step->rows][top_k], ids of a row ascending */
    void (*routed)(void *self, const sl_moe *m, const sl_step *step, const int32_t *ids, const float *weights);
    /* x[rows][cols]: the rows that came to the layer (inner false: what gate and up are multiplied with), or the inner
     * rows of some of its experts (inner true: down). */
    void (*inputs)(void *self, const sl_moe *m, bool inner, const float *x, int64_t stride, int32_t rows, int32_t cols);
} sl_moe_watch;
/* NULL ends it. Between steps. Only the CPU can be watched. */
bool sl_ops_watch_moe(sl_ops *ops, const sl_moe_watch *watch, sl_error *err);

/* KV slabs in order of block numbers; grows as the engine takes slabs. */
void sl_ops_set_kv(sl_ops *ops, const sl_kv_layout *layout);
bool sl_ops_add_kv_slab(sl_ops *ops, void *slab, sl_error *err);
/* The same for the slabs of recurrent state. */
void sl_ops_set_state(sl_ops *ops, const sl_state_layout *layout);
bool sl_ops_add_state_slab(sl_ops *ops, void *slab, sl_error *err);

/* For who looks at the bytes of KV or state blocks between steps: pull brings what steps have written to the host's
 * memory at p, push takes what the host has written there. Both do nothing where there is one memory (or ops is NULL).
 * From any thread, of blocks that no step uses. */
bool sl_ops_pull(sl_ops *ops, void *p, uint64_t bytes, sl_error *err);
bool sl_ops_push(sl_ops *ops, const void *p, uint64_t bytes, sl_error *err);

/* Time spent in the last steps since reset, in nanoseconds, for --timing and bench. */
typedef struct sl_ops_times {
    uint64_t attention, linear, router, expert_wait, expert_compute, shared, head, other;
    uint64_t delta;
    uint64_t steps, rows;
    /* of a device, else 0: lists submitted; the device's own time; waits of one for the other and the
     * host's time in them; of the waits those during which the device had other work */
    uint64_t gpu_lists, gpu_time, gpu_waits, gpu_wait_time, gpu_hidden_waits;
    /* of a device whose phases are told apart (sl_ops_set_timing): the sum of all of them, by its own clock; then the
     * phases above are such times too, but for expert_wait where the host has to read before the device can go on */
    uint64_t gpu_phase_time;
    uint64_t gpu_tables; /* tables of experts written for a device that was given a step whole */
    /* of a device with memory of its own: bytes taken of it now and at most, slots for experts; of the experts that
     * were asked for how many were there and how many were brought; bytes of those */
    uint64_t vram, vram_peak, vram_slots, vram_hits, vram_misses, vram_copied;
} sl_ops_times;
void sl_ops_times_get(const sl_ops *ops, sl_ops_times *out);
void sl_ops_times_reset(sl_ops *ops);
/* A device tells its phases apart, which costs it a command buffer for each; off unless asked for. The CPU always does.
 */
void sl_ops_set_timing(sl_ops *ops, bool on);

/* Runs a program. false: the whole step failed (cancelled, NaN, out of memory): nothing it wrote counts. Rows of
 * step->row_failed failed alone. */
bool sl_program_run(sl_program *p, sl_step *step, sl_error *err);

#endif
