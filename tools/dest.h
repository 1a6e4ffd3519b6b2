/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain files in a directory that the user names: reserved first, so that no disk is full when it is too
 * late, and mapped; synced, and named when all have been. All of them or none are there in the end.
 */
#ifndef CKPT_TOOLS_DEST_H
#define CKPT_TOOLS_DEST_H

#include "cli.h"

#define DEST_NAME_SIZE 64

struct dest {
	const struct cli *cli;
	const char *path;
	int dir; /* -1: not open */
	bool made;
};

struct dest_file {
	char name[DEST_NAME_SIZE];
	char temp[DEST_NAME_SIZE + 32];
	char *map; /* NULL: none */
	uint64_t bytes;
	int fd;    /* -1: none */
	bool made; /* the temporary is there */
};

/* Each returns an exit code, and has said why. */

/* Says that something about it failed; errno is `error`. */
int dest_fail(const struct dest *dest, int error, const char *doing, const char *name);
/* The same in words of the caller's, up to the end of a sentence. */
int dest_fail_text(const struct dest *dest, int code, const char *text);
/* Makes the directory, if need be. */
int dest_open(struct dest *dest);
/* Before dest_make(): the name, and that nobody has it. */
int dest_file_init(const struct dest *dest, struct dest_file *file, const char *name);
/* Under its temporary name, with room for so much. */
int dest_file_make(const struct dest *dest, struct dest_file *file, uint64_t bytes);
int dest_file_sync(const struct dest *dest, struct dest_file *file);
int dest_file_name(const struct dest *dest, const struct dest_file *file);
/* What was named, and the directory itself, outlasts a power cut. */
int dest_sync(const struct dest *dest);

/* Nobody writes to the map any more. Unless `keep`, the file goes, whatever name it has. */
void dest_file_end(const struct dest *dest, struct dest_file *file, bool keep);
void dest_end(struct dest *dest, bool keep);

#endif
