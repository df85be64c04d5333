/* Tokens to statement trees: text, {{ }} and the {% %} tags. */
#include "text/jinja_tree.h"

#include <string.h>

static jnodes parse_body(jparser *p, const char *const *ends);

jnode *jinja_statement(jparser *p, jnode_kind kind, int line) {
    jnode *n = jinja_node(p, kind, line);
    n->st = jinja_alloc(p->j, sizeof *n->st);
    return n;
}

/* The statements of a tag up to one of `ends`, which is left as the token at hand. */
static jnodes parse_block(jparser *p, const char *const *ends) {
    jinja_skip_op(p, ":");
    jinja_expect(p, JT_BLOCK_END, NULL);
    jinja_nest(p, 1);
    jnodes body = parse_body(p, ends);
    jinja_nest(p, -1);
    if (jinja_token(p)->kind == JT_EOF)
        jinja_raise(p->j, "the template ends before {%% %s %%}", ends[0]);
    return body;
}

/* ... and takes the end's name. */
static jnodes parse_block_to(jparser *p, const char *end) {
    jnodes body = parse_block(p, (const char *const[]){end, NULL});
    jinja_advance(p);
    return body;
}

static jnode *parse_if(jparser *p) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    jnode *whole = jinja_statement(p, JN_IF, jinja_advance(p)->line), *n = whole;
    for (;;) {
        n->a = jinja_parse_tuple(p, false, NULL, false);
        n->st->body = parse_block(p, ends);
        if (jinja_at_name(p, "elif")) {
            n = jinja_statement(p, JN_IF, jinja_advance(p)->line);
            jinja_node_push(p, &whole->items, n);
            continue;
        }
        if (jinja_skip_name(p, "else"))
            whole->st->other = parse_block_to(p, "endif");
        else
            jinja_advance(p);
        return whole;
    }
}

static jnode *copy_target(jparser *p, const jnode *target) {
    jnode *n = jinja_node(p, target->kind, target->line);
    *n = *target;
    n->items = (jnodes){0};
    for (size_t i = 0; i < target->items.n; i++)
        jinja_node_push(p, &n->items, copy_target(p, target->items.at[i]));
    return n;
}

static jnode *parse_for(jparser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    jnode *n = jinja_statement(p, JN_FOR, jinja_advance(p)->line);
    n->st->target = jinja_parse_target(p, false, "in");
    jinja_expect(p, JT_NAME, "in");
    n->a = jinja_parse_tuple(p, false, "recursive", false);
    if (jinja_skip_name(p, "if")) {
        n->b = jinja_parse_expression(p, true);
        n->st->test_target = copy_target(p, n->st->target);
    }
    n->st->recursive = jinja_skip_name(p, "recursive");
    int loops = p->loops;
    p->loops = loops + 1;
    n->st->body = parse_block(p, ends);
    p->loops = n->st->recursive ? 0 : loops;
    if (jinja_skip_name(p, "else"))
        n->st->other = parse_block_to(p, "endfor");
    else
        jinja_advance(p);
    p->loops = loops;
    return n;
}

static jnode *parse_set(jparser *p) {
    int line = jinja_advance(p)->line;
    jnode *target = jinja_parse_target(p, true, NULL);
    bool value = jinja_skip_op(p, "=");
    jnode *n = jinja_statement(p, value ? JN_SET : JN_SET_BLOCK, line);
    n->st->target = target;
    if (value)
        n->a = jinja_parse_tuple(p, true, NULL, false);
    else {
        n->a = jinja_parse_filters(p, NULL, false);
        n->st->body = parse_block_to(p, "endset");
    }
    return n;
}

/* (a, b=default): names into items, defaults of the last ones into other */
static void parse_signature(jparser *p, jnode *n) {
    jinja_expect(p, JT_OPERATOR, "(");
    while (!jinja_at_op(p, ")")) {
        if (n->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        jnode *name = jinja_parse_name_target(p);
        for (size_t i = 0; i < n->items.n; i++) {
            jinja_work(p->j, 0);
            if (n->items.at[i]->name == name->name)
                jinja_raise(p->j, "the parameter '%.*s' twice",
                            (int)(name->name->text->n > 100 ? 100 : name->name->text->n), name->name->text->p);
        }
        if (jinja_skip_op(p, "="))
            jinja_node_push(p, &n->st->other, jinja_parse_expression(p, true));
        else if (n->st->other.n)
            jinja_raise(p->j, "a parameter without default after one with");
        jinja_node_push(p, &n->items, name);
    }
    jinja_advance(p);
}

/* The body of something called: a loop outside of it is none of its own. */
static jnodes parse_function_body(jparser *p, const char *end) {
    int loops = p->loops;
    p->loops = 0;
    jnodes body = parse_block_to(p, end);
    p->loops = loops;
    return body;
}

static jnode *parse_macro(jparser *p) {
    jnode *n = jinja_statement(p, JN_MACRO, jinja_advance(p)->line);
    n->name = jinja_parse_name_target(p)->name;
    parse_signature(p, n);
    n->st->body = parse_function_body(p, "endmacro");
    return n;
}

static jnode *parse_call_block(jparser *p) {
    jnode *n = jinja_statement(p, JN_CALL_BLOCK, jinja_advance(p)->line);
    if (jinja_at_op(p, "("))
        parse_signature(p, n);
    n->a = jinja_parse_expression(p, true);
    if (n->a->kind != JN_CALL)
        jinja_raise(p->j, "{%% call %%} needs a call");
    for (size_t i = 0; i < n->a->args->named_n; i++)
        if (jinja_is(n->a->args->named[i].name, "caller"))
            jinja_raise(p->j, "the argument 'caller' is given twice");
    n->st->body = parse_function_body(p, "endcall");
    return n;
}

static jnode *parse_generation(jparser *p) {
    jnode *n = jinja_statement(p, JN_CALL_BLOCK, jinja_advance(p)->line);
    n->st->body = parse_function_body(p, "endgeneration");
    return n;
}

static jnode *parse_filter_block(jparser *p) {
    jnode *n = jinja_statement(p, JN_FILTER_BLOCK, jinja_advance(p)->line);
    n->a = jinja_parse_filters(p, NULL, true);
    n->st->body = parse_block_to(p, "endfilter");
    return n;
}

static jnode *parse_with(jparser *p) {
    jnode *n = jinja_statement(p, JN_WITH, jinja_advance(p)->line);
    while (jinja_token(p)->kind != JT_BLOCK_END) {
        if (n->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        jinja_node_push(p, &n->items, jinja_parse_target(p, false, NULL));
        jinja_expect(p, JT_OPERATOR, "=");
        jinja_node_push(p, &n->st->other, jinja_parse_expression(p, true));
    }
    n->st->body = parse_block_to(p, "endwith");
    return n;
}

/* Without inheritance a block is rendered where it stands. */
static jnode *parse_named_block(jparser *p) {
    jnode *n = jinja_statement(p, JN_BLOCK, jinja_advance(p)->line);
    if (jinja_token(p)->kind != JT_NAME)
        jinja_unexpected(p, "a name");
    n->name = jinja_intern(p, jinja_advance(p)->text);
    if (jinja_at_name(p, "scoped") || jinja_at_name(p, "required"))
        jinja_raise(p->j, "scoped and required blocks are not supported");
    for (size_t i = 0; i < p->blocks->n; i++) {
        jinja_work(p->j, 0);
        if (p->blocks->at[i]->name == n->name)
            jinja_raise(p->j, "two blocks of one name");
    }
    jinja_node_push(p, p->blocks, n);
    n->st->body = parse_function_body(p, "endblock");
    const jtoken *t = jinja_token(p);
    if (t->kind == JT_NAME && jinja_same(t->text, n->name->text))
        jinja_advance(p);
    return n;
}

static jnode *parse_print(jparser *p) {
    jnode *n = jinja_node(p, JN_OUTPUT, jinja_advance(p)->line);
    while (jinja_token(p)->kind != JT_BLOCK_END) {
        if (n->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        jinja_node_push(p, &n->items, jinja_parse_expression(p, true));
    }
    return n;
}

static jnode *parse_jump(jparser *p) {
    jnode_kind kind = jinja_at_name(p, "break") ? JN_BREAK : JN_CONTINUE;
    if (!p->loops)
        jinja_raise(p->j, "%s outside of a loop", kind == JN_BREAK ? "break" : "continue");
    return jinja_node(p, kind, jinja_advance(p)->line);
}

static jnode *parse_unsupported(jparser *p) {
    const jstr *name = jinja_token(p)->text;
    jinja_raise(p->j, "{%% %.*s %%} is not supported in a chat template", (int)name->n, name->p);
}

static jnode *parse_statement(jparser *p) {
    static const struct {
        const char *tag;
        jnode *(*parse)(jparser *);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"generation", parse_generation},
        {"break", parse_jump},
        {"continue", parse_jump},
        {"print", parse_print},
        {"block", parse_named_block},
        {"include", parse_unsupported},
        {"import", parse_unsupported},
        {"extends", parse_unsupported},
        {"from", parse_unsupported},
        {"autoescape", parse_unsupported},
    };
    const jtoken *t = jinja_token(p);
    if (t->kind != JT_NAME)
        jinja_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < SL_COUNT(tags); i++)
        if (jinja_is(t->text, tags[i].tag))
            return tags[i].parse(p);
    jinja_raise(p->j, "unknown tag {%% %.*s %%}", (int)(t->text->n > 100 ? 100 : t->text->n), t->text->p);
}

/* Text and {{ }} side by side become one output statement. */
static void push_output(jparser *p, jnodes *body, jnode *expression) {
    jnode *last = body->n ? body->at[body->n - 1] : NULL;
    if (!last || last->kind != JN_OUTPUT) {
        last = jinja_node(p, JN_OUTPUT, expression->line);
        jinja_node_push(p, body, last);
    }
    jinja_node_push(p, &last->items, expression);
}

static bool at_end(const jparser *p, const char *const *ends) {
    for (; *ends; ends++)
        if (jinja_at_name(p, *ends))
            return true;
    return false;
}

static jnodes parse_body(jparser *p, const char *const *ends) {
    jnodes body = {0};
    for (;;) {
        const jtoken *t = jinja_token(p);
        if (t->kind == JT_EOF)
            return body;
        jinja_advance(p);
        if (t->kind == JT_DATA) {
            jnode *text = jinja_node(p, JN_CONST, t->line);
            text->value = jinja_of_str(t->text);
            push_output(p, &body, text);
        } else if (t->kind == JT_VARIABLE_BEGIN) {
            push_output(p, &body, jinja_parse_tuple(p, true, NULL, false));
            jinja_expect(p, JT_VARIABLE_END, NULL);
        } else {
            if (at_end(p, ends))
                return body;
            jinja_node_push(p, &body, parse_statement(p));
            jinja_expect(p, JT_BLOCK_END, NULL);
        }
    }
}

jtemplate *jinja_parse(jinja *j, const char *source, size_t n) {
    jtemplate *t = jinja_alloc(j, sizeof *t);
    jparser p = {.j = j, .names_size = 1024, .blocks = &t->blocks};
    if (n > JINJA_MAX_SOURCE)
        jinja_raise(j, "%zu bytes long; the limit is %d", n, JINJA_MAX_SOURCE);
    p.names = jinja_alloc_array(j, p.names_size, sizeof *p.names);
    p.tokens = jinja_lex(j, source, n);
    j->line = 1;
    t->body = parse_body(&p, (const char *const[]){NULL});
    jinja_resolve(&p, t);
    return t;
}
