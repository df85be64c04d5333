/* safetensors headers. Input: u16 bytes of data after the header, then the header's JSON; the length in front of it is
 * made here (but for inputs that begin with ff ff, which are whole files). */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok) {
    if (!ok) {
        abort();
    }
}

static void check_tensors(const sl_safetensors *s, uint64_t file_size) {
    uint64_t at = s->data_offset;
    for (size_t i = 0; i < s->count; i++) {
        const ckpt_raw *t = &s->tensors[i];
        check(t->name && t->dtype && t->dims >= 0 && t->dims <= CKPT_RAW_DIMS && t->at.offset == at);
        at += t->at.bytes;
    }
    check(at == file_size);
}

static void parse(const uint8_t *bytes, uint64_t n, uint64_t file_size) {
    sl_error err = {0};
    sl_safetensors *s = sl_safetensors_parse(bytes, n, file_size, "fuzz", &err);
    check(s || err.code != SL_OK);
    if (s) {
        check_tensors(s, file_size);
    }
    sl_safetensors_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    uint64_t json = size - 2;
    if (data[0] == 0xff && data[1] == 0xff) {
        parse(data + 2, json, json);
        return 0;
    }
    uint8_t *file = malloc(8 + json);
    check(file != NULL);
    for (int i = 0; i < 8; i++) {
        file[i] = (uint8_t)(json >> 8 * i);
    }
    memcpy(file + 8, data + 2, json);
    parse(file, 8 + json, 8 + json + data[0] + 256u * data[1]);
    free(file);
    return 0;
}
