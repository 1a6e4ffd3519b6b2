/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated process: the parts around a real core, its death, and what can happen in it next. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/restore/restore_state.h"
#include "engine/runtime/modules.h"
#include "sim_memory.h"
#include "world.h"

/* Bytes for each of what an engine has to do with. */
#define MEMORY_BASE    219000
#define MEMORY_SAVE    275000 /* its names and shapes are kept in pieces of 256 KiB */
#define MEMORY_STEP    2600
#define MEMORY_CLAIM   1200
#define MEMORY_TENSOR  1500
#define MEMORY_BLOCK   1600
#define MEMORY_CHUNK   400
#define MEMORY_FINDING 6000 /* one of every chunk that is damaged, in an array that grows */
#define MEMORY_CODECS  (UINT64_C(160) << 20) /* three encoders, and the decoders of two restores */
#define MEMORY_READING 98000 /* a restore beyond two: given up, and held by its storage */

#define ROOT 9 /* stands for the descriptor of the store's directory */

/* One for all: a line is taken out before anybody else can write one. */
static struct ckpt_log *the_log;

static struct ckpt_log *log_for_all(void)
{
	if (!the_log) {
		int r = ckpt_log_open(CKPT_LOG_DEBUG, &the_log);
		CKPT_ASSERT(r == 0);
	}
	return the_log;
}

void proc_end_all(void)
{
	ckpt_log_close(the_log);
	the_log = NULL;
	sim_pool_close_all();
}

static void tell_log(struct sim_proc *proc)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	while (ckpt_log_next(the_log, 0, &record) == 0)
		sim_note(&proc->world->sim, proc->id, "log", record.message, record.level, 0, 0);
}

static int open_core(struct sim_proc *proc, bool reader, bool anew)
{
	const struct world_plan *plan = &proc->world->plan;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_core_parts parts = {.env = &proc->env.env,
		.io = sim_io_of(proc->io),
		.root = ROOT,
		.label = "/store",
		.devices = &proc->device.devices,
		.pool = proc->pool,
		.log = the_log};
	struct ckpt_core_config config = {.block_bytes = proc->block_bytes,
		.chunk_bytes = proc->chunk_bytes,
		.encoders = proc->encoders,
		.delta = proc->delta,
		.keep_last = plan->keep_last,
		.keep_every = plan->keep_every,
		.save_timeout_ms = plan->timeout_ms,
		.read_only = reader,
		.new_start = anew,
		.node = WORLD_NODE};

	sim_memory_enter(proc->id);
	int r = ckpt_modules_open(&proc->core, &parts, &config, &err);
	sim_memory_enter(0);
	return r;
}

static void free_parts(struct sim_proc *proc)
{
	sim_gpu_die(&proc->gpu);
	user_drop(&proc->user);
	sim_env_die(&proc->env);
	(void)ckpt_inbox_take(&proc->inbox);
	ckpt_inbox_destroy(&proc->inbox);
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (proc->world->procs[i] == proc)
			proc->world->procs[i] = NULL;
	free(proc);
}

struct sim_proc *proc_start(
	struct sim_rank *rank, unsigned node, const struct sim_user_config *config)
{
	struct world *world = rank->world;
	struct sim_proc *proc = sim_alloc(sizeof(*proc));
	const struct world_plan *plan = &world->plan;
	unsigned place = rank->number * WORLD_SEATS;

	while (world->procs[place])
		place++;
	CKPT_ASSERT(place < (rank->number + 1) * WORLD_SEATS);
	world->procs[place] = proc;
	proc->world = world;
	proc->rank = rank;
	proc->id = ++world->next_id;
	proc->node = node;
	proc->deadline_ns = UINT64_MAX;
	/* Each its own: a store is read with other sizes than it was written with. */
	proc->block_bytes = 4096u << sim_below(&world->sim, 3);
	proc->chunk_bytes = UINT64_C(512) << sim_below(&world->sim, 4);
	proc->slots = (unsigned)sim_between(&world->sim, 4, plan->delta ? 64 : 16);
	proc->encoders = plan->encodes ? (uint32_t)sim_below(&world->sim, 4) : 0;
	proc->delta = plan->delta && proc->encoders > 0 && sim_chance(&world->sim, 9000);
	struct sim_io_config io = {.inbox = &proc->inbox,
		.owner = proc->id,
		.node = node,
		.root = ROOT,
		.align = plan->align,
		.direct = plan->direct,
		.refuse_direct = plan->refuse_direct,
		.refuse_allocate = plan->refuse_allocate,
		.stuck_ns = (uint64_t)plan->timeout_ms * 3000000};
	int r = ckpt_inbox_init(&proc->inbox);
	CKPT_ASSERT(r == 0);
	sim_env_init(&proc->env, &world->sim, &proc->inbox, proc->id, node);
	sim_device_init(&proc->device, &proc->env);
	sim_gpu_init(&proc->gpu, &proc->env);
	proc->device.devices.at[SIM_GPU_NUMBER] = &proc->gpu.device;
	proc->io = sim_io_new(&world->sim, rank->disk, &io);
	proc->pool = sim_pool_open(proc->slots, proc->block_bytes);
	(void)log_for_all();
	sim_tell(&world->sim, proc->id, "starts", config->reader ? "reader" : "writer", node,
		rank->number, 0);
	user_start(&proc->user, proc, config);
	if (open_core(proc, config->reader, config->anew) < 0) {
		proc_kill(proc);
		return NULL;
	}
	return proc;
}

void proc_kill(struct sim_proc *proc)
{
	sim_tell(&proc->world->sim, proc->id, "dies", "", 0, 0, 0);
	oracle_leave(&proc->rank->oracle, proc->core.gc ? UINT64_MAX : proc->user.generation);
	sim_memory_enter(0);
	/* First what still reads its memory. */
	sim_io_die(proc->io);
	sim_pool_sweep(proc->pool);
	sim_memory_sweep(proc->id);
	free_parts(proc);
}

void proc_reap(struct sim_proc *proc)
{
	struct sim *sim = &proc->world->sim;
	unsigned id = proc->id;

	sim_tell(sim, id, "exits", "", 0, 0, 0);
	tell_log(proc);
	if (!ckpt_core_idle(&proc->core))
		sim_violation(sim, "p%u is closed, and its core is not idle", id);
	if (sim_io_in_flight(proc->io) || proc->env.head || !sim_gpu_copied(&proc->gpu))
		sim_violation(sim, "p%u is closed with requests or jobs under way", id);
	if (ckpt_pool_free(proc->pool) != ckpt_pool_slots(proc->pool))
		sim_violation(sim, "p%u is closed with %u of %u staging slots free", id,
			ckpt_pool_free(proc->pool), ckpt_pool_slots(proc->pool));
	if (sim->failed) {
		proc_kill(proc);
		return;
	}
	sim_memory_enter(id);
	ckpt_modules_close(&proc->core);
	sim_memory_enter(0);
	if (sim_disk_open_count(proc->rank->disk, id))
		sim_violation(sim, "p%u is closed with %u files open", id,
			sim_disk_open_count(proc->rank->disk, id));
	if (sim_memory_blocks(id))
		sim_violation(sim, "p%u is closed with %u blocks of memory (%llu bytes) not freed",
			id, sim_memory_blocks(id), (unsigned long long)sim_memory_bytes(id));
	sim_pool_sweep(proc->pool);
	sim_memory_sweep(id);
	if (sim_io_in_flight(proc->io))
		sim_io_forget(proc->io);
	else
		sim_io_free(proc->io);
	sim_disk_drop(proc->rank->disk, id);
	free_parts(proc);
}

static bool core_due(const struct sim_proc *proc)
{
	return proc->inbox.head || proc->deadline_ns <= proc->world->sim.now_ns;
}

static bool user_due(const struct sim_proc *proc)
{
	return proc->user.poked || user_next_ns(&proc->user) <= proc->world->sim.now_ns;
}

unsigned proc_ready(struct sim_proc *proc)
{
	/* Disks and GPUs go on beside a process that stands still. */
	unsigned ready = sim_io_ready(proc->io) + sim_gpu_ready(&proc->gpu);

	if (proc->frozen)
		return ready;
	return ready + sim_env_ready(&proc->env) + core_due(proc) + user_due(proc);
}

static void step_core(struct sim_proc *proc)
{
	uint64_t deadline_ns = ckpt_core_step(&proc->core);

	proc->deadline_ns =
		deadline_ns == UINT64_MAX ? deadline_ns : deadline_ns - proc->env.ahead_ns;
	user_observe(&proc->user);
	proc->user.poked = true;
	if (ckpt_core_idle(&proc->core) &&
		ckpt_pool_free(proc->pool) != ckpt_pool_slots(proc->pool))
		sim_violation(&proc->world->sim, "p%u does nothing, and holds %u staging slots",
			proc->id, ckpt_pool_slots(proc->pool) - ckpt_pool_free(proc->pool));
	tell_log(proc);
}

/* The user may wait for what it has computed. */
static void step_gpu(struct sim_proc *proc, unsigned n)
{
	sim_gpu_finish(&proc->gpu, n);
	proc->user.poked = true;
}

/* Those that the core has, and those that it has not heard of yet. */
static unsigned count_restores(const struct sim_proc *proc)
{
	const struct ckpt_restore *first = proc->user.reading.restore;
	const struct ckpt_restore *second = proc->user.aside.restore;
	unsigned count = 0;

	for (const struct ckpt_restore *r = proc->core.restores; r; r = r->next) {
		count++;
		first = r == first ? NULL : first;
		second = r == second ? NULL : second;
	}
	return count + (first != NULL) + (second != NULL);
}

/*
 * What an engine may hold beside its staging: something for itself, for every step and generation of its
 * store, and for every tensor, block and chunk of a save and of two restores.
 */
static uint64_t budget(const struct sim_proc *proc, bool saving, unsigned restores)
{
	const struct sim_rank *rank = proc->rank;
	uint64_t tensors = 0;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < SIM_SHAPES; i++) {
		uint64_t sum = 0;
		for (size_t k = 0; k < rank->shapes[i].count; k++)
			sum += rank->shapes[i].tensors[k].bytes;
		tensors = ckpt_max_u64(tensors, rank->shapes[i].count);
		bytes = ckpt_max_u64(bytes, sum);
	}
	uint64_t blocks = bytes / proc->block_bytes + 2;
	uint64_t chunks = bytes / 512 + tensors + 8;
	uint64_t chunk = MEMORY_CHUNK + (rank->oracle.any_damage ? MEMORY_FINDING : 0);
	uint64_t readings = restores > 2 ? (uint64_t)(restores - 2) * MEMORY_READING : 0;
	uint64_t codecs = proc->world->plan.encodes ? MEMORY_CODECS : 0;
	return MEMORY_BASE + codecs + readings + (saving ? MEMORY_SAVE : 0) +
	       rank->oracle.record_count * MEMORY_STEP + rank->oracle.gen_count * MEMORY_CLAIM +
	       tensors * MEMORY_TENSOR + blocks * MEMORY_BLOCK + chunks * chunk;
}

static void check_memory(struct sim_proc *proc, bool saving, unsigned restores)
{
	uint64_t most = sim_memory_most(proc->id);

	if (most <= MEMORY_BASE)
		return;
	uint64_t allowed = budget(proc, saving, restores);
	if (most > allowed)
		sim_violation(&proc->world->sim, "p%u holds %llu bytes of memory, and may %llu",
			proc->id, (unsigned long long)most, (unsigned long long)allowed);
}

void proc_do(struct sim_proc *proc, unsigned n)
{
	unsigned requests = sim_io_ready(proc->io);
	unsigned streams = sim_gpu_ready(&proc->gpu);
	unsigned jobs = proc->frozen ? 0 : sim_env_ready(&proc->env);
	unsigned saves = proc->user.save ? 0 : proc->user.begun;
	unsigned restores = count_restores(proc);
	uint64_t still_ns = proc->gpu.still_ns;

	sim_memory_enter(proc->id);
	if (n < requests)
		sim_io_finish(proc->io, n);
	else if (n < requests + jobs)
		sim_env_finish(&proc->env, n - requests);
	else if (n < requests + jobs + streams)
		step_gpu(proc, n - requests - jobs);
	else if (n == requests + jobs + streams && core_due(proc))
		step_core(proc);
	else
		user_turn(&proc->user);
	sim_memory_enter(0);
	if (proc->gpu.still_ns != still_ns)
		user_excuse_restores(&proc->user, sim_gpu_rests_ns(&proc->gpu));
	/* It held what it has let go of since, or what it has come to. */
	restores = (unsigned)ckpt_max_u64(restores, count_restores(proc));
	check_memory(proc, saves != proc->user.begun, restores);
	/* Only when nothing is left to be done may a wait be found too long. */
	if (!proc->frozen && !core_due(proc))
		user_check(&proc->user);
}

uint64_t proc_next_ns(const struct sim_proc *proc)
{
	uint64_t next_ns = ckpt_min_u64(sim_io_next(proc->io), sim_gpu_next(&proc->gpu));

	if (proc->frozen)
		return proc->awaits ? next_ns : ckpt_min_u64(next_ns, proc->thaw_ns);
	next_ns = ckpt_min_u64(next_ns, sim_env_next(&proc->env));
	next_ns = ckpt_min_u64(next_ns, proc->deadline_ns);
	return ckpt_min_u64(next_ns, user_next_ns(&proc->user));
}
