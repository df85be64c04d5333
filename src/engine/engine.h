/* engine: sessions, scheduler, batching, sequence state, sampling. Implements include/sluice/sluice.h.
 *
 * One scheduler thread per engine runs steps; other threads submit jobs, cancel, and read bounded queues.
 * May include: text, model, experts, ops, checkpoint, base. Called by cli and server through sluice.h only. */
#ifndef SL_ENGINE_H
#define SL_ENGINE_H

#include "sluice/sluice.h"

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "experts/experts.h"
#include "model/model.h"
#include "ops/ops.h"
#include "text/text.h"

#endif
