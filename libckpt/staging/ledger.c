/* SPDX-License-Identifier: Apache-2.0 */
#include "staging/ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/latch.h"
#include "base/thread.h"

#define DIR_DEFAULT "/dev/shm"
#define PREFIX      "libckpt-"
#define SUFFIX      ".staging"

#define LINES_MAX 1024
#define MAGIC     UINT64_C(0x31676c74706b63) /* and version: other lines are ignored */

/* Locked bytes of the file, beyond all data: for access to the whole file, and one for the rank of each line. */
#define LOCK_ALL   (INT64_C(1) << 40)
#define LOCK_LINES (LOCK_ALL + 1)

/* While opening, another rank is waited for: this many times, and this long each time. */
#define OPEN_TRIES   1000
#define OPEN_REST_NS 2000000

struct line {
	uint64_t magic;
	uint64_t need; /* 0: unknown yet */
	uint64_t have;
	uint64_t held;
	uint64_t nodes;
	uint64_t bound_count;
	uint64_t ids[CKPT_MEMLIMIT_BOUNDS]; /* of the bounds that apply to it */
	uint64_t all
		/* Per bound: twice what all ranks may have together, as agreed. */
		[CKPT_MEMLIMIT_BOUNDS];
};

struct ckpt_ledger {
	int fd;
	char *path; /* the directory */
	char name[64];
	uint32_t ranks;
	unsigned own; /* index of our line */
	unsigned count;
	struct line lines[LINES_MAX]; /* as read; of a dead rank: without its magic */
};

/* F_OFD_SETLK on one byte. 0, or -errno; -EAGAIN: another process holds it. */
static int lock_byte(int fd, int64_t at, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static bool has_lock(int fd, int64_t at)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	return fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

/* Reads the lines, with LOCK_ALL held. Lines of dead ranks count as empty, and so does our own if there is none yet. */
static int read_lines(struct ckpt_ledger *l)
{
	ssize_t n = pread(l->fd, l->lines, sizeof(l->lines), 0);

	if (n < 0)
		return -errno;
	l->count = (unsigned)((size_t)n / sizeof(struct line));
	for (unsigned i = 0; i < l->count; i++) {
		struct line *line = &l->lines[i];
		bool good = line->magic == MAGIC && line->bound_count <= CKPT_MEMLIMIT_BOUNDS;

		if (!good || (i != l->own && !has_lock(l->fd, LOCK_LINES + i)))
			line->magic = 0;
	}
	return 0;
}

static unsigned live_count(const struct ckpt_ledger *l)
{
	unsigned live = 0;

	for (unsigned i = 0; i < l->count; i++)
		live += l->lines[i].magic == MAGIC;
	return live;
}

static int write_own(struct ckpt_ledger *l)
{
	ssize_t n = pwrite(l->fd, &l->lines[l->own], sizeof(struct line),
		(off_t)(l->own * sizeof(struct line)));

	if (n < 0)
		return -errno;
	return n == (ssize_t)sizeof(struct line) ? 0 : -ENOSPC;
}

/* Takes the first free line. */
static int take_line(struct ckpt_ledger *l, uint64_t have)
{
	int r = -EAGAIN;

	for (l->own = 0; l->own < LINES_MAX && r == -EAGAIN; l->own++)
		r = lock_byte(l->fd, LOCK_LINES + l->own, F_WRLCK);
	if (r < 0)
		return r == -EAGAIN ? -ENOSPC : r;
	l->own--;
	r = read_lines(l);
	if (r < 0)
		return r;
	l->count = (unsigned)ckpt_max_u64(l->count, l->own + 1);
	l->lines[l->own] = (struct line){.magic = MAGIC, .have = have};
	return write_own(l);
}

/* Accepts only a file of this user that nobody else can access and that has one name. -ESTALE: it has none any more. */
static int open_file(int dir, const char *name, int how)
{
	int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | how, 0600);
	struct stat st;
	int r = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		r = -errno;
	else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 0077) ||
		 st.st_nlink > 1)
		r = -EPERM;
	else if (st.st_nlink == 0)
		r = -ESTALE;
	if (r == 0)
		return fd;
	(void)close(fd);
	return r;
}

static bool is_named(int dir, const char *name, int fd)
{
	struct stat own;
	struct stat named;

	return fstat(fd, &own) == 0 && fstatat(dir, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

/* Deletes a file in which no rank has a line. */
static void remove_unused(int dir, const char *name)
{
	struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_ALL};
	int fd = open_file(dir, name, 0);

	if (fd < 0)
		return;
	if (fcntl(fd, F_OFD_SETLK, &all) == 0 && is_named(dir, name, fd))
		(void)unlinkat(dir, name, 0);
	(void)close(fd);
}

static bool is_ledger(const char *name, const char *prefix)
{
	size_t length = strlen(name);

	return strncmp(name, prefix, strlen(prefix)) == 0 && length > sizeof(SUFFIX) &&
	       strcmp(name + length - (sizeof(SUFFIX) - 1), SUFFIX) == 0;
}

/* Deletes files of jobs that were killed before all their ranks had opened them. */
static void sweep(int dir)
{
	char prefix[64];
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	const struct dirent *entry;

	if (!list) {
		if (copy >= 0)
			(void)close(copy);
		return;
	}
	(void)snprintf(prefix, sizeof(prefix), PREFIX "%u-", (unsigned)geteuid());
	/* NOLINTNEXTLINE(concurrency-mt-unsafe): a stream of its own */
	while ((entry = readdir(list)))
		if (is_ledger(entry->d_name, prefix))
			remove_unused(dir, entry->d_name);
	(void)closedir(list);
}

/* Called with LOCK_ALL held. -ESTALE: start again. */
static int join(struct ckpt_ledger *l, int dir, uint64_t have)
{
	int r;

	if (!is_named(dir, l->name, l->fd))
		return -ESTALE;
	r = take_line(l, have);
	/* All ranks have joined: delete the name. */
	if (r == 0 && live_count(l) >= l->ranks)
		(void)unlinkat(dir, l->name, 0);
	return r;
}

static int try_open(struct ckpt_ledger *l, int dir, uint64_t have)
{
	int r;

	l->fd = open_file(dir, l->name, O_CREAT);
	if (l->fd < 0)
		return l->fd;
	r = lock_byte(l->fd, LOCK_ALL, F_WRLCK);
	if (r == 0) {
		r = join(l, dir, have);
		(void)lock_byte(l->fd, LOCK_ALL, F_UNLCK);
	} else if (r != -EAGAIN && is_named(dir, l->name, l->fd)) {
		/* If nobody can lock the file, nobody uses it, and no sweep would delete it. */
		(void)unlinkat(dir, l->name, 0);
	}
	if (r < 0)
		(void)close(l->fd);
	return r;
}

static int open_in(struct ckpt_ledger *l, int dir, const struct ckpt_ledger_config *config)
{
	struct ckpt_latch rest;
	int r = ckpt_latch_init(&rest);

	if (r < 0)
		return r;
	(void)snprintf(l->name, sizeof(l->name), PREFIX "%u-%016llx" SUFFIX, (unsigned)geteuid(),
		(unsigned long long)ckpt_hash64(config->job, strlen(config->job), 0));
	sweep(dir);
	r = try_open(l, dir, config->have);
	for (unsigned i = 0; i < OPEN_TRIES && (r == -EAGAIN || r == -ESTALE); i++) {
		/* Waits for a limited time, not for the lock, because its holder may be stopped. */
		(void)ckpt_latch_wait_until(&rest, 1, ckpt_clock_ns() + OPEN_REST_NS);
		r = try_open(l, dir, config->have);
	}
	ckpt_latch_destroy(&rest);
	return r;
}

static int open_at(struct ckpt_ledger *l, const struct ckpt_ledger_config *config)
{
	int dir;
	int r;

	l->path = ckpt_strdup(config->dir ? config->dir : DIR_DEFAULT);
	if (!l->path)
		return -ENOMEM;
	dir = open(l->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	r = open_in(l, dir, config);
	(void)close(dir);
	return r;
}

int ckpt_ledger_open(const struct ckpt_ledger_config *config, struct ckpt_error *err,
	struct ckpt_ledger **ret_ledger)
{
	struct ckpt_ledger *l = ckpt_alloc(sizeof(*l));
	int r;

	CKPT_ASSERT(config->ranks > 0);
	if (!l)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	l->ranks = config->ranks;
	l->own = LINES_MAX;
	r = open_at(l, config);
	if (r < 0) {
		(void)ckpt_fail(err, r, "cannot use a file in %s: %s",
			config->dir ? config->dir : DIR_DEFAULT, ckpt_code_text(r));
		ckpt_free(l->path);
		ckpt_free(l);
		return r;
	}
	/* A child that inherited it would keep the line of a dead rank. */
	ckpt_fork_close(l->fd);
	*ret_ledger = l;
	return 0;
}

void ckpt_ledger_close(struct ckpt_ledger *ledger)
{
	int dir;

	if (!ledger)
		return;
	/* Frees the line, even if a child has the descriptor. */
	(void)lock_byte(ledger->fd, LOCK_LINES + ledger->own, F_UNLCK);
	ckpt_fork_forget(ledger->fd);
	(void)close(ledger->fd);
	dir = open(ledger->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir >= 0) {
		remove_unused(dir, ledger->name);
		(void)close(dir);
	}
	ckpt_free(ledger->path);
	ckpt_free(ledger);
}

int ckpt_ledger_begin(struct ckpt_ledger *ledger, uint64_t held)
{
	int r = lock_byte(ledger->fd, LOCK_ALL, F_WRLCK);

	if (r < 0)
		return r;
	r = read_lines(ledger);
	if (r == 0 && (ledger->own >= ledger->count || ledger->lines[ledger->own].magic != MAGIC))
		r = -EIO;
	if (r < 0)
		(void)lock_byte(ledger->fd, LOCK_ALL, F_UNLCK);
	else
		ledger->lines[ledger->own].held = held;
	return r;
}

int ckpt_ledger_end(struct ckpt_ledger *ledger, uint64_t have)
{
	int r;

	ledger->lines[ledger->own].have = have;
	r = write_own(ledger);
	(void)lock_byte(ledger->fd, LOCK_ALL, F_UNLCK);
	return r;
}

unsigned ckpt_ledger_ranks(const struct ckpt_ledger *ledger)
{
	return live_count(ledger);
}

uint64_t ckpt_ledger_held(const struct ckpt_ledger *ledger)
{
	uint64_t held = 0;

	for (unsigned i = 0; i < ledger->count; i++)
		if (ledger->lines[i].magic == MAGIC &&
			__builtin_add_overflow(held, ledger->lines[i].held, &held))
			held = UINT64_MAX;
	return held;
}

/* What was agreed for a bound that applies to a line; 0: nothing, or it does not apply. */
static bool is_under(
	const struct line *line, const struct ckpt_memlimit_bound *bound, uint64_t *ret_all)
{
	*ret_all = 0;
	for (unsigned i = 0; i < line->bound_count; i++) {
		if (line->ids[i] != bound->id)
			continue;
		*ret_all = line->all[i];
		return true;
	}
	/* A line states its bounds together with its need. If it does not know its nodes, any may apply. */
	if (line->need == 0)
		return true;
	return bound->nodes != 0 && (line->nodes == 0 || (line->nodes & bound->nodes) != 0);
}

/*
 * Twice what all ranks may have together: what is available plus what they hold. The agreed value is kept while the
 * memory that the ranks hold explains the difference, because they touch memory before they report it.
 */
static uint64_t all_under(const struct ckpt_ledger *l, const struct ckpt_memlimit_bound *bound)
{
	uint64_t least = bound->available;
	uint64_t most = bound->available;
	uint64_t agreed = 0;

	for (unsigned i = 0; i < l->count; i++) {
		const struct line *line = &l->lines[i];
		uint64_t all;

		if (line->magic != MAGIC || !is_under(line, bound, &all))
			continue;
		agreed = ckpt_max_u64(agreed, all);
		if (__builtin_add_overflow(least, line->held, &least) ||
			__builtin_add_overflow(most, ckpt_max_u64(line->have, line->held), &most))
			return UINT64_MAX;
	}
	return ckpt_max_u64(least, ckpt_min_u64(agreed, most));
}

/* An even share of `total`, in which those who need less leave the rest to the others; UINT64_MAX: there is enough. */
static uint64_t share_of(
	const struct ckpt_ledger *l, const struct ckpt_memlimit_bound *bound, uint64_t total)
{
	unsigned absent = l->ranks - (unsigned)ckpt_min_u64(l->ranks, live_count(l));
	uint64_t share = 0;

	/* Each round enlarges it, or is the last. */
	for (;;) {
		uint64_t rest = total;
		unsigned count = absent;
		uint64_t before = share;
		uint64_t all;

		for (unsigned i = 0; i < l->count; i++) {
			const struct line *line = &l->lines[i];

			if (line->magic != MAGIC || !is_under(line, bound, &all))
				continue;
			if (line->need > 0 && line->need <= share)
				rest -= line->need;
			else
				count++;
		}
		if (count == 0)
			return UINT64_MAX;
		share = rest / count;
		if (share <= before)
			return share;
	}
}

/* What all ranks under the bound may have together. */
static uint64_t total_of(const struct ckpt_memlimit_bound *bound, uint64_t all_of_it)
{
	return ckpt_min_u64(all_of_it, bound->limit) / 2;
}

static uint64_t allow_under(
	const struct ckpt_ledger *l, const struct ckpt_memlimit_bound *bound, uint64_t all_of_it)
{
	uint64_t total = total_of(bound, all_of_it);
	uint64_t share = share_of(l, bound, total);
	unsigned live = live_count(l);
	uint64_t used = 0;
	uint64_t all;

	for (unsigned i = 0; i < l->count; i++) {
		const struct line *line = &l->lines[i];

		if (line->magic != MAGIC || i == l->own || !is_under(line, bound, &all))
			continue;
		uint64_t need = line->need > 0 ? ckpt_min_u64(line->need, share) : share;
		if (__builtin_add_overflow(used, ckpt_max_u64(line->have, need), &used))
			return 0;
	}
	for (unsigned i = live; i < l->ranks; i++)
		if (__builtin_add_overflow(used, share, &used))
			return 0;
	return total - ckpt_min_u64(total, used);
}

static bool is_known(const struct ckpt_memlimit *memory)
{
	return memory->available != UINT64_MAX && !memory->unsure && memory->bound_count > 0;
}

uint64_t ckpt_ledger_allow(
	struct ckpt_ledger *ledger, const struct ckpt_memlimit *memory, uint64_t need)
{
	struct line *own = &ledger->lines[ledger->own];
	struct line now = {.magic = MAGIC,
		.need = need,
		.have = own->have,
		.held = own->held,
		.nodes = memory->nodes,
		.bound_count = memory->bound_count};
	uint64_t allowed = UINT64_MAX;

	CKPT_ASSERT(need > 0 && memory->bound_count <= CKPT_MEMLIMIT_BOUNDS);
	if (!is_known(memory))
		return 0;
	for (unsigned i = 0; i < memory->bound_count; i++) {
		now.ids[i] = memory->bounds[i].id;
		now.all[i] = all_under(ledger, &memory->bounds[i]);
	}
	*own = now;
	for (unsigned i = 0; i < memory->bound_count; i++)
		allowed =
			ckpt_min_u64(allowed, allow_under(ledger, &memory->bounds[i], now.all[i]));
	return allowed;
}

uint64_t ckpt_ledger_share(const struct ckpt_ledger *ledger, const struct ckpt_memlimit *memory)
{
	const struct line *own = &ledger->lines[ledger->own];
	uint64_t share = own->need;

	if (!is_known(memory))
		return 0;
	CKPT_ASSERT(own->need > 0);
	for (unsigned i = 0; i < own->bound_count; i++) {
		const struct ckpt_memlimit_bound *bound = &memory->bounds[i];

		share = ckpt_min_u64(share, share_of(ledger, bound, total_of(bound, own->all[i])));
	}
	return share;
}
