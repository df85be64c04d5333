/* What the metal device reads of outside bytes without Metal: a kernel's source with its #includes, made one text; and
 * a compiler's diagnostics. First byte even: the source, odd: the diagnostics. */
#include "gpu/metal/metal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void flatten(const char *text, size_t n) {
    sl_gpu_define define = {"WIDTH", "32"};
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.defines = &define;
    o.define_count = 1;
    gpu_source s = {.name = "/nonexistent/fuzz.metal", .text = text, .size = n, .options = &o};
    sl_buf out = {0};
    sl_error err = {0};
    if (metal_source_flatten(&s, &out, &err)) {
        /* Metal takes it as a C string. */
        if (strlen(out.data) != out.size || strncmp(out.data, "#define WIDTH 32\n", 17) != 0)
            abort();
    } else if (err.code == SL_OK || !err.message[0]) {
        abort();
    }
    sl_buf_free(&out);
}

static void diagnose(const char *text) {
    sl_error err = {0};
    if (metal_fail_diagnostic(&err, "fuzz.metal", text) || err.code != SL_ERR_COMPILE || !err.message[0] ||
        strpbrk(err.message, "\n\r\033"))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size)
        return 0;
    char *text = sl_strndup((const char *)data + 1, size - 1);
    if (!text)
        return 0;
    if (data[0] % 2)
        diagnose(text);
    else
        flatten(text, size - 1);
    free(text);
    return 0;
}
