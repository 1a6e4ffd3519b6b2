/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt ls: what a store holds. */
#include <time.h>

#include "cli.h"

static const char help[] =
	"Lists every step of a store, newest first: its state, whether a restore may choose it\n"
	"(LINEAGE), its size and age. A restore of the newest passes over a quarantined step even\n"
	"where LINEAGE says yes: such a step is restored by its number only. A broken step has a\n"
	"manifest that cannot be read or does not verify. One that is going will be removed soon: "
	"a\n"
	"restore of the newest chooses another.\n"
	"\n"
	"STORE is a directory, s3://BUCKET/PREFIX or file:///DIRECTORY.\n"
	"\n"
	"  --json       one JSON object\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 all well; 1 failed; 2 usage; 10 no such store or bucket; 12 not\n"
	"authorised; 13 network; 130, 143 interrupted.\n"
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
	return info->going && info->state == CKPT_STEP_COMMITTED ? "going"
								 : state_name(info->state);
}

static json_t *step_object(const struct ckpt_step_info *info)
{
	json_t *object = json_pack("{s:I, s:I, s:s, s:b, s:b, s:I, s:i, s:I}", "step",
		(json_int_t)info->step, "generation", (json_int_t)info->generation, "state",
		state_name(info->state), "lineage", (int)info->in_lineage, "going",
		(int)info->going, "bytes", (json_int_t)info->bytes, "world", (int)info->world,
		"wall_ms", (json_int_t)info->wall_ms);

	(void)json_object_set_new(object, "attempt", json_string(info->attempt));
	(void)json_object_set_new(object, "note", json_string(info->note));
	return object;
}

static void print_row(const struct ckpt_step_info *info)
{
	char bytes[32] = "-";
	char when[32] = "-";
	time_t seconds = (time_t)(info->wall_ms / 1000);
	struct tm parts;

	if (info->bytes)
		(void)cli_bytes(info->bytes, bytes);
	if (info->wall_ms && localtime_r(&seconds, &parts))
		(void)strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &parts);
	(void)printf("%10llu  %6llu  %-11s  %-7s  %10s  %5u  %-19s", (unsigned long long)info->step,
		(unsigned long long)info->generation, state_of(info),
		info->in_lineage ? "yes" : "no", bytes, info->world, when);
	if (*info->note) {
		(void)fputs("  ", stdout);
		cli_print_text(stdout, info->note);
	}
	(void)putchar('\n');
}

static void print_all(const struct cli *cli, const struct ckpt_catalog *catalog)
{
	size_t count = ckpt_catalog_count(catalog);
	json_t *steps = json_array();

	if (!cli->json)
		(void)printf("run %s\n%10s  %6s  %-11s  %-7s  %10s  %5s  %-19s\n",
			ckpt_catalog_run_id(catalog), "STEP", "GEN", "STATE", "LINEAGE", "SIZE",
			"RANKS", "WRITTEN");
	for (size_t i = 0; i < count; i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		(void)ckpt_catalog_step(catalog, i, &info);
		if (cli->json)
			(void)json_array_append_new(steps, step_object(&info));
		else
			print_row(&info);
	}
	if (cli->json) {
		json_t *object = cli_object("list");
		(void)json_object_set_new(object, "store", json_string(cli->operand[0]));
		(void)json_object_set_new(
			object, "run_id", json_string(ckpt_catalog_run_id(catalog)));
		(void)json_object_set(object, "steps", steps);
		cli_print_json(object);
	}
	json_decref(steps);
}

int cmd_ls(int argc, char **argv, const char *name)
{
	const struct cli_program program = {
		.name = name, .usage = "STORE [--json]", .help = help, .operands = 1};
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
		print_all(&cli, catalog);
		exit_code = CLI_OK;
	}
	ckpt_catalog_free(catalog);
	ckpt_engine_close(engine);
	return exit_code;
}
