/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing a step of the remote store: cut short anywhere, and followed by an upload, it leaves no step that is not
 * whole.
 */
#include "remote_scene.h"

#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/scratch.h"

#define STEPS    3
#define GRACE_MS (2 * CKPT_TWO_PHASE_DELETE_GRACE_S * 1000)

static void open_local(struct scene *s, struct core_rig *rig)
{
	core_rig_open(rig, &(struct core_rig_config){.dir = s->local, .remote = s->remote});
	core_rig_run(rig);
}

static void open_remote(struct scene *s, struct core_rig *rig)
{
	core_rig_open(rig, &(struct core_rig_config){.dir = s->remote, .read_only = true});
}

static int set_up_steps(void **state)
{
	struct core_rig rig;

	(void)set_up(state);
	open_local(*state, &rig);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, STEPS);
	core_rig_close(&rig);
	return 0;
}

static const char *there(const struct scene *s, const char *name)
{
	static char path[700];

	(void)snprintf(path, sizeof(path), "%s/g000001/step-000000000%s", s->remote, name);
	return path;
}

/* As a job that is started again. */
static void upload(struct scene *s)
{
	struct core_rig rig;

	open_local(s, &rig);
	core_rig_sleep(&rig, 120000);
	core_rig_close(&rig);
}

static void remove_there(struct scene *s, const char *suffix)
{
	char directory[700];
	(void)snprintf(directory, sizeof(directory), "%s", there(s, "1"));
	const char *path = scratch_find(directory, suffix);

	assert_non_null(path);
	assert_int_equal(unlink(path), 0);
}

/* What another one has marked is taken over first. */
static int bury(struct core_rig *rig)
{
	int r = core_rig_bury(rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 1);

	if (r == 0)
		r = core_rig_bury(rig, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1);
	return r == -EAGAIN ? core_rig_bury(rig, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1) : r;
}

static void test_whole(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	assert_int_equal(verify(s), STEPS);
	open_remote(s, &rig);
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EBUSY);
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	assert_true(has(s, 1, 1, ".tombstone"));
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_UNMARK, 1, 1), 0);
	assert_false(has(s, 1, 1, ".tombstone"));
	assert_int_equal(verify(s), STEPS);
	assert_int_equal(bury(&rig), 0);
	assert_false(has(s, 1, 1, ""));
	assert_false(has(s, 1, 1, ".tombstone"));
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS - 1);
}

/* Every request in turn fails: not carried out, or carried out and its answer lost. */
static bool cut(void **state, unsigned at, bool late)
{
	struct core_rig rig;
	(void)set_up_steps(state);
	struct scene *s = *state;

	open_remote(s, &rig);
	unsigned rule = io_fault_add(
		&rig.fault, (struct io_fault_rule){.nth = at, .error = -EIO, .late = late});
	int r = bury(&rig);
	bool hit = rig.fault.hits[rule] > 0;
	core_rig_close(&rig);

	size_t left = verify(s);
	bool gone = !has(s, 1, 1, "/manifest.json");
	bool marked = has(s, 1, 1, ".tombstone");
	assert_int_equal(left, gone ? STEPS - 1 : STEPS);
	if (r == 0 && !hit)
		assert_true(gone && !marked && !has(s, 1, 1, ""));
	/* While it goes nobody brings it back. */
	upload(s);
	assert_int_equal(verify(s), gone && marked ? STEPS - 1 : STEPS);
	open_remote(s, &rig);
	assert_int_equal(bury(&rig), 0);
	core_rig_close(&rig);
	assert_false(has(s, 1, 1, "") || has(s, 1, 1, ".tombstone"));
	assert_int_equal(verify(s), STEPS - 1);
	upload(s);
	assert_int_equal(verify(s), STEPS);
	(void)tear_down(state);
	return hit;
}

static void test_cut_short(void **state)
{
	for (int late = 0; late < 2; late++) {
		unsigned at = 1;
		while (cut(state, at, late))
			at++;
		/* Tombstone, manifest, index, shard, directory, and what makes each of them last. */
		assert_true(at > 12);
	}
}

/* Opened with numbers of its own. */
static void open_another(struct scene *s, struct core_rig *rig)
{
	open_remote(s, rig);
	rig->random = 1000;
}

/* One removes a step at a time. Who comes second leaves it to the first, or takes it over, and waits once more. */
static void test_two(void **state)
{
	struct scene *s = *state;
	struct core_rig first;
	struct core_rig second;

	open_remote(s, &first);
	open_another(s, &second);
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	/* Not one that he has not looked at. */
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EBUSY);
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EAGAIN);
	assert_true(has(s, 1, 1, ".tombstone") && has(s, 1, 1, "/manifest.json"));
	/* The first was slow, and finds that out. */
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EBUSY);
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_UNMARK, 1, 2), 0);
	assert_true(has(s, 1, 1, ".tombstone") && has(s, 1, 1, "/manifest.json"));
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), 0);
	assert_false(has(s, 1, 1, "") || has(s, 1, 1, ".tombstone"));
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EBUSY);
	core_rig_close(&second);
	core_rig_close(&first);
	assert_int_equal(verify(s), STEPS - 1);
}

/* One keeps what the other removes: whose mark it is decides, until it has not changed for a grace. */
static void test_two_who_differ(void **state)
{
	struct scene *s = *state;
	struct core_rig first;
	struct core_rig second;

	open_remote(s, &first);
	open_another(s, &second);
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_UNMARK, 1, 1), -EBUSY);
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_UNMARK, 1, 1), -EAGAIN);
	assert_true(has(s, 1, 1, ".tombstone"));
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_UNMARK, 1, 1), 0);
	assert_false(has(s, 1, 1, ".tombstone"));
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EBUSY);
	core_rig_close(&second);
	core_rig_close(&first);
	assert_int_equal(verify(s), STEPS);
}

static void read_stone(const struct scene *s, char *ret_text, size_t room)
{
	FILE *file = fopen(there(s, "1.tombstone"), "re");

	assert_non_null(file);
	ret_text[fread(ret_text, 1, room - 1, file)] = 0;
	assert_int_equal(fclose(file), 0);
}

/* Two would take over, and one of them is slow: he does not by what he saw before. */
static void test_taken_over_meanwhile(void **state)
{
	struct scene *s = *state;
	struct core_rig first;
	struct core_rig second;
	struct core_rig slow;
	char his[1000];
	char now[1000];

	open_remote(s, &first);
	open_another(s, &second);
	open_another(s, &slow);
	slow.random = 2000;
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	assert_int_equal(core_rig_bury(&slow, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	(void)io_fault_add(
		&slow.fault, (struct io_fault_rule){.path = "gens", .nth = 1, .hold_answer = true});
	assert_int_equal(core_rig_bury(&slow, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), 1);
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EAGAIN);
	read_stone(s, his, sizeof(his));
	core_rig_sleep(&slow, GRACE_MS);
	core_rig_let_go(&slow);
	read_stone(s, now, sizeof(now));
	assert_string_equal(now, his);
	assert_int_equal(core_rig_bury(&second, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), 0);
	core_rig_close(&slow);
	core_rig_close(&second);
	core_rig_close(&first);
	assert_int_equal(verify(s), STEPS - 1);
}

/* One that is taken over is there all the while, whatever fails. */
static void test_taken_over_at_once(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	for (int late = 0; late < 2; late++) {
		open_remote(s, &rig);
		assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
		core_rig_close(&rig);
		open_another(s, &rig);
		assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
		(void)io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						       .path = "1.tombstone",
						       .error = -EIO,
						       .late = late});
		assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EIO);
		assert_true(has(s, 1, 1, ".tombstone") && has(s, 1, 1, "/manifest.json"));
		core_rig_close(&rig);
	}
}

/*
 * A second one takes over while the first stands between two of its requests, ends, and the step is uploaded
 * again: the first one touches nothing of that.
 */
static void stand_still(void **state, const char *at, bool begun)
{
	struct core_rig first;
	struct core_rig second;
	(void)set_up_steps(state);
	struct scene *s = *state;

	open_remote(s, &first);
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	if (begun)
		remove_there(s, "manifest.json");
	(void)io_fault_add(
		&first.fault, (struct io_fault_rule){.path = at, .nth = 1, .hold = true});
	assert_int_equal(core_rig_bury(&first, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), 1);
	open_another(s, &second);
	assert_int_equal(bury(&second), 0);
	core_rig_close(&second);
	assert_false(has(s, 1, 1, "") || has(s, 1, 1, ".tombstone"));
	upload(s);
	assert_int_equal(verify(s), STEPS);
	core_rig_sleep(&first, GRACE_MS);
	core_rig_let_go(&first);
	core_rig_close(&first);
	assert_int_equal(verify(s), STEPS);
	(void)tear_down(state);
}

static void test_overtaken(void **state)
{
	/* The requests that it stands at read, and change nothing. */
	stand_still(state, "1.tombstone", false);
	stand_still(state, "1/manifest.json", false);
	/* On one machine nobody takes over what is locked. */
	stand_still(state, "gens", true);
}

/* The catalogs of a generation go with its last step, when there is a later generation. */
static void test_catalogs(void **state)
{
	static const char catalog[] = "/g000001/00112233445566778899aabbccddeeff.catalog";
	struct scene *s = *state;
	struct core_rig rig;
	char path[700];

	(void)snprintf(path, sizeof(path), "%s%s", s->remote, catalog);
	scratch_put(s->remote, catalog, "");
	open_local(s, &rig);
	struct ckpt_restore *restore = core_rig_begin(&rig, 3, CKPT_SINK_MEMORY, NULL);
	core_rig_await(&rig, restore);
	(void)core_rig_end(&rig, restore);
	assert_int_equal(core_rig_adopt(&rig, 1, 3), 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	assert_int_equal(core_rig_save(&rig, 4), 0);
	core_rig_run(&rig);
	core_rig_close(&rig);
	open_remote(s, &rig);
	for (uint64_t step = 1; step <= STEPS; step++) {
		assert_int_equal(access(path, F_OK), 0);
		assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, step), 0);
		assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_REMOVE, 1, step), 0);
	}
	assert_int_equal(access(path, F_OK), -1);
	core_rig_close(&rig);
}

/* An index that has outlived its shard is not taken for one. */
static void test_an_index_alone(void **state)
{
	struct scene *s = *state;

	remove_there(s, "manifest.json");
	remove_there(s, ".safetensors");
	upload(s);
	assert_int_equal(verify(s), STEPS);
}

/* The process stands still for longer than a grace, or the whole machine. */
static void let_pass(struct core_rig *rig, bool suspended)
{
	if (suspended)
		rig->suspended_ns += GRACE_MS * UINT64_C(1000000);
	else
		core_rig_sleep(rig, GRACE_MS);
}

static void begin_upload(struct scene *s, struct core_rig *rig)
{
	remove_there(s, "manifest.json");
	core_rig_make(rig, &(struct core_rig_config){.dir = s->local, .remote = s->remote});
	/* All that is there has been looked at; before the manifest the tombstone is looked for once more. */
	(void)io_fault_add(
		&rig->fault, (struct io_fault_rule){.path = "1.tombstone", .nth = 2, .hold = true});
	assert_int_equal(core_rig_open_store(rig), 0);
	core_rig_run(rig);
	assert_false(has(s, 1, 1, "/manifest.json"));
}

/* What was there when the upload began is gone when it would publish. */
static void test_gone_meanwhile(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	begin_upload(s, &rig);
	remove_there(s, ".safetensors");
	core_rig_let_go(&rig);
	assert_false(has(s, 1, 1, "/manifest.json"));
	core_rig_sleep(&rig, 60000);
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS);
}

/* It has looked at all, and stands still before it publishes, for so long that the step has been removed meanwhile. */
static void removed_meanwhile(void **state, bool suspended)
{
	struct core_rig rig;
	(void)set_up_steps(state);
	struct scene *s = *state;

	begin_upload(s, &rig);
	(void)io_fault_add(
		&rig.fault, (struct io_fault_rule){
				    .op = CKPT_IO_OP_LIST, .path = "gens", .nth = 1, .hold = true});
	core_rig_let_go(&rig);
	remove_there(s, ".index");
	remove_there(s, ".safetensors");
	let_pass(&rig, suspended);
	core_rig_let_go(&rig);
	assert_false(has(s, 1, 1, "/manifest.json"));
	core_rig_sleep(&rig, GRACE_MS);
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS);
	(void)tear_down(state);
}

static void test_removed_meanwhile(void **state)
{
	removed_meanwhile(state, false);
	removed_meanwhile(state, true);
}

/* It stands still between its last look and its publication, which in a directory is of several requests; or the machine is suspended. */
static void publish_late(void **state, bool suspended)
{
	struct core_rig rig;
	(void)set_up_steps(state);
	struct scene *s = *state;

	begin_upload(s, &rig);
	(void)io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC,
					       .path = "manifest.json" CKPT_STORE_TEMP,
					       .nth = 1,
					       .hold = true});
	core_rig_let_go(&rig);
	assert_false(has(s, 1, 1, "/manifest.json"));
	remove_there(s, ".index");
	remove_there(s, ".safetensors");
	let_pass(&rig, suspended);
	core_rig_let_go(&rig);
	assert_false(has(s, 1, 1, "/manifest.json"));
	core_rig_sleep(&rig, 120000);
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS);
	(void)tear_down(state);
}

static void test_published_too_late(void **state)
{
	publish_late(state, false);
	publish_late(state, true);
}

/* Each list of the step lasts for so long. */
static void list_slowly(struct core_rig *rig, unsigned count, uint64_t ms)
{
	(void)io_fault_add(&rig->fault, (struct io_fault_rule){.op = CKPT_IO_OP_LIST,
						.path = "step-0000000001",
						.nth = 1,
						.count = IO_FAULT_ALWAYS,
						.hold_answer = true});
	core_rig_let_go(rig);
	while (count-- > 0) {
		core_rig_sleep(rig, ms);
		core_rig_let_go(rig);
	}
}

/* What a list says that took more than a minute is good as long as there is no tombstone before it, nor after. */
static void test_listed_slowly(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	begin_upload(s, &rig);
	list_slowly(&rig, 1, 70000);
	assert_true(has(s, 1, 1, "/manifest.json"));
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS);
}

/* And one that comes after: the removal has begun meanwhile. */
static void test_going_when_listed(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	begin_upload(s, &rig);
	list_slowly(&rig, 0, 0);
	scratch_put(s->remote, "/g000001/step-0000000001.tombstone", "");
	core_rig_sleep(&rig, 70000);
	core_rig_let_go(&rig);
	core_rig_sleep(&rig, 60000);
	assert_false(has(s, 1, 1, "/manifest.json"));
	core_rig_close(&rig);
}

/* One that takes longer still says nothing: that is tried again as what fails, with pauses. */
static void test_listed_too_slowly(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	begin_upload(s, &rig);
	list_slowly(&rig, 3, 400000);
	assert_false(has(s, 1, 1, "/manifest.json"));
	assert_true(core_rig_logged(&rig, CKPT_LOG_ERROR, "takes too long"));
	io_fault_clear(&rig.fault);
	core_rig_let_go(&rig);
	core_rig_sleep(&rig, 60000);
	assert_true(has(s, 1, 1, "/manifest.json"));
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS);
}

/* A removal that has begun meanwhile. */
static void test_going_meanwhile(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	begin_upload(s, &rig);
	scratch_put(s->remote, "/g000001/step-0000000001.tombstone", "");
	core_rig_let_go(&rig);
	core_rig_sleep(&rig, 60000);
	assert_false(has(s, 1, 1, "/manifest.json"));
	assert_true(core_rig_logged(&rig, CKPT_LOG_INFO, "is being removed from"));
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS - 1);
}

/* One that is read just now, on this machine, stays; and so does all of a store that a live process holds. */
static void test_in_use(void **state)
{
	struct scene *s = *state;
	struct core_rig reader;
	struct core_rig rig;

	open_remote(s, &reader);
	open_remote(s, &rig);
	struct ckpt_restore *restore = core_rig_begin(&reader, 1, CKPT_SINK_MEMORY, NULL);
	core_rig_await(&reader, restore);
	assert_int_equal(bury(&rig), -EBUSY);
	(void)core_rig_end(&reader, restore);
	assert_int_equal(bury(&rig), 0);
	core_rig_close(&rig);
	core_rig_close(&reader);
	assert_int_equal(verify(s), STEPS - 1);

	core_rig_open(&reader, &(struct core_rig_config){.dir = s->remote});
	open_remote(s, &rig);
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 2), CKPT_EINUSE);
	assert_false(has(s, 1, 2, ".tombstone"));
	core_rig_close(&rig);
	core_rig_close(&reader);
}

/* Who has taken the store since it was opened holds it as well. */
static void test_held_since(void **state)
{
	struct scene *s = *state;
	struct core_rig holder;
	struct core_rig rig;

	open_remote(s, &rig);
	core_rig_open(&holder, &(struct core_rig_config){.dir = s->remote});
	assert_int_equal(core_rig_adopt(&holder, 1, 3), 0);
	assert_int_equal(core_rig_claim(&holder), 0);
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 2), CKPT_EINUSE);
	assert_false(has(s, 1, 2, ".tombstone"));
	core_rig_close(&holder);
	/* Nor is anything marked by what was there before it came. */
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 2), CKPT_EFENCED);
	assert_false(has(s, 1, 2, ".tombstone"));
	rig.listed = 2;
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 2), 0);
	core_rig_close(&rig);
}

/* The first job of all comes between the opening and the list. */
static void test_no_claim_was_there(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	char claims[600];
	char aside[600];

	(void)snprintf(claims, sizeof(claims), "%s/gens", s->remote);
	(void)snprintf(aside, sizeof(aside), "%s/aside", s->dir);
	assert_int_equal(rename(claims, aside), 0);
	open_remote(s, &rig);
	assert_int_equal(rename(aside, claims), 0);
	assert_int_equal(bury(&rig), CKPT_EFENCED);
	rig.listed = 1;
	assert_int_equal(bury(&rig), 0);
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS - 1);
}

/* A job goes back to a step that is to go: its claim is seen just before the removal, however old the list is. */
static void test_claimed_since(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_remote(s, &rig);
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	scratch_put(s->remote, "/gens/000002.json", "{}");
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), CKPT_EFENCED);
	assert_true(has(s, 1, 1, "/manifest.json"));
	/* The list is new, and the claim comes while the removal begins. */
	rig.listed = 2;
	(void)io_fault_add(
		&rig.fault, (struct io_fault_rule){.path = "gens", .nth = 1, .hold = true});
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), 1);
	scratch_put(s->remote, "/gens/000003.json", "{}");
	core_rig_let_go(&rig);
	assert_true(has(s, 1, 1, "/manifest.json") && has(s, 1, 1, ".tombstone"));
	core_rig_close(&rig);
}

/* A copy that stands still when it has sent all, before its last look. */
static struct ckpt_restore *begin_copy(struct scene *s, struct core_rig *rig)
{
	(void)io_fault_add(&rig->fault, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR,
						.path = "step-0000000001",
						.nth = 1,
						.hold = true});
	struct ckpt_restore *restore = core_rig_begin(rig, 1, CKPT_SINK_STORE, s->remote);
	core_rig_await(rig, restore);
	ckpt_restore_post_start(restore);
	core_rig_run(rig);
	return restore;
}

/* Nothing is written into what is being removed. */
static void test_no_copy_into_it(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_remote(s, &rig);
	assert_int_equal(core_rig_bury(&rig, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	core_rig_close(&rig);
	core_rig_open(&rig, &(struct core_rig_config){.dir = s->local, .read_only = true});
	/* As long as it is whole it is not said to be there, either. */
	assert_int_equal(core_rig_export(&rig, 1, s->remote), -EBUSY);
	assert_int_equal(core_rig_export(&rig, 2, s->remote), 0);
	remove_there(s, "manifest.json");
	assert_int_equal(core_rig_export(&rig, 1, s->remote), -EBUSY);
	core_rig_close(&rig);
}

/* Another copy was quicker, where no lock keeps it away, and what it has put there is marked already. */
static void test_no_copy_of_anothers(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	remove_there(s, "manifest.json");
	core_rig_open(&rig, &(struct core_rig_config){.dir = s->local, .read_only = true});
	(void)io_fault_add(&rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = "gens", .error = -ENOLCK});
	struct ckpt_restore *restore = begin_copy(s, &rig);
	(void)io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
					       .path = "1/manifest.json",
					       .nth = 1,
					       .hold = true});
	core_rig_let_go(&rig);
	upload(s);
	assert_true(has(s, 1, 1, "/manifest.json"));
	scratch_put(s->remote, "/g000001/step-0000000001.tombstone", "");
	core_rig_let_go(&rig);
	assert_int_equal(core_rig_end(&rig, restore), -EBUSY);
	core_rig_close(&rig);
	assert_int_equal(verify(s), STEPS);
}

/* A removal begins, or ends, meanwhile. */
static void copy_late(void **state, bool begun)
{
	struct core_rig rig;
	(void)set_up_steps(state);
	struct scene *s = *state;

	remove_there(s, "manifest.json");
	core_rig_open(&rig, &(struct core_rig_config){.dir = s->local, .read_only = true});
	struct ckpt_restore *restore = begin_copy(s, &rig);
	if (begun)
		scratch_put(s->remote, "/g000001/step-0000000001.tombstone", "");
	else
		remove_there(s, ".safetensors");
	core_rig_let_go(&rig);
	assert_int_equal(core_rig_end(&rig, restore), -EBUSY);
	assert_false(has(s, 1, 1, "/manifest.json"));
	core_rig_close(&rig);
	(void)tear_down(state);
}

static void test_no_copy_of_what_goes(void **state)
{
	copy_late(state, true);
	copy_late(state, false);
}

/* It has found all that it has sent, and hears that when the step has been removed, and its tombstone. */
static void test_no_copy_by_an_old_look(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	remove_there(s, "manifest.json");
	core_rig_open(&rig, &(struct core_rig_config){.dir = s->local, .read_only = true});
	struct ckpt_restore *restore = begin_copy(s, &rig);
	unsigned rule = io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_LIST,
							 .path = "step-0000000001",
							 .nth = 1,
							 .hold_answer = true});
	core_rig_let_go(&rig);
	assert_int_equal(rig.fault.hits[rule], 1);
	remove_there(s, ".index");
	remove_there(s, ".safetensors");
	core_rig_sleep(&rig, 120000);
	core_rig_let_go(&rig);
	assert_int_equal(core_rig_end(&rig, restore), -EBUSY);
	assert_false(has(s, 1, 1, "/manifest.json"));
	core_rig_close(&rig);
}

/* Each list takes longer than what it says may be gone by: that ends. */
static void test_no_copy_without_end(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	remove_there(s, "manifest.json");
	core_rig_open(&rig, &(struct core_rig_config){.dir = s->local, .read_only = true});
	struct ckpt_restore *restore = begin_copy(s, &rig);
	(void)io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_LIST,
					       .path = "step-0000000001",
					       .nth = 1,
					       .count = IO_FAULT_ALWAYS,
					       .hold_answer = true});
	core_rig_let_go(&rig);
	for (int i = 0; i < 10; i++) {
		core_rig_sleep(&rig, 70000);
		core_rig_let_go(&rig);
	}
	assert_int_equal(core_rig_end(&rig, restore), -ETIMEDOUT);
	assert_false(has(s, 1, 1, "/manifest.json"));
	core_rig_close(&rig);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up_steps, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_whole),
		cmocka_unit_test(test_cut_short),
		SCENE(test_two),
		SCENE(test_two_who_differ),
		SCENE(test_taken_over_meanwhile),
		SCENE(test_taken_over_at_once),
		cmocka_unit_test(test_overtaken),
		SCENE(test_catalogs),
		SCENE(test_an_index_alone),
		SCENE(test_gone_meanwhile),
		cmocka_unit_test(test_removed_meanwhile),
		cmocka_unit_test(test_published_too_late),
		SCENE(test_listed_slowly),
		SCENE(test_going_when_listed),
		SCENE(test_listed_too_slowly),
		SCENE(test_going_meanwhile),
		SCENE(test_in_use),
		SCENE(test_held_since),
		SCENE(test_no_claim_was_there),
		SCENE(test_claimed_since),
		SCENE(test_no_copy_into_it),
		SCENE(test_no_copy_of_anothers),
		cmocka_unit_test(test_no_copy_of_what_goes),
		SCENE(test_no_copy_by_an_old_look),
		SCENE(test_no_copy_without_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
