/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a step of several ranks has ended, as rank 0 tells it and as the store says it: whose answer is lost, who
 * comes late, who is dead, and what nobody could have said.
 */
#include "lib/test.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/save/saver.h"
#include "lib/rank_rig.h"
#include "lib/scratch.h"

static void test_together(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, RANK_RIG_RANKS, RANK_RIG_RANKS, 60000);
	for (uint64_t step = 1; step <= 4; step++) {
		for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
			rank_rig_begin(s, rank, step);
		rank_rig_sleep(s, 300);
		for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
			assert_int_equal(rank_rig_end(s, rank), 0);
	}
	/* All know the step as its manifest says it is. */
	const struct ckpt_scan_step *first = ckpt_scan_find(&s->rank[0].core.lineage->scan, 1, 4);
	assert_true(first->bytes > RANK_RIG_RANKS * 4096);
	assert_int_equal(s->rank[0].core.lineage->scan.step_count, 4);
	for (uint32_t rank = 1; rank < RANK_RIG_RANKS; rank++) {
		const struct ckpt_scan_step *other =
			ckpt_scan_find(&s->rank[rank].core.lineage->scan, 1, 4);
		/* Whoever removes none need not remember them. */
		assert_int_equal(s->rank[rank].core.lineage->scan.step_count, 1);
		assert_string_equal(other->attempt, first->attempt);
		assert_int_equal(other->bytes, first->bytes);
	}
	/* Nothing is left but the first word of each, the claim, and how the last one ended. */
	assert_int_equal(scratch_count(scratch_join(s->dir, "exchange/rig")), RANK_RIG_RANKS + 2);
	assert_int_equal(access(rank_rig_told(s, "g1-s4"), F_OK), 0);
}

/* An exchange that counts what it is asked for. */
struct counted {
	struct ckpt_exchange exchange;
	struct ckpt_exchange *inner;
	unsigned asked;
};

static void count_submit(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op)
{
	struct counted *c = CKPT_CONTAINER(exchange, struct counted, exchange);

	c->asked += op->verb == CKPT_EXCHANGE_GET;
	c->inner->ops->submit(c->inner, op);
}

static const struct ckpt_exchange_ops count_ops = {.name = "counted", .submit = count_submit};

/* However long rank 0 takes: a job of 2,000 does not ask for the outcome more than 50,000 times a second. */
static void test_seldom_asked(void **state)
{
	enum { WORLD = 2000, EACH = 50000 / WORLD, LATER = 10, OTHERS = 8 };
	struct rank_rig *s = *state;
	struct counted counted = {.exchange = {.ops = &count_ops}};
	struct ckpt_core *core = &s->rank[1].core;

	rank_rig_open_all(s, 2, WORLD, 60000);
	counted.inner = core->exchange;
	counted.exchange.sched = counted.inner->sched;
	core->exchange = &counted.exchange;
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 100);
	for (unsigned second = 1; second <= 8; second++) {
		counted.asked = 0;
		rank_rig_sleep(s, 1000);
		/* After four seconds it pauses for a tenth of one each time. */
		assert_in_range(counted.asked, 3, (second > 5 ? LATER : EACH) + OTHERS);
	}
	rank_rig_sleep(s, 60000);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	core->exchange = counted.inner;
}

/* The manifest was published, and its answer lost: what is there is this rank's own. */
static void test_lost_answer(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, RANK_RIG_RANKS, RANK_RIG_RANKS, 60000);
	unsigned rule =
		io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
							.path = "manifest",
							.error = -EEXIST,
							.late = true});
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
		rank_rig_begin(s, rank, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(s->rank[0].fault.hits[rule], 1);
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
		assert_int_equal(rank_rig_end(s, rank), 0);
	assert_int_equal(core_rig_read(&s->rank[0], 1, CKPT_SINK_NONE), 0);
	/* And what it cannot read afterwards stays as it is, and is not known to anybody. */
	rule = io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						       .path = "manifest",
						       .error = -EEXIST,
						       .late = true});
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "manifest", .error = -EIO, .nth = 2});
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
		rank_rig_begin(s, rank, 2);
	rank_rig_sleep(s, 2000);
	assert_int_equal(rank_rig_end(s, 0), -EIO);
	io_fault_clear(&s->rank[0].fault);
	for (uint32_t rank = 1; rank < RANK_RIG_RANKS; rank++) {
		assert_int_equal(rank_rig_end(s, rank), -EIO);
		rank_rig_check_says(s, rank, "whether step 2 is durable");
	}
	assert_int_equal(core_rig_read(&s->rank[0], 2, CKPT_SINK_NONE), 0);
}

/*
 * The name of the manifest is there, and rank 0 could not make it durable. Others could sync it well: where the
 * system says so once, that proves nothing. So no rank says LOCAL, be it that it has seen the manifest before
 * it hears of rank 0.
 */
static void test_unknown(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, RANK_RIG_RANKS, RANK_RIG_RANKS, 600000);
	for (uint64_t step = 1; step <= 2; step++) {
		unsigned rule = io_fault_add(
			&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR,
						   .path = step == 1 ? "0001/step-" : "step-",
						   .error = -EIO,
						   .nth = 2});
		if (step == 2)
			(void)io_fault_add(&s->rank[0].fault,
				(struct io_fault_rule){
					.op = CKPT_IO_OP_RENAME, .path = "g1-s2", .hold = true});
		for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
			rank_rig_begin(s, rank, step);
		rank_rig_sleep(s, step == 1 ? 300 : 1500);
		assert_int_equal(s->rank[0].fault.hits[rule], 1);
		assert_true(rank_rig_ended(s, 0));
		for (uint32_t rank = 1; rank < RANK_RIG_RANKS; rank++)
			assert_int_equal(rank_rig_ended(s, rank), step == 1);
		io_fault_clear(&s->rank[0].fault);
		core_rig_let_go(&s->rank[0]);
		rank_rig_sleep(s, 300);
		for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
			assert_int_equal(rank_rig_end(s, rank), -EIO);
		rank_rig_check_says(s, 2, "no rank knows whether step");
		assert_int_equal(access(rank_rig_manifest(s, step), F_OK), 0);
		assert_int_equal(core_rig_read(&s->rank[0], step, CKPT_SINK_NONE), 0);
	}
	/* The next one is not held up by that. */
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
		rank_rig_begin(s, rank, 3);
	rank_rig_sleep(s, 300);
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
		assert_int_equal(rank_rig_end(s, rank), 0);
}

/* Another rank gave up first: rank 0 says what that one said, and not that a file exists. */
static void test_late_for_the_register(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 4000);
	rank_rig_begin(s, 1, 1);
	for (unsigned i = 0; i < 800 && !rank_rig_ended(s, 1); i++)
		core_rig_sleep(&s->rank[1], 5);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	rank_rig_check_says(s, 1, "rank 1 on node rig has not received its outcome");
	assert_int_equal(access(rank_rig_manifest(s, 1), F_OK), 0);
	rank_rig_begin(s, 0, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EABORTED);
	rank_rig_check_says(s, 0, "rank 1 on node rig has not received its outcome");
	assert_int_equal(access(rank_rig_told(s, "g1-s1"), F_OK), 0);
	/* Only the record is left. */
	assert_int_equal(scratch_count(scratch_join(s->dir, "g000001/step-0000000001")), 1);
}

/*
 * The same where each node has a store of its own, and the exchange says how a step has ended: rank 0 takes its
 * files away, since nobody can commit them any more, and no record is left in any store.
 */
static void test_late_for_the_exchange(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 4000);
	for (uint32_t rank = 0; rank < 2; rank++) {
		s->rank[rank].core.config.node_store = true;
		s->rank[rank].core.config.node_leader = rank;
		s->rank[rank].core.lineage->marker.shared = false;
	}
	memcpy(s->rank[1].core.config.node, "other", sizeof("other"));
	rank_rig_begin(s, 1, 1);
	for (unsigned i = 0; i < 800 && !rank_rig_ended(s, 1); i++)
		core_rig_sleep(&s->rank[1], 5);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	rank_rig_begin(s, 0, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EABORTED);
	rank_rig_check_says(s, 0, "rank 1 on node other has not received its outcome");
	assert_int_equal(access(rank_rig_manifest(s, 1), F_OK), -1);
	assert_int_equal(scratch_count(scratch_join(s->dir, "g000001")), 0);
	assert_null(ckpt_scan_find(&s->rank[0].core.lineage->scan, 1, 1));
	/* And the next one is committed. */
	rank_rig_begin(s, 0, 2);
	rank_rig_begin(s, 1, 2);
	rank_rig_sleep(s, 300);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(rank_rig_end(s, rank), 0);
	assert_int_equal(core_rig_read(&s->rank[0], 2, CKPT_SINK_NONE), 0);
}

/* Somebody's record is in the register when this rank gives up: that is what it says. */
static void test_reason_of_another(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 4000);
	(void)io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						      .path = "g1-s1",
						      .error = -EIO,
						      .count = IO_FAULT_ALWAYS});
	rank_rig_begin(s, 0, 1);
	struct ckpt_error why = {.size = sizeof(why)};
	ckpt_error_clear(&why);
	(void)ckpt_fail(&why, CKPT_ETORN, "it was changed by the test");
	ckpt_save_post_failure(s->save[0], &why);
	core_rig_run(&s->rank[0]);
	assert_true(rank_rig_ended(s, 0));
	/* Rank 0 cannot tell it: the other one reads it in the register. */
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 2500);
	assert_true(rank_rig_ended(s, 1));
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	rank_rig_check_says(s, 1, "changed by the test");
	rank_rig_sleep(s, 10000);
	assert_int_equal(rank_rig_end(s, 0), CKPT_ETORN);
}

/* Rank 0 died when it had published: the others need not wait for their deadline. */
static void test_dead_leader(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						      .path = "g1-s1",
						      .error = -EIO,
						      .count = IO_FAULT_ALWAYS});
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_true(rank_rig_ended(s, 0));
	assert_false(rank_rig_ended(s, 1));
	rank_rig_sleep(s, 2000);
	assert_int_equal(rank_rig_end(s, 1), 0);
	rank_rig_sleep(s, 10000);
	assert_int_equal(rank_rig_end(s, 0), 0);
}

/* Nobody tells anything: rank 0 says who. */
static void test_missing(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 1, 100, 4000);
	rank_rig_begin(s, 0, 1);
	rank_rig_tell(s, 1, (struct rank_rig_word){.rank = 2, .as = 2, .index_bytes = 10});
	for (unsigned i = 0; i < 800; i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(rank_rig_end(s, 0), -ETIMEDOUT);
	rank_rig_check_says(s, 0, "ranks 1, 3, 4, 5, 6, 7, 8, 9 and 90 more of 100 have not said");
}

static void test_few_missing(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 1, 4, 4000);
	rank_rig_begin(s, 0, 1);
	rank_rig_tell(s, 1, (struct rank_rig_word){.rank = 2, .as = 2, .index_bytes = 10});
	for (unsigned i = 0; i < 800; i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(rank_rig_end(s, 0), -ETIMEDOUT);
	rank_rig_check_says(s, 0, "ranks 1 and 3 of 4 have not said that step 1 is durable there");
}

/*
 * A rank whose files are not where rank 0 reads. Where each node has a store of its own they are in another one,
 * and the step is good; one store for all would have them.
 */
static void test_read_by_nobody(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 1, 2, 4000);
	s->rank[0].core.lineage->marker.shared = false;
	rank_rig_begin(s, 0, 1);
	rank_rig_tell(s, 1, (struct rank_rig_word){.rank = 1, .as = 1, .index_bytes = 10});
	for (unsigned i = 0; i < 200 && !rank_rig_ended(s, 0); i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_false(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, ""));
	s->rank[0].core.lineage->marker.shared = true;
	ckpt_free(s->rank[0].core.saver->agreed);
	s->rank[0].core.saver->agreed = NULL;
	rank_rig_begin(s, 0, 2);
	rank_rig_tell(s, 2, (struct rank_rig_word){.rank = 1, .as = 1, .index_bytes = 10});
	for (unsigned i = 0; i < 200 && !rank_rig_ended(s, 0); i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EINCOMPLETE);
}

/* Values that are about something else, or that no manifest could say. */
static void test_strange_words(void **state)
{
	static const struct {
		struct rank_rig_word word;
		const char *says;
	} strange[] = {
		{{.rank = 1, .as = 1, .index_bytes = 10, .step = 1}, "same session"},
		{{.rank = 1, .as = 1, .index_bytes = 10, .generation = 1}, "same session"},
		{{.rank = 1, .as = 1, .index_bytes = 10, .nonce = 1}, "same session"},
		{{.rank = 1, .as = 1, .code = -EIO, .nonce = 1}, "same session"},
		{{.rank = 1, .as = 2, .index_bytes = 10}, "is of rank 1"},
		{{.rank = 0, .as = 2, .index_bytes = 10}, "is of rank 0"},
		{{.rank = 1, .as = 1, .index_bytes = 0}, "index_bytes"},
	};
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 1, 3, 60000);
	for (uint64_t i = 0; i < COUNT(strange); i++) {
		rank_rig_begin(s, 0, i + 1);
		rank_rig_tell(s, i + 1, strange[i].word);
		for (unsigned turn = 0; turn < 200 && !rank_rig_ended(s, 0); turn++)
			core_rig_sleep(&s->rank[0], 5);
		assert_int_equal(rank_rig_end(s, 0), CKPT_EFORMAT);
		rank_rig_check_says(s, 0, strange[i].says);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rank_rig_setup, rank_rig_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_together),
		TEST(test_lost_answer),
		TEST(test_unknown),
		TEST(test_late_for_the_register),
		TEST(test_late_for_the_exchange),
		TEST(test_reason_of_another),
		TEST(test_dead_leader),
		TEST(test_missing),
		TEST(test_few_missing),
		TEST(test_read_by_nobody),
		TEST(test_seldom_asked),
		TEST(test_strange_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
