/* Logits of the tiny checkpoints against Hugging Face transformers (tests/golden/arch, made by tools/golden): exact
 * mode, relative error below 1e-5. Checkpoints of one model in other containers have the same expected logits. */
#include "support_fixture.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/arch/"

enum { MAX_TOKENS = 512, CHUNK = 512 };

typedef struct golden {
    char path[512];
    int32_t tokens[MAX_TOKENS], rows[MAX_TOKENS];
    int32_t count, row_count, vocab, prefill;
    float *logits; /* [row_count][vocab] */
} golden;

static int32_t integers(json_t *list, int32_t *out) {
    int32_t n = (int32_t)json_array_size(list);
    assert_true(n > 0 && n <= MAX_TOKENS);
    for (int32_t i = 0; i < n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static golden read_golden(const char *name) {
    golden g = {.count = 0};
    char path[600];
    sl_error err = {0};
    snprintf(path, sizeof path, GOLDEN "%s/golden.json", name);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    snprintf(g.path, sizeof g.path, GOLDEN "%s/%s", name, json_string_value(json_object_get(j, "model")));
    g.count = integers(json_object_get(j, "tokens"), g.tokens);
    g.row_count = integers(json_object_get(j, "rows"), g.rows);
    g.vocab = (int32_t)json_integer_value(json_object_get(j, "vocab"));
    g.prefill = (int32_t)json_integer_value(json_object_get(j, "prefill"));
    snprintf(path, sizeof path, GOLDEN "%s/%s", name, json_string_value(json_object_get(j, "logits")));
    size_t size = 0;
    g.logits = (float *)(void *)sl_read_text(path, 1 << 24, &size, &err);
    assert_int_equal(size, (size_t)g.row_count * (size_t)g.vocab * sizeof(float));
    json_decref(j);
    return g;
}

/* Largest difference over the largest magnitude of the row. */
static double relative_error(const float *a, const float *b, int32_t n) {
    double worst = 0, scale = 0;
    for (int32_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)a[i] - b[i]));
        scale = fmax(scale, fabs((double)b[i]));
        if (!isfinite(a[i]))
            return INFINITY;
    }
    return worst / scale;
}

/* Logits of all tokens, fed `chunk` at a time. */
static float *run_chunks(fixture *f, const golden *g, int32_t chunk) {
    float *out = malloc((size_t)g->count * (size_t)g->vocab * sizeof *out);
    int32_t seq[MAX_TOKENS] = {0}, position[MAX_TOKENS];
    for (int32_t i = 0; i < g->count; i++)
        position[i] = i;
    for (int32_t at = 0; at < g->count; at += chunk) {
        int32_t n = g->count - at < chunk ? g->count - at : chunk;
        sl_error err = {0};
        if (!fixture_run(f, g->tokens + at, seq, position + at, n, out + (int64_t)at * g->vocab, NULL, &err))
            fail_msg("%s", err.message);
    }
    return out;
}

static fixture *open_fixture(const golden *g, sl_numeric numeric, sl_kv_format kv, const char *isa, int threads,
                             bool reverse) {
    sl_error err = {0};
    fixture_options o = {.path = g->path,
                         .numeric = numeric,
                         .kv = kv,
                         .isa = isa,
                         .threads = threads,
                         .max_rows = CHUNK,
                         .sequences = 1,
                         .context = MAX_TOKENS,
                         .reverse = reverse,
                         .fail_expert = -1};
    fixture *f = fixture_open(&o, &err);
    if (!f)
        fail_msg("%s: %s", g->path, err.message);
    return f;
}

static void check_golden(const char *name, int32_t chunk) {
    golden g = read_golden(name);
    fixture *f = open_fixture(&g, SL_NUMERIC_EXACT, SL_KV_F32, NULL, 2, false);
    float *out = run_chunks(f, &g, chunk);
    double worst = 0;
    for (int32_t i = 0; i < g.row_count; i++)
        worst =
            fmax(worst, relative_error(out + (int64_t)g.rows[i] * g.vocab, g.logits + (int64_t)i * g.vocab, g.vocab));
    print_message("%-20s chunk %3d: relative error %.2e\n", name, chunk, worst);
    assert_true(worst < 1e-5);
    free(out);
    free(g.logits);
    fixture_close(f);
}

static const char *const names[] = {"llama",
                                    "llama-tied",
                                    "llama-gguf",
                                    "llama-tied-gguf",
                                    "qwen2_moe",
                                    "qwen2_moe-mixed",
                                    "qwen2_moe-gguf",
                                    "qwen3_moe",
                                    "qwen3_moe-gguf",
                                    "qwen3_moe-mlx4",
                                    "qwen3_moe-mlx8",
                                    "qwen3_moe-fused",
                                    "qwen3_next",
                                    "qwen3_next-mtp",
                                    "qwen3_next-mlx4",
                                    "qwen3_next-gguf",
                                    "qwen3_next-gguf-q8",
                                    "qwen3_5_moe",
                                    "qwen3_5_moe-mlx",
                                    "qwen3_5_moe-mlx8",
                                    "qwen3_5_moe-gguf",
                                    "qwen3_5_moe-gguf-q8",
                                    "qwen3_5_moe-odd",
                                    "mixtral",
                                    "mixtral-gguf",
                                    "olmoe",
                                    "olmoe-gguf",
                                    "glm4_moe",
                                    "glm4_moe-gguf",
                                    "deepseek_v3",
                                    "deepseek_v3-gguf",
                                    "deepseek_v3-plain",
                                    "minimax_m2",
                                    "minimax_m2-gguf",
                                    "gpt_oss",
                                    "gpt_oss-gguf"};

static void exact_logits_equal_transformers(void **state) {
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        check_golden(names[i], CHUNK); /* prefill */
        check_golden(names[i], 1);     /* decode */
    }
}

/* Promise 2: a row's logits depend only on its own sequence. One checkpoint of each architecture and container. */
static void same_bits_whatever_chunk_threads_isa_and_arrival(void **state) {
    static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};
    static const sl_kv_format kvs[] = {SL_KV_F16, SL_KV_F32};
    static const char *const some[] = {"llama-tied-gguf",     "qwen2_moe-mixed",  "qwen3_moe-gguf",
                                       "qwen3_moe-mlx4",      "qwen3_moe-fused",  "qwen3_next-gguf-q8",
                                       "qwen3_5_moe-gguf-q8", "qwen3_5_moe-mlx8", "qwen3_5_moe-odd"};
    for (size_t i = 0; i < SL_COUNT(some); i++) {
        golden g = read_golden(some[i]);
        size_t bytes = (size_t)g.count * (size_t)g.vocab * sizeof(float);
        for (size_t k = 0; k < (i ? 1 : SL_COUNT(kvs)); k++) {
            fixture *f = open_fixture(&g, SL_NUMERIC_Q8, kvs[k], "scalar", 1, false);
            float *expected = run_chunks(f, &g, 1);
            fixture_close(f);
            for (size_t j = 0; j < SL_COUNT(isas); j++) {
                sl_error err;
                sl_ops_cpu_options probe = {.isa = isas[j]};
                sl_ops *ops = sl_ops_cpu_new(&probe, &err);
                if (!ops)
                    continue; /* not on this machine */
                sl_ops_free(ops);
                static const int32_t chunks[] = {1, 7, 64, CHUNK};
                for (size_t c = 0; c < SL_COUNT(chunks); c++) {
                    f = open_fixture(&g, SL_NUMERIC_Q8, kvs[k], isas[j], 1 + (int)(c % 3), c % 2);
                    float *out = run_chunks(f, &g, chunks[c]);
                    if (memcmp(out, expected, bytes))
                        fail_msg("%s: isa %s, chunk %d, kv %d: other bits than scalar token by token", some[i], isas[j],
                                 chunks[c], (int)kvs[k]);
                    free(out);
                    fixture_close(f);
                }
            }
            free(expected);
        }
        free(g.logits);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_logits_equal_transformers),
                                       cmocka_unit_test(same_bits_whatever_chunk_threads_isa_and_arrival)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
