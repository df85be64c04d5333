/* Tokenizers of checkpoints: GGUF metadata, Hugging Face directories, and llama.cpp's own vectors where the shared data
 * is there. */
#include "support_tokenizer.h"

#include "text/tokenizer_internal.h"

static const sl_encode_options plain, special = {.special = true}, framed = {.bos_eos = true};

/* ---- llama.cpp's vectors ---------------------------------------------------------------------------------------- */

#define SEPARATOR "\n__ggml_vocab_test__\n"

/* One line of ids; moves *at behind it. */
static size_t read_ids(const char **at, int32_t *ids, size_t room) {
    size_t n = 0;
    char *end = (char *)strchr(*at, '\n');
    if (!end)
        end = (char *)*at + strlen(*at);
    while (*at < end) {
        char *next;
        long id = strtol(*at, &next, 10);
        if (next > end || next == *at)
            break;
        assert_true(n < room);
        ids[n++] = (int32_t)id;
        *at = next;
    }
    *at = *end ? end + 1 : end;
    return n;
}

static void check_vectors(const sl_tokenizer *t, const char *stem) {
    sl_error err = {0};
    char path[600];
    size_t size, cases = 0;
    snprintf(path, sizeof path, "%s.inp", stem);
    char *in = sl_read_text(path, 1 << 20, &size, &err);
    snprintf(path, sizeof path, "%s.out", stem);
    char *out = in ? sl_read_text(path, 1 << 20, &size, &err) : NULL;
    if (!out)
        fail_msg("%s", err.message);
    const char *line = out;
    for (char *text = in, *next; text; text = next, cases++) {
        next = strstr(text, SEPARATOR);
        size_t n = next ? (size_t)(next - text) : strlen(text), count;
        next = next ? next + strlen(SEPARATOR) : NULL;
        if (!next && n && text[n - 1] == '\n')
            n--; /* the file's own last newline */
        int32_t want[512], *got;
        size_t wanted = read_ids(&line, want, SL_COUNT(want));
        assert_true(sl_encode(t, text, n, plain, &got, &count, &err));
        if (count != wanted || memcmp(got, want, count * sizeof *got) != 0)
            fail_msg("%s, case %zu '%.*s': %zu tokens, expected %zu", stem, cases, (int)n, text, count, wanted);
        free(got);
        expect_same_bytes(t, text, n, false);
    }
    assert_true(cases > 40);
    free(in);
    free(out);
}

static bool have_shared_data(void) {
    if (sl_path_is_dir(SL_SHARED_DATA "/tokenizers"))
        return true;
    print_message("SKIP: no shared data at %s\n", SL_SHARED_DATA "/tokenizers");
    return false;
}

static sl_tokenizer *open_path(const char *path, sl_error *err) {
    sl_ckpt *c = sl_ckpt_open(path, err);
    if (!c)
        return NULL;
    sl_tokenizer *t = sl_tokenizer_open(c, err);
    sl_ckpt_close(c);
    return t;
}

static void vectors_of_gguf_vocabularies(void **state) {
    static const char *const names[] = {"gpt-2", "deepseek-coder", "llama-spm", "phi-3"};
    if (!have_shared_data())
        skip();
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        sl_error err = {0};
        char path[500];
        snprintf(path, sizeof path, SL_SHARED_DATA "/tokenizers/gguf/ggml-vocab-%s.gguf", names[i]);
        sl_tokenizer *t = open_path(path, &err);
        if (!t)
            fail_msg("%s", err.message);
        check_vectors(t, path);
        sl_tokenizer_free(t);
    }
}

/* Qwen3 has the vocabulary of Qwen2 and a few tokens more. */
static void vectors_of_qwen_from_tokenizer_json(void **state) {
    if (!have_shared_data())
        skip();
    sl_error err = {0};
    static const char path[] = SL_SHARED_DATA "/tokenizers/qwen3/tokenizer.json";
    size_t size;
    char *json = sl_read_text(path, 64 << 20, &size, &err);
    json_t *config = json_load_file(SL_SHARED_DATA "/tokenizers/qwen3/tokenizer_config.json", 0, NULL);
    sl_tokenizer *t = json ? sl_tokenizer_from_json(json, size, config, path, &err) : NULL;
    if (!t)
        fail_msg("%s", err.message);
    check_vectors(t, SL_SHARED_DATA "/tokenizers/gguf/ggml-vocab-qwen2.gguf");
    assert_int_equal(sl_tokenizer_size(t), 151669);
    assert_int_equal(sl_tokenizer_eos(t), 151645);
    assert_int_equal(sl_tokenizer_bos(t), -1);
    assert_false(sl_tokenizer_adds_bos(t));
    assert_true(sl_tokenizer_is_stop(t, 151645));
    assert_true(sl_tokenizer_is_stop(t, 151643));
    assert_false(sl_tokenizer_is_stop(t, 151644));
    assert_true(sl_tokenizer_is_control(t, 151644));
    assert_false(sl_tokenizer_is_control(t, 151667)); /* <think> */
    expect_ids(t, "<|im_start|>user\n", special, 151644, 872, 198, -1);
    expect_ids(t, "e\u0301", plain, 963, -1); /* NFC */
    sl_tokenizer_free(t);
    json_decref(config);
    free(json);
}

static void phi3_tokens_take_the_space_behind_them(void **state) {
    if (!have_shared_data())
        skip();
    sl_error err = {0};
    sl_tokenizer *t = open_path(SL_SHARED_DATA "/tokenizers/gguf/ggml-vocab-phi-3.gguf", &err);
    if (!t)
        fail_msg("%s", err.message);
    expect_ids(t, "<|user|>\n hi<|end|>", special, 32010, 7251, 32007, -1);
    expect_ids(t, "<s> hi", special, 1, 29871, 7251, -1);
    expect_ids(t, "", framed, 1, -1);
    assert_true(sl_tokenizer_adds_bos(t));
    assert_true(sl_tokenizer_is_stop(t, 32007));
    assert_true(sl_tokenizer_is_stop(t, 32000));
    assert_false(sl_tokenizer_is_stop(t, 32001));
    assert_int_equal(sl_tokenizer_size(t), 32064);
    sl_tokenizer_free(t);
}

/* ---- hand-made GGUF --------------------------------------------------------------------------------------------- */

static const char *const bpe_tokens[] = {"a",      "b",          "ab", "\u0120", "\u0120ab", "<bos>", "<eos>",
                                         "<user>", "<|im_end|>", "1",  "11",     "e",        "\u0308"};
static const int32_t bpe_types[] = {1, 1, 1, 1, 1, 3, 3, 4, 4, 1, 1, 1, 1};
static const char *const bpe_merges[] = {"a b", "\u0120 ab", "1 1"};

static meta_file bpe_file(const char *pre) {
    meta_file f = {0};
    meta_text(&f, "general.architecture", "llama");
    meta_text(&f, "model", "gpt2");
    if (pre)
        meta_text(&f, "pre", pre);
    meta_texts(&f, "tokens", bpe_tokens, SL_COUNT(bpe_tokens));
    meta_ints(&f, "token_type", bpe_types, SL_COUNT(bpe_types));
    return f;
}

static sl_tokenizer *must_open(meta_file *f) {
    sl_error err = {0};
    sl_tokenizer *t = meta_open(f, &err);
    if (!t)
        fail_msg("%s", err.message);
    return t;
}

static void must_not_open(meta_file f, sl_code code, ...) {
    sl_error err = {0};
    sl_tokenizer *t = meta_open(&f, &err);
    assert_null(t);
    va_list texts;
    va_start(texts, code);
    expect_message(&err, code, texts);
    va_end(texts);
}

static void gguf_byte_level(void **state) {
    meta_file f = bpe_file("gpt-2");
    meta_texts(&f, "merges", bpe_merges, SL_COUNT(bpe_merges));
    meta_u32(&f, "bos_token_id", 5);
    meta_u32(&f, "eos_token_id", 6);
    meta_bool(&f, "add_bos_token", true);
    meta_bool(&f, "add_eos_token", true);
    sl_tokenizer *t = must_open(&f);
    expect_ids(t, "ab ab11", framed, 5, 2, 4, 10, 6, -1);
    expect_ids(t, "<bos><user>", special, 5, 7, -1);
    expect_ids(t, "<user>a", plain, 7, 0, -1);
    assert_int_equal(sl_tokenizer_bos(t), 5);
    assert_int_equal(sl_tokenizer_eos(t), 6);
    assert_true(sl_tokenizer_is_stop(t, 6));
    assert_true(sl_tokenizer_is_stop(t, 8));
    assert_true(sl_tokenizer_is_control(t, 8)); /* user-defined, but it ends a turn */
    expect_text(t, (int32_t[]){5, 4, 7, 6}, 4, true, "<bos> ab<user><eos>");
    sl_tokenizer_free(t);
}

static void pre_tokenizers_by_name(void **state) {
    meta_file f = bpe_file("smollm"); /* digits alone */
    meta_texts(&f, "merges", bpe_merges, SL_COUNT(bpe_merges));
    sl_tokenizer *t = must_open(&f);
    expect_ids(t, "11", plain, 9, 9, -1);
    assert_int_equal(sl_tokenizer_eos(t), -1);
    assert_false(sl_tokenizer_adds_bos(t));
    sl_tokenizer_free(t);
    f = bpe_file(NULL);
    meta_texts(&f, "merges", bpe_merges, SL_COUNT(bpe_merges));
    t = must_open(&f);
    expect_ids(t, "11", plain, 10, -1);
    sl_tokenizer_free(t);
    f = bpe_file("llama-bpe"); /* adds BOS by itself */
    meta_texts(&f, "merges", bpe_merges, SL_COUNT(bpe_merges));
    meta_u32(&f, "bos_token_id", 5);
    meta_u32(&f, "eot_token_id", 7);
    t = must_open(&f);
    assert_true(sl_tokenizer_adds_bos(t));
    assert_true(sl_tokenizer_is_stop(t, 7));
    sl_tokenizer_free(t);
}

static void every_pre_tokenizer_compiles(void **state) {
    assert_true(text_pre_count() > 80);
    for (size_t i = 0; i < text_pre_count(); i++) {
        const text_pre_row *row = text_pre_at(i);
        assert_non_null(row->regex[0]);
        assert_ptr_equal(text_pre_find(row->name, strlen(row->name)), row);
        for (size_t k = 0; k < SL_COUNT(row->regex) && row->regex[k]; k++) {
            sl_error err = {0};
            text_regex *r = text_regex_compile(row->regex[k], strlen(row->regex[k]), row->name, &err);
            if (!r)
                fail_msg("%s", err.message);
            text_regex_free(r);
        }
    }
    assert_null(text_pre_find("gpt-", 4));
}

/* Higher scores merge first, whatever the order of ids; a control token's text is no merge; é exists only inside a
 * piece. */
static const char *const spm_tokens[] = {"<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>",   "<0xFF>",  "\u2581", "a",
                                         "b",     "c",   "ab",   "bc",     "\u2581ab", "a\u00e9", "ca",     "<0x20>"};
static const float spm_scores[] = {0, 0, 0, 0, 0, 0, -9, -9, -9, -9, -2, -1, -3, -4, -5, 0};
static const int32_t spm_types[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 3, 6};

static meta_file spm_file(bool with_scores) {
    meta_file f = {0};
    meta_text(&f, "general.architecture", "llama");
    meta_text(&f, "model", "llama");
    meta_texts(&f, "tokens", spm_tokens, SL_COUNT(spm_tokens));
    meta_ints(&f, "token_type", spm_types, SL_COUNT(spm_types));
    if (with_scores)
        meta_floats(&f, "scores", spm_scores, SL_COUNT(spm_scores));
    return f;
}

static void gguf_sentencepiece(void **state) {
    meta_file f = spm_file(true);
    sl_tokenizer *t = must_open(&f);
    expect_ids(t, "ab", plain, 12, -1);
    expect_ids(t, "abc", plain, 6, 7, 11, -1); /* bc before ab */
    expect_ids(t, "ba\u00e9", plain, 6, 8, 13, -1);
    expect_ids(t, "\u00e9", plain, 6, 3, 4, -1);
    expect_ids(t, "\xff", plain, 6, 5, -1);
    expect_ids(t, "ca", special, 14, -1);
    expect_ids(t, "ca", plain, 6, 9, 7, -1);
    expect_ids(t, "z", plain, 6, 0, -1); /* no byte token for it */
    expect_ids(t, "ab", framed, 1, 12, -1);
    assert_true(sl_tokenizer_is_stop(t, 2));
    expect_text(t, (int32_t[]){1, 12, 3, 4, 12}, 5, true, "<s>ab\u00e9 ab");
    sl_tokenizer_free(t);
    f = spm_file(true);
    meta_bool(&f, "add_space_prefix", false);
    meta_bool(&f, "add_bos_token", false);
    t = must_open(&f);
    expect_ids(t, "ab ab", framed, 10, 12, -1);
    expect_text(t, (int32_t[]){12}, 1, true, " ab");
    sl_tokenizer_free(t);
}

static void broken_gguf_tokenizers_are_refused(void **state) {
    must_not_open(bpe_file("gpt-2"), SL_ERR_FORMAT, "tokenizer.ggml.merges", "without merges", NULL);
    must_not_open(bpe_file("unheard-of"), SL_ERR_UNSUPPORTED, "tokenizer.ggml.pre 'unheard-of'", NULL);
    must_not_open(spm_file(false), SL_ERR_FORMAT, "tokenizer.ggml.scores", NULL);
    meta_file f = bpe_file("gpt-2");
    meta_texts(&f, "merges", (const char *const[]){"a b", "a zz"}, 2);
    must_not_open(f, SL_ERR_FORMAT, "merges[1] 'a zz'", "the right part is not in the vocabulary", NULL);
    f = bpe_file("gpt-2");
    meta_texts(&f, "merges", (const char *const[]){"b a"}, 1);
    must_not_open(f, SL_ERR_FORMAT, "merges[0]", "what the two give", NULL);
    f = bpe_file("gpt-2");
    meta_texts(&f, "merges", (const char *const[]){"ab"}, 1);
    must_not_open(f, SL_ERR_FORMAT, "merges[0]", "two parts", NULL);
    f = (meta_file){0};
    meta_text(&f, "general.architecture", "llama");
    must_not_open(f, SL_ERR_FORMAT, "tokenizer.ggml.model is missing", NULL);
    f = (meta_file){0};
    meta_text(&f, "general.architecture", "llama");
    meta_text(&f, "model", "bert");
    must_not_open(f, SL_ERR_UNSUPPORTED, "'bert'", NULL);
    f = (meta_file){0};
    meta_text(&f, "general.architecture", "llama");
    meta_text(&f, "model", "gpt2");
    must_not_open(f, SL_ERR_FORMAT, "tokenizer.ggml.tokens", NULL);
    f = (meta_file){0};
    meta_text(&f, "general.architecture", "llama");
    meta_text(&f, "model", "gpt2");
    meta_texts(&f, "tokens", bpe_tokens, SL_COUNT(bpe_tokens));
    meta_ints(&f, "token_type", bpe_types, 3);
    must_not_open(f, SL_ERR_FORMAT, "token_type has 3 entries; expected 13", NULL);
}

/* ---- Hugging Face directory ------------------------------------------------------------------------------------- */

static char *hf_folder(const char *tokenizer) {
    static const char tensors[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                      config[] = "{\"eos_token_id\":258}";
    char *folder = make_folder(), file[8 + sizeof tensors - 1 + 4] = {sizeof tensors - 1};
    memcpy(file + 8, tensors, sizeof tensors - 1);
    put_file(folder, "model.safetensors", file, sizeof file);
    put_file(folder, "config.json", config, sizeof config - 1);
    if (tokenizer)
        put_file(folder, "tokenizer.json", tokenizer, strlen(tokenizer));
    return folder;
}

static void put_text(const char *folder, const char *name, const char *text) {
    put_file(folder, name, text, strlen(text));
}

static void directory_with_side_files(void **state) {
    sl_error err = {0};
    char *json = byte_json("", "\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true},"
                               "{\"id\":301,\"content\":\"<e>\",\"special\":true},{\"id\":302,\"content\":\"<t>\"}],");
    char *folder = hf_folder(json);
    sl_tokenizer *t = open_path(folder, &err);
    if (!t)
        fail_msg("%s", err.message);
    assert_int_equal(sl_tokenizer_bos(t), -1);
    assert_true(sl_tokenizer_is_stop(t, 258)); /* config.json's, an ordinary piece */
    assert_false(sl_tokenizer_is_control(t, 258));
    expect_ids(t, "lo", plain, 258, -1);
    sl_tokenizer_free(t);

    put_text(folder, "special_tokens_map.json", "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"<t>\"}}");
    put_text(folder, "tokenizer_config.json", "{\"eos_token\":\"<e>\"}");
    put_text(folder, "generation_config.json", "{\"eos_token_id\":[302]}");
    t = open_path(folder, &err);
    if (!t)
        fail_msg("%s", err.message);
    assert_int_equal(sl_tokenizer_bos(t), 300);
    assert_int_equal(sl_tokenizer_eos(t), 301); /* tokenizer_config.json before special_tokens_map.json */
    assert_true(sl_tokenizer_is_stop(t, 301));
    assert_true(sl_tokenizer_is_stop(t, 302));
    assert_true(sl_tokenizer_is_control(t, 302));
    expect_ids(t, "<t>", plain, '<', 't', '>', -1);
    assert_false(sl_tokenizer_is_stop(t, 258));
    sl_tokenizer_free(t);

    put_text(folder, "generation_config.json", "{\"eos_token_id\":[302, \"x\"]}");
    assert_null(open_path(folder, &err));
    assert_non_null(strstr(err.message, "generation_config.json: field eos_token_id is \"x\""));
    put_text(folder, "generation_config.json", "{}");
    put_text(folder, "special_tokens_map.json", "{");
    assert_null(open_path(folder, &err));
    assert_non_null(strstr(err.message, "special_tokens_map.json"));
    remove_folder(folder);
    free(json);
}

static void directory_without_tokenizer(void **state) {
    sl_error err = {0};
    char *folder = hf_folder(NULL);
    assert_null(open_path(folder, &err));
    assert_int_equal(err.code, SL_ERR_TEXT);
    assert_non_null(strstr(err.message, "no tokenizer.json"));
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_gguf_vocabularies),
        cmocka_unit_test(vectors_of_qwen_from_tokenizer_json),
        cmocka_unit_test(phi3_tokens_take_the_space_behind_them),
        cmocka_unit_test(gguf_byte_level),
        cmocka_unit_test(pre_tokenizers_by_name),
        cmocka_unit_test(every_pre_tokenizer_compiles),
        cmocka_unit_test(gguf_sentencepiece),
        cmocka_unit_test(broken_gguf_tokenizers_are_refused),
        cmocka_unit_test(directory_with_side_files),
        cmocka_unit_test(directory_without_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
