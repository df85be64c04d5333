/* Source to library bytes (through the cache), and bytes to a library. */
#include "gpu/core.h"

#include "gpu/texts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MOST_SOURCE ((size_t)64 << 20)
enum { MOST_OPTIONS = 4096 };

/* ---- options ----------------------------------------------------------------------------------------------------- */

static bool is_name(const char *s) {
    if (!s || !*s || (*s >= '0' && *s <= '9'))
        return false;
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] == 0;
}

static bool check_options(sl_gpu_compile_options *o, sl_error *err) {
    if (!o->name)
        o->name = "kernel.metal";
    if (o->define_count > MOST_OPTIONS || o->include_count > MOST_OPTIONS)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: %zu defines and %zu include directories, expected at most %d each",
                       o->name, o->define_count, o->include_count, MOST_OPTIONS);
    if ((o->define_count && !o->defines) || (o->include_count && !o->include_dirs))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: %zu defines at %s and %zu include directories at %s", o->name,
                       o->define_count, o->defines ? "an address" : "NULL", o->include_count,
                       o->include_dirs ? "an address" : "NULL");
    for (size_t i = 0; i < o->define_count; i++) {
        const char *value = o->defines[i].value;
        if (!is_name(o->defines[i].name))
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: define '%s' is no name", o->name,
                           o->defines[i].name ? o->defines[i].name : "");
        if (value && strpbrk(value, "\r\n"))
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: the value of define '%s' has several lines", o->name,
                           o->defines[i].name);
    }
    for (size_t i = 0; i < o->include_count; i++)
        if (!o->include_dirs[i])
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: include directory %zu is NULL", o->name, i);
    return true;
}

/* ---- key --------------------------------------------------------------------------------------------------------- */

static void hash_bytes(XXH3_state_t *h, const void *p, size_t n) {
    uint64_t size = n;
    XXH3_128bits_update(h, &size, sizeof size);
    XXH3_128bits_update(h, p, n);
}

static void hash_text(XXH3_state_t *h, const char *s) {
    hash_bytes(h, s ? s : "", s ? strlen(s) + 1 : 0);
}

/* Everything that the payload is made from. The translated code stands for the translator, its prelude and all that
 * the source includes; a device that compiles the source itself has none, and its includes are read. */
static void hash_source(const sl_gpu *g, XXH3_state_t *h, const gpu_source *s) {
    const sl_gpu_compile_options *o = s->options;
    size_t code_size;
    hash_text(h, SLUICE_VERSION);
    hash_text(h, g->info.device);
    hash_text(h, g->info.family);
    hash_text(h, g->info.system);
    int flags[5] = {g->info.language, o->fast_math, g->check, (int)o->define_count, (int)o->include_count};
    hash_bytes(h, flags, sizeof flags);
    hash_text(h, o->name);
    for (size_t i = 0; i < o->define_count; i++) {
        hash_text(h, o->defines[i].name);
        hash_text(h, o->defines[i].value);
    }
    for (size_t i = 0; i < o->include_count; i++)
        hash_text(h, o->include_dirs[i]);
    hash_bytes(h, s->text, s->size);
    const char *code = msl_module_code(s->module, &code_size);
    hash_bytes(h, code, code_size);
    if (code_size == 0)
        gpu_includes_hash(h, s->text, s->size, o);
    for (const sl_text *t = gpu_texts; code_size == 0 && t->name; t++)
        hash_bytes(h, t->bytes, t->size);
}

static bool make_key(const sl_gpu *g, const gpu_source *s, gpu_key *key, sl_error *err) {
    sl_buf table = {0};
    XXH3_state_t *h = XXH3_createState();
    if (!h || !gpu_table_write(s->module, &table)) {
        XXH3_freeState(h);
        sl_buf_free(&table);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", s->name);
    }
    XXH3_128bits_reset(h);
    hash_source(g, h, s);
    hash_bytes(h, table.data, table.size);
    sl_buf_free(&table);
    XXH128_hash_t v = XXH3_128bits_digest(h);
    XXH3_freeState(h);
    *key = (gpu_key){v.low64, v.high64};
    return true;
}

/* ---- compile ----------------------------------------------------------------------------------------------------- */

static bool compile_new(sl_gpu *g, const gpu_source *s, gpu_key key, void **bytes, size_t *size, sl_error *err) {
    sl_buf table = {0}, payload = {0}, out = {0};
    uint64_t began = sl_now_ns();
    bool ok = g->driver->compile(g->device, s, &payload, err);
    if (ok && !(gpu_table_write(s->module, &table) && gpu_container_write(g, key, &table, &payload, &out)))
        ok = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its code", s->name);
    sl_buf_free(&table);
    sl_buf_free(&payload);
    if (ok && !(*bytes = sl_buf_take(&out, size)))
        ok = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its code", s->name);
    sl_buf_free(&out);
    if (!ok)
        return false;
    gpu_debugf(g, 1, "%s: compiled in %.0f ms, %zu bytes", s->name, (double)(sl_now_ns() - began) * 1e-6, *size);
    gpu_cache_put(g, key, *bytes, *size);
    return true;
}

static bool compile_source(sl_gpu *g, const gpu_source *s, void **bytes, size_t *size, sl_error *err) {
    gpu_key key;
    size_t code_size;
    const char *code = msl_module_code(s->module, &code_size);
    gpu_debug_text(g, 4, s->name, s->text, s->size);
    gpu_debug_text(g, 5, "generated code", code, code_size);
    if (!make_key(g, s, &key, err))
        return false;
    *bytes = gpu_cache_get(g, key, size);
    if (!*bytes)
        return compile_new(g, s, key, bytes, size, err);
    gpu_debugf(g, 1, "%s: from the cache, %zu bytes", s->name, *size);
    return true;
}

static msl_module *translate(const sl_gpu *g, const gpu_source *s, sl_error *err) {
    const sl_gpu_compile_options *o = s->options;
    msl_options m = {
        .name = s->name,
        .defines = o->defines,
        .define_count = o->define_count,
        .include_dirs = o->include_dirs,
        .include_count = o->include_count,
        .target = g->driver->target,
        .language = g->info.language * 10,
    };
    sl_error why = {0};
    msl_module *module = msl_translate(s->text, s->size, &m, &why);
    if (!module && why.code == SL_OK) /* it had no words left either */
        sl_fail(&why, SL_ERR_MEMORY, "%s: out of memory", s->name);
    if (!module && err)
        *err = why;
    return module;
}

bool sl_gpu_compile(sl_gpu *g, const char *source, size_t n, const sl_gpu_compile_options *options, void **bytes,
                    size_t *size, sl_error *err) {
    sl_gpu_compile_options o;
    if (!g || !source || !bytes || !size)
        return sl_fail(err, SL_ERR_ARGUMENT, "sl_gpu_compile: device, source or result is NULL");
    if (!gpu_copy_options(&o, sizeof o, options, "sl_gpu_compile", err) || !check_options(&o, err))
        return false;
    if (n > MOST_SOURCE)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: %zu bytes of source, expected at most %zu", o.name, n, MOST_SOURCE);
    if (!gpu_same_process(g, err))
        return false;
    char *text = sl_strndup(source, n);
    if (!text)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu bytes of source", o.name, n);
    gpu_source s = {.name = o.name, .text = text, .size = n, .options = &o};
    msl_module *module = translate(g, &s, err);
    s.module = module;
    bool ok = module && compile_source(g, &s, bytes, size, err);
    msl_module_free(module);
    free(text);
    return ok;
}

/* ---- library ----------------------------------------------------------------------------------------------------- */

/* A .metallib of Apple's compiler, which has no tables of ours. */
static bool is_metallib(const sl_gpu *g, const void *bytes, size_t size) {
    return size >= 8 && strcmp(g->info.device, "metal") == 0 && memcmp(bytes, "MTLB", 4) == 0;
}

static bool load_container(gpu_library *l, const void *bytes, size_t size, const void **payload, size_t *payload_size,
                           sl_error *err) {
    gpu_container c;
    if (!gpu_container_read(l->o.gpu, bytes, size, &c, err) || !gpu_table_read(c.table, c.table_size, &l->table, err))
        return false;
    l->tabled = true;
    for (size_t i = 0; i < l->table.refused_count; i++)
        sl_logf(&l->o.gpu->log, SL_LOG_WARN, "kernel '%s' is left out: %s", l->table.refused[i].host_name,
                l->table.refused[i].message);
    *payload = c.payload;
    *payload_size = c.payload_size;
    return true;
}

sl_gpu_library *sl_gpu_library_load(sl_gpu *g, const void *bytes, size_t size, sl_error *err) {
    const void *payload = bytes;
    size_t payload_size = size;
    if (!g || !bytes)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "sl_gpu_library_load: device or bytes are NULL");
    gpu_library *l = gpu_object_new(g, GPU_LIBRARY, sizeof *l, err);
    if (!l)
        return NULL;
    if (is_metallib(g, bytes, size))
        sl_logf(&g->log, SL_LOG_WARN,
                "a .metallib has no table of its kernels' arguments: what is bound is not checked");
    if (is_metallib(g, bytes, size) || load_container(l, bytes, size, &payload, &payload_size, err))
        l->driver = g->driver->library_load(g->device, payload, payload_size, err);
    if (!l->driver) {
        gpu_drop(l);
        return NULL;
    }
    return gpu_handle_new(l, err);
}

sl_gpu_library *sl_gpu_library_new(sl_gpu *g, const char *source, size_t n, const sl_gpu_compile_options *options,
                                   sl_error *err) {
    void *bytes;
    size_t size;
    if (!sl_gpu_compile(g, source, n, options, &bytes, &size, err))
        return NULL;
    sl_gpu_library *l = sl_gpu_library_load(g, bytes, size, err);
    free(bytes);
    return l;
}

void gpu_library_destroy(gpu_library *l) {
    if (l->driver)
        l->o.gpu->driver->library_free(l->o.gpu->device, l->driver);
    gpu_table_free(&l->table);
}

void sl_gpu_library_free(sl_gpu_library *l) {
    gpu_drop(gpu_handle_end(l, GPU_LIBRARY));
}

size_t sl_gpu_library_count(const sl_gpu_library *handle) {
    gpu_library *l = gpu_take(handle, GPU_LIBRARY, NULL);
    size_t n = l ? l->table.kernel_count : 0;
    gpu_drop(l);
    return n;
}

const char *sl_gpu_library_entry(const sl_gpu_library *handle, size_t i) {
    gpu_library *l = gpu_take(handle, GPU_LIBRARY, NULL);
    const char *name = l && i < l->table.kernel_count ? l->table.kernels[i].name : NULL;
    gpu_drop(l);
    return name;
}
