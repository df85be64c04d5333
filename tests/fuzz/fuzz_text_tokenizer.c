/* tokenizer.json of any bytes: loads or says why not; what loads encodes and decodes without fault. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const sl_tokenizer *t, const char *text, size_t n, bool special) {
    sl_error err = {0};
    int32_t *ids;
    size_t count;
    if (!sl_encode(t, text, n, (sl_encode_options){.special = special, .bos_eos = special}, &ids, &count, &err)) {
        if (err.code == SL_OK || strchr(err.message, '\n'))
            abort();
        return;
    }
    sl_buf out = {0};
    if (!sl_decode_ids(t, ids, count, special, &out, &err) && err.code == SL_OK)
        abort();
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= sl_tokenizer_size(t) || !sl_decode_piece(t, ids[i], special, &out))
            abort();
    sl_buf_free(&out);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = " Hello  w\xc3\xa9rld's 123\n\xe4\xb8\xad\xff<s>e\xcc\x81\xf0\x9f\x91\x8d  ";
    sl_error err;
    memset(&err, 0, sizeof err);
    sl_tokenizer *t = sl_tokenizer_from_json((const char *)data, size, NULL, "fuzz", &err);
    if (!t) {
        if (err.code == SL_OK || !err.message[0] || strchr(err.message, '\n'))
            abort();
        return 0;
    }
    use(t, text, sizeof text - 1, true);
    use(t, text, sizeof text - 1, false);
    use(t, (const char *)data, size < 200 ? size : 200, false);
    sl_tokenizer_free(t);
    return 0;
}
