/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-restore: copies a step into a directory or bucket, and verifies it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "consolidate.h"

static const char help[] =
	"Copies one step of STORE into DEST, and compares every chunk with its digest\n"
	"before it is written. DEST is created if it does not exist. Afterwards it is a\n"
	"store, from which a training can resume. Its shards are safetensors files; those\n"
	"that STORE has encoded (encoding=\"compact\") stay so without --plain.\n"
	"STORE and DEST are directories, s3://BUCKET/PREFIX or file:///DIRECTORY.\n"
	"\n"
	"If the copy is interrupted, run the same command again to resume it. Until the\n"
	"copy is complete DEST does not have the step, or not the ranks that are to be\n"
	"added. If DEST has the step already, nothing is copied and nothing is verified.\n"
	"Newer steps that are damaged or quarantined are skipped, and named on standard\n"
	"error.\n"
	"\n"
	"  --step N|latest|latest~K\n"
	"                The step. Default: the newest good step of the lineage.\n"
	"  --rank R|R-S  Copy only the files of rank R, or of the ranks R to S. May be\n"
	"                given up to 64 times. DEST becomes a store like that of one\n"
	"                node. Run the command again with other ranks to add them.\n"
	"  --plain       Decode encoded shards: DEST holds, byte for byte, the safetensors\n"
	"                files that a plain save would have written. If DEST has the step\n"
	"                already with encoded shards, the exit status is 1.\n"
	"  --consolidate\n"
	"                Write whole tensors instead of a store, into one safetensors\n"
	"                file: DEST/model.safetensors.\n"
	"  --file-size SIZE\n"
	"                With --consolidate: write files of at most SIZE (5GiB, say) and\n"
	"                an index of them, as Hugging Face has it.\n"
	"  --world-size M --rank R\n"
	"                Write, instead of a store, what rank R of M holds if every\n"
	"                tensor is cut evenly along its first dimension, as FSDP2 does\n"
	"                (Shard(0)): DEST/rank-0000R-of-0000M.safetensors. The last\n"
	"                ranks have fewer rows, or none. Tensors without dimensions are\n"
	"                whole on every rank.\n"
	"  --whole PATTERN\n"
	"                With --world-size: write tensors whole if their names match\n"
	"                PATTERN ('*.norm.*', say). May be given up to 64 times.\n"
	"  --json        Print one JSON object.\n"
	"  --progress auto|always|never\n"
	"                Show a progress bar. Default: if standard error is a terminal.\n"
	"  -q, --quiet   Print nothing on success.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 success; 1 failure, or DEST cannot be used; 2 wrong usage;\n"
	"3 files of the step are missing or short, or in the store of another node;\n"
	"4 bytes differ from their digest, or every step is quarantined because they\n"
	"did; 10 no such store or step; 11 a live process holds DEST, or sends the same\n"
	"file of STORE to a bucket; 12 not authorised; 13 network; 14 no space;\n"
	"130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt-restore /nvme/run42 /data/model\n"
	"  ckpt-restore /nvme/run42 /data/model --step latest~1\n"
	"  ckpt-restore /nvme/run42 /data/model --plain\n"
	"  ckpt-restore /nvme/run42 s3://models/run42\n"
	"  ckpt-restore s3://models/run42 /data/model\n"
	"  ckpt-restore s3://models/run42 /nvme/run42 --rank 8-15\n"
	"  ckpt-restore /nvme/run42 /data/model --consolidate\n"
	"  ckpt-restore /nvme/run42 /data/model --world-size 8 --rank 0\n";

/* Reports a newer step that was skipped. */
static void say_passed(const struct cli *cli, const struct ckpt_step_info *info, json_t *list)
{
	bool broken = info->state == CKPT_STEP_BROKEN;
	json_t *object = json_pack("{s:I, s:I, s:s}", "step", (json_int_t)info->step, "generation",
		(json_int_t)info->generation, "state", broken ? "broken" : "quarantined");

	(void)json_object_set_new(object, "note", json_string(info->note));
	(void)json_array_append_new(list, object);
	(void)fprintf(stderr, "%s: step %llu was skipped: %s: ", cli->program->name,
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

/* What is printed about a step that was copied. */
struct outcome {
	const struct cli *cli;
	struct ckpt_engine *engine;
	const struct ckpt_restore *restore;
	uint64_t bytes;
	json_t *files;
	json_t *passed; /* newer steps that were skipped; NULL: not listed */
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
		/* null: not listed, because of a signal or an error. */
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

/* Reports newer steps that were skipped. A signal ends this, but the step has been copied. */
static void say_all_passed(struct outcome *o)
{
	uint64_t generation = ckpt_restore_generation(o->restore);
	struct ckpt_catalog *catalog = NULL;

	/* The user gave a number, so no step was skipped. */
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
 * Whether the error is about DEST: its file is the marker in the root of a store. The marker of STORE was good when it was
 * opened.
 */
static bool about_dest(struct ckpt_restore *restore, int code)
{
	struct ckpt_error error = {.size = sizeof(error)};

	if (code != CKPT_EINTEGRITY && code != CKPT_EFORMAT)
		return false;
	(void)ckpt_restore_error(restore, &error);
	return *error.file && !strchr(error.file, '/');
}

/* Whether the step has fewer ranks than --rank says. If a file system returned -EINVAL, the error names a file. */
static bool about_ranks(const struct cli *cli, struct ckpt_restore *restore, int code)
{
	struct ckpt_error error = {.size = sizeof(error)};

	if (code != -EINVAL || !cli->ranks_count)
		return false;
	(void)ckpt_restore_error(restore, &error);
	return !*error.file;
}

/* Whether the manifest was being sent when the copy was cancelled: then the step may exist. */
static bool manifest_given_up(struct ckpt_restore *restore, struct ckpt_error *ret_error)
{
	return ckpt_restore_error(restore, ret_error) < 0 && *ret_error->file;
}

/* DEST cannot be used. The exit codes about STORE and its steps do not apply. */
static int fail_dest(const struct cli *cli, int code)
{
	int exit_code = cli_exit_of(code);
	/* A URL may contain a secret: the message of the library does not show it. */
	bool named = strstr(ckpt_last_error(), cli->operand[1]) || strstr(cli->operand[1], "://");

	if (exit_code != CLI_IN_USE && exit_code != CLI_AUTH && exit_code != CLI_NO_SPACE)
		exit_code = CLI_FAILED;
	return cli_fail_with(cli, exit_code, named ? NULL : cli->operand[1]);
}

/* Prints warnings about DEST: for example, that its server does not support conditional writes. */
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

/* The ranks of --rank, each once. The caller frees it. NULL: no --rank, or no memory. */
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

/* Copies the whole step, or the files of some ranks. */
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
	const struct ckpt_export_opts opts = {
		.size = sizeof(opts), .plain = cli->plain, .ranks = ranks, .ranks_count = count};
	r = ckpt_export_opts_start(engine, cli->step, cli->operand[1], &opts, ret_restore);
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
		.usage = "STORE DEST [--step N] [--json] [-q]\n"
			 "          [[--plain] [--rank R[-S]]... | --consolidate [--file-size "
			 "SIZE] |\n"
			 "           --world-size M --rank R [--whole PATTERN]...]",
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
