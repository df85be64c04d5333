/* Tokens to expression trees. Grammar and precedence are jinja2's: or, and, not, comparisons, + -, ~, * / // %, **,
 * unary, postfix, filters and tests. */
#include "text/jinja_tree.h"

#include <string.h>

/* ---- primary --------------------------------------------------------------------------------- */

static jnode *node_of(jparser *p, jnode_kind kind, int line, jnode *a, jnode *b) {
    jnode *n = jinja_node(p, kind, line);
    n->a = a;
    n->b = b;
    return jinja_node_done(p, n);
}

static jnode *constant(jparser *p, jval value, int line) {
    jnode *n = jinja_node(p, JN_CONST, line);
    n->value = value;
    return n;
}

static jnode *parse_cond(jparser *p);

jnode *jinja_parse_tuple(jparser *p, bool with_cond, const char *stop, bool parentheses) {
    int line = jinja_token(p)->line;
    jnode *tuple = jinja_node(p, JN_TUPLE, line);
    bool comma = false;
    for (;;) {
        if (tuple->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        const jtoken *t = jinja_token(p);
        if (t->kind == JT_VARIABLE_END || t->kind == JT_BLOCK_END || jinja_at_op(p, ")") ||
            (stop && jinja_at_name(p, stop)))
            break;
        jinja_node_push(p, &tuple->items, jinja_parse_expression(p, with_cond));
        if (!jinja_at_op(p, ","))
            break;
        comma = true;
    }
    if (!comma && tuple->items.n)
        return tuple->items.at[0];
    if (!comma && !parentheses)
        jinja_unexpected(p, "an expression");
    return jinja_node_done(p, tuple);
}

static jnode *parse_list(jparser *p) {
    jnode *list = jinja_node(p, JN_LIST, jinja_advance(p)->line);
    while (!jinja_at_op(p, "]")) {
        if (list->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        if (jinja_at_op(p, "]"))
            break;
        jinja_node_push(p, &list->items, jinja_parse_expression(p, true));
    }
    jinja_advance(p);
    return jinja_node_done(p, list);
}

static jnode *parse_dict(jparser *p) {
    jnode *dict = jinja_node(p, JN_DICT, jinja_advance(p)->line);
    while (!jinja_at_op(p, "}")) {
        if (dict->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        if (jinja_at_op(p, "}"))
            break;
        jinja_node_push(p, &dict->items, jinja_parse_expression(p, true));
        jinja_expect(p, JT_OPERATOR, ":");
        jinja_node_push(p, &dict->items, jinja_parse_expression(p, true));
    }
    jinja_advance(p);
    return jinja_node_done(p, dict);
}

static jnode *parse_strings(jparser *p) {
    const jtoken *first = jinja_advance(p);
    jtext t = {.j = p->j};
    if (jinja_token(p)->kind != JT_STRING)
        return constant(p, jinja_of_str(first->text), first->line);
    jinja_put_str(&t, first->text);
    while (jinja_token(p)->kind == JT_STRING)
        jinja_put_str(&t, jinja_advance(p)->text);
    jval joined = jinja_text(&t);
    jinja_points(p->j, joined.s); /* counted now: rendering threads share it */
    return constant(p, joined, first->line);
}

static jnode *parse_name(jparser *p, bool namespaces) {
    static const struct {
        const char *name;
        jkind kind;
        bool value;
    } constants[] = {{"true", J_BOOL, true},   {"True", J_BOOL, true},  {"false", J_BOOL, false},
                     {"False", J_BOOL, false}, {"none", J_NONE, false}, {"None", J_NONE, false}};
    const jtoken *t = jinja_advance(p);
    for (size_t i = 0; i < SL_COUNT(constants); i++)
        if (jinja_is(t->text, constants[i].name))
            return constant(p, (jval){.kind = constants[i].kind, .b = constants[i].value}, t->line);
    bool attribute = namespaces && jinja_skip_op(p, ".");
    jnode *n = jinja_node(p, attribute ? JN_NSREF : JN_NAME, t->line);
    n->name = jinja_intern(p, t->text);
    if (attribute) {
        if (jinja_token(p)->kind != JT_NAME)
            jinja_unexpected(p, "a name");
        n->attr = jinja_advance(p)->text;
    }
    return n;
}

static jnode *parse_primary(jparser *p, bool namespaces) {
    const jtoken *t = jinja_token(p);
    jnode *n = NULL;
    if (t->kind == JT_NAME)
        return parse_name(p, namespaces);
    if (t->kind == JT_STRING)
        return parse_strings(p);
    if (t->kind == JT_INTEGER || t->kind == JT_FLOAT) {
        jinja_advance(p);
        return constant(p, t->value, t->line);
    }
    jinja_nest(p, 1);
    if (jinja_skip_op(p, "(")) {
        n = jinja_parse_tuple(p, true, NULL, true);
        jinja_expect(p, JT_OPERATOR, ")");
    } else if (jinja_at_op(p, "["))
        n = parse_list(p);
    else if (jinja_at_op(p, "{"))
        n = parse_dict(p);
    else
        jinja_unexpected(p, "an expression");
    jinja_nest(p, -1);
    return n;
}

/* ---- postfix: .name, [item], (arguments), |filter, is test ----------------------------------- */

static void add_named(jparser *p, jcallargs *args, size_t *capacity) {
    const jstr *name = jinja_advance(p)->text;
    jinja_advance(p); /* = */
    for (size_t i = 0; i < args->named_n; i++) {
        jinja_work(p->j, 0);
        if (jinja_same(args->named[i].name, name))
            jinja_raise(p->j, "the argument '%.*s' is given twice", (int)(name->n > 100 ? 100 : name->n), name->p);
    }
    void *at = args->named;
    jinja_grow(p->j, &at, capacity, args->named_n, sizeof *args->named);
    args->named = at;
    jnode *value = jinja_parse_expression(p, true);
    args->named[args->named_n++] = (jnamed){.name = name, .value = value};
}

/* (a, b, name=c, *d, **e): in this order. */
static void parse_arguments(jparser *p, jnode *n) {
    jcallargs *args = n->args = jinja_alloc(p->j, sizeof *n->args);
    size_t capacity = 0;
    jinja_nest(p, 1);
    jinja_advance(p);
    for (bool first = true; !jinja_at_op(p, ")"); first = false) {
        if (!first) {
            jinja_expect(p, JT_OPERATOR, ",");
            if (jinja_at_op(p, ")"))
                break;
        }
        bool is_named = jinja_token(p)->kind == JT_NAME && jinja_token_is(jinja_peek(p), JT_OPERATOR, "=");
        bool is_star = jinja_at_op(p, "*");
        if (args->star2 || (is_star && args->star) ||
            (!is_named && !jinja_at_op(p, "**") && !is_star && (args->named_n || args->star)))
            jinja_raise(p->j, "the arguments of a call are in the wrong order");
        if (is_star) {
            jinja_advance(p);
            args->star = jinja_parse_expression(p, true);
        } else if (jinja_skip_op(p, "**"))
            args->star2 = jinja_parse_expression(p, true);
        else if (is_named)
            add_named(p, args, &capacity);
        else
            jinja_node_push(p, &n->items, jinja_parse_expression(p, true));
    }
    jinja_expect(p, JT_OPERATOR, ")");
    jinja_nest(p, -1);
}

static jnode *parse_call(jparser *p, jnode *of) {
    jnode *n = jinja_node(p, JN_CALL, jinja_token(p)->line);
    n->a = of;
    parse_arguments(p, n);
    return jinja_node_done(p, n);
}

static jnode *optional_bound(jparser *p) {
    if (jinja_at_op(p, ":") || jinja_at_op(p, "]") || jinja_at_op(p, ","))
        return NULL;
    return jinja_parse_expression(p, true);
}

/* One item between brackets: an expression or from:to:step. */
static jnode *parse_subscribed(jparser *p) {
    int line = jinja_token(p)->line;
    jnode *from = jinja_at_op(p, ":") ? NULL : jinja_parse_expression(p, true);
    if (!jinja_skip_op(p, ":"))
        return from;
    jnode *slice = jinja_node(p, JN_SLICE, line);
    slice->a = from;
    slice->b = optional_bound(p);
    if (jinja_skip_op(p, ":"))
        slice->c = optional_bound(p);
    return jinja_node_done(p, slice);
}

static jnode *parse_brackets(jparser *p, jnode *of) {
    int line = jinja_advance(p)->line;
    jnode *tuple = jinja_node(p, JN_TUPLE, line);
    jinja_nest(p, 1);
    while (!jinja_at_op(p, "]")) {
        if (tuple->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        jnode *item = parse_subscribed(p);
        jinja_node_push(p, &tuple->items, item);
        if (item->kind == JN_SLICE && (tuple->items.n > 1 || jinja_at_op(p, ",")))
            jinja_raise(p->j, "a slice among several items");
    }
    jinja_advance(p);
    jinja_nest(p, -1);
    return node_of(p, JN_GETITEM, line, of, tuple->items.n == 1 ? tuple->items.at[0] : jinja_node_done(p, tuple));
}

static jnode *parse_dot(jparser *p, jnode *of) {
    int line = jinja_advance(p)->line;
    const jtoken *t = jinja_token(p);
    if (t->kind != JT_NAME && t->kind != JT_INTEGER)
        jinja_unexpected(p, "a name or number");
    jinja_advance(p);
    if (t->kind == JT_INTEGER)
        return node_of(p, JN_GETITEM, line, of, constant(p, t->value, t->line));
    jnode *n = jinja_node(p, JN_GETATTR, line);
    n->a = of;
    n->attr = t->text;
    return jinja_node_done(p, n);
}

static jnode *parse_postfix(jparser *p, jnode *n) {
    for (;;) {
        if (jinja_at_op(p, "."))
            n = parse_dot(p, n);
        else if (jinja_at_op(p, "["))
            n = parse_brackets(p, n);
        else if (jinja_at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* name or name.name */
static const jstr *parse_dotted(jparser *p) {
    jtext t = {.j = p->j};
    do {
        if (jinja_token(p)->kind != JT_NAME)
            jinja_unexpected(p, "a name");
        if (t.n)
            jinja_puts(&t, ".");
        jinja_put_str(&t, jinja_advance(p)->text);
    } while (jinja_skip_op(p, "."));
    return jinja_text(&t).s;
}

jnode *jinja_parse_filters(jparser *p, jnode *of, bool at_name) {
    while (at_name || jinja_skip_op(p, "|")) {
        jnode *n = jinja_node(p, JN_FILTER, jinja_token(p)->line);
        n->a = of;
        n->attr = parse_dotted(p);
        n->builtin = jinja_find_filter(n->attr);
        if (jinja_at_op(p, "("))
            parse_arguments(p, n);
        of = jinja_node_done(p, n);
        at_name = false;
    }
    return of;
}

/* A test's argument may stand without parentheses: is divisibleby 3. */
static bool at_bare_argument(jparser *p) {
    const jtoken *t = jinja_token(p);
    if (t->kind == JT_NAME)
        return !jinja_is(t->text, "else") && !jinja_is(t->text, "or") && !jinja_is(t->text, "and");
    return t->kind == JT_STRING || t->kind == JT_INTEGER || t->kind == JT_FLOAT || jinja_at_op(p, "[") ||
           jinja_at_op(p, "{");
}

static jnode *parse_test(jparser *p, jnode *of) {
    int line = jinja_advance(p)->line;
    bool negated = jinja_skip_name(p, "not");
    jnode *n = jinja_node(p, JN_TEST, line);
    n->a = of;
    n->attr = parse_dotted(p);
    n->builtin = jinja_find_test(n->attr);
    if (jinja_at_op(p, "("))
        parse_arguments(p, n);
    else if (at_bare_argument(p)) {
        if (jinja_at_name(p, "is"))
            jinja_raise(p->j, "tests cannot be chained with 'is'");
        jinja_node_push(p, &n->items, parse_postfix(p, parse_primary(p, false)));
    }
    n = jinja_node_done(p, n);
    return negated ? node_of(p, JN_NOT, line, n, NULL) : n;
}

static jnode *parse_filters_and_tests(jparser *p, jnode *n) {
    for (;;) {
        if (jinja_at_op(p, "|"))
            n = jinja_parse_filters(p, n, false);
        else if (jinja_at_name(p, "is"))
            n = parse_test(p, n);
        else if (jinja_at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* ---- operators ------------------------------------------------------------------------------- */

static jnode *parse_unary(jparser *p, bool with_filter) {
    int line = jinja_token(p)->line;
    bool minus = jinja_skip_op(p, "-"), plus = !minus && jinja_skip_op(p, "+");
    jnode *n;
    if (minus || plus) {
        jinja_nest(p, 1);
        n = node_of(p, minus ? JN_NEG : JN_POS, line, parse_unary(p, false), NULL);
        jinja_nest(p, -1);
    } else
        n = parse_primary(p, false);
    n = parse_postfix(p, n);
    return with_filter ? parse_filters_and_tests(p, n) : n;
}

static jnode *binary(jparser *p, jop op, int line, jnode *a, jnode *b) {
    jnode *n = node_of(p, JN_BINARY, line, a, b);
    n->op = op;
    return n;
}

static jnode *parse_power(jparser *p) {
    jnode *n = parse_unary(p, true);
    while (jinja_at_op(p, "**")) {
        int line = jinja_advance(p)->line;
        n = binary(p, JOP_POW, line, n, parse_unary(p, true));
    }
    return n;
}

typedef struct operator_token {
    const char *text;
    jop op;
} operator_token;

static const operator_token *operator_at(const jparser *p, const operator_token *table, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (jinja_at_op(p, table[i].text))
            return &table[i];
    return NULL;
}

static jnode *parse_product(jparser *p) {
    static const operator_token table[] = {{"*", JOP_MUL}, {"/", JOP_DIV}, {"//", JOP_FLOORDIV}, {"%", JOP_MOD}};
    jnode *n = parse_power(p);
    for (const operator_token *o; (o = operator_at(p, table, SL_COUNT(table)));) {
        int line = jinja_advance(p)->line;
        n = binary(p, o->op, line, n, parse_power(p));
    }
    return n;
}

static jnode *parse_concat(jparser *p) {
    jnode *first = parse_product(p);
    if (!jinja_at_op(p, "~"))
        return first;
    jnode *n = jinja_node(p, JN_CONCAT, first->line);
    jinja_node_push(p, &n->items, first);
    while (jinja_skip_op(p, "~"))
        jinja_node_push(p, &n->items, parse_product(p));
    return jinja_node_done(p, n);
}

static jnode *parse_sum(jparser *p) {
    static const operator_token table[] = {{"+", JOP_ADD}, {"-", JOP_SUB}};
    jnode *n = parse_concat(p);
    for (const operator_token *o; (o = operator_at(p, table, SL_COUNT(table)));) {
        int line = jinja_advance(p)->line;
        n = binary(p, o->op, line, n, parse_concat(p));
    }
    return n;
}

/* The comparison at hand, taken; false: none. */
static bool take_comparison(jparser *p, jop *op) {
    static const operator_token table[] = {{"==", JOP_EQ}, {"!=", JOP_NE}, {"<", JOP_LT},
                                           {"<=", JOP_LE}, {">", JOP_GT},  {">=", JOP_GE}};
    const operator_token *o = operator_at(p, table, SL_COUNT(table));
    bool not_in = jinja_at_name(p, "not") && jinja_token_is(jinja_peek(p), JT_NAME, "in");
    if (!o && !not_in && !jinja_at_name(p, "in"))
        return false;
    *op = o ? o->op : not_in ? JOP_NOT_IN : JOP_IN;
    jinja_advance(p);
    if (not_in)
        jinja_advance(p);
    return true;
}

static jnode *parse_comparison(jparser *p) {
    int line = jinja_token(p)->line;
    jnode *first = parse_sum(p), *n = NULL;
    for (jop op; take_comparison(p, &op);) {
        if (!n)
            n = jinja_node(p, JN_COMPARE, line);
        jnode *operand = jinja_node(p, JN_OPERAND, line);
        operand->op = op;
        operand->a = parse_sum(p);
        jinja_node_push(p, &n->items, jinja_node_done(p, operand));
    }
    if (!n)
        return first;
    n->a = first;
    return jinja_node_done(p, n);
}

static jnode *parse_not(jparser *p) {
    int line = jinja_token(p)->line;
    if (!jinja_skip_name(p, "not"))
        return parse_comparison(p);
    jinja_nest(p, 1);
    jnode *n = node_of(p, JN_NOT, line, parse_not(p), NULL);
    jinja_nest(p, -1);
    return n;
}

static jnode *parse_and(jparser *p) {
    jnode *n = parse_not(p);
    while (jinja_at_name(p, "and")) {
        int line = jinja_advance(p)->line;
        n = node_of(p, JN_AND, line, n, parse_not(p));
    }
    return n;
}

static jnode *parse_or(jparser *p) {
    jnode *n = parse_and(p);
    while (jinja_at_name(p, "or")) {
        int line = jinja_advance(p)->line;
        n = node_of(p, JN_OR, line, n, parse_and(p));
    }
    return n;
}

static jnode *parse_cond(jparser *p) {
    jnode *n = parse_or(p);
    while (jinja_at_name(p, "if")) {
        jnode *cond = jinja_node(p, JN_COND, jinja_advance(p)->line);
        cond->b = n;
        cond->a = parse_or(p);
        if (jinja_skip_name(p, "else")) {
            jinja_nest(p, 1);
            cond->c = parse_cond(p);
            jinja_nest(p, -1);
        }
        n = jinja_node_done(p, cond);
    }
    return n;
}

jnode *jinja_parse_expression(jparser *p, bool with_cond) {
    return with_cond ? parse_cond(p) : parse_or(p);
}

/* ---- targets --------------------------------------------------------------------------------- */

static void make_store(jparser *p, jnode *n) {
    n->store = true;
    if (n->kind == JN_TUPLE)
        for (size_t i = 0; i < n->items.n; i++)
            make_store(p, n->items.at[i]);
    else if (n->kind != JN_NAME && n->kind != JN_NSREF)
        jinja_raise(p->j, "only a name, a namespace's attribute or several of them can be assigned to");
}

jnode *jinja_parse_target(jparser *p, bool namespaces, const char *stop) {
    jnode *tuple = jinja_node(p, JN_TUPLE, jinja_token(p)->line);
    bool comma = false;
    for (;;) {
        if (tuple->items.n)
            jinja_expect(p, JT_OPERATOR, ",");
        const jtoken *t = jinja_token(p);
        if (t->kind == JT_VARIABLE_END || t->kind == JT_BLOCK_END || jinja_at_op(p, ")") ||
            (stop && jinja_at_name(p, stop)))
            break;
        jinja_node_push(p, &tuple->items, parse_primary(p, namespaces));
        if (!jinja_at_op(p, ","))
            break;
        comma = true;
    }
    if (!tuple->items.n)
        jinja_unexpected(p, "a name");
    jnode *target = comma ? jinja_node_done(p, tuple) : tuple->items.at[0];
    make_store(p, target);
    return target;
}

jnode *jinja_parse_name_target(jparser *p) {
    if (jinja_token(p)->kind != JT_NAME)
        jinja_unexpected(p, "a name");
    jnode *n = parse_name(p, false);
    make_store(p, n);
    return n;
}
