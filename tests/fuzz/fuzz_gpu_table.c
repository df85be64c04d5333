/* Argument tables of a compiled library: bytes of a file that anybody may have written. What is read is written again
 * as a pipeline would use it, so that every string and number is touched. */
#include "gpu/core.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gpu_table t;
    sl_error err = {0};
    if (!gpu_table_read(data, size, &t, &err))
        return err.code == SL_ERR_FORMAT && err.message[0] ? 0 : __builtin_trap(), 0;
    size_t touched = 0;
    for (size_t i = 0; i < t.kernel_count; i++) {
        const msl_kernel *k = &t.kernels[i];
        touched += strlen(k->name) + strlen(k->entry);
        for (size_t a = 0; a < k->arg_count; a++) {
            if ((k->args[a].arg.align & (k->args[a].arg.align - 1)) != 0 || k->args[a].arg.slot < 0 ||
                k->args[a].arg.slot >= SL_GPU_SLOTS || k->args[a].condition >= (int)t.constant_count ||
                memchr(k->args[a].arg.name, 0, 64) == NULL)
                __builtin_trap();
            touched += strlen(k->args[a].arg.name);
        }
    }
    for (size_t i = 0; i < t.constant_count; i++)
        touched += strlen(t.constants[i].name);
    for (size_t i = 0; i < t.refused_count; i++)
        touched += strlen(t.refused[i].host_name) + strlen(t.refused[i].message);
    if (touched > 2 * size)
        __builtin_trap();
    gpu_table_free(&t);
    return 0;
}
