/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies of parts, and which part in flight is far slower than its peers: S3 sometimes delays a request for seconds,
 * and a connection may be slow. Pure: the caller passes the time.
 *
 * A part's peers are those that have ended since it began. If the network or the server becomes slow, all parts do: a
 * part is slow only if few are, compared with those that have ended.
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

/* Zero: empty. */
struct ckpt_s3_hedge {
	struct ckpt_s3_peer last[CKPT_S3_HEDGE_KEPT];
	uint64_t count; /* of all parts; the last ones are stored */
};

/* A part of `length` bytes has ended successfully. */
void ckpt_s3_hedge_ended(
	struct ckpt_s3_hedge *peers, uint64_t length, uint64_t begun_ns, uint64_t now_ns);
/*
 * For a part in flight: `now_ns` if it is far slower than its peers, else when to look again. `lagging` parts are in
 * flight for at least half as long, itself included.
 */
uint64_t ckpt_s3_hedge_look(const struct ckpt_s3_hedge *peers, uint64_t length, uint64_t begun_ns,
	uint64_t now_ns, unsigned lagging);

#endif
