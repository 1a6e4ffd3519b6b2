/* SPDX-License-Identifier: Apache-2.0 */
/* Retention and settling: what they do when they cannot, when they are beaten, and when they are fenced. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"
#include "engine/runtime/commands.h"
#include "engine/save/save_state.h"
#include "exchange/node_messages.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

struct scene {
	char *dir;
	struct core_rig rig;
	struct fixture_step oldest; /* 5, committed */
	struct fixture_step old;    /* 10, committed */
	struct fixture_step dead;   /* 30, undecided */
	struct ckpt_command *closer;
};

static struct fixture_step fixture(struct scene *s, uint64_t step)
{
	struct fixture_step made = fixture_one(s->dir, fixture_floats(1000));

	made.step = step;
	fixture_commit(&made);
	return made;
}

/* A store that goes on from step 10, with retention that keeps one; nothing has been claimed. */
static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	fixture_begin(s->dir);
	s->oldest = fixture(s, 5);
	s->old = fixture(s, 10);
	s->dead = fixture(s, 30);
	assert_int_equal(unlink(fixture_manifest(&s->dead)), 0);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .keep_last = 1});
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	core_rig_let_go(&s->rig);
	if (s->closer)
		ckpt_command_unref(s->closer);
	core_rig_close(&s->rig);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static unsigned add(struct scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static bool is_there(const char *path)
{
	return access(path, F_OK) == 0;
}

/* The engine begins to close, and does not end for what is held. */
static void begin_to_close(struct scene *s)
{
	s->closer = ckpt_command_new(&s->rig.core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(s->closer, ckpt_closer_body);
	core_rig_run(&s->rig);
	assert_false(ckpt_latch_get(&s->closer->latch) & CKPT_DONE_END);
}

static void test_settled(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_INFO, "settled step 30"));
	assert_true(is_there(fixture_manifest(&s->dead)));
	assert_false(is_there(fixture_shard(&s->dead, 0)));
}

/* The directory of claims is gone for a moment: nothing is removed, and it is said. */
static void test_no_fence_to_look_at(void **state)
{
	struct scene *s = *state;

	/* The claim looks there first, then whoever settles; then a save, then retention. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_LIST, .path = "gens", .nth = 2, .error = -ENOENT});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_LIST, .path = "gens", .nth = 4, .error = -ENOENT});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "cannot settle step 30"));
	assert_true(is_there(fixture_shard(&s->dead, 0)));
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "retention keeps step 5"));
	assert_true(is_there(fixture_manifest(&s->oldest)));
	/* Once more with the next save. */
	assert_int_equal(core_rig_save(&s->rig, 50), 0);
	assert_false(is_there(fixture_manifest(&s->oldest)));
}

static void settle(struct scene *s, int error)
{
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_RENAME, .path = "000030/manifest.json", .error = error});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_true(is_there(fixture_shard(&s->dead, 0)));
}

/* Whoever comes late to publish has removed the directory, or its record has won: nothing to settle. */
static void test_settled_by_others(void **state)
{
	settle(*state, -ENOENT);
	assert_true(
		core_rig_logged(&((struct scene *)*state)->rig, CKPT_LOG_INFO, "settled step 30"));
}

static void test_decided_by_others(void **state)
{
	settle(*state, -EEXIST);
	assert_true(
		core_rig_logged(&((struct scene *)*state)->rig, CKPT_LOG_INFO, "settled step 30"));
}

/* Without a record that has won, perhaps a manifest has: what it names stays. */
static void test_not_settled(void **state)
{
	settle(*state, -EIO);
	assert_true(core_rig_logged(
		&((struct scene *)*state)->rig, CKPT_LOG_WARN, "cannot settle step 30"));
}

/* The store as it is now, for whoever reads it. */
static enum ckpt_step_state state_of(struct scene *s, uint64_t step)
{
	struct core_rig reader;

	core_rig_open(&reader, &(struct core_rig_config){.dir = s->dir, .read_only = true});
	const struct ckpt_scan_step *found = ckpt_scan_find(&reader.core.lineage->scan, 1, step);
	assert_non_null(found);
	enum ckpt_step_state state = found->state;
	core_rig_close(&reader);
	return state;
}

/* A record is whole, or there is none. */
static void test_settled_without_memory(void **state)
{
	struct scene *s = *state;
	bool more = true;

	for (size_t n = 1; more; n++) {
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_LIST, .path = "gens", .nth = 2, .hold = true});
		assert_int_equal(core_rig_claim(&s->rig), 0);
		core_rig_count_allocations(&s->rig, n);
		core_rig_let_go(&s->rig);
		more = core_rig_allocations(&s->rig) >= n;
		bool settled = state_of(s, 30) == CKPT_STEP_ABORTED;
		assert_true(settled || state_of(s, 30) == CKPT_STEP_PENDING);
		assert_true(settled || (more && is_there(fixture_shard(&s->dead, 0))));
		(void)tear_down(state);
		(void)set_up(state);
		s = *state;
	}
}

/* Whatever fails, it says so and goes no further; and goes on when it is asked again. */
static void test_bad_disk(void **state)
{
	struct scene *s = *state;
	const struct io_fault_rule rules[] = {
		{.op = CKPT_IO_OP_OPEN, .path = "000005/manifest.json", .error = -EIO},
		{.op = CKPT_IO_OP_UNLINK, .path = "000005/manifest.json", .error = -EIO},
		{.op = CKPT_IO_OP_SYNC_DIR, .path = "000005", .error = -EIO},
		{.op = CKPT_IO_OP_LIST, .path = "000005", .error = -EIO},
		{.op = CKPT_IO_OP_UNLINK, .path = ".safetensors", .error = -EIO},
	};

	for (size_t i = 0; i < CKPT_COUNT(rules); i++) {
		io_fault_clear(&s->rig.fault);
		add(s, rules[i]);
		assert_int_equal(core_rig_remove(&s->rig, 5), -EIO);
		assert_int_equal(s->rig.err.code, -EIO);
		assert_int_equal(s->rig.fault.hits[0], 1);
		assert_true(is_there(fixture_shard(&s->oldest, 0)));
	}
	/* Somebody reads it. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_LOCK, .path = "000010/manifest.json", .error = -EAGAIN});
	assert_int_equal(core_rig_remove(&s->rig, 10), -EBUSY);
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
	assert_false(is_there(fixture_shard(&s->oldest, 0)));
	assert_int_equal(core_rig_remove(&s->rig, 5), CKPT_ENOSTEP);
}

/* What retention cannot remove stays where it is known, and is tried again after the next commit. */
static void test_bad_disk_for_retention(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_UNLINK, .path = "000005/manifest.json", .error = -EIO});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_UNLINK, .path = "000010/manifest.json", .hold = true});
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "retention keeps step 5"));
	assert_true(is_there(fixture_manifest(&s->oldest)));
	/* The next commit comes before the round has ended: it is followed by one more. */
	assert_int_equal(core_rig_save(&s->rig, 50), 0);
	core_rig_let_go(&s->rig);
	assert_int_equal(s->rig.core.stats.steps_removed, 3);
	assert_false(is_there(fixture_manifest(&s->old)));
	assert_false(is_there(fixture_manifest(&s->oldest)));
}

/* Closing waits for the removal that is under way, and for no other. */
static void test_closing_while_retiring(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_UNLINK, .path = "000005/manifest.json", .hold = true});
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	begin_to_close(s);
	core_rig_let_go(&s->rig);
	assert_true(ckpt_latch_get(&s->closer->latch) & CKPT_DONE_END);
	assert_false(is_there(fixture_manifest(&s->oldest)));
	assert_true(is_there(fixture_manifest(&s->old)));
}

static void test_closing_while_settling(void **state)
{
	struct scene *s = *state;

	fixture(s, 20);
	struct fixture_step dead = s->dead;
	dead.step = 20;
	assert_int_equal(unlink(fixture_manifest(&dead)), 0);
	core_rig_close(&s->rig);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .keep_last = 1});
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "step-", .hold = true});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	begin_to_close(s);
	core_rig_let_go(&s->rig);
	assert_true(ckpt_latch_get(&s->closer->latch) & CKPT_DONE_END);
	/* The newest first. */
	assert_false(is_there(fixture_shard(&s->dead, 0)));
	assert_true(is_there(fixture_shard(&dead, 0)));
}

/* A commit that comes while the engine closes lets nothing go any more. */
static void test_committed_while_closing(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_RENAME, .path = "000040/manifest.json", .hold = true});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 40, 1, 1000, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	begin_to_close(s);
	core_rig_let_go(&s->rig);
	assert_true(ckpt_latch_get(&s->closer->latch) & CKPT_DONE_END);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_true(is_there(fixture_manifest(&s->old)));
}

/* The user removes what retention is just about to: both are content, and it counts once. */
static void test_removed_by_user(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000010/manifest.json", .hold = true});
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(core_rig_remove(&s->rig, 10), 0);
	assert_false(is_there(fixture_manifest(&s->old)));
	core_rig_let_go(&s->rig);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_DEBUG, "deleted step 10"));
	assert_int_equal(s->rig.core.stats.steps_removed, 1);
}

/* Each of two removals has seen the step that the other one takes: one must stay. */
static void test_removed_beside_retention(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_UNLINK, .path = "000010/manifest.json", .hold = true});
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_false(is_there(fixture_manifest(&s->oldest)));
	assert_int_equal(core_rig_remove(&s->rig, 40), -EBUSY);
	assert_non_null(strstr(s->rig.err.message, "no other good step is left, or none will be"));
	core_rig_let_go(&s->rig);
	assert_false(is_there(fixture_manifest(&s->old)));
	assert_int_equal(core_rig_remove(&s->rig, 40), -EBUSY);
	assert_non_null(strstr(s->rig.err.message, "no other good step"));
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), 0);
}

/* The user goes back to a step that retention is just about to take: it stays until there is another one. */
static void test_gone_back_to(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_UNLINK, .path = "000005/manifest.json", .hold = true});
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	core_rig_let_go(&s->rig);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_DEBUG, "retention keeps step 10"));
	assert_int_equal(core_rig_remove(&s->rig, 10), -EBUSY);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_remove(&s->rig, 10), -EBUSY);
	assert_int_equal(state_of(s, 10), CKPT_STEP_COMMITTED);
	assert_int_equal(core_rig_save(&s->rig, 50), 0);
	assert_false(is_there(fixture_manifest(&s->old)));
}

static bool goes_on_from(struct scene *s, uint64_t step)
{
	return core_rig_remove(&s->rig, step) == -EBUSY &&
	       strstr(s->rig.err.message, "this process has resumed from step") != NULL;
}

/* What a process goes on from nobody makes it remove before it has something of its own; all else may go. */
static void test_parent_stays(void **state)
{
	struct scene *s = *state;

	assert_true(goes_on_from(s, 10));
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_true(goes_on_from(s, 10));
	/* A step that failed is nothing to fall back to. */
	unsigned broken = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
					 .path = ".safetensors",
					 .count = IO_FAULT_ALWAYS,
					 .error = -ENOSPC});
	assert_int_equal(core_rig_save(&s->rig, 40), -ENOSPC);
	assert_true(s->rig.fault.hits[broken] > 0);
	assert_true(goes_on_from(s, 10));
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
	assert_true(is_there(fixture_manifest(&s->old)));
	io_fault_clear(&s->rig.fault);
	assert_int_equal(core_rig_save(&s->rig, 50), 0);
	assert_false(is_there(fixture_manifest(&s->old)));
}

/* Who goes on from nothing keeps nothing, not even step 0. */
static void test_no_parent(void **state)
{
	struct scene *s = *state;

	core_rig_close(&s->rig);
	struct fixture_step first = fixture(s, 0);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	assert_int_equal(core_rig_remove(&s->rig, 0), 0);
	assert_false(is_there(fixture_manifest(&first)));
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
}

/* The step's directory goes away beneath: that is what was wanted. */
static void test_directory_gone(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_LIST, .path = "step-0000000010", .error = -ENOENT});
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(s->rig.core.stats.steps_removed, 2);
	assert_false(is_there(fixture_manifest(&s->old)));
}

/* Some file systems say it so when a directory is not empty. */
static void test_directory_not_empty(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RMDIR, .error = -EEXIST});
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(s->rig.core.stats.steps_removed, 2);
}

/* A name that no library has made is not removed, whatever its length. */
static void test_strange_file(void **state)
{
	struct scene *s = *state;
	char name[256];
	char path[512];

	memset(name, 'x', 250);
	name[250] = 0;
	const char *beside = fixture_manifest(&s->old);
	(void)snprintf(
		path, sizeof(path), "%.*s/%s", (int)(strrchr(beside, '/') - beside), beside, name);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
	assert_true(fd >= 0);
	(void)close(fd);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(s->rig.core.stats.steps_removed, 2);
	assert_false(is_there(fixture_manifest(&s->old)));
	assert_false(is_there(fixture_shard(&s->old, 0)));
	assert_true(is_there(path));
}

/* A successor has claimed while this one settles: it stops there, whatever else it was to do. */
static void test_fenced_while_settling(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_LIST, .path = "gens", .nth = 2, .hold = true});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	fixture_claim(s->dir, FIXTURE_RUN, 3, 2, 40);
	core_rig_let_go(&s->rig);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "cannot settle step 30"));
	assert_true(s->rig.core.lineage->fenced);
	assert_true(is_there(fixture_shard(&s->dead, 0)));
	assert_true(is_there(fixture_manifest(&s->old)));
	assert_null(s->rig.core.gc);
	assert_int_equal(core_rig_save(&s->rig, 50), CKPT_EFENCED);
	assert_null(scratch_find(s->dir, "step-0000000050"));
}

/* Published before it knew: the step counts, and nothing is removed for it. */
static void test_fenced_while_publishing(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_RENAME, .path = "000040/manifest.json", .hold = true});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 40, 1, 1000, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	fixture_claim(s->dir, FIXTURE_RUN, 3, 2, 10);
	assert_int_equal(core_rig_remove(&s->rig, 5), CKPT_EFENCED);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_true(is_there(fixture_manifest(&s->old)));
}

/* The newest claim is this process's own, on its way: no successor's, and not yet its own either. */
static void test_removed_while_claiming(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "gens", .hold = true});
	assert_int_equal(core_rig_claim(&s->rig), 1);
	assert_int_equal(core_rig_remove(&s->rig, 5), -EBUSY);
	assert_non_null(strstr(s->rig.err.message, "this process is claiming generation"));
	assert_false(s->rig.core.lineage->fenced);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
}

/* A claim that failed may be there all the same: it fences nobody who made it. */
static void test_removed_after_failed_claim(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "gens", .error = -EIO});
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	assert_int_equal(core_rig_remove(&s->rig, 5), -EBUSY);
	assert_false(s->rig.core.lineage->fenced);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
}

/* Who cannot have the memory to ask is told so. */
static void test_no_memory_to_ask(void **state)
{
	struct scene *s = *state;

	core_rig_count_allocations(&s->rig, 1);
	assert_int_equal(core_rig_remove(&s->rig, 5), -ENOMEM);
	(void)core_rig_allocations(&s->rig);
	assert_true(is_there(fixture_manifest(&s->oldest)));
}

/* A claim that is newer than the one this process is just making is a successor's. */
static void test_fenced_while_claiming(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "gens/", .hold = true});
	assert_int_equal(core_rig_claim(&s->rig), 1);
	fixture_claim(s->dir, FIXTURE_RUN, 3, 1, 10);
	assert_int_equal(core_rig_remove(&s->rig, 5), CKPT_EFENCED);
	assert_true(is_there(fixture_manifest(&s->oldest)));
}

/* What a fenced save leaves behind is its successor's to settle: it closes its file, no more. */
static void test_fenced_while_writing(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .hold = true});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 40, 1, 1000, 0);
	/* In a process without standard input its file has that number. */
	int input = dup(STDIN_FILENO);
	assert_int_equal(close(STDIN_FILENO), 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	assert_int_equal(save->object.fd, STDIN_FILENO);
	fixture_claim(s->dir, FIXTURE_RUN, 3, 2, 10);
	assert_int_equal(core_rig_remove(&s->rig, 5), CKPT_EFENCED);
	ckpt_save_post_cancel(save);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_CLOSE, .path = ".safetensors", .hold = true});
	core_rig_let_go(&s->rig);
	/* What is under way is waited for. */
	assert_false(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_GONE);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ECANCELED);
	assert_int_equal(s->rig.fault.tap.open_files, 1);
	assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
	assert_int_equal(close(input), 0);
	assert_non_null(scratch_find(scratch_join(s->dir, "g000002"), ".safetensors"));
	assert_null(scratch_find(scratch_join(s->dir, "g000002"), "manifest.json"));
}

static struct ckpt_command *ask_to_remove(struct scene *s, uint64_t step)
{
	struct ckpt_command *command = ckpt_delete_command_new(&s->rig.core, step);

	ckpt_command_post(command, ckpt_delete_command_body);
	return command;
}

static int answer(struct ckpt_command *command)
{
	assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
	int code = command->result;

	ckpt_command_unref(command);
	return code;
}

/* The last two steps, asked for before either has gone: one of them stays. */
static void test_last_two_asked_for(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	s->rig.core.config.keep_last = 0;
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
	struct ckpt_command *first = ask_to_remove(s, 10);
	struct ckpt_command *second = ask_to_remove(s, 40);
	core_rig_run(&s->rig);
	assert_int_equal(answer(first), 0);
	assert_int_equal(answer(second), -EBUSY);
}

/* What one removal takes is one step, and not every other that is there. */
static void test_removed_beside_another(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	s->rig.core.config.keep_last = 0;
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_UNLINK, .path = "000005/manifest.json", .hold = true});
	struct ckpt_command *first = ask_to_remove(s, 5);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_remove(&s->rig, 10), 0);
	core_rig_let_go(&s->rig);
	assert_int_equal(answer(first), 0);
}

/*
 * On a node whose store could not take its manifest a step is undecided that others hold as committed. After so
 * many more of them nobody may have said so when the stores were opened: then its files stay.
 */
static void test_too_old_to_be_settled(void **state)
{
	struct scene *s = *state;
	struct ckpt_core *core = &s->rig.core;

	settle(s, -EIO);
	io_fault_clear(&s->rig.fault);
	core->config.keep_last = 0;
	for (uint64_t step = 1; step <= CKPT_NODE_STEPS / 2; step++)
		assert_int_equal(core_rig_save(&s->rig, 100 + step), 0);
	/* As the next opening finds it. */
	ckpt_scan_set_state(&core->lineage->scan, 1, 30, CKPT_STEP_PENDING);
	core->config.node_store = true;
	core->config.world = 2;
	ckpt_gc_ask(core, CKPT_GC_SETTLE);
	core_rig_run(&s->rig);
	assert_int_equal(state_of(s, 30), CKPT_STEP_PENDING);
	assert_true(is_there(fixture_shard(&s->dead, 0)));
	/* One less, and it would have been told. */
	ckpt_scan_set_state(
		&core->lineage->scan, core->lineage->generation, 101, CKPT_STEP_ABORTED);
	ckpt_gc_ask(core, CKPT_GC_SETTLE);
	core_rig_run(&s->rig);
	assert_int_equal(state_of(s, 30), CKPT_STEP_ABORTED);
	assert_false(is_there(fixture_shard(&s->dead, 0)));
	core->config.world = 1;
}

/* A store that all share, or that has no other beside it, says itself what was committed: nothing is too old. */
static void test_never_too_old_with_one_store(void **state)
{
	struct scene *s = *state;
	struct ckpt_core *core = &s->rig.core;

	settle(s, -EIO);
	io_fault_clear(&s->rig.fault);
	core->config.keep_last = 0;
	for (uint64_t step = 1; step <= CKPT_NODE_STEPS + 1; step++)
		assert_int_equal(core_rig_save(&s->rig, 100 + step), 0);
	ckpt_scan_set_state(&core->lineage->scan, 1, 30, CKPT_STEP_PENDING);
	core->config.world = 2;
	ckpt_gc_ask(core, CKPT_GC_SETTLE);
	core_rig_run(&s->rig);
	assert_int_equal(state_of(s, 30), CKPT_STEP_ABORTED);
	/* Nor where there is no other node to hold it. */
	assert_int_equal(unlink(fixture_manifest(&s->dead)), 0);
	core->config.world = 1;
	core->config.node_store = true;
	ckpt_scan_set_state(&core->lineage->scan, 1, 30, CKPT_STEP_PENDING);
	ckpt_gc_ask(core, CKPT_GC_SETTLE);
	core_rig_run(&s->rig);
	assert_int_equal(state_of(s, 30), CKPT_STEP_ABORTED);
}

/* Asked for again in the moment in which it is gone: that is no harm. */
static void test_removed_twice(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	s->rig.core.config.keep_last = 0;
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_CLOSE, .hold = true, .count = 8});
	struct ckpt_command *first = ask_to_remove(s, 5);
	core_rig_run(&s->rig);
	assert_false(is_there(fixture_manifest(&s->oldest)));
	assert_false(ckpt_latch_get(&first->latch) & CKPT_DONE_END);
	io_fault_clear(&s->rig.fault);
	while (!(ckpt_latch_get(&first->latch) & CKPT_DONE_END)) {
		assert_true(io_tap_release(&s->rig.fault.tap) > 0);
		struct ckpt_command *second = ask_to_remove(s, 5);
		core_rig_run(&s->rig);
		int code = answer(second);
		assert_true(code == 0 || code == CKPT_ENOSTEP);
	}
	assert_int_equal(answer(first), 0);
}

/* What becomes of a step of another generation is no concern of the one that has its number. */
static void test_same_number(void **state)
{
	struct scene *s = *state;

	/* Step 30 of the dead generation is being settled. */
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
		       .path = "g000001/step-0000000030/manifest.json",
		       .hold = true});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	s->rig.core.config.keep_last = 0;
	assert_int_equal(core_rig_save(&s->rig, 30), 0);
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
	assert_int_equal(core_rig_remove(&s->rig, 10), 0);
	assert_int_equal(core_rig_remove(&s->rig, 40), 0);
}

static void test_same_number_rolled_back(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_adopt(&s->rig, 1, 5), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	unsigned rule = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_UNLINK,
				       .path = "g000001/step-0000000010/manifest.json",
				       .hold = true});
	assert_int_equal(core_rig_save(&s->rig, 10), 0);
	assert_int_equal(s->rig.fault.hits[rule], 1);
	assert_int_equal(core_rig_save(&s->rig, 20), 0);
	assert_int_equal(core_rig_remove(&s->rig, 20), 0);
	core_rig_let_go(&s->rig);
	assert_false(is_there(fixture_manifest(&s->old)));
}

/* The last one there is may go if it is not a good one. */
static void test_bad_one_removed(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(s->rig.core.stats.steps_removed, 2);
	ckpt_scan_set_state(&s->rig.core.lineage->scan, 2, 40, CKPT_STEP_QUARANTINED);
	assert_int_equal(core_rig_remove(&s->rig, 40), 0);
}

/* A step that was rolled back is nothing to go on from: beside it the last one of the lineage stays. */
static void test_last_beside_rolled_back(void **state)
{
	struct scene *s = *state;

	assert_int_equal(core_rig_adopt(&s->rig, 1, 5), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	s->rig.core.config.keep_last = 0;
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_int_equal(core_rig_remove(&s->rig, 5), 0);
	assert_true(is_there(fixture_manifest(&s->old)));
	assert_int_equal(core_rig_remove(&s->rig, 40), -EBUSY);
}

/* The steps that retention counts are those of the lineage as the claim has made it. */
static void test_counted_after_going_back(void **state)
{
	struct scene *s = *state;

	s->rig.core.config.keep_last = 2;
	assert_int_equal(core_rig_adopt(&s->rig, 1, 5), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 40), 0);
	assert_true(is_there(fixture_manifest(&s->oldest)));
	assert_int_equal(core_rig_save(&s->rig, 50), 0);
	assert_false(is_there(fixture_manifest(&s->oldest)));
	assert_false(is_there(fixture_manifest(&s->old)));
}

static void name_first(struct ckpt_manifest *manifest)
{
	manifest->bases[manifest->base_count++] =
		(struct ckpt_base_step){.generation = 1, .step = 5};
}

static void name_two(struct ckpt_manifest *manifest)
{
	name_first(manifest);
	manifest->bases[manifest->base_count++] =
		(struct ckpt_base_step){.generation = 1, .step = 10};
}

/* Steps that are decoded with others go before these, whoever asks, and in one round. */
static void test_needed(void **state)
{
	struct scene s = {.dir = scratch_make_in_memory()};
	struct fixture_step steps[4];

	(void)state;
	fixture_begin(s.dir);
	for (size_t i = 0; i < CKPT_COUNT(steps); i++)
		steps[i] = fixture(&s, 5 * (i + 1));
	fixture_edit(&steps[1], name_first);
	fixture_edit(&steps[2], name_two);
	core_rig_open(&s.rig, &(struct core_rig_config){.dir = s.dir, .keep_last = 1});
	assert_int_equal(core_rig_adopt(&s.rig, 1, 20), 0);
	assert_int_equal(core_rig_claim(&s.rig), 0);
	assert_int_equal(core_rig_remove(&s.rig, 5), -EBUSY);
	assert_int_equal(core_rig_remove(&s.rig, 10), -EBUSY);
	/* 15 cannot go now: neither can what it needs. 20 needs nothing. */
	add(&s, (struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "000015/manifest.json", .error = -EIO});
	assert_int_equal(core_rig_save(&s.rig, 40), 0);
	for (size_t i = 0; i < CKPT_COUNT(steps); i++)
		assert_int_equal(is_there(fixture_manifest(&steps[i])), i < 3);
	io_fault_clear(&s.rig.fault);
	assert_int_equal(core_rig_save(&s.rig, 50), 0);
	for (size_t i = 0; i < CKPT_COUNT(steps); i++)
		assert_false(is_there(fixture_manifest(&steps[i])));
	core_rig_close(&s.rig);
	scratch_remove(s.dir);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_needed),
		SCENE(test_settled),
		SCENE(test_counted_after_going_back),
		SCENE(test_no_fence_to_look_at),
		SCENE(test_settled_by_others),
		SCENE(test_decided_by_others),
		SCENE(test_not_settled),
		SCENE(test_settled_without_memory),
		SCENE(test_bad_disk),
		SCENE(test_bad_disk_for_retention),
		SCENE(test_closing_while_retiring),
		SCENE(test_closing_while_settling),
		SCENE(test_committed_while_closing),
		SCENE(test_removed_after_failed_claim),
		SCENE(test_no_memory_to_ask),
		SCENE(test_removed_by_user),
		SCENE(test_removed_beside_retention),
		SCENE(test_gone_back_to),
		SCENE(test_parent_stays),
		SCENE(test_no_parent),
		SCENE(test_directory_gone),
		SCENE(test_directory_not_empty),
		SCENE(test_strange_file),
		SCENE(test_fenced_while_settling),
		SCENE(test_fenced_while_publishing),
		SCENE(test_removed_while_claiming),
		SCENE(test_fenced_while_claiming),
		SCENE(test_fenced_while_writing),
		SCENE(test_last_two_asked_for),
		SCENE(test_removed_beside_another),
		SCENE(test_removed_twice),
		SCENE(test_too_old_to_be_settled),
		SCENE(test_never_too_old_with_one_store),
		SCENE(test_same_number),
		SCENE(test_same_number_rolled_back),
		SCENE(test_bad_one_removed),
		SCENE(test_last_beside_rolled_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
