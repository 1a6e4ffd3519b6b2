/* SPDX-License-Identifier: Apache-2.0 */
/* systemd's protocol, as far as the agent needs it: a few lines of text in a datagram. */
#include "manager.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

void agent_manager_open(struct agent_manager *manager, const char *path)
{
	size_t length = path ? strlen(path) : 0;

	*manager = (struct agent_manager){.fd = -1, .address.sun_family = AF_UNIX};
	if (length < 2 || length >= sizeof(manager->address.sun_path) || !strchr("/@", path[0]))
		return;
	memcpy(manager->address.sun_path, path, length);
	if (path[0] == '@')
		manager->address.sun_path[0] = 0;
	manager->size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
	manager->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

void agent_manager_close(struct agent_manager *manager)
{
	if (manager->fd >= 0)
		(void)close(manager->fd);
	manager->fd = -1;
}

/* `fd` goes along unless it is -1. */
static bool tell(const struct agent_manager *manager, const char *text, int fd)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.space = {0}};
	struct iovec vector = {(void *)text, strlen(text)};
	struct msghdr header = {.msg_name = (void *)&manager->address,
		.msg_namelen = manager->size,
		.msg_iov = &vector,
		.msg_iovlen = 1};
	ssize_t sent;

	if (manager->fd < 0)
		return false;
	if (fd >= 0) {
		struct cmsghdr *c;

		header.msg_control = &control;
		header.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	do
		sent = sendmsg(manager->fd, &header, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent >= 0;
}

void agent_manager_ready(const struct agent_manager *manager)
{
	(void)tell(manager, "READY=1\n", -1);
}

bool agent_manager_keep(const struct agent_manager *manager, uint64_t slot, int fd)
{
	char text[128];

	/* FDPOLL=0: a memfd cannot be polled, and is none that has ended. */
	(void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=slot-%llu\nFDPOLL=0\n",
		(unsigned long long)slot);
	return tell(manager, text, fd);
}

void agent_manager_forget(const struct agent_manager *manager, uint64_t slot)
{
	char text[128];

	(void)snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=slot-%llu\n",
		(unsigned long long)slot);
	(void)tell(manager, text, -1);
}

static bool parse(const char *text, unsigned long max, unsigned long *ret_value)
{
	char *end = NULL;

	if (!text || *text < '0' || *text > '9')
		return false;
	errno = 0;
	*ret_value = strtoul(text, &end, 10);
	return errno == 0 && *end == 0 && *ret_value <= max;
}

unsigned agent_manager_kept(const char *pid, const char *count, const char *names,
	struct agent_kept ret_kept[AGENT_KEPT_MAX])
{
	unsigned long number = 0;

	/* They are inherited by children, too, whom they do not mean. */
	if (!parse(pid, (unsigned long)INT32_MAX, &number) || number != (unsigned long)getpid())
		return 0;
	if (!parse(count, AGENT_KEPT_MAX, &number))
		return 0;
	for (unsigned i = 0; i < number; i++) {
		size_t length = names ? strcspn(names, ":") : 0;

		ret_kept[i] = (struct agent_kept){.fd = FIRST_FD + (int)i};
		(void)fcntl(ret_kept[i].fd, F_SETFD, FD_CLOEXEC);
		if (length < AGENT_KEPT_NAME && names)
			memcpy(ret_kept[i].name, names, length);
		if (names)
			names = names[length] ? names + length + 1 : NULL;
	}
	return (unsigned)number;
}

uint64_t agent_manager_kept_bytes(const struct agent_kept *kept, unsigned count)
{
	uint64_t bytes = 0;
	struct stat status;

	for (unsigned i = 0; i < count; i++)
		if (fstat(kept[i].fd, &status) == 0 && S_ISREG(status.st_mode))
			bytes += (uint64_t)status.st_size;
	return bytes;
}
