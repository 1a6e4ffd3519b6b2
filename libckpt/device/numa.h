/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NUMA node of a PCI device, and placing memory on it: a copy from another node's memory uses the link between the
 * processors, which the training uses, too.
 */
#ifndef CKPT_DEVICE_NUMA_H
#define CKPT_DEVICE_NUMA_H

#include <stddef.h>

/* The operating system. */
struct ckpt_numa_ops {
	const char *root; /* directory that contains /sys; "" is the system's */
	long (*mbind)(void *base, size_t size, int mode, const unsigned long *nodes,
		unsigned long bits, unsigned flags);
};

/* `ops` NULL: the real one. */

/*
 * By its address as CUDA writes it. -1: only one node has memory, or the kernel does not report it, as in many virtual
 * machines.
 */
int ckpt_numa_node_of(const struct ckpt_numa_ops *ops, const char *bus);

/*
 * Pages of [base, base+size) that are not present will come from the node while it has free ones; those present move to
 * it, except pinned ones. 0, or -errno: containers may forbid it, and then nothing has changed.
 */
int ckpt_numa_prefer(const struct ckpt_numa_ops *ops, void *base, size_t size, int node);

#endif
