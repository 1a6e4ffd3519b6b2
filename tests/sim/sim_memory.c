/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers around the product's allocator and staging pool. */
#include "sim_memory.h"

#include <string.h>

#include "base/alloc.h"
#include "codec/codec.h"
#include "staging/reader_quota.h"

#define MAGIC UINT64_C(0x51b10cc5a5a5a5a5)
#define SLOTS 256

/* In front of every block of the product. */
struct block {
	struct block *next;
	struct block *prev;
	uint64_t magic;
	size_t size;
	unsigned owner;
	max_align_t data[];
};

/* A slot that is taken. */
struct taken {
	struct ckpt_pool *pool;
	struct ckpt_slot *slot;
	bool lent;
};

/* A codec, which has memory of zstd's as well. */
#define CODECS 256
struct kept_codec {
	struct ckpt_codec *codec;
	unsigned owner;
};

/* Nine processes at most, of as many sizes as a plan may pick. */
#define POOLS 512
struct kept_pool {
	struct ckpt_pool *pool;
	bool used;
};

/* Processes of one run. */
#define OWNERS 1024
struct usage {
	uint64_t bytes;
	uint64_t most;
};

static struct kept_pool kept[POOLS];
static struct usage usage[OWNERS];
static unsigned current;
static struct block *blocks;
static struct taken taken[SLOTS];
static struct kept_codec codecs[CODECS];
static bool keeps;

/* What the linker makes of the product's names: the wrapper, and the function itself. */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
void *__real_ckpt_alloc(size_t size);
void __real_ckpt_free(void *ptr);
struct ckpt_slot *__real_ckpt_pool_get(struct ckpt_pool *pool);
void __real_ckpt_pool_put(struct ckpt_pool *pool, struct ckpt_slot *slot);
struct ckpt_slot *__real_ckpt_pool_retake(struct ckpt_pool *pool, unsigned number, uint64_t uses);
bool __real_ckpt_pool_lend(struct ckpt_pool *pool, unsigned number, uint64_t uses);
void __real_ckpt_pool_take_back(struct ckpt_pool *pool, unsigned number);
void *__wrap_ckpt_alloc(size_t size);
void *__wrap_ckpt_alloc_array(size_t count, size_t size);
void *__wrap_ckpt_realloc_array(void *ptr, size_t count, size_t size);
char *__wrap_ckpt_strdup(const char *text);
void *__wrap_ckpt_memdup(const void *data, size_t size);
void __wrap_ckpt_free(void *ptr);
struct ckpt_slot *__wrap_ckpt_pool_get(struct ckpt_pool *pool);
void __wrap_ckpt_pool_put(struct ckpt_pool *pool, struct ckpt_slot *slot);
struct ckpt_slot *__wrap_ckpt_pool_retake(struct ckpt_pool *pool, unsigned number, uint64_t uses);
bool __wrap_ckpt_pool_lend(struct ckpt_pool *pool, unsigned number, uint64_t uses);
void __wrap_ckpt_pool_take_back(struct ckpt_pool *pool, unsigned number);

struct ckpt_codec *__real_ckpt_codec_open(enum ckpt_simd simd);
void __real_ckpt_codec_close(struct ckpt_codec *codec);
struct ckpt_codec *__wrap_ckpt_codec_open(enum ckpt_simd simd);
void __wrap_ckpt_codec_close(struct ckpt_codec *codec);

struct ckpt_codec *__wrap_ckpt_codec_open(enum ckpt_simd simd)
{
	struct ckpt_codec *codec = __real_ckpt_codec_open(simd);
	unsigned i = 0;

	while (codec && i < CODECS && codecs[i].codec)
		i++;
	CKPT_ASSERT(i < CODECS);
	if (codec)
		codecs[i] = (struct kept_codec){.codec = codec, .owner = current};
	return codec;
}

void __wrap_ckpt_codec_close(struct ckpt_codec *codec)
{
	for (unsigned i = 0; codec && i < CODECS; i++)
		if (codecs[i].codec == codec)
			codecs[i].codec = NULL;
	__real_ckpt_codec_close(codec);
}

void *__wrap_ckpt_alloc(size_t size)
{
	if (size > SIZE_MAX - sizeof(struct block))
		return NULL;
	struct block *block = __real_ckpt_alloc(sizeof(*block) + size);
	if (!block)
		return NULL;
	block->magic = MAGIC;
	block->size = size;
	block->owner = current;
	block->next = blocks;
	if (blocks)
		blocks->prev = block;
	blocks = block;
	struct usage *mine = &usage[current];
	mine->bytes += size;
	mine->most = ckpt_max_u64(mine->most, mine->bytes);
	return block->data;
}

static struct block *block_of(void *ptr)
{
	struct block *block = CKPT_CONTAINER(ptr, struct block, data);

	CKPT_ASSERT(block->magic == MAGIC);
	return block;
}

static void release(struct block *block)
{
	if (block->prev)
		block->prev->next = block->next;
	else
		blocks = block->next;
	if (block->next)
		block->next->prev = block->prev;
	block->magic = 0;
	usage[block->owner].bytes -= block->size;
	__real_ckpt_free(block);
}

void __wrap_ckpt_free(void *ptr)
{
	if (ptr)
		release(block_of(ptr));
}

void *__wrap_ckpt_alloc_array(size_t count, size_t size)
{
	size_t total;

	return __builtin_mul_overflow(count, size, &total) ? NULL : __wrap_ckpt_alloc(total);
}

/* Always moves, so that an old pointer shows. */
void *__wrap_ckpt_realloc_array(void *ptr, size_t count, size_t size)
{
	void *grown = __wrap_ckpt_alloc_array(count, size);

	if (grown && ptr) {
		const struct block *old = block_of(ptr);
		memcpy(grown, ptr, old->size < count * size ? old->size : count * size);
		__wrap_ckpt_free(ptr);
	}
	return grown;
}

void *__wrap_ckpt_memdup(const void *data, size_t size)
{
	void *copy = __wrap_ckpt_alloc(size);

	if (copy && size)
		memcpy(copy, data, size);
	return copy;
}

char *__wrap_ckpt_strdup(const char *text)
{
	return __wrap_ckpt_memdup(text, strlen(text) + 1);
}

static void note_taken(struct ckpt_pool *pool, struct ckpt_slot *slot, bool lent)
{
	unsigned i = 0;

	while (i < SLOTS && taken[i].slot)
		i++;
	CKPT_ASSERT(i < SLOTS);
	taken[i] = (struct taken){.pool = pool, .slot = slot, .lent = lent};
}

static struct taken *find_taken(struct ckpt_pool *pool, const struct ckpt_slot *slot)
{
	unsigned i = 0;

	while (i < SLOTS && taken[i].slot != slot)
		i++;
	CKPT_ASSERT(i < SLOTS && taken[i].pool == pool);
	return &taken[i];
}

/*
 * The rest of the run must not read what a save or restore left in a slot, unless it goes on to a bucket, or the next save is the
 * difference to it.
 */
struct ckpt_slot *__wrap_ckpt_pool_get(struct ckpt_pool *pool)
{
	struct ckpt_slot *slot = __real_ckpt_pool_get(pool);

	if (slot)
		note_taken(pool, slot, false);
	return slot;
}

struct ckpt_slot *__wrap_ckpt_pool_retake(struct ckpt_pool *pool, unsigned number, uint64_t uses)
{
	struct ckpt_slot *slot = __real_ckpt_pool_retake(pool, number, uses);

	if (slot)
		note_taken(pool, slot, false);
	return slot;
}

bool __wrap_ckpt_pool_lend(struct ckpt_pool *pool, unsigned number, uint64_t uses)
{
	if (!__real_ckpt_pool_lend(pool, number, uses))
		return false;
	note_taken(pool, ckpt_pool_slot(pool, number), true);
	return true;
}

void __wrap_ckpt_pool_take_back(struct ckpt_pool *pool, unsigned number)
{
	struct taken *t = find_taken(pool, ckpt_pool_slot(pool, number));

	CKPT_ASSERT(t->lent);
	*t = (struct taken){0};
	__real_ckpt_pool_take_back(pool, number);
}

void __wrap_ckpt_pool_put(struct ckpt_pool *pool, struct ckpt_slot *slot)
{
	struct taken *t = find_taken(pool, slot);

	CKPT_ASSERT(!t->lent);
	*t = (struct taken){0};
	if (!keeps)
		memset(slot->data, 0xdd, ckpt_pool_bytes(pool) / ckpt_pool_slots(pool));
	__real_ckpt_pool_put(pool, slot);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static bool fails(void *user, size_t size)
{
	struct sim *sim = user;

	(void)size;
	if (!current || !sim_fault(sim, SIM_NO_MEMORY))
		return false;
	sim_note(sim, current, "no memory", "", (int64_t)size, 0, 0);
	return true;
}

void sim_memory_start(struct sim *sim)
{
	/* What the world itself holds of the product's, such as the log, stays. */
	memset(&usage[1], 0, sizeof(usage) - sizeof(usage[0]));
	current = 0;
	ckpt_alloc_set_hook(sim ? fails : NULL, sim);
}

void sim_memory_enter(unsigned owner)
{
	CKPT_ASSERT(owner < OWNERS);
	current = owner;
}

unsigned sim_memory_blocks(unsigned owner)
{
	unsigned count = 0;

	for (const struct block *b = blocks; b; b = b->next)
		count += b->owner == owner;
	return count;
}

uint64_t sim_memory_bytes(unsigned owner)
{
	return usage[owner].bytes;
}

uint64_t sim_memory_most(unsigned owner)
{
	uint64_t most = usage[owner].most;

	usage[owner].most = usage[owner].bytes;
	return most;
}

bool sim_memory_empty(void)
{
	for (const struct block *b = blocks; b; b = b->next)
		if (b->owner)
			return false;
	for (unsigned i = 0; i < POOLS; i++)
		if (kept[i].used)
			return false;
	return true;
}

void sim_memory_sweep(unsigned owner)
{
	for (unsigned i = 0; i < CODECS; i++)
		if (codecs[i].codec && codecs[i].owner == owner)
			__wrap_ckpt_codec_close(codecs[i].codec);
	for (struct block *b = blocks, *next; b; b = next) {
		next = b->next;
		if (b->owner == owner)
			release(b);
	}
}

struct ckpt_pool *sim_pool_open(unsigned slots, uint32_t block_bytes)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_pool_config config = {
		.bytes = (uint64_t)slots * block_bytes, .block_bytes = block_bytes};

	for (unsigned i = 0; i < POOLS; i++) {
		struct kept_pool *k = &kept[i];
		if (k->pool && (k->used || ckpt_pool_slots(k->pool) != slots ||
				       ckpt_pool_bytes(k->pool) != config.bytes))
			continue;
		if (!k->pool) {
			int r = ckpt_pool_open(&config, &err, &k->pool);
			CKPT_ASSERT(r == 0 && ckpt_pool_slots(k->pool) == slots);
		}
		k->used = true;
		return k->pool;
	}
	CKPT_ASSERT(false);
	return NULL;
}

void sim_pool_keep(bool contents)
{
	keeps = contents;
}

void sim_pool_sweep(struct ckpt_pool *pool)
{
	ckpt_pool_set_waiter(pool, NULL);
	ckpt_pool_owe(pool, 0);
	*ckpt_pool_shares(pool) = (struct ckpt_reader_quotas){0};
	for (unsigned i = 0; i < SLOTS; i++)
		if (taken[i].slot && taken[i].pool == pool && taken[i].lent)
			ckpt_pool_take_back(pool, taken[i].slot->number);
		else if (taken[i].slot && taken[i].pool == pool)
			ckpt_pool_put(pool, taken[i].slot);
	for (unsigned i = 0; i < POOLS; i++)
		if (kept[i].pool == pool)
			kept[i].used = false;
}

void sim_pool_close_all(void)
{
	for (unsigned i = 0; i < POOLS; i++) {
		CKPT_ASSERT(!kept[i].used);
		ckpt_pool_close(kept[i].pool);
		kept[i].pool = NULL;
	}
}
