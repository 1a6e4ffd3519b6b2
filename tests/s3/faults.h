/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong between a client and a store, by rules: which requests, which time, and what. A seed
 * decides what is left to chance. Nothing here touches a network: who serves requests asks what shall
 * happen to this one, and does it (front.h does most of it).
 */
#ifndef S3_FAULTS_H
#define S3_FAULTS_H

#include "lib/prng.h"
#include "s3/message.h"

enum fault_kind {
	FAULT_NONE = 0,
	FAULT_DELAY,  /* nothing but what `delay_ms` and `reply_delay_ms` say */
	FAULT_REFUSE, /* the connection, before anything of a request is read */
	FAULT_DROP,   /* the connection, when `bytes` of the body have come; not applied */
	FAULT_LATE, /* the connection, when all has come; applied `delay_ms` later, or when asked */
	FAULT_DROP_REPLY, /* the connection; applied, and nothing is answered */
	FAULT_STALL,      /* applied, and nothing is answered while the client waits */
	FAULT_STALL_BODY, /* no more is read when `bytes` of the body have come; not applied */
	FAULT_TRUNCATE,   /* the answer's body ends after `bytes`, and the connection with it */
	FAULT_CORRUPT, /* a bit of the answer's body, of byte `bytes`, or of any if it has no such */
	FAULT_LENGTH,  /* Content-Length says `bytes` more than there are; they never come */
	FAULT_ANSWER,  /* `status` and `code` in place of what would be answered */
	FAULT_ERROR_IN_OK, /* `code` as an <Error> in the body of a 200 */
	FAULT_TWICE,       /* answered, and applied once more `delay_ms` later, or when asked */
	FAULT_KINDS,
};

struct fault_rule {
	enum fault_kind kind;
	/* Which requests. "" or 0: all. */
	char method[8];
	char operation[32];
	char bucket[64];
	char key[256]; /* with * ? [] */
	unsigned part;
	unsigned nth;    /* the first that it happens to, counted from 1 */
	unsigned times;  /* how often; 0: to all that follow */
	unsigned chance; /* of 10,000; 0: always */
	/* What. */
	uint64_t bytes;
	uint32_t delay_ms;
	uint32_t reply_delay_ms; /* between what is done and what is said */
	int status;
	char code[48];
	unsigned retry_after_s;
	bool applied; /* it is done all the same (answer, error_in_ok) */
	/* Counted. */
	unsigned seen;
	unsigned fired;
};

struct faults {
	struct fault_rule *rules;
	size_t count;
	struct prng prng;
};

const char *fault_name(enum fault_kind kind);

void faults_add(struct faults *faults, const struct fault_rule *rule);
void faults_clear(struct faults *faults);
/*
 * {"seed": 1, "rules": [{"do": "answer", "operation": "UploadPart", "nth": 3, "times": 1, "status": 503,
 * "code": "SlowDown"}]}, in place of what there was; names as above. False: it is wrong, and `why` says how.
 */
bool faults_read(struct faults *faults, const char *json, size_t length, char why[160]);

/* What happens to this request: the first rule that wants it. */
struct fault_rule faults_judge(struct faults *faults, const struct s3_request *req);
/* Whether this connection is refused. */
bool faults_refuse(struct faults *faults);

/* The answer that a rule of `answer` or `error_in_ok` gives. */
void fault_reply(const struct fault_rule *rule, struct s3_reply *reply);
/* Truncates, corrupts, or lies about the length of what was answered. */
void fault_spoil(const struct fault_rule *rule, struct prng *prng, struct s3_reply *reply);

#endif
