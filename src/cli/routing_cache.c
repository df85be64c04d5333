/* What caches of experts would have hit on a recorded text. LRU for every size in one pass, by stack distances; the
 * other two by running them, size by size, with the victim on top of a heap. */
#include "routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All uses one after the other: key = layer * experts + expert. */
typedef struct use_list {
    const routing *r;
    size_t count, warm; /* uses before warm are not counted */
    int keys;
    uint32_t *key;  /* [count] */
    uint32_t *next; /* [count] when the same key is used again; UINT32_MAX: never */
} use_list;

static bool uses_open(use_list *u, const routing *r, size_t warmup, sl_error *err) {
    size_t per_token = (size_t)r->layers * (size_t)r->top_k;
    *u = (use_list){.r = r, .count = r->tokens * per_token, .warm = warmup * per_token, .keys = r->layers * r->experts};
    if (u->count >= UINT32_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %zu uses of experts, fewer than 2^32 expected", r->path, u->count);
    uint32_t *seen = malloc((size_t)u->keys * sizeof *seen);
    u->key = malloc(u->count * sizeof *u->key);
    u->next = malloc(u->count * sizeof *u->next);
    if (!seen || !u->key || !u->next) {
        free(seen);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu uses", r->path, u->count);
    }
    for (size_t i = 0; i < u->count; i++)
        u->key[i] = (uint32_t)(i % per_token / (size_t)r->top_k) * (uint32_t)r->experts + r->expert[i];
    memset(seen, 0xFF, (size_t)u->keys * sizeof *seen);
    for (size_t i = u->count; i-- > 0;) {
        u->next[i] = seen[u->key[i]];
        seen[u->key[i]] = (uint32_t)i;
    }
    free(seen);
    return true;
}

static void uses_close(use_list *u) {
    free(u->key);
    free(u->next);
}

/* ---- LRU: a use hits in every cache that holds as many experts as were used since its last use --------------------
 */

/* Sums of a row of counts (Fenwick): tree[1..n]. */
static void tree_add(uint32_t *tree, size_t n, size_t i, int32_t v) {
    for (i++; i <= n; i += i & -i)
        tree[i] += (uint32_t)v;
}

static uint32_t tree_sum(const uint32_t *tree, size_t i) {
    uint32_t sum = 0;
    for (i++; i > 0; i -= i & -i)
        sum += tree[i];
    return sum;
}

/* hits[d]: counted uses for which d other experts were used since. */
static bool lru_distances(const use_list *u, uint64_t *hits, sl_error *err) {
    uint32_t *tree = calloc(u->count + 2, sizeof *tree), *last = malloc((size_t)u->keys * sizeof *last);
    bool ok = (tree && last) || sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu uses", u->count);
    if (ok)
        memset(last, 0xFF, (size_t)u->keys * sizeof *last);
    for (size_t i = 0; ok && i < u->count; i++) {
        uint32_t before = last[u->key[i]];
        if (before != UINT32_MAX) {
            /* One mark for each expert at its last use: those behind ours. */
            uint32_t since = tree_sum(tree, i) - tree_sum(tree, before);
            hits[since] += i >= u->warm;
            tree_add(tree, u->count, before, -1);
        }
        tree_add(tree, u->count, i, 1);
        last[u->key[i]] = (uint32_t)i;
    }
    free(tree);
    free(last);
    return ok;
}

static bool lru_curve(const use_list *u, routing_curve *c, sl_error *err) {
    uint64_t *hits = calloc((size_t)u->keys + 1, sizeof *hits), sum = 0;
    bool ok = hits ? lru_distances(u, hits, err) : sl_fail(err, SL_ERR_MEMORY, "out of memory");
    for (int s = 0, d = 0; ok && s < c->count; s++) {
        for (; d < c->size[s]; d++)
            sum += hits[d];
        c->lru[s] = (double)sum / (double)(u->count - u->warm);
    }
    free(hits);
    return ok;
}

/* ---- a cache whose victim is the one of the greatest rank ---------------------------------------------------------
 */

typedef struct heap {
    uint32_t *key; /* [n] a heap, greatest rank first */
    int32_t *at;   /* [keys] place in it, -1: not cached */
    uint64_t *rank;
    int n;
} heap;

static void heap_put(heap *h, int i, uint32_t key) {
    h->key[i] = key;
    h->at[key] = i;
}

static void heap_up(heap *h, int i) {
    uint32_t key = h->key[i];
    for (; i > 0 && h->rank[h->key[(i - 1) / 2]] < h->rank[key]; i = (i - 1) / 2)
        heap_put(h, i, h->key[(i - 1) / 2]);
    heap_put(h, i, key);
}

static void heap_down(heap *h, int i) {
    uint32_t key = h->key[i];
    for (int child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->rank[h->key[child + 1]] > h->rank[h->key[child]])
            child++;
        if (h->rank[h->key[child]] <= h->rank[key])
            break;
        heap_put(h, i, h->key[child]);
    }
    heap_put(h, i, key);
}

static void heap_evict(heap *h) {
    h->at[h->key[0]] = -1;
    if (--h->n > 0) {
        heap_put(h, 0, h->key[h->n]);
        heap_down(h, 0);
    }
}

/* Rank of a key after its use i; times: how often it was used until then. */
typedef uint64_t (*rank_fn)(const use_list *u, size_t i, uint32_t times);

static uint64_t rank_best(const use_list *u, size_t i, uint32_t times) {
    return u->next[i];
}

/* Fewer uses go first, then older ones. */
static uint64_t rank_lfu(const use_list *u, size_t i, uint32_t times) {
    return (uint64_t)(UINT32_MAX - times) << 32 | (UINT32_MAX - (uint32_t)i);
}

static bool run_cache(const use_list *u, int size, rank_fn rank, double *rate, sl_error *err) {
    size_t keys = (size_t)u->keys;
    heap h = {malloc(keys * sizeof *h.key), malloc(keys * sizeof *h.at), calloc(keys, sizeof *h.rank), 0};
    uint32_t *times = calloc(keys, sizeof *times);
    uint64_t hits = 0;
    bool ok = (h.key && h.at && h.rank && times) || sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu experts", keys);
    if (ok)
        memset(h.at, 0xFF, keys * sizeof *h.at);
    for (size_t i = 0; ok && i < u->count; i++) {
        uint32_t key = u->key[i];
        bool hit = h.at[key] >= 0;
        hits += hit && i >= u->warm;
        if (!hit && h.n == size)
            heap_evict(&h);
        h.rank[key] = rank(u, i, ++times[key]);
        if (!hit)
            heap_put(&h, h.n++, key);
        heap_up(&h, h.at[key]);
        heap_down(&h, h.at[key]);
    }
    *rate = (double)hits / (double)(u->count - u->warm);
    free(h.key);
    free(h.at);
    free(h.rank);
    free(times);
    return ok;
}

bool routing_simulate(const routing *r, routing_curve *out, sl_error *err) {
    use_list u;
    int keys = r->layers * r->experts;
    size_t warmup = r->tokens / 4 < 256 ? r->tokens / 4 : 256;
    *out = (routing_curve){.warmup = warmup};
    bool ok = uses_open(&u, r, warmup, err);
    for (int i = 1; ok && i <= ROUTING_SIZES; i++) {
        int size = (int)((int64_t)keys * i / ROUTING_SIZES);
        if (size > 0 && (out->count == 0 || size > out->size[out->count - 1]))
            out->size[out->count++] = size;
    }
    ok = ok && lru_curve(&u, out, err);
    for (int i = 0; ok && i < out->count; i++)
        ok = run_cache(&u, out->size[i], rank_lfu, &out->lfu[i], err) &&
             run_cache(&u, out->size[i], rank_best, &out->best[i], err);
    uses_close(&u);
    return ok;
}

/* ---- layers -------------------------------------------------------------------------------------------------------
 */

static int descending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static void describe(const uint32_t *uses, uint32_t *sorted, int experts, routing_layer *out) {
    double total = 0, entropy = 0, top = 0;
    int tenth = experts / 10 > 0 ? experts / 10 : 1;
    memcpy(sorted, uses, (size_t)experts * sizeof *sorted);
    qsort(sorted, (size_t)experts, sizeof *sorted, descending);
    for (int x = 0; x < experts; x++) {
        total += sorted[x];
        top += x < tenth ? sorted[x] : 0;
        out->used += sorted[x] > 0;
    }
    for (int x = 0; x < experts; x++)
        if (sorted[x])
            entropy -= sorted[x] / total * log(sorted[x] / total);
    out->busiest = top / total;
    out->effective = exp(entropy);
}

/* How many of a token's experts of a layer the one before it used; both lists ascend. */
static int common(const uint16_t *a, const uint16_t *b, int n) {
    int same = 0;
    for (int i = 0, k = 0; i < n && k < n;) {
        same += a[i] == b[k];
        int step = a[i] < b[k] ? -1 : a[i] > b[k];
        i += step <= 0;
        k += step >= 0;
    }
    return same;
}

void routing_layers(const routing *r, uint32_t *uses, routing_layer *out) {
    size_t per_token = (size_t)r->layers * (size_t)r->top_k, followers = 0;
    memset(uses, 0, (size_t)r->layers * (size_t)r->experts * sizeof *uses);
    memset(out, 0, (size_t)r->layers * sizeof *out);
    for (size_t t = 0; t < r->tokens; t++) {
        const uint16_t *x = r->expert + t * per_token;
        bool follows = t > 0 && r->position[t] == r->position[t - 1] + 1;
        followers += follows;
        for (int l = 0; l < r->layers; l++, x += r->top_k) {
            for (int k = 0; k < r->top_k; k++)
                uses[(size_t)l * (size_t)r->experts + x[k]]++;
            if (follows)
                out[l].again += common(x, x - per_token, r->top_k);
        }
    }
    uint32_t *sorted = malloc((size_t)r->experts * sizeof *sorted);
    for (int l = 0; sorted && l < r->layers; l++) {
        describe(uses + (size_t)l * (size_t)r->experts, sorted, r->experts, &out[l]);
        out[l].again /= followers ? (double)followers * r->top_k : 1;
    }
    free(sorted);
}
