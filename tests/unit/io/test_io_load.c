/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests at once: every one is answered once, with its own bytes, and close waits for all. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"
#include "lib/confine.h"
#include "lib/io_rig.h"
#include "lib/prng.h"
#include "lib/test.h"

#define PAGE     4096
#define BLOCK    ((size_t)64 << 10)
#define REQUESTS 200
#define DEPTHS   3

/* A race detector looks at every byte that a system call reads. */
#if defined(__SANITIZE_THREAD__)
#define SLOW_GIGABYTES
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOW_GIGABYTES
#endif
#endif

static const unsigned depths[DEPTHS] = {1, 5, CKPT_IO_DEPTH_MAX};

static void every(void (*body)(struct io_rig *rig))
{
	static const enum ckpt_io_kind kinds[] = {CKPT_IO_THREADS, CKPT_IO_URING};
	struct io_rig rig;

	for (size_t k = 0; k < COUNT(kinds); k++) {
		if (kinds[k] == CKPT_IO_URING && !rig_has_uring())
			continue;
		for (size_t d = 0; d < DEPTHS; d++) {
			char *dir = rig_dir_make(d == 0 ? RIG_SHM : RIG_DISK);
			assert_int_equal(io_rig_open_at(&rig, kinds[k], depths[d], dir), 0);
			print_message("%s, depth %u\n", rig.io->ops->name, depths[d]);
			body(&rig);
			io_rig_close(&rig);
			rig_dir_remove(dir);
		}
	}
}

static int64_t open_new(struct io_rig *rig, const char *path)
{
	unsigned direct = rig->io->direct ? CKPT_OPEN_DIRECT : 0;
	int64_t fd = io_rig_open_file(rig, path, CKPT_OPEN_CREATE | direct);

	assert_true(fd >= 0);
	return fd;
}

static void shuffle(unsigned *order, unsigned count, struct prng *prng)
{
	for (unsigned i = 0; i < count; i++)
		order[i] = i;
	for (unsigned i = count - 1; i > 0; i--) {
		unsigned j = (unsigned)prng_below(prng, i + 1);
		unsigned swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
}

static size_t length_of(unsigned n)
{
	return (size_t)PAGE * (1 + n % 16);
}

/* Of request n: they lie one behind the other, in the file and in memory. */
static size_t place_of(unsigned n)
{
	size_t place = 0;

	for (unsigned i = 0; i < n; i++)
		place += length_of(i);
	return place;
}

/* Transfers of different lengths, submitted in any order, in one go. */
static void move_all(
	struct io_rig *rig, enum ckpt_io_op op, int64_t fd, char *memory, struct prng *prng)
{
	struct rig_req *reqs = calloc(REQUESTS, sizeof(*reqs));
	unsigned order[REQUESTS];

	shuffle(order, REQUESTS, prng);
	for (unsigned i = 0; i < REQUESTS; i++) {
		unsigned n = order[i];
		reqs[n].req = (struct ckpt_io_req){.op = op,
			.fd = (int)fd,
			.buf = memory + place_of(n),
			.len = length_of(n),
			.off = place_of(n),
			.slot = -1};
		io_rig_submit(rig, &reqs[n]);
	}
	for (unsigned n = 0; n < REQUESTS; n++) {
		io_rig_wait(rig, &reqs[n]);
		assert_int_equal(reqs[n].req.result, reqs[n].req.len);
	}
	free(reqs);
}

static void all_at_once(struct io_rig *rig)
{
	struct prng prng = {.state = 7};
	size_t size = place_of(REQUESTS);
	char *memory = rig_pages(size);
	int64_t fd = open_new(rig, "f");

	for (unsigned n = 0; n < REQUESTS; n++)
		rig_fill(memory + place_of(n), length_of(n), n);
	move_all(rig, CKPT_IO_OP_WRITE, fd, memory, &prng);
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_FDATASYNC, fd, 0), 0);
	memset(memory, 0xee, size);
	move_all(rig, CKPT_IO_OP_READ, fd, memory, &prng);
	for (unsigned n = 0; n < REQUESTS; n++)
		assert_true(rig_filled(memory + place_of(n), length_of(n), n));
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_CLOSE, fd, 0), 0);
	free(memory);
}

static void test_all_at_once(void **state)
{
	(void)state;
	every(all_at_once);
}

/* Slots as staging has them: one mapping, used again and again, wholly and in part. */
static void slots(struct io_rig *rig)
{
	enum { SLOTS = 6, ROUNDS = 5 };
	struct rig_req reqs[SLOTS] = {0};
	int memfd = memfd_create("slots", MFD_CLOEXEC);
	int64_t fd = open_new(rig, "f");

	assert_true(memfd >= 0);
	assert_int_equal(ftruncate(memfd, SLOTS * BLOCK), 0);
	char *base = mmap(NULL, SLOTS * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	assert_true(base != MAP_FAILED);
	int r = ckpt_io_register_slots(rig->io, base, BLOCK, SLOTS);
	assert_true(r == 0 || r == -EOPNOTSUPP || r == -ENOMEM);
	assert_int_equal(rig->io->registered, r == 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (int reading = 0; reading < 2; reading++) {
			size_t skip = round % 2 ? PAGE : 0;
			for (unsigned s = 0; s < SLOTS; s++) {
				char *data = base + s * BLOCK + skip;
				if (reading)
					memset(data, 0xee, BLOCK - skip);
				else
					rig_fill(data, BLOCK - skip, round * SLOTS + s);
				reqs[s].req = (struct ckpt_io_req){
					.op = reading ? CKPT_IO_OP_READ : CKPT_IO_OP_WRITE,
					.fd = (int)fd,
					.buf = data,
					.len = BLOCK - skip,
					.off = (round * SLOTS + s) * BLOCK,
					.slot = s % 3 == 2 ? -1 : (int)s};
				io_rig_submit(rig, &reqs[s]);
			}
			for (unsigned s = 0; s < SLOTS; s++) {
				io_rig_wait(rig, &reqs[s]);
				assert_int_equal(reqs[s].req.result, BLOCK - skip);
				assert_true(rig_filled(
					base + s * BLOCK + skip, BLOCK - skip, round * SLOTS + s));
			}
		}
	}
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_CLOSE, fd, 0), 0);
	assert_int_equal(munmap(base, SLOTS * BLOCK), 0);
	(void)close(memfd);
}

static void test_slots(void **state)
{
	(void)state;
	every(slots);
}

/* Submitting is for any thread. */
struct submitter {
	struct io_rig *rig;
	struct rig_req reqs[64];
	char data[64];
	int fd;
	unsigned number;
};

static void *submit_some(void *argument)
{
	struct submitter *s = argument;

	for (unsigned i = 0; i < 64; i++) {
		s->data[i] = (char)(s->number * 64 + i);
		s->reqs[i].req = (struct ckpt_io_req){.op = CKPT_IO_OP_WRITE,
			.fd = s->fd,
			.buf = &s->data[i],
			.len = 1,
			.off = s->number * 64 + i,
			.slot = -1};
		io_rig_submit(s->rig, &s->reqs[i]);
	}
	return NULL;
}

static void from_threads(struct io_rig *rig)
{
	enum { THREADS = 4 };
	struct submitter *s = calloc(THREADS, sizeof(*s));
	pthread_t threads[THREADS];
	unsigned char back[THREADS * 64];
	int64_t fd = io_rig_open_file(rig, "f", CKPT_OPEN_CREATE);

	assert_true(fd >= 0);
	for (unsigned i = 0; i < THREADS; i++) {
		s[i].rig = rig;
		s[i].number = i;
		s[i].fd = (int)fd;
		assert_int_equal(pthread_create(&threads[i], NULL, submit_some, &s[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	for (unsigned i = 0; i < THREADS * 64; i++) {
		io_rig_wait(rig, &s[i / 64].reqs[i % 64]);
		assert_int_equal(s[i / 64].reqs[i % 64].req.result, 1);
	}
	assert_int_equal(io_rig_read(rig, fd, back, sizeof(back), 0), sizeof(back));
	for (unsigned i = 0; i < THREADS * 64; i++)
		assert_int_equal(back[i], i & 0xff);
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_CLOSE, fd, 0), 0);
	free(s);
}

static void test_from_threads(void **state)
{
	(void)state;
	every(from_threads);
}

/* More than a call can move is moved in part, on every backend alike. */
static void huge(enum ckpt_io_kind kind)
{
	size_t size = (size_t)5 << 30;
	void *zeros =
		mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct io_rig rig;

	assert_true(zeros != MAP_FAILED && null >= 0);
	assert_int_equal(io_rig_open(&rig, kind, RIG_SHM), 0);
	assert_int_equal(io_rig_write(&rig, null, zeros, size, 0), 1 << 30);
	assert_int_equal(io_rig_write(&rig, null, zeros, 1 << 20, 0), 1 << 20);
	io_rig_close(&rig);
	(void)close(null);
	assert_int_equal(munmap(zeros, size), 0);
}

static void test_huge(void **state)
{
	(void)state;
#ifdef SLOW_GIGABYTES
	print_message("a gigabyte is too much for this sanitizer\n");
	skip();
#endif
	huge(CKPT_IO_THREADS);
	if (rig_has_uring())
		huge(CKPT_IO_URING);
}

static unsigned answers;

static void count_answer(struct ckpt_node *node)
{
	(void)node;
	answers++;
}

/* Whoever closes while requests are under way gets all their answers first. */
static void close_waits(enum ckpt_io_kind kind)
{
	enum { COUNT_OF = 40 };
	struct ckpt_io_req reqs[COUNT_OF];
	char *memory = rig_pages(COUNT_OF * BLOCK);
	struct io_rig rig;

	assert_int_equal(io_rig_open(&rig, kind, RIG_DISK), 0);
	int64_t fd = open_new(&rig, "f");
	for (unsigned i = 0; i < COUNT_OF; i++) {
		reqs[i] = (struct ckpt_io_req){
			.op = i % 4 == 3 ? CKPT_IO_OP_SYNC_DIR : CKPT_IO_OP_WRITE,
			.root = rig.root,
			.path = ".",
			.fd = (int)fd,
			.buf = memory + i * BLOCK,
			.len = BLOCK,
			.off = i * BLOCK,
			.slot = -1};
		reqs[i].node.run = count_answer;
		ckpt_io_submit(rig.io, &reqs[i]);
	}
	assert_int_equal(ckpt_io_close(rig.io, -1), 0);
	rig.io = NULL;
	answers = 0;
	struct ckpt_node *node = ckpt_inbox_take(&rig.inbox);
	for (; node; node = node->next)
		node->run(node);
	assert_int_equal(answers, COUNT_OF);
	for (unsigned i = 0; i < COUNT_OF; i++)
		assert_int_equal(reqs[i].result, i % 4 == 3 ? 0 : (int64_t)BLOCK);
	(void)close((int)fd);
	io_rig_close(&rig);
	free(memory);
}

static void test_close_waits(void **state)
{
	(void)state;
	close_waits(CKPT_IO_THREADS);
	if (rig_has_uring())
		close_waits(CKPT_IO_URING);
}

/* Memory that does not come until somebody provides it, so that a write from it waits. */
static char *pages_that_wait(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0)
		return NULL;
	char *pages = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = {
		.range = {.start = (uintptr_t)pages, .len = BLOCK},
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	if (pages == MAP_FAILED || ioctl(uffd, UFFDIO_REGISTER, &range) < 0)
		return NULL;
	return pages;
}

struct stuck {
	enum ckpt_io_kind kind;
	char *dir; /* whose file stays locked as long as the child lives */
};

/* In a child: what is left behind goes with it. 0 if close gave up, and not before its time. */
static int close_gives_up(void *argument)
{
	const struct stuck *stuck = argument;
	struct rig_req req = {0};
	struct io_rig rig;
	char *pages = pages_that_wait();

	if (!pages)
		return CONFINE_SKIP;
	if (io_rig_open_at(&rig, stuck->kind, 0, stuck->dir) < 0)
		return 1;
	int64_t fd = io_rig_open_file(&rig, "f", CKPT_OPEN_CREATE);
	req.req = (struct ckpt_io_req){
		.op = CKPT_IO_OP_WRITE, .fd = (int)fd, .buf = pages, .len = BLOCK, .slot = -1};
	io_rig_submit(&rig, &req);
	uint64_t begin_ns = ckpt_clock_ns();
	int r = ckpt_io_close(rig.io, 200);
	if (r != -ETIMEDOUT)
		return 2;
	return ckpt_clock_ns() - begin_ns >= 200 * UINT64_C(1000000) ? 0 : 3;
}

static void test_close_gives_up(void **state)
{
	enum ckpt_io_kind kinds[] = {CKPT_IO_THREADS, CKPT_IO_URING};

	(void)state;
	for (size_t i = 0; i < COUNT(kinds); i++) {
		if (kinds[i] == CKPT_IO_URING && !rig_has_uring())
			continue;
		struct stuck stuck = {.kind = kinds[i], .dir = rig_dir_make(RIG_DISK)};
		int r = confine_run(close_gives_up, &stuck);
		rig_dir_remove(stuck.dir);
		if (r == CONFINE_SKIP) {
			print_message("no userfaultfd here\n");
			skip();
		}
		assert_int_equal(r, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_at_once),
		cmocka_unit_test(test_slots),
		cmocka_unit_test(test_from_threads),
		cmocka_unit_test(test_huge),
		cmocka_unit_test(test_close_waits),
		cmocka_unit_test(test_close_gives_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
