/* The cuda device on its stand-in (tests/standin/cuda), or on the GPU that is there. */
#ifndef SUPPORT_CUDA_H
#define SUPPORT_CUDA_H

#include "../../standin/cuda/cuda_standin.h"

#include <stdbool.h>

extern cuda_control *cuda; /* of the loaded stand-in; NULL: there is none, or a GPU is tested (SLUICE_TEST_DEVICE) */

/* A cmocka set-up: loads the stand-in, points the device at it and resets it. */
int cuda_reset(void **state);
/* A tear-down: nothing is alive, no rule was broken; the device finds the system's own libraries again. */
int cuda_left_clean(void **state);
bool cuda_skips(void); /* says so where there is neither */

#endif
