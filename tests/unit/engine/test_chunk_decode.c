/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of chunks whose stored bytes nobody vouches for: their digests fit, and what they say may be anything. */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/shard/chunk_decode.h"
#include "engine/shard/chunk_encode.h"
#include "engine/shard/decoders.h"
#include "engine/shard/stored_view.h"
#include "lib/encode_fixture.h"

#define ELEMENTS 3000
#define ROUNDS   20000

struct scene {
	struct ckpt_layout *layout;
	char *shard;
	struct ckpt_buf file;
	struct ckpt_encoded *table;
	struct ckpt_chunk_decoder *decoder;
	size_t model; /* a chunk with a master */
};

static void set_up(struct scene *s)
{
	static const int64_t shape = ELEMENTS;
	static const int64_t few = 90;
	struct ckpt_tensor tensors[] = {
		{.size = sizeof(tensors[0]),
			.name = "a",
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &shape},
		{.size = sizeof(tensors[0]),
			.name = "b",
			.dtype = CKPT_BF16,
			.ndim = 1,
			.shape = &shape},
		{.size = sizeof(tensors[0]),
			.name = "c",
			.dtype = CKPT_I64,
			.ndim = 1,
			.shape = &few},
	};
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_encoded_trailer trailer;
	struct prng prng = {1};

	assert_int_equal(ckpt_layout_build(tensors, 3, NULL, 0, 5000, &err, &s->layout), 0);
	s->shard = calloc(1, s->layout->bytes);
	memcpy(s->shard, s->layout->header, s->layout->header_bytes);
	const struct ckpt_entry *a = ckpt_layout_find(s->layout, "a");
	const struct ckpt_entry *b = ckpt_layout_find(s->layout, "b");
	for (size_t i = 0; i < ELEMENTS; i++) {
		uint32_t bits = 0x3c000000 | (uint32_t)(prng_next(&prng) & 0x00ff7fff);

		memcpy(s->shard + a->offset + i * 4, &bits, 4);
		memcpy(s->shard + b->offset + i * 2, (char *)&bits + 2, 2);
	}
	for (size_t i = 0; i < s->layout->chunk_count; i++) {
		struct ckpt_chunk *c = &s->layout->chunks[i];
		c->digest = ckpt_digest_of(s->shard + c->offset, c->length);
	}
	encode_fixture(s->layout, s->shard, &prng, &s->file, NULL);
	assert_int_equal(
		ckpt_encoded_read_trailer(s->file.data + s->file.len - CKPT_ENCODED_TRAILER,
			s->file.len, s->layout, "x", &err, &trailer),
		0);
	assert_int_equal(ckpt_encoded_decode(s->file.data + trailer.table_offset, &trailer,
				 s->layout, "x", &err, &s->table),
		0);
	s->decoder = ckpt_chunk_decoder_open();
	assert_non_null(s->decoder);
	assert_int_equal(ckpt_chunk_decoder_aim(s->decoder, 1, s->layout->chunk_bytes, false), 0);
	s->model = ckpt_layout_chunk_at(s->layout, b->offset);
	assert_true(s->table->chunks[s->model].ref_count > 0);
}

static void tear_down(struct scene *s)
{
	ckpt_chunk_decoder_close(s->decoder);
	ckpt_encoded_free(s->table);
	ckpt_buf_free(&s->file);
	free(s->shard);
	ckpt_layout_free(s->layout);
}

/* Decodes a chunk whose stored bytes are these, from memory of exactly their size into memory of exactly its size. */
static bool decode(struct scene *s, size_t chunk, const char *bytes, uint32_t length)
{
	struct ckpt_encoded_chunk *e = &s->table->chunks[chunk];
	const struct ckpt_encoded_chunk kept = *e;
	struct ckpt_stored_chunk *items = calloc(s->layout->chunk_count, sizeof(*items));
	struct ckpt_stored_chunks stored = {.layout = s->layout,
		.encoded = s->table,
		.items = items,
		.count = s->layout->chunk_count};
	uint8_t *exact = malloc(length);
	char *out = malloc(s->layout->chunks[chunk].length);
	const char *got;

	memcpy(exact, bytes, length);
	for (size_t i = 0; i < stored.count; i++)
		items[i] = (struct ckpt_stored_chunk){.chunk = i,
			.bytes = i == chunk ? exact
					    : (const uint8_t *)s->file.data +
						      s->table->chunks[i].offset};
	e->length = length;
	e->digest = ckpt_digest_of(exact, length);
	bool good = ckpt_chunk_decode(s->decoder, &stored, chunk, out, &got) == 0;
	assert_true(!good || memcmp(got, s->shard + s->layout->chunks[chunk].offset,
				     s->layout->chunks[chunk].length) == 0);
	*e = kept;
	free(exact);
	free(out);
	free(items);
	return good;
}

static const char *stored(const struct scene *s, size_t chunk)
{
	return s->file.data + s->table->chunks[chunk].offset;
}

static void test_good(void **state)
{
	struct scene s = {0};

	(void)state;
	set_up(&s);
	for (size_t i = 0; i < s.layout->chunk_count; i++)
		assert_true(decode(&s, i, stored(&s, i), s.table->chunks[i].length));
	tear_down(&s);
}

static void test_anything(void **state)
{
	struct scene s = {0};
	struct prng d = {2};

	(void)state;
	set_up(&s);
	for (size_t round = 0; round < ROUNDS; round++) {
		size_t chunk = prng_below(&d, 3) ? s.model : prng_below(&d, s.layout->chunk_count);
		uint32_t length = s.table->chunks[chunk].length;
		char *bytes = malloc(length);
		/* Mostly where the lengths and offsets are. */
		uint64_t among = prng_below(&d, 2) ? ckpt_min_u64(40, length) : length;

		memcpy(bytes, stored(&s, chunk), length);
		for (uint64_t n = 1 + prng_below(&d, 4); n > 0; n--)
			bytes[prng_below(&d, among)] =
				(char)(prng_below(&d, 2) ? prng_next(&d) : prng_below(&d, 10));
		if (s.table->chunks[chunk].kind == CKPT_ENCODED_PARTS && prng_below(&d, 4) == 0)
			length = 1 + (uint32_t)prng_below(&d, length);
		(void)decode(&s, chunk, bytes, length);
		free(bytes);
	}
	tear_down(&s);
}

/* Masters that a part cannot have. */
static void test_masters(void **state)
{
	struct scene s = {0};
	char bytes[8192];

	(void)state;
	set_up(&s);
	uint32_t length = s.table->chunks[s.model].length;
	const struct ckpt_entry *a = ckpt_layout_find(s.layout, "a");
	const uint64_t offsets[] = {0, a->offset + 2, a->offset - 4, a->offset + 4 * ELEMENTS,
		a->offset + 8000, s.layout->bytes, UINT64_MAX, UINT64_MAX - 3};
	memcpy(bytes, stored(&s, s.model), length);
	assert_int_equal(bytes[4], 1);
	for (size_t i = 0; i < COUNT(offsets); i++) {
		for (unsigned k = 0; k < 8; k++)
			bytes[5 + k] = (char)(offsets[i] >> (8 * k));
		assert_false(decode(&s, s.model, bytes, length));
	}
	/* One that the table does not say. */
	memcpy(bytes, stored(&s, s.model), length);
	s.table->chunks[s.model].ref_count--;
	assert_false(decode(&s, s.model, bytes, length));
	s.table->chunks[s.model].ref_count++;
	/* One that is damaged. A decoder of another shard has not decoded it before. */
	assert_int_equal(ckpt_chunk_decoder_aim(s.decoder, 2, s.layout->chunk_bytes, false), 0);
	size_t ref = s.table->refs[s.table->chunks[s.model].first_ref];
	char *byte = s.file.data + s.table->chunks[ref].offset;
	*byte ^= 1;
	assert_false(decode(&s, s.model, bytes, length));
	*byte ^= 1;
	assert_true(decode(&s, s.model, bytes, length));
	/* Something behind the last part. */
	bytes[length] = 0;
	assert_false(decode(&s, s.model, bytes, length + 1));
	tear_down(&s);
}

/* The file laid out for a copy: all that is read has its digest, and all the rest is in gaps. */
static void check_view(const struct scene *s, const struct ckpt_stored_view *view)
{
	uint64_t at = 0;
	uint64_t stored_bytes = 0;
	uint64_t table = 0;

	for (size_t i = 0; i < s->table->chunk_count; i++)
		stored_bytes += s->table->chunks[i].length;
	for (size_t i = 0; i < view->layout->chunk_count; i++) {
		const struct ckpt_chunk *c = &view->layout->chunks[i];

		assert_int_equal(c->offset, at);
		assert_true(c->length > 0);
		at += c->length;
		if (ckpt_chunkset_has(&view->gaps, i))
			continue;
		assert_true(c->length <= view->layout->chunk_bytes);
		if (c->offset >= s->table->table_offset)
			table += c->length;
		else
			stored_bytes -= c->length;
	}
	assert_int_equal(at, view->layout->bytes);
	assert_int_equal(stored_bytes, 0);
	assert_int_equal(table, view->layout->bytes - s->table->table_offset);
}

static void test_view(void **state)
{
	struct scene s = {0};
	struct ckpt_stored_view view;
	struct ckpt_error err = {.size = sizeof(err)};

	(void)state;
	set_up(&s);
	const char *end = s.file.data + s.table->table_offset;
	uint64_t tail = s.file.len - s.table->table_offset;
	struct ckpt_encoded_chunk *last = &s.table->chunks[0];
	for (size_t i = 1; i < s.table->chunk_count; i++)
		if (s.table->chunks[i].offset > last->offset)
			last = &s.table->chunks[i];
	const uint64_t kept = last->offset;
	/* As it is; and with a gap that is larger than what a number of a chunk holds. */
	for (uint64_t gap = 0; gap <= UINT64_C(10) << 30; gap += UINT64_C(10) << 30) {
		last->offset = kept + gap;
		s.table->table_offset += gap;
		assert_int_equal(ckpt_stored_view_build(&view, s.table, s.layout, end,
					 s.table->table_offset + tail, "x", &err),
			0);
		check_view(&s, &view);
		ckpt_stored_view_clear(&view);
	}
	last->offset = s.table->chunks[last == s.table->chunks].offset + 1;
	assert_int_equal(ckpt_stored_view_build(&view, s.table, s.layout, end,
				 s.table->table_offset + tail, "x", &err),
		CKPT_EFORMAT);
	tear_down(&s);
}

#define SMALL        32 /* elements of a weight */
#define SMALL_COUNT  200
#define SMALL_MASTER (4 * SMALL)
#define SMALL_CHUNK  16384
#define SMALL_REFS   3

/* One chunk of many weights, each of which is the rounding of what lies in another chunk than the one before. */
struct turns {
	struct ckpt_layout *layout;
	struct ckpt_encoded table;
	char *shard;
	uint64_t *masters;
	uint32_t refs[CKPT_ENCODED_REFS_MAX];
	size_t chunk;
	struct ckpt_chunk_scratch scratch;
	uint8_t *out;
};

static const void *turns_bytes(void *user, uint64_t offset, size_t length, void *room)
{
	(void)length;
	(void)room;
	return ((struct turns *)user)->shard + offset;
}

static void turns_make(struct turns *t)
{
	static const int64_t large = SMALL_REFS * SMALL_CHUNK / 4;
	static const int64_t small = SMALL;
	static char names[SMALL_COUNT + 1][8] = {"a"};
	struct ckpt_tensor tensors[SMALL_COUNT + 1];
	struct ckpt_error err = {.size = sizeof(err)};
	struct prng prng = {1};

	for (size_t i = 0; i <= SMALL_COUNT; i++) {
		if (i > 0)
			(void)snprintf(names[i], sizeof(names[i]), "w%03zu", i);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = i == 0  ? CKPT_F32
				 : i % 2 ? CKPT_BF16
					 : CKPT_F16,
			.ndim = 1,
			.shape = i == 0 ? &large : &small};
	}
	assert_int_equal(
		ckpt_layout_build(tensors, SMALL_COUNT + 1, NULL, 0, SMALL_CHUNK, &err, &t->layout),
		0);
	t->shard = calloc(1, t->layout->bytes);
	t->masters = calloc(t->layout->entry_count, sizeof(*t->masters));
	t->out = malloc(ckpt_chunk_encode_room(SMALL_CHUNK));
	memcpy(t->shard, t->layout->header, t->layout->header_bytes);
	const struct ckpt_entry *a = ckpt_layout_find(t->layout, "a");
	for (size_t i = 0; i < (size_t)large; i++) {
		float value = (float)prng_below(&prng, 1 << 24) / (1 << 24);

		memcpy(t->shard + a->offset + 4 * i, &value, 4);
	}
	t->chunk = ckpt_layout_chunk_at(t->layout, ckpt_layout_find(t->layout, "w001")->offset);
	t->table = (struct ckpt_encoded){.chunk_count = t->layout->chunk_count,
		.refs = t->refs,
		.chunks = calloc(t->layout->chunk_count, sizeof(*t->table.chunks))};
	assert_int_equal(ckpt_chunk_scratch_open(&t->scratch), 0);
}

static void turns_clear(struct turns *t)
{
	ckpt_chunk_scratch_close(&t->scratch);
	free(t->table.chunks);
	free(t->masters);
	free(t->shard);
	free(t->out);
	ckpt_layout_free(t->layout);
}

/* Weights whose masters lie in so many chunks in turn. */
static void turns_fill(struct turns *t, size_t chunks)
{
	const struct ckpt_entry *a = ckpt_layout_find(t->layout, "a");
	size_t n = 0;

	for (size_t i = 0; i < t->layout->entry_count; i++) {
		const struct ckpt_entry *e = &t->layout->entries[i];

		if (e == a)
			continue;
		t->masters[i] = a->offset + n % chunks * SMALL_CHUNK + n / chunks * SMALL_MASTER;
		ckpt_codec_round(e->dtype == CKPT_BF16 ? CKPT_KIND_BF16 : CKPT_KIND_F16,
			t->shard + t->masters[i], SMALL,
			(uint16_t *)(void *)(t->shard + e->offset));
		n++;
	}
	for (size_t i = 0; i < t->layout->chunk_count; i++) {
		struct ckpt_chunk *c = &t->layout->chunks[i];
		c->digest = ckpt_digest_of(t->shard + c->offset, c->length);
		t->table.chunks[i] =
			(struct ckpt_encoded_chunk){.length = c->length, .digest = c->digest};
	}
}

/* The same as a file may have it whose writer does not see to it how often chunks are decoded. */
static void turns_put_all(struct turns *t)
{
	struct ckpt_encoded_chunk *stored = &t->table.chunks[t->chunk];
	uint8_t *to = t->out;
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;

	ckpt_chunk_parts_begin(&parts, t->layout, t->chunk);
	while (ckpt_chunk_parts_next(&parts, &part)) {
		uint64_t master = t->masters[part.entry - t->layout->entries];

		memset(to, 0, 14);
		to[0] = 10;
		to[4] = 1;
		memcpy(to + 5, &master, 8);
		to[13] = CKPT_MODE_CAST;
		to += 14;
	}
	*stored = (struct ckpt_encoded_chunk){.length = (uint32_t)(to - t->out),
		.kind = CKPT_ENCODED_PARTS,
		.ref_count = SMALL_REFS};
	stored->digest = ckpt_digest_of(t->out, stored->length);
}

static int turns_decode(struct turns *t, const atomic_bool *stopped)
{
	struct ckpt_stored_chunk *items = calloc(t->layout->chunk_count, sizeof(*items));
	struct ckpt_chunk_decoder *decoder = ckpt_chunk_decoder_open();
	const struct ckpt_stored_chunks stored = {.layout = t->layout,
		.encoded = &t->table,
		.items = items,
		.count = t->layout->chunk_count,
		.stopped = stopped};
	const char *got;

	for (size_t i = 0; i < stored.count; i++)
		items[i] = (struct ckpt_stored_chunk){.chunk = i,
			.bytes = i == t->chunk
					 ? t->out
					 : (const uint8_t *)t->shard + t->layout->chunks[i].offset};
	assert_int_equal(ckpt_chunk_decoder_aim(decoder, 1, SMALL_CHUNK, false), 0);
	int r = ckpt_chunk_decode(decoder, &stored, t->chunk, NULL, &got);
	ckpt_chunk_decoder_close(decoder);
	free(items);
	return r;
}

/* A file cannot make a reader decode the same chunks over and over, and what is written here does not ask for it. */
static void test_turns(void **state)
{
	const atomic_bool stopped = true;
	struct turns t = {.shard = NULL};
	struct ckpt_chunk_source source = {.bytes = turns_bytes, .user = &t};

	(void)state;
	turns_make(&t);
	source.layout = t.layout;
	source.masters = t.masters;
	for (size_t chunks = 2; chunks <= SMALL_REFS; chunks++) {
		turns_fill(&t, chunks);
		struct ckpt_encoded_chunk *stored = &t.table.chunks[t.chunk];
		ckpt_chunk_encode(&t.scratch, &source, t.chunk, t.out, t.refs, stored);
		assert_int_equal(stored->ref_count, chunks);
		/* Two are kept: all parts may have masters then. */
		assert_true((stored->length == 14 * SMALL_COUNT) == (chunks == 2));
		assert_int_equal(turns_decode(&t, NULL), 0);
		assert_int_equal(turns_decode(&t, &stopped), CKPT_EINTEGRITY);
	}
	turns_put_all(&t);
	assert_int_equal(turns_decode(&t, NULL), CKPT_EFORMAT);
	turns_clear(&t);
}

/* A read of an encoded shard that waits, and how often it was woken. */
struct waiting {
	struct ckpt_task task;
	struct ckpt_decoder_share share;
	unsigned woken;
	bool ends;
};

static int wait_body(struct ckpt_task *task)
{
	struct waiting *w = CKPT_CONTAINER(task, struct waiting, task);

	w->woken++;
	return w->ends ? 0 : CKPT_TASK_PENDING;
}

static void wait_done(struct ckpt_task *task)
{
	(void)task;
}

static void begin_waiting(struct waiting *w, struct ckpt_core *core, const struct scene *s)
{
	assert_int_equal(ckpt_decoders_join(&w->share, core, s->layout, false, &w->task), 0);
	ckpt_task_start(&w->task, &core->sched, wait_body, wait_done);
	ckpt_sched_run(&core->sched);
	w->woken = 0;
}

static void end_waiting(struct waiting *w, struct ckpt_core *core)
{
	w->ends = true;
	ckpt_task_wake(&w->task);
	ckpt_sched_run(&core->sched);
	ckpt_decoders_leave(&w->share);
}

/* Who waits is woken when another read gives back a decoder, or stored bytes. */
static void test_decoders(void **state)
{
	struct ckpt_core core = {.config = {.decoders = 1, .stored_bytes = 100}};
	struct ckpt_chunk_decoder *decoder;
	struct ckpt_chunk_decoder *none;
	struct waiting a = {.woken = 0};
	struct waiting b = {.woken = 0};
	struct scene s = {0};

	(void)state;
	set_up(&s);
	begin_waiting(&a, &core, &s);
	begin_waiting(&b, &core, &s);
	assert_int_equal(ckpt_decoders_lend(&a.share, &decoder), 0);
	assert_true(decoder && ckpt_chunk_decoder_is_for(decoder, a.share.shard));
	assert_int_equal(ckpt_decoders_lend(&b.share, &none), 0);
	assert_null(none);
	ckpt_decoders_give_back(&a.share, decoder);
	ckpt_sched_run(&core.sched);
	assert_int_equal(b.woken, 1);
	assert_int_equal(ckpt_decoders_lend(&b.share, &decoder), 0);
	assert_true(decoder && !ckpt_chunk_decoder_is_for(decoder, a.share.shard));
	ckpt_decoders_give_back(&b.share, decoder);
	ckpt_sched_run(&core.sched);

	/* One that holds nothing may always hold what a block needs. */
	assert_true(ckpt_decoders_may_hold(&a.share, 1000));
	ckpt_decoders_hold(&a.share, 1000);
	assert_false(ckpt_decoders_may_hold(&a.share, 1));
	assert_true(ckpt_decoders_may_hold(&b.share, 50));
	ckpt_decoders_hold(&b.share, 50);
	assert_false(ckpt_decoders_may_hold(&b.share, 50));
	b.woken = 0;
	ckpt_decoders_let_go(&a.share, 1000);
	ckpt_sched_run(&core.sched);
	assert_int_equal(b.woken, 1);
	assert_true(ckpt_decoders_may_hold(&b.share, 50));
	assert_false(ckpt_decoders_may_hold(&b.share, 51));
	ckpt_decoders_let_go(&b.share, 50);
	end_waiting(&a, &core);
	assert_non_null(core.decoders);
	end_waiting(&b, &core);
	assert_null(core.decoders);
	tear_down(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_anything),
		cmocka_unit_test(test_masters),
		cmocka_unit_test(test_view),
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_decoders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
