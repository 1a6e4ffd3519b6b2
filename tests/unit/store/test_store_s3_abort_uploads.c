/* SPDX-License-Identifier: Apache-2.0 */
/* What writers that ended have begun in a directory goes, and nothing else does. */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/test.h"

#define BLOCK BUCKET_RIG_BLOCK
#define SIZE  (3 * BLOCK)

static struct bucket_rig *fresh(const char *prefix)
{
	return bucket_rig_new((struct bucket_rig){.prefix = prefix, .attempts = 2}, 7);
}

/* A writer that has sent a part, and ends. */
static void leave_behind(struct bucket_rig *rig, const char *path)
{
	static char data[BLOCK];
	struct ckpt_object object = {.fd = -1};

	assert_int_equal(bucket_rig_create(rig, path, SIZE, &object), 0);
	assert_int_equal(bucket_rig_write(rig, &object, data, BLOCK, 0), 0);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
}

static void sweep(struct bucket_rig *rig, const char *path)
{
	ckpt_store_sweep(rig->store, bucket_rig_op(rig), path);
	assert_int_equal(bucket_rig_wait(rig), 0);
}

static void test_of_its_directory_only(void **state)
{
	static const char *const others[] = {
		"g/step-10", "g/step-1.x", "g/step-1/deep/a", "step-1/a", "g"};
	static const char *const prefixes[] = {NULL, "", "a b/c+d"};

	(void)state;
	for (size_t i = 0; i < COUNT(prefixes); i++) {
		struct bucket_rig *rig = fresh(prefixes[i]);
		for (size_t k = 0; k < COUNT(others); k++)
			leave_behind(rig, others[k]);
		leave_behind(rig, "g/step-1/a");
		leave_behind(rig, "g/step-1/a");
		leave_behind(rig, "g/step-1/b");
		assert_int_equal(bucket_rig_publish(rig, "g/step-1/whole", "text"), 0);
		assert_int_equal(bucket_rig_uploads(rig), COUNT(others) + 3);
		sweep(rig, "g/step-1");
		assert_int_equal(bucket_rig_uploads(rig), COUNT(others));
		assert_true(bucket_rig_holds(rig, "g/step-1/whole", "text", 4));
		assert_false(bucket_rig_logged(rig, "unfinished"));
		bucket_rig_free(rig);
	}
}

/* A page is not all. */
static void test_many(void **state)
{
	struct bucket_rig *rig = fresh(NULL);
	char path[32];

	(void)state;
	buckets_capabilities(rig->front.buckets)->page_most = 3;
	for (unsigned i = 0; i < 10; i++) {
		(void)snprintf(path, sizeof(path), "d/%u", i);
		leave_behind(rig, path);
	}
	sweep(rig, "d");
	assert_int_equal(bucket_rig_uploads(rig), 0);
	bucket_rig_free(rig);
}

/* Its writer lives after all: it has lost what it has sent, says so, and whatever it made before is there. */
static void test_one_that_goes_on(void **state)
{
	static char data[SIZE];
	struct bucket_rig *rig = fresh(NULL);
	struct ckpt_object object = {.fd = -1};

	(void)state;
	assert_int_equal(bucket_rig_create(rig, "d/a", SIZE, &object), 0);
	assert_int_equal(bucket_rig_write(rig, &object, data, BLOCK, 0), 0);
	sweep(rig, "d");
	assert_int_not_equal(bucket_rig_write(rig, &object, data + BLOCK, BLOCK, BLOCK), 0);
	assert_int_equal(bucket_rig_abandon(rig, &object), 0);
	assert_int_equal(bucket_rig_shard(rig, "d/a", data, SIZE), 0);
	assert_true(bucket_rig_holds(rig, "d/a", data, SIZE));
	bucket_rig_free(rig);
}

/* Whatever the server makes of it, it is no failure; it is said, and once. */
static void test_what_cannot_be_swept(void **state)
{
	static const char *const rules[] = {
		"{'do':'answer','operation':'ListMultipartUploads','status':403,'code':'"
		"AccessDenied'}",
		"{'do':'answer','operation':'ListMultipartUploads','status':501,'code':'"
		"NotImplemented'}",
		"{'do':'truncate','operation':'ListMultipartUploads','bytes':100}",
		"{'do':'answer','operation':'AbortMultipartUpload','status':403,'code':'"
		"AccessDenied'}",
		"{'do':'drop','operation':'AbortMultipartUpload'}",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rules); i++) {
		struct bucket_rig *rig = fresh(NULL);
		leave_behind(rig, "d/a");
		bucket_rig_faults(rig, rules[i]);
		sweep(rig, "d");
		assert_int_equal(bucket_rig_uploads(rig), 1);
		assert_true(bucket_rig_logged(rig, "a lifecycle rule aborts them"));
		sweep(rig, "d");
		assert_false(bucket_rig_logged(rig, "a lifecycle rule aborts them"));
		bucket_rig_faults(rig, "");
		sweep(rig, "d");
		assert_int_equal(bucket_rig_uploads(rig), 0);
		bucket_rig_free(rig);
	}
}

/* An answer that was lost: it is gone when it is asked for again. */
static void test_lost_answers(void **state)
{
	struct bucket_rig *rig = fresh(NULL);

	(void)state;
	leave_behind(rig, "d/a");
	leave_behind(rig, "d/b");
	bucket_rig_faults(rig, "{'do':'drop_reply','operation':'AbortMultipartUpload','times':1}");
	sweep(rig, "d");
	assert_int_equal(bucket_rig_uploads(rig), 0);
	assert_false(bucket_rig_logged(rig, "unfinished"));
	bucket_rig_free(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_of_its_directory_only),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_one_that_goes_on),
		cmocka_unit_test(test_what_cannot_be_swept),
		cmocka_unit_test(test_lost_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
