/* SPDX-License-Identifier: Apache-2.0 */
#include "staging/reader_queue.h"

struct ckpt_reader_quota **ckpt_reader_quotas_end(struct ckpt_reader_quotas *shares)
{
	struct ckpt_reader_quota **link = &shares->first;

	while (*link)
		link = &(*link)->next;
	return link;
}

void ckpt_reader_quotas_admit(struct ckpt_reader_quotas *shares, unsigned slots)
{
	unsigned most = (slots - CKPT_READER_SLOTS) / CKPT_READER_SLOTS;

	for (struct ckpt_reader_quota *s = shares->first; s && shares->admitted < most;
		s = s->next) {
		if (s->admitted)
			continue;
		s->admitted = true;
		shares->admitted++;
		ckpt_task_wake(s->task);
	}
}

bool ckpt_reader_quotas_fit(const struct ckpt_reader_quotas *shares, unsigned slots)
{
	return slots >= 2 * CKPT_READER_SLOTS &&
	       (slots - CKPT_READER_SLOTS) / CKPT_READER_SLOTS >= shares->admitted &&
	       slots - CKPT_READER_SLOTS >= shares->held;
}

void ckpt_reader_quotas_wake(struct ckpt_reader_quotas *shares)
{
	struct ckpt_reader_quota *first = shares->first;

	for (struct ckpt_reader_quota *s = first; s; s = s->next)
		if (s->admitted)
			ckpt_task_wake(s->task);
	/* Turns about: the first of now is the last of next time. */
	if (first && first->next) {
		*ckpt_reader_quotas_end(shares) = first;
		shares->first = first->next;
		first->next = NULL;
	}
}
