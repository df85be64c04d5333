/* What the machine is: clock, memory and its limits, cores. */
#include "base/base.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint64_t sl_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t sl_physical_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

/* A number in a small file ("max" and absence are no limit). */
static uint64_t read_limit(const char *path) {
    FILE *f = fopen(path, "re");
    unsigned long long v = 0;
    bool ok = f && fscanf(f, "%llu", &v) == 1;
    if (f)
        fclose(f);
    return ok ? v : UINT64_MAX;
}

/* The limit of a group in one hierarchy, walking up from its own path to the root: every group above counts too. */
static uint64_t walk_limits(const char *root, const char *sub, char *group, const char *file) {
    uint64_t least = UINT64_MAX;
    for (;;) {
        char *path = sl_asprintf("%s%s%s/%s", root, sub, group, file);
        uint64_t v = path ? read_limit(path) : UINT64_MAX;
        free(path);
        if (v < least)
            least = v;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
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
static uint64_t line_limit(const char *root, char *line) {
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return UINT64_MAX;
    *controllers++ = 0;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    if (strcmp(group, "/") == 0)
        *group = 0;
    if (*controllers == 0)
        return walk_limits(root, "", group, "memory.max");
    return names_memory(controllers) ? walk_limits(root, "/memory", group, "memory.limit_in_bytes") : UINT64_MAX;
}

uint64_t sl_memory_limit_of(const char *groups, const char *root) {
    uint64_t least = sl_physical_memory();
    FILE *f = fopen(groups, "re");
    char *line = NULL;
    size_t capacity = 0;
    while (f && getline(&line, &capacity, f) > 0) {
        uint64_t v = line_limit(root, line);
        if (v < least)
            least = v;
    }
    free(line);
    if (f)
        fclose(f);
    return least;
}

uint64_t sl_memory_limit(const char *root) {
    return sl_memory_limit_of("/proc/self/cgroup", root ? root : "/sys/fs/cgroup");
}

/* The kernel's own word for it: what getrusage says counts what the parent held before this program was executed. */
static uint64_t high_water(void) {
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

uint64_t sl_peak_rss(void) {
    struct rusage u;
    uint64_t peak = high_water();
    if (peak > 0)
        return peak;
    getrusage(RUSAGE_SELF, &u);
#ifdef __APPLE__
    return (uint64_t)u.ru_maxrss;
#else
    return (uint64_t)u.ru_maxrss * 1024;
#endif
}

int sl_cpu_count(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}
