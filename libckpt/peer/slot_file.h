/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a slot: a memfd that can neither shrink nor grow. So who maps all of it never gets SIGBUS. The agent makes
 * it and touches every page before anybody else sees it, so that the memory counts for the agent's control group, and is
 * there.
 */
#ifndef CKPT_PEER_SLOT_FILE_H
#define CKPT_PEER_SLOT_FILE_H

#include "peer/slot_header.h"

/* What a memfd holds, and how it can be mapped. */
struct ckpt_peer_slot_file {
	struct ckpt_peer_slot_fixed fixed;
	struct ckpt_peer_slot_record record;
	uint64_t bytes; /* of the file, which is all of its memory */
	uint64_t page;  /* mappings are multiples of it */
};

struct ckpt_peer_slot_map {
	char *base; /* the header */
	size_t bytes;
};

/*
 * Makes an EMPTY slot, of huge pages if enough are reserved, and touches it. When `stop` (may be NULL) is set meanwhile:
 * -ECANCELED. Sets `err`.
 */
int ckpt_peer_slot_file_make(const struct ckpt_peer_slot_fixed *fixed, const bool *stop,
	struct ckpt_error *err, int *ret_fd);
/* Looks whether the descriptor, of whatever origin, is a slot that can be mapped. Sets `err`. */
int ckpt_peer_slot_file_check(int fd, struct ckpt_error *err, struct ckpt_peer_slot_file *ret_file);

/*
 * Maps the header alone (`whole` false), or all of it. Neither forked children nor core dumps have it. `fd` stays the
 * caller's. Sets `err`.
 */
int ckpt_peer_slot_file_map(int fd, const struct ckpt_peer_slot_file *file, bool whole, bool write,
	struct ckpt_error *err, struct ckpt_peer_slot_map *ret_map);
/* Of a zeroed map: nothing. */
void ckpt_peer_slot_file_unmap(struct ckpt_peer_slot_map *map);

#endif
