/* Our kernels, translated for cuda, compile for sm_90: every one through NVRTC's front end, some to machine code. */
#include "support_prelude.h"

#include "gpu/msl/msl.h"
#include "gpu/texts.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static bool ends(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

/* As the host has them there: in fragments that lie in registers. */
static bool compile(const sl_text *t, bool syntax, size_t *kernels) {
    static const char *const dirs[] = {SL_SOURCE_DIR "/src/kernels"};
    static const sl_gpu_define fragments = {"SL_TILE_FRAGMENTS", NULL};
    msl_options options = {.name = t->name,
                           .defines = &fragments,
                           .define_count = 1,
                           .include_dirs = dirs,
                           .include_count = 1,
                           .target = MSL_CUDA};
    sl_error err = {0};
    msl_module *m = msl_translate(t->bytes, t->size, &options, &err);
    if (!m)
        fail_msg("%s: %s", t->name, err.message);
    size_t size, count;
    msl_module_kernels(m, &count);
    bool there = prelude_compile_cuda(msl_module_code(m, &size), t->name, syntax);
    *kernels += count;
    msl_module_free(m);
    return there;
}

static void test_every_kernel_compiles_for_sm_90(void **state) {
    (void)state;
    size_t kernels = 0;
    for (const sl_text *t = gpu_texts; t->name; t++)
        if (ends(t->name, ".metal") && !compile(t, true, &kernels))
            skip();
    printf("%zu kernels\n", kernels);
    assert_true(kernels > 100);
}

static void test_some_kernels_become_machine_code(void **state) {
    (void)state;
    static const char *const names[] = {"attention_prepare.metal", "moe.metal"};
    size_t kernels = 0;
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        const sl_text *t = gpu_text(names[i]);
        assert_non_null(t);
        if (!compile(t, false, &kernels))
            skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel_compiles_for_sm_90),
        cmocka_unit_test(test_some_kernels_become_machine_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
