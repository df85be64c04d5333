/* Where the functions of the Objective-C runtime and of Metal come from. */
#include "gpu/metal/metal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* CoreGraphics: a process without it is given no default device. */
static const char *const system_libraries[] = {
    "/usr/lib/libobjc.A.dylib",
    "/System/Library/Frameworks/Foundation.framework/Foundation",
    "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",
    "/System/Library/Frameworks/Metal.framework/Metal",
};

/* dlsym's object pointers become function pointers by their bytes. */
static const struct {
    const char *name;
    size_t member;
} symbols[] = {
    {"objc_msgSend", offsetof(metal_api, send)},
    {"sel_registerName", offsetof(metal_api, register_name)},
    {"objc_getClass", offsetof(metal_api, get_class)},
    {"objc_autoreleasePoolPush", offsetof(metal_api, pool_push)},
    {"objc_autoreleasePoolPop", offsetof(metal_api, pool_pop)},
    {"MTLCreateSystemDefaultDevice", offsetof(metal_api, default_device)},
    {"MTLCopyAllDevices", offsetof(metal_api, all_devices)},
    {"dispatch_data_create", offsetof(metal_api, data_create)},
    {"sysctlbyname", offsetof(metal_api, sysctl)},
};

void *metal_api_symbol(const metal_api *api, const char *name) {
    for (size_t i = 0; i < SL_COUNT(api->libraries); i++) {
        void *found = api->libraries[i] ? dlsym(api->libraries[i], name) : NULL;
        if (found)
            return found;
    }
    return api->stand_in ? NULL : dlsym(RTLD_DEFAULT, name);
}

static bool open_library(void **library, const char *path, sl_error *err) {
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*library)
        return true;
    const char *why = dlerror();
    return sl_fail(err, SL_ERR_UNSUPPORTED, "Metal is not on this system: %s", why ? why : path);
}

static bool open_libraries(metal_api *api, sl_error *err) {
    const char *stand_in = getenv(METAL_LIBRARY_VARIABLE);
    if (stand_in && *stand_in) {
        api->stand_in = true;
        return open_library(&api->libraries[0], stand_in, err);
    }
    for (size_t i = 0; i < SL_COUNT(system_libraries); i++)
        if (!open_library(&api->libraries[i], system_libraries[i], err))
            return false;
    return true;
}

static bool find_symbols(metal_api *api, sl_error *err) {
    for (size_t i = 0; i < SL_COUNT(symbols); i++) {
        void *found = metal_api_symbol(api, symbols[i].name);
        if (!found)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "Metal is not on this system: no function %s", symbols[i].name);
        memcpy((char *)api + symbols[i].member, &found, sizeof found);
    }
    return true;
}

static bool find_names(metal_api *api, sl_error *err) {
#define FIND_SELECTOR(proto, name, text) api->sel.name = api->register_name(text);
    METAL_SELECTORS(FIND_SELECTOR)
#undef FIND_SELECTOR
#define FIND_CLASS(name, needed)                                                                                       \
    api->cls.name = api->get_class(#name);                                                                             \
    if ((needed) && !api->cls.name)                                                                                    \
        return sl_fail(err, SL_ERR_UNSUPPORTED, "Metal of this system is too old: no class %s", #name);
    METAL_CLASSES(FIND_CLASS)
#undef FIND_CLASS
    return true;
}

bool metal_api_open(metal_api *api, sl_error *err) {
    *api = (metal_api){0};
    if (open_libraries(api, err) && find_symbols(api, err) && find_names(api, err))
        return true;
    metal_api_close(api);
    return false;
}

void metal_api_close(metal_api *api) {
    for (size_t i = SL_COUNT(api->libraries); i-- > 0;)
        if (api->libraries[i])
            dlclose(api->libraries[i]);
    *api = (metal_api){0};
}

metal_id metal_string(const metal_api *api, const char *text) {
    return text ? METAL_SEND(api, stringWithUTF8String, api->cls.NSString, text) : NULL;
}

const char *metal_text(const metal_api *api, metal_id string) {
    const char *text = string ? METAL_SEND(api, UTF8String, string) : NULL;
    return text ? text : "";
}

bool metal_responds(const metal_api *api, metal_id receiver, metal_sel selector) {
    return receiver && METAL_SEND(api, respondsToSelector, receiver, selector) != 0;
}

void metal_release(const metal_api *api, metal_id object) {
    if (object)
        METAL_SEND(api, release, object);
}
