/* Copying tokens to the generated unit, each on its source line, with what C++ needs changed: literals, swizzles,
 * address spaces, attributes, reserved names. */
#include "gpu/msl/translate.h"

#include <stdio.h>
#include <string.h>

/* ---- position ---------------------------------------------------------------------------------------------------- */

enum { NEAR = 6 }; /* lines that are skipped by newlines rather than by #line */

static void put_file_name(tr *m, int file) {
    sl_buf_puts(&m->out, "\"");
    for (const char *s = m->s.names[file]; *s; s++) {
        if (*s == '"' || *s == '\\')
            sl_buf_puts(&m->out, "\\");
        sl_buf_append(&m->out, s, 1);
    }
    sl_buf_puts(&m->out, "\"\n");
}

void msl_put_line(tr *m, uint32_t line, int file) {
    if (m->out_muted || m->out_joined || (file == m->out_file && line == m->out_line))
        return;
    if (file != m->out_file || line < m->out_line || line > m->out_line + NEAR) {
        sl_buf_printf(&m->out, "\n#line %u ", line ? line : 1);
        put_file_name(m, file < m->s.files ? file : 0);
    } else {
        for (uint32_t i = m->out_line; i < line; i++)
            sl_buf_puts(&m->out, "\n");
    }
    m->out_line = line;
    m->out_file = file;
}

void msl_put(tr *m, size_t at, const char *fmt, ...) {
    const msl_token *t = msl_at(m, at);
    if (m->out_muted)
        return;
    msl_put_line(m, t->line, t->file);
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sl_buf_puts(&m->out, " ");
    sl_buf_append(&m->out, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static void put_token(tr *m, const msl_token *t) {
    sl_buf_append(&m->out, t->text, t->size);
}

/* ---- literals ---------------------------------------------------------------------------------------------------- */

static bool ends(const char *s, size_t n, const char *suffix) {
    size_t k = strlen(suffix);
    if (n <= k)
        return false;
    for (size_t i = 0; i < k; i++)
        if ((s[n - k + i] | 32) != suffix[i])
            return false;
    return true;
}

static bool has_any(const char *s, size_t n, const char *set) {
    for (size_t i = 0; i < n; i++)
        if (strchr(set, s[i]))
            return true;
    return false;
}

/* s[n], digits of a float without suffix, as a float literal. */
static void put_float(tr *m, const char *s, size_t n) {
    bool hex = n > 1 && (s[1] | 32) == 'x';
    sl_buf_append(&m->out, s, n);
    sl_buf_puts(&m->out, hex || has_any(s, n, ".eE") ? "f" : ".0f");
}

/* Floating literals are float unless they say h (half) or bf (bfloat). */
static void put_number(tr *m, const msl_token *t) {
    const char *s = t->text;
    size_t n = t->size;
    bool hex = n > 1 && s[0] == '0' && (s[1] | 32) == 'x';
    bool binary = n > 1 && s[0] == '0' && (s[1] | 32) == 'b' && !ends(s, n, "bf");
    if (!hex && !binary && (ends(s, n, "bf") || ends(s, n, "h"))) {
        bool half = ends(s, n, "h");
        sl_buf_puts(&m->out, half ? "half(" : "bfloat(");
        put_float(m, s, n - (half ? 1 : 2));
        sl_buf_puts(&m->out, ")");
    } else if (hex ? has_any(s, n, "pP") : !binary && has_any(s, n, ".eE")) {
        if (hex && ends(s, n, "h"))
            n--;
        if (ends(s, n, "l"))
            n--;
        put_float(m, s, ends(s, n, "f") ? n - 1 : n);
    } else {
        put_token(m, t);
    }
}

/* ---- swizzles ---------------------------------------------------------------------------------------------------- */

static int component(char c) {
    static const char sets[] = "xyzwrgba";
    const char *p = c ? strchr(sets, c) : NULL;
    return p ? (int)(p - sets) : -1;
}

static bool is_swizzle(const msl_token *t) {
    if (t->kind != MSL_NAME || t->size < 2 || t->size > 4)
        return false;
    int set = component(t->text[0]) / 4;
    for (size_t i = 0; i < t->size; i++)
        if (component(t->text[i]) < 0 || component(t->text[i]) / 4 != set)
            return false;
    return true;
}

/* A read and an assignment of one member. */
static void put_swizzle_member(tr *m, size_t i) {
    static const char letters[] = "ABCD";
    const msl_token *t = msl_at(m, i);
    static const char *const forms[] = {"const auto &msl_sw() const", "auto &msl_sw()", "auto &msl_set()"};
    for (size_t f = 0; f < SL_COUNT(forms); f++) {
        msl_put(m, i, "template <");
        for (size_t k = 0; k < t->size; k++)
            sl_buf_printf(&m->out, "int %c, ", letters[k]);
        sl_buf_puts(&m->out, "::msl_unit::metal::enable_if_t<");
        for (size_t k = 0; k < t->size; k++)
            sl_buf_printf(&m->out, "%s%c == %d", k ? " && " : "", letters[k], component(t->text[k]) % 4);
        sl_buf_printf(&m->out, ", int> = 0> MSL_FN %s { return %.*s; }", forms[f], (int)t->size, t->text);
    }
}

/* `float2 xy;` of the source's own struct: `s.xy` is written as a swizzle all the same, since tokens do not tell what s
 * is; so the struct answers to it. */
void msl_put_swizzle_members(tr *m, size_t body) {
    static const char *const ends[] = {";", ",", "[", "=", NULL};
    for (size_t k = body + 1; k < m->match[body] && !m->out_muted; k = msl_behind(m, k)) {
        const msl_token *t = msl_at(m, k), *before = t - 1;
        bool declared = before->kind == MSL_NAME || msl_is(before, ">") || msl_is(before, "*") || msl_is(before, ",");
        if (is_swizzle(t) && declared && msl_among(t + 1, ends))
            put_swizzle_member(m, k);
    }
}

static bool assigns(const tr *m, size_t i) {
    static const char *const words[] = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "++", "--", "<<=", NULL};
    return msl_among(msl_at(m, i), words) ||
           (msl_here(m, i, ">") && msl_here(m, i + 1, ">=") && !(msl_at(m, i + 1)->flags & MSL_SPACED));
}

static bool at_swizzle(const tr *m, size_t i) {
    return i && is_swizzle(msl_at(m, i)) && (msl_here(m, i - 1, ".") || msl_here(m, i - 1, "->")) &&
           !msl_here(m, i + 1, "(");
}

static void put_swizzle(tr *m, size_t i) {
    const msl_token *t = msl_at(m, i);
    sl_buf_puts(&m->out, assigns(m, i + 1) ? "MSL_SW_SET(" : "MSL_SW(");
    for (size_t k = 0; k < t->size; k++)
        sl_buf_printf(&m->out, "%s%d", k ? "," : "", component(t->text[k]) % 4);
    sl_buf_puts(&m->out, ")");
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* `kernel` and `coherent` are names too (of a filter's weights): behind a type, or where no declaration follows. */
static bool is_plain_name(const tr *m, size_t i) {
    const msl_token *next = msl_at(m, i + 1);
    if (msl_is(next, "(") && msl_here(m, i, "coherent"))
        return false;
    if (!msl_attribute_at(m, i + 1))
        return next->kind != MSL_NAME;
    const msl_token *before = i ? msl_at(m, i - 1) : NULL;
    return before && (msl_is(before, "*") || msl_is(before, "&") || before->kind == MSL_NAME);
}

/* Words that are dropped. */
static bool erased(const tr *m, size_t i) {
    static const char *const words[] = {"device", "thread", "threadgroup", "register", NULL};
    static const char *const names[] = {"kernel", "coherent", NULL};
    const msl_token *t = msl_at(m, i);
    return msl_among(t, words) || (msl_among(t, names) && !is_plain_name(m, i));
}

static void put_constant(tr *m, size_t i) {
    if (!msl_here(m, i + 1, "const") && !(i && msl_here(m, i - 1, "const")))
        sl_buf_puts(&m->out, "const");
}

/* A use of a position of namespace scope. */
static bool put_position(tr *m, size_t i) {
    const msl_symbol *s = msl_position_used(m, i);
    if (!s)
        return false;
    msl_range type = msl_trim(m, s->range);
    sl_buf_puts(&m->out, "((");
    for (size_t k = type.begin; k < type.end; k++)
        sl_buf_printf(&m->out, "%.*s ", (int)msl_at(m, k)->size, msl_at(m, k)->text);
    sl_buf_printf(&m->out, ")MSL_%s)", s->position);
    return true;
}

static void put_name(tr *m, size_t i) {
    const msl_token *t = msl_at(m, i);
    if (put_position(m, i))
        return;
    if (msl_is(t, "constant")) {
        put_constant(m, i);
    } else if (erased(m, i)) {
        return;
    } else if (at_swizzle(m, i)) {
        put_swizzle(m, i);
    } else {
        put_token(m, t);
    }
}

/* ---- pragmas ----------------------------------------------------------------------------------------------------- */

static bool contains(const msl_token *t, const char *what) {
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= t->size; i++)
        if (memcmp(t->text + i, what, n) == 0)
            return true;
    return false;
}

/* Only what speaks of unrolling, in the form that both compilers know. */
static void put_pragma(tr *m, const msl_token *t) {
    if (!contains(t, "unroll"))
        return;
    int count = 0;
    if (contains(t, "disable") || contains(t, "nounroll"))
        count = 1;
    else
        for (size_t i = 0; i < t->size && count < 100000; i++)
            if (t->text[i] >= '0' && t->text[i] <= '9')
                count = count * 10 + (t->text[i] - '0');
    msl_put_line(m, t->line, t->file);
    if (count > 0)
        sl_buf_printf(&m->out, " _Pragma(\"unroll %d\") ", count);
    else
        sl_buf_puts(&m->out, " _Pragma(\"unroll\") ");
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

/* `is_function_constant_defined(x)` at i: index behind it; else i. */
static size_t put_is_defined(tr *m, size_t i) {
    if (!msl_here(m, i, "is_function_constant_defined") || !msl_here(m, i + 1, "(") || !msl_name_at(m, i + 2))
        return i;
    msl_put(m, i, "msl_defined_%.*s", (int)msl_at(m, i + 2)->size, msl_at(m, i + 2)->text);
    return msl_behind(m, i + 1);
}

/* `[[gnu::packed]]` at i. */
static bool packs(const tr *m, size_t i) {
    return msl_attribute_at(m, i) && msl_here(m, i + 2, "gnu") && msl_here(m, i + 3, "::") &&
           (msl_here(m, i + 4, "packed") || msl_here(m, i + 4, "__packed__")) && m->match[i + 1] == i + 5;
}

/* `coherent(device)` at i, which says what threads agree on: behind it. */
static size_t behind_coherent(const tr *m, size_t i) {
    bool scoped = msl_here(m, i, "coherent") && msl_here(m, i + 1, "(") && m->match[i + 1] == i + 3;
    return scoped && (msl_is_address_space(msl_at(m, i + 2)) || msl_here(m, i + 2, "system")) ? i + 4 : i;
}

static size_t put_packed(tr *m, size_t i) {
    if (!packs(m, i))
        return i;
    msl_put(m, i, "__attribute__((packed))");
    return msl_behind(m, i);
}

/* `__attribute__((x))`: kept where it decides over layout. */
static size_t attribute_end(const tr *m, size_t i) {
    if (msl_attribute_at(m, i) && !packs(m, i))
        return msl_behind(m, i);
    size_t end = msl_skip_gnu(m, i);
    if (end > i && msl_here(m, i, "__attribute__"))
        for (size_t k = i; k < end; k++)
            if (contains(msl_at(m, k), "packed") || contains(msl_at(m, k), "aligned"))
                return i;
    return msl_here(m, i, "alignas") ? i : end;
}

/* A leading `::` names the unit, not the host compiler's global names. Behind a name or a template list it leads only
 * where a declarator or a type begins. */
static bool global_scope(const tr *m, size_t i) {
    static const char *const words[] = {"return", "const",    "case",  "typename", "inline",
                                        "static", "void",     "else",  "do",       "constexpr",
                                        "friend", "volatile", "using", "template", NULL};
    if (!msl_here(m, i, "::") || i == 0)
        return false;
    const msl_token *b = msl_at(m, i - 1);
    if (b->kind == MSL_NAME)
        return msl_among(b, words) || msl_is_address_space(b);
    if (msl_is(b, ")")) { /* `decltype(x)::y` */
        size_t open = m->match[i - 1];
        return !open || !msl_here(m, open - 1, "decltype");
    }
    return !msl_is(b, ">") || (msl_at(m, i)->flags & (MSL_SPACED | MSL_BOL));
}

static void put_one(tr *m, size_t i) {
    const msl_token *t = msl_at(m, i), *before = i ? t - 1 : NULL;
    msl_put_line(m, t->line, t->file);
    /* `>>` is two tokens that touch */
    bool touches = before && msl_is(before, ">") && (msl_is(t, ">") || msl_is(t, ">="));
    if (!(touches && !(t->flags & MSL_SPACED)))
        sl_buf_puts(&m->out, " ");
    if (t->kind == MSL_NUMBER)
        put_number(m, t);
    else if (t->kind == MSL_NAME)
        put_name(m, i);
    else
        put_token(m, t);
}

/* ---- conditional expressions ------------------------------------------------------------------------------------- */

/* half and bfloat are classes that convert to float and back, so `c ? half : float` would be ambiguous: each arm is
 * cast to what msl_arm (prelude/conditional.h) makes of both arms' types. Arms are copied for that, so only in shallow
 * nests.
 */
enum { ARM_DEPTH = 3, ARM_TOKENS = 400 };

static bool ends_arm(const msl_token *t) {
    static const char *const words[] = {",", ";", ")", "]", "}", ":", NULL};
    return t->kind == MSL_END || t->kind == MSL_PRAGMA || msl_among(t, words);
}

/* The end of the arm at i: `:` of its own `?` or what closes the expression. */
static size_t arm_end(const tr *m, size_t i, size_t end) {
    int open = 0;
    end = end - i > ARM_TOKENS ? i + ARM_TOKENS : end;
    while (i < end) {
        const msl_token *t = msl_at(m, i);
        if (msl_is(t, "?")) {
            open++;
        } else if (msl_is(t, ":") && open) {
            open--;
        } else if (ends_arm(t)) {
            return i;
        } else if (msl_is(t, "<") && msl_name_at(m, i - 1)) {
            size_t close = msl_behind_angle(m, i, end);
            if (close && (msl_here(m, close, "(") || msl_here(m, close, "::") || msl_here(m, close, "{"))) {
                i = close;
                continue;
            }
        }
        i = msl_behind(m, i);
    }
    return end;
}

static bool is_literal(const tr *m, msl_range r) {
    const msl_token *t = msl_at(m, r.end - 1);
    return t->kind == MSL_NUMBER && (r.end == r.begin + 1 || (r.end == r.begin + 2 && msl_here(m, r.begin, "-")));
}

static bool put_arm(tr *m, msl_range arm, msl_range other) {
    sl_buf_puts(&m->out, " static_cast<msl_arm<decltype((");
    if (!msl_emit(m, arm.begin, arm.end))
        return false;
    sl_buf_puts(&m->out, ")), decltype(");
    if (!msl_emit(m, other.begin, other.end))
        return false;
    sl_buf_puts(&m->out, ")>>(");
    if (!msl_emit(m, arm.begin, arm.end))
        return false;
    sl_buf_puts(&m->out, ")");
    return true;
}

/* Is the `?` at i inside a template list, where arms are constants? `n < c ? a : b` is not; the `>` that would close
 * the list has to be followed by what can stand behind one. */
static bool inside_list(const tr *m, size_t i, size_t end) {
    static const char *const stops[] = {";", "{", "}", "(", "[", NULL};
    static const char *const behind[] = {";", ",", ")", ">", "::", "{", "(", "&&", NULL};
    int depth = 0;
    for (size_t k = i, n = 0; k-- > 0 && n < ARM_TOKENS; n++) {
        const msl_token *t = msl_at(m, k);
        if (msl_is(t, ")") || msl_is(t, "]"))
            k = m->match[k];
        else if (msl_among(t, stops))
            return false;
        else if (msl_is(t, ">"))
            depth++;
        else if (msl_is(t, "<") && k && msl_name_at(m, k - 1) && depth-- == 0) {
            size_t close = msl_behind_angle(m, k, end);
            return close > i && msl_among(msl_at(m, close), behind);
        }
    }
    return false;
}

/* `? a : b` at i; *next == i: left as it is. */
static bool put_conditional(tr *m, size_t i, size_t end, size_t *next) {
    msl_range a = {i + 1, arm_end(m, i + 1, end)}, b = {a.end + 1, a.end + 1};
    *next = i;
    if (!msl_here(m, a.end, ":") || a.begin >= a.end || m->arm_depth >= ARM_DEPTH || inside_list(m, i, m->tokens.count))
        return true;
    b.end = arm_end(m, b.begin, end);
    if (b.begin >= b.end || b.end - a.begin >= ARM_TOKENS || (is_literal(m, a) && is_literal(m, b)))
        return true;
    msl_put(m, i, "?");
    m->arm_depth++;
    m->out_joined++;
    bool ok = put_arm(m, a, b);
    sl_buf_puts(&m->out, " :");
    ok = ok && put_arm(m, b, a);
    m->out_joined--;
    m->arm_depth--;
    *next = b.end;
    return ok;
}

/* Does the source know of 16-bit floats? */
void msl_find_halves(tr *m) {
    for (size_t i = 0; i < m->tokens.count && !m->has_halves; i++) {
        const msl_token *t = msl_at(m, i);
        bool hex = t->size > 1 && (t->text[1] | 32) == 'x';
        m->has_halves =
            (t->kind == MSL_NAME && (contains(t, "half") || contains(t, "bfloat"))) ||
            (t->kind == MSL_NUMBER && !hex && (ends(t->text, t->size, "h") || ends(t->text, t->size, "bf")));
    }
}

/* `name[n] = {[0 ... n - 1] = v}` at the `=`, which nvcc does not know: an assignment to each. *next == i: something
 * else. */
static bool put_filled_array(tr *m, size_t i, size_t end, size_t *next) {
    size_t open = i + 1, bracket = i + 2, name = i;
    *next = i;
    if (!msl_here(m, open, "{") || !msl_here(m, bracket, "[") || msl_attribute_at(m, bracket) || m->match[open] >= end)
        return true;
    size_t value = msl_behind(m, bracket), dots = bracket + 1;
    while (dots < value && !msl_here(m, dots, "..."))
        dots++;
    if (dots == value || !msl_here(m, value, "=") || !msl_here(m, m->match[open] + 1, ";"))
        return true;
    while (name > 1 && msl_here(m, name - 1, "]"))
        name = m->match[name - 1];
    if (name == i || !msl_name_at(m, --name))
        return true;
    msl_put(m, i, "; for (auto &msl_each : %.*s) msl_each =", (int)msl_at(m, name)->size, msl_at(m, name)->text);
    *next = msl_behind(m, open);
    return msl_emit(m, value + 1, msl_piece_end(m, value + 1, m->match[open]));
}

/* `_Atomic T` and `_Atomic(T)` at i. */
static size_t put_atomic(tr *m, size_t i) {
    if (!msl_here(m, i, "_Atomic"))
        return i;
    bool list = msl_here(m, i + 1, "(");
    const msl_token *t = msl_at(m, i + (list ? 2 : 1));
    if (t->kind != MSL_NAME || (list && m->match[i + 1] != i + 3))
        return i;
    msl_put(m, i, "::msl_unit::metal::atomic<%.*s>", (int)t->size, t->text);
    return i + (list ? 4 : 2);
}

bool msl_emit(tr *m, size_t begin, size_t end) {
    for (size_t i = begin; i < end;) {
        size_t next = attribute_end(m, i);
        if (next == i && !m->out_muted)
            next = put_is_defined(m, i);
        if (next == i && !m->out_muted)
            next = put_atomic(m, i);
        if (next == i)
            next = put_packed(m, i);
        if (next == i)
            next = behind_coherent(m, i);
        if (next == i && !m->out_muted && msl_here(m, i, "=") && !put_filled_array(m, i, end, &next))
            return false;
        if (next == i && !m->out_muted && m->has_halves && msl_here(m, i, "?") && !put_conditional(m, i, end, &next))
            return false;
        if (next > i) {
            i = next;
            continue;
        }
        const msl_token *t = msl_at(m, i);
        if (m->out_muted)
            ;
        else if (global_scope(m, i))
            msl_put(m, i, "::msl_unit::");
        else if (t->kind == MSL_PRAGMA)
            put_pragma(m, t);
        else if (t->kind != MSL_END)
            put_one(m, i);
        i++;
    }
    if (m->out.size > MSL_MAX_CODE)
        return msl_error_at(&m->s, msl_at(m, begin), "generated code is larger than %d MiB", MSL_MAX_CODE >> 20);
    return !m->out.failed || msl_no_memory(&m->s);
}
