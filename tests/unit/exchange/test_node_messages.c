/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other about the stores of their nodes is read back as it was told, or refused. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/types.h>
#include "exchange/exchange.h"
#include "exchange/node_messages.h"
#include "format/sealed.h"

#define KEY "store-r2"
#define RUN "00112233445566778899aabbccddeeff"

static struct ckpt_node_record a_record(void)
{
	return (struct ckpt_node_record){.rank = 2,
		.node = "node-7",
		.run_id = RUN,
		.keeps = true,
		.newest = 9,
		.claim_count = 2,
		.claims = {{.generation = 9, .from = 2}, {.generation = 7, .from = 2}},
		.step_count = 2,
		.steps = {{.generation = 9, .step = 5, .from = 2},
			{.generation = 7, .step = CKPT_STEP_MAX, .from = 2}},
		.open_count = 1,
		.open = {{.generation = 9, .step = 6, .from = 2}}};
}

static void check_items(
	const struct ckpt_node_item *a, const struct ckpt_node_item *b, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(ckpt_node_item_order(&a[i], &b[i]), 0);
		assert_int_equal(a[i].from, b[i].from);
	}
}

static void check_same(const struct ckpt_node_record *a, const struct ckpt_node_record *b)
{
	assert_int_equal(a->verdict.code, b->verdict.code);
	assert_int_equal(a->rank, b->rank);
	assert_string_equal(a->node, b->node);
	assert_string_equal(a->run_id, b->run_id);
	assert_int_equal(a->keeps, b->keeps);
	assert_int_equal(a->newest, b->newest);
	assert_int_equal(a->claim_count, b->claim_count);
	assert_int_equal(a->step_count, b->step_count);
	check_items(a->claims, b->claims, a->claim_count);
	check_items(a->steps, b->steps, a->step_count);
	assert_int_equal(a->open_count, b->open_count);
	check_items(a->open, b->open, a->open_count);
}

static void check_there_and_back(const struct ckpt_node_record *in)
{
	struct ckpt_node_record out;
	struct ckpt_buf buf = {0};

	assert_int_equal(ckpt_node_record_encode(in, KEY, &buf), 0);
	assert_true(buf.len < CKPT_EXCHANGE_VALUE_MAX);
	assert_int_equal(ckpt_node_record_decode(buf.data, buf.len, KEY, NULL, &out), 0);
	check_same(in, &out);
	/* It is of no other rank. */
	out.rank = 99;
	assert_int_equal(
		ckpt_node_record_decode(buf.data, buf.len, "store-r3", NULL, &out), CKPT_EFORMAT);
	assert_int_equal(out.rank, 99);
	ckpt_buf_free(&buf);
}

static void test_there_and_back(void **state)
{
	struct ckpt_node_record record = a_record();
	struct ckpt_node_record none = {
		.verdict = {.code = CKPT_EINUSE, .reason = "held"}, .run_id = CKPT_NODE_NO_RUN};

	(void)state;
	check_there_and_back(&record);
	check_there_and_back(&none);
	record.claim_count = CKPT_NODE_CLAIMS;
	record.step_count = record.open_count = CKPT_NODE_STEPS;
	for (uint32_t i = 0; i < CKPT_NODE_CLAIMS; i++)
		record.claims[i] = (struct ckpt_node_item){
			.generation = CKPT_GENERATION_MAX - i, .from = CKPT_WORLD_MAX - 1};
	for (uint32_t i = 0; i < CKPT_NODE_STEPS; i++)
		record.steps[i] = (struct ckpt_node_item){
			.generation = 1, .step = CKPT_STEP_MAX - i, .from = i};
	memcpy(record.open, record.steps, sizeof(record.open));
	check_there_and_back(&record);
}

/* Every bit turned over, every length. */
static void test_damage(void **state)
{
	struct ckpt_node_record in = a_record();
	struct ckpt_node_record out;
	struct ckpt_buf buf = {0};

	(void)state;
	assert_int_equal(ckpt_node_record_encode(&in, KEY, &buf), 0);
	char *copy = malloc(buf.len);
	for (size_t i = 0; i < buf.len; i++) {
		for (unsigned bit = 0; bit < 8; bit++) {
			memcpy(copy, buf.data, buf.len);
			copy[i] ^= (char)(1u << bit);
			assert_true(ckpt_node_record_decode(copy, buf.len, KEY, NULL, &out) < 0);
		}
		memcpy(copy, buf.data, i);
		assert_true(ckpt_node_record_decode(copy, i, KEY, NULL, &out) < 0);
	}
	free(copy);
	ckpt_buf_free(&buf);
}

static void check_sealed(
	const char *keeps, const char *newest, const char *claims, const char *steps, bool good)
{
	struct ckpt_node_record out;
	struct ckpt_buf buf = {0};

	ckpt_buf_printf(&buf,
		"{\"format\":[1,0],\"kind\":\"node\",\"key\":\"" KEY
		"\",\"code\":0,\"reason\":\"\",\"rank\":2,\"node\":\"n\",\"run_id\":\"" RUN
		"\",\"keeps\":%s,\"newest\":%s,\"claims\":%s,\"steps\":%s,\"open\":[]",
		keeps, newest, claims, steps);
	ckpt_sealed_finish(&buf);
	assert_int_equal(ckpt_node_record_decode(buf.data, buf.len, KEY, NULL, &out),
		good ? 0 : CKPT_EFORMAT);
	ckpt_buf_free(&buf);
}

/* What has a digest of its own may be wrong all the same. */
static void test_hostile(void **state)
{
	char many[CKPT_NODE_STEPS * 16 + 32] = "[[9,99,0]";

	(void)state;
	check_sealed("1", "9", "[[9,0,2],[7,0,1]]", "[[9,5,2],[9,4,0],[7,6,0]]", true);
	check_sealed("0", "0", "[]", "[]", true);
	check_sealed("2", "9", "[]", "[]", false);
	check_sealed("true", "9", "[]", "[]", false);
	check_sealed("1", "1000000", "[]", "[]", false);
	check_sealed("1", "9", "{}", "[]", false);
	check_sealed("1", "9", "[9]", "[]", false);
	check_sealed("1", "9", "[[9,0]]", "[]", false);
	check_sealed("1", "9", "[[9,0,2,1]]", "[]", false);
	check_sealed("1", "9", "[[0,0,2]]", "[]", false);
	check_sealed("1", "9", "[[9,0,1000000]]", "[]", false);
	check_sealed("1", "9", "[[9,0,-1]]", "[]", false);
	/* Twice, or the older one first. */
	check_sealed("1", "9", "[[9,0,2],[9,0,1]]", "[]", false);
	check_sealed("1", "9", "[]", "[[7,6,0],[9,5,2]]", false);
	check_sealed("1", "9", "[]", "[[9,10000000000,2]]", false);
	for (int i = 0; i < CKPT_NODE_STEPS; i++) {
		size_t at = strlen(many);
		(void)snprintf(many + at, sizeof(many) - at, ",[8,%d,0]", 98 - i);
	}
	many[strlen(many)] = ']';
	check_sealed("1", "9", "[]", many, false);
}

static struct ckpt_node_record with_steps(const uint64_t *steps, size_t count, uint32_t from)
{
	struct ckpt_node_record record = {.rank = from, .newest = from, .step_count = count};

	for (size_t i = 0; i < count; i++)
		record.steps[i] =
			(struct ckpt_node_item){.generation = 1, .step = steps[i], .from = from};
	return record;
}

static void check_steps(const struct ckpt_node_record *all, const uint64_t *steps,
	const uint32_t *from, size_t count)
{
	assert_int_equal(all->step_count, count);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(all->steps[i].step, steps[i]);
		assert_int_equal(all->steps[i].from, from[i]);
	}
}

/* All that any of them has, newest first, from whoever was asked first. */
static void test_unite(void **state)
{
	const uint64_t one[] = {9, 7, 5};
	const uint64_t two[] = {10, 7, 6, 1};
	const uint64_t united[] = {10, 9, 7, 6, 5, 1};
	const uint32_t from[] = {2, 1, 1, 2, 1, 2};
	struct ckpt_node_record all = {0};
	struct ckpt_node_record a = with_steps(one, COUNT(one), 1);
	struct ckpt_node_record b = with_steps(two, COUNT(two), 2);

	(void)state;
	ckpt_node_record_unite(&all, &a);
	ckpt_node_record_unite(&all, &b);
	check_steps(&all, united, from, COUNT(united));
	assert_int_equal(all.newest, 2);
	ckpt_node_record_unite(&all, &a);
	check_steps(&all, united, from, COUNT(united));
}

/* Of more than there is room for the newest stay. */
static void test_unite_full(void **state)
{
	uint64_t even[CKPT_NODE_STEPS];
	uint64_t odd[CKPT_NODE_STEPS];
	struct ckpt_node_record all = {0};

	(void)state;
	for (unsigned i = 0; i < CKPT_NODE_STEPS; i++) {
		even[i] = 1000 - 2 * i;
		odd[i] = 999 - 2 * i;
	}
	struct ckpt_node_record a = with_steps(even, CKPT_NODE_STEPS, 1);
	struct ckpt_node_record b = with_steps(odd, CKPT_NODE_STEPS, 2);
	ckpt_node_record_unite(&all, &a);
	ckpt_node_record_unite(&all, &b);
	assert_int_equal(all.step_count, CKPT_NODE_STEPS);
	for (unsigned i = 0; i < CKPT_NODE_STEPS; i++)
		assert_int_equal(all.steps[i].step, 1000 - i);
}

static void test_credentials_json(void **state)
{
	char key[CKPT_EXCHANGE_KEY_MAX];

	(void)state;
	ckpt_key_node(key, CKPT_WORLD_MAX);
	assert_string_equal(key, "store-r1000000");
	ckpt_key_node_ready(key, 3);
	assert_string_equal(key, "store-r3-ready");
	ckpt_key_nodes(key);
	assert_string_equal(key, "stores");
	ckpt_key_bring_claim(key, 12);
	assert_string_equal(key, "bring-g12");
	ckpt_key_bring_step(key, CKPT_GENERATION_MAX, CKPT_STEP_MAX);
	assert_string_equal(key, "bring-g999999-s9999999999");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_unite),
		cmocka_unit_test(test_unite_full),
		cmocka_unit_test(test_credentials_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
