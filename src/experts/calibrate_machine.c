/* What was measured of a machine, kept per kind of processor, number of cores and size of memory: a home directory may
 * serve many machines, and a program may be given other cores another day. */
#include "experts/calibrate_doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

enum { VERSION = 1, MOST_THREADS = 4096 };
#define LAST_DAY INT64_C(253402300799) /* of the year 9999 */

/* ---- which machine it is ----------------------------------------------------------------------------------------- */

/* These end in files and on terminals: what is not plain text becomes ?. */
static void copy_plain(char *out, size_t size, const char *text) {
    snprintf(out, size, "%.*s", (int)strcspn(text, "\n"), text);
    for (; *out; out++)
        if (*out < 0x20 || *out > 0x7e)
            *out = '?';
}

/* "name   : value" -> value, where the line is of that name. */
static const char *value_of(const char *line, const char *name) {
    const char *colon = strchr(line, ':');
    size_t n = strlen(name);
    if (!colon || strncmp(line, name, n) != 0 || line[n + strspn(line + n, " \t")] != ':')
        return NULL;
    return colon + 1 + strspn(colon + 1, " \t");
}

/* On ARM the kernel gives no name, but numbers. */
static void read_cpu(FILE *f, char *out, size_t size) {
    char line[512], maker[64] = "", part[64] = "";
    *out = 0;
    while (f && !*out && fgets(line, sizeof line, f)) {
        const char *name = value_of(line, "model name"), *m = value_of(line, "CPU implementer"),
                   *p = value_of(line, "CPU part");
        if (name)
            copy_plain(out, size, name);
        if (m)
            copy_plain(maker, sizeof maker, m);
        if (p && !part[0])
            copy_plain(part, sizeof part, p);
    }
    if (!*out && part[0])
        snprintf(out, size, "ARM implementer %s part %s", maker, part);
    if (!*out)
        snprintf(out, size, "unknown");
}

static void find_cpu(const char *root, char *out, size_t size) {
#ifdef __APPLE__
    size_t n = size;
    if (!root && sysctlbyname("machdep.cpu.brand_string", out, &n, NULL, 0) == 0) {
        out[size - 1] = 0;
        return;
    }
#endif
    char *path = sl_asprintf("%s/proc/cpuinfo", root ? root : "");
    FILE *f = path ? fopen(path, "re") : NULL;
    read_cpu(f, out, size);
    if (f)
        fclose(f);
    free(path);
}

void sl_machine_identify(const char *root, sl_machine_id *out) {
    const uint64_t gib = UINT64_C(1) << 30;
    sl_memory_state memory;
    sl_memory_look(root, &memory);
    *out = (sl_machine_id){.cores = sl_cpu_count(), .memory = memory.physical};
    find_cpu(root, out->cpu, sizeof out->cpu);
    snprintf(out->text, sizeof out->text, "%s, %d cores, %llu GiB", out->cpu, out->cores,
             (unsigned long long)((out->memory + gib / 2) / gib));
}

char *sl_machine_path(const char *directory, const sl_machine_id *id) {
    return sl_asprintf("%s/machine-%016llx.json", directory,
                       (unsigned long long)XXH3_64bits(id->text, strlen(id->text)));
}

/* ---- its file ---------------------------------------------------------------------------------------------------- */

bool sl_machine_save(const char *path, const sl_machine_id *id, const sl_machine_figures *f, sl_error *err) {
    json_t *memory = json_array();
    for (int i = 0; i < f->count; i++)
        json_array_append_new(
            memory, json_pack("{s:i, s:f}", "threads", f->memory[i].threads, "bytes_per_second", f->memory[i].rate));
    return calibrate_doc_save(path,
                              json_pack("{s:i, s:I, s:s, s:o, s:s, s:f}", "sluice_machine", VERSION, "measured",
                                        (json_int_t)f->measured, "machine", id->text, "memory_read", memory, "gpu",
                                        f->gpu, "gpu_copy_bytes_per_second", f->gpu_copy),
                              err);
}

/* Rates are divided by: none may be 0. */
static bool take_memory(const json_t *list, sl_machine_figures *out, sl_error *err) {
    size_t n = json_array_size(list);
    if (n < 1 || n > MACHINE_RATES)
        return sl_fail(err, SL_ERR_FORMAT, "memory_read: a list of 1 to %d rates expected", MACHINE_RATES);
    for (size_t i = 0; i < n; i++) {
        sl_machine_memory *m = &out->memory[i];
        int64_t threads = 0, least = i ? m[-1].threads + 1 : 1;
        const json_t *o = json_array_get(list, i);
        if (!calibrate_take_int(o, "threads", least, MOST_THREADS, &threads, err) ||
            !calibrate_take_rate(o, "bytes_per_second", &m->rate, err))
            return sl_fail_prefix(err, "memory_read[%zu]", i);
        if (m->rate < 1)
            return sl_fail(err, SL_ERR_FORMAT, "memory_read[%zu]: bytes_per_second: %g, 1 or more expected", i,
                           m->rate);
        m->threads = (int)threads;
    }
    out->count = (int)n;
    return true;
}

static bool take_machine(const json_t *doc, const void *key, void *result, sl_error *err) {
    const sl_machine_id *id = key;
    sl_machine_figures *out = result;
    int64_t version = 0;
    const char *text = json_string_value(json_object_get(doc, "machine")),
               *gpu = json_string_value(json_object_get(doc, "gpu"));
    *out = (sl_machine_figures){0};
    if (!calibrate_take_int(doc, "sluice_machine", VERSION, VERSION, &version, err))
        return false;
    if (!text || strcmp(text, id->text) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "machine: \"%s\" expected, found \"%s\"", id->text, text ? text : "");
    if (!gpu)
        return sl_fail(err, SL_ERR_FORMAT, "gpu: a text expected");
    copy_plain(out->gpu, sizeof out->gpu, gpu);
    return calibrate_take_int(doc, "measured", 0, LAST_DAY, &out->measured, err) &&
           calibrate_take_rate(doc, "gpu_copy_bytes_per_second", &out->gpu_copy, err) &&
           take_memory(json_object_get(doc, "memory_read"), out, err);
}

bool sl_machine_load(const char *path, const sl_machine_id *id, sl_machine_figures *out, sl_error *err) {
    return calibrate_doc_load(path, take_machine, id, out, err);
}
