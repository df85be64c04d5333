#include "gpu/texts.h"

#include <string.h>

const sl_text *gpu_text(const char *name) {
    for (const sl_text *t = gpu_texts; t->name; t++)
        if (strcmp(t->name, name) == 0)
            return t;
    return NULL;
}
