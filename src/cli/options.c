/* Parsing of options by their tables: strict numbers, one-line errors with a hint. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void cli_args_init(cli_args *a) {
    *a = (cli_args){.think = -1,
                    .log_level = SL_LOG_WARN,
                    .warmup = -1,
                    .tokens = -1,
                    .prefill = -1,
                    .repeat = 3,
                    .sequences = 1,
                    .format = "q4_0-gguf"};
}

void cli_args_free(cli_args *a) {
    const cli_strings *lists[] = {&a->stop,    &a->inputs,  &a->constants, &a->lengths,
                                  &a->outputs, &a->defines, &a->includes};
    for (size_t i = 0; i < SL_COUNT(lists); i++)
        free(lists[i]->items);
    free(a->logit_bias.items);
}

const cli_option *cli_option_at(const cli_command *c, int i) {
    for (int t = 0; t < CLI_MAX_TABLES && c->tables[t]; t++)
        for (const cli_option *o = c->tables[t]; o->name; o++)
            if (i-- == 0)
                return o;
    return NULL;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* The C functions accept leading spaces, hexadecimal, infinity: what is typed here begins with a digit, a sign or a
 * point and has none of those. */
static bool plain_number(const char *s) {
    return *s && strspn(s, "0123456789+-.eE") == strlen(s);
}

bool cli_parse_int(const char *text, int64_t least, int64_t most, int64_t *out) {
    char *end;
    if (!*text || strspn(text, "0123456789-") != strlen(text))
        return false;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || *end || v < least || v > most)
        return false;
    *out = v;
    return true;
}

bool cli_parse_u64(const char *text, uint64_t *out) {
    char *end;
    if (!*text || strspn(text, "0123456789") != strlen(text))
        return false;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

bool cli_parse_real(const char *text, double *out) {
    char *end;
    if (!plain_number(text))
        return false;
    errno = 0;
    double v = strtod(text, &end);
    if (*end || end == text || !isfinite(v))
        return false;
    *out = v;
    return true;
}

/* The factor of a unit, 0 where there is no such unit. G and GiB are 2^30, GB is 10^9. */
static double unit_factor(const char *unit) {
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"K", 1024.0},
                 {"KiB", 1024.0},
                 {"KB", 1e3},
                 {"M", 1048576.0},
                 {"MiB", 1048576.0},
                 {"MB", 1e6},
                 {"G", 1073741824.0},
                 {"GiB", 1073741824.0},
                 {"GB", 1e9},
                 {"T", 1099511627776.0},
                 {"TiB", 1099511627776.0},
                 {"TB", 1e12}};
    for (size_t i = 0; i < SL_COUNT(units); i++)
        if (strcasecmp(unit, units[i].name) == 0)
            return units[i].factor;
    return 0;
}

bool cli_parse_memory(const char *text, uint64_t *out, sl_error *err) {
    static const char expected[] = "expected a size like 6G or 512M, a share like 50%, or auto";
    char number[32];
    size_t digits = strspn(text, "0123456789.");
    double v;
    if (strcmp(text, "auto") == 0) {
        *out = 0;
        return true;
    }
    if (digits == 0 || digits >= sizeof number)
        return sl_fail(err, SL_ERR_ARGUMENT, "'%s': %s", text, expected);
    memcpy(number, text, digits);
    number[digits] = 0;
    if (!cli_parse_real(number, &v))
        return sl_fail(err, SL_ERR_ARGUMENT, "'%s': %s", text, expected);
    if (strcmp(text + digits, "%") == 0) {
        if (!(v > 0 && v <= 100))
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': a share is above 0%% and at most 100%%", text);
        v = v / 100 * (double)sl_memory_limit(NULL);
    } else {
        double factor = unit_factor(text + digits);
        if (factor == 0)
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': %s", text, expected);
        v *= factor;
    }
    if (!(v >= 1 && v < 9e18))
        return sl_fail(err, SL_ERR_ARGUMENT, "'%s': out of range; %s", text, expected);
    *out = (uint64_t)v;
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static bool is_word_of(const char *words, const char *text) {
    size_t n = strlen(text);
    for (const char *w = words; n > 0 && w;) {
        size_t len = strcspn(w, "|");
        if (len == n && memcmp(w, text, n) == 0)
            return true;
        w = w[len] ? w + len + 1 : NULL;
    }
    return false;
}

static bool append_string(cli_strings *list, const char *text, sl_error *err) {
    if (!sl_grow((void **)&list->items, &list->capacity, list->count + 1, sizeof *list->items))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    list->items[list->count++] = text;
    return true;
}

/* "ID=BIAS[,ID=BIAS...]"; a bias of -100 or less as good as forbids the token. */
static bool append_biases(cli_biases *list, const char *text, sl_error *err) {
    char item[64];
    for (const char *p = text; p;) {
        size_t n = strcspn(p, ",");
        char *equals;
        int64_t id;
        double bias;
        if (n >= sizeof item)
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected ID=BIAS", text);
        memcpy(item, p, n);
        item[n] = 0;
        equals = strchr(item, '=');
        if (equals)
            *equals = 0;
        if (!equals || !cli_parse_int(item, 0, INT32_MAX, &id) || !cli_parse_real(equals + 1, &bias))
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected ID=BIAS, a token id and a number", text);
        if (!sl_grow((void **)&list->items, &list->capacity, list->count + 1, sizeof *list->items))
            return sl_fail(err, SL_ERR_MEMORY, "out of memory");
        list->items[list->count++] = (sl_logit_bias){(int32_t)id, (float)bias};
        p = p[n] ? p + n + 1 : NULL;
    }
    return true;
}

static bool set_level(sl_log_level *level, const char *text) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *level = (sl_log_level)i;
            return true;
        }
    return false;
}

/* An unset variable of a shell becomes an empty word: no file has such a name, and what is done with it differs. */
static bool names_a_file(const char *value) {
    return strcmp(value, "FILE") == 0 || strcmp(value, "DIR") == 0;
}

static bool store_value(const cli_option *o, const char *text, cli_args *a, sl_error *err) {
    void *field = (char *)a + o->offset;
    int64_t i;
    double r;
    switch (o->kind) {
    case CLI_INT:
        if (!cli_parse_int(text, (int64_t)o->least, (int64_t)o->most, &i))
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected a whole number from %.0f to %.0f", text, o->least,
                           o->most);
        *(int *)field = (int)i;
        return true;
    case CLI_U64:
        return cli_parse_u64(text, field) || sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected a whole number", text);
    case CLI_REAL:
        if (!cli_parse_real(text, &r) || r < o->least || r > o->most)
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected a number from %g to %g", text, o->least, o->most);
        *(double *)field = r;
        return true;
    case CLI_MEMORY:
        return cli_parse_memory(text, field, err);
    case CLI_BYTES:
        return strchr(text, '%') ? sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected a size like 6G or 512M, or auto", text)
                                 : cli_parse_memory(text, field, err);
    case CLI_CHOICE:
        if (!is_word_of(o->value, text))
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected one of %s", text, o->value);
        *(const char **)field = text;
        return true;
    case CLI_LEVEL:
        return set_level(field, text) || sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected one of %s", text, o->value);
    case CLI_TEXT:
        if (!*text && names_a_file(o->value))
            return sl_fail(err, SL_ERR_ARGUMENT, "'': expected the name of a %s",
                           strcmp(o->value, "DIR") == 0 ? "directory" : "file");
        *(const char **)field = text;
        return true;
    case CLI_LIST:
        if (!*text)
            return sl_fail(err, SL_ERR_ARGUMENT, "expected a text that is not empty");
        return append_string(field, text, err);
    case CLI_BIAS:
        return append_biases(field, text, err);
    case CLI_FLAG:
        *(bool *)field = true;
        return true;
    case CLI_SET:
        *(int *)field = (int)o->least;
        return true;
    }
    return false;
}

/* ---- words of the command line ----------------------------------------------------------------------------------- */

static const cli_option *find_option(const cli_command *c, const char *name, size_t n) {
    const cli_option *o;
    for (int i = 0; (o = cli_option_at(c, i)); i++)
        if (strlen(o->name) == n && memcmp(o->name, name, n) == 0)
            return o;
    return NULL;
}

static const cli_option *find_letter(const cli_command *c, char letter) {
    const cli_option *o;
    for (int i = 0; (o = cli_option_at(c, i)); i++)
        if (o->letter && o->letter == letter)
            return o;
    return NULL;
}

static const char *option_name(const void *ctx, int i) {
    const cli_option *o = cli_option_at(ctx, i);
    return o ? o->name : NULL;
}

static bool unknown_option(const cli_command *c, const char *word, sl_error *err) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    const char *near = strncmp(name, "--", 2) == 0 ? cli_nearest(name + 2, option_name, c) : NULL;
    if (near)
        return sl_fail(err, SL_ERR_ARGUMENT, "unknown option %s for '%s'; did you mean --%s?", name, c->name, near);
    return sl_fail(err, SL_ERR_ARGUMENT, "unknown option %s for '%s'; 'sluice help %s' lists its options", name,
                   c->name, c->name);
}

static bool takes_value(const cli_option *o) {
    return o->kind != CLI_FLAG && o->kind != CLI_SET;
}

/* Handles the option at argv[i] and returns how many words it took, 0 on failure. */
static int parse_option(const cli_command *c, int argc, char **argv, int i, cli_args *a, sl_error *err) {
    const char *word = argv[i], *value = NULL;
    const cli_option *o;
    if (word[1] == '-') {
        size_t n = strcspn(word + 2, "=");
        o = find_option(c, word + 2, n);
        value = word[2 + n] ? word + 3 + n : NULL;
    } else {
        o = find_letter(c, word[1]);
        value = word[2] ? word + 2 : NULL;
        if (o && value && !takes_value(o))
            o = NULL;
    }
    if (!o)
        return unknown_option(c, word, err), 0;
    if (!takes_value(o)) {
        if (value)
            return sl_fail(err, SL_ERR_ARGUMENT, "--%s takes no value", o->name), 0;
        return store_value(o, NULL, a, err) ? 1 : 0;
    }
    int used = value ? 1 : 2;
    if (!value && i + 1 >= argc)
        return sl_fail(err, SL_ERR_ARGUMENT, "--%s needs a value (%s); see 'sluice help %s'", o->name, o->value,
                       c->name),
               0;
    if (!store_value(o, value ? value : argv[i + 1], a, err))
        return sl_fail_prefix(err, "--%s", o->name), 0;
    return used;
}

static bool store_operand(const cli_command *c, const char *word, cli_args *a, sl_error *err) {
    const char *name = c->operands;
    if (a->operands == c->most_operands)
        return sl_fail(err, SL_ERR_ARGUMENT, "unexpected '%s'; usage: sluice %s %s", word, c->name, c->operands);
    for (int i = 0; i < a->operands; i++)
        name += strcspn(name, " ") + (name[strcspn(name, " ")] != 0);
    if (!*word && strncmp(name, "[PROMPT]", 8) != 0 && strncmp(name, "[TEXT]", 6) != 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "%.*s: '' is empty; usage: sluice %s %s", (int)strcspn(name, " "), name,
                       c->name, c->operands);
    a->operand[a->operands++] = word;
    return true;
}

bool cli_parse(const cli_command *c, int argc, char **argv, cli_args *a, sl_error *err) {
    bool only_operands = false;
    a->command = c->name;
    for (int i = 0; i < argc;) {
        const char *word = argv[i];
        if (!only_operands && strcmp(word, "--") == 0) {
            only_operands = true;
            i++;
        } else if (!only_operands && word[0] == '-' && word[1]) {
            int used = parse_option(c, argc, argv, i, a, err);
            if (used == 0)
                return false;
            i += used;
        } else {
            if (!store_operand(c, word, a, err))
                return false;
            i++;
        }
    }
    if (!a->help && a->operands < c->least_operands)
        return sl_fail(err, SL_ERR_ARGUMENT, "'%s' needs more: sluice %s %s", c->name, c->name, c->operands);
    return true;
}

/* ---- near words -------------------------------------------------------------------------------------------------- */

/* Edit distance of two short words; long ones count as far. */
static int distance(const char *a, const char *b) {
    enum { MOST = 32 };
    int row[MOST + 1], n = (int)strlen(a), m = (int)strlen(b);
    if (n > MOST || m > MOST)
        return MOST;
    for (int j = 0; j <= m; j++)
        row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int step = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = change < step ? change : step;
        }
    }
    return row[m];
}

/* The one candidate that `word` begins; NULL: none, or several. */
static const char *begun(const char *word, const char *(*next)(const void *ctx, int i), const void *ctx) {
    const char *found = NULL, *candidate;
    for (int i = 0; (candidate = next(ctx, i)); i++) {
        if (strncmp(word, candidate, strlen(word)) != 0)
            continue;
        if (found)
            return NULL;
        found = candidate;
    }
    return found;
}

const char *cli_nearest(const char *word, const char *(*next)(const void *ctx, int i), const void *ctx) {
    const char *whole = strlen(word) >= 2 ? begun(word, next, ctx) : NULL;
    if (whole)
        return whole;
    const char *best = NULL, *candidate;
    int least = 3;
    for (int i = 0; (candidate = next(ctx, i)); i++) {
        int d = distance(word, candidate);
        if (d < least && d < (int)strlen(candidate)) {
            least = d;
            best = candidate;
        }
    }
    return best;
}
