/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/rank_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/naming.h"

static bool is_rank_file(const char *path)
{
	const char *slash = strrchr(path, '/');
	char attempt[CKPT_ATTEMPT_CHARS];
	enum ckpt_rank_file kind;
	uint32_t rank;

	return slash && ckpt_parse_rank_file(slash + 1, &rank, &kind, attempt);
}

static struct rank_name *find(struct rank_names *names, int root, const char *path)
{
	struct rank_name *name = names->first;

	while (name && (name->root != root || strcmp(name->path, path) != 0))
		name = name->next;
	if (name)
		return name;
	name = calloc(1, sizeof(*name) + strlen(path) + 1);
	CKPT_ASSERT(name);
	name->root = root;
	memcpy(name->path, path, strlen(path) + 1);
	name->next = names->first;
	names->first = name;
	return name;
}

static void make(struct rank_names *names, int root, const char *path)
{
	struct rank_name *name;

	if (!is_rank_file(path))
		return;
	name = find(names, root, path);
	if (name->gone && !name->own) {
		(void)fprintf(stderr, "%s was removed, and its name is used again\n", path);
		abort();
	}
	name->own = true;
	name->gone = false;
}

void rank_names_note(struct rank_names *names, const struct ckpt_io_req *req)
{
	if (req->result < 0)
		return;
	if (req->op == CKPT_IO_OP_OPEN && req->flags & CKPT_OPEN_CREATE)
		make(names, req->root, req->path);
	if (req->op == CKPT_IO_OP_RENAME) {
		CKPT_ASSERT(!is_rank_file(req->new_path) || !(req->flags & CKPT_RENAME_REPLACE));
		make(names, req->root, req->new_path);
	}
	if (req->op == CKPT_IO_OP_UNLINK && is_rank_file(req->path))
		find(names, req->root, req->path)->gone = true;
}

void rank_names_clear(struct rank_names *names)
{
	while (names->first) {
		struct rank_name *name = names->first;

		names->first = name->next;
		free(name);
	}
}
