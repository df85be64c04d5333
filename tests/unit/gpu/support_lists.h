/* Lists of the recording device, everything expected to succeed. */
#ifndef SUPPORT_LISTS_H
#define SUPPORT_LISTS_H

#include "support_fake.h"

static inline sl_gpu_list *begin(const bench *b, const char *label) {
    sl_error err = {0};
    sl_gpu_list *l = sl_gpu_begin(b->stream, label, &err);
    if (!l)
        fail_msg("%s", err.message);
    return l;
}

static inline void add(sl_gpu_list *l, const bench *b, sl_gpu_buffer *x, sl_gpu_buffer *y, sl_gpu_buffer *out) {
    sl_error err = {0};
    if (!bench_add(l, b, x, y, out, 1, &err))
        fail_msg("%s", err.message);
}

static inline sl_gpu_buffer *view(sl_gpu_buffer *of, uint64_t offset, uint64_t bytes) {
    sl_error err = {0};
    sl_gpu_buffer *v = sl_gpu_view(of, offset, bytes, &err);
    if (!v)
        fail_msg("%s", err.message);
    return v;
}

#define TEST(name) cmocka_unit_test_setup(name, fake_reset)

#endif
