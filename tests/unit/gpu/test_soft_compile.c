/* The soft device's compiler and libraries: errors with the source's line, no compiler, nothing left behind, damaged
 * payloads, function constants of their own in each pipeline. */
#include "support_soft.h"

#include "gpu/texts.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_diagnostics(void **state) {
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"k.metal:7:3: error: use of undeclared identifier 'msl_user::x'\nk.metal:9:1: error: other\n",
         "k.metal:7: use of undeclared identifier 'x'"},
        {"k.metal:2:1: warning: odd\nk.metal:3:1: fatal error: 'no.h' file not found\n",
         "k.metal:3: 'no.h' file not found"},
        {"simd.h:70:9: error: static_assert failed\nk.metal:12:5: note: in instantiation of 'metal::f<int>'\n"
         "k.metal:13:5: note: later\n",
         "k.metal:12: static_assert failed"},
        {"simd.h:70:9: error: in the library alone\n", "simd.h:70: in the library alone"},
        {"clang: error: no such file\n", "k.metal: no such file"},
        {"Killed\nmore\n", "k.metal: the compiler failed: Killed"},
        {"", "k.metal: the compiler failed: "},
        {":1:1: error: \n", ":1: "},
        {"1:1: error: x", "k.metal: x"},
    };
    char out[200], small[12];
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        soft_first_diagnostic(rows[i].text, "k.metal", out, sizeof out);
        assert_string_equal(out, rows[i].want);
        soft_first_diagnostic(rows[i].text, "k.metal", small, sizeof small);
        assert_true(strlen(small) < sizeof small);
    }
}

static int count_entries(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void test_errors_name_the_line(void **state) {
    soft_rig r;
    char dir[] = "/tmp/sluice-test-XXXXXX";
    (void)state;
    if (!soft_rig_open(&r, 1, false, 0))
        return;
    assert_non_null(mkdtemp(dir));
    setenv("TMPDIR", dir, 1);
    assert_false(soft_rig_compiles(&r, "\nKERNEL {\n  no_such_thing(3);\n}\n"));
    assert_int_equal(r.error.code, SL_ERR_COMPILE);
    assert_non_null(strstr(r.error.message, "t.metal:3: use of undeclared identifier 'no_such_thing'"));
    assert_non_null(strstr(r.log, "no_such_thing"));
    assert_true(soft_rig_compiles(&r, "KERNEL {}\n"));
    assert_int_equal(count_entries(dir), 0);
    setenv("TMPDIR", "/nowhere/at/all", 1);
    assert_false(soft_rig_compiles(&r, "KERNEL {}\n"));
    assert_non_null(strstr(r.error.message, "/nowhere/at/all"));
    unsetenv("TMPDIR");
    rmdir(dir);
    soft_rig_close(&r);
}

/* PATH decides: without clang++ the device says what is missing; a versioned name will do. */
static void test_finding_the_compiler(void **state) {
    char dir[] = "/tmp/sluice-test-XXXXXX";
    sl_error err = {0};
    gpu_open o = {.index = 1};
    char *saved = sl_strdup(getenv("PATH") ? getenv("PATH") : "");
    (void)state;
    assert_non_null(mkdtemp(dir));
    setenv("PATH", dir, 1);
    assert_null(gpu_driver_soft.open(&o, &err));
    assert_int_equal(err.code, SL_ERR_DEVICE);
    assert_non_null(strstr(err.message, "soft: no clang++ on PATH"));
    char *file = sl_asprintf("%s/clang++-15", dir), *plain = sl_asprintf("%s/clang++", dir);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fclose(f);
    chmod(file, 0755);
    mkdir(plain, 0755); /* a directory of that name is none */
    char *found = soft_find_compiler(&err);
    assert_non_null(found);
    assert_string_equal(found, file);
    setenv("PATH", saved, 1);
    unlink(file);
    rmdir(plain);
    rmdir(dir);
    free(found);
    free(file);
    free(plain);
    free(saved);
}

static void test_damaged_payloads(void **state) {
    soft_rig r;
    sl_buf good = {0};
    sl_error err;
    (void)state;
    if (!soft_rig_open(&r, 1, false, 0))
        return;
    static const char code[] = "int nothing;\n";
    assert_true(soft_compile_unit(r.device, "t.metal", code, strlen(code), false, &good, &r.error));
    assert_null(gpu_driver_soft.library_load(r.device, good.data, good.size, &err));
    assert_non_null(strstr(err.message, "soft_init"));
    for (size_t n = 0; n < sizeof(soft_payload) + 64; n += 7)
        assert_null(gpu_driver_soft.library_load(r.device, good.data, n, &err));
    soft_payload head;
    memcpy(&head, good.data, sizeof head);
    head.checked = 1;
    memcpy(good.data, &head, sizeof head);
    assert_null(gpu_driver_soft.library_load(r.device, good.data, good.size, &err));
    assert_non_null(strstr(err.message, "compiled with checks"));
    head.checked = 0;
    head.abi++;
    memcpy(good.data, &head, sizeof head);
    assert_null(gpu_driver_soft.library_load(r.device, good.data, good.size, &err));
    sl_buf_free(&good);
    soft_rig_close(&r);
}

static void test_constants(void **state) {
    soft_rig r;
    gpu_pipeline_limits limits;
    (void)state;
    if (!soft_rig_open(&r, 1, false, 0))
        return;
    soft_rig_kernel(
        &r,
        "static int32_t a = 5; static bool a_defined; static float b = 2; static uint16_t h;\n"
        "static int twice() { return 2 * a; }\n"
        "static const soft_constant constants[] = {{3, 1, \"a\", &a, &a_defined}, {4, 3, \"b\", &b, nullptr},"
        " {5, 6, \"h\", &h, nullptr}};\n"
        "#define CONSTANTS constants\n#define CONSTANT_COUNT 3\n"
        "KERNEL { float *o = BUFFER(float, 0); o[0] = twice(); o[1] = a_defined; o[2] = b; o[3] = h; }\n",
        NULL, 0);
    static const sl_gpu_constant set[] = {{.id = 3, .type = SL_GPU_INT, .value = {.i = -40}},
                                          {.id = 4, .type = SL_GPU_FLOAT, .value = {.f = 0.25f}},
                                          {.id = 5, .type = SL_GPU_HALF, .value = {.f = 1.5f}},
                                          {.id = 99, .type = SL_GPU_BOOL, .value = {.b = true}}};
    void *plain = r.pipeline;
    void *other = gpu_driver_soft.pipeline_new(r.device, r.library, &r.kernel, set, 4, &limits, &r.error);
    assert_non_null(other);
    gpu_memory m = soft_rig_memory(&r, 16);
    soft_run run = {.bound = {{.slot = 0, .memory = &m, .length = 16, .writes = true}}, .bound_count = 1};
    const float want[2][4] = {{10, 0, 2, 0}, {-80, 1, 0.25f, 0x3E00}};
    for (int i = 0; i < 4; i++) {
        r.pipeline = i % 2 ? other : plain;
        assert_true(soft_rig_run(&r, &run));
        assert_memory_equal(m.host, want[i % 2], 16);
    }
    r.pipeline = plain;
    gpu_driver_soft.pipeline_free(r.device, other);
    sl_gpu_constant wrong = {.id = 3, .type = SL_GPU_FLOAT, .value = {.f = 1}};
    assert_null(gpu_driver_soft.pipeline_new(r.device, r.library, &r.kernel, &wrong, 1, &limits, &r.error));
    assert_non_null(strstr(r.error.message, "function constant 3 (a)"));
    msl_kernel missing = {.name = "z", .entry = "z"};
    assert_null(gpu_driver_soft.pipeline_new(r.device, r.library, &missing, NULL, 0, &limits, &r.error));
    gpu_driver_soft.free(r.device, &m);
    soft_rig_close(&r);
}

/* Any bytes instead of an object or its line table: no line, no crash. */
static void test_lines_of_damaged_objects(void **state) {
    (void)state;
    uint64_t random = 12345;
    const char *file;
    size_t n;
    char *self = sl_read_text("/proc/self/exe", 64 << 20, &n, NULL);
    if (!self || n < 4096) {
        printf("SKIP: no /proc/self/exe\n");
        return;
    }
    if (n > 1 << 16)
        n = 1 << 16; /* its section table lies behind */
    for (int i = 0; i < 3000; i++) {
        uint8_t object[600];
        size_t size = i % sizeof object;
        memcpy(object, self, sizeof object);
        for (size_t k = 6; k < size; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            if (i & 1 || k >= 64)
                object[k] = (uint8_t)(random >> 56);
        }
        uint64_t table = 64;
        uint16_t entries[3] = {64, 3, 0};
        memcpy(object + 40, &table, 8);
        memcpy(object + 58, entries, 6);
        soft_lines *l = soft_lines_new(object, size);
        soft_lines_find(l, random & 0xFFFF, &file);
        soft_lines_free(l);
    }
    free(self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diagnostics),
        cmocka_unit_test(test_errors_name_the_line),
        cmocka_unit_test(test_finding_the_compiler),
        cmocka_unit_test(test_damaged_payloads),
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_lines_of_damaged_objects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
