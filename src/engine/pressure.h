/* Private to engine: memory pressure. Under `--memory auto` the budget is a guess of what the machine can spare; other
 * programs may want it back. Between layers and while idle the engine looks at what is left and gives slabs of experts
 * back before anybody is killed, then takes them again slowly when there is room. */
#ifndef SL_ENGINE_PRESSURE_H
#define SL_ENGINE_PRESSURE_H

#include "base/base.h"

typedef struct engine_pressure {
    bool on;
    char *root;             /* stands for "/"; NULL */
    bool near;              /* to where memory is given back: look often */
    uint64_t looked_ns;     /* when the machine was last looked at */
    uint64_t stalled_ns;    /* when waits for memory were last answered; 0: never */
    uint64_t since_ns;      /* when there was pressure last, or memory was last taken again */
    uint64_t cap;           /* bytes that experts may hold; UINT64_MAX: as the budget says */
    uint64_t most;          /* what they held when they were first capped */
    _Atomic uint64_t given; /* bytes given back so far */
} engine_pressure;

/* Below this much room memory is given back; twice as much and more, it may be taken again. */
uint64_t engine_pressure_low(uint64_t total, uint64_t slab);
/* What experts may hold from now on (UINT64_MAX: no cap), they holding `held` bytes in slabs of `slab`. */
uint64_t engine_pressure_decide(engine_pressure *p, const sl_memory_state *s, uint64_t held, uint64_t slab,
                                uint64_t now_ns);

#endif
