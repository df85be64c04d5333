/* Routing with a skew: topics, so that tokens near each other ask for the same experts.
 *
 * A topic is a run of token ids. A router's rows of the topic's experts (a choice of its own in every layer) get the
 * direction that the topic's embeddings share: the mean of n random vectors has 1/sqrt(n) of their length along
 * each of them, which stands out from the rest by far. So a token adds `strength` standard deviations to the logits of
 * its topic's experts, whatever the layer, as long as its own embedding outweighs what layers add to it. The forced ids
 * stay in a topic for a while. Sizes and strengths were fitted to published hit rates of LRU caches: see
 * docs/performance.md for what they give. */
#include "cli.h"
#include "synth.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOPICS = 16, RECORDED = 4096, PIECE = 1 << 15 };

typedef struct skew_kind {
    const char *name;
    double share;    /* of a layer's experts that belong to a topic */
    double strength; /* added to their logits, in deviations of the logits */
    double leave;    /* chance that the next token is of a topic drawn anew */
} skew_kind;

/* flat: LRU hits 43.5, 62, 72, 79 % with 18, 36, 54, 73 % of the experts resident (a model of 512 experts, 10 per
 * token). local: 53, 76 % with 11, 22 % (Qwen3-30B). */
static const skew_kind kinds[] = {{"uniform", 0, 0, 1}, {"flat", 0.03125, 2.7, 0.12}, {"local", 0.109375, 2.5, 0.03}};

static const skew_kind *kind_of(const char *name) {
    for (size_t i = 0; name && i < SL_COUNT(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return &kinds[0];
}

/* Topic t has ids first + t * count, .. */
typedef struct skew_ids {
    int64_t first, count;
} skew_ids;

static skew_ids ids_of(const synth_shape *s) {
    return s->vocab < 2048 ? (skew_ids){256, 16} : (skew_ids){1024, 64};
}

bool synth_skew_fits(const synth_shape *s, const char *skew, sl_error *err) {
    int64_t need = ids_of(s).first + TOPICS * ids_of(s).count;
    return kind_of(skew)->strength == 0 || s->vocab >= need ||
           sl_fail(err, SL_ERR_ARGUMENT, "--skew %s: %s has a vocabulary of %d, %lld or more needed", skew, s->name,
                   s->vocab, (long long)need);
}

/* ---- topics ------------------------------------------------------------------------------------------------------ */

/* Elements [first, first + n) of the embedding as the file has them; n is a multiple of PIECE. */
static bool embedding_values(const synth_job *job, int64_t first, int64_t n, float *out, sl_error *err) {
    const synth_tensor *t = &job->tensors[0];
    sl_matrix m = {
        .format = job->format->mlx ? job->format->format : synth_tensor_format(job, t),
        .group = job->format->group,
        .side = SL_BF16,
        .rows = 1,
        .cols = n,
    };
    if (!sl_matrix_layout(&m, err))
        return false;
    uint8_t *part[3];
    bool ok = true;
    for (int p = 0; p < 3; p++) {
        part[p] = malloc(m.row_bytes[p] + 1);
        m.part[p] = part[p];
        ok &= part[p] != NULL;
    }
    if (ok && !job->format->mlx) {
        synth_fill_blocks(job->random, m.format, 0, first, n, t->deviation, part[0]);
    } else if (ok) {
        synth_fill_codes(job->random, 0, first, n, part[0]);
        if (sl_format_is_affine(m.format))
            synth_fill_affine(job->random, 0, first / m.group, n / m.group, t->deviation, (uint16_t *)part[1],
                              (uint16_t *)part[2]);
        else
            synth_fill_powers(job->random, 0, first / m.group, n / m.group, t->deviation, part[1]);
    }
    if (ok)
        sl_format_get(m.format)->dequantize(&m, 0, 0, n, out);
    for (int p = 0; p < 3; p++)
        free(part[p]);
    return ok || sl_fail(err, SL_ERR_MEMORY, "out of memory for the topics");
}

/* direction[t][col]: of length 1. */
static void find_directions(const float *values, int64_t ids, int64_t hidden, float *direction) {
    for (int t = 0; t < TOPICS; t++) {
        float *d = direction + t * hidden;
        double square = 0;
        for (int64_t c = 0; c < hidden; c++) {
            double sum = 0;
            for (int64_t i = 0; i < ids; i++)
                sum += values[(t * ids + i) * hidden + c];
            d[c] = (float)sum;
            square += sum * sum;
        }
        for (int64_t c = 0; c < hidden; c++)
            d[c] /= (float)sqrt(square);
    }
}

bool synth_skew_open(synth_job *job, sl_error *err) {
    skew_ids ids = ids_of(job->shape);
    int64_t hidden = job->shape->hidden, at = ids.first * hidden, first = at / PIECE * PIECE,
            n = (at + TOPICS * ids.count * hidden - first + PIECE - 1) / PIECE * PIECE;
    job->direction = NULL;
    if (kind_of(job->skew)->strength == 0)
        return true;
    float *values = malloc((size_t)n * sizeof *values);
    job->direction = malloc((size_t)(TOPICS * hidden) * sizeof *job->direction);
    bool ok = (values && job->direction) || sl_fail(err, SL_ERR_MEMORY, "out of memory for the topics");
    ok = ok && embedding_values(job, first, n, values, err);
    if (ok)
        find_directions(values + (at - first), ids.count, hidden, job->direction);
    free(values);
    return ok;
}

void synth_skew_close(synth_job *job) {
    free(job->direction);
    job->direction = NULL;
}

/* ---- routers ----------------------------------------------------------------------------------------------------- */

/* Whether an expert is of a topic in a layer (a router tensor's index): the topic's experts are those with the least
 * of random keys, so that every topic has as many. */
static bool belongs(const synth_job *job, size_t index, int topic, int64_t expert) {
    int64_t experts = job->shape->experts, least = 0;
    int64_t wanted = (int64_t)(kind_of(job->skew)->share * (double)experts + 0.5);
    uint64_t seed = job->random->seed * 0x9E3779B97F4A7C15u + index * TOPICS + (uint64_t)topic, state, mine = 0;
    for (int64_t e = -1; e < experts; e++) {
        state = seed ^ (uint64_t)(e < 0 ? expert : e) << 40;
        uint64_t key = synth_next(&state);
        if (e < 0)
            mine = key;
        else
            least += key < mine;
    }
    return least < wanted;
}

/* The projection of a token's normalised embedding on its topic's direction is sqrt(hidden / ids). */
void synth_skew_router(const synth_job *job, size_t index, int64_t first, int64_t n, float *out) {
    const skew_kind *kind = kind_of(job->skew);
    int64_t hidden = job->shape->hidden, row = -1;
    float weight = (float)(kind->strength * job->tensors[index].deviation * sqrt((double)ids_of(job->shape).count));
    bool of[TOPICS] = {false};
    for (int64_t i = 0; i < n && job->direction; i++) {
        if ((first + i) / hidden != row) {
            row = (first + i) / hidden;
            for (int t = 0; t < TOPICS; t++)
                of[t] = belongs(job, index, t, row);
        }
        for (int t = 0; t < TOPICS; t++)
            if (of[t])
                out[i] += weight * job->direction[t * hidden + (first + i) % hidden];
    }
}

/* ---- the ids that go with it ------------------------------------------------------------------------------------- */

char *synth_skew_path(const char *out) {
    return sl_asprintf("%s.ids.json", out);
}

bool synth_is_skewed(const char *skew) {
    return kind_of(skew)->strength > 0;
}

/* OUT.ids.json: what a benchmark forces on this and on other engines. */
bool synth_skew_ids(const synth_job *job, const char *out, sl_error *err) {
    const skew_kind *kind = kind_of(job->skew);
    if (kind->strength == 0)
        return true;
    skew_ids range = ids_of(job->shape);
    uint64_t state = job->random->seed + 0x51C0;
    json_t *ids = json_array();
    int64_t topic = 0;
    for (int i = 0; i < RECORDED; i++) {
        uint64_t x = synth_next(&state);
        if ((double)(x >> 11) / 9007199254740992.0 < kind->leave)
            topic = (int64_t)(synth_next(&state) % TOPICS);
        json_array_append_new(ids, json_integer(range.first + topic * range.count +
                                                (int64_t)(synth_next(&state) % (uint64_t)range.count)));
    }
    char *path = synth_skew_path(out);
    bool ok = path ? cli_replace_json(path, ids, JSON_COMPACT, err) : sl_fail(err, SL_ERR_MEMORY, "out of memory");
    free(path);
    json_decref(ids);
    return ok;
}
