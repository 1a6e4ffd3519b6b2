/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk forgets what a real one may forget, and nothing else. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sim_disk.h"
#include "sim_io.h"

#define CUTS 400

struct fixture {
	struct sim sim;
	struct sim_disk *disk;
};

static void start(struct fixture *f, uint64_t seed)
{
	sim_start(&f->sim, seed, &(struct sim_options){0});
	f->disk = sim_disk_new(&f->sim);
}

static struct sim_file *open_file(struct fixture *f, const char *path, unsigned flags)
{
	uint64_t size;

	int fd = sim_disk_open(f->disk, 1, 1, path, flags, &size);
	assert_true(fd >= 0);
	return sim_disk_file(f->disk, 1, fd);
}

static struct sim_file *make_file(struct fixture *f, const char *path)
{
	return open_file(f, path, CKPT_OPEN_CREATE);
}

static void put(struct fixture *f, struct sim_file *file, char byte, uint64_t len, uint64_t off)
{
	char data[8192];

	memset(data, byte, len);
	assert_int_equal(sim_disk_write(f->disk, file->inode, data, len, off), len);
}

static void sync_file(struct fixture *f, struct sim_file *file)
{
	assert_int_equal(
		sim_disk_fdatasync(f->disk, file->inode, sim_disk_mark(f->disk), false), 0);
}

static void sync_dir(struct fixture *f, const char *path)
{
	assert_int_equal(sim_disk_sync_dir(f->disk, path, sim_disk_mark(f->disk), false), 0);
}

static void cut(struct fixture *f, struct sim_cut how)
{
	sim_disk_drop(f->disk, 1);
	sim_disk_cut(f->disk, &how);
}

/* -1: not there. */
static int64_t read_file(struct fixture *f, const char *path, char *data, size_t room)
{
	uint64_t size;

	int fd = sim_disk_open(f->disk, 2, 1, path, 0, &size);
	if (fd < 0)
		return -1;
	struct sim_file *file = sim_disk_file(f->disk, 2, fd);
	int64_t got = sim_disk_read(file->inode, data, room, 0);
	assert_int_equal(got, size);
	sim_disk_close(f->disk, file);
	return got;
}

static const struct sim_cut lose_all = {0, 0, 0, 0};
static const struct sim_cut keep_names = {0, 0, 10000, 0};

static void synced_survives_every_cut(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < CUTS; seed++) {
		struct fixture f;
		char data[8192];

		start(&f, seed);
		assert_int_equal(sim_disk_mkdir(f.disk, "d"), 0);
		sync_dir(&f, ".");
		struct sim_file *file = make_file(&f, "d/x");
		put(&f, file, 'a', 4096, 0);
		put(&f, file, 'b', 4096, 4096);
		assert_int_equal(sim_disk_truncate(f.disk, file->inode, 5000), 0);
		sync_file(&f, file);
		sync_dir(&f, "d");
		cut(&f, sim_cut_pick(&f.sim));
		assert_int_equal(read_file(&f, "d/x", data, sizeof(data)), 5000);
		for (size_t i = 0; i < 5000; i++)
			assert_int_equal(data[i], i < 4096 ? 'a' : 'b');
		/* And the next one. */
		cut(&f, lose_all);
		assert_int_equal(read_file(&f, "d/x", data, sizeof(data)), 5000);
		sim_disk_free(f.disk);
	}
}

static void a_synced_file_may_lose_its_name(void **state)
{
	struct fixture f;
	char data[8192];

	(void)state;
	start(&f, 1);
	struct sim_file *file = make_file(&f, "x");
	put(&f, file, 'a', 100, 0);
	sync_file(&f, file);
	assert_true(sim_disk_exists(f.disk, "x"));
	cut(&f, lose_all);
	assert_int_equal(read_file(&f, "x", data, sizeof(data)), -1);
	sim_disk_free(f.disk);
}

static void a_synced_name_may_lose_its_bytes(void **state)
{
	struct fixture f;
	char data[8192];

	(void)state;
	start(&f, 1);
	struct sim_file *file = make_file(&f, "x");
	put(&f, file, 'a', 100, 0);
	sync_dir(&f, ".");
	cut(&f, lose_all);
	assert_int_equal(read_file(&f, "x", data, sizeof(data)), 0);
	sim_disk_free(f.disk);
}

static void a_directory_needs_its_parent(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 1);
	assert_int_equal(sim_disk_mkdir(f.disk, "d"), 0);
	struct sim_file *file = make_file(&f, "d/x");
	sync_file(&f, file);
	sync_dir(&f, "d");
	cut(&f, lose_all);
	assert_false(sim_disk_exists(f.disk, "d"));
	sim_disk_free(f.disk);
}

/* Without a sync each sector is old or new, and each size one that was. */
static void unsynced_bytes_are_old_or_new(void **state)
{
	unsigned torn = 0;
	unsigned lost = 0;
	unsigned kept = 0;

	(void)state;
	for (uint64_t seed = 0; seed < CUTS; seed++) {
		struct fixture f;
		char data[8192];

		start(&f, seed);
		struct sim_file *file = make_file(&f, "x");
		put(&f, file, 'a', 4096, 0);
		sync_file(&f, file);
		sync_dir(&f, ".");
		put(&f, file, 'b', 4096, 0);
		put(&f, file, 'c', 1000, 4096);
		cut(&f, sim_cut_pick(&f.sim));
		int64_t size = read_file(&f, "x", data, sizeof(data));
		assert_true(size == 4096 || size == 5096);
		unsigned fresh = 0;
		for (size_t at = 0; at < 4096; at += 512) {
			assert_true(data[at] == 'a' || data[at] == 'b');
			for (size_t i = 1; i < 512; i++)
				assert_int_equal(data[at + i], data[at]);
			fresh += data[at] == 'b';
		}
		for (int64_t i = 4096; i < size; i++)
			assert_true(data[i] == 0 || data[i] == 'c');
		torn += fresh > 0 && fresh < 8;
		lost += fresh == 0;
		kept += fresh == 8;
		sim_disk_free(f.disk);
	}
	assert_true(torn > 0 && lost > 0 && kept > 0);
}

static void rename_is_whole_or_not_at_all(void **state)
{
	unsigned moved = 0;
	unsigned stayed = 0;

	(void)state;
	for (uint64_t seed = 0; seed < CUTS; seed++) {
		struct fixture f;

		start(&f, seed);
		(void)make_file(&f, "tmp");
		sync_dir(&f, ".");
		assert_int_equal(sim_disk_rename(f.disk, "tmp", "final", false), 0);
		cut(&f, sim_cut_pick(&f.sim));
		bool old = sim_disk_exists(f.disk, "tmp");
		bool new = sim_disk_exists(f.disk, "final");
		assert_int_not_equal(old, new);
		moved += new;
		stayed += old;
		sim_disk_free(f.disk);
	}
	assert_true(moved > 0 && stayed > 0);
}

static void rename_never_replaces(void **state)
{
	struct fixture f;
	char data[8192];

	(void)state;
	start(&f, 1);
	put(&f, make_file(&f, "a"), 'a', 10, 0);
	put(&f, make_file(&f, "b"), 'b', 20, 0);
	assert_int_equal(sim_disk_rename(f.disk, "a", "b", false), -EEXIST);
	assert_int_equal(read_file(&f, "b", data, sizeof(data)), 20);
	assert_int_equal(sim_disk_rename(f.disk, "none", "c", false), -ENOENT);
	uint64_t size;
	assert_int_equal(sim_disk_open(f.disk, 1, 1, "a", CKPT_OPEN_CREATE, &size), -EEXIST);
	assert_int_equal(sim_disk_mkdir(f.disk, "a"), -EEXIST);
	/* Unless it is asked to. */
	assert_int_equal(sim_disk_rename(f.disk, "a", "b", true), 0);
	assert_int_equal(read_file(&f, "b", data, sizeof(data)), 10);
	assert_int_equal(sim_disk_rename(f.disk, "a", "b", true), -ENOENT);
	sim_disk_free(f.disk);
}

/* As Linux does it: the error is told once, then all seems well. */
static void a_failed_sync_is_final(void **state)
{
	struct fixture f;
	char data[8192];

	(void)state;
	start(&f, 1);
	struct sim_file *file = make_file(&f, "x");
	sync_dir(&f, ".");
	put(&f, file, 'a', 512, 0);
	assert_int_equal(
		sim_disk_fdatasync(f.disk, file->inode, sim_disk_mark(f.disk), true), -EIO);
	sync_file(&f, file);
	assert_int_equal(read_file(&f, "x", data, sizeof(data)), 512);
	assert_int_equal(data[0], 'a');
	cut(&f, lose_all);
	assert_int_equal(read_file(&f, "x", data, sizeof(data)), 0);
	sim_disk_free(f.disk);
}

static void a_failed_sync_of_names_may_stop_the_file_system(void **state)
{
	unsigned stopped = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 64; seed++) {
		struct fixture f;
		uint64_t size;

		start(&f, seed);
		(void)make_file(&f, "y");
		assert_int_equal(sim_disk_sync_dir(f.disk, ".", sim_disk_mark(f.disk), true), -EIO);
		int again = sim_disk_sync_dir(f.disk, ".", sim_disk_mark(f.disk), false);
		int made = sim_disk_open(f.disk, 1, 1, "z", CKPT_OPEN_CREATE, &size);
		if (sim_disk_stopped(f.disk)) {
			assert_int_equal(again, -EIO);
			assert_int_equal(made, -EROFS);
			stopped++;
		} else {
			assert_int_equal(again, 0);
			assert_true(made >= 0);
		}
		bool durable = !sim_disk_stopped(f.disk);
		cut(&f, lose_all);
		assert_false(sim_disk_stopped(f.disk));
		assert_int_equal(sim_disk_exists(f.disk, "y"), durable);
		sim_disk_free(f.disk);
	}
	assert_true(stopped > 0 && stopped < 64);
}

static void a_sync_saves_what_was_there_when_it_was_asked_for(void **state)
{
	struct fixture f;
	char data[8192];

	(void)state;
	start(&f, 1);
	struct sim_file *file = make_file(&f, "x");
	sync_dir(&f, ".");
	put(&f, file, 'a', 512, 0);
	uint64_t mark = sim_disk_mark(f.disk);
	put(&f, file, 'b', 512, 512);
	assert_int_equal(sim_disk_fdatasync(f.disk, file->inode, mark, false), 0);
	cut(&f, lose_all);
	assert_int_equal(read_file(&f, "x", data, sizeof(data)), 512);
	sim_disk_free(f.disk);
}

static void an_unlink_without_a_sync_may_be_undone(void **state)
{
	struct fixture f;
	char data[8192];

	(void)state;
	start(&f, 1);
	struct sim_file *file = make_file(&f, "x");
	put(&f, file, 'a', 64, 0);
	sync_file(&f, file);
	sync_dir(&f, ".");
	assert_int_equal(sim_disk_unlink(f.disk, "x"), 0);
	assert_false(sim_disk_exists(f.disk, "x"));
	cut(&f, lose_all);
	assert_int_equal(read_file(&f, "x", data, sizeof(data)), 64);
	assert_int_equal(sim_disk_unlink(f.disk, "x"), 0);
	cut(&f, keep_names);
	assert_false(sim_disk_exists(f.disk, "x"));
	sim_disk_free(f.disk);
}

static void locks_exclude_on_one_machine(void **state)
{
	struct fixture f;
	uint64_t size;

	(void)state;
	start(&f, 1);
	struct sim_file *a = make_file(&f, "x");
	struct sim_file *b = open_file(&f, "x", CKPT_OPEN_RDWR);
	int fd = sim_disk_open(f.disk, 2, 2, "x", CKPT_OPEN_RDWR, &size);
	struct sim_file *far = sim_disk_file(f.disk, 2, fd);
	assert_int_equal(sim_disk_lock(f.disk, a, 0, 0, true), 0);
	assert_int_equal(sim_disk_lock(f.disk, b, 0, 0, true), 0);
	assert_int_equal(sim_disk_lock(f.disk, a, 0, 0, false), -EAGAIN);
	sim_disk_close(f.disk, b);
	assert_int_equal(sim_disk_lock(f.disk, a, 0, 0, false), 0);
	b = open_file(&f, "x", 0);
	assert_int_equal(sim_disk_lock(f.disk, b, 0, 0, true), -EAGAIN);
	assert_int_equal(sim_disk_lock(f.disk, far, 0, 0, false), 0);
	/* Of single bytes. */
	a = make_file(&f, "y");
	b = open_file(&f, "y", CKPT_OPEN_RDWR);
	assert_int_equal(sim_disk_lock(f.disk, a, 100, 1, false), 0);
	assert_int_equal(sim_disk_lock(f.disk, b, 0, 0, false), -EAGAIN);
	assert_int_equal(sim_disk_lock(f.disk, b, 100, 1, true), -EAGAIN);
	assert_int_equal(sim_disk_lock(f.disk, b, 101, 1, false), 0);
	assert_int_equal(sim_disk_lock(f.disk, a, 101, 1, false), -EAGAIN);
	sim_disk_drop(f.disk, 1);
	assert_int_equal(sim_disk_open_count(f.disk, 1), 0);
	assert_int_equal(sim_disk_open_count(f.disk, 2), 1);
	sim_disk_free(f.disk);
}

static void a_full_disk_says_so_and_unlink_helps(void **state)
{
	struct fixture f;

	(void)state;
	start(&f, 1);
	sim_disk_set_space(f.disk, 16384);
	struct sim_file *a = make_file(&f, "a");
	assert_int_equal(sim_disk_allocate(f.disk, a->inode, 8192), 0);
	struct sim_file *b = make_file(&f, "b");
	assert_int_equal(sim_disk_allocate(f.disk, b->inode, 8192), -ENOSPC);
	char data[8192] = {0};
	assert_int_equal(sim_disk_write(f.disk, b->inode, data, 8192, 0), -ENOSPC);
	assert_int_equal(sim_disk_write(f.disk, a->inode, data, 8192, 0), 8192);
	assert_int_equal(sim_disk_unlink(f.disk, "a"), 0);
	assert_int_equal(sim_disk_allocate(f.disk, b->inode, 8192), -ENOSPC);
	sim_disk_close(f.disk, a);
	assert_int_equal(sim_disk_allocate(f.disk, b->inode, 8192), 0);
	sim_disk_free(f.disk);
}

static void names_are_listed_in_order(void **state)
{
	struct fixture f;
	char *names;
	size_t bytes;
	size_t count;

	(void)state;
	start(&f, 1);
	(void)make_file(&f, "b");
	(void)make_file(&f, "a");
	assert_int_equal(sim_disk_mkdir(f.disk, "c"), 0);
	assert_int_equal(sim_disk_list(f.disk, ".", &names, &bytes, &count), 0);
	assert_int_equal(count, 3);
	assert_int_equal(bytes, 6);
	assert_memory_equal(names, "a\0b\0c", 6);
	free(names);
	assert_int_equal(sim_disk_list(f.disk, "none", &names, &bytes, &count), -ENOENT);
	assert_false(sim_path_valid("../x"));
	assert_false(sim_path_valid("/x"));
	assert_false(sim_path_valid("a//b"));
	assert_false(sim_path_valid("a/."));
	assert_true(sim_path_valid("a/.b"));
	sim_disk_free(f.disk);
}

/* Requests. */

struct pair {
	struct ckpt_inbox inbox;
	struct ckpt_io_req first;
	struct ckpt_io_req second;
	char *memory;
};

static void nothing(struct ckpt_node *node)
{
	(void)node;
}

static struct sim_io *start_io(struct fixture *f, struct pair *p, unsigned owner, bool direct)
{
	struct sim_io_config config = {.inbox = &p->inbox,
		.owner = owner,
		.node = 1,
		.root = 7,
		.align = 512,
		.direct = direct,
		.stuck_ns = UINT64_C(1000000000)};

	memset(p, 0, sizeof(*p));
	assert_int_equal(ckpt_inbox_init(&p->inbox), 0);
	p->memory = aligned_alloc(4096, 8192);
	assert_non_null(p->memory);
	return sim_io_new(&f->sim, f->disk, &config);
}

static void submit_write(struct sim_io *io, struct pair *p, struct ckpt_io_req *req, int fd,
	uint64_t len, uint64_t off)
{
	*req = (struct ckpt_io_req){.node = {.run = nothing},
		.op = CKPT_IO_OP_WRITE,
		.fd = fd,
		.slot = -1,
		.buf = p->memory + off,
		.len = len,
		.off = off};
	sim_io_of(io)->ops->submit(sim_io_of(io), req);
}

static void end_io(struct pair *p)
{
	(void)ckpt_inbox_take(&p->inbox);
	ckpt_inbox_destroy(&p->inbox);
	free(p->memory);
}

static void requests_finish_in_any_order(void **state)
{
	unsigned first = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 64; seed++) {
		struct fixture f;
		struct pair p;

		start(&f, seed);
		struct sim_io *io = start_io(&f, &p, 1, true);
		struct sim_file *file = make_file(&f, "x");
		submit_write(io, &p, &p.first, file->fd, 512, 0);
		submit_write(io, &p, &p.second, file->fd, 512, 512);
		assert_int_equal(sim_io_in_flight(io), 2);
		assert_int_equal(sim_io_ready(io), 0);
		f.sim.now_ns = sim_io_next(io);
		while (sim_io_in_flight(io)) {
			if (!sim_io_ready(io))
				f.sim.now_ns = sim_io_next(io);
			sim_io_finish(io, 0);
		}
		first += ckpt_inbox_take(&p.inbox) == &p.first.node;
		assert_int_equal(p.first.result, 512);
		assert_false(f.sim.failed);
		sim_io_free(io);
		end_io(&p);
		sim_disk_free(f.disk);
	}
	assert_true(first > 0 && first < 64);
}

static void a_write_takes_its_bytes_when_it_finishes(void **state)
{
	struct fixture f;
	struct pair p;
	char data[8192];

	(void)state;
	start(&f, 1);
	struct sim_io *io = start_io(&f, &p, 1, true);
	struct sim_file *file = make_file(&f, "x");
	memset(p.memory, 'a', 512);
	submit_write(io, &p, &p.first, file->fd, 512, 0);
	memset(p.memory, 'b', 512);
	f.sim.now_ns = sim_io_next(io);
	sim_io_finish(io, 0);
	assert_int_equal(read_file(&f, "x", data, sizeof(data)), 512);
	assert_int_equal(data[0], 'b');
	sim_io_free(io);
	end_io(&p);
	sim_disk_free(f.disk);
}

/* The successor has the lock, and the write of the dead one still comes. */
static void writes_of_the_dead_land_late(void **state)
{
	unsigned late = 0;
	unsigned never = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 64; seed++) {
		struct fixture f;
		struct pair p;
		uint64_t size;
		char data[8192];

		start(&f, seed);
		struct sim_io *io = start_io(&f, &p, 1, true);
		struct sim_file *file = make_file(&f, "x");
		assert_int_equal(sim_disk_lock(f.disk, file, 0, 0, false), 0);
		memset(p.memory, 'z', 512);
		submit_write(io, &p, &p.first, file->fd, 512, 0);
		sim_io_die(io);
		memset(p.memory, 0, 512);
		int fd = sim_disk_open(f.disk, 2, 1, "x", CKPT_OPEN_RDWR, &size);
		struct sim_file *next = sim_disk_file(f.disk, 2, fd);
		assert_int_equal(sim_disk_lock(f.disk, next, 0, 0, false), 0);
		if (size == 0) {
			f.sim.now_ns += UINT64_C(100000000);
			(void)sim_disk_land(f.disk);
			int64_t got = read_file(&f, "x", data, sizeof(data));
			late += got == 512 && data[0] == 'z';
			never += got == 0;
		}
		assert_null(ckpt_inbox_take(&p.inbox));
		end_io(&p);
		sim_disk_free(f.disk);
	}
	assert_true(late > 0 && never > 0);
}

static void expect_violation(unsigned what)
{
	struct fixture f;
	struct pair p;

	start(&f, 1);
	struct sim_io *io = start_io(&f, &p, 1, true);
	int fd = open_file(&f, "x", CKPT_OPEN_CREATE | CKPT_OPEN_DIRECT)->fd;
	struct ckpt_io_req req = {
		.node = {.run = nothing}, .op = CKPT_IO_OP_UNLINK, .root = 7, .path = "../x"};
	if (what == 0)
		submit_write(io, &p, &p.first, fd, 500, 0);
	else if (what == 1)
		submit_write(io, &p, &p.first, fd, 512, 100);
	else if (what == 2)
		submit_write(io, &p, &p.first, fd + 1, 512, 0);
	else
		sim_io_of(io)->ops->submit(sim_io_of(io), &req);
	assert_true(f.sim.failed);
	sim_io_forget(io);
	end_io(&p);
	sim_disk_free(f.disk);
}

/* Not aligned, not open, not below the store. */
static void forbidden_requests_are_told(void **state)
{
	(void)state;
	for (unsigned what = 0; what < 4; what++)
		expect_violation(what);
}

static void errors_come_as_often_as_asked_for(void **state)
{
	struct fixture f;
	struct pair p;
	unsigned failed = 0;
	unsigned cut_short = 0;

	(void)state;
	start(&f, 3);
	f.sim.mix[SIM_EIO_WRITE] = 1000;
	f.sim.mix[SIM_SHORT_IO] = 1000;
	struct sim_io *io = start_io(&f, &p, 1, true);
	struct sim_file *file = open_file(&f, "x", CKPT_OPEN_CREATE | CKPT_OPEN_DIRECT);
	for (unsigned i = 0; i < 1000; i++) {
		submit_write(io, &p, &p.first, file->fd, 4096, 0);
		f.sim.now_ns = sim_io_next(io);
		sim_io_finish(io, 0);
		(void)ckpt_inbox_take(&p.inbox);
		failed += p.first.result == -EIO;
		if (p.first.result > 0 && p.first.result < 4096) {
			assert_int_equal(p.first.result % 512, 0);
			cut_short++;
		}
	}
	assert_in_range(failed, 50, 150);
	assert_in_range(cut_short, 50, 150);
	sim_io_free(io);
	end_io(&p);
	sim_disk_free(f.disk);
}

#define STEP "g000001/step-0000000001"

struct hits {
	unsigned passing;
	unsigned on[2]; /* STEP "/x", STEP "/y" */
};

static void told(void *user, const char *path, bool passing)
{
	struct hits *hits = user;

	assert_int_equal(strncmp(path, STEP "/", strlen(STEP) + 1), 0);
	hits->passing += passing;
	hits->on[path[strlen(STEP) + 1] == 'y'] += !passing;
}

/* Two files of a step, of one byte each, all of it durable. */
static void start_step(struct fixture *f, uint64_t seed, struct hits *hits, struct sim_file *ret[2])
{
	*hits = (struct hits){0};
	start(f, seed);
	sim_disk_tell(f->disk, told, hits);
	assert_int_equal(sim_disk_mkdir(f->disk, "g000001"), 0);
	assert_int_equal(sim_disk_mkdir(f->disk, STEP), 0);
	ret[0] = make_file(f, STEP "/x");
	ret[1] = make_file(f, STEP "/y");
	put(f, ret[0], 'x', 4096, 0);
	put(f, ret[1], 'y', 4096, 0);
	sync_file(f, ret[0]);
	sync_file(f, ret[1]);
	sync_dir(f, STEP);
	sync_dir(f, "g000001");
	sync_dir(f, ".");
}

/* Bytes of the file that are not `byte`. */
static size_t count_others(struct fixture *f, const char *path, char byte)
{
	char data[8192];
	size_t count = 0;

	assert_int_equal(read_file(f, path, data, sizeof(data)), 4096);
	for (size_t i = 0; i < 4096; i++)
		count += data[i] != byte;
	return count;
}

/* At once, or when the cache is gone; and no sync says so. */
static void a_lost_write_is_lost_and_told(void **state)
{
	unsigned seen = 0;

	(void)state;
	for (uint64_t seed = 0; seed < CUTS; seed++) {
		struct fixture f;
		struct hits hits;
		struct sim_file *files[2];
		char data[512] = "lost";

		start_step(&f, seed, &hits, files);
		assert_int_equal(sim_disk_lose(f.disk, files[0]->inode, data, 512, 1024), 512);
		put(&f, files[0], 'z', 512, 2048);
		sync_file(&f, files[0]);
		assert_int_equal(hits.on[0], 1);
		assert_int_equal(hits.on[1] + hits.passing, 0);
		seen += count_others(&f, STEP "/x", 'x') == 1024;
		cut(&f, sim_cut_pick(&f.sim));
		assert_int_equal(count_others(&f, STEP "/x", 'x'), 512);
		assert_int_equal(count_others(&f, STEP "/y", 'y'), 0);
		sim_disk_free(f.disk);
	}
	assert_in_range(seen, CUTS / 3, CUTS * 2 / 3);
}

static void a_misplaced_write_hits_what_is_told(void **state)
{
	unsigned other = 0;

	(void)state;
	for (uint64_t seed = 0; seed < CUTS; seed++) {
		struct fixture f;
		struct hits hits;
		struct sim_file *files[2];
		char data[512] = "misplaced";

		start_step(&f, seed, &hits, files);
		assert_int_equal(sim_disk_misplace(f.disk, files[0]->inode, data, 512, 1024), 512);
		sync_file(&f, files[0]);
		cut(&f, lose_all);
		size_t here = count_others(&f, STEP "/x", 'x');
		size_t there = count_others(&f, STEP "/y", 'y');
		/* Told of the file that was meant, and of the one that was hit. */
		assert_int_equal(hits.on[0], here ? 2 : 1);
		assert_int_equal(hits.on[1], there ? 1 : 0);
		/* By chance it lands where it should. */
		assert_int_equal(here + there, hits.on[0] + hits.on[1] > 1 ? 512 : 0);
		other += there > 0;
		sim_disk_free(f.disk);
	}
	assert_in_range(other, CUTS / 5, CUTS * 4 / 5);
}

static void a_confused_read_leaves_the_disk_as_it_is(void **state)
{
	unsigned confused = 0;

	(void)state;
	for (uint64_t seed = 0; seed < CUTS; seed++) {
		struct fixture f;
		struct hits hits;
		struct sim_file *files[2];
		char data[4096];
		size_t wrong = 0;

		start_step(&f, seed, &hits, files);
		assert_int_equal(sim_disk_read(files[0]->inode, data, 4096, 0), 4096);
		sim_disk_confuse(f.disk, files[0]->inode, data, 4096, 0);
		for (size_t i = 0; i < sizeof(data); i++)
			wrong += data[i] != 'x';
		assert_int_equal(hits.passing, wrong > 0);
		assert_int_equal(hits.on[0] + hits.on[1], 0);
		assert_int_equal(count_others(&f, STEP "/x", 'x'), 0);
		confused += wrong > 0;
		sim_disk_free(f.disk);
	}
	assert_true(confused > CUTS / 10);
}

static void a_sealed_file_is_not_written(void **state)
{
	struct fixture f;
	struct hits hits;
	struct sim_file *files[2];

	(void)state;
	start_step(&f, 1, &hits, files);
	struct sim_file *temporary = make_file(&f, STEP "/z.tmp-1");
	sim_disk_seal(f.disk, STEP);
	put(&f, temporary, 'z', 512, 0);
	assert_false(f.sim.failed);
	put(&f, files[1], 'z', 512, 0);
	assert_true(f.sim.failed);
	sim_disk_free(f.disk);
}

static void a_disk_that_hangs_answers_later(void **state)
{
	struct fixture f;
	struct pair p;

	(void)state;
	start(&f, 5);
	struct sim_io *io = start_io(&f, &p, 1, false);
	struct sim_file *file = make_file(&f, "x");
	submit_write(io, &p, &p.first, file->fd, 512, 0);
	f.sim.now_ns = sim_io_next(io);
	assert_int_equal(sim_io_ready(io), 1);
	sim_disk_hang(f.disk, f.sim.now_ns + 1000);
	assert_int_equal(sim_io_ready(io), 0);
	assert_int_equal(sim_io_next(io), f.sim.now_ns + 1000);
	f.sim.now_ns += 1000;
	assert_int_equal(sim_io_ready(io), 1);
	sim_io_forget(io);
	end_io(&p);
	sim_disk_free(f.disk);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(synced_survives_every_cut),
		cmocka_unit_test(a_synced_file_may_lose_its_name),
		cmocka_unit_test(a_synced_name_may_lose_its_bytes),
		cmocka_unit_test(a_directory_needs_its_parent),
		cmocka_unit_test(unsynced_bytes_are_old_or_new),
		cmocka_unit_test(rename_is_whole_or_not_at_all),
		cmocka_unit_test(rename_never_replaces),
		cmocka_unit_test(a_failed_sync_is_final),
		cmocka_unit_test(a_failed_sync_of_names_may_stop_the_file_system),
		cmocka_unit_test(a_sync_saves_what_was_there_when_it_was_asked_for),
		cmocka_unit_test(an_unlink_without_a_sync_may_be_undone),
		cmocka_unit_test(locks_exclude_on_one_machine),
		cmocka_unit_test(a_full_disk_says_so_and_unlink_helps),
		cmocka_unit_test(names_are_listed_in_order),
		cmocka_unit_test(requests_finish_in_any_order),
		cmocka_unit_test(a_write_takes_its_bytes_when_it_finishes),
		cmocka_unit_test(writes_of_the_dead_land_late),
		cmocka_unit_test(forbidden_requests_are_told),
		cmocka_unit_test(errors_come_as_often_as_asked_for),
		cmocka_unit_test(a_lost_write_is_lost_and_told),
		cmocka_unit_test(a_misplaced_write_hits_what_is_told),
		cmocka_unit_test(a_confused_read_leaves_the_disk_as_it_is),
		cmocka_unit_test(a_sealed_file_is_not_written),
		cmocka_unit_test(a_disk_that_hangs_answers_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
