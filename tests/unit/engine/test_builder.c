/* SPDX-License-Identifier: Apache-2.0 */
/* Putting a save together: what is taken, what is refused, and that a refusal says why. */
#include "lib/test.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/save/save_state.h"
#include "format/index.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"

#define PAGE         ((size_t)256 << 10)
#define TENSOR_WORDS 336 /* bytes: a name of 299, and four lists of one dimension */

struct scene {
	char *dir;
	struct core_rig rig;
	struct ckpt_save *save;
	struct ckpt_error err;
};

static const int64_t four[] = {4};
static float data[4];
static const struct ckpt_tensor plain = {.size = sizeof(plain),
	.name = "w",
	.dtype = CKPT_F32,
	.ndim = 1,
	.shape = four,
	.data = data};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 1, false, 0, &s->save), 0);
	s->err.size = sizeof(s->err);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	ckpt_save_unref(s->save);
	core_rig_close(&s->rig);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void refused(struct scene *s, const struct ckpt_tensor *tensor, int code, const char *why)
{
	/* All or none: the good one before it is not taken either. */
	const struct ckpt_tensor both[] = {plain, *tensor};

	ckpt_error_clear(&s->err);
	assert_int_equal(ckpt_save_put_tensors(s->save, both, 2, &s->err), code);
	assert_non_null(strstr(s->err.message, why));
	assert_int_equal(s->save->tensor_count, 0);
}

static void test_names(void **state)
{
	struct scene *s = *state;
	struct ckpt_tensor t = plain;
	char name[CKPT_NAME_MAX + 1];

	t.name = NULL;
	refused(s, &t, -EINVAL, "name");
	t.name = "";
	refused(s, &t, -EINVAL, "name");
	memset(name, 'n', CKPT_NAME_MAX);
	name[CKPT_NAME_MAX] = 0;
	t.name = name;
	refused(s, &t, -EINVAL, "name");
	name[CKPT_NAME_MAX - 1] = 0;
	assert_int_equal(ckpt_save_put_tensors(s->save, &t, 1, &s->err), 0);
}

static void test_shapes(void **state)
{
	static const int64_t negative[] = {-1};
	static const int64_t many[] = {INT64_MAX, 4};
	static const int64_t huge[] = {INT64_MAX};
	static const int64_t flat[CKPT_NDIM_MAX + 1];
	struct scene *s = *state;
	struct ckpt_tensor t = plain;

	t.shape = NULL;
	refused(s, &t, -EINVAL, "there is no shape");
	t.shape = flat;
	t.ndim = CKPT_NDIM_MAX + 1;
	refused(s, &t, -EINVAL, "ndim");
	t.ndim = 1;
	t.shape = negative;
	refused(s, &t, -EINVAL, "negative");
	t.shape = huge;
	refused(s, &t, -EINVAL, "overflows");
	t.shape = many;
	t.ndim = 2;
	refused(s, &t, -EINVAL, "overflows");
}

static void test_memory(void **state)
{
	static const int64_t far[] = {INT64_MAX};
	struct scene *s = *state;
	struct ckpt_tensor t = plain;

	t.data = NULL;
	refused(s, &t, -EINVAL, "data is NULL");
	t = plain;
	t.strides = far;
	refused(s, &t, -EINVAL, "address space");
	t = plain;
	t.device = CKPT_DEVICE_CUDA + 1;
	refused(s, &t, -EINVAL, "device kind 2");
	t.device = CKPT_DEVICE_CUDA;
	t.device_index = -1;
	refused(s, &t, -EINVAL, "index -1");
	t.device_index = CKPT_GPUS_MAX;
	refused(s, &t, -EINVAL, "index 63");
	t = plain;
	t.flags = CKPT_TENSOR_VARIES << 1;
	refused(s, &t, -EINVAL, "flags");
	t = plain;
	t.dtype = 0;
	refused(s, &t, -EINVAL, "dtype");
}

/* Boxes that lie where there is nothing of their tensor, and places in a tensor that is not described. */
static void test_boxes(void **state)
{
	static const int64_t five[] = {5};
	static const int64_t one[] = {1};
	static const int64_t two[] = {2};
	struct scene *s = *state;
	struct ckpt_tensor t = plain;

	t.global_start = one;
	refused(s, &t, -EINVAL, "tensor w has a global_start and no global_shape");
	t.global_shape = five;
	t.global_start = two;
	refused(s, &t, -EINVAL, "tensor w has a box that exceeds its global_shape");
	t.global_start = one;
	assert_int_equal(ckpt_save_put_tensors(s->save, &t, 1, &s->err), 0);
	assert_int_equal(s->save->tensors[0].global_start[0], 1);
}

/* As many as an index holds, and no more. */
static void test_too_many(void **state)
{
	struct scene *s = *state;

	assert_int_equal(
		ckpt_save_put_tensors(s->save, &plain, CKPT_TENSORS_MAX + 1, &s->err), -E2BIG);
	assert_int_equal(s->save->tensor_count, 0);
}

static void test_meta_too_long(void **state)
{
	struct scene *s = *state;

	assert_int_equal(ckpt_save_put_meta(s->save, "{}", CKPT_META_MAX + 1, &s->err), -E2BIG);
	assert_null(s->save->meta);
}

/* Descriptions are copies, however many they are: the caller's may go. */
static void test_many_words(void **state)
{
	struct scene *s = *state;
	char name[CKPT_NAME_MAX];
	int64_t shape[] = {1};
	struct ckpt_tensor t = plain;

	t.name = name;
	t.shape = shape;
	memset(name, 'n', sizeof(name) - 1);
	for (int i = 0; i < 2000; i++) {
		name[0] = (char)('a' + i % 26);
		name[1] = (char)('a' + i / 26 % 26);
		name[2] = (char)('a' + i / 676);
		name[300] = 0;
		assert_int_equal(ckpt_save_put_tensors(s->save, &t, 1, &s->err), 0);
	}
	name[0] = '-';
	shape[0] = -1;
	assert_int_equal(ckpt_save_prepare(s->save, &s->rig.plan, &s->err), 0);
	(void)ckpt_save_ref(s->save);
	assert_int_equal(core_rig_post(&s->rig, s->save), 0);
	assert_int_equal(core_rig_end_save(&s->rig, s->save), 0);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_MEMORY), 0);
}

static bool no_pages(void *user, size_t size)
{
	size_t *left = user;

	/* What names and shapes are copied into; the list of tensors is smaller. */
	return size >= PAGE && (*left)-- == 0;
}

/* Memory runs out in the midst of a description, wherever: it is not taken, and those before it stay. */
static void run_out(struct scene *s, size_t first, bool alias)
{
	static const int64_t stride[] = {1};
	static const int64_t start[] = {0};
	char name[CKPT_NAME_MAX];
	struct ckpt_tensor t = plain;
	struct ckpt_save *save = NULL;
	size_t pages = 1;
	size_t count = 0;
	int r;

	t.name = name;
	t.strides = stride;
	t.global_shape = four;
	t.global_start = start;
	memset(name, 'n', sizeof(name));
	name[first] = 0;
	ckpt_alloc_set_hook(no_pages, &pages);
	assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 1, false, 0, &save), 0);
	while ((r = ckpt_save_put_tensors(save, &t, 1, &s->err)) == 0) {
		assert_int_equal(save->tensor_count, ++count);
		name[first] = 'n';
		name[299] = 0;
		/* There is room for two more: aliases take the rest. */
		if (alias && count == PAGE / TENSOR_WORDS - 2)
			break;
	}
	assert_int_equal(r == 0, alias);
	for (int i = 0; r == 0; i++)
		r = ckpt_save_put_alias(save, i % 2 ? "a" : "another.name", name, &s->err);
	assert_int_equal(r, -ENOMEM);
	assert_int_equal(save->tensor_count, count);
	pages = 1;
	assert_int_equal(ckpt_save_put_tensors(save, &t, 1, &s->err), 0);
	ckpt_alloc_set_hook(NULL, NULL);
	ckpt_save_unref(save);
}

/* Memory runs out in the midst of a description, wherever: it is not taken, and those before it stay. */
static void test_no_words(void **state)
{
	for (size_t first = 1; first < 320; first += 8) {
		run_out(*state, first, false);
		run_out(*state, first, true);
	}
}

/* A save that is refused before it starts has ended, with the reason it was given. */
static void test_refused(void **state)
{
	struct scene *s = *state;

	assert_false(ckpt_save_refused(s->save));
	(void)ckpt_fail(&s->err, CKPT_ESKIPPED, "the last one still runs");
	ckpt_save_refuse(s->save, &s->err);
	assert_true(ckpt_save_refused(s->save));
	assert_true(ckpt_save_gone(s->save));
	assert_int_equal(ckpt_save_failure(s->save)->code, CKPT_ESKIPPED);
	assert_int_equal(ckpt_save_failure(s->save)->step, 1);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_names),
		SCENE(test_shapes),
		SCENE(test_memory),
		SCENE(test_boxes),
		SCENE(test_too_many),
		SCENE(test_meta_too_long),
		SCENE(test_many_words),
		SCENE(test_no_words),
		SCENE(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
