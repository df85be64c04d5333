/* sluice synth: a checkpoint of a published shape with random weights, for benchmarks and tests. */
#include "cli.h"
#include "synth.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

bool synth_progress(synth_job *job, int64_t elements) {
    job->done += (uint64_t)elements;
    cli_progress("writing", synth_bytes(job->format, job->done), synth_bytes(job->format, job->total), true);
    return !cli_interrupted();
}

/* "mlx4", "mlx-mxfp4", or a format's name and "-gguf". */
bool synth_find_format(const char *name, synth_format *out, sl_error *err) {
    char gguf[24];
    size_t n = strlen(name), end = strlen("-gguf");
    *out = (synth_format){.mlx = strncmp(name, "mlx", 3) == 0, .group = 64};
    if (strcmp(name, "mlx-mxfp4") == 0) {
        out->format = SL_MXFP4_SPLIT;
        out->group = 32;
        return true;
    }
    if (out->mlx)
        return sl_affine_by_bits(atoi(name + 3), &out->format) ||
               sl_fail(err, SL_ERR_ARGUMENT, "--format %s: no such width", name);
    snprintf(gguf, sizeof gguf, "%.*s", n > end ? (int)(n - end) : 0, name);
    const sl_format *f = sl_format_by_name(gguf, &out->format);
    return (f && synth_has_blocks(out->format)) ||
           sl_fail(err, SL_ERR_ARGUMENT, "--format %s: synth cannot write this format", name);
}

uint64_t synth_bytes(const synth_format *f, uint64_t n) {
    const sl_format *row = sl_format_get(f->format);
    uint64_t per_group = row->parts == 3 ? 4 : row->parts == 2 ? 1 : 0;
    return n / row->block_weights * row->block_bytes + (per_group ? n / (uint64_t)f->group * per_group : 0);
}

static int list_shapes(void) {
    for (const synth_shape *s = synth_shapes; s->name; s++)
        printf("%-20s %-11s %3d layers, hidden %5d, %4d experts, %d per token   %s\n", s->name, s->arch, s->layers,
               s->hidden, s->experts, s->top_k, s->note);
    return CLI_OK;
}

static const char *shape_name(const void *ctx, int i) {
    return synth_shapes[i].name;
}

/* SHAPE OUT, or --like SHAPE OUT. */
typedef struct wish {
    const char *shape, *out;
} wish;

static bool read_wish(const cli_args *a, wish *w) {
    *w = (wish){a->like ? a->like : a->operand[0], a->operand[a->like ? 0 : 1]};
    return a->operands == (a->like ? 1 : 2);
}

static bool choose_shape(const cli_args *a, const char *name, synth_shape *shape, sl_error *err) {
    const synth_shape *s = synth_find_shape(name);
    if (!s) {
        const char *near = cli_nearest(name, shape_name, NULL);
        return sl_fail(err, SL_ERR_ARGUMENT, "unknown shape '%s'; %s%s'sluice synth list' shows them", name,
                       near ? near : "", near ? " is near; " : "");
    }
    *shape = *s;
    if (a->layers > 0)
        shape->layers = a->layers;
    if (shape->interval > shape->layers)
        return sl_fail(err, SL_ERR_ARGUMENT, "--layers %d: of %s every %d layers have one of attention, %d or more",
                       a->layers, s->name, shape->interval, shape->interval);
    if (a->experts > 0)
        shape->experts = a->experts;
    return shape->experts >= shape->top_k ||
           sl_fail(err, SL_ERR_ARGUMENT, "--experts %d: a token of %s asks for %d", a->experts, s->name, s->top_k);
}

bool synth_replaceable(const char *path, sl_error *err) {
    struct stat st;
    return stat(path, &st) != 0 || S_ISREG(st.st_mode) ||
           sl_fail(err, SL_ERR_ARGUMENT, "%s is %s: only a regular file is overwritten", path,
                   S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
}

static bool check_target(const cli_args *a, const char *path, bool mlx, sl_error *err) {
    char *config = mlx ? sl_path_join(path, "config.json") : NULL;
    bool there = mlx ? (sl_path_exists(path) && !sl_path_is_dir(path)) || (config && sl_path_exists(config))
                     : sl_path_exists(path);
    free(config);
    if (!mlx && !synth_replaceable(path, err))
        return false;
    char *ids = synth_is_skewed(a->skew) ? synth_skew_path(path) : NULL;
    bool ids_there = ids && sl_path_exists(ids), ok = !ids || synth_replaceable(ids, err);
    if (ok && ids_there && !a->force)
        ok = sl_fail(err, SL_ERR_ARGUMENT, "%s is there already; --force overwrites it", ids);
    free(ids);
    if (!ok)
        return false;
    return !there || a->force || sl_fail(err, SL_ERR_ARGUMENT, "%s is there already; --force overwrites it", path);
}

/* Better now than after minutes of writing. */
static bool check_space(const char *path, uint64_t need, sl_error *err) {
    struct statvfs fs;
    char *dir = sl_strdup(path), *slash = dir ? strrchr(dir, '/') : NULL, a[16], b[16];
    if (slash)
        slash[slash == dir] = 0;
    bool known = dir && statvfs(slash ? dir : ".", &fs) == 0;
    free(dir);
    uint64_t free_bytes = known ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
    return need <= free_bytes || sl_fail(err, SL_ERR_IO, "%s: needs %s, the disk has %s free", path, cli_size(need, a),
                                         cli_size(free_bytes, b));
}

static bool synthesize(const cli_args *a, const char *out, const synth_shape *shape, const synth_format *format,
                       int *fallbacks, sl_error *err) {
    synth_tokenizer tokenizer = {0};
    synth_random random = {0};
    synth_job job = {.shape = shape, .format = format, .tokenizer = &tokenizer, .random = &random, .skew = a->skew};
    synth_tensor *tensors = synth_tensors(shape, format->mlx, &job.count, err);
    job.tensors = tensors;
    for (size_t i = 0; tensors && i < job.count; i++)
        job.total += (uint64_t)synth_elements(&tensors[i]);
    bool ok = tensors && check_space(out, synth_bytes(format, job.total), err) &&
              synth_tokenizer_open(&tokenizer, shape->vocab, err) &&
              synth_random_open(&random, a->seed, format->format, err) && synth_skew_open(&job, err);
    ok = ok && (format->mlx ? synth_write_mlx(&job, out, err) : synth_write_gguf(&job, out, err)) &&
         synth_skew_ids(&job, out, err);
    cli_status_clear();
    synth_skew_close(&job);
    *fallbacks = job.fallbacks;
    synth_random_close(&random);
    synth_tokenizer_close(&tokenizer);
    free(tensors);
    return ok;
}

int cli_synth(const cli_args *a) {
    sl_error err = {0};
    synth_shape shape;
    wish w;
    synth_format format;
    if (a->operands == 1 && strcmp(a->operand[0], "list") == 0)
        return list_shapes();
    if (!read_wish(a, &w))
        return cli_complain(CLI_USAGE, "'synth' needs a SHAPE (or --like SHAPE) and OUT; 'sluice synth list' shows the "
                                       "shapes");
    if (!choose_shape(a, w.shape, &shape, &err) || !synth_find_format(a->format, &format, &err) ||
        !check_target(a, w.out, format.mlx, &err) || !synth_skew_fits(&shape, a->skew, &err))
        return cli_complain(CLI_USAGE, "%s", err.message);
    cli_stop_begin();
    int fallbacks = 0;
    bool ok = synthesize(a, w.out, &shape, &format, &fallbacks, &err);
    bool interrupted = cli_interrupted();
    cli_interrupt_end();
    if (!ok && interrupted)
        cli_note("%s: stopped; %s", w.out,
                 format.mlx ? "what it has is not a model" : "nothing of it is left, and what was there is as it was");
    if (!ok)
        return interrupted ? cli_stop_status() : cli_report(&err);
    if (fallbacks)
        cli_note("%d matrices are Q8_0: their rows do not divide into blocks of %u, which %s has", fallbacks,
                 sl_format_get(format.format)->block_weights, sl_format_get(format.format)->name);
    cli_note("%s: %s with random weights (seed %llu)%s", w.out, shape.name, (unsigned long long)a->seed,
             synth_is_skewed(a->skew) ? ", and ids to force beside it (.ids.json)" : "");
    return CLI_OK;
}
