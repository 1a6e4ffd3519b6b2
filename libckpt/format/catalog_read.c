/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes the root of a catalog, from untrusted bytes. */
#include <ckpt/version.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/catalog_run.h"
#include "format/dtype.h"
#include "format/index_head.h"
#include "format/manifest.h"
#include "format/sealed.h"

#define HEAD_MAX     4096 /* of any later minor version */
#define TENSOR_BYTES 28   /* of an entry without name and shape */
#define ALIAS_BYTES  6

struct head {
	uint32_t minor;
	uint32_t head_bytes;
	uint32_t world;
	uint64_t tensors;
	uint64_t aliases;
	uint64_t directory;
	uint64_t lists;
};

/* Parses twice: first to count, then to store. */
struct cursor {
	const unsigned char *at;
	const unsigned char *end;
	const char *file;
	struct ckpt_error *err;
	struct ckpt_layout_catalog *keep; /* NULL: only count */
	size_t texts;
	size_t dims;
	uint64_t offset; /* of the next list */
	uint64_t lists_end;
	uint64_t tensors;
};

static int refuse(struct ckpt_error *err, int code, const char *file, const char *why)
{
	return ckpt_fail_at(err, code, &(struct ckpt_where){.file = file}, "%s %s", file, why);
}

static uint32_t le16(const unsigned char *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

static struct head read_head(const unsigned char *data)
{
	return (struct head){
		.minor = ckpt_le32(data + 12),
		.head_bytes = ckpt_le32(data + 16),
		.world = ckpt_le32(data + 20),
		.tensors = ckpt_le64(data + 24),
		.aliases = ckpt_le64(data + 32),
		.directory = ckpt_le64(data + 40),
		.lists = ckpt_le64(data + 48),
	};
}

int ckpt_layout_catalog_measure(const void *head, size_t length, const char *file,
	struct ckpt_error *err, uint64_t *ret_root_bytes, uint64_t *ret_bytes)
{
	const unsigned char *data = head;

	if (length < CKPT_CATALOG_HEAD_BYTES)
		return refuse(err, CKPT_EFORMAT, file, "is too short to be a catalog");
	if (memcmp(data, CKPT_CATALOG_MAGIC, CKPT_CATALOG_MAGIC_BYTES) != 0)
		return refuse(
			err, CKPT_EFORMAT, file, "does not begin with the magic of a catalog");
	int r = ckpt_format_check(ckpt_le32(data + 8), ckpt_le32(data + 12), file, err);
	if (r < 0)
		return r;
	struct head h = read_head(data);
	if (h.head_bytes < CKPT_CATALOG_HEAD_BYTES || h.head_bytes > HEAD_MAX ||
		(h.minor <= CKPT_FORMAT_MINOR && h.head_bytes != CKPT_CATALOG_HEAD_BYTES))
		return refuse(err, CKPT_EFORMAT, file, "has a head of a wrong length");
	if (h.directory > CKPT_CATALOG_MAX || h.lists > CKPT_CATALOG_MAX ||
		h.head_bytes + h.directory + CKPT_DIGEST_SIZE + h.lists > CKPT_CATALOG_MAX)
		return refuse(err, CKPT_EFORMAT, file, "is longer than a catalog may be");
	*ret_root_bytes = h.head_bytes + h.directory + CKPT_DIGEST_SIZE;
	*ret_bytes = *ret_root_bytes + h.lists;
	return 0;
}

static int bad_entry(struct cursor *c, const char *why)
{
	return refuse(c->err, CKPT_EFORMAT, c->file, why);
}

/* The next bytes of the directory. NULL: there are fewer. */
static const unsigned char *take(struct cursor *c, size_t bytes)
{
	const unsigned char *at = c->at;

	if (bytes > (size_t)(c->end - at))
		return NULL;
	c->at += bytes;
	return at;
}

/* A name; stored after the others. */
static int take_name(struct cursor *c, size_t length, const char *before, const char **ret_name)
{
	const unsigned char *at = take(c, length);
	char name[CKPT_NAME_MAX];

	if (!at || length >= sizeof(name) || memchr(at, 0, length))
		return bad_entry(c, "has an empty or truncated name");
	memcpy(name, at, length);
	name[length] = '\0';
	const char *bad = ckpt_layout_bad_name(name, length);
	if (bad)
		return ckpt_fail_at(c->err, CKPT_EFORMAT, &(struct ckpt_where){.file = c->file},
			"%s: the name '%.100s' of a tensor %s", c->file, name, bad);
	if (c->keep) {
		char *kept = c->keep->texts + c->texts;

		memcpy(kept, name, length + 1);
		*ret_name = kept;
		if (before && strcmp(before, kept) >= 0)
			return bad_entry(c, "has names that are not sorted");
	}
	c->texts += length + 1;
	return 0;
}

/* The shape of the complete tensor, whose number of bytes must fit. */
static int check_shape(struct cursor *c, const struct ckpt_catalog_tensor *t, const int64_t *shape)
{
	uint64_t bytes = ckpt_dtype_bytes(t->dtype);

	for (uint32_t i = 0; i < t->ndim; i++)
		if (shape[i] < 0 ||
			__builtin_mul_overflow(
				bytes, shape[i] > 0 ? (uint64_t)shape[i] : 1, &bytes) ||
			bytes > INT64_MAX)
			return bad_entry(c, "has a tensor of more than 2^63-1 bytes");
	return 0;
}

static int read_tensor(struct cursor *c, size_t number)
{
	const unsigned char *at = take(c, 4);
	int64_t shape[CKPT_NDIM_MAX] = {0};
	struct ckpt_catalog_tensor t = {0};
	const char *before = c->keep && number > 0 ? c->keep->tensors[number - 1].name : NULL;

	if (!at)
		return bad_entry(c, "has fewer tensors than it says");
	t.dtype = at[2];
	t.ndim = at[3];
	if (ckpt_dtype_bytes(t.dtype) == 0 || t.ndim > CKPT_NDIM_MAX)
		return bad_entry(c, "has a tensor of an unknown dtype, or too many dimensions");
	int r = take_name(c, le16(at), before, &t.name);
	if (r < 0)
		return r;
	at = take(c, (size_t)t.ndim * 8 + 8 + CKPT_DIGEST_SIZE);
	if (!at)
		return bad_entry(c, "has fewer tensors than it says");
	for (uint32_t i = 0; i < t.ndim; i++, at += 8)
		shape[i] = (int64_t)ckpt_le64(at);
	r = check_shape(c, &t, shape);
	if (r < 0)
		return r;
	t.offset = c->offset;
	t.bytes = ckpt_le64(at);
	memcpy(t.digest.bytes, at + 8, CKPT_DIGEST_SIZE);
	if (t.bytes == 0 || t.bytes > c->lists_end - c->offset)
		return bad_entry(c, "has a list that is empty or exceeds the file");
	c->offset += t.bytes;
	if (c->keep) {
		t.shape = memcpy(c->keep->dims + c->dims, shape, t.ndim * sizeof(*shape));
		c->keep->tensors[number] = t;
	}
	c->dims += t.ndim;
	return 0;
}

static int read_alias(struct cursor *c, size_t number)
{
	const unsigned char *at = take(c, ALIAS_BYTES);
	struct ckpt_catalog_alias a = {0};
	const char *before = c->keep && number > 0 ? c->keep->aliases[number - 1].name : NULL;

	if (!at)
		return bad_entry(c, "has fewer aliases than it says");
	a.target = ckpt_le32(at + 2);
	if (a.target >= c->tensors)
		return bad_entry(c, "has an alias of a tensor that it does not have");
	int r = take_name(c, le16(at), before, &a.name);
	if (r == 0 && c->keep)
		c->keep->aliases[number] = a;
	return r;
}

static int read_entries(struct cursor c, const struct head *h, struct cursor *ret_end)
{
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < h->tensors; i++)
		r = read_tensor(&c, i);
	for (uint64_t i = 0; r == 0 && i < h->aliases; i++)
		r = read_alias(&c, i);
	if (r < 0)
		return r;
	/* A newer minor version may have more. */
	if (h->minor <= CKPT_FORMAT_MINOR && c.at != c.end)
		return bad_entry(&c, "has more in its directory than its head says");
	if (c.offset != c.lists_end)
		return bad_entry(&c, "has lists whose lengths do not add up to its size");
	*ret_end = c;
	return 0;
}

/* A name belongs to a tensor or an alias, not both. */
static int check_names(const struct cursor *c)
{
	for (size_t i = 0, k = 0; i < c->keep->alias_count; i++) {
		const char *name = c->keep->aliases[i].name;

		while (k < c->keep->tensor_count && strcmp(c->keep->tensors[k].name, name) < 0)
			k++;
		if (k < c->keep->tensor_count && strcmp(c->keep->tensors[k].name, name) == 0)
			return ckpt_fail_at(c->err, CKPT_EFORMAT,
				&(struct ckpt_where){.file = c->file, .tensor = name},
				"%s gives the name '%.200s' twice", c->file, name);
	}
	return 0;
}

static int keep_entries(struct cursor c, const struct head *h, struct ckpt_layout_catalog *catalog)
{
	struct cursor counted = c;
	int r = read_entries(c, h, &counted);

	if (r < 0)
		return r;
	catalog->tensors = ckpt_alloc_array(h->tensors, sizeof(*catalog->tensors));
	catalog->aliases = ckpt_alloc_array(h->aliases, sizeof(*catalog->aliases));
	catalog->texts = ckpt_alloc_array(counted.texts, 1);
	catalog->dims = ckpt_alloc_array(counted.dims, sizeof(*catalog->dims));
	if (!catalog->tensors || !catalog->aliases || !catalog->texts || !catalog->dims)
		return ckpt_fail(c.err, -ENOMEM, "out of memory for %s", c.file);
	c.keep = catalog;
	r = read_entries(c, h, &counted);
	if (r < 0)
		return r;
	catalog->tensor_count = h->tensors;
	catalog->alias_count = h->aliases;
	return check_names(&c);
}

static int check_root(const unsigned char *root, size_t root_bytes, const struct ckpt_digest *named,
	const char *file, struct ckpt_error *err, struct ckpt_digest *ret_digest)
{
	uint64_t must = 0;
	uint64_t bytes = 0;

	if (root_bytes > CKPT_DIGEST_SIZE &&
		memcmp(root, CKPT_CATALOG_MAGIC,
			ckpt_min_u64(root_bytes, CKPT_CATALOG_MAGIC_BYTES)) == 0) {
		struct ckpt_digest digest = ckpt_digest_of(root, root_bytes - CKPT_DIGEST_SIZE);

		/* Checked first, so that a damaged length is reported as damage. */
		if (memcmp(digest.bytes, root + root_bytes - CKPT_DIGEST_SIZE, CKPT_DIGEST_SIZE) !=
			0)
			return refuse(err, CKPT_EINTEGRITY, file,
				"differs from the digest at the end of its root: it is damaged or "
				"cut short");
		if (named && !ckpt_digest_equal(&digest, named))
			return refuse(err, CKPT_EINTEGRITY, file,
				"is not the catalog that was named: it was put there from "
				"elsewhere");
		*ret_digest = digest;
	}
	int r = ckpt_layout_catalog_measure(root, root_bytes, file, err, &must, &bytes);
	if (r == 0 && must != root_bytes)
		r = refuse(err, CKPT_EFORMAT, file, "has a root of a wrong length");
	return r;
}

int ckpt_layout_catalog_decode(const void *root, size_t root_bytes, const struct ckpt_digest *named,
	const char *file, struct ckpt_error *err, struct ckpt_layout_catalog **ret_catalog)
{
	struct ckpt_digest digest = {0};
	int r = check_root(root, root_bytes, named, file, err, &digest);

	if (r < 0)
		return r;
	struct head h = read_head(root);
	if (h.world == 0 || h.world > CKPT_WORLD_MAX)
		return refuse(err, CKPT_EFORMAT, file, "has an impossible number of ranks");
	if (h.tensors > h.directory / TENSOR_BYTES || h.aliases > h.directory / ALIAS_BYTES)
		return refuse(err, CKPT_EFORMAT, file, "has more names than fit into it");
	struct ckpt_layout_catalog *catalog = ckpt_alloc(sizeof(*catalog));
	if (!catalog)
		return ckpt_fail(err, -ENOMEM, "out of memory for %s", file);
	struct cursor c = {.at = (const unsigned char *)root + h.head_bytes,
		.end = (const unsigned char *)root + h.head_bytes + h.directory,
		.file = file,
		.err = err,
		.offset = root_bytes,
		.lists_end = root_bytes + h.lists,
		.tensors = h.tensors};
	catalog->world = h.world;
	catalog->digest = digest;
	catalog->bytes = c.lists_end;
	r = keep_entries(c, &h, catalog);
	if (r < 0) {
		ckpt_layout_catalog_free(catalog);
		return r;
	}
	*ret_catalog = catalog;
	return 0;
}

void ckpt_layout_catalog_free(struct ckpt_layout_catalog *catalog)
{
	if (!catalog)
		return;
	ckpt_free(catalog->tensors);
	ckpt_free(catalog->aliases);
	ckpt_free(catalog->texts);
	ckpt_free(catalog->dims);
	ckpt_free(catalog);
}

static const struct ckpt_catalog_tensor *find_tensor(
	const struct ckpt_layout_catalog *catalog, const char *name)
{
	size_t low = 0;
	size_t high = catalog->tensor_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(catalog->tensors[middle].name, name);

		if (order == 0)
			return &catalog->tensors[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

const struct ckpt_catalog_tensor *ckpt_layout_catalog_find(
	const struct ckpt_layout_catalog *catalog, const char *name)
{
	const struct ckpt_catalog_tensor *found = find_tensor(catalog, name);
	size_t low = 0;
	size_t high = found ? 0 : catalog->alias_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(catalog->aliases[middle].name, name);

		if (order == 0)
			return &catalog->tensors[catalog->aliases[middle].target];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return found;
}
