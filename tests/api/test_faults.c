/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bad luck with the real library on real file systems: each gives the documented error, promptly, and
 * earlier checkpoints stay as they were.
 */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/kit.h"

#define SKIPPED 77

static char *dir;
static struct kit_vector v[2];

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	kit_fill(&v[0], "w", 400000, 1);
	kit_fill(&v[1], "b", 1000, 2);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kit_clear(&v[0]);
	kit_clear(&v[1]);
	scratch_remove(dir);
	return 0;
}

/* Runs `body` in a process of its own, whose limits and mounts it may spoil. */
static void in_child(void (*body)(void))
{
	pid_t child = fork();
	if (child == 0) {
		body();
		_exit(0);
	}
	int status = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
		print_message("skipped: needs root\n");
		skip();
	}
	assert_int_equal(status, 0);
}

/* Like an assertion, in a child. */
static void check_that(int ok, const char *what, int line)
{
	if (ok)
		return;
	(void)fprintf(stderr, "line %d: %s: %s\n", line, what, ckpt_last_error());
	_exit(1);
}
#define CHECK(cond) check_that((cond), #cond, __LINE__)

static void tmpfs(const char *path, const char *options)
{
	(void)mkdir(path, 0777);
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("none", path, "tmpfs", 0, options) < 0)
		_exit(SKIPPED);
}

static int kit_save_refused(struct ckpt_engine *engine)
{
	struct ckpt_save *save = NULL;

	return ckpt_save_begin(engine, 2, NULL, &save);
}

static void full_disk(void)
{
	const char *path = scratch_join(dir, "small");
	tmpfs(path, "size=4m");
	struct ckpt_engine *engine = kit_open(path, 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	CHECK(kit_save(engine, 2, v, 2) == 0);
	CHECK(kit_save(engine, 3, v, 2) == -ENOSPC);
	CHECK(strstr(ckpt_last_error(), "space") != NULL);
	CHECK(kit_compare(engine, 2, v, 2) == 0);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	/* The space of the failed one is there again: a smaller one fits. */
	CHECK(kit_save(engine, 4, &v[1], 1) == 0);
	CHECK(kit_compare(engine, 4, &v[1], 1) == 0);
	CHECK(scratch_find(path, "step-0000000003/rank-00000") == NULL);
	/* And room that is made is used. */
	CHECK(ckpt_catalog_remove(engine, 1) == 0);
	CHECK(kit_save(engine, 5, v, 2) == 0);
	ckpt_engine_close(engine);
}

/* Disk full: the save fails with ENOSPC, its space comes back, everything else stays. */
static void test_full_disk(void **state)
{
	(void)state;
	in_child(full_disk);
}

static void no_inodes(void)
{
	const char *path = scratch_join(dir, "small");
	tmpfs(path, "size=16m,nr_inodes=12");
	struct ckpt_engine *engine = kit_open(path, 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	CHECK(kit_save(engine, 2, v, 2) == -ENOSPC);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	ckpt_engine_close(engine);
}

static void test_no_inodes(void **state)
{
	(void)state;
	in_child(no_inodes);
}

static void remounted(void)
{
	const char *path = scratch_join(dir, "small");
	tmpfs(path, "size=16m");
	struct ckpt_engine *engine = kit_open(path, 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	ckpt_engine_close(engine);
	CHECK(mount(NULL, path, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	struct ckpt_engine_opts opts = kit_opts();
	CHECK(ckpt_engine_open(path, &opts, &engine) == -EROFS);
	CHECK(strstr(ckpt_last_error(), path) != NULL);
	engine = kit_open(path, CKPT_ENGINE_READ_ONLY);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	CHECK(kit_save_refused(engine) == -EROFS);
	ckpt_engine_close(engine);
}

/* A read-only file system is no place to write, and says so at once; reading works. */
static void test_read_only(void **state)
{
	(void)state;
	in_child(remounted);
}

/* The directory vanishes under a running engine. */
static void test_vanished(void **state)
{
	(void)state;
	const char *path = scratch_join(dir, "store");
	struct ckpt_engine *engine = kit_open(path, 0);
	must_work(kit_save(engine, 1, v, 2));
	scratch_remove(strdup(path));
	assert_int_equal(kit_save(engine, 2, v, 2), -ENOENT);
	assert_non_null(strstr(ckpt_last_error(), path));
	ckpt_engine_close(engine);
}

static void no_permission(void)
{
	const char *path = scratch_join(dir, "store");
	struct ckpt_engine *engine = kit_open(path, 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	ckpt_engine_close(engine);
	CHECK(chmod(path, 0555) == 0 && chmod(dir, 0755) == 0);
	if (getuid() != 0 || setresgid(65534, 65534, 65534) < 0 ||
		setresuid(65534, 65534, 65534) < 0)
		_exit(SKIPPED);
	/* The way here may itself be closed to others: that is no fault of the library's. */
	if (access(path, R_OK | X_OK) < 0)
		_exit(SKIPPED);
	struct ckpt_engine_opts opts = kit_opts();
	int r = ckpt_engine_open(path, &opts, &engine);
	if (r == 0) {
		(void)kit_resume(engine);
		r = kit_save(engine, 2, v, 2);
		ckpt_engine_close(engine);
	}
	CHECK(r == -EACCES);
	CHECK(strstr(ckpt_last_error(), "ermission") != NULL);
	engine = kit_open(path, CKPT_ENGINE_READ_ONLY);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	ckpt_engine_close(engine);
}

static void test_no_permission(void **state)
{
	(void)state;
	in_child(no_permission);
}

static void no_ring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = filter};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_stats stats = {.size = sizeof(stats)};
	CHECK(ckpt_engine_stats(engine, &stats) == 0);
	CHECK(stats.io == CKPT_IO_THREADS);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	ckpt_engine_close(engine);
	struct ckpt_engine_opts opts = kit_opts();
	opts.io = CKPT_IO_URING;
	CHECK(ckpt_engine_open(dir, &opts, &engine) < 0);
}

/* A container that forbids io_uring: threads take over, and say so. */
static void test_no_ring(void **state)
{
	(void)state;
	in_child(no_ring);
}

static void little_memlock(void)
{
	struct rlimit limit = {64 << 10, 64 << 10};
	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (getuid() == 0 && setresuid(65534, 65534, 65534) < 0)
		_exit(SKIPPED);
	if (access(scratch_join(dir, "open"), W_OK | X_OK) < 0)
		_exit(SKIPPED);
	struct ckpt_engine *engine = kit_open(scratch_join(dir, "open/store"), 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	ckpt_engine_close(engine);
}

/* 64 KiB of lockable memory: slower perhaps, but it works. */
static void test_little_memlock(void **state)
{
	(void)state;
	const char *open_dir = scratch_join(dir, "open");
	assert_int_equal(mkdir(open_dir, 0777), 0);
	assert_int_equal(chmod(open_dir, 0777), 0);
	assert_int_equal(chmod(dir, 0755), 0);
	in_child(little_memlock);
}

static void little_shm(void)
{
	tmpfs("/dev/shm", "size=64k");
	struct ckpt_engine *engine = kit_open(dir, 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	CHECK(kit_compare(engine, 1, v, 2) == 0);
	ckpt_engine_close(engine);
}

/* A container's small /dev/shm is none of staging's business. */
static void test_little_shm(void **state)
{
	(void)state;
	in_child(little_shm);
}

static void terminated(void)
{
	struct ckpt_engine *engine = kit_open(dir, 0);
	CHECK(kit_save(engine, 1, v, 2) == 0);
	struct ckpt_save *save = kit_start(engine, 2, 0, v, 2);
	/* No handler of the library's stands between the signal and its default. */
	(void)raise(SIGTERM);
	(void)ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS);
}

/* SIGTERM in the middle of a save ends the process as if there were no library; the store is whole. */
static void test_sigterm(void **state)
{
	(void)state;
	pid_t child = fork();
	if (child == 0) {
		terminated();
		_exit(0);
	}
	int status = 0;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	struct ckpt_engine *engine = kit_open(dir, 0);
	uint64_t step = kit_resume(engine);
	assert_true(step == 1 || step == 2);
	must_work(kit_compare(engine, step, v, 2));
	must_work(kit_save(engine, 3, v, 2));
	ckpt_engine_close(engine);
}

static void write_file(const char *path, const void *data, size_t length)
{
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, length, f), length);
	assert_int_equal(fclose(f), 0);
}

/* Damage of every kind of file: found, named, and never restored; the older step is there. */
static void test_damage(void **state)
{
	(void)state;
	static const struct {
		const char *suffix;
		int code;
	} kinds[] = {{".safetensors", CKPT_EINTEGRITY}, {".index", CKPT_EINTEGRITY},
		{"step-0000000002/manifest.json", CKPT_EINTEGRITY}};
	for (size_t i = 0; i < 3; i++) {
		char *store = scratch_make();
		struct ckpt_engine *engine = kit_open(store, 0);
		must_work(kit_save(engine, 1, v, 2));
		v[0].data[5] += 1;
		must_work(kit_save(engine, 2, v, 2));
		char step[512];
		(void)snprintf(step, sizeof(step), "%s/g000001/step-0000000002", store);
		const char *file = i == 2 ? scratch_find(store, kinds[i].suffix)
					  : scratch_find(step, kinds[i].suffix);
		assert_non_null(file);
		scratch_flip(file, i == 0 ? 9000 : 100);
		int r = kit_compare(engine, 2, v, 2);
		assert_int_equal(r, kinds[i].code);
		if (i == 0) {
			assert_non_null(strstr(ckpt_last_error(), "tensor"));
			assert_non_null(scratch_find(store, "quarantine.json"));
		}
		v[0].data[5] -= 1;
		/* A restore that failed has taken the step out of the running. */
		if (i == 0 || i == 2)
			must_work(kit_compare(engine, CKPT_STEP_LATEST, v, 2));
		ckpt_engine_close(engine);
		scratch_remove(store);
	}
}

/* Missing and short files are incomplete, not corrupt. */
static void test_incomplete(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	for (uint64_t step = 1; step <= 3; step++)
		must_work(kit_save(engine, step, v, 2));
	ckpt_engine_close(engine);
	assert_int_equal(
		unlink(scratch_find(scratch_join(dir, "g000001/step-0000000003"), ".safetensors")),
		0);
	assert_int_equal(
		truncate(scratch_find(scratch_join(dir, "g000001/step-0000000002"), ".safetensors"),
			8192),
		0);
	engine = kit_open(dir, CKPT_ENGINE_READ_ONLY);
	assert_int_equal(kit_compare(engine, 3, v, 2), CKPT_EINCOMPLETE);
	assert_int_equal(kit_compare(engine, 2, v, 2), CKPT_EINCOMPLETE);
	assert_int_equal(kit_compare(engine, 1, v, 2), 0);
	/* Read only changes nothing, not even a note. */
	assert_null(scratch_find(dir, "quarantine.json"));
	ckpt_engine_close(engine);
}

/* What stands where a file was is no file: as if it were missing, and the older step is there. */
static void test_not_a_file(void **state)
{
	(void)state;
	static const char *const suffixes[] = {".safetensors", ".index", "manifest.json"};
	for (size_t i = 0; i < 3; i++) {
		char *store = scratch_make();
		struct ckpt_engine *engine = kit_open(store, 0);
		must_work(kit_save(engine, 1, v, 2));
		must_work(kit_save(engine, 2, v, 2));
		char step[512];
		(void)snprintf(step, sizeof(step), "%s/g000001/step-0000000002", store);
		char *file = strdup(scratch_find(step, suffixes[i]));
		assert_int_equal(unlink(file), 0);
		assert_int_equal(i == 1 ? symlink("/etc/passwd", file) : mkdir(file, 0777), 0);
		if (i < 2) {
			assert_int_equal(
				kit_compare(engine, CKPT_STEP_LATEST, v, 2), CKPT_EINCOMPLETE);
			assert_non_null(strstr(ckpt_last_error(), suffixes[i]));
		}
		must_work(kit_compare(engine, CKPT_STEP_LATEST, v, 2));
		ckpt_engine_close(engine);
		free(file);
		scratch_remove(store);
	}
}

/* Without its marker a store is not made anew over what it holds. */
static void test_marker_lost(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
	engine = NULL;
	char *marker = strdup(scratch_join(dir, "ckpt.json"));
	char *aside = strdup(scratch_join(dir, "aside"));
	assert_int_equal(rename(marker, aside), 0);
	assert_int_equal(ckpt_engine_open(dir, &opts, &engine), CKPT_EINCOMPLETE);
	assert_non_null(strstr(ckpt_last_error(), "ckpt.json"));
	opts.flags = CKPT_ENGINE_NEW_START;
	assert_int_equal(ckpt_engine_open(dir, &opts, &engine), CKPT_EINCOMPLETE);
	assert_int_equal(access(marker, F_OK), -1);
	assert_int_equal(rename(aside, marker), 0);
	engine = kit_open(dir, 0);
	assert_int_equal(kit_resume(engine), 1);
	ckpt_engine_close(engine);
	free(marker);
	free(aside);
}

/* A claim that does not verify hides what came before it, and only that. */
static void test_claim_damaged(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
	engine = kit_open(dir, 0);
	assert_int_equal(kit_resume(engine), 1);
	must_work(ckpt_engine_claim(engine, NULL));
	ckpt_engine_close(engine);
	/* The second one has no steps, and the first one's may not be its own any more. */
	scratch_flip(scratch_join(dir, "gens/000002.json"), 60);
	engine = kit_open(dir, 0);
	assert_int_equal(kit_compare(engine, CKPT_STEP_LATEST, v, 2), CKPT_EINTEGRITY);
	assert_non_null(strstr(ckpt_last_error(), "gens/000002.json"));
	assert_int_equal(ckpt_engine_claim(engine, NULL), CKPT_EINTEGRITY);
	ckpt_engine_close(engine);
	scratch_flip(scratch_join(dir, "gens/000002.json"), 60);
	/* The first one's claim says nothing that is needed. */
	scratch_flip(scratch_join(dir, "gens/000001.json"), 60);
	engine = kit_open(dir, 0);
	assert_int_equal(kit_resume(engine), 1);
	must_work(kit_save(engine, 2, v, 2));
	must_work(kit_compare(engine, CKPT_STEP_LATEST, v, 2));
	must_work(kit_compare(engine, 1, v, 2));
	ckpt_engine_close(engine);
}

/* A directory that is no store, a store of a newer format, a marker that is a FIFO or a link. */
static void test_strange_stores(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	opts.flags = CKPT_ENGINE_READ_ONLY;
	assert_int_equal(ckpt_engine_open(dir, &opts, &engine), CKPT_ENOSTORE);
	assert_int_equal(
		ckpt_engine_open(scratch_join(dir, "none"), &opts, &engine), CKPT_ENOSTORE);
	write_file(scratch_join(dir, "file"), "x", 1);
	assert_int_equal(ckpt_engine_open(scratch_join(dir, "file"), &opts, &engine), -ENOTDIR);
	const char *marker = scratch_join(dir, "ckpt.json");
	write_file(marker, "{}", 2);
	assert_true(ckpt_engine_open(dir, &opts, &engine) < -10000);
	assert_int_equal(unlink(marker), 0);
	assert_int_equal(mkfifo(marker, 0666), 0);
	assert_true(ckpt_engine_open(dir, &opts, &engine) < 0);
	assert_int_equal(unlink(marker), 0);
	assert_int_equal(symlink("/etc/passwd", marker), 0);
	assert_true(ckpt_engine_open(dir, &opts, &engine) < 0);
	assert_null(engine);
}

/* What a dead process left is settled by its successor: the record is there, the bytes are gone. */
static void test_settled(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
	const char *left = scratch_join(dir, "g000001/step-0000000002");
	assert_int_equal(mkdir(left, 0777), 0);
	write_file(scratch_join(left, "rank-00000.0123456789abcdef.safetensors"), "left", 4);
	engine = kit_open(dir, 0);
	assert_int_equal(kit_resume(engine), 1);
	must_work(kit_save(engine, 3, v, 2));
	must_work(kit_save(engine, 4, v, 2));
	ckpt_engine_close(engine);
	assert_null(scratch_find(left, ".safetensors"));
	assert_non_null(scratch_find(left, "manifest.json"));
	engine = kit_open(dir, CKPT_ENGINE_READ_ONLY);
	assert_int_equal(kit_compare(engine, 2, v, 2), CKPT_ENOSTEP);
	ckpt_engine_close(engine);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_full_disk), T(test_no_inodes), T(test_read_only),
		T(test_vanished), T(test_no_permission), T(test_no_ring), T(test_little_memlock),
		T(test_little_shm), T(test_sigterm), T(test_damage), T(test_incomplete),
		T(test_not_a_file), T(test_marker_lost), T(test_claim_damaged),
		T(test_strange_stores), T(test_settled)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
