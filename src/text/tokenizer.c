/* The tokenizer's public face: what it knows of single ids, and encoding. */
#include "text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

bool text_no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "tokenizer: out of memory");
}

bool text_spans_push(text_spans *s, size_t begin, size_t end) {
    if (s->count == s->capacity && !sl_grow((void **)&s->at, &s->capacity, s->count + 1, sizeof *s->at))
        return false;
    s->at[s->count++] = (text_span){begin, end};
    return true;
}

bool text_ids_push(text_ids *ids, int32_t id) {
    if (ids->count == ids->capacity && !sl_grow((void **)&ids->at, &ids->capacity, ids->count + 1, sizeof *ids->at))
        return false;
    ids->at[ids->count++] = id;
    return true;
}

void text_scratch_free(text_scratch *s) {
    text_matcher_free(&s->matcher);
    sl_buf_free(&s->normal);
    sl_buf_free(&s->spare);
    sl_buf_free(&s->edited);
    sl_buf_free(&s->edit_spare);
    sl_buf_free(&s->shadow);
    sl_buf_free(&s->key);
    free(s->pieces.at);
    free(s->pieces_next.at);
    free(s->symbols);
    free(s->heap);
    free(s->ids.at);
    *s = (text_scratch){0};
}

/* ---- loading ---------------------------------------------------------------------------------------------------- */

sl_tokenizer *text_tokenizer_new(const char *name, sl_error *err) {
    sl_tokenizer *t = calloc(1, sizeof *t);
    if (t && (t->name = sl_strdup(name))) {
        t->bos = t->eos = t->bpe.unk = -1;
        return t;
    }
    free(t);
    return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", name);
}

void sl_tokenizer_free(sl_tokenizer *t) {
    if (!t)
        return;
    text_vocab_free(&t->vocab);
    text_edits_free(&t->normalizer);
    text_edits_free(&t->decoder);
    text_cuts_free(&t->cuts);
    text_bpe_free(&t->bpe);
    text_added_free(&t->added);
    free(t->before.at);
    free(t->after.at);
    free(t->attr);
    free(t->name);
    free(t);
}

bool text_tokenizer_vocab_done(sl_tokenizer *t, sl_error *err) {
    size_t before = t->attr_capacity;
    if (!sl_grow((void **)&t->attr, &t->attr_capacity, t->vocab.size + 1, 1))
        return text_no_memory(err);
    memset(t->attr + before, 0, t->attr_capacity - before);
    t->bpe.vocab = &t->vocab;
    t->bpe.attr = t->attr;
    return true;
}

static bool is_listed(const sl_tokenizer *t, int32_t id) {
    return (t->attr[id] & TEXT_ATTR_ADDED) != 0;
}

static bool is_one_character(const text_added *token) {
    int32_t cp;
    return (size_t)sl_utf8_decode(token->content, token->size, &cp) == token->size;
}

bool text_tokenizer_add_token(sl_tokenizer *t, text_added token, sl_error *err) {
    if (!token.size)
        return true;
    int32_t known = text_vocab_find(&t->vocab, token.content, token.size);
    if (known >= 0) {
        token.id = known;
    } else if (token.id < 0 || token.id > TEXT_MAX_ID) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: added token '%.*s' has id %d; expected 0..%d", t->name,
                       (int)(token.size < 100 ? token.size : 100), token.content, (int)token.id, TEXT_MAX_ID);
    } else if (text_vocab_has(&t->vocab, token.id)) {
        sl_str other = text_vocab_get(&t->vocab, token.id);
        return sl_fail(err, SL_ERR_FORMAT, "%s: added token '%.*s' has id %d, which is '%.*s' in the vocabulary",
                       t->name, (int)(token.size < 100 ? token.size : 100), token.content, (int)token.id,
                       (int)(other.n < 100 ? other.n : 100), other.p);
    } else if (!text_vocab_add(&t->vocab, token.id, token.content, token.size)) {
        return text_no_memory(err);
    }
    if (!text_tokenizer_vocab_done(t, err))
        return false;
    if (is_listed(t, token.id))
        return true;
    /* A character of the alphabet is text whatever the file says (one model pads with "!"): hiding it would lose what
     * users write. */
    token.special &= !(known >= 0 && is_one_character(&token));
    t->attr[token.id] |= TEXT_ATTR_ADDED | (token.special ? TEXT_ATTR_CONTROL : 0);
    return text_added_push(&t->added, token) || text_no_memory(err);
}

void text_tokenizer_set_stop(sl_tokenizer *t, int64_t id) {
    if (text_vocab_has(&t->vocab, id))
        t->attr[id] |= TEXT_ATTR_STOP | (is_listed(t, (int32_t)id) ? TEXT_ATTR_CONTROL : 0);
}

/* Tokens that end a turn whatever the configuration forgot to say. */
static const char *const turn_ends[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|EOT|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", /* DeepSeek */
    "[e~[",
};

static int32_t find_added(const sl_tokenizer *t, const char *content) {
    int32_t id = text_vocab_find(&t->vocab, content, strlen(content));
    return id >= 0 && is_listed(t, id) ? id : -1;
}

static void mark_turn_ends(sl_tokenizer *t) {
    /* In the harmony format <|end|> ends a message, not the turn. */
    bool harmony = find_added(t, "<|return|>") >= 0 && find_added(t, "<|call|>") >= 0;
    for (size_t i = 0; i < SL_COUNT(turn_ends); i++)
        if (!harmony || strcmp(turn_ends[i], "<|end|>") != 0)
            text_tokenizer_set_stop(t, find_added(t, turn_ends[i]));
    text_tokenizer_set_stop(t, t->eos);
}

bool text_tokenizer_finish(sl_tokenizer *t, sl_error *err) {
    if (!text_tokenizer_vocab_done(t, err))
        return false;
    mark_turn_ends(t);
    for (size_t i = 0; i < t->added.count; i++)
        t->added.at[i].special = (t->attr[t->added.at[i].id] & TEXT_ATTR_CONTROL) != 0;
    return text_added_finish(&t->added, &t->normalizer, err) && text_bpe_finish(&t->bpe, err);
}

/* ---- ids -------------------------------------------------------------------------------------------------------- */

int32_t sl_tokenizer_size(const sl_tokenizer *t) {
    return (int32_t)t->vocab.size;
}
int32_t sl_tokenizer_bos(const sl_tokenizer *t) {
    return t->bos;
}
int32_t sl_tokenizer_eos(const sl_tokenizer *t) {
    return t->eos;
}

bool sl_tokenizer_adds_bos(const sl_tokenizer *t) {
    return t->bos >= 0 && t->before.count > 0 && t->before.at[0] == t->bos;
}

static bool has_attr(const sl_tokenizer *t, int32_t id, int attr) {
    return id >= 0 && (size_t)id < t->vocab.size && (t->attr[id] & attr);
}

bool sl_tokenizer_is_stop(const sl_tokenizer *t, int32_t id) {
    return has_attr(t, id, TEXT_ATTR_STOP);
}
bool sl_tokenizer_is_control(const sl_tokenizer *t, int32_t id) {
    return has_attr(t, id, TEXT_ATTR_CONTROL);
}

int32_t sl_tokenizer_id(const sl_tokenizer *t, const char *piece, size_t n) {
    return text_vocab_find(&t->vocab, piece, n);
}

/* ---- encoding --------------------------------------------------------------------------------------------------- */

typedef struct encoder {
    const sl_tokenizer *t;
    text_scratch s;
    bool special;
    sl_error *err;
} encoder;

/* Text without added tokens. */
static bool encode_pieces(encoder *e, const char *p, size_t n, bool at_start) {
    const char *text;
    if (!text_cuts_run(&e->t->cuts, &e->s, p, n, at_start, &text, e->err))
        return false;
    for (size_t i = 0; i < e->s.pieces.count; i++) {
        text_span piece = e->s.pieces.at[i];
        if (piece.end > piece.begin &&
            !text_bpe_encode(&e->t->bpe, &e->s, text + piece.begin, piece.end - piece.begin, e->err))
            return false;
    }
    return true;
}

static bool encode_section(encoder *e, bool normal, const char *p, size_t n, bool at_start);

static bool encode_between(encoder *e, bool normal, const char *p, size_t n, bool at_start) {
    if (normal)
        return encode_pieces(e, p, n, at_start);
    const char *text;
    size_t size;
    return text_edits_run(&e->t->normalizer, &e->s.matcher, &e->s.normal, &e->s.spare, p, n, &text, &size, e->err) &&
           encode_section(e, true, text, size, at_start);
}

/* Added tokens of one trie and what lies between them. normal: the text is normalised already. */
static bool encode_section(encoder *e, bool normal, const char *p, size_t n, bool at_start) {
    size_t done = 0, from = 0;
    text_hit hit;
    while (text_added_next(&e->t->added, normal, e->special, p, n, done, &from, &hit)) {
        if (hit.begin > done && !encode_between(e, normal, p + done, hit.begin - done, at_start && done == 0))
            return false;
        if (!text_ids_push(&e->s.ids, hit.token->id))
            return text_no_memory(e->err);
        done = hit.end;
    }
    return done >= n || encode_between(e, normal, p + done, n - done, at_start && done == 0);
}

static bool push_all(text_ids *to, const text_ids *from) {
    for (size_t i = 0; i < from->count; i++)
        if (!text_ids_push(to, from->at[i]))
            return false;
    return true;
}

bool sl_encode(const sl_tokenizer *t, const char *text, size_t n, sl_encode_options opt, int32_t **ids, size_t *count,
               sl_error *err) {
    encoder e = {.t = t, .special = opt.special, .err = err};
    bool ok =
        (!opt.bos_eos || push_all(&e.s.ids, &t->before) || text_no_memory(err)) &&
        encode_section(&e, false, text, n, true) &&
        (!opt.bos_eos || push_all(&e.s.ids, &t->after) || text_no_memory(err)) &&
        (e.s.ids.at || sl_grow((void **)&e.s.ids.at, &e.s.ids.capacity, 1, sizeof *e.s.ids.at) || text_no_memory(err));
    if (ok) {
        *ids = e.s.ids.at;
        *count = e.s.ids.count;
        e.s.ids = (text_ids){0};
    }
    text_scratch_free(&e.s);
    return ok;
}
