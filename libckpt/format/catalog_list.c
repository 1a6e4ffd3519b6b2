/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a tensor in a catalog, and searching it. */
#include <string.h>

#include "base/error.h"
#include "format/catalog_run.h"
#include "format/manifest.h"

int ckpt_catalog_open_list(const struct ckpt_layout_catalog *catalog,
	const struct ckpt_catalog_tensor *tensor, const void *data, const char *file,
	struct ckpt_error *err, struct ckpt_catalog_list *ret_list)
{
	struct ckpt_where where = {
		.file = file, .tensor = tensor->name, .has_offset = true, .offset = tensor->offset};
	struct ckpt_digest digest = ckpt_digest_of(data, tensor->bytes);
	const unsigned char *at = data;
	const unsigned char *end = at + tensor->bytes;
	struct ckpt_catalog_run run;
	uint64_t least = 0;
	uint64_t ranks = 0;

	if (!ckpt_digest_equal(&digest, &tensor->digest))
		return ckpt_fail_at(err, CKPT_EINTEGRITY, &where,
			"%s: the list of '%.200s' differs from its digest: the file is damaged",
			file, tensor->name);
	while (at < end) {
		const char *bad =
			ckpt_catalog_read_run(&at, end, least, tensor, catalog->world, &run);
		uint64_t boxes = 1;

		if (bad)
			return ckpt_fail_at(err, CKPT_EFORMAT, &where,
				"%s: the list of '%.200s' has %s", file, tensor->name, bad);
		least = run.rank + run.span + 1;
		for (uint32_t k = 0; k < run.loops; k++)
			boxes *= run.loop[k].count;
		ranks += boxes;
	}
	*ret_list = (struct ckpt_catalog_list){.tensor = tensor, .data = data, .ranks = ranks};
	return 0;
}

/* The next record of a checked list. False: there is none. */
static bool read_next(const struct ckpt_catalog_list *list, const unsigned char **at,
	uint64_t *least, struct ckpt_catalog_run *run)
{
	const unsigned char *end = list->data + list->tensor->bytes;

	if (*at == end)
		return false;
	const char *bad = ckpt_catalog_read_run(at, end, *least, list->tensor, CKPT_WORLD_MAX, run);
	CKPT_ASSERT(!bad);
	*least = run->rank + run->span + 1;
	return true;
}

void ckpt_catalog_walk_begin(struct ckpt_catalog_walk *walk, const struct ckpt_catalog_list *list,
	const int64_t *start, const int64_t *shape)
{
	walk->list = list;
	walk->next = list->data;
	walk->rank = 0;
	walk->all = !shape;
	walk->open = false;
	for (uint32_t d = 0; shape && d < list->tensor->ndim; d++) {
		walk->low[d] = start ? start[d] : 0;
		walk->high[d] = walk->low[d] + shape[d];
		/* An empty box shares no element. */
		if (shape[d] == 0)
			walk->next = list->data + list->tensor->bytes;
	}
}

/* Reduces [first, end) to the indexes i with base + i * delta > 0. */
static void narrow(int64_t base, int64_t delta, uint64_t *first, uint64_t *end)
{
	if (delta == 0 && base <= 0)
		*end = 0;
	else if (delta > 0 && base <= 0)
		*first = ckpt_max_u64(*first, (uint64_t)(-base / delta) + 1);
	else if (delta < 0)
		*end = base <= 0 ? 0 : ckpt_min_u64(*end, (uint64_t)((base - 1) / -delta) + 1);
}

/* Sets which indexes of loop `k` may match, for the current indexes of the outer loops. */
static void set_range(struct ckpt_catalog_walk *w, uint32_t k)
{
	const struct ckpt_catalog_run *run = &w->run;
	uint64_t first = 0;
	uint64_t end = run->loop[k].count;

	for (uint32_t d = 0; !w->all && d < w->list->tensor->ndim; d++) {
		int64_t start = w->base[k + 1][d];
		int64_t delta = run->loop[k].delta[d];

		narrow(start + run->loop[k].high[d] + run->shape[d] - w->low[d], delta, &first,
			&end);
		narrow(w->high[d] - start - run->loop[k].low[d], -delta, &first, &end);
	}
	w->end[k] = (uint32_t)end;
	w->at[k] = (uint32_t)ckpt_min_u64(first, end);
}

static void place(struct ckpt_catalog_walk *w, uint32_t k)
{
	for (uint32_t d = 0; d < w->list->tensor->ndim; d++)
		w->base[k][d] = w->base[k + 1][d] + w->run.loop[k].delta[d] * (int64_t)w->at[k];
}

/* Advances loop `*k`, or the next outer one that has more. False: the record is finished. */
static bool turn(struct ckpt_catalog_walk *w, uint32_t *k)
{
	for (; *k < w->run.loops; (*k)++) {
		w->at[*k]++;
		if (w->at[*k] < w->end[*k]) {
			place(w, *k);
			return true;
		}
	}
	return false;
}

/* Enters the inner loops of `k`, whose start is set, up to a matching box. False: the record is finished. */
static bool enter(struct ckpt_catalog_walk *w, uint32_t k)
{
	while (k > 0) {
		set_range(w, k - 1);
		if (w->at[k - 1] < w->end[k - 1]) {
			place(w, --k);
		} else if (!turn(w, &k)) {
			return false;
		}
	}
	return true;
}

static bool meets(const struct ckpt_catalog_walk *w)
{
	for (uint32_t d = 0; !w->all && d < w->list->tensor->ndim; d++)
		if (w->run.shape[d] == 0 || w->base[0][d] >= w->high[d] ||
			w->base[0][d] + w->run.shape[d] <= w->low[d])
			return false;
	return true;
}

static bool go_on(struct ckpt_catalog_walk *w)
{
	uint32_t k = 0;

	return turn(w, &k) && enter(w, k);
}

static bool begin_run(struct ckpt_catalog_walk *w)
{
	uint32_t ndim = w->list->tensor->ndim;

	memcpy(w->base[w->run.loops], w->run.start, ndim * sizeof(w->run.start[0]));
	ckpt_catalog_set_hulls(&w->run, ndim);
	return enter(w, w->run.loops);
}

bool ckpt_catalog_walk_next(struct ckpt_catalog_walk *walk, struct ckpt_catalog_box *ret_box)
{
	do {
		if (walk->open) {
			walk->open = go_on(walk);
		} else {
			if (!read_next(walk->list, &walk->next, &walk->rank, &walk->run))
				return false;
			walk->open = begin_run(walk);
		}
	} while (!walk->open || !meets(walk));
	uint32_t rank = walk->run.rank;
	for (uint32_t k = 0; k < walk->run.loops; k++)
		rank += walk->at[k] * walk->run.loop[k].stride;
	*ret_box = (struct ckpt_catalog_box){
		.rank = rank, .start = walk->base[0], .shape = walk->run.shape};
	return true;
}

/* The loop indexes of rank `rank`. False: none. */
static bool find_turns(
	const struct ckpt_catalog_run *run, uint32_t rank, uint32_t at[CKPT_CATALOG_LOOPS])
{
	uint32_t left = rank - run->rank;

	/* The inner loops span less than the stride of a loop. */
	for (uint32_t k = run->loops; k-- > 0;) {
		at[k] = left / run->loop[k].stride;
		if (at[k] >= run->loop[k].count)
			return false;
		left -= at[k] * run->loop[k].stride;
	}
	return left == 0;
}

bool ckpt_catalog_box_of(const struct ckpt_catalog_list *list, uint32_t rank,
	int64_t ret_start[CKPT_NDIM_MAX], int64_t ret_shape[CKPT_NDIM_MAX])
{
	const unsigned char *next = list->data;
	struct ckpt_catalog_run run;
	uint32_t at[CKPT_CATALOG_LOOPS];
	uint64_t least = 0;

	do {
		if (!read_next(list, &next, &least, &run))
			return false;
	} while (rank > run.rank + run.span);
	if (rank < run.rank || !find_turns(&run, rank, at))
		return false;
	for (uint32_t d = 0; d < list->tensor->ndim; d++) {
		ret_start[d] = run.start[d];
		ret_shape[d] = run.shape[d];
		for (uint32_t k = 0; k < run.loops; k++)
			ret_start[d] += run.loop[k].delta[d] * (int64_t)at[k];
	}
	return true;
}
