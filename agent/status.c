/* SPDX-License-Identifier: Apache-2.0 */
/* Asks an agent for its state and its slots, and prints them. */
#include "status.h"

#include <errno.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/error.h"
#include "memory.h"
#include "peer/client.h"

#define TIMEOUT_MS 10000
#define SCHEMA     1 /* of --json; members are only ever added */

static const char *const states[] = {"empty", "filling", "sealed"};

static void put_job(struct ckpt_buf *out, const struct ckpt_peer_job *job)
{
	for (unsigned i = 0; i < CKPT_PEER_JOB_BYTES; i++)
		ckpt_buf_printf(out, "%02x", job->bytes[i]);
}

static void put_state(
	struct ckpt_buf *out, bool json, const char *dir, const struct ckpt_peer_message *state)
{
	char memory[AGENT_SIZE_TEXT];
	char used[AGENT_SIZE_TEXT];

	if (json) {
		ckpt_buf_printf(out, "{\"schema\":%d,\"type\":\"agent\",\"dir\":", SCHEMA);
		ckpt_buf_put_json(out, dir);
		ckpt_buf_printf(out,
			",\"pid\":%u,\"memory\":%llu,\"used\":%llu,\"linger_s\":%llu,\"jobs\":%u,"
			"\"slots\":%u,\"attached\":%u}\n",
			state->pid, (unsigned long long)state->memory,
			(unsigned long long)state->used, (unsigned long long)state->linger_s,
			state->jobs, state->slots, state->attached);
		return;
	}
	ckpt_buf_printf(out,
		"%s: process %u; %s of %s in use; %u jobs, %u slots, %u ranks attached; slots stay "
		"%llu s "
		"without a rank\n",
		dir, state->pid, agent_size_text(state->used, used),
		agent_size_text(state->memory, memory), state->jobs, state->slots, state->attached,
		(unsigned long long)state->linger_s);
}

static void put_slot(struct ckpt_buf *out, bool json, const struct ckpt_peer_message *slot)
{
	char capacity[AGENT_SIZE_TEXT];

	if (json) {
		ckpt_buf_printf(out, "{\"schema\":%d,\"type\":\"slot\",\"job\":\"", SCHEMA);
		put_job(out, &slot->job);
		ckpt_buf_printf(out,
			"\",\"slot\":%llu,\"rank\":%u,\"state\":\"%s\",\"generation\":%llu,"
			"\"step\":%llu,"
			"\"length\":%llu,\"capacity\":%llu,\"attached\":%s}\n",
			(unsigned long long)slot->slot, slot->rank, states[slot->state],
			(unsigned long long)slot->generation, (unsigned long long)slot->step,
			(unsigned long long)slot->length, (unsigned long long)slot->capacity,
			slot->attached ? "true" : "false");
		return;
	}
	put_job(out, &slot->job);
	ckpt_buf_printf(out, "  rank %-5u slot %-4llu %-10s %s", slot->rank,
		(unsigned long long)slot->slot, agent_size_text(slot->capacity, capacity),
		states[slot->state]);
	if (slot->state != CKPT_PEER_EMPTY)
		ckpt_buf_printf(out, ": step %llu of generation %llu",
			(unsigned long long)slot->step, (unsigned long long)slot->generation);
	ckpt_buf_puts(out, slot->attached ? "\n" : ", no rank\n");
}

static int ask(struct ckpt_peer_client *client, const char *dir, bool json, struct ckpt_buf *out,
	struct ckpt_error *err)
{
	const struct ckpt_peer_job any = {{0}};
	struct ckpt_peer_message answer = {.slot = 0};
	int r = ckpt_peer_client_status(client, err, &answer);

	if (r < 0)
		return r;
	put_state(out, json, dir, &answer);
	answer.slot = 0;
	while ((r = ckpt_peer_client_next(client, &any, answer.slot, err, &answer)) > 0)
		put_slot(out, json, &answer);
	return r;
}

int agent_status(const char *dir, bool json, struct ckpt_error *err)
{
	struct ckpt_buf out = {0};
	struct ckpt_peer_client *client;
	int r = ckpt_peer_client_open(dir, TIMEOUT_MS, err, &client);

	if (r < 0)
		return r;
	r = ask(client, dir, json, &out, err);
	ckpt_peer_client_close(client);
	if (r == 0 && (out.failed || fwrite(out.data, 1, out.len, stdout) != out.len ||
			      fflush(stdout) != 0))
		r = ckpt_fail(err, out.failed ? -ENOMEM : -EIO, "cannot print the status");
	ckpt_buf_free(&out);
	return r;
}
