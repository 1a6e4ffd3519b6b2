/* SPDX-License-Identifier: Apache-2.0 */
/* A block is read, checked against its digests, and let out. */
#include "engine/shard/read_state.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

/* Checking. */

static void fill_gaps(const struct ckpt_shard_read_block *b)
{
	const struct ckpt_shard_read_config *c = &b->fetch->config;
	uint64_t end = b->span.offset + b->span.length;

	for (size_t i = ckpt_layout_chunk_at(c->layout, b->span.offset);
		i < c->layout->chunk_count && c->layout->chunks[i].offset < end; i++) {
		const struct ckpt_chunk *chunk = &c->layout->chunks[i];
		uint64_t lo = ckpt_max_u64(chunk->offset, b->span.offset);
		uint64_t hi = ckpt_min_u64(chunk->offset + chunk->length, end);

		if (ckpt_chunkset_has(c->gaps, i))
			memset(b->slot->data + (lo - b->span.offset), 0, hi - lo);
	}
}

static void fill_header(const struct ckpt_shard_read_block *b)
{
	const struct ckpt_shard_read_config *c = &b->fetch->config;
	uint64_t padded = ckpt_align_up(b->span.length, c->dest->align);

	if (c->header && b->span.offset < c->layout->header_bytes)
		memcpy(b->slot->data, c->header + b->span.offset,
			ckpt_min_u64(b->span.length, c->layout->header_bytes - b->span.offset));
	memset(b->slot->data + b->span.length, 0, padded - b->span.length);
}

/* Decodes a chunk to where it belongs. CKPT_EINTEGRITY: it is damaged. Or CKPT_EFORMAT. */
static int decode(const struct ckpt_shard_read_block *b, const struct ckpt_stored_plan *plan,
	size_t chunk, const struct ckpt_pieces *pieces)
{
	/* One that lies in two slots is decoded beside them. */
	bool straddles = pieces->head_length > 0 && pieces->tail_length > 0;
	char *out = pieces->head_length > 0 ? pieces->head : pieces->tail;
	const char *bytes;

	int r = ckpt_stored_plan_decode(
		plan, b->decoder, &b->fetch->stopped, chunk, straddles ? NULL : out, &bytes);
	if (r == 0 && straddles) {
		memcpy(pieces->head, bytes, pieces->head_length);
		memcpy(pieces->tail, bytes + pieces->head_length, pieces->tail_length);
	}
	return r;
}

/* Compares the chunk with what was written, after decoding if it was stored encoded. 0, or what is wrong with it. */
static int check(const struct ckpt_shard_read_block *b, size_t chunk, const struct ckpt_pieces *p)
{
	const struct ckpt_shard_read_config *c = &b->fetch->config;
	bool patched = ckpt_shard_read_patches(b->fetch, chunk);

	if (patched ? c->patch->encoded : c->encoded)
		return decode(b, patched ? &b->patched : &b->stored, chunk, p);
	struct ckpt_digest digest =
		ckpt_digest_of_two(p->head, p->head_length, p->tail, p->tail_length);
	if (!ckpt_digest_equal(&digest, &c->layout->chunks[chunk].digest))
		return CKPT_EINTEGRITY;
	return 0;
}

static void check_work(struct ckpt_job *job)
{
	struct ckpt_shard_read_block *b = CKPT_CONTAINER(job, struct ckpt_shard_read_block, check);
	struct ckpt_shard_read *f = b->fetch;
	size_t end = b->span.first_chunk + b->span.chunk_count;

	if (f->config.dest)
		fill_header(b);
	if (f->config.gaps)
		fill_gaps(b);
	b->bad = CKPT_SHARD_READ_NO_CHUNK;
	for (; b->from < end && !atomic_load(&f->stopped); b->from++) {
		const struct ckpt_chunk *c = &f->config.layout->chunks[b->from];
		if (!ckpt_shard_read_wants(f, b->from))
			continue;
		struct ckpt_pieces p = ckpt_blocks_pieces(
			c->offset, c->length, b->span.offset, f->unit, b->before, b->slot->data);
		b->verified += c->length;
		b->bad_code = check(b, b->from, &p);
		if (b->bad_code < 0) {
			b->bad_base = b->decoder ? ckpt_chunk_decoder_bad_file(b->decoder) : 0;
			/* A decoding that was stopped says nothing about the chunk. */
			if (!atomic_load(&f->stopped))
				b->bad = b->from++;
			return;
		}
	}
}

static void check_back(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_shard_read_block *b = CKPT_CONTAINER(job, struct ckpt_shard_read_block, check);

	b->state = BLOCK_CHECKED;
	if (b->decoder)
		ckpt_decoders_give_back(&b->fetch->decoding, b->decoder);
	b->decoder = NULL;
	if (b->bad == CKPT_SHARD_READ_NO_CHUNK)
		ckpt_shard_read_block_drop(b);
	ckpt_task_wake(&b->fetch->task);
}

/* False: it waits for one, or has failed. */
static bool borrow_decoder(struct ckpt_shard_read_block *b)
{
	struct ckpt_shard_read *f = b->fetch;

	b->state = BLOCK_READ;
	if (ckpt_decoders_lend(&f->decoding, &b->decoder) < 0) {
		ckpt_shard_read_fail(f, ckpt_fail(f->config.err, -ENOMEM, "out of memory"),
			b->span.offset, CKPT_SHARD_READ_NO_CHUNK);
		b->state = BLOCK_DONE;
		ckpt_task_wake(&f->task);
	}
	return b->decoder;
}

static void start_check(struct ckpt_shard_read_block *b)
{
	if (ckpt_shard_read_decodes(b->fetch) && !borrow_decoder(b))
		return;
	b->state = BLOCK_CHECKING;
	b->check = (struct ckpt_job){.work = check_work, .urgent = !b->fetch->config.behind};
	b->check.node.run = check_back;
	ckpt_env_run(b->fetch->config.core->parts.env, &b->check);
}

/* Letting out. */

static void copy_back(struct ckpt_copy_batch *batch)
{
	struct ckpt_shard_read_block *b =
		CKPT_CONTAINER(batch, struct ckpt_shard_read_block, batch);
	struct ckpt_shard_read *f = b->fetch;

	if (batch->code < 0) {
		(void)ckpt_fail(f->config.err, batch->code, "cannot copy into a target: %s",
			batch->error ? batch->error->message : ckpt_code_text(batch->code));
		ckpt_shard_read_fail(f, batch->code, b->span.offset, CKPT_SHARD_READ_NO_CHUNK);
	}
	b->state = BLOCK_DONE;
	if (--f->copies == 0)
		ckpt_task_wake(f->config.idle);
	ckpt_task_wake(&f->task);
}

static void start_copy(struct ckpt_shard_read_block *b)
{
	struct ckpt_shard_read *f = b->fetch;
	const struct ckpt_copy like = {.direction = CKPT_COPY_FROM_STAGING,
		.segments = b->segments.items,
		.count = b->segments.count};

	b->state = BLOCK_COPYING;
	b->batch.done = copy_back;
	f->copies++;
	ckpt_copy_batch_start(&b->batch, f->config.core->parts.devices, b->devices, &like);
}

static void start_write(struct ckpt_shard_read_block *b)
{
	const struct ckpt_shard_read_config *c = &b->fetch->config;

	b->state = BLOCK_WRITING;
	ckpt_store_op_init(&b->op, &b->fetch->task, c->err);
	b->op.stop = c->stop;
	ckpt_store_write(c->dest, &b->op, c->dest_file, b->slot->data,
		ckpt_align_up(b->span.length, c->dest->align), b->span.offset,
		b->fetch->own ? -1 : (int)b->slot->number);
}

static void let_out(struct ckpt_shard_read_block *b)
{
	struct ckpt_shard_read *f = b->fetch;
	bool bad = b->bad != CKPT_SHARD_READ_NO_CHUNK;

	if (bad)
		ckpt_shard_read_take_failure(f, b->bad_code,
			f->config.layout->chunks[b->bad].offset, b->bad, b->bad_base);
	if (ckpt_shard_read_stopping(f) || (!bad && !f->config.dest && b->segments.count == 0))
		b->state = BLOCK_DONE;
	else if (bad)
		start_check(b); /* of what comes after it */
	else if (f->config.dest)
		start_write(b);
	else
		start_copy(b);
}

/* Reading. */

/* At once, of a block that is as large as a part of an upload. */
#define READ_MAX (UINT64_C(64) << 20)

static bool reads(const struct ckpt_shard_read_block *b, size_t chunk)
{
	return ckpt_shard_read_wants(b->fetch, chunk) &&
	       ckpt_shard_read_patches(b->fetch, chunk) == b->patching;
}

/* Of a request. With more bytes than it is for it would overwrite some that came from the first copy. */
static uint64_t unit(const struct ckpt_shard_read_block *b)
{
	return b->patching ? 1 : b->fetch->config.store->align;
}

/*
 * The next run of bytes that are wanted, from b->read on. Chunks between that nobody wants are left out
 * unless a request that is aligned would read them all the same. Returns the file to read it from, NULL: there is no
 * more. One that has a chunk which others read, too, is read as they read it.
 */
static struct ckpt_object *find_run(
	const struct ckpt_shard_read_block *b, uint64_t *ret_lo, uint64_t *ret_hi)
{
	const struct ckpt_shard_read_config *config = &b->fetch->config;
	const struct ckpt_layout *layout = config->layout;
	uint64_t align = unit(b);
	bool shared = false;
	uint64_t end = 0;

	if (b->read >= b->hi)
		return NULL;
	for (size_t i = ckpt_layout_chunk_at(layout, b->read);
		i < layout->chunk_count && layout->chunks[i].offset < b->hi; i++) {
		const struct ckpt_chunk *c = &layout->chunks[i];

		if (!reads(b, i))
			continue;
		if (end == 0)
			*ret_lo = ckpt_max_u64(b->read, c->offset);
		else if (b->narrow || (c->offset & ~(align - 1)) > ckpt_align_up(end, align))
			break;
		end = c->offset + c->length;
		shared = shared || (config->cached && ckpt_shard_read_shares(b->fetch, i));
	}
	if (end == 0)
		return NULL;
	*ret_hi = ckpt_min_u64(end, b->hi);
	if (b->patching)
		return config->patch->file;
	return shared ? config->cached : config->file;
}

/* Reads the next run of a plain copy. False: all that is wanted of it has been read. */
static bool read_plain_on(struct ckpt_shard_read_block *b)
{
	struct ckpt_shard_read *f = b->fetch;
	uint64_t lo;
	uint64_t hi;

	struct ckpt_object *file = find_run(b, &lo, &hi);
	if (!file)
		return false;
	b->at = lo;
	lo &= ~(unit(b) - 1);
	hi = ckpt_min_u64(hi, lo + READ_MAX);
	b->read = hi;
	hi = ckpt_align_up(hi, unit(b));
	CKPT_ASSERT(lo >= b->span.offset && hi <= b->span.offset + f->unit);
	ckpt_store_op_init(&b->op, &f->task, &f->said);
	b->op.stop = f->config.stop;
	ckpt_store_read(b->patching ? f->config.patch->store : f->config.store, &b->op, file,
		b->slot->data + (lo - b->span.offset), hi - lo, lo,
		f->own ? -1 : (int)b->slot->number);
	return true;
}

/* Which blocks of the core's, and so which slots, a block is of. */
static size_t first_left(const struct ckpt_shard_read_block *b)
{
	return (size_t)(b->span.offset / b->fetch->config.core->config.block_bytes);
}

static size_t count_left(const struct ckpt_shard_read_block *b)
{
	uint32_t unit = b->fetch->config.core->config.block_bytes;

	return (b->span.length + (size_t)unit - 1) / unit;
}

static void lift_work(struct ckpt_job *job)
{
	const struct ckpt_shard_read_block *b =
		CKPT_CONTAINER(job, struct ckpt_shard_read_block, lift);
	const struct ckpt_shard_read_config *c = &b->fetch->config;
	uint32_t unit = c->core->config.block_bytes;

	for (size_t i = 0; i < count_left(b); i++) {
		unsigned slot = c->left->blocks[first_left(b) + i].slot;

		memcpy(b->slot->data + i * unit, ckpt_pool_slot(c->core->parts.pool, slot)->data,
			ckpt_min_u64(unit, b->span.length - i * unit));
	}
}

static void lift_back(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_shard_read_block *b = CKPT_CONTAINER(job, struct ckpt_shard_read_block, lift);
	const struct ckpt_shard_read_config *c = &b->fetch->config;

	ckpt_staged_shard_give_back(c->left, c->core->parts.pool, first_left(b), count_left(b));
	b->lifted = true;
	b->read = b->hi;
	b->state = BLOCK_READ;
	ckpt_task_wake(&b->fetch->task);
}

/* False: the slots have been taken since, or are wanted. Whoever wants them next shall not wait for long. */
static bool start_lift(struct ckpt_shard_read_block *b)
{
	const struct ckpt_shard_read_config *c = &b->fetch->config;

	if (!c->left || b->lo >= b->hi ||
		!ckpt_staged_shard_borrow(
			c->left, c->core->parts.pool, first_left(b), count_left(b)))
		return false;
	b->fetch->lifted = true;
	b->state = BLOCK_LIFTING;
	b->lift = (struct ckpt_job){.work = lift_work, .urgent = true};
	b->lift.node.run = lift_back;
	ckpt_env_run(c->core->parts.env, &b->lift);
	return true;
}

/* Of encoded shards. */

/* `patching` says of which copy. */
static int plan_copy(struct ckpt_shard_read_block *b, struct ckpt_stored_plan *plan)
{
	size_t end = b->span.first_chunk + b->span.chunk_count;
	int r = 0;

	for (size_t i = b->span.first_chunk; i < end && r == 0; i++)
		if (reads(b, i))
			r = ckpt_stored_plan_add(plan, i);
	return r < 0 ? r : ckpt_stored_plan_finish(plan);
}

int ckpt_shard_read_block_plan(struct ckpt_shard_read_block *block)
{
	const struct ckpt_shard_read_config *c = &block->fetch->config;
	int r = 0;

	if (c->encoded) {
		block->stored = (struct ckpt_stored_plan){.layout = c->layout,
			.encoded = c->encoded,
			.chain = ckpt_shard_read_chain(block->fetch, false),
			.align = c->store->align};
		r = plan_copy(block, &block->stored);
	}
	if (r == 0 && c->patch && c->patch->encoded) {
		block->patched = (struct ckpt_stored_plan){.layout = c->layout,
			.encoded = c->patch->encoded,
			.chain = ckpt_shard_read_chain(block->fetch, true),
			.align = c->patch->store->align};
		block->patching = true;
		r = plan_copy(block, &block->patched);
		block->patching = false;
	}
	return r;
}

uint64_t ckpt_shard_read_block_stored(const struct ckpt_shard_read_block *block)
{
	return block->stored.bytes + block->patched.bytes;
}

static int begin_copy(struct ckpt_shard_read *f, struct ckpt_stored_plan *plan)
{
	if (plan->count == 0)
		return 0;
	int r = ckpt_stored_plan_begin(plan);
	if (r == 0)
		ckpt_decoders_hold(&f->decoding, plan->bytes);
	return r;
}

int ckpt_shard_read_block_begin(struct ckpt_shard_read_block *block)
{
	int r = begin_copy(block->fetch, &block->stored);

	return r < 0 ? r : begin_copy(block->fetch, &block->patched);
}

static void drop_copy(struct ckpt_shard_read *f, struct ckpt_stored_plan *plan)
{
	if (plan->allocated)
		ckpt_decoders_let_go(&f->decoding, plan->bytes);
	ckpt_stored_plan_clear(plan);
}

void ckpt_shard_read_block_drop(struct ckpt_shard_read_block *block)
{
	CKPT_ASSERT(!block->decoder);
	drop_copy(block->fetch, &block->stored);
	drop_copy(block->fetch, &block->patched);
}

/* Whether the request is for a chunk that other ranks read, too: then it is read as they read it. */
static bool is_shared(const struct ckpt_shard_read_block *b)
{
	const struct ckpt_stored_plan *plan = &b->stored;

	for (size_t i = 0; b->fetch->config.cached && i < plan->end - plan->first; i++)
		if (ckpt_shard_read_shares(b->fetch, ckpt_stored_plan_chunk(plan, i)))
			return true;
	return false;
}

/* The copy that is read now is encoded. */
static bool is_encoded(const struct ckpt_shard_read_block *b)
{
	const struct ckpt_shard_read_config *c = &b->fetch->config;

	return b->patching ? c->patch->encoded : c->encoded;
}

static struct ckpt_stored_plan *plan_of(struct ckpt_shard_read_block *b)
{
	return b->patching ? &b->patched : &b->stored;
}

/* The same of an encoded copy. */
static bool read_stored_on(struct ckpt_shard_read_block *b)
{
	const struct ckpt_shard_read_config *c = &b->fetch->config;
	struct ckpt_object *file = c->file;
	struct ckpt_stored_request request;

	if (!ckpt_stored_plan_next(plan_of(b), &request))
		return false;
	if (request.file > 0)
		file = ckpt_bases_file(&b->fetch->bases[b->patching], request.file);
	else if (b->patching)
		file = c->patch->file;
	else if (is_shared(b))
		file = c->cached;
	b->read = request.end;
	ckpt_store_op_init(&b->op, &b->fetch->task, &b->fetch->said);
	b->op.stop = c->stop;
	ckpt_store_read(b->patching ? c->patch->store : c->store, &b->op, file, request.data,
		request.length, request.offset, -1);
	return true;
}

static bool read_copy_on(struct ckpt_shard_read_block *b)
{
	return is_encoded(b) ? read_stored_on(b) : read_plain_on(b);
}

/* False: all that is wanted has been read. What comes from the other copy comes last. */
static bool read_on(struct ckpt_shard_read_block *b)
{
	if (read_copy_on(b))
		return true;
	if (b->patching || !b->fetch->config.patch)
		return false;
	b->patching = true;
	b->read = b->lo;
	return read_copy_on(b);
}

void ckpt_shard_read_block_start(struct ckpt_shard_read_block *block)
{
	block->read = block->lo;
	if (!block->fetch->config.encoded && start_lift(block))
		return;
	block->state = read_on(block) ? BLOCK_READING : BLOCK_READ;
}

/* Bytes that cannot be had are bad ones, but of a request for several chunks perhaps not all are. */
static bool note_unread(struct ckpt_shard_read_block *b)
{
	struct ckpt_chunkset *bad = b->fetch->config.bad;
	const struct ckpt_layout *layout = b->fetch->config.layout;

	if (!bad || (b->op.result != CKPT_EINCOMPLETE && !ckpt_store_is_unreadable(b->op.result)))
		return false;
	if (b->narrow) {
		ckpt_chunkset_add(bad, ckpt_layout_chunk_at(layout, b->at));
		b->fetch->unread += b->op.result != CKPT_EINCOMPLETE;
	} else {
		b->narrow = true;
		b->read = b->at;
	}
	return true;
}

/* A store forgives what the end of the file cuts off of an aligned request, but these bytes are wanted. */
static void look_at_length(struct ckpt_shard_read_block *b)
{
	if (b->op.result >= 0 && b->op.offset + b->op.size < b->read)
		b->op.result = CKPT_EINCOMPLETE;
}

/*
 * A chunk that the request under way is for. The one that is read first may be read for others that refer to it, and may
 * come from the other copy itself: then one that does not is told.
 */
static size_t chunk_asked_for(struct ckpt_shard_read_block *b)
{
	size_t chunk = ckpt_stored_plan_chunk(plan_of(b), 0);

	if (ckpt_shard_read_patches(b->fetch, chunk) == b->patching)
		return chunk;
	chunk = b->span.first_chunk;
	while (!reads(b, chunk))
		chunk++;
	CKPT_ASSERT(chunk < b->span.first_chunk + b->span.chunk_count);
	return chunk;
}

/* The same of stored bytes. False: it failed, and the block ends. */
static bool take_stored(struct ckpt_shard_read_block *b)
{
	struct ckpt_shard_read *f = b->fetch;
	struct ckpt_stored_plan *plan = plan_of(b);
	size_t chunk = chunk_asked_for(b);
	int r;

	look_at_length(b);
	r = b->op.result;
	if (r >= 0) {
		ckpt_stored_plan_take(plan);
		return true;
	}
	/* Bytes that cannot be had are bad ones, and so is what is decoded with them. */
	if (f->config.bad && (r == CKPT_EINCOMPLETE || ckpt_store_is_unreadable(r))) {
		if (!ckpt_stored_plan_narrow(plan))
			f->unread += r != CKPT_EINCOMPLETE;
		return true;
	}
	ckpt_shard_read_take_failure(f, r, f->config.layout->chunks[chunk].offset,
		CKPT_SHARD_READ_NO_CHUNK, ckpt_stored_plan_file(plan));
	return false;
}

/* A request has come back. */
static void take_read(struct ckpt_shard_read_block *b)
{
	struct ckpt_shard_read *f = b->fetch;

	if (is_encoded(b)) {
		bool goes_on = take_stored(b) && !ckpt_shard_read_stopping(f);

		b->state = goes_on && read_on(b) ? BLOCK_READING : BLOCK_READ;
		return;
	}
	look_at_length(b);
	bool failed = b->op.result < 0 && !note_unread(b);

	if (failed)
		ckpt_shard_read_take_failure(f, b->op.result, b->at, CKPT_SHARD_READ_NO_CHUNK, 0);
	if (failed || ckpt_shard_read_stopping(f) || !read_on(b))
		b->state = BLOCK_READ;
}

static bool is_good(const struct ckpt_shard_read_block *b)
{
	return b->state > BLOCK_CHECKED ||
	       (b->state == BLOCK_CHECKED && b->bad == CKPT_SHARD_READ_NO_CHUNK);
}

bool ckpt_shard_read_block_passes(
	const struct ckpt_shard_read_block *block, const struct ckpt_shard_read_block *next)
{
	return is_good(block) && (!block->tail_wanted || (next && is_good(next)));
}

void ckpt_shard_read_block_let_out(
	struct ckpt_shard_read_block *block, const struct ckpt_shard_read_block *next)
{
	bool waits = block->fetch->config.dest && block->state == BLOCK_CHECKED &&
		     block->bad == CKPT_SHARD_READ_NO_CHUNK &&
		     !ckpt_shard_read_block_passes(block, next);

	if (block->state == BLOCK_CHECKED && (!waits || ckpt_shard_read_stopping(block->fetch)))
		let_out(block);
}

void ckpt_shard_read_block_advance(
	struct ckpt_shard_read_block *block, const struct ckpt_shard_read_block *prior)
{
	struct ckpt_shard_read *f = block->fetch;
	/* A chunk that begins in its predecessor waits for both. */
	bool waits = block->before && prior && prior->state < BLOCK_READ;

	if (block->state == BLOCK_READING && block->op.done)
		take_read(block);
	if (block->state == BLOCK_READ && ckpt_shard_read_stopping(f))
		block->state = BLOCK_DONE;
	if (block->state == BLOCK_READ && !waits)
		start_check(block);
	if (block->state == BLOCK_WRITING && block->op.done) {
		if (block->op.result < 0)
			ckpt_shard_read_fail(
				f, block->op.result, block->span.offset, CKPT_SHARD_READ_NO_CHUNK);
		block->state = BLOCK_DONE;
	}
}
