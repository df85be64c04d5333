/* Private to model: architectures and tensor names as tables. */
#ifndef SL_MODEL_ARCH_H
#define SL_MODEL_ARCH_H

#include "model/model.h"

/* An architecture is a row: what differs between models that share the blocks. */
typedef struct arch {
    const char *name;       /* Hugging Face model_type */
    const char *gguf;       /* general.architecture */
    bool moe;               /* has routed experts (layers may still be dense) */
    bool qk_norm;           /* RMSNorm of q and k per head */
    bool shared_expert;     /* a shared expert with a sigmoid gate beside the routed ones */
    bool gguf_normalize;    /* GGUF does not store norm_topk_prob: what its converter assumes */
    bool gguf_interleaved;  /* GGUF's q and k rows are permuted for rotation of neighbouring pairs */
    const char *bias_field; /* config.json's flag for biases of q, k, v */
    bool bias_default;      /* where the field is absent */
    bool bias_of_o;         /* with them goes one of the output projection */
} arch;

const arch *arch_by_hf(const char *model_type, size_t n);
const arch *arch_by_gguf(const char *name, size_t n);
/* "llama, qwen2_moe, ..." for messages. */
void arch_list(char *out, size_t size);

/* What a tensor is for. */
typedef enum role {
    ROLE_EMBED,
    ROLE_FINAL_NORM,
    ROLE_HEAD,
    ROLE_ROPE_FREQS,
    ROLE_ATTN_NORM, /* the first role of a layer */
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
    ROLE_FFN_NORM,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    ROLE_ROUTER,
    ROLE_SHARED_GATE,
    ROLE_SHARED_UP,
    ROLE_SHARED_DOWN,
    ROLE_SHARED_SIGMOID,
    ROLE_COUNT
} role;

enum { ROLE_LAYER_FIRST = ROLE_ATTN_NORM, NAME_MAX_BYTES = 160 };

/* The tensor's name in a container; layer is ignored for roles outside layers. "" where the container has no such
 * tensor. */
void role_name(role r, sl_ckpt_kind kind, int32_t layer, char out[NAME_MAX_BYTES]);

/* Ways a checkpoint stores the routed experts of a layer. */
typedef struct expert_naming {
    sl_ckpt_kind kind;
    bool stacked;                    /* one tensor [experts][...] per projection; else one per expert */
    bool fused;                      /* gate and up are the halves of one tensor's rows: [experts][2 * ffn][hidden] */
    const char *name[SL_PROJ_COUNT]; /* formats with %d: layer, and expert where not stacked; fused: gate's is both */
} expert_naming;

extern const expert_naming expert_namings[];
extern const int expert_naming_count;

/* Tensors that may be present and are not part of the forward pass. */
bool tensor_ignorable(const char *name);

#endif
