/* config.json and GGUF metadata behind one set of questions. */
#include "model/config_source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 80, KEY_BYTES = 160 };

bool config_source_open(config_source *s, const sl_ckpt *c, sl_error *err) {
    bool hf = sl_ckpt_get_kind(c) == SL_CKPT_HF;
    json_t *top = sl_ckpt_json(c, "config.json"), *text = json_object_get(top, "text_config");
    *s = (config_source){.ckpt = c, .json = top, .top = top};
    if (json_is_object(text)) { /* a model of text and images */
        s->json = text;
        snprintf(s->prefix, sizeof s->prefix, "text_config.");
    }
    s->asked = calloc(sl_gguf_key_count(c) + 1, 1);
    if (!s->asked)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    if (hf && !s->json)
        return sl_fail(err, SL_ERR_FORMAT, "%s: config.json is missing", sl_ckpt_path(c));
    s->file = hf ? sl_path_join(sl_ckpt_path(c), "config.json") : sl_strdup(sl_ckpt_path(c));
    return s->file || sl_fail(err, SL_ERR_MEMORY, "out of memory");
}

void config_source_free(config_source *s) {
    free(s->file);
    free(s->asked);
    s->file = NULL;
    s->asked = NULL;
}

/* ---- what is there ------------------------------------------------------------------------------------------------
 */

/* Second spellings of fields at config.json's top: transformers 5 writes some fields under the name that it uses for
 * all architectures. */
static const struct {
    const char *name, *other;
} aliases[] = {{"num_experts", "num_local_experts"}, {"num_experts", "n_routed_experts"}};

static json_t *json_set(const json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

/* The name under which the file has a field: its own, unless only an alias is there. */
static const char *hf_name(const config_source *s, const json_t *object, const char *name) {
    for (size_t i = 0; !object && i < SL_COUNT(aliases); i++)
        if (strcmp(name, aliases[i].name) == 0 && !json_set(s->json, name) && json_set(s->json, aliases[i].other))
            return aliases[i].other;
    return name;
}

/* NULL: absent. */
static json_t *json_field(const config_source *s, json_t *object, config_key key) {
    return key.hf ? json_set(object ? object : s->json, hf_name(s, object, key.hf)) : NULL;
}

bool config_check_aliases(const config_source *s, sl_error *err) {
    for (size_t i = 0; s->json && i < SL_COUNT(aliases); i++) {
        json_t *v = json_set(s->json, aliases[i].name), *other = json_set(s->json, aliases[i].other);
        char expected[128];
        snprintf(expected, sizeof expected, "the same as field %s", aliases[i].name);
        if (v && other && !json_equal(v, other))
            return config_wrong(s, NULL, (config_key){aliases[i].other, NULL}, expected, err);
    }
    return true;
}

static void gguf_key(const config_source *s, config_key key, char out[KEY_BYTES]) {
    snprintf(out, KEY_BYTES, "%s%s", s->prefix, key.gguf);
}

static bool gguf_has(const config_source *s, config_key key) {
    char name[KEY_BYTES];
    if (!key.gguf)
        return false;
    gguf_key(s, key, name);
    for (size_t i = 0, n = sl_gguf_key_count(s->ckpt); i < n; i++) {
        sl_str k = sl_gguf_key(s->ckpt, i);
        if (k.n == strlen(name) && memcmp(k.p, name, k.n) == 0) {
            s->asked[i] = 1;
            return true;
        }
    }
    return false;
}

/* What writers add and what changes nothing beside the keys that are asked for. */
static const char *const silent_keys[] = {"vocab_size",
                                          "attention.value_length",
                                          "attention.causal",
                                          "rope.scaling.finetuned",
                                          "tensor_data_layout",
                                          "expert_count",
                                          "expert_used_count",
                                          "expert_shared_count",
                                          "rope.dimension_sections" /* text has the same position in each */};

static bool is_silent(const config_source *s, sl_str key) {
    size_t prefix = strlen(s->prefix);
    for (size_t i = 0; i < SL_COUNT(silent_keys); i++) {
        size_t n = strlen(silent_keys[i]);
        if (key.n == prefix + n && memcmp(key.p, s->prefix, prefix) == 0 &&
            memcmp(key.p + prefix, silent_keys[i], n) == 0)
            return true;
    }
    return false;
}

void config_unknown_keys(const config_source *s, const char *arch, char *out, size_t size) {
    size_t used = 0, n = strlen(arch);
    out[0] = 0;
    for (size_t i = 0; !s->json && i < sl_gguf_key_count(s->ckpt) && used < size; i++) {
        sl_str k = sl_gguf_key(s->ckpt, i);
        if (!s->asked[i] && k.n > n && memcmp(k.p, arch, n) == 0 && !is_silent(s, k))
            used +=
                (size_t)snprintf(out + used, size - used, "%s%.*s", used ? ", " : "", (int)(k.n < 80 ? k.n : 80), k.p);
    }
}

/* A value of any type, cut to what a message can hold. */
static void show_json(json_t *v, char out[SHOWN]) {
    if (json_is_string(v)) {
        snprintf(out, SHOWN, "\"%.60s\"", json_string_value(v));
        return;
    }
    memset(out, 0, SHOWN);
    size_t n = json_dumpb(v, out, SHOWN - 4, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (n > SHOWN - 4)
        memcpy(out + strlen(out), "...", 4);
}

static void show_gguf(const config_source *s, config_key key, char out[SHOWN]) {
    char name[KEY_BYTES];
    sl_str text;
    int64_t i;
    double d;
    gguf_key(s, key, name);
    if (sl_gguf_str(s->ckpt, name, &text))
        snprintf(out, SHOWN, "\"%.*s\"", (int)(text.n < 60 ? text.n : 60), text.p);
    else if (sl_gguf_i64(s->ckpt, name, &i))
        snprintf(out, SHOWN, "%" PRId64, i);
    else if (sl_gguf_f64(s->ckpt, name, &d))
        snprintf(out, SHOWN, "%g", d);
    else
        snprintf(out, SHOWN, "a value of another type");
}

bool config_wrong(const config_source *s, json_t *object, config_key key, const char *expected, sl_error *err) {
    char found[SHOWN] = "";
    if (s->json)
        show_json(json_field(s, object, key), found);
    else
        show_gguf(s, key, found);
    return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %s, %s expected", s->file, s->prefix,
                   s->json ? hf_name(s, object, key.hf) : key.gguf, found, expected);
}

bool config_missing(const config_source *s, config_key key, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is missing", s->file, s->prefix, s->json ? key.hf : key.gguf);
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

/* Some GGUF fields may be one number per layer; here they must all be equal. */
static bool gguf_integer(const config_source *s, config_key key, int64_t *out) {
    char name[KEY_BYTES];
    sl_gguf_array list;
    gguf_key(s, key, name);
    if (sl_gguf_i64(s->ckpt, name, out))
        return true;
    if (!sl_gguf_arr(s->ckpt, name, &list) || list.count == 0 || !sl_gguf_arr_i64(&list, 0, out))
        return false;
    for (uint64_t i = 1; i < list.count; i++) {
        int64_t v;
        if (!sl_gguf_arr_i64(&list, i, &v) || v != *out)
            return false;
    }
    return true;
}

bool config_integer(const config_source *s, config_key key, int64_t min, int64_t max, int64_t *out, bool *found,
                    sl_error *err) {
    char expected[80];
    json_t *v = s->json ? json_field(s, NULL, key) : NULL;
    int64_t n = 0;
    *found = s->json ? v != NULL : gguf_has(s, key);
    if (!*found)
        return true;
    snprintf(expected, sizeof expected, "one integer from %" PRId64 " to %" PRId64, min, max);
    bool integer = s->json ? json_is_integer(v) : gguf_integer(s, key, &n);
    if (s->json && integer)
        n = json_integer_value(v);
    if (!integer || n < min || n > max)
        return config_wrong(s, NULL, key, expected, err);
    *out = n;
    return true;
}

/* ---- numbers, flags, strings --------------------------------------------------------------------------------------
 */

bool config_number(const config_source *s, json_t *object, config_key key, double min, double max, double *out,
                   bool *found, sl_error *err) {
    char expected[80], name[KEY_BYTES];
    json_t *v = s->json ? json_field(s, object, key) : NULL;
    double x = NAN;
    *found = s->json ? v != NULL : gguf_has(s, key);
    if (!*found)
        return true;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (s->json && json_is_number(v))
        x = json_number_value(v);
    if (!s->json) {
        gguf_key(s, key, name);
        if (!sl_gguf_f64(s->ckpt, name, &x))
            x = NAN;
    }
    if (!(x >= min && x <= max))
        return config_wrong(s, object, key, expected, err);
    *out = x;
    return true;
}

bool config_flag(const config_source *s, config_key key, bool *out, bool *found, sl_error *err) {
    char name[KEY_BYTES];
    json_t *v = s->json ? json_field(s, NULL, key) : NULL;
    *found = s->json ? v != NULL : gguf_has(s, key);
    if (!*found)
        return true;
    if (s->json && json_is_boolean(v)) {
        *out = json_is_true(v);
        return true;
    }
    if (!s->json) {
        gguf_key(s, key, name);
        if (sl_gguf_bool(s->ckpt, name, out))
            return true;
    }
    return config_wrong(s, NULL, key, "true or false", err);
}

bool config_text(const config_source *s, json_t *object, config_key key, sl_str *out, bool *found, sl_error *err) {
    char name[KEY_BYTES];
    json_t *v = s->json ? json_field(s, object, key) : NULL;
    *found = s->json ? v != NULL : gguf_has(s, key);
    if (!*found)
        return true;
    if (s->json && json_is_string(v)) {
        *out = (sl_str){json_string_value(v), json_string_length(v)};
        return true;
    }
    if (!s->json) {
        gguf_key(s, key, name);
        if (sl_gguf_str(s->ckpt, name, out))
            return true;
    }
    return config_wrong(s, object, key, "a string", err);
}
