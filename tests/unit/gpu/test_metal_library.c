/* Source to library to pipeline on the metal device: flattening, diagnostics, markers, constants, the archive of
 * pipelines, the compiler service. */
#include "support_metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/metal/metal.h"

static const gpu_driver *const driver = &gpu_driver_metal;

static char folder[64];

static int folder_reset(void **state) {
    snprintf(folder, sizeof folder, "/tmp/sluice-metal-XXXXXX");
    return metal_reset(state) || !mkdtemp(folder);
}

static int folder_left_clean(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command) || metal_left_clean(state);
}

static char *put_file(const char *name, const char *text, size_t n) {
    char *path = sl_path_join(folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

/* ---- flattening ----------------------------------------------------------------------------------------------------
 */

static void expect_flat(const char *name, const char *text, const sl_gpu_compile_options *o, const char *expected) {
    gpu_source s = {.name = name, .text = text, .size = strlen(text), .options = o};
    sl_buf out = {0};
    sl_error err = {0};
    if (!metal_source_flatten(&s, &out, &err))
        fail_msg("%s", err.message);
    assert_string_equal(out.data, expected);
    sl_buf_free(&out);
}

#define HEAD "#pragma METAL fp contract(off)\n#line 1 \"k.metal\"\n"

static void defines_and_files_become_part_of_the_source(void **state) {
    sl_gpu_define defines[] = {{"ONE", NULL}, {"TWO", "1 + 1"}};
    const char *dirs[] = {"/nonexistent", folder};
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.defines = defines;
    o.define_count = 2;
    expect_flat("k.metal", "int x;\n", &o, "#define ONE 1\n#define TWO 1 + 1\n" HEAD "int x;\n");
    o.define_count = 0;
    o.include_dirs = dirs;
    o.include_count = 2;
    free(put_file("a.h", "int a;\n#  include <b.h>\nint c;", 30));
    free(put_file("b.h", "#pragma once\n#include \"a.h\"\nint b;\n", 35));
    char expected[1024];
    snprintf(expected, sizeof expected,
             HEAD "#include <metal_stdlib>\n"
                  "#line 1 \"%s/a.h\"\nint a;\n"
                  "#line 1 \"%s/b.h\"\n\n\nint b;\n\n#line 3 \"%s/a.h\"\n"
                  "int c;\n#line 3 \"k.metal\"\n"
                  "\n#include \"missing.h\"\n/*\n#include \"a.h\"\n*/ int z; // /*\n"
                  "#line 1 \"%s/a.h\"\nint a;\n\nint c;\n#line 9 \"k.metal\"\n",
             folder, folder, folder, folder);
    expect_flat(
        "k.metal",
        "#include <metal_stdlib>\n#include \"a.h\"\n\n#include \"missing.h\"\n/*\n#include \"a.h\"\n*/ int z; // "
        "/*\n#include \"a.h\"\n",
        &o, expected);
}

static void files_beside_the_source_are_found(void **state) {
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    char name[128], expected[512];
    free(put_file("beside.h", "int q;\n", 7));
    snprintf(name, sizeof name, "%s/k\"1.metal", folder);
    snprintf(expected, sizeof expected,
             "#pragma METAL fp contract(off)\n#line 1 \"%s/k\\\"1.metal\"\n#line 1 \"%s/beside.h\"\nint q;\n\n#line 2 "
             "\"%s/k\\\"1.metal\"\n",
             folder, folder, folder);
    expect_flat(name, "#include \"beside.h\"\n", &o, expected);
}

static void files_without_end_are_an_error(void **state) {
    const char *dirs[] = {folder};
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.include_dirs = dirs;
    o.include_count = 1;
    for (int i = 0; i < 40; i++) {
        char name[32], text[64];
        snprintf(name, sizeof name, "f%d.h", i);
        snprintf(text, sizeof text, "#include \"f%d.h\"\n", i + 1);
        free(put_file(name, text, strlen(text)));
    }
    gpu_source s = {.name = "k.metal", .text = "#include \"f0.h\"\n", .size = 16, .options = &o};
    sl_buf out = {0};
    sl_error err = {0};
    assert_false(metal_source_flatten(&s, &out, &err));
    assert_non_null(strstr(err.message, "f31.h:1: files include each other more than 32 deep"));
    sl_buf_free(&out);
    s.text = "int\0x;";
    s.size = 6;
    assert_false(metal_source_flatten(&s, &out, &err));
    assert_string_equal(err.message, "k.metal: a NUL byte in the source");
    sl_buf_free(&out);
}

/* ---- compile -------------------------------------------------------------------------------------------------------
 */

static void a_diagnostic_names_the_users_file_and_line(void **state) {
    gpu_device *d = metal_open_device(NULL);
    sl_error err = {0};
    assert_null(metal_load(d, "// standin: builtin\nkernel void f() {\n  @error }\n", &err));
    assert_int_equal(err.code, SL_ERR_COMPILE);
    assert_string_equal(err.message, "k.metal:3: use of undeclared identifier '@error'");
    assert_null(metal_load(d, "// \xff\xfe\n", &err));
    assert_string_equal(err.message, "k.metal: the source is not UTF-8");
    metal->fail_library = (standin_fault){"MTLLibraryErrorDomain", 2, "Compiler encountered an internal error"};
    assert_null(metal_load(d, METAL_BUILTIN, &err));
    assert_string_equal(err.message, "k.metal: MTLLibraryErrorDomain 2 (internal error): Compiler encountered an "
                                     "internal error");
    driver->close(d);
}

static void diagnostics_of_other_shapes_are_kept(void **state) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"program_source:12:4: error: a\nprogram_source:13:1: error: b\n", "program_source:12: a"},
        {"a:b.metal:7:1: fatal error: 'x.h' file not found\n", "a:b.metal:7: 'x.h' file not found"},
        {"a.metal:7: error: without a column", "a.metal:7: without a column"},
        {"Compilation failed: \n\nlinker error: undefined\n", "k: linker error: undefined"},
        {"", "k: "},
        {"\n\n", "k: \\x0a\\x0a"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_error err = {0};
        assert_false(metal_fail_diagnostic(&err, "k", cases[i].text));
        assert_string_equal(err.message, cases[i].message);
    }
}

static void math_is_safe_unless_asked_for_by_the_calls_a_system_has(void **state) {
    static const char *const missing[] = {NULL, "setMathMode:"};
    for (size_t i = 0; i < SL_COUNT(missing); i++)
        for (int fast = 0; fast < 2; fast++) {
            metal->missing[0] = missing[i];
            gpu_device *d = metal_open_device(NULL);
            sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
            o.fast_math = fast;
            gpu_source s = {.name = "k", .text = METAL_BUILTIN, .size = sizeof METAL_BUILTIN - 1, .options = &o};
            sl_buf payload = {0};
            sl_error err = {0};
            assert_true(driver->compile(d, &s, &payload, &err));
            assert_int_equal(metal->fast_math, fast);
            assert_int_equal(metal->safe_functions, !fast);
            assert_int_equal(metal->language, 31);
            /* The load that follows compiles nothing; one in another process compiles as this one did. */
            long compiled = metal->libraries_compiled;
            void *first = driver->library_load(d, payload.data, payload.size, &err);
            assert_int_equal(metal->libraries_compiled, compiled);
            metal->fast_math = !fast;
            void *second = driver->library_load(d, payload.data, payload.size, &err);
            assert_int_equal(metal->libraries_compiled, compiled + 1);
            assert_int_equal(metal->fast_math, fast);
            driver->library_free(d, first);
            driver->library_free(d, second);
            sl_buf_free(&payload);
            driver->close(d);
        }
}

static void put_metallib(sl_buf *b, const char *source) {
    uint32_t n = (uint32_t)strlen(source);
    sl_buf_append(b, "MTLB", 4);
    sl_buf_append(b, &n, 4);
    sl_buf_append(b, source, n);
    sl_buf_append(b, "ENDT", 4);
}

static void both_markers_of_a_metallib_are_checked(void **state) {
    gpu_device *d = metal_open_device(NULL);
    sl_buf b = {0};
    sl_error err = {0};
    put_metallib(&b, METAL_BUILTIN);
    void *library = driver->library_load(d, b.data, b.size, &err);
    assert_non_null(library);
    driver->library_free(d, library);
    metal->nil = STANDIN_NIL_DATA;
    assert_null(driver->library_load(d, b.data, b.size, &err));
    assert_int_equal(err.code, SL_ERR_MEMORY);
    b.data[5]++; /* Metal itself refuses it */
    assert_null(driver->library_load(d, b.data, b.size, &err));
    assert_non_null(strstr(err.message, "MTLLibraryErrorDomain 1 (unsupported): Invalid library file"));
    for (size_t cut = 0; cut < b.size; cut += cut < 16 ? 1 : 37) {
        assert_null(driver->library_load(d, b.data, cut, &err));
        assert_int_equal(err.code, SL_ERR_FORMAT);
    }
    b.data[0] = 'm';
    assert_null(driver->library_load(d, b.data, b.size, &err));
    assert_non_null(strstr(err.message, "do not begin MTLB and end ENDT"));
    static const char *const headers[] = {"SLUICE-MSL-1", "SLUICE-MSL-1 ", "SLUICE-MSL-1 x\nint",
                                          "SLUICE-MSL-2 s\nint"};
    for (size_t i = 0; i < SL_COUNT(headers); i++)
        assert_null(driver->library_load(d, headers[i], strlen(headers[i]), &err));
    assert_null(driver->library_load(d, "SLUICE-MSL-1 s\nint\0x", 20, &err));
    sl_buf_free(&b);
    driver->close(d);
}

/* ---- compiler service ----------------------------------------------------------------------------------------------
 */

static void the_compiler_service_gives_a_metallib(void **state) {
    setenv("SLUICE_METAL_SERVICE", "1", 1);
    gpu_device *d = metal_open_device(NULL);
    assert_int_equal(metal->services_used, 1);
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    for (size_t pad = 0; pad < 5; pad++) { /* sources of every length modulo 4, with bytes that are no characters */
        char text[512];
        snprintf(text, sizeof text, METAL_BUILTIN "// caf\xc3\xa9%.*s\n", (int)pad, "     ");
        gpu_source s = {.name = "k", .text = text, .size = strlen(text), .options = &o};
        sl_buf payload = {0};
        sl_error err = {0};
        assert_true(driver->compile(d, &s, &payload, &err));
        assert_memory_equal(payload.data, "MTLB", 4);
        void *library = driver->library_load(d, payload.data, payload.size, &err);
        assert_non_null(library);
        driver->library_free(d, library);
        sl_buf_free(&payload);
    }
    long used = metal->services_used;
    sl_error err = {0};
    assert_null(metal_load(d, "// standin: builtin\n@error\n", &err)); /* the public way says what is wrong */
    assert_string_equal(err.message, "k.metal:2: use of undeclared identifier '@error'");
    metal->service_broken = true;
    void *library = metal_load(d, METAL_BUILTIN, &err);
    assert_non_null(library);
    assert_int_equal(metal->services_used, used + 2);
    driver->library_free(d, library);
    driver->close(d);
}

static void a_compiler_service_that_fails_its_trial_is_left_alone(void **state) {
    setenv("SLUICE_METAL_SERVICE", "1", 1);
    metal->service_broken = true;
    gpu_device *d = metal_open_device(NULL);
    metal->service_broken = false;
    sl_error err = {0};
    void *library = metal_load(d, METAL_BUILTIN, &err);
    assert_int_equal(metal->services_used, 1);
    driver->library_free(d, library);
    driver->close(d);
    unsetenv("SLUICE_METAL_SERVICE"); /* and it is not tried unasked */
    driver->close(metal_open_device(NULL));
    setenv("SLUICE_METAL_SERVICE", "0", 1);
    driver->close(metal_open_device(NULL));
    assert_int_equal(metal->services_used, 1);
    setenv("SLUICE_METAL_SERVICE", "yes", 1);
    assert_null(driver->open(&(gpu_open){.index = -1}, &err));
    assert_string_equal(err.message, "SLUICE_METAL_SERVICE: \"yes\", expected a number from 0 to 1");
    unsetenv("SLUICE_METAL_SERVICE");
}

/* ---- pipelines -----------------------------------------------------------------------------------------------------
 */

static void function_constants_have_their_types(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    const sl_gpu_constant given[] = {
        {0, SL_GPU_BOOL, {.b = true}},       {1, SL_GPU_INT, {.i = -5}},   {2, SL_GPU_UINT, {.u = 0xfedcba98}},
        {3, SL_GPU_FLOAT, {.f = 1.5f}},      {4, SL_GPU_SHORT, {.i = -2}}, {5, SL_GPU_USHORT, {.u = 65535}},
        {7, SL_GPU_HALF, {.f = 0.0999755f}},
    };
    static const uint32_t expected[8] = {1, 0xfffffffb, 0xfedcba98, 0x3fc00000, 0xfffe, 0xffff, UINT32_MAX, 0x2e66};
    gpu_pipeline_limits limits;
    msl_kernel k = {.name = "constants", .entry = "constants"};
    void *pipeline = driver->pipeline_new(r.d, r.library, &k, given, SL_COUNT(given), &limits, &err);
    assert_non_null(pipeline);
    gpu_memory out = metal_memory(r.d, 32);
    gpu_bound b = {.slot = 0, .memory = &out, .length = 32};
    gpu_command c = metal_dispatch(pipeline, 1, &b, 1);
    assert_true(metal_run(&r, &c, 1, &err));
    assert_memory_equal(out.host, expected, sizeof expected);
    static const struct {
        float value;
        uint32_t bits;
    } halves[] = {{0, 0},          {-0.0f, 0x8000},  {65504, 0x7bff},   {65519, 0x7bff}, {65520, 0x7c00},
                  {1e30f, 0x7c00}, {-1e30f, 0xfc00}, {6e-8f, 0x0001},   {2e-8f, 0},      {-6.1e-5f, 0x83ff},
                  {2049, 0x6800},  {2051, 0x6802},   {1.0f / 3, 0x3555}};
    for (size_t i = 0; i < SL_COUNT(halves); i++) {
        sl_gpu_constant half = {0, SL_GPU_HALF, {.f = halves[i].value}};
        driver->pipeline_free(r.d, pipeline);
        pipeline = driver->pipeline_new(r.d, r.library, &k, &half, 1, &limits, &err);
        c = metal_dispatch(pipeline, 1, &b, 1);
        assert_true(metal_run(&r, &c, 1, &err));
        assert_int_equal(((uint32_t *)out.host)[0], halves[i].bits);
    }
    driver->free(r.d, &out);
    driver->pipeline_free(r.d, pipeline);
    metal_rig_close(&r);
}

static void a_pipeline_that_cannot_be_is_an_error(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    assert_null(metal_pipeline(r.d, r.library, "unknown", NULL, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_string_equal(err.message, "kernel unknown is not in the library, which has add_one, scale, move, constants, "
                                     "sizes, faults");
    metal->fail_pipeline = (standin_fault){"AGXMetalG14X", 3, "Compiler encountered XPC_ERROR_CONNECTION_INVALID"};
    assert_null(metal_pipeline(r.d, r.library, "move", NULL, &err));
    assert_int_equal(err.code, SL_ERR_COMPILE);
    assert_string_equal(err.message, "kernel move: no pipeline: AGXMetalG14X 3 (unknown code): Compiler encountered "
                                     "XPC_ERROR_CONNECTION_INVALID");
    metal->fail_function = (standin_fault){"MTLLibraryErrorDomain", 3, "function constant is missing"};
    assert_null(metal_pipeline(r.d, r.library, "constants", NULL, &err));
    assert_string_equal(err.message, "kernel constants: MTLLibraryErrorDomain 3 (compile failure): function constant "
                                     "is missing");
    metal->pipeline_width = 0;
    assert_null(metal_pipeline(r.d, r.library, "move", NULL, &err));
    assert_int_equal(err.code, SL_ERR_DEVICE);
    metal->pipeline_width = 32;
    metal->pipeline_threads = 896;
    gpu_pipeline_limits limits;
    void *move = metal_pipeline(r.d, r.library, "move", &limits, &err),
         *add = metal_pipeline(r.d, r.library, "add_one", NULL, &err);
    assert_int_equal(limits.max_threads, 64); /* the kernel's own */
    assert_int_equal(limits.threadgroup_memory, 16384);
    driver->pipeline_free(r.d, move);
    move = metal_pipeline(r.d, r.library, "scale", &limits, &err);
    assert_int_equal(limits.max_threads, 896);
    driver->pipeline_free(r.d, move);
    driver->pipeline_free(r.d, add);
    metal_rig_close(&r);
}

/* Opens a device with the archive, makes two pipelines, closes it. */
static void make_two(void) {
    sl_error err = {0};
    gpu_device *d = metal_open_device(&(gpu_open){.index = -1, .cache_dir = folder});
    void *library = metal_load(d, METAL_BUILTIN, &err);
    void *a = metal_pipeline(d, library, "move", NULL, &err), *b = metal_pipeline(d, library, "scale", NULL, &err);
    assert_non_null(a);
    assert_non_null(b);
    driver->pipeline_free(d, a);
    driver->pipeline_free(d, b);
    driver->library_free(d, library);
    driver->close(d);
}

static void expect_pipelines(long compiled, long from_archive) {
    assert_int_equal(metal->pipelines_compiled, compiled);
    assert_int_equal(metal->pipelines_from_archive, from_archive);
}

static void pipelines_are_kept_on_disk(void **state) {
    char *path = sl_path_join(folder, "metal-apple8-macOS_14.5_23F79.archive");
    make_two();
    expect_pipelines(2, 0);
    assert_true(sl_path_exists(path));
    make_two();
    expect_pipelines(2, 2);
    free(put_file("metal-apple8-macOS_14.5_23F79.archive", "damaged", 7)); /* ignored, then replaced */
    make_two();
    expect_pipelines(4, 2);
    make_two();
    expect_pipelines(4, 4);
    metal->build = "23G1"; /* another system's are not looked at */
    make_two();
    expect_pipelines(6, 4);
    metal->missing[0] = "newBinaryArchiveWithDescriptor:error:";
    make_two();
    expect_pipelines(8, 4);
    free(path);
}

static void an_archive_that_cannot_be_written_is_no_error(void **state) {
    char kept[sizeof folder];
    memcpy(kept, folder, sizeof folder);
    snprintf(folder, sizeof folder, "/nonexistent/folder");
    make_two();
    memcpy(folder, kept, sizeof folder);
    metal->fail_archive = (standin_fault){"MTLBinaryArchiveDomain", 3, "cannot be added"};
    make_two();
    make_two(); /* one of the two was kept */
    expect_pipelines(5, 1);
}

int main(void) {
    if (!metal_has_stand_in())
        return METAL_SKIPPED;
#define TEST(f) cmocka_unit_test_setup_teardown(f, folder_reset, folder_left_clean)
    const struct CMUnitTest tests[] = {
        TEST(defines_and_files_become_part_of_the_source),
        TEST(files_beside_the_source_are_found),
        TEST(files_without_end_are_an_error),
        TEST(a_diagnostic_names_the_users_file_and_line),
        TEST(diagnostics_of_other_shapes_are_kept),
        TEST(math_is_safe_unless_asked_for_by_the_calls_a_system_has),
        TEST(both_markers_of_a_metallib_are_checked),
        TEST(the_compiler_service_gives_a_metallib),
        TEST(a_compiler_service_that_fails_its_trial_is_left_alone),
        TEST(function_constants_have_their_types),
        TEST(a_pipeline_that_cannot_be_is_an_error),
        TEST(pipelines_are_kept_on_disk),
        TEST(an_archive_that_cannot_be_written_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
