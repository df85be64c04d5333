/* The checks of a dispatch: each mistake is one line with kernel, slot, name, what was found and what was expected, and
 * leaves the list as it was. */
#include "support_fake.h"

#include <stdio.h>
#include <string.h>

/* A correct dispatch of `add` that a test changes. */
typedef struct example {
    bench b;
    sl_gpu_list *list;
    uint32_t n;
    sl_gpu_binding bindings[6];
    sl_gpu_threadgroup_length lengths[4];
    sl_gpu_dispatch d;
} example;

static void example_open(example *e) {
    sl_error err = {0};
    memset(e, 0, sizeof *e);
    e->b = bench_open();
    e->list = sl_gpu_begin(e->b.stream, "checks", &err);
    e->n = 16;
    e->bindings[0] = (sl_gpu_binding){.slot = 0, .buffer = e->b.a};
    e->bindings[1] = (sl_gpu_binding){.slot = 1, .buffer = e->b.b};
    e->bindings[2] = (sl_gpu_binding){.slot = 2, .buffer = e->b.out};
    e->bindings[3] = (sl_gpu_binding){.slot = 3, .bytes = &e->n, .length = sizeof e->n};
    e->d = (sl_gpu_dispatch){.pipeline = e->b.add,
                             .groups = {1, 1, 1},
                             .threads = {32, 1, 1},
                             .bindings = e->bindings,
                             .binding_count = 4,
                             .lengths = e->lengths};
}

static void example_close(example *e) {
    sl_gpu_list_free(e->list);
    bench_close(&e->b);
}

static void accepted(const example *e) {
    sl_error err = {0};
    if (!sl_gpu_encode(e->list, &e->d, &err))
        fail_msg("%s", err.message);
}

/* Refused with these words; then the list still takes a correct dispatch, and holds nothing else. */
static void refused(const example *e, const char *words) {
    sl_error err = {0};
    assert_false(sl_gpu_encode(e->list, &e->d, &err));
    expect_error(&err, SL_ERR_ARGUMENT, words);
    assert_null(strchr(err.message, '\n'));
}

static sl_gpu_pipeline *pipeline_of(const example *e, const char *entry, const sl_gpu_constant *c, size_t n) {
    sl_error err = {0};
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(e->b.library, entry, c, n, &err);
    if (!p)
        fail_msg("%s", err.message);
    return p;
}

static void a_correct_dispatch_reaches_the_driver(void **state) {
    example e;
    size_t n;
    example_open(&e);
    accepted(&e);
    bench_submit(e.list);
    assert_string_equal(fake_last_list(), "dispatch add");
    const gpu_bound *bound = fake_last_bound(&n);
    assert_int_equal(n, 4);
    assert_int_equal(bound[2].slot, 2);
    assert_true(bound[2].writes && !bound[0].writes && !bound[1].writes);
    assert_int_equal(bound[0].length, 64);
    assert_memory_equal(bound[3].bytes, &e.n, sizeof e.n);
    assert_ptr_not_equal(bound[3].bytes, &e.n);
    e.list = NULL;
    example_close(&e);
}

static void threadgroup_sizes(void **state) {
    example e;
    example_open(&e);
    e.d.threads[0] = 257;
    refused(&e, "kernel 'add': a threadgroup of 257 x 1 x 1 = 257 threads, this pipeline allows 256");
    e.d.threads[0] = 1;
    e.d.threads[1] = 0;
    refused(&e, "kernel 'add': a threadgroup of 1 x 0 x 1 threads, expected at least 1");
    e.d.threads[0] = 0x80000000;
    e.d.threads[1] = 2;
    e.d.threads[2] = 0xffffffff;
    refused(&e, "this pipeline allows 256");
    e.d.threads[0] = 16;
    e.d.threads[1] = 16;
    e.d.threads[2] = 1;
    accepted(&e);
    e.d.threads[2] = 2;
    refused(&e, "16 x 16 x 2 = 512 threads");
    example_close(&e);
}

static void grids(void **state) {
    example e;
    example_open(&e);
    e.d.groups[0] = 0;
    refused(&e, "kernel 'add': a grid of 0 x 1 x 1 threadgroups, expected at least 1");
    e.d.groups[0] = 0x80000000;
    refused(&e, "expected at most 2147483647 x 65535 x 65535");
    e.d.groups[0] = 1;
    e.d.groups[1] = 65536;
    refused(&e, "expected at most");
    e.d.groups[1] = 1;
    e.d.groups[2] = 65536;
    refused(&e, "expected at most");
    e.d.groups[2] = 1;
    e.d.groups[0] = 0x7fffffff;
    refused(&e, "2147483647 threadgroups of 32 threads in direction x: positions are 32-bit numbers");
    e.d.groups[0] = 0x7ffffff;
    e.d.groups[1] = e.d.groups[2] = 65535;
    accepted(&e);
    example_close(&e);
}

static void missing_and_extra_bindings(void **state) {
    example e;
    example_open(&e);
    e.d.binding_count = 3;
    refused(&e, "kernel 'add', slot 3 'n': nothing is bound, expected bytes or a buffer of at least 4 bytes");
    e.d.bindings++;
    refused(&e, "kernel 'add', slot 0 'a': nothing is bound, expected a buffer of at least 4 bytes");
    e.d.bindings--;
    e.d.binding_count = 5;
    e.bindings[4] = (sl_gpu_binding){.slot = 7, .buffer = e.b.a};
    refused(&e, "kernel 'add', slot 7: bound, but the kernel has no such argument; its slots: 0 'a', 1 'b', 2 'out', 3 "
                "'n'");
    e.bindings[4].slot = 31;
    refused(&e, "slot 31 is bound, expected 0 to 30");
    e.bindings[4].slot = -1;
    refused(&e, "slot -1 is bound, expected 0 to 30");
    e.bindings[4].slot = 1;
    refused(&e, "kernel 'add', slot 1 'b': bound twice");
    e.d.binding_count = 4;
    e.d.bindings = NULL;
    refused(&e, "one of the lists is NULL");
    example_close(&e);
}

static void ranges(void **state) {
    example e;
    example_open(&e);
    e.bindings[2].offset = 64;
    refused(&e, "kernel 'add', slot 2 'out': 0 bytes at offset 64, expected at least 4");
    e.bindings[2].offset = 65;
    refused(&e, "kernel 'add', slot 2 'out': offset 65 is past the end, the buffer has 64 bytes");
    e.bindings[2].offset = UINT64_MAX;
    refused(&e, "past the end");
    e.bindings[2].offset = 8;
    e.bindings[2].length = 57;
    refused(&e, "kernel 'add', slot 2 'out': 57 bytes at offset 8, the buffer has 64");
    e.bindings[2].length = UINT64_MAX;
    refused(&e, "the buffer has 64");
    e.bindings[2].length = 3;
    refused(&e, "kernel 'add', slot 2 'out': 3 bytes at offset 8, expected at least 4");
    e.bindings[2].length = 4;
    accepted(&e);
    e.bindings[2].offset = 6;
    refused(&e, "kernel 'add', slot 2 'out': it begins at byte 6 of its memory, expected a multiple of 4");
    example_close(&e);
}

/* The start of a view counts, and where wrapped memory lies in its page. */
static void alignment_is_of_the_memory(void **state) {
    example e;
    sl_error err = {0};
    char space[64] = {0};
    example_open(&e);
    sl_gpu_buffer *view = sl_gpu_view(e.b.a, 2, 32, &err);
    e.bindings[0].buffer = view;
    refused(&e, "kernel 'add', slot 0 'a': it begins at byte 2 of its memory");
    e.bindings[0].offset = 2;
    accepted(&e);
    fake.align = 3;
    sl_gpu_buffer *wrapped = sl_gpu_wrap(e.b.g, space, sizeof space, &err);
    e.bindings[0] = (sl_gpu_binding){.slot = 0, .buffer = wrapped};
    refused(&e, "slot 0 'a': it begins at byte 3 of its memory");
    sl_gpu_pipeline *wide = pipeline_of(&e, "wide", NULL, 0);
    sl_gpu_binding half[] = {{.slot = 0, .buffer = e.b.a}, {.slot = 30, .buffer = e.b.out, .offset = 2}};
    e.d.pipeline = wide;
    e.d.bindings = half;
    e.d.binding_count = 2;
    accepted(&e);
    half[1].offset = 1;
    refused(&e, "kernel 'wide', slot 30 'out': it begins at byte 1 of its memory, expected a multiple of 2");
    half[1].offset = 0;
    half[0].offset = 16;
    accepted(&e);
    half[0].offset = 8; /* a multiple of a word, and not of the type */
    refused(&e, "kernel 'wide', slot 0 'x': it begins at byte 8 of its memory, expected a multiple of 16");
    half[0].offset = 0;
    half[0].length = 15;
    refused(&e, "kernel 'wide', slot 0 'x': 15 bytes at offset 0, expected at least 16");
    sl_gpu_pipeline_free(wide);
    sl_gpu_buffer_free(view);
    sl_gpu_buffer_free(wrapped);
    example_close(&e);
}

static void bytes(void **state) {
    static uint8_t big[4097];
    example e;
    example_open(&e);
    e.bindings[3].bytes = big;
    e.bindings[3].length = 4097;
    refused(&e, "kernel 'add', slot 3 'n': 4097 bytes, expected 1 to 4096: use a buffer for more");
    e.bindings[3].length = 4096;
    accepted(&e);
    e.bindings[3].length = 3;
    refused(&e, "kernel 'add', slot 3 'n': 3 bytes, expected at least 4");
    e.bindings[3].length = 0;
    refused(&e, "slot 3 'n': 0 bytes, expected 1 to 4096");
    e.bindings[3] = (sl_gpu_binding){.slot = 3};
    refused(&e, "slot 3 'n': neither a buffer nor bytes are bound");
    e.bindings[3] = (sl_gpu_binding){.slot = 3, .buffer = e.b.b};
    accepted(&e);
    e.bindings[2] = (sl_gpu_binding){.slot = 2, .bytes = big, .length = 64};
    refused(&e, "kernel 'add', slot 2 'out': bytes are bound, expected a buffer: the kernel writes to it");
    e.bindings[2] = (sl_gpu_binding){.slot = 2, .buffer = e.b.out};
    e.bindings[1] = (sl_gpu_binding){.slot = 1, .bytes = big, .length = 64};
    accepted(&e);
    example_close(&e);
}

static void access_is_what_the_kernel_can_do(void **state) {
    example e;
    size_t n;
    example_open(&e);
    e.bindings[0].access = SL_GPU_WRITE;
    refused(&e, "kernel 'add', slot 0 'a': declared as written, but the kernel only reads it");
    e.bindings[0].access = SL_GPU_READ_WRITE;
    refused(&e, "declared as written");
    e.bindings[0].access = (sl_gpu_access)4;
    refused(&e, "kernel 'add', slot 0 'a': access 4, expected read, write or both");
    e.bindings[0].access = SL_GPU_READ;
    e.bindings[2].access = SL_GPU_READ; /* this dispatch only reads what the kernel could write */
    accepted(&e);
    bench_submit(e.list);
    assert_false(fake_last_bound(&n)[2].writes);
    e.list = NULL;
    example_close(&e);
}

static void objects_of_another_device(void **state) {
    example e;
    sl_error err = {0};
    example_open(&e);
    bench other = bench_open();
    e.bindings[1].buffer = other.b;
    refused(&e, "kernel 'add', slot 1 'b': the buffer is of another device");
    e.bindings[1].buffer = e.b.b;
    e.d.pipeline = other.add;
    refused(&e, "kernel 'add': the pipeline is of another device");
    assert_false(sl_gpu_encode_copy(e.list, e.b.a, 0, other.a, 0, 4, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "copy from: the buffer is of another device");
    assert_false(sl_gpu_encode_fill(e.list, other.a, 0, 4, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "fill: the buffer is of another device");
    sl_gpu_event *event = sl_gpu_event_new(other.g, &err);
    assert_false(sl_gpu_encode_wait(e.list, event, 1, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the event is of another device");
    sl_gpu_event_free(event);
    sl_gpu_buffer_free(other.a);
    sl_gpu_buffer_free(other.b);
    sl_gpu_buffer_free(other.out);
    sl_gpu_stream_free(other.stream);
    sl_gpu_pipeline_free(other.add);
    sl_gpu_library_free(other.library);
    sl_gpu_close(other.g);
    example_close(&e);
}

/* ---- threadgroup memory ------------------------------------------------------------------------------------------ */

static void threadgroup_lengths(void **state) {
    example e;
    fake.statics = 100;
    example_open(&e);
    sl_gpu_pipeline *tile = pipeline_of(&e, "tile", NULL, 0);
    e.d.pipeline = tile;
    e.d.binding_count = 1;
    refused(&e, "kernel 'tile', slot 0 't': its threadgroup length is not given, expected at least ");
    e.d.length_count = 1;
    e.lengths[0] = (sl_gpu_threadgroup_length){0, 0};
    refused(&e, "kernel 'tile', slot 0 't': 0 bytes of threadgroup memory, expected ");
    e.lengths[0].bytes = 32768 - 112 + 1; /* 100 of its own are rounded up too */
    refused(&e, "kernel 'tile': 32784 bytes of threadgroup memory (100 of its own), expected at most 32768");
    e.lengths[0].bytes = 32769;
    refused(&e, "32769 bytes of threadgroup memory, expected ");
    e.lengths[0].bytes = 32768 - 112;
    accepted(&e);
    e.lengths[0].bytes = 33;
    accepted(&e);
    e.d.length_count = 2;
    e.lengths[1] = (sl_gpu_threadgroup_length){1, 16};
    refused(&e, "kernel 'tile', slot 1: a threadgroup length is given, but the kernel has no such argument");
    e.lengths[1].slot = 0;
    refused(&e, "kernel 'tile', slot 0 't': its threadgroup length is given twice");
    e.lengths[1].slot = 31;
    refused(&e, "threadgroup slot 31 has a length, expected 0 to 30");
    bench_submit(e.list);
    assert_int_equal(fake_last_length()->bytes, 48);
    e.list = NULL;
    sl_gpu_pipeline_free(tile);
    example_close(&e);
}

static void too_much_static_threadgroup_memory(void **state) {
    example e;
    sl_error err = {0};
    example_open(&e);
    fake.statics = 32769;
    assert_null(sl_gpu_pipeline_new(e.b.library, "tile", NULL, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT,
                 "kernel 'tile' declares 32769 bytes of threadgroup memory, the device has 32768");
    example_close(&e);
}

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

static void entries_and_constants(void **state) {
    example e;
    sl_error err = {0};
    example_open(&e);
    assert_null(sl_gpu_pipeline_new(e.b.library, "ad", NULL, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "no kernel 'ad' in the library, which has add, tile, optional, wide");
    assert_null(sl_gpu_pipeline_new(e.b.library, NULL, NULL, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "entry is NULL");
    sl_gpu_constant c[2] = {{.id = 5, .type = SL_GPU_INT}, {.id = 1, .type = SL_GPU_INT}};
    assert_null(sl_gpu_pipeline_new(e.b.library, "tile", c, 1, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "kernel 'tile': the library has no constant 5");
    c[0] = (sl_gpu_constant){.id = 1, .type = SL_GPU_FLOAT};
    assert_null(sl_gpu_pipeline_new(e.b.library, "tile", c, 1, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "kernel 'tile': constant 1 'width' is given as float, expected int");
    c[0].type = SL_GPU_INT;
    assert_null(sl_gpu_pipeline_new(e.b.library, "tile", c, 2, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "constant 1 is given twice");
    c[0].type = (sl_gpu_type)99;
    assert_null(sl_gpu_pipeline_new(e.b.library, "tile", c, 1, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "type 99");
    assert_null(sl_gpu_pipeline_new(e.b.library, "tile", NULL, 1, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "1 constants at NULL");
    example_close(&e);
}

/* An argument that the constants leave out is neither demanded nor passed on. */
static void optional_arguments(void **state) {
    example e;
    size_t n;
    example_open(&e);
    sl_gpu_constant on = {.id = 0, .type = SL_GPU_BOOL, .value.b = true};
    sl_gpu_pipeline *with = pipeline_of(&e, "optional", &on, 1), *without = pipeline_of(&e, "optional", NULL, 0);
    sl_gpu_pipeline_info info = {.size = sizeof info};
    sl_gpu_pipeline_get_info(without, &info);
    assert_string_equal(info.entry, "optional");
    assert_int_equal(info.arg_count, 2);
    assert_true(info.args[1].unused && !info.args[0].unused);
    sl_gpu_pipeline_get_info(with, &info);
    assert_false(info.args[1].unused);
    assert_int_equal(info.args[1].kind, SL_GPU_ARG_READ);
    assert_string_equal(info.args[1].name, "bias");
    e.d.pipeline = with;
    e.d.binding_count = 1;
    refused(&e, "kernel 'optional', slot 1 'bias': nothing is bound");
    e.d.binding_count = 2;
    accepted(&e);
    e.d.pipeline = without;
    e.d.binding_count = 1;
    accepted(&e);
    e.d.binding_count = 2;
    accepted(&e);
    bench_submit(e.list);
    fake_last_bound(&n);
    assert_int_equal(n, 1);
    e.list = NULL;
    sl_gpu_pipeline_free(with);
    sl_gpu_pipeline_free(without);
    example_close(&e);
}

static void a_pipeline_outlives_its_library(void **state) {
    example e;
    example_open(&e);
    sl_gpu_library_free(e.b.library);
    assert_int_equal(sl_gpu_library_count(e.b.library), 0);
    accepted(&e);
    bench_submit(e.list);
    e.list = NULL;
    example_close(&e);
}

/* A source's other kernels can be used, and who asks for the one that was left out is told why; also from the cache. */
static void a_kernel_that_was_left_out_says_why(void **state) {
    static const char source[] = "#include <metal_stdlib>\n"
                                 "using namespace metal;\n"
                                 "kernel void good(device float *x [[buffer(0)]]) { x[0] = 1; }\n"
                                 "kernel void bad(texture2d<float> t [[texture(0)]], device float *x [[buffer(0)]]) {\n"
                                 "    x[0] = t.read(uint2(0)).x;\n"
                                 "}\n";
    sl_error err = {0};
    sl_gpu *g = fake_open("", &err);
    sl_gpu_library *l = sl_gpu_library_new(g, source, sizeof source - 1, NULL, &err);
    assert_non_null(l);
    assert_int_equal(sl_gpu_library_count(l), 1);
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(l, "good", NULL, 0, &err);
    assert_non_null(p);
    assert_null(sl_gpu_pipeline_new(l, "bad", NULL, 0, &err));
    expect_error(&err, SL_ERR_UNSUPPORTED,
                 "no kernel 'bad' in the library, it was left out: kernel.metal:4: kernel bad: textures are not");
    assert_null(sl_gpu_pipeline_new(l, "ugly", NULL, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "no kernel 'ugly' in the library, which has good");
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    sl_gpu_close(g);
}

/* Its arguments are not known: what is bound counts as written, limits still hold. */
static void a_bare_metallib(void **state) {
    sl_error err = {0};
    size_t n;
    fake.device = "metal";
    bench b = {.g = fake_open("", &err)};
    b.library = sl_gpu_library_load(b.g, "MTLBENDT", 8, &err);
    assert_non_null(b.library);
    assert_int_equal(sl_gpu_library_count(b.library), 0);
    assert_non_null(strstr(fake_log(), "a .metallib has no table of its kernels' arguments: what is bound is not"));
    sl_gpu_constant c = {.id = 4, .type = SL_GPU_INT};
    b.add = sl_gpu_pipeline_new(b.library, "anything", &c, 1, &err);
    assert_non_null(b.add);
    b.stream = sl_gpu_stream_new(b.g, &err);
    b.a = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err);
    sl_gpu_binding bindings[] = {{.slot = 9, .buffer = b.a}, {.slot = 2, .bytes = &c, .length = 3}};
    sl_gpu_threadgroup_length length = {5, 20};
    sl_gpu_dispatch d = {b.add, {1, 1, 1}, {300, 1, 1}, bindings, 2, &length, 1, NULL};
    sl_gpu_list *l = sl_gpu_begin(b.stream, NULL, &err);
    assert_false(sl_gpu_encode(l, &d, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "kernel 'anything': a threadgroup of 300 x 1 x 1");
    d.threads[0] = 32;
    assert_true(sl_gpu_encode(l, &d, &err));
    assert_true(sl_gpu_encode(l, &d, &err));
    bench_submit(l);
    assert_string_equal(fake_last_list(), "dispatch anything | barrier | dispatch anything");
    assert_true(fake_last_bound(&n)[0].writes);
    assert_int_equal(fake_last_length()->bytes, 32);
    bench_close(&b);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static void copies_and_fills(void **state) {
    example e;
    sl_error err = {0};
    example_open(&e);
    sl_gpu_list *l = e.list;
    assert_false(sl_gpu_encode_copy(l, e.b.a, 0, e.b.b, 8, 60, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "copy from: 60 bytes at offset 8 end at 68, the buffer has 64");
    assert_false(sl_gpu_encode_copy(l, e.b.a, UINT64_MAX - 3, e.b.b, 0, 8, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "copy to: 8 bytes at offset");
    assert_false(sl_gpu_encode_copy(l, e.b.a, 0, e.b.b, 0, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "copy to: 0 bytes");
    assert_false(sl_gpu_encode_copy(l, e.b.a, 2, e.b.b, 0, 8, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "copy to: 8 bytes at offset 2, expected multiples of 4");
    assert_false(sl_gpu_encode_copy(l, e.b.a, 0, e.b.a, 4, 8, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the ranges overlap");
    assert_true(sl_gpu_encode_copy(l, e.b.a, 0, e.b.a, 8, 8, &err));
    assert_false(sl_gpu_encode_fill(l, e.b.a, 0, 65, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "fill: 65 bytes at offset 0 end at 65");
    assert_false(sl_gpu_encode_fill(l, e.b.a, 0, 3, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "multiples of 4");
    assert_false(sl_gpu_encode_fill(l, NULL, 0, 4, 0, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "no buffer: the handle is NULL");
    bench_submit(l);
    assert_string_equal(fake_last_list(), "copy");
    e.list = NULL;
    example_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_correct_dispatch_reaches_the_driver, fake_reset),
        cmocka_unit_test_setup(threadgroup_sizes, fake_reset),
        cmocka_unit_test_setup(grids, fake_reset),
        cmocka_unit_test_setup(missing_and_extra_bindings, fake_reset),
        cmocka_unit_test_setup(ranges, fake_reset),
        cmocka_unit_test_setup(alignment_is_of_the_memory, fake_reset),
        cmocka_unit_test_setup(bytes, fake_reset),
        cmocka_unit_test_setup(access_is_what_the_kernel_can_do, fake_reset),
        cmocka_unit_test_setup(objects_of_another_device, fake_reset),
        cmocka_unit_test_setup(threadgroup_lengths, fake_reset),
        cmocka_unit_test_setup(too_much_static_threadgroup_memory, fake_reset),
        cmocka_unit_test_setup(entries_and_constants, fake_reset),
        cmocka_unit_test_setup(optional_arguments, fake_reset),
        cmocka_unit_test_setup(a_pipeline_outlives_its_library, fake_reset),
        cmocka_unit_test_setup(a_kernel_that_was_left_out_says_why, fake_reset),
        cmocka_unit_test_setup(a_bare_metallib, fake_reset),
        cmocka_unit_test_setup(copies_and_fills, fake_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
