/* Sluice: runs mixture-of-experts language models that are larger than memory.
 *
 * An engine holds one model and one scheduler thread, which batches all work. Unless a call says otherwise it may be
 * made from any thread; objects made from an engine (sequences, requests) must be freed before it. Option structs begin
 * with their own size, so that later versions can add fields: set it with the _INIT macro and leave the rest zero for
 * the default. Functions that can fail return false or NULL and fill *err (which may be NULL). */
#ifndef SLUICE_SLUICE_H
#define SLUICE_SLUICE_H

#include "sluice/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

SL_API const char *sl_version(void);

/* ---- engine ----------------------------------------------------------------------------------------------------- */

typedef struct sl_engine sl_engine;

typedef enum sl_stage { SL_STAGE_LOAD, SL_STAGE_PREFILL } sl_stage;

typedef struct sl_engine_options {
    size_t size;
    const char *model; /* path, Hugging Face cache id, Ollama or LM Studio name */
    uint64_t memory;   /* budget in bytes for all the process makes the machine hold; 0: what the machine or cgroup can
                          spare, given back in part where others come to need it */
    int threads;       /* 0: one per core */
    int context;       /* tokens a sequence may hold; 0: min(model's, 4096) */
    int chunk;         /* prefill rows per step; 0: 512, on the CPU less in a small budget, and up to 2048 for a prompt
                          that nothing runs beside while experts stream */
    int max_sequences; /* decoded at once; 0: 16; on a device 15, beyond which bits depend on how many are */
    const char *kv_type;   /* "f16" (default) or "q8_0" */
    const char *numeric;   /* "q8" (default) or "exact" */
    const char *isa;       /* NULL: best; scalar, avx2, avx512, neon */
    const char *reader;    /* NULL or "auto"; "uring", "pread" */
    bool buffered;         /* read experts through the page cache instead of O_DIRECT */
    const char *prefetch;  /* the next layer's experts are guessed: NULL or "auto" (where it is measured to pay); "off",
                              "router" */
    int read_depth;        /* 0: the reader's default */
    int max_slots;         /* 0: as the budget allows; else at most this many expert slots */
    int experts_per_token; /* 0: as the checkpoint says; else an approximation that info names */
    bool plan_only; /* check and report memory, do not load weights: only info, tokenizer and template calls work */
    sl_log_fn log;
    sl_log_level log_level;
    void *log_user;
    /* Loading and prefill progress; called from the loading or scheduler thread. done and total are bytes or tokens. */
    void (*progress)(void *user, sl_stage stage, uint64_t done, uint64_t total);
    void *progress_user;
    const char *device; /* NULL or "cpu": native; "metal", "cuda", "soft", ... (see gpu.h): kernels on that device;
                           "auto": metal or cuda where one is and takes the model, else the CPU */
    uint64_t reserve;   /* of the budget, bytes that the caller takes for itself: counted in the least, too */
    bool whole_context; /* the least holds a whole context; else a sequence may end early under a small budget */
    bool timing;        /* a device tells its phases apart, at the price of a command buffer for each */
    /* memory 0: a directory that stands for "/" where the machine's memory is looked at (/proc, /sys); NULL: "/". */
    const char *system_root;
    bool verify_reads;   /* compare every expert read from a pack with its checksum */
    const char *direct;  /* past the page cache: NULL or "auto"; "on", "off" (as buffered) */
    uint64_t read_piece; /* larger reads are split into pieces of so many bytes, a multiple of 4096; 0: automatic */
    /* What reader, read_depth, read_piece and direct leave open is as sl_calibrate found it for the model's disk. The
     * directory with its results: NULL: $XDG_CACHE_HOME/sluice or ~/.cache/sluice; "": none. */
    const char *calibration;
    double read_timeout; /* seconds after which a read of an expert counts as failed; 0: 30 */
    const char *faults;  /* for tests: what is to go wrong with reads of experts; NULL: nothing. See docs/faults.md */
    /* Of a device with memory of its own (cuda): bytes that may be taken of it for weights, KV, scratch and experts; 0:
     * what is free less a margin. memory is then the ceiling of the host's. An error on any other device. */
    uint64_t vram;
    /* NULL, or a directory on another disk with the checkpoint's files again: experts are read from both disks, as fast
     * as each brings them. The copy is compared by sizes, headers and samples. Where a read of one disk fails, the
     * other serves alone. */
    const char *mirror;
    const char *cache;    /* which expert leaves a full cache: NULL or "lru"; "lfu", least used with ageing */
    bool warm;            /* which experts are asked for is kept from run to run, and the hottest are read at opening */
    const char *hot_list; /* the file it is kept in (implies warm); NULL: one in the cache directory */
    /* NULL, or asked again and again while sl_decode evaluates, by the scheduler's thread: true ends the calls that
     * wait with SL_ERR_CANCELLED, soon also where a read does not come. */
    bool (*stop)(void *user);
    void *stop_user;
} sl_engine_options;
#define SL_ENGINE_OPTIONS_INIT                                                                                         \
    { .size = sizeof(sl_engine_options) }

SL_API sl_engine *sl_engine_open(const sl_engine_options *options, sl_error *err);
/* Cancels what runs, waits for the scheduler, releases everything. */
SL_API void sl_engine_close(sl_engine *e);

typedef struct sl_engine_info {
    size_t size;
    char path[1024];
    char container[32]; /* "gguf", "safetensors", "pack of gguf", "pack of safetensors" */
    char architecture[64];
    char formats[256];                                  /* weight formats in use */
    char numeric[16], isa[64], reader[64], kv_type[16]; /* isa: instruction set, or device */
    char approximation[128];                            /* "" or what was asked for by name */
    int layers, moe_layers, hidden, heads, kv_heads, head_dim, vocab;
    int experts, experts_per_token, context, model_context;
    int threads, chunk;
    uint64_t file_bytes, resident_bytes, expert_bytes; /* weights; of them in memory; all routed experts */
    uint64_t bytes_per_expert;                         /* largest slot */
    uint64_t bytes_per_token;                          /* expert bytes one token asks for */
    uint64_t scratch_bytes, kv_bytes_per_token;
    uint64_t least_memory, suggested_memory, full_memory; /* budgets: least that runs, good, everything resident */
    uint64_t memory;                                      /* the budget in force */
    uint64_t slots;                                       /* expert slots the budget allows */
    uint64_t dense_bytes_per_token; /* resident weights one decoded token reads: all but an embedding that is no head */
    uint64_t kv_tokens;             /* whose KV the budget can hold at most, experts having given way */
    uint64_t least_kv_tokens;       /* the same under the least budget */
    uint64_t state_bytes_per_sequence; /* recurrent state, whatever its length; 0: the model has none */
    int32_t linear_layers;             /* layers of linear attention among `layers` */
    uint64_t disk_bytes;               /* files with weights, with what is padding in them (packs) or not read */
    int read_depth;                    /* reads in flight (threads of pread); 0: the reader's usual */
    uint64_t read_piece;               /* bytes; 0: the reader's usual */
    bool read_direct;
    char reader_why[128]; /* where that comes from, in words */
    char device[32];      /* "cpu", "metal", "cuda", "soft" */
    char device_why[512]; /* how "auto" came to it; "" where it was named */
    /* Of a device with memory of its own, else 0: what may be taken of it, the least that runs, what holds every
     * expert, what was free; experts that have room there. */
    uint64_t vram, least_vram, full_vram, free_vram, vram_slots;
    char mirror[1024]; /* the second disk's directory; "": there is none */
} sl_engine_info;

/* Fills *info (info->size set by the caller). */
SL_API bool sl_engine_get_info(const sl_engine *e, sl_engine_info *info);

/* Seconds that one token takes to compute where nothing is read from the disk, at a few hundred tokens of context. */
typedef struct sl_decode_cost {
    size_t size;
    double dense_seconds;  /* all but the routed experts */
    double expert_seconds; /* the routed experts it asks for */
} sl_decode_cost;
/* For an engine opened with plan_only, on the CPU: times layers of the model's shapes and formats over zeros for about
 * `seconds`, in at most `memory` bytes, which are given back. SL_ERR_BUDGET where no layer fits. */
SL_API bool sl_engine_measure(sl_engine *e, uint64_t memory, double seconds, sl_decode_cost *out, sl_error *err);
/* The same where experts are missing with this probability, and are read from the model's files: expert_seconds has the
 * waiting for them. */
SL_API bool sl_engine_measure_reading(sl_engine *e, double missing, uint64_t memory, double seconds,
                                      sl_decode_cost *out, sl_error *err);

/* Of one of two disks that experts are read from. */
typedef struct sl_disk_stats {
    uint64_t reads, bytes;
    double rate;  /* bytes per second while something was asked of it, lately */
    bool dropped; /* a read of it failed: nothing is read from it any more */
} sl_disk_stats;

typedef struct sl_stats {
    size_t size;
    uint64_t prompt_tokens, prompt_ns; /* prefill: rows and wall time of its steps */
    uint64_t decode_tokens, decode_ns;
    uint64_t expert_hits, expert_misses, expert_bytes_read, expert_wait_ns, evictions;
    uint64_t prefetch_reads, prefetch_used;
    uint64_t memory_used, memory_peak, memory_budget; /* of the budgeted allocator */
    uint64_t weights_bytes, slots_bytes, kv_bytes, scratch_bytes;
    uint64_t rss_peak;
    uint64_t time_attention_ns, time_linear_ns, time_router_ns, time_expert_ns, time_shared_ns, time_head_ns,
        time_other_ns;
    /* Of a device: lists (command buffers) submitted, its own time; how often one side waited for the other, how long,
     * and how many of the waits the device had other work for. */
    uint64_t gpu_lists, gpu_ns, gpu_waits, gpu_wait_ns, gpu_hidden_waits;
    uint64_t time_expert_wait_ns; /* what computes stood still for experts that were read */
    uint64_t gpu_phase_ns;        /* sum of a device's phases by its own clock; 0: they are not told apart */
    uint64_t time_delta_ns;       /* recurrent layers, without their products */
    uint64_t memory_given_back;   /* bytes of expert slots that memory pressure took so far (memory 0) */
    /* Of a device with memory of its own: bytes taken of it now and at most, and slots for experts there; experts that
     * were asked for and there; those that had to be brought, and bytes copied for them. */
    uint64_t vram_used, vram_peak, vram_slots, vram_hits, vram_misses, vram_copied;
    sl_disk_stats disk[2]; /* with a mirror: the model's disk, and the mirror's */
} sl_stats;
SL_API void sl_engine_get_stats(const sl_engine *e, sl_stats *stats); /* since the last reset */
SL_API void sl_engine_reset_stats(sl_engine *e);

/* Experts of one layer since the last reset; guesses are of this layer's experts, by the layer before. */
typedef struct sl_layer_stats {
    int layer; /* in the model */
    uint64_t hits, misses, bytes_read, wait_ns;
    uint64_t guesses, guesses_right;
} sl_layer_stats;
/* out[max] of the layers with experts, in order; returns how many there are. */
SL_API size_t sl_engine_get_layer_stats(const sl_engine *e, sl_layer_stats *out, size_t max);

/* A read the engine made of the model's files: reads of one burst were issued together. For the benchmark that replays
 * them without compute. */
typedef struct sl_trace {
    const char *path;
    int burst, layer;
    uint64_t offset, bytes;
    bool guess, used; /* read ahead before it was asked for; and asked for later */
} sl_trace;
SL_API void sl_engine_trace(sl_engine *e, bool on); /* on clears what was recorded */
/* Copies up to max entries (borrowed paths live as long as the engine); returns how many there are. */
SL_API size_t sl_engine_get_trace(sl_engine *e, sl_trace *out, size_t max);
/* The reads of one token whose experts are chosen at random and are missing with probability `missing`, as a trace with
 * a burst for each layer that misses any: for forecasts. Also of an engine opened with plan_only. */
SL_API size_t sl_engine_sample_reads(const sl_engine *e, double missing, uint64_t seed, sl_trace *out, size_t max);

/* Makes reads of a trace again without computing, with a reader as the engine's own (both disks, where it has two):
 * those of one burst together, then the next burst. ns: what each burst took, room for n. area: bytes of memory to read
 * to; 0: 16 MiB. */
SL_API bool sl_engine_replay(const sl_engine *e, const sl_trace *reads, size_t n, uint64_t area, uint64_t *ns,
                             size_t *bursts, sl_error *err);

/* What the rows of a step chose in one MoE layer. */
typedef struct sl_routing {
    int moe_layer, moe_layers; /* its number among the layers with experts, and how many there are */
    int layer;                 /* in the model */
    int experts, top_k, rows;
    const int32_t *tokens, *positions; /* [rows] */
    const int32_t *chosen;             /* [rows][top_k], ascending */
    const float *weights;              /* likewise */
} sl_routing;
/* Calls fn at every MoE layer of every step from now on, on the scheduler's thread; what it is given lives until it
 * returns. NULL ends it. Not on a device: SL_ERR_UNSUPPORTED. */
SL_API bool sl_engine_watch_routing(sl_engine *e, void (*fn)(void *user, const sl_routing *r), void *user,
                                    sl_error *err);

/* ---- calibration: how the disk under a model is read fastest ------------------------------------------------------
 */

/* A way to read, and the bytes per second it gave: median and extremes of interleaved rounds. */
typedef struct sl_read_way {
    char reader[8]; /* "uring", "pread" */
    bool direct;
    int depth;
    uint64_t piece;
    double rate, least, most;
    int rounds;
} sl_read_way;

/* Random reads of one size at two depths, as they are chosen otherwise. */
typedef struct sl_read_size {
    uint64_t bytes;
    double alone, deep; /* bytes per second, one at a time and with the chosen depth */
} sl_read_size;

enum { SL_READ_WAYS = 48, SL_READ_SIZES = 4 };

typedef struct sl_calibrate_options {
    size_t size;
    const sl_engine *engine;      /* opened with plan_only: its experts are read; or NULL */
    const char *directory;        /* then random bytes in a file of their own here, of which nothing stays */
    double seconds;               /* for all of it, at most, about; 0: 7 */
    const char *store;            /* as sl_engine_options.calibration */
    const char *system_root;      /* likewise */
    bool (*progress)(void *user); /* called between measurements; false: SL_ERR_CANCELLED. May be NULL */
    void *progress_user;
    bool mirror; /* the disk of the engine's mirror instead of the model's */
} sl_calibrate_options;
#define SL_CALIBRATE_OPTIONS_INIT                                                                                      \
    { .size = sizeof(sl_calibrate_options) }

typedef struct sl_calibrate_result {
    size_t size;
    char source[128], type[32], mount[256]; /* the disk, as far as the system says */
    bool network, in_memory, direct_possible;
    int rotational; /* -1: not known */
    bool finished;  /* false: the disk is so slow that time ran out, the rest is as usual */
    sl_read_way usual, chosen;
    int way_count, size_count;
    sl_read_way ways[SL_READ_WAYS]; /* all that was tried */
    sl_read_size sizes[SL_READ_SIZES];
    double cached_rate;  /* bytes per second of what is in the page cache, one thread */
    uint64_t read_bytes; /* mean size of the reads */
    char stored[1024];   /* the file that keeps it; "": see store_error */
    sl_error store_error;
    char cache_why[192]; /* why reads pass by the page cache, or go through it */
} sl_calibrate_result;

/* Measures, and keeps the result for engines opened later on models of the same disk. */
SL_API bool sl_calibrate(const sl_calibrate_options *options, sl_calibrate_result *result, sl_error *err);

/* What was measured of a machine: it is kept beside the calibrations, for machines of the same processor, number of
 * cores and size of memory. Measuring is the caller's. */
typedef struct sl_memory_rate {
    int threads;
    double rate; /* bytes per second read by all of them together */
} sl_memory_rate;

enum { SL_MEMORY_RATES = 12 };

typedef struct sl_machine {
    size_t size;
    char cpu[128];    /* what the system says: the processor's model, */
    int cores;        /* those that this process may run on, */
    uint64_t memory;  /* and bytes of physical memory */
    int64_t measured; /* seconds since 1970; 0: nothing is known of the rest */
    int rate_count;
    sl_memory_rate rates[SL_MEMORY_RATES]; /* of rising numbers of threads */
    char gpu[128];                         /* its name; "": none */
    double gpu_copy;                       /* bytes per second from the host to memory of its own; 0: it has none */
    char stored[1024];                     /* the file that keeps it; "": none */
} sl_machine;
#define SL_MACHINE_INIT                                                                                                \
    { .size = sizeof(sl_machine) }

/* What the system says of this machine, and what is kept of it. store, system_root: as in sl_calibrate_options. false:
 * nothing is known; the error is SL_OK where nothing is kept, else says what is wrong with the file. */
SL_API bool sl_machine_look(const char *store, const char *system_root, sl_machine *out, sl_error *err);
/* Keeps measured, rates and gpu of *m, and fills its `stored`. */
SL_API bool sl_machine_keep(const char *store, const char *system_root, sl_machine *m, sl_error *err);

/* ---- packs: a model rewritten for streaming --------------------------------------------------------------------- */

typedef enum sl_pack_stage { SL_PACK_CALIBRATE /* done, total: tokens */, SL_PACK_WRITE /* bytes */ } sl_pack_stage;

typedef struct sl_pack_options {
    size_t size;
    const char *model; /* as in sl_engine_options */
    const char *out;   /* a directory that is made, or that an interrupted call left */
    int bits;          /* 0: experts keep their format; else requantised to 2, 3, 4 or 8 bits (MLX's affine format) */
    int group;         /* weights that share scale and bias: 32, 64 (0: this) or 128 */
    /* A text that is run through the model to learn which columns matter; NULL: all alike. With bits only. */
    const char *calibration;
    size_t calibration_size;
    uint64_t memory; /* for that, and threads: as in sl_engine_options */
    int threads;
    sl_log_fn log;
    sl_log_level log_level;
    void *log_user;
    /* Called now and then; false: stop. What is written stays, and the same call goes on with it. */
    bool (*progress)(void *user, sl_pack_stage stage, uint64_t done, uint64_t total);
    void *progress_user;
    int calibration_tokens; /* at most, from the text's beginning; 0: 65536 */
} sl_pack_options;
#define SL_PACK_OPTIONS_INIT                                                                                           \
    { .size = sizeof(sl_pack_options) }

typedef struct sl_pack_result {
    size_t size;
    bool resumed, was_complete; /* an interrupted pack went on; there was nothing to do */
    uint64_t bytes;             /* of the pack's weights */
    uint64_t source_bytes;      /* of the source's tensors that are in it */
    int layers, experts;        /* with experts; in a layer */
} sl_pack_result;

/* Writes the model as a pack: one aligned blob per expert, with checksums. Needs the memory of about one expert (and
 * what a calibration needs). The pack runs as the model does, and where nothing was requantised its logits are the same
 * bits. SL_ERR_CANCELLED: stopped by progress. */
SL_API bool sl_pack(const sl_pack_options *options, sl_pack_result *result, sl_error *err);
/* Compares every byte of a pack with its checksum; the error names the first layer and expert, tensor or file that is
 * damaged, *damaged counts them. progress: as above. */
SL_API bool sl_pack_verify(const char *path, bool (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                           uint64_t *damaged, sl_error *err);

/* ---- text ------------------------------------------------------------------------------------------------------- */

/* Token ids of text. special: control tokens written in it become their ids (never for text from a user). bos: add what
 * the checkpoint adds at the beginning. *ids is allocated; free with sl_free. */
SL_API bool sl_tokenize(const sl_engine *e, const char *text, size_t n, bool special, bool bos, int32_t **ids,
                        size_t *count, sl_error *err);
/* Bytes of ids, allocated and NUL-terminated; free with sl_free. */
SL_API bool sl_detokenize(const sl_engine *e, const int32_t *ids, size_t n, bool special, char **text, size_t *size,
                          sl_error *err);
/* The piece of one id as it is shown, into out (NUL-terminated, cut to size); returns its full length in bytes. */
SL_API size_t sl_token_text(const sl_engine *e, int32_t id, char *out, size_t size);
SL_API int32_t sl_token_bos(const sl_engine *e); /* -1: none */
SL_API int32_t sl_token_eos(const sl_engine *e);
SL_API bool sl_token_is_stop(const sl_engine *e, int32_t id);
/* Renders the checkpoint's chat template. messages_json: [{"role", "content", ...}]; extra_json: {"tools": [...],
 * "enable_thinking": ...} or NULL. Allocated. */
SL_API bool sl_chat_render(const sl_engine *e, const char *messages_json, const char *extra_json,
                           bool add_generation_prompt, char **text, size_t *size, sl_error *err);
SL_API bool sl_has_chat_template(const sl_engine *e);
SL_API void sl_free(void *p);

/* ---- sequences: the low level ----------------------------------------------------------------------------------- */

/* Token history with its KV. One caller at a time per sequence. */
typedef struct sl_seq sl_seq;
SL_API sl_seq *sl_seq_new(sl_engine *e, sl_error *err);
SL_API void sl_seq_free(sl_seq *s);
SL_API int sl_seq_length(const sl_seq *s);
/* Its tokens [length]; borrowed until the sequence changes. */
SL_API const int32_t *sl_seq_tokens(const sl_seq *s);
SL_API sl_seq *sl_seq_fork(const sl_seq *s,
                           sl_error *err); /* shares full pages, and recurrent state until it differs */
/* Where the model has recurrent layers (state_bytes_per_sequence), a sequence cannot go back in its state: what is left
 * of a truncated one is evaluated again when it is continued, as after a failure within a step: from where its last
 * request began, if it was not cut before that, else from its first token. A fork or a snapshot made at the place to
 * come back to costs nothing of that. */
SL_API bool sl_seq_truncate(sl_seq *s, int length, sl_error *err);
/* Snapshot as bytes (allocated; tokens, KV, recurrent state, a fingerprint of the model) and back into a new sequence;
 * another model's or a damaged snapshot is an error. */
SL_API bool sl_seq_save(const sl_seq *s, void **bytes, size_t *size, sl_error *err);
SL_API sl_seq *sl_seq_restore(sl_engine *e, const void *bytes, size_t size, sl_error *err);

/* Evaluates tokens appended to sequences: n entries, entries of one sequence in order. logits: [number of entries with
 * want][vocab], row order. Blocks until done; many callers may wait at once. SL_ERR_CONTEXT when a sequence would grow
 * past the context; nothing is appended on failure. */
typedef struct sl_input {
    sl_seq *seq;
    int32_t token;
    bool want_logits;
} sl_input;
SL_API bool sl_decode(sl_engine *e, const sl_input *inputs, size_t n, float *logits, sl_error *err);

/* ---- generation ------------------------------------------------------------------------------------------------- */

typedef struct sl_logit_bias {
    int32_t token;
    float bias;
} sl_logit_bias;

typedef struct sl_sampling {
    size_t size;
    float temperature;                         /* 0: greedy */
    int top_k;                                 /* 0: off */
    float top_p;                               /* 0 or 1: off */
    float min_p;                               /* 0: off */
    float repeat_penalty;                      /* 0 or 1: off; over the last repeat_last_n tokens */
    int repeat_last_n;                         /* 0: 64 */
    float presence_penalty, frequency_penalty; /* over generated tokens */
    uint64_t seed;                             /* the same seed gives the same text */
    const sl_logit_bias *logit_bias;
    size_t logit_bias_count;
    int logprobs; /* > 0: each token event carries this many alternatives (at most 20) */
} sl_sampling;
#define SL_SAMPLING_INIT                                                                                               \
    { .size = sizeof(sl_sampling) }

typedef struct sl_generate_options {
    size_t size;
    const int32_t *prompt; /* token ids; appended to seq */
    size_t prompt_count;
    /* Continue here (its owner must not touch it until the request ended); NULL: a fresh one. The last token of a
     * generation is sampled but not evaluated: the sequence then holds the prompt and all generated tokens but that. */
    sl_seq *seq;
    int max_tokens; /* 0: until the context is full */
    sl_sampling sampling;
    const char *const *stop; /* strings that end the text; not part of it */
    size_t stop_count;
    bool ignore_eos;
} sl_generate_options;
#define SL_GENERATE_OPTIONS_INIT                                                                                       \
    { .size = sizeof(sl_generate_options), .sampling = SL_SAMPLING_INIT }

typedef enum sl_finish {
    SL_FINISH_NONE,
    SL_FINISH_STOP /* end token or stop string */,
    SL_FINISH_LENGTH /* max_tokens, context full, or no memory for more KV (error: SL_ERR_BUDGET) */,
    SL_FINISH_CANCELLED,
    SL_FINISH_ERROR
} sl_finish;

typedef struct sl_logprob {
    int32_t token;
    float logprob;
} sl_logprob;

enum { SL_MAX_LOGPROBS = 20 };

/* One event of a request. Text is whole UTF-8 characters (what cannot be valid becomes U+FFFD); it may be empty while a
 * character or a possible stop string is held back. */
typedef struct sl_event {
    int32_t token; /* -1 in an event that carries none: text that did not fit the event before, or an end by itself */
    float logprob; /* with sampling.logprobs: of the model's own distribution, before bias, penalties, temperature */
    sl_logprob top[SL_MAX_LOGPROBS];
    int top_count;
    char text[1024];
    size_t text_size;
    sl_finish finish; /* other than NONE: the last event */
    sl_error error;   /* with SL_FINISH_ERROR; with SL_FINISH_LENGTH: SL_OK or SL_ERR_BUDGET */
    uint64_t prompt_tokens, completion_tokens;
} sl_event;

typedef struct sl_request sl_request;
SL_API sl_request *sl_generate(sl_engine *e, const sl_generate_options *options, sl_error *err);
/* Waits for the next event (timeout_ms < 0: no limit); false when none came in time. After a last event there are no
 * more. Never loses events: the queue is bounded and generation waits for its reader. */
SL_API bool sl_request_next(sl_request *r, sl_event *event, int timeout_ms);
/* Seen within a layer; where the model has recurrent layers, a step that others share, or a token of a sequence that is
 * kept, is finished first. */
SL_API void sl_request_cancel(sl_request *r);
SL_API void sl_request_free(sl_request *r); /* cancels if needed and waits */

/* What the engine waits for at this moment, for a line after a stall: "reading experts of layer 12: 8 of 8
 * outstanding", "prefill", "" when idle. */
SL_API void sl_engine_activity(const sl_engine *e, char *out, size_t size, uint64_t *since_ns);

#ifdef __cplusplus
}
#endif
#endif
