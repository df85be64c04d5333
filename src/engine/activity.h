/* What the engine waits for at this moment, for the line a user sees after a stall. Written by the thread that runs
 * steps, read by any. */
#ifndef SL_ENGINE_ACTIVITY_H
#define SL_ENGINE_ACTIVITY_H

#include "base/base.h"
#include "ops/ops.h"

#include <pthread.h>

typedef enum engine_stage { ENGINE_IDLE, ENGINE_LOADING, ENGINE_PREFILL, ENGINE_DECODE } engine_stage;

typedef struct engine_activity {
    pthread_mutex_t mutex;
    engine_stage stage;
    int32_t rows;
    bool reading; /* in a wait for experts */
    int32_t layer, wanted, outstanding;
    uint64_t since_ns;
    sl_expert_source inner; /* the source whose calls are watched */
    /* Called before a layer asks for its experts; NULL: not. */
    void (*before)(void *user);
    void *before_user;
} engine_activity;

void engine_activity_init(engine_activity *a);
void engine_activity_destroy(engine_activity *a);
void engine_activity_set(engine_activity *a, engine_stage stage, int32_t rows);
/* A source that passes everything to inner and notes what is waited for. */
sl_expert_source engine_activity_watch(engine_activity *a, sl_expert_source inner);
void engine_activity_text(engine_activity *a, char *out, size_t size, uint64_t *since_ns);

#endif
