/* Vocabulary-only GGUF files that llama.cpp publishes; outside the repository, skipped where they are absent. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *file, *architecture, *tokenizer;
    uint64_t tokens;
} rows[] = {
    {"ggml-vocab-gpt-2.gguf", "gpt2", "gpt2", 50257},
    {"ggml-vocab-llama-spm.gguf", "llama", "llama", 32000},
    {"ggml-vocab-phi-3.gguf", "phi3", "llama", 32064},
    {"ggml-vocab-deepseek-coder.gguf", "llama", "gpt2", 32256},
};

static void expect_text(const sl_ckpt *c, const char *key, const char *expected) {
    sl_str s = {0};
    assert_true(sl_gguf_str(c, key, &s));
    assert_int_equal(s.n, strlen(expected));
    assert_memory_equal(s.p, expected, s.n);
}

static void vocabularies(void **state) {
    int found = 0;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char path[1024];
        snprintf(path, sizeof path, SL_SHARED_DATA "/tokenizers/gguf/%s", rows[i].file);
        if (!sl_path_exists(path)) {
            print_message("SKIP: %s is not there\n", path);
            continue;
        }
        sl_error err = poisoned();
        char *located = sl_model_locate(path, &err);
        sl_ckpt *c = located ? sl_ckpt_open(located, &err) : NULL;
        if (!c) {
            fail_msg("%s", err.message);
        }
        expect_text(c, "general.architecture", rows[i].architecture);
        expect_text(c, "tokenizer.ggml.model", rows[i].tokenizer);
        sl_gguf_array tokens, types;
        int64_t type = 0;
        assert_true(sl_gguf_arr(c, "tokenizer.ggml.tokens", &tokens));
        assert_true(sl_gguf_arr(c, "tokenizer.ggml.token_type", &types));
        assert_int_equal(tokens.count, rows[i].tokens);
        assert_int_equal(types.count, rows[i].tokens);
        assert_true(sl_gguf_arr_i64(&types, types.count - 1, &type) && type >= 1 && type <= 6);
        assert_int_equal(sl_ckpt_tensor_count(c), 0);
        sl_ckpt_close(c);
        free(located);
        found++;
    }
    if (found == 0) {
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(vocabularies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
