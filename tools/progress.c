/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for long operations: a progress bar, and the end after a signal. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

#define POLL_MS   100
#define POLL_NS   (POLL_MS * 1000000L)
#define BAR_CHARS 30
#define POOL      (UINT64_C(256) << 20)

/* Written by a handler, and read by more than one thread. */
static atomic_int caught;
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler takes no lock");

static void note_signal(int number)
{
	caught = number;
}

int cli_interrupted(void)
{
	return caught;
}

static void catch_signals(void)
{
	/* A second signal ends the program at once. SA_RESTART: writes of output are not interrupted. */
	struct sigaction action = {
		.sa_handler = note_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};

	(void)sigemptyset(&action.sa_mask);
	(void)sigaction(SIGINT, &action, NULL);
	(void)sigaction(SIGTERM, &action, NULL);
}

/* The main thread is in a library call, and does not look at signals. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t over;
	pthread_t thread;
	const struct cli *cli; /* NULL: not in a call. Guarded by lock */
	int (*last)(void *user);
	void *user;
	bool begun;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *end_when_interrupted(void *unused)
{
	struct timespec until;

	(void)unused;
	pthread_mutex_lock(&watch.lock);
	while (watch.cli) {
		if (cli_interrupted()) {
			int exit_code = watch.last ? watch.last(watch.user)
						   : cli_fail_interrupted(watch.cli, NULL);
			_exit(cli_end(watch.cli->program->name, exit_code));
		}
		(void)clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += POLL_NS;
		until.tv_sec += until.tv_nsec / 1000000000L;
		until.tv_nsec %= 1000000000L;
		(void)pthread_cond_timedwait(&watch.over, &watch.lock, &until);
	}
	pthread_mutex_unlock(&watch.lock);
	return NULL;
}

/* CLOCK_MONOTONIC, because the wall clock may be set during the wait. */
static int make_over(void)
{
	pthread_condattr_t attr;
	int r = pthread_condattr_init(&attr);

	if (r != 0)
		return r;
	r = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (r == 0)
		r = pthread_cond_init(&watch.over, &attr);
	(void)pthread_condattr_destroy(&attr);
	return r;
}

void cli_watch(const struct cli *cli, int (*last)(void *user), void *user)
{
	if (make_over() != 0)
		return;
	watch.cli = cli;
	watch.last = last;
	watch.user = user;
	watch.begun = pthread_create(&watch.thread, NULL, end_when_interrupted, NULL) == 0;
	if (!watch.begun)
		(void)pthread_cond_destroy(&watch.over);
}

void cli_unwatch(void)
{
	if (!watch.begun)
		return;
	pthread_mutex_lock(&watch.lock);
	watch.cli = NULL;
	pthread_cond_signal(&watch.over);
	pthread_mutex_unlock(&watch.lock);
	(void)pthread_join(watch.thread, NULL);
	(void)pthread_cond_destroy(&watch.over);
	watch.begun = false;
}

static int fail_open(const struct cli *cli, int code)
{
	struct ckpt_error error = {.size = sizeof(error)};

	/* The operand is a file. For a name within the store -ENOTDIR means something else. */
	(void)ckpt_last_error_record(&error);
	if (code == -ENOTDIR && strcmp(error.file, cli->operand[0]) == 0)
		return cli_fail_with(cli, CLI_NOT_FOUND, NULL);
	return cli_fail(cli, code);
}

int cli_open(const struct cli *cli, struct ckpt_engine **ret_engine)
{
	struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.flags = CKPT_ENGINE_READ_ONLY,
		.pool_bytes = POOL,
		.log_level = CKPT_LOG_WARN};

	catch_signals();
	cli_watch(cli, NULL, NULL);
	int r = ckpt_engine_open(cli->operand[0], &opts, ret_engine);
	cli_unwatch();
	return r < 0 ? fail_open(cli, r) : CLI_OK;
}

int cli_open_step(const struct cli *cli, struct ckpt_engine *engine, uint64_t step,
	struct ckpt_restore **ret_restore)
{
	cli_watch(cli, NULL, NULL);
	int r = ckpt_restore_open(engine, step, ret_restore);
	cli_unwatch();
	return r;
}

int cli_meta(const struct cli *cli, const struct ckpt_restore *restore, const char **ret_json,
	size_t *ret_length)
{
	cli_watch(cli, NULL, NULL);
	int r = ckpt_restore_meta(restore, ret_json, ret_length);
	cli_unwatch();
	return r;
}

/* Without --encoding a step goes there as it is stored. */
static uint32_t remote_encoding(const struct cli *cli)
{
	if (!cli->has_encoding || !cli->operand[1])
		return CKPT_REMOTE_AS_STORED;
	return cli->encoding == CKPT_ENCODING_COMPACT ? CKPT_REMOTE_COMPACT : CKPT_REMOTE_PLAIN;
}

int cli_open_writer(const struct cli *cli, struct ckpt_engine **ret_engine)
{
	struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.flags = CKPT_ENGINE_NO_IMPORT,
		.pool_bytes = POOL,
		.log_level = CKPT_LOG_WARN,
		.remote = cli->operand[1],
		.remote_every = cli->remote_every,
		.remote_encoding = remote_encoding(cli),
		.remote_tries = 1};

	/* Opening it for writing would create it. */
	int r = cli_open(cli, ret_engine);
	if (r != CLI_OK)
		return r;
	ckpt_engine_close(*ret_engine);
	*ret_engine = NULL;
	r = ckpt_engine_open(cli->operand[0], &opts, ret_engine);
	return r < 0 ? fail_open(cli, r) : CLI_OK;
}

static double seconds_now(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void draw(const char *what, uint64_t done, uint64_t total, double seconds)
{
	char bar[BAR_CHARS + 1];
	char a[32];
	char b[32];
	char rate[32];
	double part = total ? (double)done / (double)total : 0;
	double speed = seconds > 0 ? (double)done / seconds : 0;
	int filled = (int)(part * BAR_CHARS);

	for (int i = 0; i < BAR_CHARS; i++)
		bar[i] = i < filled ? '=' : ' ';
	bar[BAR_CHARS] = '\0';
	(void)fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s of %s  %s/s", what, bar, part * 100,
		cli_bytes(done, a), cli_bytes(total, b), cli_bytes((uint64_t)speed, rate));
	if (speed > 0 && done < total)
		(void)fprintf(stderr, "  ETA %.0f s", (double)(total - done) / speed);
	(void)fflush(stderr);
}

static bool wants_bar(const struct cli *cli)
{
	if (cli->quiet || cli->progress == CLI_PROGRESS_NEVER)
		return false;
	return cli->progress == CLI_PROGRESS_ALWAYS || isatty(STDERR_FILENO);
}

/* Also called at the end, because a short operation is not drawn before. */
static void draw_restore(struct ckpt_restore *restore, const char *what, double start)
{
	uint64_t done = 0;
	uint64_t total = 0;

	if (ckpt_restore_progress(restore, &done, &total) == 0)
		draw(what, done, total, seconds_now() - start);
}

static void draw_uploads(struct ckpt_engine *engine, double start)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	if (ckpt_engine_stats(engine, &stats) == 0)
		draw("uploading", stats.bytes_uploaded,
			stats.bytes_uploaded + stats.uploads_waiting_bytes, seconds_now() - start);
}

static void clear(void)
{
	(void)fputs("\r\033[K", stderr);
}

int cli_wait(const struct cli *cli, struct ckpt_restore *restore, const char *what)
{
	bool bar = wants_bar(cli);
	double start = seconds_now();
	int r;

	/* The restore itself may also have failed with -ETIMEDOUT: a server that did not answer. */
	while ((r = ckpt_restore_wait(restore, POLL_MS)) == -ETIMEDOUT &&
		ckpt_restore_error(restore, NULL) == 0) {
		if (cli_interrupted())
			ckpt_restore_cancel(restore);
		if (bar)
			draw_restore(restore, what, start);
	}
	/* It may have ended since, with another code. */
	if (r == -ETIMEDOUT)
		r = ckpt_restore_wait(restore, 0);
	if (bar) {
		draw_restore(restore, what, start);
		clear();
	}
	return r;
}

/*
 * Prints warnings of the engine, such as that it waits for another process. Not those about the store itself, which begin
 * with its path.
 */
static void tell_warnings(const struct cli *cli, struct ckpt_engine *engine, bool bar)
{
	struct ckpt_log_record record = {.size = sizeof(record)};
	size_t length = strlen(cli->operand[0]);

	while (length > 0 && cli->operand[0][length - 1] == '/')
		length--;
	while (ckpt_engine_log(engine, 0, &record) == 0) {
		const char *rest = record.message + length;
		bool of_means = strncmp(record.message, cli->operand[0], length) == 0 &&
				rest[strspn(rest, "/")] == ':';

		if (cli->quiet || of_means || record.level != CKPT_LOG_WARN)
			continue;
		if (bar)
			clear();
		(void)fprintf(stderr, "%s: ", cli->program->name);
		cli_print_text(stderr, record.message);
		(void)fputc('\n', stderr);
	}
}

int cli_wait_remote(const struct cli *cli, struct ckpt_engine *engine)
{
	bool bar = wants_bar(cli);
	double start = seconds_now();
	int r;

	while ((r = ckpt_engine_drain_remote(engine, POLL_MS)) == -ETIMEDOUT) {
		if (cli_interrupted())
			break;
		tell_warnings(cli, engine, bar);
		if (bar)
			draw_uploads(engine, start);
	}
	tell_warnings(cli, engine, bar);
	if (bar) {
		draw_uploads(engine, start);
		clear();
	}
	return r;
}
