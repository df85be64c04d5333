/* Linear attention on the software device through the engine: a prompt of several hundred tokens over many chunks of
 * the delta rule beside the CPU's exact mode, in pieces that end anywhere; a snapshot in the middle of a chunk goes on
 * in another engine with the same bits. */
#include "support_model.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 272, TOKENS = 330 };

static char cache[] = "/tmp/sluice-state-XXXXXX"; /* compiled once for all tests here */

static int make_cache(void **state) {
    return mkdtemp(cache) && setenv("XDG_CACHE_HOME", cache, 1) == 0 ? 0 : -1;
}

static void remove_all(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char name[1024];
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(name) != 0)
            remove_all(name);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

static int remove_cache(void **state) {
    remove_all(cache);
    return 0;
}

static sl_engine *open_on(const char *device, int chunk) {
    sl_engine_options o = model_options_of(GOLDEN "qwen3_5_moe");
    o.device = device;
    o.numeric = device ? NULL : "exact";
    o.chunk = chunk;
    o.context = 512;
    sl_error err = {0};
    sl_engine *e = sl_engine_open(&o, &err);
    if (!e && device && strstr(err.message, "clang++")) { /* the one thing that a machine may lack */
        print_message("SKIP: %s\n", err.message);
        skip();
    }
    if (!e)
        fail_msg("%s", err.message);
    return e;
}

static double error_of(const float *got, const float *want) {
    double worst = 0, largest = 0;
    for (int i = 0; i < VOCAB; i++) {
        double e = fabs((double)got[i] - want[i]);
        worst = isnan(worst) || e <= worst ? worst : e; /* a NaN stays */
        largest = fmax(largest, fabs((double)want[i]));
    }
    return worst / largest;
}

/* Products are of half tiles, so now and then a token chooses another expert; the state must not drift from that. */
static void a_long_prompt_is_the_cpus(void **state) {
    static const int ends[] = {200, 201, 231, 264, 313, TOKENS};
    sl_engine *gpu = open_on("soft:2", 128), *cpu = open_on(NULL, 128);
    sl_seq *g = model_new_seq(gpu), *c = model_new_seq(cpu);
    int near = 0;
    for (size_t i = 0, at = 0; i < SL_COUNT(ends); at = (size_t)ends[i++]) {
        float got[VOCAB], want[VOCAB];
        model_append(gpu, g, 3, (int)at, ends[i], got);
        model_append(cpu, c, 3, (int)at, ends[i], want);
        double e = error_of(got, want);
        print_message("after %d tokens: %.2g\n", ends[i], e);
        assert_true(e < 0.2);
        near += e < 4e-3;
    }
    assert_in_range(near, SL_COUNT(ends) - 1, SL_COUNT(ends));
    sl_seq_free(g);
    sl_seq_free(c);
    sl_engine_close(gpu);
    sl_engine_close(cpu);
}

static void a_snapshot_goes_on_within_a_chunk(void **state) {
    sl_engine *e = open_on("soft:2", 64), *f = open_on("soft:1", 64);
    sl_error err = {0};
    float straight[2][VOCAB], restored[2][VOCAB];
    void *bytes;
    size_t size;
    sl_seq *s = model_new_seq(e);
    model_append(e, s, 5, 0, 77, NULL);
    assert_true(sl_seq_save(s, &bytes, &size, &err));
    sl_seq *r = sl_seq_restore(f, bytes, size, &err);
    if (!r)
        fail_msg("%s", err.message);
    for (int k = 0; k < 2; k++) {
        sl_engine *on = k ? f : e;
        sl_seq *q = k ? r : s;
        float(*out)[VOCAB] = k ? restored : straight;
        model_append(on, q, 5, 77, 78, out[0]);
        model_append(on, q, 5, 78, 131, out[1]);
    }
    assert_memory_equal(straight, restored, sizeof straight);
    /* the CPU's state is another one */
    sl_engine *cpu = open_on(NULL, 64);
    assert_null(sl_seq_restore(cpu, bytes, size, &err));
    assert_non_null(strstr(err.message, "of another model or numeric mode"));
    free(bytes);
    sl_seq_free(s);
    sl_seq_free(r);
    sl_engine_close(e);
    sl_engine_close(f);
    sl_engine_close(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_is_the_cpus),
        cmocka_unit_test(a_snapshot_goes_on_within_a_chunk),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
