/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: a slot is filled again only when nobody can need what it holds. And a memfd has one writer in its life: a process
 * that was taken for dead may still write to what it has mapped, so its successor gets other memory.
 */
#include "fill.h"

#include <errno.h>

#include "base/error.h"

static bool comes_before(uint64_t generation, uint64_t step, const struct ckpt_peer_slot_record *b)
{
	return generation < b->generation || (generation == b->generation && step < b->step);
}

static bool is_sealed(const struct agent_slot *slot)
{
	return slot->file.record.state == CKPT_PEER_SEALED;
}

/*
 * Whether some rank may still need the step. `question` names the newest one that is committed in memory: that is needed, and
 * so is what comes after it in this generation, because it may be committed yet. What else an older generation has left
 * will never be.
 */
static bool is_needed(const struct agent_session *session, const struct agent_slot *slot,
	const struct ckpt_peer_message *question)
{
	const struct ckpt_peer_slot_record *record = &slot->file.record;

	if (!is_sealed(slot))
		return false;
	if (record->generation == question->keep_generation && record->step == question->keep_step)
		return true;
	return record->generation == session->generation &&
	       comes_before(question->keep_generation, question->keep_step, record);
}

/* One that is not sealed, else the oldest one that may go. NULL: none. */
static struct agent_slot *choose(
	const struct agent_session *session, const struct ckpt_peer_message *question)
{
	const struct agent_rank *rank = session->rank;
	struct agent_slot *found = NULL;

	for (unsigned i = 0; i < rank->count; i++) {
		struct agent_slot *slot = rank->slots[i];
		const struct ckpt_peer_slot_record *record = &slot->file.record;

		if (slot->readers > 0 || is_needed(session, slot, question))
			continue;
		if (!is_sealed(slot))
			return slot;
		if (!found || comes_before(record->generation, record->step, &found->file.record))
			found = slot;
	}
	return found;
}

/* The record goes first: whatever the rank does with the slot, it is torn from now on. */
static void give(struct agent_session *session, struct agent_slot *slot)
{
	const struct ckpt_peer_slot_record record = {
		.state = CKPT_PEER_FILLING,
		.writer = session->writer,
		.generation = session->generation,
		.step = session->question.step,
	};
	const struct ckpt_peer_message answer = {
		.type = CKPT_PEER_FILLED,
		.slot = slot->file.fixed.number,
		.capacity = slot->file.fixed.capacity,
	};

	agent_slot_write(slot, &record);
	if (slot->process != session->process) {
		agent_process_let_go(slot->process);
		slot->process = agent_process_use(session->process);
	}
	session->filling = slot;
	/* Each time: a process that could not map it the last time may be able to now. */
	agent_session_reply(session, &answer, slot->fd);
}

static void made(struct ckpt_node *node)
{
	struct agent_session *session = CKPT_CONTAINER(node, struct agent_session, order.node);
	struct agent_slot *slot = agent_session_made(session);

	if (slot)
		give(session, slot);
}

/* Whether this process may write to it: nobody else ever could, and it is as large as it wants. */
static bool is_usable(const struct agent_session *session, const struct agent_slot *slot)
{
	uint64_t writer = slot->file.record.writer;

	return (writer == session->writer || writer == 0) &&
	       slot->file.fixed.capacity == session->rank->capacity;
}

static void fill(struct agent_session *session, const struct ckpt_peer_message *question)
{
	struct agent_rank *rank = session->rank;
	struct agent_slot *slot = session->filling;

	/* What it has not sealed it has given up. */
	session->filling = NULL;
	session->question = *question;
	if (!slot)
		slot = choose(session, question);
	if (slot && is_usable(session, slot)) {
		give(session, slot);
		return;
	}
	if (!slot && rank->count >= rank->wanted) {
		agent_session_refuse_text(session, -EAGAIN,
			"the %u slots of rank %u hold steps that may still be needed, or are being "
			"read; skip "
			"this step, or use more slots",
			rank->count, rank->number);
		return;
	}
	(void)agent_session_order(session, slot, made);
}

void agent_fill(struct agent_session *session, const struct ckpt_peer_message *question)
{
	const struct agent_rank *rank = session->rank;

	if (!rank) {
		agent_session_refuse_text(session, -EINVAL, "this connection is not attached");
		return;
	}
	for (unsigned i = 0; i < rank->count; i++) {
		const struct ckpt_peer_slot_record *record = &rank->slots[i]->file.record;

		if (!is_sealed(rank->slots[i]) || record->generation != session->generation ||
			record->step < question->step)
			continue;
		agent_session_refuse_text(session, CKPT_ESTEP,
			"step %llu does not come after step %llu, which rank %u has sealed",
			(unsigned long long)question->step, (unsigned long long)record->step,
			rank->number);
		return;
	}
	fill(session, question);
}

/* Whether it was sealed so before: the answer may have been lost, and then the rank asks again. */
static bool is_sealed_so(
	const struct agent_session *session, const struct ckpt_peer_message *question)
{
	const struct agent_rank *rank = session->rank;

	for (unsigned i = 0; rank && i < rank->count; i++) {
		const struct ckpt_peer_slot_record *record = &rank->slots[i]->file.record;

		if (rank->slots[i]->file.fixed.number == question->slot)
			return is_sealed(rank->slots[i]) && record->writer == session->writer &&
			       record->generation == session->generation &&
			       record->step == question->step &&
			       record->length == question->length &&
			       ckpt_digest_equal(&record->digest, &question->digest);
	}
	return false;
}

void agent_seal(struct agent_session *session, const struct ckpt_peer_message *question)
{
	struct agent_slot *slot = session->filling;
	struct ckpt_peer_slot_record record;

	if (is_sealed_so(session, question)) {
		agent_session_ok(session);
		return;
	}
	if (!slot || slot->file.fixed.number != question->slot ||
		slot->file.record.step != question->step ||
		question->length > slot->file.fixed.capacity) {
		agent_session_refuse_text(session, -EINVAL,
			"slot %llu was not given for step %llu, or is shorter than %llu bytes",
			(unsigned long long)question->slot, (unsigned long long)question->step,
			(unsigned long long)question->length);
		return;
	}
	record = slot->file.record;
	record.state = CKPT_PEER_SEALED;
	record.length = question->length;
	record.digest = question->digest;
	agent_slot_write(slot, &record);
	session->filling = NULL;
	agent_session_ok(session);
}
