/* Private to ops: the implementation that encodes Metal kernels (src/kernels) on a device of gpu.h.
 *
 * A step is encoded operation by operation into one list; only a MoE layer that has to wait for its experts ends a list
 * and waits. Weights, scratch, KV and expert slots are the budgeted allocator's memory, wrapped without a copy. Kernels
 * are compiled for the formats that a program has. */
#ifndef SL_OPS_GPU_H
#define SL_OPS_GPU_H

#include "kernels/args.h"
#include "ops/kernels.h"
#include "ops/ops_memory.h"
#include "sluice/gpu.h"

#include <pthread.h>

/* Rows from which on products run on the matrix units; and how long a list may take before the step fails. */
enum {
    GPU_EXPERTS = 2048 /* of a layer, at most */,
    GPU_MATMUL_ROWS = SL_GPU_FEW_ROWS + 1,
    GPU_BATCH_ROWS = 64 /* most of batch.metal: beyond, W is read too often */,
    GPU_FEW_GROUPS = 396 /* threadgroups of few.metal: three to a multiprocessor of an H200 */,
    GPU_NARROW_ROWS = 512 /* outputs that narrow.metal takes of few rows, and of any number of them: */,
    GPU_NARROW_ALL = 4,
    GPU_DELTA_KEY = 256 /* largest key_dim of a delta layer */,
    GPU_CHUNK_KEY = 128 /* largest of one that takes many rows by chunks: what threadgroup memory holds */,
    GPU_CHUNK_ROWS = 16 /* rows of a sequence from which on it does */,
    GPU_ALONE_ROWS = 64 /* rows, each of a sequence of its own, that attention takes as few */,
    GPU_COUNTERS = 4 * GPU_ALONE_ROWS * 64 /* bytes: so many rows of 64 groups of heads */,
    GPU_SPLITS = 256 /* (row, split) pairs that few rows may have together: one row of 131,072 tokens */
};
/* matmul_large: threadgroups below which thin ones are taken. The bits are the same: an element's products are added
 * in the same order. */
enum { GPU_LARGE_GROUPS = 132 };
#define GPU_TIMEOUT_NS (600ull * 1000 * 1000 * 1000)

/* Files of src/kernels, each a library. */
typedef enum gpu_file {
    GPU_MATVEC,
    GPU_MATMUL,
    GPU_LARGE, /* instead of GPU_MATMUL, where the device has it */
    GPU_ROWS,
    GPU_PREPARE, /* attention */
    GPU_DECODE,
    GPU_DECODE_FEW,
    GPU_PREFILL,
    GPU_PREFILL_LARGE, /* instead of GPU_PREFILL, where the device has it and heads are a multiple of 16 */
    GPU_WIDE,
    GPU_HEADS,
    GPU_MOE,
    GPU_EXPERT,
    GPU_NARROW, /* instead of GPU_MATVEC, for few outputs */
    GPU_SPLIT,  /* instead of GPU_MATMUL, for a router's logits */
    GPU_FEW,    /* instead of GPU_MATVEC and GPU_EXPERT, where the device has it and the matrix fits */
    GPU_BATCH,  /* instead of the tiles, where GPU_FEW has the format and sequences decode */
    GPU_DELTA,
    GPU_DELTA_CHUNK,
    GPU_FILES
} gpu_file;

/* What a device's time is told apart by, where that is asked for. */
typedef enum gpu_phase {
    GPU_PHASE_OTHER,
    GPU_PHASE_LINEAR,
    GPU_PHASE_ATTENTION,
    GPU_PHASE_DELTA,
    GPU_PHASE_ROUTER,
    GPU_PHASE_SHARED,
    GPU_PHASE_EXPERTS,
    GPU_PHASE_WAIT, /* for experts that are being read */
    GPU_PHASE_HEAD,
    GPU_PHASES
} gpu_phase;

/* Memory as a kernel sees it. */
typedef struct gpu_span {
    sl_gpu_buffer *buffer;
    uint64_t offset, length;
} gpu_span;

/* Blocks that lie in slabs (KV, state), as kernels find them: pieces of memory are bound, and an entry for each slab
 * says piece << 56 | offset. */
typedef struct gpu_slabs {
    gpu_span piece[SL_SLAB_COUNT];
    int pieces;
    uint64_t *entry; /* [known] of the slabs looked up so far */
    size_t known, capacity;
} gpu_slabs;

/* A block of host memory that is wrapped; or, on a device with memory of its own, what stands for it there. */
typedef struct gpu_region {
    const uint8_t *base;
    uint64_t bytes;
    sl_gpu_buffer *buffer; /* the host's; NULL: kernels see the twin alone */
    sl_gpu_buffer *twin;   /* of all the bytes, in the device's memory; NULL: none */
    uint64_t exchanged;    /* of a twin: bytes at the beginning that buffer holds, for copies either way */
    enum {
        GPU_ALLOCATED,
        GPU_REMEMBERED,
        GPU_PASSING
    } kind; /* the allocator's; a caller's until it is forgotten, or
              for one list only */
} gpu_region;

/* A slab of KV or state in the device's own memory. */
typedef struct gpu_home {
    const uint8_t *host; /* the slab that it stands for */
    const gpu_slabs *of;
    uint64_t entry; /* chunk << 56 | offset */
    bool told;      /* since the slabs were told anew */
} gpu_home;

/* Where they lie: chunks of 1, 2, 4, ... slabs, so that there are few. */
typedef struct gpu_homes {
    pthread_mutex_t lock; /* of what follows: pull and push come from any thread */
    sl_gpu_buffer *chunk[SL_SLAB_COUNT];
    int chunks;
    uint64_t slab_bytes;
    gpu_home *list; /* host NULL: free */
    size_t count, capacity;
} gpu_homes;

typedef struct gpu_pipe {
    gpu_file file;
    char entry[64];
    uint32_t constants; /* bit i: SL_FC_i is true */
    sl_gpu_pipeline *pipeline;
} gpu_pipe;

/* What programs need room for; the most of each. */
typedef struct gpu_extent {
    int64_t rows, widest, inner, hidden, pairs, experts, top_k, tiles, heads, head_dim, shared, up /* of any FFN */,
        layers /* of MoE */, delta_layers, delta_heads /* of layers that take rows by chunks */;
} gpu_extent;

/* Scratch of the implementation, all in one span. */
typedef struct gpu_scratch {
    void *span;
    uint64_t bytes;
    uint64_t epoch; /* another one when what lies in it has moved, or the source of experts is another */
    gpu_extent extent;
    /* What host and device tell each other comes first, up to `exchanged`. */
    uint8_t *counters;   /* of attention's splits: zeros, GPU_COUNTERS bytes, before and after every kernel */
    uint8_t *step;       /* sl_step_head and its arrays */
    uint64_t step_bytes; /* room for it */
    uint64_t step_used;  /* of the running step */
    uint64_t exchanged;
    uint8_t *half, *unscale; /* rows for the matrix units; of pairs too */
    uint64_t half_bytes, unscale_bytes;
    uint8_t *partial;                  /* attention over splits */
    uint8_t *router, *chosen, *weight; /* [rows][experts], [rows][top_k] twice */
    uint8_t *chosen_ahead;             /* [layers][GPU_MATMUL_ROWS][top_k] */
    uint8_t *status_ahead;             /* [layers][rows, or GPU_MATMUL_ROWS where those are more] */
    uint8_t *table;                    /* one snapshot of [experts][SL_PARTS] u64 and one more per MoE layer */
    uint8_t *pairs, *tiles, *tile_count;
    uint8_t *inner, *up; /* [pairs][inner] */
    uint8_t *out, *done; /* [pairs][hidden], [pairs] */
    uint8_t *status;     /* [rows]: combine's complaints */
    uint8_t *shared_out, *shared_gate, *shared_inner, *shared_up;
    uint8_t *cos_sin;
    uint8_t *delta_pairs; /* [chunks of a pass][value_heads][SL_DELTA_PAIRS] */
} gpu_scratch;

typedef struct sl_ops_gpu {
    sl_ops base;
    ops_memory known;
    sl_gpu *gpu; /* borrowed */
    sl_gpu_stream *stream;
    sl_gpu_list *list; /* being encoded; NULL: none */
    /* Running ahead: the device has routed, the host has delivered, the device has computed what was there; tick counts
     * MoE layers of all steps. */
    sl_gpu_event *routed, *delivered, *computed;
    uint64_t tick;
    struct gpu_ahead *ahead; /* NULL: not yet */
    struct gpu_kept *kept;   /* NULL: not yet */
    gpu_region *regions;
    size_t region_count, region_capacity;
    uint64_t unmapped; /* sl_mem_unmapped when regions were last looked through */
    gpu_slabs kv, state;
    bool apart;            /* the device has memory of its own: weights, scratch, KV and state live there */
    gpu_homes homes;       /* of KV and state */
    gpu_region out;        /* the running step's logits, there */
    struct gpu_tier *tier; /* experts there; NULL: none */
    sl_gpu_stream *copies; /* of experts, beside what is computed; NULL: not yet */
    sl_ops_vram may;       /* be taken of the device's memory */
    uint64_t taken, taken_most;
    uint64_t vacated;       /* sl_mem_vacated when regions were last looked through */
    bool step_told;         /* the running step's buffer has been copied there */
    kernel_format *formats; /* of the libraries */
    int32_t value_dim;      /* of attention whose values are a part of the keys; 0: others */
    size_t format_count, format_capacity;
    sl_gpu_library *library[GPU_FILES];
    struct gpu_wanted *wanted; /* a step is rehearsed: nothing is bound or encoded; NULL: it is not */
    uint32_t warm;             /* kinds of steps that were */
    gpu_pipe *pipes;
    size_t pipe_count, pipe_capacity;
    gpu_scratch scratch;
    sl_ops_times times;
    sl_gpu_span *spans; /* NULL: phases are not told apart */
    uint64_t phase_ns[GPU_PHASES];
    bool serial;   /* lists run while they are given: nothing in one may wait for the host */
    bool few;      /* few.metal is used */
    uint32_t room; /* bytes of threadgroup memory that a kernel can have */
    char isa[64];
} sl_ops_gpu;

/* Rows of a step of few rows whose attention is done together, and the head that shows kernels these rows alone. */
typedef struct gpu_group {
    int32_t first, rows, splits;
    uint64_t head; /* bytes into the step buffer */
} gpu_group;

/* A running step. */
typedef struct gpu_run {
    sl_ops_gpu *o;
    const sl_program *p;
    sl_step *step;
    sl_error *err;
    const sl_rope *rope_of; /* the rotation whose angles are in scratch; NULL: none yet */
    int32_t combined;       /* MoE layer whose status is to be looked at after the next wait; -1: none */
    gpu_phase phase;        /* what is encoded now */
    gpu_group group[GPU_MATMUL_ROWS];
    int groups; /* 0: many rows */
    /* Many rows: of what scratch.half has the half rows, until that is written to. */
    struct gpu_halves {
        const float *at; /* NULL: of nothing known */
        int32_t cols;    /* negative: it has them as batch.metal reads them, for line_format */
        bool outs;
    } half_of;
    char line_format[24];
} gpu_run;

/* ---- ops_gpu_memory.c ---- */

/* The bytes at p as a kernel sees them; buffer NULL: error. Memory that nobody has told of is wrapped for the list that
 * is being encoded. */
gpu_span gpu_span_of(sl_ops_gpu *o, const void *p, uint64_t bytes, sl_error *err);
/* The same bytes as the host sees them, pinned; buffer NULL: error. */
gpu_span gpu_host_span(sl_ops_gpu *o, const void *p, uint64_t bytes, sl_error *err);
/* Memory that the allocator does not know stays wrapped until gpu_forget. */
bool gpu_remember(sl_ops_gpu *o, const void *base, uint64_t bytes, sl_error *err);
void gpu_forget(sl_ops_gpu *o, const void *base);
/* Is anything wrapped for the list that is being encoded? */
bool gpu_has_passing(const sl_ops_gpu *o);
/* Drops what was wrapped for one list. */
void gpu_forget_passing(sl_ops_gpu *o);
/* Drops what was given back to the system; between lists. */
void gpu_regions_refresh(sl_ops_gpu *o);
void gpu_regions_free(sl_ops_gpu *o);
/* Looks up slabs that came since the last time; false: they lie in more pieces than kernels can see, or an error. */
bool gpu_slabs_resolve(sl_ops_gpu *o, gpu_slabs *s, uint8_t *const *slab, size_t count, uint64_t bytes,
                       const char *what, sl_error *err);
/* Slab i is about to be used: on a device with memory of its own it gets a place there, if it has none yet. */
bool gpu_slabs_settle(sl_ops_gpu *o, gpu_slabs *s, uint8_t *const *slab, size_t i, uint64_t bytes, sl_error *err);
void gpu_slabs_forget(sl_ops_gpu *o, gpu_slabs *s);

/* ---- ops_gpu_apart.c: a device with memory of its own; elsewhere all of this is nothing ---- */

/* The region's bytes in the device's memory, with the host's where they are weights; false: it has no twin, or an error
 * (err->code says so). */
bool gpu_twin_make(sl_ops_gpu *o, gpu_region *r, sl_error *err);
void gpu_twin_free(sl_ops_gpu *o, gpu_region *r);
/* In the list: what the host wrote at p goes to the device; what the device wrote comes to the host. */
bool gpu_push(gpu_run *r, const void *p, uint64_t bytes);
bool gpu_pull(gpu_run *r, const void *p, uint64_t bytes);
#define GPU_HOMELESS UINT64_MAX
/* The place of a slab that has one, else GPU_HOMELESS. */
uint64_t gpu_home_find(sl_ops_gpu *o, const gpu_slabs *s, const uint8_t *slab);
/* The place of a slab; a new one has the bytes of the host's. */
bool gpu_home_of(sl_ops_gpu *o, const gpu_slabs *s, const uint8_t *slab, uint64_t slab_bytes, uint64_t *entry,
                 sl_error *err);
/* The slabs are told anew; those not asked for since go. */
void gpu_homes_retell(sl_ops_gpu *o, const gpu_slabs *s);
void gpu_homes_sweep(sl_ops_gpu *o, const gpu_slabs *s);
void gpu_homes_free(sl_ops_gpu *o);
uint64_t gpu_homes_bytes(const sl_ops_gpu *o);
/* Where logits go, in the device's memory, for the step. */
bool gpu_out_begin(gpu_run *r, const float *logits, uint64_t bytes);
void gpu_out_end(sl_ops_gpu *o);
/* Weights and scratch of a program are brought there, so that what does not fit is known before the first step. */
bool gpu_bring_program(sl_ops_gpu *o, const sl_program *p, sl_error *err);

/* ---- ops_gpu_room.c: how much of the device's own memory is taken ---- */

/* bytes for `what`; experts give way. NULL: an error that says how much is needed and how much there is. Between steps.
 */
sl_gpu_buffer *gpu_room_take(sl_ops_gpu *o, uint64_t bytes, const char *what, sl_error *err);
/* The same without anybody giving way. */
sl_gpu_buffer *gpu_room_try(sl_ops_gpu *o, uint64_t bytes, const char *what, sl_error *err);
void gpu_room_give(sl_ops_gpu *o, sl_gpu_buffer **b);
/* Bytes that may still be taken. */
uint64_t gpu_room_left(const sl_ops_gpu *o);

/* ---- ops_gpu_tier.c: experts in the device's own memory ---- */

/* Sized by the program's layers and the device's room; nothing where the device has no memory of its own. */
bool gpu_tier_open(sl_ops_gpu *o, const sl_program *p, sl_error *err);
void gpu_tier_free(sl_ops_gpu *o);
int32_t gpu_tier_slots(const sl_ops_gpu *o);
/* Gives its last piece of slots back; false: it keeps what one token of a layer needs. Between steps. */
bool gpu_tier_yield(sl_ops_gpu *o);
bool gpu_tier_complete(const sl_ops_gpu *o); /* has every expert of the model */
/* Brings all of them, before the first step, where there is room. */
bool gpu_tier_fill(gpu_run *r);
/* A list of the stream on which experts are copied beside what is computed; NULL: error. */
sl_gpu_list *gpu_tier_list(sl_ops_gpu *o, sl_error *err);
/* In such a list: copies of experts there, which are entered into a table (NULL: none). */
bool gpu_tier_enter(sl_ops_gpu *o, sl_gpu_list *l, const sl_moe *m, const sl_expert_view *views, int n, uint8_t *table,
                    sl_error *err);
/* Another number whenever the entries of the layer are others. */
uint64_t gpu_tier_generation(const sl_ops_gpu *o, int32_t layer);
/* What the layer's parts begin at a multiple of there. */
uint32_t gpu_tier_align(const sl_ops_gpu *o, int32_t layer);
int gpu_tier_pieces(const sl_ops_gpu *o, gpu_span piece[SL_SLAB_COUNT]);
/* A new pass begins: what earlier ones wanted may be evicted. */
void gpu_tier_pass(sl_ops_gpu *o);
/* After a failed step: what its last pass brought may never have been copied; unless the streams are sound, what others
 * brought, too. */
void gpu_tier_doubt(sl_ops_gpu *o, bool sound);
/* The entry of an expert that is there; want: the running pass reads it. */
bool gpu_tier_find(sl_ops_gpu *o, const sl_moe *m, int32_t id, bool want, uint64_t entry[SL_PARTS]);
/* Makes it be there, by copies in the list from the host's slot; false: *full, every slot is wanted by the running
 * pass, or an error. */
bool gpu_tier_put(sl_ops_gpu *o, sl_gpu_list *l, const sl_moe *m, const sl_expert_view *v, uint64_t entry[SL_PARTS],
                  bool *full, sl_error *err);

/* ops.h: sl_ops_pull, sl_ops_push */
bool gpu_ops_pull(sl_ops *ops, void *p, uint64_t bytes, sl_error *err);
bool gpu_ops_push(sl_ops *ops, const void *p, uint64_t bytes, sl_error *err);

static inline uint8_t *gpu_at(const sl_ops_gpu *o, sl_buffer b, uint64_t offset) {
    uint8_t *base = o->known.buffers[b].base;
    return base ? base + offset : NULL; /* buffer 0 is none */
}

/* ---- ops_gpu_library.c ---- */

/* Threadgroups over the rows of a matrix for each of n rows of x or pairs (few.metal). */
uint32_t gpu_few_groups(int64_t rows, int64_t n);

/* As kernels name KV formats: "f16". */
const char *gpu_kv_name(sl_kv_format format);

/* The variant for a matrix whose rows begin at these addresses. */
kernel_format gpu_format_of(const sl_matrix *m, const void *const part[3]);
/* The format goes into the libraries; with all its alignments where part is NULL. */
bool gpu_format_add(sl_ops_gpu *o, const sl_matrix *m, const void *const part[3], sl_error *err);
/* Compiled and kept at first use. NULL: error. */
sl_gpu_pipeline *gpu_pipeline(sl_ops_gpu *o, gpu_file file, const char *entry, uint32_t constants, sl_error *err);
void gpu_libraries_drop(sl_ops_gpu *o);
/* Compiled; several files, and several pipelines of libraries that are there, from several threads. */
sl_gpu_library *gpu_library(sl_ops_gpu *o, gpu_file file, sl_error *err);
sl_gpu_pipeline *gpu_make_pipeline(sl_ops_gpu *o, const gpu_pipe *pipe, sl_error *err);

/* ---- ops_gpu_warm.c ---- */

/* Compiles what the step will ask for, side by side. */
bool gpu_warm(const gpu_run *run);
/* Notes a pipeline of a step that is rehearsed; what stands for it. */
sl_gpu_pipeline *gpu_want(sl_ops_gpu *o, const gpu_pipe *pipe);

/* ---- ops_gpu_call.c: one dispatch ---- */

typedef struct gpu_call {
    gpu_run *r;
    sl_gpu_pipeline *pipeline; /* NULL: an error has been met */
    sl_gpu_binding binding[SL_GPU_SLOTS];
    size_t count;
    sl_gpu_threadgroup_length length[2];
    size_t length_count;
} gpu_call;

/* Begins a call of `entry` (printf-like) with arguments in slot 0. */
gpu_call gpu_call_begin(gpu_run *r, gpu_file file, uint32_t constants, const void *args, size_t size,
                        const char *entry);
/* bytes at p in a slot; p NULL: an operand this variant does not read. */
void gpu_call_bind(gpu_call *c, int slot, const void *p, uint64_t bytes);
/* A few bytes of the host's, copied: at most SL_GPU_BYTES_MAX. */
void gpu_call_bytes(gpu_call *c, int slot, const void *bytes, uint64_t size);
/* The parts of a weight at three slots. */
void gpu_call_weight(gpu_call *c, int slot, const sl_weight *w);
/* Pieces at SL_SLAB_FIRST and on; slots without one get the first. */
void gpu_call_pieces(gpu_call *c, const gpu_span *piece, int pieces, sl_gpu_access access);
/* Length of threadgroup memory `slot`. */
void gpu_call_threadgroup(gpu_call *c, int slot, uint32_t bytes);
bool gpu_call_end(gpu_call *c, uint32_t x, uint32_t y, uint32_t z, uint32_t threads);
/* There is a list to encode into. */
bool gpu_list_begin(gpu_run *r);
/* Submits what was encoded and waits for it. */
bool gpu_finish(gpu_run *r);
/* Submits what was encoded. */
bool gpu_submit_now(gpu_run *r, sl_gpu_ticket *ticket);
/* Bytes of the step's buffer that a list tells the device. */
uint64_t gpu_step_told(const gpu_run *r);
bool gpu_await(gpu_run *r, sl_gpu_ticket ticket);
/* The time of a list that something waited for behind it; no wait by itself. */
bool gpu_book(gpu_run *r, sl_gpu_ticket ticket);

/* ---- ops_gpu_phase.c ---- */

/* What is encoded from here on is of this phase. */
bool gpu_phase_begin(gpu_run *r, gpu_phase phase);
bool gpu_phase_mark(gpu_run *r); /* a new list begins in it */
gpu_phase gpu_phase_of(const op *o, gpu_phase now);
/* After a step: where its time went. */
void gpu_phases_take(sl_ops_gpu *o);
void gpu_phases_fill(const sl_ops_gpu *o, sl_ops_times *out);
void gpu_set_timing(sl_ops *ops, bool on);

/* ---- operations ---- */

static inline uint32_t gpu_ceil_div(int64_t a, int64_t b) {
    return (uint32_t)((a + b - 1) / b);
}
static inline int32_t gpu_view_rows(const gpu_run *r, const sl_view *v) {
    return v->rows == SL_ROWS_OUT ? r->step->outs : r->step->rows;
}
static inline float *gpu_view_at(const gpu_run *r, const sl_view *v) {
    return (float *)(void *)gpu_at(r->o, v->buffer, v->offset);
}
static inline uint64_t gpu_rows_bytes(int64_t rows, int64_t stride, int64_t cols) {
    return (uint64_t)((rows - 1) * stride + cols) * sizeof(float);
}
static inline bool gpu_same_layout(const sl_matrix *a, const sl_matrix *b) {
    return a->format == b->format && a->group == b->group && a->side == b->side && a->rows == b->rows &&
           a->cols == b->cols && a->row_in_block == b->row_in_block;
}
void gpu_bind_step(gpu_call *c, int slot);
/* After op o: half rows are still of half_of only if o has read that. */
void gpu_half_keep(gpu_run *r, const op *o);
/* scratch.half and unscale = half rows of silu(gate) * up, clamped where moe says so; rows as gpu_silu_mul's. */
bool gpu_silu_half(gpu_run *r, float *gate, const float *up, int64_t stride, int32_t cols, int32_t per_row,
                   const sl_moe *moe);
/* dst = silu(dst) * src over rows of the step, per_row of each; clamped where moe (NULL: none) says so */
bool gpu_silu_mul(gpu_run *r, float *dst, const float *src, int64_t stride, int32_t cols, int32_t per_row, bool outs,
                  const sl_moe *moe);

sl_weights_args gpu_weights_args(const sl_matrix *m);
bool gpu_run_embed(gpu_run *r, const op *o);
bool gpu_run_norm(gpu_run *r, const op *o);
bool gpu_run_gather(gpu_run *r, const op *o);
bool gpu_run_linear(gpu_run *r, const op *o);
bool gpu_run_gate_up(gpu_run *r, const op *o);
bool gpu_run_logits(gpu_run *r, const op *o);
bool gpu_run_attention(gpu_run *r, const op *o);
bool gpu_run_head_linear(gpu_run *r, const op *o);
bool gpu_run_moe(gpu_run *r, const op *o);
bool gpu_check_delta(const sl_delta *d, sl_error *err);
bool gpu_run_delta(gpu_run *r, const op *o);

/* y = x W^T with rows of x in float at x; many rows go through the matrix units. */
typedef struct gpu_product {
    const sl_weight *weight, *bias; /* bias NULL: none */
    const float *x;
    float *y;
    int64_t x_stride, y_stride;
    int32_t rows;
    bool outs, add;
} gpu_product;
/* Half rows as x has them, times W, in splits of split_units units: y[split][rows][W.rows]. */
bool gpu_multiply_split(gpu_run *r, const gpu_product *p, uint32_t splits, uint32_t split_units);
bool gpu_multiply(gpu_run *r, const gpu_product *p);
/* h = silu(x G^T) * (x U^T); up: room for [rows][inner] where the matrix units are used */
bool gpu_multiply_gate_up(gpu_run *r, const sl_weight *gate, const sl_weight *up, const gpu_product *p, float *room);
/* rows (per_row of each of the step's) to half in scratch. */
bool gpu_to_half(gpu_run *r, const float *x, int64_t stride, int32_t cols, int32_t per_row, bool outs);

/* ---- ops_gpu_kept.c: lists of whole steps, kept for the next token ---- */

/* May this step be a kept list? Nothing has been encoded yet. */
bool gpu_kept_possible(gpu_run *r);
/* Gives a kept list of the same step; *done: there was one. After gpu_kept_possible. */
bool gpu_kept_replay(gpu_run *r, sl_gpu_ticket *ticket, bool *done);
/* Submits the encoded list, and keeps it when the same was given before. */
bool gpu_kept_submit(gpu_run *r, sl_gpu_ticket *ticket);
/* Before memory, libraries or slots that lists bind are others. */
void gpu_kept_drop(sl_ops_gpu *o);
void gpu_kept_free(sl_ops_gpu *o);

/* ---- mixture of experts: ops_gpu_moe.c (waits for the router), ops_gpu_ahead.c (does not), ops_gpu_experts.c --------
 */

typedef struct gpu_moe {
    gpu_run *r;
    const op *o;
    const sl_moe *m;
    sl_matrix proj[SL_PROJ_COUNT]; /* as kernels see them: gpu_moe_matrix */
    int32_t rows, hidden, inner;
    bool many;       /* rows enough for the matrix units */
    uint8_t *chosen; /* [rows][top_k] int32 */
    uint8_t *status; /* [rows] int32 */
    int32_t wanted;
    bool asked[GPU_EXPERTS]; /* experts somebody waits for */
} gpu_moe;

/* A pass over all pairs with one table. Slabs: distinct pieces of memory, each with its number in table entries. */
typedef struct gpu_pass {
    gpu_moe *x;
    uint8_t *table; /* [experts][SL_PARTS] u64 */
    gpu_span slab[SL_SLAB_COUNT];
    int slabs;
    kernel_format format[SL_PROJ_COUNT]; /* the variant for all experts in it; align 0: none yet */
} gpu_pass;

gpu_moe gpu_moe_of(gpu_run *r, const op *o);
/* A projection as kernels see it: where rows of gate and up alternate, both are every other row of the gate's matrix.
 */
sl_matrix gpu_moe_matrix(const sl_moe *m, int proj);
/* Part i (projection * 3 + part) of an expert likewise: `skip` bytes behind the begin of what the source handed out. */
typedef struct gpu_part {
    const uint8_t *base; /* NULL: there is none */
    uint64_t bytes, skip;
} gpu_part;
gpu_part gpu_moe_part(const sl_moe *m, const sl_expert_view *v, int i);
/* The variant for a projection of experts whose parts begin at multiples of align. */
kernel_format gpu_moe_format(const sl_moe *m, int proj, uint32_t align);
uint64_t gpu_table_bytes(const sl_moe *m);
/* Router and what belongs to it; leaves chosen, weight, done. */
bool gpu_moe_route(gpu_moe *x);
/* Pairs of a tile of its products. */
static inline uint32_t gpu_moe_tile(const gpu_moe *x) {
    return x->r->o->few ? SL_LARGE_TOKENS : SL_MATMUL_TOKENS;
}
/* Distinct experts of rows that have not failed, ascending, also marked in asked; -1: error. */
int32_t gpu_moe_wanted(gpu_moe *x, int32_t *ids);
bool gpu_moe_shared(gpu_moe *x);
/* The rows that chose expert id fail; false: the step does. */
bool gpu_moe_fail_rows(gpu_moe *x, int32_t id, const sl_error *why);
/* Is every one of these waited for? Takes them off the list. */
bool gpu_moe_awaited(gpu_moe *x, const sl_expert_view *views, int n);
bool gpu_moe_combine(gpu_moe *x);
/* Enters an expert into the pass's table; false: *full, its slabs do not fit beside the others', or an error. */
bool gpu_pass_enter(gpu_pass *p, const sl_expert_view *v, bool *full);
bool gpu_pass_encode(gpu_pass *p);
/* What all its kernels take: arguments, constants, the bias of a projection, slabs. */
sl_expert_args gpu_expert_args(const gpu_moe *x, int proj, int64_t x_stride, int64_t y_stride, bool per_pair);
uint32_t gpu_expert_bits(const gpu_moe *x, int proj);
void gpu_expert_bias(gpu_call *c, int slot, const gpu_moe *x, int proj);
void gpu_pass_slabs(gpu_call *c, const gpu_pass *p);
void gpu_pass_aligned(gpu_pass *p); /* all its experts are in the device's own slots */
/* A whole step in one list, the host following the device layer by layer; where that can be. */
bool gpu_ahead_possible(gpu_run *r);
bool gpu_run_ahead(gpu_run *r);
void gpu_ahead_free(sl_ops_gpu *o);
/* ops_gpu.c */
bool gpu_encode_op(gpu_run *r, const op *o);
/* Has nothing to do in this step: works on outputs, and there are none. */
bool gpu_op_is_idle(const gpu_run *r, const op *o);

/* ---- ops_gpu_batch.c ---- */

/* Does the step decode 16 to 64 rows, where batch.metal is used? */
bool gpu_batch_step(const gpu_run *r);
/* A product that it has; its rows of x need not be half. */
bool gpu_batch_takes(const gpu_run *r, const gpu_product *p);
bool gpu_batch_multiply(gpu_run *r, const gpu_product *p);
/* A layer that it has: pairs are grouped by SL_BATCH_PAIRS. */
bool gpu_batch_moe(const gpu_moe *x);
bool gpu_batch_pass(gpu_pass *p);

/* ---- ops_gpu_scratch.c, ops_gpu_step.c ---- */

/* After a wait: did every pair of the layer combined before get its expert? */
bool gpu_check_combined(gpu_run *r);
bool gpu_check_status(gpu_run *r, int32_t layer, const uint8_t *status);
bool gpu_scratch_fit(sl_ops_gpu *o, const sl_program *p, sl_error *err);
uint64_t gpu_scratch_need(const sl_program *p);
uint64_t gpu_step_bytes(int64_t rows, int64_t pages, int64_t states);
/* Writes the step buffer. */
bool gpu_step_fill(gpu_run *r);

#endif
