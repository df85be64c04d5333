/* One expert from its source's format to affine codes. May include: pack_doc.h. Included by pack_write.c. */
#ifndef SL_CHECKPOINT_PACK_CONVERT_H
#define SL_CHECKPOINT_PACK_CONVERT_H

#include "checkpoint/pack_doc.h"

typedef struct pack_convert {
    const sl_ckpt *source;
    sl_pool *pool;
    uint8_t *bytes; /* one expert's, as in the source */
    uint64_t bytes_size;
    float *rows; /* [threads][ROWS][widest], dequantised */
    int64_t widest;
} pack_convert;

/* Room for any expert of the job. */
bool pack_convert_open(pack_convert *c, const sl_pack_job *job, sl_error *err);
void pack_convert_close(pack_convert *c);
/* Expert x of a layer into a blob laid out as `to`. importance: of the layer's hidden columns, then of its ffn columns;
 * NULL: all alike. */
bool pack_convert_expert(pack_convert *c, const sl_pack_layer *from, int32_t x, const pack_layer *to,
                         const float *importance, uint8_t *blob, sl_error *err);

#endif
