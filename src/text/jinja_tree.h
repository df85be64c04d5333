/* jinja_tree: the compiled form of a template, what makes it (lexer, parser, scopes) and what walks it. Private to
 * text. */
#ifndef SL_TEXT_JINJA_TREE_H
#define SL_TEXT_JINJA_TREE_H

#include "text/jinja.h"

/* ---- tree ------------------------------------------------------------------------------------ */

typedef enum jnode_kind {
    /* expressions */
    JN_CONST,   /* value */
    JN_NAME,    /* name, store, ref */
    JN_NSREF,   /* name . attr as a target; ref */
    JN_TUPLE,   /* items */
    JN_LIST,    /* items */
    JN_DICT,    /* items: key, value, key, value */
    JN_COND,    /* a: test, b, c or NULL */
    JN_BINARY,  /* op, a, b */
    JN_AND,     /* a, b */
    JN_OR,      /* a, b */
    JN_NOT,     /* a */
    JN_NEG,     /* a */
    JN_POS,     /* a */
    JN_CONCAT,  /* items */
    JN_COMPARE, /* a, items: operands, each with its op */
    JN_OPERAND, /* op, a */
    JN_GETATTR, /* a, attr */
    JN_GETITEM, /* a, b */
    JN_SLICE,   /* a, b, c: each or NULL; only as b of getitem */
    JN_CALL,    /* a, items: positional, named, star, star2 */
    JN_FILTER,  /* a or NULL (text of the block), attr, builtin, arguments as call */
    JN_TEST,    /* a, attr, builtin, arguments as call */
    /* statements */
    JN_OUTPUT,       /* items: expressions */
    JN_IF,           /* a, body, items: elifs, other */
    JN_FOR,          /* target, a: iterable, body, other, b: filter or NULL */
    JN_SET,          /* target, a */
    JN_SET_BLOCK,    /* target, a: filter or NULL, body */
    JN_MACRO,        /* name, items: parameters, other: defaults, body */
    JN_CALL_BLOCK,   /* a: call (NULL: {% generation %}), items: parameters, other: defaults, body */
    JN_FILTER_BLOCK, /* a: filter, body */
    JN_WITH,         /* items: targets, other: values, body */
    JN_BLOCK,        /* name, body */
    JN_BREAK,
    JN_CONTINUE,
} jnode_kind;

typedef struct jname jname;

typedef struct jnodes {
    jnode **at;
    size_t n, capacity;
} jnodes;

typedef struct jnamed {
    const jstr *name;
    jnode *value;
} jnamed;

/* A variable: slot of the activation `hops` functions out. */
typedef struct jref {
    uint32_t hops, slot;
} jref;

typedef enum jload_kind {
    JLOAD_PARAM,     /* set by the statement itself */
    JLOAD_RESOLVE,   /* from the context: exported names, then the caller's globals, then built-ins */
    JLOAD_ALIAS,     /* a copy of an outer variable */
    JLOAD_UNDEFINED, /* nothing yet */
} jload_kind;

typedef struct jload {
    jload_kind kind;
    uint32_t slot;
    jref from;
    const jstr *name;
} jload;

/* What happens to variables on entry to a scope; on leaving it they become missing. */
typedef struct jscope {
    jload *at;
    size_t n, capacity;
} jscope;

/* A function of the compiled template: the root, a macro, a call block's body, a recursive loop, a loop's filter, a
 * block. */
typedef struct jfn {
    uint32_t slots;
    struct jfn *outer;
} jfn;

/* Arguments of a call, filter or test beyond the positional ones. */
typedef struct jcallargs {
    jnamed *named;
    size_t named_n;
    jnode *star, *star2; /* *a, **b */
} jcallargs;

/* What only statements have. */
typedef struct jstatement {
    jnodes body, other;
    jnode *target;
    jnode *test_target; /* for: the target as the filter's own variables */
    jscope scope, else_scope, test_scope;
    jfn *fn, *test_fn;
    uint32_t loop_slot, caller_slot, kwargs_slot, varargs_slot;
    bool recursive; /* for */
    bool extended;  /* for: the body reads `loop` */
    bool exported;  /* set, macro at top level: blocks see it */
    bool catch_kwargs, catch_varargs, takes_caller, explicit_caller;
} jstatement;

struct jnode {
    jnode_kind kind;
    jop op;
    int line, height;
    bool store; /* name: written here */
    jref ref;
    jname *name;
    const jstr *attr;
    jval value;
    jnode *a, *b, *c;
    jnodes items;
    const jbuiltin *builtin;
    jcallargs *args;
    jstatement *st;
};

/* ---- lexer, parser, scopes ------------------------------------------------------------------- */

typedef enum jtoken_kind {
    JT_EOF,
    JT_DATA,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_VARIABLE_BEGIN,
    JT_VARIABLE_END,
    JT_NAME,
    JT_STRING,
    JT_INTEGER,
    JT_FLOAT,
    JT_OPERATOR, /* text is the operator */
} jtoken_kind;

typedef struct jtoken {
    jtoken_kind kind;
    int line;
    const jstr *text; /* data, name, string (unescaped), operator */
    jval value;       /* numbers */
} jtoken;

typedef struct jtokens {
    jtoken *at;
    size_t n, capacity;
} jtokens;

/* The last token is JT_EOF. */
jtokens jinja_lex(jinja *j, const char *source, size_t n);

/* A name of the template, interned; `open` and `slots` belong to jinja_scope.c. */
struct jname {
    const jstr *text;
    jname *next; /* in its hash chain */
    struct jsymbol *open;
    struct jslot *slots;
};

typedef struct jparser {
    jinja *j;
    jtokens tokens;
    size_t at;
    int nesting;
    int loops; /* around the statement being parsed, within its function */
    jname **names;
    size_t names_n, names_size;
    jnodes *blocks;
} jparser;

jname *jinja_intern(jparser *p, const jstr *text);
jnode *jinja_node(jparser *p, jnode_kind kind, int line);
jnode *jinja_statement(jparser *p, jnode_kind kind, int line);
void jinja_node_push(jparser *p, jnodes *list, jnode *n);
/* Recomputes n->height from its children, and checks it. */
jnode *jinja_node_done(jparser *p, jnode *n);
void jinja_nest(jparser *p, int by);
const jtoken *jinja_token(const jparser *p);
const jtoken *jinja_peek(const jparser *p);
const jtoken *jinja_advance(jparser *p); /* returns the token left behind */
bool jinja_token_is(const jtoken *t, jtoken_kind kind, const char *text);
bool jinja_at_op(const jparser *p, const char *op);
bool jinja_at_name(const jparser *p, const char *name);
bool jinja_skip_op(jparser *p, const char *op);
bool jinja_skip_name(jparser *p, const char *name);
void jinja_expect(jparser *p, jtoken_kind kind, const char *text); /* text NULL: any */
_Noreturn void jinja_unexpected(jparser *p, const char *expected);

jnode *jinja_parse_expression(jparser *p, bool with_cond);
/* `stop`: a name that ends it, or NULL. */
jnode *jinja_parse_tuple(jparser *p, bool with_cond, const char *stop, bool parentheses);
jnode *jinja_parse_filters(jparser *p, jnode *of, bool at_name);
jnode *jinja_parse_target(jparser *p, bool namespaces, const char *stop);
jnode *jinja_parse_name_target(jparser *p);

typedef struct jtemplate {
    jnodes body;
    jnodes blocks;
    jscope scope;
    jfn *fn;
} jtemplate;

jtemplate *jinja_parse(jinja *j, const char *source, size_t n);
void jinja_resolve(jparser *p, jtemplate *t);

/* ---- evaluation (jinja_eval.c, jinja_exec.c, jinja_loop.c) ---------------------------------- */

jval jinja_eval(jinja *j, jenv *env, const jnode *n);
/* Filters of a block (set, filter): n's innermost one gets the text. */
jval jinja_filter_text(jinja *j, jenv *env, const jnode *n, jval text);
/* Evaluates arguments into *out (arena). `caller` is added as a named argument unless missing. */
void jinja_eval_args(jinja *j, jenv *env, const jnode *n, jval caller, jargs *out);

typedef enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE } jflow;

jflow jinja_exec(jinja *j, jenv *env, const jnodes *body);
jflow jinja_exec_for(jinja *j, jenv *env, const jnode *n);
void jinja_assign(jinja *j, jenv *env, const jnode *target, jval v);
void jinja_enter(jinja *j, jenv *env, const jscope *s);
void jinja_leave(jenv *env, const jscope *s);
jval *jinja_slot(jenv *env, jref ref);
jenv *jinja_env(jinja *j, const jfn *fn, jenv *outer);
jval jinja_resolve_name(jinja *j, const jstr *name);
void jinja_out(jinja *j, const char *p, size_t n);
/* Cuts the output back to `mark` and returns what was behind it. */
jval jinja_capture(jinja *j, size_t mark);
jval jinja_call_macro(jinja *j, const jmacro *m, const jargs *args);
jval jinja_make_macro(jinja *j, jenv *env, const jnode *n);
jval jinja_run_recursive(jinja *j, jenv *env, const jnode *n, jval iterable, int64_t depth0);

#endif
