/* The copies of a model's files on a second disk, and whether they are copies. */
#include "experts/mirror.h"

#include "experts/reader.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* HEAD: the beginning of a file, whose header tells most models apart. SAMPLES: blocks that are compared in all files
 * together, MOST in one: another model of the same shape differs in nearly every block. */
enum { BLOCK = 4096, HEAD = 64 << 10, SAMPLES = 512, MOST = 64, LEAST = 8 };

typedef struct twin {
    const sl_file *of;
    sl_file *file;
} twin;

struct sl_mirror {
    char *directory;
    twin *twin;
    int count;
};

/* ---- comparing --------------------------------------------------------------------------------------------------- */

typedef struct comparison {
    uint8_t *own, *other; /* [HEAD] */
    int samples;          /* of a file */
} comparison;

static bool same_range(const comparison *c, const twin *t, uint64_t at, uint64_t n, sl_error *err) {
    n = at + n > t->of->size ? t->of->size - at : n;
    if (!sl_file_read_uncached(t->of, at, c->own, n, err) || !sl_file_read_uncached(t->file, at, c->other, n, err))
        return false;
    for (uint64_t i = 0; i < n; i++)
        if (c->own[i] != c->other[i])
            return sl_fail(err, SL_ERR_FORMAT, "%s: byte %llu is 0x%02x, 0x%02x expected: no copy of %s", t->file->path,
                           (unsigned long long)(at + i), c->other[i], c->own[i], t->of->path);
    return true;
}

/* Its beginning, its end (which a copy that was interrupted lacks), and samples between. */
static bool same_content(const comparison *c, const twin *t, sl_error *err) {
    uint64_t size = t->of->size;
    bool ok = same_range(c, t, 0, HEAD, err) && same_range(c, t, size > BLOCK ? size - BLOCK : 0, BLOCK, err);
    for (int i = 0; ok && size > HEAD && i < c->samples; i++)
        ok = same_range(c, t, experts_mix((uint64_t)i) % size / BLOCK * BLOCK, BLOCK, err);
    return ok;
}

static bool same_inode(const sl_file *a, const sl_file *b) {
    struct stat x, y;
    return fstat(a->fd, &x) == 0 && fstat(b->fd, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool check_twin(const comparison *c, const twin *t, sl_error *err) {
    if (same_inode(t->of, t->file))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: the model's own file, a copy on another disk expected",
                       t->file->path);
    if (t->file->size != t->of->size)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %llu bytes, %llu expected, as in %s", t->file->path,
                       (unsigned long long)t->file->size, (unsigned long long)t->of->size, t->of->path);
    return same_content(c, t, err);
}

static bool check_twins(const sl_mirror *m, sl_error *err) {
    int each = SAMPLES / (m->count ? m->count : 1);
    comparison c = {malloc(HEAD), malloc(HEAD), each > MOST ? MOST : each < LEAST ? LEAST : each};
    bool ok = (c.own && c.other) || sl_fail(err, SL_ERR_MEMORY, "out of memory");
    for (int i = 0; ok && i < m->count; i++)
        ok = check_twin(&c, &m->twin[i], err);
    free(c.own);
    free(c.other);
    return ok;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static bool open_twin(sl_mirror *m, const sl_file *f, sl_error *err) {
    const char *slash = strrchr(f->path, '/');
    char *path = sl_path_join(m->directory, slash ? slash + 1 : f->path);
    sl_file *file = path ? sl_file_open(path, err) : NULL;
    if (!path)
        sl_fail(err, SL_ERR_MEMORY, "out of memory");
    free(path);
    if (!file)
        return false;
    experts_file_prepare(file);
    m->twin[m->count++] = (twin){f, file};
    return true;
}

sl_mirror *sl_mirror_open(const sl_file *const *file, int count, const char *directory, sl_error *err) {
    if (!sl_path_is_dir(directory))
        return sl_fail_null(err, SL_ERR_ARGUMENT, "mirror: %s: not a directory", directory);
    sl_mirror *m = calloc(1, sizeof *m);
    bool ok = m && (m->directory = sl_strdup(directory)) && (m->twin = calloc((size_t)count + 1, sizeof *m->twin));
    if (!ok)
        sl_fail(err, SL_ERR_MEMORY, "out of memory");
    for (int i = 0; ok && i < count; i++)
        ok = open_twin(m, file[i], err);
    if (ok && check_twins(m, err))
        return m;
    sl_fail_prefix(err, "mirror");
    sl_mirror_close(m);
    return NULL;
}

void sl_mirror_close(sl_mirror *m) {
    if (!m)
        return;
    for (int i = 0; i < m->count; i++)
        sl_file_close(m->twin[i].file);
    free(m->twin);
    free(m->directory);
    free(m);
}

const char *sl_mirror_directory(const sl_mirror *m) {
    return m->directory;
}

const sl_file *sl_mirror_of(const sl_mirror *m, const sl_file *f) {
    for (int i = 0; i < m->count; i++)
        if (m->twin[i].of == f)
            return m->twin[i].file;
    return NULL;
}
