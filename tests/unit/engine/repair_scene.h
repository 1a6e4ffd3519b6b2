/* SPDX-License-Identifier: Apache-2.0 */
/* A step here and in a remote store in a directory, which the test damages; for the tests of repairs. */
#ifndef CKPT_TESTS_REPAIR_SCENE_H
#define CKPT_TESTS_REPAIR_SCENE_H

#include "lib/core_rig.h"
#include "lib/prng.h"
#include "lib/store_fixture.h"
#include "format/layout.h"

#define TENSORS 3
#define CHUNK   5000
#define BLOCK   8192
#define FILES   1024
#define SHARD   ".safetensors"
#define INDEX   ".index"

struct scene {
	char *dir;
	char local[512];
	char remote[512];
	struct fixture_step here;
	struct fixture_step there;
	struct ckpt_layout *layout;
	char *good;    /* the shard */
	char *index;   /* its index */
	char *encoded; /* another form of the shard that is as good; NULL: none */
	size_t encoded_bytes;
	size_t index_bytes;
	size_t names; /* files and directories here */
	struct core_rig rig;
	uint64_t opened;      /* rigs, so far */
	uint32_t block_bytes; /* 0: BLOCK */
	bool far[FILES];      /* by descriptor: a file of the remote store */
	uint64_t far_read;    /* bytes of its shards that were asked for, in either form */
	unsigned renames;     /* new indexes that got their name */
	char old[512];        /* a file that is there until the new ones are */
	bool holds;           /* what is asked of them waits */
	uint64_t dead;        /* a byte of the shard here that the disk cannot read; 0: none */
	int dead_code;        /* what it says of it */
	int far_code;         /* what asking the remote store for bytes comes to; 0: it has them */
	/* Asked when a new index is about to get its name. */
	void (*replaces)(struct scene *s, const char *path);
};

/* All bytes of a file; NULL: there is none. */
char *load(const char *path, size_t *ret_bytes);
void store(const char *path, const char *bytes, size_t count);
/* Whether a file has these bytes. */
bool holds(const char *path, const char *bytes, size_t count);

int set_up(void **state);
/* The same with these tensors, TENSORS of them. */
void set_up_with(struct scene *s, const struct ckpt_tensor *tensors);
int tear_down(void **state);
void open_rig(struct scene *s);
/* Restores the step. */
int read_it(struct scene *s);

/* There is a good shard and a good index here, of whatever attempt. */
bool is_good(struct scene *s);
/* The files here are as they were written, whatever has become of them. */
void restore_files(struct scene *s);
bool has_note(struct scene *s);
/* Damages a byte of the chunk in the plain shard. */
void damage(struct scene *s, const struct fixture_step *step, size_t chunk, struct prng *prng);

/* The damage is found, repaired and told, and the step is good when it is read again. */
void assert_mends(struct scene *s);
/* The failure is told, the step is quarantined, and nothing else is changed. The note is removed then. */
void assert_fails(struct scene *s);
/*
 * What keeps it from being mended says nothing about the step: this process goes on to an older one, and nothing tells
 * the next one not to try.
 */
void assert_hindered(struct scene *s);

#endif
