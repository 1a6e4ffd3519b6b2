/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a round, in virtual time, on one table of values. */
#include "round_scene.h"

#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lib/scratch.h"

#define MILLISECOND UINT64_C(1000000)

/* The owner. Its values are KEY CODE REASON. */

static struct voter *voter_of(struct ckpt_round *round)
{
	return CKPT_CONTAINER(round, struct voter, round);
}

void name_key(const struct ckpt_round *round, uint32_t rank, char *ret_key)
{
	assert_true(!round || rank == CKPT_ROUND_OUTCOME || rank < round->core->config.world);
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

	assert_int_equal(v->outcome, OPEN);
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
	board_clear(&s->board);
	for (uint32_t i = 0; i < count; i++) {
		core_rig_open(&s->rig[i], &(struct core_rig_config){.dir = s->dir,
						  .rank = i,
						  .world = world,
						  .timeout_ms = TIMEOUT_MS});
		board_link_make(&s->link[i], &s->board, &s->rig[i].core);
	}
}

int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	open_ranks(s, RANKS, RANKS);
	*state = s;
	return 0;
}

int set_up_many(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	open_ranks(s, 1, MANY);
	*state = s;
	return 0;
}

int tear_down(void **state)
{
	struct scene *s = *state;

	board_clear(&s->board);
	for (uint32_t i = 0; i < s->opened; i++)
		core_rig_close(&s->rig[i]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static int owner_body(struct ckpt_task *task)
{
	struct voter *v = CKPT_CONTAINER(task, struct voter, owner);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, v->round.decided || ckpt_round_is_complete(&v->round));
	v->complete = !v->round.decided;
	if (v->complete && !v->keeps)
		ckpt_round_release(&v->round);
	CKPT_AWAIT(task, v->round.decided);
	CKPT_TASK_END(task);
}

void start(struct scene *s, uint32_t rank, uint64_t deadline_ns)
{
	struct voter *v = &s->voter[rank];
	struct ckpt_core *core = &s->rig[rank].core;

	*v = (struct voter){.outcome = OPEN,
		.round = {.ops = &ops,
			.core = core,
			.deadline_ns = deadline_ns,
			.rest_ns = REST_MS * MILLISECOND,
			.held = s->held && rank == 0}};
	assert_int_equal(ckpt_round_init(&v->round, rank, s->world), 0);
	v->round.waiter = &v->owner;
	ckpt_task_start(&v->owner, &core->sched, owner_body, NULL);
	ckpt_round_start(&v->round);
	core_rig_run(&s->rig[rank]);
	s->started[rank] = true;
}

void start_alone(struct scene *s, uint32_t rank)
{
	start(s, rank, ckpt_round_deadline(&s->rig[rank].core));
}

/* A new round, on a new table. */
void start_all(struct scene *s)
{
	board_clear(&s->board);
	s->ms = 0;
	s->turn_at = 0;
	s->turners = 1;
	s->closes = false;
	for (uint32_t i = 0; i < s->opened; i++)
		start_alone(s, i);
}

void put(struct scene *s, uint32_t rank, int code, const char *reason)
{
	struct voter *v = &s->voter[rank];

	if (!ckpt_round_is_open(&v->round))
		return;
	v->code = code;
	(void)snprintf(v->reason, sizeof(v->reason), "%s", reason);
	ckpt_round_put(&v->round, code == 0);
	core_rig_run(&s->rig[rank]);
}

void put_all(struct scene *s)
{
	for (uint32_t i = 0; i < s->opened; i++)
		put(s, i, 0, "well");
}

static void close_engine(struct scene *s, uint32_t rank)
{
	s->rig[rank].core.closing = true;
	ckpt_exchange_call_stop_all(&s->rig[rank].core);
	core_rig_run(&s->rig[rank]);
}

static void turn(struct scene *s)
{
	s->turn_at = 0;
	if (s->closes)
		close_engine(s, s->turner);
	else
		for (uint32_t i = 0; i < s->turners; i++)
			put(s, (s->turner + i) % RANKS, -ECANCELED, "it has changed its mind");
}

static void check_end(const struct voter *v)
{
	assert_true(v->owner.finished == v->round.decided);
	assert_false(v->round.task.finished && (v->round.limit.set || v->round.call.timer.set));
}

void sleep_ms(struct scene *s, uint64_t ms)
{
	for (uint64_t at = 0; at < ms; at += 5) {
		s->ms += 5;
		for (uint32_t i = 0; i < s->opened; i++) {
			core_rig_sleep(&s->rig[i], 5);
			/* The owner goes on at once, and nothing is left set when all is over. */
			if (s->started[i])
				check_end(&s->voter[i]);
			if (s->started[i] && !s->voter[i].round.decided)
				s->decided_ms[i] = s->ms;
			if (s->turn_at > 0 && s->board.requests >= s->turn_at)
				turn(s);
		}
	}
}

/* The exchange is there again. What it was asked before is lost. */
void let_go(struct scene *s)
{
	s->board.fault = BOARD_WELL;
	for (uint32_t i = 0; i < s->opened; i++)
		board_link_let_go(&s->link[i]);
}

/* Everything ends. */
void finish(struct scene *s)
{
	let_go(s);
	sleep_ms(s, 1000);
	for (uint32_t i = 0; i < s->opened; i++) {
		if (!s->started[i])
			continue;
		assert_true(s->voter[i].round.decided && s->voter[i].round.task.finished);
		ckpt_round_clear(&s->voter[i].round);
		s->started[i] = false;
	}
}

/*
 * One outcome for all who have received it; a success has the values of all. A rank that is answered nothing has a
 * failure of its own. What the outcome is of the others.
 */
int check_outcome(const struct scene *s, bool dead)
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

int outcome_of(const struct scene *s)
{
	return check_outcome(s, false);
}

/* How many requests a round takes in which nothing goes wrong. */
unsigned count_requests(struct scene *s)
{
	s->held = false;
	start_all(s);
	put_all(s);
	sleep_ms(s, 100);
	unsigned requests = s->board.requests;
	finish(s);
	assert_int_equal(outcome_of(s), 0);
	assert_true(requests > 2 * RANKS);
	return requests;
}

bool is_on_board(const struct scene *s, uint32_t rank)
{
	char key[CKPT_EXCHANGE_KEY_MAX];
	bool found = false;

	name_key(NULL, rank, key);
	for (size_t i = 0; i < s->board.count; i++)
		found = found || strcmp(s->board.values[i].key, key) == 0;
	return found;
}

void die(struct scene *s, uint32_t rank, unsigned from, enum board_fault fault)
{
	s->board.from = from;
	s->board.to = UINT32_MAX;
	s->board.rank = rank == RANKS ? BOARD_ALL : rank;
	s->board.fault = fault;
}

void put_value(struct scene *s, uint32_t rank)
{
	char key[CKPT_EXCHANGE_KEY_MAX];
	char value[128];

	name_key(NULL, rank, key);
	int n = snprintf(value, sizeof(value), "%s 0 well", key);
	assert_int_equal(board_put(&s->board, key, value, (uint64_t)n), 0);
}
