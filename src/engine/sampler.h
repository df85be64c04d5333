/* From a row of logits to a token.
 *
 * Order: logit bias; repetition, presence and frequency penalties; at temperature 0 the largest logit; else
 * temperature, top-k, top-p of what is left, min-p, one draw. Ties go to the lowest id, sums run in a fixed order in
 * double, the generator is seeded per request and draws once per token: the same request gives the same tokens whatever
 * else runs. Log probabilities are of the model's own distribution: before bias, penalties and temperature. */
#ifndef SL_ENGINE_SAMPLER_H
#define SL_ENGINE_SAMPLER_H

#include "base/base.h"
#include "sluice/sluice.h"

/* Working memory shared by all requests of an engine; used by one thread at a time. */
typedef struct engine_sampler engine_sampler;

typedef struct engine_rng {
    uint64_t state[4];
} engine_rng;

typedef struct engine_choice {
    int32_t token;
    float logprob; /* of token; 0 unless log probabilities were asked for */
    sl_logprob top[SL_MAX_LOGPROBS];
    int top_count;
} engine_choice;

/* What the penalties look at: the tokens so far; those from `generated` on were generated. */
typedef struct engine_history {
    const int32_t *tokens;
    int32_t count;
    int32_t generated;
} engine_history;

uint64_t engine_sampler_bytes(int32_t vocab);
engine_sampler *engine_sampler_new(int32_t vocab, sl_error *err);
void engine_sampler_free(engine_sampler *s);

void engine_rng_seed(engine_rng *rng, uint64_t seed);
double engine_rng_uniform(engine_rng *rng); /* [0, 1), 53 bits */

/* SL_ERR_ARGUMENT names the field that is out of range. */
bool engine_sampling_check(const sl_sampling *p, int32_t vocab, sl_error *err);

/* logits[vocab]. SL_ERR_NUMERIC: a NaN or +infinity, or no token left. */
bool engine_sample(engine_sampler *s, const sl_sampling *p, engine_rng *rng, const float *logits,
                   const engine_history *h, engine_choice *out, sl_error *err);

#endif
