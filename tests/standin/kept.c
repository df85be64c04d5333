/* What the soft device compiled, kept in a folder for other processes: SLUICE_STANDIN_KEPT names it. A Mac's compiler
 * has a cache of its own too. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MOST = 64 << 20 };

char *kept_path(const char *text, size_t size, bool fast_math) {
    const char *folder = getenv("SLUICE_STANDIN_KEPT");
    if (!folder || !*folder)
        return NULL;
    mkdir(folder, 0700);
    XXH128_hash_t h = XXH3_128bits_withSeed(text, size, fast_math);
    return sl_asprintf("%s/%016llx%016llx", folder, (unsigned long long)h.high64, (unsigned long long)h.low64);
}

bool kept_read(const char *path, sl_buf *out) {
    FILE *f = path ? fopen(path, "rb") : NULL;
    struct stat st;
    if (!f)
        return false;
    void *bytes = fstat(fileno(f), &st) == 0 && st.st_size > 0 && st.st_size < MOST ? malloc((size_t)st.st_size) : NULL;
    bool ok = bytes && fread(bytes, 1, (size_t)st.st_size, f) == (size_t)st.st_size &&
              sl_buf_append(out, bytes, (size_t)st.st_size);
    free(bytes);
    fclose(f);
    return ok;
}

/* Another process sees all of it or nothing. */
void kept_write(const char *path, const sl_buf *payload) {
    char *beside = path ? sl_asprintf("%s.%ld", path, (long)getpid()) : NULL;
    FILE *f = beside ? fopen(beside, "wb") : NULL;
    if (f) {
        bool ok = fwrite(payload->data, 1, payload->size, f) == payload->size;
        ok = fclose(f) == 0 && ok;
        if (!ok || rename(beside, path) != 0)
            unlink(beside);
    }
    free(beside);
}
