/* Text through the public header: token ids, pieces, chat templates. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void sl_free(void *p) {
    free(p);
}

static bool need_tokenizer(const sl_engine *e, sl_error *err) {
    if (e->tokenizer)
        return true;
    return sl_fail(err, e->no_tokenizer.code, "%s", e->no_tokenizer.message);
}

/* ---- ids -------------------------------------------------------------------------------------------------------- */

bool sl_tokenize(const sl_engine *e, const char *text, size_t n, bool special, bool bos, int32_t **ids, size_t *count,
                 sl_error *err) {
    if (!need_tokenizer(e, err))
        return false;
    sl_encode_options o = {.special = special, .bos_eos = bos};
    return sl_encode(e->tokenizer, n ? text : "", n, o, ids, count, err);
}

bool sl_detokenize(const sl_engine *e, const int32_t *ids, size_t n, bool special, char **text, size_t *size,
                   sl_error *err) {
    if (!need_tokenizer(e, err))
        return false;
    sl_buf out = {0};
    bool ok = sl_decode_ids(e->tokenizer, ids, n, special, &out, err);
    *text = ok ? sl_buf_take(&out, size) : NULL;
    if (ok && !*text)
        ok = sl_fail(err, SL_ERR_MEMORY, "out of memory for the text of %zu tokens", n);
    sl_buf_free(&out);
    return ok;
}

size_t sl_token_text(const sl_engine *e, int32_t id, char *out, size_t size) {
    sl_buf piece = {0};
    if (e->tokenizer && id >= 0 && id < sl_tokenizer_size(e->tokenizer))
        sl_decode_piece(e->tokenizer, id, true, &piece);
    size_t n = piece.size < size ? piece.size : size ? size - 1 : 0, full = piece.size;
    if (n)
        memcpy(out, piece.data, n);
    if (size)
        out[n] = 0;
    sl_buf_free(&piece);
    return full;
}

int32_t sl_token_bos(const sl_engine *e) {
    return e->tokenizer ? sl_tokenizer_bos(e->tokenizer) : -1;
}

int32_t sl_token_eos(const sl_engine *e) {
    return e->tokenizer ? sl_tokenizer_eos(e->tokenizer) : -1;
}

bool sl_token_is_stop(const sl_engine *e, int32_t id) {
    return e->tokenizer && id >= 0 && id < sl_tokenizer_size(e->tokenizer) && sl_tokenizer_is_stop(e->tokenizer, id);
}

/* ---- chat templates --------------------------------------------------------------------------------------------- */

/* Mutex held: compiles the default template or the one for tools when it is first asked for. What is wrong with it is
 * told whoever asks: a model with a template outside the subset can still be used without. */
static void know_template(sl_engine *e, bool tools) {
    engine_templates *t = &e->templates;
    if (t->known[tools])
        return;
    size_t n = 0;
    sl_error *err = &t->error[tools];
    char *source = sl_template_source(e->ckpt, tools, &n, err);
    t->present[tools] = source || err->code != SL_OK;
    if (source)
        t->compiled[tools] = sl_template_compile(source, n, err);
    else if (err->code == SL_OK)
        sl_fail(err, SL_ERR_TEXT, "%s: the model has no chat template", e->path);
    if (t->present[tools] && !t->compiled[tools])
        sl_fail_prefix(err, "%s: chat template", e->path);
    free(source);
    t->known[tools] = true;
}

static const sl_template *find_template(const sl_engine *e, bool tools, sl_error *err) {
    engine_templates *t = (engine_templates *)&e->templates;
    pthread_mutex_lock(&t->mutex);
    know_template((sl_engine *)e, tools);
    const sl_template *found = t->compiled[tools];
    if (!found && err)
        *err = t->error[tools];
    pthread_mutex_unlock(&t->mutex);
    return found;
}

bool sl_has_chat_template(const sl_engine *e) {
    engine_templates *t = (engine_templates *)&e->templates;
    pthread_mutex_lock(&t->mutex);
    know_template((sl_engine *)e, false);
    bool yes = t->present[0];
    pthread_mutex_unlock(&t->mutex);
    return yes;
}

static json_t *parse_json(const char *name, const char *text, sl_error *err) {
    json_error_t e;
    json_t *j = text ? json_loads(text, 0, &e) : NULL;
    if (!j && text)
        sl_fail(err, SL_ERR_ARGUMENT, "%s: JSON line %d column %d: %s", name, e.line, e.column, e.text);
    else if (!j)
        sl_fail(err, SL_ERR_ARGUMENT, "%s: none given", name);
    return j;
}

/* The text of BOS or EOS as tokenizer_config.json has it (null: none), else of the tokenizer's id. */
static json_t *token_string(const sl_engine *e, const char *key, int32_t id) {
    const json_t *v = json_object_get(sl_ckpt_json(e->ckpt, "tokenizer_config.json"), key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (json_is_string(v))
        return json_string(json_string_value(v));
    if (id < 0 || (v && json_is_null(v)))
        return NULL;
    sl_buf piece = {0};
    json_t *s =
        sl_decode_piece(e->tokenizer, id, true, &piece) ? json_stringn(piece.data ? piece.data : "", piece.size) : NULL;
    sl_buf_free(&piece);
    return s;
}

/* Sets a global that may be absent: templates then see it undefined. */
static bool set_if(json_t *globals, const char *key, json_t *value) {
    return !value || json_object_set_new(globals, key, value) == 0;
}

/* The template's globals: extra first, so that it cannot replace what the call itself says. */
static json_t *make_globals(const sl_engine *e, const char *messages_json, const char *extra_json, bool prompt,
                            sl_error *err) {
    json_t *extra = parse_json("extra", extra_json ? extra_json : "{}", err);
    json_t *messages = extra ? parse_json("messages", messages_json, err) : NULL;
    bool ok = messages && json_is_object(extra) && json_is_array(messages);
    if (messages && !ok)
        sl_fail(err, SL_ERR_ARGUMENT, "%s",
                json_is_object(extra) ? "messages: an array expected" : "extra: an object expected");
    if (ok && (json_object_set(extra, "messages", messages) != 0 ||
               json_object_set_new(extra, "add_generation_prompt", json_boolean(prompt)) != 0 ||
               !set_if(extra, "bos_token", token_string(e, "bos_token", sl_token_bos(e))) ||
               !set_if(extra, "eos_token", token_string(e, "eos_token", sl_token_eos(e)))))
        ok = sl_fail(err, SL_ERR_MEMORY, "out of memory for the chat template");
    json_decref(messages);
    if (!ok) {
        json_decref(extra);
        return NULL;
    }
    return extra;
}

static bool has_tools(const json_t *globals) {
    return json_array_size(json_object_get(globals, "tools")) > 0;
}

/* The template for tools where there are any and the model has one of its own for them. */
static const sl_template *choose_template(const sl_engine *e, const json_t *globals, sl_error *err) {
    const sl_template *t = has_tools(globals) ? find_template(e, true, NULL) : NULL;
    return t ? t : find_template(e, false, err);
}

bool sl_chat_render(const sl_engine *e, const char *messages_json, const char *extra_json, bool add_generation_prompt,
                    char **text, size_t *size, sl_error *err) {
    if (!need_tokenizer(e, err))
        return false;
    json_t *globals = make_globals(e, messages_json, extra_json, add_generation_prompt, err);
    if (!globals)
        return false;
    sl_buf out = {0};
    const sl_template *t = choose_template(e, globals, err);
    bool ok = t && sl_template_render(t, globals, (int64_t)time(NULL), &out, err);
    /* What a template raises is its own text: it should say whose. */
    if (t && !ok && err && strncmp(err->message, "chat template", 13) != 0)
        sl_fail_prefix(err, "chat template");
    *text = ok ? sl_buf_take(&out, size) : NULL;
    if (ok && !*text)
        ok = sl_fail(err, SL_ERR_MEMORY, "out of memory for a rendered chat");
    sl_buf_free(&out);
    json_decref(globals);
    return ok;
}
