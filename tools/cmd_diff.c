/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt diff: compares two steps. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

#define BATCH_BYTES (UINT64_C(256) << 20)

static const char help[] =
	"Compares two steps: of one store (by default the newest good step with the one\n"
	"before it), or the newest step of STORE with the step of the same number in\n"
	"OTHER. It reports tensors that only one of them has, tensors whose type or\n"
	"shape differs, in how many elements the bytes of a tensor differ and which is\n"
	"the first of these (row-major, from 0), and whether the values that are not\n"
	"tensors differ.\n"
	"\n"
	"Everything that is compared is read and verified, 256 MiB of each step at a\n"
	"time. Different numbers of ranks may have written the steps. STORE and OTHER\n"
	"are directories, s3://BUCKET/PREFIX or file:///DIRECTORY.\n"
	"\n"
	"  --step N|latest|latest~K\n"
	"                The first step, in STORE.\n"
	"  --with N|latest|latest~K\n"
	"                The second step: in OTHER if it is given, otherwise in STORE.\n"
	"  --structure   Compare names, types and shapes only, and read no shard.\n"
	"  --json        Print one JSON object.\n"
	"  --progress auto|always|never\n"
	"                Show a progress bar. Default: if standard error is a terminal.\n"
	"  -q, --quiet   Print nothing: see the exit status.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 the steps are the same; 1 they differ, or failure; 2 wrong\n"
	"usage; 3 a file is missing; 4 a manifest, an index or bytes do not verify;\n"
	"10 no such store or step; 12 not authorised; 13 network;\n"
	"130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt diff /nvme/run42\n"
	"  ckpt diff /nvme/run42 --step 1000 --with 1200\n"
	"  ckpt diff /nvme/run42 s3://models/run42\n";

static const char *const where[COMPARE_SIDES] = {"first", "second"};

struct diff {
	struct cli sides[COMPARE_SIDES]; /* each with its store as first operand, and its step */
	struct ckpt_engine *engines[COMPARE_SIDES];
	struct ckpt_restore *restores[COMPARE_SIDES];
	struct compare_tensor *tensors; /* to be compared */
	size_t count;
	json_t *only[COMPARE_SIDES]; /* names */
	json_t *changed;             /* names, of another type or shape */
	bool values_differ;
};

static bool same_kind(const struct ckpt_tensor_info *a, const struct ckpt_tensor_info *b)
{
	if (a->dtype != b->dtype || a->ndim != b->ndim)
		return false;
	return a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0;
}

/* Whether both are aliases of the same tensor, which is compared under its own name. */
static bool is_seen(const struct ckpt_tensor_info *a, const struct ckpt_tensor_info *b)
{
	return a->alias_of && b->alias_of && strcmp(a->alias_of, b->alias_of) == 0;
}

static void add_tensor(struct diff *d, const struct ckpt_tensor_info *info)
{
	struct compare_tensor *t = &d->tensors[d->count++];

	*t = (struct compare_tensor){.info = *info, .elements = 1};
	for (uint32_t i = 0; i < info->ndim; i++)
		t->elements *= (uint64_t)info->shape[i];
}

static struct ckpt_tensor_info tensor_at(const struct ckpt_restore *restore, size_t index)
{
	struct ckpt_tensor_info info = {.size = sizeof(info)};

	(void)ckpt_restore_tensor(restore, index, &info);
	return info;
}

/* Looks up the names of one side in the other. Called for both, it finds each missing name once. */
static int match(struct diff *d, int side)
{
	const struct ckpt_restore *mine = d->restores[side];
	const struct ckpt_restore *theirs = d->restores[1 - side];

	for (size_t i = 0; i < ckpt_restore_count(mine); i++) {
		struct ckpt_tensor_info info = tensor_at(mine, i);
		size_t index = 0;
		int r = ckpt_restore_find(theirs, info.name, &index);
		if (r == CKPT_EMISMATCH) {
			(void)json_array_append_new(d->only[side], json_string(info.name));
			continue;
		}
		if (r < 0)
			return r;
		if (side != 0)
			continue;
		struct ckpt_tensor_info other = tensor_at(theirs, index);
		if (!same_kind(&info, &other))
			(void)json_array_append_new(d->changed, json_string(info.name));
		else if (!is_seen(&info, &other))
			add_tensor(d, &info);
	}
	return 0;
}

/* Compares the JSON text: the values that are not tensors, and the nesting of all. */
static int match_values(const struct cli *cli, struct diff *d)
{
	const char *json[COMPARE_SIDES] = {NULL};
	size_t length[COMPARE_SIDES] = {0};

	for (int side = 0; side < COMPARE_SIDES; side++) {
		int r = cli_meta(cli, d->restores[side], &json[side], &length[side]);
		if (r < 0)
			return r;
	}
	d->values_differ =
		length[0] != length[1] || (length[0] && memcmp(json[0], json[1], length[0]) != 0);
	return 0;
}

static int match_all(const struct cli *cli, struct diff *d)
{
	d->tensors = calloc(ckpt_restore_count(d->restores[0]) + 1, sizeof(*d->tensors));
	if (!d->tensors)
		return -ENOMEM;
	int r = match(d, 0);
	if (r == 0)
		r = match(d, 1);
	return r < 0 ? r : match_values(cli, d);
}

static int compare(const struct cli *cli, struct diff *d)
{
	struct compare c = {
		.cli = cli, .tensors = d->tensors, .count = d->count, .batch_bytes = BATCH_BYTES};

	if (cli->structure)
		return 0;
	for (int side = 0; side < COMPARE_SIDES; side++) {
		c.engines[side] = d->engines[side];
		c.steps[side] = ckpt_restore_step(d->restores[side]);
		c.generations[side] = ckpt_restore_generation(d->restores[side]);
	}
	return compare_run(&c);
}

static size_t differing(const struct diff *d)
{
	size_t n = 0;

	for (size_t i = 0; i < d->count; i++)
		n += d->tensors[i].differing > 0;
	return n;
}

static bool is_same(const struct diff *d)
{
	return json_array_size(d->only[0]) + json_array_size(d->only[1]) +
			       json_array_size(d->changed) + differing(d) ==
		       0 &&
	       !d->values_differ;
}

static void print_names(const char *what, const json_t *names)
{
	for (size_t i = 0; i < json_array_size(names); i++) {
		(void)printf("%s: ", what);
		cli_print_text(stdout, json_string_value(json_array_get(names, i)));
		(void)putchar('\n');
	}
}

static void print_text(const struct cli *cli, const struct diff *d)
{
	for (int side = 0; side < COMPARE_SIDES; side++)
		(void)printf("%s: step %llu of generation %llu, %s\n", where[side],
			(unsigned long long)ckpt_restore_step(d->restores[side]),
			(unsigned long long)ckpt_restore_generation(d->restores[side]),
			d->sides[side].operand[0]);
	print_names("only in the first", d->only[0]);
	print_names("only in the second", d->only[1]);
	print_names("other type or shape", d->changed);
	for (size_t i = 0; i < d->count; i++) {
		const struct compare_tensor *t = &d->tensors[i];
		if (t->differing == 0)
			continue;
		(void)fputs("differs: ", stdout);
		cli_print_text(stdout, t->info.name);
		(void)printf(": %llu of %llu elements, the first is element %llu\n",
			(unsigned long long)t->differing, (unsigned long long)t->elements,
			(unsigned long long)t->first);
	}
	if (d->values_differ)
		(void)puts("differ: values that are not tensors");
	if (is_same(d))
		(void)printf("%zu tensors%s and the other values are the same\n", d->count,
			cli->structure ? " (by name, type and shape)" : "");
}

static json_t *side_object(const struct diff *d, int side)
{
	return json_pack("{s:s, s:I, s:I}", "store", d->sides[side].operand[0], "step",
		(json_int_t)ckpt_restore_step(d->restores[side]), "generation",
		(json_int_t)ckpt_restore_generation(d->restores[side]));
}

static void print_json(const struct cli *cli, const struct diff *d)
{
	json_t *object = cli_object("diff");
	json_t *tensors = json_array();

	for (size_t i = 0; i < d->count; i++) {
		const struct compare_tensor *t = &d->tensors[i];
		if (t->differing > 0)
			(void)json_array_append_new(tensors,
				json_pack("{s:s, s:I, s:I, s:I}", "name", t->info.name, "elements",
					(json_int_t)t->elements, "differing",
					(json_int_t)t->differing, "first", (json_int_t)t->first));
	}
	(void)json_object_set_new(object, "same", json_boolean(is_same(d)));
	(void)json_object_set_new(object, "structure", json_boolean(cli->structure));
	for (int side = 0; side < COMPARE_SIDES; side++)
		(void)json_object_set_new(object, where[side], side_object(d, side));
	(void)json_object_set(object, "only_first", d->only[0]);
	(void)json_object_set(object, "only_second", d->only[1]);
	(void)json_object_set(object, "changed", d->changed);
	(void)json_object_set_new(object, "differing", tensors);
	(void)json_object_set_new(object, "values_differ", json_boolean(d->values_differ));
	cli_print_json(object);
}

/* Chooses the store and the step of each side. */
static void choose(const struct cli *cli, struct diff *d)
{
	bool two = cli->operand[1] != NULL;

	d->sides[0] = *cli;
	d->sides[1] = *cli;
	if (two)
		d->sides[1].operand[0] = cli->operand[1];
	if (!two && !cli->has_step && !cli->has_with)
		d->sides[0].step = CKPT_STEP_BACK(1);
	d->sides[1].step = cli->has_with ? cli->with : CKPT_STEP_LATEST;
}

static int open_sides(const struct cli *cli, struct diff *d)
{
	for (int side = 0; side < COMPARE_SIDES; side++) {
		struct cli *s = &d->sides[side];
		int exit_code = cli_open(s, &d->engines[side]);
		if (exit_code)
			return exit_code;
		if (side == 1 && cli->operand[1] && !cli->has_with)
			s->step = ckpt_restore_step(d->restores[0]);
		int r = cli_open_step(cli, d->engines[side], s->step, &d->restores[side]);
		if (r < 0)
			return cli_fail_with(cli, cli_exit_of(r), s->operand[0]);
	}
	return CLI_OK;
}

/* Reports a failure that the library has no message for. */
static int own_failure(const struct cli *cli, int code)
{
	struct ckpt_error record = {.size = sizeof(record), .code = code, .sys_errno = -code};

	record.step = record.offset = record.rank = -1;
	(void)snprintf(record.message, sizeof(record.message), "%s",
		code == -ESTALE ? "a step was deleted and saved again during the comparison"
				: "out of memory");
	return cli_fail_record(cli, CLI_FAILED, &record);
}

static int run(const struct cli *cli, struct diff *d)
{
	int exit_code = open_sides(cli, d);

	if (exit_code)
		return exit_code;
	int r = match_all(cli, d);
	if (r == 0)
		r = compare(cli, d);
	if (r < 0)
		return r == -ENOMEM || r == -ESTALE ? own_failure(cli, r) : cli_fail(cli, r);
	if (cli->json)
		print_json(cli, d);
	else if (!cli->quiet)
		print_text(cli, d);
	return is_same(d) ? CLI_OK : CLI_FAILED;
}

int cmd_diff(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [OTHER] [--step N] [--with N] [--structure] [--json] [-q]",
		.help = help,
		.operands = 1,
		.operands_more = 1,
		.takes_step = true,
		.takes_with = true,
		.takes_quiet = true,
		.takes_progress = true};
	struct diff d = {.changed = json_array()};
	struct cli cli;
	int exit_code;

	d.only[0] = json_array();
	d.only[1] = json_array();
	if (cli_parse(&cli, &program, argc, argv, &exit_code)) {
		choose(&cli, &d);
		exit_code = run(&cli, &d);
	}
	for (int side = 0; side < COMPARE_SIDES; side++) {
		ckpt_restore_free(d.restores[side]);
		ckpt_engine_close(d.engines[side]);
		json_decref(d.only[side]);
	}
	json_decref(d.changed);
	free(d.tensors);
	return exit_code;
}
