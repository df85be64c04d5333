/* What both halves of the parser stand on: the tokens at hand, nodes, names. */
#include "text/jinja_tree.h"

#include <string.h>

/* ---- tokens ---------------------------------------------------------------------------------- */

const jtoken *jinja_token(const jparser *p) {
    return &p->tokens.at[p->at];
}

const jtoken *jinja_peek(const jparser *p) {
    return &p->tokens.at[p->at + 1 < p->tokens.n ? p->at + 1 : p->tokens.n - 1];
}

const jtoken *jinja_advance(jparser *p) {
    const jtoken *t = jinja_token(p);
    if (p->at + 1 < p->tokens.n)
        p->at++;
    p->j->line = jinja_token(p)->line;
    return t;
}

bool jinja_token_is(const jtoken *t, jtoken_kind kind, const char *text) {
    return t->kind == kind && jinja_is(t->text, text);
}

bool jinja_at_op(const jparser *p, const char *op) {
    return jinja_token_is(jinja_token(p), JT_OPERATOR, op);
}

bool jinja_at_name(const jparser *p, const char *name) {
    return jinja_token_is(jinja_token(p), JT_NAME, name);
}

static bool skip_if(jparser *p, bool there) {
    if (there)
        jinja_advance(p);
    return there;
}

bool jinja_skip_op(jparser *p, const char *op) {
    return skip_if(p, jinja_at_op(p, op));
}

bool jinja_skip_name(jparser *p, const char *name) {
    return skip_if(p, jinja_at_name(p, name));
}

static const char *const kind_names[] = {
    [JT_EOF] = "the end of the template",
    [JT_DATA] = "text",
    [JT_BLOCK_BEGIN] = "'{%'",
    [JT_BLOCK_END] = "'%}'",
    [JT_VARIABLE_BEGIN] = "'{{'",
    [JT_VARIABLE_END] = "'}}'",
    [JT_NAME] = "a name",
    [JT_STRING] = "a string",
    [JT_INTEGER] = "a number",
    [JT_FLOAT] = "a number",
    [JT_OPERATOR] = "an operator",
};

_Noreturn void jinja_unexpected(jparser *p, const char *expected) {
    const jtoken *t = jinja_token(p);
    if (t->kind == JT_NAME || t->kind == JT_OPERATOR)
        jinja_raise(p->j, "expected %s, found '%.*s'", expected, (int)(t->text->n > 100 ? 100 : t->text->n),
                    t->text->p);
    jinja_raise(p->j, "expected %s, found %s", expected, kind_names[t->kind]);
}

void jinja_expect(jparser *p, jtoken_kind kind, const char *text) {
    const jtoken *t = jinja_token(p);
    if (t->kind == kind && (!text || jinja_is(t->text, text))) {
        jinja_advance(p);
        return;
    }
    char quoted[40];
    if (text) {
        quoted[0] = '\'';
        strcpy(quoted + 1, text);
        strcat(quoted, "'");
    }
    jinja_unexpected(p, text ? quoted : kind_names[kind]);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

jnode *jinja_node(jparser *p, jnode_kind kind, int line) {
    jnode *n = jinja_alloc(p->j, sizeof *n);
    n->kind = kind;
    n->line = line;
    n->height = 1;
    return n;
}

void jinja_node_push(jparser *p, jnodes *list, jnode *n) {
    void *at = list->at;
    jinja_grow(p->j, &at, &list->capacity, list->n, sizeof *list->at);
    list->at = at;
    list->at[list->n++] = n;
}

static int taller(int height, const jnode *child) {
    return child && child->height >= height ? child->height + 1 : height;
}

jnode *jinja_node_done(jparser *p, jnode *n) {
    n->height = taller(taller(taller(1, n->a), n->b), n->c);
    for (size_t i = 0; i < n->items.n; i++)
        n->height = taller(n->height, n->items.at[i]);
    if (n->args) {
        n->height = taller(taller(n->height, n->args->star), n->args->star2);
        for (size_t i = 0; i < n->args->named_n; i++)
            n->height = taller(n->height, n->args->named[i].value);
    }
    if (n->height > JINJA_MAX_HEIGHT)
        jinja_raise(p->j, "an expression of more than %d parts in each other", JINJA_MAX_HEIGHT);
    return n;
}

void jinja_nest(jparser *p, int by) {
    p->nesting += by;
    if (p->nesting > JINJA_MAX_NESTING)
        jinja_raise(p->j, "constructs nested more than %d deep", JINJA_MAX_NESTING);
}

jname *jinja_intern(jparser *p, const jstr *text) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < text->n; i++)
        h = (h ^ (unsigned char)text->p[i]) * 16777619u;
    jname **chain = &p->names[h % p->names_size];
    for (jname *name = *chain; name; name = name->next) {
        jinja_work(p->j, 0);
        if (jinja_same(name->text, text))
            return name;
    }
    jname *name = jinja_alloc(p->j, sizeof *name);
    name->text = text;
    name->next = *chain;
    return *chain = name;
}
