/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/save/saver.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

int ckpt_saver_open(struct ckpt_core *core)
{
	struct ckpt_saver *saver = ckpt_alloc(sizeof(*saver));

	if (!saver)
		return -ENOMEM;
	*saver = (struct ckpt_saver){.alike_proved = {.lock = PTHREAD_MUTEX_INITIALIZER},
		.alike_owned = {.lock = PTHREAD_MUTEX_INITIALIZER},
		.estimate_min = CKPT_ESTIMATE_MIN};
	ckpt_encoders_init(&saver->encoders, core->config.encoders, core->config.block_bytes,
		core->config.chunk_bytes, core->store->align);
	saver->encoders.bases = core->config.delta;
	core->saver = saver;
	return 0;
}

void ckpt_saver_close(struct ckpt_core *core)
{
	struct ckpt_saver *saver = core->saver;

	if (!saver)
		return;
	CKPT_ASSERT(!saver->skipper && !saver->early);
	ckpt_encoders_fini(&saver->encoders);
	ckpt_staged_base_free(saver->base);
	ckpt_free(saver->agreed);
	ckpt_free(saver->shared);
	ckpt_replica_digest_unprove(&saver->alike_proved);
	ckpt_replica_digest_forget_own(&saver->alike_owned);
	ckpt_free(saver);
	core->saver = NULL;
}

void ckpt_saver_note_told(struct ckpt_saver *saver, uint64_t generation, uint64_t step)
{
	/* Without room the oldest key stays in the exchange, and goes with the session. */
	if (saver->told_count == CKPT_COUNT(saver->told))
		memmove(saver->told, saver->told + 1, --saver->told_count * sizeof(saver->told[0]));
	saver->told[saver->told_count++] =
		(struct ckpt_told){.generation = generation, .step = step};
}
