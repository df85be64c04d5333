/* The preprocessor: directives, conditionals, inclusion. Output keeps pragmas, since `unroll` decides over speed. */
#include "gpu/msl/preprocess.h"
#include "gpu/texts.h"

#include <stdlib.h>
#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int add_file(msl_preprocessor *p, const char *name, const msl_token *at) {
    msl_source *s = p->s;
    if (s->files >= MSL_MAX_FILES) {
        msl_error_at(s, at, "more than %d files are included", MSL_MAX_FILES);
        return -1;
    }
    s->names[s->files] = msl_copy(&s->arena, name, strlen(name));
    if (!s->names[s->files]) {
        msl_no_memory(s);
        return -1;
    }
    return s->files++;
}

/* The directory part of a path; "" where there is none. */
static char *dir_of(msl_source *s, const char *path) {
    const char *slash = strrchr(path, '/');
    return msl_copy(&s->arena, path, slash ? (size_t)(slash - path + (slash == path)) : 0);
}

static bool enter_text(msl_preprocessor *p, const char *text, size_t n, const char *name, const msl_token *at) {
    int file = add_file(p, name, at);
    if (file < 0)
        return false;
    msl_tokens t = {0};
    bool ok = msl_lex(p->s, text, n, file, &t);
    msl_input in = {.file = true, .conditionals = p->conditional_count};
    if (ok) {
        msl_token *copy = msl_alloc(&p->s->arena, t.count * sizeof *copy);
        in.dir = dir_of(p->s, name);
        in.at = copy;
        in.count = t.count - 1;
        if (copy && in.dir)
            memcpy(copy, t.at, t.count * sizeof *copy);
        ok = (copy && in.dir) || msl_no_memory(p->s);
    }
    free(t.at);
    p->include_depth++;
    return ok && msl_input_push(p, &in);
}

/* Headers of Metal's own library: what they declare is in the prelude, or is refused where a kernel uses it (tensors,
 * ray tracing). */
static bool is_library_header(const char *name) {
    static const char *const prefixes[] = {"metal_",
                                           "simd/",
                                           "metal/",
                                           "TargetConditionals",
                                           "stdint.h",
                                           "stddef.h",
                                           "stdbool.h",
                                           "float.h",
                                           "limits.h",
                                           "cstdint",
                                           "AvailabilityMacros",
                                           "Availability",
                                           "MetalPerformancePrimitives",
                                           "tensor",
                                           NULL};
    for (int i = 0; prefixes[i]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static char *join_path(msl_source *s, const char *dir, const char *name) {
    size_t d = strlen(dir), n = strlen(name);
    char *path = msl_alloc(&s->arena, d + n + 2);
    if (!path)
        return NULL;
    memcpy(path, dir, d);
    if (d && dir[d - 1] != '/')
        path[d++] = '/';
    memcpy(path + d, name, n);
    return path;
}

/* A path to include, looked for beside the including file, then in include_dirs; NULL: none. */
static char *find_include(msl_preprocessor *p, const char *name, const char *dir) {
    const msl_options *o = p->s->options;
    if (name[0] == '/')
        return sl_path_exists(name) ? join_path(p->s, "", name) : NULL;
    if (dir && dir[0]) {
        char *path = join_path(p->s, dir, name);
        if (path && sl_path_exists(path))
            return path;
    }
    for (size_t i = 0; i < o->include_count; i++) {
        char *path = join_path(p->s, o->include_dirs[i], name);
        if (path && sl_path_exists(path))
            return path;
    }
    return NULL;
}

/* A header compiled into the program, for the kernels that are. */
static const sl_text *find_text(const char *name) {
    const char *slash = strrchr(name, '/');
    return gpu_text(slash ? slash + 1 : name);
}

static bool seen_once(const msl_preprocessor *p, const char *path) {
    for (int i = 0; i < p->once_count; i++)
        if (strcmp(p->once[i], path) == 0)
            return true;
    return false;
}

static const char *current_dir(const msl_preprocessor *p) {
    for (size_t i = p->inputs; i-- > 0;)
        if (p->input[i].file)
            return p->input[i].dir;
    return NULL;
}

static bool enter_file(msl_preprocessor *p, const char *path, const msl_token *at) {
    size_t n = 0;
    sl_error why = {0};
    char *text = sl_read_text(path, MSL_MAX_SOURCE, &n, &why);
    if (!text)
        return msl_error_at(p->s, at, "cannot include: %s", why.message);
    bool ok = enter_text(p, text, n, path, at);
    free(text);
    return ok;
}

/* Name between the quotes or angles of an #include; NULL: malformed. */
static char *include_name(msl_preprocessor *p, const msl_token *t, size_t n, bool *angled) {
    *angled = false;
    if (n && t[0].kind == MSL_STRING && t[0].size >= 2)
        return msl_copy(&p->s->arena, t[0].text + 1, t[0].size - 2);
    if (!n || !msl_is(&t[0], "<"))
        return NULL;
    *angled = true;
    sl_buf b = {0};
    size_t i = 1;
    for (; i < n && !msl_is(&t[i], ">"); i++)
        sl_buf_append(&b, t[i].text, t[i].size);
    char *name = i < n && !b.failed ? msl_copy(&p->s->arena, b.data ? b.data : "", b.size) : NULL;
    sl_buf_free(&b);
    return name;
}

static bool include(msl_preprocessor *p, const msl_token *t, size_t n, const msl_token *at) {
    bool angled;
    char *name = include_name(p, t, n, &angled);
    msl_tokens expanded = {0};
    if (!name && n) {
        if (!msl_expand_list(p, t, n, &expanded)) {
            free(expanded.at);
            return false;
        }
        name = include_name(p, expanded.at, expanded.count, &angled);
    }
    free(expanded.at);
    if (!name || !name[0])
        return msl_error_at(p->s, at, "#include needs \"file\" or <file>");
    char *path = find_include(p, name, angled ? NULL : current_dir(p));
    if (!path && is_library_header(name))
        return true;
    const sl_text *text = path ? NULL : find_text(name);
    if (!path && !text)
        return msl_error_at(p->s, at, "included file %s is not found", name);
    if (seen_once(p, path ? path : text->name))
        return true;
    if (p->include_depth >= MSL_MAX_INCLUDE_DEPTH)
        return msl_error_at(p->s, at, "#include is nested too deep");
    return path ? enter_file(p, path, at) : enter_text(p, text->bytes, text->size, text->name, at);
}

/* ---- conditions -------------------------------------------------------------------------------------------------- */

static bool zero_operand(void *user, const msl_token *t, size_t n, size_t *used, int64_t *value) {
    (void)user;
    *value = 0;
    *used = 1;
    if (n > 1 && msl_is(&t[1], "(")) { /* __has_builtin(x) and its kin */
        int depth = 0;
        do
            depth += msl_is(&t[*used], "(") - msl_is(&t[*used], ")");
        while (++*used < n && depth > 0);
    }
    return true;
}

static bool push_flag(msl_preprocessor *p, msl_tokens *out, const msl_token *at, bool v) {
    msl_token t = *at;
    t.text = v ? "1" : "0";
    t.size = 1;
    t.kind = MSL_NUMBER;
    return msl_push(out, &t) || msl_no_memory(p->s);
}

/* `defined X`, `defined(X)`, `__has_include("x")` at t[0]: a 0 or 1 in out; *used 0: it is something else. */
static bool question(msl_preprocessor *p, const msl_token *t, size_t n, size_t *used, msl_tokens *out) {
    *used = 0;
    if (msl_is(t, "defined")) {
        size_t paren = n > 1 && msl_is(&t[1], "(");
        if (n < 2 + 2 * paren || t[1 + paren].kind != MSL_NAME || (paren && !msl_is(&t[3], ")")))
            return msl_error_at(p->s, t, "'defined' needs a name");
        *used = 2 + 2 * paren;
        const msl_token *name = &t[1 + paren];
        bool known = msl_macro_find(p, name) || msl_is(name, "__has_include") || msl_is(name, "__LINE__");
        return push_flag(p, out, t, known);
    }
    if (msl_is(t, "__has_include") && n > 2 && msl_is(&t[1], "(")) {
        bool angled;
        size_t end = 2;
        while (end < n && !msl_is(&t[end], ")"))
            end++;
        char *name = include_name(p, t + 2, end - 2, &angled);
        bool found = name && (find_include(p, name, angled ? NULL : current_dir(p)) || is_library_header(name));
        *used = end < n ? end + 1 : n;
        return push_flag(p, out, t, found);
    }
    return true;
}

static bool condition(msl_preprocessor *p, const msl_token *t, size_t n, const msl_token *at, bool *value) {
    msl_tokens asked = {0}, full = {0};
    bool ok = true;
    for (size_t i = 0, used; ok && i < n; i += used ? used : 1) {
        ok = question(p, &t[i], n - i, &used, &asked);
        if (ok && !used)
            ok = msl_push(&asked, &t[i]) || msl_no_memory(p->s);
    }
    int64_t v = 0;
    ok = ok && msl_expand_list(p, asked.at, asked.count, &full);
    if (ok && !msl_evaluate(full.at, full.count, zero_operand, NULL, &v))
        ok = msl_error_at(p->s, at, "condition of #if is not an integer expression");
    *value = v != 0;
    free(asked.at);
    free(full.at);
    return ok;
}

static bool open_conditional(msl_preprocessor *p, const msl_token *at, bool taking) {
    if (p->conditional_count >= MSL_MAX_CONDITIONALS)
        return msl_error_at(p->s, at, "#if is nested too deep");
    p->conditionals[p->conditional_count++] = (msl_conditional){*at, taking, taking, false};
    return true;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

typedef struct line {
    msl_token at; /* the `#` */
    const msl_token *word;
    const msl_token *rest;
    size_t count; /* of rest */
} line;

/* The token, where #line says that it is. */
static msl_token placed(const msl_input *in, const msl_token *t) {
    msl_token x = *t;
    int64_t at = in->shift + t->line;
    x.line = at < 1 ? 1 : at > INT32_MAX ? INT32_MAX : (uint32_t)at;
    if (in->named)
        x.file = (uint16_t)(in->named - 1);
    return x;
}

/* The directive at the top file's next token, which is moved past it. */
static line read_line(msl_input *in) {
    line l = {.at = placed(in, &in->at[in->next++])};
    size_t end = in->next;
    while (end < in->count && !(in->at[end].flags & MSL_BOL))
        end++;
    if (in->next < end)
        l.word = &in->at[in->next++];
    l.rest = &in->at[in->next];
    l.count = end - in->next;
    in->next = end;
    return l;
}

static bool starts_line(const msl_input *in) {
    return in->file && in->next < in->count && (in->at[in->next].flags & MSL_BOL) && msl_is(&in->at[in->next], "#");
}

static bool word_is(const line *l, const char *s) {
    return l->word && msl_is(l->word, s);
}

/* Carries out #elif, #else or #endif for the innermost conditional. */
static bool next_branch(msl_preprocessor *p, const line *l) {
    const msl_input *in = &p->input[p->inputs - 1];
    if (p->conditional_count <= in->conditionals)
        return msl_error_at(p->s, &l->at, "#%.*s without #if", (int)l->word->size, l->word->text);
    msl_conditional *c = &p->conditionals[p->conditional_count - 1];
    if (word_is(l, "endif")) {
        p->conditional_count--;
        return true;
    }
    if (c->last)
        return msl_error_at(p->s, &l->at, "#%.*s after #else", (int)l->word->size, l->word->text);
    c->last = word_is(l, "else");
    bool value = c->last;
    if (!c->last && !c->taken && !condition(p, l->rest, l->count, &l->at, &value))
        return false;
    c = &p->conditionals[p->conditional_count - 1];
    c->taking = value && !c->taken;
    c->taken |= c->taking;
    return true;
}

/* Skips lines of the top file until the innermost conditional takes a branch or ends. */
static bool skip_branch(msl_preprocessor *p) {
    int nested = 0, before = p->conditional_count;
    for (;;) {
        msl_input *in = &p->input[p->inputs - 1];
        while (in->next < in->count && !starts_line(in))
            in->next++;
        if (in->next >= in->count)
            return true; /* the end of the file complains */
        line l = read_line(in);
        if (word_is(&l, "if") || word_is(&l, "ifdef") || word_is(&l, "ifndef")) {
            nested++;
        } else if (nested) {
            nested -= word_is(&l, "endif");
        } else if (word_is(&l, "elif") || word_is(&l, "else") || word_is(&l, "endif")) {
            if (!next_branch(p, &l))
                return false;
            if (p->conditional_count < before || p->conditionals[before - 1].taking)
                return true;
        }
    }
}

static bool begin_if(msl_preprocessor *p, const line *l) {
    bool value;
    if (word_is(l, "if")) {
        if (!condition(p, l->rest, l->count, &l->at, &value))
            return false;
    } else {
        if (!l->count || l->rest[0].kind != MSL_NAME)
            return msl_error_at(p->s, &l->at, "#%.*s needs a name", (int)l->word->size, l->word->text);
        value = (msl_macro_find(p, &l->rest[0]) != NULL) == word_is(l, "ifdef");
    }
    return open_conditional(p, &l->at, value) && (value || skip_branch(p));
}

static bool pragma_once(msl_preprocessor *p, const line *l) {
    msl_source *s = p->s;
    if (p->once_count < MSL_MAX_FILES)
        p->once[p->once_count++] = s->names[l->word->file];
    return true;
}

/* Index of a file's name; -1: an error. */
static int name_file(msl_preprocessor *p, const msl_token *quoted, const msl_token *at) {
    char *name = msl_copy(&p->s->arena, quoted->text + 1, quoted->size - 2);
    if (!name) {
        msl_no_memory(p->s);
        return -1;
    }
    for (int i = 0; i < p->s->files; i++)
        if (strcmp(p->s->names[i], name) == 0)
            return i;
    return add_file(p, name, at);
}

/* `#line N "file"`, macros expanded: the next line is line N of that file, for messages. */
static bool renumber(msl_preprocessor *p, const msl_token *t, size_t n, const msl_token *at) {
    msl_input *in = &p->input[p->inputs - 1];
    int64_t physical = (int64_t)at->line - in->shift, number = 0;
    msl_tokens full = {0};
    bool ok = msl_expand_list(p, t, n, &full);
    const msl_token *first = full.at;
    bool decimal = ok && full.count && first->kind == MSL_NUMBER && first->size < 11;
    for (uint32_t i = 0; decimal && i < first->size; i++) {
        decimal = first->text[i] >= '0' && first->text[i] <= '9';
        number = number * 10 + (first->text[i] - '0');
    }
    bool named = ok && full.count > 1 && first[1].kind == MSL_STRING && first[1].size >= 2;
    if (ok && (!decimal || number > INT32_MAX || (full.count > 1 && !named)))
        ok = msl_error_at(p->s, at, "#line needs a number below 2^31, then nothing or a \"file\"");
    int file = ok && named ? name_file(p, &first[1], at) : 0;
    free(full.at);
    if (!ok || file < 0)
        return false;
    in = &p->input[p->inputs - 1];
    in->shift = number - (physical + 1);
    if (named)
        in->named = file + 1;
    return true;
}

/* *kept: a pragma that goes to the output. */
static bool directive(msl_preprocessor *p, msl_token *kept) {
    line l = read_line(&p->input[p->inputs - 1]);
    kept->kind = MSL_END;
    if (!l.word || word_is(&l, "ident") || word_is(&l, "warning"))
        return true;
    if (word_is(&l, "line"))
        return renumber(p, l.rest, l.count, &l.at);
    if (l.word->kind == MSL_NUMBER) /* what another preprocessor leaves: `# 1 "file" 2` */
        return renumber(p, l.word, l.count + 1, &l.at);
    if (word_is(&l, "if") || word_is(&l, "ifdef") || word_is(&l, "ifndef"))
        return begin_if(p, &l);
    if (word_is(&l, "elif") || word_is(&l, "else") || word_is(&l, "endif")) {
        int before = p->conditional_count;
        if (!next_branch(p, &l))
            return false;
        return p->conditional_count < before || p->conditionals[before - 1].taking || skip_branch(p);
    }
    if (word_is(&l, "define"))
        return msl_macro_define(p, l.rest, l.count, &l.at);
    if (word_is(&l, "undef")) {
        if (l.count)
            msl_macro_undefine(p, &l.rest[0]);
        return true;
    }
    if (word_is(&l, "include") || word_is(&l, "import"))
        return include(p, l.rest, l.count, &l.at);
    if (word_is(&l, "error"))
        return msl_error_at(p->s, &l.at, "#error%s%.*s", l.count ? " " : "", l.count ? (int)l.rest[0].size : 0,
                            l.count ? l.rest[0].text : "");
    if (!word_is(&l, "pragma"))
        return msl_error_at(p->s, &l.at, "directive #%.*s is unknown", (int)l.word->size, l.word->text);
    if (l.count && msl_is(&l.rest[0], "once"))
        return pragma_once(p, &l);
    if (l.count)
        *kept = placed(&p->input[p->inputs - 1], &l.rest[0]);
    return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool leave(msl_preprocessor *p) {
    msl_input *in = &p->input[--p->inputs];
    if (in->macro)
        in->macro->busy = false;
    if (!in->file)
        return true;
    p->include_depth--;
    if (p->conditional_count > in->conditionals)
        return msl_error_at(p->s, &p->conditionals[p->conditional_count - 1].at, "#if is not closed");
    return true;
}

bool msl_raw(msl_preprocessor *p, msl_token *out) {
    while (p->inputs) {
        msl_input *in = &p->input[p->inputs - 1];
        if (starts_line(in)) {
            if (!directive(p, out))
                return false;
            if (out->kind == MSL_PRAGMA)
                return true;
        } else if (in->next < in->count) {
            *out = in->file ? placed(in, &in->at[in->next++]) : in->at[in->next++];
            return true;
        } else if (in->barrier) {
            break;
        } else if (!leave(p)) {
            return false;
        }
    }
    *out = (msl_token){.text = "", .kind = MSL_END, .flags = MSL_BOL};
    return true;
}

/* `_Pragma("text")` becomes the pragma; *x is its first token on entry. */
static bool pragma_operator(msl_preprocessor *p, msl_token *x) {
    msl_token open, text, close;
    if (!msl_expanded(p, &open) || !msl_expanded(p, &text) || !msl_expanded(p, &close))
        return false;
    if (!msl_is(&open, "(") || text.kind != MSL_STRING || !msl_is(&close, ")"))
        return msl_error_at(p->s, x, "_Pragma needs a string");
    x->text = text.text + 1;
    x->size = text.size - 2;
    x->kind = MSL_PRAGMA;
    return true;
}

static bool define_text(msl_preprocessor *p, const char *text) {
    msl_tokens t = {0};
    bool ok = msl_lex(p->s, text, strlen(text), 0, &t) &&
              msl_macro_define(p, t.at, t.count - 1, &(msl_token){.text = "", .line = 0});
    free(t.at);
    return ok;
}

static bool predefine(msl_preprocessor *p) {
    static const char *const known[] = {"__METAL__ 1",
                                        "__METAL_MACOS__ 1",
                                        "__METAL",
                                        "METAL_FUNC inline",
                                        "__HAVE_BFLOAT__ 1",
                                        "__HAVE_NATIVE_SIMDGROUP__ 1",
                                        "__APPLE__ 1",
                                        "METAL_ASM(...)",
                                        "__has_extension(x) 0",
                                        "__has_attribute(x) 0",
                                        "METAL_ALWAYS_INLINE inline",
                                        "__cplusplus 201402L",
                                        "TARGET_OS_OSX 1",
                                        "__HAVE_SIMDGROUP_MATRIX__ 1",
                                        "__AIR64__ 1",
                                        "__CHAR_BIT__ 8",
                                        "__SCHAR_MAX__ 127",
                                        "__SHRT_MAX__ 32767",
                                        "__INT_MAX__ 2147483647",
                                        "__LONG_MAX__ 9223372036854775807L",
                                        "__INT32_MAX__ 2147483647",
                                        "__UINT32_MAX__ 4294967295U",
                                        "__INT64_MAX__ 9223372036854775807L",
                                        "__UINT64_MAX__ 18446744073709551615UL",
                                        "__FLT_MAX__ 3.40282347e+38F",
                                        "__FLT_MIN__ 1.17549435e-38F",
                                        "__FLT_EPSILON__ 1.19209290e-7F"};
    const msl_options *o = p->s->options;
    bool ok = true;
    for (size_t i = 0; ok && i < SL_COUNT(known); i++)
        ok = define_text(p, known[i]);
    sl_buf b = {0};
    sl_buf_printf(&b, "__METAL_VERSION__ %d", o->language ? o->language : 310);
    ok = ok && b.data && define_text(p, b.data);
    for (size_t i = 0; ok && i < o->define_count; i++) {
        const char *value = o->defines[i].value;
        sl_buf_clear(&b);
        ok = sl_buf_printf(&b, "%s %s", o->defines[i].name, value ? value : "1") && define_text(p, b.data);
    }
    sl_buf_free(&b);
    return ok;
}

static bool output(msl_preprocessor *p, msl_tokens *out) {
    msl_token x;
    for (;;) {
        if (!msl_expanded(p, &x))
            return false;
        if (x.kind == MSL_NAME && msl_is(&x, "_Pragma") && !pragma_operator(p, &x))
            return false;
        if (out->count >= MSL_MAX_TOKENS)
            return msl_error_at(p->s, &x, "source has more than %d tokens with macros expanded", MSL_MAX_TOKENS);
        if (x.kind == MSL_END && out->count)
            x.line = out->at[out->count - 1].line;
        if (!msl_push(out, &x))
            return msl_no_memory(p->s);
        if (x.kind == MSL_END)
            return true;
    }
}

bool msl_preprocess(msl_source *s, const char *text, size_t n, msl_tokens *out) {
    msl_preprocessor *p = msl_alloc(&s->arena, sizeof *p);
    if (!p)
        return msl_no_memory(s);
    p->s = s;
    const char *name = s->options->name ? s->options->name : "kernel.metal";
    msl_token nowhere = {.text = ""};
    s->names[0] = msl_copy(&s->arena, name, strlen(name));
    if (!s->names[0])
        return msl_no_memory(s);
    s->files = 0;
    bool ok = enter_text(p, text, n, name, &nowhere) && predefine(p) && output(p, out);
    free(p->input);
    return ok;
}
