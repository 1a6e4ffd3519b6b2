/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restore that is cancelled, or whose engine closes, while a server has stopped answering: whatever it was asked
 * last, all is over at once. No time passes, and the same again comes to its end.
 */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/restore/restore_state.h"
#include "engine/runtime/commands.h"
#include "lib/bucket_core.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define BYTES 60000
#define BLOCK 8192
#define NEVER UINT_MAX

#define MANIFEST "g000001/step-0000000010/manifest.json"

/* What becomes of the step. */
enum way {
	WAY_INTO, /* the bucket */
	WAY_OUT,  /* of it */
	WAY_MEMORY,
	WAY_VERIFY,
	WAYS,
};

struct scene {
	char *dir;
	char out[512];
	struct bucket_core b;
	unsigned asked;
	/* Requests from this one on; the first is 1. */
	unsigned hangs_at;
	enum fault_kind how; /* STALL; or ANSWER: there is another try */
	struct fixture_step step;
	unsigned aborted; /* uploads, by their names */
	bool let_go;      /* of the shard, before that */
	char memory[BYTES];
};

/* Whether nobody is at its shard, as far as locks say. */
static bool is_free(struct scene *s)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int fd = open(fixture_shard(&s->step, 0), O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	bool free = fcntl(fd, F_OFD_SETLK, &lock) == 0;
	(void)close(fd);
	return free;
}

static struct fault_rule judge(void *user, const struct s3_request *asked)
{
	struct scene *s = user;
	struct fault_rule rule = {.kind = FAULT_NONE};

	if (strcmp(asked->method, "DELETE") == 0 && pairs_get(&asked->query, "uploadId")) {
		s->aborted++;
		s->let_go = s->let_go || is_free(s);
	}
	if (++s->asked >= s->hangs_at)
		rule = (struct fault_rule){.kind = s->how, .status = 503, .retry_after_s = 60};
	return rule;
}

static uint32_t bits(struct ckpt_restore *r)
{
	return ckpt_latch_get(ckpt_restore_latch(r));
}

/* Goes on until it has ended, or hangs. */
static struct ckpt_restore *begin(struct scene *s, enum way way)
{
	static const enum ckpt_restore_sink sinks[WAYS] = {[WAY_INTO] = CKPT_SINK_STORE,
		[WAY_OUT] = CKPT_SINK_STORE,
		[WAY_MEMORY] = CKPT_SINK_MEMORY,
		[WAY_VERIFY] = CKPT_SINK_NONE};
	struct ckpt_target target = {
		.size = sizeof(target), .name = "w", .length = BYTES, .data = s->memory};
	struct ckpt_restore *r = NULL;

	if (way == WAY_INTO) {
		const struct ckpt_core_place place = {
			.root = -1, .bucket = &s->b.client, .label = "the bucket"};
		assert_int_equal(ckpt_restore_new(&s->b.rig.core, NULL, 10, sinks[way], &r), 0);
		assert_int_equal(ckpt_restore_set_dest(r, &place), 0);
		ckpt_restore_post_open(r);
	} else {
		r = core_rig_begin(&s->b.rig, 10, sinks[way], way == WAY_OUT ? s->out : NULL);
	}
	bucket_core_run(&s->b);
	if (way == WAY_MEMORY && bits(r) & CKPT_DONE_OPENED) {
		assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->b.rig.err), 0);
		ckpt_restore_post_start(r);
		bucket_core_run(&s->b);
	}
	return r;
}

static struct scene *fresh(enum way way)
{
	struct scene *s = need(sizeof(*s));

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->out, sizeof(s->out), "%s/out", s->dir);
	s->hangs_at = NEVER;
	fixture_begin(s->dir);
	s->step = fixture_one(s->dir, fixture_bytes(BYTES));
	s->step.chunk_bytes = BLOCK / 2;
	s->step.catalog = true;
	fixture_commit(&s->step);
	bucket_core_begin(&s->b);
	s->b.http.judge = judge;
	s->b.http.user = s;
	bucket_core_open(&s->b, s->dir, BLOCK, false);
	if (way != WAY_INTO) {
		assert_int_equal(core_rig_end(&s->b.rig, begin(s, WAY_INTO)), 0);
		bucket_core_close(&s->b);
		bucket_core_open(&s->b, s->dir, BLOCK, true);
	}
	return s;
}

static void done(struct scene *s)
{
	bucket_core_close(&s->b);
	bucket_core_end(&s->b);
	scratch_remove(s->dir);
	free(s);
}

static bool holds_manifest(struct scene *s)
{
	return bucket_core_there(&s->b, MANIFEST) != NULL;
}

/* False: it did not hang. */
static bool stop_at(enum way way, unsigned at, enum fault_kind how, bool closes)
{
	struct scene *s = fresh(way);
	int told = closes ? CKPT_ECLOSED : -ECANCELED;
	struct ckpt_command *closer = NULL;

	s->hangs_at = s->asked + at;
	s->how = how;
	struct ckpt_restore *r = begin(s, way);
	bool hung = s->asked >= s->hangs_at;
	if (hung) {
		assert_false(bits(r) & CKPT_DONE_END);
		assert_true(s->b.http.under_way > 0 || how == FAULT_ANSWER);
		uint64_t before_ns = s->b.rig.now_ns;
		unsigned before = s->asked;
		if (closes) {
			closer = ckpt_command_new(&s->b.rig.core, sizeof(struct ckpt_closer), NULL);
			ckpt_command_post(closer, ckpt_closer_body);
		} else {
			ckpt_restore_post_cancel(r);
		}
		bucket_core_now(&s->b);
		assert_true(bits(r) & CKPT_DONE_END);
		assert_int_equal(s->b.http.under_way, 0);
		assert_int_equal(s->asked, before);
		assert_int_equal(s->b.rig.now_ns, before_ns);
		if (closer)
			assert_true(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	}
	bool tried = r->step_copy.publish_tried;
	int code = core_rig_end(&s->b.rig, r);
	/* What is swept after the manifest is not waited for, nor missed. */
	if (!hung || (code == 0 && tried))
		assert_int_equal(code, 0);
	else
		assert_int_equal(code, told);
	if (code < 0) {
		assert_int_equal(strstr(s->b.rig.err.message, "may be there") != NULL, tried);
		assert_string_equal(s->b.rig.err.file, tried ? MANIFEST : "");
	}
	if (code == 0)
		assert_true(holds_manifest(s));
	else if (way == WAY_INTO && !tried)
		assert_false(holds_manifest(s));
	assert_false(core_rig_logged(&s->b.rig, CKPT_LOG_WARN, "without its catalog"));
	if (closer)
		ckpt_command_unref(closer);
	s->hangs_at = NEVER;
	if (!closes)
		assert_int_equal(core_rig_end(&s->b.rig, begin(s, way)), 0);
	if (!closes)
		assert_true(holds_manifest(s));
	done(s);
	return hung;
}

static void stop_everywhere(enum fault_kind how, bool closes)
{
	static const unsigned least[WAYS] = {15, 10, 10, 10};

	for (enum way way = 0; way < WAYS; way++) {
		unsigned at = 1;

		while (stop_at(way, at, how, closes))
			at++;
		assert_true(at > least[way]);
	}
}

static void test_cancelled(void **state)
{
	(void)state;
	stop_everywhere(FAULT_STALL, false);
}

static void test_closed(void **state)
{
	(void)state;
	stop_everywhere(FAULT_STALL, true);
}

/* Nothing is under way: what is asked again is asked later. */
static void test_between_tries(void **state)
{
	(void)state;
	stop_everywhere(FAULT_ANSWER, false);
}

/* What cannot be copied is taken back while nobody else may send it: he would go on with that upload. */
static void test_taken_back_under_the_lock(void **state)
{
	struct scene *s = fresh(WAY_INTO);

	(void)state;
	scratch_flip(fixture_shard(&s->step, 0), BYTES - 1);
	assert_int_equal(core_rig_end(&s->b.rig, begin(s, WAY_INTO)), CKPT_EINTEGRITY);
	assert_int_equal(s->aborted, 1);
	assert_false(s->let_go);
	assert_true(is_free(s));
	done(s);
}

/* What is read of it before is of a time when somebody else was at it. */
static void test_claimed_before_it_is_read(void **state)
{
	struct scene *s = fresh(WAY_INTO);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int other = open(fixture_shard(&s->step, 0), O_RDWR | O_CLOEXEC);

	(void)state;
	assert_true(other >= 0 && fcntl(other, F_OFD_SETLK, &lock) == 0);
	scratch_flip(fixture_index(&s->step, 0), 10);
	assert_int_equal(core_rig_end(&s->b.rig, begin(s, WAY_INTO)), CKPT_EINUSE);
	(void)close(other);
	assert_int_equal(core_rig_end(&s->b.rig, begin(s, WAY_INTO)), CKPT_EINTEGRITY);
	done(s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_closed),
		cmocka_unit_test(test_between_tries),
		cmocka_unit_test(test_taken_back_under_the_lock),
		cmocka_unit_test(test_claimed_before_it_is_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
