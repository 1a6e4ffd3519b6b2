/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a node divide what they hold alike among themselves. So the files of a rank are useful only with those
 * of all ranks that were on its node. Node names tell which files of such a group are missing in this store.
 */
#include "engine/reshard/near.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Whether all ranks of nodes in `nodes` are near. */
static bool are_whole(
	const struct ckpt_rankset *near, const struct ckpt_manifest *m, const char *const *nodes)
{
	for (uint32_t i = 0; i < m->world; i++) {
		const char *node = m->ranks[i].node;
		if (!ckpt_rankset_has(near, i) &&
			bsearch(&node, nodes, near->count, sizeof(*nodes), by_text))
			return false;
	}
	return true;
}

int ckpt_near_suffices(const struct ckpt_rankset *near, uint32_t world,
	const struct ckpt_manifest *manifest, bool *ret_enough)
{
	const struct ckpt_manifest *m = manifest;
	bool named = true;

	*ret_enough = false;
	if (ckpt_rankset_is_all(near) || !m->node_stores || m->world != world ||
		near->count >= world || ckpt_rankset_last(near) >= world)
		return 0;
	const char **nodes = ckpt_alloc_array(near->count, sizeof(*nodes));
	if (!nodes)
		return -ENOMEM;
	for (size_t i = 0; i < near->count; i++) {
		nodes[i] = m->ranks[near->items[i]].node;
		named = named && *nodes[i];
	}
	qsort(nodes, near->count, sizeof(*nodes), by_text);
	*ret_enough = named && are_whole(near, m, nodes);
	ckpt_free(nodes);
	return 0;
}
