/* pack.json. Its checksum is put right first, or nothing behind it would ever be read. What is accepted must be whole:
 * places inside their files, layouts that agree, and written again it must say the same. */
#include "checkpoint/pack_doc.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok) {
    if (!ok) {
        abort();
    }
}

static void check_units(const pack_units *u, const char *name) {
    uint64_t after = 0;
    check(u->name && ckpt_plain_name(u->name) && (!name || strcmp(u->name, name) == 0));
    for (size_t i = 0; i < u->count; i++) {
        check(u->v[i].offset >= after && u->v[i].offset % SL_PACK_BLOB_ALIGN == 0);
        after = u->v[i].offset + u->v[i].bytes;
        check(after >= u->v[i].offset && after <= u->bytes);
    }
}

static void check_tensor(const sl_tensor *t, uint64_t begin, uint64_t end) {
    sl_matrix m;
    sl_error err;
    check(t->parts == sl_format_get(t->format)->parts && pack_tensor_matrix(t, &m, &err));
    for (int32_t i = 0; i < t->parts; i++) {
        check(t->part[i].offset >= begin && t->part[i].offset + t->part[i].bytes <= end);
        check(t->part[i].bytes == sl_matrix_part_bytes(&m, i));
    }
}

static void check_pack(const pack *p) {
    check_units(&p->resident, PACK_RESIDENT);
    for (size_t i = 0; i < p->resident.count; i++) {
        const pack_unit *u = &p->resident.v[i];
        check_tensor(&p->tensors[i], u->offset, u->offset + u->bytes);
    }
    for (size_t i = 0; i < p->layer_count; i++) {
        const pack_layer *l = &p->layers[i];
        check_units(&l->file, NULL);
        check(l->packed.experts > 0 && (size_t)l->packed.experts == l->file.count);
        for (int proj = 0; proj < 3; proj++) {
            check_tensor(&l->packed.proj[proj], 0, l->file.v[0].bytes);
        }
    }
}

static void check_again(const pack *p) {
    size_t n = 0, m = 0;
    sl_error err;
    char *text = pack_doc_write(p, true, &n);
    check(text != NULL);
    pack *q = pack_doc_parse(text, n, "again", &err);
    check(q != NULL);
    char *same = pack_doc_write(q, true, &m);
    check(same && n == m && memcmp(text, same, n) == 0);
    free(text);
    free(same);
    pack_free(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    sl_error err = {0};
    check(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    pack_doc_seal(text, size);
    pack *p = pack_doc_parse(text, size, "pack.json", &err);
    check(p || (err.code != SL_OK && !strchr(err.message, '\n')));
    if (p) {
        check_pack(p);
        check_again(p);
    }
    pack_free(p);
    free(text);
    return 0;
}
