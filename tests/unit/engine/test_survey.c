/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Indexes that together are more than rank 0 holds at once: what they say is found out all the same, a few at a
 * time, and comes to the same catalog; whatever cannot be read decides the step as it does for few.
 */
#include "lib/test.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/lineage/lineage.h"
#include "engine/save/rank_schema_survey.h"
#include "engine/save/save_state.h"
#include "lib/named.h"
#include "lib/scratch.h"

#define WORLD RANK_RIG_RANKS

/* All are there, and rank 0 holds so many bytes of indexes at once. */
static struct core_rig *open_all(struct rank_rig *s, uint64_t at_once)
{
	rank_rig_open_all(s, WORLD, WORLD, 60000);
	s->rank[0].core.config.agree_bytes = at_once;
	return &s->rank[0];
}

/* How long the index of rank 0 is; the others' are as long. */
static uint64_t index_bytes(const struct rank_rig *s)
{
	struct stat st;
	const char *step = scratch_join(s->dir, "g000001/step-0000000001");

	assert_int_equal(stat(scratch_find(step, ".index"), &st), 0);
	return (uint64_t)st.st_size;
}

/* All begin a step, and an answer to rank 0 about the index of rank 1 is held. */
static void begin_held(struct rank_rig *s, uint64_t step, enum ckpt_io_op op)
{
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = op, .path = "rank-00001", .hold = true});
	for (uint32_t rank = 0; rank < WORLD; rank++)
		rank_rig_begin(s, rank, step);
}

/* From now on: how often it is an index that rank 0 reads, which fails. */
static unsigned watch_reads(struct core_rig *rig)
{
	return io_fault_add(&rig->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = ".index", .error = -EIO});
}

/* By windows of one rank, of two, and of more than there are. */
static void test_same_catalog(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 0);

	named_save(s, WORLD, 1, 1000);
	uint64_t one = index_bytes(s);
	const uint64_t at_once[] = {1, 4 * one, 2 * one * 4 + 8, 3 * one - 1};
	for (uint64_t i = 0; i < COUNT(at_once); i++) {
		rig->core.config.agree_bytes = at_once[i];
		named_save(s, WORLD, 2 + 2 * i, 700);
		assert_true(core_rig_logged(rig, CKPT_LOG_DEBUG, "all ranks mean the same"));
		named_save(s, WORLD, 3 + 2 * i, 1000);
		assert_true(named_same(named_by(s, 1, 1), named_by(s, 1, 3 + 2 * i)));
	}
	assert_int_equal(core_rig_read(rig, 9, CKPT_SINK_NONE), 0);
}

/* Each rank one number under this name. */
static void begin_numbers(
	struct rank_rig *s, uint64_t step, const char *const names[], const uint64_t numbers[])
{
	const int64_t count = 1;

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct core_rig *rig = &s->rank[rank];
		const struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = names[rank],
			.dtype = CKPT_U64,
			.ndim = 1,
			.shape = &count,
			.data = &numbers[rank]};

		ckpt_error_clear(&rig->err);
		assert_int_equal(
			ckpt_save_new(&rig->core, NULL, step, false, 0, &s->save[rank]), 0);
		assert_int_equal(ckpt_save_put_tensors(s->save[rank], &tensor, 1, &rig->err), 0);
		assert_int_equal(ckpt_save_put_meta(s->save[rank], "{}", 2, &rig->err), 0);
		assert_int_equal(ckpt_save_prepare(s->save[rank], &rig->plan, &rig->err), 0);
		(void)core_rig_post(rig, s->save[rank]);
	}
}

/* What rank 0 comes to. */
static int try_numbers(
	struct rank_rig *s, uint64_t step, const char *const names[], const uint64_t numbers[])
{
	int code = 0;

	begin_numbers(s, step, names, numbers);
	named_wait(s, WORLD);
	for (uint32_t rank = WORLD; rank-- > 0;)
		code = rank_rig_end(s, rank);
	return code;
}

/* It is looked at once, until a rank describes its part in another way. */
static void test_once(void **state)
{
	static const char *const names[WORLD] = {"a", "b", "c"};
	static const uint64_t numbers[WORLD] = {1, 2, 3};
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	assert_int_equal(try_numbers(s, 1, names, numbers), 0);
	unsigned rule = watch_reads(rig);
	assert_int_equal(try_numbers(s, 2, names, numbers), 0);
	assert_true(named_same(named_by(s, 1, 1), named_by(s, 1, 2)));
	assert_int_equal(rig->fault.hits[rule], 0);
}

/* The first and the last rank write one tensor: these two are compared at every save, in whichever windows they are. */
static void test_other_bytes(void **state)
{
	static const char *const names[WORLD] = {"a", "b", "a"};
	static const uint64_t same[WORLD] = {1, 2, 1};
	static const uint64_t other[WORLD] = {1, 2, 3};
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	assert_int_equal(try_numbers(s, 1, names, other), CKPT_EREPLICA);
	rank_rig_check_says(s, 0, "rank 2 and rank 0 hold different bytes of 'a'");
	assert_string_equal(rig->err.tensor, "a");
	assert_int_equal(try_numbers(s, 2, names, same), 0);
	unsigned rule = io_fault_add(&rig->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = "rank-00001", .error = -EIO});
	assert_int_equal(try_numbers(s, 3, names, same), 0);
	assert_true(named_same(named_by(s, 1, 2), named_by(s, 1, 3)));
	assert_int_equal(try_numbers(s, 4, names, other), CKPT_EREPLICA);
	rank_rig_check_says(s, 0, "they were alike at step 3");
	assert_int_equal(rig->fault.hits[rule], 0);
	assert_int_equal(atomic_load(&rig->core.unchecked), 0);
	/* One that cannot be read makes no step fail. */
	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = "rank-00002", .error = -EIO});
	assert_int_equal(try_numbers(s, 5, names, other), 0);
	assert_true(core_rig_logged(
		rig, CKPT_LOG_WARN, "bytes of what several of them write was not looked at"));
	assert_int_equal(atomic_load(&rig->core.unchecked), CKPT_UNCHECKED_BOXES);
}

/* One save was too slow to compare them: the next one compares them again. */
static void test_other_bytes_late(void **state)
{
	static const char *const names[WORLD] = {"a", "b", "a"};
	static const uint64_t same[WORLD] = {1, 2, 1};
	static const uint64_t other[WORLD] = {1, 2, 3};
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	assert_int_equal(try_numbers(s, 1, names, same), 0);
	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = "rank-00000", .hold = true});
	begin_numbers(s, 2, names, same);
	rank_rig_sleep(s, 35000);
	assert_false(rank_rig_ended(s, 0));
	core_rig_let_go(rig);
	named_wait(s, WORLD);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(rank_rig_end(s, rank), 0);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"bytes of what several of them write was not looked at: there was time to read"));
	assert_int_equal(atomic_load(&rig->core.unchecked), CKPT_UNCHECKED_BOXES);
	assert_string_equal(rig->core.unchecked_boxes,
		"what several ranks have written at step 2 could not be read");
	io_fault_clear(&rig->fault);
	assert_int_equal(try_numbers(s, 3, names, other), CKPT_EREPLICA);
}

/* More than is kept: of what is kept differences are found, and nothing is claimed of the rest. */
static void test_too_many_boxes(void **state)
{
	static const char *const names[WORLD] = {"a", "b", "a"};
	static const uint64_t same[WORLD] = {1, 2, 1};
	static const uint64_t other[WORLD] = {1, 2, 3};
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	rig->core.config.agree_boxes = 5;
	assert_int_equal(try_numbers(s, 1, names, same), 0);
	assert_int_equal(atomic_load(&rig->core.unchecked), CKPT_UNCHECKED_MANY);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN, "was not found out for all"));
	assert_true(named_by(s, 1, 1).bytes > 0);
	assert_int_equal(try_numbers(s, 2, names, other), CKPT_EREPLICA);
}

/* The first and the last rank mean different tensors, which are not in one window. */
static void test_apart(void **state)
{
	static const size_t floats[WORLD] = {1000, 1000, 999};
	struct rank_rig *s = *state;

	(void)open_all(s, 1);
	assert_int_equal(named_try(s, WORLD, 1, floats), CKPT_EMISMATCH);
	rank_rig_check_says(s, 0, "F32 [1000] says rank 0, F32 [999] says rank 2");
	assert_string_equal(s->rank[0].err.tensor, "w0");
	/* Nothing of it counts. */
	named_save(s, WORLD, 2, 1000);
	assert_true(named_by(s, 1, 2).bytes > 0);
}

/* That of one rank cannot be read: the step is as good, nothing is known of it, and it is looked at again. */
static void test_unreadable(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = "rank-00002", .error = -EIO});
	named_save(s, WORLD, 1, 1000);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN, "was not looked at"));
	/* Nobody says that several ranks write the same. */
	assert_int_equal(atomic_load(&rig->core.unchecked), 0);
	assert_int_equal(named_by(s, 1, 1).bytes, 0);
	io_fault_clear(&rig->fault);
	named_save(s, WORLD, 2, 1000);
	assert_true(named_by(s, 1, 2).bytes > 0);
}

/* One that is gone, or is not what its rank has told of it, makes no step. */
static void test_damaged(void **state)
{
	static const size_t floats[WORLD] = {1000, 1000, 1000};
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "rank-00001", .error = -ENOENT});
	assert_int_equal(named_try(s, WORLD, 1, floats), CKPT_EINCOMPLETE);
	io_fault_clear(&rig->fault);
	begin_held(s, 2, CKPT_IO_OP_OPEN);
	rank_rig_sleep(s, 200);
	assert_non_null(rig->fault.tap.held);
	scratch_flip(scratch_join(s->dir, rig->fault.tap.held->path), 60);
	core_rig_let_go(rig);
	rank_rig_sleep(s, 200);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EINTEGRITY);
	rank_rig_check_says(s, 0, "nobody could read it");
	for (uint32_t rank = 1; rank < WORLD; rank++)
		assert_int_equal(rank_rig_end(s, rank), CKPT_EABORTED);
	io_fault_clear(&rig->fault);
	named_save(s, WORLD, 3, 1000);
}

/* No catalog can hold it: the step is as good, and it is not looked at with every step. */
static void test_too_large(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	rig->core.config.catalog_limits.file_bytes = 10;
	named_save(s, WORLD, 1, 1000);
	assert_int_equal(named_by(s, 1, 1).bytes, 0);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"was not looked at, nor is it at later ones that are described alike: the catalog "
		"of all ranks has more than the 10 bytes"));
	unsigned rule = watch_reads(rig);
	named_save(s, WORLD, 2, 1000);
	assert_int_equal(rig->fault.hits[rule], 0);
	assert_int_equal(named_by(s, 1, 2).bytes, 0);
}

/* Nor is there so much memory for names: the same. */
static void test_names_too_large(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	rig->core.config.catalog_limits.names_bytes = 100;
	named_save(s, WORLD, 1, 1000);
	assert_int_equal(named_by(s, 1, 1).bytes, 0);
	assert_true(core_rig_logged(rig, CKPT_LOG_WARN,
		"nor is it at later ones that are described alike: the names of all ranks take "
		"more than 100 bytes of memory to put together: give what ranks share one name"));
	unsigned rule = watch_reads(rig);
	named_save(s, WORLD, 2, 1000);
	assert_int_equal(rig->fault.hits[rule], 0);
}

/* Of indexes that lie in the stores of other nodes none is held, however long they are. */
static void test_other_nodes(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	struct ckpt_core *core = &s->rank[0].core;
	named_save(s, 2, 1, 1000);
	for (uint32_t rank = 0; rank < 2; rank++) {
		s->rank[rank].core.config.node_store = true;
		s->rank[rank].core.config.node_leader = rank;
	}
	core->config.agree_bytes = index_bytes(s) * 3 / 2;
	/* Of those who make a survey nobody comes to its end. */
	core->config.catalog_limits.names_bytes = 1;
	memcpy(s->rank[1].core.config.node, "other", sizeof("other"));
	named_save(s, 2, 2, 700);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_DEBUG, "of this node mean the same"));
	assert_false(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "was not looked at"));
	memcpy(s->rank[1].core.config.node, core->config.node, sizeof(core->config.node));
	named_save(s, 2, 3, 800);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "more than 1 bytes of memory"));
}

/* All that is left of the step is in the stores of other nodes. */
static void test_nothing_here(void **state)
{
	struct ckpt_manifest_rank ranks[2] = {
		{.rank = 0, .node = "a", .attempt = "0123456789abcdef", .index_bytes = 9},
		{.rank = 1, .node = "b", .attempt = "0123456789abcdef", .index_bytes = 9}};
	struct ckpt_select pick = {
		.chosen = {.generation = 1, .step = 7}, .manifest = {.world = 2, .ranks = ranks}};
	struct ckpt_error err = {.size = sizeof(err)};
	struct rank_rig *s = *state;

	rank_rig_open(s, 0, 1, 60000);
	s->rank[0].core.lineage->marker.shared = false;
	struct ckpt_schema_survey survey = {.core = &s->rank[0].core,
		.pick = &pick,
		.window = 100,
		.until_ns = UINT64_MAX,
		.err = &err};
	ckpt_schema_survey_start(&survey);
	core_rig_run(&s->rank[0]);
	assert_true(survey.task.finished);
	assert_int_equal(survey.task.result, CKPT_EOTHERNODE);
	assert_non_null(strstr(err.message, "no rank of the step has its files here"));
	assert_int_equal(survey.elsewhere.count, 2);
	ckpt_schema_survey_clear(&survey);
}

/* It takes its time: the step is as good, and that is not tried with every step. */
static void test_late(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	begin_held(s, 1, CKPT_IO_OP_READ);
	rank_rig_sleep(s, 35000);
	assert_false(rank_rig_ended(s, 0));
	core_rig_let_go(rig);
	named_wait(s, WORLD);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(rank_rig_end(s, rank), 0);
	assert_true(core_rig_logged(
		rig, CKPT_LOG_WARN, "there was time to read the indexes of only 2 of 3 ranks"));
	assert_int_equal(named_by(s, 1, 1).bytes, 0);
	io_fault_clear(&rig->fault);
	unsigned rule = watch_reads(rig);
	named_save(s, WORLD, 2, 1000);
	assert_int_equal(rig->fault.hits[rule], 0);
	/* Another layout is looked at. */
	io_fault_clear(&rig->fault);
	named_save(s, WORLD, 3, 700);
	assert_true(named_by(s, 1, 3).bytes > 0);
}

/* The deadline comes while indexes are read: nothing is left of the save, and the next one is good. */
static void test_deadline(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);

	begin_held(s, 1, CKPT_IO_OP_READ);
	rank_rig_sleep(s, 61000);
	core_rig_let_go(rig);
	rank_rig_sleep(s, 1000);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_true(rank_rig_ended(s, rank));
		int code = rank_rig_end(s, rank);
		assert_true(code == -ETIMEDOUT || (rank > 0 && code == CKPT_EABORTED));
	}
	io_fault_clear(&rig->fault);
	named_save(s, WORLD, 2, 1000);
	assert_true(named_by(s, 1, 2).bytes > 0);
}

/* Without memory it is not found out, and the step is as good; at the next one there may be some. */
static void test_no_memory(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = open_all(s, 1);
	size_t all = 0;
	unsigned without = 0;

	for (size_t n = 0; n <= all; n++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			s->save[rank] = core_rig_prepare(
				&s->rank[rank], 2 * n + 1, 2, 200 + n, CKPT_TENSOR_EAGER);
		for (uint32_t rank = 1; rank < WORLD; rank++)
			(void)core_rig_post(&s->rank[rank], s->save[rank]);
		core_rig_count_allocations(rig, n);
		(void)core_rig_post(rig, s->save[0]);
		named_wait(s, WORLD);
		all = ckpt_max_u64(all, core_rig_allocations(rig));
		int code = rank_rig_end(s, 0);
		for (uint32_t rank = 1; rank < WORLD; rank++)
			(void)rank_rig_end(s, rank);
		if (code < 0 || !core_rig_logged(rig, CKPT_LOG_WARN, "was not looked at"))
			continue;
		without++;
		assert_int_equal(named_by(s, 1, 2 * n + 1).bytes, 0);
		named_save(s, WORLD, 2 * n + 2, 200 + n);
		assert_true(named_by(s, 1, 2 * n + 2).bytes > 0);
	}
	assert_true(without > 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_same_catalog, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_once, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_other_bytes, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_other_bytes_late, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_too_many_boxes, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_apart, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_unreadable, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_damaged, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_too_large, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_names_too_large, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_other_nodes, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_nothing_here, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_late, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_deadline, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_no_memory, rank_rig_setup, rank_rig_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
