/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of a shard on their way out of a file. */
#include "engine/shard/read.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/shard/bad_chunk.h"
#include "engine/shard/read_state.h"

#define OWN_ALIGN 4096

static uint64_t chunk_end(const struct ckpt_shard_read *f, size_t chunk)
{
	return f->config.layout->chunks[chunk].offset + f->config.layout->chunks[chunk].length;
}

static struct ckpt_shard_read_block *block_at(struct ckpt_shard_read *f, unsigned i)
{
	CKPT_ASSERT(f->ring && i <= f->count);
	return &f->ring[(f->head + i) % f->depth];
}

static void fail(
	struct ckpt_shard_read *f, int code, uint64_t at, size_t chunk, unsigned base, bool reading)
{
	/* What was given up has not failed. */
	if ((f->code && f->code_at <= at) || (code == -ECANCELED && *f->config.stop))
		return;
	f->code = code;
	f->code_at = at;
	f->code_chunk = chunk;
	f->code_base = base;
	f->code_read = reading;
}

void ckpt_shard_read_fail(struct ckpt_shard_read *f, int code, uint64_t at, size_t chunk)
{
	fail(f, code, at, chunk, 0, false);
}

bool ckpt_shard_read_patches(const struct ckpt_shard_read *f, size_t chunk)
{
	return f->config.patch && ckpt_chunkset_has(f->config.patch->chunks, chunk);
}

bool ckpt_shard_read_decodes(const struct ckpt_shard_read *f)
{
	return f->config.encoded || (f->config.patch && f->config.patch->encoded);
}

static bool failed_in_patch(const struct ckpt_shard_read *f)
{
	if (f->bases_failed)
		return f->bases_patched;
	return ckpt_shard_read_patches(f, ckpt_layout_chunk_at(f->config.layout, f->code_at));
}

const struct ckpt_object *ckpt_shard_read_bad_file(const struct ckpt_shard_read *fetch)
{
	if (!fetch->code || !fetch->code_read)
		return NULL;
	return failed_in_patch(fetch) ? fetch->config.patch->file : fetch->config.file;
}

/* Words the failure of this fetch that is told, unless that was done where it was found. */
static void word(const struct ckpt_shard_read *f, struct ckpt_error *err)
{
	const struct ckpt_shard_read_config *c = &f->config;
	bool patch = failed_in_patch(f);
	const struct ckpt_store *store = patch ? c->patch->store : c->store;
	const struct ckpt_object *file = patch ? c->patch->file : c->file;
	size_t chunk = f->code_chunk;

	if (f->code_base > 0)
		file = ckpt_bases_file(&f->bases[patch], f->code_base);
	const struct ckpt_where where = {.tier = ckpt_store_tier(store),
		.file = file->path,
		.tensor = ckpt_bad_chunk_tensor(c->layout, f->code_at),
		.has_offset = true,
		.offset = f->code_at};

	if (f->bases_failed) {
		(void)ckpt_error_copy(&f->why, err);
	} else if (f->code == CKPT_EFORMAT) {
		(void)ckpt_fail_at(err, f->code, &where,
			"%s in %s: the chunk at offset %llu refers to other chunks more than %d "
			"times "
			"in turn, which no version of libckpt writes; use an older step",
			file->path, store->label, (unsigned long long)f->code_at,
			CKPT_REF_DECODES_MAX);
	} else if (chunk != CKPT_SHARD_READ_NO_CHUNK && f->code_base > 0) {
		(void)ckpt_bad_chunk_fail_base(err, c->layout, chunk, file->path, store, c->step);
	} else if (chunk != CKPT_SHARD_READ_NO_CHUNK) {
		(void)ckpt_bad_chunk_fail(err, c->layout, chunk, file->path, store);
	} else if (!ckpt_fail_said(err, f->code, &where, &f->said)) {
		(void)ckpt_fail_at(err, f->code, &where, "cannot read %s in %s at offset %llu: %s",
			file->path, store->label, (unsigned long long)f->code_at,
			ckpt_code_text(f->code));
	}
	err->step = (int64_t)c->step;
	err->rank = (int32_t)c->rank;
}

void ckpt_shard_read_take_failure(
	struct ckpt_shard_read *f, int code, uint64_t at, size_t chunk, unsigned base)
{
	struct ckpt_error finding;

	if (f->config.bad && chunk != CKPT_SHARD_READ_NO_CHUNK) {
		ckpt_chunkset_add(f->config.bad, chunk);
		return;
	}
	if (!f->config.findings) {
		fail(f, code, at, chunk, base, true);
		return;
	}
	if (ckpt_shard_read_stopping(f))
		return;
	fail(f, code, at, chunk, base, true);
	ckpt_error_clear(&finding);
	word(f, &finding);
	f->noted++;
	if (ckpt_findings_add(f->config.findings, f->config.generation, &finding) < 0)
		f->code = -ENOMEM;
	else if (chunk != CKPT_SHARD_READ_NO_CHUNK && !ckpt_findings_full(f->config.findings))
		f->code = 0;
}

/* Slots: the pool's, or its own. */

static struct ckpt_slot *get_slot(struct ckpt_shard_read *f)
{
	unsigned i = 0;

	if (!f->own)
		return ckpt_reader_quota_get(&f->share);
	/* A block in the ring has one at most, and the ring is not full. */
	while (f->own[i].taken) {
		i++;
		CKPT_ASSERT(i < f->depth);
	}
	f->own[i].taken = true;
	return &f->own[i];
}

static void put_slot(struct ckpt_shard_read *f, struct ckpt_slot *slot)
{
	if (f->own)
		slot->taken = false;
	else
		ckpt_reader_quota_put(&f->share, slot);
}

/*
 * How many blocks may be under way at once without slots. Two are what a chunk needs that ends in the block after the one
 * it begins in, and another store is given one only when the next is good: of three two are sent at once. Where the pool would be used if its slots were larger, as much memory as it has is.
 */
static uint64_t own_depth(const struct ckpt_shard_read *f)
{
	const struct ckpt_shard_read_config *c = &f->config;
	uint64_t blocks = CKPT_SHARD_READ_OWN;

	if (c->dest && !c->behind)
		blocks = ckpt_min_u64(ckpt_pool_slots(c->core->parts.pool), CKPT_SHARD_READ_DEPTH);
	return ckpt_max_u64(c->dest ? 3 : 2, blocks * c->core->config.block_bytes / f->unit);
}

static int make_own(struct ckpt_shard_read *f)
{
	f->own = ckpt_alloc_array(f->depth, sizeof(*f->own));
	f->own_memory = ckpt_alloc((size_t)f->depth * f->unit + OWN_ALIGN);
	if (!f->own || !f->own_memory)
		return -ENOMEM;
	char *data = f->own_memory + (0 - (uintptr_t)f->own_memory) % OWN_ALIGN;
	for (unsigned i = 0; i < f->depth; i++)
		f->own[i].data = data + (size_t)i * f->unit;
	return 0;
}

/* Of what goes on behind the training the memory is its own, and so is that of blocks which no slot holds. */
static bool needs_own(const struct ckpt_shard_read *f)
{
	return f->config.behind || f->unit != f->config.core->config.block_bytes;
}

static int make_ring(struct ckpt_shard_read *f)
{
	uint64_t depth = needs_own(f) ? own_depth(f)
				      : ckpt_min_u64(ckpt_pool_slots(f->config.core->parts.pool),
						CKPT_SHARD_READ_DEPTH);

	f->depth = (unsigned)ckpt_min_u64(depth, f->block_count);
	f->ring = ckpt_alloc_array(f->depth, sizeof(*f->ring));
	if (!f->ring)
		return -ENOMEM;
	return needs_own(f) ? make_own(f) : 0;
}

/* What is wanted. */

/* The header was seen to beforehand, if it was given or nothing is said of it. */
static bool wants_header(const struct ckpt_shard_read_config *c)
{
	/* Of an encoded shard nobody has read it. */
	return c->bad || c->encoded || (c->dest && !c->header);
}

static void want_all(struct ckpt_shard_read *f)
{
	const struct ckpt_shard_read_config *c = &f->config;
	uint64_t from = wants_header(c) ? 0 : c->layout->header_bytes;

	for (size_t i = 0; i < c->layout->chunk_count; i++)
		if (c->layout->chunks[i].offset >= from &&
			!(c->bad && ckpt_chunkset_has(c->bad, i)) &&
			!(c->gaps && ckpt_chunkset_has(c->gaps, i)))
			f->wanted[i / 64] |= UINT64_C(1) << (i % 64);
}

/*
 * Finds the next block that holds a wanted byte, or for another store the next one, and sets what is to
 * be read of it. False: there is none.
 */
static bool find_block(struct ckpt_shard_read *f, struct ckpt_shard_read_block *b)
{
	const struct ckpt_layout *layout = f->config.layout;
	size_t block = f->next;

	while (f->chunk < layout->chunk_count &&
		(!ckpt_shard_read_wants(f, f->chunk) ||
			chunk_end(f, f->chunk) <= (uint64_t)block * f->unit))
		f->chunk++;
	bool left = f->chunk < layout->chunk_count;
	if (f->config.dest ? block == f->block_count : !left)
		return false;
	if (!f->config.dest)
		block = ckpt_max_u64(block, layout->chunks[f->chunk].offset / f->unit);

	*b = (struct ckpt_shard_read_block){.fetch = f, .segments = b->segments, .batch = b->batch};
	b->segments.count = 0;
	b->span = ckpt_blocks_span(layout, f->unit, block);
	b->from = b->span.first_chunk;
	f->next = block + 1;
	uint64_t end = b->span.offset + b->span.length;
	if (!left || layout->chunks[f->chunk].offset >= end)
		return true; /* nothing but header */
	b->lo = ckpt_max_u64(b->span.offset, layout->chunks[f->chunk].offset);
	size_t last = ckpt_layout_chunk_at(layout, end - 1);
	while (!ckpt_shard_read_wants(f, last))
		last--;
	b->hi = ckpt_min_u64(end, chunk_end(f, last));
	b->tail_wanted = chunk_end(f, last) > end;
	return true;
}

/* The next block, found before. What it is decoded from is planned, as far as memory goes. */
static bool find(struct ckpt_shard_read *f)
{
	struct ckpt_shard_read_block *b = block_at(f, f->count);

	if (f->found)
		return true;
	if (!find_block(f, b))
		return false;
	if (ckpt_shard_read_block_plan(b) < 0)
		ckpt_shard_read_fail(f, ckpt_fail(f->config.err, -ENOMEM, "out of memory"),
			b->span.offset, CKPT_SHARD_READ_NO_CHUNK);
	f->found = true;
	return true;
}

/* Whether there may be memory for what the block is decoded from. */
static bool fits(const struct ckpt_shard_read *f, const struct ckpt_shard_read_block *b)
{
	return !ckpt_shard_read_decodes(f) ||
	       ckpt_decoders_may_hold(&f->decoding, ckpt_shard_read_block_stored(b));
}

static int cut_targets(struct ckpt_shard_read *f, struct ckpt_shard_read_block *b)
{
	const struct ckpt_layout *layout = f->config.layout;

	if (!f->config.targets)
		return 0;
	/* No chunk is larger than a block. */
	CKPT_ASSERT(b->span.chunk_count > 0);
	struct ckpt_cut cut = {.lo = layout->chunks[b->span.first_chunk].offset,
		.hi = chunk_end(f, b->span.first_chunk + b->span.chunk_count - 1),
		.block_offset = b->span.offset,
		.block_bytes = f->unit,
		.before = b->before,
		.here = b->slot->data};
	int r = ckpt_targets_cut(f->config.targets, &cut, &b->segments);
	if (r < 0)
		return r;
	b->devices = ckpt_copy_batch_devices(b->segments.items, b->segments.count);
	return ckpt_copy_batch_reserve(&b->batch, b->devices);
}

/* The next block gets its slot and is read. */
static void begin(struct ckpt_shard_read *f, struct ckpt_slot *slot)
{
	struct ckpt_shard_read_block *b = block_at(f, f->count);
	const struct ckpt_shard_read_block *prior = f->count > 0 ? block_at(f, f->count - 1) : NULL;

	if (prior && prior->tail_wanted)
		b->before = prior->slot->data;
	b->slot = slot;
	f->found = false;
	f->count++;
	if (cut_targets(f, b) < 0 || ckpt_shard_read_block_begin(b) < 0) {
		ckpt_shard_read_fail(f, ckpt_fail(f->config.err, -ENOMEM, "out of memory"),
			b->span.offset, CKPT_SHARD_READ_NO_CHUNK);
		b->state = BLOCK_DONE;
		return;
	}
	ckpt_shard_read_block_start(b);
}

/* Where what goes out has a bound: the next block has waited for it. A slot of its own is free then. */
static bool may_go(struct ckpt_shard_read *f)
{
	struct ckpt_rate_limit *rate_limit = f->config.rate_limit;

	CKPT_ASSERT(!rate_limit || f->own);
	return !rate_limit ||
	       ckpt_rate_limit_take(rate_limit, block_at(f, f->count)->span.length, &f->task);
}

/* Begins as many blocks as there are slots for. False: none. */
static bool begin_blocks(struct ckpt_shard_read *f)
{
	bool any = false;

	while (!ckpt_shard_read_stopping(f) && f->count < f->depth) {
		if (!find(f)) {
			f->drained = true;
			break;
		}
		if (ckpt_shard_read_stopping(f))
			break;
		if (!fits(f, block_at(f, f->count)))
			break;
		if (!may_go(f))
			break;
		struct ckpt_slot *slot = get_slot(f);
		if (!slot)
			break;
		begin(f, slot);
		any = true;
	}
	return any;
}

/* Of another store the successor is written from its own memory, and has been checked: the two slots are enough. */
static bool is_let_go(struct ckpt_shard_read *f, unsigned i)
{
	const struct ckpt_shard_read_block *next = block_at(f, i + 1);

	return next->state == BLOCK_DONE ||
	       (f->config.dest && ckpt_shard_read_block_passes(block_at(f, i), next));
}

/* Of a file that is not the shard the counter gets the share of the shard that it stands for. */
static void count(struct ckpt_shard_read *f, uint64_t bytes)
{
	const struct ckpt_shard_read_config *c = &f->config;
	double share;

	f->verified += bytes;
	share = (double)f->verified / (double)c->layout->bytes;
	/* Rounded, it may be one more than all. */
	uint64_t counted = c->counts
				   ? ckpt_min_u64((uint64_t)(share * (double)c->counts), c->counts)
				   : f->verified;
	atomic_fetch_add(c->counter, counted - f->counted);
	f->counted = counted;
}

/* Gives slots back that neither their block nor its successor needs. */
static void release_blocks(struct ckpt_shard_read *f)
{
	for (unsigned i = 0; i < f->count; i++) {
		struct ckpt_shard_read_block *b = block_at(f, i);
		bool last = i + 1 == f->count;

		if (b->state != BLOCK_DONE || !b->slot)
			continue;
		if (b->tail_wanted && (last ? !ckpt_shard_read_stopping(f) : !is_let_go(f, i)))
			continue;
		ckpt_shard_read_block_drop(b);
		put_slot(f, b->slot);
		b->slot = NULL;
		if (!ckpt_shard_read_stopping(f))
			count(f, b->verified);
		if (!ckpt_shard_read_stopping(f) && b->lifted)
			atomic_fetch_add(f->config.left_counter, b->verified);
	}
	while (f->count > 0 && !block_at(f, 0)->slot) {
		f->head = (f->head + 1) % f->depth;
		f->count--;
	}
}

static int prepare(struct ckpt_shard_read *f)
{
	const struct ckpt_shard_read_config *c = &f->config;

	if (c->layout->chunk_bytes > CKPT_SHARD_READ_CHUNK_MAX)
		return ckpt_fail_at(c->err, CKPT_EUNSUPPORTED,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(c->store), .file = c->file->path},
			"%s has chunks of %llu bytes; this version reads up to %u", c->file->path,
			(unsigned long long)c->layout->chunk_bytes, CKPT_SHARD_READ_CHUNK_MAX);
	CKPT_ASSERT(c->unit <= UINT32_MAX);
	f->unit = c->unit ? (uint32_t)c->unit : c->core->config.block_bytes;
	CKPT_ASSERT(f->unit >= c->core->config.block_bytes);
	while (f->unit < c->layout->chunk_bytes)
		f->unit *= 2;
	f->block_count = ckpt_blocks_count(c->layout, f->unit);
	f->wanted = c->targets
			    ? c->targets->wanted
			    : ckpt_alloc_array(c->layout->chunk_count / 64 + 1, sizeof(*f->wanted));
	if (!f->wanted || make_ring(f) < 0)
		return ckpt_fail(c->err, -ENOMEM, "out of memory");
	if (ckpt_shard_read_decodes(f) &&
		ckpt_decoders_join(&f->decoding, c->core, c->layout,
			f->bases[0].count + f->bases[1].count > 0, &f->task) < 0)
		return ckpt_fail(c->err, -ENOMEM, "out of memory");
	if (!c->targets)
		want_all(f);
	if (!f->own)
		ckpt_reader_quota_join(&f->share, c->core->parts.pool, &f->task);
	f->prepared = true;
	return 0;
}

static int finish(struct ckpt_shard_read *f)
{
	ckpt_decoders_leave(&f->decoding);
	if (f->share.pool)
		ckpt_reader_quota_leave(&f->share);
	if (f->config.rate_limit)
		ckpt_rate_limit_stop(f->config.rate_limit);
	if (!f->code)
		return *f->config.stop;
	if (!f->config.findings)
		word(f, f->config.err);
	return f->code;
}

/* From the last to the first, which waits for it; those behind a failure that is found here are told of it, too. */
static void let_out_blocks(struct ckpt_shard_read *f)
{
	bool stopping;

	do {
		stopping = ckpt_shard_read_stopping(f);
		for (unsigned i = f->count; i-- > 0;)
			ckpt_shard_read_block_let_out(
				block_at(f, i), i + 1 < f->count ? block_at(f, i + 1) : NULL);
	} while (ckpt_shard_read_stopping(f) != stopping);
}

static ckpt_task_fn shut_body;

static int end(struct ckpt_shard_read *f, int result)
{
	f->result = result;
	return f->bases[0].count + f->bases[1].count > 0 ? ckpt_task_continue(&f->task, shut_body)
							 : result;
}

static int fetch_body(struct ckpt_task *task)
{
	struct ckpt_shard_read *f = CKPT_CONTAINER(task, struct ckpt_shard_read, task);

	if (!f->prepared) {
		int r = prepare(f);
		if (r < 0)
			return end(f, r);
	}
	if (ckpt_shard_read_stopping(f))
		atomic_store(&f->stopped, true);
	do {
		for (unsigned i = 0; i < f->count; i++)
			ckpt_shard_read_block_advance(
				block_at(f, i), i > 0 ? block_at(f, i - 1) : NULL);
		let_out_blocks(f);
		release_blocks(f);
	} while (begin_blocks(f));
	return f->count == 0 && (f->drained || ckpt_shard_read_stopping(f)) ? end(f, finish(f))
									    : CKPT_TASK_PENDING;
}

/* Bases. */

static const struct ckpt_encoded *encoded_of(const struct ckpt_shard_read *f, unsigned copy)
{
	if (copy == 0)
		return f->config.encoded;
	return f->config.patch ? f->config.patch->encoded : NULL;
}

static bool has_bases(const struct ckpt_shard_read *f, unsigned copy)
{
	const struct ckpt_encoded *encoded = encoded_of(f, copy);

	return encoded && encoded->base_count > 0;
}

static void start_bases(struct ckpt_shard_read *f)
{
	const struct ckpt_shard_read_config *c = &f->config;

	ckpt_error_clear(&f->why);
	f->bases[f->copy] = (struct ckpt_bases){.core = c->core,
		.store = f->copy > 0 ? c->patch->store : c->store,
		.path = f->copy > 0 ? c->patch->file->path : c->file->path,
		.generation = c->generation,
		.step = c->step,
		.rank = c->rank,
		.layout = c->layout,
		.encoded = encoded_of(f, f->copy),
		.stop = c->stop,
		.err = &f->why,
		.waiter = &f->task};
	ckpt_bases_start_open(&f->bases[f->copy]);
}

/* Without its bases nothing of the shard is good. */
static int end_without_bases(struct ckpt_shard_read *f, int code)
{
	const struct ckpt_shard_read_config *c = &f->config;
	bool bad = ckpt_shard_is_bad_copy(code) || code == CKPT_EFORMAT;

	if (*c->stop)
		return end(f, *c->stop);
	if (c->bad && bad) {
		f->unread += ckpt_store_is_unreadable(code);
		for (size_t i = 0; i < c->layout->chunk_count; i++)
			ckpt_chunkset_add(c->bad, i);
		return end(f, 0);
	}
	f->bases_failed = true;
	f->bases_patched = f->copy > 0;
	ckpt_shard_read_take_failure(f, code, 0, CKPT_SHARD_READ_NO_CHUNK, 0);
	if (!c->findings)
		word(f, c->err);
	return end(f, f->code);
}

static int bases_body(struct ckpt_task *task)
{
	struct ckpt_shard_read *f = CKPT_CONTAINER(task, struct ckpt_shard_read, task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (f->copy = 0; f->copy < 2; f->copy++) {
		if (!has_bases(f, f->copy))
			continue;
		start_bases(f);
		CKPT_AWAIT(task, f->bases[f->copy].task.finished);
		r = f->bases[f->copy].task.result;
		if (r < 0)
			return end_without_bases(f, r);
	}
	return ckpt_task_continue(task, fetch_body);
	CKPT_TASK_END(task);
}

static int shut_body(struct ckpt_task *task)
{
	struct ckpt_shard_read *f = CKPT_CONTAINER(task, struct ckpt_shard_read, task);

	CKPT_TASK_BEGIN(task);
	for (f->copy = 0; f->copy < 2; f->copy++) {
		if (f->bases[f->copy].count == 0)
			continue;
		ckpt_bases_start_shut(&f->bases[f->copy]);
		CKPT_AWAIT(task, f->bases[f->copy].task.finished);
	}
	return f->result;
	CKPT_TASK_END(task);
}

static void fetch_done(struct ckpt_task *task)
{
	struct ckpt_shard_read *f = CKPT_CONTAINER(task, struct ckpt_shard_read, task);

	ckpt_task_wake(f->config.waiter);
}

void ckpt_shard_read_start(
	struct ckpt_shard_read *fetch, const struct ckpt_shard_read_config *config)
{
	*fetch = (struct ckpt_shard_read){.config = *config};
	if (!config->store)
		fetch->config.store = config->core->store;
	ckpt_error_clear(&fetch->said);
	ckpt_task_start(&fetch->task, &config->core->sched,
		has_bases(fetch, 0) || has_bases(fetch, 1) ? bases_body : fetch_body, fetch_done);
}

void ckpt_shard_read_clear(struct ckpt_shard_read *fetch)
{
	CKPT_ASSERT(!ckpt_task_active(&fetch->task) && fetch->count == 0);
	for (unsigned i = 0; fetch->ring && i < fetch->depth; i++) {
		ckpt_stored_plan_clear(&fetch->ring[i].stored);
		ckpt_stored_plan_clear(&fetch->ring[i].patched);
		ckpt_copy_batch_clear(&fetch->ring[i].batch);
		ckpt_free(fetch->ring[i].segments.items);
	}
	ckpt_free(fetch->ring);
	if (!fetch->config.targets)
		ckpt_free(fetch->wanted);
	ckpt_free(fetch->own);
	ckpt_free(fetch->own_memory);
	ckpt_bases_clear(&fetch->bases[0]);
	ckpt_bases_clear(&fetch->bases[1]);
	*fetch = (struct ckpt_shard_read){0};
}
