/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that hangs: a file system of its own, frozen and thawed. Every call ends by its deadline, and
 * what waits for the disk holds up nothing else. The library's own deadlines are ten seconds, so all of this
 * happens at the same time, each in a child.
 */
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/kit.h"

#define SKIPPED 77

static char *dir;
static struct kit_vector v[2];

static void check_that(int ok, const char *what, int line)
{
	if (ok)
		return;
	(void)fprintf(stderr, "line %d: %s: %s\n", line, what, ckpt_last_error());
	_exit(1);
}
#define CHECK(cond) check_that((cond), #cond, __LINE__)

/* Runs a program to its end. */
static int run(char *const *arguments)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		execvp(arguments[0], arguments);
		_exit(127);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	return status;
}

/* A small ext4 at `dir`/disk, seen by this process only. Returns a descriptor to freeze it by. */
static int mount_disk(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		_exit(SKIPPED);
	CHECK(mkdir(scratch_join(dir, "disk"), 0777) == 0);
	char *image = strdup(scratch_join(dir, "image"));
	char *disk = strdup(scratch_join(dir, "disk"));
	int fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)48 << 20) == 0 && close(fd) == 0);
	CHECK(run((char *[]){"mkfs.ext4", "-q", image, NULL}) == 0);
	if (run((char *[]){"mount", "-o", "loop", image, disk, NULL}) != 0)
		_exit(SKIPPED);
	free(image);
	free(disk);
	fd = open(scratch_join(dir, "disk"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static void freeze(int fd)
{
	CHECK(ioctl(fd, FIFREEZE, 0) == 0);
}

static void thaw(int fd)
{
	CHECK(ioctl(fd, FITHAW, 0) == 0);
}

struct second {
	struct ckpt_save *save;
	pthread_t thread;
	atomic_bool started;
	int result;
};

static void *start_second(void *argument)
{
	struct second *second = argument;

	second->result = ckpt_save_start(second->save);
	atomic_store(&second->started, true);
	return NULL;
}

/* A save that waits for another one that waits for the disk does not hold up who asks something else. */
static void save_hangs(void)
{
	int disk = mount_disk();
	const char *path = scratch_join(dir, "disk/store");
	struct ckpt_engine *engine = kit_open(path, 0);
	struct second second = {0};
	struct ckpt_stats stats = {.size = sizeof(stats)};
	struct ckpt_tensor tensor = kit_tensor(&v[0]);

	CHECK(kit_save(engine, 1, v, 2) == 0);
	freeze(disk);
	struct ckpt_save *first = kit_start(engine, 2, 0, v, 2);
	CHECK(ckpt_save_begin(engine, 3, NULL, &second.save) == 0);
	CHECK(ckpt_save_add(second.save, &tensor, 1) == 0);
	CHECK(pthread_create(&second.thread, NULL, start_second, &second) == 0);
	/* It waits for the first, and nobody else for it. */
	CHECK(ckpt_save_wait(first, CKPT_LEVEL_LOCAL, 20) == -ETIMEDOUT);
	CHECK(ckpt_engine_drain(engine, 20) == -ETIMEDOUT);
	CHECK(ckpt_engine_stats(engine, &stats) == 0);
	CHECK(stats.saves_started == 2);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	CHECK(!atomic_load(&second.started));
	thaw(disk);
	CHECK(pthread_join(second.thread, NULL) == 0);
	CHECK(second.result == 0);
	CHECK(ckpt_save_wait(second.save, CKPT_LEVEL_LOCAL, TIMEOUT_MS) == 0);
	CHECK(ckpt_save_wait(first, CKPT_LEVEL_LOCAL, TIMEOUT_MS) == 0);
	ckpt_save_free(first);
	ckpt_save_free(second.save);
	ckpt_engine_close(engine);
}

/*
 * A save has ended, and the disk still holds it. It hinders the next one only as long as the disk does, and no
 * longer than the policy says.
 */
static void next_while_it_hangs(enum ckpt_busy busy, int code)
{
	int disk = mount_disk();
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;

	opts.busy = busy;
	CHECK(ckpt_engine_open(scratch_join(dir, "disk/store"), &opts, &engine) == 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	freeze(disk);
	struct ckpt_save *save = kit_start(engine, 2, 0, v, 2);
	ckpt_save_cancel(save);
	CHECK(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS) == -ECANCELED);
	CHECK(kit_save(engine, 3, v, 2) == code);
	thaw(disk);
	ckpt_save_free(save);
	ckpt_engine_close(engine);
}

static void next_is_skipped(void)
{
	next_while_it_hangs(CKPT_BUSY_SKIP, CKPT_ESKIPPED);
}

static void next_waits(void)
{
	next_while_it_hangs(CKPT_BUSY_WAIT, -ETIMEDOUT);
}

/* A claim ends by its deadline; once the disk is back, it has been made, once. */
static void claim_hangs(void)
{
	int disk = mount_disk();
	const char *path = scratch_join(dir, "disk/store");
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	uint64_t generation = 0;
	int r;

	opts.save_timeout_ms = 1;
	CHECK(ckpt_engine_open(path, &opts, &engine) == 0);
	freeze(disk);
	CHECK(ckpt_engine_claim(engine, &generation) == -ETIMEDOUT);
	CHECK(strstr(ckpt_last_error(), path) != NULL);
	CHECK(ckpt_engine_claim(engine, &generation) == -EBUSY);
	thaw(disk);
	await((r = ckpt_engine_claim(engine, &generation)) != -EBUSY);
	CHECK(r == 0 && generation == 1);
	ckpt_engine_close(engine);
}

/* Closing leaves behind what does not answer. */
static void close_hangs(void)
{
	int disk = mount_disk();
	struct ckpt_engine *engine = kit_open(scratch_join(dir, "disk/store"), 0);

	CHECK(kit_save(engine, 1, v, 2) == 0);
	freeze(disk);
	struct ckpt_save *save = kit_start(engine, 2, 0, v, 2);
	ckpt_engine_close(engine);
	thaw(disk);
	ckpt_save_free(save);
	/* Its threads are left behind on purpose: nobody is to look for them at the end. */
	(void)syscall(SYS_exit_group, 0);
}

static struct scene {
	void (*body)(void);
	char *dir;
	pid_t child;
} scenes[] = {{.body = save_hangs}, {.body = next_is_skipped}, {.body = next_waits},
	{.body = claim_hangs}, {.body = close_hangs}};

static int begin_all(void **state)
{
	(void)state;
	kit_fill(&v[0], "w", 400000, 1);
	kit_fill(&v[1], "b", 1000, 2);
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		scenes[i].dir = dir = scratch_make();
		scenes[i].child = fork();
		if (scenes[i].child == 0) {
			hang_watch();
			scenes[i].body();
			_exit(0);
		}
	}
	return 0;
}

static int free_all(void **state)
{
	(void)state;
	kit_clear(&v[0]);
	kit_clear(&v[1]);
	return 0;
}

static void test_ended_well(void **state)
{
	const struct scene *scene = *state;
	int status = -1;

	assert_int_equal(waitpid(scene->child, &status, 0), scene->child);
	scratch_remove(scene->dir);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
		print_message("skipped: needs root and loop devices\n");
		skip();
	}
	assert_int_equal(status, 0);
}

int main(void)
{
#define T(name, number)                                                                            \
	{                                                                                          \
		name, test_ended_well, NULL, NULL, &scenes[number]                                 \
	}
	const struct CMUnitTest tests[] = {T("test_save_hangs", 0),
		T("test_next_save_is_skipped", 1), T("test_next_save_waits", 2),
		T("test_claim_hangs", 3), T("test_close_hangs", 4)};
	return cmocka_run_group_tests(tests, begin_all, free_all);
}
