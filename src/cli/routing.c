/* The routing file, read and written. */
#include "routing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = 32, MAX_TOKENS = 1 << 26 };

/* ---- reading ------------------------------------------------------------------------------------------------------
 */

static bool read_header(routing *r, const sl_file *f, sl_error *err) {
    uint8_t h[HEADER_BYTES];
    uint32_t n[4];
    uint64_t tokens, row, bytes;
    if (!sl_file_read(f, 0, h, sizeof h, err))
        return false;
    memcpy(n, h + 8, sizeof n);
    memcpy(&tokens, h + 24, sizeof tokens);
    if (memcmp(h, "SLROUTE1", 8) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: offset 0: not a routing file (magic SLROUTE1 expected)", r->path);
    if (n[0] < 1 || n[0] > 1 << 16 || n[1] < 1 || n[1] > UINT16_MAX || n[2] < 1 || n[2] > n[1] || tokens < 1 ||
        tokens > MAX_TOKENS)
        return sl_fail(err, SL_ERR_FORMAT, "%s: offset 8: %u layers of %u experts, %u per token, %llu tokens: no sense",
                       r->path, n[0], n[1], n[2], (unsigned long long)tokens);
    row = 8 + 2 * (uint64_t)n[0] * n[2];
    bytes = HEADER_BYTES + 4 * (uint64_t)n[0];
    if (!sl_mul_u64(row, tokens, &row) || !sl_add_u64(bytes, row, &bytes) || bytes != f->size)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %llu bytes, %llu tokens of %u layers and %u experts need another size",
                       r->path, (unsigned long long)f->size, (unsigned long long)tokens, n[0], n[2]);
    r->layers = (int)n[0];
    r->experts = (int)n[1];
    r->top_k = (int)n[2];
    r->tokens = (size_t)tokens;
    return true;
}

static bool read_tokens(routing *r, const sl_file *f, sl_error *err) {
    size_t per_token = (size_t)r->layers * (size_t)r->top_k;
    uint64_t at = HEADER_BYTES + 4 * (uint64_t)r->layers;
    for (size_t t = 0; t < r->tokens; t++, at += 8 + 2 * per_token) {
        int32_t head[2];
        uint16_t *x = r->expert + t * per_token;
        if (!sl_file_read(f, at, head, sizeof head, err) || !sl_file_read(f, at + 8, x, 2 * per_token, err))
            return false;
        r->position[t] = head[1];
        for (size_t i = 0; i < per_token; i++)
            if (x[i] >= r->experts || (i % (size_t)r->top_k && x[i] <= x[i - 1]))
                return sl_fail(err, SL_ERR_FORMAT,
                               "%s: token %zu, layer %d: expert %d, ascending ids below %d expected", r->path, t,
                               r->layer[i / (size_t)r->top_k], x[i], r->experts);
    }
    return true;
}

bool routing_read(routing *r, const char *path, sl_error *err) {
    *r = (routing){.path = path};
    sl_file *f = sl_file_open(path, err);
    bool ok = f && read_header(r, f, err);
    if (ok) {
        r->layer = calloc((size_t)r->layers, sizeof *r->layer);
        r->position = calloc(r->tokens, sizeof *r->position);
        r->expert = calloc(r->tokens * (size_t)r->layers, (size_t)r->top_k * sizeof *r->expert);
        ok = (r->layer && r->position && r->expert) || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    ok = ok && sl_file_read(f, HEADER_BYTES, r->layer, 4 * (uint64_t)r->layers, err) && read_tokens(r, f, err);
    sl_file_close(f);
    return ok;
}

void routing_free(routing *r) {
    free(r->layer);
    free(r->position);
    free(r->expert);
    *r = (routing){0};
}

/* ---- writing: on the scheduler's thread, but for opening and finishing --------------------------------------------
 */

struct routing_writer {
    sl_engine *e;
    char *path, *fresh;
    FILE *file;
    int layers, experts, top_k;
    uint32_t *layer;
    uint64_t tokens;
    uint8_t *rows; /* of the running step, as in the file */
    size_t capacity;
    bool failed; /* error says why */
    sl_error error;
};

static void note_failure(routing_writer *w) {
    if (!w->failed)
        sl_fail_errno(&w->error, SL_ERR_IO, errno, "%s: cannot write", w->fresh);
    w->failed = true;
}

static size_t row_bytes(const routing_writer *w) {
    return 8 + 2 * (size_t)w->layers * (size_t)w->top_k;
}

static bool write_header(routing_writer *w) {
    uint32_t n[4] = {(uint32_t)w->layers, (uint32_t)w->experts, (uint32_t)w->top_k, 0};
    return fseek(w->file, 0, SEEK_SET) == 0 && fwrite("SLROUTE1", 8, 1, w->file) == 1 &&
           fwrite(n, sizeof n, 1, w->file) == 1 && fwrite(&w->tokens, sizeof w->tokens, 1, w->file) == 1 &&
           fwrite(w->layer, sizeof *w->layer, (size_t)w->layers, w->file) == (size_t)w->layers;
}

/* The first call says what there is. */
static bool begin(routing_writer *w, const sl_routing *r) {
    w->layers = r->moe_layers;
    w->experts = r->experts;
    w->top_k = r->top_k;
    w->layer = calloc((size_t)w->layers, sizeof *w->layer);
    if (!w->layer || !write_header(w)) {
        note_failure(w);
        return false;
    }
    return true;
}

/* Room for the step's rows, with token and position. */
static bool begin_step(routing_writer *w, const sl_routing *r) {
    void *rows = w->rows;
    if (!sl_grow(&rows, &w->capacity, (size_t)r->rows, row_bytes(w))) {
        errno = ENOMEM;
        note_failure(w);
        return false;
    }
    w->rows = rows;
    for (int i = 0; i < r->rows; i++) {
        int32_t head[2] = {r->tokens[i], r->positions[i]};
        memcpy(w->rows + (size_t)i * row_bytes(w), head, sizeof head);
    }
    return true;
}

static void on_routing(void *user, const sl_routing *r) {
    routing_writer *w = user;
    if (w->failed || (!w->layer && !begin(w, r)) || (r->moe_layer == 0 && !begin_step(w, r)))
        return;
    w->layer[r->moe_layer] = (uint32_t)r->layer;
    for (int i = 0; i < r->rows; i++) {
        uint8_t *to = w->rows + (size_t)i * row_bytes(w) + 8 + 2 * (size_t)r->moe_layer * (size_t)w->top_k;
        for (int k = 0; k < w->top_k; k++) {
            uint16_t id = (uint16_t)r->chosen[i * w->top_k + k];
            memcpy(to + 2 * k, &id, sizeof id);
        }
    }
    if (r->moe_layer + 1 < w->layers)
        return;
    if (fwrite(w->rows, row_bytes(w), (size_t)r->rows, w->file) != (size_t)r->rows)
        note_failure(w);
    w->tokens += (uint64_t)r->rows;
}

routing_writer *routing_record(sl_engine *e, const char *path, sl_error *err) {
    routing_writer *w = calloc(1, sizeof *w);
    if (!w)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for %s", path);
    w->e = e;
    w->path = sl_strdup(path);
    w->fresh = sl_asprintf("%s.new", path);
    bool ok = (w->path && w->fresh) || sl_fail(err, SL_ERR_MEMORY, "out of memory for %s", path);
    if (ok) {
        w->file = fopen(w->fresh, "wbe");
        ok = w->file || sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot write", w->fresh);
    }
    if (ok && sl_engine_watch_routing(e, on_routing, w, err))
        return w;
    routing_finish(w, false, NULL);
    return NULL;
}

bool routing_finish(routing_writer *w, bool complete, sl_error *err) {
    if (!w)
        return true;
    sl_engine_watch_routing(w->e, NULL, NULL, NULL);
    if (complete && !w->failed && w->tokens == 0) {
        sl_fail(&w->error, SL_ERR_ARGUMENT, "%s: the model has no routed experts", w->path);
        w->failed = true;
    }
    if (w->file && w->layer && !w->failed && !write_header(w))
        note_failure(w);
    if (w->file && fclose(w->file) != 0)
        note_failure(w);
    complete = complete && !w->failed;
    if (complete && rename(w->fresh, w->path) != 0) {
        note_failure(w);
        complete = false;
    }
    if (w->file && !complete)
        unlink(w->fresh);
    bool ok = !w->failed;
    if (!ok && err && err->code == SL_OK)
        *err = w->error;
    free(w->path);
    free(w->fresh);
    free(w->layer);
    free(w->rows);
    free(w);
    return ok;
}
