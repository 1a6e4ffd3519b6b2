/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program asks the agent of its node. A client belongs to one thread at a time. Calls wait for the agent, for as
 * long as `timeout_ms` of the client; after a call that failed by a timeout or a broken connection, only reconnect and close
 * make sense. Attach waits until the memory of all slots of the rank is touched, fill for that of one slot if the rank gets
 * other memory, and both for what other ranks have asked for before: a second or two for each GiB. What a client has given up
 * is not made. The code of such a failure is -ETIMEDOUT or -ENOTCONN; every other one is the agent's answer.
 */
#ifndef CKPT_PEER_CLIENT_H
#define CKPT_PEER_CLIENT_H

#include "peer/message.h"
#include "peer/slot_file.h"

struct ckpt_peer_client;

/* A rank of a job, and the memory that it wants. */
struct ckpt_peer_rank {
	struct ckpt_peer_job job;
	uint32_t rank;
	uint32_t slots;      /* CKPT_PEER_SLOTS_MIN or more */
	uint32_t node_ranks; /* of the job on this node, all of this size; 0: unknown */
	uint64_t generation; /* 1 or more */
	uint64_t capacity;   /* bytes of a slot */
};

/* A slot to write to. It is the client's, who unmaps it when it detaches or closes. */
struct ckpt_peer_fill {
	uint64_t slot;
	char *data; /* aligned to 4096 */
	uint64_t capacity;
	struct ckpt_digest *digests; /* one for each chunk of CKPT_PEER_SLOT_CHUNK */
};

/* A sealed slot to read. */
struct ckpt_peer_reading {
	struct ckpt_peer_slot_file file;
	struct ckpt_peer_slot_map map;
	struct ckpt_digest *digests; /* a copy that was checked */
};

/* Connects to the agent that serves `dir`. -ENOENT, -ECONNREFUSED: there is none. Sets `err`. */
int ckpt_peer_client_open(const char *dir, int timeout_ms, struct ckpt_error *err,
	struct ckpt_peer_client **ret_client);
/*
 * Unmaps everything. The agent sees a rank that closes without having detached as one that has died. A forked child may close
 * as well; that ends nothing of its parent's. NULL is ignored.
 */
void ckpt_peer_client_close(struct ckpt_peer_client *client);
/*
 * Connects again, and attaches again if it was attached, as the same writer. 1: the agent has what the client has mapped; a
 * slot that is being filled may be sealed. 0: it has not, and all slots of the client were unmapped. Sets `err`.
 */
int ckpt_peer_client_reconnect(struct ckpt_peer_client *client, struct ckpt_error *err);

/*
 * Makes the client that of a rank, once. -ENOMEM: the agent has not enough memory; the message says how much would do.
 * CKPT_EFENCED: the agent has seen a later generation of the job. CKPT_EINUSE: another process is that rank. Sets `err`.
 */
int ckpt_peer_client_attach(
	struct ckpt_peer_client *client, const struct ckpt_peer_rank *rank, struct ckpt_error *err);
/* The rank ends well. When all ranks of the job have, their slots are freed. Unmaps everything. Sets `err`. */
int ckpt_peer_client_detach(struct ckpt_peer_client *client, struct ckpt_error *err);

/*
 * A slot for `step`, which must come after the rank's newest sealed one. keep_generation and keep_step are the newest step
 * that is committed in memory, as far as the rank knows: slots that may still be needed are not given away.
 * -EAGAIN: all may be needed, or are being read; skip this step. A fill that was not sealed is given up by the next one.
 * Sets `err`.
 */
int ckpt_peer_client_fill(struct ckpt_peer_client *client, uint64_t step, uint64_t keep_generation,
	uint64_t keep_step, struct ckpt_error *err, struct ckpt_peer_fill *ret_fill);
/*
 * `length` bytes of data and the digests of their chunks are written, and stay as they are. After a call whose answer was lost,
 * and a reconnect that returns 1, the same call may be made again. Sets `err`.
 */
int ckpt_peer_client_seal(struct ckpt_peer_client *client, const struct ckpt_peer_fill *fill,
	uint64_t step, uint64_t length, struct ckpt_error *err);

/*
 * The slot with the next number after `after`, of `job`, or of any job if it is all zeros. 1: there is one, in
 * *ret_slot; 0: there are no more. Sets `err`.
 */
int ckpt_peer_client_next(struct ckpt_peer_client *client, const struct ckpt_peer_job *job,
	uint64_t after, struct ckpt_error *err, struct ckpt_peer_message *ret_slot);
/*
 * Maps a sealed slot, read only. Until it is released the agent does not have it filled again. CKPT_ENOSTEP: that slot does
 * not hold that step any more. CKPT_EINTEGRITY: it is damaged. Sets `err`.
 */
int ckpt_peer_client_fetch(struct ckpt_peer_client *client, uint64_t slot, uint64_t generation,
	uint64_t step, struct ckpt_error *err, struct ckpt_peer_reading *ret_reading);
int ckpt_peer_client_release(
	struct ckpt_peer_client *client, struct ckpt_peer_reading *reading, struct ckpt_error *err);
/*
 * Copies chunk `index` to `to` and compares the copy with its digest. Returns its length, or CKPT_EINTEGRITY. Any thread.
 * Sets `err`.
 */
int64_t ckpt_peer_reading_copy(
	const struct ckpt_peer_reading *reading, uint64_t index, void *to, struct ckpt_error *err);

int ckpt_peer_client_status(struct ckpt_peer_client *client, struct ckpt_error *err,
	struct ckpt_peer_message *ret_state);

#endif
