/* Libraries, functions, pipelines, archives of pipelines. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct options {
    object base;
    uinteger language;
    bool fast, safe_functions;
} options;

typedef struct library {
    object base;
    code *code;
} library;

typedef struct function {
    object base;
    library *library; /* held */
    char *name;
    bool specialised;
    constant_value constants[CONSTANTS];
} function;

typedef struct values {
    object base;
    constant_value constants[CONSTANTS];
} values;

typedef struct descriptor {
    object base;
    object *function, *label, *archives; /* held */
} descriptor;

typedef struct archive {
    object base;
    uint64_t *keys;
    size_t count, capacity;
} archive;

typedef struct archive_descriptor {
    object base;
    object *url;
} archive_descriptor;

static class *options_class, *library_class, *function_class, *values_class, *descriptor_class, *pipeline_class,
    *archive_class, *archive_descriptor_class;

/* ---- compile -------------------------------------------------------------------------------------------------------
 */

static void options_language(options *o, selector s, uinteger language) {
    o->language = language;
}

static void options_math_mode(options *o, selector s, long mode) {
    o->fast = mode == 2;
}

static void options_functions(options *o, selector s, long functions) {
    o->safe_functions = functions == 1;
}

static void options_fast_math(options *o, selector s, bool fast) {
    o->fast = fast;
    o->safe_functions = !fast;
}

static void library_gone(object *o) {
    code_free(((library *)o)->code);
}

object *library_from_source(const char *source, bool fast_math, int language, object **error) {
    char message[4096] = "";
    code *c = code_new(source, fast_math, language, message, sizeof message);
    if (!c) {
        set_error(error, "MTLLibraryErrorDomain", 3, message);
        return NULL;
    }
    library *l = (library *)make_object(library_class);
    l->code = c;
    return &l->base;
}

static object *device_library(object *o, selector s, object *source, options *opts, object **error) {
    if (!source || (opts && opts->base.isa != options_class)) {
        violate("newLibraryWithSource: without a source");
        return NULL;
    }
    if (fault_wanted(&control.fail_library, error))
        return NULL;
    int language = opts ? (int)(opts->language >> 16) * 10 + (int)(opts->language & 0xffff) : 0;
    control.libraries_compiled++;
    control.language = language;
    control.fast_math = !opts || opts->fast;
    control.safe_functions = opts && opts->safe_functions;
    return library_from_source(string_text(source), control.fast_math, language, error);
}

/* MTLB, u32 length, source, ENDT. */
static object *device_library_data(object *o, selector s, object *data, object **error) {
    size_t size;
    uint32_t length = 0;
    const char *bytes = data_bytes(data, &size);
    if (fault_wanted(&control.fail_library, error))
        return NULL;
    if (size >= 8)
        memcpy(&length, bytes + 4, 4);
    if (size < 12 || memcmp(bytes, "MTLB", 4) != 0 || memcmp(bytes + size - 4, "ENDT", 4) != 0 || length != size - 12) {
        set_error(error, "MTLLibraryErrorDomain", 1, "Invalid library file");
        return NULL;
    }
    char *source = sl_strndup(bytes + 8, length);
    object *made = library_from_source(source, false, 31, error);
    free(source);
    return made;
}

static object *library_names(library *l, selector s) {
    size_t n = code_count(l->code);
    object **names = calloc(n + 1, sizeof *names);
    for (size_t i = 0; i < n; i++)
        names[i] = make_string(code_name(l->code, i));
    object *made = make_array(names, n);
    for (size_t i = 0; i < n; i++)
        release_object(names[i]);
    free(names);
    return autorelease_object(made);
}

/* ---- functions ------------------------------------------------------------------------------------------------------
 */

static size_t constant_size(uinteger type) {
    switch (type) {
    case 53:
        return 1;
    case 16:
    case 37:
    case 41:
        return 2;
    case 3:
    case 29:
    case 33:
        return 4;
    }
    return 0;
}

static void values_set(values *v, selector s, const void *p, uinteger type, uinteger index) {
    size_t size = constant_size(type);
    if (index >= CONSTANTS || !size || !p) {
        violate("setConstantValue: %lu of type %lu", index, type);
        return;
    }
    v->constants[index] = (constant_value){.set = true, .type = (int)type};
    memcpy(v->constants[index].bytes, p, size);
}

static void function_gone(object *o) {
    function *f = (function *)o;
    release_object(&f->library->base);
    free(f->name);
}

static function *find_function(library *l, const object *name) {
    for (size_t i = 0; i < code_count(l->code); i++)
        if (strcmp(code_name(l->code, i), string_text(name)) == 0) {
            function *f = (function *)make_object(function_class);
            f->library = (library *)retain_object(&l->base);
            f->name = sl_strdup(string_text(name));
            return f;
        }
    return NULL;
}

static object *library_function(library *l, selector s, object *name) {
    if (name)
        return (object *)find_function(l, name);
    violate("newFunctionWithName: without a name");
    return NULL;
}

static object *library_specialised(library *l, selector s, object *name, values *v, object **error) {
    if (!name || !v || v->base.isa != values_class) {
        violate("newFunctionWithName:constantValues: without a name or values");
        return NULL;
    }
    if (fault_wanted(&control.fail_function, error))
        return NULL;
    function *f = find_function(l, name);
    if (f) {
        f->specialised = true;
        memcpy(f->constants, v->constants, sizeof f->constants);
    }
    return (object *)f;
}

/* Of a dictionary only the count is asked for. */
static object *function_constants(function *f, selector s) {
    object *items[CONSTANTS];
    size_t n = code_constants(f->library->code, f->name);
    for (size_t i = 0; i < n; i++)
        items[i] = &f->base;
    return autorelease_object(make_array(items, n));
}

/* ---- pipelines
 * ------------------------------------------------------------------------------------------------------- */

static void descriptor_gone(object *o) {
    descriptor *d = (descriptor *)o;
    release_object(d->function);
    release_object(d->label);
    release_object(d->archives);
}

static void hold(object **place, object *value) {
    retain_object(value);
    release_object(*place);
    *place = value;
}

static void descriptor_function(descriptor *d, selector s, function *f) {
    if (!f || f->base.isa != function_class) {
        violate("setComputeFunction: of nil");
        return;
    }
    hold(&d->function, &f->base);
}

static void descriptor_label(descriptor *d, selector s, object *label) {
    hold(&d->label, label);
}

static void descriptor_archives(descriptor *d, selector s, object *archives) {
    hold(&d->archives, archives);
}

static uint64_t pipeline_key(const function *f) {
    const char *source = code_source(f->library->code);
    uint64_t key = XXH3_64bits(source, strlen(source));
    key = XXH3_64bits_withSeed(f->name, strlen(f->name), key);
    return XXH3_64bits_withSeed(f->constants, sizeof f->constants, key);
}

static bool archive_has(const archive *a, uint64_t key) {
    for (size_t i = 0; i < a->count; i++)
        if (a->keys[i] == key)
            return true;
    return false;
}

static bool in_archives(const descriptor *d) {
    for (size_t i = 0; d->archives && i < array_count(d->archives); i++)
        if (archive_has((archive *)array_item(d->archives, i), pipeline_key((function *)d->function)))
            return true;
    return false;
}

static void pipeline_gone(object *o) {
    pipeline *p = (pipeline *)o;
    entry_free(p->entry);
    release_object(p->function);
    free(p->label);
}

bool is_pipeline(const object *o) {
    return o && o->isa == pipeline_class;
}

static object *device_pipeline(object *o, selector s, descriptor *d, uinteger flags, void *reflection, object **error) {
    char message[4096] = "";
    if (!d || d->base.isa != descriptor_class || !d->function) {
        violate("a pipeline of a descriptor without a function");
        return NULL;
    }
    function *f = (function *)d->function;
    if (!f->specialised && code_constants(f->library->code, f->name)) {
        violate("a pipeline of a function whose constants were not set");
        return NULL;
    }
    bool known = in_archives(d);
    if (!known && (flags & 4)) {
        set_error(error, "MTLBinaryArchiveDomain", 2, "not in the archive");
        return NULL;
    }
    if (fault_wanted(&control.fail_pipeline, error))
        return NULL;
    entry *e = entry_new(f->library->code, f->name, f->constants, message, sizeof message);
    if (!e) {
        set_error(error, "AGXMetalG14X", 3, message);
        return NULL;
    }
    *(known ? &control.pipelines_from_archive : &control.pipelines_compiled) += 1;
    pipeline *p = (pipeline *)make_object(pipeline_class);
    p->entry = e;
    p->function = retain_object(d->function);
    p->label = sl_strdup(d->label ? string_text(d->label) : "");
    return &p->base;
}

static uinteger pipeline_max_threads(pipeline *p, selector s) {
    uint32_t own = p->entry->max_threads;
    return own && own < control.pipeline_threads ? own : control.pipeline_threads;
}

static uinteger pipeline_width(pipeline *p, selector s) {
    return control.pipeline_width;
}

static uinteger pipeline_static_memory(pipeline *p, selector s) {
    return entry_static_memory(p->entry);
}

/* ---- archives
 * -------------------------------------------------------------------------------------------------------- */

static const char archive_marker[] = "STANDIN-ARCHIVE\n";

static void archive_descriptor_gone(object *o) {
    release_object(((archive_descriptor *)o)->url);
}

static void archive_descriptor_url(archive_descriptor *d, selector s, object *url) {
    hold(&d->url, url);
}

static void archive_gone(object *o) {
    free(((archive *)o)->keys);
}

static void archive_add_key(archive *a, uint64_t key) {
    void *keys = a->keys;
    if (!sl_grow(&keys, &a->capacity, a->count + 1, sizeof key))
        abort();
    a->keys = keys;
    a->keys[a->count++] = key;
}

/* False where the file is no archive. */
static bool archive_read(archive *a, const char *path) {
    size_t size, marker = sizeof archive_marker - 1;
    char *text = sl_read_text(path, 1 << 20, &size, NULL);
    bool ok = text && size >= marker && memcmp(text, archive_marker, marker) == 0 && (size - marker) % 8 == 0;
    for (size_t at = marker; ok && at < size; at += 8) {
        uint64_t key;
        memcpy(&key, text + at, 8);
        archive_add_key(a, key);
    }
    free(text);
    return ok;
}

static object *device_archive(object *o, selector s, archive_descriptor *d, object **error) {
    if (!d || d->base.isa != archive_descriptor_class) {
        violate("newBinaryArchiveWithDescriptor: of nil");
        return NULL;
    }
    archive *a = (archive *)make_object(archive_class);
    if (d->url && !archive_read(a, url_path(d->url))) {
        release_object(&a->base);
        set_error(error, "MTLBinaryArchiveDomain", 1, "Invalid file: the magic does not match");
        return NULL;
    }
    return &a->base;
}

static signed char archive_add(archive *a, selector s, descriptor *d, object **error) {
    if (!d || !d->function)
        violate("addComputePipelineFunctionsWithDescriptor: without a function");
    else if (!fault_wanted(&control.fail_archive, error))
        archive_add_key(a, pipeline_key((function *)d->function));
    else
        return false;
    return true;
}

static signed char archive_write(archive *a, selector s, object *url, object **error) {
    FILE *f = url ? fopen(url_path(url), "wb") : NULL;
    bool ok = f && fwrite(archive_marker, sizeof archive_marker - 1, 1, f) == 1 &&
              fwrite(a->keys, 8, a->count, f) == a->count;
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok)
        set_error(error, "MTLBinaryArchiveDomain", 1, "cannot be written");
    return ok;
}

/* ---- registration
 * ---------------------------------------------------------------------------------------------------- */

static void register_compile(void) {
    static const method_row option_methods[] = {{"setLanguageVersion:", options_language},
                                                {"setMathMode:", options_math_mode},
                                                {"setMathFloatingPointFunctions:", options_functions},
                                                {"setFastMathEnabled:", options_fast_math},
                                                {0}};
    static const method_row library_methods[] = {{"functionNames", library_names},
                                                 {"newFunctionWithName:", library_function},
                                                 {"newFunctionWithName:constantValues:error:", library_specialised},
                                                 {0}};
    options_class = make_class("MTLCompileOptions", sizeof(options), NULL);
    add_methods(options_class, option_methods);
    library_class = make_class("MTLLibrary", sizeof(library), library_gone);
    add_methods(library_class, library_methods);
    function_class = make_class("MTLFunction", sizeof(function), function_gone);
    add_methods(function_class, (const method_row[]){{"functionConstantsDictionary", function_constants}, {0}});
    values_class = make_class("MTLFunctionConstantValues", sizeof(values), NULL);
    add_methods(values_class, (const method_row[]){{"setConstantValue:type:atIndex:", values_set}, {0}});
}

static void register_pipelines(void) {
    static const method_row descriptor_methods[] = {{"setComputeFunction:", descriptor_function},
                                                    {"setLabel:", descriptor_label},
                                                    {"setBinaryArchives:", descriptor_archives},
                                                    {0}};
    static const method_row pipeline_methods[] = {{"maxTotalThreadsPerThreadgroup", pipeline_max_threads},
                                                  {"threadExecutionWidth", pipeline_width},
                                                  {"staticThreadgroupMemoryLength", pipeline_static_memory},
                                                  {0}};
    static const method_row archive_methods[] = {{"addComputePipelineFunctionsWithDescriptor:error:", archive_add},
                                                 {"serializeToURL:error:", archive_write},
                                                 {0}};
    descriptor_class = make_class("MTLComputePipelineDescriptor", sizeof(descriptor), descriptor_gone);
    add_methods(descriptor_class, descriptor_methods);
    pipeline_class = make_class("MTLComputePipelineState", sizeof(pipeline), pipeline_gone);
    add_methods(pipeline_class, pipeline_methods);
    archive_class = make_class("MTLBinaryArchive", sizeof(archive), archive_gone);
    add_methods(archive_class, archive_methods);
    archive_descriptor_class =
        make_class("MTLBinaryArchiveDescriptor", sizeof(archive_descriptor), archive_descriptor_gone);
    add_methods(archive_descriptor_class, (const method_row[]){{"setUrl:", archive_descriptor_url}, {0}});
}

void register_library(void) {
    static const method_row device_methods[] = {
        {"newLibraryWithSource:options:error:", device_library},
        {"newLibraryWithData:error:", device_library_data},
        {"newComputePipelineStateWithDescriptor:options:reflection:error:", device_pipeline},
        {"newBinaryArchiveWithDescriptor:error:", device_archive},
        {0}};
    register_compile();
    register_pipelines();
    add_methods(device_class, device_methods);
}
