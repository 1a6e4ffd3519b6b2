/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the directory and the socket of an agent. */
#include "directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "peer/connection.h"

#define BACKLOG 128

void agent_directory_default(const char *runtime, char *ret_path, size_t size)
{
	if (runtime && runtime[0] == '/')
		(void)snprintf(ret_path, size, "%s/ckptd", runtime);
	else
		(void)snprintf(ret_path, size, "/tmp/ckptd-%u", (unsigned)geteuid());
}

static int cannot(struct ckpt_error *err, const char *what, const char *path)
{
	int code = -errno;

	return ckpt_fail(err, code, "cannot %s %s: %s", what, path, ckpt_code_text(code));
}

/* It must be one that nobody else can enter: what is in it is trusted. */
static int check(int fd, const char *path, struct ckpt_error *err)
{
	struct stat status;

	if (fstat(fd, &status) < 0)
		return cannot(err, "look at", path);
	if (status.st_uid != geteuid())
		return ckpt_fail(err, -EACCES,
			"%s belongs to another user; choose another directory with --dir", path);
	if (status.st_mode & 077)
		return ckpt_fail(err, -EACCES,
			"%s is open to other users (mode %03o); run chmod 700 on it, or choose "
			"another "
			"directory with --dir",
			path, (unsigned)status.st_mode & 0777);
	return 0;
}

/* The lock is of a file that stays: a new file could be locked by somebody else beside the old one. */
static int lock(int dir, const char *path, struct ckpt_error *err, int *ret_lock)
{
	int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r;

	if (fd < 0)
		return cannot(err, "make the lock in", path);
	if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
		*ret_lock = fd;
		return 0;
	}
	r = -errno;
	(void)close(fd);
	if (r == -EWOULDBLOCK)
		return ckpt_fail(err, CKPT_EINUSE,
			"another ckptd serves %s; see ckptd --status, or choose another directory "
			"with "
			"--dir",
			path);
	return ckpt_fail(err, r, "cannot lock %s: %s", path, ckpt_code_text(r));
}

int agent_directory_open(
	const char *path, struct ckpt_error *err, struct agent_directory *ret_directory)
{
	struct agent_directory directory = {.lock = -1, .socket = -1};
	int dir;
	int r;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return cannot(err, "make the directory", path);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return cannot(err, "open the directory", path);
	r = check(dir, path, err);
	if (r == 0)
		r = lock(dir, path, err, &directory.lock);
	(void)close(dir);
	if (r == 0)
		*ret_directory = directory;
	return r;
}

int agent_directory_listen(
	struct agent_directory *directory, const char *path, struct ckpt_error *err)
{
	struct sockaddr_un address;
	int r = ckpt_peer_socket_address(path, err, &address);
	int fd;

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return cannot(err, "make a socket in", path);
	/* What an agent has left that was killed. The lock says that there is no other one. */
	(void)unlink(address.sun_path);
	if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		r = cannot(err, "make the socket", address.sun_path);
	else if (chmod(address.sun_path, 0600) < 0 || listen(fd, BACKLOG) < 0)
		r = cannot(err, "listen at", address.sun_path);
	if (r < 0)
		(void)close(fd);
	else
		directory->socket = fd;
	return r;
}

void agent_directory_close(struct agent_directory *directory, const char *path)
{
	struct sockaddr_un address;

	if (directory->socket >= 0) {
		if (ckpt_peer_socket_address(path, NULL, &address) == 0)
			(void)unlink(address.sun_path);
		(void)close(directory->socket);
	}
	if (directory->lock >= 0)
		(void)close(directory->lock);
	*directory = (struct agent_directory){.lock = -1, .socket = -1};
}
