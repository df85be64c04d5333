/* The hot list's file. */
#include "experts/hot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { HEADER = 24, TAIL = 8, MEAN_USES = 1024 };
#define MOST_EXPERTS (UINT64_C(1) << 24)

static const char magic[8] = "SLHOT1\0";

static uint64_t file_bytes(uint64_t experts) {
    return HEADER + 4 * experts + TAIL;
}

static uint64_t get_u64(const char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- what is there ----------------------------------------------------------------------------------------------- */

/* Whether a file that is there may be read and written: a list, whole or damaged, or an empty file, made for one.
 * *there: whether anything is. What is no list is somebody's: err->code is SL_ERR_ARGUMENT. */
static bool is_own(const char *path, bool *there, sl_error *err) {
    char found[sizeof magic] = {0};
    struct stat st;
    *there = lstat(path, &st) == 0;
    if (!*there)
        return errno == ENOENT || errno == ENOTDIR || sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot open", path);
    if (stat(path, &st) != 0)
        return sl_fail_errno(err, SL_ERR_ARGUMENT, errno, "%s: cannot open", path);
    if (!S_ISREG(st.st_mode)) /* a FIFO would be waited for */
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: not a regular file", path);
    sl_file *f = sl_file_open(path, err);
    uint64_t n = f && f->size < sizeof found ? f->size : sizeof found;
    bool ok = f && sl_file_read(f, 0, found, n, err);
    sl_file_close(f);
    return ok && (memcmp(found, magic, n) == 0 ||
                  sl_fail(err, SL_ERR_ARGUMENT, "%s: offset 0: not a hot list (magic SLHOT1 expected)", path));
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static bool take(const char *path, const char *bytes, size_t size, uint64_t model, uint32_t *uses, uint64_t experts,
                 sl_error *err) {
    if (size < HEADER + TAIL) /* its magic was seen */
        return sl_fail(err, SL_ERR_FORMAT, "%s: %zu bytes, at least %d expected", path, size, HEADER + TAIL);
    if (get_u64(bytes + 8) != model)
        return sl_fail(err, SL_ERR_FORMAT, "%s: offset 8: of model %016llx, %016llx expected", path,
                       (unsigned long long)get_u64(bytes + 8), (unsigned long long)model);
    if (get_u64(bytes + 16) != experts || size != file_bytes(experts))
        return sl_fail(err, SL_ERR_FORMAT, "%s: offset 16: %llu experts in %zu bytes, %llu in %llu expected", path,
                       (unsigned long long)get_u64(bytes + 16), size, (unsigned long long)experts,
                       (unsigned long long)file_bytes(experts));
    if (get_u64(bytes + size - TAIL) != XXH3_64bits(bytes, size - TAIL))
        return sl_fail(err, SL_ERR_FORMAT, "%s: offset %zu: the checksum is not that of the bytes before it", path,
                       size - TAIL);
    memcpy(uses, bytes + HEADER, 4 * experts);
    return true;
}

bool sl_hot_load(const char *path, uint64_t model, uint32_t *uses, uint64_t experts, sl_error *err) {
    size_t size = 0;
    bool there;
    *err = (sl_error){0};
    if (!is_own(path, &there, err) || !there)
        return false;
    if (experts > MOST_EXPERTS)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %llu experts, at most %llu expected", path,
                       (unsigned long long)experts, (unsigned long long)MOST_EXPERTS);
    char *bytes = sl_read_text(path, file_bytes(experts), &size, err);
    bool ok = bytes && take(path, bytes, size, model, uses, experts, err);
    free(bytes);
    return ok;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

void sl_hot_merge(uint32_t *known, const uint32_t *run, uint64_t experts) {
    uint64_t sum = 0;
    int shift = 0;
    for (uint64_t i = 0; i < experts; i++)
        sum += (uint64_t)known[i] + run[i];
    while (sum >> shift > experts * MEAN_USES)
        shift++;
    for (uint64_t i = 0; i < experts; i++) {
        uint64_t both = ((uint64_t)known[i] + run[i]) >> shift;
        known[i] = both < UINT32_MAX ? (uint32_t)both : UINT32_MAX;
    }
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

bool sl_hot_save(const char *path, uint64_t model, const uint32_t *uses, uint64_t experts, sl_error *err) {
    size_t size = (size_t)file_bytes(experts);
    bool there;
    if (!is_own(path, &there, err))
        return false;
    char *bytes = experts <= MOST_EXPERTS ? malloc(size) : NULL;
    if (!bytes)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %llu experts", path, (unsigned long long)experts);
    memcpy(bytes, magic, sizeof magic);
    memcpy(bytes + 8, &model, sizeof model);
    memcpy(bytes + 16, &experts, sizeof experts);
    memcpy(bytes + HEADER, uses, 4 * experts);
    uint64_t sum = XXH3_64bits(bytes, size - TAIL);
    memcpy(bytes + size - TAIL, &sum, sizeof sum);
    bool ok = sl_replace_file(path, bytes, size, err);
    free(bytes);
    return ok;
}
