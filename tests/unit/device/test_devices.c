/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs that are opened, and the staging memory that they share: put near the first of them, and pinned. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "cuda/cuda_rig.h"
#include "device/devices.h"
#include "lib/scratch.h"

#define SIZE  ((size_t)1 << 21)
#define PARTS 3 /* that staging grows to */

/* The two GPUs of the fake runtime. */
#define FIRST  "/sys/bus/pci/devices/0000:3b:00.0/numa_node"
#define SECOND "/sys/bus/pci/devices/0000:af:00.0/numa_node"
#define NODES  "/sys/devices/system/node/has_memory"

/* A thread of a test, which the teardown joins if the test has not. */
struct helper {
	pthread_t thread;
	int result;
	bool runs;
};

struct scene {
	char *tree;
	char *staging;
	struct ckpt_log *log;
	struct ckpt_numa_ops numa;
	struct ckpt_devices devices;
	struct ckpt_error err;
	struct helper helpers[2];
};

static struct cuda_rig *rig;
static struct scene scene;

static struct {
	unsigned calls;
	ptrdiff_t last; /* part that it was called for */
	size_t bytes;
	unsigned long nodes; /* the first word */
	bool pinned;         /* when it was called */
	int error;
} bound;

static long watch_mbind(void *base, size_t size, int mode, const unsigned long *nodes,
	unsigned long bits, unsigned flags)
{
	(void)mode;
	(void)bits;
	(void)flags;
	bound.last = ((char *)base - scene.staging) / (ptrdiff_t)SIZE;
	bound.bytes += size;
	bound.calls++;
	bound.nodes = nodes[0];
	bound.pinned = rig->fake->live(FAKE_PINNED) > 0;
	errno = bound.error;
	return bound.error ? -1 : 0;
}

static int setup(void **state)
{
	struct ckpt_devices_config config = {0};

	memset(&bound, 0, sizeof(bound));
	memset(&scene, 0, sizeof(scene));
	rig = cuda_rig_fake();
	rig->fake->reset(4);
	scene.tree = scratch_make();
	scene.staging = cuda_rig_pages(PARTS * SIZE);
	scene.numa = (struct ckpt_numa_ops){.root = scene.tree, .mbind = watch_mbind};
	assert_int_equal(ckpt_log_open(CKPT_LOG_INFO, &scene.log), 0);
	scratch_put(scene.tree, NODES, "0-1\n");
	scratch_put(scene.tree, FIRST, "1\n");
	scratch_put(scene.tree, SECOND, "0\n");
	assert_int_equal(ckpt_device_host_open(&rig->env, &config.host), 0);
	config.env = &rig->env;
	config.staging = scene.staging;
	config.staging_bytes = SIZE;
	config.log = scene.log;
	config.numa = &scene.numa;
	assert_int_equal(ckpt_devices_init(&scene.devices, &config), 0);
	*state = &scene;
	return 0;
}

static void help(struct helper *helper, const char *name, void *(*body)(void *helper))
{
	helper->result = 1;
	assert_int_equal(ckpt_thread_start(&helper->thread, name, body, helper), 0);
	helper->runs = true;
}

static void join(struct helper *helper)
{
	if (helper->runs)
		(void)pthread_join(helper->thread, NULL);
	helper->runs = false;
}

static int teardown(void **state)
{
	(void)state;
	/* A test that has failed may have left it blocked. */
	rig->fake->block(NULL);
	for (size_t i = 0; i < CKPT_COUNT(scene.helpers); i++)
		join(&scene.helpers[i]);
	ckpt_devices_close(&scene.devices);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 0);
	ckpt_log_close(scene.log);
	cuda_rig_pages_free(scene.staging, PARTS * SIZE);
	scratch_remove(scene.tree);
	return 0;
}

static void need(uint64_t mask)
{
	assert_int_equal(ckpt_devices_need(&scene.devices, mask, &scene.err), 0);
}

/* How many lines since the last call have the words. */
static unsigned logged(const char *words)
{
	struct ckpt_log_record record = {.size = sizeof(record)};
	unsigned lines = 0;

	while (ckpt_log_next(scene.log, 0, &record) == 0)
		lines += strstr(record.message, words) != NULL;
	return lines;
}

static void staging_is_put_near_the_first_gpu_before_it_is_pinned(void **state)
{
	(void)state;
	need(2);
	assert_int_equal(bound.calls, 1);
	assert_int_equal(bound.bytes, SIZE);
	assert_int_equal(bound.nodes, 2);
	assert_false(bound.pinned);
	assert_int_equal(logged("pinned 2 MiB of staging in pages of 4 KiB on NUMA node 1 for GPU "
				"0, which took "),
		1);
	need(2);
	assert_int_equal(bound.calls, 1);
}

/* Whoever is first: the other one is told of, and nothing that is pinned is asked to move. */
static void a_gpu_of_another_node_is_told_of(void **state)
{
	(void)state;
	need(4);
	assert_int_equal(bound.nodes, 1);
	assert_int_equal(logged("on NUMA node 0 for GPU 1"), 1);
	need(2);
	assert_int_equal(bound.calls, 1);
	assert_int_equal(logged("staging is on NUMA node 0 but GPU 0 on node 1"), 1);
}

static void gpus_of_one_node_need_no_words(void **state)
{
	(void)state;
	scratch_put(scene.tree, SECOND, "1\n");
	need(6);
	assert_int_equal(bound.calls, 1);
	assert_int_equal(logged("staging is on"), 0);
}

/* As containers do. It is tried once. */
static void a_refusal_is_no_failure(void **state)
{
	(void)state;
	bound.error = EPERM;
	need(2);
	assert_int_equal(logged("staging cannot be put on NUMA node 1"), 1);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 1);
	need(4);
	assert_int_equal(bound.calls, 1);
	assert_int_equal(logged("NUMA"), 0);
}

/* A virtual machine; a runtime that fails the call, or lacks it. The other GPU comes too late. */
static void where_nobody_says_where_a_gpu_is_nothing_moves(void **state)
{
	int e;

	(void)state;
	rig->fake->fail_call("cudaDeviceGetPCIBusId", 1, CKPT_CUDA_INVALID_VALUE);
	need(2);
	assert_true(rig->fake->failed());
	e = rig->api.get_last_error();
	assert_int_equal(e, CKPT_CUDA_SUCCESS);
	assert_string_equal(ckpt_devices_get(&scene.devices, 1)->bus, "");
	need(4);
	assert_int_equal(bound.calls, 0);
	assert_int_equal(logged("NUMA"), 0);
	assert_string_equal(ckpt_devices_get(&scene.devices, 2)->bus, "0000:AF:00.0");
}

static void with_one_node_nothing_moves(void **state)
{
	(void)state;
	scene.devices.config.staging_huge = true;
	scratch_put(scene.tree, NODES, "0\n");
	need(2);
	assert_int_equal(
		logged("pinned 2 MiB of staging in huge pages for GPU 0, which took 0."), 1);
	need(4);
	assert_int_equal(bound.calls, 0);
	assert_int_equal(logged("NUMA"), 0);
}

/* What cannot be pinned lies near all the same, and the next GPU tries to pin it again. */
static void staging_that_cannot_be_pinned_is_put_there_once(void **state)
{
	(void)state;
	rig->fake->limit_pinned(0);
	need(2);
	rig->fake->limit_pinned(SIZE_MAX);
	need(4);
	assert_int_equal(bound.calls, 1);
	assert_int_equal(bound.nodes, 2);
	assert_int_equal(
		logged("pinned 2 MiB of staging in pages of 4 KiB on NUMA node 1 for GPU 1"), 1);
}

static int add(unsigned part)
{
	return ckpt_devices_add(&scene.devices, scene.staging + part * SIZE, SIZE, &scene.err);
}

/* Each for itself, so that what GPUs copy to meanwhile stays as it is; and all of it for a GPU that comes later. */
static void staging_that_grows_is_pinned_in_parts(void **state)
{
	(void)state;
	assert_false(ckpt_devices_pinned(&scene.devices));
	need(2);
	assert_true(ckpt_devices_pinned(&scene.devices));
	for (unsigned part = 1; part < PARTS; part++) {
		ckpt_devices_place(&scene.devices, scene.staging + part * SIZE, SIZE);
		assert_int_equal(bound.last, part);
		assert_int_equal(bound.nodes, 2);
		assert_int_equal(add(part), 0);
		assert_int_equal(rig->fake->live(FAKE_PINNED), part + 1);
	}
	need(4);
	assert_int_equal(logged("pinned 6 MiB of staging in pages of 4 KiB"), 1);
	assert_int_equal(bound.calls, PARTS);
}

/* The GPUs that come then have it with the rest. */
static void staging_that_grows_before_the_first_gpu_is_pinned_with_it(void **state)
{
	(void)state;
	for (unsigned part = 1; part < PARTS; part++) {
		ckpt_devices_place(&scene.devices, scene.staging + part * SIZE, SIZE);
		assert_int_equal(add(part), 0);
	}
	assert_int_equal(bound.calls, 0);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 0);
	need(2);
	assert_int_equal(bound.bytes, PARTS * SIZE);
	assert_int_equal(logged("pinned 6 MiB of staging in pages of 4 KiB"), 1);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
}

/* What goes is pinned by no GPU any more, nor by those that come later; and only parts go that were pinned as one. */
static void staging_that_shrinks_is_pinned_no_more(void **state)
{
	(void)state;
	for (unsigned part = 1; part < PARTS; part++)
		assert_int_equal(add(part), 0);
	assert_int_equal(ckpt_devices_tail(&scene.devices), 0);
	assert_true(ckpt_devices_trim(&scene.devices, SIZE / 2));
	assert_true(ckpt_devices_trim(&scene.devices, SIZE / 2));
	need(2);
	assert_int_equal(logged("pinned 4 MiB of staging"), 1);
	assert_int_equal(add(2), 0);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 3);
	assert_int_equal(ckpt_devices_tail(&scene.devices), SIZE);
	assert_false(ckpt_devices_trim(&scene.devices, SIZE / 2));
	assert_false(ckpt_devices_trim(&scene.devices, 2 * SIZE));
	assert_int_equal(rig->fake->live(FAKE_PINNED), 3);
	assert_true(ckpt_devices_trim(&scene.devices, SIZE));
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
	need(4);
	assert_int_equal(logged("pinned 4 MiB of staging"), 1);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
	assert_true(ckpt_devices_trim(&scene.devices, SIZE));
	assert_int_equal(rig->fake->live(FAKE_PINNED), 1);
	/* What there was from the beginning. */
	assert_false(ckpt_devices_trim(&scene.devices, SIZE));
	assert_int_equal(add(1), 0);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
}

/* The GPU has the old pages there: were the new ones taken for pinned, it would copy to and from the old ones. */
static void where_a_gpu_has_not_let_go_staging_does_not_grow_again(void **state)
{
	(void)state;
	need(6);
	assert_int_equal(add(1), 0);
	rig->fake->fail_call("cudaHostUnregister", 1, CKPT_CUDA_INVALID_VALUE);
	assert_true(ckpt_devices_trim(&scene.devices, SIZE));
	assert_true(rig->fake->failed());
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
	assert_int_equal(logged("2 MiB of staging memory cannot be unpinned for GPU 0 ("), 1);
	for (unsigned i = 0; i < 2; i++) {
		ckpt_error_clear(&scene.err);
		assert_int_equal(add(1), CKPT_EDEVICE);
		assert_non_null(strstr(scene.err.message, "or could not be unpinned before"));
	}
	/* Nor a part of it. */
	assert_int_equal(
		ckpt_devices_add(&scene.devices, scene.staging + SIZE + SIZE / 2, SIZE, &scene.err),
		CKPT_EDEVICE);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
	assert_int_equal(add(2), 0);
}

/* It is not used then, by no GPU; nor is it pinned for one that comes later. */
static void a_part_that_cannot_be_pinned_is_refused(void **state)
{
	(void)state;
	need(6);
	rig->fake->limit_pinned(SIZE + SIZE / 2);
	assert_int_equal(add(1), CKPT_EDEVICE);
	assert_non_null(strstr(scene.err.message, "cannot be pinned"));
	assert_int_equal(rig->fake->live(FAKE_PINNED), 1);
	rig->fake->limit_pinned(SIZE_MAX);
	ckpt_error_clear(&scene.err);
	assert_int_equal(add(1), 0);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
}

/* A late GPU that cannot have all has none: what it copies goes by way of the driver's own memory. */
static void a_gpu_that_cannot_pin_all_parts_pins_none(void **state)
{
	(void)state;
	assert_int_equal(add(1), 0);
	rig->fake->limit_pinned(SIZE + SIZE / 2);
	need(2);
	assert_int_equal(logged("the staging memory cannot be pinned"), 1);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 0);
	/* What is added after it is not pinned either. */
	rig->fake->limit_pinned(SIZE_MAX);
	assert_false(ckpt_devices_pinned(&scene.devices));
	assert_int_equal(add(2), 0);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 0);
}

static void *add_second(void *helper)
{
	((struct helper *)helper)->result = add(1);
	return NULL;
}

static void *need_second(void *helper)
{
	struct ckpt_error err = {.size = sizeof(err)};

	((struct helper *)helper)->result = ckpt_devices_need(&scene.devices, 4, &err);
	return NULL;
}

/* A driver may take any time to pin it. Whoever comes with another GPU does not wait, and that one pins it as well. */
static void gpus_may_come_while_a_part_is_being_pinned(void **state)
{
	struct ckpt_error err = {.size = sizeof(err)};

	(void)state;
	need(2);
	rig->fake->block("cudaHostRegister");
	help(&scene.helpers[0], "adder", add_second);
	rig->fake->await_blocked();
	/* Not there, which is found out when it is opened. */
	assert_int_equal(ckpt_devices_need(&scene.devices, UINT64_C(1) << 40, &err), CKPT_EDEVICE);
	help(&scene.helpers[1], "needer", need_second);
	rig->fake->block(NULL);
	for (int i = 0; i < 2; i++) {
		join(&scene.helpers[i]);
		assert_int_equal(scene.helpers[i].result, 0);
	}
	assert_int_equal(rig->fake->calls("cudaHostRegister"), 4);
	assert_int_equal(rig->fake->live(FAKE_PINNED), 2);
}

static bool has_thread(const char *name)
{
	DIR *tasks = opendir("/proc/self/task");
	bool found = false;

	assert_non_null(tasks);
	for (struct dirent *task = readdir(tasks); task && !found; task = readdir(tasks)) {
		char path[300];
		char text[32] = "";

		(void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		found = fgets(text, sizeof(text), file) && strcmp(text, name) == 0;
		(void)fclose(file);
	}
	(void)closedir(tasks);
	return found;
}

/* It waits for a driver, for as long as that takes: a list of threads tells it from the workers. */
static void the_thread_that_pins_has_a_name_of_its_own(void **state)
{
	struct ckpt_env *env = NULL;

	(void)state;
	assert_int_equal(ckpt_devices_env(&scene.devices, &scene.err, &env), 0);
	assert_ptr_not_equal(env, &rig->env);
	assert_true(has_thread("ckpt-pin-0\n"));
	assert_false(has_thread("ckpt-work-0\n"));
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(staging_is_put_near_the_first_gpu_before_it_is_pinned),
		PROMISE(a_gpu_of_another_node_is_told_of),
		PROMISE(gpus_of_one_node_need_no_words),
		PROMISE(a_refusal_is_no_failure),
		PROMISE(where_nobody_says_where_a_gpu_is_nothing_moves),
		PROMISE(with_one_node_nothing_moves),
		PROMISE(staging_that_cannot_be_pinned_is_put_there_once),
		PROMISE(staging_that_grows_is_pinned_in_parts),
		PROMISE(staging_that_grows_before_the_first_gpu_is_pinned_with_it),
		PROMISE(staging_that_shrinks_is_pinned_no_more),
		PROMISE(where_a_gpu_has_not_let_go_staging_does_not_grow_again),
		PROMISE(a_part_that_cannot_be_pinned_is_refused),
		PROMISE(a_gpu_that_cannot_pin_all_parts_pins_none),
		PROMISE(gpus_may_come_while_a_part_is_being_pinned),
		PROMISE(the_thread_that_pins_has_a_name_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
