/* SPDX-License-Identifier: Apache-2.0 */
/* File names in a store, and their parsers. Only these functions know them. */
#ifndef CKPT_FORMAT_NAMING_H
#define CKPT_FORMAT_NAMING_H

#include "base/digest.h"

#define CKPT_PATH_MAX       192 /* of every path below a store, including the NUL */
#define CKPT_ATTEMPT_CHARS  17  /* 16 lower-case hexadecimal digits and NUL */
#define CKPT_GENERATION_MAX 999999
#define CKPT_NAME_MARKER    "ckpt.json"
#define CKPT_NAME_GENS      "gens"

/* What a rank has in a step. */
enum ckpt_rank_file {
	CKPT_RANK_SHARD, /* a plain shard: .safetensors */
	CKPT_RANK_INDEX,
	CKPT_RANK_ENCODED, /* a shard that is stored encoded */
};

/* `out` has CKPT_PATH_MAX bytes. 1 <= generation <= CKPT_GENERATION_MAX, step <= CKPT_STEP_MAX. */
void ckpt_name_claim(char *out, uint64_t generation);               /* gens/000001.json */
void ckpt_name_generation(char *out, uint64_t generation);          /* g000001 */
void ckpt_name_step(char *out, uint64_t generation, uint64_t step); /* g000001/step-0000000100 */
void ckpt_name_manifest(char *out, uint64_t generation, uint64_t step);
void ckpt_name_quarantine(char *out, uint64_t generation, uint64_t step);
/* g000001/step-0000000100.tombstone: beside the directory, so that a listing of steps shows it */
void ckpt_name_tombstone(char *out, uint64_t generation, uint64_t step);
void ckpt_name_shard(
	char *out, uint64_t generation, uint64_t step, uint32_t rank, const char *attempt);
void ckpt_name_encoded(
	char *out, uint64_t generation, uint64_t step, uint32_t rank, const char *attempt);
void ckpt_name_index(
	char *out, uint64_t generation, uint64_t step, uint32_t rank, const char *attempt);
/* The one of these three that `file` says. */
void ckpt_name_rank_file(char *out, uint64_t generation, uint64_t step, uint32_t rank,
	enum ckpt_rank_file file, const char *attempt);
/* g000001/DIGEST.catalog */
void ckpt_name_catalog(char *out, uint64_t generation, const struct ckpt_digest *digest);
void ckpt_name_remote(
	char *out, uint64_t number); /* remote-0000000001.json; at most CKPT_STEP_MAX */
void ckpt_name_attempt(char out[CKPT_ATTEMPT_CHARS], uint64_t nonce);
bool ckpt_attempt_valid(const char *attempt);

/* Exact inverses for names of one component: false for anything else, such as temporary files. */
bool ckpt_parse_claim(const char *name, uint64_t *ret_generation);      /* 000001.json */
bool ckpt_parse_generation(const char *name, uint64_t *ret_generation); /* g000001 */
bool ckpt_parse_step(const char *name, uint64_t *ret_step);             /* step-0000000100 */
bool ckpt_parse_tombstone(const char *name, uint64_t *ret_step); /* step-0000000100.tombstone */
bool ckpt_parse_remote(const char *name, uint64_t *ret_number);  /* remote-0000000001.json */
bool ckpt_parse_catalog(const char *name, struct ckpt_digest *ret_digest);
/* rank-00007.ATTEMPT.safetensors, .encoded, .index. `ret_attempt` has CKPT_ATTEMPT_CHARS bytes. */
bool ckpt_parse_rank_file(
	const char *name, uint32_t *ret_rank, enum ckpt_rank_file *ret_file, char *ret_attempt);

#endif
