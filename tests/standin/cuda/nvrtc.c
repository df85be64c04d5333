/* NVRTC: programs are compiled for the soft device, diagnostics are worded as NVRTC words them. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct program {
    char *code, *name;
    sl_buf image;
    char log[4096];
} program;

static program *of(nvrtc_program p) {
    return (program *)(void *)p;
}

EXPORTED int nvrtcVersion(int *major, int *minor) {
    *major = control.nvrtc_major;
    *minor = 0;
    return enter("nvrtcVersion");
}

static const int archs[] = {75, 80, 86, 89, 90, 100};

EXPORTED int nvrtcGetNumSupportedArchs(int *count) {
    *count = SL_COUNT(archs);
    return enter("nvrtcGetNumSupportedArchs");
}

EXPORTED int nvrtcGetSupportedArchs(int *out) {
    memcpy(out, archs, sizeof archs);
    return enter("nvrtcGetSupportedArchs");
}

EXPORTED int nvrtcCreateProgram(nvrtc_program *out, const char *source, const char *name, int headers,
                                const char *const *texts, const char *const *names) {
    int r = enter("nvrtcCreateProgram");
    if (r)
        return r;
    program *p = calloc(1, sizeof *p);
    p->code = sl_strdup(source);
    p->name = sl_strdup(name);
    pthread_mutex_lock(&lock);
    control.alive++;
    pthread_mutex_unlock(&lock);
    *out = (nvrtc_program)(void *)p;
    return 0;
}

EXPORTED int nvrtcDestroyProgram(nvrtc_program *handle) {
    program *p = of(*handle);
    free(p->code);
    free(p->name);
    sl_buf_free(&p->image);
    free(p);
    *handle = NULL;
    pthread_mutex_lock(&lock);
    control.alive--;
    pthread_mutex_unlock(&lock);
    return enter("nvrtcDestroyProgram");
}

static bool has(const char *const *options, int count, const char *word) {
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], word, strlen(word)) == 0)
            return true;
    return false;
}

EXPORTED int nvrtcCompileProgram(nvrtc_program handle, int count, const char *const *options) {
    int r = enter("nvrtcCompileProgram");
    program *p = of(handle);
    if (r)
        return r;
    if (!has(options, count, "-arch=sm_") && !has(options, count, "-arch=compute_"))
        return 5;
    bool ok;
    if (has(options, count, "-fdevice-syntax-only")) {
        control.syntax_checks++;
        ok = unit_check(p->name, p->code, options, count, p->log, sizeof p->log);
    } else {
        control.compiled++;
        control.pointer_forms += has(options, count, "-DMSL_POINTERS");
        ok = image_make(p->name, p->code, options, count, &p->image, p->log, sizeof p->log);
    }
    return ok ? 0 : 6;
}

EXPORTED int nvrtcGetProgramLogSize(nvrtc_program handle, size_t *size) {
    *size = strlen(of(handle)->log) + 1;
    return enter("nvrtcGetProgramLogSize");
}

EXPORTED int nvrtcGetProgramLog(nvrtc_program handle, char *text) {
    strcpy(text, of(handle)->log);
    return enter("nvrtcGetProgramLog");
}

static int size_of(const char *symbol, nvrtc_program handle, size_t *size) {
    *size = of(handle)->image.size;
    return enter(symbol);
}

static int bytes_of(const char *symbol, nvrtc_program handle, char *out) {
    memcpy(out, of(handle)->image.data, of(handle)->image.size);
    return enter(symbol);
}

EXPORTED int nvrtcGetCUBINSize(nvrtc_program handle, size_t *size) {
    return size_of("nvrtcGetCUBINSize", handle, size);
}

EXPORTED int nvrtcGetCUBIN(nvrtc_program handle, char *out) {
    return bytes_of("nvrtcGetCUBIN", handle, out);
}

EXPORTED int nvrtcGetPTXSize(nvrtc_program handle, size_t *size) {
    return size_of("nvrtcGetPTXSize", handle, size);
}

EXPORTED int nvrtcGetPTX(nvrtc_program handle, char *out) {
    return bytes_of("nvrtcGetPTX", handle, out);
}
