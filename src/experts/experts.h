/* experts: the routed experts' bytes: where they lie, the cache of slots, the readers that fill it.
 *
 * A slot holds the file's bytes verbatim. With O_DIRECT an extent is rounded out to the block; a part sits in its
 * block-rounded area and begins at (file offset mod block). Slots lie in slabs of the one budgeted allocator; the pool
 * of slots is global over all layers, one or more size classes. Single owner: begin/next/done/end and cache calls come
 * from the engine's step thread; readers have threads of their own. Statistics may be read from any thread. May
 * include: ops (sl_expert_source), checkpoint (files, extents), quant, base. Called by engine. */
#ifndef SL_EXPERTS_H
#define SL_EXPERTS_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "ops/ops.h"

/* One MoE layer: extent[expert * SL_EXPERT_PARTS + part], bytes 0 where there is no such part. */
typedef struct sl_expert_layer {
    int32_t experts;
    const sl_extent *extent;
    const uint64_t *sum; /* [experts]: sl_pack_sum of its bytes, first part to last; NULL: not known */
    int32_t number;      /* in the model, for messages */
} sl_expert_layer;

/* ---- readers
 * --------------------------------------------------------------------------------------------------------- */

/* One contiguous read of a file into memory. With direct, offset, bytes and dst are multiples of the file's
 * direct_align (the file's end may cut it short). */
typedef struct sl_read {
    const sl_file *file;
    uint64_t offset;
    uint64_t bytes;
    uint8_t *dst;
    uint64_t need; /* bytes from offset that must arrive: less than `bytes` when rounded past the end of the file */
    void *tag;
    int disk; /* of the reader's disks: 0 where there is one */
} sl_read;

/* A finished read: ok, or the error. */
typedef struct sl_read_result {
    void *tag;
    bool ok;
    bool quarantined; /* timed out: the kernel may still write to dst; a second result (ok or not) with the same tag
                         follows when it is over */
    sl_error error;
} sl_read_result;

/* Turns reads into bytes, asynchronously. Short reads and EINTR continue inside. */
typedef struct sl_reader sl_reader;
struct sl_reader {
    const char *name;
    bool direct; /* reads are O_DIRECT: the store aligns them */
    /* Copies the descriptors; any n, all of one disk. false: none was taken. */
    bool (*submit)(sl_reader *r, const sl_read *reads, int n, sl_error *err);
    /* Waits (timeout_ns, 0: only looks, UINT64_MAX: no limit) for results; returns how many were written, <= max. 0
     * whatever the limit where nothing is under way. */
    int (*collect)(sl_reader *r, sl_read_result *out, int max, uint64_t timeout_ns);
    /* A slab that reads will go to (io_uring registers it; failure to do so is not an error) / will no longer. May be
     * NULL. */
    void (*add_memory)(sl_reader *r, void *base, uint64_t bytes);
    void (*remove_memory)(sl_reader *r, void *base);
    void (*close)(sl_reader *r); /* waits for what is in flight */
};

typedef enum sl_reader_kind { SL_READER_AUTO, SL_READER_URING, SL_READER_PREAD } sl_reader_kind;

typedef struct sl_fault_plan sl_fault_plan;

typedef struct sl_reader_options {
    sl_reader_kind kind;  /* auto: uring where the kernel allows it, else pread */
    bool buffered;        /* through the page cache instead of O_DIRECT; what was read is dropped from it again */
    int depth;            /* uring: queue depth (0: 64); pread: threads (0: 8) */
    uint64_t piece_bytes; /* larger reads are split into pieces of this, a multiple of 4096 (0: 512 KiB) */
    uint64_t timeout_ns;  /* a read that takes longer fails (0: 30 s) */
    const sl_fault_plan *faults; /* NULL, or what goes wrong with reads; borrowed until the reader is closed */
    /* NULL, or a second disk, which has a queue of its own (its kind and time limit are the first one's). */
    const struct sl_reader_options *second;
} sl_reader_options;

enum { SL_READER_DISKS = 2 };

sl_reader *sl_reader_open(const sl_reader_options *o, sl_error *err);

/* Faults for tests. SHORT: the kernel gives fewer bytes than it was asked for, and the reader has to go on; it is the
 * one kind that lies below a reader. NEVER: no result ever comes, only the time limit passes. */
typedef enum sl_fault_kind { SL_FAULT_EIO, SL_FAULT_SHORT, SL_FAULT_LATE, SL_FAULT_NEVER } sl_fault_kind;

/* What goes wrong with reads that hold these bytes of a file (SHORT: touch them). */
typedef struct sl_fault_place {
    sl_fault_kind kind;
    const sl_file *file;
    uint64_t offset, bytes;
    int64_t times; /* of the first so many reads; 0: of all. Not for SHORT */
} sl_fault_place;

struct sl_fault_plan {
    uint64_t seed;
    double error_rate;   /* share of reads that end with EIO */
    double delay_rate;   /* share of reads whose result comes delay_ns later */
    double reorder_rate; /* share of results handed out after later ones */
    uint64_t delay_ns;
    uint64_t timeout_ns;    /* a delay longer than this (not 0) is told first as a quarantined failure */
    int64_t fail_after;     /* >= 0: every read after this many fails with ENODEV (a disk that is gone) */
    int32_t fail_layer_tag; /* reserved, -1 */
    double never_rate, short_rate;
    const sl_fault_place *places; /* borrowed as the plan */
    int32_t place_count;
    int disk;                /* 0: all reads are meant; n: those of the n-th disk (but SHORT) */
    double bytes_per_second; /* not 0: these reads come no faster than from a disk of this rate */
};
/* Wraps any reader: all but short_rate and SHORT of the plan, which sl_reader_open takes. Takes ownership of inner. On
 * failure inner is closed too. */
sl_reader *sl_reader_fault(sl_reader *inner, const sl_fault_plan *plan, sl_error *err);

/* ---- store and cache
 * --------------------------------------------------------------------------------------------------- */

typedef struct sl_experts sl_experts;

/* How the next layer's experts are guessed, to be read while the disk is idle: not at all, as its router says of the
 * state now, or so where measuring on the way shows that it pays. */
typedef enum sl_prefetch { SL_PREFETCH_OFF, SL_PREFETCH_ROUTER, SL_PREFETCH_AUTO } sl_prefetch;

/* Which expert leaves a full cache: the one not used for longest, or the one used least, where what was used 256 tokens
 * ago counts half. */
typedef enum sl_policy { SL_POLICY_LRU, SL_POLICY_LFU } sl_policy;

typedef struct sl_experts_options {
    const sl_ckpt *ckpt;           /* borrowed */
    const sl_expert_layer *layers; /* borrowed, must outlive the store */
    int32_t layer_count;
    int32_t top_k;
    sl_mem *mem;          /* slabs; borrowed */
    uint64_t max_bytes;   /* of slots; grows lazily up to this (0: whatever the budget leaves) */
    int32_t max_slots;    /* 0: no cap (tests use it to force small caches) */
    sl_reader *reader;    /* owned from now on, also if opening fails */
    sl_prefetch prefetch; /* never evicts what the step needs */
    sl_policy policy;
    bool learn;  /* uses are counted, for sl_experts_heat */
    bool verify; /* what was read is compared with the layers' sums; opening fails where one has none */
    /* Asked now and then while an iteration waits for reads, and only then: true ends the wait, and what it is for
     * fails with SL_ERR_CANCELLED. May be NULL. */
    bool (*stop)(void *user);
    void *stop_user;
    sl_log log;
} sl_experts_options;

typedef struct sl_experts_stats {
    uint64_t hits, misses;                  /* experts asked for by steps */
    uint64_t reads, read_bytes;             /* bytes asked of the disk for misses and prefetch (block-rounded) */
    uint64_t prefetch_reads, prefetch_used; /* experts read ahead; of these, asked for later (they count as hits) */
    uint64_t wait_ns;                       /* time steps waited for reads */
    uint64_t evictions;
    uint64_t slots, slots_used; /* now: slots there are, slots with an expert in them or on its way */
    uint64_t slot_bytes;        /* now: memory of the slabs they lie in */
} sl_experts_stats;

/* Of one layer; a guess counts for the layer it is about, a wait for the one that waited. */
typedef struct sl_experts_layer_stats {
    uint64_t hits, misses, read_bytes, wait_ns, prefetch_reads, prefetch_used;
} sl_experts_layer_stats;

/* Bytes of one slot of the layer's class. The least budget of the store: slabs for max(top_k, 2) slots of the largest
 * class. 0: an extent lies outside its file, or a slot does not fit a slab (sl_experts_open says which). */
uint64_t sl_experts_slot_bytes(const sl_expert_layer *layer, const sl_ckpt *c, bool direct);
uint64_t sl_experts_least_bytes(const sl_expert_layer *layers, int32_t n, const sl_ckpt *c, int32_t top_k, bool direct,
                                uint64_t slab_bytes);

/* Slot bytes of n layers -> those of the classes that the store gives them: sizes that hardly differ become the largest
 * of them. */
void sl_experts_share_slots(uint64_t *slot_bytes, int32_t n);

sl_experts *sl_experts_open(const sl_experts_options *o, sl_error *err);
void sl_experts_close(sl_experts *e);
/* The iterator for sl_ops_set_experts. */
sl_expert_source sl_experts_source(sl_experts *e);

/* Reads the experts with the most uses (uses[experts of all layers], layer after layer), as many as have slots, before
 * the first step; returns how many are there. progress may be NULL. */
typedef void (*sl_warm_progress)(void *user, uint64_t done, uint64_t total);
int64_t sl_experts_warm(sl_experts *e, const uint32_t *uses, sl_warm_progress progress, void *user);
/* How often steps asked for each expert so far; returns their number, *uses is NULL where that was not counted. Between
 * steps. */
uint64_t sl_experts_heat(const sl_experts *e, const uint32_t **uses);

/* Gives slabs back to the allocator (evicting what they hold) until `slabs` were freed or only the least is left;
 * returns how many. Called between steps. */
int sl_experts_shrink(sl_experts *e, int slabs);
/* From now on at most so many bytes of slabs (UINT64_MAX: as many as the budget leaves), never less than the least;
 * what is above is given back at once, as far as no read holds it. Returns the slabs given back. */
int sl_experts_cap(sl_experts *e, uint64_t bytes);
void sl_experts_stats_get(const sl_experts *e, sl_experts_stats *out);
void sl_experts_stats_reset(sl_experts *e);
/* out[n], of the first n layers since opening; from any thread. */
void sl_experts_layers_get(const sl_experts *e, sl_experts_layer_stats *out, int32_t n);

/* The trace of reads since start, for replay without compute: bursts of (file, offset, bytes) as one begin() issued
 * them. Off unless enabled. */
typedef struct sl_trace_read {
    int32_t file;
    int32_t burst;
    int32_t layer;
    bool guess, used; /* read ahead; and asked for later */
    uint64_t offset, bytes;
} sl_trace_read;
void sl_experts_trace(sl_experts *e, bool on);
size_t sl_experts_trace_get(const sl_experts *e, const sl_trace_read **out);
/* The reads that fetch one expert, without a store: their number, 0 where an extent lies outside its file. */
int32_t sl_experts_reads_of(const sl_expert_layer *layer, const sl_ckpt *c, int32_t expert, bool direct,
                            sl_trace_read out[SL_EXPERT_PARTS]);

#endif
