/* SPDX-License-Identifier: Apache-2.0 */
#include "life.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/scratch.h"

void life_init(struct life *life, const char *root, uint64_t seed)
{
	workload_init(&life->workload, root);
	life->prng = (struct prng){.state = seed};
	life->shared = mmap(NULL, sizeof(*life->shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (life->shared == MAP_FAILED)
		workload_die("out of memory");
	life->shared->next_step = 1;
}

void life_free(struct life *life)
{
	(void)munmap(life->shared, sizeof(*life->shared));
	workload_free(&life->workload);
}

void life_pause(uint64_t us)
{
	struct timespec time = {
		.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

	(void)ppoll(NULL, 0, &time, NULL);
}

static bool one_in(struct life *life, unsigned n)
{
	return prng_below(&life->prng, n) == 0;
}

static void push(struct life_line *line, unsigned step, uint64_t generation)
{
	if (line->count == LIFE_STEPS)
		workload_die("too many steps");
	line->steps[line->count] = step;
	line->generations[line->count] = generation;
	line->let[line->count++] = false;
}

static void look(struct life *life, struct life_line *line)
{
	struct ckpt_catalog *catalog = NULL;

	line->count = 0;
	workload_must(ckpt_catalog_open(life->workload.engine, &catalog));
	for (size_t i = ckpt_catalog_count(catalog); i > 0; i--) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		workload_must(ckpt_catalog_step(catalog, i - 1, &info));
		if (info.state == CKPT_STEP_COMMITTED && info.in_lineage)
			push(line, (unsigned)info.step, info.generation);
	}
	ckpt_catalog_free(catalog);
}

/* What retention may take once `by` is committed, which is the last of the line; 0: at once. */
static void let_go(struct life *life, struct life_line *line, unsigned by)
{
	uint64_t keep = life->workload.opts.keep_last;

	for (unsigned i = 0; keep > 0 && i + keep < line->count; i++) {
		if (line->let[i])
			continue;
		workload_log(&life->workload, "let %u %u\n", line->steps[i], by);
		line->let[i] = true;
		life->shared->by[line->steps[i]] = by;
	}
}

/*
 * `step` is committed: later it may be gone itself, and what it let go may be gone all the same; so may what those
 * have let go, which may have been committed and were gone before anybody said so.
 */
static void confirm(struct life *life, unsigned step)
{
	for (unsigned i = step - 1; i > 0; i--) {
		if (life->shared->by[i] != step)
			continue;
		workload_log(&life->workload, "let %u 0\n", i);
		life->shared->by[i] = 0;
		confirm(life, i);
	}
}

static void finish(struct life *life, struct ckpt_save *save, unsigned step)
{
	workload_finish(&life->workload, save, step, step);
	confirm(life, step);
}

static void let_all(struct life *life, const struct life_line *line, unsigned from)
{
	for (unsigned i = from; i < line->count; i++)
		workload_log(&life->workload, "let %u 0\n", line->steps[i]);
}

/* Damages the newest step, for good. */
static void spoil(struct life *life)
{
	struct workload *d = &life->workload;
	struct life_line *line = &life->line;
	char dir[64];

	d->opts.flags = CKPT_ENGINE_READ_ONLY;
	if (ckpt_engine_open(d->store, &d->opts, &d->engine) < 0)
		return;
	look(life, line);
	workload_close(d);
	if (line->count < 2)
		return;
	unsigned step = line->steps[line->count - 1];
	(void)snprintf(dir, sizeof(dir), "g%06u/step-%010u",
		(unsigned)line->generations[line->count - 1], step);
	const char *shard = scratch_find(scratch_join(d->store, dir), ".safetensors");
	if (!shard)
		workload_die("step %u has no shard", step);
	workload_log(d, "bad %u\n", step);
	scratch_flip(shard, 50000);
	int fd = open(shard, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0 || close(fd) < 0)
		workload_die("%s cannot be synced", shard);
}

/* Goes on from the newest step, or now and then from an older one. */
static void go_on(struct life *life, struct life_line *line)
{
	struct workload *d = &life->workload;

	if (line->count == 0)
		return;
	unsigned at = line->count - 1;
	if (at > 0 && one_in(life, 6)) {
		at = (unsigned)prng_below(&life->prng, at);
		if (workload_restore(d, line->steps[at], true) != (int)line->steps[at])
			workload_die("step %u: %s", line->steps[at], ckpt_last_error());
	} else {
		int r = workload_restore(d, CKPT_STEP_LATEST, true);
		if (r == CKPT_EINTEGRITY && at > 0) {
			at--;
			r = workload_restore(d, CKPT_STEP_LATEST, true);
		}
		if (r != (int)line->steps[at])
			workload_die("the latest is %d, not %u: %s", r, line->steps[at],
				ckpt_last_error());
	}
	let_all(life, line, at + 1);
	line->count = at + 1;
	let_go(life, line, 0);
}

static unsigned next_step(struct life *life)
{
	if (life->shared->next_step == LIFE_STEPS)
		workload_die("too many steps");
	return life->shared->next_step++;
}

static void save_some(struct life *life, struct life_line *line, bool dies)
{
	struct workload *d = &life->workload;
	unsigned count = 1 + (unsigned)prng_below(&life->prng, 4);
	unsigned last = dies ? (unsigned)prng_below(&life->prng, count) : count;
	bool overlap = one_in(life, 2);
	struct ckpt_save *before = NULL;

	for (unsigned i = 0; i < count; i++) {
		unsigned step = next_step(life);
		push(line, step, 0);
		let_go(life, line, step);
		struct ckpt_save *save = workload_start(d, step, step);
		if (i == last) {
			life_pause(prng_below(&life->prng, 6000));
			(void)raise(SIGKILL);
		}
		if (before)
			finish(life, before, step - 1);
		before = save;
		if (overlap && i + 1 < count) {
			workload_must(ckpt_save_wait(save, CKPT_LEVEL_STAGED, WORKLOAD_TIMEOUT_MS));
			continue;
		}
		finish(life, save, step);
		before = NULL;
	}
}

static void remove_one(struct life *life, struct life_line *line)
{
	struct workload *d = &life->workload;

	look(life, line);
	if (line->count < 2)
		return;
	unsigned step = line->steps[prng_below(&life->prng, line->count - 1)];
	workload_log(d, "let %u 0\n", step);
	int r = ckpt_catalog_remove(d->engine, step);
	/* Retention may have been faster. */
	if (r < 0 && r != CKPT_ENOSTEP && r != -EBUSY)
		workload_check(r, "ckpt_catalog_remove()", __FILE__, __LINE__);
	if (r == 0)
		workload_log(d, "gone %u\n", step);
}

void life_phase(struct life *life, bool may_die)
{
	static const uint64_t keeps[] = {0, 1, 2, 3};
	struct workload *d = &life->workload;
	struct life_line *line = &life->line;
	bool dies = may_die && one_in(life, 3);

	if (one_in(life, 6))
		spoil(life);
	d->opts.keep_last = keeps[prng_below(&life->prng, 4)];
	d->opts.pool_bytes = one_in(life, 2) ? 1 : 4 << 20;
	bool anew = life->shared->next_step > 1 && one_in(life, 12);
	workload_open(d, anew ? CKPT_ENGINE_NEW_START : 0);
	look(life, line);
	/* Before any of them is let go: what they let go may have gone because of them. */
	for (unsigned i = 0; i < line->count; i++)
		confirm(life, line->steps[i]);
	if (anew) {
		let_all(life, line, 0);
		line->count = 0;
	} else {
		go_on(life, line);
	}
	save_some(life, line, dies);
	if (one_in(life, 3))
		remove_one(life, line);
	workload_close(d);
}

void life_phases(struct life *life, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		uint64_t seed = prng_next(&life->prng);
		int status = -1;
		pid_t parent = getpid();
		pid_t child = fork();
		if (child == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			life->prng.state = seed;
			life_phase(life, true);
			_exit(0);
		}
		if (child < 0 || waitpid(child, &status, 0) != child)
			workload_die("fork failed");
		bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		if (status != 0 && !killed)
			workload_die("process %u of the life failed", i + 1);
	}
}
