#include "support_tokenizer.h"

#include "text/tokenizer_internal.h"

#include <dirent.h>
#include <unistd.h>

/* ---- tokenizer.json --------------------------------------------------------------------------------------------- */

static void put_char(sl_buf *b, int32_t cp) {
    sl_buf_printf(b, "\\u%04x", (unsigned)cp);
}

char *byte_json(const char *model, const char *fields) {
    sl_buf b = {0};
    sl_buf_printf(&b, "{%s", fields);
    if (!strstr(fields, "\"pre_tokenizer\""))
        sl_buf_puts(&b, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},");
    if (!strstr(fields, "\"decoder\""))
        sl_buf_puts(&b, "\"decoder\":{\"type\":\"ByteLevel\"},");
    sl_buf_printf(&b, "\"model\":{\"type\":\"BPE\",%s\"vocab\":{", model);
    for (int i = 0; i < 256; i++) {
        sl_buf_puts(&b, "\"");
        put_char(&b, text_byte_char((uint8_t)i));
        sl_buf_printf(&b, "\":%d,", i);
    }
    sl_buf_puts(&b, "\"he\":256,\"hel\":257,\"lo\":258,\"hello\":259,\"\u0120w\":260,\"\u0120wo\":261},");
    if (!strstr(model, "\"merges\""))
        sl_buf_puts(&b, "\"merges\":[\"h e\",[\"he\",\"l\"],\"l o\",\"hel lo\",\"\u0120 w\",\"\u0120w o\"],");
    b.size--; /* the last comma */
    sl_buf_puts(&b, "}}");
    return sl_buf_take(&b, NULL);
}

char *sentencepiece_json(const char *fields) {
    sl_buf b = {0};
    sl_buf_printf(&b, "{%s", fields);
    if (!strstr(fields, "\"normalizer\"") && !strstr(fields, "\"pre_tokenizer\""))
        sl_buf_puts(
            &b, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
                "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},");
    sl_buf_puts(
        &b,
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
        "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
        "\"vocab\":{\"<unk>\":0,");
    for (int i = 0; i < 256; i++)
        sl_buf_printf(&b, "\"<0x%02X>\":%d,", (unsigned)i, i + 1);
    sl_buf_puts(&b, "\"\u2581\":257,\"a\":258,\"b\":259,\"c\":260,\"ab\":261,\"\u2581a\":262,\"\u2581ab\":263,"
                    "\"\u2581\u2581\":264},"
                    "\"merges\":[\"a b\",\"\u2581 a\",\"\u2581 ab\",\"\u2581 \u2581\"]}}");
    return sl_buf_take(&b, NULL);
}

sl_tokenizer *load(char *json, const char *config) {
    sl_error err = {0};
    json_error_t e;
    json_t *c = config ? json_loads(config, 0, &e) : NULL;
    if (config && !c)
        fail_msg("%s", e.text);
    sl_tokenizer *t = sl_tokenizer_from_json(json, strlen(json), c, "test.json", &err);
    if (!t)
        fail_msg("%s", err.message);
    json_decref(c);
    free(json);
    return t;
}

void expect_message(const sl_error *err, sl_code code, va_list texts) {
    if (err->code != code || strchr(err->message, '\n'))
        fail_msg("code %d, expected %d: %s", (int)err->code, (int)code, err->message);
    for (const char *s; (s = va_arg(texts, const char *));)
        if (!strstr(err->message, s))
            fail_msg("'%s' does not hold '%s'", err->message, s);
}

void expect_no_load(char *json, sl_code code, ...) {
    sl_error err;
    memset(&err, 0x55, sizeof err);
    sl_tokenizer *t = sl_tokenizer_from_json(json, strlen(json), NULL, "test.json", &err);
    if (t)
        fail_msg("loaded: %.200s", json);
    free(json);
    va_list texts;
    va_start(texts, code);
    expect_message(&err, code, texts);
    va_end(texts);
}

void expect_ids(const sl_tokenizer *t, const char *text, sl_encode_options opt, ...) {
    sl_error err = {0};
    int32_t *ids = NULL;
    size_t count = 12345, i = 0;
    if (!sl_encode(t, text, strlen(text), opt, &ids, &count, &err))
        fail_msg("%s", err.message);
    va_list want;
    va_start(want, opt);
    for (int id; (id = va_arg(want, int)) >= 0; i++)
        if (i >= count || ids[i] != id)
            fail_msg("'%s': token %zu is %d, expected %d", text, i, i < count ? (int)ids[i] : -1, id);
    va_end(want);
    if (i != count)
        fail_msg("'%s': %zu tokens, expected %zu; the first too many is %d", text, count, i, (int)ids[i]);
    free(ids);
}

void expect_same_bytes(const sl_tokenizer *t, const char *text, size_t n, bool special) {
    sl_error err = {0};
    int32_t *ids = NULL;
    size_t count;
    sl_buf out = {0};
    if (!sl_encode(t, text, n, (sl_encode_options){.special = special}, &ids, &count, &err) ||
        !sl_decode_ids(t, ids, count, true, &out, &err))
        fail_msg("%s", err.message);
    if (out.size != n || (n && memcmp(out.data, text, n) != 0))
        fail_msg("'%s' came back as '%s'", text, out.data);
    sl_buf_free(&out);
    free(ids);
}

void expect_text(const sl_tokenizer *t, const int32_t *ids, size_t n, bool special, const char *want) {
    sl_error err = {0};
    sl_buf out = {0};
    if (!sl_decode_ids(t, ids, n, special, &out, &err))
        fail_msg("%s", err.message);
    assert_string_equal(out.data, want);
    sl_buf_free(&out);
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

char *make_folder(void) {
    char *folder = sl_strdup("/tmp/sluice-tokenizer-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

void put_file(const char *folder, const char *name, const void *bytes, size_t n) {
    char *path = sl_path_join(folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(path);
}

void remove_folder(char *folder) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char *path = sl_path_join(folder, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
        free(path);
    }
    closedir(d);
    rmdir(folder);
    free(folder);
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------- */

static void put_u32(sl_buf *b, uint32_t v) {
    sl_buf_append(b, &v, 4);
}

static void put_u64(sl_buf *b, uint64_t v) {
    sl_buf_append(b, &v, 8);
}

static void put_string(sl_buf *b, const char *s) {
    put_u64(b, strlen(s));
    sl_buf_puts(b, s);
}

static void put_key(meta_file *f, const char *key, uint32_t type) {
    sl_buf full = {0};
    sl_buf_printf(&full, "%s%s", strchr(key, '.') ? "" : "tokenizer.ggml.", key);
    put_string(&f->body, full.data);
    put_u32(&f->body, type);
    sl_buf_free(&full);
    f->keys++;
}

void meta_text(meta_file *f, const char *key, const char *value) {
    put_key(f, key, 8);
    put_string(&f->body, value);
}

void meta_u32(meta_file *f, const char *key, uint32_t value) {
    put_key(f, key, 4);
    put_u32(&f->body, value);
}

void meta_bool(meta_file *f, const char *key, bool value) {
    put_key(f, key, 7);
    sl_buf_append(&f->body, &(uint8_t){value}, 1);
}

static void put_array(meta_file *f, const char *key, uint32_t type, size_t n) {
    put_key(f, key, 9);
    put_u32(&f->body, type);
    put_u64(&f->body, n);
}

void meta_texts(meta_file *f, const char *key, const char *const *values, size_t n) {
    put_array(f, key, 8, n);
    for (size_t i = 0; i < n; i++)
        put_string(&f->body, values[i]);
}

void meta_ints(meta_file *f, const char *key, const int32_t *values, size_t n) {
    put_array(f, key, 5, n);
    sl_buf_append(&f->body, values, n * 4);
}

void meta_floats(meta_file *f, const char *key, const float *values, size_t n) {
    put_array(f, key, 6, n);
    sl_buf_append(&f->body, values, n * 4);
}

sl_tokenizer *meta_open(meta_file *f, sl_error *err) {
    sl_buf all = {0};
    sl_buf_append(&all, "GGUF", 4);
    put_u32(&all, 3);
    put_u64(&all, 0);
    put_u64(&all, f->keys);
    sl_buf_append(&all, f->body.data, f->body.size);
    char *folder = make_folder(), *path = sl_path_join(folder, "model.gguf");
    put_file(folder, "model.gguf", all.data, all.size);
    sl_ckpt *c = sl_ckpt_open(path, err);
    if (!c)
        fail_msg("%s", err->message);
    sl_tokenizer *t = sl_tokenizer_open(c, err);
    sl_ckpt_close(c);
    free(path);
    remove_folder(folder);
    sl_buf_free(&all);
    sl_buf_free(&f->body);
    return t;
}
