/* The compiler service: source and flags to the bytes of a library, through a block. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct block *self, int32_t error, const void *data, size_t size, const char *message);
} block;

STANDIN_EXPORT void *_NSConcreteGlobalBlock[32];

STANDIN_EXPORT void *MTLCodeGenServiceCreate(const char *name) {
    return _NSConcreteGlobalBlock;
}

/* Two lengths, the source padded with NULs to a multiple of 4, the flags. */
static const char *source_of(const uint8_t *request, size_t size) {
    uint64_t lengths[2];
    if (size < sizeof lengths)
        return NULL;
    memcpy(lengths, request, sizeof lengths);
    const char *source = (const char *)request + sizeof lengths, *flags = source + lengths[0];
    bool good = lengths[0] % 4 == 0 && lengths[0] + lengths[1] == size - sizeof lengths && lengths[0] > 0 &&
                source[lengths[0] - 1] == 0 && strlen(flags) + 1 == lengths[1] && strstr(flags, "-std=metal");
    if (!good)
        violate("a request to the compiler service that is malformed");
    return good ? source : NULL;
}

/* 8 bytes, lengths of header (these 16 bytes) and warnings, warnings, library. */
static void put_reply(const char *source, sl_buf *out) {
    uint32_t length = (uint32_t)strlen(source), sizes[4] = {0, 0, 16, 5};
    sl_buf_append(out, sizes, sizeof sizes);
    sl_buf_append(out, "warn\n", 5);
    sl_buf_append(out, "MTLB", 4);
    sl_buf_append(out, &length, 4);
    sl_buf_append(out, source, length);
    sl_buf_append(out, "ENDT", 4);
}

STANDIN_EXPORT void MTLCodeGenServiceBuildRequest(void *service, void *unused, int kind, const void *request,
                                                  size_t size, block *reply) {
    if (service != _NSConcreteGlobalBlock || kind != 13 || reply->isa != _NSConcreteGlobalBlock ||
        reply->flags != 1 << 28)
        violate("a call of the compiler service that is malformed");
    const char *source = source_of(request, size);
    char message[1024] = "";
    control.services_used++;
    code *c = source && !control.service_broken ? code_new(source, false, 31, message, sizeof message) : NULL;
    if (!c) {
        reply->invoke(reply, control.service_broken ? 0 : 3, "\0\0\0\0\0\0\0\0\377\377\377\377\0\0\0\0none", 20,
                      message);
        return;
    }
    code_free(c);
    sl_buf out = {0};
    put_reply(source, &out);
    reply->invoke(reply, 0, out.data, out.size, NULL);
    sl_buf_free(&out);
}
