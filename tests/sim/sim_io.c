/* SPDX-License-Identifier: Apache-2.0 */
/* Requests in flight over the simulated disk. */
#include "sim_io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND UINT64_C(1000000)

struct sim_request {
	struct sim_request *next;
	struct ckpt_io_req *req;
	uint64_t ready_ns;
	uint64_t mark; /* of the disk when it was submitted */
};

struct sim_io {
	struct ckpt_io io;
	struct sim *sim;
	struct sim_disk *disk;
	struct sim_io_config config;
	struct sim_request *head; /* oldest first */
	unsigned in_flight;
};

static const char *const op_names[] = {
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

static bool has_fd(enum ckpt_io_op op)
{
	return op == CKPT_IO_OP_WRITE || op == CKPT_IO_OP_READ || op == CKPT_IO_OP_FDATASYNC ||
	       op == CKPT_IO_OP_CLOSE || op == CKPT_IO_OP_ALLOCATE || op == CKPT_IO_OP_TRUNCATE ||
	       op == CKPT_IO_OP_LOCK;
}

/* What no caller may ask, whatever the disk would say to it. */
static void check_request(struct sim_io *io, const struct ckpt_io_req *req)
{
	uint32_t align = io->config.align;

	if (req->op < CKPT_IO_OP_WRITE || req->op > CKPT_IO_OP_LIST) {
		sim_violation(io->sim, "a request without an operation (%d)", (int)req->op);
		return;
	}
	const char *name = op_names[req->op];
	if (!has_fd(req->op)) {
		if (req->root != io->config.root)
			sim_violation(io->sim, "%s below directory %d, which is not the store's",
				name, req->root);
		if (!sim_path_valid(req->path) || (req->new_path && !sim_path_valid(req->new_path)))
			sim_violation(
				io->sim, "%s of a path that leaves the store: %s", name, req->path);
		return;
	}
	const struct sim_file *file = sim_disk_file(io->disk, io->config.owner, req->fd);
	if (!file) {
		sim_violation(io->sim, "%s of file %d, which is not open", name, req->fd);
		return;
	}
	bool writes = req->op == CKPT_IO_OP_WRITE || req->op == CKPT_IO_OP_ALLOCATE ||
		      req->op == CKPT_IO_OP_TRUNCATE;
	if (writes && !(file->flags & (CKPT_OPEN_CREATE | CKPT_OPEN_RDWR)))
		sim_violation(
			io->sim, "%s of %s, which is open for reading", name, sim_file_name(file));
	bool moves = req->op == CKPT_IO_OP_WRITE || req->op == CKPT_IO_OP_READ;
	if (moves && (file->flags & CKPT_OPEN_DIRECT) &&
		((uintptr_t)req->buf % align || req->len % align || req->off % align))
		sim_violation(io->sim, "%s of %s at %llu + %llu is not aligned to %u", name,
			sim_file_name(file), (unsigned long long)req->off,
			(unsigned long long)req->len, align);
}

static uint64_t latency(struct sim_io *io)
{
	struct sim *sim = io->sim;

	if (sim_fault(sim, SIM_STUCK))
		return io->config.stuck_ns;
	if (sim_fault(sim, SIM_SLOW))
		return sim_between(sim, MILLISECOND, 60 * MILLISECOND);
	return sim_between(sim, MICROSECOND, 200 * MICROSECOND);
}

static void sim_submit(struct ckpt_io *base, struct ckpt_io_req *req)
{
	struct sim_io *io = CKPT_CONTAINER(base, struct sim_io, io);
	struct sim_request *request = sim_alloc(sizeof(*request));
	struct sim_request **link = &io->head;

	check_request(io, req);
	while (*link)
		link = &(*link)->next;
	*link = request;
	*request = (struct sim_request){.req = req,
		.ready_ns = io->sim->now_ns + latency(io),
		.mark = sim_disk_mark(io->disk)};
	io->in_flight++;
	/* Nobody may look before the read has come back. */
	if (req->op == CKPT_IO_OP_READ)
		memset(req->buf, 0xee, req->len);
}

/* A piece of a transfer, as a signal or a full disk leaves it. */
static uint64_t shorten(struct sim_io *io, const struct sim_file *file, uint64_t len)
{
	uint64_t unit = file->flags & CKPT_OPEN_DIRECT ? io->config.align : 1;

	if (len <= unit || !sim_fault(io->sim, SIM_SHORT_IO))
		return len;
	return ckpt_max_u64(sim_below(io->sim, len) / unit * unit, unit);
}

static int64_t do_write(struct sim_io *io, const struct sim_file *file, struct ckpt_io_req *req)
{
	uint64_t len = shorten(io, file, req->len);

	if (sim_fault(io->sim, SIM_EIO_WRITE)) {
		/* What of it is on the disk, nobody knows. */
		if (sim_chance(io->sim, 5000))
			(void)sim_disk_write(io->disk, file->inode, req->buf, len, req->off);
		return -EIO;
	}
	if (sim_fault(io->sim, SIM_LOST_WRITE) && sim_disk_may_lie(io->disk, file->inode))
		return sim_disk_lose(io->disk, file->inode, req->buf, len, req->off);
	if (sim_fault(io->sim, SIM_ASTRAY) && sim_disk_may_lie(io->disk, file->inode))
		return sim_disk_misplace(io->disk, file->inode, req->buf, len, req->off);
	return sim_disk_write(io->disk, file->inode, req->buf, len, req->off);
}

static int64_t do_read(struct sim_io *io, const struct sim_file *file, struct ckpt_io_req *req)
{
	if (sim_fault(io->sim, SIM_EIO_READ))
		return -EIO;
	int64_t r = sim_disk_read(file->inode, req->buf, shorten(io, file, req->len), req->off);
	if (r > 0 && sim_fault(io->sim, SIM_STALE_READ) && sim_disk_may_lie(io->disk, file->inode))
		sim_disk_confuse(io->disk, file->inode, req->buf, (uint64_t)r, req->off);
	return r;
}

static int do_list(struct sim_io *io, struct ckpt_io_req *req)
{
	char *names;

	int r = sim_disk_list(
		io->disk, req->path, &names, &req->listing.bytes, &req->listing.count);
	if (r < 0)
		return r;
	/* The receiver frees it as the product's memory, which may run out. */
	req->listing.names = ckpt_memdup(names, req->listing.bytes);
	free(names);
	if (req->listing.names)
		return 0;
	req->listing = (struct ckpt_listing){0};
	return -ENOMEM;
}

/* What fails here has happened or not; a descriptor is closed whatever its close says. */
static int do_file(struct sim_io *io, struct sim_file *file, const struct ckpt_io_req *req)
{
	bool fails = sim_fault(io->sim, SIM_EIO_FILE);
	bool happens = !fails || req->op == CKPT_IO_OP_CLOSE ||
		       (req->op != CKPT_IO_OP_LOCK && sim_chance(io->sim, 5000));
	int r = 0;

	if (happens && req->op == CKPT_IO_OP_ALLOCATE)
		r = io->config.refuse_allocate ? -EOPNOTSUPP
					       : sim_disk_allocate(io->disk, file->inode, req->len);
	else if (happens && req->op == CKPT_IO_OP_TRUNCATE)
		r = sim_disk_truncate(io->disk, file->inode, req->len);
	else if (happens && req->op == CKPT_IO_OP_LOCK)
		r = sim_disk_lock(
			io->disk, file, req->off, req->len, req->flags & CKPT_LOCK_SHARED);
	else if (happens)
		sim_disk_close(io->disk, file);
	return fails && r >= 0 ? -EIO : r;
}

static int64_t do_fd(struct sim_io *io, const struct sim_request *request)
{
	struct ckpt_io_req *req = request->req;
	struct sim_file *file = sim_disk_file(io->disk, io->config.owner, req->fd);

	if (!file) {
		sim_violation(io->sim, "%s of file %d, closed while it was under way",
			op_names[req->op], req->fd);
		return -EBADF;
	}
	switch (req->op) {
	case CKPT_IO_OP_WRITE:
		return do_write(io, file, req);
	case CKPT_IO_OP_READ:
		return do_read(io, file, req);
	case CKPT_IO_OP_FDATASYNC:
		return sim_disk_fdatasync(
			io->disk, file->inode, request->mark, sim_fault(io->sim, SIM_EIO_SYNC));
	default:
		return do_file(io, file, req);
	}
}

/* As the kernel does it: the file may have been made. */
static int refuse_direct(struct sim_io *io, const struct ckpt_io_req *req)
{
	uint64_t size;

	if ((req->flags & CKPT_OPEN_CREATE) && sim_chance(io->sim, 5000)) {
		int fd = sim_disk_open(
			io->disk, io->config.owner, io->config.node, req->path, req->flags, &size);
		if (fd < 0)
			return fd;
		sim_disk_close(io->disk, sim_disk_file(io->disk, io->config.owner, fd));
	}
	return -EINVAL;
}

static int64_t do_path(struct sim_io *io, const struct sim_request *request)
{
	struct ckpt_io_req *req = request->req;

	switch (req->op) {
	case CKPT_IO_OP_OPEN:
		if ((req->flags & CKPT_OPEN_DIRECT) && io->config.refuse_direct)
			return refuse_direct(io, req);
		return sim_disk_open(io->disk, io->config.owner, io->config.node, req->path,
			req->flags, &req->size);
	case CKPT_IO_OP_MKDIR:
		return sim_disk_mkdir(io->disk, req->path);
	case CKPT_IO_OP_RENAME:
		return sim_disk_rename(
			io->disk, req->path, req->new_path, req->flags & CKPT_RENAME_REPLACE);
	case CKPT_IO_OP_UNLINK:
		return sim_disk_unlink(io->disk, req->path);
	case CKPT_IO_OP_RMDIR:
		return sim_disk_rmdir(io->disk, req->path);
	case CKPT_IO_OP_SYNC_DIR:
		return sim_disk_sync_dir(
			io->disk, req->path, request->mark, sim_fault(io->sim, SIM_EIO_DIR));
	default:
		return do_list(io, req);
	}
}

/* Does it, with the errors that chance adds, and writes it into the history. */
static int64_t execute(struct sim_io *io, const struct sim_request *request)
{
	struct ckpt_io_req *req = request->req;
	char text[256];
	int64_t result = -EIO;

	if (has_fd(req->op)) {
		const struct sim_file *file = sim_disk_file(io->disk, io->config.owner, req->fd);
		(void)snprintf(text, sizeof(text), "%s", file ? sim_file_name(file) : "?");
		result = do_fd(io, request);
	} else {
		const char *last = req->new_path ? strrchr(req->new_path, '/') : NULL;
		(void)snprintf(text, sizeof(text), "%s%s%s", req->path, req->new_path ? " " : "",
			last            ? last
			: req->new_path ? req->new_path
					: "");
		bool fails = req->op != CKPT_IO_OP_SYNC_DIR && sim_fault(io->sim, SIM_EIO_OTHER);
		/* An error does not say that nothing has happened. An open one would leak. */
		bool happens =
			!fails || (req->op != CKPT_IO_OP_OPEN && req->op != CKPT_IO_OP_LIST &&
					  sim_chance(io->sim, 5000));
		if (happens)
			result = do_path(io, request);
		if (fails && result >= 0)
			result = -EIO;
	}
	sim_note(io->sim, io->config.owner, op_names[req->op], text, (int64_t)req->off,
		(int64_t)req->len, result);
	return result;
}

unsigned sim_io_ready(const struct sim_io *io)
{
	unsigned count = 0;

	if (sim_disk_hung_until(io->disk) > io->sim->now_ns)
		return 0;
	for (const struct sim_request *r = io->head; r; r = r->next)
		count += r->ready_ns <= io->sim->now_ns;
	return count;
}

uint64_t sim_io_next(const struct sim_io *io)
{
	uint64_t next_ns = UINT64_MAX;

	for (const struct sim_request *r = io->head; r; r = r->next)
		next_ns = ckpt_min_u64(next_ns, r->ready_ns);
	return next_ns == UINT64_MAX ? next_ns
				     : ckpt_max_u64(next_ns, sim_disk_hung_until(io->disk));
}

unsigned sim_io_in_flight(const struct sim_io *io)
{
	return io->in_flight;
}

static struct sim_request *take(struct sim_io *io, unsigned n)
{
	struct sim_request **link = &io->head;

	while ((*link)->ready_ns > io->sim->now_ns || n-- > 0)
		link = &(*link)->next;
	struct sim_request *request = *link;
	*link = request->next;
	io->in_flight--;
	return request;
}

void sim_io_finish(struct sim_io *io, unsigned n)
{
	CKPT_ASSERT(n < sim_io_ready(io));
	struct sim_request *request = take(io, n);
	struct ckpt_io_req *req = request->req;

	req->result = execute(io, request);
	free(request);
	ckpt_inbox_push(io->config.inbox, &req->node);
}

static void leave_late(
	struct sim_io *io, const struct sim_file *file, const struct ckpt_io_req *req)
{
	struct sim_late *late = sim_alloc(sizeof(*late) + req->len);

	*late = (struct sim_late){.inode = file->inode,
		.ready_ns = io->sim->now_ns + sim_between(io->sim, 0, 50 * MILLISECOND),
		.off = req->off,
		.len = req->len,
		.owner = io->config.owner};
	memcpy(late->data, req->buf, req->len);
	sim_disk_put_late(io->disk, late);
}

void sim_io_die(struct sim_io *io)
{
	while (io->head) {
		struct sim_request *request = io->head;
		struct ckpt_io_req *req = request->req;
		io->head = request->next;
		const struct sim_file *file =
			has_fd(req->op) ? sim_disk_file(io->disk, io->config.owner, req->fd) : NULL;
		unsigned fate = (unsigned)sim_below(io->sim, 3);
		if (fate == 0 && req->op == CKPT_IO_OP_WRITE && file)
			leave_late(io, file, req);
		else if (fate == 1 && req->op != CKPT_IO_OP_READ && req->op != CKPT_IO_OP_LIST)
			(void)execute(io, request);
		free(request);
	}
	io->in_flight = 0;
	sim_disk_drop(io->disk, io->config.owner);
	free(io);
}

void sim_io_forget(struct sim_io *io)
{
	while (io->head) {
		struct sim_request *request = io->head;
		io->head = request->next;
		free(request);
	}
	sim_disk_drop(io->disk, io->config.owner);
	free(io);
}

static int sim_close(struct ckpt_io *base, int timeout_ms)
{
	struct sim_io *io = CKPT_CONTAINER(base, struct sim_io, io);

	(void)timeout_ms;
	CKPT_ASSERT(io->in_flight == 0);
	free(io);
	return 0;
}

static const struct ckpt_io_ops sim_ops = {
	.name = "sim",
	.submit = sim_submit,
	.close = sim_close,
};

struct sim_io *sim_io_new(
	struct sim *sim, struct sim_disk *disk, const struct sim_io_config *config)
{
	struct sim_io *io = sim_alloc(sizeof(*io));

	*io = (struct sim_io){.sim = sim, .disk = disk, .config = *config};
	io->io = (struct ckpt_io){.ops = &sim_ops,
		.inbox = config->inbox,
		.direct = config->direct,
		.align = config->align};
	return io;
}

struct ckpt_io *sim_io_of(struct sim_io *io)
{
	return &io->io;
}

void sim_io_free(struct sim_io *io)
{
	(void)sim_close(&io->io, 0);
}
