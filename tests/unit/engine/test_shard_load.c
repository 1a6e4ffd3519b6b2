/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that many ranks wrote: what arrives is what one would have written, whoever holds which part
 * and whatever is wanted of it; nothing is read that is not needed; and what is wrong with a rank is
 * found and said.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/dtype.h"
#include "lib/rig.h"
#include "lib/scratch.h"
#include "lib/sharded_fixture.h"
#include "lib/slice.h"

#define BLOCK  UINT32_C(65536)
#define SLICES 3

struct scene {
	char *dir;
	bool sharing; /* on a real disk, beside other ranks of this node */
	struct rig rig;
	struct sharded sharded;
};

static void open_rig(struct scene *s)
{
	struct rig_config config = {.dir = s->dir,
		.block_bytes = BLOCK,
		.slots = CKPT_POOL_SLOTS_MIN,
		.sharing = s->sharing};

	rig_open(&s->rig, &config);
}

typedef void make_fn(struct sharded *sharded, struct prng *prng, uint32_t world, uint64_t size);

/* A store with step 10 of so many ranks, and a rig on it. */
static void make_scene(struct scene *s, struct prng *d, make_fn *make, uint32_t world,
	uint64_t size, uint64_t chunk_bytes)
{
	s->dir = s->sharing ? scratch_make() : scratch_make_in_memory();
	fixture_begin(s->dir);
	make(&s->sharded, d, world, size);
	sharded_commit(&s->sharded, s->dir, 10, chunk_bytes);
	open_rig(s);
}

static void end_scene(struct scene *s)
{
	rig_close(&s->rig);
	sharded_clear(&s->sharded);
	scratch_remove(s->dir);
}

/* Marks the bytes that rank `rank` holds of what the goal wants. */
static void mark(const struct sharded *s, const struct sharded_goal *g, uint32_t rank,
	const struct ckpt_layout *layout, char *marks)
{
	const struct ckpt_entry *e = ckpt_layout_find(layout, g->tensor->name);
	struct ckpt_box both;

	if (!e)
		return;
	uint32_t item = ckpt_dtype_bytes(e->dtype);
	const struct ckpt_box *piece = &s->pieces[rank][g->tensor - s->tensors].box;
	if (!ckpt_box_meet(piece, &g->box, &both))
		return;
	for (uint64_t n = 0; n < ckpt_box_volume(&both); n++) {
		uint64_t left = n;
		uint64_t place = 0;
		uint64_t step = 1;
		for (uint32_t i = both.ndim; i-- > 0;) {
			int64_t at = both.start[i] + (int64_t)(left % (uint64_t)both.shape[i]);
			left /= (uint64_t)both.shape[i];
			place += (uint64_t)(at - piece->start[i]) * step;
			step *= (uint64_t)piece->shape[i];
		}
		memset(marks + e->offset + place * item, 1, item);
	}
}

/* Bytes of the chunks that hold something wanted, whichever rank they are of; and their number. */
static uint64_t needed(const struct scene *s, const struct ckpt_restore *r,
	const struct sharded_goal *goals, size_t count, size_t *ret_chunks)
{
	uint64_t bytes = 0;

	for (uint32_t rank = 0; rank < s->sharded.world; rank++) {
		const struct ckpt_layout *l = ckpt_restore_rank_index(r, rank)->layout;
		char *marks = calloc(1, l->bytes);
		for (size_t i = 0; i < count; i++)
			mark(&s->sharded, &goals[i], rank, l, marks);
		for (size_t i = 0; i < l->chunk_count; i++)
			if (memchr(marks + l->chunks[i].offset, 1, l->chunks[i].length)) {
				bytes += l->chunks[i].length;
				*ret_chunks += 1;
			}
		free(marks);
	}
	return bytes;
}

static void check_names(const struct scene *s, const struct ckpt_restore *r)
{
	size_t index = 0;
	struct ckpt_tensor_info info = {.size = sizeof(info)};

	assert_int_equal(ckpt_restore_rank_count(r), s->sharded.world);
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
		assert_true(info.pieces >= 1 && info.pieces <= s->sharded.world);
		assert_null(info.alias_of);
	}
	assert_int_equal(ckpt_restore_name_find(r, "tied", NULL, &index), 0);
	assert_int_equal(ckpt_restore_name(r, index, &info), 0);
	assert_string_equal(info.alias_of, s->sharded.tensors[0].name);
	assert_memory_equal(info.shape, s->sharded.tensors[0].shape,
		s->sharded.tensors[0].ndim * sizeof(int64_t));
	for (uint32_t i = 0; i < s->sharded.world; i++)
		assert_string_equal(ckpt_restore_rank_index(r, i)->meta, s->sharded.metas[i]);
}

/* Wants so many things of the step at once. */
static void read_back(struct scene *s, struct prng *d, size_t count)
{
	struct sharded_goal *goals = calloc(count, sizeof(*goals));
	struct ckpt_target *targets = calloc(count, sizeof(*targets));
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_restore *r = rig_restore(&s->rig, 10);
	bool once = true;
	uint64_t done;
	uint64_t total;

	check_names(s, r);
	for (size_t i = 0; i < count; i++) {
		sharded_want(&s->sharded, d, (size_t)prng_below(d, SHARDED_TENSORS), &goals[i]);
		targets[i] = goals[i].target;
		once = once && goals[i].tensor->once;
	}
	if (ckpt_restore_add_targets(r, targets, count, &err) < 0)
		fail_msg("%s", err.message);
	size_t chunks = 0;
	uint64_t most = needed(s, r, goals, count, &chunks);
	size_t before = atomic_load(&s->rig.io.read_bytes);
	assert_int_equal(rig_run(r), 0);
	size_t read = atomic_load(&s->rig.io.read_bytes) - before;
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(done, total);
	assert_true(once ? total == most : total <= most);
	/*
	 * A request reaches from one line of the disk to another; one that reaches past the end of its file
	 * is made again for what is not there.
	 */
	assert_true(read >= total && read <= total + (chunks + s->sharded.world) * 2 * 4096);
	for (size_t i = 0; i < count; i++) {
		assert_true(sharded_got(&goals[i]));
		sharded_forget(&goals[i]);
	}
	rig_free(r);
	free(goals);
	free(targets);
}

static void test_any_cut_any_box(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 150; seed++) {
		if (!slice_turn(seed, SLICES))
			continue;
		struct prng d = {seed};
		struct scene s = {0};
		uint32_t world = 1 + (uint32_t)prng_below(&d, SHARDED_WORLD_MAX);

		make_scene(&s, &d, sharded_make, world, 2 + prng_below(&d, 30),
			1 + prng_below(&d, 6000));
		read_back(&s, &d, 1);
		read_back(&s, &d, 1 + prng_below(&d, 40));
		read_back(&s, &d, 1 + prng_below(&d, 6));
		end_scene(&s);
	}
}

/* Larger than a block, so that boxes go through many of them, with chunks that cross their ends. */
static void test_many_blocks(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 12; seed++) {
		if (!slice_turn(seed, SLICES))
			continue;
		struct prng d = {seed};
		struct scene s = {0};

		make_scene(&s, &d, sharded_make, 1 + (uint32_t)prng_below(&d, 6),
			160 + prng_below(&d, 100), 1000 + prng_below(&d, 60000));
		read_back(&s, &d, 1 + prng_below(&d, 4));
		read_back(&s, &d, 20);
		end_scene(&s);
	}
}

/*
 * Rows that are longer than a chunk, and blocks that none of their ends keeps to: the chunk across the end
 * of a block may be one that no box touches, though the boxes go on behind it.
 */
static void test_gaps_larger_than_chunks(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		if (!slice_turn(seed, SLICES))
			continue;
		struct prng d = {seed};
		struct scene s = {0};

		make_scene(&s, &d, sharded_make_wide, 1 + (uint32_t)prng_below(&d, 4), 200000,
			3000 + prng_below(&d, 20000));
		for (int i = 0; i < 4; i++)
			read_back(&s, &d, 1);
		read_back(&s, &d, 1 + prng_below(&d, 10));
		end_scene(&s);
	}
}

/* A shard is gone, or one of its bytes has changed: what others hold too arrives all the same. */
static void test_bad_copy(void **state)
{
	unsigned spared = 0;
	unsigned refused = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		struct prng d = {seed};
		struct ckpt_error err = {.size = sizeof(err)};
		struct sharded_goal goals[5];
		struct scene s = {0};
		bool copied = true;

		make_scene(&s, &d, sharded_make, 2 + (uint32_t)prng_below(&d, 6),
			2 + prng_below(&d, 30), 1 + prng_below(&d, 6000));
		uint32_t bad = (uint32_t)prng_below(&d, s.sharded.world);
		struct ckpt_restore *r = rig_restore(&s.rig, 10);
		const struct ckpt_layout *l = ckpt_restore_rank_index(r, bad)->layout;
		uint64_t data = l->bytes - l->header_bytes;
		const char *file = fixture_shard(&s.sharded.step, bad);
		if (prng_below(&d, 2) || data == 0)
			assert_int_equal(unlink(file), 0);
		else
			scratch_flip(file, (size_t)(l->header_bytes + prng_below(&d, data)));
		for (size_t i = 0; i < COUNT(goals); i++) {
			size_t tensor = (size_t)prng_below(&d, SHARDED_TENSORS);
			sharded_want(&s.sharded, &d, tensor, &goals[i]);
			copied = copied && sharded_has_copy(&s.sharded, tensor, bad);
			assert_int_equal(ckpt_restore_add_targets(r, &goals[i].target, 1, &err), 0);
		}
		int code = rig_run(r);
		assert_true(code == 0 || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE);
		assert_true(code == 0 || !copied);
		assert_int_equal(access(fixture_quarantine(&s.sharded.step), F_OK), code ? 0 : -1);
		spared +=
			code == 0 && rig_logged(&s.rig, CKPT_LOG_WARN, "other ranks have the same");
		refused += code < 0;
		for (size_t i = 0; i < COUNT(goals); i++) {
			assert_true(code < 0 || sharded_got(&goals[i]));
			sharded_forget(&goals[i]);
		}
		rig_free(r);
		end_scene(&s);
	}
	assert_true(spared > 10 && refused > 10);
}

/* The first columns of a matrix whose rows are larger than a block. */
static void test_few_columns(void **state)
{
	static const int64_t shape[] = {4, 50000};
	static const int64_t start[] = {0, 0};
	static const int64_t wanted[] = {4, 10};
	float *data = calloc(4 * 50000, sizeof(*data));
	float got[40];
	struct ckpt_error err = {.size = sizeof(err)};
	struct scene s = {.dir = scratch_make_in_memory()};
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = shape,
		.data = data};
	struct fixture_step step = {.dir = s.dir,
		.generation = 1,
		.step = 10,
		.tensors = &tensor,
		.count = 1,
		.chunk_bytes = 16384,
		.world = 1};
	struct ckpt_target target = {.size = sizeof(target),
		.name = "w",
		.dtype = CKPT_F32,
		.data = got,
		.ndim = 2,
		.shape = wanted,
		.start = start};

	(void)state;
	for (int i = 0; i < 4 * 50000; i++)
		data[i] = (float)i;
	fixture_begin(s.dir);
	fixture_commit(&step);
	open_rig(&s);
	struct ckpt_restore *r = rig_restore(&s.rig, 10);
	if (ckpt_restore_add_targets(r, &target, 1, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(rig_run(r), 0);
	for (int i = 0; i < 40; i++)
		assert_true(got[i] == (float)(i / 10 * 50000 + i % 10));
	rig_free(r);
	rig_close(&s.rig);
	scratch_remove(s.dir);
	free(data);
}

/*
 * Beside other ranks of this node, on a disk that takes O_DIRECT: what they want too goes through the page
 * cache, what this one alone wants does not, and the same bytes arrive.
 */
static void test_beside_others(void **state)
{
	size_t cached = 0;
	size_t direct = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		if (!slice_turn(seed, SLICES))
			continue;
		struct prng d = {seed};
		struct scene s = {.sharing = true};

		make_scene(&s, &d, sharded_make, 1 + (uint32_t)prng_below(&d, 4),
			60 + prng_below(&d, 100), 1000 + prng_below(&d, 6000));
		if (!s.rig.core.parts.io->direct)
			print_message("no O_DIRECT here: everything goes through the page cache\n");
		read_back(&s, &d, 1);
		read_back(&s, &d, 1 + prng_below(&d, 40));
		size_t all = atomic_load(&s.rig.io.read_bytes);
		cached += atomic_load(&s.rig.io.cached_bytes);
		direct += all - atomic_load(&s.rig.io.cached_bytes);
		end_scene(&s);
	}
	assert_true(cached > 0);
	print_message("%zu bytes through the cache, %zu past it\n", cached, direct);
}

/* Bytes that go through the page cache when this range of "w" is read, and bytes that go past it. */
static void read_range(
	struct scene *s, const struct ckpt_target *target, size_t *ret_cached, size_t *ret_direct)
{
	struct ckpt_restore *r = rig_restore(&s->rig, 10);

	assert_int_equal(ckpt_restore_add_targets(r, target, 1, NULL), 0);
	size_t cached = atomic_load(&s->rig.io.cached_bytes);
	size_t all = atomic_load(&s->rig.io.read_bytes);
	assert_int_equal(rig_run(r), 0);
	*ret_cached = atomic_load(&s->rig.io.cached_bytes) - cached;
	*ret_direct = atomic_load(&s->rig.io.read_bytes) - all - *ret_cached;
	rig_free(r);
}

/* Of two blocks the one is read past the page cache, and the other one as those read it who want the rest. */
static void test_shared_blocks(void **state)
{
	enum { CHUNK = 12288, HEADER = 4096, COUNT_F32 = 50000 };
	static const int64_t shape[] = {COUNT_F32};
	struct scene s = {.dir = scratch_make(), .sharing = true};
	float *data = calloc(COUNT_F32, sizeof(*data));
	char *got = calloc(COUNT_F32, sizeof(*data));
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = shape,
		.data = data};
	struct fixture_step step = {.dir = s.dir,
		.generation = 1,
		.step = 10,
		.tensors = &tensor,
		.count = 1,
		.chunk_bytes = CHUNK,
		.world = 1};
	/* Five chunks to the end of the block, and a little of the one that begins there. */
	struct ckpt_target target = {
		.size = sizeof(target), .name = "w", .data = got, .length = 5 * CHUNK + 100};
	size_t cached;
	size_t direct;

	(void)state;
	fixture_begin(s.dir);
	fixture_commit(&step);
	open_rig(&s);
	assert_int_equal(HEADER + 5 * CHUNK, BLOCK);
	if (s.rig.core.parts.io->direct) {
		read_range(&s, &target, &cached, &direct);
		assert_int_equal(cached, CHUNK);
		assert_int_equal(direct, 5 * CHUNK);
		/* A little of the first one is another's, too: so are all that are read with it. */
		target.offset = 100;
		target.length -= 100;
		read_range(&s, &target, &cached, &direct);
		assert_int_equal(cached, 6 * CHUNK);
		assert_int_equal(direct, 0);
	}
	rig_close(&s.rig);
	scratch_remove(s.dir);
	free(got);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_cut_any_box),
		cmocka_unit_test(test_many_blocks),
		cmocka_unit_test(test_gaps_larger_than_chunks),
		cmocka_unit_test(test_few_columns),
		cmocka_unit_test(test_beside_others),
		cmocka_unit_test(test_shared_blocks),
		cmocka_unit_test(test_bad_copy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
