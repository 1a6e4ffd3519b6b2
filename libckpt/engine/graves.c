/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/graves.h"

#include <errno.h>

#include "base/alloc.h"

struct ckpt_grave *ckpt_graves_find(
	const struct ckpt_graves *graves, uint64_t generation, uint64_t step)
{
	for (size_t i = 0; i < graves->count; i++)
		if (graves->items[i].generation == generation && graves->items[i].step == step)
			return &graves->items[i];
	return NULL;
}

int ckpt_graves_note(struct ckpt_graves *graves, const struct ckpt_grave *grave)
{
	struct ckpt_grave *known = ckpt_graves_find(graves, grave->generation, grave->step);

	if (known) {
		if (!ckpt_digest_equal(&known->stone, &grave->stone))
			*known = *grave;
		return 0;
	}
	struct ckpt_grave *items =
		ckpt_realloc_array(graves->items, graves->count + 1, sizeof(*items));
	if (!items)
		return -ENOMEM;
	graves->items = items;
	items[graves->count++] = *grave;
	return 0;
}

void ckpt_graves_drop(struct ckpt_graves *graves, uint64_t generation, uint64_t step)
{
	struct ckpt_grave *known = ckpt_graves_find(graves, generation, step);

	if (known)
		*known = graves->items[--graves->count];
}

void ckpt_graves_clear(struct ckpt_graves *graves)
{
	ckpt_free(graves->items);
	*graves = (struct ckpt_graves){0};
}
