/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt prune: removes old steps from a store that others read and write. */
#include <errno.h>
#include <time.h>

#include "cli.h"

static const char help[] =
	"Removes old steps from STORE (s3://BUCKET/PREFIX, file:///DIRECTORY or a directory), "
	"which "
	"may be\n"
	"read, and uploaded to, meanwhile. What is to go is marked first: a restore of the latest "
	"takes\n"
	"another step from then on. Then it waits, looks again, and removes what is still to go. "
	"The\n"
	"newest step that stays is verified before anything is marked. What a removal has left "
	"that "
	"was\n"
	"cut short goes as well. Steps that are under way stay. What somebody else has marked is "
	"his\n"
	"for the grace, and as long again if he does not go on.\n"
	"\n"
	"  --keep-last N   the newest N steps of the lineage stay; 1 at least\n"
	"  --keep-every N  so does every step that N divides\n"
	"  --grace S       seconds between the marks and the removal (600): longer than a restore "
	"takes\n"
	"                  that has begun; 600 at least where others may remove at the same time\n"
	"  --no-verify     do not read the newest step first\n"
	"  --dry-run       say what would go, and change nothing\n"
	"  --json          one JSON object\n"
	"  --progress auto|always|never\n"
	"  -q, --quiet     say nothing when all is well\n"
	"  --version, -h, --help\n"
	"\n"
	"Where it was interrupted the same again goes on.\n"
	"\n"
	"Exit status: 0 all well; 1 failed; 2 usage; 3, 4 the newest step is not good, and nothing "
	"was\n"
	"removed, or a step that is marked cannot be read, and stayed; 10 no such store; 11 a live "
	"process\n"
	"holds STORE, or reads a step of it, which stayed; 12 not authorised; 13 network; 130, "
	"143\n"
	"interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt prune s3://models/run42 --keep-last 5 --keep-every 1000 --dry-run\n"
	"  ckpt prune file:///mnt/shared/run42 --keep-last 3\n";

struct prune {
	const struct cli *cli;
	struct ckpt_engine *engine;
	struct ckpt_catalog *catalog;
	json_t *removed;
	json_t *stayed; /* marked once, and not to go any more */
	json_t *busy;   /* and not tried again before the next grace */
	uint64_t bytes;
	size_t marked;
	size_t taken;   /* over from somebody else, and to be removed after another grace */
	unsigned round; /* graces that are over */
	unsigned looks; /* since the last grace */
	bool claimed;   /* a job has claimed a generation since the last look */
	int exit_code;
};

/* Claims that come one after the other while it looks; then it is an error. */
#define LOOKS_MAX  10
/* Graces, of which each takes over what was somebody else's in the one before; then it is his. */
#define ROUNDS_MAX 3

static struct ckpt_step_info step_at(const struct prune *p, size_t i)
{
	struct ckpt_step_info info = {.size = sizeof(info)};

	(void)ckpt_catalog_step(p->catalog, i, &info);
	return info;
}

static int stop(void *user);

/* What is there now, and what of it is to go. */
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

/* A job goes on from another step since the last look, and what is to go may be another: it looks again. */
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

/* The newest of those that stay, and that nobody else removes; false: there is none. */
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

/* Whether something goes that can still be restored, or that somebody else may be removing just now. */
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
	(void)snprintf(about, sizeof(about), "no step is removed: step %llu is to stay, and",
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
		/* What somebody else has marked is looked at, and is his for this long. */
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
		(void)fprintf(stderr, "%zu steps are marked, and removed in %llu s\n", p->marked,
			(unsigned long long)p->cli->grace_s);
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
		leave(p, info, "in use, and stays for now:", CLI_IN_USE);
		return CLI_OK;
	}
	if (r < 0)
		return cli_fail(p->cli, r);
	note(p, info->expired ? p->removed : p->stayed, info,
		info->expired ? "removed" : "stays after all:");
	p->bytes += info->expired ? info->bytes : 0;
	return CLI_OK;
}

/* The oldest first. What has come to be retired meanwhile was not marked, and has its turn the next time. */
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
			leave(p, &info,
				"cannot be read, and stays marked:", cli_exit_of(info.code));
		else if (info.deleting)
			exit_code = take(p, i, &info);
	}
	return exit_code;
}

/*
 * What was marked: removed, or kept. When a job goes on from another step meanwhile, what is to go is judged anew; but
 * not without a grace for what was taken over, nor for what is somebody else's since.
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

static int say_what_would_go(struct prune *p)
{
	int r = look(p);

	if (r < 0)
		return cli_fail(p->cli, r);
	for (size_t i = ckpt_catalog_count(p->catalog); i-- > 0;) {
		struct ckpt_step_info info = step_at(p, i);
		if (info.expired)
			note(p, p->removed, &info, "would remove");
		p->bytes += info.expired ? info.bytes : 0;
	}
	return CLI_OK;
}

static int run(struct prune *p)
{
	if (p->cli->dry_run)
		return say_what_would_go(p);
	int exit_code = look_and_mark(p);
	do {
		if (exit_code == CLI_OK)
			exit_code = grace(p);
		p->round++;
		if (exit_code == CLI_OK)
			exit_code = look_and_take(p);
		/* Whoever had marked them does not go on: from now on they are marked by this one. */
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
			p->cli->dry_run ? "would be removed from" : "were removed from",
			p->cli->operand[0], cli_bytes(p->bytes, text));
	}
}

/* Interrupted while it lists: what is marked stays marked. */
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
		.usage = "STORE --keep-last N [--keep-every N] [--grace S] [--dry-run] [--json]",
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
		/* What was removed before it failed is said, too. */
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
