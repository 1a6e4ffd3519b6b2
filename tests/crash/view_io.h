/* SPDX-License-Identifier: Apache-2.0 */
/* A ckpt_io that reads one state of a disk (variants.h). Everything is done at once. */
#ifndef CRASH_VIEW_IO_H
#define CRASH_VIEW_IO_H

#include "io/io.h"
#include "variants.h"

#define VIEW_FILES 64

struct view_io {
	struct ckpt_io io;
	const struct variants *variants;
	const struct sim_inode *root;
	const struct variants_node *open[VIEW_FILES];
};

void view_io_init(struct view_io *view, struct ckpt_inbox *inbox, const struct variants *variants,
	const struct sim_inode *root);
unsigned view_io_open_count(const struct view_io *view);

#endif
