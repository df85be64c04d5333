/* Positions of namespace scope, `uint i [[thread_position_in_grid]];`: every use of such a name asks for the position,
 * but for those that a parameter or a local variable of the same name hides. */
#include "gpu/msl/translate.h"

#include <string.h>

bool msl_position_declaration(tr *m, size_t i, size_t stop, bool *found) {
    size_t name = i;
    while (name < stop && !msl_attribute_at(m, name))
        name++;
    const char *what = name > i + 1 && name < stop ? msl_position_in(m, name, stop) : NULL;
    msl_range none;
    bool binding = name > i + 1 && name < stop && msl_find_attribute(m, name, stop, "buffer", &none);
    *found = what != NULL || binding;
    if (!*found)
        return true;
    if (binding) {
        msl_symbol s = {.name = *msl_at(m, name - 1), .kind = MSL_SYMBOL_REFUSED, .range = {name, name + 1}};
        return msl_declare(m, &s);
    }
    msl_symbol s = {
        .name = *msl_at(m, name - 1), .kind = MSL_SYMBOL_POSITION, .range = {i, name - 1}, .position = what};
    m->has_positions = true;
    return msl_declare(m, &s);
}

/* ---- hiding ------------------------------------------------------------------------------------------------------ */

enum { MOST_LOOKED_AT = 1 << 16 }; /* tokens of a function that are searched for what hides a name */

/* Is the name at i that of a variable or parameter being declared? */
static bool declares(const tr *m, size_t i) {
    static const char *const words[] = {"return", "else", "case",   "goto",   "do",  "typedef", "using",
                                        "new",    "not",  "sizeof", "delete", "and", "or",      NULL};
    const msl_token *before = i ? msl_at(m, i - 1) : NULL;
    if (!before)
        return false;
    if (before->kind == MSL_NAME)
        return !msl_among(before, words);
    if (!msl_is(before, "*") && !msl_is(before, "&") && !msl_is(before, ">"))
        return false;
    if (msl_attribute_at(m, i + 1))
        return true;
    for (size_t k = i - 1, n = 0; k-- > 0 && n < 6; n++) /* `device const uint *p`, not `a * p` */
        if (msl_is_address_space(msl_at(m, k)))
            return true;
        else if (msl_at(m, k)->kind != MSL_NAME)
            return false;
    return false;
}

static bool declared_in(const tr *m, size_t begin, size_t end, const msl_token *name) {
    for (size_t k = begin; k < end; k++)
        if (msl_same(msl_at(m, k), name) && declares(m, k))
            return true;
    return false;
}

/* Is the name at i, or another like it before it in the blocks and parameters around it, a declaration? */
static bool hidden(const tr *m, size_t i) {
    const msl_token *name = msl_at(m, i);
    if (declares(m, i))
        return true;
    size_t left = MOST_LOOKED_AT;
    bool begun = true; /* a statement has: what is in front of it may be the head that it hangs on */
    for (size_t k = i; k-- > 0 && left-- > 0;) {
        const msl_token *t = msl_at(m, k);
        bool head = msl_is(t, ")") && begun;
        if (head || (msl_is(t, "{") && k && msl_here(m, k - 1, ")"))) {
            size_t close = head ? k : k - 1, open = m->match[close];
            if (left < close - open || declared_in(m, open, close, name))
                return left >= close - open;
            left -= close - open;
            k = open;
            begun = true;
        } else if (msl_is(t, "}") || msl_is(t, ")") || msl_is(t, "]")) {
            k = m->match[k];
        } else if (msl_same(t, name) && declares(m, k) && !msl_attribute_at(m, k + 1)) {
            return true;
        }
        begun = begun && !msl_is(t, ";") && !msl_is(t, "}");
    }
    return false;
}

const msl_symbol *msl_position_used(const tr *m, size_t i) {
    if (!m->has_positions || (i && (msl_here(m, i - 1, ".") || msl_here(m, i - 1, "->") || msl_here(m, i - 1, "::"))))
        return NULL;
    const msl_symbol *s = msl_lookup(m, msl_at(m, i));
    return s && s->kind == MSL_SYMBOL_POSITION && !hidden(m, i) ? s : NULL;
}
