/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one program without a shell, with a deadline. */
#include "s3/credential_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/secret.h"
#include "base/thread.h"
#include "s3/credentials.h"

#define WORDS_MAX 256
#define PATH_SIZE 4096
/* Interval of checks for its end on kernels without pidfd_open (before 5.3). */
#define LOOK_MS   20

struct run {
	const struct ckpt_s3_process *process;
	struct ckpt_error *err;
	char *words[WORDS_MAX + 1];
	char program[PATH_SIZE];
	char *output;
	size_t length;
	uint64_t deadline_ns;
	pid_t pid;
	int pid_fd; /* -1: none */
	int out_fd; /* -1: end of file */
	int status;
	bool ended;
};

/* Arguments. */

/* Takes one argument off *at, in place, without its quotes. False: unterminated quote. */
static bool take_word(char **at)
{
	char *in = *at;
	char *out = in;
	char quote = 0;

	for (; *in && (quote || !strchr(" \t\r\n", *in)); in++) {
		if (quote ? *in == quote : *in == '"' || *in == '\'') {
			quote = (char)(quote ? 0 : *in);
			continue;
		}
		if (*in == '\\' && quote != '\'' && in[1] &&
			(!quote || in[1] == '"' || in[1] == '\\'))
			in++;
		*out++ = *in;
	}
	*at = *in ? in + 1 : in;
	*out = 0;
	return !quote;
}

static int split(struct run *run, char *command)
{
	const char *whose = run->process->whose;
	size_t count = 0;

	for (char *at = command; *(at += strspn(at, " \t\r\n"));) {
		if (count == WORDS_MAX)
			return ckpt_fail(
				run->err, -EINVAL, "%s has more than %d words", whose, WORDS_MAX);
		run->words[count++] = at;
		if (!take_word(&at))
			return ckpt_fail(
				run->err, -EINVAL, "%s has a quote that does not end", whose);
	}
	if (count == 0)
		return ckpt_fail(run->err, -EINVAL, "%s is empty", whose);
	return 0;
}

/* Searched here, because posix_spawnp() would read the environment, which may change meanwhile. */
static int find_program(struct run *run)
{
	const char *at = run->process->path ? run->process->path : "/usr/local/bin:/usr/bin:/bin";
	const char *name = run->words[0];
	size_t length;
	int n;

	if (strchr(name, '/')) {
		n = snprintf(run->program, sizeof(run->program), "%s", name);
		return n > 0 && (size_t)n < sizeof(run->program) ? 0 : -ENAMETOOLONG;
	}
	for (; *at; at += length + (at[length] == ':')) {
		length = strcspn(at, ":");
		n = snprintf(run->program, sizeof(run->program), "%.*s/%s", (int)length,
			length ? at : ".", name);
		if (n > 0 && (size_t)n < sizeof(run->program) &&
			faccessat(AT_FDCWD, run->program, X_OK, AT_EACCESS) == 0)
			return 0;
	}
	return -ENOENT;
}

/* Start. */

static int spawn_with(struct run *run, posix_spawn_file_actions_t *files, posix_spawnattr_t *how)
{
	static const short flags =
		POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
	char *const none[] = {NULL};
	sigset_t empty;
	sigset_t all;

	/* Workers block all signals, and Python ignores SIGPIPE; the program must not inherit that. */
	(void)sigemptyset(&empty);
	(void)sigfillset(&all);
	if (posix_spawnattr_setflags(how, flags) != 0 || posix_spawnattr_setpgroup(how, 0) != 0 ||
		posix_spawnattr_setsigmask(how, &empty) != 0 ||
		posix_spawnattr_setsigdefault(how, &all) != 0)
		return -EINVAL;
	return -posix_spawn(&run->pid, run->program, files, how, run->words,
		run->process->environment ? run->process->environment : none);
}

static int spawn_onto(struct run *run, int in_fd)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t how;
	int r;

	if (posix_spawn_file_actions_init(&files) != 0)
		return -ENOMEM;
	if (posix_spawnattr_init(&how) != 0) {
		(void)posix_spawn_file_actions_destroy(&files);
		return -ENOMEM;
	}
	if (posix_spawn_file_actions_adddup2(&files, in_fd, STDOUT_FILENO) != 0 ||
		posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0) !=
			0)
		r = -ENOMEM;
	else
		r = spawn_with(run, &files, &how);
	(void)posix_spawnattr_destroy(&how);
	(void)posix_spawn_file_actions_destroy(&files);
	return r;
}

static int start(struct run *run)
{
	int ends[2];
	int r = find_program(run);

	if (r < 0)
		return ckpt_fail(run->err, r, "%s: the program %s cannot be found: %s",
			run->process->whose, run->words[0], ckpt_code_text(r));
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
		r = -errno;
		return ckpt_fail(run->err, r, "%s cannot be started: %s", run->process->whose,
			ckpt_code_text(r));
	}
	/* The pipe is inherited by the program, which expects it to block. */
	if (fcntl(ends[1], F_SETFL, 0) < 0)
		r = -errno;
	else
		r = spawn_onto(run, ends[1]);
	(void)close(ends[1]);
	run->out_fd = ends[0];
	if (r < 0)
		return ckpt_fail(run->err, r, "%s: %s cannot be started: %s", run->process->whose,
			run->program, ckpt_code_text(r));
	run->pid_fd = (int)syscall(SYS_pidfd_open, run->pid, 0);
	return 0;
}

/* Reading its output, and its end. */

/* Reads what is available. -EFBIG: more than the limit. */
static int read_some(struct run *run)
{
	while (run->out_fd >= 0) {
		size_t room = CKPT_S3_PROCESS_OUTPUT + 1 - run->length;
		ssize_t n = read(run->out_fd, run->output + run->length, room);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0) {
			(void)close(run->out_fd);
			run->out_fd = -1;
			return 0;
		}
		run->length += (size_t)n;
		if (run->length > CKPT_S3_PROCESS_OUTPUT)
			return ckpt_fail(run->err, -EFBIG,
				"%s prints more than %u bytes, which cannot be keys",
				run->process->whose, CKPT_S3_PROCESS_OUTPUT);
	}
	return 0;
}

/* Whether it has ended. If this process ignores SIGCHLD, its status is unknown, and its output decides. */
static void look_for_end(struct run *run, int flags)
{
	pid_t pid;

	while ((pid = waitpid(run->pid, &run->status, flags)) < 0 && errno == EINTR)
		continue;
	if (pid < 0)
		run->status = 0;
	run->ended = pid != 0;
}

/* Waits for output, the end, the deadline or a stop. */
static int wait_some(struct run *run)
{
	struct pollfd fds[] = {{.fd = run->out_fd, .events = POLLIN},
		{.fd = run->pid_fd, .events = POLLIN},
		{.fd = run->process->stop_fd, .events = POLLIN}};
	int left = ckpt_deadline_left_ms(run->deadline_ns);

	if (left == 0)
		return ckpt_fail(run->err, -ETIMEDOUT,
			"%s has not ended within %u ms: it may wait for somebody to type something",
			run->process->whose,
			run->process->timeout_ms ? run->process->timeout_ms : CKPT_S3_PROCESS_MS);
	if (run->pid_fd < 0 && left > LOOK_MS)
		left = LOOK_MS;
	if (poll(fds, CKPT_COUNT(fds), left) > 0 && fds[2].revents != 0)
		return ckpt_fail(run->err, -ECANCELED, "%s was stopped", run->process->whose);
	return 0;
}

static int follow(struct run *run)
{
	int r;

	for (;;) {
		look_for_end(run, WNOHANG);
		/* After the check, so that output from before its end is read. */
		r = read_some(run);
		if (r < 0 || run->ended)
			return r;
		r = wait_some(run);
		if (r < 0)
			return r;
	}
}

static int judge(const struct run *run)
{
	const char *whose = run->process->whose;

	if (WIFSIGNALED(run->status))
		return ckpt_fail(run->err, CKPT_EAUTH, "%s was ended by signal %d", whose,
			WTERMSIG(run->status));
	if (WEXITSTATUS(run->status) != 0)
		return ckpt_fail(run->err, CKPT_EAUTH,
			"%s failed with exit code %d; see its messages on stderr", whose,
			WEXITSTATUS(run->status));
	return 0;
}

static int run_words(struct run *run)
{
	unsigned timeout_ms = run->process->timeout_ms;
	int r;

	run->deadline_ns = ckpt_deadline((int)(timeout_ms ? timeout_ms : CKPT_S3_PROCESS_MS));
	r = start(run);
	if (r == 0) {
		r = follow(run);
		if (r < 0)
			(void)kill(-run->pid, SIGKILL);
		if (!run->ended)
			look_for_end(run, 0);
		if (r == 0)
			r = judge(run);
	}
	if (run->out_fd >= 0)
		(void)close(run->out_fd);
	if (run->pid_fd >= 0)
		(void)close(run->pid_fd);
	return r;
}

static int run_command(const struct ckpt_s3_process *process, struct ckpt_error *err, char *command,
	struct run *run)
{
	int r;

	*run = (struct run){.process = process,
		.err = err,
		.output = ckpt_secret_alloc(CKPT_S3_PROCESS_OUTPUT + 2),
		.out_fd = -1,
		.pid_fd = -1};
	if (!run->output)
		return ckpt_fail(err, -ENOMEM, "there is no memory to run %s", process->whose);
	r = split(run, command);
	if (r == 0)
		r = run_words(run);
	if (r < 0)
		ckpt_secret_free(run->output);
	return r;
}

int ckpt_s3_process_run(const struct ckpt_s3_process *process, struct ckpt_error *err,
	char **ret_output, size_t *ret_length)
{
	struct run *run = ckpt_alloc(sizeof(*run));
	char *command = ckpt_strdup(process->command);
	int r;

	if (run && command)
		r = run_command(process, err, command, run);
	else
		r = ckpt_fail(err, -ENOMEM, "there is no memory to run %s", process->whose);
	if (run && r == 0) {
		*ret_output = run->output;
		*ret_length = run->length;
	}
	/* It was split in place: it is longer than strlen() says. */
	ckpt_s3_forget_bytes(command, command ? strlen(process->command) : 0);
	ckpt_free(run);
	return r;
}
