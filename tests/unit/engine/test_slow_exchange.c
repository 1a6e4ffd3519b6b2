/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange that takes its time, and gives up what it is given less time for. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "exchange/exchange_dir.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"

#define WORLD 200

/* One operation at a time, around the directory's. */
struct slow {
	struct ckpt_exchange exchange;
	struct ckpt_exchange *inner;
	struct ckpt_core *core;
	struct ckpt_exchange_op *outer; /* NULL: none */
	struct ckpt_exchange_op op;
	struct ckpt_timer timer;
	struct ckpt_task task;
	uint64_t takes_ns;
	unsigned answered;
	unsigned given_up;
};

static void fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct slow, timer)->task);
}

static void end_outer(struct slow *x, int result)
{
	struct ckpt_exchange_op *outer = x->outer;

	x->outer = NULL;
	ckpt_exchange_end(outer, result);
}

static int slow_body(struct ckpt_task *task)
{
	struct slow *x = CKPT_CONTAINER(task, struct slow, task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, !x->timer.set);
	if (ckpt_env_now(x->core->parts.env) >= x->outer->deadline_ns) {
		x->given_up++;
		end_outer(x, -ETIMEDOUT);
		return 0;
	}
	ckpt_exchange_op_init(&x->op, task, x->outer->err);
	if (x->outer->verb == CKPT_EXCHANGE_PUT)
		ckpt_exchange_put(x->inner, &x->op, x->outer->items, x->outer->count);
	else if (x->outer->verb == CKPT_EXCHANGE_GET)
		ckpt_exchange_get(x->inner, &x->op, x->outer->items, x->outer->count);
	else
		ckpt_exchange_drop(x->inner, &x->op, x->outer->items, x->outer->count);
	CKPT_AWAIT(task, x->op.done);
	x->answered++;
	end_outer(x, x->op.result);
	CKPT_TASK_END(task);
}

static void slow_submit(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op)
{
	struct slow *x = CKPT_CONTAINER(exchange, struct slow, exchange);
	uint64_t now_ns = ckpt_env_now(x->core->parts.env);

	assert_null(x->outer);
	x->outer = op;
	x->timer.fire = fired;
	ckpt_core_timer_set(
		x->core, &x->timer, ckpt_min_u64(now_ns + x->takes_ns, op->deadline_ns));
	ckpt_task_start(&x->task, exchange->sched, slow_body, NULL);
}

static void slow_hasten(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op)
{
	struct slow *x = CKPT_CONTAINER(exchange, struct slow, exchange);

	if (x->timer.set && op->deadline_ns < x->timer.at_ns)
		ckpt_core_timer_set(x->core, &x->timer, op->deadline_ns);
}

static void slow_close(struct ckpt_exchange *exchange)
{
	struct slow *x = CKPT_CONTAINER(exchange, struct slow, exchange);

	ckpt_exchange_close(x->inner);
}

static const struct ckpt_exchange_ops slow_ops = {
	.name = "slow", .submit = slow_submit, .hasten = slow_hasten, .close = slow_close};

struct scene {
	char *dir;
	struct core_rig rig;
	struct slow slow;
	struct ckpt_save *save;
};

/* Rank 0 of many has claimed, and from now on each answer takes `takes_ms`. */
static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	core_rig_open(
		&s->rig, &(struct core_rig_config){
				 .dir = s->dir, .world = WORLD, .timeout_ms = 600000, .slots = 32});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	s->slow = (struct slow){.exchange = {.ops = &slow_ops, .sched = &s->rig.core.sched},
		.inner = s->rig.core.exchange,
		.core = &s->rig.core};
	s->rig.core.exchange = &s->slow.exchange;
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	s->slow.takes_ns = 0;
	core_rig_close(&s->rig);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void begin(struct scene *s, uint64_t takes_ms)
{
	s->slow.takes_ns = takes_ms * 1000000;
	s->save = core_rig_prepare(&s->rig, 1, 2, 1000, CKPT_TENSOR_EAGER);
	(void)core_rig_post(&s->rig, s->save);
}

static void sleep_ms(struct scene *s, uint64_t ms)
{
	for (uint64_t at = 0; at < ms; at += 5)
		core_rig_sleep(&s->rig, 5);
}

/* What rank `rank`, which is not there, has told. */
static void tell(struct scene *s, uint32_t rank, int code)
{
	const struct ckpt_core *core = &s->rig.core;
	struct ckpt_rank_record record = {.verdict = {.code = code,
						  .reason = "the test says so",
						  .generation = core->lineage->generation,
						  .step = 1,
						  .nonce = core->lineage->nonce},
		.rank = {.rank = rank,
			.node = "other",
			.attempt = "0123456789abcdef",
			.index_bytes = 10,
			.shard_bytes = 5000}};
	char key[CKPT_EXCHANGE_KEY_MAX];
	struct ckpt_buf buf = {0};

	assert_int_equal(ckpt_rank_record_encode(&record, &buf), 0);
	ckpt_key_rank(key, core->lineage->generation, 1, rank);
	FILE *file = fopen(scratch_join(s->dir, scratch_join("exchange/rig", key)), "wx");
	assert_non_null(file);
	assert_int_equal(fwrite(buf.data, 1, buf.len, file), buf.len);
	assert_int_equal(fclose(file), 0);
	ckpt_buf_free(&buf);
}

/* More ranks are missing than are asked for at once, and each answer takes longer than a turn. */
static void test_answers_after_a_turn(void **state)
{
	struct scene *s = *state;

	begin(s, 250);
	sleep_ms(s, 300);
	for (uint32_t rank = 1; rank < WORLD; rank += 2)
		tell(s, rank, rank == 151 ? -ENOSPC : 0);
	sleep_ms(s, 2500);
	assert_int_equal(s->slow.given_up, 0);
	assert_true(ckpt_latch_get(ckpt_save_latch(s->save)) & CKPT_DONE_END);
	sleep_ms(s, 1000);
	assert_int_equal(core_rig_end_save(&s->rig, s->save), CKPT_EABORTED);
	assert_non_null(strstr(s->rig.err.message, "rank 151 on node other failed"));
}

/* What is waited for no longer is not waited for: a save that is cancelled ends. */
static void test_cancelled(void **state)
{
	struct scene *s = *state;

	begin(s, 60000);
	sleep_ms(s, 300);
	s->slow.takes_ns = 0;
	ckpt_save_post_cancel(s->save);
	core_rig_run(&s->rig);
	assert_int_equal(s->slow.given_up, 1);
	sleep_ms(s, 100);
	assert_int_equal(core_rig_end_save(&s->rig, s->save), -ECANCELED);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {TEST(test_answers_after_a_turn), TEST(test_cancelled)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
