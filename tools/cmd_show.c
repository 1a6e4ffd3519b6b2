/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt show: lists the tensors of one step. */
#include <string.h>

#include "cli.h"
#include "stored.h"

static const char help[] =
	"Lists the tensors of one step, with type, shape, size and offset in the shard.\n"
	"With --json it also shows the values that are not tensors. It reads the\n"
	"manifest and the indexes, and no shard. In the store of one node of several it\n"
	"shows the tensors of the ranks that are here, and lists the ranks of other\n"
	"nodes. STORE is a directory, s3://BUCKET/PREFIX or file:///DIRECTORY.\n"
	"\n"
	"  --step N|latest|latest~K\n"
	"                The step. Default: the newest good step of the lineage.\n"
	"  --stored      Show also how large the shards and their files are, and how they\n"
	"                are stored. This opens the file of every rank and reads, of an\n"
	"                encoded one, the table at its end.\n"
	"  --json        Print one JSON object, with the values.\n"
	"  -q, --quiet   Print no heading.\n"
	"  --version, -h, --help\n"
	"\n"
	"Exit status: 0 success; 1 failure; 2 wrong usage; 3 a file is missing, or no\n"
	"rank is here; 4 the manifest or an index does not verify, or every step is\n"
	"quarantined; 10 no such store or step; 12 not authorised; 13 network;\n"
	"130, 143 interrupted.\n"
	"\n"
	"Examples:\n"
	"  ckpt show /nvme/run42\n"
	"  ckpt show /nvme/run42 --step 1200 --json | jq '.tensors[].name'\n";

static json_t *tensor_object(const struct ckpt_tensor_info *info)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < info->ndim; i++)
		(void)json_array_append_new(shape, json_integer((json_int_t)info->shape[i]));
	/* With many ranks the offset is in an index that was not read. */
	json_t *offset =
		info->offset == UINT64_MAX ? json_null() : json_integer((json_int_t)info->offset);
	json_t *object = json_pack("{s:s, s:s, s:o, s:I, s:o, s:i}", "name", info->name, "dtype",
		cli_dtype(info->dtype), "shape", shape, "bytes", (json_int_t)info->nbytes, "offset",
		offset, "rank", (int)info->rank);
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
	(void)printf("%-11s  %10s  %14s  ", cli_dtype(info->dtype), cli_bytes(info->nbytes, bytes),
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

/* The ranks of other nodes. */
static json_t *other_node_array(const struct ckpt_restore *restore)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < ckpt_restore_world(restore); i++) {
		const char *node = "";
		uint32_t other_node = 0;
		(void)ckpt_restore_rank_node(restore, i, &node, &other_node);
		if (other_node)
			(void)json_array_append_new(
				array, json_pack("{s:i, s:s}", "rank", (int)i, "node", node));
	}
	return array;
}

static void print_other_nodes(const struct ckpt_restore *restore)
{
	for (uint32_t i = 0; i < ckpt_restore_world(restore); i++) {
		const char *node = "";
		uint32_t other_node = 0;
		(void)ckpt_restore_rank_node(restore, i, &node, &other_node);
		if (!other_node)
			continue;
		(void)printf("other node: rank %u on node ", i);
		cli_print_text(stdout, node);
		(void)putchar('\n');
	}
}

/* `stored` is NULL without --stored. */
static void print_json(const struct ckpt_restore *restore, const char *meta, size_t length,
	const struct stored *stored)
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
	(void)json_object_set_new(object, "other_node", other_node_array(restore));
	if (stored)
		(void)json_object_set_new(object, "stored", stored_object(stored));
	/* If the parser cannot read them (a very large integer), the values are null. The index has them. */
	json_t *values = length ? json_loadb(meta, length, JSON_DECODE_ANY, NULL) : NULL;
	(void)json_object_set_new(object, "meta", values ? values : json_null());
	cli_print_json(object);
}

static void print_text(const struct cli *cli, const struct ckpt_restore *restore, size_t length,
	const struct stored *stored)
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
		(void)printf("other values: %s (--json prints them)\n", cli_bytes(length, bytes));
	if (!cli->quiet)
		print_other_nodes(restore);
	if (stored)
		stored_print(stored);
}

int cmd_show(int argc, char **argv, const char *name)
{
	const struct cli_program program = {.name = name,
		.usage = "STORE [--step N] [--stored] [--json] [-q]",
		.help = help,
		.operands = 1,
		.takes_step = true,
		.takes_quiet = true,
		.takes_stored = true};
	struct stored stored = {0};
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
	if (r == 0 && cli.stored)
		r = stored_read(&cli, restore, &stored);
	if (r < 0) {
		exit_code = cli_fail(&cli, r);
	} else {
		const struct stored *shown = cli.stored ? &stored : NULL;
		if (cli.json)
			print_json(restore, meta, length, shown);
		else
			print_text(&cli, restore, length, shown);
		exit_code = CLI_OK;
	}
	stored_free(&stored);
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
	return exit_code;
}
