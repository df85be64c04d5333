#include "support_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- random numbers --------------------------------------------------------------------------------------------- */

rng rng_start(const char *test) {
    const char *given = getenv("SL_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : 20240607;
    printf("%s: seed %llu\n", test, (unsigned long long)seed);
    return (rng){seed};
}

uint64_t rng_next(rng *r) {
    uint64_t x = r->state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint32_t rng_below(rng *r, uint32_t n) {
    return (uint32_t)(rng_next(r) % n);
}

void rng_ids(rng *r, int32_t *ids, int32_t n, int32_t limit) {
    int32_t taken = 0;
    for (int32_t id = 0; id < limit && taken < n; id++) {
        if ((int32_t)rng_below(r, (uint32_t)(limit - id)) < n - taken)
            ids[taken++] = id;
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static char *write_file(const uint8_t *bytes, uint64_t size) {
    const char *dir = getenv("TMPDIR");
    char *path = sl_asprintf("%s/sluice-experts-XXXXXX", dir ? dir : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (uint64_t at = 0; at < size;) {
        ssize_t n = write(fd, bytes + at, size - at);
        assert_true(n > 0);
        at += (uint64_t)n;
    }
    /* Dirty pages would stay in the page cache whatever is dropped. */
    fsync(fd);
    close(fd);
    return path;
}

static uint8_t *random_bytes(uint64_t size, rng *r) {
    uint8_t *b = malloc(size + 8);
    assert_non_null(b);
    for (uint64_t i = 0; i < size; i += 8) {
        uint64_t v = rng_next(r);
        memcpy(b + i, &v, 8);
    }
    return b;
}

sl_file *file_make(uint64_t size, uint8_t **bytes, rng *r) {
    sl_error err;
    *bytes = random_bytes(size, r);
    char *path = write_file(*bytes, size);
    sl_file *f = sl_file_open(path, &err);
    free(path);
    assert_non_null(f);
    sl_file_drop(f, 0, size);
    return f;
}

void file_free(sl_file *f) {
    unlink(f->path);
    sl_file_close(f);
}

/* ---- models ----------------------------------------------------------------------------------------------------- */

/* Sizes of a layer's parts; 0: no such part. */
static void part_sizes(const model_spec *spec, rng *r, uint32_t size[SL_EXPERT_PARTS]) {
    int32_t parts = spec->parts ? spec->parts : 1 + (int32_t)rng_below(r, SL_EXPERT_PARTS);
    int32_t which[SL_EXPERT_PARTS];
    rng_ids(r, which, parts, SL_EXPERT_PARTS);
    memset(size, 0, SL_EXPERT_PARTS * sizeof *size);
    for (int32_t i = 0; i < parts; i++)
        size[which[i]] = spec->least + rng_below(r, spec->most - spec->least + 1);
}

/* The next place in a random file, a random odd distance after what is there. */
static void place_extent(model *m, rng *r, int32_t file, uint32_t bytes, sl_extent *out) {
    if (bytes == 0) {
        *out = (sl_extent){0};
        return;
    }
    static const uint32_t gaps[] = {0, 0, 1, 7, 4000, 9001, 70001};
    uint64_t at = m->size[file] + gaps[rng_below(r, (uint32_t)SL_COUNT(gaps))];
    *out = (sl_extent){file, at, bytes};
    m->size[file] = at + bytes;
}

static void place_layer(model *m, rng *r, int32_t layer, const uint32_t size[SL_EXPERT_PARTS]) {
    sl_extent *ext = calloc((size_t)m->spec.experts * SL_EXPERT_PARTS, sizeof *ext);
    assert_non_null(ext);
    int32_t outer = m->spec.together ? m->spec.experts : SL_EXPERT_PARTS;
    int32_t inner = m->spec.together ? SL_EXPERT_PARTS : m->spec.experts;
    for (int32_t a = 0; a < outer; a++) {
        int32_t file = (int32_t)rng_below(r, (uint32_t)m->spec.files);
        for (int32_t b = 0; b < inner; b++) {
            int32_t part = m->spec.together ? b : a, expert = m->spec.together ? a : b;
            place_extent(m, r, file, size[part], &ext[expert * SL_EXPERT_PARTS + part]);
        }
    }
    m->extent[layer] = ext;
    m->layer[layer] = (sl_expert_layer){m->spec.experts, ext, NULL, layer};
}

/* A layer like the first, as many whole blocks further on in the files: the same slot size for certain. */
static void repeat_layer(model *m, int32_t layer, const uint64_t first_end[MODEL_FILES]) {
    int32_t n = m->spec.experts * SL_EXPERT_PARTS;
    sl_extent *ext = calloc((size_t)n, sizeof *ext);
    assert_non_null(ext);
    for (int32_t i = 0; i < n; i++) {
        sl_extent x = m->extent[0][i];
        x.offset += x.bytes ? (uint64_t)layer * sl_round_up(first_end[x.file], 4096) : 0;
        m->size[x.file] = x.offset + x.bytes > m->size[x.file] ? x.offset + x.bytes : m->size[x.file];
        ext[i] = x;
    }
    m->extent[layer] = ext;
    m->layer[layer] = (sl_expert_layer){m->spec.experts, ext, NULL, layer};
}

static void place_layers(model *m, rng *r) {
    uint32_t size[SL_EXPERT_PARTS];
    uint64_t first_end[MODEL_FILES];
    for (int32_t i = 0; i < m->spec.layers; i++) {
        if (i > 0 && m->spec.equal_layers) {
            repeat_layer(m, i, first_end);
            continue;
        }
        part_sizes(&m->spec, r, size);
        place_layer(m, r, i, size);
        memcpy(first_end, m->size, sizeof first_end);
    }
}

void model_make(model *m, const model_spec *spec, rng *r) {
    assert_true(spec->files <= MODEL_FILES && spec->layers <= MODEL_LAYERS);
    memset(m, 0, sizeof *m);
    m->spec = *spec;
    for (int32_t i = 0; i < spec->files; i++)
        m->size[i] = 1 + rng_below(r, 5000);
    place_layers(m, r);
    /* Files end with their last extent: the tail of a direct read lies past the end. */
    for (int32_t i = 0; i < spec->files; i++)
        m->file[i] = file_make(m->size[i], &m->bytes[i], r);
}

void model_free(model *m) {
    for (int32_t i = 0; i < m->spec.files; i++) {
        file_free(m->file[i]);
        free(m->bytes[i]);
    }
    for (int32_t i = 0; i < m->spec.layers; i++)
        free(m->extent[i]);
}

void model_check(const model *m, int32_t layer, const sl_expert_view *view) {
    assert_in_range(view->id, 0, m->layer[layer].experts - 1);
    const sl_extent *ext = &m->extent[layer][view->id * SL_EXPERT_PARTS];
    for (int p = 0; p < SL_EXPERT_PARTS; p++) {
        if (ext[p].bytes == 0) {
            assert_null(view->part[p]);
            continue;
        }
        assert_non_null(view->part[p]);
        assert_int_equal((uintptr_t)view->part[p] % 64, ext[p].offset % 64);
        assert_memory_equal(view->part[p], m->bytes[ext[p].file] + ext[p].offset, ext[p].bytes);
    }
}

/* ---- spy -------------------------------------------------------------------------------------------------------- */

static bool spy_submit(sl_reader *r, const sl_read *reads, int n, sl_error *err) {
    spy *s = (spy *)r;
    if (s->refuse)
        return sl_fail(err, SL_ERR_IO, "refused");
    s->submits++;
    s->reads += n;
    s->in_flight += n;
    /* Whatever is not read must not look right by chance. */
    for (int i = 0; i < n; i++)
        memset(reads[i].dst, 0xa5, reads[i].bytes);
    return s->inner->submit(s->inner, reads, n, err);
}

static void see_result(spy *s, sl_read_result *r) {
    if (r->ok && s->fail_results > 0) {
        s->fail_results--;
        r->ok = false;
        sl_fail(&r->error, SL_ERR_IO, "turned into a failure");
    }
    assert_false(r->ok && r->quarantined);
    assert_true(r->ok || r->error.message[0]);
    s->quarantined += r->quarantined;
    s->failed += !r->ok;
    s->in_flight -= !r->quarantined;
}

static int spy_collect(sl_reader *r, sl_read_result *out, int max, uint64_t timeout_ns) {
    spy *s = (spy *)r;
    s->collects++;
    if (s->hold && timeout_ns == 0)
        return 0;
    int n = s->inner->collect(s->inner, out, max, timeout_ns);
    for (int i = 0; i < n; i++)
        see_result(s, &out[i]);
    return n;
}

static void spy_add_memory(sl_reader *r, void *base, uint64_t bytes) {
    spy *s = (spy *)r;
    s->regions++;
    if (s->inner->add_memory)
        s->inner->add_memory(s->inner, base, bytes);
}

static void spy_remove_memory(sl_reader *r, void *base) {
    spy *s = (spy *)r;
    s->regions--;
    if (s->inner->remove_memory)
        s->inner->remove_memory(s->inner, base);
}

static void spy_close(sl_reader *r) {
    spy *s = (spy *)r;
    if (s->mem)
        assert_true(sl_mem_used(s->mem, SL_USE_SLOTS) > 0);
    s->inner->close(s->inner);
    free(s);
}

spy *spy_open(sl_reader *inner) {
    spy *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->inner = inner;
    s->base = (sl_reader){.name = "spy",
                          .direct = inner->direct,
                          .submit = spy_submit,
                          .collect = spy_collect,
                          .add_memory = spy_add_memory,
                          .remove_memory = spy_remove_memory,
                          .close = spy_close};
    return s;
}

/* ---- readers ---------------------------------------------------------------------------------------------------- */

const reader_case reader_cases[] = {
    {"uring, direct", SL_READER_URING, false},
    {"uring, buffered", SL_READER_URING, true},
    {"pread, direct", SL_READER_PREAD, false},
    {"pread, buffered", SL_READER_PREAD, true},
};
const int reader_case_count = (int)SL_COUNT(reader_cases);

sl_reader *reader_make(const reader_case *c) {
    return reader_faulty(c, NULL);
}

sl_reader *reader_faulty(const reader_case *c, const sl_fault_plan *plan) {
    sl_error err;
    /* Small pieces: the test's small reads are split too. */
    sl_reader_options o = {.kind = c->kind, .buffered = c->buffered, .depth = 4, .piece_bytes = 8192, .faults = plan};
    sl_reader *r = sl_reader_open(&o, &err);
    if (!r && c->kind == SL_READER_URING) {
        printf("SKIP: %s: %s\n", c->name, err.message);
        return NULL;
    }
    assert_non_null(r);
    return r;
}

sl_reader *reader_plain(void) {
    sl_error err;
    sl_reader_options o = {.kind = SL_READER_PREAD, .buffered = true, .depth = 1};
    sl_reader *r = sl_reader_open(&o, &err);
    assert_non_null(r);
    return r;
}

/* ---- stores ----------------------------------------------------------------------------------------------------- */

bool store_try(store *s, const model *m, const store_spec *spec, sl_reader *reader, sl_error *err) {
    *s = (store){.m = m, .guess_same = spec->guess_same};
    uint64_t budget = spec->budget ? spec->budget : 1u << 30, slab = spec->slab_bytes ? spec->slab_bytes : 65536;
    s->mem = spec->pieces ? sl_mem_new_gathered(budget, slab, spec->pieces, err) : sl_mem_new(budget, slab, err);
    assert_non_null(s->mem);
    sl_experts_options o = {.layers = m->layer,
                            .layer_count = m->spec.layers,
                            .top_k = spec->top_k,
                            .mem = s->mem,
                            .max_bytes = spec->max_bytes,
                            .max_slots = spec->max_slots,
                            .reader = reader,
                            .prefetch = spec->prefetch,
                            .policy = spec->policy,
                            .learn = spec->learn,
                            .log = spec->log};
    experts_files files = {(const sl_file *const *)m->file, m->spec.files, reader->direct};
    s->e = experts_open(&o, &files, err);
    if (!s->e) {
        sl_mem_free(s->mem);
        return false;
    }
    s->source = sl_experts_source(s->e);
    return true;
}

void store_make(store *s, const model *m, const store_spec *spec, sl_reader *reader) {
    sl_error err;
    if (!store_try(s, m, spec, reader, &err))
        fail_msg("%s", err.message);
}

void store_free(store *s) {
    sl_experts_close(s->e);
    assert_int_equal(sl_mem_used(s->mem, SL_USE_SLOTS), 0);
    assert_true(sl_mem_peak(s->mem) <= sl_mem_budget(s->mem));
    sl_mem_free(s->mem);
}

sl_experts_stats store_stats(const store *s) {
    sl_experts_stats st;
    sl_experts_stats_get(s->e, &st);
    return st;
}

void store_guess(store *s, const int32_t *ids, int32_t n) {
    s->guess = ids;
    s->guesses = n;
}

void store_begin(store *s, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order) {
    sl_error err;
    if (!s->source.begin(s->source.self, layer, ids, n, order, &err))
        fail_msg("%s", err.message);
    if (s->guesses == 0 && s->guess_same)
        store_guess(s, ids, n);
    if (s->guesses && s->source.wants_guess(s->source.self))
        s->source.guess(s->source.self, s->guess, s->guesses);
    s->guesses = 0;
}

static bool holds_id(const int32_t *ids, int32_t n, int32_t id) {
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

int store_run(store *s, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, int hold) {
    sl_expert_view view[64];
    sl_error err;
    uint8_t seen[4096] = {0};
    int32_t last = -1, given = 0;
    int failed = 0;
    assert_true(hold <= (int)SL_COUNT(view));
    store_begin(s, layer, ids, n, order);
    for (int got; (got = s->source.next(s->source.self, view, hold, &err)) != 0;) {
        for (int i = 0; i < (got < 0 ? 1 : got); i++) {
            assert_true(holds_id(ids, n, view[i].id));
            assert_false(seen[view[i].id]);
            seen[view[i].id] = 1;
            given++;
            if (order == SL_ORDER_ASCENDING)
                assert_true(view[i].id > last);
            last = view[i].id;
        }
        if (got < 0) {
            failed++;
            assert_true(err.code != SL_OK && err.message[0]);
            continue;
        }
        /* All at once: a slot given to two experts would show. */
        for (int i = 0; i < got; i++)
            model_check(s->m, layer, &view[i]);
        s->source.done(s->source.self, view, got);
    }
    assert_int_equal(given, n);
    s->source.end(s->source.self);
    return failed;
}

bool store_has(const store *s, int32_t layer, int32_t expert) {
    return s->e->layer[layer].slot[expert] != NULL;
}

void store_settle(store *s) {
    while (s->e->in_flight > 0)
        experts_fetch_wait(s->e);
}
