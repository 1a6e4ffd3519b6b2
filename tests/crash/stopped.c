/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: stopped DEVICE FS DIR
 *
 * A name is changed on the file system in the file DEVICE, mounted at DIR, and the directory is synced. When
 * it is open, and right before the kernel is asked, the file system is shut down. The change is lost, so the
 * sync must have failed. XFS itself says 0. The linker puts __wrap_fsync() around fsync().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ground.h"
#include "io/io.h"
#include "kill/workload.h"

static struct ground ground;
static bool shuts_down;

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
	if (shuts_down)
		ground_shut_down(&ground);
	shuts_down = false;
	return __real_fsync(fd);
}

static int64_t sync_dir(int root)
{
	struct ckpt_io_req req = {.op = CKPT_IO_OP_SYNC_DIR, .root = root, .path = "steps"};

	ckpt_io_exec(&req);
	return req.result;
}

static void make(int root)
{
	int fd = mkdirat(root, "steps", 0755) < 0
			 ? -1
			 : openat(root, "steps/one", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	if (fd < 0 || fsync(fd) < 0 || close(fd) < 0 || fsync(root) < 0)
		workload_die("steps/one: %s", strerror(errno));
	int64_t r = sync_dir(root);
	if (r < 0)
		workload_die("a sync while all is well: %s", strerror((int)-r));
	if (renameat(root, "steps/one", root, "steps/two") < 0)
		workload_die("rename: %s", strerror(errno));
}

static bool there(int root, const char *path)
{
	struct stat st;

	return fstatat(root, path, &st, 0) == 0;
}

/* Whether the change was lost, as it is when nothing more was written. */
static bool lost(void)
{
	ground_unmount(&ground);
	int r = ground_mount(&ground);
	int root = open(ground.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r < 0 || root < 0)
		workload_die("mounting it again: %s", strerror(r < 0 ? -r : errno));
	bool is = !there(root, "steps/two");
	(void)close(root);
	ground_unmount(&ground);
	return is;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		workload_die("usage: stopped DEVICE FS DIR");
	ground_bind();
	int device = open(argv[1], O_RDWR | O_CLOEXEC);
	if (device < 0)
		workload_die("%s: %s", argv[1], strerror(errno));
	ground_open(&ground, device, argv[2], argv[3]);
	int r = ground_mount(&ground);
	int root = open(ground.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r < 0 || root < 0)
		workload_die("mount: %s", strerror(r < 0 ? -r : errno));
	make(root);
	shuts_down = true;
	int64_t synced = sync_dir(root);
	(void)close(root);
	if (synced == 0 && lost())
		workload_die("the sync was answered with 0, and the change is lost");
	if (synced < 0)
		ground_unmount(&ground);
	ground_close(&ground);
	(void)printf("counts syncs=1 failed=0\n");
	return 0;
}
