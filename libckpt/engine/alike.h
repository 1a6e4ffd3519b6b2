/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks hold alike, and one of them saves for all: digests by which they prove that it is alike. A
 * group is the ranks that hold the same tensors. Each rank tells rank 0 sums of digests, of each of its groups; where
 * two of them differ, the same sums say which tensors do.
 *
 * Until a commit has proved a layout, a digest is of all bytes (of a GPU: of lines of every 256 KiB). From then on it
 * is of the lines of samples, at other places at each step, and the same places on all ranks.
 */
#ifndef CKPT_ENGINE_ALIKE_H
#define CKPT_ENGINE_ALIKE_H

#include <ckpt/error.h>
#include "device/device.h"

struct ckpt_tensor;

/* Groups of one rank. */
#define CKPT_ALIKE_GROUPS 16
/* Levels: of the tensors of a level half are in the next one. */
#define CKPT_ALIKE_LEVELS 12
/* So many times, each with other halves: where one does not tell a name, another one does. */
#define CKPT_ALIKE_TIMES  4
/* What a rank tells, as text, with the final NUL. */
#define CKPT_ALIKE_TEXT   1024

/* Of one group. Sums of digests, and of digests each times the hash of its tensor's name; modulo 2^64 and 2^32. */
struct ckpt_alike_sums {
	uint64_t group;
	uint64_t sum; /* of all tensors */
	struct ckpt_alike_pair {
		uint32_t sum;
		uint32_t weighed;
	} pairs[CKPT_ALIKE_TIMES * CKPT_ALIKE_LEVELS];
	uint32_t told; /* how many of these pairs: 1, or all of some times */
};

/* How a digest was made. */
enum ckpt_alike_mode {
	CKPT_ALIKE_NONE = 0, /* there is none, so that nothing is compared */
	CKPT_ALIKE_SAMPLES = 's',
	CKPT_ALIKE_FULL = 'f',
};

/* A tensor by name. */
struct ckpt_alike_name {
	uint64_t hash; /* of the name, its type and its shape */
	uint64_t group;
	const char *name;
};

/* Tensors of a GPU, whose samples come later. */
struct ckpt_alike_late {
	uint64_t hash;
	uint32_t place; /* of its group */
	size_t first;   /* segment */
	size_t count;
};

/* Tensors as they were given: borrowed until they are digested. */
struct ckpt_alike_given {
	uint64_t group;
	const struct ckpt_tensor *tensors;
	void *copies; /* of them, if they had to be made */
	size_t count;
};

/* Of one save. Zero is empty. */
struct ckpt_alike {
	struct ckpt_alike_given *given;
	size_t given_count;
	enum ckpt_alike_mode mode;
	uint64_t fingerprint; /* of names, types and shapes; never 0 */
	struct ckpt_alike_sums sums[CKPT_ALIKE_GROUPS];
	size_t group_count;
	struct ckpt_alike_name *names; /* NULL: they are not kept */
	size_t name_count;
	char *words; /* of the names */
	/* Of GPUs. */
	struct ckpt_segment *segments;
	size_t segment_count;
	struct ckpt_alike_late *late;
	size_t late_count;
	uint64_t devices; /* a mask of those that the segments are on */
};

/* The array is borrowed until ckpt_alike_take(); `copies`, or NULL, is freed. -E2BIG: too many groups. -ENOMEM. */
int ckpt_alike_give(struct ckpt_alike *alike, uint64_t group, const struct ckpt_tensor *tensors,
	size_t count, void *copies, struct ckpt_error *err);
/* Of what was given: fingerprint and devices. */
void ckpt_alike_look(struct ckpt_alike *alike);
/*
 * Digests what the CPU can read, now, and makes the segments of the rest, whose shapes and strides must stay where
 * they are. `seed`: the same on all ranks. `names`: they are kept, as copies. -ENOMEM.
 */
int ckpt_alike_take(struct ckpt_alike *alike, enum ckpt_alike_mode mode, uint64_t seed, bool names);
/* The samples of the segments are there. */
void ckpt_alike_add_late(struct ckpt_alike *alike);
void ckpt_alike_clear(struct ckpt_alike *alike);
/* In how many levels a tensor is beside the first, at that time. */
uint32_t ckpt_alike_level(uint64_t hash, uint32_t time);

/* As text: "" if there is nothing to tell. */
void ckpt_alike_encode(const struct ckpt_alike *alike, char out[CKPT_ALIKE_TEXT]);

/* Rank 0: what all ranks have told. Zero is empty. */
struct ckpt_alike_told {
	struct ckpt_alike_entry {
		struct ckpt_alike_sums sums;
		uint32_t rank;
	} * entries;
	size_t count;
	size_t room;
	enum ckpt_alike_mode mode; /* of all so far */
	bool mixed;                /* they are not of one mode: nothing is compared */
};

/* CKPT_EFORMAT, worded with `key`; -ENOMEM. */
int ckpt_alike_hear(struct ckpt_alike_told *told, uint32_t rank, const char *text, const char *key,
	struct ckpt_error *err);
void ckpt_alike_forget(struct ckpt_alike_told *told);

#define CKPT_ALIKE_NAMED 3
#define CKPT_ALIKE_RANKS 8

/* How ranks of one group differ. */
struct ckpt_alike_finding {
	size_t groups;  /* that differ; 0: all is well */
	uint32_t ranks; /* of the first of them */
	uint32_t count; /* that differ from most, or from the lowest where no more are alike */
	uint32_t odd[CKPT_ALIKE_RANKS]; /* the first of these */
	uint32_t other;                 /* a rank that they differ from */
	bool minority;                  /* more ranks are alike than there are of any other kind */
	size_t tensors; /* that differ between `other` and the first of them; about, if not `exact` */
	bool exact;
	const char *names[CKPT_ALIKE_NAMED]; /* some of them */
	size_t name_count;
};

/* Sorts what was told. `own`: rank 0's, with names. */
struct ckpt_alike_finding ckpt_alike_compare(
	struct ckpt_alike_told *told, const struct ckpt_alike *own);
/* "ranks 1 and 3 (of 8) and rank 0 hold different bytes of ...": without what to do. */
void ckpt_alike_word(const struct ckpt_alike_finding *finding, char *out, size_t size);

#endif
