/* Rotation frequencies: inv_freq[i] = theta^(-2i/dims), scaled as Hugging Face transformers' modeling_rope_utils does
 * for linear, llama3 and yarn. */
#include "model/model_internal.h"

#include <math.h>
#include <stdlib.h>

static const double TWO_PI = 6.283185307179586;

static double llama3(const rope_config *r, double f) {
    double wavelength = TWO_PI / f;
    if (wavelength < r->original_context / r->high_freq_factor)
        return f;
    if (wavelength > r->original_context / r->low_freq_factor)
        return f / r->factor;
    double smooth =
        (r->original_context / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* The dimension (a fraction) whose frequency turns `rotations` times over the original context. */
static double yarn_dimension(const sl_model *m, double rotations) {
    double dims = m->config.rope_dims;
    return dims * log(m->rope.original_context / (rotations * TWO_PI)) / (2 * log(m->config.rope_theta));
}

static double yarn(const sl_model *m, int32_t i, double f) {
    const rope_config *r = &m->rope;
    double low = yarn_dimension(m, r->beta_fast), high = yarn_dimension(m, r->beta_slow);
    if (!r->fractional) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < m->config.rope_dims - 1 ? high : m->config.rope_dims - 1;
    if (low == high)
        high += 0.001;
    double ramp = (i - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f / r->factor * ramp + f * (1 - ramp);
}

static double yarn_mscale(double factor, double times) {
    return factor > 1 ? 0.1 * times * log(factor) + 1.0 : 1.0;
}

/* What cos and sin are multiplied with. */
static double yarn_attention(const rope_config *r) {
    if (r->attention_factor > 0)
        return r->attention_factor * r->attention_times;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim) * r->attention_times;
    return yarn_mscale(r->factor, 1) * r->attention_times;
}

static double scaled(const sl_model *m, int32_t i, double f) {
    switch (m->rope.type) {
    case ROPE_LINEAR:
        return f / m->rope.factor;
    case ROPE_LLAMA3:
        return llama3(&m->rope, f);
    case ROPE_YARN:
        return yarn(m, i, f);
    default:
        return f;
    }
}

float model_attention_scale(const sl_model *m, int32_t dim) {
    const rope_config *r = &m->rope;
    double times = r->type == ROPE_YARN && r->mscale_all_dim > 0 ? yarn_mscale(r->factor, r->mscale_all_dim) : 1;
    return (float)(times * times / sqrt(dim));
}

bool model_rope_frequencies(sl_model *m, const float *factors, sl_error *err) {
    int32_t half = m->config.rope_dims / 2;
    free(m->inv_freq);
    m->inv_freq = malloc((size_t)(half ? half : 1) * sizeof *m->inv_freq);
    if (!m->inv_freq)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < half; i++) {
        /* transformers computes in float32; its rounding is part of the reference. */
        float f = 1.0f / powf((float)m->config.rope_theta, (float)(2 * i) / (float)m->config.rope_dims);
        double v = scaled(m, i, f);
        m->inv_freq[i] = (float)(factors ? v / factors[i] : v);
        if (!isfinite(m->inv_freq[i]))
            return sl_fail(err, SL_ERR_FORMAT, "%s: rotation: frequency %d of %d is not a finite number",
                           sl_ckpt_path(m->ckpt), i, half);
    }
    m->rope_scale = m->rope.type == ROPE_YARN ? (float)yarn_attention(&m->rope) : 1.0f;
    return true;
}
