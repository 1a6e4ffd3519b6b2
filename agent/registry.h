/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jobs, ranks and slots of an agent. Each owns those below it. What a slot holds is in its header, which a new agent
 * reads; the registry has a copy.
 */
#ifndef CKPT_AGENT_REGISTRY_H
#define CKPT_AGENT_REGISTRY_H

#include "manager.h"
#include "peer/message.h"
#include "peer/slot_file.h"
#include "process.h"

struct agent_session;

struct agent_slot {
	struct agent_rank *rank;
	int fd;
	struct ckpt_peer_slot_file file;
	struct ckpt_peer_slot_map header;
	/* Who was given it for writing and may have it mapped; NULL: nobody, or nobody knows. */
	struct agent_process *process;
	unsigned readers;
};

struct agent_rank {
	struct agent_rank *next;
	struct agent_job *job;
	uint32_t number;
	uint32_t wanted;     /* slots */
	uint64_t capacity;   /* of slots that are made from now on */
	bool ended;          /* its last process has ended well */
	uint64_t generation; /* that it was last attached in; 0: not since the agent started */
	uint64_t promised;   /* bytes of slots that it asked for then */
	uint64_t ordered;    /* bytes of the slot that is being made for it */
	uint64_t leaving;    /* bytes of the slot that goes for that one; while it is counted */
	struct agent_session *session; /* attached; NULL: none */
	unsigned count;
	struct agent_slot *slots[CKPT_PEER_SLOTS_MAX];
};

struct agent_job {
	struct agent_job *next;
	struct ckpt_peer_job id;
	uint64_t generation; /* the highest that was seen */
	uint32_t node_ranks; /* of that generation, on this node; 0: unknown */
	uint64_t each;       /* bytes of slots that each of them may ask for */
	bool in_use;         /* when it was last looked at */
	uint64_t left_ns;    /* when it was no longer; by ckpt_age_clock_ns() */
	struct agent_rank *ranks;
};

/* Memory of a slot that was dropped, which a process has mapped. */
struct agent_remnant;

struct agent_registry {
	struct agent_job *jobs;
	struct agent_remnant *remnants;
	const struct agent_manager *manager;
	uint64_t next_slot; /* the next number */
};

void agent_registry_open(struct agent_registry *registry, const struct agent_manager *manager);
/* Drops everything. No rank may be attached. */
void agent_registry_close(struct agent_registry *registry);

/* Finds or makes. NULL: out of memory. */
struct agent_job *agent_job_of(struct agent_registry *registry, const struct ckpt_peer_job *id);
struct agent_rank *agent_rank_of(struct agent_job *job, uint32_t number);

/* Takes the descriptor of a slot that was made, or kept. Sets `err`; then the descriptor is still the caller's. */
int agent_slot_add(struct agent_registry *registry, struct agent_rank *rank, int fd,
	struct ckpt_error *err, struct agent_slot **ret_slot);
/* Nobody may read it. */
void agent_slot_drop(struct agent_registry *registry, struct agent_slot *slot);
/* The process has nothing mapped any more of slots that were dropped. */
void agent_registry_unmapped(struct agent_registry *registry, const struct agent_process *process);
/* Writes its record, in the header as well. */
void agent_slot_write(struct agent_slot *slot, const struct ckpt_peer_slot_record *record);

/* Takes a descriptor that a manager has kept. False: it is no slot, or there is no room for it; it was closed. */
bool agent_registry_adopt(
	struct agent_registry *registry, const struct agent_kept *kept, struct ckpt_error *err);

/* By number; NULL: none. */
struct agent_slot *agent_slot_find(const struct agent_registry *registry, uint64_t number);
/* The one with the next number after `after`; of any job if `job` is NULL. */
struct agent_slot *agent_slot_after(
	const struct agent_registry *registry, const struct ckpt_peer_job *job, uint64_t after);

/* Bytes of the slots that it has. */
uint64_t agent_job_bytes(const struct agent_job *job);
/* Bytes that it has, or its ranks were promised. */
uint64_t agent_job_claim(const struct agent_job *job);
/* That of all jobs, and what processes have mapped of slots that were dropped. */
uint64_t agent_registry_used(struct agent_registry *registry);
/* How much of what was promised is not made yet. */
uint64_t agent_registry_unmade(const struct agent_registry *registry);
/* A job is busy while a rank is attached, or a slot is read. */
bool agent_job_busy(const struct agent_job *job);
/* A process that has not ended has a slot of it mapped, be it without a connection. */
bool agent_job_held(const struct agent_job *job);
/* All ranks that have slots have ended well; also if none has any. */
bool agent_job_ended(const struct agent_job *job);
/* Writes its generation where another agent finds it, in the headers of its slots. */
void agent_job_fence(const struct agent_job *job);
/* Drops it and all that it has. It must not be busy. */
void agent_job_drop(struct agent_registry *registry, struct agent_job *job);

#endif
