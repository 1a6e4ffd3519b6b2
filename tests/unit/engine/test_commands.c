/* SPDX-License-Identifier: Apache-2.0 */
/* The small commands: pins, each once however often it was asked for; and what closing stops. */
#include "lib/test.h"

#include <errno.h>
#include <string.h>

#include "engine/runtime/commands.h"
#include "lib/core_scene.h"

static int set_up(void **state)
{
	(void)core_scene_set_up(state);
	struct core_scene *s = *state;

	fixture_store(s->dir, FIXTURE_RUN);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	return 0;
}

static int set_pin(struct core_scene *s, uint64_t step, bool pin, size_t fail_at)
{
	struct ckpt_command *command =
		ckpt_command_new(&s->rig.core, sizeof(struct ckpt_pinner), NULL);
	struct ckpt_pinner *pinner = CKPT_CONTAINER(command, struct ckpt_pinner, command);

	pinner->step = step;
	pinner->pin = pin;
	core_rig_count_allocations(&s->rig, fail_at);
	ckpt_command_post(command, ckpt_pinner_body);
	core_rig_run(&s->rig);
	(void)core_rig_allocations(&s->rig);
	assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
	int r = command->result;
	assert_int_equal(command->error.code, r);
	ckpt_command_unref(command);
	return r;
}

static void pin(struct core_scene *s, uint64_t step)
{
	assert_int_equal(set_pin(s, step, true, 0), 0);
}

static void unpin(struct core_scene *s, uint64_t step)
{
	assert_int_equal(set_pin(s, step, false, 0), 0);
}

/* These and no others, each once. */
static void assert_pins(struct core_scene *s, const uint64_t *steps, size_t count)
{
	const struct ckpt_core *core = &s->rig.core;

	assert_int_equal(core->pin_count, count);
	for (size_t i = 0; i < count; i++) {
		size_t found = 0;
		for (size_t at = 0; at < core->pin_count; at++)
			found += core->pins[at] == steps[i];
		assert_int_equal(found, 1);
	}
}

#define PINS(s, ...)                                                                               \
	assert_pins(s, (const uint64_t[]){__VA_ARGS__},                                            \
		sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void test_pins(void **state)
{
	struct core_scene *s = *state;

	unpin(s, 7);
	assert_pins(s, NULL, 0);
	pin(s, 7);
	pin(s, 8);
	pin(s, 9);
	PINS(s, 7, 8, 9);
	/* Once more is once. */
	pin(s, 7);
	pin(s, 9);
	PINS(s, 7, 8, 9);
	/* One that is not pinned takes no other with it. */
	unpin(s, 10);
	PINS(s, 7, 8, 9);
	unpin(s, 8);
	PINS(s, 7, 9);
	unpin(s, 8);
	PINS(s, 7, 9);
	unpin(s, 9);
	PINS(s, 7);
	unpin(s, 7);
	assert_pins(s, NULL, 0);
	pin(s, 7);
	PINS(s, 7);
}

static void test_pins_without_memory(void **state)
{
	struct core_scene *s = *state;

	pin(s, 7);
	assert_int_equal(set_pin(s, 8, true, 1), -ENOMEM);
	PINS(s, 7);
	/* What is pinned already needs none, nor what goes. */
	assert_int_equal(set_pin(s, 7, true, 1), 0);
	assert_int_equal(set_pin(s, 7, false, 1), 0);
	assert_pins(s, NULL, 0);
}

static int end_closer(struct core_scene *s, struct ckpt_command *closer)
{
	core_rig_let_go(&s->rig);
	assert_true(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	int r = closer->result;
	ckpt_command_unref(closer);
	return r;
}

/* Whoever closes does not want to wait for what is not durable yet. */
static void test_closing_stops_a_save(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_command *closer;

	s->rig.hold_jobs = true;
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 100, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	closer = ckpt_command_new(&s->rig.core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(closer, ckpt_closer_body);
	core_rig_run(&s->rig);
	assert_int_equal(end_closer(s, closer), 0);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ECANCELED);
	assert_non_null(strstr(s->rig.err.message, "closed before step 1 was durable"));
}

/* What may be durable already is known only when it has been: its answer is waited for. */
static void test_closing_lets_a_manifest_through(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_command *closer;

	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "manifest.json", .hold = true});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 100, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	closer = ckpt_command_new(&s->rig.core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(closer, ckpt_closer_body);
	core_rig_run(&s->rig);
	assert_false(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	assert_int_equal(end_closer(s, closer), 0);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, core_scene_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_pins),
		SCENE(test_pins_without_memory),
		SCENE(test_closing_stops_a_save),
		SCENE(test_closing_lets_a_manifest_through),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
