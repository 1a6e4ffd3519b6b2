/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/io_tap.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
	[CKPT_IO_OP_WRITE] = "write",
	[CKPT_IO_OP_READ] = "read",
	[CKPT_IO_OP_FDATASYNC] = "fdatasync",
	[CKPT_IO_OP_OPEN] = "open",
	[CKPT_IO_OP_CLOSE] = "close",
	[CKPT_IO_OP_ALLOCATE] = "allocate",
	[CKPT_IO_OP_TRUNCATE] = "truncate",
	[CKPT_IO_OP_LOCK] = "lock",
	[CKPT_IO_OP_MKDIR] = "mkdir",
	[CKPT_IO_OP_RENAME] = "rename",
	[CKPT_IO_OP_UNLINK] = "unlink",
	[CKPT_IO_OP_RMDIR] = "rmdir",
	[CKPT_IO_OP_SYNC_DIR] = "sync_dir",
	[CKPT_IO_OP_LIST] = "list",
};

const char *io_op_name(enum ckpt_io_op op)
{
	return names[op];
}

/* Which paths the descriptors are, once an answer is known. */
static void note_file(struct io_tap *tap, const struct io_tap_req *r)
{
	if (r->req.op == CKPT_IO_OP_OPEN && r->req.result >= 0) {
		CKPT_ASSERT(r->req.result < IO_TAP_FILES && !tap->paths[r->req.result]);
		tap->paths[r->req.result] = strdup(r->req.path);
		tap->open_files++;
	}
	tap->open_files -= r->req.op == CKPT_IO_OP_CLOSE;
}

static void hold(struct io_tap_req *r)
{
	r->next = r->tap->held;
	r->tap->held = r;
}

static void answer(struct io_tap_req *r)
{
	struct ckpt_io_req *outer = r->outer;
	struct io_tap *tap = r->tap;

	if (tap->after)
		tap->after(tap, r);
	note_file(tap, r);
	rank_names_note(&tap->names, &r->req);
	tap->in_flight--;
	outer->result = r->req.result;
	outer->size = r->req.size;
	outer->listing = r->req.listing;
	free(r->closing);
	free(r);
	outer->node.run(&outer->node);
}

static void answered(struct ckpt_node *node)
{
	struct ckpt_io_req *req = CKPT_CONTAINER(node, struct ckpt_io_req, node);
	struct io_tap_req *r = CKPT_CONTAINER(req, struct io_tap_req, req);

	r->done = r->keep;
	if (r->keep)
		hold(r);
	else
		answer(r);
}

static void tap_submit(struct ckpt_io *io, struct ckpt_io_req *outer)
{
	struct io_tap *tap = CKPT_CONTAINER(io, struct io_tap, io);
	struct io_tap_req *r = calloc(1, sizeof(*r));

	CKPT_ASSERT(r);
	*r = (struct io_tap_req){.req = *outer, .outer = outer, .tap = tap};
	r->req.node.run = answered;
	r->path = outer->path ? outer->path : tap->paths[outer->fd];
	CKPT_ASSERT(r->path);
	/* Its number may be another file's before the core hears that it is closed. */
	if (outer->op == CKPT_IO_OP_CLOSE) {
		r->closing = tap->paths[outer->fd];
		tap->paths[outer->fd] = NULL;
	}
	tap->in_flight++;
	switch (tap->before ? tap->before(tap, r) : IO_TAP_PASS) {
	case IO_TAP_PASS:
		ckpt_io_submit(tap->inner, &r->req);
		return;
	case IO_TAP_ANSWER:
		/* A closed descriptor is closed, whatever close() is to say of it. */
		if (r->req.op == CKPT_IO_OP_CLOSE) {
			int64_t result = r->req.result;
			ckpt_io_exec(&r->req);
			r->req.result = result;
		}
		ckpt_inbox_push(tap->io.inbox, &r->req.node);
		return;
	case IO_TAP_HOLD:
		hold(r);
		return;
	case IO_TAP_KEEP:
		r->keep = true;
		ckpt_io_submit(tap->inner, &r->req);
		return;
	}
}

unsigned io_tap_release(struct io_tap *tap)
{
	struct io_tap_req *held = tap->held;
	unsigned count = 0;

	tap->held = NULL;
	while (held) {
		struct io_tap_req *next = held->next;
		held->keep = false;
		if (held->done)
			ckpt_inbox_push(tap->io.inbox, &held->req.node);
		else
			ckpt_io_submit(tap->inner, &held->req);
		held = next;
		count++;
	}
	return count;
}

static int tap_register(struct ckpt_io *io, void *base, size_t size, unsigned count)
{
	struct io_tap *tap = CKPT_CONTAINER(io, struct io_tap, io);

	int r = ckpt_io_register_slots(tap->inner, base, size, count);
	io->registered = r == 0;
	return r;
}

static int tap_close(struct ckpt_io *io, int timeout_ms)
{
	struct io_tap *tap = CKPT_CONTAINER(io, struct io_tap, io);

	for (size_t i = 0; i < IO_TAP_FILES; i++)
		free(tap->paths[i]);
	rank_names_clear(&tap->names);
	return ckpt_io_close(tap->inner, timeout_ms);
}

static const struct ckpt_io_ops tap_ops = {
	.name = "tap",
	.submit = tap_submit,
	.register_slots = tap_register,
	.close = tap_close,
};

void io_tap_init(struct io_tap *tap, struct ckpt_io *inner)
{
	*tap = (struct io_tap){.inner = inner, .io = *inner};
	tap->io.ops = &tap_ops;
}
