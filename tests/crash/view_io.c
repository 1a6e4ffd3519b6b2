/* SPDX-License-Identifier: Apache-2.0 */
#include "view_io.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

static int open_file(struct view_io *view, struct ckpt_io_req *req)
{
	const struct variants_node *node = variants_find(view->variants, view->root, req->path);
	int fd = 0;

	if (req->flags & CKPT_OPEN_CREATE)
		return -EROFS;
	if (!node)
		return -ENOENT;
	if (node->inode->dir)
		return -EISDIR;
	while (fd < VIEW_FILES && view->open[fd])
		fd++;
	if (fd == VIEW_FILES)
		return -EMFILE;
	view->open[fd] = node;
	req->size = node->at[node->pick].size;
	return fd;
}

static int64_t read_file(const struct view_io *view, const struct ckpt_io_req *req)
{
	const struct variants_node *node = view->open[req->fd];
	const struct variant *v = &node->at[node->pick];

	if (req->off >= v->size)
		return 0;
	uint64_t length = ckpt_min_u64(req->len, v->size - req->off);
	memcpy(req->buf, v->data + req->off, length);
	return (int64_t)length;
}

static int list_dir(const struct view_io *view, struct ckpt_io_req *req)
{
	const struct variants_node *node = variants_find(view->variants, view->root, req->path);

	if (!node)
		return -ENOENT;
	if (!node->inode->dir)
		return -ENOTDIR;
	const struct sim_names *names = &node->at[node->pick].names;
	size_t bytes = 0;
	for (size_t i = 0; i < names->count; i++)
		bytes += strlen(names->at[i].name) + 1;
	char *at = ckpt_alloc(bytes ? bytes : 1);
	if (!at)
		return -ENOMEM;
	req->listing = (struct ckpt_listing){.names = at, .bytes = bytes, .count = names->count};
	for (size_t i = 0; i < names->count; i++) {
		size_t length = strlen(names->at[i].name) + 1;
		memcpy(at, names->at[i].name, length);
		at += length;
	}
	return 0;
}

static void view_submit(struct ckpt_io *base, struct ckpt_io_req *req)
{
	struct view_io *view = CKPT_CONTAINER(base, struct view_io, io);

	switch (req->op) {
	case CKPT_IO_OP_OPEN:
		req->result = open_file(view, req);
		break;
	case CKPT_IO_OP_READ:
		req->result = read_file(view, req);
		break;
	case CKPT_IO_OP_LIST:
		req->result = list_dir(view, req);
		break;
	case CKPT_IO_OP_CLOSE:
		view->open[req->fd] = NULL;
		req->result = 0;
		break;
	case CKPT_IO_OP_LOCK: /* nobody lives */
		req->result = 0;
		break;
	default:
		req->result = -EROFS;
		break;
	}
	ckpt_inbox_push(base->inbox, &req->node);
}

static int view_close(struct ckpt_io *base, int timeout_ms)
{
	(void)base;
	(void)timeout_ms;
	return 0;
}

static const struct ckpt_io_ops view_ops = {
	.name = "view",
	.submit = view_submit,
	.close = view_close,
};

void view_io_init(struct view_io *view, struct ckpt_inbox *inbox, const struct variants *variants,
	const struct sim_inode *root)
{
	*view = (struct view_io){.io = {.ops = &view_ops, .inbox = inbox, .align = SIM_SECTOR},
		.variants = variants,
		.root = root};
}

unsigned view_io_open_count(const struct view_io *view)
{
	unsigned count = 0;

	for (size_t i = 0; i < VIEW_FILES; i++)
		count += view->open[i] != NULL;
	return count;
}
