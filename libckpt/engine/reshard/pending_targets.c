/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of targets, each followed by its name and numbers. */
#include "engine/reshard/pending_targets.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

static const int64_t *keep_dims(int64_t **at, const int64_t *dims, uint32_t ndim)
{
	int64_t *kept = *at;

	if (!dims)
		return NULL;
	if (ndim > 0)
		memcpy(kept, dims, ndim * sizeof(*kept));
	*at += ndim;
	return kept;
}

static struct ckpt_target *keep(const struct ckpt_target *t)
{
	size_t name = strlen(t->name) + 1;
	struct ckpt_target *kept =
		ckpt_alloc(sizeof(*kept) + 3 * (size_t)t->ndim * sizeof(int64_t) + name);

	if (!kept)
		return NULL;
	int64_t *dims = (int64_t *)(kept + 1);
	*kept = *t;
	kept->shape = keep_dims(&dims, t->shape, t->ndim);
	kept->strides = keep_dims(&dims, t->strides, t->ndim);
	kept->start = keep_dims(&dims, t->start, t->ndim);
	kept->name = memcpy(dims, t->name, name);
	return kept;
}

int ckpt_pending_targets_add(struct ckpt_pending_targets *asked, const struct ckpt_target *target)
{
	if (asked->count == asked->room) {
		size_t room = asked->room ? asked->room * 2 : 64;
		struct ckpt_target **grown =
			ckpt_realloc_array(asked->items, room, sizeof(struct ckpt_target *));
		if (!grown)
			return -ENOMEM;
		asked->items = grown;
		asked->room = room;
	}
	struct ckpt_target *kept = keep(target);
	if (!kept)
		return -ENOMEM;
	asked->items[asked->count++] = kept;
	return 0;
}

void ckpt_pending_targets_forget(struct ckpt_pending_targets *asked, size_t count)
{
	while (asked->count > count)
		ckpt_free(asked->items[--asked->count]);
}

void ckpt_pending_targets_clear(struct ckpt_pending_targets *asked)
{
	ckpt_pending_targets_forget(asked, 0);
	ckpt_free(asked->items);
	*asked = (struct ckpt_pending_targets){0};
}
