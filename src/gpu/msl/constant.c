/* Constants at namespace scope: function constants, constants derived from them, and plain ones.
 *
 * On cuda function constants are compile-time values. On soft they are variables that the runtime writes before a
 * kernel runs; constants derived from them are worked out again at the start of each entry. */
#include "gpu/msl/translate.h"

#include <string.h>

typedef struct constant {
    msl_range head; /* of its template */
    msl_range type, attribute, value;
    size_t begin, name, end;
    bool array, indirect, spelled; /* spelled: constexpr was written */
} constant;

static bool is_specifier(const msl_token *t) {
    static const char *const words[] = {"static",   "constexpr", "inline",   "const",
                                        "constant", "extern",    "typename", NULL};
    return msl_among(t, words);
}

static size_t semicolon(const tr *m, size_t i, size_t end) {
    while (i < end && !msl_here(m, i, ";"))
        i = msl_behind(m, i);
    return i;
}

/* Reads `specifiers type name [dims] [[attributes]] = value` in [i, end). */
static void read_constant(const tr *m, size_t i, size_t end, constant *c) {
    c->begin = i;
    c->end = end;
    c->value = (msl_range){end, end};
    size_t stop = i;
    for (; stop < end && !msl_here(m, stop, "=") && !msl_here(m, stop, ","); stop = msl_behind(m, stop)) {
        if (msl_attribute_at(m, stop))
            c->attribute = (msl_range){stop, msl_behind(m, stop)};
        else if (msl_here(m, stop, "<") && msl_behind_angle(m, stop, end))
            stop = msl_behind_angle(m, stop, end) - 1;
        else if (msl_here(m, stop, "["))
            c->array = true;
        else if (msl_here(m, stop, "{") || (msl_here(m, stop, "(") && c->name && stop == c->name + 1 && !c->array)) {
            c->value = (msl_range){stop, msl_behind(m, stop)};
            break;
        } else if (msl_here(m, stop, "*") || msl_here(m, stop, "&"))
            c->indirect = true;
        else if (msl_name_at(m, stop) && !c->array)
            c->name = stop;
        c->spelled |= msl_here(m, stop, "constexpr");
    }
    if (msl_here(m, stop, "="))
        c->value = (msl_range){stop + 1, end};
    c->type = msl_trim(m, (msl_range){i, c->name});
}

bool msl_is_late(const tr *m, msl_range r) {
    for (size_t i = r.begin; i < r.end; i++)
        for (size_t k = 0; k < m->late_count; k++)
            if (msl_name_at(m, i) && msl_same(msl_at(m, i), &m->late[k].name))
                return true;
    return false;
}

/* ---- function constants ------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    sl_gpu_type type;
    const char *raw; /* the C++ type of the value, where sl_gpu_type lacks this one */
} constant_types[] = {
    {"bool", SL_GPU_BOOL, NULL},       {"int", SL_GPU_INT, NULL},         {"uint", SL_GPU_UINT, NULL},
    {"float", SL_GPU_FLOAT, NULL},     {"short", SL_GPU_SHORT, NULL},     {"ushort", SL_GPU_USHORT, NULL},
    {"half", SL_GPU_HALF, NULL},       {"int32_t", SL_GPU_INT, NULL},     {"uint32_t", SL_GPU_UINT, NULL},
    {"int16_t", SL_GPU_SHORT, NULL},   {"uint16_t", SL_GPU_USHORT, NULL}, {"char", SL_GPU_INT, "int"},
    {"uchar", SL_GPU_UINT, "uint"},    {"int8_t", SL_GPU_INT, "int"},     {"uint8_t", SL_GPU_UINT, "uint"},
    {"long", SL_GPU_INT, "int"},       {"ulong", SL_GPU_UINT, "uint"},    {"int64_t", SL_GPU_INT, "int"},
    {"uint64_t", SL_GPU_UINT, "uint"}, {"size_t", SL_GPU_UINT, "uint"},   {"bfloat", SL_GPU_FLOAT, "float"},
    {"unsigned", SL_GPU_UINT, NULL},
};

static bool constant_type(const tr *m, msl_range type, msl_constant *out, const char **raw) {
    for (int depth = 0; depth < 8; depth++) {
        if (type.end - type.begin < 1 || type.end - type.begin > 2)
            return false;
        for (size_t k = 0; k < SL_COUNT(constant_types); k++)
            if (msl_here(m, type.begin, constant_types[k].name)) {
                out->type = constant_types[k].type;
                *raw = constant_types[k].raw;
                return true;
            }
        const msl_symbol *s = msl_lookup(m, msl_at(m, type.begin));
        if (!s || (s->kind != MSL_SYMBOL_TYPE))
            return false;
        type = msl_trim(m, s->range);
    }
    return false;
}

static bool add_late(tr *m, const msl_late *late) {
    if (m->late_count >= 2 * MSL_MAX_CONSTANTS)
        return msl_error_at(&m->s, &late->name, "more than %d constants depend on function constants",
                            2 * MSL_MAX_CONSTANTS);
    if (!sl_grow((void **)&m->late, &m->late_capacity, m->late_count + 1, sizeof *m->late))
        return msl_no_memory(&m->s);
    m->late[m->late_count++] = *late;
    return true;
}

static void emit_for_cuda(tr *m, const constant *c, const msl_constant *k) {
    const msl_token *name = msl_at(m, c->name);
    if (m->out_muted)
        return;
    sl_buf_printf(&m->out,
                  "\n#ifdef MSL_CONSTANT_%d_DEFINED\nstatic __device__ constexpr const bool msl_defined_%.*s = true;\n"
                  "#else\nstatic __device__ constexpr const bool msl_defined_%.*s = false;\n#endif\n"
                  "#ifndef MSL_CONSTANT_%d\n#define MSL_CONSTANT_%d 0\n#endif\n",
                  k->id, (int)name->size, name->text, (int)name->size, name->text, k->id, k->id);
    m->out_file = -1;
    msl_put(m, c->name, "static __device__ constexpr const");
    msl_emit(m, c->type.begin, c->type.end);
    msl_put(m, c->name, "%.*s = (", (int)name->size, name->text);
    msl_emit(m, c->type.begin, c->type.end);
    msl_put(m, c->name, ")(MSL_CONSTANT_%d);", k->id);
}

/* Sets the late constant of index `at` from expression tokens or, with none, from its raw value. */
static bool emit_derive(tr *m, size_t at, const constant *c) {
    const msl_late *l = &m->late[at];
    msl_put(m, c->name, "static inline void msl_derive_%zu() { %.*s = (", at, (int)l->name.size, l->name.text);
    if (!msl_emit(m, c->type.begin, c->type.end))
        return false;
    msl_put(m, c->name, ")(");
    if (l->raw)
        msl_put(m, c->name, "msl_raw_%.*s", (int)l->name.size, l->name.text);
    else if (!msl_emit(m, l->value.begin, l->value.end))
        return false;
    msl_put(m, c->name, "); }");
    return true;
}

static bool emit_for_soft(tr *m, const constant *c, size_t at, bool derived) {
    const msl_token *name = msl_at(m, c->name);
    const msl_late *l = &m->late[at];
    msl_put(m, c->name, "static");
    if (!msl_emit(m, c->type.begin, c->type.end))
        return false;
    msl_put(m, c->name, "%.*s;", (int)name->size, name->text);
    if (!derived)
        msl_put(m, c->name, "static bool msl_defined_%.*s;", (int)name->size, name->text);
    if (l->raw)
        msl_put(m, c->name, "static %s msl_raw_%.*s;", l->raw, (int)name->size, name->text);
    return !(derived || l->raw) || emit_derive(m, at, c);
}

static bool function_constant(tr *m, const constant *c, msl_range id) {
    msl_late late = {.name = *msl_at(m, c->name), .type = c->type, .scope = m->scope};
    msl_constant k = {.id = -1};
    int64_t v;
    if (!msl_range_value(m, id, NULL, &v) || v < 0 || v > 65535)
        return msl_error_at(&m->s, &late.name, "function_constant needs a number from 0 to 65535");
    k.id = (int)v;
    if (m->constant_count >= MSL_MAX_CONSTANTS)
        return msl_error_at(&m->s, &late.name, "more than %d function constants", MSL_MAX_CONSTANTS);
    if (!constant_type(m, c->type, &k, &late.raw))
        return msl_error_at(&m->s, &late.name, "function constant %.*s: its type is not supported", (int)late.name.size,
                            late.name.text);
    k.name = msl_copy(&m->s.arena, late.name.text, late.name.size);
    late.index = (int)m->constant_count;
    if (!k.name || !sl_grow((void **)&m->constants, &m->constant_capacity, m->constant_count + 1, sizeof k))
        return msl_no_memory(&m->s);
    m->constants[m->constant_count++] = k;
    if (!add_late(m, &late))
        return false;
    if (m->target == MSL_CUDA)
        emit_for_cuda(m, c, &k);
    else if (m->target == MSL_SOFT)
        return emit_for_soft(m, c, m->late_count - 1, false);
    return true;
}

static bool derived_constant(tr *m, const constant *c) {
    msl_late late = {.name = *msl_at(m, c->name), .type = c->type, .value = c->value, .index = -1, .scope = m->scope};
    if (c->array || msl_here(m, c->type.begin, "auto"))
        return msl_error_at(&m->s, &late.name, "%.*s depends on function constants and is no single value",
                            (int)late.name.size, late.name.text);
    if (!add_late(m, &late))
        return false;
    if (m->target == MSL_SOFT)
        return emit_for_soft(m, c, m->late_count - 1, true);
    msl_put(m, c->begin, "static __device__ constexpr const");
    return msl_emit(m, c->type.begin, c->end + 1);
}

/* ---- plain constants --------------------------------------------------------------------------------------------- */

static bool is_simple_type(const tr *m, msl_range type) {
    return type.end == type.begin + 1 && !msl_lookup(m, msl_at(m, type.begin)) && !msl_here(m, type.begin, "auto") &&
           msl_type_layout(m, type, NULL).size;
}

static bool emit_plain(tr *m, const constant *c) {
    bool special = c->head.end == c->head.begin + 3; /* `template <>` takes no storage class */
    bool compile_time = c->spelled || (is_simple_type(m, c->type) && !c->indirect && !c->array);
    msl_put(m, c->begin, "%s%s%s", special ? "" : "static ", m->target == MSL_CUDA ? "__device__ " : "",
            compile_time ? "constexpr" : "");
    size_t i = c->begin;
    for (; i < c->end; i++) {
        size_t skipped = msl_skip_attributes(m, i);
        if (skipped > i)
            i = skipped - 1;
        else if (!is_specifier(msl_at(m, i)))
            break;
    }
    if (!c->indirect || msl_here(m, c->begin, "constant") || msl_here(m, c->begin, "const") ||
        msl_here(m, c->begin + 1, "constant") || msl_here(m, c->begin + 1, "const"))
        msl_put(m, c->begin, "const");
    return msl_emit(m, i, c->end + 1);
}

static bool declare_value(tr *m, const constant *c) {
    msl_symbol s = {.name = *msl_at(m, c->name), .kind = MSL_SYMBOL_VALUE, .range = c->value};
    if (msl_here(m, c->value.begin, "{") || msl_here(m, c->value.begin, "(")) {
        s.range.begin++;
        s.range.end--;
    }
    return c->array || c->indirect || c->head.begin < c->head.end || msl_declare(m, &s);
}

bool msl_constant_declaration(tr *m, msl_range head, size_t i, size_t end, const char *record, size_t *next) {
    constant c = {.head = head};
    msl_range id;
    size_t stop = semicolon(m, i, end), at;
    *next = stop + 1;
    if (stop >= end)
        return msl_error_at(&m->s, msl_at(m, i), "declaration is not closed by ';'");
    bool position = false;
    if (!record && !msl_position_declaration(m, i, stop, &position))
        return false;
    if (position)
        return true;
    read_constant(m, i, stop, &c);
    if (!c.name || c.name <= i)
        return msl_emit(m, head.begin, head.end) && msl_emit(m, i, stop + 1);
    if (!record && msl_refused_in(m, i, stop, &at)) {
        msl_symbol s = {.name = *msl_at(m, c.name), .kind = MSL_SYMBOL_REFUSED, .range = {at, at + 1}};
        return msl_declare(m, &s);
    }
    if (msl_find_attribute(m, i, stop, "function_constant", &id))
        return function_constant(m, &c, id);
    if (record)
        return declare_value(m, &c) && msl_emit(m, head.begin, head.end) && msl_emit(m, i, stop + 1);
    if (c.value.begin < c.value.end && msl_is_late(m, c.value))
        return derived_constant(m, &c);
    return declare_value(m, &c) && msl_emit(m, head.begin, head.end) && emit_plain(m, &c);
}
