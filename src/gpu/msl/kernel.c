/* Kernels: their parameters, and the instances that become entries. */
#include "gpu/msl/translate.h"

#include <stdlib.h>
#include <string.h>

static const char *const positions[] = {"thread_position_in_grid",
                                        "threadgroup_position_in_grid",
                                        "thread_position_in_threadgroup",
                                        "thread_index_in_threadgroup",
                                        "thread_index_in_simdgroup",
                                        "simdgroup_index_in_threadgroup",
                                        "threads_per_threadgroup",
                                        "threads_per_grid",
                                        "threadgroups_per_grid",
                                        "threads_per_simdgroup",
                                        "thread_execution_width",
                                        "simdgroups_per_threadgroup",
                                        "dispatch_threads_per_threadgroup",
                                        "dispatch_simdgroups_per_threadgroup",
                                        "thread_index_in_quadgroup",
                                        "quadgroup_index_in_threadgroup",
                                        "quadgroups_per_threadgroup",
                                        "dispatch_quadgroups_per_threadgroup",
                                        "grid_origin",
                                        "grid_size",
                                        NULL};

/* ---- recognition ------------------------------------------------------------------------------------------------- */

static bool is_specifier(const msl_token *t) {
    static const char *const words[] = {"static", "inline", "extern", "constexpr", "kernel", NULL};
    return msl_among(t, words);
}

/* Behind the attributes and specifiers at i; *kernel: `kernel` or [[kernel]] is among them. */
static size_t behind_specifiers(const tr *m, size_t i, size_t end, bool *kernel) {
    msl_range none;
    *kernel = false;
    while (i < end) {
        size_t j = msl_skip_attributes(m, i);
        if (j == i && !is_specifier(msl_at(m, i)))
            break;
        if (j == i)
            *kernel |= msl_here(m, i, "kernel");
        else
            *kernel |= msl_find_attribute(m, i, j, "kernel", &none);
        i = j > i ? j : i + 1;
    }
    return i;
}

bool msl_kernel_at(const tr *m, size_t i, size_t *name) {
    bool kernel;
    size_t j = behind_specifiers(m, i, m->tokens.count, &kernel);
    if (kernel && msl_here(m, j, "void")) {
        j = msl_skip_attributes(m, j + 1);
        bool late;
        j = behind_specifiers(m, j, m->tokens.count, &late);
    } else if (msl_here(m, j, "void")) { /* `void kernel f()`, `void [[kernel]] f()` */
        j = behind_specifiers(m, j + 1, m->tokens.count, &kernel);
    } else if (kernel && msl_name_at(m, j) && msl_name_at(m, j + 1)) {
        j++;
    }
    *name = j;
    return kernel && msl_name_at(m, j);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static bool set_slot(tr *m, msl_parameter *p, msl_range argument) {
    int64_t v;
    if (argument.begin >= argument.end)
        return true;
    if (!msl_range_value(m, argument, NULL, &v) || v < 0 || v >= SL_GPU_SLOTS)
        return msl_error_at(&m->s, &p->name, "index of %.*s is no number from 0 to %d", (int)p->name.size, p->name.text,
                            SL_GPU_SLOTS - 1);
    p->slot = (int)v;
    return true;
}

const char *msl_position_in(const tr *m, size_t begin, size_t end) {
    msl_range none;
    for (int i = 0; positions[i]; i++)
        if (msl_find_attribute(m, begin, end, positions[i], &none))
            return positions[i];
    return NULL;
}

static bool set_position(tr *m, msl_parameter *p, size_t begin, size_t end) {
    p->position = msl_position_in(m, begin, end);
    if (p->position) {
        p->kind = MSL_PARAMETER_POSITION;
        return true;
    }
    for (size_t i = begin; i < end; i++)
        if (msl_attribute_at(m, i))
            return msl_error_at(&m->s, msl_at(m, i), "attribute [[%.*s]] of a kernel's parameter is not supported",
                                (int)msl_at(m, i + 2)->size, msl_at(m, i + 2)->text);
    return msl_error_at(&m->s, &p->name, "parameter %.*s is neither a buffer nor has an attribute", (int)p->name.size,
                        p->name.text);
}

typedef struct declarator {
    size_t name, type_end; /* of what it points or refers to */
    msl_range dimensions;  /* of an array that it refers to */
    bool pointer, reference, constant, device, threadgroup, constant_data;
} declarator;

/* Parameter in [i, end). */
static declarator read_declarator(const tr *m, size_t i, size_t end) {
    declarator d = {.type_end = end};
    int stars = 0;
    for (; i < end && !msl_here(m, i, "="); i++) {
        const msl_token *t = msl_at(m, i);
        if (msl_attribute_at(m, i)) {
            i = msl_behind(m, i) - 1;
        } else if (msl_skip_gnu(m, i) > i) {
            i = msl_skip_gnu(m, i) - 1;
        } else if (msl_is(t, "<") && msl_behind_angle(m, i, end)) {
            i = msl_behind_angle(m, i, end) - 1;
        } else if (msl_is(t, "(")) {
            d.type_end = d.type_end == end ? i : d.type_end;
        } else if (msl_is(t, "[")) {
            if (d.dimensions.begin == 0)
                d.dimensions.begin = i;
            d.dimensions.end = msl_behind(m, i);
            if (!d.reference && !stars) {
                d.pointer = true;
                d.type_end = d.type_end == end ? d.name : d.type_end;
            }
            i = msl_behind(m, i) - 1;
        } else if (msl_is(t, "*") || msl_is(t, "&")) {
            stars += msl_is(t, "*");
            d.pointer |= msl_is(t, "*");
            d.reference |= msl_is(t, "&");
            if (d.type_end == end)
                d.type_end = i;
            if (msl_is(t, "*") && stars > 1) /* pointer to pointers: the outer star's target */
                d.type_end = i;
        } else if (msl_is(t, "const") && !stars && !d.reference) {
            d.constant = true;
        } else if (msl_is_address_space(t)) {
            d.device |= msl_is(t, "device");
            d.threadgroup |= msl_is(t, "threadgroup");
            d.constant_data |= msl_is(t, "constant");
        } else if (t->kind == MSL_NAME) {
            d.name = i;
        }
    }
    return d;
}

static bool buffer_kind(tr *m, msl_parameter *p, const declarator *d) {
    p->reference = d->reference;
    if (d->threadgroup && !d->device) {
        p->kind = MSL_PARAMETER_THREADGROUP;
        p->arg = SL_GPU_ARG_THREADGROUP;
    } else if (d->device || d->constant_data) {
        p->kind = MSL_PARAMETER_BUFFER;
        bool read = !d->device || d->constant;
        p->arg = !d->device && d->reference ? SL_GPU_ARG_BYTES : read ? SL_GPU_ARG_READ : SL_GPU_ARG_WRITE;
    } else {
        return msl_error_at(&m->s, &p->name, "parameter %.*s points into no address space", (int)p->name.size,
                            p->name.text);
    }
    return true;
}

static bool read_parameter(tr *m, size_t i, size_t end, msl_parameter *p) {
    declarator d = read_declarator(m, i, end);
    msl_range slot;
    *p = (msl_parameter){.slot = -1, .name = *msl_at(m, d.name ? d.name : i), .type = {i, d.type_end}};
    if (!d.name)
        return msl_error_at(&m->s, msl_at(m, i), "kernel's parameter is not understood");
    if (d.reference || d.dimensions.begin > d.type_end + 1) /* `(&p)[4]`, `(*p)[4]` */
        p->dimensions = d.dimensions;
    msl_find_attribute(m, i, end, "function_constant", &p->condition);
    if (!d.pointer && !d.reference)
        return set_position(m, p, i, end);
    for (size_t k = i; k < d.type_end; k++)
        p->atomic |= msl_at(m, k)->size > 6 && memcmp(msl_at(m, k)->text, "atomic", 6) == 0;
    if (d.device || d.constant_data || d.threadgroup) {
        bool found =
            msl_find_attribute(m, i, end, "buffer", &slot) || msl_find_attribute(m, i, end, "threadgroup", &slot);
        return buffer_kind(m, p, &d) && (!found || set_slot(m, p, slot));
    }
    for (size_t k = i; k < end; k++) /* `thread const uint &x [[thread_position..]]` */
        if (msl_attribute_at(m, k) && !msl_find_attribute(m, i, end, "buffer", &slot))
            return set_position(m, p, i, end);
    return buffer_kind(m, p, &d);
}

/* ---- structs of arguments ---- */

enum { MOST_NESTED = 8, MOST_MEMBERS = 1024 };

typedef struct members {
    msl_definition *d;
    int left;       /* members, nested ones too */
    bool positions; /* some of them are */
} members;

static bool room_for_members(tr *m, msl_definition *d) {
    msl_parameter *all = msl_alloc(&m->s.arena, (MSL_MAX_PARAMETERS + 1) * sizeof *all);
    if (!all)
        return msl_no_memory(&m->s);
    memcpy(all, d->parameters, d->parameter_count * sizeof *all);
    d->parameters = all;
    return true;
}

/* The struct that the type in r names, through aliases; *arguments: of its template. */
static const msl_symbol *struct_of(const tr *m, msl_range r, msl_range *arguments) {
    for (int steps = 0; steps < MOST_NESTED; steps++) {
        r = msl_trim(m, r);
        *arguments = (msl_range){0, 0};
        if (r.begin >= r.end)
            return NULL;
        size_t i = r.begin + msl_here(m, r.begin, "struct");
        while (i + 2 < r.end && msl_here(m, i + 1, "::"))
            i += 2;
        if (msl_here(m, i + 1, "<") && msl_behind_angle(m, i + 1, r.end) == r.end)
            *arguments = (msl_range){i + 2, r.end - 1};
        else if (i + 1 != r.end)
            return NULL;
        const msl_symbol *s = msl_name_at(m, i) ? msl_lookup(m, msl_at(m, i)) : NULL;
        if (!s || s->twice || s->is_union)
            return NULL;
        if (s->kind == MSL_SYMBOL_STRUCT)
            return s;
        if (s->kind != MSL_SYMBOL_TYPE || s->parameters.begin < s->parameters.end)
            return NULL;
        r = s->range;
    }
    return NULL;
}

/* End of the member at i; *data: it is no function, type or the like. */
static size_t member_end(const tr *m, size_t i, size_t end, bool *data) {
    static const char *const words[] = {"using",     "typedef", "static", "static_assert", "template", "friend",
                                        "constexpr", "enum",    "struct", "union",         "class",    NULL};
    bool function = msl_function_at(m, i, end);
    *data = !function && !msl_among(msl_at(m, i), words) && !msl_here(m, i, ";");
    for (; i < end && !msl_here(m, i, ";"); i = msl_behind(m, i))
        if (function && msl_here(m, i, "{"))
            return msl_behind(m, i);
    return i + 1;
}

static bool read_members(tr *m, members *all, msl_range type, const msl_within *outer, int depth);

static msl_parameter *next_parameter(tr *m, msl_definition *d) {
    if (d->parameter_count < MSL_MAX_PARAMETERS)
        return &d->parameters[d->parameter_count++];
    msl_error_at(&m->s, &d->name, "kernel has more than %d parameters", MSL_MAX_PARAMETERS);
    return NULL;
}

/* Further members of the declaration that `first` is of, `*b` and `*c` of `device float *a, *b, *c`: i behind its
 * comma. */
static bool read_more_members(tr *m, members *all, size_t i, size_t end, const msl_parameter *first) {
    while (i < end) {
        size_t stop = msl_piece_end(m, i, end);
        declarator one = read_declarator(m, i, stop);
        if (!one.name || one.reference != first->reference || one.pointer == one.reference || --all->left < 0)
            return msl_error_at(&m->s, msl_at(m, i), "member of a kernel's argument is not understood");
        msl_parameter *p = next_parameter(m, all->d);
        msl_range slot;
        if (!p)
            return false;
        *p = *first;
        p->name = *msl_at(m, one.name);
        p->slot = -1;
        if (msl_find_attribute(m, i, stop, "buffer", &slot) && !set_slot(m, p, slot))
            return false;
        i = stop + 1;
    }
    return true;
}

static bool read_member(tr *m, members *all, size_t i, size_t end, const msl_within *within, int depth) {
    size_t all_end = end;
    end = msl_piece_end(m, i, end);
    declarator one = read_declarator(m, i, end);
    if (!one.name || --all->left < 0 || (end < all_end && !one.pointer && !one.reference))
        return msl_error_at(&m->s, msl_at(m, i), "member of a kernel's argument is not understood");
    bool position = msl_position_in(m, i, end) != NULL;
    if (!one.pointer && !one.reference && !position)
        return read_members(m, all, (msl_range){i, one.name}, within, depth + 1);
    all->positions |= position;
    msl_parameter *p = next_parameter(m, all->d);
    if (!p || !read_parameter(m, i, end, p))
        return false;
    p->within = within;
    return read_more_members(m, all, end + 1, all_end, p);
}

static bool read_members(tr *m, members *all, msl_range type, const msl_within *outer, int depth) {
    msl_within *w = msl_alloc(&m->s.arena, sizeof *w);
    if (!w)
        return msl_no_memory(&m->s);
    const msl_symbol *s = depth < MOST_NESTED ? struct_of(m, type, &w->arguments) : NULL;
    if (!s)
        return msl_error_at(&m->s, msl_at(m, type.begin),
                            "an argument's struct may have pointers, references and positions alone as members");
    w->outer = outer;
    w->parameters = s->parameters;
    for (size_t i = s->range.begin; i < s->range.end;) {
        bool data;
        if (msl_name_at(m, i) && msl_here(m, i + 1, ":")) { /* public: */
            i += 2;
            continue;
        }
        size_t end = member_end(m, i, s->range.end, &data);
        if (data && !read_member(m, all, i, end - 1, w, depth))
            return false;
        i = end;
    }
    return true;
}

/* A parameter in [i, end) that is a struct passed by value. */
static bool is_struct(const tr *m, size_t i, size_t end, msl_range *type) {
    msl_range arguments;
    declarator d = read_declarator(m, i, end);
    *type = (msl_range){i, d.name};
    for (size_t k = i; k < end; k++)
        if (msl_attribute_at(m, k))
            return false;
    return d.name && !d.pointer && !d.reference && struct_of(m, *type, &arguments);
}

static bool read_struct(tr *m, msl_definition *d, msl_range type) {
    size_t first = d->parameter_count;
    members all = {.d = d, .left = MOST_MEMBERS};
    if (!room_for_members(m, d) || !read_members(m, &all, type, NULL, 0))
        return false;
    if (d->parameter_count == first)
        return msl_error_at(&m->s, msl_at(m, type.begin), "an argument's struct has no members");
    d->parameters[first].members = d->parameter_count - first;
    d->parameters[first].listed = all.positions;
    return true;
}

static bool read_parameters(tr *m, msl_definition *d, size_t open) {
    size_t close = m->match[open], n = 0;
    bool has_struct = false;
    for (size_t i = open + 1; i < close; i = msl_piece_end(m, i, close) + 1)
        n++;
    if (n > MSL_MAX_PARAMETERS)
        return msl_error_at(&m->s, &d->name, "kernel has more than %d parameters", MSL_MAX_PARAMETERS);
    d->parameters = msl_alloc(&m->s.arena, (n + 1) * sizeof *d->parameters);
    if (!d->parameters)
        return msl_no_memory(&m->s);
    if (close == open + 2 && msl_here(m, open + 1, "void"))
        return true;
    for (size_t i = open + 1; i < close;) {
        size_t end = msl_piece_end(m, i, close);
        msl_range type;
        if (is_struct(m, i, end, &type)) {
            has_struct = true;
            if (!read_struct(m, d, type))
                return false;
        } else if (d->parameter_count >= (has_struct ? MSL_MAX_PARAMETERS : n)) {
            return msl_error_at(&m->s, &d->name, "kernel has more than %d parameters", MSL_MAX_PARAMETERS);
        } else if (!read_parameter(m, i, end, &d->parameters[d->parameter_count++])) {
            return false;
        }
        i = end + 1;
    }
    return true;
}

/* ---- definitions ------------------------------------------------------------------------------------------------- */

/* What the attribute says; empty: nothing. It may depend on template parameters. */
static msl_range max_threads(const tr *m, size_t begin, size_t end) {
    msl_range r = {0, 0};
    msl_find_attribute(m, begin, end, "max_total_threads_per_threadgroup", &r);
    return r;
}

/* The text of the string tokens in r, joined. */
static const char *string_text(tr *m, msl_range r) {
    sl_buf b = {0};
    for (size_t i = r.begin; i < r.end; i++)
        if (msl_at(m, i)->kind == MSL_STRING)
            sl_buf_append(&b, msl_at(m, i)->text + 1, msl_at(m, i)->size - 2);
    const char *text = b.failed ? NULL : msl_copy(&m->s.arena, b.data ? b.data : "", b.size);
    sl_buf_free(&b);
    return text;
}

static bool add_instance(tr *m, const msl_instance *x) {
    if (m->instance_count >= MSL_MAX_KERNELS) {
        msl_token t = {.text = "", .line = (uint32_t)x->line, .file = (uint16_t)x->file};
        return msl_error_at(&m->s, &t, "more than %d kernels", MSL_MAX_KERNELS);
    }
    if (!sl_grow((void **)&m->instances, &m->instance_capacity, m->instance_count + 1, sizeof *x))
        return msl_no_memory(&m->s);
    m->instances[m->instance_count++] = *x;
    return true;
}

static bool host_name_of(tr *m, size_t begin, size_t end, const msl_token *fallback, const char **name) {
    msl_range r;
    size_t user =
        fallback->size > sizeof MSL_USER && memcmp(fallback->text, MSL_USER "msl_", 9) == 0 ? sizeof MSL_USER - 1 : 0;
    *name = msl_find_attribute(m, begin, end, "host_name", &r)
                ? string_text(m, r)
                : msl_copy(&m->s.arena, fallback->text + user, fallback->size - user);
    return *name || msl_no_memory(&m->s);
}

static bool refuse_kernel(tr *m, size_t name, const char *host, size_t at, const char *what) {
    const msl_token *t = msl_at(m, at);
    msl_symbol s = {.name = *msl_at(m, name), .kind = MSL_SYMBOL_REFUSED, .range = {at, at + 1}};
    if (!sl_grow((void **)&m->refused, &m->refused_capacity, m->refused_count + 1, sizeof *m->refused))
        return msl_no_memory(&m->s);
    char *text = sl_asprintf("%s:%u: kernel %s: %s", m->s.names[t->file], t->line, host, what);
    msl_refusal r = {host, text ? msl_copy(&m->s.arena, text, strlen(text)) : NULL};
    free(text);
    if (!r.message)
        return msl_no_memory(&m->s);
    m->refused[m->refused_count++] = r;
    return msl_declare(m, &s);
}

bool msl_kernel_function(tr *m, msl_range head, size_t i, size_t end, size_t *next) {
    size_t name, body, at;
    msl_kernel_at(m, i, &name);
    msl_definition d = {.name = *msl_at(m, name), .scope = m->scope};
    size_t open = name + 1;
    if (msl_here(m, open, "<")) {
        size_t close = msl_behind_angle(m, open, end);
        d.arguments = (msl_range){open + 1, close ? close - 1 : open + 1};
        open = close ? close : open;
    }
    size_t head_end = open;
    open = msl_skip_attributes(m, open);
    if (!msl_here(m, open, "(") || !msl_function_body(m, m->match[open] + 1, end, &body))
        return msl_error_at(&m->s, &d.name, "kernel is not understood");
    *next = msl_behind(m, body);
    if (msl_here(m, body, ";"))
        return true;
    d.body = body;
    d.open = open;
    bool specialised = head.end == head.begin + 3;
    d.is_template = head.begin < head.end && !specialised;
    if (d.is_template)
        d.template_parameters = (msl_range){head.begin + 2, head.end - 1};
    d.max_threads = max_threads(m, i, open);
    if (d.max_threads.begin == d.max_threads.end)
        d.max_threads = max_threads(m, m->match[open], body);
    const char *host;
    if (!host_name_of(m, i, open, &d.name, &host))
        return false;
    const char *refused = msl_refused_in(m, i, *next, &at);
    if (refused)
        return refuse_kernel(m, name, host, at, refused);
    if (!read_parameters(m, &d, open))
        return false;
    if (!sl_grow((void **)&m->definitions, &m->definition_capacity, m->definition_count + 1, sizeof d))
        return msl_no_memory(&m->s);
    m->definitions[m->definition_count++] = d;
    msl_function_record note = {d.name, open, body, *next, false, d.is_template};
    if (!msl_note_function(m, &note))
        return false;
    msl_instance x = {host,       d.arguments, m->definition_count - 1, m->scope, d.max_threads, (int)d.name.line,
                      d.name.file};
    if (!d.is_template && !add_instance(m, &x))
        return false;
    if (!msl_emit(m, head.begin, head.end))
        return false;
    msl_put(m, name, "MSL_FN void");
    return msl_emit(m, name, head_end) && msl_emit(m, open, m->match[open] + 1) && msl_emit_body(m, body, *next);
}

/* ---- instantiation ----------------------------------------------------------------------------------------------- */

static size_t find_definition(const tr *m, const msl_token *name) {
    for (size_t i = m->definition_count; i-- > 0;)
        if (msl_same(&m->definitions[i].name, name))
            return i;
    return SIZE_MAX;
}

/* Behind the type at i of an explicit instantiation: `void`, `decltype(f<T>)`, a name. */
static size_t behind_type(const tr *m, size_t i, size_t end) {
    if (msl_here(m, i, "decltype") || msl_here(m, i, "typeof"))
        return msl_behind(m, i + 1);
    if (msl_here(m, i, "void"))
        return i + 1;
    if (msl_here(m, i, "typename"))
        i++;
    while (i < end && msl_name_at(m, i)) {
        i++;
        if (msl_here(m, i, "<") && msl_behind_angle(m, i, end))
            i = msl_behind_angle(m, i, end);
        if (!msl_here(m, i, "::") || (msl_at(m, i)->flags & (MSL_SPACED | MSL_BOL)))
            break;
        i++;
    }
    return i;
}

/* `template .. ;` at i: an entry for a kernel's instance; what instantiates anything else is dropped. */
bool msl_instantiation(tr *m, size_t i, size_t end, size_t *next) {
    bool kernel;
    size_t stop = i;
    msl_range r;
    while (stop < end && !msl_here(m, stop, ";"))
        stop = msl_behind(m, stop);
    *next = stop + 1;
    size_t j = behind_specifiers(m, i + 1, stop, &kernel);
    kernel |= msl_find_attribute(m, i + 1, j, "host_name", &r);
    if (!kernel)
        return true;
    j = behind_type(m, j, stop);
    j = msl_skip_attributes(m, j);
    j += msl_here(m, j, "::");
    while (msl_name_at(m, j) && msl_here(m, j + 1, "::"))
        j += 2;
    msl_instance x = {.scope = m->scope, .line = (int)msl_at(m, j)->line, .file = msl_at(m, j)->file};
    if (!msl_name_at(m, j) || !host_name_of(m, i, j, msl_at(m, j), &x.host_name))
        return msl_error_at(&m->s, msl_at(m, i), "explicit instantiation of a kernel is not understood");
    size_t open = j + 1;
    if (msl_here(m, j + 1, "<")) {
        size_t close = msl_behind_angle(m, j + 1, stop);
        x.arguments = (msl_range){j + 2, close ? close - 1 : j + 2};
        open = close ? close : open;
    }
    const msl_symbol *s = msl_lookup(m, msl_at(m, j));
    x.definition = find_definition(m, msl_at(m, j));
    if (x.definition == SIZE_MAX && s && s->kind == MSL_SYMBOL_REFUSED) {
        size_t at;
        const char *what = msl_refused_in(m, j, j + 1, &at);
        return refuse_kernel(m, j, x.host_name, at, what ? what : "not supported");
    }
    if (x.definition == SIZE_MAX)
        return msl_error_at(&m->s, msl_at(m, j), "instantiation of unknown kernel %.*s", (int)msl_at(m, j)->size,
                            msl_at(m, j)->text);
    x.max_threads = max_threads(m, i, j);
    if (x.max_threads.begin == x.max_threads.end)
        x.max_threads = m->definitions[x.definition].max_threads;
    x.scope = m->definitions[x.definition].scope;
    if (msl_here(m, open, "(") && m->definitions[x.definition].is_template &&
        !msl_deduce(m, &m->definitions[x.definition], open, &x.arguments))
        return false;
    return add_instance(m, &x);
}
