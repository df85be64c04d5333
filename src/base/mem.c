/* The one allocator of big memory: a budget, spans, and equal slabs that change their use.
 *
 * Spans and slabs are anonymous mappings aligned to 2 MiB, so that the kernel can back them with huge pages and
 * O_DIRECT reads land aligned. An empty slab stays mapped (and counted in the peak, not in use) until trim, because
 * mapping and zeroing 64 MiB costs milliseconds. Invariant: in use + cached empty slabs + charges <= budget.
 *
 * Gathered, slabs are cut from a few large mappings, which stay: a slab that is given back loses its pages and waits,
 * vacant, for its next use. A mapping's address space costs nothing until it is touched. */
#include "base/mem_ahead.h"
#include "base/mem_block.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20, PAGE = 4096 };
#define MOST_GATHERED (UINT64_C(1) << 36) /* bytes of one mapping */

typedef struct block {
    void *base;
    uint64_t bytes;
    sl_use use;
    bool slab;
} block;

struct sl_mem {
    uint64_t budget, slab_bytes;
    pthread_mutex_t mutex;
    block *blocks; /* in use */
    size_t count, capacity;
    void **empty; /* mapped slabs that nobody uses */
    size_t empty_count, empty_capacity;
    uint64_t gather_bytes; /* of a mapping that slabs are cut from; 0: each slab has its own */
    void **gathers, **vacant;
    size_t gather_count, gather_capacity, vacant_count, vacant_capacity;
    uint64_t used[SL_USE_COUNT];
    uint64_t total, peak; /* of used and empty */
    uint64_t unmapped;    /* times memory was given back */
    uint64_t vacated;     /* the same of gathered slabs, whose addresses stay */
    uint64_t slabs;       /* in use, empty, or being touched ahead */
    mem_ahead ahead;
};

static const char *const use_names[SL_USE_COUNT] = {"weights", "expert slots", "KV", "scratch", "other"};

sl_mem *sl_mem_new(uint64_t budget, uint64_t slab_bytes, sl_error *err) {
    if (slab_bytes < (64u << 10) || slab_bytes > (64u << 20) || (slab_bytes & (slab_bytes - 1)))
        return sl_fail_null(err, SL_ERR_ARGUMENT, "slab of %llu bytes, a power of two from 64 KiB to 64 MiB expected",
                            (unsigned long long)slab_bytes);
    sl_mem *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    m->budget = budget;
    m->slab_bytes = slab_bytes;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->ahead.changed, NULL);
    return m;
}

sl_mem *sl_mem_new_gathered(uint64_t budget, uint64_t slab_bytes, int mappings, sl_error *err) {
    sl_mem *m = sl_mem_new(budget, slab_bytes, err);
    if (!m)
        return NULL;
    uint64_t slabs = budget / slab_bytes / (uint64_t)mappings + 1;
    m->gather_bytes = (slabs < MOST_GATHERED / slab_bytes ? slabs : MOST_GATHERED / slab_bytes) * slab_bytes;
    return m;
}

void sl_mem_free(sl_mem *m) {
    if (!m)
        return;
    mem_ahead_stop(&m->ahead, &m->mutex);
    for (size_t i = 0; i < m->count; i++)
        if (!m->blocks[i].slab || !m->gather_bytes)
            munmap(m->blocks[i].base, m->blocks[i].bytes);
    for (size_t i = 0; i < m->empty_count && !m->gather_bytes; i++)
        munmap(m->empty[i], m->slab_bytes);
    for (size_t i = 0; i < m->gather_count; i++)
        munmap(m->gathers[i], m->gather_bytes);
    pthread_cond_destroy(&m->ahead.changed);
    pthread_mutex_destroy(&m->mutex);
    free(m->blocks);
    free(m->empty);
    free(m->gathers);
    free(m->vacant);
    free(m);
}

static void unmap(sl_mem *m, void *base, uint64_t bytes) {
    munmap(base, bytes);
    m->unmapped++;
}

/* Room in the list of vacant slabs is there since its mapping was made. */
static void give_slab(sl_mem *m, void *slab) {
    m->slabs--;
    if (!m->gather_bytes) {
        unmap(m, slab, m->slab_bytes);
        return;
    }
    madvise(slab, m->slab_bytes, MADV_DONTNEED);
    m->vacant[m->vacant_count++] = slab;
    m->vacated++;
}

static uint64_t alignment_of(uint64_t bytes) {
    return bytes >= HUGE ? HUGE : PAGE;
}

static void *map_aligned(uint64_t bytes, bool huge) {
    uint64_t align = alignment_of(bytes);
    uint8_t *p = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint8_t *base = (uint8_t *)sl_round_up((uint64_t)(uintptr_t)p, align);
    if (base > p)
        munmap(p, (size_t)(base - p));
    uint64_t tail = align - (uint64_t)(base - p);
    if (tail)
        munmap(base + bytes, tail);
#ifdef MADV_HUGEPAGE
    if (huge)
        madvise(base, bytes, MADV_HUGEPAGE);
#endif
    return base;
}

static bool has_room(const sl_mem *m, uint64_t bytes) {
    return bytes <= m->budget && m->total <= m->budget - bytes;
}

static void drop_empty(sl_mem *m) {
    give_slab(m, m->empty[--m->empty_count]);
    m->total -= m->slab_bytes;
}

/* With the mutex held: takes `bytes` of the budget, dropping empty slabs where that makes room. */
static bool take_budget(sl_mem *m, uint64_t bytes, sl_use use, sl_error *err) {
    while (m->empty_count && !has_room(m, bytes))
        drop_empty(m);
    if (!has_room(m, bytes) && mem_ahead_drop(&m->ahead, &m->mutex))
        return take_budget(m, bytes, use, err);
    if (!has_room(m, bytes))
        return sl_fail(
            err, SL_ERR_BUDGET, "memory budget of %llu bytes: %llu more for %s do not fit beside %llu in use",
            (unsigned long long)m->budget, (unsigned long long)bytes, use_names[use], (unsigned long long)m->total);
    m->total += bytes;
    m->used[use] += bytes;
    if (m->total > m->peak)
        m->peak = m->total;
    return true;
}

static void give_budget(sl_mem *m, uint64_t bytes, sl_use use) {
    m->total -= bytes;
    m->used[use] -= bytes;
    mem_ahead_wake(&m->ahead);
}

/* A mapping more, its slabs vacant, the lowest on top. */
static bool gather_more(sl_mem *m) {
    void *gathers = m->gathers, *vacant = m->vacant;
    size_t slabs = (size_t)(m->gather_bytes / m->slab_bytes);
    bool ok = sl_grow(&gathers, &m->gather_capacity, m->gather_count + 1, sizeof *m->gathers);
    m->gathers = gathers;
    ok = ok && sl_grow(&vacant, &m->vacant_capacity, (m->gather_count + 1) * slabs, sizeof *m->vacant);
    m->vacant = vacant;
    /* small slabs are touched one by one: a huge page would hold memory that nobody counts */
    void *base = ok ? map_aligned(m->gather_bytes, m->slab_bytes >= HUGE) : NULL;
    if (!base)
        return false;
    m->gathers[m->gather_count++] = base;
    for (size_t i = slabs; i-- > 0;)
        m->vacant[m->vacant_count++] = (uint8_t *)base + i * m->slab_bytes;
    return true;
}

static void *map_slab(sl_mem *m) {
    if (!m->gather_bytes)
        return map_aligned(m->slab_bytes, m->slab_bytes >= HUGE);
    return m->vacant_count || gather_more(m) ? m->vacant[--m->vacant_count] : NULL;
}

static void *map_block(sl_mem *m, uint64_t bytes, sl_use use, bool slab, sl_error *err) {
    void *list = m->blocks;
    if (!sl_grow(&list, &m->capacity, m->count + 1, sizeof *m->blocks))
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    m->blocks = list;
    if (!take_budget(m, bytes, use, err))
        return NULL;
    void *p = slab ? map_slab(m) : map_aligned(bytes, bytes >= HUGE);
    if (!p) {
        give_budget(m, bytes, use);
        return sl_fail_null(err, SL_ERR_MEMORY, "cannot map %llu bytes for %s", (unsigned long long)bytes,
                            use_names[use]);
    }
    m->blocks[m->count++] = (block){p, bytes, use, slab};
    m->slabs += slab;
    return p;
}

void *sl_mem_span(sl_mem *m, uint64_t bytes, sl_use use, sl_error *err) {
    if (bytes == 0 || bytes > UINT64_MAX / 4)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "span of %llu bytes asked for %s", (unsigned long long)bytes,
                            use_names[use]);
    pthread_mutex_lock(&m->mutex);
    void *p = map_block(m, sl_round_up(bytes, PAGE), use, false, err);
    pthread_mutex_unlock(&m->mutex);
    return p;
}

/* With the mutex held: removes the record of p; false if there is none. */
static bool forget(sl_mem *m, const void *p, block *out) {
    for (size_t i = 0; i < m->count; i++) {
        if (m->blocks[i].base == p) {
            *out = m->blocks[i];
            m->blocks[i] = m->blocks[--m->count];
            return true;
        }
    }
    return false;
}

void sl_mem_span_free(sl_mem *m, void *p) {
    block b;
    if (!p)
        return;
    pthread_mutex_lock(&m->mutex);
    if (forget(m, p, &b)) {
        unmap(m, b.base, b.bytes);
        give_budget(m, b.bytes, b.use);
    }
    pthread_mutex_unlock(&m->mutex);
}

/* With the mutex held: an empty slab put to use, or NULL. */
static void *reuse_slab(sl_mem *m, sl_use use, sl_error *err) {
    void *list = m->blocks;
    if (!sl_grow(&list, &m->capacity, m->count + 1, sizeof *m->blocks))
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    m->blocks = list;
    void *p = m->empty[--m->empty_count];
    m->used[use] += m->slab_bytes;
    m->blocks[m->count++] = (block){p, m->slab_bytes, use, true};
    mem_ahead_wake(&m->ahead);
    return p;
}

void *sl_mem_slab(sl_mem *m, sl_use use, sl_error *err) {
    pthread_mutex_lock(&m->mutex);
    /* The last of the budget may be the slab that is being touched. */
    while (!m->empty_count && !has_room(m, m->slab_bytes) && mem_ahead_await(&m->ahead, &m->mutex))
        ;
    void *p = m->empty_count ? reuse_slab(m, use, err) : map_block(m, m->slab_bytes, use, true, err);
    pthread_mutex_unlock(&m->mutex);
    return p;
}

void sl_mem_slab_free(sl_mem *m, void *slab) {
    block b;
    if (!slab)
        return;
    pthread_mutex_lock(&m->mutex);
    if (forget(m, slab, &b)) {
        void *list = m->empty;
        m->used[b.use] -= b.bytes;
        if (b.slab && sl_grow(&list, &m->empty_capacity, m->empty_count + 1, sizeof *m->empty)) {
            m->empty = list;
            m->empty[m->empty_count++] = slab;
        } else {
            give_slab(m, slab);
            m->total -= b.bytes;
        }
    }
    pthread_mutex_unlock(&m->mutex);
}

void sl_mem_trim(sl_mem *m) {
    mem_ahead_stop(&m->ahead, &m->mutex);
    pthread_mutex_lock(&m->mutex);
    while (m->empty_count)
        drop_empty(m);
    pthread_mutex_unlock(&m->mutex);
}

/* ---- slabs that are touched ahead: see mem_ahead.h -----------------------------------------------------------------
 */

static bool ahead_wanted(const sl_mem *m) {
    return m->empty_count < m->ahead.slabs && m->slabs < m->ahead.most && has_room(m, m->slab_bytes);
}

static void *ahead_begin(void *self) {
    sl_mem *m = self;
    void *list = m->empty;
    if (!ahead_wanted(m) || !sl_grow(&list, &m->empty_capacity, m->empty_count + 1, sizeof *m->empty))
        return NULL;
    m->empty = list;
    void *slab = map_slab(m);
    if (!slab)
        return NULL;
    m->slabs++;
    m->total += m->slab_bytes;
    m->peak = m->total > m->peak ? m->total : m->peak;
    return slab;
}

static void ahead_end(void *self, void *slab, bool touched) {
    sl_mem *m = self;
    void *list = m->empty;
    if (touched && sl_grow(&list, &m->empty_capacity, m->empty_count + 1, sizeof *m->empty)) {
        m->empty = list;
        m->empty[m->empty_count++] = slab;
        return;
    }
    give_slab(m, slab);
    m->total -= m->slab_bytes;
}

void sl_mem_ahead(sl_mem *m, uint64_t ahead, uint64_t most) {
    if (m->gather_bytes || m->slab_bytes < HUGE)
        return;
    m->ahead.begin = ahead_begin;
    m->ahead.end = ahead_end;
    m->ahead.self = m;
    m->ahead.bytes = m->slab_bytes;
    m->ahead.slabs = ahead / m->slab_bytes;
    m->ahead.most = most / m->slab_bytes;
    mem_ahead_start(&m->ahead, &m->mutex);
}

bool sl_mem_charge(sl_mem *m, uint64_t bytes, sl_use use, sl_error *err) {
    pthread_mutex_lock(&m->mutex);
    bool ok = take_budget(m, bytes, use, err);
    pthread_mutex_unlock(&m->mutex);
    return ok;
}

void sl_mem_uncharge(sl_mem *m, uint64_t bytes, sl_use use) {
    pthread_mutex_lock(&m->mutex);
    give_budget(m, bytes, use);
    pthread_mutex_unlock(&m->mutex);
}

uint64_t sl_mem_budget(const sl_mem *m) {
    return m->budget;
}
uint64_t sl_mem_slab_bytes(const sl_mem *m) {
    return m->slab_bytes;
}

static uint64_t locked_read(const sl_mem *m, const uint64_t *value) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)&m->mutex;
    pthread_mutex_lock(mutex);
    uint64_t v = *value;
    pthread_mutex_unlock(mutex);
    return v;
}

uint64_t sl_mem_used(const sl_mem *m, sl_use use) {
    return locked_read(m, use == SL_USE_COUNT ? &m->total : &m->used[use]);
}

uint64_t sl_mem_peak(const sl_mem *m) {
    return locked_read(m, &m->peak);
}

uint64_t sl_mem_unmapped(const sl_mem *m) {
    return locked_read(m, &m->unmapped);
}

bool sl_mem_find(const sl_mem *m, const void *p, void **base, uint64_t *bytes) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)&m->mutex;
    block found = {0};
    pthread_mutex_lock(mutex);
    for (size_t i = 0; i < m->gather_count && !found.base; i++)
        if ((uintptr_t)p - (uintptr_t)m->gathers[i] < m->gather_bytes)
            found = (block){.base = m->gathers[i], .bytes = m->gather_bytes};
    for (size_t i = 0; i < m->count && !found.base; i++)
        if ((uintptr_t)p - (uintptr_t)m->blocks[i].base < m->blocks[i].bytes)
            found = m->blocks[i];
    if (found.base) {
        *base = found.base;
        *bytes = found.bytes;
    }
    pthread_mutex_unlock(mutex);
    return found.base != NULL;
}

sl_use sl_mem_use(const sl_mem *m, const void *p) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)&m->mutex;
    sl_use use = SL_USE_COUNT;
    pthread_mutex_lock(mutex);
    for (size_t i = 0; i < m->count && use == SL_USE_COUNT; i++)
        if ((uintptr_t)p - (uintptr_t)m->blocks[i].base < m->blocks[i].bytes)
            use = m->blocks[i].use;
    pthread_mutex_unlock(mutex);
    return use;
}

uint64_t sl_mem_vacated(const sl_mem *m) {
    return locked_read(m, &m->vacated);
}

bool sl_mem_block(const sl_mem *m, const void *p, void **base, uint64_t *bytes) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)&m->mutex;
    bool found = false;
    pthread_mutex_lock(mutex);
    for (size_t i = 0; i < m->count && !found; i++) {
        found = (uintptr_t)p - (uintptr_t)m->blocks[i].base < m->blocks[i].bytes;
        if (found) {
            *base = m->blocks[i].base;
            *bytes = m->blocks[i].bytes;
        }
    }
    pthread_mutex_unlock(mutex);
    return found;
}
