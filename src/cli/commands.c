/* The commands, as rows, and the help made from them. */
#include "cli.h"

#include <ctype.h>
#include <string.h>

const cli_command cli_commands[] = {
    {"run",
     "MODEL [PROMPT]",
     1,
     2,
     "answer one prompt",
     "The prompt is the argument, or FILE with -f, or standard input. It is put in the model's chat template if there "
     "is\n"
     "one, without the newline that ends a file; --raw continues the text as it is. The answer goes to standard output "
     "as it is made.",
     {cli_run_options, cli_prompt_options, cli_sampling_options, cli_engine_options, cli_json_options,
      cli_figure_options, cli_common_options},
     cli_run},
    {"chat",
     "MODEL",
     1,
     1,
     "talk with a model in the terminal",
     "Ctrl-C stops an answer, not the program; Ctrl-D ends it. /help lists the commands inside.",
     {cli_prompt_options, cli_sampling_options, cli_engine_options, cli_figure_options, cli_common_options},
     cli_chat},
    {"info",
     "MODEL",
     1,
     1,
     "show what a model is and the memory it needs",
     "Reads headers only. \"least\" is the smallest --memory that runs, \"suggested\" one that runs well, \"full\" one "
     "that\n"
     "holds every expert.",
     {cli_engine_options, cli_json_options, cli_common_options},
     cli_info},
    {"plan",
     "MODEL",
     1,
     1,
     "predict bytes and speed for a memory budget",
     "Measures this machine's memory, the disk under MODEL and the computing of a token, and predicts, with its\n"
     "assumptions written beside the numbers. Loads nothing, and keeps within --memory itself.",
     {cli_engine_options, cli_json_options, cli_common_options},
     cli_plan},
    {"doctor",
     "DIR|MODEL",
     1,
     1,
     "measure this machine, and how its disk is read fastest",
     "Takes less than ten seconds. Reads MODEL's experts, or random bytes in DIR of which nothing stays, in several "
     "ways,\n"
     "and keeps the fastest for all models on that disk; what it finds of memory and GPU it keeps for this machine. "
     "Says\n"
     "what will be used, why, and what hurts.",
     {cli_doctor_options, cli_json_options, cli_common_options},
     cli_doctor},
    {"bench",
     "MODEL",
     1,
     1,
     "measure prefill and decode",
     "Decodes a fixed text, token by token, whatever the model would say itself; medians over repetitions. With "
     "experts\n"
     "streamed it also replays the reads of each repetition without computing: the causal bound is the speed that "
     "this\n"
     "run's misses allow.",
     {cli_bench_options, cli_engine_options, cli_json_options, cli_common_options},
     cli_bench},
    {"eval",
     "MODEL [FILE]",
     1,
     2,
     "perplexity of a text, or distance from a recorded reference",
     "FILE is a text (- for standard input). With --reference the tokens come from the reference, and KL(reference ||\n"
     "this run) and top-1 agreement are shown too; a FILE named beside it must be the text it was recorded on.",
     {cli_eval_options, cli_engine_options, cli_json_options, cli_figure_options, cli_common_options},
     cli_eval},
    {"tokenize",
     "MODEL [TEXT]",
     1,
     2,
     "token ids of a text, or the text of ids",
     "The text is the argument, or FILE with -f, or standard input; these are taken as they are, to the last newline.",
     {cli_tokenize_options, cli_json_options, cli_common_options},
     cli_tokenize},
    {"pack",
     "MODEL [OUT]",
     1,
     2,
     "rewrite a model for streaming",
     "OUT is a directory, which then serves as MODEL: every expert is one aligned blob with a checksum. The same "
     "command\n"
     "goes on with a pack that was interrupted. --experts makes the experts smaller; what that costs, 'sluice eval' "
     "says.\n"
     "With --verify MODEL is a pack, whose every byte is read and compared.",
     {cli_pack_options, cli_memory_options, cli_common_options},
     cli_pack},
    {"routes",
     "FILE",
     1,
     1,
     "which experts a text used, and what a cache of them would hit",
     "FILE is what 'sluice eval --routing' wrote. Shows each layer's use of its experts, and the hit rates that caches "
     "of\n"
     "several sizes would have had: least recently used, least frequently used, and the best that is possible.",
     {cli_routes_options, cli_json_options, cli_common_options},
     cli_routes},
    {"synth",
     "SHAPE OUT",
     1,
     2,
     "write a checkpoint of a published shape with random weights",
     "For benchmarks and tests: the text it makes means nothing. OUT is a .gguf file, or a directory for mlx.\n"
     "'sluice synth list' shows the shapes; 'sluice synth --like SHAPE OUT' is the same.",
     {cli_synth_options, cli_common_options},
     cli_synth},
    {"msl",
     "check|run|trace [FILE.metal [KERNEL]]",
     1,
     3,
     "check and run Metal kernels on any machine",
     "check lists the kernels of a file with their arguments. run runs one with given inputs on the CPU and reports\n"
     "faults with their line: accesses out of bounds, uninitialised threadgroup memory, races, barriers not reached "
     "by\n"
     "all, SIMD-group functions under divergence. trace shows a small kernel's way from source to result.\n"
     "Needs clang++ on PATH.",
     {cli_msl_options, cli_common_options},
     cli_msl},
    {"completions",
     "bash|zsh|fish",
     1,
     1,
     "print completions for a shell",
     NULL,
     {cli_common_options},
     cli_completions},
    {.name = NULL}};

const cli_command *cli_find_command(const char *name) {
    for (const cli_command *c = cli_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

void cli_print_help(FILE *f) {
    fputs("usage: sluice COMMAND ...\n\nRuns mixture-of-experts language models larger than memory.\n\n", f);
    for (const cli_command *c = cli_commands; c->name; c++)
        fprintf(f, "  %-12s %s\n", c->name, c->summary);
    fputs("  help         show the options of a command: sluice help COMMAND\n"
          "  --version    show the version\n\n"
          "MODEL is a path (Hugging Face directory, .gguf file), a Hugging Face cache id, or an Ollama or LM Studio "
          "name\n"
          "found on disk. SIZE: 6G is 6 GiB, 6GB is 6 * 10^9 bytes, 50% is half of what this process may use.\n",
          f);
}

/* A list of words that is wider than a line is broken behind a |. */
static void print_long(FILE *f, const char *left, const char *help) {
    enum { WIDTH = 110 };
    int indent = 2;
    while (strlen(left) > WIDTH) {
        int n = WIDTH;
        while (n > 0 && left[n - 1] != '|')
            n--;
        if (n == 0)
            break;
        fprintf(f, "%*s%.*s\n", indent, "", n, left);
        left += n;
        indent = 14;
    }
    fprintf(f, "%*s%s\n  %-30s %s\n", indent, "", left, "", help);
}

void cli_print_command_help(FILE *f, const cli_command *c) {
    const cli_option *o;
    fprintf(f, "usage: sluice %s [OPTIONS] %s\n\n%c%s.\n", c->name, c->operands, toupper((unsigned char)c->summary[0]),
            c->summary + 1);
    if (c->details)
        fprintf(f, "%s\n", c->details);
    fputc('\n', f);
    for (int i = 0; (o = cli_option_at(c, i)); i++) {
        char left[384], letter[8] = "    ";
        if (o->letter)
            snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "", o->value ? o->value : "");
        if (strlen(left) > 30)
            print_long(f, left, o->help);
        else
            fprintf(f, "  %-30s %s\n", left, o->help);
    }
}
