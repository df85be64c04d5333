/* An engine whose forward pass is a hash: it writes tokens to the KV pages as a model would and computes logits from
 * what it finds there for all earlier positions, so that any page that is lost, shared wrongly or overwritten shows.
 * Recurrent state is a hash too, which must be that of the pages; steps that fail leave it spoilt. */
#ifndef SUPPORT_FAKE_H
#define SUPPORT_FAKE_H

#include "engine/internal.h"

enum { FAKE_VOCAB = 272, FAKE_SLAB = 64 << 10, FAKE_BLOCKS_PER_SLAB = 4, FAKE_STATES_PER_SLAB = 3 };

typedef struct fake {
    sl_engine e;
    /* Faults and delays, -1 or 0: none. */
    _Atomic int32_t row_error_token; /* rows with this token fail by themselves */
    _Atomic int32_t nan_token;       /* a step with this token fails as a whole */
    _Atomic bool hold;               /* steps wait until it is false or they are cancelled: */
    _Atomic int hold_above;          /* those of more rows than this */
    _Atomic bool holding;            /* a step waits */
    /* Observations. */
    _Atomic int steps, rows, most_rows, mixed_steps, cancelled_steps;
    int least_cache; /* slabs the "expert cache" keeps */
    void *cache[256];
    int cached;
} fake;

typedef struct fake_options {
    int context, chunk, max_sequences; /* 0: 512, 64, 4 */
    int slabs;                         /* budget for KV and cache; 0: 64 */
    int cache, least_cache;            /* slabs the cache holds at first and keeps */
    bool tokenizer;                    /* the byte-level one of the golden checkpoints */
    int state_layers;                  /* of recurrent state, FAKE_STATES_PER_SLAB to a slab; 0: none */
} fake_options;

fake *fake_open(const fake_options *o);
void fake_close(fake *f);
/* Logits after these tokens: what every way of evaluating them must give. */
void fake_logits(const int32_t *tokens, int n, float *logits);
int32_t fake_greedy(const int32_t *tokens, int n); /* the largest */

/* Appends tokens to a sequence; logits of the last. Fails the test on an error. */
void fake_append(sl_seq *s, const int32_t *tokens, int n, float *logits);
void fake_random_tokens(int32_t *tokens, int n);

/* Reads a request to its end: ids of its tokens, its text, its last event. Returns the number of ids. */
typedef struct fake_result {
    int32_t tokens[1024];
    int count;
    char text[4096];
    size_t text_size;
    sl_event last;
} fake_result;
void fake_collect(sl_request *r, fake_result *out);

sl_generate_options fake_prompt(const int32_t *tokens, int n, int max_tokens);
sl_request *fake_start(fake *f, const sl_generate_options *o); /* fails the test on an error */
fake_result fake_run(fake *f, const sl_generate_options *o);   /* from start to end */

void fake_await(const _Atomic bool *flag);

#endif
