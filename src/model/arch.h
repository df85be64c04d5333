/* Private to model: architectures as rows of a table. */
#ifndef SL_MODEL_ARCH_H
#define SL_MODEL_ARCH_H

#include "model/model.h"
#include "model/names.h"

/* What a layer mixes its tokens with. */
typedef enum mixer { MIXER_ATTENTION, MIXER_DELTA /* Gated DeltaNet: a recurrent state */, MIXER_COUNT } mixer;

/* An architecture is a row: what differs between models that share the blocks. */
typedef struct arch {
    const char *name;       /* Hugging Face model_type */
    const char *text_name;  /* that of the text part, where a checkpoint has only this one; or NULL */
    const char *gguf;       /* general.architecture */
    unsigned mixers;        /* 1 << MIXER_...: kinds that its layers may be of */
    bool moe;               /* has routed experts (layers may still be dense) */
    bool qk_norm;           /* RMSNorm of q and k per head */
    bool shared_expert;     /* a shared expert with a sigmoid gate beside the routed ones */
    bool normalize;         /* where config.json does not say norm_topk_prob */
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
const arch *arch_by_gguf(const char *name, size_t n);
/* "llama, qwen2_moe, ..." for messages. */
void arch_list(char *out, size_t size);

#endif
