/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt: the subcommands. */
#include <string.h>

#include "cli.h"

static const struct {
	const char *verb;
	const char *name;
	int (*run)(int argc, char **argv, const char *name);
	const char *what;
} verbs[] = {
	{"ls", "ckpt ls", cmd_ls, "list the steps of a store"},
	{"show", "ckpt show", cmd_show, "list the tensors of a step"},
	{"diff", "ckpt diff", cmd_diff, "compare two steps"},
	{"verify", "ckpt verify", cmd_verify, "verify every chunk (same as ckpt-verify)"},
	{"restore", "ckpt restore", cmd_restore, "copy and verify a step (same as ckpt-restore)"},
	{"recode", "ckpt recode", cmd_recode, "store steps compressed, or plain again"},
	{"upload", "ckpt upload", cmd_upload, "upload steps that the remote store does not have"},
	{"prune", "ckpt prune", cmd_prune, "delete old steps from a bucket or shared directory"},
};
#define VERBS (sizeof(verbs) / sizeof(verbs[0]))

static void usage(FILE *to)
{
	(void)fputs("usage: ckpt COMMAND STORE [OPTIONS]\n\n", to);
	for (size_t i = 0; i < VERBS; i++)
		(void)fprintf(to, "  %-8s  %s\n", verbs[i].verb, verbs[i].what);
	(void)fputs("\nRun 'ckpt COMMAND --help' for details.\n\nExample:\n  ckpt ls /nvme/run42\n",
		to);
}

static int run(int argc, char **argv)
{
	if (argc < 2) {
		usage(stderr);
		return CLI_USAGE;
	}
	for (size_t i = 0; i < VERBS; i++)
		if (strcmp(argv[1], verbs[i].verb) == 0)
			return verbs[i].run(argc - 1, argv + 1, verbs[i].name);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
		strcmp(argv[1], "help") == 0) {
		usage(stdout);
		return CLI_OK;
	}
	if (strcmp(argv[1], "--version") == 0) {
		cli_version("ckpt");
		return CLI_OK;
	}
	(void)fprintf(stderr, "ckpt: unknown command: %s\n", argv[1]);
	usage(stderr);
	return CLI_USAGE;
}

int main(int argc, char **argv)
{
	cli_begin();
	return cli_end("ckpt", run(argc, argv));
}
