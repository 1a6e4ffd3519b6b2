/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/io_trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

CKPT_PRINTF(2, 3) static void put(struct io_trace *trace, const char *fmt, ...)
{
	size_t room = sizeof(trace->text) - trace->length;
	va_list args;

	va_start(args, fmt);
	int n = vsnprintf(trace->text + trace->length, room, fmt, args);
	va_end(args);
	CKPT_ASSERT(n >= 0 && (size_t)n < room);
	trace->length += (size_t)n;
}

static void put_path(struct io_trace *trace, const char *path)
{
	const char *temp = strstr(path, ".tmp-");
	int stem = temp ? (int)(temp - path) : 0;

	if (temp && strspn(temp + 5, "0123456789abcdef") == 16 && temp[21] == 0)
		put(trace, " %.*s.tmp-*", stem, path);
	else
		put(trace, " %s", path);
}

static enum io_tap_way before(struct io_tap *tap, struct io_tap_req *r)
{
	struct io_trace *trace = CKPT_CONTAINER(tap, struct io_trace, tap);

	(void)r;
	if (tap->in_flight > trace->most_in_flight)
		trace->most_in_flight = tap->in_flight;
	return IO_TAP_PASS;
}

static void after(struct io_tap *tap, struct io_tap_req *r)
{
	struct io_trace *trace = CKPT_CONTAINER(tap, struct io_trace, tap);
	const struct ckpt_io_req *req = &r->req;

	put(trace, "%s", io_op_name(req->op));
	put_path(trace, r->path);
	switch (req->op) {
	case CKPT_IO_OP_OPEN:
		put(trace, "%s%s%s%s", req->flags & CKPT_OPEN_CREATE ? " create" : "",
			req->flags & CKPT_OPEN_RDWR ? " rdwr" : "",
			req->flags & CKPT_OPEN_DIRECT ? " direct" : "",
			req->flags & CKPT_OPEN_EXACT ? " exact" : "");
		break;
	case CKPT_IO_OP_WRITE:
	case CKPT_IO_OP_READ:
		put(trace, " %llu+%llu", (unsigned long long)req->off,
			(unsigned long long)req->len);
		break;
	case CKPT_IO_OP_ALLOCATE:
	case CKPT_IO_OP_TRUNCATE:
		put(trace, " %llu", (unsigned long long)req->len);
		break;
	case CKPT_IO_OP_LOCK:
		put(trace, "%s", req->flags & CKPT_LOCK_SHARED ? " shared" : " exclusive");
		if (req->len > 0)
			put(trace, " %llu+%llu", (unsigned long long)req->off,
				(unsigned long long)req->len);
		break;
	case CKPT_IO_OP_RENAME:
		put_path(trace, req->new_path);
		put(trace, "%s", req->flags & CKPT_RENAME_REPLACE ? " replace" : "");
		break;
	default:
		break;
	}
	if (req->result < 0)
		put(trace, " = %lld", (long long)req->result);
	put(trace, "\n");
}

void io_trace_init(struct io_trace *trace, struct ckpt_io *inner)
{
	io_tap_init(&trace->tap, inner);
	trace->tap.before = before;
	trace->tap.after = after;
	io_trace_clear(trace);
}

void io_trace_clear(struct io_trace *trace)
{
	trace->text[0] = 0;
	trace->length = 0;
	trace->most_in_flight = 0;
}
