/* cpu_ops_impl.h compiled for avx512. */
#define CPU_OPS_NAME  "avx512"
#define CPU_OPS_TABLE cpu_ops_table_avx512
#include "cpu/cpu_ops_impl.h"
