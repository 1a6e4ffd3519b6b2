/* SPDX-License-Identifier: Apache-2.0 */
/* Subtracts the parts from the wanted box one by one, until nothing is left. */
#include "engine/reshard/box_cover.h"

#include <errno.h>

#include "base/alloc.h"

static int put_rest(struct ckpt_box_cover *c, const struct ckpt_box *boxes, size_t count)
{
	if (c->rest_count + count > CKPT_BOX_COVER_REST_MAX)
		return -E2BIG;
	if (c->rest_count + count > c->rest_room) {
		size_t room = (c->rest_room + count) * 2;
		struct ckpt_box *grown = ckpt_realloc_array(c->rest, room, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		c->rest = grown;
		c->rest_room = room;
	}
	for (size_t i = 0; i < count; i++)
		c->rest[c->rest_count++] = boxes[i];
	return 0;
}

static int put_cut(
	struct ckpt_box_cover *c, const struct ckpt_part *part, const struct ckpt_box *box)
{
	if (c->count == CKPT_BOX_COVER_CUTS_MAX)
		return -E2BIG;
	if (c->count == c->room) {
		size_t room = c->room ? c->room * 2 : 16;
		struct ckpt_box_cover_cut *grown =
			ckpt_realloc_array(c->cuts, room, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		c->cuts = grown;
		c->room = room;
	}
	c->cuts[c->count++] = (struct ckpt_box_cover_cut){.part = part, .box = *box};
	return 0;
}

/* Takes from the remaining boxes all that the part holds. */
static int take_part(
	struct ckpt_box_cover *c, const struct ckpt_part *part, const struct ckpt_box *wanted)
{
	struct ckpt_box box = ckpt_part_box(part);
	struct ckpt_box all;
	size_t first = c->count;
	uint64_t volume = 0;

	c->work++;
	if (!ckpt_box_meet(&box, wanted, &all))
		return 0;
	if (c->work > CKPT_BOX_COVER_WORK_MAX)
		return -E2BIG;
	for (size_t i = 0; i < c->rest_count; c->work++) {
		struct ckpt_box rest[CKPT_BOX_REST_MAX];
		struct ckpt_box both;

		if (!ckpt_box_meet(&c->rest[i], &box, &both)) {
			i++;
			continue;
		}
		size_t n = ckpt_box_without(&c->rest[i], &both, rest);
		c->rest[i] = c->rest[--c->rest_count];
		int r = put_cut(c, part, &both);
		if (r == 0)
			r = put_rest(c, rest, n);
		if (r < 0)
			return r;
		volume += ckpt_box_volume(&both);
	}
	/* One cut suffices unless parts overlap, however the remainder was divided. */
	if (c->count > first + 1 && volume == ckpt_box_volume(&all)) {
		c->cuts[first].box = all;
		c->count = first + 1;
	}
	return 0;
}

int ckpt_box_cover_find(struct ckpt_box_cover *cover, const struct ckpt_part *parts, size_t count,
	const struct ckpt_box *wanted, struct ckpt_box *ret_missing)
{
	cover->count = 0;
	cover->rest_count = 0;
	cover->work = 0;
	if (ckpt_box_volume(wanted) == 0)
		return 0;
	int r = put_rest(cover, wanted, 1);
	for (size_t i = 0; r == 0 && i < count && cover->rest_count > 0; i++)
		if (i == 0 || !ckpt_part_same(&parts[i - 1], &parts[i]))
			r = take_part(cover, &parts[i], wanted);
	if (r < 0)
		return r;
	if (cover->rest_count == 0)
		return 0;
	*ret_missing = cover->rest[0];
	return 1;
}

void ckpt_box_cover_clear(struct ckpt_box_cover *cover)
{
	ckpt_free(cover->cuts);
	ckpt_free(cover->rest);
	*cover = (struct ckpt_box_cover){0};
}
