/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging that grows to hold what is saved: for whom, how far, how often, and what comes of it when it cannot; and that
 * is given back when it is not needed, or memory is.
 */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/core/pool_growth.h"
#include "engine/core/pool_shrink.h"
#include "engine/runtime/commands.h"
#include "engine/save/plan.h"
#include "engine/save/save_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "staging/ledger.h"

#define MIB            (UINT64_C(1) << 20)
#define BLOCK          65536
#define FEW            4
#define MOST           1024
/* Of blocks of 64 KiB with a header of 4 KiB. */
#define FLOATS(blocks) ((size_t)(blocks)*BLOCK / sizeof(float) - 2048)

/* What all rigs are on. Memory that is touched is not available any more. */
static struct {
	uint64_t available;
	bool unsure;
	unsigned looks;
	uint64_t touched;
	uint64_t touched_max; /* more cannot be */
	uint64_t taken_at;    /* when so much is touched, another program takes */
	uint64_t taken;       /* so much of it */
	int add_error;
} machine;

static void look(struct ckpt_memlimit *ret_memory)
{
	machine.looks++;
	*ret_memory = (struct ckpt_memlimit){.limit = UINT64_C(1) << 40,
		.available = machine.available,
		.unsure = machine.unsure,
		.bound = "the test",
		.bound_count = 1,
		.bounds = {{.id = 1, .limit = UINT64_C(1) << 40, .available = machine.available}}};
}

static int add(
	const struct ckpt_slot_memory *mapping, size_t at, size_t bytes, struct ckpt_error *err)
{
	if (machine.add_error)
		return ckpt_fail(err, machine.add_error, "the test gives nothing");
	return ckpt_slot_memory_add(mapping, at, bytes, err);
}

static int touch(char *at, size_t bytes)
{
	if (bytes > machine.touched_max - machine.touched)
		return -ENOMEM;
	machine.touched += bytes;
	machine.available -= bytes;
	if (machine.touched >= machine.taken_at) {
		machine.available -= machine.taken;
		machine.taken = 0;
	}
	return ckpt_slot_memory_touch(at, bytes);
}

static void drop(char *at, size_t bytes)
{
	machine.touched -= bytes;
	machine.available += bytes;
	ckpt_slot_memory_drop(at, bytes);
}

static const struct ckpt_pool_ops ops = {.look = look, .add = add, .touch = touch, .drop = drop};

struct scene {
	char *dir[2];
	struct core_rig rig[2];
	unsigned rigs;
	char *ledger; /* where they agree; NULL: they do not */
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	memset(&machine, 0, sizeof(machine));
	machine.available = UINT64_C(1) << 36;
	machine.touched_max = UINT64_MAX;
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	while (s->rigs > 0) {
		core_rig_close(&s->rig[--s->rigs]);
		scratch_remove(s->dir[s->rigs]);
	}
	if (s->ledger)
		scratch_remove(s->ledger);
	free(s);
	return 0;
}

static struct core_rig *open_rig(struct scene *s, uint32_t sharers, unsigned slots_max)
{
	struct core_rig *rig = &s->rig[s->rigs];
	char *dir = scratch_make_in_memory();

	s->dir[s->rigs++] = dir;
	core_rig_open(rig, &(struct core_rig_config){.dir = dir,
				   .slots = FEW,
				   .slots_max = slots_max,
				   .sharers = sharers,
				   .ledger = s->ledger,
				   .memory = &ops});
	assert_int_equal(core_rig_claim(rig), 0);
	return rig;
}

static struct ckpt_save *prepare(struct core_rig *rig, uint64_t step, size_t blocks)
{
	struct ckpt_save *save = core_rig_prepare(rig, step, 1, FLOATS(blocks), 0);

	assert_int_equal(save->plan->block_count, blocks);
	return save;
}

static int save_blocks(struct core_rig *rig, uint64_t step, size_t blocks)
{
	struct ckpt_save *save = prepare(rig, step, blocks);

	(void)core_rig_post(rig, save);
	return core_rig_end_save(rig, save);
}

static bool is_memory(const char *at)
{
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	/* Not libc's: slots that are free are poisoned. */
	bool is = syscall(SYS_write, ends[1], at, 1) == 1;
	assert_true(is || errno == EFAULT);
	(void)close(ends[0]);
	(void)close(ends[1]);
	return is;
}

static char *slot_at(const struct core_rig *rig, unsigned slot)
{
	return (char *)ckpt_pool_base(rig->pool) + (size_t)slot * BLOCK;
}

/* The disk takes nothing, and the save is staged all the same: the first one, in memory that was not there when it began. */
static void a_save_is_staged_without_the_disk(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, MOST);

	(void)io_fault_add(&rig->fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
						.path = ".safetensors",
						.count = IO_FAULT_ALWAYS,
						.hold = true});
	for (uint64_t step = 1; step <= 2; step++) {
		struct ckpt_save *save = prepare(rig, step, 12);

		assert_int_equal(core_rig_post(rig, save), 1);
		assert_true(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_STAGED);
		assert_int_equal(atomic_load(&save->bytes_written), 0);
		/* The first has waited for memory, and the second for nothing. */
		assert_int_equal(save->hold, step == 2);
		assert_int_equal(rig->core.stats.pool_starved, 1);
		while (!(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_GONE)) {
			(void)io_tap_release(&rig->fault.tap);
			core_rig_run(rig);
		}
		assert_int_equal(core_rig_end_save(rig, save), 0);
	}
	/* Those who read beside a save have slots as well. */
	assert_int_equal(ckpt_pool_slots(rig->pool), 12 + CKPT_POOL_SLOTS_MIN);
	assert_int_equal(ckpt_pool_touched(rig->pool), 12 * BLOCK);
	/* When it is opened, decided, before the first part is touched, and after each save. */
	assert_int_equal(machine.looks, 5);
	assert_true(core_rig_logged(rig, CKPT_LOG_INFO,
		"staging memory is 1 MiB, and holds this rank's shard of 1 MiB"));
	assert_false(core_rig_logged(rig, CKPT_LOG_INFO, "staging memory is"));
}

static void a_shard_that_fits_grows_nothing(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, MOST);

	assert_int_equal(save_blocks(rig, 1, FEW), 0);
	assert_true(core_rig_logged(rig, CKPT_LOG_INFO, "and holds this rank's shard of 1 MiB"));
	assert_int_equal(ckpt_pool_slots(rig->pool), FEW);
	/* Later it is larger, and then again. */
	assert_int_equal(save_blocks(rig, 2, FEW + 1), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 2 * FEW + 1);
	assert_int_equal(save_blocks(rig, 3, 300), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 300 + FEW);
	unsigned looks = machine.looks;
	assert_int_equal(save_blocks(rig, 4, 200), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 300 + FEW);
	/* After the save. */
	assert_int_equal(machine.looks, looks + 1);
}

/* The user has said how much there is to be. */
static void a_pool_of_a_size_that_was_given_stays(void **state)
{
	struct core_rig *rig = open_rig(*state, 0, 0);

	assert_int_equal(save_blocks(rig, 1, 12), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), FEW);
	assert_int_equal(machine.looks, 1);
	assert_false(core_rig_logged(rig, CKPT_LOG_INFO, "staging memory is"));
}

/* Half of what is available, for all of them; each is told once what it lacks. */
static void ranks_of_a_node_share_half_of_its_memory(void **state)
{
	struct scene *s = *state;
	uint64_t bytes = 0;

	machine.available = 32 * MIB;
	for (unsigned i = 0; i < 2; i++)
		(void)open_rig(s, 2, MOST);
	for (uint64_t step = 1; step <= 3; step++) {
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(save_blocks(&s->rig[i], step, 200), 0);
			assert_int_equal(
				core_rig_logged(&s->rig[i], CKPT_LOG_WARN, "staging memory is"),
				step == 1);
		}
	}
	for (unsigned i = 0; i < 2; i++) {
		assert_true(ckpt_pool_bytes(s->rig[i].pool) >= 6 * MIB);
		bytes += ckpt_pool_bytes(s->rig[i].pool);
	}
	assert_true(bytes <= 16 * MIB);
	/*
	 * When it is opened, twice with the first save, with the second, and after each: less than a part is not worth it
	 * then.
	 */
	assert_int_equal(machine.looks, 14);
}

static void too_little_memory_is_told_with_what_it_costs(void **state)
{
	struct core_rig *rig = open_rig(*state, 3, MOST);

	machine.available = 60 * MIB;
	assert_int_equal(save_blocks(rig, 1, 200), 0);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"staging memory is 10 MiB, and this rank's shard takes 13 MiB: the ranks of a "
		"node (3) share half of the memory that is available, which is 60 MiB because of "
		"the test, and of what they hold, which is 0 MiB each. A save waits for the disk "
		"with the rest; pool_bytes sets "
		"another size"));
}

/* A save is predicted from the whole last state, or from nothing. */
static void a_part_of_a_second_state_takes_no_memory(void **state)
{
	struct core_rig *rig = open_rig(*state, 3, MOST);

	rig->core.config.delta = true;
	machine.available = 60 * MIB;
	assert_int_equal(save_blocks(rig, 1, 100), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 100 + CKPT_POOL_SLOTS_MIN);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN, "Each step is stored by itself"));
	machine.available = 180 * MIB;
	for (uint64_t step = 2; step <= 40; step++)
		assert_int_equal(save_blocks(rig, step, 100), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 200 + CKPT_POOL_SLOTS_MIN);
}

static void address_space_is_a_limit(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, 8);

	assert_int_equal(save_blocks(rig, 1, 12), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 8);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"it does not grow further where address space is limited (ulimit -v)"));
}

static void a_machine_that_tells_nothing_gives_nothing(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, MOST);

	for (unsigned i = 0; i < 2; i++) {
		machine.available = i == 0 ? UINT64_MAX : 64 * MIB;
		machine.unsure = i == 1;
		assert_int_equal(save_blocks(rig, i + 1, 12 + i), 0);
		assert_int_equal(ckpt_pool_slots(rig->pool), FEW);
		assert_true(core_rig_logged(
			rig, CKPT_LOG_WARN, "how much memory is available is not known"));
	}
}

/* What there is by then is used, the rest is given back, and no save fails of it. */
static void memory_that_cannot_be_had_is_done_without(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, MOST);

	/* A job touches 8 MiB, which is 128 slots. */
	machine.touched_max = 11 * MIB;
	assert_int_equal(save_blocks(rig, 1, 300), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), FEW + 128);
	assert_int_equal(ckpt_pool_free(rig->pool), FEW + 128);
	assert_true(is_memory(slot_at(rig, FEW + 127)));
	assert_false(is_memory(slot_at(rig, FEW + 128)));
	assert_false(is_memory(slot_at(rig, 303)));
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"staging memory is 8 MiB, and this rank's shard takes 19 MiB: 10 MiB more cannot "
		"be "
		"had: Cannot allocate memory (ENOMEM). A save waits for the disk with the rest"));
	/* Nothing at all. */
	machine.touched_max = UINT64_MAX;
	machine.add_error = -ENOMEM;
	assert_int_equal(save_blocks(rig, 2, 301), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), FEW + 128);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN, "the test gives nothing"));
	/* A larger shard tries again, where the last one has ended. */
	machine.add_error = 0;
	assert_int_equal(save_blocks(rig, 3, 302), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 302 + FEW);
	assert_int_equal(save_blocks(rig, 4, 302), 0);
}

/* It grows no further then, and what has been touched of it stays in use. */
static void memory_that_another_program_takes_meanwhile_is_left_to_it(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, 2048);

	machine.available = 200 * MIB;
	machine.taken_at = 32 * MIB;
	machine.taken = 119 * MIB;
	assert_int_equal(save_blocks(rig, 1, 1200), 0);
	/* The first part is of 64 MiB. */
	assert_int_equal(ckpt_pool_slots(rig->pool), FEW + 1024);
	assert_false(is_memory(slot_at(rig, FEW + 1024)));
	assert_int_equal(machine.available, 17 * MIB);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"memory has been taken meanwhile, and 17 MiB are available because of "
		"the test"));
}

/* What one bad moment has refused comes with a later save: the warning is one, and the attempts become rare. */
static void later_saves_ask_again(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, MOST);
	unsigned looks = machine.looks;

	machine.available = MIB / 2;
	for (uint64_t step = 1; step <= 30; step++) {
		assert_int_equal(save_blocks(rig, step, 12), 0);
		assert_int_equal(
			core_rig_logged(rig, CKPT_LOG_WARN, "staging memory is"), step == 1);
	}
	/* With the saves 1, 2, 4, 8 and 16. */
	assert_int_equal(machine.looks - looks, 5);
	assert_int_equal(ckpt_pool_slots(rig->pool), FEW);
	machine.available = 64 * MIB;
	for (uint64_t step = 31; step <= 32; step++) {
		assert_int_equal(save_blocks(rig, step, 12), 0);
		assert_int_equal(core_rig_logged(rig, CKPT_LOG_INFO, "and holds this rank's shard"),
			step == 32);
	}
	assert_int_equal(ckpt_pool_slots(rig->pool), 12 + FEW);
	assert_int_equal(save_blocks(rig, 33, 12), 0);
	/* With 32, and after each that had more. */
	assert_int_equal(machine.looks - looks, 9);
}

/* Closing waits for the worker, and not for all that was to come. */
static void closing_ends_it(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, MOST);
	struct ckpt_save *save = prepare(rig, 1, 600);
	struct ckpt_command *closer =
		ckpt_command_new(&rig->core, sizeof(struct ckpt_closer), NULL);

	rig->hold_jobs = true;
	(void)core_rig_post(rig, save);
	/* The save is over, and what it has asked for goes on. */
	ckpt_save_post_cancel(save);
	while (!(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_GONE)) {
		core_rig_do_jobs(rig);
		core_rig_run(rig);
	}
	assert_true(ckpt_pool_growth_active(&rig->core));
	unsigned ready = ckpt_pool_slots(rig->pool);
	ckpt_command_post(closer, ckpt_closer_body);
	core_rig_run(rig);
	assert_false(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	core_rig_let_go(rig);
	assert_true(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	assert_int_equal(core_rig_end_save(rig, save), -ECANCELED);
	/* One more job, of 8 MiB. */
	assert_true(ckpt_pool_slots(rig->pool) <= ready + 128);
	assert_true(ckpt_pool_slots(rig->pool) < 600);
	assert_false(is_memory(slot_at(rig, ckpt_pool_slots(rig->pool))));
	assert_false(core_rig_logged(rig, CKPT_LOG_INFO, "staging memory is"));
	ckpt_command_unref(closer);
}

/* What one leaves of its share the other has from its second save on, and never is it more than half. */
static void a_larger_shard_has_what_a_smaller_one_leaves(void **state)
{
	struct scene *s = *state;
	struct core_rig *large;
	struct core_rig *small;

	s->ledger = scratch_make_in_memory();
	machine.available = 32 * MIB;
	large = open_rig(s, 2, MOST);
	small = open_rig(s, 2, MOST);
	for (uint64_t step = 1; step <= 3; step++) {
		assert_int_equal(save_blocks(large, step, 200), 0);
		/* It fits, and the other one hears of that. */
		assert_int_equal(save_blocks(small, step, FEW), 0);
		assert_true(
			ckpt_pool_bytes(large->pool) + ckpt_pool_bytes(small->pool) <= 16 * MIB);
		assert_int_equal(ckpt_pool_slots(large->pool), step == 1 ? 128 : 204);
	}
	assert_int_equal(ckpt_pool_slots(small->pool), FEW);
	/* Now the other one needs as much: it has the rest. */
	assert_int_equal(save_blocks(small, 4, 200), 0);
	assert_int_equal(ckpt_pool_slots(small->pool), 256 - 204);
	assert_true(core_rig_logged(small, CKPT_LOG_WARN,
		"the ranks of a node (2) share half of the memory that is available, which is 19 "
		"MiB because of the test, and of what they hold, which is 12 MiB in all"));
}

/* Another rank that does not come back with the ledger is not waited for: without it this one has an even share. */
static void a_rank_that_keeps_the_ledger_holds_up_no_save(void **state)
{
	struct scene *s = *state;
	struct core_rig *rig;
	struct core_rig *other;

	s->ledger = scratch_make_in_memory();
	rig = open_rig(s, 2, MOST);
	other = open_rig(s, 2, MOST);
	assert_int_equal(ckpt_ledger_begin(other->ledger, 0), 0);
	assert_int_equal(save_blocks(rig, 1, 12), 0);
	assert_true(ckpt_pool_growth_active(&rig->core));
	/* It is let go of while this one looks again and again. */
	core_rig_sleep(rig, 10);
	assert_int_equal(ckpt_pool_slots(rig->pool), FEW);
	assert_int_equal(ckpt_ledger_end(other->ledger, 0), 0);
	core_rig_sleep(rig, 10);
	assert_false(ckpt_pool_growth_active(&rig->core));
	assert_int_equal(ckpt_pool_slots(rig->pool), 12 + FEW);
	/* And now it is not. */
	machine.available = 16 * MIB;
	assert_int_equal(ckpt_ledger_begin(other->ledger, 0), 0);
	assert_int_equal(save_blocks(rig, 2, 200), 0);
	for (unsigned i = 0; i < 150; i++)
		core_rig_sleep(rig, 10);
	assert_false(ckpt_pool_growth_active(&rig->core));
	/* A quarter of what is available and what both are taken to hold. */
	assert_int_equal(ckpt_pool_slots(rig->pool), (256 + 2 * 12) / 4);
	assert_true(core_rig_logged(rig, CKPT_LOG_INFO,
		"another rank of this node does not let go of the file by which they agree on "
		"staging memory: this one takes an even share"));
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"this rank's shard takes 13 MiB: the ranks of a node (2) share half of the memory "
		"that is available, which is 16 MiB because of the test, and of what they hold, "
		"which is 0 MiB each"));
	assert_int_equal(ckpt_ledger_end(other->ledger, 0), 0);
	/* That was no decision of all of them: what they agree on is told as well. */
	assert_int_equal(save_blocks(rig, 3, 200), 0);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN, "MiB in all. A save waits"));
	assert_false(core_rig_logged(rig, CKPT_LOG_INFO, "does not let go"));
}

/* As in containers with a /dev/shm each. */
static void ranks_that_are_missing_are_told_of_once(void **state)
{
	struct scene *s = *state;
	struct core_rig *rig;

	s->ledger = scratch_make_in_memory();
	machine.available = 16 * MIB;
	rig = open_rig(s, 3, MOST);
	(void)open_rig(s, 3, MOST);
	for (uint64_t step = 1; step <= 4; step++) {
		assert_int_equal(save_blocks(rig, step, 200), 0);
		assert_int_equal(
			core_rig_logged(rig, CKPT_LOG_INFO,
				"of 3 ranks that are taken to be on this node 2 agree on "
				"staging memory in /dev/shm: an even share is kept for each "
				"of the others"),
			step == 2);
	}
}

/* Each has an even share then. */
static void ranks_that_cannot_agree_say_so_once(void **state)
{
	struct scene *s = *state;
	struct core_rig *rig;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	s->ledger = scratch_make_in_memory();
	machine.available = 32 * MIB;
	rig = open_rig(s, 2, MOST);
	/* What its descriptor is of now has no lines. */
	for (int fd = 3; fd < 256; fd++) {
		char path[64];
		char target[4096] = "";

		(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		(void)readlink(path, target, sizeof(target) - 1);
		if (strstr(target, ".staging"))
			assert_int_equal(dup3(null, fd, O_CLOEXEC), fd);
	}
	assert_int_equal(close(null), 0);
	assert_int_equal(save_blocks(rig, 1, 200), 0);
	assert_int_equal(ckpt_pool_slots(rig->pool), 128);
	assert_true(core_rig_logged(rig, CKPT_LOG_INFO,
		"the ranks of this node cannot agree on staging memory any more (Input/output "
		"error (EIO)): each takes an even share"));
	assert_int_equal(save_blocks(rig, 2, 201), 0);
	assert_false(core_rig_logged(rig, CKPT_LOG_INFO, "cannot agree"));
}

static void save_times(struct core_rig *rig, uint64_t *step, unsigned times, size_t blocks)
{
	for (unsigned i = 0; i < times; i++)
		assert_int_equal(save_blocks(rig, ++*step, blocks), 0);
}

/* A state that became smaller for good: its memory goes, and comes again with a larger one. */
static void what_the_last_saves_have_not_needed_is_given_back(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, 4096);
	uint64_t step = 0;

	/* A large one among small ones is reason enough to keep it. */
	for (unsigned i = 0; i < 3; i++) {
		save_times(rig, &step, 1, 1500);
		save_times(rig, &step, 6, 100);
	}
	assert_int_equal(ckpt_pool_slots(rig->pool), 1500 + FEW);
	assert_int_equal(machine.touched, 1500 * BLOCK);
	save_times(rig, &step, 16, 100);
	assert_int_equal(ckpt_pool_slots(rig->pool), 100 + FEW);
	assert_int_equal(ckpt_pool_free(rig->pool), 100 + FEW);
	assert_int_equal(ckpt_pool_touched(rig->pool), 100 * BLOCK);
	assert_int_equal(machine.touched, 100 * BLOCK);
	assert_true(is_memory(slot_at(rig, 100 + FEW - 1)));
	assert_false(is_memory(slot_at(rig, 100 + FEW)));
	assert_true(core_rig_logged(rig, CKPT_LOG_INFO,
		"staging memory was lowered by 87 MiB to 6 MiB: the last 8 saves needed no more"));
	/* Now a little less: it is not worth it. */
	save_times(rig, &step, 20, 95);
	assert_int_equal(ckpt_pool_slots(rig->pool), 100 + FEW);
	save_times(rig, &step, 2, 300);
	assert_int_equal(ckpt_pool_slots(rig->pool), 300 + FEW);
	assert_int_equal(core_rig_read(rig, step, CKPT_SINK_NONE), 0);
}

/* What it was opened with stays, and so does what the user has set. */
static void memory_that_is_short_is_given_back(void **state)
{
	struct core_rig *rig = open_rig(*state, 1, MOST);
	uint64_t step = 0;

	machine.available = 100 * MIB;
	save_times(rig, &step, 1, 400);
	assert_int_equal(ckpt_pool_slots(rig->pool), 400 + FEW);
	/* 25 MiB are held: another program leaves 7 of the others, and then 5. */
	machine.available = 7 * MIB;
	save_times(rig, &step, 2, 400);
	assert_int_equal(ckpt_pool_slots(rig->pool), 400 + FEW);
	machine.available = 5 * MIB;
	save_times(rig, &step, 1, 400);
	assert_int_equal(ckpt_pool_bytes(rig->pool), 15 * MIB);
	assert_int_equal(machine.available, 15 * MIB + 4 * BLOCK);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"staging memory was lowered by 10 MiB to 15 MiB: only 5 MiB of memory are "
		"available "
		"because of the test"));
	/* It stays so, and what that costs is said. */
	save_times(rig, &step, 3, 400);
	assert_int_equal(ckpt_pool_bytes(rig->pool), 15 * MIB);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN, "A save waits for the disk with the rest"));
	/* Nothing at all: no less than there was. */
	machine.available = 0;
	save_times(rig, &step, 1, 400);
	assert_int_equal(ckpt_pool_slots(rig->pool), (240 - FEW) / 2);
	machine.available = 100 * MIB;
	save_times(rig, &step, 4, 400);
	assert_int_equal(ckpt_pool_slots(rig->pool), 400 + FEW);
}

/* Each gives back what it has beyond its share, and counts on the others to do so as well. */
static void ranks_that_are_short_keep_their_shares(void **state)
{
	struct scene *s = *state;
	uint64_t step[2] = {0};

	s->ledger = scratch_make_in_memory();
	for (unsigned i = 0; i < 2; i++)
		(void)open_rig(s, 2, MOST);
	for (unsigned i = 0; i < 2; i++)
		save_times(&s->rig[i], &step[i], 1, 396);
	assert_int_equal(ckpt_pool_bytes(s->rig[0].pool), 25 * MIB);
	assert_int_equal(ckpt_pool_bytes(s->rig[1].pool), 25 * MIB);
	/* Half of the 808 blocks that they have and that are available is for both. */
	machine.available = UINT64_C(8) * BLOCK;
	save_times(&s->rig[0], &step[0], 1, 396);
	assert_int_equal(ckpt_pool_slots(s->rig[0].pool), 202);
	machine.available = 0;
	save_times(&s->rig[1], &step[1], 1, 396);
	assert_int_equal(ckpt_pool_slots(s->rig[1].pool), (202 + 400) / 4);
	/* That is no reason for the other one to have less. */
	machine.available = 20 * MIB;
	save_times(&s->rig[0], &step[0], 3, 396);
	assert_int_equal(ckpt_pool_slots(s->rig[0].pool), 202);
}

/* What the saves have said is not forgotten then. */
static void a_rank_that_keeps_the_ledger_only_puts_it_off(void **state)
{
	struct scene *s = *state;
	struct core_rig *rig;
	struct core_rig *other;
	uint64_t step = 0;

	s->ledger = scratch_make_in_memory();
	rig = open_rig(s, 2, MOST);
	other = open_rig(s, 2, MOST);
	save_times(rig, &step, 1, 300);
	save_times(rig, &step, 14, 10);
	assert_int_equal(ckpt_ledger_begin(other->ledger, 0), 0);
	save_times(rig, &step, 1, 10);
	assert_int_equal(ckpt_pool_slots(rig->pool), 300 + FEW);
	assert_int_equal(ckpt_ledger_end(other->ledger, 0), 0);
	save_times(rig, &step, 1, 10);
	assert_int_equal(ckpt_pool_slots(rig->pool), 10 + FEW);
}

/* A save of so many blocks comes while memory goes: it has all that is left at once, and no more goes. */
static struct core_rig *save_meanwhile(struct scene *s, size_t blocks)
{
	struct core_rig *rig = open_rig(s, 1, 4096);
	struct ckpt_save *save;
	uint64_t step = 0;

	/* The eighth that needs no more. */
	save_times(rig, &step, 1, 2000);
	save_times(rig, &step, 14, 100);
	assert_int_equal(ckpt_pool_slots(rig->pool), 2000 + FEW);
	save = prepare(rig, ++step, 100);
	rig->hold_jobs = true;
	(void)core_rig_post(rig, save);
	while (!(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_GONE)) {
		core_rig_do_jobs(rig);
		core_rig_run(rig);
	}
	assert_int_equal(core_rig_end_save(rig, save), 0);
	/* Decided, its end looked at, and one part of 64 MiB gone from the pool. */
	for (unsigned i = 0; i < 2; i++) {
		core_rig_do_jobs(rig);
		core_rig_run(rig);
	}
	assert_int_equal(ckpt_pool_slots(rig->pool), 2000 + FEW - 1024);
	assert_true(is_memory(slot_at(rig, 2000)));
	(void)io_fault_add(&rig->fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
						.path = ".safetensors",
						.count = IO_FAULT_ALWAYS,
						.hold = true});
	save = prepare(rig, ++step, blocks);
	(void)core_rig_post(rig, save);
	/* The part is gone, and the next one is not taken. */
	for (unsigned i = 0; i < 2; i++) {
		core_rig_do_jobs(rig);
		core_rig_run(rig);
	}
	assert_ptr_equal(rig->core.save, save);
	assert_false(rig->core.growth->shrinking);
	assert_false(is_memory(slot_at(rig, 2000)));
	assert_int_equal(ckpt_pool_slots(rig->pool), 2000 + FEW - 1024);
	while (!(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_GONE))
		core_rig_let_go(rig);
	assert_int_equal(core_rig_end_save(rig, save), 0);
	assert_false(ckpt_pool_growth_active(&rig->core));
	return rig;
}

/* When the save is over it goes on. */
static void a_save_ends_it(void **state)
{
	const struct core_rig *rig = save_meanwhile(*state, 100);

	assert_int_equal(ckpt_pool_slots(rig->pool), 100 + FEW);
}

/* It does not wait for the next save. */
static void a_larger_save_makes_it_grow_again(void **state)
{
	const struct core_rig *rig = save_meanwhile(*state, 2100);

	assert_int_equal(ckpt_pool_slots(rig->pool), 2100 + FEW);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(a_save_is_staged_without_the_disk),
		PROMISE(a_shard_that_fits_grows_nothing),
		PROMISE(a_pool_of_a_size_that_was_given_stays),
		PROMISE(ranks_of_a_node_share_half_of_its_memory),
		PROMISE(too_little_memory_is_told_with_what_it_costs),
		PROMISE(a_part_of_a_second_state_takes_no_memory),
		PROMISE(address_space_is_a_limit),
		PROMISE(a_machine_that_tells_nothing_gives_nothing),
		PROMISE(memory_that_cannot_be_had_is_done_without),
		PROMISE(memory_that_another_program_takes_meanwhile_is_left_to_it),
		PROMISE(later_saves_ask_again),
		PROMISE(closing_ends_it),
		PROMISE(a_larger_shard_has_what_a_smaller_one_leaves),
		PROMISE(a_rank_that_keeps_the_ledger_holds_up_no_save),
		PROMISE(ranks_that_are_missing_are_told_of_once),
		PROMISE(ranks_that_cannot_agree_say_so_once),
		PROMISE(what_the_last_saves_have_not_needed_is_given_back),
		PROMISE(memory_that_is_short_is_given_back),
		PROMISE(ranks_that_are_short_keep_their_shares),
		PROMISE(a_rank_that_keeps_the_ledger_only_puts_it_off),
		PROMISE(a_save_ends_it),
		PROMISE(a_larger_save_makes_it_grow_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
