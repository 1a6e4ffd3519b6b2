/* SPDX-License-Identifier: Apache-2.0 */
#include "wlog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kill/workload.h"

#define MAGIC  UINT64_C(0x6a736677736872)
#define SECTOR 512

struct head {
	uint64_t magic;
	uint64_t version;
	uint64_t entries;
	uint32_t sector;
};

struct record {
	uint64_t sector;
	uint64_t sectors;
	uint64_t flags;
	uint64_t data_len;
};

void wlog_open(struct wlog *log, const char *path)
{
	struct head head;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < SECTOR)
		workload_die("%s: %s", path, strerror(errno));
	log->map_bytes = (size_t)st.st_size;
	log->map = mmap(NULL, log->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	(void)close(fd);
	if (log->map == MAP_FAILED)
		workload_die("%s: %s", path, strerror(errno));
	memcpy(&head, log->map, sizeof(head));
	if (head.magic != MAGIC || head.sector != SECTOR)
		workload_die("%s is no log of writes", path);
	log->count = head.entries;
	log->entries = calloc(log->count + 1, sizeof(*log->entries));
	if (!log->entries)
		workload_die("out of memory");
	const char *at = (const char *)log->map + SECTOR;
	const char *end = (const char *)log->map + log->map_bytes;
	for (size_t i = 0; i < log->count; i++) {
		struct record record;
		if (end - at < SECTOR)
			workload_die("%s ends in entry %zu", path, i);
		memcpy(&record, at, sizeof(record));
		at += SECTOR;
		uint64_t length = record.flags & WLOG_DISCARD ? 0 : record.sectors * SECTOR;
		if ((uint64_t)(end - at) < length)
			workload_die("%s ends in entry %zu", path, i);
		log->entries[i] = (struct wlog_entry){.offset = record.sector * SECTOR,
			.length = length,
			.data = at,
			.flags = record.flags};
		at += length;
	}
}

void wlog_close(struct wlog *log)
{
	free(log->entries);
	(void)munmap(log->map, log->map_bytes);
}
