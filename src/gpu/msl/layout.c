/* Names that the source declares, and sizes of types as far as tokens tell: argument tables want the fewest bytes a
 * buffer must have. What is not understood is unknown, never wrong. */
#include "gpu/msl/translate.h"

#include <string.h>

enum { DEPTH = 24, STEPS = 20000 };

/* ---- names ------------------------------------------------------------------------------------------------------- */

static size_t bucket(const msl_token *name) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < name->size; i++)
        h = (h ^ (unsigned char)name->text[i]) * 16777619u;
    return h % MSL_BUCKETS;
}

static msl_symbol *find(const tr *m, const msl_token *name) {
    msl_symbol *s = m->symbols[bucket(name)];
    while (s && !msl_same(&s->name, name))
        s = s->next;
    return s;
}

const msl_symbol *msl_lookup(const tr *m, const msl_token *name) {
    return name->kind == MSL_NAME ? find(m, name) : NULL;
}

bool msl_declare(tr *m, const msl_symbol *symbol) {
    msl_symbol *known = find(m, &symbol->name);
    if (known) { /* a refused name that is declared otherwise too is usable */
        bool provisional = known->kind == MSL_SYMBOL_REFUSED || known->kind == MSL_SYMBOL_FORWARD;
        bool replaces = provisional && known->kind != symbol->kind && symbol->kind != MSL_SYMBOL_FORWARD;
        msl_symbol *next = known->next;
        if (replaces) {
            *known = *symbol;
            known->next = next;
        } else if (symbol->kind != MSL_SYMBOL_REFUSED && symbol->kind != MSL_SYMBOL_FORWARD) {
            known->twice |= known->kind != symbol->kind || !msl_range_same(m, known->range, symbol->range) ||
                            known->offset != symbol->offset;
        }
        return true;
    }
    msl_symbol *s = msl_alloc(&m->s.arena, sizeof *s);
    if (!s)
        return msl_no_memory(&m->s);
    *s = *symbol;
    size_t b = bucket(&s->name);
    s->next = m->symbols[b];
    m->symbols[b] = s;
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef struct scope {
    const tr *m;
    const msl_binding *binding;
    int depth;
    int *steps; /* left: structs inside structs multiply */
} scope;

/* One question may take STEPS, all of a translation the budget. */
static int take_steps(const tr *m) {
    int steps = *m->layout_budget < STEPS ? *m->layout_budget : STEPS;
    *m->layout_budget -= steps;
    return steps;
}

static void give_steps(const tr *m, int left) {
    *m->layout_budget += left > 0 ? left : 0;
}

static scope inside(const scope *s, const msl_binding *binding) {
    return (scope){s->m, binding, s->depth + 1, s->steps};
}

static bool value_of(const scope *s, msl_range r, int64_t *v);
static msl_layout layout_of(const scope *s, msl_range type);

/* The argument that a template parameter is bound to. */
static bool bound(const scope *s, const msl_token *name, msl_range *argument, const msl_binding **outer) {
    const msl_binding *b = s->binding;
    if (!b)
        return false;
    for (const msl_symbol *l = b->locals; l; l = l->next)
        if (msl_same(&l->name, name)) {
            *argument = l->range;
            *outer = b;
            return !l->twice;
        }
    size_t p = b->parameters.begin, a = b->arguments.begin;
    while (p < b->parameters.end) {
        size_t pe = msl_piece_end(s->m, p, b->parameters.end), ne = p;
        size_t ae = a < b->arguments.end ? msl_piece_end(s->m, a, b->arguments.end) : a;
        while (ne < pe && !msl_here(s->m, ne, "="))
            ne++;
        if (ne > p && msl_same(msl_at(s->m, ne - 1), name)) {
            bool given = a < ae;
            *argument = given ? (msl_range){a, ae} : (msl_range){ne < pe ? ne + 1 : pe, pe};
            *outer = given ? b->outer : b;
            return argument->begin < argument->end;
        }
        p = pe + 1;
        a = ae < b->arguments.end ? ae + 1 : ae;
    }
    return false;
}

/* Is `name` behind `scope::` the one that msl_lookup finds by itself? An enumerator is, where the scope is its own
 * enumeration, and what a namespace holds (a name that is declared twice is no value). A struct's members are not. */
static bool named_in(const tr *m, size_t qualifier, const msl_token *name) {
    const msl_symbol *s = msl_lookup(m, msl_at(m, qualifier)), *found = msl_lookup(m, name);
    if (!s || !found)
        return found != NULL;
    size_t open = s->range.end;
    if (s->kind != MSL_SYMBOL_TYPE || s->twice || !msl_here(m, s->range.begin, "enum") || !msl_here(m, open, "{"))
        return false;
    for (size_t k = open + 1; k < m->match[open]; k++)
        if (msl_at(m, k)->text == found->name.text)
            return true;
    return false;
}

static bool operand(void *user, const msl_token *t, size_t n, size_t *used, int64_t *value) {
    const scope *s = user;
    const tr *m = s->m;
    size_t i = (size_t)(t - m->tokens.at);
    if (s->depth > DEPTH)
        return false;
    if (msl_is(t, "sizeof") && n > 2 && msl_here(m, i + 1, "(") && msl_behind(m, i + 1) <= i + n) {
        scope inner = inside(s, s->binding);
        size_t end = msl_behind(m, i + 1);
        msl_layout l = layout_of(&inner, (msl_range){i + 2, end - 1});
        *used = end - i;
        *value = (int64_t)l.size;
        return l.size != 0;
    }
    *used = 1;
    while (*used + 2 <= n && msl_here(m, i + *used, "::") && msl_name_at(m, i + *used + 1))
        *used += 2;
    if (*used > 1 && !named_in(m, i + *used - 3, t = msl_at(m, i + *used - 1)))
        return false;
    msl_range r;
    const msl_binding *outer;
    if (*used == 1 && bound(s, t, &r, &outer)) {
        scope inner = inside(s, outer);
        return value_of(&inner, r, value);
    }
    const msl_symbol *known = msl_lookup(m, t);
    if (!known || known->kind != MSL_SYMBOL_VALUE || known->twice)
        return false;
    scope inner = inside(s, NULL);
    *value = 0;
    if (known->range.begin < known->range.end && !value_of(&inner, known->range, value))
        return false;
    *value = (int64_t)((uint64_t)*value + (uint64_t)known->offset);
    return true;
}

static bool value_of(const scope *s, msl_range r, int64_t *v) {
    return r.begin < r.end && s->depth <= DEPTH && --*s->steps >= 0 &&
           msl_evaluate(&s->m->tokens.at[r.begin], r.end - r.begin, operand, (void *)s, v);
}

bool msl_range_value(const tr *m, msl_range r, const msl_binding *binding, int64_t *value) {
    int steps = take_steps(m);
    scope s = {m, binding, 0, &steps};
    bool ok = value_of(&s, r, value);
    give_steps(m, steps);
    return ok;
}

/* ---- built-in types ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t size;
} scalars[] = {{"bool", 1},       {"char", 1},        {"uchar", 1},        {"short", 2},       {"ushort", 2},
               {"int", 4},        {"uint", 4},        {"long", 8},         {"ulong", 8},       {"half", 2},
               {"float", 4},      {"bfloat", 2},      {"int8_t", 1},       {"uint8_t", 1},     {"int16_t", 2},
               {"uint16_t", 2},   {"int32_t", 4},     {"uint32_t", 4},     {"int64_t", 8},     {"uint64_t", 8},
               {"size_t", 8},     {"ptrdiff_t", 8},   {"unsigned", 4},     {"signed", 4},      {"void", 1},
               {"atomic_int", 4}, {"atomic_uint", 4}, {"atomic_float", 4}, {"atomic_bool", 4}, {"atomic_ulong", 8}};

/* The API's structs of 32-bit members (prelude/shared.h). */
static const struct {
    const char *name;
    uint8_t size;
} records_of_api[] = {{"MTLDispatchThreadgroupsIndirectArguments", 12},  {"MTLDispatchThreadsIndirectArguments", 24},
                      {"MTLStageInRegionIndirectArguments", 24},         {"MTLDrawPrimitivesIndirectArguments", 16},
                      {"MTLDrawIndexedPrimitivesIndirectArguments", 20}, {"MTLDrawPatchIndirectArguments", 16}};

static unsigned scalar_size(const char *name, size_t n) {
    for (size_t i = 0; i < SL_COUNT(scalars); i++)
        if (strlen(scalars[i].name) == n && memcmp(scalars[i].name, name, n) == 0)
            return scalars[i].size;
    return 0;
}

static msl_layout vector_layout(uint64_t element, uint64_t n, bool packed) {
    uint64_t lanes = n == 3 && !packed ? 4 : n;
    return (msl_layout){element * lanes, packed ? element : element * lanes};
}

/* float4, packed_half3, half4x4, simd_float4, matrix_float3x3. */
static msl_layout built_in(const msl_token *t) {
    static const char *const prefixes[] = {"packed_", "simd_", "vector_", "matrix_"};
    const char *s = t->text;
    size_t n = t->size;
    bool packed = n > 7 && memcmp(s, "packed_", 7) == 0;
    for (size_t i = 0; i < SL_COUNT(records_of_api); i++)
        if (msl_is(t, records_of_api[i].name))
            return (msl_layout){records_of_api[i].size, 4};
    for (size_t i = 0; i < SL_COUNT(prefixes); i++) {
        size_t length = strlen(prefixes[i]);
        if (n > length && memcmp(s, prefixes[i], length) == 0) {
            s += length;
            n -= length;
            break;
        }
    }
    unsigned size = scalar_size(s, n);
    if (size)
        return (msl_layout){size, size};
    if (n > 3 && s[n - 2] == 'x' && s[n - 1] >= '2' && s[n - 1] <= '4' && s[n - 3] >= '2' && s[n - 3] <= '4') {
        size = scalar_size(s, n - 3);
        msl_layout column = vector_layout(size, (uint64_t)(s[n - 1] - '0'), false);
        return (msl_layout){column.size * (uint64_t)(s[n - 3] - '0'), column.align};
    }
    if (n > 1 && s[n - 1] >= '2' && s[n - 1] <= '4') {
        size = scalar_size(s, n - 1);
        return vector_layout(size, (uint64_t)(s[n - 1] - '0'), packed);
    }
    return (msl_layout){0, 0};
}

/* ---- templates --------------------------------------------------------------------------------------------------- */

/* name<arguments> of Metal's own. */
static msl_layout library_template(const scope *s, const msl_token *name, msl_range a) {
    size_t second = msl_piece_end(s->m, a.begin, a.end);
    msl_layout e = layout_of(s, (msl_range){a.begin, second});
    int64_t n = 0;
    if (msl_is(name, "atomic") || msl_is(name, "_atomic"))
        return e;
    bool number = second < a.end && value_of(s, (msl_range){second + 1, msl_piece_end(s->m, second + 1, a.end)}, &n);
    if (!number || n < 1 || n > (1 << 24) || !e.size)
        return (msl_layout){0, 0};
    if ((msl_is(name, "vec") || msl_is(name, "packed_vec")) && n <= 4)
        return vector_layout(e.size, (uint64_t)n, msl_is(name, "packed_vec"));
    if (msl_is(name, "array"))
        return (msl_layout){e.size * (uint64_t)n, e.align};
    return (msl_layout){0, 0};
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

typedef struct record {
    uint64_t size, align;
    bool packed, is_union, unknown;
} record;

static void add_member(record *r, msl_layout l, uint64_t count) {
    uint64_t align = r->packed ? 1 : l.align, bytes;
    if (!l.size || !sl_mul_u64(l.size, count, &bytes) || bytes > (1u << 30) || r->size > (1u << 30)) {
        r->unknown = true;
        return;
    }
    uint64_t at = r->is_union ? 0 : sl_round_up(r->size, align);
    r->size = at + bytes > r->size ? at + bytes : r->size;
    r->align = align > r->align ? align : r->align;
}

/* Declarators in [i, e): `a, *b, c[2][3]`, each a member of layout l or a pointer. */
static void add_declarators(const scope *s, record *r, msl_layout l, size_t i, size_t e) {
    const tr *m = s->m;
    while (i < e) {
        size_t end = msl_piece_end(m, i, e);
        msl_layout one = l;
        uint64_t count = 1;
        for (; i < end && !msl_here(m, i, "=") && !msl_attribute_at(m, i); i = msl_behind(m, i)) {
            int64_t n;
            if (msl_here(m, i, "*") || msl_here(m, i, "&"))
                one = (msl_layout){8, 8};
            if (msl_here(m, i, ":") || msl_here(m, i, "("))
                r->unknown = true;
            if (!msl_here(m, i, "["))
                continue;
            if (!value_of(s, (msl_range){i + 1, m->match[i]}, &n) || n < 0 || !sl_mul_u64(count, (uint64_t)n, &count))
                r->unknown = true;
        }
        add_member(r, one, count);
        i = end + 1;
    }
}

/* `T a, *b;` at i, its end e: the last name before the first declarator's end is the member. */
static void add_declaration(const scope *s, record *r, size_t i, size_t e) {
    const tr *m = s->m;
    size_t type = i;
    while (i < e && msl_name_at(m, i)) {
        size_t after = i + 1;
        if (msl_here(m, after, "<"))
            after = msl_behind_angle(m, after, e);
        if (!after)
            break;
        if (msl_here(m, after, "::")) {
            i = after + 1;
        } else if (msl_name_at(m, after)) {
            i = msl_skip_attributes(m, after);
        } else {
            i = msl_here(m, after, "*") || msl_here(m, after, "&") ? after : i;
            break;
        }
    }
    add_declarators(s, r, layout_of(s, (msl_range){type, i}), i, e);
}

static bool skipped_member(const tr *m, size_t i) {
    static const char *const words[] = {"using",     "typedef", "static", "static_assert", "template", "friend",
                                        "constexpr", "enum",    NULL};
    return msl_among(msl_at(m, i), words);
}

static msl_layout record_layout(const scope *s, const msl_symbol *sym);

/* The record at i inside a record, its body at open: its members are the outer one's, or it declares some. */
static void add_inner_record(const scope *s, record *r, size_t i, size_t open, size_t e) {
    const tr *m = s->m;
    msl_symbol sym = {.range = {open + 1, m->match[open]}, .is_union = msl_here(m, i, "union"), .packed = r->packed};
    scope inner = inside(s, s->binding);
    size_t name = msl_skip_attributes(m, i + 1), declarators = msl_skip_attributes(m, m->match[open] + 1);
    if (declarators >= e && msl_name_at(m, name))
        return; /* only a type */
    if (inner.depth > DEPTH || --*s->steps < 0) {
        r->unknown = true;
        return;
    }
    msl_layout l = record_layout(&inner, &sym);
    if (declarators >= e)
        add_member(r, l, 1);
    else
        add_declarators(s, r, l, declarators, e);
}

static msl_layout record_layout(const scope *s, const msl_symbol *sym) {
    const tr *m = s->m;
    record r = {.align = 1, .packed = sym->packed, .is_union = sym->is_union};
    for (size_t i = sym->range.begin; i < sym->range.end && !r.unknown;) {
        size_t e = i, body = 0;
        r.unknown = --*s->steps < 0;
        i = msl_skip_attributes(m, i);
        if (msl_here(m, i + 1, ":") && !msl_here(m, i + 1, "::") && msl_name_at(m, i)) {
            i += 2; /* public: */
            continue;
        }
        bool function = msl_function_at(m, i, sym->range.end);
        for (e = i; e < sym->range.end && !msl_here(m, e, ";"); e = msl_behind(m, e))
            if (msl_here(m, e, "{") && function) {
                body = e;
                break;
            }
        size_t open = i;
        if (msl_here(m, i, "struct") || msl_here(m, i, "union") || msl_here(m, i, "class"))
            while (open < e && !msl_here(m, open, "{"))
                open++;
        if (open > i && open < e)
            add_inner_record(s, &r, i, open, e);
        else if (!function && !skipped_member(m, i) && e > i)
            add_declaration(s, &r, i, e);
        i = body ? msl_behind(m, body) : e + 1;
    }
    if (sym->align > r.align)
        r.align = sym->align;
    if (r.unknown)
        return (msl_layout){0, 0};
    return (msl_layout){sl_round_up(r.size ? r.size : 1, r.align), r.align};
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static msl_layout named(const scope *s, msl_range type, msl_range arguments) {
    const tr *m = s->m;
    const msl_token *name = msl_at(m, type.begin);
    msl_range r;
    const msl_binding *outer;
    if (bound(s, name, &r, &outer)) {
        scope inner = inside(s, outer);
        return layout_of(&inner, r);
    }
    const msl_symbol *known = msl_lookup(m, name);
    if (!known && arguments.begin < arguments.end)
        return library_template(s, name, arguments);
    if (!known)
        return built_in(name);
    if (known->twice)
        return (msl_layout){0, 0};
    msl_binding binding = {known->parameters, arguments, s->binding, NULL};
    scope inner = inside(s, known->parameters.begin < known->parameters.end ? &binding : NULL);
    if (known->kind == MSL_SYMBOL_TYPE)
        return layout_of(&inner, known->range);
    return known->kind == MSL_SYMBOL_STRUCT ? record_layout(&inner, known) : (msl_layout){0, 0};
}

/* `unsigned char` and the like. */
static msl_layout words(const tr *m, msl_range type) {
    unsigned size = 0;
    for (size_t i = type.begin; i < type.end; i++) {
        const msl_token *t = msl_at(m, i);
        unsigned one = t->kind == MSL_NAME ? scalar_size(t->text, t->size) : 0;
        if (!one)
            return (msl_layout){0, 0};
        if (!msl_is(t, "unsigned") && !msl_is(t, "signed") && !(size && msl_is(t, "int")))
            size = one;
    }
    size = size ? size : 4;
    return (msl_layout){size, size};
}

/* `enum a : b`, `enum a`. */
static msl_layout enum_layout(const scope *s, msl_range type) {
    for (size_t i = type.begin; i < type.end; i++)
        if (msl_here(s->m, i, ":")) {
            scope inner = inside(s, s->binding);
            return layout_of(&inner, (msl_range){i + 1, type.end});
        }
    return (msl_layout){4, 4};
}

static msl_layout layout_of(const scope *s, msl_range type) {
    const tr *m = s->m;
    type = msl_trim(m, type);
    size_t n = type.end - type.begin;
    if (!n || s->depth > DEPTH || --*s->steps < 0 || type.end < type.begin)
        return (msl_layout){0, 0};
    if (msl_here(m, type.end - 1, "*"))
        return (msl_layout){8, 8};
    if (msl_here(m, type.begin, "enum"))
        return enum_layout(s, type);
    if (n == 1)
        return named(s, type, (msl_range){0, 0});
    if (msl_here(m, type.begin + 1, "<") && msl_behind_angle(m, type.begin + 1, type.end) == type.end)
        return named(s, type, (msl_range){type.begin + 2, type.end - 1});
    return words(m, type);
}

msl_layout msl_type_layout(const tr *m, msl_range type, const msl_binding *binding) {
    int steps = take_steps(m);
    scope s = {m, binding, 0, &steps};
    msl_layout l = layout_of(&s, type);
    give_steps(m, steps);
    return l;
}
