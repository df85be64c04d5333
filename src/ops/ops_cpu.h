/* Private to ops: the native CPU implementation. */
#ifndef SL_OPS_CPU_H
#define SL_OPS_CPU_H

#include "cpu/cpu.h"
#include "cpu/cpu_ops.h"
#include "ops/ops_memory.h"

/* Expert outputs of up to RANK_SCRATCH_BYTES are kept per (row, rank), so that experts may be computed as they arrive;
 * above it they run in ascending id and are added at once. Both give the same sums. Fixed, so that nothing depends on
 * memory. */
enum { RANK_SCRATCH_BYTES = 8 << 20, ATTENTION_ROWS = 16, ATTENTION_QUERIES = 256 };

/* The next layer's experts are guessed from so many rows at most. */
enum { GUESS_ROWS = 32, MOE_READY = 64 /* experts computed at once */ };

/* Rows that attend together, so that a page is unpacked once for them: fewer where a KV head has many queries. */
static inline int32_t cpu_attention_rows(int32_t group) {
    int32_t rows = ATTENTION_QUERIES / group;
    return rows < 1 ? 1 : rows > ATTENTION_ROWS ? ATTENTION_ROWS : rows;
}

/* What programs need room for; of several programs over one implementation, the most of each. */
typedef struct scratch_extent {
    int64_t rows, widest; /* widest: columns of any source of a product */
    int64_t sum;          /* floats per row: products to be added, moe's sum */
    int64_t inner;        /* rows of gate/up: expert, shared */
    int64_t inner_up;     /* rows of an up that is not fused with its gate; 0: none */
    int64_t pairs;        /* expert outputs at a time */
    int64_t rank_floats;  /* of them */
    int64_t experts, top_k;
    int64_t shared;      /* columns of the shared expert's output */
    int64_t head_act;    /* bytes of int8 activations per row of a product per head */
    int64_t head_floats; /* of one head's matrix, transposed; per thread */
    int64_t rope_dims;
    int64_t attention_floats; /* per thread */
    int64_t delta_floats;     /* per thread */
} scratch_extent;

/* Scratch of the implementation, one span. */
typedef struct cpu_scratch {
    void *span;
    uint64_t bytes;
    scratch_extent extent;
    uint8_t *act;                          /* int8 activations of an op's source rows */
    uint8_t *act_inner;                    /* of the FFN's inner rows */
    float *inner;                          /* silu(gate) * up */
    float *inner_up;                       /* up, where gate and up are products of their own */
    float *rank_out;                       /* expert outputs [pairs][hidden], or one expert's [rows][hidden] */
    float *sum;                            /* products to be added, one after the other; moe's sum [rows][hidden] */
    float *router;                         /* [rows][experts] */
    float *weight;                         /* [rows][top_k] */
    int32_t *chosen;                       /* [rows][top_k], ascending */
    int32_t *pair_row, *pair_rank, *first; /* (row, rank) pairs by expert; first[experts + 1] */
    int32_t *ids;
    uint8_t *guess_act;    /* a guess: int8 activations of GUESS_ROWS rows */
    float *guess_weight;   /* [GUESS_ROWS][top_k] */
    int32_t *guess_chosen; /* likewise */
    uint8_t *done;         /* [rows][top_k]: pair_state */
    int32_t *place;        /* [rows][top_k] row of rank_out */
    float *shared_out;     /* [rows][hidden] */
    float *shared_gate;    /* [rows] */
    float *cos_sin;        /* [rows][dims] */
    int32_t *blocks;       /* [rows + 1] attention's blocks of rows, delta's sequences */
    uint8_t *thread;       /* per thread: products, attention, delta */
    uint64_t thread_bytes;
} cpu_scratch;

/* What became of an expert's output for a row. */
enum pair_state { PAIR_MISSING, PAIR_THERE, PAIR_FAILED /* could not be read, or its row had failed before */ };

typedef struct sl_ops_cpu {
    sl_ops base;
    ops_memory known;
    sl_pool *pool;
    const cpu_kernels *kernels;
    const cpu_ops *ops;
    sl_numeric numeric;
    int64_t rank_bytes; /* RANK_SCRATCH_BYTES; tests set others before a program is ended */
    cpu_scratch scratch;
    struct product *moe_products; /* [2 * MOE_READY] */
    int32_t programs;             /* that scratch was fitted for */
    sl_moe_watch watch;
    const sl_rope *rope_of; /* cos_sin is this rotation's for the running step; NULL: not yet made */
    sl_ops_times times;
} sl_ops_cpu;

/* A running step. */
typedef struct cpu_run {
    sl_ops_cpu *o;
    sl_program *p;
    sl_step *step;
    sl_error *err;
} cpu_run;

static inline uint8_t *ops_at(const sl_ops_cpu *o, sl_buffer b, uint64_t offset) {
    return o->known.buffers[b].base + offset;
}

static inline float *view_rows(const sl_ops_cpu *o, const sl_view *v) {
    return (float *)(void *)ops_at(o, v->buffer, v->offset);
}

static inline int32_t view_count(const sl_step *s, const sl_view *v) {
    return v->rows == SL_ROWS_OUT ? s->outs : s->rows;
}

/* An optional vector of floats; NULL: absent. */
static inline const float *vector_of(const sl_ops_cpu *o, const sl_weight *w) {
    return has_weight(w) ? (const float *)(const void *)ops_at(o, w->buffer, w->offset[0]) : NULL;
}

/* The weight with pointers. */
sl_matrix ops_matrix(const sl_ops_cpu *o, const sl_weight *w);

/* ops_cpu_scratch.c */
bool cpu_scratch_fit(sl_ops_cpu *o, const sl_program *p, sl_error *err);
uint64_t cpu_scratch_need(const sl_ops_cpu *o, const sl_program *p);
/* No program needs it any more. */
void cpu_scratch_drop(sl_ops_cpu *o);
void *cpu_thread_scratch(const sl_ops_cpu *o, int worker);

/* ops_cpu_linear.c: products, several matrices over one source cut into equal pieces for the pool. */
typedef struct product {
    sl_matrix w, up;   /* up: of a fused gate/up; rows 0: plain */
    const float *bias; /* NULL: none */
    float *add;        /* NULL: y is written to dst; else made here, [n][rows], and added onto dst */
    float *dst;
    int64_t ldd;
    cpu_rows in;
} product;
void cpu_products(sl_ops_cpu *o, const product *list, int n);
/* int8 rows of src into act (mode q8; nothing in exact). */
void cpu_quantize_into(sl_ops_cpu *o, const float *x, int64_t ldx, int64_t n, int64_t cols, uint8_t *act);
cpu_rows cpu_rows_of(const float *x, int64_t ldx, int64_t n, int64_t cols, const uint8_t *act);
void cpu_run_linear(cpu_run *r, const op *o);
void cpu_run_gate_up(cpu_run *r, const op *o);
void cpu_run_logits(cpu_run *r, const op *o);

/* ops_cpu_heads.c */
void cpu_run_head_linear(cpu_run *r, const op *o);

/* ops_cpu_attention.c */
void cpu_run_attention(cpu_run *r, const op *o);

/* ops_cpu_delta.c */
void cpu_run_delta(cpu_run *r, const op *o);

/* ops_cpu_moe.c, ops_cpu_route.c */
/* Gate and up are not the fused product silu(gate) * up. */
static inline bool cpu_moe_apart(const sl_moe *m) {
    return m->swiglu_limit > 0 || m->bias[SL_PROJ_GATE].buffer;
}
bool cpu_run_moe(cpu_run *r, const op *o);
void cpu_route(cpu_run *r, const sl_moe *m, const float *src, int64_t stride, const uint8_t *act);
/* What a layer's router says of other rows than those of the running step's layer: into guess_chosen. guess_act is
 * theirs. The router's logits are used, the rest of the running layer's routing is not touched. */
void cpu_route_guess(cpu_run *r, const sl_moe *m, const float *src, int64_t stride, int32_t rows);
/* ops_cpu_guess.c: tells the expert source, if it wants to know, what the next layer will probably ask for. Between
 * begin and the layer's first expert, while rank_out is free. */
void cpu_guess_next(cpu_run *r, const op *o);

#endif
