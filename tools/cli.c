/* SPDX-License-Identifier: Apache-2.0 */
/* Options, exit codes and output of all programs. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define BACK_MAX  UINT64_C(1000000)
#define GRACE_MAX UINT64_C(1000000)
#define GRACE_S   600 /* CKPT_TWO_PHASE_DELETE_GRACE_S */

#define INTERRUPTED "interrupted"

enum {
	OPT_STEP = 256,
	OPT_WITH,
	OPT_STRUCTURE,
	OPT_QUICK,
	OPT_STORED,
	OPT_JSON,
	OPT_PROGRESS,
	OPT_VERSION,
	OPT_CONSOLIDATE,
	OPT_FILE_SIZE,
	OPT_WORLD_SIZE,
	OPT_RANK,
	OPT_WHOLE,
	OPT_PLAIN,
	OPT_ENCODING,
	OPT_KEEP_LAST,
	OPT_KEEP_EVERY,
	OPT_GRACE,
	OPT_NO_VERIFY,
	OPT_DRY_RUN
};

static const struct option options[] = {
	{"step", required_argument, NULL, OPT_STEP},
	{"with", required_argument, NULL, OPT_WITH},
	{"structure", no_argument, NULL, OPT_STRUCTURE},
	{"quick", no_argument, NULL, OPT_QUICK},
	{"stored", no_argument, NULL, OPT_STORED},
	{"json", no_argument, NULL, OPT_JSON},
	{"progress", required_argument, NULL, OPT_PROGRESS},
	{"consolidate", no_argument, NULL, OPT_CONSOLIDATE},
	{"file-size", required_argument, NULL, OPT_FILE_SIZE},
	{"world-size", required_argument, NULL, OPT_WORLD_SIZE},
	{"rank", required_argument, NULL, OPT_RANK},
	{"whole", required_argument, NULL, OPT_WHOLE},
	{"plain", no_argument, NULL, OPT_PLAIN},
	{"encoding", required_argument, NULL, OPT_ENCODING},
	{"keep-last", required_argument, NULL, OPT_KEEP_LAST},
	{"keep-every", required_argument, NULL, OPT_KEEP_EVERY},
	{"grace", required_argument, NULL, OPT_GRACE},
	{"no-verify", no_argument, NULL, OPT_NO_VERIFY},
	{"dry-run", no_argument, NULL, OPT_DRY_RUN},
	{"quiet", no_argument, NULL, 'q'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

static bool parse_number(const char *text, uint64_t max, uint64_t *ret)
{
	char *end = NULL;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno || *end || value > max)
		return false;
	*ret = value;
	return true;
}

/* "N", "latest", "latest~K" */
static bool parse_step(const char *text, uint64_t *ret_step)
{
	uint64_t back = 0;

	if (strncmp(text, "latest", 6) != 0)
		return parse_number(text, CKPT_STEP_MAX, ret_step);
	if (text[6] && (text[6] != '~' || !parse_number(text + 7, BACK_MAX, &back)))
		return false;
	*ret_step = CKPT_STEP_BACK(back);
	return true;
}

/* "500000", "5GiB": bytes, 1 or more. */
static bool parse_size(const char *text, uint64_t *ret_bytes)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	char digits[24] = "";
	size_t length = strspn(text, "0123456789");
	uint64_t number = 0;

	if (length >= sizeof(digits))
		return false;
	memcpy(digits, text, length);
	for (unsigned i = 0; i < 5; i++) {
		if (strcmp(text + length, units[i]) != 0)
			continue;
		if (!parse_number(digits, (UINT64_C(1) << 62) >> (10 * i), &number) || number == 0)
			return false;
		*ret_bytes = number << (10 * i);
		return true;
	}
	return false;
}

static bool parse_progress(const char *text, enum cli_progress *ret)
{
	static const char *const names[] = {"auto", "always", "never"};

	for (int i = 0; i < 3; i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret = (enum cli_progress)i;
			return true;
		}
	}
	return false;
}

static bool misused(const struct cli_program *program, const char *what, const char *value)
{
	(void)fprintf(stderr, "%s: %s%s%s\nusage: %s %s\nRun '%s --help' for details.\n",
		program->name, what, value ? ": " : "", value ? value : "", program->name,
		program->usage, program->name);
	return false;
}

static bool parse_ranks(const char *text, struct cli_ranks *ret_ranks)
{
	const char *dash = strchr(text, '-');
	char first[16] = "";

	if (!dash) {
		bool good = parse_number(text, CLI_WORLD_MAX - 1, &ret_ranks->first);
		ret_ranks->last = ret_ranks->first;
		return good;
	}
	if ((size_t)(dash - text) >= sizeof(first))
		return false;
	memcpy(first, text, (size_t)(dash - text));
	return parse_number(first, CLI_WORLD_MAX - 1, &ret_ranks->first) &&
	       parse_number(dash + 1, CLI_WORLD_MAX - 1, &ret_ranks->last) &&
	       ret_ranks->first <= ret_ranks->last;
}

/* --world-size, --rank and --whole. */
static bool parse_view(struct cli *cli, int option)
{
	const struct cli_program *program = cli->program;

	if (option == OPT_WHOLE) {
		if (cli->whole_count == CLI_WHOLE_MAX)
			return misused(program, "--whole was given more than 64 times", NULL);
		cli->whole[cli->whole_count++] = optarg;
		return true;
	}
	if (option == OPT_RANK) {
		if (cli->ranks_count == CLI_RANKS_MAX)
			return misused(program, "--rank was given more than 64 times", NULL);
		if (!parse_ranks(optarg, &cli->ranks[cli->ranks_count]))
			return misused(
				program, "--rank takes a number or a range, such as 8-15", optarg);
		cli->rank = cli->ranks[0].first;
		cli->ranks_count++;
		return true;
	}
	if (!parse_number(optarg, CLI_WORLD_MAX, &cli->world_size) || cli->world_size == 0)
		return misused(program, "--world-size takes a number of ranks", optarg);
	return true;
}

static bool parse_encoding(struct cli *cli, const char *text)
{
	bool compact = strcmp(text, "compact") == 0;

	cli->has_encoding = compact || strcmp(text, "plain") == 0;
	cli->encoding = compact ? CKPT_ENCODING_COMPACT : CKPT_ENCODING_PLAIN;
	return cli->has_encoding;
}

/* The options of prune. */
static bool parse_prune(struct cli *cli, int option)
{
	const struct cli_program *program = cli->program;
	uint64_t *number = option == OPT_KEEP_LAST ? &cli->keep_last : &cli->keep_every;

	switch (option) {
	case OPT_NO_VERIFY:
		cli->no_verify = true;
		return true;
	case OPT_DRY_RUN:
		cli->dry_run = true;
		return true;
	case OPT_GRACE:
		return parse_number(optarg, GRACE_MAX, &cli->grace_s) ||
		       misused(program, "--grace takes a number of seconds", optarg);
	default:
		if (parse_number(optarg, CKPT_STEP_MAX, number) && *number > 0)
			return true;
		return misused(
			program, "--keep-last and --keep-every take a number, 1 or more", optarg);
	}
}

static bool parse_option(struct cli *cli, int option)
{
	const struct cli_program *program = cli->program;

	switch (option) {
	case OPT_STEP:
		if (!parse_step(optarg, &cli->step))
			return misused(
				program, "--step takes a number, latest or latest~K", optarg);
		cli->has_step = true;
		cli->step_text = optarg;
		return true;
	case OPT_WITH:
		cli->has_with = parse_step(optarg, &cli->with);
		return cli->has_with ||
		       misused(program, "--with takes a number, latest or latest~K", optarg);
	case OPT_STRUCTURE:
		cli->structure = true;
		return true;
	case OPT_QUICK:
		cli->quick = true;
		return true;
	case OPT_STORED:
		cli->stored = true;
		return true;
	case OPT_PROGRESS:
		if (!parse_progress(optarg, &cli->progress))
			return misused(program, "--progress takes auto, always or never", optarg);
		return true;
	case OPT_FILE_SIZE:
		if (!parse_size(optarg, &cli->file_size))
			return misused(program,
				"--file-size takes bytes, or a number of KiB, MiB, GiB or TiB",
				optarg);
		return true;
	case OPT_CONSOLIDATE:
		cli->consolidate = true;
		return true;
	case OPT_PLAIN:
		cli->plain = true;
		return true;
	case OPT_ENCODING:
		return parse_encoding(cli, optarg) ||
		       misused(program, "--encoding takes plain or compact", optarg);
	case OPT_WORLD_SIZE:
	case OPT_RANK:
	case OPT_WHOLE:
		return parse_view(cli, option);
	case OPT_KEEP_LAST:
	case OPT_KEEP_EVERY:
	case OPT_GRACE:
	case OPT_NO_VERIFY:
	case OPT_DRY_RUN:
		return parse_prune(cli, option);
	case OPT_JSON:
		cli->json = true;
		return true;
	case 'q':
		cli->quiet = true;
		return true;
	default:
		return misused(program, "unknown option, or an option without its value", NULL);
	}
}

/* Abbreviated names are refused: they might mean another option in a later version. */
static bool abbreviated(const struct option *option, char **argv)
{
	const char *word = argv[optind - 1];

	if (optarg == word)
		word = argv[optind - 2];
	return strcspn(word + 2, "=") != strlen(option->name);
}

static bool takes(const struct cli_program *program, int option)
{
	switch (option) {
	case OPT_STEP:
		return program->takes_step;
	case OPT_WITH:
	case OPT_STRUCTURE:
		return program->takes_with;
	case OPT_QUICK:
		return program->takes_quick;
	case OPT_STORED:
		return program->takes_stored;
	case OPT_PROGRESS:
		return program->takes_progress;
	case OPT_CONSOLIDATE:
	case OPT_FILE_SIZE:
	case OPT_WORLD_SIZE:
	case OPT_RANK:
	case OPT_WHOLE:
	case OPT_PLAIN:
		return program->takes_consolidate;
	case OPT_ENCODING:
		return program->takes_encoding;
	case OPT_KEEP_LAST:
	case OPT_KEEP_EVERY:
	case OPT_GRACE:
	case OPT_NO_VERIFY:
	case OPT_DRY_RUN:
		return program->takes_prune;
	case 'q':
		return program->takes_quiet;
	default:
		return true;
	}
}

void cli_version(const char *name)
{
	const char *features = ckpt_features();

	(void)printf("%s (libckpt) %s%s%s\n", name, ckpt_version(), *features ? ", with " : "",
		features);
}

static void answer(const struct cli_program *program, int option)
{
	if (option == 'h')
		(void)printf("usage: %s %s\n\n%s", program->name, program->usage, program->help);
	else
		cli_version(program->name);
}

/* "s3://..." or "file://...": it can hold a store, but not plain files. */
static bool is_url(const char *text)
{
	size_t length = strcspn(text, ":/");

	return length > 0 && strncmp(text + length, "://", 3) == 0;
}

static bool is_bucket(const char *text)
{
	return is_url(text) && strncmp(text, "file:", 5) != 0;
}

/* Checks combinations of options. */
static bool check_together(const struct cli *cli)
{
	const struct cli_program *program = cli->program;

	if (program->takes_prune && cli->keep_last == 0)
		return misused(
			program, "--keep-last is missing: it says how many steps are kept", NULL);
	if (cli->file_size && !cli->consolidate)
		return misused(program, "--file-size needs --consolidate", NULL);
	if (cli->world_size && !cli->ranks_count)
		return misused(program, "--world-size needs --rank", NULL);
	if (cli->whole_count && !cli->world_size)
		return misused(program, "--whole needs --world-size and --rank", NULL);
	if (cli->ranks_count && cli->consolidate)
		return misused(program, "--consolidate and --rank cannot be used together", NULL);
	if (cli->plain && (cli->consolidate || cli->world_size))
		return misused(
			program, "--plain is for a store: tensor files are always plain", NULL);
	if (cli->world_size && (cli->ranks_count > 1 || cli->ranks[0].first != cli->ranks[0].last))
		return misused(program, "--world-size takes one --rank", NULL);
	if (cli->ranks_count && !cli->world_size && is_bucket(cli->operand[1]))
		return misused(program,
			"--rank needs a directory as DEST: a bucket holds whole steps", NULL);
	if ((cli->consolidate || cli->world_size) && is_url(cli->operand[1]))
		return misused(program,
			"tensor files need a directory as DEST: name a directory by its path",
			NULL);
	if (cli->world_size && cli->ranks[0].first >= cli->world_size)
		return misused(program, "--rank must be less than --world-size", NULL);
	return true;
}

void cli_guard(const char *store)
{
	/* Keys will be in the environment and in libcurl's memory: no core dump. */
	if (is_url(store))
		(void)prctl(PR_SET_DUMPABLE, 0);
}

static bool parse_operands(struct cli *cli, int argc, char **argv)
{
	const struct cli_program *program = cli->program;

	int given = argc - optind;

	if (given < program->operands)
		return misused(program, "an argument is missing", NULL);
	if (given > program->operands + program->operands_more)
		return misused(program, "too many arguments", NULL);
	for (int i = 0; i < given; i++) {
		cli->operand[i] = argv[optind + i];
		if (!*cli->operand[i])
			return misused(program,
				i ? "the second argument is empty" : "STORE is empty", NULL);
		cli_guard(cli->operand[i]);
	}
	return check_together(cli);
}

bool cli_parse(
	struct cli *cli, const struct cli_program *program, int argc, char **argv, int *ret_exit)
{
	*cli = (struct cli){.program = program, .step = CKPT_STEP_LATEST, .grace_s = GRACE_S};
	*ret_exit = CLI_USAGE;
	optind = 0; /* not 1: getopt may be inside a word of an earlier command line */
	opterr = 0;
	for (;;) {
		int index = -1;
		/* A program is one thread until it opens a store. */
		// NOLINTNEXTLINE(concurrency-mt-unsafe)
		int option = getopt_long(argc, argv, "hq", options, &index);
		if (option == -1)
			return parse_operands(cli, argc, argv);
		if (index >= 0 && abbreviated(&options[index], argv))
			return misused(
				program, "abbreviated option, write it out", options[index].name);
		if (!takes(program, option))
			return misused(program, "this command does not take the option",
				index >= 0 ? options[index].name : "q");
		if (option == 'h' || option == OPT_VERSION) {
			answer(program, option);
			*ret_exit = CLI_OK;
			return false;
		}
		if (!parse_option(cli, option))
			return false;
	}
}

int cli_exit_of(int code)
{
	switch (code) {
	case 0:
		return CLI_OK;
	case CKPT_EINCOMPLETE:
	case CKPT_EOTHERNODE:
		return CLI_INCOMPLETE;
	case CKPT_EINTEGRITY:
	case CKPT_EFORMAT:
	case CKPT_EQUARANTINED:
		return CLI_INTEGRITY;
	case CKPT_ENOSTORE:
	case CKPT_ENOSTEP:
		return CLI_NOT_FOUND;
	case CKPT_EINUSE:
	case CKPT_EFENCED:
	case -EBUSY:
		return CLI_IN_USE;
	case CKPT_EAUTH:
	case -EACCES:
	case -EPERM:
		return CLI_AUTH;
	case CKPT_ENETWORK:
	case -ETIMEDOUT:
		return CLI_NETWORK;
	case -ENOSPC:
	case -EDQUOT:
		return CLI_NO_SPACE;
	default:
		return CLI_FAILED;
	}
}

/* Damaged is worse than missing, and missing is worse than any other failure. */
int cli_worse(int a, int b)
{
	static const int order[] = {CLI_INTEGRITY, CLI_INCOMPLETE};

	if (a > CLI_SIGNAL || b > CLI_SIGNAL)
		return a > b ? a : b;
	for (int i = 0; i < 2; i++)
		if (a == order[i] || b == order[i])
			return order[i];
	return a ? a : b;
}

/* After a signal every failure is reported as the interruption. */
static const char *words(const char *message)
{
	return cli_interrupted() ? INTERRUPTED : message;
}

static int fail(const struct cli *cli, int exit_code, const char *about,
	const struct ckpt_error *error, const char *message)
{
	if (cli_interrupted())
		exit_code = CLI_SIGNAL + cli_interrupted();
	if (cli->json) {
		json_t *object = cli_object("error");
		(void)json_object_set_new(object, "error", cli_error_object(error));
		(void)json_object_set_new(object, "exit", json_integer(exit_code));
		cli_print_json(object);
	}
	(void)fprintf(stderr, "%s: ", cli->program->name);
	if (about) {
		cli_print_text(stderr, about);
		(void)fputs(": ", stderr);
	}
	cli_print_text(stderr, message);
	(void)fputc('\n', stderr);
	return exit_code;
}

int cli_fail_with(const struct cli *cli, int exit_code, const char *about)
{
	struct ckpt_error error = {.size = sizeof(error)};

	(void)ckpt_last_error_record(&error);
	return fail(cli, exit_code, about, &error, words(ckpt_last_error()));
}

int cli_fail_record(const struct cli *cli, int exit_code, const struct ckpt_error *error)
{
	return fail(cli, exit_code, NULL, error, words(error->message));
}

int cli_fail_interrupted(const struct cli *cli, const struct ckpt_error *known)
{
	struct ckpt_error own = {.size = sizeof(own),
		.code = -ECANCELED,
		.sys_errno = ECANCELED,
		.step = -1,
		.rank = -1,
		.offset = -1,
		.message = INTERRUPTED};

	return known ? fail(cli, CLI_FAILED, INTERRUPTED, known, known->message)
		     : fail(cli, CLI_FAILED, NULL, &own, own.message);
}

int cli_fail(const struct cli *cli, int code)
{
	return cli_fail_with(cli, cli_exit_of(code), NULL);
}

json_t *cli_object(const char *type)
{
	return json_pack("{s:i, s:s}", "schema", CLI_SCHEMA, "type", type);
}

static void set_text(json_t *object, const char *key, const char *text)
{
	json_t *string = json_string(text);

	/* A truncated name may not be valid UTF-8; then it is left out. */
	if (*text && string)
		(void)json_object_set(object, key, string);
	json_decref(string);
}

json_t *cli_error_object(const struct ckpt_error *error)
{
	json_t *object =
		json_pack("{s:i, s:s}", "code", error->code, "name", ckpt_strerror(error->code));

	set_text(object, "message", error->message);
	set_text(object, "tier", error->tier);
	set_text(object, "file", error->file);
	set_text(object, "tensor", error->tensor);
	if (error->step >= 0)
		(void)json_object_set_new(object, "step", json_integer(error->step));
	if (error->rank >= 0)
		(void)json_object_set_new(object, "rank", json_integer(error->rank));
	if (error->offset >= 0)
		(void)json_object_set_new(object, "offset", json_integer(error->offset));
	return object;
}

/* The errno of the first failed write to standard output. */
static int lost;

static void flush(void)
{
	errno = 0;
	if ((fflush(stdout) != 0 || ferror(stdout)) && !lost)
		lost = errno ? errno : EIO;
}

/* Without memory JSON is incomplete, so the output counts as lost. */
static void *get_memory(size_t size)
{
	void *memory = malloc(size);

	if (!memory && !lost)
		lost = ENOMEM;
	return memory;
}

void cli_begin(void)
{
	json_set_alloc_funcs(get_memory, free);
	/* Otherwise a file of the store could get the number of a closed stream, and output would go into it. */
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			(void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int cli_end(const char *name, int exit_code)
{
	flush();
	/* Some file systems report errors only at close. A stream that was closed from the start loses nothing. */
	if (fclose(stdout) != 0 && !lost)
		lost = errno;
	if (!lost)
		return exit_code;
	if (lost != EPIPE)
		(void)fprintf(
			stderr, "%s: cannot write the output: %s\n", name, ckpt_strerror(-lost));
	return exit_code ? exit_code : CLI_FAILED;
}

void cli_print_json(json_t *object)
{
	(void)json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
	(void)putchar('\n');
	flush();
	json_decref(object);
}

const char *cli_dtype(uint32_t dtype)
{
	static const char *const names[CKPT_DTYPE_END] = {"?", "BOOL", "U8", "I8", "U16", "I16",
		"U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2",
		"F8_E8M0", "C64", "C128", "C32", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4_X2"};

	return dtype < CKPT_DTYPE_END ? names[dtype] : "?";
}

const char *cli_bytes(uint64_t bytes, char out[32])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double value = (double)bytes;
	int unit = 0;

	while (value >= 1024 && unit < 5) {
		value /= 1024;
		unit++;
	}
	(void)snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return out;
}

void cli_print_text(FILE *to, const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		if (c < 0x20 || c == 0x7f)
			(void)fprintf(to, "\\x%02x", c);
		else
			(void)fputc(c, to);
	}
}
