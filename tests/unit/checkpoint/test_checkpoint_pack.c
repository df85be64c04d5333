/* Packs from below: a hand-made checkpoint is packed and opened; pack.json's fields one by one. What is killed, filled
 * up and misused is in tests/e2e/test_pack.py. */
#include "support_checkpoint.h"

#include "checkpoint/pack_doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 3, ROWS = 5, COLS = 32 };

/* Two tensors that stay, one of three experts' 5x32 matrices in Q8_0 (34 bytes a row) for each projection. */
static char *make_source(void) {
    char *dir = make_dir();
    sl_buf b = {0};
    const uint64_t vector[] = {7, 0}, stacked[] = {COLS, ROWS, EXPERTS, 0};
    const char *const names[] = {"gate", "up", "down"};
    gguf_begin(&b, 3, 5, 2);
    gguf_key_str(&b, "general.architecture", "none");
    gguf_key_str(&b, "general.name", "packed");
    gguf_info(&b, "first", 0, 0, vector);
    for (uint64_t i = 0; i < 3; i++) {
        gguf_info(&b, names[i], 8, 32 + 512 * i, stacked); /* 510 bytes each */
    }
    gguf_info(&b, "last", 0, 32 + 512 * 3, vector);
    size_t data = (size_t)sl_round_up(b.size, 32);
    gguf_data(&b, 32, 512 * 3 + 32 + 28);
    for (size_t i = 0; i < 3 * EXPERTS * ROWS; i++) { /* scales that are numbers: 1/16 */
        memcpy(b.data + data + 32 + 512 * (i / (EXPERTS * ROWS)) + 34 * (i % (EXPERTS * ROWS)), "\x00\x2c", 2);
    }
    write_file(dir, "m.gguf", b.data, b.size);
    sl_buf_free(&b);
    return dir;
}

typedef struct fixture {
    char *dir;
    sl_ckpt *source;
    sl_pool *pool;
    size_t tensors[2];
    sl_extent extent[EXPERTS * SL_PACK_PARTS];
    sl_pack_layer layer;
    sl_pack_job job;
} fixture;

static void open_fixture(fixture *f) {
    sl_error err = poisoned();
    const char *const names[] = {"gate", "up", "down"};
    memset(f, 0, sizeof *f);
    f->dir = make_source();
    f->source = sl_ckpt_open(in_dir(f->dir, "m.gguf"), &err);
    f->pool = sl_pool_new(2, &err);
    assert_non_null(f->source);
    f->tensors[1] = 4;
    f->layer = (sl_pack_layer){.layer = 4, .experts = EXPERTS, .extent = f->extent};
    for (int proj = 0; proj < 3; proj++) {
        for (int x = 0; x < EXPERTS; x++) {
            sl_tensor t;
            assert_true(sl_tensor_slice(sl_ckpt_find(f->source, names[proj]), x, &t, &err));
            f->extent[x * SL_PACK_PARTS + proj * 3] = t.part[0];
            if (x == 0) {
                f->layer.proj[proj] = t;
            }
        }
    }
    f->job = (sl_pack_job){.source = f->source,
                           .out = strdup(in_dir(f->dir, "out")),
                           .tensors = f->tensors,
                           .tensor_count = 2,
                           .layers = &f->layer,
                           .layer_count = 1,
                           .pool = f->pool};
}

static void close_fixture(fixture *f) {
    free((char *)f->job.out);
    sl_pool_free(f->pool);
    sl_ckpt_close(f->source);
    remove_dir(f->dir);
}

static void write_pack(fixture *f) {
    sl_error err = poisoned();
    sl_pack_writer *w = sl_pack_writer_open(&f->job, &err);
    if (!w || !sl_pack_writer_run(w, NULL, &err)) {
        fail_msg("%s", err.message);
    }
    sl_pack_writer_close(w);
}

static void expect_same(const sl_ckpt *a, const sl_extent *x, const sl_ckpt *b, const sl_extent *y) {
    uint8_t p[1024], q[1024];
    sl_error err;
    assert_true(x->bytes == y->bytes && x->bytes <= sizeof p);
    assert_true(sl_file_read(sl_ckpt_file(a, x->file), x->offset, p, x->bytes, &err));
    assert_true(sl_file_read(sl_ckpt_file(b, y->file), y->offset, q, y->bytes, &err));
    assert_memory_equal(p, q, x->bytes);
}

static void every_part_is_the_sources(void **state) {
    fixture f;
    sl_error err = poisoned();
    open_fixture(&f);
    write_pack(&f);
    sl_ckpt *c = sl_ckpt_open(f.job.out, &err);
    assert_non_null(c);
    assert_true(sl_ckpt_is_pack(c) && sl_ckpt_get_kind(c) == SL_CKPT_GGUF && sl_ckpt_tensor_count(c) == 2);
    expect_same(f.source, &sl_ckpt_find(f.source, "last")->part[0], c, &sl_ckpt_find(c, "last")->part[0]);
    assert_null(sl_ckpt_packed(c, 0));
    const sl_packed_experts *e = sl_ckpt_packed(c, 4);
    assert_true(e && e->experts == EXPERTS && e->proj[1].format == SL_Q8_0 && e->proj[1].shape[0] == ROWS);
    for (int i = 0; i < EXPERTS * SL_PACK_PARTS; i++) {
        if (f.extent[i].bytes) {
            expect_same(f.source, &f.extent[i], c, &e->extent[i]);
            assert_int_equal(e->extent[i].offset % SL_PACK_PART_ALIGN, 0);
        } else {
            assert_int_equal(e->extent[i].bytes, 0);
        }
    }
    sl_str name;
    assert_true(sl_gguf_str(c, "general.name", &name) && name.n == 6 && memcmp(name.p, "packed", 6) == 0);
    sl_ckpt_close(c);
    close_fixture(&f);
}

/* The weights of one matrix. */
static void read_weights(const sl_ckpt *c, const sl_tensor *t, const sl_extent *x, float w[ROWS * COLS]) {
    static uint8_t bytes[3][1024];
    sl_matrix m;
    sl_error err;
    assert_true(sl_tensor_matrix(t, &m, &err));
    for (int i = 0; i < t->parts; i++) {
        assert_true(sl_file_read(sl_ckpt_file(c, x[i].file), x[i].offset, bytes[i], x[i].bytes, &err));
        m.part[i] = bytes[i];
    }
    for (int row = 0; row < ROWS; row++) {
        sl_format_get(m.format)->dequantize(&m, row, 0, COLS, w + row * COLS);
    }
}

/* A step of 8 bits over a row's range of 256 / 16. */
static void expect_near(const sl_ckpt *a, const sl_tensor *s, const sl_extent *x, const sl_ckpt *b, const sl_tensor *t,
                        const sl_extent *y) {
    float p[ROWS * COLS], q[ROWS * COLS];
    read_weights(a, s, x, p);
    read_weights(b, t, y, q);
    for (int i = 0; i < ROWS * COLS; i++) {
        if (!(p[i] - q[i] < 0.04f && q[i] - p[i] < 0.04f)) {
            fail_msg("weight %d: %g became %g", i, (double)p[i], (double)q[i]);
        }
    }
}

/* gate and up alternate in the source's "gate": 5 rows of it are 3 rows of gate and 2 of up. */
static void rows_that_alternate_are_brought_together(void **state) {
    enum { ROW = 34 };
    fixture f;
    uint8_t from[ROWS * ROW], to[ROWS * ROW];
    sl_error err = poisoned();
    open_fixture(&f);
    for (int proj = 0; proj < 2; proj++) {
        sl_tensor *t = &f.layer.proj[proj];
        t->shape[0] = proj ? 2 : 3;
        t->part[0].bytes = (uint64_t)t->shape[0] * ROW;
        f.layer.stride[proj][0] = 2 * ROW;
        for (int x = 0; x < EXPERTS; x++) {
            sl_extent *e = &f.extent[x * SL_PACK_PARTS];
            e[proj * 3] = (sl_extent){e->file, e->offset + (uint64_t)proj * ROW, (uint64_t)(ROWS - proj) * ROW};
        }
    }
    write_pack(&f);
    sl_ckpt *c = sl_ckpt_open(f.job.out, &err);
    assert_non_null(c);
    const sl_packed_experts *e = sl_ckpt_packed(c, 4);
    for (int x = 0; x < EXPERTS; x++) {
        const sl_extent *s = &f.extent[x * SL_PACK_PARTS], *p = &e->extent[x * SL_PACK_PARTS];
        assert_true(sl_file_read(sl_ckpt_file(f.source, 0), s->offset, from, sizeof from, &err));
        assert_true(p[0].bytes == 3 * ROW && p[3].bytes == 2 * ROW);
        assert_true(sl_file_read(sl_ckpt_file(c, p[0].file), p[0].offset, to, 3 * ROW, &err));
        assert_true(sl_file_read(sl_ckpt_file(c, p[3].file), p[3].offset, to + 3 * ROW, 2 * ROW, &err));
        for (int row = 0; row < ROWS; row++) {
            assert_memory_equal(to + (row % 2 ? 3 + row / 2 : row / 2) * ROW, from + row * ROW, ROW);
        }
    }
    sl_ckpt_close(c);
    close_fixture(&f);
}

static void requantised_experts_are_near(void **state) {
    fixture f;
    sl_error err = poisoned();
    uint64_t damaged = 1;
    open_fixture(&f);
    f.job.affine = (sl_pack_affine){.bits = 8, .group = 32};
    write_pack(&f);
    sl_ckpt *c = sl_ckpt_open(f.job.out, &err);
    assert_non_null(c);
    const sl_packed_experts *e = sl_ckpt_packed(c, 4);
    assert_true(e->proj[2].format == SL_AFFINE8 && e->proj[2].group == 32 && e->proj[2].parts == 3);
    assert_string_equal(sl_ckpt_pack_note(c), "experts requantised to 8 bits in groups of 32");
    for (int x = 0; x < EXPERTS; x++) {
        expect_near(f.source, &f.layer.proj[1], &f.extent[x * SL_PACK_PARTS + 3], c, &e->proj[1],
                    &e->extent[x * SL_PACK_PARTS + 3]);
    }
    sl_ckpt_close(c);
    assert_true(sl_ckpt_verify_pack(f.job.out, NULL, NULL, &damaged, &err) && damaged == 0);
    close_fixture(&f);
}

/* ---- pack.json ----------------------------------------------------------------------------------------------------
 */

typedef struct change {
    const char *old, *fresh, *word;
} change;

/* Each field out of its bounds: with a right checksum, the field is named. */
static void every_field_is_checked(void **state) {
    static const change changes[] = {
        {"\"sluice_pack\": 1", "\"sluice_pack\": 7", "version 7, expected 1"},
        {"\"kind\": \"gguf\"", "\"kind\": \"gguF\"", "source.kind"},
        {"\"m.gguf\"", "\"../gguf\"", "source.files"},
        {"[\"metadata.gguf\"", "[\"pack.json\"", "files[0]"},
        {"\"resident\": {\"bytes\": ", "\"resident\": {\"bytes\": -", "resident.bytes"},
        {"\"name\": \"first\"", "\"name\": \"last\"", "last"},
        {"\"format\": \"F32\"", "\"format\": \"F99\"", "F99"},
        {"\"shape\": [7]", "\"shape\": [8]", "resident.tensors[0]"},
        {"\"shape\": [7]", "\"shape\": []", "resident.tensors[0]"},
        {"\"shape\": [7]", "\"shape\": [1099511627776, 1099511627776]", "2^48"},
        {"\"parts\": [[0, 28]]", "\"parts\": [[0, 29]]", "resident.tensors[0]"},
        {"\"parts\": [[0, 28]]", "\"parts\": [[0, 28], [256, 0]]", "parts"},
        {"\"parts\": [[0, 28]]", "\"parts\": [[0]]", "parts"},
        {"\"parts\": [[16384, 28]]", "\"parts\": [[16640, 28]]", "16384"},
        {"\"parts\": [[16384, 28]]", "\"parts\": [[0, 28]]", "parts"},
        {"\"parts\": [[16384, 28]]", "\"parts\": [[1638400, 28]]", "inside its file"},
        {"\"layer\": 4", "\"layer\": -4", "layers[0].layer"},
        {"\"file\": \"layer-004.bin\"", "\"file\": \"/etc/passwd\"", "layers[0].file"},
        {"\"parts\": [[256, 170]]", "\"parts\": [[64, 170]]", "layers[0].up.parts"},
        {"\"blobs\": [[0, ", "\"blobs\": [[1, ", "layers[0].blobs[0]"},
        {"\"blobs\": [[0, 682", "\"blobs\": [[0, 680", "layers[0].blobs[0]"},
        {",[16384, 682", ",[0, 682", "layers[0].blobs[1]"},
        {",[16384, 682, \"", ",[16384, 682, \"x", "layers[0].blobs[1]"},
        {"\"layers\": [", "\"layers\": [],\"x\": [", "layers"},
    };
    fixture f;
    size_t n;
    sl_error err = poisoned();
    open_fixture(&f);
    write_pack(&f);
    char path[512];
    snprintf(path, sizeof path, "%s/pack.json", f.job.out);
    char *text = sl_read_text(path, 1 << 20, &n, &err);
    assert_non_null(text);
    for (size_t i = 0; i < SL_COUNT(changes); i++) {
        const change *c = &changes[i];
        char *at = strstr(text, c->old);
        if (!at) {
            fail_msg("no %s in %s", c->old, text);
        }
        char *made = sl_asprintf("%.*s%s%s", (int)(at - text), text, c->fresh, at + strlen(c->old));
        assert_true(pack_doc_seal(made, strlen(made)));
        write_text(f.job.out, "pack.json", made);
        err = poisoned();
        sl_ckpt *opened = sl_ckpt_open(f.job.out, &err);
        if (opened || !strstr(err.message, c->word)) {
            fail_msg("%s -> %s: %s, \"%s\" expected", c->old, c->fresh, opened ? "opened" : err.message, c->word);
        }
        free(made);
    }
    free(text);
    close_fixture(&f);
}

static void a_changed_byte_anywhere_is_seen(void **state) {
    fixture f;
    size_t n;
    sl_error err = poisoned();
    open_fixture(&f);
    write_pack(&f);
    char path[512];
    snprintf(path, sizeof path, "%s/pack.json", f.job.out);
    char *text = sl_read_text(path, 1 << 20, &n, &err);
    assert_non_null(text);
    for (size_t i = 0; i < n; i += 3) {
        text[i] ^= 1;
        err = poisoned();
        pack *p = pack_doc_parse(text, n, path, &err);
        assert_null(p);
        assert_non_null(strstr(err.message, "pack.json"));
        text[i] ^= 1;
    }
    free(text);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_is_the_sources), cmocka_unit_test(rows_that_alternate_are_brought_together),
        cmocka_unit_test(requantised_experts_are_near), cmocka_unit_test(every_field_is_checked),
        cmocka_unit_test(a_changed_byte_anywhere_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
