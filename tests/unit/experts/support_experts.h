/* What the tests of experts share: random models in files, a reader that watches another, an open store. */
#ifndef SL_SUPPORT_EXPERTS_H
#define SL_SUPPORT_EXPERTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "experts/reader.h"
#include "experts/store.h"

/* ---- random numbers; the seed is printed, SL_TEST_SEED sets it ---- */

typedef struct rng {
    uint64_t state;
} rng;

rng rng_start(const char *test);
uint64_t rng_next(rng *r);
uint32_t rng_below(rng *r, uint32_t n);
/* n distinct of [0, limit), ascending. */
void rng_ids(rng *r, int32_t *ids, int32_t n, int32_t limit);

/* ---- a model: files of random bytes, and where its experts lie in them ---- */

enum { MODEL_FILES = 3, MODEL_LAYERS = 12 };

typedef struct model_spec {
    int32_t files, layers, experts, parts; /* parts 0: a random number, the same for a layer's experts */
    uint32_t least, most;                  /* bytes of a part; the same part of a layer has one size */
    bool equal_layers;                     /* all layers alike: one slot class */
    bool together;                         /* an expert's parts follow each other, else all experts' part by part */
} model_spec;

typedef struct model {
    model_spec spec;
    sl_file *file[MODEL_FILES];
    uint8_t *bytes[MODEL_FILES];
    uint64_t size[MODEL_FILES];
    sl_extent *extent[MODEL_LAYERS];
    sl_expert_layer layer[MODEL_LAYERS];
} model;

void model_make(model *m, const model_spec *spec, rng *r);
void model_free(model *m);
/* Fails the test where a part of the view is not the file's bytes. */
void model_check(const model *m, int32_t layer, const sl_expert_view *view);
/* The one file of a test that writes its own: size random bytes (*bytes, freed by the caller). */
sl_file *file_make(uint64_t size, uint8_t **bytes, rng *r);
void file_free(sl_file *f);

/* ---- a reader that watches the one it wraps ---- */

typedef struct spy {
    sl_reader base;
    sl_reader *inner;
    int submits, collects, reads;
    int in_flight;
    int failed; /* reads that failed; a quarantined one counts once */
    int quarantined;
    int regions;       /* memory added and not removed */
    const sl_mem *mem; /* not NULL: at close its slabs must still be there, reads may go to them */
    bool refuse;       /* submits fail */
    bool hold;         /* a collect that only looks sees nothing */
    int fail_results;  /* so many results are turned into failures */
} spy;

spy *spy_open(sl_reader *inner);

/* ---- readers by kind ---- */

typedef struct reader_case {
    const char *name;
    sl_reader_kind kind;
    bool buffered;
} reader_case;

extern const reader_case reader_cases[];
extern const int reader_case_count;
/* NULL where the system has no such reader (printed). */
sl_reader *reader_make(const reader_case *c);
/* The same, with faults; the plan lives as long as it does. */
sl_reader *reader_faulty(const reader_case *c, const sl_fault_plan *plan);
sl_reader *reader_plain(void); /* pread, buffered: exists everywhere; one thread: results come in the order of reads */

/* ---- a store over a model ---- */

typedef struct store_spec {
    int32_t top_k, max_slots;
    uint64_t budget, slab_bytes; /* 0: 1 GiB, 64 KiB */
    int pieces;                  /* > 0: slabs are gathered in so many mappings */
    uint64_t max_bytes;
    sl_prefetch prefetch;
    sl_policy policy;
    bool learn;
    bool guess_same; /* each iteration guesses that the next layer wants the same ids */
    sl_log log;
} store_spec;

typedef struct store {
    const model *m;
    sl_mem *mem;
    sl_experts *e;
    sl_expert_source source;
    bool guess_same;
    const int32_t *guess; /* for the next iteration */
    int32_t guesses;
} store;

bool store_try(store *s, const model *m, const store_spec *spec, sl_reader *reader, sl_error *err);
void store_make(store *s, const model *m, const store_spec *spec, sl_reader *reader);
void store_free(store *s);
sl_experts_stats store_stats(const store *s);
/* What the next iteration guesses of the layer after it; ids are borrowed. */
void store_guess(store *s, const int32_t *ids, int32_t n);
void store_begin(store *s, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order);
/* One whole iteration, `hold` experts claimed at a time, each checked against the files; returns how many failed. */
int store_run(store *s, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, int hold);
/* Whether an expert is in the cache or on its way there. */
bool store_has(const store *s, int32_t layer, int32_t expert);
/* Collects until nothing is in flight. */
void store_settle(store *s);

#endif
