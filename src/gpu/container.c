/* The container of a compiled library, in the cache and in what sl_gpu_compile returns:
 *
 *   header (below), argument tables (table.c), payload (the driver's own bytes), end marker.
 * A file that was cut has no end marker, one that was changed has another checksum, and one of another device, family
 * or system says so. */
#include "gpu/core.h"

#include <string.h>
#include <xxhash.h>

static const char begin_marker[8] = {'S', 'L', 'G', 'P', 'U', 'B', 'I', 'N'};
static const char end_marker[8] = {'N', 'I', 'B', 'U', 'P', 'G', 'L', 'S'};
enum { VERSION = 2 };

typedef struct header {
    char marker[8];
    uint32_t version, zero;
    char device[16], family[32], system[64];
    uint64_t key_low, key_high, table_size, payload_size;
    uint64_t checksum; /* XXH3 64 of the header up to here and of all after it, end marker included */
} header;
_Static_assert(sizeof(header) == 168, "the header has no holes");

static uint64_t checksum_of(const header *h, const void *body, size_t n) {
    uint64_t parts[2] = {XXH3_64bits(h, offsetof(header, checksum)), XXH3_64bits(body, n)};
    return XXH3_64bits(parts, sizeof parts);
}

bool gpu_container_write(const sl_gpu *g, gpu_key key, const sl_buf *table, const sl_buf *payload, sl_buf *out) {
    header h = {.version = VERSION,
                .key_low = key.low,
                .key_high = key.high,
                .table_size = table->size,
                .payload_size = payload->size};
    memcpy(h.marker, begin_marker, sizeof h.marker);
    memcpy(h.device, g->info.device, strnlen(g->info.device, sizeof h.device - 1));
    memcpy(h.family, g->info.family, strnlen(g->info.family, sizeof h.family - 1));
    memcpy(h.system, g->info.system, strnlen(g->info.system, sizeof h.system - 1));
    sl_buf_append(out, &h, sizeof h);
    sl_buf_append(out, table->data, table->size);
    sl_buf_append(out, payload->data, payload->size);
    sl_buf_append(out, end_marker, sizeof end_marker);
    if (out->failed)
        return false;
    h.checksum = checksum_of(&h, out->data + sizeof h, out->size - sizeof h);
    memcpy(out->data, &h, sizeof h);
    return true;
}

static bool same(const char *what, const char *found, size_t n, const char *expected, sl_error *err) {
    if (found[n - 1] == 0 && strcmp(found, expected) == 0)
        return true;
    return sl_fail(err, SL_ERR_FORMAT, "library for %s '%.*s', expected '%s'", what, (int)strnlen(found, n), found,
                   expected);
}

static bool check_sizes(const header *h, size_t size, sl_error *err) {
    uint64_t body, all;
    bool fits = sl_add_u64(h->table_size, h->payload_size, &body) &&
                sl_add_u64(body, sizeof *h + sizeof end_marker, &all) && all == size;
    return fits || sl_fail(err, SL_ERR_FORMAT, "library of %zu bytes: its header says %llu of tables and %llu of code",
                           size, (unsigned long long)h->table_size, (unsigned long long)h->payload_size);
}

bool gpu_container_read(const sl_gpu *g, const void *bytes, size_t size, gpu_container *c, sl_error *err) {
    header h;
    if (size < sizeof h + sizeof end_marker)
        return sl_fail(err, SL_ERR_FORMAT, "library of %zu bytes, expected at least %zu", size,
                       sizeof h + sizeof end_marker);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.marker, begin_marker, sizeof h.marker) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "not a compiled library: it does not begin with %.8s", begin_marker);
    if (h.version != VERSION)
        return sl_fail(err, SL_ERR_FORMAT, "library of version %u, expected %d", h.version, VERSION);
    const uint8_t *body = (const uint8_t *)bytes + sizeof h;
    if (!check_sizes(&h, size, err))
        return false;
    if (memcmp((const uint8_t *)bytes + size - sizeof end_marker, end_marker, sizeof end_marker) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "library of %zu bytes does not end with its marker", size);
    if (checksum_of(&h, body, size - sizeof h) != h.checksum)
        return sl_fail(err, SL_ERR_FORMAT, "library's checksum does not match its bytes");
    if (!same("device", h.device, sizeof h.device, g->info.device, err) ||
        !same("family", h.family, sizeof h.family, g->info.family, err) ||
        !same("system", h.system, sizeof h.system, g->info.system, err))
        return false;
    *c = (gpu_container){
        .key = {h.key_low, h.key_high},
        .table = body,
        .table_size = (size_t)h.table_size,
        .payload = body + h.table_size,
        .payload_size = (size_t)h.payload_size,
    };
    return true;
}
