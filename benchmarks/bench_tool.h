/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks written in C share: options, the clock, files, the page cache, and how they fail. All that
 * fails here is said on standard error and ends the program with 1.
 */
#ifndef CKPT_BENCHMARKS_BENCH_TOOL_H
#define CKPT_BENCHMARKS_BENCH_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct ckpt_error;

/* Every program has --dir DIR, --quick and --json FILE; these are given to bench_parse() with what they are now. */
struct bench_common {
	const char *dir;
	const char *json; /* NULL: none is written */
};

/* One of a program's own. One of `number`, `text` and `flag` is set. */
struct bench_option {
	const char *name; /* without the dashes; NULL: the end of the table */
	const char *word; /* for the usage; NULL: not shown there */
	unsigned *number;
	unsigned least;
	unsigned most;
	unsigned quick; /* what --quick makes of it; 0: nothing */
	const char **text;
	bool *flag;
};

/* What comes later wins, --quick included. Anything else than that is answered with the usage, and exits with 2. */
void bench_parse(
	int argc, char **argv, const struct bench_option *options, struct bench_common *common);
__attribute__((noreturn)) void bench_usage(const struct bench_option *options);

/* CLOCK_MONOTONIC, which all processes of a machine share. */
uint64_t bench_now_ns(void);
double bench_ms_since(uint64_t ns);
void bench_sleep_ms(unsigned ms);

/* A code of the library. `err` may be NULL: why is what the thread's last error says. */
void bench_must(int code, const struct ckpt_error *err, const char *what);
/* A call of the system, whose errno says why. */
void bench_must_os(bool good, const char *what);

/* Of doubles, ascending. */
void bench_sort(double *values, unsigned count);

/* A new directory in `parent`, into `out`. */
void bench_scratch(const char *parent, const char *name, char *out, size_t size);
void bench_scratch_remove(const char *dir);
void bench_write_file(const char *path, const void *data, size_t length);
/* All of the file system that holds `dir` is durable. One by one, each file would cost a flush of the disk. */
void bench_sync(const char *dir);
/* The pages of a file that is durable go, as far as this machine is asked. False: there is no such file. */
bool bench_uncache(const char *path);
/* What this process has had read from disks so far. */
uint64_t bench_disk_bytes(void);

/* NULL if `path` is; the other takes that. */
FILE *bench_json_open(const char *path);
void bench_json_close(FILE *out);

/* This program once more, in a process of its own, so that its memory is its own, too: it writes its result. */
void bench_apart(char *const argv[], void *result, size_t size);
/* What such a process ends with. */
int bench_give(const void *result, size_t size);

#endif
