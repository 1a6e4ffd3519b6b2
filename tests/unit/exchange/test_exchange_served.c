/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange that the program serves: requests, answers, and those that come late, twice or never. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "exchange/exchange_served.h"
#include "lib/test.h"

#define MANY (CKPT_SERVER_OPEN_MAX + 1)

struct scene {
	struct ckpt_env env;
	struct ckpt_inbox inbox;
	struct ckpt_sched sched;
	struct ckpt_timers timers;
	uint64_t now_ns;
	struct ckpt_exchange_server *server;
	struct ckpt_exchange *exchange;
	struct ckpt_exchange_op ops[MANY];
	struct ckpt_exchange_item items[MANY];
	struct ckpt_error errors[MANY];
	struct ckpt_error said; /* by ckpt_server_reply() */
};

static uint64_t now_ns(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct scene, env)->now_ns;
}

static const struct ckpt_env_ops env_ops = {.name = "fake", .now_ns = now_ns};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->env = (struct ckpt_env){.ops = &env_ops, .inbox = &s->inbox};
	s->now_ns = 1000;
	assert_int_equal(ckpt_inbox_init(&s->inbox), 0);
	assert_int_equal(ckpt_server_new(&s->server), 0);
	assert_int_equal(ckpt_server_attach(s->server, &s->inbox), 0);
	assert_int_equal(ckpt_exchange_served_open(
				 &s->sched, &s->timers, &s->env, s->server, "Job.1", &s->exchange),
		0);
	*state = s;
	return 0;
}

/* As the core does. */
static void step(struct scene *s)
{
	struct ckpt_node *node = ckpt_inbox_take(&s->inbox);
	struct ckpt_timer *due;
	uint64_t next_ns;

	while (node) {
		struct ckpt_node *next = node->next;
		node->run(node);
		node = next;
	}
	ckpt_sched_run(&s->sched);
	while ((due = ckpt_timer_due(&s->timers, s->now_ns, &next_ns))) {
		ckpt_timer_clear(&s->timers, due);
		due->fire(due);
	}
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	s->now_ns += 2 * CKPT_SERVED_PATIENCE_NS;
	step(s);
	ckpt_exchange_close(s->exchange);
	ckpt_server_unref(s->server);
	ckpt_server_unref(s->server);
	for (size_t i = 0; i < MANY; i++)
		if (s->ops[i].verb == CKPT_EXCHANGE_GET)
			ckpt_exchange_items_clear(&s->items[i], 1);
	ckpt_inbox_destroy(&s->inbox);
	free(s);
	return 0;
}

typedef void ask_fn(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);

/* Asks for key-I; a PUT gives it "value". */
static struct ckpt_exchange_op *ask(struct scene *s, size_t i, ask_fn *verb)
{
	struct ckpt_exchange_item *item = &s->items[i];

	*item = (struct ckpt_exchange_item){0};
	(void)snprintf(item->key, sizeof(item->key), "key-%zu", i);
	if (verb == ckpt_exchange_put)
		*item = (struct ckpt_exchange_item){.key = "key", .data = "value", .length = 5};
	ckpt_error_clear(&s->errors[i]);
	ckpt_exchange_op_init(&s->ops[i], NULL, &s->errors[i]);
	verb(s->exchange, &s->ops[i], item, 1);
	return &s->ops[i];
}

static struct ckpt_exchange_request take(struct scene *s)
{
	struct ckpt_exchange_request request = {0};

	assert_int_equal(ckpt_server_next(s->server, 0, &request), 0);
	return request;
}

static int reply(struct scene *s, uint64_t id, int result, const void *value, uint64_t length)
{
	const struct ckpt_exchange_answer answer = {.size = sizeof(answer),
		.id = id,
		.result = result,
		.values = &value,
		.lengths = &length};

	ckpt_error_clear(&s->said);
	int r = ckpt_server_reply(s->server, &answer, &s->said);
	assert_int_equal(s->said.code, r);
	return r;
}

static void test_put(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *op = ask(s, 0, ckpt_exchange_put);
	struct ckpt_exchange_request request = take(s);

	assert_int_equal(request.verb, CKPT_EXCHANGE_PUT);
	assert_int_equal(request.count, 1);
	assert_string_equal(request.keys[0], "Job.1/key");
	assert_int_equal(request.lengths[0], 5);
	assert_memory_equal(request.values[0], "value", 5);
	step(s);
	assert_false(op->done);
	assert_int_equal(reply(s, request.id, 0, NULL, 0), 0);
	assert_false(op->done);
	step(s);
	assert_true(op->done);
	assert_int_equal(op->result, 0);
	assert_int_equal(s->exchange->bytes_put, 5);
}

static void test_get(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *there = ask(s, 0, ckpt_exchange_get);
	struct ckpt_exchange_op *not_there = ask(s, 1, ckpt_exchange_get);
	struct ckpt_exchange_op *empty = ask(s, 2, ckpt_exchange_get);
	uint64_t ids[3];

	for (size_t i = 0; i < COUNT(ids); i++) {
		struct ckpt_exchange_request request = take(s);
		assert_int_equal(request.verb, CKPT_EXCHANGE_GET);
		assert_null(request.values);
		assert_null(request.lengths);
		ids[i] = request.id;
	}
	/* In any order. */
	assert_int_equal(reply(s, ids[2], 0, "", 0), 0);
	assert_int_equal(reply(s, ids[1], 0, NULL, 7), 0);
	assert_int_equal(reply(s, ids[0], 0, "abc", 3), 0);
	step(s);
	assert_true(there->done && not_there->done && empty->done);
	assert_memory_equal(s->items[0].data, "abc", 3);
	assert_int_equal(s->items[0].length, 3);
	assert_null(s->items[1].data);
	assert_non_null(s->items[2].data);
	assert_int_equal(s->items[2].length, 0);
	assert_int_equal(s->exchange->bytes_got, 3);
}

static void test_drop_and_failure(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *op = ask(s, 0, ckpt_exchange_drop);
	struct ckpt_exchange_answer answer = {.size = sizeof(answer), .result = -EPIPE};

	answer.reason = "the server at host:1 has gone\n";
	answer.id = take(s).id;
	assert_int_equal(ckpt_server_reply(s->server, &answer, NULL), 0);
	step(s);
	assert_int_equal(op->result, -EPIPE);
	assert_string_equal(
		s->errors[0].message, "the program's exchange: the server at host:1 has gone?");
	op = ask(s, 1, ckpt_exchange_put);
	assert_int_equal(reply(s, take(s).id, -EEXIST, NULL, 0), 0);
	step(s);
	assert_int_equal(op->result, -EEXIST);
	assert_non_null(strstr(s->errors[1].message, "File exists"));
}

/* What is wrong with an answer is said, and the request still waits for a better one. */
static void test_bad_answers(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *op = ask(s, 0, ckpt_exchange_get);
	uint64_t id = take(s).id;
	struct ckpt_exchange_answer answer = {.size = sizeof(answer), .id = id};
	char *most = calloc(1, CKPT_EXCHANGE_VALUE_MAX);

	assert_int_equal(reply(s, id + 1, 0, "a", 1), -ENOENT);
	assert_int_equal(reply(s, 0, 0, "a", 1), -ENOENT);
	assert_int_equal(reply(s, id, 1, "a", 1), -EINVAL);
	assert_int_equal(reply(s, id, 0, "a", CKPT_EXCHANGE_VALUE_MAX + 1), -E2BIG);
	assert_int_equal(reply(s, id, 0, "a", UINT64_MAX), -E2BIG);
	assert_int_equal(ckpt_server_reply(s->server, &answer, NULL), -EINVAL);
	step(s);
	assert_false(op->done);
	assert_int_equal(reply(s, id, 0, most, CKPT_EXCHANGE_VALUE_MAX), 0);
	assert_int_equal(reply(s, id, 0, "second", 6), -ENOENT);
	step(s);
	assert_int_equal(reply(s, id, 0, "third", 5), -ENOENT);
	assert_int_equal(s->items[0].length, CKPT_EXCHANGE_VALUE_MAX);
	free(most);
}

/* The arrays of a request that was given up stay until somebody has answered it, or the server goes. */
static void test_late(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *taken = ask(s, 0, ckpt_exchange_put);
	struct ckpt_exchange_request request = take(s);
	struct ckpt_exchange_op *left = ask(s, 1, ckpt_exchange_get);

	s->now_ns += CKPT_SERVED_PATIENCE_NS - 1;
	step(s);
	assert_false(taken->done || left->done);
	s->now_ns++;
	step(s);
	assert_int_equal(taken->result, -ETIMEDOUT);
	assert_int_equal(left->result, -ETIMEDOUT);
	assert_non_null(strstr(s->errors[0].message, "not answered a request in time"));
	assert_non_null(strstr(s->errors[1].message, "ckpt_exchange_next()"));
	/* The one that nobody has taken is not handed out any more. */
	assert_int_equal(ckpt_server_next(s->server, 0, &request), -ETIMEDOUT);
	assert_memory_equal(request.values[0], "value", 5);
	assert_int_equal(reply(s, request.id, 1, NULL, 0), -EINVAL);
	assert_int_equal(reply(s, request.id, 0, NULL, 0), -ETIMEDOUT);
	assert_int_equal(reply(s, request.id, 0, NULL, 0), -ENOENT);
	/* This one stays unanswered. */
	struct ckpt_exchange_op *never = ask(s, 2, ckpt_exchange_get);
	(void)take(s);
	s->now_ns += CKPT_SERVED_PATIENCE_NS;
	step(s);
	assert_true(never->done);
}

/* An answer that was there before the deadline counts, even if the core sees both at once. */
static void test_answer_beside_deadline(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *op = ask(s, 0, ckpt_exchange_get);
	struct ckpt_timer *due;
	uint64_t next_ns;

	assert_int_equal(reply(s, take(s).id, 0, "abc", 3), 0);
	s->now_ns += CKPT_SERVED_PATIENCE_NS;
	due = ckpt_timer_due(&s->timers, s->now_ns, &next_ns);
	ckpt_timer_clear(&s->timers, due);
	due->fire(due);
	assert_false(op->done);
	/* Nor is it waited for less now. */
	ckpt_exchange_hasten(op, 0);
	step(s);
	assert_int_equal(op->result, 0);
	assert_memory_equal(s->items[0].data, "abc", 3);
}

static void test_deadline_of_the_operation(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *op = ask(s, 0, ckpt_exchange_get);

	(void)take(s);
	ckpt_exchange_hasten(op, s->now_ns + 100);
	ckpt_exchange_hasten(op, s->now_ns + 200);
	s->now_ns += 99;
	step(s);
	assert_false(op->done);
	s->now_ns++;
	step(s);
	assert_int_equal(op->result, -ETIMEDOUT);
	/* Of one that has ended. */
	ckpt_exchange_hasten(op, 0);
	/* One that is asked again keeps it. */
	ckpt_exchange_get(s->exchange, op, &s->items[0], 1);
	step(s);
	assert_int_equal(op->result, -ETIMEDOUT);
}

/* A program that answers nothing is not handed ever more. */
static void test_many_open(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_request request = {0};
	uint64_t id = 0;

	for (size_t i = 0; i < MANY; i++)
		(void)ask(s, i, ckpt_exchange_drop);
	for (size_t i = 0; i < CKPT_SERVER_OPEN_MAX; i++)
		id = take(s).id;
	assert_int_equal(ckpt_server_next(s->server, 0, &request), -ETIMEDOUT);
	assert_int_equal(reply(s, id, 0, NULL, 0), 0);
	id = take(s).id;
	assert_int_equal(reply(s, id, 0, NULL, 0), 0);
	step(s);
	assert_true(s->ops[MANY - 1].done);
	assert_false(s->ops[0].done);
	/* Given up, they still take their places. */
	s->now_ns += CKPT_SERVED_PATIENCE_NS;
	step(s);
	assert_true(s->ops[0].done);
	(void)ask(s, 0, ckpt_exchange_drop);
	id = take(s).id;
	(void)ask(s, 1, ckpt_exchange_drop);
	assert_int_equal(reply(s, id, 0, NULL, 0), 0);
}

static void test_quiet(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_op *taken = ask(s, 0, ckpt_exchange_get);
	struct ckpt_exchange_request request = take(s);
	struct ckpt_exchange_op *waiting = ask(s, 1, ckpt_exchange_get);

	ckpt_server_quiet(s->server);
	assert_int_equal(ckpt_server_next(s->server, CKPT_FOREVER, &request), CKPT_ECLOSED);
	struct ckpt_exchange_op *after = ask(s, 2, ckpt_exchange_get);
	assert_false(after->done);
	step(s);
	assert_int_equal(waiting->result, CKPT_ECLOSED);
	assert_int_equal(after->result, CKPT_ECLOSED);
	assert_true(s->errors[1].message[0] && s->errors[2].message[0]);
	/* What was begun may be ended. */
	assert_false(taken->done);
	assert_int_equal(reply(s, request.id, 0, "abc", 3), 0);
	step(s);
	assert_int_equal(taken->result, 0);
	assert_int_equal(ckpt_server_attach(s->server, &s->inbox), -EBUSY);
}

static bool no_memory(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

static void test_no_memory(void **state)
{
	struct scene *s = *state;

	ckpt_alloc_set_hook(no_memory, NULL);
	struct ckpt_exchange_op *op = ask(s, 0, ckpt_exchange_get);
	struct ckpt_exchange_op *second = ask(s, 1, ckpt_exchange_get);
	step(s);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(op->result, -ENOMEM);
	assert_int_equal(second->result, -ENOMEM);
	op = ask(s, 0, ckpt_exchange_get);
	uint64_t id = take(s).id;
	ckpt_alloc_set_hook(no_memory, NULL);
	int r = reply(s, id, 0, "abc", 3);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(r, -ENOMEM);
	assert_int_equal(reply(s, id, 0, "abc", 3), 0);
	step(s);
	assert_int_equal(op->result, 0);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_put),
		SCENE(test_get),
		SCENE(test_drop_and_failure),
		SCENE(test_bad_answers),
		SCENE(test_late),
		SCENE(test_answer_beside_deadline),
		SCENE(test_deadline_of_the_operation),
		SCENE(test_many_open),
		SCENE(test_quiet),
		SCENE(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
