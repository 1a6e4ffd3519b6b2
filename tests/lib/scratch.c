/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/hang.h"

static void must(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(99);
}

char *scratch_make(void)
{
	char template[] = "scratch-XXXXXX";
	must(mkdtemp(template) != NULL, "mkdtemp");
	char *path = realpath(template, NULL);
	must(path != NULL, "realpath");
	return path;
}

char *scratch_make_in_memory(void)
{
	const char *memory = getenv("CKPT_TEST_SHM");
	char template[256];

	(void)snprintf(
		template, sizeof(template), "%s/ckpt-scratch-XXXXXX", memory ? memory : "/dev/shm");
	if (!mkdtemp(template))
		return scratch_make();
	char *path = strdup(template);
	must(path != NULL, "strdup");
	return path;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void scratch_remove(char *path)
{
	(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(path);
}

/* Of the copy that is being made. */
static struct {
	const char *from;
	const char *to;
} copied;

static int copy_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	char to[1300];
	char buffer[65536];
	ssize_t n;

	(void)st;
	(void)ftw;
	(void)snprintf(to, sizeof(to), "%s%s", copied.to, path + strlen(copied.from));
	if (type == FTW_D)
		return mkdir(to, 0755);
	int in = open(path, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	while (in >= 0 && out >= 0 && (n = read(in, buffer, sizeof(buffer))) > 0)
		if (write(out, buffer, (size_t)n) != n)
			return -1;
	return in < 0 || out < 0 || close(in) < 0 || close(out) < 0 ? -1 : 0;
}

bool scratch_copy(const char *from, const char *to)
{
	copied.from = from;
	copied.to = to;
	return nftw(from, copy_one, 16, FTW_PHYS) == 0;
}

void scratch_put(const char *dir, const char *path, const char *text)
{
	char full[4096];
	FILE *file;

	(void)snprintf(full, sizeof(full), "%s%s", dir, path);
	for (char *slash = strchr(full + strlen(dir) + 1, '/'); slash;
		slash = strchr(slash + 1, '/')) {
		*slash = 0;
		must(mkdir(full, 0777) == 0 || errno == EEXIST, full);
		*slash = '/';
	}
	file = fopen(full, "w");
	must(file != NULL, full);
	must(fputs(text, file) >= 0 && fclose(file) == 0, full);
}

const char *scratch_join(const char *a, const char *b)
{
	static char buffers[8][1024];
	static unsigned next;
	char *out = buffers[next++ % 8];

	(void)snprintf(out, sizeof(buffers[0]), "%s/%s", a, b);
	return out;
}

static const char *wanted;
static char found[1024];
static size_t counted;

static int look_at(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	size_t length = strlen(path);

	(void)st;
	(void)type;
	counted += ftw->level > 0;
	if (!wanted || length < strlen(wanted) || strcmp(path + length - strlen(wanted), wanted))
		return 0;
	(void)snprintf(found, sizeof(found), "%s", path);
	return 1;
}

const char *scratch_find(const char *dir, const char *suffix)
{
	wanted = suffix;
	return nftw(dir, look_at, 16, FTW_PHYS) == 1 ? found : NULL;
}

size_t scratch_count(const char *dir)
{
	wanted = NULL;
	counted = 0;
	(void)nftw(dir, look_at, 16, FTW_PHYS);
	return counted;
}

void scratch_flip(const char *path, long offset)
{
	FILE *f = fopen(path, "r+b");
	must(f != NULL, path);
	must(fseek(f, offset, SEEK_SET) == 0, "fseek");
	int byte = fgetc(f);
	must(byte != EOF, "fgetc");
	must(fseek(f, offset, SEEK_SET) == 0, "fseek");
	must(fputc(byte ^ 0x10, f) != EOF, "fputc");
	must(fclose(f) == 0, "fclose");
}

static size_t entries(const char *dir)
{
	size_t n = 0;
	DIR *d = opendir(dir);

	must(d != NULL, dir);
	while (readdir(d))
		n++;
	(void)closedir(d);
	return n;
}

size_t scratch_descriptors(void)
{
	return entries("/proc/self/fd");
}

/* The kernel's own workers for our rings stand among our tasks; they come and go as it likes. */
static bool kernel_worker(const char *task)
{
	char path[64], name[32] = "";

	(void)snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", task);
	FILE *f = fopen(path, "r");
	if (!f)
		return false;
	bool named = fgets(name, sizeof(name), f) && strncmp(name, "iou-", 4) == 0;
	(void)fclose(f);
	return named;
}

size_t scratch_threads(void)
{
	size_t n = 0;
	DIR *d = opendir("/proc/self/task");

	must(d != NULL, "/proc/self/task");
	for (const struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.' && !kernel_worker(e->d_name);
	(void)closedir(d);
	return n;
}

void scratch_threads_settle(size_t threads)
{
	await(scratch_threads() <= threads);
}

void scratch_descriptors_settle(size_t descriptors)
{
	await(scratch_descriptors() == descriptors);
}
