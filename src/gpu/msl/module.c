/* A translation from source to unit, and what is read from it afterwards. */
#include "gpu/msl/translate.h"
#include "gpu/texts.h"

#include <stdlib.h>
#include <string.h>

/* In the order in which they build on each other. */
static const char *const prelude[] = {"types.h",       "limits.h", "vector.h", "math.h",     "relational.h",
                                      "integer.h",     "matrix.h", "simd.h",   "atomic.h",   "simdgroup_matrix.h",
                                      "conditional.h", "pack.h",   "log.h",    "builtins.h", "shared.h",
                                      "kernel.h",      NULL};

static void put_text(tr *m, const char *name) {
    const sl_text *t = gpu_text(name);
    if (!t)
        return;
    sl_buf_printf(&m->out, "#line 1 \"%s\"\n", name);
    sl_buf_append(&m->out, t->bytes, t->size);
    sl_buf_puts(&m->out, "\n");
}

static void begin_unit(tr *m) {
    if (m->target == MSL_TABLE)
        return;
    sl_buf_puts(&m->out, m->target == MSL_SOFT ? "#define SL_MSL_SOFT 1\n" : "#define SL_MSL_CUDA 1\n");
    if (m->target == MSL_SOFT)
        put_text(m, "soft_abi.h");
    for (int i = 0; prelude[i]; i++)
        put_text(m, prelude[i]);
    sl_buf_puts(&m->out, "\nnamespace msl_unit {\nusing namespace metal;\n");
}

static void end_unit(tr *m) {
    if (m->target == MSL_TABLE)
        return;
    if (m->target == MSL_SOFT)
        sl_buf_puts(&m->out, "static const ::soft_module *msl_start(const ::soft_api *api) {\n    msl_api = api;\n    "
                             "return &msl_module;\n}\n");
    sl_buf_puts(&m->out, "\n} // namespace msl_unit\n");
    if (m->target == MSL_SOFT)
        sl_buf_puts(&m->out, "extern \"C\" __attribute__((visibility(\"default\"))) const soft_module *soft_init(const "
                             "soft_api *api) {\n    return msl_unit::msl_start(api);\n}\n");
}

/* A source all of whose kernels were left out is an error; otherwise only who asks for such a kernel hears of it. */
static bool check_refused(tr *m) {
    if (m->kernel_count || !m->refused_count)
        return true;
    return sl_fail(m->s.err, SL_ERR_UNSUPPORTED, "%s", m->refused[0].message);
}

/* Names that generated code has for itself: the source's own of that kind are called user_... from here on. */
static bool rename_reserved(tr *m) {
    for (size_t i = 0; i < m->tokens.count; i++) {
        msl_token *t = &m->tokens.at[i];
        if (t->kind != MSL_NAME || t->size < 4 || (memcmp(t->text, "msl_", 4) != 0 && memcmp(t->text, "MSL_", 4) != 0))
            continue;
        char *text = msl_alloc(&m->s.arena, t->size + sizeof MSL_USER);
        if (!text)
            return msl_no_memory(&m->s);
        memcpy(text, MSL_USER, sizeof MSL_USER - 1);
        memcpy(text + sizeof MSL_USER - 1, t->text, t->size);
        t->text = text;
        t->size += sizeof MSL_USER - 1;
    }
    return true;
}

static bool translate(tr *m, const char *source, size_t n) {
    if (!msl_preprocess(&m->s, source, n, &m->tokens) || !rename_reserved(m) || !msl_match_brackets(m) ||
        !msl_check_forbidden(m))
        return false;
    m->scopes = malloc(sizeof *m->scopes);
    if (!m->scopes)
        return msl_no_memory(&m->s);
    m->layout_budget = msl_alloc(&m->s.arena, sizeof *m->layout_budget);
    if (!m->layout_budget)
        return msl_no_memory(&m->s);
    *m->layout_budget = MSL_LAYOUT_STEPS;
    m->scopes[0] = "";
    m->scope_count = m->scope_capacity = 1;
    m->out_muted = m->target == MSL_TABLE;
    msl_find_halves(m);
    begin_unit(m);
    m->out_file = -1;
    if (!msl_walk(m, 0, m->tokens.count - 1, NULL, 0) || !msl_check_calls(m) || !msl_check_declarations(m) ||
        !msl_build_kernels(m) || !check_refused(m) || !msl_emit_entries(m))
        return false;
    end_unit(m);
    return !m->out.failed || msl_no_memory(&m->s);
}

/* What only the walk needed. */
static void free_working_memory(tr *m) {
    free(m->tokens.at);
    free(m->scopes);
    free(m->definitions);
    free(m->instances);
    free(m->late);
    free(m->functions);
    free(m->storage);
    m->tokens = (msl_tokens){0};
    m->scopes = NULL;
    m->definitions = NULL;
    m->instances = NULL;
    m->late = NULL;
    m->functions = NULL;
    m->storage = NULL;
}

msl_module *msl_translate(const char *source, size_t n, const msl_options *options, sl_error *err) {
    msl_module *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail_null(err, SL_ERR_MEMORY, "no memory to translate a kernel");
    m->s.options = options;
    m->s.err = &m->error;
    m->target = options->target;
    bool ok = translate(m, source, n);
    free_working_memory(m);
    if (ok)
        return m;
    if (err)
        *err = m->error;
    msl_module_free(m);
    return NULL;
}

void msl_module_free(msl_module *m) {
    if (!m)
        return;
    free_working_memory(m);
    free(m->constants);
    free(m->refused);
    sl_buf_free(&m->out);
    msl_arena_free(&m->s.arena);
    free(m);
}

const char *msl_module_code(const msl_module *m, size_t *size) {
    if (size)
        *size = m->out.size;
    return m->out.data ? m->out.data : "";
}

const msl_kernel *msl_module_kernels(const msl_module *m, size_t *count) {
    *count = m->kernel_count;
    return m->kernels;
}

const msl_constant *msl_module_constants(const msl_module *m, size_t *count) {
    *count = m->constant_count;
    return m->constants;
}

const msl_kernel *msl_module_find(const msl_module *m, const char *name) {
    for (size_t i = 0; i < m->kernel_count; i++)
        if (strcmp(m->kernels[i].name, name) == 0)
            return &m->kernels[i];
    return NULL;
}

const msl_refusal *msl_module_refusals(const msl_module *m, size_t *count) {
    *count = m->refused_count;
    return m->refused;
}

const char *msl_module_refused(const msl_module *m, const char *name) {
    for (size_t i = 0; i < m->refused_count; i++)
        if (strcmp(m->refused[i].host_name, name) == 0)
            return m->refused[i].message;
    return NULL;
}
