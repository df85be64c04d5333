/* Memory that this process may use, and how much of it is left: physical memory, cgroups of version 1 and 2 with every
 * group above, what the kernel says of pressure. All files are read under a root, so that recorded ones serve in tests.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

enum { SMALL_FILE = 1 << 16 };

/* The beginning of a small file, with a 0 behind it; empty where there is none. */
static void read_small(const char *dir, const char *name, char *out, size_t size) {
    char *path = sl_asprintf("%s/%s", dir, name);
    FILE *f = path ? fopen(path, "re") : NULL;
    size_t n = f ? fread(out, 1, size - 1, f) : 0;
    out[n] = 0;
    if (f)
        fclose(f);
    free(path);
}

/* A number ("max", absence and nonsense are no limit). */
static uint64_t read_number(const char *dir, const char *name, uint64_t absent) {
    char text[64];
    unsigned long long v = 0;
    read_small(dir, name, text, sizeof text);
    return sscanf(text, "%llu", &v) == 1 ? v : absent;
}

/* The number behind a word at the beginning of a line. */
static uint64_t field_of(const char *text, const char *word, uint64_t absent) {
    size_t n = strlen(word);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        unsigned long long v = 0;
        if (strncmp(line, word, n) == 0 && sscanf(line + n, " %llu", &v) == 1)
            return v;
    }
    return absent;
}

/* ---- the groups that this process is in ------------------------------------------------------------------------- */

/* A directory of a memory group, own or above. */
typedef void (*group_fn)(void *ctx, const char *dir, bool version2);

/* From a group's own path up to the root of its hierarchy. */
static void walk_up(const char *root, const char *sub, char *group, bool version2, group_fn fn, void *ctx) {
    for (;;) {
        char *dir = sl_asprintf("%s%s%s", root, sub, group);
        if (dir)
            fn(ctx, dir, version2);
        free(dir);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

static bool names_memory(char *controllers) {
    for (char *save = NULL, *c = strtok_r(controllers, ",", &save); c; c = strtok_r(NULL, ",", &save))
        if (strcmp(c, "memory") == 0)
            return true;
    return false;
}

/* One line of a groups file, "id:controllers:path"; version 2's has no controllers. */
static void visit_line(const char *root, char *line, group_fn fn, void *ctx) {
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *controllers++ = 0;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    if (strcmp(group, "/") == 0)
        *group = 0;
    if (*controllers == 0)
        walk_up(root, "", group, true, fn, ctx);
    else if (names_memory(controllers))
        walk_up(root, "/memory", group, false, fn, ctx);
}

static void visit_groups(const char *groups, const char *root, group_fn fn, void *ctx) {
    FILE *f = fopen(groups, "re");
    char *line = NULL;
    size_t capacity = 0;
    while (f && getline(&line, &capacity, f) > 0)
        visit_line(root, line, fn, ctx);
    free(line);
    if (f)
        fclose(f);
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* Above memory.high a group is slowed down until it gives memory back: as good as a limit. */
static uint64_t group_limit(const char *dir, bool version2) {
    if (!version2)
        return read_number(dir, "memory.limit_in_bytes", UINT64_MAX);
    uint64_t max = read_number(dir, "memory.max", UINT64_MAX), high = read_number(dir, "memory.high", UINT64_MAX);
    return high < max ? high : max;
}

static void take_limit(void *ctx, const char *dir, bool version2) {
    uint64_t *least = ctx, v = group_limit(dir, version2);
    if (v < *least)
        *least = v;
}

uint64_t sl_memory_limit_of(const char *groups, const char *root) {
    uint64_t least = sl_physical_memory();
    visit_groups(groups, root, take_limit, &least);
    return least;
}

uint64_t sl_memory_limit(const char *root) {
    return sl_memory_limit_of("/proc/self/cgroup", root ? root : "/sys/fs/cgroup");
}

/* ---- what is left ------------------------------------------------------------------------------------------------ */

/* "some avg10=1.25 ...": the share of the last ten seconds in which something waited for memory. */
static double stalled_of(const char *dir, const char *name) {
    char text[512];
    double v = 0;
    read_small(dir, name, text, sizeof text);
    const char *at = strstr(text, "some avg10=");
    return at && sscanf(at + strlen("some avg10="), "%lf", &v) == 1 && v > 0 && v <= 100 ? v / 100 : 0;
}

/* A group's room: what is below its limit, and what of its page cache the kernel can drop (an eighth is left to it). */
static void take_room(void *ctx, const char *dir, bool version2) {
    sl_memory_state *s = ctx;
    uint64_t limit = group_limit(dir, version2), unknown = UINT64_MAX,
             used = read_number(dir, version2 ? "memory.current" : "memory.usage_in_bytes", unknown);
    double stalled = version2 ? stalled_of(dir, "memory.pressure") : 0;
    s->stalled = stalled > s->stalled ? stalled : s->stalled;
    if (limit >= s->physical || used == unknown)
        return;
    char *stat = malloc(SMALL_FILE);
    if (stat)
        read_small(dir, "memory.stat", stat, SMALL_FILE);
    uint64_t file = field_of(stat, version2 ? "inactive_file" : "total_inactive_file", 0) / 8 * 7 +
                    field_of(stat, version2 ? "active_file" : "total_active_file", 0) / 2;
    free(stat);
    file = file < used ? file : used;
    uint64_t room = used - file < limit ? limit - (used - file) : 0;
    s->room = room < s->room ? room : s->room;
    s->total = limit < s->total ? limit : s->total;
    s->known = true;
}

#ifdef __APPLE__
/* 1 normal, 2 warning, 4 critical: the kernel's own judgement is all that is asked. */
static void look_apple(sl_memory_state *s) {
    int level = 0;
    size_t size = sizeof level;
    if (sysctlbyname("kern.memorystatus_vm_pressure_level", &level, &size, NULL, 0) != 0)
        return;
    s->known = true;
    s->stalled = level >= 4 ? 0.5 : level >= 2 ? 0.2 : 0;
}
#endif

void sl_memory_look(const char *root, sl_memory_state *out) {
    const char *base = root ? root : "";
    char *proc = sl_asprintf("%s/proc", base), *groups = sl_asprintf("%s/proc/self/cgroup", base),
         *tree = sl_asprintf("%s/sys/fs/cgroup", base), text[4096];
    *out = (sl_memory_state){.room = UINT64_MAX, .physical = sl_physical_memory()};
    if (proc && groups && tree) {
        read_small(proc, "meminfo", text, sizeof text);
        uint64_t total = field_of(text, "MemTotal:", 0), available = field_of(text, "MemAvailable:", UINT64_MAX);
        if (total > 0 && total < UINT64_MAX / 1024)
            out->physical = total * 1024;
        if (available < UINT64_MAX / 1024) {
            out->room = available * 1024;
            out->known = true;
        }
        out->total = out->physical;
        out->stalled = stalled_of(proc, "pressure/memory");
        visit_groups(groups, tree, take_room, out);
    }
#ifdef __APPLE__
    if (!root)
        look_apple(out);
#endif
    free(proc);
    free(groups);
    free(tree);
}
