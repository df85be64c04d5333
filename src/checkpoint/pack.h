/* pack: Sluice's own layout of a checkpoint, for streaming: each routed expert is one aligned blob.
 *
 *   DIR/pack.json        what is where; written last, so a pack without it is unfinished
 *   DIR/resident.bin     every tensor but the routed experts', one after the other, in the source's formats
 *   DIR/layer-000.bin    one file per layer with experts: a blob per expert, gate, up and down and their parts
 *   DIR/metadata.gguf    of a GGUF source: its keys, word for word, with no tensors; of a Hugging Face source: copies
 *   DIR/config.json ...  of its side files (tokenizer, templates, configuration)
 *
 * Blobs and tensors begin at multiples of 16 KiB, parts at multiples of 256, and files end at a multiple of 16 KiB: one
 * read with O_DIRECT gets an expert, and every part of it is aligned for any instruction set and device.
 *
 * A pack is written file by file, front to back, with a journal beside it (pack_journal.h). Killed at any point it goes
 * on where it was; a file gets its name, and pack.json appears, only when their bytes are on the disk and were read
 * back. May include: checkpoint.h. Called by engine. */
#ifndef SL_CHECKPOINT_PACK_H
#define SL_CHECKPOINT_PACK_H

#include "checkpoint/checkpoint.h"

enum { SL_PACK_VERSION = 1, SL_PACK_BLOB_ALIGN = 16384, SL_PACK_PART_ALIGN = 256, SL_PACK_PARTS = 9 };

/* The routed experts of one layer, as they are in the source. */
typedef struct sl_pack_layer {
    int32_t layer, experts;
    sl_tensor proj[3];     /* layout of an expert's gate, up, down with the lengths of its parts; names are not used */
    uint64_t stride[3][3]; /* of projection and part: bytes from row to row in the source; 0: they follow each other */
    const sl_extent *extent; /* [experts][SL_PACK_PARTS] in the source's files; outlives the writer */
} sl_pack_layer;

/* How experts are requantised: MLX's affine codes, scale and bias of a group chosen for least weighted error. */
typedef struct sl_pack_affine {
    int32_t bits; /* 2, 3, 4, 8; 0: experts stay as they are */
    int32_t group;
    uint64_t calibration; /* checksum of the text that importance came from; 0: none */
} sl_pack_affine;

typedef struct sl_pack_job {
    const sl_ckpt *source; /* borrowed, as all below */
    const char *out;
    const size_t *tensors; /* the resident ones, by number in the source */
    size_t tensor_count;
    const sl_pack_layer *layers;
    size_t layer_count;
    sl_pack_affine affine;
    sl_pool *pool; /* for requantising */
    /* Called between pieces: bytes written (or found written) and in all; false: stop, what is there stays. NULL: none.
     */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} sl_pack_job;

typedef struct sl_pack_writer sl_pack_writer;

/* Checks source, target and free space, takes the target for itself. Nothing of the target is changed where that fails.
 * SL_ERR_ARGUMENT: the target is something else, or inside the source. */
sl_pack_writer *sl_pack_writer_open(const sl_pack_job *job, sl_error *err);
/* What was there already. */
typedef enum sl_pack_state { SL_PACK_FRESH, SL_PACK_RESUMED, SL_PACK_COMPLETE } sl_pack_state;
sl_pack_state sl_pack_writer_state(const sl_pack_writer *w);
uint64_t sl_pack_writer_total(const sl_pack_writer *w); /* bytes of the whole pack */

/* Importance of input columns, for affine: per layer of the job [hidden] for gate and up, [ffn] for down. What was
 * saved with an interrupted pack is loaded again: false without error (code SL_OK) where there is none. */
bool sl_pack_load_importance(const sl_pack_writer *w, float *values, size_t n, sl_error *err);
bool sl_pack_save_importance(const sl_pack_writer *w, const float *values, size_t n, sl_error *err);

/* Writes what is missing. importance: all layers' values one after the other (hidden, then ffn), NULL: none. */
bool sl_pack_writer_run(sl_pack_writer *w, const float *importance, sl_error *err);
void sl_pack_writer_close(sl_pack_writer *w);

/* Reads a pack's every byte and compares it with its checksum. The error names layer and expert, tensor or file of the
 * first that differs; *damaged counts all. progress: as above. */
bool sl_ckpt_verify_pack(const char *path, bool (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                         uint64_t *damaged, sl_error *err);

#endif
