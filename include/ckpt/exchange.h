/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange that the program serves. The ranks of a job send each other small messages, such as the
 * digest of a shard, or that a step is committed. By default the messages are files in the store. A
 * program with a faster service (the key-value store of its launcher, etcd, MPI) makes one server for
 * each engine, passes it in ckpt_engine_opts.exchange, and answers the requests of the engine:
 *
 *	while (ckpt_exchange_next(server, CKPT_FOREVER, &request) == 0) {
 *		answer.id = request.id;
 *		answer.result = do_it(&request, values, lengths);
 *		(void)ckpt_exchange_reply(server, &answer);
 *	}
 *
 * Keys: the engine drops a key when no rank can ask for it any more. Some keys stay until the session
 * ends: the first message of each rank, one key of each claim, three of each restore of all ranks (and
 * those of its ranks, if it failed), and at most 64 per rank of saves. With CKPT_ENGINE_NODE_STORE there
 * are also the outcome of the opening (and a message of each rank about the store of its node, if it
 * failed), what one store got from another, and the manifests of the last steps. So delete the keys of a
 * session when its job has ended.
 *
 * Failures: if a value is lost, late or delivered twice, or the service dies, saves fail by their
 * deadlines, on all ranks. It causes no other harm: the store alone decides what is committed. A request
 * that is not answered within its `timeout_ms` is given up. The engine repeats it if it matters. All ranks
 * must use the same kind of exchange.
 *
 * Threads: all functions may be called from any thread, and from several at once, except
 * ckpt_exchange_server_free(), which must run alone. The server is made before its engine and freed after
 * it. The functions may be called while the engine is opened or closed. Start to serve before
 * ckpt_engine_open(), because opening sends the first message. A closing engine still sends messages that
 * the other ranks need, so serve until ckpt_exchange_next() returns CKPT_ECLOSED. After fork() the handle
 * does nothing in the child.
 */
#ifndef CKPT_EXCHANGE_H
#define CKPT_EXCHANGE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most keys of a request, most bytes of a key with the final NUL, and most bytes of a value. */
#define CKPT_EXCHANGE_BATCH     64
#define CKPT_EXCHANGE_NAME_MAX  130
#define CKPT_EXCHANGE_VALUE_MAX (UINT64_C(1) << 20)

enum ckpt_exchange_verb {
	/*
	 * Set each key to its value, unless it has one. A key that has the same value already is no error.
	 * If it has another value, leave it as it is; the result is -EEXIST.
	 */
	CKPT_EXCHANGE_PUT = 1,
	/* Return the values of the keys that exist. Do not wait for the others: the engine asks again. */
	CKPT_EXCHANGE_GET = 2,
	/* Delete these keys. A key that does not exist is no error. */
	CKPT_EXCHANGE_DROP = 3
};

/*
 * A request of the engine. The library owns the arrays. They are valid until ckpt_exchange_reply() has
 * accepted the answer or the server is freed, even if the engine has given up the request.
 */
struct ckpt_exchange_request {
	uint32_t size;       /* sizeof(struct ckpt_exchange_request), set by the caller */
	uint32_t verb;       /* enum ckpt_exchange_verb */
	uint64_t id;         /* of the request; never used again by this server */
	uint32_t count;      /* number of keys, 1 to CKPT_EXCHANGE_BATCH */
	uint32_t timeout_ms; /* until the engine gives the request up; it may do so earlier */
	/*
	 * SESSION/NAME, of A-Z a-z 0-9 . _ - and one slash. Jobs with different sessions never use the same
	 * key. If the service has other users, add a prefix.
	 */
	const char *const *keys;
	const void *const *values; /* PUT: the value of each key; else NULL */
	const uint64_t *lengths;   /* PUT: bytes of each value; else NULL */
};

/* The answer to a request. The library copies it. */
struct ckpt_exchange_answer {
	uint32_t size;  /* sizeof(struct ckpt_exchange_answer) */
	int32_t result; /* 0; or -errno or CKPT_E*: some or all of it may be done */
	uint64_t id;    /* of the request */
	/* Of a successful GET: one value and length for each key. */
	const void *const *values; /* NULL: the key does not exist */
	const uint64_t *lengths;
	const char *reason; /* of a failure, for error messages: one line of UTF-8; or NULL */
};

/* Makes a server. The caller frees it with ckpt_exchange_server_free(). Errors: -ENOMEM. */
CKPT_API int ckpt_exchange_server_new(struct ckpt_exchange_server **ret_server);

/*
 * Frees the server, and the requests that were not answered. Memory that an engine still uses is freed
 * later. NULL is ignored.
 */
CKPT_API void ckpt_exchange_server_free(struct ckpt_exchange_server *server);

/*
 * Ends the service: ckpt_exchange_next() returns CKPT_ECLOSED from now on, and requests of the engine fail
 * at once. Closing the engine does the same. Call this if the engine could not be opened.
 */
CKPT_API void ckpt_exchange_server_stop(struct ckpt_exchange_server *server);

/*
 * Returns the oldest request that was not returned yet; waits up to timeout_ms milliseconds for one. Answer
 * it with ckpt_exchange_reply(), from any thread. At most 16 requests may be unanswered; then this waits
 * until one is answered. Requests that the engine has given up count, too, because their arrays may still be
 * in use. Errors: -ETIMEDOUT (there is none), CKPT_ECLOSED (there will be none), -EINVAL, CKPT_EFORKED.
 */
CKPT_API int ckpt_exchange_next(struct ckpt_exchange_server *server, int timeout_ms,
	struct ckpt_exchange_request *ret_request);

/*
 * Answers a request. Returns 0, or -ETIMEDOUT if the engine had given the request up and the answer was
 * discarded. In both cases the arrays of the request are no longer valid. Errors: -ENOENT (no request with
 * this id is unanswered); -EINVAL, -E2BIG, -ENOMEM (the answer was not accepted, see ckpt_last_error(); the
 * request is still unanswered); CKPT_EFORKED.
 */
CKPT_API int ckpt_exchange_reply(
	struct ckpt_exchange_server *server, const struct ckpt_exchange_answer *answer);

#ifdef __cplusplus
}
#endif

#endif
