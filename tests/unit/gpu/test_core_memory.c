/* Memory of the host runs out at each allocation in turn: an error that says so, nothing leaks, nothing crashes. */
#include "support_fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPLACES_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPLACES_MALLOC 0
#endif
#endif
#if !defined(REPLACES_MALLOC) && defined(__GLIBC__)
#define REPLACES_MALLOC 1
#endif

#if REPLACES_MALLOC

/* ---- the allocator ----------------------------------------------------------------------------------------------- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static int countdown; /* to the allocation that fails; 0: none does */
static bool ran_out;

static bool fails(void) {
    if (countdown == 0 || --countdown > 0)
        return false;
    ran_out = true;
    return true;
}

void *malloc(size_t n) {
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    return fails() ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : __libc_memalign(align, n);
}

/* ---- a program --------------------------------------------------------------------------------------------------- */

typedef struct program {
    bench b;
    sl_gpu_buffer *view;
    sl_gpu_event *event;
    sl_gpu_list *list;
    sl_gpu_replay *replay;
    sl_error err;
} program;

static bool open_device(program *p) {
    bench *b = &p->b;
    return (b->g = fake_open("", &p->err)) && (b->stream = sl_gpu_stream_new(b->g, &p->err)) &&
           (p->event = sl_gpu_event_new(b->g, &p->err)) && (b->a = sl_gpu_alloc(b->g, 64, SL_GPU_PRIVATE, &p->err)) &&
           (b->b = sl_gpu_alloc(b->g, 64, SL_GPU_SHARED, &p->err)) &&
           (b->out = sl_gpu_alloc(b->g, 64, SL_GPU_SHARED, &p->err)) && (p->view = sl_gpu_view(b->out, 0, 64, &p->err));
}

static bool load(program *p) {
    bench *b = &p->b;
    return (b->library = sl_gpu_library_new(b->g, fake_source, strlen(fake_source), NULL, &p->err)) &&
           (b->add = sl_gpu_pipeline_new(b->library, "add", NULL, 0, &p->err));
}

static bool fill(program *p, sl_gpu_buffer *b, float value) {
    float *f = sl_gpu_map(b, 0, 64, SL_GPU_WRITE, &p->err);
    for (int i = 0; f && i < 16; i++)
        f[i] = value;
    return f && sl_gpu_unmap(b, &p->err);
}

static bool encode(program *p) {
    const bench *b = &p->b;
    p->list = sl_gpu_begin(b->stream, "list", &p->err);
    for (int i = 0; p->list && i < 40; i++)
        if (!bench_add(p->list, b, b->a, b->b, i % 2 ? b->out : p->view, 16, &p->err))
            return false;
    return p->list != NULL;
}

static bool run(program *p) {
    sl_gpu_ticket t;
    if (!encode(p) || !sl_gpu_encode_signal(p->list, p->event, 1, &p->err))
        return false;
    bool ok = sl_gpu_submit(p->list, &t, &p->err) && sl_gpu_wait(p->b.stream, t, SECOND, NULL, &p->err);
    p->list = NULL;
    if (!ok || !encode(p))
        return false;
    p->replay = sl_gpu_keep(p->list, &p->err);
    p->list = NULL;
    return p->replay && sl_gpu_replay_submit(p->replay, &t, &p->err) &&
           sl_gpu_synchronize(p->b.stream, SECOND, &p->err);
}

static bool check(program *p) {
    float *f = sl_gpu_map(p->b.out, 0, 64, SL_GPU_READ, &p->err);
    if (!f)
        return false;
    for (int i = 0; i < 16; i++)
        assert_true(f[i] == 42);
    return sl_gpu_unmap(p->b.out, &p->err);
}

static void end(program *p) {
    countdown = 0;
    sl_gpu_list_free(p->list);
    sl_gpu_replay_free(p->replay);
    sl_gpu_event_free(p->event);
    sl_gpu_buffer_free(p->view);
    sl_gpu_buffer_free(p->b.a);
    sl_gpu_buffer_free(p->b.b);
    sl_gpu_buffer_free(p->b.out);
    sl_gpu_stream_free(p->b.stream);
    sl_gpu_pipeline_free(p->b.add);
    sl_gpu_library_free(p->b.library);
    sl_gpu_close(p->b.g);
    fake_expect_nothing_alive();
}

/* From the k-th allocation of the program on, one fails. False: it had fewer. */
static bool with_failure(int k, bool compile_too) {
    program p = {0};
    fake_reset(NULL);
    fake.discrete = true;
    ran_out = false;
    countdown = k;
    bool ok = open_device(&p);
    if (ok && !compile_too) {
        int left = countdown;
        countdown = 0;
        ok = load(&p);
        countdown = left;
    } else if (ok) {
        ok = load(&p);
    }
    ok = ok && fill(&p, p.b.a, 40) && fill(&p, p.b.b, 2) && run(&p) && check(&p);
    bool failed = ran_out;
    end(&p);
    if (!ok && (p.err.code != SL_ERR_MEMORY || !strstr(p.err.message, "memory")))
        fail_msg("allocation %d: error %d '%s', expected one about memory", k, p.err.code, p.err.message);
    return failed;
}

static void every_allocation_of_the_core_may_fail(void **state) {
    int k = 1;
    while (k < 5000 && with_failure(k, false))
        k++;
    print_message("%d allocations\n", k - 1);
    assert_true(k > 40 && k < 5000);
}

/* The translator, the tables, the container. */
static void every_allocation_of_a_compilation_may_fail(void **state) {
    int k = 1;
    while (k < 20000 && with_failure(k, true))
        k += 1 + k / 100;
    print_message("%d allocations\n", k - 1);
    assert_true(k > 60 && k < 20000);
}

#else

static void every_allocation_of_a_compilation_may_fail(void **state) {
    skip();
}

static void every_allocation_of_the_core_may_fail(void **state) {
    print_message("SKIP: a sanitizer (or another C library) has its own allocator\n");
    skip();
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_allocation_of_the_core_may_fail, fake_reset),
        cmocka_unit_test_setup(every_allocation_of_a_compilation_may_fail, fake_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
