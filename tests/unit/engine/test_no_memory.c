/* SPDX-License-Identifier: Apache-2.0 */
/* What lacks memory says so and leaves nothing behind; an end needs none. */
#include "lib/test.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ckpt/ckpt.h>

#include "base/alloc.h"
#include "lib/scratch.h"

int __real_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attr);
int __real_munmap(void *at, size_t size);
int __wrap_munmap(void *at, size_t size);

static bool no_locks;
static bool no_unmapping;

int __wrap_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attr)
{
	return no_locks ? ENOMEM : __real_pthread_mutex_init(lock, attr);
}

int __wrap_munmap(void *at, size_t size)
{
	if (!no_unmapping)
		return __real_munmap(at, size);
	errno = ENOMEM;
	return -1;
}

static struct ckpt_engine *open_engine(const char *path)
{
	const struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.pool_bytes = 1,
		.block_bytes = 64 << 10,
		.copy_threads = 1,
		.io = CKPT_IO_THREADS};
	struct ckpt_engine *engine = NULL;

	assert_int_equal(ckpt_engine_open(path, &opts, &engine), 0);
	return engine;
}

/* Allocations of this thread that succeed before one does not; NULL: all do. */
static _Thread_local unsigned *to_pass;

static bool refuse(void *user, size_t size)
{
	(void)user;
	(void)size;
	return to_pass && (*to_pass)-- == 0;
}

/* Whichever allocation fails, the destination's descriptor is closed. Without some of them it goes on. */
static void test_export_closes_what_it_opened(void **state)
{
	char *dir = scratch_make();
	/* The engine's threads read the hook: it is there before them. */
	ckpt_alloc_set_hook(refuse, NULL);
	struct ckpt_engine *engine = open_engine(scratch_join(dir, "store"));
	size_t descriptors = scratch_descriptors();
	struct ckpt_restore *restore = NULL;
	unsigned failures = 0;
	unsigned refusals = 0;
	bool refused;

	(void)state;
	do {
		unsigned left = failures;
		to_pass = &left;
		int r = ckpt_export_start(engine, 1, scratch_join(dir, "dest"), &restore);
		to_pass = NULL;
		refused = left > failures++;
		if (r < 0) {
			assert_int_equal(r, -ENOMEM);
			assert_string_not_equal(ckpt_last_error(), "");
			assert_int_equal(scratch_descriptors(), descriptors);
			refusals++;
		} else {
			assert_true(ckpt_restore_wait(restore, 10000) < 0);
			ckpt_restore_free(restore);
			scratch_descriptors_settle(descriptors);
		}
	} while (refused);
	assert_true(refusals >= 3);
	ckpt_engine_close(engine);
	ckpt_alloc_set_hook(NULL, NULL);
	scratch_remove(dir);
}

static void test_close_needs_no_lock(void **state)
{
	char *dir = scratch_make();
	size_t descriptors = scratch_descriptors();
	size_t threads = scratch_threads();
	struct ckpt_engine *engine = open_engine(scratch_join(dir, "store"));

	(void)state;
	no_locks = true;
	ckpt_engine_close(engine);
	no_locks = false;
	scratch_threads_settle(threads);
	assert_int_equal(scratch_descriptors(), descriptors);
	scratch_remove(dir);
}

/* A machine that has no more mappings cannot split one: the staging memory stays, the program goes on. */
static void test_close_with_mappings_used_up(void **state)
{
	char *dir = scratch_make();
	struct ckpt_engine *engine = open_engine(scratch_join(dir, "store"));

	(void)state;
	no_unmapping = true;
	ckpt_engine_close(engine);
	no_unmapping = false;
	scratch_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_export_closes_what_it_opened),
		cmocka_unit_test(test_close_needs_no_lock),
		cmocka_unit_test(test_close_with_mappings_used_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
