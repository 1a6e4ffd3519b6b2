/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/io_rig.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "lib/hang_inbox.h"
#include "lib/scratch.h"

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "rig: %s\n", what);
	exit(99);
}

char *rig_dir_make(enum rig_place place)
{
	char template[] = "/dev/shm/ckpt-test-XXXXXX";

	if (place == RIG_DISK)
		return scratch_make();
	must(mkdtemp(template) != NULL, "mkdtemp in /dev/shm");
	return strdup(template);
}

void rig_dir_remove(char *dir)
{
	scratch_remove(dir);
}

int io_rig_open_at(struct io_rig *rig, enum ckpt_io_kind kind, unsigned depth, const char *dir)
{
	*rig = (struct io_rig){.root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
	must(rig->root >= 0, "cannot open its directory");
	must(ckpt_inbox_init(&rig->inbox) == 0, "no inbox");
	struct ckpt_io_config config = {
		.kind = kind, .depth = depth, .root = rig->root, .inbox = &rig->inbox};
	int r = ckpt_io_open(&config, &rig->io);
	if (r < 0) {
		ckpt_inbox_destroy(&rig->inbox);
		(void)close(rig->root);
	}
	return r;
}

int io_rig_open(struct io_rig *rig, enum ckpt_io_kind kind, enum rig_place place)
{
	char *dir = rig_dir_make(place);
	int r = io_rig_open_at(rig, kind, 0, dir);

	if (r < 0)
		rig_dir_remove(dir);
	else
		rig->dir = dir;
	return r;
}

void io_rig_close(struct io_rig *rig)
{
	hang_unless(ckpt_io_close(rig->io, HANG_LIMIT_MS) == 0);
	must(ckpt_inbox_take(&rig->inbox) == NULL, "an answer that nobody waited for");
	ckpt_inbox_destroy(&rig->inbox);
	(void)close(rig->root);
	if (rig->dir)
		rig_dir_remove(rig->dir);
}

static void mark(struct ckpt_node *node)
{
	struct ckpt_io_req *req = CKPT_CONTAINER(node, struct ckpt_io_req, node);
	struct rig_req *r = CKPT_CONTAINER(req, struct rig_req, req);

	must(!r->done, "answered twice");
	r->done = true;
}

void io_rig_submit(struct io_rig *rig, struct rig_req *req)
{
	req->req.node.run = mark;
	req->req.root = rig->root;
	req->done = false;
	ckpt_io_submit(rig->io, &req->req);
}

void io_rig_wait(struct io_rig *rig, struct rig_req *req)
{
	await_inbox(&rig->inbox, req->done, inbox_run(&rig->inbox));
}

int64_t io_rig_do(struct io_rig *rig, struct ckpt_io_req *req)
{
	struct rig_req r = {.req = *req};

	io_rig_submit(rig, &r);
	io_rig_wait(rig, &r);
	*req = r.req;
	return req->result;
}

int64_t io_rig_path(struct io_rig *rig, enum ckpt_io_op op, const char *path)
{
	struct ckpt_io_req req = {.op = op, .path = path, .slot = -1};
	int64_t r = io_rig_do(rig, &req);

	ckpt_free(req.listing.names);
	return r;
}

int64_t io_rig_open_file(struct io_rig *rig, const char *path, unsigned flags)
{
	return io_rig_do(
		rig, &(struct ckpt_io_req){
			     .op = CKPT_IO_OP_OPEN, .flags = flags, .path = path, .slot = -1});
}

int64_t io_rig_fd(struct io_rig *rig, enum ckpt_io_op op, int64_t fd, uint64_t len)
{
	return io_rig_do(
		rig, &(struct ckpt_io_req){.op = op, .fd = (int)fd, .len = len, .slot = -1});
}

static int64_t move(
	struct io_rig *rig, enum ckpt_io_op op, int64_t fd, void *data, uint64_t len, uint64_t off)
{
	return io_rig_do(rig,
		&(struct ckpt_io_req){
			.op = op, .fd = (int)fd, .buf = data, .len = len, .off = off, .slot = -1});
}

int64_t io_rig_write(struct io_rig *rig, int64_t fd, const void *data, uint64_t len, uint64_t off)
{
	return move(rig, CKPT_IO_OP_WRITE, fd, (void *)(uintptr_t)data, len, off);
}

int64_t io_rig_read(struct io_rig *rig, int64_t fd, void *data, uint64_t len, uint64_t off)
{
	return move(rig, CKPT_IO_OP_READ, fd, data, len, off);
}

int64_t io_rig_rename(struct io_rig *rig, const char *path, const char *new_path)
{
	return io_rig_do(rig,
		&(struct ckpt_io_req){
			.op = CKPT_IO_OP_RENAME, .path = path, .new_path = new_path, .slot = -1});
}

void *rig_pages(size_t size)
{
	void *pages = aligned_alloc(4096, ckpt_align_up(size, 4096));

	must(pages != NULL, "out of memory");
	memset(pages, 0, ckpt_align_up(size, 4096));
	return pages;
}

static unsigned char byte_at(size_t i, unsigned seed)
{
	return (unsigned char)((i * 2654435761u + (i >> 12) * 40503u + seed * 97u) >> 7);
}

void rig_fill(void *data, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		((unsigned char *)data)[i] = byte_at(i, seed);
}

bool rig_filled(const void *data, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		if (((const unsigned char *)data)[i] != byte_at(i, seed))
			return false;
	return true;
}

bool rig_has_uring(void)
{
	struct ckpt_inbox inbox;
	struct ckpt_io *io;
	struct ckpt_io_config config = {.inbox = &inbox, .root = -1};

	must(ckpt_inbox_init(&inbox) == 0, "no inbox");
	int r = ckpt_io_uring_open(&config, &io);
	if (r == 0)
		hang_unless(ckpt_io_close(io, HANG_LIMIT_MS) == 0);
	else
		(void)fprintf(stderr, "no io_uring here: %s\n", strerror(-r));
	ckpt_inbox_destroy(&inbox);
	return r == 0;
}
