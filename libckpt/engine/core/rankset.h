/* SPDX-License-Identifier: Apache-2.0 */
/* Some of the ranks of a step, or all of them. */
#ifndef CKPT_ENGINE_CORE_RANKSET_H
#define CKPT_ENGINE_CORE_RANKSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed: all. */
struct ckpt_rankset {
	uint32_t *items; /* ascending, each once; NULL: all */
	size_t count;
};

/* Makes it these, in any order, of which there is one at least. -ENOMEM: it stays as it was. */
int ckpt_rankset_set(struct ckpt_rankset *set, const uint32_t *ranks, size_t count);
bool ckpt_rankset_is_all(const struct ckpt_rankset *set);
bool ckpt_rankset_has(const struct ckpt_rankset *set, uint32_t rank);
/* The greatest, of a set that is not all. */
uint32_t ckpt_rankset_last(const struct ckpt_rankset *set);
void ckpt_rankset_clear(struct ckpt_rankset *set);

#endif
