/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of an engine. */
#include <errno.h>
#include <string.h>
#include <ckpt/ckpt.h>

#include "api/copyin.h"
#include "config.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/import.h"

#define BLOCK_DEFAULT   (UINT32_C(8) << 20)
#define BLOCK_MIN       (UINT32_C(64) << 10)
#define BLOCK_MAX       (UINT32_C(64) << 20)
#define DEPTH_DEFAULT   16
#define DEPTH_MAX       1024
#define THREADS_DEFAULT 4
#define THREADS_MAX     64
#define TIMEOUT_DEFAULT 600000
#define EITHER_FLAGS    (CKPT_ENGINE_NEW_START | CKPT_ENGINE_READ_ONLY)
#define KNOWN_FLAGS                                                                                \
	(EITHER_FLAGS | CKPT_ENGINE_NODE_STORE | CKPT_ENGINE_NO_IMPORT | CKPT_ENGINE_LOST_NODES)

static int bad_option(const char *field, unsigned long long value, const char *allowed)
{
	return ckpt_fail(ckpt_error_here(), -EINVAL, "ckpt_engine_opts.%s is %llu: it must be %s",
		field, value, allowed);
}

static void fill_defaults(struct ckpt_engine_opts *o)
{
	if (!o->block_bytes)
		o->block_bytes = BLOCK_DEFAULT;
	if (!o->copy_threads)
		o->copy_threads = (uint32_t)ckpt_min_u64(ckpt_thread_cpus(), THREADS_DEFAULT);
	if (!o->io_depth)
		o->io_depth = DEPTH_DEFAULT;
	if (!o->save_timeout_ms)
		o->save_timeout_ms = TIMEOUT_DEFAULT;
	if (!o->log_level)
		o->log_level = CKPT_LOG_INFO;
}

/* What is said of this node and its store. */
static int check_node(const struct ckpt_engine_opts *o)
{
	if (o->node && (strlen(o->node) >= CKPT_NODE_CHARS || !ckpt_utf8_is_line(o->node)))
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"ckpt_engine_open: node is '%.80s', and must be one line of UTF-8, at most "
			"64 bytes",
			o->node);
	if (o->cuda_major > 99)
		return bad_option("cuda_major", o->cuda_major, "a major version of CUDA, or 0");
	if (o->node_leader > o->rank)
		return bad_option("node_leader", o->node_leader,
			"the lowest rank of this node, and no greater than rank");
	if (o->flags & CKPT_ENGINE_NODE_STORE && o->world > 1 && !o->exchange &&
		!(o->flags & CKPT_ENGINE_READ_ONLY))
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"ckpt_engine_open: with CKPT_ENGINE_NODE_STORE the ranks of several nodes "
			"have no "
			"directory to talk through: give an exchange");
	return 0;
}

static int check_encoding(const struct ckpt_engine_opts *o)
{
	if (o->encoding > CKPT_ENCODING_DELTA)
		return bad_option("encoding", o->encoding, "an enum ckpt_encoding");
	if (o->encoding != CKPT_ENCODING_PLAIN && !CKPT_HAVE_CODEC)
		return ckpt_fail(ckpt_error_here(), CKPT_EUNSUPPORTED,
			"ckpt_engine_opts.encoding is %s: this library was built without zstd, and "
			"stores shards plain only",
			o->encoding == CKPT_ENCODING_DELTA ? "CKPT_ENCODING_DELTA"
							   : "CKPT_ENCODING_COMPACT");
	if (o->remote_encoding > CKPT_REMOTE_COMPACT)
		return bad_option(
			"remote_encoding", o->remote_encoding, "an enum ckpt_remote_encoding");
	if (o->remote_encoding && !CKPT_HAVE_CODEC)
		return ckpt_fail(ckpt_error_here(), CKPT_EUNSUPPORTED,
			"ckpt_engine_opts.remote_encoding is %u: this library was built without "
			"zstd, and neither encodes nor decodes shards",
			o->remote_encoding);
	return 0;
}

static int check_options(struct ckpt_engine_opts *o)
{
	if (o->flags & ~KNOWN_FLAGS)
		return bad_option("flags", o->flags, "CKPT_ENGINE_* flags");
	if ((o->flags & EITHER_FLAGS) == EITHER_FLAGS)
		return bad_option("flags", o->flags, "a new start or read only, not both");
	if (o->flags & CKPT_ENGINE_LOST_NODES && !(o->flags & CKPT_ENGINE_NODE_STORE))
		return bad_option("flags", o->flags,
			"with CKPT_ENGINE_LOST_NODES also CKPT_ENGINE_NODE_STORE");
	if (o->block_bytes && (o->block_bytes < BLOCK_MIN || o->block_bytes > BLOCK_MAX ||
				      (o->block_bytes & (o->block_bytes - 1))))
		return bad_option(
			"block_bytes", o->block_bytes, "a power of two, 64 KiB to 64 MiB");
	if (o->copy_threads > THREADS_MAX)
		return bad_option("copy_threads", o->copy_threads, "at most 64");
	if (o->io > CKPT_IO_THREADS)
		return bad_option("io", o->io, "an enum ckpt_io_kind");
	if (o->io_depth > DEPTH_MAX)
		return bad_option("io_depth", o->io_depth, "at most 1024");
	if (o->replicas > CKPT_REPLICAS_WARN)
		return bad_option("replicas", o->replicas, "an enum ckpt_replica_policy");
	if (o->busy > CKPT_BUSY_SKIP)
		return bad_option("busy", o->busy, "an enum ckpt_busy");
	if (o->save_timeout_ms > INT32_MAX)
		return bad_option("save_timeout_ms", o->save_timeout_ms, "below 2^31");
	if (o->log_level > CKPT_LOG_DEBUG)
		return bad_option("log_level", o->log_level, "an enum ckpt_log_level");
	if (o->world > CKPT_WORLD_SAVING)
		return bad_option("world", o->world, "at most 50000");
	if (o->rank >= (o->world ? o->world : 1))
		return bad_option("rank", o->rank, "below world");
	if (o->world > 1 && (!o->session || !ckpt_session_valid(o->session)))
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"ckpt_engine_open: session is '%.80s', and must be 1 to 64 of A-Z a-z 0-9 "
			". _ - "
			"that all ranks of this start of the job give",
			o->session ? o->session : "");
	if (o->remote && o->flags & CKPT_ENGINE_READ_ONLY)
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"ckpt_engine_open: remote is '%.200s', and nothing is uploaded read only",
			o->remote);
	int r = check_node(o);
	if (r < 0)
		return r;
	fill_defaults(o);
	return check_encoding(o);
}

static int take_options(const struct ckpt_engine_opts *opts, struct ckpt_engine_opts *ret_opts)
{
	if (opts) {
		int r = ckpt_copy_in(ret_opts, sizeof(*ret_opts), opts, "ckpt_engine_opts");
		if (r < 0)
			return r;
	}
	return check_options(ret_opts);
}

int ckpt_engine_open(
	const char *path, const struct ckpt_engine_opts *opts, struct ckpt_engine **ret_engine)
{
	struct ckpt_engine_opts copy = {0};
	struct ckpt_error *err = ckpt_error_here();

	if (!path || !*path || !ret_engine)
		return ckpt_fail(err, -EINVAL, "ckpt_engine_open: path or ret_engine is missing");
	int r = take_options(opts, &copy);
	return r < 0 ? r : ckpt_import_open(path, &copy, err, ret_engine);
}

static int import_store(const char *path, const struct ckpt_engine_opts *opts,
	const struct ckpt_restore_near *near, uint64_t *ret_generation, uint64_t *ret_step)
{
	struct ckpt_engine_opts copy = {0};
	struct ckpt_error *err = ckpt_error_here();
	struct ckpt_import import;

	if (!path || !*path || !opts || !ret_generation || !ret_step)
		return ckpt_fail(err, -EINVAL,
			"ckpt_engine_import: path, opts, ret_generation or ret_step is missing");
	int r = take_options(opts, &copy);
	if (r < 0)
		return r;
	if (!copy.remote)
		return ckpt_fail(
			err, CKPT_ELEVEL, "ckpt_engine_import: opts names no remote store");
	if (near && !(copy.flags & CKPT_ENGINE_NODE_STORE))
		return ckpt_fail(err, -EINVAL,
			"ckpt_engine_import_ranks: the ranks of a node have a store only with "
			"CKPT_ENGINE_NODE_STORE");
	r = ckpt_runtime_import(path, &copy, near, err, &import);
	if (r < 0)
		return r;
	*ret_generation = import.imported ? import.generation : 0;
	*ret_step = import.imported ? import.step : 0;
	return 0;
}

int ckpt_engine_import(const char *path, const struct ckpt_engine_opts *opts,
	uint64_t *ret_generation, uint64_t *ret_step)
{
	return import_store(path, opts, NULL, ret_generation, ret_step);
}

int ckpt_engine_import_ranks(const char *path, const struct ckpt_engine_opts *opts,
	const uint32_t *ranks, size_t count, uint32_t world, uint64_t *ret_generation,
	uint64_t *ret_step)
{
	const struct ckpt_restore_near near = {.ranks = ranks, .count = count, .world = world};
	bool good = ranks && count > 0 && count <= world && world <= CKPT_WORLD_SAVING;

	for (size_t i = 0; good && i < count; i++)
		good = ranks[i] < world;
	if (!good)
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"ckpt_engine_import_ranks: ranks must be %s",
			"1 to `world` numbers below `world`, which is at most 50000");
	return import_store(path, opts, &near, ret_generation, ret_step);
}

int ckpt_engine_drain(struct ckpt_engine *engine, int timeout_ms)
{
	int r = ckpt_check_fork(engine);

	return r < 0 ? r : ckpt_runtime_drain(engine, timeout_ms, ckpt_error_here());
}

int ckpt_engine_drain_remote(struct ckpt_engine *engine, int timeout_ms)
{
	int r = ckpt_check_fork(engine);

	return r < 0 ? r : ckpt_runtime_drain_remote(engine, timeout_ms, ckpt_error_here());
}

void ckpt_engine_close(struct ckpt_engine *engine)
{
	/* The parent's threads are not there in a child: its memory is all there is to leave. */
	if (engine && !ckpt_runtime_forked(engine))
		ckpt_runtime_close(engine);
}

int ckpt_engine_latest(struct ckpt_engine *engine, uint64_t *ret_step)
{
	struct ckpt_error *err = ckpt_error_here();

	int r = ckpt_check_fork(engine);
	if (r < 0)
		return r;
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_lister), ckpt_lister_clear, err);
	if (!command)
		return -ENOMEM;
	struct ckpt_lister *lister = CKPT_CONTAINER(command, struct ckpt_lister, command);
	r = ckpt_runtime_run(engine, command, ckpt_lister_body, err);
	if (r == 0) {
		const struct ckpt_scan_step *found =
			ckpt_lineage_choose(&lister->scanner.scan, CKPT_STEP_LATEST, NULL);
		if (found)
			*ret_step = found->step;
		else if (lister->mark_result < 0)
			r = ckpt_error_copy(&command->error, err);
		else
			r = ckpt_fail(err, CKPT_ENOSTEP, "the lineage holds no good step");
	}
	ckpt_command_unref(command);
	return r;
}

int ckpt_engine_claim(struct ckpt_engine *engine, uint64_t *ret_generation)
{
	uint64_t generation = 0;
	int r = ckpt_check_fork(engine);

	if (r == 0)
		r = ckpt_runtime_claim(engine, ckpt_error_here(), &generation);
	if (r == 0 && ret_generation)
		*ret_generation = generation;
	return r;
}

static int set_pin(struct ckpt_engine *engine, uint64_t step, bool pin)
{
	struct ckpt_error *err = ckpt_error_here();

	int r = ckpt_check_fork(engine);
	if (r < 0)
		return r;
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_pinner), NULL, err);
	if (!command)
		return -ENOMEM;
	struct ckpt_pinner *pinner = CKPT_CONTAINER(command, struct ckpt_pinner, command);
	pinner->step = step;
	pinner->pin = pin;
	r = ckpt_runtime_run(engine, command, ckpt_pinner_body, err);
	ckpt_command_unref(command);
	return r;
}

int ckpt_engine_pin(struct ckpt_engine *engine, uint64_t step)
{
	return set_pin(engine, step, true);
}

int ckpt_engine_unpin(struct ckpt_engine *engine, uint64_t step)
{
	return set_pin(engine, step, false);
}

int ckpt_engine_eventfd(const struct ckpt_engine *engine)
{
	return ckpt_runtime_eventfd(engine);
}

uint64_t ckpt_engine_unchecked(const struct ckpt_engine *engine, const char **ret_boxes)
{
	const char *boxes;
	uint64_t why = ckpt_runtime_unchecked(engine, &boxes);

	if (ret_boxes)
		*ret_boxes = boxes;
	return why;
}

int ckpt_engine_own(struct ckpt_engine *engine, uint64_t group)
{
	int r = ckpt_check_fork(engine);

	return r < 0 ? r : (int)ckpt_runtime_own(engine, group);
}

int ckpt_engine_stats(struct ckpt_engine *engine, struct ckpt_stats *ret_stats)
{
	struct ckpt_stats stats = {0};
	int r = ckpt_check_fork(engine);

	if (r == 0)
		r = ckpt_runtime_stats(engine, ckpt_error_here(), &stats);
	return r < 0 ? r : ckpt_copy_out(ret_stats, &stats, sizeof(stats), "ckpt_stats");
}

int ckpt_engine_log(struct ckpt_engine *engine, int timeout_ms, struct ckpt_log_record *ret_record)
{
	struct ckpt_log_record record = {.size = sizeof(record)};
	int r = ckpt_check_fork(engine);

	if (r == 0)
		r = ckpt_log_next(ckpt_runtime_log(engine), timeout_ms, &record);
	return r < 0 ? r : ckpt_copy_out(ret_record, &record, sizeof(record), "ckpt_log_record");
}

void ckpt_engine_stop_log(struct ckpt_engine *engine)
{
	if (engine && !ckpt_runtime_forked(engine))
		ckpt_log_quiet(ckpt_runtime_log(engine));
}
