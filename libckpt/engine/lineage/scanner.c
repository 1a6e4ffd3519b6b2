/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the contents of a store. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/scan.h"
#include "format/sealed.h"

/* The name after `name` in a listing; NULL after the last. `name` NULL: the first. */
static const char *next_name(const struct ckpt_listing *names, const char *name)
{
	const char *next = name ? name + strlen(name) + 1 : names->names;

	return names->names && next < names->names + names->bytes ? next : NULL;
}

static void take_listing(struct ckpt_listing *to, struct ckpt_store_op *op)
{
	ckpt_free(to->names);
	*to = op->listing;
	op->listing = (struct ckpt_listing){0};
}

static int take_claim(struct ckpt_scanner *s)
{
	struct ckpt_scan_gen gen = {.generation = s->generation, .claimed = true};
	struct ckpt_error why = {.size = sizeof(why)};

	int r = ckpt_claim_decode(s->op.data, s->op.length, s->op.path, &why, &gen.claim);
	CKPT_ASSERT(r != -ENOMEM); /* it is parsed without allocations */
	if (r == CKPT_EVERSION)
		return ckpt_fail(s->err, r, "%s", why.message);
	gen.broken = r < 0 || gen.claim.generation != s->generation ||
		     strcmp(gen.claim.run_id, s->marker.run_id) != 0;
	r = ckpt_scan_put_gen(&s->scan, &gen);
	return r < 0 ? ckpt_fail(s->err, r, "out of memory") : 0;
}

static void note(struct ckpt_scan_step *found, enum ckpt_step_state state, const char *text)
{
	found->state = state;
	(void)snprintf(found->note, sizeof(found->note), "%s", text);
}

static void note_broken(struct ckpt_scanner *s, int code, const char *text)
{
	note(&s->found, CKPT_STEP_BROKEN, text);
	s->found.code = code;
}

/* The message of the storage is kept, because it says more than a code. */
static void note_unread(struct ckpt_scanner *s)
{
	struct ckpt_error why;

	ckpt_error_clear(&why);
	note_broken(s, s->op.result,
		s->err && ckpt_fail_said(&why, s->op.result, NULL, s->err)
			? why.message
			: ckpt_code_text(s->op.result));
}

static void take_manifest(struct ckpt_scanner *s)
{
	struct ckpt_manifest manifest;
	struct ckpt_error why = {.size = sizeof(why)};

	int r = ckpt_manifest_decode(s->op.data, s->op.length, s->op.path, &why, &manifest);
	if (r < 0) {
		note_broken(s, r, why.message);
		return;
	}
	if (manifest.generation != s->generation || manifest.step != s->step ||
		strcmp(manifest.run_id, s->marker.run_id) != 0) {
		note_broken(s, CKPT_EINTEGRITY, "its manifest is that of another step or run");
		ckpt_manifest_clear(&manifest);
		return;
	}
	s->found.state = CKPT_STEP_COMMITTED;
	if (manifest.kind == CKPT_MANIFEST_ABORT)
		note(&s->found, CKPT_STEP_ABORTED, manifest.reason);
	s->found.wall_ms = manifest.wall_ms;
	s->found.world = manifest.world;
	memcpy(s->found.attempt, manifest.attempt, sizeof(s->found.attempt));
	memcpy(s->found.bases, manifest.bases, sizeof(s->found.bases));
	s->found.base_count = manifest.base_count;
	for (uint32_t i = 0; manifest.ranks && i < manifest.world; i++)
		s->found.bytes += manifest.ranks[i].shard_bytes;
	ckpt_manifest_clear(&manifest);
}

static void take_quarantine(struct ckpt_scanner *s)
{
	struct ckpt_quarantine quarantine;

	/* A note that does not verify is still a warning. */
	int r = ckpt_quarantine_decode(s->op.data, s->op.length, s->op.path, NULL, &quarantine);
	note(&s->found, CKPT_STEP_QUARANTINED,
		r < 0 ? "its quarantine note does not verify" : quarantine.reason);
}

/* The next step in one generation's directory. Within the scanner's task. */
static bool next_step(struct ckpt_scanner *s)
{
	while ((s->inner_name = next_name(&s->inner, s->inner_name)))
		if (ckpt_parse_step(s->inner_name, &s->step))
			return true;
	return false;
}

/* The next generation directory in the root's listing. */
static bool next_generation(struct ckpt_scanner *s)
{
	while ((s->name = next_name(&s->directories, s->name)))
		if (ckpt_parse_generation(s->name, &s->generation))
			return true;
	return false;
}

static bool next_claim(struct ckpt_scanner *s)
{
	while ((s->name = next_name(&s->names, s->name)))
		if (ckpt_parse_claim(s->name, &s->generation))
			return true;
	return false;
}

static void drop_data(struct ckpt_store_op *op)
{
	ckpt_free(op->data);
	op->data = NULL;
}

static int scan_marker_done(struct ckpt_scanner *s)
{
	if (s->op.result == -ENOENT)
		return ckpt_fail_at(s->err, CKPT_ENOSTORE,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(s->store), .file = CKPT_NAME_MARKER},
			"%s is not a store: it has no %s", s->store->label, CKPT_NAME_MARKER);
	if (s->op.result < 0)
		return ckpt_fail(s->err, s->op.result, "cannot read %s of %s: %s", CKPT_NAME_MARKER,
			s->store->label, ckpt_code_text(s->op.result));
	int r = ckpt_marker_decode(s->op.data, s->op.length, CKPT_NAME_MARKER, s->err, &s->marker);
	drop_data(&s->op);
	memcpy(s->scan.run_id, s->marker.run_id, sizeof(s->scan.run_id));
	return r;
}

static int take_result(struct ckpt_scanner *s)
{
	int r = s->op.result;

	if (r == -ENOENT)
		return 0;
	if (r >= 0)
		r = take_claim(s);
	drop_data(&s->op);
	return r;
}

/* A manifest that cannot be read makes only its own step BROKEN. */
static void take_register(struct ckpt_scanner *s)
{
	if (s->op.result == -ENOENT)
		return;
	if (s->op.result < 0)
		note_unread(s);
	else
		take_manifest(s);
	drop_data(&s->op);
}

/* A directory without a claim still uses its number. */
static int take_directory(struct ckpt_scanner *s)
{
	struct ckpt_scan_gen gen = {.generation = s->generation};

	return ckpt_scan_gen(&s->scan, s->generation) ? 0 : ckpt_scan_put_gen(&s->scan, &gen);
}

static int take_tombstone(struct ckpt_scanner *s, uint64_t step)
{
	struct ckpt_scan_step *found = ckpt_scan_find(&s->scan, s->generation, step);

	if (found) {
		found->deleting = true;
		return 0;
	}
	return ckpt_scan_put(&s->scan, &(struct ckpt_scan_step){.generation = s->generation,
					       .step = step,
					       .state = CKPT_STEP_PENDING,
					       .deleting = true});
}

/* Tombstones are beside the steps, in the listing that exists anyway. */
static int take_tombstones(struct ckpt_scanner *s)
{
	uint64_t step;

	for (const char *name = NULL; (name = next_name(&s->inner, name));) {
		if (ckpt_parse_tombstone(name, &step) && take_tombstone(s, step) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int steps_body(struct ckpt_task *task)
{
	struct ckpt_scanner *s = CKPT_CONTAINER(task, struct ckpt_scanner, task);
	struct ckpt_store_op *op = &s->op;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	for (s->name = NULL; next_generation(s);) {
		ckpt_store_list(s->store, op, s->name);
		CKPT_AWAIT(task, op->done);
		if (op->result < 0 && op->result != -ENOENT)
			return op->result;
		take_listing(&s->inner, op);
		r = take_directory(s);
		if (r < 0)
			return ckpt_fail(s->err, r, "out of memory");
		for (s->inner_name = NULL; next_step(s);) {
			s->found = (struct ckpt_scan_step){.generation = s->generation,
				.step = s->step,
				.state = CKPT_STEP_PENDING};
			ckpt_name_manifest(path, s->generation, s->step);
			ckpt_store_get(s->store, op, path, CKPT_SEALED_MAX);
			CKPT_AWAIT(task, op->done);
			take_register(s);
			if (s->found.state == CKPT_STEP_COMMITTED) {
				ckpt_name_quarantine(path, s->generation, s->step);
				ckpt_store_get(s->store, op, path, CKPT_SEALED_MAX);
				CKPT_AWAIT(task, op->done);
				/* If the note cannot be read, the step may be quarantined and is not chosen. */
				if (op->result >= 0)
					take_quarantine(s);
				else if (op->result != -ENOENT)
					note_unread(s);
				drop_data(op);
			}
			/* The error is noted in the step, and must not appear in a later one. */
			ckpt_error_clear(s->err);
			r = ckpt_scan_put(&s->scan, &s->found);
			if (r < 0)
				return ckpt_fail(s->err, r, "out of memory");
		}
		r = take_tombstones(s);
		if (r < 0)
			return ckpt_fail(s->err, r, "out of memory");
	}
	CKPT_TASK_END(task);
}

/* Reads the marker and the claims, then continues as steps_body. */
static int claims_body(struct ckpt_task *task)
{
	struct ckpt_scanner *s = CKPT_CONTAINER(task, struct ckpt_scanner, task);
	struct ckpt_store_op *op = &s->op;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	op->quiet = true;
	ckpt_store_get(s->store, op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, op->done);
	r = scan_marker_done(s);
	if (r < 0)
		return r;

	/*
	 * In this order: a directory in the listing was claimed before, and every listed step has a known generation.
	 */
	ckpt_store_list(s->store, op, ".");
	CKPT_AWAIT(task, op->done);
	if (op->result < 0)
		return op->result;
	take_listing(&s->directories, op);
	ckpt_store_list(s->store, op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0 && op->result != -ENOENT)
		return op->result;
	take_listing(&s->names, op);
	for (s->name = NULL; next_claim(s);) {
		ckpt_name_claim(path, s->generation);
		ckpt_store_get(s->store, op, path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, op->done);
		r = take_result(s);
		if (r < 0)
			return r;
	}
	return ckpt_task_continue(task, steps_body);
	CKPT_TASK_END(task);
}

static void scanner_done(struct ckpt_task *task)
{
	struct ckpt_scanner *s = CKPT_CONTAINER(task, struct ckpt_scanner, task);

	ckpt_free(s->names.names);
	ckpt_free(s->inner.names);
	ckpt_free(s->directories.names);
	s->names = (struct ckpt_listing){0};
	s->inner = (struct ckpt_listing){0};
	s->directories = (struct ckpt_listing){0};
	ckpt_task_wake(s->waiter);
}

void ckpt_scanner_start(struct ckpt_scanner *scanner, struct ckpt_store *store,
	struct ckpt_sched *sched, struct ckpt_task *waiter, const int *stop, struct ckpt_error *err)
{
	CKPT_ASSERT(!ckpt_task_active(&scanner->task));
	*scanner = (struct ckpt_scanner){.store = store, .err = err, .waiter = waiter};
	ckpt_store_op_init(&scanner->op, &scanner->task, err);
	scanner->op.stop = stop;
	ckpt_task_start(&scanner->task, sched, claims_body, scanner_done);
}

void ckpt_scanner_clear(struct ckpt_scanner *scanner)
{
	CKPT_ASSERT(!ckpt_task_active(&scanner->task));
	ckpt_scan_clear(&scanner->scan);
}
