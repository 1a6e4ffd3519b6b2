/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who keeps the descriptors of slots while the agent restarts: systemd, or the keeper (keeper.h), by systemd's protocol.
 * sd_notify(3) and "File Descriptor Store" of systemd's documentation have it. Without a manager nothing is kept.
 */
#ifndef CKPT_AGENT_MANAGER_H
#define CKPT_AGENT_MANAGER_H

#include <sys/socket.h>
#include <sys/un.h>

#include "base/compiler.h"

/* A descriptor that a manager has kept, and its name there. */
#define AGENT_KEPT_NAME 32
struct agent_kept {
	int fd;
	char name[AGENT_KEPT_NAME];
};
#define AGENT_KEPT_MAX 4096

struct agent_manager {
	int fd; /* -1: there is none */
	struct sockaddr_un address;
	socklen_t size;
};

/* The manager that listens at `path` (systemd's NOTIFY_SOCKET; '@' begins an abstract one). NULL: none. */
void agent_manager_open(struct agent_manager *manager, const char *path);
void agent_manager_close(struct agent_manager *manager);
/* The agent serves. */
void agent_manager_ready(const struct agent_manager *manager);
/* Has it keep a slot's descriptor, or forget it. False: the manager does not answer. */
bool agent_manager_keep(const struct agent_manager *manager, uint64_t slot, int fd);
void agent_manager_forget(const struct agent_manager *manager, uint64_t slot);

/*
 * The descriptors that systemd has given this process, by the values of LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, which may
 * be NULL. Returns how many.
 */
unsigned agent_manager_kept(const char *pid, const char *count, const char *names,
	struct agent_kept ret_kept[AGENT_KEPT_MAX]);
/* How much memory they are. */
uint64_t agent_manager_kept_bytes(const struct agent_kept *kept, unsigned count);

#endif
