/* SPDX-License-Identifier: Apache-2.0 */
/* Sending a small file, and fetching it. */
#include "engine/ranks/blob.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "exchange/rank_messages.h"

static struct ckpt_blob *blob_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_blob, task);
}

uint32_t ckpt_blob_keys(uint64_t length)
{
	return 1 + (uint32_t)((length + CKPT_BLOB_PART - 1) / CKPT_BLOB_PART);
}

void ckpt_blob_key(char *out, const char *key, uint32_t i)
{
	int n = i == 0 ? snprintf(out, CKPT_EXCHANGE_KEY_MAX, "%s", key)
		       : snprintf(out, CKPT_EXCHANGE_KEY_MAX, "%s-%u", key, i);

	CKPT_ASSERT(n > 0 && n < CKPT_EXCHANGE_KEY_MAX);
}

static void prepare(struct ckpt_blob *p, uint32_t i)
{
	struct ckpt_exchange_call *call = &p->call;

	memset(&call->items[0], 0, sizeof(call->items[0]));
	call->core = p->core;
	call->stop = p->stop;
	call->deadline_ns = p->deadline_ns;
	call->err = p->err;
	call->waiter = &p->task;
	call->count = 1;
	ckpt_blob_key(call->items[0].key, p->key, i);
}

static int send_body(struct ckpt_task *task)
{
	struct ckpt_blob *p = blob_of(task);
	struct ckpt_exchange_item *item = &p->call.items[0];
	uint64_t offset;

	CKPT_TASK_BEGIN(task);
	for (p->part = 1; p->part < ckpt_blob_keys(p->length); p->part++) {
		prepare(p, p->part);
		offset = (p->part - 1) * CKPT_BLOB_PART;
		item->data = p->bytes->data + offset;
		item->length = ckpt_min_u64(CKPT_BLOB_PART, p->length - offset);
		ckpt_exchange_call_put(&p->call);
		CKPT_AWAIT(task, p->call.task.finished);
		if (p->call.task.result < 0)
			return p->call.task.result;
	}
	prepare(p, 0);
	item->length = (uint64_t)snprintf(p->words, sizeof(p->words), "%" PRIu64, p->length);
	item->data = p->words;
	ckpt_exchange_call_put(&p->call);
	CKPT_AWAIT(task, p->call.task.finished);
	return p->call.task.result;
	CKPT_TASK_END(task);
}

static int bad(struct ckpt_blob *p)
{
	return ckpt_fail(p->err, CKPT_EFORMAT,
		"%s of the exchange is no file of another node's store: give every start of the "
		"job "
		"a session of its own",
		p->call.items[0].key);
}

/* Whoever was to send it says why it does not. */
static int refused(struct ckpt_blob *p)
{
	const struct ckpt_exchange_item *item = &p->call.items[0];
	struct ckpt_verdict verdict;

	if (ckpt_verdict_decode(item->data, item->length, item->key, NULL, &verdict) < 0 ||
		verdict.code == 0)
		return bad(p);
	return ckpt_fail(p->err, verdict.code,
		"the store of another node, which is to bring %s, failed: %s", item->key,
		verdict.reason);
}

static int take_length(struct ckpt_blob *p)
{
	struct ckpt_exchange_item *item = &p->call.items[0];
	struct ckpt_reader r;

	ckpt_reader_init(&r, item->data, item->length, 0, item->key, NULL);
	(void)ckpt_sealed_number(&r, 1, CKPT_SEALED_MAX, &p->length);
	int code = ckpt_reader_finish(&r) < 0 ? refused(p) : 0;
	ckpt_exchange_items_clear(p->call.items, 1);
	return code;
}

static int take_part(struct ckpt_blob *p)
{
	struct ckpt_exchange_item *item = &p->call.items[0];
	uint64_t due = ckpt_min_u64(CKPT_BLOB_PART, p->length - p->bytes->len);
	int code = item->length == due ? 0 : bad(p);

	if (code == 0)
		ckpt_buf_put(p->bytes, item->data, item->length);
	ckpt_exchange_items_clear(p->call.items, 1);
	if (p->bytes->failed)
		return ckpt_fail(p->err, -ENOMEM, "out of memory");
	return code;
}

static int fetch_body(struct ckpt_task *task)
{
	struct ckpt_blob *p = blob_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (p->part = 0; p->part == 0 || p->part < ckpt_blob_keys(p->length); p->part++) {
		prepare(p, p->part);
		ckpt_exchange_call_get(&p->call);
		CKPT_AWAIT(task, p->call.task.finished);
		if (p->call.task.result < 0)
			return p->call.task.result;
		r = p->part == 0 ? take_length(p) : take_part(p);
		if (r < 0)
			return r;
	}
	CKPT_TASK_END(task);
}

static void blob_done(struct ckpt_task *task)
{
	ckpt_task_wake(blob_of(task)->waiter);
}

void ckpt_blob_send(struct ckpt_blob *blob)
{
	blob->length = blob->bytes->len;
	CKPT_ASSERT(blob->length > 0 && blob->length <= CKPT_SEALED_MAX);
	ckpt_task_start(&blob->task, &blob->core->sched, send_body, blob_done);
}

void ckpt_blob_fetch(struct ckpt_blob *blob)
{
	CKPT_ASSERT(blob->bytes->len == 0);
	ckpt_task_start(&blob->task, &blob->core->sched, fetch_body, blob_done);
}
