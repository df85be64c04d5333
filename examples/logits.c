/* The low level: evaluates a text, forks the sequence, and shows what each fork would say next.
 *
 *   example_logits MODEL TEXT CONTINUATION-A CONTINUATION-B
 */
#include <sluice/sluice.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 5 };

/* Appends text to a sequence; logits[vocab] of what follows it. */
static bool append_text(sl_engine *e, sl_seq *s, const char *text, bool begin, float *logits, sl_error *err) {
    int32_t *ids;
    size_t n;
    if (!sl_tokenize(e, text, strlen(text), false, begin, &ids, &n, err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < n; i += 256) { /* any number at once; here pieces that fit an array */
        sl_input in[256];
        size_t k = n - i < 256 ? n - i : 256;
        for (size_t j = 0; j < k; j++)
            in[j] = (sl_input){.seq = s, .token = ids[i + j], .want_logits = i + j == n - 1};
        ok = sl_decode(e, in, k, logits, err);
    }
    sl_free(ids);
    return ok;
}

static void print_top(sl_engine *e, const float *logits, int vocab) {
    int32_t top[TOP];
    int n = 0;
    for (int32_t id = 0; id < vocab; id++) {
        int at = n < TOP ? n++ : TOP;
        for (; at > 0 && logits[id] > logits[top[at - 1]]; at--)
            if (at < TOP)
                top[at] = top[at - 1];
        if (at < TOP)
            top[at] = id;
    }
    for (int i = 0; i < n; i++) {
        char piece[64];
        sl_token_text(e, top[i], piece, sizeof piece);
        printf("  %8.3f  %6d  \"%s\"\n", logits[top[i]], top[i], piece);
    }
}

/* One text with two continuations: the common part is evaluated once, the forks share its KV pages. */
static bool compare(sl_engine *e, char **text, int vocab, float *logits, sl_error *err) {
    sl_seq *base = sl_seq_new(e, err);
    bool ok = base && append_text(e, base, text[0], true, logits, err);
    for (int i = 1; ok && i <= 2; i++) {
        sl_seq *fork = sl_seq_fork(base, err);
        ok = fork && append_text(e, fork, text[i], false, logits, err);
        if (ok) {
            printf("%s|%s (%d tokens)\n", text[0], text[i], sl_seq_length(fork));
            print_top(e, logits, vocab);
        }
        sl_seq_free(fork);
    }
    sl_seq_free(base);
    return ok;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s MODEL TEXT CONTINUATION-A CONTINUATION-B\n", argv[0]);
        return 2;
    }
    sl_error err = {0};
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    sl_engine_info info = {.size = sizeof info};
    o.model = argv[1];
    sl_engine *e = sl_engine_open(&o, &err);
    float *logits = NULL;
    if (e && sl_engine_get_info(e, &info))
        logits = malloc((size_t)info.vocab * sizeof *logits);
    bool ok = logits && compare(e, argv + 2, info.vocab, logits, &err);
    if (!ok)
        fprintf(stderr, "%s: %s\n", argv[0], err.message);
    free(logits);
    sl_engine_close(e);
    return ok ? 0 : 1;
}
