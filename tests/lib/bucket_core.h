/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core of core_rig.h whose store, or where it sends, is a bucket in memory. One clock for both, which the test moves.
 */
#ifndef CKPT_TESTS_BUCKET_CORE_H
#define CKPT_TESTS_BUCKET_CORE_H

#include "lib/bucket_http.h"
#include "lib/core_rig.h"
#include "s3/client.h"

#define BUCKET_CORE_BUCKET "bucket"
/* What the keys of its objects begin with. */
#define BUCKET_CORE_PREFIX "run/"

struct bucket_core {
	struct core_rig rig;
	struct front front;
	struct bucket_http http;
	struct ckpt_s3_settings settings;
	struct ckpt_s3_client client;
};

/* The bucket, empty. Whoever asks is nobody: there are no keys to be had. */
void bucket_core_begin(struct bucket_core *b);
void bucket_core_end(struct bucket_core *b);
/* `of_bucket`: its store is there, and not in `dir`. It is opened to read. */
void bucket_core_open(struct bucket_core *b, const char *dir, uint32_t block_bytes, bool of_bucket);
void bucket_core_close(struct bucket_core *b);
/* What is ready; time stands. */
void bucket_core_now(struct bucket_core *b);
/* Until nothing more comes over the network within a second. */
void bucket_core_run(struct bucket_core *b);
/* NULL: there is no such object. */
const struct rope *bucket_core_there(struct bucket_core *b, const char *path);

#endif
