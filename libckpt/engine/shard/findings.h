/* SPDX-License-Identifier: Apache-2.0 */
/* What a verification has found: one for each thing that is wrong, each shard that is good, each that is elsewhere. */
#ifndef CKPT_ENGINE_SHARD_FINDINGS_H
#define CKPT_ENGINE_SHARD_FINDINGS_H

#include <ckpt/catalog.h>
#include "base/compiler.h"

#define CKPT_FINDINGS_MAX 1000

/* Zero is empty. */
struct ckpt_findings {
	struct ckpt_finding *items;
	size_t count;
	size_t room;
	size_t bad; /* of them, with a code that says that something is wrong */
};

/*
 * Adds what `error` says about its rank and step; code 0: a shard that is good. What is past the limit
 * is dropped. -ENOMEM.
 */
int ckpt_findings_add(
	struct ckpt_findings *findings, uint64_t generation, const struct ckpt_error *error);
/* The same of a rank that is elsewhere, which is nothing wrong: CKPT_EOTHERNODE, on that node. */
int ckpt_findings_add_elsewhere(struct ckpt_findings *findings, uint64_t generation,
	const struct ckpt_error *error, const char *node);
bool ckpt_findings_full(const struct ckpt_findings *findings);
/* By rank, file and offset: the order in which they were found depends on threads. */
void ckpt_findings_sort(struct ckpt_findings *findings);
/* The first that is bad; NULL: none. */
const struct ckpt_error *ckpt_findings_first(const struct ckpt_findings *findings);
/* Drops all but the first `count`. */
void ckpt_findings_cut(struct ckpt_findings *findings, size_t count);
void ckpt_findings_clear(struct ckpt_findings *findings);

#endif
