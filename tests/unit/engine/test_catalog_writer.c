/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog that rank 0 writes: one for a layout and a generation, named by every manifest of that layout, and by
 * none if it could not be written. No save fails for it, and it goes when the steps of its generation are gone.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/lineage/lineage.h"
#include "lib/named.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define WORLD 2

/* Files in the directory of a generation, but for those of its steps. */
static size_t catalogs(const struct rank_rig *s, uint64_t generation, unsigned steps)
{
	char name[CKPT_PATH_MAX];

	ckpt_name_generation(name, generation);
	return scratch_count(scratch_join(s->dir, name)) - steps * (1 + 2 * (size_t)WORLD + 1);
}

static void test_one_for_a_layout(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	named_save(s, WORLD, 2, 1000);
	struct named first = named_by(s, 1, 1);
	assert_true(named_same(first, named_by(s, 1, 2)));
	assert_int_equal(catalogs(s, 1, 2), 1);
	/* Another layout has its own, and the first one comes again. */
	named_save(s, WORLD, 3, 700);
	struct named other = named_by(s, 1, 3);
	assert_true(other.bytes > 0 && !named_same(first, other));
	named_save(s, WORLD, 4, 1000);
	assert_true(named_same(first, named_by(s, 1, 4)));
	assert_int_equal(catalogs(s, 1, 4), 2);
	assert_int_equal(core_rig_read(&s->rank[0], 4, CKPT_SINK_NONE), 0);
}

/* Who goes back to an older step claims another generation, which has its own. */
static void test_one_for_a_generation(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(core_rig_adopt(&s->rank[rank], 1, 1), 0);
		assert_int_equal(core_rig_claim(&s->rank[rank]), 0);
	}
	assert_int_equal(s->rank[0].core.lineage->generation, 2);
	named_save(s, WORLD, 2, 1000);
	assert_true(named_same(named_by(s, 1, 1), named_by(s, 2, 2)));
	assert_int_equal(catalogs(s, 1, 1), 1);
	assert_int_equal(catalogs(s, 2, 1), 1);
}

/* There the indexes cannot be read, though the ranks are known to agree: the step is as good. */
static void test_none_for_a_generation(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(core_rig_adopt(&s->rank[rank], 1, 1), 0);
		assert_int_equal(core_rig_claim(&s->rank[rank]), 0);
	}
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = ".index", .error = -EIO});
	named_save(s, WORLD, 2, 1000);
	assert_int_equal(named_by(s, 2, 2).bytes, 0);
	io_fault_clear(&s->rank[0].fault);
	named_save(s, WORLD, 3, 1000);
	assert_true(named_by(s, 2, 3).bytes > 0);
}

/* Of a layout that could not be looked at nobody knows whether it is that of the catalog which is there. */
static void test_none_for_an_unknown_layout(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	struct named first = named_by(s, 1, 1);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = ".index", .error = -EIO});
	named_save(s, WORLD, 2, 700);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "was not looked at"));
	assert_int_equal(named_by(s, 1, 2).bytes, 0);
	io_fault_clear(&s->rank[0].fault);
	named_save(s, WORLD, 3, 700);
	struct named other = named_by(s, 1, 3);
	assert_true(other.bytes > 0 && !named_same(first, other));
}

/* Whatever cannot be done for it: the step is as good, none is named, and none is tried again for this layout. */
static void test_none(void **state)
{
	static const enum ckpt_io_op ops[] = {CKPT_IO_OP_OPEN, CKPT_IO_OP_WRITE,
		CKPT_IO_OP_FDATASYNC, CKPT_IO_OP_CLOSE, CKPT_IO_OP_RENAME};
	struct rank_rig *s = *state;

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	for (uint64_t i = 0; i < COUNT(ops); i++) {
		(void)io_fault_add(&s->rank[0].fault,
			(struct io_fault_rule){.op = ops[i], .path = ".catalog", .error = -EIO});
		named_save(s, WORLD, 1 + 3 * i, 500 + i);
		assert_int_equal(named_by(s, 1, 1 + 3 * i).bytes, 0);
		assert_true(
			core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "cannot write the catalog"));
		io_fault_clear(&s->rank[0].fault);
		named_save(s, WORLD, 2 + 3 * i, 500 + i);
		assert_int_equal(named_by(s, 1, 2 + 3 * i).bytes, 0);
		named_save(s, WORLD, 3 + 3 * i, 100 + i);
		assert_true(named_by(s, 1, 3 + 3 * i).bytes > 0);
	}
	assert_int_equal(catalogs(s, 1, 3 * COUNT(ops)), COUNT(ops));
}

/* Nor for want of memory. */
static void test_no_memory(void **state)
{
	struct rank_rig *s = *state;
	size_t all = 0;
	unsigned without = 0;

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	for (size_t n = 0; n <= all; n++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			s->save[rank] = core_rig_prepare(
				&s->rank[rank], n + 1, 2, 200 + n, CKPT_TENSOR_EAGER);
		(void)core_rig_post(&s->rank[1], s->save[1]);
		core_rig_count_allocations(&s->rank[0], n);
		(void)core_rig_post(&s->rank[0], s->save[0]);
		for (unsigned i = 0; i < 1000 && !(rank_rig_ended(s, 0) && rank_rig_ended(s, 1));
			i++)
			rank_rig_sleep(s, 5);
		all = ckpt_max_u64(all, core_rig_allocations(&s->rank[0]));
		int code = rank_rig_end(s, 0);
		(void)rank_rig_end(s, 1);
		if (code == 0)
			without += named_by(s, 1, n + 1).bytes == 0;
	}
	assert_true(without > 3);
}

/* The steps of an older generation of many ranks are gone: so is what stood beside them, and nothing else is. */
static void test_swept(void **state)
{
	static const char *const names[] = {"g000001/000102030405060708090a0b0c0d0e0f.catalog",
		"g000001/100102030405060708090a0b0c0d0e0f.catalog",
		"g000001/200102030405060708090a0b0c0d0e0f.catalog.tmp-0123456789abcdef",
		"g000002/000102030405060708090a0b0c0d0e0f.catalog", "g000001/somebody's.catalog",
		"g000003/000102030405060708090a0b0c0d0e0f.catalog"};
	static const bool stays[] = {false, false, false, true, true, true};
	struct rank_rig *s = *state;
	const int64_t shape = 10;
	float data[10] = {0};
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = &shape,
		.data = data};
	struct fixture_step step = {.dir = s->dir,
		.generation = 2,
		.step = 5,
		.tensors = &tensor,
		.count = 1,
		.chunk_bytes = 4096,
		.world = 1};

	fixture_store(s->dir, FIXTURE_RUN);
	fixture_claim_job(s->dir, FIXTURE_RUN, 1, WORLD);
	fixture_claim_job(s->dir, FIXTURE_RUN, 2, WORLD);
	/* Of one rank: nobody has written any there, and nobody looks. */
	fixture_claim_job(s->dir, FIXTURE_RUN, 3, 1);
	fixture_commit(&step);
	for (size_t i = 0; i < COUNT(names); i++) {
		FILE *f = fopen(scratch_join(s->dir, names[i]), "wb");
		assert_non_null(f);
		assert_int_equal(fclose(f), 0);
	}
	rank_rig_open_all(s, WORLD, WORLD, 60000);
	rank_rig_sleep(s, 100);
	assert_int_equal(s->rank[0].core.lineage->generation, 4);
	for (size_t i = 0; i < COUNT(names); i++)
		assert_int_equal(access(scratch_join(s->dir, names[i]), F_OK), stays[i] ? 0 : -1);
}

/* What cannot be removed is said, and is in nobody's way. */
static void test_not_swept(void **state)
{
	struct rank_rig *s = *state;

	fixture_store(s->dir, FIXTURE_RUN);
	fixture_claim_job(s->dir, FIXTURE_RUN, 1, WORLD);
	FILE *f = fopen(
		scratch_join(s->dir, "g000001/000102030405060708090a0b0c0d0e0f.catalog"), "wb");
	assert_non_null(f);
	assert_int_equal(fclose(f), 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		rank_rig_open(s, rank, WORLD, 60000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_UNLINK, .path = ".catalog", .error = -EACCES});
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(core_rig_claim(&s->rank[rank]), 0);
	rank_rig_sleep(s, 100);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "what g000001 left in"));
	named_save(s, WORLD, 1, 100);
}

/* A verification and a copy without memory somewhere: they say so, or do without the catalog where they may. */
static void test_roads_without_memory(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = &s->rank[0];
	char dest[64];
	unsigned failed[2] = {0};
	unsigned passed[2] = {0};

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	for (unsigned kind = 0; kind < 2; kind++) {
		size_t all = 0;
		for (size_t n = 0; n <= all; n++) {
			(void)snprintf(dest, sizeof(dest), "copy-%zu", n);
			const char *to = scratch_join(s->dir, dest);
			core_rig_count_allocations(rig, n);
			int code = kind == 0 ? core_rig_read(rig, 1, CKPT_SINK_NONE)
					     : core_rig_export(rig, 1, to);
			all = ckpt_max_u64(all, core_rig_allocations(rig));
			if (code != 0 && code != -ENOMEM)
				fail_msg("allocation %zu: %d: %s", n, code, rig->err.message);
			failed[kind] += code != 0;
			passed[kind] += code == 0 && n > 0;
			if (kind == 1 && code == 0)
				assert_non_null(scratch_find(to, ".catalog"));
		}
	}
	assert_true(failed[0] > 5 && failed[1] > 5);
	/*
	 * What goes on without is the lock of the step, and the comparison of what several ranks have written (its table,
	 * and who was compared): nothing was left out that was to be verified.
	 */
	assert_in_range(passed[0], 3, 4);
	assert_false(core_rig_logged(rig, CKPT_LOG_WARN, "without its catalog"));
}

/* Given up while the catalog is read: the end comes once it has been, and nothing is found or written. */
static void test_given_up(void **state)
{
	static const enum ckpt_restore_sink sinks[] = {
		CKPT_SINK_NONE, CKPT_SINK_STORE, CKPT_SINK_MEMORY};
	struct rank_rig *s = *state;
	struct core_rig *rig = &s->rank[0];

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	const char *dest = scratch_join(s->dir, "copy");
	/* Reads of one rank, which are of all of them otherwise. */
	rig->core.config.many = 1;
	rig->core.config.read_only = true;
	for (size_t i = 0; i < COUNT(sinks); i++) {
		(void)io_fault_add(
			&rig->fault, (struct io_fault_rule){.path = ".catalog", .hold = true});
		struct ckpt_restore *r =
			core_rig_begin(rig, 1, sinks[i], sinks[i] == CKPT_SINK_STORE ? dest : NULL);
		ckpt_restore_post_cancel(r);
		core_rig_run(rig);
		core_rig_let_go(rig);
		assert_int_equal(ckpt_restore_finding_count(r), 0);
		assert_int_equal(core_rig_end(rig, r), -ECANCELED);
		io_fault_clear(&rig->fault);
	}
	assert_null(scratch_find(dest, "manifest.json"));
	rig->core.config.read_only = false;
}

/* An index that somebody asked for is kept, the first one of two, and given back with the restore. */
static void test_looked(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = &s->rank[0];

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	rig->core.config.many = 1;
	rig->core.config.read_only = true;
	struct ckpt_restore *r = core_rig_begin(rig, 1, CKPT_SINK_MEMORY, NULL);
	core_rig_run(rig);
	assert_null(ckpt_restore_rank_index(r, 1));
	struct ckpt_index *none = ckpt_alloc(sizeof(*none));
	struct ckpt_index *first = ckpt_alloc(sizeof(*first));
	struct ckpt_index *second = ckpt_alloc(sizeof(*second));
	core_rig_count_allocations(rig, 1);
	assert_int_equal(ckpt_restore_put_index(r, 1, none), -ENOMEM);
	assert_int_equal(core_rig_allocations(rig), 1);
	assert_int_equal(ckpt_restore_put_index(r, 1, first), 0);
	assert_int_equal(ckpt_restore_put_index(r, 1, second), 0);
	assert_ptr_equal(ckpt_restore_rank_index(r, 1), first);
	assert_null(ckpt_restore_rank_index(r, 0));
	ckpt_restore_post_cancel(r);
	core_rig_run(rig);
	assert_int_equal(core_rig_end(rig, r), -ECANCELED);
	rig->core.config.read_only = false;
}

/* A copy fails for its catalog as for any other file, and takes it back when something else fails. */
static void test_copy_fails(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = &s->rank[0];

	rank_rig_open_all(s, WORLD, WORLD, 60000);
	named_save(s, WORLD, 1, 1000);
	const char *dest = scratch_join(s->dir, "copy");
	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = ".catalog", .error = -ENOSPC});
	assert_int_equal(core_rig_export(rig, 1, dest), -ENOSPC);
	io_fault_clear(&rig->fault);
	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .nth = 1, .error = -EIO});
	assert_int_equal(core_rig_export(rig, 1, dest), -EIO);
	io_fault_clear(&rig->fault);
	assert_null(scratch_find(dest, ".catalog"));
	assert_int_equal(core_rig_export(rig, 1, dest), 0);
	assert_non_null(scratch_find(dest, ".catalog"));
	/* What another step there names stays, whatever becomes of this one. */
	named_save(s, WORLD, 2, 1000);
	(void)io_fault_add(
		&rig->fault, (struct io_fault_rule){
				     .op = CKPT_IO_OP_WRITE, .path = ".catalog", .error = -ENOSPC});
	assert_int_equal(core_rig_export(rig, 2, dest), -ENOSPC);
	assert_non_null(scratch_find(dest, ".catalog"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_one_for_a_layout, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_one_for_a_generation, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_none_for_a_generation, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_none_for_an_unknown_layout, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_none, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_no_memory, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(
			test_roads_without_memory, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_looked, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_given_up, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_copy_fails, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_swept, rank_rig_setup, rank_rig_teardown),
		cmocka_unit_test_setup_teardown(test_not_swept, rank_rig_setup, rank_rig_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
