/* SPDX-License-Identifier: Apache-2.0 */
/* Retention in the remote store, by the engine that uploads there. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/copy/remote_gc.h"
#include "engine/copy/upload_queue.h"
#include "engine/lineage/lineage.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "remote_scene.h"

/* The newest stay, and every third; the others are marked, stay for a grace, and go. */
static void test_keeps(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 2, 3);
	assert_int_equal(core_rig_claim(&rig), 0);
	core_rig_sleep(&rig, MINUTE_MS);
	save(&rig, 1, 6);
	core_rig_sleep(&rig, MINUTE_MS);
	for (uint64_t step = 1; step <= 6; step++) {
		assert_true(is_there(s, step));
		assert_int_equal(is_marked(s, step), step < 5 && step != 3);
	}
	assert_int_equal(rig.core.remote_gc->seen_tombstones.count, 3);
	core_rig_sleep(&rig, MINUTE_MS - 2000);
	assert_true(is_there(s, 1));
	core_rig_sleep(&rig, 4000);
	for (uint64_t step = 1; step <= 6; step++) {
		assert_int_equal(is_there(s, step), step >= 5 || step == 3);
		assert_int_equal(has(s, 1, step, ""), step >= 5 || step == 3);
		assert_false(is_marked(s, step));
	}
	assert_int_equal(rig.core.stats.remote_steps_removed, 3);
	/* What is here stays here. */
	assert_int_equal(ckpt_lineage_count(&rig.core.lineage->scan), 6);
	core_rig_close(&rig);
	assert_int_equal(verify(s), 3);
}

/* What was removed there is not sent again, though it is here; what would be kept is. */
static void test_is_not_sent_again(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 2, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 5);
	core_rig_sleep(&rig, 3 * MINUTE_MS);
	core_rig_sleep(&rig, 3 * MINUTE_MS);
	core_rig_close(&rig);
	assert_int_equal(verify(s), 2);
	char path[600];
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000005", s->remote);
	scratch_remove(strdup(path));
	open_job(s, &rig, 2, 0);
	core_rig_sleep(&rig, MINUTE_MS);
	/* Of two that are to stay only one was there: the third is newer than it. */
	assert_true(is_there(s, 5) && is_there(s, 4) && is_there(s, 1));
	resume(&rig, 5);
	for (int i = 0; i < 3; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	core_rig_close(&rig);
	assert_int_equal(verify(s), 2);
	open_job(s, &rig, 2, 0);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(core_rig_logged(&rig, CKPT_LOG_INFO, "is not sent: retention in"));
	assert_false(is_there(s, 1));
	core_rig_close(&rig);
}

/* A job that ends in the grace leaves its marks to the next, which waits for a grace of its own, twice. */
static void test_goes_on(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1) && is_marked(s, 2) && !is_marked(s, 3));
	core_rig_close(&rig);
	open_job(s, &rig, 1, 0);
	rig.random = 1000;
	resume(&rig, 3);
	core_rig_sleep(&rig, MINUTE_MS / 2);
	assert_true(is_there(s, 1) && is_there(s, 2));
	for (int i = 0; i < 25; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_false(is_there(s, 1) || is_there(s, 2) || is_marked(s, 1) || is_marked(s, 2));
	assert_true(is_there(s, 3));
	core_rig_close(&rig);
	assert_int_equal(verify(s), 1);
}

/* What a later start keeps is unmarked. */
static void test_stays_after_all(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1) && is_marked(s, 2));
	core_rig_close(&rig);
	open_job(s, &rig, 5, 0);
	resume(&rig, 3);
	rig.random = 1000;
	for (int i = 0; i < 25; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_false(is_marked(s, 1) || is_marked(s, 2));
	core_rig_close(&rig);
	assert_int_equal(verify(s), 3);
}

/* A job that has been taken over, and knows it by the claim there alone, removes nothing more. */
static void test_fenced(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1));
	scratch_put(s->remote, "/gens/000002.json", "{}");
	core_rig_sleep(&rig, 2 * MINUTE_MS);
	core_rig_sleep(&rig, 2 * MINUTE_MS);
	assert_true(is_there(s, 1) && is_there(s, 2) && is_there(s, 3));
	assert_true(core_rig_logged(&rig, CKPT_LOG_ERROR, "nothing is removed from"));
	core_rig_close(&rig);
}

/* The next look at the tombstone of a step, at a time when it is looked at, lasts. */
static void hold_look(struct core_rig *rig, uint64_t step)
{
	static char path[64];

	(void)snprintf(path, sizeof(path), "step-%010llu.tombstone", (unsigned long long)step);
	(void)io_fault_add(
		&rig->fault, (struct io_fault_rule){.path = path, .nth = 1, .hold = true});
}

/* The job goes back to a step that is being removed: it stays, and retention goes on by the new lineage. */
static void go_back(void **state, bool claimed)
{
	struct core_rig rig;
	(void)set_up(state);
	struct scene *s = *state;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1) && is_marked(s, 2));
	hold_look(&rig, 1);
	core_rig_sleep(&rig, MINUTE_MS);
	if (claimed)
		resume(&rig, 1);
	else
		assert_int_equal(core_rig_adopt(&rig, 1, 1), 0);
	core_rig_let_go(&rig);
	assert_true(is_there(s, 1));
	if (!claimed)
		assert_int_equal(core_rig_claim(&rig), 0);
	for (int i = 0; i < 5; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && !is_marked(s, 1));
	assert_int_equal(core_rig_save(&rig, 4), 0);
	for (int i = 0; i < 5; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(has(s, 2, 4, "/manifest.json"));
	assert_false(is_there(s, 1) || is_there(s, 2) || is_there(s, 3));
	core_rig_close(&rig);
	assert_int_equal(verify(s), 1);
	(void)tear_down(state);
}

static void test_goes_back(void **state)
{
	go_back(state, false);
	go_back(state, true);
}

/* A request to remove a manifest fails, and is carried out later all the same: the mark stays until it must have been. */
static void test_removed_belatedly(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	char path[700];

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1));
	unsigned rule = io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_UNLINK,
							 .path = "0000000001/manifest.json",
							 .nth = 1,
							 .count = 1,
							 .error = -EIO});
	core_rig_sleep(&rig, MINUTE_MS);
	assert_int_equal(rig.fault.hits[rule], 1);
	resume(&rig, 1);
	for (int i = 0; i < 10; i++)
		core_rig_sleep(&rig, 4000);
	assert_true(is_there(s, 1) && is_marked(s, 1));
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000001/manifest.json", s->remote);
	assert_int_equal(unlink(path), 0);
	for (int i = 0; i < 20; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && !is_marked(s, 1));
	core_rig_close(&rig);
	read_there(s, 1);
}

/* The same of a removal that has succeeded at the second try: the step is not sent again before. */
static void test_removed_twice(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	(void)io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_UNLINK,
					       .path = ".index",
					       .nth = 1,
					       .count = 1,
					       .error = -EIO});
	core_rig_sleep(&rig, MINUTE_MS);
	assert_false(is_there(s, 1));
	resume(&rig, 1);
	for (int i = 0; i < 10; i++)
		core_rig_sleep(&rig, 4000);
	assert_true(is_marked(s, 1) && !is_there(s, 1));
	for (int i = 0; i < 20; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && !is_marked(s, 1));
	core_rig_close(&rig);
	read_there(s, 1);
}

/* From now on the nth list of the claims there lasts: the first is of a look at everything, the second of an act. */
static void hold_claims(struct core_rig *rig, unsigned nth)
{
	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_LIST, .path = "gens", .nth = nth, .hold = true});
}

/* A claim of somebody else that comes while it looks: it marks nothing. */
static void test_fenced_before_it_marks(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	/* Of a look the claims come before the manifests. */
	hold(&rig, "0000000001/manifest.json", 1);
	core_rig_sleep(&rig, MINUTE_MS);
	scratch_put(s->remote, "/gens/000002.json", "{}");
	core_rig_let_go(&rig);
	assert_false(is_marked(s, 1) || is_marked(s, 2));
	assert_true(core_rig_logged(&rig, CKPT_LOG_ERROR, "nothing is removed from"));
	core_rig_close(&rig);
}

/* The job goes on from another step when a mark is about to be put. */
static void test_goes_back_before_it_marks(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	hold_claims(&rig, 2);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_int_equal(core_rig_adopt(&rig, 1, 1), 0);
	core_rig_let_go(&rig);
	assert_false(is_marked(s, 1) || is_marked(s, 2));
	core_rig_close(&rig);
}

/* The job goes back to a step that is marked: it takes the mark away as soon as it may, and not after a grace. */
static void test_goes_back_to_what_is_marked(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1) && is_marked(s, 2));
	resume(&rig, 1);
	assert_false(is_marked(s, 1));
	core_rig_sleep(&rig, 4000);
	assert_true(is_there(s, 1) && !waits(&rig));
	core_rig_close(&rig);
}

/* It has seen somebody else's mark, and that has gone when it looks at it: the step is not marked anew. */
static void test_only_watches(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	struct core_rig other;

	open_job(s, &rig, 5, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	open_other(s, &other);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	hold(&rig, "0000000001.tombstone", 1);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_UNMARK, 1, 1), 0);
	core_rig_let_go(&rig);
	assert_false(is_marked(s, 1));
	core_rig_close(&other);
	core_rig_close(&rig);
}

/* A manifest that cannot be read once says nothing of the step: its mark stays, and it goes at the next look. */
static void test_is_not_read_once(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1));
	unsigned rule = io_fault_add(
		&rig.fault, (struct io_fault_rule){
				    .path = "0000000001/manifest.json", .nth = 1, .error = -EIO});
	core_rig_sleep(&rig, MINUTE_MS);
	assert_int_equal(rig.fault.hits[rule], 1);
	assert_true(is_there(s, 1) && is_marked(s, 1));
	core_rig_sleep(&rig, MINUTE_MS);
	assert_false(is_there(s, 1) || is_marked(s, 1));
	core_rig_close(&rig);
}

/* A step that is pinned at the last moment stays. */
static void test_pinned_at_last(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 2);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_marked(s, 1));
	hold_claims(&rig, 2);
	core_rig_sleep(&rig, MINUTE_MS);
	rig.core.pins = ckpt_alloc_array(1, sizeof(*rig.core.pins));
	rig.core.pins[rig.core.pin_count++] = 1;
	core_rig_let_go(&rig);
	assert_true(is_there(s, 1));
	for (int i = 0; i < 3; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && !is_marked(s, 1));
	core_rig_close(&rig);
}

/* A step that is read, and so stays for now, is not looked at every second. */
static void test_in_use(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	struct core_rig reader;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 2);
	core_rig_sleep(&rig, MINUTE_MS);
	open_other(s, &reader);
	struct ckpt_restore *restore = core_rig_begin(&reader, 1, CKPT_SINK_MEMORY, NULL);
	core_rig_await(&reader, restore);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && is_marked(s, 1));
	/* Of each look at everything. */
	unsigned rule = io_fault_add(
		&rig.fault, (struct io_fault_rule){.path = "g000001", .nth = 1u << 30});
	for (int i = 0; i < 20; i++)
		core_rig_sleep(&rig, 2000);
	assert_int_equal(rig.fault.seen[rule], 0);
	(void)core_rig_end(&reader, restore);
	core_rig_close(&reader);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_false(is_there(s, 1) || is_marked(s, 1));
	core_rig_close(&rig);
}

/* A mark that was taken over stays for a grace, whatever is done about others meanwhile. */
static void test_taken_over(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	core_rig_close(&rig);
	open_job(s, &rig, 5, 0);
	rig.random = 1000;
	hold_look(&rig, 2);
	resume(&rig, 3);
	/* The second is seen two seconds after the first. */
	core_rig_sleep(&rig, 2000);
	core_rig_let_go(&rig);
	assert_int_equal(rig.core.remote_gc->seen_tombstones.count, 2);
	core_rig_sleep(&rig, OTHERS_MS - 2000);
	core_rig_sleep(&rig, 2000);
	assert_true(rig.core.remote_gc->seen_tombstones.items[0].mine);
	assert_true(rig.core.remote_gc->seen_tombstones.items[1].mine);
	core_rig_sleep(&rig, OTHERS_MS - 4000);
	assert_true(is_marked(s, 1) && is_marked(s, 2));
	for (int i = 0; i < 3; i++)
		core_rig_sleep(&rig, 4000);
	assert_false(is_marked(s, 1) || is_marked(s, 2));
	core_rig_close(&rig);
	assert_int_equal(verify(s), 3);
}

/* A step that is pinned while others are being removed stays. */
static void test_pinned_meanwhile(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	hold_look(&rig, 1);
	core_rig_sleep(&rig, MINUTE_MS);
	rig.core.pins = ckpt_alloc_array(1, sizeof(*rig.core.pins));
	rig.core.pins[rig.core.pin_count++] = 2;
	core_rig_let_go(&rig);
	assert_false(is_there(s, 1));
	assert_true(is_there(s, 2) && !is_marked(s, 2));
	core_rig_close(&rig);
	assert_int_equal(verify(s), 2);
}

/* Every request of it in turn fails; then it is done when it is tried again, and saves know nothing of it. */
static bool fail_once(void **state, unsigned at)
{
	struct core_rig rig;
	(void)set_up(state);
	struct scene *s = *state;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 2);
	/* The first look may have been at once. */
	unsigned rule = io_fault_add(&rig.fault, (struct io_fault_rule){.nth = at, .error = -EIO});
	for (int i = 0; i < 25; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	bool hit = rig.fault.hits[rule] > 0;
	assert_false(is_there(s, 1) || is_marked(s, 1) || has(s, 1, 1, ""));
	assert_true(is_there(s, 2));
	assert_int_equal(rig.core.stats.remote_steps_removed, 1);
	io_fault_clear(&rig.fault);
	assert_int_equal(core_rig_save(&rig, 3), 0);
	core_rig_close(&rig);
	assert_int_equal(verify(s), 2);
	(void)tear_down(state);
	return hit;
}

static void test_tried_again(void **state)
{
	unsigned at = 1;

	while (fail_once(state, at))
		at++;
	assert_true(at > 20);
}

/* What is not whole there though newer steps are goes, too. */
static void test_what_was_left(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	char path[600];

	(void)snprintf(path, sizeof(path), "%s/g000001", s->remote);
	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 5, 6);
	scratch_put(s->remote, "/g000001/step-0000000006/rank-00009.x.safetensors", "more");
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000002", s->remote);
	assert_int_equal(mkdir(path, 0777), 0);
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000009", s->remote);
	assert_int_equal(mkdir(path, 0777), 0);
	scratch_put(s->remote, "/g000001/step-0000000002/rank-00001.x.safetensors", "left");
	scratch_put(s->remote, "/g000001/step-0000000009/rank-00001.x.safetensors", "under way");
	for (int i = 0; i < 4; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_false(has(s, 1, 2, "") || has(s, 1, 5, ""));
	assert_true(is_there(s, 6) && has(s, 1, 9, "/rank-00001.x.safetensors"));
	core_rig_close(&rig);
}

/* Without remote_keep_last nothing goes, nor of another rank than 0. */
static void test_is_asked_for(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 0, 0);
	assert_null(rig.core.remote_gc);
	core_rig_close(&rig);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_keeps),
		SCENE(test_is_not_sent_again),
		SCENE(test_goes_on),
		SCENE(test_stays_after_all),
		SCENE(test_fenced),
		cmocka_unit_test(test_goes_back),
		SCENE(test_removed_belatedly),
		SCENE(test_removed_twice),
		SCENE(test_fenced_before_it_marks),
		SCENE(test_goes_back_before_it_marks),
		SCENE(test_goes_back_to_what_is_marked),
		SCENE(test_only_watches),
		SCENE(test_is_not_read_once),
		SCENE(test_pinned_at_last),
		SCENE(test_in_use),
		SCENE(test_taken_over),
		SCENE(test_pinned_meanwhile),
		cmocka_unit_test(test_tried_again),
		SCENE(test_what_was_left),
		SCENE(test_is_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
