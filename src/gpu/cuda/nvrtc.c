/* CUDA C++ to machine code, and NVRTC's diagnostics as errors. */
#include "gpu/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTIONS = 64, OPTION_BYTES = 96 };

/* ---- options ------------------------------------------------------------------------------------------------------
 */

typedef struct options {
    char text[MOST_OPTIONS][OPTION_BYTES];
    const char *list[MOST_OPTIONS];
    int count;
} options;

static void add(options *o, const char *fmt, ...) SL_PRINTF(2, 3);
static void add(options *o, const char *fmt, ...) {
    if (o->count == MOST_OPTIONS)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(o->text[o->count], OPTION_BYTES, fmt, ap);
    va_end(ap);
    o->list[o->count] = o->text[o->count];
    o->count++;
}

/* Functions are called as the unit calls them; contraction off, as on every device. */
static void add_fixed(options *o, const gpu_device *d, bool fast) {
    add(o, "-arch=%s", d->arch);
    add(o, "-std=c++20");
    add(o, "-default-device");
    add(o, "-device-int128");
    if (fast)
        add(o, "-use_fast_math");
    add(o, "-fmad=%s", fast ? "true" : "false");
}

/* A constant's value as the unit's text has it: MSL_CONSTANT_<id>, converted there to its type. */
static void add_constant(options *o, const sl_gpu_constant *c) {
    uint32_t bits;
    memcpy(&bits, &c->value.f, sizeof bits);
    add(o, "-DMSL_CONSTANT_%d_DEFINED=1", c->id);
    switch (c->type) {
    case SL_GPU_BOOL:
        add(o, "-DMSL_CONSTANT_%d=%s", c->id, c->value.b ? "true" : "false");
        break;
    case SL_GPU_UINT:
    case SL_GPU_USHORT:
        add(o, "-DMSL_CONSTANT_%d=%uu", c->id, c->value.u);
        break;
    case SL_GPU_FLOAT:
    case SL_GPU_HALF:
        add(o, "-DMSL_CONSTANT_%d=__builtin_bit_cast(float,0x%xu)", c->id, bits);
        break;
    default:
        add(o, "-DMSL_CONSTANT_%d=(%d)", c->id, c->value.i);
    }
}

static int by_id(const void *a, const void *b) {
    const sl_gpu_constant *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static void make_options(options *o, const gpu_device *d, const cuda_unit *u) {
    sl_gpu_constant sorted[MOST_OPTIONS];
    size_t n = u->constant_count < MOST_OPTIONS ? u->constant_count : MOST_OPTIONS;
    o->count = 0;
    add_fixed(o, d, u->fast);
    if (!u->entry) {
        add(o, "-fdevice-syntax-only");
        return;
    }
    add(o, "-DMSL_ENTRY=%s", u->entry + strcspn(u->entry, "0123456789"));
    if (u->pointers)
        add(o, "-DMSL_POINTERS=1");
    if (n)
        memcpy(sorted, u->constants, n * sizeof *sorted);
    if (n)
        qsort(sorted, n, sizeof *sorted, by_id);
    for (size_t i = 0; i < n; i++)
        add_constant(o, &sorted[i]);
}

void cuda_nvrtc_options(const gpu_device *d, const cuda_unit *u, sl_buf *out) {
    options o;
    make_options(&o, d, u);
    for (int i = 0; i < o.count; i++)
        sl_buf_printf(out, "%s\n", o.list[i]);
}

/* ---- diagnostics --------------------------------------------------------------------------------------------------
 */

/* FILE(LINE): error: what -> FILE:LINE: what; the first of them, or the first line. */
static void fail_diagnostic(sl_error *err, const char *name, const char *text) {
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        const char *mark = memmem(line, n, "): ", 3),
                   *what = mark ? memmem(mark, n - (size_t)(mark - line), "error", 5) : NULL;
        if (what) {
            const char *open = mark;
            while (open > line && *open != '(')
                open--;
            const char *colon = memchr(what, ':', n - (size_t)(what - line));
            const char *rest = colon ? colon + 1 : what;
            rest += strspn(rest, " ");
            sl_fail(err, SL_ERR_COMPILE, "%.*s:%.*s: %.*s", (int)(open - line), line, (int)(mark - open - 1), open + 1,
                    (int)(n - (size_t)(rest - line) < 600 ? n - (size_t)(rest - line) : 600), rest);
            return;
        }
        line += n + (line[n] == '\n');
    }
    sl_fail(err, SL_ERR_COMPILE, "%s: %.*s", name, (int)strcspn(text, "\n"), text);
}

static void log_lines(gpu_device *d, sl_log_level level, const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n)
            sl_logf(&d->base.log, level, "nvrtc: %.*s", (int)(n < 1000 ? n : 1000), text);
        text += n + (text[n] == '\n');
    }
}

/* Allocated; NULL: none. */
static char *log_of(gpu_device *d, nvrtc_program p) {
    size_t size = 0;
    char *text = d->api.nvrtc.log_size(p, &size) == 0 && size > 1 ? calloc(1, size + 1) : NULL;
    if (text && d->api.nvrtc.log(p, text) != 0)
        text[0] = 0;
    return text;
}

/* ---- compiling ----------------------------------------------------------------------------------------------------
 */

static bool take_image(gpu_device *d, nvrtc_program p, const cuda_unit *u, sl_buf *image, sl_error *err) {
    size_t size = 0;
    int r = d->assembles ? d->api.nvrtc.code_size(p, &size) : d->api.nvrtc.text_size(p, &size);
    char *bytes = r == 0 && size ? malloc(size) : NULL;
    if (bytes)
        r = d->assembles ? d->api.nvrtc.code(p, bytes) : d->api.nvrtc.text(p, bytes);
    bool ok = bytes && r == 0;
    if (ok)
        sl_buf_append(image, bytes, size);
    free(bytes);
    if (!ok || image->failed)
        return sl_fail(err, r ? SL_ERR_DEVICE : SL_ERR_MEMORY, "%s: NVRTC hands out no code (result %d, %zu bytes)",
                       u->name, r, size);
    return true;
}

static bool run_compiler(gpu_device *d, nvrtc_program p, const cuda_unit *u, sl_buf *image, sl_error *err) {
    options o;
    make_options(&o, d, u);
    int r = d->api.nvrtc.compile(p, o.count, o.list);
    char *text = log_of(d, p);
    if (text)
        log_lines(d, r ? SL_LOG_INFO : SL_LOG_DEBUG, text);
    if (r && text && *text)
        fail_diagnostic(err, u->name, text);
    else if (r)
        sl_fail(err, SL_ERR_COMPILE, "%s: NVRTC fails with result %d and says nothing", u->name, r);
    free(text);
    return r == 0 && (!image || take_image(d, p, u, image, err));
}

bool cuda_nvrtc(gpu_device *d, const cuda_unit *u, sl_buf *image, sl_error *err) {
    nvrtc_program p = NULL;
    int r = d->api.nvrtc.create(&p, u->code, u->name, 0, NULL, NULL);
    if (r != 0)
        return sl_fail(err, SL_ERR_DEVICE, "%s: NVRTC makes no program (result %d)", u->name, r);
    bool ok = run_compiler(d, p, u, image, err);
    d->api.nvrtc.destroy(&p);
    return ok;
}
