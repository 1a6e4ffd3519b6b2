/* SPDX-License-Identifier: Apache-2.0 */
/* From the names in a step's directory to the files of its ranks. */
#include "engine/lineage/rank_files.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

struct file {
	uint32_t rank;
	enum ckpt_rank_file kind;
	char attempt[CKPT_ATTEMPT_CHARS];
};

static bool parse(const char *name, struct file *ret_file)
{
	return ckpt_parse_rank_file(name, &ret_file->rank, &ret_file->kind, ret_file->attempt);
}

int ckpt_rank_files_take(struct ckpt_rank_files *files, struct ckpt_listing *listing)
{
	const char **names = ckpt_alloc_array(listing->count, sizeof(*names));
	struct file file;
	size_t count = 0;

	if (!names)
		return -ENOMEM;
	for (size_t at = 0; at < listing->bytes; at += strlen(listing->names + at) + 1) {
		CKPT_ASSERT(count < listing->count);
		if (parse(listing->names + at, &file))
			names[count++] = listing->names + at;
	}
	ckpt_rank_files_clear(files);
	*files = (struct ckpt_rank_files){.listing = *listing, .names = names, .count = count};
	*listing = (struct ckpt_listing){0};
	return 0;
}

void ckpt_rank_files_clear(struct ckpt_rank_files *files)
{
	ckpt_free(files->names);
	ckpt_free(files->listing.names);
	*files = (struct ckpt_rank_files){0};
}

/* The names are sorted as texts, and so are numbers of as many digits: those of six begin with another digit than 0. */
static int compare(const struct ckpt_rank_files *files, size_t at, uint32_t rank)
{
	char path[CKPT_PATH_MAX];
	struct file file;
	bool good = parse(files->names[at], &file);

	CKPT_ASSERT(good);
	if (file.rank == rank)
		return 0;
	/* Any attempt will do: the numbers differ. */
	ckpt_name_index(path, 1, 0, rank, file.attempt);
	return strcmp(files->names[at], strrchr(path, '/') + 1);
}

/* The first name of the rank; files->count: it has none. */
static size_t find(const struct ckpt_rank_files *files, uint32_t rank)
{
	size_t lo = 0;
	size_t hi = files->count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (compare(files, mid, rank) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < files->count && compare(files, lo, rank) == 0 ? lo : files->count;
}

bool ckpt_rank_files_next(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, char attempt[CKPT_ATTEMPT_CHARS])
{
	struct file file;

	for (size_t at = find(files, rank); at < files->count; at++) {
		if (!parse(files->names[at], &file) || file.rank != rank)
			return false;
		if (!ckpt_rank_file_is(file.kind, kind) || strcmp(file.attempt, attempt) <= 0)
			continue;
		memcpy(attempt, file.attempt, sizeof(file.attempt));
		return true;
	}
	return false;
}

bool ckpt_rank_files_has(
	const struct ckpt_rank_files *files, uint32_t rank, enum ckpt_rank_file kind)
{
	char attempt[CKPT_ATTEMPT_CHARS] = "";

	return ckpt_rank_files_next(files, rank, kind, attempt);
}

bool ckpt_rank_files_has_attempt(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, const char *attempt)
{
	char found[CKPT_ATTEMPT_CHARS] = "";

	while (ckpt_rank_files_next(files, rank, kind, found))
		if (strcmp(found, attempt) == 0)
			return true;
	return false;
}

enum ckpt_rank_file ckpt_rank_files_form(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, const char *attempt)
{
	struct file file;
	enum ckpt_rank_file form = kind;

	for (size_t at = find(files, rank); at < files->count; at++) {
		if (!parse(files->names[at], &file) || file.rank != rank)
			break;
		if (!ckpt_rank_file_is(file.kind, kind) || strcmp(file.attempt, attempt) != 0)
			continue;
		form = file.kind;
		if (form == kind)
			break;
	}
	return form;
}

static bool has_form(const struct ckpt_rank_files *files, uint32_t rank, enum ckpt_rank_file form,
	const char *attempt)
{
	struct file file;

	for (size_t at = find(files, rank); at < files->count; at++) {
		if (!parse(files->names[at], &file) || file.rank != rank)
			break;
		if (file.kind == form && strcmp(file.attempt, attempt) == 0)
			return true;
	}
	return false;
}

bool ckpt_rank_files_next_file(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, struct ckpt_rank_file_name *name)
{
	if (name->attempt[0] && name->form == CKPT_RANK_SHARD &&
		has_form(files, rank, CKPT_RANK_ENCODED, name->attempt)) {
		name->form = CKPT_RANK_ENCODED;
		return true;
	}
	if (!ckpt_rank_files_next(files, rank, kind, name->attempt))
		return false;
	name->form = ckpt_rank_files_form(files, rank, kind, name->attempt);
	return true;
}

bool ckpt_rank_files_has_both(const struct ckpt_rank_files *files, uint32_t rank)
{
	char index[CKPT_ATTEMPT_CHARS] = "";

	while (ckpt_rank_files_next(files, rank, CKPT_RANK_INDEX, index))
		if (ckpt_rank_files_has_attempt(files, rank, CKPT_RANK_SHARD, index))
			return true;
	return false;
}

bool ckpt_rank_files_next_unfinished(
	const struct ckpt_rank_files *files, uint32_t rank, struct ckpt_rank_file_name *name)
{
	while (ckpt_rank_files_next_file(files, rank, CKPT_RANK_SHARD, name))
		if (!ckpt_rank_files_has_attempt(files, rank, CKPT_RANK_INDEX, name->attempt))
			return true;
	return false;
}

/* Listing. */

static struct ckpt_rank_lister *lister_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_rank_lister, task);
}

static int take_listing(struct ckpt_rank_lister *l)
{
	struct ckpt_listing listing = ckpt_store_take_listing(&l->op);
	int r = l->op.result;

	/* The step is gone, or nothing of it is in this store. */
	if (r == -ENOENT) {
		ckpt_rank_files_clear(&l->files);
		return 0;
	}
	if (r < 0)
		return ckpt_store_fail(&l->op, "list", &l->said, &l->err);
	r = ckpt_rank_files_take(&l->files, &listing);
	ckpt_free(listing.names);
	return r < 0 ? ckpt_fail(&l->err, r, "out of memory for the names in %s", l->op.path) : 0;
}

static int lister_body(struct ckpt_task *task)
{
	struct ckpt_rank_lister *l = lister_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, l->generation, l->step);
	ckpt_store_list(l->store, &l->op, path);
	CKPT_AWAIT(task, l->op.done);
	return take_listing(l);
	CKPT_TASK_END(task);
}

static void lister_done(struct ckpt_task *task)
{
	struct ckpt_rank_lister *l = lister_of(task);
	struct ckpt_rank_lister_wait *wait = l->waits;

	l->vain += l->lists++ > 0;
	l->result = task->result;
	l->waits = NULL;
	for (; wait; wait = wait->next) {
		wait->done = true;
		ckpt_task_wake(wait->task);
	}
}

static void start(struct ckpt_rank_lister *l)
{
	CKPT_ASSERT(l->result == 0);
	l->begun++;
	ckpt_error_clear(&l->err);
	ckpt_error_clear(&l->said);
	ckpt_store_op_init(&l->op, &l->task, &l->said);
	l->op.quiet = true;
	l->op.stop = l->stop;
	ckpt_task_start(&l->task, l->sched, lister_body, lister_done);
}

static void await_list(
	struct ckpt_rank_lister *l, struct ckpt_rank_lister_wait *wait, struct ckpt_task *task)
{
	*wait = (struct ckpt_rank_lister_wait){.task = task, .next = l->waits};
	l->waits = wait;
	if (!ckpt_task_active(&l->task))
		start(l);
}

void ckpt_rank_lister_want(
	struct ckpt_rank_lister *lister, struct ckpt_rank_lister_wait *wait, struct ckpt_task *task)
{
	if (lister->lists == 0)
		await_list(lister, wait, task);
	else
		*wait = (struct ckpt_rank_lister_wait){.done = true};
}

bool ckpt_rank_lister_want_again(
	struct ckpt_rank_lister *lister, struct ckpt_rank_lister_wait *wait, struct ckpt_task *task)
{
	if (lister->vain >= CKPT_RANK_LISTER_AGAIN || lister->result < 0)
		return false;
	await_list(lister, wait, task);
	return true;
}

void ckpt_rank_lister_found(struct ckpt_rank_lister *lister)
{
	if (lister->vain > 0)
		lister->vain--;
}

void ckpt_rank_lister_clear(struct ckpt_rank_lister *lister)
{
	CKPT_ASSERT(!ckpt_task_active(&lister->task) && !lister->waits);
	ckpt_rank_files_clear(&lister->files);
	*lister = (struct ckpt_rank_lister){0};
}
