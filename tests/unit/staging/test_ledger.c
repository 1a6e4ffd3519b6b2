/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a node agree on: never more than half in all, in even shares, and what one leaves is the others'. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "lib/confine.h"
#include "lib/hang.h"
#include "lib/prng.h"
#include "lib/scratch.h"
#include "staging/ledger.h"

#define RANKS   6
#define MACHINE 1
#define MOST    UINT64_MAX

struct rank {
	struct ckpt_ledger *ledger;
	struct ckpt_memlimit memory;
	uint64_t need;
	uint64_t have;
	uint64_t touched;
};

struct node {
	char *dir;
	struct rank rank[RANKS];
	uint64_t available; /* of the machine */
};

static int set_up(void **state)
{
	struct node *node = calloc(1, sizeof(*node));

	node->dir = scratch_make();
	*state = node;
	return 0;
}

static int tear_down(void **state)
{
	struct node *node = *state;

	for (unsigned i = 0; i < RANKS; i++)
		ckpt_ledger_close(node->rank[i].ledger);
	/* Nothing is left behind. */
	assert_int_equal(scratch_count(node->dir), 0);
	scratch_remove(node->dir);
	free(node);
	return 0;
}

static struct ckpt_ledger *open_one(const char *dir, const char *job, uint32_t ranks, uint64_t have)
{
	const struct ckpt_ledger_config config = {
		.dir = dir, .job = job, .ranks = ranks, .have = have};
	struct ckpt_error err;
	struct ckpt_ledger *ledger = NULL;

	ckpt_error_clear(&err);
	if (ckpt_ledger_open(&config, &err, &ledger) < 0)
		fail_msg("%s", err.message);
	return ledger;
}

static void come(struct node *node, unsigned count, uint32_t ranks)
{
	for (unsigned i = 0; i < count; i++)
		node->rank[i].ledger = open_one(node->dir, "job", ranks, 0);
}

static void add_bound(struct ckpt_memlimit *memory, uint64_t id, uint64_t limit, uint64_t available,
	uint64_t nodes)
{
	memory->available = ckpt_min_u64(memory->available, available);
	memory->bounds[memory->bound_count++] = (struct ckpt_memlimit_bound){
		.id = id, .limit = limit, .available = available, .nodes = nodes};
}

/* Of the machine, and of what the rank is under besides. */
static struct ckpt_memlimit look(const struct node *node, const struct rank *rank)
{
	struct ckpt_memlimit memory = rank->memory;

	if (memory.bound_count == 0)
		memory.available = UINT64_MAX;
	add_bound(&memory, MACHINE, MOST, node->available, 0);
	return memory;
}

static uint64_t allowed(struct node *node, unsigned i, uint64_t need)
{
	struct rank *rank = &node->rank[i];
	struct ckpt_memlimit memory;
	uint64_t most;

	assert_int_equal(ckpt_ledger_begin(rank->ledger, rank->touched), 0);
	memory = look(node, rank);
	most = ckpt_ledger_allow(rank->ledger, &memory, need);
	rank->need = need;
	rank->have = ckpt_max_u64(rank->have, ckpt_min_u64(need, most));
	assert_int_equal(ckpt_ledger_end(rank->ledger, rank->have), 0);
	return most;
}

static void touch(struct node *node, unsigned i, uint64_t bytes)
{
	node->rank[i].touched += bytes;
	node->available -= bytes;
}

static void what_one_leaves_is_the_others(void **state)
{
	struct node *node = *state;

	node->available = 2000;
	come(node, 4, 4);
	/* Of the others nothing is known: what this one leaves is kept for them. */
	assert_int_equal(allowed(node, 0, 700), 250);
	assert_int_equal(allowed(node, 1, 100), 100);
	assert_int_equal(allowed(node, 0, 700), 300);
	assert_int_equal(allowed(node, 2, 100), 100);
	assert_int_equal(allowed(node, 0, 700), 400);
	assert_int_equal(allowed(node, 3, 50), 100);
	/* Now all are known, and the memory is enough. */
	touch(node, 0, 300);
	assert_int_equal(allowed(node, 0, 700), 750);
	assert_int_equal(allowed(node, 3, 60), 100);
	/* One that needs more gets what is left, and what the others had before stays theirs. */
	assert_int_equal(allowed(node, 1, 500), 140);
}

static void those_that_have_not_come_have_an_even_share(void **state)
{
	struct node *node = *state;

	node->available = 2000;
	come(node, 2, 4);
	assert_int_equal(allowed(node, 0, 700), 250);
	assert_int_equal(allowed(node, 1, 100), 100);
	assert_int_equal(allowed(node, 0, 700), 300);
	/* A rank that has gone is one of them. */
	ckpt_ledger_close(node->rank[1].ledger);
	node->rank[1].ledger = NULL;
	assert_int_equal(allowed(node, 0, 700), 250);
}

/* What another rank has touched and not told is not gone for all; what another program takes is. */
static void the_whole_is_agreed_once(void **state)
{
	struct node *node = *state;

	node->available = 2000;
	come(node, 2, 2);
	assert_int_equal(allowed(node, 0, 500), 500);
	touch(node, 0, 400);
	assert_int_equal(allowed(node, 1, 500), 500);
	touch(node, 1, 500);
	touch(node, 0, 100);
	assert_int_equal(allowed(node, 0, 501), 500);
	/* 600 of the 1000 that are left are another program's. */
	node->available -= 600;
	assert_int_equal(allowed(node, 0, 501), 200);
	assert_int_equal(allowed(node, 1, 501), 200);
	assert_int_equal(ckpt_ledger_begin(node->rank[0].ledger, 500), 0);
	assert_int_equal(ckpt_ledger_held(node->rank[0].ledger), 1000);
	assert_int_equal(ckpt_ledger_end(node->rank[0].ledger, 500), 0);
	/* And given back. */
	node->available += 1600;
	assert_int_equal(allowed(node, 0, 800), 1500 - 501);
}

/* A group of one rank bounds that rank alone; one of several is shared by those that are in it. */
static void each_bound_is_shared_by_those_under_it(void **state)
{
	struct node *node = *state;

	node->available = 10000;
	come(node, 4, 4);
	for (unsigned i = 0; i < 4; i++) {
		struct ckpt_memlimit *memory = &node->rank[i].memory;

		memory->available = UINT64_MAX;
		if (i < 2)
			add_bound(memory, 100 + i, 800, 800, 0);
		else
			add_bound(memory, 200, 1000, 1000, 0);
	}
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < 4; i++)
			(void)allowed(node, i, 2000);
	assert_int_equal(node->rank[0].have, 400);
	assert_int_equal(node->rank[1].have, 400);
	assert_int_equal(node->rank[2].have, 250);
	assert_int_equal(node->rank[3].have, 250);
}

/* Ranks on nodes 0 and 1, and one on both: the memory of a node is never promised twice. */
static void numa_nodes_are_shared_by_those_that_may_use_them(void **state)
{
	struct node *node = *state;
	const uint64_t masks[] = {1, 2, 3};

	node->available = 100000;
	come(node, 3, 3);
	for (unsigned i = 0; i < 3; i++) {
		struct ckpt_memlimit *memory = &node->rank[i].memory;

		memory->available = UINT64_MAX;
		memory->nodes = masks[i];
		if (masks[i] != 3)
			add_bound(memory, 50 + i, 1200, 1200, masks[i]);
	}
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < 3; i++)
			(void)allowed(node, i, 300);
	/* The third could have all of its memory from either node. */
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(node->rank[i].have, 300);
	assert_int_equal(allowed(node, 0, 1000), 300);
	assert_int_equal(allowed(node, 2, 1000), 50000 - 1000 - 300);
	/* Nor is it if that one does not know its nodes. */
	node->rank[2].memory.nodes = 0;
	(void)allowed(node, 2, 300);
	assert_int_equal(allowed(node, 1, 1000), 0);
}

static void a_machine_that_tells_nothing_allows_nothing(void **state)
{
	struct node *node = *state;
	struct ckpt_memlimit memory = {.limit = UINT64_MAX, .available = UINT64_MAX};

	node->available = 1000;
	come(node, 1, 1);
	assert_int_equal(ckpt_ledger_begin(node->rank[0].ledger, 0), 0);
	assert_int_equal(ckpt_ledger_allow(node->rank[0].ledger, &memory, 1), 0);
	memory = look(node, &node->rank[0]);
	memory.unsure = true;
	assert_int_equal(ckpt_ledger_allow(node->rank[0].ledger, &memory, 1), 0);
	assert_int_equal(ckpt_ledger_end(node->rank[0].ledger, 0), 0);
}

static void the_file_goes_with_the_last_one_that_comes(void **state)
{
	struct node *node = *state;

	come(node, 1, 2);
	assert_int_equal(scratch_count(node->dir), 1);
	node->rank[1].ledger = open_one(node->dir, "another job", 2, 0);
	assert_int_equal(scratch_count(node->dir), 2);
	node->rank[2].ledger = open_one(node->dir, "job", 2, 0);
	assert_int_equal(scratch_count(node->dir), 1);
	/* One is busy with it: nobody waits. */
	assert_int_equal(ckpt_ledger_begin(node->rank[0].ledger, 0), 0);
	assert_int_equal(ckpt_ledger_begin(node->rank[2].ledger, 0), -EAGAIN);
	assert_int_equal(ckpt_ledger_end(node->rank[0].ledger, 0), 0);
	assert_int_equal(ckpt_ledger_begin(node->rank[2].ledger, 0), 0);
	assert_int_equal(ckpt_ledger_end(node->rank[2].ledger, 0), 0);
}

static const char *refusal(const char *dir)
{
	static struct ckpt_error err;
	const struct ckpt_ledger_config config = {.dir = dir, .job = "job", .ranks = 2};
	struct ckpt_ledger *ledger = NULL;

	ckpt_error_clear(&err);
	assert_true(ckpt_ledger_open(&config, &err, &ledger) < 0);
	return err.message;
}

/* Nothing is followed, nor written that others may write. */
static void what_is_not_this_users_is_not_used(void **state)
{
	struct node *node = *state;
	char path[4096];
	char other[4096];

	assert_non_null(strstr(refusal("/nowhere"), "cannot use a file in /nowhere: "));
	come(node, 1, 2);
	assert_non_null(scratch_find(node->dir, ".staging"));
	(void)snprintf(path, sizeof(path), "%s", scratch_find(node->dir, ".staging"));
	assert_int_equal(chmod(path, 0666), 0);
	assert_non_null(strstr(refusal(node->dir), "(EPERM)"));
	assert_int_equal(chmod(path, 0600), 0);
	(void)snprintf(other, sizeof(other), "%s/other", node->dir);
	assert_int_equal(link(path, other), 0);
	assert_non_null(strstr(refusal(node->dir), "(EPERM)"));
	assert_int_equal(unlink(other), 0);
	ckpt_ledger_close(node->rank[0].ledger);
	node->rank[0].ledger = NULL;
	assert_int_equal(symlink("/dev/zero", path), 0);
	assert_non_null(strstr(refusal(node->dir), "(ELOOP)"));
	assert_int_equal(unlink(path), 0);
}

static int open_without_locks(void *dir)
{
	const long locks[] = {SYS_fcntl};

	if (confine_syscalls(locks, 1, EINVAL) < 0)
		return CONFINE_SKIP;
	return strstr(refusal(dir), "(EINVAL)") ? 0 : 1;
}

/* Nobody could remove it later. */
static void where_nothing_can_be_locked_no_file_stays(void **state)
{
	const struct node *node = *state;
	int r = confine_run(open_without_locks, node->dir);

	if (r == CONFINE_SKIP)
		skip();
	assert_int_equal(r, 0);
	assert_int_equal(scratch_count(node->dir), 0);
}

/* Many processes. */

struct shared {
	atomic_uint arrived;
	atomic_int over;              /* more than half was promised */
	_Atomic uint64_t have[RANKS]; /* changed by whoever has the ledger */
	_Atomic uint64_t available;
};

#define MEMORY UINT64_C(12000)

static void begin(struct ckpt_ledger *ledger, uint64_t held)
{
	int r;

	while ((r = ckpt_ledger_begin(ledger, held)) == -EAGAIN)
		(void)sched_yield();
	if (r < 0)
		_exit(2);
}

static uint64_t ask(
	struct shared *s, unsigned i, struct ckpt_ledger *ledger, uint64_t need, uint64_t held)
{
	struct ckpt_memlimit memory = {.available = UINT64_MAX};
	uint64_t have = atomic_load(&s->have[i]);
	uint64_t sum = 0;

	begin(ledger, held);
	add_bound(&memory, MACHINE, MEMORY, atomic_load(&s->available), 0);
	have = ckpt_max_u64(have, ckpt_min_u64(need, ckpt_ledger_allow(ledger, &memory, need)));
	atomic_store(&s->have[i], have);
	for (unsigned k = 0; k < RANKS; k++)
		sum += atomic_load(&s->have[k]);
	if (sum > MEMORY / 2)
		atomic_store(&s->over, 1);
	if (ckpt_ledger_end(ledger, have) < 0)
		_exit(3);
	return have;
}

static void await_all(struct shared *s, unsigned count)
{
	(void)atomic_fetch_add(&s->arrived, 1);
	while (atomic_load(&s->arrived) < count)
		(void)sched_yield();
}

static int live(struct shared *s, unsigned i, const char *dir)
{
	struct prng prng = {i + 1};
	struct ckpt_ledger *ledger = open_one(dir, "processes", RANKS, 0);
	uint64_t held = 0;
	uint64_t have;

	await_all(s, RANKS);
	for (unsigned round = 0; round < 300; round++) {
		have = ask(s, i, ledger, 1 + prng_below(&prng, MEMORY / 4), held);
		/* It is touched in pieces, and the others hear of it later. */
		while (held < have) {
			uint64_t piece = 1 + prng_below(&prng, have - held);

			(void)atomic_fetch_sub(&s->available, piece);
			held += piece;
			if (prng_below(&prng, 2))
				break;
		}
		if (i == 0 && round == 150) {
			(void)atomic_fetch_add(&s->available, held);
			atomic_store(&s->have[i], 0);
			(void)raise(SIGKILL);
		}
		if (prng_below(&prng, 4) > 0)
			continue;
		/* Given back first, and told then. */
		(void)atomic_fetch_add(&s->available, held);
		held = 0;
		begin(ledger, held);
		atomic_store(&s->have[i], 0);
		if (ckpt_ledger_end(ledger, 0) < 0)
			return 4;
	}
	(void)atomic_fetch_add(&s->available, held);
	begin(ledger, 0);
	atomic_store(&s->have[i], 0);
	if (ckpt_ledger_end(ledger, 0) < 0)
		return 4;
	/* In the end one needs much, and the others little: of the one that is dead nothing is known. */
	await_all(s, 2 * RANKS);
	if (i > 1)
		(void)ask(s, i, ledger, 100, 0);
	await_all(s, 2 * RANKS + RANKS - 1);
	have = i == 1 ? ask(s, i, ledger, MEMORY, 0) : 0;
	await_all(s, 2 * RANKS + 2 * (RANKS - 1));
	ckpt_ledger_close(ledger);
	return i == 1 && have != (MEMORY / 2 - UINT64_C(4) * 100) / 2 ? 5 : 0;
}

/* Waits for one of them; its number. */
static unsigned next_to_end(pid_t *pids, int *ret_status)
{
	pid_t pid = waitpid(-1, ret_status, 0);

	for (unsigned i = 0; i < RANKS; i++)
		if (pids[i] == pid) {
			pids[i] = 0;
			return i;
		}
	fail_msg("waitpid() gave %d", (int)pid);
	return RANKS;
}

static void kill_all(const pid_t *pids)
{
	for (unsigned i = 0; i < RANKS; i++)
		if (pids[i] > 0) {
			(void)kill(pids[i], SIGKILL);
			(void)waitpid(pids[i], NULL, 0);
		}
}

static void processes_never_have_more_than_half(void **state)
{
	const struct node *node = *state;
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[RANKS];
	int status;

	assert_ptr_not_equal(s, MAP_FAILED);
	atomic_store(&s->available, MEMORY);
	for (unsigned i = 0; i < RANKS; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			hang_watch();
			_exit(live(s, i, node->dir));
		}
	}
	for (unsigned ended = 0; ended < RANKS; ended++) {
		unsigned i = next_to_end(pids, &status);

		if (i == 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
			/* A killed process has its locks until it has gone, which the others wait for. */
			(void)atomic_fetch_add(&s->arrived, 1);
		} else if (i == 0 || status != 0) {
			/* The others would wait for it until their limit against hanging. */
			kill_all(pids);
			fail_msg("rank %u ended with status %#x", i, (unsigned)status);
		}
	}
	assert_int_equal(atomic_load(&s->over), 0);
	assert_int_equal(munmap(s, sizeof(*s)), 0);
}

/* Of a job that was killed before all had come a file stays, until another one begins. */
static void what_a_killed_job_leaves_goes(void **state)
{
	struct node *node = *state;
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		(void)open_one(node->dir, "killed", 2, 0);
		(void)raise(SIGKILL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(scratch_count(node->dir), 1);
	come(node, 1, 2);
	assert_int_equal(scratch_count(node->dir), 1);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(what_one_leaves_is_the_others),
		PROMISE(those_that_have_not_come_have_an_even_share),
		PROMISE(the_whole_is_agreed_once),
		PROMISE(each_bound_is_shared_by_those_under_it),
		PROMISE(numa_nodes_are_shared_by_those_that_may_use_them),
		PROMISE(a_machine_that_tells_nothing_allows_nothing),
		PROMISE(the_file_goes_with_the_last_one_that_comes),
		PROMISE(what_is_not_this_users_is_not_used),
		PROMISE(where_nothing_can_be_locked_no_file_stays),
		PROMISE(processes_never_have_more_than_half),
		PROMISE(what_a_killed_job_leaves_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
