/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that says that it has synced, and has not: what the harness must find. The linker puts this
 * around ckpt_io_open(). CKPT_TEST_DROP: fdatasync or sync_dir, all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/io_tap.h"

static struct io_tap tap; /* one engine at a time */

int __real_ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);
int __wrap_ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);

static enum io_tap_way before(struct io_tap *t, struct io_tap_req *req)
{
	const char *dropped = getenv("CKPT_TEST_DROP");

	(void)t;
	if (!dropped || strcmp(dropped, io_op_name(req->req.op)) != 0)
		return IO_TAP_PASS;
	req->req.result = 0;
	return IO_TAP_ANSWER;
}

int __wrap_ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	struct ckpt_io *inner = NULL;
	int r = __real_ckpt_io_open(config, &inner);

	if (r < 0)
		return r;
	io_tap_init(&tap, inner);
	tap.before = before;
	*ret_io = &tap.io;
	return 0;
}
