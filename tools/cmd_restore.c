/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-restore: one step into a directory, verified on the way. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "consolidate.h"

static const char help[] =
	"Copies one step of a store into DEST, verifying every chunk on the way. DEST is made if "
	"it\n"
	"is not there; it holds plain safetensors files then, and is a store again: training can\n"
	"resume from it. A DEST that was not finished holds no step, or not the ranks that were to "
	"be\n"
	"added; the same again goes on with what is there.\n"
	"Each of them is a directory, s3://BUCKET/PREFIX or file:///DIRECTORY: a step is copied\n"
	"out of a bucket, into one, or from one to another.\n"
	"A newer step that is damaged or quarantined is passed over, and named on standard error.\n"
	"\n"
	"  --step N|latest|latest~K  which step; the newest good one of the lineage by default\n"
	"  --rank R|R-S              of the step only the files of rank R, or of R to S; may be "
	"given\n"
	"                            again. DEST is like the store of one node then: what others "
	"wrote\n"
	"                            is elsewhere. More can be added later: the same with another\n"
	"                            --rank\n"
	"  --consolidate             instead: one file of whole tensors, whichever ranks wrote "
	"them:\n"
	"                            DEST/model.safetensors\n"
	"  --file-size SIZE          with it: files of at most SIZE (5GiB), and an index of them "
	"as\n"
	"                            Hugging Face has it\n"
	"  --world-size M --rank R   instead: what rank R of M would hold if every tensor were "
	"cut\n"
	"                            evenly along its first dimension, as FSDP2 does (Shard(0)):\n"
	"                            DEST/rank-0000R-of-0000M.safetensors. Pieces are as long as\n"
	"                            that of rank 0; the last ones are shorter, or empty. A "
	"tensor\n"
	"                            without dimensions is whole\n"
	"  --whole PATTERN           with them: tensors of such names are whole, too, as on every\n"
	"                            rank that holds replicas ('*.norm.*'); may be given again\n"
	"  --json                    one JSON object\n"
	"  --progress auto|always|never\n"
	"  -q, --quiet               say nothing when all is well\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 all well; 1 failed, or DEST cannot be used; 2 usage; 3 files are missing,\n"
	"short, or elsewhere: in the store of another node; 4 bytes differ from their digest, or "
	"did\n"
	"so before: every step is quarantined; 10 no such store or step; 11 a live process holds\n"
	"DEST, or sends this to a bucket; 12 not authorised; 13 network; 14 no space;\n"
	"130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt-restore /nvme/run42 /data/model\n"
	"  ckpt-restore /nvme/run42 /data/model --step latest~1\n"
	"  ckpt-restore /nvme/run42 s3://models/run42\n"
	"  ckpt-restore s3://models/run42 /data/model\n"
	"  ckpt-restore s3://models/run42 /nvme/run42 --rank 8-15\n"
	"  ckpt-restore /nvme/run42 /data/model --consolidate\n"
	"  ckpt-restore /nvme/run42 /data/model --world-size 8 --rank 0\n";

/* One step that a restore would have chosen over the one that it did choose. */
static void say_passed(const struct cli *cli, const struct ckpt_step_info *info, json_t *list)
{
	bool broken = info->state == CKPT_STEP_BROKEN;
	json_t *object = json_pack("{s:I, s:I, s:s}", "step", (json_int_t)info->step, "generation",
		(json_int_t)info->generation, "state", broken ? "broken" : "quarantined");

	(void)json_object_set_new(object, "note", json_string(info->note));
	(void)json_array_append_new(list, object);
	(void)fprintf(stderr, "%s: step %llu was passed over: %s: ", cli->program->name,
		(unsigned long long)info->step,
		broken ? "its manifest is damaged" : "it is quarantined");
	cli_print_text(stderr, info->note);
	(void)fputc('\n', stderr);
}

/* "0,8-15" */
static void name_ranks(const struct cli *cli, char *out, size_t room)
{
	size_t at = 0;

	*out = 0;
	for (size_t i = 0; i < cli->ranks_count && at < room; i++) {
		const struct cli_ranks *r = &cli->ranks[i];

		at += (size_t)snprintf(
			out + at, room - at, "%s%llu", i ? "," : "", (unsigned long long)r->first);
		if (r->last > r->first && at < room)
			at += (size_t)snprintf(
				out + at, room - at, "-%llu", (unsigned long long)r->last);
	}
}

static void say_text(const struct cli *cli, const struct ckpt_restore *restore, uint64_t bytes,
	const char *ranks)
{
	char text[32];

	(void)printf("step %llu%s%s is in %s%s (%s, %s)\n",
		(unsigned long long)ckpt_restore_step(restore), *ranks ? ", rank " : "", ranks,
		cli->operand[1], ckpt_export_existed(restore) ? " already" : "",
		cli_bytes(bytes, text), ckpt_export_existed(restore) ? "not verified" : "verified");
}

/* A step that is where it was to go. */
struct outcome {
	const struct cli *cli;
	struct ckpt_engine *engine;
	const struct ckpt_restore *restore;
	uint64_t bytes;
	json_t *files;
	json_t *passed; /* what is newer, and no good */
};

static int say(void *user)
{
	struct outcome *o = user;
	const struct cli *cli = o->cli;
	char ranks[CLI_RANKS_MAX * 18] = "";

	if (!cli->world_size)
		name_ranks(cli, ranks, sizeof(ranks));
	if (cli->json) {
		json_t *object = cli_object("restored");
		(void)json_object_set_new(
			object, "step", json_integer((json_int_t)ckpt_restore_step(o->restore)));
		(void)json_object_set_new(object, "generation",
			json_integer((json_int_t)ckpt_restore_generation(o->restore)));
		(void)json_object_set_new(object, "bytes", json_integer((json_int_t)o->bytes));
		(void)json_object_set_new(object, "dest", json_string(cli->operand[1]));
		if (!cli->consolidate && !cli->world_size)
			(void)json_object_set_new(
				object, "existed", json_boolean(ckpt_export_existed(o->restore)));
		if (*ranks)
			(void)json_object_set_new(object, "ranks", json_string(ranks));
		/* Nobody has looked: a signal came first, or the store could not be listed. */
		(void)json_object_set_new(
			object, "passed_over", o->passed ? json_incref(o->passed) : json_null());
		if (cli->consolidate || cli->world_size)
			(void)json_object_set(object, "files", o->files);
		cli_print_json(object);
	} else if (!cli->quiet) {
		say_text(cli, o->restore, o->bytes, ranks);
	}
	return CLI_OK;
}

/* Says what is newer than the step chosen, and no good. Whom a signal keeps from it has the step all the same. */
static void say_all_passed(struct outcome *o)
{
	uint64_t generation = ckpt_restore_generation(o->restore);
	struct ckpt_catalog *catalog = NULL;

	/* A number is no wish for the newest. */
	if (o->cli->step <= CKPT_STEP_MAX) {
		o->passed = json_array();
		return;
	}
	cli_watch(o->cli, say, o);
	int r = ckpt_catalog_open(o->engine, &catalog);
	cli_unwatch();
	if (r == 0)
		o->passed = json_array();
	for (size_t i = 0; r == 0 && i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		(void)ckpt_catalog_step(catalog, i, &info);
		bool newer = info.generation != generation
				     ? info.generation > generation
				     : info.step > ckpt_restore_step(o->restore);
		if (newer && info.passed_over)
			say_passed(o->cli, &info, o->passed);
	}
	ckpt_catalog_free(catalog);
}

/*
 * Files in the root of a store are its marker, and that of STORE was good when it was opened.
 * Everything else that a restore reads in DEST is only there if it is another's.
 */
static bool about_dest(struct ckpt_restore *restore, int code)
{
	struct ckpt_error error = {.size = sizeof(error)};

	if (code != CKPT_EINTEGRITY && code != CKPT_EFORMAT)
		return false;
	(void)ckpt_restore_error(restore, &error);
	return *error.file && !strchr(error.file, '/');
}

/* The step has fewer ranks than the command line says. What a file system calls so has the name of a file. */
static bool about_ranks(const struct cli *cli, struct ckpt_restore *restore, int code)
{
	struct ckpt_error error = {.size = sizeof(error)};

	if (code != -EINVAL || !cli->ranks_count)
		return false;
	(void)ckpt_restore_error(restore, &error);
	return !*error.file;
}

/* What was given up was the manifest: only a server knows whether the step is there. */
static bool manifest_given_up(struct ckpt_restore *restore, struct ckpt_error *ret_error)
{
	return ckpt_restore_error(restore, ret_error) < 0 && *ret_error->file;
}

/* DEST cannot be used: that says nothing about STORE or its steps. */
static int fail_dest(const struct cli *cli, int code)
{
	int exit_code = cli_exit_of(code);
	/* What is wrong with a URL is said in words that show no secret. */
	bool named = strstr(ckpt_last_error(), cli->operand[1]) || strstr(cli->operand[1], "://");

	if (exit_code != CLI_IN_USE && exit_code != CLI_AUTH && exit_code != CLI_NO_SPACE)
		exit_code = CLI_FAILED;
	return cli_fail_with(cli, exit_code, named ? NULL : cli->operand[1]);
}

/* What the engine warns of DEST: a bucket's server that does not keep two writers apart. */
static void warn_of_dest(const struct cli *cli, struct ckpt_engine *engine)
{
	struct ckpt_log_record record = {.size = sizeof(record)};
	size_t length = strlen(cli->operand[1]);

	while (length > 0 && cli->operand[1][length - 1] == '/')
		length--;
	while (ckpt_engine_log(engine, 0, &record) == 0) {
		const char *rest = record.message + length;

		if (record.level > CKPT_LOG_WARN ||
			strncmp(record.message, cli->operand[1], length) != 0 ||
			rest[strspn(rest, "/")] != ':')
			continue;
		(void)fprintf(stderr, "%s: ", cli->program->name);
		cli_print_text(stderr, record.message);
		(void)fputc('\n', stderr);
	}
}

static int by_first(const void *a, const void *b)
{
	const struct cli_ranks *first = a;
	const struct cli_ranks *second = b;

	return (first->first > second->first) - (first->first < second->first);
}

/* Those whose files are wanted, each once, for the caller to free; NULL: all, or there is no memory. */
static uint32_t *list_ranks(const struct cli *cli, size_t *ret_count)
{
	struct cli_ranks parts[CLI_RANKS_MAX];
	uint32_t *ranks;
	uint64_t next = 0;
	size_t count = 0;

	memcpy(parts, cli->ranks, sizeof(parts));
	qsort(parts, cli->ranks_count, sizeof(*parts), by_first);
	for (size_t i = 0; i < cli->ranks_count; i++) {
		if (parts[i].first < next)
			parts[i].first = next;
		if (parts[i].last + 1 > next)
			next = parts[i].last + 1;
		count += next - parts[i].first;
	}
	ranks = count ? malloc(count * sizeof(*ranks)) : NULL;
	if (!ranks)
		return NULL;
	count = 0;
	for (size_t i = 0; i < cli->ranks_count; i++)
		for (uint64_t rank = parts[i].first; rank <= parts[i].last; rank++)
			ranks[count++] = (uint32_t)rank;
	*ret_count = count;
	return ranks;
}

/* Copies the step as it is, or what some ranks have of it. */
static int copy_out(
	const struct cli *cli, struct ckpt_engine *engine, struct ckpt_restore **ret_restore)
{
	struct ckpt_error error = {.size = sizeof(error)};
	size_t count = 0;
	uint32_t *ranks = list_ranks(cli, &count);
	int r;
	bool dest;

	if (cli->ranks_count && !ranks) {
		(void)fprintf(stderr, "%s: out of memory\n", cli->program->name);
		return CLI_FAILED;
	}
	r = ckpt_export_ranks_start(engine, cli->step, cli->operand[1], ranks, count, ret_restore);
	free(ranks);
	dest = r < 0;

	if (r == 0) {
		r = cli_wait(cli, *ret_restore, "copying");
		dest = about_dest(*ret_restore, r);
		warn_of_dest(cli, engine);
	}
	if (r == 0)
		return CLI_OK;
	if (r == -ECANCELED && manifest_given_up(*ret_restore, &error))
		return cli_fail_interrupted(cli, &error);
	if (!dest && about_ranks(cli, *ret_restore, r))
		return cli_fail_with(cli, CLI_USAGE, NULL);
	return dest ? fail_dest(cli, r) : cli_fail(cli, r);
}

int cmd_restore(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE DEST [--step N] [--rank R | --consolidate [--file-size SIZE] | "
			 "--world-size M --rank R [--whole PATTERN]] [--json]",
		.help = help,
		.operands = 2,
		.takes_step = true,
		.takes_quiet = true,
		.takes_progress = true,
		.takes_consolidate = true};
	struct cli cli;
	struct ckpt_engine *engine = NULL;
	struct ckpt_restore *restore = NULL;
	uint64_t total = 0;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	exit_code = cli_open(&cli, &engine);
	if (exit_code)
		return exit_code;
	struct outcome o = {.cli = &cli, .engine = engine, .files = json_array()};
	exit_code = cli.consolidate || cli.world_size ? consolidate(&cli, engine, &restore, o.files)
						      : copy_out(&cli, engine, &restore);
	if (exit_code == CLI_OK) {
		o.restore = restore;
		(void)ckpt_restore_progress(restore, &o.bytes, &total);
		say_all_passed(&o);
		exit_code = say(&o);
	}
	json_decref(o.files);
	json_decref(o.passed);
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
	return exit_code;
}
