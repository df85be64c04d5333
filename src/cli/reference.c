#include "reference.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = 24 };

/* Where the body begins, and whether the file has all of it. */
static bool check_size(const reference *r, sl_error *err) {
    uint64_t entries, bytes;
    uint64_t entry_bytes = r->k == r->vocab ? 4 : 8;
    if (!sl_mul_u64(r->positions, r->k, &entries) || !sl_mul_u64(entries, entry_bytes, &bytes) ||
        !sl_add_u64(bytes, HEADER_BYTES + 4 * (uint64_t)r->positions, &bytes) || bytes != r->file->size)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %llu bytes; %u positions of %u entries need another size", r->path,
                       (unsigned long long)r->file->size, r->positions, r->k);
    return true;
}

static bool read_header(reference *r, sl_error *err) {
    uint8_t header[HEADER_BYTES];
    uint32_t n[4];
    if (!sl_file_read(r->file, 0, header, sizeof header, err))
        return false;
    if (memcmp(header, "SLREF1\0\0", 8) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: offset 0: not a reference file (magic SLREF1 expected)", r->path);
    memcpy(n, header + 8, sizeof n);
    r->positions = n[0];
    r->vocab = n[1];
    r->k = n[2];
    if (r->positions == 0 || r->positions > 1u << 24 || r->vocab == 0 || r->k == 0 || r->k > r->vocab)
        return sl_fail(err, SL_ERR_FORMAT, "%s: offset 8: %u positions, vocabulary %u, %u entries make no sense",
                       r->path, r->positions, r->vocab, r->k);
    return check_size(r, err);
}

reference *reference_open(const char *path, sl_error *err) {
    reference *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for %s", path);
    r->path = path;
    r->file = sl_file_open(path, err);
    bool ok = r->file && read_header(r, err);
    if (ok) {
        r->tokens = calloc(r->positions, sizeof *r->tokens);
        r->row = calloc(r->k, sizeof *r->row);
        r->ids = calloc(r->k, sizeof *r->ids);
        ok = (r->tokens && r->row && r->ids) || sl_fail(err, SL_ERR_MEMORY, "out of memory for %s", path);
        ok = ok && sl_file_read(r->file, HEADER_BYTES, r->tokens, 4 * (uint64_t)r->positions, err);
    }
    if (!ok) {
        reference_close(r);
        return NULL;
    }
    return r;
}

void reference_close(reference *r) {
    if (!r)
        return;
    sl_file_close(r->file);
    free(r->tokens);
    free(r->row);
    free(r->ids);
    free(r);
}

static double full_divergence(const reference *r, const float *logits, double log_sum, int *best) {
    double kl = 0;
    *best = 0;
    for (uint32_t i = 0; i < r->vocab; i++) {
        double p = (double)r->row[i];
        kl += exp(p) * (p - ((double)logits[i] - log_sum));
        if (r->row[i] > r->row[*best])
            *best = (int)i;
    }
    return kl;
}

static double top_divergence(const reference *r, const float *logits, double log_sum, int *best) {
    double kl = 0, seen_p = 0, seen_q = 0;
    for (uint32_t i = 0; i < r->k; i++) {
        double p = (double)r->row[i], q = (double)logits[r->ids[i]] - log_sum;
        kl += exp(p) * (p - q);
        seen_p += exp(p);
        seen_q += exp(q);
    }
    double rest_p = fmax(1 - seen_p, 1e-12), rest_q = fmax(1 - seen_q, 1e-12);
    *best = (int)r->ids[0];
    return kl + rest_p * (log(rest_p) - log(rest_q));
}

bool reference_compare(reference *r, size_t p, const float *logits, double log_sum, double *kl, int *best,
                       sl_error *err) {
    uint64_t body = HEADER_BYTES + 4 * (uint64_t)r->positions, row = 4 * (uint64_t)r->k;
    if (r->k == r->vocab) {
        if (!sl_file_read(r->file, body + p * row, r->row, row, err))
            return false;
        sl_file_drop(r->file, body + p * row, row);
        *kl = full_divergence(r, logits, log_sum, best);
    } else {
        if (!sl_file_read(r->file, body + p * row, r->ids, row, err) ||
            !sl_file_read(r->file, body + (r->positions + p) * row, r->row, row, err))
            return false;
        for (uint32_t i = 0; i < r->k; i++)
            if (r->ids[i] >= r->vocab)
                return sl_fail(err, SL_ERR_FORMAT, "%s: row %zu names token %u of %u", r->path, p, r->ids[i], r->vocab);
        *kl = top_divergence(r, logits, log_sum, best);
    }
    return isfinite(*kl) || sl_fail(err, SL_ERR_NUMERIC, "%s: row %zu is not a distribution", r->path, p);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

struct reference_writer {
    char *path, *fresh; /* fresh: where it is written until it is complete */
    FILE *file;
    float *row;
    int vocab;
    size_t left;
};

static bool write_failed(const reference_writer *w, sl_error *err) {
    return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot write", w->fresh);
}

reference_writer *reference_create(const char *path, const int32_t *tokens, size_t n, int vocab, sl_error *err) {
    reference_writer *w = calloc(1, sizeof *w);
    if (!w)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for %s", path);
    uint32_t head[4] = {(uint32_t)n, (uint32_t)vocab, (uint32_t)vocab, 0};
    w->vocab = vocab;
    w->left = n;
    w->path = sl_strdup(path);
    w->fresh = sl_asprintf("%s.new", path);
    w->row = calloc((size_t)vocab, sizeof *w->row);
    bool ok = (w->path && w->fresh && w->row) || sl_fail(err, SL_ERR_MEMORY, "out of memory for %s", path);
    if (ok) {
        w->file = fopen(w->fresh, "wbe");
        ok = w->file && fwrite("SLREF1\0\0", 1, 8, w->file) == 8 && fwrite(head, sizeof head, 1, w->file) == 1 &&
             fwrite(tokens, sizeof *tokens, n, w->file) == n;
        if (!ok)
            write_failed(w, err);
    }
    if (ok)
        return w;
    reference_finish(w, false, NULL);
    return NULL;
}

bool reference_add(reference_writer *w, const float *logits, double log_sum, sl_error *err) {
    for (int i = 0; i < w->vocab; i++)
        w->row[i] = (float)((double)logits[i] - log_sum);
    w->left--;
    return fwrite(w->row, sizeof *w->row, (size_t)w->vocab, w->file) == (size_t)w->vocab || write_failed(w, err);
}

bool reference_finish(reference_writer *w, bool complete, sl_error *err) {
    if (!w)
        return true;
    bool ok = true;
    if (w->file && fclose(w->file) != 0)
        ok = write_failed(w, err);
    complete = complete && ok && w->left == 0;
    if (complete && rename(w->fresh, w->path) != 0)
        ok = write_failed(w, err);
    if (w->file && (!complete || !ok))
        unlink(w->fresh);
    free(w->path);
    free(w->fresh);
    free(w->row);
    free(w);
    return ok;
}
