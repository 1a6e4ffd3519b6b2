/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain files in a directory of the user. Their space is reserved first, so that a full disk is found early. They are
 * mapped, synced, and renamed when all are synced. In the end all of them exist, or none.
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
	bool made; /* the temporary file exists */
};

/* Each returns an exit code; errors were printed. */

/* Prints "cannot DOING PATH/NAME" with the text of the errno `error`. */
int dest_fail(const struct dest *dest, int error, const char *doing, const char *name);
/* Prints "cannot write PATH: TEXT". */
int dest_fail_text(const struct dest *dest, int code, const char *text);
/* Opens the directory, and creates it if it does not exist. */
int dest_open(struct dest *dest);
/* Sets the name. Fails if a file of that name exists. */
int dest_file_init(const struct dest *dest, struct dest_file *file, const char *name);
/* Creates and maps the file, under its temporary name, with `bytes` bytes reserved. */
int dest_file_make(const struct dest *dest, struct dest_file *file, uint64_t bytes);
int dest_file_sync(const struct dest *dest, struct dest_file *file);
int dest_file_name(const struct dest *dest, const struct dest_file *file);
/* Makes the names in the directory, and the directory itself, durable. */
int dest_sync(const struct dest *dest);

/* Unmaps and closes the file. Deletes it unless `keep`. Nothing may still write to the map. */
void dest_file_end(const struct dest *dest, struct dest_file *file, bool keep);
void dest_end(struct dest *dest, bool keep);

#endif
