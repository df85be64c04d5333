/* Two disks with the same files: every byte arrives whichever brings it, reads follow the disks' rates, a disk that
 * fails costs nothing but its speed, and what is no copy is refused. */
#include "support_experts.h"

#include "experts/mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = (6 << 20) + 1234, MEMORY_BYTES = 8 << 20, READS = 12 };

/* ---- files and their copies -------------------------------------------------------------------------------------- */

typedef struct copies {
    char directory[64];
    const sl_file *file[MODEL_FILES];
    int count;
} copies;

static char *copy_path(const copies *c, int i) {
    return sl_path_join(c->directory, strrchr(c->file[i]->path, '/') + 1);
}

static void write_copy(const copies *c, int i, const uint8_t *bytes, uint64_t size) {
    char *path = copy_path(c, i);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(path);
}

static void copies_make(copies *c, sl_file *const *file, uint8_t *const *bytes, int count) {
    const char *base = getenv("TMPDIR");
    *c = (copies){.count = count};
    snprintf(c->directory, sizeof c->directory, "%s/sluice-mirror-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(c->directory));
    for (int i = 0; i < count; i++) {
        c->file[i] = file[i];
        write_copy(c, i, bytes[i], file[i]->size);
    }
}

static void copies_free(copies *c) {
    for (int i = 0; i < c->count; i++) {
        char *path = copy_path(c, i);
        unlink(path);
        free(path);
    }
    assert_int_equal(rmdir(c->directory), 0);
}

static sl_mirror *must_open(const copies *c) {
    sl_error err = {0};
    sl_mirror *m = sl_mirror_open(c->file, c->count, c->directory, &err);
    if (!m)
        fail_msg("%s", err.message);
    return m;
}

/* ---- readers ----------------------------------------------------------------------------------------------------- */

typedef struct lines {
    int n;
    char last[512];
} lines;

static void count_line(void *user, sl_log_level level, const char *message) {
    lines *l = user;
    l->n++;
    snprintf(l->last, sizeof l->last, "%s", message);
}

/* A reader of two disks with faults, or NULL where the system has none of this kind. */
static sl_reader *two_disks(const reader_case *c, const sl_fault_plan *plan, int plans) {
    sl_reader_options second = {.buffered = c->buffered, .depth = 1},
                      o = {.kind = c->kind, .buffered = c->buffered, .depth = 1, .second = &second};
    sl_error err = {0};
    sl_reader *r = sl_reader_open(&o, &err);
    if (!r)
        printf("SKIP: %s: %s\n", c->name, err.message);
    for (int i = 0; r && i < plans; i++) {
        r = sl_reader_fault(r, &plan[i], &err);
        assert_non_null(r);
    }
    return r;
}

static const reader_case plain = {"pread, buffered", SL_READER_PREAD, true};

static sl_reader *mirrored(const sl_mirror *m, sl_reader *inner, double first, double second, lines *l) {
    sl_error err = {0};
    sl_mirror_options o = {
        .mirror = m, .rate = {first, second}, .name = "the model", .log = {count_line, l, SL_LOG_WARN}};
    sl_reader *r = sl_mirror_reader(inner, &o, &err);
    assert_non_null(r);
    return r;
}

static sl_fault_plan fault_of(int disk) {
    return (sl_fault_plan){.seed = 1, .fail_after = -1, .fail_layer_tag = -1, .disk = disk};
}

/* ---- reads ------------------------------------------------------------------------------------------------------- */

typedef struct batch {
    sl_read read[READS];
    int n;
} batch;

/* Reads of `bytes`, here and there; the last one ends with the file. */
static void make_batch(batch *b, const sl_file *f, uint64_t bytes, int n, uint8_t *memory, rng *r) {
    uint64_t align = 4096;
    b->n = n;
    assert_true((uint64_t)n * (bytes + align) <= MEMORY_BYTES);
    for (int i = 0; i < n; i++) {
        uint64_t at = i + 1 == n ? (f->size - bytes) / align * align : rng_next(r) % (f->size - bytes) / align * align,
                 need = f->size - at < bytes ? f->size - at : bytes;
        b->read[i] = (sl_read){.file = f,
                               .offset = at,
                               .bytes = bytes,
                               .dst = memory + (uint64_t)i * (bytes + align),
                               .need = need,
                               .tag = &b->read[i]};
    }
    memset(memory, 0xa5, MEMORY_BYTES);
}

/* Submits and waits; each tag comes once, with the file's bytes. Returns how many failed. */
static int run_batch(sl_reader *r, batch *b, const uint8_t *bytes) {
    sl_read_result got[5];
    sl_error err = {0};
    bool seen[READS] = {false};
    int failed = 0;
    assert_true(r->submit(r, b->read, b->n, &err));
    for (int left = b->n; left > 0;) {
        int n = r->collect(r, got, (int)SL_COUNT(got), UINT64_MAX);
        assert_in_range(n, 1, left);
        for (int i = 0; i < n; i++) {
            const sl_read *read = got[i].tag;
            assert_false(got[i].quarantined);
            assert_false(seen[read - b->read]);
            seen[read - b->read] = true;
            if (got[i].ok)
                assert_memory_equal(read->dst, bytes + read->offset, read->need);
            else
                assert_true(got[i].error.message[0] != 0);
            failed += !got[i].ok;
        }
        left -= n;
    }
    assert_int_equal(r->collect(r, got, 1, UINT64_MAX), 0);
    return failed;
}

static sl_mirror_stats stats_of(const sl_reader *r, int disk) {
    sl_mirror_stats s;
    sl_mirror_stats_get(r, disk, &s);
    return s;
}

typedef struct scene {
    rng r;
    uint8_t *bytes, *memory;
    sl_file *file;
    copies c;
    sl_mirror *m;
    lines l;
} scene;

static void scene_make(scene *s, const char *name) {
    *s = (scene){.r = rng_start(name)};
    s->file = file_make(FILE_BYTES, &s->bytes, &s->r);
    copies_make(&s->c, &s->file, &s->bytes, 1);
    s->m = must_open(&s->c);
    assert_int_equal(posix_memalign((void **)&s->memory, 4096, MEMORY_BYTES), 0);
}

static void scene_free(scene *s) {
    sl_mirror_close(s->m);
    copies_free(&s->c);
    file_free(s->file);
    free(s->bytes);
    free(s->memory);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void every_byte_arrives_whichever_disk_brings_it(void **state) {
    scene s;
    scene_make(&s, "bytes");
    for (int c = 0; c < reader_case_count; c++) {
        sl_reader *inner = two_disks(&reader_cases[c], NULL, 0);
        if (!inner)
            continue;
        sl_reader *r = mirrored(s.m, inner, 0, 0, &s.l);
        uint64_t asked = 0;
        for (int round = 0; round < 12; round++) {
            batch b;
            uint64_t bytes = 4096 * (1 + rng_below(&s.r, 150));
            make_batch(&b, s.file, bytes, 1 + (int)rng_below(&s.r, READS), s.memory, &s.r);
            asked += bytes * (uint64_t)b.n;
            assert_int_equal(run_batch(r, &b, s.bytes), 0);
        }
        assert_true(stats_of(r, 0).bytes > 0 && stats_of(r, 1).bytes > 0);
        assert_int_equal(stats_of(r, 0).bytes + stats_of(r, 1).bytes, asked);
        r->close(r);
    }
    assert_int_equal(s.l.n, 0);
    scene_free(&s);
}

/* Before anything was observed: calibrated rates say how a batch is divided, down to the cut of its last read. */
static void a_batch_is_divided_by_the_calibrated_rates(void **state) {
    scene s;
    batch b;
    scene_make(&s, "calibrated");
    static const double rates[][2] = {{3e9, 1e9}, {1e9, 3e9}, {1e9, 1e9}};
    for (size_t i = 0; i < SL_COUNT(rates); i++) {
        for (int n = 1; n <= 5; n += 4) {
            sl_reader *r = mirrored(s.m, two_disks(&plain, NULL, 0), rates[i][0], rates[i][1], &s.l);
            make_batch(&b, s.file, 1 << 20, n, s.memory, &s.r);
            assert_int_equal(run_batch(r, &b, s.bytes), 0);
            double share = (double)stats_of(r, 0).bytes / (double)(n << 20),
                   want = rates[i][0] / (rates[i][0] + rates[i][1]);
            assert_true(share > want - 0.01 && share < want + 0.01);
            r->close(r);
        }
    }
    scene_free(&s);
}

/* ---- two disks in a time of their own ---------------------------------------------------------------------------- */

/* Each disk brings one read after the other, at its rate; time passes only while results are waited for. */
typedef struct sim {
    sl_reader base;
    uint64_t now, busy[SL_READER_DISKS];
    double rate[SL_READER_DISKS];
    sl_read read[2 * READS];
    uint64_t due[2 * READS];
    int n;
} sim;

static uint64_t sim_now(void *user) {
    return ((sim *)user)->now;
}

static bool sim_submit(sl_reader *reader, const sl_read *reads, int n, sl_error *err) {
    sim *s = (sim *)reader;
    for (int i = 0; i < n; i++) {
        int d = reads[i].disk;
        uint64_t from = s->busy[d] > s->now ? s->busy[d] : s->now;
        s->busy[d] = from + (uint64_t)((double)reads[i].need * 1e9 / s->rate[d]);
        s->read[s->n] = reads[i];
        s->due[s->n++] = s->busy[d];
    }
    return true;
}

static int sim_collect(sl_reader *reader, sl_read_result *out, int max, uint64_t timeout_ns) {
    sim *s = (sim *)reader;
    sl_error err;
    int first = 0;
    for (int i = 1; i < s->n; i++)
        first = s->due[i] < s->due[first] ? i : first;
    if (s->n == 0 || (timeout_ns == 0 && s->due[first] > s->now))
        return 0;
    s->now = s->due[first] > s->now ? s->due[first] : s->now;
    const sl_read *r = &s->read[first];
    assert_true(sl_file_read(r->file, r->offset, r->dst, r->need, &err));
    out[0] = (sl_read_result){.tag = r->tag, .ok = true};
    s->n--;
    s->read[first] = s->read[s->n];
    s->due[first] = s->due[s->n];
    return 1;
}

static void sim_close(sl_reader *reader) {}

static sl_reader *simulated(sim *s, const scene *c, double first, double second) {
    sl_error err;
    s->base = (sl_reader){.name = "sim", .submit = sim_submit, .collect = sim_collect, .close = sim_close};
    sl_mirror_options o = {.mirror = c->m, .rate = {first, second}, .name = "the model", .now = sim_now, .now_user = s};
    sl_reader *r = sl_mirror_reader(&s->base, &o, &err);
    assert_non_null(r);
    return r;
}

/* Nothing is known of the disks, or what is known is wrong: a share of what is asked comes from each as it is fast, and
 * a batch takes no longer than both need together. */
static void the_split_follows_what_is_observed(void **state) {
    static const double rates[][2] = {{300e6, 50e6}, {1e9, 3e9}, {2e9, 2e9}}, known[][2] = {{0, 0}, {50e6, 300e6}};
    scene s;
    batch b;
    scene_make(&s, "observed");
    for (size_t i = 0; i < SL_COUNT(rates) * SL_COUNT(known); i++) {
        const double *rate = rates[i / 2], *before = known[i % 2];
        sim disks = {.now = 1, .rate = {rate[0], rate[1]}};
        sl_reader *r = simulated(&disks, &s, before[0], before[1]);
        uint64_t first = 0, began = 0;
        for (int round = 0; round < 40; round++) {
            if (round == 30) {
                first = stats_of(r, 0).bytes;
                began = disks.now;
            }
            make_batch(&b, s.file, 512 << 10, 6, s.memory, &s.r);
            assert_int_equal(run_batch(r, &b, s.bytes), 0);
        }
        double bytes = 10 * 6 * (512 << 10), share = (double)(stats_of(r, 0).bytes - first) / bytes,
               want = rate[0] / (rate[0] + rate[1]),
               slower = (double)(disks.now - began) / (bytes / (rate[0] + rate[1]) * 1e9);
        printf("share of the first disk %.3f, by the rates %.3f; time over the least %.3f\n", share, want, slower);
        assert_true(share > want - 0.05 && share < want + 0.05);
        assert_true(slower < 1.2); /* a cut is worth 64 KiB, and 4 % of a guess remain */
        r->close(r);
    }
    scene_free(&s);
}

static void a_disk_that_seemed_slow_is_asked_again(void **state) {
    scene s;
    batch b;
    scene_make(&s, "again");
    sim disks = {.now = 1, .rate = {1e9, 1e9}};
    sl_reader *r = simulated(&disks, &s, 1e9, 1e6);
    uint64_t first = 0;
    for (int round = 0; round < 40 && stats_of(r, 1).reads == 0; round++) {
        first = stats_of(r, 0).bytes;
        make_batch(&b, s.file, 512 << 10, 10, s.memory, &s.r);
        assert_int_equal(run_batch(r, &b, s.bytes), 0);
    }
    assert_in_range(first, 56 << 20, 64 << 20);
    assert_in_range(stats_of(r, 1).reads, 1, 2);
    assert_true(stats_of(r, 1).rate > 1.9e6); /* and believed, the more often it is */
    r->close(r);
    scene_free(&s);
}

static void a_disk_that_fails_is_dropped_with_one_line_and_the_other_serves(void **state) {
    for (int bad = 1; bad <= 2; bad++) {
        scene s;
        batch b;
        scene_make(&s, "dropped");
        sl_fault_plan plan = fault_of(bad);
        plan.fail_after = 3;
        sl_reader *r = mirrored(s.m, two_disks(&plain, &plan, 1), 1e9, 1e9, &s.l);
        for (int round = 0; round < 6; round++) {
            make_batch(&b, s.file, 300 << 10, 8, s.memory, &s.r);
            assert_int_equal(run_batch(r, &b, s.bytes), 0);
        }
        assert_int_equal(s.l.n, 1);
        const char *good = bad == 1 ? s.c.directory : "the model";
        assert_non_null(strstr(s.l.last, "No such device"));
        assert_non_null(strstr(s.l.last, bad == 1 ? s.file->path : s.c.directory));
        assert_non_null(strstr(strstr(s.l.last, "read from"), good));
        assert_true(stats_of(r, bad - 1).dropped && !stats_of(r, 2 - bad).dropped);
        uint64_t reads = stats_of(r, bad - 1).reads;
        make_batch(&b, s.file, 300 << 10, 8, s.memory, &s.r);
        assert_int_equal(run_batch(r, &b, s.bytes), 0);
        assert_int_equal(stats_of(r, bad - 1).reads, reads);
        r->close(r);
        scene_free(&s);
    }
}

static void what_neither_disk_can_read_is_an_error(void **state) {
    scene s;
    batch b;
    scene_make(&s, "both");
    sl_fault_plan plan = fault_of(0);
    plan.fail_after = 10;
    sl_reader *r = mirrored(s.m, two_disks(&plain, &plan, 1), 0, 0, &s.l);
    int failed = 0;
    for (int round = 0; round < 4; round++) {
        make_batch(&b, s.file, 300 << 10, 8, s.memory, &s.r);
        failed += run_batch(r, &b, s.bytes);
    }
    assert_in_range(failed, 32 - 10, 32 - 2);
    assert_int_equal(s.l.n, 1); /* the last disk stays */
    r->close(r);
    scene_free(&s);
}

/* A disk that hangs: its reads fail as they do without a mirror, their memory stays theirs until it is over. */
static void a_read_that_hangs_is_quarantined_and_its_disk_dropped(void **state) {
    scene s;
    batch b;
    scene_make(&s, "hangs");
    sl_fault_plan plan = fault_of(2);
    plan.delay_rate = 1;
    plan.delay_ns = 60000000;
    plan.timeout_ns = 5000000;
    sl_reader *r = mirrored(s.m, two_disks(&plain, &plan, 1), 1e9, 1e9, &s.l);
    sl_read_result got[4];
    sl_error err;
    make_batch(&b, s.file, 1 << 20, 5, s.memory, &s.r);
    assert_true(r->submit(r, b.read, b.n, &err));
    int last[READS] = {0}, told[READS] = {0}, good = 0;
    for (int left = 5; left > 0;) {
        int n = r->collect(r, got, (int)SL_COUNT(got), UINT64_MAX);
        assert_true(n > 0);
        for (int i = 0; i < n; i++) {
            long k = (const sl_read *)got[i].tag - b.read;
            assert_int_equal(last[k], 0);
            *(got[i].quarantined ? &told[k] : &last[k]) += 1;
            left -= !got[i].quarantined;
            if (got[i].quarantined)
                assert_false(got[i].ok);
            else
                assert_int_equal(got[i].ok, told[k] == 0);
            good += got[i].ok;
        }
    }
    for (int i = 0; i < 5; i++)
        assert_in_range(told[i], 0, 1);
    assert_in_range(good, 1, 4);
    assert_int_equal(s.l.n, 1);
    assert_true(stats_of(r, 1).dropped);
    make_batch(&b, s.file, 1 << 20, 5, s.memory, &s.r);
    assert_int_equal(run_batch(r, &b, s.bytes), 0);
    r->close(r);
    scene_free(&s);
}

static void closing_waits_for_what_is_under_way(void **state) {
    scene s;
    batch b;
    scene_make(&s, "close");
    sl_fault_plan plan = fault_of(2);
    plan.delay_rate = 0.5;
    plan.delay_ns = 10000000;
    sl_reader *r = mirrored(s.m, two_disks(&plain, &plan, 1), 0, 0, &s.l);
    sl_error err;
    make_batch(&b, s.file, 1 << 20, 5, s.memory, &s.r);
    assert_true(r->submit(r, b.read, b.n, &err));
    r->close(r); /* leaks nothing, and nothing is written afterwards: for the sanitizers */
    scene_free(&s);
}

static void a_copy_that_is_written_to_is_dropped(void **state) {
    scene s;
    batch b;
    scene_make(&s, "written");
    s.bytes[70000] ^= 1;
    write_copy(&s.c, 0, s.bytes, FILE_BYTES);
    s.bytes[70000] ^= 1;
    sl_reader *r = mirrored(s.m, two_disks(&plain, NULL, 0), 1, 1e9, &s.l);
    make_batch(&b, s.file, 1 << 20, 6, s.memory, &s.r);
    assert_int_equal(run_batch(r, &b, s.bytes), 0);
    assert_int_equal(s.l.n, 1);
    assert_non_null(strstr(s.l.last, "changed since it was opened"));
    assert_true(stats_of(r, 1).dropped);
    r->close(r);
    scene_free(&s);
}

static void refused(const copies *c, const char *directory, const char *what, uint64_t at) {
    sl_error err = {0};
    char number[32];
    snprintf(number, sizeof number, "byte %llu ", (unsigned long long)at);
    assert_null(sl_mirror_open(c->file, c->count, directory, &err));
    assert_memory_equal(err.message, "mirror: ", 8);
    assert_null(strchr(err.message, '\n'));
    if (!strstr(err.message, what) || (at && !strstr(err.message, number)))
        fail_msg("%s: expected %s, %s", err.message, what, number);
}

static void what_is_no_copy_is_refused_by_file_and_byte(void **state) {
    scene s;
    scene_make(&s, "refused");
    char *path = copy_path(&s.c, 0);
    refused(&s.c, "/nowhere", "/nowhere: not a directory", 0);
    for (int end = 0; end < 2; end++) { /* a header's byte, and the last one */
        uint64_t at = end ? FILE_BYTES - 1 : 65535;
        s.bytes[at] ^= 0x80;
        write_copy(&s.c, 0, s.bytes, FILE_BYTES);
        refused(&s.c, s.c.directory, path, at);
        s.bytes[at] ^= 0x80;
    }
    uint8_t *other = malloc(FILE_BYTES); /* the same header, the same end, other weights */
    memcpy(other, s.bytes, FILE_BYTES);
    for (size_t i = 64 << 10; i < FILE_BYTES - 4096; i++)
        other[i] ^= 0x55;
    write_copy(&s.c, 0, other, FILE_BYTES);
    refused(&s.c, s.c.directory, "no copy of", 0);
    free(other);
    write_copy(&s.c, 0, s.bytes, FILE_BYTES - 1);
    refused(&s.c, s.c.directory, path, 0);
    refused(&s.c, s.c.directory, "6292689 bytes, 6292690 expected", 0);
    unlink(path);
    refused(&s.c, s.c.directory, path, 0);
    assert_int_equal(link(s.file->path, path), 0);
    refused(&s.c, s.c.directory, "the model's own file", 0);
    unlink(path);
    write_copy(&s.c, 0, s.bytes, FILE_BYTES);
    sl_mirror_close(must_open(&s.c));
    free(path);
    scene_free(&s);
}

/* The store over two disks of which one goes away in the middle: every part of every expert is the file's bytes. */
static void experts_are_whole_whatever_happens_to_one_disk(void **state) {
    for (int bad = 0; bad <= 2; bad++) {
        rng r = rng_start("store");
        model m;
        copies c;
        lines l = {0};
        model_make(&m, &(model_spec){3, 4, 16, 0, 3000, 400000, false, true}, &r);
        copies_make(&c, m.file, m.bytes, 3);
        sl_mirror *mirror = must_open(&c);
        sl_fault_plan plan = fault_of(bad);
        plan.fail_after = bad ? 3 : -1;
        store s;
        store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 12, .slab_bytes = 8 << 20},
                   mirrored(mirror, two_disks(&plain, &plan, 1), 0, 0, &l));
        for (int round = 0; round < 24; round++) {
            int32_t ids[6];
            rng_ids(&r, ids, 6, 16);
            assert_int_equal(store_run(&s, round % 4, ids, 6, (sl_expert_order)(round % 2), 2), 0);
        }
        assert_int_equal(l.n, bad ? 1 : 0);
        store_free(&s);
        sl_mirror_close(mirror);
        copies_free(&c);
        model_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_arrives_whichever_disk_brings_it),
        cmocka_unit_test(a_batch_is_divided_by_the_calibrated_rates),
        cmocka_unit_test(the_split_follows_what_is_observed),
        cmocka_unit_test(a_disk_that_seemed_slow_is_asked_again),
        cmocka_unit_test(a_disk_that_fails_is_dropped_with_one_line_and_the_other_serves),
        cmocka_unit_test(what_neither_disk_can_read_is_an_error),
        cmocka_unit_test(a_read_that_hangs_is_quarantined_and_its_disk_dropped),
        cmocka_unit_test(closing_waits_for_what_is_under_way),
        cmocka_unit_test(a_copy_that_is_written_to_is_dropped),
        cmocka_unit_test(what_is_no_copy_is_refused_by_file_and_byte),
        cmocka_unit_test(experts_are_whole_whatever_happens_to_one_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
