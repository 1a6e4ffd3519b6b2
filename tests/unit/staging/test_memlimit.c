/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel's texts say about memory, as machines and containers of all kinds show them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "staging/memlimit.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static void fields(void **state)
{
	const char *text = "MemTotal:       24684096 kB\n"
			   "MemTotalish:           1 kB\n"
			   "MemAvailable:\t 17 kB\n"
			   "Pages 12\n"
			   "inactive_file 4096\n"
			   "Odd:\n"
			   "Negative: -3 kB\n"
			   "Last: 9";
	uint64_t value = 77;

	(void)state;
	assert_true(ckpt_memlimit_field(text, "MemTotal", &value));
	assert_int_equal(value, UINT64_C(24684096) * 1024);
	assert_true(ckpt_memlimit_field(text, "MemAvailable", &value));
	assert_int_equal(value, 17 * 1024);
	assert_true(ckpt_memlimit_field(text, "inactive_file", &value));
	assert_int_equal(value, 4096);
	assert_true(ckpt_memlimit_field(text, "Last", &value));
	assert_int_equal(value, 9);
	value = 77;
	assert_false(ckpt_memlimit_field(text, "Mem", &value));
	assert_false(ckpt_memlimit_field(text, "Available", &value));
	assert_false(ckpt_memlimit_field(text, "Odd", &value));
	assert_false(ckpt_memlimit_field(text, "Negative", &value));
	assert_false(ckpt_memlimit_field("", "MemTotal", &value));
	assert_false(ckpt_memlimit_field("MemTotal", "MemTotal", &value));
	assert_false(ckpt_memlimit_field("A: 99999999999999999999 kB\n", "A", &value));
	assert_int_equal(value, 77);
}

static void values(void **state)
{
	(void)state;
	assert_int_equal(ckpt_memlimit_value("max\n"), UINT64_MAX);
	assert_int_equal(ckpt_memlimit_value("1073741824\n"), GIB);
	assert_int_equal(ckpt_memlimit_value("0\n"), 0);
	/* Version 1's word for no limit, and what no machine has. */
	assert_int_equal(ckpt_memlimit_value("9223372036854771712\n"), UINT64_MAX);
	assert_int_equal(ckpt_memlimit_value("99999999999999999999999\n"), UINT64_MAX);
	assert_int_equal(ckpt_memlimit_value(""), UINT64_MAX);
	assert_int_equal(ckpt_memlimit_value("-1\n"), UINT64_MAX);
}

struct group_case {
	const char *groups;
	const char *mounts;
	bool v2;
	const char *dir; /* NULL: none */
	const char *top;
};

static void groups(void **state)
{
	static const struct group_case cases[] = {
		/* Systemd, unified. */
		{"0::/user.slice/user-1.slice\n",
			"22 1 0:5 / /proc rw - proc proc rw\n"
			"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
			true, "/sys/fs/cgroup/user.slice/user-1.slice", "/sys/fs/cgroup"},
		/* A container with a namespace of its own. */
		{"0::/\n", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n", true,
			"/sys/fs/cgroup", "/sys/fs/cgroup"},
		/* One without: the path is the host's, the mount shows a part. */
		{"5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab/job\n0::/\n",
			"35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup "
			"rw,memory\n",
			false, "/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"},
		{"4:memory:/docker/ab\n",
			"35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup "
			"rw,memory\n",
			false, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory"},
		/* The same beginning is not the same directory. */
		{"4:memory:/docker/abc\n",
			"35 31 0:32 /docker/ab /m ro - cgroup cgroup rw,memory\n", false, "/m",
			"/m"},
		/* Outside of the namespace. */
		{"0::/../other\n", "30 23 0:26 / /c ro - cgroup2 cgroup rw\n", true, "/c", "/c"},
		/* Optional fields, and controllers that share a mount. */
		{"3:cpu,memory:/a\n",
			"29 1 0:1 / /cpuset rw shared:1 master:2 - cgroup cgroup rw,cpuset\n"
			"30 1 0:2 / /both rw shared:1 master:2 - cgroup cgroup "
			"rw,cpu,memory\n",
			false, "/both/a", "/both"},
		/* A path with colons. */
		{"0::/a:b:c\n", "30 23 0:26 / /c ro - cgroup2 cgroup rw\n", true, "/c/a:b:c", "/c"},
		/* No such controller, no such mount, nothing at all, nonsense. */
		{"4:memoryx,xmemory:/a\n", "35 31 0:32 / /m ro - cgroup cgroup rw,memory\n", false,
			NULL, NULL},
		{"4:memory:/a\n", "35 31 0:32 / /m ro - cgroup cgroup rw,cpu\n", false, NULL, NULL},
		{"0::/a\n", "35 31 0:32 / /m ro - cgroup cgroup rw,memory\n", true, NULL, NULL},
		{"", "", true, NULL, NULL},
		{"\n\n:\n", "\n- - -\n", true, NULL, NULL},
		{"0:", "30 23", true, NULL, NULL},
	};

	(void)state;
	for (size_t i = 0; i < CKPT_COUNT(cases); i++) {
		const struct group_case *c = &cases[i];
		char dir[256] = "";
		size_t top = 0;
		bool found =
			ckpt_memlimit_group(c->groups, c->mounts, c->v2, dir, sizeof(dir), &top);

		assert_int_equal(found, c->dir != NULL);
		if (!found)
			continue;
		assert_string_equal(dir, c->dir);
		assert_int_equal(top, strlen(c->top));
	}
}

static void a_path_too_long_is_no_group(void **state)
{
	char groups_text[300];
	char dir[64];
	size_t top;

	(void)state;
	(void)snprintf(groups_text, sizeof(groups_text), "0::/%0200d\n", 0);
	assert_false(ckpt_memlimit_group(groups_text, "30 23 0:26 / /c ro - cgroup2 cgroup rw\n",
		true, dir, sizeof(dir), &top));
}

static uint64_t budget(uint64_t limit, uint32_t ranks)
{
	const struct ckpt_memlimit memory = {.limit = limit, .available = UINT64_MAX};

	return ckpt_memlimit_budget(&memory, ranks);
}

static void budgets(void **state)
{
	(void)state;
	assert_int_equal(budget(4 * GIB, 1), 512 * MIB);
	assert_int_equal(budget(512 * GIB, 1), GIB);
	assert_int_equal(budget(100 * MIB, 1), 32 * MIB);
	assert_int_equal(budget(0, 1), 32 * MIB);
	assert_int_equal(budget(UINT64_MAX, 1), 32 * MIB);
	assert_int_equal(budget(32 * GIB, 8), 512 * MIB);
	assert_int_equal(budget(32 * GIB, 4096), 32 * MIB);
	/* Of a machine that others use. */
	struct ckpt_memlimit memory = {.limit = 4 * GIB, .available = 600 * MIB};
	assert_int_equal(ckpt_memlimit_budget(&memory, 1), 300 * MIB);
	assert_int_equal(ckpt_memlimit_budget(&memory, 2), 150 * MIB);
	/* One that does not say how much of it others use. */
	memory.unsure = true;
	assert_int_equal(ckpt_memlimit_budget(&memory, 1), 32 * MIB);
}

static void ranks(void **state)
{
	(void)state;
	assert_int_equal(ckpt_memlimit_ranks(0, "8"), 8);
	assert_int_equal(ckpt_memlimit_ranks(0, "4096"), 4096);
	/* The program knows it better than the launcher. */
	assert_int_equal(ckpt_memlimit_ranks(2, "8"), 2);
	assert_int_equal(ckpt_memlimit_ranks(2, NULL), 2);
	/* What is no number of ranks is not heeded. */
	assert_int_equal(ckpt_memlimit_ranks(0, NULL), 0);
	assert_int_equal(ckpt_memlimit_ranks(0, ""), 0);
	assert_int_equal(ckpt_memlimit_ranks(0, "0"), 0);
	assert_int_equal(ckpt_memlimit_ranks(0, "-2"), 0);
	assert_int_equal(ckpt_memlimit_ranks(0, "2x"), 0);
	assert_int_equal(ckpt_memlimit_ranks(0, " 2"), 0);
	assert_int_equal(ckpt_memlimit_ranks(0, "4097"), 0);
	assert_int_equal(ckpt_memlimit_ranks(0, "99999999999999999999"), 0);
}

static uint64_t share_of(uint64_t available, uint64_t held, uint32_t ranks)
{
	const struct ckpt_memlimit memory = {.limit = UINT64_MAX, .available = available};

	return ckpt_memlimit_share(&memory, held, ranks);
}

/* Whenever the ranks of a node decide, and whatever each of them wants. */
static void ranks_together_have_half(void **state)
{
	struct ckpt_memlimit memory = {.limit = 6 * GIB, .available = 6 * GIB};

	(void)state;
	assert_int_equal(share_of(8 * GIB, 0, 1), 4 * GIB);
	assert_int_equal(share_of(7 * GIB, GIB, 1), 4 * GIB);
	assert_int_equal(share_of(8 * GIB, 0, 8), 512 * MIB);
	/* Of those who have grown alike each may have as much as if it were the first time. */
	assert_int_equal(share_of(6 * GIB, 256 * MIB, 8), 512 * MIB);
	assert_int_equal(share_of(0, 0, 1), 0);
	assert_int_equal(share_of(UINT64_MAX, GIB, 1), 0);
	assert_int_equal(share_of(UINT64_MAX - 1, 2, 1), UINT64_MAX / 2);
	assert_int_equal(share_of(GIB, UINT64_MAX / 2, 4), UINT64_MAX / 8);
	assert_int_equal(ckpt_memlimit_share(&memory, 3 * GIB, 2), 3 * GIB / 2);
	memory.unsure = true;
	assert_int_equal(ckpt_memlimit_share(&memory, 0, 1), 0);
	for (uint32_t n = 1; n <= 8; n++) {
		uint64_t held[8] = {0};
		uint64_t available = 64 * GIB;
		uint64_t all = 0;

		/* One after the other; then all again, for a shard that has grown. */
		for (uint32_t turn = 0; turn < 3 * n; turn++) {
			uint32_t rank = turn % n;
			uint64_t share = share_of(available, held[rank], n);

			if (share < held[rank])
				continue;
			available -= share - held[rank];
			held[rank] = share;
		}
		for (uint32_t rank = 0; rank < n; rank++)
			all += held[rank];
		/* A rank that is ahead takes the others to be as well. */
		assert_true(all <= 34 * GIB);
		assert_true(all >= 24 * GIB);
	}
}

/* A machine made of files. */
static char *tree;

static int make_tree(void **state)
{
	const char *tmp = getenv("TMPDIR");
	static char name[PATH_MAX];

	(void)state;
	(void)snprintf(name, sizeof(name), "%s/ckpt-memlimit-XXXXXX", tmp ? tmp : "/tmp");
	tree = mkdtemp(name);
	assert_non_null(tree);
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static int remove_tree(void **state)
{
	(void)state;
	return nftw(tree, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *text)
{
	char full[PATH_MAX];
	FILE *file;

	(void)snprintf(full, sizeof(full), "%s%s", tree, path);
	for (char *slash = strchr(full + strlen(tree) + 1, '/'); slash;
		slash = strchr(slash + 1, '/')) {
		*slash = 0;
		assert_true(mkdir(full, 0777) == 0 || errno == EEXIST);
		*slash = '/';
	}
	file = fopen(full, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static struct ckpt_memlimit read_tree(void)
{
	struct ckpt_memlimit limit;

	ckpt_memlimit_read(tree, &limit);
	return limit;
}

static void put_machine(void)
{
	put("/proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"
			     "CommitLimit: 4194304 kB\nCommitted_AS: 1048576 kB\n");
}

static void a_machine_that_tells_nothing_has_no_limit(void **state)
{
	struct ckpt_memlimit limit = read_tree();

	(void)state;
	assert_true(limit.limit == UINT64_MAX);
	assert_true(limit.available == UINT64_MAX);
}

static void a_machine_without_groups(void **state)
{
	struct ckpt_memlimit limit;

	(void)state;
	put_machine();
	limit = read_tree();
	assert_int_equal(limit.limit, 16 * GIB);
	assert_int_equal(limit.available, 8 * GIB);
	assert_non_null(strstr(limit.bound, "machine"));
	/* The commit limit counts only where it is enforced. */
	put("/proc/sys/vm/overcommit_memory", "0\n");
	assert_int_equal(read_tree().available, 8 * GIB);
	put("/proc/sys/vm/overcommit_memory", "2\n");
	limit = read_tree();
	assert_int_equal(limit.available, 3 * GIB);
	assert_non_null(strstr(limit.bound, "overcommit_memory"));
}

static void lists(void **state)
{
	uint64_t set[CKPT_MEMLIMIT_NODES / 64];

	(void)state;
	assert_true(ckpt_memlimit_list("0-1,4\nMems: 9", set));
	assert_int_equal(set[0], 0x13);
	assert_true(ckpt_memlimit_list("63-64,1023", set));
	assert_true(set[0] == UINT64_C(1) << 63 && set[1] == 1 && set[15] == UINT64_C(1) << 63);
	assert_true(ckpt_memlimit_list("\n", set));
	assert_int_equal(set[0], 0);
	assert_false(ckpt_memlimit_list("1024", set));
	assert_false(ckpt_memlimit_list("3-1", set));
	assert_false(ckpt_memlimit_list("0-", set));
	assert_false(ckpt_memlimit_list("x", set));
	assert_false(ckpt_memlimit_list("0-99999999999999999999", set));
}

/* Of two nodes with memory and one without. */
static void nodes_that_others_have_do_not_count(void **state)
{
	struct ckpt_memlimit limit;

	(void)state;
	put_machine();
	put("/sys/devices/system/node/has_memory", "0-1\n");
	put("/sys/devices/system/node/node0/meminfo",
		"\nNode 0 MemTotal:  8388608 kB\nNode 0 MemFree:  6291456 kB\n");
	put("/sys/devices/system/node/node1/meminfo",
		"\nNode 1 MemTotal:  8388608 kB\nNode 1 MemFree:  1048576 kB\n"
		"Node 1 Active(file):  524288 kB\nNode 1 Inactive(file): 1048576 kB\n"
		"Node 1 Dirty:  393216 kB\nNode 1 Writeback:  131072 kB\n");
	put("/proc/self/status", "Name: x\nMems_allowed:\t3\nMems_allowed_list:\t0-2\n");
	limit = read_tree();
	assert_int_equal(limit.limit, 16 * GIB);
	assert_int_equal(limit.available, 8 * GIB);
	put("/proc/self/status", "Name: x\nMems_allowed:\t2\nMems_allowed_list:\t1\n");
	limit = read_tree();
	assert_int_equal(limit.limit, 8 * GIB);
	assert_int_equal(limit.available, 2 * GIB);
	assert_non_null(strstr(limit.bound, "NUMA"));
	/* What is no list says nothing. */
	put("/proc/self/status", "Name: x\nMems_allowed_list:\t?\n");
	assert_int_equal(read_tree().available, 8 * GIB);
}

static void the_tightest_of_all_groups_around_counts(void **state)
{
	struct ckpt_memlimit limit;

	(void)state;
	put_machine();
	put("/proc/self/cgroup", "0::/job/step\n");
	put("/proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
	put("/cg/job/step/memory.max", "max\n");
	put("/cg/job/step/memory.current", "5\n");
	assert_int_equal(read_tree().limit, 16 * GIB);
	put("/cg/job/memory.max", "4294967296\n");
	put("/cg/job/memory.current", "3221225472\n");
	limit = read_tree();
	assert_int_equal(limit.limit, 4 * GIB);
	assert_int_equal(limit.available, GIB);
	assert_non_null(strstr(limit.bound, "control group"));
	/* Page cache is given back before anything is killed. */
	put("/cg/job/memory.stat", "anon 7\ninactive_file 1073741824\nactive_file 536870912\n");
	assert_int_equal(read_tree().available, 2 * GIB + 512 * MIB);
	/* What of it has to be written first is not. */
	put("/cg/job/memory.stat", "anon 7\ninactive_file 1073741824\nactive_file 536870912\n"
				   "file_dirty 402653184\nfile_writeback 134217728\n");
	assert_int_equal(read_tree().available, 2 * GIB);
	put("/cg/job/memory.stat", "inactive_file 1\nactive_file 2\nfile_dirty 4\n");
	assert_int_equal(read_tree().available, GIB);
	put("/cg/job/memory.stat", "anon 7\ninactive_file 1073741824\nactive_file 536870912\n");
	/* Above memory.high nothing is killed, but nothing moves either. */
	put("/cg/job/step/memory.high", "2147483648\n");
	limit = read_tree();
	assert_int_equal(limit.limit, 2 * GIB);
	assert_int_equal(limit.available, 2 * GIB - 5);
	/* More in use than allowed: nothing is left, and nothing wraps. */
	put("/cg/job/step/memory.current", "9999999999\n");
	assert_int_equal(read_tree().available, 0);
	/* How much is in use cannot be read. */
	assert_false(read_tree().unsure);
	put("/cg/job/step/memory.current", "?\n");
	limit = read_tree();
	assert_true(limit.unsure);
	assert_int_equal(limit.limit, 2 * GIB);
	/* The top has files too where it is the root of a namespace. */
	put("/cg/memory.max", "1048576\n");
	assert_int_equal(read_tree().limit, MIB);
}

static void groups_of_version_1(void **state)
{
	struct ckpt_memlimit limit;

	(void)state;
	put_machine();
	put("/proc/self/cgroup", "8:memory:/docker/ab/job\n1:name=systemd:/\n0::/\n");
	put("/proc/self/mountinfo",
		"35 31 0:32 /docker/ab /cg/memory ro - cgroup cgroup rw,memory\n"
		"41 31 0:38 / /cg/unified rw - cgroup2 cgroup2 rw\n");
	put("/cg/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
	put("/cg/memory/memory.limit_in_bytes", "1073741824\n");
	put("/cg/memory/memory.usage_in_bytes", "805306368\n");
	put("/cg/memory/memory.stat",
		"inactive_file 1\ntotal_inactive_file 268435456\ntotal_active_file 0\n");
	limit = read_tree();
	assert_int_equal(limit.limit, GIB);
	assert_int_equal(limit.available, 512 * MIB);
	put("/cg/memory/memory.stat",
		"dirty 1\ntotal_inactive_file 268435456\ntotal_active_file 0\n"
		"total_dirty 67108864\ntotal_writeback 67108864\n");
	assert_int_equal(read_tree().available, 384 * MIB);
}

/* Whatever the machine is that this runs on, some memory is found, and not more than there is. */
static void this_machine(void **state)
{
	struct ckpt_memlimit limit;
	uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	(void)state;
	ckpt_memlimit_read("", &limit);
	assert_true(limit.limit <= ram + ram / 8);
	assert_true(limit.available > 0 && limit.available <= ram);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields),
		cmocka_unit_test(values),
		cmocka_unit_test(groups),
		cmocka_unit_test(a_path_too_long_is_no_group),
		cmocka_unit_test(budgets),
		cmocka_unit_test(ranks),
		cmocka_unit_test(lists),
		cmocka_unit_test(ranks_together_have_half),
		cmocka_unit_test_setup_teardown(
			a_machine_that_tells_nothing_has_no_limit, make_tree, remove_tree),
		cmocka_unit_test_setup_teardown(a_machine_without_groups, make_tree, remove_tree),
		cmocka_unit_test_setup_teardown(
			nodes_that_others_have_do_not_count, make_tree, remove_tree),
		cmocka_unit_test_setup_teardown(
			the_tightest_of_all_groups_around_counts, make_tree, remove_tree),
		cmocka_unit_test_setup_teardown(groups_of_version_1, make_tree, remove_tree),
		cmocka_unit_test(this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
