/* SPDX-License-Identifier: Apache-2.0 */
/* The log of a block device's writes, as dm-log-writes and qemu's blklogwrites write it. */
#ifndef CRASH_WLOG_H
#define CRASH_WLOG_H

#include <stddef.h>
#include <stdint.h>

#define WLOG_FLUSH   1u
#define WLOG_FUA     2u
#define WLOG_DISCARD 4u

/* What recorder.c writes behind the file system. */
#define WLOG_MARK  UINT64_C(0x4b52414d54504b43)
#define WLOG_MARKS 64
struct wlog_mark {
	uint64_t magic;
	char line[4088]; /* ends with a newline */
};

struct wlog_entry {
	uint64_t offset;
	uint64_t length; /* of data; 0 for a flush alone and for discards */
	const char *data;
	uint64_t flags;
};

struct wlog {
	struct wlog_entry *entries;
	size_t count;
	void *map;
	size_t map_bytes;
};

/* Ends the program if it cannot be read. */
void wlog_open(struct wlog *log, const char *path);
void wlog_close(struct wlog *log);

#endif
