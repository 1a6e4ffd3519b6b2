/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt prune: deletes old steps from a store that others read and write. */
#include <errno.h>
#include <time.h>

#include "cli.h"

static const char help[] =
	"Deletes old steps from a store that others may read, and upload to, meanwhile.\n"
	"STORE is s3://BUCKET/PREFIX, file:///DIRECTORY or a directory.\n"
	"\n"
	"It verifies the newest step that stays. Then it writes a tombstone beside each\n"
	"step that is to be deleted. From then on a restore of the newest step chooses\n"
	"another one. Then it waits, lists the store again, and deletes what is still to\n"
	"be deleted. It also deletes what an interrupted deletion has left. Pending\n"
	"steps stay.\n"
	"\n"
	"A tombstone of another ckpt prune or of a job is left to its writer for the\n"
	"grace period. If the writer does not continue, prune replaces the tombstone,\n"
	"and waits for the grace period again. If prune is interrupted, run the same\n"
	"command again to continue.\n"
	"\n"
	"  --keep-last N\n"
	"                Keep the newest N committed steps of the lineage, 1 or more.\n"
	"  --keep-every N\n"
	"                Also keep every step of the lineage that is a multiple of N.\n"
	"  --grace S     Seconds between the tombstones and the deletion. Default: 600.\n"
	"                It must be longer than a restore takes. Less than 600 is safe\n"
	"                only if nobody else deletes steps of this store.\n"
	"  --no-verify   Do not read the newest step first.\n"
	"  --dry-run     Print what would be deleted, and change nothing.\n"
	"  --json        Print one JSON object.\n"
	"  --progress auto|always|never\n"
	"                Show a progress bar. Default: if standard error is a terminal.\n"
	"  -q, --quiet   Print nothing on success.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 success; 1 failure; 2 wrong usage; 3, 4 the newest step is not\n"
	"good and nothing was deleted, or a step with a tombstone cannot be read and was\n"
	"kept; 10 no such store; 11 a live process holds STORE, or reads a step, which\n"
	"was kept; 12 not authorised; 13 network; 130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt prune s3://models/run42 --keep-last 5 --keep-every 1000 --dry-run\n"
	"  ckpt prune file:///mnt/shared/run42 --keep-last 3\n";

struct prune {
	const struct cli *cli;
	struct ckpt_engine *engine;
	struct ckpt_catalog *catalog;
	json_t *removed;
	json_t *stayed; /* had a tombstone, and are kept */
	json_t *busy;   /* in use; not tried again in this round */
	uint64_t bytes;
	size_t marked; /* steps with a tombstone that will be deleted */
	size_t taken; /* tombstones taken over from somebody else; they wait for another grace period */
	unsigned round; /* grace periods that are over */
	unsigned looks; /* listings since the last grace period */
	bool claimed;   /* a job has claimed a generation since the last listing */
	int exit_code;
};

/* Listings that may be outdated by claims in a row; after that it is an error. */
#define LOOKS_MAX  10
/* Grace periods after which it may take over tombstones; after that they are left to their writers. */
#define ROUNDS_MAX 3

static struct ckpt_step_info step_at(const struct prune *p, size_t i)
{
	struct ckpt_step_info info = {.size = sizeof(info)};

	(void)ckpt_catalog_step(p->catalog, i, &info);
	return info;
}

static int stop(void *user);

/* Lists the store and decides which steps are to be deleted. */
static int look(struct prune *p)
{
	ckpt_catalog_free(p->catalog);
	p->catalog = NULL;
	p->claimed = false;
	p->looks++;
	cli_watch(p->cli, stop, p);
	int r = ckpt_catalog_open(p->engine, &p->catalog);
	cli_unwatch();

	return r < 0 ? r : ckpt_catalog_expire(p->catalog, p->cli->keep_last, p->cli->keep_every);
}

/* A job has claimed a generation since the listing, so other steps may have to be deleted: list again. */
static bool is_claimed(struct prune *p, int code)
{
	p->claimed = code == CKPT_EFENCED && p->looks < LOOKS_MAX;
	return p->claimed;
}

static void note(
	const struct prune *p, json_t *array, const struct ckpt_step_info *info, const char *what)
{
	char text[32];

	(void)json_array_append_new(
		array, json_pack("{s:I, s:I, s:I}", "step", (json_int_t)info->step, "generation",
			       (json_int_t)info->generation, "bytes", (json_int_t)info->bytes));
	if (!p->cli->json && !p->cli->quiet)
		(void)printf("%s step %llu of generation %llu (%s)\n", what,
			(unsigned long long)info->step, (unsigned long long)info->generation,
			cli_bytes(info->bytes, text));
}

/* The newest step that stays and has no tombstone; false: there is none. */
static bool newest(const struct prune *p, uint64_t *ret_step)
{
	for (size_t i = 0; i < ckpt_catalog_count(p->catalog); i++) {
		struct ckpt_step_info info = step_at(p, i);
		if (info.in_lineage && !info.expired && !info.deleting &&
			info.state == CKPT_STEP_COMMITTED) {
			*ret_step = info.step;
			return true;
		}
	}
	return false;
}

/* Whether a step will be deleted that can still be restored, or somebody else may be deleting one. */
static bool takes_steps(const struct prune *p)
{
	bool takes = false;

	for (size_t i = 0; i < ckpt_catalog_count(p->catalog); i++) {
		struct ckpt_step_info info = step_at(p, i);
		takes = takes || info.deleting || (info.expired && info.state != CKPT_STEP_PENDING);
	}
	return takes;
}

static int verify(struct prune *p)
{
	struct ckpt_restore *restore = NULL;
	char about[96];
	uint64_t step;

	if (p->cli->no_verify || !takes_steps(p) || !newest(p, &step))
		return CLI_OK;
	int r = ckpt_verify_start(p->engine, step, &restore);
	if (r == 0)
		r = cli_wait(p->cli, restore, "verifying");
	(void)snprintf(about, sizeof(about),
		"no step was deleted, because step %llu could not be verified",
		(unsigned long long)step);
	int exit_code = r < 0 ? cli_fail_with(p->cli, cli_exit_of(r), about) : CLI_OK;
	ckpt_restore_free(restore);
	return exit_code;
}

static int mark(struct prune *p)
{
	p->marked = 0;
	for (size_t i = ckpt_catalog_count(p->catalog); i-- > 0;) {
		struct ckpt_step_info info = step_at(p, i);
		if (cli_interrupted())
			return cli_fail_interrupted(p->cli, NULL);
		if (!info.expired && !info.deleting)
			continue;
		/* A tombstone of somebody else is noted, and left to its writer for the grace period. */
		int r = ckpt_catalog_mark(p->engine, p->catalog, i);
		if (is_claimed(p, r))
			return CLI_OK;
		if (r < 0)
			return cli_fail(p->cli, r);
		p->marked += info.expired;
	}
	return CLI_OK;
}

static int look_and_mark(struct prune *p)
{
	int exit_code;

	p->looks = 0;
	do {
		int r = look(p);
		exit_code = r < 0 ? cli_fail(p->cli, r) : verify(p);
		if (exit_code == CLI_OK)
			exit_code = mark(p);
	} while (exit_code == CLI_OK && p->claimed);
	return exit_code;
}

static int grace(const struct prune *p)
{
	const struct timespec tick = {.tv_nsec = 100000000};

	if (!takes_steps(p))
		return CLI_OK;
	if (!p->cli->quiet && !p->cli->json && p->cli->grace_s > 0)
		(void)fprintf(stderr, "%zu steps have tombstones and will be deleted in %llu s\n",
			p->marked, (unsigned long long)p->cli->grace_s);
	for (uint64_t ticks = p->cli->grace_s * 10; ticks > 0 && !cli_interrupted(); ticks--)
		(void)nanosleep(&tick, NULL);
	return cli_interrupted() ? cli_fail_interrupted(p->cli, NULL) : CLI_OK;
}

static void leave(
	struct prune *p, const struct ckpt_step_info *info, const char *what, int exit_code)
{
	note(p, p->busy, info, what);
	p->exit_code = exit_code;
}

static bool is_busy(const struct prune *p, const struct ckpt_step_info *info)
{
	for (size_t i = 0; i < json_array_size(p->busy); i++) {
		const json_t *at = json_array_get(p->busy, i);
		json_int_t step = json_integer_value(json_object_get(at, "step"));
		json_int_t generation = json_integer_value(json_object_get(at, "generation"));
		if (step == (json_int_t)info->step && generation == (json_int_t)info->generation)
			return true;
	}
	return false;
}

static int take(struct prune *p, size_t i, const struct ckpt_step_info *info)
{
	int r = info->expired ? ckpt_catalog_remove_marked(p->engine, p->catalog, i)
			      : ckpt_catalog_unmark(p->engine, p->catalog, i);

	if (r == -EAGAIN && p->round < ROUNDS_MAX) {
		p->taken++;
		return CLI_OK;
	}
	if (is_claimed(p, r))
		return CLI_OK;
	if (r == -EBUSY || r == -EAGAIN) {
		leave(p, info, "in use, not deleted:", CLI_IN_USE);
		return CLI_OK;
	}
	if (r < 0)
		return cli_fail(p->cli, r);
	note(p, info->expired ? p->removed : p->stayed, info,
		info->expired ? "deleted" : "tombstone removed, kept:");
	p->bytes += info->expired ? info->bytes : 0;
	return CLI_OK;
}

/* Oldest first. Steps that have become old since the tombstones were written are left to the next prune. */
static int take_all(struct prune *p)
{
	int exit_code = CLI_OK;

	for (size_t i = ckpt_catalog_count(p->catalog);
		i-- > 0 && exit_code == CLI_OK && !p->claimed;) {
		struct ckpt_step_info info = step_at(p, i);
		if (cli_interrupted())
			return cli_fail_interrupted(p->cli, NULL);
		if (is_busy(p, &info))
			continue;
		if (info.deleting && info.state == CKPT_STEP_BROKEN)
			leave(p, &info, "cannot be read, tombstone stays:", cli_exit_of(info.code));
		else if (info.deleting)
			exit_code = take(p, i, &info);
	}
	return exit_code;
}

/*
 * Deletes or keeps the steps with tombstones. If a job has claimed a generation meanwhile, it lists and decides again,
 * unless it has taken over tombstones: these wait for another grace period.
 */
static int look_and_take(struct prune *p)
{
	int exit_code;

	p->looks = 0;
	p->exit_code = CLI_OK;
	json_array_clear(p->busy);
	do {
		p->taken = 0;
		int r = look(p);
		exit_code = r < 0 ? cli_fail(p->cli, r) : take_all(p);
	} while (exit_code == CLI_OK && p->claimed && p->taken == 0);
	return exit_code;
}

static int print_dry_run(struct prune *p)
{
	int r = look(p);

	if (r < 0)
		return cli_fail(p->cli, r);
	for (size_t i = ckpt_catalog_count(p->catalog); i-- > 0;) {
		struct ckpt_step_info info = step_at(p, i);
		if (info.expired)
			note(p, p->removed, &info, "would delete");
		p->bytes += info.expired ? info.bytes : 0;
	}
	return CLI_OK;
}

static int run(struct prune *p)
{
	if (p->cli->dry_run)
		return print_dry_run(p);
	int exit_code = look_and_mark(p);
	do {
		if (exit_code == CLI_OK)
			exit_code = grace(p);
		p->round++;
		if (exit_code == CLI_OK)
			exit_code = look_and_take(p);
		/* Their writers did not continue: these tombstones are ours now. */
		p->marked = p->taken;
	} while (exit_code == CLI_OK && p->taken > 0);
	return exit_code;
}

static void say(const struct prune *p)
{
	size_t count = json_array_size(p->removed);
	char text[32];

	if (p->cli->json) {
		json_t *object = cli_object("pruned");
		(void)json_object_set_new(object, "store", json_string(p->cli->operand[0]));
		(void)json_object_set_new(object, "dry_run", json_boolean(p->cli->dry_run));
		(void)json_object_set(object, "removed", p->removed);
		(void)json_object_set(object, "stayed", p->stayed);
		(void)json_object_set(object, "busy", p->busy);
		(void)json_object_set_new(object, "bytes", json_integer((json_int_t)p->bytes));
		cli_print_json(object);
	} else if (!p->cli->quiet) {
		(void)printf("%zu steps %s %s (%s)\n", count,
			p->cli->dry_run ? "would be deleted from" : "were deleted from",
			p->cli->operand[0], cli_bytes(p->bytes, text));
	}
}

/* Interrupted while it lists: tombstones stay. */
static int stop(void *user)
{
	const struct prune *p = user;
	int exit_code = cli_fail_interrupted(p->cli, NULL);

	if (json_array_size(p->removed) > 0)
		say(p);
	return exit_code;
}

int cmd_prune(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE --keep-last N [--keep-every N] [--grace S]\n"
			 "          [--no-verify] [--dry-run] [--json] [-q]",
		.help = help,
		.operands = 1,
		.takes_quiet = true,
		.takes_progress = true,
		.takes_prune = true};
	struct cli cli;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	struct prune p = {
		.cli = &cli, .removed = json_array(), .stayed = json_array(), .busy = json_array()};
	exit_code = cli_open(&cli, &p.engine);
	if (exit_code == CLI_OK) {
		exit_code = run(&p);
		/* Also print what was deleted before a failure. */
		if (exit_code == CLI_OK || json_array_size(p.removed) > 0)
			say(&p);
		if (exit_code == CLI_OK)
			exit_code = p.exit_code;
		ckpt_catalog_free(p.catalog);
		ckpt_engine_close(p.engine);
	}
	json_decref(p.removed);
	json_decref(p.stayed);
	json_decref(p.busy);
	return exit_code;
}
