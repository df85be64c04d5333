/* Random numbers and temporary files for the tests of base. */
#ifndef SUPPORT_BASE_H
#define SUPPORT_BASE_H

#include "base/base.h"

typedef struct rng {
    uint64_t state;
} rng;

uint64_t rng_next(rng *r);
uint64_t rng_below(rng *r, uint64_t n); /* 0 .. n - 1 */

/* An empty directory; dir_remove deletes it with what is in it and frees the name. */
char *dir_new(void);
void dir_remove(char *dir);
/* dir/name with these bytes; missing folders are made. The path is allocated. */
char *dir_write(const char *dir, const char *name, const void *bytes, size_t n);

#endif
