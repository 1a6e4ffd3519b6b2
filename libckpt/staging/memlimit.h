/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may use, by the machine and its control groups. */
#ifndef CKPT_STAGING_MEMLIMIT_H
#define CKPT_STAGING_MEMLIMIT_H

#include "base/compiler.h"

/* A limit on a process's memory. Processes with the same `id` share the limit. */
struct ckpt_memlimit_bound {
	uint64_t id;
	uint64_t limit;
	uint64_t available;
	uint64_t nodes; /* of NUMA nodes: which; 0: another kind of bound */
};

/* If a process has more bounds, `bounds_lost` is set. */
#define CKPT_MEMLIMIT_BOUNDS 12

struct ckpt_memlimit {
	uint64_t limit;     /* of all its memory; UINT64_MAX: unknown */
	uint64_t available; /* without swapping or being killed */
	const char *bound;  /* the bound that limits `available`, for messages; static */
	bool unsure;        /* the use of some limit cannot be read: less may be available */
	bool bounds_lost;
	uint64_t
		/* Bit mask of the nodes it may use: node 64 counts as node 0, and so on; 0: unknown. */
		nodes;
	unsigned bound_count;
	struct ckpt_memlimit_bound
		bounds[CKPT_MEMLIMIT_BOUNDS]; /* the bounds behind `limit` and `available` */
};

/* Reads /proc and the control groups below `root`; "" is the system's. What is missing is no limit. */
void ckpt_memlimit_read(const char *root, struct ckpt_memlimit *ret_limit);

/*
 * How many ranks of the job share this machine, by the program (`node_ranks`), else by the launcher (the value of
 * LOCAL_WORLD_SIZE; may be NULL). 0: unknown.
 */
uint32_t ckpt_memlimit_ranks(uint32_t node_ranks, const char *local_world_size);
/*
 * Staging memory of a rank that does not know its shard yet: an eighth of the memory divided by the ranks, at most its
 * share. At least 32 MiB, at most 1 GiB.
 */
uint64_t ckpt_memlimit_budget(const struct ckpt_memlimit *memory, uint32_t ranks);
/*
 * The most that one of `ranks` ranks may have in total, if each already holds `held` bytes, which are not available any
 * more. They may decide one after the other: what one has taken is not available to the next. So together they use
 * about half of what was available at first. Each takes at most its part of half of what is available then, and has at
 * most its part of half of the limit. 0: it is unknown what is available.
 */
uint64_t ckpt_memlimit_share(const struct ckpt_memlimit *memory, uint64_t held, uint32_t ranks);

/* Parsers, for tests: */

/* The number after `key` in lines like "MemTotal:  24 kB" or "inactive_file 123", in bytes. */
bool ckpt_memlimit_field(const char *text, const char *key, uint64_t *ret_bytes);
/* Most NUMA nodes; kernels may be built for more, but machines have fewer. */
#define CKPT_MEMLIMIT_NODES 1024
/* A list of numbers like "0-1,4", as a bit set. False: it is invalid, or has larger numbers. */
bool ckpt_memlimit_list(const char *text, uint64_t ret_set[CKPT_MEMLIMIT_NODES / 64]);
/* "max" or a number; UINT64_MAX for no limit or an invalid text. */
uint64_t ckpt_memlimit_value(const char *text);
/*
 * The directory of this process's memory control group, from /proc/self/cgroup and mountinfo; `v2`: in the unified
 * hierarchy. Its first *ret_top bytes are the mount point. False: none.
 */
bool ckpt_memlimit_group(const char *groups, const char *mounts, bool v2, char *ret_dir,
	size_t size, size_t *ret_top);

#endif
