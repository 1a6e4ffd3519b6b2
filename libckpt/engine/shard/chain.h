/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An encoded shard and its bases (FORMAT.md, section 23): which files a chunk is decoded from. Pure.
 *
 * File 0 is the shard itself, and file k the k-th base of its list. The bases that a base names are found in the list of
 * the shard by their steps, as the list names all that are needed. So nobody follows other lists, a base always has a
 * smaller number than who names it (but for the shard), and a chunk has at most CKPT_ENCODED_BASES_MAX links.
 */
#ifndef CKPT_ENGINE_SHARD_CHAIN_H
#define CKPT_ENGINE_SHARD_CHAIN_H

#include "format/encoded.h"

#define CKPT_CHAIN_FILES (1 + CKPT_ENCODED_BASES_MAX)

struct ckpt_chain {
	/* NULL: it has not been added. They outlive the chain. */
	const struct ckpt_encoded *files[CKPT_CHAIN_FILES];
	/* The number here of each base that a file names, from 1 on; 0: it is not in the list of the shard. */
	uint8_t numbers[CKPT_CHAIN_FILES][CKPT_CHAIN_FILES];
};

/* The table of the shard itself; no base is there yet. */
void ckpt_chain_begin(struct ckpt_chain *chain, const struct ckpt_encoded *encoded);
/* What the k-th base is stored as. Those with smaller numbers were added before. */
void ckpt_chain_add(struct ckpt_chain *chain, unsigned k, const struct ckpt_encoded *encoded);
/*
 * All bases were added. A chunk whose base is not in the list, or has no bytes of its own in the base; SIZE_MAX: there is
 * none. *ret_file is the file that names it.
 */
size_t ckpt_chain_broken(const struct ckpt_chain *chain, unsigned *ret_file);

/* The file that has the base of a chunk; 0: it has none. `chain` NULL: the shard has no bases. */
static inline unsigned ckpt_chain_base(const struct ckpt_chain *chain, unsigned file, size_t chunk)
{
	return chain ? chain->numbers[file][chain->files[file]->chunks[chunk].base] : 0;
}

/* The files that a chunk of `file` is decoded from, newest first, but for those that have no bytes of it. Their number. */
unsigned ckpt_chain_links(const struct ckpt_chain *chain, unsigned file, size_t chunk,
	uint8_t ret_files[CKPT_CHAIN_FILES]);

/* What a plain file is, as if it were an encoded one of plain chunks. NULL: no memory. ckpt_encoded_free() it. */
struct ckpt_encoded *ckpt_chain_plain(const struct ckpt_layout *layout);
/* Whether a chunk has the same elements in both. */
bool ckpt_chain_is_alike(const struct ckpt_layout *a, const struct ckpt_layout *b);

#endif
