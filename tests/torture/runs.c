/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/runs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/scratch.h"
#include "torture/gpus.h"
#include "torture/nodes.h"
#include "torture/remotes.h"

#ifdef TORTURE_LEAKS
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_do_recoverable_leak_check() 0
#endif

#define SAVE_TIMEOUT_MS (HANG_LIMIT_MS / 2)

static char *root;
static char work[600];
static char said[600];
static char template[600];

void runs_begin(void)
{
	root = scratch_make_in_memory();
	gpus_make_machine(root);
	runs_be(0);
}

void runs_be(unsigned worker)
{
	torture = &torture_all->runs[worker];
	(void)snprintf(work, sizeof(work), "%s/work%u", root, worker);
	(void)snprintf(said, sizeof(said), "%s/said%u", root, worker);
}

void runs_end(void)
{
	scratch_remove(root);
}

/* The status of `child`, as of wait(); -1: it ran too long and was killed. */
static int wait_for(pid_t child)
{
	int status = 0;
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN};

	bool late = end.fd >= 0 && poll(&end, 1, TORTURE_DEADLINE) == 0;
	if (late) {
		hang_say("the end of a run", __FILE__, __LINE__);
		(void)kill(child, SIGKILL);
	}
	if (end.fd >= 0)
		(void)close(end.fd);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		continue;
	return late ? -1 : status;
}

static void redirect(void)
{
	int fd = open(said, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

	if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
		_exit(125);
	(void)close(fd);
}

static void set_options(struct workload *d, const struct trial *trial)
{
	d->opts.io = trial->threads ? CKPT_IO_THREADS : CKPT_IO_AUTO;
	d->opts.save_timeout_ms = SAVE_TIMEOUT_MS;
	if (trial->block)
		d->opts.block_bytes = trial->block;
	if (trial->pool)
		d->opts.pool_bytes = trial->pool;
}

static void prepare(unsigned scenario)
{
	struct workload d;

	torture_off();
	workload_init(&d, template);
	d.opts.io = CKPT_IO_THREADS;
	torture_trials[scenario].prepare(&d);
}

void runs_prepare(unsigned scenario)
{
	(void)snprintf(template, sizeof(template), "%s/%s", root, torture_trials[scenario].name);
	if (mkdir(template, 0755) < 0 && errno != EEXIST)
		workload_die("%s: %s", template, strerror(errno));
	(void)unlink(said);
	torture->scenario = scenario;
	pid_t child = fork();
	if (child == 0) {
		redirect();
		prepare(scenario);
		_exit(0);
	}
	if (wait_for(child) != 0)
		workload_die("%s is not prepared", torture_trials[scenario].name);
}

static void begin_anew(unsigned scenario)
{
	(void)snprintf(template, sizeof(template), "%s/%s", root, torture_trials[scenario].name);
	scratch_remove(strdup(work));
	(void)unlink(said);
	if (!scratch_copy(template, work))
		workload_die("cannot copy %s: %s", template, strerror(errno));
}

static void run_trial(unsigned scenario)
{
	const struct trial *trial = &torture_trials[scenario];
	struct workload d;

	redirect();
	workload_init(&d, work);
	set_options(&d, trial);
	size_t fds = scratch_descriptors();
	size_t threads = scratch_threads();
	torture_alloc_begin();
	trial->run(&d);
	if (atomic_load(&torture->abandoned) || atomic_load(&torture->silent))
		_exit(0);
	scratch_threads_settle(threads);
	if (scratch_descriptors() != fds)
		torture_wrong("%zu descriptors, and there were %zu", scratch_descriptors(), fds);
	if (torture_alloc_leaks() > 0)
		torture_wrong("memory is not freed");
	workload_free(&d);
	if (__lsan_do_recoverable_leak_check())
		torture_wrong("memory is lost");
	_exit(0);
}

static void look_at_rest(void)
{
	struct workload d;

	redirect();
	torture_off();
	workload_init(&d, work);
	d.opts.io = CKPT_IO_THREADS;
	if (nodes_ranks() > 0)
		nodes_aftermath(&d);
	else if (torture_trials[torture->scenario].remote)
		remotes_aftermath(&d);
	else
		workload_aftermath(&d);
	_exit(0);
}

static void show_plans(void)
{
	for (unsigned i = 0; i < torture->plans; i++) {
		const struct torture_plan *p = &torture->plan[i];
		(void)fprintf(stderr, "  made to fail: %016llx:%d:%d\n", (unsigned long long)p->key,
			p->code, (int)p->mode);
		for (unsigned n = 0; n < TORTURE_SITES; n++) {
			const struct torture_site *s = &torture_all->sites[n];
			if (s->key != p->key)
				continue;
			(void)fprintf(
				stderr, "    %s(%s) of rank %u\n", s->call->name, s->what, s->rank);
			for (unsigned f = 0; f < s->depth; f++) {
				uintptr_t offset = 0;
				const char *name = torture_symbol(s->frames[f], &offset);
				(void)fprintf(
					stderr, "      %s+%#lx\n", name, (unsigned long)offset);
			}
		}
	}
}

static void complain(unsigned scenario, const char *who, int status)
{
	char text[4096] = "";
	int fd = open(said, O_RDONLY | O_CLOEXEC);

	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = 0;
	if (fd >= 0)
		(void)close(fd);
	(void)fprintf(stderr, "%s: %s", torture_trials[scenario].name, who);
	if (status == -1)
		(void)fputs(" does not end", stderr);
	else if (WIFSIGNALED(status))
		(void)fprintf(stderr, " was ended by signal %d", WTERMSIG(status));
	(void)fprintf(stderr, "\n%s", text);
	show_plans();
	(void)fprintf(stderr, "  repeat: torture %s", torture_trials[scenario].name);
	for (unsigned i = 0; i < torture->plans; i++)
		(void)fprintf(stderr, " --fail %016llx:%d:%d",
			(unsigned long long)torture->plan[i].key, torture->plan[i].code,
			(int)torture->plan[i].mode);
	(void)fputc('\n', stderr);
}

static void set_plans(unsigned scenario, const struct torture_plan *plan, unsigned plans)
{
	torture->scenario = scenario;
	torture->plans = plans;
	atomic_store(&torture->abandoned, false);
	atomic_store(&torture->silent, false);
	atomic_store(&torture->events, 0);
	for (unsigned i = 0; i < plans; i++) {
		torture->plan[i] = plan[i];
		atomic_store(&torture->fired[i], 0);
		atomic_store(&torture->whose[i], 0);
	}
	for (int i = 0; i < TORTURE_SLOTS; i++)
		atomic_store(&torture->slots[i].tid, 0);
}

enum runs_end runs_once(unsigned scenario, const struct torture_plan *plan, unsigned plans)
{
	begin_anew(scenario);
	set_plans(scenario, plan, plans);
	pid_t child = fork();
	if (child == 0)
		run_trial(scenario);
	int status = wait_for(child);
	if (status != 0) {
		complain(scenario, "the run", status);
		return RUNS_BAD;
	}
	if (plans > 0 && atomic_load(&torture->fired[plans - 1]) == 0)
		return RUNS_MISSED;
	child = fork();
	if (child == 0)
		look_at_rest();
	status = wait_for(child);
	if (status != 0) {
		complain(scenario, "what is left", status);
		return RUNS_BAD;
	}
	return RUNS_GOOD;
}

int runs_bypass(unsigned scenario)
{
#ifdef TORTURE_SANITIZED
	/* Its leak checker cannot run in a process that is traced; the plain build has looked. */
	(void)scenario;
	return 0;
#endif
	begin_anew(scenario);
	set_plans(scenario, NULL, 0);
	return torture_bypass(run_trial, scenario);
}
