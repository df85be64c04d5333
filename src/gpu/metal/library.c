/* Source to a payload, a payload to a library.
 *
 * Metal can hand out no compiled bytes of a source (an undocumented export exists and is not a .metallib), so a payload
 * is the flattened text after a line that says how to compile it, or a .metallib where one was made: by the compiler
 * service or by Apple's tools. The system caches what it compiled from a text; pipelines are kept in archive.c. */
#include "gpu/metal/metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCE_MARKER "SLUICE-MSL-1"

static const char metallib_head[4] = {'M', 'T', 'L', 'B'}, metallib_tail[4] = {'E', 'N', 'D', 'T'};

bool metal_library_markers(const void *bytes, size_t size) {
    const char *b = bytes;
    return size >= 8 && memcmp(b, metallib_head, 4) == 0 && memcmp(b + size - 4, metallib_tail, 4) == 0;
}

/* ---- how a text is compiled -------------------------------------------------------------------------------------- */

/* Metal's default is fast math; here it is what was asked for, on every system by the call it has. */
static void set_math(const metal_api *api, metal_id options, bool fast) {
    if (!metal_responds(api, options, api->sel.setMathMode)) {
        METAL_SEND(api, setFastMathEnabled, options, fast);
        return;
    }
    METAL_SEND(api, setMathMode, options, fast ? METAL_MATH_FAST : METAL_MATH_SAFE);
    if (metal_responds(api, options, api->sel.setMathFloatingPointFunctions))
        METAL_SEND(api, setMathFloatingPointFunctions, options,
                   fast ? METAL_MATH_FUNCTIONS_FAST : METAL_MATH_FUNCTIONS_PRECISE);
}

static void log_diagnostics(gpu_device *d, sl_log_level level, const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n)
            sl_logf(&d->base.log, level, "metal: %.*s", (int)(n < 1000 ? n : 1000), text);
        text += n + (text[n] == '\n');
    }
}

/* Owned library of a text; a library that comes with an error has warnings only. */
static metal_id library_from_text(gpu_device *d, const char *name, const char *text, bool fast, sl_error *err) {
    const metal_api *api = &d->api;
    metal_id source = metal_string(api, text);
    if (!source)
        return sl_fail_null(err, SL_ERR_COMPILE, "%s: the source is not UTF-8", name);
    metal_id options = METAL_SEND(api, new_, api->cls.MTLCompileOptions), error = NULL;
    if (!options)
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: Metal gives no compile options", name);
    int language = d->base.info.language;
    METAL_SEND(api, setLanguageVersion, options, (metal_uint)(language / 10) << 16 | (metal_uint)(language % 10));
    set_math(api, options, fast);
    metal_id library = METAL_SEND(api, newLibraryWithSource, d->device, source, options, &error);
    metal_release(api, options);
    const char *said = error ? metal_text(api, METAL_SEND(api, localizedDescription, error)) : "";
    log_diagnostics(d, library ? SL_LOG_DEBUG : SL_LOG_INFO, said);
    if (library)
        return library;
    if (*said && strstr(said, "error: "))
        metal_fail_diagnostic(err, name, said);
    else
        metal_fail(api, err, SL_ERR_COMPILE, error, "%s", name);
    return NULL;
}

metal_id metal_library_from_data(gpu_device *d, const void *bytes, size_t size, sl_error *err) {
    const metal_api *api = &d->api;
    if (!metal_library_markers(bytes, size))
        return sl_fail_null(err, SL_ERR_FORMAT, "metal: %zu bytes of a library do not begin MTLB and end ENDT", size);
    metal_id error = NULL, data = api->data_create(bytes, size, NULL, NULL);
    if (!data)
        return sl_fail_null(err, SL_ERR_MEMORY, "metal: no memory for a library of %zu bytes", size);
    metal_id library = METAL_SEND(api, newLibraryWithData, d->device, data, &error);
    metal_release(api, data);
    if (!library)
        metal_fail(api, err, SL_ERR_FORMAT, error, "metal: a library of %zu bytes", size);
    return library;
}

/* ---- payloads ---------------------------------------------------------------------------------------------------- */

/* The payload's text after its first line; NULL where it is no such payload. */
static const char *payload_text(const char *payload, size_t size, bool *fast) {
    static const size_t marker = sizeof SOURCE_MARKER - 1;
    if (size < marker + 3 || memcmp(payload, SOURCE_MARKER, marker) != 0 || payload[marker] != ' ' ||
        payload[marker + 2] != '\n' || memchr(payload, 0, size))
        return NULL;
    if (payload[marker + 1] != 'f' && payload[marker + 1] != 's')
        return NULL;
    *fast = payload[marker + 1] == 'f';
    return payload + marker + 3;
}

void metal_compiled_forget(gpu_device *d) {
    metal_release(&d->api, d->compiled.library);
    free(d->compiled.payload);
    d->compiled = (metal_compiled){0};
}

/* Takes over the library. */
static void remember(gpu_device *d, const sl_buf *payload, metal_id library) {
    metal_compiled made = {sl_strndup(payload->data, payload->size), payload->size, library};
    pthread_mutex_lock(&d->lock);
    metal_compiled_forget(d);
    d->compiled = made;
    if (!made.payload)
        metal_compiled_forget(d);
    pthread_mutex_unlock(&d->lock);
}

/* The library of the last compile, if it was of this payload; owned by the caller, who gets it once. */
static metal_id recall(gpu_device *d, const void *payload, size_t size) {
    metal_id library = NULL;
    pthread_mutex_lock(&d->lock);
    metal_compiled *c = &d->compiled;
    if (c->library && c->size == size && memcmp(c->payload, payload, size) == 0) {
        library = c->library;
        c->library = NULL;
        metal_compiled_forget(d);
    }
    pthread_mutex_unlock(&d->lock);
    return library;
}

static bool compile_in_pool(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err) {
    bool fast = s->options->fast_math;
    sl_buf text = {0};
    bool ok = metal_source_flatten(s, &text, err);
    if (ok && metal_service_compile(d, text.data, text.size, fast, payload)) {
        sl_buf_free(&text);
        return true;
    }
    metal_id library = ok ? library_from_text(d, s->name, text.data, fast, err) : NULL;
    if (library) {
        sl_buf_printf(payload, SOURCE_MARKER " %c\n", fast ? 'f' : 's');
        sl_buf_append(payload, text.data, text.size);
        if (payload->failed) {
            metal_release(&d->api, library);
            ok = sl_fail(err, SL_ERR_MEMORY, "metal: no memory for a library's bytes");
        } else {
            remember(d, payload, library);
        }
    }
    sl_buf_free(&text);
    return ok && library;
}

bool metal_compile(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err) {
    if (metal_in_other_process(d, err))
        return false;
    void *pool = metal_pool_push(&d->api);
    bool ok = compile_in_pool(d, s, payload, err);
    metal_pool_pop(&d->api, pool);
    return ok;
}

static metal_id load_in_pool(gpu_device *d, const void *payload, size_t size, sl_error *err) {
    metal_id library = recall(d, payload, size);
    if (library)
        return library;
    bool fast;
    const char *text = payload_text(payload, size, &fast);
    if (!text)
        return metal_library_from_data(d, payload, size, err);
    char *copy = sl_strndup(text, size - (size_t)(text - (const char *)payload));
    if (!copy)
        return sl_fail_null(err, SL_ERR_MEMORY, "metal: no memory for a library of %zu bytes", size);
    library = library_from_text(d, "library", copy, fast, err);
    free(copy);
    return library;
}

void *metal_library_load(gpu_device *d, const void *payload, size_t size, sl_error *err) {
    if (metal_in_other_process(d, err))
        return NULL;
    void *pool = metal_pool_push(&d->api);
    metal_id library = load_in_pool(d, payload, size, err);
    metal_pool_pop(&d->api, pool);
    return library;
}

void metal_library_free(gpu_device *d, void *library) {
    void *pool = metal_pool_push(&d->api);
    metal_release(&d->api, library);
    metal_pool_pop(&d->api, pool);
}
