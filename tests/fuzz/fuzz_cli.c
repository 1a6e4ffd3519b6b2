/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of ckpt, ckpt-verify and ckpt-restore, in a directory with a good store and a damaged
 * one. The first byte chooses the program; its arguments follow, with a NUL between them. They end with
 * a documented status and words for it, print JSON where it was asked for, and write to DEST only.
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>
#include "base/digest.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define ARGS   12
#define BYTES  4096
#define STORE  "s"
#define BROKEN "b"

int ckpt_main(int argc, char **argv);
int verify_main(int argc, char **argv);
int restore_main(int argc, char **argv);

static const struct {
	int (*main)(int argc, char **argv);
	const char *name;
} programs[] = {{ckpt_main, "ckpt"}, {verify_main, "ckpt-verify"}, {restore_main, "ckpt-restore"}};
#define PROGRAMS (sizeof(programs) / sizeof(programs[0]))

/* What a command line is made of. */
static const char *const words[] = {"ls", "show", "verify", "restore", "help", STORE, BROKEN, "d",
	"d/e", "none", "", "--", "-", "-q", "-h", "-qh", "--quiet", "--help", "--version", "--json",
	"--jso", "--json=1", "--step", "--step=10", "--step=20", "--step=latest", "--step=latest~1",
	"--step=latest~1000001", "--step=9223372036854775807", "--step=18446744073709551615",
	"--step=-1", "--step=", "--step= 1", "10", "20", "latest", "latest~1", "latest~",
	"--progress", "--progress=always", "--progress=never", "--progress=auto", "s3://bucket/run",
	"\xff\x1b[2J", "--quick", "--stored"};
#define WORDS (sizeof(words) / sizeof(words[0]))

static char *home;
static int elsewhere = -1;        /* where libFuzzer keeps its files */
static struct ckpt_digest stores; /* of everything in both */

static void digest_tree(const char *path, struct ckpt_digest *digest)
{
	struct dirent **names = NULL;
	int count = scandir(path, &names, NULL, alphasort);

	for (int i = 0; i < count; i++) {
		const char *name = names[i]->d_name;
		char below[512];
		struct stat st;

		(void)snprintf(below, sizeof(below), "%s/%s", path, name);
		if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && lstat(below, &st) == 0) {
			struct {
				struct ckpt_digest before, name;
				int64_t of[4];
			} one = {.before = *digest, .name = ckpt_digest_of(below, strlen(below))};
			one.of[0] = st.st_mode;
			one.of[1] = S_ISDIR(st.st_mode) ? 0 : st.st_size;
			one.of[2] = st.st_mtim.tv_sec;
			one.of[3] = st.st_mtim.tv_nsec;
			*digest = ckpt_digest_of(&one, sizeof(one));
			if (S_ISDIR(st.st_mode))
				digest_tree(below, digest);
		}
		free(names[i]);
	}
	free(names);
}

static struct ckpt_digest digest_stores(void)
{
	struct ckpt_digest digest = {0};

	digest_tree(STORE, &digest);
	digest_tree(BROKEN, &digest);
	return digest;
}

static void fixture(const char *dir, bool damaged)
{
	struct fixture_step step = fixture_one(dir, fixture_floats(100));

	FUZZ_CHECK(mkdir(dir, 0777) == 0);
	step.meta = "{\"lr\":0.1}";
	fixture_begin(dir);
	for (step.step = 10; step.step <= 20; step.step += 10)
		fixture_commit(&step);
	step.step = 20;
	if (damaged)
		scratch_flip(fixture_shard(&step, 0), 300);
}

static void prepare(void)
{
	fixture(STORE, false);
	fixture(BROKEN, true);
	stores = digest_stores();
}

static void leave(void)
{
	scratch_remove(home);
}

static void arrive(void)
{
	home = scratch_make_in_memory();
	elsewhere = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	FUZZ_CHECK(elsewhere >= 0 && chdir(home) == 0);
	(void)atexit(leave);
	prepare();
}

/* Cut into arguments; false: it would leave this directory, which a user may do and a test may not. */
static bool cut(char *text, size_t size, int *ret_argc, char **argv)
{
	int argc = 1;

	text[size] = 0;
	for (size_t at = 0; at < size && argc < ARGS; at += strlen(text + at) + 1) {
		if (text[at] == '/' || strstr(text + at, ".."))
			return false;
		argv[argc++] = text + at;
	}
	argv[argc] = NULL;
	*ret_argc = argc;
	return true;
}

static void remove_tree(const char *path)
{
	struct dirent **names = NULL;
	int count = scandir(path, &names, NULL, alphasort);

	for (int i = 0; i < count; i++) {
		char below[512];
		(void)snprintf(below, sizeof(below), "%s/%s", path, names[i]->d_name);
		if (strcmp(names[i]->d_name, ".") != 0 && strcmp(names[i]->d_name, "..") != 0)
			remove_tree(below);
		free(names[i]);
	}
	free(names);
	(void)remove(path);
}

/* Whether an argument is this name, or a path that begins with it. */
static bool is_asked(const char *name, int argc, char **argv)
{
	size_t length = strlen(name);

	for (int i = 1; i < argc; i++) {
		const char *path = argv[i];
		while (strncmp(path, "./", 2) == 0)
			path += strspn(path + 1, "/") + 1;
		if (strncmp(path, name, length) == 0 && (path[length] == 0 || path[length] == '/'))
			return true;
	}
	return false;
}

/* A DEST in one of the stores, or both of them on one command line: then they may change. */
static bool may_change(int argc, char **argv)
{
	int named = 0;

	for (int i = 1; i < argc; i++) {
		char first[] = {argv[i][strspn(argv[i], "./")], 0};
		bool is_one =
			(*first == *STORE || *first == *BROKEN) && is_asked(first, 2, argv + i - 1);
		named += is_one + (is_one && strchr(argv[i], '/'));
	}
	return named >= 2;
}

/*
 * Nothing is there that was not, but for what was named; that goes. `argv` is as it was typed: getopt
 * changes the order.
 */
static void check_files(bool restores, int argc, char **argv)
{
	DIR *dir = opendir(".");
	struct dirent *entry;

	FUZZ_CHECK(dir);
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, STORE) == 0 ||
			strcmp(name, BROKEN) == 0)
			continue;
		FUZZ_CHECK(restores && is_asked(name, argc, argv));
		remove_tree(name);
	}
	(void)closedir(dir);
	struct ckpt_digest now = digest_stores();
	if (ckpt_digest_equal(&now, &stores))
		return;
	FUZZ_CHECK(restores && may_change(argc, argv));
	remove_tree(STORE);
	remove_tree(BROKEN);
	prepare();
}

static bool is_documented(int status)
{
	static const int all[] = {0, 1, 2, 3, 4, 10, 11, 12, 14};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i] == status)
			return true;
	return false;
}

static void check_output(int status, const char *out, size_t out_length, const char *err, bool json)
{
	FUZZ_CHECK(is_documented(status));
	if (status != 0)
		FUZZ_CHECK(*err || out_length > 0);
	if (status == 2)
		FUZZ_CHECK(out_length == 0 && strstr(err, "usage: "));
	/* Nothing that a terminal would take for a command, whatever the arguments hold. */
	if (!json || status == 2)
		return;
	for (const char *line = out; *line;) {
		size_t length = strcspn(line, "\n");
		json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
		FUZZ_CHECK(json_is_object(object) && json_object_get(object, "schema"));
		json_decref(object);
		FUZZ_CHECK(line[length] == '\n');
		line += length + 1;
	}
}

static int run(unsigned program, int argc, char **argv, bool json)
{
	FILE *old_out = stdout;
	FILE *old_err = stderr;
	char *out = NULL;
	char *err = NULL;
	size_t out_length = 0;
	size_t err_length = 0;
	static char *nothing[] = {(char *)"", NULL};

	/* What is left of the last command line goes. */
	optind = 0;
	(void)getopt(1, nothing, "");
	stdout = open_memstream(&out, &out_length);
	stderr = open_memstream(&err, &err_length);
	FUZZ_CHECK(stdout && stderr);
	/* Closes the stream, as a program does that ends. */
	int status = programs[program].main(argc, argv);
	(void)fclose(stderr);
	stdout = old_out;
	stderr = old_err;
	check_output(status, out, out_length, err, json);
	free(out);
	free(err);
	return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[BYTES + 1];
	char copy[BYTES + 1];
	char *argv[ARGS + 2] = {NULL};
	char *before[ARGS + 2] = {NULL};
	int argc;
	bool json = false;

	if (size == 0 || size > BYTES)
		return -1;
	unsigned program = data[0] % PROGRAMS;
	memcpy(text, data + 1, size - 1);
	memcpy(copy, data + 1, size - 1);
	if (!cut(text, size - 1, &argc, argv) || !cut(copy, size - 1, &argc, before))
		return -1;
	argv[0] = before[0] = (char *)programs[program].name;
	/* After "--" it is a name. A --help or --version before it is answered in words. */
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
		json = json || strcmp(argv[i], "--json") == 0;
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0 ||
			(argv[i][0] == '-' && argv[i][1] != '-' && strchr(argv[i], 'h')) ||
			strcmp(argv[i], "help") == 0) {
			json = false;
			break;
		}
		/* What is a value is no option. */
		if (strcmp(argv[i], "--step") == 0 || strcmp(argv[i], "--progress") == 0)
			i++;
	}
	if (!home)
		arrive();
	FUZZ_CHECK(chdir(home) == 0);
	(void)run(program, argc, argv, json);
	check_files(program == 2 || (program == 0 && argc > 1 && strcmp(before[1], "restore") == 0),
		argc, before);
	FUZZ_CHECK(fchdir(elsewhere) == 0);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};
	char *args[ARGS + 2];
	char text[BYTES + 1];
	char grown[BYTES];
	int argc;

	if (size == 0 || size > BYTES)
		return LLVMFuzzerMutate(data, size, max);
	memcpy(text, data + 1, size - 1);
	if (!cut(text, size - 1, &argc, args))
		argc = 1;
	uint64_t what = prng_below(&prng, 6);
	int at = 1 + (int)prng_below(&prng, (uint64_t)argc);
	if (what == 0)
		data[0] = (uint8_t)prng_below(&prng, PROGRAMS);
	if (what <= 2 && argc < ARGS) {
		memmove(&args[at + 1], &args[at], (size_t)(argc - at) * sizeof(*args));
		args[at] = (char *)words[prng_below(&prng, WORDS)];
		argc++;
	} else if (what == 3 && argc > 1 && at < argc) {
		memmove(&args[at], &args[at + 1], (size_t)(argc - at - 1) * sizeof(*args));
		argc--;
	} else if (what == 4 && at < argc) {
		args[at] = (char *)words[prng_below(&prng, WORDS)];
	} else if (at < argc) {
		size_t length = ckpt_min_u64(strlen(args[at]), sizeof(grown) - 1);
		memcpy(grown, args[at], length);
		length = LLVMFuzzerMutate(
			(uint8_t *)grown, length, ckpt_min_u64(64, sizeof(grown) - 1));
		grown[length] = 0;
		args[at] = grown;
	}
	size_t used = 1;
	for (int i = 1; i < argc; i++) {
		size_t length = strlen(args[i]) + 1;
		if (used + length > max || used + length > BYTES)
			break;
		memcpy(data + used, args[i], length);
		used += length;
	}
	return used;
}
