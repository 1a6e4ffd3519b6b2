/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing a step back into memory: what arrives, what is refused, and what is said about it. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/runtime/commands.h"
#include "lib/prng.h"
#include "lib/reading.h"

/* Every tensor, whole, by its name and by its alias. */
static void test_all(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	struct reading_copy copy;

	assert_int_equal(ckpt_restore_chosen_step(r), 30);
	assert_int_equal(ckpt_restore_chosen_generation(r), 1);
	assert_int_equal(ckpt_restore_name_count(r), READING_TENSORS + 1);
	assert_string_equal(ckpt_restore_index(r)->meta, "{\"step\":30}");
	reading_bind_all(t, r, &copy);
	assert_int_equal(rig_run(r), 0);
	reading_check_all(t, &copy, 30);
	uint64_t done;
	uint64_t total;
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(done, total);
	rig_free(r);
}

static void test_names(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 10);
	struct ckpt_tensor_info info;
	struct ckpt_error err = {.size = sizeof(err)};
	uint64_t offset = 0;
	size_t index;

	for (size_t i = 0; i < READING_TENSORS; i++) {
		assert_int_equal(ckpt_restore_name(r, i, &info), 0);
		assert_true(info.offset >= offset);
		assert_null(info.alias_of);
		assert_int_equal(ckpt_restore_name_find(r, info.name, NULL, &index), 0);
		assert_int_equal(index, i);
		offset = info.offset;
	}
	assert_int_equal(ckpt_restore_name(r, READING_TENSORS, &info), 0);
	assert_string_equal(info.name, "tied");
	assert_string_equal(info.alias_of, t->tensors[0].name);
	assert_int_equal(ckpt_restore_name_find(r, "tied", NULL, &index), 0);
	assert_int_equal(index, READING_TENSORS);
	assert_int_equal(ckpt_restore_name(r, READING_TENSORS + 1, &info), -ERANGE);
	assert_int_equal(ckpt_restore_name_find(r, "no", &err, &index), CKPT_EMISMATCH);
	assert_non_null(strstr(err.message, "'no'"));
	rig_free(r);
}

/* Of what lies between the chunks that are wanted nothing is read, be it in the same block. */
static void test_holes(void **state)
{
	struct reading *t = *state;

	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct prng d = {seed};
		struct ckpt_restore *r = rig_restore(&t->rig, 20);
		const struct ckpt_layout *layout = ckpt_restore_index(r)->layout;
		struct ckpt_target targets[6];
		char out[6][300];
		bool wanted[1024] = {false};
		uint64_t most = 0;
		size_t n = 1 + prng_below(&d, 6);

		for (size_t i = 0; i < n; i++) {
			const struct ckpt_entry *e = ckpt_layout_find(
				layout, prng_below(&d, 2) ? "bytes" : "embed.weight");
			uint64_t at = prng_below(&d, e->nbytes - 300);
			targets[i] = (struct ckpt_target){.size = sizeof(targets[i]),
				.name = e->name,
				.offset = at,
				.length = 1 + prng_below(&d, 300),
				.data = out[i]};
			size_t last = ckpt_layout_chunk_at(
				layout, e->offset + at + targets[i].length - 1);
			for (size_t k = ckpt_layout_chunk_at(layout, e->offset + at); k <= last;
				k++) {
				assert_true(k < COUNT(wanted));
				/* One request at most for each chunk, aligned at both ends. */
				if (!wanted[k])
					most += layout->chunks[k].length + 2 * 4096;
				wanted[k] = true;
			}
		}
		size_t before = atomic_load(&t->rig.io.read_bytes);
		assert_int_equal(ckpt_restore_add_targets(r, targets, n, NULL), 0);
		assert_int_equal(rig_run(r), 0);
		size_t read = atomic_load(&t->rig.io.read_bytes) - before;
		assert_true(read <= most);
		for (size_t i = 0; i < n; i++)
			assert_memory_equal(out[i],
				reading_bytes(t, targets[i].name, 20) + targets[i].offset,
				targets[i].length);
		rig_free(r);
	}
}

/* A few bytes need a few chunks, not the shard. */
static void test_range(void **state)
{
	struct reading *t = *state;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct prng d = {seed};
		struct ckpt_restore *r = rig_restore(&t->rig, 20);
		const struct ckpt_layout *layout = ckpt_restore_index(r)->layout;
		const struct ckpt_entry *e = &layout->entries[prng_below(&d, layout->entry_count)];
		uint64_t offset = prng_below(&d, e->nbytes + 1);
		uint64_t length = prng_below(&d, e->nbytes - offset + 1);
		uint64_t bytes = length ? length : e->nbytes - offset;
		char *out = malloc(bytes + 1);
		struct ckpt_target target = {.size = sizeof(target),
			.name = e->name,
			.offset = offset,
			.length = length,
			.data = out};
		struct ckpt_error err = {.size = sizeof(err)};
		size_t before = atomic_load(&t->rig.io.read_bytes);
		assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &err), 0);
		assert_int_equal(rig_run(r), 0);
		const char *from = reading_bytes(t, e->name, 20) + offset;
		assert_memory_equal(out, from, bytes);
		/* At most a chunk more at either end, and the alignment of the disk. */
		size_t read = atomic_load(&t->rig.io.read_bytes) - before;
		assert_true(read <= bytes + 2 * (uint64_t)(READING_CHUNK + 4096));
		assert_true(bytes == 0 || read >= bytes);
		rig_free(r);
		free(out);
	}
}

/* Rows and columns with gaps between them, which stay as they were. */
static void test_strided(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	const struct ckpt_tensor *w = &t->tensors[0];
	int64_t rows = w->shape[0];
	int64_t columns = w->shape[1];
	int64_t strides[2] = {1, rows + 3}; /* transposed */
	size_t room = (size_t)((columns - 1) * strides[1] + rows) * sizeof(float);
	float *out = malloc(room);
	const float *from = (const float *)(const void *)reading_bytes(t, w->name, 30);
	struct ckpt_target target = {.size = sizeof(target),
		.name = w->name,
		.dtype = w->dtype,
		.ndim = 2,
		.shape = w->shape,
		.strides = strides,
		.data = out};
	uint32_t gap;

	memset(out, 0x77, room);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, NULL), 0);
	assert_int_equal(rig_run(r), 0);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t k = 0; k < columns; k++)
			assert_memory_equal(
				&out[i + k * strides[1]], &from[i * columns + k], sizeof(float));
	for (int64_t k = 0; k + 1 < columns; k++)
		for (int64_t i = rows; i < strides[1]; i++) {
			memcpy(&gap, &out[i + k * strides[1]], sizeof(gap));
			assert_int_equal(gap, 0x77777777);
		}
	rig_free(r);
	free(out);
}

/* Nothing is bound: nothing is read, and all is well. */
static void test_nothing(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	size_t before = atomic_load(&t->rig.io.read_bytes);

	assert_int_equal(rig_run(r), 0);
	assert_int_equal(atomic_load(&t->rig.io.read_bytes), before);
	rig_free(r);
}

/* More restores at once than the pool has slots for: they take turns, and all end. */
static void test_many(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r[12];
	struct reading_copy copies[COUNT(r)];

	for (size_t i = 0; i < COUNT(r); i++) {
		r[i] = rig_restore(&t->rig, i % 2 ? 10 : 20);
		reading_bind_all(t, r[i], &copies[i]);
	}
	for (size_t i = 0; i < COUNT(r); i++)
		ckpt_restore_post_start(r[i]);
	for (size_t i = 0; i < COUNT(r); i++) {
		assert_int_equal(rig_wait(r[i]), 0);
		reading_check_all(t, &copies[i], i % 2 ? 10 : 20);
		rig_free(r[i]);
	}
}

/* Chunks longer than a slot are read all the same. */
static void test_long_chunks(void **state)
{
	struct reading *t = *state;
	struct fixture_step long_chunks = t->steps[2];
	struct reading_copy copy;

	long_chunks.step = 40;
	long_chunks.chunk_bytes = UINT64_C(3) * READING_BLOCK;
	reading_commit(t, &long_chunks);
	struct ckpt_restore *r = rig_restore(&t->rig, 40);
	reading_bind_all(t, r, &copy);
	assert_int_equal(rig_run(r), 0);
	reading_check_all(t, &copy, 40);
	rig_free(r);
}

static void test_which(void **state)
{
	struct reading *t = *state;
	static const struct {
		uint64_t asked;
		uint64_t step;
	} cases[] = {{CKPT_STEP_LATEST, 30}, {CKPT_STEP_BACK(0), 30}, {CKPT_STEP_BACK(1), 20},
		{CKPT_STEP_BACK(2), 10}, {CKPT_STEP_BACK(3), 0}, {20, 20}, {25, 0}, {35, 0}};

	/* An aborted step is no step. */
	fixture_abort(t->dir, 1, 35);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_restore *r = rig_restore(&t->rig, cases[i].asked);
		if (cases[i].step) {
			assert_int_equal(ckpt_restore_chosen_step(r), cases[i].step);
			assert_non_null(ckpt_restore_index(r));
		} else {
			assert_int_equal(rig_wait(r), CKPT_ENOSTEP);
			assert_null(ckpt_restore_index(r));
		}
		rig_free(r);
	}
}

/* Commits of a generation that was rolled back are never chosen. */
static void test_lineage(void **state)
{
	struct reading *t = *state;
	struct fixture_step branch = t->steps[0];

	fixture_claim(t->dir, FIXTURE_RUN, 2, 1, 20);
	struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	assert_int_equal(ckpt_restore_chosen_step(r), 20);
	rig_free(r);
	r = rig_restore(&t->rig, 30);
	assert_int_equal(rig_wait(r), CKPT_ENOSTEP);
	rig_free(r);
	branch.generation = 2;
	branch.step = 30;
	fixture_commit(&branch);
	r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	assert_int_equal(ckpt_restore_chosen_step(r), 30);
	assert_int_equal(ckpt_restore_chosen_generation(r), 2);
	rig_free(r);
}

/* What a byte turned over in a shard gives: the place, the tensor, no byte of the bad chunk, a note. */
static void flip_and_restore(struct reading *t, uint64_t seed)
{
	struct prng d = {seed};
	struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	const struct ckpt_layout *layout = ckpt_restore_index(r)->layout;
	uint64_t at = layout->header_bytes + prng_below(&d, layout->bytes - layout->header_bytes);
	const struct ckpt_chunk *chunk = &layout->chunks[ckpt_layout_chunk_at(layout, at)];
	const struct ckpt_error *err = ckpt_restore_failure(r);
	struct reading_copy copy;

	scratch_flip(fixture_shard(&t->steps[2], 0), (long)at);
	reading_bind_all(t, r, &copy);
	assert_int_equal(rig_run(r), CKPT_EINTEGRITY);
	assert_int_equal(err->code, CKPT_EINTEGRITY);
	assert_int_equal(err->offset, chunk->offset);
	assert_int_equal(err->step, 30);
	assert_int_equal(err->rank, 0);
	assert_string_equal(err->tier, "local");
	assert_string_equal(err->file, fixture_shard_name(&t->steps[2], 0));
	assert_string_equal(err->tensor, ckpt_layout_at(layout, chunk->offset)->name);
	assert_non_null(strstr(err->message, err->file));
	reading_check_untouched(&copy, layout, chunk);
	reading_free_copy(&copy);
	rig_free(r);
}

static void test_flip(void **state)
{
	struct reading *t = *state;

	for (uint64_t seed = 1; seed <= 25; seed++) {
		flip_and_restore(t, seed);
		assert_int_equal(access(fixture_quarantine(&t->steps[2]), F_OK), 0);
		assert_true(rig_logged(&t->rig, CKPT_LOG_ERROR, "quarantined"));
		struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
		assert_int_equal(ckpt_restore_chosen_step(r), 20);
		assert_true(rig_logged(&t->rig, CKPT_LOG_WARN, "skipped"));
		rig_free(r);
		/* By its number it is tried again, and fails again. */
		r = rig_restore(&t->rig, 30);
		struct reading_copy copy;
		reading_bind_all(t, r, &copy);
		assert_int_equal(rig_run(r), CKPT_EINTEGRITY);
		reading_free_copy(&copy);
		rig_free(r);
		reading_repair(t);
	}
}

/* What is not needed is not looked at. */
static void test_flip_elsewhere(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	const struct ckpt_layout *layout = ckpt_restore_index(r)->layout;
	const struct ckpt_entry *first = &layout->entries[0];
	const struct ckpt_chunk *last = &layout->chunks[layout->chunk_count - 1];
	char byte = 0;
	struct ckpt_target target = {
		.size = sizeof(target), .name = first->name, .length = 1, .data = &byte};

	scratch_flip(fixture_shard(&t->steps[2], 0), (long)last->offset);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, NULL), 0);
	assert_int_equal(rig_run(r), 0);
	assert_int_equal(byte, *reading_bytes(t, first->name, 30));
	rig_free(r);
}

struct damage {
	const char *name;
	void (*harm)(const char *path);
	int code;
	bool index; /* of the index, else of the shard */
	bool at_open;
	const char *says;
};

static void remove_it(const char *path)
{
	assert_int_equal(unlink(path), 0);
}

static long size_of(const char *path)
{
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	assert_int_equal(fseek(f, 0, SEEK_END), 0);
	long size = ftell(f);
	(void)fclose(f);
	return size;
}

static void cut_it(const char *path)
{
	assert_int_equal(truncate(path, size_of(path) - 1), 0);
}

static void empty_it(const char *path)
{
	assert_int_equal(truncate(path, 0), 0);
}

static void lengthen_it(const char *path)
{
	assert_int_equal(truncate(path, size_of(path) + 1), 0);
}

static void flip_it(const char *path)
{
	scratch_flip(path, size_of(path) / 2);
}

static void test_damage(void **state)
{
	static const struct damage cases[] = {
		{"shard missing", remove_it, CKPT_EINCOMPLETE, false, false, "node-0"},
		{"shard cut", cut_it, CKPT_EINCOMPLETE, false, false, "was cut"},
		{"shard empty", empty_it, CKPT_EINCOMPLETE, false, false, "was cut"},
		{"shard longer", lengthen_it, CKPT_EINTEGRITY, false, false, "added to"},
		{"index missing", remove_it, CKPT_EINCOMPLETE, true, true, "node-0"},
		{"index cut", cut_it, CKPT_EINCOMPLETE, true, true, "was cut"},
		{"index empty", empty_it, CKPT_EINCOMPLETE, true, true, "was cut"},
		{"index longer", lengthen_it, CKPT_EINTEGRITY, true, true, "added to"},
		{"index flipped", flip_it, CKPT_EINTEGRITY, true, true,
			"does not match the digest that the manifest has"},
	};
	struct reading *t = *state;

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct damage *c = &cases[i];
		const char *path =
			c->index ? fixture_index(&t->steps[2], 0) : fixture_shard(&t->steps[2], 0);
		long size = size_of(path);
		c->harm(path);
		/* Of a file that has another size: where it ends, or should. */
		long at = c->harm == cut_it ? size - 1 : c->harm == empty_it ? 0 : size;
		struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
		if (c->at_open) {
			assert_null(ckpt_restore_index(r));
			assert_int_equal(rig_wait(r), c->code);
		} else {
			assert_int_equal(rig_run(r), c->code);
		}
		const struct ckpt_error *err = ckpt_restore_failure(r);
		if (!strstr(err->message, c->says))
			fail_msg("%s: \"%s\" does not say \"%s\"", c->name, err->message, c->says);
		assert_string_equal(err->file, c->index ? fixture_index_name(&t->steps[2], 0)
							: fixture_shard_name(&t->steps[2], 0));
		assert_int_equal(err->rank, 0);
		assert_int_equal(err->step, 30);
		if (strstr(err->message, "bytes, the manifest says"))
			assert_int_equal(err->offset, at);
		assert_int_equal(access(fixture_quarantine(&t->steps[2]), F_OK), 0);
		rig_free(r);
		r = rig_restore(&t->rig, CKPT_STEP_LATEST);
		assert_int_equal(ckpt_restore_chosen_step(r), 20);
		rig_free(r);
		reading_repair(t);
	}
}

/* When all have failed, the latest is not "none": who starts from nothing then loses everything. */
static void test_all_bad(void **state)
{
	struct reading *t = *state;

	for (size_t i = 0; i < READING_STEPS; i++)
		empty_it(fixture_index(&t->steps[i], 0));
	for (size_t i = 0; i < READING_STEPS; i++) {
		struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
		assert_int_equal(rig_wait(r), CKPT_EINCOMPLETE);
		rig_free(r);
	}
	static const uint64_t asked[] = {CKPT_STEP_LATEST, CKPT_STEP_BACK(1)};
	for (size_t i = 0; i < COUNT(asked); i++) {
		struct ckpt_restore *r = rig_restore(&t->rig, asked[i]);
		assert_int_equal(rig_wait(r), CKPT_EQUARANTINED);
		rig_free(r);
	}
	struct ckpt_restore *r = rig_restore(&t->rig, 77);
	assert_int_equal(rig_wait(r), CKPT_ENOSTEP);
	rig_free(r);
}

/* A manifest that does not verify: passed over with a word; by number, said; alone, not "no step". */
static void test_manifest(void **state)
{
	struct reading *t = *state;

	flip_it(fixture_manifest(&t->steps[2]));
	struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	assert_int_equal(ckpt_restore_chosen_step(r), 20);
	assert_true(rig_logged(&t->rig, CKPT_LOG_WARN, "1 broken"));
	rig_free(r);
	r = rig_restore(&t->rig, 30);
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	assert_non_null(strstr(ckpt_restore_failure(r)->file, "manifest.json"));
	rig_free(r);
	flip_it(fixture_manifest(&t->steps[1]));
	flip_it(fixture_manifest(&t->steps[0]));
	r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	rig_free(r);
}

/* A manifest of another step under this one's name. */
static void test_swapped(void **state)
{
	struct reading *t = *state;

	assert_int_equal(rename(fixture_manifest(&t->steps[1]), fixture_manifest(&t->steps[2])), 0);
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	rig_free(r);
	r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	assert_int_equal(ckpt_restore_chosen_step(r), 10);
	rig_free(r);
}

/* A reader that may not write leaves no note, and tries the same step again. */
static void test_read_only(void **state)
{
	struct reading *t = *state;
	struct reading_copy copy;

	rig_close(&t->rig);
	reading_open(t, true);
	scratch_flip(fixture_shard(&t->steps[2], 0), size_of(fixture_shard(&t->steps[2], 0)) - 1);
	for (int i = 0; i < 2; i++) {
		struct ckpt_restore *r = rig_restore(&t->rig, CKPT_STEP_LATEST);
		assert_int_equal(ckpt_restore_chosen_step(r), 30);
		reading_bind_all(t, r, &copy);
		assert_int_equal(rig_run(r), CKPT_EINTEGRITY);
		reading_free_copy(&copy);
		rig_free(r);
		assert_int_equal(access(fixture_quarantine(&t->steps[2]), F_OK), -1);
	}
}

/* A note that cannot be written is remembered by the engine itself. */
static void test_note_fails(void **state)
{
	struct reading *t = *state;
	struct reading_copy copy;

	/* A directory in the way: nothing can be renamed onto it. */
	assert_int_equal(mkdir(fixture_quarantine(&t->steps[2]), 0777), 0);
	scratch_flip(fixture_shard(&t->steps[2], 0), size_of(fixture_shard(&t->steps[2], 0)) - 1);
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	reading_bind_all(t, r, &copy);
	assert_int_equal(rig_run(r), CKPT_EINTEGRITY);
	reading_free_copy(&copy);
	rig_free(r);
	r = rig_restore(&t->rig, CKPT_STEP_LATEST);
	assert_int_equal(ckpt_restore_chosen_step(r), 20);
	rig_free(r);
}

/* While it is open nobody can take the lock that removing needs; afterwards anybody can. */
static void test_lock(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);

	assert_false(reading_may_remove(&t->steps[2]));
	assert_true(reading_may_remove(&t->steps[1]));
	assert_int_equal(rig_run(r), 0);
	assert_false(reading_may_remove(&t->steps[2]));
	rig_free(r);
	assert_true(reading_may_remove(&t->steps[2]));
}

/* Somebody is removing the step: it is gone already. */
static void test_being_removed(void **state)
{
	struct reading *t = *state;
	int fd = reading_lock(&t->steps[2]);

	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	assert_int_equal(rig_wait(r), CKPT_ENOSTEP);
	rig_free(r);
	(void)close(fd);
	r = rig_restore(&t->rig, 30);
	assert_non_null(ckpt_restore_index(r));
	rig_free(r);
}

/* The disk hangs: a cancel answers all the same, and lets go when the disk has answered. */
static void test_cancel(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	struct reading_copy copy;

	reading_bind_all(t, r, &copy);
	rig_hold_after(&t->rig, 0);
	ckpt_restore_post_start(r);
	rig_wait_held(&t->rig, 2);
	ckpt_restore_post_cancel(r);
	assert_int_equal(rig_wait(r), -ECANCELED);
	ckpt_restore_post_release(r);
	assert_int_equal(
		ckpt_latch_wait(ckpt_restore_latch(r), CKPT_DONE_GONE, 20) & CKPT_DONE_GONE, 0);
	rig_let_go(&t->rig);
	rig_free(r);
	/* Nothing was copied after the answer. */
	reading_check_pristine(&copy);
	reading_free_copy(&copy);
}

/* Blocks come back last first: a chunk that straddles waits for both its parts. */
static void test_backwards(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	struct reading_copy copy;

	reading_bind_all(t, r, &copy);
	rig_hold_after(&t->rig, 0);
	ckpt_restore_post_start(r);
	/* Two slots of the four are a reader's. */
	rig_wait_held(&t->rig, 2);
	rig_release_newest(&t->rig);
	rig_release_newest(&t->rig);
	rig_let_go(&t->rig);
	assert_int_equal(rig_wait(r), 0);
	reading_check_all(t, &copy, 30);
	rig_free(r);
}

/* Whatever has been read by then: it ends at once, and everything comes back. */
static void test_cancel_anywhere(void **state)
{
	struct reading *t = *state;
	bool ended = false;

	for (size_t n = 0; !ended; n++) {
		struct ckpt_restore *r = rig_restore(&t->rig, 30);
		struct reading_copy copy;
		reading_bind_all(t, r, &copy);
		rig_hold_after(&t->rig, n);
		ckpt_restore_post_start(r);
		ended = !rig_wait_held_or_end(&t->rig, r);
		ckpt_restore_post_cancel(r);
		assert_int_equal(rig_wait(r), ended ? 0 : -ECANCELED);
		rig_let_go(&t->rig);
		if (ended)
			reading_check_all(t, &copy, 30);
		rig_free(r);
		reading_free_copy(&copy);
	}
}

/* Its owner goes while the disk hangs: targets are free at once, the rest when the disk is back. */
static void test_abandoned(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	struct reading_copy copy;

	reading_bind_all(t, r, &copy);
	rig_hold_after(&t->rig, 0);
	ckpt_restore_post_start(r);
	rig_wait_held(&t->rig, 1);
	ckpt_restore_post_cancel(r);
	ckpt_restore_post_release(r);
	assert_int_equal(rig_wait(r), -ECANCELED);
	ckpt_restore_unref(r);
	reading_free_copy(&copy);
	rig_let_go(&t->rig);
}

/* The same of a command, whose result nobody takes. */
static void test_command_abandoned(void **state)
{
	struct reading *t = *state;
	struct rig_block block;
	struct ckpt_command *command =
		ckpt_command_new(&t->rig.core, sizeof(struct ckpt_lister), ckpt_lister_clear);

	assert_non_null(command);
	rig_block_post(&t->rig, &block);
	rig_block_wait(&block);
	ckpt_command_post(command, ckpt_lister_body);
	ckpt_command_unref(command);
	rig_block_end(&block);
}

/* Let go of without having been started, or before it is open. */
static void test_release(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);

	rig_free(r);
	assert_int_equal(ckpt_restore_new(&t->rig.core, NULL, 30, CKPT_SINK_MEMORY, &r), 0);
	ckpt_restore_post_open(r);
	rig_free(r);
	assert_int_equal(ckpt_restore_new(&t->rig.core, NULL, 30, CKPT_SINK_MEMORY, &r), 0);
	ckpt_restore_unref(r);
}

/* A post that is on its way when all else is over: the core lets go only when it has arrived. */
static void test_late_post(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	struct rig_block first;
	struct rig_block second;
	struct rig_block third;

	rig_block_post(&t->rig, &first);
	rig_block_wait(&first);
	ckpt_restore_post_release(r);
	rig_block_post(&t->rig, &second);
	rig_block_end(&first);
	rig_block_wait(&second);
	/* The lock on the step is closed now, which is the last thing to wait for. */
	rig_block_wait_inbox(&t->rig);
	rig_block_post(&t->rig, &third);
	ckpt_restore_post_cancel(r);
	rig_block_end(&second);
	rig_block_wait(&third);
	assert_int_equal(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_GONE, 0);
	rig_block_end(&third);
	rig_free(r);
}

/* The engine closes under open restores: they end, and their handles can still be asked and freed. */
static void test_close(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *idle = rig_restore(&t->rig, 30);
	struct ckpt_restore *done = rig_restore(&t->rig, 20);

	assert_int_equal(rig_run(done), 0);
	rig_close(&t->rig);
	assert_int_equal(rig_wait(idle), CKPT_ECLOSED);
	assert_int_equal(rig_wait(done), 0);
	assert_int_equal(ckpt_restore_name_count(done), READING_TENSORS + 1);
	ckpt_restore_post_cancel(idle);
	ckpt_restore_post_start(idle);
	rig_free(idle);
	rig_free(done);
	reading_open(t, false);
}

static void test_late_targets(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_restore(&t->rig, 30);
	struct ckpt_error err = {.size = sizeof(err)};
	char byte;
	struct ckpt_target target = {
		.size = sizeof(target), .name = "tied", .length = 1, .data = &byte};

	assert_int_equal(rig_run(r), 0);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &err), -EBUSY);
	rig_free(r);
}

/* Every allocation fails once: an error each time, or success, and never anything worse. */
static void test_no_memory(void **state)
{
	struct reading *t = *state;
	size_t failed = 0;

	for (size_t n = 1;; n++) {
		struct reading_copy copy = {0};
		struct ckpt_restore *r = NULL;
		reading_fail_allocation(n);
		int code = ckpt_restore_new(&t->rig.core, NULL, 30, CKPT_SINK_MEMORY, &r);
		if (code == 0) {
			ckpt_restore_post_open(r);
			(void)ckpt_latch_wait(
				ckpt_restore_latch(r), CKPT_DONE_OPENED | CKPT_DONE_END, -1);
			if (ckpt_restore_index(r))
				code = reading_try_bind(t, r, &copy);
			if (code == 0)
				code = rig_run(r);
			rig_free(r);
		}
		bool was_reached = reading_allow_allocations();
		if (code == 0)
			reading_check_all(t, &copy, 30);
		else
			reading_free_copy(&copy);
		failed += code == -ENOMEM;
		assert_true(code == 0 || code == -ENOMEM);
		if (!was_reached)
			break;
	}
	assert_true(failed > 20);
}

/* A manifest that could not be read once may be that of a good step: the one before it is not another. */
static void test_no_memory_while_counting_back(void **state)
{
	struct reading *t = *state;
	size_t failed = 0;
	bool was_reached = true;

	for (size_t n = 1; was_reached; n++) {
		struct ckpt_restore *r = NULL;
		reading_fail_allocation(n);
		int code = ckpt_restore_new(
			&t->rig.core, NULL, CKPT_STEP_BACK(1), CKPT_SINK_MEMORY, &r);
		if (code == 0) {
			ckpt_restore_post_open(r);
			(void)ckpt_latch_wait(
				ckpt_restore_latch(r), CKPT_DONE_OPENED | CKPT_DONE_END, -1);
			code = ckpt_restore_failure(r)->code;
			if (code == 0)
				assert_int_equal(ckpt_restore_chosen_step(r), 20);
			else
				assert_string_not_equal(ckpt_restore_failure(r)->message, "");
			rig_free(r);
		}
		was_reached = reading_allow_allocations();
		failed += code == -ENOMEM;
		assert_true(code == 0 || code == -ENOMEM);
	}
	assert_true(failed > 10);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, reading_setup, reading_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_all),
		TEST(test_names),
		TEST(test_holes),
		TEST(test_range),
		TEST(test_strided),
		TEST(test_nothing),
		TEST(test_many),
		TEST(test_long_chunks),
		TEST(test_which),
		TEST(test_lineage),
		TEST(test_flip),
		TEST(test_flip_elsewhere),
		TEST(test_damage),
		TEST(test_all_bad),
		TEST(test_manifest),
		TEST(test_swapped),
		TEST(test_read_only),
		TEST(test_note_fails),
		TEST(test_lock),
		TEST(test_being_removed),
		TEST(test_cancel),
		TEST(test_backwards),
		TEST(test_cancel_anywhere),
		TEST(test_abandoned),
		TEST(test_command_abandoned),
		TEST(test_release),
		TEST(test_late_post),
		TEST(test_close),
		TEST(test_late_targets),
		TEST(test_no_memory),
		TEST(test_no_memory_while_counting_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
