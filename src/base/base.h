/* base: what every part stands on: errors, logging, checked sizes, growable buffers, files, threads, budgeted memory.
 *
 * May include: the C library and include/sluice/error.h only. Called by every other part.
 * Nothing here exits, aborts or prints. */
#ifndef SL_BASE_H
#define SL_BASE_H

#include "sluice/error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_COUNT(a)     (sizeof(a) / sizeof((a)[0]))
#define SL_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Fills *err (NULL is allowed) and returns false, so that a failing function can `return sl_fail(...)`.
 * Control bytes and invalid UTF-8 that came from a file are shown escaped: the message stays one printable line. */
bool sl_fail(sl_error *err, sl_code code, const char *fmt, ...) SL_PRINTF(3, 4);
/* As sl_fail with ": " and the text of errno value `saved` at the end. */
bool sl_fail_errno(sl_error *err, sl_code code, int saved, const char *fmt, ...) SL_PRINTF(4, 5);
/* Puts "prefix: " before the message of an error on its way up. Returns false. */
bool sl_fail_prefix(sl_error *err, const char *fmt, ...) SL_PRINTF(2, 3);
/* NULL-returning forms. */
#define sl_fail_null(...) (sl_fail(__VA_ARGS__), NULL)

/* ---- log --------------------------------------------------------------------------------------------------------- */

typedef struct sl_log {
    sl_log_fn fn; /* NULL: silent */
    void *user;
    sl_log_level level; /* lines above this level are not formatted */
} sl_log;

void sl_logf(const sl_log *log, sl_log_level level, const char *fmt, ...) SL_PRINTF(3, 4);

/* ---- checked sizes ------------------------------------------------------------------------------------------------
 */

/* *out = a * b or a + b; false where that does not fit. */
static inline bool sl_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool sl_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline uint64_t sl_round_up(uint64_t v, uint64_t align) {
    return (v + align - 1) / align * align;
}
static inline int64_t sl_min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t sl_max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- growable byte buffer ------------------------------------------------------------------------------------------
 */

/* data is always NUL-terminated one past size (once anything was appended). Zero-initialise; sl_buf_free releases. */
typedef struct sl_buf {
    char *data;
    size_t size;
    size_t capacity;
    bool failed; /* an append ran out of memory; later appends do nothing */
} sl_buf;

bool sl_buf_append(sl_buf *b, const void *bytes, size_t n);
bool sl_buf_puts(sl_buf *b, const char *s);
bool sl_buf_printf(sl_buf *b, const char *fmt, ...) SL_PRINTF(2, 3);
void sl_buf_clear(sl_buf *b);
void sl_buf_free(sl_buf *b);
/* Takes the bytes out (caller frees); NULL if an append failed. An empty buffer gives "". */
char *sl_buf_take(sl_buf *b, size_t *size);

/* Grows an array of elements of `elem` bytes to hold at least `need`; doubles. Returns false on overflow or no memory,
 * old array kept. */
bool sl_grow(void **array, size_t *capacity, size_t need, size_t elem);

char *sl_strdup(const char *s);
char *sl_strndup(const char *s, size_t n);
char *sl_asprintf(const char *fmt, ...) SL_PRINTF(1, 2);

/* A file compiled into the program (cmake/embed.cmake); bytes end with a NUL that size does not count. */
typedef struct sl_text {
    const char *name, *bytes;
    size_t size;
} sl_text;

/* ---- UTF-8 ---------------------------------------------------------------------------------------------------------
 */

/* Decodes one code point at s (n > 0 bytes left). Returns the bytes consumed; *cp is -1 and the return 1 where the
 * bytes are invalid (overlong, surrogate, above 10FFFF, truncated). */
int sl_utf8_decode(const char *s, size_t n, int32_t *cp);
/* Encodes cp (valid) into out[4]; returns the bytes written. */
int sl_utf8_encode(int32_t cp, char *out);
/* Length of the longest prefix of s that does not end inside a (so far valid) multi-byte sequence. */
size_t sl_utf8_complete(const char *s, size_t n);

/* ---- files
 * ----------------------------------------------------------------------------------------------------------- */

/* An open file of known size. fd is buffered; direct_fd is the same file with O_DIRECT or -1 where that was refused. */
typedef struct sl_file {
    char *path;
    int fd;
    int direct_fd;
    uint32_t direct_align; /* alignment O_DIRECT needs of offset, length, address: 512..4096 */
    uint64_t size;
    int64_t changed_ns; /* time of the last change when it was opened */
} sl_file;

sl_file *sl_file_open(const char *path, sl_error *err);
void sl_file_close(sl_file *f);
/* false: its size or the time of its last change is another than when it was opened. */
bool sl_file_unchanged(const sl_file *f, sl_error *err);
/* Reads exactly n bytes at offset through the page cache; short reads and EINTR continue; end of file is an error that
 * names the file, the offset and the size found. */
bool sl_file_read(const sl_file *f, uint64_t offset, void *out, uint64_t n, sl_error *err);
/* Where the file ends now, for the message when a read met its end at `at` (it may have been cut further down). */
uint64_t sl_file_end(const sl_file *f, uint64_t at);
/* As sl_file_read, leaving nothing in the page cache: O_DIRECT where the file allows it, else dropped after each piece.
 */
bool sl_file_read_uncached(const sl_file *f, uint64_t offset, void *out, uint64_t n, sl_error *err);
/* Tells the system that [offset, offset+n) need not stay in the page cache. */
void sl_file_drop(const sl_file *f, uint64_t offset, uint64_t n);
/* Whole file as a NUL-terminated string; files above `limit` bytes are an error. Caller frees. */
char *sl_read_text(const char *path, uint64_t limit, size_t *size, sl_error *err);
/* Whether there is such a name, be it of a symbolic link to nothing: opening that says so. */
bool sl_path_exists(const char *path);
bool sl_path_is_dir(const char *path);
/* dir/name, allocated. */
char *sl_path_join(const char *dir, const char *name);
/* What can be made again is kept here: $XDG_CACHE_HOME/sluice or ~/.cache/sluice, allocated; NULL: neither is set. */
char *sl_cache_dir(void);
/* Makes the directories above a path that are missing, for this user alone; whoever writes there sees what could not
 * be. */
void sl_make_parents(const char *path);
/* Writes a small file whole, with the directories above it: under another name first, so that whoever reads meanwhile,
 * or after a crash, sees the old bytes or the new ones. */
bool sl_replace_file(const char *path, const void *bytes, size_t n, sl_error *err);

/* ---- time, machine ------------------------------------------------------------------------------------------------
 */

/* "1.60 GB/s", or "4.2 MB/s" below a tenth of one; out has 16 bytes. */
const char *sl_rate_text(double bytes_per_second, char *out);
uint64_t sl_now_ns(void); /* monotonic */
uint64_t sl_physical_memory(void);
/* Memory this process may use: the least of physical memory and cgroup v1/v2 limits found under `root` (NULL:
 * "/sys/fs/cgroup"). */
uint64_t sl_memory_limit(const char *root);
/* As sl_memory_limit for a process whose /proc/self/cgroup is the file `groups`. */
uint64_t sl_memory_limit_of(const char *groups, const char *root);

/* What of that is left at the moment. */
typedef struct sl_memory_state {
    bool known;               /* anything was found out */
    uint64_t physical, total; /* total: the least limit, physical or of a group */
    uint64_t room;  /* bytes that can be taken before the system or a group runs short: free, or page cache that can be
                       dropped; UINT64_MAX: not known */
    double stalled; /* share of the last ten seconds in which something waited for memory (PSI); 0: none, not known */
} sl_memory_state;
/* root: NULL, or a directory that stands for "/" (recorded files). */
void sl_memory_look(const char *root, sl_memory_state *out);
uint64_t sl_peak_rss(void); /* bytes, this process so far */
int sl_cpu_count(void);     /* cores this process may run on */

/* ---- threads
 * ---------------------------------------------------------------------------------------------------------- */

/* A pool that runs one parallel loop at a time. Workers spin at most 50 us for the next loop, then sleep. */
typedef struct sl_pool sl_pool;
/* Does the part [begin, end) of a loop; worker is 0..threads-1 (0 is the caller). */
typedef void (*sl_pool_fn)(void *ctx, int64_t begin, int64_t end, int worker);

sl_pool *sl_pool_new(int threads, sl_error *err);
void sl_pool_free(sl_pool *p);
int sl_pool_threads(const sl_pool *p);
/* Runs fn over [0, n) in pieces of at least `grain`, handed out dynamically; returns when all are done. Called from one
 * thread at a time. */
void sl_pool_run(sl_pool *p, int64_t n, int64_t grain, sl_pool_fn fn, void *ctx);

/* ---- budgeted memory
 * ---------------------------------------------------------------------------------------------------- */

/* The one allocator of big memory. Everything is 2 MiB aligned (4 KiB when smaller than 2 MiB) and counted against one
 * budget, which also covers what is only declared (sl_mem_charge: malloc'd tables, an estimate of stacks and
 * libraries). Thread-safe. */
typedef struct sl_mem sl_mem;

typedef enum sl_use { SL_USE_WEIGHTS, SL_USE_SLOTS, SL_USE_KV, SL_USE_SCRATCH, SL_USE_OTHER, SL_USE_COUNT } sl_use;

/* slab_bytes is a power of two, 64 KiB..64 MiB. */
sl_mem *sl_mem_new(uint64_t budget, uint64_t slab_bytes, sl_error *err);
/* The same with slabs cut from at most `mappings` large mappings, for a device, which sees memory in so many pieces. */
sl_mem *sl_mem_new_gathered(uint64_t budget, uint64_t slab_bytes, int mappings, sl_error *err);
void sl_mem_free(sl_mem *m);
/* One contiguous zeroed span, for resident weights and scratch; any size. NULL with SL_ERR_BUDGET when it does not fit.
 * Freed with sl_mem_span_free or with the allocator. */
void *sl_mem_span(sl_mem *m, uint64_t bytes, sl_use use, sl_error *err);
void sl_mem_span_free(sl_mem *m, void *p);
/* One slab. An empty slab is kept for reuse until sl_mem_trim returns it to the system. */
void *sl_mem_slab(sl_mem *m, sl_use use, sl_error *err);
void sl_mem_slab_free(sl_mem *m, void *slab);
void sl_mem_trim(sl_mem *m);
/* Touches slabs before they are asked for, on a thread of its own with the least priority: memory that a system hands
 * out for the first time is zeroed, on virtual machines also fetched from the host, at 0.2 to 10 GB/s. `ahead` bytes of
 * empty slabs are kept so while all slabs together are below `most` bytes. They are counted as other empty slabs and
 * give way to whatever is asked for. Ends with the allocator, or with a trim. Of gathered slabs none are touched. */
void sl_mem_ahead(sl_mem *m, uint64_t ahead, uint64_t most);
bool sl_mem_charge(sl_mem *m, uint64_t bytes, sl_use use, sl_error *err);
void sl_mem_uncharge(sl_mem *m, uint64_t bytes, sl_use use);
uint64_t sl_mem_budget(const sl_mem *m);
uint64_t sl_mem_slab_bytes(const sl_mem *m);
uint64_t sl_mem_used(const sl_mem *m, sl_use use); /* SL_USE_COUNT: all, empty slabs that are kept included */
uint64_t sl_mem_peak(const sl_mem *m);
/* The span, slab in use, or mapping of gathered slabs that p points into; false: none. For devices, which wrap memory
 * whole. */
bool sl_mem_find(const sl_mem *m, const void *p, void **base, uint64_t *bytes);
/* What the span or slab in use that p points into serves; SL_USE_COUNT: none. */
sl_use sl_mem_use(const sl_mem *m, const void *p);
/* How often memory was given back to the system so far: while it stays the same, what was found still stands. */
uint64_t sl_mem_unmapped(const sl_mem *m);

#endif
