/* pack.json as a struct, both ways. A pack's file is a sequence of units: in resident.bin a tensor each, in a layer's
 * file an expert each; a unit is what has a checksum.
 *
 * May include: internal.h, pack.h. Included by the pack's sources, its tests and fuzz target. */
#ifndef SL_CHECKPOINT_PACK_DOC_H
#define SL_CHECKPOINT_PACK_DOC_H

#include "checkpoint/internal.h"
#include "checkpoint/pack.h"

#define PACK_JSON     "pack.json"
#define PACK_RESIDENT "resident.bin"
#define PACK_METADATA "metadata.gguf"
#define PACK_JOURNAL  "pack.journal"

typedef struct pack_unit {
    uint64_t offset, bytes; /* bytes: to the end of its last part */
    uint64_t sum;           /* xxh3, 64 bits */
} pack_unit;

/* A file of units. */
typedef struct pack_units {
    char *name;
    uint64_t bytes;
    pack_unit *v;
    size_t count;
} pack_units;

/* A copied file. */
typedef struct pack_side {
    char *name;
    uint64_t bytes, sum;
} pack_side;

/* The source's files, for a person and to tell one source from another. */
typedef struct pack_source {
    pack_side *files; /* their sum is not used */
    size_t count;
    uint64_t fingerprint; /* of the tensors' names, places and sampled bytes */
} pack_source;

typedef struct pack_layer {
    int32_t layer;
    pack_units file;
    sl_packed_experts packed; /* proj[].part: offsets in a blob until the pack is opened */
    sl_extent *extent;        /* packed.extent; once opened */
    uint64_t *sum;            /* packed.sum; likewise */
} pack_layer;

typedef struct pack {
    sl_ckpt_kind kind;
    pack_source source;
    sl_pack_affine affine;
    uint64_t sum;  /* of the text it was read from, which has the checksums of everything */
    char note[96]; /* sl_ckpt_pack_note */
    pack_side *sides;
    size_t side_count;
    sl_tensor *tensors; /* names owned; part[].offset in resident.bin */
    pack_units resident;
    pack_layer *layers;
    size_t layer_count;
} pack;

/* The text of pack.json (allocated, NULL: out of memory). sums false: all checksums of contents as zero, which makes
 * the text a description of the job. */
char *pack_doc_write(const pack *p, bool sums, size_t *size);
/* Puts the checksum of a text in its place; false: it has no place for one. */
bool pack_doc_seal(char *text, size_t n);
/* From text; every field is checked against the others, not against the files. path: for messages. */
pack *pack_doc_parse(const char *text, size_t n, const char *path, sl_error *err);
pack *pack_doc_load(const char *dir, sl_error *err);
/* Sets note from affine. */
void pack_doc_note(pack *p);

/* The matrix of a tensor of any number of dimensions: all but the last are rows. Checks the lengths of its parts. */
bool pack_tensor_matrix(const sl_tensor *t, sl_matrix *out, sl_error *err);

#endif
