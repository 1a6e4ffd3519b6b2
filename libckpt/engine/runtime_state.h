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
	struct ckpt_exchange_server *server; /* a hold on it; NULL: none */
	bool inbox_open;
	bool core_open;
	bool closer_open;
	bool running;
	pthread_t thread;
	atomic_bool quit;
	struct ckpt_closer closer;
	enum ckpt_busy busy;

	/*
	 * Of the threads that save. Whoever has the turn starts a save, claims or adopts; it may wait
	 * for the disk meanwhile, and does so without the lock.
	 */
	pthread_mutex_t lock;
	pthread_cond_t turn_over;
	bool turn;              /* somebody has it */
	struct ckpt_save *last; /* the newest that was posted; a reference */
	/* Waited for by nobody just now, or ended and not looked at yet; a reference. NULL: none. */
	struct ckpt_command *claim;
	uint64_t generation; /* 0: to be claimed */
	bool any_step;
	uint64_t last_step;
	atomic_uint_fast64_t saves_skipped;
	atomic_uint_fast64_t saves_waited;
	atomic_uint_fast64_t saves_waited_ns;
};

#endif
