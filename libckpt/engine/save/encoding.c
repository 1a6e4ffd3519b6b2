/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The encoding of a shard that is stored compact. A block is encoded by a worker once its bytes are staged,
 * into an encoder, from which it is written. Encoders are few: blocks wait for one, in the order in which they are ready.
 * Table and trailer follow when all blocks are written.
 *
 * Blocks with 16-bit weights, which may be the rounding of fp32 tensors, wait until the whole shard is staged, if it is kept
 * there. Otherwise these weights are encoded by themselves.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/masters.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"

/* How far the search for masters is. */
enum search_state {
	SEARCH_NOT_BEGUN = 0,
	SEARCH_LISTING,
	SEARCH_LISTED, /* blocks that wait are known: the others are encoded */
	SEARCH_FINDING,
	SEARCH_DONE,
};

struct ckpt_save_encoding {
	struct ckpt_save *save;
	/* `refs` has room for CKPT_ENCODED_REFS_MAX of each chunk, until the table is put. NULL: no chunk has any. */
	struct ckpt_encoded table;
	uint64_t end;                 /* of what is in the file, or on its way there */
	struct ckpt_masters *masters; /* NULL: no tensor has one, or they are not listed */
	enum search_state search;
	struct ckpt_job search_job; /* lists, then finds */
	int list_result;
	struct ckpt_lane *first; /* that wait for an encoder */
	struct ckpt_lane *last;
	struct ckpt_buf tail; /* table and trailer; it has room for the longest from the start */
};

void ckpt_save_name_shard(struct ckpt_save *save)
{
	(save->encodes ? ckpt_name_encoded : ckpt_name_shard)(save->path,
		save->core->lineage->generation, save->step, save->core->config.rank,
		save->shard_attempt);
}

/* The most that the list of bases may have. */
static size_t bases_room(const struct ckpt_save *save)
{
	return save->base ? (size_t)CKPT_ENCODED_BASES_MAX * CKPT_ENCODED_BASE : 0;
}

uint64_t ckpt_save_file_room(const struct ckpt_save *save)
{
	const struct ckpt_layout *layout = save->plan->layout;
	uint64_t align = save->core->store->align;
	uint64_t room = layout->bytes;

	if (save->encodes) {
		/* The blocks are padded. References of a usual number: more of them make the file longer. */
		room += save->plan->block_count * align;
		room += layout->chunk_count * (CKPT_ENCODED_RECORD + 4 * sizeof(uint32_t));
		room += CKPT_ENCODED_TRAILER + bases_room(save);
	}
	return ckpt_align_up(room, align);
}

uint64_t ckpt_save_file_bytes(const struct ckpt_save *save)
{
	return atomic_load(&save->bytes_stored);
}

static struct ckpt_encoders *encoders_of(const struct ckpt_save *save)
{
	return &save->core->saver->encoders;
}

/* Saves go on without what there is no memory for. The log says it once. */
static void say_once(struct ckpt_save *save, bool *said, const char *text)
{
	if (!*said)
		ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
			"out of memory: step %llu is stored %s; this is logged once",
			(unsigned long long)save->step, text);
	*said = true;
}

static void say_no_masters(struct ckpt_save *save)
{
	say_once(save, &save->core->saver->said_no_masters,
		"without a search for master weights, so its file is larger");
}

static void free_encoding(struct ckpt_save_encoding *e)
{
	ckpt_masters_free(e->masters);
	ckpt_free(e->table.chunks);
	ckpt_free(e->table.refs);
	ckpt_buf_free(&e->tail);
	ckpt_free(e);
}

/* Room for table and trailer, and to align them. */
static size_t tail_room(const struct ckpt_save_encoding *e, uint32_t align)
{
	size_t refs = e->table.refs ? CKPT_ENCODED_REFS_MAX * sizeof(*e->table.refs) : 0;

	return e->table.chunk_count * (CKPT_ENCODED_RECORD + refs) + bases_room(e->save) +
	       CKPT_ENCODED_TRAILER + 2 * (size_t)align;
}

/* With all that an encoded save cannot do without. NULL: there is no memory for it. */
static struct ckpt_save_encoding *new_encoding(struct ckpt_save *save)
{
	const struct ckpt_layout *layout = save->plan->layout;
	struct ckpt_save_encoding *e = ckpt_alloc(sizeof(*e));

	if (!e)
		return NULL;
	e->save = save;
	e->table.bytes = layout->bytes;
	e->table.chunk_count = layout->chunk_count;
	e->table.chunks = ckpt_alloc_array(layout->chunk_count, sizeof(*e->table.chunks));
	/* Only what a chunk refers to is written there: the rest takes no memory. */
	if (save->hold)
		e->table.refs = ckpt_alloc_array(
			layout->chunk_count, CKPT_ENCODED_REFS_MAX * sizeof(*e->table.refs));
	ckpt_buf_reserve(&e->tail, tail_room(e, save->core->store->align));
	if (e->table.chunks && !e->tail.failed && ckpt_encoders_secure(encoders_of(save))) {
		e->search = e->table.refs ? SEARCH_NOT_BEGUN : SEARCH_DONE;
		return e;
	}
	free_encoding(e);
	return NULL;
}

static void give_up(struct ckpt_save *save)
{
	char text[64];

	save->encodes = false;
	ckpt_save_drop_base(save);
	atomic_store(&save->bytes_stored, save->plan->layout->bytes);
	(void)snprintf(text, sizeof(text), "plain, as an encoder needs about %zu MiB",
		(encoders_of(save)->bytes >> 20) + 10);
	say_once(save, &save->core->saver->said_plain, text);
}

void ckpt_encoding_start(struct ckpt_save *save)
{
	if (!save->encodes)
		return;
	save->encoding = new_encoding(save);
	if (!save->encoding)
		give_up(save);
	else if (save->hold && !save->encoding->table.refs)
		say_no_masters(save);
}

void ckpt_encoding_note_next_base(struct ckpt_save *save)
{
	if (save->encoding)
		ckpt_save_note_next_base(save, &save->encoding->table);
}

void ckpt_encoding_end(struct ckpt_save *save)
{
	struct ckpt_save_encoding *e = save->encoding;

	if (!e)
		return;
	CKPT_ASSERT(e->search != SEARCH_LISTING && e->search != SEARCH_FINDING);
	free_encoding(e);
	save->encoding = NULL;
}

/* The bytes of the shard in staging. Whoever asks has seen to it that they are there. */
static const void *staged_bytes(void *user, uint64_t offset, size_t length, void *room)
{
	const struct ckpt_save *save = user;
	uint32_t block_bytes = save->plan->block_bytes;
	size_t block = (size_t)(offset / block_bytes);
	uint32_t at = (uint32_t)(offset % block_bytes);
	char *to = room;

	if (length <= block_bytes - at)
		return (const char *)save->lanes[block]->slot->data + at;
	for (; length > 0; block++, at = 0) {
		size_t size = ckpt_min_u64(length, block_bytes - at);

		memcpy(to, (const char *)save->lanes[block]->slot->data + at, size);
		to += size;
		length -= size;
	}
	return room;
}

static struct ckpt_chunk_source source_of(struct ckpt_save *save)
{
	return (struct ckpt_chunk_source){
		.layout = save->plan->layout, .bytes = staged_bytes, .user = save};
}

/* Of the chunks that end in a block. */
static bool may_have_masters(const struct ckpt_save_encoding *e, size_t block)
{
	return e->masters && e->masters->waiting[block];
}

static const void *base_bytes(void *user, uint64_t offset, size_t length, void *room)
{
	const struct ckpt_save *save = user;

	return ckpt_staged_base_bytes(save->base, offset, length, room);
}

/* What a chunk is predicted from. */
static void aim_at_base(
	struct ckpt_chunk_source *source, const struct ckpt_encoder *encoder, size_t chunk)
{
	const struct ckpt_save *save = source->user;

	if (!save->base || !encoder->scratch.base)
		return;
	source->base = ckpt_staged_base_number(save->base, save->plan->layout, chunk);
	source->base_bytes = source->base ? base_bytes : NULL;
}

static void encode_work(struct ckpt_job *job)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(job, struct ckpt_lane, encode);
	struct ckpt_save *save = lane->save;
	const struct ckpt_span *span = &save->plan->blocks[lane->block].span;
	struct ckpt_chunk_source source = source_of(save);
	struct ckpt_encoder *encoder = lane->encoder;
	const struct ckpt_save_encoding *e = save->encoding;
	bool related = may_have_masters(e, lane->block);
	uint64_t length = 0;

	/* They have been found: the others may be encoded meanwhile. */
	if (related)
		source.masters = e->masters->of;
	for (size_t i = 0; i < span->chunk_count && !atomic_load(&save->stopped); i++) {
		size_t number = span->first_chunk + i;
		struct ckpt_encoded_chunk *stored = &e->table.chunks[number];
		uint32_t *refs = related ? e->table.refs + number * CKPT_ENCODED_REFS_MAX : NULL;

		aim_at_base(&source, encoder, number);
		ckpt_chunk_encode(
			&encoder->scratch, &source, number, encoder->out + length, refs, stored);
		stored->offset = length;
		length += stored->length;
	}
	lane->stored = ckpt_align_up(length, save->core->store->align);
	memset(encoder->out + length, 0, lane->stored - length);
}

/* The place of a lane's chunks in the file. */
static void place_chunks(struct ckpt_save_encoding *e, struct ckpt_lane *lane)
{
	const struct ckpt_span *span = &e->save->plan->blocks[lane->block].span;

	for (size_t i = 0; i < span->chunk_count; i++) {
		struct ckpt_encoded_chunk *c = &e->table.chunks[span->first_chunk + i];

		c->offset = c->kind == CKPT_ENCODED_SAME ? 0 : c->offset + e->end;
	}
	lane->stored_at = e->end;
	e->end += lane->stored;
}

static void pump(struct ckpt_save *save);

static void drop_encoder(struct ckpt_lane *lane)
{
	if (!lane->encoder || lane->encoding)
		return;
	ckpt_encoders_give(encoders_of(lane->save), lane->encoder);
	lane->encoder = NULL;
	pump(lane->save);
}

static void encode_done(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_lane *lane = CKPT_CONTAINER(job, struct ckpt_lane, encode);
	struct ckpt_save *save = lane->save;
	size_t block = lane->block;

	lane->encoding = false;
	save->working--;
	if (!save->code) {
		place_chunks(save->encoding, lane);
		lane->encoded = true;
	}
	if (!ckpt_task_active(&lane->task))
		drop_encoder(lane);
	ckpt_task_wake(&lane->task);
	if (block > 0)
		ckpt_pipeline_try_release(save, block - 1);
	ckpt_task_wake(&save->task);
}

static void start(struct ckpt_lane *lane, struct ckpt_encoder *encoder)
{
	struct ckpt_save *save = lane->save;

	lane->encoder = encoder;
	lane->encoding = true;
	lane->encode.work = encode_work;
	lane->encode.node.run = encode_done;
	save->working++;
	ckpt_env_run(save->core->parts.env, &lane->encode);
}

/* Starts what is ready, as far as there are encoders. */
static void pump(struct ckpt_save *save)
{
	struct ckpt_save_encoding *e = save->encoding;

	while (e->first && !save->code) {
		struct ckpt_lane *lane = e->first;
		struct ckpt_encoder *encoder = ckpt_encoders_take(encoders_of(save));

		/* There is at least one, which comes back. */
		if (!encoder)
			return;
		e->first = lane->next_ready;
		start(lane, encoder);
	}
}

static void try_encode(struct ckpt_save *save, size_t block)
{
	struct ckpt_save_encoding *e = save->encoding;
	struct ckpt_lane *lane = block < save->plan->block_count ? save->lanes[block] : NULL;
	const struct ckpt_span *span = &save->plan->blocks[block].span;
	if (!lane || !lane->staged || lane->ready || e->search < SEARCH_LISTED)
		return;
	if (may_have_masters(e, block) && e->search != SEARCH_DONE)
		return;
	/* Its end is encoded here. It is kept as long as that is not done. */
	if (span->straddled && (!save->lanes[block - 1] || !save->lanes[block - 1]->staged))
		return;
	lane->ready = true;
	lane->next_ready = NULL;
	if (e->first)
		e->last->next_ready = lane;
	else
		e->first = lane;
	e->last = lane;
	pump(save);
}

static void try_all(struct ckpt_save *save)
{
	for (size_t i = 0; i < save->plan->block_count && !save->code; i++)
		try_encode(save, i);
}

static void search(struct ckpt_save *save, enum search_state state,
	void (*work)(struct ckpt_job *job), void (*done)(struct ckpt_node *node))
{
	struct ckpt_save_encoding *e = save->encoding;

	e->search = state;
	e->search_job = (struct ckpt_job){.work = work};
	e->search_job.node.run = done;
	save->working++;
	ckpt_env_run(save->core->parts.env, &e->search_job);
}

static void find_work(struct ckpt_job *job)
{
	struct ckpt_save_encoding *e = CKPT_CONTAINER(job, struct ckpt_save_encoding, search_job);
	struct ckpt_chunk_source source = source_of(e->save);

	ckpt_masters_find(e->masters, &source, &e->save->stopped);
}

static void find_done(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_save_encoding *e = CKPT_CONTAINER(job, struct ckpt_save_encoding, search_job);
	struct ckpt_save *save = e->save;

	e->search = SEARCH_DONE;
	save->working--;
	try_all(save);
	ckpt_task_wake(&save->task);
}

/* Once the whole shard is staged. */
static void try_find(struct ckpt_save *save)
{
	if (save->encoding->search == SEARCH_LISTED &&
		save->staged_count == save->plan->block_count && !save->code)
		search(save, SEARCH_FINDING, find_work, find_done);
}

static void list_work(struct ckpt_job *job)
{
	struct ckpt_save_encoding *e = CKPT_CONTAINER(job, struct ckpt_save_encoding, search_job);
	const struct ckpt_plan *plan = e->save->plan;

	e->list_result =
		ckpt_masters_new(plan->layout, plan->block_bytes, &e->save->stopped, &e->masters);
}

static void list_done(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_save_encoding *e = CKPT_CONTAINER(job, struct ckpt_save_encoding, search_job);
	struct ckpt_save *save = e->save;

	e->search = e->masters ? SEARCH_LISTED : SEARCH_DONE;
	save->working--;
	CKPT_ASSERT(e->list_result != -ECANCELED || save->code);
	if (e->list_result == -ENOMEM)
		say_no_masters(save);
	try_all(save);
	try_find(save);
	ckpt_task_wake(&save->task);
}

void ckpt_encoding_note_staged(struct ckpt_save *save, size_t block)
{
	struct ckpt_save_encoding *e = save->encoding;

	if (!e || save->code)
		return;
	/* Not before: no copy waits for it. */
	if (e->search == SEARCH_NOT_BEGUN)
		search(save, SEARCH_LISTING, list_work, list_done);
	try_encode(save, block);
	if (block + 1 < save->plan->block_count)
		try_encode(save, block + 1);
	try_find(save);
}

int ckpt_encoding_lane_body(struct ckpt_task *task)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(task, struct ckpt_lane, task);
	struct ckpt_save *save = lane->save;

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, (lane->encoded && save->file_open) || save->code);
	if (save->code)
		return save->code;
	/* All chunks may be those of the base. */
	if (lane->stored > 0) {
		ckpt_store_op_init(&lane->op, task, &save->work);
		ckpt_store_write(save->core->store, &lane->op, &save->object, lane->encoder->out,
			lane->stored, lane->stored_at, -1);
		CKPT_AWAIT(task, lane->op.done);
		if (lane->op.result < 0)
			return ckpt_pipeline_write_failed(lane);
	}
	ckpt_pipeline_note_written(lane);
	CKPT_TASK_END(task);
}

void ckpt_encoding_lane_done(struct ckpt_lane *lane)
{
	drop_encoder(lane);
}

void ckpt_encoding_restart(struct ckpt_save *save)
{
	struct ckpt_save_encoding *e = save->encoding;

	CKPT_ASSERT(!e->first);
	e->end = 0;
	e->table.ref_count = 0;
	for (size_t i = 0; i < save->plan->block_count; i++) {
		save->lanes[i]->ready = false;
		save->lanes[i]->encoded = false;
	}
	try_all(save);
}

/* In the order of the chunks, without the room between. */
static void pack_refs(struct ckpt_encoded *table)
{
	table->ref_count = 0;
	for (size_t i = 0; i < table->chunk_count; i++) {
		size_t count = table->chunks[i].ref_count;

		if (count == 0)
			continue;
		memmove(table->refs + table->ref_count, table->refs + i * CKPT_ENCODED_REFS_MAX,
			count * sizeof(*table->refs));
		table->ref_count += count;
	}
}

void ckpt_encoding_write_table(struct ckpt_save *save)
{
	struct ckpt_save_encoding *e = save->encoding;
	uint32_t align = save->core->store->align;

	if (save->base)
		ckpt_staged_base_list(save->base, &e->table);
	save->based = e->table.base_count > 0;
	pack_refs(&e->table);
	e->table.table_offset = e->end;
	e->tail.len = 0;
	ckpt_encoded_put(&e->table, &e->tail);
	uint64_t length = ckpt_align_up(e->tail.len, align);
	uintptr_t at = (uintptr_t)e->tail.data;
	char *data = e->tail.data + (ckpt_align_up(at, align) - at);
	CKPT_ASSERT(!e->tail.failed && length + align <= e->tail.cap);
	memmove(data, e->tail.data, e->tail.len);
	memset(data + e->tail.len, 0, length - e->tail.len);
	atomic_store(&save->bytes_stored, e->end + e->tail.len);
	ckpt_store_write(save->core->store, &save->op, &save->object, data, length, e->end, -1);
}
