/* Pieces of `sluice synth`: shapes and their tensors, random weights made in the quantised domain, a small tokenizer,
 * the two containers. */
#ifndef SL_CLI_SYNTH_H
#define SL_CLI_SYNTH_H

#include "base/base.h"
#include "quant/quant.h"

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct synth_shape {
    const char *name, *note;
    const char *arch; /* Hugging Face's model_type; GGUF's is the same without underscores */
    int layers, hidden, heads, kv_heads, head_dim, experts, top_k, expert_ffn, shared_ffn, ffn, vocab, context;
    bool tied, normalize; /* head is the embedding; router weights of the chosen sum to 1 */
    double rope_theta;    /* 0: 1e6 */
    /* Models with Gated DeltaNet layers: every so many layers one is attention; heads and their widths, of the others;
     * what part of an attention head is rotated. interval 0: attention everywhere. */
    int interval, delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim, delta_kernel;
    double rotary;
} synth_shape;

extern const synth_shape synth_shapes[]; /* ends with a row whose name is NULL */
const synth_shape *synth_find_shape(const char *name);

typedef struct synth_tensor {
    char gguf[64], hf[96]; /* names; hf without ".weight" where it is a matrix */
    bool quantised;        /* else float: norm, bias, router */
    bool logarithm;        /* of what GGUF stores with a minus; float32 in both containers */
    bool kernel;           /* [channels][taps], in MLX [channels][taps][1] */
    bool router;           /* [experts][hidden] */
    int dims;
    int64_t shape[3]; /* outermost first */
    double mean, deviation;
} synth_tensor;

/* All tensors of a shape in a container, in the order of layers; allocated. */
synth_tensor *synth_tensors(const synth_shape *s, bool mlx, size_t *count, sl_error *err);
/* Whether the shape is of the architecture whose checkpoints hold the text model within another. */
bool synth_is_nested(const synth_shape *s);
int64_t synth_elements(const synth_tensor *t);

/* ---- formats ----------------------------------------------------------------------------------------------------- */

/* What matrices are written as, and in which container. */
typedef struct synth_format {
    bool mlx; /* a directory; else GGUF */
    sl_format_id format;
    int32_t group; /* mlx: columns per scale */
} synth_format;

/* A word of --format: "q4_0-gguf", "mlx4", "mlx-mxfp4". */
bool synth_find_format(const char *name, synth_format *out, sl_error *err);
/* Bytes of n elements of matrices. */
uint64_t synth_bytes(const synth_format *f, uint64_t n);

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Elements [first, first + n) of tensor number `index`: the same for any split of the work. Blocks: whole ones; codes:
 * whole groups. */
typedef struct synth_random {
    sl_pool *pool;
    uint64_t seed;
    int bits;            /* of a code */
    double center, step; /* a code is (w / deviation) / step + center */
    uint8_t code[4096];  /* a normal distribution in codes, by its inverse */
    double unit,
        ratio; /* blocks without a quantiser: the scale that gives deviation 1; the minimum's factor beside it */
} synth_random;

/* Can blocks of a GGUF format be made? */
bool synth_has_blocks(sl_format_id format);

uint64_t synth_next(uint64_t *state); /* splitmix64 */
bool synth_random_open(synth_random *r, uint64_t seed, sl_format_id format, sl_error *err);
void synth_random_close(synth_random *r);
void synth_fill_blocks(synth_random *r, sl_format_id format, uint64_t index, int64_t first, int64_t n, double deviation,
                       uint8_t *out);
void synth_fill_codes(synth_random *r, uint64_t index, int64_t first, int64_t n, uint8_t *out);
/* Scales and biases (bf16) of n groups. */
void synth_fill_affine(synth_random *r, uint64_t index, int64_t first, int64_t n, double deviation, uint16_t *scales,
                       uint16_t *biases);
/* Scales (e8m0) of n groups. */
void synth_fill_powers(synth_random *r, uint64_t index, int64_t first, int64_t n, double deviation, uint8_t *scales);
void synth_fill_float(synth_random *r, uint64_t index, int64_t first, int64_t n, double mean, double deviation,
                      float *out);

/* ---- tokenizer --------------------------------------------------------------------------------------------------- */

/* Byte-level BPE: the 256 bytes, a few merges, three control tokens, and filler pieces up to the vocabulary's size. */
typedef struct synth_tokenizer {
    char **piece; /* [vocab] */
    int vocab;
    const char *const *merge; /* "a b" */
    int merges;
    int end, im_start, im_end; /* ids of the control tokens; they follow each other */
} synth_tokenizer;

extern const char synth_split_regex[], synth_chat_template[];
bool synth_tokenizer_open(synth_tokenizer *t, int vocab, sl_error *err);
void synth_tokenizer_close(synth_tokenizer *t);

/* ---- containers -------------------------------------------------------------------------------------------------- */

typedef struct synth_job {
    const synth_shape *shape;
    const synth_format *format;
    const synth_tensor *tensors;
    size_t count;
    const synth_tokenizer *tokenizer;
    synth_random *random;
    int fallbacks;  /* GGUF: matrices that are Q8_0 instead, for their rows do not divide into blocks */
    uint64_t total; /* elements of matrices and others, for progress */
    uint64_t done;
    const char *skew; /* a word of --skew, or NULL */
    float *direction; /* of its topics; NULL: without */
} synth_job;

/* What a matrix is written as in GGUF: rows that do not divide into blocks are Q8_0. */
sl_format_id synth_tensor_format(const synth_job *job, const synth_tensor *t);

/* ---- skewed routing ---------------------------------------------------------------------------------------------- */

bool synth_is_skewed(const char *skew);
char *synth_skew_path(const char *out); /* OUT.ids.json; allocated */
bool synth_skew_fits(const synth_shape *s, const char *skew, sl_error *err);
bool synth_skew_open(synth_job *job, sl_error *err);
void synth_skew_close(synth_job *job);
/* Adds to elements [first, first + n) of router `index` what makes its topics' experts be chosen. */
void synth_skew_router(const synth_job *job, size_t index, int64_t first, int64_t n, float *out);
/* Writes OUT.ids.json, ids that stay in a topic for a while; nothing without a skew. */
bool synth_skew_ids(const synth_job *job, const char *out, sl_error *err);

bool synth_write_gguf(synth_job *job, const char *path, sl_error *err);
bool synth_write_mlx(synth_job *job, const char *directory, sl_error *err);
/* False: Ctrl-C came; the caller gives up. */
bool synth_progress(synth_job *job, int64_t elements);
/* Whether --force may put a file there: nothing or a regular file is there now. */
bool synth_replaceable(const char *path, sl_error *err);

#endif
