/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of an agent: takes connections and questions, memory that was made, signals, and the end of jobs. */
#include "agent.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "attach.h"
#include "base/error.h"
#include "base/thread.h"
#include "fill.h"
#include "read.h"
#include "say.h"

#define EVENTS       64
#define SESSIONS_MAX 1024
#define NS_PER_S     UINT64_C(1000000000)
#define DAY_MS       UINT64_C(86400000)

/* What an event is of, if it is of no session. */
static const char of_listener = 0;
static const char of_signal = 0;
static const char of_maker = 0;

static void answer(struct agent_session *session, const struct ckpt_peer_message *question)
{
	switch (question->type) {
	case CKPT_PEER_ATTACH:
		agent_attach(session, question);
		return;
	case CKPT_PEER_FILL:
		agent_fill(session, question);
		return;
	case CKPT_PEER_SEAL:
		agent_seal(session, question);
		return;
	case CKPT_PEER_DETACH:
		agent_detach(session);
		return;
	case CKPT_PEER_NEXT:
		agent_next(session, question);
		return;
	case CKPT_PEER_FETCH:
		agent_fetch(session, question);
		return;
	case CKPT_PEER_RELEASE:
		agent_release(session, question);
		return;
	case CKPT_PEER_UNMAPPED:
		agent_unmapped(session);
		return;
	case CKPT_PEER_STATUS:
		agent_tell_state(session);
		return;
	default:
		agent_session_refuse_text(
			session, -EPROTO, "a message of type %u is no question", question->type);
		agent_session_end(session);
	}
}

/* Takes one packet. False: there is none, or the session has ended. */
static bool take_question(struct agent_session *session)
{
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	struct ckpt_peer_message question;
	struct ckpt_error err;
	ssize_t got;

	ckpt_error_clear(&err);
	/* Without room for descriptors the kernel drops those that a client sends along. MSG_TRUNC: the true length. */
	got = recv(session->socket, data, sizeof(data), MSG_DONTWAIT | MSG_TRUNC);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (got <= 0) {
		agent_session_end(session);
		return false;
	}
	if (session->making) {
		agent_session_refuse_text(session, -EPROTO,
			"a client must wait for the answer before it asks the next question");
		agent_session_end(session);
		return false;
	}
	if (ckpt_peer_message_get(
		    data, ckpt_min_u64((uint64_t)got, sizeof(data)), &err, &question) < 0) {
		agent_session_refuse(session, &err);
		agent_session_end(session);
		return false;
	}
	answer(session, &question);
	return session->socket >= 0;
}

/* A session has something to say, or its process has ended. */
static void serve(struct agent_session *session)
{
	struct agent_process *process;

	if (session->socket < 0)
		return;
	process = agent_process_use(session->process);
	/* What a process has said before it was killed counts. */
	while (take_question(session))
		;
	if (process->pidfd >= 0 && !agent_process_lives(process))
		agent_session_end(session);
	agent_process_let_go(process);
}

static void take_connections(struct agent *agent, int listener)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);
	unsigned count = 0;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	for (const struct agent_session *s = agent->sessions; s; s = s->next)
		count++;
	/* The directory keeps others away; this is for one that somebody has opened to them. */
	if (count >= SESSIONS_MAX || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
		peer.uid != geteuid()) {
		(void)close(fd);
		return;
	}
	(void)agent_session_open(agent, fd);
}

static void take_made(struct agent *agent)
{
	struct ckpt_node *next;

	for (struct ckpt_node *node = agent_maker_take(agent->maker); node; node = next) {
		next = node->next;
		node->run(node);
	}
}

static void say_freed(const struct agent_job *job, const char *why)
{
	agent_say("freed the slots of job %02x%02x%02x%02x...: %s", job->id.bytes[0],
		job->id.bytes[1], job->id.bytes[2], job->id.bytes[3], why);
}

/* Frees the jobs that are over. Returns the milliseconds until another one may be, or -1. */
static int free_jobs(struct agent *agent)
{
	uint64_t linger = agent->config.linger_s * NS_PER_S;
	uint64_t now = ckpt_age_clock_ns();
	uint64_t first = UINT64_MAX;
	struct agent_job *next;

	for (struct agent_job *job = agent->registry.jobs; job; job = next) {
		next = job->next;
		/* A process that lives may come back, however it has lost its connection. */
		if (agent_job_busy(job) || (!agent_job_ended(job) && agent_job_held(job))) {
			job->in_use = true;
			continue;
		}
		if (job->in_use)
			job->left_ns = now;
		job->in_use = false;
		if (!agent_job_ended(job) && now - job->left_ns < linger) {
			first = ckpt_min_u64(first, linger - (now - job->left_ns));
			continue;
		}
		if (agent_job_bytes(job) > 0)
			say_freed(job, agent_job_ended(job) ? "its ranks have ended"
							    : "nobody has come back for them");
		agent_job_drop(&agent->registry, job);
	}
	/* Looked at again at least once a day: the time is an int. */
	return first == UINT64_MAX ? -1 : (int)ckpt_min_u64(first / 1000000 + 1, DAY_MS);
}

static bool watch(const struct agent *agent, int fd, const void *of)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = (void *)of};

	return epoll_ctl(agent->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Until a signal. */
static int go_round(struct agent *agent, const struct agent_directory *directory)
{
	struct epoll_event events[EVENTS];

	for (;;) {
		int n = epoll_wait(agent->epoll, events, EVENTS, free_jobs(agent));

		if (n < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < n; i++) {
			void *of = events[i].data.ptr;

			if (of == &of_signal)
				return 0;
			if (of == &of_listener)
				take_connections(agent, directory->socket);
			else if (of == &of_maker)
				take_made(agent);
			else if (of != AGENT_WAKES)
				serve(of);
		}
		agent_sessions_sweep(agent);
	}
}

/* A signal that is blocked, and stays so. */
static int open_signals(void)
{
	sigset_t set;

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int run(struct agent *agent, const struct agent_directory *directory, int signals,
	struct ckpt_error *err)
{
	int r;

	if (!watch(agent, directory->socket, &of_listener) || !watch(agent, signals, &of_signal) ||
		!watch(agent, agent_maker_eventfd(agent->maker), &of_maker)) {
		r = -errno;
		return ckpt_fail(err, r, "cannot watch the socket: %s", ckpt_code_text(r));
	}
	agent_manager_ready(&agent->manager);
	r = go_round(agent, directory);
	return r < 0 ? ckpt_fail(err, r, "cannot wait for events: %s", ckpt_code_text(r)) : 0;
}

static void adopt(struct agent *agent, const struct agent_kept *kept, unsigned count)
{
	unsigned found = 0;

	for (unsigned i = 0; i < count; i++) {
		struct ckpt_error err;

		ckpt_error_clear(&err);
		if (agent_registry_adopt(&agent->registry, &kept[i], &err))
			found++;
		else if (err.code != 0)
			agent_say("%s was kept, and is not used: %s", kept[i].name, err.message);
	}
	if (found > 0)
		agent_say("found %u slots again", found);
}

int agent_run(const struct agent_config *config, const struct agent_directory *directory,
	const char *manager, const struct agent_kept *kept, unsigned kept_count,
	struct ckpt_error *err)
{
	struct agent agent = {.config = *config};
	int signals = open_signals();
	int r;

	agent_manager_open(&agent.manager, manager);
	agent_registry_open(&agent.registry, &agent.manager);
	adopt(&agent, kept, kept_count);
	agent.epoll = epoll_create1(EPOLL_CLOEXEC);
	r = signals < 0 || agent.epoll < 0 ? -errno : 0;
	if (r < 0)
		(void)ckpt_fail(err, r, "cannot make an epoll: %s", ckpt_code_text(r));
	if (r == 0)
		r = agent_maker_open(err, &agent.maker);
	if (r == 0)
		r = run(&agent, directory, signals, err);
	for (struct agent_session *s = agent.sessions; s; s = s->next)
		agent_session_end(s);
	/* The orders that it has are in sessions. */
	agent_maker_close(agent.maker);
	for (struct agent_session *s = agent.sessions; s; s = s->next)
		s->making = false;
	agent_sessions_sweep(&agent);
	agent_registry_close(&agent.registry);
	agent_manager_close(&agent.manager);
	if (agent.epoll >= 0)
		(void)close(agent.epoll);
	if (signals >= 0)
		(void)close(signals);
	return r;
}
