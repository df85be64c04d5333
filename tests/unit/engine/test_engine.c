/* The whole engine over tiny checkpoints, through the public header: sequences, requests, budget, faults, text. */
#include "engine/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/arch/"
#define MIB    ((uint64_t)1 << 20)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* ---- help
 * ------------------------------------------------------------------------------------------------------------
 */

static sl_engine_options options_of(const char *model) {
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    o.model = model;
    o.memory = 1024 * MIB;
    o.threads = 2;
    o.context = 256;
    return o;
}

static sl_engine *must_open(const sl_engine_options *o) {
    sl_error err = {0};
    sl_engine *e = sl_engine_open(o, &err);
    if (!e)
        fail_msg("%s: %s", o->model, err.message);
    return e;
}

static sl_engine_info info_of(const sl_engine *e) {
    sl_engine_info i = {.size = sizeof i};
    assert_true(sl_engine_get_info(e, &i));
    return i;
}

static sl_stats stats_of(const sl_engine *e) {
    sl_stats s = {.size = sizeof s};
    sl_engine_get_stats(e, &s);
    return s;
}

static int32_t token_at(int stream, int i) {
    uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(stream * 40503 + 17);
    x ^= x >> 15;
    return (int32_t)(x % 256);
}

static sl_seq *new_seq(sl_engine *e) {
    sl_error err = {0};
    sl_seq *s = sl_seq_new(e, &err);
    if (!s)
        fail_msg("%s", err.message);
    return s;
}

/* Appends tokens [from, to) of a stream; logits of the last row into out (NULL: none). */
static void append(sl_engine *e, sl_seq *s, int stream, int from, int to, float *out) {
    sl_input in[512];
    sl_error err = {0};
    assert_in_range(to - from, 1, 512);
    for (int i = from; i < to; i++)
        in[i - from] = (sl_input){s, token_at(stream, i), out && i == to - 1};
    if (!sl_decode(e, in, (size_t)(to - from), out, &err))
        fail_msg("%s", err.message);
}

typedef struct text {
    int32_t tokens[300];
    int count;
    char bytes[4096];
    size_t size;
    sl_event last;
} text;

static sl_request *start(sl_engine *e, int stream, int n, int max_tokens, float temperature) {
    int32_t prompt[256];
    sl_error err = {0};
    sl_generate_options o = SL_GENERATE_OPTIONS_INIT;
    for (int i = 0; i < n; i++)
        prompt[i] = token_at(stream, i);
    o.prompt = prompt;
    o.prompt_count = (size_t)n;
    o.max_tokens = max_tokens;
    o.ignore_eos = true;
    o.sampling.temperature = temperature;
    o.sampling.seed = (uint64_t)stream;
    sl_request *r = sl_generate(e, &o, &err);
    if (!r)
        fail_msg("%s", err.message);
    return r;
}

static void collect(sl_request *r, text *t) {
    memset(t, 0, sizeof *t);
    do {
        assert_true(sl_request_next(r, &t->last, 60000));
        if (t->last.token >= 0)
            t->tokens[t->count++] = t->last.token;
        assert_true(t->size + t->last.text_size < sizeof t->bytes);
        memcpy(t->bytes + t->size, t->last.text, t->last.text_size);
        t->size += t->last.text_size;
    } while (t->last.finish == SL_FINISH_NONE);
    sl_request_free(r);
}

/* ---- sequences
 * -------------------------------------------------------------------------------------------------------
 */

/* Straight, forked, truncated and restored: the same logits by memcmp. */
static void check_sequences(const char *model, const char *numeric, const char *kv_type) {
    sl_engine_options o = options_of(model);
    o.numeric = numeric;
    o.kv_type = kv_type;
    o.chunk = 48;
    sl_engine *e = must_open(&o);
    size_t bytes = (size_t)info_of(e).vocab * sizeof(float);
    float *expected = malloc(bytes), *got = malloc(bytes), *other = malloc(bytes);
    assert_true(expected && got && other);
    sl_seq *straight = new_seq(e);
    append(e, straight, 1, 0, 150, expected);

    sl_seq *a = new_seq(e);
    append(e, a, 1, 0, 100, NULL);
    sl_seq *b = sl_seq_fork(a, NULL);
    assert_non_null(b);
    append(e, b, 2, 100, 140, other); /* the fork writes something else over the shared page */
    append(e, a, 1, 100, 150, got);
    assert_memory_equal(got, expected, bytes);
    assert_true(sl_seq_truncate(b, 100, NULL));
    append(e, b, 1, 100, 150, got);
    assert_memory_equal(got, expected, bytes);

    void *snapshot;
    size_t size;
    assert_true(sl_seq_truncate(a, 77, NULL));
    assert_true(sl_seq_save(a, &snapshot, &size, NULL));
    sl_engine_info i = info_of(e);
    sl_seq_free(straight);
    sl_seq_free(a);
    sl_seq_free(b);
    sl_engine_close(e);

    e = must_open(&o); /* a later process */
    sl_error err = {0};
    sl_seq *r = sl_seq_restore(e, snapshot, size, &err);
    if (!r)
        fail_msg("%s", err.message);
    assert_int_equal(sl_seq_length(r), 77);
    append(e, r, 1, 77, 150, got);
    assert_memory_equal(got, expected, bytes);
    sl_seq_free(r);
    sl_engine_close(e);

    o.numeric = strcmp(i.numeric, "q8") == 0 ? "exact" : "q8";
    o.kv_type = i.kv_type;
    e = must_open(&o); /* the other numeric mode would go on differently */
    assert_null(sl_seq_restore(e, snapshot, size, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    sl_engine_close(e);
    sl_free(snapshot);
    free(expected);
    free(got);
    free(other);
}

static void test_sequences(void **state) {
    check_sequences(GOLDEN "qwen3_moe", NULL, NULL);
    check_sequences(GOLDEN "qwen3_moe", "q8", "q8_0");
    check_sequences(GOLDEN "qwen2_moe-gguf/model.gguf", "exact", NULL);
    check_sequences(GOLDEN "llama-tied", "q8", "f16");
}

static void copy_file(const char *dir, const char *name, bool change) {
    sl_error err = {0};
    size_t n;
    char *from = sl_path_join(GOLDEN "llama", name), *to = sl_path_join(dir, name);
    char *bytes = sl_read_text(from, 64 * MIB, &n, &err);
    assert_non_null(bytes);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    for (size_t i = change ? 8 + (size_t)header : n; i < n; i += 2)
        bytes[i] ^= 1; /* the last bit of each bf16 */
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    free(bytes);
    free(from);
    free(to);
}

static void remove_file(const char *dir, const char *name) {
    char *path = sl_path_join(dir, name);
    unlink(path);
    free(path);
}

/* Two checkpoints of the same shape, tensor names and formats, trained differently, are not taken for one another. */
static void test_snapshot_of_another_checkpoint(void **state) {
    char dir[] = "/tmp/sluice-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    copy_file(dir, "config.json", false);
    copy_file(dir, "model.safetensors", true);
    sl_engine_options o = options_of(GOLDEN "llama"), p = options_of(dir);
    sl_engine *e = must_open(&o), *f = must_open(&p);
    sl_seq *s = new_seq(e);
    void *bytes;
    size_t size;
    sl_error err = {0};
    append(e, s, 0, 0, 10, NULL);
    assert_true(sl_seq_save(s, &bytes, &size, NULL));
    assert_null(sl_seq_restore(f, bytes, size, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "another model"));
    sl_free(bytes);
    sl_seq_free(s);
    sl_engine_close(e);
    sl_engine_close(f);
    remove_file(dir, "config.json");
    remove_file(dir, "model.safetensors");
    assert_int_equal(rmdir(dir), 0);
}

/* ---- requests
 * --------------------------------------------------------------------------------------------------------
 */

enum { REQUESTS = 12 };

static sl_request *start_nth(sl_engine *e, int i) {
    return start(e, i, 3 + (i * 37) % 170, 20 + i, i % 3 ? 0.8f : 0);
}

static void test_concurrent_requests_give_the_same_texts(void **state) {
    static text alone[REQUESTS], together;
    sl_request *r[REQUESTS];
    sl_engine_options o = options_of(GOLDEN "qwen2_moe");
    o.max_slots = 6;
    o.chunk = 64;
    sl_engine *e = must_open(&o);
    for (int i = 0; i < REQUESTS; i++)
        collect(start_nth(e, i), &alone[i]);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < REQUESTS; i++)
            r[i] = start_nth(e, i);
        for (int i = 0; i < REQUESTS; i++) {
            assert_true(stats_of(e).memory_peak > 0); /* while it runs */
            collect(r[i], &together);
            assert_int_equal(together.last.finish, SL_FINISH_LENGTH);
            assert_int_equal(together.count, 20 + i);
            assert_memory_equal(together.tokens, alone[i].tokens, sizeof(int32_t) * (size_t)together.count);
            assert_int_equal(together.size, alone[i].size);
            assert_memory_equal(together.bytes, alone[i].bytes, together.size);
        }
        sl_engine_close(e);
        o.max_sequences = 3;
        o.chunk = 17;
        e = must_open(&o);
    }
    sl_engine_close(e);
}

static void test_context_fills_up(void **state) {
    static text t;
    sl_engine_options o = options_of(GOLDEN "qwen3_moe");
    o.context = 70;
    sl_engine *e = must_open(&o);
    collect(start(e, 0, 60, 0, 0), &t);
    assert_int_equal(t.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(t.count, 11);
    sl_engine_close(e);
}

/* ---- faults
 * ----------------------------------------------------------------------------------------------------------
 */

static sl_reader *with_faults(void *plan, sl_reader *inner, sl_error *err) {
    return sl_reader_fault(inner, plan, err);
}

static sl_engine *open_with_faults(const sl_engine_options *o, sl_fault_plan *plan) {
    sl_error err = {0};
    sl_engine *e = engine_open_wrapped(o, with_faults, plan, &err);
    if (!e)
        fail_msg("%s", err.message);
    return e;
}

/* Reads fail now and then: a request either gives exactly its text or ends with the read's error, and the engine lives
 * on. */
static void test_read_errors_fail_only_whom_they_hit(void **state) {
    static text expected[REQUESTS], got;
    sl_fault_plan plan = {
        .seed = 5, .error_rate = 0.004, .delay_rate = 0.1, .delay_ns = 20000, .fail_after = -1, .fail_layer_tag = -1};
    sl_engine_options o = options_of(GOLDEN "qwen2_moe");
    sl_request *r[REQUESTS];
    int failed = 0, good = 0;
    o.max_slots = 4;
    sl_engine *e = must_open(&o);
    for (int i = 0; i < REQUESTS; i++)
        collect(start_nth(e, i), &expected[i]);
    sl_engine_close(e);
    e = open_with_faults(&o, &plan);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < REQUESTS; i++)
            r[i] = start_nth(e, i);
        for (int i = 0; i < REQUESTS; i++) {
            collect(r[i], &got);
            if (got.last.finish == SL_FINISH_ERROR) {
                assert_int_equal(got.last.error.code, SL_ERR_IO);
                assert_non_null(strstr(got.last.error.message, "model.safetensors"));
                failed++;
            } else {
                assert_int_equal(got.count, expected[i].count);
                good++;
            }
            assert_memory_equal(got.tokens, expected[i].tokens, sizeof(int32_t) * (size_t)got.count);
        }
    }
    print_message("%d requests failed, %d gave their text\n", failed, good);
    assert_true(failed > 0 && good > 0);
    sl_engine_close(e);
}

/* The file vanishes: everything from then on is an error, never text. */
static void test_vanished_file(void **state) {
    static text got;
    sl_fault_plan plan = {.fail_after = 20, .fail_layer_tag = -1};
    sl_engine_options o = options_of(GOLDEN "qwen2_moe");
    o.max_slots = 2;
    sl_engine *e = open_with_faults(&o, &plan);
    for (int i = 0; i < 3; i++) {
        collect(start(e, i, 10, 50, 0), &got);
        assert_int_equal(got.last.finish, SL_FINISH_ERROR);
        assert_int_equal(got.last.error.code, SL_ERR_IO);
    }
    sl_engine_close(e);
}

/* Slow reads: cancelling is seen at the next layer, not at the end of the prompt. */
static void test_cancel_while_reading(void **state) {
    static text got;
    sl_fault_plan plan = {.delay_rate = 1, .delay_ns = 60000000, .fail_after = -1, .fail_layer_tag = -1};
    sl_engine_options o = options_of(GOLDEN "qwen2_moe");
    o.max_slots = 2;
    sl_engine *e = open_with_faults(&o, &plan);
    sl_request *r = start(e, 0, 200, 1000, 0);
    char activity[128];
    do {
        usleep(500);
        sl_engine_activity(e, activity, sizeof activity, NULL);
    } while (strncmp(activity, "reading experts of MoE layer ", 29) != 0);
    sl_request_cancel(r);
    sl_engine_activity(e, activity, sizeof activity, NULL);
    bool in_first_layer = strncmp(activity, "reading experts of MoE layer 0:", 31) == 0;
    collect(r, &got);
    assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
    assert_int_equal(got.count, 0);
    if (in_first_layer) /* the second was not begun */
        assert_in_range(stats_of(e).expert_misses, 1, 8);
    sl_engine_close(e);
}

/* ---- budget
 * ----------------------------------------------------------------------------------------------------------
 */

static uint64_t least_of(const char *model) {
    sl_engine_options o = options_of(model);
    o.plan_only = true;
    o.memory = 0;
    sl_engine *e = must_open(&o);
    sl_engine_info i = info_of(e);
    assert_true(i.least_memory <= i.suggested_memory && i.suggested_memory <= i.full_memory);
    sl_engine_close(e);
    return i.least_memory;
}

static void test_least_budget_runs_and_holds(void **state) {
    static const char *const models[] = {GOLDEN "qwen2_moe", GOLDEN "qwen3_moe-gguf/model.gguf", GOLDEN "llama"};
    static text small, large;
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        sl_engine_options o = options_of(models[m]);
        sl_engine *e = must_open(&o);
        collect(start(e, 1, 30, 25, 0), &large);
        sl_engine_close(e);
        o.memory = least_of(models[m]);
        e = must_open(&o);
        collect(start(e, 1, 30, 25, 0), &small);
        assert_int_equal(small.last.finish, SL_FINISH_LENGTH);
        assert_memory_equal(small.tokens, large.tokens, sizeof(int32_t) * 25);
        sl_stats s = stats_of(e);
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

/* KV takes slabs from the expert cache and gives them back, again and again; pages come to lie in other slabs. */
static void test_kv_and_experts_share_the_budget(void **state) {
    enum { SEQS = 12 };
    sl_engine_options o = options_of(GOLDEN "qwen3_moe");
    o.memory = least_of(o.model) + 3 * MIB / 2;
    sl_engine *e = must_open(&o);
    size_t bytes = (size_t)info_of(e).vocab * sizeof(float);
    float *expected = malloc(bytes * SEQS), *got = malloc(bytes);
    assert_true(expected && got);
    sl_engine_options roomy = options_of(o.model);
    sl_engine *f = must_open(&roomy);
    for (int i = 0; i < SEQS; i++) {
        sl_seq *s = new_seq(f);
        append(f, s, i, 0, 180, expected + (size_t)i * bytes / sizeof(float));
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
            s[i] = new_seq(e);
            for (int k = 0; k < 179; k++)
                in[k] = (sl_input){s[i], token_at(i, k), false};
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
            append(e, s[i], i, 179, 180, got);
            assert_memory_equal(got, expected + (size_t)i * bytes / sizeof(float), bytes);
            engine_kv_stats st = engine_kv_stats_get(e->kv);
            most = st.slabs > most ? st.slabs : most;
            sl_seq_free(s[i]);
        }
        static text t;
        collect(start(e, round, 9, 5, 0), &t); /* the scheduler gives empty slabs back before its steps */
        assert_int_equal(t.last.finish, SL_FINISH_LENGTH);
        engine_kv_stats st = engine_kv_stats_get(e->kv);
        least = st.slabs < least ? st.slabs : least;
        for (int i = 0; i < 2; i++) {
            sl_mem_slab_free(e->mem, taken[i]);
            taken[i] = round < 3 ? sl_mem_slab(e->mem, SL_USE_OTHER, NULL) : NULL;
        }
        assert_true(stats_of(e).memory_peak <= o.memory);
    }
    print_message("KV slabs between %d and %d, a sequence refused: %d\n", least, most, refused);
    assert_true(least < most && most >= 3);
    free(expected);
    free(got);
    sl_engine_close(e);
}

/* ---- opening
 * ---------------------------------------------------------------------------------------------------------
 */

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
        {{.model = GOLDEN "qwen3_moe", .experts_per_token = 9}, "9"},
        {{.model = GOLDEN "llama", .experts_per_token = 1}, "experts"},
        {{.model = GOLDEN "qwen2_moe", .kv_type = "q8_0"}, "q8_0"}, /* head_dim 16 */
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
    sl_engine_options o = options_of(GOLDEN "llama");
    o.size = 3;
    sl_error err = {0};
    assert_null(sl_engine_open(&o, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    sl_engine_close(NULL);
}

static void test_plan_only(void **state) {
    sl_engine_options o = options_of(GOLDEN "qwen2_moe");
    o.plan_only = true;
    sl_engine *e = must_open(&o);
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
    sl_stats s = stats_of(e);
    assert_int_equal(s.weights_bytes, 0);
    sl_engine_close(e);
}

static void test_info_and_approximation(void **state) {
    sl_engine_options o = options_of(GOLDEN "qwen2_moe");
    sl_engine *e = must_open(&o);
    sl_engine_info i = info_of(e);
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
    e = must_open(&o);
    i = info_of(e);
    assert_string_equal(i.approximation, "1 experts per token instead of 2");
    sl_engine_close(e);
}

/* What the trace says was read is what the statistics say, from files that exist. */
static void test_trace(void **state) {
    static text t;
    sl_engine_options o = options_of(GOLDEN "qwen3_moe");
    o.max_slots = 4;
    sl_engine *e = must_open(&o);
    sl_engine_trace(e, true);
    sl_engine_reset_stats(e);
    collect(start(e, 1, 20, 10, 0), &t);
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
    sl_stats s = stats_of(e);
    assert_true(n > 0 && s.expert_misses > 0);
    assert_int_equal(bytes, s.expert_bytes_read);
    assert_int_equal(s.prompt_tokens + s.decode_tokens, 29);
    free(reads);
    sl_engine_close(e);
}

/* ---- text
 * ------------------------------------------------------------------------------------------------------------
 */

static void test_text_calls(void **state) {
    sl_engine_options o = options_of(GOLDEN "qwen2_moe");
    sl_engine *e = must_open(&o);
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
    static text t;
    sl_engine_options o = options_of(GOLDEN "llama");
    sl_engine *e = must_open(&o);
    sl_error err = {0};
    int32_t *ids;
    size_t n;
    collect(start(e, 1, 5, 5, 0), &t);
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
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_snapshot_of_another_checkpoint),
        cmocka_unit_test(test_concurrent_requests_give_the_same_texts),
        cmocka_unit_test(test_context_fills_up),
        cmocka_unit_test(test_read_errors_fail_only_whom_they_hit),
        cmocka_unit_test(test_vanished_file),
        cmocka_unit_test(test_cancel_while_reading),
        cmocka_unit_test(test_least_budget_runs_and_holds),
        cmocka_unit_test(test_kv_and_experts_share_the_budget),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_plan_only),
        cmocka_unit_test(test_info_and_approximation),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_text_calls),
        cmocka_unit_test(test_without_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
