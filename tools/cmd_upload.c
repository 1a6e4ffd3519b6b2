/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt upload: what a job that ended has not sent to its remote store. */
#include <string.h>

#include "cli.h"

static const char help[] =
	"Sends every committed step of the lineage of STORE that REMOTE does not have there, the\n"
	"oldest first, verified on the way: what a job with this remote would do when it is "
	"started\n"
	"again. Only what is missing is sent. REMOTE is s3://BUCKET/PREFIX or file:///DIRECTORY,\n"
	"empty or the remote store of the same run. Without it, it is where the job has last sent\n"
	"its steps, as it wrote that down in STORE; of remote_every as well. A directory that was\n"
	"written down must be a store already. A job that is running does it itself, and is left\n"
	"alone. What something else is sending there already is waited for, until 30 s have gone\n"
	"by in which it has finished the files of no rank.\n"
	"\n"
	"  --json                    one JSON object\n"
	"  --progress auto|always|never\n"
	"  -q, --quiet               say nothing when all is well\n"
	"  --version, -h, --help\n"
	"\n"
	"What was sent before it is interrupted, or fails, is there, and is not sent again.\n"
	"\n"
	"Exit status: 0 all is there; 1 failed; 2 usage; 3, 4 a step is not whole here, and was "
	"not\n"
	"sent: the others were; 10 no such store; 11 a live process holds STORE, or sends it to\n"
	"REMOTE, or another job goes on from REMOTE; 12 not authorised; 13 network; 14 no space;\n"
	"130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt upload /nvme/run42\n"
	"  ckpt upload /nvme/run42 s3://models/run42\n"
	"  ckpt upload /nvme/run42 file:///mnt/shared/run42\n";

/* Where the job has sent its steps, by what it wrote down. An exit code: it has said why. */
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
			"%.300s does not know of a remote store: name it (%s STORE REMOTE)",
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
 * A directory that is to be a store already, so that nothing is made where a file system is not mounted, or where
 * somebody else has written that steps go.
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
		(void)fputs("to ", stdout);
		cli_print_text(stdout, info->remote);
		(void)fputs(", as the job wrote down\n", stdout);
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
		(void)printf("%llu steps are in %s (%s sent)\n",
			(unsigned long long)stats.uploads_done, cli->operand[1],
			cli_bytes(stats.bytes_uploaded, text));
	}
}

int cmd_upload(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [REMOTE] [--json]",
		.help = help,
		.operands = 1,
		.operands_more = 1,
		.takes_quiet = true,
		.takes_progress = true};
	struct cli cli;
	struct ckpt_remote_info info = {.size = sizeof(info)};
	struct ckpt_engine *engine = NULL;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	exit_code = take_remote(&cli, &info);
	if (exit_code)
		return exit_code;
	exit_code = cli_open_remote(&cli, &engine);
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
