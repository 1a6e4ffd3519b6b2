/* SPDX-License-Identifier: Apache-2.0 */
/* The log: lines in order, the oldest dropped and counted when nobody reads. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

#define WRITERS 3
#define LINES   3000

static struct ckpt_log_record record = {.size = sizeof(record)};

static struct ckpt_log *open_log(enum ckpt_log_level level)
{
	struct ckpt_log *log = NULL;

	assert_int_equal(ckpt_log_open(level, &log), 0);
	return log;
}

static void assert_line(struct ckpt_log *log, const char *message, uint64_t dropped)
{
	assert_int_equal(ckpt_log_next(log, 0, &record), 0);
	assert_string_equal(record.message, message);
	assert_int_equal(record.dropped, dropped);
	assert_int_equal(record.size, sizeof(record));
}

static void test_lines_in_order(void **state)
{
	struct ckpt_log *log = open_log(0);

	(void)state;
	assert_int_equal(ckpt_log_next(log, 0, &record), -ETIMEDOUT);
	ckpt_log(log, CKPT_LOG_INFO, "step %d", 7);
	ckpt_log(log, CKPT_LOG_DEBUG, "not at this level");
	ckpt_log(log, CKPT_LOG_ERROR, "two\nlines of \x1b[31m%s", "name");
	assert_line(log, "step 7", 0);
	assert_int_equal(record.level, CKPT_LOG_INFO);
	assert_true(record.wall_ms > UINT64_C(1577836800000));
	assert_line(log, "two?lines of ?[31mname", 0);
	assert_int_equal(record.level, CKPT_LOG_ERROR);
	assert_int_equal(ckpt_log_next(log, 0, &record), -ETIMEDOUT);
	ckpt_log(NULL, CKPT_LOG_ERROR, "nowhere");
	ckpt_log_close(log);
	ckpt_log_close(NULL);
}

static void test_oldest_is_dropped(void **state)
{
	struct ckpt_log *log = open_log(CKPT_LOG_DEBUG);
	char expected[32];

	(void)state;
	for (int i = 0; i < CKPT_LOG_KEPT + 10; i++)
		ckpt_log(log, CKPT_LOG_DEBUG, "line %d", i);
	for (int i = 10; i < CKPT_LOG_KEPT + 10; i++) {
		(void)snprintf(expected, sizeof(expected), "line %d", i);
		assert_line(log, expected, i == 10 ? 10 : 0);
	}
	assert_int_equal(ckpt_log_next(log, 0, &record), -ETIMEDOUT);
	ckpt_log(log, CKPT_LOG_DEBUG, "again");
	assert_line(log, "again", 0);
	ckpt_log_close(log);
}

static void test_long_line_is_cut(void **state)
{
	struct ckpt_log *log = open_log(CKPT_LOG_INFO);
	char text[3000];

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	memcpy(text + 1022, "\xc3\xa9", 2);
	ckpt_log(log, CKPT_LOG_INFO, "%s", text);
	assert_int_equal(ckpt_log_next(log, 0, &record), 0);
	assert_int_equal(strlen(record.message), 1022);
	ckpt_log_close(log);
}

static void test_caller_of_another_size(void **state)
{
	struct ckpt_log *log = open_log(CKPT_LOG_INFO);
	struct {
		struct ckpt_log_record record;
		char later[16];
	} big;
	struct ckpt_log_record small;

	(void)state;
	ckpt_log(log, CKPT_LOG_INFO, "one");
	ckpt_log(log, CKPT_LOG_INFO, "two");
	memset(&small, 0x5a, sizeof(small));
	small.size = offsetof(struct ckpt_log_record, dropped);
	assert_int_equal(ckpt_log_next(log, 0, &small), 0);
	assert_int_equal(small.level, CKPT_LOG_INFO);
	assert_int_equal(small.message[0], 0x5a);
	memset(&big, 0x5a, sizeof(big));
	big.record.size = sizeof(big);
	assert_int_equal(ckpt_log_next(log, 0, &big.record), 0);
	assert_string_equal(big.record.message, "two");
	for (size_t i = 0; i < sizeof(big.later); i++)
		assert_int_equal(big.later[i], 0);
	ckpt_log_close(log);
}

static void test_eventfd_tells_of_lines(void **state)
{
	struct ckpt_log *log = open_log(CKPT_LOG_WARN);
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	uint64_t count = 0;

	(void)state;
	assert_true(fd >= 0);
	ckpt_log_set_eventfd(log, fd);
	ckpt_log(log, CKPT_LOG_INFO, "below the level");
	assert_int_equal(read(fd, &count, sizeof(count)), -1);
	ckpt_log(log, CKPT_LOG_WARN, "a");
	ckpt_log(log, CKPT_LOG_WARN, "b");
	assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
	assert_true(count >= 1);
	ckpt_log_set_eventfd(log, -1);
	ckpt_log(log, CKPT_LOG_WARN, "c");
	assert_int_equal(read(fd, &count, sizeof(count)), -1);
	assert_int_equal(close(fd), 0);
	ckpt_log_close(log);
}

static void *read_until_closed(void *argument)
{
	struct ckpt_log_record line = {.size = sizeof(line)};
	struct ckpt_log *log = argument;
	static uint64_t total;

	for (;;) {
		int r = ckpt_log_next(log, -1, &line);

		if (r == CKPT_ECLOSED)
			return &total;
		total += 1 + line.dropped;
	}
}

static void *write_lines(void *argument)
{
	for (int i = 0; i < LINES; i++)
		ckpt_log(argument, CKPT_LOG_INFO, "%d", i);
	return NULL;
}

/* Read or counted as dropped: no line is lost otherwise. */
static void test_no_line_is_lost_unseen(void **state)
{
	struct ckpt_log *log = open_log(CKPT_LOG_INFO);
	pthread_t writers[WRITERS];
	pthread_t reader;
	void *total = NULL;

	(void)state;
	assert_int_equal(ckpt_thread_start(&reader, "reader", read_until_closed, log), 0);
	for (unsigned i = 0; i < WRITERS; i++)
		assert_int_equal(ckpt_thread_start(&writers[i], "writer", write_lines, log), 0);
	for (unsigned i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_join(writers[i], NULL), 0);
	ckpt_log_quiet(log);
	assert_int_equal(pthread_join(reader, &total), 0);
	assert_int_equal(*(uint64_t *)total, WRITERS * LINES);
	assert_int_equal(ckpt_log_next(log, -1, &record), CKPT_ECLOSED);
	ckpt_log(log, CKPT_LOG_INFO, "after all");
	assert_line(log, "after all", 0);
	ckpt_log_close(log);
}

static void test_wait_ends(void **state)
{
	struct ckpt_log *log = open_log(CKPT_LOG_INFO);
	uint64_t start = ckpt_clock_ns();

	(void)state;
	assert_int_equal(ckpt_log_next(log, 20, &record), -ETIMEDOUT);
	assert_true(ckpt_clock_ns() - start >= 20 * 1000 * 1000);
	ckpt_log_close(log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines_in_order),
		cmocka_unit_test(test_oldest_is_dropped),
		cmocka_unit_test(test_long_line_is_cut),
		cmocka_unit_test(test_caller_of_another_size),
		cmocka_unit_test(test_eventfd_tells_of_lines),
		cmocka_unit_test(test_no_line_is_lost_unseen),
		cmocka_unit_test(test_wait_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
