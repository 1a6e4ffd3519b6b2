/* SPDX-License-Identifier: Apache-2.0 */
/* Lists slots, and gives sealed ones away to be read. */
#include "read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

void agent_next(struct agent_session *session, const struct ckpt_peer_message *question)
{
	const struct ckpt_peer_job any = {{0}};
	bool of_any = memcmp(&question->job, &any, sizeof(any)) == 0;
	const struct agent_slot *slot = agent_slot_after(
		&session->agent->registry, of_any ? NULL : &question->job, question->slot);
	struct ckpt_peer_message answer = {.type = CKPT_PEER_SLOT};

	if (!slot) {
		agent_session_ok(session);
		return;
	}
	answer.job = slot->file.fixed.job;
	answer.slot = slot->file.fixed.number;
	answer.generation = slot->file.record.generation;
	answer.step = slot->file.record.step;
	answer.length = slot->file.record.length;
	answer.capacity = slot->file.fixed.capacity;
	answer.rank = slot->file.fixed.rank;
	answer.state = slot->file.record.state;
	answer.attached = slot->rank->session ? 1 : 0;
	agent_session_reply(session, &answer, -1);
}

/* The header is in memory that others have mapped: a stray write must not make a slot whole that is not. */
static int look(const struct agent_slot *slot, const struct ckpt_peer_message *question,
	struct ckpt_error *err)
{
	struct ckpt_peer_slot_fixed fixed;
	struct ckpt_peer_slot_record record;

	if (!slot || slot->file.record.state != CKPT_PEER_SEALED ||
		slot->file.record.generation != question->generation ||
		slot->file.record.step != question->step)
		return ckpt_fail(err, CKPT_ENOSTEP,
			"slot %llu does not hold step %llu of generation %llu, or not all of it",
			(unsigned long long)question->slot, (unsigned long long)question->step,
			(unsigned long long)question->generation);
	if (ckpt_peer_slot_get((const uint8_t *)slot->header.base, slot->file.bytes, NULL, &fixed,
		    &record) == 0 &&
		fixed.number == slot->file.fixed.number &&
		fixed.capacity == slot->file.fixed.capacity && record.state == CKPT_PEER_SEALED &&
		record.generation == slot->file.record.generation &&
		record.step == slot->file.record.step &&
		record.length == slot->file.record.length &&
		ckpt_digest_equal(&record.digest, &slot->file.record.digest))
		return 0;
	return ckpt_fail(err, CKPT_EINTEGRITY,
		"the header of slot %llu, with step %llu of rank %u, is damaged; take it from "
		"elsewhere",
		(unsigned long long)question->slot, (unsigned long long)question->step,
		slot->rank->number);
}

/* The same memory by a descriptor that cannot be mapped to write. */
static int open_to_read(const struct agent_slot *slot, struct ckpt_error *err)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", slot->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	fd = -errno;
	return ckpt_fail(err, fd, "the agent cannot open slot %llu to read: %s",
		(unsigned long long)slot->file.fixed.number, ckpt_code_text(fd));
}

void agent_fetch(struct agent_session *session, const struct ckpt_peer_message *question)
{
	struct agent_slot *slot = agent_slot_find(&session->agent->registry, question->slot);
	struct ckpt_peer_message answer = {.type = CKPT_PEER_FETCHED, .slot = question->slot};
	struct ckpt_error err;
	int fd;

	ckpt_error_clear(&err);
	fd = look(slot, question, &err);
	if (fd == 0 && session->readings == AGENT_READINGS_MAX)
		fd = ckpt_fail(&err, -ENOSPC, "this connection reads %u slots; release one first",
			AGENT_READINGS_MAX);
	if (fd == 0)
		fd = open_to_read(slot, &err);
	if (fd < 0) {
		agent_session_refuse(session, &err);
		return;
	}
	session->reading[session->readings++] = slot;
	slot->readers++;
	answer.length = slot->file.record.length;
	agent_session_reply(session, &answer, fd);
	(void)close(fd);
}

void agent_release(struct agent_session *session, const struct ckpt_peer_message *question)
{
	for (unsigned i = 0; i < session->readings; i++) {
		if (session->reading[i]->file.fixed.number != question->slot)
			continue;
		session->reading[i]->readers--;
		session->reading[i] = session->reading[--session->readings];
		agent_session_ok(session);
		return;
	}
	agent_session_refuse_text(session, -EINVAL, "this connection does not read slot %llu",
		(unsigned long long)question->slot);
}

void agent_tell_state(struct agent_session *session)
{
	struct agent *agent = session->agent;
	struct ckpt_peer_message answer = {
		.type = CKPT_PEER_STATE,
		.memory = agent->config.memory,
		.used = agent_registry_used(&agent->registry),
		.linger_s = agent->config.linger_s,
		.pid = (uint32_t)getpid(),
	};

	for (const struct agent_job *job = agent->registry.jobs; job; job = job->next) {
		answer.jobs++;
		for (const struct agent_rank *rank = job->ranks; rank; rank = rank->next) {
			answer.slots += rank->count;
			answer.attached += rank->session ? 1 : 0;
		}
	}
	agent_session_reply(session, &answer, -1);
}
