/* checkpoint: a model as its maker ships it: Hugging Face directory (safetensors, MLX-quantised or not) or GGUF (single
 * or split).
 *
 * Gives names, shapes, formats and extents (file, offset, length) of tensors, metadata, and the texts of tokenizer and
 * template. Reads headers only. Every byte is hostile: sizes are checked for overflow and against the file before use;
 * overlapping tensors, shapes that contradict lengths, missing shards, unknown formats are errors that name file,
 * tensor, offset, found and expected. May include: quant, base. Called by model, experts, text (metadata only), engine.
 */
#ifndef SL_CHECKPOINT_H
#define SL_CHECKPOINT_H

#include "base/base.h"
#include "quant/quant.h"

#include <jansson.h>

typedef enum sl_ckpt_kind { SL_CKPT_HF, SL_CKPT_GGUF } sl_ckpt_kind;

#define SL_MAX_DIMS 4

/* Where bytes are: files[file] of the checkpoint. */
typedef struct sl_extent {
    int32_t file;
    uint64_t offset;
    uint64_t bytes;
} sl_extent;

/* A logical tensor. A quantised weight that lies in several tensors of the file is one with as many parts: MLX's
 * NAME.weight (u32) + NAME.scales (+ NAME.biases in mode affine) is NAME.weight; Hugging Face's NAME (F8_E4M3) +
 * NAME_scale_inv is NAME, its NAME_blocks + NAME_scales (mxfp4) is NAME. */
typedef struct sl_tensor {
    const char *name;
    sl_format_id format;
    int32_t group;     /* as in sl_matrix, if the scales are in a part of their own */
    sl_format_id side; /* affine, FP8 */
    int32_t dims;
    int64_t shape[SL_MAX_DIMS]; /* outermost first, in weights (not packed words): [rows][cols] for a matrix, GGUF's
                                   order reversed */
    int32_t parts;              /* 1; mxfp4_split, FP8 2; affine 3 */
    sl_extent part[3];
} sl_tensor;

typedef struct sl_ckpt sl_ckpt;

/* MODEL as on the command line: path of a directory, a .gguf file (any shard of a split one), a .safetensors inside a
 * model directory, a Hugging Face cache id "org/name" (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface; refs/main's
 * snapshot), an Ollama name "llama3:8b" (OLLAMA_MODELS or ~/.ollama/models manifests), an LM Studio name
 * "publisher/name[/file.gguf]" (~/.lmstudio/models, ~/.cache/lm-studio/models). Returns an allocated path; the error
 * lists what was looked for. */
char *sl_model_locate(const char *model, sl_error *err);

/* Opens the checkpoint at a path that sl_model_locate gave. */
sl_ckpt *sl_ckpt_open(const char *path, sl_error *err);
void sl_ckpt_close(sl_ckpt *c);

sl_ckpt_kind sl_ckpt_get_kind(const sl_ckpt *c);
const char *sl_ckpt_path(const sl_ckpt *c);
int sl_ckpt_file_count(const sl_ckpt *c);
const sl_file *sl_ckpt_file(const sl_ckpt *c, int file); /* stays open until close */
uint64_t sl_ckpt_bytes(const sl_ckpt *c);                /* of all tensors */

size_t sl_ckpt_tensor_count(const sl_ckpt *c);
const sl_tensor *sl_ckpt_tensor(const sl_ckpt *c, size_t i);
const sl_tensor *sl_ckpt_find(const sl_ckpt *c, const char *name); /* hashed; NULL: none */
/* As find; absence is an error that names checkpoint and tensor. */
const sl_tensor *sl_ckpt_require(const sl_ckpt *c, const char *name, sl_error *err);

uint64_t sl_tensor_bytes(const sl_tensor *t);
int64_t sl_tensor_elements(const sl_tensor *t);
/* Slice `index` of the outermost dimension (an expert of a stacked tensor) as a tensor of one dimension less: its
 * extents are contiguous. */
bool sl_tensor_slice(const sl_tensor *t, int64_t index, sl_tensor *out, sl_error *err);
/* Rows [row0, row0 + rows) of a matrix tensor, whose extents are contiguous too; of FP8 from a block's first row. */
bool sl_tensor_rows(const sl_tensor *t, int64_t row0, int64_t rows, sl_tensor *out, sl_error *err);
/* The matrix layout of a 2-d (or 1-d: one row) tensor; part pointers NULL. */
bool sl_tensor_matrix(const sl_tensor *t, sl_matrix *out, sl_error *err);

/* HF: parsed config.json, generation_config.json, tokenizer_config.json (borrowed; NULL where the file is absent).
 * GGUF: NULL. */
json_t *sl_ckpt_json(const sl_ckpt *c, const char *file_name);
/* HF: the text of a side file (tokenizer.json, chat_template.jinja, ...), allocated; NULL without error set (code
 * SL_OK) when absent. */
char *sl_ckpt_text(const sl_ckpt *c, const char *file_name, size_t *size, sl_error *err);

/* A pack (pack.h) opens as a checkpoint of its source's kind, with the source's names; but its routed experts are no
 * tensors. Layout and extents of one layer's experts: */
typedef struct sl_packed_experts {
    int32_t experts;
    sl_tensor proj[3];       /* gate, up, down of an expert; their part[] are those of expert 0 */
    const sl_extent *extent; /* [experts][3 * 3]: projection * 3 + part; bytes 0 where there is no such part */
    const uint64_t *sum; /* [experts]: sl_pack_sum of an expert's bytes, from its first part to the end of its last */
} sl_packed_experts;
bool sl_ckpt_is_pack(const sl_ckpt *c);
uint64_t sl_pack_sum(const void *bytes, size_t n); /* XXH3, 64 bits */
/* layer: of the model. NULL: not a pack, or this layer has no routed experts. */
const sl_packed_experts *sl_ckpt_packed(const sl_ckpt *c, int32_t layer);
/* What a pack says about how its experts were requantised, "" where they are as in the source (or this is no pack). */
const char *sl_ckpt_pack_note(const sl_ckpt *c);
/* A number that differs where any byte of a pack does, its experts' among them; 0: no pack. */
uint64_t sl_ckpt_pack_sum(const sl_ckpt *c);

/* GGUF metadata. Key lookups; false where absent or of another type. Strings are borrowed, with length, not
 * NUL-terminated-safe: lengths count. */
typedef struct sl_str {
    const char *p;
    size_t n;
} sl_str;
typedef struct sl_gguf_array {
    uint32_t type; /* GGUF value type of the elements: 0 u8,1 i8,2 u16,3 i16,4 u32,5 i32,6 f32,7 bool,8 string,9
                      array,10 u64,11 i64,12 f64 */
    uint64_t count;
    const uint8_t *bytes;  /* little-endian elements as in the file (numbers) */
    const sl_str *strings; /* type 8 */
} sl_gguf_array;

bool sl_gguf_str(const sl_ckpt *c, const char *key, sl_str *out);
bool sl_gguf_i64(const sl_ckpt *c, const char *key, int64_t *out); /* any integer type or bool, if it fits */
bool sl_gguf_f64(const sl_ckpt *c, const char *key, double *out);  /* any float or integer */
bool sl_gguf_bool(const sl_ckpt *c, const char *key, bool *out);
bool sl_gguf_arr(const sl_ckpt *c, const char *key, sl_gguf_array *out);
/* i-th number of an array as integer / double; index in range and type numeric, else false. */
bool sl_gguf_arr_i64(const sl_gguf_array *a, uint64_t i, int64_t *out);
bool sl_gguf_arr_f64(const sl_gguf_array *a, uint64_t i, double *out);
size_t sl_gguf_key_count(const sl_ckpt *c);
sl_str sl_gguf_key(const sl_ckpt *c, size_t i);

/* Pieces with their own fuzz targets: parse a header from memory. */
typedef struct sl_gguf sl_gguf;
sl_gguf *sl_gguf_parse(const uint8_t *bytes, uint64_t n, uint64_t file_size, const char *path, sl_error *err);
void sl_gguf_free(sl_gguf *g);
typedef struct sl_safetensors sl_safetensors;
sl_safetensors *sl_safetensors_parse(const uint8_t *bytes, uint64_t n, uint64_t file_size, const char *path,
                                     sl_error *err);
void sl_safetensors_free(sl_safetensors *s);

#endif
