/* sluice info: what a model is and the memory it needs, from its headers. */
#include "cli.h"

#include <string.h>

json_t *cli_info_json(const sl_engine_info *i) {
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s," /* path..approximation */
        " s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i,"
        " s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:i, s:I, s:b, "
        "s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s}",
        "path", i->path, "container", i->container, "architecture", i->architecture, "formats", i->formats, "numeric",
        i->numeric, "isa", i->isa, "reader", i->reader, "kv_type", i->kv_type, "approximation",
        i->approximation, //
        "layers", i->layers, "moe_layers", i->moe_layers, "hidden_size", i->hidden, "heads", i->heads, "kv_heads",
        i->kv_heads, "head_dim", i->head_dim, "vocab", i->vocab, "experts", i->experts, "experts_per_token",
        i->experts_per_token, "context", i->context, "model_context", i->model_context, "threads", i->threads, "chunk",
        i->chunk, //
        "file_bytes", (json_int_t)i->file_bytes, "resident_bytes", (json_int_t)i->resident_bytes, "expert_bytes",
        (json_int_t)i->expert_bytes, "bytes_per_expert", (json_int_t)i->bytes_per_expert, "bytes_per_token",
        (json_int_t)i->bytes_per_token, "scratch_bytes", (json_int_t)i->scratch_bytes, "kv_bytes_per_token",
        (json_int_t)i->kv_bytes_per_token, "least_memory", (json_int_t)i->least_memory, "suggested_memory",
        (json_int_t)i->suggested_memory, "full_memory", (json_int_t)i->full_memory, "memory", (json_int_t)i->memory,
        "slots", (json_int_t)i->slots, "dense_bytes_per_token", (json_int_t)i->dense_bytes_per_token, "kv_tokens",
        (json_int_t)i->kv_tokens, "least_kv_tokens", (json_int_t)i->least_kv_tokens, "state_bytes_per_sequence",
        (json_int_t)i->state_bytes_per_sequence, "linear_layers", i->linear_layers, "disk_bytes",
        (json_int_t)i->disk_bytes, "read_depth", i->read_depth, "read_piece", (json_int_t)i->read_piece, "read_direct",
        i->read_direct, "reader_why", i->reader_why, "device", i->device, "device_why", i->device_why, //
        "vram", (json_int_t)i->vram, "least_vram", (json_int_t)i->least_vram, "full_vram", (json_int_t)i->full_vram,
        "free_vram", (json_int_t)i->free_vram, "vram_slots", (json_int_t)i->vram_slots, "mirror", i->mirror);
}

static void print_model(const sl_engine_info *i) {
    char file[16], disk[16], resident[16], experts[16], one[16], token[16], linear[48] = "";
    printf("model       %s\n", i->path);
    printf("            %s, %s; weights %s\n", i->architecture, i->container, i->formats);
    if (i->linear_layers > 0)
        snprintf(linear, sizeof linear, " (%d of linear attention)", i->linear_layers);
    printf("shape       %d layers%s, hidden %d, %d heads (%d kv) of %d, vocabulary %d, context %d\n", i->layers, linear,
           i->hidden, i->heads, i->kv_heads, i->head_dim, i->vocab, i->model_context);
    if (i->experts > 0)
        printf("experts     %d per layer in %d layers, %d per token; %s each, %s per token\n", i->experts,
               i->moe_layers, i->experts_per_token, cli_size(i->bytes_per_expert, one),
               cli_size(i->bytes_per_token, token));
    else
        printf("experts     none: a dense model, all of it stays in memory\n");
    printf("size        %s of weights: %s resident, %s experts", cli_size(i->file_bytes, file),
           cli_size(i->resident_bytes, resident), cli_size(i->expert_bytes, experts));
    if (strncmp(i->container, "pack", 4) == 0 && i->disk_bytes > i->file_bytes)
        printf("; %s on disk, where each begins at a multiple of 16 KiB", cli_size(i->disk_bytes, disk));
    printf("\n");
    if (i->approximation[0])
        printf("asked for   %s (an approximation)\n", i->approximation);
}

static int at_most(uint64_t n, int limit) {
    return n < (uint64_t)limit ? (int)n : limit;
}

static void print_reading(const sl_engine_info *i) {
    char piece[16];
    printf("reads       ");
    if (i->read_depth)
        printf("%d at a time, ", i->read_depth);
    if (i->read_piece)
        printf("pieces of %s, ", cli_size(i->read_piece, piece));
    printf("%s\n", i->reader_why);
    if (i->mirror[0])
        printf("            and from the copy in %s\n", i->mirror);
}

void cli_print_vram(FILE *f, const char *label, const sl_engine_info *i) {
    char vram[16], least[16], full[16], room[16];
    if (!i->vram)
        return;
    fprintf(f, "%sbudget %s of the GPU's (least %s, full %s), %s are free there", label, cli_size(i->vram, vram),
            cli_size(i->least_vram, least), cli_size(i->full_vram, full), cli_size(i->free_vram, room));
    if (i->experts > 0)
        fprintf(f, ": room for %llu of %llu experts", (unsigned long long)i->vram_slots,
                (unsigned long long)i->experts * (unsigned long long)i->moe_layers);
    fprintf(f, "%s\n", i->vram < i->least_vram ? ": less than the least, it does not run here" : "");
}

static void print_memory(const sl_engine_info *i) {
    char least[16], suggested[16], full[16], memory[16], kv[16], scratch[16], state[16];
    printf("memory      least %s (for %d tokens of context), suggested %s, full %s\n", cli_size(i->least_memory, least),
           at_most(i->least_kv_tokens, i->context), cli_size(i->suggested_memory, suggested),
           cli_size(i->full_memory, full));
    printf("            budget %s", cli_size(i->memory, memory));
    if (i->experts > 0)
        printf(": room for %llu of %llu experts", (unsigned long long)i->slots,
               (unsigned long long)i->experts * (unsigned long long)i->moe_layers);
    if (i->memory < i->least_memory)
        printf(": less than the least, it does not run here");
    printf("\n            KV %s per token (%s), context %d", cli_size(i->kv_bytes_per_token, kv), i->kv_type,
           i->context);
    if (i->memory >= i->least_memory && i->kv_tokens < (uint64_t)i->context)
        printf(" of which the budget holds %d tokens", at_most(i->kv_tokens, i->context));
    if (i->state_bytes_per_sequence)
        printf("; recurrent state %s per sequence", cli_size(i->state_bytes_per_sequence, state));
    printf("; scratch %s\n", cli_size(i->scratch_bytes, scratch));
    cli_print_vram(stdout, "vram        ", i);
    printf("runs        numeric %s on %s, %d threads%s%s\n", i->numeric, i->isa, i->threads,
           i->reader[0] ? ", reader " : "", i->reader);
    if (i->device_why[0])
        printf("            device auto: %s (%s)\n", i->device, i->device_why);
    if (i->reader[0])
        print_reading(i);
}

int cli_info(const cli_args *a) {
    sl_error err = {0};
    sl_engine_info info;
    sl_engine *e = cli_open(a, true, &err);
    if (!e)
        return cli_report(&err);
    cli_get_info(e, &info);
    cli_close(a, e);
    if (a->json)
        return cli_print_json(cli_info_json(&info));
    print_model(&info);
    print_memory(&info);
    return CLI_OK;
}
