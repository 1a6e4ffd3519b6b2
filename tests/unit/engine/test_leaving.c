/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank of many leaves when it is done with a step: in the store, in the exchange, in what it knows; and
 * what it waits for before it goes.
 */
#include "lib/test.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gc/gc.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/runtime/commands.h"
#include "engine/save/save_state.h"
#include "lib/rank_rig.h"
#include "lib/scratch.h"

#define ALWAYS IO_FAULT_ALWAYS
#define STEP_1 "g000001/step-0000000001"
#define STEP_2 "g000001/step-0000000002"

static unsigned add(struct rank_rig *s, uint32_t rank, struct io_fault_rule rule)
{
	return io_fault_add(&s->rank[rank].fault, rule);
}

static bool is_there(const struct rank_rig *s, const char *name)
{
	return access(scratch_join(s->dir, name), F_OK) == 0;
}

static bool is_told(const struct rank_rig *s, const char *key)
{
	return access(rank_rig_told(s, key), F_OK) == 0;
}

static const struct ckpt_scan_step *known(struct rank_rig *s, uint32_t rank, uint64_t step)
{
	return ckpt_scan_find(&s->rank[rank].core.lineage->scan, 1, step);
}

static bool is_gone(const struct rank_rig *s, uint32_t rank)
{
	return ckpt_latch_get(ckpt_save_latch(s->save[rank])) & CKPT_DONE_GONE;
}

/* Begun, with its gate closed. */
static void begin_fenced(struct rank_rig *s, uint32_t rank, uint64_t step)
{
	rank_rig_prepare(s, rank, step);
	s->save[rank]->fenced = true;
	(void)core_rig_post(&s->rank[rank], s->save[rank]);
}

/* Rank 0 ends a step that the others have told their parts of. */
static void cancel_after_the_others(struct rank_rig *s, uint64_t step)
{
	rank_rig_begin(s, 1, step);
	begin_fenced(s, 0, step);
	rank_rig_sleep(s, 300);
	assert_false(rank_rig_ended(s, 1));
	ckpt_save_post_cancel(s->save[0]);
	rank_rig_sleep(s, 2000);
	assert_int_equal(rank_rig_end(s, 0), -ECANCELED);
}

static void check_known_outcome(struct rank_rig *s, uint32_t rank, const char *text)
{
	assert_int_equal(rank_rig_end(s, rank), CKPT_EABORTED);
	rank_rig_check_says(s, rank, text);
	assert_null(strstr(rank_rig_message(s, rank), "whether"));
}

/* The directory was taken along by a rank that had heard that the step is over: it is made again. */
static void test_directory_taken(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 1,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = ".safetensors", .error = -ENOENT});
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_int_equal(rank_rig_end(s, 1), 0);
	/* What comes later is told in its own words. */
	io_fault_clear(&s->rank[1].fault);
	add(s, 1,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = ".safetensors", .error = -ENOENT});
	add(s, 1,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = ".index", .error = -ENOSPC});
	rank_rig_begin(s, 1, 2);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 1), -ENOSPC);
	rank_rig_check_says(s, 1, ".index");
	/* The one that was made last is taken along as well. */
	io_fault_clear(&s->rank[1].fault);
	add(s, 1,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = ".safetensors", .error = -ENOENT});
	add(s, 1,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_WRITE, .path = ".safetensors", .hold = true});
	rank_rig_begin(s, 1, 3);
	rank_rig_refuse(s, 0, 3, -ENOMEM, "no room, says the test");
	rank_rig_sleep(s, 600);
	core_rig_let_go(&s->rank[1]);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	assert_false(is_there(s, "g000001/step-0000000003"));
}

/* As often as there are ranks that may have done so, and not for ever; nor for a save that was stopped. */
static void test_directory_taken_for_ever(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	unsigned rule = add(s, 1,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
			.path = ".safetensors",
			.error = -ENOENT,
			.count = ALWAYS});
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 1), -ENOENT);
	assert_int_equal(s->rank[1].fault.hits[rule], 3);
	io_fault_clear(&s->rank[1].fault);
	add(s, 1,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
			.path = ".safetensors",
			.error = -ENOENT,
			.late = true,
			.hold = true});
	rule = add(s, 1, (struct io_fault_rule){.op = CKPT_IO_OP_MKDIR, .path = "step-"});
	rank_rig_begin(s, 1, 2);
	ckpt_save_post_cancel(s->save[1]);
	core_rig_run(&s->rank[1]);
	core_rig_let_go(&s->rank[1]);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 1), -ECANCELED);
	assert_int_equal(s->rank[1].fault.seen[rule], 1);
}

/* A rank that fails leaves the directory to those who are in it; rank 0 leaves its record there, and knows it. */
static void test_failed_part(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 1,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_WRITE, .path = ".safetensors", .error = -ENOSPC});
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_true(is_gone(s, 1));
	assert_true(is_there(s, STEP_1));
	rank_rig_begin(s, 0, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EABORTED);
	assert_int_equal(rank_rig_end(s, 1), -ENOSPC);
	assert_int_equal(scratch_count(scratch_join(s->dir, STEP_1)), 1);
	assert_int_equal(known(s, 0, 1)->state, CKPT_STEP_ABORTED);
	assert_null(known(s, 1, 1));
	/* The same if the part was told. */
	cancel_after_the_others(s, 2);
	check_known_outcome(s, 1, "cancelled");
	assert_int_equal(scratch_count(scratch_join(s->dir, STEP_2)), 1);
	assert_int_equal(known(s, 0, 2)->state, CKPT_STEP_ABORTED);
	assert_null(known(s, 1, 2));
}

/* Who has not tried to publish knows that the step is of no rank, be there a record of it or not. */
static void test_no_record(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 0,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "manifest.json", .error = -EIO});
	cancel_after_the_others(s, 1);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "no abort record for step 1"));
	check_known_outcome(s, 1, "cancelled");
}

/* A publication that failed: the record proves that it is not there. */
static void test_record_after_publication(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 0,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "manifest.json", .error = -EIO});
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), -EIO);
	check_known_outcome(s, 1, "manifest.json");
	assert_int_equal(scratch_count(scratch_join(s->dir, STEP_1)), 1);
	assert_int_equal(known(s, 0, 1)->state, CKPT_STEP_ABORTED);
}

/* The record of a rank that has waited in vain is as good as rank 0's own. */
static void test_record_of_another(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 4000);
	rank_rig_begin(s, 1, 1);
	for (unsigned i = 0; i < 800 && !rank_rig_ended(s, 1); i++)
		core_rig_sleep(&s->rank[1], 5);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	add(s, 0, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = ".index", .hold = true});
	rank_rig_begin(s, 0, 1);
	ckpt_save_post_cancel(s->save[0]);
	core_rig_let_go(&s->rank[0]);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), -ECANCELED);
	assert_false(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "no abort record"));
	assert_int_equal(known(s, 0, 1)->state, CKPT_STEP_ABORTED);
}

/* Fenced before it has published, a step is of no rank; afterwards nobody knows. */
static void test_fenced(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(mkdir(scratch_join(s->dir, "gens/000002.json"), 0777), 0);
	rank_rig_begin(s, 0, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EFENCED);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EFENCED);
	assert_null(strstr(rank_rig_message(s, 1), "whether"));
}

static void test_fenced_after_publishing(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 0,
		(struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
			.path = "manifest.json",
			.error = -EIO,
			.late = true,
			.hold = true});
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_true(s->save[0]->publishing);
	s->rank[0].core.lineage->fenced = true;
	core_rig_let_go(&s->rank[0]);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), -EIO);
	assert_int_equal(rank_rig_end(s, 1), -EIO);
	rank_rig_check_says(s, 1, "whether step 1 is durable");
}

/* It goes when nothing of it is with the exchange or the disk any more. */
static void test_nothing_under_way(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 1, (struct io_fault_rule){.path = "g1-s1", .hold = true});
	s->rank[1].hold_jobs = true;
	rank_rig_begin(s, 1, 1);
	ckpt_save_post_cancel(s->save[1]);
	core_rig_run(&s->rank[1]);
	s->rank[1].hold_jobs = false;
	core_rig_do_jobs(&s->rank[1]);
	core_rig_run(&s->rank[1]);
	assert_true(rank_rig_ended(s, 1));
	assert_false(is_gone(s, 1));
	core_rig_let_go(&s->rank[1]);
	rank_rig_sleep(s, 100);
	assert_int_equal(rank_rig_end(s, 1), -ECANCELED);
	io_fault_clear(&s->rank[1].fault);
	add(s, 1, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = ".index", .hold = true});
	add(s, 1, (struct io_fault_rule){.op = CKPT_IO_OP_RMDIR, .hold = true});
	rank_rig_begin(s, 1, 2);
	rank_rig_refuse(s, 0, 2, -ENOMEM, "no room, says the test");
	rank_rig_sleep(s, 600);
	core_rig_let_go(&s->rank[1]);
	assert_true(is_there(s, STEP_2));
	assert_false(is_gone(s, 1));
	core_rig_let_go(&s->rank[1]);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	assert_false(is_there(s, STEP_2));
}

/* When this rank's part was durable is one thing, when all were is another. */
static void test_when_durable(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 0,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_WRITE, .path = ".safetensors", .hold = true});
	rank_rig_begin(s, 0, 1);
	core_rig_sleep(&s->rank[0], 20);
	core_rig_let_go(&s->rank[0]);
	rank_rig_sleep(s, 100);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_true(rank_rig_ended(s, 0));
	assert_int_equal(atomic_load(&s->save[0]->durable_ns), 20000000);
	assert_true(atomic_load(&s->save[0]->local_ns) >= 120000000);
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_int_equal(rank_rig_end(s, 1), 0);
}

/* Two ranks of one node, whose store is not that of others. */
static void open_node(struct rank_rig *s, uint32_t timeout_ms)
{
	rank_rig_open_all(s, 2, 2, timeout_ms);
	for (uint32_t rank = 0; rank < 2; rank++)
		s->rank[rank].core.config.node_store = true;
}

/* The exchange has the outcome, and no store a record of a step that is of no rank. */
static void test_node_store(void **state)
{
	struct rank_rig *s = *state;

	open_node(s, 60000);
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 2000);
	assert_true(is_told(s, "g1-s1-m"));
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_int_equal(rank_rig_end(s, 1), 0);
	cancel_after_the_others(s, 2);
	check_known_outcome(s, 1, "cancelled");
	assert_false(is_there(s, STEP_2));
	/* Rank 0 takes the directory along if it is the last one. */
	rank_rig_begin(s, 0, 3);
	rank_rig_refuse(s, 1, 3, -ENOMEM, "no room, says the test");
	rank_rig_sleep(s, 600);
	check_known_outcome(s, 0, "says the test");
	assert_false(is_there(s, "g000001/step-0000000003"));
	assert_int_equal(s->rank[0].core.lineage->scan.step_count, 1);
}

/* Another rank has put an abort there: what rank 0 has goes, and nothing is left to be tidied. */
static void test_node_store_late(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_outcome outcome = {0};
	struct ckpt_buf buf = {0};

	open_node(s, 60000);
	rank_rig_begin(s, 1, 1);
	begin_fenced(s, 0, 1);
	rank_rig_sleep(s, 300);
	outcome.verdict = (struct ckpt_verdict){.code = -ETIMEDOUT,
		.reason = "waited in vain",
		.generation = s->rank[0].core.lineage->generation,
		.nonce = s->rank[0].core.lineage->nonce,
		.step = 1};
	assert_int_equal(ckpt_outcome_encode(&outcome, &buf), 0);
	rank_rig_put(s, "g1-s1", &buf);
	ckpt_buf_free(&buf);
	ckpt_save_post_gate(s->save[0]);
	rank_rig_sleep(s, 300);
	check_known_outcome(s, 0, "waited in vain");
	check_known_outcome(s, 1, "waited in vain");
	assert_false(is_there(s, STEP_1));
	assert_int_equal(s->rank[0].core.lineage->scan.step_count, 0);
}

/* A save that is stopped does not wait until the exchange is well again. */
static void test_stopped_while_telling(void **state)
{
	struct rank_rig *s = *state;

	open_node(s, 60000);
	unsigned rule = add(
		s, 0, (struct io_fault_rule){.path = "g1-s1-m", .error = -EIO, .count = ALWAYS});
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_true(s->rank[0].fault.hits[rule] > 0);
	assert_false(rank_rig_ended(s, 0));
	ckpt_save_post_cancel(s->save[0]);
	core_rig_run(&s->rank[0]);
	assert_true(is_gone(s, 0));
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), -ECANCELED);
	check_known_outcome(s, 1, "cancelled");
}

/* Going on from a step: others than rank 0 forget what they have committed since, and nothing else. */
static void test_resumed(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	for (uint64_t step = 1; step <= 3; step++) {
		for (uint32_t rank = 0; rank < 2 && step == 2; rank++)
			assert_int_equal(core_rig_adopt(&s->rank[rank], 1, 1), 0);
		if (step == 2) {
			/* There is no claim yet to say this under: the last one is over. */
			rank_rig_refuse(s, 1, 9, -ENOMEM, "no room, says the test");
			assert_false(is_told(s, "g1-s9-r1"));
			for (uint32_t rank = 0; rank < 2; rank++)
				assert_int_equal(core_rig_claim(&s->rank[rank]), 0);
		}
		rank_rig_begin(s, 0, step);
		rank_rig_begin(s, 1, step);
		rank_rig_sleep(s, 300);
		assert_int_equal(rank_rig_end(s, 0), 0);
		assert_int_equal(rank_rig_end(s, 1), 0);
		assert_non_null(known(s, 1, 1));
	}
	assert_int_equal(s->rank[1].core.lineage->scan.step_count, 2);
	assert_int_equal(strlen(ckpt_scan_find(&s->rank[1].core.lineage->scan, 2, 3)->attempt), 16);
}

/* Refused before the claim: that is told as soon as there is one. */
static void test_refused_early(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open(s, 0, 2, 60000);
	rank_rig_open(s, 1, 2, 60000);
	struct ckpt_command *claim =
		ckpt_command_new(&s->rank[1].core, sizeof(struct ckpt_claimer), ckpt_claimer_clear);
	ckpt_command_post(claim, ckpt_claim_body);
	core_rig_run(&s->rank[1]);
	assert_false(ckpt_latch_get(&claim->latch) & CKPT_DONE_END);
	rank_rig_refuse(s, 1, 1, -ENOMEM, "no room, says the test");
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	rank_rig_sleep(s, 300);
	assert_true(ckpt_latch_get(&claim->latch) & CKPT_DONE_END);
	ckpt_command_unref(claim);
	assert_true(is_told(s, "g1-s1-r1"));
}

/* What an earlier start of the job has told goes once this one has claimed. */
static void test_swept(void **state)
{
	struct rank_rig *s = *state;

	assert_int_equal(mkdir(scratch_join(s->dir, "exchange"), 0777), 0);
	assert_int_equal(mkdir(scratch_join(s->dir, "exchange/older"), 0777), 0);
	assert_int_equal(
		mknod(scratch_join(s->dir, "exchange/older/claim-1"), S_IFREG | 0666, 0), 0);
	rank_rig_open(s, 0, 2, 60000);
	assert_true(is_there(s, "exchange/older"));
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_false(is_there(s, "exchange/older"));
}

/* Whoever only reads claims nothing, whichever rank it is, and tells nobody of it. */
static void test_read_only(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 1, 1, 60000);
	s->open[0] = false;
	core_rig_close(&s->rank[0]);
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_rig_open(&s->rank[rank],
			&(struct core_rig_config){
				.dir = s->dir, .rank = rank, .world = 2, .read_only = true});
		s->open[rank] = true;
		assert_int_equal(core_rig_claim(&s->rank[rank]), -EROFS);
	}
	assert_false(is_there(s, "exchange"));
}

/* The engine closes when the step is committed and the others have yet to hear of it. */
static void test_closed_while_telling(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	add(s, 0, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "g1-s1", .hold = true});
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_true(s->save[0]->committed);
	assert_false(is_gone(s, 0));
	struct ckpt_command *closer =
		ckpt_command_new(&s->rank[0].core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(closer, ckpt_closer_body);
	core_rig_run(&s->rank[0]);
	core_rig_let_go(&s->rank[0]);
	rank_rig_sleep(s, 300);
	assert_true(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	ckpt_command_unref(closer);
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_int_equal(rank_rig_end(s, 1), 0);
}

/* Whoever listens when the engine closes stops at once: nobody needs what it would hear. */
static void test_closed_while_listening(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open(s, 1, 2, 60000);
	struct ckpt_command *claim =
		ckpt_command_new(&s->rank[1].core, sizeof(struct ckpt_claimer), ckpt_claimer_clear);
	ckpt_command_post(claim, ckpt_claim_body);
	rank_rig_sleep(s, 1000);
	assert_false(ckpt_latch_get(&claim->latch) & CKPT_DONE_END);
	struct ckpt_command *closer =
		ckpt_command_new(&s->rank[1].core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(closer, ckpt_closer_body);
	core_rig_run(&s->rank[1]);
	assert_true(ckpt_latch_get(&claim->latch) & CKPT_DONE_END);
	assert_int_equal(claim->result, CKPT_ECLOSED);
	assert_true(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	ckpt_command_unref(claim);
	ckpt_command_unref(closer);
}

/* One rank keeps the store: the others remove nothing, be they asked to. */
static void test_kept_by_rank_0(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	for (uint32_t rank = 0; rank < 2; rank++) {
		ckpt_gc_ask(&s->rank[rank].core, CKPT_GC_RETAIN);
		assert_int_equal(s->rank[rank].core.gc != NULL, rank == 0);
		core_rig_run(&s->rank[rank]);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rank_rig_setup, rank_rig_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_directory_taken),
		TEST(test_directory_taken_for_ever),
		TEST(test_failed_part),
		TEST(test_no_record),
		TEST(test_record_after_publication),
		TEST(test_record_of_another),
		TEST(test_fenced),
		TEST(test_fenced_after_publishing),
		TEST(test_nothing_under_way),
		TEST(test_when_durable),
		TEST(test_node_store),
		TEST(test_node_store_late),
		TEST(test_stopped_while_telling),
		TEST(test_resumed),
		TEST(test_refused_early),
		TEST(test_swept),
		TEST(test_read_only),
		TEST(test_closed_while_telling),
		TEST(test_closed_while_listening),
		TEST(test_kept_by_rank_0),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
