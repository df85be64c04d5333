/* What was measured of the machine: kept and looked up. Who measures it is the program. */
#include "engine/internal.h"

#include "experts/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void public_figures(const sl_machine_figures *f, sl_machine *m) {
    m->measured = f->measured;
    m->rate_count = f->count;
    for (int i = 0; i < f->count; i++)
        m->rates[i] = (sl_memory_rate){f->memory[i].threads, f->memory[i].rate};
    snprintf(m->gpu, sizeof m->gpu, "%s", f->gpu);
    m->gpu_copy = f->gpu_copy;
}

/* The machine's name, and its file's; allocated, NULL: there is no directory for it. */
static char *identify(const char *store, const char *root, sl_machine_id *id) {
    char *directory = engine_calibrations(store);
    sl_machine_identify(root, id);
    char *path = directory ? sl_machine_path(directory, id) : NULL;
    free(directory);
    return path;
}

bool sl_machine_look(const char *store, const char *system_root, sl_machine *out, sl_error *err) {
    sl_machine_id id;
    sl_machine_figures figures;
    sl_machine all = {0};
    sl_error local, *e = err ? err : &local;
    *e = (sl_error){0};
    char *path = identify(store, system_root, &id);
    snprintf(all.cpu, sizeof all.cpu, "%s", id.cpu);
    all.cores = id.cores;
    all.memory = id.memory;
    bool known = path && sl_machine_load(path, &id, &figures, e);
    if (known) {
        public_figures(&figures, &all);
        snprintf(all.stored, sizeof all.stored, "%s", path);
    }
    free(path);
    if (!engine_give(out, &all, sizeof all))
        return sl_fail(err, SL_ERR_ARGUMENT, "machine: the result's size is not set");
    return known;
}

bool sl_machine_keep(const char *store, const char *system_root, sl_machine *m, sl_error *err) {
    sl_machine_id id;
    sl_machine all;
    if (!engine_copy_options(&all, sizeof all, m, sizeof all, "machine", err))
        return false;
    if (all.measured <= 0 || all.rate_count < 1 || all.rate_count > SL_MEMORY_RATES)
        return sl_fail(err, SL_ERR_ARGUMENT, "machine: measured %lld, %d rates: a time and 1 to %d rates expected",
                       (long long)all.measured, all.rate_count, SL_MEMORY_RATES);
    sl_machine_figures f = {.measured = all.measured, .count = all.rate_count, .gpu_copy = all.gpu_copy};
    for (int i = 0; i < f.count; i++)
        f.memory[i] = (sl_machine_memory){all.rates[i].threads, all.rates[i].rate};
    snprintf(f.gpu, sizeof f.gpu, "%s", all.gpu);
    char *path = identify(store, system_root, &id);
    bool ok = path ? sl_machine_save(path, &id, &f, err)
                   : sl_fail(err, SL_ERR_ARGUMENT, "no directory to keep the result in (XDG_CACHE_HOME, HOME)");
    snprintf(m->stored, sizeof m->stored, "%s", ok ? path : "");
    free(path);
    return ok;
}
