/* The router: probabilities, the top k of any k (ties to the lower id), weights, and the list of (row, rank) pairs by
 * expert.
 *
 * rank is an expert's place among its row's chosen ones in ascending id: the order of addition everywhere. */
#include "ops/ops_cpu.h"

#include "cpu/cpu_math.h"

#include <math.h>
#include <string.h>

/* Inserts id into the k best so far (descending probability, ties keep the lower id first). */
static int32_t insert_best(int32_t *best, int32_t count, int32_t k, const float *p, int32_t id) {
    int32_t at = count < k ? count : k;
    while (at > 0 && p[best[at - 1]] < p[id])
        at--;
    if (at >= k)
        return count;
    int32_t last = count < k ? count : k - 1;
    memmove(best + at + 1, best + at, (size_t)(last - at) * sizeof *best);
    best[at] = id;
    return count < k ? count + 1 : k;
}

static void sort_ascending(int32_t *x, int32_t n) {
    for (int32_t i = 1; i < n; i++) {
        int32_t v = x[i], j = i;
        for (; j > 0 && x[j - 1] > v; j--)
            x[j] = x[j - 1];
        x[j] = v;
    }
}

typedef struct route_job {
    const sl_ops_cpu *o;
    const sl_moe *m;
    const float *choice_bias; /* NULL: none */
    float *weight;            /* [rows][top_k] */
    int32_t *chosen;          /* likewise, ascending */
} route_job;

/* Logits of a row to p; the sum of softmax's numerators, which p is to be divided by, or 1. NaN where a logit is. */
static float probabilities(const route_job *j, float *logits) {
    if (j->m->kind == SL_ROUTER_SOFTMAX)
        return j->o->ops->softmax_numerators(logits, j->m->experts);
    float total = 0;
    for (int32_t e = 0; e < j->m->experts; e++) {
        if (j->m->kind == SL_ROUTER_SIGMOID)
            logits[e] = cpu_sigmoid(logits[e]);
        total += logits[e];
    }
    return total == total ? 1 : total;
}

/* Experts of groups that are not among the best get the lowest key. A group's score is the sum of its two highest. */
static void leave_groups(const sl_moe *m, float *key) {
    float score[SL_ROUTER_GROUPS];
    int32_t best[SL_ROUTER_GROUPS], size = m->experts / m->groups, count = 0;
    for (int32_t g = 0; g < m->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t e = g * size; e < (g + 1) * size; e++) {
            if (key[e] > first) {
                second = first;
                first = key[e];
            } else if (key[e] > second)
                second = key[e];
        }
        score[g] = first + second;
        count = insert_best(best, count, m->top_groups, score, g);
    }
    for (int32_t g = 0; g < m->groups; g++) {
        bool in = false;
        for (int32_t i = 0; i < count; i++)
            in |= best[i] == g;
        for (int32_t e = g * size; !in && e < (g + 1) * size; e++)
            key[e] = -INFINITY;
    }
}

/* What experts are chosen by: p itself, or a copy in key that the choice bias and the groups have changed. */
static const float *choice_keys(const route_job *j, const float *p, float total, float *key) {
    if (!j->choice_bias && j->m->groups <= 1)
        return p;
    for (int32_t e = 0; e < j->m->experts; e++)
        key[e] = p[e] / total + (j->choice_bias ? j->choice_bias[e] : 0);
    if (j->m->groups > 1)
        leave_groups(j->m, key);
    return key;
}

/* What the weights of the chosen, best first, are divided by; gpt_oss: their logits become softmax's numerators. */
static float weight_divisor(const route_job *j, float *p, const int32_t *chosen, float total) {
    const sl_moe *m = j->m;
    bool among = m->kind == SL_ROUTER_SOFTMAX_CHOSEN;
    /* All of softmax: the sum is the total. */
    if (total != total || !(m->normalize || among) || (m->kind == SL_ROUTER_SOFTMAX && m->top_k == m->experts))
        return total;
    float norm = 0, highest = p[chosen[0]];
    for (int32_t i = 0; i < m->top_k; i++) {
        if (among)
            p[chosen[i]] = cpu_exp(p[chosen[i]] - highest);
        norm += p[chosen[i]]; /* descending, as transformers sums them */
    }
    return norm;
}

/* Chosen experts of one row and their weights. All k of n (a split dense model) needs no search. A NaN loses every
 * comparison, so an expert whose logit is one is not chosen: the total tells, and makes the row NaN. */
static void choose(const route_job *j, float *logits, float *keys, int32_t *chosen, float *weight) {
    const sl_moe *m = j->m;
    float total = probabilities(j, logits), scale = m->weight_scale != 0 ? m->weight_scale : 1;
    const float *key = choice_keys(j, logits, total, keys);
    bool all = m->top_k == m->experts && m->kind == SL_ROUTER_SOFTMAX;
    int32_t count = 0;
    for (int32_t e = 0; e < m->experts; e++) {
        if (all)
            chosen[count++] = e;
        else
            count = insert_best(chosen, count, m->top_k, key, e);
    }
    float norm = weight_divisor(j, logits, chosen, total);
    sort_ascending(chosen, m->top_k);
    for (int32_t i = 0; i < m->top_k; i++)
        weight[i] = logits[chosen[i]] / norm * scale;
}

static void choose_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const route_job *j = ctx;
    const cpu_scratch *s = &j->o->scratch;
    for (int64_t i = begin; i < end; i++)
        choose(j, s->router + i * j->m->experts, cpu_thread_scratch(j->o, worker), j->chosen + i * j->m->top_k,
               j->weight + i * j->m->top_k);
}

/* Rows that failed in an earlier layer want nothing more: their experts would be read for no one, perhaps from the disk
 * that failed. */
static void mark_pairs(cpu_scratch *s, const sl_moe *m, const sl_step *step) {
    size_t k = (size_t)m->top_k;
    for (int32_t row = 0; row < step->rows; row++)
        memset(s->done + (size_t)row * k, step->row_failed && step->row_failed[row] ? PAIR_FAILED : PAIR_MISSING, k);
}

/* Counting sort of the wanted pairs by expert; rows ascending within an expert. */
static void list_pairs(cpu_scratch *s, const sl_moe *m, int32_t rows) {
    memset(s->first, 0, (size_t)(m->experts + 1) * sizeof *s->first);
    int32_t pairs = rows * m->top_k;
    for (int32_t i = 0; i < pairs; i++)
        s->first[s->chosen[i] + 1] += s->done[i] == PAIR_MISSING;
    for (int32_t e = 0; e < m->experts; e++)
        s->first[e + 1] += s->first[e];
    /* first[e] runs to the end of e's range while filling, and is moved back after */
    for (int32_t i = 0; i < pairs; i++) {
        if (s->done[i] != PAIR_MISSING)
            continue;
        int32_t at = s->first[s->chosen[i]]++;
        s->pair_row[at] = i / m->top_k;
        s->pair_rank[at] = i % m->top_k;
    }
    memmove(s->first + 1, s->first, (size_t)m->experts * sizeof *s->first);
    s->first[0] = 0;
}

static const float *vector_at(const sl_ops_cpu *o, const sl_weight *w) {
    return w->buffer ? (const float *)(const void *)ops_at(o, w->buffer, w->offset[0]) : NULL;
}

static void route(sl_ops_cpu *o, const sl_moe *m, const cpu_rows *in, float *weight, int32_t *chosen) {
    product p = {.w = ops_matrix(o, &m->router),
                 .dst = o->scratch.router,
                 .ldd = m->experts,
                 .bias = vector_at(o, &m->router_bias),
                 .in = *in};
    cpu_products(o, &p, 1);
    route_job j = {o, m, vector_at(o, &m->choice_bias), weight, chosen};
    sl_pool_run(o->pool, in->n, 4, choose_rows, &j);
}

void cpu_route(cpu_run *r, const sl_moe *m, const float *src, int64_t stride, const uint8_t *act) {
    cpu_scratch *s = &r->o->scratch;
    cpu_rows in = cpu_rows_of(src, stride, r->step->rows, m->router.matrix.cols, act);
    route(r->o, m, &in, s->weight, s->chosen);
    mark_pairs(s, m, r->step);
    list_pairs(s, m, r->step->rows);
}

void cpu_route_guess(cpu_run *r, const sl_moe *m, const float *src, int64_t stride, int32_t rows) {
    cpu_scratch *s = &r->o->scratch;
    cpu_rows in = cpu_rows_of(src, stride, rows, m->router.matrix.cols, s->guess_act);
    route(r->o, m, &in, s->guess_weight, s->guess_chosen);
}
