/* The driver of the matrix products: which instruction set, matvec or tile, and the fused gate and up. */
#include "cpu/cpu_matmul.h"

#include "cpu/cpu_math.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* ---- sizes ---- */

uint64_t cpu_act_bytes(int64_t cols) {
    return (uint64_t)cpu_act_blocks(cols) * CPU_ACT_BLOCK;
}

/* Tiles of gate and up, then the panels of an affine matrix's scales and biases, for each four rows of a tile. */
uint64_t cpu_scratch_bytes(int64_t cols) {
    return 2 * cpu_tile_bytes(cols) + CPU_TILE_ROWS / 4 * 2 * cpu_panel_bytes(cols);
}

static void *panel_of(void *scratch, int64_t cols) {
    return (char *)scratch + 2 * cpu_tile_bytes(cols);
}

/* ---- matmul ---- */

/* Few rows of activations: those that cannot be done at once read the same small chunk of weights again, from the first
 * cache levels. */
static void matmul_by_rows(const cpu_matmul_isa *isa, const sl_matrix *w, int64_t row0, int64_t row1,
                           const cpu_rows *in, float *y, int64_t ldy, void *scratch) {
    enum { CHUNK = 16 };
    void *panel = panel_of(scratch, w->cols);
    int64_t step = in->n > 1 ? CHUNK : row1 - row0;
    for (int64_t r = row0; r < row1; r += step) {
        int64_t end = sl_min_i64(r + step, row1);
        for (int64_t i = 0; i < in->n;) {
            float *out = y + i * ldy + r - row0;
            if (isa->matvec_many) {
                i += isa->matvec_many(w, r, end, in, i, out, ldy, panel);
            } else {
                isa->matvec(w, r, end, in, i++, out, panel);
            }
        }
    }
}

/* How many groups n rows are multiplied in, and how many rows are in the next of the `left` ones: groups as equal as
 * can be, for a last group of one would use a quarter of the machine. */
static int64_t group_count(const cpu_matmul_isa *isa, int64_t n) {
    return (n + isa->tile_acts - 1) / isa->tile_acts;
}

static int64_t group_size(const cpu_matmul_isa *isa, int64_t left) {
    int64_t groups = group_count(isa, left);
    return (left + groups - 1) / groups;
}

/* Adds rows row0 .. row1 - 1 of w. */
static void ahead_add(cpu_ahead *a, const sl_matrix *w, int64_t row0, int64_t row1) {
    for (int p = 0; p < 3 && row0 < row1; p++) {
        if (w->row_bytes[p]) {
            a->span[a->spans].at = w->part[p] + (uint64_t)row0 * w->row_bytes[p];
            a->span[a->spans++].end = w->part[p] + (uint64_t)row1 * w->row_bytes[p];
        }
    }
}

/* Spreads what was added over `blocks` blocks. */
static void ahead_spread(cpu_ahead *a, int64_t blocks) {
    int64_t lines = 0;
    for (int s = 0; s < a->spans; s++) {
        lines += (a->span[s].end - a->span[s].at + 63) / 64;
    }
    a->lines = (int)((lines + blocks - 1) / sl_max_i64(blocks, 1));
}

static void matmul_by_tiles(const cpu_matmul_isa *isa, const sl_matrix *w, int64_t row0, int64_t row1,
                            const cpu_rows *in, float *y, int64_t ldy, void *scratch) {
    _Alignas(64) float out[CPU_TILE_ACTS * CPU_TILE_ROWS];
    for (int64_t r = row0; r < row1; r += isa->tile_rows) {
        int64_t rows = sl_min_i64(isa->tile_rows, row1 - r);
        cpu_ahead ahead = {.spans = 0};
        ahead_add(&ahead, w, r + rows, sl_min_i64(r + 2 * rows, row1));
        ahead_spread(&ahead, cpu_blocks(w->cols) * group_count(isa, in->n));
        isa->pack(w, r, rows, scratch, panel_of(scratch, w->cols));
        for (int64_t i = 0; i < in->n;) {
            int64_t acts = group_size(isa, in->n - i);
            isa->mul(w, scratch, in, i, acts, out, &ahead);
            for (int64_t a = 0; a < acts; a++, i++) {
                memcpy(y + i * ldy + r - row0, out + a * isa->tile_rows, (size_t)rows * sizeof *y);
            }
        }
    }
}

/* Rows that are not whole blocks of 32 (NVFP4_SPLIT may have such): a few at a time become F32. */
static void matmul_dequantized(const cpu_matmul_isa *isa, const sl_matrix *w, int64_t row0, int64_t row1,
                               const cpu_rows *in, float *y, int64_t ldy, void *scratch) {
    enum { ROWS = 8 };
    const uint64_t row_bytes = (uint64_t)w->cols * sizeof(float);
    _Static_assert(ROWS * 32 * sizeof(float) <= CPU_TILE_BLOCK, "a tile has room for the rows");
    for (int64_t r = row0; r < row1; r += ROWS) {
        int64_t rows = sl_min_i64(ROWS, row1 - r);
        for (int64_t k = 0; k < rows; k++) {
            sl_format_get(w->format)->dequantize(w, r + k, 0, w->cols, (float *)scratch + k * w->cols);
        }
        sl_matrix floats = {SL_F32, 0, SL_F32, rows, w->cols, {scratch}, {row_bytes}, 0};
        isa->matmul_float(&floats, 0, rows, in, y + r - row0, ldy);
    }
}

static bool use_tiles(const cpu_matmul_isa *isa, const cpu_rows *in) {
    return isa->pack && in->n >= isa->tile_from;
}

/* y[i * ldy + r - row0]: here and above, y begins at row0. */
static void matmul(const cpu_matmul_isa *isa, const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in,
                   float *y, int64_t ldy, void *scratch) {
    if (cpu_is_float(w->format)) {
        isa->matmul_float(w, row0, row1, in, y, ldy);
    } else if (!cpu_has_integers(w)) {
        matmul_dequantized(isa, w, row0, row1, in, y, ldy, scratch);
    } else if (use_tiles(isa, in)) {
        matmul_by_tiles(isa, w, row0, row1, in, y, ldy, scratch);
    } else {
        matmul_by_rows(isa, w, row0, row1, in, y, ldy, scratch);
    }
}

/* ---- gate and up ---- */

/* Rows i .. i + n - 1 of in. */
static cpu_rows rows_from(const cpu_rows *in, int64_t i, int64_t n) {
    cpu_rows out = *in;
    out.n = n;
    if (in->index) {
        out.index = in->index + i;
    } else {
        out.x = in->x ? in->x + i * in->ldx : NULL;
        out.q = in->q ? (const char *)in->q + (uint64_t)i * cpu_act_bytes(in->cols) : NULL;
    }
    return out;
}

/* gate goes to h; up, a few rows of W and of activations at a time, beside it. */
static void gate_up_by_rows(const cpu_matmul_isa *isa, const sl_matrix *gate, const sl_matrix *up, int64_t row0,
                            int64_t row1, const cpu_rows *in, float *h, int64_t ldh, void *scratch) {
    enum { ACTS = 4, ROWS = 64 };
    float u[ACTS * ROWS];
    int64_t step = in->n > ACTS ? ROWS : row1 - row0;
    for (int64_t r = row0; r < row1; r += step) {
        int64_t end = sl_min_i64(r + step, row1);
        matmul(isa, gate, r, end, in, h + r - row0, ldh, scratch);
        for (int64_t i = 0; i < in->n; i += ACTS) {
            cpu_rows some = rows_from(in, i, sl_min_i64(ACTS, in->n - i));
            for (int64_t c = r; c < end; c += ROWS) {
                int64_t rows = sl_min_i64(ROWS, end - c);
                matmul(isa, up, c, c + rows, &some, u, ROWS, scratch);
                for (int64_t k = 0; k < some.n; k++) {
                    float *out = h + (i + k) * ldh + c - row0;
                    isa->silu_mul(out, out, u + k * ROWS, rows);
                }
            }
        }
    }
}

static void gate_up_by_tiles(const cpu_matmul_isa *isa, const sl_matrix *gate, const sl_matrix *up, int64_t row0,
                             int64_t row1, const cpu_rows *in, float *h, int64_t ldh, void *scratch) {
    _Alignas(64) float g[CPU_TILE_ACTS * CPU_TILE_ROWS], u[CPU_TILE_ACTS * CPU_TILE_ROWS];
    char *tile = scratch, *tile_up = tile + cpu_tile_bytes(in->cols);
    for (int64_t r = row0; r < row1; r += isa->tile_rows) {
        int64_t rows = sl_min_i64(isa->tile_rows, row1 - r);
        cpu_ahead ahead = {.spans = 0};
        ahead_add(&ahead, gate, r + rows, sl_min_i64(r + 2 * rows, row1));
        ahead_add(&ahead, up, r + rows, sl_min_i64(r + 2 * rows, row1));
        ahead_spread(&ahead, 2 * cpu_blocks(in->cols) * group_count(isa, in->n));
        isa->pack(gate, r, rows, tile, panel_of(scratch, in->cols));
        isa->pack(up, r, rows, tile_up, panel_of(scratch, in->cols));
        for (int64_t i = 0; i < in->n;) {
            int64_t acts = group_size(isa, in->n - i);
            isa->mul(gate, tile, in, i, acts, g, &ahead);
            isa->mul(up, tile_up, in, i, acts, u, &ahead);
            for (int64_t a = 0; a < acts; a++, i++) {
                isa->silu_mul(h + i * ldh + r - row0, g + a * isa->tile_rows, u + a * isa->tile_rows, rows);
            }
        }
    }
}

static void gate_up(const cpu_matmul_isa *isa, const sl_matrix *gate, const sl_matrix *up, int64_t row0, int64_t row1,
                    const cpu_rows *in, float *h, int64_t ldh, void *scratch) {
    bool integers = cpu_has_integers(gate) && cpu_has_integers(up);
    if (integers && use_tiles(isa, in)) {
        gate_up_by_tiles(isa, gate, up, row0, row1, in, h, ldh, scratch);
    } else {
        gate_up_by_rows(isa, gate, up, row0, row1, in, h, ldh, scratch);
    }
}

/* ---- mode exact ---- */

static void quantize_exact(const float *x, int64_t ldx, int64_t n, int64_t cols, void *q) {}

static void matmul_exact(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y, int64_t ldy,
                         void *scratch) {
    cpu_matmul_exact(w, row0, row1, in, y + row0, ldy);
}

static void gate_up_exact(const sl_matrix *gate, const sl_matrix *up, int64_t row0, int64_t row1, const cpu_rows *in,
                          float *h, int64_t ldh, void *scratch) {
    enum { ACTS = 32, ROWS = 64 };
    float u[ACTS * ROWS];
    cpu_matmul_exact(gate, row0, row1, in, h + row0, ldh);
    for (int64_t i = 0; i < in->n; i += ACTS) {
        cpu_rows some = rows_from(in, i, sl_min_i64(ACTS, in->n - i));
        for (int64_t r = row0; r < row1; r += ROWS) {
            int64_t rows = sl_min_i64(ROWS, row1 - r);
            cpu_matmul_exact(up, r, r + rows, &some, u, ROWS);
            for (int64_t k = 0; k < some.n; k++) {
                v16_silu_mul(h + (i + k) * ldh + r, h + (i + k) * ldh + r, u + k * ROWS, rows);
            }
        }
    }
}

static const cpu_kernels exact = {"exact", quantize_exact, matmul_exact, gate_up_exact};

/* ---- tables ---- */

/* The public functions of one instruction set. */
#define KERNELS(isa)                                                                                                   \
    static void quantize_##isa(const float *x, int64_t ldx, int64_t n, int64_t cols, void *q) {                        \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            cpu_matmul_##isa.quantize_row(x + i * ldx, cols, (char *)q + (uint64_t)i * cpu_act_bytes(cols));           \
        }                                                                                                              \
    }                                                                                                                  \
    static void matmul_##isa(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y,             \
                             int64_t ldy, void *scratch) {                                                             \
        matmul(&cpu_matmul_##isa, w, row0, row1, in, y + row0, ldy, scratch);                                          \
    }                                                                                                                  \
    static void gate_up_##isa(const sl_matrix *gate, const sl_matrix *up, int64_t row0, int64_t row1,                  \
                              const cpu_rows *in, float *h, int64_t ldh, void *scratch) {                              \
        gate_up(&cpu_matmul_##isa, gate, up, row0, row1, in, h + row0, ldh, scratch);                                  \
    }                                                                                                                  \
    static const cpu_kernels kernels_##isa = {#isa, quantize_##isa, matmul_##isa, gate_up_##isa}

KERNELS(scalar);
#if defined(__x86_64__)
KERNELS(avx2);
KERNELS(avx512);

/* clang 14 does not know the name "f16c". */
static bool have_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool have_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && have_f16c();
}

static bool have_avx512(void) {
    return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
KERNELS(neon);

static bool have_dot_products(void) {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return true; /* every Mac has them */
#endif
}
#endif

const cpu_kernels *cpu_kernels_get(cpu_isa isa) {
    switch (isa) {
    case CPU_SCALAR:
        return &kernels_scalar;
#if defined(__x86_64__)
    case CPU_AVX2:
        return have_avx2() ? &kernels_avx2 : NULL;
    case CPU_AVX512:
        return have_avx512() ? &kernels_avx512 : NULL;
#elif defined(__aarch64__)
    case CPU_NEON:
        return have_dot_products() ? &kernels_neon : NULL;
#endif
    default:
        return NULL;
    }
}

cpu_isa cpu_isa_best(void) {
    static const cpu_isa order[] = {CPU_AVX512, CPU_AVX2, CPU_NEON};
    for (size_t i = 0; i < SL_COUNT(order); i++) {
        if (cpu_kernels_get(order[i])) {
            return order[i];
        }
    }
    return CPU_SCALAR;
}

const cpu_kernels *cpu_kernels_named(const char *name) {
    if (!name) {
        return cpu_kernels_get(cpu_isa_best());
    }
    if (strcmp(name, exact.name) == 0) {
        return &exact;
    }
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        const cpu_kernels *k = cpu_kernels_get((cpu_isa)i);
        if (k && strcmp(k->name, name) == 0) {
            return k;
        }
    }
    return NULL;
}
