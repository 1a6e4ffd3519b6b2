/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends the process at a request to the disk: at its completion, before the core has heard of it, or when
 * the core hands it over, before anything has been done. The linker puts this around ckpt_io_open().
 *
 * CKPT_TEST_KILL_AT: the number of the event, from 1; 0: none. CKPT_TEST_KILL_COUNT: a file that gets the
 * number of events so far when an engine is closed.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/io_tap.h"

static struct io_tap tap; /* one engine at a time */
static unsigned long events;

int __real_ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);
int __wrap_ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);

static void happen(void)
{
	static unsigned long at;
	static int known;

	if (!known) {
		const char *text = getenv("CKPT_TEST_KILL_AT");
		at = text ? strtoul(text, NULL, 10) : 0;
		known = 1;
	}
	if (++events == at)
		(void)raise(SIGKILL);
}

static enum io_tap_way before(struct io_tap *t, struct io_tap_req *req)
{
	(void)t;
	(void)req;
	happen();
	return IO_TAP_PASS;
}

static void after(struct io_tap *t, struct io_tap_req *req)
{
	(void)t;
	(void)req;
	happen();
}

/* At exit: closing is full of events itself. */
static void write_count(void)
{
	const char *path = getenv("CKPT_TEST_KILL_COUNT");
	FILE *f = path ? fopen(path, "we") : NULL;

	if (!f)
		return;
	(void)fprintf(f, "%lu\n", events);
	(void)fclose(f);
}

int __wrap_ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	static int known;
	struct ckpt_io *inner = NULL;
	int r = __real_ckpt_io_open(config, &inner);

	if (r < 0)
		return r;
	if (!known)
		(void)atexit(write_count);
	known = 1;
	io_tap_init(&tap, inner);
	tap.before = before;
	tap.after = after;
	*ret_io = &tap.io;
	return 0;
}
