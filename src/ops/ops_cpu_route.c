/* The router: softmax over all experts, the top k of any k (ties to the lower id), weights, and the list of (row, rank)
 * pairs by expert.
 *
 * rank is an expert's place among its row's chosen ones in ascending id: the order of addition everywhere. */
#include "ops/ops_cpu.h"

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

/* Chosen experts of one row and their weights. All k of n (a split dense model) needs no search. */
static void choose(const cpu_ops *ops, const sl_moe *m, float *logits, int32_t *chosen, float *weight) {
    float total = ops->softmax_numerators(logits, m->experts);
    int32_t count = 0;
    for (int32_t e = 0; e < m->experts; e++) {
        if (m->top_k == m->experts)
            chosen[count++] = e;
        else
            count = insert_best(chosen, count, m->top_k, logits, e);
    }
    /* A NaN loses every comparison, so an expert whose logit is one is not chosen: the total tells, and makes the row
     * NaN. */
    float norm = total;
    if (m->normalize && m->top_k < m->experts && total == total) {
        norm = 0;
        for (int32_t i = 0; i < m->top_k; i++) /* descending probability, as transformers sums them */
            norm += logits[chosen[i]];
    }
    sort_ascending(chosen, m->top_k);
    for (int32_t i = 0; i < m->top_k; i++)
        weight[i] = logits[chosen[i]] / norm;
}

typedef struct route_job {
    const sl_ops_cpu *o;
    const sl_moe *m;
} route_job;

static void choose_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const route_job *j = ctx;
    const cpu_scratch *s = &j->o->scratch;
    for (int64_t i = begin; i < end; i++)
        choose(j->o->ops, j->m, s->router + i * j->m->experts, s->chosen + i * j->m->top_k,
               s->weight + i * j->m->top_k);
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

void cpu_route(cpu_run *r, const sl_moe *m, const float *src, int64_t stride, const uint8_t *act) {
    sl_ops_cpu *o = r->o;
    product p = {.w = ops_matrix(o, &m->router),
                 .dst = o->scratch.router,
                 .ldd = m->experts,
                 .in = cpu_rows_of(src, stride, r->step->rows, m->router.matrix.cols, act)};
    cpu_products(o, &p, 1);
    route_job j = {o, m};
    sl_pool_run(o->pool, r->step->rows, 4, choose_rows, &j);
    mark_pairs(&o->scratch, m, r->step);
    list_pairs(&o->scratch, m, r->step->rows);
}
