/* cpu_ops_impl.h compiled for avx2. */
#define CPU_OPS_NAME  "avx2"
#define CPU_OPS_TABLE cpu_ops_table_avx2
#include "cpu/cpu_ops_impl.h"
