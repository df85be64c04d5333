/* sluice doctor: measures the machine under a model, keeps how its disk is read fastest, and says what will be used,
 * why, and what hurts. */
#include "cli.h"

#include "sluice/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { WARNINGS = 16, LOCKED_LITTLE = 64 << 20 };
#define HARD_DISK 4e8 /* bytes per second that no hard disk reaches */

typedef struct doctor {
    const cli_args *args;
    bool has_model, measured;
    sl_engine_info info;
    sl_calibrate_result disk, mirror; /* mirror: with --mirror */
    double memory_one, memory_all;    /* bytes per second */
    bool beyond_caches;
    int cores;
    uint64_t limit, physical;
    char gpu[512]; /* its name, or why there is none */
    bool has_gpu;
    char warning[WARNINGS][320];
    int warnings;
} doctor;

static void warn(doctor *d, const char *fmt, ...) SL_PRINTF(2, 3);
static void warn(doctor *d, const char *fmt, ...) {
    va_list args;
    if (d->warnings == WARNINGS)
        return;
    va_start(args, fmt);
    vsnprintf(d->warning[d->warnings++], sizeof *d->warning, fmt, args);
    va_end(args);
}

/* ---- what hurts -------------------------------------------------------------------------------------------------- */

static bool on_path(const char *program) {
    const char *path = getenv("PATH");
    char *copy = path ? sl_strdup(path) : NULL;
    bool found = false;
    for (char *save = NULL, *dir = copy ? strtok_r(copy, ":", &save) : NULL; dir && !found;
         dir = strtok_r(NULL, ":", &save)) {
        char *file = sl_path_join(dir, program);
        found = file && access(file, X_OK) == 0;
        free(file);
    }
    free(copy);
    return found;
}

/* Recorded machines, for tests. */
static const char *system_root(void) {
    return getenv("SLUICE_SYSTEM_ROOT");
}

static bool huge_pages_off(void) {
    const char *root = system_root();
    char *path = sl_asprintf("%s/sys/kernel/mm/transparent_hugepage/enabled", root ? root : "");
    size_t size;
    char *text = path && sl_path_exists(path) ? sl_read_text(path, 4096, &size, NULL) : NULL;
    bool off = text && strstr(text, "[never]");
    free(text);
    free(path);
    return off;
}

static void warn_of_disk(doctor *d) {
    const sl_calibrate_result *r = &d->disk;
    if (!r->direct_possible)
        warn(d, "%s (%s) refuses O_DIRECT: reads go through the page cache, which costs copies and memory",
             r->mount[0] ? r->mount : "this file system", r->type[0] ? r->type : "of unknown type");
    if (r->network)
        warn(d, "%s is a network file system (%s): a local disk is several times as fast", r->mount, r->type);
    if (r->rotational == 1 && r->chosen.rate < HARD_DISK) /* virtual disks say so too */
        warn(d, "%s is a hard disk: far too slow for experts", r->source);
    if (r->in_memory)
        warn(d, "%s (%s) lies in memory: the model's files take the memory that experts need", r->mount, r->type);
    if (!r->finished)
        warn(d, "the disk is so slow that not everything was measured: the rest is as usual");
    if (!r->stored[0])
        warn(d, "the result was not kept: %s", r->store_error.message);
}

static void warn_of_machine(doctor *d) {
    struct rlimit lock;
    char a[16], b[16];
    if (d->has_model && d->limit < d->info.least_memory)
        warn(d, "this process may use %s, the model's least is %s: it does not run here", cli_size(d->limit, a),
             cli_size(d->info.least_memory, b));
    if (d->limit < d->physical / 2)
        warn(d, "a memory group limits this process to %s of the machine's %s", cli_size(d->limit, a),
             cli_size(d->physical, b));
    if (geteuid() != 0 && getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur < LOCKED_LITTLE)
        warn(d, "RLIMIT_MEMLOCK is %s: io_uring cannot keep experts' memory registered, reads cost more processor time",
             cli_size(lock.rlim_cur, a));
    if (huge_pages_off())
        warn(d, "transparent huge pages are off: large reads take the disk more requests");
    if (!on_path("clang++"))
        warn(d, "no clang++ on PATH: 'sluice msl' and --device soft do not work");
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static bool go_on(void *user) {
    return !cli_interrupted();
}

static void find_gpu(doctor *d) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    sl_gpu_info info = {.size = sizeof info};
    sl_error err = {0};
    o.cache_dir = "";
    sl_gpu *g = sl_gpu_open(&o, &err);
    d->has_gpu = g != NULL;
    if (!g) {
        snprintf(d->gpu, sizeof d->gpu, "%.*s", (int)sizeof d->gpu - 1, err.message);
        return;
    }
    sl_gpu_get_info(g, &info);
    snprintf(d->gpu, sizeof d->gpu, "%s (%s, %s)", info.name, info.device, info.family);
    sl_gpu_close(g);
}

static bool measure_memory(doctor *d, sl_error *err) {
    cli_machine_rates one = {0}, all = {0};
    uint64_t spare = cli_spare_memory(0) / 2;
    cli_status("measuring memory");
    if (!cli_measure_memory_read(1, spare, &one, err) || !cli_measure_memory_read(d->cores, spare, &all, err))
        return false;
    d->memory_one = one.memory_read;
    d->memory_all = all.memory_read;
    d->beyond_caches = all.beyond_caches;
    return true;
}

/* Two disks share the time. */
static bool measure_mirror(doctor *d, const sl_engine *e, sl_calibrate_options *o, sl_error *err) {
    o->mirror = true;
    d->mirror.size = sizeof d->mirror;
    cli_status("measuring the mirror's disk");
    return sl_calibrate(o, &d->mirror, err);
}

static bool measure_disk(doctor *d, const sl_engine *e, sl_error *err) {
    enum { SHARED_SECONDS = 2 };
    bool two = d->info.mirror[0];
    sl_calibrate_options o = SL_CALIBRATE_OPTIONS_INIT;
    o.seconds = two ? SHARED_SECONDS : 0;
    o.engine = e;
    o.directory = e ? NULL : d->args->operand[0];
    o.system_root = system_root();
    o.progress = go_on;
    d->disk.size = sizeof d->disk;
    d->measured = true;
    cli_status("measuring the disk");
    return sl_calibrate(&o, &d->disk, err) && (!two || measure_mirror(d, e, &o, err));
}

static bool measure(doctor *d, const sl_engine *e, sl_error *err) {
    d->cores = sl_cpu_count();
    d->limit = sl_memory_limit(NULL);
    d->physical = sl_physical_memory();
    find_gpu(d);
    return measure_memory(d, err) && ((e && d->info.experts == 0) || measure_disk(d, e, err));
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

static void print_way(const char *what, const sl_read_way *w) {
    char piece[16];
    printf("%-9s %-6s %-8s %4d %-9s pieces of %-8s %6.2f GB/s", what, w->reader, w->direct ? "O_DIRECT" : "buffered",
           w->depth, strcmp(w->reader, "pread") == 0 ? "threads," : "in queue,", cli_size(w->piece, piece),
           w->rate / 1e9);
    if (w->rounds > 1)
        printf("  (%.2f to %.2f)", w->least / 1e9, w->most / 1e9);
    printf("\n");
}

static bool same_way(const sl_read_way *a, const sl_read_way *b) {
    return strcmp(a->reader, b->reader) == 0 && a->direct == b->direct && a->depth == b->depth && a->piece == b->piece;
}

static void print_disk(const doctor *d, const char *name, const sl_calibrate_result *r) {
    char size[16];
    printf("%-9s %s, %s on %s\n", name, r->source[0] ? r->source : "unknown", r->type[0] ? r->type : "?",
           r->mount[0] ? r->mount : "?");
    printf("          %s, reads of %s on average:\n", d->has_model ? "this model's experts" : "random bytes",
           cli_size(r->read_bytes, size));
    for (int i = 0; i < r->way_count; i++)
        print_way("", &r->ways[i]);
    for (int i = 0; i < r->size_count; i++)
        printf("          single reads of %-8s %6.2f GB/s one at a time, %6.2f GB/s %d at a time\n",
               cli_size(r->sizes[i].bytes, size), r->sizes[i].alone / 1e9, r->sizes[i].deep / 1e9, r->chosen.depth);
    printf("          from the page cache: %.2f GB/s on one thread\n", r->cached_rate / 1e9);
}

static void print_choice(const sl_calibrate_result *r) {
    print_way("use", &r->chosen);
    if (same_way(&r->usual, &r->chosen))
        printf("          This is the default: nothing else was clearly faster (by 5 %% and in more than a lucky "
               "round).\n");
    else
        printf("          It was read %.0f %% faster than with the default (%s, %s, %d, %.2f GB/s), in interleaved "
               "rounds.\n",
               r->usual.rate > 0 ? 100 * (r->chosen.rate / r->usual.rate - 1) : 0, r->usual.reader,
               r->usual.direct ? "O_DIRECT" : "buffered", r->usual.depth, r->usual.rate / 1e9);
    printf("          %s\n", r->chosen.direct
                                 ? "Reads pass by the page cache: memory is spent on experts, not on copies of files."
                                 : "Reads go through the page cache, and what was read is dropped from it.");
    printf("          Guessing ahead (--prefetch auto) is measured anew in every run.\n");
    if (r->stored[0])
        printf("          Kept in %s for every model on this disk; --reader, --read-depth,\n"
               "          --read-piece and --direct force another.\n",
               r->stored);
}

static int print_table(const doctor *d) {
    char a[16], b[16];
    printf("machine   %d cores, %s of memory of which this process may use %s\n", d->cores, cli_size(d->physical, a),
           cli_size(d->limit, b));
    printf("          memory reads %.1f GB/s on one thread, %.1f GB/s on %d%s\n", d->memory_one / 1e9,
           d->memory_all / 1e9, d->cores, d->beyond_caches ? "" : " (within the caches: too good)");
    printf("gpu       %s%s\n", d->has_gpu ? "" : "none: ", d->gpu);
    if (d->has_model)
        printf("model     %s: least memory %s\n", d->info.path, cli_size(d->info.least_memory, a));
    if (d->measured) {
        print_disk(d, "disk", &d->disk);
        print_choice(&d->disk);
        if (d->mirror.chosen.rate > 0) {
            print_disk(d, "mirror", &d->mirror);
            print_choice(&d->mirror);
        }
    } else {
        printf("disk      not measured: a dense model, nothing of it is read while it runs\n");
    }
    for (int i = 0; i < d->warnings; i++)
        printf("warning   %s\n", d->warning[i]);
    return CLI_OK;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *way_json(const sl_read_way *w) {
    return json_pack("{s:s, s:b, s:i, s:I, s:f, s:f, s:f, s:i}", "reader", w->reader, "direct", w->direct, "depth",
                     w->depth, "piece_bytes", (json_int_t)w->piece, "bytes_per_second", w->rate, "least", w->least,
                     "most", w->most, "rounds", w->rounds);
}

static json_t *disk_json(const sl_calibrate_result *r) {
    json_t *ways = json_array(), *sizes = json_array();
    for (int i = 0; i < r->way_count; i++)
        json_array_append_new(ways, way_json(&r->ways[i]));
    for (int i = 0; i < r->size_count; i++)
        json_array_append_new(sizes, json_pack("{s:I, s:f, s:f}", "bytes", (json_int_t)r->sizes[i].bytes, "alone",
                                               r->sizes[i].alone, "deep", r->sizes[i].deep));
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:i, s:b, s:b, s:I, s:f, s:o, s:o, s:o, s:o, s:s}", "source", r->source,
                     "type", r->type, "mount", r->mount, "network", r->network, "in_memory", r->in_memory, "rotational",
                     r->rotational, "direct_possible", r->direct_possible, "finished", r->finished, "read_bytes",
                     (json_int_t)r->read_bytes, "cached_bytes_per_second", r->cached_rate, "usual", way_json(&r->usual),
                     "chosen", way_json(&r->chosen), "tried", ways, "sizes", sizes, "stored", r->stored);
}

static int print_document(const doctor *d) {
    json_t *warnings = json_array();
    for (int i = 0; i < d->warnings; i++)
        json_array_append_new(warnings, json_string(d->warning[i]));
    json_t *machine =
        json_pack("{s:i, s:I, s:I, s:f, s:f, s:b, s:s, s:b}", "cores", d->cores, "memory", (json_int_t)d->physical,
                  "limit", (json_int_t)d->limit, "memory_read_one_thread", d->memory_one, "memory_read", d->memory_all,
                  "beyond_caches", d->beyond_caches, "gpu", d->gpu, "has_gpu", d->has_gpu);
    return cli_print_json(json_pack(
        "{s:o, s:o, s:o, s:o, s:o}", "machine", machine, "model", d->has_model ? cli_info_json(&d->info) : json_null(),
        "disk", d->measured ? disk_json(&d->disk) : json_null(), "mirror",
        d->mirror.chosen.rate > 0 ? disk_json(&d->mirror) : json_null(), "warnings", warnings));
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* A directory that nobody would take for a model. */
static bool is_plain_directory(const char *path) {
    static const char *const marks[] = {"config.json", "pack.json"};
    bool model = !sl_path_is_dir(path);
    for (size_t i = 0; i < SL_COUNT(marks) && !model; i++) {
        char *file = sl_path_join(path, marks[i]);
        model = file && sl_path_exists(file);
        free(file);
    }
    return !model;
}

static int doctor_with(const cli_args *a, const sl_engine *e) {
    sl_error err = {0};
    doctor *d = calloc(1, sizeof *d);
    if (!d)
        return cli_complain(CLI_FAILED, "out of memory");
    d->args = a;
    d->has_model = e != NULL;
    if (e)
        cli_get_info(e, &d->info);
    cli_interrupt_begin(true);
    bool ok = measure(d, e, &err);
    cli_interrupt_end();
    cli_status_clear();
    if (ok && d->measured)
        warn_of_disk(d);
    if (ok)
        warn_of_machine(d);
    int status = ok ? (a->json ? print_document(d) : print_table(d)) : cli_report(&err);
    free(d);
    return !ok && err.code == SL_ERR_CANCELLED ? CLI_INTERRUPTED : status;
}

int cli_doctor(const cli_args *a) {
    sl_error err = {0};
    if (is_plain_directory(a->operand[0]))
        return doctor_with(a, NULL);
    sl_engine *e = cli_open(a, true, &err);
    if (!e)
        return cli_report(&err);
    int status = doctor_with(a, e);
    cli_close(a, e);
    return status;
}
