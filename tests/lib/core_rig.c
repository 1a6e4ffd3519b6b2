/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/core_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/gc/gc.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/open.h"
#include "engine/restore/restore_state.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/modules.h"
#include "lib/fence.h"
#include "staging/ledger.h"

#define BLOCK       UINT32_C(65536)
#define CHUNK       UINT64_C(16384)
#define MILLISECOND UINT64_C(1000000)
#define SAVE_MS     1000

static void must(bool good, const char *what)
{
	if (good)
		return;
	(void)fprintf(stderr, "core_rig: %s\n", what);
	abort();
}

static struct core_rig *rig_of(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct core_rig, env);
}

static uint64_t still_now(struct ckpt_env *env)
{
	return rig_of(env)->now_ns;
}

static uint64_t still_age(struct ckpt_env *env)
{
	return rig_of(env)->now_ns + rig_of(env)->suspended_ns;
}

static uint64_t still_wall(struct ckpt_env *env)
{
	return UINT64_C(1700000000000) + rig_of(env)->now_ns / MILLISECOND;
}

static uint64_t seeded(struct ckpt_env *env)
{
	return ++rig_of(env)->random * UINT64_C(0x9e3779b97f4a7c15);
}

static void do_job(struct core_rig *rig, struct ckpt_job *job)
{
	job->work(job);
	ckpt_inbox_push(&rig->inbox, &job->node);
}

static void take_job(struct ckpt_env *env, struct ckpt_job *job)
{
	struct core_rig *rig = rig_of(env);

	if (!rig->hold_jobs) {
		do_job(rig, job);
		return;
	}
	job->next = rig->held;
	rig->held = job;
}

static const struct ckpt_env_ops still_env_ops = {.name = "core_rig",
	.now_ns = still_now,
	.age_ns = still_age,
	.wall_ms = still_wall,
	.random = seeded,
	.run = take_job};

static void now_submit(struct ckpt_io *io, struct ckpt_io_req *req)
{
	ckpt_io_exec(req);
	ckpt_inbox_push(io->inbox, &req->node);
}

static int now_close(struct ckpt_io *io, int timeout_ms)
{
	(void)io;
	(void)timeout_ms;
	return 0;
}

static const struct ckpt_io_ops now_ops = {.name = "now", .submit = now_submit, .close = now_close};

static struct core_rig *counting;

static bool refused(void)
{
	return counting && ++counting->allocations == counting->fail_at;
}

static bool count_allocation(void *user, size_t size)
{
	(void)user;
	(void)size;
	return refused();
}

/* The linker puts these in the place of the C library's: what they set up is counted as well. */
int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __real_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);

int __real_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __real_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond);

static size_t locks;

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
	if (refused())
		return ENOMEM;
	locks++;
	return __real_pthread_mutex_init(mutex, attr);
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
	locks--;
	int r = __real_pthread_mutex_destroy(mutex);
	must(r == 0, "a lock was not let go of, or let go of once too often");
	return r;
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
	if (refused())
		return ENOMEM;
	locks++;
	return __real_pthread_cond_init(cond, attr);
}

int __wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
	locks--;
	return __real_pthread_cond_destroy(cond);
}

static unsigned rigs;
/* When there was no rig yet. */
static size_t blocks_before;
static size_t locks_before;

void core_rig_count_allocations(struct core_rig *rig, size_t fail_at)
{
	rig->allocations = 0;
	rig->fail_at = fail_at;
	counting = rig;
	ckpt_alloc_set_hook(count_allocation, NULL);
}

size_t core_rig_allocations(struct core_rig *rig)
{
	ckpt_alloc_set_hook(NULL, NULL);
	counting = NULL;
	return rig->allocations;
}

void core_rig_make(struct core_rig *rig, const struct core_rig_config *config)
{
	uint32_t block = config->block_bytes ? config->block_bytes : BLOCK;
	unsigned slots = config->slots ? config->slots : CKPT_POOL_SLOTS_MIN;
	struct ckpt_pool_config pool = {.bytes = (uint64_t)slots * block,
		.bytes_max = (uint64_t)config->slots_max * block,
		.block_bytes = block,
		.ops = config->memory};
	struct ckpt_core_config core = {.block_bytes = block,
		.chunk_bytes =
			config->chunk_bytes ? config->chunk_bytes : ckpt_min_u64(CHUNK, block),
		.encoders = config->encoders,
		.delta = config->delta,
		.sharers = config->sharers,
		.save_timeout_ms = config->timeout_ms ? config->timeout_ms : SAVE_MS,
		.rank = config->rank,
		.world = config->world,
		.session = "rig",
		.keep_last = config->keep_last,
		.keep_every = config->keep_every,
		.remote_every = config->remote_every,
		.remote_keep_last = config->remote_keep_last,
		.remote_keep_every = config->remote_keep_every,
		.remote_grace_s = 60,
		.remote_bytes_per_s = config->remote_bytes_per_s,
		.read_only = config->read_only,
		.new_start = config->new_start,
		.node_store = config->node_store,
		.node = "rig"};

	if (rigs++ == 0) {
		blocks_before = fence_blocks();
		locks_before = locks;
	}
	*rig = (struct core_rig){.dir = strdup(config->dir), .err.size = sizeof(rig->err)};
	rig->env = (struct ckpt_env){.ops = &still_env_ops, .inbox = &rig->inbox};
	rig->io = (struct ckpt_io){
		.ops = &now_ops, .inbox = &rig->inbox, .align = config->align ? config->align : 1};
	rig->now_ns = MILLISECOND;
	rig->root = open(config->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must(rig->root >= 0, "open");
	rig->remote =
		config->remote ? open(config->remote, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	must(!config->remote || rig->remote >= 0, "open");
	must(ckpt_log_open(CKPT_LOG_DEBUG, &rig->log) == 0, "log");
	must(ckpt_inbox_init(&rig->inbox) == 0, "inbox");
	must(ckpt_pool_open(&pool, &rig->err, &rig->pool) == 0, "pool");
	if (config->ledger)
		must(ckpt_ledger_open(&(struct ckpt_ledger_config){.dir = config->ledger,
					      .job = "rig",
					      .ranks = config->sharers,
					      .have = ckpt_pool_bytes(rig->pool)},
			     &rig->err, &rig->ledger) == 0,
			"ledger");
	must(ckpt_device_host_open(&rig->env, &rig->host) == 0, "device");
	must(ckpt_devices_init(&rig->devices,
		     &(struct ckpt_devices_config){.env = &rig->env, .host = rig->host}) == 0,
		"devices");
	io_fault_init(&rig->fault, &rig->io);
	struct ckpt_core_parts parts = {.env = &rig->env,
		.io = &rig->fault.tap.io,
		.root = config->bucket ? -1 : rig->root,
		.bucket = config->bucket,
		.label = rig->dir,
		.devices = &rig->devices,
		.pool = rig->pool,
		.ledger = rig->ledger,
		.log = rig->log,
		.remote = {.root = rig->remote, .label = config->remote, .url = config->url}};
	must(ckpt_modules_open(&rig->core, &parts, &core, &rig->err) == 0, "core");
}

void core_rig_run(struct core_rig *rig)
{
	do
		(void)ckpt_core_step(&rig->core);
	while (rig->inbox.head || rig->core.sched.head);
}

void core_rig_do_jobs(struct core_rig *rig)
{
	struct ckpt_job *oldest = NULL;

	while (rig->held) {
		struct ckpt_job *job = rig->held;
		rig->held = job->next;
		job->next = oldest;
		oldest = job;
	}
	while (oldest) {
		struct ckpt_job *job = oldest;
		oldest = job->next;
		do_job(rig, job);
	}
}

void core_rig_let_go(struct core_rig *rig)
{
	rig->hold_jobs = false;
	core_rig_do_jobs(rig);
	(void)io_tap_release(&rig->fault.tap);
	core_rig_run(rig);
}

void core_rig_sleep(struct core_rig *rig, uint64_t ms)
{
	rig->now_ns += ms * MILLISECOND;
	core_rig_run(rig);
}

void core_rig_sleep_ranks(struct core_rig *ranks, uint32_t world, uint64_t ms)
{
	for (uint64_t at = 0; at < ms; at += 5)
		for (uint32_t rank = 0; rank < world; rank++)
			core_rig_sleep(&ranks[rank], 5);
}

/* Posts a command that was made with `new`, and lets go of it if it has ended. */
static int command(struct core_rig *rig, struct ckpt_command *command, ckpt_task_fn *body)
{
	int code = 1;

	if (!command)
		return -ENOMEM;
	ckpt_command_post(command, body);
	core_rig_run(rig);
	if (ckpt_latch_get(&command->latch) & CKPT_DONE_END) {
		code = command->result;
		rig->err = command->error;
		must(code >= 0 || rig->err.code == 0 || rig->err.code == code,
			"a command's code and its error differ");
	}
	ckpt_command_unref(command);
	return code;
}

int core_rig_open_store(struct core_rig *rig)
{
	return command(rig,
		ckpt_command_new(&rig->core, sizeof(struct ckpt_opener), ckpt_opener_clear),
		ckpt_open_body);
}

void core_rig_open(struct core_rig *rig, const struct core_rig_config *config)
{
	core_rig_make(rig, config);
	must(core_rig_open_store(rig) == 0, rig->err.message);
}

void core_rig_open_ranks(
	struct core_rig *ranks, uint32_t world, const struct core_rig_config *config)
{
	struct core_rig_config own = *config;

	own.world = world;
	for (own.rank = 0; own.rank < world; own.rank++) {
		core_rig_open(&ranks[own.rank], &own);
		ranks[own.rank].random = UINT64_C(1000) * (own.rank + 1);
	}
}

int core_rig_claim(struct core_rig *rig)
{
	return command(rig,
		ckpt_command_new(&rig->core, sizeof(struct ckpt_claimer), ckpt_claimer_clear),
		ckpt_claim_body);
}

int core_rig_remove(struct core_rig *rig, uint64_t step)
{
	return command(rig, ckpt_delete_command_new(&rig->core, step), ckpt_delete_command_body);
}

int core_rig_adopt(struct core_rig *rig, uint64_t generation, uint64_t step)
{
	struct ckpt_command *c = ckpt_command_new(&rig->core, sizeof(struct ckpt_adopter), NULL);

	if (c) {
		struct ckpt_adopter *adopter = CKPT_CONTAINER(c, struct ckpt_adopter, command);
		adopter->generation = generation;
		adopter->step = step;
	}
	return command(rig, c, ckpt_adopter_body);
}

int core_rig_bury(struct core_rig *rig, enum ckpt_two_phase_delete_act act, uint64_t generation,
	uint64_t step)
{
	struct ckpt_command *c = ckpt_two_phase_command_new(&rig->core);

	if (c) {
		struct ckpt_two_phase_delete *two_phase =
			&CKPT_CONTAINER(c, struct ckpt_two_phase_command, command)->two_phase;
		two_phase->act = act;
		two_phase->newest = rig->listed ? rig->listed
						: ckpt_scan_newest_claim(&rig->core.lineage->scan);
		two_phase->generation = generation;
		two_phase->step = step;
	}
	return command(rig, c, ckpt_two_phase_command_body);
}

void core_rig_close(struct core_rig *rig)
{
	must(counting != rig, "allocations are still counted");
	io_fault_clear(&rig->fault);
	core_rig_let_go(rig);
	must(command(rig, ckpt_command_new(&rig->core, sizeof(struct ckpt_closer), NULL),
		     ckpt_closer_body) == 0,
		"close");
	must(ckpt_core_idle(&rig->core), "something is under way");
	must(ckpt_pool_free(rig->pool) == ckpt_pool_slots(rig->pool), "a slot is missing");
	must(rig->fault.tap.open_files == 0, "a file is open");
	ckpt_modules_close(&rig->core);
	(void)ckpt_io_close(&rig->fault.tap.io, 0);
	ckpt_plan_free(rig->plan);
	ckpt_devices_close(&rig->devices);
	ckpt_pool_close(rig->pool);
	ckpt_ledger_close(rig->ledger);
	ckpt_inbox_destroy(&rig->inbox);
	ckpt_log_close(rig->log);
	(void)close(rig->root);
	if (rig->remote >= 0)
		(void)close(rig->remote);
	free(rig->dir);
	rigs--;
	must(rigs > 0 || fence_blocks() == blocks_before, "memory is not given back");
	must(rigs > 0 || locks == locks_before, "a lock is not destroyed");
}

static char *numbers(size_t bytes, uint64_t seed)
{
	/* The bytes repeat after so many. */
	const size_t period = 65536;
	char *data = malloc(bytes + 1);

	must(data != NULL, "malloc");
	for (size_t i = 0; i < bytes && i < period; i++)
		data[i] = (char)((i + seed) * 0x9e37u >> 8);
	for (size_t i = period; i < bytes; i += period)
		memcpy(data + i, data, bytes - i < period ? bytes - i : period);
	return data;
}

struct ckpt_save *core_rig_prepare(
	struct core_rig *rig, uint64_t step, size_t count, size_t floats, uint32_t flags)
{
	/* One memory for all saves of a rig would be changed under the feet of the one before. */
	static char *memory;
	const int64_t shape = (int64_t)floats;
	struct ckpt_save *save = NULL;
	char name[32];

	free(memory);
	memory = numbers(floats * sizeof(float), step);
	int r = ckpt_save_new(&rig->core, NULL, step, false, 0, &save);
	for (size_t i = 0; i < count && r == 0; i++) {
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = name,
			.dtype = CKPT_F32,
			.flags = flags,
			.ndim = 1,
			.shape = &shape,
			.data = memory};
		(void)snprintf(name, sizeof(name), "w%zu", i);
		r = ckpt_save_put_tensors(save, &tensor, 1, &rig->err);
	}
	if (r == 0)
		r = ckpt_save_put_alias(save, "tied", "w0", &rig->err);
	if (r == 0)
		r = ckpt_save_put_meta(save, "{}", 2, &rig->err);
	if (r == 0)
		r = ckpt_save_prepare(save, &rig->plan, &rig->err);
	if (r == 0)
		return save;
	if (save)
		ckpt_save_unref(save);
	(void)ckpt_fail(&rig->err, r, "out of memory");
	return NULL;
}

int core_rig_post(struct core_rig *rig, struct ckpt_save *save)
{
	ckpt_save_post(save);
	core_rig_run(rig);
	if (!(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_END))
		return 1;
	return ckpt_save_failure(save)->code;
}

int core_rig_end_save(struct core_rig *rig, struct ckpt_save *save)
{
	core_rig_run(rig);
	uint32_t bits = ckpt_latch_get(ckpt_save_latch(save));
	must(bits & CKPT_DONE_END && bits & CKPT_DONE_GONE, "a save has not ended");
	rig->err = *ckpt_save_failure(save);
	must((rig->err.code == 0) == ((bits & CKPT_DONE_LOCAL) != 0), "a save's answers differ");
	rig->plan = ckpt_save_take_plan(save);
	ckpt_save_unref(save);
	return rig->err.code;
}

int core_rig_save(struct core_rig *rig, uint64_t step)
{
	struct ckpt_save *save = core_rig_prepare(rig, step, 3, 10000, 0);

	if (!save)
		return rig->err.code;
	(void)core_rig_post(rig, save);
	return core_rig_end_save(rig, save);
}

/* Binds every tensor to memory that goes with the restore's end. */
static int bind_all(struct core_rig *rig, struct ckpt_restore *restore, char *memory)
{
	const struct ckpt_layout *layout = ckpt_restore_index(restore)->layout;
	int r = 0;

	for (size_t i = 0; i < layout->entry_count && r == 0; i++) {
		const struct ckpt_entry *e = &layout->entries[i];
		struct ckpt_target target = {
			.size = sizeof(target), .name = e->name, .data = memory + e->offset};
		r = ckpt_restore_add_targets(restore, &target, 1, &rig->err);
	}
	return r;
}

struct ckpt_restore *core_rig_begin(
	struct core_rig *rig, uint64_t step, enum ckpt_restore_sink sink, const char *dest)
{
	struct ckpt_restore *restore = NULL;

	if (ckpt_restore_new(&rig->core, NULL, step, sink, &restore) < 0)
		return NULL;
	if (dest) {
		(void)mkdir(dest, 0777);
		int root = open(dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		must(root >= 0, "dest");
		if (ckpt_restore_set_dest(
			    restore, &(struct ckpt_core_place){.root = root, .label = dest}) < 0) {
			(void)close(root);
			ckpt_restore_unref(restore);
			return NULL;
		}
	}
	ckpt_restore_post_open(restore);
	core_rig_run(rig);
	return restore;
}

void core_rig_await(struct core_rig *rig, struct ckpt_restore *restore)
{
	for (unsigned ms = 0; ms < 2000; ms += 10) {
		if (ckpt_latch_get(ckpt_restore_latch(restore)) &
			(CKPT_DONE_OPENED | CKPT_DONE_END))
			return;
		core_rig_sleep(rig, 10);
	}
}

int core_rig_end(struct core_rig *rig, struct ckpt_restore *restore)
{
	int code = 1;

	if (ckpt_latch_get(ckpt_restore_latch(restore)) & CKPT_DONE_END) {
		rig->err = *ckpt_restore_failure(restore);
		code = rig->err.code;
	}
	ckpt_restore_post_release(restore);
	core_rig_run(rig);
	ckpt_restore_unref(restore);
	return code;
}

static int end_of(struct core_rig *rig, struct ckpt_restore *restore)
{
	char *memory = NULL;

	if (!restore)
		return -ENOMEM;
	core_rig_await(rig, restore);
	if (ckpt_latch_get(ckpt_restore_latch(restore)) & CKPT_DONE_OPENED) {
		memory = malloc(ckpt_restore_index(restore)->layout->bytes);
		must(memory != NULL, "malloc");
		int r = bind_all(rig, restore, memory);
		if (r < 0) {
			(void)core_rig_end(rig, restore);
			free(memory);
			return r;
		}
		ckpt_restore_post_start(restore);
		core_rig_run(rig);
	}
	int code = core_rig_end(rig, restore);
	free(memory);
	return code;
}

int core_rig_read(struct core_rig *rig, uint64_t step, enum ckpt_restore_sink sink)
{
	return end_of(rig, core_rig_begin(rig, step, sink, NULL));
}

int core_rig_export(struct core_rig *rig, uint64_t step, const char *dest)
{
	return end_of(rig, core_rig_begin(rig, step, CKPT_SINK_STORE, dest));
}

bool core_rig_logged(struct core_rig *rig, enum ckpt_log_level level, const char *text)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	while (ckpt_log_next(rig->log, 0, &record) == 0)
		if (record.level <= (uint32_t)level && strstr(record.message, text))
			return true;
	return false;
}
