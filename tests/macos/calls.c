/* Messages with arguments of every shape, compiled for Apple's systems and looked at by calls.py: are they where the
 * method expects them? */
#include "gpu/metal/messages.h"

typedef struct calls {
    void (*send)(void);
    struct {
        metal_sel dispatchThreadgroups, fillBuffer, setBytes, setFastMathEnabled, GPUStartTime, respondsToSelector,
            copyFromBuffer;
    } sel;
} calls;

void call_sizes(const calls *c, metal_id o, const metal_size *groups, const metal_size *threads) {
    METAL_SEND(c, dispatchThreadgroups, o, *groups, *threads);
}

void call_range(const calls *c, metal_id o, metal_id buffer, const metal_range *r, uint8_t value) {
    METAL_SEND(c, fillBuffer, o, buffer, *r, value);
}

void call_bytes(const calls *c, metal_id o, const void *bytes, metal_uint length, metal_uint index) {
    METAL_SEND(c, setBytes, o, bytes, length, index);
}

void call_copy(const calls *c, metal_id o, metal_id from, metal_uint at, metal_id to, metal_uint to_at, metal_uint n) {
    METAL_SEND(c, copyFromBuffer, o, from, at, to, to_at, n);
}

void call_bool(const calls *c, metal_id o, const int *on) {
    METAL_SEND(c, setFastMathEnabled, o, *on != 0);
}

double call_double(const calls *c, metal_id o) {
    return METAL_SEND(c, GPUStartTime, o) + 1;
}

/* The mistake that this is about: objc_msgSend as the variadic function that old headers declare. */
void call_wrongly(const calls *c, metal_id o, const void *bytes, metal_uint length, metal_uint index) {
    ((void (*)(metal_id, metal_sel, ...))c->send)(o, c->sel.setBytes, bytes, length, index);
}

int call_result(const calls *c, metal_id o, metal_sel asked) {
    return METAL_SEND(c, respondsToSelector, o, asked) != 0;
}
