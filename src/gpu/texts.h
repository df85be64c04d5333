/* Private to gpu and its callers: files compiled into the program: the translator's prelude, the kernels. */
#ifndef SL_GPU_TEXTS_H
#define SL_GPU_TEXTS_H

#include "base/base.h"

extern const sl_text gpu_texts[]; /* ended by a NULL name */

/* NULL: there is none of that name. */
const sl_text *gpu_text(const char *name);

#endif
