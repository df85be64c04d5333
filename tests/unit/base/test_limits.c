/* What is left of memory, from recorded files: no limits, cgroup v1, cgroup v2 with pressure, and hostile contents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_base.h"

enum { MAX_FILES = 8 };

typedef struct recorded {
    const char *what;
    struct {
        const char *path, *text;
    } file[MAX_FILES];
    bool known;
    uint64_t room, total;
    double stalled;
} recorded;

#define KIB(n) ((n)*1024ull)
#define MIB(n) ((n)*1048576ull)

static const recorded machines[] = {
    {"a plain machine",
     {{"proc/meminfo", "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    9000000 kB\n"},
      {"proc/self/cgroup", "0::/\n"},
      {"proc/pressure/memory", "some avg10=2.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 total=0\n"}},
     true,
     KIB(9000000),
     KIB(16000000),
     0.025},
    {"v2: memory.high of the group above is the least",
     {{"proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 9000000 kB\n"},
      {"proc/self/cgroup", "0::/user.slice/app\n"},
      {"sys/fs/cgroup/user.slice/memory.high", "4194304000\n"},
      {"sys/fs/cgroup/user.slice/memory.max", "max\n"},
      {"sys/fs/cgroup/user.slice/memory.current", "4089446400\n"},
      {"sys/fs/cgroup/user.slice/memory.stat", "anon 1\nactive_file 20971520\ninactive_file 41943040\n"},
      {"sys/fs/cgroup/user.slice/app/memory.pressure", "some avg10=35.10 avg60=1.00\n"}},
     true,
     /* 4000 - 3900 MiB, and of the page cache 40 * 7/8 + 20 / 2 */
     MIB(100) + MIB(35) + MIB(10),
     MIB(4000),
     0.351},
    {"v1: what is mapped counts, page cache can go",
     {{"proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 9000000 kB\n"},
      {"proc/self/cgroup", "7:memory:/box\n3:cpu:/\n"},
      {"sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1048576000\n"},
      {"sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1048576000\n"},
      {"sys/fs/cgroup/memory/box/memory.stat", "cache 1\ntotal_inactive_file 83886080\ntotal_active_file 0\n"}},
     true,
     MIB(70),
     MIB(1000),
     0},
    {"a group beyond its limit has no room",
     {{"proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 9000000 kB\n"},
      {"proc/self/cgroup", "0::/g\n"},
      {"sys/fs/cgroup/g/memory.max", "1048576\n"},
      {"sys/fs/cgroup/g/memory.current", "2097152\n"}},
     true,
     0,
     MIB(1),
     0},
    {"nothing is known", {{"proc/self/cgroup", "0::/\n"}}, false, UINT64_MAX, 0, 0},
    {"nonsense is not believed",
     {{"proc/meminfo", "MemTotal: x\nMemAvailable: 99999999999999999999999 kB\n"},
      {"proc/self/cgroup", "0::/g\nnonsense\n::\n"},
      {"proc/pressure/memory", "some avg10=1e300\n"},
      {"sys/fs/cgroup/g/memory.max", "-5\n"},
      {"sys/fs/cgroup/g/memory.current", "many\n"},
      {"sys/fs/cgroup/g/memory.pressure", "some avg10=nan\n"}},
     false,
     UINT64_MAX,
     0,
     0},
};

static void recorded_machines(void **state) {
    for (size_t i = 0; i < SL_COUNT(machines); i++) {
        const recorded *m = &machines[i];
        char *dir = dir_new();
        for (int k = 0; k < MAX_FILES && m->file[k].path; k++)
            free(dir_write(dir, m->file[k].path, m->file[k].text, strlen(m->file[k].text)));
        sl_memory_state s;
        sl_memory_look(dir, &s);
        uint64_t total = m->total ? m->total : sl_physical_memory();
        if (s.known != m->known || s.room != m->room || s.total != total || s.stalled < m->stalled - 1e-9 ||
            s.stalled > m->stalled + 1e-9)
            fail_msg("%s: known %d, room %llu, total %llu, stalled %g", m->what, s.known, (unsigned long long)s.room,
                     (unsigned long long)s.total, s.stalled);
        dir_remove(dir);
    }
}

static void this_machine_has_room(void **state) {
    sl_memory_state s;
    sl_memory_look(NULL, &s);
    assert_true(s.total > 0 && s.total <= s.physical);
    if (s.known)
        assert_true(s.room > 0 && (s.room <= s.physical || s.room == UINT64_MAX));
    sl_memory_look("/nonexistent", &s);
    assert_true(!s.known && s.room == UINT64_MAX && s.total == s.physical);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_machines),
        cmocka_unit_test(this_machine_has_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
