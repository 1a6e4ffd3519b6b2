/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog of a layout: its root, and the lists that it names. */
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/catalog.h"
#include "format/dtype.h"
#include "format/index_head.h"
#include "format/manifest.h"

/* What is taken and kept is less than four times the root, and a little. */
#define SLACK      4096
/* Of one with more boxes or ranks only so many are looked at. */
#define BOXES_MAX  2000
#define WORLD_MOST 64

/* One box that was found, of tensor `tensor`. */
struct found {
	size_t tensor;
	uint32_t rank;
	int64_t start[CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
};

static int read_file(const uint8_t *data, size_t size, struct ckpt_error *err,
	struct ckpt_layout_catalog **ret_catalog)
{
	uint64_t root = 0;
	uint64_t bytes = 0;
	int r = ckpt_layout_catalog_measure(data, size, FUZZ_FILE, err, &root, &bytes);

	/* Who reads a file compares the length that it has with the one that it says. */
	if (r == 0 && bytes != size)
		return 1;
	return r < 0 ? r
		     : ckpt_layout_catalog_decode(data, root, NULL, FUZZ_FILE, err, ret_catalog);
}

static void check_root(const struct ckpt_layout_catalog *c, size_t size)
{
	uint64_t offset = c->tensor_count > 0 ? c->tensors[0].offset : size;

	FUZZ_CHECK(c->world >= 1 && c->world <= 1000000 && c->bytes == size);
	for (size_t i = 0; i < c->tensor_count; i++) {
		const struct ckpt_catalog_tensor *t = &c->tensors[i];
		uint64_t whole = ckpt_dtype_bytes(t->dtype);

		FUZZ_CHECK(whole > 0 && t->ndim <= 16 && t->bytes > 0);
		FUZZ_CHECK(!ckpt_layout_bad_name(t->name, strlen(t->name)));
		FUZZ_CHECK(i == 0 || strcmp(t[-1].name, t->name) < 0);
		FUZZ_CHECK(t->offset == offset);
		offset += t->bytes;
		for (uint32_t d = 0; d < t->ndim; d++) {
			FUZZ_CHECK(t->shape[d] >= 0);
			whole *= t->shape[d] > 0 ? (uint64_t)t->shape[d] : 1;
			FUZZ_CHECK(whole <= INT64_MAX);
		}
		FUZZ_CHECK(ckpt_layout_catalog_find(c, t->name) == t);
	}
	FUZZ_CHECK(offset == size);
	for (size_t i = 0; i < c->alias_count; i++) {
		FUZZ_CHECK(c->aliases[i].target < c->tensor_count);
		FUZZ_CHECK(i == 0 || strcmp(c->aliases[i - 1].name, c->aliases[i].name) < 0);
		FUZZ_CHECK(ckpt_layout_catalog_find(c, c->aliases[i].name) ==
			   &c->tensors[c->aliases[i].target]);
	}
}

static bool same(const int64_t *a, const int64_t *b, uint32_t ndim)
{
	return ndim == 0 || memcmp(a, b, ndim * sizeof(*a)) == 0;
}

/* A box of the list is within the whole, is its rank's, and is found again by what it holds. */
static void check_box(const struct ckpt_catalog_list *list, const struct found *f)
{
	const struct ckpt_catalog_tensor *t = list->tensor;
	int64_t start[CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
	struct ckpt_catalog_walk walk;
	struct ckpt_catalog_box box;
	bool empty = false;
	bool found = false;

	for (uint32_t d = 0; d < t->ndim; d++) {
		FUZZ_CHECK(f->start[d] >= 0 && f->shape[d] >= 0);
		FUZZ_CHECK(f->start[d] <= t->shape[d] && f->shape[d] <= t->shape[d] - f->start[d]);
		empty = empty || f->shape[d] == 0;
	}
	FUZZ_CHECK(ckpt_catalog_box_of(list, f->rank, start, shape));
	FUZZ_CHECK(same(start, f->start, t->ndim) && same(shape, f->shape, t->ndim));
	ckpt_catalog_walk_begin(&walk, list, f->start, f->shape);
	while (!found && ckpt_catalog_walk_next(&walk, &box)) {
		for (uint32_t d = 0; d < t->ndim; d++)
			FUZZ_CHECK(box.start[d] < f->start[d] + f->shape[d] &&
				   f->start[d] < box.start[d] + box.shape[d]);
		found = box.rank == f->rank;
	}
	FUZZ_CHECK(found == !empty);
}

/* Up to `room` boxes of a list. */
static size_t collect(const struct ckpt_layout_catalog *c, size_t number,
	const struct ckpt_catalog_list *list, struct found *all, size_t room)
{
	struct ckpt_catalog_walk walk;
	struct ckpt_catalog_box box;
	size_t dims = list->tensor->ndim * sizeof(int64_t);
	size_t n = 0;

	ckpt_catalog_walk_begin(&walk, list, NULL, NULL);
	while (n < room && ckpt_catalog_walk_next(&walk, &box)) {
		all[n] = (struct found){.tensor = number, .rank = box.rank};
		FUZZ_CHECK(box.rank < c->world && (n == 0 || all[n - 1].rank < box.rank));
		memcpy(all[n].start, box.start, dims);
		memcpy(all[n].shape, box.shape, dims);
		/* Finding each goes over the records before it. */
		if (n < 64)
			check_box(list, &all[n]);
		n++;
	}
	FUZZ_CHECK(n == room || n == list->ranks);
	return n;
}

/* Reads every list; the boxes of all, at most BOXES_MAX, and whether these are all. Negative: an error. */
static int read_lists(const struct ckpt_layout_catalog *c, const uint8_t *data, struct found *all,
	size_t *ret_count, bool *ret_complete)
{
	*ret_count = 0;
	*ret_complete = true;
	for (size_t i = 0; i < c->tensor_count; i++) {
		struct ckpt_error err = {0};
		struct ckpt_catalog_list list;
		int r = ckpt_catalog_open_list(
			c, &c->tensors[i], data + c->tensors[i].offset, FUZZ_FILE, &err, &list);

		fuzz_check_error(&err, r, c->bytes);
		if (r < 0)
			return r;
		FUZZ_CHECK(list.ranks >= 1 && list.ranks <= c->world);
		size_t n = collect(c, i, &list, all + *ret_count, BOXES_MAX - *ret_count);
		*ret_count += n;
		*ret_complete = *ret_complete && n == list.ranks;
	}
	return 0;
}

static int add_rank(struct ckpt_catalog_builder *builder, const struct ckpt_layout_catalog *c,
	uint32_t rank, struct found *all, size_t count)
{
	static struct ckpt_entry entries[BOXES_MAX];
	struct ckpt_layout layout = {.entries = entries};
	struct ckpt_error err = {0};

	for (size_t i = 0; i < count; i++) {
		const struct ckpt_catalog_tensor *t = &c->tensors[all[i].tensor];

		if (all[i].rank == rank)
			entries[layout.entry_count++] = (struct ckpt_entry){.name = (char *)t->name,
				.dtype = t->dtype,
				.ndim = t->ndim,
				.shape = all[i].shape,
				.global_shape = (int64_t *)t->shape,
				.global_start = all[i].start};
	}
	return ckpt_catalog_builder_add(builder, rank, &layout, &err);
}

/* Put together anew from its boxes it says the same. */
static void check_again(const struct ckpt_layout_catalog *c, struct found *all, size_t count)
{
	static struct found again[BOXES_MAX];
	struct ckpt_catalog_builder *builder = NULL;
	struct ckpt_layout_catalog *read = NULL;
	struct ckpt_error err = {0};
	struct ckpt_digest digest;
	struct ckpt_buf file = {0};
	size_t n = 0;
	bool complete;

	FUZZ_CHECK(ckpt_catalog_builder_new(c->world, NULL, &builder) == 0);
	for (uint32_t rank = 0; rank < c->world; rank++)
		FUZZ_CHECK(add_rank(builder, c, rank, all, count) == 0);
	FUZZ_CHECK(ckpt_catalog_builder_finish(builder, &file, &err, &digest) == 0);
	ckpt_catalog_builder_free(builder);
	FUZZ_CHECK(read_file((uint8_t *)file.data, file.len, &err, &read) == 0);
	FUZZ_CHECK(ckpt_digest_equal(&read->digest, &digest));
	FUZZ_CHECK(read->tensor_count == c->tensor_count);
	FUZZ_CHECK(read_lists(read, (uint8_t *)file.data, again, &n, &complete) == 0);
	FUZZ_CHECK(complete && n == count);
	FUZZ_CHECK(n == 0 || memcmp(again, all, n * sizeof(*all)) == 0);
	ckpt_layout_catalog_free(read);
	ckpt_buf_free(&file);
}

static void check_without_memory(const uint8_t *data, size_t size, size_t count, int code)
{
	struct ckpt_layout_catalog *catalog = NULL;
	struct ckpt_error err = {0};

	if (count == 0)
		return;
	fuzz_memory_begin(1 + size * 31 % count);
	int r = read_file(data, size, &err, &catalog);
	(void)fuzz_memory_end(UINT64_MAX);
	FUZZ_CHECK((r == code || r == -ENOMEM) && (r == 0) == (catalog != NULL));
	ckpt_layout_catalog_free(catalog);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct found all[BOXES_MAX];
	struct ckpt_layout_catalog *catalog = NULL;
	struct ckpt_error err = {0};
	size_t boxes = 0;
	bool complete;

	fuzz_memory_begin(0);
	int r = read_file(data, size, &err, &catalog);
	size_t count = fuzz_memory_end(4 * (uint64_t)size + SLACK);
	if (r == 1)
		return 0;
	fuzz_check_error(&err, r, size);
	FUZZ_CHECK((r == 0) == (catalog != NULL));
	check_without_memory(data, size, count, r);
	if (catalog) {
		check_root(catalog, size);
		if (read_lists(catalog, data, all, &boxes, &complete) == 0 && complete &&
			catalog->world <= WORLD_MOST && catalog->alias_count == 0)
			check_again(catalog, all, boxes);
	}
	ckpt_layout_catalog_free(catalog);
	return 0;
}

/* Mutating. */

static void put_le64(uint8_t *at, uint64_t value)
{
	for (unsigned i = 0; i < 8; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

/* Makes the digests fit, and as often as not the lengths of the head, as far as the entries can be read. */
static void seal(uint8_t *data, size_t size, struct prng *prng)
{
	uint64_t head = ckpt_le32(data + 16);
	uint64_t directory = ckpt_le64(data + 40);
	uint64_t room = size - CKPT_DIGEST_SIZE;

	if (head < CKPT_CATALOG_HEAD_BYTES || head > room || directory > room - head)
		return;
	uint8_t *end = data + head + directory;
	uint8_t *list = end + CKPT_DIGEST_SIZE;
	uint8_t *at = data + head;
	if (prng_below(prng, 8) > 0)
		put_le64(data + 48, (uint64_t)(data + size - list));
	for (uint64_t i = 0; i < ckpt_le64(data + 24) && end - at >= 4; i++) {
		size_t entry = 4 + (size_t)at[0] + ((size_t)at[1] << 8) + (size_t)at[3] * 8 + 24;

		if (entry > (size_t)(end - at))
			break;
		at += entry;
		uint64_t bytes = ckpt_le64(at - 24);
		if (bytes > (uint64_t)(data + size - list))
			break;
		struct ckpt_digest digest = ckpt_digest_of(list, bytes);
		memcpy(at - CKPT_DIGEST_SIZE, digest.bytes, CKPT_DIGEST_SIZE);
		list += bytes;
	}
	struct ckpt_digest digest = ckpt_digest_of(data, head + directory);
	memcpy(end, digest.bytes, CKPT_DIGEST_SIZE);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};

	if (size < CKPT_CATALOG_HEAD_BYTES + CKPT_DIGEST_SIZE || prng_below(&prng, 16) == 0)
		return LLVMFuzzerMutate(data, size, max);
	uint64_t root = CKPT_CATALOG_HEAD_BYTES + ckpt_le64(data + 40) + CKPT_DIGEST_SIZE;
	if (prng_below(&prng, 4) > 0 && root < size) {
		/* The lists, without changing their length. */
		(void)LLVMFuzzerMutate(data + root, size - root, size - root);
	} else if (prng_below(&prng, 4) > 0) {
		size_t at = prng_below(&prng, size);

		if (size - at >= 8 && prng_below(&prng, 2))
			put_le64(data + at, fuzz_edge(&prng));
		else
			data[at] ^= (uint8_t)(1U << prng_below(&prng, 8));
	} else {
		size = LLVMFuzzerMutate(data, size, max);
	}
	if (size >= CKPT_CATALOG_HEAD_BYTES + CKPT_DIGEST_SIZE)
		seal(data, size, &prng);
	return size;
}
