/* Tokenises a file of strings for tests/e2e/test_tokenizer_reference.py, which compares the ids with those of a
 * reference.
 *
 * SL_TOK_MODEL: a tokenizer.json, a model directory or a GGUF file. SL_TOK_INPUT: records of u32 length and bytes.
 * SL_TOK_OUTPUT: for each record u32 number of ids, the ids (i32), u32 length and the bytes of the decoded text.
 * SL_TOK_SPECIAL=1: control tokens in the text count; SL_TOK_BOS=1: with BOS and EOS. Prints bytes and seconds of
 * encoding. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), exit(1))

static sl_tokenizer *load(const char *path) {
    sl_error err = {0};
    size_t n = strlen(path);
    sl_tokenizer *t;
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        size_t size;
        char *json = sl_read_text(path, 1u << 30, &size, &err);
        t = json ? sl_tokenizer_from_json(json, size, NULL, path, &err) : NULL;
        free(json);
    } else {
        sl_ckpt *c = sl_ckpt_open(path, &err);
        t = c ? sl_tokenizer_open(c, &err) : NULL;
        sl_ckpt_close(c);
    }
    if (!t)
        FAIL("%s\n", err.message);
    return t;
}

static uint32_t get_u32(const char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* Of the processor, so that other work on the machine does not count. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool is_set(const char *name) {
    return getenv(name) && strcmp(getenv(name), "1") == 0;
}

static void put_u32(sl_buf *b, size_t v) {
    uint32_t u = (uint32_t)v;
    if (!sl_buf_append(b, &u, 4))
        FAIL("out of memory\n");
}

int main(void) {
    const char *model = getenv("SL_TOK_MODEL"), *input = getenv("SL_TOK_INPUT"), *output = getenv("SL_TOK_OUTPUT");
    if (!model || !input || !output) {
        printf("SKIP: driven by tests/e2e/test_tokenizer_reference.py (SL_TOK_MODEL, SL_TOK_INPUT, SL_TOK_OUTPUT)\n");
        return 77;
    }
    double start = cpu_seconds();
    sl_tokenizer *t = load(model);
    double load_s = cpu_seconds() - start, spent = 0;
    sl_error err = {0};
    size_t size, text_bytes = 0, records = 0, tokens = 0;
    char *in = sl_read_text(input, 1u << 30, &size, &err);
    if (!in)
        FAIL("%s\n", err.message);
    sl_encode_options opt = {.special = is_set("SL_TOK_SPECIAL"), .bos_eos = is_set("SL_TOK_BOS")};
    sl_buf out = {0};
    for (size_t at = 0; at + 4 <= size;) {
        size_t n = get_u32(in + at), count;
        int32_t *ids;
        if (n > size - at - 4)
            FAIL("%s: record %zu is cut off\n", input, records);
        start = cpu_seconds();
        if (!sl_encode(t, in + at + 4, n, opt, &ids, &count, &err))
            FAIL("record %zu: %s\n", records, err.message);
        spent += cpu_seconds() - start;
        put_u32(&out, count);
        sl_buf text = {0};
        if (!sl_buf_append(&out, ids, count * sizeof *ids) || !sl_decode_ids(t, ids, count, true, &text, &err))
            FAIL("record %zu: %s\n", records, err.message);
        put_u32(&out, text.size);
        if (!sl_buf_append(&out, text.data, text.size))
            FAIL("out of memory\n");
        sl_buf_free(&text);
        free(ids);
        at += 4 + n;
        text_bytes += n;
        tokens += count;
        records++;
    }
    FILE *f = fopen(output, "wb");
    if (!f || fwrite(out.data ? out.data : "", 1, out.size, f) != out.size || fclose(f) != 0)
        FAIL("%s: cannot write\n", output);
    printf("load %.3f s; %zu records, %zu bytes, %zu tokens, encode %.6f s\n", load_s, records, text_bytes, tokens,
           spent);
    sl_buf_free(&out);
    free(in);
    sl_tokenizer_free(t);
    return 0;
}
