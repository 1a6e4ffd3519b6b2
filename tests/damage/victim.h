/* SPDX-License-Identifier: Apache-2.0 */
/* A store of two steps that is kept in memory too: what every file held, and what every tensor was. */
#ifndef CKPT_TESTS_VICTIM_H
#define CKPT_TESTS_VICTIM_H

#include <ckpt/ckpt.h>
#include <stdbool.h>

#define VICTIM_FILES   8
#define VICTIM_STEPS   2
#define VICTIM_TENSORS 64
#define VICTIM_CHUNKS  1024

enum victim_kind { VICTIM_MARKER, VICTIM_CLAIM, VICTIM_MANIFEST, VICTIM_INDEX, VICTIM_SHARD };

struct victim_file {
	char path[128]; /* below the store */
	enum victim_kind kind;
	unsigned step; /* 0: of the store */
	size_t size;
	unsigned char *bytes;
	/* What it holds now. */
	bool gone;
	size_t now_size;
	unsigned char *now;
	size_t room;
};

struct victim_tensor {
	char name[48];
	uint32_t dtype;
	int64_t count;
	size_t bytes;
	uint64_t offset;
	unsigned char *want[VICTIM_STEPS + 1]; /* by step */
	unsigned char *back;
};

/* A piece of the shard that has a digest of its own, by section 7 of FORMAT.md. */
struct victim_chunk {
	uint64_t offset;
	uint64_t length;
	unsigned first; /* tensor; VICTIM_TENSORS: the header */
	bool shared;
};

struct victim {
	char *dir;
	unsigned files;
	struct victim_file file[VICTIM_FILES];
	unsigned tensors;
	struct victim_tensor tensor[VICTIM_TENSORS]; /* as they lie in the shard */
	bool alias;                                  /* the first tensor has a second name */
	uint64_t header_bytes;
	uint64_t chunk_bytes;
	unsigned chunks;
	struct victim_chunk chunk[VICTIM_CHUNKS];
};

/* Prints what happened in which damage, and ends the program. */
void victim_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

struct ckpt_engine *victim_engine(const struct victim *victim, uint32_t flags);
/* Makes the store: a handful of small tensors, or dozens that fill many chunks and blocks. */
void victim_make(struct victim *victim, bool large, uint64_t seed);
/* Saves the tensors of `step` as step `as`. */
int victim_save(
	const struct victim *victim, struct ckpt_engine *engine, unsigned step, uint64_t as);
void victim_free(struct victim *victim);

/* Puts `size` bytes in the place of a file; the pointer may be that of its own bytes. */
void victim_spoil(struct victim *victim, unsigned file, const void *bytes, size_t size);
/* Turns over bits of one byte. */
void victim_flip(struct victim *victim, unsigned file, size_t offset, unsigned char mask);
void victim_unlink(struct victim *victim, unsigned file);
bool victim_differs(const struct victim_file *file);
/* Gives a file back what it held. */
void victim_repair(struct victim *victim, unsigned file);
/* Removes all that the store holds and makes it anew, byte for byte. */
void victim_reset(struct victim *victim);

#endif
