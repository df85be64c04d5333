/* The tiny checkpoints of every architecture with the kernels on the software device (or SLUICE_TEST_DEVICE), beside
 * the CPU's exact mode: a few rows at a time (float) and a prompt at once (half tiles), with everything that the model
 * says of its layers. */
#include "support_fixture.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/arch/"

enum { TOKENS = 70, MOST_VOCAB = 1024 };

static char cache[] = "/tmp/sluice-golden-XXXXXX"; /* compiled once for all tests here */

static int make_cache(void **state) {
    return mkdtemp(cache) ? 0 : -1;
}

static int remove_cache(void **state) {
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return rmdir(cache);
}

static fixture *open_on(const char *name, const char *device, sl_error *err) {
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s", name);
    fixture_options o = {.path = path,
                         .numeric = SL_NUMERIC_EXACT,
                         .device = device,
                         .cache_dir = cache,
                         .kv = SL_KV_F32,
                         .threads = 2,
                         .max_rows = TOKENS,
                         .sequences = 1,
                         .context = TOKENS,
                         .fail_expert = -1};
    return fixture_open(&o, err);
}

/* Logits [TOKENS][vocab], fed `chunk` at a time. */
static void run(fixture *f, int32_t chunk, float *out) {
    int32_t vocab = sl_model_config_get(f->model)->vocab;
    int32_t tokens[TOKENS], seq[TOKENS] = {0}, position[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (i * 31 + 7) % vocab;
        position[i] = i;
    }
    for (int32_t at = 0; at < TOKENS; at += chunk) {
        int32_t n = TOKENS - at < chunk ? TOKENS - at : chunk;
        sl_error err = {0};
        if (!fixture_run(f, tokens + at, seq, position + at, n, out + (int64_t)at * vocab, NULL, &err))
            fail_msg("%s", err.message);
    }
}

static double row_error(const float *a, const float *b, int32_t n) {
    double worst = 0, scale = 0;
    for (int32_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - b[i]);
        worst = isnan(worst) || e <= worst ? worst : e; /* a NaN stays */
        scale = fmax(scale, fabs((double)b[i]));
    }
    return worst / scale;
}

/* Rows that are farther than the limit: with half tiles two experts that are nearly equal may change places. */
static int32_t rows_beyond(const float *got, const float *want, int32_t vocab, double limit, double *worst) {
    int32_t beyond = 0;
    *worst = 0;
    for (int32_t i = 0; i < TOKENS; i++) {
        double e = row_error(got + (int64_t)i * vocab, want + (int64_t)i * vocab, vocab);
        beyond += !(e <= limit);
        *worst = isnan(*worst) || e <= *worst ? *worst : e; /* a NaN stays */
    }
    return beyond;
}

static const char *device(void) {
    const char *named = getenv("SLUICE_TEST_DEVICE");
    return named && *named ? named : "soft:2";
}

static void compare(const char *name) {
    static float want[TOKENS * MOST_VOCAB], got[TOKENS * MOST_VOCAB];
    sl_error err = {0};
    fixture *cpu = open_on(name, NULL, &err);
    if (!cpu)
        fail_msg("%s: %s", name, err.message);
    int32_t vocab = sl_model_config_get(cpu->model)->vocab;
    assert_in_range(vocab, 2, MOST_VOCAB);
    run(cpu, TOKENS, want);
    fixture_close(cpu);
    for (int32_t chunk = 7; chunk <= TOKENS; chunk *= 10) {
        double worst;
        fixture *gpu = open_on(name, device(), &err);
        if (!gpu && strstr(err.message, "clang++")) { /* the one thing that a machine may lack */
            print_message("SKIP: %s: %s\n", name, err.message);
            skip();
        }
        if (!gpu)
            fail_msg("%s: %s", name, err.message);
        run(gpu, chunk, got);
        int32_t beyond = rows_beyond(got, want, vocab, chunk < 16 ? 1e-4 : 1e-2, &worst);
        print_message("%-20s chunk %2d: relative error %.1e, %d rows beyond the limit\n", name, chunk, worst, beyond);
        assert_true(beyond <= (chunk < 16 ? 0 : TOKENS / 4));
        fixture_close(gpu);
    }
}

static void every_architecture_runs_on_a_device(void **state) {
    static const char *const names[] = {"qwen3_moe-mlx4",
                                        "qwen3_5_moe",
                                        "qwen3_5_moe-gguf/model.gguf",
                                        "qwen3_next-gguf-q8/model.gguf",
                                        "glm4_moe",
                                        "minimax_m2",
                                        "gpt_oss-gguf/model.gguf",
                                        "gpt_oss",
                                        "deepseek_v3",
                                        "deepseek_v3-gguf/model.gguf",
                                        "qwen3_5_moe-odd"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        compare(names[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_runs_on_a_device),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
