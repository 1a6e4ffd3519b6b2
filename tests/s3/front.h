/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request on its way through faults, buckets and journal, and back: all of a server but the network.
 * s3d drives it from sockets, a simulator from its own schedule. One thread at a time.
 */
#ifndef S3_FRONT_H
#define S3_FRONT_H

#include "s3/bucket.h"
#include "s3/faults.h"

/* A request that will be applied when nobody waits for it any more. */
struct late {
	struct late *next;
	uint64_t due_ns; /* UINT64_MAX: when it is asked for */
	uint64_t label;
	struct s3_request req;
};

struct front {
	struct buckets *buckets;
	struct faults faults;
	struct journal journal;
	uint64_t labels;
	struct late *late; /* by time */
};

enum front_end {
	FRONT_ANSWERED = 0, /* `reply` is to be sent, spoiled as it may be */
	FRONT_CLOSED,       /* the connection ends without a word */
	FRONT_STALLED,      /* it stays, without a word */
};

void front_free(struct front *front);

/* What shall happen to it. Its headers are enough. */
struct fault_rule front_judge(struct front *front, const struct s3_request *req);
/* Does it. The delays that `fault` asks for are the caller's. */
enum front_end front_do(struct front *front, uint64_t now_ns, const struct fault_rule *fault,
	struct s3_request *req, struct s3_reply *reply);
/* Notes a request that was given up before it was done: "drop", or why the client is to blame. */
void front_lost(
	struct front *front, uint64_t now_ns, const struct s3_request *req, const char *how);
/* Applies the late ones that are due. When the next one is; UINT64_MAX: none. */
uint64_t front_land(struct front *front, uint64_t now_ns);
/* Applies all of them; how many there were. */
size_t front_land_all(struct front *front, uint64_t now_ns);

#endif
