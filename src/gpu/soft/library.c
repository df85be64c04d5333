/* A payload as a loaded shared object, and pipelines of its kernels.
 *
 * Function constants are variables of the object; a pipeline that sets some loads the object once more, so that the
 * constants are its own. The loader tells objects apart by file: each time the bytes are put in a fresh one. */
#include "gpu/soft/soft.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <link.h>
#endif

/* ---- the object ---- */

#if defined(__linux__)
/* The loader takes two equal paths for one object, and descriptors are used again, also by another copy of this code in
 * the process: so each path is another spelling, the file's number in slashes. */
static void spell_path(char *path, size_t size, int fd) {
    struct stat s;
    uint64_t number = fstat(fd, &s) == 0 ? s.st_ino : 0;
    size_t n = (size_t)snprintf(path, size, "/proc/self/fd/");
    for (; number; number >>= 1)
        n += (size_t)snprintf(path + n, size - n, number & 1 ? ".//" : "./");
    snprintf(path + n, size - n, "%d", fd);
}
#endif

/* A file without a name, or with one that is removed once loaded. */
static int open_fresh(char *path, size_t size, bool *named, sl_error *err) {
    *named = false;
#if defined(__linux__)
    int fd = memfd_create("sluice-kernel", MFD_CLOEXEC);
    if (fd >= 0) {
        spell_path(path, size, fd);
        return fd;
    }
#endif
    const char *base = getenv("TMPDIR");
    snprintf(path, size, "%s/sluice-kernel-XXXXXX", base && *base ? base : "/tmp");
    int named_fd = mkstemp(path);
    *named = named_fd >= 0;
    if (named_fd < 0)
        sl_fail_errno(err, SL_ERR_IO, errno, "soft: %s", path);
    return named_fd;
}

static bool write_all(int fd, const uint8_t *bytes, size_t n, sl_error *err) {
    while (n) {
        ssize_t r = write(fd, bytes, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return sl_fail_errno(err, SL_ERR_IO, errno, "soft: a copy of a library");
        bytes += r;
        n -= (size_t)r;
    }
    return true;
}

#if defined(__linux__)
typedef struct range {
    uintptr_t inside, begin, end;
} range;

static int find_range(struct dl_phdr_info *info, size_t size, void *arg) {
    range *r = arg;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD)
            continue;
        uintptr_t a = info->dlpi_addr + p->p_vaddr, b = a + p->p_memsz;
        begin = a < begin ? a : begin;
        end = b > end ? b : end;
    }
    if (r->inside < begin || r->inside >= end)
        return 0;
    r->begin = info->dlpi_addr;
    r->end = end;
    return 1;
}
#endif

static void find_image(soft_image *image, const void *inside) {
#if defined(__linux__)
    range r = {.inside = (uintptr_t)inside};
    if (dl_iterate_phdr(find_range, &r)) {
        image->begin = r.begin;
        image->end = r.end;
    }
#else
    Dl_info d;
    if (dladdr(inside, &d)) {
        image->begin = (uintptr_t)d.dli_fbase;
        image->end = image->begin + (64u << 20);
    }
#endif
}

static bool check_module(const soft_module *m, sl_error *err) {
    if (!m || m->abi != SOFT_ABI)
        return sl_fail(err, SL_ERR_FORMAT, "soft: a library of another version (%u, expected %d)", m ? m->abi : 0,
                       SOFT_ABI);
    return true;
}

static bool start_image(soft_image *image, bool checked, sl_error *err) {
    const soft_api *api = checked ? &soft_api_checked : &soft_api_plain;
    soft_init_fn init = (soft_init_fn)dlsym(image->handle, SOFT_INIT);
    soft_hooks_init_fn hooks = (soft_hooks_init_fn)dlsym(image->handle, SOFT_HOOKS_INIT);
    if (!init || (checked && !hooks))
        return sl_fail(err, SL_ERR_FORMAT, "soft: a library without " SOFT_INIT);
    find_image(image, (const void *)(uintptr_t)init);
    image->module = init(api);
    if (checked)
        hooks(api);
    return check_module(image->module, err);
}

static void close_image(soft_image *image) {
    if (image->handle)
        dlclose(image->handle);
    *image = (soft_image){0};
}

static bool open_image(const soft_library *l, soft_image *image, sl_error *err) {
    char path[512];
    bool named;
    int fd = open_fresh(path, sizeof path, &named, err);
    if (fd < 0)
        return false;
    bool ok = write_all(fd, l->object, l->size, err);
    if (ok) {
        image->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const char *why = image->handle ? NULL : dlerror();
        ok = image->handle || sl_fail(err, SL_ERR_FORMAT, "soft: a library does not load: %s", why ? why : "");
    }
    close(fd);
    if (named)
        unlink(path);
    ok = ok && start_image(image, l->checked, err);
    if (!ok)
        close_image(image);
    return ok;
}

/* ---- libraries ---- */

static bool check_payload(const soft_device *d, const soft_payload *head, const void *payload, size_t size,
                          sl_error *err) {
    if (size < sizeof *head || memcmp(head->magic, SOFT_MAGIC, sizeof head->magic) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "soft: %zu bytes that are no library of the soft device", size);
    if (head->abi != SOFT_ABI || head->size != size - sizeof *head)
        return sl_fail(err, SL_ERR_FORMAT, "soft: library of version %u with %llu bytes, expected %d with %zu",
                       head->abi, (unsigned long long)head->size, SOFT_ABI, size - sizeof *head);
    if ((head->checked != 0) != d->checking)
        return sl_fail(err, SL_ERR_FORMAT, "soft: a library compiled %s checks, the device was opened %s",
                       head->checked ? "with" : "without", d->checking ? "with" : "without");
    (void)payload;
    return true;
}

void *soft_library_load(gpu_device *device, const void *payload, size_t size, sl_error *err) {
    soft_payload head = {.abi = 0};
    if (size >= sizeof head)
        memcpy(&head, payload, sizeof head);
    if (!check_payload(soft_of(device), &head, payload, size, err))
        return NULL;
    soft_library *l = calloc(1, sizeof *l);
    uint8_t *object = malloc(head.size + 1);
    if (!l || !object) {
        free(l);
        free(object);
        return sl_fail_null(err, SL_ERR_MEMORY, "soft: out of memory for a library of %zu bytes", size);
    }
    memcpy(object, (const uint8_t *)payload + sizeof head, head.size);
    *l = (soft_library){.object = object, .size = head.size, .checked = head.checked != 0};
    if (!open_image(l, &l->image, err)) {
        soft_library_free(device, l);
        return NULL;
    }
    return l;
}

void soft_library_free(gpu_device *d, void *library) {
    soft_library *l = library;
    (void)d;
    if (!l)
        return;
    close_image(&l->image);
    free(l->object);
    free(l);
}

/* ---- pipelines ---- */

static uint16_t half_bits(float f) {
    uint32_t u, sign, mantissa;
    memcpy(&u, &f, sizeof u);
    sign = u >> 16 & 0x8000;
    int e = (int)(u >> 23 & 255) - 112;
    mantissa = u & 0x7FFFFF;
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(sign | 0x7E00);
    if (e >= 31)
        return (uint16_t)(sign | 0x7C00);
    if (e <= 0) { /* subnormal: the implicit bit shifted in */
        if (e < -10)
            return (uint16_t)sign;
        mantissa = (mantissa | 0x800000);
        int shift = 14 - e;
        uint32_t rounded = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
        return (uint16_t)(sign | rounded);
    }
    uint32_t bits = (uint32_t)e << 10 | mantissa >> 13, rest = mantissa & 0x1FFF;
    bits += rest > 0x1000 || (rest == 0x1000 && (bits & 1));
    return (uint16_t)(sign | bits);
}

static void store_constant(const soft_constant *to, const sl_gpu_constant *from) {
    uint16_t half = half_bits(from->value.f);
    int16_t small = (int16_t)from->value.i;
    switch ((sl_gpu_type)to->type) {
    case SL_GPU_BOOL:
        *(bool *)to->value = from->value.b;
        break;
    case SL_GPU_INT:
    case SL_GPU_UINT:
    case SL_GPU_FLOAT:
        memcpy(to->value, &from->value, 4);
        break;
    case SL_GPU_SHORT:
    case SL_GPU_USHORT:
        memcpy(to->value, &small, sizeof small);
        break;
    case SL_GPU_HALF:
        memcpy(to->value, &half, sizeof half);
        break;
    }
    if (to->defined)
        *to->defined = true;
}

static bool set_constants(const soft_module *m, const sl_gpu_constant *constants, size_t count, const char *kernel,
                          sl_error *err) {
    for (size_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < m->constant_count; k++) {
            const soft_constant *c = &m->constants[k];
            if (c->id != constants[i].id)
                continue;
            if (c->type != (int)constants[i].type)
                return sl_fail(err, SL_ERR_ARGUMENT, "%s: function constant %d (%s) given another type than it has",
                               kernel, c->id, c->name);
            store_constant(c, &constants[i]);
        }
    }
    return true;
}

static const soft_kernel *find_kernel(const soft_module *m, const char *entry) {
    for (uint32_t i = 0; i < m->kernel_count; i++)
        if (strcmp(m->kernels[i].entry, entry) == 0)
            return &m->kernels[i];
    return NULL;
}

static bool copy_arguments(soft_pipeline *p, const msl_kernel *kernel) {
    p->args = calloc(kernel->arg_count + 1, sizeof *p->args);
    for (size_t i = 0; p->args && i < kernel->arg_count; i++) {
        p->args[i] = kernel->args[i].arg;
        if (kernel->args[i].atomic && p->args[i].slot >= 0 && p->args[i].slot < SOFT_SLOTS)
            p->atomic_slots |= 1ull << p->args[i].slot;
    }
    p->arg_count = kernel->arg_count;
    return p->args != NULL;
}

void *soft_pipeline_new(gpu_device *device, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                        size_t count, gpu_pipeline_limits *limits, sl_error *err) {
    soft_library *l = library;
    soft_pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", kernel->name);
    p->library = l;
    p->image = &l->image;
    p->name = sl_strdup(kernel->name);
    bool ok = (p->name && copy_arguments(p, kernel)) || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", kernel->name);
    if (ok && l->image.module->constant_count) {
        ok = open_image(l, &p->own, err) && set_constants(p->own.module, constants, count, kernel->name, err);
        p->image = &p->own;
    }
    if (ok) {
        p->kernel = find_kernel(p->image->module, kernel->entry);
        ok = p->kernel || sl_fail(err, SL_ERR_FORMAT, "%s: the library has no entry %s", kernel->name, kernel->entry);
    }
    if (ok && p->kernel->threadgroup_memory > SOFT_THREADGROUP_BYTES)
        ok = sl_fail(err, SL_ERR_ARGUMENT, "%s: %u bytes of threadgroup memory, at most %d", kernel->name,
                     p->kernel->threadgroup_memory, SOFT_THREADGROUP_BYTES);
    if (!ok) {
        soft_pipeline_free(device, p);
        return NULL;
    }
    p->max_threads =
        kernel->max_threads && kernel->max_threads < SOFT_MAX_THREADS ? kernel->max_threads : SOFT_MAX_THREADS;
    *limits = (gpu_pipeline_limits){p->max_threads, SOFT_SIMD, p->kernel->threadgroup_memory};
    return p;
}

void soft_pipeline_free(gpu_device *d, void *pipeline) {
    soft_pipeline *p = pipeline;
    (void)d;
    if (!p)
        return;
    close_image(&p->own);
    free(p->name);
    free(p->args);
    free(p);
}
