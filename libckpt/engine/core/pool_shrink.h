/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging memory that has grown (core/pool_growth.h) is given back, in parts, between saves: when the last saves have all needed
 * less, and when the machine has little memory left. A save that begins meanwhile ends that, and has what is left. It
 * waits for nothing; with GPUs it may wait for one part to be unpinned (cudaHostUnregister). The memory that the pool
 * was opened with stays.
 */
#ifndef CKPT_ENGINE_CORE_POOL_SHRINK_H
#define CKPT_ENGINE_CORE_POOL_SHRINK_H

#include "base/task_job.h"
#include "io/io.h"

struct ckpt_core;

/* Zero is none. */
struct ckpt_shrink {
	struct ckpt_core *core;
	struct ckpt_task task;
	struct ckpt_task_job job;
	struct ckpt_env *patient; /* of jobs that wait for GPUs */
	struct ckpt_io_req forget;
	size_t largest; /* blocks, of the saves since it was last decided; */
	unsigned saves; /* and how many these were */
	size_t needed; /* blocks of the largest of them when enough have been seen; 0: they have not */
	unsigned seen;  /* saves, by which it is decided */
	bool pressed;   /* the machine has little memory left */
	unsigned keep;  /* slots that there will be */
	unsigned count; /* of the part under way, */
	size_t tail;    /* what is pinned as one at the end, in bytes, */
	bool forgotten; /* the disk has no slot of it any more, */
	bool trimmed;   /* and its memory is given back */
	unsigned given; /* slots in all */
};

/* Makes core->shrink, after core->growth. -ENOMEM. */
int ckpt_shrink_open(struct ckpt_core *core);
/* When nothing is under way. What was not opened is not closed. */
void ckpt_shrink_close(struct ckpt_core *core);
/* The core's thread: a save has begun whose shard has so many blocks. */
void ckpt_shrink_note(struct ckpt_core *core, size_t blocks);
/* A save is over. What begins sets core->growth->shrinking; it stops when the core is closing, and wakes the closer. */
void ckpt_shrink_want(struct ckpt_core *core);

#endif
