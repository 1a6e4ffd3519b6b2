/* SPDX-License-Identifier: Apache-2.0 */
/* Who is sent when: the line, how many at once, cancelling at any moment, closing, forks. */
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "lib/hang_inbox.h"
#include "lib/http_rig.h"
#include "lib/prng.h"
#include "lib/scratch.h"
#include "lib/test.h"

#define OK_TEXT "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

/* Answers only when it is let. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned open;      /* requests that may be answered; guarded by lock */
	unsigned waiting;   /* guarded by lock */
	unsigned order[64]; /* as they came; guarded by lock */
	unsigned count;     /* guarded by lock */
};

static void gate_init(struct gate *gate)
{
	*gate = (struct gate){0};
	assert_int_equal(pthread_mutex_init(&gate->lock, NULL), 0);
	assert_int_equal(ckpt_cond_init(&gate->changed), 0);
}

static void gate_destroy(struct gate *gate)
{
	(void)pthread_cond_destroy(&gate->changed);
	(void)pthread_mutex_destroy(&gate->lock);
}

static void gate_open(struct gate *gate, unsigned more)
{
	pthread_mutex_lock(&gate->lock);
	gate->open += more;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

static unsigned gate_waiting(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	unsigned waiting = gate->waiting;
	pthread_mutex_unlock(&gate->lock);
	return waiting;
}

/* Until so many requests stand before it. */
static void gate_await(struct gate *gate, unsigned waiting)
{
	await(gate_waiting(gate) == waiting);
}

/* Says that somebody stands here, and has him stand until he is let go. */
static void stand(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->waiting++;
	pthread_cond_broadcast(&gate->changed);
	while (gate->open == 0)
		(void)pthread_cond_wait(&gate->changed, &gate->lock);
	gate->open--;
	gate->waiting--;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

static void serve_gate(struct http_peer *peer, void *user)
{
	struct gate *gate = user;

	while (http_peer_request(peer)) {
		const char *number = http_peer_header(peer, "x-number");
		pthread_mutex_lock(&gate->lock);
		if (number && gate->count < COUNT(gate->order))
			gate->order[gate->count++] = (unsigned)strtoul(number, NULL, 10);
		pthread_mutex_unlock(&gate->lock);
		stand(gate);
		if (!http_peer_send(peer, OK_TEXT))
			return;
	}
}

static void test_line_in_order(void **state)
{
	const struct ckpt_http_config config = {.connections = 1};
	struct http_ask asks[20];
	struct ckpt_http_header headers[20];
	char numbers[20][4];
	struct http_rig rig;
	struct gate gate;

	(void)state;
	gate_init(&gate);
	http_rig_open(&rig, &config, serve_gate, &gate, NULL);
	for (unsigned i = 0; i < 20; i++) {
		(void)snprintf(numbers[i], sizeof(numbers[i]), "%u", i);
		headers[i] = (struct ckpt_http_header){"x-number", numbers[i]};
		http_ask_init(&asks[i], &rig, CKPT_HTTP_GET);
		asks[i].req.headers = &headers[i];
		asks[i].req.header_count = 1;
		http_ask_submit(&asks[i]);
	}
	gate_await(&gate, 1);
	gate_open(&gate, 20);
	http_rig_wait(&rig, 20);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(gate.order[i], i);
		assert_int_equal(asks[i].req.result, 0);
		http_ask_clear(&asks[i]);
	}
	assert_int_equal(http_server_connections(rig.server), 1);
	http_rig_close(&rig);
	gate_destroy(&gate);
}

static void test_as_many_as_there_may_be(void **state)
{
	static const unsigned widths[] = {8, 3, 1, 5};

	(void)state;
	for (unsigned threads = 1; threads <= 3; threads++) {
		const struct ckpt_http_config config = {.connections = 8, .threads = threads};
		struct http_ask asks[32];
		struct http_rig rig;
		struct gate gate;
		gate_init(&gate);
		http_rig_open(&rig, &config, serve_gate, &gate, NULL);
		for (size_t w = 0; w < COUNT(widths); w++) {
			unsigned width = widths[w];
			unsigned before = rig.came_back;
			ckpt_http_widen(rig.http, width);
			for (unsigned i = 0; i < 32; i++) {
				http_ask_init(&asks[i], &rig, CKPT_HTTP_GET);
				http_ask_submit(&asks[i]);
			}
			/* All of them, on whatever threads; and no more until one is answered. */
			gate_await(&gate, width);
			for (unsigned i = 0; i < 32; i++) {
				gate_open(&gate, 1);
				http_rig_wait(&rig, before + i + 1);
				unsigned left = 31 - i;
				gate_await(&gate, left < width ? left : width);
			}
			for (unsigned i = 0; i < 32; i++)
				http_ask_clear(&asks[i]);
		}
		assert_true(http_server_connections(rig.server) <= 8 + threads);
		http_rig_close(&rig);
		gate_destroy(&gate);
	}
}

static void test_cancel(void **state)
{
	const struct ckpt_http_config config = {.connections = 2};
	struct http_ask asks[4];
	struct http_rig rig;
	struct gate gate;

	(void)state;
	gate_init(&gate);
	http_rig_open(&rig, &config, serve_gate, &gate, NULL);
	for (unsigned i = 0; i < 4; i++) {
		http_ask_init(&asks[i], &rig, CKPT_HTTP_GET);
		http_ask_submit(&asks[i]);
	}
	gate_await(&gate, 2);
	/* In line, and under way. */
	ckpt_http_cancel(rig.http, &asks[2].req);
	http_rig_wait(&rig, 1);
	assert_int_equal(asks[2].req.result, -ECANCELED);
	assert_int_equal(asks[2].req.reach, CKPT_HTTP_UNSENT);
	ckpt_http_cancel(rig.http, &asks[0].req);
	ckpt_http_cancel(rig.http, &asks[0].req);
	http_rig_wait(&rig, 2);
	assert_int_equal(asks[0].req.result, -ECANCELED);
	assert_int_equal(asks[0].req.reach, CKPT_HTTP_SENT);
	gate_open(&gate, 8);
	http_rig_wait(&rig, 4);
	assert_int_equal(asks[1].req.result, 0);
	assert_int_equal(asks[3].req.result, 0);
	/* Whoever is done is left as it is. */
	ckpt_http_cancel(rig.http, &asks[1].req);
	assert_int_equal(asks[1].req.result, 0);
	for (unsigned i = 0; i < 4; i++)
		http_ask_clear(&asks[i]);
	http_rig_close(&rig);
	gate_destroy(&gate);
}

static int look_up_nothing(void *user, const char *host, struct ckpt_http_addresses *ret_addresses)
{
	(void)host;
	(void)ret_addresses;
	stand(user);
	return EAI_AGAIN;
}

/* The client has said hello, and hears nothing. */
static void serve_no_tls(struct http_peer *peer, void *user)
{
	char byte;

	if (recv(peer->fd, &byte, 1, MSG_PEEK) == 1)
		stand(user);
}

/* Before there is a connection: its name is being looked up, or its TLS agreed upon. */
static void test_cancel_while_connecting(void **state)
{
	/* Nobody waits for the thread that looks it up. */
	static struct gate gate;
	const struct ckpt_http_config config = {.lookup = look_up_nothing, .user = &gate};
	struct http_ask asks[2];
	struct http_rig rig;

	(void)state;
	gate_init(&gate);
	http_rig_open(&rig, &config, serve_no_tls, &gate, NULL);
	for (unsigned i = 0; i < 2; i++) {
		http_ask_init(&asks[i], &rig, CKPT_HTTP_GET);
		http_ask_url(&asks[i], i == 0 ? "http" : "https",
			i == 0 ? "hangs.example" : "127.0.0.1", rig.server->port);
		asks[i].req.limits.connect_ms = 60000;
		http_ask_submit(&asks[i]);
		gate_await(&gate, i + 1);
	}
	for (unsigned i = 0; i < 2; i++) {
		ckpt_http_cancel(rig.http, &asks[i].req);
		http_rig_wait(&rig, i + 1);
		assert_int_equal(asks[i].req.result, -ECANCELED);
		assert_int_equal(asks[i].req.reach, CKPT_HTTP_UNSENT);
	}
	gate_open(&gate, 2);
	gate_await(&gate, 0);
	http_rig_close(&rig);
}

static void serve_quickly(struct http_peer *peer, void *user)
{
	(void)user;
	while (http_peer_request(peer)) {
		if (!http_peer_send(
			    peer, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"))
			return;
	}
}

#define RACES 4000
#define AHEAD 24

/* At any moment: each comes back once, done or cancelled, and what it says fits. */
static void test_cancel_races(void **state)
{
	const struct ckpt_http_config config = {.connections = 6, .threads = 2};
	static struct http_ask asks[AHEAD];
	static char body[40000];
	struct prng prng = {.state = 6};
	struct http_rig rig;
	unsigned done = 0;
	unsigned cancelled = 0;

	(void)state;
	http_rig_open(&rig, &config, serve_quickly, NULL, NULL);
	for (unsigned round = 0; round < RACES / AHEAD; round++) {
		unsigned before = rig.came_back;
		/* At most so many connections are there to be broken: the server counts them. */
		for (unsigned i = 0; i < AHEAD; i++) {
			http_ask_init(&asks[i], &rig, CKPT_HTTP_PUT);
			asks[i].req.body = body;
			asks[i].req.body_length = prng_below(&prng, sizeof(body));
			http_ask_submit(&asks[i]);
			unsigned other = (unsigned)prng_below(&prng, i + 1);
			if (prng_below(&prng, 3) == 0)
				ckpt_http_cancel(rig.http, &asks[other].req);
			if (prng_below(&prng, 16) == 0)
				ckpt_http_widen(rig.http, 1 + (unsigned)prng_below(&prng, 6));
		}
		for (unsigned i = 0; i < AHEAD; i++) {
			if (prng_below(&prng, 4) == 0)
				ckpt_http_cancel(rig.http, &asks[i].req);
			if (prng_below(&prng, 4) == 0)
				http_rig_wait(
					&rig, rig.came_back + (rig.came_back < before + AHEAD));
		}
		http_rig_wait(&rig, before + AHEAD);
		for (unsigned i = 0; i < AHEAD; i++) {
			const struct ckpt_http_req *req = &asks[i].req;
			assert_int_equal(asks[i].came_back, 1);
			assert_true(req->result == 0 || req->result == -ECANCELED);
			assert_true((req->result == 0) == (req->status == 200 && req->reply));
			*(req->result == 0 ? &done : &cancelled) += 1;
			http_ask_clear(&asks[i]);
		}
	}
	print_message("%u done, %u cancelled\n", done, cancelled);
	assert_true(done > 0 && cancelled > 0);
	http_rig_close(&rig);
}

static void test_close_cancels(void **state)
{
	(void)state;
	size_t descriptors = scratch_descriptors();
	for (unsigned threads = 1; threads <= 2; threads++) {
		const struct ckpt_http_config config = {.connections = 4, .threads = threads};
		struct http_ask asks[12];
		struct http_rig rig;
		struct gate gate;
		gate_init(&gate);
		http_rig_open(&rig, &config, serve_gate, &gate, NULL);
		for (unsigned i = 0; i < 12; i++) {
			http_ask_init(&asks[i], &rig, CKPT_HTTP_GET);
			http_ask_submit(&asks[i]);
		}
		gate_await(&gate, 4);
		/* While none of them is answered. */
		ckpt_http_close(rig.http);
		rig.http = NULL;
		http_rig_wait(&rig, 12);
		for (unsigned i = 0; i < 12; i++) {
			assert_int_equal(asks[i].came_back, 1);
			assert_int_equal(asks[i].req.result, -ECANCELED);
		}
		gate_open(&gate, 12);
		http_rig_close(&rig);
		gate_destroy(&gate);
	}
	assert_int_equal(scratch_descriptors(), descriptors);
}

/* What the child of a fork does. Its exit code: which promise does not hold; 0: all do. */
static int in_child(struct http_rig *rig, struct http_ask *ask, unsigned sockets)
{
	unsigned open_sockets = 0;

	hang_watch();
	for (int fd = 3; fd < 256; fd++) {
		struct sockaddr_in name = {0};
		socklen_t size = sizeof(name);
		/* The client's ends: they have a peer. */
		if (getpeername(fd, (struct sockaddr *)&name, &size) == 0 &&
			name.sin_family == AF_INET && ntohs(name.sin_port) == rig->server->port)
			open_sockets++;
	}
	if (sockets == 0 || open_sockets != 0)
		return 2;
	http_ask_submit(ask);
	struct ckpt_node *node = ckpt_inbox_take(&rig->inbox);
	if (!node || ask->req.result != CKPT_EFORKED || !ask->req.words[0])
		return 3;
	ckpt_http_cancel(rig->http, &ask->req);
	ckpt_http_widen(rig->http, 1);
	ckpt_http_close(rig->http);
	return 0;
}

static void test_fork(void **state)
{
	struct http_rig rig;
	struct http_ask ask;
	int status = 0;

	(void)state;
	http_rig_open(&rig, NULL, serve_quickly, NULL, NULL);
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	assert_int_equal(http_ask_run(&ask), 0);
	http_ask_clear(&ask);
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	unsigned sockets = http_server_connections(rig.server);
	pid_t child = fork();
	if (child == 0)
		_exit(in_child(&rig, &ask, sockets));
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	/* The parent goes on, over the same connection. */
	assert_int_equal(http_ask_run(&ask), 0);
	assert_int_equal(http_server_connections(rig.server), 1);
	http_ask_clear(&ask);
	http_rig_close(&rig);
}

#define PIECE 150000

/* Takes a body, and gives one. */
static void serve_piece(struct http_peer *peer, void *user)
{
	while (http_peer_request(peer)) {
		if (!http_peer_send(peer, "HTTP/1.1 200 OK\r\nContent-Length: 150000\r\n\r\n") ||
			!http_peer_send_bytes(peer, user, PIECE))
			return;
	}
}

/* Of all bodies together. The machine may be slow, but nothing is ever too fast. */
static void run_cap(uint64_t send, uint64_t receive)
{
	static char data[PIECE];
	static char sinks[4][PIECE];
	const struct ckpt_http_config config = {.threads = 2,
		.connections = 4,
		.send_bytes_per_s = send,
		.recv_bytes_per_s = receive};
	struct http_ask asks[4];
	struct http_rig rig;

	memset(data, 'x', sizeof(data));
	http_rig_open(&rig, &config, serve_piece, data, NULL);
	uint64_t begun_ns = ckpt_clock_ns();
	for (unsigned i = 0; i < 4; i++) {
		http_ask_init(&asks[i], &rig, CKPT_HTTP_PUT);
		asks[i].req.body = data;
		asks[i].req.body_length = PIECE;
		asks[i].req.sink = sinks[i];
		asks[i].req.room = PIECE;
		http_ask_submit(&asks[i]);
	}
	http_rig_wait(&rig, 4);
	uint64_t took_ms = (ckpt_clock_ns() - begun_ns) / 1000000;
	print_message("600 kB at %u and %u kB/s: %u ms\n", (unsigned)(send / 1000),
		(unsigned)(receive / 1000), (unsigned)took_ms);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(asks[i].req.result, 0);
		assert_memory_equal(sinks[i], data, PIECE);
		http_ask_clear(&asks[i]);
	}
	/* 600 ms, less what may come in a burst. */
	assert_true(took_ms >= 500);
	http_rig_close(&rig);
}

static void test_cap(void **state)
{
	(void)state;
	run_cap(1000000, 0);
	run_cap(0, 1000000);
	run_cap(1000000, 1000000);
}

/* Threads of the client whose priority is this much lower than that of their process. */
static unsigned count_nice(int nice)
{
	unsigned count = 0;
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		char path[300];
		char name[32] = "";
		(void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		if (!fgets(name, sizeof(name), file))
			*name = 0;
		(void)fclose(file);
		int id = (int)strtol(entry->d_name, NULL, 10);
		count += strncmp(name, "ckpt-http", 9) == 0 &&
			 getpriority(PRIO_PROCESS, (id_t)id) == nice;
	}
	(void)closedir(dir);
	return count;
}

/* What goes on behind a training gives way to it: the threads of that client, and no other. */
static void test_gives_way(void **state)
{
	int nice = getpriority(PRIO_PROCESS, 0);
	int lower = nice + 10 < 19 ? nice + 10 : 19;

	(void)state;
	for (int gives_way = 0; gives_way < 2; gives_way++) {
		struct ckpt_http_config config = {.threads = 2, .gives_way = gives_way};
		uint64_t deadline_ns = ckpt_deadline(20000);
		struct http_rig rig;

		http_rig_open(&rig, &config, serve_quickly, NULL, NULL);
		/* They do it themselves, when they begin. */
		while (count_nice(gives_way ? lower : nice) != 2) {
			assert_true(ckpt_clock_ns() < deadline_ns);
			(void)sched_yield();
		}
		http_rig_close(&rig);
	}
	assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_line_in_order),
		cmocka_unit_test(test_as_many_as_there_may_be),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_cancel_while_connecting),
		cmocka_unit_test(test_cancel_races),
		cmocka_unit_test(test_close_cancels),
		cmocka_unit_test(test_fork),
		cmocka_unit_test(test_cap),
		cmocka_unit_test(test_gives_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
