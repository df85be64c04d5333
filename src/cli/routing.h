/* Which experts the tokens of a text used: the file that `eval --routing` writes and `routes` reads. Little-endian:
 *
 *   char magic[8]  "SLROUTE1"
 *   u32 layers, experts, top_k, 0     layers: those with experts; experts: of each
 *   u64 tokens
 *   u32 layer[layers]                 their numbers in the model
 *   then for each token, in the order of evaluation:
 *     i32 token, position             position 0 begins a new sequence
 *     u16 expert[layers][top_k]       ascending in a layer
 */
#ifndef SL_CLI_ROUTING_H
#define SL_CLI_ROUTING_H

#include "base/base.h"
#include "sluice/sluice.h"

typedef struct routing {
    const char *path; /* borrowed */
    int layers, experts, top_k;
    size_t tokens;
    int32_t *layer;    /* [layers] */
    int32_t *position; /* [tokens] */
    uint16_t *expert;  /* [tokens][layers][top_k] */
} routing;

bool routing_read(routing *r, const char *path, sl_error *err);
void routing_free(routing *r);

/* Records what an engine's rows choose from now on; the file appears at its path when it is complete. */
typedef struct routing_writer routing_writer;
routing_writer *routing_record(sl_engine *e, const char *path, sl_error *err);
/* Ends it, before the engine is closed. complete: all that was asked for was evaluated; else nothing is left behind. */
bool routing_finish(routing_writer *w, bool complete, sl_error *err);

/* ---- what a cache would hit ---------------------------------------------------------------------------------------
 */

enum { ROUTING_SIZES = 16 };

/* Hit rates, 0 to 1, of caches for all layers together, once the first `warmup` tokens have filled them. */
typedef struct routing_curve {
    size_t warmup;
    int count;
    int size[ROUTING_SIZES]; /* experts that fit */
    double lru[ROUTING_SIZES], lfu[ROUTING_SIZES], best[ROUTING_SIZES];
} routing_curve;

/* best: what is used again last goes (Belady), which no cache can beat. LFU: what was used least so far goes, of equals
 * the one not used for longest. */
bool routing_simulate(const routing *r, routing_curve *out, sl_error *err);

/* How a layer uses its experts. */
typedef struct routing_layer {
    int used;         /* experts that were used at all */
    double busiest;   /* share of uses that went to the busiest tenth of the experts */
    double effective; /* exp of the entropy: as many experts, used evenly, are as varied */
    double again;     /* of a token's experts, the share that the token before it used too */
} routing_layer;
/* uses: [layers][experts], counts; out: [layers]. Both allocated by the caller. */
void routing_layers(const routing *r, uint32_t *uses, routing_layer *out);

/* The drawing: the curve, and a heat map of layers and experts. */
bool routing_draw(const routing *r, const routing_curve *c, const uint32_t *uses, const char *path, sl_error *err);

#endif
