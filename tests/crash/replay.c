/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: replay LOG BASE BYTES FS DIR SEED IMAGES VERIFY [AT]
 *
 * Makes IMAGES crash images of a recorded life (recorder.c) on the file system BASE, mounts each at
 * DIR/disk, runs VERIFY (ckpt-verify), and looks whether what must hold holds (kill/oracle.c): every
 * step that was acknowledged is restored, bit for bit, nothing is half visible, and the work goes on.
 * AT: that image alone, as it was printed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "crash_disk.h"
#include "ground.h"
#include "kill/workload.h"
#include "lib/hang.h"

struct cut {
	size_t at;
	bool subset;
	uint64_t seed;
};

struct replay {
	struct wlog log;
	struct crash_disk disk;
	struct ground ground;
	char *verify;
	char log_path[300];
	char store[300];
	struct cut *cuts;
	size_t count;
	bool any_bad; /* in the log as it was at the cut */
	unsigned prefixes;
	unsigned acked; /* images of moments at which something was acknowledged */
	unsigned failed;
	unsigned unmountable;
};

static const struct wlog_mark *mark_of(const struct replay *r, size_t i)
{
	const struct wlog_entry *e = &r->log.entries[i];
	const struct wlog_mark *mark = (const void *)e->data;

	if (e->length != sizeof(*mark) || e->offset < r->disk.bytes || mark->magic != WLOG_MARK)
		return NULL;
	return mark;
}

static int by_place(const void *a, const void *b)
{
	const struct cut *x = a;
	const struct cut *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->seed < y->seed ? -1 : x->seed > y->seed;
}

/* A cut right behind a flush, and behind what was acknowledged because of it. */
static size_t behind(const struct replay *r, size_t at)
{
	while (at + 1 < r->log.count && mark_of(r, at + 1))
		at++;
	return at;
}

/* Half of them at flushes, no flush twice; the others anywhere from the first mark on. */
static void pick(struct replay *r, uint64_t seed, size_t count)
{
	struct prng prng = {.state = seed};
	size_t *flushes = calloc(r->log.count + 1, sizeof(*flushes));
	size_t found = 0;
	size_t first = 0;

	r->cuts = calloc(count + 1, sizeof(*r->cuts));
	if (!flushes || !r->cuts)
		workload_die("out of memory");
	while (first < r->log.count && !mark_of(r, first))
		first++;
	if (first == r->log.count)
		workload_die("nothing was recorded");
	for (size_t i = first; i < r->log.count; i++)
		if (r->log.entries[i].flags & WLOG_FLUSH)
			flushes[found++] = i;
	for (; r->count < count; r->count++) {
		struct cut *cut = &r->cuts[r->count];
		cut->seed = prng_next(&prng);
		cut->subset = r->count >= count / 2 || found == 0;
		cut->at = first + prng_below(&prng, r->log.count - first);
		if (!cut->subset) {
			size_t k = prng_below(&prng, found);
			cut->at = behind(r, flushes[k]);
			flushes[k] = flushes[--found];
		}
	}
	free(flushes);
	qsort(r->cuts, r->count, sizeof(*r->cuts), by_place);
}

/* What the processes had written down when the power went. */
static void write_log(struct replay *r, size_t at)
{
	FILE *f = fopen(r->log_path, "we");

	if (!f)
		workload_die("%s: %s", r->log_path, strerror(errno));
	bool acked = false;
	r->any_bad = false;
	for (size_t i = 0; i <= at; i++) {
		const struct wlog_mark *mark = mark_of(r, i);
		if (!mark)
			continue;
		(void)fputs(mark->line, f);
		r->any_bad |= strncmp(mark->line, "bad ", 4) == 0;
		acked |= strncmp(mark->line, "ack ", 4) == 0;
	}
	r->acked += acked;
	(void)fclose(f);
}

/* ckpt-verify finds nothing but what was damaged on purpose. */
static bool verified(struct replay *r)
{
	int status = ground_run((char *[]){r->verify, "-q", r->store, NULL}, true);
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

	if (code == 0 || code == 10 || (code == 4 && r->any_bad))
		return true;
	(void)fprintf(stderr, "ckpt-verify ends with status %d\n", code);
	return false;
}

static bool held(const struct replay *r)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		struct workload workload;
		hang_watch();
		workload_init(&workload, r->ground.dir);
		workload_aftermath(&workload);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		workload_die("fork failed");
	if (WIFSIGNALED(status))
		(void)fprintf(stderr, "the aftermath ended with signal %d\n", WTERMSIG(status));
	return status == 0;
}

static void look_at_cut(struct replay *r, struct cut *cut)
{
	struct prng prng = {.state = cut->seed};

	crash_disk_cut(&r->disk, cut->at, cut->subset, &prng);
	write_log(r, cut->at);
	r->prefixes += !cut->subset;
	int code = ground_mount(&r->ground);
	if (code < 0) {
		r->unmountable++;
		(void)printf("image %zu:%d:%llu is not mounted: %s\n", cut->at, cut->subset,
			(unsigned long long)cut->seed, strerror(-code));
		return;
	}
	bool good = verified(r);
	good = held(r) && good;
	ground_unmount(&r->ground);
	if (good)
		return;
	r->failed++;
	(void)printf("image %zu:%d:%llu does not hold\n", cut->at, cut->subset,
		(unsigned long long)cut->seed);
}

static void take_cut(struct replay *r, const char *text)
{
	unsigned long long at;
	unsigned subset;
	unsigned long long seed;

	if (sscanf(text, "%llu:%u:%llu", &at, &subset, &seed) != 3) /* NOLINT(cert-err34-c) */
		workload_die("%s is no image", text);
	r->cuts = calloc(1, sizeof(*r->cuts));
	if (!r->cuts || at >= r->log.count)
		workload_die("%s is no image", text);
	r->cuts[r->count++] = (struct cut){.at = at, .subset = subset, .seed = seed};
}

int main(int argc, char **argv)
{
	static struct replay r;
	char dir[280];

	if (argc != 9 && argc != 10)
		workload_die("usage: replay LOG BASE BYTES FS DIR SEED IMAGES VERIFY [AT]");
	ground_bind();
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	wlog_open(&r.log, argv[1]);
	crash_disk_open(&r.disk, &r.log, argv[2], strtoull(argv[3], NULL, 0));
	(void)snprintf(dir, sizeof(dir), "%s/disk", argv[5]);
	(void)snprintf(r.store, sizeof(r.store), "%s/store", dir);
	(void)snprintf(r.log_path, sizeof(r.log_path), "%s/log", argv[5]);
	if (setenv("CKPT_TEST_LOG", r.log_path, 1) < 0)
		workload_die("out of memory");
	r.verify = argv[8];
	if (argc == 10)
		take_cut(&r, argv[9]);
	else
		pick(&r, strtoull(argv[6], NULL, 0), strtoul(argv[7], NULL, 0));
	ground_open(&r.ground, r.disk.fd, argv[4], dir);
	for (size_t i = 0; i < r.count; i++)
		look_at_cut(&r, &r.cuts[i]);
	ground_close(&r.ground);
	crash_disk_close(&r.disk);
	wlog_close(&r.log);
	free(r.cuts);
	(void)printf("counts images=%zu prefixes=%u acked=%u unmountable=%u failed=%u\n", r.count,
		r.prefixes, r.acked, r.unmountable, r.failed);
	return r.failed || r.unmountable ? 1 : 0;
}
