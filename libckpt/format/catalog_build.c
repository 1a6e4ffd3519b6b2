/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds a catalog, rank by rank. Of every tensor only the records that are not written yet are in memory, one per
 * level: boxes in a regular sequence are a record with one loop, such records one with two loops, and so on.
 */
#include <ckpt/version.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/catalog_run.h"
#include "format/dtype.h"
#include "format/manifest.h"

#define LEVELS    CKPT_CATALOG_LOOPS
#define SLOTS_MIN 64
#define LIST_MIN  256 /* initial size of a buffer */

/*
 * A pending record, and how many similar ones follow, as an array of words, because most tensors have few dimensions.
 * Followed by start, shape, delta (between records), and LEVELS loops of count, stride, delta.
 */
enum word { RANK, LOOPS, COUNT, STRIDE, DIMS };

/* A tensor or an alias. */
struct made {
	char *name;
	char *target;   /* of an alias; NULL: a tensor */
	uint64_t hash;  /* of the name */
	uint32_t first; /* first rank that has it */
	uint32_t dtype;
	uint32_t ndim;
	uint32_t number;  /* index after sorting */
	int64_t *shape;   /* of the complete tensor */
	int64_t *pending; /* LEVELS records; COUNT 0: none; and two spare ones */
	uint64_t next;    /* rank after the last one written */
	struct ckpt_buf list;
};

struct ckpt_catalog_builder {
	uint32_t world;
	uint32_t next;  /* lowest rank that may be added */
	uint32_t added; /* number of ranks */
	bool finished;
	struct made *made;
	size_t count;
	size_t room;
	uint32_t *slots; /* hash table of index in `made` + 1; a power of two */
	size_t slot_count;
	struct ckpt_catalog_limits limits;
	uint64_t bytes; /* of all lists so far */
	uint64_t names; /* of all directory entries so far */
	uint64_t held;  /* memory used for them, approximately */
};

int ckpt_catalog_builder_new(uint32_t world, const struct ckpt_catalog_limits *limits,
	struct ckpt_catalog_builder **ret_builder)
{
	struct ckpt_catalog_builder *b = ckpt_alloc(sizeof(*b));

	CKPT_ASSERT(world >= 1 && world <= CKPT_WORLD_MAX);
	if (!b)
		return -ENOMEM;
	b->world = world;
	b->limits = limits ? *limits : (struct ckpt_catalog_limits){0};
	if (!b->limits.file_bytes)
		b->limits.file_bytes = CKPT_CATALOG_MAX;
	if (!b->limits.names_bytes)
		b->limits.names_bytes = CKPT_CATALOG_NAMES_MAX;
	CKPT_ASSERT(b->limits.file_bytes <= CKPT_CATALOG_MAX);
	*ret_builder = b;
	return 0;
}

void ckpt_catalog_builder_free(struct ckpt_catalog_builder *builder)
{
	if (!builder)
		return;
	for (size_t i = 0; i < builder->count; i++) {
		ckpt_free(builder->made[i].name);
		ckpt_free(builder->made[i].target);
		ckpt_free(builder->made[i].shape);
		ckpt_free(builder->made[i].pending);
		ckpt_buf_free(&builder->made[i].list);
	}
	ckpt_free(builder->made);
	ckpt_free(builder->slots);
	ckpt_free(builder);
}

/* Records. */

static size_t loop_words(const struct made *m)
{
	return 2 + (size_t)m->ndim;
}

static size_t record_words(const struct made *m)
{
	return DIMS + 3 * (size_t)m->ndim + LEVELS * loop_words(m);
}

static int64_t *level_of(const struct made *m, size_t level)
{
	return m->pending + level * record_words(m);
}

static int64_t *start_of(int64_t *record)
{
	return record + DIMS;
}

static int64_t *shape_of(const struct made *m, int64_t *record)
{
	return record + DIMS + m->ndim;
}

static int64_t *delta_of(const struct made *m, int64_t *record)
{
	return record + DIMS + 2 * (size_t)m->ndim;
}

static int64_t *loop_of(const struct made *m, int64_t *record, size_t loop)
{
	return record + DIMS + 3 * (size_t)m->ndim + loop * loop_words(m);
}

/* Whether two records have equal shapes and loops; missing loops are zero. */
static bool alike(const struct made *m, int64_t *a, int64_t *b)
{
	size_t dims = m->ndim * sizeof(int64_t);

	return a[LOOPS] == b[LOOPS] && memcmp(shape_of(m, a), shape_of(m, b), dims) == 0 &&
	       memcmp(loop_of(m, a, 0), loop_of(m, b, 0),
		       LEVELS * loop_words(m) * sizeof(int64_t)) == 0;
}

/* Extends the level by the record. False: it does not fit, and nothing was changed. */
static bool extend(const struct made *m, int64_t *level, int64_t *record)
{
	const int64_t *from = start_of(level);
	const int64_t *to = start_of(record);
	int64_t *delta = delta_of(m, level);

	if (!alike(m, level, record))
		return false;
	if (level[COUNT] == 1) {
		level[STRIDE] = record[RANK] - level[RANK];
		for (uint32_t d = 0; d < m->ndim; d++)
			delta[d] = to[d] - from[d];
		level[COUNT] = 2;
		return true;
	}
	if (record[RANK] - level[RANK] != level[STRIDE] * level[COUNT])
		return false;
	for (uint32_t d = 0; d < m->ndim; d++) {
		int64_t move;

		if (__builtin_mul_overflow(delta[d], level[COUNT], &move) ||
			to[d] - from[d] != move)
			return false;
	}
	level[COUNT]++;
	return true;
}

/* Turns the records of a level into one record. */
static void close_level(const struct made *m, int64_t *level)
{
	if (level[COUNT] > 1) {
		int64_t *loop = loop_of(m, level, (size_t)level[LOOPS]);

		loop[0] = level[COUNT];
		loop[1] = level[STRIDE];
		memcpy(loop + 2, delta_of(m, level), m->ndim * sizeof(int64_t));
		level[LOOPS]++;
	}
	level[COUNT] = 1;
	level[STRIDE] = 0;
	memset(delta_of(m, level), 0, m->ndim * sizeof(int64_t));
}

static void write_record(struct made *m, int64_t *record)
{
	struct ckpt_buf *out = &m->list;
	uint64_t last = (uint64_t)record[RANK];

	ckpt_put_varint(out, ((uint64_t)record[RANK] - m->next) << CKPT_CATALOG_LOOP_BITS |
				     (uint64_t)record[LOOPS]);
	for (size_t d = 0; d < 2 * (size_t)m->ndim; d++)
		ckpt_put_varint(out, (uint64_t)start_of(record)[d]);
	for (size_t k = 0; k < (size_t)record[LOOPS]; k++) {
		const int64_t *loop = loop_of(m, record, k);

		ckpt_put_varint(out, (uint64_t)loop[0]);
		ckpt_put_varint(out, (uint64_t)loop[1]);
		for (uint32_t d = 0; d < m->ndim; d++)
			ckpt_put_zigzag(out, loop[2 + d]);
		last += (uint64_t)(loop[0] - 1) * (uint64_t)loop[1];
	}
	m->next = last + 1;
}

/* Passes the record in the first spare place to the levels from this one on. */
static void hand_up(struct made *m, size_t level)
{
	size_t bytes = record_words(m) * sizeof(int64_t);
	int64_t *record = level_of(m, LEVELS);
	int64_t *spare = level_of(m, LEVELS + 1);

	for (; level < LEVELS; level++) {
		int64_t *own = level_of(m, level);

		if (own[COUNT] == 0) {
			memcpy(own, record, bytes);
			return;
		}
		if (extend(m, own, record))
			return;
		close_level(m, own);
		memcpy(spare, own, bytes);
		memcpy(own, record, bytes);
		memcpy(record, spare, bytes);
	}
	write_record(m, record);
}

/* Writes pending records, the highest level first, because its ranks are the lowest. */
static void flush(struct made *m)
{
	for (size_t level = 0; level < LEVELS; level++) {
		int64_t *own = level_of(m, level);

		if (own[COUNT] == 0)
			continue;
		close_level(m, own);
		memcpy(level_of(m, LEVELS), own, record_words(m) * sizeof(int64_t));
		own[COUNT] = 0;
		hand_up(m, level + 1);
	}
}

/* Names. */

static void put_slot(struct ckpt_catalog_builder *b, size_t number)
{
	size_t mask = b->slot_count - 1;
	size_t at = b->made[number].hash & mask;

	while (b->slots[at])
		at = (at + 1) & mask;
	b->slots[at] = (uint32_t)(number + 1);
}

static struct made *find(const struct ckpt_catalog_builder *b, const char *name, uint64_t hash)
{
	size_t mask = b->slot_count - 1;

	for (size_t at = hash & mask; b->slot_count > 0 && b->slots[at]; at = (at + 1) & mask) {
		struct made *m = &b->made[b->slots[at] - 1];

		if (m->hash == hash && strcmp(m->name, name) == 0)
			return m;
	}
	return NULL;
}

/* Makes space for one more name. At most half of the slots are used. */
static int grow_names(struct ckpt_catalog_builder *b)
{
	if (b->count == b->room) {
		size_t room = b->room ? b->room * 2 : SLOTS_MIN;
		struct made *made = ckpt_realloc_array(b->made, room, sizeof(*made));

		if (!made)
			return -ENOMEM;
		b->made = made;
		b->room = room;
	}
	if (b->count + 1 > b->slot_count / 2) {
		size_t slots = b->room * 2;
		uint32_t *fresh = ckpt_alloc_array(slots, sizeof(*fresh));

		if (!fresh)
			return -ENOMEM;
		ckpt_free(b->slots);
		b->slots = fresh;
		b->slot_count = slots;
		for (size_t i = 0; i < b->count; i++)
			put_slot(b, i);
	}
	return 0;
}

static const int64_t *whole_of(const struct ckpt_entry *e)
{
	return e->global_shape ? e->global_shape : e->shape;
}

/* Counts what put_entry() will write, and the memory until then. */
static void count_name(struct ckpt_catalog_builder *b, const struct made *m)
{
	size_t length = strlen(m->name);

	b->names += 2 + length + (m->target ? 4 : 2 + 8 * (uint64_t)m->ndim + 8 + CKPT_DIGEST_SIZE);
	b->held += sizeof(*m) + length + LIST_MIN;
	if (!m->target)
		b->held += record_words(m) * (LEVELS + 2) * sizeof(int64_t);
}

/* Adds a new name. `entry` NULL: an alias of `target`. NULL: out of memory. */
static struct made *add_name(struct ckpt_catalog_builder *b, const char *name, uint64_t hash,
	const struct ckpt_entry *entry, const char *target)
{
	if (grow_names(b) < 0)
		return NULL;
	struct made *m = &b->made[b->count];
	*m = (struct made){.hash = hash, .first = b->next};
	m->name = ckpt_strdup(name);
	if (entry) {
		m->dtype = entry->dtype;
		m->ndim = entry->ndim;
		m->shape = ckpt_memdup(whole_of(entry), entry->ndim * sizeof(int64_t));
		m->pending = ckpt_alloc_array(record_words(m) * (LEVELS + 2), sizeof(int64_t));
	} else {
		m->target = ckpt_strdup(target);
	}
	b->count++;
	if (!m->name || (entry ? !m->shape || !m->pending : !m->target))
		return NULL;
	put_slot(b, b->count - 1);
	count_name(b, m);
	return m;
}

/* "F32 [8, 8]", "another name of 'w'" */
static void put_text(struct ckpt_buf *out, const struct made *m, const struct ckpt_entry *entry,
	const char *target)
{
	const int64_t *shape = entry ? whole_of(entry) : m->shape;
	uint32_t ndim = entry ? entry->ndim : m->ndim;

	if (target) {
		ckpt_buf_printf(out, "another name of '%.200s'", target);
		return;
	}
	ckpt_buf_printf(out, "%s [", ckpt_dtype_name(entry ? entry->dtype : m->dtype));
	for (uint32_t i = 0; i < ndim; i++)
		ckpt_buf_printf(out, i ? ", %lld" : "%lld", (long long)shape[i]);
	ckpt_buf_puts(out, "]");
}

static int fail_apart(const struct ckpt_catalog_builder *b, const struct made *m,
	const struct ckpt_entry *entry, const char *target, struct ckpt_error *err)
{
	struct ckpt_buf text = {0};

	put_text(&text, m, NULL, m->target);
	ckpt_buf_printf(&text, " says rank %u, ", m->first);
	put_text(&text, m, entry, target);
	ckpt_buf_printf(&text,
		" says rank %u; one name is one tensor of the whole job, and what is each rank's "
		"own needs a name of its own",
		b->next);
	int r = ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.tensor = m->name},
		"the ranks do not agree about '%.200s': %.*s", m->name,
		text.failed ? 0 : (int)text.len, text.failed ? "" : text.data);
	ckpt_buf_free(&text);
	return r;
}

static int fail_memory(struct ckpt_error *err)
{
	return ckpt_fail(err, -ENOMEM, "out of memory for the catalog of all ranks");
}

static int fail_size(const struct ckpt_catalog_builder *b, struct ckpt_error *err)
{
	if (b->held > b->limits.names_bytes)
		return ckpt_fail(err, -E2BIG,
			"the names of all ranks take more than %llu bytes of memory to put "
			"together: give what ranks share one name, and save fewer tensors",
			(unsigned long long)b->limits.names_bytes);
	return ckpt_fail(err, -E2BIG,
		"the catalog of all ranks has more than the %llu bytes that are read back: "
		"give what ranks share one name, and save fewer tensors",
		(unsigned long long)b->limits.file_bytes);
}

static bool is_too_much(const struct ckpt_catalog_builder *b)
{
	return b->bytes + b->names > b->limits.file_bytes || b->held > b->limits.names_bytes;
}

static int add_entry(
	struct ckpt_catalog_builder *b, const struct ckpt_entry *e, struct ckpt_error *err)
{
	uint64_t hash = ckpt_hash64(e->name, strlen(e->name), 0);
	size_t dims = e->ndim * sizeof(int64_t);
	struct made *m = find(b, e->name, hash);

	if (m && (m->target || m->dtype != e->dtype || m->ndim != e->ndim ||
			 memcmp(m->shape, whole_of(e), dims) != 0))
		return fail_apart(b, m, e, NULL, err);
	if (!m)
		m = add_name(b, e->name, hash, e, NULL);
	if (!m)
		return fail_memory(err);
	int64_t *record = level_of(m, LEVELS);
	size_t before = m->list.len;
	memset(record, 0, record_words(m) * sizeof(*record));
	record[RANK] = b->next;
	record[COUNT] = 1;
	if (e->global_start)
		memcpy(start_of(record), e->global_start, dims);
	memcpy(shape_of(m, record), e->shape, dims);
	hand_up(m, 0);
	if (m->list.failed)
		return fail_memory(err);
	b->bytes += m->list.len - before;
	return is_too_much(b) ? fail_size(b, err) : 0;
}

static int add_alias(
	struct ckpt_catalog_builder *b, const struct ckpt_alias *a, struct ckpt_error *err)
{
	uint64_t hash = ckpt_hash64(a->name, strlen(a->name), 0);
	const struct made *m = find(b, a->name, hash);

	if (m && (!m->target || strcmp(m->target, a->target) != 0))
		return fail_apart(b, m, NULL, a->target, err);
	if (!m && !add_name(b, a->name, hash, NULL, a->target))
		return fail_memory(err);
	return is_too_much(b) ? fail_size(b, err) : 0;
}

int ckpt_catalog_builder_add(struct ckpt_catalog_builder *builder, uint32_t rank,
	const struct ckpt_layout *layout, struct ckpt_error *err)
{
	int r = 0;

	CKPT_ASSERT(rank >= builder->next && rank < builder->world && !builder->finished);
	builder->next = rank;
	for (size_t i = 0; r == 0 && i < layout->entry_count; i++)
		r = add_entry(builder, &layout->entries[i], err);
	for (size_t i = 0; r == 0 && i < layout->alias_count; i++)
		r = add_alias(builder, &layout->aliases[i], err);
	builder->next++;
	builder->added++;
	return r;
}

/* The file. */

/* Tensors before aliases, by name. */
static int made_order(const void *a, const void *b)
{
	const struct made *x = *(const struct made *const *)a;
	const struct made *y = *(const struct made *const *)b;

	if (!x->target != !y->target)
		return x->target ? 1 : -1;
	return strcmp(x->name, y->name);
}

static void put_le16(struct ckpt_buf *out, size_t value)
{
	unsigned char bytes[2] = {(unsigned char)value, (unsigned char)(value >> 8)};

	ckpt_buf_put(out, bytes, sizeof(bytes));
}

static void put_entry(
	struct ckpt_buf *out, const struct ckpt_catalog_builder *b, const struct made *m)
{
	size_t length = strlen(m->name);
	unsigned char kind[2] = {(unsigned char)m->dtype, (unsigned char)m->ndim};

	put_le16(out, length);
	if (m->target) {
		uint64_t hash = ckpt_hash64(m->target, strlen(m->target), 0);

		/* The layout has checked that its rank holds the target. */
		ckpt_buf_put_le32(out, find(b, m->target, hash)->number);
		ckpt_buf_put(out, m->name, length);
		return;
	}
	struct ckpt_digest digest = ckpt_digest_of(m->list.data, m->list.len);
	ckpt_buf_put(out, kind, sizeof(kind));
	ckpt_buf_put(out, m->name, length);
	for (uint32_t i = 0; i < m->ndim; i++)
		ckpt_buf_put_le64(out, (uint64_t)m->shape[i]);
	ckpt_buf_put_le64(out, m->list.len);
	ckpt_buf_put(out, digest.bytes, sizeof(digest.bytes));
}

static void put_head(struct ckpt_buf *out, const struct ckpt_catalog_builder *b, size_t tensors,
	uint64_t directory)
{
	ckpt_buf_put(out, CKPT_CATALOG_MAGIC, CKPT_CATALOG_MAGIC_BYTES);
	ckpt_buf_put_le32(out, CKPT_FORMAT_MAJOR);
	ckpt_buf_put_le32(out, CKPT_FORMAT_MINOR);
	ckpt_buf_put_le32(out, CKPT_CATALOG_HEAD_BYTES);
	ckpt_buf_put_le32(out, b->world);
	ckpt_buf_put_le64(out, tensors);
	ckpt_buf_put_le64(out, b->count - tensors);
	ckpt_buf_put_le64(out, directory);
	ckpt_buf_put_le64(out, b->bytes);
}

/* Sorted. NULL: out of memory. */
static struct made **sort_names(struct ckpt_catalog_builder *b, size_t *ret_tensors)
{
	struct made **order = ckpt_alloc_array(b->count, sizeof(struct made *));

	*ret_tensors = 0;
	b->bytes = 0;
	for (size_t i = 0; order && i < b->count; i++) {
		struct made *m = &b->made[i];

		order[i] = m;
		*ret_tensors += !m->target;
		if (!m->target)
			flush(m);
		if (m->list.failed) {
			ckpt_free(order);
			return NULL;
		}
		b->bytes += m->list.len;
	}
	if (order && b->count > 0)
		qsort(order, b->count, sizeof(struct made *), made_order);
	for (size_t i = 0; order && i < b->count; i++)
		order[i]->number = (uint32_t)i;
	return order;
}

int ckpt_catalog_builder_finish(struct ckpt_catalog_builder *builder, struct ckpt_buf *out,
	struct ckpt_error *err, struct ckpt_digest *ret_digest)
{
	struct ckpt_buf directory = {0};
	size_t begin = out->len;
	size_t tensors = 0;

	CKPT_ASSERT(builder->added == builder->world && !builder->finished);
	builder->finished = true;
	struct made **order = sort_names(builder, &tensors);
	if (!order)
		return fail_memory(err);
	for (size_t i = 0; i < builder->count; i++)
		put_entry(&directory, builder, order[i]);
	put_head(out, builder, tensors, directory.len);
	ckpt_buf_put(out, directory.data, directory.len);
	out->failed = out->failed || directory.failed;
	ckpt_buf_free(&directory);
	if (!out->failed) {
		*ret_digest = ckpt_digest_of(out->data + begin, out->len - begin);
		ckpt_buf_put(out, ret_digest->bytes, sizeof(ret_digest->bytes));
	}
	for (size_t i = 0; i < tensors; i++)
		ckpt_buf_put(out, order[i]->list.data, order[i]->list.len);
	ckpt_free(order);
	if (out->failed)
		return fail_memory(err);
	return out->len - begin > builder->limits.file_bytes ? fail_size(builder, err) : 0;
}
