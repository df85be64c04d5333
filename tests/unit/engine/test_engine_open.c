/* Opening an engine over tiny checkpoints: budget, options, figures, text calls. */
#include "support_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- budget ----------------------------------------------------------------------------------------------------- */

static uint64_t least_of(const char *model) {
    sl_engine_options o = model_options_of(model);
    o.plan_only = true;
    o.memory = 0;
    sl_engine *e = model_must_open(&o);
    sl_engine_info i = model_info_of(e);
    assert_true(i.least_memory <= i.suggested_memory && i.suggested_memory <= i.full_memory);
    sl_engine_close(e);
#ifdef SANITIZED
    /* Sanitizers keep what was freed: the process grows from one engine to the next. */
    return i.least_memory + 16 * MIB;
#else
    return i.least_memory;
#endif
}

static void test_least_budget_runs_and_holds(void **state) {
    static const char *const models[] = {GOLDEN "qwen2_moe", GOLDEN "qwen3_moe-gguf/model.gguf", GOLDEN "llama",
                                         GOLDEN "qwen3_5_moe"};
    static model_text small, large;
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        sl_engine_options o = model_options_of(models[m]);
        sl_engine *e = model_must_open(&o);
        model_collect(model_start(e, 1, 30, 25, 0), &large);
        sl_engine_close(e);
        o.memory = least_of(models[m]);
        e = model_must_open(&o);
        model_collect(model_start(e, 1, 30, 25, 0), &small);
        assert_int_equal(small.last.finish, SL_FINISH_LENGTH);
        assert_memory_equal(small.tokens, large.tokens, sizeof(int32_t) * 25);
        sl_stats s = model_stats_of(e);
        assert_int_equal(s.memory_budget, o.memory);
        assert_true(s.memory_peak <= o.memory);
#ifndef SANITIZED
        assert_true(engine_resident_now() <= o.memory);
#endif
        sl_engine_close(e);
        sl_error err = {0};
        o.memory = 4 * MIB;
        assert_null(sl_engine_open(&o, &err));
        assert_int_equal(err.code, SL_ERR_BUDGET);
        assert_non_null(strstr(err.message, "at least"));
    }
}

/* The chunk that would be chosen by its share of the budget needs more scratch than the least leaves: it shrinks. */
static void test_open_chunk_never_costs_the_least(void **state) {
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    o.context = 512;
    o.max_sequences = 2200; /* much memory beside scratch, so that an eighth is much */
    o.plan_only = true;
    sl_engine *e = model_must_open(&o);
    sl_engine_info roomy = model_info_of(e);
    sl_engine_close(e);
    o.plan_only = false;
    int most = 511;
#ifdef SANITIZED
    roomy.least_memory += 4 * MIB; /* in which the whole chunk fits */
    most = 512;
#endif
    o.memory = roomy.least_memory;
    e = model_must_open(&o);
    sl_engine_info tight = model_info_of(e);
    assert_int_equal(roomy.chunk, 512);
    assert_in_range(tight.chunk, 32, most);
    sl_engine_close(e);
}

/* KV takes slabs from the expert cache and gives them back, again and again; pages come to lie in other slabs. */
static void test_kv_and_experts_share_the_budget(void **state) {
    enum { SEQS = 12 };
    sl_engine_options o = model_options_of(GOLDEN "qwen3_moe");
    o.memory = least_of(o.model) + 3 * MIB / 2;
    sl_engine *e = model_must_open(&o);
    size_t bytes = (size_t)model_info_of(e).vocab * sizeof(float);
    float *expected = malloc(bytes * SEQS), *got = malloc(bytes);
    assert_true(expected && got);
    sl_engine_options roomy = model_options_of(o.model);
    sl_engine *f = model_must_open(&roomy);
    for (int i = 0; i < SEQS; i++) {
        sl_seq *s = model_new_seq(f);
        model_append(f, s, i, 0, 180, expected + (size_t)i * bytes / sizeof(float));
        sl_seq_free(s);
    }
    sl_engine_close(f);
    int32_t most = 0, least = INT32_MAX;
    bool refused = false;
    void *taken[2] = {NULL, NULL}; /* slabs that others hold meanwhile, so that KV's are not the ones it gave back */
    for (int round = 0; round < 4; round++) {
        sl_seq *s[SEQS];
        for (int i = 0; i < SEQS; i++) {
            sl_error err = {0};
            sl_input in[179];
            s[i] = model_new_seq(e);
            for (int k = 0; k < 179; k++)
                in[k] = (sl_input){s[i], model_token_at(i, k), false};
            if (sl_decode(e, in, 179, NULL, &err))
                continue;
            assert_int_equal(err.code, SL_ERR_BUDGET);
            refused = true;
            sl_seq_free(s[i]);
            s[i] = NULL;
        }
        for (int i = 0; i < 2; i++)
            if (taken[i])
                memset(taken[i], 0xff, (size_t)sl_mem_slab_bytes(e->mem));
        for (int k = 0; k < SEQS; k++) { /* in another order each round */
            int i = (k * 5 + round) % SEQS;
            if (!s[i])
                continue;
            model_append(e, s[i], i, 179, 180, got);
            assert_memory_equal(got, expected + (size_t)i * bytes / sizeof(float), bytes);
            engine_kv_stats st = engine_kv_stats_get(e->kv);
            most = st.slabs > most ? st.slabs : most;
            sl_seq_free(s[i]);
        }
        static model_text t;
        model_collect(model_start(e, round, 9, 5, 0), &t); /* the scheduler gives empty slabs back before its steps */
        assert_int_equal(t.last.finish, SL_FINISH_LENGTH);
        engine_kv_stats st = engine_kv_stats_get(e->kv);
        least = st.slabs < least ? st.slabs : least;
        for (int i = 0; i < 2; i++) {
            sl_mem_slab_free(e->mem, taken[i]);
            taken[i] = round < 3 ? sl_mem_slab(e->mem, SL_USE_OTHER, NULL) : NULL;
        }
        assert_true(model_stats_of(e).memory_peak <= o.memory);
    }
    print_message("KV slabs between %d and %d, a sequence refused: %d\n", least, most, refused);
#ifndef SANITIZED
    assert_true(least < most && most >= 3);
#endif
    free(expected);
    free(got);
    sl_engine_close(e);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static void test_bad_options(void **state) {
    struct {
        sl_engine_options o;
        const char *says;
    } bad[] = {
        {{.model = NULL}, "model"},
        {{.model = GOLDEN "nowhere"}, "nowhere"},
        {{.model = GOLDEN "qwen3_moe", .context = 513}, "513"},
        {{.model = GOLDEN "qwen3_moe", .threads = -1}, "threads"},
        {{.model = GOLDEN "qwen3_moe", .numeric = "f64"}, "f64"},
        {{.model = GOLDEN "qwen3_moe", .kv_type = "f17"}, "f17"},
        {{.model = GOLDEN "qwen3_moe", .reader = "mmap"}, "mmap"},
        {{.model = GOLDEN "qwen3_moe", .isa = "mmx"}, "mmx"},
        {{.model = GOLDEN "qwen3_moe", .direct = "maybe"}, "maybe"},
        {{.model = GOLDEN "qwen3_moe", .direct = "on", .buffered = true}, "exclude"},
        {{.model = GOLDEN "qwen3_moe", .read_piece = 5000}, "5000"},
        {{.model = GOLDEN "qwen3_moe", .read_piece = UINT64_MAX - 4095}, "read_piece"},
        {{.model = GOLDEN "qwen3_moe", .experts_per_token = 9}, "9"},
        {{.model = GOLDEN "llama", .experts_per_token = 1}, "experts"},
        {{.model = GOLDEN "qwen2_moe", .kv_type = "q8_0"}, "q8_0"}, /* head_dim 16 */
        {{.model = GOLDEN "qwen3_moe", .read_timeout = -1}, "read_timeout"},
        {{.model = GOLDEN "qwen3_moe", .read_timeout = 1e9}, "read_timeout"},
        {{.model = GOLDEN "llama", .faults = "eio=1"}, "no experts"},
        {{.model = GOLDEN "qwen3_moe", .faults = ""}, "eio, short, late, never"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eoi=0.5"}, "\"eoi=0.5\": eio, short, late, never"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio"}, "share"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio=1.5"}, "share"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio=-1"}, "share"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio=0.1.2"}, "share"},
        {{.model = GOLDEN "qwen3_moe", .faults = "short=0.1,,late=1"}, "\"\": eio"},
        {{.model = GOLDEN "qwen3_moe", .faults = "gone@3"}, "number of reads"},
        {{.model = GOLDEN "qwen3_moe", .faults = "gone=99999999999999999999"}, "number of reads"},
        {{.model = GOLDEN "qwen3_moe", .faults = "delay=9999999"}, "milliseconds"},
        {{.model = GOLDEN "qwen3_moe", .faults = "seed=-1"}, "number"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio@7"}, "LAYER:EXPERT or FILE:OFFSET"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio@:"}, "LAYER:EXPERT or FILE:OFFSET"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio@0:1*0"}, "after *"},
        {{.model = GOLDEN "qwen3_moe", .faults = "short@0:1*2"}, "counted"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio@77:1"}, "no such layer"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio@1:77777"}, "layer 1 has"},
        {{.model = GOLDEN "qwen3_moe", .faults = "eio@nowhere.gguf:1"}, "no such file"},
        {{.model = GOLDEN "qwen2_moe", .faults = "eio@model.safetensors:99999999999"}, "ends before"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_error err = {0};
        bad[i].o.size = sizeof bad[i].o;
        assert_null(sl_engine_open(&bad[i].o, &err));
        assert_int_not_equal(err.code, SL_OK);
        if (!strstr(err.message, bad[i].says))
            fail_msg("\"%s\" does not say %s", err.message, bad[i].says);
        assert_null(strchr(err.message, '\n'));
    }
    sl_engine_options o = model_options_of(GOLDEN "llama");
    o.size = 3;
    sl_error err = {0};
    assert_null(sl_engine_open(&o, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    sl_engine_close(NULL);
}

static void test_plan_only(void **state) {
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    o.plan_only = true;
    sl_engine *e = model_must_open(&o);
    sl_error err = {0};
    int32_t *ids, token = 1;
    size_t n;
    assert_null(sl_seq_new(e, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    sl_generate_options g = SL_GENERATE_OPTIONS_INIT;
    g.prompt = &token;
    g.prompt_count = 1;
    assert_null(sl_generate(e, &g, &err));
    assert_true(sl_tokenize(e, "hi", 2, false, true, &ids, &n, &err));
    sl_free(ids);
    sl_stats s = model_stats_of(e);
    assert_int_equal(s.weights_bytes, 0);
    sl_engine_close(e);
}

/* Layers are timed before anything is loaded, in no more than the memory given; a loaded engine does not. */
static void test_measure(void **state) {
    static const char *const models[] = {GOLDEN "qwen2_moe", GOLDEN "llama"};
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        sl_engine_options o = model_options_of(models[i]);
        sl_decode_cost cost = {.size = sizeof cost};
        sl_error err = {0};
        o.plan_only = true;
        sl_engine *e = model_must_open(&o);
        assert_true(sl_engine_measure(e, 32 * MIB, 0.01, &cost, &err));
        assert_true(cost.dense_seconds > 0 && cost.dense_seconds < 10);
        assert_true(model_info_of(e).experts ? cost.expert_seconds > 0 : cost.expert_seconds == 0);
        assert_false(sl_engine_measure(e, 64 << 10, 0.01, &cost, &err));
        assert_int_equal(err.code, SL_ERR_BUDGET);
        sl_engine_close(e);
        o.plan_only = false;
        e = model_must_open(&o);
        assert_false(sl_engine_measure(e, 32 * MIB, 0.01, &cost, &err));
        assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
        sl_engine_close(e);
    }
}

/* Experts that are missing are read from the model's files while layers are timed, within the memory given. */
static void test_measure_reading(void **state) {
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    sl_decode_cost cost = {.size = sizeof cost};
    sl_error err = {0};
    o.plan_only = true;
    sl_engine *e = model_must_open(&o);
    static const double missing[] = {0, 0.5, 1};
    for (size_t i = 0; i < SL_COUNT(missing); i++) {
        assert_true(sl_engine_measure_reading(e, missing[i], 32 * MIB, 0.01, &cost, &err));
        assert_true(cost.dense_seconds > 0 && cost.expert_seconds > 0 && cost.expert_seconds < 10);
    }
    assert_false(sl_engine_measure_reading(e, 1, 64 << 10, 0.01, &cost, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    sl_engine_close(e);
    o = model_options_of(GOLDEN "llama");
    o.plan_only = true;
    e = model_must_open(&o);
    assert_false(sl_engine_measure_reading(e, 1, 32 * MIB, 0.01, &cost, &err));
    assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
    assert_int_equal(sl_engine_sample_reads(e, 1, 1, NULL, 0), 0);
    sl_engine_close(e);
}

/* Bursts are timed one by one; what the model's files do not hold is not read. */
static void test_replay(void **state) {
    enum { MOST = 4096 };
    static sl_trace read[MOST];
    static uint64_t ns[MOST];
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    sl_error err = {0};
    size_t bursts = 0, expected = 1;
    o.plan_only = true;
    sl_engine *e = model_must_open(&o);
    size_t n = sl_engine_sample_reads(e, 1, 1, read, MOST);
    assert_in_range(n, 2, MOST);
    for (size_t i = 1; i < n; i++)
        expected += read[i].burst != read[i - 1].burst;
    memset(ns, 0, sizeof ns);
    for (uint64_t area = 0; area <= 8192; area += 4096) { /* 0: as usual; else reads are cut */
        assert_true(sl_engine_replay(e, read, n, area, ns, &bursts, &err));
        assert_int_equal(bursts, expected);
        for (size_t i = 0; i < bursts; i++)
            assert_true(ns[i] > 0);
    }
    assert_true(sl_engine_replay(e, read, 0, 0, ns, &bursts, &err) && bursts == 0);
    read[n - 1].offset = UINT64_MAX - 5;
    assert_false(sl_engine_replay(e, read, n, 0, ns, &bursts, &err));
    assert_non_null(strstr(err.message, read[n - 1].path));
    read[0].path = "elsewhere";
    assert_false(sl_engine_replay(e, read, 1, 0, ns, &bursts, &err));
    sl_engine_close(e);
}

/* Reads of a token: of as many experts of every layer as it asks for, or their share; from the files, without others'
 * bytes. */
static void test_sample_reads(void **state) {
    enum { MOST = 64 };
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    sl_trace read[MOST];
    o.plan_only = true;
    sl_engine *e = model_must_open(&o);
    sl_engine_info info = model_info_of(e);
    assert_int_equal(sl_engine_sample_reads(e, 0, 1, read, MOST), 0);
    size_t n = sl_engine_sample_reads(e, 1, 1, read, MOST), layers = 1;
    uint64_t bytes = 0;
    assert_true(n > 0 && n <= MOST);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(access(read[i].path, R_OK), 0);
        assert_true(i == 0 || read[i].burst >= read[i - 1].burst);
        layers += i > 0 && read[i].burst != read[i - 1].burst;
        bytes += read[i].bytes;
    }
    assert_int_equal(layers, info.moe_layers);
    assert_true(bytes >= info.bytes_per_token && bytes <= info.bytes_per_token + n * 2 * 4096);
    assert_int_equal(sl_engine_sample_reads(e, 1, 1, read, 1), n);
    double mean = 0;
    for (uint64_t seed = 0; seed < 400; seed++)
        mean += (double)sl_engine_sample_reads(e, 0.25, seed, NULL, 0) / 400;
    assert_true(mean > 0.2 * (double)n && mean < 0.3 * (double)n);
    sl_engine_close(e);
}

static void test_info_and_approximation(void **state) {
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    sl_engine *e = model_must_open(&o);
    sl_engine_info i = model_info_of(e);
    assert_string_equal(i.container, "safetensors");
    assert_string_equal(i.architecture, "qwen2_moe");
    assert_string_equal(i.approximation, "");
    assert_int_equal(i.experts, 8);
    assert_int_equal(i.experts_per_token, 2);
    assert_int_equal(i.context, 256);
    assert_int_equal(i.model_context, 512);
    assert_int_equal(i.expert_bytes, 2 * 8 * 3 * 64 * 32 * 2);
    assert_int_equal(i.bytes_per_token, 2 * 2 * 3 * 64 * 32 * 2);
    sl_engine_close(e);
    o.experts_per_token = 1;
    e = model_must_open(&o);
    i = model_info_of(e);
    assert_string_equal(i.approximation, "1 experts per token instead of 2");
    sl_engine_close(e);
}

/* What the trace says was read is what the statistics say, from files that exist. */
static void test_trace(void **state) {
    static model_text t;
    sl_engine_options o = model_options_of(GOLDEN "qwen3_moe");
    o.max_slots = 4;
    sl_engine *e = model_must_open(&o);
    sl_engine_trace(e, true);
    sl_engine_reset_stats(e);
    model_collect(model_start(e, 1, 20, 10, 0), &t);
    size_t n = sl_engine_get_trace(e, NULL, 0);
    sl_trace *reads = calloc(n + 1, sizeof *reads);
    assert_non_null(reads);
    assert_int_equal(sl_engine_get_trace(e, reads, n), n);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(access(reads[i].path, R_OK), 0);
        assert_true(i == 0 || reads[i].burst >= reads[i - 1].burst);
        bytes += reads[i].bytes;
    }
    sl_stats s = model_stats_of(e);
    assert_true(n > 0 && s.expert_misses > 0);
    assert_int_equal(bytes, s.expert_bytes_read);
    assert_int_equal(s.prompt_tokens + s.decode_tokens, 29);
    free(reads);
    sl_engine_close(e);
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void test_text_calls(void **state) {
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    sl_engine *e = model_must_open(&o);
    sl_error err = {0};
    char *out;
    size_t size, n;
    int32_t *ids;
    assert_true(sl_has_chat_template(e));
    if (!sl_chat_render(e, "[{\"role\":\"user\",\"content\":\"caf\\u00e9 <|im_end|>\"}]", NULL, true, &out, &size,
                        &err))
        fail_msg("%s", err.message);
    assert_string_equal(out, "<|im_start|>user\ncaf\xc3\xa9 <|im_end|><|im_end|>\n<|im_start|>assistant\n");
    assert_true(sl_tokenize(e, out, size, true, true, &ids, &n, &err));
    assert_int_equal(ids[0], 270);
    sl_free(out);
    assert_true(sl_detokenize(e, ids, n, true, &out, &size, &err));
    assert_int_equal(size, strlen("<|im_start|>user\ncaf\xc3\xa9 <|im_end|><|im_end|>\n<|im_start|>assistant\n"));
    sl_free(out);
    sl_free(ids);
    assert_true(sl_tokenize(e, "<|im_end|>", 10, false, true, &ids, &n, &err)); /* a user's text is no control token */
    for (size_t i = 0; i < n; i++)
        assert_true(ids[i] < 269);
    sl_free(ids);
    char piece[4];
    assert_int_equal(sl_token_text(e, 271, piece, sizeof piece), strlen("<|im_end|>"));
    assert_string_equal(piece, "<|i");
    assert_int_equal(sl_token_text(e, 100000, piece, sizeof piece), 0);
    assert_int_equal(sl_token_eos(e), 271);
    assert_true(sl_token_is_stop(e, 271) && sl_token_is_stop(e, 269) && !sl_token_is_stop(e, 5));
    assert_false(sl_chat_render(e, "[{", NULL, true, &out, &size, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_false(sl_chat_render(e, "{}", NULL, true, &out, &size, &err));
    assert_false(sl_chat_render(e, "[]", "[]", true, &out, &size, &err));
    sl_engine_close(e);
}

/* A checkpoint without a tokenizer works with ids; text calls say why they do not. */
static void test_without_tokenizer(void **state) {
    static model_text t;
    sl_engine_options o = model_options_of(GOLDEN "llama");
    sl_engine *e = model_must_open(&o);
    sl_error err = {0};
    int32_t *ids;
    size_t n;
    model_collect(model_start(e, 1, 5, 5, 0), &t);
    assert_int_equal(t.count, 5);
    assert_int_equal(t.size, 0);
    assert_false(sl_tokenize(e, "x", 1, false, false, &ids, &n, &err));
    assert_int_equal(err.code, SL_ERR_TEXT);
    assert_non_null(strstr(err.message, "tokenizer"));
    assert_int_equal(sl_token_eos(e), -1);
    assert_false(sl_has_chat_template(e));
    sl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_budget_runs_and_holds),
        cmocka_unit_test(test_open_chunk_never_costs_the_least),
        cmocka_unit_test(test_kv_and_experts_share_the_budget),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_plan_only),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_measure_reading),
        cmocka_unit_test(test_sample_reads),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_info_and_approximation),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_text_calls),
        cmocka_unit_test(test_without_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
