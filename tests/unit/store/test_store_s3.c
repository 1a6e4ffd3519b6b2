/* SPDX-License-Identifier: Apache-2.0 */
/* What every verb of the store in a bucket promises, while nothing goes wrong. */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/test.h"

#define BLOCK BUCKET_RIG_BLOCK

static struct bucket_rig *fresh(struct bucket_rig like)
{
	return bucket_rig_new(like, 7);
}

static char *random_bytes(struct bucket_rig *rig, uint64_t size)
{
	char *data = need((size_t)size + 1);

	for (uint64_t i = 0; i < size; i++)
		data[i] = (char)prng_next(&rig->prng);
	return data;
}

static void check_get(struct bucket_rig *rig, const char *path, const char *text)
{
	assert_int_equal(bucket_rig_get(rig, path), 0);
	assert_int_equal(rig->op.length, strlen(text));
	assert_memory_equal(rig->op.data, text, strlen(text));
	ckpt_free(rig->op.data);
}

static void check_names(struct bucket_rig *rig, const char *path, const char *names)
{
	char text[1024] = "";
	const char *name;

	assert_int_equal(bucket_rig_list(rig, path), 0);
	name = rig->op.listing.names;
	for (size_t i = 0; i < rig->op.listing.count; i++) {
		size_t length = strlen(text);
		(void)snprintf(text + length, sizeof(text) - length, "%s|", name);
		name += strlen(name) + 1;
	}
	assert_string_equal(text, names);
	ckpt_free(rig->op.listing.names);
}

static void test_publish_get_remove(void **state)
{
	static const char *const prefixes[] = {"", "run", "a/b", "a b+c=d/\xc3\xa4%2F"};
	static const char *const names[] = {"name", "dir/name", "a+b=c d&e", "per%20cent", "~-_.x"};

	(void)state;
	for (size_t p = 0; p < COUNT(prefixes); p++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){.prefix = prefixes[p]});
		for (size_t i = 0; i < COUNT(names); i++) {
			assert_int_equal(bucket_rig_get(rig, names[i]), -ENOENT);
			assert_int_equal(bucket_rig_publish(rig, names[i], "first"), 0);
			assert_true(bucket_rig_holds(rig, names[i], "first", 5));
			assert_int_equal(bucket_rig_publish(rig, names[i], "second"), -EEXIST);
			check_get(rig, names[i], "first");
			ckpt_store_supersede(rig->store, bucket_rig_op(rig), names[i], "third", 5);
			assert_int_equal(bucket_rig_wait(rig), 0);
			check_get(rig, names[i], "third");
			assert_int_equal(bucket_rig_remove(rig, names[i]), 0);
			assert_null(bucket_rig_there(rig, names[i]));
			assert_int_equal(bucket_rig_remove(rig, names[i]), 0);
		}
		check_names(rig, ".", "");
		bucket_rig_free(rig);
	}
}

static void test_quiet_answers(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object object = {.fd = -1};

	(void)state;
	rig->op.quiet = true;
	assert_int_equal(bucket_rig_get(rig, "none"), -ENOENT);
	assert_int_equal(bucket_rig_list(rig, "none"), -ENOENT);
	assert_int_equal(bucket_rig_open_file(rig, "none", &object), -ENOENT);
	assert_int_equal(object.fd, -1);
	assert_int_equal(bucket_rig_publish(rig, "x", "1"), 0);
	assert_int_equal(bucket_rig_publish(rig, "x", "2"), -EEXIST);
	/* Others are failures, and worded. */
	bucket_rig_faults(rig, "{'do':'answer','status':403,'code':'AccessDenied'}");
	assert_int_equal(bucket_rig_get(rig, "x"), CKPT_EAUTH);
	bucket_rig_free(rig);
}

static void test_limits_of_get(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	char *large = random_bytes(rig, 200000);

	(void)state;
	memset(large, 'x', 200000);
	assert_int_equal(bucket_rig_publish(rig, "small", "12345"), 0);
	ckpt_store_get(rig->store, bucket_rig_op(rig), "small", 5);
	assert_int_equal(bucket_rig_wait(rig), 0);
	ckpt_free(rig->op.data);
	ckpt_store_get(rig->store, bucket_rig_op(rig), "small", 4);
	assert_int_equal(bucket_rig_wait(rig), -EFBIG);
	assert_null(rig->op.data);
	assert_int_equal(bucket_rig_publish(rig, "large", large), 0);
	ckpt_store_get(rig->store, bucket_rig_op(rig), "large", 100000);
	assert_int_equal(bucket_rig_wait(rig), -EFBIG);
	/* An empty one is whole, too. */
	ckpt_store_put(rig->store, bucket_rig_op(rig), "empty", NULL, 0);
	assert_int_equal(bucket_rig_wait(rig), 0);
	check_get(rig, "empty", "");
	free(large);
	bucket_rig_free(rig);
}

static void test_list(void **state)
{
	static const char *const names[] = {
		"d/b", "d/a", "d/a b", "d/a+b", "d/z/1", "d/z/2", "d/c/1/2/3", "e/x", "d/\xc3\xa4"};

	(void)state;
	for (unsigned page = 0; page < 4; page++)
		for (int whole = 0; whole < 2; whole++) {
			struct bucket_rig *rig =
				fresh((struct bucket_rig){.prefix = whole ? "" : "p/q"});
			buckets_capabilities(rig->front.buckets)->page_most = page;
			check_names(rig, ".", "");
			for (size_t i = 0; i < COUNT(names); i++)
				assert_int_equal(bucket_rig_publish(rig, names[i], "x"), 0);
			check_names(rig, ".", "d|e|");
			check_names(rig, "d", "a|a b|a+b|b|c|z|\xc3\xa4|");
			check_names(rig, "d/c", "1|");
			assert_int_equal(bucket_rig_list(rig, "nothing"), -ENOENT);
			/* A key, and no directory. */
			assert_int_equal(bucket_rig_list(rig, "d/a"), -ENOENT);
			bucket_rig_free(rig);
		}
}

static void test_directories_are_nothing(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object first = {.fd = -1}, second = {.fd = -1};

	(void)state;
	ckpt_store_mkdir(rig->store, bucket_rig_op(rig), "d");
	assert_int_equal(bucket_rig_wait(rig), 0);
	ckpt_store_sync(rig->store, bucket_rig_op(rig), "d");
	assert_int_equal(bucket_rig_wait(rig), 0);
	ckpt_store_rmdir(rig->store, bucket_rig_op(rig), "d");
	assert_int_equal(bucket_rig_wait(rig), 0);
	/* Nor do locks keep anybody out. */
	ckpt_store_lock(rig->store, bucket_rig_op(rig), "d", false, &first);
	assert_int_equal(bucket_rig_wait(rig), 0);
	ckpt_store_lock(rig->store, bucket_rig_op(rig), "d", false, &second);
	assert_int_equal(bucket_rig_wait(rig), 0);
	assert_true(first.fd >= 0 && second.fd >= 0 && first.fd != second.fd);
	assert_int_equal(bucket_rig_shut(rig, &first), 0);
	assert_int_equal(first.fd, -1);
	assert_int_equal(bucket_rig_shut(rig, &second), 0);
	assert_int_equal(rig->http.requests, 0);
	ckpt_store_publish(rig->store, bucket_rig_op(rig), "held", "x", 1, &first);
	assert_int_equal(bucket_rig_wait(rig), 0);
	assert_true(first.fd >= 0);
	assert_int_equal(bucket_rig_shut(rig, &first), 0);
	bucket_rig_free(rig);
}

static void check_reads(struct bucket_rig *rig, const char *path, const char *data, uint64_t size)
{
	struct ckpt_object object = {.fd = -1};
	char *got = need((size_t)size + 1);

	assert_int_equal(bucket_rig_open_file(rig, path, &object), 0);
	assert_int_equal(rig->op.size, size);
	for (int i = 0; i < 40; i++) {
		uint64_t at = prng_below(&rig->prng, size);
		uint64_t length = 1 + prng_below(&rig->prng, size - at);
		assert_int_equal(bucket_rig_read(rig, &object, got, length, at), 0);
		assert_int_equal(rig->op.size, length);
		assert_memory_equal(got, data + at, length);
	}
	assert_int_equal(bucket_rig_read(rig, &object, got, size, 0), 0);
	assert_memory_equal(got, data, size);
	assert_int_equal(bucket_rig_read(rig, &object, got, size, 1), CKPT_EINCOMPLETE);
	assert_int_equal(bucket_rig_read(rig, &object, got, 1, size), CKPT_EINCOMPLETE);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	assert_int_equal(object.fd, -1);
	free(got);
}

static void test_shards(void **state)
{
	static const uint64_t sizes[] = {
		0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 7 * BLOCK, 7 * BLOCK + 77};
	struct bucket_rig *rig = fresh((struct bucket_rig){0});

	(void)state;
	for (size_t i = 0; i < COUNT(sizes); i++) {
		char *data = random_bytes(rig, sizes[i]);
		char name[16];
		(void)snprintf(name, sizeof(name), "s%zu", i);
		uint64_t before = rig->store->bytes_written;
		assert_int_equal(bucket_rig_shard(rig, name, data, sizes[i]), 0);
		assert_int_equal(rig->store->bytes_written - before, sizes[i]);
		assert_true(bucket_rig_holds(rig, name, data, sizes[i]));
		assert_int_equal(bucket_rig_uploads(rig), 0);
		if (sizes[i] > 0)
			check_reads(rig, name, data, sizes[i]);
		free(data);
	}
	bucket_rig_free(rig);
}

#define PARTS 9

/* Begins writes of all parts but `without`, in an order of the dice, and waits for all of them. */
static void write_at_once(
	struct bucket_rig *rig, struct ckpt_object *object, const char *data, unsigned without)
{
	struct ckpt_store_op ops[PARTS];
	struct ckpt_error errors[PARTS];
	unsigned order[PARTS];

	for (unsigned i = 0; i < PARTS; i++) {
		unsigned other = (unsigned)prng_below(&rig->prng, i + 1);
		order[i] = order[other];
		order[other] = i;
	}
	for (unsigned i = 0; i < PARTS; i++) {
		errors[i] = (struct ckpt_error){.size = sizeof(errors[i])};
		ckpt_store_op_init(&ops[i], NULL, &errors[i]);
		if (order[i] != without)
			ckpt_store_write(rig->store, &ops[i], object, data + order[i] * BLOCK,
				BLOCK, order[i] * BLOCK, -1);
		else
			ops[i].done = true;
	}
	for (unsigned i = 0; i < PARTS; i++) {
		bucket_rig_until(rig, &ops[i].done);
		assert_int_equal(ops[i].result, 0);
	}
}

/* Many files at once, so that the table of them grows meanwhile. */
static void test_parts_at_once(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object objects[40];
	char *data = random_bytes(rig, PARTS * BLOCK);
	struct ckpt_store_op ops[COUNT(objects)];
	char name[COUNT(objects)][16];

	(void)state;
	for (size_t i = 0; i < COUNT(objects); i++) {
		(void)snprintf(name[i], sizeof(name[i]), "m%zu", i);
		objects[i] = (struct ckpt_object){.fd = -1};
		ckpt_store_op_init(&ops[i], NULL, NULL);
		ckpt_store_create(rig->store, &ops[i], name[i], PARTS * BLOCK, &objects[i]);
	}
	for (size_t i = 0; i < COUNT(objects); i++) {
		bucket_rig_until(rig, &ops[i].done);
		assert_int_equal(ops[i].result, 0);
	}
	assert_int_equal(bucket_rig_uploads(rig), COUNT(objects));
	for (size_t i = 0; i < COUNT(objects); i++)
		write_at_once(rig, &objects[i], data, PARTS);
	for (size_t i = 0; i < COUNT(objects); i++)
		ckpt_store_seal(rig->store, &ops[i], &objects[i], PARTS * BLOCK);
	for (size_t i = 0; i < COUNT(objects); i++) {
		bucket_rig_until(rig, &ops[i].done);
		assert_int_equal(ops[i].result, 0);
		assert_true(bucket_rig_holds(rig, name[i], data, PARTS * BLOCK));
	}
	assert_int_equal(bucket_rig_uploads(rig), 0);
	free(data);
	bucket_rig_free(rig);
}

static int resume(struct bucket_rig *rig, struct ckpt_object *object)
{
	return bucket_rig_resume(rig, "m", PARTS * BLOCK, object);
}

/* What was sent before the end of whoever sent it is not sent again. */
static void test_going_on(void **state)
{
	(void)state;
	for (unsigned sent = 0; sent <= PARTS; sent++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){0});
		char *data = random_bytes(rig, PARTS * BLOCK);
		struct ckpt_object object = {.fd = -1};
		assert_int_equal(resume(rig, &object), 0);
		for (unsigned i = 0; i < sent; i++)
			assert_int_equal(
				bucket_rig_write(rig, &object, data + i * BLOCK, BLOCK, i * BLOCK),
				0);
		assert_int_equal(bucket_rig_shut(rig, &object), 0);
		assert_int_equal(bucket_rig_uploads(rig), 1);
		/* Another object whose key begins alike is none of its own. */
		struct ckpt_object other = {.fd = -1};
		assert_int_equal(bucket_rig_create(rig, "m2", PARTS * BLOCK, &other), 0);
		assert_int_equal(bucket_rig_shut(rig, &other), 0);

		uint64_t before = rig->store->bytes_written;
		assert_int_equal(resume(rig, &object), 0);
		assert_int_equal(bucket_rig_uploads(rig), 2);
		write_at_once(rig, &object, data, PARTS);
		assert_int_equal(rig->store->bytes_written - before, (PARTS - sent) * BLOCK);
		assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), 0);
		assert_true(bucket_rig_holds(rig, "m", data, PARTS * BLOCK));
		assert_int_equal(bucket_rig_uploads(rig), 1);
		free(data);
		bucket_rig_free(rig);
	}
}

/* Parts that were cut otherwise are of other bytes, even those whose size fits. */
static void test_going_on_cut_otherwise(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	char *data = random_bytes(rig, PARTS * BLOCK);
	char *other = random_bytes(rig, PARTS * BLOCK);
	struct ckpt_object object = {.fd = -1};

	(void)state;
	assert_int_equal(bucket_rig_resume(rig, "m", PARTS * BLOCK - BLOCK / 2, &object), 0);
	for (unsigned i = 0; i < PARTS; i++)
		assert_int_equal(bucket_rig_write(rig, &object, other + i * BLOCK,
					 i + 1 < PARTS ? BLOCK : BLOCK / 2, i * BLOCK),
			0);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	assert_int_equal(resume(rig, &object), 0);
	write_at_once(rig, &object, data, PARTS);
	assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), 0);
	assert_true(bucket_rig_holds(rig, "m", data, PARTS * BLOCK));
	free(data);
	free(other);
	bucket_rig_free(rig);
}

/* One that is alone, and not the first, may be the last of those that were cut otherwise: its size says nothing. */
static void test_going_on_with_one_part(void **state)
{
	static const struct ckpt_s3_limits few = {
		.part_max = PARTS * BLOCK, .object_max = PARTS * BLOCK, .parts_max = 5};
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	char *data = random_bytes(rig, PARTS * BLOCK);
	struct ckpt_object object = {.fd = -1};

	(void)state;
	rig->client.limits = &few;
	assert_int_equal(resume(rig, &object), 0);
	assert_int_equal(rig->op.unit, 2 * BLOCK);
	assert_int_equal(bucket_rig_write(rig, &object, data + 8 * BLOCK, BLOCK, 8 * BLOCK), 0);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	rig->client.limits = NULL;
	assert_int_equal(resume(rig, &object), 0);
	assert_int_equal(rig->op.unit, BLOCK);
	write_at_once(rig, &object, data, PARTS);
	assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), 0);
	assert_true(bucket_rig_holds(rig, "m", data, PARTS * BLOCK));
	free(data);
	bucket_rig_free(rig);
}

static void resume_in(struct bucket_rig *rig, const struct ckpt_s3_limits *limits, uint64_t unit,
	struct ckpt_object *object)
{
	rig->client.limits = limits;
	assert_int_equal(resume(rig, object), 0);
	assert_int_equal(rig->op.unit, unit);
}

static void write_parts(struct bucket_rig *rig, struct ckpt_object *object, const char *data,
	unsigned from, unsigned to)
{
	uint64_t unit = rig->op.unit;

	for (uint64_t at = from * unit; at < to * unit && at < PARTS * BLOCK; at += unit)
		assert_int_equal(bucket_rig_write(rig, object, data + at,
					 at + unit < PARTS * BLOCK ? unit : PARTS * BLOCK - at, at),
			0);
}

/* Whoever goes on with larger parts keeps them; with smaller ones than it may have, it begins anew. */
static void test_going_on_with_other_parts(void **state)
{
	static const struct ckpt_s3_limits two = {
		.part_max = PARTS * BLOCK, .object_max = PARTS * BLOCK, .parts_max = 2};
	static const struct ckpt_s3_limits three = {
		.part_max = PARTS * BLOCK, .object_max = PARTS * BLOCK, .parts_max = 3};
	const uint64_t half = (PARTS + 1) / 2 * BLOCK;
	const uint64_t third = (PARTS + 2) / 3 * BLOCK;

	(void)state;
	/* Of two parts none, the first, the second, both are there. */
	for (unsigned there = 0; there < 4; there++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){0});
		char *data = random_bytes(rig, PARTS * BLOCK);
		struct ckpt_object object = {.fd = -1};

		resume_in(rig, &two, half, &object);
		write_parts(rig, &object, data, there & 1 ? 0 : 1, there & 2 ? 2 : 1);
		assert_int_equal(bucket_rig_shut(rig, &object), 0);
		uint64_t before = rig->store->bytes_written;
		/* The second alone may be cut in any way. */
		resume_in(rig, NULL, there & 1 ? half : BLOCK, &object);
		assert_int_equal(bucket_rig_uploads(rig), 1);
		write_parts(rig, &object, data, 0, PARTS);
		assert_int_equal(rig->store->bytes_written - before, there == 3 ? 0
								     : there == 1
									     ? PARTS * BLOCK - half
									     : PARTS * BLOCK);
		assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), 0);
		assert_true(bucket_rig_holds(rig, "m", data, PARTS * BLOCK));
		assert_int_equal(bucket_rig_uploads(rig), 0);

		assert_int_equal(bucket_rig_remove(rig, "m"), 0);
		resume_in(rig, NULL, BLOCK, &object);
		write_parts(rig, &object, data, 0, PARTS - 1);
		assert_int_equal(bucket_rig_shut(rig, &object), 0);
		resume_in(rig, &three, third, &object);
		assert_int_equal(bucket_rig_uploads(rig), 1);
		write_parts(rig, &object, data, 0, 3);
		assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), 0);
		assert_true(bucket_rig_holds(rig, "m", data, PARTS * BLOCK));
		assert_int_equal(bucket_rig_uploads(rig), 0);
		free(data);
		bucket_rig_free(rig);
	}
}

/* A server that lists no uploads, or no parts, has it sent whole; one that cannot be reached says nothing. */
static void test_going_on_without_lists(void **state)
{
	static const char *const rules[] = {
		"{'do':'answer','operation':'ListMultipartUploads','status':403,'code':'"
		"AccessDenied'}",
		"{'do':'answer','operation':'ListMultipartUploads','status':501,'code':'"
		"NotImplemented'}",
		"{'do':'answer','operation':'ListParts','status':404,'code':'NoSuchUpload'}",
		"{'do':'truncate','operation':'ListParts','bytes':100}",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rules); i++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){.attempts = 2});
		char *data = random_bytes(rig, PARTS * BLOCK);
		struct ckpt_object object = {.fd = -1};
		bool outside = strstr(rules[i], "truncate") != NULL;
		assert_int_equal(resume(rig, &object), 0);
		assert_int_equal(bucket_rig_write(rig, &object, data, BLOCK, 0), 0);
		assert_int_equal(bucket_rig_shut(rig, &object), 0);
		bucket_rig_faults(rig, rules[i]);
		uint64_t before = rig->store->bytes_written;
		if (outside) {
			assert_int_equal(resume(rig, &object), CKPT_ENETWORK);
			assert_int_equal(object.fd, -1);
			bucket_rig_faults(rig, "");
		}
		assert_int_equal(resume(rig, &object), 0);
		write_at_once(rig, &object, data, PARTS);
		assert_int_equal(
			rig->store->bytes_written - before, (outside ? PARTS - 1 : PARTS) * BLOCK);
		assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), 0);
		assert_true(bucket_rig_holds(rig, "m", data, PARTS * BLOCK));
		free(data);
		bucket_rig_free(rig);
	}
}

/* A seal that the network ends gives up nothing of what somebody can go on with; one that the server refuses does. */
static void test_going_on_after_a_seal(void **state)
{
	static const struct {
		const char *rule;
		bool refused;
	} cases[] = {
		{"{'do':'answer','operation':'CompleteMultipartUpload','status':503,'code':'"
		 "SlowDown'}",
			false},
		{"{'do':'drop','operation':'CompleteMultipartUpload','bytes':0}", false},
		{"{'do':'answer','operation':'CompleteMultipartUpload','status':400,'code':'"
		 "InvalidPart'}",
			true},
	};

	(void)state;
	for (size_t i = 0; i < 2 * COUNT(cases); i++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){.attempts = 2});
		char *data = random_bytes(rig, PARTS * BLOCK);
		struct ckpt_object object = {.fd = -1};
		bool resumes = i < COUNT(cases);
		size_t left = resumes && !cases[i % COUNT(cases)].refused ? PARTS : 0;
		assert_int_equal(resumes ? resume(rig, &object)
					 : bucket_rig_create(rig, "m", PARTS * BLOCK, &object),
			0);
		write_at_once(rig, &object, data, PARTS);
		bucket_rig_faults(rig, cases[i % COUNT(cases)].rule);
		assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), CKPT_ENETWORK);
		assert_int_equal(object.fd, -1);
		bucket_rig_faults(rig, "");
		assert_int_equal(bucket_rig_uploads(rig), left ? 1 : 0);

		uint64_t before = rig->store->bytes_written;
		assert_int_equal(resume(rig, &object), 0);
		write_at_once(rig, &object, data, PARTS);
		assert_int_equal(rig->store->bytes_written - before, (PARTS - left) * BLOCK);
		assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), 0);
		assert_true(bucket_rig_holds(rig, "m", data, PARTS * BLOCK));
		assert_int_equal(bucket_rig_uploads(rig), 0);
		free(data);
		bucket_rig_free(rig);
	}
}

static void test_a_part_is_missing(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	char *data = random_bytes(rig, PARTS * BLOCK);

	(void)state;
	for (unsigned without = 0; without < PARTS; without++) {
		struct ckpt_object object = {.fd = -1};
		assert_int_equal(bucket_rig_create(rig, "m", PARTS * BLOCK, &object), 0);
		write_at_once(rig, &object, data, without);
		assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK), -EIO);
		assert_int_equal(object.fd, -1);
		assert_int_equal(bucket_rig_uploads(rig), 0);
		assert_null(bucket_rig_there(rig, "m"));
	}
	/* Nor is one whole that was never written, or is said to be shorter. */
	struct ckpt_object object = {.fd = -1};
	assert_int_equal(bucket_rig_create(rig, "m", BLOCK, &object), 0);
	assert_int_equal(bucket_rig_seal(rig, &object, BLOCK), -EIO);
	assert_int_equal(object.fd, -1);
	assert_int_equal(bucket_rig_create(rig, "m", PARTS * BLOCK, &object), 0);
	write_at_once(rig, &object, data, PARTS);
	assert_int_equal(bucket_rig_seal(rig, &object, PARTS * BLOCK - 1), -EINVAL);
	assert_int_equal(object.fd, -1);
	assert_int_equal(bucket_rig_uploads(rig), 0);
	free(data);
	bucket_rig_free(rig);
}

/* A server that takes only so many parts gets larger ones, of whole blocks; and what it cannot hold is not begun. */
static void test_larger_parts(void **state)
{
	static const struct ckpt_s3_limits few = {.part_max = 8 * BLOCK,
		.object_max = 30 * BLOCK,
		.part_min = UINT64_C(5) << 20,
		.parts_max = 3};
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	char *data = random_bytes(rig, 24 * BLOCK);
	struct ckpt_object object = {.fd = -1};

	(void)state;
	assert_int_equal(bucket_rig_create(rig, "m", CKPT_S3_OBJECT_MAX + 1, &object), -EFBIG);
	assert_non_null(strstr(rig->err.message, "53687091200000"));
	rig->client.limits = &few;
	assert_int_equal(bucket_rig_create(rig, "m", 24 * BLOCK + 1, &object), -EFBIG);
	assert_int_equal(object.fd, -1);
	assert_int_equal(bucket_rig_uploads(rig), 0);
	for (uint64_t size = 1; size <= 24 * BLOCK; size += BLOCK / 2) {
		uint64_t parts = 0;

		assert_int_equal(bucket_rig_create(rig, "m", size, &object), 0);
		uint64_t unit = rig->op.unit;
		assert_int_equal(unit % BLOCK, 0);
		assert_true(unit == BLOCK || (unit - BLOCK) * 3 < size);
		for (uint64_t at = 0; at < size; at += unit, parts++)
			assert_int_equal(bucket_rig_write(rig, &object, data + at,
						 at + unit < size ? unit : size - at, at),
				0);
		assert_true(parts <= 3);
		assert_int_equal(bucket_rig_seal(rig, &object, size), 0);
		assert_true(bucket_rig_holds(rig, "m", data, size));
	}
	assert_int_equal(bucket_rig_uploads(rig), 0);
	free(data);
	bucket_rig_free(rig);
}

static void test_abandon(void **state)
{
	static const uint64_t sizes[] = {BLOCK, PARTS * BLOCK};
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	char *data = random_bytes(rig, PARTS * BLOCK);

	(void)state;
	for (size_t i = 0; i < COUNT(sizes); i++)
		for (int when = 0; when < 3; when++) {
			struct ckpt_object object = {.fd = -1};
			assert_int_equal(bucket_rig_create(rig, "m", sizes[i], &object), 0);
			for (uint64_t at = 0; when > 0 && at < sizes[i]; at += BLOCK)
				assert_int_equal(
					bucket_rig_write(rig, &object, data + at, BLOCK, at), 0);
			if (when > 1)
				assert_int_equal(bucket_rig_seal(rig, &object, sizes[i]), 0);
			assert_int_equal(bucket_rig_abandon(rig, &object), 0);
			assert_int_equal(object.fd, -1);
			assert_int_equal(bucket_rig_uploads(rig), 0);
			assert_null(bucket_rig_there(rig, "m"));
		}
	free(data);
	bucket_rig_free(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_publish_get_remove),
		cmocka_unit_test(test_quiet_answers),
		cmocka_unit_test(test_limits_of_get),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_directories_are_nothing),
		cmocka_unit_test(test_shards),
		cmocka_unit_test(test_parts_at_once),
		cmocka_unit_test(test_a_part_is_missing),
		cmocka_unit_test(test_larger_parts),
		cmocka_unit_test(test_going_on),
		cmocka_unit_test(test_going_on_cut_otherwise),
		cmocka_unit_test(test_going_on_with_one_part),
		cmocka_unit_test(test_going_on_with_other_parts),
		cmocka_unit_test(test_going_on_without_lists),
		cmocka_unit_test(test_going_on_after_a_seal),
		cmocka_unit_test(test_abandon),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
