/* SPDX-License-Identifier: Apache-2.0 */
/* Error records: setting them, keeping one per thread, and copying them to callers. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Linux keeps -1 to -4095 for errno; the library's own codes are far below. */
#define ERRNO_MAX 4095

/*
 * Two records per thread. A call uses the one that does not hold the last failure, so that a successful call leaves
 * that failure readable.
 */
static _Thread_local struct ckpt_error records[2];
static _Thread_local unsigned current;

void ckpt_assert_failed(const char *cond, const char *file, int line)
{
	/* Only stderr can be trusted now; a failed write is ignored. */
	(void)fprintf(stderr, "libckpt: %s:%d: assertion failed: %s\n", file, line, cond);
	abort();
}

void ckpt_error_clear(struct ckpt_error *err)
{
	memset(err, 0, sizeof(*err));
	err->size = sizeof(*err);
	err->step = -1;
	err->offset = -1;
	err->rank = -1;
}

static void copy_text(char *to, size_t size, const char *text)
{
	size_t len;

	if (!text)
		return;
	len = strlen(text);
	len = ckpt_utf8_cut(text, len, size - 1);
	memcpy(to, text, len);
	to[len] = 0;
}

CKPT_PRINTF(4, 0)
static void record(struct ckpt_error *err, int code, const struct ckpt_where *where,
	const char *fmt, va_list args)
{
	char text[sizeof(err->message) + 4];

	CKPT_ASSERT(code < 0);
	if (!err || err->code != 0)
		return;
	if (err->size == 0)
		ckpt_error_clear(err);
	err->code = code;
	if (code >= -ERRNO_MAX)
		err->sys_errno = -code;
	if (where) {
		copy_text(err->tier, sizeof(err->tier), where->tier);
		copy_text(err->file, sizeof(err->file), where->file);
		copy_text(err->tensor, sizeof(err->tensor), where->tensor);
		if (where->has_offset && where->offset <= INT64_MAX)
			err->offset = (int64_t)where->offset;
	}
	if (vsnprintf(text, sizeof(text), fmt, args) < 0)
		copy_text(text, sizeof(text), ckpt_strerror(code));
	copy_text(err->message, sizeof(err->message), text);
	ckpt_utf8_line(err->message);
}

int ckpt_fail(struct ckpt_error *err, int code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	record(err, code, NULL, fmt, args);
	va_end(args);
	return code;
}

int ckpt_fail_at(
	struct ckpt_error *err, int code, const struct ckpt_where *where, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	record(err, code, where, fmt, args);
	va_end(args);
	return code;
}

struct ckpt_error *ckpt_error_here(void)
{
	if (records[current].code != 0)
		current = 1 - current;
	ckpt_error_clear(&records[current]);
	return &records[current];
}

static const struct ckpt_error *last_failure(void)
{
	const struct ckpt_error *now = &records[current];

	return now->code != 0 ? now : &records[1 - current];
}

const char *ckpt_last_error(void)
{
	return last_failure()->message;
}

int ckpt_last_error_record(struct ckpt_error *ret_error)
{
	const struct ckpt_error *last = last_failure();
	struct ckpt_error none;

	if (last->code != 0)
		return ckpt_error_copy(last, ret_error);
	ckpt_error_clear(&none);
	return ckpt_error_copy(&none, ret_error);
}

int ckpt_error_copy(const struct ckpt_error *err, struct ckpt_error *ret_error)
{
	size_t size;

	if (!ret_error)
		return err->code;
	size = ret_error->size;
	if (size < sizeof(ret_error->size))
		return err->code;
	/* A caller that was built with a newer header finds zeros in fields that this library does not have. */
	if (size > sizeof(*err))
		memset((char *)ret_error + sizeof(*err), 0, size - sizeof(*err));
	memcpy(ret_error, err, ckpt_min_u64(size, sizeof(*err)));
	ret_error->size = (uint32_t)size;
	return err->code;
}

bool ckpt_code_is_damage(int code)
{
	return code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == CKPT_EFORMAT;
}

bool ckpt_fail_said(struct ckpt_error *err, int code, const struct ckpt_where *where,
	const struct ckpt_error *said)
{
	bool first = err && err->code == 0;

	if (said->code != code || strcmp(said->tier, "remote") != 0)
		return false;
	(void)ckpt_fail_at(err, code, where, "%s", said->message);
	if (first)
		err->http_status = said->http_status;
	return true;
}
