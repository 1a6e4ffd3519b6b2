/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store in a bucket in memory, "s3://bucket/<prefix>", with an environment whose time is virtual, on the thread of
 * the test. A wait that nothing is left to end fails the test.
 */
#ifndef CKPT_TESTS_BUCKET_RIG_H
#define CKPT_TESTS_BUCKET_RIG_H

#include "lib/bucket_http.h"
#include "s3/client.h"
#include "store/store.h"

struct bucket_rig {
	/* May be set before it is opened. */
	const char *prefix; /* NULL: "run" */
	const char *region; /* that is asked; NULL: that of the bucket */
	int64_t behind_s;   /* our clock, of the server's */
	bool tls;           /* as far as the client knows */
	bool fetched_keys;  /* from BUCKET_KEYS_URL; else the keys are given */
	uint64_t block_bytes;
	unsigned attempts;

	struct ckpt_inbox inbox;
	struct ckpt_env env;
	struct ckpt_sched sched;
	struct ckpt_timers timers;
	struct ckpt_log *log;
	struct guard guard;
	struct front front;
	struct bucket_http http;
	struct ckpt_s3_environ vars;
	struct ckpt_s3_settings settings;
	struct ckpt_s3_client client;
	struct ckpt_store *store;
	struct ckpt_store_op op;
	struct ckpt_error err;
	struct prng prng;
	uint64_t now_ns;
	uint64_t suspended_ns; /* that the machine was, in which no time has gone by here */
};

#define BUCKET_RIG_BLOCK  UINT64_C(1024)
#define BUCKET_RIG_ACCESS "AKIDEXAMPLE"
#define BUCKET_RIG_SECRET "a/secret+key"

void bucket_rig_open(struct bucket_rig *rig, uint64_t seed);
/* Nothing is under way any more, and all that was allocated is freed. */
void bucket_rig_close(struct bucket_rig *rig);
/* The same of one on the heap, which begins as `like` is. */
struct bucket_rig *bucket_rig_new(struct bucket_rig like, uint64_t seed);
void bucket_rig_free(struct bucket_rig *rig);
/* Bytes to store; free() them. */
char *bucket_rig_bytes(size_t size);

/* Goes on until it is so. Fails the test if it never becomes so. */
void bucket_rig_until(struct bucket_rig *rig, const bool *done);
/* The next thing that happens. False: nothing is left that could go on. */
bool bucket_rig_step(struct bucket_rig *rig);
/* Until nothing is left that could go on. */
void bucket_rig_settle(struct bucket_rig *rig);
/* What is ready now; time stands. */
void bucket_rig_now(struct bucket_rig *rig);
/* rig->op, with rig->err empty; `quiet` stays. */
struct ckpt_store_op *bucket_rig_op(struct bucket_rig *rig);
/* rig->op, waited for; its result. A failure that is not quiet has words, and the words are of that code. */
int bucket_rig_wait(struct bucket_rig *rig);

int bucket_rig_publish(struct bucket_rig *rig, const char *path, const char *text);
/* rig->op has what was got. */
int bucket_rig_get(struct bucket_rig *rig, const char *path);
int bucket_rig_create(
	struct bucket_rig *rig, const char *path, uint64_t size, struct ckpt_object *object);
int bucket_rig_resume(
	struct bucket_rig *rig, const char *path, uint64_t size, struct ckpt_object *object);
int bucket_rig_write(struct bucket_rig *rig, struct ckpt_object *object, const void *data,
	uint64_t length, uint64_t offset);
int bucket_rig_seal(struct bucket_rig *rig, struct ckpt_object *object, uint64_t size);
int bucket_rig_abandon(struct bucket_rig *rig, struct ckpt_object *object);
int bucket_rig_open_file(struct bucket_rig *rig, const char *path, struct ckpt_object *object);
int bucket_rig_read(struct bucket_rig *rig, struct ckpt_object *object, void *data, uint64_t length,
	uint64_t offset);
int bucket_rig_shut(struct bucket_rig *rig, struct ckpt_object *object);
int bucket_rig_list(struct bucket_rig *rig, const char *path);
int bucket_rig_remove(struct bucket_rig *rig, const char *path);
/* All of a shard: created, written block by block, sealed. The first failure; then it is abandoned. */
int bucket_rig_shard(struct bucket_rig *rig, const char *path, const void *data, uint64_t size);

/* Rules as s3/faults.h reads them, in place of those before: "{'do':'drop'},{...}" with ' for ". */
void bucket_rig_faults(struct bucket_rig *rig, const char *rules);
/* What the bucket has at that path; NULL: nothing. */
const struct rope *bucket_rig_there(struct bucket_rig *rig, const char *path);
bool bucket_rig_holds(struct bucket_rig *rig, const char *path, const void *data, uint64_t size);
size_t bucket_rig_uploads(const struct bucket_rig *rig);
/* Whether a line of the log that was not read yet has these words. */
bool bucket_rig_logged(struct bucket_rig *rig, const char *words);

#endif
