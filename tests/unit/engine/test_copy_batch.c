/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of which a part is on another device than the CPU, which is as late as the test wants, and fails. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/copy_batch.h"
#include "engine/save/save_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/test.h"

#define FLOATS 3000
#define GPU    1

/* Does what it is given when it is told to, in order. */
struct gpu {
	struct ckpt_device device;
	struct ckpt_copy *given[64];
	size_t first;
	size_t count;
	int code;        /* of copies from now on */
	const char *why; /* its words */
	size_t sampled;
	size_t looked;
	int64_t torn;           /* what the next look finds */
	bool refuses;           /* strides */
	bool full;              /* a call for the first of `given` stands in the driver */
	struct ckpt_copy *asks; /* whether nothing more will be enqueued */
};

struct scene {
	char *dir;
	struct core_rig rig;
	struct gpu gpu;
	float on_gpu[FLOATS];
	float on_cpu[FLOATS];
};

/* It is given nothing more of what was stopped. */
static void gpu_answers(struct gpu *gpu)
{
	struct ckpt_copy *copy = gpu->asks;

	for (size_t i = gpu->first; i < gpu->count; i++)
		assert_true(gpu->given[i]->stop && atomic_load(gpu->given[i]->stop));
	gpu->asks = NULL;
	ckpt_inbox_push(gpu->device.env->inbox, &copy->job.node);
}

static void gpu_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	struct gpu *gpu = CKPT_CONTAINER(device, struct gpu, device);

	if (copy->direction == CKPT_COPY_NOTHING) {
		assert_null(gpu->asks);
		gpu->asks = copy;
		if (!gpu->full)
			gpu_answers(gpu);
		return;
	}
	assert_true(gpu->count < COUNT(gpu->given));
	gpu->given[gpu->count++] = copy;
}

static void carry_out(struct gpu *gpu, struct ckpt_copy *copy)
{
	copy->result = gpu->code;
	if (gpu->code < 0) {
		assert_non_null(copy->error);
		(void)ckpt_fail(copy->error, gpu->code, "%s", gpu->why);
		return;
	}
	gpu->sampled += copy->direction == CKPT_COPY_SAMPLE;
	if (copy->direction == CKPT_COPY_COMPARE) {
		gpu->looked++;
		copy->torn = gpu->torn;
	}
	for (size_t i = 0; i < copy->count; i++) {
		struct ckpt_segment *s = &copy->segments[i];
		if (s->view.device == GPU && copy->direction == CKPT_COPY_TO_STAGING)
			ckpt_view_gather(&s->view, s->offset, s->length, s->staged);
		if (s->view.device == GPU && copy->direction == CKPT_COPY_FROM_STAGING)
			ckpt_view_scatter(&s->view, s->offset, s->length, s->staged);
	}
}

/* It does all that it has been given, and the core goes on. */
static void gpu_works(struct scene *s)
{
	struct gpu *gpu = &s->gpu;

	while (gpu->first < gpu->count) {
		struct ckpt_copy *copy = gpu->given[gpu->first++];
		carry_out(gpu, copy);
		ckpt_inbox_push(&s->rig.inbox, &copy->job.node);
	}
	gpu->first = gpu->count = 0;
	core_rig_run(&s->rig);
}

static void gpu_close(struct ckpt_device *device)
{
	(void)device;
}

static int gpu_takes(
	struct ckpt_device *device, const struct ckpt_segment *segment, struct ckpt_error *err)
{
	const struct gpu *gpu = CKPT_CONTAINER(device, struct gpu, device);

	assert_non_null(segment->view.strides);
	return !gpu->refuses ? 0 : ckpt_fail(err, CKPT_EUNSUPPORTED, "no such strides");
}

static const struct ckpt_device_ops gpu_ops = {
	.name = "gpu", .copy = gpu_copy, .takes = gpu_takes, .close = gpu_close};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .slots = 8});
	s->gpu.device = (struct ckpt_device){
		.ops = &gpu_ops, .env = &s->rig.env, .number = GPU, .samples = true};
	s->gpu.torn = -1;
	s->rig.devices.at[GPU] = &s->gpu.device;
	for (int i = 0; i < FLOATS; i++) {
		s->on_gpu[i] = (float)i;
		s->on_cpu[i] = (float)-i;
	}
	assert_int_equal(core_rig_claim(&s->rig), 0);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	core_rig_close(&s->rig);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

/* Prepared; 0 or why not. */
static int put_together(struct scene *s, uint64_t step, bool fenced, struct ckpt_save **ret_save)
{
	static const int64_t shape[1] = {FLOATS};
	const struct ckpt_tensor tensors[2] = {{.size = sizeof(tensors[0]),
						       .name = "gpu",
						       .dtype = CKPT_F32,
						       .ndim = 1,
						       .shape = shape,
						       .data = s->on_gpu,
						       .device = CKPT_DEVICE_CUDA},
		{.size = sizeof(tensors[0]),
			.name = "cpu",
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = shape,
			.data = s->on_cpu}};
	struct ckpt_save *save = NULL;

	int r = ckpt_save_new(&s->rig.core, NULL, step, fenced, 0, &save);
	if (r == 0)
		r = ckpt_save_put_tensors(save, tensors, 2, &s->rig.err);
	if (r == 0)
		r = ckpt_save_prepare(save, &s->rig.plan, &s->rig.err);
	if (r < 0) {
		ckpt_save_unref(save);
		return r;
	}
	*ret_save = save;
	return 0;
}

static struct ckpt_save *begin(struct scene *s, uint64_t step, bool fenced)
{
	struct ckpt_save *save = NULL;

	assert_int_equal(put_together(s, step, fenced, &save), 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	return save;
}

static uint32_t bits(struct ckpt_save *save)
{
	return ckpt_latch_get(ckpt_save_latch(save));
}

static void test_levels(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, false);

	/* All is with the GPU, which has done nothing yet: the samples first. */
	assert_int_equal(bits(save), CKPT_DONE_EAGER | CKPT_DONE_FED);
	assert_true(s->gpu.count >= 2);
	assert_int_equal(s->gpu.given[0]->direction, CKPT_COPY_SAMPLE);
	assert_int_equal(s->gpu.given[1]->direction, CKPT_COPY_TO_STAGING);
	assert_true(s->gpu.given[1]->sampled);
	gpu_works(s);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(s->gpu.sampled, 1);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_NONE), 0);
}

/* One that cannot take samples is not asked to compare any. */
static void test_without_samples(void **state)
{
	struct scene *s = *state;

	s->gpu.device.samples = false;
	struct ckpt_save *save = begin(s, 1, true);
	assert_false(ckpt_save_looks(save));
	assert_int_equal(s->gpu.given[0]->direction, CKPT_COPY_TO_STAGING);
	assert_false(s->gpu.given[0]->sampled);
	gpu_works(s);
	ckpt_save_post_gate(save);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
}

static void test_words_of_the_device(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, false);

	s->gpu.code = CKPT_EDEVICE;
	s->gpu.why = "it has fallen off the bus";
	gpu_works(s);
	assert_int_equal(ckpt_save_failure(save)->code, CKPT_EDEVICE);
	assert_non_null(strstr(ckpt_save_failure(save)->message, s->gpu.why));
	assert_int_equal(core_rig_end_save(&s->rig, save), CKPT_EDEVICE);
	s->gpu.code = 0;
	save = begin(s, 2, false);
	gpu_works(s);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
}

/*
 * The gate is open, and the step is published when the device has found nothing. Whoever has a stream goes on at once;
 * who has none waits for the look.
 */
static void gate_waits_for_the_look(struct scene *s, uint64_t step, bool streams)
{
	const struct ckpt_stream stream = {
		.size = sizeof(stream), .device = CKPT_DEVICE_CUDA, .handle = 1};
	struct ckpt_save *save = begin(s, step, true);

	assert_true(ckpt_save_looks(save));
	if (streams)
		assert_int_equal(ckpt_save_put_streams(save, &stream, 1, &s->rig.err), 0);
	gpu_works(s);
	ckpt_save_post_look(save);
	ckpt_save_post_look(save);
	ckpt_save_post_gate(save);
	core_rig_run(&s->rig);
	assert_true(!!(bits(save) & CKPT_DONE_LOOKED) == streams);
	assert_false(bits(save) & CKPT_DONE_END);
	gpu_works(s);
	assert_true(bits(save) & CKPT_DONE_LOOKED);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
}

static void test_gate_waits_for_the_look(void **state)
{
	struct scene *s = *state;

	gate_waits_for_the_look(s, 1, true);
	assert_int_equal(s->gpu.looked, 1);
	gate_waits_for_the_look(s, 2, false);
	assert_int_equal(s->gpu.looked, 2);
}

static void test_look_finds_a_change(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, true);

	gpu_works(s);
	for (size_t i = 0; i < save->plan->segment_count; i++)
		if (save->plan->segments[i].view.device == GPU)
			s->gpu.torn = (int64_t)i;
	ckpt_save_post_look(save);
	ckpt_save_post_gate(save);
	core_rig_run(&s->rig);
	gpu_works(s);
	assert_int_equal(ckpt_save_failure(save)->code, CKPT_ETORN);
	assert_string_equal(ckpt_save_failure(save)->tensor, "gpu");
	assert_int_equal(core_rig_end_save(&s->rig, save), CKPT_ETORN);
}

/* The deadline is kept, and nothing of the save goes before the GPU has let go of it. */
static void test_stands_still(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, true);

	core_rig_sleep(&s->rig, 1001);
	assert_true(bits(save) & CKPT_DONE_END);
	assert_false(bits(save) & CKPT_DONE_GONE);
	assert_int_equal(ckpt_save_failure(save)->code, -ETIMEDOUT);
	/* Too late: nobody looks any more. */
	ckpt_save_post_look(save);
	core_rig_run(&s->rig);
	assert_false(bits(save) & CKPT_DONE_LOOKED);
	gpu_works(s);
	assert_true(bits(save) & CKPT_DONE_GONE);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ETIMEDOUT);
}

/* A tensor that a call is being made for, or will be, is not the caller's yet. */
static void test_no_end_before_nothing_more_is_enqueued(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, true);

	s->gpu.full = true;
	core_rig_sleep(&s->rig, 1001);
	assert_non_null(s->gpu.asks);
	assert_false(bits(save) & CKPT_DONE_END);
	gpu_answers(&s->gpu);
	core_rig_run(&s->rig);
	assert_true(bits(save) & CKPT_DONE_END);
	assert_false(bits(save) & CKPT_DONE_GONE);
	assert_int_equal(ckpt_save_failure(save)->code, -ETIMEDOUT);
	gpu_works(s);
	assert_true(bits(save) & CKPT_DONE_GONE);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ETIMEDOUT);
}

/* The copies are back before the answer: its memory is the save's, which stays until then. */
static void test_the_answer_comes_last(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, true);

	s->gpu.full = true;
	core_rig_sleep(&s->rig, 1001);
	gpu_works(s);
	assert_false(bits(save) & (CKPT_DONE_END | CKPT_DONE_GONE));
	gpu_answers(&s->gpu);
	core_rig_run(&s->rig);
	assert_true(bits(save) & CKPT_DONE_GONE);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ETIMEDOUT);
}

/* The look is under way when the save fails: it is waited for as well. */
static void test_stands_still_while_it_looks(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, true);

	gpu_works(s);
	ckpt_save_post_look(save);
	core_rig_run(&s->rig);
	core_rig_sleep(&s->rig, 1001);
	assert_true(bits(save) & CKPT_DONE_END);
	assert_false(bits(save) & CKPT_DONE_GONE);
	gpu_works(s);
	assert_true(bits(save) & CKPT_DONE_GONE);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ETIMEDOUT);
}

static void attach_gpu(struct scene *s)
{
	s->gpu.device.env = &s->rig.env;
	s->rig.devices.at[GPU] = &s->gpu.device;
}

/* Of step 1, to both; that on the GPU with gaps. What comes of it; no byte of either is touched unless it is good. */
static int restore_apart(struct scene *s)
{
	static const int64_t shape[1] = {FLOATS};
	static const int64_t strides[1] = {2};
	float *apart = calloc((size_t)2 * FLOATS, sizeof(*apart));
	float *cpu = calloc(FLOATS, sizeof(*cpu));
	const struct ckpt_target targets[2] = {
		{.size = sizeof(targets[0]), .name = "cpu", .data = cpu},
		{.size = sizeof(targets[0]),
			.name = "gpu",
			.data = apart,
			.ndim = 1,
			.shape = shape,
			.strides = strides,
			.device = CKPT_DEVICE_CUDA}};
	struct ckpt_restore *r = NULL;

	assert_int_equal(ckpt_restore_new(&s->rig.core, NULL, 1, CKPT_SINK_MEMORY, &r), 0);
	ckpt_restore_post_open(r);
	core_rig_await(&s->rig, r);
	assert_int_equal(ckpt_restore_add_targets(r, targets, 2, &s->rig.err), 0);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	gpu_works(s);
	int code = core_rig_end(&s->rig, r);
	for (size_t i = 0; i < FLOATS; i++) {
		assert_true(cpu[i] == (code == 0 ? s->on_cpu[i] : 0));
		assert_true(apart[2 * i] == (code == 0 ? s->on_gpu[i] : 0));
		assert_true(apart[2 * i + 1] == 0);
	}
	free(cpu);
	free(apart);
	return code;
}

/* What the GPU cannot take is said before a byte of any tensor is overwritten. */
static void test_refused_before_the_first_byte(void **state)
{
	struct scene *s = *state;
	struct ckpt_save *save = begin(s, 1, false);

	gpu_works(s);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(restore_apart(s), 0);
	s->gpu.refuses = true;
	assert_int_equal(restore_apart(s), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(s->rig.err.message, "tensor 'gpu': no such strides"));
	assert_string_equal(s->rig.err.tensor, "gpu");
}

/* Chunks that are larger than the slots are in memory that is pinned for nobody: the device takes them all the same. */
static void test_large_chunks(void **state)
{
	struct scene *s = *state;

	core_rig_close(&s->rig);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir,
				       .slots = 8,
				       .block_bytes = 256 << 10,
				       .chunk_bytes = 128 << 10,
				       .new_start = true});
	attach_gpu(s);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	struct ckpt_save *save = begin(s, 1, false);
	gpu_works(s);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(restore_apart(s), 0);
	core_rig_close(&s->rig);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .slots = 8});
	attach_gpu(s);
	assert_int_equal(restore_apart(s), 0);
}

/* Whatever memory is lacking, the save fails or is good, and all comes back. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	uint64_t step = 1;

	for (size_t nth = 1;; nth++) {
		struct ckpt_save *save = NULL;

		core_rig_count_allocations(&s->rig, nth);
		int r = put_together(s, step++, false, &save);
		if (r == 0 && core_rig_post(&s->rig, save) == 1) {
			gpu_works(s);
			assert_true(bits(save) & CKPT_DONE_GONE);
		}
		size_t made = core_rig_allocations(&s->rig);
		if (r == 0)
			r = core_rig_end_save(&s->rig, save);
		assert_true(r == 0 || r == -ENOMEM);
		gpu_works(s);
		if (made < nth)
			break;
	}
	assert_true(step > 10);
}

static void test_masks(void **state)
{
	struct ckpt_segment segments[3] = {
		{.view = {.device = 0}}, {.view = {.device = 5}}, {.view = {.device = 63}}};

	(void)state;
	assert_int_equal(ckpt_copy_batch_devices(segments, 0), 0);
	assert_int_equal(ckpt_copy_batch_devices(segments, 1), 1);
	assert_true(
		ckpt_copy_batch_devices(segments, 3) == (1 | UINT64_C(1) << 5 | UINT64_C(1) << 63));
}

#define SCENE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_levels),
		SCENE(test_without_samples),
		SCENE(test_words_of_the_device),
		SCENE(test_gate_waits_for_the_look),
		SCENE(test_look_finds_a_change),
		SCENE(test_stands_still),
		SCENE(test_no_end_before_nothing_more_is_enqueued),
		SCENE(test_the_answer_comes_last),
		SCENE(test_stands_still_while_it_looks),
		SCENE(test_refused_before_the_first_byte),
		SCENE(test_large_chunks),
		SCENE(test_no_memory),
		cmocka_unit_test(test_masks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
