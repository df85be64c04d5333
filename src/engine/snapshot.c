/* Snapshots of sequences as bytes, in the byte order of the machine:
 *
 *   header { magic, version, KV format, bytes of one token's KV, of a sequence's state, fingerprint of model and
 * numeric mode, tokens } token ids, i32 [tokens] recurrent state, where the model has it and there are tokens [layer]:
 * as in the blocks KV [tokens/64 pages][layer][K|V][kv_head][token of the page][head]: as in the blocks, without unused
 * positions XXH3 64 of everything before
 *
 * KV depends on the numeric mode and on everything about the model, so both are in the fingerprint: a snapshot goes
 * back only where continuing it gives what the original would have given. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { VERSION = 3, SAMPLED_TENSORS = 64, SAMPLE_BYTES = 4096 };

static const char MAGIC[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'K', 'V'};

typedef struct header {
    char magic[8];
    uint32_t version, kv_format;
    uint64_t token_bytes; /* KV of one token, all layers */
    uint64_t state_bytes; /* of a sequence, all layers; 0: the model has none */
    uint64_t fingerprint;
    uint64_t tokens;
} header;

/* ---- fingerprint ------------------------------------------------------------------------------------------------ */

/* A few bytes of the weights: models that differ in nothing but training must not be taken for one another. */
static bool hash_samples(XXH3_state_t *h, const sl_ckpt *c, sl_error *err) {
    size_t n = sl_ckpt_tensor_count(c), step = n / SAMPLED_TENSORS + 1;
    uint8_t bytes[SAMPLE_BYTES];
    for (size_t i = 0; i < n; i += step) {
        const sl_extent *x = &sl_ckpt_tensor(c, i)->part[0];
        uint64_t size = x->bytes < SAMPLE_BYTES ? x->bytes : SAMPLE_BYTES;
        uint64_t at = x->offset + (x->bytes - size) / 2;
        if (!sl_file_read(sl_ckpt_file(c, x->file), at, bytes, size, err))
            return false;
        sl_file_drop(sl_ckpt_file(c, x->file), at, size);
        XXH3_64bits_update(h, bytes, (size_t)size);
    }
    return true;
}

static void hash_tensors(XXH3_state_t *h, const sl_ckpt *c) {
    for (size_t i = 0; i < sl_ckpt_tensor_count(c); i++) {
        const sl_tensor *t = sl_ckpt_tensor(c, i);
        XXH3_64bits_update(h, t->name, strlen(t->name) + 1);
        XXH3_64bits_update(h, t->shape, sizeof t->shape[0] * (size_t)t->dims);
        uint64_t format = (uint64_t)t->format;
        XXH3_64bits_update(h, &format, sizeof format);
    }
}

static void hash_settings(XXH3_state_t *h, const sl_engine *e) {
    XXH3_64bits_update(h, e->numeric, strlen(e->numeric) + 1);
    XXH3_64bits_update(h, e->approximation, strlen(e->approximation) + 1);
    int32_t sizes[] = {e->vocab, engine_kv_layout(e->kv)->layers, engine_kv_layout(e->kv)->kv_heads,
                       engine_kv_layout(e->kv)->head_dim};
    XXH3_64bits_update(h, sizes, sizeof sizes);
    const sl_state_layout *st = &e->state_layout;
    int32_t state[] = {st->layers, st->key_heads, st->value_heads, st->key_dim, st->value_dim, st->kernel, st->keeps};
    XXH3_64bits_update(h, state, sizeof state);
}

static bool compute_fingerprint(const sl_engine *e, uint64_t *out, sl_error *err) {
    XXH3_state_t *h = XXH3_createState();
    if (!h)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a checksum");
    XXH3_64bits_reset(h);
    hash_settings(h, e);
    bool ok = true;
    if (e->ckpt) {
        hash_tensors(h, e->ckpt);
        uint64_t experts = sl_ckpt_pack_sum(e->ckpt); /* a pack's experts are no tensors */
        XXH3_64bits_update(h, &experts, sizeof experts);
        ok = hash_samples(h, e->ckpt, err);
    }
    *out = XXH3_64bits_digest(h) | 1; /* 0 means: not yet known */
    XXH3_freeState(h);
    return ok;
}

bool engine_fingerprint(sl_engine *e, uint64_t *out, sl_error *err) {
    pthread_mutex_lock(&e->sched.mutex);
    *out = e->fingerprint;
    pthread_mutex_unlock(&e->sched.mutex);
    if (*out)
        return true;
    if (!compute_fingerprint(e, out, err))
        return false;
    pthread_mutex_lock(&e->sched.mutex);
    e->fingerprint = *out;
    pthread_mutex_unlock(&e->sched.mutex);
    return true;
}

/* ---- KV bytes --------------------------------------------------------------------------------------------------- */

static uint64_t token_bytes(const sl_kv_layout *l) {
    return (uint64_t)l->layers * (uint64_t)l->planes * (uint64_t)l->kv_heads * l->head_bytes;
}

/* Copies the first n tokens of a block to packed bytes or back: one run of n heads per (layer, K|V, head). */
static void copy_block(const sl_kv_layout *l, uint8_t *block, uint8_t *packed, int32_t n, bool to_block) {
    uint64_t run = (uint64_t)n * l->head_bytes, stride = SL_KV_PAGE_TOKENS * l->head_bytes;
    for (int64_t plane = 0; plane < (int64_t)l->layers * l->planes; plane++) {
        uint8_t *at = block + (uint64_t)plane * l->plane_bytes;
        for (int32_t head = 0; head < l->kv_heads; head++, at += stride, packed += run)
            memcpy(to_block ? at : packed, to_block ? packed : at, (size_t)run);
    }
}

/* What steps wrote may lie in a device's memory, and what is written here has to go there. */
static bool copy_pages(sl_engine *e, const int32_t *pages, int32_t tokens, uint8_t *packed, bool to_blocks,
                       sl_error *err) {
    const sl_kv_layout *l = engine_kv_layout(e->kv);
    for (int32_t done = 0; done < tokens; done += SL_KV_PAGE_TOKENS) {
        int32_t n = tokens - done < SL_KV_PAGE_TOKENS ? tokens - done : SL_KV_PAGE_TOKENS;
        uint8_t *block = engine_kv_block(e->kv, pages[done / SL_KV_PAGE_TOKENS]);
        if (!to_blocks && !sl_ops_pull(e->ops, block, l->block_bytes, err))
            return false;
        copy_block(l, block, packed, n, to_blocks);
        if (to_blocks && !sl_ops_push(e->ops, block, l->block_bytes, err))
            return false;
        packed += (uint64_t)n * token_bytes(l);
    }
    return true;
}

static uint64_t state_bytes(const sl_engine *e) {
    return (uint64_t)e->state_layout.layers * e->state_layout.used_bytes;
}

/* Copies the state of so many tokens to packed bytes or back; *packed goes on to the bytes behind it. */
static bool copy_state(sl_seq *s, int32_t tokens, uint8_t **packed, bool to_blocks, sl_error *err) {
    const sl_state_layout *l = &s->e->state_layout;
    for (int32_t i = 0; i < l->layers && tokens; i++, *packed += l->used_bytes) {
        uint8_t *block = engine_state_block(s, i);
        if (!to_blocks && !sl_ops_pull(s->e->ops, block, l->used_bytes, err))
            return false;
        memcpy(to_blocks ? block : *packed, to_blocks ? *packed : block, (size_t)l->used_bytes);
        if (to_blocks && !sl_ops_push(s->e->ops, block, l->used_bytes, err))
            return false;
    }
    return true;
}

/* ---- save ------------------------------------------------------------------------------------------------------- */

static uint64_t snapshot_bytes(const header *h) {
    return sizeof *h + (h->tokens ? h->state_bytes : 0) + h->tokens * (sizeof(int32_t) + h->token_bytes) +
           sizeof(uint64_t);
}

/* Evaluates the history again where the state no longer holds it. */
static bool renew_state(sl_seq *s, sl_error *err) {
    if (engine_state_next(s, s->length) == s->length)
        return true;
    engine_job job = {.run_count = 1};
    engine_run run = {.seq = s, .job = &job, .base = s->length};
    job.runs = &run;
    engine_submit_job(s->e, &job);
    if (job.failed && err)
        *err = job.error;
    return !job.failed;
}

static bool save_claimed(sl_seq *s, void **bytes, size_t *size, sl_error *err) {
    const sl_kv_layout *l = engine_kv_layout(s->e->kv);
    header h = {.version = VERSION,
                .kv_format = (uint32_t)l->format,
                .token_bytes = token_bytes(l),
                .state_bytes = state_bytes(s->e),
                .tokens = (uint64_t)s->length};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    if (!engine_fingerprint(s->e, &h.fingerprint, err) || !renew_state(s, err))
        return false;
    uint64_t total = snapshot_bytes(&h);
    uint8_t *out = malloc((size_t)total), *p = out;
    if (!out)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a snapshot of %llu bytes", (unsigned long long)total);
    memcpy(p, &h, sizeof h);
    p += sizeof h;
    if (s->length)
        memcpy(p, s->tokens, (size_t)s->length * sizeof(int32_t));
    p += (size_t)s->length * sizeof(int32_t);
    if (!copy_state(s, s->length, &p, false, err) || !copy_pages(s->e, s->pages, s->length, p, false, err)) {
        free(out);
        return false;
    }
    uint64_t sum = XXH3_64bits(out, (size_t)total - sizeof sum);
    memcpy(out + total - sizeof sum, &sum, sizeof sum);
    *bytes = out;
    *size = (size_t)total;
    return true;
}

bool sl_seq_save(const sl_seq *s, void **bytes, size_t *size, sl_error *err) {
    sl_seq *seq = (sl_seq *)s;
    if (!engine_seq_claim(s->e, seq, &seq, NULL, err))
        return false;
    bool ok = save_claimed(seq, bytes, size, err);
    engine_seq_release(seq);
    return ok;
}

/* ---- restore ---------------------------------------------------------------------------------------------------- */

static bool check_header(sl_engine *e, const header *h, size_t size, sl_error *err) {
    const sl_kv_layout *l = engine_kv_layout(e->kv);
    uint64_t fingerprint;
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "snapshot: it does not begin with SLUICEKV");
    if (h->version != VERSION)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "snapshot: version %u, expected %d", h->version, VERSION);
    if (!engine_fingerprint(e, &fingerprint, err))
        return false;
    if (h->fingerprint != fingerprint)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "snapshot: fingerprint %016llx of another model or numeric mode, expected %016llx",
                       (unsigned long long)h->fingerprint, (unsigned long long)fingerprint);
    if (h->kv_format != (uint32_t)l->format || h->token_bytes != token_bytes(l))
        return sl_fail(err, SL_ERR_ARGUMENT, "snapshot: KV format %u of %llu bytes a token, expected %u of %llu",
                       h->kv_format, (unsigned long long)h->token_bytes, (unsigned)l->format,
                       (unsigned long long)token_bytes(l));
    if (h->state_bytes != state_bytes(e))
        return sl_fail(err, SL_ERR_ARGUMENT, "snapshot: recurrent state of %llu bytes, expected %llu",
                       (unsigned long long)h->state_bytes, (unsigned long long)state_bytes(e));
    if (h->tokens > (uint64_t)e->context)
        return sl_fail(err, SL_ERR_CONTEXT, "snapshot: %llu tokens, the context holds %d",
                       (unsigned long long)h->tokens, e->context);
    if (size != snapshot_bytes(h))
        return sl_fail(err, SL_ERR_FORMAT, "snapshot: %zu bytes, expected %llu for %llu tokens", size,
                       (unsigned long long)snapshot_bytes(h), (unsigned long long)h->tokens);
    return true;
}

static bool check_snapshot(sl_engine *e, const uint8_t *bytes, size_t size, header *h, sl_error *err) {
    uint64_t sum;
    if (size < sizeof *h + sizeof sum)
        return sl_fail(err, SL_ERR_FORMAT, "snapshot: %zu bytes, expected at least %zu", size, sizeof *h + sizeof sum);
    memcpy(h, bytes, sizeof *h);
    if (!check_header(e, h, size, err))
        return false;
    memcpy(&sum, bytes + size - sizeof sum, sizeof sum);
    if (XXH3_64bits(bytes, size - sizeof sum) != sum)
        return sl_fail(err, SL_ERR_FORMAT, "snapshot: damaged, its checksum does not match its %zu bytes", size);
    for (uint64_t i = 0; i < h->tokens; i++) {
        int32_t token;
        memcpy(&token, bytes + sizeof *h + i * sizeof token, sizeof token);
        if (token < 0 || token >= e->vocab)
            return sl_fail(err, SL_ERR_FORMAT, "snapshot: token %d at %llu, expected 0 to %d", token,
                           (unsigned long long)i, e->vocab - 1);
    }
    return true;
}

/* Blocks may have to come from the expert cache, which only the scheduler's thread may shrink. */
typedef struct prepare_call {
    sl_seq *seq;
    int32_t tokens;
    bool ok;
    sl_error error;
} prepare_call;

static void prepare_on_scheduler(void *ctx) {
    prepare_call *c = ctx;
    c->ok = engine_seq_prepare(c->seq, 0, c->tokens, &c->error);
}

static bool fill_sequence(sl_seq *s, const uint8_t *body, int32_t tokens, sl_error *err) {
    prepare_call call = {.seq = s, .tokens = tokens};
    if (!engine_call_run(s->e, prepare_on_scheduler, &call))
        return sl_fail(err, SL_ERR_CANCELLED, "the engine is closing");
    if (!call.ok) {
        if (err)
            *err = call.error;
        return false;
    }
    if (tokens) {
        memcpy(s->tokens, body, (size_t)tokens * sizeof *s->tokens);
        uint8_t *packed = (uint8_t *)body + (size_t)tokens * sizeof *s->tokens;
        if (!copy_state(s, tokens, &packed, true, err) || !copy_pages(s->e, s->pages, tokens, packed, true, err))
            return false;
        s->state_at = tokens;
    }
    s->length = tokens;
    return true;
}

sl_seq *sl_seq_restore(sl_engine *e, const void *bytes, size_t size, sl_error *err) {
    header h;
    if (!engine_check_open(e, err) || !check_snapshot(e, bytes, size, &h, err))
        return NULL;
    sl_seq *s = sl_seq_new(e, err);
    if (s && !fill_sequence(s, (const uint8_t *)bytes + sizeof h, (int32_t)h.tokens, err)) {
        sl_seq_free(s);
        return NULL;
    }
    return s;
}
