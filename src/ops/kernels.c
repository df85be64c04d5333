#include "ops/kernels.h"

#include "gpu/texts.h"
#include "kernels/args.h"
#include "ops/ops.h"
#include "quant/quant_grids.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- variants ---------------------------------------------------------------------------------------------------- */

/* Alignments that a format has a variant for, descending, ended by 1. Blocks of 18, 22, 34 or 210 bytes are aligned to
 * 2 at most, whatever their row is. */
static const int aligns_16_4_1[] = {16, 4, 1}, aligns_16_2_1[] = {16, 2, 1}, aligns_16_4_2_1[] = {16, 4, 2, 1};
static const int aligns_4_2_1[] = {4, 2, 1}, aligns_2_1[] = {2, 1};

static const int aligns_4_1[] = {4, 1}, aligns_1[] = {1};

static const int *const variants[SL_FORMAT_COUNT] = {[SL_F32] = aligns_16_4_1,         [SL_F16] = aligns_16_2_1,
                                                     [SL_BF16] = aligns_16_2_1,        [SL_Q4_0] = aligns_2_1,
                                                     [SL_Q4_1] = aligns_4_2_1,         [SL_Q5_0] = aligns_2_1,
                                                     [SL_Q5_1] = aligns_4_2_1,         [SL_Q8_0] = aligns_2_1,
                                                     [SL_Q4_K] = aligns_16_4_2_1,      [SL_Q5_K] = aligns_16_4_2_1,
                                                     [SL_Q6_K] = aligns_2_1,           [SL_AFFINE4] = aligns_16_4_1,
                                                     [SL_AFFINE8] = aligns_16_4_1,     [SL_AFFINE2] = aligns_4_1,
                                                     [SL_AFFINE3] = aligns_4_1,        [SL_AFFINE5] = aligns_4_1,
                                                     [SL_AFFINE6] = aligns_4_1,        [SL_Q2_K] = aligns_4_2_1,
                                                     [SL_Q3_K] = aligns_2_1,           [SL_IQ4_NL] = aligns_2_1,
                                                     [SL_IQ4_XS] = aligns_4_2_1,       [SL_MXFP4] = aligns_1,
                                                     [SL_NVFP4_SPLIT] = aligns_4_1,    [SL_MXFP8_SPLIT] = aligns_4_1,
                                                     [SL_MXFP4_SPLIT] = aligns_16_4_1, [SL_FP8] = aligns_4_1,
                                                     [SL_NVFP4] = aligns_4_2_1,        [SL_TQ2_0] = aligns_2_1,
                                                     [SL_IQ2_XXS] = aligns_2_1,        [SL_IQ2_XS] = aligns_2_1,
                                                     [SL_IQ2_S] = aligns_2_1,          [SL_IQ3_XXS] = aligns_2_1,
                                                     [SL_IQ3_S] = aligns_2_1,          [SL_IQ1_S] = aligns_2_1,
                                                     [SL_IQ1_M] = aligns_2_1,          [SL_TQ1_0] = aligns_2_1};

/* Kernels of a type of scales and biases apart. */
static bool has_side(const sl_matrix *m) {
    return sl_format_is_affine(m->format) || m->format == SL_FP8;
}

/* Scales and biases are read element by element: unaligned elements need the variant 1. */
static bool sides_aligned(const sl_matrix *m, const uint64_t address[3]) {
    uint64_t bytes = sl_format_get(m->side)->block_bytes;
    return address[1] % bytes == 0 && address[2] % bytes == 0;
}

/* Formats of few.metal: what a row's bytes are a multiple of. */
static const int few_aligns[SL_FORMAT_COUNT] = {
    [SL_AFFINE4] = 16, [SL_Q4_0] = 16, [SL_Q4_K] = 16, [SL_MXFP4] = 8, [SL_MXFP4_SPLIT] = 16};
enum { FEW_SIDE_ALIGN = 8 };

static bool has_few(const sl_matrix *m, const uint64_t address[3]) {
    int align = few_aligns[m->format];
    if (!align || m->rows % SL_FEW_ROWS || m->cols % SL_FEW_COLS || (address[0] | m->row_bytes[0]) % (uint64_t)align)
        return false;
    if (m->format == SL_AFFINE4 && (m->group != 64 || (m->side != SL_F16 && m->side != SL_BF16)))
        return false;
    uint64_t sides = m->row_bytes[1] ? address[1] | m->row_bytes[1] : 0;
    sides |= m->row_bytes[2] ? address[2] | m->row_bytes[2] : 0;
    return sides % FEW_SIDE_ALIGN == 0;
}

bool kernel_format_has(sl_format_id f) {
    return variants[f] != NULL;
}

kernel_format kernel_format_of(const sl_matrix *m, const uint64_t address[3]) {
    kernel_format f;
    snprintf(f.name, sizeof f.name, "%s%s%s", sl_format_get(m->format)->name, has_side(m) ? "_" : "",
             has_side(m) ? sl_format_get(m->side)->name : "");
    for (char *c = f.name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    const int *a = variants[m->format];
    uint64_t bits = address[0] | m->row_bytes[0];
    while (bits % (uint64_t)*a)
        a++;
    f.align = has_side(m) && !sides_aligned(m, address) ? 1 : *a;
    f.few = has_few(m, address);
    return f;
}

void kernel_entry(char *out, size_t size, const char *kernel, const kernel_format *f) {
    snprintf(out, size, "%s_%s_a%d", kernel, f->name, f->align);
}

void kernel_few_entry(char *out, size_t size, const char *kernel, const kernel_format *f) {
    snprintf(out, size, "%s_%s", kernel, f->name);
}

/* ---- source ------------------------------------------------------------------------------------------------------ */

enum { MOST_INCLUDED = 16, DEEPEST = 8 };

typedef struct source {
    sl_buf out;
    const sl_text *seen[MOST_INCLUDED];
    int count;
    sl_error *err;
} source;

/* Name of a line `#include "name"`; false: another line. */
static bool included_name(const char *line, size_t n, char name[64]) {
    static const char start[] = "#include \"";
    size_t from = sizeof start - 1;
    if (n <= from || memcmp(line, start, from) != 0)
        return false;
    const char *end = memchr(line + from, '"', n - from);
    if (!end || end - line - (long)from >= 64)
        return false;
    memcpy(name, line + from, (size_t)(end - line) - from);
    name[(size_t)(end - line) - from] = 0;
    return true;
}

/* Each file once. */
static bool put_file(source *s, const char *name, int depth) {
    const sl_text *t = gpu_text(name);
    if (!t)
        return sl_fail(s->err, SL_ERR_ARGUMENT, "there is no kernel file %s", name);
    for (int i = 0; i < s->count; i++)
        if (s->seen[i] == t)
            return true;
    if (s->count == MOST_INCLUDED || depth == DEEPEST)
        return sl_fail(s->err, SL_ERR_ARGUMENT, "kernel file %s: more than %d files or %d levels of them", name,
                       MOST_INCLUDED, DEEPEST);
    s->seen[s->count++] = t;
    sl_buf_printf(&s->out, "#line 1 \"%s\"\n", name);
    int line = 1;
    for (const char *p = t->bytes, *end = p + t->size; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = stop ? (size_t)(stop - p) + 1 : (size_t)(end - p);
        char inner[64];
        if (included_name(p, n, inner)) {
            if (!put_file(s, inner, depth + 1))
                return false;
            sl_buf_printf(&s->out, "#line %d \"%s\"\n", line + 1, name);
        } else
            sl_buf_append(&s->out, p, n);
        p += n;
    }
    return true;
}

/* The tables of blocks_grid.h, for kernels that read a format's blocks: eight weights a row (wide), or four. */
static const struct grid {
    const char *format;
    const uint64_t *wide;
    const uint32_t *narrow;
    int rows;
} grids[] = {
    {"iq2_xxs", quant_iq2xxs_grid, NULL, 256}, {"iq2_xs", quant_iq2xs_grid, NULL, 512},
    {"iq2_s", quant_iq2s_grid, NULL, 1024},    {"iq3_xxs", NULL, quant_iq3xxs_grid, 256},
    {"iq3_s", NULL, quant_iq3s_grid, 512},     {"iq1_s", quant_iq1s_grid, NULL, 2048},
    {"iq1_m", quant_iq1s_grid, NULL, 2048},
};

static void put_grid(sl_buf *out, const struct grid *g) {
    int words = g->wide ? 2 * g->rows : g->rows;
    sl_buf_printf(out, "#define SL_GRID_%s\nconstant unsigned int grid_%s[%d] = {", g->format, g->format, words);
    for (int i = 0; i < words; i++) {
        uint32_t v = g->wide ? (uint32_t)(g->wide[i / 2] >> 32 * (i & 1)) : g->narrow[i];
        sl_buf_printf(out, "0x%xu,%s", (unsigned)v, i % 16 == 15 ? "\n" : "");
    }
    sl_buf_puts(out, "};\n");
}

/* Those of the formats; of all where the file's list is not replaced. */
static void put_grids(sl_buf *out, const kernel_format *formats, size_t n) {
    for (size_t i = 0; i < SL_COUNT(grids); i++) {
        bool wanted = n == 0;
        for (size_t k = 0; k < n; k++)
            wanted = wanted || strcmp(formats[k].name, grids[i].format) == 0;
        if (wanted)
            put_grid(out, &grids[i]);
    }
}

/* The formats' names that few.metal knows, each once. */
static void put_few_formats(sl_buf *out, const kernel_format *formats, size_t n) {
    static const char *const known[] = {"affine4_f16", "affine4_bf16", "q4_0", "q4_k", "mxfp4", "mxfp4_split"};
    sl_buf_puts(out, "#define SL_FEW_FORMATS(X)");
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        size_t k = 0;
        while (k < n && strcmp(formats[k].name, known[i]) != 0)
            k++;
        if (k < n)
            sl_buf_printf(out, " X(%s)", known[i]);
    }
    sl_buf_puts(out, "\n");
}

char *kernel_source(const char *file, const kernel_format *formats, size_t n, size_t *size, sl_error *err) {
    source s = {.err = err};
    if (n) {
        sl_buf_puts(&s.out, "#define SL_FORMATS(X)");
        for (size_t i = 0; i < n; i++)
            sl_buf_printf(&s.out, " X(%s, %d)", formats[i].name, formats[i].align);
        sl_buf_puts(&s.out, "\n");
        put_few_formats(&s.out, formats, n);
    }
    put_grids(&s.out, formats, n);
    bool ok = put_file(&s, file, 0);
    char *text = ok ? sl_buf_take(&s.out, size) : NULL;
    if (ok && !text)
        sl_fail(err, SL_ERR_MEMORY, "out of memory");
    sl_buf_free(&s.out);
    return text;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { FEW_SIMDS = 8, MULTIPROCESSORS = 132, FEW_PAIRS = 240, FEW_PAIRS_MANY = 3 };

kernel_few_attention kernel_few_attention_of(int32_t head_dim, uint32_t room) {
    uint32_t dim = (uint32_t)head_dim, apart = 40 * dim + 256; /* few_memory */
    kernel_few_attention f = {FEW_SIMDS, FEW_SIMDS * 40 * dim};
    while (f.simds > 1 && f.bytes + apart > room)
        f = (kernel_few_attention){f.simds / 2, f.bytes / 2};
    return f;
}

/* One wave over an H200's multiprocessors, or few splits of each where there are many rows. */
kernel_few_plan kernel_few_plan_of(int32_t rows, int32_t heads, int32_t kv_heads) {
    int32_t groups = kv_heads * ((heads / kv_heads + SL_FEW_HEADS - 1) / SL_FEW_HEADS);
    int32_t one = MULTIPROCESSORS / groups, most = rows <= SL_GPU_FEW_ROWS ? FEW_PAIRS : FEW_PAIRS_MANY;
    int32_t n = one < 1 ? 1 : one < most ? one : most;
    return (kernel_few_plan){(uint32_t)n, (uint32_t)(FEW_PAIRS / n)};
}

kernel_large_attention kernel_large_attention_of(int32_t heads, int32_t kv_heads) {
    uint32_t simds = SL_ATTENTION_LARGE_THREADS / SL_SIMD, n = simds;
    while ((uint32_t)(heads / kv_heads) % n)
        n--;
    return (kernel_large_attention){n, simds / n};
}
