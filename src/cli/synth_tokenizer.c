/* A byte-level BPE tokenizer small enough to be made here, so that a synthetic checkpoint takes any text. */
#include "synth.h"

#include <stdlib.h>
#include <string.h>

/* As Qwen's. */
const char synth_split_regex[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                                 "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const char synth_chat_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* Frequent pairs of English; \304\240 is the byte-level alphabet's space. */
static const char *const merges[] = {"t h",  "h e",        "i n",        "e r",        "a n",
                                     "r e",  "o n",        "a t",        "e n",        "n d",
                                     "th e", "\304\240 t", "\304\240 a", "\304\240 s", "\304\240 the"};

enum { BYTES = 256, CONTROLS = 3 };

/* The printable byte that stands for a byte in byte-level vocabularies: itself where it shows, else one from 256 on. */
static int32_t byte_char(int byte, int *others) {
    bool shows = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    return shows ? byte : BYTES + (*others)++;
}

static char *merged(const char *merge) {
    char *joined = sl_strdup(merge), *space = joined ? strchr(joined, ' ') : NULL;
    if (space)
        memmove(space, space + 1, strlen(space));
    return joined;
}

bool synth_tokenizer_open(synth_tokenizer *t, int vocab, sl_error *err) {
    int others = 0, id = 0;
    static const char *const controls[CONTROLS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    *t = (synth_tokenizer){.vocab = vocab, .merge = merges, .merges = SL_COUNT(merges)};
    t->piece = calloc((size_t)vocab, sizeof *t->piece);
    bool ok = t->piece != NULL;
    for (; ok && id < BYTES; id++) {
        char text[5] = {0};
        sl_utf8_encode(byte_char(id, &others), text);
        ok = (t->piece[id] = sl_strdup(text)) != NULL;
    }
    for (int i = 0; ok && i < t->merges; i++)
        ok = (t->piece[id++] = merged(merges[i])) != NULL;
    t->end = id;
    t->im_start = id + 1;
    t->im_end = id + 2;
    for (int i = 0; ok && i < CONTROLS; i++)
        ok = (t->piece[id++] = sl_strdup(controls[i])) != NULL;
    for (; ok && id < vocab; id++)
        ok = (t->piece[id] = sl_asprintf("[%d]", id)) != NULL;
    if (!ok)
        synth_tokenizer_close(t);
    return ok || sl_fail(err, SL_ERR_MEMORY, "out of memory for a vocabulary of %d", vocab);
}

void synth_tokenizer_close(synth_tokenizer *t) {
    for (int i = 0; t->piece && i < t->vocab; i++)
        free(t->piece[i]);
    free(t->piece);
    *t = (synth_tokenizer){0};
}
