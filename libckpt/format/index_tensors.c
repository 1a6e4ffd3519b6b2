/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes the tensors of an index in two passes: the first counts, the second stores. So memory is allocated once, for
 * what is really there, and no number in the file decides how much.
 */
#include "format/index_tensors.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/json_reader.h"
#include "format/dtype.h"

enum member { NAME, DTYPE, SHAPE, OFFSET, GLOBAL_SHAPE, GLOBAL_START, DIGEST, VARIES };

static const char *const members[] = {
	[NAME] = "name",
	[DTYPE] = "dtype",
	[SHAPE] = "shape",
	[OFFSET] = "offset",
	[GLOBAL_SHAPE] = "global_shape",
	[GLOBAL_START] = "global_start",
	[DIGEST] = "digest",
	[VARIES] = "varies",
	NULL,
};

#define HAS(seen, member) (((seen) >> (member)) & 1)

struct dims {
	uint32_t count;
	int64_t sizes[CKPT_NDIM_MAX];
};

/* A tensor that is being parsed and checked. */
struct draft {
	char name[CKPT_NAME_MAX];
	size_t name_length;
	char dtype[16];
	struct dims shape;
	struct dims global_shape;
	struct dims global_start;
	char hex[CKPT_DIGEST_HEX];
	struct ckpt_digest digest;
	bool own; /* its digest is stored */
	uint64_t varies;
	uint64_t offset;
	uint64_t nbytes;
	uint32_t type;
	uint32_t seen;
};

struct loader {
	struct ckpt_reader *r;
	struct ckpt_layout *layout;
	bool keep; /* second pass */
	size_t entries;
	size_t aliases;
	size_t texts; /* bytes */
	size_t dims;
	size_t digests;
	uint64_t offset; /* where the next tensor must begin */
	struct draft draft;
};

static void read_dims(struct ckpt_reader *r, struct dims *dims)
{
	uint64_t size;

	(void)ckpt_reader_open(r, '[');
	while (ckpt_reader_item(r)) {
		if (dims->count == CKPT_NDIM_MAX)
			(void)ckpt_reader_fail(r, "more than %d dimensions", CKPT_NDIM_MAX);
		if (ckpt_reader_u64(r, &size))
			dims->sizes[dims->count++] = (int64_t)size;
	}
}

static void read_draft(struct ckpt_reader *r, struct draft *d)
{
	int member;

	*d = (struct draft){0};
	(void)ckpt_reader_open(r, '{');
	while ((member = ckpt_reader_member(r, members, &d->seen)) != CKPT_READER_END) {
		if (member == NAME)
			(void)ckpt_reader_text(r, d->name, sizeof(d->name), &d->name_length);
		else if (member == DTYPE)
			(void)ckpt_reader_text(r, d->dtype, sizeof(d->dtype), NULL);
		else if (member == SHAPE)
			read_dims(r, &d->shape);
		else if (member == OFFSET)
			(void)ckpt_reader_u64(r, &d->offset);
		else if (member == GLOBAL_SHAPE)
			read_dims(r, &d->global_shape);
		else if (member == GLOBAL_START)
			read_dims(r, &d->global_start);
		else if (member == DIGEST)
			(void)ckpt_reader_text(r, d->hex, sizeof(d->hex), NULL);
		else if (member == VARIES)
			(void)ckpt_reader_u64(r, &d->varies);
		else
			(void)ckpt_reader_skip(r);
	}
}

/* Checks that the box is within the whole tensor, whose number of bytes must fit. */
static bool check_global(struct ckpt_reader *r, const struct draft *d)
{
	uint64_t elements = ckpt_dtype_bytes(d->type);

	if (!HAS(d->seen, GLOBAL_SHAPE))
		return !HAS(d->seen, GLOBAL_START) ||
		       ckpt_reader_fail(r, "a global_start without a global_shape");
	if (d->global_shape.count != d->shape.count ||
		(HAS(d->seen, GLOBAL_START) && d->global_start.count != d->shape.count))
		return ckpt_reader_fail(r, "a box with other dimensions than its global_shape");
	for (uint32_t i = 0; i < d->shape.count; i++) {
		/* A missing start is 0, as in the zeroed draft. */
		uint64_t start = (uint64_t)d->global_start.sizes[i];
		uint64_t whole = (uint64_t)d->global_shape.sizes[i];

		if (start > whole || (uint64_t)d->shape.sizes[i] > whole - start)
			return ckpt_reader_fail(r, "a box that exceeds its global_shape");
		if (__builtin_mul_overflow(elements, whole > 0 ? whole : 1, &elements) ||
			elements > INT64_MAX)
			return ckpt_reader_fail(r, "a global_shape of more than 2^63-1 bytes");
	}
	return true;
}

/* The digest of a tensor that shares no chunk is ignored. */
static bool check_digest(struct loader *l, struct draft *d)
{
	if (!HAS(d->seen, DIGEST))
		return true;
	if (!ckpt_digest_parse(d->hex, &d->digest))
		return ckpt_reader_fail(l->r,
			"the digest of tensor '%.100s' is not 32 lower-case hexadecimal digits",
			d->name);
	d->own = d->nbytes > 0 && d->nbytes < l->layout->chunk_bytes;
	return true;
}

static bool check_draft(struct loader *l, struct draft *d)
{
	const uint32_t needed = 1U << NAME | 1U << DTYPE | 1U << SHAPE | 1U << OFFSET;
	struct ckpt_reader *r = l->r;
	const char *bad;

	if (r->failed)
		return false;
	if ((d->seen & needed) != needed)
		return ckpt_reader_fail(r, "a tensor lacks its name, dtype, shape or offset");
	bad = ckpt_layout_bad_name(d->name, d->name_length);
	if (bad)
		return ckpt_reader_fail(r, "the name '%.100s' of a tensor %s", d->name, bad);
	d->type = ckpt_dtype_parse(d->dtype);
	if (d->type == 0)
		return ckpt_reader_fail(
			r, "tensor '%.100s' has the unknown dtype '%s'", d->name, d->dtype);
	if (!ckpt_layout_box_bytes(d->type, d->shape.sizes, d->shape.count, &d->nbytes))
		return ckpt_reader_fail(
			r, "tensor '%.100s' has more bytes than a shard may hold", d->name);
	if (d->offset != l->offset)
		return ckpt_reader_fail(r,
			"tensor '%.100s' begins at %" PRIu64 ", where %" PRIu64
			" is expected: tensors have no gaps",
			d->name, d->offset, l->offset);
	if (d->nbytes > l->layout->bytes - l->offset)
		return ckpt_reader_fail(r, "tensor '%.100s' exceeds the shard", d->name);
	if (HAS(d->seen, VARIES) && d->varies != 1)
		return ckpt_reader_fail(r, "\"varies\" of tensor '%.100s' is not 1", d->name);
	return check_digest(l, d) && check_global(r, d);
}

static char *keep_text(struct loader *l, const char *text, size_t length)
{
	char *kept = l->layout->texts + l->texts;

	memcpy(kept, text, length + 1);
	return kept;
}

static int64_t *keep_dims(struct loader *l, const struct dims *dims)
{
	int64_t *kept = l->layout->dims + l->dims;

	memcpy(kept, dims->sizes, dims->count * sizeof(*kept));
	l->dims += dims->count;
	return kept;
}

static void keep_tensor(struct loader *l, const struct draft *d)
{
	struct ckpt_entry *e = &l->layout->entries[l->entries];

	*e = (struct ckpt_entry){.name = keep_text(l, d->name, d->name_length),
		.dtype = d->type,
		.ndim = d->shape.count,
		.shape = keep_dims(l, &d->shape),
		.offset = d->offset,
		.nbytes = d->nbytes,
		.varies = d->varies == 1,
		.source = (uint32_t)l->entries};
	if (HAS(d->seen, GLOBAL_SHAPE))
		e->global_shape = keep_dims(l, &d->global_shape);
	if (HAS(d->seen, GLOBAL_START))
		e->global_start = keep_dims(l, &d->global_start);
	if (d->own) {
		l->layout->digests[l->digests++] = d->digest;
		e->own = (uint32_t)l->digests;
	}
	if (l->entries > 0 && ckpt_layout_order(e - 1, e) >= 0)
		(void)ckpt_reader_fail(l->r,
			"tensor '%.100s' is out of order: by element size, descending, then by "
			"name",
			d->name);
}

/* Whether the limit of names is reached. */
static bool full(struct loader *l)
{
	if (l->entries + l->aliases < CKPT_TENSORS_MAX)
		return false;
	(void)ckpt_reader_fail(l->r, "more than %d tensors and aliases", CKPT_TENSORS_MAX);
	return true;
}

static void read_tensor(struct loader *l)
{
	struct draft *d = &l->draft;

	read_draft(l->r, d);
	if (!check_draft(l, d))
		return;
	if (full(l))
		return;
	if (l->keep) {
		keep_tensor(l, d);
	} else {
		l->dims += (size_t)d->shape.count + d->global_shape.count + d->global_start.count;
		l->digests += d->own;
	}
	l->entries++;
	l->texts += d->name_length + 1;
	l->offset += d->nbytes;
}

static void read_alias(struct loader *l)
{
	static const char *const names[] = {"name", "target", NULL};
	char name[CKPT_NAME_MAX];
	char target[CKPT_NAME_MAX];
	size_t name_length = 0;
	size_t target_length = 0;
	uint32_t seen = 0;
	int member;

	(void)ckpt_reader_open(l->r, '{');
	while ((member = ckpt_reader_member(l->r, names, &seen)) != CKPT_READER_END) {
		if (member == 0)
			(void)ckpt_reader_text(l->r, name, sizeof(name), &name_length);
		else if (member == 1)
			(void)ckpt_reader_text(l->r, target, sizeof(target), &target_length);
		else
			(void)ckpt_reader_skip(l->r);
	}
	if (l->r->failed)
		return;
	if (seen != 3 || ckpt_layout_bad_name(name, name_length)) {
		(void)ckpt_reader_fail(l->r, "an alias lacks its name or its target");
		return;
	}
	if (full(l))
		return;
	if (l->keep) {
		struct ckpt_alias *a = &l->layout->aliases[l->aliases];

		a->name = keep_text(l, name, name_length);
		l->texts += name_length + 1;
		a->target = keep_text(l, target, target_length);
		l->texts += target_length + 1;
		if (l->aliases > 0 && strcmp(a[-1].name, a->name) >= 0)
			(void)ckpt_reader_fail(l->r, "alias '%.100s' is out of order", name);
	} else {
		l->texts += name_length + target_length + 2;
	}
	l->aliases++;
}

static int read_all(struct loader *l)
{
	static const char *const names[] = {"tensors", "aliases", NULL};
	struct ckpt_reader *r = l->r;
	uint32_t seen = 0;
	int member;

	(void)ckpt_reader_open(r, '{');
	while ((member = ckpt_reader_member(r, names, &seen)) != CKPT_READER_END) {
		if (member == CKPT_READER_OTHER) {
			(void)ckpt_reader_skip(r);
			continue;
		}
		(void)ckpt_reader_open(r, '[');
		while (ckpt_reader_item(r)) {
			if (member == 0)
				read_tensor(l);
			else
				read_alias(l);
		}
	}
	if (!(seen & 1))
		(void)ckpt_reader_fail(r, "\"tensors\" is missing");
	if (l->offset != l->layout->bytes)
		(void)ckpt_reader_fail(r, "its tensors end at %" PRIu64 ", its shard at %" PRIu64,
			l->offset, l->layout->bytes);
	return ckpt_reader_finish(r);
}

static int check_names(const struct ckpt_layout *layout, const char *file, struct ckpt_error *err)
{
	const char *twice = ckpt_layout_twice(layout);
	const struct ckpt_alias *loose;

	if (twice)
		return ckpt_fail_at(err, CKPT_EFORMAT,
			&(struct ckpt_where){.file = file, .tensor = twice},
			"%s gives the name '%.200s' twice", file, twice);
	loose = ckpt_layout_loose(layout);
	if (loose)
		return ckpt_fail_at(err, CKPT_EFORMAT,
			&(struct ckpt_where){.file = file, .tensor = loose->name},
			"%s has an alias '%.200s' of '%.200s', which it does not have", file,
			loose->name, loose->target);
	return 0;
}

int ckpt_index_read_tensors(struct ckpt_layout *layout, const char *text, size_t length,
	uint64_t base, const char *file, struct ckpt_error *err)
{
	struct ckpt_reader r;
	struct loader first = {.r = &r, .layout = layout, .offset = layout->header_bytes};
	struct loader second = first;
	int rc;

	ckpt_reader_init(&r, text, length, base, file, err);
	rc = read_all(&first);
	if (rc < 0)
		return rc;
	layout->entries = ckpt_alloc_array(first.entries, sizeof(*layout->entries));
	layout->aliases = ckpt_alloc_array(first.aliases, sizeof(*layout->aliases));
	layout->texts = ckpt_alloc_array(first.texts, 1);
	layout->dims = ckpt_alloc_array(first.dims, sizeof(*layout->dims));
	layout->digests = ckpt_alloc_array(first.digests, sizeof(*layout->digests));
	if (!layout->entries || !layout->aliases || !layout->texts || !layout->dims ||
		!layout->digests)
		return ckpt_fail(err, -ENOMEM, "out of memory for the %zu tensors of %s",
			first.entries, file);
	ckpt_reader_init(&r, text, length, base, file, err);
	second.keep = true;
	rc = read_all(&second);
	if (rc < 0)
		return rc;
	CKPT_ASSERT(second.entries == first.entries && second.aliases == first.aliases);
	CKPT_ASSERT(second.texts == first.texts && second.dims == first.dims &&
		    second.digests == first.digests);
	layout->entry_count = second.entries;
	layout->alias_count = second.aliases;
	layout->digest_count = second.digests;
	return check_names(layout, file, err);
}
