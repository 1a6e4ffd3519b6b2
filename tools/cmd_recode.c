/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt recode: stores steps compressed, or plain again. */
#include "cli.h"

static const char help[] =
	"Stores the shards of every committed step of the lineage compressed, without\n"
	"loss (compact), or as safetensors files again (plain). Shards that have that\n"
	"form already stay as they are. Manifests and digests stay the same.\n"
	"\n"
	"Each new file is written beside the old one, synced, read back, decoded and\n"
	"compared with the digests of its index. Only then the old one is removed. So\n"
	"the disk needs room for one more file, and a step is whole at every moment. If\n"
	"recode is interrupted, run the same command again to continue.\n"
	"\n"
	"STORE is a directory. It refuses the store of a running job. It names steps that\n"
	"are incomplete or damaged, and recodes the others. Of such a step the files of\n"
	"the first damaged rank and of later ranks stay as they are.\n"
	"\n"
	"  --encoding plain|compact\n"
	"                How shards are to be stored. Compact needs programs with format\n"
	"                1.1.\n"
	"  --step N|latest|latest~K\n"
	"                Only this step.\n"
	"  --json        Print one JSON object.\n"
	"  --progress auto|always|never\n"
	"                Show a progress bar. Default: if standard error is a terminal.\n"
	"  -q, --quiet   Print nothing on success.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 success; 1 failure; 2 wrong usage; 3, 4 a step is incomplete or\n"
	"damaged, but the others were recoded; 10 no such store or step; 11 a live\n"
	"process holds STORE; 12 not authorised; 14 no space; 130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt recode /nvme/run42 --encoding compact\n"
	"  ckpt recode /nvme/run42 --encoding plain --step latest\n";

struct recode {
	const struct cli *cli;
	struct ckpt_engine *engine;
	json_t *steps;
	size_t count; /* steps that have the form now */
	uint64_t before;
	uint64_t after;
};

static const char *form(const struct recode *c)
{
	return c->cli->encoding == CKPT_ENCODING_COMPACT ? "compact" : "plain";
}

static void note(struct recode *c, const struct ckpt_restore *restore)
{
	struct ckpt_recode_info info = {.size = sizeof(info)};
	uint64_t step = ckpt_restore_step(restore);
	char before[32];
	char after[32];

	(void)ckpt_recode_step_info(restore, &info);
	c->count++;
	c->before += info.bytes_before;
	c->after += info.bytes_after;
	(void)json_array_append_new(c->steps,
		json_pack("{s:I, s:I, s:I, s:I, s:I}", "step", (json_int_t)step, "generation",
			(json_int_t)ckpt_restore_generation(restore), "ranks",
			(json_int_t)info.ranks, "bytes_before", (json_int_t)info.bytes_before,
			"bytes_after", (json_int_t)info.bytes_after));
	if (c->cli->json || c->cli->quiet)
		return;
	if (info.ranks == 0)
		(void)printf("step %llu is %s already\n", (unsigned long long)step, form(c));
	else
		(void)printf("step %llu is %s now: %s, before %s\n", (unsigned long long)step,
			form(c), cli_bytes(info.bytes_after, after),
			cli_bytes(info.bytes_before, before));
}

static int recode_step(struct recode *c, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	char what[64] = "recoding";
	int exit_code = CLI_OK;

	int r = ckpt_recode_step_start(c->engine, step, c->cli->encoding, &restore);
	if (r < 0)
		return cli_fail(c->cli, r);
	if (step <= CKPT_STEP_MAX)
		(void)snprintf(what, sizeof(what), "step %llu", (unsigned long long)step);
	r = cli_wait(c->cli, restore, what);
	if (r == 0)
		note(c, restore);
	else
		exit_code = cli_interrupted() ? cli_fail_interrupted(c->cli, NULL)
					      : cli_fail(c->cli, r);
	ckpt_restore_free(restore);
	return exit_code;
}

/* What is wrong with one step is no reason to leave the others. */
static bool is_damage(int exit_code)
{
	return exit_code == CLI_INCOMPLETE || exit_code == CLI_INTEGRITY;
}

/* Oldest first. */
static int recode_all(struct recode *c)
{
	struct ckpt_catalog *catalog = NULL;
	struct ckpt_error unknown = {.size = sizeof(unknown)};
	int worst = CLI_OK;
	int exit_code = CLI_OK;

	cli_watch(c->cli, NULL, NULL);
	int r = ckpt_catalog_open(c->engine, &catalog);
	cli_unwatch();
	if (r < 0)
		return cli_fail(c->cli, r);
	r = ckpt_catalog_error(catalog, &unknown);
	if (r < 0)
		exit_code = cli_fail_record(c->cli, cli_exit_of(r), &unknown);
	for (size_t i = ckpt_catalog_count(catalog);
		r == 0 && i-- > 0 && (exit_code == CLI_OK || is_damage(exit_code));) {
		struct ckpt_step_info info = {.size = sizeof(info)};

		(void)ckpt_catalog_step(catalog, i, &info);
		if (!info.in_lineage || info.state != CKPT_STEP_COMMITTED || info.deleting)
			continue;
		exit_code = recode_step(c, info.step);
		worst = cli_worse(worst, exit_code);
	}
	ckpt_catalog_free(catalog);
	return cli_worse(worst, exit_code);
}

static void say(const struct recode *c)
{
	char before[32];
	char after[32];

	if (c->cli->json) {
		json_t *object = cli_object("recoded");
		(void)json_object_set_new(object, "store", json_string(c->cli->operand[0]));
		(void)json_object_set_new(object, "encoding", json_string(form(c)));
		(void)json_object_set(object, "steps", c->steps);
		(void)json_object_set_new(
			object, "bytes_before", json_integer((json_int_t)c->before));
		(void)json_object_set_new(
			object, "bytes_after", json_integer((json_int_t)c->after));
		cli_print_json(object);
	} else if (!c->cli->quiet) {
		(void)printf("%zu step%s %s %s: %s, before %s\n", c->count,
			c->count == 1 ? "" : "s", c->count == 1 ? "is" : "are", form(c),
			cli_bytes(c->after, after), cli_bytes(c->before, before));
	}
}

int cmd_recode(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE --encoding plain|compact [--step N] [--json] [-q]",
		.help = help,
		.operands = 1,
		.takes_step = true,
		.takes_quiet = true,
		.takes_progress = true,
		.takes_encoding = true};
	struct cli cli;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	if (!cli.has_encoding) {
		(void)fprintf(stderr,
			"%s: --encoding is missing: it says how steps are to be stored\n"
			"usage: %s %s\nRun '%s --help' for details.\n",
			name, name, program.usage, name);
		return CLI_USAGE;
	}
	struct recode c = {.cli = &cli, .steps = json_array()};
	exit_code = cli_open_writer(&cli, &c.engine);
	if (exit_code == CLI_OK) {
		exit_code = cli.has_step ? recode_step(&c, cli.step) : recode_all(&c);
		/* Also print what was done before a failure. */
		if (exit_code == CLI_OK || json_array_size(c.steps) > 0)
			say(&c);
		ckpt_engine_close(c.engine);
	}
	json_decref(c.steps);
	return exit_code;
}
