/* SPDX-License-Identifier: Apache-2.0 */
/* Making another directory a store that holds a step. */
#include "engine/copy/step_copy_state.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"
#include "format/sealed.h"
#include "io/io_direct.h"

int ckpt_step_copy_trouble(struct ckpt_step_copy *e, const char *doing)
{
	return e->op.result < 0 ? ckpt_store_fail(&e->op, doing, NULL, e->err) : *e->stop;
}

/* Takes a small file of the source as it is. */
static int take_bytes(struct ckpt_step_copy *e, char **ret_bytes, uint64_t *ret_length)
{
	if (e->op.result < 0)
		return ckpt_step_copy_trouble(e, "read");
	*ret_bytes = e->op.data;
	*ret_length = e->op.length;
	e->op.data = NULL;
	return *e->stop;
}

static int marker_body(struct ckpt_task *task);
static int claim_body(struct ckpt_task *task);
static int own_claim_body(struct ckpt_task *task);
static int lock_body(struct ckpt_task *task);
static int directories_body(struct ckpt_task *task);
static int claims_body(struct ckpt_task *task);

/* What came from the store of a node has all ranks' files where it goes, or some: it is one for all nodes there, or not. */
static int share_marker(struct ckpt_step_copy *e)
{
	struct ckpt_marker marker = e->pick->marker;
	struct ckpt_buf words = {0};
	bool all = ckpt_rankset_is_all(&e->ranks);
	bool some = !all && !e->place.node;

	/* A node has all ranks of some nodes, or none of them: which is told by the files. */
	if (marker.shared == (all && !e->place.node) && marker.partial == some)
		return 0;
	marker.shared = all && !e->place.node;
	marker.partial = some;
	int r = ckpt_marker_encode(&marker, &words);
	if (r < 0) {
		ckpt_buf_free(&words);
		return ckpt_fail(e->err, r, "out of memory");
	}
	ckpt_free(e->marker);
	e->marker = words.data;
	e->marker_length = words.len;
	return 0;
}

/* What goes over, besides the manifest: the marker, and as it is the claim of the generation. */
int ckpt_step_copy_place_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = ckpt_core_open_store(e->core, &e->place, &e->store);
	if (r < 0)
		return ckpt_fail(e->err, r, "cannot open %s to export to: %s", e->place.label,
			ckpt_code_text(r));
	e->op.quiet = true;
	ckpt_store_get(e->core->store, &e->op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	r = take_bytes(e, &e->marker, &e->marker_length);
	if (r == 0)
		r = share_marker(e);
	if (r < 0)
		return r;
	if (e->place.claims)
		return ckpt_task_continue(task, marker_body);
	ckpt_name_claim(e->path, ckpt_step_copy_generation(e));
	ckpt_store_get(e->core->store, &e->op, e->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	r = take_bytes(e, &e->claim, &e->claim_length);
	if (r < 0)
		return r;
	return ckpt_task_continue(task, marker_body);
	CKPT_TASK_END(task);
}

/* The destination has a marker: of the same run? */
static int check_marker(struct ckpt_step_copy *e)
{
	struct ckpt_marker marker;

	int r = ckpt_marker_decode(e->op.data, e->op.length, CKPT_NAME_MARKER, e->err, &marker);
	ckpt_store_drop_data(&e->op);
	if (r < 0)
		return r;
	/* The store of a node may have been told of the step by others, without the files. */
	e->partial = marker.partial || (e->place.claims && e->place.node);
	if (strcmp(marker.run_id, e->pick->marker.run_id) != 0)
		return ckpt_fail_at(e->err, e->place.claims ? CKPT_EMISMATCH : -EEXIST,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(e->store), .file = CKPT_NAME_MARKER},
			"%s is the store of another run (%s, and this is %s): export to an empty "
			"directory, or a prefix of its own in a bucket",
			e->place.label, marker.run_id, e->pick->marker.run_id);
	/* There the ranks that are not brought would be damage. */
	if (marker.shared && e->place.node && !ckpt_rankset_is_all(&e->ranks))
		return ckpt_fail_at(e->err, -EINVAL,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(e->store), .file = CKPT_NAME_MARKER},
			"the store %s is one for all nodes, and the files of some ranks were to be "
			"brought into it as into that of one node: give each node a new directory",
			e->place.label);
	return *e->stop;
}

static bool holds_marker(const struct ckpt_listing *names)
{
	size_t at = 0;

	return ckpt_listing_has(names, CKPT_NAME_MARKER, &at);
}

/* What another export makes for a moment, or leaves when it is killed while it publishes the marker, does not count. */
static bool holds_other_things(const struct ckpt_listing *names)
{
	static const char leftover[] = CKPT_NAME_MARKER CKPT_STORE_TEMP;
	const char *end = names->names + names->bytes;

	for (const char *name = names->names; name && name < end; name += strlen(name) + 1)
		if (strncmp(name, leftover, sizeof(leftover) - 1) != 0 &&
			strncmp(name, CKPT_IO_PROBE, sizeof(CKPT_IO_PROBE) - 1) != 0)
			return true;
	return false;
}

/* 1: it is a store by now. */
static int check_empty(struct ckpt_step_copy *e)
{
	if (e->op.result < 0)
		return ckpt_step_copy_trouble(e, "list");
	/* Another export has begun meanwhile. */
	bool again = !e->came && holds_marker(&e->op.listing);
	e->came = e->came || again;
	/* What is brought goes where a new store would be made, too. */
	bool other = !e->place.claims && holds_other_things(&e->op.listing);
	ckpt_free(ckpt_store_take_listing(&e->op).names);
	if (again)
		return *e->stop ? *e->stop : 1;
	if (other)
		return ckpt_fail(e->err, -ENOTEMPTY,
			"%s is no store, and not empty: export to a directory or prefix that is "
			"new or empty, or to a store of the same run",
			e->place.label);
	return *e->stop;
}

static int marker_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_get(e->store, &e->op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result == -ENOENT) {
		ckpt_store_list(e->store, &e->op, ".");
		CKPT_AWAIT(task, e->op.done);
		r = check_empty(e);
		if (r > 0)
			return ckpt_task_continue(task, marker_body);
		if (r < 0)
			return r;
		ckpt_store_publish(
			e->store, &e->op, CKPT_NAME_MARKER, e->marker, e->marker_length, NULL);
		CKPT_AWAIT(task, e->op.done);
		/* Another one was quicker: which of another rank, perhaps. */
		if (e->op.result == -EEXIST && *e->stop == 0)
			return ckpt_task_continue(task, marker_body);
		r = ckpt_step_copy_trouble(e, "write");
		e->partial = !ckpt_rankset_is_all(&e->ranks);
	} else {
		r = e->op.result < 0 ? ckpt_step_copy_trouble(e, "read") : check_marker(e);
	}
	if (r < 0)
		return r;
	return ckpt_task_continue(task, claim_body);
	CKPT_TASK_END(task);
}

int ckpt_step_copy_fail_there(struct ckpt_step_copy *e)
{
	return ckpt_fail_at(e->err, -EEXIST,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = e->path},
		"%s has another step %llu of generation %llu already (%s): nothing was written",
		e->place.label, (unsigned long long)ckpt_step_copy_step(e),
		(unsigned long long)ckpt_step_copy_generation(e), e->path);
}

int ckpt_step_copy_fail_form(struct ckpt_step_copy *e, const char *path, bool encoded)
{
	return ckpt_fail_at(e->err, -EEXIST,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = path},
		"%s is in %s already, %s, and was to be copied %s: copy the step into another "
		"directory or prefix",
		path, e->place.label, encoded ? "encoded" : "plain", encoded ? "plain" : "encoded");
}

/* The manifest that is there. The same: there is nothing to copy. */
int ckpt_step_copy_take_there(struct ckpt_step_copy *e)
{
	e->there = e->op.length == e->pick->manifest_length &&
		   memcmp(e->op.data, e->pick->manifest_bytes, e->op.length) == 0;
	ckpt_store_drop_data(&e->op);
	return e->there ? *e->stop : ckpt_step_copy_fail_there(e);
}

static int check_claim(struct ckpt_step_copy *e)
{
	bool same = e->op.data && e->op.length == e->claim_length &&
		    memcmp(e->op.data, e->claim, e->claim_length) == 0;

	ckpt_store_drop_data(&e->op);
	if (!same && e->place.claims)
		return ckpt_fail_at(e->err, CKPT_EMISMATCH,
			&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = e->path},
			"%s and %s have gone apart: %s differs, two jobs went on from one "
			"checkpoint; "
			"choose one of the two, and give the other job a place of its own",
			e->place.label, e->core->parts.label, e->path);
	if (!same)
		return ckpt_fail_at(e->err, -EEXIST,
			&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = e->path},
			"%s has a generation %llu of its own (%s differs): export to an empty "
			"directory or prefix",
			e->place.label, (unsigned long long)ckpt_step_copy_generation(e), e->path);
	return *e->stop;
}

static int fail_going(struct ckpt_step_copy *e)
{
	return ckpt_fail_at(e->err, -EBUSY,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = e->path},
		"step %llu is being removed from %s, or its removal was cut short: let `ckpt "
		"prune` end "
		"that "
		"first",
		(unsigned long long)ckpt_step_copy_step(e), e->place.label);
}

/* A manifest without the files of all ranks would be damage there. */
static int fail_whole(struct ckpt_step_copy *e)
{
	return ckpt_fail_at(e->err, -EEXIST,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = CKPT_NAME_MARKER},
		"%s is a store of whole steps, and has no step %llu: copy the files of some ranks "
		"into "
		"a directory that is new or empty, or copy all of the step",
		e->place.label, (unsigned long long)ckpt_step_copy_step(e));
}

static int claim_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_mkdir(e->store, &e->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "make");
	if (r < 0)
		return r;
	if (e->place.claims)
		return ckpt_task_continue(task, claims_body);
	/* What is there and going is not there. */
	ckpt_step_copy_look_for_stone(e);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_take_stone(e);
	if (r < 0)
		return r;
	/* Before the lock, too: a step that is there is a better answer than a store that is held. */
	ckpt_name_manifest(e->path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_get(e->store, &e->op, e->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result >= 0)
		return ckpt_step_copy_take_there(e);
	if (e->op.result != -ENOENT)
		return ckpt_step_copy_trouble(e, "read");
	if (!ckpt_rankset_is_all(&e->ranks) && !e->partial)
		return fail_whole(e);
	return ckpt_task_continue(task, own_claim_body);
	CKPT_TASK_END(task);
}

void ckpt_step_copy_look_for_stone(struct ckpt_step_copy *e)
{
	ckpt_name_tombstone(e->path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_get(e->store, &e->op, e->path, CKPT_SEALED_MAX);
}

/* What is written now would be removed with the rest. */
int ckpt_step_copy_take_stone(struct ckpt_step_copy *e)
{
	ckpt_store_drop_data(&e->op);
	if (e->op.result >= 0)
		return fail_going(e);
	return e->op.result == -ENOENT ? *e->stop : ckpt_step_copy_trouble(e, "read");
}

static int own_claim_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_claim(e->path, ckpt_step_copy_generation(e));
	ckpt_store_get(e->store, &e->op, e->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result == -ENOENT) {
		ckpt_store_publish(e->store, &e->op, e->path, e->claim, e->claim_length, NULL);
		CKPT_AWAIT(task, e->op.done);
		r = ckpt_step_copy_trouble(e, "write");
	} else {
		r = e->op.result < 0 ? ckpt_step_copy_trouble(e, "read") : check_claim(e);
		if (r < 0)
			return r;
		/* Whoever wrote it may have died before its name was durable. */
		ckpt_store_sync(e->store, &e->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, e->op.done);
		r = ckpt_step_copy_trouble(e, "sync");
	}
	if (r < 0)
		return r;
	return ckpt_task_continue(task, lock_body);
	CKPT_TASK_END(task);
}

static bool next_claim(struct ckpt_step_copy *e)
{
	const struct ckpt_scan *scan = &e->core->lineage->scan;

	while (e->at < scan->gen_count && (!scan->gens[e->at].claimed || scan->gens[e->at].broken))
		e->at++;
	if (e->at == scan->gen_count)
		return false;
	ckpt_name_claim(e->path, scan->gens[e->at].generation);
	return true;
}

/* It was good when the store was read, and is what is read now. */
static int verify_claim(struct ckpt_step_copy *e)
{
	struct ckpt_claim claim;
	int r = ckpt_claim_decode(e->claim, e->claim_length, e->path, e->err, &claim);

	if (r < 0 || claim.generation == e->core->lineage->scan.gens[e->at].generation)
		return r;
	return ckpt_fail_at(e->err, CKPT_EINTEGRITY,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->core->store), .file = e->path},
		"%s of %s is the claim of another generation", e->path, e->core->parts.label);
}

/* Every claim of the run, the oldest first: what is there has the same bytes. */
static int claims_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (; next_claim(e); e->at++) {
		ckpt_free(e->claim);
		e->claim = NULL;
		ckpt_store_get(e->core->store, &e->op, e->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, e->op.done);
		r = take_bytes(e, &e->claim, &e->claim_length);
		if (r == 0)
			r = verify_claim(e);
		if (r < 0)
			return r;
		ckpt_store_publish(e->store, &e->op, e->path, e->claim, e->claim_length, NULL);
		CKPT_AWAIT(task, e->op.done);
		r = e->op.result == -EEXIST ? *e->stop : ckpt_step_copy_trouble(e, "write");
		if (r < 0)
			return r;
		if (e->op.result == 0)
			continue;
		ckpt_store_get(e->store, &e->op, e->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, e->op.done);
		r = e->op.result < 0 ? ckpt_step_copy_trouble(e, "read") : check_claim(e);
		if (r < 0)
			return r;
	}
	return e->pick->chosen.generation ? ckpt_task_continue(task, lock_body) : 0;
	CKPT_TASK_END(task);
}

static int fail_held(struct ckpt_step_copy *e)
{
	return ckpt_fail_at(e->err, CKPT_EINUSE,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = e->path},
		"the store %s is held by a live process, which runs there or uploads a step into "
		"it: export to a directory of its own, or later",
		e->place.label);
}

static int take_lock(struct ckpt_step_copy *e)
{
	switch (e->op.result) {
	case -EAGAIN:
		return fail_held(e);
	case -ENOLCK:
		ckpt_log(e->core->parts.log, CKPT_LOG_WARN,
			"%s of %s cannot be locked (%s): see to it that nothing else writes there",
			e->path, e->place.label, ckpt_code_text(e->op.result));
		/* The store's words are no failure's: what fails later has its own. */
		ckpt_error_clear(e->err);
		return *e->stop;
	default:
		return ckpt_step_copy_trouble(e, "lock");
	}
}

static int lock_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	bool changed;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(e->store, &e->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, e->op.done);
	e->newest = ckpt_take_newest_claim(&e->op);
	r = ckpt_step_copy_trouble(e, "list");
	if (r < 0)
		return r;
	ckpt_name_claim(e->path, e->newest);
	ckpt_store_lock(e->store, &e->op, e->path, false, &e->lock);
	CKPT_AWAIT(task, e->op.done);
	r = take_lock(e);
	if (r < 0)
		return r;
	e->locked = true;
	/* Whoever claimed between the listing and the lock lives. */
	ckpt_store_list(e->store, &e->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, e->op.done);
	changed = ckpt_take_newest_claim(&e->op) != e->newest;
	r = ckpt_step_copy_trouble(e, "list");
	if (r == 0 && changed)
		r = fail_held(e);
	if (r < 0)
		return r;
	return ckpt_task_continue(task, directories_body);
	CKPT_TASK_END(task);
}

/* The manifest that ranks are added to. */
static int take_same(struct ckpt_step_copy *e)
{
	int r = ckpt_step_copy_take_there(e);

	e->there = false;
	return r;
}

int ckpt_step_copy_add_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_ASSERT(e->adds);
	return ckpt_task_continue(task, e->locked ? directories_body : own_claim_body);
}

/* Directories for the step, unless it is there. */
static int directories_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	/* Whoever removes it holds the lock only now and then: it may have been marked since. */
	if (!e->place.claims) {
		ckpt_step_copy_look_for_stone(e);
		CKPT_AWAIT(task, e->op.done);
		r = ckpt_step_copy_take_stone(e);
		if (r < 0)
			return r;
	}
	ckpt_name_manifest(e->path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_get(e->store, &e->op, e->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result >= 0)
		return e->adds ? take_same(e) : ckpt_step_copy_take_there(e);
	if (e->op.result != -ENOENT)
		return ckpt_step_copy_trouble(e, "read");
	/* It was removed meanwhile, and comes back whole. */
	e->adds = false;
	e->dirs_made = true;
	ckpt_name_generation(path, ckpt_step_copy_generation(e));
	ckpt_store_mkdir(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "make");
	if (r < 0)
		return r;
	ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_mkdir(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	return ckpt_step_copy_trouble(e, "make");
	CKPT_TASK_END(task);
}
