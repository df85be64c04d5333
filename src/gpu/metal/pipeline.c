/* An entry point with its function constants to a pipeline state and its limits. */
#include "gpu/metal/metal.h"

#include <string.h>

/* ---- function constants ------------------------------------------------------------------------------------------ */

/* Nearest half, ties to even; overflow is infinity. */
static uint16_t half_bits(float value) {
    uint32_t f;
    memcpy(&f, &value, sizeof f);
    uint16_t sign = (uint16_t)(f >> 16 & 0x8000);
    int32_t exponent = (int32_t)(f >> 23 & 0xff) - 112;
    uint32_t mantissa = f & 0x7fffff;
    if (exponent >= 31) {
        bool nan = (f & 0x7fffffff) > 0x7f800000;
        return (uint16_t)(sign | 0x7c00 | (nan ? 0x200 : 0));
    }
    int shift = 13;
    if (exponent <= 0) {
        if (exponent < -10)
            return sign;
        mantissa |= 0x800000;
        shift = 14 - exponent;
        exponent = 0;
    }
    uint32_t kept = mantissa >> shift, lost = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    uint32_t bits = ((uint32_t)exponent << 10) + kept + (lost > half || (lost == half && (kept & 1)));
    return (uint16_t)(sign | bits);
}

static void set_constant(const metal_api *api, metal_id values, const sl_gpu_constant *c) {
    static const metal_uint types[] = {
        [SL_GPU_BOOL] = METAL_TYPE_BOOL,   [SL_GPU_INT] = METAL_TYPE_INT,     [SL_GPU_UINT] = METAL_TYPE_UINT,
        [SL_GPU_FLOAT] = METAL_TYPE_FLOAT, [SL_GPU_SHORT] = METAL_TYPE_SHORT, [SL_GPU_USHORT] = METAL_TYPE_USHORT,
        [SL_GPU_HALF] = METAL_TYPE_HALF,
    };
    union {
        bool b;
        int16_t s;
        uint16_t us;
        uint32_t u;
        float f;
    } v = {0};
    switch (c->type) {
    case SL_GPU_BOOL:
        v.b = c->value.b;
        break;
    case SL_GPU_SHORT:
        v.s = (int16_t)c->value.i;
        break;
    case SL_GPU_USHORT:
        v.us = (uint16_t)c->value.u;
        break;
    case SL_GPU_HALF:
        v.us = half_bits(c->value.f);
        break;
    case SL_GPU_FLOAT:
        v.f = c->value.f;
        break;
    default:
        v.u = c->value.u;
    }
    METAL_SEND(api, setConstantValue, values, &v, types[c->type], (metal_uint)c->id);
}

/* ---- function ---------------------------------------------------------------------------------------------------- */

static void list_names(const metal_api *api, metal_id library, sl_buf *out) {
    enum { MOST = 8 };
    metal_id names = METAL_SEND(api, functionNames, library);
    metal_uint n = names ? METAL_SEND(api, count, names) : 0;
    for (metal_uint i = 0; i < n && i < MOST; i++)
        sl_buf_printf(out, "%s%s", i ? ", " : "", metal_text(api, METAL_SEND(api, objectAtIndex, names, i)));
    if (n > MOST)
        sl_buf_printf(out, " and %lu more", n - MOST);
    if (!n)
        sl_buf_puts(out, "nothing");
}

static void fail_function(const metal_api *api, metal_id library, const char *name, sl_error *err) {
    sl_buf names = {0};
    list_names(api, library, &names);
    sl_fail(err, SL_ERR_ARGUMENT, "kernel %s is not in the library, which has %s", name,
            names.data ? names.data : "others");
    sl_buf_free(&names);
}

/* The function with its constants set; owned. */
static metal_id specialise(const metal_api *api, metal_id library, const char *name, const sl_gpu_constant *constants,
                           size_t count, sl_error *err) {
    metal_id error = NULL, values = METAL_SEND(api, new_, api->cls.MTLFunctionConstantValues);
    if (!values)
        return sl_fail_null(err, SL_ERR_MEMORY, "kernel %s: Metal gives no constant values", name);
    for (size_t i = 0; i < count; i++)
        set_constant(api, values, &constants[i]);
    metal_id function = METAL_SEND(api, newSpecialised, library, metal_string(api, name), values, &error);
    metal_release(api, values);
    if (!function)
        metal_fail(api, err, SL_ERR_ARGUMENT, error, "kernel %s", name);
    return function;
}

/* Owned. A function that has constants must be specialised, though all of them are optional and none is given. */
static metal_id new_function(const metal_api *api, metal_id library, const char *name, const sl_gpu_constant *constants,
                             size_t count, sl_error *err) {
    metal_id string = metal_string(api, name);
    metal_id function = string ? METAL_SEND(api, newFunction, library, string) : NULL;
    if (!function) {
        fail_function(api, library, name, err);
        return NULL;
    }
    metal_id has = METAL_SEND(api, functionConstantsDictionary, function);
    if (count == 0 && (!has || METAL_SEND(api, count, has) == 0))
        return function;
    metal_release(api, function);
    return specialise(api, library, name, constants, count, err);
}

/* ---- pipeline ---------------------------------------------------------------------------------------------------- */

/* Owned. */
static metal_id new_state(gpu_device *d, metal_id function, const char *name, sl_error *err) {
    const metal_api *api = &d->api;
    metal_id error = NULL, descriptor = METAL_SEND(api, new_, api->cls.MTLComputePipelineDescriptor);
    if (!descriptor)
        return sl_fail_null(err, SL_ERR_MEMORY, "kernel %s: Metal gives no pipeline descriptor", name);
    METAL_SEND(api, setComputeFunction, descriptor, function);
    METAL_SEND(api, setLabel, descriptor, metal_string(api, name));
    metal_id state = metal_archive_pipeline(d, descriptor, &error);
    metal_release(api, descriptor);
    if (!state)
        metal_fail(api, err, SL_ERR_COMPILE, error, "kernel %s: no pipeline", name);
    return state;
}

static bool read_limits(const metal_api *api, metal_id state, const char *name, gpu_pipeline_limits *limits,
                        sl_error *err) {
    limits->max_threads = (uint32_t)METAL_SEND(api, maxTotalThreadsPerThreadgroup, state);
    limits->simd_width = (uint32_t)METAL_SEND(api, threadExecutionWidth, state);
    limits->threadgroup_memory = (uint32_t)METAL_SEND(api, staticThreadgroupMemoryLength, state);
    if (limits->max_threads && limits->simd_width)
        return true;
    return sl_fail(err, SL_ERR_DEVICE, "kernel %s: its pipeline allows %u threads of width %u", name,
                   limits->max_threads, limits->simd_width);
}

static metal_id pipeline_in_pool(gpu_device *d, metal_id library, const char *name, const sl_gpu_constant *constants,
                                 size_t count, gpu_pipeline_limits *limits, sl_error *err) {
    metal_id function = new_function(&d->api, library, name, constants, count, err);
    metal_id state = function ? new_state(d, function, name, err) : NULL;
    metal_release(&d->api, function);
    if (state && !read_limits(&d->api, state, name, limits, err)) {
        metal_release(&d->api, state);
        return NULL;
    }
    return state;
}

void *metal_pipeline_new(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                         size_t count, gpu_pipeline_limits *limits, sl_error *err) {
    if (metal_in_other_process(d, err))
        return NULL;
    void *pool = metal_pool_push(&d->api);
    metal_id state = pipeline_in_pool(d, library, kernel->name, constants, count, limits, err);
    metal_pool_pop(&d->api, pool);
    return state;
}

void metal_pipeline_free(gpu_device *d, void *pipeline) {
    void *pool = metal_pool_push(&d->api);
    metal_release(&d->api, pipeline);
    metal_pool_pop(&d->api, pool);
}
