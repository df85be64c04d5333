/* Functions: recognised, kept once when they differ in address space only, and their bodies with threadgroup storage.
 */
#include "gpu/msl/translate.h"

#include <string.h>

/* ---- recognition ------------------------------------------------------------------------------------------------- */

static bool calls_like(const tr *m, size_t i) {
    static const char *const words[] = {"decltype", "alignas", "__attribute__", "noexcept", "typeof", "sizeof", NULL};
    return msl_among(msl_at(m, i), words);
}

/* Does a function's declaration or definition begin at i (behind template heads)? */
bool msl_function_at(const tr *m, size_t i, size_t end) {
    size_t begin = i;
    while (i < end) {
        const msl_token *t = msl_at(m, i);
        if (msl_attribute_at(m, i)) {
            i = msl_behind(m, i);
        } else if (msl_is(t, "operator")) {
            return true;
        } else if (calls_like(m, i) && msl_here(m, i + 1, "(")) {
            i = msl_behind(m, i + 1);
        } else if (msl_is(t, "<") && i > begin) {
            size_t close = msl_behind_angle(m, i, end);
            if (!close)
                return false;
            i = close;
        } else if (msl_is(t, "(")) {
            return i > begin && (msl_name_at(m, i - 1) || msl_here(m, i - 1, ">")) && !msl_here(m, i + 1, "*") &&
                   !msl_here(m, i + 1, "&");
        } else if (t->kind == MSL_NAME || msl_is(t, "*") || msl_is(t, "&") || msl_is(t, "&&") || msl_is(t, "::") ||
                   msl_is(t, "~")) {
            i++;
        } else {
            return false;
        }
    }
    return false;
}

/* `(` of the parameters of the function at i. */
static size_t parameters_at(const tr *m, size_t i, size_t end) {
    while (i < end) {
        if (msl_attribute_at(m, i)) {
            i = msl_behind(m, i);
        } else if (calls_like(m, i) && msl_here(m, i + 1, "(")) {
            i = msl_behind(m, i + 1);
        } else if (msl_here(m, i, "operator")) {
            i++;
            if (msl_here(m, i, "("))
                return msl_behind(m, i);
            while (i < end && !msl_here(m, i, "("))
                i++;
            return i;
        } else if (msl_here(m, i, "<") && msl_behind_angle(m, i, end)) {
            i = msl_behind_angle(m, i, end);
        } else if (msl_here(m, i, "(")) {
            return i;
        } else {
            i++;
        }
    }
    return end;
}

/* Behind the initialisers of a constructor's members, `:` at i: the body's `{`. */
static size_t behind_initialisers(const tr *m, size_t i, size_t end) {
    for (i++; i < end; i++) {
        while (i < end && !msl_here(m, i, "(") && !msl_here(m, i, "{") && !msl_here(m, i, ";")) {
            size_t close = msl_here(m, i, "<") ? msl_behind_angle(m, i, end) : 0;
            i = close ? close : i + 1;
        }
        i = msl_behind(m, i);
        if (!msl_here(m, i, ","))
            return i;
    }
    return end;
}

bool msl_function_body(const tr *m, size_t i, size_t end, size_t *body) {
    while (i < end) {
        if (msl_here(m, i, ":"))
            i = behind_initialisers(m, i, end);
        if (msl_here(m, i, "{") || msl_here(m, i, ";")) {
            *body = i;
            return true;
        }
        i = msl_behind(m, i);
    }
    return false;
}

/* ---- signatures -------------------------------------------------------------------------------------------------- */

/* The name of the parameter in [i, stop), which ends before its default; stop: it has none. */
static size_t parameter_name(const tr *m, size_t i, size_t stop) {
    size_t names = 0, name = stop;
    bool pointer = false;
    for (size_t k = i; k < stop; k++) {
        const msl_token *t = msl_at(m, k);
        pointer |= msl_is(t, "*") || msl_is(t, "&") || msl_is(t, "&&");
        if (t->kind != MSL_NAME || msl_is_address_space(t) || msl_is(t, "const") || msl_is(t, "volatile"))
            continue;
        names++;
        bool last = k + 1 == stop || msl_here(m, k + 1, "[") || msl_attribute_at(m, k + 1) || msl_here(m, k + 1, ")");
        if (last && (names > 1 || pointer))
            name = k;
    }
    return name;
}

/* Where a parameter's default begins, or its end. */
static size_t before_default(const tr *m, size_t i, size_t end) {
    while (i < end && !msl_here(m, i, "="))
        i = msl_behind(m, i);
    return i < end ? i : end;
}

/* One parameter without address space, name and default: `device const T *p` and `constant T *q` are both `const T*`.
 */
static void parameter_key(const tr *m, size_t i, size_t end, sl_buf *key) {
    size_t stop = before_default(m, i, end), name = parameter_name(m, i, stop);
    bool constant = false, pointer = false;
    for (size_t k = i; k < stop; k++) {
        const msl_token *t = msl_at(m, k);
        pointer |= msl_is(t, "*") || msl_is(t, "&") || msl_is(t, "&&");
        constant |= !pointer && (msl_is(t, "const") || msl_is(t, "constant"));
    }
    sl_buf_puts(key, constant && pointer ? "const " : "");
    bool behind = false;
    for (size_t k = i; k < stop; k++) {
        const msl_token *t = msl_at(m, k);
        if (k == name || msl_is_address_space(t) || (msl_is(t, "const") && !behind) || msl_is(t, "typename"))
            continue;
        behind |= msl_is(t, "*") || msl_is(t, "&");
        sl_buf_append(key, t->text, t->size);
        sl_buf_puts(key, " ");
    }
    sl_buf_puts(key, ",");
}

static void erased_text(const tr *m, size_t i, size_t end, sl_buf *out) {
    for (; i < end; i++) {
        const msl_token *t = msl_at(m, i);
        if (msl_is_address_space(t)) {
            if (msl_is(t, "constant") && !(i && msl_here(m, i - 1, "const")) && !msl_here(m, i + 1, "const"))
                sl_buf_puts(out, "const ");
            continue;
        }
        sl_buf_append(out, t->text, t->size);
        sl_buf_puts(out, " ");
    }
}

typedef struct function {
    size_t begin, open, close, body, end; /* open, close: of parameters; body: `{` or `;`; end: behind it all */
    msl_range head;
    const char *record; /* name of the struct it is a member of; NULL: none */
    size_t record_at;   /* which of that name */
    size_t name;
} function;

static bool is_constructor(const tr *m, const function *f) {
    const msl_token *t = msl_at(m, f->name);
    bool list = msl_here(m, f->name + 1, "<") && msl_behind_angle(m, f->name + 1, f->open) == f->open;
    return f->record && t->size == strlen(f->record) && memcmp(t->text, f->record, t->size) == 0 &&
           (f->name + 1 == f->open || list);
}

/* A template's head without defaults, which only one of its declarations may say. */
static void head_key(const tr *m, msl_range head, sl_buf *key) {
    for (size_t i = head.begin; i < head.end;) {
        if (!msl_here(m, i, "=")) {
            erased_text(m, i, i + 1, key);
            i++;
            continue;
        }
        size_t close = head.end - 1, end = msl_piece_end(m, i, close);
        i = end > i ? end : i + 1;
    }
}

/* What tells functions apart when address spaces are gone. */
static bool function_key(const tr *m, const function *f, sl_buf *key) {
    sl_buf_printf(key, "%s#%s#%zu#", m->scopes[m->scope], f->record ? f->record : "", f->record_at);
    head_key(m, f->head, key);
    sl_buf_puts(key, "#");
    for (size_t i = f->begin; i < f->open; i++) {
        static const char *const words[] = {"inline", "static", "constexpr", "explicit", "const", "friend", NULL};
        const msl_token *t = msl_at(m, i);
        size_t skipped = msl_skip_attributes(m, i);
        if (skipped > i) {
            i = skipped - 1;
            continue;
        }
        if (msl_is_address_space(t) || msl_among(t, words))
            continue;
        sl_buf_append(key, t->text, t->size);
        sl_buf_puts(key, " ");
    }
    sl_buf_puts(key, "(");
    for (size_t i = f->open + 1; i < f->close;) {
        size_t e = msl_piece_end(m, i, f->close);
        parameter_key(m, i, e, key);
        i = e + 1;
    }
    for (size_t i = f->close; i < f->body && !msl_here(m, i, ":") && !msl_here(m, i, "="); i++)
        if (!is_constructor(m, f) && (msl_here(m, i, "const") || msl_here(m, i, "constant"))) {
            sl_buf_puts(key, "const");
            break;
        }
    return !key->failed;
}

static uint64_t hash_text(const sl_buf *b) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < b->size; i++)
        h = (h ^ (unsigned char)b->data[i]) * 1099511628211u;
    return h ? h : 1;
}

static msl_signature *find_signature(tr *m, const sl_buf *key) {
    msl_signature **at = &m->signatures[hash_text(key) % MSL_BUCKETS];
    for (msl_signature *s = *at; s; s = s->next)
        if (strcmp(s->key, key->data) == 0)
            return s;
    msl_signature *s = msl_alloc(&m->s.arena, sizeof *s);
    if (!s || !(s->key = msl_copy(&m->s.arena, key->data, key->size)))
        return NULL;
    s->next = *at;
    *at = s;
    return s;
}

enum { NAMES = 16 };

/* The body's text, where parameters are called by their number. */
static void body_text(const tr *m, const function *f, sl_buf *out) {
    const msl_token *names[NAMES];
    size_t count = 0, from = f->close + 1;
    for (size_t i = f->open + 1; i < f->close && count < NAMES; i = msl_piece_end(m, i, f->close) + 1) {
        size_t stop = before_default(m, i, msl_piece_end(m, i, f->close)), name = parameter_name(m, i, stop);
        names[count++] = name < stop ? msl_at(m, name) : NULL;
    }
    while (from < f->body && !msl_here(m, from, ":"))
        from++;
    for (size_t i = from; i < f->end; i++) {
        size_t k = 0;
        while (k < count && !(names[k] && msl_same(names[k], msl_at(m, i))))
            k++;
        if (k < count)
            sl_buf_printf(out, "#%zu ", k);
        else
            erased_text(m, i, i + 1, out);
    }
}

/* *keep: this is the first of its signature. */
static bool first_of_its_kind(tr *m, const function *f, bool *keep) {
    sl_buf key = {0}, body = {0};
    bool defines = msl_here(m, f->body, "{");
    body_text(m, f, &body);
    msl_signature *s = function_key(m, f, &key) && !body.failed ? find_signature(m, &key) : NULL;
    uint64_t hash = body.data ? hash_text(&body) : 1;
    sl_buf_free(&key);
    sl_buf_free(&body);
    if (!s)
        return msl_no_memory(&m->s);
    bool again = s->line != 0;
    *keep = !again || (defines && !s->body && !f->record);
    if (again && defines && s->body && s->body != hash)
        return msl_error_at(&m->s, msl_at(m, f->name),
                            "%.*s differs from the one of line %u in address space only, and does something else: "
                            "that is not supported",
                            (int)msl_at(m, f->name)->size, msl_at(m, f->name)->text, s->line);
    if (defines)
        s->body = hash;
    s->line = msl_at(m, f->name)->line;
    return true;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static bool statement_begins(const tr *m, size_t i) {
    return i && (msl_here(m, i - 1, "{") || msl_here(m, i - 1, "}") || msl_here(m, i - 1, ";") ||
                 msl_at(m, i - 1)->kind == MSL_PRAGMA || msl_here(m, i - 1, "]") || msl_here(m, i - 1, ")") ||
                 msl_here(m, i - 1, ":"));
}

static bool is_qualifier(const tr *m, size_t i) {
    static const char *const words[] = {"const", "volatile", "static", "typename", "struct", "threadgroup", NULL};
    return msl_among(msl_at(m, i), words);
}

/* The declarator's name behind the type at i of a `threadgroup` declaration; 0: it declares no storage (a pointer). */
static size_t storage_name(const tr *m, size_t i, size_t end, size_t *type) {
    for (;;) {
        size_t j = msl_skip_attributes(m, i);
        if (j == i && is_qualifier(m, i))
            j = i + 1;
        if (j == i)
            break;
        i = j;
    }
    *type = i && msl_here(m, i - 1, "typename") ? i - 1 : i;
    for (;;) {
        if (!msl_name_at(m, i))
            return 0;
        i++;
        if (msl_here(m, i, "<") && !(i = msl_behind_angle(m, i, end)))
            return 0;
        if (msl_here(m, i, "::")) {
            i += 1 + msl_here(m, i + 1, "template");
            continue;
        }
        size_t name = msl_skip_attributes(m, i);
        if (is_qualifier(m, name)) /* `float threadgroup x` never gets here; `T const x` does */
            name++;
        if (!msl_name_at(m, name)) {
            return 0;
        }
        size_t after = name + 1;
        if (msl_here(m, after, "[") || msl_here(m, after, ";") || msl_here(m, after, ",") || msl_here(m, after, "="))
            return name;
        i = name; /* `unsigned int x` */
    }
}

/* One variable, its name at i; *next behind it. */
static bool storage(tr *m, int type, msl_range what, size_t i, size_t *next) {
    int site = m->sites++;
    const msl_token *name = msl_at(m, i);
    size_t j = i + 1;
    while (msl_here(m, j, "[") && !msl_attribute_at(m, j))
        j = msl_behind(m, j);
    if (!msl_note_storage(m, what, (msl_range){i + 1, j}))
        return false;
    msl_put(m, i, "%s(%d, msl_tg_%d, %.*s", j > i + 1 ? "MSL_THREADGROUP_ARRAY" : "MSL_THREADGROUP_VAR", site, type,
            (int)name->size, name->text);
    if (j > i + 1 && !m->out_muted)
        sl_buf_puts(&m->out, ",");
    for (size_t k = i + 1; k < j; k = msl_behind(m, k)) {
        msl_put(m, k, "[(");
        if (!msl_emit(m, k + 1, m->match[k]))
            return false;
        msl_put(m, m->match[k], ")]");
    }
    msl_put(m, i, ", %u);", name->line);
    j = msl_skip_attributes(m, j);
    if (msl_here(m, j, "="))
        return msl_error_at(&m->s, msl_at(m, j), "threadgroup variable %.*s cannot have an initialiser",
                            (int)name->size, name->text);
    *next = j;
    return true;
}

/* `threadgroup T a[n], b;` at i. *next == i: it is something else. */
static bool storage_declaration(tr *m, size_t i, size_t end, size_t *next) {
    size_t type = 0, begin = i;
    *next = i;
    while (msl_skip_attributes(m, begin) > begin)
        begin = msl_skip_attributes(m, begin);
    if (!msl_here(m, begin, "threadgroup") && !(is_qualifier(m, begin) && msl_here(m, begin + 1, "threadgroup")))
        return true;
    size_t name = storage_name(m, begin, end, &type);
    if (!name)
        return true;
    int site = m->sites;
    msl_put(m, i, "typedef");
    if (!msl_emit(m, type, name))
        return false;
    msl_put(m, i, "msl_tg_%d;", site);
    for (size_t j = name;;) {
        if (!msl_name_at(m, j))
            return msl_error_at(&m->s, msl_at(m, j), "threadgroup declaration is not understood");
        if (!storage(m, site, (msl_range){type, name}, j, &j))
            return false;
        if (msl_here(m, j, ",")) {
            j++;
            continue;
        }
        if (!msl_here(m, j, ";"))
            return msl_error_at(&m->s, msl_at(m, j), "threadgroup declaration is not understood");
        *next = j + 1;
        return true;
    }
}

bool msl_emit_body(tr *m, size_t begin, size_t end) {
    size_t plain = begin;
    for (size_t i = begin; i < end;) {
        size_t next = i;
        if (statement_begins(m, i)) {
            size_t start = msl_skip_attributes(m, i);
            bool word =
                msl_here(m, start, "threadgroup") || (is_qualifier(m, start) && msl_here(m, start + 1, "threadgroup"));
            if (word && (!msl_emit(m, plain, i) || !storage_declaration(m, i, end, &next)))
                return false;
            if (word)
                plain = next > i ? next : i;
        }
        i = next > i ? next : i + 1;
    }
    return msl_emit(m, plain, end);
}

/* ---- emission ---------------------------------------------------------------------------------------------------- */

/* A constructor has no const: address spaces behind its parameters go altogether. */
static bool emit_tail(tr *m, const function *f, bool constructor) {
    size_t i = f->close + 1;
    for (; i < f->body && !msl_here(m, i, ":") && !msl_here(m, i, "="); i++)
        if (!(constructor && msl_is_address_space(msl_at(m, i))) && !msl_emit(m, i, i + 1))
            return false;
    return msl_emit(m, i, f->body);
}

static bool find_parts(tr *m, msl_range head, size_t i, size_t end, const char *record, function *f) {
    *f = (function){.begin = i, .head = head, .record = record, .record_at = record ? m->record_at : 0};
    f->open = parameters_at(m, i, end);
    if (f->open >= end || !msl_here(m, f->open, "("))
        return msl_error_at(&m->s, msl_at(m, i), "function is not understood");
    f->close = m->match[f->open];
    for (f->name = f->open - 1; f->name > i && !msl_here(m, f->name, "operator"); f->name--)
        ;
    if (!msl_here(m, f->name, "operator")) {
        f->name = f->open - 1;
        if (msl_here(m, f->name, ">")) /* f<float>( */
            while (f->name > i && !msl_here(m, f->name, "<"))
                f->name--;
        if (msl_here(m, f->name, "<") && f->name > i)
            f->name--;
    }
    if (!msl_function_body(m, f->close + 1, end, &f->body))
        return msl_error_at(&m->s, msl_at(m, f->name), "body of function %.*s is missing",
                            (int)msl_at(m, f->name)->size, msl_at(m, f->name)->text);
    f->end = msl_behind(m, f->body);
    return true;
}

bool msl_function(tr *m, msl_range head, size_t i, size_t end, const char *record, size_t *next) {
    function f;
    size_t at;
    bool keep = false;
    if (!find_parts(m, head, i, end, record, &f))
        return false;
    static const char *const statements[] = {"if", "for", "while", "switch", "return", "do", "else", NULL};
    if (msl_among(msl_at(m, f.name), statements))
        return msl_error_at(&m->s, msl_at(m, f.name), "'%.*s' stands outside of a function",
                            (int)msl_at(m, f.name)->size, msl_at(m, f.name)->text);
    *next = f.end;
    if (!record && msl_refused_in(m, f.begin, f.end, &at)) {
        msl_symbol s = {.name = *msl_at(m, f.name), .kind = MSL_SYMBOL_REFUSED, .range = {at, at + 1}};
        return msl_declare(m, &s);
    }
    msl_function_record note = {*msl_at(m, f.name), f.open, f.body, f.end, record != NULL, head.begin < head.end};
    if ((msl_here(m, f.body, "{") && !msl_note_function(m, &note)) || !first_of_its_kind(m, &f, &keep))
        return false;
    if (!keep)
        return true;
    /* nvcc knows no specialisation inside a struct: an overload does the same, unless it is called by its arguments */
    bool overload = m->target == MSL_CUDA && record && head.end == head.begin + 3 && !msl_here(m, f.open - 1, ">");
    if (!overload && !msl_emit(m, head.begin, head.end))
        return false;
    msl_put(m, i, "MSL_FN");
    if (!msl_emit(m, i, f.close + 1) || !emit_tail(m, &f, is_constructor(m, &f)))
        return false;
    return msl_here(m, f.body, "{") ? msl_emit_body(m, f.body, f.end) : msl_emit(m, f.body, f.end);
}
