/* The instrumentation's functions, as a part of the unit they serve: hidden, so that they bind inside the object even
 * where the process has functions of these names (a program built with ThreadSanitizer). In the unit itself they are
 * not instrumented. memcpy and its like are here because older compilers call them by those names. */
#include "gpu/soft/soft.h"

/* An access that the compiler takes for an aligned one; of what it copies as a whole it checks no types. */
#define ACCESS(n)                                                                                                      \
    "SOFT_HOOK(void __tsan_read" #n "(void *p)) { SOFT_ALIGNED(p, " #n "); SOFT_READ(p, " #n "); }\n"                  \
    "SOFT_HOOK(void __tsan_write" #n "(void *p)) { SOFT_ALIGNED(p, " #n "); SOFT_WRITE(p, " #n "); }\n"                \
    "SOFT_HOOK(void __tsan_unaligned_read" #n "(void *p)) { SOFT_READ(p, " #n "); }\n"                                 \
    "SOFT_HOOK(void __tsan_unaligned_write" #n "(void *p)) { SOFT_WRITE(p, " #n "); }\n"                               \
    "SOFT_HOOK(void __tsan_volatile_read" #n "(void *p)) { SOFT_READ(p, " #n "); }\n"                                  \
    "SOFT_HOOK(void __tsan_volatile_write" #n "(void *p)) { SOFT_WRITE(p, " #n "); }\n"                                \
    "SOFT_HOOK(void __tsan_read_write" #n "(void *p)) { SOFT_ALIGNED(p, " #n "); SOFT_READ(p, " #n                     \
    "); SOFT_WRITE(p, " #n "); }\n"                                                                                    \
    "SOFT_HOOK(void __tsan_unaligned_read_write" #n "(void *p)) { SOFT_READ(p, " #n "); SOFT_WRITE(p, " #n "); }\n"

/* clang-format off */
const char soft_hooks_text[] =
    "\n#line 1 \"hooks\"\n"
    "#define SOFT_READ(p, n) do { if (soft_hook) soft_hook->read(p, n, __builtin_return_address(0)); } while (0)\n"
    "#define SOFT_WRITE(p, n) do { if (soft_hook) soft_hook->write(p, n, __builtin_return_address(0)); } while (0)\n"
    "#define SOFT_ALIGNED(p, n) do { if (soft_hook && (unsigned long)p & ((n < 8 ? n : 8) - 1)) soft_hook->misaligned(p,"
    " n < 8 ? n : 8, \"a value of \" #n \" bytes\", __builtin_return_address(0)); } while (0)\n"
    "#define SOFT_HOOK(f) extern \"C\" __attribute__((visibility(\"hidden\"), used, noinline, nodebug, "
    "disable_sanitizer_instrumentation, no_builtin)) f\n"
    "static const soft_api *soft_hook;\n"
    "extern \"C\" __attribute__((visibility(\"default\"), disable_sanitizer_instrumentation))\n"
    "void " SOFT_HOOKS_INIT "(const soft_api *api) { soft_hook = api; }\n"
    ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
    "SOFT_HOOK(void __tsan_read_range(void *p, unsigned long n)) { SOFT_READ(p, (unsigned)n); }\n"
    "SOFT_HOOK(void __tsan_write_range(void *p, unsigned long n)) { SOFT_WRITE(p, (unsigned)n); }\n"
    "SOFT_HOOK(void __tsan_init(void)) {}\n"
    "SOFT_HOOK(void __tsan_func_entry(void *)) {}\n"
    "SOFT_HOOK(void __tsan_func_exit(void)) {}\n"
    "SOFT_HOOK(void __tsan_vptr_update(void *, void *)) {}\n"
    "SOFT_HOOK(void __tsan_vptr_read(void *)) {}\n"
    "struct soft_array_type { unsigned short kind, info; char name[1]; };\n"
    "struct soft_beyond { const char *file; unsigned line, column; const soft_array_type *array, *index; };\n"
    "SOFT_HOOK(void __ubsan_handle_out_of_bounds(soft_beyond *b, unsigned long index)) {\n"
    "  int bits = 1 << (b->index->info >> 1), above = b->index->info & 1 && bits < 64 ? 64 - bits : 0;\n"
    "  if (soft_hook) soft_hook->beyond((long)(index << above) >> above, b->array->name, __builtin_return_address(0));"
    " }\n"
    "struct soft_mismatch { const char *file; unsigned line, column; const soft_array_type *type; unsigned char "
    "log_alignment, kind; };\n"
    "SOFT_HOOK(void __ubsan_handle_type_mismatch_v1(soft_mismatch *m, unsigned long address)) {\n"
    "  if (soft_hook) soft_hook->misaligned((const void *)address, 1u << m->log_alignment, m->type->name,"
    " __builtin_return_address(0)); }\n"
    "#define SOFT_COPY(name) SOFT_HOOK(void *name(void *to, const void *from, unsigned long n)) {\\\n"
    "  if (n) { SOFT_READ(from, (unsigned)n); SOFT_WRITE(to, (unsigned)n); }\\\n"
    "  volatile char *t = (volatile char *)to; const volatile char *f = (const volatile char *)from;\\\n"
    "  if ((unsigned long)t - (unsigned long)f >= n) for (unsigned long i = 0; i < n; i++) t[i] = f[i];\\\n"
    "  else for (unsigned long i = n; i-- > 0;) t[i] = f[i];\\\n"
    "  return to; }\n"
    "#define SOFT_SET(name) SOFT_HOOK(void *name(void *to, int c, unsigned long n)) {\\\n"
    "  if (n) SOFT_WRITE(to, (unsigned)n);\\\n"
    "  volatile char *t = (volatile char *)to;\\\n"
    "  for (unsigned long i = 0; i < n; i++) t[i] = (char)c;\\\n"
    "  return to; }\n"
    "SOFT_COPY(memcpy) SOFT_COPY(memmove) SOFT_COPY(__tsan_memcpy) SOFT_COPY(__tsan_memmove)\n"
    "SOFT_SET(memset) SOFT_SET(__tsan_memset)\n";
/* clang-format on */
