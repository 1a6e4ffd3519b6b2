/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one job, each on a rig of its own, all on the thread of the test: who is told what, and when, if
 * one of them fails, is refused, skips, says nothing, or says what nobody asked for.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/claim.h"
#include "engine/restore_state.h"
#include "engine/save_state.h"
#include "exchange/exchange_dir.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"

#define RANKS 3

struct scene {
	char *dir;
	struct core_rig rank[RANKS];
	struct ckpt_save *save[RANKS];
	bool open[RANKS];
};

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	for (unsigned i = 0; i < RANKS; i++)
		ckpt_save_unref(s->save[i]);
	for (unsigned i = 0; i < RANKS; i++)
		if (s->open[i])
			core_rig_close(&s->rank[i]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void open_rank(struct scene *s, uint32_t rank, uint32_t world, uint32_t timeout_ms)
{
	core_rig_open(&s->rank[rank], &(struct core_rig_config){.dir = s->dir,
					      .rank = rank,
					      .world = world,
					      .timeout_ms = timeout_ms,
					      .slots = 32});
	/* No two draw the same numbers. */
	s->rank[rank].random = UINT64_C(1000) * (rank + 1);
	s->open[rank] = true;
}

/* The clock goes on for all, in steps in which a word may go from one to the other and back. */
static void sleep_all(struct scene *s, uint64_t ms)
{
	for (uint64_t at = 0; at < ms; at += 5)
		for (unsigned i = 0; i < RANKS; i++)
			if (s->open[i])
				core_rig_sleep(&s->rank[i], 5);
}

/* `world` ranks, of which the first `count` are there and have claimed. */
static void open_job(struct scene *s, uint32_t count, uint32_t world, uint32_t timeout_ms)
{
	for (uint32_t rank = 0; rank < count; rank++)
		open_rank(s, rank, world, timeout_ms);
	for (uint32_t rank = 0; rank < count; rank++)
		assert_int_equal(core_rig_claim(&s->rank[rank]), 0);
}

static void prepare(struct scene *s, uint32_t rank, uint64_t step)
{
	s->save[rank] = core_rig_prepare(&s->rank[rank], step, 2, 1000, CKPT_TENSOR_EAGER);
	assert_non_null(s->save[rank]);
}

static void begin(struct scene *s, uint32_t rank, uint64_t step)
{
	prepare(s, rank, step);
	(void)core_rig_post(&s->rank[rank], s->save[rank]);
}

static bool ended(const struct scene *s, uint32_t rank)
{
	return ckpt_latch_get(ckpt_save_latch(s->save[rank])) & CKPT_DONE_END;
}

static int end(struct scene *s, uint32_t rank)
{
	/* Of another one that has ended since this one was prepared. */
	ckpt_plan_free(s->rank[rank].plan);
	int code = core_rig_end_save(&s->rank[rank], s->save[rank]);

	s->save[rank] = NULL;
	return code;
}

static const char *message(const struct scene *s, uint32_t rank)
{
	return s->rank[rank].err.message;
}

static void check_says(const struct scene *s, uint32_t rank, const char *text)
{
	if (!strstr(message(s, rank), text))
		fail_msg("rank %u says: %s", rank, message(s, rank));
}

/* Puts a value into the exchange, as another rank would. */
static void put(struct scene *s, const char *key, const struct ckpt_buf *value)
{
	FILE *file;

	(void)mkdir(scratch_join(s->dir, "exchange"), 0777);
	(void)mkdir(scratch_join(s->dir, "exchange/rig"), 0777);
	file = fopen(scratch_join(s->dir, scratch_join("exchange/rig", key)), "wx");
	assert_non_null(file);
	assert_int_equal(fwrite(value->data, 1, value->len, file), value->len);
	assert_int_equal(fclose(file), 0);
}

/* What a rank that is not there tells of a step. */
struct word {
	uint32_t rank;
	uint32_t as; /* under the key of this rank */
	int code;
	uint64_t generation, step, nonce; /* added to what is right */
	uint64_t index_bytes;
};

static void tell(struct scene *s, uint64_t step, struct word word)
{
	struct ckpt_core *core = &s->rank[0].core;
	struct ckpt_rank_record record = {.verdict = {.code = word.code,
						  .reason = "the test says so",
						  .generation = core->generation + word.generation,
						  .step = step + word.step,
						  .nonce = core->nonce + word.nonce},
		.rank = {.rank = word.rank,
			.node = "other",
			.attempt = "0123456789abcdef",
			.index_bytes = word.index_bytes,
			.shard_bytes = 5000}};
	char key[CKPT_EXCHANGE_KEY_MAX];
	struct ckpt_buf buf = {0};

	assert_int_equal(ckpt_rank_record_encode(&record, &buf), 0);
	ckpt_key_rank(key, core->generation, step, word.as);
	put(s, key, &buf);
	ckpt_buf_free(&buf);
}

static const char *told_path(const struct scene *s, const char *key)
{
	return scratch_join(s->dir, scratch_join("exchange/rig", key));
}

static const char *manifest_of(const struct scene *s, uint64_t step)
{
	char name[CKPT_PATH_MAX];

	ckpt_name_manifest(name, 1, step);
	return scratch_join(s->dir, name);
}

static void test_together(void **state)
{
	struct scene *s = *state;

	open_job(s, RANKS, RANKS, 60000);
	for (uint64_t step = 1; step <= 4; step++) {
		for (uint32_t rank = 0; rank < RANKS; rank++)
			begin(s, rank, step);
		sleep_all(s, 300);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			assert_int_equal(end(s, rank), 0);
	}
	/* All know the step as its manifest says it is. */
	const struct ckpt_scan_step *first = ckpt_scan_find(&s->rank[0].core.scan, 1, 4);
	assert_true(first->bytes > RANKS * 4096);
	assert_int_equal(s->rank[0].core.scan.step_count, 4);
	for (uint32_t rank = 1; rank < RANKS; rank++) {
		const struct ckpt_scan_step *other = ckpt_scan_find(&s->rank[rank].core.scan, 1, 4);
		/* Whoever removes none need not remember them. */
		assert_int_equal(s->rank[rank].core.scan.step_count, 1);
		assert_string_equal(other->attempt, first->attempt);
		assert_int_equal(other->bytes, first->bytes);
	}
	/* Nothing is left but the first word of each, the claim, and how the last one ended. */
	assert_int_equal(scratch_count(scratch_join(s->dir, "exchange/rig")), RANKS + 2);
	assert_int_equal(access(told_path(s, "g1-s4"), F_OK), 0);
}

/* The manifest was published, and its answer lost: what is there is this rank's own. */
static void test_lost_answer(void **state)
{
	struct scene *s = *state;

	open_job(s, RANKS, RANKS, 60000);
	unsigned rule =
		io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
							.path = "manifest",
							.error = -EEXIST,
							.late = true});
	for (uint32_t rank = 0; rank < RANKS; rank++)
		begin(s, rank, 1);
	sleep_all(s, 300);
	assert_int_equal(s->rank[0].fault.hits[rule], 1);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(end(s, rank), 0);
	assert_int_equal(core_rig_read(&s->rank[0], 1, CKPT_SINK_NONE), 0);
	/* And what it cannot read afterwards stays as it is, and is not known to anybody. */
	rule = io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						       .path = "manifest",
						       .error = -EEXIST,
						       .late = true});
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "manifest", .error = -EIO, .nth = 2});
	for (uint32_t rank = 0; rank < RANKS; rank++)
		begin(s, rank, 2);
	sleep_all(s, 2000);
	assert_int_equal(end(s, 0), -EIO);
	io_fault_clear(&s->rank[0].fault);
	for (uint32_t rank = 1; rank < RANKS; rank++) {
		assert_int_equal(end(s, rank), -EIO);
		check_says(s, rank, "whether step 2 is durable");
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
	struct scene *s = *state;

	open_job(s, RANKS, RANKS, 600000);
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
		for (uint32_t rank = 0; rank < RANKS; rank++)
			begin(s, rank, step);
		sleep_all(s, step == 1 ? 300 : 1500);
		assert_int_equal(s->rank[0].fault.hits[rule], 1);
		assert_true(ended(s, 0));
		for (uint32_t rank = 1; rank < RANKS; rank++)
			assert_int_equal(ended(s, rank), step == 1);
		io_fault_clear(&s->rank[0].fault);
		core_rig_let_go(&s->rank[0]);
		sleep_all(s, 300);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			assert_int_equal(end(s, rank), -EIO);
		check_says(s, 2, "not known, on no rank");
		assert_int_equal(access(manifest_of(s, step), F_OK), 0);
		assert_int_equal(core_rig_read(&s->rank[0], step, CKPT_SINK_NONE), 0);
	}
	/* The next one is not held up by that. */
	for (uint32_t rank = 0; rank < RANKS; rank++)
		begin(s, rank, 3);
	sleep_all(s, 300);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(end(s, rank), 0);
}

/* Another rank gave up first: rank 0 says what that one said, and not that a file exists. */
static void test_late_for_the_register(void **state)
{
	struct scene *s = *state;

	open_job(s, 2, 2, 4000);
	begin(s, 1, 1);
	for (unsigned i = 0; i < 800 && !ended(s, 1); i++)
		core_rig_sleep(&s->rank[1], 5);
	assert_int_equal(end(s, 1), CKPT_EABORTED);
	check_says(s, 1, "rank 1 on node rig has not heard how it ended");
	assert_int_equal(access(manifest_of(s, 1), F_OK), 0);
	begin(s, 0, 1);
	sleep_all(s, 300);
	assert_int_equal(end(s, 0), CKPT_EABORTED);
	check_says(s, 0, "rank 1 on node rig has not heard how it ended");
	assert_int_equal(access(told_path(s, "g1-s1"), F_OK), 0);
	/* Only the record is left. */
	assert_int_equal(scratch_count(scratch_join(s->dir, "g000001/step-0000000001")), 1);
}

/* Somebody's record is in the register when this rank gives up: that is what it says. */
static void test_reason_of_another(void **state)
{
	struct scene *s = *state;

	open_job(s, 2, 2, 4000);
	(void)io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						      .path = "g1-s1",
						      .error = -EIO,
						      .count = IO_FAULT_ALWAYS});
	begin(s, 0, 1);
	struct ckpt_error why = {.size = sizeof(why)};
	ckpt_error_clear(&why);
	(void)ckpt_fail(&why, CKPT_ETORN, "it was changed by the test");
	ckpt_save_post_failure(s->save[0], &why);
	core_rig_run(&s->rank[0]);
	assert_true(ended(s, 0));
	/* Rank 0 cannot tell it: the other one reads it in the register. */
	begin(s, 1, 1);
	sleep_all(s, 2500);
	assert_true(ended(s, 1));
	assert_int_equal(end(s, 1), CKPT_EABORTED);
	check_says(s, 1, "changed by the test");
	sleep_all(s, 10000);
	assert_int_equal(end(s, 0), CKPT_ETORN);
}

/* Rank 0 died when it had published: the others need not wait for their deadline. */
static void test_dead_leader(void **state)
{
	struct scene *s = *state;

	open_job(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						      .path = "g1-s1",
						      .error = -EIO,
						      .count = IO_FAULT_ALWAYS});
	begin(s, 0, 1);
	begin(s, 1, 1);
	sleep_all(s, 300);
	assert_true(ended(s, 0));
	assert_false(ended(s, 1));
	sleep_all(s, 2000);
	assert_int_equal(end(s, 1), 0);
	sleep_all(s, 10000);
	assert_int_equal(end(s, 0), 0);
}

/* Nobody tells anything: rank 0 says who. */
static void test_missing(void **state)
{
	struct scene *s = *state;

	open_job(s, 1, 100, 4000);
	begin(s, 0, 1);
	tell(s, 1, (struct word){.rank = 2, .as = 2, .index_bytes = 10});
	for (unsigned i = 0; i < 800; i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(end(s, 0), -ETIMEDOUT);
	check_says(s, 0, "ranks 1, 3, 4, 5, 6, 7, 8, 9 and 90 more of 100 have not said");
}

static void test_few_missing(void **state)
{
	struct scene *s = *state;

	open_job(s, 1, 4, 4000);
	begin(s, 0, 1);
	tell(s, 1, (struct word){.rank = 2, .as = 2, .index_bytes = 10});
	for (unsigned i = 0; i < 800; i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(end(s, 0), -ETIMEDOUT);
	check_says(s, 0, "ranks 1 and 3 of 4 have not said that step 1 is durable there");
}

/* One of many has failed, whoever it is: that is heard while others are still silent. */
static void test_failure_of_one_of_many(void **state)
{
	struct scene *s = *state;

	open_job(s, 1, 300, 600000);
	for (uint64_t step = 1; step <= 5; step++) {
		uint32_t rank = (uint32_t)step * 59;
		begin(s, 0, step);
		tell(s, step, (struct word){.rank = rank, .as = rank, .code = -ENOSPC});
		for (unsigned i = 0; i < 200 && !ended(s, 0); i++)
			core_rig_sleep(&s->rank[0], 5);
		assert_int_equal(end(s, 0), CKPT_EABORTED);
		check_says(s, 0, "node other failed");
	}
}

/* Values that are about something else, or that no manifest could say. */
static void test_strange_words(void **state)
{
	static const struct {
		struct word word;
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
	struct scene *s = *state;

	open_job(s, 1, 3, 60000);
	for (uint64_t i = 0; i < COUNT(strange); i++) {
		begin(s, 0, i + 1);
		tell(s, i + 1, strange[i].word);
		for (unsigned turn = 0; turn < 200 && !ended(s, 0); turn++)
			core_rig_sleep(&s->rank[0], 5);
		assert_int_equal(end(s, 0), CKPT_EFORMAT);
		check_says(s, 0, strange[i].says);
	}
}

/* A claim that nobody could be told of is told with the next save. */
static void test_claim_told_later(void **state)
{
	struct scene *s = *state;

	open_rank(s, 0, 2, 60000);
	open_rank(s, 1, 2, 60000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.path = "exchange", .error = -EIO, .count = IO_FAULT_ALWAYS});
	assert_int_equal(core_rig_claim(&s->rank[0]), 1);
	for (unsigned i = 0; i < 2100; i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_int_equal(access(told_path(s, "claim-1"), F_OK), -1);
	io_fault_clear(&s->rank[0].fault);
	begin(s, 0, 1);
	sleep_all(s, 300);
	assert_int_equal(core_rig_claim(&s->rank[1]), 0);
	begin(s, 1, 1);
	sleep_all(s, 300);
	assert_int_equal(end(s, 0), 0);
	assert_int_equal(end(s, 1), 0);
	/* Once is enough. */
	assert_int_equal(unlink(told_path(s, "claim-1")), 0);
	begin(s, 0, 2);
	begin(s, 1, 2);
	sleep_all(s, 300);
	assert_int_equal(end(s, 0), 0);
	assert_int_equal(end(s, 1), 0);
	assert_int_equal(access(told_path(s, "claim-1"), F_OK), -1);
}

/* That an earlier claim is told at last says nothing about the one that was made since. */
static void test_claim_told_after_the_next(void **state)
{
	struct scene *s = *state;
	struct ckpt_buf other = {.data = (char[]){"x"}, .len = 1};

	open_rank(s, 0, 2, 60000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.path = "claim-1", .error = -EIO, .count = IO_FAULT_ALWAYS});
	assert_int_equal(core_rig_claim(&s->rank[0]), 1);
	sleep_all(s, 11000);
	assert_true(s->rank[0].core.claim_untold);
	begin(s, 0, 1);
	ckpt_save_post_cancel(s->save[0]);
	core_rig_run(&s->rank[0]);
	assert_int_equal(end(s, 0), -ECANCELED);
	assert_true(s->rank[0].core.claim_telling);
	/* Rank 0 goes back to the beginning, and its next claim cannot be told either. */
	s->rank[0].core.generation = 0;
	put(s, "claim-2", &other);
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_true(s->rank[0].core.claim_untold);
	io_fault_clear(&s->rank[0].fault);
	sleep_all(s, 300);
	assert_false(s->rank[0].core.claim_telling);
	assert_int_equal(access(told_path(s, "claim-1"), F_OK), 0);
	assert_true(s->rank[0].core.claim_untold);
}

/* A claim that fails is counted, be there no memory to tell it: the others count what they do not hear. */
static void test_claims_are_counted(void **state)
{
	struct scene *s = *state;
	size_t all = 0;

	for (size_t n = 0; n <= all; n++) {
		open_rank(s, 0, 2, 60000);
		(void)io_fault_add(&s->rank[0].fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_LIST, .error = -EIO, .count = IO_FAULT_ALWAYS});
		struct ckpt_command *command = ckpt_command_new(
			&s->rank[0].core, sizeof(struct ckpt_claimer), ckpt_claimer_clear);
		core_rig_count_allocations(&s->rank[0], n);
		ckpt_command_post(command, ckpt_claim_body);
		for (unsigned i = 0; i < 200; i++)
			core_rig_sleep(&s->rank[0], 100);
		all = ckpt_max_u64(all, core_rig_allocations(&s->rank[0]));
		assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
		assert_true(command->result < 0);
		assert_int_equal(s->rank[0].core.claim_tries, 1);
		ckpt_command_unref(command);
		core_rig_close(&s->rank[0]);
		s->open[0] = false;
		(void)unlink(told_path(s, "claim-1-failed-0"));
		(void)unlink(told_path(s, "rank-0"));
	}
	assert_true(all > 0);
}

static void refuse(struct scene *s, uint32_t rank, uint64_t step, int code, const char *why)
{
	struct ckpt_error err = {.size = sizeof(err)};

	ckpt_error_clear(&err);
	(void)ckpt_fail(&err, code, "%s", why);
	prepare(s, rank, step);
	ckpt_save_refuse(s->save[rank], &err);
	core_rig_run(&s->rank[rank]);
	assert_int_equal(end(s, rank), code);
}

/* A rank cannot even begin: the others hear of it soon, and not at their deadline. */
static void test_refused(void **state)
{
	struct scene *s = *state;

	open_job(s, RANKS, RANKS, 600000);
	for (uint32_t refused = 0; refused < RANKS; refused++) {
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			if (rank == refused)
				refuse(s, rank, 10 + refused, -ENOMEM, "no room, says the test");
			else
				begin(s, rank, 10 + refused);
		}
		sleep_all(s, 500);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			if (rank == refused)
				continue;
			assert_true(ended(s, rank));
			assert_int_equal(end(s, rank), CKPT_EABORTED);
			check_says(s, rank, "says the test");
		}
	}
	/* The next one is saved, and a step that was refused is over. */
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		begin(s, rank, 12);
		assert_int_equal(end(s, rank), CKPT_ESTEP);
		begin(s, rank, 20);
	}
	sleep_all(s, 500);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(end(s, rank), 0);
}

/* What the exchange has refused once is told all the same by an engine that closes: the others wait for it. */
static void test_told_while_closing(void **state)
{
	struct scene *s = *state;

	open_job(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "g1-s1", .error = -EIO});
	begin(s, 1, 1);
	refuse(s, 0, 1, -ENOMEM, "no room, says the test");
	assert_int_equal(access(told_path(s, "g1-s1"), F_OK), -1);
	s->open[0] = false;
	core_rig_close(&s->rank[0]);
	assert_int_equal(access(told_path(s, "g1-s1"), F_OK), 0);
	sleep_all(s, 500);
	assert_int_equal(end(s, 1), CKPT_EABORTED);
	check_says(s, 1, "no room, says the test");
}

/* A later generation is there: all of them are told so, with every step. */
static void test_fenced(void **state)
{
	struct scene *s = *state;

	open_job(s, 2, 2, 600000);
	s->rank[0].core.fenced = true;
	for (uint64_t step = 1; step <= 2; step++) {
		begin(s, 0, step);
		begin(s, 1, step);
		sleep_all(s, 500);
		assert_int_equal(end(s, 0), CKPT_EFENCED);
		assert_true(ended(s, 1));
		/* It is so for all of them, and is called so. */
		assert_int_equal(end(s, 1), CKPT_EFENCED);
		check_says(s, 1, "a later generation has taken over");
	}
}

/* Of ranks that do not have the same nobody is the odd one: all are told so. */
static void test_mismatch(void **state)
{
	struct scene *s = *state;

	open_job(s, RANKS, RANKS, 600000);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		prepare(s, rank, 1);
		s->save[rank]->common.bytes[0] ^= rank == 1;
	}
	for (uint32_t rank = 0; rank < RANKS; rank++)
		(void)core_rig_post(&s->rank[rank], s->save[rank]);
	sleep_all(s, 500);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		assert_int_equal(end(s, rank), CKPT_EMISMATCH);
		check_says(s, rank, "rank 1 on node rig and rank 0 do not have the same");
	}
}

/* How much of the part of rank 1 is there when rank 0 says that the step is of no rank. */
enum progress { WRITING, SYNCING, CLOSED_GATE, PROGRESS_COUNT };

static void hold_part(struct scene *s, enum progress progress)
{
	struct io_fault *fault = &s->rank[1].fault;

	if (progress == WRITING)
		(void)io_fault_add(fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_WRITE, .path = "safetensors", .hold = true});
	if (progress == SYNCING)
		(void)io_fault_add(
			fault, (struct io_fault_rule){
				       .op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .hold = true});
	prepare(s, 1, progress + 1);
	s->save[1]->fenced = progress == CLOSED_GATE;
	(void)core_rig_post(&s->rank[1], s->save[1]);
}

/* Nobody finishes a part of a step that is over, nor keeps it, nor tells of it. */
static void test_heard_before_the_part(void **state)
{
	struct scene *s = *state;

	open_job(s, 2, 2, 600000);
	for (enum progress progress = WRITING; progress < PROGRESS_COUNT; progress++) {
		uint64_t step = progress + 1;
		int code = progress == SYNCING ? -ENOMEM : CKPT_ESKIPPED;
		char key[32];

		hold_part(s, progress);
		sleep_all(s, 2000);
		assert_false(ended(s, 1));
		refuse(s, 0, step, code, "it does not want it, says the test");
		sleep_all(s, 600);
		assert_true(ended(s, 1));
		core_rig_let_go(&s->rank[1]);
		io_fault_clear(&s->rank[1].fault);
		sleep_all(s, 100);
		assert_int_equal(end(s, 1), code == CKPT_ESKIPPED ? code : CKPT_EABORTED);
		check_says(s, 1, "says the test");
		(void)snprintf(key, sizeof(key), "g1-s%u-r1", (unsigned)step);
		assert_int_equal(access(told_path(s, key), F_OK), -1);
		(void)snprintf(key, sizeof(key), "g000001/step-000000000%u", (unsigned)step);
		assert_int_equal(scratch_count(scratch_join(s->dir, key)), 0);
	}
	/* That it has heard of those keeps nothing of the next one away. */
	begin(s, 0, 10);
	begin(s, 1, 10);
	sleep_all(s, 300);
	assert_int_equal(end(s, 0), 0);
	assert_int_equal(end(s, 1), 0);
}

/* What cannot be is not believed: a commit without the part of this rank. */
static void test_commit_before_the_part(void **state)
{
	struct scene *s = *state;
	struct ckpt_outcome outcome = {.attempt = "0123456789abcdef"};
	struct ckpt_buf buf = {0};

	open_job(s, 2, 2, 4000);
	outcome.verdict.generation = s->rank[0].core.generation;
	outcome.verdict.nonce = s->rank[0].core.nonce;
	outcome.verdict.step = WRITING + 1;
	assert_int_equal(ckpt_outcome_encode(&outcome, &buf), 0);
	put(s, "g1-s1", &buf);
	ckpt_buf_free(&buf);
	hold_part(s, WRITING);
	sleep_all(s, 1000);
	assert_false(ended(s, 1));
	sleep_all(s, 4000);
	core_rig_let_go(&s->rank[1]);
	sleep_all(s, 100);
	assert_int_equal(end(s, 1), -ETIMEDOUT);
	assert_int_equal(s->rank[1].core.stats.saves_committed, 0);
}

/* What rank 0 says of another step takes nothing away that it has yet to hear of the one it is about. */
static void test_failure_outlasts_a_skip(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *first;

	open_job(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .hold = true});
	begin(s, 0, 1);
	first = s->save[0];
	refuse(s, 1, 1, -ENOMEM, "no room, says the test");
	begin(s, 1, 2);
	refuse(s, 0, 2, CKPT_ESKIPPED, "the save of step 1 still runs");
	sleep_all(s, 600);
	assert_int_equal(end(s, 1), CKPT_ESKIPPED);
	s->save[0] = first;
	assert_false(ended(s, 0));
	io_fault_clear(&s->rank[0].fault);
	core_rig_let_go(&s->rank[0]);
	sleep_all(s, 300);
	assert_int_equal(end(s, 0), CKPT_EABORTED);
	check_says(s, 0, "no room, says the test");
}

/* A step that is on its way is not spoilt by a second one of the same number. */
static void test_same_step_twice(void **state)
{
	struct scene *s = *state;

	open_job(s, 2, 2, 600000);
	for (uint32_t first = 0; first < 2; first++) {
		begin(s, first, first + 1);
		struct ckpt_save *save = s->save[first];
		refuse(s, first, first + 1, -ETIMEDOUT, "the storage still holds that");
		s->save[first] = save;
		begin(s, 1 - first, first + 1);
		sleep_all(s, 500);
		assert_int_equal(end(s, 0), 0);
		assert_int_equal(end(s, 1), 0);
	}
}

/* A rank that could not join the claim: rank 0 need not wait for it. */
static void test_astray(void **state)
{
	struct scene *s = *state;

	open_rank(s, 0, 3, 600000);
	open_rank(s, 1, 2, 600000);
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_int_equal(core_rig_claim(&s->rank[1]), CKPT_EMISMATCH);
	begin(s, 0, 1);
	refuse(s, 1, 1, CKPT_EMISMATCH, "it is one of two ranks");
	sleep_all(s, 500);
	assert_int_equal(end(s, 0), CKPT_EABORTED);
	check_says(s, 0, "it is one of two ranks");
}

/* Asks as ckpt_save_start() does. 1: it waits. */
static int ask(struct scene *s, uint64_t step, uint64_t patience_ms, struct ckpt_command **ret)
{
	struct ckpt_command *command =
		ckpt_command_new(&s->rank[1].core, sizeof(struct ckpt_skipper), NULL);
	struct ckpt_skipper *skipper = CKPT_CONTAINER(command, struct ckpt_skipper, command);

	skipper->step = step;
	skipper->patience_ns = patience_ms * 1000000;
	*ret = command;
	ckpt_command_post(command, ckpt_skipper_body);
	core_rig_run(&s->rank[1]);
	return ckpt_latch_get(&command->latch) & CKPT_DONE_END ? command->result : 1;
}

static int answer(struct ckpt_command *command)
{
	assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
	int r = command->result;

	assert_int_equal(command->error.code, r);
	ckpt_command_unref(command);
	return r;
}

/* Rank 0 alone decides; the others hear it whether they have begun the step or not. */
static void test_skipped(void **state)
{
	struct scene *s = *state;
	struct ckpt_command *command;
	struct ckpt_save *first[2];

	open_job(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .hold = true});
	for (uint32_t rank = 0; rank < 2; rank++) {
		begin(s, rank, 1);
		first[rank] = s->save[rank];
	}
	assert_int_equal(ask(s, 2, 60000, &command), 1);
	refuse(s, 0, 2, CKPT_ESKIPPED, "the save of step 1 still runs");
	sleep_all(s, 300);
	assert_int_equal(answer(command), CKPT_ESKIPPED);
	/* The last save ends: nothing was said, and the next one may begin. */
	assert_int_equal(ask(s, 3, 60000, &command), 1);
	io_fault_clear(&s->rank[0].fault);
	core_rig_let_go(&s->rank[0]);
	sleep_all(s, 300);
	assert_int_equal(answer(command), 0);
	for (uint32_t rank = 0; rank < 2; rank++) {
		s->save[rank] = first[rank];
		assert_int_equal(end(s, rank), 0);
	}
	/* Step 1 is over, and who is late may still ask for step 2. */
	assert_int_equal(access(told_path(s, "g1-s2"), F_OK), 0);
	begin(s, 1, 3);
	refuse(s, 0, 3, CKPT_ESKIPPED, "the save of step 2 still runs");
	sleep_all(s, 300);
	assert_int_equal(end(s, 1), CKPT_ESKIPPED);
	check_says(s, 1, "the save of step 2 still runs");
	assert_int_equal(s->rank[1].core.stats.saves_skipped, 1);
	assert_int_equal(s->rank[1].core.stats.saves_failed, 0);
	/* A failure is for the save to find; and nobody waits for ever. */
	begin(s, 1, 4);
	assert_int_equal(ask(s, 5, 1000, &command), 1);
	refuse(s, 0, 5, -EIO, "it fails");
	sleep_all(s, 100);
	assert_int_equal(answer(command), 0);
	assert_int_equal(ask(s, 6, 1000, &command), 1);
	sleep_all(s, 1200);
	assert_int_equal(answer(command), 0);
	begin(s, 0, 7);
	sleep_all(s, 100);
}

static bool no_memory(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

/* A restore that one rank had no memory to begin was one of all ranks: the next is the next for it, too. */
static void test_restores_are_counted(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *restore = NULL;

	open_job(s, 2, 2, 1000);
	ckpt_alloc_set_hook(no_memory, NULL);
	int code = ckpt_restore_new(
		&s->rank[1].core, NULL, CKPT_STEP_LATEST, CKPT_SINK_MEMORY, &restore);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(code, -ENOMEM);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ckpt_restore_new(&s->rank[i].core, NULL, CKPT_STEP_LATEST,
					 CKPT_SINK_MEMORY, &restore),
			0);
		assert_int_equal(restore->ranks->number, 1 + i);
		ckpt_restore_unref(restore);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_together),
		TEST(test_lost_answer),
		TEST(test_unknown),
		TEST(test_late_for_the_register),
		TEST(test_reason_of_another),
		TEST(test_dead_leader),
		TEST(test_missing),
		TEST(test_few_missing),
		TEST(test_failure_of_one_of_many),
		TEST(test_strange_words),
		TEST(test_claim_told_later),
		TEST(test_claim_told_after_the_next),
		TEST(test_claims_are_counted),
		TEST(test_refused),
		TEST(test_told_while_closing),
		TEST(test_fenced),
		TEST(test_mismatch),
		TEST(test_heard_before_the_part),
		TEST(test_commit_before_the_part),
		TEST(test_failure_outlasts_a_skip),
		TEST(test_same_step_twice),
		TEST(test_astray),
		TEST(test_skipped),
		TEST(test_restores_are_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
