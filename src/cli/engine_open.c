/* Opening the engine as the options say: log lines, progress while loading, a word when loading stalls. */
#include "cli.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void on_log(void *user, sl_log_level level, const char *line) {
    static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
    cli_note("%s%s", names[level], line);
}

/* Set while a prompt of a person is evaluated; eval and bench have a progress of their own. */
static atomic_bool prefill_shown;

void cli_show_prefill(bool shown) {
    atomic_store(&prefill_shown, shown);
}

static void on_progress(void *user, sl_stage stage, uint64_t done, uint64_t total) {
    if (stage == SL_STAGE_LOAD)
        cli_progress("loading", done, total, true);
    else if (atomic_load(&prefill_shown))
        cli_progress("prefill", done, total, false);
}

/* Says that loading stands still; lives while sl_engine_open runs. */
typedef struct load_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool done, started;
    const char *model;
} load_watch;

static void *watch_load(void *arg) {
    load_watch *w = arg;
    bool said = false;
    pthread_mutex_lock(&w->lock);
    while (!w->done) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&w->wake, &w->lock, &until);
        uint64_t idle = cli_idle_ns();
        if (w->done || idle < 2000000000u)
            continue;
        if (!cli_status("waiting for %.0f s: the disk, loading %s", (double)idle / 1e9, w->model) && !said)
            cli_note("waiting for %.0f s: the disk, loading %s", (double)idle / 1e9, w->model);
        said = true;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void watch_begin(load_watch *w, const char *model) {
    *w = (load_watch){.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .model = model};
    w->started = pthread_create(&w->thread, NULL, watch_load, w) == 0;
}

static void watch_end(load_watch *w) {
    if (!w->started)
        return;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

/* For tests of what uses the program: docs/faults.md. */
static const char *asked_faults(void) {
    const char *text = getenv("SLUICE_FAULTS");
    return text && *text ? text : NULL;
}

static bool on_stop(void *user) {
    return cli_interrupted();
}

static sl_engine_options engine_options(const cli_args *a, bool plan_only) {
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    o.model = a->operand[0];
    o.memory = a->memory;
    o.vram = a->vram;
    o.reserve = a->reserve;
    o.whole_context = a->whole_context;
    o.threads = a->threads;
    o.context = a->context;
    o.max_sequences = a->sequences; /* one conversation, but for bench */
    o.chunk = a->chunk;
    o.kv_type = a->kv_type;
    o.numeric = a->numeric;
    o.isa = a->isa;
    o.device = a->device;
    o.reader = a->reader;
    o.buffered = a->buffered;
    o.verify_reads = a->verify_reads;
    o.prefetch = a->prefetch;
    o.cache = a->cache;
    o.warm = a->warm;
    o.hot_list = a->hot_list;
    o.read_depth = a->read_depth;
    o.read_piece = a->read_piece;
    o.direct = a->direct;
    o.read_timeout = a->read_timeout;
    o.faults = asked_faults();
    o.mirror = a->mirror;
    o.max_slots = a->max_slots;
    o.experts_per_token = a->experts_per_token;
    o.timing = a->timing;
    o.system_root = getenv("SLUICE_SYSTEM_ROOT"); /* recorded machines, for tests */
    o.plan_only = plan_only;
    o.log = on_log;
    o.log_level = a->log_level;
    o.progress = on_progress;
    o.stop = on_stop;
    return o;
}

sl_engine *cli_open(const cli_args *a, bool plan_only, sl_error *err) {
    sl_engine_options o = engine_options(a, plan_only);
    load_watch watch;
    sigset_t interrupt, before;
    cli_touch();
    watch_begin(&watch, a->operand[0]);
    /* The engine's threads inherit this mask, so that Ctrl-C reaches the main thread and interrupts its reads. */
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    sl_engine *e = sl_engine_open(&o, err);
    watch_end(&watch);
    cli_status_clear();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

/* ---- closing ------------------------------------------------------------------------------------------------------
 */

enum { CLOSE_SECONDS = 30 };
static const double interrupted_close_seconds = 0.5; /* nobody waits for the answer any more */

typedef struct close_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    double seconds;
    bool done;
} close_watch;

/* The engine's close waits for what the kernel still writes to its memory. A disk that answers no more would have the
 * program wait for ever; its end takes the memory along. */
static void *watch_close(void *arg) {
    close_watch *w = arg;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    double nanoseconds = (double)until.tv_nsec + w->seconds * 1e9;
    until.tv_sec += (time_t)(nanoseconds / 1e9);
    until.tv_nsec = (long)fmod(nanoseconds, 1e9);
    pthread_mutex_lock(&w->lock);
    while (!w->done && pthread_cond_timedwait(&w->wake, &w->lock, &until) == 0)
        ;
    if (!w->done) {
        cli_complain(CLI_FAILED, "a read of the model's files does not return: ended without it");
        _exit(cli_interrupted() ? cli_stop_status() : CLI_FAILED);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void cli_close(const cli_args *a, sl_engine *e) {
    close_watch w = {.lock = PTHREAD_MUTEX_INITIALIZER,
                     .wake = PTHREAD_COND_INITIALIZER,
                     .seconds = cli_interrupted()     ? interrupted_close_seconds
                                : a->read_timeout > 0 ? a->read_timeout + 1
                                                      : CLOSE_SECONDS};
    if (!e)
        return;
    fflush(stdout);
    bool watched = pthread_create(&w.thread, NULL, watch_close, &w) == 0;
    sl_engine_close(e);
    if (!watched)
        return;
    pthread_mutex_lock(&w.lock);
    w.done = true;
    pthread_cond_signal(&w.wake);
    pthread_mutex_unlock(&w.lock);
    pthread_join(w.thread, NULL);
}

void cli_get_info(const sl_engine *e, sl_engine_info *info) {
    memset(info, 0, sizeof *info);
    info->size = sizeof *info;
    sl_engine_get_info(e, info);
}
