/* GGUF headers: whatever the bytes, parsing ends in a header whose tensors lie apart inside the file, or in an error.
 */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok) {
    if (!ok) {
        abort();
    }
}

/* Asks for a key as every type, and for elements of its array. */
static void read_key(const sl_gguf *g, const gguf_kv *kv) {
    char *key = sl_strndup(kv->key.p, kv->key.n);
    sl_str s;
    sl_gguf_array a;
    int64_t i;
    double f;
    bool b;
    check(key && gguf_find(g, key) == kv);
    int found =
        gguf_get_str(g, key, &s) + gguf_get_arr(g, key, &a) + (gguf_get_i64(g, key, &i) || gguf_get_f64(g, key, &f));
    check(found == 1);
    gguf_get_bool(g, key, &b);
    if (kv->type == GGUF_ARRAY) {
        for (uint64_t e = 0; e < a.count; e += 1 + a.count / 7) {
            sl_gguf_arr_i64(&a, e, &i);
            sl_gguf_arr_f64(&a, e, &f);
            if (a.type == GGUF_STRING && a.strings[e].n > 0) {
                check(memchr(a.strings[e].p, a.strings[e].p[a.strings[e].n - 1], a.strings[e].n) != NULL);
            }
        }
        check(!sl_gguf_arr_i64(&a, a.count, &i));
    }
    free(key);
}

static void check_tensors(const sl_gguf *g, uint64_t file_size) {
    for (size_t i = 0; i < g->tensor_count; i++) {
        const gguf_tensor *t = &g->tensors[i];
        check(t->offset % g->alignment == g->data_offset % g->alignment && t->offset >= g->data_offset);
        check(t->bytes > 0 && t->offset + t->bytes <= file_size);
        for (size_t j = 0; j < i && i < 50; j++) {
            const gguf_tensor *u = &g->tensors[j];
            check(t->offset + t->bytes <= u->offset || u->offset + u->bytes <= t->offset);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_error err = {0};
    uint64_t need, part = size / 2;
    sl_gguf *g = sl_gguf_parse(data, size, size, "fuzz", &err);
    check(g || err.code != SL_OK);
    for (size_t i = 0; g && i < g->kv_count; i++) {
        read_key(g, &g->kv[i]);
    }
    if (g) {
        check_tensors(g, size);
        /* With fewer bytes at hand the parser asks for more, and never for more than the header. */
        sl_gguf *again = gguf_parse(data, part, size, "fuzz", &need, &err);
        check(again ? g->header_bytes <= part : need > part && need <= g->header_bytes);
        sl_gguf_free(again);
    }
    sl_gguf_free(g);
    return 0;
}
