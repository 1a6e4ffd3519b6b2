/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other: a record of a rank, of a node, how a step ended, or a verdict. */
#include "fuzz.h"

#include <string.h>

#include "exchange/node_messages.h"
#include "format/index.h"

struct told {
	bool of_rank;
	bool of_step;
	bool of_node;
	struct ckpt_node_record node;
	struct ckpt_rank_record record; /* its verdict is that of whatever it is */
	struct ckpt_outcome outcome;
};

static int decode(const uint8_t *data, size_t length, struct ckpt_error *err, void *ret_value)
{
	struct told *told = ret_value;
	struct ckpt_error first = {.size = sizeof(first)};

	told->of_rank = true;
	if (ckpt_rank_record_decode(data, length, FUZZ_FILE, &first, &told->record) == 0)
		return 0;
	told->of_rank = false;
	told->of_node = ckpt_node_record_decode(data, length, FUZZ_FILE, &first, &told->node) == 0;
	if (told->of_node)
		return 0;
	told->of_step = ckpt_outcome_decode(data, length, FUZZ_FILE, &first, &told->outcome) == 0;
	if (told->of_step) {
		told->record.verdict = told->outcome.verdict;
		return 0;
	}
	return ckpt_verdict_decode(data, length, FUZZ_FILE, err, &told->record.verdict);
}

static int encode(const void *value, struct ckpt_buf *out)
{
	const struct told *told = value;

	if (told->of_node)
		return ckpt_node_record_encode(&told->node, FUZZ_FILE, out);
	if (told->of_step)
		return ckpt_outcome_encode(&told->outcome, out);
	return told->of_rank ? ckpt_rank_record_encode(&told->record, out)
			     : ckpt_verdict_encode(&told->record.verdict, out);
}

static void check_items(const struct ckpt_node_item *items, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		FUZZ_CHECK(items[i].generation >= 1 && items[i].generation <= CKPT_GENERATION_MAX);
		FUZZ_CHECK(items[i].step <= CKPT_STEP_MAX && items[i].from < CKPT_WORLD_MAX);
		FUZZ_CHECK(i == 0 || ckpt_node_item_order(&items[i - 1], &items[i]) > 0);
	}
}

static void check_node(const struct ckpt_node_record *node)
{
	FUZZ_CHECK(node->verdict.code <= 0 && node->rank < CKPT_WORLD_MAX);
	FUZZ_CHECK(fuzz_is_line(node->node, strlen(node->node)));
	FUZZ_CHECK(ckpt_run_id_valid(node->run_id) && node->newest <= CKPT_GENERATION_MAX);
	FUZZ_CHECK(node->claim_count <= CKPT_NODE_CLAIMS && node->step_count <= CKPT_NODE_STEPS);
	check_items(node->claims, node->claim_count);
	FUZZ_CHECK(node->open_count <= CKPT_NODE_STEPS);
	check_items(node->steps, node->step_count);
	check_items(node->open, node->open_count);
}

static bool same_node(const struct ckpt_node_record *a, const struct ckpt_node_record *b)
{
	return a->verdict.code == b->verdict.code &&
	       strcmp(a->verdict.reason, b->verdict.reason) == 0 && a->rank == b->rank &&
	       strcmp(a->node, b->node) == 0 && strcmp(a->run_id, b->run_id) == 0 &&
	       a->keeps == b->keeps && a->newest == b->newest && a->claim_count == b->claim_count &&
	       a->step_count == b->step_count && a->open_count == b->open_count &&
	       memcmp(a->open, b->open, a->open_count * sizeof(*a->open)) == 0 &&
	       memcmp(a->claims, b->claims, a->claim_count * sizeof(*a->claims)) == 0 &&
	       memcmp(a->steps, b->steps, a->step_count * sizeof(*a->steps)) == 0;
}

static void check(const void *value)
{
	const struct told *told = value;
	const struct ckpt_verdict *verdict = &told->record.verdict;
	const struct ckpt_manifest_rank *rank = &told->record.rank;

	if (told->of_node) {
		check_node(&told->node);
		return;
	}
	FUZZ_CHECK(verdict->code <= 0);
	FUZZ_CHECK(fuzz_is_line(verdict->reason, strlen(verdict->reason)));
	FUZZ_CHECK(verdict->generation <= CKPT_GENERATION_MAX && verdict->step <= CKPT_STEP_MAX);
	FUZZ_CHECK(!told->of_step || ckpt_attempt_valid(told->outcome.attempt));
	if (!told->of_rank)
		return;
	FUZZ_CHECK(rank->rank < CKPT_WORLD_MAX);
	FUZZ_CHECK(ckpt_attempt_valid(rank->attempt));
	FUZZ_CHECK(fuzz_is_line(rank->node, strlen(rank->node)));
	FUZZ_CHECK(rank->index_bytes <= CKPT_INDEX_MAX);
	FUZZ_CHECK(rank->shard_bytes <= CKPT_SHARD_BYTES_MAX);
	FUZZ_CHECK(told->record.base <= CKPT_STEP_MAX + 1);
	FUZZ_CHECK(verdict->code < 0 || (rank->index_bytes > 0 && rank->shard_bytes > 0));
}

static bool same(const void *value, const void *again)
{
	const struct told *a = value;
	const struct told *b = again;
	const struct ckpt_manifest_rank *x = &a->record.rank;
	const struct ckpt_manifest_rank *y = &b->record.rank;

	if (a->of_node != b->of_node || (a->of_node && !same_node(&a->node, &b->node)))
		return false;
	if (a->of_node)
		return true;
	if (a->of_rank != b->of_rank || a->of_step != b->of_step ||
		a->record.verdict.code != b->record.verdict.code ||
		strcmp(a->record.verdict.reason, b->record.verdict.reason) != 0 ||
		ckpt_verdict_check(&a->record.verdict, &b->record.verdict, "", NULL) < 0)
		return false;
	/* Of what has failed there are no files. */
	if (a->of_step)
		return strcmp(a->outcome.clue, b->outcome.clue) == 0 &&
		       (a->record.verdict.code < 0 ||
			       (strcmp(a->outcome.attempt, b->outcome.attempt) == 0 &&
				       a->outcome.bytes == b->outcome.bytes &&
				       a->outcome.alike == b->outcome.alike &&
				       a->outcome.follow == b->outcome.follow &&
				       a->outcome.compared == b->outcome.compared &&
				       a->outcome.differ == b->outcome.differ));
	/* One that failed has no files, and its attempt is not told. */
	return !a->of_rank ||
	       (x->rank == y->rank && strcmp(x->node, y->node) == 0 &&
		       (a->record.verdict.code < 0 || strcmp(x->attempt, y->attempt) == 0) &&
		       ckpt_digest_equal(&x->index_digest, &y->index_digest) &&
		       x->index_bytes == y->index_bytes && x->shard_bytes == y->shard_bytes &&
		       a->record.balance == b->record.balance &&
		       a->record.stored == b->record.stored && a->record.base == b->record.base &&
		       strcmp(a->record.alike, b->record.alike) == 0);
}

const struct fuzz_sealed fuzz_kind = {.size = sizeof(struct told),
	.decode = decode,
	.encode = encode,
	.check = check,
	.same = same};
