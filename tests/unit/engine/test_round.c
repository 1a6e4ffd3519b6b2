/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of three ranks, and of a thousand, in virtual time. The ranks share a table of values. Each of their requests
 * in turn is lost, or answered in vain, or late, or carried out twice; after each of them a rank dies, changes its mind,
 * or is not answered any more. Whatever happens there is one outcome.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "round_scene.h"

#define MILLISECOND UINT64_C(1000000)

/* Nobody has an outcome before all have put their values; then all have it, and what was put is gone. */
static void test_all_well(void **state)
{
	struct scene *s = *state;

	start_all(s);
	for (uint32_t i = 0; i < RANKS; i++) {
		uint32_t rank = (i + 1) % RANKS;
		sleep_ms(s, 200);
		for (uint32_t k = 0; k < RANKS; k++)
			assert_false(s->voter[k].round.decided);
		put(s, rank, 0, "well");
	}
	/* Sooner than a rank asks that is at work. */
	sleep_ms(s, REST_MS - 5);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_true(s->voter[i].round.task.finished && s->voter[i].outcome == 0);
	assert_int_equal(s->board.count, 1);
	assert_string_equal(s->board.values[0].key, "outcome");
	finish(s);
}

/*
 * Who fails says so at once: before the others have put anything, or when they wait for it. What they have put stays:
 * rank 0 may still ask for it.
 */
static void test_one_fails(void **state)
{
	struct scene *s = *state;

	for (uint32_t failing = 0; failing < RANKS; failing++)
		for (unsigned others = 0; others < 2; others++) {
			start_all(s);
			for (uint32_t i = 0; i < RANKS && others; i++)
				if (i != failing)
					put(s, i, 0, "well");
			sleep_ms(s, 100);
			put(s, failing, -ENOSPC, "its disk is full");
			sleep_ms(s, REST_MS + 50);
			for (uint32_t i = 0; i < RANKS; i++)
				assert_true(s->voter[i].round.decided);
			finish(s);
			assert_int_equal(outcome_of(s), -ENOSPC);
			assert_string_equal(s->voter[0].said, "its disk is full");
			for (uint32_t i = 1; i < RANKS; i++)
				assert_true(is_on_board(s, i) == (others && i != failing));
		}
}

/* A message that is lost, comes late, or comes twice changes nothing. */
static void test_every_message(void **state)
{
	struct scene *s = *state;
	unsigned requests = count_requests(s);

	for (unsigned n = 1; n <= 2 * requests; n++)
		for (enum board_fault fault = BOARD_LOST; fault <= BOARD_TWICE; fault++) {
			s->held = n > requests;
			start_all(s);
			s->board.from = s->board.to = s->held ? n - requests : n;
			s->board.fault = fault;
			put_all(s);
			sleep_ms(s, BOARD_LATE_MS + 200);
			for (uint32_t i = 0; i < RANKS; i++)
				assert_true(s->voter[i].round.decided);
			finish(s);
			assert_int_equal(outcome_of(s), 0);
			assert_true(s->voter[0].complete == s->held);
		}
}

/* All have put their values, and wait for the owner of rank 0's. */
static void start_held(struct scene *s)
{
	s->held = true;
	start_all(s);
	s->voter[0].keeps = true;
	put(s, 1, 0, "well");
	put(s, 2, 0, "well");
	sleep_ms(s, 100);
	assert_false(ckpt_round_is_complete(&s->voter[0].round));
	put(s, 0, 0, "well");
	sleep_ms(s, 100);
	assert_true(s->voter[0].complete && ckpt_round_is_complete(&s->voter[0].round));
	assert_false(is_on_board(s, CKPT_ROUND_OUTCOME));
}

/* The owner of a round that is held works with the values of all before anybody has an outcome, which is what it comes to. */
static void test_held(void **state)
{
	struct scene *s = *state;
	struct voter *v = &s->voter[0];

	for (int fails = 0; fails < 2; fails++) {
		start_held(s);
		sleep_ms(s, 500);
		for (uint32_t i = 0; i < RANKS; i++)
			assert_false(s->voter[i].round.decided);
		if (fails) {
			put(s, 0, -ENOSPC, "its disk is full");
			assert_false(ckpt_round_is_complete(&v->round));
		} else {
			(void)snprintf(v->reason, sizeof(v->reason), "worked");
			ckpt_round_release(&v->round);
			core_rig_run(&s->rig[0]);
		}
		sleep_ms(s, 100);
		for (uint32_t i = 0; i < RANKS; i++)
			assert_true(s->voter[i].round.decided);
		finish(s);
		assert_int_equal(outcome_of(s), fails ? -ENOSPC : 0);
		assert_string_equal(s->voter[2].said, fails ? "its disk is full" : "worked");
	}
}

/*
 * Rank 0's deadline is over when the owner has done its work, and the others still wait: it goes well for all, also if the
 * exchange loses what rank 0 puts at first.
 */
static void test_held_past_the_deadline(void **state)
{
	struct scene *s = *state;

	for (int lost = 0; lost < 2; lost++) {
		start_held(s);
		sleep_ms(s, LEADER_MS + 50 - s->ms);
		for (uint32_t i = 0; i < RANKS; i++)
			assert_false(s->voter[i].round.decided);
		if (lost)
			die(s, 0, 1, BOARD_LOST);
		ckpt_round_release(&s->voter[0].round);
		core_rig_run(&s->rig[0]);
		sleep_ms(s, 20);
		assert_true(s->voter[0].round.decided == !lost);
		let_go(s);
		sleep_ms(s, 50);
		finish(s);
		assert_int_equal(outcome_of(s), 0);
	}
}

/*
 * A rank gives up, and finds that it went well in the place of its failure. As after every success, what it has put goes.
 */
static void test_success_read_late(void **state)
{
	struct scene *s = *state;

	for (uint32_t rank = 1; rank < RANKS; rank++) {
		start_held(s);
		assert_true(is_on_board(s, rank));
		assert_int_equal(board_put(&s->board, "outcome", "outcome 0 well", 14), 0);
		put(s, rank, -ECANCELED, "it has changed its mind");
		sleep_ms(s, 100);
		assert_int_equal(s->voter[rank].outcome, 0);
		assert_false(is_on_board(s, rank));
		ckpt_round_release(&s->voter[0].round);
		core_rig_run(&s->rig[0]);
		finish(s);
		assert_int_equal(outcome_of(s), 0);
	}
}

/* Whom the owner keeps waiting for too long ends it, and the owner hears that when it has done its work. */
static void test_held_for_long(void **state)
{
	struct scene *s = *state;

	start_held(s);
	sleep_ms(s, OTHER_MS + LIMIT_MS + 50);
	assert_false(s->voter[0].round.decided);
	for (uint32_t i = 1; i < RANKS; i++)
		assert_in_range(s->decided_ms[i], OTHER_MS - 5, OTHER_MS + 50);
	ckpt_round_release(&s->voter[0].round);
	core_rig_run(&s->rig[0]);
	sleep_ms(s, 50);
	assert_true(s->voter[0].round.decided);
	finish(s);
	assert_int_equal(outcome_of(s), -ETIMEDOUT);
	assert_string_equal(s->voter[0].said, s->voter[2].said);
}

/*
 * Rank 0 puts a success, and finds a failure there. It reads that, also if it fails itself meanwhile; if it cannot, it ends
 * with the reason why.
 */
static void test_outcome_read_late(void **state)
{
	struct scene *s = *state;
	struct voter *v = &s->voter[0];

	for (int lost = 0; lost < 2; lost++) {
		start_held(s);
		assert_int_equal(board_put(&s->board, "outcome", "outcome -28 full", 16), 0);
		die(s, 0, 1, lost ? BOARD_LOST : BOARD_LATE);
		s->board.verb = CKPT_EXCHANGE_GET;
		ckpt_round_release(&v->round);
		core_rig_run(&s->rig[0]);
		sleep_ms(s, 50);
		if (!lost)
			put(s, 0, -ECANCELED, "it has changed its mind");
		sleep_ms(s, BOARD_LATE_MS + 50);
		assert_true(v->round.decided && v->alone == lost);
		assert_int_equal(v->outcome, lost ? -ETIMEDOUT : -ENOSPC);
		assert_non_null(strstr(v->said, lost ? "lost it" : "full"));
		finish(s);
		assert_int_equal(check_outcome(s, true), -ENOSPC);
	}
}

/* It ends alone, and as soon, if the exchange does not answer it then, or loses all. */
static void test_held_in_silence(void **state)
{
	static const enum board_fault faults[] = {BOARD_SILENT, BOARD_LOST};
	struct scene *s = *state;

	for (size_t k = 0; k < COUNT(faults); k++) {
		start_held(s);
		sleep_ms(s, OTHER_MS);
		die(s, 0, 1, faults[k]);
		ckpt_round_release(&s->voter[0].round);
		core_rig_run(&s->rig[0]);
		sleep_ms(s, LIMIT_MS + 50);
		assert_true(s->voter[0].alone && s->voter[0].outcome == -ETIMEDOUT);
		finish(s);
		assert_int_equal(check_outcome(s, true), -ETIMEDOUT);
	}
}

/*
 * After request `n` ranks change their mind, or close, while the requests from there on are lost, answered in vain, or
 * late. The outcome of those that have one.
 */
static int turn_at(struct scene *s, unsigned n, unsigned hit, enum board_fault fault)
{
	s->turn_at = n;
	s->board.from = n;
	s->board.to = n + hit - 1;
	s->board.fault = fault;
	sleep_ms(s, 300);
	finish(s);
	/* A rank whose failure is not answered in time ends alone. */
	return check_outcome(s, fault == BOARD_LATE || s->closes);
}

/* Any rank changes its mind, or two do, at any moment, whatever becomes of the requests then: all have one outcome. */
static void test_change_of_mind(void **state)
{
	struct scene *s = *state;
	unsigned requests = count_requests(s);
	unsigned ended[2] = {0};

	for (enum board_fault fault = BOARD_LOST; fault <= BOARD_LATE; fault++)
		for (uint32_t rank = 0; rank < 2 * RANKS; rank++)
			for (unsigned n = 1; n <= requests; n++)
				for (unsigned hit = 0; hit < 6; hit++) {
					start_all(s);
					put_all(s);
					s->turner = rank % RANKS;
					s->turners = 1 + rank / RANKS;
					int outcome = turn_at(s, n, hit, fault);
					ended[outcome == 0] +=
						outcome == 0 || outcome == -ECANCELED;
				}
	assert_true(ended[0] > 0 && ended[1] > 0);
}

/* An engine closes at any moment: all have one outcome, and nothing is under way after its farewell. */
static void test_close(void **state)
{
	struct scene *s = *state;
	unsigned requests = count_requests(s);
	unsigned alone = 0;

	for (uint32_t rank = 0; rank < RANKS; rank++)
		for (unsigned n = 1; n <= requests; n++)
			for (unsigned hit = 0; hit < 4; hit++) {
				start_all(s);
				put_all(s);
				s->turner = rank;
				s->closes = true;
				int outcome = turn_at(s, n, hit, BOARD_LOST);
				assert_true(outcome == 0 || outcome == -ECANCELED);
				assert_true(hit > 0 || !s->voter[rank].alone);
				alone += s->voter[rank].alone;
				s->rig[rank].core.closing = false;
			}
	assert_true(alone < requests);
}

/* The leader goes on putting a success until its deadline. */
static void test_outage(void **state)
{
	struct scene *s = *state;

	start_all(s);
	s->board.verb = CKPT_EXCHANGE_PUT;
	s->board.rank = 0;
	s->board.from = 1;
	s->board.to = UINT32_MAX;
	s->board.fault = BOARD_LOST;
	put_all(s);
	sleep_ms(s, LEADER_MS - 200);
	finish(s);
	assert_int_equal(outcome_of(s), 0);
}

/* The exchange dies, for one rank or for all, after any request: all end in time, and none goes on alone. */
static void test_dead_exchange(void **state)
{
	static const enum board_fault faults[] = {BOARD_SILENT, BOARD_LOST, BOARD_UNANSWERED};
	struct scene *s = *state;
	unsigned requests = count_requests(s);

	for (uint32_t rank = 0; rank <= RANKS; rank++)
		for (unsigned n = 1; n <= requests; n++)
			for (size_t k = 0; k < COUNT(faults); k++) {
				uint64_t more_ms = faults[k] == BOARD_SILENT ? LIMIT_MS : PUT_MS;
				start_all(s);
				die(s, rank, n, faults[k]);
				put_all(s);
				sleep_ms(s, OTHER_MS + LIMIT_MS + 50);
				assert_true(s->decided_ms[0] <= LEADER_MS + more_ms + 5);
				for (uint32_t i = 0; i < RANKS; i++) {
					assert_true(s->voter[i].round.decided);
					assert_true(s->decided_ms[i] <= OTHER_MS + more_ms + 5);
				}
				(void)check_outcome(s, true);
				if (rank < RANKS && faults[k] == BOARD_LOST && s->voter[rank].alone)
					assert_non_null(strstr(s->voter[rank].said, "lost it"));
				finish(s);
			}
}

/* Who has failed does not wait until its deadline for an exchange that says nothing. */
static void test_fails_in_silence(void **state)
{
	struct scene *s = *state;

	for (uint32_t i = 0; i < 2 * RANKS; i++) {
		uint32_t rank = i % RANKS;
		start_all(s);
		sleep_ms(s, 100);
		die(s, rank, 1, BOARD_SILENT);
		/* Also if it asks just then. */
		sleep_ms(s, i < RANKS ? 0 : 100);
		put(s, rank, -ENOSPC, "its disk is full");
		sleep_ms(s, LIMIT_MS + 50);
		assert_true(s->voter[rank].alone && s->voter[rank].outcome == -ENOSPC);
		put_all(s);
		finish(s);
		/* The others end at their deadline, or receive it when the exchange answers. */
		assert_int_equal(check_outcome(s, true), i < RANKS ? -ETIMEDOUT : -ENOSPC);
	}
}

/* A rank that finds an outcome in the place of its failure, and cannot read it, ends with that failure. */
static void test_outcome_unread(void **state)
{
	static const enum board_fault faults[] = {BOARD_SILENT, BOARD_LOST};
	struct scene *s = *state;

	for (uint32_t rank = 0; rank < RANKS; rank++)
		for (size_t k = 0; k < COUNT(faults); k++) {
			start_all(s);
			die(s, rank, 1, faults[k]);
			s->board.verb = CKPT_EXCHANGE_GET;
			assert_int_equal(
				board_put(&s->board, "outcome", "outcome -28 full", 16), 0);
			sleep_ms(s, 100);
			put(s, rank, -ECANCELED, "it has changed its mind");
			sleep_ms(s, LIMIT_MS + PUT_MS + 50);
			assert_true(s->voter[rank].alone && s->voter[rank].outcome == -ECANCELED);
			put_all(s);
			finish(s);
			assert_int_equal(check_outcome(s, true), -ENOSPC);
		}
}

/* What the leader has put in vain it takes back when the exchange answers, for others may wait longer than it has. */
static void test_taken_back(void **state)
{
	struct scene *s = *state;

	board_clear(&s->board);
	for (uint32_t i = 0; i < RANKS; i++)
		start(s, i, UINT64_MAX);
	put(s, 0, 0, "well");
	sleep_ms(s, LEADER_MS - 100);
	die(s, 0, 1, BOARD_SILENT);
	s->board.verb = CKPT_EXCHANGE_PUT;
	put(s, 1, 0, "well");
	put(s, 2, 0, "well");
	sleep_ms(s, LIMIT_MS + 200);
	assert_true(s->voter[0].alone);
	assert_false(s->voter[1].round.decided || s->voter[2].round.decided);
	let_go(s);
	sleep_ms(s, 100);
	assert_true(s->voter[1].round.decided && s->voter[2].round.decided);
	finish(s);
	assert_int_equal(check_outcome(s, true), -ETIMEDOUT);
	assert_string_equal(s->voter[1].said, s->voter[0].said);
}

/* The leader gives up first, and names who is missing; a rank that is at work hears of it. */
static void test_missing_rank(void **state)
{
	struct scene *s = *state;

	start_all(s);
	put(s, 0, 0, "well");
	put(s, 1, 0, "well");
	sleep_ms(s, OTHER_MS);
	assert_in_range(s->decided_ms[0], LEADER_MS - 5, LEADER_MS + 10);
	assert_in_range(s->decided_ms[1], LEADER_MS - 5, LEADER_MS + 100);
	assert_in_range(s->decided_ms[2], LEADER_MS - 5, LEADER_MS + 100);
	finish(s);
	assert_int_equal(outcome_of(s), -ETIMEDOUT);
	assert_string_equal(s->voter[2].said, "rank 0 waits for 2");
}

/* Nobody is left who could decide that it went well: the others end it, at their deadline. */
static void test_missing_leader(void **state)
{
	struct scene *s = *state;

	start_alone(s, 1);
	start_alone(s, 2);
	put(s, 1, 0, "well");
	put(s, 2, 0, "well");
	sleep_ms(s, OTHER_MS + 100);
	for (uint32_t i = 1; i < RANKS; i++) {
		assert_in_range(s->decided_ms[i], OTHER_MS - 5, OTHER_MS + 50);
		assert_int_equal(s->voter[i].outcome, -ETIMEDOUT);
		assert_string_equal(s->voter[i].said, s->voter[1].said);
	}
	finish(s);
}

/* A round that starts long after its deadline receives the outcome that the others have put. */
static void test_late_start(void **state)
{
	struct scene *s = *state;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		board_clear(&s->board);
		s->ms = 0;
		uint64_t deadline_ns = ckpt_round_deadline(&s->rig[rank].core);
		for (uint32_t i = 0; i < RANKS; i++)
			if (i != rank)
				start_alone(s, i);
		for (uint32_t i = 0; i < RANKS; i++)
			if (i != rank)
				put(s, i, 0, "well");
		sleep_ms(s, OTHER_MS + LIMIT_MS + 500);
		start(s, rank, deadline_ns);
		put(s, rank, 0, "well");
		finish(s);
		assert_false(s->voter[rank].alone);
		assert_int_equal(outcome_of(s), -ETIMEDOUT);
	}
}

/* Where nobody has put one, it still asks, and puts why it fails: not that the exchange does not answer. */
static void test_late_start_alone(void **state)
{
	static const char *const said[RANKS] = {"rank 0 waits for 1, 2",
		"rank 1 waits for the outcome", "rank 2 waits for the outcome"};
	struct scene *s = *state;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		board_clear(&s->board);
		start(s, rank, ckpt_env_now(s->rig[rank].core.parts.env) - MILLISECOND);
		put(s, rank, 0, "well");
		sleep_ms(s, 50);
		assert_int_equal(s->voter[rank].outcome, -ETIMEDOUT);
		assert_false(s->voter[rank].alone);
		assert_string_equal(s->voter[rank].said, said[rank]);
		finish(s);
	}
}

/* A failure is put for an eighth of the timeout, and for 10 s at most, whatever the caller waits for. */
static void test_deadline(void **state)
{
	struct scene *s = *state;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		struct ckpt_core *core = &s->rig[rank].core;
		uint64_t waits_ms = rank == 0 ? 600000 : 700000;
		core->config.save_timeout_ms = 800000;
		assert_int_equal(ckpt_round_deadline(core) - ckpt_env_now(core->parts.env),
			(waits_ms - 5000) * MILLISECOND);
		assert_int_equal(ckpt_round_deadline_within(core, 120000 * MILLISECOND) -
					 ckpt_env_now(core->parts.env),
			(waits_ms * 3 / 20 - 5000) * MILLISECOND);
	}
}

/* As long as a rank is at work there is no deadline for it, and it asks seldom. */
static void test_no_deadline_before_a_value(void **state)
{
	struct scene *s = *state;

	board_clear(&s->board);
	s->turn_at = 0;
	for (uint32_t i = 0; i < RANKS; i++)
		start(s, i, UINT64_MAX);
	sleep_ms(s, 10000);
	assert_in_range(s->board.requests, 1, RANKS * 10000 / REST_MS);
	put_all(s);
	sleep_ms(s, 100);
	finish(s);
	assert_int_equal(outcome_of(s), 0);
	/* It begins when the value is there. */
	board_clear(&s->board);
	start(s, 0, UINT64_MAX);
	start(s, 1, UINT64_MAX);
	put(s, 1, 0, "well");
	sleep_ms(s, OTHER_MS - 20);
	assert_false(s->voter[1].round.decided);
	sleep_ms(s, 150);
	assert_int_equal(s->voter[0].outcome, -ETIMEDOUT);
	assert_int_equal(s->voter[1].outcome, -ETIMEDOUT);
	finish(s);
}

/* What is no value of this round is nobody's success. */
static void test_strange_values(void **state)
{
	static const char *const keys[] = {"value-1", "outcome"};
	struct scene *s = *state;

	for (size_t k = 0; k < COUNT(keys); k++) {
		start_all(s);
		assert_int_equal(board_put(&s->board, keys[k], "nonsense", 8), 0);
		put_all(s);
		sleep_ms(s, 300);
		for (uint32_t i = 0; i < RANKS; i++)
			assert_true(s->voter[i].outcome < 0);
		assert_non_null(strstr(s->voter[1].said, k == 0 ? "rank 1" : "strange"));
		finish(s);
	}
	/* In the place of a rank that has put nothing. */
	start_all(s);
	assert_int_equal(board_put(&s->board, "value-1", "nonsense", 8), 0);
	put(s, 0, 0, "well");
	put(s, 2, 0, "well");
	sleep_ms(s, 100);
	assert_string_equal(s->voter[1].said, "the value of rank 1 is strange");
	finish(s);
	assert_int_equal(outcome_of(s), -EIO);
	/* In the place of this rank's. */
	start_all(s);
	assert_int_equal(board_put(&s->board, "value-1", "nonsense", 8), 0);
	put(s, 1, 0, "well");
	sleep_ms(s, 100);
	assert_non_null(strstr(s->voter[1].said, "another value of rank 1"));
	finish(s);
	assert_int_equal(outcome_of(s), -EINVAL);
	/* Beside an outcome, in one answer: that one counts, and the value is not looked at. */
	start_all(s);
	assert_int_equal(board_put(&s->board, "value-1", "nonsense", 8), 0);
	assert_int_equal(board_put(&s->board, "outcome", "outcome -28 full", 16), 0);
	put(s, 0, 0, "well");
	sleep_ms(s, 100);
	assert_int_equal(s->voter[0].round.why.code, 0);
	finish(s);
	assert_int_equal(outcome_of(s), -ENOSPC);
}

/* Without memory for a value there is a failure, for all. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	unsigned failures = 0;

	for (uint32_t rank = 0; rank < RANKS; rank++)
		for (size_t n = 1, allocations = 1; n <= allocations; n++) {
			start_all(s);
			core_rig_count_allocations(&s->rig[rank], n);
			put_all(s);
			sleep_ms(s, 300);
			allocations = core_rig_allocations(&s->rig[rank]);
			finish(s);
			failures += outcome_of(s) == -ENOMEM;
		}
	assert_true(failures > 0);
}

/* More than one request asks for, whatever comes first; and who is missing is said in few words. */
static void test_many(void **state)
{
	/* Those of `from` to `to` are missing. Of more than one question asks for the rest is not known. */
	static const struct {
		uint32_t from, to;
		const char *said;
	} cases[] = {{1, 8, "1, 2, 3, 4, 5, 6, 7, 8"}, {9, 9, "9"},
		{9, 17, "9, 10, 11, 12, 13, 14, 15, 16 and 1 more"},
		{937, 999, "937, 938, 939, 940, 941, 942, 943, 944 and 55 more"},
		{100, 163, "109, 110, 111, 112, 113, 114, 115, 116 and at least 55 more"},
		{1, 999, "1, 2, 3, 4, 5, 6, 7, 8 and at least 55 more"}};
	struct scene *s = *state;
	struct voter *v = &s->voter[0];

	start_all(s);
	put_all(s);
	for (uint32_t rank = MANY - 1; rank > 0; rank--) {
		assert_false(v->round.decided);
		put_value(s, rank);
		if (rank % 16 == 0)
			sleep_ms(s, 5);
	}
	sleep_ms(s, 200);
	assert_int_equal(v->outcome, 0);
	finish(s);
	for (size_t i = 0; i < COUNT(cases); i++) {
		start_all(s);
		for (uint32_t rank = 1; rank < MANY; rank++)
			if (rank < cases[i].from || rank > cases[i].to)
				put_value(s, rank);
		put_all(s);
		/* What is there is taken with few questions. */
		sleep_ms(s, 200);
		assert_true(v->round.missing <= ckpt_max_u64(cases[i].to - cases[i].from + 1, 63));
		sleep_ms(s, LEADER_MS - 150);
		assert_int_equal(v->outcome, -ETIMEDOUT);
		assert_string_equal(v->said + strlen("rank 0 waits for "), cases[i].said);
		finish(s);
	}
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_all_well),
		SCENE(test_one_fails),
		SCENE(test_every_message),
		SCENE(test_held),
		SCENE(test_held_past_the_deadline),
		SCENE(test_success_read_late),
		SCENE(test_held_for_long),
		SCENE(test_held_in_silence),
		SCENE(test_outcome_read_late),
		SCENE(test_change_of_mind),
		SCENE(test_close),
		SCENE(test_outage),
		SCENE(test_dead_exchange),
		SCENE(test_fails_in_silence),
		SCENE(test_outcome_unread),
		SCENE(test_taken_back),
		SCENE(test_missing_rank),
		SCENE(test_missing_leader),
		SCENE(test_late_start),
		SCENE(test_late_start_alone),
		SCENE(test_no_deadline_before_a_value),
		SCENE(test_deadline),
		SCENE(test_strange_values),
		SCENE(test_no_memory),
		cmocka_unit_test_setup_teardown(test_many, set_up_many, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
