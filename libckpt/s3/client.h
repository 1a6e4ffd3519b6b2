/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket, or a prefix of it, for the core's thread. A call is one S3 request: it is signed, sent, and retried while
 * that may help, and its error message is set.
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
/* Time from the first failure of a call to its last try. */
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
		asked; /* what `endpoint` was made of; its strings are borrowed */
	struct ckpt_s3_endpoint endpoint;
	unsigned attempts;                   /* most tries of a call; 0: CKPT_S3_ATTEMPTS */
	const struct ckpt_s3_limits *limits; /* of the server; NULL: ckpt_s3_limits */
	/*
	 * Retry until the call's deadline, not only `attempts` times, if the server has responded before. For callers
	 * that do not retry themselves. A server that never responded may be a wrong name, which the user should learn
	 * soon.
	 */
	bool patient;
	bool behind; /* during training: jobs for the workers have low priority */

	/* Private. */
	struct ckpt_s3_signing_key signing;
	struct ckpt_s3_budget budget;
	struct ckpt_s3_concurrency pace;
	struct ckpt_s3_hedge written; /* latencies of uploaded parts */
	struct ckpt_s3_hedge read;    /* latencies of downloaded ranges */
	int64_t clock_offset_s;       /* the server's clock minus ours */
	struct ckpt_s3_call *calls;   /* in flight */
	struct ckpt_task *idler;
	bool heard; /* a complete response has arrived, of any status */
	bool stopped;
	bool linked;
	struct ckpt_s3_client *next;
};

/* How the server verifies a body. */
enum ckpt_s3_proof {
	CKPT_S3_PROOF_SIGNED = 0, /* by its signed SHA-256 */
	/*
	 * By x-amz-checksum-crc32c of an unsigned payload: a third of the CPU time. For servers that check it, over
	 * TLS.
	 */
	CKPT_S3_PROOF_CRC32C,
	/* By a wrong CRC32C, to test the server; then CKPT_EINTEGRITY without retries. */
	CKPT_S3_PROOF_WRONG,
};

struct ckpt_s3_call {
	/* The request. Borrowed until it is done. */
	enum ckpt_http_method method;
	const char *name;  /* below the prefix; "": the bucket itself */
	const char *query; /* encoded, or "" */
	struct ckpt_http_header headers[CKPT_S3_CALL_HEADERS];
	size_t header_count;
	const void *body;
	uint64_t body_length;
	enum ckpt_s3_proof proof;
	void *sink; /* see net/http.h */
	uint64_t room;
	uint64_t reply_limit;
	const char *doing;      /* for messages: "read", "list" */
	struct ckpt_error *err; /* NULL: no message */
	struct ckpt_task *waiter;
	bool conditional; /* with If-None-Match or If-Match */
	/* The response is XML, which may contain an error in spite of a 2xx status. */
	bool documents;
	bool quiet; /* -ENOENT and -EEXIST set no error */
	/* One of many similar parts: sent again if it is far slower than the others. */
	bool part;
	/*
	 * Not 0: the call is not needed any more, and soon ends with -ECANCELED unless it is done. Call
	 * ckpt_s3_client_look() after setting it. NULL: it is never cancelled.
	 */
	const int *stop;
	uint64_t
		/* By ckpt_env_age(): no try is sent later, then -ETIMEDOUT; 0: no limit. */
		not_after_ns;

	/*
	 * The result. 0: the server has done it. -ENOENT: there is no such object. -EEXIST: a condition does not hold.
	 * -ESTALE: there is no such upload. These may be caused by an earlier try of the same call, whose response was
	 * lost. For others see s3/error_text.h, the HTTP client and OpenSSL.
	 */
	bool done;
	int result;
	struct ckpt_http_req req; /* status, headers and body of the last response */
	/*
	 * A try has no definite response, or the request was sent more than once: a try may still be carried out,
	 * whatever `result` is.
	 */
	bool uncertain;

	/* Private. */
	struct ckpt_s3_client *client;
	struct ckpt_s3_call *next; /* in client->calls */
	struct ckpt_task task;
	struct ckpt_task_job hash;
	struct ckpt_s3_want want;
	struct ckpt_timer timer;
	struct ckpt_s3_tries tries;
	/* Parsed from the last response; NULL: it was no error. */
	struct ckpt_s3_error_reply *refusal;
	struct ckpt_s3_signed signature;
	char *token; /* session token of the keys that signed it; NULL: none */
	struct ckpt_http_header put[CKPT_S3_CALL_HEADERS + CKPT_S3_SIGNED_MAX + 2];
	struct ckpt_buf url;
	uint64_t deadline_ns;
	bool under_way; /* owned by the HTTP client */
	bool answered;
	bool sleeping;
	bool hurried; /* cancelled because it was far slower than others */
	unsigned hurries;
	uint64_t begun_ns;
	char apart[64];                      /* peer of the slow try; "" */
	char region[CKPT_S3_REGION_MAX + 1]; /* of the last try */
	char key[CKPT_S3_KEY_MAX + 1];
	char payload[CKPT_S3_SHA256_HEX];
	uint32_t crc32c; /* of the body, if it is verified by that */
	char crc32c_text[CKPT_S3_CRC32C_TEXT];
};

/* Sets the private fields; the caller has set the others. */
void ckpt_s3_client_begin(struct ckpt_s3_client *client);
/* Adds it to a list, once. */
void ckpt_s3_client_link(struct ckpt_s3_client **list, struct ckpt_s3_client *client);
/* Removes it from the list, if it is there. */
void ckpt_s3_client_unlink(struct ckpt_s3_client **list, struct ckpt_s3_client *client);
/* Calls in flight and later ones end soon, with -ECANCELED unless they are done. */
void ckpt_s3_client_stop(struct ckpt_s3_client *client);
/* Has calls with `stop` set end soon; others continue. */
void ckpt_s3_client_look(struct ckpt_s3_client *client);
/* True if no call is in flight, so that it can be closed. Else `task` is woken when that may have changed. */
bool ckpt_s3_client_idle(struct ckpt_s3_client *client, struct ckpt_task *task);

/* The caller has set the request fields of `call`, and zeroed the others. Then CKPT_AWAIT(task, call->done). */
void ckpt_s3_call_start(struct ckpt_s3_client *client, struct ckpt_s3_call *call);
/* Frees the response. The call is done, or was never started. */
void ckpt_s3_call_clear(struct ckpt_s3_call *call);

/* The CRC32C of the body by the response. False: it contains none. */
bool ckpt_s3_call_crc32c(const struct ckpt_s3_call *call, uint32_t *ret_crc32c);
/* The response's Content-Length, and its ETag with the quotes ("" if it is missing or too long). */
bool ckpt_s3_call_length(const struct ckpt_s3_call *call, uint64_t *ret_length);
void ckpt_s3_call_etag(const struct ckpt_s3_call *call, char ret_etag[CKPT_S3_ETAG_MAX + 1]);

#endif
