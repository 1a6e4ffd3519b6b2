/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing a step of a bucket while requests are lost on their way, or stay there for long: none of them meets what
 * is there after the tombstone has gone.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/lineage/open.h"
#include "lib/bucket_core.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define BYTES 60000
#define BLOCK 8192
#define STEP  10
#define S_NS  UINT64_C(1000000000)

#define DIRECTORY "g000001/step-0000000010"
#define TOMBSTONE DIRECTORY ".tombstone"
#define MANIFEST  DIRECTORY "/manifest.json"

struct scene {
	char *dir;
	struct bucket_core b;
	struct fixture_step step;
	/* What happens to requests to remove a file of the step, from this one on; the first is 1. */
	struct fault_rule fault;
	unsigned first;
	unsigned deletions; /* that have arrived */
	bool slow;          /* the manifest is not taken yet */
	unsigned manifests;
};

static const struct fault_rule slow_down = {
	.kind = FAULT_ANSWER, .times = 1, .status = 503, .code = "SlowDown", .retry_after_s = 100};

static bool removes_file(const struct s3_request *asked)
{
	return strcmp(asked->method, "DELETE") == 0 && strstr(asked->key, DIRECTORY "/") &&
	       !pairs_get(&asked->query, "uploadId");
}

static struct fault_rule judge(void *user, const struct s3_request *asked)
{
	struct scene *s = user;
	struct fault_rule rule = {.kind = FAULT_NONE};

	if (strcmp(asked->method, "PUT") == 0 && strstr(asked->key, MANIFEST)) {
		s->manifests++;
		return s->slow ? slow_down : rule;
	}
	if (!removes_file(asked))
		return rule;
	s->deletions++;
	if (s->first == 0 || s->deletions < s->first)
		return rule;
	rule = s->fault;
	if (s->fault.times > 0 && s->deletions >= s->first + s->fault.times)
		rule.kind = FAULT_NONE;
	return rule;
}

static struct ckpt_restore *begin_copy(struct scene *s)
{
	const struct ckpt_core_place place = {
		.root = -1, .bucket = &s->b.client, .label = "the bucket"};
	struct ckpt_restore *r = NULL;

	assert_int_equal(ckpt_restore_new(&s->b.rig.core, NULL, STEP, CKPT_SINK_STORE, &r), 0);
	assert_int_equal(ckpt_restore_set_dest(r, &place), 0);
	ckpt_restore_post_open(r);
	bucket_core_run(&s->b);
	return r;
}

/* What is to be copied there. */
static int set_up_copy(void **state)
{
	struct scene *s = need(sizeof(*s));

	s->dir = scratch_make_in_memory();
	fixture_begin(s->dir);
	s->step = fixture_one(s->dir, fixture_bytes(BYTES));
	s->step.chunk_bytes = BLOCK / 2;
	fixture_commit(&s->step);
	bucket_core_begin(&s->b);
	s->b.http.judge = judge;
	s->b.http.user = s;
	bucket_core_open(&s->b, s->dir, BLOCK, false);
	*state = s;
	return 0;
}

static int set_up(void **state)
{
	(void)set_up_copy(state);
	struct scene *s = *state;

	assert_int_equal(core_rig_end(&s->b.rig, begin_copy(s)), 0);
	bucket_core_close(&s->b);
	bucket_core_open(&s->b, s->dir, BLOCK, true);
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	bucket_core_close(&s->b);
	bucket_core_end(&s->b);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static bool is_there(struct scene *s, const char *path)
{
	return bucket_core_there(&s->b, path) != NULL;
}

static struct ckpt_command *begin(struct scene *s, enum ckpt_two_phase_delete_act act)
{
	struct ckpt_command *c = ckpt_two_phase_command_new(&s->b.rig.core);

	assert_non_null(c);
	struct ckpt_two_phase_delete *two_phase =
		&CKPT_CONTAINER(c, struct ckpt_two_phase_command, command)->two_phase;
	two_phase->act = act;
	two_phase->newest = 1;
	two_phase->generation = 1;
	two_phase->step = STEP;
	ckpt_command_post(c, ckpt_two_phase_command_body);
	bucket_core_now(&s->b);
	return c;
}

static bool has_ended(struct ckpt_command *c)
{
	return ckpt_latch_get(&c->latch) & CKPT_DONE_END;
}

static void sleep_for(struct scene *s, uint64_t ms)
{
	core_rig_sleep(&s->b.rig, ms);
	bucket_core_now(&s->b);
}

/* Within ten minutes; the code. */
static int end(struct scene *s, struct ckpt_command *c)
{
	for (unsigned i = 0; i < 12000 && !has_ended(c); i++)
		sleep_for(s, 50);
	assert_true(has_ended(c));
	int code = c->result;
	s->b.rig.err = c->error;
	ckpt_command_unref(c);
	return code;
}

static int bury(struct scene *s, enum ckpt_two_phase_delete_act act)
{
	return end(s, begin(s, act));
}

static void test_whole(void **state)
{
	struct scene *s = *state;

	assert_true(is_there(s, MANIFEST));
	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_MARK), 0);
	assert_true(is_there(s, TOMBSTONE));
	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_REMOVE), 0);
	assert_false(is_there(s, TOMBSTONE));
	/* Manifest, index, shard. */
	assert_int_equal(s->deletions, 3);
}

/*
 * A request hangs, of whatever file; it is made again, and that one is done. The first may be carried out when somebody has sent
 * the step again: so the tombstone, without which nobody does, stays until that is over.
 */
static void hang(void **state, unsigned first, enum fault_kind kind)
{
	(void)set_up(state);
	struct scene *s = *state;

	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_MARK), 0);
	s->first = first;
	s->fault = (struct fault_rule){.kind = kind, .times = 1, .delay_ms = 300000};
	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_REMOVE), -EAGAIN);
	assert_true(is_there(s, TOMBSTONE));
	assert_false(is_there(s, MANIFEST));
	assert_non_null(s->b.front.late);
	sleep_for(s, CKPT_TWO_PHASE_DELETE_GRACE_S * 1000);
	assert_null(s->b.front.late);
	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_REMOVE), 0);
	assert_false(is_there(s, TOMBSTONE));
	(void)tear_down(state);
}

static void test_done_at_the_second_try(void **state)
{
	for (unsigned first = 1; first <= 3; first++) {
		hang(state, first, FAULT_LATE);
		/* The HTTP client has sent it twice. */
		hang(state, first, FAULT_TWICE);
	}
}

/* What the server has refused is not done later. */
static void test_refused_at_first(void **state)
{
	struct scene *s = *state;

	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_MARK), 0);
	s->first = 1;
	s->fault = (struct fault_rule){
		.kind = FAULT_ANSWER, .times = 2, .status = 503, .code = "SlowDown"};
	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_REMOVE), 0);
	assert_false(is_there(s, TOMBSTONE));
	assert_int_equal(s->deletions, 5);
}

/* A try of a removal, or of a publication, is far off; the process stands still, or the machine is suspended, for half an hour. */
static void stand_still(struct scene *s, bool suspended)
{
	if (suspended)
		s->b.rig.suspended_ns += 2000 * S_NS;
	else
		s->b.rig.now_ns += 2000 * S_NS;
}

static void remove_late(void **state, unsigned first, bool suspended)
{
	(void)set_up(state);
	struct scene *s = *state;

	assert_int_equal(bury(s, CKPT_TWO_PHASE_DELETE_MARK), 0);
	s->first = first;
	s->fault = slow_down;
	struct ckpt_command *c = begin(s, CKPT_TWO_PHASE_DELETE_REMOVE);
	bucket_core_run(&s->b);
	assert_false(has_ended(c));
	assert_int_equal(s->deletions, first);
	stand_still(s, suspended);
	assert_int_equal(end(s, c), -ETIMEDOUT);
	assert_int_equal(s->deletions, first);
	assert_true(is_there(s, TOMBSTONE));
	assert_int_equal(is_there(s, MANIFEST), first == 1);
	(void)tear_down(state);
}

static void test_removed_too_late(void **state)
{
	for (unsigned first = 1; first <= 3; first++) {
		remove_late(state, first, false);
		remove_late(state, first, true);
	}
}

static void copy_late(void **state, bool suspended)
{
	(void)set_up_copy(state);
	struct scene *s = *state;

	s->slow = true;
	struct ckpt_restore *r = begin_copy(s);
	assert_int_equal(s->manifests, 1);
	s->slow = false;
	stand_still(s, suspended);
	for (unsigned i = 0; i < 12000 && !(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
		i++)
		sleep_for(s, 50);
	assert_int_equal(core_rig_end(&s->b.rig, r), -ETIMEDOUT);
	assert_int_equal(s->manifests, 1);
	assert_false(is_there(s, MANIFEST));
	assert_int_equal(core_rig_end(&s->b.rig, begin_copy(s)), 0);
	assert_true(is_there(s, MANIFEST));
	(void)tear_down(state);
}

static void test_copied_too_late(void **state)
{
	copy_late(state, false);
	copy_late(state, true);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_whole),
		cmocka_unit_test(test_done_at_the_second_try),
		SCENE(test_refused_at_first),
		cmocka_unit_test(test_removed_too_late),
		cmocka_unit_test(test_copied_too_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
