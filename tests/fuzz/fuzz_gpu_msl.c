/* The translator on hostile source. What is translated for one target is so for all, with the same kernels; what is not
 * says why. */
#include "gpu/msl/msl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static msl_module *translate(const uint8_t *data, size_t size, msl_target target) {
    msl_options o = {.name = "fuzz.metal", .target = target};
    sl_error err = {0};
    msl_module *m = msl_translate((const char *)data, size, &o, &err);
    if (!m && (err.code == SL_OK || !err.message[0]))
        abort();
    return m;
}

static void check_kernels(const msl_module *m) {
    size_t n;
    const msl_kernel *k = msl_module_kernels(m, &n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k[i].arg_count; j++) {
            const sl_gpu_arg *a = &k[i].args[j].arg;
            if (a->slot < 0 || a->slot >= SL_GPU_SLOTS || a->least < 1 || !k[i].name || !k[i].entry)
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    msl_module *soft = translate(data, size, MSL_SOFT), *table = translate(data, size, MSL_TABLE);
    size_t n = 0, m = 0, bytes;
    if (!soft != !table)
        abort();
    if (soft) {
        check_kernels(soft);
        msl_module_kernels(soft, &n);
        msl_module_kernels(table, &m);
        if (n != m || strlen(msl_module_code(soft, &bytes)) != bytes)
            abort();
    }
    msl_module_free(soft);
    msl_module_free(table);
    return 0;
}
