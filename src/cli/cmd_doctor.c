/* sluice doctor: measures the machine under a model, keeps how its disk is read fastest, and says what will be used,
 * why, and what hurts. */
#include "cli.h"

#include "sluice/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { WARNINGS = 16, LOCKED_LITTLE = 64 << 20 };
#define HARD_DISK 4e8 /* bytes per second that no hard disk reaches */
#define BUSY      0.9
/* All of it ends within ten seconds; a measurement that is under way is not cut off. */
#define ALL_NS UINT64_C(9000000000)

typedef struct doctor {
    const cli_args *args;
    bool has_model, measured;
    sl_engine_info info;
    uint64_t end;                     /* when it should be over */
    sl_calibrate_result disk, mirror; /* mirror: with --mirror */
    sl_machine machine;
    sl_error machine_error; /* why that is not kept */
    bool beyond_caches;
    uint64_t limit;
    char gpu[512]; /* its name, or why there is none */
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

/* A model's small experts come slowly from any disk. */
static double best_rate(const sl_calibrate_result *r) {
    double best = r->chosen.rate;
    for (int i = 0; i < r->size_count; i++)
        best = r->sizes[i].deep > best ? r->sizes[i].deep : best;
    return best;
}

static void warn_of_disk(doctor *d, const sl_calibrate_result *r) {
    if (!r->direct_possible)
        warn(d, "%s (%s) refuses O_DIRECT: reads go through the page cache, which costs copies and memory",
             r->mount[0] ? r->mount : "this file system", r->type[0] ? r->type : "of unknown type");
    if (r->network)
        warn(d, "%s is a network file system (%s): a local disk is several times as fast", r->mount, r->type);
    if (r->rotational == 1 && best_rate(r) < HARD_DISK) /* virtual disks say so too */
        warn(d, "%s is a hard disk: far too slow for experts", r->source);
    if (r->in_memory)
        warn(d, "%s (%s) lies in memory: the model's files take the memory that experts need", r->mount, r->type);
    if (!r->finished)
        warn(d, "%s is so slow, or the machine so busy, that not everything was measured: the rest is as usual",
             r->source[0] ? r->source : "the disk");
    if (!r->stored[0])
        warn(d, "the result was not kept: %s", r->store_error.message);
}

static void warn_of_mirror(doctor *d) {
    if (d->mirror.stored[0] && strcmp(d->mirror.stored, d->disk.stored) == 0)
        warn(d, "the mirror lies on the same disk: nothing will be faster for it");
    warn_of_disk(d, &d->mirror);
}

static void warn_of_machine(doctor *d) {
    const sl_machine *m = &d->machine;
    struct rlimit lock;
    char a[16], b[16];
    if (d->has_model && d->limit < d->info.least_memory)
        warn(d, "this process may use %s, the model's least is %s: it does not run here", cli_size(d->limit, a),
             cli_size(d->info.least_memory, b));
    if (d->limit < d->machine.memory / 2)
        warn(d, "a memory group limits this process to %s of the machine's %s", cli_size(d->limit, a),
             cli_size(d->machine.memory, b));
    if (!d->machine.stored[0] && d->beyond_caches)
        warn(d, "what was measured of the machine was not kept: %s", d->machine_error.message);
    if (m->rates[m->rate_count - 1].rate < BUSY * m->rates[0].rate)
        warn(d,
             "memory was read more slowly on %d threads than on one: other programs are busy, so measure again later",
             m->cores);
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
    if (!g) {
        snprintf(d->gpu, sizeof d->gpu, "%.*s", (int)sizeof d->gpu - 1, err.message);
        return;
    }
    sl_gpu_get_info(g, &info);
    snprintf(d->gpu, sizeof d->gpu, "%s (%s, %s)", info.name, info.device, info.family);
    snprintf(d->machine.gpu, sizeof d->machine.gpu, "%s", info.name);
    sl_gpu_close(g);
    if (!info.unified && !cli_measure_copy(info.device, &d->machine.gpu_copy, &err))
        warn(d, "%s: copies to its memory could not be measured: %s", info.name, err.message);
}

/* On one thread, two, four, ... and on all cores. */
static int list_threads(int cores, int threads[SL_MEMORY_RATES]) {
    int n = 0;
    for (int t = 1; t < cores && n < SL_MEMORY_RATES - 1; t *= 2)
        threads[n++] = t;
    threads[n++] = cores;
    return n;
}

static bool measure_memory(doctor *d, sl_error *err) {
    sl_machine *m = &d->machine;
    int threads[SL_MEMORY_RATES], n = list_threads(m->cores, threads);
    double rates[SL_MEMORY_RATES];
    cli_status("measuring memory");
    if (!cli_measure_memory_rates(threads, n, cli_spare_memory(0) / 2, rates, &d->beyond_caches, err))
        return false;
    m->measured = (int64_t)time(NULL);
    m->rate_count = n;
    for (int i = 0; i < n; i++)
        m->rates[i] = (sl_memory_rate){threads[i], rates[i]};
    return true;
}

/* What caches gave is too good to be kept. */
static bool measure_machine(doctor *d, sl_error *err) {
    d->machine = (sl_machine)SL_MACHINE_INIT;
    sl_machine_look("", system_root(), &d->machine, NULL);
    find_gpu(d);
    if (!measure_memory(d, err))
        return false;
    if (d->beyond_caches)
        sl_machine_keep(NULL, system_root(), &d->machine, &d->machine_error);
    return true;
}

/* One of so many disks that are still to be measured: its share of the time that is left, of which the first may leave
 * some to the second. */
static bool measure_disk(doctor *d, sl_calibrate_options *o, int left, sl_calibrate_result *r, sl_error *err) {
    uint64_t now = sl_now_ns();
    o->seconds = now < d->end ? (double)(d->end - now) / 1e9 / left : 0;
    o->seconds = o->seconds < 1 ? 1 : o->seconds;
    r->size = sizeof *r;
    return sl_calibrate(o, r, err);
}

static bool measure_disks(doctor *d, const sl_engine *e, sl_error *err) {
    const char *mirror = d->args->mirror;
    sl_calibrate_options o = SL_CALIBRATE_OPTIONS_INIT;
    o.engine = e;
    o.directory = e ? NULL : d->args->operand[0];
    o.system_root = system_root();
    o.progress = go_on;
    d->measured = true;
    cli_status("measuring the disk");
    if (!measure_disk(d, &o, mirror ? 2 : 1, &d->disk, err))
        return false;
    if (!mirror)
        return true;
    cli_status("measuring the mirror's disk");
    o.mirror = e != NULL;
    o.directory = e ? NULL : mirror;
    return measure_disk(d, &o, 1, &d->mirror, err);
}

static bool measure(doctor *d, const sl_engine *e, sl_error *err) {
    d->limit = sl_memory_limit(NULL);
    return measure_machine(d, err) && ((e && d->info.experts == 0) || measure_disks(d, e, err));
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
    if (same_way(&r->usual, &r->chosen) && !r->finished)
        printf("          This is the default: time ran out before another was found and confirmed to be faster.\n");
    else if (same_way(&r->usual, &r->chosen))
        printf("          This is the default: nothing else was clearly faster (by 5 %% and in more than a lucky "
               "round).\n");
    else
        printf("          It was read %.0f %% faster than with the default (%s, %s, %d, %.2f GB/s), in interleaved "
               "rounds.\n",
               r->usual.rate > 0 ? 100 * (r->chosen.rate / r->usual.rate - 1) : 0, r->usual.reader,
               r->usual.direct ? "O_DIRECT" : "buffered", r->usual.depth, r->usual.rate / 1e9);
    printf("          Reads go %s.\n", r->cache_why);
    printf("          Guessing ahead (--prefetch auto) is measured anew in every run.\n");
    if (r->stored[0])
        printf("          Kept in %s for every model on this disk; --reader, --read-depth,\n"
               "          --read-piece and --direct force another.\n",
               r->stored);
}

static void print_machine(const doctor *d) {
    const sl_machine *m = &d->machine;
    char a[16], b[16];
    printf("machine   %s, %d cores, %s of memory of which this process may use %s\n", m->cpu, m->cores,
           cli_size(m->memory, a), cli_size(d->limit, b));
    printf("          memory reads");
    for (int i = 0; i < m->rate_count; i++)
        printf("%s %.1f GB/s on %d", i ? "," : "", m->rates[i].rate / 1e9, m->rates[i].threads);
    printf(" thread%s%s\n", m->cores > 1 ? "s" : "",
           d->beyond_caches ? "" : " (within the caches: too good, not kept)");
    printf("gpu       %s%s", m->gpu[0] ? "" : "none: ", d->gpu);
    if (m->gpu_copy > 0)
        printf(", its memory is filled at %.1f GB/s", m->gpu_copy / 1e9);
    printf("\n          %d threads compute, one per core: --threads forces another number\n", m->cores);
    if (m->stored[0])
        printf("          Kept in %s: 'sluice plan' goes by it.\n", m->stored);
}

static int print_table(const doctor *d) {
    char a[16];
    print_machine(d);
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
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:i, s:b, s:b, s:I, s:f, s:o, s:o, s:o, s:o, s:s, s:s}", "source",
                     r->source, "type", r->type, "mount", r->mount, "network", r->network, "in_memory", r->in_memory,
                     "rotational", r->rotational, "direct_possible", r->direct_possible, "finished", r->finished,
                     "read_bytes", (json_int_t)r->read_bytes, "cached_bytes_per_second", r->cached_rate, "usual",
                     way_json(&r->usual), "chosen", way_json(&r->chosen), "tried", ways, "sizes", sizes, "stored",
                     r->stored, "page_cache", r->cache_why);
}

static json_t *machine_json(const doctor *d) {
    const sl_machine *m = &d->machine;
    json_t *rates = json_array();
    for (int i = 0; i < m->rate_count; i++)
        json_array_append_new(
            rates, json_pack("{s:i, s:f}", "threads", m->rates[i].threads, "bytes_per_second", m->rates[i].rate));
    return json_pack("{s:s, s:i, s:I, s:I, s:f, s:f, s:o, s:b, s:s, s:b, s:f, s:s}", "cpu", m->cpu, "cores", m->cores,
                     "memory", (json_int_t)m->memory, "limit", (json_int_t)d->limit, "memory_read_one_thread",
                     m->rates[0].rate, "memory_read", m->rates[m->rate_count - 1].rate, "memory_rates", rates,
                     "beyond_caches", d->beyond_caches, "gpu", d->gpu, "has_gpu", m->gpu[0] != 0,
                     "gpu_copy_bytes_per_second", m->gpu_copy, "stored", m->stored);
}

static int print_document(const doctor *d) {
    json_t *warnings = json_array();
    for (int i = 0; i < d->warnings; i++)
        json_array_append_new(warnings, json_string(d->warning[i]));
    json_t *machine = machine_json(d);
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

static int doctor_with(const cli_args *a, const sl_engine *e, uint64_t end) {
    sl_error err = {0};
    doctor *d = calloc(1, sizeof *d);
    if (!d)
        return cli_complain(CLI_FAILED, "out of memory");
    d->args = a;
    d->end = end;
    d->has_model = e != NULL;
    if (e)
        cli_get_info(e, &d->info);
    cli_interrupt_begin(true);
    bool ok = measure(d, e, &err);
    cli_interrupt_end();
    cli_status_clear();
    if (ok && d->measured)
        warn_of_disk(d, &d->disk);
    if (ok && d->mirror.chosen.rate > 0)
        warn_of_mirror(d);
    if (ok)
        warn_of_machine(d);
    int status = ok ? (a->json ? print_document(d) : print_table(d)) : cli_report(&err);
    free(d);
    return !ok && err.code == SL_ERR_CANCELLED ? CLI_INTERRUPTED : status;
}

int cli_doctor(const cli_args *a) {
    sl_error err = {0};
    uint64_t end = sl_now_ns() + ALL_NS;
    if (is_plain_directory(a->operand[0])) {
        if (a->mirror && !sl_path_is_dir(a->mirror))
            return cli_complain(CLI_FAILED, "mirror: %s: a directory expected", a->mirror);
        return doctor_with(a, NULL, end);
    }
    sl_engine *e = cli_open(a, true, &err);
    if (!e)
        return cli_report(&err);
    int status = doctor_with(a, e, end);
    cli_close(a, e);
    return status;
}
