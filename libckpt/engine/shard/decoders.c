/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/decoders.h"

#include <errno.h>

#include "base/alloc.h"

/* Stored bytes that are read or decoded at once. */
#define STORED_MAX (UINT64_C(256) << 20)

struct ckpt_decoders {
	size_t limit;
	uint64_t bytes_max;
	struct ckpt_chunk_decoder *items[CKPT_DECODERS_MAX];
	unsigned lent;  /* a mask */
	uint64_t bytes; /* of all shares */
	uint64_t shards;
	struct ckpt_decoder_share *shares;
};

static struct ckpt_decoders *make(const struct ckpt_core_config *config)
{
	struct ckpt_decoders *d = ckpt_alloc(sizeof(*d));

	if (!d)
		return NULL;
	d->limit = CKPT_DECODERS_MAX;
	if (config->decoders > 0)
		d->limit = ckpt_min_u64(config->decoders, CKPT_DECODERS_MAX);
	d->bytes_max = config->stored_bytes ? config->stored_bytes : STORED_MAX;
	return d;
}

int ckpt_decoders_join(struct ckpt_decoder_share *share, struct ckpt_core *core,
	const struct ckpt_layout *layout, bool based, struct ckpt_task *task)
{
	if (!core->decoders)
		core->decoders = make(&core->config);
	struct ckpt_decoders *d = core->decoders;
	if (!d)
		return -ENOMEM;
	*share = (struct ckpt_decoder_share){.core = core,
		.task = task,
		.based = based,
		.shard = ++d->shards,
		.next = d->shares};
	for (size_t i = 0; i < layout->chunk_count; i++)
		share->chunk_bytes = ckpt_max_u64(share->chunk_bytes, layout->chunks[i].length);
	d->shares = share;
	return 0;
}

void ckpt_decoders_leave(struct ckpt_decoder_share *share)
{
	struct ckpt_core *core = share->core;

	if (!core)
		return;
	struct ckpt_decoders *d = core->decoders;
	struct ckpt_decoder_share **at = &d->shares;
	CKPT_ASSERT(share->bytes == 0);
	while (*at != share)
		at = &(*at)->next;
	*at = share->next;
	share->core = NULL;
	if (d->shares)
		return;
	CKPT_ASSERT(d->lent == 0 && d->bytes == 0);
	for (size_t i = 0; i < d->limit; i++)
		ckpt_chunk_decoder_close(d->items[i]);
	ckpt_free(d);
	core->decoders = NULL;
}

static bool is_lent(const struct ckpt_decoders *d, size_t i)
{
	return d->lent >> i & 1;
}

/* One that is not lent and has decoded chunks of this shard, if there is one, so that it need not do so again. */
static struct ckpt_chunk_decoder *find(
	struct ckpt_decoders *d, const struct ckpt_decoder_share *share, size_t *ret_number)
{
	for (size_t i = 0; i < d->limit; i++) {
		*ret_number = i;
		if (d->items[i] && !is_lent(d, i) &&
			ckpt_chunk_decoder_is_for(d->items[i], share->shard))
			return d->items[i];
	}
	for (size_t i = 0; i < d->limit; i++) {
		*ret_number = i;
		if (is_lent(d, i))
			continue;
		if (!d->items[i])
			d->items[i] = ckpt_chunk_decoder_open();
		if (d->items[i] && ckpt_chunk_decoder_aim(d->items[i], share->shard,
					   share->chunk_bytes, share->based) == 0)
			return d->items[i];
	}
	return NULL;
}

int ckpt_decoders_lend(struct ckpt_decoder_share *share, struct ckpt_chunk_decoder **ret_decoder)
{
	struct ckpt_decoders *d = share->core->decoders;
	size_t number;

	*ret_decoder = find(d, share, &number);
	if (*ret_decoder)
		d->lent |= 1u << number;
	/* Without memory for another one it goes on with what is lent, when that comes back. */
	return d->lent ? 0 : -ENOMEM;
}

static void wake(const struct ckpt_decoders *d)
{
	for (const struct ckpt_decoder_share *s = d->shares; s; s = s->next)
		ckpt_task_wake(s->task);
}

void ckpt_decoders_give_back(
	struct ckpt_decoder_share *share, const struct ckpt_chunk_decoder *decoder)
{
	struct ckpt_decoders *d = share->core->decoders;

	for (size_t i = 0; i < d->limit; i++)
		if (d->items[i] == decoder)
			d->lent &= ~(1u << i);
	wake(d);
}

bool ckpt_decoders_may_hold(const struct ckpt_decoder_share *share, uint64_t bytes)
{
	const struct ckpt_decoders *d = share->core->decoders;

	return share->bytes == 0 || bytes == 0 || d->bytes + bytes <= d->bytes_max;
}

void ckpt_decoders_hold(struct ckpt_decoder_share *share, uint64_t bytes)
{
	share->bytes += bytes;
	share->core->decoders->bytes += bytes;
}

void ckpt_decoders_let_go(struct ckpt_decoder_share *share, uint64_t bytes)
{
	struct ckpt_decoders *d = share->core->decoders;

	CKPT_ASSERT(share->bytes >= bytes && d->bytes >= bytes);
	share->bytes -= bytes;
	d->bytes -= bytes;
	wake(d);
}
