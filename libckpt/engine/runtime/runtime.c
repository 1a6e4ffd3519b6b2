/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's parts: made in order, ended in the opposite one. */
#include "engine/core/rate_limit.h"
#include "engine/runtime/runtime.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "engine/lineage/open.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/modules.h"
#include "engine/runtime/runtime_state.h"
#include "engine/save/saver.h"
#include "exchange/exchange_server.h"
#include "format/layout.h"
#include "staging/ledger.h"

#define CLOSE_TIMEOUT_MS 10000

static void *core_thread(void *argument)
{
	struct ckpt_engine *engine = argument;

	for (;;) {
		uint64_t deadline_ns = ckpt_core_step(&engine->core);
		if (atomic_load(&engine->quit))
			return NULL;
		ckpt_inbox_wait(&engine->inbox, deadline_ns);
	}
}

struct quitter {
	struct ckpt_node node;
	struct ckpt_engine *engine;
};

static void quit_run(struct ckpt_node *node)
{
	atomic_store(&CKPT_CONTAINER(node, struct quitter, node)->engine->quit, true);
}

static int open_io(
	struct ckpt_engine *engine, const struct ckpt_engine_opts *opts, struct ckpt_error *err)
{
	struct ckpt_io_config config = {.kind = opts->io,
		.depth = opts->io_depth,
		.root = engine->root,
		.read_only = (opts->flags & CKPT_ENGINE_READ_ONLY) != 0,
		.inbox = &engine->inbox};

	int r = ckpt_io_open(&config, &engine->io);
	if (r < 0)
		return ckpt_fail(err, r, "cannot start I/O: %s", ckpt_code_text(r));
	r = ckpt_io_register_slots(engine->io, ckpt_pool_base(engine->pool), opts->block_bytes,
		ckpt_pool_most(engine->pool));
	ckpt_log(engine->log, engine->io->probe_error ? CKPT_LOG_WARN : CKPT_LOG_INFO,
		"%s: I/O by %s%s%s%s%s%s", engine->label, engine->io->ops->name,
		engine->io->direct ? ", O_DIRECT" : ", through the page cache",
		r == 0 ? ", staging registered" : "",
		engine->io->probe_error ? " (io_uring cannot be used: " : "",
		engine->io->probe_error ? ckpt_code_text(engine->io->probe_error) : "",
		engine->io->probe_error ? ")" : "");
	return 0;
}

static int open_devices(
	struct ckpt_engine *engine, const struct ckpt_engine_opts *opts, struct ckpt_error *err)
{
	struct ckpt_devices_config config = {.env = ckpt_env_os_env(engine->env),
		.cuda_major = (int)opts->cuda_major,
		.staging = ckpt_pool_base(engine->pool),
		.staging_bytes = ckpt_pool_bytes(engine->pool),
		.staging_huge = ckpt_pool_huge(engine->pool),
		.log = engine->log};

	int r = ckpt_device_host_open(config.env, &config.host);
	if (r == 0) {
		r = ckpt_devices_init(&engine->devices, &config);
		if (r < 0)
			ckpt_device_close(config.host);
	}
	return r < 0 ? ckpt_fail(err, r, "cannot open the host device: %s", ckpt_code_text(r)) : 0;
}

/* Of ranks whose staging finds its size. Without it each has an even share. */
static void open_ledger(struct ckpt_engine *engine, const struct ckpt_engine_opts *opts)
{
	struct ckpt_ledger_config config = {.job = opts->session,
		.ranks = ckpt_pool_sharers(opts->node_ranks, opts->world),
		.have = ckpt_pool_bytes(engine->pool)};
	struct ckpt_error error = {.size = sizeof(error)};

	if (opts->pool_bytes || (opts->flags & CKPT_ENGINE_READ_ONLY) || !opts->session ||
		opts->world <= 1 || config.ranks <= 1)
		return;
	if (ckpt_ledger_open(&config, &error, &engine->ledger) < 0)
		ckpt_log(engine->log, CKPT_LOG_INFO,
			"%s: the ranks of this node cannot agree on staging memory (%s): each "
			"takes an even share",
			engine->label, error.message);
}

static int open_parts(
	struct ckpt_engine *engine, const struct ckpt_engine_opts *opts, struct ckpt_error *err)
{
	struct ckpt_pool_config pool = {.bytes = opts->pool_bytes,
		.block_bytes = opts->block_bytes,
		.touch = (opts->flags & CKPT_ENGINE_READ_ONLY) == 0};

	if (!opts->pool_bytes)
		ckpt_pool_default(opts->node_ranks, &pool);
	/* It grows for saves alone. */
	if (opts->flags & CKPT_ENGINE_READ_ONLY)
		pool.bytes_max = 0;
	int r = ckpt_log_open(opts->log_level, &engine->log);
	if (r < 0)
		return ckpt_fail(err, r, "cannot start the log: %s", ckpt_code_text(r));
	engine->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (engine->eventfd < 0)
		return ckpt_fail(err, -errno, "cannot make an eventfd: %s", ckpt_code_text(-errno));
	ckpt_log_set_eventfd(engine->log, engine->eventfd);
	r = ckpt_inbox_init(&engine->inbox);
	if (r < 0)
		return ckpt_fail(err, r, "cannot make a queue: %s", ckpt_code_text(r));
	engine->inbox_open = true;
	if (opts->exchange) {
		r = ckpt_server_attach(opts->exchange, &engine->inbox);
		if (r < 0)
			return ckpt_fail(err, r,
				"ckpt_engine_opts.exchange serves, or has served, another engine: "
				"make a server for each");
		engine->server = opts->exchange;
	}
	r = ckpt_env_os_open(opts->copy_threads, &engine->inbox, &engine->env);
	if (r < 0)
		return ckpt_fail(err, r, "cannot start %u worker threads: %s", opts->copy_threads,
			ckpt_code_text(r));
	r = ckpt_runtime_open_place(engine, (opts->flags & CKPT_ENGINE_READ_ONLY) != 0, err);
	if (r < 0)
		return r;
	r = ckpt_runtime_open_remote(engine, opts, err);
	if (r < 0)
		return r;
	r = ckpt_pool_open(&pool, err, &engine->pool);
	if (r < 0)
		return r;
	if (*ckpt_pool_note(engine->pool))
		ckpt_log(engine->log, CKPT_LOG_WARN, "%s: %s", engine->label,
			ckpt_pool_note(engine->pool));
	open_ledger(engine, opts);
	r = open_devices(engine, opts, err);
	return r < 0 ? r : open_io(engine, opts, err);
}

#define ENCODERS_MAX 16

/* One for each worker, and two whose bytes are being written. 0: shards are stored plain. */
static uint32_t encoders_of(const struct ckpt_engine_opts *opts)
{
	if (opts->encoding == CKPT_ENCODING_PLAIN)
		return 0;
	return (uint32_t)ckpt_min_u64(opts->copy_threads + 2, ENCODERS_MAX);
}

static int open_core(
	struct ckpt_engine *engine, const struct ckpt_engine_opts *opts, struct ckpt_error *err)
{
	struct ckpt_core_parts parts = {.env = ckpt_env_os_env(engine->env),
		.io = engine->io,
		.root = engine->root,
		.bucket = ckpt_runtime_client(engine),
		.label = engine->label,
		.devices = &engine->devices,
		.pool = engine->pool,
		.ledger = engine->ledger,
		.log = engine->log,
		.server = engine->server,
		.remote = engine->remote,
		.leave = ckpt_runtime_leave_dest,
		.user = engine};
	struct ckpt_core_config config = {.block_bytes = opts->block_bytes,
		.chunk_bytes = ckpt_min_u64(CKPT_CHUNK_BYTES, opts->block_bytes),
		.keep_last = opts->keep_last,
		.keep_every = opts->keep_every,
		.remote_every = opts->remote_every,
		.remote_tries = opts->remote_tries,
		.remote_keep_last = opts->remote_keep_last,
		.remote_keep_every = opts->remote_keep_every,
		.remote_grace_s = opts->remote_grace_s,
		.remote_bytes_per_s =
			ckpt_rate_limit_share(opts->remote_bytes_per_s, opts->node_ranks),
		.save_timeout_ms = opts->save_timeout_ms,
		.sharers = opts->pool_bytes ? 0 : ckpt_pool_sharers(opts->node_ranks, opts->world),
		.read_only = (opts->flags & CKPT_ENGINE_READ_ONLY) != 0,
		.new_start = (opts->flags & CKPT_ENGINE_NEW_START) != 0,
		.rank = opts->rank,
		.world = opts->world,
		.sharing = opts->node_ranks ? opts->node_ranks > 1 : opts->world > 1,
		.node_store = (opts->flags & CKPT_ENGINE_NODE_STORE) != 0,
		.lost_nodes = (opts->flags & CKPT_ENGINE_LOST_NODES) != 0,
		.node_leader = opts->node_leader,
		.tolerant = opts->replicas == CKPT_REPLICAS_WARN,
		.decoders = ckpt_env_os_threads(engine->env),
		.encoders = encoders_of(opts),
		.remote_encoding = opts->remote_encoding,
		/* A base that is gone on one node alone would not be known to rank 0. */
		.delta = opts->encoding == CKPT_ENCODING_DELTA &&
			 !(opts->flags & CKPT_ENGINE_NODE_STORE)};

	if (opts->session)
		(void)snprintf(config.session, sizeof(config.session), "%s", opts->session);
	if (opts->node)
		(void)snprintf(config.node, sizeof(config.node), "%s", opts->node);
	else if (gethostname(config.node, sizeof(config.node) - 1) < 0)
		(void)snprintf(config.node, sizeof(config.node), "unknown");
	int r = ckpt_modules_open(&engine->core, &parts, &config, err);
	if (r < 0)
		return r;
	engine->core_open = true;
	/* Made now: an end may not depend on what could be lacking by then. */
	r = ckpt_command_init(&engine->closer.command, &engine->core);
	if (r < 0)
		return ckpt_fail(err, r, "cannot make a lock: %s", ckpt_code_text(r));
	engine->closer_open = true;
	engine->core.eventfd = engine->eventfd;
	engine->core.stats.io =
		strcmp(engine->io->ops->name, "io_uring") == 0 ? CKPT_IO_URING : CKPT_IO_THREADS;
	r = ckpt_thread_start(&engine->thread, "ckpt-core", core_thread, engine);
	if (r < 0)
		return ckpt_fail(err, r, "cannot start a thread: %s", ckpt_code_text(r));
	engine->running = true;
	return 0;
}

static int read_store(struct ckpt_engine *engine, struct ckpt_error *err)
{
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_opener), ckpt_opener_clear, err);

	if (!command)
		return -ENOMEM;
	int r = ckpt_runtime_run(engine, command, ckpt_open_body, err);
	ckpt_command_unref(command);
	return r;
}

int ckpt_runtime_open(const char *path, const struct ckpt_engine_opts *opts, struct ckpt_error *err,
	struct ckpt_engine **ret_engine)
{
	struct ckpt_engine *engine = ckpt_alloc(sizeof(*engine));
	int r;

	if (!engine)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	engine->root = -1;
	engine->remote.root = -1;
	engine->eventfd = -1;
	engine->busy = opts->busy;
	engine->forks = ckpt_fork_count();
	r = -pthread_mutex_init(&engine->lock, NULL);
	if (r < 0) {
		ckpt_free(engine);
		return ckpt_fail(err, r, "cannot make a lock: %s", ckpt_code_text(r));
	}
	r = ckpt_cond_init(&engine->turn_over);
	if (r < 0) {
		(void)pthread_mutex_destroy(&engine->lock);
		ckpt_free(engine);
		return ckpt_fail(err, r, "cannot make a lock: %s", ckpt_code_text(r));
	}
	engine->label = ckpt_strdup(path);
	r = engine->label ? ckpt_fork_watch() : -ENOMEM;
	if (r < 0)
		(void)ckpt_fail(err, r, "cannot open %s: %s", path, ckpt_code_text(r));
	if (r == 0)
		r = open_parts(engine, opts, err);
	if (r == 0)
		r = open_core(engine, opts, err);
	if (r == 0)
		r = read_store(engine, err);
	if (r < 0) {
		ckpt_runtime_close(engine);
		return r;
	}
	*ret_engine = engine;
	return 0;
}

/* Ends what runs on the core. False: something does not answer. */
static bool stop_core(struct ckpt_engine *engine)
{
	struct quitter quitter = {.node.run = quit_run, .engine = engine};
	struct ckpt_command *command = &engine->closer.command;

	ckpt_command_post(command, ckpt_closer_body);
	if (!(ckpt_latch_wait(&command->latch, CKPT_DONE_END, CLOSE_TIMEOUT_MS) & CKPT_DONE_END))
		return false;
	ckpt_inbox_push(&engine->inbox, &quitter.node);
	(void)pthread_join(engine->thread, NULL);
	return true;
}

void ckpt_runtime_close(struct ckpt_engine *engine)
{
	bool stopped = !engine->running || stop_core(engine);

	/* Now, because the end of a save is told to the other ranks as well. */
	if (engine->server)
		ckpt_server_quiet(engine->server);
	if (!stopped) {
		ckpt_log(engine->log, CKPT_LOG_ERROR,
			"closing %s: the storage did not answer within %d s; its memory and "
			"threads "
			"are left behind",
			engine->label, CLOSE_TIMEOUT_MS / 1000);
		return;
	}
	if (ckpt_io_close(engine->io, CLOSE_TIMEOUT_MS) < 0) {
		ckpt_log(engine->log, CKPT_LOG_ERROR,
			"closing %s: its I/O threads do not end and are left behind",
			engine->label);
		return;
	}
	if (engine->last)
		ckpt_plan_free(ckpt_save_take_plan(engine->last));
	ckpt_save_unref(engine->last);
	if (engine->claim)
		ckpt_command_unref(engine->claim);
	ckpt_save_unref(engine->claim_for);
	if (engine->closer_open)
		ckpt_command_fini(&engine->closer.command);
	if (engine->core_open)
		ckpt_modules_close(&engine->core);
	ckpt_devices_close(&engine->devices);
	ckpt_runtime_close_place(engine);
	ckpt_env_os_close(engine->env);
	ckpt_pool_close(engine->pool);
	ckpt_ledger_close(engine->ledger);
	ckpt_server_unref(engine->server);
	if (engine->inbox_open)
		ckpt_inbox_destroy(&engine->inbox);
	ckpt_log_close(engine->log);
	if (engine->eventfd >= 0)
		(void)close(engine->eventfd);
	(void)pthread_cond_destroy(&engine->turn_over);
	(void)pthread_mutex_destroy(&engine->lock);
	ckpt_free((char *)(uintptr_t)engine->remote.label);
	ckpt_free((char *)(uintptr_t)engine->remote.url);
	ckpt_free(engine->label);
	ckpt_free(engine);
}

struct ckpt_core *ckpt_runtime_core(struct ckpt_engine *engine)
{
	return &engine->core;
}

struct ckpt_log *ckpt_runtime_log(struct ckpt_engine *engine)
{
	return engine->log;
}

int ckpt_runtime_eventfd(const struct ckpt_engine *engine)
{
	return engine->eventfd;
}

uint64_t ckpt_runtime_unchecked(const struct ckpt_engine *engine, const char **ret_boxes)
{
	unsigned why = atomic_load(&engine->core.unchecked);

	*ret_boxes = why & CKPT_UNCHECKED_BOXES ? engine->core.unchecked_boxes : "";
	return why;
}

enum ckpt_own ckpt_runtime_own(struct ckpt_engine *engine, uint64_t group)
{
	return ckpt_replica_digest_find_own(&engine->core.saver->alike_owned, group);
}

bool ckpt_runtime_forked(const struct ckpt_engine *engine)
{
	return ckpt_fork_count() != engine->forks;
}
