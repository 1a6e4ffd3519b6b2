/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of many ranks of which something is wrong: it is found, said of the rank that it is wrong
 * with, and nothing that was not verified reaches memory. And every allocation and request fails in turn.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/lineage/lineage.h"
#include "engine/restore/restore_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define WORLD   6
#define ROWS    INT64_C(600)
#define COLUMNS INT64_C(50)
#define FLOATS  ((size_t)(ROWS * COLUMNS))

/* Rank r holds rows 100 r to 100 r + 99 of "w", and all of "own.r"; columns of "c". */
struct scene {
	char *dir;
	struct core_rig rig;
	float w[ROWS * COLUMNS];
	float own[WORLD][COLUMNS];
	float columns[WORLD][100];
	char names[WORLD][8];
	int64_t starts[WORLD][2];
	int64_t sides[WORLD][2];
	struct ckpt_tensor tensors[WORLD][3];
	struct fixture_rank ranks[WORLD];
	struct fixture_step step;
	float *out;
	float *own_out;
	float *column_out;
};

static const int64_t whole[2] = {ROWS, COLUMNS};
static const int64_t part[2] = {ROWS / WORLD, COLUMNS};
static const int64_t own_shape[1] = {COLUMNS};
static const int64_t wide[2] = {50, 2 * WORLD};
static const int64_t narrow[2] = {50, 2};

static void make_rank(struct scene *s, uint32_t r)
{
	struct ckpt_tensor *t = s->tensors[r];

	s->starts[r][0] = part[0] * r;
	s->sides[r][1] = narrow[1] * r;
	(void)snprintf(s->names[r], sizeof(s->names[r]), "own.%u", r);
	for (size_t i = 0; i < (size_t)COLUMNS; i++)
		s->own[r][i] = (float)(r * 1000 + i);
	for (size_t i = 0; i < 100; i++)
		s->columns[r][i] = (float)(i / 2 * 2 * WORLD + r * 2 + i % 2);
	t[0] = (struct ckpt_tensor){.size = sizeof(t[0]),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = part,
		.data = s->w + r * FLOATS / WORLD,
		.global_shape = whole,
		.global_start = s->starts[r]};
	t[1] = (struct ckpt_tensor){.size = sizeof(t[1]),
		.name = s->names[r],
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = own_shape,
		.data = s->own[r]};
	t[2] = (struct ckpt_tensor){.size = sizeof(t[2]),
		.name = "c",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = narrow,
		.data = s->columns[r],
		.global_shape = wide,
		.global_start = s->sides[r]};
	s->ranks[r] = (struct fixture_rank){.tensors = t, .count = 3};
}

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	for (size_t i = 0; i < FLOATS; i++)
		s->w[i] = (float)i;
	for (uint32_t r = 0; r < WORLD; r++)
		make_rank(s, r);
	s->out = calloc(FLOATS, sizeof(float));
	s->own_out = calloc((size_t)COLUMNS * WORLD, sizeof(float));
	s->column_out = calloc((size_t)100 * WORLD, sizeof(float));
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	free(s->out);
	free(s->own_out);
	free(s->column_out);
	free(s);
	return 0;
}

/* A store with steps 10 and 20, both of all ranks. Not open. */
static void fresh(struct scene *s)
{
	s->dir = scratch_make_in_memory();
	fixture_begin(s->dir);
	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10,
		.chunk_bytes = 4096,
		.world = WORLD,
		.ranks = s->ranks};
	fixture_commit(&s->step);
	s->step.step = 20;
	fixture_commit(&s->step);
	memset(s->out, 0, FLOATS * sizeof(float));
	memset(s->own_out, 0, (size_t)COLUMNS * WORLD * sizeof(float));
	memset(s->column_out, 0, (size_t)100 * WORLD * sizeof(float));
}

static void begin(struct scene *s)
{
	fresh(s);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
}

static void end(struct scene *s)
{
	core_rig_close(&s->rig);
	scratch_remove(s->dir);
}

static int bind(
	struct scene *s, struct ckpt_restore *r, const struct ckpt_target *targets, size_t n)
{
	s->rig.err = (struct ckpt_error){.size = sizeof(s->rig.err)};
	return ckpt_restore_add_targets(r, targets, n, &s->rig.err);
}

static int bind_all(struct scene *s, struct ckpt_restore *r)
{
	struct ckpt_target targets[WORLD + 2] = {
		{.size = sizeof(targets[0]), .name = "w", .data = s->out},
		{.size = sizeof(targets[0]), .name = "c", .data = s->column_out}};

	for (size_t i = 0; i < WORLD; i++)
		targets[i + 2] = (struct ckpt_target){.size = sizeof(targets[0]),
			.name = s->names[i],
			.data = s->own_out + i * (size_t)COLUMNS};
	return bind(s, r, targets, WORLD + 2);
}

static bool all_there(const struct scene *s)
{
	bool good = memcmp(s->out, s->w, sizeof(s->w)) == 0 &&
		    memcmp(s->own_out, s->own, sizeof(s->own)) == 0;

	for (size_t i = 0; i < (size_t)100 * WORLD; i++)
		good = good && s->column_out[i] == (float)i;
	return good;
}

/* What is there is either right or has not been touched. */
static bool nothing_wrong(const struct scene *s)
{
	bool good = true;

	for (size_t i = 0; i < FLOATS; i++)
		good = good && (s->out[i] == 0 || s->out[i] == s->w[i]);
	for (size_t i = 0; i < (size_t)100 * WORLD; i++)
		good = good && (s->column_out[i] == 0 || s->column_out[i] == (float)i);
	return good;
}

/* Reads a step, all of it. The code. */
static int read_all(struct scene *s, uint64_t step)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, step, CKPT_SINK_MEMORY, NULL);

	if (!r)
		return -ENOMEM;
	if (ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_OPENED) {
		int code = bind_all(s, r);
		if (code < 0) {
			(void)core_rig_end(&s->rig, r);
			return code;
		}
		ckpt_restore_post_start(r);
		core_rig_run(&s->rig);
	}
	return core_rig_end(&s->rig, r);
}

static void test_good(void **state)
{
	struct scene *s = *state;

	begin(s);
	assert_int_equal(read_all(s, CKPT_STEP_LATEST), 0);
	assert_true(all_there(s));
	end(s);
}

/* Whatever is missing or wrong, and of whichever rank: it is named, and the step is quarantined. */
static void test_damage(void **state)
{
	struct scene *s = *state;

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		for (unsigned kind = 0; kind < 5; kind++) {
			begin(s);
			if (kind == 0)
				assert_int_equal(unlink(fixture_index(&s->step, rank)), 0);
			if (kind == 1)
				scratch_flip(fixture_index(&s->step, rank), 100);
			if (kind == 2)
				assert_int_equal(unlink(fixture_shard(&s->step, rank)), 0);
			if (kind == 3)
				scratch_flip(fixture_shard(&s->step, rank), 4096 + 9000);
			if (kind == 4)
				assert_int_equal(truncate(fixture_shard(&s->step, rank), 5000), 0);
			int code = read_all(s, 20);
			assert_int_equal(code, kind % 2 == 1 ? CKPT_EINTEGRITY : CKPT_EINCOMPLETE);
			assert_int_equal(s->rig.err.rank, rank);
			assert_int_equal(s->rig.err.step, 20);
			assert_non_null(strstr(
				s->rig.err.message, kind < 2 ? fixture_index_name(&s->step, rank)
							     : fixture_shard_name(&s->step, rank)));
			assert_true(nothing_wrong(s));
			assert_int_equal(access(fixture_quarantine(&s->step), F_OK), 0);
			/* The older one is the latest now, and it is good. */
			assert_int_equal(read_all(s, CKPT_STEP_LATEST), 0);
			assert_true(all_there(s));
			end(s);
		}
	}
}

/* Of two that fail the lower rank is told, and of a rank that nobody asks for nothing is read. */
static void test_which_is_told(void **state)
{
	struct scene *s = *state;

	begin(s);
	assert_int_equal(unlink(fixture_shard(&s->step, 1)), 0);
	assert_int_equal(unlink(fixture_shard(&s->step, 3)), 0);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 20, CKPT_SINK_MEMORY, NULL);
	struct ckpt_target target = {.size = sizeof(target), .name = "own.2", .data = s->own_out};
	assert_int_equal(bind(s, r, &target, 1), 0);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_memory_equal(s->own_out, s->own[2], sizeof(s->own[2]));
	assert_int_equal(read_all(s, 20), CKPT_EINCOMPLETE);
	assert_int_equal(s->rig.err.rank, 1);
	end(s);
}

/* What the ranks do not hold, or hold in pieces. */
static void test_refusals(void **state)
{
	struct scene *s = *state;
	struct ckpt_target half = {
		.size = sizeof(half), .name = "w", .data = s->out, .offset = 4, .length = 8};
	struct ckpt_target all = {.size = sizeof(all), .name = "w", .data = s->out};

	begin(s);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 20, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(bind(s, r, &half, 1), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(s->rig.err.message, "stored in pieces"));
	(void)core_rig_end(&s->rig, r);
	/* Rank 4 has lost its part. */
	s->step.step = 30;
	s->ranks[4].tensors = s->tensors[4] + 1;
	s->ranks[4].count = 1;
	fixture_commit(&s->step);
	r = core_rig_begin(&s->rig, 30, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(bind(s, r, &all, 1), CKPT_EMISMATCH);
	assert_non_null(strstr(s->rig.err.message, "no rank of the step holds [400:500, 0:50]"));
	/* All or none: another shard was to give something by then. */
	for (uint32_t i = 0; i < WORLD; i++)
		assert_int_equal(r->load.binder.ranks[i].count, 0);
	int64_t start[2] = {350, 0};
	int64_t shape[2] = {50, COLUMNS};
	all.ndim = 2, all.start = start, all.shape = shape;
	assert_int_equal(bind(s, r, &all, 1), 0);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_memory_equal(s->out, s->w + 350 * COLUMNS, 50 * COLUMNS * sizeof(float));
	make_rank(s, 4);
	end(s);
}

/* Two ranks that do not agree: an error that names both, and nobody can ever read the step. */
static void test_disagreement(void **state)
{
	struct scene *s = *state;

	begin(s);
	s->step.step = 30;
	s->tensors[3][1].name = "w";
	s->ranks[3].tensors = s->tensors[3] + 1;
	s->ranks[3].count = 1;
	fixture_commit(&s->step);
	assert_int_equal(read_all(s, CKPT_STEP_LATEST), CKPT_EFORMAT);
	assert_non_null(strstr(s->rig.err.message, "F32 [50] says rank 3"));
	assert_string_equal(s->rig.err.tensor, "w");
	assert_int_equal(s->rig.err.step, 30);
	assert_int_equal(access(fixture_quarantine(&s->step), F_OK), 0);
	struct ckpt_restore *r = core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(ckpt_restore_chosen_step(r), 20);
	(void)core_rig_end(&s->rig, r);
	make_rank(s, 3);
	end(s);
}

/* Two ranks with other bytes for one name: the step can be read, and it is said what will come of it. */
static void test_other_bytes(void **state)
{
	static const char text[] = "rank 3 and rank 1 hold different bytes of 'own.1'";
	struct scene *s = *state;

	begin(s);
	s->tensors[3][1].name = "own.1";
	for (uint32_t r = 1; r <= 3; r += 2) {
		s->ranks[r].tensors = s->tensors[r] + 1;
		s->ranks[r].count = 1;
	}
	for (s->step.step = 30; s->step.step <= 60; s->step.step += 10) {
		bool differ = s->step.step < 60;
		/* Where every node had a store each may have its own: a restore does not make much of it. */
		bool apart = s->step.step == 30;
		s->step.node = s->step.step <= 40 ? NULL : "one";
		s->rig.core.lineage->marker.shared = !apart;
		if (!differ)
			memcpy(s->own[3], s->own[1], sizeof(s->own[1]));
		fixture_commit(&s->step);
		struct ckpt_restore *r =
			core_rig_begin(&s->rig, s->step.step, CKPT_SINK_MEMORY, NULL);
		assert_int_equal(core_rig_logged(&s->rig, CKPT_LOG_WARN, text), differ);
		assert_string_equal(ckpt_restore_differ(r), differ && !apart ? text : "");
		(void)core_rig_end(&s->rig, r);
		r = core_rig_begin(&s->rig, s->step.step, CKPT_SINK_NONE, NULL);
		core_rig_await(&s->rig, r);
		assert_non_null(strstr(ckpt_restore_differ(r), differ ? text : ""));
		assert_int_equal(*ckpt_restore_differ(r) != 0, differ);
		assert_int_equal(
			strstr(ckpt_restore_differ(r), "on different nodes") != NULL, apart);
		assert_int_equal(core_rig_end(&s->rig, r), 0);
	}
	s->step.node = NULL;
	make_rank(s, 1);
	make_rank(s, 3);
	end(s);
}

/* Ranks 1 and 3 hold the same, and nothing else, in a step of its own. */
static void commit_twins(struct scene *s, uint64_t step)
{
	s->tensors[3][1].name = "own.1";
	s->tensors[3][1].data = s->own[1];
	for (uint32_t r = 1; r <= 3; r += 2) {
		s->ranks[r].tensors = s->tensors[r] + 1;
		s->ranks[r].count = 1;
	}
	s->step.step = step;
	fixture_commit(&s->step);
	make_rank(s, 1);
	make_rank(s, 3);
}

static int read_twins(struct scene *s, uint64_t step, uint64_t *ret_done, uint64_t *ret_total)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, step, CKPT_SINK_MEMORY, NULL);
	struct ckpt_target target = {.size = sizeof(target), .name = "own.1", .data = s->own_out};

	if (!r)
		return -ENOMEM;
	memset(s->own_out, 0, sizeof(s->own[1]));
	if ((ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_OPENED) &&
		bind(s, r, &target, 1) == 0)
		ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	ckpt_restore_counters(r, ret_done, ret_total);
	int code = core_rig_end(&s->rig, r);
	return code == 1 || code == -ECANCELED ? -ENOMEM : code;
}

/* One copy is damaged, cut or gone: the other one is read. Both are: the step is no good. */
static void test_another_copy(void **state)
{
	static const int codes[] = {CKPT_EINTEGRITY, CKPT_EINCOMPLETE, CKPT_EINCOMPLETE};
	struct scene *s = *state;
	uint64_t done = 0;
	uint64_t total = 0;

	begin(s);
	for (int way = 0; way < 3; way++) {
		commit_twins(s, 30 + 10 * (uint64_t)way);
		for (uint32_t bad = 1; bad <= 3; bad += 2) {
			const char *file = fixture_shard(&s->step, bad);
			if (way == 0)
				scratch_flip(file, 4100);
			else
				assert_int_equal(way == 1 ? truncate(file, 4100) : unlink(file), 0);
			int code = read_twins(s, s->step.step, &done, &total);
			assert_int_equal(code, bad == 1 ? 0 : codes[way]);
			assert_int_equal(
				access(fixture_quarantine(&s->step), F_OK), bad == 1 ? -1 : 0);
			if (bad == 3)
				continue;
			assert_memory_equal(s->own_out, s->own[1], sizeof(s->own[1]));
			assert_int_equal(done, total);
			assert_true(core_rig_logged(
				&s->rig, CKPT_LOG_WARN, "other ranks have the same"));
		}
	}
	end(s);
}

/* A sector that cannot be read is a bad copy as well; what is no fault of a copy is none. */
static void test_another_copy_of_a_sector(void **state)
{
	struct scene *s = *state;
	uint64_t done = 0;
	uint64_t total = 0;

	static const int errors[] = {-EIO, -ENODATA, -EILSEQ, -EACCES};

	for (size_t i = 0; i < COUNT(errors); i++) {
		begin(s);
		commit_twins(s, 30);
		struct io_fault_rule rule = {.op = CKPT_IO_OP_READ,
			.path = "rank-00001",
			.nth = 2,
			.count = IO_FAULT_ALWAYS,
			.error = errors[i]};
		(void)io_fault_add(&s->rig.fault, rule);
		assert_int_equal(
			read_twins(s, 30, &done, &total), errors[i] == -EACCES ? -EACCES : 0);
		end(s);
	}
}

static void test_no_memory_for_another_copy(void **state)
{
	struct scene *s = *state;
	uint64_t done = 0;
	uint64_t total = 0;
	size_t all = 0;

	for (size_t n = 1, last = 0; !last; n++) {
		fresh(s);
		commit_twins(s, 30);
		scratch_flip(fixture_shard(&s->step, 1), 4100);
		core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
		core_rig_count_allocations(&s->rig, n);
		int code = read_twins(s, 30, &done, &total);
		all = core_rig_allocations(&s->rig);
		last = all < n;
		assert_true(code == 0 || code == -ENOMEM);
		assert_int_equal(access(fixture_quarantine(&s->step), F_OK), -1);
		assert_int_equal(read_twins(s, 30, &done, &total), 0);
		assert_memory_equal(s->own_out, s->own[1], sizeof(s->own[1]));
		end(s);
	}
	assert_true(all > 50);
}

/* What is wanted is put in order by a worker: the core goes on meanwhile, and may be told to give up. */
static void test_sealed_by_a_worker(void **state)
{
	struct scene *s = *state;

	for (int cancel = 0; cancel < 2; cancel++) {
		begin(s);
		struct ckpt_restore *r = core_rig_begin(&s->rig, 20, CKPT_SINK_MEMORY, NULL);
		assert_int_equal(bind_all(s, r), 0);
		s->rig.hold_jobs = true;
		ckpt_restore_post_start(r);
		core_rig_run(&s->rig);
		for (uint32_t i = 0; i < WORLD; i++)
			assert_false(r->load.binder.ranks[i].sealed);
		if (cancel) {
			ckpt_restore_post_cancel(r);
			core_rig_run(&s->rig);
			assert_true(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
		}
		core_rig_let_go(&s->rig);
		assert_int_equal(core_rig_end(&s->rig, r), cancel ? -ECANCELED : 0);
		assert_true(cancel || all_there(s));
		end(s);
	}
}

/* Several ranks are under way when it is given up: it ends at once, and lets go when all are back. */
static void test_cancel(void **state)
{
	struct scene *s = *state;

	for (unsigned nth = 1; nth < 40; nth += 3) {
		begin(s);
		struct ckpt_restore *r = core_rig_begin(&s->rig, 20, CKPT_SINK_MEMORY, NULL);
		assert_int_equal(bind_all(s, r), 0);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){.nth = nth, .count = IO_FAULT_ALWAYS, .hold = true});
		ckpt_restore_post_start(r);
		core_rig_run(&s->rig);
		ckpt_restore_post_cancel(r);
		core_rig_run(&s->rig);
		uint32_t bits = ckpt_latch_get(ckpt_restore_latch(r));
		assert_true(bits & CKPT_DONE_END);
		assert_false(bits & CKPT_DONE_GONE);
		int code = ckpt_restore_failure(r)->code;
		assert_true(code == -ECANCELED || (code == 0 && all_there(s)));
		memset(s->out, 0, sizeof(s->w));
		ckpt_restore_post_release(r);
		io_fault_clear(&s->rig.fault);
		core_rig_let_go(&s->rig);
		assert_int_equal(core_rig_end(&s->rig, r), code);
		/* Nothing has been written to what was let go of. */
		for (size_t i = 0; i < FLOATS; i++)
			assert_true(s->out[i] == 0);
		end(s);
	}
}

static void test_no_memory(void **state)
{
	struct scene *s = *state;
	size_t all = 0;

	for (size_t n = 1, done = 0; !done; n++) {
		fresh(s);
		core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
		core_rig_count_allocations(&s->rig, n);
		int code = read_all(s, CKPT_STEP_LATEST);
		all = core_rig_allocations(&s->rig);
		done = all < n;
		assert_true(code == 0 || code == -ENOMEM);
		assert_true(code < 0 ? nothing_wrong(s) : all_there(s));
		assert_int_equal(access(fixture_quarantine(&s->step), F_OK), -1);
		assert_int_equal(read_all(s, CKPT_STEP_LATEST), 0);
		assert_true(all_there(s));
		end(s);
	}
	assert_true(all > 50);
}

static void test_bad_disk(void **state)
{
	struct scene *s = *state;
	unsigned all = 0;

	for (unsigned n = 1, done = 0; !done; n++) {
		begin(s);
		unsigned before = s->rig.fault.requests;
		s->rig.fault.fail_at = before + n;
		s->rig.fault.fail_error = -EIO;
		int code = read_all(s, CKPT_STEP_LATEST);
		all = s->rig.fault.requests - before;
		done = all < n;
		assert_true(code == 0 || code == -EIO);
		assert_true(code < 0 ? nothing_wrong(s) : all_there(s));
		end(s);
	}
	assert_true(all > 30);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_good),
		TEST(test_damage),
		TEST(test_which_is_told),
		TEST(test_refusals),
		TEST(test_disagreement),
		TEST(test_other_bytes),
		TEST(test_another_copy),
		TEST(test_another_copy_of_a_sector),
		TEST(test_no_memory_for_another_copy),
		TEST(test_sealed_by_a_worker),
		TEST(test_cancel),
		TEST(test_no_memory),
		TEST(test_bad_disk),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
