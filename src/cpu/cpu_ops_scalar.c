/* cpu_ops_impl.h compiled for scalar. */
#define CPU_OPS_NAME  "scalar"
#define CPU_OPS_TABLE cpu_ops_table_scalar
#include "cpu/cpu_ops_impl.h"
