/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt show: what one step holds. */
#include <string.h>

#include "cli.h"

static const char help[] =
	"Shows one step: its tensors with type, shape, size and offset in the shard, and the "
	"values\n"
	"that are not tensors. Reads the manifest and the index, not the shard. In the store of "
	"one\n"
	"node of several, they are those of the ranks that are here; the others are listed as "
	"elsewhere.\n"
	"STORE is a directory, s3://BUCKET/PREFIX or file:///DIRECTORY.\n"
	"\n"
	"  --step N|latest|latest~K  which step; the newest good one of the lineage by default\n"
	"  --json                    one JSON object, with the values\n"
	"  -q, --quiet               no heading\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 all well; 1 failed; 2 usage; 3 a file is missing, or no rank is here; 4 "
	"the\n"
	"manifest or index does not verify, or every step is quarantined; 10 no such store or "
	"step;\n"
	"12 not authorised; 13 network; 130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt show /nvme/run42\n"
	"  ckpt show /nvme/run42 --step 1200 --json | jq '.tensors[].name'\n";

static const char *const dtype_names[CKPT_DTYPE_END] = {"?", "BOOL", "U8", "I8", "U16", "I16",
	"U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0",
	"C64", "C128", "C32", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4_X2"};

static const char *dtype_name(uint32_t dtype)
{
	return dtype < CKPT_DTYPE_END ? dtype_names[dtype] : "?";
}

static json_t *tensor_object(const struct ckpt_tensor_info *info)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < info->ndim; i++)
		(void)json_array_append_new(shape, json_integer((json_int_t)info->shape[i]));
	/* Of very many ranks where it lies is in an index that was not read. */
	json_t *offset =
		info->offset == UINT64_MAX ? json_null() : json_integer((json_int_t)info->offset);
	json_t *object = json_pack("{s:s, s:s, s:o, s:I, s:o, s:i}", "name", info->name, "dtype",
		dtype_name(info->dtype), "shape", shape, "bytes", (json_int_t)info->nbytes,
		"offset", offset, "rank", (int)info->rank);
	if (info->alias_of)
		(void)json_object_set_new(object, "alias_of", json_string(info->alias_of));
	if (info->pieces > 1)
		(void)json_object_set_new(object, "pieces", json_integer(info->pieces));
	return object;
}

static void print_tensor(const struct ckpt_tensor_info *info)
{
	char bytes[32];
	char offset[24] = "-";

	if (info->offset != UINT64_MAX)
		(void)snprintf(offset, sizeof(offset), "%llu", (unsigned long long)info->offset);
	(void)printf("%-11s  %10s  %14s  ", dtype_name(info->dtype), cli_bytes(info->nbytes, bytes),
		offset);
	cli_print_text(stdout, info->name);
	(void)fputs("  [", stdout);
	for (uint32_t i = 0; i < info->ndim; i++)
		(void)printf("%s%lld", i ? ", " : "", (long long)info->shape[i]);
	(void)putchar(']');
	if (info->pieces > 1)
		(void)printf("  in %u pieces", info->pieces);
	if (info->alias_of) {
		(void)fputs("  = ", stdout);
		cli_print_text(stdout, info->alias_of);
	}
	(void)putchar('\n');
}

/* The ranks that are elsewhere, each with its node. */
static json_t *elsewhere_array(const struct ckpt_restore *restore)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < ckpt_restore_world(restore); i++) {
		const char *node = "";
		uint32_t elsewhere = 0;
		(void)ckpt_restore_rank_node(restore, i, &node, &elsewhere);
		if (elsewhere)
			(void)json_array_append_new(
				array, json_pack("{s:i, s:s}", "rank", (int)i, "node", node));
	}
	return array;
}

static void print_elsewhere(const struct ckpt_restore *restore)
{
	for (uint32_t i = 0; i < ckpt_restore_world(restore); i++) {
		const char *node = "";
		uint32_t elsewhere = 0;
		(void)ckpt_restore_rank_node(restore, i, &node, &elsewhere);
		if (!elsewhere)
			continue;
		(void)printf("elsewhere: rank %u on node ", i);
		cli_print_text(stdout, node);
		(void)putchar('\n');
	}
}

static void print_json(const struct ckpt_restore *restore, const char *meta, size_t length)
{
	json_t *tensors = json_array();
	json_t *object = cli_object("step");

	for (size_t i = 0; i < ckpt_restore_count(restore); i++) {
		struct ckpt_tensor_info info = {.size = sizeof(info)};
		(void)ckpt_restore_tensor(restore, i, &info);
		(void)json_array_append_new(tensors, tensor_object(&info));
	}
	(void)json_object_set_new(
		object, "step", json_integer((json_int_t)ckpt_restore_step(restore)));
	(void)json_object_set_new(
		object, "generation", json_integer((json_int_t)ckpt_restore_generation(restore)));
	(void)json_object_set_new(object, "tensors", tensors);
	(void)json_object_set_new(object, "other_node", elsewhere_array(restore));
	/* An integer too large for the parser leaves the values out; they are in the index all the same. */
	json_t *values = length ? json_loadb(meta, length, JSON_DECODE_ANY, NULL) : NULL;
	(void)json_object_set_new(object, "meta", values ? values : json_null());
	cli_print_json(object);
}

static void print_text(const struct cli *cli, const struct ckpt_restore *restore, size_t length)
{
	char bytes[32];

	if (!cli->quiet)
		(void)printf("step %llu of generation %llu\n%-11s  %10s  %14s  NAME\n",
			(unsigned long long)ckpt_restore_step(restore),
			(unsigned long long)ckpt_restore_generation(restore), "DTYPE", "SIZE",
			"OFFSET");
	for (size_t i = 0; i < ckpt_restore_count(restore); i++) {
		struct ckpt_tensor_info info = {.size = sizeof(info)};
		(void)ckpt_restore_tensor(restore, i, &info);
		print_tensor(&info);
	}
	if (!cli->quiet && length)
		(void)printf(
			"and %s of other values (--json shows them)\n", cli_bytes(length, bytes));
	if (!cli->quiet)
		print_elsewhere(restore);
}

int cmd_show(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [--step N] [--json] [-q]",
		.help = help,
		.operands = 1,
		.takes_step = true,
		.takes_quiet = true};
	struct cli cli;
	struct ckpt_engine *engine = NULL;
	struct ckpt_restore *restore = NULL;
	const char *meta = NULL;
	size_t length = 0;
	int exit_code;

	if (!cli_parse(&cli, &program, argc, argv, &exit_code))
		return exit_code;
	exit_code = cli_open(&cli, &engine);
	if (exit_code)
		return exit_code;
	int r = cli_open_step(&cli, engine, cli.step, &restore);
	if (r == 0)
		r = cli_meta(&cli, restore, &meta, &length);
	if (r < 0) {
		exit_code = cli_fail(&cli, r);
	} else {
		if (cli.json)
			print_json(restore, meta, length);
		else
			print_text(&cli, restore, length);
		exit_code = CLI_OK;
	}
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
	return exit_code;
}
