/* The step buffer: what changes from step to step, where kernels find it (args.h, sl_step_head). */
#include "ops/ops_gpu.h"

#include <string.h>

enum { HEAD_PLACE = 256 /* bytes: what every device's bindings may be asked to be aligned to */ };

/* Words behind the heads for `rows` rows (or sequences, where there are more of them) with so many pages and blocks of
 * state together. */
uint64_t gpu_step_bytes(int64_t rows, int64_t pages, int64_t states) {
    uint64_t heads = (GPU_MATMUL_ROWS + 1) * HEAD_PLACE, of_groups = GPU_MATMUL_ROWS * (uint64_t)(rows + 2);
    return heads + ((uint64_t)(8 * rows + 2 + 2 * pages + 2 * states) + of_groups) * sizeof(int32_t);
}

static bool has_op(const gpu_run *r, op_kind kind) {
    for (size_t i = 0; i < r->p->count; i++)
        if (r->p->list[i].kind == kind)
            return true;
    return false;
}

/* Does the program keep recurrent state? */
static bool has_states(const gpu_run *r) {
    return has_op(r, OP_DELTA);
}

static int64_t all_states(const gpu_run *r) {
    const sl_step *s = r->step;
    int64_t runs = 0;
    for (int32_t row = 0; row < s->rows; row++)
        runs += row == 0 || s->seq[row] != s->seq[row - 1];
    return has_states(r) ? runs * r->o->known.state.layers : 0;
}

typedef struct words {
    int32_t *base;
    uint32_t at;
} words;

static uint32_t put(words *w, const int32_t *values, int32_t n) {
    uint32_t at = w->at;
    if (n > 0) /* else there may be no values */
        memcpy(w->base + at, values, (size_t)n * sizeof *values);
    w->at += (uint32_t)n;
    return at;
}

/* Pages that the step's positions reach; the tables may be longer. */
static int32_t pages_used(const gpu_run *r, int32_t seq) {
    const sl_step *s = r->step;
    int32_t last = -1;
    if (!has_op(r, OP_ATTENTION))
        return 0;
    for (int32_t i = 0; i < s->rows; i++)
        if (s->seq[i] == seq && s->position[i] > last)
            last = s->position[i];
    return last / SL_KV_PAGE_TOKENS + (last >= 0);
}

static int64_t all_pages(const gpu_run *r) {
    int64_t n = 0;
    for (int32_t i = 0; i < r->step->seq_count; i++)
        n += pages_used(r, i);
    return n;
}

/* Blocks as kernels find them (pages.h). */
static uint32_t put_entries(words *w, const gpu_slabs *slabs, const int32_t *blocks, int32_t n, int32_t per_slab,
                            uint64_t block_bytes) {
    uint32_t at = w->at;
    for (int32_t i = 0; i < n; i++) {
        uint64_t entry = slabs->entry[blocks[i] / per_slab] + (uint64_t)(blocks[i] % per_slab) * block_bytes;
        int32_t halves[2] = {(int32_t)(uint32_t)entry, (int32_t)(uint32_t)(entry >> 32)};
        put(w, halves, 2);
    }
    return at;
}

static void put_pages(words *w, const gpu_run *r, sl_step_head *head) {
    const sl_step *s = r->step;
    const sl_kv_layout *kv = &r->o->known.kv;
    head->page_first = w->at;
    w->at += (uint32_t)s->seq_count;
    for (int32_t i = 0; i < s->seq_count; i++)
        w->base[head->page_first + (uint32_t)i] = (int32_t)put_entries(w, &r->o->kv, s->seqs[i].pages, pages_used(r, i),
                                                                       kv->blocks_per_slab, kv->block_bytes);
}

/* Runs of rows of one sequence, and the state of those that have rows. */
static void put_runs(words *w, const gpu_run *r, sl_step_head *head) {
    const sl_step *s = r->step;
    const sl_state_layout *l = &r->o->known.state;
    head->run_row = w->at;
    for (int32_t row = 0; row < s->rows; row++)
        if (row == 0 || s->seq[row] != s->seq[row - 1]) {
            w->base[w->at++] = row;
            head->runs++;
        }
    w->base[w->at++] = s->rows;
    head->state_first = w->at;
    w->at += (uint32_t)s->seq_count;
    for (int32_t i = 0; i < head->runs && has_states(r); i++) {
        int32_t seq = s->seq[w->base[head->run_row + (uint32_t)i]];
        w->base[head->state_first + (uint32_t)seq] =
            (int32_t)put_entries(w, &r->o->state, s->seqs[seq].state, l->layers, l->blocks_per_slab, l->block_bytes);
    }
}

/* Blocks of consecutive rows of one sequence, at most SL_ATTENTION_ROWS each. */
static void put_blocks(words *w, const sl_step *s, sl_step_head *head) {
    head->block_row = w->at;
    for (int32_t row = 0, first = 0; row < s->rows; row++) {
        bool new_block = row == 0 || s->seq[row] != s->seq[row - 1] || row - first == SL_ATTENTION_ROWS;
        if (new_block) {
            first = row;
            w->base[w->at++] = row;
            head->blocks++;
        }
    }
    w->base[w->at++] = s->rows;
}

/* ---- groups of few rows ------------------------------------------------------------------------------------------ */

/* Consecutive rows whose (row, split) pairs fit the scratch, so that how far other rows have come changes nothing for a
 * row; one with more splits than that is a group of its own. */
static void make_groups(gpu_run *r) {
    const sl_step *s = r->step;
    gpu_group *g = NULL;
    r->groups = 0;
    for (int32_t row = 0; row < s->rows && s->rows < GPU_MATMUL_ROWS; row++) {
        int32_t splits = s->position[row] / SL_ATTENTION_SPLIT + 1;
        int32_t most = g && g->splits > splits ? g->splits : splits;
        if (!g || (int64_t)(g->rows + 1) * most > GPU_SPLITS) {
            g = &r->group[r->groups++];
            *g = (gpu_group){.first = row};
            most = splits;
        }
        g->rows++;
        g->splits = most;
    }
    for (int i = 0; i < r->groups; i++)
        r->group[i].head = r->groups > 1 ? (uint64_t)(i + 1) * HEAD_PLACE : 0;
}

/* The head of a group counts its words from itself; of arrays by sequence and of blocks it has its own. */
static void put_group(words *w, const gpu_run *r, const gpu_group *g, const sl_step_head *whole) {
    uint32_t here = (uint32_t)(g->head / sizeof(int32_t)), row = (uint32_t)g->first;
    sl_step_head head = {.rows = g->rows,
                         .seqs = whole->seqs,
                         .token = whole->token - here + row,
                         .seq = whole->seq - here + row,
                         .position = whole->position - here + row,
                         .page_first = w->at - here};
    for (int32_t i = 0; i < whole->seqs; i++)
        w->base[w->at++] = w->base[whole->page_first + (uint32_t)i] - (int32_t)here;
    head.block_row = w->at - here;
    for (int32_t i = 0; i <= g->rows; i++) /* attention's blocks: one row each */
        w->base[w->at++] = i;
    head.blocks = g->rows;
    memcpy(w->base + here, &head, sizeof head);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static bool settle(gpu_run *r, gpu_slabs *s, uint8_t *const *slab, const int32_t *blocks, int32_t n, int32_t per_slab,
                   uint64_t block_bytes) {
    for (int32_t i = 0; i < n; i++)
        if (!gpu_slabs_settle(r->o, s, slab, (size_t)(blocks[i] / per_slab), (uint64_t)per_slab * block_bytes, r->err))
            return false;
    return true;
}

/* The slabs that the step's rows use. */
static bool settle_all(gpu_run *r) {
    const sl_step *s = r->step;
    const ops_memory *m = &r->o->known;
    for (int32_t i = 0; i < s->seq_count; i++)
        if (!settle(r, &r->o->kv, m->kv_slabs, s->seqs[i].pages, pages_used(r, i), m->kv.blocks_per_slab,
                    m->kv.block_bytes))
            return false;
    for (int32_t row = 0; row < s->rows && has_states(r); row++)
        if (!settle(r, &r->o->state, m->state_slabs, s->seqs[s->seq[row]].state, m->state.layers,
                    m->state.blocks_per_slab, m->state.block_bytes))
            return false;
    return true;
}

static bool find_slabs(gpu_run *r) {
    ops_memory *m = &r->o->known;
    if (has_states(r) && !gpu_slabs_resolve(r->o, &r->o->state, m->state_slabs, m->state_count,
                                            (uint64_t)m->state.blocks_per_slab * m->state.block_bytes, "State", r->err))
        return false;
    return gpu_slabs_resolve(r->o, &r->o->kv, m->kv_slabs, m->kv_count,
                             (uint64_t)m->kv.blocks_per_slab * m->kv.block_bytes, "KV", r->err);
}

bool gpu_step_fill(gpu_run *r) {
    const sl_step *s = r->step;
    gpu_scratch *m = &r->o->scratch;
    if (!find_slabs(r) || (r->o->apart && !settle_all(r)))
        return false;
    /* seq_count may exceed rows: sequences that take no part have no pages here */
    if (gpu_step_bytes(sl_max_i64(s->rows, s->seq_count), all_pages(r), all_states(r)) > m->step_bytes)
        return sl_fail(r->err, SL_ERR_ARGUMENT, "a step of %d rows over %lld KV pages is larger than its buffer",
                       s->rows, (long long)all_pages(r));
    sl_step_head head = {.rows = s->rows, .outs = s->outs, .seqs = s->seq_count};
    make_groups(r);
    words w = {(int32_t *)(void *)m->step, (uint32_t)((r->groups > 1 ? r->groups + 1 : 1) * HEAD_PLACE / 4)};
    head.token = put(&w, s->token, s->rows);
    head.seq = put(&w, s->seq, s->rows);
    head.position = put(&w, s->position, s->rows);
    head.out_row = put(&w, s->out_rows, s->outs);
    put_pages(&w, r, &head);
    put_runs(&w, r, &head);
    put_blocks(&w, s, &head);
    for (int i = 0; i < r->groups && r->groups > 1; i++)
        put_group(&w, r, &r->group[i], &head);
    memcpy(m->step, &head, sizeof head);
    m->step_used = (uint64_t)w.at * sizeof(int32_t);
    r->o->step_told = false;
    return true;
}
