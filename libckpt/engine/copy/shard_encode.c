/* SPDX-License-Identifier: Apache-2.0 */
/* A plain shard, encoded into another store. */
#include "engine/copy/shard_encode.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/shard/bad_chunk.h"

#define MEMORY_ALIGN 4096

static struct ckpt_shard_encode *encode_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_shard_encode, task);
}

uint64_t ckpt_shard_encode_room(const struct ckpt_layout *layout)
{
	const uint64_t record = CKPT_ENCODED_RECORD + UINT64_C(4) * CKPT_ENCODED_REFS_MAX;

	return layout->bytes + layout->chunk_count * record + CKPT_ENCODED_TRAILER;
}

/* The first failure is told. */
static void fail(struct ckpt_shard_encode *e, int code)
{
	if (e->code)
		return;
	e->code = code;
	e->config.err->step = (int64_t)e->config.step;
	e->config.err->rank = (int32_t)e->config.rank;
}

static bool stopping(const struct ckpt_shard_encode *e)
{
	return e->code || *e->config.stop;
}

/* Preparing. */

static int make_parts(struct ckpt_shard_encode *e)
{
	uint64_t blocks = CKPT_SHARD_READ_OWN;

	e->part_count =
		(unsigned)ckpt_max_u64(3, blocks * e->config.core->config.block_bytes / e->unit);
	e->parts = ckpt_alloc_array(e->part_count, sizeof(*e->parts));
	return e->parts ? 0 : -ENOMEM;
}

/* One piece: units, the room before the window, and the window. */
static int make_memory(struct ckpt_shard_encode *e)
{
	uint64_t carry = ckpt_align_up(e->config.layout->chunk_bytes, MEMORY_ALIGN);
	uint64_t parts = e->part_count * e->unit;

	e->memory = ckpt_alloc(parts + carry + e->window_bytes + MEMORY_ALIGN);
	if (!e->memory)
		return -ENOMEM;
	char *data = e->memory + (0 - (uintptr_t)e->memory) % MEMORY_ALIGN;
	for (unsigned i = 0; i < e->part_count; i++)
		e->parts[i].data = data + i * e->unit;
	e->window = data + parts + carry;
	return 0;
}

static int make_table(struct ckpt_shard_encode *e)
{
	const struct ckpt_layout *layout = e->config.layout;

	e->table.bytes = layout->bytes;
	e->table.chunk_count = layout->chunk_count;
	e->table.chunks = ckpt_alloc_array(layout->chunk_count, sizeof(*e->table.chunks));
	e->out = ckpt_alloc(ckpt_chunk_encode_room(layout->chunk_bytes));
	e->back = ckpt_alloc(layout->chunk_bytes);
	e->decoder = ckpt_chunk_decoder_open();
	return e->table.chunks && e->out && e->back && e->decoder ? 0 : -ENOMEM;
}

/* Without memory for them 16-bit weights are encoded by themselves. */
static void make_masters(struct ckpt_shard_encode *e)
{
	const struct ckpt_layout *layout = e->config.layout;

	if (ckpt_master_search_open(&e->search, layout) < 0)
		return;
	if (!e->search.keys[0] && !e->search.keys[1]) {
		ckpt_master_search_close(&e->search);
		return;
	}
	e->masters = ckpt_alloc(2 * CKPT_CODEC_CHUNK_BYTES);
	e->master_memory = ckpt_alloc(layout->chunk_bytes + UINT64_C(3) * MEMORY_ALIGN);
	if (!e->masters || !e->master_memory) {
		ckpt_master_search_close(&e->search);
		return;
	}
	e->master_room = e->master_memory + (0 - (uintptr_t)e->master_memory) % MEMORY_ALIGN;
}

static int prepare(struct ckpt_shard_encode *e)
{
	const struct ckpt_shard_read_config *c = &e->config;

	if (c->layout->chunk_bytes > CKPT_SHARD_READ_CHUNK_MAX)
		return ckpt_fail_at(c->err, CKPT_EUNSUPPORTED,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(c->store), .file = c->file->path},
			"%s has chunks of %llu bytes; this version reads up to %u", c->file->path,
			(unsigned long long)c->layout->chunk_bytes, CKPT_SHARD_READ_CHUNK_MAX);
	e->window_bytes = c->core->config.block_bytes;
	while (e->window_bytes < c->layout->chunk_bytes)
		e->window_bytes *= 2;
	e->unit = ckpt_max_u64(c->unit, e->window_bytes);
	/* What is written to a bucket has the size that the store said. */
	CKPT_ASSERT(!c->unit || e->unit == c->unit);
	if (make_parts(e) < 0 || make_memory(e) < 0 || make_table(e) < 0 ||
		ckpt_chunk_scratch_open(&e->scratch) < 0)
		return ckpt_fail(c->err, -ENOMEM, "out of memory to encode %s", c->file->path);
	make_masters(e);
	return 0;
}

/* Writing. Part number n of the file is in the unit n modulo their number. */

static struct ckpt_shard_encode_part *part_at(const struct ckpt_shard_encode *e, uint64_t number)
{
	return &e->parts[number % e->part_count];
}

static void take_writes(struct ckpt_shard_encode *e)
{
	for (unsigned i = 0; i < e->part_count; i++) {
		struct ckpt_shard_encode_part *part = &e->parts[i];

		if (!part->busy || !part->op.done)
			continue;
		part->busy = false;
		if (!stopping(e) && part->op.result < 0)
			fail(e, ckpt_store_fail(&part->op, "write", &part->said, e->config.err));
		if (!stopping(e))
			atomic_fetch_add(e->config.counter, part->counts);
		part->counts = 0;
	}
}

static bool any_busy(const struct ckpt_shard_encode *e)
{
	for (unsigned i = 0; i < e->part_count; i++)
		if (e->parts[i].busy)
			return true;
	return false;
}

/* Bytes of the next part that is to be written; 0: none is. */
static uint64_t next_part(const struct ckpt_shard_encode *e)
{
	uint64_t at = e->begun * e->unit;

	if (e->ready >= at + e->unit)
		return e->unit;
	return e->ended && e->ready > at ? e->ready - at : 0;
}

static void start_writes(struct ckpt_shard_encode *e)
{
	const struct ckpt_shard_read_config *c = &e->config;
	uint64_t bytes;

	while (!stopping(e) && (bytes = next_part(e)) > 0) {
		struct ckpt_shard_encode_part *part = part_at(e, e->begun);
		uint64_t padded = ckpt_align_up(bytes, c->dest->align);

		if (c->rate_limit && !ckpt_rate_limit_take(c->rate_limit, bytes, &e->task))
			return;
		memset(part->data + bytes, 0, padded - bytes);
		part->busy = true;
		ckpt_error_clear(&part->said);
		ckpt_store_op_init(&part->op, &e->task, &part->said);
		part->op.stop = c->stop;
		ckpt_store_write(c->dest, &part->op, c->dest_file, part->data, padded,
			e->begun * e->unit, -1);
		e->begun++;
	}
}

/* What goes on beside whatever is awaited. Always true. */
static bool serve(struct ckpt_shard_encode *e)
{
	take_writes(e);
	start_writes(e);
	return true;
}

/* Bytes that can be put behind `length` now. No worker is at it. */
static uint64_t count_room(const struct ckpt_shard_encode *e)
{
	uint64_t first = e->length / e->unit;
	uint64_t count = 0;

	while (first + count < e->begun + e->part_count && !part_at(e, first + count)->busy)
		count++;
	return count == 0 ? 0 : count * e->unit - e->length % e->unit;
}

/* There is room. */
static void append(struct ckpt_shard_encode *e, const void *data, uint64_t length)
{
	const char *from = data;

	CKPT_ASSERT(length <= e->room);
	while (length > 0) {
		uint64_t at = e->length % e->unit;
		uint64_t size = ckpt_min_u64(length, e->unit - at);

		memcpy(part_at(e, e->length / e->unit)->data + at, from, size);
		e->length += size;
		e->room -= size;
		from += size;
		length -= size;
	}
}

/* Reading. */

/* For the next chunk, however little smaller it gets. */
static bool has_room(const struct ckpt_shard_encode *e)
{
	return count_room(e) >= e->config.layout->chunks[e->chunk].length;
}

static uint64_t chunk_end(const struct ckpt_shard_encode *e)
{
	const struct ckpt_chunk *c = &e->config.layout->chunks[e->chunk];

	return c->offset + c->length;
}

/* What was read of the next chunk stays, before the window. */
static void start_read(struct ckpt_shard_encode *e)
{
	const struct ckpt_shard_read_config *c = &e->config;
	uint64_t carry = e->read_end - c->layout->chunks[e->chunk].offset;

	/* The last window but one was read to its end. */
	if (e->read_end > 0) {
		CKPT_ASSERT(e->read_end == e->window_at + e->window_bytes);
		CKPT_ASSERT(carry <= c->layout->chunk_bytes);
		memmove(e->window - carry, e->window + e->window_bytes - carry, carry);
		e->window_at = e->read_end;
	}
	e->read_end = ckpt_min_u64(e->window_at + e->window_bytes, c->layout->bytes);
	ckpt_store_op_init(&e->op, &e->task, &e->said);
	e->op.stop = c->stop;
	ckpt_store_read(c->store, &e->op, c->file, e->window,
		ckpt_align_up(e->read_end - e->window_at, c->store->align), e->window_at, -1);
}

/* `at`: where in the file it began. */
static void take_read(struct ckpt_shard_encode *e, uint64_t at)
{
	const struct ckpt_shard_read_config *c = &e->config;
	const struct ckpt_where where = {.tier = ckpt_store_tier(c->store),
		.file = c->file->path,
		.has_offset = true,
		.offset = at};
	int r = e->op.result;

	if (r >= 0 || stopping(e))
		return;
	e->code_read = true;
	if (!ckpt_fail_said(c->err, r, &where, &e->said))
		(void)ckpt_fail_at(c->err, r, &where, "cannot read %s in %s at offset %llu: %s",
			c->file->path, c->store->label, (unsigned long long)at, ckpt_code_text(r));
	fail(e, r);
}

/* A chunk was read, and a worker was at it. */
static void take_compared(struct ckpt_shard_encode *e)
{
	const struct ckpt_shard_read_config *c = &e->config;

	if (e->bad == CKPT_SHARD_READ_NO_CHUNK || stopping(e))
		return;
	e->code_read = true;
	fail(e, ckpt_bad_chunk_fail(c->err, c->layout, e->bad, c->file->path, c->store));
}

static bool is_good(struct ckpt_shard_encode *e, size_t chunk, const void *data)
{
	const struct ckpt_chunk *c = &e->config.layout->chunks[chunk];
	struct ckpt_digest digest = ckpt_digest_of(data, c->length);

	if (!ckpt_digest_equal(&digest, &c->digest))
		e->bad = chunk;
	return e->bad == CKPT_SHARD_READ_NO_CHUNK;
}

static void start_job(struct ckpt_shard_encode *e, void (*work)(struct ckpt_job *job))
{
	struct ckpt_env *env = e->config.core->parts.env;

	(e->config.behind ? ckpt_task_job_start_behind : ckpt_task_job_start)(
		&e->job, env, &e->task, work);
}

/* The masters of a chunk. */

static bool needs_masters(const struct ckpt_shard_encode *e)
{
	return e->looked && e->range_count > 0 && !e->fetched;
}

static void begin_range(struct ckpt_shard_encode *e)
{
	if (e->range < e->range_count)
		e->master = ckpt_layout_chunk_at(e->config.layout, e->ranges[e->range].offset);
}

/* The chunk may refer to as many as there may be. */
static int reserve_refs(struct ckpt_shard_encode *e)
{
	size_t room = e->table.ref_count + CKPT_ENCODED_REFS_MAX;

	if (room <= e->ref_room)
		return 0;
	uint32_t *refs = ckpt_realloc_array(e->table.refs, 2 * room, sizeof(*refs));
	if (!refs)
		return -ENOMEM;
	e->table.refs = refs;
	e->ref_room = 2 * room;
	return 0;
}

static void read_master(struct ckpt_shard_encode *e)
{
	const struct ckpt_shard_read_config *c = &e->config;
	const struct ckpt_chunk *chunk = &c->layout->chunks[e->master];
	uint64_t align = c->store->align;

	e->master_at = chunk->offset & ~(align - 1);
	ckpt_store_op_init(&e->op, &e->task, &e->said);
	e->op.stop = c->stop;
	ckpt_store_read(c->store, &e->op, c->file, e->master_room,
		ckpt_align_up(chunk->offset + chunk->length - e->master_at, align), e->master_at,
		-1);
}

/* What the range has of the chunk. */
static void master_work(struct ckpt_job *job)
{
	struct ckpt_shard_encode *e = CKPT_CONTAINER(job, struct ckpt_shard_encode, job.job);
	const struct ckpt_master_range *r = &e->ranges[e->range];
	const struct ckpt_chunk *c = &e->config.layout->chunks[e->master];
	const char *data = e->master_room + (c->offset - e->master_at);
	uint64_t lo = ckpt_max_u64(r->offset, c->offset);
	uint64_t hi = ckpt_min_u64(r->offset + r->length, c->offset + c->length);

	if (is_good(e, e->master, data))
		memcpy(e->masters + r->at + (lo - r->offset), data + (lo - c->offset), hi - lo);
}

static void next_master(struct ckpt_shard_encode *e)
{
	const struct ckpt_master_range *r = &e->ranges[e->range];
	const struct ckpt_chunk *c = &e->config.layout->chunks[e->master];

	if (c->offset + c->length < r->offset + r->length) {
		e->master++;
		return;
	}
	e->range++;
	begin_range(e);
}

static ckpt_task_fn chunks_body;

static int masters_body(struct ckpt_task *task)
{
	struct ckpt_shard_encode *e = encode_of(task);

	CKPT_TASK_BEGIN(task);
	if (reserve_refs(e) < 0)
		fail(e, ckpt_fail(e->config.err, -ENOMEM, "out of memory to encode %s",
				e->config.file->path));
	e->range = 0;
	begin_range(e);
	while (!stopping(e) && e->range < e->range_count) {
		read_master(e);
		CKPT_AWAIT(task, serve(e) && e->op.done);
		take_read(e, e->master_at);
		if (stopping(e))
			break;
		start_job(e, master_work);
		CKPT_AWAIT(task, serve(e) && e->job.done);
		take_compared(e);
		next_master(e);
	}
	e->fetched = true;
	return ckpt_task_continue(task, chunks_body);
	CKPT_TASK_END(task);
}

/* Encoding. */

/* Of the chunk that is next, which is in the window, or goes on in it from before. */
static const char *chunk_bytes(const struct ckpt_shard_encode *e, uint64_t offset)
{
	return offset >= e->window_at ? e->window + (offset - e->window_at)
				      : e->window - (e->window_at - offset);
}

/* Of its masters, which are before it. NULL: they are none. */
static const void *master_bytes(void *user, uint64_t offset, size_t length, void *room)
{
	const struct ckpt_shard_encode *e = user;

	(void)room;
	for (size_t i = 0; i < e->range_count; i++) {
		const struct ckpt_master_range *r = &e->ranges[i];

		if (offset >= r->offset && offset + length <= r->offset + r->length)
			return e->masters + r->at + (offset - r->offset);
	}
	return NULL;
}

/* Of both. */
static const void *shard_bytes(void *user, uint64_t offset, size_t length, void *room)
{
	const struct ckpt_shard_encode *e = user;

	if (offset >= e->config.layout->chunks[e->chunk].offset)
		return chunk_bytes(e, offset);
	const void *master = master_bytes(user, offset, length, room);
	CKPT_ASSERT(master);
	return master;
}

/* Whether a reader will get the chunk that is in `out`. */
static bool comes_back(struct ckpt_shard_encode *e)
{
	const struct ckpt_stored_chunk item = {.chunk = e->chunk, .bytes = e->out};
	const struct ckpt_stored_chunks stored = {.layout = e->config.layout,
		.encoded = &e->table,
		.items = &item,
		.count = 1,
		.masters = master_bytes,
		.user = e};
	const char *back;

	return ckpt_chunk_decode(e->decoder, &stored, e->chunk, e->back, &back) == 0;
}

static void store_plain(struct ckpt_shard_encode *e, struct ckpt_encoded_chunk *stored)
{
	const struct ckpt_chunk *c = &e->config.layout->chunks[e->chunk];

	memcpy(e->out, chunk_bytes(e, c->offset), c->length);
	e->table.ref_count -= stored->ref_count;
	stored->ref_count = 0;
	stored->kind = CKPT_ENCODED_PLAIN;
	stored->length = c->length;
	stored->digest = c->digest;
	e->undone++;
}

static void encode_chunk(struct ckpt_shard_encode *e)
{
	const struct ckpt_chunk_source source = {.layout = e->config.layout,
		.masters = e->range_count > 0 ? e->search.of : NULL,
		.bytes = shard_bytes,
		.user = e};
	struct ckpt_encoded_chunk *stored = &e->table.chunks[e->chunk];
	uint32_t refs[CKPT_ENCODED_REFS_MAX];

	ckpt_chunk_encode(&e->scratch, &source, e->chunk, e->out, refs, stored);
	stored->offset = e->length;
	stored->first_ref = (uint32_t)e->table.ref_count;
	if (stored->ref_count > 0)
		memcpy(e->table.refs + e->table.ref_count, refs, stored->ref_count * sizeof(*refs));
	e->table.ref_count += stored->ref_count;
	if (!comes_back(e))
		store_plain(e, stored);
	append(e, e->out, stored->length);
	part_at(e, (e->length - 1) / e->unit)->counts += e->config.layout->chunks[e->chunk].length;
}

static void look(struct ckpt_shard_encode *e, const void *data)
{
	if (e->looked)
		return;
	e->looked = true;
	e->fetched = false;
	e->range_count = 0;
	if (!e->search.of)
		return;
	ckpt_master_search_look(&e->search, e->chunk, data);
	e->range_count = ckpt_master_search_ranges(&e->search, e->chunk, e->ranges);
}

/* As many chunks as are in the window, and as there is room for; one that needs masters waits for them. */
static void encode_work(struct ckpt_job *job)
{
	struct ckpt_shard_encode *e = CKPT_CONTAINER(job, struct ckpt_shard_encode, job.job);
	const struct ckpt_layout *layout = e->config.layout;

	while (e->chunk < layout->chunk_count && chunk_end(e) <= e->read_end) {
		const struct ckpt_chunk *c = &layout->chunks[e->chunk];
		const char *data = chunk_bytes(e, c->offset);

		if (c->length > e->room || !is_good(e, e->chunk, data))
			return;
		look(e, data);
		if (needs_masters(e))
			return;
		encode_chunk(e);
		e->looked = false;
		e->chunk++;
	}
}

static int end_body(struct ckpt_task *task)
{
	struct ckpt_shard_encode *e = encode_of(task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, serve(e) && !any_busy(e) && (stopping(e) || next_part(e) == 0));
	if (e->config.rate_limit)
		ckpt_rate_limit_stop(e->config.rate_limit);
	CKPT_ASSERT(e->length <= ckpt_shard_encode_room(e->config.layout));
	e->bytes = e->length;
	if (e->undone > 0)
		ckpt_log(e->config.core->parts.log, CKPT_LOG_WARN,
			"%zu of %zu chunks of %s did not decode to what they were, and are stored "
			"as they are: the memory of this machine or the encoder is at fault",
			e->undone, e->config.layout->chunk_count, e->config.file->path);
	return e->code ? e->code : *e->config.stop;
	CKPT_TASK_END(task);
}

static int table_body(struct ckpt_task *task)
{
	struct ckpt_shard_encode *e = encode_of(task);

	CKPT_TASK_BEGIN(task);
	e->table.table_offset = e->length;
	ckpt_encoded_put(&e->table, &e->tail);
	if (e->tail.failed)
		fail(e, ckpt_fail(e->config.err, -ENOMEM, "out of memory to encode %s",
				e->config.file->path));
	while (!stopping(e) && e->tail_sent < e->tail.len) {
		CKPT_AWAIT(task, serve(e) && (count_room(e) > 0 || stopping(e)));
		e->room = ckpt_min_u64(count_room(e), e->tail.len - e->tail_sent);
		append(e, e->tail.data + e->tail_sent, e->room);
		e->tail_sent += e->length - e->ready;
		e->ready = e->length;
	}
	e->ended = true;
	return ckpt_task_continue(task, end_body);
	CKPT_TASK_END(task);
}

static int chunks_body(struct ckpt_task *task)
{
	struct ckpt_shard_encode *e = encode_of(task);

	CKPT_TASK_BEGIN(task);
	while (!stopping(e) && e->chunk < e->config.layout->chunk_count) {
		if (needs_masters(e))
			return ckpt_task_continue(task, masters_body);
		if (chunk_end(e) > e->read_end) {
			start_read(e);
			CKPT_AWAIT(task, serve(e) && e->op.done);
			take_read(e, e->window_at);
			continue;
		}
		CKPT_AWAIT(task, serve(e) && (stopping(e) || has_room(e)));
		if (stopping(e))
			break;
		e->room = count_room(e);
		start_job(e, encode_work);
		CKPT_AWAIT(task, serve(e) && e->job.done);
		e->ready = e->length;
		take_compared(e);
	}
	return ckpt_task_continue(task, stopping(e) ? end_body : table_body);
	CKPT_TASK_END(task);
}

static int encode_body(struct ckpt_task *task)
{
	int r = prepare(encode_of(task));

	return r < 0 ? r : ckpt_task_continue(task, chunks_body);
}

static void encode_done(struct ckpt_task *task)
{
	ckpt_task_wake(encode_of(task)->config.waiter);
}

void ckpt_shard_encode_start(
	struct ckpt_shard_encode *encode, const struct ckpt_shard_read_config *config)
{
	*encode = (struct ckpt_shard_encode){.config = *config, .bad = CKPT_SHARD_READ_NO_CHUNK};
	if (!config->store)
		encode->config.store = config->core->store;
	ckpt_error_clear(&encode->said);
	ckpt_task_start(&encode->task, &config->core->sched, encode_body, encode_done);
}

void ckpt_shard_encode_clear(struct ckpt_shard_encode *encode)
{
	CKPT_ASSERT(!ckpt_task_active(&encode->task));
	ckpt_chunk_scratch_close(&encode->scratch);
	ckpt_chunk_decoder_close(encode->decoder);
	ckpt_buf_free(&encode->tail);
	ckpt_master_search_close(&encode->search);
	ckpt_free(encode->masters);
	ckpt_free(encode->master_memory);
	ckpt_free(encode->table.chunks);
	ckpt_free(encode->table.refs);
	ckpt_free(encode->out);
	ckpt_free(encode->back);
	ckpt_free(encode->parts);
	ckpt_free(encode->memory);
	*encode = (struct ckpt_shard_encode){0};
}
