/* The figures of a run, as lines and as JSON: a speed is printed with what it was. */
#include "cli.h"

#include <string.h>

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

static double seconds(uint64_t ns) {
    return (double)ns / 1e9;
}

static sl_stats get_stats(const sl_engine *e) {
    sl_stats s = {.size = sizeof s};
    sl_engine_get_stats(e, &s);
    return s;
}

static void print_speed(FILE *f, const char *name, uint64_t tokens, uint64_t ns) {
    fprintf(f, "%-9s %llu tokens in %.2f s: %.2f tokens/s\n", name, (unsigned long long)tokens, seconds(ns),
            ratio((double)tokens, seconds(ns)));
}

/* Of a device's own memory. */
static void print_vram(FILE *f, const sl_stats *s, const sl_engine_info *info) {
    char now[16], budget[16], copied[16];
    uint64_t asked = s->vram_hits + s->vram_misses;
    if (!info->vram)
        return;
    fprintf(f, "vram      peak %s of budget %s", cli_size(s->vram_peak, now), cli_size(info->vram, budget));
    if (info->experts > 0)
        fprintf(f, "; slots for %llu experts, hit rate %.1f %% of %llu, %s copied there",
                (unsigned long long)s->vram_slots, 100 * ratio((double)s->vram_hits, (double)asked),
                (unsigned long long)asked, cli_size(s->vram_copied, copied));
    fprintf(f, "\n");
}

static void print_experts(FILE *f, const sl_stats *s, const sl_engine_info *info) {
    char read[16], one[16];
    uint64_t asked = s->expert_hits + s->expert_misses;
    if (asked == 0 && s->gpu_lists > 0) {
        fprintf(f, "experts   all in the device's memory\n");
        return;
    }
    fprintf(f, "experts   hit rate %.1f %% of %llu; %s read, waited %.2f s; slots for %llu of %llu, %s each\n",
            100 * ratio((double)s->expert_hits, (double)asked), (unsigned long long)asked,
            cli_size(s->expert_bytes_read, read), seconds(s->expert_wait_ns), (unsigned long long)info->slots,
            (unsigned long long)info->experts * (unsigned long long)info->moe_layers,
            cli_size(info->bytes_per_expert, one));
}

/* Per token, prompt and answer together. */
static void print_device(FILE *f, const sl_stats *s) {
    double tokens = (double)(s->prompt_tokens + s->decode_tokens);
    if (s->gpu_lists == 0 || tokens == 0)
        return;
    fprintf(f,
            "device    per token %.1f command buffers, %.1f host waits of %.2f ms in all (%.1f hidden by overlap), "
            "%.2f ms of "
            "its own time\n",
            (double)s->gpu_lists / tokens, (double)s->gpu_waits / tokens, (double)s->gpu_wait_ns / 1e6 / tokens,
            (double)s->gpu_hidden_waits / tokens, (double)s->gpu_ns / 1e6 / tokens);
}

/* Where a token's time went: by the device's own clock where its phases are told apart. */
static void print_phases(FILE *f, const sl_stats *s) {
    double tokens = (double)(s->prompt_tokens + s->decode_tokens), ms = tokens * 1e6;
    if (tokens == 0)
        return;
    char delta[48] = "";
    if (s->time_delta_ns)
        snprintf(delta, sizeof delta, " delta %.2f,", (double)s->time_delta_ns / ms);
    fprintf(f,
            "phases    per token, ms%s: attention %.2f,%s router %.2f, expert wait %.2f, experts %.2f, shared %.2f, "
            "products %.2f, head %.2f, other %.2f\n",
            s->gpu_phase_ns ? " of the device" : "", (double)s->time_attention_ns / ms, delta,
            (double)s->time_router_ns / ms, (double)(s->gpu_phase_ns ? s->time_expert_wait_ns : s->expert_wait_ns) / ms,
            (double)s->time_expert_ns / ms, (double)s->time_shared_ns / ms, (double)s->time_linear_ns / ms,
            (double)s->time_head_ns / ms, (double)s->time_other_ns / ms);
}

void cli_print_disks(FILE *f, const sl_disk_stats disk[2], const sl_engine_info *info) {
    const char *const name[2] = {"the model's disk", info->mirror};
    char bytes[16], rate[16];
    if (!info->mirror[0])
        return;
    fprintf(f, "disks     ");
    for (int i = 0; i < 2; i++)
        fprintf(f, "%s%s from %s at %s%s", i ? ", " : "", cli_size(disk[i].bytes, bytes), name[i],
                sl_rate_text(disk[i].rate, rate), disk[i].dropped ? " (failed: no longer read)" : "");
    fprintf(f, "\n");
}

json_t *cli_disks_json(const sl_disk_stats disk[2], const sl_engine_info *info) {
    if (!info->mirror[0])
        return json_null();
    json_t *list = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:f, s:b}", "path", i ? info->mirror : info->path,
                                              "reads", (json_int_t)disk[i].reads, "bytes", (json_int_t)disk[i].bytes,
                                              "bytes_per_second", disk[i].rate, "dropped", disk[i].dropped));
    return list;
}

/* A line, or with --layers a table below all other figures. */
static void print_layers(FILE *f, const sl_engine *e, const sl_stats *s, bool all) {
    cli_layers layers = {0};
    double tokens = (double)(s->prompt_tokens + s->decode_tokens);
    if (cli_layers_add(e, &layers, NULL))
        (all ? cli_layers_print : cli_layers_print_line)(f, &layers, tokens);
    cli_layers_free(&layers);
}

void cli_print_figures(FILE *f, const sl_engine *e, const cli_args *a) {
    sl_stats s = get_stats(e);
    sl_engine_info info;
    char peak[16], budget[16], rss[16], given[16];
    cli_get_info(e, &info);
    cli_status_clear();
    print_speed(f, "prefill", s.prompt_tokens, s.prompt_ns);
    print_speed(f, "decode", s.decode_tokens, s.decode_ns);
    if (info.experts > 0) {
        print_experts(f, &s, &info);
        print_layers(f, e, &s, false);
    }
    cli_print_disks(f, s.disk, &info);
    print_phases(f, &s);
    print_device(f, &s);
    fprintf(f, "memory    peak %s of budget %s; process peak %s\n", cli_size(s.memory_peak, peak),
            cli_size(s.memory_budget, budget), cli_size(s.rss_peak, rss));
    print_vram(f, &s, &info);
    if (s.memory_given_back)
        fprintf(f, "          %s of expert slots given back under memory pressure\n",
                cli_size(s.memory_given_back, given));
    if (info.device_why[0])
        fprintf(f, "device    auto: %s (%s)\n", info.device, info.device_why);
    fprintf(f, "as        %s, numeric %s on %s, %d threads, KV %s", info.formats, info.numeric, info.isa, info.threads,
            info.kv_type);
    if (info.experts > 0)
        fprintf(f, ", %d of %d experts per token, reader %s", info.experts_per_token, info.experts, info.reader);
    fprintf(f, "%s%s\n", info.approximation[0] ? "; APPROXIMATION: " : "", info.approximation);
    if (a->per_layer)
        print_layers(f, e, &s, true);
    fflush(f);
}

static json_t *vram_json(const sl_stats *s, const sl_engine_info *info) {
    if (!info->vram)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "budget", (json_int_t)info->vram, "peak",
                     (json_int_t)s->vram_peak, "slots", (json_int_t)s->vram_slots, "expert_hits",
                     (json_int_t)s->vram_hits, "expert_misses", (json_int_t)s->vram_misses, "bytes_copied",
                     (json_int_t)s->vram_copied);
}

static json_t *phases_json(const sl_stats *s) {
    if (!s->gpu_phase_ns)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "attention", seconds(s->time_attention_ns),
                     "delta", seconds(s->time_delta_ns), "router", seconds(s->time_router_ns), "expert_wait",
                     seconds(s->time_expert_wait_ns), "experts", seconds(s->time_expert_ns), "shared",
                     seconds(s->time_shared_ns), "products", seconds(s->time_linear_ns), "head",
                     seconds(s->time_head_ns), "all", seconds(s->gpu_phase_ns));
}

/* null without --layers. */
static json_t *layers_json(const sl_engine *e, bool wanted) {
    cli_layers layers = {0};
    json_t *list = wanted && cli_layers_add(e, &layers, NULL) ? cli_layers_json(&layers) : json_null();
    cli_layers_free(&layers);
    return list;
}

json_t *cli_figures_json(const sl_engine *e, const cli_args *a) {
    sl_stats s = get_stats(e);
    sl_engine_info info;
    cli_get_info(e, &info);
    uint64_t asked = s.expert_hits + s.expert_misses;
    json_t *device =
        s.gpu_lists ? json_pack("{s:I, s:I, s:I, s:f, s:o}", "command_buffers", (json_int_t)s.gpu_lists, "host_waits",
                                (json_int_t)s.gpu_waits, "hidden_waits", (json_int_t)s.gpu_hidden_waits, "seconds",
                                seconds(s.gpu_ns), "phases", phases_json(&s))
                    : json_null();
    return json_pack(
        "{s:o, s:o, s:I, s:f, s:f, s:I, s:f, s:f, s:I, s:I, s:o, s:I, s:f, s:I, s:I, s:I, s:s, s:s, s:i, s:s, s:s, "
        "s:i, s:s, s:o, s:o}", //
        "device", device, "vram", vram_json(&s, &info), "prefill_tokens", (json_int_t)s.prompt_tokens,
        "prefill_seconds", seconds(s.prompt_ns), "prefill_tokens_per_second",
        ratio((double)s.prompt_tokens, seconds(s.prompt_ns)), //
        "decode_tokens", (json_int_t)s.decode_tokens, "decode_seconds", seconds(s.decode_ns),
        "decode_tokens_per_second", ratio((double)s.decode_tokens, seconds(s.decode_ns)), //
        "expert_hits", (json_int_t)s.expert_hits, "expert_misses", (json_int_t)s.expert_misses, "hit_rate",
        asked ? json_real((double)s.expert_hits / (double)asked) : json_null(),                          //
        "bytes_read", (json_int_t)s.expert_bytes_read, "expert_wait_seconds", seconds(s.expert_wait_ns), //
        "memory_peak", (json_int_t)s.memory_peak, "memory_budget", (json_int_t)s.memory_budget, "process_peak",
        (json_int_t)s.rss_peak, //
        "numeric", info.numeric, "isa", info.isa, "threads", info.threads, "kv_type", info.kv_type, "reader",
        info.reader, "experts_per_token", info.experts_per_token, "approximation", info.approximation, "disks",
        cli_disks_json(s.disk, &info), "layers", layers_json(e, a->per_layer));
}
