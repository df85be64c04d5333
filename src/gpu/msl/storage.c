/* How much threadgroup memory kernels declare, as far as the source alone tells: types and constants of the body and
 * template arguments are followed. */
#include "gpu/msl/translate.h"

enum { ALIGNMENT = 16, MOST = 1 << 24, LOCALS = 256, VARIABLES = 4096 };

bool msl_note_storage(tr *m, msl_range type, msl_range dimensions) {
    if (!sl_grow((void **)&m->storage, &m->storage_capacity, m->storage_count + 1, sizeof *m->storage))
        return msl_no_memory(&m->s);
    m->storage[m->storage_count++] = (msl_storage){type, dimensions};
    return true;
}

/* `using a = b;`, `typedef b a;`, `constexpr int a = 3;` at i, a statement's begin; false: it declares none of these.
 */
static bool local_at(const tr *m, size_t i, size_t end, msl_symbol *out) {
    size_t stop = i, equals = end;
    static const char *const words[] = {"using", "typedef", "constexpr", "const", "static", NULL};
    if (!msl_among(msl_at(m, i), words))
        return false;
    for (; stop < end && !msl_here(m, stop, ";"); stop = msl_behind(m, stop))
        if (msl_here(m, stop, "=") && equals == end)
            equals = stop;
    if (msl_here(m, i, "typedef")) {
        *out = (msl_symbol){.name = *msl_at(m, stop - 1), .kind = MSL_SYMBOL_TYPE, .range = {i + 1, stop - 1}};
        return true;
    }
    if (equals >= stop || !msl_name_at(m, equals - 1))
        return false;
    *out = (msl_symbol){.name = *msl_at(m, equals - 1), .range = {equals + 1, msl_piece_end(m, equals + 1, stop)}};
    out->kind = msl_here(m, i, "using") ? MSL_SYMBOL_TYPE : MSL_SYMBOL_VALUE;
    return true;
}

/* Names that are declared twice (in different blocks) are not judged. */
static bool add_local(tr *m, msl_symbol **locals, const msl_symbol *symbol) {
    for (msl_symbol *l = *locals; l; l = l->next)
        if (msl_same(&l->name, &symbol->name)) {
            l->twice |= !msl_range_same(m, l->range, symbol->range);
            return true;
        }
    msl_symbol *s = msl_alloc(&m->s.arena, sizeof *s);
    if (!s)
        return false;
    *s = *symbol;
    s->next = *locals;
    *locals = s;
    return true;
}

static msl_symbol *find_locals(tr *m, size_t body) {
    msl_symbol *locals = NULL, one;
    size_t n = 0;
    for (size_t i = body + 1; i < m->match[body] && n < LOCALS; i++) {
        bool begins = msl_here(m, i - 1, ";") || msl_here(m, i - 1, "{") || msl_here(m, i - 1, "}");
        if (begins && local_at(m, i, m->match[body], &one) && add_local(m, &locals, &one))
            n++;
    }
    return locals;
}

static uint64_t variable_bytes(const tr *m, const msl_storage *v, const msl_binding *b) {
    uint64_t size = msl_type_layout(m, v->type, b).size;
    for (size_t i = v->dimensions.begin; i < v->dimensions.end && msl_here(m, i, "["); i = msl_behind(m, i)) {
        int64_t n;
        if (!msl_range_value(m, (msl_range){i + 1, m->match[i]}, b, &n) || n < 1 ||
            !sl_mul_u64(size, (uint64_t)n, &size))
            return 0;
    }
    return size;
}

uint32_t msl_storage_bytes(tr *m, const msl_instance *x) {
    const msl_definition *d = &m->definitions[x->definition];
    uint64_t total = 0;
    msl_binding binding = {{0, 0}, {0, 0}, NULL, NULL};
    bool ready = false;
    if (m->storage_count > VARIABLES)
        return 0;
    if (d->is_template) {
        binding.parameters = d->template_parameters;
        binding.arguments = x->arguments;
    }
    for (size_t i = 0; i < m->storage_count; i++) {
        const msl_storage *v = &m->storage[i];
        if (v->type.begin < d->body || v->type.begin > m->match[d->body])
            continue;
        if (!ready)
            binding.locals = find_locals(m, d->body);
        ready = true;
        uint64_t bytes = variable_bytes(m, v, &binding);
        if (bytes == 0 || bytes > MOST || total > MOST)
            return 0;
        total += sl_round_up(bytes, ALIGNMENT);
    }
    return (uint32_t)total;
}
