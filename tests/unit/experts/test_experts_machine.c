/* What was measured of a machine: it comes back as it was, only to a machine like it; damaged files are named; what a
 * machine is called. */
#include "support_stored.h"

#include "experts/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    stored_record("/proc/cpuinfo",
                  "processor\t: 0\nvendor_id\t: X\nmodel\t\t: 7\nmodel name\t: A \x1b[31mCPU\nmodel name\t: B\n");
    stored_record("/proc/meminfo", "MemTotal:       16384000 kB\n");
    sl_machine_identify(stored_directory, &a);
    assert_string_equal(a.cpu, "A ?[31mCPU");
    assert_int_equal(a.cores, sl_cpu_count());
    assert_int_equal(a.memory, UINT64_C(16384000) * 1024);
    assert_non_null(strstr(a.text, ", 16 GiB"));
    stored_record("/proc/meminfo", "MemTotal:       16371234 kB\n"); /* a newer kernel */
    sl_machine_identify(stored_directory, &b);
    assert_string_equal(a.text, b.text);
    stored_record("/proc/meminfo", "MemTotal:       32768000 kB\n");
    sl_machine_identify(stored_directory, &b);
    assert_string_not_equal(a.text, b.text);
    stored_record("/proc/cpuinfo",
                  "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\nprocessor\t: 1\nCPU part\t: 0xd0c\n");
    sl_machine_identify(stored_directory, &b);
    assert_string_equal(b.cpu, "ARM implementer 0x41 part 0xd40");
    stored_record("/proc/cpuinfo", "model name");
    sl_machine_identify(stored_directory, &b);
    assert_string_equal(b.cpu, "unknown");
    sl_machine_identify(NULL, &a); /* this one */
    assert_true(a.cpu[0] && a.memory > 0);
}

/* ---- results on disk ---- */

static void figures_come_back_to_a_machine_like_it(void **state) {
    sl_error err = {0};
    sl_machine_id id = some_machine(4), fewer = some_machine(3);
    sl_machine_figures f = some_figures(), back;
    char *path = sl_machine_path(stored_directory, &id), *other = sl_machine_path(stored_directory, &fewer);
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

static bool load_again(const char *path, sl_error *err) {
    sl_machine_id id = some_machine(4);
    sl_machine_figures back;
    return sl_machine_load(path, &id, &back, err);
}

static void damaged_files_are_named(void **state) {
    static const stored_damage damage[] = {
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
    sl_machine_figures f = some_figures();
    char *path = sl_machine_path(stored_directory, &id);
    assert_true(sl_machine_save(path, &id, &f, &err));
    stored_check_damage(path, damage, SL_COUNT(damage), load_again);
    free(path);
}

static void a_list_of_as_many_rates_as_there_may_be_comes_back_and_no_longer_one(void **state) {
    sl_error err = {0};
    sl_machine_id id = some_machine(1000);
    sl_machine_figures f = {.count = MACHINE_RATES}, back;
    char *path = sl_machine_path(stored_directory, &id);
    size_t size;
    for (int i = 0; i < MACHINE_RATES; i++)
        f.memory[i] = (sl_machine_memory){i + 1, 1e9 * (i + 1)};
    assert_true(sl_machine_save(path, &id, &f, &err));
    assert_true(sl_machine_load(path, &id, &back, &err));
    assert_int_equal(back.count, MACHINE_RATES);
    char *good = sl_read_text(path, 1 << 20, &size, &err), *at = strstr(good, "[") + 1;
    char *more = sl_asprintf("%.*s{\"threads\": 1, \"bytes_per_second\": 1},%s", (int)(at - good), good, at);
    stored_write(path, more, strlen(more));
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
    stored_record("/file", "x");
    char *below = sl_asprintf("%s/file", stored_directory), *path = sl_machine_path(below, &id);
    assert_false(sl_machine_save(path, &id, &f, &err));
    assert_non_null(strstr(err.message, path));
    free(path);
    free(below);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(machines_are_told_apart, stored_make_directory, stored_remove_directory),
        cmocka_unit_test_setup_teardown(figures_come_back_to_a_machine_like_it, stored_make_directory,
                                        stored_remove_directory),
        cmocka_unit_test_setup_teardown(damaged_files_are_named, stored_make_directory, stored_remove_directory),
        cmocka_unit_test_setup_teardown(a_list_of_as_many_rates_as_there_may_be_comes_back_and_no_longer_one,
                                        stored_make_directory, stored_remove_directory),
        cmocka_unit_test_setup_teardown(where_it_cannot_be_kept_that_is_said, stored_make_directory,
                                        stored_remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
