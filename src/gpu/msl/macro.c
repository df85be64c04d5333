/* Macros: definition and expansion. A macro's name is not expanded again while what it made is being read. */
#include "gpu/msl/preprocess.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- table ------------------------------------------------------------------------------------------------------- */

static size_t bucket(const msl_token *name) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < name->size; i++)
        h = (h ^ (unsigned char)name->text[i]) * 16777619u;
    return h % MSL_MACRO_BUCKETS;
}

static msl_macro *lookup(msl_preprocessor *p, const msl_token *name) {
    msl_macro *m = p->macros[bucket(name)];
    while (m && !msl_same(&m->name, name))
        m = m->next;
    return m;
}

msl_macro *msl_macro_find(msl_preprocessor *p, const msl_token *name) {
    msl_macro *m = lookup(p, name);
    return m && m->defined ? m : NULL;
}

void msl_macro_undefine(msl_preprocessor *p, const msl_token *name) {
    msl_macro *m = msl_macro_find(p, name);
    if (m)
        m->defined = false;
}

/* A redefinition gets a record of its own: the old one may be in the midst of its expansion. */
static msl_macro *new_macro(msl_preprocessor *p, const msl_token *name) {
    msl_macro *m = msl_alloc(&p->s->arena, sizeof *m);
    if (!m)
        return NULL;
    size_t b = bucket(name);
    m->name = *name;
    m->next = p->macros[b];
    m->defined = true;
    p->macros[b] = m;
    return m;
}

/* ---- definition -------------------------------------------------------------------------------------------------- */

/* Parameters of a function-like macro from t[0], behind `(`; *used counts through `)`. */
static bool parameters(msl_preprocessor *p, msl_macro *m, const msl_token *t, size_t n, size_t *used) {
    size_t i = 0;
    m->parameters = msl_alloc(&p->s->arena, (n + 1) * sizeof *m->parameters);
    if (!m->parameters)
        return msl_no_memory(p->s);
    while (i < n && !msl_is(&t[i], ")")) {
        if (msl_is(&t[i], "...")) {
            m->variadic = true;
            m->parameters[m->parameter_count] = t[i];
            m->parameters[m->parameter_count].text = "__VA_ARGS__";
            m->parameters[m->parameter_count++].size = 11;
        } else if (t[i].kind == MSL_NAME && !m->variadic) {
            m->parameters[m->parameter_count++] = t[i];
            if (i + 1 < n && msl_is(&t[i + 1], "..."))
                m->variadic = true, i++;
        } else {
            return msl_error_at(p->s, &t[i], "macro parameter expected");
        }
        i++;
        if (i < n && msl_is(&t[i], ","))
            i++;
    }
    if (i == n)
        return msl_error_at(p->s, &m->name, "macro parameters are not closed");
    *used = i + 1;
    return true;
}

bool msl_macro_define(msl_preprocessor *p, const msl_token *line, size_t n, const msl_token *at) {
    if (n == 0 || line[0].kind != MSL_NAME)
        return msl_error_at(p->s, at, "macro name expected");
    if (msl_is(&line[0], "defined"))
        return msl_error_at(p->s, at, "'defined' cannot be a macro");
    msl_macro *m = new_macro(p, &line[0]);
    if (!m)
        return msl_no_memory(p->s);
    size_t i = 1;
    if (n > 1 && msl_is(&line[1], "(") && !(line[1].flags & MSL_SPACED)) {
        size_t used = 0;
        m->function = true;
        if (!parameters(p, m, line + 2, n - 2, &used))
            return false;
        i = 2 + used;
    }
    msl_token *body = msl_alloc(&p->s->arena, (n - i + 1) * sizeof *body);
    if (!body)
        return msl_no_memory(p->s);
    for (size_t k = i; k < n; k++) {
        body[k - i] = line[k];
        if (msl_is(&line[k], "##"))
            body[k - i].flags |= MSL_PASTE;
    }
    m->body = body;
    m->body_count = n - i;
    if (n > i && (msl_is(&body[0], "##") || msl_is(&body[n - i - 1], "##")))
        return msl_error_at(p->s, at, "'##' at the end of a macro");
    return true;
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

bool msl_input_push(msl_preprocessor *p, const msl_input *in) {
    if (!sl_grow((void **)&p->input, &p->input_capacity, p->inputs + 1, sizeof *p->input))
        return msl_no_memory(p->s);
    p->input[p->inputs++] = *in;
    if (in->macro)
        in->macro->busy = true;
    return true;
}

/* Is `(` what follows, were what has been read off taken away? Looks no further than a barrier or a directive. */
static bool paren_follows(const msl_preprocessor *p) {
    for (size_t i = p->inputs; i-- > 0;) {
        const msl_input *in = &p->input[i];
        for (size_t k = in->next; k < in->count; k++) {
            if (in->file && (in->at[k].flags & MSL_BOL) && msl_is(&in->at[k], "#"))
                return false;
            if (in->at[k].kind != MSL_PRAGMA && in->at[k].kind != MSL_END)
                return msl_is(&in->at[k], "(");
        }
        if (in->barrier)
            return false;
    }
    return false;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

typedef struct argument {
    const msl_token *raw, *full; /* as written, expanded */
    size_t raw_count, full_count;
    bool expanded;
} argument;

typedef struct call {
    msl_macro *m;
    msl_token at; /* the name, whose line everything gets */
    argument *arguments;
    size_t count;
} call;

/* Copies tokens that were gathered in a growing array into the arena. */
static bool keep(msl_preprocessor *p, const msl_tokens *t, const msl_token **at, size_t *count) {
    msl_token *copy = msl_alloc(&p->s->arena, (t->count + 1) * sizeof *copy);
    if (!copy)
        return msl_no_memory(p->s);
    if (t->count)
        memcpy(copy, t->at, t->count * sizeof *copy);
    *at = copy;
    *count = t->count;
    return true;
}

static bool charge(msl_preprocessor *p, const msl_token *at, size_t n) {
    p->expanded += n;
    if (p->expanded > MSL_MAX_EXPANSION)
        return msl_error_at(p->s, at, "macros expand to more than %d tokens", MSL_MAX_EXPANSION);
    return true;
}

/* Reads through `)`. Commas inside brackets do not separate; those of a variadic tail neither. */
static bool read_arguments(msl_preprocessor *p, call *c) {
    size_t most = c->m->parameter_count ? c->m->parameter_count : 1;
    c->arguments = msl_alloc(&p->s->arena, most * sizeof *c->arguments);
    if (!c->arguments)
        return msl_no_memory(p->s);
    msl_tokens t = {0};
    msl_token x;
    int depth = 0;
    bool ok = msl_raw(p, &x); /* the `(` */
    while (ok && (ok = msl_raw(p, &x))) {
        if (x.kind == MSL_END) {
            ok = msl_error_at(p->s, &c->at, "arguments of macro %.*s are not closed", (int)c->at.size, c->at.text);
            break;
        }
        bool open = msl_is(&x, "(") || msl_is(&x, "{") || msl_is(&x, "[");
        bool close = msl_is(&x, ")") || msl_is(&x, "}") || msl_is(&x, "]");
        bool brace = msl_is(&x, "{") || msl_is(&x, "}") || msl_is(&x, "[") || msl_is(&x, "]");
        bool tail = c->m->variadic && c->count + 1 >= c->m->parameter_count;
        bool end = !depth && msl_is(&x, ")");
        if (end || (!depth && msl_is(&x, ",") && !tail)) {
            if (c->count >= most) {
                ok = msl_error_at(p->s, &c->at, "too many arguments for macro %.*s", (int)c->at.size, c->at.text);
                break;
            }
            argument *a = &c->arguments[c->count++];
            ok = charge(p, &c->at, t.count) && keep(p, &t, &a->raw, &a->raw_count);
            t.count = 0;
            if (end)
                break;
            continue;
        }
        if (!brace)
            depth += open - close;
        if (x.kind != MSL_PRAGMA && !(ok = msl_push(&t, &x) && t.count <= MSL_MAX_EXPANSION))
            msl_no_memory(p->s);
    }
    free(t.at);
    return ok;
}

static bool check_count(msl_preprocessor *p, call *c) {
    size_t want = c->m->parameter_count, have = c->count;
    if (want == 0 && have == 1 && c->arguments[0].raw_count == 0)
        have = 0;
    if (c->m->variadic && have + 1 >= want)
        return true; /* an empty tail is left zeroed */
    if (have != want)
        return msl_error_at(p->s, &c->at, "macro %.*s takes %zu arguments, not %zu", (int)c->at.size, c->at.text, want,
                            have);
    return true;
}

static bool full_argument(msl_preprocessor *p, const msl_token *at, argument *a) {
    if (a->expanded)
        return true;
    msl_tokens t = {0};
    if (++p->argument_depth > MSL_MAX_DEPTH)
        return msl_error_at(p->s, at, "macro arguments are nested too deep");
    bool ok = msl_expand_list(p, a->raw, a->raw_count, &t) && keep(p, &t, &a->full, &a->full_count);
    p->argument_depth--;
    a->expanded = true;
    free(t.at);
    return ok;
}

/* ---- substitution ------------------------------------------------------------------------------------------------ */

static int parameter_of(const call *c, const msl_token *t) {
    if (t->kind == MSL_NAME)
        for (size_t i = 0; i < c->m->parameter_count; i++)
            if (msl_same(&c->m->parameters[i], t))
                return (int)i;
    return -1;
}

static bool stringize(msl_preprocessor *p, const argument *a, const msl_token *at, msl_token *out) {
    sl_buf b = {0};
    sl_buf_puts(&b, "\"");
    for (size_t i = 0; i < a->raw_count; i++) {
        const msl_token *t = &a->raw[i];
        if (i && (t->flags & (MSL_SPACED | MSL_BOL)))
            sl_buf_puts(&b, " ");
        for (size_t k = 0; k < t->size; k++) {
            bool quoted = t->kind == MSL_STRING || t->kind == MSL_CHAR;
            if (quoted && (t->text[k] == '"' || t->text[k] == '\\'))
                sl_buf_puts(&b, "\\");
            sl_buf_append(&b, &t->text[k], 1);
        }
    }
    sl_buf_puts(&b, "\"");
    *out = *at;
    out->text = b.failed ? NULL : msl_copy(&p->s->arena, b.data, b.size);
    out->size = (uint32_t)b.size;
    out->kind = MSL_STRING;
    sl_buf_free(&b);
    return out->text ? true : msl_no_memory(p->s);
}

/* Joins right to the last token of out. */
static bool paste(msl_preprocessor *p, msl_tokens *out, const msl_token *right) {
    if (out->count == 0 || out->at[out->count - 1].size == 0) {
        if (out->count)
            out->count--;
        return msl_push(out, right) || msl_no_memory(p->s);
    }
    msl_token *left = &out->at[out->count - 1];
    if (right->size == 0)
        return true;
    size_t n = (size_t)left->size + right->size;
    char *text = n < MSL_MAX_SOURCE ? msl_alloc(&p->s->arena, n + 1) : NULL;
    if (!text)
        return msl_no_memory(p->s);
    memcpy(text, left->text, left->size);
    memcpy(text + left->size, right->text, right->size);
    left->text = text;
    left->size = (uint32_t)n;
    left->flags &= ~MSL_NOEXPAND;
    return charge(p, left, n / 16 + 1);
}

/* Appends n tokens; the first takes the white space of the token that they replace. An empty list leaves an empty token
 * where a paste needs an operand. */
static bool append(msl_preprocessor *p, msl_tokens *out, const msl_token *t, size_t n, const msl_token *for_token,
                   bool operand) {
    static const msl_token empty = {.text = "", .kind = MSL_PUNCT};
    if (n == 0 && operand)
        return msl_push(out, &empty) || msl_no_memory(p->s);
    if (!charge(p, for_token, n))
        return false;
    for (size_t i = 0; i < n; i++) {
        msl_token x = t[i];
        x.flags &= (uint8_t) ~(MSL_BOL | MSL_PASTE);
        if (i == 0)
            x.flags = (uint8_t)((x.flags & ~MSL_SPACED) | (for_token->flags & MSL_SPACED));
        if (!msl_push(out, &x))
            return msl_no_memory(p->s);
    }
    return true;
}

/* `, ## __VA_ARGS__`: the comma goes when there is no argument. */
static bool drops_comma(const call *c, const msl_tokens *out, int parameter) {
    return c->m->variadic && (size_t)parameter + 1 == c->m->parameter_count && out->count &&
           msl_is(&out->at[out->count - 1], ",");
}

static bool paste_argument(msl_preprocessor *p, call *c, msl_tokens *out, const msl_token *t, int k) {
    const argument *a = &c->arguments[k];
    if (drops_comma(c, out, k)) {
        if (a->raw_count == 0) {
            out->count--;
            return true;
        }
        return full_argument(p, &c->at, &c->arguments[k]) && append(p, out, a->full, a->full_count, t, false);
    }
    if (a->raw_count == 0)
        return paste(p, out, &(msl_token){.text = "", .kind = MSL_PUNCT});
    return paste(p, out, &a->raw[0]) && append(p, out, a->raw + 1, a->raw_count - 1, &a->raw[0], false);
}

/* `__VA_OPT__(tokens)`: index behind it; the tokens are wanted when the tail is not empty. */
static size_t variadic_option(const call *c, size_t i, bool *wanted) {
    const msl_macro *m = c->m;
    *wanted = c->arguments && c->arguments[m->parameter_count - 1].raw_count > 0;
    int depth = 0;
    for (size_t k = i + 1; k < m->body_count; k++) {
        depth += msl_is(&m->body[k], "(") - msl_is(&m->body[k], ")");
        if (depth == 0)
            return k + 1;
    }
    return m->body_count;
}

static bool substitute_range(msl_preprocessor *p, call *c, size_t from, size_t to, msl_tokens *out);

static bool substitute_one(msl_preprocessor *p, call *c, size_t *i, size_t to, msl_tokens *out) {
    const msl_token *b = c->m->body, *t = &b[*i];
    if (c->m->variadic && msl_is(t, "__VA_OPT__") && *i + 1 < to && msl_is(t + 1, "(")) {
        bool wanted;
        size_t end = variadic_option(c, *i, &wanted);
        bool ok = !wanted || end < *i + 3 || substitute_range(p, c, *i + 2, end - 1, out);
        *i = end;
        return ok;
    }
    if (c->m->function && msl_is(t, "#") && *i + 1 < to && parameter_of(c, t + 1) >= 0) {
        msl_token x;
        if (!stringize(p, &c->arguments[parameter_of(c, t + 1)], t, &x))
            return false;
        *i += 2;
        return append(p, out, &x, 1, t, false);
    }
    if ((t->flags & MSL_PASTE) && out->count && *i + 1 < to) {
        int k = parameter_of(c, t + 1);
        *i += 2;
        return k >= 0 ? paste_argument(p, c, out, t + 1, k) : paste(p, out, t + 1);
    }
    bool operand = *i + 1 < to && (t[1].flags & MSL_PASTE);
    int k = parameter_of(c, t);
    (*i)++;
    if (k < 0)
        return append(p, out, t, 1, t, false);
    argument *a = &c->arguments[k];
    if (operand)
        return append(p, out, a->raw, a->raw_count, t, true);
    return full_argument(p, &c->at, a) && append(p, out, a->full, a->full_count, t, false);
}

static bool substitute_range(msl_preprocessor *p, call *c, size_t from, size_t to, msl_tokens *out) {
    for (size_t i = from; i < to;)
        if (!substitute_one(p, c, &i, to, out))
            return false;
    return true;
}

/* Puts the macro's body, arguments in place, on top of the input. */
static bool expand_call(msl_preprocessor *p, call *c) {
    msl_tokens t = {0};
    bool ok = substitute_range(p, c, 0, c->m->body_count, &t);
    size_t n = 0;
    for (size_t i = 0; ok && i < t.count; i++) {
        if (t.at[i].size == 0)
            continue;
        msl_token *x = &t.at[n++];
        *x = t.at[i];
        x->line = c->at.line;
        x->file = c->at.file;
        if (x->kind == MSL_NAME && msl_same(x, &c->m->name))
            x->flags |= MSL_NOEXPAND;
    }
    t.count = n;
    if (n)
        t.at[0].flags |= c->at.flags & (MSL_SPACED | MSL_BOL);
    msl_input in = {.macro = c->m};
    ok = ok && keep(p, &t, &in.at, &in.count) && msl_input_push(p, &in);
    free(t.at);
    return ok;
}

/* ---- expansion --------------------------------------------------------------------------------------------------- */

static bool number_token(msl_preprocessor *p, msl_token *t, long long v) {
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", v);
    t->text = msl_copy(&p->s->arena, text, (size_t)n);
    t->size = (uint32_t)n;
    t->kind = MSL_NUMBER;
    return t->text ? true : msl_no_memory(p->s);
}

/* __LINE__, __FILE__, __COUNTER__. */
static bool built_in(msl_preprocessor *p, msl_token *t, bool *known) {
    *known = true;
    if (msl_is(t, "__LINE__"))
        return number_token(p, t, t->line);
    if (msl_is(t, "__COUNTER__"))
        return number_token(p, t, p->counter++);
    if (msl_is(t, "__FILE__")) {
        t->text = "\"kernel.metal\"";
        t->size = 14;
        t->kind = MSL_STRING;
        return true;
    }
    *known = false;
    return true;
}

bool msl_expanded(msl_preprocessor *p, msl_token *out) {
    for (;;) {
        bool known;
        if (!msl_raw(p, out))
            return false;
        if (out->kind != MSL_NAME || (out->flags & MSL_NOEXPAND))
            return true;
        if (!built_in(p, out, &known))
            return false;
        msl_macro *m = known ? NULL : msl_macro_find(p, out);
        if (m && m->busy)
            out->flags |= MSL_NOEXPAND;
        if (!m || m->busy || (m->function && !paren_follows(p)))
            return true;
        call c = {.m = m, .at = *out};
        if (!charge(p, out, 1) || (m->function && (!read_arguments(p, &c) || !check_count(p, &c))) ||
            !expand_call(p, &c))
            return false;
    }
}

bool msl_expand_list(msl_preprocessor *p, const msl_token *t, size_t n, msl_tokens *out) {
    msl_input in = {.at = t, .count = n, .barrier = true};
    if (!msl_input_push(p, &in))
        return false;
    msl_token x;
    for (;;) {
        if (!msl_expanded(p, &x))
            return false;
        if (x.kind == MSL_END)
            break;
        if (!msl_push(out, &x))
            return msl_no_memory(p->s);
    }
    p->inputs--;
    return true;
}
