#include "support_fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the forward pass ------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t chain(uint64_t hash, int32_t token) {
    return mix(hash * 31 + (uint64_t)token + 1);
}

static void hash_to_logits(uint64_t hash, float *logits) {
    for (int i = 0; i < FAKE_VOCAB; i++)
        logits[i] = (float)(mix(hash + (uint64_t)i) >> 40) / (float)(1 << 21) - 4;
}

void fake_logits(const int32_t *tokens, int n, float *logits) {
    uint64_t hash = 0;
    for (int i = 0; i < n; i++)
        hash = chain(hash, tokens[i]);
    hash_to_logits(hash, logits);
}

int32_t fake_greedy(const int32_t *tokens, int n) {
    float logits[FAKE_VOCAB];
    int32_t best = 0;
    fake_logits(tokens, n, logits);
    for (int32_t i = 1; i < FAKE_VOCAB; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static uint8_t *kv_block(fake *f, const sl_step_seq *seq, int32_t position) {
    assert_in_range(position / SL_KV_PAGE_TOKENS, 0, seq->page_count - 1);
    return engine_kv_block(f->e.kv, seq->pages[position / SL_KV_PAGE_TOKENS]);
}

static uint64_t *kv_place(fake *f, uint8_t *block, int32_t position, int plane, int head) {
    const sl_kv_layout *l = engine_kv_layout(f->e.kv);
    int32_t at = position % SL_KV_PAGE_TOKENS;
    return (uint64_t *)(void *)(block + (uint64_t)plane * l->plane_bytes +
                                (uint64_t)(head * SL_KV_PAGE_TOKENS + at) * l->head_bytes);
}

static uint64_t kv_value(int32_t token, int32_t position, int plane, int head) {
    return mix((uint64_t)token << 32 | (uint64_t)(position << 8) | (uint64_t)(plane << 4) | (uint64_t)head) << 16 |
           (uint64_t)token;
}

static void write_row(fake *f, const sl_step *s, int32_t row) {
    const sl_kv_layout *l = engine_kv_layout(f->e.kv);
    uint8_t *block = kv_block(f, &s->seqs[s->seq[row]], s->position[row]);
    for (int plane = 0; plane < l->layers * 2; plane++)
        for (int head = 0; head < l->kv_heads; head++)
            *kv_place(f, block, s->position[row], plane, head) = kv_value(s->token[row], s->position[row], plane, head);
}

/* The hash over everything before and at a position, as the pages have it. */
static bool read_history(fake *f, const sl_step_seq *seq, int32_t position, uint64_t *hash) {
    const sl_kv_layout *l = engine_kv_layout(f->e.kv);
    uint8_t *block = NULL;
    *hash = 0;
    for (int32_t p = 0; p <= position; p++) {
        if (p % SL_KV_PAGE_TOKENS == 0)
            block = kv_block(f, seq, p);
        int32_t token = (int32_t)(*kv_place(f, block, p, 0, 0) & 0xffff);
        for (int plane = 0; plane < l->layers * 2; plane++)
            for (int head = 0; head < l->kv_heads; head++)
                if (*kv_place(f, block, p, plane, head) != kv_value(token, p, plane, head))
                    return false;
        *hash = chain(*hash, token);
    }
    return true;
}

/* ---- recurrent state: a count of tokens and their hash at both ends of each block -------------------------------- */

typedef struct mark {
    uint64_t count, hash;
} mark;

static mark *state_mark(fake *f, const sl_step_seq *seq, int32_t layer, bool end) {
    uint8_t *block = engine_kv_block(f->e.state, seq->state[layer]);
    return (mark *)(void *)(end ? block + f->e.state_layout.used_bytes - sizeof(mark) : block);
}

/* Takes a row into the state; false: it does not hold what comes before the row. */
static bool advance_state(fake *f, const sl_step *s, int32_t row, uint64_t *hash) {
    const sl_step_seq *seq = &s->seqs[s->seq[row]];
    for (int32_t layer = 0; layer < f->e.state_layout.layers; layer++) {
        mark *first = state_mark(f, seq, layer, false), *last = state_mark(f, seq, layer, true);
        if (s->position[row] == 0)
            *first = *last = (mark){0, (uint64_t)layer};
        if (memcmp(first, last, sizeof *first) || first->count != (uint64_t)s->position[row])
            return false;
        *first = *last =
            (mark){first->count + 1, chain(first->hash - (uint64_t)layer, s->token[row]) + (uint64_t)layer};
        *hash = first->hash - (uint64_t)layer;
    }
    return true;
}

static void spoil_states(fake *f, const sl_step *s) {
    for (int32_t i = 0; f->e.state && i < s->seq_count; i++)
        state_mark(f, &s->seqs[i], i % f->e.state_layout.layers, i % 2)->count = 0xdead;
}

/* What ops.h promises an implementation about a step. */
static void check_step(const fake *f, const sl_step *s) {
    assert_in_range(s->rows, 1, f->e.max_rows);
    for (int32_t i = 0; i < s->rows; i++) {
        assert_in_range(s->seq[i], 0, s->seq_count - 1);
        assert_int_equal(s->row_failed[i], 0);
        if (i > 0 && s->seq[i] == s->seq[i - 1])
            assert_int_equal(s->position[i], s->position[i - 1] + 1);
        for (int32_t j = 0; j < i; j++)
            assert_false(s->seq[j] == s->seq[i] && s->seq[i - 1] != s->seq[i]);
    }
    for (int32_t i = 1; i < s->outs; i++)
        assert_true(s->out_rows[i] > s->out_rows[i - 1]);
}

static void observe(fake *f, const sl_step *s) {
    bool one = false, many = false;
    for (int32_t q = 0; q < s->seq_count; q++) {
        int n = 0;
        for (int32_t i = 0; i < s->rows; i++)
            n += s->seq[i] == q;
        one |= n == 1;
        many |= n > 1;
    }
    f->steps++;
    f->rows += s->rows;
    f->mixed_steps += one && many;
    if (s->rows > f->most_rows)
        f->most_rows = s->rows;
}

static bool wait_held(fake *f, sl_step *s, sl_error *err) {
    while (f->hold && s->rows > f->hold_above) {
        f->holding = true;
        if (s->cancelled(s->user)) {
            f->cancelled_steps++;
            f->holding = false;
            spoil_states(f, s);
            return sl_fail(err, SL_ERR_CANCELLED, "cancelled at layer 0");
        }
        usleep(200);
    }
    f->holding = false;
    return true;
}

static bool step_rows(fake *f, sl_step *s, uint64_t *state, sl_error *err) {
    for (int32_t i = 0; i < s->rows; i++) {
        write_row(f, s, i);
        if (f->e.state && !advance_state(f, s, i, &state[i]))
            return sl_fail(err, SL_ERR_FORMAT, "state of another position than %d", s->position[i]);
        if (s->token[i] == f->nan_token)
            return sl_fail(err, SL_ERR_NUMERIC, "logits of token %d are not finite", s->token[i]);
        if (s->token[i] == f->row_error_token) {
            s->row_failed[i] = 1;
            sl_fail(&s->row_error, SL_ERR_IO, "expert 3 of layer 1: Input/output error");
        }
    }
    return true;
}

static bool step_outs(fake *f, sl_step *s, const uint64_t *state, sl_error *err) {
    for (int32_t i = 0; i < s->outs; i++) {
        uint64_t hash;
        int32_t row = s->out_rows[i];
        if (!read_history(f, &s->seqs[s->seq[row]], s->position[row], &hash))
            return sl_fail(err, SL_ERR_FORMAT, "KV of another sequence before position %d", s->position[row]);
        if (f->e.state && hash != state[row])
            return sl_fail(err, SL_ERR_FORMAT, "state of another sequence at position %d", s->position[row]);
        hash_to_logits(hash, s->logits + (int64_t)i * FAKE_VOCAB);
    }
    return true;
}

static bool run_step(void *self, sl_step *s, sl_error *err) {
    fake *f = self;
    check_step(f, s);
    if (!wait_held(f, s, err))
        return false;
    observe(f, s);
    for (int32_t i = 0; i < s->outs * FAKE_VOCAB; i++)
        s->logits[i] = -1e30f;
    uint64_t *state = calloc((size_t)s->rows, sizeof *state);
    bool ok = step_rows(f, s, state, err) && step_outs(f, s, state, err);
    if (!ok)
        spoil_states(f, s);
    for (int32_t i = 0; f->e.state && i < s->rows; i++)
        if (s->row_failed[i])
            state_mark(f, &s->seqs[s->seq[i]], 0, true)->hash++;
    free(state);
    return ok;
}

/* ---- the engine ------------------------------------------------------------------------------------------------- */

static int reclaim(void *user, int slabs) {
    fake *f = user;
    int n = 0;
    for (; n < slabs && f->cached > f->least_cache; n++)
        sl_mem_slab_free(f->e.mem, f->cache[--f->cached]);
    return n ? n : engine_state_reclaim(&f->e);
}

static sl_tokenizer *open_tokenizer(void) {
    sl_error err = {0};
    size_t n;
    char *json = sl_read_text(SL_SOURCE_DIR "/tests/golden/arch/qwen2_moe/tokenizer.json", 1 << 20, &n, &err);
    sl_tokenizer *t = json ? sl_tokenizer_from_json(json, n, NULL, "tokenizer.json", &err) : NULL;
    if (!t)
        fail_msg("%s", err.message);
    free(json);
    return t;
}

static void set_or(int32_t *to, int value, int otherwise) {
    *to = value ? value : otherwise;
}

fake *fake_open(const fake_options *o) {
    fake *f = calloc(1, sizeof *f);
    assert_non_null(f);
    sl_engine *e = &f->e;
    sl_error err = {0};
    engine_core_init(e);
    f->row_error_token = f->nan_token = -1;
    f->least_cache = o->least_cache;
    e->vocab = FAKE_VOCAB;
    set_or(&e->context, o->context, 512);
    set_or(&e->chunk, o->chunk, 64);
    set_or(&e->max_sequences, o->max_sequences, 4);
    e->max_rows = e->max_outs = e->chunk + e->max_sequences;
    e->forward = (engine_forward){run_step, f};
    if (o->tokenizer)
        e->tokenizer = open_tokenizer();
    uint64_t core = sl_round_up(engine_core_bytes(FAKE_VOCAB, e->max_sequences), 4096) + 4096;
    e->mem = sl_mem_new(core + (uint64_t)(o->slabs ? o->slabs : 64) * FAKE_SLAB, FAKE_SLAB, &err);
    assert_non_null(e->mem);
    engine_kv_options k = {.mem = e->mem,
                           .layout = {.format = SL_KV_F16, .layers = 2, .kv_heads = 2, .head_dim = 16},
                           .reclaim = reclaim,
                           .user = f};
    assert_true(sl_kv_layout_init(&k.layout, FAKE_SLAB, &err));
    assert_int_equal(k.layout.blocks_per_slab, FAKE_BLOCKS_PER_SLAB);
    e->kv = engine_kv_new(&k, &err);
    assert_non_null(e->kv);
    e->state_layout = (sl_state_layout){
        .layers = o->state_layers, .key_heads = 2, .value_heads = 10, .key_dim = 16, .value_dim = 26, .kernel = 4};
    assert_true(engine_state_open(e, &err));
    assert_true(!e->state || e->state_layout.blocks_per_slab == FAKE_STATES_PER_SLAB);
    while (f->cached < o->cache)
        assert_non_null(f->cache[f->cached++] = sl_mem_slab(e->mem, SL_USE_SLOTS, &err));
    if (!engine_core_start(e, &err))
        fail_msg("%s", err.message);
    return f;
}

void fake_close(fake *f) {
    sl_engine *e = &f->e;
    engine_core_stop(e);
    assert_int_equal(engine_kv_stats_get(e->kv).blocks_used, 0); /* nothing leaked */
    assert_true(!e->state || engine_kv_stats_get(e->state).blocks_used == 0);
    engine_kv_free(e->state);
    engine_kv_free(e->kv);
    sl_mem_free(e->mem);
    sl_tokenizer_free(e->tokenizer);
    engine_core_destroy(e);
    free(f);
}

/* ---- use -------------------------------------------------------------------------------------------------------- */

void fake_append(sl_seq *s, const int32_t *tokens, int n, float *logits) {
    sl_input in[1024];
    sl_error err = {0};
    assert_in_range(n, 1, 1024);
    for (int i = 0; i < n; i++)
        in[i] = (sl_input){s, tokens[i], logits && i == n - 1};
    if (!sl_decode(s->e, in, (size_t)n, logits, &err))
        fail_msg("%s", err.message);
}

void fake_random_tokens(int32_t *tokens, int n) {
    for (int i = 0; i < n; i++)
        tokens[i] = rand() % FAKE_VOCAB;
}

void fake_collect(sl_request *r, fake_result *out) {
    *out = (fake_result){.count = 0};
    do {
        assert_true(sl_request_next(r, &out->last, -1));
        if (out->last.token >= 0)
            out->tokens[out->count++] = out->last.token;
        assert_true(out->text_size + out->last.text_size < sizeof out->text);
        memcpy(out->text + out->text_size, out->last.text, out->last.text_size + 1);
        out->text_size += out->last.text_size;
    } while (out->last.finish == SL_FINISH_NONE);
}

sl_request *fake_start(fake *f, const sl_generate_options *o) {
    sl_error err = {0};
    sl_request *r = sl_generate(&f->e, o, &err);
    if (!r)
        fail_msg("%s", err.message);
    return r;
}

sl_generate_options fake_prompt(const int32_t *tokens, int n, int max_tokens) {
    sl_generate_options o = SL_GENERATE_OPTIONS_INIT;
    o.prompt = tokens;
    o.prompt_count = (size_t)n;
    o.max_tokens = max_tokens;
    return o;
}

fake_result fake_run(fake *f, const sl_generate_options *o) {
    fake_result out;
    sl_request *r = fake_start(f, o);
    fake_collect(r, &out);
    sl_event none;
    assert_false(sl_request_next(r, &none, -1)); /* after a last event there are no more */
    sl_request_free(r);
    return out;
}

void fake_await(const _Atomic bool *flag) {
    while (!*flag)
        usleep(200);
}
