/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine asks of the connections to its bucket: its share of the node's, the cap, and that they give way. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>

#include <ckpt/engine.h>
#include "base/error.h"
#include "lib/scratch.h"
#include "net/http.h"

/* What an engine asked for last. */
static struct ckpt_http_config asked;
static unsigned times;

int __wrap_ckpt_http_curl_open(
	const struct ckpt_http_config *config, struct ckpt_error *err, struct ckpt_http **ret_http);

int __wrap_ckpt_http_curl_open(
	const struct ckpt_http_config *config, struct ckpt_error *err, struct ckpt_http **ret_http)
{
	(void)ret_http;
	asked = *config;
	times++;
	return ckpt_fail(err, -ENOBUFS, "no connections in this test");
}

static void open_engine(const char *path, struct ckpt_engine_opts opts)
{
	struct ckpt_engine *engine = NULL;

	opts.size = sizeof(opts);
	/* The remote store is asked for what it has over connections of their own: not here. */
	opts.flags |= CKPT_ENGINE_NO_IMPORT;
	opts.pool_bytes = 4 << 20;
	opts.block_bytes = 1 << 20;
	times = 0;
	assert_int_equal(ckpt_engine_open(path, &opts, &engine), -ENOBUFS);
	assert_null(engine);
	assert_int_equal(times, 1);
}

static void test_a_remote_store(void **state)
{
	static const struct {
		uint32_t ranks;
		unsigned connections;
		uint64_t bytes_per_s;
	} of[] = {{0, 32, 8000000}, {1, 32, 8000000}, {2, 16, 4000000}, {8, 4, 1000000},
		{64, 4, 125000}};
	char *dir = scratch_make_in_memory();

	(void)state;
	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
		open_engine(dir, (struct ckpt_engine_opts){.remote = "s3://bucket/run",
					 .remote_bytes_per_s = 8000000,
					 .node_ranks = of[i].ranks});
		assert_int_equal(asked.connections, of[i].connections);
		assert_int_equal(asked.send_bytes_per_s, of[i].bytes_per_s);
		assert_true(asked.gives_way);
	}
	open_engine(dir, (struct ckpt_engine_opts){.remote = "s3://bucket/run", .node_ranks = 8});
	assert_int_equal(asked.send_bytes_per_s, 0);
	scratch_remove(dir);
}

/* Somebody waits for what is read. */
static void test_a_store_that_is_read(void **state)
{
	(void)state;
	open_engine("s3://bucket/run", (struct ckpt_engine_opts){.flags = CKPT_ENGINE_READ_ONLY});
	assert_int_equal(asked.connections, 32);
	assert_int_equal(asked.send_bytes_per_s, 0);
	assert_false(asked.gives_way);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_remote_store),
		cmocka_unit_test(test_a_store_that_is_read),
	};

	assert_int_equal(setenv("AWS_ACCESS_KEY_ID", "key", 1), 0);
	assert_int_equal(setenv("AWS_SECRET_ACCESS_KEY", "secret", 1), 0);
	assert_int_equal(setenv("AWS_REGION", "us-east-1", 1), 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
