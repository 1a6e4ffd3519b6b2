/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of an agent: of its user alone, with a lock and a socket in it. */
#ifndef CKPT_AGENT_DIRECTORY_H
#define CKPT_AGENT_DIRECTORY_H

#include <ckpt/error.h>
#include "base/compiler.h"

struct agent_directory {
	int lock;   /* of the one agent that serves it */
	int socket; /* listens; -1: not yet */
};

/* Where it is if nobody says: "$XDG_RUNTIME_DIR/ckptd" if `runtime` is that, else "/tmp/ckptd-UID". */
void agent_directory_default(const char *runtime, char *ret_path, size_t size);

/* Makes it if it is missing, and locks it. CKPT_EINUSE: another agent serves it. Sets `err`. */
int agent_directory_open(
	const char *path, struct ckpt_error *err, struct agent_directory *ret_directory);
/* Makes the socket anew, and listens. Sets `err`. */
int agent_directory_listen(
	struct agent_directory *directory, const char *path, struct ckpt_error *err);
/* Removes the socket, too, and keeps the directory. */
void agent_directory_close(struct agent_directory *directory, const char *path);

#endif
