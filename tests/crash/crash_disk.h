/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a log of writes a power cut leaves. A write that a flush has followed is there; of those after
 * the last flush any may be, whole or in pieces of 4 KiB.
 */
#ifndef CRASH_DISK_H
#define CRASH_DISK_H

#include <stdbool.h>

#include "lib/prng.h"
#include "wlog.h"

#define CRASH_PAGE 4096

struct crash_disk {
	const struct wlog *log;
	size_t bytes; /* of the file system; what lies behind are marks */
	char *want;
	size_t applied; /* entries that are in it */
	uint8_t *stale; /* pages of `want` that may not be on the disk */
	int fd;         /* the disk: memory that a loop device can be put over */
	char *disk;
	/* Pages of `want` that are there only in part of the states, as they were. */
	struct crash_page {
		struct crash_page *next;
		size_t page;
		char before[CRASH_PAGE];
	} * torn;
};

void crash_disk_open(
	struct crash_disk *disk, const struct wlog *log, const char *base, size_t bytes);
void crash_disk_close(struct crash_disk *disk);
/*
 * The disk after a cut at entry `at`, which is not before that of the last call. `subset`: of what was
 * not flushed the dice decide what is there; if not, all of it is.
 */
void crash_disk_cut(struct crash_disk *disk, size_t at, bool subset, struct prng *prng);

#endif
