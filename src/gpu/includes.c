/* The files that a source includes, for the key of the cache: where a device compiles the source itself there is no
 * translated code to hash. Takes every #include it sees, also in a branch that is not taken: a file too many costs a
 * compilation, one too few would give old code. */
#include "gpu/core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { MOST_FILES = 512, MOST_DEPTH = 32, MOST_BYTES = 16 << 20, NAME = 512 };

typedef struct walk {
    XXH3_state_t *state;
    const sl_gpu_compile_options *options;
    char *seen[MOST_FILES];
    size_t count;
} walk;

static void walk_text(walk *w, const char *text, size_t n, const char *dir, int depth);

static bool seen_before(const walk *w, const char *path) {
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->seen[i], path) == 0)
            return true;
    return false;
}

/* True where path is a file (not: a pipe that would never end). */
static bool walk_file(walk *w, const char *path, int depth) {
    struct stat st;
    size_t n;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    if (seen_before(w, path) || w->count == MOST_FILES)
        return true;
    char *text = sl_read_text(path, MOST_BYTES, &n, NULL);
    char *copy = text ? sl_strdup(path) : NULL;
    if (copy) {
        w->seen[w->count++] = copy;
        XXH3_128bits_update(w->state, path, strlen(path) + 1);
        XXH3_128bits_update(w->state, &n, sizeof n);
        XXH3_128bits_update(w->state, text, n);
        const char *slash = strrchr(path, '/');
        char *dir = slash ? sl_strndup(path, (size_t)(slash - path)) : sl_strdup(".");
        walk_text(w, text, n, dir ? dir : ".", depth + 1);
        free(dir);
    }
    free(text);
    return true;
}

static bool walk_in(walk *w, const char *dir, const char *name, int depth) {
    char *path = *name == '/' ? sl_strdup(name) : sl_path_join(dir, name);
    bool found = path && walk_file(w, path, depth);
    free(path);
    return found;
}

static void walk_name(walk *w, const char *name, const char *dir, int depth) {
    XXH3_128bits_update(w->state, name, strlen(name) + 1);
    if (walk_in(w, dir, name, depth))
        return;
    for (size_t i = 0; i < w->options->include_count; i++)
        if (walk_in(w, w->options->include_dirs[i], name, depth))
            return;
}

static const char *skip_blank(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

/* The name of `# include "name"` or <name>; false: another line. */
static bool include_of(const char *line, const char *end, char name[NAME]) {
    const char *p = skip_blank(line, end);
    if (p == end || *p != '#')
        return false;
    p = skip_blank(p + 1, end);
    if (end - p < 9 || memcmp(p, "include", 7) != 0)
        return false;
    p = skip_blank(p + 7, end);
    if (p == end || (*p != '"' && *p != '<'))
        return false;
    const char *close = memchr(p + 1, *p == '"' ? '"' : '>', (size_t)(end - p - 1));
    if (!close || close - p - 1 >= NAME)
        return false;
    memcpy(name, p + 1, (size_t)(close - p - 1));
    name[close - p - 1] = 0;
    return true;
}

static void walk_text(walk *w, const char *text, size_t n, const char *dir, int depth) {
    char name[NAME];
    if (depth > MOST_DEPTH)
        return;
    for (const char *p = text, *end = text + n; p < end;) {
        const char *line = p;
        p = memchr(p, '\n', (size_t)(end - p));
        if (!p)
            p = end;
        if (include_of(line, p, name))
            walk_name(w, name, dir, depth);
        if (p < end)
            p++;
    }
}

void gpu_includes_hash(void *state, const char *source, size_t n, const sl_gpu_compile_options *o) {
    walk *w = calloc(1, sizeof *w);
    if (!w)
        return;
    w->state = state;
    w->options = o;
    const char *slash = strrchr(o->name, '/');
    char *dir = slash ? sl_strndup(o->name, (size_t)(slash - o->name)) : sl_strdup(".");
    walk_text(w, source, n, dir ? dir : ".", 0);
    free(dir);
    for (size_t i = 0; i < w->count; i++)
        free(w->seen[i]);
    free(w);
}
