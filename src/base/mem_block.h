/* base: blocks of the budgeted allocator, for who pins or copies them one by one. */
#ifndef SL_MEM_BLOCK_H
#define SL_MEM_BLOCK_H

#include "base/base.h"

/* The span or slab in use that p points into, also where slabs are gathered; false: none. */
bool sl_mem_block(const sl_mem *m, const void *p, void **base, uint64_t *bytes);
/* How often a gathered slab's pages were given back: what was pinned then is no longer what is there. */
uint64_t sl_mem_vacated(const sl_mem *m);

#endif
