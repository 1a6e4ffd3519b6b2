/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that are stored as the difference to the last one: what they need, when a step is stored by itself, and what retention keeps. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "codec/codec.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"
#include "lib/core_scene.h"
#include "lib/prng.h"
#include "lib/scratch.h"

#define SHARD    ".encoded"
#define TENSORS  6
#define ELEMENTS 20000 /* elements of a tensor: five blocks of 64 KiB in all */
#define SLOTS    20    /* two states, and what readers need */

/* A training whose state follows from the step alone. */
struct training {
	size_t count; /* elements of each tensor, but for `step` */
	struct ckpt_tensor tensors[TENSORS];
	int64_t shapes[TENSORS];
	char *memory[TENSORS];
	bool moving; /* all of `dense` changes, and no difference is shorter */
	bool still;  /* nothing changes but `step` */
};

enum { FROZEN, SPARSE, DENSE, ROUNDED, NOISE, STEP };

static const struct {
	const char *name;
	uint32_t dtype;
	size_t width;
} kinds[TENSORS] = {
	[FROZEN] = {"frozen", CKPT_F32, 4},
	[SPARSE] = {"sparse", CKPT_F32, 4},
	[DENSE] = {"dense", CKPT_F32, 4},
	[ROUNDED] = {"rounded", CKPT_BF16, 2},
	[NOISE] = {"noise", CKPT_U8, 1},
	[STEP] = {"step", CKPT_I64, 8},
};

static size_t elements_of(const struct training *t, unsigned i)
{
	return i == STEP ? 1 : i == NOISE ? t->count / 8 : t->count;
}

static size_t bytes_of(const struct training *t, unsigned i)
{
	return elements_of(t, i) * kinds[i].width;
}

static void training_open(struct training *t, size_t count)
{
	assert_true(count > 0);
	*t = (struct training){.count = count};
	for (unsigned i = 0; i < TENSORS; i++) {
		t->memory[i] = malloc(bytes_of(t, i));
		assert_non_null(t->memory[i]);
		t->shapes[i] = (int64_t)elements_of(t, i);
		t->tensors[i] = (struct ckpt_tensor){.size = sizeof(t->tensors[i]),
			.name = kinds[i].name,
			.dtype = kinds[i].dtype,
			.ndim = 1,
			.shape = &t->shapes[i],
			.data = t->memory[i]};
	}
}

static void training_close(struct training *t)
{
	for (unsigned i = 0; i < TENSORS; i++)
		free(t->memory[i]);
}

static float weight(struct prng *prng)
{
	return ((float)prng_below(prng, 1 << 24) / (1 << 24) - 0.5f) * 0.04f;
}

/* The state after so many steps. */
static void train(const struct training *t, uint64_t number)
{
	uint64_t step = t->still ? 1 : number;
	struct prng same = {11};
	struct prng other = {step + 1000};
	float *frozen = (float *)(void *)t->memory[FROZEN];
	float *sparse = (float *)(void *)t->memory[SPARSE];
	float *dense = (float *)(void *)t->memory[DENSE];

	for (size_t i = 0; i < t->count; i++) {
		frozen[i] = weight(&same);
		sparse[i] = frozen[i];
		dense[i] = t->moving ? weight(&other) : frozen[i] * (1 + 1e-6f * (float)step);
	}
	CKPT_ASSERT(t->count > 0);
	for (uint64_t k = 1; k <= step; k++)
		sparse[k * 7919 % t->count] = (float)k;
	ckpt_codec_round(CKPT_KIND_BF16, dense, t->count, t->memory[ROUNDED]);
	for (size_t i = 0; i < elements_of(t, NOISE); i++)
		t->memory[NOISE][i] = (char)prng_next(&other);
	memcpy(t->memory[STEP], &number, sizeof(number));
}

static struct ckpt_save *prepare(struct core_rig *rig, struct training *t, uint64_t step)
{
	struct ckpt_save *save = NULL;

	train(t, step);
	int r = ckpt_save_new(&rig->core, NULL, step, false, 0, &save);
	if (r == 0)
		r = ckpt_save_put_tensors(save, t->tensors, TENSORS, &rig->err);
	if (r == 0)
		r = ckpt_save_prepare(save, &rig->plan, &rig->err);
	if (r == 0)
		return save;
	if (save)
		ckpt_save_unref(save);
	(void)ckpt_fail(&rig->err, r, "out of memory");
	return NULL;
}

static int save_step(struct core_rig *rig, struct training *t, uint64_t step)
{
	struct ckpt_save *save = prepare(rig, t, step);

	if (!save)
		return rig->err.code;
	(void)core_rig_post(rig, save);
	return core_rig_end_save(rig, save);
}

static void save_steps(struct core_rig *rig, struct training *t, uint64_t first, uint64_t last)
{
	for (uint64_t step = first; step <= last; step++)
		assert_int_equal(save_step(rig, t, step), 0);
}

/* Into memory that the caller frees. */
static int read_step(
	struct core_rig *rig, const struct training *t, uint64_t step, char *got[TENSORS])
{
	struct ckpt_restore *restore = core_rig_begin(rig, step, CKPT_SINK_MEMORY, NULL);

	assert_non_null(restore);
	core_rig_await(rig, restore);
	assert_true(ckpt_latch_get(ckpt_restore_latch(restore)) & CKPT_DONE_OPENED);
	for (unsigned i = 0; i < TENSORS; i++) {
		got[i] = calloc(1, bytes_of(t, i));
		assert_non_null(got[i]);
		const struct ckpt_target target = {
			.size = sizeof(target), .name = kinds[i].name, .data = got[i]};
		assert_int_equal(ckpt_restore_add_targets(restore, &target, 1, &rig->err), 0);
	}
	ckpt_restore_post_start(restore);
	core_rig_run(rig);
	return core_rig_end(rig, restore);
}

/* Restored, a step has every byte that it was saved with. */
static void check_step(struct core_rig *rig, const struct training *t, uint64_t step)
{
	char *got[TENSORS];
	int code = read_step(rig, t, step, got);

	if (code < 0)
		print_message("step %llu: %s\n", (unsigned long long)step, rig->err.message);
	assert_int_equal(code, 0);
	train(t, step);
	for (unsigned i = 0; i < TENSORS; i++) {
		assert_memory_equal(got[i], t->memory[i], bytes_of(t, i));
		free(got[i]);
	}
}

static const struct ckpt_scan_step *find(const struct core_rig *rig, uint64_t step)
{
	struct ckpt_scan *scan = &rig->core.lineage->scan;
	const struct ckpt_scan_step *found = NULL;

	for (size_t i = 0; i < scan->step_count; i++)
		if (scan->steps[i].step == step && scan->steps[i].state == CKPT_STEP_COMMITTED)
			found = &scan->steps[i];
	return found;
}

/* How many steps it needs, and that they are those right before it. */
static unsigned needs(const struct core_rig *rig, uint64_t step)
{
	const struct ckpt_scan_step *found = find(rig, step);

	assert_non_null(found);
	for (unsigned i = 0; i < found->base_count; i++) {
		assert_int_equal(found->bases[i].generation, found->generation);
		assert_int_equal(found->bases[i].step, step - found->base_count + i);
	}
	return found->base_count;
}

static const char *dir_of(const struct core_scene *s, uint64_t step)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "g000001/step-%010llu", (unsigned long long)step);
	return scratch_join(s->dir, name);
}

static off_t size_of(const struct core_scene *s, uint64_t step)
{
	const char *path = scratch_find(dir_of(s, step), SHARD);
	struct stat st;

	assert_non_null(path);
	assert_int_equal(stat(path, &st), 0);
	return st.st_size;
}

/* `resumed`: the step that it goes on from; 0: none. */
static void open_rig_at(
	struct core_scene *s, const struct core_rig_config *config, uint64_t resumed)
{
	struct core_rig_config with = *config;

	with.dir = s->dir;
	with.align = 512;
	with.encoders = 2;
	with.delta = true;
	with.slots = with.slots ? with.slots : SLOTS;
	core_rig_open(&s->rig, &with);
	if (resumed)
		assert_int_equal(
			core_rig_adopt(&s->rig, find(&s->rig, resumed)->generation, resumed), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
}

static void open_rig(struct core_scene *s, const struct core_rig_config *config)
{
	open_rig_at(s, config, 0);
}

static unsigned fault(struct core_scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

/* The store is read anew by somebody else. */
static void check_anew(
	struct core_scene *s, struct training *t, uint64_t first, uint64_t last, unsigned most)
{
	struct core_rig reader;

	core_rig_open(&reader, &(struct core_rig_config){.dir = s->dir, .read_only = true});
	for (uint64_t step = first; step <= last; step++) {
		unsigned count = needs(&s->rig, step);

		assert_true(count <= most);
		assert_int_equal(needs(&reader, step), count);
		check_step(&reader, t, step);
	}
	core_rig_close(&reader);
}

/* Only what has changed is written; the difference is taken to the last step; the chain ends by itself. */
static void test_chain(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 40);
	assert_int_equal(needs(&s->rig, 1), 0);
	assert_int_equal(needs(&s->rig, 2), 1);
	assert_int_equal(needs(&s->rig, 3), 2);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_INFO, "as the difference to the last step"));
	/* Of 286,000 bytes: the noise, less than half of `dense`, and little else. */
	assert_true(size_of(s, 1) > 150000);
	assert_true(size_of(s, 2) < 50000);
	unsigned alone = 0;
	for (uint64_t step = 2; step <= 40; step++)
		alone += needs(&s->rig, step) == 0;
	assert_true(alone >= 2 && alone <= 20);
	check_anew(s, &t, 1, 40, CKPT_BASES_MAX);
	training_close(&t);
}

/* A chain has at most so many steps, however small they are. */
static void test_longest(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	t.still = true;
	open_rig(s, &(struct core_rig_config){0});
	for (uint64_t step = 1; step <= 40; step++) {
		assert_int_equal(save_step(&s->rig, &t, step), 0);
		assert_int_equal(needs(&s->rig, step), (step - 1) % (CKPT_BASES_MAX + 1));
	}
	assert_true(size_of(s, 17) < 4096);
	assert_true(size_of(s, 18) > 150000);
	check_anew(s, &t, 1, 40, CKPT_BASES_MAX);
	training_close(&t);
}

/* Where a difference is not much shorter there is none. */
static void test_all_changes(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	t.moving = true;
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 12);
	/* What is frozen is not written again, until the steps after the first have come to as much as that. */
	assert_int_equal(needs(&s->rig, 2), 1);
	unsigned longest = 0;
	for (uint64_t step = 1; step <= 12; step++)
		longest = needs(&s->rig, step) > longest ? needs(&s->rig, step) : longest;
	assert_true(longest >= 1 && longest <= 4);
	check_anew(s, &t, 1, 12, 4);
	training_close(&t);
}

/* Steps of keep_every need no other; and what comes after one needs nothing from before it. */
static void test_keep_every(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){.keep_every = 4, .keep_last = 1});
	save_steps(&s->rig, &t, 1, 11);
	assert_int_equal(needs(&s->rig, 4), 0);
	assert_int_equal(needs(&s->rig, 8), 0);
	assert_int_equal(needs(&s->rig, 11), 3);
	assert_null(find(&s->rig, 3));
	assert_null(find(&s->rig, 5));
	check_step(&s->rig, &t, 4);
	check_step(&s->rig, &t, 8);
	check_step(&s->rig, &t, 11);
	training_close(&t);
}

/* How many saves, and --full has more. */
static uint64_t many(void)
{
	/* NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment */
	const char *steps = getenv("CKPT_TEST_STEPS");

	return steps ? strtoull(steps, NULL, 10) : 80;
}

/*
 * Retention never takes what something needs, and takes all that nothing does: there are never more bytes than of two steps
 * that are stored by themselves, for each of the two chains that the last two steps may be of.
 */
static void test_retention(void **state)
{
	struct core_scene *s = *state;
	uint64_t oldest = 1;
	struct training t;
	off_t whole = 0;

	training_open(&t, 3000);
	open_rig(s, &(struct core_rig_config){.keep_last = 2});
	for (uint64_t step = 1; step <= many(); step++) {
		off_t bytes = 0;

		assert_int_equal(save_step(&s->rig, &t, step), 0);
		whole = step == 1 ? size_of(s, 1) : whole;
		/* The last two, and what they need. */
		uint64_t first = step - needs(&s->rig, step);
		if (step > 1 && step - 1 - needs(&s->rig, step - 1) < first)
			first = step - 1 - needs(&s->rig, step - 1);
		while (oldest < first)
			assert_null(find(&s->rig, oldest++));
		for (uint64_t old = first; old <= step; old++)
			bytes += size_of(s, old);
		assert_true(bytes <= 4 * whole + whole / 8);
		if (step % 7 == 0) {
			check_step(&s->rig, &t, step);
			check_step(&s->rig, &t, step - 1);
		}
	}
	assert_true(oldest > many() - UINT64_C(2) * CKPT_BASES_MAX - 2);
	training_close(&t);
}

/* Removing by number what another step needs is refused, and so is what is being saved needs. */
static void test_removed_by_number(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 3);
	assert_int_equal(core_rig_remove(&s->rig, 2), -EBUSY);
	struct ckpt_save *save = prepare(&s->rig, &t, 4);
	assert_non_null(save);
	s->rig.hold_jobs = true;
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	s->rig.hold_jobs = false;
	assert_int_equal(core_rig_remove(&s->rig, 3), -EBUSY);
	assert_non_null(strstr(s->rig.err.message, "is being saved"));
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(needs(&s->rig, 4), 3);
	assert_int_equal(core_rig_remove(&s->rig, 4), 0);
	/* Its bytes are still there, but no step of that number is. */
	save_steps(&s->rig, &t, 5, 6);
	assert_int_equal(needs(&s->rig, 5), 0);
	assert_int_equal(needs(&s->rig, 6), 1);
	check_step(&s->rig, &t, 5);
	/* Nor is it a base when its removal has failed half-way. */
	fault(s, (struct io_fault_rule){
			 .op = CKPT_IO_OP_UNLINK, .path = SHARD, .error = -EIO, .count = 1});
	assert_true(core_rig_remove(&s->rig, 6) < 0);
	io_fault_clear(&s->rig.fault);
	save_steps(&s->rig, &t, 7, 8);
	assert_int_equal(needs(&s->rig, 7), 0);
	assert_int_equal(needs(&s->rig, 8), 1);
	check_step(&s->rig, &t, 8);
	training_close(&t);
}

/* Where a step that the last one needs was found to be damaged, nothing more is predicted from it. */
static void test_damaged_below(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 3);
	assert_int_equal(needs(&s->rig, 3), 2);
	scratch_flip(scratch_find(dir_of(s, 1), ".index"), 10);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_non_null(find(&s->rig, 3));
	save_steps(&s->rig, &t, 4, 5);
	assert_int_equal(needs(&s->rig, 4), 0);
	assert_int_equal(needs(&s->rig, 5), 1);
	check_anew(s, &t, 4, 5, 1);
	training_close(&t);
}

/* Damage in a base is said to be there, and puts no note beside those that need it: they are good once it is repaired. */
static void test_damaged_base(void **state)
{
	struct core_scene *s = *state;
	struct core_rig reader;
	char *got[TENSORS];
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 3);
	scratch_flip(scratch_find(dir_of(s, 1), SHARD), size_of(s, 1) / 2);
	assert_int_equal(read_step(&s->rig, &t, 3, got), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.message, "step-0000000001"));
	assert_non_null(strstr(s->rig.err.message, "step 3 is decoded with it"));
	for (unsigned i = 0; i < TENSORS; i++)
		free(got[i]);
	assert_null(find(&s->rig, 3));
	assert_null(scratch_find(dir_of(s, 3), "quarantine.json"));
	save_steps(&s->rig, &t, 4, 4);
	assert_int_equal(needs(&s->rig, 4), 0);
	scratch_flip(scratch_find(dir_of(s, 1), SHARD), size_of(s, 1) / 2);
	core_rig_open(&reader, &(struct core_rig_config){.dir = s->dir, .read_only = true});
	check_step(&reader, &t, 3);
	core_rig_close(&reader);
	training_close(&t);
}

/* A step that fails, or that was never begun by this process, is no base; the next one is stored by itself. */
static void test_failed(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 2);
	fault(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARD, .error = -ENOSPC});
	assert_int_equal(save_step(&s->rig, &t, 3), -ENOSPC);
	io_fault_clear(&s->rig.fault);
	save_steps(&s->rig, &t, 4, 5);
	assert_int_equal(needs(&s->rig, 4), 0);
	assert_int_equal(needs(&s->rig, 5), 1);
	check_anew(s, &t, 4, 5, 1);
	core_rig_close(&s->rig);
	open_rig_at(s, &(struct core_rig_config){0}, 5);
	save_steps(&s->rig, &t, 6, 7);
	assert_int_equal(needs(&s->rig, 6), 0);
	assert_int_equal(needs(&s->rig, 7), 1);
	training_close(&t);
}

/* With the base of the first try. */
static void test_written_again(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 2);
	fault(s, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC, .path = SHARD, .error = -EIO});
	save_steps(&s->rig, &t, 3, 4);
	assert_int_equal(needs(&s->rig, 3), 2);
	assert_int_equal(needs(&s->rig, 4), 3);
	check_anew(s, &t, 1, 4, 3);
	training_close(&t);
}

/* Other tensors: nothing is predicted, and nothing is mixed up. */
static void test_other_tensors(void **state)
{
	struct core_scene *s = *state;
	struct training small;
	struct training t;

	training_open(&t, ELEMENTS);
	training_open(&small, ELEMENTS - 1);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 2);
	save_steps(&s->rig, &small, 3, 4);
	assert_int_equal(needs(&s->rig, 3), 0);
	assert_int_equal(needs(&s->rig, 4), 1);
	check_step(&s->rig, &t, 2);
	check_step(&s->rig, &small, 4);
	training_close(&small);
	training_close(&t);
}

/* Room for one state: said once. */
static void test_without_room(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){.slots = 9});
	save_steps(&s->rig, &t, 1, 2);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "no room for two states"));
	save_steps(&s->rig, &t, 3, 3);
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, "no room for two states"));
	for (uint64_t step = 1; step <= 3; step++)
		assert_int_equal(needs(&s->rig, step), 0);
	check_step(&s->rig, &t, 3);
	core_rig_close(&s->rig);
	/* Not even for one. */
	open_rig_at(s, &(struct core_rig_config){.slots = 4}, 3);
	save_steps(&s->rig, &t, 4, 6);
	assert_int_equal(needs(&s->rig, 6), 0);
	check_step(&s->rig, &t, 6);
	training_close(&t);
}

/* Who needs a slot between two saves takes it. */
static void test_slot_is_used(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_slot *slots[SLOTS];
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 2);
	for (unsigned i = 0; i < SLOTS; i++)
		slots[i] = ckpt_pool_get(s->rig.pool);
	assert_null(ckpt_pool_get(s->rig.pool));
	for (unsigned i = 0; i < SLOTS; i++)
		ckpt_pool_put(s->rig.pool, slots[i]);
	save_steps(&s->rig, &t, 3, 4);
	assert_int_equal(needs(&s->rig, 3), 0);
	assert_int_equal(needs(&s->rig, 4), 1);
	/* A few slots are taken from those that no base has. */
	for (unsigned i = 0; i < 4; i++)
		slots[i] = ckpt_pool_get(s->rig.pool);
	for (unsigned i = 0; i < 4; i++)
		ckpt_pool_put(s->rig.pool, slots[i]);
	save_steps(&s->rig, &t, 5, 5);
	assert_int_equal(needs(&s->rig, 5), 2);
	check_step(&s->rig, &t, 5);
	training_close(&t);
}

/* What lies in memory is compared with what was saved, before anything is predicted from it. */
static void test_changed_in_memory(void **state)
{
	struct core_scene *s = *state;
	struct training t;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	save_steps(&s->rig, &t, 1, 2);
	const struct ckpt_staged_base *base = s->rig.core.saver->base;
	assert_non_null(base);
	assert_true(ckpt_staged_base_take(s->rig.core.saver->base));
	for (size_t i = 0; i < base->staged->count; i++) {
		struct ckpt_slot *slot = ckpt_pool_slot(s->rig.pool, base->staged->blocks[i].slot);

		slot->data[100] ^= 1;
		slot->data[40000] ^= 1;
	}
	ckpt_staged_base_put(s->rig.core.saver->base);
	save_steps(&s->rig, &t, 3, 3);
	assert_int_equal(needs(&s->rig, 3), 2);
	check_step(&s->rig, &t, 3);
	training_close(&t);
}

/* At each point the save ends, all comes back, and what was saved before and after is whole. */
static void test_cancelled(void **state)
{
	struct core_scene *s = *state;
	struct training t;
	uint64_t step = 0;

	training_open(&t, ELEMENTS);
	open_rig(s, &(struct core_rig_config){0});
	for (unsigned rounds = 0; rounds < 8; rounds++) {
		save_steps(&s->rig, &t, step + 1, step + 2);
		struct ckpt_save *save = prepare(&s->rig, &t, step + 3);

		assert_non_null(save);
		s->rig.hold_jobs = true;
		assert_int_equal(core_rig_post(&s->rig, save), 1);
		assert_non_null(save->base);
		for (unsigned i = 0; i < rounds; i++) {
			core_rig_do_jobs(&s->rig);
			core_rig_run(&s->rig);
		}
		ckpt_save_post_cancel(save);
		core_rig_run(&s->rig);
		core_rig_let_go(&s->rig);
		int r = core_rig_end_save(&s->rig, save);
		assert_true(r == -ECANCELED || (r == 0 && rounds > 3));
		assert_int_equal(ckpt_pool_free(s->rig.pool), SLOTS);
		step += 3;
		check_step(&s->rig, &t, r == 0 ? step : step - 1);
	}
	training_close(&t);
}

/* Each allocation in turn: the save fails, or does without; what follows is whole. */
static void test_no_memory(void **state)
{
	struct core_scene *s = *state;
	struct training t;
	uint64_t step = 1;
	unsigned based = 0;
	uint64_t unknown = 0;
	struct core_rig reader;
	size_t seen;
	size_t at = 0;

	training_open(&t, 5000);
	open_rig(s, &(struct core_rig_config){.keep_last = 1});
	do {
		assert_int_equal(save_step(&s->rig, &t, step), 0);
		core_rig_count_allocations(&s->rig, ++at);
		int r = save_step(&s->rig, &t, step + 1);
		seen = core_rig_allocations(&s->rig);
		assert_true(r == 0 || r == -ENOMEM);
		if (r == 0 && find(&s->rig, step + 1)) {
			based += needs(&s->rig, step + 1) > 0;
			check_step(&s->rig, &t, step + 1);
		} else if (r == 0) {
			unknown = step + 1;
		}
		step += 2;
	} while (seen >= at);
	assert_true(based > 3);
	/* One that retention could not know of still has what it needs. */
	assert_true(unknown > 0 && step > unknown + 4);
	assert_int_equal(core_rig_remove(&s->rig, unknown - 1), -EBUSY);
	core_rig_open(&reader, &(struct core_rig_config){.dir = s->dir, .read_only = true});
	assert_true(needs(&reader, unknown) > 0);
	check_step(&reader, &t, unknown);
	core_rig_close(&reader);
	training_close(&t);
}

/* Steps are named by their numbers; the identity is all that counts here. */
static void name_base(struct ckpt_staged_base *base, uint64_t step)
{
	const struct ckpt_manifest_rank rank = {.attempt = "00000000000000ab", .index_bytes = 9};

	ckpt_staged_base_name(base, &rank, 1, step);
	assert_int_equal(base->files[base->file_count - 1].attempt, 0xab);
}

static void check_list(const struct ckpt_staged_base *base, struct ckpt_encoded *table,
	size_t count, uint64_t first, uint64_t last)
{
	ckpt_staged_base_list(base, table);
	assert_int_equal(table->base_count, count);
	if (count == 0)
		return;
	assert_int_equal(table->bases[0].step, first);
	assert_int_equal(table->bases[count - 1].step, last);
}

/* A chunk of the header, one of fp32, and one of bf16: who has the bytes of each, and what a table names for that. */
static void test_list(void **state)
{
	const int64_t shapes[2] = {2048, 2048};
	const struct ckpt_tensor tensors[] = {
		{.size = sizeof(tensors[0]),
			.name = "a",
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &shapes[0]},
		{.size = sizeof(tensors[0]),
			.name = "b",
			.dtype = CKPT_BF16,
			.ndim = 1,
			.shape = &shapes[1]},
	};
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_plan *plan;
	struct ckpt_encoded_chunk chunks[3] = {{0}};
	struct ckpt_encoded table = {.chunks = chunks, .chunk_count = 3};
	struct ckpt_staged_base *base[3];
	(void)state;

	assert_int_equal(ckpt_plan_build(tensors, 2, NULL, 0, 8192, 16384, &err, &plan), 0);
	assert_int_equal(plan->layout->chunk_count, 3);
	base[0] = ckpt_staged_base_new(plan, &table, NULL, NULL);
	assert_non_null(base[0]);
	assert_true(ckpt_staged_base_fits(base[0], plan));
	name_base(base[0], 10);
	/* The header is that of step 10, and the numbers are predicted from it. */
	chunks[0] = (struct ckpt_encoded_chunk){.kind = CKPT_ENCODED_SAME, .base = 1};
	chunks[1] = (struct ckpt_encoded_chunk){.kind = CKPT_ENCODED_PARTS, .base = 1};
	check_list(base[0], &table, 1, 10, 10);
	base[1] = ckpt_staged_base_new(plan, &table, NULL, NULL);
	assert_non_null(base[1]);
	name_base(base[1], 20);
	assert_int_equal(base[1]->file_count, 2);
	assert_int_equal(base[1]->origins[0], 0);
	assert_int_equal(base[1]->origins[1], 1);
	assert_int_equal(base[1]->origins[2], 1);
	/* One is enough for all to be named: it may need them. */
	memset(chunks, 0, sizeof(chunks));
	chunks[2] = (struct ckpt_encoded_chunk){.kind = CKPT_ENCODED_SAME, .base = 2};
	check_list(base[1], &table, 2, 10, 20);
	base[2] = ckpt_staged_base_new(plan, &table, NULL, NULL);
	assert_non_null(base[2]);
	name_base(base[2], 30);
	assert_int_equal(base[2]->file_count, 3);
	assert_int_equal(base[2]->origins[0], 2);
	assert_int_equal(base[2]->origins[2], 1);
	memset(chunks, 0, sizeof(chunks));
	check_list(base[2], &table, 0, 0, 0);
	/* With its own there would be one too many. */
	table.base_count = CKPT_ENCODED_BASES_MAX;
	assert_null(ckpt_staged_base_new(plan, &table, NULL, NULL));
	for (unsigned i = 0; i < 3; i++)
		ckpt_staged_base_free(base[i]);
	ckpt_plan_free(plan);
}

static void test_run(void **state)
{
	struct ckpt_delta_run run =
		ckpt_delta_run_add(&(struct ckpt_delta_run){0}, 3, 10, false, 100);
	(void)state;

	assert_true(run.open);
	assert_int_equal(run.count, 0);
	run = ckpt_delta_run_add(&run, 3, 12, true, 60);
	assert_true(run.open);
	assert_int_equal(run.count, 1);
	assert_int_equal(run.steps[0].step, 10);
	assert_true(ckpt_delta_run_has(&run, 3, 10));
	assert_true(ckpt_delta_run_has(&run, 3, 12));
	assert_false(ckpt_delta_run_has(&run, 3, 11));
	assert_false(ckpt_delta_run_has(&run, 2, 10));
	/* As much as the first one. */
	run = ckpt_delta_run_add(&run, 3, 13, true, 40);
	assert_false(run.open);
	assert_int_equal(run.count, 2);
	run = ckpt_delta_run_add(&run, 3, 14, false, 100);
	assert_true(run.open);
	assert_int_equal(run.count, 0);
	for (uint64_t i = 0; i < CKPT_BASES_MAX; i++) {
		assert_true(run.open);
		run = ckpt_delta_run_add(&run, 3, 15 + i, true, 1);
	}
	assert_false(run.open);
	assert_int_equal(run.count, CKPT_BASES_MAX);
	assert_int_equal(run.steps[0].step, 14);
	assert_int_equal(run.last.step, 14 + CKPT_BASES_MAX);
	run.open = true;
	run.count = 1;
	run = ckpt_delta_run_add(&run, 3, 40, true, UINT64_MAX);
	assert_false(run.open);
}

int main(void)
{
#define SCENE(test) cmocka_unit_test_setup_teardown(test, core_scene_set_up, core_scene_tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_run),
		cmocka_unit_test(test_list),
		SCENE(test_chain),
		SCENE(test_longest),
		SCENE(test_all_changes),
		SCENE(test_keep_every),
		SCENE(test_retention),
		SCENE(test_removed_by_number),
		SCENE(test_damaged_below),
		SCENE(test_damaged_base),
		SCENE(test_failed),
		SCENE(test_written_again),
		SCENE(test_other_tensors),
		SCENE(test_without_room),
		SCENE(test_slot_is_used),
		SCENE(test_changed_in_memory),
		SCENE(test_cancelled),
		SCENE(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
