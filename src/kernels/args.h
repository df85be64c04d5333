/* args: what the host hands to the kernels, declared once for C and for Metal Shading Language.
 *
 * Every kernel takes its struct of arguments in slot 0 (`constant X &args`, at most 4 KiB) and buffers from slot 1 on;
 * which is which stands at the top of each .metal file. A buffer that a kernel does not use under its function
 * constants is bound all the same (any buffer of the kernel will do). What changes from token to token is in the step
 * buffer, so a list of dispatches is replayed without patching: grids are maxima, and a threadgroup without work
 * returns at once. Strides of activations are in elements, of weights in bytes; all offsets are computed in 64 bits. */
#ifndef SL_KERNELS_ARGS_H
#define SL_KERNELS_ARGS_H

#ifdef __METAL_VERSION__
#define SL_ARGS_ASSERT(condition, text) static_assert(condition, text)
#else
#include <stddef.h>
#include <stdint.h>
#define SL_ARGS_ASSERT(condition, text) _Static_assert(condition, text)
#endif
#define SL_ARGS_AT(type, field, offset)                                                                                \
    SL_ARGS_ASSERT(__builtin_offsetof(struct type, field) == (offset), #type "." #field)
#define SL_ARGS_SIZE(type, bytes)                                                                                      \
    SL_ARGS_ASSERT(sizeof(struct type) == (bytes) && (bytes) % 8 == 0 && (bytes) <= 4096, #type)

/* ---- geometry the host needs to know ----------------------------------------------------------------------------- */

#define SL_SIMD 32
/* matvec family: rows of W per threadgroup, threads. */
#define SL_MATVEC_ROWS    8
#define SL_MATVEC_THREADS 64
/* narrow: units of 32 columns of a SIMD-group, SIMD-groups at most. */
#define SL_NARROW_UNITS 32
#define SL_NARROW_SIMDS 8
/* split: units of columns that a threadgroup takes, where there is room for so many partial results. */
#define SL_SPLIT_UNITS 8
/* few family: rows of a tile, columns of a chunk, threads. */
#define SL_FEW_ROWS    16
#define SL_FEW_COLS    256
#define SL_FEW_THREADS 128
/* batch family: threads, and of batch_lines; pairs of an expert in a tile. */
#define SL_BATCH_THREADS      128
#define SL_BATCH_LINE_THREADS 256
#define SL_BATCH_PAIRS        8
/* heads_turned: units of columns per threadgroup, threads. */
#define SL_TURNED_UNITS   16
#define SL_TURNED_THREADS 128
/* matmul family: a tile of y is 32 rows of x by 64 rows of W. */
#define SL_MATMUL_TOKENS  32
#define SL_MATMUL_ROWS    64
#define SL_MATMUL_THREADS 128
/* matmul_large: a tile of y is 64 rows of x by 128 rows of W, or by 32; of gate and up by 64 of each. */
#define SL_LARGE_TOKENS  64
#define SL_LARGE_ROWS    128
#define SL_LARGE_THREADS 128
#define SL_THIN_ROWS     32
#define SL_THIN_THREADS  64
/* Rows of half precision are padded with zeros to a multiple of this. */
#define SL_HALF_PAD          32
#define SL_KV_PAGE           64
#define SL_ATTENTION_SPLIT   512
#define SL_ATTENTION_THREADS 128
/* Rows of one sequence that prefill attention takes at a time. */
#define SL_ATTENTION_ROWS 16
#ifndef SL_ATTENTION_LARGE_THREADS
#define SL_ATTENTION_LARGE_THREADS 256
#endif
/* The delta rule over many rows: rows of a chunk, chunks of a pass, floats that a chunk and head keep between kernels.
 */
#define SL_DELTA_CHUNK  32
#define SL_DELTA_PLACES 32
#define SL_DELTA_PAIRS  (2 * SL_DELTA_CHUNK * SL_DELTA_CHUNK + 2 * SL_DELTA_CHUNK)
/* Slabs are bound at these slots, 16 of them; slots without a slab get the first. */
#define SL_SLAB_FIRST 15
#define SL_SLAB_COUNT 16
#define SL_PARTS      9 /* entries per expert in the table: projection * 3 + part */

/* Whose count limits a grid. */
#define SL_COUNT_ROWS 0
#define SL_COUNT_OUTS 1

/* Function constants, the same numbers in every file. */
#define SL_FC_ADD         0 /* y += instead of y = */
#define SL_FC_BIAS        1 /* y += bias */
#define SL_FC_OUTS        2 /* rows are those that want logits */
#define SL_FC_SIGMOID     3 /* router: sigmoid instead of softmax */
#define SL_FC_NORMALIZE   4 /* router: weights of the chosen sum to 1 */
#define SL_FC_SELECT_BIAS 5 /* router: a bias counts for choosing, not for weighing */
#define SL_FC_SHARED      6 /* combine: shared expert */
#define SL_FC_SHARED_GATE 7 /* combine: its sigmoid gate */
#define SL_FC_NORM_Q      8 /* attention: per-head norm of q */
#define SL_FC_NORM_K      9
#define SL_FC_ROPE        10 /* attention: rotation */
#define SL_FC_INTERLEAVED 11 /* pairs (2i, 2i + 1) */
#define SL_FC_LEAVES      12 /* expert_matvec: sets done */
#define SL_FC_GATE        13 /* attention: its result is multiplied by sigmoid(gate) */
#define SL_FC_SINKS       14 /* attention: a score without a value beside those of the keys */
#define SL_FC_IN_PLACE    15 /* delta_finish: z is dst */
#define SL_FC_BY_LOGIT    16 /* router: experts are chosen by their logits; with NORMALIZE, softmax among the chosen */
#define SL_FC_GROUPS      17 /* router: from the best groups only */
#define SL_FC_CLAMP       18 /* experts: clamped SwiGLU instead of SiLU */
#define SL_FC_HALF        19 /* rms_norm: half rows, too */
#define SL_FC_PREPARE     20 /* attention_few: norms, rotation and storing, too */

/* ---- the step buffer --------------------------------------------------------------------------------------------- */

/* Arrays of 32-bit words follow; their places are given as word numbers from the beginning of the buffer. */
typedef struct sl_step_head {
    int32_t rows, outs, seqs;
    int32_t aborted; /* not 0: nothing of this step counts. Written only before the event that the reading kernel waits
                        for */
    uint32_t token;  /* [rows] */
    uint32_t seq;    /* [rows] */
    uint32_t position;   /* [rows] */
    uint32_t out_row;    /* [outs] */
    uint32_t page_first; /* [seqs] word number of a sequence's page table: two words a page (pages.h) */
    uint32_t
        block_row; /* [blocks + 1] first row of each block of <= SL_ATTENTION_ROWS consecutive rows of one sequence */
    int32_t blocks;
    int32_t runs;         /* runs of rows of one sequence each */
    uint32_t run_row;     /* [runs + 1] first row of each */
    uint32_t state_first; /* [seqs] word number of a sequence's recurrent state: two words a layer, as of a page */
    uint32_t reserved[2];
} sl_step_head;
SL_ARGS_AT(sl_step_head, aborted, 12);
SL_ARGS_AT(sl_step_head, token, 16);
SL_ARGS_AT(sl_step_head, page_first, 32);
SL_ARGS_AT(sl_step_head, blocks, 40);
SL_ARGS_SIZE(sl_step_head, 64);

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* A matrix W[rows][cols]; its parts are bound apart. */
typedef struct sl_weights_args {
    uint64_t row_bytes;  /* of codes or blocks */
    uint64_t side_bytes; /* of scales, and of biases */
    uint32_t rows, cols;
    uint32_t group_shift; /* log2 of the columns that share a scale, 5..7 */
    uint32_t side_rows;   /* row r's scales are row ((side_rows & 65535) + r) >> (side_rows >> 16) of theirs */
} sl_weights_args;
SL_ARGS_AT(sl_weights_args, side_bytes, 8);
SL_ARGS_AT(sl_weights_args, rows, 16);
SL_ARGS_AT(sl_weights_args, group_shift, 24);
SL_ARGS_SIZE(sl_weights_args, 32);

typedef struct sl_matvec_args {
    sl_weights_args w; /* gate_up: of both matrices */
    uint64_t x_stride, y_stride;
} sl_matvec_args;
SL_ARGS_AT(sl_matvec_args, x_stride, 32);
SL_ARGS_SIZE(sl_matvec_args, 48);

typedef struct sl_matmul_args {
    sl_weights_args w;
    uint64_t x_stride, y_stride; /* x_stride: halves, a multiple of 8 */
} sl_matmul_args;
SL_ARGS_AT(sl_matmul_args, x_stride, 32);
SL_ARGS_SIZE(sl_matmul_args, 48);

/* Partial products: those of the columns of split_units units each, y[split][row][W.rows]. */
typedef struct sl_split_args {
    sl_weights_args w;
    uint64_t x_stride, y_stride; /* as of sl_matmul_args */
    uint64_t split_stride;       /* floats from a split's y to the next's */
    uint32_t split_units;        /* even */
    uint32_t reserved;
} sl_split_args;
SL_ARGS_AT(sl_split_args, x_stride, 32);
SL_ARGS_AT(sl_split_args, split_units, 56);
SL_ARGS_SIZE(sl_split_args, 64);

/* A matrix for each head (sl_head_linear of ops.h); w: all of them, one below the other. */
typedef struct sl_heads_args {
    sl_weights_args w;
    uint64_t x_stride, y_stride;
    uint32_t in_dim, out_dim, tail;
    uint32_t first_row, rows_per_head;
    uint32_t reserved;
} sl_heads_args;
SL_ARGS_AT(sl_heads_args, x_stride, 32);
SL_ARGS_AT(sl_heads_args, in_dim, 48);
SL_ARGS_AT(sl_heads_args, first_row, 60);
SL_ARGS_SIZE(sl_heads_args, 72);

/* Expert projections; (row, rank) pairs are numbered row * top_k + rank. */
typedef struct sl_expert_args {
    sl_weights_args w;
    uint64_t x_stride, y_stride;
    uint32_t experts, top_k;
    uint32_t projection; /* expert_matvec, matmul_expert: 0 gate, 1 up, 2 down */
    uint32_t
        per_pair; /* 1: row of x is the pair; 0: the pair's row. Grouped: 1: place in the list; 0: the pair's row */
    float limit, alpha; /* of the clamped SwiGLU */
} sl_expert_args;
SL_ARGS_AT(sl_expert_args, x_stride, 32);
SL_ARGS_AT(sl_expert_args, experts, 48);
SL_ARGS_AT(sl_expert_args, per_pair, 60);
SL_ARGS_AT(sl_expert_args, limit, 64);
SL_ARGS_SIZE(sl_expert_args, 72);

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef struct sl_rows_args {
    uint64_t src_stride, dst_stride;
    uint32_t cols, padded; /* padded: columns of half rows, a multiple of SL_HALF_PAD */
    float eps;
    uint32_t per_row;   /* rows per row of the step: 1; top_k for rows that are pairs */
    float limit, alpha; /* silu_mul: of the clamped SwiGLU */
} sl_rows_args;
SL_ARGS_AT(sl_rows_args, cols, 16);
SL_ARGS_AT(sl_rows_args, per_row, 28);
SL_ARGS_SIZE(sl_rows_args, 40);

typedef struct sl_embed_args {
    sl_weights_args w;
    uint64_t dst_stride;
} sl_embed_args;
SL_ARGS_AT(sl_embed_args, dst_stride, 32);
SL_ARGS_SIZE(sl_embed_args, 40);

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* KV pages: sl_kv_layout of ops.h. */
typedef struct sl_attention_args {
    uint64_t q_stride, k_stride, v_stride, gate_stride, dst_stride;
    uint64_t head_bytes, plane_bytes;
    uint32_t layer;
    uint32_t heads, kv_heads, head_dim, rope_dims;
    uint32_t head_stride; /* from a head of q to the next, and of the gate */
    uint32_t window;      /* a row sees itself and window - 1 positions before it; 0: all */
    uint32_t splits;      /* grid maximum: partial results per (row, head) */
    float scale, eps, rope_scale;
    uint32_t planes;     /* of a page: 2, K and V; 1 where values are the first value_dim columns of the keys */
    uint32_t value_dim;  /* of a head's values and results */
    uint32_t rope_first; /* first of the rotated dimensions */
    uint32_t first_row;  /* attention_few: of this launch's rows */
    uint32_t reserved;
} sl_attention_args;
SL_ARGS_AT(sl_attention_args, head_bytes, 40);
SL_ARGS_AT(sl_attention_args, layer, 56);
SL_ARGS_AT(sl_attention_args, head_stride, 76);
SL_ARGS_AT(sl_attention_args, scale, 88);
SL_ARGS_AT(sl_attention_args, planes, 100);
SL_ARGS_SIZE(sl_attention_args, 120);

/* Query heads of a kv head that decode takes at a time: their queries and sums share a threadgroup's memory. */
#define SL_DECODE_HEADS(head_dim) ((head_dim) > 128 && (head_dim) <= 256 ? 4 : 8)
#define SL_FEW_HEADS              8 /* of attention_few */
/* The widest heads. */
#define SL_ATTENTION_DIM_MAX 576

/* ---- Gated DeltaNet ---------------------------------------------------------------------------------------------- */

typedef struct sl_delta_args {
    uint64_t x_stride, z_stride, beta_stride, alpha_stride, dst_stride;
    uint64_t conv_offset; /* in a block of state, bytes */
    uint32_t layer;       /* among the sequence's blocks */
    uint32_t key_heads, value_heads, key_dim, value_dim;
    uint32_t channels; /* columns of x */
    uint32_t width;    /* of the convolution, at most 8 */
    uint32_t tiled;    /* value head h reads key head h % key_heads, else h / (value_heads / key_heads) */
    float norm_eps;
    uint32_t long_rows; /* runs of so many rows are taken by chunks, shorter ones row by row */
    uint32_t place;     /* delta_pairs, delta_chunk: the first chunk of this pass */
    uint32_t reserved;
} sl_delta_args;
SL_ARGS_AT(sl_delta_args, conv_offset, 40);
SL_ARGS_AT(sl_delta_args, layer, 48);
SL_ARGS_AT(sl_delta_args, norm_eps, 80);
SL_ARGS_AT(sl_delta_args, place, 88);
SL_ARGS_SIZE(sl_delta_args, 96);

/* ---- mixture of experts ------------------------------------------------------------------------------------------ */

typedef struct sl_router_args {
    uint64_t logits_stride;
    uint32_t experts, top_k;
    float scale;                 /* multiplies the weights */
    uint32_t tiles;              /* group_pairs: room in the list of tiles */
    uint32_t groups, top_groups; /* at most 64 equal groups of experts */
    uint32_t tile_rows;          /* group_pairs: pairs of a tile, a multiple of 8 */
    uint32_t splits;             /* router: partial logits, added in this order; at least 1 */
    uint64_t split_stride;       /* from one's to the next's */
} sl_router_args;
SL_ARGS_AT(sl_router_args, experts, 8);
SL_ARGS_AT(sl_router_args, groups, 24);
SL_ARGS_AT(sl_router_args, split_stride, 40);
SL_ARGS_SIZE(sl_router_args, 48);

typedef struct sl_combine_args {
    uint64_t out_stride; /* of an expert's output row */
    uint64_t shared_stride, residual_stride;
    uint32_t cols, top_k;
} sl_combine_args;
SL_ARGS_AT(sl_combine_args, cols, 24);
SL_ARGS_SIZE(sl_combine_args, 32);

/* A tile of the grouped matmul: pairs [first, end) of the list, all of one expert. */
typedef struct sl_pair_tile {
    int32_t expert;
    uint32_t first, end, reserved;
} sl_pair_tile;
SL_ARGS_SIZE(sl_pair_tile, 16);

#endif
