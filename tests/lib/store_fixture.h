/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores written by hand: plain files, made with the functions of format/ and nothing else of the
 * library, so that reading can be tested without saving, and with bytes that no save would write.
 */
#ifndef CKPT_TESTS_STORE_FIXTURE_H
#define CKPT_TESTS_STORE_FIXTURE_H

#include <ckpt/types.h>
#include "format/manifest.h"
#include "format/naming.h"
#include "base/buf.h"

#define FIXTURE_RUN "0123456789abcdef0123456789abcdef"

/* What one rank writes. */
struct fixture_rank {
	const struct ckpt_tensor *tensors; /* contiguous, with data; boxes or wholes */
	size_t count;
	const char *alias; /* of tensors[0]; NULL: none */
	const char *meta;  /* NULL: none */
};

/*
 * A step to write. Every rank gets the same tensors, whose bytes a rank above 0 has turned over, unless
 * `ranks` says what each writes.
 */
struct fixture_step {
	const char *dir;
	uint64_t generation;
	uint64_t step;
	const struct ckpt_tensor *tensors; /* contiguous, with data */
	size_t count;
	const char *alias; /* of tensors[0]; NULL: none */
	const char *meta;  /* NULL: none */
	uint64_t chunk_bytes;
	uint32_t world;
	const struct fixture_rank *ranks; /* `world` of them; NULL: see above */
	bool catalog;                     /* its manifest names one */
	bool shrunk;                      /* where every tensor is a row shorter */
	/* And what a rank holds is said to be with the one that comes so many later; `world`: only the last
	 * one is lied about, and holds what the first does. */
	uint32_t lie;
	const char *node; /* of all ranks; NULL: each is on one of its own */
};

/* ckpt.json and gens/, of run CRAFT_RUN or another. The directory is there. */
void fixture_store(const char *dir, const char *run_id);
/* The same of one node of several, each of which has a store of its own. */
void fixture_node_store(const char *dir, const char *run_id);
void fixture_claim(const char *dir, const char *run_id, uint64_t generation,
	uint64_t parent_generation, uint64_t parent_step);
/* Of a job of so many ranks, without a parent. */
void fixture_claim_job(const char *dir, const char *run_id, uint64_t generation, uint32_t world);
void fixture_commit(const struct fixture_step *step);
/* The tensor "w": so many numbers in one dimension, no two neighbours alike. There is one, which stays. */
const struct ckpt_tensor *fixture_floats(size_t count);
const struct ckpt_tensor *fixture_bytes(size_t count);
/* A store of CRAFT_RUN with its first claim. */
void fixture_begin(const char *dir);
/* Its step 10, of one rank and one tensor, in chunks of 16 KiB; to be committed. */
struct fixture_step fixture_one(const char *dir, const struct ckpt_tensor *tensor);
/* A manifest that says why the step was aborted. */
void fixture_abort(const char *dir, uint64_t generation, uint64_t step);

/* Seals an object that lacks its closing brace, and writes it; `buf` is free afterwards. */
void fixture_seal(struct ckpt_buf *buf, const char *path);
/* Reads the manifest of a step, has it changed, and writes it anew. */
void fixture_edit(const struct fixture_step *step, void (*edit)(struct ckpt_manifest *manifest));

/* Paths of its files. The next eight calls leave the text alone. */
/* The rank's file as it is there: where the one of the fixture is gone, that of another attempt. */
const char *fixture_shard(const struct fixture_step *step, uint32_t rank);
const char *fixture_index(const struct fixture_step *step, uint32_t rank);
const char *fixture_manifest(const struct fixture_step *step);
const char *fixture_quarantine(const struct fixture_step *step);
/* The name below the store, as errors give it. */
const char *fixture_shard_name(const struct fixture_step *step, uint32_t rank);
const char *fixture_index_name(const struct fixture_step *step, uint32_t rank);

#endif
