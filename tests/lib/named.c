/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/named.h"

#include <stdio.h>
#include <sys/stat.h>

#include "lib/scratch.h"
#include "lib/test.h"

static bool have_ended(const struct rank_rig *s, uint32_t world)
{
	for (uint32_t rank = 0; rank < world; rank++)
		if (!rank_rig_ended(s, rank))
			return false;
	return true;
}

void named_wait(struct rank_rig *s, uint32_t world)
{
	for (unsigned i = 0; i < 1000 && !have_ended(s, world); i++)
		rank_rig_sleep(s, 5);
}

int named_try(struct rank_rig *s, uint32_t world, uint64_t step, const size_t floats[])
{
	int code = 0;

	for (uint32_t rank = 0; rank < world; rank++) {
		s->save[rank] =
			core_rig_prepare(&s->rank[rank], step, 2, floats[rank], CKPT_TENSOR_EAGER);
		(void)core_rig_post(&s->rank[rank], s->save[rank]);
	}
	named_wait(s, world);
	for (uint32_t rank = world; rank-- > 0;)
		code = rank_rig_end(s, rank);
	return code;
}

void named_save(struct rank_rig *s, uint32_t world, uint64_t step, size_t floats)
{
	size_t all[RANK_RIG_RANKS];

	for (uint32_t rank = 0; rank < world; rank++)
		all[rank] = floats;
	if (named_try(s, world, step, all) < 0)
		fail_msg("step %u: %s", (unsigned)step, rank_rig_message(s, 0));
}

/* What the manifest of a step says of its catalog; a file of these bytes is there if it names one. */
struct named named_by(const struct rank_rig *s, uint64_t generation, uint64_t step)
{
	struct ckpt_manifest manifest;
	char name[CKPT_PATH_MAX];
	char text[8192];
	struct stat st;

	ckpt_name_manifest(name, generation, step);
	FILE *f = fopen(scratch_join(s->dir, name), "rb");
	assert_non_null(f);
	size_t length = fread(text, 1, sizeof(text), f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(ckpt_manifest_decode(text, length, name, NULL, &manifest), 0);
	struct named named = {.bytes = manifest.catalog_bytes, .digest = manifest.catalog};
	ckpt_manifest_clear(&manifest);
	if (named.bytes > 0) {
		ckpt_name_catalog(name, generation, &named.digest);
		assert_int_equal(stat(scratch_join(s->dir, name), &st), 0);
		assert_int_equal(st.st_size, named.bytes);
	}
	return named;
}

bool named_same(struct named a, struct named b)
{
	return a.bytes > 0 && a.bytes == b.bytes && ckpt_digest_equal(&a.digest, &b.digest);
}
