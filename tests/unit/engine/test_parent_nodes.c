/* SPDX-License-Identifier: Apache-2.0 */
/* What a job goes back to, of nodes that have a store each: its parts come into the remote store one by one. */
#include "remote_scene.h"

#include "lib/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

static bool is_committed(const struct fixture_step *step)
{
	return access(fixture_manifest(step), F_OK) == 0;
}

static void leave_to_node(struct ckpt_manifest *manifest)
{
	(void)snprintf(manifest->ranks[1].node, sizeof(manifest->ranks[1].node), "far");
}

static void move(const char *from, const char *to)
{
	assert_int_equal(rename(from, to), 0);
}

/* A step of two nodes, of which this one has its part; the other's is put aside. */
static void fixture_half(
	struct scene *s, struct fixture_step *step, const struct ckpt_tensor *tensor)
{
	fixture_node_store(s->local, FIXTURE_RUN);
	fixture_claim(s->local, FIXTURE_RUN, 1, 0, 0);
	*step = (struct fixture_step){.dir = s->local,
		.generation = 1,
		.step = 1,
		.chunk_bytes = 4096,
		.tensors = tensor,
		.count = 1,
		.world = 2};
	fixture_commit(step);
	fixture_edit(step, leave_to_node);
	move(fixture_shard(step, 1), scratch_join(s->dir, "shard"));
	move(fixture_index(step, 1), scratch_join(s->dir, "index"));
}

/* The job goes back to a step that another node sends late, after a newer one: that is waited for. */
static void test_parent_of_two_nodes(void **state)
{
	static const int64_t shape[] = {100};
	static float numbers[100];
	const struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = shape,
		.data = numbers};
	struct scene *s = *state;
	struct fixture_step newer = {.generation = 2, .step = 2};
	struct fixture_step step;
	struct core_rig rig;

	fixture_half(s, &step, &tensor);
	core_rig_make(&rig, &(struct core_rig_config){.dir = s->local, .remote = s->remote});
	(void)io_fault_add(&rig.fault,
		(struct io_fault_rule){
			.path = CKPT_NAME_MARKER CKPT_STORE_TEMP, .nth = 1, .hold = true});
	assert_int_equal(core_rig_open_store(&rig), 0);
	/* Somebody else is at work from now on; but the newer step needs nobody. */
	rig.core.config.world = 2;
	core_rig_let_go(&rig);
	assert_int_equal(core_rig_adopt(&rig, 1, 1), 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	rig.core.config.world = 1;
	assert_int_equal(core_rig_save(&rig, 2), 0);
	rig.core.config.world = 2;
	core_rig_sleep(&rig, MINUTE_MS);
	step.dir = s->remote;
	newer.dir = s->remote;
	assert_true(is_committed(&newer) && waits(&rig) && !is_committed(&step));
	move(scratch_join(s->dir, "shard"), fixture_shard(&step, 1));
	move(scratch_join(s->dir, "index"), fixture_index(&step, 1));
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(!waits(&rig) && is_committed(&step));
	core_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_parent_of_two_nodes, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
