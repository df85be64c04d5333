/* Components of tokenizer.json: normalizers, pre-tokenizers, decoders, post-processors. A type that is not here is an
 * error that names it. */
#include "text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* Sequences may nest; none that anyone writes nests this deep. */
#define MAX_DEPTH 8

#define MARK       "\xe2\x96\x81"
#define GPT2_SPLIT "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- fields ----------------------------------------------------------------------------------------------------- */

static bool bad_field(const char *where, const char *field, const char *expected, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s.%s: expected %s", where, field, expected);
}

static bool get_bool(const json_t *j, const char *key, bool fallback, bool *out, const char *where, sl_error *err) {
    const json_t *v = json_object_get(j, key);
    *out = !v || json_is_null(v) ? fallback : json_is_true(v);
    return !v || json_is_null(v) || json_is_boolean(v) || bad_field(where, key, "true or false", err);
}

static bool get_string(const json_t *j, const char *key, sl_str *out, const char *where, sl_error *err) {
    const json_t *v = json_object_get(j, key);
    *out = (sl_str){json_string_value(v), json_string_length(v)};
    return json_is_string(v) || bad_field(where, key, "a string", err);
}

static bool unsupported(const char *where, const json_t *j, sl_error *err) {
    const char *type = json_string_value(json_object_get(j, "type"));
    if (!type)
        return sl_fail(err, SL_ERR_FORMAT, "%s: expected an object with a type", where);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: type '%s' is not supported", where, type);
}

static bool is_type(const json_t *j, const char *type) {
    const char *s = json_string_value(json_object_get(j, "type"));
    return s && strcmp(s, type) == 0;
}

/* {"String": "x"}, {"Regex": "x"} or, in old files, "x". */
static text_regex *get_pattern(const json_t *j, const char *where, bool *literal, sl_str *text, sl_error *err) {
    const json_t *pattern = json_object_get(j, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    *literal = !regex;
    if (json_is_string(pattern))
        string = pattern;
    const json_t *v = regex ? regex : string;
    if (!json_is_string(v)) {
        bad_field(where, "pattern", "{\"Regex\": ...} or {\"String\": ...}", err);
        return NULL;
    }
    *text = (sl_str){json_string_value(v), json_string_length(v)};
    return regex ? text_regex_compile(text->p, text->n, where, err) : text_regex_literal(text->p, text->n, where, err);
}

typedef bool (*parse_fn)(void *out, const json_t *j, const char *where, int depth, sl_error *err);

/* Every element of j[key] through parse. */
static bool parse_sequence(void *out, const json_t *j, const char *key, const char *where, int depth, parse_fn parse,
                           sl_error *err) {
    const json_t *list = json_object_get(j, key);
    if (!json_is_array(list))
        return bad_field(where, key, "an array", err);
    if (depth >= MAX_DEPTH)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: sequences nested more than %d deep", where, MAX_DEPTH);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        char *inner = sl_asprintf("%s.%s[%zu]", where, key, i);
        ok = inner ? parse(out, json_array_get(list, i), inner, depth + 1, err) : text_no_memory(err);
        free(inner);
    }
    return ok;
}

/* ---- normalizer ------------------------------------------------------------------------------------------------- */

static bool push_edit(text_edits *out, text_edit e, sl_error *err) {
    return text_edits_push(out, e) || text_no_memory(err);
}

static bool copy_string(char **to, size_t *size, sl_str s, sl_error *err) {
    *to = sl_strndup(s.p, s.n);
    *size = s.n;
    return *to || text_no_memory(err);
}

static bool push_replace(text_edits *out, const json_t *j, const char *where, sl_error *err) {
    sl_str from, to;
    bool literal;
    if (!get_string(j, "content", &to, where, err))
        return false;
    text_edit e = {.kind = TEXT_REPLACE};
    e.regex = get_pattern(j, where, &literal, &from, err);
    if (!e.regex)
        return false;
    if (!copy_string(&e.to, &e.to_size, to, err)) {
        text_regex_free(e.regex);
        return false;
    }
    return push_edit(out, e, err);
}

static bool parse_normalizer(void *to, const json_t *j, const char *where, int depth, sl_error *err) {
    return text_parse_normalizer(to, j, where, depth, err);
}

static const struct {
    const char *type;
    text_edit_kind kind;
} plain_normalizers[] = {
    {"NFC", TEXT_NFC},
    {"NFD", TEXT_NFD},
    {"NFKC", TEXT_NFKC},
    {"NFKD", TEXT_NFKD},
    {"Lowercase", TEXT_LOWERCASE},
    {"StripAccents", TEXT_STRIP_ACCENTS},
    {"ByteLevel", TEXT_BYTE_CHARS},
};

bool text_parse_normalizer(text_edits *out, const json_t *j, const char *where, int depth, sl_error *err) {
    text_edit e = {0};
    sl_str s;
    for (size_t i = 0; i < SL_COUNT(plain_normalizers); i++)
        if (is_type(j, plain_normalizers[i].type))
            return push_edit(out, (text_edit){.kind = plain_normalizers[i].kind}, err);
    if (is_type(j, "Sequence"))
        return parse_sequence(out, j, "normalizers", where, depth, parse_normalizer, err);
    if (is_type(j, "Replace"))
        return push_replace(out, j, where, err);
    if (is_type(j, "Prepend")) {
        e.kind = TEXT_PREPEND;
        return get_string(j, "prepend", &s, where, err) && copy_string(&e.to, &e.to_size, s, err) &&
               push_edit(out, e, err);
    }
    if (is_type(j, "Strip")) {
        e.kind = TEXT_STRIP;
        return get_bool(j, "strip_left", true, &e.left, where, err) &&
               get_bool(j, "strip_right", true, &e.right, where, err) && push_edit(out, e, err);
    }
    return unsupported(where, j, err);
}

/* ---- pre-tokenizer ---------------------------------------------------------------------------------------------- */

static bool push_cut(sl_tokenizer *t, text_cut cut, sl_error *err) {
    return text_cuts_push(&t->cuts, cut) || text_no_memory(err);
}

static bool push_split(sl_tokenizer *t, const char *pattern, text_behavior behavior, bool invert, const char *where,
                       sl_error *err) {
    text_cut cut = {.kind = TEXT_SPLIT, .behavior = behavior, .invert = invert};
    cut.regex = text_regex_compile(pattern, strlen(pattern), where, err);
    return cut.regex && push_cut(t, cut, err);
}

static bool get_behavior(const json_t *j, text_behavior fallback, text_behavior *out, const char *where,
                         sl_error *err) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *v = json_object_get(j, "behavior");
    *out = fallback;
    if (!v || json_is_null(v))
        return true;
    for (size_t i = 0; json_is_string(v) && i < SL_COUNT(names); i++)
        if (strcmp(json_string_value(v), names[i]) == 0) {
            *out = (text_behavior)i;
            return true;
        }
    return bad_field(where, "behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", err);
}

static bool pre_split(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    text_cut cut = {.kind = TEXT_SPLIT};
    bool literal;
    sl_str text;
    if (!get_behavior(j, TEXT_ISOLATED, &cut.behavior, where, err) ||
        !get_bool(j, "invert", false, &cut.invert, where, err))
        return false;
    cut.regex = get_pattern(j, where, &literal, &text, err);
    return cut.regex && push_cut(t, cut, err);
}

/* Bytes become characters in the model, which costs nothing, unless another step is to see the characters. */
static bool settle_bytes(sl_tokenizer *t, sl_error *err) {
    if (!t->bpe.byte_level)
        return true;
    t->bpe.byte_level = false;
    return push_cut(t, (text_cut){.kind = TEXT_BYTES}, err);
}

static bool pre_byte_level(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    bool space_first, use_regex;
    if (!get_bool(j, "add_prefix_space", true, &space_first, where, err) ||
        !get_bool(j, "use_regex", true, &use_regex, where, err))
        return false;
    if (space_first && !push_cut(t, (text_cut){.kind = TEXT_SPACE_FIRST}, err))
        return false;
    if (use_regex && !push_split(t, GPT2_SPLIT, TEXT_ISOLATED, false, where, err))
        return false;
    t->bpe.byte_level = true;
    return true;
}

static bool pre_metaspace(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    text_cut cut = {.kind = TEXT_METASPACE, .prepend = TEXT_PREPEND_ALWAYS};
    bool add_prefix, split;
    const json_t *scheme = json_object_get(j, "prepend_scheme"), *mark = json_object_get(j, "replacement");
    if (!get_bool(j, "add_prefix_space", true, &add_prefix, where, err) ||
        !get_bool(j, "split", true, &split, where, err))
        return false;
    const char *s = json_is_string(scheme) ? json_string_value(scheme) : add_prefix ? "always" : "never";
    if (strcmp(s, "never") == 0)
        cut.prepend = TEXT_PREPEND_NEVER;
    else if (strcmp(s, "first") == 0)
        cut.prepend = TEXT_PREPEND_FIRST;
    else if (strcmp(s, "always") != 0)
        return bad_field(where, "prepend_scheme", "always, first or never", err);
    const char *m = json_is_string(mark) ? json_string_value(mark) : MARK;
    if (strlen(m) == 0 || strlen(m) > 4)
        return bad_field(where, "replacement", "one character", err);
    memcpy(cut.mark, m, strlen(m) + 1);
    if (cut.prepend != TEXT_PREPEND_NEVER)
        t->lead = cut.prepend == TEXT_PREPEND_FIRST ? TEXT_LEAD_FIRST : TEXT_LEAD_EACH;
    if (!push_cut(t, cut, err))
        return false;
    if (!split)
        return true;
    text_cut at_marks = {.kind = TEXT_SPLIT, .behavior = TEXT_MERGED_WITH_NEXT};
    at_marks.regex = text_regex_literal(m, strlen(m), where, err);
    return at_marks.regex && push_cut(t, at_marks, err);
}

static bool pre_fixed_length(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    const json_t *v = json_object_get(j, "length");
    text_cut cut = {.kind = TEXT_FIXED, .length = v ? (size_t)json_integer_value(v) : 5};
    if (v && (!json_is_integer(v) || json_integer_value(v) < 1))
        return bad_field(where, "length", "a positive integer", err);
    return push_cut(t, cut, err);
}

static bool pre_delimiter(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    text_cut cut = {.kind = TEXT_SPLIT, .behavior = TEXT_REMOVED};
    sl_str s;
    if (!get_string(j, "delimiter", &s, where, err))
        return false;
    cut.regex = text_regex_literal(s.p, s.n, where, err);
    return cut.regex && push_cut(t, cut, err);
}

#define PUNCTUATION "[\\p{P}$+<=>^`|~]"
#define WORD        "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"

static bool parse_pre(void *to, const json_t *j, const char *where, int depth, sl_error *err) {
    return text_parse_pre_tokenizer(to, j, where, depth, err);
}

bool text_parse_pre_tokenizer(sl_tokenizer *t, const json_t *j, const char *where, int depth, sl_error *err) {
    bool flag;
    text_behavior behavior;
    if (is_type(j, "Sequence"))
        return parse_sequence(t, j, "pretokenizers", where, depth, parse_pre, err);
    if (!settle_bytes(t, err))
        return false;
    if (is_type(j, "Split"))
        return pre_split(t, j, where, err);
    if (is_type(j, "ByteLevel"))
        return pre_byte_level(t, j, where, err);
    if (is_type(j, "Metaspace"))
        return pre_metaspace(t, j, where, err);
    if (is_type(j, "Digits"))
        return get_bool(j, "individual_digits", false, &flag, where, err) &&
               push_split(t, "\\p{N}", flag ? TEXT_ISOLATED : TEXT_CONTIGUOUS, false, where, err);
    if (is_type(j, "Punctuation"))
        return get_behavior(j, TEXT_ISOLATED, &behavior, where, err) &&
               push_split(t, PUNCTUATION, behavior, false, where, err);
    if (is_type(j, "Whitespace"))
        return push_split(t, "[" WORD "]+|[^\\s" WORD "]+", TEXT_REMOVED, true, where, err);
    if (is_type(j, "WhitespaceSplit"))
        return push_split(t, "\\s", TEXT_REMOVED, false, where, err);
    if (is_type(j, "BertPreTokenizer"))
        return push_split(t, "\\s", TEXT_REMOVED, false, where, err) &&
               push_split(t, PUNCTUATION, TEXT_ISOLATED, false, where, err);
    if (is_type(j, "CharDelimiterSplit"))
        return pre_delimiter(t, j, where, err);
    if (is_type(j, "FixedLength"))
        return pre_fixed_length(t, j, where, err);
    return unsupported(where, j, err);
}

/* ---- decoder ---------------------------------------------------------------------------------------------------- */

static bool parse_decoder(void *to, const json_t *j, const char *where, int depth, sl_error *err) {
    return text_parse_decoder(to, j, where, depth, err);
}

static bool push_mark_to_space(text_edits *out, const char *mark, const char *where, sl_error *err) {
    text_edit e = {.kind = TEXT_REPLACE, .to_size = 1};
    e.regex = text_regex_literal(mark, strlen(mark), where, err);
    e.to = sl_strdup(" ");
    if (e.regex && e.to)
        return push_edit(out, e, err);
    text_regex_free(e.regex);
    free(e.to);
    return text_no_memory(err);
}

bool text_parse_decoder(text_edits *out, const json_t *j, const char *where, int depth, sl_error *err) {
    if (is_type(j, "Sequence"))
        return parse_sequence(out, j, "decoders", where, depth, parse_decoder, err);
    if (is_type(j, "ByteLevel"))
        return push_edit(out, (text_edit){.kind = TEXT_CHAR_BYTES}, err);
    if (is_type(j, "ByteFallback"))
        return push_edit(out, (text_edit){.kind = TEXT_BYTE_TOKEN}, err);
    if (is_type(j, "Replace"))
        return push_replace(out, j, where, err);
    /* Strip takes off what encoding put in front, which sl_decode_ids does by its own rule; pieces are joined in any
     * case.
     */
    if (is_type(j, "Fuse") || is_type(j, "Strip"))
        return true;
    if (is_type(j, "Metaspace")) {
        const json_t *mark = json_object_get(j, "replacement");
        return push_mark_to_space(
            out, json_is_string(mark) && json_string_length(mark) ? json_string_value(mark) : MARK, where, err);
    }
    if (is_type(j, "BPEDecoder")) {
        text_edit e = {.kind = TEXT_SUFFIX_SPACE};
        sl_str s = {"</w>", 4};
        return (!json_object_get(j, "suffix") || get_string(j, "suffix", &s, where, err)) &&
               copy_string(&e.from, &e.from_size, s, err) && push_edit(out, e, err);
    }
    return unsupported(where, j, err);
}

/* ---- post-processor --------------------------------------------------------------------------------------------- */

static bool push_id(sl_tokenizer *t, bool after, int64_t id, const char *where, sl_error *err) {
    if (!text_vocab_has(&t->vocab, id))
        return sl_fail(err, SL_ERR_FORMAT, "%s: id %lld is not in the vocabulary", where, (long long)id);
    return text_ids_push(after ? &t->after : &t->before, (int32_t)id) || text_no_memory(err);
}

/* {"SpecialToken": {"id": "<s>"}}: its ids are in special_tokens["<s>"].ids. */
static bool push_special(sl_tokenizer *t, const json_t *j, const char *name, bool after, const char *where,
                         sl_error *err) {
    const json_t *ids = json_object_get(json_object_get(json_object_get(j, "special_tokens"), name), "ids");
    if (!json_is_array(ids))
        return sl_fail(err, SL_ERR_FORMAT, "%s.special_tokens: '%s' has no ids", where, name);
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (!json_is_integer(json_array_get(ids, i)) ||
            !push_id(t, after, json_integer_value(json_array_get(ids, i)), where, err))
            return json_is_integer(json_array_get(ids, i)) ? false
                                                           : bad_field(where, "special_tokens", "integer ids", err);
    return true;
}

static bool post_template(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    const json_t *single = json_object_get(j, "single");
    bool after = false;
    if (!json_is_array(single))
        return bad_field(where, "single", "an array", err);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i);
        const char *name = json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
        if (name && !push_special(t, j, name, after, where, err))
            return false;
        if (!name && !json_object_get(part, "Sequence"))
            return bad_field(where, "single", "SpecialToken or Sequence", err);
        after |= !name;
    }
    return true;
}

/* ["<s>", 0] before, ["</s>", 2] after. */
static bool post_pair(sl_tokenizer *t, const json_t *j, const char *where, sl_error *err) {
    static const char *const keys[] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        const json_t *id = json_array_get(json_object_get(j, keys[i]), 1);
        if (!json_is_integer(id))
            return bad_field(where, keys[i], "[token, id]", err);
        if (!push_id(t, i == 1, json_integer_value(id), where, err))
            return false;
    }
    return true;
}

static bool parse_post(void *to, const json_t *j, const char *where, int depth, sl_error *err) {
    return text_parse_post_processor(to, j, where, depth, err);
}

bool text_parse_post_processor(sl_tokenizer *t, const json_t *j, const char *where, int depth, sl_error *err) {
    if (is_type(j, "Sequence"))
        return parse_sequence(t, j, "processors", where, depth, parse_post, err);
    if (is_type(j, "TemplateProcessing"))
        return post_template(t, j, where, err);
    if (is_type(j, "ByteLevel"))
        return true; /* offsets only */
    if (is_type(j, "BertProcessing") || is_type(j, "RobertaProcessing"))
        return post_pair(t, j, where, err);
    return unsupported(where, j, err);
}
