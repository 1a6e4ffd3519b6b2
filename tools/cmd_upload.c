/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt upload: uploads steps that the remote store does not have. */
#include <string.h>

#include "cli.h"

static const char help[] =
	"Uploads every committed step of the lineage that REMOTE does not have, the\n"
	"oldest first, and verifies it on the way. A job with this remote store does the\n"
	"same when it is started again. What is already there is not sent again.\n"
	"\n"
	"REMOTE is s3://BUCKET/PREFIX or file:///DIRECTORY. It must be empty or a store\n"
	"of the same run. Without REMOTE, upload uses the remote store that the job has\n"
	"recorded in STORE, and the job's remote_every. A recorded directory must\n"
	"already be a store.\n"
	"\n"
	"It refuses the store of a running job, which uploads by itself. It names steps\n"
	"that are incomplete or damaged, and uploads the others. If another process is\n"
	"sending files of STORE to REMOTE, it waits, and gives up when that process has\n"
	"finished the files of no rank for 30 seconds. Run the same command again to\n"
	"continue.\n"
	"\n"
	"  --encoding plain|compact\n"
	"                How shards are stored in REMOTE: as safetensors files, or\n"
	"                compressed without loss. Default: as they are stored here.\n"
	"  --json        Print one JSON object.\n"
	"  --progress auto|always|never\n"
	"                Show a progress bar. Default: if standard error is a terminal.\n"
	"  -q, --quiet   Print nothing on success.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 success; 1 failure; 2 wrong usage; 3, 4 a step is incomplete or\n"
	"damaged and was not uploaded, but the others were; 10 no such store; 11 a live\n"
	"process holds STORE, or sends it to REMOTE, or a later job has taken over\n"
	"REMOTE; 12 not authorised; 13 network; 14 no space; 130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt upload /nvme/run42\n"
	"  ckpt upload /nvme/run42 s3://models/run42\n"
	"  ckpt upload /nvme/run42 file:///mnt/shared/run42\n";

/* Reads the remote store that the job has recorded. Returns an exit code; errors were printed. */
static int recall(struct cli *cli, struct ckpt_remote_info *info)
{
	struct ckpt_engine *engine = NULL;
	struct ckpt_catalog *catalog = NULL;
	struct ckpt_error none = {.size = sizeof(none), .code = CKPT_ENOSTORE, .step = -1};

	none.rank = -1;
	none.offset = -1;
	int exit_code = cli_open(cli, &engine);
	if (exit_code)
		return exit_code;
	int r = ckpt_catalog_open(engine, &catalog);
	if (r == 0)
		r = ckpt_catalog_remote(catalog, info);
	if (r == CKPT_ENOSTORE) {
		(void)snprintf(none.message, sizeof(none.message),
			"%.300s has no record of a remote store: name it (%s STORE REMOTE)",
			cli->operand[0], cli->program->name);
		exit_code = cli_fail_record(cli, CLI_USAGE, &none);
	} else if (r < 0) {
		exit_code = cli_fail(cli, r);
	}
	ckpt_catalog_free(catalog);
	ckpt_engine_close(engine);
	return exit_code;
}

/*
 * Refuses a recorded directory that is not a store. Its file system may not be mounted, or somebody else may have written
 * the record.
 */
static int check_there(const struct cli *cli, const char *remote)
{
	struct cli there = *cli;
	struct ckpt_engine *engine = NULL;

	if (strncmp(remote, "file:", 5) != 0)
		return CLI_OK;
	there.operand[0] = remote;
	int exit_code = cli_open(&there, &engine);
	ckpt_engine_close(engine);
	return exit_code;
}

static int take_remote(struct cli *cli, struct ckpt_remote_info *info)
{
	if (cli->operand[1])
		return CLI_OK;
	int exit_code = recall(cli, info);
	if (exit_code == CLI_OK)
		exit_code = check_there(cli, info->remote);
	if (exit_code != CLI_OK)
		return exit_code;
	cli->operand[1] = info->remote;
	cli_guard(info->remote);
	cli->remote_every = info->every;
	if (!cli->quiet && !cli->json) {
		(void)fputs("uploading to ", stdout);
		cli_print_text(stdout, info->remote);
		(void)fputs(", as recorded by the job\n", stdout);
	}
	return CLI_OK;
}

static void say(const struct cli *cli, struct ckpt_engine *engine)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};
	char text[32];

	(void)ckpt_engine_stats(engine, &stats);
	if (cli->json) {
		json_t *object = cli_object("uploaded");
		(void)json_object_set_new(
			object, "steps", json_integer((json_int_t)stats.uploads_done));
		(void)json_object_set_new(
			object, "bytes", json_integer((json_int_t)stats.bytes_uploaded));
		(void)json_object_set_new(
			object, "step", json_integer((json_int_t)stats.remote_step));
		(void)json_object_set_new(object, "remote", json_string(cli->operand[1]));
		cli_print_json(object);
	} else if (!cli->quiet) {
		(void)printf("%llu steps are in %s (%s uploaded)\n",
			(unsigned long long)stats.uploads_done, cli->operand[1],
			cli_bytes(stats.bytes_uploaded, text));
	}
}

int cmd_upload(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [REMOTE] [--encoding plain|compact] [--json] [-q]",
		.help = help,
		.operands = 1,
		.operands_more = 1,
		.takes_quiet = true,
		.takes_progress = true,
		.takes_encoding = true};
	struct cli cli;
	struct ckpt_remote_info info = {.size = sizeof(info)};
	struct ckpt_engine *engine = NULL;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	exit_code = take_remote(&cli, &info);
	if (exit_code)
		return exit_code;
	exit_code = cli_open_writer(&cli, &engine);
	if (exit_code)
		return exit_code;
	int r = cli_wait_remote(&cli, engine);
	if (r == 0)
		say(&cli, engine);
	else
		exit_code =
			cli_interrupted() ? cli_fail_interrupted(&cli, NULL) : cli_fail(&cli, r);
	ckpt_engine_close(engine);
	return exit_code;
}
