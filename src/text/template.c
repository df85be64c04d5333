/* Chat templates for the rest of Sluice: compile, render, and where a checkpoint keeps its template. The interpreter is
 * jinja_*.c. */
#include "text/text.h"

#include "text/jinja_tree.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

struct sl_template {
    jarena arena; /* the tree, its names and texts */
    const jtemplate *tree;
};

static const jinja_limits compile_limits = {.steps = 50u << 20, .memory = 512u << 20, .output = JINJA_MAX_SOURCE * 8};

/* An honest conversation of a million tokens takes a tenth of this; a hostile template ends after some seconds. */
static const jinja_limits render_limits = {.steps = 200u << 20, .memory = 256u << 20, .output = 64u << 20};

/* Runs work(j, ctx); false where it raised an error. Nothing of this frame changes after setjmp. */
static bool guarded(jinja *j, void (*work)(jinja *, void *), void *ctx) {
    if (setjmp(j->exit))
        return false;
    work(j, ctx);
    return true;
}

/* As guarded, with C's number and date formats whatever the program's locale is. */
static bool run(jinja *j, void (*work)(jinja *, void *), void *ctx) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return sl_fail(j->err, SL_ERR_MEMORY, "chat template: out of memory");
    locale_t before = uselocale(c);
    bool ok = guarded(j, work, ctx);
    uselocale(before);
    freelocale(c);
    return ok;
}

/* ---- compile --------------------------------------------------------------------------------- */

typedef struct compilation {
    const char *source;
    size_t n;
    const jtemplate *tree;
} compilation;

static void compile(jinja *j, void *ctx) {
    compilation *c = ctx;
    c->tree = jinja_parse(j, c->source, c->n);
}

sl_template *sl_template_compile(const char *source, size_t n, sl_error *err) {
    compilation c = {.source = source, .n = n};
    jinja j = {.err = err, .limits = compile_limits, .line = 1};
    sl_template *t = malloc(sizeof *t);
    if (!t)
        return sl_fail_null(err, SL_ERR_MEMORY, "chat template: out of memory");
    if (!run(&j, compile, &c)) {
        jinja_arena_free(&j.arena);
        free(t);
        return NULL;
    }
    *t = (sl_template){.arena = j.arena, .tree = c.tree};
    return t;
}

void sl_template_free(sl_template *t) {
    if (!t)
        return;
    jinja_arena_free(&t->arena);
    free(t);
}

/* ---- render ---------------------------------------------------------------------------------- */

typedef struct rendering {
    const jtemplate *tree;
    const json_t *globals;
} rendering;

static void render(jinja *j, void *ctx) {
    const rendering *r = ctx;
    j->globals = jinja_from_json(j, r->globals, 0).d;
    j->exported = jinja_dict_new(j);
    jenv *env = jinja_env(j, r->tree->fn, NULL);
    jinja_enter(j, env, &r->tree->scope);
    jinja_exec(j, env, &r->tree->body);
}

bool jinja_render_within(const sl_template *t, const json_t *globals, int64_t now, const jinja_limits *limits,
                         sl_buf *out, sl_error *err) {
    rendering r = {.tree = t->tree, .globals = globals};
    jinja j = {.err = err, .limits = *limits, .line = 1, .now = now};
    if (!json_is_object(globals))
        return sl_fail(err, SL_ERR_ARGUMENT, "chat template: the data must be a JSON object");
    j.hash_seed = (uint64_t)(uintptr_t)&j * 0x9E3779B97F4A7C15u;
    bool ok = run(&j, render, &r);
    if (ok && !sl_buf_append(out, j.out.data ? j.out.data : "", j.out.size))
        ok = sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory for %zu bytes of text", j.out.size);
    sl_buf_free(&j.out);
    jinja_arena_free(&j.arena);
    return ok;
}

bool sl_template_render(const sl_template *t, const json_t *globals, int64_t now, sl_buf *out, sl_error *err) {
    return jinja_render_within(t, globals, now, &render_limits, out, err);
}

/* ---- a checkpoint's template ----------------------------------------------------------------- */

static char *none(size_t *n, sl_error *err) {
    *n = 0;
    if (err)
        *err = (sl_error){.code = SL_OK};
    return NULL;
}

static char *copy(const char *p, size_t bytes, size_t *n, sl_error *err) {
    char *text = sl_strndup(p, bytes);
    *n = bytes;
    return text ? text : sl_fail_null(err, SL_ERR_MEMORY, "chat template: out of memory");
}

static char *gguf_source(const sl_ckpt *c, bool tools, size_t *n, sl_error *err) {
    sl_str s;
    if ((tools && sl_gguf_str(c, "tokenizer.chat_template.tool_use", &s)) ||
        sl_gguf_str(c, "tokenizer.chat_template", &s))
        return copy(s.p, s.n, n, err);
    return none(n, err);
}

/* [{"name": ..., "template": ...}, ...] */
static const json_t *named_template(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *its_name = json_string_value(json_object_get(entry, "name"));
        if (its_name && strcmp(its_name, name) == 0)
            return json_object_get(entry, "template");
    }
    return NULL;
}

static char *config_source(const sl_ckpt *c, bool tools, size_t *n, sl_error *err) {
    const json_t *found = json_object_get(sl_ckpt_json(c, "tokenizer_config.json"), "chat_template");
    if (!found || json_is_null(found))
        return none(n, err);
    if (json_is_array(found)) {
        const json_t *list = found;
        found = tools ? named_template(list, "tool_use") : NULL;
        if (!found)
            found = named_template(list, "default");
    }
    if (!json_is_string(found))
        return sl_fail_null(
            err, SL_ERR_FORMAT,
            "%s/tokenizer_config.json: chat_template is neither a string nor a list with a 'default' one",
            sl_ckpt_path(c));
    return copy(json_string_value(found), json_string_length(found), n, err);
}

char *sl_template_source(const sl_ckpt *c, bool tools, size_t *n, sl_error *err) {
    sl_error own;
    if (!err)
        err = &own;
    *err = (sl_error){.code = SL_OK};
    if (sl_ckpt_get_kind(c) == SL_CKPT_GGUF)
        return gguf_source(c, tools, n, err);
    char *text = sl_ckpt_text(c, "chat_template.jinja", n, err);
    if (text || err->code != SL_OK)
        return text;
    return config_source(c, tools, n, err);
}
