/* Private to ops: the recorded program and the table an implementation fills. */
#ifndef SL_OPS_PROGRAM_H
#define SL_OPS_PROGRAM_H

#include "ops/ops.h"

typedef enum op_kind {
    OP_EMBED,
    OP_RMS_NORM,
    OP_LINEAR,
    OP_HEAD_LINEAR,
    OP_GATE_UP,
    OP_ATTENTION,
    OP_DELTA,
    OP_MOE,
    OP_GATHER_OUTS,
    OP_LOGITS,
    OP_CHECKPOINT
} op_kind;

enum { MAX_LINEAR = 4 };

typedef struct op {
    op_kind kind;
    sl_view dst, src;
    union {
        struct {
            sl_weight table;
        } embed;
        struct {
            sl_weight weight;
            float eps;
        } norm;
        struct {
            int n;
            struct {
                sl_view dst;
                sl_weight weight, bias;
                bool add;
            } out[MAX_LINEAR];
        } linear;
        struct {
            sl_weight weight;
            sl_head_linear h; /* its weight is not used */
        } head_linear;
        struct {
            sl_weight gate, up;
        } gate_up;
        struct {
            sl_view k, v;
            sl_attention a; /* rope.inv_freq is owned by the program */
        } attention;
        struct {
            sl_view z, beta, alpha;
            sl_delta d;
        } delta; /* src: qkv */
        sl_moe moe;
        struct {
            sl_weight head;
        } logits;
        struct {
            int32_t layer;
        } checkpoint;
    } u;
} op;

struct sl_program {
    sl_ops *ops;
    op *list;
    size_t count, capacity;
    float **owned; /* inv_freq arrays */
    size_t owned_count, owned_capacity;
    int32_t max_rows, max_outs;
    sl_error error;  /* the first recording error */
    bool sizes_only; /* frequencies are missing: it can be measured, but not run */
    bool ready;      /* ended without error */
};

/* What an implementation provides. Every sl_ops begins with this. */
typedef struct sl_ops_table {
    bool (*prepare)(sl_ops *ops, sl_program *p, sl_error *err); /* at sl_program_end */
    void (*discard)(sl_ops *ops, sl_program *p);
    bool (*run)(sl_ops *ops, sl_program *p, sl_step *step, sl_error *err);
    sl_buffer (*wrap)(sl_ops *ops, void *base, uint64_t bytes, sl_error *err);
    void (*unwrap)(sl_ops *ops, sl_buffer b);
    sl_buffer (*scratch)(sl_ops *ops, uint64_t bytes, sl_error *err);
    void (*scratch_free)(sl_ops *ops, sl_buffer b); /* NULL: with the ops */
    uint64_t (*scratch_bytes)(const sl_ops *ops, const sl_program *p);
    /* NULL: all of them */
    bool (*accepts)(const sl_attention *a, const sl_moe *moe, const sl_delta *delta, sl_error *err);
    void (*set_experts)(sl_ops *ops, const sl_expert_source *source);
    void (*watch_moe)(sl_ops *ops, const sl_moe_watch *watch); /* NULL: cannot be watched */
    void (*set_kv)(sl_ops *ops, const sl_kv_layout *layout);
    bool (*add_kv_slab)(sl_ops *ops, void *slab, sl_error *err);
    void (*set_state)(sl_ops *ops, const sl_state_layout *layout);
    bool (*add_state_slab)(sl_ops *ops, void *slab, sl_error *err);
    void (*times)(const sl_ops *ops, sl_ops_times *out);
    void (*times_reset)(sl_ops *ops);
    void (*set_timing)(sl_ops *ops, bool on);            /* NULL: nothing to switch */
    void (*set_vram)(sl_ops *ops, const sl_ops_vram *v); /* NULL: there is no such memory */
    const char *(*isa)(const sl_ops *ops);
    bool (*pull)(sl_ops *ops, void *p, uint64_t bytes, sl_error *err); /* NULL: the host sees all there is */
    bool (*push)(sl_ops *ops, const void *p, uint64_t bytes, sl_error *err);
    void (*free)(sl_ops *ops);
} sl_ops_table;

struct sl_ops {
    const sl_ops_table *table;
};

#endif
