/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP to buckets in memory (s3/front.h), in virtual time and without a network: what is asked arrives, is done and
 * is answered, each a while later, or fails as a rule says (s3/faults.h). A seed decides all of it.
 */
#ifndef CKPT_TESTS_BUCKET_HTTP_H
#define CKPT_TESTS_BUCKET_HTTP_H

#include "net/http.h"
#include "s3/front.h"

struct bucket_event;

struct bucket_http {
	struct ckpt_http http;
	struct front *front;
	struct prng prng;
	uint64_t unix_ns;    /* the server's clock when `now_ns` was 0 */
	uint64_t now_ns;     /* virtual */
	uint64_t latency_ns; /* of each way, at most; a part of it by the dice */
	/* A proxy on the way, that may change what is asked, and what is answered; NULL: none. */
	void (*proxy)(void *user, struct s3_request *asked);
	void (*answered)(void *user, const struct s3_request *asked, struct s3_reply *reply);
	void *user;
	/* What happens to a request, in place of the rules; NULL: they say. */
	struct fault_rule (*judge)(void *user, const struct s3_request *asked);
	/* A request that nobody waits for any more may be on its way for so long; 0: it never arrives. */
	uint32_t haunts_ms;
	bool whole; /* an answer that is cut off seems to be whole */
	/* What whoever gives keys answers at BUCKET_KEYS_URL; NULL: nothing, for as long as one waits. */
	const char *keys;
	struct bucket_event *events; /* by time */
	unsigned under_way;
	unsigned limit;    /* how many may be, as was said last */
	unsigned requests; /* that were submitted, but for those for keys */
	unsigned asked_keys;
};

#define BUCKET_KEYS_URL "http://localhost/keys"

void bucket_http_init(
	struct bucket_http *http, struct ckpt_inbox *inbox, struct front *front, uint64_t seed);
void bucket_http_clear(struct bucket_http *http);
/* Nobody waits for anything any more: what is on its way arrives late, or never. Nothing is left here. */
void bucket_http_die(struct bucket_http *http);
/* When something happens next; UINT64_MAX: nothing is under way. */
uint64_t bucket_http_next(const struct bucket_http *http);
/* Goes on until then. */
void bucket_http_run(struct bucket_http *http, uint64_t now_ns);

#endif
