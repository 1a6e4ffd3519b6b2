/* SPDX-License-Identifier: Apache-2.0 */
/* Claims a generation. */
#include "engine/lineage/claim.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"
#include "format/sealed.h"

static ckpt_task_fn parent_body;
static ckpt_task_fn publish_body;

static struct ckpt_claimer *claimer_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_claimer, work);
}

/* A step that cannot be read may be a commit of the lineage. A claim without it as parent would lose it. */
static int check_broken(
	struct ckpt_core *core, const struct ckpt_scan_step *s, struct ckpt_error *err)
{
	unsigned long long step = s->step;

	if (s->state != CKPT_STEP_BROKEN ||
		!ckpt_lineage_holds(&core->lineage->scan, s->generation, s->step))
		return 0;
	if (s->code <= CKPT_EINTEGRITY)
		return ckpt_fail(err, CKPT_ENOTRESUMED,
			"the manifest of step %llu of the store %s is damaged (%s), and nothing "
			"was resumed: put it back from a copy, or ask for a new start",
			step, core->parts.label, s->note);
	return ckpt_fail(err, s->code,
		"the manifest of step %llu of the store %s cannot be read (%s), so it is unknown "
		"whether there is something to resume: try again, or ask for a new start",
		step, core->parts.label, s->note);
}

/* Whether this core may claim, and with which parent. */
static int check_parent(struct ckpt_core *core, struct ckpt_error *err)
{
	if (core->config.read_only)
		return ckpt_fail(
			err, -EROFS, "the store %s was opened read only", core->parts.label);
	if (core->lineage->adopted || core->config.new_start)
		return 0;
	(void)ckpt_lineage_mark(&core->lineage->scan, NULL);
	int r = 0;
	for (size_t i = 0; i < core->lineage->scan.step_count && r == 0; i++) {
		const struct ckpt_scan_step *s = &core->lineage->scan.steps[i];
		if (s->in_lineage)
			return ckpt_fail(err, CKPT_ENOTRESUMED,
				"the store %s holds commits, the newest of step %llu: resume from "
				"it, or ask for a new start, or use another store",
				core->parts.label, (unsigned long long)s->step);
		r = check_broken(core, s, err);
	}
	if (r == 0 && core->lineage->elsewhere)
		return ckpt_fail(err, CKPT_ENOTRESUMED,
			"the store of another node holds commits that %s does not, and nothing was "
			"resumed: make a rank of that node rank 0, or ask for a new start",
			core->parts.label);
	return r;
}

static int encode_claim(struct ckpt_claimer *c, uint64_t generation)
{
	struct ckpt_core *core = c->command.core;

	c->claim = (struct ckpt_claim){.generation = generation,
		.parent_generation = core->lineage->adopted ? core->lineage->parent_generation : 0,
		.parent_step = core->lineage->adopted ? core->lineage->parent_step : 0,
		/* A repeated try reuses its nonce, because the file of the first try may appear late. */
		.nonce = generation == core->lineage->tried_generation
				 ? core->lineage->tried_nonce
				 : ckpt_env_random(core->parts.env),
		.world = core->config.world,
		.wall_ms = ckpt_env_wall_ms(core->parts.env)};
	memcpy(c->claim.run_id, core->lineage->marker.run_id, sizeof(c->claim.run_id));
	memcpy(c->claim.node, core->config.node, sizeof(c->claim.node));
	return ckpt_claim_encode(&c->claim, &c->buf);
}

/* This core has claimed before: returns that claim. */
static int repeat(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;
	const struct ckpt_scan_gen *gen =
		ckpt_scan_gen(&core->lineage->scan, core->lineage->generation);

	CKPT_ASSERT(gen && gen->claimed);
	c->claim = gen->claim;
	return 0;
}

/*
 * A claim whose sync failed may still exist. It is treated like the claim of a dead process, and the next claim comes
 * after it. False: the claim that exists is another process's.
 */
static bool take_own_try(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;
	struct ckpt_scan_gen gen = {.generation = c->newest, .claimed = true};

	int r = ckpt_claim_decode(c->op.data, c->op.length, c->path, NULL, &gen.claim);
	ckpt_free(c->op.data);
	c->op.data = NULL;
	if (r < 0 || gen.claim.nonce != core->lineage->tried_nonce)
		return false;
	/* At its place in the scan since it was tried. */
	r = ckpt_scan_put_gen(&core->lineage->scan, &gen);
	CKPT_ASSERT(r == 0);
	return true;
}

static int lost(struct ckpt_claimer *c, uint64_t generation)
{
	return ckpt_fail_at(&c->command.error, CKPT_EINUSE,
		&(struct ckpt_where){.tier = "local", .file = c->op.path},
		"another process claimed generation %llu of the store %s since this one opened it: "
		"stop that job, or give this one a store of its own",
		(unsigned long long)generation, c->command.core->parts.label);
}

int ckpt_claim_adopt(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;
	struct ckpt_scan_gen gen = {
		.generation = c->claim.generation, .claimed = true, .claim = c->claim};

	core->lineage->generation = c->claim.generation;
	core->lineage->nonce = c->claim.nonce;
	core->lineage->heard_generation = 0;
	core->lineage->last_step = c->claim.parent_step;
	core->lineage->any_step = c->claim.parent_generation != 0;
	core->stats.generation = core->lineage->generation;
	ckpt_log(core->parts.log, CKPT_LOG_INFO,
		"claimed generation %llu of %s, parent generation %llu step %llu",
		(unsigned long long)core->lineage->generation, core->parts.label,
		(unsigned long long)c->claim.parent_generation,
		(unsigned long long)c->claim.parent_step);
	/* Its place was reserved below: a claim that exists must not fail any more. */
	int r = ckpt_scan_put_gen(&core->lineage->scan, &gen);
	CKPT_ASSERT(r == 0);
	(void)ckpt_lineage_mark(&core->lineage->scan, NULL);
	core->hooks->claimed(core);
	return 0;
}

/* Chooses the number after `newest`, and reserves memory for what must not fail later. */
static int prepare(struct ckpt_claimer *c, uint64_t newest)
{
	struct ckpt_core *core = c->command.core;
	int r = encode_claim(c, newest + 1);

	if (r == -ERANGE)
		return ckpt_fail(&c->command.error, r,
			"generation %llu of the store %s is the last possible one: "
			"export the step to resume from into a new store",
			(unsigned long long)newest, core->parts.label);
	if (r == 0)
		r = ckpt_scan_put_gen(
			&core->lineage->scan, &(struct ckpt_scan_gen){.generation = newest + 1});
	if (r < 0)
		return ckpt_fail(&c->command.error, r, "out of memory");
	core->lineage->tried_generation = c->claim.generation;
	core->lineage->tried_nonce = c->claim.nonce;
	ckpt_name_claim(c->path, c->claim.generation);
	return 0;
}

/* Only this core's own tries may be newer than the scan. */
static int look_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c = claimer_of(task);
	struct ckpt_core *core = c->command.core;
	struct ckpt_store_op *op = &c->op;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(core->store, op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0)
		return ckpt_fail(&c->command.error, op->result, "cannot list %s of %s: %s",
			CKPT_NAME_GENS, core->parts.label, ckpt_code_text(op->result));
	c->newest = ckpt_newest_claim(&op->listing);
	ckpt_free(op->listing.names);
	op->listing = (struct ckpt_listing){0};
	if (c->newest == ckpt_scan_newest_claim(&core->lineage->scan))
		return ckpt_task_continue(task, parent_body);
	if (c->newest != core->lineage->tried_generation)
		return lost(c, c->newest);
	ckpt_name_claim(c->path, c->newest);
	ckpt_store_get(core->store, op, c->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0)
		return ckpt_fail(&c->command.error, op->result, "cannot read %s of %s: %s", c->path,
			core->parts.label, ckpt_code_text(op->result));
	if (!take_own_try(c))
		return lost(c, c->newest);
	return ckpt_task_continue(task, parent_body);
	CKPT_TASK_END(task);
}

/*
 * Checks that there is nothing to resume, if nothing was resumed. Called when no other process has claimed since the
 * scan: before that, missing files may be those of another process that is starting, not lost ones.
 */
static int check_lineage(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;

	return core->config.new_start ? 0
				      : ckpt_lineage_mark(&core->lineage->scan, &c->command.error);
}

static int fail_removed(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;

	return ckpt_fail_at(&c->command.error, CKPT_EINUSE,
		&(struct ckpt_where){.tier = "local", .file = c->path},
		"step %llu of %s, which this process has resumed from, was deleted meanwhile "
		"by another one: stop that job, and resume again",
		(unsigned long long)core->lineage->parent_step, core->parts.label);
}

/*
 * The step to resume from must still exist. Where locks do not work, a process that was taken for dead may have deleted
 * it and committed newer steps: a claim would abandon those, and have no step itself.
 */
static int parent_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c = claimer_of(task);
	struct ckpt_core *core = c->command.core;
	struct ckpt_store_op *op = &c->op;
	int r;

	CKPT_TASK_BEGIN(task);
	if (!core->lineage->adopted) {
		r = check_lineage(c);
		return r < 0 ? r : ckpt_task_continue(task, publish_body);
	}
	ckpt_name_manifest(c->path, core->lineage->parent_generation, core->lineage->parent_step);
	ckpt_store_get(core->store, op, c->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, op->done);
	ckpt_free(op->data);
	op->data = NULL;
	if (op->result == -ENOENT)
		return fail_removed(c);
	/* If it cannot be read, it exists, which is enough here. */
	ckpt_error_clear(&c->command.error);
	ckpt_claim_start_settle(c);
	CKPT_AWAIT(task, op->done);
	if (op->result == -ENOENT)
		return fail_removed(c);
	return op->result < 0 ? op->result : ckpt_task_continue(task, publish_body);
	CKPT_TASK_END(task);
}

void ckpt_claim_start_settle(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;

	ckpt_name_step(c->path, core->lineage->parent_generation, core->lineage->parent_step);
	ckpt_store_sync(core->store, &c->op, c->path);
}

int ckpt_claim_settled(struct ckpt_claimer *c)
{
	if (c->op.result == -ENOENT)
		ckpt_error_clear(&c->command.error);
	return c->op.result == -ENOENT ? 0 : c->op.result;
}

/*
 * The number that the next claim follows. If the listing does not show a failed try, its number is free, and must not
 * be skipped: another process may take it.
 */
static uint64_t last_taken(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;
	uint64_t newest = ckpt_max_u64(c->newest, ckpt_scan_newest(&core->lineage->scan));

	newest = ckpt_max_u64(newest, core->lineage->newest_elsewhere);
	if (newest > 0 && newest == core->lineage->tried_generation &&
		!ckpt_scan_gen(&core->lineage->scan, newest)->claimed)
		newest--;
	return newest;
}

static int publish_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c = claimer_of(task);
	struct ckpt_core *core = c->command.core;
	struct ckpt_store_op *op = &c->op;
	int r;

	CKPT_TASK_BEGIN(task);
	r = prepare(c, last_taken(c));
	if (r < 0)
		return r;
	ckpt_store_publish(core->store, op, c->path, c->buf.data, c->buf.len, &c->lock);
	CKPT_AWAIT(task, op->done);
	/* -ENOENT: the process that won has deleted the temporary file. */
	if (op->result == -EEXIST || op->result == -ENOENT)
		return lost(c, c->claim.generation);
	if (op->result < 0)
		return op->result;
	if (core->lineage->holder.fd >= 0) {
		ckpt_store_shut(core->store, op, &core->lineage->holder);
		CKPT_AWAIT(task, op->done);
	}
	core->lineage->holder = c->lock;
	return ckpt_claim_adopt(c);
	CKPT_TASK_END(task);
}

/* The other ranks are also told why rank 0 could not claim, because only rank 0's view of the store counts. */
static int work_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c = claimer_of(task);
	struct ckpt_core *core = c->command.core;

	if (core->config.rank > 0 && !core->config.read_only)
		return ckpt_task_continue(task, ckpt_claim_join_body);
	int r = check_parent(core, &c->command.error);
	return r < 0 ? r : ckpt_task_continue(task, look_body);
}

static void work_done(struct ckpt_task *task)
{
	ckpt_task_wake(&claimer_of(task)->command.task);
}

int ckpt_claim_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c =
		CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_claimer, command);
	struct ckpt_core *core = c->command.core;

	CKPT_TASK_BEGIN(task);
	if (core->lineage->claiming)
		return ckpt_fail(&c->command.error, -EBUSY,
			"an earlier claim of the store %s has not ended: its storage does not "
			"answer",
			core->parts.label);
	if (core->lineage->generation)
		return repeat(c);
	core->lineage->claiming = true;
	ckpt_store_op_init(&c->op, &c->work, &c->command.error);
	c->op.quiet = true;
	ckpt_task_start(&c->work, &core->sched, work_body, work_done);
	CKPT_AWAIT(task, c->work.finished);
	if (core->exchange && core->config.rank == 0 && !core->config.read_only) {
		if (ckpt_claim_tell(c))
			CKPT_AWAIT(task, c->call.task.finished);
		ckpt_claim_told(c);
	}
	core->lineage->claiming = false;
	core->hooks->claim_ended(core);
	return c->work.result;
	CKPT_TASK_END(task);
}

void ckpt_claimer_clear(struct ckpt_command *command)
{
	struct ckpt_claimer *claimer = CKPT_CONTAINER(command, struct ckpt_claimer, command);

	ckpt_buf_free(&claimer->buf);
	ckpt_buf_free(&claimer->words);
}
