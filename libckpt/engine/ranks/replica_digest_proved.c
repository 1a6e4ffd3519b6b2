/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors a commit has proved that ranks hold alike. */
#include "engine/ranks/replica_digest.h"

#include <stdlib.h>

#include "base/alloc.h"

static int by_number(const void *left, const void *right)
{
	const uint64_t *a = left;
	const uint64_t *b = right;

	return *a < *b ? -1 : *a > *b;
}

static bool has(const struct ckpt_replica_digest_proved *proved, uint64_t key)
{
	return proved->count > 0 &&
	       bsearch(&key, proved->keys, proved->count, sizeof(key), by_number);
}

bool ckpt_replica_digest_know(
	struct ckpt_replica_digest *alike, struct ckpt_replica_digest_proved *proved)
{
	size_t known = 0;

	(void)pthread_mutex_lock(&proved->lock);
	alike->turn = proved->turn;
	/* The same layout as before needs no search. */
	bool same = proved->fingerprint == alike->fingerprint;
	for (size_t i = 0; i < alike->what_count; i++) {
		alike->what[i].known = same || has(proved, alike->what[i].key);
		known += alike->what[i].known;
	}
	(void)pthread_mutex_unlock(&proved->lock);
	return known == alike->what_count;
}

/* Takes the keys over. */
static void put(struct ckpt_replica_digest_proved *proved, uint64_t fingerprint, uint64_t *keys,
	size_t count)
{
	(void)pthread_mutex_lock(&proved->lock);
	uint64_t *old = proved->keys;
	proved->fingerprint = fingerprint;
	proved->keys = keys;
	proved->count = count;
	if (fingerprint == 0)
		proved->turn = 0;
	(void)pthread_mutex_unlock(&proved->lock);
	ckpt_free(old);
}

void ckpt_replica_digest_prove(
	struct ckpt_replica_digest_proved *proved, const struct ckpt_replica_digest *alike)
{
	uint64_t *keys = ckpt_alloc_array(ckpt_max_u64(alike->what_count, 1), sizeof(*keys));

	if (!keys) {
		ckpt_replica_digest_unprove(proved);
		return;
	}
	for (size_t i = 0; i < alike->what_count; i++)
		keys[i] = alike->what[i].key;
	qsort(keys, alike->what_count, sizeof(*keys), by_number);
	put(proved, alike->fingerprint, keys, alike->what_count);
}

void ckpt_replica_digest_unprove(struct ckpt_replica_digest_proved *proved)
{
	put(proved, 0, NULL, 0);
}

void ckpt_replica_digest_next_turn(struct ckpt_replica_digest_proved *proved)
{
	(void)pthread_mutex_lock(&proved->lock);
	proved->turn = (proved->turn + 1) % CKPT_REPLICA_DIGEST_TURNS;
	(void)pthread_mutex_unlock(&proved->lock);
}
