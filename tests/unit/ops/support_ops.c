#include "support_ops.h"

#include "ops/ops_cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

uint32_t rng_next(rng *r) {
    r->state += 0x9e3779b97f4a7c15u;
    uint64_t z = r->state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

int32_t rng_below(rng *r, int32_t n) {
    return (int32_t)(rng_next(r) % (uint32_t)n);
}

float rng_normal(rng *r) {
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (float)(rng_next(r) >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.4142135f;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static sl_ops *open_cpu(rig *g, const rig_options *o) {
    sl_error err = {0};
    sl_ops_cpu_options ops = {.pool = g->pool, .mem = g->mem, .numeric = o->numeric, .isa = o->isa};
    return sl_ops_cpu_new(&ops, &err);
}

const char *rig_device(const char *soft) {
    const char *named = getenv("SLUICE_TEST_DEVICE");
    return named && *named ? named : soft;
}

static sl_ops *open_gpu(rig *g, const rig_options *o) {
    sl_error err = {0};
    sl_gpu_options gpu = SL_GPU_OPTIONS_INIT;
    gpu.device = rig_device(o->device);
    gpu.cache_dir = o->cache_dir;
    gpu.check = o->check && gpu.device == o->device;
    gpu.seed = o->seed;
    g->gpu = sl_gpu_open(&gpu, &err);
    sl_ops *ops = g->gpu ? sl_ops_gpu_new(g->gpu, g->mem, &err) : NULL;
    if (!ops)
        print_message("SKIP: device %s: %s\n", gpu.device, err.message);
    return ops;
}

bool rig_open(rig *g, const rig_options *o) {
    sl_error err = {0};
    *g = (rig){0};
    uint64_t budget = o->budget ? o->budget : 1ull << 30;
    g->mem = o->device && !o->scattered ? sl_mem_new_gathered(budget, 1 << 20, SL_GPU_PIECES, &err)
                                        : sl_mem_new(budget, 1 << 20, &err);
    g->pool = sl_pool_new(o->threads ? o->threads : 2, &err);
    assert_non_null(g->mem);
    assert_non_null(g->pool);
    g->ops = o->device ? open_gpu(g, o) : open_cpu(g, o);
    if (!g->ops)
        rig_close(g);
    return g->ops != NULL;
}

void rig_close(rig *g) {
    sl_ops_free(g->ops);
    sl_gpu_close(g->gpu);
    sl_pool_free(g->pool);
    sl_mem_free(g->mem);
    for (size_t i = 0; i < g->block_count; i++)
        free(g->blocks[i]);
    free(g->blocks);
    *g = (rig){0};
}

void *rig_memory(rig *g, size_t bytes) {
    void *list = g->blocks;
    assert_true(sl_grow(&list, &g->block_capacity, g->block_count + 1, sizeof *g->blocks));
    g->blocks = list;
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    return g->blocks[g->block_count++] = p;
}

void rig_rank_bytes(rig *g, int64_t bytes) {
    if (g->gpu)
        return;
    ((sl_ops_cpu *)g->ops)->rank_bytes = bytes;
}

sl_view rig_view(rig *g, sl_rows rows, int32_t max_rows, int32_t cols, int32_t pad) {
    sl_view v = {.rows = rows, .cols = cols, .stride = cols + pad, .offset = 64};
    size_t bytes = 64 + (size_t)max_rows * (size_t)v.stride * sizeof(float);
    uint8_t *p = rig_memory(g, bytes);
    memset(p, 0xff, bytes);
    v.buffer = sl_ops_wrap(g->ops, p, bytes, NULL);
    assert_true(v.buffer != 0);
    return v;
}

float *rig_row(const rig *g, const sl_view *v, int32_t row) {
    const ops_memory *m = &((const ops_common *)g->ops)->known;
    return (float *)(void *)(m->buffers[v->buffer].base + v->offset) + row * v->stride;
}

sl_matrix rig_matrix(rig *g, rng *r, sl_format_id format, int64_t rows, int64_t cols, float magnitude,
                     double **values) {
    sl_matrix m = {.format = format, .rows = rows, .cols = cols};
    sl_error err = {0};
    if (!sl_matrix_layout(&m, &err))
        fail_msg("%s", err.message);
    uint8_t *bytes = (uint8_t *)rig_memory(g, (size_t)rows * m.row_bytes[0] + 16);
    bytes += g->aligned ? -(uintptr_t)bytes % 16 : format == SL_F32 ? 4 : 1;
    float *x = malloc((size_t)cols * sizeof *x);
    if (values)
        *values = rig_memory(g, (size_t)(rows * cols) * sizeof **values);
    m.part[0] = bytes;
    for (int64_t row = 0; row < rows; row++) {
        uint8_t *to = bytes + (uint64_t)row * m.row_bytes[0];
        for (int64_t i = 0; i < cols; i++)
            x[i] = rng_normal(r) * magnitude;
        if (format == SL_F32)
            memcpy(to, x, (size_t)cols * sizeof *x);
        else
            sl_format_get(format)->quantize(x, cols, to);
        sl_format_get(format)->dequantize(&m, row, 0, cols, x);
        for (int64_t i = 0; values && i < cols; i++)
            (*values)[row * cols + i] = x[i];
    }
    free(x);
    return m;
}

sl_weight rig_weight(rig *g, const sl_matrix *m) {
    sl_weight w = {.matrix = *m};
    w.buffer = sl_ops_wrap(g->ops, (void *)m->part[0], (uint64_t)m->rows * m->row_bytes[0], NULL);
    assert_true(w.buffer != 0);
    return w;
}

sl_weight rig_vector(rig *g, rng *r, int64_t n) {
    sl_matrix m = rig_matrix(g, r, SL_F32, 1, n, 1, NULL);
    return rig_weight(g, &m);
}

double worse_of(double worst, double error) {
    return isnan(worst) || error <= worst ? worst : error;
}

double rig_row_error(const float *got, const float *want, int32_t n) {
    double worst = 0, squares = 0;
    for (int32_t i = 0; i < n; i++)
        squares += (double)want[i] * want[i] / n;
    for (int32_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]) / sqrt(squares);
        worst = worse_of(worst, e);
    }
    return worst;
}

double rig_view_error(const rig *a, const sl_view *got, const rig *b, const sl_view *want, int32_t rows) {
    double worst = 0;
    for (int32_t i = 0; i < rows; i++) {
        double e = rig_row_error(rig_row(a, got, i), rig_row(b, want, i), got->cols);
        worst = worse_of(worst, e);
    }
    return worst;
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

static void broken(source *s, const char *how) {
    if (!*s->wrong)
        snprintf(s->wrong, sizeof s->wrong, "%s", how);
}

static void shuffle(source *s) {
    for (int32_t i = 0; i < s->n; i++)
        s->order[i] = s->reverse ? s->ids[s->n - 1 - i] : s->ids[i];
    for (int32_t i = s->n - 1; !s->reverse && i > 0; i--) {
        int32_t j = rng_below(&s->r, i + 1), id = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = id;
    }
}

static bool begin(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, sl_error *err) {
    source *s = self;
    s->begins++;
    if (s->begun)
        broken(s, "begin without end");
    if (n < 1 || n > s->experts || layer < 0 || layer >= MAX_LAYERS)
        broken(s, "begin of no or too many experts");
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->experts || (i && ids[i] <= ids[i - 1]))
            broken(s, "ids are not ascending");
    s->begun = true;
    s->repeated = false;
    s->layer = layer;
    s->n = n;
    s->at = 0;
    s->open = 0;
    s->last_order = order;
    memcpy(s->ids, ids, (size_t)n * sizeof *ids);
    memcpy(s->order, ids, (size_t)n * sizeof *ids);
    if (order == SL_ORDER_READY)
        shuffle(s);
    return !s->begin_fails || sl_fail(err, SL_ERR_IO, "begin was told to fail");
}

/* A copy that dies at done: an op that keeps a pointer longer reads what is not there. */
static void hand_out(source *s, int32_t id, sl_expert_view *out) {
    *out = (sl_expert_view){.id = id, .slot = s->open};
    for (int proj = 0; proj < SL_PROJ_COUNT && id < s->experts; proj++) {
        const sl_matrix *m = &s->matrix[s->layer][id][proj];
        size_t bytes = (size_t)m->rows * m->row_bytes[0];
        uint8_t *copy = malloc(bytes + 4);
        memcpy(copy + (m->format == SL_F32 ? 4 : 1), m->part[0], bytes);
        s->copies[id][proj * 3] = copy;
        out->part[proj * 3] = copy + (m->format == SL_F32 ? 4 : 1);
    }
    s->open++;
}

static int next(void *self, sl_expert_view *out, int max, sl_error *err) {
    source *s = self;
    int n = 0, most = s->most ? s->most : 1 + rng_below(&s->r, 9);
    if (!s->begun)
        broken(s, "next without begin");
    if (s->extra > 0) {
        out[0] = (sl_expert_view){.id = s->extra};
        s->extra = 0;
        return 1;
    }
    if (s->too_many)
        return max + 1;
    while (n < max && n < most && s->at < s->n) {
        int32_t id = s->order[s->at];
        expert_fate fate = (expert_fate)s->fate[s->layer][id];
        if (fate == FATE_FAIL && n > 0)
            return n;
        if (fate == FATE_TWICE && !s->repeated)
            s->repeated = true;
        else
            s->at++;
        if (fate == FATE_DROP)
            continue;
        if (fate == FATE_FAIL) {
            out[0] = (sl_expert_view){.id = id};
            sl_fail(err, SL_ERR_IO, "expert %d of layer %d: told to fail", id, s->layer);
            return -1;
        }
        if (s->copies[id][0]) { /* the second time of FATE_TWICE while the first is open */
            out[n++] = (sl_expert_view){.id = id};
            continue;
        }
        hand_out(s, id, &out[n++]);
    }
    return n;
}

static void spoil(source *s, int32_t id) {
    for (int p = 0; p < SL_EXPERT_PARTS; p++) {
        if (s->copies[id][p])
            memset(s->copies[id][p], 0xff, (size_t)s->matrix[s->layer][id][p / 3].row_bytes[0]);
        free(s->copies[id][p]);
        s->copies[id][p] = NULL;
    }
    s->open--;
}

static void done(void *self, const sl_expert_view *views, int n) {
    source *s = self;
    s->dones += n;
    for (int i = 0; i < n; i++) {
        if (views[i].id < 0 || views[i].id >= s->experts || !s->copies[views[i].id][0])
            broken(s, "done of an expert that was not handed out");
        else
            spoil(s, views[i].id);
    }
}

static void end(void *self) {
    source *s = self;
    s->ends++;
    if (!s->begun)
        broken(s, "end without begin");
    s->begun = false;
    for (int32_t id = 0; id < s->experts; id++)
        if (s->copies[id][0])
            spoil(s, id);
}

sl_expert_source source_of(source *s) {
    return (sl_expert_source){.self = s, .begin = begin, .next = next, .done = done, .end = end};
}
