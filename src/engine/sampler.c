/* Sampling. Candidates are a heap ordered by (logit, lowest id first): top-k and top-p pop as many as they need, so a
 * vocabulary of 150,000 is never sorted. */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_LAST_N = 64 };

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct engine_sampler {
    int32_t vocab;
    float *logits;    /* [vocab] with bias, penalties, temperature */
    candidate *heap;  /* [vocab] */
    double *weight;   /* [vocab] of popped candidates */
    uint32_t *counts; /* [vocab] zero between calls */
};

uint64_t engine_sampler_bytes(int32_t vocab) {
    return (uint64_t)vocab * (sizeof(float) + sizeof(candidate) + sizeof(double) + sizeof(uint32_t));
}

engine_sampler *engine_sampler_new(int32_t vocab, sl_error *err) {
    engine_sampler *s = calloc(1, sizeof *s);
    size_t n = (size_t)vocab;
    if (s) {
        s->vocab = vocab;
        s->logits = malloc(n * sizeof *s->logits);
        s->heap = malloc(n * sizeof *s->heap);
        s->weight = malloc(n * sizeof *s->weight);
        s->counts = calloc(n, sizeof *s->counts);
    }
    if (!s || !s->logits || !s->heap || !s->weight || !s->counts) {
        engine_sampler_free(s);
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a sampler over %d tokens", vocab);
    }
    return s;
}

void engine_sampler_free(engine_sampler *s) {
    if (!s)
        return;
    free(s->logits);
    free(s->heap);
    free(s->weight);
    free(s->counts);
    free(s);
}

/* ---- generator: xoshiro256++, its state filled by splitmix64 (Blackman, Vigna; public domain) ------------------- */

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotate(uint64_t v, int k) {
    return (v << k) | (v >> (64 - k));
}

void engine_rng_seed(engine_rng *rng, uint64_t seed) {
    for (int i = 0; i < 4; i++)
        rng->state[i] = splitmix(&seed);
}

double engine_rng_uniform(engine_rng *rng) {
    uint64_t *s = rng->state, out = rotate(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return (double)(out >> 11) * 0x1p-53;
}

/* ---- parameters ------------------------------------------------------------------------------------------------- */

static bool in_range(const char *name, double v, double low, double high, sl_error *err) {
    if (v >= low && v <= high)
        return true;
    return sl_fail(err, SL_ERR_ARGUMENT, "%s: %g, expected %g to %g", name, v, low, high);
}

bool engine_sampling_check(const sl_sampling *p, int32_t vocab, sl_error *err) {
    if (!in_range("temperature", p->temperature, 0, 1e6, err) || !in_range("top_k", p->top_k, 0, INT32_MAX, err) ||
        !in_range("top_p", p->top_p, 0, 1, err) || !in_range("min_p", p->min_p, 0, 1, err) ||
        !in_range("repeat_penalty", p->repeat_penalty, 0, 1e6, err) ||
        !in_range("repeat_last_n", p->repeat_last_n, 0, INT32_MAX, err) ||
        !in_range("presence_penalty", p->presence_penalty, -1e6, 1e6, err) ||
        !in_range("frequency_penalty", p->frequency_penalty, -1e6, 1e6, err) ||
        !in_range("logprobs", p->logprobs, 0, SL_MAX_LOGPROBS, err))
        return false;
    if (p->logit_bias_count && !p->logit_bias)
        return sl_fail(err, SL_ERR_ARGUMENT, "logit_bias: no entries, %zu expected", p->logit_bias_count);
    for (size_t i = 0; i < p->logit_bias_count; i++) {
        const sl_logit_bias *b = &p->logit_bias[i];
        if (b->token < 0 || b->token >= vocab)
            return sl_fail(err, SL_ERR_ARGUMENT, "logit_bias: token %d, expected 0 to %d", b->token, vocab - 1);
        if (isnan(b->bias) || b->bias == INFINITY)
            return sl_fail(err, SL_ERR_ARGUMENT, "logit_bias: bias %g of token %d, expected a finite number or -inf",
                           (double)b->bias, b->token);
    }
    return true;
}

/* ---- adjusting the logits --------------------------------------------------------------------------------------- */

/* Divides what speaks for, multiplies what speaks against tokens seen in the last n (CTRL, Keskar et al. 2019). */
static void penalize_repeats(engine_sampler *s, const sl_sampling *p, const engine_history *h) {
    float penalty = p->repeat_penalty;
    if (penalty == 0 || penalty == 1)
        return;
    int32_t n = p->repeat_last_n ? p->repeat_last_n : DEFAULT_LAST_N;
    int32_t from = h->count > n ? h->count - n : 0;
    for (int32_t i = from; i < h->count; i++) {
        int32_t t = h->tokens[i];
        if (s->counts[t]++ == 0)
            s->logits[t] = s->logits[t] > 0 ? s->logits[t] / penalty : s->logits[t] * penalty;
    }
    for (int32_t i = from; i < h->count; i++)
        s->counts[h->tokens[i]] = 0;
}

static void penalize_generated(engine_sampler *s, const sl_sampling *p, const engine_history *h) {
    if (p->presence_penalty == 0 && p->frequency_penalty == 0)
        return;
    for (int32_t i = h->generated; i < h->count; i++)
        s->counts[h->tokens[i]]++;
    for (int32_t i = h->generated; i < h->count; i++) {
        int32_t t = h->tokens[i];
        if (s->counts[t] > 0)
            s->logits[t] -= p->presence_penalty + p->frequency_penalty * (float)s->counts[t];
        s->counts[t] = 0;
    }
}

static bool load_logits(engine_sampler *s, const sl_sampling *p, const float *logits, const engine_history *h,
                        sl_error *err) {
    for (int32_t i = 0; i < s->vocab; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return sl_fail(err, SL_ERR_NUMERIC, "logit of token %d at position %d: %g, a finite number expected", i,
                           h->count, (double)logits[i]);
    memcpy(s->logits, logits, (size_t)s->vocab * sizeof *logits);
    for (size_t i = 0; i < p->logit_bias_count; i++)
        s->logits[p->logit_bias[i].token] += p->logit_bias[i].bias;
    penalize_repeats(s, p, h);
    penalize_generated(s, p, h);
    return true;
}

static int32_t largest(const engine_sampler *s) {
    int32_t best = 0;
    for (int32_t i = 1; i < s->vocab; i++)
        if (s->logits[i] > s->logits[best])
            best = i;
    return best;
}

/* ---- candidates ------------------------------------------------------------------------------------------------- */

static bool before(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(candidate *heap, int32_t n, int32_t i) {
    candidate v = heap[i];
    for (;;) {
        int64_t child = 2 * (int64_t)i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], v))
            break;
        heap[i] = heap[child];
        i = (int32_t)child;
    }
    heap[i] = v;
}

/* Every token whose scaled logit is at least `floor`, as a heap; returns how many. Logits are scaled in place. */
static int32_t gather(engine_sampler *s, float temperature, float max, float min_p) {
    float floor = min_p > 0 ? logf(min_p) : -INFINITY; /* p/pmax >= min_p */
    int32_t n = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        float v = (s->logits[i] - max) / temperature;
        if (v >= floor && v > -INFINITY)
            s->heap[n++] = (candidate){v, i};
    }
    return n;
}

/* Sum over the n candidates in the order of ids they were gathered in. */
static double weigh(engine_sampler *s, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += s->weight[i] = exp((double)s->heap[i].logit);
    return sum;
}

static int32_t draw(const engine_sampler *s, const candidate *list, int32_t n, double total, double u) {
    double target = u * total, sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += s->weight[i];
        if (s->weight[i] > 0)
            last = i;
        if (sum > target)
            return list[i].id;
    }
    return list[last].id;
}

/* Moves the `keep` first candidates in order to the end of the heap array, the best last, as heapsort does. Stops
 * early once their weights sum to `enough`. Returns how many were popped; weight[] is theirs, best first. */
static int32_t pop_best(engine_sampler *s, int32_t n, int32_t keep, double enough, double *sum) {
    int32_t popped = 0;
    *sum = 0;
    while (popped < keep && popped < n && (popped == 0 || *sum < enough)) {
        candidate best = s->heap[0];
        int32_t left = n - popped - 1;
        s->heap[0] = s->heap[left];
        s->heap[left] = best;
        if (left)
            sift_down(s->heap, left, 0);
        *sum += s->weight[popped++] = exp((double)best.logit);
    }
    return popped;
}

/* Best first at the front of the array, where draw expects them: pop_best left them reversed at the end. */
static void order_popped(engine_sampler *s, int32_t n, int32_t popped) {
    candidate *end = s->heap + n - popped;
    for (int32_t i = 0, j = popped - 1; i < j; i++, j--) {
        candidate t = end[i];
        end[i] = end[j];
        end[j] = t;
    }
}

static int32_t draw_ranked(engine_sampler *s, const sl_sampling *p, int32_t n, double u) {
    bool by_p = p->top_p > 0 && p->top_p < 1;
    double total = INFINITY, sum;
    int32_t keep = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    if (by_p && keep == n)
        total = weigh(s, n);
    for (int32_t i = n / 2; i-- > 0;)
        sift_down(s->heap, n, i);
    int32_t popped = pop_best(s, n, keep, by_p ? p->top_p * total : INFINITY, &sum);
    order_popped(s, n, popped);
    if (by_p && keep < n) { /* top-p of the k that are left */
        double enough = p->top_p * sum;
        int32_t k = 0;
        for (sum = 0; k < popped && (k == 0 || sum < enough); k++)
            sum += s->weight[k];
        return draw(s, s->heap + n - popped, k, sum, u);
    }
    return draw(s, s->heap + n - popped, popped, sum, u);
}

/* ---- log probabilities ------------------------------------------------------------------------------------------ */

/* The `want` largest logits, ties to the lowest id, by insertion: want is at most 20. */
static int find_top(const float *logits, int32_t vocab, int want, sl_logprob *top) {
    int n = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (n == want && !(logits[i] > top[n - 1].logprob))
            continue;
        int at = n < want ? n++ : n - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (sl_logprob){i, logits[i]};
    }
    return n;
}

static void fill_logprobs(const float *logits, int32_t vocab, int want, engine_choice *out) {
    out->top_count = find_top(logits, vocab, want, out->top);
    double max = out->top[0].logprob, sum = 0;
    for (int32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    double norm = max + log(sum);
    out->logprob = (float)(logits[out->token] - norm);
    for (int i = 0; i < out->top_count; i++)
        out->top[i].logprob = (float)(out->top[i].logprob - norm);
}

bool engine_sample(engine_sampler *s, const sl_sampling *p, engine_rng *rng, const float *logits,
                   const engine_history *h, engine_choice *out, sl_error *err) {
    *out = (engine_choice){.token = -1};
    if (!load_logits(s, p, logits, h, err))
        return false;
    int32_t best = largest(s);
    if (!isfinite(s->logits[best]))
        return sl_fail(err, SL_ERR_NUMERIC, "no token can be chosen at position %d: the largest logit is %g", h->count,
                       (double)s->logits[best]);
    out->token = best;
    if (p->temperature > 0) {
        double u = engine_rng_uniform(rng);
        int32_t n = gather(s, p->temperature, s->logits[best], p->min_p);
        bool ranked = p->top_k > 0 || (p->top_p > 0 && p->top_p < 1);
        out->token = ranked ? draw_ranked(s, p, n, u) : draw(s, s->heap, n, weigh(s, n), u);
    }
    if (p->logprobs > 0)
        fill_logprobs(logits, s->vocab, p->logprobs, out);
    return true;
}
