/* The small JSON files that calibration keeps: written whole, read with suspicion. */
#include "experts/calibrate_doc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_BYTES = 64 << 10 };

bool calibrate_doc_save(const char *path, json_t *doc, sl_error *err) {
    char *text = doc ? json_dumps(doc, JSON_INDENT(1)) : NULL;
    json_decref(doc);
    if (!text)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    bool ok = sl_replace_file(path, text, strlen(text), err);
    free(text);
    return ok;
}

bool calibrate_take_int(const json_t *o, const char *name, int64_t least, int64_t most, int64_t *out, sl_error *err) {
    const json_t *v = json_object_get(o, name);
    if (!json_is_integer(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: a whole number expected", name);
    *out = json_integer_value(v);
    return (*out >= least && *out <= most) || sl_fail(err, SL_ERR_FORMAT, "%s: %lld, expected %lld to %lld", name,
                                                      (long long)*out, (long long)least, (long long)most);
}

bool calibrate_take_rate(const json_t *o, const char *name, double *out, sl_error *err) {
    const json_t *v = json_object_get(o, name);
    *out = json_number_value(v);
    return (json_is_number(v) && *out >= 0 && *out < 1e15) ||
           sl_fail(err, SL_ERR_FORMAT, "%s: bytes per second expected", name);
}

/* The file's text. Not what is no plain file: a FIFO would be waited for. */
static char *read_file(const char *path, size_t *size, sl_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot open", path);
        return NULL;
    }
    if (!S_ISREG(st.st_mode))
        return sl_fail_null(err, SL_ERR_FORMAT, "%s: not a plain file", path);
    return sl_read_text(path, MOST_BYTES, size, err);
}

bool calibrate_doc_load(const char *path, calibrate_take_fn take, const void *key, void *out, sl_error *err) {
    size_t size = 0;
    json_error_t why;
    *err = (sl_error){0};
    char *text = read_file(path, &size, err);
    if (!text)
        return false;
    json_t *doc = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    free(text);
    bool ok = json_is_object(doc) && take(doc, key, out, err);
    if (!doc)
        sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    else if (!ok && err->code == SL_OK)
        sl_fail(err, SL_ERR_FORMAT, "%s: an object expected", path);
    else if (!ok)
        sl_fail_prefix(err, "%s", path);
    json_decref(doc);
    return ok;
}
