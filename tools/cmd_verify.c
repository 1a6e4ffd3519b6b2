/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-verify: every chunk against its digest. */
#include <errno.h>
#include <string.h>

#include "cli.h"

static const char help[] =
	"Checks committed steps of a store: their manifests, indexes, and every chunk of every\n"
	"shard against its digest. Without --step every committed step of the lineage is checked.\n"
	"Changes nothing.\n"
	"\n"
	"  --step N|latest|latest~K  one step only\n"
	"  --json                    one JSON object per line: findings, good shards, a summary\n"
	"  --progress auto|always|never\n"
	"  -q, --quiet               say nothing but what is wrong\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 all well; 1 failed; 2 usage; 3 files are missing or short; 4 bytes differ\n"
	"from their digest (file, offset and tensor are named), or did so before: every step is\n"
	"quarantined; 10 no such store or step; 12 not authorised; 130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt-verify /nvme/run42\n"
	"  ckpt-verify /nvme/run42 --step latest --json\n";

struct verification {
	const struct cli *cli;
	struct ckpt_engine *engine;
	int exit;
	unsigned steps;
	unsigned findings;
	uint64_t bytes;
};

static void say_finding(struct verification *v, const struct ckpt_finding *f)
{
	const struct ckpt_error *e = &f->error;

	v->findings++;
	v->exit = cli_worse(v->exit, cli_exit_of(e->code));
	if (v->cli->json) {
		json_t *object = cli_object("finding");
		(void)json_object_set_new(object, "step", json_integer((json_int_t)f->step));
		(void)json_object_set_new(
			object, "generation", json_integer((json_int_t)f->generation));
		(void)json_object_set_new(object, "error", cli_error_object(e));
		cli_print_json(object);
		return;
	}
	(void)printf("step %llu: %s: ", (unsigned long long)f->step, ckpt_strerror(e->code));
	if (*e->file)
		cli_print_text(stdout, e->file);
	if (e->offset >= 0)
		(void)printf(" at offset %lld", (long long)e->offset);
	if (*e->tensor) {
		(void)fputs(", tensor ", stdout);
		cli_print_text(stdout, e->tensor);
	}
	(void)fputs("\n  ", stdout);
	cli_print_text(stdout, e->message);
	(void)putchar('\n');
}

static void say_good(const struct verification *v, const struct ckpt_finding *f)
{
	if (v->cli->json) {
		json_t *object = cli_object("good");
		(void)json_object_set_new(object, "step", json_integer((json_int_t)f->step));
		(void)json_object_set_new(
			object, "generation", json_integer((json_int_t)f->generation));
		(void)json_object_set_new(object, "rank", json_integer(f->rank));
		(void)json_object_set_new(object, "file", json_string(f->error.file));
		cli_print_json(object);
	} else if (!v->cli->quiet) {
		(void)printf("step %llu: rank %u is good (%s)\n", (unsigned long long)f->step,
			f->rank, f->error.file);
	}
}

/* A failure that is no finding: the step cannot be looked at. */
static void say_failure(struct verification *v, uint64_t step, int code)
{
	struct ckpt_finding f = {.size = sizeof(f), .step = step};

	f.error.size = sizeof(f.error);
	(void)ckpt_last_error_record(&f.error);
	f.error.code = code;
	say_finding(v, &f);
}

static void verify_step(struct verification *v, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	char what[64];
	uint64_t done = 0;
	uint64_t total = 0;

	int r = ckpt_verify_start(v->engine, step, &restore);
	if (r < 0) {
		say_failure(v, step, r);
		return;
	}
	if (step <= CKPT_STEP_MAX)
		(void)snprintf(what, sizeof(what), "step %llu", (unsigned long long)step);
	else
		(void)snprintf(what, sizeof(what), "verifying");
	r = cli_wait(v->cli, restore, what);
	size_t count = ckpt_verify_count(restore);
	for (size_t i = 0; i < count; i++) {
		struct ckpt_finding f = {.size = sizeof(f)};
		f.error.size = sizeof(f.error);
		if (ckpt_verify_finding(restore, i, &f) < 0)
			continue;
		if (f.error.code)
			say_finding(v, &f);
		else
			say_good(v, &f);
	}
	if (r < 0 && (count == 0 || r == -ECANCELED) && !cli_interrupted())
		say_failure(v, step <= CKPT_STEP_MAX ? step : 0, r);
	if (ckpt_restore_progress(restore, &done, &total) == 0)
		v->bytes += done;
	v->steps++;
	ckpt_restore_free(restore);
}

/* A manifest that does not verify hides its step from the lineage: it is a finding of its own. */
static void say_broken(struct verification *v, const struct ckpt_step_info *info)
{
	struct ckpt_finding f = {
		.size = sizeof(f), .step = info->step, .generation = info->generation};

	f.error = (struct ckpt_error){.size = sizeof(f.error),
		.code = CKPT_EINTEGRITY,
		.step = (int64_t)info->step,
		.offset = -1,
		.rank = -1};
	(void)snprintf(f.error.file, sizeof(f.error.file), "g%06llu/step-%010llu/manifest.json",
		(unsigned long long)info->generation, (unsigned long long)info->step);
	(void)snprintf(f.error.message, sizeof(f.error.message), "%s", info->note);
	say_finding(v, &f);
}

static int verify_lineage(struct verification *v)
{
	struct ckpt_catalog *catalog = NULL;
	uint64_t latest = 0;

	int r = ckpt_catalog_open(v->engine, &catalog);
	if (r < 0)
		return cli_fail(v->cli, r);
	for (size_t i = 0; i < ckpt_catalog_count(catalog) && !cli_interrupted(); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		(void)ckpt_catalog_step(catalog, i, &info);
		if (info.state == CKPT_STEP_BROKEN)
			say_broken(v, &info);
		else if (info.in_lineage)
			verify_step(v, info.step);
	}
	ckpt_catalog_free(catalog);
	/* Also says when the lineage cannot be known, because a claim does not verify. */
	r = ckpt_engine_latest(v->engine, &latest);
	if (r < 0 && r != CKPT_ENOSTEP)
		say_failure(v, 0, r);
	if (v->steps == 0 && v->findings == 0 && !cli_interrupted())
		return cli_fail(v->cli, r < 0 ? r : CKPT_ENOSTEP);
	return CLI_OK;
}

static void summarise(const struct verification *v)
{
	char bytes[32];

	if (v->cli->json) {
		json_t *object = cli_object("summary");
		(void)json_object_set_new(object, "steps", json_integer(v->steps));
		(void)json_object_set_new(object, "findings", json_integer(v->findings));
		(void)json_object_set_new(object, "bytes", json_integer((json_int_t)v->bytes));
		(void)json_object_set_new(object, "exit", json_integer(v->exit));
		cli_print_json(object);
	} else if (!v->cli->quiet || v->exit) {
		(void)printf("%u step%s, %s read: %s\n", v->steps, v->steps == 1 ? "" : "s",
			cli_bytes(v->bytes, bytes), v->exit ? "NOT good" : "all good");
	}
}

int cmd_verify(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [--step N] [--json]",
		.help = help,
		.operands = 1,
		.takes_step = true,
		.takes_quiet = true,
		.takes_progress = true};
	struct cli cli;
	struct verification v = {.cli = &cli};
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	exit_code = cli_open(&cli, &v.engine);
	if (exit_code)
		return exit_code;
	if (cli.has_step) {
		verify_step(&v, cli.step);
	} else {
		/* Not in the argument itself: it sets v.exit too, and C has no order there. */
		exit_code = verify_lineage(&v);
		v.exit = cli_worse(v.exit, exit_code);
	}
	if (cli_interrupted())
		v.exit = CLI_SIGNAL + cli_interrupted();
	if (v.steps + v.findings > 0)
		summarise(&v);
	ckpt_engine_close(v.engine);
	return v.exit;
}
