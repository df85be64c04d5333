/* From ids back to bytes. */
#include "text/tokenizer_internal.h"

#include <string.h>

/* Bytes of an id that the tokenizer has. */
static bool append_piece(const sl_tokenizer *t, int32_t id, text_scratch *s, sl_buf *out, sl_error *err) {
    sl_str piece = text_vocab_get(&t->vocab, id);
    const char *p = piece.p;
    size_t n = piece.n;
    if (!(t->attr[id] & TEXT_ATTR_ADDED) &&
        !text_edits_run(&t->decoder, &s->matcher, &s->normal, &s->spare, piece.p, piece.n, &p, &n, err))
        return false;
    return sl_buf_append(out, p, n) || text_no_memory(err);
}

static bool hidden(const sl_tokenizer *t, int32_t id, bool special) {
    return !text_vocab_has(&t->vocab, id) || (!special && (t->attr[id] & TEXT_ATTR_CONTROL));
}

bool sl_decode_piece(const sl_tokenizer *t, int32_t id, bool special, sl_buf *out) {
    if (id < 0 || (size_t)id >= t->vocab.size)
        return false;
    if (hidden(t, id, special))
        return true;
    text_scratch s = {0};
    bool ok = append_piece(t, id, &s, out, NULL);
    text_scratch_free(&s);
    return ok;
}

/* Whether encoding put the mark at the front of ids[i] there by itself. */
static bool has_lead(const sl_tokenizer *t, const int32_t *ids, size_t i) {
    static const char mark[] = "\xe2\x96\x81";
    sl_str piece = text_vocab_get(&t->vocab, ids[i]);
    if (t->lead == TEXT_LEAD_NONE || (t->attr[ids[i]] & TEXT_ATTR_ADDED) || piece.n < 3 ||
        memcmp(piece.p, mark, 3) != 0)
        return false;
    if (i == 0)
        return true;
    if (t->lead == TEXT_LEAD_EACH)
        return (t->attr[ids[i - 1]] & TEXT_ATTR_ADDED) != 0;
    return i == t->before.count && memcmp(ids, t->before.at, i * sizeof *ids) == 0;
}

bool sl_decode_ids(const sl_tokenizer *t, const int32_t *ids, size_t n, bool special, sl_buf *out, sl_error *err) {
    text_scratch s = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= t->vocab.size) {
            ok = sl_fail(err, SL_ERR_ARGUMENT, "%s: token %zu is %d; ids are 0..%zu", t->name, i, (int)ids[i],
                         t->vocab.size ? t->vocab.size - 1 : 0);
            break;
        }
        if (hidden(t, ids[i], special))
            continue;
        size_t begin = out->size;
        ok = append_piece(t, ids[i], &s, out, err);
        if (ok && has_lead(t, ids, i) && out->size > begin && out->data[begin] == ' ') {
            memmove(out->data + begin, out->data + begin + 1, out->size - begin);
            out->size--;
        }
    }
    text_scratch_free(&s);
    return ok && (sl_buf_append(out, "", 0) || text_no_memory(err));
}
