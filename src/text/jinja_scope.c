/* Names to slots, with jinja2's scoping rules, which are decided before rendering:
 *
 * - A scope (loop body, macro, with, set block, filter block) owns each name that it stores, and each that it reads and
 * no scope around it owns. All uses in the scope, also earlier ones, mean the same variable.
 * - On entry a variable that is stored starts as a copy of the outer one of that name, or empty; one only read, or
 * stored in a branch of an `if`, as what the context holds. So {% set %} in a loop neither lasts to the next round nor
 * leaves the loop.
 * - `if` opens no scope. Macros see the variables around their definition as they are when called.
 *
 * A scope is first scanned for its names (the statements of inner scopes left out), then its references are resolved
 * and inner scopes opened: so every scope around the one at hand is complete. Names hold the chain of their open
 * variables. */
#include "text/jinja_tree.h"

#include <string.h>

typedef struct scope scope;
typedef struct jsymbol symbol;

/* A name's variable in one open scope. */
struct jsymbol {
    symbol *outer; /* same name, scope around */
    symbol *next;  /* same scope */
    scope *in;
    jname *name;
    jload_kind load;
    bool stored;
    uint32_t slot;
};

/* Scopes of one depth in one function share the slot of a name, as they share the local variable in jinja2's generated
 * code. */
struct jslot {
    struct jslot *next;
    const jfn *fn;
    int level;
    uint32_t slot;
};

struct scope {
    jparser *p;
    scope *outer;
    jfn *fn;
    int level;
    symbol *first, **last;
    bool top;  /* the template itself */
    bool soft; /* under an `if`: an unknown filter is an error only when used */
    bool has_blocks;
};

/* ---- walking --------------------------------------------------------------------------------- */

typedef void (*visitor)(void *ctx, jnode *n);

static void visit_all(const jnodes *list, visitor visit, void *ctx) {
    for (size_t i = 0; i < list->n; i++)
        visit(ctx, list->at[i]);
}

static void visit_if(jnode *n, visitor visit, void *ctx) {
    if (n)
        visit(ctx, n);
}

/* Every child, in the order in which jinja2's visitors see them. */
static void visit_children(jnode *n, visitor visit, void *ctx) {
    jstatement *st = n->st;
    switch (n->kind) {
    case JN_FOR:
    case JN_SET:
    case JN_SET_BLOCK:
        visit(ctx, st->target);
        visit_if(n->a, visit, ctx);
        visit_all(&st->body, visit, ctx);
        visit_all(&st->other, visit, ctx);
        visit_if(n->b, visit, ctx);
        break;
    case JN_IF:
        visit(ctx, n->a);
        visit_all(&st->body, visit, ctx);
        visit_all(&n->items, visit, ctx);
        visit_all(&st->other, visit, ctx);
        break;
    case JN_MACRO:
    case JN_CALL_BLOCK:
    case JN_WITH:
        visit_if(n->a, visit, ctx);
        visit_all(&n->items, visit, ctx);
        visit_all(&st->other, visit, ctx);
        visit_all(&st->body, visit, ctx);
        break;
    case JN_FILTER_BLOCK:
    case JN_BLOCK:
        visit_all(&st->body, visit, ctx);
        visit_if(n->a, visit, ctx);
        break;
    default:
        visit_if(n->a, visit, ctx);
        visit_if(n->b, visit, ctx);
        visit_if(n->c, visit, ctx);
        visit_all(&n->items, visit, ctx);
        for (size_t i = 0; n->args && i < n->args->named_n; i++)
            visit(ctx, n->args->named[i].value);
        if (n->args) {
            visit_if(n->args->star, visit, ctx);
            visit_if(n->args->star2, visit, ctx);
        }
    }
}

/* Which special names a body reads before it writes them, nested scopes included. */
typedef struct reads {
    const char *names[3];
    bool over[3], found[3]; /* over: written */
} reads;

static void look_for_reads(void *ctx, jnode *n) {
    reads *r = ctx;
    if (n->kind == JN_BLOCK)
        return;
    for (int i = 0; n->kind == JN_NAME && i < 3 && r->names[i]; i++) {
        if (!jinja_is(n->name->text, r->names[i]) || r->over[i])
            continue;
        if (n->store)
            r->over[i] = true;
        else
            r->found[i] = true;
    }
    visit_children(n, look_for_reads, ctx);
}

/* {% set loop = ... %} inside a loop */
static void forbid_loop_store(void *ctx, jnode *n) {
    jparser *p = ctx;
    if (n->kind == JN_NAME && n->store && jinja_is(n->name->text, "loop")) {
        p->j->line = n->line;
        jinja_raise(p->j, "'loop' cannot be assigned to inside a loop");
    }
    if (n->kind == JN_MACRO || n->kind == JN_CALL_BLOCK || n->kind == JN_WITH) { /* parameters may be named so */
        visit_if(n->a, forbid_loop_store, ctx);
        visit_all(&n->st->other, forbid_loop_store, ctx);
        visit_all(&n->st->body, forbid_loop_store, ctx);
    } else
        visit_children(n, forbid_loop_store, ctx);
}

/* ---- variables ------------------------------------------------------------------------------- */

static uint32_t slot_of(scope *s, jname *name) {
    for (struct jslot *slot = name->slots; slot; slot = slot->next) {
        jinja_work(s->p->j, 0);
        if (slot->fn == s->fn && slot->level == s->level)
            return slot->slot;
    }
    struct jslot *slot = jinja_alloc(s->p->j, sizeof *slot);
    *slot = (struct jslot){.next = name->slots, .fn = s->fn, .level = s->level, .slot = s->fn->slots++};
    name->slots = slot;
    return slot->slot;
}

static symbol *own(const scope *s, const jname *name) {
    return name->open && name->open->in == s ? name->open : NULL;
}

static symbol *define(scope *s, jname *name, jload_kind load, bool stored) {
    symbol *v = jinja_alloc(s->p->j, sizeof *v);
    *v = (symbol){.outer = name->open, .in = s, .name = name, .load = load, .stored = stored, .slot = slot_of(s, name)};
    name->open = v;
    *s->last = v;
    s->last = &v->next;
    return v;
}

static void declare(scope *s, jname *name) {
    symbol *v = own(s, name);
    if (!v)
        v = define(s, name, JLOAD_PARAM, true);
    v->load = JLOAD_PARAM;
    v->stored = true;
}

static void store(scope *s, jname *name, bool branch) {
    symbol *v = own(s, name);
    if (v)
        v->stored = true;
    else
        define(s, name, name->open ? JLOAD_ALIAS : branch ? JLOAD_RESOLVE : JLOAD_UNDEFINED, true);
}

static void load(scope *s, jname *name) {
    if (!name->open)
        define(s, name, JLOAD_RESOLVE, false);
}

static uint32_t hops(const jfn *from, const jfn *to) {
    uint32_t n = 0;
    for (; from != to; from = from->outer)
        n++;
    return n;
}

static jfn *new_fn(jparser *p, jfn *outer) {
    jfn *fn = jinja_alloc(p->j, sizeof *fn);
    fn->outer = outer;
    return fn;
}

static void open_scope(scope *s, scope *outer, jfn *fn) {
    *s = (scope){.p = outer->p, .outer = outer, .fn = fn, .level = outer->level + 1, .has_blocks = outer->has_blocks};
    s->last = &s->first;
}

/* Takes the scope's variables off their names and writes down what happens to them on entry. */
static void close_scope(scope *s, jscope *out) {
    for (symbol *v = s->first; v; v = v->next) {
        void *at = out->at;
        jinja_grow(s->p->j, &at, &out->capacity, out->n, sizeof *out->at);
        out->at = at;
        jload *l = &out->at[out->n++];
        *l = (jload){.kind = v->load, .slot = v->slot, .name = v->name->text};
        if (v->load == JLOAD_ALIAS)
            l->from = (jref){.hops = hops(s->fn, v->outer->in->fn), .slot = v->outer->slot};
        v->name->open = v->outer;
    }
}

/* ---- scan: the names of one scope ------------------------------------------------------------ */

typedef struct scan_ctx {
    scope *s;
    bool branch, as_parameter;
} scan_ctx;

static void scan(void *ctx, jnode *n);

static void scan_if(const scan_ctx *c, jnode *n) {
    scan_ctx branch = {.s = c->s, .branch = true};
    scan((void *)c, n->a);
    visit_all(&n->st->body, scan, &branch);
    visit_all(&n->items, scan, &branch);
    visit_all(&n->st->other, scan, &branch);
}

static void scan(void *ctx, jnode *n) {
    const scan_ctx *c = ctx;
    switch (n->kind) {
    case JN_NAME:
        if (c->as_parameter)
            declare(c->s, n->name);
        else if (n->store)
            store(c->s, n->name, c->branch);
        else
            load(c->s, n->name);
        break;
    case JN_NSREF:
        load(c->s, n->name);
        break;
    case JN_IF:
        scan_if(c, n);
        break;
    case JN_MACRO:
        store(c->s, n->name, c->branch);
        break;
    case JN_SET:
        scan(ctx, n->a);
        scan(ctx, n->st->target);
        break;
    case JN_SET_BLOCK:
        scan(ctx, n->st->target);
        break;
    case JN_FOR:
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
        visit_if(n->a, scan, ctx);
        break;
    case JN_WITH:
        visit_all(&n->st->other, scan, ctx);
        break;
    case JN_BLOCK:
        break;
    default:
        visit_children(n, scan, ctx);
    }
}

static void scan_body(scope *s, const jnodes *body) {
    scan_ctx c = {.s = s};
    visit_all(body, scan, &c);
}

static void scan_target(scope *s, jnode *target) {
    scan_ctx c = {.s = s, .as_parameter = true};
    scan(&c, target);
}

/* ---- resolve --------------------------------------------------------------------------------- */

static void resolve(void *ctx, jnode *n);

static void resolve_body(scope *s, const jnodes *body) {
    visit_all(body, resolve, s);
}

static void resolve_for(scope *outer, jnode *n) {
    jstatement *st = n->st;
    jparser *p = outer->p;
    scope s;
    reads r = {.names = {"loop"}};
    resolve(outer, n->a);
    visit_all(&st->body, look_for_reads, &r);
    st->extended = st->recursive || r.found[0];
    forbid_loop_store(p, n);
    st->fn = st->recursive ? new_fn(p, outer->fn) : outer->fn;

    open_scope(&s, outer, st->fn);
    if (st->extended) {
        jname *loop = jinja_intern(p, jinja_str(p->j, "loop").s);
        declare(&s, loop);
        st->loop_slot = loop->open->slot;
    }
    scan_target(&s, st->target);
    scan_body(&s, &st->body);
    resolve(&s, st->target);
    resolve_body(&s, &st->body);
    close_scope(&s, &st->scope);

    open_scope(&s, outer, st->fn);
    scan_body(&s, &st->other);
    resolve_body(&s, &st->other);
    close_scope(&s, &st->else_scope);
    if (!n->b)
        return;
    st->test_fn = new_fn(p, outer->fn);
    open_scope(&s, outer, st->test_fn);
    scan_ctx c = {.s = &s};
    scan_target(&s, st->test_target);
    scan(&c, n->b);
    resolve(&s, st->test_target);
    resolve(&s, n->b);
    close_scope(&s, &st->test_scope);
}

static void declare_special(scope *s, const char *text, uint32_t *slot) {
    jname *name = jinja_intern(s->p, jinja_str(s->p->j, text).s);
    declare(s, name);
    *slot = name->open->slot;
}

static bool has_parameter(const jnode *n, const char *name, size_t *at) {
    for (*at = 0; *at < n->items.n; ++*at)
        if (jinja_is(n->items.at[*at]->name->text, name))
            return true;
    return false;
}

/* Macro, or the body of a call block. */
static void resolve_function(scope *outer, jnode *n) {
    jstatement *st = n->st;
    scope s;
    scan_ctx c = {.s = &s};
    reads r = {.names = {"caller", "kwargs", "varargs"}};
    size_t at;
    st->fn = new_fn(outer->p, outer->fn);
    open_scope(&s, outer, st->fn);
    for (size_t i = 0; i < n->items.n; i++)
        scan_target(&s, n->items.at[i]);
    visit_all(&st->other, scan, &c);
    scan_body(&s, &st->body);
    visit_all(&st->body, look_for_reads, &r);
    st->takes_caller = r.found[0];
    st->explicit_caller = has_parameter(n, "caller", &at);
    if (st->takes_caller && st->explicit_caller && n->items.n - at > st->other.n) {
        s.p->j->line = n->line;
        jinja_raise(s.p->j, "the parameter 'caller' needs a default");
    }
    if (st->takes_caller && !st->explicit_caller)
        declare_special(&s, "caller", &st->caller_slot);
    st->catch_kwargs = r.found[1] && !has_parameter(n, "kwargs", &at);
    if (st->catch_kwargs)
        declare_special(&s, "kwargs", &st->kwargs_slot);
    st->catch_varargs = r.found[2] && !has_parameter(n, "varargs", &at);
    if (st->catch_varargs)
        declare_special(&s, "varargs", &st->varargs_slot);
    resolve_body(&s, &n->items);
    resolve_body(&s, &st->other);
    resolve_body(&s, &st->body);
    close_scope(&s, &st->scope);
}

static void resolve_set_block(scope *outer, jnode *n) {
    scope s;
    resolve(outer, n->st->target);
    open_scope(&s, outer, outer->fn);
    scan_body(&s, &n->st->body);
    resolve_body(&s, &n->st->body);
    if (n->a)
        resolve(&s, n->a);
    close_scope(&s, &n->st->scope);
}

static void resolve_filter_block(scope *outer, jnode *n) {
    scope s;
    scan_ctx c = {.s = &s};
    open_scope(&s, outer, outer->fn);
    scan_body(&s, &n->st->body);
    scan(&c, n->a);
    resolve_body(&s, &n->st->body);
    resolve(&s, n->a);
    close_scope(&s, &n->st->scope);
}

static void resolve_with(scope *outer, jnode *n) {
    scope s;
    resolve_body(outer, &n->st->other);
    open_scope(&s, outer, outer->fn);
    for (size_t i = 0; i < n->items.n; i++)
        scan_target(&s, n->items.at[i]);
    scan_body(&s, &n->st->body);
    resolve_body(&s, &n->items);
    resolve_body(&s, &n->st->body);
    close_scope(&s, &n->st->scope);
}

static void resolve_softly(scope *s, jnode *n) {
    bool before = s->soft;
    s->soft = true;
    visit_children(n, resolve, s);
    s->soft = before;
}

static void resolve_name(scope *s, jnode *n) {
    const symbol *v = n->name->open;
    if (!v) {
        s->p->j->line = n->line;
        jinja_raise(s->p->j, "'%.*s' cannot be used here", (int)(n->name->text->n > 100 ? 100 : n->name->text->n),
                    n->name->text->p);
    }
    n->ref = (jref){.hops = hops(s->fn, v->in->fn), .slot = v->slot};
}

static void require_builtin(scope *s, const jnode *n) {
    if (n->builtin || s->soft)
        return;
    s->p->j->line = n->line;
    jinja_raise(s->p->j, "unknown %s '%.*s'", n->kind == JN_FILTER ? "filter" : "test",
                (int)(n->attr->n > 100 ? 100 : n->attr->n), n->attr->p);
}

static void resolve(void *ctx, jnode *n) {
    scope *s = ctx;
    switch (n->kind) {
    case JN_NAME:
    case JN_NSREF:
        resolve_name(s, n);
        break;
    case JN_FOR:
        resolve_for(s, n);
        break;
    case JN_MACRO:
        n->st->exported = s->top && s->has_blocks;
        resolve_name(s, n);
        resolve_function(s, n);
        break;
    case JN_CALL_BLOCK:
        if (n->a)
            resolve(s, n->a);
        resolve_function(s, n);
        break;
    case JN_SET_BLOCK:
        n->st->exported = s->top && s->has_blocks;
        resolve_set_block(s, n);
        break;
    case JN_FILTER_BLOCK:
        resolve_filter_block(s, n);
        break;
    case JN_WITH:
        resolve_with(s, n);
        break;
    case JN_BLOCK:
        break;
    case JN_IF:
    case JN_COND:
        resolve_softly(s, n);
        break;
    case JN_SET:
        n->st->exported = s->top && s->has_blocks;
        visit_children(n, resolve, s);
        break;
    case JN_FILTER:
    case JN_TEST:
        require_builtin(s, n);
        visit_children(n, resolve, s);
        break;
    default:
        visit_children(n, resolve, s);
    }
}

static void resolve_outermost(jparser *p, const jnodes *body, jfn **fn, jscope *out, bool top) {
    scope s = {.p = p, .top = top, .has_blocks = p->blocks->n > 0};
    s.last = &s.first;
    s.fn = *fn = new_fn(p, NULL);
    scan_body(&s, body);
    resolve_body(&s, body);
    close_scope(&s, out);
}

void jinja_resolve(jparser *p, jtemplate *t) {
    resolve_outermost(p, &t->body, &t->fn, &t->scope, true);
    for (size_t i = 0; i < t->blocks.n; i++) {
        jstatement *st = t->blocks.at[i]->st;
        resolve_outermost(p, &st->body, &st->fn, &st->scope, false);
    }
}
