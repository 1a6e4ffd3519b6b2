/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-verify: compares every chunk with its digest. */
#include <errno.h>
#include <string.h>

#include "cli.h"

/* How often the store is listed again if all listed steps were deleted before they were read. */
#define LISTINGS_MAX 50
/* The step of a finding that concerns no step. */
#define NO_STEP      UINT64_MAX

static const char help[] =
	"Reads the manifest, the indexes and every chunk of every shard of the committed\n"
	"steps, and compares each with its digest. Without --step it verifies every\n"
	"committed step of the lineage, also quarantined ones. It changes nothing.\n"
	"STORE is a directory, s3://BUCKET/PREFIX or file:///DIRECTORY.\n"
	"\n"
	"These are reported, and are not damage: a step that is deleted while it is\n"
	"verified; a quarantined step whose files are good; ranks of other nodes, if\n"
	"every node has its own store; and a step that was committed although its ranks\n"
	"held different bytes of what they should have had alike.\n"
	"\n"
	"  --step N|latest|latest~K\n"
	"                Verify one step only.\n"
	"  --quick       Verify the structure only: compare manifests, indexes and\n"
	"                headers of shards with their digests, and check that every\n"
	"                shard has its exact length. Tensors are not read.\n"
	"  --json        Print one JSON object per line: damage, good shards, ranks of\n"
	"                other nodes, deleted steps, quarantined steps that are good\n"
	"                now, steps whose ranks differed, errors, and a summary.\n"
	"  --progress auto|always|never\n"
	"                Show a progress bar. Default: if standard error is a terminal.\n"
	"  -q, --quiet   Print only what is wrong.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 success; 1 failure, or a manifest is unreadable or of a newer\n"
	"format; 2 wrong usage; 3 files of a committed step are missing or short, or no\n"
	"rank of it is here; 4 bytes differ from their digest (the output says where),\n"
	"a file is malformed, or every step is quarantined; 10 no such store or step;\n"
	"12 not authorised; 13 network; 130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt-verify /nvme/run42\n"
	"  ckpt-verify s3://models/run42\n"
	"  ckpt-verify s3://models/run42 --quick\n"
	"  ckpt-verify /nvme/run42 --step latest --json\n";

struct verification {
	const struct cli *cli;
	struct ckpt_engine *engine;
	int exit;
	bool failed; /* it could not start, and the error was printed: no summary */
	unsigned steps;
	unsigned findings;
	unsigned removed;
	unsigned other_node; /* ranks of other nodes */
	uint64_t bytes;
};

static json_t *step_object(const char *type, uint64_t step, uint64_t generation)
{
	json_t *object = cli_object(type);

	if (step != NO_STEP)
		(void)json_object_set_new(object, "step", json_integer((json_int_t)step));
	if (generation)
		(void)json_object_set_new(
			object, "generation", json_integer((json_int_t)generation));
	return object;
}

static void say_finding(struct verification *v, const struct ckpt_finding *f)
{
	const struct ckpt_error *e = &f->error;

	v->findings++;
	v->exit = cli_worse(v->exit, cli_exit_of(e->code));
	if (v->cli->json) {
		json_t *object = step_object("finding", f->step, f->generation);
		(void)json_object_set_new(object, "error", cli_error_object(e));
		cli_print_json(object);
		return;
	}
	if (f->step != NO_STEP)
		(void)printf("step %llu", (unsigned long long)f->step);
	else
		(void)fputs("the store", stdout);
	(void)printf(": %s%s", ckpt_strerror(e->code), *e->file ? ": " : "");
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
		json_t *object =
			step_object(v->cli->quick ? "whole" : "good", f->step, f->generation);
		(void)json_object_set_new(object, "rank", json_integer(f->rank));
		(void)json_object_set_new(object, "file", json_string(f->error.file));
		cli_print_json(object);
	} else if (!v->cli->quiet) {
		(void)printf("step %llu: rank %u %s (%s)\n", (unsigned long long)f->step, f->rank,
			v->cli->quick ? "has a good structure" : "is good", f->error.file);
	}
}

/* The files of this rank are in the store of another node: verify them there. */
static void say_other_node(struct verification *v, const struct ckpt_finding *f)
{
	v->other_node++;
	if (v->cli->json) {
		json_t *object = step_object("other_node", f->step, f->generation);
		(void)json_object_set_new(object, "rank", json_integer(f->rank));
		(void)json_object_set_new(object, "node", json_string(f->node));
		cli_print_json(object);
	} else if (!v->cli->quiet) {
		(void)printf("step %llu: other node: rank %u on node ", (unsigned long long)f->step,
			f->rank);
		cli_print_text(stdout, f->node);
		(void)putchar('\n');
	}
}

/* The files are good, but the step was committed although its ranks differed. */
static void say_replicas(const struct verification *v, const struct ckpt_restore *restore)
{
	const char *differ = ckpt_restore_replicas(restore);
	uint64_t step = ckpt_restore_step(restore);

	if (!*differ)
		return;
	if (v->cli->json) {
		json_t *object = step_object("replicas", step, ckpt_restore_generation(restore));
		(void)json_object_set_new(object, "message", json_string(differ));
		cli_print_json(object);
		return;
	}
	(void)printf("step %llu: committed although ", (unsigned long long)step);
	cli_print_text(stdout, differ);
	(void)putchar('\n');
}

static void fail(struct verification *v, int code)
{
	v->exit = cli_worse(v->exit, cli_fail(v->cli, code));
	v->failed = true;
}

/* The step cannot be verified: reports the error as a finding. */
static void say_failure(struct verification *v, uint64_t step, uint64_t generation, int code)
{
	struct ckpt_finding f = {.size = sizeof(f), .step = step, .generation = generation};

	f.error.size = sizeof(f.error);
	(void)ckpt_last_error_record(&f.error);
	f.error.code = code;
	say_finding(v, &f);
}

/* Retention has deleted the step since it was listed. That is no damage. */
static void say_removed(struct verification *v, const struct ckpt_step_info *listed)
{
	v->removed++;
	if (v->cli->json)
		cli_print_json(step_object("removed", listed->step, listed->generation));
	else if (!v->cli->quiet)
		(void)printf("step %llu: deleted meanwhile\n", (unsigned long long)listed->step);
}

/* The files are good again, but restores still skip the step. */
static void say_quarantined(struct verification *v, const struct ckpt_step_info *info)
{
	char file[64];

	(void)snprintf(file, sizeof(file), "g%06llu/step-%010llu/quarantine.json",
		(unsigned long long)info->generation, (unsigned long long)info->step);
	if (v->cli->json) {
		json_t *object = step_object("quarantined", info->step, info->generation);
		(void)json_object_set_new(object, "file", json_string(file));
		(void)json_object_set_new(object, "note", json_string(info->note));
		cli_print_json(object);
	} else if (!v->cli->quiet) {
		(void)printf("step %llu is quarantined, but its files are good now: delete %s, so "
			     "that restores choose it again\n",
			(unsigned long long)info->step, file);
	}
}

static void summarise(const struct verification *v, bool bad)
{
	char bytes[32];
	char removed[64] = "";
	char other_node[64] = "";
	const char *verdict = bad             ? "NOT good"
			      : v->other_node ? "all good in this store"
					      : "all good";

	if (!bad && v->cli->quick)
		verdict = v->other_node ? "structure good in this store, tensors not read"
					: "structure good, tensors not read";
	if (cli_interrupted())
		verdict = bad ? "NOT good, interrupted" : "interrupted";
	if (v->cli->json) {
		json_t *object = cli_object("summary");
		(void)json_object_set_new(object, "steps", json_integer(v->steps));
		(void)json_object_set_new(object, "removed", json_integer(v->removed));
		(void)json_object_set_new(object, "other_node", json_integer(v->other_node));
		(void)json_object_set_new(object, "findings", json_integer(v->findings));
		(void)json_object_set_new(object, "bytes", json_integer((json_int_t)v->bytes));
		(void)json_object_set_new(object, "quick", json_boolean(v->cli->quick));
		(void)json_object_set_new(
			object, "interrupted", json_boolean(cli_interrupted() != 0));
		(void)json_object_set_new(object, "exit", json_integer(v->exit));
		cli_print_json(object);
	} else if (!v->cli->quiet || v->exit) {
		if (v->removed)
			(void)snprintf(
				removed, sizeof(removed), "%u deleted meanwhile, ", v->removed);
		if (v->other_node)
			(void)snprintf(other_node, sizeof(other_node), "%u rank%s on other nodes, ",
				v->other_node, v->other_node == 1 ? "" : "s");
		(void)printf("%u step%s, %s%s%s read: %s\n", v->steps, v->steps == 1 ? "" : "s",
			removed, other_node, cli_bytes(v->bytes, bytes), verdict);
	}
}

/* Prints the summary, also after a signal, and returns the exit code. */
static int end(void *user)
{
	struct verification *v = user;
	bool bad = v->exit != CLI_OK;

	/* After a signal the exit code is that of the signal; the summary says whether there was damage. */
	if (cli_interrupted())
		v->exit = CLI_SIGNAL + cli_interrupted();
	if (!v->failed)
		summarise(v, bad);
	return v->exit;
}

static int list(struct verification *v, struct ckpt_catalog **ret_catalog)
{
	cli_watch(v->cli, end, v);
	int r = ckpt_catalog_open(v->engine, ret_catalog);
	cli_unwatch();
	return r;
}

/* Lists the store again and finds a step; false: it is not there, or listing failed. */
static bool look_up(
	struct verification *v, uint64_t generation, uint64_t step, struct ckpt_step_info *ret_info)
{
	struct ckpt_catalog *catalog = NULL;
	bool found = false;

	if (list(v, &catalog) < 0)
		return false;
	for (size_t i = 0; i < ckpt_catalog_count(catalog) && !found; i++) {
		*ret_info = (struct ckpt_step_info){.size = sizeof(*ret_info)};
		(void)ckpt_catalog_step(catalog, i, ret_info);
		found = ret_info->generation == generation && ret_info->step == step;
	}
	ckpt_catalog_free(catalog);
	return found;
}

static void say_findings(struct verification *v, const struct ckpt_restore *restore)
{
	for (size_t i = 0; i < ckpt_verify_count(restore); i++) {
		struct ckpt_finding f = {.size = sizeof(f)};
		f.error.size = sizeof(f.error);
		if (ckpt_verify_finding(restore, i, &f) < 0)
			continue;
		if (f.error.code == CKPT_EOTHERNODE)
			say_other_node(v, &f);
		else if (f.error.code)
			say_finding(v, &f);
		else
			say_good(v, &f);
	}
}

/* Reports one step. `listed` is NULL if the user named the step. */
static void take_outcome(struct verification *v, struct ckpt_restore *restore,
	const struct ckpt_step_info *listed, int code)
{
	uint64_t generation = ckpt_restore_generation(restore);
	struct ckpt_step_info now;
	uint64_t done = 0;
	uint64_t total = 0;

	if (listed && code == CKPT_ENOSTEP) {
		say_removed(v, listed);
		return;
	}
	if (!listed && !cli_interrupted() && (code == CKPT_ENOSTEP || (code < 0 && !generation))) {
		fail(v, code);
		return;
	}
	say_findings(v, restore);
	say_replicas(v, restore);
	bool unsaid =
		ckpt_verify_count(restore) == 0 || code == -ECANCELED || code == CKPT_EOTHERNODE;
	if (code < 0 && unsaid && !cli_interrupted())
		say_failure(
			v, listed ? listed->step : ckpt_restore_step(restore), generation, code);
	if (ckpt_restore_progress(restore, &done, &total) == 0)
		v->bytes += done;
	v->steps += code != -ECANCELED;
	if (code == 0 && !listed && !v->cli->quick &&
		look_up(v, generation, ckpt_restore_step(restore), &now))
		listed = &now;
	if (code == 0 && listed && listed->state == CKPT_STEP_QUARANTINED && !v->cli->quick)
		say_quarantined(v, listed);
}

static void verify_step(struct verification *v, uint64_t step, const struct ckpt_step_info *listed)
{
	struct ckpt_restore *restore = NULL;
	char what[64] = "verifying";

	int r = v->cli->quick ? ckpt_verify_quick_start(v->engine, step, &restore)
			      : ckpt_verify_start(v->engine, step, &restore);
	if (r < 0) {
		fail(v, r);
		return;
	}
	if (step <= CKPT_STEP_MAX)
		(void)snprintf(what, sizeof(what), "step %llu", (unsigned long long)step);
	r = cli_wait(v->cli, restore, what);
	take_outcome(v, restore, listed, r);
	ckpt_restore_free(restore);
}

/* A step whose manifest does not verify is not in the lineage, so it is reported separately. */
static void say_broken(struct verification *v, const struct ckpt_step_info *info)
{
	struct ckpt_finding f = {
		.size = sizeof(f), .step = info->step, .generation = info->generation};
	struct ckpt_error *e = &f.error;
	/* For codes of the library the note is a complete message. */
	bool system = info->code > CKPT_EINTEGRITY;

	*e = (struct ckpt_error){.size = sizeof(*e),
		.code = info->code,
		.step = (int64_t)info->step,
		.offset = -1,
		.rank = -1};
	(void)snprintf(e->file, sizeof(e->file), "g%06llu/step-%010llu/manifest.json",
		(unsigned long long)info->generation, (unsigned long long)info->step);
	if (system)
		(void)snprintf(
			e->message, sizeof(e->message), "cannot read %s: %s", e->file, info->note);
	else if (strstr(info->note, e->file))
		(void)snprintf(e->message, sizeof(e->message), "%s", info->note);
	else
		(void)snprintf(e->message, sizeof(e->message), "%s: %s", e->file, info->note);
	say_finding(v, &f);
}

/* Whether the previous listing (NULL: none) had it as broken, so that it is printed once. */
static bool said_before(const struct ckpt_catalog *before, const struct ckpt_step_info *info)
{
	for (size_t i = 0; before && i < ckpt_catalog_count(before); i++) {
		struct ckpt_step_info old = {.size = sizeof(old)};
		(void)ckpt_catalog_step(before, i, &old);
		if (old.generation == info->generation && old.step == info->step)
			return old.state == CKPT_STEP_BROKEN;
	}
	return false;
}

static void verify_listed(struct verification *v, const struct ckpt_catalog *catalog,
	const struct ckpt_catalog *before)
{
	for (size_t i = 0; i < ckpt_catalog_count(catalog) && !cli_interrupted(); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		(void)ckpt_catalog_step(catalog, i, &info);
		if (info.in_lineage)
			verify_step(v, info.step, &info);
		else if (info.state == CKPT_STEP_BROKEN && !said_before(before, &info))
			say_broken(v, &info);
	}
}

/*
 * Whether a writer that deletes steps has left nothing of this listing to verify: all its steps were deleted, or it was
 * made after the old step was deleted and before the next was committed.
 */
static bool must_list_again(const struct verification *v, bool removed)
{
	uint64_t latest = 0;

	if (v->steps > 0 || cli_interrupted())
		return false;
	return removed ||
	       (v->findings == 0 && !v->failed && ckpt_engine_latest(v->engine, &latest) == 0);
}

static void verify_lineage(struct verification *v)
{
	struct ckpt_finding f = {.size = sizeof(f), .step = NO_STEP, .error.size = sizeof(f.error)};
	struct ckpt_catalog *before = NULL;
	uint64_t latest = 0;
	unsigned removed;
	int tries = 0;
	int r;

	do {
		struct ckpt_catalog *catalog = NULL;
		r = list(v, &catalog);
		if (r < 0)
			break;
		removed = v->removed;
		verify_listed(v, catalog, before);
		ckpt_catalog_free(before);
		before = catalog;
	} while (must_list_again(v, v->removed > removed) && ++tries < LISTINGS_MAX);
	if (before && ckpt_catalog_error(before, &f.error) < 0)
		say_finding(v, &f);
	ckpt_catalog_free(before);
	if (r < 0 && !cli_interrupted() && !v->failed)
		say_failure(v, NO_STEP, 0, r);
	if (v->steps == 0 && v->findings == 0 && !v->failed && !cli_interrupted()) {
		/* Called for its error message: the last listing was empty. */
		cli_watch(v->cli, end, v);
		r = ckpt_engine_latest(v->engine, &latest);
		cli_unwatch();
		fail(v, r < 0 ? r : CKPT_ENOSTEP);
	}
}

int cmd_verify(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [--step N] [--quick] [--json] [-q]",
		.help = help,
		.operands = 1,
		.takes_step = true,
		.takes_quiet = true,
		.takes_progress = true,
		.takes_quick = true};
	struct cli cli;
	struct verification v = {.cli = &cli};
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	exit_code = cli_open(&cli, &v.engine);
	if (exit_code)
		return exit_code;
	if (cli.has_step)
		verify_step(&v, cli.step, NULL);
	else
		verify_lineage(&v);
	exit_code = end(&v);
	ckpt_engine_close(v.engine);
	return exit_code;
}
