/* What the files of checkpoint share: the open checkpoint, the name table, raw safetensors entries, the parsed GGUF
 * header.
 *
 * May include: checkpoint.h. Included by src/checkpoint and by its tests and fuzz targets only. */
#ifndef SL_CHECKPOINT_INTERNAL_H
#define SL_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"

/* ---- names: text -> number, hashed with a seed of this run so that a file cannot choose collisions ----------------
 */

typedef struct ckpt_name {
    const char *p; /* borrowed; NULL: free place */
    size_t n;
    uint64_t hash;
    size_t value;
} ckpt_name;

typedef struct ckpt_names {
    ckpt_name *place; /* open addressing, linear probing, at most half full */
    size_t capacity;  /* a power of two, or 0 */
    size_t count;
    uint64_t seed[2];
} ckpt_names;

#define CKPT_NONE SIZE_MAX

/* The value of a name, or CKPT_NONE. */
size_t ckpt_names_find(const ckpt_names *t, const char *p, size_t n);
/* Adds a name that is not there yet; false: out of memory. */
bool ckpt_names_add(ckpt_names *t, const char *p, size_t n, size_t value);
void ckpt_names_free(ckpt_names *t);

/* ---- spans: do byte ranges of one file overlap? --------------------------------------------------------------------
 */

typedef struct ckpt_span {
    uint64_t begin, end;
    size_t index; /* the tensor it belongs to */
} ckpt_span;

void ckpt_spans_sort(ckpt_span *v, size_t n);

/* ---- JSON
 * ------------------------------------------------------------------------------------------------------------ */

#define CKPT_SIDE_FILE_LIMIT (256ull << 20) /* tokenizer.json of large vocabularies is about 20 MB */

/* An object from text that Python's json module would accept: NaN and Infinity become null, integers beyond 64 bits
 * become reals (model_max_length is often 1e30). NULL: error that names path, line and column. */
json_t *ckpt_json_parse(const char *text, size_t n, const char *path, sl_error *err);
json_t *ckpt_json_load(const char *path, sl_error *err);
/* JSON as it must be (duplicate keys are errors), for headers and indexes. */
json_t *ckpt_json_parse_strict(const char *text, size_t n, const char *path, sl_error *err);

/* ---- raw tensors of safetensors files
 * ----------------------------------------------------------------------------------- */

#define CKPT_RAW_DIMS 8

typedef struct ckpt_dtype {
    const char *name;
    uint32_t bits; /* per element */
} ckpt_dtype;

typedef struct ckpt_raw {
    char *name;
    const ckpt_dtype *dtype; /* a row of the table in safetensors.c */
    int32_t dims;
    int64_t shape[CKPT_RAW_DIMS];
    sl_extent at; /* offset from the beginning of the file */
} ckpt_raw;

struct sl_safetensors {
    ckpt_raw *tensors; /* in the order of their bytes */
    size_t count;
    uint64_t data_offset;
};

/* Bits of an element of this dtype; 0: unknown. */
uint32_t safetensors_dtype_bits(const char *dtype);
/* Length of the whole header (8 + JSON) from a file's first 8 bytes; 0: an error. */
uint64_t safetensors_header_size(const uint8_t first[8], uint64_t file_size, const char *path, sl_error *err);
/* Reads and parses the header of an open file. */
sl_safetensors *safetensors_read(const sl_file *f, sl_error *err);

/* Raw tensors of all shards. */
typedef struct ckpt_raws {
    ckpt_raw *v;
    size_t count, capacity;
    ckpt_names names;
} ckpt_raws;

size_t ckpt_raws_find(const ckpt_raws *r, const char *name);
void ckpt_raws_free(ckpt_raws *r);
/* Moves the tensors of s (file number `file`) into r; a name that is already there is an error. */
bool ckpt_raws_take(ckpt_raws *r, sl_safetensors *s, int file, const sl_ckpt *c, sl_error *err);

/* ---- GGUF
 * ---------------------------------------------------------------------------------------------------------------- */

enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

typedef struct gguf_kv {
    sl_str key;
    uint32_t type;
    const uint8_t *number; /* where its little-endian bytes are */
    sl_str string;
    sl_gguf_array array;
    sl_str *strings; /* owned; array.strings */
} gguf_kv;

typedef struct gguf_tensor {
    sl_str name;
    sl_format_id format;
    int32_t dims;
    int64_t shape[SL_MAX_DIMS]; /* outermost first */
    uint64_t offset;            /* from the beginning of the file */
    uint64_t bytes;
} gguf_tensor;

struct sl_gguf {
    uint8_t *owned; /* the header's bytes where gguf_read made it, else NULL: borrowed */
    uint32_t version;
    uint64_t alignment;
    uint64_t header_bytes;
    uint64_t keys_end; /* where the list of tensors begins */
    uint64_t data_offset;
    gguf_kv *kv;
    size_t kv_count, kv_capacity;
    ckpt_names keys;
    gguf_tensor *tensors;
    size_t tensor_count, tensor_capacity;
    ckpt_names names;
};

/* As sl_gguf_parse; where n bytes are too few but the file has more, *need is the least that could do and no error is
 * set (else *need is 0). */
sl_gguf *gguf_parse(const uint8_t *bytes, uint64_t n, uint64_t file_size, const char *path, uint64_t *need,
                    sl_error *err);
sl_gguf *gguf_read(const sl_file *f, sl_error *err);
/* Bytes of a number of this type, 0 for strings, arrays and unknown types. */
uint32_t gguf_value_size(uint32_t type);

const gguf_kv *gguf_find(const sl_gguf *g, const char *key);
bool gguf_get_str(const sl_gguf *g, const char *key, sl_str *out);
bool gguf_get_i64(const sl_gguf *g, const char *key, int64_t *out);
bool gguf_get_f64(const sl_gguf *g, const char *key, double *out);
bool gguf_get_bool(const sl_gguf *g, const char *key, bool *out);
bool gguf_get_arr(const sl_gguf *g, const char *key, sl_gguf_array *out);

/* ---- the open checkpoint
 * ------------------------------------------------------------------------------------------------- */

/* A tensor that is there but that no format row can read: only asking for it by name is an error. */
typedef struct ckpt_other {
    char *name;
    const char *dtype;
    int32_t dims;
    int32_t file;
} ckpt_other;

enum { CKPT_CONFIG, CKPT_GENERATION_CONFIG, CKPT_TOKENIZER_CONFIG, CKPT_JSON_COUNT };

struct sl_ckpt {
    sl_ckpt_kind kind;
    char *path;
    sl_file **files;
    size_t file_count, file_capacity;
    sl_tensor *tensors;
    size_t tensor_count, tensor_capacity;
    ckpt_other *others;
    size_t other_count, other_capacity;
    ckpt_names names; /* value: index in tensors, or CKPT_OTHER | index in others */
    uint64_t bytes;
    json_t *json[CKPT_JSON_COUNT];
    sl_gguf *gguf;     /* metadata: of the first shard */
    struct pack *pack; /* pack_doc.h; NULL: not a pack */
};

#define CKPT_OTHER ((size_t)1 << (sizeof(size_t) * 8 - 1))

/* Opens a file and makes it the checkpoint's next one. */
sl_file *ckpt_add_file(sl_ckpt *c, const char *path, sl_error *err);
/* Both take ownership of t->name / o.name, also on failure. A name that is there already is an error. */
bool ckpt_add_tensor(sl_ckpt *c, const sl_tensor *t, sl_error *err);
bool ckpt_add_other(sl_ckpt *c, ckpt_other o, sl_error *err);

bool hf_open(sl_ckpt *c, sl_error *err);
/* config.json and the other parsed side files of a directory. */
bool hf_load_side_files(sl_ckpt *c, sl_error *err);
bool gguf_open(sl_ckpt *c, sl_error *err);
bool pack_open(sl_ckpt *c, sl_error *err);
/* Is there a pack, or an unfinished one? */
bool pack_is_dir(const char *dir);
void pack_free(struct pack *p);
/* Turns the raw tensors into logical ones: those that are parts of a quantised weight become one (group.h). Takes names
 * out of r. config is what config.json holds, config_path how errors name it. */
bool ckpt_group_tensors(sl_ckpt *c, ckpt_raws *r, const json_t *config, const char *config_path, sl_error *err);
/* quantization_config.quant_method of config.json, or NULL. */
const char *ckpt_quant_method(const json_t *config);

/* A name that is one plain component of a path: not empty, "." or "..", no slash, backslash or control byte. */
bool ckpt_plain_name(const char *s);
bool ckpt_has_suffix(const char *s, const char *suffix);

#endif
