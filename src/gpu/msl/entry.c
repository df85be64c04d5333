/* The end of a unit: argument tables of all instances, an entry for each, and on soft the tables that soft_init hands
 * to the runtime. */
#include "gpu/msl/translate.h"

#include <stdio.h>
#include <string.h>

/* ---- argument tables --------------------------------------------------------------------------------------------- */

static int condition_of(const tr *m, const msl_parameter *p) {
    if (p->condition.begin >= p->condition.end)
        return -1;
    if (p->condition.end == p->condition.begin + 1)
        for (size_t i = 0; i < m->constant_count; i++)
            if (m->constants[i].type == SL_GPU_BOOL && msl_is(msl_at(m, p->condition.begin), m->constants[i].name))
                return (int)i;
    return MSL_CONDITION_DERIVED;
}

/* 0: not known. */
static uint32_t alignment(const tr *m, const msl_parameter *p, const msl_binding *b) {
    msl_layout l = msl_type_layout(m, p->type, b);
    return l.size > 0 && l.align <= 256 && p->kind == MSL_PARAMETER_BUFFER ? (uint32_t)l.align : 0;
}

/* 0: not known. */
static uint32_t type_bytes(const tr *m, const msl_parameter *p, const msl_binding *b) {
    uint64_t size = msl_type_layout(m, p->type, b).size;
    for (size_t i = p->dimensions.begin; i < p->dimensions.end && msl_here(m, i, "["); i = msl_behind(m, i)) {
        int64_t n;
        if (!msl_range_value(m, (msl_range){i + 1, m->match[i]}, b, &n) || n < 1 ||
            !sl_mul_u64(size, (uint64_t)n, &size))
            return 0;
    }
    return size <= UINT32_MAX ? (uint32_t)size : 0;
}

/* Slots of parameters that say none: the lowest free one. */
static bool fill_slots(tr *m, const msl_definition *d, int *slots) {
    uint32_t used[2] = {0, 0};
    for (size_t i = 0; i < d->parameter_count; i++)
        if (d->parameters[i].slot >= 0)
            used[d->parameters[i].kind == MSL_PARAMETER_THREADGROUP] |= 1u << d->parameters[i].slot;
    for (size_t i = 0; i < d->parameter_count; i++) {
        const msl_parameter *p = &d->parameters[i];
        uint32_t *u = &used[p->kind == MSL_PARAMETER_THREADGROUP];
        slots[i] = p->slot;
        if (p->kind == MSL_PARAMETER_POSITION || p->slot >= 0)
            continue;
        int s = 0;
        while (s < SL_GPU_SLOTS && (*u >> s & 1))
            s++;
        if (s == SL_GPU_SLOTS)
            return msl_error_at(&m->s, &p->name, "kernel has more than %d arguments", SL_GPU_SLOTS);
        *u |= 1u << s;
        slots[i] = s;
    }
    return true;
}

/* Buffers by slot, then threadgroup memory by slot. */
static bool before(const msl_arg *a, const msl_arg *b) {
    bool ta = a->arg.kind == SL_GPU_ARG_THREADGROUP, tb = b->arg.kind == SL_GPU_ARG_THREADGROUP;
    return ta != tb ? !ta : a->arg.slot < b->arg.slot;
}

static bool check_slots(tr *m, const msl_definition *d, const msl_arg *args, size_t n) {
    for (size_t i = 1; i < n; i++) {
        const msl_arg *a = &args[i - 1], *b = &args[i];
        bool same = !before(a, b);
        if (same && (a->condition == -1 || b->condition == -1))
            return msl_error_at(&m->s, &d->name, "arguments %s and %s have the same index %d", a->arg.name, b->arg.name,
                                b->arg.slot);
    }
    return true;
}

/* What the names in a member's type stand for: the struct's template arguments, in terms of the kernel's. */
static const msl_binding *binding_of(tr *m, const msl_within *w, const msl_binding *kernel) {
    if (!w)
        return kernel;
    msl_binding *b = msl_alloc(&m->s.arena, sizeof *b);
    const msl_binding *outer = b ? binding_of(m, w->outer, kernel) : NULL;
    if (b)
        *b = (msl_binding){w->parameters, w->arguments, outer, NULL};
    return b;
}

static bool build_args(tr *m, const msl_instance *x, msl_kernel *k) {
    const msl_definition *d = &m->definitions[x->definition];
    msl_binding binding = {d->template_parameters, x->arguments, NULL, NULL};
    size_t n = 0;
    int *slots = msl_alloc(&m->s.arena, (d->parameter_count + 1) * sizeof *slots);
    msl_arg *args = msl_alloc(&m->s.arena, (d->parameter_count + 1) * sizeof *args);
    if (!slots || !args)
        return msl_no_memory(&m->s);
    if (!fill_slots(m, d, slots))
        return false;
    for (size_t i = 0; i < d->parameter_count; i++) {
        const msl_parameter *p = &d->parameters[i];
        if (p->kind == MSL_PARAMETER_POSITION)
            continue;
        msl_arg a = {.arg = {.kind = p->arg, .slot = slots[i]}, .condition = condition_of(m, p), .atomic = p->atomic};
        const msl_binding *b = binding_of(m, p->within, d->is_template ? &binding : NULL);
        if (p->within && !b)
            return msl_no_memory(&m->s);
        uint32_t bytes = type_bytes(m, p, b);
        a.sized = bytes > 0;
        a.arg.least = a.sized ? bytes : 1;
        a.arg.align = alignment(m, p, b);
        snprintf(a.arg.name, sizeof a.arg.name, "%.*s", (int)p->name.size, p->name.text);
        size_t at = n++;
        for (; at > 0 && before(&a, &args[at - 1]); at--)
            args[at] = args[at - 1];
        args[at] = a;
    }
    k->args = args;
    k->arg_count = n;
    return check_slots(m, d, args, n);
}

static bool unique_name(tr *m, size_t at) {
    const msl_instance *x = &m->instances[at];
    for (size_t i = 0; i < at; i++)
        if (strcmp(m->instances[i].host_name, x->host_name) == 0) {
            msl_token t = {.text = "", .line = (uint32_t)x->line, .file = (uint16_t)x->file};
            return msl_error_at(&m->s, &t, "two kernels are called %s", x->host_name);
        }
    return true;
}

/* 0: not said, or not known here. */
static uint32_t max_threads(const tr *m, const msl_instance *x) {
    const msl_definition *d = &m->definitions[x->definition];
    msl_binding binding = {d->template_parameters, x->arguments, NULL, NULL};
    int64_t v;
    bool known = msl_range_value(m, x->max_threads, d->is_template ? &binding : NULL, &v);
    return known && v > 0 && v <= 1024 ? (uint32_t)v : 0;
}

bool msl_build_kernels(tr *m) {
    m->kernels = msl_alloc(&m->s.arena, (m->instance_count + 1) * sizeof *m->kernels);
    if (!m->kernels)
        return msl_no_memory(&m->s);
    for (size_t i = 0; i < m->instance_count; i++) {
        const msl_instance *x = &m->instances[i];
        char entry[32];
        int n = snprintf(entry, sizeof entry, "msl_entry_%zu", i);
        msl_kernel k = {.name = x->host_name, .line = x->line, .max_threads = max_threads(m, x)};
        k.threadgroup_memory = msl_storage_bytes(m, x);
        k.entry = msl_copy(&m->s.arena, entry, (size_t)n);
        if (!k.entry)
            return msl_no_memory(&m->s);
        if (!unique_name(m, i) || !build_args(m, x, &k))
            return false;
        m->kernels[m->kernel_count++] = k;
    }
    for (size_t i = 0; i < m->constant_count; i++)
        for (size_t t = 0; t + 2 < m->tokens.count && !m->constants[i].optional; t++)
            m->constants[i].optional =
                msl_here(m, t, "is_function_constant_defined") && msl_is(msl_at(m, t + 2), m->constants[i].name);
    return true;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static void open_scope(tr *m, size_t scope) {
    const char *path = m->scopes[scope];
    if (path[0])
        sl_buf_printf(&m->out, "namespace %s {\n", path);
}

static void close_scope(tr *m, size_t scope) {
    sl_buf_puts(&m->out, m->scopes[scope][0] ? "\n}\n" : "\n");
}

/* `name` as seen from the unit's namespace. */
static void put_path(tr *m, size_t scope) {
    sl_buf_printf(&m->out, "%s%s", m->scopes[scope], m->scopes[scope][0] ? "::" : "");
}

/* Kernel parameters hold 4 KiB on every driver. */
enum { MOST_VALUE = 2048 };

static bool same_slot(const sl_gpu_arg *a, const sl_gpu_arg *b) {
    return a->slot == b->slot && (a->kind == SL_GPU_ARG_THREADGROUP) == (b->kind == SL_GPU_ARG_THREADGROUP);
}

/* What is read through a reference alone, and is as large as its type says, need not lie in memory; the alternatives of
 * a slot go together. */
uint32_t msl_value_bytes(const msl_kernel *k, size_t arg) {
    uint32_t most = 0;
    for (size_t i = 0; i < k->arg_count; i++) {
        const sl_gpu_arg *a = &k->args[i].arg;
        if (!same_slot(a, &k->args[arg].arg))
            continue;
        bool sized = a->align && a->least >= a->align; /* else it may be larger than what is known of it */
        if (a->kind != SL_GPU_ARG_BYTES || a->least > MOST_VALUE || !sized)
            return 0;
        most = a->least > most ? a->least : most;
    }
    return (most + 15) / 16 * 16;
}

/* The parameter of a slot on cuda, as what converts to the kernel's own parameter. */
static void put_cuda_buffer(tr *m, const msl_kernel *k, int slot, bool reference) {
    uint32_t value = 0;
    for (size_t i = 0; i < k->arg_count && !value; i++)
        if (k->args[i].arg.slot == slot)
            value = msl_value_bytes(k, i);
    sl_buf_puts(&m->out, "::msl_unit::metal::");
    if (value && reference)
        sl_buf_printf(&m->out, "msl_value_reference<%u>{MSL_VALUE_AT(msl_b%d)}", value, slot);
    else if (value)
        sl_buf_printf(&m->out, "msl_pointer{MSL_VALUE_AT(msl_b%d)}", slot);
    else
        sl_buf_printf(&m->out, "msl_%s{msl_b%d}", reference ? "reference" : "pointer", slot);
}

static void put_argument(tr *m, const msl_kernel *k, const msl_parameter *p, int slot) {
    bool cuda = m->target == MSL_CUDA;
    if (p->kind == MSL_PARAMETER_POSITION)
        sl_buf_printf(&m->out, "MSL_%s", p->position);
    else if (p->kind == MSL_PARAMETER_BUFFER && cuda)
        put_cuda_buffer(m, k, slot, p->reference);
    else if (p->kind == MSL_PARAMETER_BUFFER)
        sl_buf_printf(&m->out, "%s(%d)", p->reference ? "MSL_REFERENCE" : "MSL_BUFFER", slot);
    else if (cuda)
        sl_buf_printf(&m->out, "::msl_unit::metal::%s{MSL_THREADGROUP_SLOT_AT(msl_t%d).p}",
                      p->reference ? "msl_reference" : "msl_pointer", slot);
    else
        sl_buf_printf(&m->out, "::msl_unit::metal::%s{MSL_THREADGROUP_SLOT(%d).p}",
                      p->reference ? "msl_reference" : "msl_pointer", slot);
}

/* The entry's own parameters on cuda: one per line of the argument table. */
static void put_cuda_parameters(tr *m, const msl_kernel *k) {
    const char *comma = "";
    for (size_t i = 0; i < k->arg_count; i++) {
        const sl_gpu_arg *a = &k->args[i].arg, *last = i ? &k->args[i - 1].arg : NULL;
        bool memory = a->kind == SL_GPU_ARG_THREADGROUP;
        if (last && same_slot(last, a))
            continue; /* alternatives of one slot */
        uint32_t value = msl_value_bytes(k, i);
        if (value)
            sl_buf_printf(&m->out, "%sMSL_VALUE(%u) msl_b%d", comma, value, a->slot);
        else
            sl_buf_printf(&m->out, "%s%s%d", comma, memory ? "unsigned msl_t" : "void *msl_b", a->slot);
        comma = ", ";
    }
}

static bool put_entry(tr *m, size_t at) {
    const msl_instance *x = &m->instances[at];
    const msl_definition *d = &m->definitions[x->definition];
    int *slots = msl_alloc(&m->s.arena, (d->parameter_count + 1) * sizeof *slots);
    if (!slots)
        return msl_no_memory(&m->s);
    if (!fill_slots(m, d, slots))
        return false;
    if (m->target == MSL_CUDA) /* a pipeline's code has its own entry only */
        sl_buf_printf(&m->out, "\n#if !defined(MSL_ENTRY) || MSL_ENTRY == %zu\n", at);
    open_scope(m, x->scope);
    m->out_file = -1;
    msl_put_line(m, (uint32_t)x->line, x->file);
    if (m->target == MSL_CUDA) {
        sl_buf_printf(&m->out, "extern \"C\" __global__ void __launch_bounds__(%u) msl_entry_%zu(",
                      m->kernels[at].max_threads ? m->kernels[at].max_threads : 1024, at);
        put_cuda_parameters(m, &m->kernels[at]);
        sl_buf_puts(&m->out, ") { ");
    } else {
        sl_buf_printf(&m->out, "static void msl_entry_%zu() { msl_derive(); ", at);
    }
    /* by its full name, which no name of Metal's library competes with */
    sl_buf_puts(&m->out, "::msl_unit::");
    put_path(m, x->scope);
    sl_buf_append(&m->out, d->name.text, d->name.size);
    if (x->arguments.begin < x->arguments.end) {
        sl_buf_puts(&m->out, "<");
        for (size_t i = x->arguments.begin; i < x->arguments.end; i++) {
            msl_token *t = &m->tokens.at[i]; /* all on the entry's line */
            t->line = (uint32_t)x->line;
            t->file = (uint16_t)x->file;
        }
        if (!msl_emit(m, x->arguments.begin, x->arguments.end))
            return false;
        sl_buf_puts(&m->out, ">");
    } else if (d->is_template) {
        sl_buf_puts(&m->out, "<>");
    }
    sl_buf_puts(&m->out, "(");
    for (size_t i = 0; i < d->parameter_count; i++) {
        sl_buf_puts(&m->out, i ? ", " : "");
        const msl_parameter *p = &d->parameters[i];
        if (!p->members) {
            put_argument(m, &m->kernels[at], p, slots[i]);
            continue;
        }
        if (p->listed)
            sl_buf_puts(&m->out, "{");
        else
            sl_buf_printf(&m->out, "::msl_unit::metal::msl_members<%zu>{{", p->members);
        for (size_t k = 0; k < p->members; k++) {
            sl_buf_puts(&m->out, k ? ", " : "");
            bool position = d->parameters[i + k].kind == MSL_PARAMETER_POSITION;
            sl_buf_puts(&m->out, position ? "::msl_unit::metal::msl_member(" : "");
            put_argument(m, &m->kernels[at], &d->parameters[i + k], slots[i + k]);
            sl_buf_puts(&m->out, position ? ")" : p->listed ? "" : ".p");
        }
        sl_buf_puts(&m->out, p->listed ? "}" : "}}");
        i += p->members - 1;
    }
    sl_buf_puts(&m->out, "); }");
    close_scope(m, x->scope);
    if (m->target == MSL_CUDA)
        sl_buf_puts(&m->out, "#endif\n");
    return true;
}

/* msl_derive(): constants that depend on function constants, in the order of the source. */
static void put_derive(tr *m) {
    sl_buf_puts(&m->out, "\nstatic inline void msl_derive() {");
    for (size_t i = 0; i < m->late_count; i++) {
        if (m->late[i].index >= 0 && !m->late[i].raw)
            continue;
        sl_buf_puts(&m->out, " ");
        put_path(m, m->late[i].scope);
        sl_buf_printf(&m->out, "msl_derive_%zu();", i);
    }
    sl_buf_puts(&m->out, " }\n");
}

static void put_tables(tr *m) {
    sl_buf_puts(&m->out, "\n#line 1 \"tables\"\n");
    if (m->instance_count)
        sl_buf_puts(&m->out, "static const ::soft_kernel msl_kernels[] = {\n");
    for (size_t i = 0; i < m->instance_count; i++) {
        sl_buf_printf(&m->out, "    {\"msl_entry_%zu\", ", i);
        put_path(m, m->instances[i].scope);
        sl_buf_printf(&m->out, "msl_entry_%zu, %u},\n", i, m->kernels[i].threadgroup_memory);
    }
    sl_buf_puts(&m->out, m->instance_count ? "};\n" : "static const ::soft_kernel *const msl_kernels = nullptr;\n");
    if (m->constant_count)
        sl_buf_puts(&m->out, "static const ::soft_constant msl_constants[] = {\n");
    for (size_t i = 0; i < m->late_count; i++) {
        const msl_late *l = &m->late[i];
        if (l->index < 0)
            continue;
        const msl_constant *c = &m->constants[l->index];
        sl_buf_printf(&m->out, "    {%d, %d, \"%s\", &", c->id, (int)c->type, c->name);
        put_path(m, l->scope);
        sl_buf_printf(&m->out, "%s%s, &", l->raw ? "msl_raw_" : "", c->name);
        put_path(m, l->scope);
        sl_buf_printf(&m->out, "msl_defined_%s},\n", c->name);
    }
    sl_buf_puts(&m->out, m->constant_count ? "};\n" : "static const ::soft_constant *const msl_constants = nullptr;\n");
    sl_buf_printf(&m->out,
                  "static const ::soft_module msl_module = {::SOFT_ABI, msl_kernels, %zu, msl_constants, %zu};\n",
                  m->instance_count, m->constant_count);
}

bool msl_emit_entries(tr *m) {
    if (m->target == MSL_TABLE)
        return true;
    if (m->target == MSL_SOFT)
        put_derive(m);
    for (size_t i = 0; i < m->instance_count; i++)
        if (!put_entry(m, i))
            return false;
    if (m->target == MSL_SOFT)
        put_tables(m);
    return !m->out.failed || msl_no_memory(&m->s);
}
