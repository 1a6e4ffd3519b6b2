/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/search.h"

#include <errno.h>
#include <string.h>

static bool was_tried(const struct ckpt_shard_search *s, const struct ckpt_rank_file_name *name)
{
	for (unsigned i = 0; i < s->tried_count; i++)
		if (ckpt_rank_file_name_equal(&s->tried[i], name))
			return true;
	return false;
}

/* False: it was tried, or no more are remembered. */
static bool note_tried(struct ckpt_shard_search *s, const struct ckpt_rank_file_name *name)
{
	if (s->tried_count == CKPT_SHARD_TRIED || was_tried(s, name))
		return false;
	s->tried[s->tried_count++] = *name;
	return true;
}

/* The own name that is next. */
static void take_own(struct ckpt_shard_search *s, struct ckpt_rank_file_name *name)
{
	*name = s->own[s->own_at];
	(void)note_tried(s, name);
}

void ckpt_shard_search_begin(struct ckpt_shard_search *search,
	const struct ckpt_manifest_rank *rank, enum ckpt_rank_file form,
	struct ckpt_rank_lister *lister, struct ckpt_rank_file_name *ret_name)
{
	bool shard = ckpt_rank_file_is(form, CKPT_RANK_SHARD);

	*search = (struct ckpt_shard_search){.rank = rank->rank,
		.kind = shard ? CKPT_RANK_SHARD : form,
		.lister = lister,
		.own_count = shard ? 2 : 1};
	search->own[0].form = form;
	search->own[1].form = form == CKPT_RANK_SHARD ? CKPT_RANK_ENCODED : CKPT_RANK_SHARD;
	for (unsigned i = 0; i < search->own_count; i++)
		memcpy(search->own[i].attempt, rank->attempt, sizeof(search->own[i].attempt));
	ckpt_error_clear(&search->first);
	take_own(search, ret_name);
}

bool ckpt_shard_search_turn(struct ckpt_shard_search *search, struct ckpt_rank_file_name *name)
{
	if (search->own_at + 1 >= search->own_count)
		return false;
	search->own_at++;
	take_own(search, name);
	return true;
}

void ckpt_shard_search_restart(struct ckpt_shard_search *search, struct ckpt_rank_file_name *name)
{
	CKPT_ASSERT(search->own_count > 0);
	search->own_at = 0;
	take_own(search, name);
}

void ckpt_shard_search_fix(struct ckpt_shard_search *search)
{
	search->own_count = 0;
}

void ckpt_shard_search_miss(struct ckpt_shard_search *search)
{
	search->missing = true;
	search->missing_after = search->lister->begun;
}

/* One that cannot be read may be good, and says that the step may be. */
static bool is_better(const struct ckpt_shard_search *s, int code, bool open)
{
	int first = s->first.code;

	if (ckpt_store_is_unreadable(code) && !ckpt_store_is_unreadable(first))
		return true;
	/* One that is there and bad says more than that another one is missing. */
	return first == CKPT_EINCOMPLETE && (code != CKPT_EINCOMPLETE || (!s->first_open && open));
}

void ckpt_shard_search_keep(struct ckpt_shard_search *search,
	const struct ckpt_rank_file_name *name, const struct ckpt_error *why, bool open)
{
	if (search->first.code && !is_better(search, why->code, open))
		return;
	search->first = *why;
	search->first_name = *name;
	search->first_open = open;
}

void ckpt_shard_search_list(struct ckpt_shard_search *search, struct ckpt_task *task)
{
	ckpt_rank_lister_want(search->lister, &search->wait, task);
}

/* What is missing may have been repaired since the list was begun. */
static bool want_newer_list(struct ckpt_shard_search *s, struct ckpt_task *task)
{
	return s->missing && s->lister->lists <= s->missing_after &&
	       ckpt_rank_lister_want_again(s->lister, &s->wait, task);
}

int ckpt_shard_search_next(struct ckpt_shard_search *search, struct ckpt_task *task,
	struct ckpt_rank_file_name *name, struct ckpt_error *err)
{
	struct ckpt_shard_search *s = search;
	struct ckpt_rank_lister *l = s->lister;

	if (l->result < 0) {
		*err = l->err;
		return l->result;
	}
	/* Another rank may have had the step listed anew: a new file may come before the last one. */
	if (s->listed_in != l->lists)
		s->listed.attempt[0] = 0;
	s->listed_in = l->lists;
	do {
		if (!ckpt_rank_files_next_file(&l->files, s->rank, s->kind, &s->listed)) {
			if (want_newer_list(s, task))
				return 1;
			*err = s->first;
			return -ENOENT;
		}
	} while (was_tried(s, &s->listed));
	*name = s->listed;
	/* One that is not remembered may come again with every list. */
	if (note_tried(s, name) && s->missing && l->lists > s->missing_after)
		ckpt_rank_lister_found(l);
	ckpt_shard_search_fix(s);
	return 0;
}
