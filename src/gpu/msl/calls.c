/* Checks over the source's functions that C++ cannot make once address spaces are gone: a pointer of one space handed
 * to a parameter or variable of another or cast to it, and recursion. Only what tokens settle is an error; the rest is
 * believed. */
#include "gpu/msl/translate.h"
#include "gpu/texts.h"

#include <string.h>

typedef enum space { UNKNOWN, DEVICE, CONSTANT, THREAD, THREADGROUP } space;

static const char *const space_names[] = {"", "device", "constant", "thread", "threadgroup"};

/* A pointer, reference or array in scope. */
typedef struct variable {
    const msl_token *name;
    space where;
    bool pointer; /* its name alone is a pointer: no reference */
    bool doubtful;
} variable;

enum { VARIABLES = 256, CALL_DEPTH = 64, ARGUMENTS = 64 };

typedef struct checker {
    tr *m;
    const msl_function_record *f;
    variable variables[VARIABLES];
    size_t count;
} checker;

static space space_of(const tr *m, size_t begin, size_t end) {
    space found = UNKNOWN;
    for (size_t i = begin; i < end; i++)
        for (int s = DEVICE; s <= THREADGROUP; s++)
            if (msl_here(m, i, space_names[s])) {
                if (found)
                    return UNKNOWN;
                found = (space)s;
            }
    return found;
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

static variable *find_variable(checker *c, const msl_token *name) {
    for (size_t i = 0; i < c->count; i++)
        if (msl_same(c->variables[i].name, name))
            return &c->variables[i];
    return NULL;
}

/* A name that is declared twice is not judged. */
static void add_variable(checker *c, const msl_token *name, space where, bool pointer) {
    variable *known = find_variable(c, name);
    if (known)
        known->doubtful = true;
    else if (c->count < VARIABLES)
        c->variables[c->count++] = (variable){name, where, pointer, where == UNKNOWN};
}

/* The first `*` or `&` of a declarator in [i, end), and the name behind it; false: it is neither pointer nor reference.
 */
static bool indirect(const tr *m, size_t i, size_t end, size_t *star, size_t *name) {
    for (*star = i; *star < end; ++*star) {
        if (msl_here(m, *star, "*") || msl_here(m, *star, "&"))
            break;
        if (msl_here(m, *star, "(") || msl_here(m, *star, "=") || msl_here(m, *star, "["))
            return false;
        if (msl_here(m, *star, "<") && msl_behind_angle(m, *star, end))
            *star = msl_behind_angle(m, *star, end) - 1;
    }
    for (*name = *star + 1; *name < end && !msl_name_at(m, *name); ++*name)
        if (msl_here(m, *name, "*") || msl_here(m, *name, "&") || msl_here(m, *name, "("))
            return false;
    while (*name + 1 < end &&
           (msl_here(m, *name, "const") || msl_here(m, *name, "__restrict__") || msl_here(m, *name, "restrict")))
        ++*name;
    return *name < end && msl_name_at(m, *name);
}

static void add_parameters(checker *c) {
    const tr *m = c->m;
    for (size_t i = c->f->open + 1, close = m->match[c->f->open]; i < close;) {
        size_t end = msl_piece_end(m, i, close), star, name;
        if (indirect(m, i, end, &star, &name))
            add_variable(c, msl_at(m, name), space_of(m, i, star), msl_here(m, star, "*"));
        i = end + 1;
    }
}

/* Every `type name` of the body; those that say a space are judged. */
static void add_locals(checker *c, size_t body) {
    const tr *m = c->m;
    static const char *const behind[] = {"=", ";", ",", "[", "(", "{", ":", NULL};
    for (size_t i = body + 1; i < m->match[body]; i++) {
        const msl_token *t = msl_at(m, i), *before = t - 1;
        bool typed = before->kind == MSL_NAME || msl_is(before, ">") || msl_is(before, "*") || msl_is(before, "&");
        if (t->kind != MSL_NAME || !typed || !msl_among(t + 1, behind) || msl_is(before, "return"))
            continue;
        size_t begin = i, star, name;
        while (begin > body + 1 && !msl_here(m, begin - 1, ";") && !msl_here(m, begin - 1, "{") &&
               !msl_here(m, begin - 1, "}") && !msl_here(m, begin - 1, "(") && i - begin < 64)
            begin--;
        bool spaced = msl_is_address_space(msl_at(m, begin)) || msl_here(m, begin, "const");
        if (spaced && indirect(m, begin, i + 1, &star, &name) && name == i)
            add_variable(c, t, space_of(m, begin, star), msl_here(m, star, "*"));
        else if (before->kind == MSL_NAME || msl_is(before, ">"))
            add_variable(c, t, msl_here(m, begin, "threadgroup") && msl_is(t + 1, "[") ? THREADGROUP : UNKNOWN, true);
    }
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

/* Space of the pointer that [i, end) is, where it is `p`, `p + ..`, `&p[..]`; UNKNOWN: something else. */
static space pointer_space(checker *c, size_t i, size_t end, const msl_token **name) {
    const tr *m = c->m;
    bool address = msl_here(m, i, "&");
    i += address;
    if (i >= end || !msl_name_at(m, i))
        return UNKNOWN;
    const variable *v = find_variable(c, msl_at(m, i));
    if (!v || v->doubtful)
        return UNKNOWN;
    *name = msl_at(m, i);
    if (address)
        return v->pointer && msl_here(m, i + 1, "[") && msl_behind(m, i + 1) == end ? v->where : UNKNOWN;
    bool plus = msl_here(m, i + 1, "+");
    for (size_t k = i + 1; k < end && plus; k++) /* `p + a < q` is no pointer */
        plus = !msl_here(m, k, "<") && !msl_here(m, k, ">") && !msl_here(m, k, "?") && !msl_here(m, k, "==");
    return v->pointer && (i + 1 == end || plus) ? v->where : UNKNOWN;
}

static bool complain(checker *c, const msl_token *name, space is, space wanted, const msl_token *of) {
    return msl_error_at(&c->m->s, name, "%.*s is a %s pointer; %.*s wants one of %s", (int)name->size, name->text,
                        space_names[is], (int)of->size, of->text, space_names[wanted]);
}

/* `threadgroup T *p = q;` with the `=` at i. */
static bool check_initialiser(checker *c, size_t i) {
    const tr *m = c->m;
    const variable *v = msl_name_at(m, i - 1) ? find_variable(c, msl_at(m, i - 1)) : NULL;
    const msl_token *name = NULL;
    size_t end = i;
    if (!v || v->doubtful || !v->pointer || !msl_here(m, i - 2, "*"))
        return true;
    while (end < c->f->end && !msl_here(m, end, ";") && !msl_here(m, end, ","))
        end = msl_behind(m, end);
    space is = pointer_space(c, i + 1, end, &name);
    return !is || is == v->where || complain(c, name, is, v->where, v->name);
}

/* ---- casts ------------------------------------------------------------------------------------------------------- */

/* Space of what the cast before `at` is applied to: `p`, `&p[..]`, `(p + ..)`, and not to what is taken of them. */
static space operand_space(checker *c, size_t at, const msl_token **name) {
    static const char *const more[] = {"[", "(", ".", "->", "::", "++", "--", NULL};
    const tr *m = c->m;
    size_t end = at;
    if (msl_here(m, at, "("))
        end = msl_behind(m, at);
    else if (msl_here(m, at, "&") && msl_name_at(m, at + 1) && msl_here(m, at + 2, "["))
        end = msl_behind(m, at + 2);
    else if (msl_name_at(m, at))
        end = at + 1;
    if (end == at || msl_among(msl_at(m, end), more))
        return UNKNOWN;
    bool inside = msl_here(m, at, "(");
    return pointer_space(c, at + inside, end - inside, name);
}

/* `(threadgroup T *)p` with the `(` at i, `reinterpret_cast<threadgroup T *>(p)` with its name there. */
static bool check_cast(checker *c, size_t i) {
    const tr *m = c->m;
    bool named = msl_here(m, i, "reinterpret_cast") || msl_here(m, i, "static_cast");
    size_t begin = i + 1 + named, behind = named ? msl_behind_angle(m, i + 1, c->f->end) : msl_behind(m, i);
    const msl_token *name = NULL;
    if (behind < begin + 3 || !msl_here(m, behind - 2, "*"))
        return true;
    space wanted = space_of(m, begin, behind - 2), is = wanted ? operand_space(c, behind, &name) : UNKNOWN;
    return !is || is == wanted ||
           msl_error_at(&c->m->s, name, "%.*s is a %s pointer: Metal has no cast of it to %s", (int)name->size,
                        name->text, space_names[is], space_names[wanted]);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool part_of_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool has_word(const sl_text *t, const msl_token *word) {
    const char *end = t->bytes + t->size;
    for (const char *p = t->bytes; (p = memchr(p, word->text[0], (size_t)(end - p))); p++) {
        bool fits = (size_t)(end - p) >= word->size && memcmp(p, word->text, word->size) == 0;
        if (fits && !part_of_name(p[word->size]) && (p == t->bytes || !part_of_name(p[-1])))
            return true;
    }
    return false;
}

/* Does Metal's library have a function of that name? The prelude's text tells. */
static bool in_library(const msl_token *name) {
    static const char *const files[] = {
        "math.h",  "relational.h", "integer.h",          "simd.h", "atomic.h", "matrix.h",
        "types.h", "vector.h",     "simdgroup_matrix.h", NULL};
    for (int i = 0; files[i]; i++) {
        const sl_text *t = gpu_text(files[i]);
        if (t && has_word(t, name))
            return true;
    }
    return false;
}

/* Space that the k-th parameter of function g wants of a pointer. */
static space parameter_space(const tr *m, const msl_function_record *g, size_t k) {
    size_t close = m->match[g->open], i = g->open + 1, star, name;
    for (; k && i < close; k--)
        i = msl_piece_end(m, i, close) + 1;
    if (i >= close)
        return UNKNOWN;
    size_t end = msl_piece_end(m, i, close);
    return indirect(m, i, end, &star, &name) && msl_here(m, star, "*") ? space_of(m, i, star) : UNKNOWN;
}

/* The k-th argument is a pointer into `is`: some function of that name takes it, or it is an error. */
static bool accepted(checker *c, const msl_token *callee, size_t k, space is, space *wanted) {
    const tr *m = c->m;
    bool any = false;
    for (size_t i = 0; i < m->function_count; i++) {
        const msl_function_record *g = &m->functions[i];
        if (!msl_same(&g->name, callee))
            continue;
        space s = parameter_space(m, g, k);
        if (g->member || s == UNKNOWN || s == is)
            return true;
        *wanted = s;
        any = true;
    }
    return !any;
}

static bool check_call(checker *c, size_t i) {
    const tr *m = c->m;
    const msl_token *callee = msl_at(m, i);
    bool qualified = msl_here(m, i - 1, ".") || msl_here(m, i - 1, "->") || msl_here(m, i - 1, "::");
    if (callee->kind != MSL_NAME || qualified || !msl_here(m, i + 1, "("))
        return true;
    size_t close = m->match[i + 1], k = 0;
    for (size_t a = i + 2; a < close && k < ARGUMENTS; k++) {
        size_t end = msl_piece_end(m, a, close);
        const msl_token *name = NULL;
        space wanted, is = pointer_space(c, a, end, &name);
        if (is && !accepted(c, callee, k, is, &wanted) && !in_library(callee))
            return complain(c, name, is, wanted, callee);
        a = end + 1;
    }
    return true;
}

static bool check_body(checker *c) {
    const tr *m = c->m;
    size_t body = c->f->body;
    add_parameters(c);
    add_locals(c, body);
    for (size_t i = body + 1; i < m->match[body]; i++) {
        bool ok = msl_here(m, i, "=") ? check_initialiser(c, i) : check_call(c, i);
        bool cast = msl_here(m, i, "(") || msl_here(m, i + 1, "<");
        if (!ok || (cast && !check_cast(c, i)))
            return false;
    }
    return true;
}

/* ---- recursion --------------------------------------------------------------------------------------------------- */

/* The only plain function of that name, SIZE_MAX: none, or several, or one that the library overloads. */
static size_t only_function(const tr *m, const msl_token *name) {
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < m->function_count; i++)
        if (msl_same(&m->functions[i].name, name)) {
            if (found != SIZE_MAX || m->functions[i].member || m->functions[i].is_template)
                return SIZE_MAX;
            found = i;
        }
    return found;
}

static bool calls_itself(const tr *m, size_t f) {
    const msl_function_record *r = &m->functions[f];
    for (size_t i = r->body + 1; i < r->end; i++) {
        bool qualified = msl_here(m, i - 1, ".") || msl_here(m, i - 1, "->") || msl_here(m, i - 1, "::");
        if (msl_name_at(m, i) && msl_same(msl_at(m, i), &r->name) && msl_here(m, i + 1, "(") && !qualified)
            return true;
    }
    return false;
}

bool msl_check_calls(tr *m) {
    if (m->function_count > MSL_MAX_CHECKED)
        return true;
    for (size_t i = 0; i < m->function_count; i++) {
        checker c = {.m = m, .f = &m->functions[i]};
        if (!check_body(&c))
            return false;
        const msl_token *name = &m->functions[i].name;
        if (only_function(m, name) == i && calls_itself(m, i) && !in_library(name))
            return msl_error_at(&m->s, name, "%.*s calls itself: recursion is not part of Metal", (int)name->size,
                                name->text);
    }
    return true;
}

bool msl_note_function(tr *m, const msl_function_record *f) {
    if (!sl_grow((void **)&m->functions, &m->function_capacity, m->function_count + 1, sizeof *f))
        return msl_no_memory(&m->s);
    m->functions[m->function_count++] = *f;
    return true;
}
