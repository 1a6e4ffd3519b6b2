/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog of a layout: which ranks hold which boxes of which tensors, of a whole world. Ranks that
 * hold theirs in a regular way are one record. What is read first (the root) names every tensor and has the
 * digest of its list of boxes, so that a list is read, checked and decoded only when it is asked for.
 * FORMAT.md has the bytes. Pure. (What the interface calls ckpt_catalog is a store's list of steps.)
 */
#ifndef CKPT_FORMAT_CATALOG_H
#define CKPT_FORMAT_CATALOG_H

#include "base/buf.h"
#include "format/layout.h"

#define CKPT_CATALOG_MAX        (UINT64_C(1) << 30)
#define CKPT_CATALOG_NAMES_MAX  (UINT64_C(2) << 30)
#define CKPT_CATALOG_HEAD_BYTES 56
#define CKPT_CATALOG_LOOPS      3

/* Putting one together. */

struct ckpt_catalog_builder;

/* How much it may come to. */
struct ckpt_catalog_limits {
	uint64_t file_bytes;  /* up to CKPT_CATALOG_MAX; 0: that */
	uint64_t names_bytes; /* of memory, about; 0: CKPT_CATALOG_NAMES_MAX */
};

/* `world` is 1 to CKPT_WORLD_MAX; `limits` NULL: the largest. -ENOMEM. */
int ckpt_catalog_builder_new(uint32_t world, const struct ckpt_catalog_limits *limits,
	struct ckpt_catalog_builder **ret_builder);
/*
 * What a rank holds; in ascending order, no rank twice. The layout is not kept. -ENOMEM; -E2BIG;
 * CKPT_EFORMAT: it does not agree with an earlier rank about a name, both named. After a failure nothing
 * but free may follow.
 */
int ckpt_catalog_builder_add(struct ckpt_catalog_builder *builder, uint32_t rank,
	const struct ckpt_layout *layout, struct ckpt_error *err);
/*
 * Appends the file, whose name is the digest of its root. Every rank must have been added; nothing can be
 * any more. -ENOMEM, -E2BIG.
 */
int ckpt_catalog_builder_finish(struct ckpt_catalog_builder *builder, struct ckpt_buf *out,
	struct ckpt_error *err, struct ckpt_digest *ret_digest);
/* NULL is ignored. */
void ckpt_catalog_builder_free(struct ckpt_catalog_builder *builder);

/* Reading one. */

struct ckpt_catalog_tensor {
	const char *name;
	uint32_t dtype;
	uint32_t ndim;
	const int64_t *shape; /* of the whole */
	uint64_t offset;      /* of its list, in the file */
	uint64_t bytes;
	struct ckpt_digest digest;
};

struct ckpt_catalog_alias {
	const char *name;
	uint32_t target; /* number of a tensor */
};

struct ckpt_layout_catalog {
	uint32_t world;
	struct ckpt_catalog_tensor *tensors; /* by name */
	size_t tensor_count;
	struct ckpt_catalog_alias *aliases; /* by name */
	size_t alias_count;
	uint64_t bytes; /* of the whole file */
	struct ckpt_digest digest;
	char *texts;
	int64_t *dims;
};

/*
 * From the first CKPT_CATALOG_HEAD_BYTES of the file: how long its root is, and how long all of it.
 * CKPT_EFORMAT, CKPT_EVERSION. Not compared with any digest yet.
 */
int ckpt_layout_catalog_measure(const void *head, size_t length, const char *file,
	struct ckpt_error *err, uint64_t *ret_root_bytes, uint64_t *ret_bytes);
/*
 * Reads the root. `named` is the digest that it must have; NULL: only its own. What is taken stays below
 * four times its length. CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, -ENOMEM.
 */
int ckpt_layout_catalog_decode(const void *root, size_t root_bytes, const struct ckpt_digest *named,
	const char *file, struct ckpt_error *err, struct ckpt_layout_catalog **ret_catalog);
/* NULL is ignored. */
void ckpt_layout_catalog_free(struct ckpt_layout_catalog *catalog);

/* The tensor of that name or alias; NULL: there is none. O(log n). */
const struct ckpt_catalog_tensor *ckpt_layout_catalog_find(
	const struct ckpt_layout_catalog *catalog, const char *name);

/* Who holds what of a tensor. Its bytes have been checked, and must stay. */
struct ckpt_catalog_list {
	const struct ckpt_catalog_tensor *tensor;
	const unsigned char *data;
	uint64_t ranks; /* that hold a box of it */
};

/* `data` is the tensor->bytes bytes at tensor->offset. Takes no memory. CKPT_EINTEGRITY, CKPT_EFORMAT. */
int ckpt_catalog_open_list(const struct ckpt_layout_catalog *catalog,
	const struct ckpt_catalog_tensor *tensor, const void *data, const char *file,
	struct ckpt_error *err, struct ckpt_catalog_list *ret_list);

/* A box that a rank holds; valid until the next one is asked for. */
struct ckpt_catalog_box {
	uint32_t rank;
	const int64_t *start;
	const int64_t *shape;
};

/* What rank `rank` holds of it is box [i] of a record: every index of its loops gives one. */
struct ckpt_catalog_run {
	uint32_t rank; /* of the first box, and its start */
	uint32_t loops;
	uint64_t span; /* from its first rank to its last */
	int64_t start[CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
	struct {
		uint32_t count;
		uint32_t stride; /* of the rank */
		int64_t delta[CKPT_NDIM_MAX];
		/* Of the loops within it, together: how far their starts are from the first one's. */
		int64_t low[CKPT_NDIM_MAX];
		int64_t high[CKPT_NDIM_MAX];
	} loop[CKPT_CATALOG_LOOPS]; /* innermost first */
};

/* Goes over boxes by ascending rank of their records; of one record the innermost loop turns fastest. */
struct ckpt_catalog_walk {
	/* Its own. */
	const struct ckpt_catalog_list *list;
	const unsigned char *next;
	uint64_t rank; /* least that the next record may begin with */
	bool all;
	bool open; /* `run` may have more */
	int64_t low[CKPT_NDIM_MAX];
	int64_t high[CKPT_NDIM_MAX];
	struct ckpt_catalog_run run;
	uint32_t at[CKPT_CATALOG_LOOPS];
	uint32_t end[CKPT_CATALOG_LOOPS];
	int64_t base[CKPT_CATALOG_LOOPS + 1][CKPT_NDIM_MAX];
};

/*
 * The boxes that share an element with the wanted one, which lies within the whole; `start` NULL: all boxes,
 * empty ones too. The time it takes goes with the records of the list and the boxes that are found.
 */
void ckpt_catalog_walk_begin(struct ckpt_catalog_walk *walk, const struct ckpt_catalog_list *list,
	const int64_t *start, const int64_t *shape);
/* False: there is no further one. */
bool ckpt_catalog_walk_next(struct ckpt_catalog_walk *walk, struct ckpt_catalog_box *ret_box);

/* What a rank holds of it. False: nothing. Goes over the records, not over the boxes. */
bool ckpt_catalog_box_of(const struct ckpt_catalog_list *list, uint32_t rank,
	int64_t ret_start[CKPT_NDIM_MAX], int64_t ret_shape[CKPT_NDIM_MAX]);

#endif
