/* Readers: the bytes of the file arrive, all of them or an error that says which; nothing stays in the page cache;
 * time limits, cancellation at close, reads without registered memory. */
#include "support_experts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_BYTES = 300001, MEMORY_BYTES = 1 << 20, READS = 40 };

/* Random reads as the store makes them: aligned where direct, the last one over the end of the file. */
typedef struct batch {
    sl_read read[READS];
    int n;
} batch;

static void make_batch(batch *b, const sl_file *f, bool direct, uint8_t *memory, rng *r) {
    uint64_t align = direct && f->direct_fd >= 0 ? f->direct_align : 1;
    uint64_t at = 0;
    for (b->n = 0; b->n < READS; b->n++) {
        uint64_t begin = b->n == 0 ? f->size - 5000 : rng_next(r) % f->size;
        uint64_t end = b->n == 0 ? f->size : begin + 1 + rng_below(r, 60000);
        end = end > f->size ? f->size : end;
        uint64_t offset = begin / align * align, bytes = sl_round_up(end - offset, align);
        if (at + bytes + 4096 > MEMORY_BYTES)
            break;
        b->read[b->n] = (sl_read){f, offset, bytes, memory + at, end - offset, &b->read[b->n], 0};
        at += sl_round_up(bytes, 4096);
    }
    memset(memory, 0xa5, MEMORY_BYTES);
}

static void submit(sl_reader *r, const batch *b) {
    sl_error err;
    if (!r->submit(r, b->read, b->n, &err))
        fail_msg("%s", err.message);
}

/* Waits for n last results; each tag once. */
static void collect_ok(sl_reader *r, batch *b, const uint8_t *bytes) {
    sl_read_result got[7];
    bool seen[READS] = {false};
    for (int left = b->n; left > 0;) {
        int n = r->collect(r, got, (int)SL_COUNT(got), UINT64_MAX);
        assert_true(n > 0);
        for (int i = 0; i < n; i++) {
            const sl_read *read = got[i].tag;
            if (!got[i].ok)
                fail_msg("%s", got[i].error.message);
            assert_false(got[i].quarantined);
            assert_false(seen[read - b->read]);
            seen[read - b->read] = true;
            assert_memory_equal(read->dst, bytes + read->offset, read->need);
        }
        left -= n;
    }
    assert_int_equal(r->collect(r, got, 1, UINT64_MAX), 0);
}

static uint8_t *map_memory(void) {
    uint8_t *m = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m != MAP_FAILED);
    return m;
}

static size_t cached_pages(const sl_file *f) {
    size_t pages = (f->size + 4095) / 4096, cached = 0;
    unsigned char *in = calloc(pages, 1);
    void *p = mmap(NULL, f->size, PROT_READ, MAP_SHARED, f->fd, 0);
    assert_true(p != MAP_FAILED && in);
    assert_int_equal(mincore(p, f->size, in), 0);
    for (size_t i = 0; i < pages; i++)
        cached += in[i] & 1;
    munmap(p, f->size);
    free(in);
    return cached;
}

/* Whether the file system can forget pages at all (tmpfs cannot). */
static bool drops_pages(const sl_file *f) {
    uint8_t byte;
    sl_error err;
    assert_true(sl_file_read(f, 0, &byte, 1, &err));
    sl_file_drop(f, 0, f->size);
    return cached_pages(f) == 0;
}

static void every_reader_reads_what_the_file_holds(void **state) {
    rng r = rng_start("readers");
    uint8_t *bytes, *memory = map_memory();
    sl_file *f = file_make(FILE_BYTES, &bytes, &r);
    bool drops = drops_pages(f);
    experts_file_prepare(f);
    for (int c = 0; c < reader_case_count; c++) {
        sl_reader *reader = reader_make(&reader_cases[c]);
        for (int registered = 0; reader && registered < 2; registered++) {
            if (registered && reader->add_memory)
                reader->add_memory(reader, memory, MEMORY_BYTES);
            batch b;
            make_batch(&b, f, reader->direct, memory, &r);
            submit(reader, &b);
            collect_ok(reader, &b, bytes);
            if (drops && cached_pages(f) > 0)
                fail_msg("%s: %zu pages left in the page cache", reader_cases[c].name, cached_pages(f));
            if (registered && reader->remove_memory)
                reader->remove_memory(reader, memory);
        }
        if (reader)
            reader->close(reader);
    }
    if (!drops)
        printf("SKIP: page cache check, the file system of the test's files keeps pages\n");
    munmap(memory, MEMORY_BYTES);
    free(bytes);
    file_free(f);
}

/* Depth 1, one piece per block, one large piece. */
static void depth_and_piece_size_do_not_matter(void **state) {
    rng r = rng_start("pieces");
    uint8_t *bytes, *memory = map_memory();
    sl_file *f = file_make(FILE_BYTES, &bytes, &r);
    static const struct {
        int depth;
        uint64_t piece;
    } shape[] = {{1, 4096}, {3, 4096}, {1, 1 << 20}, {16, 12288}};
    for (int c = 0; c < reader_case_count; c++) {
        for (size_t i = 0; i < SL_COUNT(shape); i++) {
            sl_error err;
            sl_reader_options o = {.kind = reader_cases[c].kind,
                                   .buffered = reader_cases[c].buffered,
                                   .depth = shape[i].depth,
                                   .piece_bytes = shape[i].piece};
            sl_reader *reader = sl_reader_open(&o, &err);
            if (!reader)
                continue; /* said by reader_make already */
            batch b;
            make_batch(&b, f, reader->direct, memory, &r);
            submit(reader, &b);
            collect_ok(reader, &b, bytes);
            reader->close(reader);
        }
    }
    munmap(memory, MEMORY_BYTES);
    free(bytes);
    file_free(f);
}

static void a_truncated_file_is_an_error_with_place_and_sizes(void **state) {
    rng r = rng_start("truncated");
    uint8_t *bytes, *memory = map_memory();
    for (int c = 0; c < reader_case_count; c++) {
        sl_file *f = file_make(FILE_BYTES, &bytes, &r);
        sl_reader *reader = reader_make(&reader_cases[c]);
        if (reader) {
            assert_int_equal(truncate(f->path, 40960), 0);
            sl_read read[2] = {{f, 32768, 16384, memory, 16384, &read[0], 0},
                               {f, 81920, 4096, memory, 4096, &read[1], 0}};
            sl_error err;
            assert_true(reader->submit(reader, read, 2, &err));
            for (int left = 2; left > 0;) {
                sl_read_result got[2];
                int n = reader->collect(reader, got, 2, UINT64_MAX);
                for (int i = 0; i < n; i++, left--) {
                    const char *text = got[i].tag == &read[0] ? "file ends at 40960, 16384 bytes at offset 32768"
                                                              : "file ends at 40960, 4096 bytes at offset 81920";
                    assert_false(got[i].ok || got[i].quarantined);
                    assert_int_equal(got[i].error.code, SL_ERR_IO);
                    assert_non_null(strstr(got[i].error.message, text));
                    assert_non_null(strstr(got[i].error.message, f->path));
                }
            }
            reader->close(reader);
        }
        free(bytes);
        file_free(f);
    }
    munmap(memory, MEMORY_BYTES);
}

/* The descriptor is gone: errno's text is in the message. */
static void a_failed_read_says_why(void **state) {
    uint8_t *memory = map_memory();
    for (int c = 0; c < reader_case_count; c++) {
        sl_reader *reader = reader_make(&reader_cases[c]);
        if (!reader)
            continue;
        sl_file f = {.path = "gone.bin", .fd = 987654, .direct_fd = 987654, .direct_align = 512, .size = 1 << 20};
        sl_read read = {&f, 512, 32768, memory, 32768, NULL, 0};
        sl_error err;
        sl_read_result got;
        assert_true(reader->submit(reader, &read, 1, &err));
        assert_int_equal(reader->collect(reader, &got, 1, UINT64_MAX), 1);
        assert_false(got.ok || got.quarantined);
        assert_non_null(strstr(got.error.message, "gone.bin: read of 32768 bytes at offset 512 failed at"));
        assert_non_null(strstr(got.error.message, "Bad file descriptor"));
        reader->close(reader);
    }
    munmap(memory, MEMORY_BYTES);
}

/* A pipe is a disk that never answers until it is written to. */
typedef struct stuck_file {
    int ends[2];
    sl_file file;
} stuck_file;

static void stuck_open(stuck_file *s) {
    assert_int_equal(pipe(s->ends), 0);
    s->file = (sl_file){.path = "stuck.bin", .fd = s->ends[0], .direct_fd = -1, .direct_align = 512, .size = 1 << 20};
}

static void stuck_close(stuck_file *s) {
    close(s->ends[0]);
    close(s->ends[1]);
}

static sl_reader *uring_with_timeout(uint64_t ns, int depth) {
    sl_error err;
    sl_reader_options o = {.kind = SL_READER_URING, .depth = depth, .timeout_ns = ns};
    sl_reader *r = sl_reader_open(&o, &err);
    if (!r)
        printf("SKIP: %s\n", err.message);
    return r;
}

static void a_read_that_takes_too_long_is_told_twice(void **state) {
    sl_reader *reader = uring_with_timeout(20000000, 4);
    if (!reader)
        return;
    stuck_file s;
    stuck_open(&s);
    uint8_t memory[64];
    sl_read read = {&s.file, 0, 64, memory, 64, &s, 0};
    sl_error err;
    sl_read_result got[2];
    assert_true(reader->submit(reader, &read, 1, &err));
    assert_int_equal(reader->collect(reader, got, 2, 0), 0);
    assert_int_equal(reader->collect(reader, got, 2, UINT64_MAX), 1);
    assert_true(!got[0].ok && got[0].quarantined && got[0].tag == &s);
    assert_non_null(strstr(got[0].error.message, "stuck.bin: read of 64 bytes at offset 0: Connection timed out"));
    assert_int_equal(reader->collect(reader, got, 2, UINT64_MAX), 1);
    assert_true(!got[0].ok && !got[0].quarantined && got[0].tag == &s);
    assert_int_equal(reader->collect(reader, got, 2, UINT64_MAX), 0);
    reader->close(reader);
    stuck_close(&s);
}

/* A disk that gives less than it was asked for: the rest is asked for again, no more than that. */
static void short_reads_go_on_where_they_stopped(void **state) {
    sl_reader *reader = uring_with_timeout(0, 4);
    if (!reader)
        return;
    stuck_file s;
    stuck_open(&s);
    uint8_t memory[100], sent[100];
    for (int i = 0; i < 100; i++)
        sent[i] = (uint8_t)(i + 1);
    memset(memory, 0xa5, sizeof memory);
    sl_read read = {&s.file, 0, 64, memory, 64, &s, 0};
    sl_error err;
    sl_read_result got;
    assert_true(reader->submit(reader, &read, 1, &err));
    assert_int_equal(write(s.ends[1], sent, 10), 10);
    assert_int_equal(reader->collect(reader, &got, 1, 1000000), 0);
    assert_int_equal(write(s.ends[1], sent + 10, 90), 90);
    assert_int_equal(reader->collect(reader, &got, 1, UINT64_MAX), 1);
    assert_true(got.ok);
    assert_memory_equal(memory, sent, 64);
    for (int i = 64; i < 100; i++)
        assert_int_equal(memory[i], 0xa5);
    reader->close(reader);
    stuck_close(&s);
}

static void expect_advance(experts_piece *p, int64_t result, bool over, uint64_t read_so_far) {
    assert_int_equal(experts_piece_advance(p, result), over);
    assert_int_equal(p->done, read_so_far);
}

/* What a direct read may go on from, and where a file's end is. */
static void a_short_direct_read_goes_on_from_a_whole_block(void **state) {
    experts_job j = {.read = {.bytes = 8192, .need = 7000}, .align = 512};
    experts_piece p = {.job = &j, .bytes = 8192};
    expect_advance(&p, -EINTR, false, 0);
    expect_advance(&p, -EAGAIN, false, 0);
    expect_advance(&p, 1030, false, 1024);
    expect_advance(&p, 2048, false, 3072);
    expect_advance(&p, 4000, true, 7072);
    assert_int_equal(p.failure, EXPERTS_READ_OK);
    p = (experts_piece){.job = &j, .bytes = 4096};
    expect_advance(&p, 4096, true, 4096);
    p = (experts_piece){.job = &j, .begin = 4096, .bytes = 4096};
    expect_advance(&p, 2903, false, 2560);
    expect_advance(&p, 343, true, 2903); /* 6999 of 7000: the end of the file */
    assert_int_equal(p.failure, EXPERTS_READ_END);
    p = (experts_piece){.job = &j, .bytes = 4096};
    expect_advance(&p, 0, true, 0);
    assert_int_equal(p.failure, EXPERTS_READ_END);
    p = (experts_piece){.job = &j, .bytes = 4096};
    expect_advance(&p, -EIO, true, 0);
    assert_int_equal(p.failure, EXPERTS_READ_ERRNO);
    assert_int_equal(p.saved_errno, EIO);
}

/* Behind a read that never ends nothing moves: what waits fails too, after the time limit, though it was never begun.
 */
static void reads_behind_a_stuck_one_have_a_time_limit(void **state) {
    sl_file f = {.path = "stuck.bin", .fd = -1, .direct_fd = -1, .size = 1 << 20};
    experts_jobs q = {.piece_bytes = 4096, .timeout_ns = 1000};
    sl_read read[2] = {{&f, 0, 4096, NULL, 4096, &read[0], 0}, {&f, 4096, 4096, NULL, 4096, &read[1], 0}};
    sl_error err;
    experts_piece p;
    sl_read_result got[4];
    assert_true(experts_jobs_add(&q, read, 2, &err));
    uint64_t now = sl_now_ns();
    assert_true(experts_jobs_next_piece(&q, now, &p));
    assert_int_equal(experts_jobs_deadline(&q), now + 1000);
    assert_int_equal(experts_jobs_expire(&q, now + 999), 0);
    assert_int_equal(experts_jobs_results(&q, got, 4), 0);
    assert_int_equal(experts_jobs_expire(&q, now + 1000), 1);
    assert_int_equal(experts_jobs_results(&q, got, 4), 2);
    assert_true(got[0].tag == &read[0] && got[0].quarantined && !got[0].ok);
    assert_true(got[1].tag == &read[1] && !got[1].quarantined && !got[1].ok);
    assert_int_equal(experts_jobs_deadline(&q), UINT64_MAX);
    assert_false(experts_jobs_next_piece(&q, now, &p));
    experts_jobs_free(&q);
}

/* The queue is one deep: the place of a read that was given up goes to the next, which has its own time. */
static void a_stuck_queue_fails_what_waits_in_it(void **state) {
    sl_reader *reader = uring_with_timeout(20000000, 1);
    if (!reader)
        return;
    stuck_file s;
    stuck_open(&s);
    uint8_t memory[128];
    sl_read read[2] = {{&s.file, 0, 64, memory, 64, &read[0], 0}, {&s.file, 64, 64, memory + 64, 64, &read[1], 0}};
    sl_error err;
    sl_read_result got;
    int last[2] = {0};
    assert_true(reader->submit(reader, read, 2, &err));
    while (reader->collect(reader, &got, 1, UINT64_MAX) == 1) {
        assert_false(got.ok);
        last[(sl_read *)got.tag - read] += !got.quarantined;
    }
    assert_int_equal(last[0], 1);
    assert_int_equal(last[1], 1);
    reader->close(reader);
    stuck_close(&s);
}

static void close_cancels_what_is_in_flight(void **state) {
    sl_reader *reader = uring_with_timeout(0, 2);
    if (!reader)
        return;
    stuck_file s;
    stuck_open(&s);
    uint8_t memory[4096];
    sl_read read[5];
    sl_error err;
    for (int i = 0; i < 5; i++)
        read[i] = (sl_read){&s.file, 0, 64, memory + i * 64, 64, NULL, 0};
    assert_true(reader->submit(reader, read, 5, &err));
    reader->close(reader); /* would hang */
    stuck_close(&s);
}

/* With a limit of a nanosecond reads race their limit: whoever wins, each read ends once, and what ended well is
 * right. */
static void results_are_consistent_when_limits_race(void **state) {
    rng r = rng_start("race");
    uint8_t *bytes, *memory = map_memory();
    sl_file *f = file_make(FILE_BYTES, &bytes, &r);
    for (int c = 0; c < reader_case_count; c++) {
        sl_error err;
        sl_reader_options o = {.kind = reader_cases[c].kind,
                               .buffered = reader_cases[c].buffered,
                               .depth = 3,
                               .piece_bytes = 8192,
                               .timeout_ns = 1};
        sl_reader *reader = sl_reader_open(&o, &err);
        for (int round = 0; reader && round < 20; round++) {
            batch b;
            int last[READS] = {0}, told[READS] = {0};
            make_batch(&b, f, reader->direct, memory, &r);
            submit(reader, &b);
            sl_read_result got[3];
            for (int n; (n = reader->collect(reader, got, 3, UINT64_MAX)) > 0;) {
                for (int i = 0; i < n; i++) {
                    const sl_read *read = got[i].tag;
                    assert_int_equal(last[read - b.read], 0);
                    told[read - b.read] += got[i].quarantined;
                    last[read - b.read] += !got[i].quarantined;
                    assert_true(told[read - b.read] <= 1);
                    if (got[i].ok)
                        assert_memory_equal(read->dst, bytes + read->offset, read->need);
                }
            }
            for (int i = 0; i < b.n; i++)
                assert_int_equal(last[i], 1);
        }
        if (reader)
            reader->close(reader);
    }
    munmap(memory, MEMORY_BYTES);
    free(bytes);
    file_free(f);
}

/* In a child without the right to lock memory: registering fails, reading works. Returns an exit status. */
static int read_unregistered(const sl_file *f, const uint8_t *bytes, uint8_t *memory) {
    /* Small, but a kernel that counts the ring itself must be able to set it up. */
    struct rlimit small = {65536, 65536};
    if (setrlimit(RLIMIT_MEMLOCK, &small) != 0 || setresuid(65534, 65534, 65534) != 0)
        return 77;
    /* The right to lock is looked at when the ring is made. */
    sl_reader *reader = uring_with_timeout(0, 4);
    if (!reader)
        return 77;
    reader->add_memory(reader, memory, MEMORY_BYTES);
    sl_read read = {f, 4096, 8192, memory, 8192, NULL, 0};
    sl_error err;
    sl_read_result got;
    bool ok = reader->submit(reader, &read, 1, &err) && reader->collect(reader, &got, 1, UINT64_MAX) == 1 && got.ok &&
              memcmp(memory, bytes + 4096, 8192) == 0;
    reader->remove_memory(reader, memory);
    reader->close(reader);
    return ok ? 0 : 1;
}

static void memory_that_cannot_be_registered_is_read_into_all_the_same(void **state) {
    rng r = rng_start("memlock");
    uint8_t *bytes, *memory = map_memory();
    sl_file *f = file_make(FILE_BYTES, &bytes, &r);
    pid_t child = fork();
    if (child == 0)
        _exit(read_unregistered(f, bytes, memory));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        printf("SKIP: not root, or no io_uring: the limit cannot be put in force\n");
    else
        assert_int_equal(WEXITSTATUS(status), 0);
    munmap(memory, MEMORY_BYTES);
    free(bytes);
    file_free(f);
}

static void expect_refused(sl_reader_options o, const char *text) {
    sl_error err = {0};
    assert_null(sl_reader_open(&o, &err));
    if (!strstr(err.message, text))
        fail_msg("%s", err.message);
}

static void options_are_checked(void **state) {
    expect_refused((sl_reader_options){.kind = SL_READER_PREAD, .depth = -1}, "pread: -1 threads");
    expect_refused((sl_reader_options){.kind = SL_READER_PREAD, .depth = 100000}, "pread: 100000 threads");
    expect_refused((sl_reader_options){.kind = SL_READER_PREAD, .piece_bytes = 5000}, "pieces of 5000 bytes");
    expect_refused((sl_reader_options){.kind = SL_READER_URING, .piece_bytes = 1ull << 31}, "pieces of 2147483648");
    expect_refused((sl_reader_options){.kind = SL_READER_URING, .depth = 1 << 20}, "io_uring");
    sl_error err;
    sl_reader *r = sl_reader_open(&(sl_reader_options){.kind = SL_READER_AUTO}, &err);
    assert_non_null(r);
    assert_true(r->direct);
    r->close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reader_reads_what_the_file_holds),
        cmocka_unit_test(depth_and_piece_size_do_not_matter),
        cmocka_unit_test(a_truncated_file_is_an_error_with_place_and_sizes),
        cmocka_unit_test(a_failed_read_says_why),
        cmocka_unit_test(a_read_that_takes_too_long_is_told_twice),
        cmocka_unit_test(short_reads_go_on_where_they_stopped),
        cmocka_unit_test(a_short_direct_read_goes_on_from_a_whole_block),
        cmocka_unit_test(reads_behind_a_stuck_one_have_a_time_limit),
        cmocka_unit_test(a_stuck_queue_fails_what_waits_in_it),
        cmocka_unit_test(close_cancels_what_is_in_flight),
        cmocka_unit_test(results_are_consistent_when_limits_race),
        cmocka_unit_test(memory_that_cannot_be_registered_is_read_into_all_the_same),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
