/* SPDX-License-Identifier: Apache-2.0 */
/* Steps in one form here and in another one in the remote store, and steps that are stored again in another form. */
#include <stdbool.h>
#include <stdlib.h>

#include "api/kit.h"

struct scene {
	char *dir;
	char local[512];
	char remote[512];
	char url[600];
	struct kit_vector v[2];
};

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	(void)snprintf(s->url, sizeof(s->url), "file://%s", s->remote);
	kit_fill(&s->v[0], "w", 500000, 1);
	kit_fill(&s->v[1], "b", 1000, 2);
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	kit_clear(&s->v[0]);
	kit_clear(&s->v[1]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static bool has_codec(void)
{
	return strstr(ckpt_features(), "zstd") != NULL;
}

static int open_with(struct scene *s, uint32_t encoding, struct ckpt_engine **ret_engine)
{
	struct ckpt_engine_opts opts = kit_opts();

	opts.remote = s->url;
	opts.remote_encoding = encoding;
	return ckpt_engine_open(s->local, &opts, ret_engine);
}

static void compare(struct scene *s, const char *store, uint64_t step)
{
	struct ckpt_engine *engine = kit_open(store, CKPT_ENGINE_READ_ONLY);

	must_work(kit_compare(engine, step, s->v, 2));
	ckpt_engine_close(engine);
}

static void test_remote_encoding(void **state)
{
	struct scene *s = *state;
	struct ckpt_engine *engine = NULL;
	struct ckpt_stats stats = {.size = sizeof(stats)};

	assert_int_equal(open_with(s, 3, &engine), -EINVAL);
	if (!has_codec()) {
		assert_int_equal(open_with(s, CKPT_REMOTE_COMPACT, &engine), CKPT_EUNSUPPORTED);
		return;
	}
	must_work(open_with(s, CKPT_REMOTE_COMPACT, &engine));
	must_work(kit_save(engine, 1, s->v, 2));
	must_work(kit_save(engine, 2, s->v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	must_work(ckpt_engine_stats(engine, &stats));
	/* The file is read again. */
	assert_int_equal(stats.bytes_uploaded_staged, 0);
	assert_true(stats.bytes_uploaded > UINT64_C(2) * 2000000);
	ckpt_engine_close(engine);
	assert_non_null(scratch_find(s->remote, ".encoded"));
	assert_null(scratch_find(s->remote, ".safetensors"));
	assert_null(scratch_find(s->local, ".encoded"));
	compare(s, s->remote, 1);
	compare(s, s->remote, 2);
}

static int recode(struct ckpt_engine *engine, uint64_t step, uint32_t encoding, uint32_t ranks)
{
	struct ckpt_recode_info info = {.size = sizeof(info)};
	struct ckpt_restore *restore = NULL;

	must_work(ckpt_recode_step_start(engine, step, encoding, &restore));
	int r = ckpt_restore_wait(restore, TIMEOUT_MS);
	must_work(ckpt_recode_step_info(restore, &info));
	assert_int_equal(info.ranks, ranks);
	ckpt_restore_free(restore);
	return r;
}

static void test_recode(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *restore = NULL;
	struct ckpt_engine *engine = kit_open(s->local, 0);

	must_work(kit_save(engine, 1, s->v, 2));
	if (!has_codec()) {
		assert_int_equal(ckpt_recode_step_start(engine, 1, CKPT_ENCODING_COMPACT, &restore),
			CKPT_EUNSUPPORTED);
		ckpt_engine_close(engine);
		return;
	}
	must_work(recode(engine, 1, CKPT_ENCODING_COMPACT, 1));
	must_work(recode(engine, 1, CKPT_ENCODING_COMPACT, 0));
	assert_non_null(scratch_find(s->local, ".encoded"));
	assert_null(scratch_find(s->local, ".safetensors"));
	must_work(kit_compare(engine, 1, s->v, 2));
	must_work(recode(engine, 1, CKPT_ENCODING_PLAIN, 1));
	assert_null(scratch_find(s->local, ".encoded"));
	must_work(kit_compare(engine, 1, s->v, 2));
	assert_int_equal(recode(engine, 7, CKPT_ENCODING_COMPACT, 0), CKPT_ENOSTEP);
	assert_int_equal(ckpt_recode_step_start(engine, 1, 9, &restore), -EINVAL);
	ckpt_engine_close(engine);
	engine = kit_open(s->local, CKPT_ENGINE_READ_ONLY);
	assert_int_equal(recode(engine, 1, CKPT_ENCODING_COMPACT, 0), -EROFS);
	ckpt_engine_close(engine);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_remote_encoding, setup, teardown),
		cmocka_unit_test_setup_teardown(test_recode, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
