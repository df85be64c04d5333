/* Private to experts: the JSON files of calibration, and fields out of them. What is in them decides how fast things
 * come, never what they are; still every field is checked, as readers and memory are sized by it. */
#ifndef SL_EXPERTS_CALIBRATE_DOC_H
#define SL_EXPERTS_CALIBRATE_DOC_H

#include "experts/calibrate.h"

#include <jansson.h>

/* Takes the reference; NULL: there was no memory for it. */
bool calibrate_doc_save(const char *path, json_t *doc, sl_error *err);
/* Fills *out from an object that should be that of `key`. */
typedef bool (*calibrate_take_fn)(const json_t *doc, const void *key, void *out, sl_error *err);
/* false with SL_OK: there is no such file. Otherwise the error names the file and what is wrong with it. */
bool calibrate_doc_load(const char *path, calibrate_take_fn take, const void *key, void *out, sl_error *err);

bool calibrate_take_int(const json_t *o, const char *name, int64_t least, int64_t most, int64_t *out, sl_error *err);
/* Bytes per second. */
bool calibrate_take_rate(const json_t *o, const char *name, double *out, sl_error *err);

#endif
