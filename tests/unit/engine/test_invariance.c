/* Promise 2, through the public API on streamed checkpoints: the logits and the texts are the same bits for every cache
 * size and policy, reader, prefetch, chunk, thread count and instruction set, alone and in a batch with other
 * sequences. */
#include "base/base.h"
#include "sluice/sluice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/arch/"

enum { TOKENS = 150, SPLIT = 133, NEW_TOKENS = 24 };

typedef struct setting {
    const char *reader, *isa;
    int slots, chunk, threads;
    const char *prefetch, *cache;
    bool buffered;
} setting;

/* What a run gives: logits of every token, and a sampled continuation. */
typedef struct outcome {
    float *logits;
    int32_t text[NEW_TOKENS];
} outcome;

static void must(bool ok, const sl_error *err) {
    if (!ok)
        fail_msg("%s", err->message);
}

static sl_engine *open_engine(const char *model, const setting *s) {
    sl_error err = {0};
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    o.model = model;
    o.memory = sl_peak_rss() + (512u << 20); /* beside the process, which a sanitizer alone can make larger than that */
    o.context = 256;
    o.reader = s->reader;
    o.isa = s->isa;
    o.max_slots = s->slots;
    o.chunk = s->chunk;
    o.threads = s->threads;
    o.prefetch = s->prefetch;
    o.cache = s->cache;
    o.buffered = s->buffered;
    sl_engine *e = sl_engine_open(&o, &err);
    must(e != NULL, &err);
    return e;
}

static int32_t token_at(int stream, int i, int vocab) {
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(stream * 40503u + 17u);
    x ^= x >> 15;
    return (int32_t)(x % (uint32_t)(vocab - 8));
}

/* Evaluates SPLIT tokens as a prompt and the rest one by one; `others` more sequences of other lengths ride along in
 * every call. */
static void evaluate(sl_engine *e, int vocab, int others, float *logits) {
    sl_error err = {0};
    enum { MAX_OTHERS = 3 };
    sl_seq *seq[1 + MAX_OTHERS];
    sl_input *in = calloc((1 + MAX_OTHERS) * TOKENS, sizeof *in);
    float *out = malloc((size_t)(1 + MAX_OTHERS) * TOKENS * (size_t)vocab * sizeof *out);
    for (int i = 0; i <= others; i++)
        must((seq[i] = sl_seq_new(e, &err)) != NULL, &err);
    int at = 0;
    while (at < TOKENS) {
        int n = at == 0 ? SPLIT : 1;
        size_t count = 0, first = 0;
        for (int o = 1; o <= others; o += 2) /* before ours, */
            for (int i = 0; i < (at == 0 ? 20 * o : 1); i++)
                in[count++] = (sl_input){seq[o], token_at(o, at + i, vocab), true};
        first = count;
        for (int i = 0; i < n; i++)
            in[count++] = (sl_input){seq[0], token_at(0, at + i, vocab), true};
        for (int o = 2; o <= others; o += 2) /* and behind */
            for (int i = 0; i < (at == 0 ? 20 * o : 1); i++)
                in[count++] = (sl_input){seq[o], token_at(o, at + i, vocab), true};
        memset(out, 0xff, count * (size_t)vocab * sizeof *out);
        must(sl_decode(e, in, count, out, &err), &err);
        memcpy(logits + (size_t)at * (size_t)vocab, out + first * (size_t)vocab,
               (size_t)n * (size_t)vocab * sizeof *out);
        at += n;
    }
    for (int i = 0; i <= others; i++)
        sl_seq_free(seq[i]);
    free(in);
    free(out);
}

static sl_request *start(sl_engine *e, int stream, int vocab) {
    static int32_t prompt[4][40];
    sl_error err = {0};
    sl_generate_options o = SL_GENERATE_OPTIONS_INIT;
    for (int i = 0; i < 40; i++)
        prompt[stream][i] = token_at(stream, i, vocab);
    o.prompt = prompt[stream];
    o.prompt_count = 40;
    o.max_tokens = NEW_TOKENS;
    o.ignore_eos = true;
    o.sampling.temperature = 1.0f;
    o.sampling.seed = 7;
    sl_request *r = sl_generate(e, &o, &err);
    must(r != NULL, &err);
    return r;
}

static void finish(sl_request *r, int32_t *text) {
    sl_event ev;
    int n = 0;
    do {
        assert_true(sl_request_next(r, &ev, 60000));
        if (ev.finish == SL_FINISH_ERROR)
            fail_msg("%s", ev.error.message);
        if (ev.token >= 0 && n < NEW_TOKENS && text)
            text[n++] = ev.token;
    } while (ev.finish == SL_FINISH_NONE);
    if (text)
        assert_int_equal(n, NEW_TOKENS);
    sl_request_free(r);
}

static void generate(sl_engine *e, int vocab, int others, int32_t *text) {
    sl_request *r[4];
    for (int i = 0; i <= others; i++)
        r[i] = start(e, i, vocab);
    for (int i = 0; i <= others; i++)
        finish(r[i], i == 0 ? text : NULL);
}

static outcome run(const char *model, const setting *s, int others, int vocab) {
    outcome o = {.logits = malloc((size_t)TOKENS * (size_t)vocab * sizeof(float))};
    sl_engine *e = open_engine(model, s);
    evaluate(e, vocab, others, o.logits);
    generate(e, vocab, others, o.text);
    sl_engine_close(e);
    return o;
}

/* Instruction sets of this machine; NULL is the best. */
static int list_isas(const char *model, const char *out[4]) {
    static const char *const all[] = {"scalar", "avx2", "avx512", "neon"};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sl_error err = {0};
        sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
        o.model = model;
        o.isa = all[i];
        sl_engine *e = sl_engine_open(&o, &err);
        if (e)
            out[n++] = all[i];
        sl_engine_close(e);
    }
    return n;
}

/* every: 1 for all combinations of settings; 5 for a fifth of them, in which each setting has all of its values. */
static void check_model(const char *name, int every) {
    char model[512];
    snprintf(model, sizeof model, GOLDEN "%s", name);
    setting base = {.reader = "pread", .chunk = 512, .threads = 1};
    sl_engine *e = open_engine(model, &base);
    sl_engine_info info = {.size = sizeof info};
    assert_true(sl_engine_get_info(e, &info));
    sl_engine_close(e);
    int all = info.experts * info.moe_layers, least = info.experts_per_token > 2 ? info.experts_per_token : 2;
    const int slots[] = {least, all / 2 > least ? all / 2 : least + 1, all}, chunks[] = {5, 64, 512};
    const char *const readers[] = {"pread", "uring"}, *isas[4];
    int isa_count = list_isas(model, isas);
    assert_true(isa_count > 0);
    outcome expected = run(model, &base, 0, info.vocab);
    int runs = 0;
    for (int bits = 0; bits < 3 * 3 * 2 * 2 * 2 * 2; bits += every) {
        int b = bits;
        setting s = {.slots = slots[b % 3]};
        s.chunk = chunks[(b /= 3) % 3];
        s.reader = readers[(b /= 3) % 2];
        static const char *const prefetch[] = {"off", "router"};
        s.prefetch = prefetch[(b /= 2) % 2];
        s.threads = 1 + (b /= 2) % 2;
        int others = (b /= 2) % 2 ? 3 : 0;
        s.buffered = bits % 7 == 0;
        s.cache = bits % 4 < 2 ? "lru" : "lfu";
        s.isa = bits % 5 ? NULL : isas[bits / 5 % isa_count];
        outcome o = run(model, &s, others, info.vocab);
        if (memcmp(o.logits, expected.logits, (size_t)TOKENS * (size_t)info.vocab * sizeof(float)) ||
            memcmp(o.text, expected.text, sizeof o.text))
            fail_msg("%s: other bits with reader %s, %d slots, chunk %d, %d threads, prefetch %s, cache %s, %s, %d "
                     "other sequences",
                     name, s.reader, s.slots, s.chunk, s.threads, s.prefetch, s.cache, s.isa ? s.isa : "best set",
                     others);
        free(o.logits);
        runs++;
    }
    print_message("%s: %d runs, the same %d x %d logits and %d tokens\n", name, runs, TOKENS, info.vocab, NEW_TOKENS);
    free(expected.logits);
}

static void hf_shards_of_single_experts(void **state) {
    check_model("qwen3_moe", 1);
}

static void gguf_with_shared_expert(void **state) {
    check_model("qwen2_moe-gguf/model.gguf", 1);
}

static void mlx_stacked(void **state) {
    check_model("qwen3_moe-mlx4", 5);
}

static void recurrent_layers(void **state) {
    check_model("qwen3_5_moe", 5);
}

static void recurrent_layers_with_tiled_heads(void **state) {
    check_model("qwen3_5_moe-gguf/model.gguf", 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hf_shards_of_single_experts),
        cmocka_unit_test(gguf_with_shared_expert),
        cmocka_unit_test(mlx_stacked),
        cmocka_unit_test(recurrent_layers),
        cmocka_unit_test(recurrent_layers_with_tiled_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
