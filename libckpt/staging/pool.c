/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, their free list, and the thread that touches them once. */
#include "staging/pool.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/latch.h"
#include "base/thread.h"
#include "staging/reader_queue.h"

/* A free slot must not be read or written. */
#if defined(__SANITIZE_ADDRESS__)
#define POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONS 1
#endif
#endif
#ifdef POISONS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#define SLOTS_MAX     (UINT64_C(1) << 26)
/*
 * Touching holds the lock of the address space, which every mmap() waits for. A thread that takes it again at once may
 * keep waiters out for 4 ms (RWSEM_WAIT_TIMEOUT), so pieces are small and the thread rests in between.
 */
#define TOUCH_BYTES   (UINT64_C(256) << 10)
#define TOUCH_REST_NS 20000

struct ckpt_pool {
	const struct ckpt_pool_ops *ops;
	struct ckpt_slot_memory mapping;
	uint32_t block_bytes;
	unsigned most; /* slots; current number is `count` */
	unsigned count;
	unsigned free_count;
	unsigned lent_count;
	unsigned owed;
	struct ckpt_slot *slots;
	struct ckpt_slot
		/* Last in, first out, because its pages are there and in the TLB; or sorted. */
		*free;
	struct ckpt_task *waiter;
	struct ckpt_reader_quotas shares;
	char note[256];

	bool touching; /* the thread was started, and must be joined */
	pthread_t toucher;
	struct ckpt_latch stop; /* stops the toucher; set: no other thread touches */
	atomic_uint threads;
	_Atomic uint64_t touched;
};

static void look(struct ckpt_memlimit *ret_memory)
{
	ckpt_memlimit_read("", ret_memory);
}

static const struct ckpt_pool_ops system_ops = {.look = look,
	.add = ckpt_slot_memory_add,
	.touch = ckpt_slot_memory_touch,
	.drop = ckpt_slot_memory_drop};

/* "8 MiB", "64 KiB" */
struct size_text {
	char text[32];
};

static struct size_text size_text(uint64_t bytes)
{
	bool mib = bytes >= (UINT64_C(1) << 20);
	struct size_text size;

	(void)snprintf(size.text, sizeof(size.text), "%llu %s",
		(unsigned long long)(bytes >> (mib ? 20 : 10)), mib ? "MiB" : "KiB");
	return size;
}

/* Lowers the pool to what fits in `room`, and notes that. Fails if that is too little. */
static int fit(struct ckpt_pool *pool, uint64_t room, int code, const char *bound, uint64_t *slots,
	struct ckpt_error *err)
{
	uint64_t fits = room / pool->block_bytes;

	if (fits >= *slots)
		return 0;
	if (fits < CKPT_POOL_SLOTS_MIN)
		return ckpt_fail(err, code,
			"staging needs %u blocks of %s, and only %s may be used, because of %s: "
			"free memory, raise the limit, or use smaller blocks (block_bytes)",
			(unsigned)CKPT_POOL_SLOTS_MIN, size_text(pool->block_bytes).text,
			size_text(room).text, bound);
	(void)snprintf(pool->note, sizeof(pool->note),
		"staging memory lowered from %s to %s, because of %s",
		size_text(*slots * pool->block_bytes).text,
		size_text(fits * pool->block_bytes).text, bound);
	*slots = fits;
	return 0;
}

/* Growing a file beyond this limit raises a signal, which would end the process. */
static uint64_t file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	return limit.rlim_cur;
}

/*
 * Reserved address space counts towards the limit, and the program may need all of it: then nothing is reserved, and
 * the pool does not grow.
 */
static bool space_is_limited(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

static int map(struct ckpt_pool *pool, uint64_t slots, uint64_t most, struct ckpt_error *err)
{
	uint64_t reserve = space_is_limited() ? 0 : most * pool->block_bytes;
	struct ckpt_memlimit memory;
	int r;

	r = fit(pool, file_limit(), -EFBIG, "the limit of file sizes (ulimit -f)", &slots, err);
	if (r < 0)
		return r;
	if (pool->block_bytes >= CKPT_HUGE_PAGE &&
		ckpt_slot_memory_open_huge(slots * pool->block_bytes, reserve, &pool->mapping))
		return 0;
	/* Missing memory would be noticed only when it is touched, which is too late. */
	pool->ops->look(&memory);
	if (memory.available != UINT64_MAX) {
		r = fit(pool, memory.available - memory.available / 8, -ENOMEM, memory.bound,
			&slots, err);
		if (r < 0)
			return r;
	}
	return ckpt_slot_memory_open(slots * pool->block_bytes, reserve, err, &pool->mapping);
}

/* True: the toucher must stop. */
static bool rested(struct ckpt_pool *pool)
{
	return ckpt_latch_wait_until(&pool->stop, 1, ckpt_clock_ns() + TOUCH_REST_NS) != 0;
}

static void *touch_body(void *argument)
{
	struct ckpt_pool *pool = argument;
	uint64_t bytes = pool->mapping.bytes;
	/* Touching the first byte of a huge page brings in all of it. */
	uint64_t step = pool->mapping.huge ? CKPT_HUGE_PAGE : TOUCH_BYTES;

	for (uint64_t at = 0; at < bytes && !rested(pool); at += step) {
		uint64_t n = ckpt_min_u64(step, bytes - at);

		/* Out of memory: the copies that need it will fail. */
		if (pool->ops->touch(pool->mapping.base + at, n) < 0)
			break;
		atomic_fetch_add(&pool->touched, n);
	}
	atomic_store(&pool->threads, 0);
	return NULL;
}

static int start_toucher(struct ckpt_pool *pool, struct ckpt_error *err)
{
	int r;

	if (pool->mapping.resident) {
		atomic_store(&pool->touched, pool->mapping.bytes);
		return 0;
	}
	atomic_store(&pool->threads, 1);
	r = ckpt_thread_start(&pool->toucher, "ckpt-touch", touch_body, pool);
	if (r < 0)
		return ckpt_fail(err, r, "cannot start the thread that touches staging memory: %s",
			ckpt_code_text(r));
	pool->touching = true;
	return 0;
}

static void link_free(struct ckpt_pool *pool, struct ckpt_slot *slot)
{
	slot->prev = NULL;
	slot->next = pool->free;
	if (pool->free)
		pool->free->prev = slot;
	pool->free = slot;
}

/* Adds the next slots to the free list; the first of them is used next. */
static void add_slots(struct ckpt_pool *pool, unsigned count)
{
	CKPT_ASSERT(count <= pool->most - pool->count);
	for (unsigned i = pool->count + count; i-- > pool->count;) {
		struct ckpt_slot *slot = &pool->slots[i];

		slot->data = pool->mapping.base + (size_t)i * pool->block_bytes;
		slot->number = i;
		link_free(pool, slot);
	}
	pool->count += count;
	pool->free_count += count;
}

static int make_slots(struct ckpt_pool *pool, struct ckpt_error *err)
{
	pool->most = (unsigned)(pool->mapping.reserved / pool->block_bytes);
	/* Zeroed memory, which is not touched until the pool grows. */
	pool->slots = ckpt_alloc_array(pool->most, sizeof(*pool->slots));
	if (!pool->slots)
		return ckpt_fail(err, -ENOMEM, "out of memory for %u staging slots", pool->most);
	add_slots(pool, (unsigned)(pool->mapping.bytes / pool->block_bytes));
	return 0;
}

int ckpt_pool_open(
	const struct ckpt_pool_config *config, struct ckpt_error *err, struct ckpt_pool **ret_pool)
{
	uint64_t slots = config->bytes / config->block_bytes;
	uint64_t most =
		ckpt_min_u64(config->bytes_max / config->block_bytes, CKPT_POOL_SLOTS_GROWN);
	struct ckpt_pool *pool;
	int r;

	CKPT_ASSERT(config->block_bytes > 0 && config->block_bytes % 4096 == 0);
	slots = ckpt_max_u64(CKPT_POOL_SLOTS_MIN, ckpt_min_u64(slots, SLOTS_MAX));
	pool = ckpt_alloc(sizeof(*pool));
	if (!pool)
		return ckpt_fail(err, -ENOMEM, "out of memory for the staging pool");
	pool->ops = config->ops ? config->ops : &system_ops;
	pool->block_bytes = config->block_bytes;
	r = ckpt_latch_init(&pool->stop);
	if (r < 0) {
		(void)ckpt_fail(err, r, "cannot make a lock: %s", ckpt_code_text(r));
		goto free_pool;
	}
	r = map(pool, slots, most, err);
	if (r < 0)
		goto destroy_latch;
	r = make_slots(pool, err);
	if (r < 0)
		goto unmap;
	r = config->touch ? start_toucher(pool, err) : 0;
	if (r < 0)
		goto unmap;
	*ret_pool = pool;
	return 0;

unmap:
	ckpt_slot_memory_close(&pool->mapping);
	ckpt_free(pool->slots);
destroy_latch:
	ckpt_latch_destroy(&pool->stop);
free_pool:
	ckpt_free(pool);
	return r;
}

void ckpt_pool_close(struct ckpt_pool *pool)
{
	if (!pool)
		return;
	CKPT_ASSERT(pool->free_count == pool->count);
	if (pool->touching) {
		ckpt_latch_set(&pool->stop, 1);
		(void)pthread_join(pool->toucher, NULL);
	}
	ckpt_latch_destroy(&pool->stop);
	ASAN_UNPOISON_MEMORY_REGION(pool->mapping.base, (size_t)pool->count * pool->block_bytes);
	ckpt_slot_memory_close(&pool->mapping);
	ckpt_free(pool->slots);
	ckpt_free(pool);
}

/* Removes a slot from the list, wherever it is. */
static void take(struct ckpt_pool *pool, struct ckpt_slot *slot)
{
	CKPT_ASSERT(!slot->taken && pool->free_count > 0);
	if (slot->prev)
		slot->prev->next = slot->next;
	else
		pool->free = slot->next;
	if (slot->next)
		slot->next->prev = slot->prev;
	slot->next = NULL;
	slot->prev = NULL;
	pool->free_count--;
	slot->taken = true;
	ASAN_UNPOISON_MEMORY_REGION(slot->data, pool->block_bytes);
}

struct ckpt_slot *ckpt_pool_get(struct ckpt_pool *pool)
{
	struct ckpt_slot *slot = pool->free;

	if (!slot)
		return NULL;
	take(pool, slot);
	slot->uses++;
	return slot;
}

void ckpt_pool_put(struct ckpt_pool *pool, struct ckpt_slot *slot)
{
	CKPT_ASSERT(slot->number < pool->count && slot == &pool->slots[slot->number]);
	CKPT_ASSERT(slot->taken && pool->free_count < pool->count);
	ASAN_POISON_MEMORY_REGION(slot->data, pool->block_bytes);
	slot->taken = false;
	link_free(pool, slot);
	pool->free_count++;
	/* Readers first: they leave enough to the writer, which would leave nothing to them. */
	ckpt_reader_quotas_wake(&pool->shares);
	ckpt_task_wake(pool->waiter);
}

void ckpt_pool_sort(struct ckpt_pool *pool)
{
	pool->free = NULL;
	for (unsigned i = pool->count; i-- > 0;) {
		struct ckpt_slot *slot = &pool->slots[i];

		if (!slot->taken)
			link_free(pool, slot);
	}
}

struct ckpt_slot *ckpt_pool_retake(struct ckpt_pool *pool, unsigned number, uint64_t uses)
{
	CKPT_ASSERT(number < pool->most);
	struct ckpt_slot *slot = &pool->slots[number];

	/* Its memory was given back. */
	if (number >= pool->count)
		return NULL;
	if (slot->taken || slot->uses != uses)
		return NULL;
	take(pool, slot);
	return slot;
}

bool ckpt_pool_lend(struct ckpt_pool *pool, unsigned number, uint64_t uses)
{
	if (pool->waiter || !ckpt_pool_retake(pool, number, uses))
		return false;
	pool->lent_count++;
	return true;
}

void ckpt_pool_take_back(struct ckpt_pool *pool, unsigned number)
{
	CKPT_ASSERT(number < pool->count && pool->lent_count > 0);
	pool->lent_count--;
	ckpt_pool_put(pool, &pool->slots[number]);
}

unsigned ckpt_pool_lent(const struct ckpt_pool *pool)
{
	return pool->lent_count;
}

void ckpt_pool_owe(struct ckpt_pool *pool, unsigned slots)
{
	pool->owed = slots;
}

unsigned ckpt_pool_owed(const struct ckpt_pool *pool)
{
	return pool->owed;
}

struct ckpt_slot *ckpt_pool_slot(const struct ckpt_pool *pool, unsigned number)
{
	/* The core knows how many there are. */
	CKPT_ASSERT(number < pool->most && pool->slots[number].data);
	return &pool->slots[number];
}

void ckpt_pool_set_waiter(struct ckpt_pool *pool, struct ckpt_task *waiter)
{
	pool->waiter = waiter;
}

struct ckpt_reader_quotas *ckpt_pool_shares(struct ckpt_pool *pool)
{
	return &pool->shares;
}

unsigned ckpt_pool_most(const struct ckpt_pool *pool)
{
	return pool->most;
}

void ckpt_pool_look(const struct ckpt_pool *pool, struct ckpt_memlimit *ret_memory)
{
	pool->ops->look(ret_memory);
}

int ckpt_pool_add(
	const struct ckpt_pool *pool, unsigned first, unsigned count, struct ckpt_error *err)
{
	size_t bytes = (size_t)count * pool->block_bytes;
	/* Its file offset follows its place in a huge page, see ckpt_slot_memory_add(). */
	uint64_t limit = file_limit();

	CKPT_ASSERT(count > 0 && first < pool->most && count <= pool->most - first);
	if (bytes + CKPT_HUGE_PAGE > limit)
		return ckpt_fail(err, -EFBIG,
			"the limit of file sizes (ulimit -f) is %llu MiB, and memory of %llu MiB "
			"counts as a file",
			(unsigned long long)(limit >> 20), (unsigned long long)bytes >> 20);
	return pool->ops->add(&pool->mapping, (size_t)first * pool->block_bytes, bytes, err);
}

int ckpt_pool_touch(struct ckpt_pool *pool, unsigned first, unsigned count)
{
	size_t end = (size_t)(first + count) * pool->block_bytes;
	uint64_t step = pool->mapping.huge ? CKPT_HUGE_PAGE : TOUCH_BYTES;
	int r = 0;

	for (size_t at = (size_t)first * pool->block_bytes; at < end && r == 0; at += step) {
		r = pool->ops->touch(pool->mapping.base + at, ckpt_min_u64(step, end - at));
		(void)rested(pool);
	}
	CKPT_ASSERT(r <= 0);
	return r;
}

void ckpt_pool_drop(struct ckpt_pool *pool, unsigned first, unsigned count)
{
	size_t end = (size_t)(first + count) * pool->block_bytes;
	uint64_t step = pool->mapping.huge ? CKPT_HUGE_PAGE : TOUCH_BYTES;

	CKPT_ASSERT(first >= pool->count && count <= pool->most - first);
	for (size_t at = (size_t)first * pool->block_bytes; at < end; at += step) {
		pool->ops->drop(pool->mapping.base + at, ckpt_min_u64(step, end - at));
		(void)rested(pool);
	}
}

void ckpt_pool_remove(const struct ckpt_pool *pool, unsigned first, unsigned count)
{
	ckpt_slot_memory_remove(&pool->mapping, (size_t)first * pool->block_bytes,
		(size_t)count * pool->block_bytes);
}

void ckpt_pool_grow(struct ckpt_pool *pool, unsigned count)
{
	add_slots(pool, count);
	atomic_fetch_add(&pool->touched, (uint64_t)count * pool->block_bytes);
	/* There are slots for more readers. */
	ckpt_reader_quotas_admit(&pool->shares, pool->count);
	ckpt_reader_quotas_wake(&pool->shares);
	ckpt_task_wake(pool->waiter);
}

unsigned ckpt_pool_least(const struct ckpt_pool *pool)
{
	return (unsigned)(pool->mapping.bytes / pool->block_bytes);
}

bool ckpt_pool_shrink(struct ckpt_pool *pool, unsigned count)
{
	unsigned first = pool->count - count;

	CKPT_ASSERT(count > 0 && count <= pool->count);
	if (first < ckpt_pool_least(pool) || !ckpt_reader_quotas_fit(&pool->shares, first))
		return false;
	for (unsigned i = first; i < pool->count; i++)
		if (pool->slots[i].taken)
			return false;
	for (unsigned i = first; i < pool->count; i++) {
		struct ckpt_slot *slot = &pool->slots[i];

		take(pool, slot);
		slot->taken = false;
		/* Its contents are lost. */
		slot->uses++;
	}
	pool->count = first;
	atomic_fetch_sub(&pool->touched, (uint64_t)count * pool->block_bytes);
	return true;
}

void *ckpt_pool_base(const struct ckpt_pool *pool)
{
	return pool->mapping.base;
}

uint64_t ckpt_pool_bytes(const struct ckpt_pool *pool)
{
	return (uint64_t)pool->count * pool->block_bytes;
}

unsigned ckpt_pool_slots(const struct ckpt_pool *pool)
{
	return pool->count;
}

unsigned ckpt_pool_free(const struct ckpt_pool *pool)
{
	return pool->free_count;
}

uint64_t ckpt_pool_touched(const struct ckpt_pool *pool)
{
	return atomic_load(&pool->touched);
}

uint64_t ckpt_pool_held(const struct ckpt_pool *pool)
{
	return pool->mapping.resident ? 0 : ckpt_pool_touched(pool);
}

bool ckpt_pool_huge(const struct ckpt_pool *pool)
{
	return pool->mapping.huge;
}

unsigned ckpt_pool_threads(const struct ckpt_pool *pool)
{
	return atomic_load(&pool->threads);
}

const char *ckpt_pool_note(const struct ckpt_pool *pool)
{
	return pool->note;
}

/*
 * Launchers such as torchrun set it to the number of ranks on this machine. Users do not set it for us, so it is no
 * option. A program that changes the environment in another thread is at fault anyway.
 */
static uint32_t known_ranks(uint32_t node_ranks)
{
	/* NOLINTNEXTLINE(concurrency-mt-unsafe) */
	return ckpt_memlimit_ranks(node_ranks, getenv("LOCAL_WORLD_SIZE"));
}

void ckpt_pool_default(uint32_t node_ranks, struct ckpt_pool_config *config)
{
	uint32_t ranks = (uint32_t)ckpt_max_u64(known_ranks(node_ranks), 1);
	struct ckpt_memlimit memory;

	ckpt_memlimit_read("", &memory);
	config->bytes = ckpt_memlimit_budget(&memory, ranks);
	/* Only the limit: what is available is less, and is checked when it grows. */
	config->bytes_max = memory.limit == UINT64_MAX ? 0 : memory.limit / 2 / ranks;
}

uint32_t ckpt_pool_sharers(uint32_t node_ranks, uint32_t world)
{
	uint32_t ranks = known_ranks(node_ranks);

	return (uint32_t)ckpt_max_u64(ranks ? ranks : world, 1);
}
