/* Calibration: the search takes what measured faster and keeps the default within noise; results come back from disk as
 * they were, and damaged ones are named; the choice; what a disk is called. The disk and the clock are made up. */
#include "support_stored.h"

#include "experts/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a disk that is made up ---- */

typedef struct fake {
    double (*rate)(const sl_reading *how); /* 0: there is no such reader; below 0: it fails */
    double noise;                          /* rates differ by at most this share of themselves */
    rng random;
    uint64_t clock, round_ns;
    int rounds, stop_after;
} fake;

static bool fake_measure(void *user, const sl_reading *how, double *rate, sl_error *err) {
    fake *f = user;
    double r = f->rate(how);
    f->clock += f->round_ns;
    f->rounds++;
    if (r == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "no such reader");
    if (r < 0)
        return sl_fail(err, SL_ERR_IO, "disk: fell off");
    double unit = (double)(rng_next(&f->random) >> 11) * 0x1p-53;
    *rate = r * (1 + f->noise * (2 * unit - 1));
    return true;
}

static uint64_t fake_now(void *user) {
    return ((fake *)user)->clock;
}

static bool fake_go_on(void *user) {
    const fake *f = user;
    return f->stop_after == 0 || f->rounds < f->stop_after;
}

static bool search(fake *f, bool direct, uint64_t limit, sl_calibration *out, sl_error *err) {
    sl_calibrator c = {fake_measure, fake_now, fake_go_on, f};
    memset(out, 0xa5, sizeof *out);
    return sl_calibrate_search(&c, direct, limit, out, err);
}

static void check_reading(const sl_reading *r, sl_reader_kind kind, bool direct, int depth, int kib) {
    assert_int_equal(r->kind, kind);
    assert_int_equal(r->direct, direct);
    assert_int_equal(r->depth, depth);
    assert_int_equal(r->piece_bytes, kib << 10);
}

static double flat(const sl_reading *how) {
    return 1e9;
}

static double deep_small_pieces(const sl_reading *how) {
    return 1e9 * (how->depth == 128 ? 1.2 : 1) * (how->piece_bytes == 128 << 10 ? 1.3 : 1);
}

static double buffered_threads(const sl_reading *how) {
    bool best = how->kind == SL_READER_PREAD && !how->direct;
    return best ? 2e9 * (how->depth == 4 ? 1.5 : 1) : 1e9;
}

static double no_uring(const sl_reading *how) {
    return how->kind == SL_READER_URING ? 0 : 1e9 * (how->depth == 16 ? 1.5 : 1);
}

static double slightly_better(const sl_reading *how) {
    return 1e9 * (how->depth == 128 ? 1.03 : 1);
}

static double fails_deep(const sl_reading *how) {
    return how->depth == 16 ? -1 : 1e9;
}

static void picks_what_measured_faster(void **state) {
    sl_error err;
    sl_calibration c;
    fake f = {.rate = deep_small_pieces, .noise = 0.02, .random = rng_start(__func__), .round_ns = 1};
    assert_true(search(&f, true, 1000000, &c, &err));
    assert_true(c.finished);
    check_reading(&c.usual.how, SL_READER_URING, true, 64, 512);
    check_reading(&c.chosen.how, SL_READER_URING, true, 128, 128);
    assert_true(c.chosen.rate > 1.4 * c.usual.rate && c.chosen.least <= c.chosen.rate &&
                c.chosen.rate <= c.chosen.most);
    f.rate = buffered_threads;
    assert_true(search(&f, true, 1000000, &c, &err));
    check_reading(&c.chosen.how, SL_READER_PREAD, false, 4, 512);
    /* Every way that was measured is listed once. */
    assert_in_range(c.count, 10, CALIBRATE_TRIED);
    for (int i = 0; i < c.count; i++)
        for (int k = 0; k < i; k++)
            assert_true(memcmp(&c.tried[i].how, &c.tried[k].how, sizeof c.tried[i].how) != 0);
}

static void keeps_the_default_within_noise(void **state) {
    sl_error err;
    sl_calibration c;
    fake f = {.rate = flat, .noise = 0.3, .random = rng_start(__func__), .round_ns = 1};
    int other = 0;
    for (int i = 0; i < 200; i++) {
        assert_true(search(&f, true, 1000000, &c, &err));
        other += c.chosen.how.kind != SL_READER_URING || !c.chosen.how.direct || c.chosen.how.depth != 64 ||
                 c.chosen.how.piece_bytes != 512 << 10;
    }
    /* With rates that differ by up to 30 % and all ways alike. */
    if (other > 10)
        fail_msg("%d of 200 searches left the default for noise", other);
    f.rate = slightly_better;
    f.noise = 0;
    assert_true(search(&f, true, 1000000, &c, &err));
    check_reading(&c.chosen.how, SL_READER_URING, true, 64, 512);
}

static void without_uring_threads_are_searched(void **state) {
    sl_error err;
    sl_calibration c;
    fake f = {.rate = no_uring, .random = rng_start(__func__), .round_ns = 1};
    assert_true(search(&f, true, 1000000, &c, &err));
    check_reading(&c.usual.how, SL_READER_PREAD, true, 8, 512);
    check_reading(&c.chosen.how, SL_READER_PREAD, true, 16, 512);
    for (int i = 0; i < c.count; i++)
        assert_int_equal(c.tried[i].how.kind, SL_READER_PREAD);
}

static void without_o_direct_it_is_not_tried(void **state) {
    sl_error err;
    sl_calibration c;
    fake f = {.rate = flat, .random = rng_start(__func__), .round_ns = 1};
    assert_true(search(&f, false, 1000000, &c, &err));
    check_reading(&c.chosen.how, SL_READER_URING, false, 64, 512);
    for (int i = 0; i < c.count; i++)
        assert_false(c.tried[i].how.direct);
}

static void time_that_runs_out_leaves_the_default(void **state) {
    sl_error err;
    sl_calibration c;
    fake f = {.rate = deep_small_pieces, .random = rng_start(__func__), .round_ns = 1000};
    assert_true(search(&f, true, 4000, &c, &err));
    assert_false(c.finished);
    check_reading(&c.chosen.how, SL_READER_URING, true, 64, 512);
    assert_in_range(f.rounds, 1, 8); /* ends within the round that was under way */
}

static void a_failing_disk_and_a_stop_end_the_search(void **state) {
    sl_error err;
    sl_calibration c;
    fake f = {.rate = fails_deep, .random = rng_start(__func__), .round_ns = 1};
    assert_false(search(&f, true, 1000000, &c, &err));
    assert_int_equal(err.code, SL_ERR_IO);
    assert_string_equal(err.message, "disk: fell off");
    f = (fake){.rate = flat, .random = f.random, .round_ns = 1, .stop_after = 7};
    assert_false(search(&f, true, 1000000, &c, &err));
    assert_int_equal(err.code, SL_ERR_CANCELLED);
    assert_int_equal(f.rounds, 7);
}

static double buffered_slow(const sl_reading *how) {
    return how->direct ? 1e9 : 0.5e9;
}

static double buffered_slightly_better(const sl_reading *how) {
    return how->direct ? 1e9 : 1.03e9;
}

static void the_reason_for_the_page_cache_is_what_was_measured(void **state) {
    static const struct {
        double (*rate)(const sl_reading *how);
        bool direct;
        uint64_t limit;
        const char *says;
    } cases[] = {
        {buffered_slow, true, 1000000,
         "past the page cache (O_DIRECT), because through it reads are slower: 0.50 GB/s"},
        {buffered_slightly_better, true, 1000000, "(O_DIRECT), because through it reads are not clearly faster: 1.03"},
        {buffered_threads, true, 1000000,
         "through the page cache, because that was clearly faster: 3.00 GB/s, at best 1.00 with O_DIRECT; what was "
         "read is dropped"},
        {flat, false, 1000000, "through the page cache, because this file system refuses O_DIRECT; what was read is"},
        {buffered_threads, true, 1, "past the page cache (O_DIRECT), as usual: time ran out"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_error err;
        sl_calibration c;
        char why[192]; /* as sl_calibrate_result keeps it */
        fake f = {.rate = cases[i].rate, .random = rng_start(__func__), .round_ns = 1};
        assert_true(search(&f, cases[i].direct, cases[i].limit, &c, &err));
        memset(why, 0xa5, sizeof why);
        sl_reading_cache_why(&c, cases[i].direct, why, sizeof why);
        if (!strstr(why, cases[i].says))
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, why, cases[i].says);
        assert_true(strlen(why) < sizeof why - 12); /* nothing is cut, of larger rates either */
    }
}

/* ---- results on disk ---- */

static sl_calibration some_result(void) {
    sl_calibration c = {.finished = true, .read_bytes = 1234567, .measured = 1700000000, .count = 1};
    c.usual = (sl_tried){{SL_READER_URING, true, 64, 512 << 10}, 1e9, 0.9e9, 1.1e9, 3};
    c.chosen = (sl_tried){{SL_READER_PREAD, false, 16, 1 << 20}, 2e9, 1.9e9, 2.1e9, 5};
    c.tried[0] = c.usual;
    return c;
}

static void results_come_back(void **state) {
    sl_error err = {0};
    sl_disk disk = {.id = "serial A1 partition 2"}, other = {.id = "serial A2 partition 2"};
    sl_calibration c = some_result(), back;
    char *deep = sl_asprintf("%s/not/yet", stored_directory), *path = sl_calibration_path(deep, &disk),
         *second = sl_calibration_path(deep, &other);
    assert_string_not_equal(path, second);
    assert_false(sl_calibration_load(path, &disk, &back, &err));
    assert_int_equal(err.code, SL_OK); /* there is none */
    assert_true(sl_calibration_save(path, &disk, &c, &err));
    assert_true(sl_calibration_save(path, &disk, &c, &err)); /* over the first */
    memset(&back, 0xa5, sizeof back);
    assert_true(sl_calibration_load(path, &disk, &back, &err));
    check_reading(&back.chosen.how, SL_READER_PREAD, false, 16, 1024);
    check_reading(&back.usual.how, SL_READER_URING, true, 64, 512);
    assert_true(back.chosen.rate == 2e9 && back.finished && back.read_bytes == 1234567 && back.measured == 1700000000);
    assert_false(sl_calibration_load(path, &other, &back, &err));
    assert_non_null(strstr(err.message, "serial A1"));
    free(deep);
    free(path);
    free(second);
}

static void store_for_ever(const char *path, const sl_disk *disk, sl_calibration c) {
    for (uint64_t n = 0;; n++) {
        c.read_bytes = 1000 + n % 1000;
        sl_calibration_save(path, disk, &c, NULL);
    }
}

/* A program that stores results again and again and is killed at any moment leaves the last one whole. */
static void a_result_is_whole_whenever_its_writer_is_killed(void **state) {
    enum { KILLS = 20 };
    const char *given = getenv("SL_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : (unsigned)sl_now_ns();
    printf("killed: seed %u\n", seed);
    srand(seed);
    sl_error err = {0};
    sl_disk disk = {.id = "serial A1 partition 7"};
    sl_calibration c = some_result(), back;
    char *path = sl_calibration_path(stored_directory, &disk);
    assert_true(sl_calibration_save(path, &disk, &c, &err));
    for (int i = 0; i < KILLS; i++) {
        pid_t writer = fork();
        assert_true(writer >= 0);
        if (writer == 0)
            store_for_ever(path, &disk, c);
        usleep((unsigned)(rand() % 20000));
        assert_int_equal(kill(writer, SIGKILL), 0);
        assert_int_equal(waitpid(writer, NULL, 0), writer);
        memset(&back, 0xa5, sizeof back);
        if (!sl_calibration_load(path, &disk, &back, &err))
            fail_msg("kill %d: %s", i, err.message);
        check_reading(&back.chosen.how, SL_READER_PREAD, false, 16, 1024);
        assert_true(back.read_bytes == 1234567 || (back.read_bytes >= 1000 && back.read_bytes < 2000));
    }
    free(path);
}

static const sl_disk some_disk = {.id = "serial A1 partition none"};

static bool load_again(const char *path, sl_error *err) {
    sl_calibration back;
    return sl_calibration_load(path, &some_disk, &back, err);
}

static void damaged_results_are_named(void **state) {
    static const stored_damage damage[] = {
        {"\"pread\"", "\"mmap\"", "reader"},
        {"\"depth\": 16", "\"depth\": 257", "257"},
        {"\"depth\": 16", "\"depth\": -1", "-1"},
        {"\"depth\": 16", "\"depth\": 1.5", "depth"},
        {"\"piece_bytes\": 1048576", "\"piece_bytes\": 1048577", "4096"},
        {"\"piece_bytes\": 1048576", "\"piece_bytes\": 9223372036854775807", "piece_bytes"},
        {"\"sluice_calibration\": 1", "\"sluice_calibration\": 2", "sluice_calibration"},
        {"\"chosen\"", "\"chased\"", "chosen"},
        {"2000000000.0", "0.0", "chosen: bytes_per_second: 0"},
        {"\"disk\": \"serial", "\"disk\": \"zerial", "disk"},
        {"{", "[", "line"},
    };
    sl_error err = {0};
    sl_calibration c = some_result();
    char *path = sl_calibration_path(stored_directory, &some_disk);
    assert_true(sl_calibration_save(path, &some_disk, &c, &err));
    stored_check_damage(path, damage, SL_COUNT(damage), load_again);
    free(path);
}

/* ---- the choice ---- */

static void what_is_asked_for_wins_over_what_is_stored(void **state) {
    sl_calibration c = some_result(); /* pread, buffered, 16 threads, 1 MiB */
    sl_reader_options o;
    char why[128];
    sl_reading_choose(&(sl_reading_wish){.direct = -1}, NULL, &o, why, sizeof why);
    assert_true(o.kind == SL_READER_AUTO && !o.buffered && o.depth == 0 && o.piece_bytes == 0);
    assert_non_null(strstr(why, "not calibrated"));
    sl_reading_choose(&(sl_reading_wish){.direct = -1}, &c, &o, why, sizeof why);
    assert_true(o.kind == SL_READER_PREAD && o.buffered && o.depth == 16 && o.piece_bytes == 1 << 20);
    assert_non_null(strstr(why, "2.00 GB/s in reads of 1206 KiB"));
    sl_reading_choose(&(sl_reading_wish){.direct = -1, .depth = 3}, &c, &o, why, sizeof why);
    assert_true(o.kind == SL_READER_PREAD && o.buffered && o.depth == 3 && o.piece_bytes == 1 << 20);
    sl_reading_choose(&(sl_reading_wish){.direct = -1, .depth = 300}, &c, &o, why, sizeof why);
    assert_true(o.kind == SL_READER_AUTO && o.depth == 300); /* more than there are threads */
    /* Another reader, or O_DIRECT: what was measured does not apply. */
    sl_reading_choose(&(sl_reading_wish){.kind = SL_READER_URING, .direct = -1}, &c, &o, why, sizeof why);
    assert_true(o.kind == SL_READER_URING && !o.buffered && o.depth == 0 && o.piece_bytes == 0);
    assert_non_null(strstr(why, "calibrated for pread"));
    sl_reading_choose(&(sl_reading_wish){.direct = 1}, &c, &o, why, sizeof why);
    assert_true(o.kind == SL_READER_AUTO && !o.buffered && o.depth == 0);
    sl_reading_choose(&(sl_reading_wish){SL_READER_URING, 0, 5, 8192}, &c, &o, why, sizeof why);
    assert_true(o.kind == SL_READER_URING && o.buffered && o.depth == 5 && o.piece_bytes == 8192);
    assert_string_equal(why, "as asked for");
}

/* ---- disks ---- */

static void disks_are_told_apart(void **state) {
    sl_disk d;
    stored_record("/proc/self/mountinfo", "26 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n"
                                          "30 26 0:50 / /net rw,x shared:7 - nfs4 server:/data rw\n"
                                          "31 26 0:51 / /shm rw - tmpfs tmpfs rw\n"
                                          "broken line\n"
                                          "32 26 8:1 / /old rw - xfs /dev/s\001da1 rw\n");
    stored_record("/sys/dev/block/259:2/../device/serial", "");
    stored_record("/sys/dev/block/259:2/partition", "2\n");
    stored_record("/sys/dev/block/device/serial", "S5GX\n"); /* the disk above its partition */
    stored_record("/sys/dev/block/8:1/queue/rotational", "1\n");
    sl_disk_describe(stored_directory, 259, 2, 0, &d);
    assert_string_equal(d.source, "/dev/nvme0n1p2");
    assert_string_equal(d.type, "ext4");
    assert_string_equal(d.id, "serial S5GX partition 2");
    assert_false(d.network || d.in_memory);
    assert_int_equal(d.rotational, -1);
    sl_disk_describe(stored_directory, 0, 99, 30, &d); /* by the mount, whatever the number */
    assert_string_equal(d.mount, "/net");
    assert_true(d.network);
    sl_disk_describe(stored_directory, 0, 51, 0, &d);
    assert_true(d.in_memory && !d.network);
    sl_disk_describe(stored_directory, 8, 1, 0, &d);
    assert_int_equal(d.rotational, 1);
    assert_string_equal(d.source, "/dev/s?da1");
    sl_disk_describe(stored_directory, 7, 7, 0, &d); /* of which nothing is known */
    assert_string_equal(d.type, "");
    assert_true(d.id[0] != 0);
}

/* ---- the meter, on a real file ---- */

static void the_meter_reads_with_every_reader_and_leaves_no_file(void **state) {
    sl_error err = {0};
    sl_file *f = sl_random_file(stored_directory, 32 << 20, UINT64_MAX / 4, NULL, NULL, &err);
    if (!f)
        fail_msg("%s", err.message);
    assert_int_equal(f->size, 32 << 20);
    assert_int_equal(rmdir(stored_directory), 0); /* it is empty */
    assert_int_equal(mkdir(stored_directory, 0700), 0);
    sl_random_reads reads = {f, 4096, 300000, 1};
    sl_disk_meter m = {.burst = sl_random_reads_burst, .user = &reads, .most = 9, .round_ns = 1};
    assert_true(sl_disk_meter_open(&m, 4 << 20, &err));
    for (int i = 0; i < 4; i++) {
        sl_reading how = {i % 2 ? SL_READER_PREAD : SL_READER_URING, i < 2, 4, 64 << 10};
        double rate = 0;
        if (sl_disk_meter_measure(&m, &how, &rate, &err))
            assert_true(rate > 0);
        else
            assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
    }
    assert_true(m.reads >= 18 && m.bytes > m.reads * 4096);
    m.round_ns = 50000000;
    sl_disk_meter_fit(&m, 1e12);
    assert_int_equal(m.most, 9);
    sl_disk_meter_fit(&m, 1e3); /* a disk so slow that a burst is one read */
    assert_int_equal(m.most, 1);
    sl_disk_meter_close(&m);
    sl_file_close(f);
    assert_null(sl_random_file(stored_directory, UINT64_MAX / 4, 1, NULL, NULL, &err));
    assert_non_null(strstr(err.message, "are free"));
    assert_null(sl_random_file("/nowhere-at-all", 4096, 1, NULL, NULL, &err));
    assert_non_null(strstr(err.message, "/nowhere-at-all"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picks_what_measured_faster),
        cmocka_unit_test(keeps_the_default_within_noise),
        cmocka_unit_test(without_uring_threads_are_searched),
        cmocka_unit_test(without_o_direct_it_is_not_tried),
        cmocka_unit_test(time_that_runs_out_leaves_the_default),
        cmocka_unit_test(a_failing_disk_and_a_stop_end_the_search),
        cmocka_unit_test(the_reason_for_the_page_cache_is_what_was_measured),
        cmocka_unit_test_setup_teardown(results_come_back, stored_make_directory, stored_remove_directory),
        cmocka_unit_test_setup_teardown(a_result_is_whole_whenever_its_writer_is_killed, stored_make_directory,
                                        stored_remove_directory),
        cmocka_unit_test_setup_teardown(damaged_results_are_named, stored_make_directory, stored_remove_directory),
        cmocka_unit_test(what_is_asked_for_wins_over_what_is_stored),
        cmocka_unit_test_setup_teardown(disks_are_told_apart, stored_make_directory, stored_remove_directory),
        cmocka_unit_test_setup_teardown(the_meter_reads_with_every_reader_and_leaves_no_file, stored_make_directory,
                                        stored_remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
