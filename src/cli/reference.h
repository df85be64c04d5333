/* The recorded distributions of a reference model, position by position. Little-endian:
 *
 *   char magic[8]  "SLREF1\0\0"
 *   u32 positions, vocab, k, 0      k: entries per position; k == vocab: full distributions
 *   i32 tokens[positions]           row p is the distribution after tokens[0..p], in one window
 *   k == vocab: f32 logprob[positions][vocab]
 *   k <  vocab: u32 id[positions][k], then f32 logprob[positions][k], both by falling probability
 *
 * With k < vocab the divergence is taken over k + 1 events: the k tokens, and all others together. */
#ifndef SL_CLI_REFERENCE_H
#define SL_CLI_REFERENCE_H

#include "base/base.h"

typedef struct reference {
    const char *path; /* borrowed */
    sl_file *file;
    uint32_t positions, vocab, k;
    int32_t *tokens;
    float *row;    /* one row's log probabilities, k of them */
    uint32_t *ids; /* one row's ids, where k < vocab */
} reference;

reference *reference_open(const char *path, sl_error *err);
void reference_close(reference *r);
/* KL(reference || model) in nats of row p, where the model's log probabilities are logits - log_sum; *best is the
 * reference's likeliest token. */
bool reference_compare(reference *r, size_t p, const float *logits, double log_sum, double *kl, int *best,
                       sl_error *err);

/* Writing one, with full distributions; it appears at its path when it is complete. */
typedef struct reference_writer reference_writer;
reference_writer *reference_create(const char *path, const int32_t *tokens, size_t n, int vocab, sl_error *err);
/* The next row: its logits less log_sum. */
bool reference_add(reference_writer *w, const float *logits, double log_sum, sl_error *err);
/* complete: all rows were added; else nothing is left behind. */
bool reference_finish(reference_writer *w, bool complete, sl_error *err);

#endif
