/* SPDX-License-Identifier: Apache-2.0 */
#include "kill/workload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name;
	int64_t count;
} tensors[WORKLOAD_TENSORS] = {{"layers.0.weight", 40000}, {"layers.0.bias", 100}, {"head", 9000}};

void workload_die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vfprintf(stderr, fmt, args);
	va_end(args);
	(void)fputc('\n', stderr);
	_exit(1);
}

void workload_check(int r, const char *call, const char *file, int line)
{
	if (r == -ETIMEDOUT)
		hang_limit(call, file, line);
	if (r < 0)
		workload_die("%s: %d: %s", call, r, ckpt_last_error());
}

static char *under(const char *root, const char *name)
{
	char *path = NULL;

	if (asprintf(&path, "%s/%s", root, name) < 0)
		workload_die("out of memory");
	return path;
}

void workload_init(struct workload *workload, const char *root)
{
	const char *io = getenv("CKPT_TEST_IO");
	const char *encoding = getenv("CKPT_TEST_ENCODING");

	*workload = (struct workload){.store = under(root, "store"), .dest = under(root, "dest")};
	const char *elsewhere = getenv("CKPT_TEST_LOG");
	workload->log_path = elsewhere ? strdup(elsewhere) : under(root, "log");
	workload->log = open(workload->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (workload->log < 0)
		workload_die("%s: %s", workload->log_path, strerror(errno));
	workload->opts = (struct ckpt_engine_opts){.size = sizeof(workload->opts),
		.pool_bytes = 1,
		.block_bytes = 64 << 10,
		.copy_threads = 1,
		.io = io && strcmp(io, "threads") == 0 ? CKPT_IO_THREADS : CKPT_IO_AUTO,
		.encoding = encoding && strcmp(encoding, "compact") == 0 ? CKPT_ENCODING_COMPACT
									 : CKPT_ENCODING_PLAIN,
		.log_level = CKPT_LOG_ERROR,
		.save_timeout_ms = 2 * WORKLOAD_TIMEOUT_MS};
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		workload->live[i] = calloc((size_t)tensors[i].count, sizeof(float));
		if (!workload->live[i])
			workload_die("out of memory");
	}
}

void workload_free(struct workload *workload)
{
	(void)close(workload->log);
	free(workload->store);
	free(workload->dest);
	free(workload->log_path);
	for (int i = 0; i < WORKLOAD_TENSORS; i++)
		free(workload->live[i]);
}

void workload_log(struct workload *workload, const char *fmt, ...)
{
	char line[80];
	va_list args;

	va_start(args, fmt);
	int length = vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	if (workload->tell)
		workload->tell(workload, line, (size_t)length);
	else if (write(workload->log, line, (size_t)length) != length)
		workload_die("log: %s", strerror(errno));
}

void workload_open(struct workload *workload, uint32_t flags)
{
	workload->opts.flags = flags;
	workload_must(ckpt_engine_open(workload->store, &workload->opts, &workload->engine));
}

void workload_close(struct workload *workload)
{
	ckpt_engine_close(workload->engine);
	workload->engine = NULL;
}

static uint32_t next(uint32_t *x)
{
	*x = *x * 1664525u + 1013904223u;
	return *x >> 8;
}

void workload_fill(struct workload *workload, unsigned seed)
{
	uint32_t x = seed * 2654435761u + 1;

	for (int i = 0; i < WORKLOAD_TENSORS; i++)
		for (int64_t k = 0; k < tensors[i].count; k++)
			workload->live[i][k] = (float)next(&x);
}

bool workload_is(const struct workload *workload, unsigned seed)
{
	uint32_t x = seed * 2654435761u + 1;
	bool same = true;

	for (int i = 0; i < WORKLOAD_TENSORS; i++)
		for (int64_t k = 0; k < tensors[i].count; k++)
			same &= workload->live[i][k] == (float)next(&x);
	return same;
}

struct ckpt_save *workload_start(struct workload *workload, unsigned step, unsigned seed)
{
	struct ckpt_save *save = NULL;

	workload_fill(workload, seed);
	workload_must(ckpt_save_begin(workload->engine, step, NULL, &save));
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = tensors[i].name,
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &tensors[i].count,
			.data = workload->live[i]};
		workload_must(ckpt_save_add(save, &tensor, 1));
	}
	workload_log(workload, "try %u %u\n", step, seed);
	workload_must(ckpt_save_start(save));
	return save;
}

void workload_finish(
	struct workload *workload, struct ckpt_save *save, unsigned step, unsigned seed)
{
	workload_must(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, WORKLOAD_TIMEOUT_MS));
	workload_log(workload, "ack %u %u\n", step, seed);
	ckpt_save_free(save);
}

void workload_save(struct workload *workload, unsigned step, unsigned seed)
{
	workload_finish(workload, workload_start(workload, step, seed), step, seed);
}

int workload_restore(struct workload *workload, uint64_t step, bool adopt)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_restore_open(workload->engine, step, &restore);

	if (r < 0)
		return r;
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.name = tensors[i].name,
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &tensors[i].count,
			.data = workload->live[i]};
		memset(workload->live[i], 0xee, (size_t)tensors[i].count * sizeof(float));
		workload_must(ckpt_restore_bind(restore, &target, 1));
	}
	workload_must(ckpt_restore_start(restore));
	r = ckpt_restore_wait(restore, WORKLOAD_TIMEOUT_MS);
	if (r == 0) {
		r = (int)ckpt_restore_step(restore);
		if (adopt)
			workload_must(ckpt_restore_adopt(restore));
	}
	ckpt_restore_free(restore);
	return r;
}

int workload_verify(struct workload *workload, uint64_t step)
{
	struct ckpt_restore *restore = NULL;

	workload_must(ckpt_verify_start(workload->engine, step, &restore));
	int r = ckpt_restore_wait(restore, WORKLOAD_TIMEOUT_MS);
	ckpt_restore_free(restore);
	return r;
}

int workload_export(struct workload *workload, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_export_start(workload->engine, step, workload->dest, &restore);

	if (r < 0)
		return r;
	r = ckpt_restore_wait(restore, WORKLOAD_TIMEOUT_MS);
	if (r == 0)
		r = ckpt_export_existed(restore);
	ckpt_restore_free(restore);
	return r;
}
