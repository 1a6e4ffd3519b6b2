/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of simulated processes. The product's allocator and staging pool are the real ones;
 * the linker puts these wrappers around them (--wrap), which know what belongs to whom: so that a dead
 * process can be swept away whole, a closed one must have given everything back, and a slot that is
 * given back too early shows.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "sim.h"
#include "staging/pool.h"

/* Allocations of the product fail as the mix of `sim` says; NULL: never. */
void sim_memory_start(struct sim *sim);
/* The process that runs from now on; 0: the world. */
void sim_memory_enter(unsigned owner);

/* Blocks, and bytes, that a process holds. */
unsigned sim_memory_blocks(unsigned owner);
uint64_t sim_memory_bytes(unsigned owner);
/* The most bytes that it held at once since this was last asked. */
uint64_t sim_memory_most(unsigned owner);
/* No process holds anything, nor any pool. */
bool sim_memory_empty(void);
/* Frees all that a dead process held. */
void sim_memory_sweep(unsigned owner);

/*
 * A pool for a process, and its end: what a dead one held of it is given back. To open one takes a
 * look at half a dozen files of the kernel, so that they are kept and used again.
 */
struct ckpt_pool *sim_pool_open(unsigned slots, uint32_t block_bytes);
void sim_pool_sweep(struct ckpt_pool *pool);
/* Whether from now on what was in a slot stays in it. */
void sim_pool_keep(bool contents);
/* At the end of the program. */
void sim_pool_close_all(void);

#endif
