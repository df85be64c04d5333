/* Opening a reader, and small things all of them use. */
#include "experts/reader.h"

#include <fcntl.h>
#include <time.h>

/* bench/readers.c on a virtual disk of 1.6 GB/s: pieces of 256 KiB to 4 MiB are equally fast once the queue is deep;
 * smaller ones cost more processor time, larger ones leave a burst of few experts without depth. */
enum { DEFAULT_PIECE = 512 << 10, LEAST_PIECE = 4096, LARGEST_PIECE = 1 << 30 };
#define DEFAULT_TIMEOUT_NS 30000000000u

uint64_t experts_end_of_wait(uint64_t timeout_ns) {
    uint64_t end;
    if (timeout_ns == 0)
        return 0;
    return sl_add_u64(sl_now_ns(), timeout_ns, &end) ? end : UINT64_MAX;
}

void experts_sleep(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

void experts_file_prepare(const sl_file *f) {
#ifdef POSIX_FADV_RANDOM
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
#endif
#ifdef F_NOCACHE
    fcntl(f->fd, F_NOCACHE, 1);
#endif
}

#ifndef SL_HAVE_URING
sl_reader *experts_reader_uring(const experts_reader_setup *s, sl_error *err) {
    return sl_fail_null(err, SL_ERR_UNSUPPORTED, "io_uring: not built in");
}
#endif

static sl_reader *open_kind(sl_reader_kind kind, experts_reader_setup *s, sl_error *err) {
    switch (kind) {
    case SL_READER_URING:
        return experts_reader_uring(s, err);
    case SL_READER_PREAD:
        return experts_reader_pread(s, err);
    case SL_READER_AUTO:
        break;
    }
    /* Containers and hardened kernels forbid io_uring: that is no failure. */
    sl_reader *r = experts_reader_uring(s, NULL);
    for (int i = 0; i < s->disks; i++)
        s->disk[i].depth = 0;
    return r ? r : experts_reader_pread(s, err);
}

static bool add_disk(experts_reader_setup *s, const sl_reader_options *o, sl_error *err) {
    uint64_t piece = o->piece_bytes ? o->piece_bytes : DEFAULT_PIECE;
    if (piece < LEAST_PIECE || piece > LARGEST_PIECE || piece % LEAST_PIECE)
        return sl_fail(err, SL_ERR_ARGUMENT, "reader: pieces of %llu bytes, a multiple of %d up to %d expected",
                       (unsigned long long)piece, LEAST_PIECE, LARGEST_PIECE);
    s->disk[s->disks++] = (experts_disk_setup){.direct = !o->buffered, .depth = o->depth, .piece_bytes = piece};
    return true;
}

sl_reader *sl_reader_open(const sl_reader_options *o, sl_error *err) {
    experts_reader_setup s = {.timeout_ns = o->timeout_ns ? o->timeout_ns : DEFAULT_TIMEOUT_NS, .faults = o->faults};
    if (!add_disk(&s, o, err) || (o->second && !add_disk(&s, o->second, err)))
        return NULL;
    sl_reader *r = open_kind(o->kind, &s, err);
    if (!r || !o->faults)
        return r;
    sl_fault_plan plan = *o->faults;
    plan.timeout_ns = plan.timeout_ns ? plan.timeout_ns : s.timeout_ns;
    return sl_reader_fault(r, &plan, err);
}
