/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt ls: lists the steps of a store. */
#include <time.h>

#include "cli.h"
#include "stored.h"

static const char help[] =
	"Lists every step of a store, newest first, with its state, whether a restore\n"
	"may choose it (LINEAGE), its size, the number of ranks, and when it was\n"
	"written. STORE is a directory, s3://BUCKET/PREFIX or file:///DIRECTORY.\n"
	"\n"
	"States:\n"
	"  committed    The step is complete.\n"
	"  aborted      The save failed.\n"
	"  pending      A save is running, or a dead process has left it.\n"
	"  quarantined  A restore found damage. A restore of the newest step skips it,\n"
	"               even if LINEAGE is yes. It can be restored by its number.\n"
	"  broken       Its manifest cannot be read or does not verify.\n"
	"  deleting     It will be deleted soon. A restore of the newest step chooses\n"
	"               another one.\n"
	"\n"
	"If the job uploads its steps to a remote store, ls also shows what the job\n"
	"last recorded about that, and how long ago: the newest step there, how many\n"
	"steps are pending, and since when and why uploads fail. It does not contact\n"
	"the remote store; \"ckpt ls REMOTE\" lists what is there. The column REMOTE is:\n"
	"  yes          The step is in the remote store.\n"
	"  pending      It is not there yet.\n"
	"  failed       It will not be there.\n"
	"  -            It is excluded (by remote_every, for example), or was deleted\n"
	"               there.\n"
	"  ?            Unknown: the job has recorded nothing about it.\n"
	"\n"
	"  --stored     Show also how large the files of the shards are (FILES): less than\n"
	"               the size if they are encoded. This opens every step, so it reads\n"
	"               every manifest and index, and opens the file of every rank.\n"
	"               \"-\": the step is not complete.\n"
	"  --json       Print one JSON object.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 success; 1 failure; 2 wrong usage; 10 no such store or bucket;\n"
	"12 not authorised; 13 network; 130, 143 interrupted. With --stored also 3 a file\n"
	"is missing, 4 a file does not verify: the other steps are listed.\n"
	"\n"
	"Examples:\n"
	"  ckpt ls /nvme/run42\n"
	"  ckpt ls s3://models/run42\n"
	"  ckpt ls /nvme/run42 --json | jq '.steps[] | select(.lineage) | .step'\n";

static const char *state_name(uint32_t state)
{
	static const char *const names[] = {
		"?", "committed", "aborted", "pending", "quarantined", "broken"};

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : names[0];
}

static const char *state_of(const struct ckpt_step_info *info)
{
	return info->deleting && info->state == CKPT_STEP_COMMITTED ? "deleting"
								    : state_name(info->state);
}

static const char *remote_name(uint32_t remote, bool json)
{
	static const char *const names[][2] = {{"?", "unknown"}, {"yes", "uploaded"},
		{"pending", "pending"}, {"-", "excluded"}, {"failed", "failed"}};

	return names[remote < sizeof(names) / sizeof(names[0]) ? remote : 0][json];
}

/* The result of ckpt_catalog_remote(). */
struct remote {
	int code; /* not 0: there is no `info` */
	struct ckpt_remote_info info;
	uint64_t waiting_bytes; /* of the listed steps that are pending */
	uint64_t there_ms; /* when the newest uploaded step was committed, or first seen there */
};

static void read_remote(const struct ckpt_catalog *catalog, struct remote *ret)
{
	*ret = (struct remote){.info.size = sizeof(ret->info)};
	ret->code = ckpt_catalog_remote(catalog, &ret->info);
	if (ret->code < 0)
		return;
	ret->there_ms = ret->info.uploaded_wall_ms;
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info step = {.size = sizeof(step)};
		(void)ckpt_catalog_step(catalog, i, &step);
		if (step.remote == CKPT_REMOTE_PENDING)
			ret->waiting_bytes += step.bytes;
		if (step.generation == ret->info.uploaded_generation &&
			step.step == ret->info.uploaded_step && step.wall_ms > 0)
			ret->there_ms = step.wall_ms;
	}
}

/* The state of the remote store, or the error; null: there is no remote store. */
static json_t *remote_object(const struct remote *r)
{
	const struct ckpt_remote_info *info = &r->info;

	if (r->code == CKPT_ENOSTORE)
		return json_null();
	if (r->code < 0)
		return json_pack(
			"{s:{s:i, s:s}}", "error", "code", r->code, "name", ckpt_strerror(r->code));
	json_t *object = json_pack("{s:s, s:I, s:I, s:s, s:I, s:{s:I, s:I}}", "url", info->remote,
		"every", (json_int_t)info->every, "generation", (json_int_t)info->generation,
		"node", info->node, "wall_ms", (json_int_t)info->wall_ms, "waiting", "steps",
		(json_int_t)info->waiting, "bytes", (json_int_t)r->waiting_bytes);
	json_t *newest = json_null();
	if (info->uploaded_generation)
		newest = json_pack("{s:I, s:I, s:I}", "generation",
			(json_int_t)info->uploaded_generation, "step",
			(json_int_t)info->uploaded_step, "wall_ms", (json_int_t)r->there_ms);
	(void)json_object_set_new(object, "newest", newest);
	json_t *failure = json_null();
	if (info->code < 0)
		failure = json_pack("{s:i, s:s, s:s, s:I, s:I, s:I}", "code", info->code, "name",
			ckpt_strerror(info->code), "message", info->reason, "tries",
			(json_int_t)info->failures, "since_ms", (json_int_t)info->failing_wall_ms,
			"next_ms", (json_int_t)info->next_wall_ms);
	(void)json_object_set_new(object, "failure", failure);
	return object;
}

static uint64_t now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The time from `from` to `to`: "12 s", "3 min". "0 s" if `to` is earlier, because clocks differ. */
static const char *span(uint64_t from, uint64_t to, char out[32])
{
	static const struct {
		uint64_t seconds;
		const char *name;
	} units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
	uint64_t seconds = to > from ? (to - from) / 1000 : 0;
	size_t i = 0;

	/* "100 s" is more exact than "1 min". */
	while (i < 3 && seconds < 2 * units[i].seconds)
		i++;
	(void)snprintf(out, 32, "%llu %s", (unsigned long long)(seconds / units[i].seconds),
		units[i].name);
	return out;
}

static void print_failure(const struct ckpt_remote_info *info, uint64_t now)
{
	char since[32];
	char next[32];

	(void)printf("  uploads have failed for %s: ", span(info->failing_wall_ms, now, since));
	cli_print_text(stdout, *info->reason ? info->reason : ckpt_strerror(info->code));
	if (info->next_wall_ms == 0)
		(void)fputs("; the job has given up\n", stdout);
	else if (info->next_wall_ms > now)
		(void)printf("; next try in %s\n", span(now, info->next_wall_ms, next));
	else
		(void)printf("; next try was due %s ago\n", span(info->next_wall_ms, now, next));
}

static void print_remote(const struct remote *r)
{
	const struct ckpt_remote_info *info = &r->info;
	uint64_t now = now_ms();
	char text[32];

	if (r->code == CKPT_ENOSTORE)
		return;
	if (r->code < 0) {
		(void)printf(
			"remote: the job's record cannot be read: %s\n", ckpt_strerror(r->code));
		return;
	}
	(void)fputs("remote ", stdout);
	cli_print_text(stdout, info->remote);
	if (info->uploaded_generation)
		(void)printf(": newest step %llu, %s old", (unsigned long long)info->uploaded_step,
			span(r->there_ms, now, text));
	else
		(void)fputs(": no step", stdout);
	(void)printf("; %llu pending (%s)\n", (unsigned long long)info->waiting,
		cli_bytes(r->waiting_bytes, text));
	if (info->code < 0)
		print_failure(info, now);
	(void)printf("  recorded by generation %llu on ", (unsigned long long)info->generation);
	cli_print_text(stdout, *info->node ? info->node : "?");
	(void)printf(", %s ago\n", span(info->wall_ms, now, text));
}

/* With --stored. */
struct files {
	bool known;
	uint64_t bytes;
};

/* Returns the exit code; errors were printed. */
static int read_files(const struct cli *cli, struct ckpt_engine *engine,
	const struct ckpt_step_info *info, struct files *ret_files)
{
	struct ckpt_restore *restore = NULL;
	struct stored stored = {0};

	*ret_files = (struct files){0};
	/* Of a number that was used again only the one of the lineage can be opened. */
	if (!cli->stored || !info->in_lineage ||
		(info->state != CKPT_STEP_COMMITTED && info->state != CKPT_STEP_QUARANTINED))
		return CLI_OK;
	int r = cli_open_step(cli, engine, info->step, &restore);
	if (r == 0)
		r = stored_read(cli, restore, &stored);
	if (r == 0)
		*ret_files = (struct files){.known = true, .bytes = stored.file_bytes};
	int exit_code = r == 0 ? CLI_OK : cli_fail(cli, r);
	stored_free(&stored);
	ckpt_restore_free(restore);
	return exit_code;
}

static json_t *step_object(
	const struct cli *cli, const struct ckpt_step_info *info, const struct files *files)
{
	json_t *object = json_pack("{s:I, s:I, s:s, s:b, s:b, s:I, s:i, s:I}", "step",
		(json_int_t)info->step, "generation", (json_int_t)info->generation, "state",
		state_name(info->state), "lineage", (int)info->in_lineage, "deleting",
		(int)info->deleting, "bytes", (json_int_t)info->bytes, "world", (int)info->world,
		"wall_ms", (json_int_t)info->wall_ms);

	(void)json_object_set_new(object, "attempt", json_string(info->attempt));
	(void)json_object_set_new(object, "note", json_string(info->note));
	if (cli->stored)
		(void)json_object_set_new(object, "bytes_stored",
			files->known ? json_integer((json_int_t)files->bytes) : json_null());
	(void)json_object_set_new(object, "remote", json_string(remote_name(info->remote, true)));
	return object;
}

static void print_row(const struct cli *cli, const struct ckpt_step_info *info,
	const struct files *files, bool has_remote)
{
	char bytes[32] = "-";
	char file_bytes[32] = "-";
	char when[32] = "-";
	time_t seconds = (time_t)(info->wall_ms / 1000);
	struct tm parts;

	if (info->bytes)
		(void)cli_bytes(info->bytes, bytes);
	if (info->wall_ms && localtime_r(&seconds, &parts))
		(void)strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &parts);
	if (files->known)
		(void)cli_bytes(files->bytes, file_bytes);
	(void)printf("%10llu  %6llu  %-11s  %-7s  %10s", (unsigned long long)info->step,
		(unsigned long long)info->generation, state_of(info),
		info->in_lineage ? "yes" : "no", bytes);
	if (cli->stored)
		(void)printf("  %10s", file_bytes);
	(void)printf("  %5u  %-19s", info->world, when);
	if (has_remote)
		(void)printf("  %-7s", remote_name(info->remote, false));
	if (info->remote == CKPT_REMOTE_FAILED)
		(void)printf("  not uploaded: %s", ckpt_strerror(info->remote_code));
	if (*info->note) {
		(void)fputs("  ", stdout);
		cli_print_text(stdout, info->note);
	}
	(void)putchar('\n');
}

static void print_heading(
	const struct cli *cli, const struct ckpt_catalog *catalog, const struct remote *remote)
{
	(void)printf("run %s\n", ckpt_catalog_run_id(catalog));
	print_remote(remote);
	(void)printf("%10s  %6s  %-11s  %-7s  %10s", "STEP", "GEN", "STATE", "LINEAGE", "SIZE");
	if (cli->stored)
		(void)printf("  %10s", "FILES");
	(void)printf("  %5s  %-19s%s\n", "RANKS", "WRITTEN", remote->code == 0 ? "  REMOTE" : "");
}

static int print_all(
	const struct cli *cli, struct ckpt_engine *engine, const struct ckpt_catalog *catalog)
{
	size_t count = ckpt_catalog_count(catalog);
	json_t *steps = json_array();
	struct remote remote;
	int exit_code = CLI_OK;

	read_remote(catalog, &remote);
	if (!cli->json)
		print_heading(cli, catalog, &remote);
	for (size_t i = 0; i < count && !cli_interrupted(); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		struct files files;
		(void)ckpt_catalog_step(catalog, i, &info);
		exit_code = cli_worse(exit_code, read_files(cli, engine, &info, &files));
		if (cli->json)
			(void)json_array_append_new(steps, step_object(cli, &info, &files));
		else
			print_row(cli, &info, &files, remote.code == 0);
	}
	if (cli->json) {
		json_t *object = cli_object("list");
		(void)json_object_set_new(object, "store", json_string(cli->operand[0]));
		(void)json_object_set_new(
			object, "run_id", json_string(ckpt_catalog_run_id(catalog)));
		(void)json_object_set_new(object, "remote", remote_object(&remote));
		(void)json_object_set(object, "steps", steps);
		cli_print_json(object);
	}
	json_decref(steps);
	return cli_interrupted() ? cli_fail_interrupted(cli, NULL) : exit_code;
}

int cmd_ls(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [--stored] [--json]",
		.help = help,
		.operands = 1,
		.takes_stored = true};
	struct cli cli;
	struct ckpt_engine *engine = NULL;
	struct ckpt_catalog *catalog = NULL;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	exit_code = cli_open(&cli, &engine);
	if (exit_code)
		return exit_code;
	cli_watch(&cli, NULL, NULL);
	int r = ckpt_catalog_open(engine, &catalog);
	cli_unwatch();
	if (r < 0) {
		exit_code = cli_fail(&cli, r);
	} else {
		exit_code = print_all(&cli, engine, catalog);
	}
	ckpt_catalog_free(catalog);
	ckpt_engine_close(engine);
	return exit_code;
}
