/* SPDX-License-Identifier: Apache-2.0 */
/* The list behind ckpt_verify_finding(). */
#include "engine/shard/findings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

bool ckpt_findings_full(const struct ckpt_findings *findings)
{
	return findings->count >= CKPT_FINDINGS_MAX;
}

static bool is_bad(const struct ckpt_error *error)
{
	return error->code != 0 && error->code != CKPT_EOTHERNODE;
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
	findings->bad += is_bad(error);
	return 0;
}

int ckpt_findings_add_elsewhere(struct ckpt_findings *findings, uint64_t generation,
	const struct ckpt_error *error, const char *node)
{
	size_t count = findings->count;
	int r = ckpt_findings_add(findings, generation, error);

	CKPT_ASSERT(error->code == CKPT_EOTHERNODE);
	if (findings->count > count)
		(void)snprintf(findings->items[count].node, sizeof(findings->items[count].node),
			"%s", node);
	return r;
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
		if (is_bad(&findings->items[i].error))
			return &findings->items[i].error;
	return NULL;
}

void ckpt_findings_cut(struct ckpt_findings *findings, size_t count)
{
	CKPT_ASSERT(count <= findings->count);
	while (findings->count > count)
		findings->bad -= is_bad(&findings->items[--findings->count].error);
}

void ckpt_findings_clear(struct ckpt_findings *findings)
{
	ckpt_free(findings->items);
	*findings = (struct ckpt_findings){0};
}
