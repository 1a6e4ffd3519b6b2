/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may ask: SigV4 as a server checks it. Written from Amazon's description and from nothing of the
 * library's own, because it is there to catch that one.
 */
#ifndef S3_GUARD_H
#define S3_GUARD_H

#include "s3/message.h"

struct guard_key {
	char *access;
	char *secret;
	char *token;        /* NULL: none belongs to it */
	uint64_t expires_s; /* 0: never */
};

struct guard {
	struct guard_key *keys; /* none: nobody is asked who he is */
	size_t count;
	char *region;
	uint64_t skew_s; /* how far a request's time may be from the server's; 0: 900 */
};

void guard_add(struct guard *guard, const char *access, const char *secret, const char *token,
	uint64_t expires_s);
void guard_clear(struct guard *guard);

/*
 * Looks at everything but the body, which `req` need not have yet. False: it is refused, and `reply`
 * says how.
 */
bool guard_admits(const struct guard *guard, const struct s3_request *req, uint64_t now_s,
	struct s3_reply *reply);
/* The body is what was signed. */
bool guard_admits_body(const struct guard *guard, struct s3_request *req, struct s3_reply *reply);

#endif
