/* cpu_ops_impl.h compiled for neon. */
#define CPU_OPS_NAME  "neon"
#define CPU_OPS_TABLE cpu_ops_table_neon
#include "cpu/cpu_ops_impl.h"
