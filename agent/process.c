/* SPDX-License-Identifier: Apache-2.0 */
/* Looks after processes by pidfds, which mean one process for good. */
#include "process.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct agent_process *agent_process_of(int socket)
{
	struct agent_process *process = ckpt_alloc(sizeof(*process));
	struct ucred peer = {.pid = 0};
	socklen_t size = sizeof(peer);
	int pidfd = -1;

	if (!process)
		return NULL;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0)
		process->pid = (uint32_t)peer.pid;
	size = sizeof(pidfd);
	/* By its number it could be taken for another process that has the number by now. */
	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) < 0)
		pidfd = -1;
	process->pidfd = pidfd;
	process->users = 1;
	return process;
}

struct agent_process *agent_process_use(struct agent_process *process)
{
	process->users++;
	return process;
}

void agent_process_let_go(struct agent_process *process)
{
	if (!process || --process->users > 0)
		return;
	if (process->pidfd >= 0)
		(void)close(process->pidfd);
	ckpt_free(process);
}

bool agent_process_lives(const struct agent_process *process)
{
	struct pollfd ended = {process ? process->pidfd : -1, POLLIN, 0};

	/* Readable once it has ended, be it that nobody has waited for it. */
	return ended.fd >= 0 && poll(&ended, 1, 0) == 0;
}
