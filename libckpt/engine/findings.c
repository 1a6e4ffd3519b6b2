/* SPDX-License-Identifier: Apache-2.0 */
/* The list behind ckpt_verify_finding(). */
#include "engine/findings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

bool ckpt_findings_full(const struct ckpt_findings *findings)
{
	return findings->count >= CKPT_FINDINGS_MAX;
}

int ckpt_findings_add(
	struct ckpt_findings *findings, uint64_t generation, const struct ckpt_error *error)
{
	if (ckpt_findings_full(findings))
		return 0;
	if (findings->count == findings->room) {
		size_t room = findings->room ? findings->room * 2 : 4;
		struct ckpt_finding *items =
			ckpt_realloc_array(findings->items, room, sizeof(*items));
		if (!items)
			return -ENOMEM;
		findings->items = items;
		findings->room = room;
	}
	findings->items[findings->count++] = (struct ckpt_finding){
		.size = sizeof(struct ckpt_finding),
		.rank = error->rank > 0 ? (uint32_t)error->rank : 0,
		.step = error->step > 0 ? (uint64_t)error->step : 0,
		.generation = generation,
		.error = *error,
	};
	findings->bad += error->code != 0;
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct ckpt_finding *x = a;
	const struct ckpt_finding *y = b;

	int r = (x->rank > y->rank) - (x->rank < y->rank);
	if (r == 0)
		r = strcmp(x->error.file, y->error.file);
	if (r != 0)
		return r;
	return (x->error.offset > y->error.offset) - (x->error.offset < y->error.offset);
}

void ckpt_findings_sort(struct ckpt_findings *findings)
{
	if (findings->count > 0)
		qsort(findings->items, findings->count, sizeof(*findings->items), by_place);
}

const struct ckpt_error *ckpt_findings_first(const struct ckpt_findings *findings)
{
	for (size_t i = 0; i < findings->count; i++)
		if (findings->items[i].error.code != 0)
			return &findings->items[i].error;
	return NULL;
}

void ckpt_findings_clear(struct ckpt_findings *findings)
{
	ckpt_free(findings->items);
	*findings = (struct ckpt_findings){0};
}
