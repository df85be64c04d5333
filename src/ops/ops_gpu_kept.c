/* Lists that are kept: a decoding step is encoded once, and replayed while all that the encoding depended on is the
 * same. That is cheap to say for steps of few rows that nobody waits in: rows and outs, how rows are grouped for
 * attention and which belong together, where logits go, how many pieces of KV and state there are. Positions, tokens
 * and pages lie in the step's buffer, experts in tables. A list binds memory and pipelines: whoever gives memory back,
 * moves scratch, drops libraries or changes slots of experts has all lists forgotten first. */
#include "ops/ops_gpu.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT = 32, SEEN = 8 };

typedef struct kept_key {
    const sl_program *p;
    const float *logits;
    uint64_t told; /* bytes of the step's buffer that go to the device */
    int32_t rows, outs, groups, kv_pieces, state_pieces;
    uint32_t follows; /* bit i: row i is of an earlier row's sequence */
    gpu_group group[GPU_MATMUL_ROWS];
} kept_key;

typedef struct kept_list {
    kept_key key;
    sl_gpu_replay *replay; /* NULL: free */
    uint64_t used;
} kept_list;

typedef struct gpu_kept {
    kept_list list[KEPT];
    kept_key seen[SEEN]; /* given once lately: the second time is worth keeping */
    int next;
    uint64_t clock;
    kept_key now;
} gpu_kept;

void gpu_kept_drop(sl_ops_gpu *o) {
    gpu_kept *k = o->kept;
    for (int i = 0; k && i < KEPT; i++) {
        sl_gpu_replay_free(k->list[i].replay);
        k->list[i].replay = NULL;
    }
    if (k)
        memset(k->seen, 0, sizeof k->seen);
}

void gpu_kept_free(sl_ops_gpu *o) {
    gpu_kept_drop(o);
    free(o->kept);
    o->kept = NULL;
}

/* Compared byte by byte, so padding is zero. */
static void make_key(const gpu_run *r, kept_key *key) {
    const sl_step *s = r->step;
    memset(key, 0, sizeof *key);
    key->p = r->p;
    key->logits = s->logits;
    key->told = gpu_step_told(r);
    key->rows = s->rows;
    key->outs = s->outs;
    key->groups = r->groups;
    key->kv_pieces = r->o->kv.pieces;
    key->state_pieces = r->o->state.pieces;
    for (int32_t i = 1; i < s->rows; i++)
        for (int32_t j = 0; j < i; j++)
            key->follows |= (uint32_t)(s->seq[i] == s->seq[j]) << i;
    for (int i = 0; i < r->groups; i++) {
        key->group[i].first = r->group[i].first;
        key->group[i].rows = r->group[i].rows;
        key->group[i].splits = r->group[i].splits;
        key->group[i].head = r->group[i].head;
    }
}

static bool was_seen(gpu_kept *k) {
    for (int i = 0; i < SEEN; i++)
        if (memcmp(&k->seen[i], &k->now, sizeof k->now) == 0)
            return true;
    k->seen[k->next] = k->now;
    k->next = (k->next + 1) % SEEN;
    return false;
}

bool gpu_kept_possible(gpu_run *r) {
    sl_ops_gpu *o = r->o;
    if (!o->apart || o->spans || o->list || r->step->rows >= GPU_MATMUL_ROWS)
        return false;
    if (!o->kept)
        o->kept = calloc(1, sizeof *o->kept);
    if (!o->kept)
        return false;
    make_key(r, &o->kept->now);
    return true;
}

static bool submit(gpu_run *r, kept_list *l, sl_gpu_ticket *ticket) {
    l->used = ++r->o->kept->clock;
    r->o->times.gpu_lists++;
    return sl_gpu_replay_submit(l->replay, ticket, r->err);
}

bool gpu_kept_replay(gpu_run *r, sl_gpu_ticket *ticket, bool *done) {
    gpu_kept *k = r->o->kept;
    *done = false;
    for (int i = 0; i < KEPT && !*done; i++) {
        if (!k->list[i].replay || memcmp(&k->list[i].key, &k->now, sizeof k->now) != 0)
            continue;
        *done = true;
        return submit(r, &k->list[i], ticket);
    }
    return true;
}

static kept_list *place_for(gpu_kept *k) {
    kept_list *l = &k->list[0];
    for (int i = 1; i < KEPT && l->replay; i++)
        if (!k->list[i].replay || k->list[i].used < l->used)
            l = &k->list[i];
    sl_gpu_replay_free(l->replay);
    l->replay = NULL;
    return l;
}

bool gpu_kept_submit(gpu_run *r, sl_gpu_ticket *ticket) {
    sl_ops_gpu *o = r->o;
    if (!o->list || gpu_has_passing(o) || !was_seen(o->kept))
        return gpu_submit_now(r, ticket);
    kept_list *l = place_for(o->kept);
    l->key = o->kept->now;
    l->replay = sl_gpu_keep(o->list, r->err);
    o->list = NULL;
    return l->replay && submit(r, l, ticket);
}
