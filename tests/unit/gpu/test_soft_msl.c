/* Checking mode on translated Metal code, through gpu.h: reports name the line of the .metal file, wherever the access
 * is made in the library (vectors, packed types, matrices, atomics), and sound kernels are not reported. */
#include "sluice/gpu.h"

#include "support_soft.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct row {
    const char *name, *body, *want; /* want NULL: sound */
} row;

/* Two threadgroups; the one that comes last reads what both wrote. */
#define FENCE " if (i == 0) atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);\n"
#define ARRIVE                                                                                                         \
    " if (i == 0) last = atomic_fetch_add_explicit((device atomic_uint *)out + 60, 1u, memory_order_relaxed) & 1;\n"
#define WRITE_OWN " threadgroup uint last;\n if (i < 16) out[16 * group + i] = i;\n"
#define READ_BOTH " if (last == 1 && i == 33) out[40] = out[5] + out[21];"
#define RACE      ": race: read of 4 bytes, buffer 1 (out) at byte "
#define WRITTEN   "threadgroup_barrier(mem_flags::mem_device);\n"
#define KNOWN     "threadgroup_barrier(mem_flags::mem_device_and_threadgroup);\n"

/* `body` is the kernel's; line 1 is its first. in: 64 floats; out: 64 floats. 64 threads, two groups. */
static const row rows[] = {
    {"float4 read past the end",
     "\n device const float4 *p = (device const float4 *)in;\n float4 v =\n  p[i / 4 + 1];\n if (group == 0) out[i] = "
     "v.x;",
     "@4: out of bounds: read of"},
    {"float4 written past the end", "\n device float4 *p = (device float4 *)out;\n if (i == 0)\n  p[16] = float4(1);",
     "@4: out of bounds: write of"},
    {"packed_float3 read past the end",
     "\n device const packed_float3 *p = (device const packed_float3 *)in;\n"
     " float3 v =\n  float3(p[21 + i / 63]);\n if (group == 0) out[i] = v.z;",
     "@4: out of bounds: read of"},
    {"half read past the end",
     "\n device const half *p = (device const half *)in;\n float v =\n  float(p[128 + i]);\n if (group == 0) out[i] = "
     "v;",
     "@4: out of bounds: read of 2 bytes, buffer 0 (in) at byte "},
    {"half4 read before the start",
     "\n device const half4 *p = (device const half4 *)in;\n float v =\n  float4(p[int(i & 15) - 1]).x;\n if (group == "
     "0) out[i] = v;",
     "@4: out of bounds: read of 2 bytes, buffer 0 (in) at byte -8 (index -2) of 256"},
    {"component written past the end",
     "\n device float4 *p = (device float4 *)out;\n if (i == 3)\n  p[16].zw = float2(1, 2);",
     "@4: out of bounds: write of"},
    {"atomic past the end",
     "\n device atomic_uint *p = (device atomic_uint *)out;\n"
     " atomic_fetch_add_explicit(p + 64 + i, 1u, memory_order_relaxed);",
     "@3: out of bounds: atomic access of 4 bytes, buffer 1 (out) at byte "},
    {"matrix loaded past the end",
     "\n simdgroup_float8x8 m;\n if (simd < 1)\n  simdgroup_load(m, in + 8, 8);\n if (group == 0 && simd == 0)\n"
     "  simdgroup_store(m, out, 8);",
     "@4: out of bounds: read of"},
    {"matrix stored past the end",
     "\n simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);\n"
     " if (group == 0 && simd == 0)\n  simdgroup_store(m, out, 9);",
     "@4: out of bounds: write of"},
    {"threadgroup array past the end", "\n threadgroup float4 t[16];\n if (i < 16)\n  t[i + 1] = float4(1);",
     "@4: out of bounds: write of"},
    {"threadgroup half not set",
     "\n threadgroup half t[64];\n if (i < 10) t[i] = 1;\n threadgroup_barrier(mem_flags::mem_threadgroup);\n"
     " float v =\n  float(t[i % 11]);\n if (group == 0) out[i] = v;",
     "@6: uninitialised: read of 2 bytes, threadgroup variable t at byte 20 (index 10) of 128"},
    {"no barrier",
     "\n threadgroup float t[64];\n t[i] = 0;\n threadgroup_barrier(mem_flags::mem_threadgroup);\n t[i] = 1;\n"
     " float v =\n  t[63 - i];\n if (group == 0) out[i] = v;",
     ": race: "},
    {"only a mem_none barrier",
     "\n threadgroup float t[64];\n t[i] = 0;\n threadgroup_barrier(mem_flags::mem_none);\n float v =\n  t[63 - i];\n "
     "if (group == 0) out[i] = v;",
     "@6: race: read of 4 bytes, threadgroup variable t"},
    {"groups write one element", "\n if (i == 0)\n  out[0] = 1;",
     "@3: race: write of 4 bytes, buffer 1 (out) at byte 0 (index 0) of 256"},
    {"simd_sum in a branch",
     "\n float v = in[i];\n if (lane < 7)\n  v = simd_sum(v);\n if (group == 0) out[i] = simd_sum(v);",
     "line #4: SIMD-group function under divergence"},
    {"barrier in a branch", "\n if (i < 32)\n  threadgroup_barrier(mem_flags::mem_threadgroup);\n",
     "line #3: barrier not reached by all"},
    {"constant written", "\n ((device float *)in)[i] = 1;",
     "@2: bound for reading only: write of 4 bytes, buffer 0 (in)"},
    {"a fence on either side orders threadgroups", WRITE_OWN WRITTEN FENCE ARRIVE FENCE KNOWN READ_BOTH, NULL},
    {"no fence behind what was written", WRITE_OWN WRITTEN ARRIVE FENCE KNOWN READ_BOTH, RACE},
    {"no fence before what is read", WRITE_OWN WRITTEN FENCE ARRIVE KNOWN READ_BOTH, RACE},
    {"no barrier before the fence", WRITE_OWN FENCE ARRIVE FENCE KNOWN READ_BOTH, RACE},
    {"no barrier of this memory behind the fence",
     WRITE_OWN WRITTEN FENCE ARRIVE FENCE "threadgroup_barrier(mem_flags::mem_threadgroup);\n" READ_BOTH, RACE},
    {"sound",
     "\n threadgroup float t[64]; threadgroup atomic_uint n; threadgroup half4 h[16]; thread float own[5] = {1, 2, 3, "
     "4, 5};\n"
     " constexpr float table[3] = {1, 2, 3};\n"
     " if (i == 0) atomic_store_explicit(&n, 0u, memory_order_relaxed);\n"
     " t[i] = in[i] + own[i % 5] + table[i % 3];\n if (i < 16) h[i] = half4(i);\n"
     " threadgroup_barrier(mem_flags::mem_threadgroup);\n atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed);\n"
     " float4 v = *(device const float4 *)(in + i / 4 * 4);\n v.xz += 1; float s = simd_sum(t[63 - i]) + v.x;\n"
     " simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);\n"
     " simdgroup_load(a, in, 8); simdgroup_load(b, t, 8, ulong2(0, 0), true);\n"
     " simdgroup_multiply_accumulate(c, a, b, c);\n"
     " threadgroup_barrier(mem_flags::mem_threadgroup);\n"
     " if (simd == 0) simdgroup_store(c, t, 8);\n threadgroup_barrier(mem_flags::mem_threadgroup);\n"
     " if (group == 0) out[i] = s + t[i] + float(h[i % 16].y) + atomic_load_explicit(&n, memory_order_relaxed);",
     NULL},
};

typedef struct rig {
    sl_gpu *g;
    sl_gpu_stream *s;
    sl_gpu_buffer *in, *out;
} rig;

static bool open_rig(rig *r, uint64_t seed) {
    sl_error err = {0};
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = "soft";
    o.cache_dir = "";
    o.check = true;
    o.seed = seed;
    char *compiler = soft_find_compiler(&err);
    if (!compiler) {
        printf("SKIP: %s\n", err.message);
        return false;
    }
    free(compiler);
    r->g = sl_gpu_open(&o, &err);
    if (!r->g)
        fail_msg("%s", err.message);
    r->s = sl_gpu_stream_new(r->g, &err);
    r->in = sl_gpu_alloc(r->g, 256, SL_GPU_SHARED, &err);
    r->out = sl_gpu_alloc(r->g, 256, SL_GPU_SHARED, &err);
    assert_true(r->s && r->in && r->out);
    float *x = sl_gpu_map(r->in, 0, 256, SL_GPU_WRITE, &err);
    for (int i = 0; i < 64; i++)
        x[i] = (float)i;
    assert_true(sl_gpu_unmap(r->in, &err));
    return true;
}

static void close_rig(rig *r) {
    sl_gpu_buffer_free(r->in);
    sl_gpu_buffer_free(r->out);
    sl_gpu_stream_free(r->s);
    sl_gpu_close(r->g);
}

/* All kernels as one source; first[i]: line of kernel ki. */
static sl_gpu_library *compile(rig *r, int *first) {
    sl_error err = {0};
    sl_buf source = {0};
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    int line = 1;
    o.name = "t.metal";
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        size_t before = source.size;
        sl_buf_printf(
            &source,
            "[[kernel]] void k%zu(device const float *in [[buffer(0)]], device float *out [[buffer(1)]], "
            "uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], "
            "uint simd [[simdgroup_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {%s\n}\n",
            i, rows[i].body);
        first[i] = line;
        for (size_t k = before; k < source.size; k++)
            line += source.data[k] == '\n';
    }
    sl_gpu_library *l = sl_gpu_library_new(r->g, source.data, source.size, &o, &err);
    sl_buf_free(&source);
    if (!l)
        fail_msg("%s", err.message);
    return l;
}

/* "@N" is "t.metal:LINE" and "#N" the line, N counted from the kernel's first. */
static void expand(const char *want, int first, char *out, size_t size) {
    const char *mark = strpbrk(want, "@#");
    if (!mark) {
        snprintf(out, size, "%s", want);
        return;
    }
    char *rest;
    int line = first - 1 + (int)strtol(mark + 1, &rest, 10);
    snprintf(out, size, "%.*s%s%d%s", (int)(mark - want), want, *mark == '@' ? "t.metal:" : "", line, rest);
}

static void run_row(rig *r, sl_gpu_library *l, size_t i, int first, uint64_t seed) {
    sl_error err = {0};
    sl_gpu_ticket ticket = 0;
    char name[16], want[200] = "no report";
    snprintf(name, sizeof name, "k%zu", i);
    if (rows[i].want)
        expand(rows[i].want, first, want, sizeof want);
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(l, name, NULL, 0, &err);
    if (!p)
        fail_msg("%s: %s", rows[i].name, err.message);
    sl_gpu_list *list = sl_gpu_begin(r->s, "list", &err);
    sl_gpu_binding bindings[] = {{.slot = 0, .buffer = r->in}, {.slot = 1, .buffer = r->out}};
    sl_gpu_dispatch d = {
        .pipeline = p, .groups = {2, 1, 1}, .threads = {64, 1, 1}, .bindings = bindings, .binding_count = 2};
    if (!list || !sl_gpu_encode(list, &d, &err) || !sl_gpu_submit(list, &ticket, &err))
        fail_msg("%s: %s", rows[i].name, err.message);
    bool ok = sl_gpu_wait(r->s, ticket, 60000000000u, NULL, &err);
    if (ok != !rows[i].want || (!ok && !strstr(err.message, want)))
        fail_msg("%s, seed %llu: %s\nexpected: %s", rows[i].name, (unsigned long long)seed,
                 ok ? "no report" : err.message, want);
    if (!ok)
        assert_true(sl_gpu_stream_recover(r->s, &err));
    sl_gpu_pipeline_free(p);
}

static void test_rows(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        rig r;
        int first[SL_COUNT(rows)];
        if (!open_rig(&r, seed))
            return;
        sl_gpu_library *l = compile(&r, first);
        for (size_t i = 0; i < SL_COUNT(rows); i++)
            run_row(&r, l, i, first[i], seed);
        sl_gpu_library_free(l);
        close_rig(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
