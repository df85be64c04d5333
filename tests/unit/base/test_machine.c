/* The memory limit out of recorded cgroup trees; clock and counts. */
#include "support_base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What a file under /sys/fs/cgroup said. */
typedef struct entry {
    const char *path, *text;
} entry;

enum { MAX_ENTRIES = 6 };

typedef struct machine {
    const char *what, *groups; /* text of /proc/self/cgroup; NULL: there is none */
    entry tree[MAX_ENTRIES];
    uint64_t limit; /* 0: none, physical memory */
} machine;

#define V1_NONE "9223372036854771712\n"

/* Recorded from systems of the kind named, shortened to what matters; numbers are small enough to be the least on any
 * machine that runs this. */
static const machine machines[] = {
    {"no cgroup at all", NULL, {{0}}, 0},
    {"version 2, no limit",
     "0::/user.slice/user-0.slice/session-1.scope\n",
     {{"user.slice/memory.max", "max\n"},
      {"user.slice/user-0.slice/memory.max", "max\n"},
      {"user.slice/user-0.slice/session-1.scope/memory.max", "max\n"}},
     0},
    {"version 2, own limit",
     "0::/system.slice/run-7.scope\n",
     {{"system.slice/memory.max", "max\n"}, {"system.slice/run-7.scope/memory.max", "50331648\n"}},
     50331648},
    {"version 2, a parent's limit is less",
     "0::/a/b/c\n",
     {{"a/memory.max", "30000000\n"}, {"a/b/memory.max", "max\n"}, {"a/b/c/memory.max", "40000000\n"}},
     30000000},
    {"version 2 inside a container: the group is the root", "0::/\n", {{"memory.max", "25165824\n"}}, 25165824},
    {"version 2, a neighbour's limit", "0::/a\n", {{"b/memory.max", "1000\n"}, {"ab/memory.max", "1000\n"}}, 0},
    {"version 1",
     "12:pids:/user.slice\n9:memory:/user.slice/me\n1:name=systemd:/x\n0::/x\n",
     {{"memory/memory.limit_in_bytes", V1_NONE},
      {"memory/user.slice/memory.limit_in_bytes", V1_NONE},
      {"memory/user.slice/me/memory.limit_in_bytes", "20971520\n"}},
     20971520},
    {"version 1, no limit", "4:memory:/\n", {{"memory/memory.limit_in_bytes", V1_NONE}}, 0},
    /* The path is the host's; what is mounted is the container's own group. */
    {"version 1 inside a container",
     "11:memory:/docker/0123456789abcdef\n10:cpuset:/docker/0123456789abcdef\n",
     {{"memory/memory.limit_in_bytes", "16777216\n"}},
     16777216},
    {"version 1, controllers together",
     "3:cpu,memory,blkio:/g\n",
     {{"memory/g/memory.limit_in_bytes", "15000000\n"}},
     15000000},
    {"version 1, another controller with a like name",
     "3:memoryless,notmemory:/g\n",
     {{"memory/g/memory.limit_in_bytes", "1000\n"}},
     0},
    {"both versions at once",
     "9:memory:/g\n0::/h\n",
     {{"memory/g/memory.limit_in_bytes", "14000000\n"}, {"h/memory.max", "13000000\n"}},
     13000000},
    {"lines that are none", "\n:\n::\nnonsense\n0:\n0::/a\n", {{"a/memory.max", "12000000\n"}}, 12000000},
    {"no newline at the end", "0::/a", {{"a/memory.max", "11000000"}}, 11000000},
    {"a limit that is no number", "0::/a\n", {{"a/memory.max", "lots\n"}, {"memory.max", "\n"}}, 0},
    {"a group outside the namespace", "0::/../../a\n", {{"memory.max", "10000000\n"}}, 10000000},
};

static void write_tree(const char *dir, const machine *m) {
    for (int i = 0; i < MAX_ENTRIES && m->tree[i].path; i++) {
        char *name = sl_path_join("root/x", m->tree[i].path);
        free(dir_write(dir, name, m->tree[i].text, strlen(m->tree[i].text)));
        free(name);
    }
}

static uint64_t limit_of(const char *dir, const char *groups) {
    char *file = sl_path_join(dir, "groups"), *root = sl_path_join(dir, "root/x");
    if (groups)
        free(dir_write(dir, "groups", groups, strlen(groups)));
    uint64_t v = sl_memory_limit_of(file, root);
    free(file);
    free(root);
    return v;
}

static void recorded_trees(void **state) {
    for (size_t i = 0; i < SL_COUNT(machines); i++) {
        char *dir = dir_new();
        write_tree(dir, &machines[i]);
        uint64_t expected = machines[i].limit ? machines[i].limit : sl_physical_memory();
        uint64_t v = limit_of(dir, machines[i].groups);
        if (v != expected)
            fail_msg("%s: %llu, expected %llu", machines[i].what, (unsigned long long)v, (unsigned long long)expected);
        dir_remove(dir);
    }
}

/* Longer than any buffer one would think of: 60 levels of 100 characters. */
static void deep_groups(void **state) {
    char *dir = dir_new();
    sl_buf line = {0};
    sl_buf_puts(&line, "0::");
    for (int i = 0; i < 60; i++)
        sl_buf_printf(&line, "/%0100d", i);
    sl_buf_puts(&line, "\n1:cpu:/\n");
    machine m = {.tree = {{"memory.max", "9000000\n"}}};
    write_tree(dir, &m);
    assert_int_equal(limit_of(dir, line.data), 9000000);
    sl_buf_free(&line);
    dir_remove(dir);
}

static void this_machine(void **state) {
    uint64_t physical = sl_physical_memory(), limit = sl_memory_limit(NULL);
    assert_true(physical > 1 << 20);
    assert_true(limit > 0 && limit <= physical);
    assert_int_equal(sl_memory_limit("/nonexistent"), physical);
    assert_true(sl_cpu_count() >= 1);
    assert_in_range(sl_peak_rss(), 1 << 18, physical);
    uint64_t before = sl_now_ns(), after = sl_now_ns();
    assert_true(after >= before && before > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_trees),
        cmocka_unit_test(deep_groups),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
