/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/reading.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "format/dtype.h"
#include "format/index.h"
#include "lib/prng.h"
#include "lib/test.h"

/* What has not been written to. */
#define UNTOUCHED ((char)0xa5)

static const struct {
	const char *name;
	uint32_t dtype;
	uint32_t ndim;
	int64_t shape[3];
} kinds[READING_TENSORS] = {
	{"embed.weight", CKPT_F32, 2, {231, 170, 0}},
	{"norm.weight", CKPT_F32, 1, {170, 0, 0}},
	{"head.weight", CKPT_BF16, 2, {170, 301, 0}},
	{"head.bias", CKPT_BF16, 1, {301, 0, 0}},
	{"steps", CKPT_I64, 0, {0, 0, 0}},
	{"mask", CKPT_BOOL, 3, {5, 7, 11}},
	{"empty", CKPT_F64, 2, {0, 4, 0}},
	{"phase", CKPT_C128, 1, {1000, 0, 0}},
	{"bytes", CKPT_U8, 1, {100003, 0, 0}},
};

static uint64_t bytes_of(size_t kind)
{
	uint64_t bytes = ckpt_dtype_bytes(kinds[kind].dtype);

	for (uint32_t i = 0; i < kinds[kind].ndim; i++)
		bytes *= (uint64_t)kinds[kind].shape[i];
	return bytes;
}

static void fill(struct reading *t, uint64_t step)
{
	struct prng d = {step};

	for (size_t i = 0; i < READING_TENSORS; i++)
		for (uint64_t k = 0; k < t->nbytes[i]; k++)
			t->bytes[i][k] = (char)prng_next(&d);
}

void reading_commit(struct reading *t, const struct fixture_step *step)
{
	fill(t, step->step);
	fixture_commit(step);
}

void reading_open(struct reading *t, bool read_only)
{
	struct rig_config config = {.dir = t->dir,
		.block_bytes = READING_BLOCK,
		.slots = CKPT_POOL_SLOTS_MIN,
		.read_only = read_only};

	rig_open(&t->rig, &config);
}

int reading_setup(void **state)
{
	static const char *const metas[] = {"{\"step\":10}", "{\"step\":20}", "{\"step\":30}"};
	struct reading *t = calloc(1, sizeof(*t));

	t->dir = scratch_make();
	fixture_begin(t->dir);
	for (size_t i = 0; i < READING_TENSORS; i++) {
		t->nbytes[i] = bytes_of(i);
		t->bytes[i] = malloc(t->nbytes[i] + 1);
		t->tensors[i] = (struct ckpt_tensor){.size = sizeof(t->tensors[i]),
			.name = kinds[i].name,
			.dtype = kinds[i].dtype,
			.ndim = kinds[i].ndim,
			.shape = kinds[i].shape,
			.data = t->bytes[i]};
	}
	for (size_t i = 0; i < READING_STEPS; i++) {
		t->steps[i] = (struct fixture_step){.dir = t->dir,
			.generation = 1,
			.step = 10 * (i + 1),
			.tensors = t->tensors,
			.count = READING_TENSORS,
			.alias = "tied",
			.meta = metas[i],
			.chunk_bytes = READING_CHUNK,
			.world = 1};
		reading_commit(t, &t->steps[i]);
	}
	reading_open(t, false);
	*state = t;
	return 0;
}

int reading_teardown(void **state)
{
	struct reading *t = *state;

	rig_close(&t->rig);
	for (size_t i = 0; i < READING_TENSORS; i++)
		free(t->bytes[i]);
	scratch_remove(t->dir);
	free(t);
	return 0;
}

void reading_repair(struct reading *t)
{
	rig_close(&t->rig);
	(void)unlink(fixture_quarantine(&t->steps[2]));
	reading_commit(t, &t->steps[2]);
	reading_open(t, false);
}

static size_t kind_of(const char *name)
{
	for (size_t i = 0; i < READING_TENSORS; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return i;
	fail_msg("no tensor %s", name);
	return 0;
}

const char *reading_bytes(struct reading *t, const char *name, uint64_t step)
{
	fill(t, step);
	return t->bytes[strcmp(name, "tied") == 0 ? 0 : kind_of(name)];
}

int reading_try_bind(
	const struct reading *t, struct ckpt_restore *restore, struct reading_copy *copy)
{
	struct ckpt_target targets[READING_TENSORS + 1];
	struct ckpt_error err = {.size = sizeof(err)};

	copy->of = t;
	for (size_t i = 0; i <= READING_TENSORS; i++) {
		size_t kind = i < READING_TENSORS ? i : 0;
		copy->data[i] = malloc(t->nbytes[kind] + 1);
		memset(copy->data[i], UNTOUCHED, t->nbytes[kind]);
		targets[i] = (struct ckpt_target){.size = sizeof(targets[i]),
			.name = i < READING_TENSORS ? kinds[i].name : "tied",
			.dtype = kinds[kind].dtype,
			.ndim = kinds[kind].ndim,
			.shape = kinds[kind].ndim ? kinds[kind].shape : NULL,
			.data = copy->data[i]};
	}
	return ckpt_restore_add_targets(restore, targets, READING_TENSORS + 1, &err);
}

void reading_bind_all(
	const struct reading *t, struct ckpt_restore *restore, struct reading_copy *copy)
{
	assert_int_equal(reading_try_bind(t, restore, copy), 0);
}

void reading_check_all(struct reading *t, struct reading_copy *copy, uint64_t step)
{
	fill(t, step);
	for (size_t i = 0; i <= READING_TENSORS; i++) {
		size_t kind = i < READING_TENSORS ? i : 0;
		assert_memory_equal(copy->data[i], t->bytes[kind], t->nbytes[kind]);
	}
	reading_free_copy(copy);
}

void reading_check_untouched(const struct reading_copy *copy, const struct ckpt_layout *layout,
	const struct ckpt_chunk *chunk)
{
	for (size_t i = 0; i <= READING_TENSORS; i++) {
		const struct ckpt_entry *e =
			ckpt_layout_find(layout, i < READING_TENSORS ? kinds[i].name : "tied");
		for (uint64_t at = chunk->offset; at < chunk->offset + chunk->length; at++)
			if (at >= e->offset && at < e->offset + e->nbytes)
				assert_int_equal(copy->data[i][at - e->offset], UNTOUCHED);
	}
}

void reading_check_pristine(const struct reading_copy *copy)
{
	for (size_t i = 0; i <= READING_TENSORS; i++) {
		uint64_t n = copy->of->nbytes[i < READING_TENSORS ? i : 0];
		for (uint64_t k = 0; k < n; k++)
			assert_int_equal(copy->data[i][k], UNTOUCHED);
	}
}

void reading_free_copy(struct reading_copy *copy)
{
	for (size_t i = 0; i <= READING_TENSORS; i++)
		free(copy->data[i]);
	*copy = (struct reading_copy){0};
}

static int try_lock(const struct fixture_step *step, int *ret_fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	*ret_fd = open(fixture_manifest(step), O_RDWR | O_CLOEXEC);
	assert_true(*ret_fd >= 0);
	return fcntl(*ret_fd, F_OFD_SETLK, &lock) < 0 ? -errno : 0;
}

bool reading_may_remove(const struct fixture_step *step)
{
	int fd;
	int r = try_lock(step, &fd);

	(void)close(fd);
	assert_true(r == 0 || r == -EAGAIN);
	return r == 0;
}

int reading_lock(const struct fixture_step *step)
{
	int fd;

	assert_int_equal(try_lock(step, &fd), 0);
	return fd;
}

static atomic_size_t allocations_left;
static atomic_bool allocation_failed;

static bool fail_one(void *user, size_t size)
{
	(void)user;
	(void)size;
	if (atomic_fetch_sub(&allocations_left, 1) != 1)
		return false;
	atomic_store(&allocation_failed, true);
	return true;
}

void reading_fail_allocation(size_t n)
{
	atomic_store(&allocations_left, n);
	atomic_store(&allocation_failed, false);
	ckpt_alloc_set_hook(fail_one, NULL);
}

bool reading_allow_allocations(void)
{
	ckpt_alloc_set_hook(NULL, NULL);
	return atomic_load(&allocation_failed);
}
