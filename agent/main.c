/* SPDX-License-Identifier: Apache-2.0 */
/* ckptd: the command line of the agent. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/version.h>
#include "agent.h"
#include "base/alloc.h"
#include "base/error.h"
#include "keeper.h"
#include "memory.h"
#include "say.h"
#include "status.h"

/* As of the other programs. */
enum {
	EXIT_USAGE = 2,
	EXIT_NOT_FOUND = 10,
	EXIT_IN_USE = 11,
};

enum { OPT_DIR = 256, OPT_MEMORY, OPT_LINGER, OPT_STATUS, OPT_JSON, OPT_VERSION };

static const struct option options[] = {
	{"dir", required_argument, NULL, OPT_DIR},
	{"memory", required_argument, NULL, OPT_MEMORY},
	{"linger", required_argument, NULL, OPT_LINGER},
	{"status", no_argument, NULL, OPT_STATUS},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

#define USAGE                                                                                      \
	"usage: ckptd [--dir DIR] [--memory SIZE] [--linger SECONDS]\n"                            \
	"       ckptd --status [--dir DIR] [--json]\n"

static const char help[] =
	"\n"
	"Holds the memory in which ranks on this node keep checkpoints, so that it outlives them.\n"
	"Stays in the foreground until SIGTERM or SIGINT, which frees all of it.\n"
	"\n"
	"  --dir DIR         its directory, of mode 0700; made if it is missing. Default:\n"
	"                    $XDG_RUNTIME_DIR/ckptd, else /tmp/ckptd-UID\n"
	"  --memory SIZE     what all slots may take together, such as 96GiB (KiB, MiB, GiB, "
	"TiB).\n"
	"                    Default: half of what is available\n"
	"  --linger SECONDS  how long slots stay that no rank has. Default: 1800\n"
	"  --status          prints what the agent of that directory has\n"
	"  --json            with --status: one JSON object per line\n"
	"\n"
	"Exit status: 0 good, 1 failed, 2 usage, 10 no agent (--status), 11 another agent serves "
	"DIR.\n";

#define LINGER_S     1800
#define LINGER_S_MAX UINT64_C(31536000)

struct settings {
	char dir[PATH_MAX];
	uint64_t memory; /* 0: not given */
	uint64_t linger_s;
	bool status;
	bool json;
};

/* What the child of the keeper needs. */
struct service {
	struct agent_config config;
	struct agent_directory directory;
};

static const char *variable(const char *name)
{
	/* NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread yet */
	return getenv(name);
}

static bool parse_number(const char *text, size_t length, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;

	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9' || value > max / 10)
			return false;
		value = value * 10 + (uint64_t)(text[i] - '0');
	}
	*ret_value = value;
	return length > 0 && value <= max;
}

static bool parse_size(const char *text, uint64_t *ret_bytes)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	size_t length = strspn(text, "0123456789");
	uint64_t value = 0;

	for (unsigned i = 0; i < CKPT_COUNT(units); i++) {
		if (strcmp(text + length, units[i]) != 0)
			continue;
		if (!parse_number(text, length, (UINT64_C(1) << 62) >> (10 * i), &value))
			return false;
		*ret_bytes = value << (10 * i);
		return value > 0;
	}
	return false;
}

static bool misused(const char *what)
{
	(void)fprintf(stderr, "ckptd: %s\n" USAGE "Run 'ckptd --help' for details.\n", what);
	return false;
}

/* False: exit with *ret_exit. */
static bool take_option(struct settings *settings, int option, int *ret_exit)
{
	*ret_exit = EXIT_USAGE;
	switch (option) {
	case OPT_DIR:
		if (strlen(optarg) == 0 || strlen(optarg) >= sizeof(settings->dir))
			return misused("--dir takes the path of a directory");
		(void)snprintf(settings->dir, sizeof(settings->dir), "%s", optarg);
		return true;
	case OPT_MEMORY:
		return parse_size(optarg, &settings->memory) ||
		       misused("--memory takes a size, such as 96GiB");
	case OPT_LINGER:
		return parse_number(optarg, strlen(optarg), LINGER_S_MAX, &settings->linger_s) ||
		       misused("--linger takes a number of seconds");
	case OPT_STATUS:
		settings->status = true;
		return true;
	case OPT_JSON:
		settings->json = true;
		return true;
	case 'h':
	case OPT_VERSION:
		*ret_exit = EXIT_SUCCESS;
		if (option == 'h')
			(void)printf(USAGE "%s", help);
		else
			(void)printf("ckptd (libckpt %s)\n", CKPT_VERSION);
		return false;
	default:
		return misused("unknown option, or an option without its value");
	}
}

static bool parse(struct settings *settings, int argc, char **argv, int *ret_exit)
{
	int option;

	*settings = (struct settings){.linger_s = LINGER_S};
	agent_directory_default(variable("XDG_RUNTIME_DIR"), settings->dir, sizeof(settings->dir));
	opterr = 0;
	/* NOLINTNEXTLINE(concurrency-mt-unsafe) */
	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1)
		if (!take_option(settings, option, ret_exit))
			return false;
	*ret_exit = EXIT_USAGE;
	if (optind < argc)
		return misused("it takes options only");
	if (settings->json && !settings->status)
		return misused("--json goes with --status");
	return true;
}

static int failed(const struct ckpt_error *err)
{
	agent_say("%s", err->message);
	return err->code == CKPT_EINUSE ? EXIT_IN_USE : EXIT_FAILURE;
}

static int print_status(const struct settings *settings)
{
	struct ckpt_error err;
	int r;

	ckpt_error_clear(&err);
	r = agent_status(settings->dir, settings->json, &err);
	if (r == 0)
		return EXIT_SUCCESS;
	(void)failed(&err);
	return r == -ENOENT || r == -ECONNREFUSED ? EXIT_NOT_FOUND : EXIT_FAILURE;
}

/* How much slots may have, `kept` bytes of which are there; says it. */
static int choose_memory(
	const struct settings *settings, uint64_t kept, struct ckpt_error *err, uint64_t *ret)
{
	char chosen[AGENT_SIZE_TEXT];
	char left[AGENT_SIZE_TEXT];
	const char *bound;
	uint64_t available = agent_memory_available(&bound);

	*ret = settings->memory;
	if (settings->memory == 0) {
		if (available == UINT64_MAX)
			return ckpt_fail(err, -EINVAL,
				"it is unknown how much memory there is; say with --memory how "
				"much slots may "
				"have");
		*ret = agent_memory_default(available, kept);
	}
	if (available != UINT64_MAX)
		agent_say("serves %s with up to %s; %s leaves %s", settings->dir,
			agent_size_text(*ret, chosen), bound, agent_size_text(available, left));
	else
		agent_say("serves %s with up to %s", settings->dir, agent_size_text(*ret, chosen));
	return 0;
}

static int serve(
	void *user, const char *manager, const struct agent_kept *kept, unsigned kept_count)
{
	const struct service *service = user;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (agent_run(&service->config, &service->directory, manager, kept, kept_count, &err) < 0)
		return failed(&err);
	return EXIT_SUCCESS;
}

/* systemd starts it again by itself, and keeps its descriptors if the unit says so. */
static int serve_systemd(
	const struct settings *settings, struct service *service, struct ckpt_error *err)
{
	struct agent_kept *kept = ckpt_alloc_array(AGENT_KEPT_MAX, sizeof(*kept));
	unsigned count;
	int r;

	if (!kept)
		return ckpt_fail(err, -ENOMEM, "no memory");
	count = agent_manager_kept(
		variable("LISTEN_PID"), variable("LISTEN_FDS"), variable("LISTEN_FDNAMES"), kept);
	r = choose_memory(
		settings, agent_manager_kept_bytes(kept, count), err, &service->config.memory);
	if (r == 0)
		r = agent_directory_listen(&service->directory, settings->dir, err);
	agent_say("systemd keeps the descriptors of its slots, if FileDescriptorStoreMax= is large "
		  "enough");
	if (r == 0)
		r = serve(service, variable("NOTIFY_SOCKET"), kept, count);
	ckpt_free(kept);
	return r;
}

/* The keeper starts it again. */
static int serve_kept(
	const struct settings *settings, struct service *service, struct ckpt_error *err)
{
	int r = choose_memory(settings, 0, err, &service->config.memory);

	if (r == 0)
		r = agent_directory_listen(&service->directory, settings->dir, err);
	if (r < 0)
		return r;
	agent_say("process %d keeps the descriptors of its slots", (int)getpid());
	return agent_keeper_run(settings->dir, serve, service, err);
}

/* Variables are inherited, by what a service starts as well. systemd says since version 248 whom it means. */
static bool is_service(void)
{
	const char *notify = variable("NOTIFY_SOCKET");
	const char *pid = variable("SYSTEMD_EXEC_PID");

	if (!notify || !notify[0])
		return false;
	return !pid || strtol(pid, NULL, 10) == (long)getpid();
}

static int serve_until_told(const struct settings *settings)
{
	struct service service = {.config.linger_s = settings->linger_s};
	struct ckpt_error err;
	int r;

	ckpt_error_clear(&err);
	r = agent_directory_open(settings->dir, &err, &service.directory);
	if (r < 0)
		return failed(&err);
	r = is_service() ? serve_systemd(settings, &service, &err)
			 : serve_kept(settings, &service, &err);
	agent_directory_close(&service.directory, settings->dir);
	return r < 0 ? failed(&err) : r;
}

/* Each slot is a descriptor, and so is each client, and its process. */
static void raise_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
	struct settings settings;
	sigset_t set;
	int exit_code;

	if (!parse(&settings, argc, argv, &exit_code))
		return exit_code;
	if (settings.status)
		return print_status(&settings);
	/* What it holds is of its user, and nobody's who may look at the process. */
	(void)prctl(PR_SET_DUMPABLE, 0);
	(void)umask(077);
	raise_descriptors();
	/* Whoever has started it may have closed the other end of stderr. */
	(void)signal(SIGPIPE, SIG_IGN);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGCHLD);
	(void)pthread_sigmask(SIG_BLOCK, &set, NULL);
	return serve_until_told(&settings);
}
