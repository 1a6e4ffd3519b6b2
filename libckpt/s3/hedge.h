/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long parts take, and which of those under way takes far longer than its peers: S3 now and then lets one wait
 * for seconds, and a connection may crawl. Pure: the caller has the clock.
 *
 * A part's peers are those that have ended since it began. When the network or the server becomes slow all parts do:
 * none is late unless those that lag are few beside those that went through.
 */
#ifndef CKPT_S3_HEDGE_H
#define CKPT_S3_HEDGE_H

#include "base/compiler.h"

#define CKPT_S3_HEDGE_KEPT 64

struct ckpt_s3_peer {
	uint64_t length;
	uint64_t took_ns;
	uint64_t ended_ns;
};

/* Zero: none was seen. */
struct ckpt_s3_hedge {
	struct ckpt_s3_peer last[CKPT_S3_HEDGE_KEPT];
	uint64_t count; /* of all; the last ones are kept */
};

/* A part of `length` bytes went through. */
void ckpt_s3_hedge_ended(
	struct ckpt_s3_hedge *peers, uint64_t length, uint64_t begun_ns, uint64_t now_ns);
/*
 * Of one under way: `now_ns` when it takes far longer than its peers have; else when to look again. `lagging` are
 * under way for at least half as long as it, itself included.
 */
uint64_t ckpt_s3_hedge_look(const struct ckpt_s3_hedge *peers, uint64_t length, uint64_t begun_ns,
	uint64_t now_ns, unsigned lagging);

#endif
