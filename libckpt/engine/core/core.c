/* SPDX-License-Identifier: Apache-2.0 */
/* The core's loop, its timers and its commands. */
#include "engine/core/core.h"

#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "exchange/exchange_dir.h"
#include "exchange/exchange_served.h"
#include "config.h"
#if CKPT_HAVE_S3
#include "s3/client.h"
#endif

static int open_exchange(struct ckpt_core *core)
{
	const char *session = core->config.session;

	if (core->parts.server)
		return ckpt_exchange_served_open(&core->sched, &core->timers, core->parts.env,
			core->parts.server, session, &core->exchange);
	return ckpt_exchange_dir_open(&core->sched, core->store, session, &core->exchange);
}

int ckpt_core_open_store(
	struct ckpt_core *core, const struct ckpt_core_place *place, struct ckpt_store **ret_store)
{
	const struct ckpt_core_parts *parts = &core->parts;

#if CKPT_HAVE_S3
	if (place->bucket) {
		ckpt_s3_client_link(&core->clients, place->bucket);
		return ckpt_store_s3_open(parts->env, &core->sched, place->bucket,
			core->config.block_bytes, place->label, ret_store);
	}
#endif
	CKPT_ASSERT(!place->bucket);
	int r = ckpt_store_file_open(
		parts->env, &core->sched, parts->io, place->root, place->label, ret_store);
	if (r == 0 && place->tried)
		ckpt_store_file_set_direct(*ret_store, place->direct);
	return r;
}

void ckpt_core_give_up(struct ckpt_core *core)
{
#if CKPT_HAVE_S3
	for (struct ckpt_s3_client *client = core->clients; client; client = client->next)
		ckpt_s3_client_look(client);
#else
	(void)core;
#endif
}

bool ckpt_core_stop_clients(struct ckpt_core *core, struct ckpt_task *task)
{
	bool idle = true;

#if CKPT_HAVE_S3
	for (struct ckpt_s3_client *client = core->clients; client; client = client->next) {
		ckpt_s3_client_stop(client);
		idle = ckpt_s3_client_idle(client, task) && idle;
	}
#else
	(void)core;
	(void)task;
#endif
	return idle;
}

int ckpt_core_init(struct ckpt_core *core, const struct ckpt_core_parts *parts,
	const struct ckpt_core_config *config, struct ckpt_error *err)
{
	CKPT_ASSERT(config->chunk_bytes > 0 && config->chunk_bytes <= config->block_bytes);
	*core = (struct ckpt_core){.parts = *parts, .config = *config, .eventfd = -1};
	core->config.world = config->world ? config->world : 1;
	CKPT_ASSERT(config->rank < core->config.world);
	const struct ckpt_core_place place = {
		.root = parts->root, .bucket = parts->bucket, .label = parts->label};
	int r = ckpt_core_open_store(core, &place, &core->store);
	if (r < 0)
		return ckpt_fail(
			err, r, "cannot open the store in %s: %s", parts->label, ckpt_code_text(r));
	core->stats.size = sizeof(core->stats);
	if (core->config.world > 1)
		r = open_exchange(core);
	if (r < 0) {
		ckpt_core_destroy(core);
		return ckpt_fail(err, r, "out of memory");
	}
	return 0;
}

bool ckpt_core_note_unchecked(struct ckpt_core *core, unsigned why)
{
	return !(atomic_fetch_or(&core->unchecked, why) & why);
}

bool ckpt_core_note_boxes(struct ckpt_core *core, const char *which)
{
	if (atomic_load(&core->unchecked) & CKPT_UNCHECKED_BOXES)
		return false;
	(void)snprintf(core->unchecked_boxes, sizeof(core->unchecked_boxes), "%s", which);
	return ckpt_core_note_unchecked(core, CKPT_UNCHECKED_BOXES);
}

void ckpt_core_destroy(struct ckpt_core *core)
{
	CKPT_ASSERT(ckpt_core_idle(core));
	ckpt_exchange_close(core->exchange);
	core->exchange = NULL;
	ckpt_store_close(core->store);
	core->store = NULL;
}

bool ckpt_core_idle(const struct ckpt_core *core)
{
	return !core->save && !core->restores && !core->gc && core->commands == 0 &&
	       !core->sched.head;
}

/* Fires what is due and returns the next deadline. */
static uint64_t run_timers(struct ckpt_core *core, uint64_t now_ns)
{
	struct ckpt_timer *due;
	uint64_t next_ns;

	while ((due = ckpt_timer_due(&core->timers, now_ns, &next_ns))) {
		ckpt_core_timer_clear(core, due);
		due->fire(due);
		ckpt_sched_run(&core->sched);
	}
	return next_ns;
}

uint64_t ckpt_core_step(struct ckpt_core *core)
{
	struct ckpt_node *node = ckpt_inbox_take(core->parts.env->inbox);

	while (node) {
		/* The node may be freed or pushed again by what it runs. */
		struct ckpt_node *next = node->next;
		node->run(node);
		ckpt_sched_run(&core->sched);
		node = next;
	}
	ckpt_sched_run(&core->sched);
	return run_timers(core, ckpt_env_now(core->parts.env));
}

void ckpt_core_timer_set(struct ckpt_core *core, struct ckpt_timer *timer, uint64_t at_ns)
{
	ckpt_timer_set(&core->timers, timer, at_ns);
}

void ckpt_core_timer_clear(struct ckpt_core *core, struct ckpt_timer *timer)
{
	ckpt_timer_clear(&core->timers, timer);
}

bool ckpt_core_owns_store(const struct ckpt_core *core)
{
	return core->config.rank == (core->config.node_store ? core->config.node_leader : 0);
}

void ckpt_core_answer(struct ckpt_core *core, struct ckpt_latch *latch, uint32_t bits)
{
	/* The descriptor may be gone as soon as somebody sees the bits. */
	int fd = core->eventfd;

	if (fd >= 0) {
		uint64_t one = 1;
		/* A full counter is readable all the same. */
		ssize_t written = write(fd, &one, sizeof(one));
		(void)written;
	}
	ckpt_latch_set(latch, bits);
}

int ckpt_command_init(struct ckpt_command *command, struct ckpt_core *core)
{
	*command = (struct ckpt_command){.core = core};
	command->error.size = sizeof(command->error);
	ckpt_error_clear(&command->error);
	return ckpt_latch_init(&command->latch);
}

void ckpt_command_fini(struct ckpt_command *command)
{
	ckpt_latch_destroy(&command->latch);
}

struct ckpt_command *ckpt_command_new(
	struct ckpt_core *core, size_t size, void (*clear)(struct ckpt_command *command))
{
	struct ckpt_command *command = ckpt_alloc(size);

	CKPT_ASSERT(size >= sizeof(*command));
	if (!command)
		return NULL;
	if (ckpt_command_init(command, core) < 0) {
		ckpt_free(command);
		return NULL;
	}
	command->clear = clear;
	atomic_store(&command->owners, 1);
	return command;
}

void ckpt_command_unref(struct ckpt_command *command)
{
	if (atomic_fetch_sub(&command->owners, 1) > 1)
		return;
	if (command->clear)
		command->clear(command);
	ckpt_command_fini(command);
	ckpt_free(command);
}

struct ckpt_command *ckpt_command_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_command, task);
}

static void command_done(struct ckpt_task *task)
{
	struct ckpt_command *command = ckpt_command_of(task);

	struct ckpt_core *core = command->core;
	bool shared = atomic_load(&command->owners) > 0;

	command->result = task->result;
	core->commands--;
	ckpt_task_wake(core->closer);
	ckpt_core_answer(core, &command->latch, CKPT_DONE_END);
	if (shared)
		ckpt_command_unref(command);
}

static void command_run(struct ckpt_node *node)
{
	struct ckpt_command *command = CKPT_CONTAINER(node, struct ckpt_command, node);

	command->core->commands++;
	ckpt_task_start(&command->task, &command->core->sched, command->task.body, command_done);
}

void ckpt_command_post(struct ckpt_command *command, ckpt_task_fn *body)
{
	command->node.run = command_run;
	command->task.body = body;
	if (atomic_load(&command->owners) > 0)
		atomic_fetch_add(&command->owners, 1);
	ckpt_inbox_push(command->core->parts.env->inbox, &command->node);
}
