/* Private to the engine: an engine, its sequences, requests and jobs, and which thread owns which field.
 *
 * One mutex (sched.mutex) guards what is shared; fields marked S belong to the scheduler's thread, L are guarded by the
 * mutex, the rest does not change after opening. */
#ifndef SL_ENGINE_INTERNAL_H
#define SL_ENGINE_INTERNAL_H

#include "engine/activity.h"
#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "engine/output.h"
#include "engine/plan.h"
#include "engine/pressure.h"
#include "engine/sampler.h"
#include "engine/state.h"
#include "engine/vram.h"

#include "experts/mirror.h"

#include <pthread.h>
#include <time.h>

/* ---- sequences -------------------------------------------------------------------------------------------------- */

struct sl_seq {
    sl_engine *e;
    int32_t *tokens; /* committed history */
    size_t token_capacity;
    int32_t length; /* of tokens: positions below it are committed */
    int32_t *pages; /* block numbers; the last may be shared with a fork until it is written */
    size_t page_capacity;
    int32_t page_count;
    int32_t *state;   /* blocks of recurrent state, one per delta layer; NULL: none taken yet */
    int32_t state_at; /* the state holds exactly the first state_at tokens: see state.h */
    /* L: the state's blocks when the last request began, and the tokens they hold; NULL: not kept */
    int32_t *mark;
    int32_t mark_at;
    sl_seq *next_marked, *previous_marked; /* L: of the engine's list, newest first */
    const void *user;                      /* L: the request, job or call that works on it; all others are refused */
    int32_t run_index;                     /* of the job that uses it */
    int32_t run_rows;
};

/* Makes positions [from, to) writable: room in the page table, blocks, a copy of a shared page that would be written,
 * room for the tokens. Scheduler's thread. SL_ERR_BUDGET: the sequence is as before. */
bool engine_seq_prepare(sl_seq *s, int32_t from, int32_t to, sl_error *err);
/* Appends tokens whose KV is written; prepare made room. Takes the mutex. */
void engine_seq_commit(sl_seq *s, const int32_t *tokens, int32_t n);
/* Releases pages past the committed length. */
void engine_seq_drop_uncommitted(sl_seq *s);
/* Marks the sequence as used by `user`; an error if somebody else uses it or it belongs to another engine. *first (may
 * be NULL): it was not yet. */
bool engine_seq_claim(sl_engine *e, sl_seq *s, const void *user, bool *first, sl_error *err);
bool engine_seq_used_by(sl_seq *s, const void *user);
void engine_seq_release(sl_seq *s);

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* How experts are read: of the model's disk, and of its mirror's. */
typedef struct engine_reading {
    sl_reader_options disk[SL_READER_DISKS]; /* the first one names the second, where there is a mirror */
    double rate[SL_READER_DISKS];            /* as calibrated; 0: not known */
    char why[SL_READER_DISKS][128];
} engine_reading;

/* From the options and from what was measured of the disks; opens the mirror. Fills e->reading and e->mirror. */
bool engine_choose_reading(sl_engine *e, sl_reader_kind kind, sl_error *err);
/* The directory with calibrations, as it was asked for; allocated, NULL: nowhere. */
char *engine_calibrations(const char *asked);
/* A file with experts; NULL: a dense model. */
const sl_file *engine_first_file(const sl_engine *e);

/* ---- budget.c --------------------------------------------------------------------------------------------------- */

typedef struct engine_numerics {
    sl_numeric numeric;
    sl_kv_format kv;
} engine_numerics;

void engine_set_chunk(sl_engine *e, int32_t chunk);
sl_ops *engine_open_ops(sl_engine *e, sl_mem *mem, const engine_numerics *n, sl_error *err);
/* Fills e->plan, e->vram, the chunk, the layouts of KV (*kv) and state, and what is said of them. direct: the reader's.
 */
bool engine_plan_budget(sl_engine *e, const engine_numerics *n, bool direct, sl_kv_layout *kv, sl_error *err);

/* ---- device.c --------------------------------------------------------------------------------------------------- */

/* Opens what the options name, or chooses; the CPU is gpu NULL. */
bool engine_device_open(sl_engine *e, sl_error *err);
/* Fills e->vram: what may be taken of memory that is the device's own. After the host's. */
bool engine_device_plan(sl_engine *e, const engine_plan_input *plan, sl_error *err);
/* The largest slab that goes well with that memory; 0: any. */
uint64_t engine_device_most_slab(sl_engine *e, const engine_plan_input *plan);
/* The device was chosen and turns out not to do, why says why: the CPU takes its place. false: it was asked for. */
bool engine_device_decline(sl_engine *e, const char *why);
/* "cuda", "cpu" */
void engine_device_name(const sl_engine *e, char *out, size_t size);

/* ---- runs: rows of one sequence that wait to be evaluated ------------------------------------------------------- */

typedef struct engine_job engine_job;

typedef struct engine_run {
    sl_seq *seq;
    sl_request *request; /* whose run it is: one of the two */
    engine_job *job;
    const int32_t *tokens; /* [count] at positions base, base + 1, ... */
    float *const *dest;    /* job: [count] where the logits of a row go, NULL where none are wanted */
    int32_t count, done, base;
    bool ready; /* may take part in the next step */
    bool alone; /* a step it shared failed: it is tried by itself, so that the error finds its owner */
    bool ended;
    int32_t rows, first_row, outs, first_out; /* of the step being run */
    int32_t past;                             /* of the rows, those that were evaluated before: the state was lost */
} engine_run;

/* One call of sl_decode. Owned by the caller, who waits for finished. */
struct engine_job {
    engine_job *next;
    engine_run *runs;
    int32_t run_count;
    int32_t running;      /* S: runs that have not ended */
    bool failed;          /* S */
    atomic_bool finished; /* set under L */
    sl_error error;
};

/* ---- requests --------------------------------------------------------------------------------------------------- */

struct sl_request {
    sl_request *next;
    sl_engine *e;
    sl_seq *seq;
    bool own_seq;
    engine_run run;
    int32_t *prompt;
    int32_t prompt_count;
    int32_t next_token; /* S: sampled, to be evaluated */
    sl_sampling sampling;
    sl_logit_bias *bias;
    engine_rng rng;
    int32_t generated_from; /* length of the sequence after the prompt */
    engine_output output;
    uint64_t max_tokens, completion;
    bool ignore_eos;
    _Atomic bool cancelled;
    /* L: events wait here for their reader */
    sl_event *events;
    size_t event_capacity, event_first, event_count;
    sl_event last; /* kept apart, so that it can always be delivered */
    bool ended, last_taken;
    pthread_cond_t changed;
};

enum { ENGINE_EVENT_LIMIT = 16 }; /* a request with so many unread events waits */

/* Scheduler's thread: the logits of the last row are there. Emits events and sets up the next row or the end. */
void engine_request_advance(sl_request *r, const float *logits);
/* Scheduler's thread: prepares the last event; its reader sees it once the request left the scheduler. */
void engine_request_end(sl_request *r, sl_finish finish, const sl_error *error);
/* Scheduler's thread: gives the last event to the reader, who may free the request from then on. */
void engine_request_publish(sl_request *r);
bool engine_request_has_room(const sl_request *r); /* mutex held: its reader keeps up */

/* ---- the engine ------------------------------------------------------------------------------------------------- */

/* A function to be called on the scheduler's thread between steps; the caller waits. */
typedef struct engine_call {
    struct engine_call *next;
    void (*fn)(void *ctx);
    void *ctx;
    bool finished;
} engine_call;

/* One step as it is put together; arrays for max_rows rows, or those of a wide step. S. */
typedef struct engine_step {
    int32_t *token, *seq, *position, *out_rows;
    float **dest; /* per output: the job's memory, NULL: a request samples from it */
    uint8_t *row_failed;
    sl_step_seq *seqs;
    engine_run **runs; /* [run_count] */
    int32_t run_count, rows, outs, decode_rows, prefill_rows;
    bool prompt;   /* chunks of prompts, */
    bool holds_up; /* for which those that decode wait */
    bool direct;   /* all outputs lie one after another in a job's memory: logits go there at once */
    float *logits; /* [out_capacity][vocab], from the budget */
    int32_t out_capacity;
} engine_step;

typedef struct engine_sched {
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t wake;     /* the scheduler waits */
    atomic_uint posted;      /* jobs so far */
    pthread_cond_t finished; /* callers of jobs and calls wait; sequences become free */
    _Atomic bool ending;
    /* L */
    engine_job *new_jobs, **new_jobs_end;
    sl_request *new_requests, **new_requests_end;
    engine_call *calls, **calls_end;
    /* S */
    sl_request *waiting, **waiting_end; /* not yet among the active */
    engine_run **active;
    size_t active_count, active_capacity;
    int32_t active_requests;
    uint64_t decode_owed_ns; /* decode-only time before the next prefill chunk */
    bool many_last;          /* on a device: the last step was of runs of many rows */
    engine_step step;
} engine_sched;

/* What runs a step: the model, in tests something simpler. */
typedef struct engine_forward {
    bool (*run)(void *self, sl_step *step, sl_error *err);
    void *self;
} engine_forward;

typedef struct engine_counters {
    uint64_t prompt_tokens, prompt_ns, decode_tokens, decode_ns;
} engine_counters;

typedef struct engine_templates {
    pthread_mutex_t mutex;
    bool known[2], present[2]; /* [0] the default, [1] the one for tools */
    sl_template *compiled[2];
    sl_error error[2];
} engine_templates;

/* Who watches the routing. S */
typedef struct engine_routing {
    sl_engine *e;
    void (*fn)(void *user, const sl_routing *r);
    void *user;
} engine_routing;

struct sl_engine {
    sl_engine_options options; /* strings are not kept */
    sl_prefetch prefetch;
    sl_policy policy;
    engine_reading reading;
    sl_mirror *mirror;              /* NULL: the model's disk alone */
    const sl_reader *mirror_reader; /* the store's, for its figures; NULL likewise */
    sl_log log;
    char *path;
    sl_ckpt *ckpt;
    sl_tokenizer *tokenizer; /* NULL: the checkpoint has none */
    sl_error no_tokenizer;   /* why */
    engine_templates templates;
    sl_model *model;
    sl_pool *pool;
    sl_mem *mem;
    sl_gpu *gpu;                  /* NULL: the CPU */
    bool device_auto, vram_apart; /* the device was chosen; it has memory of its own */
    char device_why[512];         /* how it came to that */
    engine_vram vram;
    uint64_t vram_room; /* free there when it was opened */
    sl_ops *ops;
    engine_routing routing;
    sl_expert_layer *expert_layers; /* [MoE layers] */
    sl_fault_plan faults;           /* where options.faults was given: what reading refers to */
    sl_fault_place *fault_places;
    sl_experts *experts; /* NULL: a dense model */
    engine_kv *kv;
    sl_kv_layout kv_layout;
    engine_kv *state; /* NULL: the model has no recurrent state */
    sl_state_layout state_layout;
    sl_seq *marked; /* L: sequences with a mark */
    engine_plan plan;
    uint64_t scratch_bytes, slot_bytes, kv_token_bytes; /* for info; slot_bytes of the largest class */
    char reader_name[64], isa[64], numeric[16], kv_type[16], formats[256], approximation[128];
    uint64_t fingerprint; /* of the model, for snapshots; 0: not yet computed (L) */
    int32_t vocab, context, chunk, max_sequences, threads;
    int32_t max_rows, max_outs; /* of a step */
    /* wide.c: most rows of a wide chunk, 0: never. S: the chunk that there is scratch for, 0: none */
    int32_t wide_most, fitted;
    int32_t few_rows; /* of a step on a device, so that each is computed by itself (step_select.c); 0: always is */
    engine_forward forward;
    engine_sampler *sampler; /* S */
    engine_activity activity;
    engine_pressure pressure;
    struct {
        char *path; /* of the hot list; NULL: not asked for */
        uint64_t model, experts;
        uint32_t *known; /* [experts] uses in earlier runs */
    } warm;
    engine_sched sched;
    /* L: figures since the last reset are the difference to the base */
    engine_counters counters, counters_base;
    sl_ops_times times, times_base;
    sl_experts_stats experts_base;
    sl_mirror_stats disk_base[SL_READER_DISKS];
    sl_experts_layer_stats *layers_base; /* [MoE layers] */
};

/* Mutex, conditions, activity: before anything else, and after everything. */
void engine_core_init(sl_engine *e);
void engine_core_destroy(sl_engine *e);
/* What stands above model and checkpoint: scheduler, steps, sampler, activity. kv, forward, mem and the sizes are set.
 * The scheduler runs afterwards. */
bool engine_core_start(sl_engine *e, sl_error *err);
/* Cancels what runs, waits for the scheduler. */
void engine_core_stop(sl_engine *e);
/* Bytes that engine_core_start takes for logits and sampler. */
uint64_t engine_core_bytes(int32_t vocab, int32_t max_sequences);
int32_t engine_out_capacity(int32_t max_sequences);

/* Runs fn on the scheduler's thread between steps; returns when it is done. false: the engine is closing. */
bool engine_call_run(sl_engine *e, void (*fn)(void *), void *ctx);
void engine_submit_job(sl_engine *e, engine_job *job); /* and waits */
void engine_submit_request(sl_engine *e, sl_request *r);
void engine_wake(sl_engine *e);           /* mutex held */
void engine_wait_init(pthread_cond_t *c); /* a condition on the monotonic clock */
/* For waits on those. */
struct timespec engine_deadline(int timeout_ms);

/* step_select.c: puts the next step together from the ready runs; no rows: there was no room for any. */
void engine_step_select(sl_engine *e);
/* Rows that the run still has to evaluate, those of a lost state included. */
int32_t engine_run_remaining(engine_run *run);

/* wide.c: rows of prompts in the next step, for which there is scratch then: the chunk, or more. */
int32_t engine_wide_chunk(sl_engine *e);
/* Rows it may come to, 0: it never does. Once the chunk is known. */
int32_t engine_wide_most(const sl_engine *e);

/* step.c */
bool engine_step_init(sl_engine *e, sl_error *err);
void engine_step_free(sl_engine *e);
/* Puts one step together from the ready runs, runs it, hands out its results. Scheduler's thread, no mutex held. */
void engine_step_run(sl_engine *e);
/* Whether nobody waits for the running step any more; user is the engine. On its thread. */
bool engine_step_is_over(void *user);
void engine_run_fail(sl_engine *e, engine_run *run, const sl_error *error);

/* sequence.c: a block of KV or state to another, wherever steps keep them. */
bool engine_copy_block(sl_engine *e, uint8_t *to, uint8_t *from, uint64_t bytes, sl_error *err);
/* kv_room.c: tokens whose KV the budget can hold at most, when nobody else has any. An error names them, and a budget
 * that would do. */
uint64_t engine_kv_room(const sl_engine *e);
bool engine_kv_check(const sl_engine *e, uint64_t tokens, const char *what, sl_error *err);

/* snapshot.c */
bool engine_fingerprint(sl_engine *e, uint64_t *out, sl_error *err);

/* Copies an options struct that begins with its size, which may be that of another version: what it lacks is zero. */
bool engine_copy_options(void *to, size_t to_size, const void *from, size_t least, const char *name, sl_error *err);
/* Gives the caller as much of a struct as its version of it holds; size stays the caller's. */
bool engine_give(void *to, const void *from, size_t from_size);
bool engine_check_open(const sl_engine *e, sl_error *err); /* SL_ERR_ARGUMENT when opened with plan_only */

/* faults.c: options.faults into what the reader is opened with. */
bool engine_faults_open(sl_engine *e, sl_error *err);

/* Opens with the reader wrapped (below a mirror), for tests that inject faults; wrap takes ownership of inner. */
typedef sl_reader *(*engine_wrap_reader)(void *user, sl_reader *inner, sl_error *err);
/* A reader as chosen, of one disk or two; faults: with those that were asked for. */
sl_reader *engine_open_reader(const sl_engine *e, bool faults, engine_wrap_reader wrap, void *user, sl_error *err);
sl_engine *engine_open_wrapped(const sl_engine_options *o, engine_wrap_reader wrap, void *user, sl_error *err);

/* ---- warm.c: before the scheduler runs, and after ---- */

/* options.cache -> policy. */
bool engine_choose_policy(sl_engine *e, sl_error *err);
void engine_warm_open(sl_engine *e);
void engine_warm_close(sl_engine *e);

/* ---- pressure.c ---- */

/* On the thread that runs steps, while no expert is claimed. */
void engine_pressure_look(sl_engine *e);
/* Before the weights are read: memory for the experts is touched before they are. */
void engine_touch_ahead(sl_engine *e);

#endif
