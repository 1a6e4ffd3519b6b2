/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small file on its way from one node's store to others, through the exchange: its bytes in parts that one
 * value holds, and its length, which is told last. Nothing here looks at what they say: it is a sealed file.
 */
#ifndef CKPT_ENGINE_RANKS_BLOB_H
#define CKPT_ENGINE_RANKS_BLOB_H

#include "engine/ranks/exchange_call.h"
#include "format/sealed.h"

/* Of a value. The exchange's own bound is the double, so that a program's service may wrap it. */
#define CKPT_BLOB_PART  (UINT64_C(512) << 10)
#define CKPT_BLOB_PARTS (CKPT_SEALED_MAX / CKPT_BLOB_PART)

struct ckpt_blob {
	struct ckpt_task task; /* await `finished`, look at `result` */

	/* Set by the owner before it starts. */
	struct ckpt_core *core;
	const int *stop;
	uint64_t deadline_ns;
	struct ckpt_error *err;   /* worded: why the deadline came, or what is wrong with it */
	struct ckpt_task *waiter; /* woken at the end */
	char key[CKPT_EXCHANGE_KEY_MAX]; /* of its length; that of a part has a number behind it */
	struct ckpt_buf *bytes;          /* the owner's; to send: stays; to fetch: empty before */

	/* Its own. */
	struct ckpt_exchange_call call;
	uint64_t length;
	uint32_t part;
	char words[24];
};

/* -EEXIST: another one was sent under this key. -ETIMEDOUT, CKPT_ECLOSED. */
void ckpt_blob_send(struct ckpt_blob *blob);
/*
 * Waits until it is there. -ETIMEDOUT, CKPT_ECLOSED, CKPT_EFORMAT, -ENOMEM; or what its sender has failed with,
 * which has put a verdict under the key of its length.
 */
void ckpt_blob_fetch(struct ckpt_blob *blob);
/* How many keys a blob of so many bytes has, and the i-th of them. */
uint32_t ckpt_blob_keys(uint64_t length);
void ckpt_blob_key(char *out, const char *key, uint32_t i);

#endif
