/* The options, as rows. A command names the tables it takes (commands.c); help and completions read the same rows. */
#include "cli.h"

#include <limits.h>

#define AT(field) offsetof(cli_args, field)
#define END                                                                                                            \
    { .name = NULL }

#define MIRROR                                                                                                         \
    {                                                                                                                  \
        "mirror", 0, CLI_TEXT, AT(mirror), 0, 0, "DIR",                                                                \
            "a second copy of the model's files on another disk: experts are read from both"                           \
    }

const cli_option cli_engine_options[] = {
    {"memory", 'm', CLI_MEMORY, AT(memory), 0, 0, "SIZE",
     "ceiling on all memory the process makes the machine hold: 6G, 512M, 50%, auto (default)"},
    {"vram", 0, CLI_BYTES, AT(vram), 0, 0, "SIZE",
     "of a GPU with memory of its own (cuda): ceiling on what is taken of it for weights, KV, scratch and experts: 6G, "
     "512M, auto (default: what is free, less a margin); --memory is then the host's"},
    {"ctx", 'c', CLI_INT, AT(context), 1, 1 << 24, "N",
     "tokens a sequence may hold (default: the model's, at most 4096)"},
    {"threads", 't', CLI_INT, AT(threads), 1, 1024, "N", "threads that compute (default: one per core)"},
    {"kv-type", 0, CLI_CHOICE, AT(kv_type), 0, 0, "f16|q8_0", "element type of the KV cache (default: f16)"},
    {"numeric", 0, CLI_CHOICE, AT(numeric), 0, 0, "q8|exact",
     "q8: activations rounded to 8 bits (default); exact: float32 scalar, slow, the oracle"},
    {"isa", 0, CLI_CHOICE, AT(isa), 0, 0, "scalar|avx2|avx512|neon", "instruction set (default: the best there is)"},
    {"device", 0, CLI_TEXT, AT(device), 0, 0, "cpu|auto|metal|cuda[:N]|soft[:N]",
     "what computes (default: cpu); auto takes metal or cuda where one is and takes the model, and --verbose says why; "
     "soft runs the GPU's kernels on the CPU: slow, for tests"},
    {"reader", 0, CLI_CHOICE, AT(reader), 0, 0, "auto|uring|pread",
     "how experts are read (default: auto, as 'sluice doctor' found it)"},
    {"read-depth", 0, CLI_INT, AT(read_depth), 1, 4096, "N", "reads in flight (default: as 'sluice doctor' found it)"},
    {"buffered", 0, CLI_FLAG, AT(buffered), 0, 0, NULL, "the same as --direct off"},
    MIRROR,
    {"verify-reads", 0, CLI_FLAG, AT(verify_reads), 0, 0, NULL,
     "compare every expert that is read from a pack with its checksum"},
    {"direct", 0, CLI_CHOICE, AT(direct), 0, 0, "auto|on|off",
     "read experts with O_DIRECT or through the page cache (default: auto, as 'sluice doctor' found it)"},
    {"read-piece", 0, CLI_BYTES, AT(read_piece), 0, 0, "SIZE",
     "split larger reads into pieces of SIZE, a multiple of 4K (default: auto)"},
    {"read-timeout", 0, CLI_REAL, AT(read_timeout), 0.001, 86400, "SECONDS",
     "a read of an expert that takes longer has failed (default: 30)"},
    {"cache", 0, CLI_CHOICE, AT(cache), 0, 0, "lru|lfu",
     "which expert leaves a full cache: the one not used for longest (default), or the one used least"},
    {"warm", 0, CLI_FLAG, AT(warm), 0, 0, NULL,
     "read the experts that earlier runs with --warm used most before the first token"},
    {"hot-list", 0, CLI_TEXT, AT(hot_list), 0, 0, "FILE", "where that is kept from run to run (implies --warm)"},
    {"prefetch", 0, CLI_CHOICE, AT(prefetch), 0, 0, "auto|off|router",
     "guess the next layer's experts and read them when the disk is idle (default: auto, where it is measured to pay)"},
    {"chunk", 0, CLI_INT, AT(chunk), 1, 1 << 16, "N",
     "tokens of a prompt evaluated at once (default: 512, or what memory and disk call for)"},
    {"max-slots", 0, CLI_INT, AT(max_slots), 1, INT_MAX, "N", "at most this many experts in memory"},
    {"experts-per-token", 0, CLI_INT, AT(experts_per_token), 1, 4096, "N",
     "use fewer (or more) experts than the model asks for: an approximation, and named as one"},
    END};

const cli_option cli_prompt_options[] = {
    {"system", 's', CLI_TEXT, AT(system), 0, 0, "TEXT", "system message"},
    {"think", 0, CLI_SET, AT(think), 1, 0, NULL, "ask the template for thinking"},
    {"no-think", 0, CLI_SET, AT(think), 0, 0, NULL, "ask the template for no thinking"},
    END};

const cli_option cli_run_options[] = {
    {"file", 'f', CLI_TEXT, AT(file), 0, 0, "FILE", "read the prompt from FILE (- for standard input)"},
    {"raw", 'r', CLI_FLAG, AT(raw), 0, 0, NULL, "continue the prompt as it is, without the chat template"},
    {"no-template", 0, CLI_FLAG, AT(raw), 0, 0, NULL, "the same as --raw"},
    {"logprobs", 0, CLI_INT, AT(logprobs), 1, SL_MAX_LOGPROBS, "N",
     "with --json: log probabilities of N alternatives per token"},
    END};

const cli_option cli_sampling_options[] = {
    {"max-tokens", 'n', CLI_INT, AT(max_tokens), 1, INT_MAX, "N",
     "end after N tokens (default: when the context is full)"},
    {"temp", 0, CLI_REAL, AT(temperature), 0, 100, "T", "temperature; 0 always takes the likeliest token (default: 0)"},
    {"top-k", 0, CLI_INT, AT(top_k), 0, INT_MAX, "N", "sample among the N likeliest (0: off)"},
    {"top-p", 0, CLI_REAL, AT(top_p), 0, 1, "P", "sample among the likeliest that make up P (0 or 1: off)"},
    {"min-p", 0, CLI_REAL, AT(min_p), 0, 1, "P", "drop tokens less likely than P times the likeliest (0: off)"},
    {"repeat-penalty", 0, CLI_REAL, AT(repeat_penalty), 0, 10, "X", "divide the logits of recent tokens by X (1: off)"},
    {"presence-penalty", 0, CLI_REAL, AT(presence_penalty), -10, 10, "X", "subtract X from tokens already generated"},
    {"frequency-penalty", 0, CLI_REAL, AT(frequency_penalty), -10, 10, "X",
     "subtract X for each time a token was generated"},
    {"logit-bias", 0, CLI_BIAS, AT(logit_bias), 0, 0, "ID=BIAS", "add BIAS to a token's logit; may be repeated"},
    {"ignore-eos", 0, CLI_FLAG, AT(ignore_eos), 0, 0, NULL, "go on after the end token, until --max-tokens"},
    {"stop", 0, CLI_LIST, AT(stop), 0, 0, "TEXT", "end before TEXT; may be repeated"},
    {"seed", 0, CLI_U64, AT(seed), 0, 0, "N", "seed of the sampler: the same seed gives the same text (default: 0)"},
    END};

const cli_option cli_figure_options[] = {
    {"timing", 0, CLI_FLAG, AT(timing), 0, 0, NULL,
     "print speed, hit rate, bytes read, the layers that waited most and memory on standard error"},
    {"layers", 0, CLI_FLAG, AT(per_layer), 0, 0, NULL, "the same with a table of every layer's hits, reads and waits"},
    END};

const cli_option cli_doctor_options[] = {MIRROR, END};

const cli_option cli_json_options[] = {
    {"json", 'j', CLI_FLAG, AT(json), 0, 0, NULL, "one JSON document on standard output"}, END};

const cli_option cli_bench_options[] = {
    {"warmup", 0, CLI_INT, AT(warmup), 0, 1 << 20, "N",
     "tokens decoded before measuring (default: 256, fewer in a short context)"},
    {"tokens", 0, CLI_INT, AT(tokens), 0, 1 << 20, "N",
     "tokens decoded per repetition (default: 128, fewer in a short context)"},
    {"prefill", 0, CLI_INT, AT(prefill), 0, 1 << 20, "N",
     "tokens of the prefill; 0: none (default: 512, or the context)"},
    {"sequences", 0, CLI_INT, AT(sequences), 1, BENCH_SEQUENCES, "N",
     "decode so many sequences side by side; speed is that of all together (default: 1)"},
    {"repeat", 0, CLI_INT, AT(repeat), 1, 1000, "N", "repetitions; medians are shown (default: 3)"},
    {"ids", 0, CLI_TEXT, AT(ids), 0, 0, "FILE",
     "token ids to force: numbers or a JSON array; \"random\": spread over the vocabulary (default: a built-in text)"},
    {"layers", 0, CLI_FLAG, AT(per_layer), 0, 0, NULL, "show hits, reads, waits and guesses of every layer"},
    {"no-replay", 0, CLI_FLAG, AT(no_replay), 0, 0, NULL, "skip the replay of reads and with it the causal bound"},
    END};

const cli_option cli_eval_options[] = {
    {"window", 0, CLI_INT, AT(window), 2, 1 << 24, "N",
     "tokens evaluated as one sequence (default: all, at most the context)"},
    {"tokens", 0, CLI_INT, AT(tokens), 2, INT_MAX, "N", "use only the first N tokens of the text"},
    {"reference", 0, CLI_TEXT, AT(reference), 0, 0, "FILE", "recorded log probabilities to compare with: KL and top-1"},
    {"record", 0, CLI_TEXT, AT(record), 0, 0, "FILE", "record this run's log probabilities as such a reference"},
    {"routing", 0, CLI_TEXT, AT(routing), 0, 0, "FILE", "record which experts each token used, for 'sluice routes'"},
    END};

const cli_option cli_tokenize_options[] = {
    {"file", 'f', CLI_TEXT, AT(file), 0, 0, "FILE", "read the text from FILE (- for standard input)"},
    {"pieces", 'p', CLI_FLAG, AT(pieces), 0, 0, NULL, "one token per line: id and piece"},
    {"decode", 'd', CLI_FLAG, AT(decode), 0, 0, NULL, "the other way: ids to text"},
    {"special", 0, CLI_FLAG, AT(special), 0, 0, NULL, "control tokens written in the text become their ids"},
    {"no-bos", 0, CLI_FLAG, AT(no_bos), 0, 0, NULL, "do not add what the model puts before a text"},
    END};

const cli_option cli_synth_options[] = {
    {"like", 0, CLI_TEXT, AT(like), 0, 0, "SHAPE", "the shape, instead of as the first word"},
    {"format", 0, CLI_CHOICE, AT(format), 0, 0,
     "q4_0-gguf|f32-gguf|f16-gguf|bf16-gguf|q4_1-gguf|q5_0-gguf|q5_1-gguf|q8_0-gguf|mxfp4-gguf|"
     "q2_k-gguf|q3_k-gguf|q4_k-gguf|q5_k-gguf|q6_k-gguf|iq4_nl-gguf|iq4_xs-gguf|iq3_s-gguf|iq3_xxs-gguf|iq2_s-gguf|"
     "iq2_xs-gguf|iq2_xxs-gguf|iq1_s-gguf|"
     "mlx2|mlx3|mlx4|mlx5|mlx6|mlx8|mlx-mxfp4",
     "container, and format of the matrices (default: q4_0-gguf)"},
    {"skew", 0, CLI_CHOICE, AT(skew), 0, 0, "uniform|flat|local",
     "how far routing repeats itself over the ids in OUT.ids.json (default: uniform, without such a file)"},
    {"layers", 0, CLI_INT, AT(layers), 1, 1024, "N", "layers, instead of the shape's"},
    {"experts", 0, CLI_INT, AT(experts), 1, 4096, "N", "experts, instead of the shape's"},
    {"seed", 0, CLI_U64, AT(seed), 0, 0, "N", "seed of the weights (default: 0)"},
    {"force", 0, CLI_FLAG, AT(force), 0, 0, NULL, "overwrite OUT"},
    END};

const cli_option cli_pack_options[] = {
    {"experts", 0, CLI_CHOICE, AT(bits), 0, 0, "2bit|3bit|4bit|8bit",
     "requantise the experts: an approximation (default: as they are)"},
    {"group", 0, CLI_INT, AT(group), 32, 128, "32|64|128", "weights that share a scale and a bias (default: 64)"},
    {"calibrate", 0, CLI_TEXT, AT(calibrate), 0, 0, "FILE",
     "a text that is run through the model first, so that errors fall where they matter least"},
    {"tokens", 0, CLI_INT, AT(tokens), 1, 1 << 24, "N", "of that text at most (default: 65536)"},
    {"verify", 0, CLI_FLAG, AT(verify), 0, 0, NULL, "read the pack MODEL and compare every byte with its checksum"},
    END};

const cli_option cli_memory_options[] = {
    {"memory", 'm', CLI_MEMORY, AT(memory), 0, 0, "SIZE", "ceiling on the memory that calibrating takes"},
    {"threads", 't', CLI_INT, AT(threads), 1, 1024, "N", "threads that compute (default: one per core)"},
    END};

const cli_option cli_routes_options[] = {
    {"svg", 0, CLI_TEXT, AT(svg), 0, 0, "FILE", "draw hit rate against cache size, and how often each expert is used"},
    END};

const cli_option cli_msl_options[] = {
    {"arg", 'a', CLI_LIST, AT(inputs), 0, 0, "SLOT=VALUE",
     "run: what is bound at a slot: FILE.npy, a file of raw bytes, TYPE:V,V,..., zeros:TYPE:COUNT, iota:TYPE:COUNT or "
     "random:TYPE:COUNT; may be repeated"},
    {"groups", 'g', CLI_TEXT, AT(groups), 0, 0, "X,Y,Z", "run: number of threadgroups (default: 1)"},
    {"threads", 't', CLI_TEXT, AT(group_threads), 0, 0, "X,Y,Z", "run: threads of a threadgroup (default: 32)"},
    {"constant", 0, CLI_LIST, AT(constants), 0, 0, "ID=TYPE:V", "run: a function constant; may be repeated"},
    {"threadgroup", 0, CLI_LIST, AT(lengths), 0, 0, "SLOT=BYTES", "run: length of threadgroup memory at a slot"},
    {"out", 'o', CLI_LIST, AT(outputs), 0, 0, "SLOT=FILE",
     "run: write what is bound at a slot to FILE (.npy, or raw bytes) instead of printing its first elements"},
    {"no-check", 0, CLI_FLAG, AT(no_check), 0, 0, NULL,
     "no search for faults: out of bounds, uninitialised, races, divergence"},
    {"seed", 0, CLI_U64, AT(seed), 0, 0, "N",
     "order of threads: 0 ascending, 1 reversed, else shuffled; random inputs"},
    {"define", 'D', CLI_LIST, AT(defines), 0, 0, "NAME[=V]", "a definition for the preprocessor; may be repeated"},
    {"include", 'I', CLI_LIST, AT(includes), 0, 0, "DIR", "where #include looks; may be repeated"},
    {"device", 0, CLI_TEXT, AT(device), 0, 0, "soft[:N]|metal|cuda[:N]", "what runs it (default: soft)"},
    END};

const cli_option cli_common_options[] = {
    {"log-level", 0, CLI_LEVEL, AT(log_level), 0, 0, "error|warn|info|debug", "what the engine logs (default: warn)"},
    {"verbose", 'v', CLI_SET, AT(log_level), SL_LOG_INFO, 0, NULL, "the same as --log-level info"},
    {"quiet", 'q', CLI_FLAG, AT(quiet), 0, 0, NULL, "no progress, no notes"},
    {"help", 'h', CLI_FLAG, AT(help), 0, 0, NULL, "show this"},
    END};
