/* SPDX-License-Identifier: Apache-2.0 */
/* What nobody wants any more ends at once, whatever it waits for: no time passes. All else goes on. */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lib/test.h"

#define BLOCK BUCKET_RIG_BLOCK
#define SIZE  (3 * BLOCK + 5)
#define S_NS  UINT64_C(1000000000)

static struct bucket_rig *fresh(struct bucket_rig like)
{
	return bucket_rig_new(like, 17);
}

static const char *some_bytes(void)
{
	static char *data;

	if (!data)
		data = bucket_rig_bytes(SIZE);
	return data;
}

static void run_for(struct bucket_rig *rig, uint64_t ns)
{
	uint64_t end_ns = rig->now_ns + ns;

	bucket_rig_now(rig);
	while (bucket_http_next(&rig->http) <= end_ns)
		(void)bucket_rig_step(rig);
	rig->now_ns = end_ns;
	bucket_rig_now(rig);
}

/* Two ask the same, and one of them gives up. */
static void give_up_one(struct bucket_rig *rig, uint64_t after_ns)
{
	struct ckpt_store_op ops[2];
	struct ckpt_error err = {.size = sizeof(err)};
	int stop = 0;

	ckpt_error_clear(&err);
	for (size_t i = 0; i < COUNT(ops); i++) {
		ckpt_store_op_init(&ops[i], NULL, i == 1 ? &err : NULL);
		ops[i].stop = i == 1 ? &stop : NULL;
		ckpt_store_get(rig->store, &ops[i], "x", 100);
	}
	if (after_ns > 0)
		run_for(rig, after_ns);
	uint64_t before_ns = rig->now_ns;
	ckpt_s3_client_look(&rig->client);
	bucket_rig_now(rig);
	assert_false(ops[1].done);
	stop = CKPT_ECLOSED;
	ckpt_s3_client_look(&rig->client);
	/* Once more, before it has come back. */
	ckpt_s3_client_look(&rig->client);
	bucket_rig_until(rig, &ops[1].done);
	assert_int_equal(ops[1].result, -ECANCELED);
	assert_int_equal(err.code, -ECANCELED);
	assert_int_equal(rig->now_ns, before_ns);
	assert_false(ops[0].done);
	bucket_rig_faults(rig, "");
	/* Whoever gives keys never answers. */
	if (rig->fetched_keys)
		ckpt_s3_client_stop(&rig->client);
	bucket_rig_until(rig, &ops[0].done);
	assert_int_equal(ops[0].result, rig->fetched_keys ? -ECANCELED : 0);
	ckpt_free(ops[0].data);
}

static void test_whatever_it_waits_for(void **state)
{
	static const struct {
		const char *rules;
		bool keys;
		uint64_t after_ns;
	} waits[] = {
		{"", false, 0},
		{"", false, 1},
		{"{'do':'stall','operation':'GetObject'}", false, S_NS},
		{"{'do':'refuse'}", false, S_NS / 2},
		{"{'do':'answer','status':503,'retry_after_s':100}", false, S_NS},
		{"", true, S_NS},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(waits); i++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){.fetched_keys = waits[i].keys});

		if (!waits[i].keys)
			assert_int_equal(bucket_rig_publish(rig, "x", "y"), 0);
		bucket_rig_faults(rig, waits[i].rules);
		give_up_one(rig, waits[i].after_ns);
		bucket_rig_free(rig);
	}
}

/* An answer that calls for another try has come, and is not read yet: it is no answer. */
static void test_between_an_answer_and_its_try(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_store_op *op = bucket_rig_op(rig);
	int stop = 0;

	(void)state;
	bucket_rig_faults(rig, "{'do':'answer','status':503,'retry_after_s':100}");
	op->stop = &stop;
	ckpt_store_get(rig->store, op, "x", 100);
	bucket_rig_now(rig);
	while (rig->http.under_way > 0)
		bucket_http_run(&rig->http, bucket_http_next(&rig->http));
	stop = -ECANCELED;
	ckpt_s3_client_look(&rig->client);
	bucket_rig_now(rig);
	assert_true(op->done);
	assert_int_equal(op->result, -ECANCELED);
	assert_int_equal(rig->err.code, -ECANCELED);
	assert_int_equal(rig->http.requests, 1);
	bucket_rig_free(rig);
}

/* Whoever has given up asks nothing any more; what closes what is open does. */
static void test_nothing_is_asked(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object object = {.fd = -1};
	struct ckpt_object reading = {.fd = -1};
	char got[8];
	int stop = -ECANCELED;

	(void)state;
	assert_int_equal(bucket_rig_shard(rig, "s", some_bytes(), SIZE), 0);
	assert_int_equal(bucket_rig_open_file(rig, "s", &reading), 0);
	assert_int_equal(bucket_rig_create(rig, "t", SIZE, &object), 0);
	unsigned before = rig->http.requests;
	for (int verb = 0; verb < 8; verb++) {
		struct ckpt_object none = {.fd = -1};
		struct ckpt_store_op *op = bucket_rig_op(rig);

		op->stop = &stop;
		if (verb == 0)
			ckpt_store_get(rig->store, op, "s", SIZE);
		else if (verb == 1)
			ckpt_store_list(rig->store, op, ".");
		else if (verb == 2)
			ckpt_store_publish(rig->store, op, "p", "y", 1, NULL);
		else if (verb == 3)
			ckpt_store_resume(rig->store, op, "u", SIZE, &none);
		else if (verb == 4)
			ckpt_store_open(rig->store, op, "s", &none);
		else if (verb == 5)
			ckpt_store_read(rig->store, op, &reading, got, sizeof(got), 8, -1);
		else if (verb == 6)
			ckpt_store_write(rig->store, op, &object, some_bytes(), BLOCK, 0, -1);
		else
			ckpt_store_remove(rig->store, op, "s");
		assert_int_equal(bucket_rig_wait(rig), -ECANCELED);
		assert_int_equal(none.fd, -1);
	}
	assert_int_equal(rig->http.requests, before);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	assert_int_equal(bucket_rig_shut(rig, &reading), 0);
	assert_true(bucket_rig_holds(rig, "s", some_bytes(), SIZE));
	bucket_rig_free(rig);
}

/* Whoever copies something there, and gives up at some moment. */
struct copy {
	struct bucket_rig *rig;
	int stop;
	unsigned steps;
	unsigned moment;
	uint64_t stopped_ns;
	struct ckpt_object object;
	struct ckpt_object reading;
};

static struct ckpt_store_op *ask(struct copy *c)
{
	struct ckpt_store_op *op = bucket_rig_op(c->rig);

	op->stop = &c->stop;
	return op;
}

static int wait_for(struct copy *c)
{
	struct bucket_rig *rig = c->rig;

	bucket_rig_now(rig);
	while (!rig->op.done) {
		if (c->steps++ == c->moment) {
			c->stop = -ECANCELED;
			c->stopped_ns = rig->now_ns;
			ckpt_s3_client_look(&rig->client);
			bucket_rig_until(rig, &rig->op.done);
		} else {
			assert_true(bucket_rig_step(rig));
		}
	}
	if (c->stop)
		assert_int_equal(rig->now_ns, c->stopped_ns);
	if (rig->op.result < 0)
		assert_int_equal(rig->op.result, -ECANCELED);
	return rig->op.result;
}

static int copy_shard(struct copy *c)
{
	struct ckpt_store *store = c->rig->store;

	ckpt_store_resume(store, ask(c), "d/s", SIZE, &c->object);
	int r = wait_for(c);
	for (uint64_t at = 0; at < SIZE && r == 0; at += BLOCK) {
		ckpt_store_write(store, ask(c), &c->object, some_bytes() + at,
			ckpt_min_u64(BLOCK, SIZE - at), at, -1);
		r = wait_for(c);
	}
	if (r == 0) {
		ckpt_store_seal(store, ask(c), &c->object, SIZE);
		r = wait_for(c);
	}
	return r;
}

static int read_back(struct copy *c)
{
	struct ckpt_store *store = c->rig->store;
	static char got[BLOCK];

	ckpt_store_open(store, ask(c), "d/s", &c->reading);
	int r = wait_for(c);
	if (r == 0) {
		ckpt_store_read(store, ask(c), &c->reading, got, BLOCK, BLOCK, -1);
		r = wait_for(c);
	}
	if (r == 0)
		assert_memory_equal(got, some_bytes() + BLOCK, BLOCK);
	return r;
}

static int copy_all(struct copy *c)
{
	struct ckpt_store *store = c->rig->store;

	ckpt_store_publish(store, ask(c), "marker", "m", 1, NULL);
	int r = wait_for(c);
	if (r == 0)
		r = copy_shard(c);
	if (r == 0)
		r = read_back(c);
	if (r == 0) {
		ckpt_store_publish(store, ask(c), "d/manifest", "n", 1, NULL);
		r = wait_for(c);
	}
	if (r == 0) {
		ckpt_store_sweep(store, ask(c), "d");
		r = wait_for(c);
	}
	if (c->object.fd >= 0)
		assert_int_equal(bucket_rig_shut(c->rig, &c->object), 0);
	if (c->reading.fd >= 0)
		assert_int_equal(bucket_rig_shut(c->rig, &c->reading), 0);
	return r;
}

/* The same again comes to its end. */
static bool copy_until(unsigned moment, const char *rules)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct copy first = {
		.rig = rig, .moment = moment, .object = {.fd = -1}, .reading = {.fd = -1}};
	struct copy again = first;

	bucket_rig_faults(rig, rules);
	int r = copy_all(&first);
	if (r < 0)
		assert_int_not_equal(first.stop, 0);
	again.moment = UINT_MAX;
	assert_int_equal(copy_all(&again), 0);
	assert_true(bucket_rig_holds(rig, "d/s", some_bytes(), SIZE));
	assert_true(bucket_rig_holds(rig, "marker", "m", 1));
	assert_true(bucket_rig_holds(rig, "d/manifest", "n", 1));
	assert_int_equal(bucket_rig_uploads(rig), 0);
	bucket_rig_free(rig);
	return first.stop != 0;
}

static void test_at_every_moment(void **state)
{
	static const char *const rules[] = {
		"",
		"{'do':'answer','status':503,'chance':4000}",
		"{'do':'drop_reply','chance':3000}",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rules); i++) {
		unsigned moment = 0;

		while (copy_until(moment, rules[i]))
			moment++;
		assert_true(moment > 20);
	}
}

/* What is being taken back when all is over has some seconds, and no more. */
static void test_what_is_taken_back(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object object = {.fd = -1};

	(void)state;
	assert_int_equal(bucket_rig_create(rig, "s", SIZE, &object), 0);
	bucket_rig_faults(rig, "{'do':'stall_body','method':'DELETE'}");
	ckpt_store_abandon(rig->store, bucket_rig_op(rig), &object);
	run_for(rig, S_NS);
	assert_false(rig->op.done);
	uint64_t before_ns = rig->now_ns;
	ckpt_s3_client_stop(&rig->client);
	ckpt_s3_client_stop(&rig->client);
	bucket_rig_until(rig, &rig->op.done);
	assert_in_range(rig->now_ns - before_ns, 1, 5 * S_NS);
	bucket_rig_free(rig);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whatever_it_waits_for),
		cmocka_unit_test(test_between_an_answer_and_its_try),
		cmocka_unit_test(test_nothing_is_asked),
		cmocka_unit_test(test_at_every_moment),
		cmocka_unit_test(test_what_is_taken_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
