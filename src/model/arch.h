/* Private to model: architectures as rows of a table. */
#ifndef SL_MODEL_ARCH_H
#define SL_MODEL_ARCH_H

#include "model/model.h"
#include "model/names.h"

/* What a layer mixes its tokens with. */
typedef enum mixer {
    MIXER_ATTENTION,
    MIXER_DELTA, /* Gated DeltaNet: a recurrent state */
    MIXER_MLA,   /* multi-head latent attention */
    MIXER_COUNT
} mixer;

/* Norms of queries and keys. */
typedef enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WHOLE /* over all heads together */ } qk_norm;

/* A shared expert beside the routed ones. */
typedef enum shared_kind {
    SHARED_NONE,
    SHARED_GATED, /* with a sigmoid gate, of its own width */
    SHARED_PLAIN  /* n_shared_experts, as one of so many times a routed expert's width, without a gate */
} shared_kind;

/* An architecture is a row: what differs between models that share the blocks. */
typedef struct arch {
    const char *name;            /* Hugging Face model_type */
    const char *text_name;       /* that of the text part, where a checkpoint has only this one; or NULL */
    const char *gguf;            /* general.architecture; NULL: none of its own */
    const char *gguf_experts_of; /* general.architecture of another that with experts is this one; or NULL */
    unsigned mixers;             /* 1 << MIXER_...: kinds that its layers may be of */
    bool moe;                    /* has routed experts (layers may still be dense) */
    qk_norm qk_norm;             /* RMSNorm of q and k */
    bool qk_norm_optional;       /* where use_qk_norm says so (GGUF: where they are) */
    shared_kind shared;
    sl_router router;       /* what its routers do */
    bool choice_bias;       /* they have a bias for choosing */
    bool router_bias;       /* and of their logits */
    bool expert_bias;       /* experts have biases */
    bool ffn_of_experts;    /* intermediate_size is the experts' width; no layer is dense */
    bool sinks;             /* attention has sinks */
    bool alternating;       /* experts' gate_up_proj of Hugging Face has rows of gate and up in turn */
    bool yarn_fractional;   /* GGUF does not say that yarn's dimensions are not rounded */
    int32_t sliding;        /* where layer_types is not there: all but each so-many-th layer have a window; 0: none */
    float swiglu_alpha;     /* with swiglu_limit of the configuration; 0: plain SwiGLU */
    bool normalize;         /* where config.json does not say norm_topk_prob */
    bool always_normalizes; /* norm_topk_prob of config.json is not looked at, as Hugging Face's code does not */
    bool gguf_normalize;    /* GGUF does not store norm_topk_prob: what its converter assumes */
    bool gguf_interleaved;  /* GGUF's q and k rows are permuted for rotation of neighbouring pairs */
    bool gguf_tiled;        /* GGUF's value heads of delta layers: h goes with key head h % key_heads */
    bool delta_fused;       /* Hugging Face has a delta layer's inputs in two matrices, interleaved by key head */
    bool attn_gate;         /* q_proj gives query and output gate of each head, where attn_output_gate is not false */
    bool zero_centred;      /* as trained, norms multiply by 1 + w (but not a delta layer's own) */
    double rotary;          /* partial_rotary_factor where config.json does not say it; 0: all is rotated, always */
    const char *bias_field; /* config.json's flag for biases of q, k, v */
    bool bias_default;      /* where the field is absent */
    bool bias_of_o;         /* with them goes one of the output projection */
    const role_alias *aliases;  /* names that differ from the table of roles, ended by ROLE_COUNT; or NULL */
    const char *const *ignored; /* beginnings of names of tensors that are not of the text model, NULL-ended; or NULL */
} arch;

const arch *arch_by_hf(const char *model_type, size_t n);
/* experts: the file has an expert_count above 0. */
const arch *arch_by_gguf(const char *name, size_t n, bool experts);
/* What its GGUF files call it. */
const char *arch_gguf(const arch *a);
/* "llama, qwen2_moe, ..." for messages. */
void arch_list(char *out, size_t size);

#endif
