/* Which instruction set the kernels of cpu_ops.h come from. */
#include "cpu/cpu_ops.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern const cpu_ops cpu_ops_table_scalar, cpu_ops_table_avx2, cpu_ops_table_avx512, cpu_ops_table_neon;

#if defined(__x86_64__)
/* clang 14 does not know the name "f16c". */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* Best last. */
static int available(const cpu_ops *out[4]) {
    int n = 0;
    out[n++] = &cpu_ops_table_scalar;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        out[n++] = &cpu_ops_table_avx2;
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"))
        out[n++] = &cpu_ops_table_avx512;
#elif defined(__aarch64__)
    out[n++] = &cpu_ops_table_neon;
#endif
    return n;
}

const cpu_ops *cpu_ops_get(const char *name) {
    const cpu_ops *list[4];
    int n = available(list);
    if (!name)
        return list[n - 1];
    for (int i = 0; i < n; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}
