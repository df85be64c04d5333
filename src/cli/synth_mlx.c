/* A synthetic checkpoint as MLX writes it: a directory, matrices affine in groups of 64 with bf16 scales and
 * biases or mxfp4, the rest bf16. */
#include "cli.h"
#include "synth.h"

#include "checkpoint/safetensors_write.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHUNK = 1 << 21 /* elements, or groups */ };

/* ---- JSON files -------------------------------------------------------------------------------------------------- */

static bool write_json(const char *directory, const char *name, json_t *doc, sl_error *err) {
    char *path = sl_path_join(directory, name);
    bool ok = (path && doc) || sl_fail(err, SL_ERR_MEMORY, "%s/%s: out of memory", directory, name);
    ok = ok && synth_replaceable(path, err) && cli_replace_json(path, doc, JSON_INDENT(1), err);
    free(path);
    json_decref(doc);
    return ok;
}

static int code_bits(const synth_format *f) {
    const sl_format *row = sl_format_get(f->format);
    return (int)(row->block_bytes * 8 / row->block_weights);
}

static const struct {
    const char *arch, *class;
} classes[] = {{"qwen2_moe", "Qwen2MoeForCausalLM"},
               {"qwen3_moe", "Qwen3MoeForCausalLM"},
               {"qwen3_next", "Qwen3NextForCausalLM"},
               {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"}};

static const char *class_of(const synth_shape *s) {
    size_t i = 0;
    while (i + 1 < SL_COUNT(classes) && strcmp(classes[i].arch, s->arch) != 0)
        i++;
    return classes[i].class;
}

static void merge(json_t *into, json_t *more) {
    json_object_update(into, more);
    json_decref(more);
}

static json_t *rope_json(const synth_shape *s) {
    if (s->interval == 0)
        return json_pack("{s:f}", "rope_theta", s->rope_theta > 0 ? s->rope_theta : 1e6);
    if (!synth_is_nested(s))
        return json_pack("{s:f, s:f}", "rope_theta", s->rope_theta, "partial_rotary_factor", s->rotary);
    return json_pack("{s:{s:s, s:f, s:f}}", "rope_parameters", "rope_type", "default", "rope_theta", s->rope_theta,
                     "partial_rotary_factor", s->rotary);
}

static json_t *delta_json(const synth_shape *s) {
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "full_attention_interval", s->interval, "linear_num_key_heads",
                     s->delta_key_heads, "linear_num_value_heads", s->delta_value_heads, "linear_key_head_dim",
                     s->delta_key_dim, "linear_value_head_dim", s->delta_value_dim, "linear_conv_kernel_dim",
                     s->delta_kernel);
}

/* The fields that describe the text model. */
static json_t *text_json(const synth_shape *s, const synth_tokenizer *t) {
    json_t *c =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "hidden_size", s->hidden, "num_hidden_layers",
                  s->layers, "num_attention_heads", s->heads, "num_key_value_heads", s->kv_heads, "head_dim",
                  s->head_dim, "moe_intermediate_size", s->expert_ffn, "num_experts", s->experts, "num_experts_per_tok",
                  s->top_k, "vocab_size", s->vocab, "max_position_embeddings", s->context);
    merge(c,
          json_pack("{s:s, s:b, s:b, s:f, s:i, s:i, s:i, s:[], s:s}", "hidden_act", "silu", "norm_topk_prob",
                    s->normalize, "tie_word_embeddings", s->tied, "rms_norm_eps", 1e-6, "bos_token_id", t->end,
                    "eos_token_id", t->im_end, "decoder_sparse_step", 1, "mlp_only_layers", "torch_dtype", "bfloat16"));
    merge(c, rope_json(s));
    if (s->ffn > 0)
        json_object_set_new(c, "intermediate_size", json_integer(s->ffn));
    if (s->shared_ffn > 0)
        json_object_set_new(c, "shared_expert_intermediate_size", json_integer(s->shared_ffn));
    if (s->interval > 0)
        merge(c, delta_json(s));
    return c;
}

static json_t *quantization_json(const synth_format *f) {
    json_t *q = json_pack("{s:i, s:i}", "group_size", f->group, "bits", code_bits(f));
    if (f->format == SL_MXFP4_SPLIT)
        json_object_set_new(q, "mode", json_string("mxfp4"));
    return q;
}

static json_t *config_json(const synth_shape *s, const synth_tokenizer *t, const synth_format *f) {
    json_t *text = text_json(s, t), *c = json_pack("{s:[s], s:s, s:o}", "architectures", class_of(s), "model_type",
                                                   s->arch, "quantization", quantization_json(f));
    if (!synth_is_nested(s)) {
        merge(c, text);
        return c;
    }
    json_object_set_new(text, "model_type", json_string("qwen3_5_moe_text"));
    json_object_set_new(c, "tie_word_embeddings", json_boolean(s->tied));
    json_object_set_new(c, "text_config", text);
    return c;
}

static json_t *added_tokens(const synth_tokenizer *t) {
    json_t *list = json_array();
    for (int id = t->end; id <= t->im_end; id++)
        json_array_append_new(list,
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", t->piece[id],
                                        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    return list;
}

static json_t *byte_level(void) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex",
                     0);
}

static json_t *tokenizer_json(const synth_tokenizer *t) {
    json_t *vocab = json_object(), *merges = json_array();
    for (int id = 0; id < t->vocab; id++)
        if (id < t->end || id > t->im_end)
            json_object_set_new(vocab, t->piece[id], json_integer(id));
    for (int i = 0; i < t->merges; i++)
        json_array_append_new(merges, json_string(t->merge[i]));
    json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", synth_split_regex,
                              "behavior", "Isolated", "invert", 0);
    json_t *pre = json_pack("{s:s, s:[o, o]}", "type", "Sequence", "pretokenizers", split, byte_level());
    json_t *model = json_pack("{s:s, s:n, s:n, s:s, s:s, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                              "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0, "byte_fallback",
                              0, "vocab", vocab, "merges", merges);
    return json_pack("{s:s, s:n, s:n, s:o, s:{s:s}, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
                     "added_tokens", added_tokens(t), "normalizer", "type", "NFC", "pre_tokenizer", pre,
                     "post_processor", byte_level(), "decoder", byte_level(), "model", model);
}

static json_t *tokenizer_config_json(const synth_tokenizer *t) {
    return json_pack("{s:s, s:b, s:s, s:s, s:n}", "tokenizer_class", "Qwen2Tokenizer", "add_bos_token", 0, "eos_token",
                     t->piece[t->im_end], "chat_template", synth_chat_template, "bos_token");
}

static json_t *generation_json(const synth_tokenizer *t) {
    return json_pack("{s:i, s:[i, i]}", "bos_token_id", t->end, "eos_token_id", t->im_end, t->end);
}

static bool write_side_files(const synth_job *job, const char *directory, sl_error *err) {
    const synth_tokenizer *t = job->tokenizer;
    return write_json(directory, "tokenizer_config.json", tokenizer_config_json(t), err) &&
           write_json(directory, "generation_config.json", generation_json(t), err) &&
           write_json(directory, "tokenizer.json", tokenizer_json(t), err) &&
           write_json(directory, "config.json", config_json(job->shape, t, job->format), err);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void declare(sl_safetensors_writer *w, const synth_tensor *t, const synth_format *f) {
    char name[128];
    int64_t shape[3];
    memcpy(shape, t->shape, sizeof shape);
    if (!t->quantised && strstr(t->hf, "shared_expert_gate")) {
        /* A vector in GGUF, a matrix of one row in Hugging Face's layout. */
        shape[1] = shape[0];
        shape[0] = 1;
        sl_safetensors_writer_tensor(w, t->hf, "BF16", 2, shape);
        return;
    }
    if (!t->quantised) {
        shape[2] = t->kernel ? 1 : shape[2];
        sl_safetensors_writer_tensor(w, t->hf, t->logarithm ? "F32" : "BF16", t->kernel ? 3 : t->dims, shape);
        return;
    }
    bool affine = sl_format_is_affine(f->format);
    shape[t->dims - 1] = t->shape[t->dims - 1] * code_bits(f) / 32; /* words */
    snprintf(name, sizeof name, "%s.weight", t->hf);
    sl_safetensors_writer_tensor(w, name, "U32", t->dims, shape);
    shape[t->dims - 1] = t->shape[t->dims - 1] / f->group;
    snprintf(name, sizeof name, "%s.scales", t->hf);
    sl_safetensors_writer_tensor(w, name, affine ? "BF16" : "U8", t->dims, shape);
    if (!affine)
        return;
    snprintf(name, sizeof name, "%s.biases", t->hf);
    sl_safetensors_writer_tensor(w, name, "BF16", t->dims, shape);
}

/* Scales and biases are made together, twice: each pass writes one of them. */
static bool write_side(synth_job *job, sl_safetensors_writer *w, size_t index, bool biases, void *buffer) {
    const synth_tensor *t = &job->tensors[index];
    uint16_t *scales = buffer;
    int64_t groups = synth_elements(t) / job->format->group;
    bool affine = sl_format_is_affine(job->format->format), ok = true;
    for (int64_t at = 0; ok && at < groups; at += CHUNK) {
        int64_t n = sl_min_i64(CHUNK, groups - at);
        if (affine)
            synth_fill_affine(job->random, index, at, n, t->deviation, scales, scales + CHUNK);
        else
            synth_fill_powers(job->random, index, at, n, t->deviation, buffer);
        ok = sl_safetensors_writer_data(w, biases ? scales + CHUNK : scales, (size_t)n * (affine ? 2 : 1));
    }
    return ok;
}

static bool write_quantised(synth_job *job, sl_safetensors_writer *w, size_t index, void *buffer) {
    int64_t all = synth_elements(&job->tensors[index]);
    bool ok = true;
    for (int64_t at = 0; ok && at < all; at += CHUNK) {
        int64_t n = sl_min_i64(CHUNK, all - at);
        synth_fill_codes(job->random, index, at, n, buffer);
        ok = sl_safetensors_writer_data(w, buffer, (size_t)(n / 8 * code_bits(job->format)));
        ok = synth_progress(job, n) && ok;
    }
    return ok && write_side(job, w, index, false, buffer) &&
           (!sl_format_is_affine(job->format->format) || write_side(job, w, index, true, buffer));
}

static bool write_float(synth_job *job, sl_safetensors_writer *w, size_t index, void *buffer) {
    const synth_tensor *t = &job->tensors[index];
    int64_t all = synth_elements(t);
    float *floats = buffer;
    uint16_t *halves = buffer;
    bool ok = true;
    for (int64_t at = 0; ok && at < all; at += CHUNK) {
        int64_t n = sl_min_i64(CHUNK, all - at);
        synth_fill_float(job->random, index, at, n, t->mean, t->deviation, floats);
        if (t->router)
            synth_skew_router(job, index, at, n, floats);
        for (int64_t i = 0; i < n && !t->logarithm; i++) {
            float v = floats[i];
            halves[i] = sl_f32_to_bf16(v); /* behind what is still to be read */
        }
        ok = sl_safetensors_writer_data(w, buffer, (size_t)n * (t->logarithm ? sizeof *floats : sizeof *halves));
        ok = synth_progress(job, n) && ok;
    }
    return ok;
}

bool synth_write_mlx(synth_job *job, const char *directory, sl_error *err) {
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s", directory);
    char *path = sl_path_join(directory, "model.safetensors");
    void *buffer = malloc(CHUNK * sizeof(float));
    sl_safetensors_writer *w = path && buffer ? sl_safetensors_writer_new(path, err) : NULL;
    if (!path || !buffer)
        sl_fail(err, SL_ERR_MEMORY, "out of memory for a buffer");
    bool ok = w != NULL;
    if (ok) {
        sl_safetensors_writer_meta(w, "format", "mlx");
        for (size_t i = 0; i < job->count; i++)
            declare(w, &job->tensors[i], job->format);
        for (size_t i = 0; ok && i < job->count; i++)
            ok = job->tensors[i].quantised ? write_quantised(job, w, i, buffer) : write_float(job, w, i, buffer);
        ok = sl_safetensors_writer_finish(w, err);
    }
    sl_safetensors_writer_free(w);
    free(buffer);
    free(path);
    /* config.json comes last: without it the directory is no checkpoint. */
    return ok && write_side_files(job, directory, err);
}
