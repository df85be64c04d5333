#include "support_edit.h"

#include "quant/quant.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/arch/"

static void read_tensor(edit *e, const char *name, json_t *entry, const uint8_t *data) {
    edit_tensor *t = &e->tensor[e->count++];
    json_t *shape = json_object_get(entry, "shape"), *at = json_object_get(entry, "data_offsets");
    assert_true(e->count <= EDIT_TENSORS);
    t->name = sl_strdup(name);
    snprintf(t->dtype, sizeof t->dtype, "%s", json_string_value(json_object_get(entry, "dtype")));
    t->dims = (int)json_array_size(shape);
    for (int i = 0; i < t->dims; i++)
        t->shape[i] = json_integer_value(json_array_get(shape, (size_t)i));
    size_t begin = (size_t)json_integer_value(json_array_get(at, 0)),
           end = (size_t)json_integer_value(json_array_get(at, 1));
    t->size = end - begin;
    t->bytes = malloc(t->size);
    memcpy(t->bytes, data + begin, t->size);
}

static void read_file(edit *e, const char *path) {
    sl_error err;
    size_t size;
    char *text = sl_read_text(path, 1 << 24, &size, &err);
    assert_non_null(text);
    uint64_t n;
    memcpy(&n, text, 8);
    json_t *header = json_loadb(text + 8, n, 0, NULL), *entry;
    assert_non_null(header);
    const char *name;
    json_object_foreach(header, name, entry) if (strcmp(name, "__metadata__") != 0)
        read_tensor(e, name, entry, (const uint8_t *)text + 8 + n);
    json_decref(header);
    free(text);
}

edit *edit_open(const char *name) {
    edit *e = calloc(1, sizeof *e);
    char path[600];
    const char *root = getenv("TMPDIR");
    e->dir = sl_asprintf("%s/sluice-model-XXXXXX", root ? root : "/tmp");
    assert_non_null(mkdtemp(e->dir));
    snprintf(path, sizeof path, GOLDEN "%s/config.json", name);
    e->config = json_load_file(path, 0, NULL);
    assert_non_null(e->config);
    snprintf(path, sizeof path, GOLDEN "%s", name);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n > 12 && strcmp(f->d_name + n - 12, ".safetensors") == 0) {
            snprintf(path, sizeof path, GOLDEN "%s/%s", name, f->d_name);
            read_file(e, path);
        }
    }
    closedir(d);
    return e;
}

void edit_close(edit *e) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char *path = sl_path_join(e->dir, files[i]);
        unlink(path);
        free(path);
    }
    rmdir(e->dir);
    for (int i = 0; i < e->count; i++) {
        free(e->tensor[i].name);
        free(e->tensor[i].bytes);
    }
    json_decref(e->config);
    free(e->dir);
    free(e);
}

static json_t *header_of(const edit *e) {
    json_t *h = json_object();
    size_t at = 0;
    for (int i = 0; i < e->count; i++) {
        const edit_tensor *t = &e->tensor[i];
        json_t *shape = json_array();
        for (int k = 0; k < t->dims; k++)
            json_array_append_new(shape, json_integer(t->shape[k]));
        json_object_set_new(h, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + t->size)));
        at += t->size;
    }
    return h;
}

const char *edit_write(edit *e) {
    char *path = sl_path_join(e->dir, "config.json");
    if (e->config)
        assert_int_equal(json_dump_file(e->config, path, 0), 0);
    free(path);
    json_t *h = header_of(e);
    char *text = json_dumps(h, JSON_COMPACT);
    uint64_t n = strlen(text);
    path = sl_path_join(e->dir, "model.safetensors");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(&n, 8, 1, f);
    fwrite(text, 1, n, f);
    for (int i = 0; i < e->count; i++)
        fwrite(e->tensor[i].bytes, 1, e->tensor[i].size, f);
    assert_int_equal(fclose(f), 0);
    free(path);
    free(text);
    json_decref(h);
    return e->dir;
}

edit_tensor *edit_find(edit *e, const char *name) {
    for (int i = 0; i < e->count; i++)
        if (strcmp(e->tensor[i].name, name) == 0)
            return &e->tensor[i];
    fail_msg("the golden checkpoint has no tensor %s", name);
    return NULL;
}

void edit_remove(edit *e, const char *name) {
    edit_tensor *t = edit_find(e, name);
    free(t->name);
    free(t->bytes);
    *t = e->tensor[--e->count];
}

edit_tensor *edit_copy(edit *e, const char *name, const char *new_name) {
    const edit_tensor *from = edit_find(e, name);
    edit_tensor *to = &e->tensor[e->count++];
    assert_true(e->count <= EDIT_TENSORS);
    *to = *from;
    to->name = sl_strdup(new_name);
    to->bytes = malloc(to->size);
    memcpy(to->bytes, from->bytes, to->size);
    return to;
}

static size_t element_bytes(const char *dtype) {
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "U32") == 0 ? 4 : 2;
}

void edit_shape(edit_tensor *t, int dims, int64_t a, int64_t b) {
    size_t size = (size_t)(dims == 2 ? a * b : a) * element_bytes(t->dtype);
    uint8_t *bytes = calloc(1, size);
    memcpy(bytes, t->bytes, size < t->size ? size : t->size);
    free(t->bytes);
    t->bytes = bytes;
    t->size = size;
    t->dims = dims;
    t->shape[0] = a;
    t->shape[1] = b;
}

void edit_bf16(edit_tensor *t, int64_t i, float value) {
    uint16_t h = sl_f32_to_bf16(value);
    assert_string_equal(t->dtype, "BF16");
    memcpy(t->bytes + 2 * i, &h, 2);
}

void edit_config(edit *e, const char *field, const char *json) {
    if (!json)
        json_object_del(e->config, field);
    else {
        json_t *v = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        json_object_set_new(e->config, field, v);
    }
}
