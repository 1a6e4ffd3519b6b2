/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange that the program serves. The ranks of a job tell each other small things, such as what their
 * shard's digest is, or that a step is committed. By default that goes through files in the store. A
 * program that has something quicker (the key-value store of its launcher, etcd, MPI) makes a server for
 * every engine, hands it over with ckpt_engine_opts.exchange, and answers what the engine asks:
 *
 *	while (ckpt_exchange_next(server, CKPT_FOREVER, &request) == 0) {
 *		answer.id = request.id;
 *		answer.result = do_it(&request, values, lengths);
 *		(void)ckpt_exchange_reply(server, &answer);
 *	}
 *
 * Keys are dropped when nobody can ask for them any more. What stays until the session ends: a rank's first
 * word, of each claim one key, of each restore of all ranks three (and those of its ranks, if it failed), and
 * of saves no more than 64 a rank. With CKPT_ENGINE_NODE_STORE also what each rank has said of its node's store,
 * what was brought from one to another, and the manifests of the last steps. So take a session's keys away when
 * its job has ended.
 *
 * It is no place of truth: a value that is lost, late or told twice, and a service that dies, make saves
 * fail by their deadlines, on all ranks, and can do no more harm than that. A request that is not answered
 * within `timeout_ms` is given up, and what matters is asked again. All ranks use one kind of exchange.
 *
 * Threads: all functions may be called from any thread, and from several at once, but for
 * ckpt_exchange_server_free(), beside which nothing may run. The server is made before its engine and
 * outlives it: it is safe to be in any of these functions while the engine is opened or closed. Serve from
 * before ckpt_engine_open(): the engine says its first word while it opens. A closing
 * engine still asks what matters to the other ranks, so serve until ckpt_exchange_next() returns
 * CKPT_ECLOSED. After fork() the child's handle is inert.
 */
#ifndef CKPT_EXCHANGE_H
#define CKPT_EXCHANGE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most keys of one request; most bytes of a key, the final NUL included, and of a value. */
#define CKPT_EXCHANGE_BATCH     64
#define CKPT_EXCHANGE_NAME_MAX  130
#define CKPT_EXCHANGE_VALUE_MAX (UINT64_C(1) << 20)

enum ckpt_exchange_verb {
	/*
	 * Each key gets its value, once: one that has that same value already is fine; one that has
	 * another is to be left as it is, and the result is -EEXIST.
	 */
	CKPT_EXCHANGE_PUT = 1,
	/* The values of those keys that are there. Not to be waited for: the engine asks again. */
	CKPT_EXCHANGE_GET = 2,
	/* Nobody will ask for these keys any more. Those that are not there are fine. */
	CKPT_EXCHANGE_DROP = 3
};

/*
 * What the engine asks. The arrays are the library's: they stay until ckpt_exchange_reply() has taken the
 * answer, or the server is freed, be the engine still waiting or not.
 */
struct ckpt_exchange_request {
	uint32_t size;       /* sizeof(struct ckpt_exchange_request), set by the caller */
	uint32_t verb;       /* enum ckpt_exchange_verb */
	uint64_t id;         /* never used again by this server */
	uint32_t count;      /* of keys, 1 to CKPT_EXCHANGE_BATCH */
	uint32_t timeout_ms; /* that are left until the engine gives it up; it may do so earlier */
	/*
	 * SESSION/WHAT, of A-Z a-z 0-9 . _ - and one slash. So no two jobs share a key as long as no two
	 * share a session; what else lives in the program's service is kept away by a prefix of its own.
	 */
	const char *const *keys;
	const void *const *values; /* PUT: of each key; else NULL */
	const uint64_t
		*lengths; /* PUT: of each value, CKPT_EXCHANGE_VALUE_MAX at most; else NULL */
};

struct ckpt_exchange_answer {
	uint32_t size;  /* sizeof(struct ckpt_exchange_answer) */
	int32_t result; /* 0, or -errno or CKPT_E*: nothing of it, some or all may be done then */
	uint64_t id;    /* of the request */
	/* To a GET that worked, as many as there were keys. They are copied. */
	const void *const *values; /* NULL: that key is not there */
	const uint64_t *lengths;
	const char
		*reason; /* of a failure, for messages: one line of UTF-8; NULL: the code says it */
};

/* -ENOMEM. */
CKPT_API int ckpt_exchange_server_new(struct ckpt_exchange_server **ret_server);

/*
 * The caller's hold on it; what the engine still needs, it keeps. Requests that were not answered go with
 * it. NULL is ignored.
 */
CKPT_API void ckpt_exchange_server_free(struct ckpt_exchange_server *server);

/*
 * Ends the service: ckpt_exchange_next() returns CKPT_ECLOSED from now on, and what the engine asks fails at
 * once. Closing the engine does the same; when one could not be opened with it, call this.
 */
CKPT_API void ckpt_exchange_server_stop(struct ckpt_exchange_server *server);

/*
 * The next request, in the order in which they were made; waits up to timeout_ms for one. It is to be
 * answered with ckpt_exchange_reply(), by whatever thread. At most 16 may be unanswered: then this waits, for
 * requests that the engine has given up, too, since somebody may still read their arrays.
 * -ETIMEDOUT if there is none; CKPT_ECLOSED: there will be none any more.
 */
CKPT_API int ckpt_exchange_next(struct ckpt_exchange_server *server, int timeout_ms,
	struct ckpt_exchange_request *ret_request);

/*
 * Answers a request. 0: the engine has it. -ETIMEDOUT: the engine had given it up, so the answer was thrown
 * away. With these two the request's arrays are gone. -ENOENT: no request of that id waits for an answer; it may
 * have had one. -EINVAL, -E2BIG, -ENOMEM: what is wrong with the answer was said (ckpt_last_error()), and the
 * request still waits for one.
 */
CKPT_API int ckpt_exchange_reply(
	struct ckpt_exchange_server *server, const struct ckpt_exchange_answer *answer);

#ifdef __cplusplus
}
#endif

#endif
