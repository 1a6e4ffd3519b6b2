/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps descriptors by systemd's protocol, and starts agents. */
#include "keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "say.h"

#define TEXT_MAX     512
#define FDS_MAX      4
/* So many restarts within a minute, and it gives up: the next agent would crash, too. */
#define RESTARTS_MAX 5
#define MINUTE_NS    UINT64_C(60000000000)

struct keeper {
	int socket;
	int signals;
	struct sockaddr_un address;
	struct agent_kept *kept;
	unsigned count;
	pid_t child;
	bool told; /* to end */
	unsigned restarts;
	uint64_t since_ns; /* when the first of them was */
};

static int open_socket(struct keeper *keeper, const char *dir, struct ckpt_error *err)
{
	int r;
	int n;

	keeper->address.sun_family = AF_UNIX;
	n = snprintf(keeper->address.sun_path, sizeof(keeper->address.sun_path), "%s/keeper", dir);
	if (n < 0 || (size_t)n >= sizeof(keeper->address.sun_path))
		return ckpt_fail(err, -ENAMETOOLONG,
			"the path %s is too long for a socket; choose another one with --dir", dir);
	keeper->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	(void)unlink(keeper->address.sun_path);
	if (keeper->socket >= 0 && bind(keeper->socket, (const struct sockaddr *)&keeper->address,
					   sizeof(keeper->address)) == 0)
		return 0;
	r = -errno;
	return ckpt_fail(err, r, "cannot make the socket %s: %s", keeper->address.sun_path,
		ckpt_code_text(r));
}

static unsigned find(const struct keeper *keeper, const char *name)
{
	unsigned i = 0;

	while (i < keeper->count && strcmp(keeper->kept[i].name, name) != 0)
		i++;
	return i;
}

static void forget(struct keeper *keeper, const char *name)
{
	unsigned i = find(keeper, name);

	if (i == keeper->count)
		return;
	(void)close(keeper->kept[i].fd);
	keeper->kept[i] = keeper->kept[--keeper->count];
}

/* False: it is not kept, and still the caller's. */
static bool keep(struct keeper *keeper, const char *name, int fd)
{
	if (fd < 0 || keeper->count == AGENT_KEPT_MAX)
		return false;
	forget(keeper, name);
	keeper->kept[keeper->count].fd = fd;
	memcpy(keeper->kept[keeper->count].name, name, AGENT_KEPT_NAME);
	keeper->count++;
	return true;
}

/* What a message says. Returns whether `fd` is kept. */
static bool obey(struct keeper *keeper, char *text, int fd)
{
	char name[AGENT_KEPT_NAME] = "";
	bool store = false;
	bool discard = false;
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		store |= strcmp(line, "FDSTORE=1") == 0;
		discard |= strcmp(line, "FDSTOREREMOVE=1") == 0;
		if (strncmp(line, "FDNAME=", 7) == 0)
			(void)snprintf(name, sizeof(name), "%s", line + 7);
	}
	if (discard && name[0])
		forget(keeper, name);
	return store && name[0] && keep(keeper, name, fd);
}

static int take_fd(struct msghdr *header)
{
	int found = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (found < 0)
				found = fd;
			else
				(void)close(fd);
		}
	}
	return found;
}

/* Takes one message; false: there is none. */
static bool listen_once(struct keeper *keeper)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	char text[TEXT_MAX];
	struct iovec vector = {text, sizeof(text) - 1};
	struct msghdr header = {.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(keeper->socket, &header, MSG_CMSG_CLOEXEC);
	int fd;

	if (got < 0)
		return errno == EINTR;
	fd = take_fd(&header);
	text[got] = 0;
	if (!obey(keeper, text, fd) && fd >= 0)
		(void)close(fd);
	return true;
}

static int start(
	struct keeper *keeper, agent_keeper_child *child, void *user, struct ckpt_error *err)
{
	pid_t pid = fork();
	int r;

	if (pid < 0) {
		r = -errno;
		return ckpt_fail(err, r, "cannot start the agent: %s", ckpt_code_text(r));
	}
	if (pid == 0) {
		(void)close(keeper->signals);
		(void)close(keeper->socket);
		/* NOLINTNEXTLINE(concurrency-mt-unsafe): the threads of the agent have ended */
		exit(child(user, keeper->address.sun_path, keeper->kept, keeper->count));
	}
	keeper->child = pid;
	return 0;
}

static bool is_hopeless(struct keeper *keeper)
{
	uint64_t now = ckpt_clock_ns();

	if (now - keeper->since_ns > MINUTE_NS) {
		keeper->since_ns = now;
		keeper->restarts = 0;
	}
	return ++keeper->restarts > RESTARTS_MAX;
}

/* Takes a signal. True: the child has ended, with *ret_status. */
static bool take_signal(struct keeper *keeper, int *ret_status)
{
	struct signalfd_siginfo info;

	if (read(keeper->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return false;
	if (info.ssi_signo != SIGCHLD) {
		keeper->told = true;
		(void)kill(keeper->child, (int)info.ssi_signo);
		return false;
	}
	return waitpid(keeper->child, ret_status, WNOHANG) == keeper->child;
}

/* Until the child has ended; returns its status. */
static int watch(struct keeper *keeper)
{
	struct pollfd ready[2] = {{keeper->signals, POLLIN, 0}, {keeper->socket, POLLIN, 0}};
	int status = 0;

	for (;;) {
		(void)poll(ready, 2, -1);
		while (listen_once(keeper))
			;
		if (take_signal(keeper, &status))
			break;
	}
	/* What it has said before it ended. */
	while (listen_once(keeper))
		;
	return status;
}

static int run(struct keeper *keeper, agent_keeper_child *child, void *user, struct ckpt_error *err)
{
	for (;;) {
		int status;
		int r = start(keeper, child, user, err);

		if (r < 0)
			return r;
		status = watch(keeper);
		if (WIFEXITED(status))
			return WEXITSTATUS(status);
		/* It had ended before the signal could be passed on. */
		if (keeper->told)
			return 0;
		if (is_hopeless(keeper))
			return ckpt_fail(err, -ECHILD,
				"the agent has ended by signal %d, %d times within a minute; its "
				"slots are "
				"lost",
				WTERMSIG(status), RESTARTS_MAX + 1);
		agent_say(
			"the agent has ended by signal %d; starting another one", WTERMSIG(status));
	}
}

int agent_keeper_run(const char *dir, agent_keeper_child *child, void *user, struct ckpt_error *err)
{
	struct keeper keeper = {.socket = -1};
	sigset_t set;
	int r;

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGCHLD);
	keeper.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	keeper.kept = ckpt_alloc_array(AGENT_KEPT_MAX, sizeof(*keeper.kept));
	if (keeper.signals < 0 || !keeper.kept)
		r = ckpt_fail(err, -ENOMEM, "no memory, or no descriptor, to keep slots with");
	else
		r = open_socket(&keeper, dir, err);
	if (r == 0) {
		r = run(&keeper, child, user, err);
		(void)unlink(keeper.address.sun_path);
	}
	for (unsigned i = 0; i < keeper.count; i++)
		(void)close(keeper.kept[i].fd);
	ckpt_free(keeper.kept);
	if (keeper.socket >= 0)
		(void)close(keeper.socket);
	if (keeper.signals >= 0)
		(void)close(keeper.signals);
	return r;
}
