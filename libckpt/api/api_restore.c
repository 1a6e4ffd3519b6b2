/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of a restore. */
#include <errno.h>
#include <string.h>
#include <ckpt/ckpt.h>

#include "api/api_restore.h"
#include "api/copyin.h"
#include "base/alloc.h"
#include "base/error.h"
#include "engine/runtime/runtime.h"

#define FREE_TIMEOUT_MS 10000 /* as ckpt_engine_close() */

/* This thread's error becomes the restore's. */
static int failed(struct ckpt_restore *restore)
{
	(void)ckpt_error_copy(ckpt_restore_failure(restore), ckpt_error_here());
	return ckpt_restore_failure(restore)->code;
}

static bool gone(const struct ckpt_restore *restore)
{
	struct ckpt_latch *latch = ckpt_restore_latch((struct ckpt_restore *)restore);

	return (ckpt_latch_get(latch) & CKPT_DONE_GONE) != 0;
}

int ckpt_api_restore_new(struct ckpt_engine *engine, uint64_t step, enum ckpt_restore_sink sink,
	struct ckpt_restore **ret_restore)
{
	if (!engine || !ret_restore)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "engine or ret_restore is NULL");
	int r = ckpt_check_fork(engine);
	if (r < 0)
		return r;
	if (step > CKPT_STEP_MAX && UINT64_MAX - step > UINT32_MAX)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "step %llu is over %llu",
			(unsigned long long)step, (unsigned long long)CKPT_STEP_MAX);
	r = ckpt_restore_new(ckpt_runtime_core(engine), engine, step, sink, ret_restore);
	return r < 0 ? ckpt_fail(ckpt_error_here(), r, "out of memory") : 0;
}

static int check(struct ckpt_restore *restore)
{
	if (!restore)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "restore is NULL");
	if (ckpt_restore_forked(restore))
		return ckpt_fail(ckpt_error_here(), CKPT_EFORKED,
			"this restore belongs to the parent of a fork");
	return 0;
}

int ckpt_restore_open(struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore)
{
	struct ckpt_restore *restore = NULL;

	int r = ckpt_api_restore_new(engine, step, CKPT_SINK_MEMORY, &restore);
	if (r < 0)
		return r;
	ckpt_restore_post_open(restore);
	uint32_t bits = ckpt_latch_wait(ckpt_restore_latch(restore),
		CKPT_DONE_OPENED | CKPT_DONE_END, ckpt_runtime_patience_ms(engine));
	if (!(bits & (CKPT_DONE_OPENED | CKPT_DONE_END))) {
		r = ckpt_runtime_no_answer(engine, ckpt_error_here());
		ckpt_restore_free(restore);
		return r;
	}
	if (bits & CKPT_DONE_END) {
		r = failed(restore);
		ckpt_restore_free(restore);
		return r;
	}
	*ret_restore = restore;
	return 0;
}

uint64_t ckpt_restore_step(const struct ckpt_restore *restore)
{
	return ckpt_restore_chosen_step(restore);
}

uint64_t ckpt_restore_generation(const struct ckpt_restore *restore)
{
	return ckpt_restore_chosen_generation(restore);
}

uint32_t ckpt_restore_number(const struct ckpt_restore *restore)
{
	return ckpt_restore_shared_number(restore);
}

size_t ckpt_restore_count(const struct ckpt_restore *restore)
{
	return ckpt_restore_name_count(restore);
}

int ckpt_restore_tensor(
	const struct ckpt_restore *restore, size_t index, struct ckpt_tensor_info *ret_info)
{
	struct ckpt_tensor_info info = {.size = sizeof(info)};

	int r = ckpt_restore_name(restore, index, &info);
	if (r < 0)
		return ckpt_fail(ckpt_error_here(), r, "name %zu of %zu", index,
			ckpt_restore_name_count(restore));
	return ckpt_copy_out(ret_info, &info, sizeof(info), "ckpt_tensor_info");
}

int ckpt_restore_find(const struct ckpt_restore *restore, const char *name, size_t *ret_index)
{
	if (!name || !ret_index)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "name or ret_index is NULL");
	return ckpt_restore_name_find(restore, name, ckpt_error_here(), ret_index);
}

uint32_t ckpt_restore_world(const struct ckpt_restore *restore)
{
	return ckpt_restore_rank_count(restore);
}

const char *ckpt_restore_replicas(const struct ckpt_restore *restore)
{
	return ckpt_restore_differ(restore);
}

int ckpt_api_check_rank(const struct ckpt_restore *restore, uint32_t rank)
{
	uint32_t world = ckpt_restore_rank_count(restore);

	if (world == 0)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "the restore holds no index");
	if (rank >= world)
		return ckpt_fail(ckpt_error_here(), -ERANGE,
			"rank %u of a step that %u ranks wrote", rank, world);
	return 0;
}

int ckpt_restore_rank_node(const struct ckpt_restore *restore, uint32_t rank, const char **ret_node,
	uint32_t *ret_other_node)
{
	int r = ckpt_api_check_rank(restore, rank);

	if (r < 0)
		return r;
	*ret_node = ckpt_restore_rank_node_name(restore, rank);
	*ret_other_node = ckpt_restore_rank_other_node(restore, rank, NULL) < 0;
	return 0;
}

struct ckpt_index_reader *ckpt_api_read_rank(
	const struct ckpt_restore *restore, uint32_t rank, bool with_table, int *ret_code)
{
	struct ckpt_engine *engine = ckpt_restore_owner(restore);

	/* The engine may be gone, too. */
	if (gone(restore)) {
		*ret_code = ckpt_fail(ckpt_error_here(), CKPT_ECLOSED,
			"the engine was closed before the index of rank %u was read", rank);
		return NULL;
	}
	struct ckpt_command *command = ckpt_runtime_command(engine,
		sizeof(struct ckpt_index_reader), ckpt_index_reader_clear, ckpt_error_here());
	*ret_code = -ENOMEM;
	if (!command)
		return NULL;
	struct ckpt_index_reader *index_reader =
		CKPT_CONTAINER(command, struct ckpt_index_reader, command);
	/* What a handle that is const promises is what it says, not how it comes to know it. */
	index_reader->restore = ckpt_restore_ref((struct ckpt_restore *)restore);
	index_reader->rank = rank;
	index_reader->with_table = with_table;
	*ret_code = ckpt_runtime_run(engine, command, ckpt_index_reader_body, ckpt_error_here());
	if (*ret_code == 0)
		return index_reader;
	ckpt_command_unref(command);
	return NULL;
}

/* Of very many ranks the indexes are read when they are asked for. */
static int read_index(struct ckpt_restore *restore, uint32_t rank)
{
	int r;
	struct ckpt_index_reader *index_reader = ckpt_api_read_rank(restore, rank, false, &r);

	if (!index_reader)
		return r;
	r = ckpt_restore_put_index(restore, rank, index_reader->index);
	index_reader->index = NULL;
	ckpt_command_unref(&index_reader->command);
	return r < 0 ? ckpt_fail(ckpt_error_here(), r, "out of memory") : 0;
}

static int give_meta(const struct ckpt_restore *restore, uint32_t rank, const char **ret_json,
	size_t *ret_length)
{
	const struct ckpt_index *index = ckpt_restore_rank_index(restore, rank);

	int r = index ? 0 : read_index((struct ckpt_restore *)restore, rank);
	if (r < 0)
		return r;
	index = ckpt_restore_rank_index(restore, rank);
	*ret_json = index->meta ? index->meta : "";
	*ret_length = index->meta ? index->meta_bytes : 0;
	return 0;
}

int ckpt_restore_rank_meta(const struct ckpt_restore *restore, uint32_t rank, const char **ret_json,
	size_t *ret_length)
{
	int r = ckpt_api_check_rank(restore, rank);

	if (r == 0)
		r = ckpt_restore_rank_other_node(restore, rank, ckpt_error_here());
	return r < 0 ? r : give_meta(restore, rank, ret_json, ret_length);
}

int ckpt_restore_meta(const struct ckpt_restore *restore, const char **ret_json, size_t *ret_length)
{
	int r = ckpt_api_check_rank(restore, 0);

	return r < 0 ? r
		     : give_meta(restore, ckpt_restore_first_rank(restore), ret_json, ret_length);
}

int ckpt_restore_bind(struct ckpt_restore *restore, const struct ckpt_target *targets, size_t count)
{
	int r = check(restore);

	if (r < 0 || count == 0)
		return r;
	struct ckpt_target *copies = NULL;
	r = ckpt_copy_in_all((void **)&copies, sizeof(*targets),
		offsetof(struct ckpt_target, start), targets, count, "ckpt_target");
	if (r == 0)
		r = ckpt_restore_add_targets(
			restore, copies ? copies : targets, count, ckpt_error_here());
	ckpt_free(copies);
	return r;
}

int ckpt_restore_start(struct ckpt_restore *restore)
{
	int r = check(restore);

	if (r == 0 && !gone(restore))
		ckpt_restore_post_start(restore);
	return r;
}

int ckpt_restore_wait(struct ckpt_restore *restore, int timeout_ms)
{
	int r = check(restore);

	if (r < 0)
		return r;
	uint32_t bits = ckpt_latch_wait(ckpt_restore_latch(restore), CKPT_DONE_END, timeout_ms);
	if (!(bits & CKPT_DONE_END))
		return ckpt_fail(ckpt_error_here(), -ETIMEDOUT, "the restore still runs");
	return ckpt_restore_failure(restore)->code < 0 ? failed(restore) : 0;
}

int ckpt_restore_progress(struct ckpt_restore *restore, uint64_t *ret_done, uint64_t *ret_total)
{
	int r = check(restore);

	if (r == 0)
		ckpt_restore_counters(restore, ret_done, ret_total);
	return r;
}

void ckpt_restore_cancel(struct ckpt_restore *restore)
{
	if (restore && !ckpt_restore_forked(restore) && !gone(restore))
		ckpt_restore_post_cancel(restore);
}

int ckpt_restore_adopt(struct ckpt_restore *restore)
{
	int r = check(restore);

	if (r < 0)
		return r;
	uint64_t generation = ckpt_restore_chosen_generation(restore);
	if (generation == 0)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "the restore has chosen no step");
	if (!ckpt_restore_agreed(restore))
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"step %llu has not been restored by all ranks: wait for the end, and adopt "
			"what has gone well",
			(unsigned long long)ckpt_restore_chosen_step(restore));
	return ckpt_runtime_adopt(ckpt_restore_owner(restore), generation,
		ckpt_restore_chosen_step(restore), ckpt_error_here());
}

int ckpt_restore_error(struct ckpt_restore *restore, struct ckpt_error *ret_error)
{
	int r = check(restore);

	if (r < 0)
		return r;
	if (!(ckpt_latch_get(ckpt_restore_latch(restore)) & CKPT_DONE_END) ||
		ckpt_restore_failure(restore)->code == 0)
		return 0;
	return ret_error ? ckpt_error_copy(ckpt_restore_failure(restore), ret_error)
			 : ckpt_restore_failure(restore)->code;
}

void ckpt_restore_free(struct ckpt_restore *restore)
{
	if (!restore || ckpt_restore_forked(restore))
		return;
	if (!gone(restore)) {
		struct ckpt_latch *latch = ckpt_restore_latch(restore);
		ckpt_restore_post_cancel(restore);
		ckpt_restore_post_release(restore);
		/* Its end is that nothing is copied into targets any more, and waits for no disk. */
		if (ckpt_restore_has_targets(restore))
			(void)ckpt_latch_wait(latch, CKPT_DONE_END, CKPT_FOREVER);
		(void)ckpt_latch_wait(latch, CKPT_DONE_GONE, FREE_TIMEOUT_MS);
	}
	ckpt_restore_unref(restore);
}
