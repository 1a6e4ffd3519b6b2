/* SPDX-License-Identifier: Apache-2.0 */
/* The disk is full while steps wait for a remote store that does not take them: what goes, what stays, who is told. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/core_rig.h"
#include "lib/scratch.h"

#define LAST   4 /* that is saved before the disk is full */
#define MINUTE UINT64_C(60000)

struct scene {
	char *dir;
	char local[512];
	char remote[512];
	struct core_rig rig;
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	assert_int_equal(mkdir(s->local, 0777), 0);
	assert_int_equal(mkdir(s->remote, 0777), 0);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

static bool has(const char *store, uint64_t step)
{
	char path[700];

	(void)snprintf(path, sizeof(path), "%s/g000001/step-%010llu/manifest.json", store,
		(unsigned long long)step);
	return access(path, F_OK) == 0;
}

/* A tombstone is looked for there alone: nothing can be sent. */
static void block(struct scene *s)
{
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.path = "tombstone", .count = IO_FAULT_ALWAYS, .error = -EIO});
}

/* Steps 1 to LAST are here, and none of them is there. */
static void open_blocked(struct scene *s, uint64_t keep_last)
{
	core_rig_open(
		&s->rig, &(struct core_rig_config){
				 .dir = s->local, .remote = s->remote, .keep_last = keep_last});
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_sleep(&s->rig, MINUTE);
	block(s);
	for (uint64_t step = 1; step <= LAST; step++)
		assert_int_equal(core_rig_save(&s->rig, step), 0);
	core_rig_sleep(&s->rig, MINUTE);
	for (uint64_t step = 1; step <= LAST; step++)
		assert_true(has(s->local, step));
	assert_false(has(s->remote, 1));
}

/* A save that finds no room; then room is what retention makes. */
static void fill(struct scene *s, uint64_t step, int error)
{
	unsigned rule =
		io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE,
						    .path = ".safetensors",
						    .count = 1,
						    .error = error});

	assert_int_equal(core_rig_save(&s->rig, step), error);
	assert_int_equal(s->rig.fault.hits[rule], 1);
	core_rig_sleep(&s->rig, 1000);
}

static void test_retention_goes_on(void **state)
{
	static const int errors[] = {-ENOSPC, -EDQUOT};
	struct scene *s = *state;

	for (size_t i = 0; i < COUNT(errors); i++) {
		open_blocked(s, 2);
		fill(s, 5, errors[i]);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR,
			"retention removes what it would have removed without it"));
		for (uint64_t step = 1; step <= LAST; step++)
			assert_int_equal(has(s->local, step), step > LAST - 2);
		assert_int_equal(core_rig_read(&s->rig, LAST, CKPT_SINK_NONE), 0);
		/* Until the next save finds it full, what is not there stays again. */
		assert_int_equal(core_rig_save(&s->rig, 6), 0);
		assert_int_equal(core_rig_save(&s->rig, 7), 0);
		core_rig_sleep(&s->rig, MINUTE);
		assert_true(has(s->local, 3) && has(s->local, 4) && has(s->local, 6));
		/* What has gone is told, and does not keep the others from there. */
		io_fault_clear(&s->rig.fault);
		core_rig_sleep(&s->rig, 10 * MINUTE);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "step 1 of"));
		assert_int_equal(s->rig.core.stats.uploads_failed, LAST - 2);
		assert_int_equal(s->rig.core.stats.uploads_done, 4);
		assert_false(has(s->remote, 1) || has(s->remote, 2));
		assert_true(has(s->remote, 3) && has(s->remote, 4) && has(s->remote, 6) &&
			    has(s->remote, 7));
		/* And retention does its work: of what is here two stay. */
		assert_int_equal(has(s->local, 4) || has(s->local, 3), false);
		assert_true(has(s->local, 6) && has(s->local, 7));
		core_rig_close(&s->rig);
		scratch_remove(s->dir);
		free(s);
		(void)set_up(state);
		s = *state;
	}
}

/* Where retention removes nothing the save fails, and so does the next; nothing that is there is touched. */
static void test_nothing_may_go(void **state)
{
	struct scene *s = *state;

	open_blocked(s, 0);
	for (unsigned i = 0; i < 2; i++) {
		fill(s, 5 + i, -ENOSPC);
		for (uint64_t step = 1; step <= LAST; step++)
			assert_true(has(s->local, step));
		io_fault_clear(&s->rig.fault);
		block(s);
	}
	assert_int_equal(core_rig_read(&s->rig, LAST, CKPT_SINK_NONE), 0);
	io_fault_clear(&s->rig.fault);
	core_rig_sleep(&s->rig, 10 * MINUTE);
	assert_int_equal(s->rig.core.stats.uploads_done, LAST);
	assert_int_equal(s->rig.core.stats.uploads_failed, 0);
	core_rig_close(&s->rig);
}

/* Another failure than a full disk is no reason to let go of what is nowhere else. */
static void test_only_a_full_disk(void **state)
{
	struct scene *s = *state;

	open_blocked(s, 1);
	fill(s, 5, -EIO);
	for (uint64_t step = 1; step <= LAST; step++)
		assert_true(has(s->local, step));
	core_rig_close(&s->rig);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_retention_goes_on),
		SCENE(test_nothing_may_go),
		SCENE(test_only_a_full_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
