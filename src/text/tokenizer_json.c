/* Tokenizer from tokenizer.json, with what tokenizer_config.json and generation_config.json add. */
#include "text/json_scan.h"
#include "text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* Values of an object by name, unread. */
typedef struct field {
    const char *name;
    text_json_span span;
} field;

static bool read_fields(text_json *j, field *fields, size_t count) {
    sl_buf key = {0};
    text_json_span span;
    bool first = true, ok = text_json_enter(j, '{');
    int more = 0;
    while (ok && (more = text_json_more(j, '}', &first)) > 0) {
        ok = text_json_key(j, &key) && text_json_skip(j, &span);
        for (size_t i = 0; ok && i < count; i++)
            if (strcmp(fields[i].name, key.data) == 0)
                fields[i].span = span;
    }
    sl_buf_free(&key);
    return ok && more == 0;
}

static bool is_null(text_json_span s) {
    return !s.p || (s.n == 4 && memcmp(s.p, "null", 4) == 0);
}

/* ---- model ------------------------------------------------------------------------------------------------------ */

enum { M_TYPE, M_VOCAB, M_MERGES, M_UNK, M_FUSE, M_FALLBACK, M_IGNORE, M_PREFIX, M_SUFFIX, M_DROPOUT, M_COUNT };

static bool read_vocab(sl_tokenizer *t, text_json j) {
    sl_buf key = {0};
    bool first = true, ok = text_json_enter(&j, '{');
    int more = 0;
    int64_t id;
    while (ok && (more = text_json_more(&j, '}', &first)) > 0) {
        ok = text_json_key(&j, &key) && text_json_integer(&j, &id);
        if (ok && (id < 0 || id > TEXT_MAX_ID))
            ok = text_json_fail(&j, "model.vocab: an id that is negative or above 16777215");
        else if (ok && text_vocab_has(&t->vocab, id))
            ok = text_json_fail(&j, "model.vocab: an id that another piece has");
        else if (ok && !text_vocab_add(&t->vocab, (int32_t)id, key.data, key.size))
            ok = text_json_fail(&j, "model.vocab: out of memory");
    }
    sl_buf_free(&key);
    return ok && more == 0;
}

static bool merge_of_two(text_json *j, sl_buf *left, sl_buf *right) {
    sl_buf *const parts[] = {left, right};
    bool first = true;
    int more = text_json_enter(j, '[') ? 1 : -1;
    for (int i = 0; more == 1 && i < 2; i++) {
        more = text_json_more(j, ']', &first);
        if (more == 1 && !text_json_string(j, parts[i]))
            return false;
        if (more == 0)
            return text_json_fail(j, "model.merges: expected two strings");
    }
    more = more == 1 ? text_json_more(j, ']', &first) : more;
    return more == 1 ? text_json_fail(j, "model.merges: expected two strings") : more == 0;
}

/* A merge is "left right" or ["left", "right"]. */
static bool read_merge(text_json *j, sl_buf *left, sl_buf *right) {
    if (text_json_peek(j) == '[')
        return merge_of_two(j, left, right);
    if (!text_json_string(j, left))
        return false;
    const char *space = memchr(left->data, ' ', left->size);
    if (!space || memchr(space + 1, ' ', left->size - (size_t)(space + 1 - left->data)))
        return text_json_fail(j, "model.merges: expected two parts with one space between them");
    size_t at = (size_t)(space - left->data);
    sl_buf_clear(right);
    if (!sl_buf_append(right, left->data + at + 1, left->size - at - 1))
        return text_json_fail(j, "out of memory");
    left->size = at;
    left->data[at] = 0;
    return true;
}

static bool missing_part(const sl_tokenizer *t, size_t index, const sl_buf *part, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: model.merges[%zu]: '%.100s' is not in the vocabulary", t->name, index,
                   part->data);
}

static bool add_merge(sl_tokenizer *t, size_t index, const sl_buf *left, const sl_buf *right, sl_buf *joined,
                      sl_error *err) {
    /* a continuing prefix stands in front of the right part only as long as it is one */
    size_t skip = t->bpe.prefix ? strlen(t->bpe.prefix) : 0;
    skip = skip > right->size ? right->size : skip;
    sl_buf_clear(joined);
    if (!sl_buf_append(joined, left->data, left->size) ||
        !sl_buf_append(joined, right->data + skip, right->size - skip))
        return text_no_memory(err);
    int32_t l = text_vocab_find(&t->vocab, left->data, left->size);
    int32_t r = text_vocab_find(&t->vocab, right->data, right->size);
    int32_t m = text_vocab_find(&t->vocab, joined->data, joined->size);
    if (l < 0 || r < 0 || m < 0)
        return missing_part(t, index, l < 0 ? left : r < 0 ? right : joined, err);
    return text_bpe_add_merge(&t->bpe, l, r, (uint32_t)index, m) || text_no_memory(err);
}

static bool read_merges(sl_tokenizer *t, text_json j) {
    sl_buf left = {0}, right = {0}, joined = {0};
    bool first = true, ok = text_json_enter(&j, '[');
    int more = 0;
    size_t count = 0;
    while (ok && (more = text_json_more(&j, ']', &first)) > 0) {
        ok = read_merge(&j, &left, &right) &&
             (count < UINT32_MAX - 1 || text_json_fail(&j, "model.merges: too many")) &&
             add_merge(t, count, &left, &right, &joined, j.err);
        count++;
    }
    sl_buf_free(&left);
    sl_buf_free(&right);
    sl_buf_free(&joined);
    if (ok && more == 0 && count == 0)
        return sl_fail(j.err, SL_ERR_FORMAT, "%s: model.merges is empty; a BPE tokenizer cannot work without merges",
                       t->name);
    return ok && more == 0;
}

static bool read_flag(const text_json *j, text_json_span span, const char *what, bool *out) {
    *out = span.n == 4 && memcmp(span.p, "true", 4) == 0;
    if (*out || is_null(span) || (span.n == 5 && memcmp(span.p, "false", 5) == 0))
        return true;
    return sl_fail(j->err, SL_ERR_FORMAT, "%s: model.%s: expected true or false", j->name, what);
}

/* A string that is not empty, else NULL. */
static bool read_affix(const text_json *j, text_json_span span, char **out) {
    *out = NULL;
    if (is_null(span))
        return true;
    text_json at = text_json_at(j, span);
    sl_buf b = {0};
    bool ok = text_json_string(&at, &b);
    if (ok && b.size)
        *out = sl_buf_take(&b, NULL);
    sl_buf_free(&b);
    return ok;
}

static bool check_model(const text_json *j, const field *f) {
    if (!is_null(f[M_TYPE].span)) {
        text_json at = text_json_at(j, f[M_TYPE].span);
        sl_buf type = {0};
        bool ok = text_json_string(&at, &type);
        if (ok && strcmp(type.data, "BPE") != 0)
            ok = sl_fail(j->err, SL_ERR_UNSUPPORTED, "%s: model.type '%s' is not supported; expected BPE", j->name,
                         type.data);
        sl_buf_free(&type);
        if (!ok)
            return false;
    }
    if (is_null(f[M_VOCAB].span))
        return sl_fail(j->err, SL_ERR_FORMAT, "%s: model.vocab is missing", j->name);
    if (is_null(f[M_MERGES].span))
        return sl_fail(j->err, SL_ERR_FORMAT, "%s: model.merges is missing; a BPE tokenizer cannot work without merges",
                       j->name);
    text_json_span dropout = f[M_DROPOUT].span;
    if (!is_null(dropout) && strspn(dropout.p, "0.") < dropout.n)
        return sl_fail(j->err, SL_ERR_UNSUPPORTED, "%s: model.dropout %.*s is not supported", j->name,
                       (int)(dropout.n < 20 ? dropout.n : 20), dropout.p);
    return true;
}

/* All but the merges, which need to know the control tokens. */
static bool read_model(sl_tokenizer *t, text_json j, field *f) {
    static const char *const names[] = {"type",
                                        "vocab",
                                        "merges",
                                        "unk_token",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "dropout"};
    for (int i = 0; i < M_COUNT; i++)
        f[i] = (field){.name = names[i]};
    char *unk = NULL;
    bool ok = read_fields(&j, f, M_COUNT) && check_model(&j, f) &&
              read_flag(&j, f[M_FUSE].span, "fuse_unk", &t->bpe.fuse_unk) &&
              read_flag(&j, f[M_FALLBACK].span, "byte_fallback", &t->bpe.byte_fallback) &&
              read_flag(&j, f[M_IGNORE].span, "ignore_merges", &t->bpe.ignore_merges) &&
              read_affix(&j, f[M_PREFIX].span, &t->bpe.prefix) && read_affix(&j, f[M_SUFFIX].span, &t->bpe.suffix) &&
              read_affix(&j, f[M_UNK].span, &unk) && read_vocab(t, text_json_at(&j, f[M_VOCAB].span)) &&
              text_tokenizer_vocab_done(t, j.err);
    if (ok && unk) {
        t->bpe.unk = text_vocab_find(&t->vocab, unk, strlen(unk));
        if (t->bpe.unk < 0)
            ok = sl_fail(j.err, SL_ERR_FORMAT, "%s: model.unk_token '%.100s' is not in the vocabulary", t->name, unk);
    }
    free(unk);
    return ok;
}

static void mark_byte_tokens(sl_tokenizer *t) {
    if (!t->bpe.byte_fallback)
        return;
    for (size_t i = 0; i < t->vocab.size; i++) {
        sl_str s = text_vocab_get(&t->vocab, (int32_t)i);
        if (s.p && text_byte_token(s.p, s.n) >= 0)
            t->attr[i] |= TEXT_ATTR_BYTE;
    }
}

/* ---- added tokens ----------------------------------------------------------------------------------------------- */

static bool flag(const json_t *j, const char *key) {
    return json_is_true(json_object_get(j, key));
}

static bool add_token(sl_tokenizer *t, const json_t *j, int64_t id, const char *where, sl_error *err) {
    const json_t *content = json_object_get(j, "content");
    if (!json_is_string(content))
        return sl_fail(err, SL_ERR_FORMAT, "%s: %s: an added token without content", t->name, where);
    if (id < 0 || id > TEXT_MAX_ID)
        id = -1;
    bool special = flag(j, "special");
    const json_t *normalized = json_object_get(j, "normalized");
    text_added token = {
        .id = (int32_t)id,
        .content = (char *)json_string_value(content),
        .size = json_string_length(content),
        .special = special,
        .lstrip = flag(j, "lstrip"),
        .rstrip = flag(j, "rstrip"),
        .single_word = flag(j, "single_word"),
        .normalized = json_is_boolean(normalized) ? json_is_true(normalized) : !special,
    };
    return text_tokenizer_add_token(t, token, err);
}

static bool add_tokens(sl_tokenizer *t, const json_t *list, sl_error *err) {
    if (!json_is_array(list))
        return sl_fail(err, SL_ERR_FORMAT, "%s: added_tokens: expected an array", t->name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *j = json_array_get(list, i), *id = json_object_get(j, "id");
        if (!add_token(t, j, json_is_integer(id) ? json_integer_value(id) : -1, "added_tokens", err))
            return false;
    }
    return true;
}

/* tokenizer_config.json: {"151643": {"content": ...}}. Tokens that tokenizer.json has are left as they are there. */
static bool add_config_tokens(sl_tokenizer *t, const json_t *config, sl_error *err) {
    const char *key;
    json_t *j;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, j) {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (*end || !text_vocab_has(&t->vocab, id))
            if (!add_token(t, j, *end ? -1 : id, "tokenizer_config.json: added_tokens_decoder", err))
                return false;
    }
    return true;
}

/* "bos_token": "<s>" or {"content": "<s>"}; -1: none. A token the configuration names is a control token even if
 * added_tokens forgot it. */
static bool config_token(sl_tokenizer *t, const json_t *config, const char *key, int32_t *id, sl_error *err) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    *id = json_is_string(v) ? text_vocab_find(&t->vocab, json_string_value(v), json_string_length(v)) : -1;
    if (*id < 0)
        return true;
    text_added token = {
        .id = *id, .content = (char *)json_string_value(v), .size = json_string_length(v), .special = true};
    return text_tokenizer_add_token(t, token, err);
}

/* ---- configuration ---------------------------------------------------------------------------------------------- */

static void stop_ids(sl_tokenizer *t, const json_t *ids) {
    if (json_is_integer(ids))
        text_tokenizer_set_stop(t, json_integer_value(ids));
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (json_is_integer(json_array_get(ids, i)))
            text_tokenizer_set_stop(t, json_integer_value(json_array_get(ids, i)));
}

static bool insert_before(text_ids *ids, int32_t id) {
    if (!text_ids_push(ids, id))
        return false;
    memmove(ids->at + 1, ids->at, (ids->count - 1) * sizeof *ids->at);
    ids->at[0] = id;
    return true;
}

/* add_bos_token and add_eos_token make the Llama and Gemma classes rebuild their post-processor; where true, others
 * mean it too. */
static bool apply_bos_eos(sl_tokenizer *t, const json_t *config, sl_error *err) {
    const json_t *bos = json_object_get(config, "add_bos_token"), *eos = json_object_get(config, "add_eos_token");
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    bool rebuilds = class && (strstr(class, "Llama") || strstr(class, "Gemma"));
    bool has_bos = t->before.count && t->before.at[0] == t->bos && t->bos >= 0;
    bool has_eos = t->after.count && t->after.at[t->after.count - 1] == t->eos && t->eos >= 0;
    if (json_is_true(bos) && !has_bos && t->bos >= 0 && !insert_before(&t->before, t->bos))
        return text_no_memory(err);
    if (json_is_true(eos) && !has_eos && t->eos >= 0 && !text_ids_push(&t->after, t->eos))
        return text_no_memory(err);
    if (json_is_false(bos) && has_bos && rebuilds)
        memmove(t->before.at, t->before.at + 1, --t->before.count * sizeof *t->before.at);
    if (json_is_false(eos) && has_eos && rebuilds)
        t->after.count--;
    return true;
}

static void find_lead(sl_tokenizer *t) {
    for (size_t i = 0; i < t->normalizer.count; i++)
        if (t->normalizer.at[i].kind == TEXT_PREPEND && strcmp(t->normalizer.at[i].to, "\xe2\x96\x81") == 0)
            t->lead = TEXT_LEAD_EACH;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

enum { F_MODEL, F_ADDED, F_NORMALIZER, F_PRE, F_POST, F_DECODER, F_COUNT };

typedef bool (*part_fn)(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err);

static bool part_normalizer(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    return text_parse_normalizer(&t->normalizer, j, where, 0, err);
}
static bool part_pre(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    return text_parse_pre_tokenizer(t, j, where, 0, err);
}
static bool part_post(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    return text_parse_post_processor(t, j, where, 0, err);
}
static bool part_decoder(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    return text_parse_decoder(&t->decoder, j, where, 0, err);
}
static bool part_added(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    (void)where;
    return add_tokens(t, j, err);
}

static bool read_part(sl_tokenizer *t, const text_json *j, const field *f, part_fn fn) {
    if (is_null(f->span))
        return true;
    json_t *v = text_json_load(j, f->span);
    char *where = v ? sl_asprintf("%s: %s", t->name, f->name) : NULL;
    bool ok = v && (where ? fn(t, v, where, j->err) : text_no_memory(j->err));
    free(where);
    json_decref(v);
    return ok;
}

/* config: tokenizer_config.json, extra_stops: eos_token_id of generation_config.json; both may be NULL. */
static bool read_tokenizer(sl_tokenizer *t, text_json *j, const json_t *config, const json_t *extra_stops) {
    field f[F_COUNT] = {{.name = "model"},         {.name = "added_tokens"},   {.name = "normalizer"},
                        {.name = "pre_tokenizer"}, {.name = "post_processor"}, {.name = "decoder"}};
    field m[M_COUNT];
    int32_t other;
    if (!read_fields(j, f, F_COUNT) || !text_json_finish(j))
        return false;
    if (is_null(f[F_MODEL].span))
        return sl_fail(j->err, SL_ERR_FORMAT, "%s: model is missing", t->name);
    bool ok =
        read_model(t, text_json_at(j, f[F_MODEL].span), m) && read_part(t, j, &f[F_ADDED], part_added) &&
        add_config_tokens(t, config, j->err) && config_token(t, config, "bos_token", &t->bos, j->err) &&
        config_token(t, config, "eos_token", &t->eos, j->err) && config_token(t, config, "unk_token", &other, j->err) &&
        config_token(t, config, "pad_token", &other, j->err) && read_part(t, j, &f[F_NORMALIZER], part_normalizer) &&
        read_part(t, j, &f[F_PRE], part_pre) && read_part(t, j, &f[F_POST], part_post) &&
        read_part(t, j, &f[F_DECODER], part_decoder) && read_merges(t, text_json_at(j, m[M_MERGES].span));
    if (!ok)
        return false;
    mark_byte_tokens(t);
    find_lead(t);
    stop_ids(t, extra_stops);
    return apply_bos_eos(t, config, j->err) && text_tokenizer_finish(t, j->err);
}

sl_tokenizer *text_tokenizer_from_json(const char *json, size_t n, const json_t *config, const json_t *extra_stops,
                                       const char *name, sl_error *err) {
    sl_tokenizer *t = text_tokenizer_new(name, err);
    text_json j = {.p = json, .n = n, .name = name, .err = err};
    if (t && read_tokenizer(t, &j, config, extra_stops))
        return t;
    sl_tokenizer_free(t);
    return NULL;
}

sl_tokenizer *sl_tokenizer_from_json(const char *json, size_t n, const json_t *config, const char *name,
                                     sl_error *err) {
    return text_tokenizer_from_json(json, n, config, NULL, name, err);
}
