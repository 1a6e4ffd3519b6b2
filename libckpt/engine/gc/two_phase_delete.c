/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes a step of a store without a lock. */
#include "engine/gc/two_phase_delete.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/gc/sweep.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"
#include "format/sealed.h"

#define INDEX_SUFFIX ".index"
/* Age of the last look at the tombstone after which it is read again before a file is deleted. */
#define LOOK_NS      UINT64_C(2000000000)
/*
 * A look older than this is repeated. This plus the life of a request (360 s: a try of 90 s fails, the last try begins
 * 180 s later and takes 90 s) is less than a grace period of 600 s.
 */
#define STALE_NS     UINT64_C(60000000000)

static struct ckpt_two_phase_delete *two_phase_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_two_phase_delete, work);
}

/* The error to end with after an operation; 0: continue. A missing file is no error. */
static int trouble(struct ckpt_two_phase_delete *b, const char *doing)
{
	const struct ckpt_where where = {.tier = ckpt_store_tier(b->store), .file = b->op.path};

	if (b->op.result >= 0 || b->op.result == -ENOENT)
		return b->core->closing ? CKPT_ECLOSED : 0;
	if (b->err->code < 0)
		return b->op.result;
	return ckpt_fail_at(b->err, b->op.result, &where, "cannot %s %s in %s: %s", doing,
		b->op.path, b->store->label, ckpt_code_text(b->op.result));
}

/* Tombstones. */

static struct ckpt_seen_tombstone *seen_tombstone_of(const struct ckpt_two_phase_delete *b)
{
	return ckpt_seen_tombstones_find(b->seen_tombstones, b->generation, b->step);
}

/* Records that the tombstone `b->stone` is there. */
static int note_seen_tombstone(struct ckpt_two_phase_delete *b, bool mine, bool taken)
{
	const struct ckpt_seen_tombstone seen_tombstone = {.generation = b->generation,
		.step = b->step,
		.stone = b->stone,
		.since_ns = ckpt_env_now(b->core->parts.env),
		.mine = mine,
		.taken = taken};
	int r = ckpt_seen_tombstones_note(b->seen_tombstones, &seen_tombstone);

	return r < 0 ? ckpt_fail(b->err, r, "out of memory") : 0;
}

static void start_look(struct ckpt_two_phase_delete *b)
{
	char path[CKPT_PATH_MAX];

	b->looked_ns = ckpt_env_age(b->core->parts.env);
	b->op.not_after_ns = b->looked_ns + CKPT_TWO_PHASE_DELETE_ASK_NS;
	ckpt_name_tombstone(path, b->generation, b->step);
	ckpt_store_get(b->store, &b->op, path, CKPT_SEALED_MAX);
}

/* Reads the digest of the tombstone into b->stone; -ENOENT: there is none. */
static int read_stone(struct ckpt_two_phase_delete *b)
{
	if (b->op.result == -ENOENT)
		return -ENOENT;
	if (b->op.result >= 0)
		b->stone = ckpt_digest_of(b->op.data, b->op.length);
	ckpt_free(b->op.data);
	b->op.data = NULL;
	return trouble(b, "read");
}

/* 0: the tombstone has not changed. A different one is recorded. */
static int take_look(struct ckpt_two_phase_delete *b)
{
	const struct ckpt_seen_tombstone *seen_tombstone = seen_tombstone_of(b);
	int r = read_stone(b);

	if (r == 0 && seen_tombstone && ckpt_digest_equal(&seen_tombstone->stone, &b->stone))
		return 0;
	if (r == 0)
		r = note_seen_tombstone(b, false, false);
	else if (r == -ENOENT)
		ckpt_seen_tombstones_drop(b->seen_tombstones, b->generation, b->step);
	if (r < 0 && r != -ENOENT)
		return r;
	return ckpt_fail(b->err, -EBUSY,
		r == 0 ? "step %llu of %s has another tombstone: another process deletes it"
		       : "step %llu of %s has no tombstone any more: another process has deleted "
			 "or kept it",
		(unsigned long long)b->step, b->store->label);
}

/* The result of deleting a file of the step. */
static int take_deletion(struct ckpt_two_phase_delete *b)
{
	struct ckpt_seen_tombstone *seen_tombstone = seen_tombstone_of(b);

	if (((b->op.result < 0 && b->op.result != -ENOENT) || b->op.uncertain) && seen_tombstone)
		seen_tombstone->doubtful = true;
	return trouble(b, "remove");
}

/*
 * Called before the tombstone is deleted. A request that failed or was repeated may still be carried out, and must not
 * hit a later step of this name. So the tombstone stays for another grace period, as one that was taken over.
 */
static int check_doubt(struct ckpt_two_phase_delete *b)
{
	struct ckpt_seen_tombstone *seen_tombstone = seen_tombstone_of(b);

	if (!seen_tombstone->doubtful)
		return 0;
	seen_tombstone->doubtful = false;
	seen_tombstone->taken = true;
	seen_tombstone->since_ns = ckpt_env_now(b->core->parts.env);
	return ckpt_fail(b->err, -EAGAIN,
		"a request to delete a file of step %llu of %s had no answer and may still be "
		"carried out: its tombstone stays for another grace period",
		(unsigned long long)b->step, b->store->label);
}

static uint64_t age_ns(const struct ckpt_two_phase_delete *b)
{
	return ckpt_env_age(b->core->parts.env) - b->looked_ns;
}

/* The last look is too old to act on: a request took long, or the process was stopped. */
static bool is_stale(const struct ckpt_two_phase_delete *b)
{
	return age_ns(b) > STALE_NS;
}

/*
 * Called before each of possibly thousands of files: looks rarely, and a second time only if the first look took long.
 */
static bool must_look(const struct ckpt_two_phase_delete *b)
{
	return b->looks == 0 ? age_ns(b) > LOOK_NS : is_stale(b);
}

/* Deletion. */

static bool is_index(const char *name)
{
	size_t length = strlen(name);
	size_t suffix = sizeof(INDEX_SUFFIX) - 1;

	return length > suffix && strcmp(name + length - suffix, INDEX_SUFFIX) == 0;
}

/*
 * The next file of the step, into `path`; false: there is none. A name longer than any of ours is left, and so is the
 * directory.
 */
static bool next_name(struct ckpt_two_phase_delete *b)
{
	const struct ckpt_listing *names = &b->names;
	char directory[CKPT_PATH_MAX];

	ckpt_name_step(directory, b->generation, b->step);
	for (;;) {
		b->name = b->name ? b->name + strlen(b->name) + 1 : names->names;
		if (!names->names || b->name >= names->names + names->bytes)
			return false;
		if (is_index(b->name) != b->indexes)
			continue;
		int n = snprintf(b->path, sizeof(b->path), "%s/%s", directory, b->name);
		if (n > 0 && (size_t)n < sizeof(b->path))
			return true;
	}
}

static ckpt_task_fn manifest_body;
static ckpt_task_fn indexes_body;
static ckpt_task_fn shards_body;
static ckpt_task_fn files_body;
static ckpt_task_fn directory_body;
static ckpt_task_fn catalogs_body;
static ckpt_task_fn stone_body;

/* The job may have rolled back to this very step, and its claim may arrive in the remote store only later. */
static int check_outdated(struct ckpt_two_phase_delete *b)
{
	if (!b->fence || b->core->lineage->generation == b->newest)
		return 0;
	return ckpt_fail(b->err, -EBUSY,
		"step %llu of %s is not deleted: the job has resumed from another step",
		(unsigned long long)b->step, b->store->label);
}

/* The pin may be newer than the decision to delete. A deletion that has begun is finished. */
static int check_pins(struct ckpt_two_phase_delete *b)
{
	const struct ckpt_core *core = b->core;

	for (size_t i = 0; i < core->pin_count && b->whole; i++)
		if (core->pins[i] == b->step)
			return ckpt_fail(b->err, -EBUSY, "step %llu of %s is pinned",
				(unsigned long long)b->step, b->store->label);
	return 0;
}

static int manifest_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = check_outdated(b);
	if (r == 0)
		r = check_pins(b);
	if (r < 0)
		return r;
	ckpt_name_manifest(b->path, b->generation, b->step);
	ckpt_store_remove(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = take_deletion(b);
	if (r < 0)
		return r;
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_sync(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "sync");
	return r < 0 ? r : ckpt_task_continue(task, indexes_body);
	CKPT_TASK_END(task);
}

static void take_names(struct ckpt_two_phase_delete *b)
{
	ckpt_free(b->names.names);
	b->names = b->op.listing;
	b->op.listing = (struct ckpt_listing){0};
	b->name = NULL;
}

static int indexes_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_list(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "list");
	if (r < 0)
		return r;
	take_names(b);
	b->indexes = true;
	return ckpt_task_continue(task, files_body);
	CKPT_TASK_END(task);
}

static int shards_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_sync(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "sync");
	if (r < 0)
		return r;
	b->name = NULL;
	b->indexes = false;
	return ckpt_task_continue(task, files_body);
	CKPT_TASK_END(task);
}

/* Deletes the indexes, or all other files. */
static int files_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	start_look(b);
	CKPT_AWAIT(task, b->op.done);
	r = take_look(b);
	while (r == 0 && next_name(b)) {
		for (b->looks = 0; r == 0 && must_look(b); b->looks++) {
			start_look(b);
			CKPT_AWAIT(task, b->op.done);
			r = take_look(b);
		}
		if (r < 0)
			return r;
		ckpt_store_remove(b->store, &b->op, b->path);
		CKPT_AWAIT(task, b->op.done);
		r = take_deletion(b);
	}
	if (r < 0)
		return r;
	return ckpt_task_continue(task, b->indexes ? shards_body : directory_body);
	CKPT_TASK_END(task);
}

/* Unfinished uploads of this name belong to another process if the step does. */
static int directory_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(b->path, b->generation, b->step);
	do {
		start_look(b);
		CKPT_AWAIT(task, b->op.done);
		r = take_look(b);
	} while (r == 0 && is_stale(b));
	if (r < 0)
		return r;
	ckpt_store_rmdir(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "remove");
	for (b->looks = 0; r == 0 && must_look(b); b->looks++) {
		start_look(b);
		CKPT_AWAIT(task, b->op.done);
		r = take_look(b);
	}
	if (r < 0)
		return r;
	ckpt_store_sweep(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	return ckpt_task_continue(task, b->generation < b->newest ? catalogs_body : stone_body);
	CKPT_TASK_END(task);
}

/* Whether the generation is an older one without other steps, those under deletion included. */
static bool is_emptied(const struct ckpt_two_phase_delete *b)
{
	const struct ckpt_listing *names = &b->names;
	uint64_t step;

	for (size_t at = 0; at < names->bytes; at += strlen(names->names + at) + 1)
		if (ckpt_parse_step(names->names + at, &step) ||
			(ckpt_parse_tombstone(names->names + at, &step) && step != b->step))
			return false;
	return true;
}

static bool next_catalog(struct ckpt_two_phase_delete *b)
{
	const struct ckpt_listing *names = &b->names;
	char directory[CKPT_PATH_MAX];

	ckpt_name_generation(directory, b->generation);
	for (;;) {
		b->name = b->name ? b->name + strlen(b->name) + 1 : names->names;
		if (!names->names || b->name >= names->names + names->bytes)
			return false;
		if (!ckpt_gc_sweep_is_catalog(b->name))
			continue;
		int n = snprintf(b->path, sizeof(b->path), "%s/%s", directory, b->name);
		if (n > 0 && (size_t)n < sizeof(b->path))
			return true;
	}
}

/* A step that is uploaded meanwhile can be read without a catalog. */
static int catalogs_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_generation(b->path, b->generation);
	ckpt_store_list(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "list");
	if (r < 0)
		return r;
	take_names(b);
	if (!is_emptied(b))
		return ckpt_task_continue(task, stone_body);
	while (r == 0 && next_catalog(b)) {
		for (b->looks = 0; r == 0 && must_look(b); b->looks++) {
			start_look(b);
			CKPT_AWAIT(task, b->op.done);
			r = take_look(b);
		}
		if (r < 0)
			return r;
		ckpt_store_remove(b->store, &b->op, b->path);
		CKPT_AWAIT(task, b->op.done);
		r = trouble(b, "remove");
	}
	return r < 0 ? r : ckpt_task_continue(task, stone_body);
	CKPT_TASK_END(task);
}

static int stone_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_generation(b->path, b->generation);
	ckpt_store_sync(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "sync");
	if (r < 0)
		return r;
	do {
		start_look(b);
		CKPT_AWAIT(task, b->op.done);
		r = take_look(b);
	} while (r == 0 && is_stale(b));
	if (r == 0)
		r = check_doubt(b);
	if (r < 0)
		return r;
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_remove(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "remove");
	if (r == 0)
		ckpt_seen_tombstones_drop(b->seen_tombstones, b->generation, b->step);
	return r;
	CKPT_TASK_END(task);
}

static int take_claims(struct ckpt_two_phase_delete *b)
{
	b->claimed = ckpt_take_newest_claim(&b->op);
	return trouble(b, "list");
}

/* A job that resumes from the step claims a generation; then the decision must be made again. */
static int check_claims(struct ckpt_two_phase_delete *b)
{
	if (b->claimed <= b->newest)
		return 0;
	return ckpt_fail(b->err, CKPT_EFENCED,
		b->fence
			? "%s has the later generation %llu: that job decides which steps are kept"
			: "%s has the later generation %llu since its steps were listed: list them "
			  "again",
		b->store->label, (unsigned long long)b->claimed);
}

static ckpt_task_fn take_over_body;
static ckpt_task_fn reader_body;
static ckpt_task_fn last_look_body;

static int remove_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	start_look(b);
	CKPT_AWAIT(task, b->op.done);
	r = take_look(b);
	if (r < 0)
		return r;
	b->then = take_over_body;
	return ckpt_task_continue(task, seen_tombstone_of(b)->mine ? reader_body : last_look_body);
	CKPT_TASK_END(task);
}

/* Finds readers of a directory on this machine. Readers elsewhere choose another step when a file is missing. */
static int reader_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_manifest(b->path, b->generation, b->step);
	ckpt_store_lock(b->store, &b->op, b->path, false, &b->lock);
	CKPT_AWAIT(task, b->op.done);
	if (b->op.result == -EAGAIN)
		return ckpt_fail(b->err, -EBUSY, "step %llu of %s is open for reading",
			(unsigned long long)b->step, b->store->label);
	r = trouble(b, "lock");
	b->then = manifest_body;
	return r < 0 ? r : ckpt_task_continue(task, last_look_body);
	CKPT_TASK_END(task);
}

/* Checks that the tombstone is unchanged and there is no later claim, then continues with `b->then`. */
static int last_look_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	do {
		start_look(b);
		CKPT_AWAIT(task, b->op.done);
		r = take_look(b);
		if (r < 0)
			return r;
		ckpt_store_list(b->store, &b->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, b->op.done);
		r = take_claims(b);
		if (r == 0)
			r = check_claims(b);
	} while (r == 0 && is_stale(b));
	return r < 0 ? r : ckpt_task_continue(task, b->then);
	CKPT_TASK_END(task);
}

/* Marking. */

static int encode(struct ckpt_two_phase_delete *b)
{
	const struct ckpt_tombstone tombstone = {.generation = b->generation,
		.step = b->step,
		.by = ckpt_max_u64(b->newest, b->generation),
		.nonce = ckpt_env_random(b->core->parts.env),
		.wall_ms = ckpt_env_wall_ms(b->core->parts.env)};
	int r = ckpt_tombstone_encode(&tombstone, &b->buf);

	b->stone = ckpt_digest_of(b->buf.data, b->buf.len);
	return r < 0 ? ckpt_fail(b->err, r, "out of memory") : 0;
}

/* If it has been deleted meanwhile, the next look finds that. */
static int watch_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	start_look(b);
	CKPT_AWAIT(task, b->op.done);
	r = read_stone(b);
	if (r == -ENOENT)
		return 0;
	return r < 0 ? r : note_seen_tombstone(b, false, false);
	CKPT_TASK_END(task);
}

static int publish_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = check_outdated(b);
	if (r == 0)
		r = encode(b);
	if (r < 0)
		return r;
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_publish(b->store, &b->op, b->path, b->buf.data, b->buf.len, NULL);
	CKPT_AWAIT(task, b->op.done);
	if (b->op.result == -EEXIST)
		return ckpt_task_continue(task, watch_body);
	r = trouble(b, "write");
	return r < 0 ? r : note_seen_tombstone(b, true, false);
	CKPT_TASK_END(task);
}

/*
 * The other process has not continued for a grace period. If it continues now, between two of its looks, it deletes a
 * step that has expired anyway, and has ended when this one's grace period has. One request replaces the tombstone, so
 * there always is one. If two processes take it over, the last one has it, and the other finds out within its grace
 * period.
 */
static int take_over_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = check_outdated(b);
	if (r == 0)
		r = encode(b);
	if (r < 0)
		return r;
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_supersede(b->store, &b->op, b->path, b->buf.data, b->buf.len);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "write");
	if (r == 0)
		r = note_seen_tombstone(b, true, true);
	return r < 0 ? r
		     : ckpt_fail(b->err, -EAGAIN,
			       "another process had marked step %llu of %s: its tombstone was "
			       "taken over, and waits for a grace period",
			       (unsigned long long)b->step, b->store->label);
	CKPT_TASK_END(task);
}

static ckpt_task_fn *marks(const struct ckpt_two_phase_delete *b)
{
	return b->act == CKPT_TWO_PHASE_DELETE_WATCH ? watch_body : publish_body;
}

/*
 * A process that holds a directory deletes its steps itself, under locks. It may have opened the store later than this
 * one, even with the first claim, so the claims are listed afresh.
 */
static int mark_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(b->store, &b->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, b->op.done);
	r = take_claims(b);
	if (r < 0)
		return r;
	if (b->claimed == 0)
		return ckpt_task_continue(task, marks(b));
	ckpt_name_claim(b->path, b->claimed);
	/* Shared: other processes that delete here are not holders. */
	ckpt_store_lock(b->store, &b->op, b->path, true, &b->lock);
	CKPT_AWAIT(task, b->op.done);
	if (b->op.result == -EAGAIN)
		return ckpt_fail(b->err, CKPT_EINUSE,
			"a live process holds the store %s, and decides which steps are kept "
			"(keep_last, keep_every)",
			b->store->label);
	r = trouble(b, "lock");
	if (r == 0)
		r = check_claims(b);
	return r < 0 ? r : ckpt_task_continue(task, marks(b));
	CKPT_TASK_END(task);
}

static int unmark_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_delete *b = two_phase_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	do {
		start_look(b);
		CKPT_AWAIT(task, b->op.done);
		if (b->op.result == -ENOENT) {
			ckpt_seen_tombstones_drop(b->seen_tombstones, b->generation, b->step);
			return 0;
		}
		r = take_look(b);
	} while (r == 0 && is_stale(b));
	if (r < 0)
		return r;
	/* The other process may be deleting it: take the tombstone over, so that it stops first. */
	b->then = take_over_body;
	if (!seen_tombstone_of(b)->mine)
		return ckpt_task_continue(task, last_look_body);
	r = check_doubt(b);
	if (r < 0)
		return r;
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_remove(b->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "remove");
	if (r == 0)
		ckpt_seen_tombstones_drop(b->seen_tombstones, b->generation, b->step);
	return r;
	CKPT_TASK_END(task);
}

static void work_done(struct ckpt_task *task)
{
	ckpt_task_wake(&two_phase_of(task)->task);
}

static int two_phase_body(struct ckpt_task *task)
{
	static ckpt_task_fn *const acts[] = {[CKPT_TWO_PHASE_DELETE_MARK] = mark_body,
		[CKPT_TWO_PHASE_DELETE_WATCH] = mark_body,
		[CKPT_TWO_PHASE_DELETE_REMOVE] = remove_body,
		[CKPT_TWO_PHASE_DELETE_UNMARK] = unmark_body};
	struct ckpt_two_phase_delete *b = CKPT_CONTAINER(task, struct ckpt_two_phase_delete, task);

	CKPT_TASK_BEGIN(task);
	b->lock.fd = -1;
	ckpt_store_op_init(&b->op, &b->work, b->err);
	b->op.quiet = true;
	ckpt_task_start(&b->work, &b->core->sched, acts[b->act], work_done);
	CKPT_AWAIT(task, b->work.finished);
	if (b->lock.fd >= 0) {
		/* The act is done, whatever closing the lock returns. */
		b->op.waiter = task;
		b->op.err = NULL;
		ckpt_store_shut(b->store, &b->op, &b->lock);
		CKPT_AWAIT(task, b->op.done);
	}
	ckpt_free(b->op.listing.names);
	ckpt_free(b->names.names);
	ckpt_buf_free(&b->buf);
	return b->work.result;
	CKPT_TASK_END(task);
}

static void two_phase_done(struct ckpt_task *task)
{
	ckpt_task_wake(CKPT_CONTAINER(task, struct ckpt_two_phase_delete, task)->waiter);
}

void ckpt_two_phase_delete_start(struct ckpt_two_phase_delete *two_phase)
{
	ckpt_task_start(&two_phase->task, &two_phase->core->sched, two_phase_body, two_phase_done);
}

struct ckpt_command *ckpt_two_phase_command_new(struct ckpt_core *core)
{
	return ckpt_command_new(core, sizeof(struct ckpt_two_phase_command), NULL);
}

int ckpt_two_phase_command_body(struct ckpt_task *task)
{
	struct ckpt_two_phase_command *b =
		CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_two_phase_command, command);
	struct ckpt_core *core = b->command.core;

	CKPT_TASK_BEGIN(task);
	b->two_phase.core = core;
	b->two_phase.store = core->store;
	b->two_phase.seen_tombstones = core->seen_tombstones;
	b->two_phase.err = &b->command.error;
	b->two_phase.waiter = task;
	ckpt_two_phase_delete_start(&b->two_phase);
	CKPT_AWAIT(task, b->two_phase.task.finished);
	return b->two_phase.task.result;
	CKPT_TASK_END(task);
}
