#include "msl_value.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (4ull << 30)

/* half and bfloat travel as their bits; npy has no bfloat. */
static const struct {
    const char *name, *npy;
    size_t size;
    char kind; /* f floating, i signed, u unsigned */
} types[VALUE_TYPES] = {
    [VALUE_FLOAT] = {"float", "<f4", 4, 'f'},   [VALUE_HALF] = {"half", "<f2", 2, 'f'},
    [VALUE_BFLOAT] = {"bfloat", NULL, 2, 'f'},  [VALUE_INT] = {"int", "<i4", 4, 'i'},
    [VALUE_UINT] = {"uint", "<u4", 4, 'u'},     [VALUE_SHORT] = {"short", "<i2", 2, 'i'},
    [VALUE_USHORT] = {"ushort", "<u2", 2, 'u'}, [VALUE_CHAR] = {"char", "|i1", 1, 'i'},
    [VALUE_UCHAR] = {"uchar", "|u1", 1, 'u'},   [VALUE_LONG] = {"long", "<i8", 8, 'i'},
    [VALUE_ULONG] = {"ulong", "<u8", 8, 'u'},
};

size_t value_size(value_type t) {
    return types[t].size;
}

const char *value_name(value_type t) {
    return types[t].name;
}

bool value_parse_type(const char *name, size_t n, value_type *out) {
    for (int t = 0; t < VALUE_TYPES; t++) {
        if (strlen(types[t].name) == n && memcmp(types[t].name, name, n) == 0) {
            *out = (value_type)t;
            return true;
        }
    }
    return false;
}

void value_free(value_array *a) {
    free(a->bytes);
    *a = (value_array){0};
}

static bool make(value_array *a, value_type type, uint64_t count, sl_error *err) {
    uint64_t size;
    if (count == 0 || !sl_mul_u64(count, types[type].size, &size) || size > MOST_BYTES)
        return sl_fail(err, SL_ERR_ARGUMENT, "%llu elements of %s: expected 1 byte to 4 GiB", (unsigned long long)count,
                       types[type].name);
    *a = (value_array){.type = type, .count = count, .bytes = calloc(1, size), .size = size};
    return a->bytes || sl_fail(err, SL_ERR_MEMORY, "out of memory for %llu bytes", (unsigned long long)size);
}

/* ---- elements ---- */

static uint16_t half_of(double v) {
    if (isnan(v))
        return 0x7E00;
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    v = fabs(v);
    if (v >= 65520)
        return sign | 0x7C00;
    int e;
    frexp(v, &e); /* v = m * 2^e, m in [0.5, 1) */
    e = v == 0 || e < -13 ? -13 : e;
    uint32_t steps = (uint32_t)nearbyint(ldexp(v, 11 - e)); /* in units of 2^(e - 11) */
    return (uint16_t)(sign | (((uint32_t)(e + 13) << 10) + steps));
}

static double half_to(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static void store_real(value_array *a, size_t i, double v) {
    float f = (float)v;
    uint32_t u;
    uint16_t small;
    switch (a->type) {
    case VALUE_HALF:
        small = half_of(v);
        memcpy(a->bytes + 2 * i, &small, 2);
        break;
    case VALUE_BFLOAT:
        memcpy(&u, &f, 4);
        small = isnan(f) ? 0x7FC0 : (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
        memcpy(a->bytes + 2 * i, &small, 2);
        break;
    default:
        memcpy(a->bytes + 4 * i, &f, 4);
    }
}

/* Two's complement, low bytes first. */
static void store_bits(value_array *a, size_t i, uint64_t bits) {
    memcpy(a->bytes + i * types[a->type].size, &bits, types[a->type].size);
}

static double load_real(const value_array *a, size_t i) {
    uint16_t small;
    uint32_t u;
    float f;
    if (a->type == VALUE_FLOAT) {
        memcpy(&f, a->bytes + 4 * i, 4);
        return f;
    }
    memcpy(&small, a->bytes + 2 * i, 2);
    if (a->type == VALUE_HALF)
        return half_to(small);
    u = (uint32_t)small << 16;
    memcpy(&f, &u, 4);
    return f;
}

void value_print(const value_array *a, size_t i, char *out, size_t size) {
    size_t n = types[a->type].size;
    uint64_t bits = 0;
    if (types[a->type].kind == 'f') {
        snprintf(out, size, "%.9g", load_real(a, i));
        return;
    }
    memcpy(&bits, a->bytes + i * n, n);
    if (types[a->type].kind == 'i')
        snprintf(out, size, "%" PRId64, (int64_t)(bits << (64 - 8 * n)) >> (64 - 8 * n));
    else
        snprintf(out, size, "%" PRIu64, bits);
}

static bool fits(value_type t, bool negative, uint64_t magnitude) {
    unsigned bits = (unsigned)(8 * types[t].size);
    if (types[t].kind == 'u')
        return !(negative && magnitude) && (bits == 64 || magnitude >> bits == 0);
    return magnitude < (1ull << (bits - 1)) + negative;
}

/* One number at *s, up to a comma or the end. */
static bool parse_element(value_array *a, size_t i, const char **s, sl_error *err) {
    char *end;
    bool negative = **s == '-';
    errno = 0;
    if (types[a->type].kind == 'f') {
        store_real(a, i, strtod(*s, &end));
    } else {
        uint64_t v = strtoull(*s + negative, &end, 0);
        if (errno || end == *s + negative || !fits(a->type, negative, v))
            return sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected numbers of type %s", *s, types[a->type].name);
        store_bits(a, i, negative ? 0 - v : v);
    }
    if (end == *s || (*end && *end != ','))
        return sl_fail(err, SL_ERR_ARGUMENT, "'%s': expected numbers of type %s", *s, types[a->type].name);
    *s = *end ? end + 1 : end;
    return true;
}

static bool parse_list(const char *s, value_type type, value_array *out, sl_error *err) {
    uint64_t count = 1;
    for (const char *c = s; *c; c++)
        count += *c == ',';
    if (!make(out, type, count, err))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!parse_element(out, i, &s, err))
            return false;
    return true;
}

/* ---- generated ---- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void fill(value_array *a, char how, uint64_t seed) {
    bool real = types[a->type].kind == 'f';
    for (size_t i = 0; how != 'z' && i < a->count; i++) {
        uint64_t r = how == 'r' ? next_random(&seed) : i;
        if (real)
            store_real(a, i, how == 'r' ? (double)(int64_t)(r >> 40) / 8388608.0 - 1 : (double)i);
        else
            store_bits(a, i, r);
    }
}

static bool generate(const char *rest, char how, uint64_t seed, value_array *out, sl_error *err) {
    size_t n = strcspn(rest, ":");
    value_type type;
    char *end = NULL;
    unsigned long long count = rest[n] ? strtoull(rest + n + 1, &end, 10) : 0;
    if (!value_parse_type(rest, n, &type) || !end || *end)
        return sl_fail(
            err, SL_ERR_ARGUMENT,
            "'%s': expected TYPE:COUNT, TYPE float, half, bfloat, int, uint, short, ushort, char, uchar, long or "
            "ulong",
            rest);
    if (!make(out, type, count, err))
        return false;
    fill(out, how, seed);
    return true;
}

/* ---- files ---- */

static bool npy_fail(const char *path, const char *what, sl_error *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: %s", path, what);
}

/* 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), ... */
static bool parse_npy_head(const char *head, const char *path, value_array *a, sl_error *err) {
    const char *descr = strstr(head, "'descr':"), *order = strstr(head, "'fortran_order':"),
               *shape = strstr(head, "'shape':"), *s;
    uint64_t count = 1;
    if (!descr || !order || !shape || !(descr = strchr(descr + 8, '\'')) || !(shape = strchr(shape, '(')))
        return npy_fail(path, "not the header of an array", err);
    order += 16;
    if (strncmp(order + strspn(order, " "), "True", 4) == 0)
        return npy_fail(path, "an array in Fortran's order, expected C's", err);
    for (s = shape + 1; *s && *s != ')';) {
        char *end;
        unsigned long long d = strtoull(s, &end, 10);
        if (end == s || !sl_mul_u64(count, d, &count))
            return npy_fail(path, "a shape that is none", err);
        s = end + strspn(end, ", L");
    }
    for (int t = 0; t < VALUE_TYPES; t++)
        if (types[t].npy && strncmp(descr + 1, types[t].npy, 3) == 0 && descr[4] == '\'') {
            a->type = (value_type)t;
            a->count = count;
            return true;
        }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: element type %.8s", path, descr);
}

static bool read_npy(const char *path, char *bytes, size_t size, value_array *out, sl_error *err) {
    const uint8_t *u = (const uint8_t *)bytes;
    if (size < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0 || u[6] < 1 || u[6] > 3)
        return npy_fail(path, "not a .npy file", err);
    size_t at = u[6] == 1 ? 10 : 12, n = u[8] | (size_t)u[9] << 8;
    if (u[6] > 1)
        n |= (size_t)u[10] << 16 | (size_t)u[11] << 24;
    if (n > size - at)
        return npy_fail(path, "cut short in its header", err);
    char *head = sl_strndup(bytes + at, n);
    value_array a = {.type = VALUE_FLOAT};
    bool ok = head ? parse_npy_head(head, path, &a, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    free(head);
    uint64_t need;
    if (!ok)
        return false;
    if (!sl_mul_u64(a.count, types[a.type].size, &need) || need != size - at - n)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %zu bytes of data, its shape needs %llu", path, size - at - n,
                       (unsigned long long)need);
    if (!make(out, a.type, a.count, err))
        return false;
    memcpy(out->bytes, bytes + at + n, need);
    return true;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool read_file(const char *path, value_array *out, sl_error *err) {
    size_t size;
    char *bytes = sl_read_text(path, MOST_BYTES, &size, err);
    if (!bytes)
        return false;
    bool ok;
    if (ends_with(path, ".npy")) {
        ok = read_npy(path, bytes, size, out, err);
    } else {
        ok = make(out, size % 4 ? VALUE_UCHAR : VALUE_FLOAT, size % 4 ? size : size / 4, err);
        if (ok)
            memcpy(out->bytes, bytes, size);
        else
            sl_fail_prefix(err, "%s", path);
    }
    free(bytes);
    return ok;
}

bool value_read(const char *text, uint64_t seed, value_array *out, sl_error *err) {
    static const char *const words[] = {"zeros:", "iota:", "random:"};
    size_t n = strcspn(text, ":");
    value_type type;
    bool ok;
    *out = (value_array){0};
    for (size_t i = 0; i < SL_COUNT(words); i++) {
        if (strncmp(text, words[i], strlen(words[i])) == 0) {
            ok = generate(text + strlen(words[i]), words[i][0], seed, out, err);
            goto done;
        }
    }
    if (text[n] && value_parse_type(text, n, &type))
        ok = parse_list(text + n + 1, type, out, err);
    else if (*text && (!text[n] || sl_path_exists(text)))
        ok = read_file(text, out, err);
    else
        ok = sl_fail(err, SL_ERR_ARGUMENT,
                     "'%s': expected a file, TYPE:V,V,..., zeros:TYPE:COUNT, iota:TYPE:COUNT or random:TYPE:COUNT",
                     text);
done:
    if (!ok)
        value_free(out);
    return ok;
}

bool value_write(const value_array *a, const char *path, sl_error *err) {
    FILE *f = fopen(path, "wb");
    if (!f)
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s", path);
    bool ok = true;
    if (ends_with(path, ".npy")) {
        /* 128 bytes of header: magic, length 118, the dictionary padded with spaces */
        char head[129];
        const char *descr = types[a->type].npy ? types[a->type].npy : "<u2";
        int n = snprintf(head, sizeof head, "%c%s{'descr': '%s', 'fortran_order': False, 'shape': (%zu,), }", 0x93,
                         "NUMPY\1.v.", descr, a->count);
        memset(head + n, ' ', sizeof head - (size_t)n);
        head[7] = 0;
        head[8] = 118;
        head[9] = 0;
        head[127] = '\n';
        ok = fwrite(head, 1, 128, f) == 128;
    }
    ok = ok && fwrite(a->bytes, 1, a->size, f) == a->size;
    int saved = errno;
    ok = fclose(f) == 0 && ok;
    return ok || sl_fail_errno(err, SL_ERR_IO, saved, "%s", path);
}
