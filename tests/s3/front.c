/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void front_free(struct front *front)
{
	while (front->late) {
		struct late *late = front->late;
		front->late = late->next;
		s3_request_clear(&late->req);
		free(late);
	}
	faults_clear(&front->faults);
	journal_clear(&front->journal);
	buckets_free(front->buckets);
}

struct fault_rule front_judge(struct front *front, const struct s3_request *req)
{
	return faults_judge(&front->faults, req);
}

static void answered(struct front *front, uint64_t now_ns, uint64_t label,
	const struct s3_request *req, const struct s3_reply *reply, const char *how)
{
	const char *upload = pairs_get(&req->query, "uploadId");
	struct journal_entry e = {.kind = JOURNAL_ANSWERED,
		.time_ns = now_ns,
		.label = label,
		.operation = s3_operation(req),
		.bucket = req->bucket,
		.key = req->key,
		.upload = (char *)(upload ? upload : ""),
		.part = s3_part_number(req),
		.status = reply ? reply->status : 0,
		.how = how};

	if (reply)
		(void)snprintf(e.code, sizeof(e.code), "%s", reply->code);
	journal_add(&front->journal, &e);
}

void front_lost(struct front *front, uint64_t now_ns, const struct s3_request *req, const char *how)
{
	answered(front, now_ns, ++front->labels, req, NULL, how);
}

static void put_off(struct front *front, uint64_t now_ns, uint64_t label, uint32_t delay_ms,
	const struct s3_request *req)
{
	struct late *late = need(sizeof(*late));
	struct late **at = &front->late;

	late->due_ns = delay_ms ? now_ns + (uint64_t)delay_ms * 1000000 : UINT64_MAX;
	late->label = label;
	s3_request_copy(&late->req, req);
	while (*at && (*at)->due_ns <= late->due_ns)
		at = &(*at)->next;
	late->next = *at;
	*at = late;
}

/* Who dropped it may be long gone: nobody is answered. */
static void land_first(struct front *front, uint64_t now_ns)
{
	struct late *late = front->late;
	struct s3_reply reply = {0};

	front->late = late->next;
	buckets_do(front->buckets, now_ns, late->label, &late->req, &reply);
	answered(front, now_ns, late->label, &late->req, &reply, "landed");
	s3_reply_clear(&reply);
	s3_request_clear(&late->req);
	free(late);
}

uint64_t front_land(struct front *front, uint64_t now_ns)
{
	while (front->late && front->late->due_ns <= now_ns)
		land_first(front, now_ns);
	return front->late ? front->late->due_ns : UINT64_MAX;
}

size_t front_land_all(struct front *front, uint64_t now_ns)
{
	size_t count = 0;

	for (; front->late; count++)
		land_first(front, now_ns);
	return count;
}

/* Says something else than what is true. */
static void make_up(struct front *front, uint64_t now_ns, uint64_t label,
	const struct fault_rule *fault, struct s3_request *req, struct s3_reply *reply)
{
	char words[TIME_TEXT_MAX];

	*reply = (struct s3_reply){0};
	if (fault->applied)
		buckets_do(front->buckets, now_ns, label, req, reply);
	fault_reply(fault, reply);
	time_http(now_ns / 1000000000, words);
	s3_reply_header(reply, "date", words);
	s3_reply_header(reply, "x-amz-request-id", "MADEUP");
}

enum front_end front_do(struct front *front, uint64_t now_ns, const struct fault_rule *fault,
	struct s3_request *req, struct s3_reply *reply)
{
	uint64_t label = ++front->labels;
	enum front_end end = FRONT_ANSWERED;

	*reply = (struct s3_reply){0};
	switch (fault->kind) {
	case FAULT_REFUSE:
	case FAULT_DROP:
	case FAULT_STALL_BODY:
		answered(front, now_ns, label, req, NULL, fault_name(fault->kind));
		return fault->kind == FAULT_STALL_BODY ? FRONT_STALLED : FRONT_CLOSED;
	case FAULT_LATE:
		put_off(front, now_ns, label, fault->delay_ms, req);
		answered(front, now_ns, label, req, NULL, fault_name(fault->kind));
		return FRONT_CLOSED;
	case FAULT_ANSWER:
	case FAULT_ERROR_IN_OK:
		make_up(front, now_ns, label, fault, req, reply);
		break;
	case FAULT_DROP_REPLY:
	case FAULT_STALL:
		end = fault->kind == FAULT_STALL ? FRONT_STALLED : FRONT_CLOSED;
		buckets_do(front->buckets, now_ns, label, req, reply);
		break;
	case FAULT_TWICE:
		buckets_do(front->buckets, now_ns, label, req, reply);
		put_off(front, now_ns, label, fault->delay_ms, req);
		break;
	case FAULT_NONE:
	case FAULT_DELAY:
	case FAULT_TRUNCATE:
	case FAULT_CORRUPT:
	case FAULT_LENGTH:
	case FAULT_KINDS:
		buckets_do(front->buckets, now_ns, label, req, reply);
		fault_spoil(fault, &front->faults.prng, reply);
		break;
	}
	answered(front, now_ns, label, req, reply, fault_name(fault->kind));
	if (end != FRONT_ANSWERED)
		s3_reply_clear(reply);
	return end;
}
