/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket, or what of it lies below a prefix, as the core's thread asks it: one call is one request of S3's
 * interface, signed, sent, made again while that may help, and its failure worded.
 */
#ifndef CKPT_S3_CLIENT_H
#define CKPT_S3_CLIENT_H

#include <ckpt/error.h>
#include "base/env.h"
#include "base/log.h"
#include "base/task.h"
#include "base/task_job.h"
#include "base/timer.h"
#include "net/http.h"
#include "s3/concurrency.h"
#include "s3/crc32c.h"
#include "s3/credential_cache.h"
#include "s3/endpoint.h"
#include "s3/hedge.h"
#include "s3/multipart.h"
#include "s3/response_parts.h"
#include "s3/retry.h"
#include "s3/sign.h"
#include "s3/uri.h"

#define CKPT_S3_CALL_HEADERS 3
/* From the first failure of a call to its last try. */
#define CKPT_S3_CALL_MS      UINT64_C(180000)

struct ckpt_s3_client {
	struct ckpt_env *env;
	struct ckpt_sched *sched;
	struct ckpt_timers *timers;
	struct ckpt_http *http;
	struct ckpt_log *log; /* may be NULL */
	struct ckpt_s3_credential_cache *credentials;
	struct ckpt_s3_uri place;
	struct ckpt_s3_endpoint_config
		asked; /* what `endpoint` was made of; its texts are borrowed */
	struct ckpt_s3_endpoint endpoint;
	unsigned attempts;                   /* of a call; 0: CKPT_S3_ATTEMPTS */
	const struct ckpt_s3_limits *limits; /* of what it takes; NULL: ckpt_s3_limits */
	/*
	 * A server that has answered and then does not is waited for until the call's deadline: who asks has nobody that
	 * tries again. One that never has may be a wrong name, of which users are told soon.
	 */
	bool patient;
	bool behind; /* a training: what it asks of workers waits for what is urgent */

	/* Its own. */
	struct ckpt_s3_signing_key signing;
	struct ckpt_s3_budget budget;
	struct ckpt_s3_concurrency pace;
	struct ckpt_s3_hedge written; /* parts */
	struct ckpt_s3_hedge read;    /* ranges */
	int64_t clock_offset_s;       /* the server's clock less ours */
	struct ckpt_s3_call *calls;   /* under way */
	struct ckpt_task *idler;
	bool heard; /* a whole answer has come, whatever it said */
	bool stopped;
	bool linked;
	struct ckpt_s3_client *next;
};

/* How the server knows that a body is what was sent. */
enum ckpt_s3_proof {
	CKPT_S3_PROOF_SIGNED = 0, /* its SHA-256 is signed */
	/* x-amz-checksum-crc32c, of a payload that is not signed: a third of the CPU, for servers that heed it, over TLS */
	CKPT_S3_PROOF_CRC32C,
	CKPT_S3_PROOF_WRONG, /* the same, and another's: to see whether they do; CKPT_EINTEGRITY at once then */
};

struct ckpt_s3_call {
	/* What is asked. Borrowed until it is done. */
	enum ckpt_http_method method;
	const char *name;  /* below the prefix; "": the bucket itself */
	const char *query; /* encoded; "" */
	struct ckpt_http_header headers[CKPT_S3_CALL_HEADERS];
	size_t header_count;
	const void *body;
	uint64_t body_length;
	enum ckpt_s3_proof proof;
	void *sink; /* see net/http.h */
	uint64_t room;
	uint64_t reply_limit;
	const char *doing;      /* for words: "read", "list" */
	struct ckpt_error *err; /* NULL: nowhere */
	struct ckpt_task *waiter;
	bool conditional; /* with If-None-Match or If-Match */
	bool documents;   /* a success is told in XML, which may turn out to be an error */
	bool quiet;       /* -ENOENT and -EEXIST are answers, not worded failures */
	bool part;        /* one of many alike: tried again when it takes far longer than they do */
	/*
	 * Not 0: nobody wants it any more, and it ends soon, with -ECANCELED unless it is done. Whoever sets that calls
	 * ckpt_s3_client_look(). NULL: it goes on to its end.
	 */
	const int *stop;
	uint64_t
		not_after_ns; /* by ckpt_env_age(): no try is sent later, -ETIMEDOUT; 0: whenever */

	/*
	 * What came of it. 0: the server has done it, and says so. -ENOENT: there is no such object. -EEXIST: a
	 * condition does not hold. -ESTALE: there is no such upload. Both may be of what this call has done itself: an
	 * answer was lost, and it was sent again. Others: see s3/error_text.h, and the codes of the HTTP
	 * client and of OpenSSL.
	 */
	bool done;
	int result;
	struct ckpt_http_req req; /* status, headers and body of the last answer */
	/*
	 * It was sent more than once, or failed, and nobody has said of some try that it is refused, or done: that one may
	 * be carried out yet, whatever `result` is.
	 */
	bool uncertain;

	/* Its own. */
	struct ckpt_s3_client *client;
	struct ckpt_s3_call *next; /* of those under way */
	struct ckpt_task task;
	struct ckpt_task_job hash;
	struct ckpt_s3_want want;
	struct ckpt_timer timer;
	struct ckpt_s3_tries tries;
	struct ckpt_s3_error_reply *refusal; /* of the last answer; NULL: it was none */
	struct ckpt_s3_signed signature;
	char *token; /* of the keys that it was signed with; NULL: none */
	struct ckpt_http_header put[CKPT_S3_CALL_HEADERS + CKPT_S3_SIGNED_MAX + 2];
	struct ckpt_buf url;
	uint64_t deadline_ns;
	bool under_way; /* in the hands of the HTTP client */
	bool answered;
	bool sleeping;
	bool hurried; /* given up, because its peers were far sooner done */
	unsigned hurries;
	uint64_t begun_ns;
	char apart[64];                      /* who was asked when it took too long; "" */
	char region[CKPT_S3_REGION_MAX + 1]; /* that was asked last */
	char key[CKPT_S3_KEY_MAX + 1];
	char payload[CKPT_S3_SHA256_HEX];
	uint32_t crc32c; /* of the body, if that is its proof */
	char crc32c_text[CKPT_S3_CRC32C_TEXT];
};

/* What is its own; all else is set. */
void ckpt_s3_client_begin(struct ckpt_s3_client *client);
/* Puts it in front of others, once. */
void ckpt_s3_client_link(struct ckpt_s3_client **list, struct ckpt_s3_client *client);
/* Takes it out again. Harmless when it is not there. */
void ckpt_s3_client_unlink(struct ckpt_s3_client **list, struct ckpt_s3_client *client);
/* What is under way ends soon, with -ECANCELED unless it is done; so does what is asked later. */
void ckpt_s3_client_stop(struct ckpt_s3_client *client);
/* Calls that nobody wants any more (`stop`) end soon; all others go on. */
void ckpt_s3_client_look(struct ckpt_s3_client *client);
/* Nothing is under way: it may be closed. `task` is woken when that may have become so. */
bool ckpt_s3_client_idle(struct ckpt_s3_client *client, struct ckpt_task *task);

/* `call` has what is asked, and nothing else. Then CKPT_AWAIT(task, call->done). */
void ckpt_s3_call_start(struct ckpt_s3_client *client, struct ckpt_s3_call *call);
/* Frees what was answered. It is done, or was never started. */
void ckpt_s3_call_clear(struct ckpt_s3_call *call);

/* The CRC32C that the answer says the server has of the body. False: it says none. */
bool ckpt_s3_call_crc32c(const struct ckpt_s3_call *call, uint32_t *ret_crc32c);
/* The answer's Content-Length, and its ETag with the quotes ("" if it is too long or not there). */
bool ckpt_s3_call_length(const struct ckpt_s3_call *call, uint64_t *ret_length);
void ckpt_s3_call_etag(const struct ckpt_s3_call *call, char ret_etag[CKPT_S3_ETAG_MAX + 1]);

#endif
