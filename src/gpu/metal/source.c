/* Metal's run-time compiler takes one text: no include paths, no file names. Definitions go in front of it, files that
 * are found are put in the place of their #include, and #line keeps the names and numbers of diagnostics. What is not
 * found stays as it is: the compiler knows its own headers. */
#include "gpu/metal/metal.h"
#include "gpu/texts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32, MAX_ONCE = 256 };
static const size_t max_text = 64u << 20, max_file = 16u << 20;

/* A file being put in; those around it. */
typedef struct place {
    const char *name;
    const struct place *outer;
    int depth;
} place;

typedef struct flattener {
    const gpu_source *source;
    sl_buf *out;
    char *once[MAX_ONCE]; /* files that said #pragma once */
    size_t once_count;
    bool in_comment;
    sl_error *err;
} flattener;

static bool put_text(flattener *f, const place *at, const char *text, size_t n);

static bool put(flattener *f, const void *bytes, size_t n) {
    if (f->out->size + n > max_text)
        return sl_fail(f->err, SL_ERR_COMPILE, "%s: with its included files the source is larger than %zu bytes",
                       f->source->name, max_text);
    return sl_buf_append(f->out, bytes, n) || sl_fail(f->err, SL_ERR_MEMORY, "metal: no memory for a kernel's source");
}

static bool put_line_directive(flattener *f, int line, const char *name) {
    sl_buf b = {0};
    sl_buf_printf(&b, "#line %d \"", line);
    for (const char *c = name; *c; c++)
        if (*c != '\n')
            sl_buf_printf(&b, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    sl_buf_puts(&b, "\"\n");
    bool ok = !b.failed && put(f, b.data, b.size);
    sl_buf_free(&b);
    return ok;
}

/* ---- finding a file ---------------------------------------------------------------------------------------------- */

typedef struct included {
    char *name, *owned; /* owned: text to be freed */
    const char *text;
    size_t size;
} included;

static bool read_from(const char *dir, size_t dir_length, const char *file, included *found) {
    char *head = sl_strndup(dir, dir_length), *path = NULL;
    if (head)
        path = *file == '/' ? sl_strdup(file) : sl_path_join(head, file);
    free(head);
    if (path && sl_path_exists(path) && !sl_path_is_dir(path))
        found->text = found->owned = sl_read_text(path, max_file, &found->size, NULL);
    if (!found->text)
        free(path);
    else
        found->name = path;
    return found->text != NULL;
}

/* As a compiler looks: beside the file that asks (quotes only), the given folders, the texts of this program. */
static bool find_file(const flattener *f, const place *at, const char *file, bool quotes, included *found) {
    *found = (included){0};
    const char *slash = strrchr(at->name, '/');
    if (quotes && read_from(slash ? at->name : ".", slash ? (size_t)(slash - at->name) : 1, file, found))
        return true;
    const sl_gpu_compile_options *o = f->source->options;
    for (size_t i = 0; i < o->include_count; i++)
        if (read_from(o->include_dirs[i], strlen(o->include_dirs[i]), file, found))
            return true;
    const char *base = strrchr(file, '/');
    const sl_text *text = gpu_text(base ? base + 1 : file);
    if (!text)
        return false;
    found->name = sl_strdup(file);
    found->text = text->bytes;
    found->size = text->size;
    return found->name != NULL;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

/* What follows "# word" on the line; NULL for another line. */
static const char *after_directive(const char *p, const char *end, const char *word) {
    size_t n = strlen(word);
    p = skip_blanks(p, end);
    if (p == end || *p != '#')
        return NULL;
    p = skip_blanks(p + 1, end);
    if ((size_t)(end - p) < n || memcmp(p, word, n) != 0)
        return NULL;
    return skip_blanks(p + n, end);
}

/* File name of an #include line, allocated; NULL for another line. */
static char *include_of(const char *line, const char *end, bool *quotes) {
    const char *p = after_directive(line, end, "include");
    if (!p || p == end || (*p != '"' && *p != '<'))
        return NULL;
    *quotes = *p == '"';
    const char *close = memchr(p + 1, *quotes ? '"' : '>', (size_t)(end - p - 1));
    return close ? sl_strndup(p + 1, (size_t)(close - p - 1)) : NULL;
}

static bool says_once(const char *line, const char *end) {
    const char *p = after_directive(line, end, "pragma");
    return p && (size_t)(end - p) >= 4 && memcmp(p, "once", 4) == 0;
}

/* Whether the next line begins inside a block comment. */
static void follow_comments(flattener *f, const char *p, const char *end) {
    char quote = 0;
    for (; p < end; p++) {
        bool pair = p + 1 < end;
        if (f->in_comment) {
            if (pair && p[0] == '*' && p[1] == '/') {
                f->in_comment = false;
                p++;
            }
        } else if (quote) {
            if (*p == '\\')
                p++;
            else if (*p == quote)
                quote = 0;
        } else if (*p == '"') {
            quote = *p;
        } else if (pair && p[0] == '/' && p[1] == '/') {
            return;
        } else if (pair && p[0] == '/' && p[1] == '*') {
            f->in_comment = true;
            p++;
        }
    }
}

/* ---- putting files in -------------------------------------------------------------------------------------------- */

/* A file inside itself is one with an include guard, whose second text is empty. */
static bool is_done(const flattener *f, const place *at, const char *name) {
    for (size_t i = 0; i < f->once_count; i++)
        if (strcmp(f->once[i], name) == 0)
            return true;
    for (; at; at = at->outer)
        if (strcmp(at->name, name) == 0)
            return true;
    return false;
}

static bool put_file(flattener *f, const place *at, const included *file, int line) {
    if (is_done(f, at, file->name))
        return put(f, "\n", 1);
    if (at->depth >= MAX_DEPTH)
        return sl_fail(f->err, SL_ERR_COMPILE, "%s:%d: files include each other more than %d deep", at->name, line,
                       MAX_DEPTH);
    place inner = {file->name, at, at->depth + 1};
    return put_line_directive(f, 1, file->name) && put_text(f, &inner, file->text, file->size) && put(f, "\n", 1) &&
           put_line_directive(f, line + 1, at->name);
}

/* False on error; *done where the line was an #include that was followed. */
static bool put_include(flattener *f, const place *at, const char *line, const char *end, int number, bool *done) {
    bool quotes;
    char *file = f->in_comment ? NULL : include_of(line, end, &quotes);
    included found;
    *done = file && find_file(f, at, file, quotes, &found);
    free(file);
    if (!*done)
        return true;
    bool ok = put_file(f, at, &found, number);
    free(found.name);
    free(found.owned);
    return ok;
}

static bool note_once(flattener *f, const char *name) {
    if (f->once_count == MAX_ONCE)
        return sl_fail(f->err, SL_ERR_COMPILE, "%s: more than %d files with #pragma once", name, MAX_ONCE);
    f->once[f->once_count] = sl_strdup(name);
    return f->once[f->once_count++] || sl_fail(f->err, SL_ERR_MEMORY, "metal: no memory for a kernel's source");
}

static bool put_text(flattener *f, const place *at, const char *text, size_t n) {
    const char *end = text + n;
    for (int number = 1; text < end; number++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        const char *next = stop ? stop + 1 : end;
        bool done, once = at->outer && !f->in_comment && says_once(text, next);
        if (once && (!note_once(f, at->name) || !put(f, "\n", 1)))
            return false;
        if (!put_include(f, at, text, next, number, &done))
            return false;
        if (!done && !once) {
            if (!put(f, text, (size_t)(next - text)))
                return false;
            follow_comments(f, text, next);
        }
        text = next;
    }
    return true;
}

static bool put_head(flattener *f) {
    const sl_gpu_compile_options *o = f->source->options;
    sl_buf head = {0};
    for (size_t i = 0; i < o->define_count; i++)
        sl_buf_printf(&head, "#define %s %s\n", o->defines[i].name, o->defines[i].value ? o->defines[i].value : "1");
    sl_buf_puts(&head, "#pragma METAL fp contract(off)\n");
    bool ok = !head.failed && put(f, head.data, head.size);
    sl_buf_free(&head);
    return ok || sl_fail(f->err, SL_ERR_MEMORY, "metal: no memory for a kernel's source");
}

bool metal_source_flatten(const gpu_source *s, sl_buf *out, sl_error *err) {
    if (memchr(s->text, 0, s->size))
        return sl_fail(err, SL_ERR_COMPILE, "%s: a NUL byte in the source", s->name);
    flattener f = {.source = s, .out = out, .err = err};
    place top = {s->name, NULL, 0};
    bool ok = put_head(&f) && put_line_directive(&f, 1, s->name) && put_text(&f, &top, s->text, s->size);
    for (size_t i = 0; i < f.once_count; i++)
        free(f.once[i]);
    return ok;
}
