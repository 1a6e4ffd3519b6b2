/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes messages about the stores of nodes. */
#include "exchange/node_messages.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ckpt/types.h>
#include "base/error.h"
#include "exchange/exchange.h"
#include "format/json_put.h"
#include "format/sealed.h"

#define NODE_KIND "node"

enum member {
	FORMAT,
	KIND_,
	DIGEST,
	KEY,
	CODE,
	REASON,
	RANK,
	NODE,
	RUN_ID,
	KEEPS,
	NEWEST,
	CLAIMS,
	STEPS,
	OPEN
};

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[DIGEST] = CKPT_SEALED_DIGEST,
	[KEY] = "key",
	[CODE] = "code",
	[REASON] = "reason",
	[RANK] = "rank",
	[NODE] = "node",
	[RUN_ID] = "run_id",
	[KEEPS] = "keeps",
	[NEWEST] = "newest",
	[CLAIMS] = "claims",
	[STEPS] = "steps",
	[OPEN] = "open",
	NULL,
};

struct reading {
	const char *key;
	struct ckpt_node_record record;
};

/* Writes three numbers each. */
static void put_items(struct ckpt_buf *out, const struct ckpt_node_item *items, size_t count)
{
	for (size_t i = 0; i < count; i++)
		ckpt_buf_printf(out, "%s[%" PRIu64 ",%" PRIu64 ",%u]", i > 0 ? "," : "",
			items[i].generation, items[i].step, items[i].from);
}

int ckpt_node_record_encode(
	const struct ckpt_node_record *record, const char *key, struct ckpt_buf *out)
{
	CKPT_ASSERT(out->len == 0 && record->verdict.code <= 0);
	CKPT_ASSERT(record->claim_count <= CKPT_NODE_CLAIMS);
	CKPT_ASSERT(record->step_count <= CKPT_NODE_STEPS);
	CKPT_ASSERT(record->open_count <= CKPT_NODE_STEPS);
	ckpt_put_head(out, NODE_KIND);
	ckpt_buf_printf(out, ",\"key\":\"%s\",\"code\":%lld,\"reason\":", key,
		-(long long)record->verdict.code);
	ckpt_put_line(out, record->verdict.reason, sizeof(record->verdict.reason));
	ckpt_buf_printf(out, ",\"rank\":%u,\"node\":", record->rank);
	ckpt_put_line(out, record->node, sizeof(record->node));
	ckpt_buf_printf(out, ",\"run_id\":\"%s\",\"keeps\":%d,\"newest\":%" PRIu64 ",\"claims\":[",
		record->run_id, record->keeps, record->newest);
	put_items(out, record->claims, record->claim_count);
	ckpt_buf_puts(out, "],\"steps\":[");
	put_items(out, record->steps, record->step_count);
	ckpt_buf_puts(out, "],\"open\":[");
	put_items(out, record->open, record->open_count);
	ckpt_buf_puts(out, "]");
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

static bool read_item(struct ckpt_reader *r, struct ckpt_node_item *item)
{
	uint64_t from = 0;

	if (!ckpt_reader_open(r, '[') || !ckpt_reader_item(r) ||
		!ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, &item->generation) ||
		!ckpt_reader_item(r) || !ckpt_sealed_number(r, 0, CKPT_STEP_MAX, &item->step) ||
		!ckpt_reader_item(r) || !ckpt_sealed_number(r, 0, CKPT_WORLD_MAX - 1, &from))
		return false;
	item->from = (uint32_t)from;
	return !ckpt_reader_item(r) && !r->failed;
}

/* Reads items, which must be sorted, newest first, without duplicates. */
static bool read_items(
	struct ckpt_reader *r, struct ckpt_node_item *items, size_t most, size_t *ret_count)
{
	size_t count = 0;

	if (!ckpt_reader_open(r, '['))
		return false;
	while (ckpt_reader_item(r)) {
		if (count == most)
			return ckpt_reader_fail(r, "more than %zu items", most);
		if (!read_item(r, &items[count]))
			return false;
		if (count > 0 && ckpt_node_item_order(&items[count - 1], &items[count]) <= 0)
			return ckpt_reader_fail(r, "items that are not in descending order");
		count++;
	}
	*ret_count = count;
	return !r->failed;
}

static bool read_member(struct ckpt_reader *r, int member, void *user)
{
	struct reading *reading = user;
	struct ckpt_node_record *record = &reading->record;
	char key[CKPT_EXCHANGE_KEY_MAX];
	uint64_t number;

	switch (member) {
	case KEY:
		return ckpt_reader_text(r, key, sizeof(key), NULL) &&
		       strcmp(key, reading->key) == 0;
	case CODE:
		if (!ckpt_sealed_number(r, 0, INT32_MAX, &number))
			return false;
		record->verdict.code = -(int)number;
		return true;
	case REASON:
		return ckpt_sealed_line(r, record->verdict.reason, sizeof(record->verdict.reason));
	case RANK:
		if (!ckpt_sealed_number(r, 0, CKPT_WORLD_MAX - 1, &number))
			return false;
		record->rank = (uint32_t)number;
		return true;
	case NODE:
		return ckpt_sealed_line(r, record->node, sizeof(record->node));
	case RUN_ID:
		return ckpt_sealed_run_id(r, record->run_id);
	case KEEPS:
		if (!ckpt_sealed_number(r, 0, 1, &number))
			return false;
		record->keeps = number == 1;
		return true;
	case NEWEST:
		return ckpt_sealed_number(r, 0, CKPT_GENERATION_MAX, &record->newest);
	case CLAIMS:
		return read_items(r, record->claims, CKPT_NODE_CLAIMS, &record->claim_count);
	case STEPS:
		return read_items(r, record->steps, CKPT_NODE_STEPS, &record->step_count);
	case OPEN:
		return read_items(r, record->open, CKPT_NODE_STEPS, &record->open_count);
	default:
		return ckpt_reader_skip(r);
	}
}

int ckpt_node_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_node_record *ret_record)
{
	struct reading reading = {.key = key};
	int r = ckpt_sealed_check(data, length, NODE_KIND, key, err);

	if (r == 0)
		r = ckpt_sealed_read(data, length, members, read_member, &reading, key, err);
	if (r == 0)
		*ret_record = reading.record;
	return r;
}

uint64_t ckpt_node_claim_mark(uint64_t nonce)
{
	return nonce % CKPT_STEP_MAX;
}

int ckpt_node_item_order(const struct ckpt_node_item *a, const struct ckpt_node_item *b)
{
	if (a->generation != b->generation)
		return a->generation < b->generation ? -1 : 1;
	return (a->step > b->step) - (a->step < b->step);
}

bool ckpt_node_item_among(
	const struct ckpt_node_item *item, const struct ckpt_node_item *items, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (ckpt_node_item_order(item, &items[i]) == 0)
			return true;
	return false;
}

static void unite(struct ckpt_node_item *all, size_t *count, size_t most,
	const struct ckpt_node_item *other, size_t others)
{
	size_t at = 0;

	for (size_t i = 0; i < others; i++) {
		while (at < *count && ckpt_node_item_order(&all[at], &other[i]) > 0)
			at++;
		if (at == most)
			return;
		if (at < *count && ckpt_node_item_order(&all[at], &other[i]) == 0)
			continue;
		size_t behind = *count - at - (*count == most);
		memmove(&all[at + 1], &all[at], behind * sizeof(*all));
		all[at] = other[i];
		*count += *count < most;
	}
}

void ckpt_node_record_unite(struct ckpt_node_record *all, const struct ckpt_node_record *other)
{
	all->newest = ckpt_max_u64(all->newest, other->newest);
	unite(all->claims, &all->claim_count, CKPT_NODE_CLAIMS, other->claims, other->claim_count);
	unite(all->steps, &all->step_count, CKPT_NODE_STEPS, other->steps, other->step_count);
	unite(all->open, &all->open_count, CKPT_NODE_STEPS, other->open, other->open_count);
}

void ckpt_key_node(char *out, uint32_t rank)
{
	ckpt_key_put(out, "store-r%u", rank);
}

void ckpt_key_nodes(char *out)
{
	ckpt_key_put(out, "stores");
}

void ckpt_key_node_ready(char *out, uint32_t node_leader)
{
	ckpt_key_put(out, "store-r%u-ready", node_leader);
}

void ckpt_key_bring_claim(char *out, uint64_t generation)
{
	ckpt_key_put(out, "bring-g%" PRIu64, generation);
}

void ckpt_key_bring_step(char *out, uint64_t generation, uint64_t step)
{
	ckpt_key_put(out, "bring-g%" PRIu64 "-s%" PRIu64, generation, step);
}
