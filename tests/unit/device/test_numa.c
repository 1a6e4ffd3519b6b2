/* SPDX-License-Identifier: Apache-2.0 */
/* Which node a GPU is at, by what machines of all kinds say; and memory that is put there. */
#include "lib/test.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "device/numa.h"
#include "lib/scratch.h"

#define BUS "0000:AF:00.0"

static char *tree;
static struct ckpt_numa_ops made_up;

static void put(const char *path, const char *text)
{
	scratch_put(tree, path, text);
}

static int setup(void **state)
{
	(void)state;
	tree = scratch_make();
	made_up.root = tree;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	scratch_remove(tree);
	return 0;
}

static void put_nodes(const char *of_gpu, const char *with_memory)
{
	put("/sys/bus/pci/devices/0000:af:00.0/numa_node", of_gpu);
	put("/sys/devices/system/node/has_memory", with_memory);
}

static int node_of(const char *of_gpu, const char *with_memory)
{
	put_nodes(of_gpu, with_memory);
	return ckpt_numa_node_of(&made_up, BUS);
}

static void the_kernel_says_where_a_gpu_is(void **state)
{
	(void)state;
	assert_int_equal(node_of("1\n", "0-1\n"), 1);
	assert_int_equal(node_of("0\n", "0-1\n"), 0);
	assert_int_equal(node_of("7\n", "0,4-7,9\n"), 7);
	assert_int_equal(node_of("9\n", "0,4-7,9\n"), 9);
	/* As CUDA writes it and as the kernel does; the longer form of some tools is of no device here. */
	assert_int_equal(ckpt_numa_node_of(&made_up, "0000:af:00.0"), 9);
	assert_int_equal(ckpt_numa_node_of(&made_up, "00000000:AF:00.0"), -1);
}

static void where_there_is_nothing_to_choose_none_is_said(void **state)
{
	(void)state;
	assert_int_equal(node_of("0\n", "0\n"), -1);
	assert_int_equal(node_of("-1\n", "0-1\n"), -1);
	/* One without memory, as of processors alone. */
	assert_int_equal(node_of("2\n", "0-1\n"), -1);
	assert_int_equal(node_of("1\n", "1\n"), -1);
}

/* Longer than any path. */
static const char long_address[] =
	"0000:af:00.0000000000000000000000000000000000000000000000000000000000000000000000"
	"000000000000000000000000000000000000000000000000000000000000000000000000000000";

static void what_is_not_understood_is_no_node(void **state)
{
	static const char *const odd[] = {"", "\n", "x\n", "99999999999999999999\n", "4096\n"};
	static const char *const lists[] = {"", "all\n", "1-0\n", "0-99999999999\n", "-1\n"};
	static const char *const addresses[] = {
		"", "../0000:af:00.0", "0000:af:00.0/..", "0000 af", long_address};

	(void)state;
	for (size_t i = 0; i < COUNT(odd); i++)
		assert_int_equal(node_of(odd[i], "0-1\n"), -1);
	for (size_t i = 0; i < COUNT(lists); i++)
		assert_int_equal(node_of("1\n", lists[i]), -1);
	put_nodes("1\n", "0-1\n");
	for (size_t i = 0; i < COUNT(addresses); i++)
		assert_int_equal(ckpt_numa_node_of(&made_up, addresses[i]), -1);
}

static void a_machine_that_tells_nothing_has_no_nodes(void **state)
{
	(void)state;
	assert_int_equal(ckpt_numa_node_of(&made_up, BUS), -1);
	put("/sys/bus/pci/devices/0000:af:00.0/numa_node", "1\n");
	assert_int_equal(ckpt_numa_node_of(&made_up, BUS), -1);
}

static struct {
	void *base;
	size_t size;
	int mode;
	unsigned flags;
	unsigned long bits;
	int nodes; /* so many are set */
	bool wanted;
	int error; /* that it returns; 0: none */
} seen;

#define WORD (8 * sizeof(unsigned long))

static long watch_mbind(void *base, size_t size, int mode, const unsigned long *nodes,
	unsigned long bits, unsigned flags)
{
	seen.base = base;
	seen.size = size;
	seen.mode = mode;
	seen.flags = flags;
	seen.bits = bits;
	/* The kernel looks at one bit less. */
	for (unsigned long i = 0; i < bits - 1; i++)
		seen.nodes += nodes[i / WORD] >> i % WORD & 1;
	seen.wanted = nodes[70 / WORD] >> 70 % WORD & 1;
	errno = seen.error;
	return seen.error ? -1 : 0;
}

static void memory_is_preferred_and_moved(void **state)
{
	const struct ckpt_numa_ops ops = {.root = "", .mbind = watch_mbind};
	char memory[1];

	(void)state;
	memset(&seen, 0, sizeof(seen));
	assert_int_equal(ckpt_numa_prefer(&ops, memory, 12288, 70), 0);
	assert_ptr_equal(seen.base, memory);
	assert_int_equal(seen.size, 12288);
	assert_int_equal(seen.mode, 1);  /* MPOL_PREFERRED */
	assert_int_equal(seen.flags, 2); /* MPOL_MF_MOVE */
	assert_true(seen.wanted && seen.nodes == 1);
	seen.error = EPERM;
	assert_int_equal(ckpt_numa_prefer(&ops, memory, 4096, 70), -EPERM);
}

/* Every machine has node 0; a container may forbid it. What the memory holds stays. */
static void the_kernel_takes_the_call(void **state)
{
	const size_t size = (size_t)1 << 20;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int r;

	(void)state;
	assert_true(memory != MAP_FAILED);
	memset(memory, 'x', size / 2);
	r = ckpt_numa_prefer(NULL, memory, size, 0);
	assert_true(r == 0 || r == -EPERM || r == -ENOSYS);
	for (size_t i = 0; i < size; i++)
		assert_int_equal(memory[i], i < size / 2 ? 'x' : 0);
	assert_int_equal(munmap(memory, size), 0);
	assert_int_equal(ckpt_numa_node_of(NULL, "ffff:ff:1f.7"), -1);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(the_kernel_says_where_a_gpu_is),
		PROMISE(where_there_is_nothing_to_choose_none_is_said),
		PROMISE(what_is_not_understood_is_no_node),
		PROMISE(a_machine_that_tells_nothing_has_no_nodes),
		PROMISE(memory_is_preferred_and_moved),
		PROMISE(the_kernel_takes_the_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
