/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog of a layout: which ranks of a job hold which boxes of which tensors. Ranks that hold theirs in a regular
 * pattern are one record. The root, which is read first, names every tensor and has the digest of its list of boxes, so
 * that a list is read, checked and decoded only when it is needed. FORMAT.md has the bytes. Pure. (The public
 * ckpt_catalog is a store's list of steps.)
 */
#ifndef CKPT_FORMAT_CATALOG_H
#define CKPT_FORMAT_CATALOG_H

#include "base/buf.h"
#include "format/layout.h"

#define CKPT_CATALOG_MAX        (UINT64_C(1) << 30)
#define CKPT_CATALOG_NAMES_MAX  (UINT64_C(2) << 30)
#define CKPT_CATALOG_HEAD_BYTES 56
#define CKPT_CATALOG_LOOPS      3

/* Building a catalog. */

struct ckpt_catalog_builder;

/* Limits of its size. */
struct ckpt_catalog_limits {
	uint64_t file_bytes;  /* at most CKPT_CATALOG_MAX; 0: that */
	uint64_t names_bytes; /* of memory, approximately; 0: CKPT_CATALOG_NAMES_MAX */
};

/* `world` is 1 to CKPT_WORLD_MAX; `limits` NULL: the largest. -ENOMEM. */
int ckpt_catalog_builder_new(uint32_t world, const struct ckpt_catalog_limits *limits,
	struct ckpt_catalog_builder **ret_builder);
/*
 * Adds what a rank holds; in ascending order of ranks, each once. The layout is not kept. -ENOMEM; -E2BIG;
 * CKPT_EFORMAT: it contradicts an earlier rank about a name; the error names both. After a failure the builder can only
 * be freed.
 */
int ckpt_catalog_builder_add(struct ckpt_catalog_builder *builder, uint32_t rank,
	const struct ckpt_layout *layout, struct ckpt_error *err);
/*
 * Appends the file, whose name is the digest of its root. All ranks must have been added; nothing can be added
 * afterwards. -ENOMEM, -E2BIG.
 */
int ckpt_catalog_builder_finish(struct ckpt_catalog_builder *builder, struct ckpt_buf *out,
	struct ckpt_error *err, struct ckpt_digest *ret_digest);
/* NULL is ignored. */
void ckpt_catalog_builder_free(struct ckpt_catalog_builder *builder);

/* Reading a catalog. */

struct ckpt_catalog_tensor {
	const char *name;
	uint32_t dtype;
	uint32_t ndim;
	const int64_t *shape; /* of the complete tensor */
	uint64_t offset;      /* of its list, in the file */
	uint64_t bytes;
	struct ckpt_digest digest;
};

struct ckpt_catalog_alias {
	const char *name;
	uint32_t target; /* index of a tensor */
};

struct ckpt_layout_catalog {
	uint32_t world;
	struct ckpt_catalog_tensor *tensors; /* sorted by name */
	size_t tensor_count;
	struct ckpt_catalog_alias *aliases; /* sorted by name */
	size_t alias_count;
	uint64_t bytes; /* size of the file */
	struct ckpt_digest digest;
	char *texts;
	int64_t *dims;
};

/*
 * Reads the sizes of the root and of the file from its first CKPT_CATALOG_HEAD_BYTES. CKPT_EFORMAT, CKPT_EVERSION. Not
 * checked by a digest yet.
 */
int ckpt_layout_catalog_measure(const void *head, size_t length, const char *file,
	struct ckpt_error *err, uint64_t *ret_root_bytes, uint64_t *ret_bytes);
/*
 * Decodes the root. `named` is the digest in its name; NULL: only its own is checked. Uses less memory than four times
 * its length. CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, -ENOMEM.
 */
int ckpt_layout_catalog_decode(const void *root, size_t root_bytes, const struct ckpt_digest *named,
	const char *file, struct ckpt_error *err, struct ckpt_layout_catalog **ret_catalog);
/* NULL is ignored. */
void ckpt_layout_catalog_free(struct ckpt_layout_catalog *catalog);

/* The tensor of that name or alias; NULL: there is none. O(log n). */
const struct ckpt_catalog_tensor *ckpt_layout_catalog_find(
	const struct ckpt_layout_catalog *catalog, const char *name);

/* The list of a tensor. Its bytes have been checked, and must stay. */
struct ckpt_catalog_list {
	const struct ckpt_catalog_tensor *tensor;
	const unsigned char *data;
	uint64_t ranks; /* number of ranks that hold a box of it */
};

/* `data` is the tensor->bytes bytes at tensor->offset. Allocates nothing. CKPT_EINTEGRITY, CKPT_EFORMAT. */
int ckpt_catalog_open_list(const struct ckpt_layout_catalog *catalog,
	const struct ckpt_catalog_tensor *tensor, const void *data, const char *file,
	struct ckpt_error *err, struct ckpt_catalog_list *ret_list);

/* A box that a rank holds; valid until the next call. */
struct ckpt_catalog_box {
	uint32_t rank;
	const int64_t *start;
	const int64_t *shape;
};

/*
 * A record: a first box of a rank, repeated by its loops. Each combination of loop indexes gives the box of one rank.
 */
struct ckpt_catalog_run {
	uint32_t rank; /* of the first box, as its start is */
	uint32_t loops;
	uint64_t span; /* from its first to its last rank */
	int64_t start[CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
	struct {
		uint32_t count;
		uint32_t stride; /* added to the rank */
		int64_t delta[CKPT_NDIM_MAX];
		/* Sum over the inner loops: the range of starts relative to the first one. */
		int64_t low[CKPT_NDIM_MAX];
		int64_t high[CKPT_NDIM_MAX];
	} loop[CKPT_CATALOG_LOOPS]; /* innermost first */
};

/* Iterates over boxes, by ascending first rank of their records; within a record the innermost loop runs fastest. */
struct ckpt_catalog_walk {
	/* Private. */
	const struct ckpt_catalog_list *list;
	const unsigned char *next;
	uint64_t rank; /* lowest rank of the next record */
	bool all;
	bool open; /* `run` may have more boxes */
	int64_t low[CKPT_NDIM_MAX];
	int64_t high[CKPT_NDIM_MAX];
	struct ckpt_catalog_run run;
	uint32_t at[CKPT_CATALOG_LOOPS];
	uint32_t end[CKPT_CATALOG_LOOPS];
	int64_t base[CKPT_CATALOG_LOOPS + 1][CKPT_NDIM_MAX];
};

/*
 * Begins with the boxes that share an element with the wanted box, which is within the tensor; `start` NULL: all boxes,
 * also empty ones. The time depends on the records of the list and the boxes found.
 */
void ckpt_catalog_walk_begin(struct ckpt_catalog_walk *walk, const struct ckpt_catalog_list *list,
	const int64_t *start, const int64_t *shape);
/* False: there are no more. */
bool ckpt_catalog_walk_next(struct ckpt_catalog_walk *walk, struct ckpt_catalog_box *ret_box);

/* The box of a rank. False: it holds none. Searches the records, not the boxes. */
bool ckpt_catalog_box_of(const struct ckpt_catalog_list *list, uint32_t rank,
	int64_t ret_start[CKPT_NDIM_MAX], int64_t ret_shape[CKPT_NDIM_MAX]);

#endif
