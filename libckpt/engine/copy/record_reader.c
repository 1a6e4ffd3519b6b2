/* SPDX-License-Identifier: Apache-2.0 */
/* The newest record of a remote store. */
#include "engine/copy/record_reader.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#define TRIES_MAX 4 /* records that do not verify; their writer removes those before its own */

uint64_t ckpt_record_before(const struct ckpt_listing *names, uint64_t below)
{
	uint64_t greatest = 0;
	uint64_t number;

	for (size_t at = 0; at < names->bytes; at += strlen(names->names + at) + 1)
		if (ckpt_parse_remote(names->names + at, &number) && number < below)
			greatest = ckpt_max_u64(greatest, number);
	return greatest;
}

static bool is_old(const char *name, uint64_t below)
{
	const char *temp = strstr(name, CKPT_STORE_TEMP);
	char whole[CKPT_PATH_MAX];
	uint64_t number;

	(void)snprintf(whole, sizeof(whole), "%.*s",
		(int)(temp ? (size_t)(temp - name) : strlen(name)), name);
	return ckpt_parse_remote(whole, &number) && number < below;
}

const char *ckpt_record_next_old(const struct ckpt_listing *names, const char *name, uint64_t below)
{
	size_t at = name ? (size_t)(name - names->names) + strlen(name) + 1 : 0;

	for (; at < names->bytes; at += strlen(names->names + at) + 1)
		if (is_old(names->names + at, below))
			return names->names + at;
	return NULL;
}

static void take(struct ckpt_record_reader *r)
{
	int code = r->op.result;

	if (code >= 0) {
		code = ckpt_remote_record_decode(
			r->op.data, r->op.length, r->op.path, NULL, &r->record);
		r->found = code == 0;
	}
	ckpt_free(r->op.data);
	r->op.data = NULL;
	/* One that has gone meanwhile is older than another. */
	if (code < 0 && code != -ENOENT && r->code == 0)
		r->code = code;
}

static int reader_body(struct ckpt_task *task)
{
	struct ckpt_record_reader *r = CKPT_CONTAINER(task, struct ckpt_record_reader, task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(r->store, &r->op, ".");
	CKPT_AWAIT(task, r->op.done);
	if (r->op.result < 0)
		return r->op.result;
	r->names = ckpt_store_take_listing(&r->op);
	r->newest = ckpt_record_before(&r->names, UINT64_MAX);
	for (r->number = r->newest; r->number > 0 && !r->found && r->tries < TRIES_MAX;
		r->number = ckpt_record_before(&r->names, r->number)) {
		r->tries++;
		ckpt_name_remote(path, r->number);
		ckpt_store_get(r->store, &r->op, path, CKPT_RECORD_BYTES_MAX);
		CKPT_AWAIT(task, r->op.done);
		take(r);
	}
	CKPT_TASK_END(task);
}

static void reader_done(struct ckpt_task *task)
{
	ckpt_task_wake(CKPT_CONTAINER(task, struct ckpt_record_reader, task)->waiter);
}

void ckpt_record_reader_start(struct ckpt_record_reader *reader, struct ckpt_store *store,
	struct ckpt_sched *sched, struct ckpt_task *waiter)
{
	CKPT_ASSERT(!ckpt_task_active(&reader->task));
	*reader = (struct ckpt_record_reader){.store = store, .waiter = waiter};
	ckpt_store_op_init(&reader->op, &reader->task, NULL);
	reader->op.quiet = true;
	ckpt_task_start(&reader->task, sched, reader_body, reader_done);
}

void ckpt_record_reader_clear(struct ckpt_record_reader *reader)
{
	CKPT_ASSERT(!ckpt_task_active(&reader->task));
	if (reader->found)
		ckpt_remote_record_clear(&reader->record);
	reader->found = false;
	ckpt_free(reader->names.names);
	reader->names = (struct ckpt_listing){0};
}
