/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs: options, exit codes, output, progress, interruption. */
#ifndef CKPT_TOOLS_CLI_H
#define CKPT_TOOLS_CLI_H

#include <stdbool.h>
#include <stdio.h>
#include <ckpt/ckpt.h>
#include <jansson.h>

#define CLI_WHOLE_MAX 64
#define CLI_RANKS_MAX 64
#define CLI_WORLD_MAX UINT64_C(1000000)

/* Version of everything that --json prints. Members are only ever added. */
#define CLI_SCHEMA 1

enum cli_exit {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_INCOMPLETE = 3,
	CLI_INTEGRITY = 4,
	CLI_NOT_FOUND = 10,
	CLI_IN_USE = 11,
	CLI_AUTH = 12,
	CLI_NETWORK = 13,
	CLI_NO_SPACE = 14,
	CLI_SIGNAL = 128, /* plus the number of the signal */
};

enum cli_progress {
	CLI_PROGRESS_AUTO, /* a bar when standard error is a terminal */
	CLI_PROGRESS_ALWAYS,
	CLI_PROGRESS_NEVER,
};

/* How a program is called. */
struct cli_program {
	const char *name;  /* as the user typed it: "ckpt-verify", "ckpt ls" */
	const char *usage; /* after the name */
	const char *help;  /* everything below the usage line */
	int operands;      /* that are required */
	int operands_more; /* that are optional */
	bool takes_step;
	bool takes_with;
	bool takes_quiet;
	bool takes_progress;
	bool takes_consolidate;
	bool takes_prune;
	bool takes_quick;
	bool takes_stored;
	bool takes_encoding;
};

/* "3", or "8-15": an inclusive range. */
struct cli_ranks {
	uint64_t first;
	uint64_t last;
};

/* The parsed command line. */
struct cli {
	const struct cli_program *program;
	const char *operand[2];
	bool has_step;
	uint64_t step;         /* a number, CKPT_STEP_LATEST or CKPT_STEP_BACK(k) */
	const char *step_text; /* the same as the user typed it */
	bool has_with;
	uint64_t with; /* as step */
	bool structure;
	bool quick;
	bool stored;
	bool json;
	bool quiet;
	enum cli_progress progress;
	bool consolidate;
	bool plain;          /* encoded shards are decoded */
	uint64_t file_size;  /* most bytes of tensors in a file; 0: one file */
	uint64_t world_size; /* of --world-size; 0: not given */
	uint64_t rank;       /* with world_size: the rank that was given */
	struct cli_ranks
		ranks[CLI_RANKS_MAX]; /* without world_size: ranks whose files are copied */
	size_t ranks_count;
	const char *whole[CLI_WHOLE_MAX]; /* patterns of names that are not cut */
	size_t whole_count;
	uint64_t keep_last; /* 0: not given */
	uint64_t keep_every;
	uint64_t grace_s;
	bool no_verify;
	bool dry_run;
	bool has_encoding;
	uint32_t encoding;     /* enum ckpt_encoding */
	uint64_t remote_every; /* upload only multiples of it to the second operand; 0: all steps */
};

/* Parses the command line. Prints --help and --version itself. False: exit with *ret_exit. */
bool cli_parse(
	struct cli *cli, const struct cli_program *program, int argc, char **argv, int *ret_exit);

/*
 * Disables core dumps if `store` is a URL, because keys will be in memory. Call it before the store is opened. cli_parse()
 * does it for the operands.
 */
void cli_guard(const char *store);

/* The exit code of a library code, and of the worse of two exits. */
int cli_exit_of(int code);
int cli_worse(int a, int b);

/* Prints the library's last error to standard error. Returns the exit code. */
int cli_fail(const struct cli *cli, int code);
/* The same with the exit code of the caller; `about` (may be NULL) is printed in front. */
int cli_fail_with(const struct cli *cli, int exit_code, const char *about);

/* The same for an error of the program itself. */
int cli_fail_record(const struct cli *cli, int exit_code, const struct ckpt_error *error);

/* The same for a signal. `known` (may be NULL) is an error that is printed as well. */
int cli_fail_interrupted(const struct cli *cli, const struct ckpt_error *known);

/*
 * Opens the store read only, after installing handlers of SIGINT and SIGTERM. A signal that comes before the store is open
 * ends the program. Returns an exit code; errors were printed.
 */
int cli_open(const struct cli *cli, struct ckpt_engine **ret_engine);

/*
 * Until cli_unwatch() a signal ends the program. For library calls that may hang in storage and do not look at signals.
 * Another thread calls `last`, which prints the result so far and returns the exit code. NULL: prints that the program was
 * interrupted.
 */
void cli_watch(const struct cli *cli, int (*last)(void *user), void *user);
void cli_unwatch(void);

/* ckpt_restore_open() and ckpt_restore_meta(), with cli_watch() around them. */
int cli_open_step(const struct cli *cli, struct ckpt_engine *engine, uint64_t step,
	struct ckpt_restore **ret_restore);
int cli_meta(const struct cli *cli, const struct ckpt_restore *restore, const char **ret_json,
	size_t *ret_length);

/* Opens the store (which must exist) for writing; its remote store is the second operand, if there is one. */
int cli_open_writer(const struct cli *cli, struct ckpt_engine **ret_engine);

/* The number of the signal that was caught, or 0. */
int cli_interrupted(void);

/*
 * Waits for a restore, verification or export, shows its progress, and cancels it when interrupted.
 * Returns its code.
 */
int cli_wait(const struct cli *cli, struct ckpt_restore *restore, const char *what);

/*
 * Waits until all steps of the store are in its remote store, shows the progress, and stops when interrupted. Returns
 * the library's code.
 */
int cli_wait_remote(const struct cli *cli, struct ckpt_engine *engine);

/* Prints the version, with the features of the library. */
void cli_version(const char *name);

/* Call it first in main(). */
void cli_begin(void);
/*
 * Flushes the output and returns the exit code of the program: CLI_FAILED instead of CLI_OK if output was lost. Prints an
 * error then, unless the reader has closed the pipe.
 */
int cli_end(const char *name, int exit_code);

/* Prints one line of JSON. Steals the reference. */
void cli_print_json(json_t *object);
/* An object with "schema" and "type". */
json_t *cli_object(const char *type);
/* An error record as an object. */
json_t *cli_error_object(const struct ckpt_error *error);

/* "BF16" */
const char *cli_dtype(uint32_t dtype);
/* "12.3 MiB" into `out`. */
const char *cli_bytes(uint64_t bytes, char out[32]);
/* Prints text from a checkpoint, with control characters as \xNN. */
void cli_print_text(FILE *to, const char *text);

int cmd_diff(int argc, char **argv, const char *name);
int cmd_ls(int argc, char **argv, const char *name);
int cmd_prune(int argc, char **argv, const char *name);
int cmd_recode(int argc, char **argv, const char *name);
int cmd_restore(int argc, char **argv, const char *name);
int cmd_show(int argc, char **argv, const char *name);
int cmd_upload(int argc, char **argv, const char *name);
int cmd_verify(int argc, char **argv, const char *name);

#endif
