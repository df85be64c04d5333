/* The walk over declarations: of the file, of namespaces, of structs. */
#include "gpu/msl/translate.h"

#include <string.h>

typedef struct walk {
    size_t end;
    const char *record; /* name of the struct whose members these are; NULL: a namespace's */
    int depth;
} walk;

/* Index behind the `;` that ends the declaration at i. */
static size_t behind_semicolon(const tr *m, size_t i, size_t end) {
    while (i < end && !msl_here(m, i, ";"))
        i = msl_behind(m, i);
    return i < end ? i + 1 : end;
}

static size_t find_before(const tr *m, size_t i, size_t end, const char *what) {
    while (i < end && !msl_here(m, i, what) && !msl_here(m, i, ";"))
        i = msl_behind(m, i);
    return i < end && msl_here(m, i, what) ? i : end;
}

/* ---- namespaces -------------------------------------------------------------------------------------------------- */

/* Index in scopes of a path. */
static bool enter_scope(tr *m, const char *path) {
    for (size_t i = 0; i < m->scope_count; i++)
        if (strcmp(m->scopes[i], path) == 0) {
            m->scope = i;
            return true;
        }
    char *copy = msl_copy(&m->s.arena, path, strlen(path));
    if (!copy || !sl_grow((void **)&m->scopes, &m->scope_capacity, m->scope_count + 1, sizeof *m->scopes))
        return msl_no_memory(&m->s);
    m->scope = m->scope_count;
    m->scopes[m->scope_count++] = copy;
    return true;
}

static bool namespace_block(tr *m, const walk *w, size_t i, size_t open) {
    sl_buf path = {0};
    size_t outer = m->scope;
    sl_buf_puts(&path, m->scopes[outer]);
    bool named = false;
    for (size_t k = i; k < open; k++)
        if (msl_name_at(m, k) && !msl_here(m, k, "namespace") && !msl_here(m, k, "inline")) {
            sl_buf_printf(&path, "%s%.*s", path.size ? "::" : "", (int)msl_at(m, k)->size, msl_at(m, k)->text);
            named = true;
        }
    bool ok = !path.failed || msl_no_memory(&m->s);
    if (ok && named)
        ok = enter_scope(m, path.data);
    sl_buf_free(&path);
    size_t close = m->match[open];
    ok = ok && msl_emit(m, i, open + 1) && msl_walk(m, open + 1, close, NULL, w->depth + 1) &&
         msl_emit(m, close, close + 1);
    m->scope = outer;
    return ok;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static bool declare_type(tr *m, msl_range head, size_t name, msl_range range) {
    msl_symbol s = {.name = *msl_at(m, name), .kind = MSL_SYMBOL_TYPE, .range = range, .parameters = head};
    return msl_declare(m, &s);
}

static bool enumerators(tr *m, size_t open) {
    msl_symbol s = {.kind = MSL_SYMBOL_VALUE};
    for (size_t i = open + 1, close = m->match[open]; i < close;) {
        size_t e = msl_piece_end(m, i, close);
        if (msl_name_at(m, i)) {
            s.name = *msl_at(m, i);
            if (msl_here(m, i + 1, "=")) {
                s.range = (msl_range){i + 2, e};
                s.offset = 0;
            }
            if (!msl_declare(m, &s))
                return false;
            s.offset++;
        }
        i = e + 1;
    }
    return true;
}

/* `enum a : b { .. };` or `typedef enum a { .. } c;` through `;`; word: `enum`. */
static bool enumeration(tr *m, size_t i, size_t word, size_t end) {
    static const msl_range none = {0, 0};
    size_t open = find_before(m, word, end, "{"), name = word + 1;
    name += msl_here(m, name, "class") || msl_here(m, name, "struct");
    msl_range range = {word, open};
    return enumerators(m, open) && (!msl_name_at(m, name) || declare_type(m, none, name, range)) &&
           (i == word || !msl_name_at(m, end - 2) || declare_type(m, none, end - 2, range));
}

static bool is_record_word(const tr *m, size_t i) {
    return msl_here(m, i, "struct") || msl_here(m, i, "class") || msl_here(m, i, "union");
}

/* Position of `{` of the struct, union or class at i; end where it has none. */
static size_t record_body(const tr *m, size_t i, size_t end) {
    for (; i < end && !msl_here(m, i, "{"); i = msl_behind(m, i))
        if (msl_here(m, i, ";") || msl_here(m, i, "=") || msl_here(m, i, ")"))
            return end;
    return i;
}

static size_t record_name(const tr *m, size_t i) {
    i = msl_skip_attributes(m, i + 1);
    return msl_name_at(m, i) ? i : 0;
}

static bool declare_record(tr *m, msl_range head, size_t i, size_t open, size_t name, size_t end) {
    msl_symbol s = {.name = *msl_at(m, name), .kind = MSL_SYMBOL_STRUCT, .range = {open + 1, m->match[open]}};
    s.parameters = head;
    s.is_union = msl_here(m, i, "union");
    s.twice = m->packs > 0; /* size not worked out */
    bool tagged = name < open;
    for (size_t k = i; k < end; k = k == open ? m->match[open] : k + 1) {
        s.packed |= msl_here(m, k, "packed") || msl_here(m, k, "__packed__");
        if ((msl_here(m, k, "alignas") || msl_here(m, k, "aligned")) && msl_here(m, k + 1, "(")) {
            int64_t v;
            msl_range r = {k + 2, m->match[k + 1]};
            s.align = msl_range_value(m, r, NULL, &v) && v > 0 && v <= 4096 ? (uint32_t)v : 0;
        }
        if (k < open && msl_here(m, k, ":") && !msl_here(m, k, "::")) /* base classes: size not worked out */
            s.twice = true;
    }
    if (tagged && msl_here(m, name + 1, "<")) /* a specialisation */
        s.twice = true;
    return msl_declare(m, &s);
}

/* `typedef enum a : int b;`, as headers write that are shared with a host program: C++ has no such declaration. */
static bool opaque_enum(const tr *m, size_t i, size_t end) {
    return msl_here(m, i, "typedef") && msl_here(m, i + 1, "enum") && end > i + 6 && msl_name_at(m, i + 2) &&
           msl_here(m, i + 3, ":") && find_before(m, i, end, "{") >= end;
}

static bool put_opaque_enum(tr *m, size_t i, size_t end) {
    const msl_token *tag = msl_at(m, i + 2), *name = msl_at(m, end - 2);
    if (!msl_emit(m, i + 1, end - 2))
        return false;
    msl_put(m, i, ";");
    if (!msl_same(tag, name))
        msl_put(m, i, "typedef %.*s %.*s;", (int)tag->size, tag->text, (int)name->size, name->text);
    return true;
}

/* `using a = b;`, `typedef b a;` and `typedef struct { .. } a;`, all through `;`. */
static bool alias(tr *m, msl_range head, size_t i, size_t end) {
    if (msl_here(m, i, "using") && msl_name_at(m, i + 1) && msl_here(m, i + 2, "="))
        return declare_type(m, head, i + 1, (msl_range){i + 3, end - 1});
    if (!msl_here(m, i, "typedef") || end < i + 4 || !msl_name_at(m, end - 2))
        return true;
    if (opaque_enum(m, i, end))
        return declare_type(m, head, end - 2, (msl_range){i + 4, end - 2});
    size_t open = is_record_word(m, i + 1) ? record_body(m, i + 1, end) : end;
    if (open >= end)
        return declare_type(m, head, end - 2, (msl_range){i + 1, end - 2});
    size_t tag = record_name(m, i + 1);
    return (!tag || tag >= open || declare_record(m, head, i + 1, open, tag, end)) &&
           declare_record(m, head, i + 1, open, end - 2, end);
}

/* Specialisations that differ in address space only are kept once: `struct type<device T *>`, `type<threadgroup T *>`.
 */
static bool known_specialisation(tr *m, msl_range head, size_t i, size_t open, bool *known) {
    sl_buf key = {0};
    sl_buf_printf(&key, "struct %zu ", m->scope);
    for (size_t k = head.begin; k < head.end; k++)
        sl_buf_append(&key, msl_at(m, k)->text, msl_at(m, k)->size);
    for (size_t k = i; k < open; k++) {
        const msl_token *t = msl_at(m, k);
        sl_buf_puts(&key, " ");
        if (msl_is(t, "constant"))
            sl_buf_puts(&key, "const");
        else if (!msl_is_address_space(t))
            sl_buf_append(&key, t->text, t->size);
    }
    if (key.failed) {
        sl_buf_free(&key);
        return msl_no_memory(&m->s);
    }
    uint32_t h = 2166136261u;
    for (size_t k = 0; k < key.size; k++)
        h = (h ^ (unsigned char)key.data[k]) * 16777619u;
    msl_signature **at = &m->signatures[h % MSL_BUCKETS], *s = *at;
    while (s && strcmp(s->key, key.data) != 0)
        s = s->next;
    *known = s != NULL;
    bool ok = true;
    if (!s) {
        s = msl_alloc(&m->s.arena, sizeof *s);
        ok = s && (s->key = msl_copy(&m->s.arena, key.data, key.size));
        if (ok) {
            s->next = *at;
            *at = s;
        } else {
            msl_no_memory(&m->s);
        }
    }
    sl_buf_free(&key);
    return ok;
}

/* Does the struct at i specialise a template of Metal's library? nvcc wants that in the template's own namespace. */
static bool specialises_library(const tr *m, const walk *w, size_t i, size_t *name) {
    *name = record_name(m, i);
    if (w->record || m->scope || !*name)
        return false;
    bool qualified = msl_here(m, *name, "metal") && msl_here(m, *name + 1, "::");
    *name += qualified ? 2 : 0;
    return msl_here(m, *name + 1, "<") && (qualified || !msl_lookup(m, msl_at(m, *name)));
}

/* `struct s { .. } __attribute__((packed));`: said before the name too, where nvcc reads it. */
static bool put_attributes_behind(tr *m, size_t open, size_t end) {
    for (size_t k = m->match[open] + 1; k < end; k = msl_behind(m, k))
        if (msl_here(m, k, "__attribute__") && !msl_emit(m, k, msl_skip_gnu(m, k)))
            return false;
    return true;
}

/* The struct at i, with its head, its name and where its body opens (name 0: none); through `;`. */
static bool record(tr *m, const walk *w, msl_range head, size_t i, size_t name, size_t open, size_t *next) {
    size_t end = behind_semicolon(m, i, w->end), at;
    *next = end;
    bool known = false;
    if (name && msl_here(m, name + 1, "<") && !known_specialisation(m, head, i, open, &known))
        return false;
    if (known)
        return true;
    if (name && !declare_record(m, head, i, open, name, end))
        return false;
    if (msl_refused_in(m, open, m->match[open], &at) && name) {
        msl_symbol s = {.name = *msl_at(m, name), .kind = MSL_SYMBOL_REFUSED, .range = {at, at + 1}};
        msl_symbol *now = (msl_symbol *)msl_lookup(m, &s.name);
        if (now && now->kind == MSL_SYMBOL_STRUCT) {
            now->kind = MSL_SYMBOL_REFUSED;
            now->range = s.range;
        }
        return true;
    }
    const char *text = name ? msl_copy(&m->s.arena, msl_at(m, name)->text, msl_at(m, name)->size) : "";
    if (!text)
        return msl_no_memory(&m->s);
    size_t outer = m->record_at;
    m->record_at = open;
    bool qualified = name > record_name(m, i); /* `metal::x`, whose namespace is open */
    bool ok = msl_emit(m, i, i + 1) && put_attributes_behind(m, open, end) &&
              msl_emit(m, qualified ? name : i + 1, open + 1) &&
              msl_walk(m, open + 1, m->match[open], text, w->depth + 1);
    m->record_at = outer;
    msl_put_swizzle_members(m, open);
    ok = ok && msl_emit(m, m->match[open], end);
    return ok;
}

/* ---- declarations ------------------------------------------------------------------------------------------------ */

/* Vertex, fragment and other functions of the graphics pipeline are left out; a visible function is one that kernels
 * may call by its name too. */
static bool graphics_function(const tr *m, size_t i, size_t end, size_t *next) {
    static const char *const words[] = {"vertex", "fragment", "mesh", "object", "intersection", "patch", NULL};
    size_t j = i;
    bool found = false;
    for (;;) {
        if (msl_attribute_at(m, j)) {
            for (size_t k = j + 2; k < m->match[j + 1]; k = msl_behind(m, k))
                found |= msl_among(msl_at(m, k), words);
            j = msl_behind(m, j);
        } else if (msl_among(msl_at(m, j), words) && msl_name_at(m, j + 1)) {
            found = true;
            j++;
        } else {
            break;
        }
    }
    if (!found || !msl_function_at(m, j, end))
        return false;
    while (j < end && !msl_here(m, j, "(")) {
        j = msl_attribute_at(m, j) ? msl_behind(m, j) : j + 1;
    }
    size_t body;
    j = msl_behind(m, j);
    if (!msl_function_body(m, j, end, &body))
        return false;
    *next = msl_behind(m, body);
    return true;
}

/* A variable or member: copied. */
static bool variable(tr *m, msl_range head, size_t i, size_t end, size_t *next) {
    size_t at, stop = behind_semicolon(m, i, end);
    bool found = false;
    *next = stop;
    if (!m->record_at && !msl_position_declaration(m, i, stop, &found))
        return false;
    if (found)
        return true;
    if (msl_refused_in(m, i, stop, &at)) {
        size_t name = stop >= 2 ? stop - 2 : i;
        for (size_t k = i; k + 1 < stop; k++)
            if (msl_name_at(m, k) && (msl_here(m, k + 1, "(") || msl_here(m, k + 1, "=") || msl_here(m, k + 1, "{"))) {
                name = k;
                break;
            }
        msl_symbol s = {.name = *msl_at(m, name), .kind = MSL_SYMBOL_REFUSED, .range = {at, at + 1}};
        return !msl_name_at(m, name) || msl_declare(m, &s);
    }
    return msl_emit(m, head.begin, head.end) && msl_emit(m, i, stop);
}

static bool copied_statement(const tr *m, size_t i) {
    static const char *const words[] = {"using", "typedef", "static_assert", "_Static_assert", "enum", NULL};
    return msl_among(msl_at(m, i), words);
}

static bool statement(tr *m, const walk *w, msl_range head, size_t i, size_t *next) {
    size_t at;
    *next = behind_semicolon(m, i, w->end);
    size_t word = msl_here(m, i, "typedef") ? i + 1 : i;
    if (msl_here(m, word, "enum") && find_before(m, word, *next, "{") < *next) {
        if (!enumeration(m, i, word, *next))
            return false;
    } else if (!alias(m,
                      (msl_range){head.begin < head.end ? head.begin + 2 : 0, head.begin < head.end ? head.end - 1 : 0},
                      i, *next)) {
        return false;
    }
    if (msl_refused_in(m, i, *next, &at))
        return true;
    if (opaque_enum(m, i, *next))
        return put_opaque_enum(m, i, *next);
    size_t open = msl_here(m, i, "typedef") && is_record_word(m, i + 1) ? record_body(m, i + 1, *next) : *next;
    if (open >= *next)
        return msl_emit(m, head.begin, head.end) && msl_emit(m, i, *next);
    if (!msl_emit(m, i, i + 2) || !put_attributes_behind(m, open, *next) || !msl_emit(m, i + 2, m->match[open]))
        return false;
    msl_put_swizzle_members(m, open);
    return msl_emit(m, m->match[open], *next);
}

/* Behind a template's head, if there is one; kernels come before plain functions. */
static bool declaration(tr *m, const walk *w, msl_range head, size_t i, size_t *next) {
    size_t name, open;
    if (!w->record && msl_kernel_at(m, i, &name))
        return msl_kernel_function(m, head, i, w->end, next);
    if (graphics_function(m, i, w->end, next))
        return true;
    if (copied_statement(m, i))
        return statement(m, w, head, i, next);
    if (msl_function_at(m, i, w->end))
        return msl_function(m, head, i, w->end, w->record, next);
    size_t k = i;
    while (msl_here(m, k, "static") || msl_here(m, k, "const") || msl_here(m, k, "constexpr") ||
           msl_here(m, k, "friend"))
        k++;
    if (is_record_word(m, k) && (open = record_body(m, k, w->end)) < w->end) {
        msl_range inner = {head.begin < head.end ? head.begin + 2 : 0, head.begin < head.end ? head.end - 1 : 0};
        size_t from = m->out.size;
        bool library = specialises_library(m, w, k, &name);
        if (library)
            msl_put(m, i, "namespace metal {");
        if (!msl_emit(m, head.begin, head.end))
            return false;
        size_t with_head = m->out.size;
        if (!record(m, w, inner, k, name, open, next))
            return false;
        if (m->out.size == with_head && !m->out_muted && from < with_head) { /* dropped: its head goes too */
            m->out.size = from;
            m->out.data[from] = 0;
            m->out_file = -1;
        } else if (library) {
            msl_put(m, *next - 1, "}");
        }
        return true;
    }
    if (is_record_word(m, k) && (name = record_name(m, k)) && msl_here(m, name + 1, ";")) {
        msl_symbol s = {.name = *msl_at(m, name), .kind = MSL_SYMBOL_FORWARD};
        if (!msl_declare(m, &s))
            return false;
    }
    if (is_record_word(m, k) || msl_here(m, k, "friend"))
        return variable(m, head, i, w->end, next);
    if (msl_here(m, i, "constant") || msl_here(m, i, "static") || msl_here(m, i, "constexpr") ||
        msl_here(m, i, "const") || (msl_here(m, i, "inline") && !w->record))
        return msl_constant_declaration(m, head, i, w->end, w->record, next);
    return variable(m, head, i, w->end, next);
}

/* `template <..>` heads at i, several for members of templates; *next: what they are heads of. */
static bool template_heads(tr *m, size_t i, size_t end, msl_range *head, size_t *next) {
    *head = (msl_range){i, i};
    while (msl_here(m, i, "template") && msl_here(m, i + 1, "<")) {
        size_t close = msl_behind_angle(m, i + 1, end);
        if (!close)
            return msl_error_at(&m->s, msl_at(m, i), "template parameters are not closed");
        i = close;
        head->end = i;
    }
    *next = i;
    return true;
}

/* `#pragma pack(push, 1)` at i; other pragmas mean nothing between declarations. */
static bool put_pack(tr *m, size_t i) {
    const msl_token *t = msl_at(m, i);
    char text[48];
    if (t->size < 6 || t->size >= sizeof text || memcmp(t->text, "pack", 4) != 0)
        return true;
    memcpy(text, t->text, t->size);
    text[t->size] = 0;
    if (strspn(text + 4, " \t(),0123456789pusho") != t->size - 4)
        return true;
    bool number = strpbrk(text, "0123456789") != NULL;
    if (strstr(text, "push") || number)
        m->packs++;
    else if (m->packs > 0)
        m->packs--;
    msl_put(m, i, " _Pragma(\"%s\") ", text);
    return true;
}

static bool one(tr *m, const walk *w, size_t i, size_t *next) {
    msl_range head;
    const msl_token *t = msl_at(m, i);
    size_t open;
    if (t->kind == MSL_PRAGMA || msl_is(t, ";") || msl_is(t, "}")) {
        *next = i + 1;
        return t->kind == MSL_PRAGMA ? put_pack(m, i) : msl_emit(m, i, i + 1);
    }
    if (msl_is(t, "extern") && msl_at(m, i + 1)->kind == MSL_STRING && msl_here(m, i + 2, "{")) {
        *next = msl_behind(m, i + 2);
        return msl_walk(m, i + 3, *next - 1, NULL, w->depth + 1);
    }
    if ((msl_is(t, "namespace") || (msl_is(t, "inline") && msl_here(m, i + 1, "namespace"))) &&
        (open = find_before(m, i, w->end, "{")) < w->end) {
        *next = msl_behind(m, open);
        return namespace_block(m, w, i, open);
    }
    if (msl_is(t, "namespace")) {
        *next = behind_semicolon(m, i, w->end);
        return msl_emit(m, i, *next);
    }
    if (w->record && msl_here(m, i + 1, ":") && t->kind == MSL_NAME) {
        *next = i + 2;
        return msl_emit(m, i, i + 2);
    }
    if (msl_is(t, "template") && !msl_here(m, i + 1, "<"))
        return msl_instantiation(m, i, w->end, next);
    if (!template_heads(m, i, w->end, &head, &i))
        return false;
    return declaration(m, w, head, i, next);
}

bool msl_walk(tr *m, size_t begin, size_t end, const char *record_of, int depth) {
    walk w = {end, record_of, depth};
    if (depth > MSL_MAX_DEPTH)
        return msl_error_at(&m->s, msl_at(m, begin), "namespaces and structs are nested too deep");
    for (size_t i = begin; i < end;) {
        size_t next = i + 1;
        if (!one(m, &w, i, &next))
            return false;
        i = next > i ? next : i + 1;
    }
    return true;
}
