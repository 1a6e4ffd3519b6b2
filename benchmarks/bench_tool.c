/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/error.h>

#define OPTIONS_MAX 16
#define DIR_        0x100
#define QUICK       0x101
#define JSON        0x102

/* Options. */

void bench_usage(const struct bench_option *options)
{
	fprintf(stderr, "usage: %s [--dir DIR]", program_invocation_short_name);
	for (; options->name; options++)
		if (options->word)
			fprintf(stderr, " [--%s %s]", options->name, options->word);
	fprintf(stderr, " [--quick] [--json FILE]\n");
	exit(2);
}

static bool take_number(const struct bench_option *o, const char *text)
{
	char *end;

	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value < o->least || value > o->most)
		return false;
	*o->number = (unsigned)value;
	return true;
}

static bool take(const struct bench_option *o, const char *text)
{
	if (o->number)
		return take_number(o, text);
	if (o->text)
		*o->text = text;
	else
		*o->flag = true;
	return true;
}

static void be_quick(const struct bench_option *options)
{
	for (; options->name; options++)
		if (options->quick)
			*options->number = options->quick;
}

void bench_parse(
	int argc, char **argv, const struct bench_option *options, struct bench_common *common)
{
	struct option known[OPTIONS_MAX + 4] = {{"dir", required_argument, NULL, DIR_},
		{"quick", no_argument, NULL, QUICK}, {"json", required_argument, NULL, JSON}};
	bool good = true;

	for (int i = 0; i < OPTIONS_MAX && options[i].name; i++)
		known[i + 3] = (struct option){.name = options[i].name,
			.has_arg = options[i].flag ? no_argument : required_argument,
			.val = i};
	for (int c; good && (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		if (c == DIR_)
			common->dir = optarg;
		else if (c == QUICK)
			be_quick(options);
		else if (c == JSON)
			common->json = optarg;
		else
			good = c != '?' && take(&options[c], optarg);
	}
	if (!good || optind != argc)
		bench_usage(options);
}

/* Time. */

uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

double bench_ms_since(uint64_t ns)
{
	return (double)(bench_now_ns() - ns) / 1e6;
}

void bench_sleep_ms(unsigned ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* Failures. */

/* Not exit(): an engine's threads may be running, and what a process that was forked has is its parent's. */
__attribute__((noreturn)) static void end(void)
{
	(void)fflush(stdout);
	_exit(1);
}

void bench_must(int code, const struct ckpt_error *err, const char *what)
{
	if (code >= 0)
		return;
	const char *why = err && err->code ? err->message : ckpt_strerror(code);
	const char *more = err ? "" : ckpt_last_error();
	fprintf(stderr, "%s: %s: %s%s%s\n", program_invocation_short_name, what, why,
		*more ? ": " : "", more);
	end();
}

void bench_must_os(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	end();
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

void bench_sort(double *values, unsigned count)
{
	qsort(values, count, sizeof(*values), by_size);
}

/* Files. */

void bench_scratch(const char *parent, const char *name, char *out, size_t size)
{
	int n = snprintf(out, size, "%s/%s.XXXXXX", parent, name);

	errno = ENAMETOOLONG;
	bench_must_os(n > 0 && (size_t)n < size && mkdtemp(out), parent);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
	(void)info;
	(void)kind;
	(void)where;
	return remove(path);
}

void bench_scratch_remove(const char *dir)
{
	bench_must_os(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, dir);
}

void bench_write_file(const char *path, const void *data, size_t length)
{
	FILE *out = fopen(path, "we");

	bench_must_os(out, path);
	bench_must_os(fwrite(data, 1, length, out) == length, path);
	bench_must_os(fclose(out) == 0, path);
}

void bench_sync(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	bench_must_os(fd >= 0 && syncfs(fd) == 0, dir);
	close(fd);
}

bool bench_uncache(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	return true;
}

uint64_t bench_disk_bytes(void)
{
	char line[64];
	unsigned long long bytes = 0;
	FILE *io = fopen("/proc/self/io", "re");

	while (io && fgets(line, sizeof(line), io))
		(void)sscanf(line, "read_bytes: %llu", &bytes);
	if (io)
		(void)fclose(io);
	return bytes;
}

FILE *bench_json_open(const char *path)
{
	FILE *out = path ? fopen(path, "we") : NULL;

	bench_must_os(!path || out, path);
	return out;
}

void bench_json_close(FILE *out)
{
	bench_must_os(!out || fclose(out) == 0, "--json");
}

/* A run of its own. */

void bench_apart(char *const argv[], void *result, size_t size)
{
	int status = 0;
	int ends[2];

	bench_must_os(pipe2(ends, O_CLOEXEC) == 0, "pipe");
	pid_t child = fork();
	bench_must_os(child >= 0, "fork");
	if (child == 0) {
		(void)dup2(ends[1], STDOUT_FILENO);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	close(ends[1]);
	bool whole = read(ends[0], result, size) == (ssize_t)size;
	close(ends[0]);
	bench_must_os(waitpid(child, &status, 0) == child, "wait");
	bench_must(whole && status == 0 ? 0 : -EIO, NULL, "a run");
}

int bench_give(const void *result, size_t size)
{
	return write(STDOUT_FILENO, result, size) != (ssize_t)size;
}
