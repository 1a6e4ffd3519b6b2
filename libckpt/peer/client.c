/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's side of the agent's socket: questions, and the slots that the answers bring. */
#include "peer/client.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "peer/connection.h"

/* A slot that this client has mapped to write to. */
struct mapped {
	uint64_t number; /* 0: none */
	ino_t inode; /* of the memfd: numbers begin anew with an agent that has lost its slots */
	struct ckpt_peer_slot_map map;
	struct ckpt_peer_slot_file file;
};

struct ckpt_peer_client {
	struct ckpt_peer_connection connection;
	unsigned forks; /* when it was opened */
	bool attached;
	struct ckpt_peer_rank rank;
	uint64_t writer; /* the agent's number for this process */
	struct mapped mapped[CKPT_PEER_SLOTS_MAX];
};

static void unmap_all(struct ckpt_peer_client *c)
{
	for (unsigned i = 0; i < CKPT_PEER_SLOTS_MAX; i++) {
		ckpt_peer_slot_file_unmap(&c->mapped[i].map);
		c->mapped[i].number = 0;
	}
}

int ckpt_peer_client_open(const char *dir, int timeout_ms, struct ckpt_error *err,
	struct ckpt_peer_client **ret_client)
{
	struct ckpt_peer_client *c = ckpt_alloc(sizeof(*c));
	int r;

	if (!c)
		return ckpt_fail(err, -ENOMEM, "no memory for a client of the agent");
	r = ckpt_peer_connection_open(&c->connection, dir, timeout_ms, err);
	if (r < 0) {
		ckpt_free(c);
		return r;
	}
	c->forks = ckpt_fork_count();
	*ret_client = c;
	return 0;
}

void ckpt_peer_client_close(struct ckpt_peer_client *c)
{
	const struct ckpt_peer_message unmapped = {.type = CKPT_PEER_UNMAPPED};

	if (!c)
		return;
	/* A forked child has neither the connection nor the slots; what it has at their places is its own. */
	if (c->forks == ckpt_fork_count()) {
		unmap_all(c);
		if (c->attached)
			ckpt_peer_connection_tell(&c->connection, &unmapped);
		ckpt_peer_connection_close(&c->connection);
	}
	ckpt_free(c);
}

/* Asks and takes the answer, which must be of a type that carries no descriptor. */
static int ask(struct ckpt_peer_client *c, const struct ckpt_peer_message *question,
	uint32_t expected, struct ckpt_error *err, struct ckpt_peer_message *ret_answer)
{
	int fd = -1;
	int r = ckpt_peer_connection_ask(&c->connection, question, err, ret_answer, &fd);

	if (fd >= 0)
		(void)close(fd);
	if (r == 0 && ret_answer->type != expected)
		return ckpt_peer_connection_unexpected(&c->connection, err);
	return r;
}

static int attach(struct ckpt_peer_client *c, const struct ckpt_peer_rank *rank, uint64_t *writer,
	struct ckpt_error *err)
{
	const struct ckpt_peer_message question = {
		.type = CKPT_PEER_ATTACH,
		.job = rank->job,
		.generation = rank->generation,
		.writer = *writer,
		.capacity = rank->capacity,
		.rank = rank->rank,
		.slots = rank->slots,
		.node_ranks = rank->node_ranks,
	};
	struct ckpt_peer_message answer;
	int r = ask(c, &question, CKPT_PEER_ATTACHED, err, &answer);

	if (r == 0)
		*writer = answer.writer;
	return r;
}

int ckpt_peer_client_attach(
	struct ckpt_peer_client *c, const struct ckpt_peer_rank *rank, struct ckpt_error *err)
{
	int r;

	CKPT_ASSERT(!c->attached && rank->rank < CKPT_PEER_RANKS);
	CKPT_ASSERT(rank->slots >= CKPT_PEER_SLOTS_MIN && rank->slots <= CKPT_PEER_SLOTS_MAX);
	r = attach(c, rank, &c->writer, err);
	if (r < 0)
		return r;
	c->attached = true;
	c->rank = *rank;
	return 0;
}

int ckpt_peer_client_reconnect(struct ckpt_peer_client *c, struct ckpt_error *err)
{
	uint64_t writer = c->writer;
	int r = ckpt_peer_connection_again(&c->connection, err);

	if (r < 0 || !c->attached)
		return r < 0 ? r : 1;
	r = attach(c, &c->rank, &writer, err);
	if (r < 0)
		return r;
	if (writer == c->writer)
		return 1;
	unmap_all(c);
	c->writer = writer;
	return 0;
}

int ckpt_peer_client_detach(struct ckpt_peer_client *c, struct ckpt_error *err)
{
	const struct ckpt_peer_message question = {.type = CKPT_PEER_DETACH};
	struct ckpt_peer_message answer;

	CKPT_ASSERT(c->attached);
	unmap_all(c);
	c->attached = false;
	return ask(c, &question, CKPT_PEER_OK, err, &answer);
}

static struct mapped *mapped_of(struct ckpt_peer_client *c, uint64_t number)
{
	for (unsigned i = 0; i < CKPT_PEER_SLOTS_MAX; i++)
		if (c->mapped[i].number == number)
			return &c->mapped[i];
	return NULL;
}

/* Maps a slot that has come with an answer. The descriptor stays the caller's. */
static int map_to_fill(struct ckpt_peer_client *c, uint64_t number, int fd, struct ckpt_error *err,
	struct mapped **ret_mapped)
{
	struct mapped *m = mapped_of(c, number);
	struct ckpt_peer_slot_file file;
	struct stat status;
	int r = ckpt_peer_slot_file_check(fd, err, &file);

	if (r < 0)
		return r;
	if (fstat(fd, &status) < 0 || file.fixed.number != number ||
		file.fixed.rank != c->rank.rank ||
		memcmp(&file.fixed.job, &c->rank.job, sizeof(c->rank.job)) != 0)
		return ckpt_fail(err, -EPROTO, "the agent has given a slot of another rank");
	/* It was given before. */
	if (m && m->inode == status.st_ino) {
		*ret_mapped = m;
		return 0;
	}
	if (!m)
		m = mapped_of(c, 0);
	if (!m)
		return ckpt_fail(
			err, -EPROTO, "the agent has given more slots than were asked for");
	ckpt_peer_slot_file_unmap(&m->map);
	m->number = 0;
	r = ckpt_peer_slot_file_map(fd, &file, true, true, err, &m->map);
	if (r < 0)
		return r;
	m->number = number;
	m->inode = status.st_ino;
	m->file = file;
	*ret_mapped = m;
	return 0;
}

int ckpt_peer_client_fill(struct ckpt_peer_client *c, uint64_t step, uint64_t keep_generation,
	uint64_t keep_step, struct ckpt_error *err, struct ckpt_peer_fill *ret_fill)
{
	const struct ckpt_peer_message question = {
		.type = CKPT_PEER_FILL,
		.step = step,
		.keep_generation = keep_generation,
		.keep_step = keep_step,
	};
	struct ckpt_peer_message answer;
	struct mapped *m = NULL;
	uint64_t capacity;
	int fd = -1;
	int r;

	CKPT_ASSERT(c->attached);
	r = ckpt_peer_connection_ask(&c->connection, &question, err, &answer, &fd);
	if (r == 0 && (answer.type != CKPT_PEER_FILLED || fd < 0))
		r = ckpt_peer_connection_unexpected(&c->connection, err);
	else if (r == 0)
		r = map_to_fill(c, answer.slot, fd, err, &m);
	if (fd >= 0)
		(void)close(fd);
	if (r < 0)
		return r;
	CKPT_ASSERT(m);
	capacity = m->file.fixed.capacity;
	*ret_fill = (struct ckpt_peer_fill){
		.slot = m->number,
		.data = m->map.base + CKPT_PEER_SLOT_HEADER_BYTES,
		.capacity = capacity,
		.digests = (void *)(m->map.base + ckpt_peer_slot_table(capacity)),
	};
	return 0;
}

int ckpt_peer_client_seal(struct ckpt_peer_client *c, const struct ckpt_peer_fill *fill,
	uint64_t step, uint64_t length, struct ckpt_error *err)
{
	size_t table = ckpt_peer_slot_chunks(length) * CKPT_DIGEST_SIZE;
	struct ckpt_peer_message question = {
		.type = CKPT_PEER_SEAL, .slot = fill->slot, .step = step, .length = length};
	struct ckpt_peer_message answer;

	CKPT_ASSERT(c->attached && length <= fill->capacity);
	question.digest = ckpt_digest_of(fill->digests, table);
	return ask(c, &question, CKPT_PEER_OK, err, &answer);
}

int ckpt_peer_client_next(struct ckpt_peer_client *c, const struct ckpt_peer_job *job,
	uint64_t after, struct ckpt_error *err, struct ckpt_peer_message *ret_slot)
{
	const struct ckpt_peer_message question = {
		.type = CKPT_PEER_NEXT, .job = *job, .slot = after};
	struct ckpt_peer_message answer;
	int fd = -1;
	int r = ckpt_peer_connection_ask(&c->connection, &question, err, &answer, &fd);

	if (fd >= 0)
		(void)close(fd);
	if (r < 0)
		return r;
	if (answer.type == CKPT_PEER_OK)
		return 0;
	/* A list that goes back would never end. */
	if (answer.type != CKPT_PEER_SLOT || answer.slot <= after)
		return ckpt_peer_connection_unexpected(&c->connection, err);
	*ret_slot = answer;
	return 1;
}

/* Whether what was fetched is the step that was asked for, whole; copies its digests. */
static int look(const struct ckpt_peer_message *question, struct ckpt_peer_reading *reading,
	struct ckpt_error *err)
{
	const struct ckpt_peer_slot_record *record = &reading->file.record;
	size_t table = ckpt_peer_slot_chunks(record->length) * CKPT_DIGEST_SIZE;
	struct ckpt_digest digest;

	if (record->state != CKPT_PEER_SEALED || record->generation != question->generation ||
		record->step != question->step || reading->file.fixed.number != question->slot)
		return ckpt_fail(err, CKPT_ENOSTEP,
			"slot %llu does not hold step %llu of generation %llu any more",
			(unsigned long long)question->slot, (unsigned long long)question->step,
			(unsigned long long)question->generation);
	reading->digests = ckpt_memdup(
		reading->map.base + ckpt_peer_slot_table(reading->file.fixed.capacity), table);
	if (!reading->digests)
		return ckpt_fail(err, -ENOMEM, "no memory for %zu bytes of digests", table);
	digest = ckpt_digest_of(reading->digests, table);
	if (ckpt_digest_equal(&digest, &record->digest))
		return 0;
	ckpt_free(reading->digests);
	return ckpt_fail(err, CKPT_EINTEGRITY,
		"the digests of step %llu in the memory of rank %u are damaged; take it from "
		"elsewhere",
		(unsigned long long)question->step, reading->file.fixed.rank);
}

static int map_to_read(int fd, const struct ckpt_peer_message *question,
	struct ckpt_peer_reading *reading, struct ckpt_error *err)
{
	int r = ckpt_peer_slot_file_check(fd, err, &reading->file);

	if (r == 0)
		r = ckpt_peer_slot_file_map(fd, &reading->file, true, false, err, &reading->map);
	if (r < 0)
		return r;
	r = look(question, reading, err);
	if (r < 0)
		ckpt_peer_slot_file_unmap(&reading->map);
	return r;
}

static int give_back(struct ckpt_peer_client *c, uint64_t slot, struct ckpt_error *err)
{
	const struct ckpt_peer_message question = {.type = CKPT_PEER_RELEASE, .slot = slot};
	struct ckpt_peer_message answer;

	return ask(c, &question, CKPT_PEER_OK, err, &answer);
}

int ckpt_peer_client_fetch(struct ckpt_peer_client *c, uint64_t slot, uint64_t generation,
	uint64_t step, struct ckpt_error *err, struct ckpt_peer_reading *ret_reading)
{
	const struct ckpt_peer_message question = {
		.type = CKPT_PEER_FETCH, .slot = slot, .generation = generation, .step = step};
	struct ckpt_peer_reading reading = {.digests = NULL};
	struct ckpt_peer_message answer;
	int fd = -1;
	int r = ckpt_peer_connection_ask(&c->connection, &question, err, &answer, &fd);

	if (r == 0 && (answer.type != CKPT_PEER_FETCHED || fd < 0))
		r = ckpt_peer_connection_unexpected(&c->connection, err);
	if (r < 0) {
		if (fd >= 0)
			(void)close(fd);
		return r;
	}
	r = map_to_read(fd, &question, &reading, err);
	(void)close(fd);
	if (r < 0) {
		(void)give_back(c, slot, NULL);
		return r;
	}
	*ret_reading = reading;
	return 0;
}

int ckpt_peer_client_release(
	struct ckpt_peer_client *c, struct ckpt_peer_reading *reading, struct ckpt_error *err)
{
	ckpt_peer_slot_file_unmap(&reading->map);
	ckpt_free(reading->digests);
	reading->digests = NULL;
	return give_back(c, reading->file.fixed.number, err);
}

int64_t ckpt_peer_reading_copy(
	const struct ckpt_peer_reading *reading, uint64_t index, void *to, struct ckpt_error *err)
{
	uint64_t at = index * CKPT_PEER_SLOT_CHUNK;
	uint64_t length = reading->file.record.length;
	struct ckpt_digest digest;

	CKPT_ASSERT(index < ckpt_peer_slot_chunks(length));
	length = ckpt_min_u64(CKPT_PEER_SLOT_CHUNK, length - at);
	memcpy(to, reading->map.base + CKPT_PEER_SLOT_HEADER_BYTES + at, length);
	/* Of the copy: nobody can change that any more. */
	digest = ckpt_digest_of(to, length);
	if (ckpt_digest_equal(&digest, &reading->digests[index]))
		return (int64_t)length;
	return ckpt_fail(err, CKPT_EINTEGRITY,
		"chunk %llu of step %llu in the memory of rank %u is damaged; take it from "
		"elsewhere",
		(unsigned long long)index, (unsigned long long)reading->file.record.step,
		reading->file.fixed.rank);
}

int ckpt_peer_client_status(
	struct ckpt_peer_client *c, struct ckpt_error *err, struct ckpt_peer_message *ret_state)
{
	const struct ckpt_peer_message question = {.type = CKPT_PEER_STATUS};

	return ask(c, &question, CKPT_PEER_STATE, err, ret_state);
}
