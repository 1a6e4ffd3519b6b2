/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/thread.h"
#include "engine/lineage/open.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/modules.h"
#include "format/layout.h"
#include "io/io_direct.h"
#include "lib/hang_inbox.h"

static void must(int r, const char *what, const struct ckpt_error *err)
{
	if (r >= 0)
		return;
	(void)fprintf(
		stderr, "rig: %s: %s (%s)\n", what, ckpt_strerror(r), err ? err->message : "");
	abort();
}

static bool is_transfer(const struct ckpt_io_req *req)
{
	return req->op == CKPT_IO_OP_READ || req->op == CKPT_IO_OP_WRITE;
}

static void rig_submit(struct ckpt_io *io, struct ckpt_io_req *req)
{
	struct rig_io *r = CKPT_CONTAINER(io, struct rig_io, io);

	if (req->op == CKPT_IO_OP_READ) {
		atomic_fetch_add(&r->read_bytes, req->len);
		if (!(fcntl(req->fd, F_GETFL) & O_DIRECT))
			atomic_fetch_add(&r->cached_bytes, req->len);
	}
	pthread_mutex_lock(&r->lock);
	bool hold = is_transfer(req) && r->passing == 0;
	if (hold) {
		req->next = r->held;
		r->held = req;
		r->held_count++;
	} else if (is_transfer(req) && r->passing != SIZE_MAX) {
		r->passing--;
	}
	pthread_mutex_unlock(&r->lock);
	if (!hold)
		ckpt_io_submit(r->below, req);
}

static const struct ckpt_io_ops rig_io_ops = {.name = "held", .submit = rig_submit};

void rig_hold_after(struct rig *rig, size_t passing)
{
	pthread_mutex_lock(&rig->io.lock);
	rig->io.passing = passing;
	rig->io.held_count = 0;
	pthread_mutex_unlock(&rig->io.lock);
}

void rig_let_go(struct rig *rig)
{
	struct rig_io *r = &rig->io;

	pthread_mutex_lock(&r->lock);
	struct ckpt_io_req *req = r->held;
	r->passing = SIZE_MAX;
	r->held = NULL;
	pthread_mutex_unlock(&r->lock);
	while (req) {
		struct ckpt_io_req *next = req->next;
		ckpt_io_submit(r->below, req);
		req = next;
	}
}

static size_t held_count(struct rig *rig)
{
	pthread_mutex_lock(&rig->io.lock);
	size_t count = rig->io.held_count;
	pthread_mutex_unlock(&rig->io.lock);
	return count;
}

void rig_wait_held(struct rig *rig, size_t count)
{
	await(held_count(rig) >= count);
}

bool rig_wait_held_or_end(struct rig *rig, struct ckpt_restore *restore)
{
	await(held_count(rig) > 0 || ckpt_latch_get(ckpt_restore_latch(restore)) & CKPT_DONE_END);
	return held_count(rig) > 0;
}

static int nothing(struct ckpt_task *task)
{
	(void)task;
	return 0;
}

/* The core has seen everything that was there before. */
static void round_trip(struct rig *rig)
{
	struct ckpt_command command;

	must(ckpt_command_init(&command, &rig->core), "command", NULL);
	ckpt_command_post(&command, nothing);
	await_latch(&command.latch, CKPT_DONE_END);
	ckpt_command_fini(&command);
}

void rig_release_newest(struct rig *rig)
{
	struct rig_io *r = &rig->io;

	pthread_mutex_lock(&r->lock);
	struct ckpt_io_req *req = r->held;
	CKPT_ASSERT(req);
	r->held = req->next;
	pthread_mutex_unlock(&r->lock);
	ckpt_io_exec(req);
	ckpt_inbox_push(&rig->inbox, &req->node);
	/* Workers have had time for what it gave them, too. */
	for (int i = 0; i < 50; i++)
		round_trip(rig);
}

#define BLOCK_STANDS 1u
#define BLOCK_GOES   2u
#define BLOCK_GONE   4u

static void block_run(struct ckpt_node *node)
{
	struct rig_block *block = CKPT_CONTAINER(node, struct rig_block, node);

	ckpt_latch_set(&block->latch, BLOCK_STANDS);
	(void)ckpt_latch_wait(&block->latch, BLOCK_GOES, -1);
	ckpt_latch_set(&block->latch, BLOCK_GONE);
}

void rig_block_post(struct rig *rig, struct rig_block *block)
{
	*block = (struct rig_block){.node.run = block_run};
	must(ckpt_latch_init(&block->latch), "latch", NULL);
	ckpt_inbox_push(&rig->inbox, &block->node);
}

void rig_block_wait(struct rig_block *block)
{
	await_latch(&block->latch, BLOCK_STANDS);
}

void rig_block_wait_inbox(struct rig *rig)
{
	ckpt_inbox_wait(&rig->inbox, UINT64_MAX);
}

void rig_block_end(struct rig_block *block)
{
	ckpt_latch_set(&block->latch, BLOCK_GOES);
	await_latch(&block->latch, BLOCK_GONE);
	ckpt_latch_destroy(&block->latch);
}

static struct rig_env *env_of(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct rig_env, env);
}

static uint64_t env_now(struct ckpt_env *env)
{
	return ckpt_clock_ns() + atomic_load(&env_of(env)->ahead_ns);
}

static uint64_t env_wall(struct ckpt_env *env)
{
	return ckpt_env_wall_ms(ckpt_env_os_env(env_of(env)->os));
}

static uint64_t env_random(struct ckpt_env *env)
{
	return ckpt_env_random(ckpt_env_os_env(env_of(env)->os));
}

static void env_run(struct ckpt_env *env, struct ckpt_job *job)
{
	ckpt_env_run(ckpt_env_os_env(env_of(env)->os), job);
}

static const struct ckpt_env_ops rig_env_ops = {.name = "rig",
	.now_ns = env_now,
	.wall_ms = env_wall,
	.random = env_random,
	.run = env_run};

static void open_env(struct rig *rig)
{
	rig->env.env = (struct ckpt_env){.ops = &rig_env_ops, .inbox = &rig->inbox};
	must(ckpt_env_os_open(2, &rig->inbox, &rig->env.os), "env", NULL);
}

void rig_pass(struct rig *rig, uint64_t ms)
{
	atomic_fetch_add(&rig->env.ahead_ns, ms * 1000000);
	round_trip(rig);
}

static void *core_thread(void *argument)
{
	struct rig *rig = argument;

	while (!atomic_load(&rig->quit)) {
		uint64_t deadline_ns = ckpt_core_step(&rig->core);
		if (deadline_ns != UINT64_MAX)
			deadline_ns -= atomic_load(&rig->env.ahead_ns);
		if (!atomic_load(&rig->quit))
			ckpt_inbox_wait(&rig->inbox, deadline_ns);
	}
	return NULL;
}

static void open_io(struct rig *rig)
{
	struct ckpt_io_config config = {.kind = CKPT_IO_THREADS, .depth = 4, .inbox = &rig->inbox};

	config.root = -1;
	must(ckpt_io_threads_open(&config, &rig->io.below), "io", NULL);
	rig->io.io = *rig->io.below;
	rig->io.io.ops = &rig_io_ops;
	rig->io.passing = SIZE_MAX;
	must(-pthread_mutex_init(&rig->io.lock, NULL), "mutex", NULL);
}

static void open_store(struct rig *rig)
{
	struct ckpt_opener opener = {0};

	must(ckpt_command_init(&opener.command, &rig->core), "command", NULL);
	ckpt_command_post(&opener.command, ckpt_open_body);
	await_latch(&opener.command.latch, CKPT_DONE_END);
	must(opener.command.result, "open", &opener.command.error);
	ckpt_opener_clear(&opener.command);
	ckpt_command_fini(&opener.command);
}

void rig_open(struct rig *rig, const struct rig_config *config)
{
	struct ckpt_pool_config pool = {.bytes = (uint64_t)config->slots * config->block_bytes,
		.block_bytes = config->block_bytes};
	struct ckpt_error err = {.size = sizeof(err)};

	*rig = (struct rig){.dir = strdup(config->dir)};
	rig->root = open(config->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must(rig->root, config->dir, NULL);
	must(ckpt_log_open(CKPT_LOG_DEBUG, &rig->log), "log", NULL);
	must(ckpt_inbox_init(&rig->inbox), "inbox", NULL);
	open_env(rig);
	must(ckpt_pool_open(&pool, &err, &rig->pool), "pool", &err);
	must(ckpt_device_host_open(&rig->env.env, &rig->host), "device", NULL);
	must(ckpt_devices_init(&rig->devices,
		     &(struct ckpt_devices_config){.env = &rig->env.env, .host = rig->host}),
		"devices", NULL);
	open_io(rig);
	rig->io.io.direct = config->sharing && ckpt_io_direct_works(rig->root, false);
	struct ckpt_core_parts parts = {.env = &rig->env.env,
		.io = &rig->io.io,
		.root = rig->root,
		.label = rig->dir,
		.devices = &rig->devices,
		.pool = rig->pool,
		.log = rig->log};
	struct ckpt_core_config core = {.block_bytes = config->block_bytes,
		.chunk_bytes = ckpt_min_u64(CKPT_CHUNK_BYTES, config->block_bytes),
		.save_timeout_ms = 2 * HANG_LIMIT_MS,
		.read_only = config->read_only,
		.sharing = config->sharing,
		.many = config->many,
		.node = "rig"};
	must(ckpt_modules_open(&rig->core, &parts, &core, &err), "core", &err);
	must(ckpt_thread_start(&rig->thread, "rig-core", core_thread, rig), "thread", NULL);
	open_store(rig);
}

struct quitter {
	struct ckpt_node node;
	struct rig *rig;
};

static void quit_run(struct ckpt_node *node)
{
	atomic_store(&CKPT_CONTAINER(node, struct quitter, node)->rig->quit, true);
}

void rig_close(struct rig *rig)
{
	struct ckpt_closer closer = {0};
	struct quitter quitter = {.node.run = quit_run, .rig = rig};

	must(ckpt_command_init(&closer.command, &rig->core), "command", NULL);
	ckpt_command_post(&closer.command, ckpt_closer_body);
	await_latch(&closer.command.latch, CKPT_DONE_END);
	ckpt_command_fini(&closer.command);
	ckpt_inbox_push(&rig->inbox, &quitter.node);
	(void)pthread_join(rig->thread, NULL);
	CKPT_ASSERT(ckpt_pool_free(rig->pool) == ckpt_pool_slots(rig->pool));
	hang_unless(ckpt_io_close(rig->io.below, HANG_LIMIT_MS) == 0);
	ckpt_modules_close(&rig->core);
	ckpt_devices_close(&rig->devices);
	ckpt_env_os_close(rig->env.os);
	ckpt_pool_close(rig->pool);
	ckpt_inbox_destroy(&rig->inbox);
	ckpt_log_close(rig->log);
	(void)pthread_mutex_destroy(&rig->io.lock);
	(void)close(rig->root);
	free(rig->dir);
}

bool rig_logged(struct rig *rig, enum ckpt_log_level level, const char *text)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	while (ckpt_log_next(rig->log, 0, &record) == 0)
		if (record.level <= (uint32_t)level && strstr(record.message, text))
			return true;
	return false;
}

static struct ckpt_restore *make(struct rig *rig, uint64_t step, enum ckpt_restore_sink sink)
{
	struct ckpt_restore *restore = NULL;

	must(ckpt_restore_new(&rig->core, NULL, step, sink, &restore), "restore", NULL);
	return restore;
}

struct ckpt_restore *rig_restore(struct rig *rig, uint64_t step)
{
	struct ckpt_restore *restore = make(rig, step, CKPT_SINK_MEMORY);
	uint32_t bits = CKPT_DONE_OPENED | CKPT_DONE_END;

	ckpt_restore_post_open(restore);
	await_latch(ckpt_restore_latch(restore), bits);
	return restore;
}

struct ckpt_restore *rig_verify(struct rig *rig, uint64_t step)
{
	struct ckpt_restore *restore = make(rig, step, CKPT_SINK_NONE);

	ckpt_restore_post_open(restore);
	return restore;
}

struct ckpt_restore *rig_export(struct rig *rig, uint64_t step, const char *dest)
{
	struct ckpt_restore *restore = make(rig, step, CKPT_SINK_STORE);

	(void)mkdir(dest, 0777);
	int root = open(dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must(root, dest, NULL);
	must(ckpt_restore_set_dest(restore, &(struct ckpt_core_place){.root = root, .label = dest}),
		"dest", NULL);
	ckpt_restore_post_open(restore);
	return restore;
}

int rig_wait(struct ckpt_restore *restore)
{
	await_latch(ckpt_restore_latch(restore), CKPT_DONE_END);
	return ckpt_restore_failure(restore)->code;
}

int rig_run(struct ckpt_restore *restore)
{
	ckpt_restore_post_start(restore);
	return rig_wait(restore);
}

void rig_free(struct ckpt_restore *restore)
{
	ckpt_restore_post_release(restore);
	await_latch(ckpt_restore_latch(restore), CKPT_DONE_GONE);
	ckpt_restore_unref(restore);
}
