/* The table of formats, GGUF's type numbers, and the layout of a matrix. */
#include "quant/quant.h"
#include "quant/quant_rows.h"

#include <inttypes.h>
#include <strings.h>

static const sl_format formats[SL_FORMAT_COUNT] = {
    [SL_F32] = {"F32", 1, 4, 0, "F32", quant_dequantize_f32, quant_quantize_f32, 1, 0, 0},
    [SL_F16] = {"F16", 1, 2, 1, "F16", quant_dequantize_f16, quant_quantize_f16, 1, 0, 0},
    [SL_BF16] = {"BF16", 1, 2, 30, "BF16", quant_dequantize_bf16, quant_quantize_bf16, 1, 0, 0},
    [SL_Q4_0] = {"Q4_0", 32, 18, 2, NULL, quant_dequantize_q4_0, quant_quantize_q4_0, 1, 0, 0},
    [SL_Q4_1] = {"Q4_1", 32, 20, 3, NULL, quant_dequantize_q4_1, quant_quantize_q4_1, 1, 0, 0},
    [SL_Q5_0] = {"Q5_0", 32, 22, 6, NULL, quant_dequantize_q5_0, quant_quantize_q5_0, 1, 0, 0},
    [SL_Q5_1] = {"Q5_1", 32, 24, 7, NULL, quant_dequantize_q5_1, quant_quantize_q5_1, 1, 0, 0},
    [SL_Q8_0] = {"Q8_0", 32, 34, 8, NULL, quant_dequantize_q8_0, quant_quantize_q8_0, 1, 0, 0},
    [SL_Q4_K] = {"Q4_K", 256, 144, 12, NULL, quant_dequantize_q4_k, NULL, 1, 0, 0},
    [SL_Q5_K] = {"Q5_K", 256, 176, 13, NULL, quant_dequantize_q5_k, NULL, 1, 0, 0},
    [SL_Q6_K] = {"Q6_K", 256, 210, 14, NULL, quant_dequantize_q6_k, NULL, 1, 0, 0},
    [SL_AFFINE4] = {"affine4", 32, 16, -1, NULL, quant_dequantize_affine4, NULL, 3, 4, 0},
    [SL_AFFINE8] = {"affine8", 32, 32, -1, NULL, quant_dequantize_affine8, NULL, 3, 8, 0},
    [SL_AFFINE2] = {"affine2", 32, 8, -1, NULL, quant_dequantize_affine2, NULL, 3, 2, 0},
    [SL_AFFINE3] = {"affine3", 32, 12, -1, NULL, quant_dequantize_affine3, NULL, 3, 3, 0},
    [SL_AFFINE5] = {"affine5", 32, 20, -1, NULL, quant_dequantize_affine5, NULL, 3, 5, 0},
    [SL_AFFINE6] = {"affine6", 32, 24, -1, NULL, quant_dequantize_affine6, NULL, 3, 6, 0},
    [SL_Q2_K] = {"Q2_K", 256, 84, 10, NULL, quant_dequantize_q2_k, NULL, 1, 0, 0},
    [SL_Q3_K] = {"Q3_K", 256, 110, 11, NULL, quant_dequantize_q3_k, NULL, 1, 0, 0},
    [SL_IQ4_NL] = {"IQ4_NL", 32, 18, 20, NULL, quant_dequantize_iq4_nl, NULL, 1, 0, 0},
    [SL_IQ4_XS] = {"IQ4_XS", 256, 136, 23, NULL, quant_dequantize_iq4_xs, NULL, 1, 0, 0},
    [SL_MXFP4] = {"MXFP4", 32, 17, 39, NULL, quant_dequantize_mxfp4, quant_quantize_mxfp4, 1, 0, 0},
    [SL_MXFP4_SPLIT] = {"mxfp4_split", 32, 16, -1, NULL, quant_dequantize_mxfp4_split, NULL, 2, 0, 32},
    [SL_FP8] = {"fp8", 1, 1, -1, NULL, quant_dequantize_fp8, NULL, 2, 0, 0},
    [SL_NVFP4] = {"NVFP4", 64, 36, 40, NULL, quant_dequantize_nvfp4, NULL, 1, 0, 0},
    [SL_IQ2_XXS] = {"IQ2_XXS", 256, 66, 16, NULL, quant_dequantize_iq2_xxs, NULL, 1, 0, 0},
    [SL_IQ2_XS] = {"IQ2_XS", 256, 74, 17, NULL, quant_dequantize_iq2_xs, NULL, 1, 0, 0},
    [SL_IQ2_S] = {"IQ2_S", 256, 82, 22, NULL, quant_dequantize_iq2_s, NULL, 1, 0, 0},
    [SL_IQ3_XXS] = {"IQ3_XXS", 256, 98, 18, NULL, quant_dequantize_iq3_xxs, NULL, 1, 0, 0},
    [SL_IQ3_S] = {"IQ3_S", 256, 110, 21, NULL, quant_dequantize_iq3_s, NULL, 1, 0, 0},
    [SL_IQ1_S] = {"IQ1_S", 256, 50, 19, NULL, quant_dequantize_iq1_s, NULL, 1, 0, 0},
    [SL_IQ1_M] = {"IQ1_M", 256, 56, 29, NULL, quant_dequantize_iq1_m, NULL, 1, 0, 0},
    [SL_TQ1_0] = {"TQ1_0", 256, 54, 34, NULL, quant_dequantize_tq1_0, NULL, 1, 0, 0},
    [SL_TQ2_0] = {"TQ2_0", 256, 66, 35, NULL, quant_dequantize_tq2_0, NULL, 1, 0, 0},
    [SL_NVFP4_SPLIT] = {"nvfp4_split", 16, 8, -1, NULL, quant_dequantize_nvfp4_split, NULL, 2, 0, 16},
    [SL_MXFP8_SPLIT] = {"mxfp8_split", 32, 32, -1, NULL, quant_dequantize_mxfp8_split, NULL, 2, 0, 32},
};

/* GGUF's element types by number; gaps are numbers that were withdrawn. */
static const char *const ggml_names[] = {
    [0] = "F32",     [1] = "F16",    [2] = "Q4_0",     [3] = "Q4_1",    [6] = "Q5_0",     [7] = "Q5_1",
    [8] = "Q8_0",    [9] = "Q8_1",   [10] = "Q2_K",    [11] = "Q3_K",   [12] = "Q4_K",    [13] = "Q5_K",
    [14] = "Q6_K",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S",
    [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",   [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",
    [26] = "I32",    [27] = "I64",   [28] = "F64",     [29] = "IQ1_M",  [30] = "BF16",    [34] = "TQ1_0",
    [35] = "TQ2_0",  [39] = "MXFP4", [40] = "NVFP4",   [41] = "Q1_0",
};

const sl_format *sl_format_get(sl_format_id id) {
    return &formats[id];
}

const sl_format *sl_format_by_ggml_type(int32_t type, sl_format_id *id) {
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        if (formats[i].ggml_type == type && type >= 0) {
            *id = (sl_format_id)i;
            return &formats[i];
        }
    }
    return NULL;
}

const char *sl_ggml_type_name(int32_t type) {
    return type >= 0 && type < (int32_t)SL_COUNT(ggml_names) ? ggml_names[type] : NULL;
}

const sl_format *sl_format_by_name(const char *name, sl_format_id *id) {
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        if (strcasecmp(formats[i].name, name) == 0) {
            *id = (sl_format_id)i;
            return &formats[i];
        }
    }
    return NULL;
}

bool sl_affine_by_bits(int bits, sl_format_id *id) {
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        if (bits > 0 && formats[i].bits == bits) {
            *id = (sl_format_id)i;
            return true;
        }
    }
    return false;
}

bool sl_format_is_affine(sl_format_id id) {
    return formats[id].bits > 0;
}

const uint8_t *quant_block_at(const sl_matrix *m, int64_t row, int64_t col0) {
    const sl_format *f = &formats[m->format];
    return m->part[0] + (uint64_t)row * m->row_bytes[0] + (uint64_t)(col0 / f->block_weights) * f->block_bytes;
}

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static bool check_side(const sl_matrix *m, sl_error *err) {
    return m->side == SL_F32 || m->side == SL_F16 || m->side == SL_BF16 ||
           sl_fail(err, SL_ERR_UNSUPPORTED, "%s scales of type %s, expected F32, F16 or BF16", formats[m->format].name,
                   (unsigned)m->side < SL_FORMAT_COUNT ? formats[m->side].name : "?");
}

static bool layout_affine(sl_matrix *m, sl_error *err) {
    const char *name = formats[m->format].name;
    if (m->group != 32 && m->group != 64 && m->group != 128) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s group size %" PRId32 ", expected 32, 64 or 128", name, m->group);
    }
    if (!check_side(m, err)) {
        return false;
    }
    if (m->cols % m->group != 0) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s with %" PRId64 " columns, expected a multiple of the group size %" PRId32, name, m->cols,
                       m->group);
    }
    m->row_bytes[1] = m->row_bytes[2] = (uint64_t)(m->cols / m->group) * formats[m->side].block_bytes;
    return true;
}

/* The sums of 64 bits that `rows` rows of scales could overflow are smaller than those of the codes. */
static bool layout_fp8(sl_matrix *m, sl_error *err) {
    if (m->group != 128) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s block of %" PRId32 " rows and columns, expected 128",
                       formats[m->format].name, m->group);
    }
    m->row_bytes[1] = (uint64_t)((m->cols - 1) / m->group + 1) * formats[m->side].block_bytes;
    return check_side(m, err);
}

bool sl_matrix_layout(sl_matrix *m, sl_error *err) {
    if ((unsigned)m->format >= SL_FORMAT_COUNT) {
        return sl_fail(err, SL_ERR_ARGUMENT, "format number %d, expected below %d", (int)m->format, SL_FORMAT_COUNT);
    }
    const sl_format *f = &formats[m->format];
    if (m->rows < 0 || m->cols <= 0) {
        return sl_fail(err, SL_ERR_FORMAT, "matrix of %" PRId64 " rows, %" PRId64 " columns, expected positive sizes",
                       m->rows, m->cols);
    }
    if (m->cols % f->block_weights != 0) {
        return sl_fail(err, SL_ERR_FORMAT, "%s with %" PRId64 " columns, expected a multiple of %" PRIu32, f->name,
                       m->cols, f->block_weights);
    }
    uint64_t total;
    m->row_bytes[1] = m->row_bytes[2] = 0;
    if (!sl_mul_u64((uint64_t)m->cols / f->block_weights, f->block_bytes, &m->row_bytes[0]) ||
        !sl_mul_u64((uint64_t)m->rows, m->row_bytes[0], &total) || total > INT64_MAX) {
        return sl_fail(err, SL_ERR_FORMAT, "%s matrix of %" PRId64 " x %" PRId64 " overflows 64 bits", f->name, m->rows,
                       m->cols);
    }
    if (sl_format_is_affine(m->format)) {
        return layout_affine(m, err);
    }
    if (m->format == SL_FP8) {
        return layout_fp8(m, err);
    }
    m->group = f->group;
    m->row_bytes[1] = f->group ? (uint64_t)(m->cols / f->group) : 0;
    return true;
}

sl_matrix sl_matrix_rows(const sl_matrix *m, int64_t row0, int64_t n) {
    sl_matrix view = *m;
    bool fp8 = m->format == SL_FP8;
    view.rows = n;
    for (int p = 0; p < 3; p++) {
        int64_t part_row = fp8 && p > 0 ? (m->row_in_block + row0) / m->group : row0;
        if (view.part[p]) {
            view.part[p] += (uint64_t)part_row * m->row_bytes[p];
        }
    }
    view.row_in_block = fp8 ? (int32_t)((m->row_in_block + row0) % m->group) : 0;
    return view;
}

sl_matrix sl_matrix_every(const sl_matrix *m, int64_t first, int64_t step) {
    sl_matrix view = sl_matrix_rows(m, first, (m->rows - first + step - 1) / step);
    for (int p = 0; p < 3; p++) {
        view.row_bytes[p] *= (uint64_t)step;
    }
    return view;
}

uint64_t sl_matrix_part_bytes(const sl_matrix *m, int p) {
    int64_t rows = m->format == SL_FP8 && p > 0 ? (m->row_in_block + m->rows + m->group - 1) / m->group : m->rows;
    return (uint64_t)rows * m->row_bytes[p];
}
