/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_numa_ops. */
#include "device/numa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/procfs.h"

/* linux/mempolicy.h */
#define PREFERRED 1
#define MOVE      (1u << 1)

#define NODES_MAX 1024 /* most nodes that a kernel supports */
#define WORD_BITS (8 * sizeof(unsigned long))

#define NODES_WITH_MEMORY "/sys/devices/system/node/has_memory"

static long real_mbind(void *base, size_t size, int mode, const unsigned long *nodes,
	unsigned long bits, unsigned flags)
{
	return syscall(SYS_mbind, base, size, mode, nodes, bits, flags);
}

static const struct ckpt_numa_ops real_ops = {.root = "", .mbind = real_mbind};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Reads a number from a file; -1: not available. */
static int read_node(const char *root, const char *path)
{
	struct ckpt_buf text = {0};
	long node = -1;
	char *end;

	if (!ckpt_procfs_read(root, path, &text))
		return -1;
	errno = 0;
	node = strtol(text.data, &end, 10);
	if (errno != 0 || end == text.data || node >= NODES_MAX)
		node = -1;
	ckpt_buf_free(&text);
	return node < 0 ? -1 : (int)node;
}

/* Whether the node is in a list like "0-1,4", and not the only one. */
static bool is_one_of_several(const char *list, int node)
{
	bool there = false;
	unsigned long count = 0;

	while (is_digit(*list)) {
		char *end;
		unsigned long first = strtoul(list, &end, 10);
		unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;

		if (last < first || last >= NODES_MAX)
			return false;
		count += last - first + 1;
		there = there || ((unsigned long)node >= first && (unsigned long)node <= last);
		list = end + (*end == ',');
	}
	return there && count > 1;
}

/* Path of the file with a device's node. False: invalid address. */
static bool make_path(const char *bus, char *ret_path, size_t size)
{
	size_t len = strlen(bus);
	int at = snprintf(ret_path, size, "/sys/bus/pci/devices/");
	int n = snprintf(ret_path + at, size - (size_t)at, "%s/numa_node", bus);

	if (len == 0 || (size_t)n >= size - (size_t)at)
		return false;
	for (char *c = ret_path + at; len > 0; c++, len--) {
		/* CUDA uses upper case, the kernel lower case. */
		if (*c >= 'A' && *c <= 'F')
			*c = (char)(*c - 'A' + 'a');
		if (!is_digit(*c) && (*c < 'a' || *c > 'f') && *c != ':' && *c != '.')
			return false;
	}
	return true;
}

int ckpt_numa_node_of(const struct ckpt_numa_ops *ops, const char *bus)
{
	const char *root = (ops ? ops : &real_ops)->root;
	struct ckpt_buf list = {0};
	char path[128];
	int node = make_path(bus, path, sizeof(path)) ? read_node(root, path) : -1;

	if (node < 0 || !ckpt_procfs_read(root, NODES_WITH_MEMORY, &list))
		return -1;
	if (!is_one_of_several(list.data, node))
		node = -1;
	ckpt_buf_free(&list);
	return node;
}

int ckpt_numa_prefer(const struct ckpt_numa_ops *ops, void *base, size_t size, int node)
{
	unsigned long nodes[NODES_MAX / WORD_BITS] = {0};

	CKPT_ASSERT(node >= 0 && node < NODES_MAX && size > 0);
	nodes[(size_t)node / WORD_BITS] |= 1ul << ((size_t)node % WORD_BITS);
	/* The kernel uses one bit less than it is told. */
	if ((ops ? ops : &real_ops)->mbind(base, size, PREFERRED, nodes, NODES_MAX + 1, MOVE) == 0)
		return 0;
	return -errno;
}
