/* Arrays for `sluice msl run`: from .npy and raw files, generated, or written on the command line; printed and written
 * back. */
#ifndef SL_MSL_VALUE_H
#define SL_MSL_VALUE_H

#include "base/base.h"

typedef enum value_type {
    VALUE_FLOAT,
    VALUE_HALF,
    VALUE_BFLOAT,
    VALUE_INT,
    VALUE_UINT,
    VALUE_SHORT,
    VALUE_USHORT,
    VALUE_CHAR,
    VALUE_UCHAR,
    VALUE_LONG,
    VALUE_ULONG,
    VALUE_TYPES
} value_type;

typedef struct value_array {
    value_type type;
    size_t count;
    uint8_t *bytes; /* owned */
    size_t size;
} value_array;

size_t value_size(value_type t);
const char *value_name(value_type t);
bool value_parse_type(const char *name, size_t n, value_type *out);

/* "zeros:TYPE:COUNT", "iota:TYPE:COUNT", "random:TYPE:COUNT" (in [-1, 1), integers in their range), "TYPE:V,V,...", or
 * a file: .npy, or raw bytes (taken as floats when printed). */
bool value_read(const char *text, uint64_t seed, value_array *out, sl_error *err);
void value_free(value_array *a);
/* i-th element as text. */
void value_print(const value_array *a, size_t i, char *out, size_t size);
/* .npy where the name ends so, else raw bytes. */
bool value_write(const value_array *a, const char *path, sl_error *err);

#endif
