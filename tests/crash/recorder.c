/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: recorder DEVICE BYTES FS DIR SEED PROCESSES
 *
 * Mounts a file system of BYTES, that is in the file DEVICE, and lets a life (life.h) pass on it. Every
 * line of its log is written into DEVICE behind the file system, so that who records the writes to DEVICE
 * has it among them, in its place.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ground.h"
#include "life.h"
#include "wlog.h"

static int device;
static uint64_t marks_at;
static struct life life;

static void tell(struct workload *workload, const char *line, size_t length)
{
	struct wlog_mark mark = {.magic = WLOG_MARK};
	unsigned n = __atomic_fetch_add(&life.shared->marks, 1, __ATOMIC_RELAXED);

	(void)workload;
	memcpy(mark.line, line, length);
	if (pwrite(device, &mark, sizeof(mark),
		    (off_t)(marks_at + n % WLOG_MARKS * sizeof(mark))) != sizeof(mark))
		workload_die("mark: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	struct ground ground;

	if (argc != 7)
		workload_die("usage: recorder DEVICE BYTES FS DIR SEED PROCESSES");
	ground_bind();
	marks_at = strtoull(argv[2], NULL, 0);
	device = open(argv[1], O_RDWR | O_CLOEXEC);
	if (device < 0)
		workload_die("%s: %s", argv[1], strerror(errno));
	ground_open(&ground, device, argv[3], argv[4]);
	int r = ground_mount(&ground);
	if (r < 0)
		workload_die("mount: %s", strerror(-r));
	life_init(&life, argv[4], strtoull(argv[5], NULL, 0));
	life.workload.tell = tell;
	life_phases(&life, (unsigned)strtoul(argv[6], NULL, 0));
	life_free(&life);
	ground_unmount(&ground);
	ground_close(&ground);
	return 0;
}
