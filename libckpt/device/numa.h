/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NUMA node a device on the PCI bus is at, and memory that is to lie there: a copy from another node's memory
 * goes through the link between the processors, which the training's own traffic uses too.
 */
#ifndef CKPT_DEVICE_NUMA_H
#define CKPT_DEVICE_NUMA_H

#include <stddef.h>

/* The operating system. */
struct ckpt_numa_ops {
	const char *root; /* below which /sys is; "" is the system's */
	long (*mbind)(void *base, size_t size, int mode, const unsigned long *nodes,
		unsigned long bits, unsigned flags);
};

/* `ops` NULL: the real one. */

/*
 * By its address as CUDA writes it. -1: there is one node with memory only, or the kernel does not say, as in many
 * virtual machines.
 */
int ckpt_numa_node_of(const struct ckpt_numa_ops *ops, const char *bus);

/*
 * Pages of [base, base+size) that are not there yet come from the node as long as that has any; those that are there
 * move to it, but for those that somebody has pinned. 0, or -errno: containers may forbid it, and then all is as it was.
 */
int ckpt_numa_prefer(const struct ckpt_numa_ops *ops, void *base, size_t size, int node);

#endif
