/* experts: the hot list: how often steps asked for each expert, kept in a file from run to run.
 *
 * The file: "SLHOT1\0\0", u64 model, u64 experts, u32 uses[experts] (layer after layer), u64 XXH3 of all before it;
 * little-endian. It decides how fast the first tokens come, never what they are. Called by engine. */
#ifndef SL_EXPERTS_HOT_H
#define SL_EXPERTS_HOT_H

#include "base/base.h"

/* uses[experts]. false with err->code SL_OK: there is no such file; SL_ERR_ARGUMENT: what has the name is something
 * else, and sl_hot_save leaves it as it is; else it is damaged or of another model. */
bool sl_hot_load(const char *path, uint64_t model, uint32_t *uses, uint64_t experts, sl_error *err);
/* Adds what a run counted to what was known. Where all together would be more than some thousand for each expert, all
 * are halved: what is old loses weight. */
void sl_hot_merge(uint32_t *known, const uint32_t *run, uint64_t experts);
/* The file appears whole, or stays as it was. */
bool sl_hot_save(const char *path, uint64_t model, const uint32_t *uses, uint64_t experts, sl_error *err);

#endif
