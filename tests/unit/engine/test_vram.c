/* Memory of a GPU that has its own (the stand-in for CUDA): the plan names what is needed, nothing beyond the limit is
 * taken, experts are evicted and give way to KV, and no bit of a result depends on how much there is. */
#include "support_model.h"

#include "../../standin/cuda/cuda_standin.h"
#include "engine/vram.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { FEW = 12 /* rows of a chunk that are computed in float */, MANY = 48 };

static cuda_control *cuda;
static char cache[] = "/tmp/sluice-vram-XXXXXX";

static int make_cache(void **state) {
#ifdef SL_CUDA_STANDIN
    void *library = dlopen(SL_CUDA_STANDIN, RTLD_NOW | RTLD_LOCAL);
    cuda_control *(*control)(void);
    if (!library)
        fail_msg("%s", dlerror());
    *(void **)&control = dlsym(library, "cuda_standin");
    cuda = control();
    setenv("SLUICE_CUDA_LIBRARY", SL_CUDA_STANDIN, 1);
    setenv("SLUICE_NVRTC_LIBRARY", SL_CUDA_STANDIN, 1);
#else
    print_message("SKIP: no stand-in for CUDA on this system\n");
#endif
    return mkdtemp(cache) && setenv("XDG_CACHE_HOME", cache, 1) == 0 ? 0 : -1;
}

static int remove_cache(void **state) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

/* ---- the plan ------------------------------------------------------------------------------------------------------
 */

static const engine_vram_input usual = {.device = "GPU",
                                        .room = 100 * MIB,
                                        .share = 90 * MIB,
                                        .weights = 20 * MIB,
                                        .scratch = 10 * MIB,
                                        .slab_bytes = MIB,
                                        .least_slab = MIB / 4,
                                        .kv_block = MIB / 8,
                                        .context_blocks = 64,
                                        .state_block = MIB / 16,
                                        .state_blocks = 20,
                                        .slot_bytes = MIB,
                                        .slots = 1000,
                                        .least_slots = 8};

static void what_is_left_belongs_to_experts(void **state) {
    engine_vram_input in = usual;
    engine_vram p;
    sl_error err = {0};
    assert_true(engine_vram_plan(&in, &p, &err));
    assert_int_equal(p.limit, 90 * MIB);
    /* 8 slabs of KV and 2 of state are 10, which pieces of 1, 2, 4, 8 hold */
    assert_int_equal(p.keep, 15 * MIB);
    assert_int_equal(p.slots, 45);
    assert_int_equal(p.full, (20 + 10 + 15 + 1000) * MIB);
    in.room = in.share = 2000 * MIB;
    assert_true(engine_vram_plan(&in, &p, &err));
    assert_int_equal(p.slots, 1000);
    in = usual;
    in.context_blocks = 1 << 20; /* KV of a context that never fits takes a quarter */
    assert_true(engine_vram_plan(&in, &p, &err));
    assert_int_equal(p.keep, 15 * MIB);
    in.slots = 0; /* a dense model */
    assert_true(engine_vram_plan(&in, &p, &err));
    assert_int_equal(p.slots, 0);
}

/* The least that is named runs, a byte less does not. */
static void the_least_is_exact(void **state) {
    engine_vram p;
    sl_error err = {0};
    engine_vram_input in = usual;
    in.asked = 1;
    in.slab_bytes = in.least_slab;
    assert_false(engine_vram_plan(&in, &p, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    /* 80 states of 1/16 in slabs of 1/4: 5; one of KV */
    uint64_t least = 30 * MIB + 6 * MIB / 4 + 8 * MIB;
    assert_int_equal(p.least, least);
    char words[64];
    snprintf(words, sizeof words, "at least %llu bytes", (unsigned long long)least);
    assert_non_null(strstr(err.message, words));
    assert_non_null(strstr(err.message, "weights 20.00 MiB, scratch and logits 10.00 MiB, KV and state 1.50 MiB, slots "
                                        "for 8 experts 8.00 MiB"));
    in.asked = least - 1;
    assert_false(engine_vram_plan(&in, &p, &err));
    in.asked = least;
    in.slab_bytes = engine_vram_slab(&in, in.least_slab, 64 * MIB);
    assert_int_equal(in.slab_bytes, in.least_slab);
    assert_true(engine_vram_plan(&in, &p, &err));
    assert_int_equal(p.slots, 8);
    in.asked = in.room + 1;
    assert_false(engine_vram_plan(&in, &p, &err));
    assert_non_null(strstr(err.message, "104857600 are free on GPU"));
}

static void slabs_grow_with_the_memory(void **state) {
    engine_vram_input in = usual;
    uint64_t last = 0;
    for (in.asked = 40 * MIB; in.asked < 4000 * MIB; in.asked *= 2) {
        uint64_t slab = engine_vram_slab(&in, in.least_slab, 64 * MIB);
        assert_true(slab >= last && slab >= in.least_slab && (slab <= in.asked / 64 || slab == in.least_slab));
        last = slab;
    }
    assert_true(last > in.least_slab);
}

/* ---- engines -------------------------------------------------------------------------------------------------------
 */

static sl_engine_options options(const char *model, int chunk, uint64_t vram) {
    sl_engine_options o = model_options_of(model);
    o.device = "cuda";
    o.chunk = chunk;
    o.max_sequences = 2;
    o.vram = vram;
    return o;
}

/* NULL: the machine has no compiler for the stand-in's device; said loudly. */
static sl_engine *open_engine(const sl_engine_options *o) {
    sl_error err = {0};
    if (!cuda)
        skip();
    sl_engine *e = sl_engine_open(o, &err);
    if (!e && strstr(err.message, "clang++")) {
        print_message("SKIP: %s\n", err.message);
        skip();
    }
    if (!e)
        fail_msg("%s", err.message);
    return e;
}

static sl_engine_info plan_of(const sl_engine_options *like) {
    sl_engine_options o = *like;
    o.plan_only = true;
    sl_engine *e = open_engine(&o);
    sl_engine_info i = model_info_of(e);
    sl_engine_close(e);
    return i;
}

typedef struct outcome {
    float logits[3][MODEL_VOCAB];
    sl_stats stats;
    uint64_t slot_bytes;
} outcome;

/* A prompt, a token, some tokens. limit: other than what was planned, 0: that. */
static void run_text(const sl_engine_options *o, uint64_t limit, outcome *out) {
    sl_engine *e = open_engine(o);
    if (limit)
        sl_ops_set_vram(e->ops, &(sl_ops_vram){.limit = limit});
    sl_seq *s = model_new_seq(e);
    model_append(e, s, 0, 0, MANY, out->logits[0]);
    model_append(e, s, 0, MANY, MANY + 1, out->logits[1]);
    model_append(e, s, 0, MANY + 1, MANY + 8, out->logits[2]);
    out->stats = model_stats_of(e);
    int32_t layer;
    out->slot_bytes =
        sl_ops_vram_slot(sl_model_expert_matrices(e->model, 0, &layer), sl_model_experts_alternate(e->model, 0));
    sl_seq_free(s);
    sl_engine_close(e);
    print_message("%s, chunk %d: %llu bytes, %llu slots, %llu hits, %llu misses\n", o->model + sizeof GOLDEN - 1,
                  o->chunk, (unsigned long long)out->stats.vram_peak, (unsigned long long)out->stats.vram_slots,
                  (unsigned long long)out->stats.vram_hits, (unsigned long long)out->stats.vram_misses);
}

/* Steps that run_text makes. */
static uint64_t steps_of(int chunk) {
    return (uint64_t)((MANY + chunk - 1) / chunk + 2);
}

/* All there is; the least; slots for a few experts; those and few slots in the host's memory. */
static void compare_sizes(const char *model, int chunk) {
    static outcome all, now;
    sl_engine_options o = options(model, chunk, 0);
    run_text(&o, 0, &all);
    assert_int_equal(all.stats.vram_misses, all.stats.vram_slots); /* each was brought once */
    assert_int_equal(all.stats.gpu_waits, steps_of(chunk));        /* no layer waited for the host */
    o.vram = plan_of(&o).least_vram;
    run_text(&o, 0, &now);
    assert_memory_equal(now.logits, all.logits, sizeof all.logits);
    assert_true(now.stats.vram_peak <= o.vram && now.stats.vram_slots <= all.stats.vram_slots);
    uint64_t tight = now.stats.vram_peak - (now.stats.vram_slots - 3) * now.slot_bytes;
    for (int slots = 0; slots <= 3; slots += 3) {
        o.max_slots = slots;
        run_text(&o, tight, &now);
        assert_memory_equal(now.logits, all.logits, sizeof all.logits);
        assert_true(now.stats.vram_peak <= tight);
        assert_int_equal(now.stats.vram_slots, 3);
        assert_true(now.stats.vram_misses > all.stats.vram_misses); /* some came again: they had been evicted */
    }
}

static void no_bit_depends_on_how_much_there_is(void **state) {
    compare_sizes(GOLDEN "qwen3_5_moe", FEW);
    compare_sizes(GOLDEN "qwen3_5_moe", MANY);
    compare_sizes(GOLDEN "gpt_oss", FEW);
}

/* Token after token, over a page of KV and more: what is kept and given again computes the same. */
static void a_token_that_is_decoded_is_one_kept_list(void **state) {
    enum { TOKENS = 90 };
    static float kept[TOKENS][MODEL_VOCAB], encoded[MODEL_VOCAB];
    sl_engine_options o = options(GOLDEN "qwen3_5_moe", FEW, 0);
    sl_engine *e = open_engine(&o);
    sl_seq *s = model_new_seq(e);
    model_append(e, s, 0, 0, 20, NULL);
    long graphs = cuda->graph_launches, launches = cuda->launches;
    for (int i = 0; i < TOKENS; i++)
        model_append(e, s, 0, 20 + i, 21 + i, kept[i]);
    graphs = cuda->graph_launches - graphs;
    launches = cuda->launches - launches;
    sl_seq_free(s);
    sl_engine_close(e);
    print_message("%ld graphs and %ld launches for %d tokens\n", graphs, launches, TOKENS);
    assert_in_range(graphs, TOKENS - 6, TOKENS);
    o.vram = plan_of(&o).least_vram; /* waits for the host: no list is kept */
    e = open_engine(&o);
    s = model_new_seq(e);
    model_append(e, s, 0, 0, 20, NULL);
    for (int i = 0; i < TOKENS; i++) {
        model_append(e, s, 0, 20 + i, 21 + i, encoded);
        assert_memory_equal(encoded, kept[i], sizeof encoded);
    }
    sl_seq_free(s);
    sl_engine_close(e);
}

/* As under compute-sanitizer: each launch is waited for, so a list that waits for the host would wait for ever. */
static void launches_that_block_run_with_few_slots(void **state) {
    static outcome free_running, now;
    sl_engine_options o = options(GOLDEN "qwen3_moe", FEW, 0);
    o.vram = plan_of(&o).least_vram;
    run_text(&o, 0, &free_running);
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    run_text(&o, 0, &now);
    unsetenv("CUDA_LAUNCH_BLOCKING");
    assert_int_equal(cuda->violations, 0);
    assert_memory_equal(now.logits, free_running.logits, sizeof now.logits);
    assert_true(now.stats.gpu_waits > free_running.stats.gpu_waits);
}

/* Sequences grow into what experts had: they go on with the bits that they would have had, and experts still run. */
static void experts_give_way_to_kv(void **state) {
    sl_engine_options o = options(GOLDEN "qwen3_moe", FEW, 0);
    o.max_sequences = 8;
    sl_engine *undisturbed = open_engine(&o);
    o.vram = 4 * MIB; /* small slabs */
    o.vram = plan_of(&o).full_vram;
    sl_engine *e = open_engine(&o);
    sl_seq *s[5];
    uint64_t slots = 0, least = 0;
    size_t n = 0;
    while (n < SL_COUNT(s) && (n == 0 || least == slots)) {
        s[n] = model_new_seq(e);
        model_append(e, s[n], (int)n, 0, 200, NULL);
        sl_stats st = model_stats_of(e);
        slots = n++ ? slots : st.vram_slots;
        least = st.vram_slots;
        assert_true(st.vram_peak <= o.vram);
    }
    print_message("%llu slots, then %llu\n", (unsigned long long)slots, (unsigned long long)least);
    assert_true(least > 0 && least < slots);
    for (size_t i = 0; i < n; i++) {
        model_check_continues(s[i], undisturbed);
        sl_seq_free(s[i]);
    }
    sl_engine_close(e);
    sl_engine_close(undisturbed);
}

/* The call that needs more fails and says for what; the engine goes on. */
static void kv_that_has_no_room_fails_its_sequence_alone(void **state) {
    sl_engine_options o = options(GOLDEN "llama", FEW, 0);
    sl_error err = {0};
    o.max_sequences = 16;
    o.vram = plan_of(&o).least_vram;
    sl_engine *e = open_engine(&o);
    sl_seq *s[16];
    int made = 0;
    bool ok = true;
    float logits[MODEL_VOCAB];
    while (ok && made < (int)SL_COUNT(s)) {
        s[made] = sl_seq_new(e, &err);
        assert_non_null(s[made]);
        for (int i = 0; ok && i < 200; i++) {
            sl_input in = {s[made], model_token_at(made, i), true};
            ok = sl_decode(e, &in, 1, logits, &err);
        }
        made++;
    }
    print_message("%d sequences: %s\n", made, err.message);
    assert_false(ok);
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_non_null(strstr(err.message, "KV cache and state: "));
    assert_non_null(strstr(err.message, "bytes of GPU memory are needed"));
    sl_input in = {s[0], 1, true};
    assert_true(sl_decode(e, &in, 1, logits, &err));
    while (made)
        sl_seq_free(s[--made]);
    sl_engine_close(e);
}

/* Less than there was when it was planned, as where another program takes it. */
static void memory_that_is_gone_is_said(void **state) {
    sl_engine_options o = options(GOLDEN "llama", FEW, 0);
    sl_error err = {0};
    float logits[MODEL_VOCAB];
    sl_engine *e = open_engine(&o);
    uint64_t memory = cuda->memory;
    cuda->memory = cuda->allocated + 1000;
    sl_seq *s = model_new_seq(e);
    sl_input in = {s, 1, true};
    assert_false(sl_decode(e, &in, 1, logits, &err));
    cuda->memory = memory;
    if (!strstr(err.message, "KV cache and state: cuda: ") || !strstr(err.message, ", 1000 of "))
        fail_msg("%s", err.message);
    assert_true(sl_decode(e, &in, 1, logits, &err));
    sl_seq_free(s);
    sl_engine_close(e);
}

/* ---- devices -------------------------------------------------------------------------------------------------------
 */

static void expect_refused(const sl_engine_options *o, const char *words) {
    sl_error err = {0};
    sl_engine *e = sl_engine_open(o, &err);
    if (e || !strstr(err.message, words))
        fail_msg("'%s', expected: %s", err.message, words);
}

static void a_ceiling_on_memory_that_is_not_apart_is_refused(void **state) {
    sl_engine_options o = options(GOLDEN "llama", FEW, MIB);
    if (!cuda)
        skip();
    o.device = NULL;
    expect_refused(&o, "vram: the CPU has no memory of its own");
    o.device = "soft";
    expect_refused(&o, "vram: device soft shares the host's memory");
}

static void auto_says_what_it_chose_and_why(void **state) {
    sl_engine_options o = options(GOLDEN "llama", FEW, 0);
    o.plan_only = true;
    o.device = "auto";
    sl_engine *e = open_engine(&o);
    sl_engine_info i = model_info_of(e);
    assert_string_equal(i.device, "cuda");
    assert_string_equal(i.device_why, "Stand-in 0 is here");
    sl_engine_close(e);
    o.numeric = "exact";
    e = open_engine(&o);
    i = model_info_of(e);
    assert_string_equal(i.device, "cpu");
    assert_string_equal(i.device_why, "numeric exact and isa are of the CPU alone");
    sl_engine_close(e);
    o.numeric = NULL;
    o.vram = 1; /* the GPU does not do, so the CPU has to */
    e = open_engine(&o);
    i = model_info_of(e);
    assert_string_equal(i.device, "cpu");
    assert_string_equal(i.numeric, "q8");
    assert_non_null(strstr(i.device_why, "cuda: GPU memory of 1 bytes (1 bytes, vram) is too small"));
    sl_engine_close(e);
    int devices = cuda->devices;
    cuda->devices = 0;
    o.vram = 0;
    e = open_engine(&o);
    cuda->devices = devices;
    i = model_info_of(e);
    assert_string_equal(i.device, "cpu");
    assert_non_null(strstr(i.device_why, "cuda: an NVIDIA driver is here, but no GPU"));
    sl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_belongs_to_experts),
        cmocka_unit_test(the_least_is_exact),
        cmocka_unit_test(slabs_grow_with_the_memory),
        cmocka_unit_test(no_bit_depends_on_how_much_there_is),
        cmocka_unit_test(a_token_that_is_decoded_is_one_kept_list),
        cmocka_unit_test(launches_that_block_run_with_few_slots),
        cmocka_unit_test(experts_give_way_to_kv),
        cmocka_unit_test(kv_that_has_no_room_fails_its_sequence_alone),
        cmocka_unit_test(memory_that_is_gone_is_said),
        cmocka_unit_test(a_ceiling_on_memory_that_is_not_apart_is_refused),
        cmocka_unit_test(auto_says_what_it_chose_and_why),
    };
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
