/* SPDX-License-Identifier: Apache-2.0 */
/* What a store remembers of its remote store: when it is written, what it says, and whose it is not to replace. */
#include "lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/copy/record_writer.h"
#include "engine/copy/upload_queue.h"
#include "engine/lineage/lineage.h"
#include "format/remote_record.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define URL       "file:///remote"
#define OTHER_RUN "fedcba9876543210fedcba9876543210"

struct scene {
	char *dir;
	char local[512];
	char remote[512];
	struct core_rig rig;
	struct ckpt_remote_record record;
	struct ckpt_record_step waiting[8];
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	assert_int_equal(mkdir(s->local, 0777), 0);
	assert_int_equal(mkdir(s->remote, 0777), 0);
	fixture_store(s->local, FIXTURE_RUN);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void open_as(struct scene *s, const char *url)
{
	core_rig_open(&s->rig,
		&(struct core_rig_config){.dir = s->local, .remote = s->remote, .url = url});
	core_rig_run(&s->rig);
}

static void open_it(struct scene *s)
{
	open_as(s, URL);
}

/* Number of the one record that is there; 0: there is none. It is read. */
static uint64_t read_it(struct scene *s)
{
	uint64_t number = 0;
	uint64_t found;
	size_t count = 0;
	struct dirent *entry;
	DIR *dir = opendir(s->local);
	char path[700];

	while ((entry = readdir(dir)))
		if (ckpt_parse_remote(entry->d_name, &found)) {
			number = found;
			count++;
		}
	(void)closedir(dir);
	assert_true(count <= 1);
	if (!number)
		return 0;
	(void)snprintf(
		path, sizeof(path), "%s/remote-%010llu.json", s->local, (unsigned long long)number);
	static char data[100000];
	FILE *file = fopen(path, "rb");
	assert_non_null(file);
	size_t length = fread(data, 1, sizeof(data), file);
	(void)fclose(file);
	assert_int_equal(ckpt_remote_record_decode(data, length, path, NULL, &s->record), 0);
	/* What the rig counts is given back at once. */
	struct ckpt_record_step *waiting = s->record.waiting;
	assert_true(s->record.waiting_count <= COUNT(s->waiting));
	memcpy(s->waiting, waiting, s->record.waiting_count * sizeof(waiting[0]));
	ckpt_free(waiting);
	s->record.waiting = s->waiting;
	return number;
}

static enum ckpt_remote_state state_of(struct scene *s, uint64_t generation, uint64_t step)
{
	return ckpt_remote_record_state(&s->record, generation, step);
}

/* Once there is something to go on from; then not more often than every five seconds, and at the end. */
static void test_when(void **state)
{
	struct scene *s = *state;

	open_it(s);
	assert_int_equal(read_it(s), 0); /* nothing has been claimed: there are no steps */
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(read_it(s), 1);
	assert_string_equal(s->record.remote, URL);
	assert_int_equal(s->record.generation, 1);
	assert_int_equal(s->record.uploaded_generation, 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 100);
	assert_int_equal(read_it(s), 1);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UNKNOWN);
	core_rig_sleep(&s->rig, 5000);
	assert_int_equal(read_it(s), 2);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UPLOADED);
	assert_int_equal(s->record.uploaded_step, 1);
	/* Nothing has changed. */
	core_rig_sleep(&s->rig, 60000);
	assert_int_equal(read_it(s), 2);
	assert_int_equal(core_rig_save(&s->rig, 2), 0);
	core_rig_sleep(&s->rig, 100);
	core_rig_close(&s->rig);
	assert_int_equal(read_it(s), 4);
	assert_int_equal(state_of(s, 1, 2), CKPT_REMOTE_UPLOADED);
}

/* The remote store fails: that is there soon, with the words and the next try, and goes when one has succeeded. */
static void test_failure(void **state)
{
	struct scene *s = *state;

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_sleep(&s->rig, 100);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	/* Its shard is created under the remote directory alone: here it is there already. */
	(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_MKDIR,
						  .path = "g000001/step-0000000002",
						  .nth = 2,
						  .count = IO_FAULT_ALWAYS,
						  .error = -EIO});
	assert_int_equal(core_rig_save(&s->rig, 2), 0);
	assert_true(read_it(s) > 0);
	assert_int_equal(s->record.code, -EIO);
	assert_int_equal(s->record.tries, 1);
	assert_non_null(strstr(s->record.reason, "step-0000000002"));
	assert_true(s->record.next_ms > s->record.since_ms);
	assert_int_equal(state_of(s, 1, 2), CKPT_REMOTE_PENDING);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UPLOADED);
	uint64_t since = s->record.since_ms;
	core_rig_sleep(&s->rig, 30000);
	(void)read_it(s);
	assert_true(s->record.tries > 1);
	assert_int_equal(s->record.since_ms, since);

	/* The next process goes on from what this one has seen. */
	core_rig_close(&s->rig);
	open_it(s);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.path = "tombstone", .count = IO_FAULT_ALWAYS, .error = -EIO});
	core_rig_sleep(&s->rig, 100);
	(void)read_it(s);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UPLOADED);
	assert_int_equal(state_of(s, 1, 2), CKPT_REMOTE_PENDING);
	assert_int_equal(s->record.uploaded_step, 1);
	core_rig_sleep(&s->rig, 10000);
	io_fault_clear(&s->rig.fault);
	core_rig_sleep(&s->rig, 120000);
	(void)read_it(s);
	assert_int_equal(s->record.code, 0);
	assert_int_equal(state_of(s, 1, 2), CKPT_REMOTE_UPLOADED);
	core_rig_close(&s->rig);
}

/* What is damaged here will not be there. */
static void test_absent(void **state)
{
	struct scene *s = *state;

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	for (uint64_t step = 100; step < 100 + CKPT_RECORD_ABSENT_MAX + 3; step++)
		ckpt_record_writer_absent(
			s->rig.core.upload_queue->record_writer, 1, step, CKPT_EINTEGRITY);
	ckpt_record_writer_absent(s->rig.core.upload_queue->record_writer, 1, 1, 0);
	core_rig_close(&s->rig);
	(void)read_it(s);
	assert_int_equal(s->record.absent_count, CKPT_RECORD_ABSENT_MAX);
	assert_int_equal(s->record.absent_more, 4);
	assert_int_equal(s->record.absent[0].step, 103);
	assert_int_equal(s->record.absent[CKPT_RECORD_ABSENT_MAX - 1].step, 166);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UNKNOWN);
}

/* A removal that was cut short is told again when it is done; what failed has failed, whoever removes the rest. */
static void test_absent_twice(void **state)
{
	struct scene *s = *state;
	struct ckpt_record_writer *record_writer;

	open_it(s);
	record_writer = s->rig.core.upload_queue->record_writer;
	assert_int_equal(core_rig_claim(&s->rig), 0);
	ckpt_record_writer_absent(record_writer, 1, 2, 0);
	ckpt_record_writer_absent(record_writer, 1, 1, CKPT_EINTEGRITY);
	ckpt_record_writer_absent(record_writer, 1, 2, 0);
	ckpt_record_writer_absent(record_writer, 1, 1, 0);
	ckpt_record_writer_absent(record_writer, 1, 3, 0);
	ckpt_record_writer_absent(record_writer, 1, 3, CKPT_EINTEGRITY);
	core_rig_close(&s->rig);
	assert_true(read_it(s) > 0);
	assert_int_equal(s->record.absent_count, 3);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_FAILED);
	assert_int_equal(state_of(s, 1, 2), CKPT_REMOTE_EXCLUDED);
	assert_int_equal(state_of(s, 1, 3), CKPT_REMOTE_FAILED);
}

/* A step that is sent again is not absent any more. */
static void test_sent_again(void **state)
{
	struct scene *s = *state;
	struct ckpt_record_writer *record_writer;

	open_it(s);
	record_writer = s->rig.core.upload_queue->record_writer;
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 3), 0);
	core_rig_sleep(&s->rig, 6000);
	for (uint64_t step = 1; step <= 3; step++)
		ckpt_record_writer_absent(record_writer, 1, step, step == 3 ? CKPT_EINTEGRITY : 0);
	ckpt_record_writer_there(record_writer, 1, 2);
	ckpt_record_writer_there(record_writer, 1, 3);
	core_rig_close(&s->rig);
	assert_true(read_it(s) > 0);
	assert_int_equal(s->record.absent_count, 1);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_EXCLUDED);
	assert_int_equal(state_of(s, 1, 2), CKPT_REMOTE_UPLOADED);
	assert_int_equal(state_of(s, 1, 3), CKPT_REMOTE_UPLOADED);
}

/* Of those that the list had no place for nothing is said, though it has become shorter since. */
static void test_sent_again_of_many(void **state)
{
	struct scene *s = *state;
	struct ckpt_record_writer *record_writer;

	open_it(s);
	record_writer = s->rig.core.upload_queue->record_writer;
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 500), 0);
	core_rig_sleep(&s->rig, 6000);
	for (uint64_t step = 100; step < 100 + CKPT_RECORD_ABSENT_MAX + 3; step++)
		ckpt_record_writer_absent(record_writer, 1, step, 0);
	ckpt_record_writer_there(record_writer, 1, 110);
	ckpt_record_writer_absent(record_writer, 1, 5, 0);
	core_rig_close(&s->rig);
	(void)read_it(s);
	assert_int_equal(s->record.absent_count, CKPT_RECORD_ABSENT_MAX - 1);
	assert_int_equal(s->record.absent_more, 4);
	assert_int_equal(state_of(s, 1, 101), CKPT_REMOTE_UNKNOWN);
	assert_int_equal(state_of(s, 1, 5), CKPT_REMOTE_UNKNOWN);
	assert_int_equal(state_of(s, 1, 103), CKPT_REMOTE_EXCLUDED);
	assert_int_equal(state_of(s, 1, 110), CKPT_REMOTE_UPLOADED);
}

/* The remote store is another run's by now: what was there stays told, and nothing since then is said to be. */
static void test_given_up(void **state)
{
	struct scene *s = *state;

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	core_rig_close(&s->rig);
	fixture_store(s->remote, OTHER_RUN);
	for (uint64_t generation = 2; generation < 4; generation++) {
		open_it(s);
		assert_int_equal(core_rig_adopt(&s->rig, generation - 1, generation - 1), 0);
		assert_int_equal(core_rig_claim(&s->rig), 0);
		assert_int_equal(core_rig_save(&s->rig, generation), 0);
		core_rig_sleep(&s->rig, 6000);
		assert_true(s->rig.core.upload_queue->halted < 0);
		(void)read_it(s);
		assert_int_equal(s->record.code, CKPT_EMISMATCH);
		assert_int_equal(s->record.next_ms, 0);
		assert_int_equal(s->record.waiting_count, generation - 1);
		assert_int_equal(core_rig_save(&s->rig, generation + 10), 0);
		core_rig_close(&s->rig);
		(void)read_it(s);
		assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UPLOADED);
		assert_int_equal(state_of(s, 2, 2), CKPT_REMOTE_PENDING);
		assert_int_equal(state_of(s, generation, generation), CKPT_REMOTE_PENDING);
		assert_int_equal(state_of(s, generation, generation + 10), CKPT_REMOTE_PENDING);
	}
	/* It was a mistake, and is mended. */
	fixture_store(s->remote, FIXTURE_RUN);
	open_it(s);
	core_rig_sleep(&s->rig, 60000);
	core_rig_close(&s->rig);
	(void)read_it(s);
	assert_int_equal(s->record.code, 0);
	assert_int_equal(state_of(s, 2, 2), CKPT_REMOTE_UPLOADED);
	assert_int_equal(state_of(s, 3, 13), CKPT_REMOTE_UPLOADED);
}

/* What is durable here is sent, whatever there was no memory for meanwhile. */
static void test_committed_without_memory(void **state)
{
	struct scene *s = *state;
	bool committed[100] = {false};
	bool failed = true;
	uint64_t step;

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	for (step = 1; failed; step++) {
		assert_true(step < COUNT(committed));
		core_rig_count_allocations(&s->rig, step);
		committed[step] = core_rig_save(&s->rig, step) == 0;
		failed = core_rig_allocations(&s->rig) >= step;
	}
	/* Pauses between tries, and between records. */
	for (int i = 0; i < 20; i++)
		core_rig_sleep(&s->rig, 6000);
	(void)read_it(s);
	for (uint64_t i = 1; i < step; i++)
		if (committed[i])
			assert_int_equal(state_of(s, 1, i), CKPT_REMOTE_UPLOADED);
	core_rig_close(&s->rig);
}

/* What a start has found, and has no memory for, is not sent: whoever waits for all is told so. */
static void test_not_listed(void **state)
{
	struct scene *s = *state;
	bool failed = false;

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	core_rig_close(&s->rig);
	for (size_t fail_at = 1; !failed; fail_at++) {
		assert_true(fail_at < 100);
		open_it(s);
		core_rig_sleep(&s->rig, 6000);
		assert_int_equal(core_rig_adopt(&s->rig, 1, 1), 0);
		core_rig_count_allocations(&s->rig, fail_at);
		(void)core_rig_claim(&s->rig);
		(void)core_rig_allocations(&s->rig);
		failed = core_rig_logged(&s->rig, CKPT_LOG_ERROR, "when the job is started again");
		assert_int_equal(s->rig.core.upload_queue->lost.code, failed ? -ENOMEM : 0);
		core_rig_close(&s->rig);
	}
}

/* Committed while the engine closes. */
static void test_too_late(void **state)
{
	struct scene *s = *state;
	struct ckpt_core *core = &s->rig.core;
	const struct ckpt_scan_step late = {
		.generation = 1, .step = 2, .state = CKPT_STEP_COMMITTED, .in_lineage = true};

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	ckpt_upload_queue_stop(core);
	assert_int_equal(ckpt_scan_put(&core->lineage->scan, &late), 0);
	struct ckpt_upload_entry *entry = ckpt_upload_entry_new();
	assert_non_null(entry);
	ckpt_upload_queue_add(core, entry, 1, 2, 10, NULL);
	ckpt_upload_entry_unref(entry);
	core_rig_close(&s->rig);
	(void)read_it(s);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UPLOADED);
	assert_int_equal(state_of(s, 1, 2), CKPT_REMOTE_UNKNOWN);
}

/* It is not written while a step is being saved, nor is a save the worse for a disk that does not take it. */
static void test_not_written(void **state)
{
	struct scene *s = *state;

	open_it(s);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.path = "remote-", .count = IO_FAULT_ALWAYS, .error = -ENOSPC});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(read_it(s), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "for `ckpt ls` and `ckpt upload`"));
	assert_int_equal(read_it(s), 0);
	io_fault_clear(&s->rig.fault);
	assert_int_equal(core_rig_save(&s->rig, 2), 0);
	core_rig_sleep(&s->rig, 6000);
	assert_int_equal(read_it(s), 1);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UPLOADED);
	core_rig_close(&s->rig);
}

static void put(struct scene *s, uint64_t number, const char *remote, uint64_t generation)
{
	struct ckpt_remote_record record = {.run_id = FIXTURE_RUN, .generation = generation};
	struct ckpt_buf out = {0};
	char name[64];

	(void)snprintf(record.remote, sizeof(record.remote), "%s", remote);
	assert_int_equal(ckpt_remote_record_encode(&record, &out), 0);
	(void)snprintf(name, sizeof(name), "/remote-%010llu.json", (unsigned long long)number);
	ckpt_buf_put(&out, "", 1);
	scratch_put(s->local, name, out.data);
	ckpt_buf_free(&out);
}

/* Who has claimed nothing sends what is here to another place, once: the job's own stays what is remembered. */
static void test_another_place(void **state)
{
	struct scene *s = *state;

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	core_rig_close(&s->rig);
	uint64_t number = read_it(s);
	open_as(s, "file:///elsewhere");
	core_rig_sleep(&s->rig, 60000);
	assert_int_equal(read_it(s), number);
	/* A job that goes on there does say so. */
	assert_int_equal(core_rig_adopt(&s->rig, 1, 1), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_sleep(&s->rig, 6000);
	assert_true(read_it(s) > number);
	assert_string_equal(s->record.remote, "file:///elsewhere");
	core_rig_close(&s->rig);
}

/* What a later generation has written is left alone; what cannot be read, or is of another run, is replaced. */
static void test_of_others(void **state)
{
	struct scene *s = *state;

	put(s, 5, URL, 7);
	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_sleep(&s->rig, 6000);
	assert_int_equal(read_it(s), 5);
	assert_int_equal(s->record.generation, 7);
	scratch_put(s->local, "/remote-0000000005.json", "");
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	assert_true(read_it(s) > 5);
	assert_int_equal(s->record.generation, 1);
	core_rig_close(&s->rig);
}

/* A crash between the new one and the old: the newer counts; one that is torn does not. */
static void test_two(void **state)
{
	struct scene *s = *state;
	struct ckpt_record_reader reader = {0};

	put(s, 3, "file:///old", 1);
	put(s, 4, URL, 1);
	scratch_put(s->local, "/remote-0000000005.json", "{\"format\":[1,0],\"kind\":\"rem");
	open_it(s);
	ckpt_record_reader_start(&reader, s->rig.core.store, &s->rig.core.sched, NULL);
	core_rig_run(&s->rig);
	assert_true(reader.found);
	assert_int_equal(reader.newest, 5);
	assert_string_equal(reader.record.remote, URL);
	ckpt_record_reader_clear(&reader);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_sleep(&s->rig, 6000);
	assert_int_equal(read_it(s), 6);
	core_rig_close(&s->rig);
}

/* What a process that was killed has left of a record goes with those before the next; another's stays. */
static void test_left_over(void **state)
{
	struct scene *s = *state;
	char path[700];

	put(s, 3, URL, 1);
	scratch_put(s->local, "/remote-0000000002.json.tmp-0123456789abcdef", "{");
	scratch_put(s->local, "/remote-0000000003.json.tmp-0123456789abcdef", "");
	scratch_put(s->local, "/remote-0000000009.json.tmp-0123456789abcdef", "{");
	scratch_put(s->local, "/remote.json.tmp-0123456789abcdef", "{");
	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_sleep(&s->rig, 6000);
	core_rig_close(&s->rig);
	assert_int_equal(read_it(s), 4);
	for (unsigned i = 2; i < 4; i++) {
		(void)snprintf(path, sizeof(path),
			"%s/remote-000000000%u.json.tmp-0123456789abcdef", s->local, i);
		assert_int_equal(access(path, F_OK), -1);
	}
	(void)snprintf(
		path, sizeof(path), "%s/remote-0000000009.json.tmp-0123456789abcdef", s->local);
	assert_int_equal(access(path, F_OK), 0);
	(void)snprintf(path, sizeof(path), "%s/remote.json.tmp-0123456789abcdef", s->local);
	assert_int_equal(access(path, F_OK), 0);
}

/* Without memory there is a warning, and the steps go on. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;

	open_it(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_sleep(&s->rig, 6000);
	uint64_t number = read_it(s);
	for (size_t fail_at = 1; fail_at < 40; fail_at++) {
		ckpt_record_writer_touch(s->rig.core.upload_queue->record_writer);
		core_rig_count_allocations(&s->rig, fail_at);
		core_rig_sleep(&s->rig, 5000);
		size_t count = core_rig_allocations(&s->rig);
		uint64_t now = read_it(s);
		assert_true(now >= number);
		if (count < fail_at) {
			assert_true(now > number);
			break;
		}
		number = now;
		assert_true(fail_at < 39);
	}
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	core_rig_sleep(&s->rig, 6000);
	(void)read_it(s);
	assert_int_equal(state_of(s, 1, 1), CKPT_REMOTE_UPLOADED);
	core_rig_close(&s->rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_when, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_failure, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_absent, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_absent_twice, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sent_again, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sent_again_of_many, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_given_up, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_committed_without_memory, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_not_listed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_too_late, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_not_written, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_another_place, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_of_others, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_two, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_left_over, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_memory, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
