/* SPDX-License-Identifier: Apache-2.0 */
/* An agent in a process of its own, its ranks, and what they write. */
#ifndef CKPT_TESTS_UNIT_PEER_AGENT_RIG_H
#define CKPT_TESTS_UNIT_PEER_AGENT_RIG_H

#include <sys/types.h>

#include "agent.h"
#include "peer/client.h"

#define MIB (UINT64_C(1) << 20)

struct agent_rig {
	char *dir;
	struct agent_config config;
	struct agent_directory directory;
	pid_t pid; /* of the agent, or of its keeper */
};

/* Starts an agent that may use `memory` bytes; `kept`: with a keeper. */
void agent_rig_open(struct agent_rig *rig, uint64_t memory, uint64_t linger_s, bool kept);
/* Ends it, and sees that it ends well. */
void agent_rig_close(struct agent_rig *rig);

struct ckpt_peer_client *agent_rig_connect(const struct agent_rig *rig);
/* A rank of job `job`, with two slots of `capacity` bytes. */
struct ckpt_peer_rank agent_rig_rank(
	unsigned job, uint32_t rank, uint64_t generation, uint64_t capacity);
/* Connects and attaches. */
struct ckpt_peer_client *agent_rig_attach(
	const struct agent_rig *rig, const struct ckpt_peer_rank *rank);

/* A connection without a client, and a question on it. Returns the descriptor that comes with the answer, or -1. */
int agent_rig_raw(const struct agent_rig *rig);
int agent_rig_ask(
	int socket, const struct ckpt_peer_message *question, struct ckpt_peer_message *ret_answer);

/* What a rank has at a step: `length` bytes that these numbers decide. */
void agent_rig_pattern(
	void *to, uint64_t length, uint32_t rank, uint64_t generation, uint64_t step);
/* Writes that to a slot, with its digests. */
void agent_rig_write(const struct ckpt_peer_fill *fill, uint64_t length, uint32_t rank,
	uint64_t generation, uint64_t step);
/* Fills a slot with it, and seals it. */
void agent_rig_save(struct ckpt_peer_client *client, const struct ckpt_peer_rank *rank,
	uint64_t step, uint64_t keep_step, uint64_t length);
/* Fetches that step and compares every byte. Returns 0, or the code of the fetch. */
int agent_rig_check(struct ckpt_peer_client *client, const struct ckpt_peer_message *slot);
/* The newest sealed slot of a rank. False: there is none. */
bool agent_rig_newest(struct ckpt_peer_client *client, const struct ckpt_peer_rank *rank,
	struct ckpt_peer_message *ret_slot);
/* Whether the kernel tells of a process at the other end of a socket that it has ended: since Linux 6.5. */
bool agent_rig_has_pidfds(void);
/* What the agent says of itself. */
struct ckpt_peer_message agent_rig_state(struct ckpt_peer_client *client);

#endif
