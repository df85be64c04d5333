/* A device that records what it is asked, runs a handful of kernels on the host, and fails when told to: the core's
 * promises to drivers and to users, without a compiler or a GPU. */
#ifndef SUPPORT_FAKE_H
#define SUPPORT_FAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu/core.h"

extern const gpu_driver fake_driver, fake_replay_driver; /* the second has replay functions */

/* What the next opened device is like; reset by fake_reset. */
typedef struct fake_control {
    bool discrete;         /* private memory has no host pointer */
    bool manual;           /* submissions end when fake_complete says so */
    const char *device;    /* NULL: "fake" */
    const char *family;    /* NULL: "fake1" */
    uint64_t max_buffer;   /* 0: 1 MiB */
    uint32_t statics;      /* threadgroup memory that a pipeline declares */
    uint32_t max_threads;  /* of a pipeline; 0: 256 */
    int fail_at;           /* the call that fails, counted from 1; 0: none */
    const char *fail_call; /* only calls of this name are counted */
    const char *fail_list; /* label of lists that end in an error */
    uint32_t align;        /* offset of wrapped memory inside its handle */
} fake_control;
extern fake_control fake;

/* Before each test. */
int fake_reset(void **state);
/* Fails the test when anything the driver made still lives. */
void fake_expect_nothing_alive(void);
int fake_calls(const char *name);
/* "dispatch add | barrier | copy": the commands of the last submission. */
const char *fake_last_list(void);
const gpu_bound *fake_last_bound(size_t *count); /* of its last dispatch; what it points to lives with the list */
const sl_gpu_threadgroup_length *fake_last_length(void);
/* Manual mode: ends the oldest n submissions that run. */
void fake_complete(int n);
int fake_running(void);

/* Source with the kernels add, tile, optional, both. */
extern const char fake_source[];

/* A device, its library, a stream, everything expected to succeed. */
typedef struct bench {
    sl_gpu *g;
    sl_gpu_library *library;
    sl_gpu_pipeline *add;
    sl_gpu_stream *stream;
    sl_gpu_buffer *a, *b, *out; /* 16 floats each */
} bench;

sl_gpu *fake_open(const char *cache_dir, sl_error *err);
bench bench_open(void);
void bench_close(bench *b);
/* out = a + b over n elements from offset 0. */
bool bench_add(sl_gpu_list *l, const bench *b, sl_gpu_buffer *a, sl_gpu_buffer *c, sl_gpu_buffer *out, uint32_t n,
               sl_error *err);
sl_gpu_ticket bench_submit(sl_gpu_list *l);

/* Fails the test unless the message holds the words. */
void expect_error(const sl_error *err, sl_code code, const char *words);

/* The log's lines, joined by newlines. */
const char *fake_log(void);

#define SECOND UINT64_C(1000000000)

#endif
