/* Private to experts and engine: a model's files a second time, on another disk, and the reader that splits reads
 * between both.
 *
 * A read goes to the disk that would have it first, by the bytes that each has still to bring and the rate at which it
 * brings them; the last read of a batch is cut so that both end together. Rates come from calibration where there is
 * one, and follow what is observed. A disk whose read fails is no longer used and the other serves what it owed. What
 * is read is the same whichever disk brings it: the copy is compared when it is opened (sizes, headers, samples). */
#ifndef SL_EXPERTS_MIRROR_H
#define SL_EXPERTS_MIRROR_H

#include "experts/experts.h"

typedef struct sl_mirror sl_mirror;

/* Opens the files of the same names in a directory. Errors name the file, and the byte at which it differs. */
sl_mirror *sl_mirror_open(const sl_file *const *file, int count, const char *directory, sl_error *err);
void sl_mirror_close(sl_mirror *m);
const char *sl_mirror_directory(const sl_mirror *m);
/* The copy of a file; NULL: it has none. */
const sl_file *sl_mirror_of(const sl_mirror *m, const sl_file *f);

typedef struct sl_mirror_options {
    const sl_mirror *mirror;      /* borrowed, must outlive the reader */
    double rate[SL_READER_DISKS]; /* bytes per second, as calibrated; 0: not known */
    const char *name;             /* of the first disk in messages; borrowed likewise */
    sl_log log;
    uint64_t (*now)(void *user); /* NULL: sl_now_ns; a test has time of its own */
    void *now_user;
} sl_mirror_options;

/* inner was opened with a second disk; it is owned from now on, also on failure. */
sl_reader *sl_mirror_reader(sl_reader *inner, const sl_mirror_options *o, sl_error *err);

typedef struct sl_mirror_stats {
    uint64_t reads, bytes; /* asked of the disk */
    double rate;           /* bytes per second, as seen of late */
    bool dropped;          /* a read of it failed: the other serves alone */
} sl_mirror_stats;

/* Of a disk of a reader made here; from any thread. */
void sl_mirror_stats_get(const sl_reader *r, int disk, sl_mirror_stats *out);

#endif
