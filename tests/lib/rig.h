/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core with its real parts (workers, threads for files, staging) on a thread of its own, for tests of
 * the engine below its API. Reads and writes of shards can be held back, as by a disk that hangs.
 */
#ifndef CKPT_TESTS_RIG_H
#define CKPT_TESTS_RIG_H

#include <stdatomic.h>
#include <pthread.h>

#include "engine/core/core.h"
#include "engine/restore/restore.h"
#include "engine/runtime/runtime.h"

struct rig_io {
	struct ckpt_io io;
	struct ckpt_io *below;
	pthread_mutex_t lock;
	size_t passing; /* guarded by lock: transfers that are let through before all are held */
	struct ckpt_io_req *held;   /* guarded by lock */
	size_t held_count;          /* guarded by lock: ever */
	atomic_size_t read_bytes;   /* asked of the disk by READ, all files */
	atomic_size_t cached_bytes; /* of them, of files that are open without O_DIRECT */
};

/* The real one, ahead of the clock by what has passed at the test's word. */
struct rig_env {
	struct ckpt_env env;
	struct ckpt_env_os *os;
	_Atomic uint64_t ahead_ns;
};

struct rig {
	char *dir;
	int root;
	struct ckpt_inbox inbox;
	struct rig_env env;
	struct rig_io io;
	struct ckpt_pool *pool;
	struct ckpt_device *host; /* the devices' */
	struct ckpt_devices devices;
	struct ckpt_log *log;
	struct ckpt_core core;
	pthread_t thread;
	atomic_bool quit;
};

struct rig_config {
	const char *dir;
	uint32_t block_bytes;
	unsigned slots;
	bool read_only;
	uint32_t many; /* ranks of a step whose indexes are not all read; 0: as it is */
	bool sharing; /* with others on this node; then also past the page cache, where that works */
};

/* Opens everything and the store; aborts if that fails. */
void rig_open(struct rig *rig, const struct rig_config *config);
/* Waits until the core has nothing under way, and checks that every slot is back. */
void rig_close(struct rig *rig);
/* Lets so many transfers through from now on, and holds those that follow. */
void rig_hold_after(struct rig *rig, size_t passing);
/* Lets go of those held, and of all to come. */
void rig_let_go(struct rig *rig);
/* Waits until as many more transfers have been held since the last rig_hold_after(). */
void rig_wait_held(struct rig *rig, size_t count);
/* Waits until one has been, true, or the restore has ended, false. */
bool rig_wait_held_or_end(struct rig *rig, struct ckpt_restore *restore);
/* Carries out the transfer that was held last, and waits until the core has seen to it. */
void rig_release_newest(struct rig *rig);
/* Stops the core where it takes this from its inbox, until it may go on. */
struct rig_block {
	struct ckpt_node node;
	struct ckpt_latch latch;
};
void rig_block_post(struct rig *rig, struct rig_block *block);
/* Waits until the core stands there. */
void rig_block_wait(struct rig_block *block);
/* Waits until something new has come into the inbox of the core that stands. */
void rig_block_wait_inbox(struct rig *rig);
void rig_block_end(struct rig_block *block);

/* So much time passes for the core, at once. */
void rig_pass(struct rig *rig, uint64_t ms);

/* The newest log line of at least this level that holds `text`; drops those before it. */
bool rig_logged(struct rig *rig, enum ckpt_log_level level, const char *text);

/* Opens a restore and waits until it is open or has ended. */
struct ckpt_restore *rig_restore(struct rig *rig, uint64_t step);
/* Verification, or an export into `dest` (made if need be); started. */
struct ckpt_restore *rig_verify(struct rig *rig, uint64_t step);
struct ckpt_restore *rig_export(struct rig *rig, uint64_t step, const char *dest);
/* The code that it ends with. */
int rig_wait(struct ckpt_restore *restore);
/* Starts and waits. */
int rig_run(struct ckpt_restore *restore);
void rig_free(struct ckpt_restore *restore);

#endif
