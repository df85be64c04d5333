/* Private to model: what tensors are for, and their names in each container. */
#ifndef SL_MODEL_NAMES_H
#define SL_MODEL_NAMES_H

#include "checkpoint/checkpoint.h"
#include "ops/ops.h"

/* What a tensor is for. */
typedef enum role {
    ROLE_EMBED,
    ROLE_FINAL_NORM,
    ROLE_HEAD,
    ROLE_ROPE_FREQS,
    ROLE_ATTN_NORM, /* the first role of a layer: the norm before its mixer */
    ROLE_Q,
    ROLE_Q_BIAS,
    ROLE_K,
    ROLE_K_BIAS,
    ROLE_V,
    ROLE_V_BIAS,
    ROLE_O,
    ROLE_O_BIAS,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_SINKS,
    ROLE_Q_A, /* of MLA: queries by way of a narrow space, */
    ROLE_Q_A_NORM,
    ROLE_Q_B,
    ROLE_KV_A, /* keys and values from a latent, behind it the rotated part of the keys */
    ROLE_KV_A_NORM,
    ROLE_KV_B, /* per head: from latent to key, to value; in GGUF apart: */
    ROLE_K_B,  /* per head, transposed */
    ROLE_V_B,
    ROLE_DELTA_QKV, /* rows: queries, keys, values */
    ROLE_DELTA_Z,   /* output gate */
    ROLE_DELTA_B,   /* beta */
    ROLE_DELTA_A,   /* alpha */
    ROLE_DELTA_CONV,
    ROLE_DELTA_DECAY, /* A_log, or in GGUF -exp of it */
    ROLE_DELTA_DT,
    ROLE_DELTA_NORM,
    ROLE_DELTA_OUT,
    ROLE_DELTA_QKVZ, /* per key head: q, k, v, z; loaded as QKV and Z */
    ROLE_DELTA_BA,   /* per key head: b, a; loaded as B and A */
    ROLE_FFN_NORM,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    ROLE_ROUTER,
    ROLE_ROUTER_BIAS,
    ROLE_CHOICE_BIAS,      /* added to the scores for choosing alone */
    ROLE_EXPERT_GATE_BIAS, /* [experts][width], resident */
    ROLE_EXPERT_UP_BIAS,
    ROLE_EXPERT_DOWN_BIAS,
    ROLE_EXPERT_GATE_UP_BIAS,  /* in turn; loaded as the first two */
    ROLE_EXPERT_DOWN_BIAS_MLX, /* loaded as that of down */
    ROLE_SHARED_GATE,
    ROLE_SHARED_UP,
    ROLE_SHARED_DOWN,
    ROLE_SHARED_SIGMOID,
    ROLE_COUNT
} role;

enum { ROLE_LAYER_FIRST = ROLE_ATTN_NORM, NAME_MAX_BYTES = 160 };

/* Another name of a role in one architecture's checkpoints of a kind. */
typedef struct role_alias {
    role role;
    sl_ckpt_kind kind;
    const char *name; /* a format as in the tables: %d is the layer */
} role_alias;

/* How Hugging Face and MLX directories begin their names: text models "model.", text parts of others something longer.
 * Names in the tables begin as the first row's do. */
typedef struct name_scheme {
    const char *body, *head;
} name_scheme;

/* The scheme whose embedding is there; the first where none is. */
const name_scheme *name_scheme_of(const sl_ckpt *c);

/* What names depend on. */
typedef struct naming {
    sl_ckpt_kind kind;
    const name_scheme *scheme;
    const role_alias *aliases; /* or NULL */
} naming;

/* The tensor's name in a container; layer is ignored for roles outside layers. "" where the container has no such
 * tensor. */
void role_name(const naming *n, role r, int32_t layer, char out[NAME_MAX_BYTES]);

/* Ways a checkpoint stores the routed experts of a layer. */
typedef struct expert_naming {
    sl_ckpt_kind kind;
    bool stacked;                    /* one tensor [experts][...] per projection; else one per expert */
    bool fused;                      /* gate and up are the halves of one tensor's rows: [experts][2 * ffn][hidden] */
    const char *name[SL_PROJ_COUNT]; /* formats with %d: layer, and expert where not stacked; fused: gate's is both */
} expert_naming;

extern const expert_naming expert_namings[];
extern const int expert_naming_count;

void expert_name(const naming *n, const expert_naming *e, int proj, int32_t layer, int32_t expert,
                 char out[NAME_MAX_BYTES]);

/* The layer that a tensor's name belongs to; -1: none. */
int32_t name_layer(const naming *n, const char *name);

/* Tensors that may be present in any architecture and are not part of the forward pass. */
bool name_ignorable(const char *name);

#endif
