/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store with a step of two ranks, and a directory that it is sent to, which may go by the name of a bucket; for the
 * tests of who sends it, and of what comes of it.
 */
#ifndef CKPT_TESTS_SENDING_SCENE_H
#define CKPT_TESTS_SENDING_SCENE_H

#include "engine/copy/upload.h"
#include "engine/lineage/lineage.h"
#include "lib/core_rig.h"
#include "lib/store_fixture.h"

#define WORLD  2
#define WIDE   3000
#define NUMBER ((UINT64_C(1) << 61) + 12345) /* far beyond the end of any shard */
#define SHARDS "safetensors"

struct scene {
	char *dir;
	char here[512];
	char there[512];
	struct core_rig rig;
	struct fixture_step step;
	struct fixture_rank ranks[WORLD];
	struct ckpt_tensor tensors[WORLD];
	float own[WORLD][WIDE];
	struct ckpt_core_place place;
	struct ckpt_shard shards[WORLD];
	struct ckpt_manifest_rank of[WORLD];
	struct ckpt_error err;
	struct ckpt_store *dest;
	struct ckpt_upload upload;
	atomic_uint_fast64_t bytes;
	int stop;
};

int setup(void **state);
int teardown(void **state);
/* A job that uploads into the bucket. `tries`: see ckpt_core_config.remote_tries. */
void open_job(struct scene *s, uint32_t tries);
/* Of somebody else: his descriptor, which holds the byte of the rank's shard; -1: that is taken. */
int hold(struct scene *s, uint32_t rank, uint64_t byte);
bool is_held(struct scene *s, uint32_t rank);
/* The step is there, and good. */
bool is_whole(struct scene *s);
void copy(const char *from, const char *to);

/* One upload, by hand; `block_bytes` 0: as usual. */
void open_upload_in(struct scene *s, uint32_t block_bytes);
void open_upload(struct scene *s);
void start_upload(struct scene *s);
/* No shard may be held any more. */
void close_upload(struct scene *s);
/* The same, whatever form the shards have. */
void end_upload(struct scene *s);

#endif
