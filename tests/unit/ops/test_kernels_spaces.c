/* The kernels' types with address spaces kept. The soft device and CUDA erase device, constant, threadgroup and thread,
 * so nothing there sees a pointer of the wrong one; clang's C++ for OpenCL has the same four and does. Also: words that
 * Metal has no meaning for. */
#include "gpu/msl/msl.h"
#include "ops/kernels.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* All but few.metal, which is not for Metal. */
static const char *const files[] = {"matvec.metal",
                                    "expert.metal",
                                    "matmul.metal",
                                    "rows.metal",
                                    "moe.metal",
                                    "narrow.metal",
                                    "attention_prepare.metal",
                                    "attention_decode.metal",
                                    "attention_prefill.metal",
                                    "attention_wide.metal",
                                    "heads.metal",
                                    "delta.metal",
                                    "delta_chunk.metal"};

static const kernel_format formats[] = {
    {"f32", 4, false},          {"f16", 16, false},        {"bf16", 2, false},         {"q4_0", 2, false},
    {"q4_1", 4, false},         {"q5_0", 2, false},        {"q5_1", 4, false},         {"q8_0", 1, false},
    {"q4_k", 16, false},        {"q5_k", 4, false},        {"q6_k", 2, false},         {"affine4_bf16", 16, false},
    {"affine8_f32", 1, false},  {"affine3_f16", 4, false}, {"affine6_bf16", 1, false}, {"q2_k", 4, false},
    {"q3_k", 2, false},         {"iq4_nl", 2, false},      {"iq4_xs", 4, false},       {"mxfp4", 1, false},
    {"mxfp4_split", 16, false}, {"fp8_bf16", 4, false},    {"nvfp4", 4, false},        {"tq2_0", 2, false},
    {"iq2_s", 1, false},        {"iq3_xxs", 2, false},     {"iq1_m", 1, false},        {"tq1_0", 1, false}};

/* ---- Metal to C++ for OpenCL ------------------------------------------------------------------------------------- */

/* Without [[attributes]]. */
static void strip_attributes(char *text) {
    char *to = text;
    for (const char *p = text; *p;) {
        const char *end = p[0] == '[' && p[1] == '[' ? strstr(p, "]]") : NULL;
        if (end)
            p = end + 2;
        else
            *to++ = *p++;
    }
    *to = 0;
}

/* A declaration in threadgroup memory in a kernel's body, which OpenCL knows in functions of another kind only:
 * `    threadgroup T name;` becomes a reference, `    threadgroup T name[n];` and `name[n][m];` a pointer. */
static bool put_declaration(sl_buf *out, const char *line) {
    char type[64], name[64];
    int at = 0;
    if (sscanf(line, "    threadgroup %63[a-z_0-9] %63[a-z][%*[^]]]%n", type, name, &at) == 2 && at > 0)
        return sl_buf_printf(out, "    threadgroup %s (*%s)%.*s = 0;\n", type, name, (int)strcspn(line + at, ";"),
                             line + at);
    int end = 0;
    if (sscanf(line, "    threadgroup %63[a-z_] %63[a-z];%n", type, name, &end) == 2 && end > 0 && line[end] == '\n')
        return sl_buf_printf(out, "    threadgroup %s &%s = *(threadgroup %s *)0;\n", type, name, type);
    return false;
}

/* The two lines of a function constant. */
static bool put_constant(sl_buf *out, const char *line) {
    bool given = strncmp(line, "    constant bool name##_given", 30) == 0;
    bool derived = strncmp(line, "    constant bool name = ", 25) == 0;
    if (given || derived)
        sl_buf_printf(out, "    constant bool name%s = true;%s\n", given ? "##_given" : "", given ? " \\" : "");
    return given || derived;
}

static char *to_opencl(const char *metal) {
    sl_buf out = {0};
    sl_buf_printf(&out, "#define __METAL_VERSION__ 310\n#include \"%s/tests/unit/ops/kernels_spaces.cl\"\n",
                  SL_SOURCE_DIR);
    char *text = sl_strdup(metal);
    strip_attributes(text);
    for (char *p = text; *p;) {
        char *end = strchr(p, '\n');
        size_t n = end ? (size_t)(end - p) + 1 : strlen(p);
        bool dropped = strncmp(p, "#include <", 10) == 0 || strncmp(p, "using namespace metal", 21) == 0;
        if (dropped)
            sl_buf_puts(&out, "\n");
        else if (!put_declaration(&out, p) && !put_constant(&out, p))
            sl_buf_append(&out, p, n);
        p += n;
    }
    free(text);
    size_t size;
    char *all = sl_buf_take(&out, &size);
    assert_non_null(all);
    return all;
}

/* ---- the compiler ------------------------------------------------------------------------------------------------ */

static bool compiles(const char *text, bool quiet) {
    char path[] = "/tmp/sluice_spaces_XXXXXX", command[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    size_t n = strlen(text);
    assert_true(write(fd, text, n) == (ssize_t)n);
    close(fd);
    snprintf(command, sizeof command, "clang -cc1 -x cl -cl-std=clc++2021 -triple spir64 -fsyntax-only -w %s %s", path,
             quiet ? ">/dev/null 2>&1" : "");
    bool ok = system(command) == 0;
    unlink(path);
    return ok;
}

static char *source_of(const char *file) {
    sl_error err = {0};
    size_t size;
    char *text = kernel_source(file, formats, SL_COUNT(formats), &size, &err);
    if (!text)
        fail_msg("%s", err.message);
    return text;
}

static void every_pointer_has_its_space(void **state) {
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char *metal = source_of(files[i]), *text = to_opencl(metal);
        if (!compiles(text, false))
            fail_msg("%s: see above", files[i]);
        free(metal);
        free(text);
    }
}

/* The check sees what it is for. */
static void a_wrong_space_is_an_error(void **state) {
    static const struct {
        const char *file, *from, *to;
    } faults[] = {
        {"matmul.metal", "threadgroup const half *x_tile", "device const half *x_tile"},
        {"attention_decode.metal", "threadgroup const float4 *q, ", "device const float4 *q, "},
        {"attention_prefill.metal", "device const int *pages =", "constant int *pages ="},
        {"moe.metal", "device const float *mine", "threadgroup const float *mine"},
        {"rows.metal", "device float *to = dst", "thread float *to = dst"},
    };
    for (size_t i = 0; i < SL_COUNT(faults); i++) {
        char *metal = source_of(faults[i].file), *at = strstr(metal, faults[i].from);
        assert_non_null(at);
        sl_buf b = {0};
        sl_buf_append(&b, metal, (size_t)(at - metal));
        sl_buf_puts(&b, faults[i].to);
        sl_buf_puts(&b, at + strlen(faults[i].from));
        char *text = to_opencl(b.data);
        if (compiles(text, true))
            fail_msg("%s: '%s' for '%s' compiles", faults[i].file, faults[i].to, faults[i].from);
        sl_buf_free(&b);
        free(metal);
        free(text);
    }
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static bool is_word(const char *text, const char *at, size_t n) {
    bool before = at > text && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
    return !before && !isalnum((unsigned char)at[n]) && at[n] != '_';
}

/* Code without comments. */
static void strip_comments(char *text) {
    char *to = text;
    for (const char *p = text; *p;) {
        const char *end = NULL;
        if (p[0] == '/' && p[1] == '/')
            end = strchr(p, '\n');
        else if (p[0] == '/' && p[1] == '*')
            end = strstr(p, "*/") ? strstr(p, "*/") + 2 : NULL;
        if (end)
            p = end;
        else
            *to++ = *p++;
    }
    *to = 0;
}

static void kernels_use_no_word_that_metal_lacks(void **state) {
    static const char *const words[] = {"double", "virtual", "throw",        "try",          "catch", "new",
                                        "delete", "goto",    "dynamic_cast", "thread_local", "std",   "INFINITY",
                                        "isnan",  "isinf",   "asm",          "long double"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char *text = source_of(files[i]);
        strip_comments(text);
        for (size_t w = 0; w < SL_COUNT(words); w++)
            for (const char *at = text; (at = strstr(at, words[w])); at++)
                if (is_word(text, at, strlen(words[w])))
                    fail_msg("%s uses '%s': %.60s", files[i], words[w], at);
        free(text);
    }
}

/* ---- variants ---------------------------------------------------------------------------------------------------- */

static void expect_entries(const msl_module *m, const char *const *kernels, size_t n, const kernel_format *f) {
    for (size_t i = 0; i < n; i++) {
        char entry[64];
        kernel_entry(entry, sizeof entry, kernels[i], f);
        if (!msl_module_find(m, entry))
            fail_msg("%s is not instantiated", entry);
    }
}

/* Every format with every type of scales, its rows at every address. */
static void expect_variants(const msl_module *m, const char *const *kernels, size_t n) {
    static const sl_format_id sides[] = {SL_F16, SL_BF16, SL_F32};
    for (int format = 0; format < SL_FORMAT_COUNT; format++)
        for (size_t side = 0; kernel_format_has((sl_format_id)format) && side < SL_COUNT(sides); side++)
            for (uint64_t at = 0; at < 17; at++) {
                sl_matrix w = {.format = (sl_format_id)format, .rows = 1, .cols = 256};
                bool affine = sl_format_is_affine((sl_format_id)format), fp8 = format == SL_FP8;
                w.group = affine ? 64 : fp8 ? 128 : 0;
                w.side = affine || fp8 ? sides[side] : SL_F32;
                assert_true(sl_matrix_layout(&w, NULL));
                kernel_format f = kernel_format_of(&w, (uint64_t[3]){at, at, at});
                assert_true(at % (uint64_t)f.align == 0);
                expect_entries(m, kernels, n, &f);
            }
}

/* A format that is added to the table gets kernels with it. */
static void every_format_has_kernels(void **state) {
    for (int f = 0; f < SL_FORMAT_COUNT; f++)
        if (!kernel_format_has((sl_format_id)f))
            fail_msg("%s", sl_format_get((sl_format_id)f)->name);
}

static void every_variant_a_matrix_needs_is_there(void **state) {
    static const struct {
        const char *file, *kernels[2];
        size_t n;
    } all[] = {{"matvec.metal", {"matvec", "gate_up"}, 2},
               {"expert.metal", {"expert_gate_up", "expert_matvec"}, 2},
               {"matmul.metal", {"matmul", "matmul_expert"}, 2},
               {"heads.metal", {"heads_matvec", "heads_matmul_turned"}, 2},
               {"rows.metal", {"embed"}, 1}};
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        sl_error err = {0};
        size_t size;
        char *text = kernel_source(all[i].file, NULL, 0, &size, &err);
        assert_non_null(text);
        msl_module *m = msl_translate(text, size, &(msl_options){.name = all[i].file, .target = MSL_TABLE}, &err);
        if (!m)
            fail_msg("%s", err.message);
        expect_variants(m, all[i].kernels, all[i].n);
        msl_module_free(m);
        free(text);
    }
}

/* Without a compiler what needs none is still tested. */
int main(void) {
    if (!compiles("kernel void f(global int *p) { *p = 1; }\n", true)) {
        print_message("SKIP: no clang that compiles C++ for OpenCL: address spaces are not looked at\n");
        const struct CMUnitTest rest[] = {
            cmocka_unit_test(kernels_use_no_word_that_metal_lacks),
            cmocka_unit_test(every_format_has_kernels),
            cmocka_unit_test(every_variant_a_matrix_needs_is_there),
        };
        return cmocka_run_group_tests(rest, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pointer_has_its_space),           cmocka_unit_test(a_wrong_space_is_an_error),
        cmocka_unit_test(kernels_use_no_word_that_metal_lacks),  cmocka_unit_test(every_format_has_kernels),
        cmocka_unit_test(every_variant_a_matrix_needs_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
