/* Private to experts: the store's structures.
 *
 * Memory: slabs come from sl_mem; a slab serves one class (slot size) at a time and is cut into its slots. A slot is
 * free, or being read, or cached (holds a whole expert), or dead (its expert failed, but reads into it are not over).
 * table[layer][expert] points to the slot that holds or receives that expert; dead slots are not in it.
 *
 * A slot is pinned while it is claimed by the running iteration, being read or dead. What is pinned is never evicted,
 * stolen or given back. Everything else is in the recency list of its class, and a slab without pinned slots is in
 * the recency list of slabs. Invariant: slab->pinned counts its pinned slots. */
#ifndef SL_EXPERTS_STORE_H
#define SL_EXPERTS_STORE_H

#include "experts/experts.h"
#include "experts/list.h"

/* ---- layout ----------------------------------------------------------------------------------------------------- */

enum { EXPERTS_NO_PART = -1, EXPERTS_SLOT_ALIGN = 4096 };

/* The files of a checkpoint as the store sees them; the array is borrowed while a call runs. */
typedef struct experts_files {
    const sl_file *const *file;
    int32_t count;
    bool direct; /* reads are O_DIRECT where a file allows it */
} experts_files;

typedef struct experts_area {
    int32_t file;
    uint64_t offset, bytes; /* of the read, rounded out */
    uint64_t need;
    uint32_t at; /* in the slot */
} experts_area;

/* How one expert is read into a slot. */
typedef struct experts_layout {
    int32_t areas;
    experts_area area[SL_EXPERT_PARTS];
    int32_t part[SL_EXPERT_PARTS]; /* where in the slot; EXPERTS_NO_PART */
    uint32_t bytes;
} experts_layout;

/* Lays out one expert, ext[SL_EXPERT_PARTS]. Extents outside the files, of no bytes at all or too large are errors. */
bool experts_layout_make(const experts_files *files, const sl_extent *ext, experts_layout *out, sl_error *err);
/* Slot bytes that any expert of the layer fits in. */
bool experts_layer_slot_bytes(const experts_files *files, const sl_expert_layer *layer, uint64_t *bytes, sl_error *err);

/* ---- slots ------------------------------------------------------------------------------------------------------ */

typedef enum experts_slot_state { EXPERTS_FREE, EXPERTS_READING, EXPERTS_CACHED, EXPERTS_DEAD } experts_slot_state;

typedef struct experts_slab experts_slab;

typedef struct experts_slot {
    experts_link link; /* class's free list or recency list; of neither while pinned */
    experts_slab *slab;
    uint8_t *base;
    int32_t layer, expert;
    int32_t item; /* of the running iteration; -1: not claimed */
    experts_slot_state state;
    bool fresh;      /* read, and not released by a step since */
    bool asked;      /* claimed by a step since it was last in line */
    bool prefetched; /* read ahead, and not asked for since */
    bool adopted;    /* claimed while a read that another iteration began was in flight */
    bool timed_out;  /* a read of it was reported quarantined */
    size_t traced;   /* prefetched: its first read in the trace, if the trace has it */
    int32_t reads;   /* last results still to come */
    int32_t areas;   /* reads that it took */
    uint64_t used;   /* clock of the last release; 0: kept at the cold end */
    int32_t part[SL_EXPERT_PARTS];
} experts_slot;

struct experts_slab {
    experts_link link; /* spare list, or recency list of slabs while pinned is 0 */
    uint8_t *base;
    int32_t number;
    int32_t cls; /* -1: spare */
    int32_t slots, pinned;
    experts_slot *slot;
    uint64_t used; /* clock when its last pinned slot was released */
};

enum { EXPERTS_RANKS = 64 };

typedef struct experts_class {
    uint64_t slot_bytes;
    int32_t per_slab;
    uint64_t slots, experts; /* that there are; that its layers have */
    experts_list free;
    experts_list line[EXPERTS_RANKS]; /* cached and not pinned, by rank; within one the next victim is last */
    uint64_t ranks;                   /* bit r: line[r] may have experts */
} experts_class;

/* Written by the step thread, read by any. */
typedef struct experts_layer_counters {
    _Atomic uint64_t hits, misses, read_bytes, wait_ns, prefetch_reads, prefetch_used;
} experts_layer_counters;

typedef struct experts_layer {
    const sl_extent *extent;
    const uint64_t *sum; /* what was read is compared with these; NULL: not at all */
    int32_t experts;
    int32_t cls;
    uint32_t align;      /* what every part's address is a multiple of, 16 at most */
    int32_t number;      /* in the model, for messages */
    uint64_t moves;      /* times one of its experts came or went */
    experts_slot **slot; /* [experts] */
    int32_t demand;      /* experts its last iteration asked for */
    uint16_t *uses;      /* [experts] by steps, halved from time to time; NULL: not counted */
    experts_layer_counters count;
} experts_layer;

/* ---- iteration -------------------------------------------------------------------------------------------------- */

typedef enum experts_item_state {
    EXPERTS_ITEM_WAITING, /* has no slot yet */
    EXPERTS_ITEM_READING,
    EXPERTS_ITEM_READY,
    EXPERTS_ITEM_OUT, /* handed out */
    EXPERTS_ITEM_OVER,
    EXPERTS_ITEM_FAILED
} experts_item_state;

typedef struct experts_item {
    int32_t id;
    experts_item_state state;
    bool hit;           /* its read, if any, was not begun by this iteration */
    experts_slot *slot; /* READING, READY, OUT */
    sl_error *error;    /* FAILED; NULL: there was no memory for it */
} experts_item;

typedef struct experts_iteration {
    bool running;
    int32_t layer;
    sl_expert_order order;
    int32_t n;
    experts_item *item; /* [n] ascending ids */
    size_t item_capacity;
    int32_t *queue; /* [n] READY order: items ready or failed, first come first served */
    size_t queue_capacity;
    int32_t queue_head, queue_tail;
    int32_t cursor;  /* ASCENDING order: next item to hand out */
    int32_t given;   /* items handed out or reported failed */
    int32_t issue;   /* no item before it is WAITING */
    int32_t waiting; /* items in that state */
    int32_t missing; /* slots held by misses: the width of the read-ahead window */
    int32_t kept;    /* no item at or after it is READY ahead of its turn and could be given up */
    bool prefetched; /* the idle reader was given its reads ahead */
} experts_iteration;

/* Reads put together for one submit. */
typedef struct experts_batch {
    sl_read *read;
    size_t capacity;
    int32_t n;
} experts_batch;

/* Written by the step thread, read by any. */
typedef struct experts_counters {
    _Atomic uint64_t hits, misses, reads, read_bytes, prefetch_reads, prefetch_used, wait_ns, evictions;
    _Atomic uint64_t slots, slots_used, slabs;
} experts_counters;

typedef struct experts_trace {
    bool on;
    sl_trace_read *read;
    size_t n, capacity;
    int32_t burst;
} experts_trace;

/* What the router of the next layer said. */
typedef struct experts_guess {
    int32_t layer; /* -1: nothing yet */
    int32_t count;
    int32_t max;
    int32_t *id;    /* [max] */
    uint64_t asked; /* when the moe op was told that a guess is wanted */
} experts_guess;

/* Whether guesses pay: see prefetch.c. */
typedef struct experts_trial {
    bool on;
    int32_t phase, passes;
    uint64_t waited, cost; /* wait_ns at the phase's begin; what guessing took in it */
    uint64_t sum[2];       /* of the phases without and with guesses */
} experts_trial;

enum { EXPERTS_RESULTS = 32 };

struct sl_experts {
    const sl_file **file;
    experts_files files;
    sl_mem *mem;
    uint64_t slab_bytes;
    sl_reader *reader;
    sl_log log;
    int32_t top_k;
    bool (*stop)(void *user);
    void *stop_user;
    sl_prefetch prefetch;
    sl_policy policy;
    int32_t passes; /* since uses were halved */
    experts_guess guess;
    experts_trial trial;

    experts_layer *layer;
    int32_t layers;
    uint64_t experts;     /* of all layers */
    experts_slot **table; /* the layers' slot arrays */
    uint16_t *uses;       /* and their counts */
    uint32_t *heat;       /* [experts] uses since opening; NULL: not counted */
    experts_class *cls;   /* [layers] at most */
    int32_t classes;

    experts_slab **slab; /* [slabs] */
    size_t slab_capacity;
    int32_t slabs, least_slabs, max_slabs, max_slots, slots;
    int32_t cap_slabs; /* max_slabs without a cap */
    experts_list spare_slabs, recent_slabs;
    uint64_t clock;
    int64_t demand; /* sum over the layers: experts one pass over the model asks for */
    uint32_t cold;  /* insertions at the cold end so far */
    bool told_small;
    bool full;           /* the last attempt to grow failed */
    uint64_t slab_moves; /* times a slab came into use or went out of it */
    struct {
        uint64_t at; /* slab_moves + 1 when it was listed; 0: never */
        int32_t blocks;
        void *block[SL_PEEK_BLOCKS];
        uint64_t block_bytes;
    } seen; /* peek.c: the memory that slabs in use lie in */

    experts_iteration it;
    experts_batch batch;
    uint64_t looks, *looked_at; /* collects so far; [files] the one after which the file was found unchanged */
    int32_t in_flight;          /* reads whose last result is still to come */
    int32_t awaited;         /* of these: to slots that had no time-out, so the reader's time limit bounds the wait */
    int32_t timed_out;       /* slots that had one and are still to be freed */
    sl_read_result *results; /* [EXPERTS_RESULTS] */

    experts_counters count;
    experts_trace trace;
};

/* What the store is opened with once the checkpoint is out of the way. */
sl_experts *experts_open(const sl_experts_options *o, const experts_files *files, sl_error *err);
/* Slabs that hold max(top_k, 2) slots; 0: a slab is smaller than a slot. */
int32_t experts_least_slabs(uint64_t slot_bytes, uint64_t slab_bytes, int32_t top_k);
void experts_warn_small(sl_experts *e);

/* ---- peek.c: see sl_expert_source ---- */

uint32_t experts_layer_align(const sl_expert_layer *layer);
bool experts_peek(void *self, int32_t layer, sl_expert_peek *out);
int32_t experts_resident(void *self, int32_t layer, sl_expert_view *out, int32_t max);
uint64_t experts_generation(void *self, int32_t layer);

/* ---- policy.c: which expert goes, and where a new one is put ---- */

/* A slot that is no longer claimed becomes a candidate. */
void experts_policy_keep(sl_experts *e, experts_slot *s);
/* It is claimed or evicted. */
void experts_policy_take(sl_experts *e, experts_slot *s);
experts_slot *experts_policy_victim(sl_experts *e, int32_t cls);
/* An iteration over the first layer begins. */
void experts_policy_pass(sl_experts *e);
/* A slab of another class that was last used before this goes rather than the victim. */
uint64_t experts_policy_age(const sl_experts *e, const experts_slot *victim);
/* One pass asks for more experts than there are slots: plain LRU would never hit. */
bool experts_policy_thrashes(const sl_experts *e);

/* ---- cache.c: slabs, slots, claim and release ---- */

typedef enum experts_effort {
    EXPERTS_TAKE_FREE,  /* a free slot */
    EXPERTS_TAKE_GROWN, /* or one of a new slab */
    EXPERTS_TAKE_ANY    /* or one that an unclaimed expert has to leave */
} experts_effort;

/* A slab more for the class; false: there is none. */
bool experts_cache_grow(sl_experts *e, int32_t cls);
/* A pinned slot of the class, holding nothing; NULL: there is none. */
experts_slot *experts_cache_claim(sl_experts *e, int32_t cls, experts_effort effort);
/* Takes slabs until every expert can have a slot, the classes in step, or there are as many as there will be; false:
 * neither. */
bool experts_cache_settle(sl_experts *e);
/* Takes an expert that is not pinned out of its slot, which is pinned for another. */
void experts_cache_evict(sl_experts *e, experts_slot *s);
/* Pins a cached slot. */
void experts_cache_pin(sl_experts *e, experts_slot *s);
/* Unpins: the expert stays and may be evicted / the slot is free. */
void experts_cache_release(sl_experts *e, experts_slot *s);
void experts_cache_free(sl_experts *e, experts_slot *s);
/* Takes the least number of slabs, which the store then never gives back. */
bool experts_cache_reserve(sl_experts *e, sl_error *err);
void experts_cache_close(sl_experts *e);
int32_t experts_slot_number(const experts_slot *s);
experts_slot *experts_slot_numbered(const sl_experts *e, int32_t number);

/* ---- fetch.c: from a claimed slot to a cached expert ---- */

/* Makes room for one more expert in the batch. */
bool experts_fetch_reserve(sl_experts *e);
/* The claimed slot receives the expert: its reads join the batch. */
void experts_fetch_add(sl_experts *e, experts_slot *s, int32_t layer, int32_t expert, const experts_layout *layout);
/* Submits the batch; if that fails, so do its experts. */
void experts_fetch_submit(sl_experts *e);
/* Takes the results that are there / waits for at least one; false: it was stopped. */
void experts_fetch_poll(sl_experts *e);
bool experts_fetch_wait(sl_experts *e);

/* ---- checksum.c ---- */

/* Whether what was read into a slot has the layer's checksum, where that is looked at. */
bool experts_sum_matches(const sl_experts *e, const experts_slot *s, sl_error *why);

/* ---- iterate.c ---- */

/* A claimed slot's expert is there / failed. */
void experts_item_ready(sl_experts *e, experts_slot *s);
void experts_item_failed(sl_experts *e, experts_slot *s, const sl_error *why);

/* ---- prefetch.c ---- */

void experts_prefetch_open(sl_experts *e, sl_prefetch kind);
/* A decode iteration over the first layer begins. */
void experts_prefetch_pass(sl_experts *e);
/* See sl_expert_source. */
bool experts_wants_guess(void *self);
void experts_take_guess(void *self, const int32_t *ids, int32_t n);

/* Begins reads for the layer after the iteration's, where the reader is idle. */
void experts_prefetch_run(sl_experts *e);

/* ---- trace.c ---- */

void experts_trace_burst(experts_trace *t);
/* The slot's last added reads are a guess / the guess was right. */
void experts_trace_guess(experts_trace *t, experts_slot *s);
void experts_trace_used(experts_trace *t, const experts_slot *s);
void experts_trace_add(experts_trace *t, const experts_area *area, int32_t layer);

static inline void experts_add(_Atomic uint64_t *counter, uint64_t v) {
    atomic_fetch_add_explicit(counter, v, memory_order_relaxed);
}
static inline void experts_sub(_Atomic uint64_t *counter, uint64_t v) {
    atomic_fetch_sub_explicit(counter, v, memory_order_relaxed);
}

#endif
