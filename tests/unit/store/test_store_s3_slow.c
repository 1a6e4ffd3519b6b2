/* SPDX-License-Identifier: Apache-2.0 */
/* Parts and ranges that lag far behind the others are asked for again; a bucket that is slow is not. */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/test.h"

#define BLOCK   BUCKET_RIG_BLOCK
#define PARTS   60
#define SIZE    (PARTS * BLOCK - 7)
#define AT_ONCE 8
#define SECOND  UINT64_C(1000000000)

static struct bucket_rig *fresh(uint64_t seed)
{
	return bucket_rig_new((struct bucket_rig){0}, seed);
}

static unsigned count_done(const struct ckpt_store_op *ops, unsigned count)
{
	unsigned ended = 0;

	for (unsigned i = 0; i < count; i++)
		ended += ops[i].done;
	return ended;
}

/* All parts or ranges, so many at once; the seconds that it takes. */
static uint64_t move(struct bucket_rig *rig, struct ckpt_object *object, char *data, bool read)
{
	static struct ckpt_store_op ops[PARTS];
	uint64_t begun_ns = rig->now_ns;

	for (unsigned i = 0; i < PARTS; i++) {
		bucket_rig_now(rig);
		while (i - count_done(ops, i) == AT_ONCE)
			assert_true(bucket_rig_step(rig));
		uint64_t length = ckpt_min_u64(BLOCK, SIZE - i * BLOCK);
		ckpt_store_op_init(&ops[i], NULL, NULL);
		if (read)
			ckpt_store_read(rig->store, &ops[i], object, data + i * BLOCK, length,
				i * BLOCK, -1);
		else
			ckpt_store_write(rig->store, &ops[i], object, data + i * BLOCK, length,
				i * BLOCK, -1);
	}
	for (unsigned i = 0; i < PARTS; i++) {
		bucket_rig_until(rig, &ops[i].done);
		assert_int_equal(ops[i].result, 0);
	}
	return (rig->now_ns - begun_ns) / SECOND;
}

/* How many more requests than parts. */
static unsigned write_with(struct bucket_rig *rig, const char *rules, uint64_t *ret_seconds)
{
	struct ckpt_object object = {.fd = -1};
	char *data = bucket_rig_bytes(SIZE);

	assert_int_equal(bucket_rig_create(rig, "s", SIZE, &object), 0);
	bucket_rig_faults(rig, rules);
	unsigned before = rig->http.requests;
	*ret_seconds = move(rig, &object, data, false);
	unsigned more = rig->http.requests - before - PARTS;
	assert_int_equal(bucket_rig_seal(rig, &object, SIZE), 0);
	assert_true(bucket_rig_holds(rig, "s", data, SIZE));
	bucket_rig_settle(rig);
	assert_true(bucket_rig_holds(rig, "s", data, SIZE));
	free(data);
	return more;
}

static void test_a_part_that_lags(void **state)
{
	static const char *const rules[] = {
		"{'do':'delay','operation':'UploadPart','nth':30,'times':1,'reply_delay_ms':25000}",
		"{'do':'stall','operation':'UploadPart','nth':30,'times':1}",
		/* The last one has nobody behind it. */
		("{'do':'delay','operation':'UploadPart','part':60,'times':1,"
		 "'reply_delay_ms':25000}"),
	};
	uint64_t seconds;

	(void)state;
	for (size_t i = 0; i < COUNT(rules); i++) {
		struct bucket_rig *rig = fresh(1 + i);

		assert_int_equal(write_with(rig, rules[i], &seconds), 1);
		assert_in_range(seconds, 3, 6);
		assert_true(bucket_rig_logged(rig, "as fast as others"));
		bucket_rig_free(rig);
	}
}

/* It may be slow for a reason of its own: the third try takes what it takes, and nothing has failed. */
static void test_a_part_that_always_lags(void **state)
{
	struct bucket_rig *rig = fresh(5);
	uint64_t seconds;

	(void)state;
	assert_int_equal(
		write_with(rig,
			"{'do':'delay','operation':'UploadPart','part':9,'reply_delay_ms':25000},"
			"{'do':'delay','operation':'UploadPart','reply_delay_ms':900}",
			&seconds),
		2);
	assert_in_range(seconds, 25 + 6, 25 + 13);
	bucket_rig_free(rig);
}

static void test_a_slow_bucket(void **state)
{
	uint64_t seconds;

	(void)state;
	for (unsigned from = 1; from < PARTS; from += 6) {
		struct bucket_rig *rig = fresh(from);
		char rules[128];

		(void)snprintf(rules, sizeof(rules),
			"{'do':'delay','operation':'UploadPart','nth':%u,'reply_delay_ms':20000}",
			from);
		assert_int_equal(write_with(rig, rules, &seconds), 0);
		bucket_rig_free(rig);
	}
}

/* One of four lags, at random: what is asked again is bounded, whatever it would help. */
static void test_bounded(void **state)
{
	uint64_t seconds;

	(void)state;
	for (unsigned seed = 0; seed < 20; seed++) {
		struct bucket_rig *rig = fresh(seed);

		assert_in_range(write_with(rig,
					"{'do':'delay','operation':'UploadPart','chance':2500,"
					"'reply_delay_ms':25000}",
					&seconds),
			0, 5 + PARTS / 10);
		bucket_rig_free(rig);
	}
}

static void test_a_range_that_lags(void **state)
{
	struct bucket_rig *rig = fresh(3);
	struct ckpt_object object = {.fd = -1};
	char *data = bucket_rig_bytes(SIZE);
	char *got = need(SIZE);

	(void)state;
	assert_int_equal(bucket_rig_shard(rig, "s", data, SIZE), 0);
	assert_int_equal(bucket_rig_open_file(rig, "s", &object), 0);
	bucket_rig_faults(rig,
		"{'do':'delay','operation':'GetObject','nth':20,'times':1,'reply_delay_ms':25000}");
	assert_in_range(move(rig, &object, got, true), 3, 6);
	assert_memory_equal(got, data, SIZE);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	free(got);
	free(data);
	bucket_rig_free(rig);
}

/* An engine that closes meanwhile waits for nobody. */
static void test_stop_beside_one_that_lags(void **state)
{
	(void)state;
	for (uint64_t after_ms = 2900; after_ms < 3200; after_ms += 10) {
		struct bucket_rig *rig = fresh(after_ms);
		struct ckpt_object object = {.fd = -1};
		struct ckpt_store_op op;
		char *data = bucket_rig_bytes(SIZE);

		assert_int_equal(bucket_rig_create(rig, "s", SIZE, &object), 0);
		bucket_rig_faults(rig, "{'do':'stall','operation':'UploadPart','part':60}");
		ckpt_store_op_init(&op, NULL, NULL);
		ckpt_store_write(rig->store, &op, &object, data + (PARTS - 1) * BLOCK,
			SIZE - (PARTS - 1) * BLOCK, (PARTS - 1) * BLOCK, -1);
		for (unsigned i = 0; i < PARTS - 1; i++)
			assert_int_equal(
				bucket_rig_write(rig, &object, data + i * BLOCK, BLOCK, i * BLOCK),
				0);
		rig->now_ns = ckpt_max_u64(rig->now_ns, after_ms * 1000000);
		bucket_rig_now(rig);
		ckpt_s3_client_stop(&rig->client);
		bucket_rig_until(rig, &op.done);
		assert_int_equal(op.result, -ECANCELED);
		assert_int_equal(bucket_rig_abandon(rig, &object), 0);
		free(data);
		bucket_rig_free(rig);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_part_that_lags),
		cmocka_unit_test(test_a_part_that_always_lags),
		cmocka_unit_test(test_a_slow_bucket),
		cmocka_unit_test(test_bounded),
		cmocka_unit_test(test_a_range_that_lags),
		cmocka_unit_test(test_stop_beside_one_that_lags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
