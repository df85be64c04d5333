/* jinja: interpreter of the Jinja that chat templates are written in. Private to text; template.c is its only door.
 *
 * The reference is Python's jinja2 in the environment that Hugging Face transformers builds: immutable sandbox,
 * trim_blocks, lstrip_blocks, loopcontrols, {% generation %}, its own tojson, raise_exception and strftime_now. A value
 * here means what the Python object of the same name means there, down to str() and repr().
 *
 *   source -> jinja_lexer.c -> jinja_parser.c, jinja_parse_statement.c -> jinja_scope.c (names to slots) ->
 * jinja_exec.c, jinja_eval.c (walk the tree), which call jinja_ops.c, jinja_filters*.c, jinja_tests.c,
 * jinja_methods*.c, jinja_globals.c.
 *
 * Invariants:
 * - Values are immutable but for namespaces, cyclers, joiners, loops and iterators; so slices and substrings share
 * bytes, and s + t appends in place where s ends where its buffer ends (a template that gathers text in a loop stays
 * linear).
 * - Memory comes from one arena per compilation and one per rendering, and goes with it: nothing is freed singly.
 * - An error leaves by longjmp to template.c (jinja_raise never returns). Nothing between owns anything but arena
 * memory.
 * - Whatever takes time charges jinja_work, whatever takes memory is counted, whatever recurses counts depth: a
 * template cannot hang, exhaust memory or overflow the stack. */
#ifndef SL_TEXT_JINJA_H
#define SL_TEXT_JINJA_H

#include "base/base.h"

#include <jansson.h>
#include <setjmp.h>

/* ---- limits ---------------------------------------------------------------------------------- */

enum {
    JINJA_MAX_SOURCE = 1 << 20, /* bytes of a template */
    JINJA_MAX_NESTING = 100,    /* statements in statements, brackets in brackets */
    JINJA_MAX_HEIGHT = 400,     /* of an expression's tree: a + b + c is 3 high */
    JINJA_MAX_DEPTH = 1000,     /* tree levels being evaluated, macro calls included */
    JINJA_MAX_CALLS = 190,      /* macro calls and recursive loops inside each other (Python's stack ends there too) */
    JINJA_MAX_DATA_DEPTH = 400, /* lists in lists */
    JINJA_MAX_ITERATORS = 100,  /* lazy filters feeding each other */
    JINJA_MAX_RANGE = 100000,   /* the sandbox's own limit */
    JINJA_MAX_ARGS = 8,         /* parameters of a built-in function */
};

typedef struct jinja_limits {
    uint64_t steps; /* tree nodes evaluated + bytes touched / 32 */
    size_t memory;  /* bytes of arena */
    size_t output;  /* bytes of text being built */
} jinja_limits;

/* ---- values ---------------------------------------------------------------------------------- */

typedef enum jkind {
    J_MISSING, /* a slot or parameter that holds nothing; a template never sees it */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW, /* dict.keys(), values(), items() */
    J_RANGE,
    J_ITER, /* generators and iterators: one pass */
    J_NAMESPACE,
    J_FUNCTION, /* built-in function or bound method */
    J_MACRO,
    J_LOOP,
    J_CYCLER,
    J_JOINER,
} jkind;

typedef struct jstr jstr;
typedef struct jseq jseq;
typedef struct jdict jdict;
typedef struct jundef jundef;
typedef struct jview jview;
typedef struct jrange jrange;
typedef struct jiter jiter;
typedef struct jfunction jfunction;
typedef struct jmacro jmacro;
typedef struct jloop jloop;
typedef struct jcycler jcycler;
typedef struct jjoiner jjoiner;

typedef struct jval {
    jkind kind;
    union {
        bool b;
        int64_t i;
        double f;
        jstr *s;
        jseq *seq; /* list, tuple */
        jdict *d;  /* dict, namespace */
        jundef *u;
        jview *view;
        jrange *range;
        jiter *iter;
        jfunction *fn;
        jmacro *macro;
        jloop *loop;
        jcycler *cycler;
        jjoiner *joiner;
        const void *p; /* identity of any of the above */
    };
} jval;

/* The end of a buffer that strings or lists share: the one that ends at `used` may grow into the rest. */
typedef struct jtail {
    size_t used, capacity; /* in elements from `base` */
    void *base;
} jtail;

struct jstr {
    const char *p; /* UTF-8, valid */
    size_t n;
    int64_t points; /* code points; -1: not counted yet */
    jtail *tail;
    bool markup; /* markupsafe.Markup: escapes what is joined to it */
};

struct jseq {
    jval *at;
    size_t n;
    jtail *tail;
    bool group; /* groupby's (grouper, list) */
};

typedef struct jentry {
    jval key, value;
    uint64_t hash;
} jentry;

/* In order of insertion. `index` (open addressing, entry number + 1) exists above a few entries. */
struct jdict {
    jentry *at;
    size_t n, capacity;
    uint32_t *index;
    size_t index_size;
};

/* Why a value is undefined; words are made when somebody trips over it. */
struct jundef {
    const char *hint; /* the whole message, or NULL: name (and owner) say it */
    const jstr *name;
    jval owner;  /* J_MISSING: a variable */
    bool unsafe; /* the sandbox hides it */
};

struct jview {
    jdict *d;
    char what; /* 'k', 'v', 'i' */
};

struct jrange {
    int64_t start, stop, step, n;
};

typedef struct jinja jinja;
typedef struct jnode jnode; /* jinja_tree.h */

struct jiter {
    bool (*next)(jinja *j, jiter *it, jval *out);
    const char *type; /* Python's name of it */
    int depth;        /* of iterators below */
    jiter *in;
    jval source;
    size_t at, n;
    void *state;
};

/* Arguments of a call as written. */
typedef struct jargs {
    const jval *at;
    size_t n;
    const jentry *named; /* keys are strings */
    size_t named_n;
} jargs;

/* A function, filter, test or method. `params`: names separated by blanks, the first `required` must be given; a
 * leading '/' means that they cannot be given by name. fn gets them in order, J_MISSING where absent; raw gets the
 * arguments as written. */
typedef struct jbuiltin {
    const char *name;
    const char *params;
    int required;
    jval (*fn)(jinja *j, jval self, const jval *a);
    jval (*raw)(jinja *j, jval self, const jargs *a);
} jbuiltin;

struct jfunction {
    const jbuiltin *builtin;
    jval self;
};

struct jcycler {
    jseq *items;
    size_t at;
};

struct jjoiner {
    jval separator;
    bool used;
};

/* Operators. */
typedef enum jop {
    JOP_ADD,
    JOP_SUB,
    JOP_MUL,
    JOP_DIV,
    JOP_FLOORDIV,
    JOP_MOD,
    JOP_POW,
    JOP_EQ,
    JOP_NE,
    JOP_LT,
    JOP_LE,
    JOP_GT,
    JOP_GE,
    JOP_IN,
    JOP_NOT_IN,
} jop;

/* ---- one compilation or rendering ------------------------------------------------------------ */

typedef struct jarena {
    struct jblock *blocks;
    size_t used; /* bytes handed out and lost at ends */
} jarena;

/* One call of a jfn. */
typedef struct jenv {
    struct jenv *outer;
    jval slots[];
} jenv;

struct jinja {
    jmp_buf exit;
    sl_error *err;
    jarena arena;
    jinja_limits limits;
    uint64_t steps;
    int line;  /* of the construct at work: for messages */
    int depth; /* tree levels */
    int calls; /* macros, recursive loops */
    uint64_t hash_seed;
    sl_buf out;      /* text so far; captures (macros, set blocks) are its tail */
    jdict *globals;  /* the caller's */
    jdict *exported; /* names set at top level, for blocks */
    int64_t now;
};

struct jmacro {
    const jnode *node;
    jenv *env;
};

struct jloop {
    jval iterable; /* J_MISSING where it has no length */
    jiter *it;
    int64_t index0, length;               /* length -1: not known yet */
    jval after, current, before, changed; /* J_MISSING: none */
    int64_t depth0;
    const jnode *node; /* recursive loops: what loop(...) runs, in env */
    jenv *env;
};

/* ---- memory, errors, limits (jinja_memory.c) ------------------------------------------------- */

/* Zeroed. */
void *jinja_alloc(jinja *j, size_t bytes);
void *jinja_alloc_array(jinja *j, size_t n, size_t size);
void jinja_arena_free(jarena *a);
/* Grows an arena array to hold one more element. */
void jinja_grow(jinja *j, void **array, size_t *capacity, size_t n, size_t size);
_Noreturn void jinja_raise(jinja *j, const char *fmt, ...) SL_PRINTF(2, 3);
/* The template's own words: no line before them. */
_Noreturn void jinja_raise_text(jinja *j, const char *p, size_t n);
/* Charges the handling of `bytes` bytes (or elements x size). */
void jinja_work(jinja *j, size_t bytes);
void jinja_check_depth(jinja *j, int depth);

/* Text being built. */
typedef struct jtext {
    jinja *j;
    char *p;
    size_t n, capacity;
} jtext;

void jinja_put(jtext *t, const char *p, size_t n);
void jinja_puts(jtext *t, const char *s);
void jinja_put_str(jtext *t, const jstr *s);
void jinja_put_point(jtext *t, int32_t cp);
void jinja_put_repeat(jtext *t, const jstr *s, int64_t count);
void jinja_putf(jtext *t, const char *fmt, ...) SL_PRINTF(2, 3);
jval jinja_text(jtext *t); /* as a str */

/* ---- values (jinja_value.c) ------------------------------------------------------------------ */

static inline jval jinja_none(void) {
    return (jval){.kind = J_NONE};
}
static inline jval jinja_missing(void) {
    return (jval){.kind = J_MISSING};
}
static inline jval jinja_bool(bool b) {
    return (jval){.kind = J_BOOL, .b = b};
}
static inline jval jinja_int(int64_t i) {
    return (jval){.kind = J_INT, .i = i};
}
static inline jval jinja_float(double f) {
    return (jval){.kind = J_FLOAT, .f = f};
}
static inline jval jinja_of_str(const jstr *s) {
    return (jval){.kind = J_STR, .s = (jstr *)s};
}

jstr *jinja_view_n(jinja *j, const char *p, size_t n);              /* shares the bytes */
jval jinja_str(jinja *j, const char *s);                            /* shares a C string that outlives the run */
jval jinja_str_n(jinja *j, const char *p, size_t n);                /* shares */
jval jinja_substr(jinja *j, const jstr *s, size_t from, size_t to); /* bytes; keeps markup */
jval jinja_markup(jinja *j, const jstr *s, bool markup);
bool jinja_is(const jstr *s, const char *text);
bool jinja_same(const jstr *a, const jstr *b);

jval jinja_undefined(jinja *j, const jstr *name, jval owner);
jval jinja_undefined_hint(jinja *j, const char *hint);
jval jinja_unsafe(jinja *j, const jstr *name, jval owner);
_Noreturn void jinja_raise_undefined(jinja *j, const jundef *u);

jval jinja_list(jinja *j, const jval *at, size_t n); /* copies */
jval jinja_tuple(jinja *j, const jval *at, size_t n);
jval jinja_seq_new(jinja *j, jkind kind, size_t capacity); /* to be filled by jinja_push */
void jinja_push(jinja *j, jval seq, jval v);

jdict *jinja_dict_new(jinja *j);
jval jinja_of_dict(jdict *d);
/* NULL: none. An unhashable key is an error. */
jval *jinja_dict_find(jinja *j, const jdict *d, jval key);
jval *jinja_dict_find_str(jinja *j, const jdict *d, const jstr *key);
void jinja_dict_put(jinja *j, jdict *d, jval key, jval value);
bool jinja_hashable(jinja *j, jval v);

bool jinja_truth(jinja *j, jval v);
bool jinja_equal(jinja *j, jval a, jval b);
bool jinja_identical(jval a, jval b);
bool jinja_less(jinja *j, jval a, jval b);
bool jinja_compare(jinja *j, jop op, jval a, jval b);
bool jinja_contains(jinja *j, jval container, jval v);
/* -1: has no len(). */
int64_t jinja_length(jinja *j, jval v);
const char *jinja_type(jval v); /* Python's type name */
jval jinja_from_json(jinja *j, const json_t *json, int depth);

/* ---- text (jinja_string.c, jinja_unicode.c) -------------------------------------------------- */

int64_t jinja_points(jinja *j, jstr *s);
/* Byte offset of code point `index` (0..points). */
size_t jinja_offset(jinja *j, jstr *s, int64_t index);
/* First occurrence at or after byte `from`; n of haystack if none: SIZE_MAX. */
size_t jinja_find(jinja *j, const jstr *s, const jstr *what, size_t from);
size_t jinja_find_last(jinja *j, const jstr *s, const jstr *what, size_t to);
/* chars NULL: Unicode white space. */
jval jinja_strip(jinja *j, jstr *s, const jstr *chars, bool left, bool right);
jval jinja_split(jinja *j, jstr *s, const jstr *sep, int64_t max);
jval jinja_rsplit(jinja *j, jstr *s, const jstr *sep, int64_t max);
jval jinja_splitlines(jinja *j, jstr *s, bool keep);
jval jinja_replace(jinja *j, const jstr *s, const jstr *from, const jstr *to, int64_t count);
jval jinja_escape(jinja *j, jval v); /* Markup of it */
jval jinja_pad(jinja *j, jstr *s, int64_t left, int64_t right, const jstr *fill);
jval jinja_upper(jinja *j, const jstr *s);
jval jinja_lower(jinja *j, const jstr *s);
jval jinja_capitalize(jinja *j, const jstr *s);
jval jinja_title_case(jinja *j, const jstr *s);
jval jinja_swapcase(jinja *j, const jstr *s);
jval jinja_casefold(jinja *j, const jstr *s);

bool jinja_is_space(int32_t cp);
bool jinja_is_alpha(int32_t cp);
bool jinja_is_decimal(int32_t cp);
bool jinja_is_digit(int32_t cp);
bool jinja_is_numeric(int32_t cp);
bool jinja_is_lower(int32_t cp);
bool jinja_is_upper(int32_t cp);
bool jinja_is_title(int32_t cp);
bool jinja_is_printable(int32_t cp);
bool jinja_is_word(int32_t cp); /* \w */
bool jinja_is_line_end(int32_t cp);
bool jinja_starts_identifier(int32_t cp);
bool jinja_continues_identifier(int32_t cp);
/* Code points of the full mappings into out[3]; returns how many. */
int jinja_upper_points(int32_t cp, int32_t *out);
int jinja_title_points(int32_t cp, int32_t *out);

/* ---- printing (jinja_print.c, jinja_json.c, jinja_format.c) ---------------------------------- */

jstr *jinja_to_str(jinja *j, jval v);   /* str(v), never markup */
jstr *jinja_soft_str(jinja *j, jval v); /* v itself where it is a str */
void jinja_put_value(jtext *t, jval v); /* str(v) */
void jinja_put_repr(jtext *t, jval v, int depth);
void jinja_put_float(jtext *t, double f); /* Python's repr */
jval jinja_pformat(jinja *j, jval v);
jval jinja_filter_tojson(jinja *j, jval self, const jval *a);
jval jinja_filter_wordwrap(jinja *j, jval self, const jval *a);
jval jinja_percent_format(jinja *j, const jstr *format, jval args);
jval jinja_brace_format(jinja *j, const jstr *format, const jargs *args);
/* format(v, spec) */
void jinja_format_value(jtext *t, jval v, const jstr *spec);
/* Decimal text, Python's float(); false if it is none. */
bool jinja_parse_float(jinja *j, const jstr *s, double *out);
/* int(s, base): 1 ok, 0 not a number, -1 does not fit. */
int jinja_parse_int(jinja *j, const jstr *s, int base, int64_t *out);

/* ---- iteration (jinja_iter.c) ---------------------------------------------------------------- */

bool jinja_iterable(jval v);
jiter *jinja_iter(jinja *j, jval v); /* raises where v is not iterable */
jiter *jinja_iter_new(jinja *j, const char *type, bool (*next)(jinja *, jiter *, jval *), jiter *in);
bool jinja_next(jinja *j, jiter *it, jval *out);
bool jinja_reversible(jval v);
jiter *jinja_reversed(jinja *j, jval v);
jval jinja_to_list(jinja *j, jval v);
jval jinja_of_iter(jiter *it);
/* Stable; less(key a, key b); keys[i] belongs to items[i]. */
void jinja_sort(jinja *j, jval *items, jval *keys, size_t n, bool reverse);

/* Loops' own attributes; J_MISSING: none of that name. */
jval jinja_loop_attribute(jinja *j, jloop *l, const jstr *name);
bool jinja_loop_next(jinja *j, jloop *l, jval *out);
int64_t jinja_loop_length(jinja *j, jloop *l);

/* ---- operations (jinja_ops.c, jinja_lookup.c) ------------------------------------------------ */

jval jinja_binary(jinja *j, jop op, jval a, jval b);
jval jinja_negate(jinja *j, jval v);
jval jinja_positive(jinja *j, jval v);
jval jinja_concat(jinja *j, const jstr *a, const jstr *b, bool markup);
jval jinja_getattr(jinja *j, jval v, const jstr *name);
jval jinja_getitem(jinja *j, jval v, jval key);
jval jinja_slice(jinja *j, jval v, jval from, jval to, jval step);
/* The attribute itself without falling back to items; J_MISSING: none. */
jval jinja_attribute(jinja *j, jval v, const jstr *name);

/* ---- functions (jinja_call.c, jinja_filters*.c, jinja_tests.c, jinja_methods*.c, jinja_globals.c) ---- */

jval jinja_call(jinja *j, jval callee, const jargs *args);
jval jinja_call_builtin(jinja *j, const jbuiltin *b, jval self, const jargs *args);
bool jinja_callable(jval v);
extern const jargs jinja_no_args; /* `at` is never NULL */
const jbuiltin *jinja_find_builtin(const jbuiltin *table, size_t n, const jstr *name);
const jbuiltin *jinja_find_filter(const jstr *name);
const jbuiltin *jinja_find_test(const jstr *name);
const jbuiltin *jinja_find_method(jkind kind, const jstr *name, bool *mutates);
jval jinja_global(jinja *j, const jstr *name); /* J_MISSING: none */
/* An argument that must be an integer (or bool) / a string. */
int64_t jinja_arg_int(jinja *j, jval v, const char *what);
jstr *jinja_arg_str(jinja *j, jval v, const char *what);
bool jinja_given(jval v); /* neither missing nor None */

extern const jbuiltin jinja_text_filters[], jinja_list_filters[];
extern const size_t jinja_text_filters_n, jinja_list_filters_n;
extern const jbuiltin jinja_str_methods[];
extern const size_t jinja_str_methods_n;

/* ---- the door (template.c) ------------------------------------------------------------------- */

struct sl_template;
/* sl_template_render under other limits than the usual: tests, fuzzing. */
bool jinja_render_within(const struct sl_template *t, const json_t *globals, int64_t now, const jinja_limits *limits,
                         sl_buf *out, sl_error *err);

#endif
