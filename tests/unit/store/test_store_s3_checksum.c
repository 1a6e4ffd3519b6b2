/* SPDX-License-Identifier: Apache-2.0 */
/* What a server has is what was sent: by CRC32C where it heeds one, over TLS, and else by a SHA-256 that is signed. */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/test.h"
#include "s3/crc32c.h"

#define BLOCK BUCKET_RIG_BLOCK
#define PARTS 5
#define SIZE  (PARTS * BLOCK - 9)

/* What came by, and what is done to it. */
static struct {
	unsigned summed; /* bodies with a CRC32C whose payload is not signed */
	unsigned hashed; /* bodies whose SHA-256 is signed */
	unsigned spoil; /* of the parts with a sum that come next, this one is changed on its way */
	unsigned lie;   /* and of this one the answer has another sum */
	bool lies;      /* of all; and of a Complete */
	bool silent;    /* no answer to a part has one */
} seen;

static void watch(void *user, struct s3_request *asked)
{
	const char *sum = pairs_get(&asked->headers, "x-amz-checksum-crc32c");
	const char *payload = pairs_get(&asked->headers, "x-amz-content-sha256");

	(void)user;
	if (strcmp(asked->method, "PUT") != 0)
		return;
	seen.summed += sum && strcmp(payload, "UNSIGNED-PAYLOAD") == 0;
	seen.hashed += !sum && strlen(payload) == 64;
	assert_true((sum != NULL) == (strlen(payload) != 64));
	if (s3_part_number(asked) > 0 && seen.spoil > 0 && --seen.spoil == 0)
		asked->body->data[17] ^= 4;
}

static void answer(void *user, const struct s3_request *asked, struct s3_reply *reply)
{
	struct pairs headers = reply->headers;
	bool lies = seen.lies || (s3_part_number(asked) > 0 && seen.lie > 0 && --seen.lie == 0);
	char text[2000] = "";
	char *sum;

	(void)user;
	reply->headers = (struct pairs){0};
	for (size_t i = 0; i < headers.count; i++) {
		const char *name = headers.at[i].name;
		bool of_sum = strcmp(name, "x-amz-checksum-crc32c") == 0;
		if (!of_sum || !seen.silent || s3_part_number(asked) == 0)
			pairs_add(&reply->headers, name,
				of_sum && lies ? "AAAAAA==" : headers.at[i].value);
	}
	pairs_clear(&headers);
	if (!seen.lies || strcmp(s3_operation(asked), "CompleteMultipartUpload") != 0)
		return;
	(void)rope_read(&reply->body, 0, text, sizeof(text) - 1);
	sum = strstr(text, "<ChecksumCRC32C>");
	assert_non_null(sum);
	sum[16] = sum[16] == 'A' ? 'B' : 'A';
	rope_clear(&reply->body);
	rope_add_copy(&reply->body, text, strlen(text));
}

static struct bucket_rig *fresh(bool tls)
{
	memset(&seen, 0, sizeof(seen));
	struct bucket_rig *rig = bucket_rig_new((struct bucket_rig){.tls = tls}, 7);
	rig->http.proxy = watch;
	rig->http.answered = answer;
	return rig;
}

static void check_shard(struct bucket_rig *rig, const char *path, const char *data)
{
	assert_int_equal(bucket_rig_shard(rig, path, data, SIZE), 0);
	assert_true(bucket_rig_holds(rig, path, data, SIZE));
}

/* The first so many parts. */
static void write_parts(
	struct bucket_rig *rig, struct ckpt_object *object, const char *data, unsigned count)
{
	for (unsigned p = 0; p < count; p++)
		assert_int_equal(bucket_rig_write(rig, object, data + p * BLOCK,
					 ckpt_min_u64(BLOCK, SIZE - p * BLOCK), p * BLOCK),
			0);
}

/* All parts of "m", of which the server may have some; and it is whole. */
static void write_rest(struct bucket_rig *rig, struct ckpt_object *object, const char *data)
{
	write_parts(rig, object, data, PARTS);
	assert_int_equal(bucket_rig_seal(rig, object, SIZE), 0);
	assert_true(bucket_rig_holds(rig, "m", data, SIZE));
}

static void check_names(struct bucket_rig *rig, size_t count)
{
	assert_int_equal(bucket_rig_list(rig, "."), 0);
	assert_int_equal(rig->op.listing.count, count);
	ckpt_free(rig->op.listing.names);
}

/* Two requests tell, once, and leave nothing. */
static void test_heeded(void **state)
{
	struct bucket_rig *rig = fresh(true);
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	check_shard(rig, "a", data);
	assert_int_equal(seen.summed, 2 + PARTS);
	check_shard(rig, "b", data);
	assert_int_equal(seen.summed, 2 + 2 * PARTS);
	/* In one request. */
	assert_int_equal(bucket_rig_shard(rig, "c", data, 100), 0);
	assert_true(bucket_rig_holds(rig, "c", data, 100));
	assert_int_equal(seen.summed, 2 + 2 * PARTS + 1);
	assert_int_equal(seen.hashed, 0);
	check_names(rig, 3);
	assert_false(bucket_rig_logged(rig, "CRC32C"));
	free(data);
	bucket_rig_free(rig);
}

/* A server that takes whatever sum it is told is not trusted with one. */
static void test_ignored(void **state)
{
	struct bucket_rig *rig = fresh(true);
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	buckets_capabilities(rig->front.buckets)->checksums_ignored = true;
	check_shard(rig, "a", data);
	check_shard(rig, "b", data);
	assert_int_equal(seen.summed, 1);
	assert_int_equal(seen.hashed, 2 * PARTS);
	assert_true(bucket_rig_logged(rig, "does not check CRC32C"));
	check_names(rig, 2);
	/* It looks at what is signed. */
	seen.spoil = 2;
	check_shard(rig, "c", data);
	assert_int_equal(seen.spoil, 0);
	free(data);
	bucket_rig_free(rig);
}

/* Whoever listens could change both the bytes and their sum. */
static void test_without_tls(void **state)
{
	struct bucket_rig *rig = fresh(false);
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	check_shard(rig, "a", data);
	assert_int_equal(seen.summed, 0);
	assert_int_equal(seen.hashed, PARTS);
	free(data);
	bucket_rig_free(rig);
}

/* A refusal of anything else is no proof that sums are heeded. */
static void test_probes_that_are_refused(void **state)
{
	static const char *const rules[] = {
		"{'do':'answer','operation':'PutObject','times':1,'status':403,'code':'"
		"AccessDenied'}",
		"{'do':'answer','operation':'PutObject','times':1,'status':400,'code':'"
		"InvalidRequest'}",
		"{'do':'answer','operation':'PutObject','times':1,'status':501,'code':'"
		"NotImplemented'}",
		"{'do':'answer','operation':'PutObject','times':3,'status':400,'code':'BadDigest'}",
	};
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	for (size_t i = 0; i < COUNT(rules); i++) {
		struct bucket_rig *rig = fresh(true);
		rig->client.attempts = 2;
		bucket_rig_faults(rig, rules[i]);
		check_shard(rig, "a", data);
		assert_int_equal(seen.hashed, PARTS);
		check_names(rig, 1);
		bucket_rig_free(rig);
	}
	free(data);
}

/* What goes wrong on the way says nothing, and is tried again. */
static void test_probes_that_are_lost(void **state)
{
	static const char *const rules[] = {
		"{'do':'drop','operation':'PutObject','times':2}",
		"{'do':'drop_reply','operation':'PutObject','times':2}",
		"{'do':'drop_reply','operation':'PutObject','nth':2,'times':1}",
		"{'do':'answer','operation':'PutObject','times':2,'status':503,'code':'SlowDown'}",
		("{'do':'answer','operation':'PutObject','times':2,'status':400,"
		 "'code':'RequestTimeout'}"),
	};
	struct ckpt_object object = {.fd = -1};
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	for (size_t i = 0; i < COUNT(rules); i++) {
		struct bucket_rig *rig = fresh(true);
		bucket_rig_faults(rig, rules[i]);
		check_shard(rig, "a", data);
		assert_int_equal(seen.hashed, 0);
		check_names(rig, 1);
		bucket_rig_free(rig);
	}
	struct bucket_rig *rig = fresh(true);
	bucket_rig_faults(rig, "{'do':'drop'}");
	assert_int_equal(bucket_rig_create(rig, "a", SIZE, &object), CKPT_ENETWORK);
	assert_int_equal(object.fd, -1);
	bucket_rig_faults(rig, "");
	check_shard(rig, "a", data);
	assert_int_equal(seen.hashed, 0);
	free(data);
	bucket_rig_free(rig);
}

/* A part that is changed on its way is refused, or told by the answer, and sent again. */
static void test_changed_on_the_way(void **state)
{
	struct bucket_rig *rig = fresh(true);
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	seen.spoil = 3;
	check_shard(rig, "a", data);
	assert_int_equal(seen.spoil, 0);
	seen.lie = 3;
	check_shard(rig, "b", data);
	assert_int_equal(seen.lie, 0);
	assert_int_equal(seen.summed, 2 + 2 * (PARTS + 1));
	bucket_rig_free(rig);
	/* A server that says so again and again has other bytes. */
	struct ckpt_object object = {.fd = -1};
	rig = fresh(true);
	rig->client.attempts = 2;
	check_shard(rig, "a", data);
	assert_int_equal(bucket_rig_create(rig, "b", SIZE, &object), 0);
	seen.lies = true;
	assert_int_equal(bucket_rig_write(rig, &object, data, BLOCK, 0), CKPT_EINTEGRITY);
	assert_non_null(strstr(rig->err.message, "another CRC32C"));
	assert_int_equal(bucket_rig_abandon(rig, &object), 0);
	/* Or has put the parts together in some other way. */
	seen.lies = false;
	assert_int_equal(bucket_rig_create(rig, "c", SIZE, &object), 0);
	write_parts(rig, &object, data, PARTS);
	seen.lies = true;
	assert_int_equal(bucket_rig_seal(rig, &object, SIZE), CKPT_EINTEGRITY);
	assert_non_null(strstr(rig->err.message, "another CRC32C"));
	assert_int_equal(object.fd, -1);
	assert_int_equal(bucket_rig_uploads(rig), 0);
	free(data);
	bucket_rig_free(rig);
}

/* One that heeds sums of objects and says none of parts may not look at these: they are sent again, and signed. */
static void test_parts_without_an_answer(void **state)
{
	struct bucket_rig *rig = fresh(true);
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	seen.silent = true;
	check_shard(rig, "a", data);
	assert_int_equal(seen.summed, 2 + 1);
	assert_int_equal(seen.hashed, PARTS);
	check_shard(rig, "b", data);
	assert_int_equal(seen.summed, 2 + 1);
	free(data);
	bucket_rig_free(rig);
}

static void reopen(struct bucket_rig *rig, bool heeded)
{
	buckets_capabilities(rig->front.buckets)->checksums_ignored = !heeded;
	ckpt_store_close(rig->store);
	assert_int_equal(ckpt_store_s3_open(&rig->env, &rig->sched, &rig->client, BLOCK,
				 "the bucket", &rig->store),
		0);
}

static unsigned begun_uploads(const struct bucket_rig *rig)
{
	const struct journal *journal = &rig->front.journal;
	unsigned begun = 0;

	for (size_t i = 0; i < journal->count; i++)
		begun += journal->entries[i].kind == JOURNAL_APPLIED &&
			 strcmp(journal->entries[i].operation, "CreateMultipartUpload") == 0;
	return begun;
}

/* An upload that was begun in one way is ended in that way, or goes, and another is begun. */
static void test_going_on(void **state)
{
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		bool before = i & 1, after = i & 2;
		unsigned there = i & 4 ? 2 : 0;
		struct ckpt_object object = {.fd = -1};
		struct bucket_rig *rig = fresh(true);
		reopen(rig, before);
		assert_int_equal(bucket_rig_resume(rig, "m", SIZE, &object), 0);
		write_parts(rig, &object, data, there);
		assert_int_equal(bucket_rig_shut(rig, &object), 0);
		reopen(rig, after);
		uint64_t begun = rig->store->bytes_written;
		assert_int_equal(bucket_rig_resume(rig, "m", SIZE, &object), 0);
		assert_int_equal(bucket_rig_uploads(rig), 1);
		/* Of one without sums and without parts nobody knows that it is without. */
		assert_int_equal(
			begun_uploads(rig), before == after || (there > 0 && !before) ? 1 : 2);
		write_rest(rig, &object, data);
		assert_int_equal(bucket_rig_uploads(rig), 0);
		/* What was there is not sent again, but where it has sums and what follows would have none. */
		bool kept = there > 0 && !(before && !after);
		assert_int_equal(
			rig->store->bytes_written - begun, SIZE - (kept ? there * BLOCK : 0));
		bucket_rig_free(rig);
	}
	free(data);
}

/* The youngest is of no use and goes; the older one, with parts, is gone on with, though the answer to that is lost. */
static void test_going_on_with_an_older_one(void **state)
{
	char *data = bucket_rig_bytes(SIZE);
	struct bucket_rig *rig = fresh(true);
	struct ckpt_object object = {.fd = -1};

	(void)state;
	reopen(rig, true);
	assert_int_equal(bucket_rig_resume(rig, "m", SIZE, &object), 0);
	write_parts(rig, &object, data, 2);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	rig->now_ns += UINT64_C(5000000000);
	reopen(rig, false);
	assert_int_equal(bucket_rig_create(rig, "m", SIZE, &object), 0);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	assert_int_equal(bucket_rig_uploads(rig), 2);
	reopen(rig, true);
	uint64_t begun = rig->store->bytes_written;
	bucket_rig_faults(rig, "{'do':'drop_reply','operation':'AbortMultipartUpload','times':1}");
	assert_int_equal(bucket_rig_resume(rig, "m", SIZE, &object), 0);
	assert_int_equal(bucket_rig_uploads(rig), 1);
	assert_int_equal(begun_uploads(rig), 2);
	write_rest(rig, &object, data);
	assert_int_equal(rig->store->bytes_written - begun, SIZE - 2 * BLOCK);
	free(data);
	bucket_rig_free(rig);
}

/* A server that lists an upload for ever which it says to have given up is not asked for ever. */
static void test_an_upload_that_does_not_go(void **state)
{
	char *data = bucket_rig_bytes(SIZE);
	struct bucket_rig *rig = fresh(true);
	struct ckpt_object object = {.fd = -1};

	(void)state;
	reopen(rig, false);
	assert_int_equal(bucket_rig_create(rig, "m", SIZE, &object), 0);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	reopen(rig, true);
	bucket_rig_faults(rig, "{'do':'answer','operation':'AbortMultipartUpload','status':204}");
	assert_int_equal(bucket_rig_resume(rig, "m", SIZE, &object), 0);
	assert_int_equal(bucket_rig_uploads(rig), 2);
	write_rest(rig, &object, data);
	free(data);
	bucket_rig_free(rig);
}

/* Of a name that may have several contents. */

static int resume_varied(struct bucket_rig *rig, uint64_t size, struct ckpt_object *object)
{
	ckpt_store_resume_varied(rig->store, bucket_rig_op(rig), "m", size, object);
	return bucket_rig_wait(rig);
}

/* The first `size` bytes, part by part; and it is sealed. */
static void write_varied(
	struct bucket_rig *rig, struct ckpt_object *object, const char *data, uint64_t size)
{
	for (uint64_t at = 0; at < size; at += BLOCK)
		assert_int_equal(bucket_rig_write(rig, object, data + at,
					 ckpt_min_u64(BLOCK, size - at), at),
			0);
	assert_int_equal(bucket_rig_seal(rig, object, size), 0);
	assert_true(bucket_rig_holds(rig, "m", data, size));
	assert_int_equal(bucket_rig_uploads(rig), 0);
}

/*
 * Parts of another content are there, which was longer, or not: where the server has sums what is the same is not sent
 * again, and what is not becomes no part of it. Where it has none all is sent.
 */
static void test_several_contents(void **state)
{
	static const uint64_t sizes[] = {
		3 * BLOCK + 5, 3 * BLOCK, 2 * BLOCK - 1, BLOCK, 7, SIZE, 4 * BLOCK + 1};
	char *first = bucket_rig_bytes(SIZE);
	char *second = bucket_rig_bytes(SIZE);

	(void)state;
	second[BLOCK + 17] ^= 1;
	for (unsigned i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
		bool sums = i & 1;
		uint64_t size = sizes[i / 2];
		struct ckpt_object object = {.fd = -1};
		struct bucket_rig *rig = fresh(true);
		reopen(rig, sums);
		assert_int_equal(resume_varied(rig, SIZE, &object), 0);
		write_parts(rig, &object, first, PARTS);
		assert_int_equal(bucket_rig_shut(rig, &object), 0);
		reopen(rig, sums);
		assert_int_equal(resume_varied(rig, SIZE, &object), 0);
		assert_int_equal(begun_uploads(rig), 1);
		write_varied(rig, &object, second, size);
		uint64_t sent = size;
		for (uint64_t at = 0; sums && at < size; at += BLOCK) {
			uint64_t bytes = ckpt_min_u64(BLOCK, size - at);
			if (at != BLOCK && bytes == ckpt_min_u64(BLOCK, SIZE - at))
				sent -= bytes;
		}
		assert_int_equal(rig->store->bytes_written, sent);
		bucket_rig_free(rig);
	}
	free(first);
	free(second);
}

/* One that fits into a part is one request, however short it is. */
static void test_short_and_varied(void **state)
{
	struct bucket_rig *rig = fresh(true);
	char *data = bucket_rig_bytes(BLOCK);
	struct ckpt_object object = {.fd = -1};

	(void)state;
	assert_int_equal(resume_varied(rig, BLOCK, &object), 0);
	write_varied(rig, &object, data, 100);
	assert_int_equal(begun_uploads(rig), 0);
	bucket_rig_free(rig);
	free(data);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_heeded),
		cmocka_unit_test(test_ignored),
		cmocka_unit_test(test_without_tls),
		cmocka_unit_test(test_probes_that_are_refused),
		cmocka_unit_test(test_probes_that_are_lost),
		cmocka_unit_test(test_changed_on_the_way),
		cmocka_unit_test(test_parts_without_an_answer),
		cmocka_unit_test(test_going_on),
		cmocka_unit_test(test_going_on_with_an_older_one),
		cmocka_unit_test(test_an_upload_that_does_not_go),
		cmocka_unit_test(test_several_contents),
		cmocka_unit_test(test_short_and_varied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
