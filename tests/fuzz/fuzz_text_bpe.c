/* Any text through small tokenizers that can represent every byte: what comes back is what went in, and plain text
 * gives no control token. The first byte chooses the tokenizer and whether control tokens count. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTE_LEVEL, SPLITTING, SENTENCEPIECE, KINDS };

static const char *const heads[KINDS] = {
    [BYTE_LEVEL] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},",
    [SPLITTING] = "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_"
                  "digits\":true},{\"type\":"
                  "\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+| "
                  "?[^\\\\s\\\\p{L}\\\\p{N}]+"
                  "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},{\"type\":"
                  "\"ByteLevel\","
                  "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},",
    [SENTENCEPIECE] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{"
        "\"type\":"
        "\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},\"decoder\":{\"type\":\"Sequence\","
        "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},"
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},",
};

static void put_byte(sl_buf *b, int kind, int i) {
    if (kind == SENTENCEPIECE)
        sl_buf_printf(b, "\"<0x%02X>\":%d,", (unsigned)i, i);
    else if ((i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || i >= 0xae)
        sl_buf_printf(b, "\"\\u%04x\":%d,", (unsigned)i, i);
    else /* the other bytes are U+0100.. in order */
        sl_buf_printf(b, "\"\\u%04x\":%d,", 0x100u + (unsigned)(i <= 0x20 ? i : i <= 0xa0 ? i - 0x7f + 33 : 67), i);
}

static sl_tokenizer *make(int kind) {
    sl_buf b = {0};
    sl_buf_puts(&b, heads[kind]);
    sl_buf_puts(&b, "\"added_tokens\":[{\"id\":400,\"content\":\"<s>\",\"special\":true},{\"id\":401,\"content\":\"<s>"
                    "a\",\"normalized\":false},"
                    "{\"id\":402,\"content\":\"\\n\\n\",\"normalized\":false}],\"model\":{\"type\":\"BPE\",\"byte_"
                    "fallback\":true,\"vocab\":{");
    for (int i = 0; i < 256; i++)
        put_byte(&b, kind, i);
    if (kind == SENTENCEPIECE)
        sl_buf_puts(&b, "\"\u2581\":300,\"a\":301,\"b\":302,\"ab\":303,\"\u2581"
                        "a\":304,\"\u2581\u2581\":305,\"aa\":306,\"aaaa\":307},"
                        "\"merges\":[\"a b\",\"\u2581 a\",\"\u2581 \u2581\",\"a a\",\"aa aa\"]}}");
    else
        sl_buf_puts(&b, "\"ab\":256,\"abab\":257,\"aa\":258,\"\u0120"
                        "a\":259,\"\u0120\u0120\":260,\"\u00c3\u00a9\":261},"
                        "\"merges\":[\"a b\",\"ab ab\",\"a a\",\"\u0120 a\",\"\u0120 \u0120\",\"\u00c3 \u00a9\"]}}");
    sl_error err = {0};
    sl_tokenizer *t = sl_tokenizer_from_json(b.data, b.size, NULL, "built in", &err);
    if (!t) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    sl_buf_free(&b);
    return t;
}

static bool representable(int kind, const char *text, size_t n) {
    return kind != SENTENCEPIECE || !memmem(text, n, "\u2581", 3); /* SentencePiece's space */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sl_tokenizer *tokenizers[KINDS];
    if (size < 1)
        return 0;
    int kind = data[0] % KINDS;
    bool special = data[0] & 64;
    if (!tokenizers[kind])
        tokenizers[kind] = make(kind);
    const sl_tokenizer *t = tokenizers[kind];
    const char *text = (const char *)data + 1;
    size_t n = size - 1, count;
    int32_t *ids;
    sl_buf out = {0};
    if (!sl_encode(t, text, n, (sl_encode_options){.special = special}, &ids, &count, NULL) ||
        !sl_decode_ids(t, ids, count, true, &out, NULL))
        abort();
    if (representable(kind, text, n) && (out.size != n || memcmp(out.data, text, n) != 0))
        abort();
    for (size_t i = 0; i < count; i++)
        if (!special && sl_tokenizer_is_control(t, ids[i]))
            abort();
    sl_buf_free(&out);
    free(ids);
    return 0;
}
