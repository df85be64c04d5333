#include "support_checkpoint.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *make_dir(void) {
    const char *root = getenv("TMPDIR");
    char *dir = sl_asprintf("%s/sluice-checkpoint-XXXXXX", root ? root : "/tmp");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where) {
    return remove(path);
}

void remove_dir(char *dir) {
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
}

const char *in_dir(const char *dir, const char *name) {
    static char paths[8][1024];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

void write_file(const char *dir, const char *name, const void *bytes, size_t n) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *slash = path + strlen(dir) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0777);
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void write_text(const char *dir, const char *name, const char *text) {
    write_file(dir, name, text, strlen(text));
}

void expect_error(const sl_error *err, sl_code code, ...) {
    va_list ap;
    va_start(ap, code);
    for (const char *text; (text = va_arg(ap, const char *));) {
        if (!strstr(err->message, text)) {
            fail_msg("error \"%s\" lacks \"%s\"", err->message, text);
        }
    }
    va_end(ap);
    if (err->code != code) {
        fail_msg("error \"%s\" has code %d, expected %d", err->message, (int)err->code, (int)code);
    }
    assert_null(strchr(err->message, '\n'));
}

sl_error poisoned(void) {
    sl_error err;
    memset(&err, 0xa5, sizeof err);
    return err;
}

/* ---- GGUF ---- */

void put(sl_buf *b, const void *bytes, size_t n) {
    assert_true(sl_buf_append(b, bytes, n));
}

void put_u8(sl_buf *b, uint8_t v) {
    put(b, &v, 1);
}

static void put_le(sl_buf *b, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) {
        put_u8(b, (uint8_t)(v >> 8 * i));
    }
}

void put_u32(sl_buf *b, uint32_t v) {
    put_le(b, v, 4);
}

void put_u64(sl_buf *b, uint64_t v) {
    put_le(b, v, 8);
}

void put_str(sl_buf *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

void gguf_begin(sl_buf *b, uint32_t version, uint64_t tensors, uint64_t keys) {
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, keys);
}

void gguf_key(sl_buf *b, const char *key, uint32_t type) {
    put_str(b, key);
    put_u32(b, type);
}

void gguf_key_u32(sl_buf *b, const char *key, uint32_t v) {
    gguf_key(b, key, GGUF_U32);
    put_u32(b, v);
}

void gguf_key_str(sl_buf *b, const char *key, const char *v) {
    gguf_key(b, key, GGUF_STRING);
    put_str(b, v);
}

void gguf_info(sl_buf *b, const char *name, uint32_t type, uint64_t offset, const uint64_t *shape) {
    uint32_t dims = 0;
    while (shape[dims]) {
        dims++;
    }
    put_str(b, name);
    put_u32(b, dims);
    for (uint32_t i = 0; i < dims; i++) {
        put_u64(b, shape[i]);
    }
    put_u32(b, type);
    put_u64(b, offset);
}

void gguf_data(sl_buf *b, size_t align, size_t n) {
    while (b->size % align) {
        put_u8(b, 0);
    }
    for (size_t i = 0; i < n; i++) {
        put_u8(b, (uint8_t)i);
    }
}

sl_gguf *parse_buf(const sl_buf *b, sl_error *err) {
    return sl_gguf_parse((const uint8_t *)b->data, b->size, b->size, "x.gguf", err);
}

/* ---- safetensors ---- */

void safetensors_file(const char *dir, const char *name, const char *header, size_t data_bytes) {
    sl_buf b = {0};
    put_u64(&b, strlen(header));
    put(&b, header, strlen(header));
    gguf_data(&b, 1, data_bytes);
    write_file(dir, name, b.data, b.size);
    sl_buf_free(&b);
}
