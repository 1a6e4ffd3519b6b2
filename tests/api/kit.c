/* SPDX-License-Identifier: Apache-2.0 */
#include "api/kit.h"

void kit_fill(struct kit_vector *vector, const char *name, int64_t count, unsigned seed)
{
	(void)snprintf(vector->name, sizeof(vector->name), "%s", name);
	vector->count = count;
	vector->data = malloc((size_t)count * sizeof(float) + 1);
	assert_non_null(vector->data);
	uint64_t x = seed * 2654435761u + 1;
	for (int64_t i = 0; i < count; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		vector->data[i] = (float)(x >> 40);
	}
}

void kit_clear(struct kit_vector *vector)
{
	free(vector->data);
	vector->data = NULL;
}

struct ckpt_tensor kit_tensor(const struct kit_vector *vector)
{
	return (struct ckpt_tensor){.size = sizeof(struct ckpt_tensor),
		.name = vector->name,
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = &vector->count,
		.data = vector->data};
}

struct ckpt_engine_opts kit_opts(void)
{
	const char *io = getenv("CKPT_TEST_IO");
	const char *encoding = getenv("CKPT_TEST_ENCODING");

	return (struct ckpt_engine_opts){.size = sizeof(struct ckpt_engine_opts),
		.pool_bytes = 4 << 20,
		.block_bytes = 256 << 10,
		.copy_threads = 2,
		.io = io && strcmp(io, "threads") == 0 ? CKPT_IO_THREADS : CKPT_IO_AUTO,
		.encoding = encoding && strcmp(encoding, "compact") == 0 ? CKPT_ENCODING_COMPACT
									 : CKPT_ENCODING_PLAIN,
		.save_timeout_ms = LONG_MS};
}

const char *kit_shard_suffix(void)
{
	return kit_opts().encoding == CKPT_ENCODING_COMPACT ? ".encoded" : ".safetensors";
}

struct ckpt_engine *kit_open(const char *path, uint32_t flags)
{
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;

	opts.flags = flags;
	must_work(ckpt_engine_open(path, &opts, &engine));
	return engine;
}

struct ckpt_save *kit_start(struct ckpt_engine *engine, uint64_t step, uint32_t flags,
	const struct kit_vector *vectors, size_t n)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = flags};
	struct ckpt_save *save = NULL;

	must_work(ckpt_save_begin(engine, step, &opts, &save));
	for (size_t i = 0; i < n; i++) {
		struct ckpt_tensor tensor = kit_tensor(&vectors[i]);
		must_work(ckpt_save_add(save, &tensor, 1));
	}
	(void)ckpt_save_start(save);
	return save;
}

int kit_wait_at(struct ckpt_save *save, const char *file, int line)
{
	int r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS);

	if (r == -ETIMEDOUT && ckpt_save_error(save, NULL) == 0)
		hang_limit("the end of a save", file, line);
	return r;
}

int kit_wait_restore_at(struct ckpt_restore *restore, const char *file, int line)
{
	int r = ckpt_restore_wait(restore, TIMEOUT_MS);

	if (r == -ETIMEDOUT && ckpt_restore_error(restore, NULL) == 0)
		hang_limit("the end of a restore", file, line);
	return r;
}

int kit_save(struct ckpt_engine *engine, uint64_t step, const struct kit_vector *vectors, size_t n)
{
	struct ckpt_save *save = kit_start(engine, step, 0, vectors, n);
	int r = kit_wait(save);

	ckpt_save_free(save);
	return r;
}

int kit_compare(
	struct ckpt_engine *engine, uint64_t step, const struct kit_vector *vectors, size_t n)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_restore_open(engine, step, &restore);

	if (r < 0)
		return r;
	float **out = calloc(n + 1, sizeof(*out));
	assert_non_null(out);
	for (size_t i = 0; i < n; i++) {
		out[i] = calloc((size_t)vectors[i].count + 1, sizeof(float));
		struct ckpt_target target = {.size = sizeof(target),
			.name = vectors[i].name,
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &vectors[i].count,
			.data = out[i]};
		must_work(ckpt_restore_bind(restore, &target, 1));
	}
	must_work(ckpt_restore_start(restore));
	r = kit_wait_restore(restore);
	ckpt_restore_free(restore);
	for (size_t i = 0; i < n; i++) {
		if (r == 0)
			assert_memory_equal(
				out[i], vectors[i].data, (size_t)vectors[i].count * sizeof(float));
		free(out[i]);
	}
	free(out);
	return r;
}

uint64_t kit_resume(struct ckpt_engine *engine)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_restore_open(engine, CKPT_STEP_LATEST, &restore);

	if (r == CKPT_ENOSTEP)
		return 0;
	must_work(r);
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	must_work(ckpt_restore_adopt(restore));
	uint64_t step = ckpt_restore_step(restore);
	ckpt_restore_free(restore);
	return step;
}
