/* What stays in the cache (--cache), and starting warm (--warm): the hot list of the model is read when the engine
 * opens, and written with what this run asked for when it closes. Nothing here is needed for a right answer: what fails
 * is said and the run goes on. */
#include "engine/internal.h"

#include "engine/units.h"
#include "experts/hot.h"

#include <stdlib.h>
#include <string.h>

bool engine_choose_policy(sl_engine *e, sl_error *err) {
    static const char *const names[] = {"lru", "lfu"};
    static const sl_policy policies[] = {SL_POLICY_LRU, SL_POLICY_LFU};
    const char *wanted = e->options.cache ? e->options.cache : names[0];
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (strcmp(wanted, names[i]) == 0) {
            e->policy = policies[i];
            return true;
        }
    }
    return sl_fail(err, SL_ERR_ARGUMENT, "cache: \"%s\", expected one of lru, lfu", wanted);
}

/* Where the list is; NULL: nowhere. Allocated. */
static char *list_path(const sl_engine *e, uint64_t model) {
    if (e->options.hot_list)
        return sl_strdup(e->options.hot_list);
    char *dir = sl_cache_dir(), *path = dir ? sl_asprintf("%s/hot-%016llx.list", dir, (unsigned long long)model) : NULL;
    free(dir);
    return path;
}

static void warm_progress(void *user, uint64_t done, uint64_t total) {
    sl_engine *e = user;
    engine_activity_set(&e->activity, ENGINE_LOADING, 0);
    if (e->options.progress)
        e->options.progress(e->options.progress_user, SL_STAGE_LOAD, done, total);
}

static void read_hot(sl_engine *e) {
    uint64_t began = sl_now_ns();
    int64_t n = sl_experts_warm(e->experts, e->warm.known, warm_progress, e);
    sl_experts_stats st;
    char size[32];
    sl_experts_stats_get(e->experts, &st);
    sl_logf(&e->log, SL_LOG_INFO, "%s: %lld experts (%s) read before the first token, in %.1f s", e->warm.path,
            (long long)n, engine_size_text(size, sizeof size, st.read_bytes), (double)(sl_now_ns() - began) / 1e9);
    sl_engine_reset_stats(e);
}

void engine_warm_open(sl_engine *e) {
    const uint32_t *none;
    sl_error why = {0};
    if (!e->options.warm && !e->options.hot_list)
        return;
    e->warm.experts = sl_experts_heat(e->experts, &none);
    e->warm.known = calloc(e->warm.experts, sizeof *e->warm.known);
    bool ok = e->warm.known && engine_fingerprint(e, &e->warm.model, &why);
    e->warm.path = ok ? list_path(e, e->warm.model) : NULL;
    if (!e->warm.path) {
        sl_logf(&e->log, SL_LOG_WARN, "hot list: %s: nothing is learned", ok ? "no directory for it" : why.message);
        return;
    }
    if (sl_hot_load(e->warm.path, e->warm.model, e->warm.known, e->warm.experts, &why)) {
        read_hot(e);
    } else if (why.code == SL_ERR_ARGUMENT) {
        sl_logf(&e->log, SL_LOG_WARN, "hot list: %s: it is left as it is, and nothing is learned", why.message);
        free(e->warm.path);
        e->warm.path = NULL;
    } else if (why.code != SL_OK) {
        sl_logf(&e->log, SL_LOG_WARN, "hot list ignored: %s; this run's takes its place", why.message);
    }
}

void engine_warm_close(sl_engine *e) {
    const uint32_t *run = NULL;
    sl_error why = {0};
    if (e->warm.path && e->experts && sl_experts_heat(e->experts, &run) == e->warm.experts && run) {
        sl_hot_merge(e->warm.known, run, e->warm.experts);
        if (!sl_hot_save(e->warm.path, e->warm.model, e->warm.known, e->warm.experts, &why))
            sl_logf(&e->log, SL_LOG_WARN, "hot list: %s", why.message);
    }
    free(e->warm.path);
    free(e->warm.known);
}
