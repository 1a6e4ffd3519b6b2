/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server of S3 for tests, on loopback. It says its port on standard output when it is ready, and ends with
 * SIGTERM, with SIGINT, or with --until-eof when its standard input ends. The tests' way in is s3d_admin.c.
 */
#include "s3/s3d.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char usage[] = "usage: s3d [OPTION...]\n"
			    "  --port N           0 (the default): any that is free\n"
			    "  --key ACCESS:SECRET[:TOKEN]   who may ask; none: everybody\n"
			    "  --bucket NAME      is there from the beginning; may be given again\n"
			    "  --region NAME      us-east-1\n"
			    "  --domain NAME      of virtual hosts, s3.localhost\n"
			    "  --like NAME        aws, radosgw, swift, old\n"
			    "  --tls-cert FILE --tls-key FILE   PEM\n"
			    "  --directory DIR    holds everything, so that it survives a kill\n"
			    "  --journal FILE     a line of JSON for each entry as it comes\n"
			    "  --memory BYTES     that objects and parts may hold\n"
			    "  --body BYTES       that one request may carry (5 GiB)\n"
			    "  --idle-ms N        after which a connection is closed (60,000)\n"
			    "  --seed N           of upload ids\n"
			    "  --null             bodies of PUT are counted and thrown away\n"
			    "  --until-eof        ends with standard input\n";

enum option_code {
	OPT_PORT = 256,
	OPT_KEY,
	OPT_BUCKET,
	OPT_REGION,
	OPT_DOMAIN,
	OPT_LIKE,
	OPT_CERT,
	OPT_TLS_KEY,
	OPT_DIRECTORY,
	OPT_JOURNAL,
	OPT_MEMORY,
	OPT_BODY,
	OPT_IDLE,
	OPT_SEED,
	OPT_NULL,
	OPT_EOF,
	OPT_HELP,
};

static const struct option options[] = {
	{"port", required_argument, NULL, OPT_PORT},
	{"key", required_argument, NULL, OPT_KEY},
	{"bucket", required_argument, NULL, OPT_BUCKET},
	{"region", required_argument, NULL, OPT_REGION},
	{"domain", required_argument, NULL, OPT_DOMAIN},
	{"like", required_argument, NULL, OPT_LIKE},
	{"tls-cert", required_argument, NULL, OPT_CERT},
	{"tls-key", required_argument, NULL, OPT_TLS_KEY},
	{"directory", required_argument, NULL, OPT_DIRECTORY},
	{"journal", required_argument, NULL, OPT_JOURNAL},
	{"memory", required_argument, NULL, OPT_MEMORY},
	{"body", required_argument, NULL, OPT_BODY},
	{"idle-ms", required_argument, NULL, OPT_IDLE},
	{"seed", required_argument, NULL, OPT_SEED},
	{"null", no_argument, NULL, OPT_NULL},
	{"until-eof", no_argument, NULL, OPT_EOF},
	{"help", no_argument, NULL, OPT_HELP},
	{NULL, 0, NULL, 0},
};

struct setup {
	struct buckets_config buckets;
	struct s3_capabilities can;
	const char *names[16];
	size_t name_count;
	const char *certificate;
	const char *key;
	const char *journal;
	uint16_t port;
	bool until_eof;
};

static void die(const char *what)
{
	(void)fprintf(stderr, "s3d: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void wrong(const char *what)
{
	(void)fprintf(stderr, "s3d: %s\n%s", what, usage);
	exit(2);
}

static uint64_t number(const char *words)
{
	char *end = NULL;
	uint64_t n = strtoull(words, &end, 0);

	if (end == words || *end)
		wrong(words);
	return n;
}

static void add_key(struct guard *guard, const char *words)
{
	char *copy = need_text(words), *rest = copy;
	const char *access = strsep(&rest, ":"), *secret = strsep(&rest, ":");

	if (!secret)
		wrong("--key wants ACCESS:SECRET");
	guard_add(guard, access, secret, rest, 0);
	free(copy);
}

static void set_option(struct s3d *s3d, struct setup *setup, int code)
{
	switch (code) {
	case OPT_PORT:
		setup->port = (uint16_t)number(optarg);
		break;
	case OPT_KEY:
		add_key(&s3d->guard, optarg);
		break;
	case OPT_BUCKET:
		if (setup->name_count == 16)
			wrong("too many buckets");
		setup->names[setup->name_count++] = optarg;
		break;
	case OPT_REGION:
		setup->buckets.region = optarg;
		break;
	case OPT_DOMAIN:
		s3d->options.domain = optarg;
		break;
	case OPT_LIKE:
		if (!s3_capabilities_named(optarg, &setup->can))
			wrong(optarg);
		break;
	case OPT_CERT:
		setup->certificate = optarg;
		break;
	case OPT_TLS_KEY:
		setup->key = optarg;
		break;
	case OPT_DIRECTORY:
		setup->buckets.directory = optarg;
		break;
	case OPT_JOURNAL:
		setup->journal = optarg;
		break;
	case OPT_MEMORY:
		setup->buckets.memory_limit = number(optarg);
		break;
	case OPT_BODY:
		s3d->options.body_most = number(optarg);
		break;
	case OPT_IDLE:
		s3d->options.idle_ms = (int)number(optarg);
		break;
	case OPT_SEED:
		setup->buckets.seed = number(optarg);
		break;
	case OPT_NULL:
		s3d->options.null_sink = true;
		break;
	case OPT_EOF:
		setup->until_eof = true;
		break;
	case OPT_HELP:
		(void)fputs(usage, stdout);
		exit(0);
	default:
		wrong("?");
	}
}

uint64_t s3d_now(const struct s3d *s3d)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec +
	       (uint64_t)s3d->clock_offset_ns;
}

static SSL_CTX *tls_of(const struct setup *setup)
{
	if (!setup->certificate)
		return NULL;
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
		SSL_CTX_use_certificate_chain_file(ctx, setup->certificate) != 1 ||
		SSL_CTX_use_PrivateKey_file(
			ctx, setup->key ? setup->key : setup->certificate, SSL_FILETYPE_PEM) != 1)
		wrong("the certificate or its key cannot be used");
	return ctx;
}

static int listen_at(uint16_t port, uint16_t *ret_port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	socklen_t size = sizeof(at);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 512) < 0 ||
		getsockname(fd, (struct sockaddr *)&at, &size) < 0)
		die("socket");
	*ret_port = ntohs(at.sin_port);
	return fd;
}

/* Joins the threads that are done: what OpenSSL keeps for each is freed when it has ended. */
static void reap(struct s3d *s3d)
{
	(void)pthread_mutex_lock(&s3d->lock);
	struct s3d_connection *over = s3d->over;
	s3d->over = NULL;
	(void)pthread_mutex_unlock(&s3d->lock);
	while (over) {
		struct s3d_connection *c = over;
		over = c->next;
		(void)pthread_join(c->thread, NULL);
		free(c);
	}
}

static void take_connection(struct s3d *s3d, int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	reap(s3d);
	if (fd < 0)
		return;
	struct s3d_connection *c = need(sizeof(*c));
	c->s3d = s3d;
	c->wire.fd = fd;
	(void)pthread_mutex_lock(&s3d->lock);
	c->next = s3d->connections;
	s3d->connections = c;
	s3d->connection_count++;
	(void)pthread_mutex_unlock(&s3d->lock);
	errno = pthread_create(&c->thread, NULL, s3d_connection_run, c);
	if (errno)
		die("thread");
}

/* Lands what is due; how long until the next, in ms, or -1. */
static int land(struct s3d *s3d)
{
	(void)pthread_mutex_lock(&s3d->lock);
	uint64_t now = s3d_now(s3d), next = front_land(&s3d->front, now);
	(void)pthread_mutex_unlock(&s3d->lock);
	if (next == UINT64_MAX)
		return -1;
	uint64_t ms = (next - now) / 1000000 + 1;
	return ms < 60000 ? (int)ms : 60000;
}

static bool at_end(int fd)
{
	char byte;

	return read(fd, &byte, 1) <= 0;
}

static void run(struct s3d *s3d, int listener, int signals, bool until_eof)
{
	struct pollfd ready[] = {
		{.fd = listener, .events = POLLIN},
		{.fd = signals, .events = POLLIN},
		{.fd = s3d->again, .events = POLLIN},
		{.fd = until_eof ? STDIN_FILENO : -1, .events = POLLIN},
	};
	eventfd_t ignored;

	for (;;) {
		int n = poll(ready, 4, land(s3d));
		if (n < 0 && errno != EINTR)
			die("poll");
		if (n <= 0)
			continue;
		if (ready[1].revents || (ready[3].revents && at_end(STDIN_FILENO)))
			return;
		if (ready[2].revents)
			(void)eventfd_read(s3d->again, &ignored);
		if (ready[0].revents)
			take_connection(s3d, listener);
	}
}

static void stop(struct s3d *s3d)
{
	(void)eventfd_write(s3d->stop, 1);
	(void)pthread_mutex_lock(&s3d->lock);
	for (struct s3d_connection *c = s3d->connections; c; c = c->next)
		(void)shutdown(c->wire.fd, SHUT_RDWR);
	while (s3d->connection_count)
		(void)pthread_cond_wait(&s3d->ended, &s3d->lock);
	(void)pthread_mutex_unlock(&s3d->lock);
	reap(s3d);
}

static void prepare(struct s3d *s3d, struct setup *setup)
{
	s3d->guard.region = need_text(setup->buckets.region ? setup->buckets.region : "us-east-1");
	setup->buckets.guard = &s3d->guard;
	setup->buckets.journal = &s3d->front.journal;
	s3d->front.journal.digests_off = s3d->options.null_sink;
	if (setup->journal && !(s3d->front.journal.file = fopen(setup->journal, "ae")))
		die(setup->journal);
	s3d->front.buckets = buckets_new(&setup->buckets);
	if (!s3d->front.buckets)
		exit(1);
	*buckets_capabilities(s3d->front.buckets) = setup->can;
	for (size_t i = 0; i < setup->name_count; i++)
		buckets_make(s3d->front.buckets, setup->names[i]);
	s3d->tls = tls_of(setup);
	s3d->stop = eventfd(0, EFD_CLOEXEC);
	s3d->again = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s3d->stop < 0 || s3d->again < 0)
		die("eventfd");
}

int main(int argc, char **argv)
{
	static struct s3d s3d = {.lock = PTHREAD_MUTEX_INITIALIZER,
		.ended = PTHREAD_COND_INITIALIZER,
		.options = {.domain = "s3.localhost",
			.idle_ms = 60000,
			.body_most = UINT64_C(5) << 30}};
	struct setup setup = {0};
	sigset_t ending;
	uint16_t port;

	/* Upload ids must not come again when a directory is opened once more. */
	if (getrandom(&setup.buckets.seed, sizeof(setup.buckets.seed), 0) < 0)
		die("getrandom");
	for (int code; (code = getopt_long(argc, argv, "", options, NULL)) != -1;)
		set_option(&s3d, &setup, code);
	if (optind < argc)
		wrong(argv[optind]);
	(void)sigemptyset(&ending);
	(void)sigaddset(&ending, SIGTERM);
	(void)sigaddset(&ending, SIGINT);
	(void)pthread_sigmask(SIG_BLOCK, &ending, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	int signals = signalfd(-1, &ending, SFD_CLOEXEC);
	if (signals < 0)
		die("signalfd");
	prepare(&s3d, &setup);
	int listener = listen_at(setup.port, &port);
	(void)printf("%u\n", port);
	(void)fflush(stdout);

	run(&s3d, listener, signals, setup.until_eof);
	stop(&s3d);
	(void)close(listener);
	if (s3d.front.journal.file)
		(void)fclose(s3d.front.journal.file);
	front_free(&s3d.front);
	guard_clear(&s3d.guard);
	SSL_CTX_free(s3d.tls);
	return 0;
}
