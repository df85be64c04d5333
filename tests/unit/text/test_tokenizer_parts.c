/* Components of a tokenizer, each on its own: regexes, normalizers, pre-tokenizers, decoders; and what is refused. */
#include "support_tokenizer.h"

#include "text/tokenizer_internal.h"

/* ---- regex ------------------------------------------------------------------------------------------------------ */

/* All matches of a pattern, each in brackets. */
static void expect_matches(const char *pattern, const char *text, const char *want) {
    sl_error err = {0};
    text_regex *r = text_regex_compile(pattern, strlen(pattern), "test", &err);
    if (!r)
        fail_msg("%s", err.message);
    text_matcher m = {0};
    sl_buf got = {0};
    size_t n = strlen(text), from = 0, begin, end;
    sl_buf_append(&got, "", 0);
    while (from <= n && text_regex_find(r, &m, text, n, from, &begin, &end, &err) == 1) {
        sl_buf_printf(&got, "[%.*s]", (int)(end - begin), text + begin);
        from = end > begin ? end : end + 1;
    }
    if (strcmp(got.data, want) != 0)
        fail_msg("'%s' in '%s': %s, expected %s", pattern, text, got.data, want);
    sl_buf_free(&got);
    text_matcher_free(&m);
    text_regex_free(r);
}

static void oniguruma_syntax_is_translated(void **state) {
    expect_matches("\\h+", "xyz 1fG", "[1f]");
    expect_matches("\\H", "aZ ", "[Z][ ]");
    expect_matches("\\w+", "a_\u0301\u00b2-b", "[a_\u0301\u00b2][b]");
    expect_matches("\\bb", "ab b", "[b]");
    expect_matches("\\Bb", "ab b", "[b]");
    expect_matches("\\s+", "a \u3000\u2028\u180e b",
                   "[ \u3000\u2028\u180e ]"); /* U+180E: only the shadow text mends that */
    expect_matches("[a-c&&[^b]]+", "abcab", "[a][ca]");
    expect_matches("[a-e&&[b-d]&&[^c]]+", "abcde", "[b][d]");
    expect_matches("[^a-c&&[^d]]+", "abcdex", "[dex]");
    expect_matches("[a[b[c]]]+", "xabcx", "[abc]");
    expect_matches("[a[^b]]+", "abcb", "[a][c]");
    expect_matches("[^a[^b]]+", "abcb", "[b][b]");
    expect_matches("[\\W\\d]+", "a1 b", "[1 ]");
    expect_matches("[]a]+", "a]b", "[a]]");
    expect_matches("[-a\\-z]+", "a-zb", "[a-z]");
    expect_matches("[[:alpha:]]+|[[:punct:]]", "ab+1", "[ab][+]");
    expect_matches("[[:^alpha:]]", "a1", "[1]");
    expect_matches("\\p{Han}\\p{^Han}", "\u4e2da", "[\u4e2da]");
    expect_matches("\\P{Letter}", "a1", "[1]");
    expect_matches("a{1,2}+", "aaaaa", "[aaaaa]"); /* repeated, not possessive */
    expect_matches("(ab){2}?", "ababx", "[abab][][]");
    expect_matches("a{,2}b", "aaab", "[aab]");
    expect_matches("a{x}", "a{x}", "[a{x}]");
    expect_matches("a++b", "aab", "[aab]");
    expect_matches("(?i:ab)c", "ABcABC", "[ABc]");
    expect_matches("(?m:a.b)", "a\nb", "[a\nb]");
    expect_matches("a.b", "a\nb", "");
    expect_matches("x$", "x\nx", "[x][x]");
    expect_matches("^x", "x\nx", "[x][x]");
    expect_matches("\\u4e2d\\x{61}\\x62\\v", "\u4e2dab\v", "[\u4e2dab\v]");
    expect_matches("(?<=a)b(?!c)", "abc ab", "[b]");
    expect_matches("(?#note)a|(?<n>b)\\k<n>", "abb", "[a][bb]");
    expect_matches("\\Qa", "Qa", "[Qa]");
    expect_matches("", "a", "[][]");
}

static void bad_regexes_are_named(void **state) {
    static const char *const patterns[] = {
        "a(",    "a)",  "[a", "[b-a]",         "\\",          "[\\",         "\\p",   "\\p{", "\\p{Nonsense}",
        "(?~a)", "\\y", "*",  "[[:nothing:]]", "\\x{110000}", "[\\x{d800}]", "[\\q]", "\xff", "[\xff]",
        "a(?#",  "[&&"};
    for (size_t i = 0; i < SL_COUNT(patterns); i++) {
        sl_error err = {0};
        text_regex *r = text_regex_compile(patterns[i], strlen(patterns[i]), "the field", &err);
        if (r)
            fail_msg("'%s' compiled", patterns[i]);
        assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, "the field: regex"));
    }
    sl_buf deep = {0};
    for (int i = 0; i < 400; i++)
        sl_buf_puts(&deep, i < 200 ? "[a" : "]");
    assert_null(text_regex_compile(deep.data, deep.size, "deep", NULL));
    sl_buf_clear(&deep);
    for (int i = 0; i < 100000; i++)
        sl_buf_puts(&deep, "(");
    assert_null(text_regex_compile(deep.data, deep.size, "deep", NULL));
    sl_buf_free(&deep);
}

static void exponential_matching_gives_up(void **state) {
    sl_error err = {0};
    text_regex *r = text_regex_compile("(x+x+)+[yz]", 11, "slow", &err);
    text_matcher m = {0};
    char text[64];
    size_t b, e;
    memset(text, 'x', sizeof text);
    assert_int_equal(text_regex_find(r, &m, text, sizeof text, 0, &b, &e, &err), -1);
    assert_int_equal(err.code, SL_ERR_TEXT);
    assert_non_null(strstr(err.message, "slow: regex gave up"));
    text_matcher_free(&m);
    text_regex_free(r);
}

static void shadow_text_is_valid_and_as_long(void **state) {
    static const char text[] = "a\xff\u00e9\xe4\xb8\U00031350\u180e \U0001fae8";
    sl_buf copy = {0};
    const char *shadow = text_shadow(text, sizeof text - 1, &copy);
    assert_ptr_equal(shadow, copy.data);
    assert_string_equal(shadow, "a\x01\u00e9\x01\x01\U00020000\u2060 \U0001f600");
    assert_int_equal(strlen(shadow), sizeof text - 1);
    assert_ptr_equal(text_shadow("plain \u00e9", 8, &copy), "plain \u00e9");
    sl_buf_free(&copy);
}

/* ---- normalizers and decoders ----------------------------------------------------------------------------------- */

typedef bool (*parse_edits)(text_edits *, const json_t *, const char *, int, sl_error *);

static void expect_edit(parse_edits parse, const char *json, const char *text, size_t n, const char *want) {
    sl_error err = {0};
    json_error_t e;
    json_t *j = json_loads(json, 0, &e);
    text_edits edits = {0};
    text_scratch s = {0};
    const char *out = NULL;
    size_t size = 0;
    if (!j || !parse(&edits, j, "test", 0, &err) ||
        !text_edits_run(&edits, &s.matcher, &s.normal, &s.spare, text, n, &out, &size, &err))
        fail_msg("%s: %s", json, err.message);
    if (size != strlen(want) || memcmp(out, want, size) != 0)
        fail_msg("%s of '%s': '%.*s', expected '%s'", json, text, (int)size, out, want);
    text_scratch_free(&s);
    text_edits_free(&edits);
    json_decref(j);
}

static void normal(const char *json, const char *text, const char *want) {
    expect_edit(text_parse_normalizer, json, text, strlen(text), want);
}

static void decoded(const char *json, const char *text, const char *want) {
    expect_edit(text_parse_decoder, json, text, strlen(text), want);
}

static void normalizers_edit_the_text(void **state) {
    normal("{\"type\":\"NFC\"}", "e\u0301 \u1100\u1161\u11a8 \u212b", "\u00e9 \uac01 \u00c5");
    normal("{\"type\":\"NFC\"}", "plain \u4e2d\u00e9", "plain \u4e2d\u00e9");
    normal("{\"type\":\"NFC\"}", "a\u0301\u0323", "\u1ea1\u0301");
    normal("{\"type\":\"NFC\"}", "e\xff\u0301 e\u0301\xff", "e\xff\u0301 \u00e9\xff");
    normal("{\"type\":\"NFD\"}", "\u00e9\u1ea1\uac01", "e\u0301a\u0323\u1100\u1161\u11a8");
    normal("{\"type\":\"NFKC\"}", "\ufb01\u00b2\uff21", "fi2A");
    normal("{\"type\":\"NFKD\"}", "\u00e9\u00bd", "e\u03011\u20442");
    normal("{\"type\":\"Lowercase\"}", "A\u00c9\u0130\xff", "a\u00e9i\u0307\xff");
    normal("{\"type\":\"StripAccents\"}", "e\u0301a", "ea");
    normal("{\"type\":\"Strip\"}", " \u3000 a b\n", "a b");
    normal("{\"type\":\"Strip\",\"strip_left\":false}", " a ", " a");
    normal("{\"type\":\"Strip\",\"strip_right\":false}", " \n", "");
    normal("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "a", "_a");
    normal("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "", "");
    normal("{\"type\":\"Replace\",\"pattern\":{\"String\":\"ab\"},\"content\":\"-\"}", "abaab.", "-a-.");
    normal("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},\"content\":\"\"}", "aabac", "bc");
    normal("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s\"},\"content\":\"_\"}", "a \xff\u180e\n",
           "a_\xff\u180e_");
    normal("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},{\"type\":"
           "\"Lowercase\"}]}",
           "\u00c9", "e");
}

/* A hundred thousand marks of falling class between two letters: quadratic sorting would take minutes. */
static void a_long_run_of_marks_is_ordered(void **state) {
    sl_buf text = {0}, want = {0};
    sl_buf_puts(&text, "q");
    sl_buf_puts(&want, "q");
    for (int i = 0; i < 100000; i++)
        sl_buf_puts(&text, i % 2 ? "\u0323" : "\u0301");
    for (int i = 0; i < 100000; i++)
        sl_buf_puts(&want, i < 50000 ? "\u0323" : "\u0301");
    normal("{\"type\":\"NFD\"}", text.data, want.data);
    sl_buf_free(&text);
    sl_buf_free(&want);
}

static void decoders_edit_pieces(void **state) {
    decoded("{\"type\":\"ByteLevel\"}", "\u0120a\u00ff\u0143", " a\xff\xad");
    decoded("{\"type\":\"ByteLevel\"}", "\u0120\u4e2d", "\u0120\u4e2d"); /* not of the alphabet: as it is */
    decoded("{\"type\":\"ByteFallback\"}", "<0xE2>", "\xe2");
    decoded("{\"type\":\"ByteFallback\"}", "<0xE2", "<0xE2");
    decoded("{\"type\":\"Metaspace\"}", "\u2581a", " a");
    decoded("{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "_a", " a");
    decoded("{\"type\":\"BPEDecoder\"}", "a</w>", "a ");
    decoded("{\"type\":\"BPEDecoder\",\"suffix\":\"@\"}", "a</w>", "a</w>");
    decoded("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
            "\"content\":\" \"},"
            "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
            "\",\"start\":1,\"stop\":0}]}",
            "\u2581a", " a");
}

/* ---- pre-tokenizers --------------------------------------------------------------------------------------------- */

/* Pieces of text, joined by '|'. */
static void pieces(const char *json, const char *text, const char *want) {
    sl_error err = {0};
    json_error_t e;
    json_t *j = json_loads(json, 0, &e);
    sl_tokenizer *t = text_tokenizer_new("test", &err);
    text_scratch s = {0};
    sl_buf got = {0};
    const char *out = NULL;
    if (!j || !text_parse_pre_tokenizer(t, j, "test", 0, &err) ||
        !text_cuts_run(&t->cuts, &s, text, strlen(text), true, &out, &err))
        fail_msg("%s: %s", json, err.message);
    sl_buf_append(&got, "", 0);
    for (size_t i = 0; i < s.pieces.count; i++) {
        sl_buf_puts(&got, i ? "|" : "");
        sl_buf_append(&got, out + s.pieces.at[i].begin, s.pieces.at[i].end - s.pieces.at[i].begin);
    }
    if (strcmp(got.data, want) != 0)
        fail_msg("%s of '%s': %s, expected %s", json, text, got.data, want);
    sl_buf_free(&got);
    text_scratch_free(&s);
    sl_tokenizer_free(t);
    json_decref(j);
}

#define SPLIT(pattern, behavior)                                                                                       \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":false}"

static void pre_tokenizers_cut(void **state) {
    pieces(SPLIT("{\"Regex\":\"-\"}", "Removed"), "a--b-", "a|b");
    pieces(SPLIT("{\"Regex\":\"-\"}", "Isolated"), "a--b-", "a|-|-|b|-");
    pieces(SPLIT("{\"String\":\"-\"}", "MergedWithPrevious"), "a--b-", "a-|-|b-");
    pieces(SPLIT("{\"String\":\"-\"}", "MergedWithNext"), "a--b-", "a|-|-b|-");
    pieces(SPLIT("\"-\"", "Contiguous"), "a--b-", "a|--|b|-");
    pieces("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z]+\"},\"behavior\":\"Removed\",\"invert\":true}", "ab1cd",
           "ab|cd");
    pieces(SPLIT("{\"Regex\":\"(?=b)\"}", "Isolated"), "abab", "a|ba|b");
    pieces(SPLIT("{\"Regex\":\"\"}", "Isolated"), "ab", "a|b");
    pieces(SPLIT("{\"String\":\"\"}", "Isolated"), "ab", "ab");
    pieces(SPLIT("{\"Regex\":\"\\\\p{L}+\"}", "Isolated"), "a\xff\U00031350z", "a|\xff|\U00031350z");
    pieces("{\"type\":\"Digits\",\"individual_digits\":true}", "a12\u0663", "a|1|2|\u0663");
    pieces("{\"type\":\"Digits\"}", "a12\u0663", "a|12\u0663");
    pieces("{\"type\":\"Punctuation\"}", "a,$b\u3002", "a|,|$|b|\u3002");
    pieces("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "a,$b", "a|,$|b");
    pieces("{\"type\":\"Whitespace\"}", "a_b, c ", "a_b|,|c");
    pieces("{\"type\":\"WhitespaceSplit\"}", "a, b\u3000c", "a,|b|c");
    pieces("{\"type\":\"BertPreTokenizer\"}", "a, b", "a|,|b");
    pieces("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"_\"}", "a_b", "a|b");
    pieces("{\"type\":\"FixedLength\",\"length\":2}", "ab\u00e9de", "ab|\u00e9d|e");
    pieces("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "I'll  go 12!", "I|'ll| | go| 12|!");
    pieces("{\"type\":\"ByteLevel\"}", "a b", " a| b");
    pieces("{\"type\":\"ByteLevel\",\"use_regex\":false}", " a b", " a b");
    pieces("{\"type\":\"Metaspace\"}", "a  b", "\u2581a|\u2581|\u2581b");
    pieces("{\"type\":\"Metaspace\"}", " a", "\u2581a");
    pieces("{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\",\"split\":false,\"replacement\":\"_\"}", "a b", "a_b");
    pieces("{\"type\":\"Metaspace\",\"add_prefix_space\":false}", "a b", "a|\u2581b");
    /* a step after ByteLevel sees its characters */
    pieces("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
           "{\"type\":\"Split\",\"pattern\":{\"String\":\"\u0120\"},\"behavior\":\"Isolated\"}]}",
           "a b", "a|\u0120|b");
    pieces("{\"type\":\"Digits\"}", "", "");
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static void components_that_are_not_supported_are_named(void **state) {
    expect_no_load(byte_json("", "\"normalizer\":{\"type\":\"Nmt\"},"), SL_ERR_UNSUPPORTED, "test.json: normalizer",
                   "'Nmt'", NULL);
    expect_no_load(
        byte_json(
            "",
            "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Precompiled\"}]},"),
        SL_ERR_UNSUPPORTED, "normalizer.normalizers[1]", "'Precompiled'", NULL);
    expect_no_load(byte_json("", "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},"), SL_ERR_UNSUPPORTED,
                   "pre_tokenizer", "'UnicodeScripts'", NULL);
    expect_no_load(byte_json("", "\"decoder\":{\"type\":\"CTC\"},"), SL_ERR_UNSUPPORTED, "decoder", "'CTC'", NULL);
    expect_no_load(byte_json("", "\"post_processor\":{\"type\":\"Strange\"},"), SL_ERR_UNSUPPORTED, "post_processor",
                   "'Strange'", NULL);
    expect_no_load(byte_json("\"dropout\":0.1,", ""), SL_ERR_UNSUPPORTED, "model.dropout 0.1", NULL);
    expect_no_load(sl_strdup("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}"), SL_ERR_UNSUPPORTED,
                   "model.type 'Unigram'", NULL);
    expect_no_load(byte_json("", "\"normalizer\":{\"a\":1},"), SL_ERR_FORMAT, "normalizer", "type", NULL);
    expect_no_load(byte_json("", "\"normalizer\":7,"), SL_ERR_FORMAT, "normalizer", NULL);
    expect_no_load(byte_json("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}},"),
                   SL_ERR_UNSUPPORTED, "pre_tokenizer: regex '('", NULL);
    expect_no_load(byte_json("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":7},"), SL_ERR_FORMAT,
                   "pre_tokenizer.pattern", NULL);
    expect_no_load(byte_json("", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":\"a\",\"behavior\":\"Other\"},"),
                   SL_ERR_FORMAT, "pre_tokenizer.behavior", NULL);
    expect_no_load(byte_json("", "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"often\"},"),
                   SL_ERR_FORMAT, "prepend_scheme", NULL);
    expect_no_load(byte_json("", "\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0},"), SL_ERR_FORMAT, "length",
                   NULL);
    expect_no_load(byte_json("", "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":1},"), SL_ERR_FORMAT,
                   "use_regex", NULL);
    expect_no_load(
        byte_json("",
                  "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
                  "\"special_tokens\":{\"x\":{\"ids\":[9999]}}},"),
        SL_ERR_FORMAT, "id 9999", NULL);
}

static void a_deeply_nested_sequence_is_refused(void **state) {
    sl_buf b = {0};
    sl_buf_puts(&b, "\"normalizer\":");
    for (int i = 0; i < 1000; i++)
        sl_buf_puts(&b, "{\"type\":\"Sequence\",\"normalizers\":[");
    sl_buf_puts(&b, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 1000; i++)
        sl_buf_puts(&b, "]}");
    sl_buf_puts(&b, ",");
    expect_no_load(byte_json("", b.data), SL_ERR_UNSUPPORTED, "nested more than", NULL);
    sl_buf_free(&b);
}

static void broken_models_are_refused(void **state) {
    expect_no_load(sl_strdup("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}"), SL_ERR_FORMAT,
                   "model.merges is missing", NULL);
    expect_no_load(byte_json("\"merges\":[],", ""), SL_ERR_FORMAT, "model.merges is empty", NULL);
    expect_no_load(byte_json("\"merges\":null,", ""), SL_ERR_FORMAT, "model.merges is missing", NULL);
    expect_no_load(sl_strdup("{\"model\":{\"merges\":[\"a b\"]}}"), SL_ERR_FORMAT, "model.vocab is missing", NULL);
    expect_no_load(sl_strdup("{}"), SL_ERR_FORMAT, "model is missing", NULL);
    expect_no_load(byte_json("\"merges\":[\"h e\",\"he zz\"],", ""), SL_ERR_FORMAT, "model.merges[1]", "'zz'", NULL);
    expect_no_load(byte_json("\"merges\":[\"h l\"],", ""), SL_ERR_FORMAT, "model.merges[0]", "'hl'", NULL);
    expect_no_load(byte_json("\"merges\":[\"hel\"],", ""), SL_ERR_FORMAT, "two parts", NULL);
    expect_no_load(byte_json("\"merges\":[\"h e l\"],", ""), SL_ERR_FORMAT, "two parts", NULL);
    expect_no_load(byte_json("\"merges\":[[\"h\",\"e\",\"l\"]],", ""), SL_ERR_FORMAT, "two strings", NULL);
    expect_no_load(byte_json("\"merges\":[[\"h\"]],", ""), SL_ERR_FORMAT, NULL);
    expect_no_load(byte_json("\"merges\":[7],", ""), SL_ERR_FORMAT, "expected '\"'", NULL);
    expect_no_load(byte_json("\"unk_token\":\"<none>\",", ""), SL_ERR_FORMAT, "unk_token '<none>'", NULL);
    expect_no_load(byte_json("\"byte_fallback\":7,", ""), SL_ERR_FORMAT, "byte_fallback", NULL);
    expect_no_load(sl_strdup("{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[\"a b\"]}}"), SL_ERR_FORMAT,
                   "another piece", NULL);
    expect_no_load(sl_strdup("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[\"a b\"]}}"), SL_ERR_FORMAT, "negative",
                   NULL);
    expect_no_load(sl_strdup("{\"model\":{\"vocab\":{\"a\":99999999999},\"merges\":[\"a b\"]}}"), SL_ERR_FORMAT,
                   "16777215", NULL);
    expect_no_load(sl_strdup("{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[\"a b\"]}}"), SL_ERR_FORMAT,
                   "expected an integer", NULL);
    expect_no_load(byte_json("", "\"added_tokens\":[{\"id\":5,\"content\":\"new\"}],"), SL_ERR_FORMAT,
                   "added token 'new' has id 5", NULL);
    expect_no_load(byte_json("", "\"added_tokens\":[{\"content\":\"new\"}],"), SL_ERR_FORMAT,
                   "added token 'new' has id -1", NULL);
    expect_no_load(byte_json("", "\"added_tokens\":[{\"id\":300}],"), SL_ERR_FORMAT, "without content", NULL);
    expect_no_load(byte_json("", "\"added_tokens\":7,"), SL_ERR_FORMAT, "added_tokens: expected an array", NULL);
}

static void broken_json_names_the_byte(void **state) {
    static const char *const texts[] = {"",
                                        "[",
                                        "{\"a\"}",
                                        "{\"a\":}",
                                        "{\"a\":1,}",
                                        "{\"a\":1",
                                        "{\"a\":\"",
                                        "{\"a\":\"\\",
                                        "{\"a\":[1}",
                                        "{\"model\":{}} x",
                                        "{\"a\":1 1}",
                                        "{,}",
                                        "{\"\\ud800\":1}",
                                        "{\"\\u12\":1}",
                                        "{\"\\q\":1}",
                                        "{\"\\udc00\":1}",
                                        "{\"\n\":1}",
                                        "{\"\xff\":1}",
                                        "{\"model\":[1]}"};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        expect_no_load(sl_strdup(texts[i]), SL_ERR_FORMAT, "test.json", NULL);
    /* every beginning of a good file */
    char *json = byte_json("", "");
    for (size_t n = 0; n + 1 < strlen(json); n += 7)
        expect_no_load(sl_strndup(json, n), SL_ERR_FORMAT, "test.json", NULL);
    free(json);
}

static void json_escapes_are_read(void **state) {
    sl_tokenizer *t =
        load(sl_strdup(" {\"model\" : {\"vocab\":{\"\\u0000\":0,\"\\\"\\\\\\/\\b\\f\\n\\r\\t\":1,\"\\ud83d\\ude00\":2,"
                       "\"a\":3,\"b\":4,\"ab\":5}, \"merges\" : [ [ \"a\" , \"b\" ] ] } }\n"),
             NULL);
    assert_int_equal(sl_tokenizer_id(t, "", 1), 0);
    assert_int_equal(sl_tokenizer_id(t, "\"\\/\b\f\n\r\t", 8), 1);
    assert_int_equal(sl_tokenizer_id(t, "\U0001f600", 4), 2);
    assert_int_equal(sl_tokenizer_id(t, "ab", 2), 5);
    sl_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oniguruma_syntax_is_translated),
        cmocka_unit_test(bad_regexes_are_named),
        cmocka_unit_test(exponential_matching_gives_up),
        cmocka_unit_test(shadow_text_is_valid_and_as_long),
        cmocka_unit_test(normalizers_edit_the_text),
        cmocka_unit_test(a_long_run_of_marks_is_ordered),
        cmocka_unit_test(decoders_edit_pieces),
        cmocka_unit_test(pre_tokenizers_cut),
        cmocka_unit_test(components_that_are_not_supported_are_named),
        cmocka_unit_test(a_deeply_nested_sequence_is_refused),
        cmocka_unit_test(broken_models_are_refused),
        cmocka_unit_test(broken_json_names_the_byte),
        cmocka_unit_test(json_escapes_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
