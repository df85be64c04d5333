/* Compiling, the container, and the cache on disk: whatever lies there, the program compiles and runs. */
#include "support_fake.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[512];

static int fresh_dir(void **state) {
    fake_reset(state);
    snprintf(dir, sizeof dir, "/tmp/sluice-cache-XXXXXX");
    return mkdtemp(dir) ? 0 : 1;
}

static int remove_dir(void **state) {
    char command[1100];
    snprintf(command, sizeof command, "chmod -R u+rwx %s; rm -rf %s", dir, dir);
    return system(command);
}

static sl_gpu *open_cached(void) {
    sl_error err = {0};
    sl_gpu *g = fake_open(dir, &err);
    if (!g)
        fail_msg("%s", err.message);
    return g;
}

/* Compiles and loads; the library must work whatever the cache held. */
static void compile_once(const sl_gpu_compile_options *o) {
    sl_error err = {0};
    sl_gpu *g = open_cached();
    sl_gpu_library *l = sl_gpu_library_new(g, fake_source, strlen(fake_source), o, &err);
    if (!l)
        fail_msg("%s", err.message);
    assert_int_equal(sl_gpu_library_count(l), 4);
    assert_string_equal(sl_gpu_library_entry(l, 0), "add");
    assert_string_equal(sl_gpu_library_entry(l, 3), "wide");
    assert_null(sl_gpu_library_entry(l, 4));
    sl_gpu_library_free(l);
    sl_gpu_close(g);
    fake_expect_nothing_alive();
}

static int entries(char *path, size_t size) {
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        n++;
        if (path)
            snprintf(path, size, "%s/%s", dir, e->d_name);
    }
    if (d)
        closedir(d);
    return n;
}

/* ---- cache ------------------------------------------------------------------------------------------------------- */

static void the_second_time_nothing_is_compiled(void **state) {
    compile_once(NULL);
    compile_once(NULL);
    assert_int_equal(fake_calls("compile"), 1);
    assert_int_equal(fake_calls("library_load"), 2);
    assert_int_equal(entries(NULL, 0), 1);
    assert_string_equal(fake_log(), "");
}

static void every_option_is_part_of_the_key(void **state) {
    sl_gpu_define define = {"N", "4"};
    const char *include = "/nonexistent";
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    int compiled = 0;
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    o.fast_math = true;
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    o.fast_math = false;
    o.defines = &define;
    o.define_count = 1;
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    define.value = "5";
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    define.value = NULL;
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    o.define_count = 0;
    o.include_dirs = &include;
    o.include_count = 1;
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    o.include_dirs = (const char *[]){"N", "4"};
    o.include_count = 2;
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    o.include_count = 0;
    define.value = "4";
    o.define_count = 1;
    compile_once(&o); /* the same words as a definition: kept from before, not those of the directories */
    assert_int_equal(fake_calls("compile"), compiled);
    o.define_count = 0;
    fake.family = "fake2";
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), ++compiled);
    fake.family = NULL;
    compile_once(&o);
    assert_int_equal(fake_calls("compile"), compiled);
}

/* The device compiles the source itself, so what it includes is part of the key. */
static void a_changed_include_is_compiled_again(void **state) {
    char inner[600], outer[600], source[512];
    sl_error err = {0};
    const char *include = dir;
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.include_dirs = &include;
    o.include_count = 1;
    snprintf(inner, sizeof inner, "%s/inner.h", dir);
    snprintf(outer, sizeof outer, "%s/outer.h", dir);
    FILE *f = fopen(outer, "w");
    fprintf(f, "#pragma once\n#  include \"inner.h\"\n#include \"outer.h\"\n");
    fclose(f);
    snprintf(source, sizeof source,
             "#include \"outer.h\"\n#include <metal_stdlib>\nusing namespace metal;\nkernel void k"
             "(device float *x [[buffer(0)]]) { x[0] = VALUE; }\n");
    for (int i = 0; i < 4; i++) {
        f = fopen(inner, "w");
        fprintf(f, "#define VALUE %d\n", i / 2);
        fclose(f);
        sl_gpu *g = open_cached();
        sl_gpu_library *l = sl_gpu_library_new(g, source, strlen(source), &o, &err);
        if (!l)
            fail_msg("%s", err.message);
        sl_gpu_library_free(l);
        sl_gpu_close(g);
        assert_int_equal(fake_calls("compile"), 1 + i / 2);
    }
}

static void expect_recompiled(const char *why) {
    int before = fake_calls("compile");
    compile_once(NULL);
    assert_int_equal(fake_calls("compile"), before + 1);
    if (!strstr(fake_log(), why) || !strstr(fake_log(), "compiled again"))
        fail_msg("log '%s', expected '%s'", fake_log(), why);
    /* And the entry is sound again. */
    compile_once(NULL);
    assert_int_equal(fake_calls("compile"), before + 1);
}

/* Each byte of an entry matters; each length does. */
static void damaged_entries_are_compiled_again(void **state) {
    char path[1024];
    struct stat st;
    compile_once(NULL);
    assert_int_equal(entries(path, sizeof path), 1);
    assert_int_equal(stat(path, &st), 0);
    const long places[] = {0, 8, 20, 40, 70, 130, 150, 165, 170, st.st_size / 2, st.st_size - 9, st.st_size - 1};
    for (size_t i = 0; i < SL_COUNT(places); i++) {
        FILE *f = fopen(path, "r+b");
        fseek(f, places[i], SEEK_SET);
        int c = fgetc(f);
        fseek(f, places[i], SEEK_SET);
        fputc(c ^ 0x20, f);
        fclose(f);
        expect_recompiled(path);
    }
    const long lengths[] = {0, 1, 100, 175, st.st_size - 1};
    for (size_t i = 0; i < SL_COUNT(lengths); i++) {
        assert_int_equal(truncate(path, lengths[i]), 0);
        expect_recompiled("library of");
    }
    FILE *f = fopen(path, "ab");
    fputc('x', f);
    fclose(f);
    expect_recompiled("library of");
}

static void foreign_entries_are_compiled_again(void **state) {
    char path[1024], kept[1040], source[64] = "kernel void k(device float *x [[buffer(0)]]) { x[0] = 1; }";
    sl_error err = {0};
    compile_once(NULL);
    entries(path, sizeof path);
    /* Another library under this one's name. */
    snprintf(kept, sizeof kept, "%s.kept", path);
    rename(path, kept);
    sl_gpu *g = open_cached();
    sl_gpu_library_free(sl_gpu_library_new(g, source, strlen(source), NULL, &err));
    sl_gpu_close(g);
    unlink(kept);
    entries(kept, sizeof kept);
    rename(kept, path);
    expect_recompiled("made from another source");
    /* Not a plain file, or one that others can write. */
    chmod(path, 0666);
    expect_recompiled("others can write it");
    unlink(path);
    mkdir(path, 0700);
    compile_once(NULL);
    assert_non_null(strstr(fake_log(), "not a plain file"));
}

static void an_unwritable_folder_is_a_warning(void **state) {
    snprintf(dir + strlen(dir), sizeof dir - strlen(dir), "/file");
    FILE *f = fopen(dir, "w");
    fclose(f);
    compile_once(NULL);
    assert_non_null(strstr(fake_log(), "/file: cannot be made"));
    assert_non_null(strstr(fake_log(), "compiled kernels are not kept"));
    strcat(dir, "/below");
    compile_once(NULL);
    assert_int_equal(fake_calls("compile"), 2);
    dir[strlen(dir) - strlen("/file/below")] = 0;
}

static void a_missing_folder_is_made(void **state) {
    strcat(dir, "/a/b/c");
    compile_once(NULL);
    assert_int_equal(entries(NULL, 0), 1);
    compile_once(NULL);
    assert_int_equal(fake_calls("compile"), 1);
    dir[strlen(dir) - strlen("/a/b/c")] = 0;
}

static void the_oldest_entries_go_first(void **state) {
    char path[1024];
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%d.slgpu", dir, i);
        FILE *f = fopen(path, "w");
        for (int k = 0; k < 1000; k++)
            fputc('x', f);
        fclose(f);
        struct timespec times[2] = {{.tv_sec = 1000 + (i * 3) % 5}, {.tv_sec = 1000 + (i * 3) % 5}};
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    snprintf(path, sizeof path, "%s/notes.txt", dir);
    FILE *f = fopen(path, "w");
    fputs("not ours", f);
    fclose(f);
    gpu_cache_trim(dir, 3999);
    assert_int_equal(entries(NULL, 0), 4); /* three of five, and what is not ours */
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%d.slgpu", dir, i);
        assert_int_equal(sl_path_exists(path), (i * 3) % 5 >= 2);
    }
    gpu_cache_trim(dir, 0);
    assert_int_equal(entries(NULL, 0), 1);
}

static void default_folders(void **state) {
    setenv("XDG_CACHE_HOME", "/x/cache", 1);
    setenv("HOME", "/home/u", 1);
    char *d = gpu_cache_dir(NULL);
    assert_string_equal(d, "/x/cache/sluice");
    free(d);
    setenv("XDG_CACHE_HOME", "relative", 1);
    d = gpu_cache_dir(NULL);
    assert_string_equal(d, "/home/u/.cache/sluice");
    free(d);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_null(gpu_cache_dir(NULL));
    assert_null(gpu_cache_dir(""));
    d = gpu_cache_dir("mine");
    assert_string_equal(d, "mine");
    free(d);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void bytes_load_without_the_source(void **state) {
    sl_error err = {0};
    void *bytes;
    size_t size;
    bench b = bench_open();
    assert_true(sl_gpu_compile(b.g, fake_source, strlen(fake_source), NULL, &bytes, &size, &err));
    sl_gpu_library *l = sl_gpu_library_load(b.g, bytes, size, &err);
    assert_non_null(l);
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(l, "add", NULL, 0, &err);
    sl_gpu_pipeline_info info = {.size = sizeof info};
    sl_gpu_pipeline_get_info(p, &info);
    assert_int_equal(info.arg_count, 4);
    assert_string_equal(info.args[3].name, "n");
    assert_int_equal(info.args[3].kind, SL_GPU_ARG_BYTES);
    assert_int_equal(info.args[3].least, 4);
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    sl_gpu_free(bytes);
    bench_close(&b);
}

static void foreign_bytes_are_errors(void **state) {
    sl_error err = {0};
    void *bytes;
    size_t size;
    bench b = bench_open();
    assert_true(sl_gpu_compile(b.g, fake_source, strlen(fake_source), NULL, &bytes, &size, &err));
    assert_null(sl_gpu_library_load(b.g, "MTLB....", 8, &err));
    expect_error(&err, SL_ERR_FORMAT, "library of 8 bytes");
    assert_null(sl_gpu_library_load(b.g, fake_source, strlen(fake_source), &err));
    expect_error(&err, SL_ERR_FORMAT, "not a compiled library");
    assert_null(sl_gpu_library_load(b.g, bytes, size - 1, &err));
    assert_null(sl_gpu_library_load(b.g, NULL, size, &err));
    fake.family = "fake2";
    sl_gpu *other = fake_open("", &err);
    assert_null(sl_gpu_library_load(other, bytes, size, &err));
    expect_error(&err, SL_ERR_FORMAT, "library for family 'fake1', expected 'fake2'");
    sl_gpu_close(other);
    sl_gpu_free(bytes);
    bench_close(&b);
}

/* A container whose checksum is right but whose table is nonsense: no crash, no large allocation. */
static void hostile_tables_are_errors(void **state) {
    sl_error err = {0};
    gpu_table t;
    bench b = bench_open();
    gpu_library *l = gpu_take(b.library, GPU_LIBRARY, &err);
    sl_buf good = {0};
    const uint32_t one_kernel[] = {1, 1, 'k', 1, 'k', 7,   0, 1,  SL_GPU_ARG_READ, 3, 4, 8, 0, (uint32_t)-1,
                                   0, 0, 0,   1, 1,   'k', 1, 'k'};
    for (size_t i = 0; i < SL_COUNT(one_kernel); i++)
        sl_buf_append(&good, &one_kernel[i], one_kernel[i] == 'k' ? 1 : 4);
    assert_true(gpu_table_read(good.data, good.size, &t, &err));
    assert_int_equal(t.kernel_count, 1);
    assert_int_equal(t.kernels[0].args[0].arg.slot, 3);
    assert_int_equal(t.kernels[0].args[0].arg.align, 8);
    assert_int_equal(t.refused_count, 1);
    assert_string_equal(t.refused[0].message, "k");
    gpu_table_free(&t);
    for (size_t n = 0; n < good.size; n++)
        assert_false(gpu_table_read(good.data, n, &t, &err));
    for (size_t i = 0; i < good.size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            good.data[i] ^= (char)(1 << bit);
            if (gpu_table_read(good.data, good.size, &t, &err))
                gpu_table_free(&t);
            good.data[i] ^= (char)(1 << bit);
        }
    }
    sl_buf_free(&good);
    gpu_drop(l);
    bench_close(&b);
}

static void errors_of_source_and_options(void **state) {
    sl_error err = {0};
    void *bytes;
    size_t size;
    const char *nonsense = "kernel void f(nonsense *x [[buffer(0)]) {";
    sl_gpu_define define = {"1x", NULL};
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.name = "mine.metal";
    bench b = bench_open();
    assert_false(sl_gpu_compile(b.g, nonsense, strlen(nonsense), &o, &bytes, &size, &err));
    expect_error(&err, SL_ERR_COMPILE, "mine.metal:1: ");
    o.defines = &define;
    o.define_count = 1;
    assert_false(sl_gpu_compile(b.g, fake_source, strlen(fake_source), &o, &bytes, &size, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "mine.metal: define '1x' is no name");
    define = (sl_gpu_define){"X", "1\n#error"};
    assert_false(sl_gpu_compile(b.g, fake_source, strlen(fake_source), &o, &bytes, &size, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "has several lines");
    o.define_count = 0;
    o.include_count = 1;
    o.include_dirs = (const char *[]){NULL};
    assert_false(sl_gpu_compile(b.g, fake_source, strlen(fake_source), &o, &bytes, &size, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "include directory 0 is NULL");
    o.include_dirs = NULL;
    assert_false(sl_gpu_compile(b.g, fake_source, strlen(fake_source), &o, &bytes, &size, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "mine.metal: 0 defines at an address and 1 include directories at NULL");
    assert_false(sl_gpu_compile(b.g, NULL, 0, NULL, &bytes, &size, &err));
    assert_false(sl_gpu_compile(NULL, fake_source, 1, NULL, &bytes, &size, &err));
    bench_close(&b);
}

#define CACHED(test) cmocka_unit_test_setup_teardown(test, fresh_dir, remove_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        CACHED(the_second_time_nothing_is_compiled),
        CACHED(every_option_is_part_of_the_key),
        CACHED(a_changed_include_is_compiled_again),
        CACHED(damaged_entries_are_compiled_again),
        CACHED(foreign_entries_are_compiled_again),
        CACHED(an_unwritable_folder_is_a_warning),
        CACHED(a_missing_folder_is_made),
        CACHED(the_oldest_entries_go_first),
        cmocka_unit_test_setup(default_folders, fake_reset),
        cmocka_unit_test_setup(bytes_load_without_the_source, fake_reset),
        cmocka_unit_test_setup(foreign_bytes_are_errors, fake_reset),
        cmocka_unit_test_setup(hostile_tables_are_errors, fake_reset),
        cmocka_unit_test_setup(errors_of_source_and_options, fake_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
