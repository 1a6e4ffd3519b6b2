/* SPDX-License-Identifier: Apache-2.0 */
/* The lock on a shard that is sent into a bucket: nobody else sends it there. */
#include "engine/shard/shard_state.h"

#include <errno.h>

#include "base/error.h"

static int take_claim(struct ckpt_shard *s)
{
	int r = s->op.result;

	/* That it cannot be locked says nothing about what is in it. */
	ckpt_error_clear(&s->said);
	if (r == -EAGAIN)
		return ckpt_fail_at(s->err, CKPT_EINUSE,
			&(struct ckpt_where){.tier = ckpt_store_tier(s->store), .file = s->op.path},
			"%s of %s is being sent to %s already, by another process or another copy "
			"in this one: wait until that has ended, or end it",
			s->op.path, s->store->label, s->into->label);
	/* What is not there, or is no file, is for the open to say. */
	if (r == 0 || r == -ENOENT || ckpt_store_is_no_file(r) || s->core->unlocked)
		return *s->stop;
	s->core->unlocked = true;
	ckpt_log(s->core->parts.log, CKPT_LOG_WARN,
		"%s of %s cannot be locked (%s), nor others, maybe: see to it that nothing else "
		"sends steps of it to %s meanwhile",
		s->op.path, s->store->label, ckpt_code_text(r), s->into->label);
	return *s->stop;
}

static int claim_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_shard_search_shard(s);
	for (;;) {
		ckpt_shard_name_file(s, path);
		/* Copies to other places do not meet. */
		ckpt_store_lock_byte(s->store, &s->op, path, s->into->number, &s->sole);
		CKPT_AWAIT(task, s->op.done);
		if (s->op.result != -ENOENT)
			break;
		if (ckpt_shard_search_turn(&s->search, &s->name))
			continue;
		/* It was replaced between the open and the lock, or it is not there: the second time tells. */
		if (s->claims++ == 0) {
			ckpt_shard_search_restart(&s->search, &s->name);
			continue;
		}
		if (!s->lister)
			break;
		/* Of several that are there every process takes the same one. */
		ckpt_shard_search_miss(&s->search);
		ckpt_shard_search_list(&s->search, task);
		do {
			CKPT_AWAIT(task, s->search.wait.done);
			r = ckpt_shard_search_next(&s->search, task, &s->name, s->err);
		} while (r > 0);
		if (r < 0)
			break;
	}
	/* What could not be listed is not known to the open either, which says so. */
	ckpt_error_clear(s->err);
	return take_claim(s);
	CKPT_TASK_END(task);
}

void ckpt_shard_start_claim(struct ckpt_shard *shard)
{
	CKPT_ASSERT(shard->into && shard->into->bucket && shard->sole.fd < 0);
	ckpt_shard_start(shard, claim_body);
}
