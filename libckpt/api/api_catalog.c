/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of a catalog, a verification, an export. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <ckpt/ckpt.h>

#include "api/api_catalog.h"
#include "api/api_restore.h"
#include "api/copyin.h"
#include "base/alloc.h"
#include "base/error.h"
#include "config.h"
#include "engine/gc/gc.h"
#include "engine/runtime/commands.h"

static bool passed_over(struct ckpt_scan *scan, const struct ckpt_scan_step *s)
{
	return (s->state == CKPT_STEP_QUARANTINED && s->in_lineage) ||
	       (s->state == CKPT_STEP_BROKEN && ckpt_lineage_holds(scan, s->generation, s->step));
}

static void take_remote(struct ckpt_catalog *catalog, struct ckpt_record_reader *reader)
{
	catalog->remote_code = reader->code ? reader->code : CKPT_ENOSTORE;
	if (!reader->found)
		return;
	catalog->remote = reader->record;
	reader->found = false;
	catalog->remote_code =
		strcmp(catalog->remote.run_id, catalog->scan.run_id) == 0 ? 0 : CKPT_EINTEGRITY;
}

int ckpt_catalog_open(struct ckpt_engine *engine, struct ckpt_catalog **ret_catalog)
{
	struct ckpt_error *err = ckpt_error_here();

	if (!engine || !ret_catalog)
		return ckpt_fail(err, -EINVAL, "engine or ret_catalog is NULL");
	int r = ckpt_check_fork(engine);
	if (r < 0)
		return r;
	struct ckpt_catalog *catalog = ckpt_alloc(sizeof(*catalog));
	if (!catalog)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_lister), ckpt_lister_clear, err);
	if (!command) {
		ckpt_free(catalog);
		return -ENOMEM;
	}
	struct ckpt_lister *lister = CKPT_CONTAINER(command, struct ckpt_lister, command);
	lister->remote = true;
	r = ckpt_runtime_run(engine, command, ckpt_lister_body, err);
	if (r == 0) {
		catalog->scan = lister->scanner.scan;
		lister->scanner.scan = (struct ckpt_scan){0};
		take_remote(catalog, &lister->reader);
		ckpt_error_clear(&catalog->error);
		if (lister->mark_result < 0)
			catalog->error = command->error;
		*ret_catalog = catalog;
	} else {
		ckpt_free(catalog);
	}
	ckpt_command_unref(command);
	return r;
}

size_t ckpt_catalog_count(const struct ckpt_catalog *catalog)
{
	return catalog->scan.step_count;
}

/* Of what may be restored; and what is there of others nobody says. */
static enum ckpt_remote_state remote_state(
	const struct ckpt_catalog *catalog, const struct ckpt_scan_step *s)
{
	if (catalog->remote_code < 0)
		return CKPT_REMOTE_UNKNOWN;
	if (s->state == CKPT_STEP_ABORTED || s->state == CKPT_STEP_PENDING)
		return CKPT_REMOTE_EXCLUDED;
	if (s->state != CKPT_STEP_COMMITTED || !s->in_lineage)
		return CKPT_REMOTE_UNKNOWN;
	return ckpt_remote_record_state(&catalog->remote, s->generation, s->step);
}

int ckpt_catalog_step(
	const struct ckpt_catalog *catalog, size_t index, struct ckpt_step_info *ret_info)
{
	if (index >= catalog->scan.step_count)
		return ckpt_fail(ckpt_error_here(), -ERANGE, "step %zu of %zu", index,
			catalog->scan.step_count);
	/* Looking for a claim changes nothing. */
	struct ckpt_scan *scan = (struct ckpt_scan *)&catalog->scan;
	const struct ckpt_scan_step *s = &scan->steps[index];
	struct ckpt_step_info info = {.size = sizeof(info),
		.state = s->state,
		.step = s->step,
		.generation = s->generation,
		.wall_ms = s->wall_ms,
		.bytes = s->bytes,
		.world = s->world,
		.in_lineage = s->in_lineage,
		.code = s->state == CKPT_STEP_BROKEN ? s->code : 0,
		.passed_over = passed_over(scan, s),
		.deleting = s->deleting,
		.expired = catalog->expired && catalog->expired[index],
		.remote = remote_state(catalog, s)};
	if (info.remote == CKPT_REMOTE_FAILED)
		info.remote_code = ckpt_remote_record_why(&catalog->remote, s->generation, s->step);
	(void)snprintf(info.attempt, sizeof(info.attempt), "%s", s->attempt);
	(void)snprintf(info.note, sizeof(info.note), "%s", s->note);
	return ckpt_copy_out(ret_info, &info, sizeof(info), "ckpt_step_info");
}

int ckpt_catalog_error(const struct ckpt_catalog *catalog, struct ckpt_error *ret_error)
{
	if (catalog->error.code < 0 && ret_error)
		return ckpt_error_copy(&catalog->error, ret_error);
	return catalog->error.code;
}

int ckpt_catalog_remote(const struct ckpt_catalog *catalog, struct ckpt_remote_info *ret_info)
{
	const struct ckpt_remote_record *r = &catalog->remote;

	if (catalog->remote_code == CKPT_ENOSTORE)
		return ckpt_fail(ckpt_error_here(), CKPT_ENOSTORE,
			"nothing is remembered of a remote store");
	if (catalog->remote_code < 0)
		return ckpt_fail(ckpt_error_here(), catalog->remote_code,
			"what is remembered of the remote store cannot be used: %s",
			ckpt_code_text(catalog->remote_code));
	struct ckpt_remote_info info = {.size = sizeof(info),
		.code = r->code,
		.wall_ms = r->wall_ms,
		.generation = r->generation,
		.every = r->every,
		.uploaded_generation = r->uploaded_generation,
		.uploaded_step = r->uploaded_step,
		.uploaded_wall_ms = r->uploaded_wall_ms,
		.waiting = r->waiting_count + r->waiting_more,
		.failures = r->code ? r->tries : 0,
		.failing_wall_ms = r->code ? r->since_ms : 0,
		.next_wall_ms = r->code ? r->next_ms : 0};
	(void)snprintf(info.node, sizeof(info.node), "%s", r->node);
	(void)snprintf(info.reason, sizeof(info.reason), "%s", r->reason);
	(void)snprintf(info.remote, sizeof(info.remote), "%s", r->remote);
	return ckpt_copy_out(ret_info, &info, sizeof(info), "ckpt_remote_info");
}

const char *ckpt_catalog_run_id(const struct ckpt_catalog *catalog)
{
	return catalog->scan.run_id;
}

void ckpt_catalog_free(struct ckpt_catalog *catalog)
{
	if (!catalog)
		return;
	ckpt_scan_clear(&catalog->scan);
	ckpt_remote_record_clear(&catalog->remote);
	ckpt_free(catalog->expired);
	ckpt_free(catalog);
}

static int start_verify(
	struct ckpt_engine *engine, uint64_t step, bool quick, struct ckpt_restore **ret_restore)
{
	struct ckpt_restore *restore;

	int r = ckpt_api_restore_new(engine, step, CKPT_SINK_NONE, &restore);
	if (r < 0)
		return r;
	if (quick)
		ckpt_restore_set_quick(restore);
	ckpt_restore_post_open(restore);
	*ret_restore = restore;
	return 0;
}

int ckpt_verify_start(struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore)
{
	return start_verify(engine, step, false, ret_restore);
}

int ckpt_verify_quick_start(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore)
{
	return start_verify(engine, step, true, ret_restore);
}

size_t ckpt_verify_count(const struct ckpt_restore *restore)
{
	return ckpt_restore_finding_count(restore);
}

int ckpt_verify_finding(
	const struct ckpt_restore *restore, size_t index, struct ckpt_finding *ret_finding)
{
	if (index >= ckpt_restore_finding_count(restore))
		return ckpt_fail(ckpt_error_here(), -ERANGE, "finding %zu of %zu", index,
			ckpt_restore_finding_count(restore));
	return ckpt_copy_out(ret_finding, ckpt_restore_finding(restore, index),
		sizeof(struct ckpt_finding), "ckpt_finding");
}

static int set_dest(struct ckpt_engine *engine, struct ckpt_restore *restore, const char *dest,
	const struct ckpt_export_opts *opts)
{
	struct ckpt_error *err = ckpt_error_here();
	struct ckpt_core_place place;

	if (opts->ranks_count > 0 &&
		ckpt_restore_set_dest_ranks(restore, opts->ranks, opts->ranks_count) < 0)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	if (opts->plain)
		ckpt_restore_set_dest_plain(restore);
	int r = ckpt_runtime_dest(engine, dest, err, &place);
	if (r < 0)
		return r;
	r = ckpt_restore_set_dest(restore, &place);
	if (r < 0) {
		if (place.root >= 0)
			(void)close(place.root);
		return ckpt_fail(err, r, "out of memory");
	}
	return 0;
}

int ckpt_export_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	struct ckpt_restore **ret_restore)
{
	return ckpt_export_opts_start(engine, step, dest, NULL, ret_restore);
}

int ckpt_export_ranks_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	const uint32_t *ranks, size_t count, struct ckpt_restore **ret_restore)
{
	const struct ckpt_export_opts opts = {
		.size = sizeof(opts), .ranks = ranks, .ranks_count = count};

	return ckpt_export_opts_start(engine, step, dest, &opts, ret_restore);
}

int ckpt_export_opts_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	const struct ckpt_export_opts *opts, struct ckpt_restore **ret_restore)
{
	struct ckpt_export_opts copy = {0};
	struct ckpt_restore *restore;
	int r = opts ? ckpt_copy_in(&copy, sizeof(copy), opts, "ckpt_export_opts") : 0;

	if (r < 0)
		return r;
	if (!dest || !*dest)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "dest is missing");
	if (copy.ranks_count > 0 && !copy.ranks)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "ranks is NULL");
	r = ckpt_api_restore_new(engine, step, CKPT_SINK_STORE, &restore);
	if (r < 0)
		return r;
	r = set_dest(engine, restore, dest, &copy);
	if (r < 0) {
		ckpt_restore_unref(restore);
		return r;
	}
	ckpt_restore_post_open(restore);
	*ret_restore = restore;
	return 0;
}

int ckpt_export_existed(const struct ckpt_restore *restore)
{
	return restore && ckpt_restore_existed(restore);
}

int ckpt_recode_step_start(struct ckpt_engine *engine, uint64_t step, uint32_t encoding,
	struct ckpt_restore **ret_restore)
{
	struct ckpt_restore *restore;

	if (encoding > CKPT_ENCODING_COMPACT)
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"encoding is %u: it must be an enum ckpt_encoding", encoding);
	if (!CKPT_HAVE_CODEC)
		return ckpt_fail(ckpt_error_here(), CKPT_EUNSUPPORTED,
			"this library was built without zstd, and neither encodes nor decodes "
			"shards");
	int r = ckpt_api_restore_new(engine, step, CKPT_SINK_RECODE, &restore);
	if (r < 0)
		return r;
	if (encoding == CKPT_ENCODING_COMPACT)
		ckpt_restore_set_encodes(restore);
	ckpt_restore_post_open(restore);
	*ret_restore = restore;
	return 0;
}

int ckpt_recode_step_info(const struct ckpt_restore *restore, struct ckpt_recode_info *ret_info)
{
	if (!restore)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "restore is NULL");
	const struct ckpt_restore_recoded done = ckpt_restore_recoded(restore);
	const struct ckpt_recode_info info = {.size = sizeof(info),
		.ranks = done.ranks,
		.bytes_before = done.bytes_before,
		.bytes_after = done.bytes_after};

	return ckpt_copy_out(ret_info, &info, sizeof(info), "ckpt_recode_info");
}

int ckpt_catalog_remove(struct ckpt_engine *engine, uint64_t step)
{
	struct ckpt_error *err = ckpt_error_here();
	struct ckpt_command *command;

	if (!engine)
		return ckpt_fail(err, -EINVAL, "engine is NULL");
	int r = ckpt_check_fork(engine);
	if (r < 0)
		return r;
	command = ckpt_delete_command_new(ckpt_runtime_core(engine), step);
	if (!command)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	r = ckpt_runtime_run(engine, command, ckpt_delete_command_body, err);
	ckpt_command_unref(command);
	return r;
}
