/* Errors and logging shared by the public headers sluice.h and gpu.h. */
#ifndef SLUICE_ERROR_H
#define SLUICE_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define SL_API
#else
#define SL_API __attribute__((visibility("default")))
#endif

typedef enum sl_code {
    SL_OK = 0,
    SL_ERR_ARGUMENT,    /* the caller asked for something that cannot be */
    SL_ERR_IO,          /* open, read, write failed; message carries errno's text */
    SL_ERR_FORMAT,      /* bytes of a file contradict its format */
    SL_ERR_UNSUPPORTED, /* well formed, but an architecture, format or feature not built in */
    SL_ERR_MEMORY,      /* malloc or mmap failed */
    SL_ERR_BUDGET,      /* would not fit the memory budget; message names the least */
    SL_ERR_CONTEXT,     /* more tokens than the context holds */
    SL_ERR_CANCELLED,   /* the request was cancelled */
    SL_ERR_NUMERIC,     /* NaN or infinity where there must be none */
    SL_ERR_TEXT,        /* tokenizer or template */
    SL_ERR_COMPILE,     /* source of a kernel; message is the first diagnostic, FILE:LINE: what */
    SL_ERR_TIMEOUT,     /* not done within the time given */
    SL_ERR_DEVICE       /* a GPU failed its work or is gone */
} sl_code;

/* Filled by every call that fails, never allocated, may be NULL when the caller does not care.
 * The message is one line: file, tensor, offset or field; what was found; what was expected. */
typedef struct sl_error {
    sl_code code;
    char message[1024];
} sl_error;

typedef enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG } sl_log_level;

/* Called from any thread of the engine; the line has no newline at its end. */
typedef void (*sl_log_fn)(void *user, sl_log_level level, const char *line);

#ifdef __cplusplus
}
#endif
#endif
