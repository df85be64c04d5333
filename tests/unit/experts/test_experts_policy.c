/* LFU against a list, its ageing; what layers count; starting warm; the hot list's file. */
#include "support_experts.h"

#include "experts/hot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 3, EXPERTS = 20, TOP = 4, SLOTS = 17 };

static int32_t key_of(int32_t layer, int32_t expert) {
    return layer * EXPERTS + expert;
}

/* ---- LFU against a list ------------------------------------------------------------------------------------------ */

/* The oracle: counts of all experts, the cached ones with the time of their last use. */
typedef struct lfu_model {
    int32_t uses[LAYERS * EXPERTS];
    int64_t used[LAYERS * EXPERTS]; /* 0: not cached */
    int64_t clock;
    int passes;
    uint64_t hits, misses;
} lfu_model;

/* What ranks tell apart: counts up to 15, then the leading four bits. */
static int32_t coarse(int32_t uses) {
    int32_t unit = 1;
    while (uses / unit >= 16)
        unit *= 2;
    return uses / unit * unit;
}

static void evict_least(lfu_model *l, const bool *asked) {
    int32_t worst = -1;
    for (int32_t k = 0; k < LAYERS * EXPERTS; k++) {
        if (l->used[k] == 0 || asked[k])
            continue;
        if (worst < 0 || coarse(l->uses[k]) < coarse(l->uses[worst]) ||
            (coarse(l->uses[k]) == coarse(l->uses[worst]) && l->used[k] < l->used[worst]))
            worst = k;
    }
    assert_true(worst >= 0);
    l->used[worst] = 0;
}

static void lfu_step(lfu_model *l, int32_t layer, const int32_t *ids, int32_t n) {
    bool asked[LAYERS * EXPERTS] = {0};
    int32_t cached = 0, missing = 0;
    if (layer == 0 && ++l->passes == 256) {
        l->passes = 0;
        for (int32_t k = 0; k < LAYERS * EXPERTS; k++)
            l->uses[k] /= 2;
    }
    for (int32_t i = 0; i < n; i++) {
        asked[key_of(layer, ids[i])] = true;
        missing += l->used[key_of(layer, ids[i])] == 0;
    }
    l->hits += (uint64_t)(n - missing);
    l->misses += (uint64_t)missing;
    for (int32_t k = 0; k < LAYERS * EXPERTS; k++)
        cached += l->used[k] > 0;
    for (; cached + missing > SLOTS; cached--)
        evict_least(l, asked);
    for (int32_t i = 0; i < n; i++)
        l->used[key_of(layer, ids[i])] = INT64_MAX; /* claimed */
}

static void lfu_done(lfu_model *l, int32_t layer, int32_t id) {
    l->uses[key_of(layer, id)] += l->uses[key_of(layer, id)] < 1023;
    l->used[key_of(layer, id)] = ++l->clock;
}

/* Skewed, and the skew moves: half of the choices are among a few experts that change with the round. */
static void choose_ids(rng *r, int round, int32_t *ids, int32_t n) {
    if (rng_below(r, 2)) {
        rng_ids(r, ids, n, EXPERTS);
        return;
    }
    int32_t base = round / 700 * 5 % (EXPERTS - 6);
    rng_ids(r, ids, n, 6);
    for (int32_t i = 0; i < n; i++)
        ids[i] += base;
}

/* All experts of an iteration at once, each checked; given back in order of id. */
static void run_both(store *s, lfu_model *l, int32_t layer, const int32_t *ids, int32_t n) {
    sl_expert_view view[TOP], by_id[EXPERTS];
    sl_error err;
    store_begin(s, layer, ids, n, SL_ORDER_READY);
    lfu_step(l, layer, ids, n);
    for (int32_t got = 0; got < n;) {
        int k = s->source.next(s->source.self, view + got, n - got, &err);
        assert_true(k > 0);
        got += k;
    }
    for (int32_t i = 0; i < n; i++) {
        model_check(s->m, layer, &view[i]);
        by_id[view[i].id] = view[i];
    }
    for (int32_t i = 0; i < n; i++) {
        s->source.done(s->source.self, &by_id[ids[i]], 1);
        lfu_done(l, layer, ids[i]);
    }
    s->source.end(s->source.self);
}

static void least_used_goes_first_and_counts_age(void **state) {
    rng r = rng_start("lfu");
    model m;
    model_make(&m, &(model_spec){2, LAYERS, EXPERTS, 3, 500, 3000, true, false}, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = TOP, .max_slots = SLOTS, .policy = SL_POLICY_LFU}, reader_plain());
    static lfu_model l;
    l = (lfu_model){0};
    for (int round = 0; round < 5000; round++) {
        int32_t ids[TOP], n = 1 + (int32_t)rng_below(&r, TOP), layer = (int32_t)rng_below(&r, LAYERS);
        choose_ids(&r, round, ids, n);
        run_both(&s, &l, layer, ids, n);
        for (int32_t k = 0; k < LAYERS * EXPERTS; k++)
            if (store_has(&s, k / EXPERTS, k % EXPERTS) != (l.used[k] > 0))
                fail_msg("round %d, layer %d expert %d: cached %d", round, k / EXPERTS, k % EXPERTS, l.used[k] == 0);
    }
    sl_experts_stats st = store_stats(&s);
    assert_int_equal(st.hits, l.hits);
    assert_int_equal(st.misses, l.misses);
    store_free(&s);
    model_free(&m);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static void layers_add_up_to_the_whole(void **state) {
    rng r = rng_start("layers");
    model m;
    model_make(&m, &(model_spec){1, LAYERS, EXPERTS, 2, 2000, 5000, true, true}, &r);
    store s;
    store_make(&s, &m,
               &(store_spec){.top_k = TOP, .max_slots = SLOTS, .prefetch = SL_PREFETCH_ROUTER, .guess_same = true},
               reader_plain());
    uint64_t asked[LAYERS] = {0};
    for (int round = 0; round < 300; round++) {
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            int32_t ids[TOP];
            rng_ids(&r, ids, TOP, EXPERTS);
            store_run(&s, layer, ids, TOP, rng_below(&r, 2) ? SL_ORDER_READY : SL_ORDER_ASCENDING, 2);
            asked[layer] += TOP;
        }
    }
    store_settle(&s);
    sl_experts_layer_stats x[LAYERS], sum = {0};
    sl_experts_layers_get(s.e, x, LAYERS);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(x[i].hits + x[i].misses, asked[i]);
        sum.hits += x[i].hits;
        sum.misses += x[i].misses;
        sum.read_bytes += x[i].read_bytes;
        sum.wait_ns += x[i].wait_ns;
        sum.prefetch_reads += x[i].prefetch_reads;
        sum.prefetch_used += x[i].prefetch_used;
    }
    sl_experts_stats st = store_stats(&s);
    assert_int_equal(sum.hits, st.hits);
    assert_int_equal(sum.misses, st.misses);
    assert_int_equal(sum.read_bytes, st.read_bytes);
    assert_true(sum.wait_ns > 0 && sum.wait_ns <= st.wait_ns); /* what was waited for between steps is no layer's */
    assert_int_equal(sum.prefetch_reads, st.prefetch_reads);
    assert_int_equal(sum.prefetch_used, st.prefetch_used);
    assert_true(st.prefetch_used > 0 && x[0].prefetch_reads == 0);
    store_free(&s);
    model_free(&m);
}

/* ---- starting warm ----------------------------------------------------------------------------------------------- */

typedef struct progress {
    uint64_t done, total, calls;
} progress;

static void see_progress(void *user, uint64_t done, uint64_t total) {
    progress *p = user;
    assert_true(done > p->done && done <= total);
    *p = (progress){done, total, p->calls + 1};
}

static void the_hottest_are_there_before_the_first_step(void **state) {
    rng r = rng_start("warm");
    for (int policy = SL_POLICY_LRU; policy <= SL_POLICY_LFU; policy++) {
        model m;
        model_make(&m, &(model_spec){2, LAYERS, EXPERTS, 3, 500, 3000, true, false}, &r);
        uint32_t uses[LAYERS * EXPERTS];
        for (int32_t k = 0; k < LAYERS * EXPERTS; k++) /* all different, and five never used */
            uses[k] = k % 12 == 5 ? 0 : (uint32_t)(k * 37 % 61 + 1) * 1000000;
        store s;
        store_make(&s, &m, &(store_spec){.top_k = TOP, .max_slots = SLOTS, .policy = (sl_policy)policy, .learn = true},
                   reader_plain());
        progress p = {0};
        assert_int_equal(sl_experts_warm(s.e, uses, see_progress, &p), SLOTS);
        assert_int_equal(p.done, SLOTS);
        assert_int_equal(p.total, SLOTS);
        uint32_t least_in = UINT32_MAX, most_out = 0;
        for (int32_t k = 0; k < LAYERS * EXPERTS; k++) {
            if (store_has(&s, k / EXPERTS, k % EXPERTS))
                least_in = uses[k] < least_in ? uses[k] : least_in;
            else
                most_out = uses[k] > most_out ? uses[k] : most_out;
        }
        assert_true(least_in > most_out);
        assert_int_equal(store_stats(&s).hits + store_stats(&s).evictions, 0);
        /* The least hot of them goes first. */
        for (int32_t k = 0; k < LAYERS * EXPERTS; k++) {
            if (uses[k] != most_out)
                continue;
            int32_t id = k % EXPERTS;
            assert_int_equal(store_run(&s, k / EXPERTS, &id, 1, SL_ORDER_READY, 1), 0);
        }
        for (int32_t k = 0; k < LAYERS * EXPERTS; k++)
            if (uses[k] >= least_in)
                assert_int_equal(store_has(&s, k / EXPERTS, k % EXPERTS), uses[k] > least_in);
        const uint32_t *heat = NULL;
        assert_int_equal(sl_experts_heat(s.e, &heat), LAYERS * EXPERTS);
        for (int32_t k = 0; k < LAYERS * EXPERTS; k++)
            assert_int_equal(heat[k], uses[k] == most_out ? 1 : 0); /* reading ahead is no use */
        store_free(&s);
        model_free(&m);
    }
}

static void what_fails_while_warming_is_read_again(void **state) {
    rng r = rng_start("warm faults");
    model m;
    model_make(&m, &(model_spec){1, 2, EXPERTS, 2, 500, 3000, true, true}, &r);
    uint32_t uses[2 * EXPERTS];
    for (int32_t k = 0; k < 2 * EXPERTS; k++)
        uses[k] = (uint32_t)k + 1;
    store s;
    spy *watch = spy_open(reader_plain());
    watch->fail_results = 7;
    store_make(&s, &m, &(store_spec){.top_k = TOP, .policy = SL_POLICY_LFU}, &watch->base);
    int64_t there = sl_experts_warm(s.e, uses, NULL, NULL);
    assert_in_range(there, 2 * EXPERTS - 7, 2 * EXPERTS - 1);
    int32_t all[EXPERTS];
    for (int32_t i = 0; i < EXPERTS; i++)
        all[i] = i;
    for (int32_t layer = 0; layer < 2; layer++)
        assert_int_equal(store_run(&s, layer, all, EXPERTS, SL_ORDER_READY, 4), 0);
    assert_int_equal(store_stats(&s).misses, 2 * EXPERTS - there);
    store_free(&s);
    model_free(&m);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static char *temp_dir(void) {
    static char dir[] = "/tmp/sluice-hot-XXXXXX";
    memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void a_hot_list_comes_back_or_is_refused(void **state) {
    enum { N = 37 };
    char *dir = temp_dir(), *path = sl_asprintf("%s/deeper/hot.list", dir), *folder = sl_asprintf("%s/deeper", dir);
    uint32_t uses[N], back[N];
    sl_error err;
    for (uint32_t i = 0; i < N; i++)
        uses[i] = i * i * 100003u;
    assert_false(sl_hot_load(path, 5, back, N, &err));
    assert_int_equal(err.code, SL_OK); /* there is none: no reason to complain */
    assert_true(sl_hot_save(path, 5, uses, N, &err));
    memset(back, 0xff, sizeof back);
    assert_true(sl_hot_load(path, 5, back, N, &err));
    assert_memory_equal(back, uses, sizeof uses);
    assert_false(sl_hot_load(path, 6, back, N, &err)); /* of another model */
    assert_non_null(strstr(err.message, "hot.list: offset 8"));
    assert_false(sl_hot_load(path, 5, back, N - 1, &err)); /* larger than a list of so many */
    assert_int_equal(err.code, SL_ERR_FORMAT);
    uint32_t more[N + 1];
    assert_false(sl_hot_load(path, 5, more, N + 1, &err));
    assert_non_null(strstr(err.message, "offset 16"));
    assert_false(sl_hot_load(folder, 5, back, N, &err));
    assert_non_null(strstr(err.message, "not a regular file"));

    /* Every byte changed, every length: nothing but the whole file is taken, and what is refused leaves no trace. */
    size_t size;
    char *text = sl_read_text(path, 1 << 20, &size, &err);
    assert_int_equal(size, 24 + 4 * N + 8);
    for (size_t i = 0; i < 2 * size; i++) {
        FILE *f = fopen(path, "wb");
        text[i % size] ^= i < size ? 0x10 : 0;
        assert_int_equal(fwrite(text, 1, i < size ? size : i - size, f), i < size ? size : i - size);
        text[i % size] ^= i < size ? 0x10 : 0;
        assert_int_equal(fclose(f), 0);
        memset(back, 0xff, sizeof back);
        assert_false(sl_hot_load(path, 5, back, N, &err));
        assert_true(err.code != SL_OK && strstr(err.message, path));
        for (int k = 0; k < N; k++)
            assert_int_equal(back[k], UINT32_MAX);
    }
    free(text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing is left beside it */
    assert_int_equal(rmdir(dir), 0);
    assert_false(sl_hot_save("/proc/no/such/place", 5, uses, N, &err));
    assert_non_null(strstr(err.message, "/proc/no/such/place: cannot write"));
    free(path);
    free(folder);
}

static void what_is_no_hot_list_is_not_written_over(void **state) {
    enum { N = 3 };
    static const char diary[] = "SLHOT? dear diary", part[] = "SLHOT1";
    char *dir = temp_dir(), *path = sl_asprintf("%s/diary", dir), *link = sl_asprintf("%s/link", dir);
    uint32_t uses[N] = {1, 2, 3}, back[N];
    sl_error err;
    for (int i = 0; i < 3; i++) { /* something else; the beginning of a list; an empty file, made for one */
        size_t size;
        FILE *f = fopen(path, "wb");
        fputs(i == 0 ? diary : i == 1 ? part : "", f);
        assert_int_equal(fclose(f), 0);
        assert_false(sl_hot_load(path, 5, back, N, &err));
        assert_int_equal(err.code, i == 0 ? SL_ERR_ARGUMENT : SL_ERR_FORMAT);
        assert_int_equal(sl_hot_save(path, 5, uses, N, &err), i > 0);
        char *text = sl_read_text(path, 1 << 20, &size, &err);
        assert_true(text && (strcmp(text, diary) == 0) == (i == 0));
        free(text);
        assert_int_equal(sl_hot_load(path, 5, back, N, &err), i > 0);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(symlink("nowhere", link), 0);
    const char *const others[] = {path, link, dir};
    for (int i = 0; i < 3; i++) {
        struct stat before, after;
        assert_int_equal(lstat(others[i], &before), 0);
        assert_false(sl_hot_load(others[i], 5, back, N, &err));
        assert_int_equal(err.code, SL_ERR_ARGUMENT);
        assert_false(sl_hot_save(others[i], 5, uses, N, &err));
        assert_int_equal(lstat(others[i], &after), 0);
        assert_true(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    }
    assert_true(unlink(path) == 0 && unlink(link) == 0);
    assert_int_equal(rmdir(dir), 0); /* nothing is left beside them */
    free(path);
    free(link);
}

static void old_uses_lose_weight(void **state) {
    enum { N = 10 };
    uint32_t known[N] = {3000, 10}, run[N] = {0, 0, 500, UINT32_MAX};
    uint32_t few[N] = {1, 2, 3};
    sl_hot_merge(known, few, N); /* far from full: nothing is lost */
    assert_true(known[0] == 3001 && known[1] == 12 && known[2] == 3 && known[9] == 0);
    sl_hot_merge(known, run, N);
    uint64_t sum = 0;
    for (int i = 0; i < N; i++)
        sum += known[i];
    assert_in_range(sum, N * 1024 / 2 - N, N * 1024);
    assert_true(known[3] > 5000 && known[0] < 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_used_goes_first_and_counts_age),
        cmocka_unit_test(layers_add_up_to_the_whole),
        cmocka_unit_test(the_hottest_are_there_before_the_first_step),
        cmocka_unit_test(what_fails_while_warming_is_read_again),
        cmocka_unit_test(a_hot_list_comes_back_or_is_refused),
        cmocka_unit_test(what_is_no_hot_list_is_not_written_over),
        cmocka_unit_test(old_uses_lose_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
