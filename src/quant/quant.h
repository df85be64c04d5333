/* quant: element formats as rows of one table: sizes, exact dequantisation, quantisation.
 *
 * May include: base. Called by cpu (which adds dot products per format), checkpoint, tools. */
#ifndef SL_QUANT_H
#define SL_QUANT_H

#include "base/base.h"

typedef enum sl_format_id {
    SL_F32,
    SL_F16,
    SL_BF16,
    SL_Q4_0,
    SL_Q4_1,
    SL_Q5_0,
    SL_Q5_1,
    SL_Q8_0,
    SL_Q4_K,
    SL_Q5_K,
    SL_Q6_K,
    SL_AFFINE4, /* MLX: w = q * scale + bias per group, codes low bits first in u32 words; scale, bias in separate
                   arrays */
    SL_AFFINE8,
    SL_AFFINE2,
    SL_AFFINE3,
    SL_AFFINE5,
    SL_AFFINE6,
    SL_Q2_K,
    SL_Q3_K,
    SL_IQ4_NL,
    SL_IQ4_XS,
    SL_MXFP4,       /* GGUF: 17-byte blocks, one nibble of each half of the block in a byte */
    SL_MXFP4_SPLIT, /* MLX, Hugging Face: part 0 = nibbles, consecutive, low first; part 1 = one e8m0 byte per 32
                       columns. Where gate and up rows alternate, sl_matrix_every gives each of them */
    SL_FP8,         /* e4m3 (fn), one scale per block of 128 x 128 */
    SL_NVFP4,       /* GGUF: 64 weights, one e4m3 scale for each 16 */
    SL_IQ2_XXS,
    SL_IQ2_XS,
    SL_IQ2_S,
    SL_IQ3_XXS,
    SL_IQ3_S,
    SL_IQ1_S,
    SL_IQ1_M,
    SL_TQ1_0,
    SL_TQ2_0,
    SL_NVFP4_SPLIT, /* MLX: as MXFP4_SPLIT with one e4m3 byte per 16 columns */
    SL_MXFP8_SPLIT, /* MLX: e4m3 codes, one e8m0 byte per 32 columns */
    SL_FORMAT_COUNT
} sl_format_id;

/* A weight matrix W[rows][cols] in its file's own bytes. Row r of part p begins at part[p] + r * row_bytes[p]. Pointers
 * have no alignment. Block formats use part 0 only; affine uses 0 = codes, 1 = scales, 2 = biases (both of type side:
 * F16, BF16 or F32), one of each per `group` columns. MXFP4_SPLIT and the like: codes, scales. FP8: codes, scales of
 * type side, where a row of scales serves `group` rows of codes: row r's begins at part[1] + (row_in_block + r) / group
 * * row_bytes[1]. */
typedef struct sl_matrix {
    sl_format_id format;
    int32_t group;     /* affine: 32, 64 or 128; FP8: 128; else the table's */
    sl_format_id side; /* affine, FP8: type of scales and biases */
    int64_t rows, cols;
    const uint8_t *part[3];
    uint64_t row_bytes[3];
    int32_t row_in_block; /* FP8: where row 0 lies in its block of rows; 0 but in views of rows */
} sl_matrix;

typedef struct sl_format {
    const char *name;        /* "Q4_0", as printed and accepted */
    uint32_t block_weights;  /* weights per block: 1, 32, 256 (affine: 32, the unit of its codes) */
    uint32_t block_bytes;    /* bytes per block of part 0 */
    int32_t ggml_type;       /* GGUF's number, or -1 */
    const char *safetensors; /* safetensors dtype, or NULL */
    /* out[i] = weight col0 + i of row r, 0 <= i < n; col0 and n are multiples of block_weights. Bit for bit what
     * Python's gguf package gives (affine: f32(q) * f32(scale) + f32(bias), two roundings). */
    void (*dequantize)(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out);
    /* Block formats: n floats (a multiple of block_weights) to blocks, as ggml's reference quantiser does where synth
     * and tests need it; NULL where there is none. */
    void (*quantize)(const float *x, int64_t n, void *out);
    int32_t parts; /* arrays of a matrix: 1, 2 or 3 */
    int32_t bits;  /* affine: of a code; else 0 */
    int32_t group; /* columns per scale of one byte in part 1; else 0 */
} sl_format;

/* Row of the table; id is in range. */
const sl_format *sl_format_get(sl_format_id id);
const sl_format *sl_format_by_ggml_type(int32_t type, sl_format_id *id); /* NULL: unknown */
const sl_format *sl_format_by_name(const char *name, sl_format_id *id);  /* any case; NULL: unknown */
bool sl_affine_by_bits(int bits, sl_format_id *id);                      /* 2, 3, 4, 5, 6 or 8 */
bool sl_format_is_affine(sl_format_id id);
const char *sl_ggml_type_name(int32_t type); /* also of types not in the table; NULL: no such type */

/* Fills row_bytes (and checks cols, group) for a matrix whose format, group, side, rows, cols are set. */
bool sl_matrix_layout(sl_matrix *m, sl_error *err);
/* A view of rows [row0, row0 + n). */
sl_matrix sl_matrix_rows(const sl_matrix *m, int64_t row0, int64_t n);
/* A view of rows first, first + step, .. (gate and up of fused matrices whose rows alternate: step 2). Not of FP8. */
sl_matrix sl_matrix_every(const sl_matrix *m, int64_t first, int64_t step);
/* Bytes of part p of a matrix whose rows follow each other. */
uint64_t sl_matrix_part_bytes(const sl_matrix *m, int p);

/* n floats (a multiple of group) to MLX affine codes of 2, 3, 4, 5, 6 or 8 bits and one scale and bias of type side per
 * group: codes get n * bits / 8 bytes, scales and biases n / group elements. Codes are chosen for the scale and bias as
 * stored (after rounding to side). */
void sl_affine_quantize(const float *x, int64_t n, int bits, int group, sl_format_id side, void *codes, void *scales,
                        void *biases);

/* As sl_affine_quantize for rows of cols floats (cols a multiple of group), with scale and bias of each group searched
 * for a small error: the sum over a row's columns of importance[col] * (w - what is stored)^2, never larger than that
 * of sl_affine_quantize. importance: cols numbers >= 0, the same for all rows (of an expert's projection: the mean
 * square of its input column); NULL: all 1. Returns the sum of the errors, which is not finite where w has a value that
 * is not, or side cannot hold a scale or bias. The bytes depend on the arguments only, not on the machine. */
double sl_requantize(int bits, int group, sl_format_id side, int64_t rows, int64_t cols, const float *w,
                     const float *importance, void *codes, void *scales, void *biases);

float sl_f16_to_f32(uint16_t h);
uint16_t sl_f32_to_f16(float f); /* round to nearest even */
float sl_bf16_to_f32(uint16_t h);
uint16_t sl_f32_to_bf16(float f);

#endif
