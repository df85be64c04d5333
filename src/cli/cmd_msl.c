/* sluice msl: kernels in Metal Shading Language on any machine: what a file holds, running one, and the stages one
 * goes through. */
#include "cli.h"

#include "sluice/gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEFINES = 64, MOST_DIRS = 64, SHOWN_LINES = 32 };
#define MOST_SOURCE (16ull << 20)

/* What the device's log has shown: the same comes again, as the reason why a list failed and as a call's error. */
static struct {
    pthread_mutex_t lock;
    char line[SHOWN_LINES][512];
    size_t count;
    bool quiet;
} shown = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The line, or what follows "list 'run' failed: " in it. The lock is held. */
static bool was_shown(const char *line) {
    size_t n = strlen(line);
    for (size_t i = 0; i < SHOWN_LINES && i < shown.count; i++) {
        size_t m = strlen(shown.line[i]);
        if (m > 0 && m <= n && strcmp(line + n - m, shown.line[i]) == 0)
            return true;
    }
    return false;
}

static void on_log(void *user, sl_log_level level, const char *line) {
    (void)user;
    (void)level;
    pthread_mutex_lock(&shown.lock);
    bool again = was_shown(line), fits = strlen(line) < sizeof shown.line[0];
    if (!again && fits && !shown.quiet)
        memcpy(shown.line[shown.count++ % SHOWN_LINES], line, strlen(line) + 1);
    pthread_mutex_unlock(&shown.lock);
    if (!again)
        cli_note("%s", line);
}

int cli_msl_report(const sl_error *err) {
    pthread_mutex_lock(&shown.lock);
    bool again = was_shown(err->message);
    pthread_mutex_unlock(&shown.lock);
    return again ? CLI_FAILED : cli_report(err);
}

sl_gpu *cli_msl_open(const cli_args *a, sl_error *err) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = a->device ? a->device : "soft";
    o.check = strncmp(o.device, "soft", 4) == 0 && !a->no_check;
    o.seed = a->seed;
    o.log = on_log;
    o.log_level = a->log_level;
    shown.quiet = a->quiet;
    return sl_gpu_open(&o, err);
}

/* "NAME" or "NAME=VALUE", split in place in *copy. */
static void split_define(char *copy, sl_gpu_define *out) {
    char *value = strchr(copy, '=');
    if (value)
        *value = 0;
    *out = (sl_gpu_define){copy, value ? value + 1 : NULL};
}

sl_gpu_library *cli_msl_compile(sl_gpu *g, const cli_args *a, const char *file, sl_error *err) {
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    sl_gpu_define defines[MOST_DEFINES];
    const char *dirs[MOST_DIRS + 1] = {"."};
    char *copy[MOST_DEFINES] = {NULL};
    size_t n, count = a->defines.count;
    if (count > MOST_DEFINES) {
        sl_fail(err, SL_ERR_ARGUMENT, "more than %d definitions", MOST_DEFINES);
        return NULL;
    }
    if (a->includes.count > MOST_DIRS) {
        sl_fail(err, SL_ERR_ARGUMENT, "more than %d directories for #include", MOST_DIRS);
        return NULL;
    }
    /* A name with a directory says where its neighbours are; one without is here. */
    size_t here = strchr(file, '/') == NULL;
    for (size_t i = 0; i < a->includes.count; i++)
        dirs[here + i] = a->includes.items[i];
    sl_gpu_library *l = NULL;
    char *source = cli_read_input(file, MOST_SOURCE, &n, err);
    bool ok = source != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        copy[i] = sl_strdup(a->defines.items[i]);
        ok = copy[i] || sl_fail(err, SL_ERR_MEMORY, "out of memory");
        if (ok)
            split_define(copy[i], &defines[i]);
    }
    if (ok) {
        o.name = file;
        o.defines = defines;
        o.define_count = count;
        o.include_dirs = dirs;
        o.include_count = here + a->includes.count;
        l = sl_gpu_library_new(g, source, n, &o, err);
    }
    for (size_t i = 0; i < count; i++)
        free(copy[i]);
    free(source);
    return l;
}

/* ---- check ------------------------------------------------------------------------------------------------------- */

static void print_kernel(const sl_gpu_pipeline_info *info) {
    static const char *const kinds[] = {[SL_GPU_ARG_READ] = "read",
                                        [SL_GPU_ARG_WRITE] = "written",
                                        [SL_GPU_ARG_BYTES] = "reference",
                                        [SL_GPU_ARG_THREADGROUP] = "threadgroup memory"};
    sl_buf out = {0};
    sl_buf_printf(&out, "%s: at most %u threads", info->entry, info->max_threads);
    if (info->threadgroup_memory)
        sl_buf_printf(&out, ", %u bytes of threadgroup memory of its own", info->threadgroup_memory);
    sl_buf_puts(&out, "\n");
    for (size_t i = 0; i < info->arg_count; i++) {
        const sl_gpu_arg *arg = &info->args[i];
        bool threadgroup = arg->kind == SL_GPU_ARG_THREADGROUP;
        sl_buf_printf(&out, "  %-11s %2d  %-24s %s, elements of %u bytes%s\n", threadgroup ? "threadgroup" : "buffer",
                      arg->slot, arg->name, kinds[arg->kind], arg->least, arg->unused ? ", unused" : "");
    }
    if (!out.failed)
        cli_put(out.data, out.size);
    sl_buf_free(&out);
}

static bool check_kernel(sl_gpu_library *l, const char *entry) {
    sl_error err = {0};
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(l, entry, NULL, 0, &err);
    sl_gpu_pipeline_info info = {.size = sizeof info};
    if (!p) {
        cli_msl_report(&err);
        return false;
    }
    sl_gpu_pipeline_get_info(p, &info);
    print_kernel(&info);
    sl_gpu_pipeline_free(p);
    return true;
}

static int msl_check(const cli_args *a) {
    sl_error err = {0};
    sl_gpu *g = cli_msl_open(a, &err);
    sl_gpu_library *l = g ? cli_msl_compile(g, a, a->operand[1], &err) : NULL;
    int status = l ? CLI_OK : cli_msl_report(&err);
    for (size_t i = 0; l && i < sl_gpu_library_count(l); i++)
        if (!check_kernel(l, sl_gpu_library_entry(l, i)))
            status = CLI_FAILED;
    if (l && sl_gpu_library_count(l) == 0)
        cli_note("%s: no kernel that could run", a->operand[1]);
    sl_gpu_library_free(l);
    sl_gpu_close(g);
    return status;
}

int cli_msl(const cli_args *a) {
    static const struct {
        const char *name;
        int least, most; /* operands */
        int (*run)(const cli_args *a);
    } what[] = {{"check", 2, 2, msl_check}, {"run", 2, 3, cli_msl_run}, {"trace", 1, 1, cli_msl_trace}};
    for (size_t i = 0; i < SL_COUNT(what); i++) {
        if (strcmp(a->operand[0], what[i].name) != 0)
            continue;
        if (a->operands < what[i].least)
            return cli_complain(CLI_USAGE, "msl %s: a FILE.metal is missing", what[i].name);
        if (a->operands > what[i].most)
            return cli_complain(CLI_USAGE, "msl %s: '%s' is one word too many", what[i].name, a->operand[what[i].most]);
        return what[i].run(a);
    }
    return cli_complain(CLI_USAGE, "msl %s: expected check, run or trace", a->operand[0]);
}
