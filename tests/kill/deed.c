/* SPDX-License-Identifier: Apache-2.0 */
#include "kill/deed.h"

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
} tensors[DEED_TENSORS] = {{"layers.0.weight", 40000}, {"layers.0.bias", 100}, {"head", 9000}};

void deed_die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vfprintf(stderr, fmt, args);
	va_end(args);
	(void)fputc('\n', stderr);
	_exit(1);
}

void deed_check(int r, const char *call, const char *file, int line)
{
	if (r == -ETIMEDOUT)
		hang_limit(call, file, line);
	if (r < 0)
		deed_die("%s: %d: %s", call, r, ckpt_last_error());
}

static char *under(const char *root, const char *name)
{
	char *path = NULL;

	if (asprintf(&path, "%s/%s", root, name) < 0)
		deed_die("out of memory");
	return path;
}

void deed_init(struct deed *deed, const char *root)
{
	const char *io = getenv("CKPT_TEST_IO");

	*deed = (struct deed){.store = under(root, "store"), .dest = under(root, "dest")};
	const char *elsewhere = getenv("CKPT_TEST_LOG");
	deed->log_path = elsewhere ? strdup(elsewhere) : under(root, "log");
	deed->log = open(deed->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (deed->log < 0)
		deed_die("%s: %s", deed->log_path, strerror(errno));
	deed->opts = (struct ckpt_engine_opts){.size = sizeof(deed->opts),
		.pool_bytes = 1,
		.block_bytes = 64 << 10,
		.copy_threads = 1,
		.io = io && strcmp(io, "threads") == 0 ? CKPT_IO_THREADS : CKPT_IO_AUTO,
		.log_level = CKPT_LOG_ERROR,
		.save_timeout_ms = 2 * DEED_TIMEOUT_MS};
	for (int i = 0; i < DEED_TENSORS; i++) {
		deed->live[i] = calloc((size_t)tensors[i].count, sizeof(float));
		if (!deed->live[i])
			deed_die("out of memory");
	}
}

void deed_free(struct deed *deed)
{
	(void)close(deed->log);
	free(deed->store);
	free(deed->dest);
	free(deed->log_path);
	for (int i = 0; i < DEED_TENSORS; i++)
		free(deed->live[i]);
}

void deed_log(struct deed *deed, const char *fmt, ...)
{
	char line[80];
	va_list args;

	va_start(args, fmt);
	int length = vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	if (deed->tell)
		deed->tell(deed, line, (size_t)length);
	else if (write(deed->log, line, (size_t)length) != length)
		deed_die("log: %s", strerror(errno));
}

void deed_open(struct deed *deed, uint32_t flags)
{
	deed->opts.flags = flags;
	deed_must(ckpt_engine_open(deed->store, &deed->opts, &deed->engine));
}

void deed_close(struct deed *deed)
{
	ckpt_engine_close(deed->engine);
	deed->engine = NULL;
}

static uint32_t next(uint32_t *x)
{
	*x = *x * 1664525u + 1013904223u;
	return *x >> 8;
}

void deed_fill(struct deed *deed, unsigned seed)
{
	uint32_t x = seed * 2654435761u + 1;

	for (int i = 0; i < DEED_TENSORS; i++)
		for (int64_t k = 0; k < tensors[i].count; k++)
			deed->live[i][k] = (float)next(&x);
}

bool deed_is(const struct deed *deed, unsigned seed)
{
	uint32_t x = seed * 2654435761u + 1;
	bool same = true;

	for (int i = 0; i < DEED_TENSORS; i++)
		for (int64_t k = 0; k < tensors[i].count; k++)
			same &= deed->live[i][k] == (float)next(&x);
	return same;
}

struct ckpt_save *deed_start(struct deed *deed, unsigned step, unsigned seed)
{
	struct ckpt_save *save = NULL;

	deed_fill(deed, seed);
	deed_must(ckpt_save_begin(deed->engine, step, NULL, &save));
	for (int i = 0; i < DEED_TENSORS; i++) {
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = tensors[i].name,
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &tensors[i].count,
			.data = deed->live[i]};
		deed_must(ckpt_save_add(save, &tensor, 1));
	}
	deed_log(deed, "try %u %u\n", step, seed);
	deed_must(ckpt_save_start(save));
	return save;
}

void deed_finish(struct deed *deed, struct ckpt_save *save, unsigned step, unsigned seed)
{
	deed_must(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, DEED_TIMEOUT_MS));
	deed_log(deed, "ack %u %u\n", step, seed);
	ckpt_save_free(save);
}

void deed_save(struct deed *deed, unsigned step, unsigned seed)
{
	deed_finish(deed, deed_start(deed, step, seed), step, seed);
}

int deed_restore(struct deed *deed, uint64_t step, bool adopt)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_restore_open(deed->engine, step, &restore);

	if (r < 0)
		return r;
	for (int i = 0; i < DEED_TENSORS; i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.name = tensors[i].name,
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &tensors[i].count,
			.data = deed->live[i]};
		memset(deed->live[i], 0xee, (size_t)tensors[i].count * sizeof(float));
		deed_must(ckpt_restore_bind(restore, &target, 1));
	}
	deed_must(ckpt_restore_start(restore));
	r = ckpt_restore_wait(restore, DEED_TIMEOUT_MS);
	if (r == 0) {
		r = (int)ckpt_restore_step(restore);
		if (adopt)
			deed_must(ckpt_restore_adopt(restore));
	}
	ckpt_restore_free(restore);
	return r;
}

int deed_verify(struct deed *deed, uint64_t step)
{
	struct ckpt_restore *restore = NULL;

	deed_must(ckpt_verify_start(deed->engine, step, &restore));
	int r = ckpt_restore_wait(restore, DEED_TIMEOUT_MS);
	ckpt_restore_free(restore);
	return r;
}

int deed_export(struct deed *deed, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_export_start(deed->engine, step, deed->dest, &restore);

	if (r < 0)
		return r;
	r = ckpt_restore_wait(restore, DEED_TIMEOUT_MS);
	if (r == 0)
		r = ckpt_export_existed(restore);
	ckpt_restore_free(restore);
	return r;
}
