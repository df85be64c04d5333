/* Recurrent state of sequences: one block per delta layer, from a pool as KV's, shared by forks until one of them is
 * continued.
 *
 * Unlike KV it cannot be cut: it holds the tokens it has seen, and every step writes it. A step that fails or is
 * cancelled leaves the layers at different tokens. So each sequence knows which tokens its state holds
 * (sl_seq.state_at): exactly the first state_at of its history; 0: none, whatever the bytes are. Where that is not
 * where a run is to begin (a truncation, a failure, a job that was not committed) the scheduler evaluates the history
 * again before the run's own rows; KV is written again with it.
 *
 * Of a sequence that is kept, the state as it was when the last request began is kept too, where memory allows: the
 * mark. A conversation whose last answer is cut, or told again without its thinking, goes on from there instead of from
 * its first token. */
#ifndef SL_ENGINE_STATE_H
#define SL_ENGINE_STATE_H

#include "engine/engine.h"
#include "ops/ops.h"

/* e->state_layout has heads and dims set; its layers 0: nothing to open. */
bool engine_state_open(sl_engine *e, sl_error *err);
/* Bytes of one sequence, and slabs that hold it. */
uint64_t engine_state_bytes(const sl_state_layout *l);
int32_t engine_state_slabs(const sl_state_layout *l);

/* The state becomes this sequence's own, from the pool. Scheduler's thread. SL_ERR_BUDGET: as before. */
bool engine_state_prepare(sl_seq *s, sl_error *err);
/* The position of the next row of a sequence that is to be continued at `target`: `target`, or one before it. A mark
 * behind it is given up: the history there will be another. */
int32_t engine_state_next(sl_seq *s, int32_t target);
/* A step left the state as something in between: it is what the mark has, or nothing. */
void engine_state_lose(sl_seq *s);
/* Keeps the state as it is now as the mark, at no cost until it is written. */
void engine_state_mark(sl_seq *s);
/* Gives slabs back that nothing but marks need; returns how many. Scheduler's thread. */
int engine_state_reclaim(sl_engine *e);
bool engine_state_share(sl_seq *to, const sl_seq *from, sl_error *err);
void engine_state_free(sl_seq *s);
/* Where block i of the sequence's state lies. */
uint8_t *engine_state_block(const sl_seq *s, int32_t i);

#endif
