/* Reading tokens: brackets, lists, attributes. */
#include "gpu/msl/translate.h"

#include <stdlib.h>
#include <string.h>

const msl_token *msl_at(const tr *m, size_t i) {
    return &m->tokens.at[i < m->tokens.count ? i : m->tokens.count - 1];
}

bool msl_here(const tr *m, size_t i, const char *s) {
    return i < m->tokens.count && msl_is(&m->tokens.at[i], s);
}

bool msl_name_at(const tr *m, size_t i) {
    return msl_at(m, i)->kind == MSL_NAME;
}

static char opener(const msl_token *t) {
    if (t->kind != MSL_PUNCT || t->size != 1)
        return 0;
    return t->text[0] == ')' ? '(' : t->text[0] == ']' ? '[' : t->text[0] == '}' ? '{' : 0;
}

static bool opens(const msl_token *t) {
    return t->kind == MSL_PUNCT && t->size == 1 && strchr("([{", t->text[0]);
}

/* Fills match; every bracket has its other. */
bool msl_match_brackets(tr *m) {
    size_t n = m->tokens.count, depth = 0;
    m->match = msl_alloc(&m->s.arena, n * sizeof *m->match);
    uint32_t *stack = malloc(n * sizeof *stack);
    bool ok = m->match && stack;
    if (!ok)
        msl_no_memory(&m->s);
    for (size_t i = 0; ok && i < n; i++) {
        const msl_token *t = &m->tokens.at[i];
        char open = opener(t);
        if (opens(t)) {
            stack[depth++] = (uint32_t)i;
        } else if (open && (!depth || m->tokens.at[stack[depth - 1]].text[0] != open)) {
            ok = msl_error_at(&m->s, t, "'%c' without its '%c'", t->text[0], open);
        } else if (open) {
            m->match[i] = stack[--depth];
            m->match[stack[depth]] = (uint32_t)i;
        }
    }
    if (ok && depth) {
        const msl_token *t = &m->tokens.at[stack[depth - 1]];
        ok = msl_error_at(&m->s, t, "'%c' is not closed", t->text[0]);
    }
    free(stack);
    return ok;
}

size_t msl_behind(const tr *m, size_t i) {
    return opens(msl_at(m, i)) ? m->match[i] + 1 : i + 1;
}

/* `<` opens a list behind a name; elsewhere (`sizeof(T) < 8`) it compares. */
static bool opens_list(const tr *m, size_t i) {
    static const char *const words[] = {"return", "sizeof", NULL};
    return i && msl_name_at(m, i - 1) && !msl_among(msl_at(m, i - 1), words);
}

/* nested: names behind which `<` stands open lists of their own; else only the one at i does. */
static size_t find_angle(const tr *m, size_t i, size_t end, bool nested) {
    int depth = 0;
    size_t first = i;
    end = end - i > MSL_MAX_LIST ? i + MSL_MAX_LIST : end;
    for (; i < end; i++) {
        const msl_token *t = msl_at(m, i);
        if (opens(t)) {
            i = m->match[i];
        } else if (msl_is(t, "<")) {
            depth += i == first || (nested && opens_list(m, i));
        } else if (msl_is(t, ">")) {
            if (--depth == 0)
                return i + 1;
        } else if (msl_is(t, ";") || opener(t)) {
            return 0;
        }
    }
    return 0;
}

size_t msl_behind_angle(const tr *m, size_t i, size_t end) {
    if (i >= end)
        return 0;
    size_t found = find_angle(m, i, end, true);
    return found ? found : find_angle(m, i, end, false);
}

bool msl_attribute_at(const tr *m, size_t i) {
    return msl_here(m, i, "[") && msl_here(m, i + 1, "[") && m->match[i] == m->match[i + 1] + 1;
}

size_t msl_skip_gnu(const tr *m, size_t i) {
    if ((msl_here(m, i, "__attribute__") || msl_here(m, i, "alignas") || msl_here(m, i, "__declspec")) &&
        msl_here(m, i + 1, "("))
        return msl_behind(m, i + 1);
    return i;
}

size_t msl_skip_attributes(const tr *m, size_t i) {
    for (;;) {
        size_t j = msl_attribute_at(m, i) ? msl_behind(m, i) : msl_skip_gnu(m, i);
        if (j == i)
            return i;
        i = j;
    }
}

size_t msl_piece_end(const tr *m, size_t i, size_t end) {
    while (i < end && !msl_here(m, i, ",")) {
        const msl_token *t = msl_at(m, i);
        size_t j = 0;
        if (msl_is(t, "<"))
            j = msl_behind_angle(m, i, end);
        i = j ? j : msl_behind(m, i);
    }
    return i < end ? i : end;
}

bool msl_find_attribute(const tr *m, size_t begin, size_t end, const char *name, msl_range *argument) {
    for (size_t i = begin; i < end; i++) {
        if (!msl_attribute_at(m, i))
            continue;
        size_t close = m->match[i + 1];
        for (size_t j = i + 2; j < close; j = msl_behind(m, j)) {
            if (!msl_here(m, j, name))
                continue;
            bool has = msl_here(m, j + 1, "(");
            *argument = has ? (msl_range){j + 2, m->match[j + 1]} : (msl_range){0, 0};
            return true;
        }
        i = close;
    }
    return false;
}

bool msl_is_address_space(const msl_token *t) {
    static const char *const words[] = {"device", "constant", "thread", "threadgroup", NULL};
    return t->kind == MSL_NAME && msl_among(t, words);
}

bool msl_range_same(const tr *m, msl_range a, msl_range b) {
    if (a.end - a.begin != b.end - b.begin)
        return false;
    for (size_t i = 0; i < a.end - a.begin; i++)
        if (!msl_same(msl_at(m, a.begin + i), msl_at(m, b.begin + i)))
            return false;
    return true;
}

static bool is_qualifier(const msl_token *t) {
    static const char *const words[] = {"const",    "volatile", "constexpr", "static",   "inline", "extern",
                                        "typename", "struct",   "class",     "coherent", NULL};
    return msl_is_address_space(t) || msl_among(t, words);
}

msl_range msl_trim(const tr *m, msl_range r) {
    while (r.begin < r.end) {
        size_t skipped = msl_skip_attributes(m, r.begin);
        if (skipped > r.begin && skipped <= r.end)
            r.begin = skipped;
        else if (is_qualifier(msl_at(m, r.begin)) || msl_here(m, r.begin, "::"))
            r.begin++;
        else if ((msl_here(m, r.begin, "metal") || msl_here(m, r.begin, "simd")) && msl_here(m, r.begin + 1, "::") &&
                 r.begin + 2 < r.end)
            r.begin += 2;
        else
            break;
    }
    while (r.begin < r.end && is_qualifier(msl_at(m, r.end - 1)))
        r.end--;
    return r;
}
