/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine consists of; for runtime*.c only. */
#ifndef CKPT_ENGINE_RUNTIME_STATE_H
#define CKPT_ENGINE_RUNTIME_STATE_H

#include <stdatomic.h>
#include "engine/lister.h"
#include "engine/runtime.h"

struct ckpt_engine {
	struct ckpt_core core; /* its thread's, but for what posts */
	char *label;
	int root;
	int eventfd;
	unsigned forks; /* ckpt_fork_count() when it was opened */
	struct ckpt_log *log;
	struct ckpt_inbox inbox;
	struct ckpt_env_os *env;
	struct ckpt_pool *pool;
	struct ckpt_device *host;
	struct ckpt_io *io;
	bool inbox_open;
	bool core_open;
	bool running;
	pthread_t thread;
	atomic_bool quit;
	struct ckpt_closer closer;
	enum ckpt_busy busy;

	/* Of the threads that save: one at a time is between start's first and last line. */
	pthread_mutex_t lock;
	struct ckpt_save *last; /* the newest that was posted; a reference */
	uint64_t generation;    /* 0: to be claimed */
	bool any_step;
	uint64_t last_step;
	uint64_t saves_skipped;
	uint64_t saves_waited;
	uint64_t saves_waited_ns;
};

#endif
