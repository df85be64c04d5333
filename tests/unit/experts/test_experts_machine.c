/* What was measured of a machine: it comes back as it was, only to a machine like it; damaged files are named; what a
 * machine is called. */
#include "support_experts.h"

#include "experts/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/tmp/sluice-machine-XXXXXX";

static int make_directory(void **state) {
    strcpy(directory + strlen(directory) - 6, "XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command);
}

static void write_text(const char *path, const char *text, size_t n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void record(const char *name, const char *text) {
    char *path = sl_asprintf("%s%s", directory, name), *command = sl_asprintf("mkdir -p $(dirname '%s')", path);
    assert_int_equal(system(command), 0);
    write_text(path, text, strlen(text));
    free(command);
    free(path);
}

static sl_machine_id some_machine(int cores) {
    sl_machine_id id = {.cpu = "Some CPU", .cores = cores, .memory = UINT64_C(16) << 30};
    snprintf(id.text, sizeof id.text, "Some CPU, %d cores, 16 GiB", cores);
    return id;
}

static sl_machine_figures some_figures(void) {
    return (sl_machine_figures){.measured = 1700000000,
                                .count = 3,
                                .memory = {{1, 11.5e9}, {2, 20e9}, {4, 30.25e9}},
                                .gpu = "Some GPU",
                                .gpu_copy = 25e9};
}

/* ---- which machine it is ---- */

static void machines_are_told_apart(void **state) {
    sl_machine_id a, b;
    record("/proc/cpuinfo",
           "processor\t: 0\nvendor_id\t: X\nmodel\t\t: 7\nmodel name\t: A \x1b[31mCPU\nmodel name\t: B\n");
    record("/proc/meminfo", "MemTotal:       16384000 kB\n");
    sl_machine_identify(directory, &a);
    assert_string_equal(a.cpu, "A ?[31mCPU");
    assert_int_equal(a.cores, sl_cpu_count());
    assert_int_equal(a.memory, UINT64_C(16384000) * 1024);
    assert_non_null(strstr(a.text, ", 16 GiB"));
    record("/proc/meminfo", "MemTotal:       16371234 kB\n"); /* a newer kernel */
    sl_machine_identify(directory, &b);
    assert_string_equal(a.text, b.text);
    record("/proc/meminfo", "MemTotal:       32768000 kB\n");
    sl_machine_identify(directory, &b);
    assert_string_not_equal(a.text, b.text);
    record("/proc/cpuinfo",
           "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\nprocessor\t: 1\nCPU part\t: 0xd0c\n");
    sl_machine_identify(directory, &b);
    assert_string_equal(b.cpu, "ARM implementer 0x41 part 0xd40");
    record("/proc/cpuinfo", "model name");
    sl_machine_identify(directory, &b);
    assert_string_equal(b.cpu, "unknown");
    sl_machine_identify(NULL, &a); /* this one */
    assert_true(a.cpu[0] && a.memory > 0);
}

/* ---- results on disk ---- */

static void figures_come_back_to_a_machine_like_it(void **state) {
    sl_error err = {0};
    sl_machine_id id = some_machine(4), fewer = some_machine(3);
    sl_machine_figures f = some_figures(), back;
    char *path = sl_machine_path(directory, &id), *other = sl_machine_path(directory, &fewer);
    assert_string_not_equal(path, other);
    assert_false(sl_machine_load(path, &id, &back, &err));
    assert_int_equal(err.code, SL_OK); /* there is none */
    assert_true(sl_machine_save(path, &id, &f, &err));
    memset(&back, 0xa5, sizeof back);
    assert_true(sl_machine_load(path, &id, &back, &err));
    assert_true(back.measured == f.measured && back.count == 3 && back.gpu_copy == 25e9);
    for (int i = 0; i < 3; i++)
        assert_true(back.memory[i].threads == f.memory[i].threads && back.memory[i].rate == f.memory[i].rate);
    assert_string_equal(back.gpu, "Some GPU");
    assert_false(sl_machine_load(other, &fewer, &back, &err)); /* as many cores as it was not measured with */
    assert_int_equal(err.code, SL_OK);
    assert_false(sl_machine_load(path, &fewer, &back, &err)); /* a file that was copied or renamed */
    assert_non_null(strstr(err.message, "3 cores"));
    free(other);
    free(path);
}

static void damaged_files_are_named(void **state) {
    static const struct {
        const char *from, *to, *says;
    } damage[] = {
        {"\"sluice_machine\": 1", "\"sluice_machine\": 2", "sluice_machine"},
        {"\"machine\": \"Some", "\"machine\": \"Same", "machine"},
        {"\"measured\": 1700000000", "\"measured\": 9223372036854775807", "measured"},
        {"\"measured\": 1700000000", "\"measured\": -1", "measured"},
        {"\"threads\": 2", "\"threads\": 1", "memory_read[1]: threads: 1, expected 2"},
        {"\"threads\": 2", "\"threads\": 2.5", "threads"},
        {"\"threads\": 4", "\"threads\": 1000000000", "threads"},
        {"20000000000.0", "0", "memory_read[1]: bytes_per_second: 0"},
        {"20000000000.0", "1e300", "bytes per second expected"},
        {"20000000000.0", "\"fast\"", "bytes per second expected"},
        {"25000000000.0", "-1", "gpu_copy"},
        {"\"memory_read\": [", "\"memory_read\": [], \"x\": [", "memory_read"},
        {"\"memory_read\"", "\"memory_reed\"", "memory_read"},
        {"\"gpu\": \"Some GPU\"", "\"gpu\": 5", "gpu"},
        {"\"gpu\"", "\"machine\"", "line"}, /* twice the same name */
        {"{", "[", "line"},
    };
    sl_error err = {0};
    sl_machine_id id = some_machine(4);
    sl_machine_figures f = some_figures(), back;
    char *path = sl_machine_path(directory, &id);
    size_t size;
    assert_true(sl_machine_save(path, &id, &f, &err));
    char *good = sl_read_text(path, 1 << 20, &size, &err);
    assert_non_null(good);
    for (size_t i = 0; i < SL_COUNT(damage); i++) {
        char *at = strstr(good, damage[i].from);
        if (!at)
            fail_msg("no %s in %s", damage[i].from, good);
        char *bad = sl_asprintf("%.*s%s%s", (int)(at - good), good, damage[i].to, at + strlen(damage[i].from));
        write_text(path, bad, strlen(bad));
        if (sl_machine_load(path, &id, &back, &err))
            fail_msg("%s was taken", damage[i].to);
        if (!strstr(err.message, damage[i].says) || strncmp(err.message, path, strlen(path)) != 0)
            fail_msg("\"%s\" does not say %s and the file", err.message, damage[i].says);
        free(bad);
    }
    for (size_t n = 0; n < size; n += 5) {
        write_text(path, good, n);
        assert_false(sl_machine_load(path, &id, &back, &err));
        assert_int_not_equal(err.code, SL_OK);
    }
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* is not waited for */
    assert_false(sl_machine_load(path, &id, &back, &err));
    assert_non_null(strstr(err.message, "plain file"));
    free(good);
    free(path);
}

static void a_list_of_as_many_rates_as_there_may_be_comes_back_and_no_longer_one(void **state) {
    sl_error err = {0};
    sl_machine_id id = some_machine(1000);
    sl_machine_figures f = {.count = MACHINE_RATES}, back;
    char *path = sl_machine_path(directory, &id);
    size_t size;
    for (int i = 0; i < MACHINE_RATES; i++)
        f.memory[i] = (sl_machine_memory){i + 1, 1e9 * (i + 1)};
    assert_true(sl_machine_save(path, &id, &f, &err));
    assert_true(sl_machine_load(path, &id, &back, &err));
    assert_int_equal(back.count, MACHINE_RATES);
    char *good = sl_read_text(path, 1 << 20, &size, &err), *at = strstr(good, "[") + 1;
    char *more = sl_asprintf("%.*s{\"threads\": 1, \"bytes_per_second\": 1},%s", (int)(at - good), good, at);
    write_text(path, more, strlen(more));
    assert_false(sl_machine_load(path, &id, &back, &err));
    assert_non_null(strstr(err.message, "memory_read"));
    free(more);
    free(good);
    free(path);
}

static void where_it_cannot_be_kept_that_is_said(void **state) {
    sl_error err = {0};
    sl_machine_id id = some_machine(4);
    sl_machine_figures f = some_figures();
    record("/file", "x");
    char *below = sl_asprintf("%s/file", directory), *path = sl_machine_path(below, &id);
    assert_false(sl_machine_save(path, &id, &f, &err));
    assert_non_null(strstr(err.message, path));
    free(path);
    free(below);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(machines_are_told_apart, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(figures_come_back_to_a_machine_like_it, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(damaged_files_are_named, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_list_of_as_many_rates_as_there_may_be_comes_back_and_no_longer_one,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(where_it_cannot_be_kept_that_is_said, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
