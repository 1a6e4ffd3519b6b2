/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs share: options, exit codes, output, progress, interruption. */
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
	CLI_SIGNAL = 128, /* and the signal's number */
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
	int operands;      /* how many it takes, */
	int operands_more; /* and may take besides */
	bool takes_step;
	bool takes_with;
	bool takes_quiet;
	bool takes_progress;
	bool takes_consolidate;
	bool takes_prune;
	bool takes_quick;
};

/* "3", or "8-15": those two, and what is between them. */
struct cli_ranks {
	uint64_t first;
	uint64_t last;
};

/* What the command line said. */
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
	bool json;
	bool quiet;
	enum cli_progress progress;
	bool consolidate;
	uint64_t file_size;  /* bytes of tensors in a file; 0: all in one */
	uint64_t world_size; /* of the job whose rank's view is wanted; 0: none is */
	uint64_t rank;       /* with it: the one that was given */
	struct cli_ranks ranks[CLI_RANKS_MAX]; /* without it: those whose files are wanted */
	size_t ranks_count;
	const char *whole[CLI_WHOLE_MAX]; /* patterns of names that are not cut */
	size_t whole_count;
	uint64_t keep_last; /* 0: not given */
	uint64_t keep_every;
	uint64_t grace_s;
	bool no_verify;
	bool dry_run;
	uint64_t remote_every; /* of the steps that go to the second operand; 0: all */
};

/* Parses; answers --help and --version itself. False: exit with *ret_exit. */
bool cli_parse(
	struct cli *cli, const struct cli_program *program, int argc, char **argv, int *ret_exit);

/* Before that store is asked, if it may need keys: what has them is not dumped. Those of the command line are parsed so. */
void cli_guard(const char *store);

/* The exit code of a library code, and of the worse of two exits. */
int cli_exit_of(int code);
int cli_worse(int a, int b);

/* Says on standard error what failed, by the library's last error. Returns the exit code. */
int cli_fail(const struct cli *cli, int code);
/* The same with an exit code that the caller knows better; `about` (may be NULL) goes in front. */
int cli_fail_with(const struct cli *cli, int exit_code, const char *about);

/* The same of a failure that is the program's own, and not the library's last. */
int cli_fail_record(const struct cli *cli, int exit_code, const struct ckpt_error *error);

/* The same of a signal. `known` (may be NULL) says what is to be known all the same. */
int cli_fail_interrupted(const struct cli *cli, const struct ckpt_error *known);

/*
 * Opens the store read only, after catching SIGINT and SIGTERM: one that comes before it is open ends the program.
 * Returns an exit code: it has said why.
 */
int cli_open(const struct cli *cli, struct ckpt_engine **ret_engine);

/*
 * From here to cli_unwatch() a signal ends the program, with the exit code of `last`, which says how far it came; NULL:
 * it was interrupted, and has begun nothing. For what asks a store that may hang, and looks at no signal: another thread
 * calls `last` while this one stands in there.
 */
void cli_watch(const struct cli *cli, int (*last)(void *user), void *user);
void cli_unwatch(void);

/* ckpt_restore_open(), and ckpt_restore_meta(), of programs that have begun nothing: watched. */
int cli_open_step(const struct cli *cli, struct ckpt_engine *engine, uint64_t step,
	struct ckpt_restore **ret_restore);
int cli_meta(const struct cli *cli, const struct ckpt_restore *restore, const char **ret_json,
	size_t *ret_length);

/* The same to upload from: it is one already, and its remote store is the second operand. */
int cli_open_remote(const struct cli *cli, struct ckpt_engine **ret_engine);

/* 0, or the signal that asked to stop. */
int cli_interrupted(void);

/*
 * Waits for a restore, verification or export, shows how it goes, and cancels it when interrupted.
 * Returns its code.
 */
int cli_wait(const struct cli *cli, struct ckpt_restore *restore, const char *what);

/*
 * Waits until all that a store holds is in its remote store, shows how it goes, and stops when interrupted. Returns
 * the library's code.
 */
int cli_wait_remote(const struct cli *cli, struct ckpt_engine *engine);

/* What --version prints: what the library has, too. */
void cli_version(const char *name);

/* Before anything is opened. */
void cli_begin(void);
/*
 * The exit code of a program that ends with `exit_code`: lost output is a failure that it says. Once a
 * reader has closed its pipe it wants no more, which is nothing to complain of.
 */
int cli_end(const char *name, int exit_code);

/* One line of JSON. Steals the reference. */
void cli_print_json(json_t *object);
/* An object with "schema" and "type". */
json_t *cli_object(const char *type);
/* What an error record says, as an object. */
json_t *cli_error_object(const struct ckpt_error *error);

/* "12.3 MiB" into `out`. */
const char *cli_bytes(uint64_t bytes, char out[32]);
/* Text from a checkpoint on a terminal: control characters shown as \xNN. */
void cli_print_text(FILE *to, const char *text);

int cmd_diff(int argc, char **argv, const char *name);
int cmd_ls(int argc, char **argv, const char *name);
int cmd_prune(int argc, char **argv, const char *name);
int cmd_restore(int argc, char **argv, const char *name);
int cmd_show(int argc, char **argv, const char *name);
int cmd_upload(int argc, char **argv, const char *name);
int cmd_verify(int argc, char **argv, const char *name);

#endif
