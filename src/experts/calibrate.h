/* Private to experts and engine: how the disk under a model is read fastest: the search, its result on disk, and the
 * choice made from it; and what was measured of the machine, kept likewise.
 *
 * A reading is searched one axis after the other from the usual one; what is not clearly faster is not taken, so the
 * defaults stay where noise is all there is. Results are kept per device (the disk, not the model). */
#ifndef SL_EXPERTS_CALIBRATE_H
#define SL_EXPERTS_CALIBRATE_H

#include "experts/experts.h"

/* ---- the disk that a path lies on -------------------------------------------------------------------------------- */

typedef struct sl_disk {
    char id[512]; /* the same for the same disk: serial number where there is one, else number, source and mount */
    char source[128], type[32], mount[256]; /* "" where the system does not say */
    bool network, in_memory;
    int rotational; /* -1: not known */
} sl_disk;

/* root: NULL, or a directory that stands for "/" where /proc and /sys are looked at. false: there is no such path. */
bool sl_disk_of(const char *root, const char *path, sl_disk *out, sl_error *err);
/* The same for a device of these numbers, with the mount's id (0: the first mount of the device). */
void sl_disk_describe(const char *root, unsigned major, unsigned minor, unsigned long long mount, sl_disk *out);

/* ---- the search -------------------------------------------------------------------------------------------------- */

typedef struct sl_reading {
    sl_reader_kind kind; /* uring or pread */
    bool direct;
    int depth;
    uint64_t piece_bytes;
} sl_reading;

enum { CALIBRATE_TRIED = 48, CALIBRATE_ROUNDS = 5 };

/* Bytes per second. */
typedef struct sl_tried {
    sl_reading how;
    double rate, least, most; /* median and extremes of the rounds it was last compared in */
    int rounds;
} sl_tried;

/* What the search asks of the world. */
typedef struct sl_calibrator {
    /* One round. SL_ERR_UNSUPPORTED: this way is not there; any other error ends the search. */
    bool (*measure)(void *user, const sl_reading *how, double *rate, sl_error *err);
    uint64_t (*now)(void *user);
    bool (*go_on)(void *user); /* false: SL_ERR_CANCELLED */
    void *user;
} sl_calibrator;

typedef struct sl_calibration {
    sl_tried usual, chosen;
    bool finished;       /* false: time ran out, some axes are as usual */
    uint64_t read_bytes; /* mean size of the reads it was measured with */
    int64_t measured;    /* seconds since 1970 */
    int count;
    sl_tried tried[CALIBRATE_TRIED];
} sl_calibration;

/* direct: whether the files can be read with O_DIRECT. */
bool sl_calibrate_search(const sl_calibrator *c, bool direct, uint64_t limit_ns, sl_calibration *out, sl_error *err);
const char *sl_reader_kind_name(sl_reader_kind kind);

/* ---- measuring a disk -------------------------------------------------------------------------------------------- */

/* The next burst: at most max reads with file, offset, bytes and need set (rounded where direct). Returns how many. */
typedef int (*sl_burst_fn)(void *user, bool direct, sl_read *reads, int max);

enum { CALIBRATE_BURST = 64 };

typedef struct sl_disk_meter {
    sl_burst_fn burst;
    void *user;
    bool (*go_on)(void *user); /* may be NULL */
    void *go_on_user;
    uint8_t *area;
    uint64_t area_bytes;
    int most;              /* reads of a burst: fewer on a slow disk */
    uint64_t round_ns;     /* a round lasts about so long, or one burst */
    uint64_t bytes, reads; /* so far */
} sl_disk_meter;

bool sl_disk_meter_open(sl_disk_meter *m, uint64_t area_bytes, sl_error *err);
void sl_disk_meter_close(sl_disk_meter *m);
/* The meter's functions for the search; user is the meter. */
bool sl_disk_meter_measure(void *user, const sl_reading *how, double *rate, sl_error *err);
uint64_t sl_disk_meter_now(void *user);
bool sl_disk_meter_go_on(void *user);
/* Makes bursts so small that a disk of this rate ends one within a round. */
void sl_disk_meter_fit(sl_disk_meter *m, double rate);

/* Bursts of random reads over a file. */
typedef struct sl_random_reads {
    const sl_file *file;
    uint64_t least, most, state;
} sl_random_reads;
int sl_random_reads_burst(void *user, bool direct, sl_read *reads, int max);

/* A file of random bytes in a directory, without a name once it is open: nothing is left whatever ends the program.
 * Up to `bytes`; on a slow disk what is written in limit_ns, or 16 MiB if that takes less than three times as
 * long. */
sl_file *sl_random_file(const char *directory, uint64_t bytes, uint64_t limit_ns, bool (*go_on)(void *user), void *user,
                        sl_error *err);

/* ---- results on disk --------------------------------------------------------------------------------------------- */

/* directory/disk-HASH.json of a disk; allocated. */
char *sl_calibration_path(const char *directory, const sl_disk *disk);
bool sl_calibration_save(const char *path, const sl_disk *disk, const sl_calibration *c, sl_error *err);
/* false with SL_OK: there is none. Otherwise the error says what is wrong with the file. Does not fill `tried`. */
bool sl_calibration_load(const char *path, const sl_disk *disk, sl_calibration *out, sl_error *err);

/* ---- the machine ------------------------------------------------------------------------------------------------- */

enum { MACHINE_TEXT = 128, MACHINE_RATES = 12 };

/* What decides how fast memory is read; what of it another machine has differently is another machine. */
typedef struct sl_machine_id {
    char cpu[MACHINE_TEXT]; /* its model */
    int cores;              /* that this process may run on */
    uint64_t memory;        /* physical bytes; the id counts GiB: kernels keep some MB more or fewer to themselves */
    char text[MACHINE_TEXT + 64];
} sl_machine_id;

typedef struct sl_machine_memory {
    int threads;
    double rate; /* bytes per second read by all of them together */
} sl_machine_memory;

typedef struct sl_machine_figures {
    int64_t measured; /* seconds since 1970 */
    int count;
    sl_machine_memory memory[MACHINE_RATES]; /* of rising numbers of threads */
    char gpu[MACHINE_TEXT];                  /* its name; "": none */
    double gpu_copy;                         /* bytes per second from the host to memory of its own; 0: it has none */
} sl_machine_figures;

/* root: as for sl_disk_of. */
void sl_machine_identify(const char *root, sl_machine_id *out);
/* directory/machine-HASH.json; allocated. */
char *sl_machine_path(const char *directory, const sl_machine_id *id);
bool sl_machine_save(const char *path, const sl_machine_id *id, const sl_machine_figures *f, sl_error *err);
/* As sl_calibration_load. */
bool sl_machine_load(const char *path, const sl_machine_id *id, sl_machine_figures *out, sl_error *err);

/* ---- the choice -------------------------------------------------------------------------------------------------- */

typedef struct sl_reading_wish {
    sl_reader_kind kind;
    int direct; /* -1: automatic */
    int depth;
    uint64_t piece_bytes; /* 0: automatic, both */
} sl_reading_wish;

/* stored may be NULL. why: in a few words, for people. */
void sl_reading_choose(const sl_reading_wish *wish, const sl_calibration *stored, sl_reader_options *out, char *why,
                       size_t size);

/* Why reads pass by the page cache, or go through it: a sentence for people. direct_possible: the file system takes
 * O_DIRECT. */
void sl_reading_cache_why(const sl_calibration *c, bool direct_possible, char *why, size_t size);

#endif
