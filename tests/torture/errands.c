/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/errands.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void torture_wrong(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)fputs("wrong: ", stderr);
	(void)vfprintf(stderr, fmt, args);
	va_end(args);
	(void)fputc('\n', stderr);
	_exit(3);
}

int torture_answer(int r, const char *call)
{
	struct ckpt_error error = {.size = sizeof(error)};

	if (r >= 0)
		return r;
	int code = ckpt_last_error_record(&error);
	if (!*error.message)
		torture_wrong("%s: %d, without a sentence", call, r);
	if (code != r)
		torture_wrong("%s: %d, and the error is %d: %s", call, r, code, ckpt_last_error());
	return r;
}

bool errand_endless(int r)
{
	return r == -ETIMEDOUT && !atomic_load(&torture->silent);
}

/* A second of a wait has passed: whether to go on with it. Nothing comes of a ring that is gone. */
static bool patient(int waited_ms)
{
	return waited_ms < (atomic_load(&torture->silent) ? TORTURE_SILENT_MS : TORTURE_WAIT_MS);
}

int errand_wait(struct ckpt_restore *restore)
{
	int waited_ms = 0;
	int r;

	do {
		r = CALL(ckpt_restore_wait(restore, 1000));
		waited_ms += 1000;
	} while (r == -ETIMEDOUT && ckpt_restore_error(restore, NULL) == 0 && patient(waited_ms));
	return r;
}

int errand_reach(struct ckpt_save *save, enum ckpt_level level)
{
	int waited_ms = 0;
	int r;

	do {
		r = CALL(ckpt_save_wait(save, level, 1000));
		waited_ms += 1000;
	} while (r == -ETIMEDOUT && ckpt_save_error(save, NULL) == 0 && patient(waited_ms));
	return r;
}

bool errand_outcome(bool good, const char *what, unsigned step)
{
	if (!good && torture->plans == 0)
		torture_wrong("undisturbed, and cannot %s %u: %s", what, step, ckpt_last_error());
	return good;
}

uint32_t errand_deadline_ms(void)
{
	return torture->plans == 0 ? WORKLOAD_TIMEOUT_MS : 3000;
}

bool errand_open(struct workload *d, uint32_t flags)
{
	d->opts.flags = flags;
	d->opts.node_ranks = 2;
	d->engine = NULL;
	return errand_outcome(
		CALL(ckpt_engine_open(d->store, &d->opts, &d->engine)) == 0, "open with", flags);
}

void errand_close(struct workload *d)
{
	DO(ckpt_engine_close(d->engine));
	d->engine = NULL;
}

const char *const errand_names[WORKLOAD_TENSORS] = {"layers.0.weight", "layers.0.bias", "head"};
const int64_t errand_counts[WORKLOAD_TENSORS] = {40000, 100, 9000};

#define GRID_ROWS    60
#define GRID_COLUMNS 50

/* The upper half of a grid: a box of a tensor of which nobody has the rest. */
static float grid[GRID_ROWS][GRID_COLUMNS];
static const int64_t grid_shape[] = {GRID_ROWS, GRID_COLUMNS};
static const int64_t grid_whole[] = {2L * GRID_ROWS, GRID_COLUMNS};
static const int64_t grid_start[] = {0, 0};

static bool add_box(struct ckpt_save *save)
{
	struct ckpt_tensor now = {.size = sizeof(now),
		.name = "grid",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = grid_shape,
		.data = grid,
		.global_shape = grid_whole,
		.global_start = grid_start};
	struct ckpt_tensor then = {.size = offsetof(struct ckpt_tensor, global_shape),
		.name = "plain",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = grid_shape,
		.data = grid};

	for (int i = 0; i < GRID_ROWS; i++)
		for (int k = 0; k < GRID_COLUMNS; k++)
			grid[i][k] = (float)(i * GRID_COLUMNS + k);
	return CALL(ckpt_save_add(save, &now, 1)) == 0 && CALL(ckpt_save_add(save, &then, 1)) == 0;
}

static bool add_tensors(struct workload *d, struct ckpt_save *save)
{
	static const char meta[] = "{\"epoch\": 1}";

	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.flags = i == 1 ? CKPT_TENSOR_EAGER : 0,
			.name = errand_names[i],
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &errand_counts[i],
			.data = d->live[i]};
		if (CALL(ckpt_save_add(save, &tensor, 1)) < 0)
			return false;
	}
	const struct trial *trial = &torture_trials[torture->scenario];
	if (trial->boxed && !add_box(save))
		return false;
	if (trial->extra > 0) {
		static char *zeros;
		int64_t bytes = (int64_t)trial->extra;
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.flags = CKPT_TENSOR_EAGER,
			.name = "extra",
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &bytes};
		if (!zeros)
			zeros = calloc(1, trial->extra);
		tensor.data = zeros;
		if (CALL(ckpt_save_add(save, &tensor, 1)) < 0)
			return false;
	}
	return CALL(ckpt_save_add_alias(save, "tied", "head")) == 0 &&
	       CALL(ckpt_save_set_meta(save, meta, sizeof(meta) - 1)) == 0;
}

struct ckpt_save *errand_start(struct workload *d, unsigned step, unsigned seed, uint32_t flags)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = flags};
	struct ckpt_save *save = NULL;

	/* Tried, even if it does not begin: retention counts from the next one then. */
	workload_log(d, "try %u %u\n", step, seed);
	workload_fill(d, seed);
	if (CALL(ckpt_save_begin(d->engine, step, &opts, &save)) < 0)
		return NULL;
	bool added = add_tensors(d, save);
	if (added && CALL(ckpt_save_start(save)) == 0)
		return save;
	DO(ckpt_save_free(save));
	return NULL;
}

int errand_end(struct workload *d, struct ckpt_save *save, unsigned step, unsigned seed)
{
	struct ckpt_error error = {.size = sizeof(error)};

	int r = errand_reach(save, CKPT_LEVEL_LOCAL);
	if (r == 0)
		workload_log(d, "ack %u %u\n", step, seed);
	else if (errand_endless(r) && ckpt_save_error(save, NULL) == 0)
		torture_wrong("step %u: no outcome", step);
	else if (ckpt_save_error(save, &error) != r ? r != -ETIMEDOUT : !*error.message)
		torture_wrong("step %u: %d, and its error is %d: \"%s\"", step, r, error.code,
			error.message);
	DO(ckpt_save_free(save));
	return r;
}

bool errand_finish(struct workload *d, struct ckpt_save *save, unsigned step, unsigned seed)
{
	return save && errand_end(d, save, step, seed) == 0;
}

bool errand_save(struct workload *d, unsigned step, unsigned seed)
{
	return errand_outcome(
		errand_finish(d, errand_start(d, step, seed, 0), step, seed), "save", step);
}

bool errand_bind(struct workload *d, struct ckpt_restore *restore)
{
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.dtype = CKPT_F32,
			.name = errand_names[i],
			.ndim = 1,
			.shape = &errand_counts[i],
			.data = d->live[i]};
		memset(d->live[i], 0xee, (size_t)errand_counts[i] * sizeof(float));
		if (CALL(ckpt_restore_bind(restore, &target, 1)) < 0)
			return false;
	}
	return true;
}

bool errand_restore(struct workload *d, uint64_t step, unsigned expected, unsigned seed, bool adopt)
{
	struct ckpt_restore *handle = NULL;
	int r = CALL(ckpt_restore_open(d->engine, step, &handle));

	if (r < 0) {
		if (r == CKPT_EINTEGRITY || r == CKPT_EINCOMPLETE || r == CKPT_EFORMAT)
			torture_wrong("step %u is good, and is called %d: %s", expected, r,
				ckpt_last_error());
		return errand_outcome(false, "restore", expected);
	}
	bool bound = errand_bind(d, handle);
	if (bound && CALL(ckpt_restore_start(handle)) == 0)
		r = errand_wait(handle);
	else
		r = -1;
	if (errand_endless(r) || r == CKPT_EINTEGRITY || r == CKPT_EINCOMPLETE)
		torture_wrong("restoring step %u: %d: %s", expected, r, ckpt_last_error());
	if (r == 0 && ckpt_restore_step(handle) != expected)
		torture_wrong(
			"restored step %u, not %u", (unsigned)ckpt_restore_step(handle), expected);
	if (r == 0 && !workload_is(d, seed))
		torture_wrong("step %u is not what was saved", expected);
	if (r == 0 && adopt)
		r = CALL(ckpt_restore_adopt(handle));
	DO(ckpt_restore_free(handle));
	return errand_outcome(r == 0, "restore", expected);
}

bool errand_resume(struct workload *d, unsigned step)
{
	return errand_restore(d, CKPT_STEP_LATEST, step, step, true);
}

void errand_verify(struct workload *d, uint64_t step, bool bad)
{
	struct ckpt_restore *handle = NULL;

	if (!errand_outcome(CALL(ckpt_verify_start(d->engine, step, &handle)) == 0, "verify",
		    (unsigned)step))
		return;
	int r = errand_wait(handle);
	if ((r == CKPT_EINTEGRITY && !bad) || r == CKPT_EINCOMPLETE || errand_endless(r))
		torture_wrong("step %u is good, and verifies with %d", (unsigned)step, r);
	if (r == 0 && bad)
		torture_wrong("step %u is damaged, and verifies", (unsigned)step);
	(void)errand_outcome(r == 0 || bad, "verify", (unsigned)step);
	for (size_t i = 0; i < ckpt_verify_count(handle); i++) {
		struct ckpt_finding finding = {.size = sizeof(finding)};
		finding.error.size = sizeof(finding.error);
		(void)CALL(ckpt_verify_finding(handle, i, &finding));
		if (finding.error.code && !*finding.error.message)
			torture_wrong("a finding without a sentence");
		if (finding.error.code && finding.error.code != CKPT_EOTHERNODE && r == 0)
			torture_wrong("findings, and all is well");
	}
	DO(ckpt_restore_free(handle));
}

void errand_export(struct workload *d, uint64_t step)
{
	struct ckpt_restore *handle = NULL;

	if (CALL(ckpt_export_start(d->engine, step, d->dest, &handle)) != 0)
		return;
	int r = errand_wait(handle);
	if (r == CKPT_EINTEGRITY || r == CKPT_EINCOMPLETE || errand_endless(r))
		torture_wrong("step %u is good, and the export says %d", (unsigned)step, r);
	if (errand_outcome(r == 0, "export", (unsigned)step))
		workload_log(d, "export %u\n", (unsigned)step);
	DO(ckpt_restore_free(handle));
}

void errand_list(struct workload *d, size_t expected)
{
	struct ckpt_catalog *catalog = NULL;
	struct ckpt_stats stats = {.size = sizeof(stats)};
	uint64_t latest = 0;

	if (errand_outcome(CALL(ckpt_catalog_open(d->engine, &catalog)) == 0, "list", 0)) {
		if (ckpt_catalog_count(catalog) != expected)
			torture_wrong("%zu steps are listed, not %zu", ckpt_catalog_count(catalog),
				expected);
		for (size_t i = 0; i < expected; i++) {
			struct ckpt_step_info info = {.size = sizeof(info)};
			(void)CALL(ckpt_catalog_step(catalog, i, &info));
		}
		DO(ckpt_catalog_free(catalog));
	}
	if (CALL(ckpt_engine_latest(d->engine, &latest)) == 0 && latest != 3)
		torture_wrong("the latest is %u", (unsigned)latest);
	(void)CALL(ckpt_engine_stats(d->engine, &stats));
}

static void bind_many(struct ckpt_restore *handle)
{
	static float memory[20][200];
	static const int64_t stride = 2;

	for (int i = 0; i < 20; i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.name = errand_names[1],
			.data = memory[i],
			.ndim = 1,
			.shape = &errand_counts[1],
			.strides = &stride};
		if (CALL(ckpt_restore_bind(handle, &target, 1)) < 0)
			return;
	}
}

void errand_inspect(struct workload *d)
{
	struct ckpt_restore *handle = NULL;
	const char *meta = NULL;
	size_t length = 0;
	size_t at = 0;

	if (CALL(ckpt_restore_open(d->engine, CKPT_STEP_BACK(1), &handle)) < 0)
		return;
	if (ckpt_restore_step(handle) != 2)
		torture_wrong(
			"the step before the latest is %u", (unsigned)ckpt_restore_step(handle));
	(void)CALL(ckpt_restore_meta(handle, &meta, &length));
	(void)CALL(ckpt_restore_find(handle, "head", &at));
	for (size_t i = 0; i < ckpt_restore_count(handle); i++) {
		struct ckpt_tensor_info info = {.size = sizeof(info)};
		(void)CALL(ckpt_restore_tensor(handle, i, &info));
	}
	bind_many(handle);
	DO(ckpt_restore_cancel(handle));
	DO(ckpt_restore_free(handle));
}

/* Columns 10 to 29 of rows 20 to 49, together and with gaps; many, so that lists grow. */
static bool bind_boxes(struct ckpt_restore *handle, float (*out)[30 * 20], unsigned count)
{
	static const int64_t start[] = {20, 10};
	static const int64_t shape[] = {30, 20};
	static const int64_t strides[] = {1, 30};

	for (unsigned i = 0; i < count; i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.name = "grid",
			.data = out[i],
			.ndim = 2,
			.shape = shape,
			.strides = i % 2 ? strides : NULL,
			.start = start};
		if (CALL(ckpt_restore_bind(handle, &target, 1)) < 0)
			return false;
	}
	struct ckpt_target older = {.size = offsetof(struct ckpt_target, start),
		.name = "plain",
		.data = out[count],
		.length = sizeof(out[0])};
	return CALL(ckpt_restore_bind(handle, &older, 1)) == 0;
}

static void check_boxes(float (*out)[30 * 20], unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		for (int row = 0; row < 30; row++)
			for (int column = 0; column < 20; column++) {
				float got = out[i][i % 2 ? row + 30 * column : 20 * row + column];
				if (got != grid[20 + row][10 + column])
					torture_wrong("a box has %g in [%d, %d]", (double)got, row,
						column);
			}
	if (memcmp(out[count], grid, sizeof(out[0])) != 0)
		torture_wrong("a range is not what was saved");
}

void errand_box(struct workload *d)
{
	static float out[21][30 * 20];
	struct ckpt_restore *handle = NULL;
	const char *meta = NULL;
	size_t length = 0;
	int64_t whole = 0;
	struct ckpt_target all = {.size = sizeof(all), .name = "grid", .data = &whole};

	if (CALL(ckpt_restore_open(d->engine, CKPT_STEP_LATEST, &handle)) < 0)
		return;
	if (CALL(ckpt_restore_rank_meta(handle, 0, &meta, &length)) == 0 && length == 0)
		torture_wrong("meta is gone");
	int r = CALL(ckpt_restore_bind(handle, &all, 1));
	if (r != CKPT_EMISMATCH && r != -ENOMEM)
		torture_wrong("half a tensor is taken for all of it: %d", r);
	if (bind_boxes(handle, out, 20) && CALL(ckpt_restore_start(handle)) == 0) {
		r = errand_wait(handle);
		if (r == 0)
			check_boxes(out, 20);
		(void)errand_outcome(r == 0, "boxes", 1);
	}
	DO(ckpt_restore_free(handle));
}
