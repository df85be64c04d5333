/* Small files that are kept between runs: a directory for a test, and what every loader of such files must refuse. */
#ifndef SUPPORT_STORED_H
#define SUPPORT_STORED_H

#include "support_experts.h"

/* Set-up and tear-down of a test; the directory is `stored_directory`. */
extern char stored_directory[];
int stored_make_directory(void **state);
int stored_remove_directory(void **state);

void stored_write(const char *path, const char *text, size_t n);
/* A file at that absolute name below the directory, as on a recorded machine. */
void stored_record(const char *name, const char *text);

/* In the file's text `from` becomes `to`; the error then says `says`. */
typedef struct stored_damage {
    const char *from, *to, *says;
} stored_damage;

/* Of a good file: each damage is refused with the file's name; so is the file cut short anywhere, and a FIFO in its
 * place, which is not waited for. The file is gone then. */
void stored_check_damage(const char *path, const stored_damage *damage, size_t n,
                         bool (*load)(const char *path, sl_error *err));

#endif
