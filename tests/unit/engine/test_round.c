/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of three ranks, and of two hundred, in virtual time. The ranks share a table of values. Each of their requests
 * in turn is lost, or answered in vain, or late, or carried out twice; after each of them a rank dies, changes its mind,
 * or is not answered any more. Whatever happens there is one outcome.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/ranks/round.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"

#define RANKS       3
#define MANY        200
#define VALUES      (MANY + 8)
#define MILLISECOND UINT64_C(1000000)
/* Of 1600 ms: the leader waits 1100 ms, the others 1300 ms, and 300 ms more if nothing is answered. */
#define TIMEOUT_MS  1600
#define LEADER_MS   1100
#define OTHER_MS    1300
#define LIMIT_MS    300
#define LATE_MS     300
/* How long a failure is put. */
#define PUT_MS      200
/* Of the owner, until a rank has put its value. */
#define REST_MS     50
#define OPEN        1 /* no outcome yet */

enum fault {
	NONE,
	LOST,       /* nothing is done, and that is said */
	UNANSWERED, /* it is done, and the answer says that it was not */
	LATE,       /* done and answered late */
	TWICE,      /* done once more when it is answered */
	SILENT,     /* nothing is done or answered */
};

/* What a table of values does with requests. */
struct board {
	struct {
		char key[CKPT_EXCHANGE_KEY_MAX];
		char *data;
		uint64_t length;
	} values[VALUES];
	size_t count;
	unsigned requests; /* so far */
	enum fault fault;
	unsigned from, to;            /* the requests that it happens to, counted from 1 */
	uint32_t rank;                /* of this rank alone; RANKS: of all */
	enum ckpt_exchange_verb verb; /* these alone; 0: all */
};

/* One rank's way to it: one request at a time. */
struct link {
	struct ckpt_exchange exchange;
	struct ckpt_exchange *inner; /* the rig's, closed with it */
	struct board *board;
	struct ckpt_core *core;
	struct ckpt_exchange_op *op;
	struct ckpt_timer timer;
	enum fault fault;
};

struct voter {
	struct ckpt_round round;
	int code; /* of its value */
	char reason[128];
	int outcome; /* OPEN, or that of all ranks */
	bool alone;
	char said[128]; /* the outcome's reason */
};

struct scene {
	char *dir;
	uint32_t world;
	uint32_t opened;
	struct core_rig rig[RANKS];
	struct link link[RANKS];
	struct voter voter[RANKS];
	struct board board;
	bool started[RANKS];
	uint64_t ms; /* since the round began */
	uint64_t decided_ms[RANKS];
	unsigned turn_at; /* a rank changes its mind after this request; 0: none does */
	uint32_t turner;
};

/* The table. */

static size_t find(const struct board *b, const char *key)
{
	size_t i = 0;

	while (i < b->count && strcmp(b->values[i].key, key) != 0)
		i++;
	return i;
}

static int board_put(struct board *b, const char *key, const void *data, uint64_t length)
{
	size_t i = find(b, key);

	if (i < b->count)
		return b->values[i].length == length && memcmp(b->values[i].data, data, length) == 0
			       ? 0
			       : -EEXIST;
	assert_true(i < VALUES);
	(void)snprintf(b->values[i].key, sizeof(b->values[i].key), "%s", key);
	b->values[i].data = malloc(length);
	assert_non_null(b->values[i].data);
	memcpy(b->values[i].data, data, length);
	b->values[i].length = length;
	b->count++;
	return 0;
}

static void board_drop(struct board *b, size_t i)
{
	if (i == b->count)
		return;
	free(b->values[i].data);
	b->values[i] = b->values[--b->count];
}

static void board_clear(struct board *b)
{
	while (b->count > 0)
		board_drop(b, 0);
	*b = (struct board){.rank = RANKS};
}

static int do_item(struct board *b, struct ckpt_exchange_op *op, struct ckpt_exchange_item *item)
{
	size_t i = find(b, item->key);

	if (op->verb == CKPT_EXCHANGE_PUT)
		return board_put(b, item->key, item->data, item->length);
	if (op->verb == CKPT_EXCHANGE_DROP) {
		board_drop(b, i);
	} else if (i < b->count && !item->data) {
		item->data = ckpt_memdup(b->values[i].data, b->values[i].length);
		item->length = b->values[i].length;
		return item->data ? 0 : -ENOMEM;
	}
	return 0;
}

static int do_request(struct link *x)
{
	int r = 0;

	for (size_t i = 0; i < x->op->count && r == 0; i++)
		r = do_item(x->board, x->op, &x->op->items[i]);
	return r;
}

/* One rank's way. */

static void answer(struct link *x, int result)
{
	struct ckpt_exchange_op *op = x->op;

	x->op = NULL;
	if (result < 0 && op->verb == CKPT_EXCHANGE_GET)
		ckpt_exchange_items_clear(op->items, op->count);
	ckpt_exchange_end(op, result);
}

static void fired(struct ckpt_timer *timer)
{
	struct link *x = CKPT_CONTAINER(timer, struct link, timer);
	int r = x->op->result;

	if (x->fault == LATE || x->fault == TWICE)
		r = do_request(x);
	answer(x, r);
}

static bool is_hit(const struct board *b, const struct link *x)
{
	return b->requests >= b->from && b->requests <= b->to &&
	       (b->rank == RANKS || b->rank == x->core->config.rank) &&
	       (!b->verb || b->verb == x->op->verb);
}

/* It is done at once, so that others may see what it has done before it is answered. */
static void link_submit(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op)
{
	struct link *x = CKPT_CONTAINER(exchange, struct link, exchange);
	struct board *b = x->board;

	assert_null(x->op);
	x->op = op;
	b->requests++;
	x->fault = is_hit(b, x) ? b->fault : NONE;
	if (x->fault == SILENT)
		return;
	op->result = x->fault == LOST || x->fault == LATE ? 0 : do_request(x);
	if (x->fault == LOST || x->fault == UNANSWERED)
		op->result = -EIO;
	x->timer.fire = fired;
	ckpt_core_timer_set(x->core, &x->timer,
		ckpt_env_now(x->core->parts.env) + (x->fault == LATE ? LATE_MS : 1) * MILLISECOND);
}

static void link_close(struct ckpt_exchange *exchange)
{
	struct link *x = CKPT_CONTAINER(exchange, struct link, exchange);

	assert_null(x->op);
	ckpt_exchange_close(x->inner);
}

static const struct ckpt_exchange_ops link_ops = {
	.name = "link", .submit = link_submit, .close = link_close};

/* The owner. Its values are KEY CODE REASON. */

static struct voter *voter_of(struct ckpt_round *round)
{
	return CKPT_CONTAINER(round, struct voter, round);
}

static void name_key(const struct ckpt_round *round, uint32_t rank, char *ret_key)
{
	(void)round;
	if (rank == CKPT_ROUND_OUTCOME)
		(void)snprintf(ret_key, CKPT_EXCHANGE_KEY_MAX, "outcome");
	else
		(void)snprintf(ret_key, CKPT_EXCHANGE_KEY_MAX, "value-%u", rank);
}

static int encode(const struct ckpt_round *round, const char *key, struct ckpt_buf *out)
{
	const struct voter *v = voter_of((struct ckpt_round *)(uintptr_t)round);

	ckpt_buf_printf(out, "%s %d %s", key, v->code, v->reason);
	return out->failed ? -ENOMEM : 0;
}

static int decode(const struct ckpt_exchange_item *item, int *ret_code, char ret_reason[128])
{
	size_t key = strlen(item->key);
	char text[256] = "";
	char *end;

	memcpy(text, item->data, ckpt_min_u64(item->length, sizeof(text) - 1));
	if (strncmp(text, item->key, key) != 0 || text[key] != ' ')
		return -EIO;
	*ret_code = (int)strtol(text + key, &end, 10);
	(void)snprintf(ret_reason, 128, "%.127s", *end == ' ' ? end + 1 : end);
	return 0;
}

static int take(struct ckpt_round *round, const struct ckpt_exchange_item *item, uint32_t rank)
{
	char key[CKPT_EXCHANGE_KEY_MAX];
	char reason[128];
	int code;

	assert_int_equal(round->core->config.rank, 0);
	assert_true(rank > 0 && rank < round->core->config.world);
	name_key(round, rank, key);
	assert_string_equal(item->key, key);
	int r = decode(item, &code, reason);
	if (r == 0)
		assert_int_equal(code, 0);
	return r < 0 ? ckpt_fail(&round->why, r, "the value of rank %u is strange", rank) : 0;
}

static int receive(struct ckpt_round *round, const struct ckpt_exchange_item *item)
{
	struct voter *v = voter_of(round);
	int code = v->code;

	assert_int_equal(v->outcome, OPEN);
	(void)snprintf(v->said, sizeof(v->said), "%s", v->reason);
	if (item && (decode(item, &code, v->said) < 0 || (code == 0 && !round->passed)))
		return ckpt_fail(&round->why, -EIO, "the outcome is strange");
	v->alone = !item;
	v->outcome = code;
	return code == 0;
}

static void give_up(struct ckpt_round *round, int code)
{
	struct voter *v = voter_of(round);

	v->code = code;
	(void)snprintf(v->reason, sizeof(v->reason), "%.120s", round->why.message);
}

static void late(struct ckpt_round *round, const char *missing)
{
	(void)ckpt_fail(&round->why, -ETIMEDOUT, "rank %u waits for %s", round->core->config.rank,
		*missing ? missing : "the outcome");
}

static const struct ckpt_round_ops ops = {.name_key = name_key,
	.encode = encode,
	.take = take,
	.receive = receive,
	.fail = give_up,
	.late = late};

/* Scenes. */

static void open_ranks(struct scene *s, uint32_t count, uint32_t world)
{
	s->dir = scratch_make_in_memory();
	s->world = world;
	s->opened = count;
	s->board.rank = RANKS;
	for (uint32_t i = 0; i < count; i++) {
		core_rig_open(&s->rig[i], &(struct core_rig_config){.dir = s->dir,
						  .rank = i,
						  .world = world,
						  .timeout_ms = TIMEOUT_MS});
		s->link[i] = (struct link){
			.exchange = {.ops = &link_ops, .sched = &s->rig[i].core.sched},
			.inner = s->rig[i].core.exchange,
			.board = &s->board,
			.core = &s->rig[i].core};
		s->rig[i].core.exchange = &s->link[i].exchange;
	}
}

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	open_ranks(s, RANKS, RANKS);
	*state = s;
	return 0;
}

static int set_up_many(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	open_ranks(s, 1, MANY);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	board_clear(&s->board);
	for (uint32_t i = 0; i < s->opened; i++)
		core_rig_close(&s->rig[i]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void start(struct scene *s, uint32_t rank, uint64_t deadline_ns)
{
	struct voter *v = &s->voter[rank];
	struct ckpt_core *core = &s->rig[rank].core;

	*v = (struct voter){.outcome = OPEN,
		.round = {.ops = &ops,
			.core = core,
			.deadline_ns = deadline_ns,
			.rest_ns = REST_MS * MILLISECOND}};
	assert_int_equal(ckpt_round_init(&v->round, rank, s->world), 0);
	ckpt_round_start(&v->round);
	core_rig_run(&s->rig[rank]);
	s->started[rank] = true;
}

static void start_alone(struct scene *s, uint32_t rank)
{
	start(s, rank, ckpt_round_deadline(&s->rig[rank].core));
}

/* A new round, on a new table. */
static void start_all(struct scene *s)
{
	board_clear(&s->board);
	s->ms = 0;
	s->turn_at = 0;
	for (uint32_t i = 0; i < s->opened; i++)
		start_alone(s, i);
}

static void put(struct scene *s, uint32_t rank, int code, const char *reason)
{
	struct voter *v = &s->voter[rank];

	if (!ckpt_round_is_open(&v->round))
		return;
	v->code = code;
	(void)snprintf(v->reason, sizeof(v->reason), "%s", reason);
	ckpt_round_put(&v->round, code == 0);
	core_rig_run(&s->rig[rank]);
}

static void put_all(struct scene *s)
{
	for (uint32_t i = 0; i < s->opened; i++)
		put(s, i, 0, "well");
}

static void sleep_ms(struct scene *s, uint64_t ms)
{
	for (uint64_t at = 0; at < ms; at += 5) {
		s->ms += 5;
		for (uint32_t i = 0; i < s->opened; i++) {
			core_rig_sleep(&s->rig[i], 5);
			if (s->started[i] && !s->voter[i].round.decided)
				s->decided_ms[i] = s->ms;
			if (s->turn_at > 0 && s->board.requests >= s->turn_at) {
				s->turn_at = 0;
				put(s, s->turner, -ECANCELED, "it has changed its mind");
			}
		}
	}
}

/* The exchange is there again. What it was asked before is lost. */
static void let_go(struct scene *s)
{
	s->board.fault = NONE;
	for (uint32_t i = 0; i < s->opened; i++)
		if (s->link[i].op && s->link[i].fault == SILENT)
			answer(&s->link[i], -EIO);
}

/* Everything ends. */
static void finish(struct scene *s)
{
	let_go(s);
	sleep_ms(s, 1000);
	for (uint32_t i = 0; i < s->opened; i++) {
		if (!s->started[i])
			continue;
		assert_true(s->voter[i].round.decided && s->voter[i].round.task.finished);
		assert_false(s->voter[i].round.limit.set || s->voter[i].round.call.timer.set);
		ckpt_round_clear(&s->voter[i].round);
		s->started[i] = false;
	}
}

/*
 * One outcome for all who have received it; a success has the values of all. A rank that is answered nothing has a
 * failure of its own. What the outcome is of the others.
 */
static int check_outcome(const struct scene *s, bool dead)
{
	int outcome = OPEN;
	const char *said = "";
	bool passed = true;
	bool well = false;

	for (uint32_t i = 0; i < s->opened; i++) {
		const struct voter *v = &s->voter[i];
		passed = passed && v->round.passed;
		assert_int_not_equal(v->outcome, OPEN);
		well = well || v->outcome == 0;
		if (v->alone) {
			assert_true(dead && v->outcome != 0);
			continue;
		}
		if (outcome == OPEN) {
			outcome = v->outcome;
			said = v->said;
		}
		assert_int_equal(v->outcome, outcome);
		assert_string_equal(v->said, said);
	}
	assert_true(passed || !well);
	return outcome;
}

static int outcome_of(const struct scene *s)
{
	return check_outcome(s, false);
}

/* How many requests a round takes in which nothing goes wrong. */
static unsigned count_requests(struct scene *s)
{
	start_all(s);
	put_all(s);
	sleep_ms(s, 100);
	unsigned requests = s->board.requests;
	finish(s);
	assert_int_equal(outcome_of(s), 0);
	assert_true(requests > 2 * RANKS);
	return requests;
}

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
	sleep_ms(s, 100);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_true(s->voter[i].round.task.finished && s->voter[i].outcome == 0);
	assert_int_equal(s->board.count, 1);
	assert_string_equal(s->board.values[0].key, "outcome");
	finish(s);
}

/* Who fails says so at once: before the others have put anything, or when they wait for it. */
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
		}
}

/* A message that is lost, comes late, or comes twice changes nothing. */
static void test_every_message(void **state)
{
	struct scene *s = *state;
	unsigned requests = count_requests(s);

	for (unsigned n = 1; n <= requests; n++)
		for (enum fault fault = LOST; fault <= TWICE; fault++) {
			start_all(s);
			s->board.from = s->board.to = n;
			s->board.fault = fault;
			put_all(s);
			sleep_ms(s, LATE_MS + 200);
			for (uint32_t i = 0; i < RANKS; i++)
				assert_true(s->voter[i].round.decided);
			finish(s);
			assert_int_equal(outcome_of(s), 0);
		}
}

/* Whoever changes its mind, and whenever, be it that what is told just then is lost: all have one outcome. Both are met. */
static void test_change_of_mind(void **state)
{
	struct scene *s = *state;
	unsigned requests = count_requests(s);
	unsigned well = 0;
	unsigned failed = 0;

	for (uint32_t rank = 0; rank < RANKS; rank++)
		for (unsigned n = 1; n <= requests; n++)
			for (unsigned lost = 0; lost < 6; lost++) {
				start_all(s);
				put_all(s);
				s->turner = rank;
				s->turn_at = n;
				s->board.from = n;
				s->board.to = n + lost - 1;
				s->board.fault = LOST;
				sleep_ms(s, 300);
				finish(s);
				well += outcome_of(s) == 0;
				failed += outcome_of(s) == -ECANCELED;
			}
	assert_true(well > 0 && failed > 0);
	assert_int_equal(well + failed, RANKS * requests * 6);
}

static void die(struct scene *s, uint32_t rank, unsigned from, enum fault fault)
{
	s->board.from = from;
	s->board.to = UINT32_MAX;
	s->board.rank = rank;
	s->board.fault = fault;
}

/* The exchange dies, for one rank or for all, after any request: all end in time, and none goes on alone. */
static void test_dead_exchange(void **state)
{
	static const enum fault faults[] = {SILENT, LOST, UNANSWERED};
	struct scene *s = *state;
	unsigned requests = count_requests(s);

	for (uint32_t rank = 0; rank <= RANKS; rank++)
		for (unsigned n = 1; n <= requests; n++)
			for (size_t k = 0; k < COUNT(faults); k++) {
				uint64_t more_ms = faults[k] == SILENT ? LIMIT_MS : PUT_MS;
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
				finish(s);
			}
}

/* Who has failed does not wait until its deadline for an exchange that says nothing. */
static void test_fails_in_silence(void **state)
{
	struct scene *s = *state;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		start_all(s);
		sleep_ms(s, 100);
		die(s, rank, 1, SILENT);
		put(s, rank, -ENOSPC, "its disk is full");
		sleep_ms(s, LIMIT_MS + 50);
		assert_true(s->voter[rank].alone && s->voter[rank].outcome == -ENOSPC);
		/* The others end at their deadline. */
		put_all(s);
		finish(s);
		assert_int_equal(check_outcome(s, true), -ETIMEDOUT);
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
	die(s, 0, 1, SILENT);
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
}

/* Without memory for a value there is a failure, for all. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	unsigned failures = 0;

	for (size_t n = 1, allocations = 1; n <= allocations; n++) {
		start_all(s);
		core_rig_count_allocations(&s->rig[0], n);
		put_all(s);
		sleep_ms(s, 300);
		allocations = core_rig_allocations(&s->rig[0]);
		finish(s);
		failures += outcome_of(s) == -ENOMEM;
	}
	assert_true(failures > 0);
}

static void put_value(struct scene *s, uint32_t rank)
{
	char key[CKPT_EXCHANGE_KEY_MAX];
	char value[128];

	name_key(NULL, rank, key);
	int n = snprintf(value, sizeof(value), "%s 0 well", key);
	assert_int_equal(board_put(&s->board, key, value, (uint64_t)n), 0);
}

/* More than one request asks for, whatever comes first; and who is missing is said in few words. */
static void test_many(void **state)
{
	struct scene *s = *state;
	struct voter *v = &s->voter[0];

	start_all(s);
	put_all(s);
	for (uint32_t rank = MANY - 1; rank > 0; rank--) {
		assert_false(v->round.decided);
		put_value(s, rank);
		sleep_ms(s, 5);
	}
	sleep_ms(s, 200);
	assert_int_equal(v->outcome, 0);
	finish(s);
	start_all(s);
	put_all(s);
	put_value(s, 2);
	sleep_ms(s, LEADER_MS + 50);
	assert_int_equal(v->outcome, -ETIMEDOUT);
	assert_string_equal(v->said, "rank 0 waits for 1, 3, 4, 5, 6, 7, 8, 9 and 190 more");
	finish(s);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_all_well),
		SCENE(test_one_fails),
		SCENE(test_every_message),
		SCENE(test_change_of_mind),
		SCENE(test_dead_exchange),
		SCENE(test_fails_in_silence),
		SCENE(test_taken_back),
		SCENE(test_missing_rank),
		SCENE(test_missing_leader),
		SCENE(test_no_deadline_before_a_value),
		SCENE(test_strange_values),
		SCENE(test_no_memory),
		cmocka_unit_test_setup_teardown(test_many, set_up_many, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
