/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of very many ranks, of which the catalog says who holds what: what arrives is the same as if all indexes
 * had been read, and only those are read that are needed. A catalog that is gone, damaged, or wrong costs time and
 * nothing else; and neither does one copy of several that is bad.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/restore/index_reader.h"
#include "engine/restore/restore_state.h"
#include "lib/hang_inbox.h"
#include "lib/rig.h"
#include "lib/scratch.h"
#include "lib/sharded_fixture.h"

#define BLOCK UINT32_C(65536)

struct scene {
	char *dir;
	struct rig rig;
	struct sharded sharded;
};

static void make_scene(struct scene *s, struct prng *d, uint32_t world, uint32_t lie)
{
	struct rig_config config = {.block_bytes = BLOCK, .slots = CKPT_POOL_SLOTS_MIN, .many = 1};

	s->dir = scratch_make_in_memory();
	fixture_begin(s->dir);
	sharded_make(&s->sharded, d, world, 2 + prng_below(d, 30));
	sharded_commit_cataloged(&s->sharded, s->dir, 10, 1 + prng_below(d, 6000), lie);
	config.dir = s->dir;
	rig_open(&s->rig, &config);
}

static void end_scene(struct scene *s)
{
	rig_close(&s->rig);
	sharded_clear(&s->sharded);
	scratch_remove(s->dir);
}

/* The only catalog of the store. */
static const char *catalog_of(const struct scene *s)
{
	const char *path = scratch_find(s->dir, ".catalog");

	assert_non_null(path);
	return path;
}

static uint32_t indexes_read(const struct ckpt_restore *r)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < ckpt_restore_rank_count(r); i++)
		count += r->load.indexes[i] != NULL;
	return count;
}

/* Binds so many things, in one call or in several; whether all that they hold is held by more than rank `bad`. */
static void want(struct scene *s, struct prng *d, struct ckpt_restore *r,
	struct sharded_goal *goals, size_t count)
{
	struct ckpt_error err = {.size = sizeof(err)};

	for (size_t i = 0; i < count; i++) {
		sharded_want(&s->sharded, d, (size_t)prng_below(d, SHARDED_TENSORS), &goals[i]);
		if (ckpt_restore_add_targets(r, &goals[i].target, 1, &err) < 0)
			fail_msg("%s", err.message);
	}
}

static void check_got(struct sharded_goal *goals, size_t count)
{
	for (size_t i = 0; i < count; i++)
		assert_true(sharded_got(&goals[i]));
}

static void forget(struct sharded_goal *goals, size_t count)
{
	for (size_t i = 0; i < count; i++)
		sharded_forget(&goals[i]);
}

static void check_names(const struct scene *s, const struct ckpt_restore *r)
{
	size_t index = 0;
	struct ckpt_tensor_info info = {.size = sizeof(info)};

	assert_int_equal(ckpt_restore_name_count(r), SHARDED_TENSORS + 1);
	for (size_t i = 0; i < SHARDED_TENSORS; i++) {
		const struct sharded_tensor *t = &s->sharded.tensors[i];
		assert_int_equal(ckpt_restore_name_find(r, t->name, NULL, &index), 0);
		assert_int_equal(ckpt_restore_name(r, index, &info), 0);
		assert_string_equal(info.name, t->name);
		assert_int_equal(info.dtype, t->dtype);
		assert_int_equal(info.ndim, t->ndim);
		assert_memory_equal(info.shape, t->shape, t->ndim * sizeof(*t->shape));
		assert_int_equal(info.nbytes, t->bytes);
		assert_int_equal(info.pieces, 0);
		assert_true(info.offset == UINT64_MAX);
		assert_int_not_equal(s->sharded.pieces[info.rank][i].box.ndim, SHARDED_NONE);
		for (uint32_t k = 0; k < info.rank; k++)
			assert_int_equal(s->sharded.pieces[k][i].box.ndim, SHARDED_NONE);
	}
	assert_int_equal(ckpt_restore_name_find(r, "tied", NULL, &index), 0);
	assert_int_equal(ckpt_restore_name(r, index, &info), 0);
	assert_string_equal(info.alias_of, s->sharded.tensors[0].name);
	assert_int_equal(ckpt_restore_name_find(r, "nobody", NULL, &index), CKPT_EMISMATCH);
}

static void test_any_cut_any_box(void **state)
{
	uint32_t fewer = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct prng d = {seed};
		struct scene s = {0};
		struct sharded_goal goals[40];
		size_t count = 1 + (size_t)prng_below(&d, prng_below(&d, 2) ? COUNT(goals) : 3);

		make_scene(&s, &d, 2 + (uint32_t)prng_below(&d, SHARDED_WORLD_MAX - 1), 0);
		struct ckpt_restore *r = rig_restore(&s.rig, 10);
		assert_non_null(r->load.catalog_map);
		assert_int_equal(indexes_read(r), 0);
		check_names(&s, r);
		want(&s, &d, r, goals, count);
		assert_int_equal(rig_run(r), 0);
		check_got(goals, count);
		assert_false(r->load.wide);
		fewer += indexes_read(r) < s.sharded.world;
		/* No index was read in vain. */
		for (uint32_t i = 0; i < s.sharded.world; i++)
			assert_true(!r->load.indexes[i] || r->load.binder.ranks[i].count > 0);
		rig_free(r);
		forget(goals, count);
		end_scene(&s);
	}
	assert_true(fewer > 50);
}

/* Nothing is wanted, and nothing is read. */
static void test_nothing_wanted(void **state)
{
	struct prng d = {1};
	struct scene s = {0};

	(void)state;
	make_scene(&s, &d, 5, 0);
	struct ckpt_restore *r = rig_restore(&s.rig, 10);
	assert_int_equal(rig_run(r), 0);
	assert_int_equal(indexes_read(r), 0);
	rig_free(r);
	end_scene(&s);
}

/* What nobody holds is refused when it is bound, as where all indexes are read. */
static void test_refused_when_bound(void **state)
{
	struct prng d = {1};
	struct scene s = {0};
	struct ckpt_error err = {.size = sizeof(err)};
	int64_t element = 0;
	struct ckpt_target target = {
		.size = sizeof(target), .name = "nobody", .data = &element, .length = 1};

	(void)state;
	make_scene(&s, &d, 5, 0);
	struct ckpt_restore *r = rig_restore(&s.rig, 10);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &err), CKPT_EMISMATCH);
	target.name = s.sharded.tensors[0].name;
	target.dtype = s.sharded.tensors[0].dtype == CKPT_F32 ? CKPT_I64 : CKPT_F32;
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &err), CKPT_EMISMATCH);
	assert_int_equal(rig_run(r), 0);
	assert_int_equal(indexes_read(r), 0);
	rig_free(r);
	end_scene(&s);
}

enum harm { GONE, FLIPPED, SHORTENED, LONGER, HARMS };

static void harm_catalog(const struct scene *s, struct prng *d, enum harm harm)
{
	char path[1024];
	long bytes;

	(void)snprintf(path, sizeof(path), "%s", catalog_of(s));
	FILE *f = fopen(path, "r+b");
	assert_non_null(f);
	assert_int_equal(fseek(f, 0, SEEK_END), 0);
	bytes = ftell(f);
	if (harm == LONGER)
		assert_int_equal(fputc('x', f), 'x');
	if (harm == SHORTENED)
		assert_int_equal(ftruncate(fileno(f), (off_t)prng_below(d, (uint64_t)bytes)), 0);
	assert_int_equal(fclose(f), 0);
	if (harm == GONE)
		assert_int_equal(unlink(path), 0);
	if (harm == FLIPPED)
		scratch_flip(path, (long)prng_below(d, (uint64_t)bytes));
}

static void test_bad_catalog(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 120; seed++) {
		struct prng d = {seed};
		struct scene s = {0};
		struct sharded_goal goals[8];

		make_scene(&s, &d, 2 + (uint32_t)prng_below(&d, 8), 0);
		harm_catalog(&s, &d, (enum harm)(seed % HARMS));
		struct ckpt_restore *r = rig_restore(&s.rig, 10);
		assert_null(r->load.catalog_map);
		assert_true(rig_logged(&s.rig, CKPT_LOG_WARN, "indexes of all"));
		want(&s, &d, r, goals, COUNT(goals));
		assert_int_equal(rig_run(r), 0);
		check_got(goals, COUNT(goals));
		assert_int_equal(access(fixture_quarantine(&s.sharded.step), F_OK), -1);
		rig_free(r);
		forget(goals, COUNT(goals));
		end_scene(&s);
	}
}

/* What an index says counts, and not what a catalog says of it. */
static void test_lying_catalog(void **state)
{
	uint32_t wide = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct prng d = {seed};
		struct scene s = {0};
		struct sharded_goal goals[4];

		make_scene(&s, &d, 3 + (uint32_t)prng_below(&d, 8), 1);
		struct ckpt_restore *r = rig_restore(&s.rig, 10);
		want(&s, &d, r, goals, COUNT(goals));
		assert_int_equal(rig_run(r), 0);
		check_got(goals, COUNT(goals));
		wide += r->load.wide;
		assert_true(!r->load.wide || indexes_read(r) == s.sharded.world);
		rig_free(r);
		forget(goals, COUNT(goals));
		end_scene(&s);
	}
	assert_true(wide > 100);
}

/*
 * By the catalog it is smaller than by the indexes: whoever has made room for it by what he was told is given no byte
 * that has no room.
 */
static void test_shrunk(void **state)
{
	static const int64_t shape = 100;
	float data[100];
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_tensor_info info = {.size = sizeof(info)};
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = &shape,
		.data = data};
	struct rig_config config = {.block_bytes = BLOCK, .slots = CKPT_POOL_SLOTS_MIN, .many = 1};
	struct scene s = {.dir = scratch_make_in_memory()};
	struct fixture_step step = {.dir = s.dir,
		.generation = 1,
		.step = 10,
		.tensors = &tensor,
		.count = 1,
		.chunk_bytes = 4096,
		.world = 3,
		.catalog = true,
		.shrunk = true};

	(void)state;
	for (size_t i = 0; i < COUNT(data); i++)
		data[i] = (float)i;
	fixture_begin(s.dir);
	fixture_commit(&step);
	config.dir = s.dir;
	config.read_only = true;
	rig_open(&s.rig, &config);
	struct ckpt_restore *r = rig_restore(&s.rig, 10);
	assert_int_equal(ckpt_restore_name(r, 0, &info), 0);
	assert_int_equal(info.nbytes, 99 * sizeof(float));
	/* Behind its end nothing may be written: a sanitizer sees it. */
	struct ckpt_target target = {
		.size = sizeof(target), .name = "w", .data = malloc(info.nbytes)};
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &err), 0);
	assert_int_equal(rig_run(r), CKPT_EFORMAT);
	assert_non_null(strstr(ckpt_restore_failure(r)->message, "remove the catalog"));
	rig_free(r);
	rig_close(&s.rig);
	scratch_remove(s.dir);
	free(target.data);
}

/* A shard is gone: what others hold too arrives all the same, though their indexes were not read at first. */
static void test_bad_copy(void **state)
{
	unsigned widened = 0;
	unsigned refused = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		struct prng d = {seed};
		struct sharded_goal goals[3];
		struct scene s = {0};
		bool copied = true;

		make_scene(&s, &d, 2 + (uint32_t)prng_below(&d, 6), 0);
		uint32_t bad = (uint32_t)prng_below(&d, s.sharded.world);
		assert_int_equal(unlink(fixture_shard(&s.sharded.step, bad)), 0);
		struct ckpt_restore *r = rig_restore(&s.rig, 10);
		want(&s, &d, r, goals, COUNT(goals));
		for (size_t i = 0; i < COUNT(goals); i++)
			copied = copied &&
				 sharded_has_copy(&s.sharded,
					 (size_t)(goals[i].tensor - s.sharded.tensors), bad);
		int code = rig_run(r);
		assert_true(code == 0 || code == CKPT_EINCOMPLETE);
		assert_true(code == 0 || !copied);
		if (code == 0)
			check_got(goals, COUNT(goals));
		assert_int_equal(access(fixture_quarantine(&s.sharded.step), F_OK), code ? 0 : -1);
		widened += code == 0 && r->load.wide;
		refused += code < 0;
		rig_free(r);
		forget(goals, COUNT(goals));
		end_scene(&s);
	}
	assert_true(widened > 10 && refused > 10);
}

/* The index of a rank that is needed is damaged: the step is, too. */
static void test_bad_index(void **state)
{
	unsigned found = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct prng d = {seed};
		struct sharded_goal goal;
		struct scene s = {0};

		make_scene(&s, &d, 2 + (uint32_t)prng_below(&d, 6), 0);
		uint32_t bad = (uint32_t)prng_below(&d, s.sharded.world);
		scratch_flip(fixture_index(&s.sharded.step, bad), 20);
		struct ckpt_restore *r = rig_restore(&s.rig, 10);
		want(&s, &d, r, &goal, 1);
		int code = rig_run(r);
		assert_true(code == 0 || code == CKPT_EINTEGRITY);
		assert_true(code == 0 || ckpt_restore_failure(r)->rank == (int32_t)bad);
		if (code == 0)
			check_got(&goal, 1);
		found += code < 0;
		rig_free(r);
		forget(&goal, 1);
		end_scene(&s);
	}
	assert_true(found > 5);
}

static int look_up(struct scene *s, struct ckpt_restore *r, uint32_t rank, char *out, size_t size)
{
	struct ckpt_command *command = ckpt_command_new(
		&s->rig.core, sizeof(struct ckpt_index_reader), ckpt_index_reader_clear);
	struct ckpt_index_reader *index_reader =
		CKPT_CONTAINER(command, struct ckpt_index_reader, command);

	assert_non_null(command);
	index_reader->restore = ckpt_restore_ref(r);
	index_reader->rank = rank;
	ckpt_command_post(command, ckpt_index_reader_body);
	await_latch(&command->latch, CKPT_DONE_END);
	int code = command->result;
	if (code == 0) {
		assert_int_equal(ckpt_restore_put_index(r, rank, index_reader->index), 0);
		index_reader->index = NULL;
		(void)snprintf(out, size, "%s", ckpt_restore_rank_index(r, rank)->meta);
	}
	ckpt_command_unref(command);
	return code;
}

/* To another attempt than the manifest names. */
static void rename_index(const struct scene *s, uint32_t rank)
{
	const struct fixture_step *step = &s->sharded.step;
	char path[CKPT_PATH_MAX];

	ckpt_name_index(path, step->generation, step->step, rank, "00000000000000ff");
	assert_int_equal(rename(fixture_index(step, rank), scratch_join(step->dir, path)), 0);
}

/* What stands beside the tensors of any rank is had when it is asked for, also while tensors are read. */
static void test_meta(void **state)
{
	struct prng d = {7};
	struct scene s = {0};
	struct sharded_goal goals[5];
	char meta[64];

	(void)state;
	make_scene(&s, &d, 9, 0);
	scratch_flip(fixture_index(&s.sharded.step, 8), 20);
	/* Two were repaired. */
	rename_index(&s, 3);
	rename_index(&s, 5);
	struct ckpt_restore *r = rig_restore(&s.rig, 10);
	for (uint32_t i = 0; i < 4; i++) {
		assert_null(ckpt_restore_rank_index(r, i));
		assert_int_equal(look_up(&s, r, i, meta, sizeof(meta)), 0);
		assert_string_equal(meta, s.sharded.metas[i]);
	}
	/* Twice: the first one stays, as its text may be in use. */
	const struct ckpt_index *first = ckpt_restore_rank_index(r, 2);
	assert_int_equal(look_up(&s, r, 2, meta, sizeof(meta)), 0);
	assert_ptr_equal(ckpt_restore_rank_index(r, 2), first);
	assert_int_equal(look_up(&s, r, 8, meta, sizeof(meta)), CKPT_EINTEGRITY);
	want(&s, &d, r, goals, COUNT(goals));
	ckpt_restore_post_start(r);
	for (uint32_t i = 4; i < 8; i++) {
		assert_int_equal(look_up(&s, r, i, meta, sizeof(meta)), 0);
		assert_string_equal(meta, s.sharded.metas[i]);
	}
	(void)rig_wait(r);
	rig_free(r);
	forget(goals, COUNT(goals));
	end_scene(&s);
}

/* A finding of the only file that is wrong: the catalog; and rank, of the first that it is wrong about. */
static void check_verify(struct scene *s, int code, int32_t rank)
{
	struct ckpt_restore *r = rig_verify(&s->rig, 10);

	int got = rig_wait(r);
	const struct ckpt_finding *first = NULL;
	for (size_t i = 0; i < ckpt_restore_finding_count(r) && !first; i++)
		if (ckpt_restore_finding(r, i)->error.code != 0)
			first = ckpt_restore_finding(r, i);
	/* What was its version or its lengths says something else now. */
	if (code == CKPT_EINTEGRITY && (got == CKPT_EFORMAT || got == CKPT_EVERSION))
		code = got;
	assert_int_equal(got, code);
	if (code < 0) {
		assert_non_null(first);
		assert_int_equal(first->error.code, code);
		assert_non_null(strstr(first->error.file, ".catalog"));
		assert_int_equal(first->error.rank, rank);
	}
	rig_free(r);
}

/* The first and the last rank hold different things. */
static bool ends_differ(const struct scene *s)
{
	for (size_t i = 0; i < SHARDED_TENSORS; i++) {
		const struct ckpt_box *a = &s->sharded.pieces[0][i].box;
		const struct ckpt_box *b = &s->sharded.pieces[s->sharded.world - 1][i].box;

		if (a->ndim != b->ndim)
			return true;
		for (uint32_t d = 0; a->ndim != SHARDED_NONE && d < a->ndim; d++)
			if (a->start[d] != b->start[d] || a->shape[d] != b->shape[d])
				return true;
	}
	return false;
}

/* Wherever it is damaged that is found, and what it says of every rank is compared; one that is gone is no damage. */
static void test_verify(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 80; seed++) {
		struct prng d = {seed};
		struct scene s = {0};
		enum harm harm = (enum harm)(seed % HARMS);

		make_scene(&s, &d, 2 + (uint32_t)prng_below(&d, 6), 0);
		check_verify(&s, 0, -1);
		harm_catalog(&s, &d, harm);
		check_verify(&s, harm == GONE ? 0 : CKPT_EINTEGRITY, -1);
		end_scene(&s);
	}
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct prng d = {seed};
		struct scene s = {0};

		make_scene(&s, &d, 3 + (uint32_t)prng_below(&d, 6), 1);
		check_verify(&s, CKPT_EFORMAT, 0);
		end_scene(&s);
	}
	/* The last one is compared as well. */
	unsigned lies = 0;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct prng d = {seed};
		struct scene s = {0};
		uint32_t world = 2 + (uint32_t)(seed % 6);

		make_scene(&s, &d, world, world);
		lies += ends_differ(&s);
		check_verify(&s, ends_differ(&s) ? CKPT_EFORMAT : 0, (int32_t)world - 1);
		end_scene(&s);
	}
	assert_true(lies > 10);
}

static int export_to(struct scene *s, const char *dest)
{
	struct ckpt_restore *r = rig_export(&s->rig, 10, dest);
	int code = rig_wait(r);

	rig_free(r);
	return code;
}

/* It goes along when it is good, and what a copy lacks makes it no worse. */
static void test_export(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct prng d = {seed};
		struct scene s = {0};
		char *dest = scratch_make_in_memory();
		struct rig_config config = {.dir = dest,
			.block_bytes = BLOCK,
			.slots = CKPT_POOL_SLOTS_MIN,
			.many = 1,
			.read_only = true};
		bool harmed = seed % 2;

		make_scene(&s, &d, 2 + (uint32_t)prng_below(&d, 6), 0);
		if (harmed)
			harm_catalog(&s, &d, (enum harm)(seed / 2 % HARMS));
		assert_int_equal(export_to(&s, dest), 0);
		assert_true((scratch_find(dest, ".catalog") == NULL) == harmed);
		rig_close(&s.rig);
		rig_open(&s.rig, &config);
		check_verify(&s, 0, -1);
		struct ckpt_restore *r = rig_restore(&s.rig, 10);
		assert_true((r->load.catalog_map == NULL) == harmed);
		rig_free(r);
		end_scene(&s);
		scratch_remove(dest);
	}
}

/* One that comes to nothing leaves nothing of it; one that was there already stays. */
static void test_export_undone(void **state)
{
	struct prng d = {3};
	struct scene s = {0};
	char *dest = scratch_make_in_memory();

	(void)state;
	make_scene(&s, &d, 4, 0);
	assert_int_equal(export_to(&s, dest), 0);
	const char *copy = scratch_find(dest, "manifest.json");
	assert_int_equal(unlink(copy), 0);
	assert_int_equal(export_to(&s, dest), 0);
	assert_non_null(scratch_find(dest, ".catalog"));
	scratch_flip(fixture_shard(&s.sharded.step, 3), 20);
	/* What is whole there is not read again. */
	assert_int_equal(unlink(scratch_find(dest, fixture_index_name(&s.sharded.step, 3))), 0);
	assert_int_equal(unlink(scratch_find(dest, fixture_shard_name(&s.sharded.step, 3))), 0);
	assert_int_equal(unlink(scratch_find(dest, "manifest.json")), 0);
	assert_int_equal(export_to(&s, dest), CKPT_EINTEGRITY);
	assert_non_null(scratch_find(dest, ".catalog"));
	assert_null(scratch_find(dest, "manifest.json"));
	end_scene(&s);
	scratch_remove(dest);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_cut_any_box),
		cmocka_unit_test(test_nothing_wanted),
		cmocka_unit_test(test_refused_when_bound),
		cmocka_unit_test(test_bad_catalog),
		cmocka_unit_test(test_lying_catalog),
		cmocka_unit_test(test_shrunk),
		cmocka_unit_test(test_bad_copy),
		cmocka_unit_test(test_bad_index),
		cmocka_unit_test(test_meta),
		cmocka_unit_test(test_verify),
		cmocka_unit_test(test_export),
		cmocka_unit_test(test_export_undone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
