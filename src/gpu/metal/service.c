/* The system's own compiler, called as Metal calls it: source to .metallib bytes, which Metal itself hands out to
 * nobody. It is a private framework, so it is used only where SLUICE_METAL_SERVICE=1 asks for it and a first compile
 * gave a library that loads; any failure later falls back to newLibraryWithSource. */
#include "gpu/metal/metal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char framework[] = "/System/Library/PrivateFrameworks/MTLCompiler.framework/MTLCompiler";

enum { REQUEST_COMPILE = 13, BLOCK_IS_GLOBAL = 1 << 28 };

/* A closure as the compiler would lay it out: the reply is called with it before the request returns. */
typedef struct reply_block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct reply_block *self, int32_t error, const void *data, size_t size, const char *message);
    const struct reply_descriptor { unsigned long reserved, size; } * descriptor;
    sl_buf *out;
} reply_block;

typedef void *(*service_create_fn)(const char *name);
typedef void (*service_build_fn)(void *service, void *unused, int kind, const void *request, size_t size,
                                 reply_block *reply);

/* The reply: 8 bytes, u32 length of a header, u32 length of warnings, header, warnings, library. */
static void take_reply(reply_block *self, int32_t error, const void *data, size_t size, const char *message) {
    uint32_t lengths[2];
    if (error || !data || size < 16)
        return;
    memcpy(lengths, (const char *)data + 8, sizeof lengths);
    uint64_t skip = (uint64_t)lengths[0] + lengths[1];
    if (skip < size)
        sl_buf_append(self->out, (const char *)data + skip, size - (size_t)skip);
}

static void put_u64(sl_buf *b, uint64_t v) {
    sl_buf_append(b, &v, sizeof v);
}

/* u64 length of the padded source, u64 length of the flags, both ended by NULs. Lengths are bytes, not characters. */
static void build_request(const gpu_device *d, const char *text, size_t size, bool fast_math, sl_buf *out) {
    static const char zeros[4];
    int language = d->base.info.language;
    char flags[160];
    int n = snprintf(flags, sizeof flags,
                     "%s -ffp-contract=off -std=metal%d.%d --driver-mode=metal -x metal -fno-caret-diagnostics",
                     fast_math ? "-ffast-math" : "-fno-fast-math", language / 10, language % 10);
    size_t padded = size / 4 * 4 + 4;
    put_u64(out, padded);
    put_u64(out, (uint64_t)n + 1);
    sl_buf_append(out, text, size);
    sl_buf_append(out, zeros, padded - size);
    sl_buf_append(out, flags, (size_t)n + 1);
}

/* What came back, "" where it is no library. */
static void ask(gpu_device *d, const sl_buf *request, sl_buf *reply) {
    static const struct reply_descriptor descriptor = {0, sizeof(reply_block)};
    service_build_fn build;
    memcpy(&build, &d->service.build, sizeof build);
    reply_block block = {
        metal_api_symbol(&d->api, "_NSConcreteGlobalBlock"), BLOCK_IS_GLOBAL, 0, take_reply, &descriptor, reply};
    pthread_mutex_lock(&d->lock);
    build(d->service.handle, NULL, REQUEST_COMPILE, request->data, request->size, &block);
    pthread_mutex_unlock(&d->lock);
}

bool metal_service_compile(gpu_device *d, const char *text, size_t size, bool fast_math, sl_buf *out) {
    if (!d->service.handle)
        return false;
    sl_buf request = {0}, reply = {0};
    build_request(d, text, size, fast_math, &request);
    if (!request.failed)
        ask(d, &request, &reply);
    bool ok = !reply.failed && reply.data && metal_library_markers(reply.data, reply.size) &&
              sl_buf_append(out, reply.data, reply.size);
    sl_buf_free(&request);
    sl_buf_free(&reply);
    return ok;
}

static bool self_test(gpu_device *d) {
    static const char source[] = "#include <metal_stdlib>\n"
                                 "kernel void sluice_self_test(device float *x [[buffer(0)]],\n"
                                 "                             uint i [[thread_position_in_grid]]) { x[i] += 1.0f; }\n";
    sl_buf bytes = {0};
    bool ok = metal_service_compile(d, source, sizeof source - 1, false, &bytes);
    metal_id library = ok ? metal_library_from_data(d, bytes.data, bytes.size, NULL) : NULL;
    metal_id names = library ? METAL_SEND(&d->api, functionNames, library) : NULL;
    ok = names && METAL_SEND(&d->api, count, names) == 1;
    metal_release(&d->api, library);
    sl_buf_free(&bytes);
    return ok;
}

bool metal_service_open(gpu_device *d, sl_error *err) {
    int wanted;
    if (!gpu_env_digit("SLUICE_METAL_SERVICE", 1, &wanted, err))
        return false;
    if (!wanted)
        return true;
    if (!d->api.stand_in)
        dlopen(framework, RTLD_NOW | RTLD_LOCAL); /* stays: it cannot be unloaded */
    void *create = metal_api_symbol(&d->api, "MTLCodeGenServiceCreate");
    d->service.build = metal_api_symbol(&d->api, "MTLCodeGenServiceBuildRequest");
    if (create && d->service.build) {
        service_create_fn make;
        memcpy(&make, &create, sizeof make);
        d->service.handle = make("sluice");
    }
    if (d->service.handle && !self_test(d))
        metal_service_close(d);
    sl_logf(&d->base.log, SL_LOG_INFO, "metal: the system's compiler service is %s",
            d->service.handle ? "in use" : "not usable here");
    return true;
}

void metal_service_close(gpu_device *d) {
    d->service = (metal_service){0}; /* the service has no call to end it */
}
