/* SPDX-License-Identifier: Apache-2.0 */
/* When a restore ends, what is told of it, what is kept of it, and who may still ask. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/lineage/lineage.h"
#include "engine/restore/restore_state.h"
#include "engine/runtime/commands.h"
#include "engine/shard/findings.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define SHARD ".safetensors"
#define BYTES 60000

struct scene {
	char *dir;
	struct core_rig rig;
	struct fixture_step step;
	char memory[BYTES];
	struct ckpt_command *closer;
};

/* A restore, and what it said at the moment at which somebody could see that it had ended. */
static struct {
	struct ckpt_restore *restore;
	int code;
	size_t findings;
	bool sorted;
	unsigned times;
} watched;

/* Locks are held once, by who lets go of them: all here is one thread. */
static pthread_mutex_t *held[8];
static size_t held_count;

/* The linker puts these in the place of the functions themselves. */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
void __real_ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits);
void __wrap_ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

void __wrap_ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits)
{
	struct ckpt_restore *r = watched.restore;

	if (r && latch == ckpt_restore_latch(r) && bits & CKPT_DONE_END) {
		const struct ckpt_findings *f = &r->findings;
		watched.times++;
		watched.code = r->error.code;
		watched.findings = f->count;
		watched.sorted = true;
		for (size_t i = 1; i < f->count; i++)
			watched.sorted = watched.sorted &&
					 f->items[i - 1].error.offset < f->items[i].error.offset;
	}
	__real_ckpt_latch_set(latch, bits);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	for (size_t i = 0; i < held_count; i++)
		assert_ptr_not_equal(held[i], mutex);
	assert_true(held_count < COUNT(held));
	held[held_count++] = mutex;
	return __real_pthread_mutex_lock(mutex);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	assert_true(held_count > 0);
	assert_ptr_equal(held[--held_count], mutex);
	return __real_pthread_mutex_unlock(mutex);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	memset(&watched, 0, sizeof(watched));
	s->dir = scratch_make_in_memory();
	s->step = fixture_one(s->dir, fixture_bytes(BYTES));
	s->step.chunk_bytes = 4096;
	fixture_begin(s->dir);
	fixture_commit(&s->step);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .block_bytes = 8192});
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	if (s->closer)
		ckpt_command_unref(s->closer);
	core_rig_close(&s->rig);
	assert_int_equal(held_count, 0);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static unsigned add(struct scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static uint32_t bits(struct ckpt_restore *r)
{
	return ckpt_latch_get(ckpt_restore_latch(r));
}

/* With all of the step bound, if it is to memory. */
static struct ckpt_restore *begin(struct scene *s, uint64_t step, enum ckpt_restore_sink sink)
{
	struct ckpt_target target = {
		.size = sizeof(target), .name = "w", .length = BYTES, .data = s->memory};
	struct ckpt_restore *r = core_rig_begin(&s->rig, step, sink, NULL);

	if (bits(r) & CKPT_DONE_OPENED)
		assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	return r;
}

static void start(struct scene *s, struct ckpt_restore *r)
{
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
}

static void cancel(struct scene *s, struct ckpt_restore *r)
{
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
}

static void close_engine(struct scene *s)
{
	s->closer = ckpt_command_new(&s->rig.core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(s->closer, ckpt_closer_body);
	core_rig_run(&s->rig);
}

static bool is_closed(struct scene *s)
{
	return ckpt_latch_get(&s->closer->latch) & CKPT_DONE_END;
}

static int end(struct scene *s, struct ckpt_restore *r)
{
	watched.restore = NULL;
	return core_rig_end(&s->rig, r);
}

/* Its first copies into memory wait. */
static struct ckpt_restore *copying(struct scene *s)
{
	struct ckpt_restore *r = begin(s, 10, CKPT_SINK_MEMORY);

	s->rig.hold_jobs = true;
	start(s, r);
	/* What is wanted is put in order; then the digests. */
	for (int i = 0; i < 2; i++) {
		core_rig_do_jobs(&s->rig);
		core_rig_run(&s->rig);
	}
	assert_true(ckpt_shard_load_copies(&r->load) > 0);
	/* Before the work for a save, which may be long. */
	assert_true(s->rig.held->urgent);
	return r;
}

/* Whoever sees that it has ended sees how. */
static void test_told_when_it_is_known(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = begin(s, 10, CKPT_SINK_MEMORY);

	scratch_flip(fixture_shard(&s->step, 0), 30000);
	watched.restore = r;
	start(s, r);
	assert_int_equal(watched.times, 1);
	assert_int_equal(watched.code, CKPT_EINTEGRITY);
	/* The step is its reader's until that lets go of it. */
	assert_false(bits(r) & CKPT_DONE_GONE);
	assert_int_equal(end(s, r), CKPT_EINTEGRITY);
	assert_string_equal(s->rig.err.tensor, "w");
}

/* What was found before it was cancelled is there, in its order. */
static void test_cancelled_with_findings(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->step, 0), 5000);
	scratch_flip(fixture_shard(&s->step, 0), 10000);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_READ, .path = SHARD, .nth = 2, .hold = true});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_READ, .path = SHARD, .nth = 6, .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	/* The second block has been looked at, then the first; another one is on its way. */
	assert_int_equal(r->findings.count, 1);
	(void)io_tap_release(&s->rig.fault.tap);
	core_rig_run(&s->rig);
	watched.restore = r;
	cancel(s, r);
	assert_int_equal(watched.times, 1);
	assert_int_equal(watched.findings, 2);
	assert_true(watched.sorted);
	core_rig_let_go(&s->rig);
	assert_int_equal(watched.times, 1);
	assert_int_equal(ckpt_restore_finding_count(r), 2);
	assert_int_equal(end(s, r), -ECANCELED);
	assert_non_null(strstr(s->rig.err.message, "it was cancelled"));
	assert_int_equal(s->rig.err.step, 10);
}

/* The first who stops it is the one that is told of. */
static void test_cancelled_and_closed(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = copying(s);

	cancel(s, r);
	close_engine(s);
	assert_false(bits(r) & CKPT_DONE_END);
	assert_false(is_closed(s));
	core_rig_let_go(&s->rig);
	assert_true(bits(r) & CKPT_DONE_GONE);
	assert_true(is_closed(s));
	assert_int_equal(end(s, r), -ECANCELED);
	assert_non_null(strstr(s->rig.err.message, "it was cancelled"));
}

static void test_closed_and_cancelled(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = copying(s);

	close_engine(s);
	cancel(s, r);
	core_rig_let_go(&s->rig);
	assert_true(bits(r) & CKPT_DONE_GONE);
	assert_true(is_closed(s));
	assert_int_equal(end(s, r), CKPT_ECLOSED);
	assert_non_null(strstr(s->rig.err.message, "was closed before the end"));
	assert_int_equal(s->rig.err.step, 10);
}

/* Once nothing is copied into memory any more it ends, whatever the disk does. */
static void test_cancelled_on_a_disk_that_hangs(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_READ, .path = SHARD, .nth = 2, .hold = true});
	struct ckpt_restore *r = copying(s);
	cancel(s, r);
	assert_false(bits(r) & CKPT_DONE_END);
	core_rig_do_jobs(&s->rig);
	core_rig_run(&s->rig);
	assert_true(bits(r) & CKPT_DONE_END);
	assert_int_equal(s->rig.fault.tap.in_flight, 1);
	core_rig_let_go(&s->rig);
	assert_int_equal(end(s, r), -ECANCELED);
}

/* Nothing begins once the engine closes; what has ended stays as it ended. */
static void test_opened_while_closing(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *waits = copying(s);
	struct ckpt_restore *r;

	close_engine(s);
	r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_true(bits(r) & CKPT_DONE_GONE);
	assert_false(bits(r) & CKPT_DONE_OPENED);
	assert_int_equal(end(s, r), CKPT_ECLOSED);
	assert_int_equal(s->rig.err.step, -1);
	core_rig_let_go(&s->rig);
	assert_int_equal(end(s, waits), CKPT_ECLOSED);
}

/* Of several the one in the middle goes first. */
static void test_many(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r[3];

	for (size_t i = 0; i < COUNT(r); i++)
		r[i] = begin(s, 10, CKPT_SINK_MEMORY);
	assert_int_equal(end(s, r[1]), 1);
	close_engine(s);
	assert_true(is_closed(s));
	assert_int_equal(end(s, r[0]), CKPT_ECLOSED);
	assert_int_equal(end(s, r[2]), CKPT_ECLOSED);
}

/* A step that nobody picked has no number. */
static void test_cancelled_before_a_step_is_known(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	cancel(s, r);
	assert_true(bits(r) & CKPT_DONE_END);
	assert_false(bits(r) & CKPT_DONE_GONE);
	core_rig_let_go(&s->rig);
	assert_int_equal(ckpt_restore_chosen_step(r), 10);
	assert_int_equal(end(s, r), -ECANCELED);
	assert_int_equal(s->rig.err.step, -1);
}

static void check_note(struct scene *s, bool there)
{
	assert_int_equal(access(fixture_quarantine(&s->step), F_OK), there ? 0 : -1);
}

/* What this engine may not judge, or has judged, it leaves alone. */
static void test_quarantine(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r;

	scratch_flip(fixture_shard(&s->step, 0), 30000);
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), CKPT_EINTEGRITY);
	check_note(s, false);
	assert_int_equal(
		core_rig_export(&s->rig, 10, scratch_join(s->dir, "copy")), CKPT_EINTEGRITY);
	check_note(s, false);
	/* Somebody else has the store. */
	s->rig.core.lineage->fenced = true;
	r = begin(s, 10, CKPT_SINK_MEMORY);
	start(s, r);
	assert_int_equal(end(s, r), CKPT_EINTEGRITY);
	check_note(s, false);
	s->rig.core.lineage->fenced = false;
	/* It was cancelled as the damage was found. */
	r = copying(s);
	cancel(s, r);
	core_rig_let_go(&s->rig);
	assert_int_equal(end(s, r), -ECANCELED);
	check_note(s, false);
	unsigned notes = add(
		s, (struct io_fault_rule){
			   .op = CKPT_IO_OP_WRITE, .path = "quarantine", .nth = IO_FAULT_ALWAYS});
	for (unsigned i = 0; i < 2; i++) {
		r = begin(s, 10, CKPT_SINK_MEMORY);
		start(s, r);
		assert_int_equal(end(s, r), CKPT_EINTEGRITY);
		check_note(s, true);
		assert_int_equal(s->rig.fault.seen[notes], 1);
	}
}

/* A manifest that cannot be believed says nothing about files; and what is not the step's fault is not. */
static void test_no_quarantine(void **state)
{
	struct scene *s = *state;

	static const enum ckpt_io_op ops[] = {CKPT_IO_OP_OPEN, CKPT_IO_OP_READ};

	for (size_t i = 0; i < COUNT(ops); i++) {
		add(s, (struct io_fault_rule){.op = ops[i], .path = SHARD, .error = -EIO});
		assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY), -EIO);
		assert_non_null(strstr(s->rig.err.message, "cannot read"));
		check_note(s, false);
		io_fault_clear(&s->rig.fault);
	}
	scratch_flip(fixture_manifest(&s->step), 40);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(r->findings.count, 0);
	assert_int_equal(end(s, r), CKPT_EINTEGRITY);
	check_note(s, false);
}

/* The scan opens the manifest, the lock does, and then whoever reads it: that waits. */
static struct ckpt_restore *reading_manifest(struct scene *s)
{
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "manifest.json", .nth = 3, .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(s->rig.fault.hits[0], 1);
	return r;
}

/* Damaged between the scan, which found it good, and its being read. */
static void test_manifest_goes_bad(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = reading_manifest(s);

	scratch_flip(fixture_manifest(&s->step), 40);
	core_rig_let_go(&s->rig);
	assert_int_equal(end(s, r), CKPT_EINTEGRITY);
	check_note(s, false);
}

/* Cancelled at the manifest: the step's files are not touched. */
static void test_cancelled_at_the_manifest(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = reading_manifest(s);
	unsigned opened = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
					 .path = fixture_index_name(&s->step, 0),
					 .nth = IO_FAULT_ALWAYS});

	cancel(s, r);
	core_rig_let_go(&s->rig);
	assert_int_equal(s->rig.fault.seen[opened], 0);
	assert_int_equal(end(s, r), -ECANCELED);
}

/* Cancelled when the damage was seen and bytes were still on their way: nothing is written any more. */
static void test_cancelled_with_damage(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->step, 0), 10000);
	struct ckpt_restore *r = copying(s);
	assert_int_equal(r->load.ways[0].fetch.code, CKPT_EINTEGRITY);
	cancel(s, r);
	core_rig_let_go(&s->rig);
	assert_int_equal(r->result, CKPT_EINTEGRITY);
	assert_int_equal(end(s, r), -ECANCELED);
	check_note(s, false);
}

/* What a verification finds of a manifest is a finding, whichever way it is bad. */
static void check_manifest(struct scene *s, int code)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);

	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(ckpt_restore_finding(r, 0)->error.code, code);
	assert_int_equal(ckpt_restore_finding(r, 0)->error.step, 10);
	assert_int_equal(ckpt_restore_chosen_step(r), 10);
	assert_int_equal(ckpt_restore_chosen_generation(r), 1);
	assert_int_equal(end(s, r), code);
	assert_true(s->rig.err.message[0]);
	r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(r->findings.count, 0);
	assert_int_equal(end(s, r), code);
}

static void write_manifest(struct scene *s, const char *text)
{
	struct ckpt_buf buf = {0};

	ckpt_buf_put(&buf, text, strlen(text));
	fixture_seal(&buf, fixture_manifest(&s->step));
}

static void test_bad_manifests(void **state)
{
	struct scene *s = *state;

	write_manifest(s, "{\"format\":[9,0],\"kind\":\"commit\"");
	check_manifest(s, CKPT_EVERSION);
	write_manifest(s, "{\"format\":[1,0],\"kind\":\"something else\"");
	check_manifest(s, CKPT_EFORMAT);
	scratch_flip(fixture_manifest(&s->step), 12);
	check_manifest(s, CKPT_EINTEGRITY);
	/* What could not be read is not known to be bad. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_READ, .path = "manifest.json", .nth = 2, .error = -EIO});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	assert_int_equal(end(s, r), -EIO);
}

/* Nothing is left to say of a store whose marker is bad: it is no step's finding. */
static void test_bad_marker(void **state)
{
	struct scene *s = *state;

	scratch_flip(scratch_join(s->dir, CKPT_NAME_MARKER), 20);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	assert_int_equal(end(s, r), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.err.step, -1);
}

/* While a manifest may be on its way into the copy the outcome is what becomes of it. */
static void test_cancelled_while_publishing(void **state)
{
	struct scene *s = *state;
	const char *dest = scratch_join(s->dir, "copy");

	unsigned renames =
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_RENAME, .path = "manifest.json", .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_STORE, dest);
	assert_int_equal(s->rig.fault.hits[renames], 1);
	cancel(s, r);
	assert_false(bits(r) & CKPT_DONE_END);
	core_rig_let_go(&s->rig);
	assert_int_equal(end(s, r), 0);
	assert_non_null(scratch_find(dest, "manifest.json"));
}

/* A copy that failed is told of once what was written of it is gone. */
static void test_copy_taken_back(void **state)
{
	struct scene *s = *state;
	const char *dest = scratch_join(s->dir, "copy");

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARD, .error = -EIO});
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RMDIR, .hold = true});
	/* The shard that is read is closed first. */
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_CLOSE, .path = SHARD, .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_STORE, dest);
	assert_int_equal(s->rig.fault.hits[2], 1);
	assert_int_equal(s->rig.fault.hits[1], 0);
	assert_false(bits(r) & CKPT_DONE_END);
	(void)io_tap_release(&s->rig.fault.tap);
	core_rig_run(&s->rig);
	assert_int_equal(s->rig.fault.hits[1], 1);
	assert_false(bits(r) & CKPT_DONE_END);
	core_rig_let_go(&s->rig);
	assert_true(bits(r) & CKPT_DONE_END);
	assert_null(scratch_find(dest, SHARD));
	assert_int_equal(end(s, r), -EIO);
}

static void failing_work(struct ckpt_job *job)
{
	CKPT_CONTAINER(job, struct ckpt_copy, job)->result = CKPT_EDEVICE;
}

static void failing_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	copy->job.work = failing_work;
	ckpt_env_run(device->env, &copy->job);
}

/* Bytes that did not arrive are a failure, and not the step's. */
static void test_device_fails(void **state)
{
	static const struct ckpt_device_ops failing = {.name = "failing", .copy = failing_copy};
	struct scene *s = *state;
	const struct ckpt_device_ops *ops = s->rig.host->ops;
	struct ckpt_restore *r = begin(s, 10, CKPT_SINK_MEMORY);

	s->rig.host->ops = &failing;
	start(s, r);
	s->rig.host->ops = ops;
	assert_int_equal(end(s, r), CKPT_EDEVICE);
	assert_non_null(strstr(s->rig.err.message, "cannot copy into a target"));
	check_note(s, false);
}

/* Cancelled while it waits for staging that another one has: it does not wait any longer. */
static void test_cancelled_without_staging(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *first = begin(s, 10, CKPT_SINK_MEMORY);
	struct ckpt_restore *second = begin(s, 10, CKPT_SINK_MEMORY);

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
		       .path = SHARD,
		       .count = IO_FAULT_ALWAYS,
		       .hold = true});
	start(s, first);
	unsigned reads = s->rig.fault.tap.in_flight;
	start(s, second);
	assert_int_equal(s->rig.fault.tap.in_flight, reads);
	ckpt_restore_post_release(second);
	core_rig_run(&s->rig);
	assert_true(bits(second) & CKPT_DONE_GONE);
	assert_int_equal(end(s, second), -ECANCELED);
	io_fault_clear(&s->rig.fault);
	core_rig_let_go(&s->rig);
	assert_int_equal(end(s, first), 0);
}

/* The same of one that is verified. */
static void test_verification_without_staging(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *first = begin(s, 10, CKPT_SINK_MEMORY);

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
		       .path = SHARD,
		       .count = IO_FAULT_ALWAYS,
		       .hold = true});
	start(s, first);
	io_fault_clear(&s->rig.fault);
	struct ckpt_restore *second = begin(s, 10, CKPT_SINK_NONE);
	assert_true(ckpt_task_active(&second->fetch.task));
	ckpt_restore_post_release(second);
	core_rig_run(&s->rig);
	assert_true(bits(second) & CKPT_DONE_GONE);
	assert_int_equal(end(s, second), -ECANCELED);
	core_rig_let_go(&s->rig);
	assert_int_equal(end(s, first), 0);
}

struct late_start {
	struct ckpt_node node;
	struct ckpt_restore *restore;
};

static void post_late_start(struct ckpt_node *node)
{
	ckpt_restore_post_start(CKPT_CONTAINER(node, struct late_start, node)->restore);
}

/* Posted between its release and the moment at which the core would let go: it waits for that, too. */
static void test_started_while_it_goes(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = core_rig_begin(&s->rig, 77, CKPT_SINK_MEMORY, NULL);
	struct late_start late = {.node.run = post_late_start, .restore = r};

	assert_int_equal(ckpt_restore_failure(r)->code, CKPT_ENOSTEP);
	/* The core has taken the release from its inbox, and not yet what follows. */
	ckpt_inbox_push(&s->rig.inbox, &late.node);
	ckpt_restore_post_release(r);
	core_rig_run(&s->rig);
	assert_true(bits(r) & CKPT_DONE_GONE);
	ckpt_restore_unref(r);
}

/* How much there is to do is known before anything is done, and a header counts once it was looked at. */
static void test_counts(void **state)
{
	struct scene *s = *state;
	uint64_t done;
	uint64_t total;

	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = CKPT_NAME_MARKER, .nth = 2, .hold = true});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = SHARD, .nth = 2, .hold = true});
	struct ckpt_restore *r =
		core_rig_begin(&s->rig, 10, CKPT_SINK_STORE, scratch_join(s->dir, "copy"));
	assert_int_equal(s->rig.fault.hits[0], 1);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(total, r->pick.manifest.ranks[0].shard_bytes);
	assert_int_equal(done, 0);
	(void)io_tap_release(&s->rig.fault.tap);
	core_rig_run(&s->rig);
	assert_int_equal(s->rig.fault.hits[1], 1);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(done, r->shard.index->layout->header_bytes);
	core_rig_let_go(&s->rig);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(done, total);
	assert_int_equal(end(s, r), 0);
}

/* What a thread of the user's leaves for the other ranks is left under the lock. */
static void test_refused_under_the_lock(void **state)
{
	struct scene *s = *state;
	char byte;
	struct ckpt_target no = {.size = sizeof(no), .name = "no", .length = 1, .data = &byte};
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);

	assert_true(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_OPENED);
	assert_int_equal(ckpt_restore_sync_new(&s->rig.core, &r->ranks), 0);
	assert_int_equal(ckpt_restore_add_targets(r, &no, 1, &s->rig.err), CKPT_EMISMATCH);
	ckpt_restore_sync_free(r->ranks);
	r->ranks = NULL;
	(void)core_rig_end(&s->rig, r);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_told_when_it_is_known),
		SCENE(test_cancelled_with_findings),
		SCENE(test_cancelled_and_closed),
		SCENE(test_closed_and_cancelled),
		SCENE(test_cancelled_on_a_disk_that_hangs),
		SCENE(test_opened_while_closing),
		SCENE(test_many),
		SCENE(test_cancelled_before_a_step_is_known),
		SCENE(test_quarantine),
		SCENE(test_no_quarantine),
		SCENE(test_bad_manifests),
		SCENE(test_bad_marker),
		SCENE(test_cancelled_while_publishing),
		SCENE(test_copy_taken_back),
		SCENE(test_device_fails),
		SCENE(test_started_while_it_goes),
		SCENE(test_cancelled_without_staging),
		SCENE(test_verification_without_staging),
		SCENE(test_manifest_goes_bad),
		SCENE(test_cancelled_at_the_manifest),
		SCENE(test_cancelled_with_damage),
		SCENE(test_counts),
		SCENE(test_refused_under_the_lock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
