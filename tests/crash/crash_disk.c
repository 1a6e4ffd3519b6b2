/* SPDX-License-Identifier: Apache-2.0 */
#include "crash_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kill/workload.h"

static void *map(int fd, size_t bytes, int how)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how, fd, 0);

	if (memory == MAP_FAILED)
		workload_die("mmap: %s", strerror(errno));
	return memory;
}

/* Copies what the disk lacks of one page. */
static void fill(struct crash_disk *d, size_t page)
{
	char *to = d->disk + page * CRASH_PAGE;
	const char *from = d->want + page * CRASH_PAGE;

	if (memcmp(to, from, CRASH_PAGE) != 0)
		memcpy(to, from, CRASH_PAGE);
}

/* Makes the disk what it should be: where it has pages, and where something was written since. */
static void settle_disk(struct crash_disk *d)
{
	size_t pages = d->bytes / CRASH_PAGE;
	off_t at = 0;

	while ((at = lseek(d->fd, at, SEEK_DATA)) >= 0 && (size_t)at < d->bytes) {
		off_t end = lseek(d->fd, at, SEEK_HOLE);
		for (size_t p = (size_t)at / CRASH_PAGE; p < (size_t)end / CRASH_PAGE && p < pages;
			p++)
			fill(d, p);
		at = end;
	}
	for (size_t p = 0; p < pages; p++) {
		if (d->stale[p])
			fill(d, p);
		d->stale[p] = 0;
	}
}

/* What of the base is not a hole. */
static void mark_base(struct crash_disk *d, int base)
{
	off_t at = 0;

	while ((at = lseek(base, at, SEEK_DATA)) >= 0 && (size_t)at < d->bytes) {
		off_t end = lseek(base, at, SEEK_HOLE);
		for (size_t p = (size_t)at / CRASH_PAGE;
			p * CRASH_PAGE < (size_t)end && p * CRASH_PAGE < d->bytes; p++)
			d->stale[p] = 1;
		at = end;
	}
}

void crash_disk_open(
	struct crash_disk *disk, const struct wlog *log, const char *base, size_t bytes)
{
	*disk = (struct crash_disk){.log = log, .bytes = bytes};
	int fd = open(base, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		workload_die("%s: %s", base, strerror(errno));
	disk->want = map(fd, bytes, MAP_PRIVATE);
	disk->stale = calloc(bytes / CRASH_PAGE + 1, 1);
	disk->fd = memfd_create("crash", MFD_CLOEXEC);
	if (!disk->stale || disk->fd < 0 || ftruncate(disk->fd, (off_t)bytes) < 0)
		workload_die("out of memory");
	disk->disk = map(disk->fd, bytes, MAP_SHARED);
	mark_base(disk, fd);
	(void)close(fd);
}

void crash_disk_close(struct crash_disk *disk)
{
	(void)munmap(disk->want, disk->bytes);
	(void)munmap(disk->disk, disk->bytes);
	(void)close(disk->fd);
	free(disk->stale);
}

/* One piece of a write, within a page. */
static void put_piece(struct crash_disk *d, uint64_t offset, const char *data, size_t length)
{
	memcpy(d->want + offset, data, length);
	d->stale[offset / CRASH_PAGE] = 1;
}

/* A piece that the next cut may lose again. */
static void lend_piece(struct crash_disk *d, uint64_t offset, const char *data, size_t length)
{
	struct crash_page *page = malloc(sizeof(*page));

	if (!page)
		workload_die("out of memory");
	page->page = offset / CRASH_PAGE;
	page->next = d->torn;
	d->torn = page;
	memcpy(page->before, d->want + page->page * CRASH_PAGE, CRASH_PAGE);
	put_piece(d, offset, data, length);
}

static void take_back(struct crash_disk *d)
{
	while (d->torn) {
		struct crash_page *page = d->torn;
		d->torn = page->next;
		memcpy(d->want + page->page * CRASH_PAGE, page->before, CRASH_PAGE);
		d->stale[page->page] = 1;
		free(page);
	}
}

/* Chances in 256 that a piece is kept. */
static void put_entry(struct crash_disk *d, const struct wlog_entry *e, unsigned chance,
	struct prng *prng, bool lent)
{
	for (uint64_t at = 0; at < e->length;) {
		uint64_t offset = e->offset + at;
		uint64_t room = CRASH_PAGE - offset % CRASH_PAGE;
		size_t length = (size_t)(e->length - at < room ? e->length - at : room);
		bool kept = chance == 256 || prng_below(prng, 256) < chance;
		if (kept && offset + length <= d->bytes) {
			if (lent)
				lend_piece(d, offset, e->data + at, length);
			else
				put_piece(d, offset, e->data + at, length);
		}
		at += length;
	}
}

/* The last flush up to `at`: what comes before it is durable. */
static size_t last_flush(const struct wlog *log, size_t at)
{
	for (size_t i = at + 1; i > 0; i--)
		if (log->entries[i - 1].flags & WLOG_FLUSH)
			return i - 1;
	return 0;
}

void crash_disk_cut(struct crash_disk *disk, size_t at, bool subset, struct prng *prng)
{
	static const unsigned chances[] = {0, 16, 128, 128, 240};
	size_t flush = last_flush(disk->log, at);
	unsigned whole = chances[prng_below(prng, 5)]; /* that a write is kept whole */
	unsigned torn = chances[prng_below(prng, 4)];  /* that a piece of another one is */

	take_back(disk);
	for (; disk->applied < flush; disk->applied++)
		put_entry(disk, &disk->log->entries[disk->applied], 256, prng, false);
	for (size_t i = flush; i <= at; i++) {
		const struct wlog_entry *e = &disk->log->entries[i];
		bool kept = !subset || e->flags & WLOG_FUA || prng_below(prng, 256) < whole;
		put_entry(disk, e, kept ? 256 : torn, prng, true);
	}
	settle_disk(disk);
}
