/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop that survives being killed. Run it, interrupt it, run it again: it goes on where the last
 * durable step was.
 *
 *	cc loop.c $(pkg-config --cflags --libs libckpt) -o loop
 *	./loop /nvme/run42 1000
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/ckpt.h>

#define COUNT 1000000
#define EVERY 100

/* What the loop computes: every step changes all of it. */
static float weights[COUNT];

static void train_one_step(uint64_t step)
{
	for (size_t i = 0; i < COUNT; i++)
		weights[i] = weights[i] * 0.999f + (float)((i + step) % 97);
}

static int failed(const char *what, int code)
{
	const char *why = ckpt_last_error();

	fprintf(stderr, "%s: %s\n", what, *why ? why : ckpt_strerror(code));
	return code;
}

/* Waits until `save` is durable and frees it. What went wrong behind our back is said here. */
static int finish(struct ckpt_save *save)
{
	struct ckpt_error error;
	int r;

	if (!save)
		return 0;
	r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, CKPT_FOREVER);
	if (r < 0) {
		error.size = sizeof(error);
		if (ckpt_save_error(save, &error) < 0)
			fprintf(stderr, "step %" PRId64 ": %s\n", error.step, error.message);
		else
			failed("ckpt_save_wait", r);
	}
	ckpt_save_free(save);
	return r;
}

/* Starts to save the weights as `step`. They may be changed again when this returns. */
static int begin(struct ckpt_engine *engine, uint64_t step, struct ckpt_save **ret_save)
{
	const int64_t shape[] = {COUNT};
	struct ckpt_tensor tensor = {0};
	struct ckpt_save *save = NULL;
	int r;

	tensor.size = sizeof(tensor);
	tensor.name = "weights";
	tensor.dtype = CKPT_F32;
	tensor.ndim = 1;
	tensor.shape = shape;
	tensor.data = weights;

	r = ckpt_save_begin(engine, step, NULL, &save);
	if (r < 0)
		return failed("ckpt_save_begin", r);
	r = ckpt_save_add(save, &tensor, 1);
	if (r == 0)
		r = ckpt_save_start(save);
	/* A real loop computes its next gradients here: only what follows changes the weights. */
	if (r == 0)
		r = ckpt_save_wait(save, CKPT_LEVEL_STAGED, CKPT_FOREVER);
	if (r < 0) {
		failed("saving", r);
		ckpt_save_free(save);
		return r;
	}
	*ret_save = save;
	return 0;
}

/* Brings the newest step back. 0 in `ret_step`: there is none yet. */
static int resume(struct ckpt_engine *engine, uint64_t *ret_step)
{
	struct ckpt_restore *restore = NULL;
	struct ckpt_target target = {0};
	int r;

	r = ckpt_restore_open(engine, CKPT_STEP_LATEST, &restore);
	if (r == CKPT_ENOSTEP)
		return 0;
	if (r < 0)
		return failed("ckpt_restore_open", r);

	target.size = sizeof(target);
	target.name = "weights";
	target.dtype = CKPT_F32;
	target.data = weights;
	r = ckpt_restore_bind(restore, &target, 1);
	if (r == 0)
		r = ckpt_restore_start(restore);
	if (r == 0)
		r = ckpt_restore_wait(restore, CKPT_FOREVER);
	/* What is saved from now on descends from this step. */
	if (r == 0)
		r = ckpt_restore_adopt(restore);
	if (r < 0)
		failed("resuming", r);
	else
		*ret_step = ckpt_restore_step(restore);
	ckpt_restore_free(restore);
	return r;
}

/* The training: a step is durable at the latest when the next one is saved. */
static int train(struct ckpt_engine *engine, uint64_t last)
{
	struct ckpt_save *save = NULL;
	uint64_t step = 0;
	int r;

	r = resume(engine, &step);
	printf("starting after step %" PRIu64 "\n", step);
	while (r == 0 && step < last) {
		train_one_step(++step);
		if (step % EVERY != 0)
			continue;
		r = finish(save);
		save = NULL;
		if (r == 0)
			r = begin(engine, step, &save);
	}
	if (r == 0)
		r = finish(save);
	else
		ckpt_save_free(save);
	if (r == 0)
		printf("finished at step %" PRIu64 ", first weight %g\n", step, (double)weights[0]);
	return r;
}

int main(int argc, char **argv)
{
	struct ckpt_engine_opts opts = {0};
	struct ckpt_engine *engine = NULL;
	int r;

	if (argc != 3) {
		fprintf(stderr, "usage: %s STORE STEPS\n", argv[0]);
		return 2;
	}
	opts.size = sizeof(opts);
	opts.keep_last = 3;
	r = ckpt_engine_open(argv[1], &opts, &engine);
	if (r < 0) {
		failed(argv[1], r);
		return 1;
	}
	r = train(engine, strtoull(argv[2], NULL, 10));
	ckpt_engine_close(engine);
	return r < 0;
}
