/* Sizes as people read them. */
#ifndef SL_ENGINE_UNITS_H
#define SL_ENGINE_UNITS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* "1.50 GiB" into out; returns out. */
static inline const char *engine_size_text(char *out, size_t size, uint64_t bytes) {
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    double v = (double)bytes;
    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(out, size, u ? "%.2f %s" : "%.0f %s", v, unit[u]);
    return out;
}

#endif
