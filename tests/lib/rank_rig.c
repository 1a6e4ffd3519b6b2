/* SPDX-License-Identifier: Apache-2.0 */
/* Several ranks on one thread. */
#include "lib/rank_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "exchange/exchange_dir.h"
#include "exchange/rank_messages.h"
#include "lib/scratch.h"
#include "lib/test.h"

int rank_rig_setup(void **state)
{
	struct rank_rig *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	*state = s;
	return 0;
}

int rank_rig_teardown(void **state)
{
	struct rank_rig *s = *state;

	for (unsigned i = 0; i < RANK_RIG_RANKS; i++)
		ckpt_save_unref(s->save[i]);
	for (unsigned i = 0; i < RANK_RIG_RANKS; i++)
		if (s->open[i])
			core_rig_close(&s->rank[i]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

void rank_rig_open(struct rank_rig *s, uint32_t rank, uint32_t world, uint32_t timeout_ms)
{
	core_rig_open(&s->rank[rank], &(struct core_rig_config){.dir = s->dir,
					      .rank = rank,
					      .world = world,
					      .timeout_ms = timeout_ms,
					      .slots = 32});
	/* No two draw the same numbers. */
	s->rank[rank].random = UINT64_C(1000) * (rank + 1);
	s->open[rank] = true;
}

void rank_rig_sleep(struct rank_rig *s, uint64_t ms)
{
	for (uint64_t at = 0; at < ms; at += 5)
		for (unsigned i = 0; i < RANK_RIG_RANKS; i++)
			if (s->open[i])
				core_rig_sleep(&s->rank[i], 5);
}

void rank_rig_open_all(struct rank_rig *s, uint32_t count, uint32_t world, uint32_t timeout_ms)
{
	for (uint32_t rank = 0; rank < count; rank++)
		rank_rig_open(s, rank, world, timeout_ms);
	for (uint32_t rank = 0; rank < count; rank++)
		assert_int_equal(core_rig_claim(&s->rank[rank]), 0);
}

void rank_rig_prepare(struct rank_rig *s, uint32_t rank, uint64_t step)
{
	s->save[rank] = core_rig_prepare(&s->rank[rank], step, 2, 1000, CKPT_TENSOR_EAGER);
	assert_non_null(s->save[rank]);
}

void rank_rig_begin(struct rank_rig *s, uint32_t rank, uint64_t step)
{
	rank_rig_prepare(s, rank, step);
	(void)core_rig_post(&s->rank[rank], s->save[rank]);
}

bool rank_rig_ended(const struct rank_rig *s, uint32_t rank)
{
	return ckpt_latch_get(ckpt_save_latch(s->save[rank])) & CKPT_DONE_END;
}

int rank_rig_end(struct rank_rig *s, uint32_t rank)
{
	/* Of another one that has ended since this one was prepared. */
	ckpt_plan_free(s->rank[rank].plan);
	int code = core_rig_end_save(&s->rank[rank], s->save[rank]);

	s->save[rank] = NULL;
	return code;
}

const char *rank_rig_message(const struct rank_rig *s, uint32_t rank)
{
	return s->rank[rank].err.message;
}

void rank_rig_check_says(const struct rank_rig *s, uint32_t rank, const char *text)
{
	if (!strstr(rank_rig_message(s, rank), text))
		fail_msg("rank %u says: %s", rank, rank_rig_message(s, rank));
}

void rank_rig_put(struct rank_rig *s, const char *key, const struct ckpt_buf *value)
{
	FILE *file;

	(void)mkdir(scratch_join(s->dir, "exchange"), 0777);
	(void)mkdir(scratch_join(s->dir, "exchange/rig"), 0777);
	file = fopen(scratch_join(s->dir, scratch_join("exchange/rig", key)), "wx");
	assert_non_null(file);
	assert_int_equal(fwrite(value->data, 1, value->len, file), value->len);
	assert_int_equal(fclose(file), 0);
}

void rank_rig_tell(struct rank_rig *s, uint64_t step, struct rank_rig_word word)
{
	struct ckpt_core *core = &s->rank[0].core;
	struct ckpt_rank_record record = {
		.verdict = {.code = word.code,
			.reason = "the test says so",
			.generation = core->lineage->generation + word.generation,
			.step = step + word.step,
			.nonce = core->lineage->nonce + word.nonce},
		.rank = {.rank = word.rank,
			.node = "other",
			.attempt = "0123456789abcdef",
			.index_bytes = word.index_bytes,
			.shard_bytes = 5000}};
	char key[CKPT_EXCHANGE_KEY_MAX];
	struct ckpt_buf buf = {0};

	assert_int_equal(ckpt_rank_record_encode(&record, &buf), 0);
	ckpt_key_rank(key, core->lineage->generation, step, word.as);
	rank_rig_put(s, key, &buf);
	ckpt_buf_free(&buf);
}

const char *rank_rig_told(const struct rank_rig *s, const char *key)
{
	return scratch_join(s->dir, scratch_join("exchange/rig", key));
}

const char *rank_rig_manifest(const struct rank_rig *s, uint64_t step)
{
	char name[CKPT_PATH_MAX];

	ckpt_name_manifest(name, 1, step);
	return scratch_join(s->dir, name);
}

void rank_rig_refuse(struct rank_rig *s, uint32_t rank, uint64_t step, int code, const char *why)
{
	struct ckpt_error err = {.size = sizeof(err)};

	ckpt_error_clear(&err);
	(void)ckpt_fail(&err, code, "%s", why);
	rank_rig_prepare(s, rank, step);
	ckpt_save_refuse(s->save[rank], &err);
	core_rig_run(&s->rank[rank]);
	assert_int_equal(rank_rig_end(s, rank), code);
}
