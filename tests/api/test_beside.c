/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves, restores and verifications at once, in a pool of four slots: nobody waits for a slot that only
 * itself could give back. And an engine that only reads beside one that saves, in one process.
 */
#include "api/kit.h"

#define READERS 5
#define ROUNDS  20
#define COUNT   ((int64_t)300000)

struct reader {
	struct ckpt_restore *restore;
	float *out;
};

static void read_step(struct ckpt_engine *engine, uint64_t step, struct reader *reader)
{
	struct ckpt_target target = {.size = sizeof(target), .name = "w"};

	reader->out = calloc((size_t)COUNT, sizeof(float));
	assert_non_null(reader->out);
	target.data = reader->out;
	must_work(ckpt_restore_open(engine, step, &reader->restore));
	must_work(ckpt_restore_bind(reader->restore, &target, 1));
	must_work(ckpt_restore_start(reader->restore));
}

static void finish(struct reader *reader, const struct kit_vector *expected)
{
	must_work(ckpt_restore_wait(reader->restore, TIMEOUT_MS));
	assert_memory_equal(reader->out, expected->data, (size_t)COUNT * sizeof(float));
	ckpt_restore_free(reader->restore);
	free(reader->out);
}

static void test_beside(void **state)
{
	char *dir = scratch_make();
	const char *path = scratch_join(dir, "store");
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	struct kit_vector vectors[2];

	(void)state;
	opts.block_bytes = 64 << 10;
	opts.pool_bytes = 1;
	opts.keep_last = 2;
	must_work(ckpt_engine_open(path, &opts, &engine));
	kit_fill(&vectors[0], "w", COUNT, 0);
	kit_fill(&vectors[1], "w", COUNT, 1);
	must_work(kit_save(engine, 1, &vectors[1], 1));
	for (uint64_t step = 2; step < ROUNDS; step++) {
		const struct kit_vector *before = &vectors[(step - 1) % 2];
		struct reader readers[READERS];
		struct ckpt_restore *verify = NULL;
		/* The readers hold the step: what retention would remove stays. */
		for (size_t i = 0; i < READERS; i += 2)
			read_step(engine, step - 1, &readers[i]);
		struct ckpt_save *save = kit_start(engine, step, 0, &vectors[step % 2], 1);
		for (size_t i = 1; i < READERS; i += 2)
			read_step(engine, step - 1, &readers[i]);
		must_work(ckpt_verify_start(engine, step - 1, &verify));
		must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
		ckpt_save_free(save);
		for (size_t i = 0; i < READERS; i++)
			finish(&readers[i], before);
		must_work(ckpt_restore_wait(verify, TIMEOUT_MS));
		ckpt_restore_free(verify);
	}
	ckpt_engine_close(engine);
	kit_clear(&vectors[0]);
	kit_clear(&vectors[1]);
	scratch_remove(dir);
}

/* As the rehearsal of a Checkpointer opens it: before a save begins, or while it runs. */
static void test_reader(void **state)
{
	char *dir = scratch_make();
	const char *path = scratch_join(dir, "store");
	struct ckpt_engine *engine = kit_open(path, 0);
	struct kit_vector vectors[2];

	(void)state;
	kit_fill(&vectors[0], "w", COUNT, 0);
	kit_fill(&vectors[1], "w", COUNT, 1);
	must_work(kit_save(engine, 1, &vectors[1], 1));
	for (uint64_t step = 2; step < ROUNDS; step++) {
		bool early = step % 4 < 2;
		struct ckpt_engine *reader = early ? kit_open(path, CKPT_ENGINE_READ_ONLY) : NULL;
		struct ckpt_save *save = kit_start(engine, step, 0, &vectors[step % 2], 1);

		if (!early)
			reader = kit_open(path, CKPT_ENGINE_READ_ONLY);
		must_work(kit_compare(reader, step - 1, &vectors[(step - 1) % 2], 1));
		ckpt_engine_close(reader);
		must_work(kit_wait(save));
		ckpt_save_free(save);
	}
	ckpt_engine_close(engine);
	kit_clear(&vectors[0]);
	kit_clear(&vectors[1]);
	scratch_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_beside), cmocka_unit_test(test_reader)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
