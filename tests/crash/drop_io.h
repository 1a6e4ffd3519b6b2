/* SPDX-License-Identifier: Apache-2.0 */
/* A ckpt_io around another that leaves one kind of sync out, and says that it was done. */
#ifndef CRASH_DROP_IO_H
#define CRASH_DROP_IO_H

#include "io/io.h"
#include "sim/sim_disk.h"

struct drop_io {
	struct ckpt_io io;
	struct ckpt_io *inner;
	struct sim_disk *disk;
	unsigned owner;
	const char *rule;
	char changed[256]; /* the directory in which a manifest was published or unlinked last */
	bool unlinked;
};

/* Names of the rules; NULL after the last. */
extern const char *const drop_rules[];

void drop_io_init(struct drop_io *drop, struct ckpt_io *inner, struct sim_disk *disk,
	unsigned owner, const char *rule);

#endif
