/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt upload: what a job that ended has not sent to its remote store. */
#include <errno.h>

#include "cli.h"

static const char help[] =
	"Sends every committed step of the lineage of STORE that REMOTE does not have there, the\n"
	"oldest first, verified on the way: what a job with this remote would do when it is "
	"started\n"
	"again. Only what is missing is sent. REMOTE is s3://BUCKET/PREFIX or file:///DIRECTORY,\n"
	"empty or the remote store of the same run. A job that is running does it itself, and is\n"
	"left alone.\n"
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
	"  ckpt upload /nvme/run42 s3://models/run42\n"
	"  ckpt upload /nvme/run42 file:///mnt/shared/run42\n";

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
		.usage = "STORE REMOTE [--json]",
		.help = help,
		.operands = 2,
		.takes_quiet = true,
		.takes_progress = true};
	struct cli cli;
	struct ckpt_engine *engine = NULL;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
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
