/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may use: the machine's, and the limits of its control groups. */
#ifndef CKPT_STAGING_MEMLIMIT_H
#define CKPT_STAGING_MEMLIMIT_H

#include "base/compiler.h"

/* One of the bounds of a process's memory. Processes that have one of the same `id` are under the same bound. */
struct ckpt_memlimit_bound {
	uint64_t id;
	uint64_t limit;
	uint64_t available;
	uint64_t nodes; /* of the memory of NUMA nodes: which; 0: it is another bound */
};

/* A process with more has `bounds_lost`. */
#define CKPT_MEMLIMIT_BOUNDS 12

struct ckpt_memlimit {
	uint64_t limit;     /* of all its memory; UINT64_MAX: not known */
	uint64_t available; /* still to be had, without swapping or being killed */
	const char *bound;  /* what `available` is bounded by, for messages; static */
	bool unsure; /* how much of a limit is in use cannot be read: less than that may be available */
	bool bounds_lost;
	uint64_t
		nodes; /* that it may use, as a mask: node 64 counts as node 0, and so on; 0: not known */
	unsigned bound_count;
	struct ckpt_memlimit_bound
		bounds[CKPT_MEMLIMIT_BOUNDS]; /* what `limit` and `available` are of */
};

/* Reads /proc and the control groups below `root`; "" is the system's. What is not there is no limit. */
void ckpt_memlimit_read(const char *root, struct ckpt_memlimit *ret_limit);

/*
 * How many ranks of the job share this machine: as the program says (`node_ranks`), or else the launcher (the text of
 * LOCAL_WORLD_SIZE; may be NULL). 0: neither does.
 */
uint32_t ckpt_memlimit_ranks(uint32_t node_ranks, const char *local_world_size);
/*
 * What a rank takes before it knows its shard: an eighth of the memory by the number of ranks, and no more than its
 * share. 32 MiB at least, 1 GiB at most.
 */
uint64_t ckpt_memlimit_budget(const struct ckpt_memlimit *memory, uint32_t ranks);
/*
 * The most that one of `ranks` ranks may have in all; each is taken to hold `held` bytes already, which are not available
 * any more. They need not decide at the same time: what one has taken is not available to the next. So together they
 * have about half of what was available before the first; none takes more than its part of half of what is available
 * then, nor has more than its part of half of the limit. 0: what is available is not known.
 */
uint64_t ckpt_memlimit_share(const struct ckpt_memlimit *memory, uint64_t held, uint32_t ranks);

/* Of texts, for whoever tests: */

/* The number behind `key` in lines like "MemTotal:  24 kB" or "inactive_file 123", in bytes. */
bool ckpt_memlimit_field(const char *text, const char *key, uint64_t *ret_bytes);
/* NUMA nodes at most; a kernel may have been made for more, and has no more in any machine. */
#define CKPT_MEMLIMIT_NODES 1024
/* A list of numbers like "0-1,4", as a set of bits. False: it is none, or has larger numbers. */
bool ckpt_memlimit_list(const char *text, uint64_t ret_set[CKPT_MEMLIMIT_NODES / 64]);
/* "max" or a number; UINT64_MAX when it says that there is no limit, or nothing sensible. */
uint64_t ckpt_memlimit_value(const char *text);
/*
 * The directory of this process's memory control group, from /proc/self/cgroup and mountinfo; `v2`:
 * of the unified hierarchy. Its first *ret_top bytes are where the hierarchy is mounted. False: none.
 */
bool ckpt_memlimit_group(const char *groups, const char *mounts, bool v2, char *ret_dir,
	size_t size, size_t *ret_top);

#endif
