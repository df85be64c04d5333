/* A synthetic checkpoint as one GGUF file: matrices of the format asked for, the rest f32. */
#include "synth.h"

#include "checkpoint/gguf_write.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, CHUNK = 1 << 22 /* elements */ };
enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3 };

static void put_string(sl_gguf_writer *w, const char *key, const char *value) {
    sl_gguf_writer_str(w, key, value, strlen(value));
}

/* general.file_type of a file whose matrices are of a format; -1: none that is known. */
static int file_type(sl_format_id id) {
    static const int types[SL_FORMAT_COUNT] = {
        [SL_F16] = 1,    [SL_BF16] = 32,    [SL_Q4_0] = 2,    [SL_Q4_1] = 3,     [SL_Q5_0] = 8,   [SL_Q5_1] = 9,
        [SL_Q8_0] = 7,   [SL_MXFP4] = 38,   [SL_Q2_K] = 10,   [SL_Q3_K] = 12,    [SL_Q4_K] = 15,  [SL_Q5_K] = 17,
        [SL_Q6_K] = 18,  [SL_IQ2_XXS] = 19, [SL_IQ2_XS] = 20, [SL_IQ3_XXS] = 23, [SL_IQ1_S] = 24, [SL_IQ4_NL] = 25,
        [SL_IQ3_S] = 26, [SL_IQ2_S] = 28,   [SL_IQ4_XS] = 30};
    return types[id] || id == SL_F32 ? types[id] : -1;
}

static void write_config(sl_gguf_writer *w, const synth_shape *s, sl_format_id format) {
    char arch[32], key[96];
    const char *from = s->arch;
    char *to = arch;
    for (; *from; from++)
        if (*from != '_')
            *to++ = *from;
    *to = 0;
    const struct {
        const char *key;
        int value;
    } numbers[] = {{"block_count", s->layers},
                   {"context_length", s->context},
                   {"embedding_length", s->hidden},
                   {"feed_forward_length", s->ffn},
                   {"attention.head_count", s->heads},
                   {"attention.head_count_kv", s->kv_heads},
                   {"attention.key_length", s->head_dim},
                   {"attention.value_length", s->head_dim},
                   {"expert_count", s->experts},
                   {"expert_used_count", s->top_k},
                   {"expert_feed_forward_length", s->expert_ffn},
                   {"expert_shared_feed_forward_length", s->shared_ffn},
                   {"full_attention_interval", s->interval},
                   {"ssm.conv_kernel", s->delta_kernel},
                   {"ssm.state_size", s->delta_key_dim},
                   {"ssm.group_count", s->delta_key_heads},
                   {"ssm.time_step_rank", s->delta_value_heads},
                   {"ssm.inner_size", s->delta_value_heads * s->delta_value_dim},
                   {"rope.dimension_count", (int)(s->rotary * s->head_dim)}};
    put_string(w, "general.architecture", arch);
    put_string(w, "general.name", s->name);
    if (file_type(format) >= 0)
        sl_gguf_writer_int(w, "general.file_type", U32, file_type(format));
    sl_gguf_writer_int(w, "general.quantization_version", U32, 2);
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key);
        if (numbers[i].value > 0)
            sl_gguf_writer_int(w, key, U32, numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    sl_gguf_writer_float(w, key, F32, s->rope_theta > 0 ? s->rope_theta : 1e6);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    sl_gguf_writer_float(w, key, F32, 1e-6);
}

static bool write_tokenizer(sl_gguf_writer *w, const synth_tokenizer *t) {
    sl_str *pieces = calloc((size_t)t->vocab, sizeof *pieces), merges[64];
    int64_t *types = calloc((size_t)t->vocab, sizeof *types);
    bool ok = pieces && types;
    for (int i = 0; ok && i < t->vocab; i++) {
        pieces[i] = (sl_str){t->piece[i], strlen(t->piece[i])};
        types[i] = i >= t->end && i <= t->im_end ? TYPE_CONTROL : TYPE_NORMAL;
    }
    for (int i = 0; i < t->merges; i++)
        merges[i] = (sl_str){t->merge[i], strlen(t->merge[i])};
    if (ok) {
        put_string(w, "tokenizer.ggml.model", "gpt2");
        put_string(w, "tokenizer.ggml.pre", "qwen2");
        sl_gguf_writer_strs(w, "tokenizer.ggml.tokens", pieces, (size_t)t->vocab);
        sl_gguf_writer_ints(w, "tokenizer.ggml.token_type", I32, types, (size_t)t->vocab);
        sl_gguf_writer_strs(w, "tokenizer.ggml.merges", merges, (size_t)t->merges);
        sl_gguf_writer_int(w, "tokenizer.ggml.eos_token_id", U32, t->im_end);
        sl_gguf_writer_int(w, "tokenizer.ggml.bos_token_id", U32, t->end);
        sl_gguf_writer_int(w, "tokenizer.ggml.add_bos_token", BOOL, 0);
        put_string(w, "tokenizer.chat_template", synth_chat_template);
    }
    free(pieces);
    free(types);
    return ok;
}

static void fill_floats(synth_job *job, size_t index, int64_t at, int64_t n, float *out) {
    const synth_tensor *t = &job->tensors[index];
    synth_fill_float(job->random, index, at, n, t->mean, t->deviation, out);
    if (t->router)
        synth_skew_router(job, index, at, n, out);
    for (int64_t i = 0; i < n && t->logarithm; i++)
        out[i] = -expf(out[i]);
}

/* Rows that do not divide into blocks are Q8_0, as converters fall back too. */
sl_format_id synth_tensor_format(const synth_job *job, const synth_tensor *t) {
    sl_format_id f = job->format->format;
    if (!t->quantised)
        return SL_F32;
    return t->shape[t->dims - 1] % sl_format_get(f)->block_weights == 0 ? f : SL_Q8_0;
}

/* False once the writer has failed; finish says why. */
static bool write_tensor(synth_job *job, sl_gguf_writer *w, size_t index, void *buffer) {
    const synth_tensor *t = &job->tensors[index];
    sl_format_id id = synth_tensor_format(job, t);
    job->fallbacks += t->quantised && id != job->format->format;
    const sl_format *f = sl_format_get(id);
    int64_t all = synth_elements(t);
    bool ok = true;
    for (int64_t at = 0; ok && at < all; at += CHUNK) {
        int64_t n = sl_min_i64(CHUNK, all - at);
        if (t->quantised)
            synth_fill_blocks(job->random, id, index, at, n, t->deviation, buffer);
        else
            fill_floats(job, index, at, n, buffer);
        ok = sl_gguf_writer_data(w, buffer, (size_t)n / f->block_weights * f->block_bytes);
        ok = synth_progress(job, n) && ok;
    }
    return ok;
}

bool synth_write_gguf(synth_job *job, const char *path, sl_error *err) {
    void *buffer = malloc(CHUNK * sizeof(float));
    sl_gguf_writer *w = buffer ? sl_gguf_writer_new(path, err) : NULL;
    if (!buffer)
        sl_fail(err, SL_ERR_MEMORY, "out of memory for a buffer");
    bool ok = w != NULL;
    if (ok) {
        write_config(w, job->shape, job->format->format);
        ok = write_tokenizer(w, job->tokenizer) || sl_fail(err, SL_ERR_MEMORY, "out of memory for the vocabulary");
    }
    if (ok) {
        for (size_t i = 0; i < job->count; i++)
            sl_gguf_writer_tensor(w, job->tensors[i].gguf, synth_tensor_format(job, &job->tensors[i]),
                                  job->tensors[i].dims, job->tensors[i].shape);
        for (size_t i = 0; i < job->count && write_tensor(job, w, i, buffer); i++)
            continue;
        ok = sl_gguf_writer_finish(w, err);
    }
    sl_gguf_writer_free(w);
    free(buffer);
    return ok;
}
