/* What the pack of a source will be: its places, its side files, the source's identity; and whether the target may be
 * written. May include: pack_doc.h. Included by pack_plan.c, pack_target.c and pack_write.c. */
#ifndef SL_CHECKPOINT_PACK_PLAN_H
#define SL_CHECKPOINT_PACK_PLAN_H

#include "checkpoint/pack_doc.h"

/* Everything but the checksums of tensors and blobs. */
pack *pack_plan(const sl_pack_job *job, sl_error *err);
/* The bytes of a side file as the pack has it, allocated. */
uint8_t *pack_side_bytes(const sl_ckpt *source, const char *name, size_t *size, sl_error *err);

/* pack_target.c: refuses a target that is, holds or lies in the source, or that is something else than a pack. *out:
 * its path without slashes at its end, allocated. */
bool pack_target_check(const sl_ckpt *source, const char *target, char **out, sl_error *err);
/* Makes the directory. */
bool pack_target_make(const char *out, sl_error *err);
/* Refuses where the disk has less than `need` bytes free. */
bool pack_target_space(const char *out, uint64_t need, sl_error *err);
void pack_target_sync(const char *dir);
/* Writes a small file of the pack so that it is there whole or not at all. */
bool pack_target_put(const char *dir, const char *name, const void *bytes, size_t n, sl_error *err);

#endif
