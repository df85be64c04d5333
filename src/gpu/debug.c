/* SLUICE_DEBUG: what the runtime does, as lines of the log. */
#include "gpu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LEVEL = 5 };

bool gpu_env_digit(const char *variable, int most, int *out, sl_error *err) {
    const char *word = getenv(variable);
    *out = 0;
    if (!word || !*word)
        return true;
    if (word[1] || word[0] < '0' || word[0] > '0' + most)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: \"%.32s\", expected a number from 0 to %d", variable, word, most);
    *out = word[0] - '0';
    return true;
}

bool gpu_debug_level(int asked, int *level, sl_error *err) {
    if (asked == 0)
        return gpu_env_digit("SLUICE_DEBUG", MOST_LEVEL, level, err);
    *level = asked < 0 ? 0 : asked > MOST_LEVEL ? MOST_LEVEL : asked;
    return true;
}

void gpu_debugf(const sl_gpu *g, int level, const char *fmt, ...) {
    if (g->debug < level)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    sl_logf(&g->log, SL_LOG_DEBUG, "gpu: %s", line);
}

void gpu_debug_pipeline(const gpu_pipeline *p) {
    const sl_gpu *g = p->o.gpu;
    if (g->debug < 1)
        return;
    gpu_debugf(g, 1, "pipeline %s: up to %u threads, SIMD width %u, %u bytes of threadgroup memory", p->entry,
               p->limits.max_threads, p->limits.simd_width, p->limits.threadgroup_memory);
    static const char *const kinds[] = {"reads", "writes", "takes bytes", "threadgroup memory"};
    for (size_t i = 0; i < p->arg_count; i++) {
        const sl_gpu_arg *a = &p->args[i];
        gpu_debugf(g, 3, "  slot %d '%s': %s, at least %u bytes%s", a->slot, a->name, kinds[a->kind], a->least,
                   a->unused ? ", not used" : "");
    }
}

void gpu_debug_list(const gpu_list *l, const gpu_stream *s) {
    gpu_debugf(l->o.gpu, 1, "list '%s' (ticket %llu): %zu commands, %u dispatches", l->label,
               (unsigned long long)s->given + 1, l->count, l->dispatches);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static const char *time_text(double seconds, char *text, size_t size) {
    text[0] = 0;
    if (seconds >= 0)
        snprintf(text, size, ", %.1f us", seconds * 1e6);
    return text;
}

static void show_bound(const sl_gpu *g, const gpu_bound *b) {
    if (b->memory) {
        gpu_debugf(g, 3, "    slot %d: %llu bytes at %llu of a buffer of %llu, %s", b->slot,
                   (unsigned long long)b->length, (unsigned long long)b->offset, (unsigned long long)b->memory->bytes,
                   b->writes ? "written" : "read");
        return;
    }
    char hex[3 * 32 + 8];
    size_t n = b->length < 32 ? b->length : 32, at = 0;
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(hex + at, sizeof hex - at, " %02x", ((const uint8_t *)b->bytes)[i]);
    gpu_debugf(g, 3, "    slot %d: %llu bytes:%s%s", b->slot, (unsigned long long)b->length, hex,
               b->length > n ? " ..." : "");
}

static void show_dispatch(const sl_gpu *g, const gpu_command *c, const char *time) {
    const uint32_t *n = c->u.dispatch.groups, *t = c->u.dispatch.threads;
    double all = (double)n[0] * n[1] * n[2] * t[0] * t[1] * t[2];
    gpu_debugf(g, 2, "  %s: %u x %u x %u threadgroups of %u x %u x %u threads, %.0f threads%s", c->label, n[0], n[1],
               n[2], t[0], t[1], t[2], all, time);
    for (size_t i = 0; g->debug >= 3 && i < c->u.dispatch.bound_count; i++)
        show_bound(g, &c->u.dispatch.bound[i]);
    for (size_t i = 0; i < c->u.dispatch.length_count; i++)
        gpu_debugf(g, 3, "    threadgroup slot %d: %u bytes", c->u.dispatch.lengths[i].slot,
                   c->u.dispatch.lengths[i].bytes);
}

void gpu_debug_command(const gpu_list *l, const gpu_command *c, double seconds) {
    const sl_gpu *g = l->o.gpu;
    char time[32];
    if (g->debug < 2)
        return;
    time_text(seconds, time, sizeof time);
    switch (c->kind) {
    case GPU_DISPATCH:
        show_dispatch(g, c, time);
        break;
    case GPU_COPY:
        gpu_debugf(g, 2, "  copy: %llu bytes%s", (unsigned long long)c->u.copy.bytes, time);
        break;
    case GPU_FILL:
        gpu_debugf(g, 2, "  fill: %llu bytes with %u%s", (unsigned long long)c->u.fill.bytes, c->u.fill.value, time);
        break;
    case GPU_BARRIER:
        gpu_debugf(g, 2, "  barrier");
        break;
    case GPU_WAIT:
        gpu_debugf(g, 2, "  wait for value %llu of an event", (unsigned long long)c->u.event.value);
        break;
    case GPU_SIGNAL:
        gpu_debugf(g, 2, "  signal value %llu of an event", (unsigned long long)c->u.event.value);
        break;
    }
}

/* Line by line, as a log's line is one. */
void gpu_debug_text(const sl_gpu *g, int level, const char *title, const char *text, size_t n) {
    if (g->debug < level)
        return;
    gpu_debugf(g, level, "%s:", title);
    int number = 1;
    for (size_t at = 0; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text - at) : n - at;
        gpu_debugf(g, level, "%5d  %.*s", number, (int)(len < 900 ? len : 900), text + at);
        at += len + 1;
    }
}
