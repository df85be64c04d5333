/* What MSL forbids and no word alone tells: variables that are pointers to functions, and static variables of
 * functions. Only what tokens settle is an error; the rest is believed.
 *
 * As a parameter, of a function or of a template, a pointer to a function is believed: the language guide has none, but
 * Apple's compiler takes these, which are gone once calls are inlined, and libraries in use pass operations so. */
#include "gpu/msl/translate.h"

enum {
    LOOK_BACK = 128,    /* tokens of a statement */
    LOOK_AROUND = 4096, /* tokens of a body before one of its declarations */
    POINTER_TYPES = 64
};

/* Names of types that are pointers to functions. */
typedef struct pointer_types {
    const msl_token *name[POINTER_TYPES];
    size_t count;
} pointer_types;

/* First token of the statement that token i is in; SIZE_MAX: it is inside parentheses, or the beginning is far. */
static size_t statement_begin(const tr *m, size_t i) {
    static const char *const ends[] = {";", "{", "}", ":", NULL}, *const inside[] = {"(", "[", NULL};
    for (int n = 0; n < LOOK_BACK; n++) {
        if (i == 0)
            return 0;
        const msl_token *before = msl_at(m, i - 1);
        if (before->kind == MSL_PRAGMA || msl_among(before, ends))
            return i;
        if (msl_among(before, inside))
            return SIZE_MAX;
        i = msl_is(before, ")") || msl_is(before, "]") ? m->match[i - 1] : i - 1;
    }
    return SIZE_MAX;
}

/* Is [begin, end) a type, as in front of a declarator? */
static bool is_type(const tr *m, size_t begin, size_t end) {
    static const char *const no_types[] = {"typedef", "using", "template", "return", "else",   "case",
                                           "do",      "goto",  "sizeof",   "throw",  "delete", NULL};
    static const char *const parts[] = {"::", "*", "&", NULL};
    for (size_t i = begin; i < end; i++) {
        const msl_token *t = msl_at(m, i);
        size_t behind = msl_is(t, "<") ? msl_behind_angle(m, i, end) : 0;
        if (behind)
            i = behind - 1;
        else if (t->kind == MSL_NAME ? msl_among(t, no_types) : !msl_among(t, parts))
            return false;
    }
    return begin < end;
}

static bool is_function(const tr *m, const msl_token *name) {
    for (size_t i = 0; i < m->function_count; i++)
        if (msl_same(&m->functions[i].name, name))
            return true;
    return false;
}

/* `(*f)(`, `(*f[2])(` with the first `(` at i: f. */
static const msl_token *pointer_declarator(const tr *m, size_t i) {
    if (!msl_here(m, i, "(") || !msl_here(m, i + 1, "*") || !msl_name_at(m, i + 2))
        return NULL;
    size_t k = i + 3;
    while (msl_here(m, k, "["))
        k = msl_behind(m, k);
    return msl_here(m, k, ")") && msl_here(m, k + 1, "(") ? msl_at(m, i + 2) : NULL;
}

/* `using f = float (*)(float)` with the second `(` at i. */
static const msl_token *pointer_alias(const tr *m, size_t i) {
    if (!msl_here(m, i, "(") || !msl_here(m, i + 1, "*") || !msl_here(m, i + 2, ")") || !msl_here(m, i + 3, "("))
        return NULL;
    size_t begin = statement_begin(m, i);
    bool alias = begin != SIZE_MAX && msl_here(m, begin, "using") && msl_here(m, begin + 2, "=");
    return alias && is_type(m, begin + 3, i) ? msl_at(m, begin + 1) : NULL;
}

static bool is_pointer_type(const pointer_types *p, const msl_token *name) {
    for (size_t i = 0; i < p->count; i++)
        if (msl_same(p->name[i], name))
            return true;
    return false;
}

static bool refuse_pointer(tr *m, const msl_token *name) {
    return msl_error_at(&m->s, name, "%.*s is a pointer to a function: Metal has no such variables", (int)name->size,
                        name->text);
}

static bool check_pointer(tr *m, size_t i, pointer_types *p) {
    static const char *const behind[] = {"=", ";", "[", "{", NULL};
    const msl_token *name = pointer_declarator(m, i), *type = name ? NULL : pointer_alias(m, i);
    size_t begin = name ? statement_begin(m, i) : SIZE_MAX;
    if (begin != SIZE_MAX && msl_here(m, begin, "typedef") && is_type(m, begin + 1, i))
        type = name;
    if (type && p->count < POINTER_TYPES)
        p->name[p->count++] = type;
    if (begin != SIZE_MAX && is_type(m, begin, i) && !is_function(m, msl_at(m, i - 1)))
        return refuse_pointer(m, name);
    bool typed = p->count && msl_name_at(m, i) && msl_name_at(m, i + 1) && msl_among(msl_at(m, i + 2), behind) &&
                 is_pointer_type(p, msl_at(m, i));
    begin = typed ? statement_begin(m, i) : SIZE_MAX;
    return begin == SIZE_MAX || !is_type(m, begin, i + 1) || refuse_pointer(m, msl_at(m, i + 1));
}

/* `auto op = &name;` with the `auto` at i, where name is a function and nothing of f's own. */
static bool check_auto(tr *m, const msl_function_record *f, size_t i) {
    if (!msl_here(m, i, "auto") || !msl_name_at(m, i + 1) || !msl_here(m, i + 2, "=") || i - f->open > LOOK_AROUND)
        return true;
    size_t of = i + 3 + msl_here(m, i + 3, "&");
    if (!msl_name_at(m, of) || !msl_here(m, of + 1, ";") || !is_function(m, msl_at(m, of)))
        return true;
    for (size_t k = f->open; k < i; k++)
        if (msl_same(msl_at(m, k), msl_at(m, of)) && !msl_here(m, k + 1, "("))
            return true;
    return refuse_pointer(m, msl_at(m, i + 1));
}

/* Behind the body of the struct that token i begins; i: it begins none. */
static size_t behind_struct(const tr *m, size_t i, size_t end) {
    static const char *const words[] = {"struct", "class", "union", NULL}, *const ends[] = {";", "(", ")", "=", NULL};
    if (!msl_among(msl_at(m, i), words))
        return i;
    for (size_t k = i + 1; k < end && k - i < LOOK_BACK && !msl_among(msl_at(m, k), ends); k++)
        if (msl_here(m, k, "{"))
            return msl_behind(m, k);
    return i;
}

static bool check_body(tr *m, const msl_function_record *f) {
    static const char *const ends[] = {"=", ";", "(", "{", "[", NULL};
    static const char *const kept[] = {"constant", "constexpr", "threadgroup", NULL};
    size_t close = m->match[f->body];
    for (size_t i = f->body + 1; i < close; i++) {
        size_t behind = behind_struct(m, i, close), begin = i;
        i = behind > i ? behind - 1 : i;
        if (!check_auto(m, f, i))
            return false;
        if (behind > begin || !msl_here(m, i, "static"))
            continue;
        begin = statement_begin(m, i);
        bool believed = begin == SIZE_MAX;
        size_t end = believed ? i : begin;
        for (; !believed && end < close && !msl_among(msl_at(m, end), ends); end++)
            believed = msl_among(msl_at(m, end), kept);
        const msl_token *name = msl_at(m, end - 1);
        if (!believed)
            return msl_error_at(&m->s, name, "%.*s is a static variable of a function: Metal has none but constants",
                                (int)name->size, name->text);
    }
    return true;
}

bool msl_check_declarations(tr *m) {
    pointer_types p = {0};
    if (m->function_count > MSL_MAX_CHECKED)
        return true;
    for (size_t i = 0; i + 1 < m->tokens.count; i++)
        if (!check_pointer(m, i, &p))
            return false;
    for (size_t i = 0; i < m->function_count; i++)
        if (!check_body(m, &m->functions[i]))
            return false;
    return true;
}
