/* What cannot be translated, by name. */
#include "gpu/msl/translate.h"

#include <string.h>

/* Words that MSL itself does not have. */
static const char *const forbidden[][2] = {
    {"double", "double is not a type of Metal"},
    {"virtual", "virtual functions are not part of Metal"},
    {"try", "exceptions are not part of Metal"},
    {"catch", "exceptions are not part of Metal"},
    {"throw", "exceptions are not part of Metal"},
    {"new", "new is not part of Metal"},
    {"delete", "delete is not part of Metal"},
    {"goto", "goto is not part of Metal"},
    {"dynamic_cast", "dynamic_cast is not part of Metal"},
    {"typeid", "typeid is not part of Metal"},
    {"thread_local", "thread_local is not part of Metal"},
    {"ext_vector_type", "the compiler's own vector types are not supported: Metal has vec<T, n>"},
    {"vector_size", "the compiler's own vector types are not supported: Metal has vec<T, n>"},
};

/* Words of Metal that stand for what is not supported; with `<`, only as a template's name. */
static const struct {
    const char *word, *what;
    bool template_only;
} refused[] = {
    {"texture1d", "textures are not supported", false},
    {"texture1d_array", "textures are not supported", false},
    {"texture2d", "textures are not supported", false},
    {"texture2d_array", "textures are not supported", false},
    {"texture2d_ms", "textures are not supported", false},
    {"texture2d_ms_array", "textures are not supported", false},
    {"texture3d", "textures are not supported", false},
    {"texturecube", "textures are not supported", false},
    {"texturecube_array", "textures are not supported", false},
    {"texture_buffer", "textures are not supported", false},
    {"depth2d", "textures are not supported", false},
    {"depth2d_array", "textures are not supported", false},
    {"depth2d_ms", "textures are not supported", false},
    {"depthcube", "textures are not supported", false},
    {"sampler", "samplers are not supported", false},
    {"imageblock", "imageblocks are not supported", true},
    {"threadgroup_imageblock", "imageblocks are not supported", false},
    {"cooperative_tensor", "tensor operations are not supported", false},
    {"tensor_ops", "tensor operations are not supported", false},
    {"tensor_handle", "tensor operations are not supported", false},
    {"tensor_inline", "tensor operations are not supported", false},
    {"tensor", "tensor operations are not supported", true},
    {"mpp", "tensor operations are not supported", false},
    {"matmul2d", "tensor operations are not supported", true},
    {"matmul2d_descriptor", "tensor operations are not supported", false},
    {"execution_simdgroups", "tensor operations are not supported", true},
    {"execution_simdgroup", "tensor operations are not supported", false},
    {"dextents", "tensor operations are not supported", true},
    {"raytracing", "ray tracing is not supported", false},
    {"acceleration_structure", "ray tracing is not supported", false},
    {"primitive_acceleration_structure", "ray tracing is not supported", false},
    {"instance_acceleration_structure", "ray tracing is not supported", false},
    {"intersector", "ray tracing is not supported", true},
    {"intersection_query", "ray tracing is not supported", true},
    {"visible_function_table", "visible functions are not supported", false},
    {"intersection_function_table", "visible functions are not supported", false},
    {"command_buffer", "indirect command buffers are not supported", false},
    {"render_command", "indirect command buffers are not supported", false},
    {"compute_command", "indirect command buffers are not supported", false},
    {"stage_in", "stage_in is not supported", false},
    {"asm", "inline assembly is not supported", false},
    {"__asm__", "inline assembly is not supported", false},
    {"__asm", "inline assembly is not supported", false},
};

static bool is_member(const tr *m, size_t i) {
    return i && (msl_here(m, i - 1, ".") || msl_here(m, i - 1, "->"));
}

bool msl_check_forbidden(tr *m) {
    for (size_t i = 0; i < m->tokens.count; i++) {
        const msl_token *t = msl_at(m, i);
        if (t->kind != MSL_NAME || is_member(m, i))
            continue;
        for (size_t k = 0; k < SL_COUNT(forbidden); k++)
            if (msl_is(t, forbidden[k][0]) && !(msl_is(t, "delete") && i && msl_here(m, i - 1, "=")))
                return msl_error_at(&m->s, t, "%s", forbidden[k][1]);
    }
    return true;
}

static const char *refused_word(const tr *m, size_t i) {
    const msl_token *t = msl_at(m, i);
    for (size_t k = 0; k < SL_COUNT(refused); k++)
        if (msl_is(t, refused[k].word) && (!refused[k].template_only || msl_here(m, i + 1, "<"))) {
            const msl_symbol *own = msl_lookup(m, t); /* the source may have a type of that name */
            return own && own->kind != MSL_SYMBOL_REFUSED ? NULL : refused[k].what;
        }
    return NULL;
}

/* A name of the source that was dropped because of what it uses: the reason's token. */
static const msl_symbol *refused_name(const tr *m, size_t i) {
    const msl_symbol *s = msl_lookup(m, msl_at(m, i));
    return s && s->kind == MSL_SYMBOL_REFUSED ? s : NULL;
}

const char *msl_refused_in(const tr *m, size_t begin, size_t end, size_t *at) {
    for (size_t i = begin; i < end; i++) {
        if (!msl_name_at(m, i) || is_member(m, i))
            continue;
        const char *what = refused_word(m, i);
        const msl_symbol *s = what ? NULL : refused_name(m, i);
        *at = s ? s->range.begin : i;
        if (s)
            what = refused_word(m, s->range.begin);
        if (s && !what)
            what = "bindings of program scope are not supported";
        if (what)
            return what;
    }
    return NULL;
}
