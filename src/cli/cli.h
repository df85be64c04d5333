/* cli: the program `sluice`. Commands over the engine's public header; everything a person sees is made here.
 *
 * A command is a row of the table in commands.c, an option a row of a table in option_tables.c: parsing, help and
 * completions come from those rows. One file per command (cmd_*.c).
 * May include: sluice/sluice.h, base; checkpoint's and quant's writers for `synth` only. Called by nobody.
 * Exit status: 0 done, 1 it failed (one line on standard error says why), 2 the command line is wrong, 130 interrupted.
 */
#ifndef SL_CLI_H
#define SL_CLI_H

#include "base/base.h"
#include "sluice/sluice.h"

#include <jansson.h>
#include <stdio.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct cli_strings {
    const char **items;
    size_t count, capacity;
} cli_strings;

typedef struct cli_biases {
    sl_logit_bias *items;
    size_t count, capacity;
} cli_biases;

/* Every option's value; fields that a command has no option for keep their defaults (cli_args_init). */
typedef struct cli_args {
    const char *command;
    const char *operand[3];
    int operands;
    /* engine */
    uint64_t memory, vram; /* 0: automatic */
    int threads, context, chunk, max_slots, experts_per_token, read_depth;
    const char *kv_type, *numeric, *isa, *reader, *device;
    bool buffered, verify_reads;
    const char *prefetch, *direct, *mirror, *cache, *hot_list;
    uint64_t read_piece;
    double read_timeout;
    /* prompt */
    const char *file, *system;
    bool raw;
    int think; /* -1: the template's default, 0, 1 */
    /* generation */
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int top_k, max_tokens, logprobs;
    uint64_t seed;
    const char *skew;
    const char *like;
    bool ignore_eos;
    cli_strings stop;
    cli_biases logit_bias;
    /* output */
    bool json, timing, help;
    sl_log_level log_level;
    bool quiet;
    /* bench, eval, plan */
    int repeat, window, sequences;
    int warmup, prefill, tokens; /* -1: not given */
    const char *ids, *reference, *record;
    bool no_replay, per_layer, warm;
    uint64_t reserve;   /* set by a command: what it takes of --memory for itself */
    bool whole_context; /* likewise: its sequences will fill the context */
    /* tokenize */
    bool pieces, decode, special, no_bos;
    /* pack, routes */
    const char *bits, *calibrate, *routing, *svg;
    int group;
    bool verify;
    /* synth */
    const char *format;
    int layers, experts;
    bool force;
    /* msl */
    const char *groups, *group_threads;
    cli_strings inputs, constants, lengths, outputs, defines, includes;
    bool no_check;
} cli_args;

typedef enum cli_kind {
    CLI_FLAG,   /* no value; bool becomes true */
    CLI_SET,    /* no value; int becomes `least` */
    CLI_INT,    /* int in [least, most] */
    CLI_U64,    /* uint64_t */
    CLI_REAL,   /* double in [least, most] */
    CLI_MEMORY, /* uint64_t bytes: 6G, 512M, 50%, auto */
    CLI_BYTES,  /* the same without shares of the host's memory */
    CLI_TEXT,   /* const char * */
    CLI_CHOICE, /* const char *, one of `value` (words joined by |) */
    CLI_LEVEL,  /* sl_log_level, by name */
    CLI_LIST,   /* cli_strings; may be repeated */
    CLI_BIAS    /* cli_biases: ID=BIAS[,ID=BIAS...]; may be repeated */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without the dashes */
    char letter;      /* one-letter form, or 0 */
    cli_kind kind;
    size_t offset; /* of its field in cli_args */
    double least, most;
    const char *value; /* how help names the value; the words of a choice */
    const char *help;
} cli_option;

/* Tables end with a row whose name is NULL. */
extern const cli_option cli_engine_options[], cli_prompt_options[], cli_sampling_options[], cli_figure_options[],
    cli_json_options[], cli_doctor_options[], cli_bench_options[], cli_eval_options[], cli_tokenize_options[],
    cli_synth_options[], cli_run_options[], cli_msl_options[], cli_pack_options[], cli_routes_options[],
    cli_memory_options[], cli_common_options[];

enum { CLI_MAX_TABLES = 8, BENCH_SEQUENCES = 64 };

typedef struct cli_command {
    const char *name;
    const char *operands; /* as in the usage line */
    int least_operands, most_operands;
    const char *summary; /* one line */
    const char *details; /* paragraphs of `help NAME`, or NULL */
    const cli_option *tables[CLI_MAX_TABLES];
    int (*run)(const cli_args *args);
} cli_command;

extern const cli_command cli_commands[]; /* ends with a row whose name is NULL */
const cli_command *cli_find_command(const char *name);
/* The candidate that a word begins, or the nearest to a mistyped one, or NULL when none is near; next(ctx, i) gives
 * candidates until NULL. */
const char *cli_nearest(const char *word, const char *(*next)(const void *ctx, int i), const void *ctx);
/* i-th option of a command over all its tables; NULL past the last. */
const cli_option *cli_option_at(const cli_command *c, int i);

void cli_args_init(cli_args *a);
void cli_args_free(cli_args *a);
/* Parses what follows the command's name. On failure the error's message is complete (with its hint). */
bool cli_parse(const cli_command *c, int argc, char **argv, cli_args *a, sl_error *err);

/* Strict numbers: the whole text, no spaces, in range. */
bool cli_parse_int(const char *text, int64_t least, int64_t most, int64_t *out);
bool cli_parse_u64(const char *text, uint64_t *out);
bool cli_parse_real(const char *text, double *out);
bool cli_parse_memory(const char *text, uint64_t *out, sl_error *err);

void cli_print_help(FILE *f);
void cli_print_command_help(FILE *f, const cli_command *c);

int cli_run(const cli_args *a);
int cli_chat(const cli_args *a);
int cli_info(const cli_args *a);
int cli_plan(const cli_args *a);
int cli_doctor(const cli_args *a);
int cli_bench(const cli_args *a);
int cli_eval(const cli_args *a);
int cli_tokenize(const cli_args *a);
int cli_synth(const cli_args *a);
int cli_pack(const cli_args *a);
int cli_routes(const cli_args *a);
int cli_completions(const cli_args *a);
int cli_msl(const cli_args *a);
int cli_msl_run(const cli_args *a);
int cli_msl_trace(const cli_args *a);
/* The device of `sluice msl` (soft, with checks, unless asked otherwise) and a file compiled for it. */
struct sl_gpu *cli_msl_open(const cli_args *a, sl_error *err);
struct sl_gpu_library *cli_msl_compile(struct sl_gpu *g, const cli_args *a, const char *file, sl_error *err);
/* cli_report, unless the device's log has shown the same already. */
int cli_msl_report(const sl_error *err);

/* ---- terminal: standard output, messages, progress --------------------------------------------------------------- */

/* Opens what is missing of the three standard descriptors, so that no file of ours lands on them; ignores SIGPIPE. */
void cli_terminal_init(void);
void cli_terminal_quiet(bool quiet);
bool cli_stdout_is_tty(void);
/* replace.c: whether a file may be written under this name: a new one or a regular file that is none of the inputs
 * (NULL ones are passed over) and in none of those that are directories. */
bool cli_may_replace(const char *path, const char *const *inputs, size_t n, sl_error *err);
/* Writes a document in place of what is there; whoever looks, whenever the program ends, sees the old one or the new.
 */
bool cli_replace_json(const char *path, const json_t *doc, size_t flags, sl_error *err);
/* Text of a model or a file to standard output, flushed; on a terminal control characters are shown, not sent. Returns
 * false once standard output does not take bytes (cli_finish says so). */
bool cli_put(const char *text, size_t n);
bool cli_stdout_broken(void);
/* The line that ends a program: flushes, and turns trouble with standard output into a message and status 1. */
int cli_finish(int status);
/* One line on standard error: "sluice: ...". Returns CLI_FAILED. */
int cli_report(const sl_error *err);
int cli_complain(int status, const char *fmt, ...) SL_PRINTF(2, 3);
/* A note on standard error unless --quiet. */
void cli_note(const char *fmt, ...) SL_PRINTF(1, 2);
/* The document and a newline. Takes the reference. */
int cli_print_json(json_t *document);

/* A status line on standard error that the next output erases; only on a terminal. */
bool cli_status(const char *fmt, ...) SL_PRINTF(1, 2); /* false: it could not be shown */
void cli_status_clear(void);
void cli_progress(const char *what, uint64_t done, uint64_t total, bool bytes);
/* Progress of something long, in bytes or tokens: with its rate and the time left. Where there is no terminal, a line
 * every few seconds instead. */
typedef struct cli_bar {
    const char *what;
    bool bytes;
    bool begun;
    uint64_t first, first_ns, said_ns;
} cli_bar;
void cli_bar_show(cli_bar *b, uint64_t done, uint64_t total);
/* The clock of stalls begins anew. */
void cli_touch(void);
/* Nanoseconds since progress last moved (cli_progress, cli_touch) or output was written. */
uint64_t cli_idle_ns(void);

/* Ctrl-C: between begin and end it sets a flag instead of ending the program; again_ends: a second one ends it. */
void cli_interrupt_begin(bool again_ends);
/* As that for SIGTERM and SIGHUP too, a second one ends it: for what leaves files in the making. */
void cli_stop_begin(void);
/* The exit status of a program that such a signal stopped: 128 and its number. */
int cli_stop_status(void);
void cli_interrupt_end(void);
bool cli_interrupted(void);
void cli_interrupt_reset(void);

/* "1.5 GiB"; out holds 16 bytes. */
const char *cli_size(uint64_t bytes, char *out);

/* ---- engine ------------------------------------------------------------------------------------------------------ */

/* The engine as the options say, with progress on loading and prefill. plan_only: memory and text calls only. */
sl_engine *cli_open(const cli_args *a, bool plan_only, sl_error *err);
/* Closes it; where a read of the disk does not return, ends the program instead, with status 1. NULL is fine. */
void cli_close(const cli_args *a, sl_engine *e);
/* Whether prefill progress is shown; off at first. */
void cli_show_prefill(bool shown);
void cli_get_info(const sl_engine *e, sl_engine_info *info);
/* A line about the memory of a GPU that has its own; elsewhere none. */
void cli_print_vram(FILE *f, const char *label, const sl_engine_info *i);

/* Prompt: argument, file or standard input; allocated, NUL-terminated; an empty one is an error. text may be NULL.
 * chomp: one newline that ends a file or standard input is left out. */
char *cli_read_prompt(const char *text, const char *file, bool chomp, size_t *size, sl_error *err);
/* Whole standard input ("-") or a file, up to `limit` bytes. */
char *cli_read_input(const char *file, uint64_t limit, size_t *size, sl_error *err);
/* {"role": role, "content": text}; bytes that are no UTF-8 become U+FFFD. */
json_t *cli_message(const char *role, const char *text, size_t n);
/* Ids as numbers between spaces, commas or brackets (a JSON array too); allocated. */
bool cli_parse_ids(const char *text, int32_t **ids, size_t *count, sl_error *err);
/* Token ids of a conversation in the checkpoint's template. Control tokens that a message spells stay text. */
bool cli_chat_ids(const sl_engine *e, const json_t *messages, int think, int32_t **ids, size_t *count, sl_error *err);

typedef struct cli_answer {
    sl_buf text;
    int32_t *ids;
    size_t count, capacity;
    json_t *logprobs; /* array, with --logprobs */
    sl_finish finish;
    sl_error error;
    uint64_t prompt_tokens, completion_tokens;
} cli_answer;

/* Runs one request; the text goes to standard output as it comes if `stream`. False on an error (in answer->error). */
bool cli_generate(sl_engine *e, const cli_args *a, sl_seq *seq, const int32_t *ids, size_t n, bool stream,
                  cli_answer *answer);
/* Says so where an answer ended because the context or the memory for KV is full, and what then. */
void cli_note_full(const cli_args *a, const cli_answer *answer, const char *then);
void cli_answer_free(cli_answer *answer);
const char *cli_finish_name(sl_finish f);

/* Figures of what ran since the last reset: text on a stream, or an object. --layers: of every layer, too. */
static inline bool cli_wants_figures(const cli_args *a) {
    return a->timing || a->per_layer;
}
void cli_print_figures(FILE *f, const sl_engine *e, const cli_args *a);
json_t *cli_figures_json(const sl_engine *e, const cli_args *a);
json_t *cli_info_json(const sl_engine_info *info);
/* What came from each of two disks; nothing, null where there is one. */
void cli_print_disks(FILE *f, const sl_disk_stats disk[2], const sl_engine_info *info);
json_t *cli_disks_json(const sl_disk_stats disk[2], const sl_engine_info *info);

/* Sums of what each layer with experts hit, read and waited for. */
typedef struct cli_layers {
    sl_layer_stats *of; /* [count], allocated; NULL: none */
    size_t count;
} cli_layers;
/* Adds the figures since the last reset. */
bool cli_layers_add(const sl_engine *e, cli_layers *l, sl_error *err);
void cli_layers_free(cli_layers *l);
json_t *cli_layers_json(const cli_layers *l);
/* A table; per token of `tokens`, but for rates and counts of guesses. */
void cli_layers_print(FILE *f, const cli_layers *l, double tokens);
/* All together, and the three that waited most. Nothing where no layer was asked for an expert. */
void cli_layers_print_line(FILE *f, const cli_layers *l, double tokens);

/* ---- measuring the machine --------------------------------------------------------------------------------------- */

typedef struct cli_machine_rates {
    double memory_read; /* bytes per second, all threads */
    double disk_read;   /* bytes per second, random reads of the given size */
    bool disk_direct;   /* measured with O_DIRECT */
    bool beyond_caches; /* memory was measured with more than the caches hold */
} cli_machine_rates;

/* What measuring may take: what is left of a budget (0: none was asked for) and of what this process may use. */
uint64_t cli_spare_memory(uint64_t budget);
/* Takes at most `spare` bytes, and gives them back. Fills memory_read and beyond_caches. */
bool cli_measure_memory_read(int threads, uint64_t spare, cli_machine_rates *out, sl_error *err);
/* The same for several numbers of threads, of which the last is the largest, in one area. rates[n]. */
bool cli_measure_memory_rates(const int *threads, int n, uint64_t spare, double *rates, bool *beyond_caches,
                              sl_error *err);
/* Bytes per second from pinned memory of the host to the device's own; takes 32 MiB of each, and gives them back. */
bool cli_measure_copy(const char *device, double *rate, sl_error *err);

/* Reads the trace again without compute. bursts: one burst after the other; ns[i] is the time of the i-th. Then some of
 * it at once, for the disk's rate. */
typedef struct cli_replay {
    uint64_t *ns; /* allocated */
    int *layer;   /* of the burst */
    size_t bursts;
    uint64_t bytes, total_ns;
    double rate; /* bytes per second of reads issued without waiting for bursts to end; 0: there are none */
} cli_replay;
/* Waiting for each burst, as layers do, and (or) a part of the reads without. */
enum { CLI_REPLAY_BURSTS = 1, CLI_REPLAY_STREAM = 2 };
/* area: bytes of memory to read to (0: as is usual). */
bool cli_replay_trace(const sl_engine *e, const sl_trace *trace, size_t n, int what, uint64_t area, cli_replay *out,
                      sl_error *err);
void cli_replay_free(cli_replay *r);

#endif
