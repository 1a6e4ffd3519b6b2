/* SPDX-License-Identifier: Apache-2.0 */
#include "drop_io.h"

#include <stdio.h>
#include <string.h>

const char *const drop_rules[] = {"shard", "index", "manifest", "claim", "marker", "files",
	"published", "removed", "step", "root", "claimed", NULL};

static bool ends_with(const char *text, const char *end)
{
	size_t length = strlen(text);

	return length >= strlen(end) && strcmp(text + length - strlen(end), end) == 0;
}

/* Which sync of a file it is. */
static const char *kind_of_file(struct drop_io *drop, int fd)
{
	const char *name = sim_file_name(sim_disk_file(drop->disk, drop->owner, fd));

	if (ends_with(name, ".safetensors"))
		return "shard";
	if (ends_with(name, ".index"))
		return "index";
	if (strncmp(name, "manifest.json", strlen("manifest.json")) == 0)
		return "manifest";
	return strncmp(name, "ckpt.json", strlen("ckpt.json")) == 0 ? "marker" : "claim";
}

/* Which sync of a directory, by what was done in it before. */
static const char *kind_of_dir(struct drop_io *drop, const char *path)
{
	if (strcmp(path, ".") == 0)
		return "root";
	if (strcmp(path, "gens") == 0)
		return "claimed";
	if (!strchr(path, '/'))
		return "step";
	if (strcmp(path, drop->changed) != 0)
		return "files";
	return drop->unlinked ? "removed" : "published";
}

static void note_change(struct drop_io *drop, const struct ckpt_io_req *req)
{
	const char *path = req->op == CKPT_IO_OP_RENAME ? req->new_path : req->path;

	if (req->op != CKPT_IO_OP_RENAME && req->op != CKPT_IO_OP_UNLINK)
		return;
	if (!ends_with(path, "/manifest.json"))
		return;
	(void)snprintf(drop->changed, sizeof(drop->changed), "%.*s",
		(int)(strlen(path) - strlen("/manifest.json")), path);
	drop->unlinked = req->op == CKPT_IO_OP_UNLINK;
}

static void drop_submit(struct ckpt_io *base, struct ckpt_io_req *req)
{
	struct drop_io *drop = CKPT_CONTAINER(base, struct drop_io, io);
	const char *kind = req->op == CKPT_IO_OP_FDATASYNC  ? kind_of_file(drop, req->fd)
			   : req->op == CKPT_IO_OP_SYNC_DIR ? kind_of_dir(drop, req->path)
							    : "";

	note_change(drop, req);
	if (!drop->rule || strcmp(kind, drop->rule) != 0) {
		ckpt_io_submit(drop->inner, req);
		return;
	}
	req->result = 0;
	ckpt_inbox_push(base->inbox, &req->node);
}

static int drop_close(struct ckpt_io *base, int timeout_ms)
{
	(void)base;
	(void)timeout_ms;
	return 0;
}

static const struct ckpt_io_ops drop_ops = {
	.name = "drop",
	.submit = drop_submit,
	.close = drop_close,
};

void drop_io_init(struct drop_io *drop, struct ckpt_io *inner, struct sim_disk *disk,
	unsigned owner, const char *rule)
{
	*drop = (struct drop_io){
		.io = *inner, .inner = inner, .disk = disk, .owner = owner, .rule = rule};
	drop->io.ops = &drop_ops;
}
