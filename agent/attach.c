/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches ranks: fences, the plan of memory, and the slots that are made before the answer. */
#include "attach.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

#include "base/error.h"
#include "budget.h"

#define PAGE_BYTES 4096

/*
 * Whether the process may be that rank, if another one is. An older generation is ended; of the same one only a process that
 * is gone, or the very same process, which has lost its connection.
 */
static int may_take_over(const struct agent_rank *rank, const struct ckpt_peer_message *question,
	struct ckpt_error *err)
{
	const struct agent_session *other = rank->session;

	if (!other || question->generation > other->generation ||
		(question->writer != 0 && question->writer == other->writer))
		return 0;
	if (other->process->pidfd >= 0 && !agent_process_lives(other->process))
		return 0;
	return ckpt_fail(err, CKPT_EINUSE,
		"process %u is rank %u of this generation of the job; end it, or begin a new "
		"generation",
		other->process->pid, rank->number);
}

/* Ends the sessions of older generations, and an older one of this rank. */
static void fence(struct agent_rank *rank, uint64_t generation)
{
	for (struct agent_rank *r = rank->job->ranks; r; r = r->next) {
		struct agent_session *other = r->session;

		if (!other || (r != rank && other->generation >= generation))
			continue;
		agent_session_refuse_text(other, CKPT_EFENCED,
			"generation %llu of this job has begun, so rank %u of generation %llu has "
			"no slots "
			"any more",
			(unsigned long long)generation, r->number,
			(unsigned long long)other->generation);
		agent_session_end(other);
	}
}

/* Whether a slot of the rank was given to that writer, who then has it mapped. */
static bool is_known(const struct agent_rank *rank, uint64_t writer)
{
	for (unsigned i = 0; i < rank->count; i++)
		if (writer != 0 && rank->slots[i]->file.record.writer == writer)
			return true;
	return false;
}

static uint64_t new_writer(void)
{
	uint64_t writer = 0;

	/* So few bytes are never interrupted. */
	while (writer == 0 || writer == CKPT_PEER_WRITER_UNKNOWN)
		if (getrandom(&writer, sizeof(writer), 0) < 0)
			CKPT_ASSERT(errno == EINTR);
	return writer;
}

static void become(struct agent_session *session, struct agent_rank *rank,
	const struct ckpt_peer_message *question)
{
	session->rank = rank;
	session->generation = question->generation;
	session->writer = is_known(rank, question->writer) ? question->writer : new_writer();
	rank->session = session;
	rank->ended = false;
	rank->wanted = question->slots;
	rank->capacity = ckpt_align_up(question->capacity, PAGE_BYTES);
	for (unsigned i = 0; i < rank->count; i++) {
		struct agent_slot *slot = rank->slots[i];

		if (slot->file.record.writer != session->writer)
			continue;
		/* After a restart the agent does not know who has it, and after a reconnect only by the older connection. */
		agent_process_let_go(slot->process);
		slot->process = agent_process_use(session->process);
		if (slot->file.record.state == CKPT_PEER_FILLING &&
			slot->file.record.generation == session->generation)
			session->filling = slot;
	}
}

/* What is not needed of a rank that had more slots. */
static void drop_extra(struct agent_registry *registry, struct agent_rank *rank)
{
	for (unsigned i = rank->count; i > 0 && rank->count > rank->wanted; i--) {
		struct agent_slot *slot = rank->slots[i - 1];

		if (slot->file.record.state != CKPT_PEER_SEALED && slot != rank->session->filling)
			agent_slot_drop(registry, slot);
	}
}

static void go_on(struct agent_session *session);

/* The client was told, if it is still there, that it is not attached. */
static void give_up(struct agent_session *session)
{
	if (session->rank)
		session->rank->promised = 0;
	agent_session_leave(session);
}

static void made(struct ckpt_node *node)
{
	struct agent_session *session = CKPT_CONTAINER(node, struct agent_session, order.node);

	if (agent_session_made(session))
		go_on(session);
	else
		give_up(session);
}

static void go_on(struct agent_session *session)
{
	const struct ckpt_peer_message answer = {
		.type = CKPT_PEER_ATTACHED, .writer = session->writer};

	if (session->rank->count >= session->rank->wanted)
		agent_session_reply(session, &answer, -1);
	else if (!agent_session_order(session, NULL, made))
		give_up(session);
}

void agent_attach(struct agent_session *session, const struct ckpt_peer_message *question)
{
	struct agent *agent = session->agent;
	struct ckpt_error err;
	struct agent_rank *rank = NULL;
	struct agent_job *job;
	int r = 0;

	ckpt_error_clear(&err);
	if (session->rank) {
		agent_session_refuse_text(session, -EALREADY, "this connection is attached");
		return;
	}
	job = agent_job_of(&agent->registry, &question->job);
	if (job)
		rank = agent_rank_of(job, question->rank);
	if (!rank) {
		agent_session_refuse_text(
			session, -ENOMEM, "the agent has no memory for another rank");
		return;
	}
	if (question->generation < job->generation)
		r = ckpt_fail(&err, CKPT_EFENCED,
			"generation %llu of this job has begun, so generation %llu gets no slots",
			(unsigned long long)job->generation,
			(unsigned long long)question->generation);
	if (r == 0)
		r = may_take_over(rank, question, &err);
	if (r == 0)
		r = agent_budget_promise(agent, rank, question, &err);
	if (r < 0) {
		agent_session_refuse(session, &err);
		return;
	}
	agent_job_fence(job);
	fence(rank, question->generation);
	become(session, rank, question);
	drop_extra(&agent->registry, rank);
	go_on(session);
}

/* Its process says that it has nothing mapped any more. */
static void let_go(struct agent_session *session)
{
	struct agent_rank *rank = session->rank;

	for (unsigned i = 0; i < rank->count; i++) {
		if (rank->slots[i]->process != session->process)
			continue;
		agent_process_let_go(rank->slots[i]->process);
		rank->slots[i]->process = NULL;
	}
	agent_registry_unmapped(&session->agent->registry, session->process);
}

/* A slot that is filling is given up with that: nobody can write to it. */
void agent_unmapped(struct agent_session *session)
{
	if (session->rank)
		let_go(session);
	session->filling = NULL;
	agent_session_ok(session);
}

void agent_detach(struct agent_session *session)
{
	struct agent_rank *rank = session->rank;

	if (!rank) {
		agent_session_refuse_text(session, -EINVAL, "this connection is not attached");
		return;
	}
	let_go(session);
	rank->ended = true;
	agent_session_ok(session);
	agent_session_end(session);
}
