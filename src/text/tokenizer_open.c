/* Tokenizer of a checkpoint of either kind. */
#include "text/tokenizer_internal.h"

#include <stdlib.h>

/* One id or a list of them, each of the model's vocabulary (which may be larger than the tokenizer's). */
static bool check_stops(const sl_ckpt *c, const char *file, const json_t *ids, sl_error *err) {
    const json_t *model = sl_ckpt_json(c, "config.json"), *text = json_object_get(model, "text_config"),
                 *vocab = json_object_get(text ? text : model, "vocab_size");
    int64_t most = json_is_integer(vocab) ? json_integer_value(vocab) - 1 : TEXT_MAX_ID;
    size_t n = json_is_array(ids) ? json_array_size(ids) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(ids) ? json_array_get(ids, i) : ids;
        char *found = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        bool ok = json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= most;
        if (!ok)
            sl_fail(err, SL_ERR_FORMAT, "%s/%s: field eos_token_id is %.60s, token ids from 0 to %lld expected",
                    sl_ckpt_path(c), file, found ? found : "?", (long long)most);
        free(found);
        if (!ok)
            return false;
    }
    return true;
}

/* Ids that end a generation beside the tokenizer's own: generation_config.json knows best; config.json where that is
 * silent. */
static bool extra_stops(const sl_ckpt *c, const json_t **out, sl_error *err) {
    static const char *const files[] = {"generation_config.json", "config.json"};
    *out = NULL;
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        const json_t *j = sl_ckpt_json(c, files[i]);
        const json_t *ids = json_object_get(j, "eos_token_id");
        if (!ids || json_is_null(ids))
            ids = json_object_get(json_object_get(j, "text_config"), "eos_token_id");
        if (ids && !json_is_null(ids)) {
            *out = ids;
            return check_stops(c, files[i], ids, err);
        }
    }
    return true;
}

/* tokenizer_config.json with what only special_tokens_map.json says. A new reference, or NULL where neither exists. */
static bool merged_config(const sl_ckpt *c, json_t **out, sl_error *err) {
    *out = NULL;
    const json_t *config = sl_ckpt_json(c, "tokenizer_config.json");
    sl_error e = {0};
    size_t n;
    char *text = sl_ckpt_text(c, "special_tokens_map.json", &n, &e);
    if (!text && e.code != SL_OK) {
        if (err)
            *err = e;
        return false;
    }
    json_error_t problem;
    json_t *map = text ? json_loadb(text, n, 0, &problem) : NULL;
    free(text);
    if (text && !map)
        return sl_fail(err, SL_ERR_FORMAT, "%s/special_tokens_map.json: line %d: %s", sl_ckpt_path(c), problem.line,
                       problem.text);
    *out = config ? json_copy((json_t *)config) : json_object();
    if (!*out || (json_is_object(map) && json_object_update_missing(*out, map) < 0)) {
        json_decref(map);
        json_decref(*out);
        return text_no_memory(err);
    }
    json_decref(map);
    return true;
}

static sl_tokenizer *open_hf(const sl_ckpt *c, sl_error *err) {
    sl_error e = {0};
    size_t n;
    char *text = sl_ckpt_text(c, "tokenizer.json", &n, &e);
    if (!text) {
        if (e.code != SL_OK && err)
            *err = e;
        return e.code != SL_OK ? NULL
                               : sl_fail_null(err, SL_ERR_TEXT,
                                              "%s: no tokenizer.json; other kinds of tokenizer files are not read",
                                              sl_ckpt_path(c));
    }
    json_t *config;
    const json_t *stops;
    sl_tokenizer *t = NULL;
    char *name = sl_path_join(sl_ckpt_path(c), "tokenizer.json");
    if (!name)
        text_no_memory(err);
    else if (extra_stops(c, &stops, err) && merged_config(c, &config, err)) {
        t = text_tokenizer_from_json(text, n, config, stops, name, err);
        json_decref(config);
    }
    free(name);
    free(text);
    return t;
}

sl_tokenizer *sl_tokenizer_open(const sl_ckpt *c, sl_error *err) {
    return sl_ckpt_get_kind(c) == SL_CKPT_GGUF ? text_tokenizer_from_gguf(c, err) : open_hf(c, err);
}
