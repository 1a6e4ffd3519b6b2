/* SPDX-License-Identifier: Apache-2.0 */
/* Marker and claims in the remote store. */
#include "engine/copy/upload_dest.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"
#include "format/sealed.h"

static struct ckpt_upload_dest *place_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_upload_dest, task);
}

static int trouble(struct ckpt_upload_dest *p, const char *doing)
{
	return p->op.result < 0 ? ckpt_store_fail(&p->op, doing, &p->said, p->err) : *p->stop;
}

static void drop_bytes(struct ckpt_upload_dest *p)
{
	ckpt_free(p->bytes);
	p->bytes = NULL;
}

/* The marker. */

static int check_marker(struct ckpt_upload_dest *p)
{
	const char *run = p->core->lineage->marker.run_id;
	struct ckpt_marker marker;

	int r = ckpt_marker_decode(p->op.data, p->op.length, CKPT_NAME_MARKER, p->err, &marker);
	ckpt_store_drop_data(&p->op);
	if (r < 0 || strcmp(marker.run_id, run) == 0)
		return r < 0 ? r : *p->stop;
	return ckpt_fail_at(p->err, CKPT_EMISMATCH,
		&(struct ckpt_where){.tier = "remote", .file = CKPT_NAME_MARKER},
		"%s is the remote store of another run (%s, and %s is of %s): give each run a "
		"prefix "
		"or directory of its own",
		p->dest->label, marker.run_id, p->core->parts.label, run);
}

/* In a prefix or directory of its own nothing else is. */
static int check_empty(struct ckpt_upload_dest *p)
{
	static const char leftover[] = CKPT_NAME_MARKER CKPT_STORE_TEMP;
	const struct ckpt_listing *names = &p->op.listing;
	bool other = false;
	bool marked = false;

	if (p->op.result == -ENOENT)
		return *p->stop;
	for (size_t at = 0; at < names->bytes; at += strlen(names->names + at) + 1) {
		other = other || strncmp(names->names + at, leftover, sizeof(leftover) - 1) != 0;
		marked = marked || strcmp(names->names + at, CKPT_NAME_MARKER) == 0;
	}
	ckpt_free(ckpt_store_take_listing(&p->op).names);
	/* It has come since it was read: of a process before this one, maybe. That is looked at again. */
	if (marked)
		return ckpt_fail(p->err, -EAGAIN, "%s is there", CKPT_NAME_MARKER);
	if (!other)
		return trouble(p, "list");
	return ckpt_fail_at(p->err, CKPT_EMISMATCH,
		&(struct ckpt_where){.tier = "remote", .file = "."},
		"%s is no store, and not empty: give the run a prefix or directory of its own",
		p->dest->label);
}

/* One for all nodes: what each of them has goes there. */
static int encode_marker(struct ckpt_upload_dest *p)
{
	struct ckpt_marker marker = p->core->lineage->marker;
	struct ckpt_buf words = {0};

	marker.shared = true;
	marker.partial = false;
	int r = ckpt_marker_encode(&marker, &words);
	if (r < 0) {
		ckpt_buf_free(&words);
		return ckpt_fail(p->err, r, "out of memory");
	}
	p->bytes = words.data;
	p->length = words.len;
	return 0;
}

static ckpt_task_fn make_body;
static ckpt_task_fn list_body;
static ckpt_task_fn claim_body;
static ckpt_task_fn send_body;

static int marker_body(struct ckpt_task *task)
{
	struct ckpt_upload_dest *p = place_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_get(p->dest, &p->op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, p->op.done);
	if (p->op.result == -ENOENT && p->core->config.rank > 0)
		return ckpt_fail(
			p->err, -EAGAIN, "rank 0 has not made %s a store yet", p->dest->label);
	if (p->op.result == -ENOENT)
		return ckpt_task_continue(task, make_body);
	r = p->op.result < 0 ? trouble(p, "read") : check_marker(p);
	if (r < 0 || p->core->config.rank > 0)
		return r;
	return ckpt_task_continue(task, list_body);
	CKPT_TASK_END(task);
}

static int make_body(struct ckpt_task *task)
{
	struct ckpt_upload_dest *p = place_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(p->dest, &p->op, ".");
	CKPT_AWAIT(task, p->op.done);
	r = check_empty(p);
	if (r == 0)
		r = encode_marker(p);
	if (r < 0)
		return r;
	ckpt_store_publish(p->dest, &p->op, CKPT_NAME_MARKER, p->bytes, p->length, NULL);
	CKPT_AWAIT(task, p->op.done);
	drop_bytes(p);
	/* Who was there first is looked at when this is tried again. */
	if (p->op.result == -EEXIST)
		return ckpt_fail(p->err, -EAGAIN, "%s is there", CKPT_NAME_MARKER);
	r = trouble(p, "write");
	return r < 0 ? r : ckpt_task_continue(task, list_body);
	CKPT_TASK_END(task);
}

/* The claims. */

static bool is_claimed_there(const struct ckpt_upload_dest *p, uint64_t generation)
{
	for (size_t at = 0; at < p->there.bytes; at += strlen(p->there.names + at) + 1) {
		uint64_t number;
		if (ckpt_parse_claim(p->there.names + at, &number) && number == generation)
			return true;
	}
	return false;
}

static int fail_fenced(struct ckpt_upload_dest *p, uint64_t generation, const char *what)
{
	return ckpt_fail_at(p->err, CKPT_EFENCED,
		&(struct ckpt_where){.tier = "remote", .file = p->path},
		"%s has %s generation %llu: another job goes on from this run's checkpoints there, "
		"and nothing of this one is uploaded any more; stop one of them",
		p->dest->label, what, (unsigned long long)generation);
}

static int take_list(struct ckpt_upload_dest *p)
{
	uint64_t here = ckpt_scan_newest_claim(&p->core->lineage->scan);

	p->there = ckpt_store_take_listing(&p->op);
	p->newest = ckpt_newest_claim(&p->there);
	int r = p->op.result == -ENOENT ? *p->stop : trouble(p, "list");
	if (r < 0 || p->newest <= here)
		return r;
	ckpt_name_claim(p->path, p->newest);
	return fail_fenced(p, p->newest, "the later");
}

static int list_body(struct ckpt_task *task)
{
	struct ckpt_upload_dest *p = place_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_mkdir(p->dest, &p->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, p->op.done);
	r = trouble(p, "make");
	if (r < 0)
		return r;
	ckpt_store_list(p->dest, &p->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, p->op.done);
	r = take_list(p);
	return r < 0 ? r : ckpt_task_continue(task, claim_body);
	CKPT_TASK_END(task);
}

/*
 * Whether the next claim is to be sent, or compared because it is the newest of both. What is older was compared
 * when it was the newest.
 */
static bool next_claim(struct ckpt_upload_dest *p)
{
	const struct ckpt_scan *scan = &p->core->lineage->scan;

	for (; p->at < scan->gen_count; p->at++) {
		const struct ckpt_scan_gen *gen = &scan->gens[p->at];
		if (!gen->claimed || gen->broken)
			continue;
		if (gen->generation == p->newest || !is_claimed_there(p, gen->generation)) {
			ckpt_name_claim(p->path, gen->generation);
			return true;
		}
	}
	return false;
}

static int take_claim(struct ckpt_upload_dest *p)
{
	if (p->op.result < 0)
		return ckpt_fail_at(p->err, p->op.result,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(p->core->store), .file = p->path},
			"cannot read %s of %s: %s", p->path, p->core->parts.label,
			ckpt_code_text(p->op.result));
	p->bytes = p->op.data;
	p->length = p->op.length;
	p->op.data = NULL;
	return *p->stop;
}

static int check_claim(struct ckpt_upload_dest *p)
{
	bool same = p->op.length == p->length && memcmp(p->op.data, p->bytes, p->length) == 0;
	uint64_t generation = p->core->lineage->scan.gens[p->at].generation;

	ckpt_store_drop_data(&p->op);
	return same ? *p->stop : fail_fenced(p, generation, "another");
}

static int claim_body(struct ckpt_task *task)
{
	struct ckpt_upload_dest *p = place_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (!next_claim(p))
		return *p->stop;
	ckpt_store_get(p->core->store, &p->op, p->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, p->op.done);
	r = take_claim(p);
	return r < 0 ? r : ckpt_task_continue(task, send_body);
	CKPT_TASK_END(task);
}

/* Whoever publishes a claim of that number first has it. */
static int send_body(struct ckpt_task *task)
{
	struct ckpt_upload_dest *p = place_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_publish(p->dest, &p->op, p->path, p->bytes, p->length, NULL);
	CKPT_AWAIT(task, p->op.done);
	if (p->op.result == -EEXIST) {
		ckpt_store_get(p->dest, &p->op, p->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, p->op.done);
		r = p->op.result < 0 ? trouble(p, "read") : check_claim(p);
	} else {
		r = trouble(p, "publish");
	}
	drop_bytes(p);
	p->at++;
	return r < 0 ? r : ckpt_task_continue(task, claim_body);
	CKPT_TASK_END(task);
}

static void place_done(struct ckpt_task *task)
{
	struct ckpt_upload_dest *p = place_of(task);

	drop_bytes(p);
	ckpt_free(p->op.listing.names);
	ckpt_free(p->there.names);
	p->there = (struct ckpt_listing){0};
	ckpt_task_wake(p->waiter);
}

void ckpt_upload_dest_start(struct ckpt_upload_dest *place)
{
	ckpt_error_clear(&place->said);
	ckpt_store_op_init(&place->op, &place->task, &place->said);
	place->op.quiet = true;
	ckpt_task_start(&place->task, &place->core->sched, marker_body, place_done);
}
