/* Encoding and decoding: merges, added and control tokens, BOS and EOS, stops, bytes that come back. */
#include "support_tokenizer.h"

#include <pthread.h>

static const sl_encode_options plain, special = {.special = true}, framed = {.bos_eos = true};

#define SPECIAL_TOKENS                                                                                                 \
    "\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true},"                                             \
    "{\"id\":301,\"content\":\"</s>\",\"special\":true},{\"id\":302,\"content\":\"<think>\"}],"

static void lowest_rank_merges_first(void **state) {
    sl_tokenizer *t = load(byte_json("", ""), NULL);
    expect_ids(t, "", plain, -1);
    expect_ids(t, "hello", plain, T_HELLO, -1);
    expect_ids(t, "helo", plain, T_HEL, 'o', -1); /* "he l" before "l o" */
    expect_ids(t, "hel lo", plain, T_HEL, ' ', T_LO, -1);
    expect_ids(t, "hello world", plain, T_HELLO, T_SPACE_WO, 'r', 'l', 'd', -1);
    expect_ids(t, "\xc3\xa9", plain, 0xc3, 0xa9, -1);
    assert_int_equal(sl_tokenizer_size(t), T_FIRST_FREE);
    assert_int_equal(sl_tokenizer_id(t, "hello", 5), T_HELLO);
    assert_int_equal(sl_tokenizer_id(t, "\u0120w", 3), T_SPACE_W);
    assert_int_equal(sl_tokenizer_id(t, "nothing", 7), -1);
    assert_int_equal(sl_tokenizer_bos(t), -1);
    assert_int_equal(sl_tokenizer_eos(t), -1);
    assert_false(sl_tokenizer_adds_bos(t));
    sl_tokenizer_free(t);
}

/* The second time a word is encoded its piece is known to be whole; nothing may change. */
static void the_second_time_is_like_the_first(void **state) {
    sl_tokenizer *t = load(byte_json("", ""), NULL);
    for (int i = 0; i < 3; i++) {
        expect_ids(t, "hello", plain, T_HELLO, -1);
        expect_ids(t, "hel", plain, T_HEL, -1);
        expect_ids(t, " wo", plain, T_SPACE_WO, -1);
    }
    sl_tokenizer_free(t);
}

/* "hello" is in the vocabulary, but its merges do not lead to it; only ignore_merges finds it. */
static void ignore_merges_takes_whole_pieces(void **state) {
    static const char *const merges = "\"merges\":[\"h e\"],";
    sl_tokenizer *t = load(byte_json(merges, ""), NULL);
    for (int i = 0; i < 2; i++)
        expect_ids(t, "hello", plain, T_HE, 'l', 'l', 'o', -1);
    sl_tokenizer_free(t);
    t = load(byte_json("\"merges\":[\"h e\"],\"ignore_merges\":true,", ""), NULL);
    expect_ids(t, "hello", plain, T_HELLO, -1);
    expect_ids(t, "hellos", plain, T_HE, 'l', 'l', 'o', 's', -1);
    sl_tokenizer_free(t);
}

/* Pieces above the size where the heap takes over. */
static void long_pieces_merge_like_short_ones(void **state) {
    sl_tokenizer *t = load(byte_json("", ""), NULL);
    sl_buf text = {0};
    for (int i = 0; i < 50000; i++)
        sl_buf_puts(&text, i % 7 == 3 ? "helo" : "hello");
    int32_t *ids;
    size_t count, at = 0;
    assert_true(sl_encode(t, text.data, text.size, plain, &ids, &count, NULL));
    for (int i = 0; i < 50000; i++) {
        if (i % 7 == 3) {
            assert_int_equal(ids[at++], T_HEL);
            assert_int_equal(ids[at++], 'o');
        } else {
            assert_int_equal(ids[at++], T_HELLO);
        }
    }
    assert_int_equal(at, count);
    free(ids);
    sl_buf_free(&text);
    sl_tokenizer_free(t);
}

static void every_byte_comes_back(void **state) {
    sl_tokenizer *t = load(byte_json("", SPECIAL_TOKENS), NULL);
    char text[4];
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b += 3) {
            memcpy(text, (char[]){(char)a, (char)b, 'a', 0}, 4);
            expect_same_bytes(t, text, 3, true);
            expect_same_bytes(t, text, 2, false);
        }
    expect_same_bytes(t, "a\0\0b", 4, false);
    expect_same_bytes(t, "\xf0\x9f\x91 \xe2\x82", 6, false);
    expect_same_bytes(t, "<s>hello\xff</s> <think>", 20, true);
    sl_tokenizer_free(t);
}

/* ---- added tokens ----------------------------------------------------------------------------------------------- */

static void control_tokens_count_only_when_asked(void **state) {
    sl_tokenizer *t = load(byte_json("", SPECIAL_TOKENS), NULL);
    expect_ids(t, "<s>he", special, 300, T_HE, -1);
    expect_ids(t, "<s>he", plain, '<', 's', '>', T_HE, -1);
    expect_ids(t, "<think></s>", plain, 302, '<', '/', 's', '>', -1);
    assert_true(sl_tokenizer_is_control(t, 300));
    assert_false(sl_tokenizer_is_control(t, 302));
    assert_false(sl_tokenizer_is_control(t, 299));
    assert_false(sl_tokenizer_is_control(t, -1));
    assert_false(sl_tokenizer_is_control(t, 303));
    sl_tokenizer_free(t);
}

/* Neither merges nor ignore_merges may make a control token of plain text. */
static void no_way_leads_plain_text_to_a_control_token(void **state) {
    static const char *const control = "\"added_tokens\":[{\"id\":259,\"content\":\"hello\",\"special\":true}],";
    for (int ignore = 0; ignore < 2; ignore++) {
        sl_tokenizer *t = load(byte_json(ignore ? "\"ignore_merges\":true," : "", control), NULL);
        expect_ids(t, "hello", special, T_HELLO, -1);
        for (int i = 0; i < 2; i++)
            expect_ids(t, "hello", plain, T_HEL, T_LO, -1);
        sl_tokenizer_free(t);
    }
}

static void longest_added_token_at_the_leftmost_place(void **state) {
    sl_tokenizer *t = load(
        byte_json(
            "",
            "\"added_tokens\":[{\"id\":300,\"content\":\"ab\"},{\"id\":301,\"content\":\"abc\"},"
            "{\"id\":302,\"content\":\"bcd\"},{\"id\":303,\"content\":\"a\",\"special\":true,\"normalized\":true}],"),
        NULL);
    expect_ids(t, "xabcd", plain, 'x', 301, 'd', -1);
    expect_ids(t, "abxbcd", plain, 300, 'x', 302, -1);
    /* a control token that is one letter is that letter */
    expect_ids(t, "aabab", special, 'a', 300, 300, -1);
    expect_ids(t, "a", plain, 'a', -1);
    assert_false(sl_tokenizer_is_control(t, 'a'));
    sl_tokenizer_free(t);
}

static void added_tokens_take_white_space_and_mind_words(void **state) {
    sl_tokenizer *t = load(
        byte_json(
            "",
            "\"added_tokens\":[{\"id\":300,\"content\":\"<l>\",\"lstrip\":true},"
            "{\"id\":301,\"content\":\"<r>\",\"rstrip\":true},{\"id\":302,\"content\":\"cat\",\"single_word\":true}],"),
        NULL);
    expect_ids(t, "x \n<l> y", plain, 'x', 300, ' ', 'y', -1);
    expect_ids(t, "x <r>\u3000 y", plain, 'x', ' ', 301, 'y', -1);
    expect_ids(t, "<r>  <l>", plain, 301, 300, -1);
    expect_ids(t, "cat,cat", plain, 302, ',', 302, -1);
    expect_ids(t, "cats", plain, 'c', 'a', 't', 's', -1);
    expect_ids(t, "_cat", plain, '_', 'c', 'a', 't', -1);
    expect_ids(t, "\u00e9cat", plain, 0xc3, 0xa9, 'c', 'a', 't', -1);
    expect_ids(t,
               "\xff"
               "cat",
               plain, 0xff, 302, -1);
    sl_tokenizer_free(t);
}

static void normalized_tokens_match_normalised_text(void **state) {
    sl_tokenizer *t = load(byte_json("", "\"normalizer\":{\"type\":\"Lowercase\"},"
                                         "\"added_tokens\":[{\"id\":300,\"content\":\"Yes\",\"normalized\":true},"
                                         "{\"id\":301,\"content\":\"No\",\"normalized\":false}],"),
                           NULL);
    expect_ids(t, "YES", plain, 300, -1);
    expect_ids(t, "NO", plain, 'n', 'o', -1);
    expect_ids(t, "NoHE", plain, 301, T_HE, -1);
    sl_tokenizer_free(t);
}

static void tokens_only_the_configuration_names(void **state) {
    static const char *const config =
        "{\"added_tokens_decoder\":{\"300\":{\"content\":\"<x>\",\"special\":true},"
        "\"5\":{\"content\":\"unused\"}},\"bos_token\":{\"content\":\"<x>\"},\"eos_token\":\"he\"}";
    sl_tokenizer *t = load(byte_json("", ""), config);
    expect_ids(t, "<x>", special, 300, -1);
    assert_int_equal(sl_tokenizer_bos(t), 300);
    assert_int_equal(sl_tokenizer_eos(t), T_HE);
    assert_true(sl_tokenizer_is_stop(t, T_HE));
    expect_ids(t, "he", plain, 'h', 'e', -1);
    sl_tokenizer_free(t);
}

/* ---- BOS, EOS, stops -------------------------------------------------------------------------------------------- */

#define TEMPLATE                                                                                                       \
    "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"                              \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"                  \
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],"                 \
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[300]},\"</s>\":{\"id\":\"</s>\",\"ids\":[301,301]}}}]},"
#define CONFIG(more) "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"" more "}"

static void post_processor_frames_the_text(void **state) {
    sl_tokenizer *t = load(byte_json("", SPECIAL_TOKENS TEMPLATE), CONFIG(""));
    expect_ids(t, "he", framed, 300, T_HE, 301, 301, -1);
    expect_ids(t, "", framed, 300, 301, 301, -1);
    expect_ids(t, "he", plain, T_HE, -1);
    assert_true(sl_tokenizer_adds_bos(t));
    sl_tokenizer_free(t);
}

static void configuration_adds_and_removes_bos(void **state) {
    sl_tokenizer *t = load(byte_json("", SPECIAL_TOKENS), CONFIG(",\"add_bos_token\":true,\"add_eos_token\":true"));
    expect_ids(t, "he", framed, 300, T_HE, 301, -1);
    sl_tokenizer_free(t);
    t = load(byte_json("", SPECIAL_TOKENS TEMPLATE), CONFIG(",\"add_bos_token\":true"));
    expect_ids(t, "he", framed, 300, T_HE, 301, 301, -1);
    sl_tokenizer_free(t);
    t = load(byte_json("", SPECIAL_TOKENS TEMPLATE), CONFIG(",\"add_bos_token\":false"));
    assert_true(sl_tokenizer_adds_bos(t)); /* a class that does not rebuild its post-processor */
    sl_tokenizer_free(t);
    t = load(byte_json("", SPECIAL_TOKENS TEMPLATE),
             CONFIG(",\"add_bos_token\":false,\"add_eos_token\":false,\"tokenizer_class\":\"LlamaTokenizerFast\""));
    expect_ids(t, "he", framed, T_HE, 301, -1);
    assert_false(sl_tokenizer_adds_bos(t));
    sl_tokenizer_free(t);
}

static void ends_of_turns_stop_and_are_control_tokens(void **state) {
    sl_tokenizer *t =
        load(byte_json("", "\"added_tokens\":[{\"id\":300,\"content\":\"<|im_end|>\"},"
                           "{\"id\":301,\"content\":\"<|end|>\",\"special\":true},{\"id\":302,\"content\":\"<x>\"}],"),
             NULL);
    assert_true(sl_tokenizer_is_stop(t, 300));
    assert_true(sl_tokenizer_is_control(t, 300));
    assert_true(sl_tokenizer_is_stop(t, 301));
    assert_false(sl_tokenizer_is_stop(t, 302));
    assert_false(sl_tokenizer_is_stop(t, 'a'));
    assert_false(sl_tokenizer_is_stop(t, -1));
    assert_false(sl_tokenizer_is_stop(t, 1 << 30));
    sl_tokenizer_free(t);
}

static void end_of_a_harmony_message_does_not_stop(void **state) {
    sl_tokenizer *t = load(byte_json("", "\"added_tokens\":[{\"id\":300,\"content\":\"<|return|>\",\"special\":true},"
                                         "{\"id\":301,\"content\":\"<|call|>\",\"special\":true},{\"id\":302,"
                                         "\"content\":\"<|end|>\",\"special\":true}],"),
                           NULL);
    assert_true(sl_tokenizer_is_stop(t, 300));
    assert_true(sl_tokenizer_is_stop(t, 301));
    assert_false(sl_tokenizer_is_stop(t, 302));
    sl_tokenizer_free(t);
}

/* ---- SentencePiece ---------------------------------------------------------------------------------------------- */

static void sentencepiece_words_and_bytes(void **state) {
    sl_tokenizer *t = load(sentencepiece_json(SPECIAL_TOKENS), NULL);
    expect_ids(t, "ab", plain, S_MARK_AB, -1);
    expect_ids(t, " ab  c", plain, S_MARK, S_MARK_AB, S_MARKS, S_C, -1);
    expect_ids(t, "\xff", plain, S_MARK, 1 + 0xff, -1);
    expect_ids(t, "\u00e9", plain, S_MARK, 1 + 0xc3, 1 + 0xa9, -1);
    expect_ids(t, "", plain, -1);
    /* the text of a byte token is text */
    expect_ids(t, "<0x41>", plain, S_MARK, 1 + '<', 1 + '0', 1 + 'x', 1 + '4', 1 + '1', 1 + '>', -1);
    expect_ids(t, "<unk>", plain, S_MARK, 1 + '<', 1 + 'u', 1 + 'n', 1 + 'k', 1 + '>', -1);
    expect_ids(t, "a<s>ab", special, S_MARK_A, 300, S_MARK_AB, -1);
    static const char *const texts[] = {"a",    " a", "  ",       "a  b ",    "<s>a<s> b</s>",
                                        " <s>", "\n", "\xe2\x96", "a\xf0\x9f"};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        expect_same_bytes(t, texts[i], strlen(texts[i]), true);
    sl_tokenizer_free(t);
}

static void metaspace_first_marks_only_the_beginning(void **state) {
    static const char *const fields = "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_"
                                      "scheme\":\"first\"}," SPECIAL_TOKENS;
    sl_tokenizer *t = load(sentencepiece_json(fields), CONFIG(",\"add_bos_token\":true"));
    expect_ids(t, "ab a<s>ab", special, S_MARK_AB, S_MARK_A, 300, S_AB, -1);
    static const char *const texts[] = {"a", "a b", "<s>a<s> b</s>", "a <s>b"};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        expect_same_bytes(t, texts[i], strlen(texts[i]), true);
    expect_text(t, (int32_t[]){300, S_MARK_AB, S_MARK_A}, 3, false, "ab a");
    expect_text(t, (int32_t[]){S_C, 300, S_MARK_AB}, 3, false, "c ab");
    sl_tokenizer_free(t);
}

/* ---- decoding --------------------------------------------------------------------------------------------------- */

static void pieces_stand_inside_a_text(void **state) {
    sl_tokenizer *t = load(sentencepiece_json(SPECIAL_TOKENS), NULL);
    sl_buf out = {0};
    static const int32_t ids[] = {S_MARK_AB, 1 + 0xe2, 300, 302};
    for (size_t i = 0; i < SL_COUNT(ids); i++)
        assert_true(sl_decode_piece(t, ids[i], false, &out));
    assert_string_equal(out.data, " ab\xe2<think>");
    assert_true(sl_decode_piece(t, 300, true, &out));
    assert_string_equal(out.data, " ab\xe2<think><s>");
    assert_true(sl_decode_piece(t, 290, true, &out)); /* a hole */
    assert_false(sl_decode_piece(t, -1, true, &out));
    assert_false(sl_decode_piece(t, 303, true, &out));
    assert_string_equal(out.data, " ab\xe2<think><s>");
    sl_buf_free(&out);
    expect_text(t, (int32_t[]){300, S_MARK_AB, 301}, 3, true, "<s>ab</s>");
    expect_text(t, (int32_t[]){300, S_MARK_AB, 301}, 3, false, "ab");
    expect_text(t, NULL, 0, false, "");
    sl_tokenizer_free(t);
}

static void an_unknown_id_is_an_error_that_names_it(void **state) {
    sl_tokenizer *t = load(byte_json("", ""), NULL);
    sl_error err = {0};
    sl_buf out = {0};
    assert_false(sl_decode_ids(t, (int32_t[]){1, 262}, 2, false, &out, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "token 1 is 262; ids are 0..261"));
    assert_false(sl_decode_ids(t, (int32_t[]){-1}, 1, false, &out, &err));
    sl_buf_free(&out);
    sl_tokenizer_free(t);
}

/* Vocabularies often lack the bytes that no UTF-8 text holds. */
static void bytes_without_a_token(void **state) {
    sl_tokenizer *t =
        load(sl_strdup("{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
                       "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\u00ef\":3,"
                       "\"\u00bf\":4,\"\u00bd\":5,\"\u00f5\":7},\"merges\":[\"a b\"]},"
                       "\"added_tokens\":[{\"id\":7,\"content\":\"\u00f5\"}]}"),
             NULL);
    expect_ids(t,
               "a\xff"
               "b",
               plain, 0, 3, 4, 5, 1, -1); /* U+FFFD */
    expect_ids(t, "a\xc3\xa9\x62", plain, 2, -1);
    expect_ids(t, "\u00f5", plain, 7, -1); /* the letter, not byte F5 */
    expect_ids(t, "\xf5", plain, 3, 4, 5, -1);
    expect_text(t, (int32_t[]){7, 2}, 2, false, "\u00f5ab");
    sl_tokenizer_free(t);
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

typedef struct job {
    const sl_tokenizer *t;
    const char *text;
    int32_t *ids;
    size_t count;
} job;

static void *run_job(void *arg) {
    job *j = arg;
    for (int i = 0; i < 200; i++) {
        free(j->ids);
        if (!sl_encode(j->t, j->text, strlen(j->text), special, &j->ids, &j->count, NULL))
            return NULL;
    }
    return j;
}

static void threads_share_a_tokenizer(void **state) {
    sl_tokenizer *t = load(byte_json("", SPECIAL_TOKENS), NULL);
    static const char *const text = "hello world hel helo <s> wow hellohello \u00e9 \u4e2d 123";
    job jobs[4] = {0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){.t = t, .text = text};
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *done;
        pthread_join(threads[i], &done);
        assert_ptr_equal(done, &jobs[i]);
        assert_int_equal(jobs[i].count, jobs[0].count);
        assert_memory_equal(jobs[i].ids, jobs[0].ids, jobs[0].count * sizeof *jobs[0].ids);
    }
    for (int i = 0; i < 4; i++)
        free(jobs[i].ids);
    sl_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_rank_merges_first),
        cmocka_unit_test(the_second_time_is_like_the_first),
        cmocka_unit_test(ignore_merges_takes_whole_pieces),
        cmocka_unit_test(long_pieces_merge_like_short_ones),
        cmocka_unit_test(every_byte_comes_back),
        cmocka_unit_test(control_tokens_count_only_when_asked),
        cmocka_unit_test(no_way_leads_plain_text_to_a_control_token),
        cmocka_unit_test(longest_added_token_at_the_leftmost_place),
        cmocka_unit_test(added_tokens_take_white_space_and_mind_words),
        cmocka_unit_test(normalized_tokens_match_normalised_text),
        cmocka_unit_test(tokens_only_the_configuration_names),
        cmocka_unit_test(post_processor_frames_the_text),
        cmocka_unit_test(configuration_adds_and_removes_bos),
        cmocka_unit_test(ends_of_turns_stop_and_are_control_tokens),
        cmocka_unit_test(end_of_a_harmony_message_does_not_stop),
        cmocka_unit_test(sentencepiece_words_and_bytes),
        cmocka_unit_test(metaspace_first_marks_only_the_beginning),
        cmocka_unit_test(pieces_stand_inside_a_text),
        cmocka_unit_test(an_unknown_id_is_an_error_that_names_it),
        cmocka_unit_test(bytes_without_a_token),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
