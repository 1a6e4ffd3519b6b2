/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/stored_place.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
	const struct ckpt_stored_place *x = a;
	const struct ckpt_stored_place *y = b;

	if (x->offset != y->offset)
		return x->offset > y->offset ? 1 : -1;
	return (x->item > y->item) - (x->item < y->item);
}

void ckpt_stored_place_sort(struct ckpt_stored_place *places, size_t count)
{
	qsort(places, count, sizeof(*places), compare);
}
