/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a save says when it is durable; and, on a disk that hangs, what it is told: that depends on how
 * far its manifest has come.
 */
#include "lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "lib/hang_inbox.h"
#include "lib/rig.h"
#include "lib/scratch.h"

#define BLOCK      UINT32_C(65536)
#define DEADLINE   600000 /* ms; it passes at the test's word */
/* Transfers of a save of one block: the shard, its index, its manifest. */
#define OF_A_SHARD 0
#define OF_A_STEP  2

struct scene {
	char *dir;
	struct rig rig;
	float data[1000];
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct ckpt_claimer claimer = {0};

	s->dir = scratch_make();
	rig_open(&s->rig,
		&(struct rig_config){
			.dir = s->dir, .block_bytes = BLOCK, .slots = CKPT_POOL_SLOTS_MIN});
	assert_int_equal(ckpt_command_init(&claimer.command, &s->rig.core), 0);
	ckpt_command_post(&claimer.command, ckpt_claim_body);
	await_latch(&claimer.command.latch, CKPT_DONE_END);
	assert_int_equal(claimer.command.result, 0);
	ckpt_claimer_clear(&claimer.command);
	ckpt_command_fini(&claimer.command);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	rig_let_go(&s->rig);
	rig_close(&s->rig);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static struct ckpt_save *prepare(struct scene *s, uint64_t step, bool fenced)
{
	const int64_t shape = COUNT(s->data);
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = &shape,
		.data = s->data};
	struct ckpt_plan *cache = NULL;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_save *save = NULL;

	assert_int_equal(ckpt_save_new(&s->rig.core, NULL, step, fenced, DEADLINE, &save), 0);
	assert_int_equal(ckpt_save_put_tensors(save, &tensor, 1, &err), 0);
	assert_int_equal(ckpt_save_prepare(save, &cache, &err), 0);
	return save;
}

static struct ckpt_save *prepare_save(struct scene *s, uint64_t step)
{
	return prepare(s, step, false);
}

/* Posts a save, and waits until the disk holds the transfer after the first `passing`. */
static struct ckpt_save *save_held(struct scene *s, size_t passing)
{
	struct ckpt_save *save = prepare_save(s, 1);

	rig_hold_after(&s->rig, passing);
	ckpt_save_post(save);
	rig_wait_held(&s->rig, 1);
	return save;
}

static void let_go(struct scene *s, struct ckpt_save *save)
{
	rig_let_go(&s->rig);
	await_latch(ckpt_save_latch(save), CKPT_DONE_GONE);
	ckpt_save_unref(save);
}

/* What a save says of itself once it is durable. */
static void test_committed(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = prepare_save(s, 7);

	assert_false(ckpt_save_started(save));
	ckpt_save_post(save);
	assert_true(ckpt_save_started(save));
	await_latch(ckpt_save_latch(save), CKPT_DONE_GONE);
	assert_true(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_LOCAL);
	assert_int_equal(atomic_load(&save->generation), s->rig.core.lineage->generation);
	assert_true(atomic_load(&save->local_ns) >= atomic_load(&save->stage_ns));
	assert_true(atomic_load(&save->stage_ns) > 0);
	assert_int_equal(s->rig.core.stats.last_local_ns, atomic_load(&save->local_ns));
	assert_int_equal(s->rig.core.stats.bytes_staged, atomic_load(&save->bytes));
	assert_true(rig_logged(&s->rig, CKPT_LOG_INFO, "step 7 is durable in"));
	ckpt_save_unref(save);
	save = prepare_save(s, 8);
	ckpt_save_post(save);
	await_latch(ckpt_save_latch(save), CKPT_DONE_GONE);
	assert_false(rig_logged(&s->rig, CKPT_LOG_WARN, ""));
	ckpt_save_unref(save);
}

/* The engine is closing: nothing begins any more. */
static void test_closing(void **state)
{
	struct scene *s = *state;
	struct rig_block block;

	rig_block_post(&s->rig, &block);
	rig_block_wait(&block);
	struct ckpt_save *save = prepare_save(s, 1);
	s->rig.core.closing = true;
	ckpt_save_post(save);
	rig_block_end(&block);
	await_latch(ckpt_save_latch(save), CKPT_DONE_GONE);
	assert_int_equal(ckpt_save_failure(save)->code, CKPT_ECLOSED);
	assert_null(scratch_find(s->dir, "step-0000000001"));
	ckpt_save_unref(save);
}

/* Nobody comes to open its gate: it is closed until the deadline ends the save, and then there is none. */
static void test_gate_never_opened(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = prepare(s, 1, true);

	ckpt_save_post(save);
	await_latch(ckpt_save_latch(save), CKPT_DONE_STAGED);
	assert_true(ckpt_save_gate_closed(save));
	rig_pass(&s->rig, DEADLINE);
	await_latch(ckpt_save_latch(save), CKPT_DONE_GONE);
	assert_int_equal(ckpt_save_failure(save)->code, -ETIMEDOUT);
	assert_false(ckpt_save_gate_closed(save));
	ckpt_save_unref(save);
}

/* Nothing names its files yet: the deadline ends it. */
static void test_deadline_before_publishing(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = save_held(s, OF_A_SHARD);

	rig_pass(&s->rig, DEADLINE);
	await_latch(ckpt_save_latch(save), CKPT_DONE_END);
	assert_int_equal(ckpt_save_failure(save)->code, -ETIMEDOUT);
	let_go(s, save);
	assert_null(scratch_find(s->dir, ".safetensors"));
}

/*
 * The manifest is on its way, and will arrive: no cancel and no verdict says otherwise, and the deadline
 * that nothing is known. What was answered stays, and so does the step.
 */
static void test_deadline_while_publishing(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = save_held(s, OF_A_STEP);
	struct ckpt_error verdict = {.size = sizeof(verdict)};

	ckpt_error_clear(&verdict);
	(void)ckpt_fail(&verdict, CKPT_ETORN, "somebody saw a change");
	ckpt_save_post_failure(save, &verdict);
	ckpt_save_post_cancel(save);
	rig_pass(&s->rig, DEADLINE);
	await_latch(ckpt_save_latch(save), CKPT_DONE_END);
	assert_int_equal(ckpt_save_failure(save)->code, -ETIMEDOUT);
	assert_non_null(strstr(ckpt_save_failure(save)->message, "not known"));
	assert_int_equal(s->rig.core.stats.saves_failed, 1);
	rig_let_go(&s->rig);
	await_latch(ckpt_save_latch(save), CKPT_DONE_GONE);
	assert_int_equal(ckpt_save_failure(save)->code, -ETIMEDOUT);
	assert_false(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_LOCAL);
	assert_true(rig_logged(&s->rig, CKPT_LOG_INFO, "had been reported as failed"));
	assert_int_equal(s->rig.core.stats.saves_failed, 0);
	assert_int_equal(s->rig.core.stats.saves_committed, 1);
	ckpt_save_unref(save);
	assert_non_null(scratch_find(s->dir, "manifest.json"));
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

/* Takes the temporary of a manifest that is being published away. */
static void steal_manifest(const struct scene *s)
{
	char *step = strdup(scratch_join(s->dir, "g000001/step-0000000001"));
	unsigned stolen = 0;
	DIR *d = opendir(step);

	assert_non_null(d);
	for (const struct dirent *e; (e = readdir(d));)
		if (strncmp(e->d_name, "manifest.json", strlen("manifest.json")) == 0)
			stolen += unlink(scratch_join(step, e->d_name)) == 0;
	(void)closedir(d);
	free(step);
	assert_int_equal(stolen, 1);
}

static bool holds(const char *path, const char *text)
{
	char data[1000] = "";
	FILE *f = fopen(path, "r");

	assert_non_null(f);
	size_t n = fread(data, 1, sizeof(data) - 1, f);
	(void)fclose(f);
	return n > 0 && strstr(data, text) != NULL;
}

/* It does not win in the end: the log says so, and the record says why there is no such step. */
static void test_deadline_and_not_published(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = save_held(s, OF_A_STEP);

	rig_pass(&s->rig, DEADLINE);
	await_latch(ckpt_save_latch(save), CKPT_DONE_END);
	assert_int_equal(ckpt_save_failure(save)->code, -ETIMEDOUT);
	steal_manifest(s);
	let_go(s, save);
	assert_true(rig_logged(&s->rig, CKPT_LOG_WARN, "answered at last"));
	assert_true(holds(scratch_find(s->dir, "manifest.json"), "and publishing failed"));
	assert_null(scratch_find(s->dir, ".safetensors"));
	assert_int_equal(s->rig.core.stats.saves_failed, 1);
	assert_int_equal(s->rig.core.stats.saves_committed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_committed),
		SCENE(test_closing),
		SCENE(test_gate_never_opened),
		SCENE(test_deadline_before_publishing),
		SCENE(test_deadline_while_publishing),
		SCENE(test_deadline_and_not_published),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
