/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is in the remote directory already, though nobody here knows it: it is looked at, and made durable. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/core_scene.h"

#define MINUTE UINT64_C(60000)

/* What this store knows of the remote one. */
static void forget(struct core_tiers *s)
{
	char path[700];

	for (unsigned number = 1; number <= 64; number++) {
		(void)snprintf(path, sizeof(path), "%s/remote-%010u.json", s->local, number);
		(void)unlink(path);
	}
}

static void open_job(struct core_tiers *s)
{
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->local, .remote = s->remote});
	core_rig_run(&s->rig);
}

/* Whoever sent it may have died before the name of its manifest was on the disk. */
static void test_it_is_made_durable(void **state)
{
	struct core_tiers *s = *state;

	open_job(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, MINUTE);
	assert_int_equal(s->rig.core.stats.uploads_done, 1);
	core_rig_close(&s->rig);
	forget(s);
	s->rig = (struct core_rig){0};
	core_rig_make(&s->rig, &(struct core_rig_config){.dir = s->local, .remote = s->remote});
	/* It is looked at before anything is claimed, or written here. */
	unsigned rule = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_SYNC_DIR, .path = "step-0000000001", .error = -EIO});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	core_rig_sleep(&s->rig, 10 * MINUTE);
	assert_int_equal(s->rig.fault.hits[rule], 1);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "cannot sync"));
	assert_int_equal(s->rig.core.stats.uploads_done, 1);
	assert_int_equal(s->rig.core.stats.uploads_failed, 0);
	core_rig_close(&s->rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_it_is_made_durable, core_tiers_set_up, core_tiers_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
