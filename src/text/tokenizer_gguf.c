/* Tokenizer from GGUF metadata: tokenizer.ggml.model "gpt2" (byte-level BPE) and "llama" (SentencePiece BPE). */
#include "text/tokenizer_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define KEY(k) "tokenizer.ggml." k
#define MARK   "\xe2\x96\x81"

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

typedef struct gguf_tokens {
    const sl_ckpt *c;
    sl_tokenizer *t;
    sl_error *err;
    sl_gguf_array tokens, types, scores;
    bool sentencepiece;
    const text_pre_row *pre; /* NULL: sentencepiece */
} gguf_tokens;

static bool missing(const gguf_tokens *g, const char *key, const char *why) {
    return sl_fail(g->err, SL_ERR_FORMAT, "%s: %s is missing or no array of the right type; %s", g->t->name, key, why);
}

static int64_t type_of(const gguf_tokens *g, uint64_t i) {
    int64_t type = TYPE_NORMAL;
    if (g->types.count)
        sl_gguf_arr_i64(&g->types, i, &type);
    return type;
}

static bool get_flag(const gguf_tokens *g, const char *key, bool fallback) {
    bool v = fallback;
    return sl_gguf_bool(g->c, key, &v) ? v : fallback;
}

/* ---- vocabulary ------------------------------------------------------------------------------------------------- */

static bool get_arrays(gguf_tokens *g) {
    if (!sl_gguf_arr(g->c, KEY("tokens"), &g->tokens) || !g->tokens.strings)
        return missing(g, KEY("tokens"), "the file has no vocabulary");
    uint64_t n = g->tokens.count;
    if (n == 0 || n > TEXT_MAX_ID)
        return sl_fail(g->err, SL_ERR_FORMAT, "%s: " KEY("tokens") " has %llu entries; expected 1..%d", g->t->name,
                       (unsigned long long)n, TEXT_MAX_ID);
    int64_t any;
    double score;
    if (sl_gguf_arr(g->c, KEY("token_type"), &g->types) &&
        (g->types.count != n || !sl_gguf_arr_i64(&g->types, 0, &any)))
        return sl_fail(g->err, SL_ERR_FORMAT, "%s: " KEY("token_type") " has %llu entries; expected %llu integers",
                       g->t->name, (unsigned long long)g->types.count, (unsigned long long)n);
    if (!g->sentencepiece)
        return true;
    if (!sl_gguf_arr(g->c, KEY("scores"), &g->scores) || g->scores.count != n ||
        !sl_gguf_arr_f64(&g->scores, 0, &score))
        return missing(g, KEY("scores"), "a SentencePiece tokenizer needs one score per token");
    return true;
}

static bool is_added(int64_t type) {
    return type == TYPE_CONTROL || type == TYPE_USER || type == TYPE_UNKNOWN;
}

static bool add_pieces(gguf_tokens *g) {
    sl_tokenizer *t = g->t;
    for (uint64_t i = 0; i < g->tokens.count; i++)
        if (!text_vocab_add(&t->vocab, (int32_t)i, g->tokens.strings[i].p, g->tokens.strings[i].n))
            return text_no_memory(g->err);
    if (!text_tokenizer_vocab_done(t, g->err))
        return false;
    for (uint64_t i = 0; i < g->tokens.count; i++) {
        int64_t type = type_of(g, i);
        sl_str s = g->tokens.strings[i];
        if (type == TYPE_BYTE)
            t->attr[i] |= TEXT_ATTR_BYTE;
        if (!is_added(type) || !s.n || text_vocab_find(&t->vocab, s.p, s.n) != (int32_t)i)
            continue;
        text_added token = {.id = (int32_t)i, .content = (char *)s.p, .size = s.n, .special = type != TYPE_USER};
        if (!text_tokenizer_add_token(t, token, g->err))
            return false;
    }
    return true;
}

/* Phi-3's tokens take the white space after them, which GGUF has no field for. */
static void apply_phi3(gguf_tokens *g) {
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    sl_str name = {0};
    char lower[128] = "";
    sl_gguf_str(g->c, "general.name", &name);
    for (size_t i = 0; i < name.n && i + 1 < sizeof lower; i++)
        lower[i] = (char)tolower((unsigned char)name.p[i]);
    if (!strstr(lower, "phi-3") && !strstr(lower, "phi3"))
        return;
    for (size_t i = 0; i < g->t->added.count; i++) {
        text_added *a = &g->t->added.at[i];
        a->rstrip = true;
        for (size_t k = 0; k < SL_COUNT(plain); k++)
            if (strcmp(a->content, plain[k]) == 0)
                a->rstrip = false;
    }
}

/* ---- SentencePiece ---------------------------------------------------------------------------------------------- */

static bool push_edit(gguf_tokens *g, text_edits *to, text_edit_kind kind, const char *from, const char *text) {
    text_edit e = {.kind = kind};
    if (text && !(e.to = sl_strdup(text)))
        return text_no_memory(g->err);
    e.to_size = text ? strlen(text) : 0;
    if (from && !(e.regex = text_regex_literal(from, strlen(from), g->t->name, g->err))) {
        free(e.to);
        return false;
    }
    return text_edits_push(to, e) || text_no_memory(g->err);
}

static bool read_scores(gguf_tokens *g) {
    float *scores = malloc((size_t)g->scores.count * sizeof *scores);
    if (!scores)
        return text_no_memory(g->err);
    bool ok = true;
    for (uint64_t i = 0; ok && i < g->scores.count; i++) {
        double v = 0;
        ok = sl_gguf_arr_f64(&g->scores, i, &v) && v == v;
        scores[i] = (float)v;
        if (!ok)
            sl_fail(g->err, SL_ERR_FORMAT, "%s: " KEY("scores") "[%llu] is no number", g->t->name,
                    (unsigned long long)i);
    }
    ok = ok && text_bpe_merges_from_scores(&g->t->bpe, scores, g->err);
    free(scores);
    return ok;
}

static bool set_up_sentencepiece(gguf_tokens *g) {
    sl_tokenizer *t = g->t;
    t->bpe.byte_fallback = true;
    t->lead = get_flag(g, KEY("add_space_prefix"), true) ? TEXT_LEAD_EACH : TEXT_LEAD_NONE;
    return (t->lead == TEXT_LEAD_NONE || push_edit(g, &t->normalizer, TEXT_PREPEND, NULL, MARK)) &&
           push_edit(g, &t->normalizer, TEXT_REPLACE, " ", MARK) &&
           push_edit(g, &t->decoder, TEXT_REPLACE, MARK, " ") &&
           push_edit(g, &t->decoder, TEXT_BYTE_TOKEN, NULL, NULL) && read_scores(g);
}

/* ---- byte-level BPE --------------------------------------------------------------------------------------------- */

static bool find_pre(gguf_tokens *g) {
    sl_str name = {"default", 7};
    sl_gguf_str(g->c, KEY("pre"), &name);
    g->pre = text_pre_find(name.p, name.n);
    return g->pre || sl_fail(g->err, SL_ERR_UNSUPPORTED, "%s: " KEY("pre") " '%.*s' is not supported", g->t->name,
                             (int)(name.n < 100 ? name.n : 100), name.p);
}

static bool push_splits(gguf_tokens *g) {
    for (size_t i = 0; i < SL_COUNT(g->pre->regex) && g->pre->regex[i]; i++) {
        text_cut cut = {.kind = TEXT_SPLIT, .behavior = TEXT_ISOLATED};
        cut.regex = text_regex_compile(g->pre->regex[i], strlen(g->pre->regex[i]), g->t->name, g->err);
        if (!cut.regex)
            return false;
        if (!text_cuts_push(&g->t->cuts, cut))
            return text_no_memory(g->err);
    }
    return true;
}

/* "left right"; the first space after the first character divides. */
static bool add_merge(gguf_tokens *g, uint64_t i, sl_str line, sl_buf *joined) {
    const char *space = line.n > 1 ? memchr(line.p + 1, ' ', line.n - 1) : NULL;
    if (!space)
        return sl_fail(g->err, SL_ERR_FORMAT,
                       "%s: " KEY("merges") "[%llu] '%.*s': expected two parts with a space between them", g->t->name,
                       (unsigned long long)i, (int)(line.n < 100 ? line.n : 100), line.p);
    size_t left = (size_t)(space - line.p), right = line.n - left - 1;
    sl_buf_clear(joined);
    if (!sl_buf_append(joined, line.p, left) || !sl_buf_append(joined, space + 1, right))
        return text_no_memory(g->err);
    int32_t l = text_vocab_find(&g->t->vocab, line.p, left), r = text_vocab_find(&g->t->vocab, space + 1, right);
    int32_t m = text_vocab_find(&g->t->vocab, joined->data, joined->size);
    if (l < 0 || r < 0 || m < 0)
        return sl_fail(g->err, SL_ERR_FORMAT, "%s: " KEY("merges") "[%llu] '%.*s': %s is not in the vocabulary",
                       g->t->name, (unsigned long long)i, (int)(line.n < 100 ? line.n : 100), line.p,
                       l < 0   ? "the left part"
                       : r < 0 ? "the right part"
                               : "what the two give");
    return text_bpe_add_merge(&g->t->bpe, l, r, (uint32_t)i, m) || text_no_memory(g->err);
}

static bool read_merges(gguf_tokens *g) {
    sl_gguf_array merges;
    if (!sl_gguf_arr(g->c, KEY("merges"), &merges) || !merges.strings || !merges.count)
        return missing(g, KEY("merges"), "a BPE tokenizer cannot work without merges");
    if (merges.count >= UINT32_MAX || !text_bpe_reserve(&g->t->bpe, (size_t)merges.count))
        return text_no_memory(g->err);
    sl_buf joined = {0};
    bool ok = true;
    for (uint64_t i = 0; ok && i < merges.count; i++)
        ok = add_merge(g, i, merges.strings[i], &joined);
    sl_buf_free(&joined);
    return ok;
}

static bool set_up_bpe(gguf_tokens *g) {
    sl_tokenizer *t = g->t;
    t->bpe.byte_level = true;
    t->bpe.ignore_merges = (g->pre->flags & TEXT_PRE_IGNORE_MERGES) != 0;
    return (!(g->pre->flags & TEXT_PRE_NFC) || push_edit(g, &t->normalizer, TEXT_NFC, NULL, NULL)) &&
           push_edit(g, &t->decoder, TEXT_CHAR_BYTES, NULL, NULL) && push_splits(g) && read_merges(g);
}

/* ---- special tokens --------------------------------------------------------------------------------------------- */

/* An id from metadata; `fallback` where the key is absent. -1, also as u32, is how some writers say that there is none.
 */
static int32_t get_id(const gguf_tokens *g, const char *key, int32_t fallback) {
    int64_t id;
    if (!sl_gguf_i64(g->c, key, &id))
        id = fallback;
    return text_vocab_has(&g->t->vocab, id) ? (int32_t)id : -1;
}

static bool has_key(const sl_ckpt *c, const char *key) {
    size_t n = strlen(key);
    for (size_t i = 0; i < sl_gguf_key_count(c); i++) {
        sl_str k = sl_gguf_key(c, i);
        if (k.n == n && memcmp(k.p, key, n) == 0)
            return true;
    }
    return false;
}

/* Ids that decide where a text begins and ends: a wrong one would show only as an answer that never stops. */
static bool check_ids(const gguf_tokens *g) {
    static const char *const keys[] = {KEY("bos_token_id"), KEY("eos_token_id"), KEY("eot_token_id"),
                                       KEY("eom_token_id"), KEY("unknown_token_id")};
    for (size_t i = 0; i < SL_COUNT(keys); i++) {
        int64_t id;
        if (!has_key(g->c, keys[i]))
            continue;
        if (!sl_gguf_i64(g->c, keys[i], &id))
            return sl_fail(g->err, SL_ERR_FORMAT, "%s: field %s is no integer, a token id expected", g->t->name,
                           keys[i]);
        if (!text_vocab_has(&g->t->vocab, id) && id != -1 && id != UINT32_MAX)
            return sl_fail(g->err, SL_ERR_FORMAT, "%s: field %s is %lld, a token id from 0 to %llu expected",
                           g->t->name, keys[i], (long long)id, (unsigned long long)g->tokens.count - 1);
    }
    return true;
}

static bool set_special(gguf_tokens *g) {
    static const char *const stops[] = {KEY("eos_token_id"), KEY("eot_token_id"), KEY("eom_token_id")};
    sl_tokenizer *t = g->t;
    bool spm = g->sentencepiece;
    if (!check_ids(g))
        return false;
    t->bos = get_id(g, KEY("bos_token_id"), spm ? 1 : -1);
    t->eos = get_id(g, KEY("eos_token_id"), spm ? 2 : -1);
    if (spm)
        t->bpe.unk = get_id(g, KEY("unknown_token_id"), 0);
    if (g->pre && (g->pre->flags & TEXT_PRE_NO_BOS) && !sl_gguf_i64(g->c, KEY("bos_token_id"), &(int64_t){0}))
        t->bos = -1;
    for (size_t i = 0; i < SL_COUNT(stops); i++)
        text_tokenizer_set_stop(t, get_id(g, stops[i], -1));
    bool adds_bos = get_flag(g, KEY("add_bos_token"), spm || (g->pre->flags & TEXT_PRE_ADDS_BOS));
    bool adds_eos = get_flag(g, KEY("add_eos_token"), false);
    return (!adds_bos || t->bos < 0 || text_ids_push(&t->before, t->bos) || text_no_memory(g->err)) &&
           (!adds_eos || t->eos < 0 || text_ids_push(&t->after, t->eos) || text_no_memory(g->err));
}

static bool find_model(gguf_tokens *g) {
    sl_str model = {0};
    if (!sl_gguf_str(g->c, KEY("model"), &model))
        return sl_fail(g->err, SL_ERR_FORMAT, "%s: " KEY("model") " is missing; the file has no tokenizer", g->t->name);
    g->sentencepiece = model.n == 5 && memcmp(model.p, "llama", 5) == 0;
    if (g->sentencepiece)
        return true;
    if (model.n != 4 || memcmp(model.p, "gpt2", 4) != 0)
        return sl_fail(g->err, SL_ERR_UNSUPPORTED,
                       "%s: " KEY("model") " '%.*s' is not supported; expected gpt2 or llama", g->t->name,
                       (int)(model.n < 100 ? model.n : 100), model.p);
    return find_pre(g);
}

sl_tokenizer *text_tokenizer_from_gguf(const sl_ckpt *c, sl_error *err) {
    gguf_tokens g = {.c = c, .err = err, .t = text_tokenizer_new(sl_ckpt_path(c), err)};
    if (!g.t)
        return NULL;
    bool ok = find_model(&g) && get_arrays(&g) && add_pieces(&g);
    if (ok) {
        apply_phi3(&g);
        ok = (g.sentencepiece ? set_up_sentencepiece(&g) : set_up_bpe(&g)) && set_special(&g) &&
             text_tokenizer_finish(g.t, err);
    }
    if (ok)
        return g.t;
    sl_tokenizer_free(g.t);
    return NULL;
}
