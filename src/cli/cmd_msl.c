/* sluice msl: kernels in Metal Shading Language on any machine: what a file holds, running one, and the stages one
 * goes through. */
#include "cli.h"

#include "sluice/gpu.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEFINES = 64 };
#define MOST_SOURCE (16ull << 20)

static void on_log(void *user, sl_log_level level, const char *line) {
    (void)user;
    (void)level;
    cli_note("%s", line);
}

sl_gpu *cli_msl_open(const cli_args *a, sl_error *err) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = a->device ? a->device : "soft";
    o.check = strncmp(o.device, "soft", 4) == 0 && !a->no_check;
    o.seed = a->seed;
    o.log = on_log;
    o.log_level = a->log_level;
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
    char *copy[MOST_DEFINES] = {NULL};
    size_t n, count = a->defines.count;
    if (count > MOST_DEFINES) {
        sl_fail(err, SL_ERR_ARGUMENT, "more than %d definitions", MOST_DEFINES);
        return NULL;
    }
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
        o.include_dirs = a->includes.items;
        o.include_count = a->includes.count;
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

/* A kernel whose constants have no values cannot be made, which is no fault of the file. */
static void check_kernel(sl_gpu_library *l, const char *entry) {
    sl_error err = {0};
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(l, entry, NULL, 0, &err);
    sl_gpu_pipeline_info info = {.size = sizeof info};
    if (!p) {
        cli_put(entry, strlen(entry));
        cli_put(": ", 2);
        cli_put(err.message, strlen(err.message));
        cli_put("\n", 1);
        return;
    }
    sl_gpu_pipeline_get_info(p, &info);
    print_kernel(&info);
    sl_gpu_pipeline_free(p);
}

static int msl_check(const cli_args *a) {
    sl_error err = {0};
    sl_gpu *g = cli_msl_open(a, &err);
    sl_gpu_library *l = g ? cli_msl_compile(g, a, a->operand[1], &err) : NULL;
    for (size_t i = 0; l && i < sl_gpu_library_count(l); i++)
        check_kernel(l, sl_gpu_library_entry(l, i));
    bool ok = l != NULL;
    sl_gpu_library_free(l);
    sl_gpu_close(g);
    return ok ? CLI_OK : cli_report(&err);
}

int cli_msl(const cli_args *a) {
    static const struct {
        const char *name;
        int operands; /* at least */
        int (*run)(const cli_args *a);
    } what[] = {{"check", 2, msl_check}, {"run", 2, cli_msl_run}, {"trace", 1, cli_msl_trace}};
    for (size_t i = 0; i < SL_COUNT(what); i++) {
        if (strcmp(a->operand[0], what[i].name) != 0)
            continue;
        if (a->operands < what[i].operands)
            return cli_complain(CLI_USAGE, "msl %s: a FILE.metal is missing", what[i].name);
        return what[i].run(a);
    }
    return cli_complain(CLI_USAGE, "msl %s: expected check, run or trace", a->operand[0]);
}
