/* SPDX-License-Identifier: Apache-2.0 */
/* Of which groups ranks write copies of their own, because what they hold differs. */
#include "engine/ranks/replica_digest.h"

#include "base/alloc.h"
#include "device/sample_mix.h"

/* A group of more layouts than these stays unknown: its ranks go on writing copies of their own. */
#define GROUPS_MAX 1024

uint64_t ckpt_replica_digest_bit(uint64_t group)
{
	return UINT64_C(1) << (ckpt_sample_mix(group) & 63);
}

static struct ckpt_replica_digest_group *find(
	const struct ckpt_replica_digest_owned *owned, uint64_t group)
{
	for (size_t i = 0; i < owned->count; i++)
		if (owned->groups[i].group == group)
			return &owned->groups[i];
	return NULL;
}

enum ckpt_own ckpt_replica_digest_find_own(struct ckpt_replica_digest_owned *owned, uint64_t group)
{
	(void)pthread_mutex_lock(&owned->lock);
	const struct ckpt_replica_digest_group *found = find(owned, group);
	enum ckpt_own own = found ? found->own : CKPT_OWN_UNKNOWN;
	(void)pthread_mutex_unlock(&owned->lock);
	return own;
}

/* Without memory it stays unknown. */
static void learn(struct ckpt_replica_digest_owned *owned, uint64_t group, enum ckpt_own own)
{
	if (find(owned, group) || owned->count == GROUPS_MAX)
		return;
	struct ckpt_replica_digest_group *grown =
		ckpt_realloc_array(owned->groups, owned->count + 1, sizeof(*grown));
	if (!grown)
		return;
	owned->groups = grown;
	grown[owned->count++] = (struct ckpt_replica_digest_group){.group = group, .own = own};
}

void ckpt_replica_digest_learn_own(struct ckpt_replica_digest_owned *owned,
	const struct ckpt_replica_digest *alike, const struct ckpt_replica_digest_split *split)
{
	/* What a rank has not told was not compared. */
	if (!split->compared || alike->mode == CKPT_REPLICA_DIGEST_NONE)
		return;
	(void)pthread_mutex_lock(&owned->lock);
	for (size_t i = 0; i < alike->group_count; i++) {
		const struct ckpt_replica_digest_sums *s = &alike->sums[i];

		if (s->own != CKPT_OWN_NONE)
			learn(owned, s->group,
				split->differ & ckpt_replica_digest_bit(s->group) ? CKPT_OWN_DIFFERS
										  : CKPT_OWN_NONE);
	}
	(void)pthread_mutex_unlock(&owned->lock);
}

void ckpt_replica_digest_forget_own(struct ckpt_replica_digest_owned *owned)
{
	ckpt_free(owned->groups);
	owned->groups = NULL;
	owned->count = 0;
}
