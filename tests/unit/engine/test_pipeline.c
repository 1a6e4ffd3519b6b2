/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a save on their way through staging: what is counted, what is written, who comes first. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/save/plan.h"
#include "engine/save/save_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"

#define SHARD          ".safetensors"
#define MIB            (1 << 20)
#define MILLISECOND    UINT64_C(1000000)
#define BLOCK          65536
/* Of blocks of 64 KiB with a header of 4 KiB. */
#define FLOATS(blocks) ((size_t)(blocks)*BLOCK / sizeof(float) - 2048)

struct scene {
	char *dir;
	struct core_rig rig;
	uint64_t bytes;    /* of the shard */
	unsigned beyond;   /* bytes written behind it */
	unsigned nonzero;  /* of them */
	unsigned misnamed; /* writes from another slot than they say */
	enum io_tap_way (*before)(struct io_tap *tap, struct io_tap_req *req);
};

static struct scene *watching;

static enum io_tap_way watch(struct io_tap *tap, struct io_tap_req *r)
{
	struct scene *s = watching;

	if (r->req.op == CKPT_IO_OP_WRITE && strstr(r->path, SHARD)) {
		const char *bytes = r->req.buf;
		const char *base = ckpt_pool_base(s->rig.pool);
		s->misnamed += (bytes - base) / BLOCK != r->req.slot;
		for (uint64_t i = 0; i < r->req.len; i++) {
			s->beyond += r->req.off + i >= s->bytes;
			s->nonzero += r->req.off + i >= s->bytes && bytes[i] != 0;
		}
	}
	return s->before(tap, r);
}

/* What a save has counted at the moment at which somebody can see that it is staged. */
static struct {
	struct ckpt_save *save;
	uint64_t stage_ns;
	uint64_t last_ns;
	bool waits; /* for a slot, when it is let go of */
	bool gone;
} told;

/* The linker puts this in the place of the function itself. */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
void __real_ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits);
void __wrap_ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits);

void __wrap_ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits)
{
	if (told.save && latch == ckpt_save_latch(told.save) && bits & CKPT_DONE_STAGED) {
		told.stage_ns = atomic_load(&told.save->stage_ns);
		told.last_ns = told.save->core->stats.last_stage_ns;
	}
	if (told.save && latch == ckpt_save_latch(told.save) && bits & CKPT_DONE_GONE) {
		told.gone = true;
		told.waits = ckpt_task_active(&told.save->pump);
	}
	__real_ckpt_latch_set(latch, bits);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	core_rig_close(&s->rig);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

/* Chunks of 16 KiB go on from block to block; those of 4 KiB, as long as the header, do not. */
static void open_rig_for(struct scene *s, unsigned slots, uint64_t chunk_bytes)
{
	core_rig_open(&s->rig, &(struct core_rig_config){
				       .dir = s->dir, .slots = slots, .chunk_bytes = chunk_bytes});
	watching = s;
	s->before = s->rig.fault.tap.before;
	s->rig.fault.tap.before = watch;
	assert_int_equal(core_rig_claim(&s->rig), 0);
}

static void open_rig(struct scene *s, unsigned slots)
{
	open_rig_for(s, slots, 16384);
}

static unsigned add(struct scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static uint32_t bits(struct ckpt_save *save)
{
	return ckpt_latch_get(ckpt_save_latch(save));
}

static struct ckpt_save *prepare(struct scene *s, uint64_t step, size_t blocks)
{
	struct ckpt_save *save = core_rig_prepare(&s->rig, step, 1, FLOATS(blocks), 0);

	assert_int_equal(save->plan->block_count, blocks);
	s->bytes = save->plan->layout->bytes;
	return save;
}

/* Time and bytes, with room for all blocks. */
static void test_counts(void **state)
{
	struct scene *s = *state;

	open_rig(s, 8);
	s->rig.hold_jobs = true;
	struct ckpt_save *save = prepare(s, 1, 6);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	/* Nobody waits for an eager block where there is none, and no order is made for it. */
	assert_null(save->order);
	/* All slots were taken at once: there is no task that would wait for one. */
	assert_null(save->pump.sched);
	assert_int_equal(bits(save), CKPT_DONE_EAGER);
	/* Before the digests of this and other saves. */
	for (const struct ckpt_job *job = s->rig.held; job; job = job->next)
		assert_true(job->urgent);
	assert_int_equal(atomic_load(&save->bytes_staged), 0);
	told.save = save;
	core_rig_sleep(&s->rig, 5);
	core_rig_do_jobs(&s->rig);
	core_rig_run(&s->rig);
	assert_int_equal(bits(save), CKPT_DONE_EAGER | CKPT_DONE_FED | CKPT_DONE_STAGED);
	assert_int_equal(atomic_load(&save->bytes_staged), s->bytes);
	told.save = NULL;
	assert_int_equal(told.stage_ns, 5 * MILLISECOND);
	assert_int_equal(told.last_ns, 5 * MILLISECOND);
	/* All is written by now, and not digested. */
	assert_int_equal(atomic_load(&save->bytes_written), s->bytes);
	assert_int_equal(ckpt_pool_free(s->rig.pool), 2);
	core_rig_let_go(&s->rig);
	assert_int_equal(atomic_load(&save->starved_ns), 0);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(s->rig.core.stats.pool_starved, 0);
	assert_int_equal(s->misnamed, 0);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_NONE), 0);
}

/* The time without a slot; once for each time that it came to that. */
static void test_starved(void **state)
{
	struct scene *s = *state;

	open_rig(s, 4);
	s->rig.hold_jobs = true;
	struct ckpt_save *save = prepare(s, 1, 6);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	assert_int_equal(s->rig.core.stats.pool_starved, 1);
	core_rig_sleep(&s->rig, 3);
	/* A slot came back, and somebody else has it. */
	ckpt_task_wake(&save->pump);
	core_rig_run(&s->rig);
	assert_int_equal(s->rig.core.stats.pool_starved, 1);
	assert_int_equal(atomic_load(&save->starved_ns), 0);
	/* The copies, then the digests. */
	core_rig_do_jobs(&s->rig);
	core_rig_run(&s->rig);
	core_rig_sleep(&s->rig, 4);
	core_rig_do_jobs(&s->rig);
	core_rig_run(&s->rig);
	assert_int_equal(atomic_load(&save->starved_ns), 7 * MILLISECOND);
	/* Two are left, and slots for three: the fourth block's is kept for the chunk that goes on. */
	assert_int_equal(save->next, 6);
	core_rig_sleep(&s->rig, 10);
	core_rig_let_go(&s->rig);
	assert_int_equal(atomic_load(&save->starved_ns), 7 * MILLISECOND);
	(void)ckpt_save_ref(save);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	/* Nobody is woken for a slot any more, ready or not. */
	save->pump.finished = false;
	ckpt_pool_put(s->rig.pool, ckpt_pool_get(s->rig.pool));
	assert_null(s->rig.core.sched.head);
	save->pump.finished = true;
	ckpt_save_unref(save);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_NONE), 0);
}

/* A slot comes back as soon as its own bytes are written and digested, if no chunk of it goes on. */
static void test_slots_come_back(void **state)
{
	struct scene *s = *state;

	open_rig_for(s, 4, 4096);
	s->rig.hold_jobs = true;
	struct ckpt_save *save = prepare(s, 1, 6);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	for (unsigned i = 0; i < 2; i++) {
		core_rig_do_jobs(&s->rig);
		core_rig_run(&s->rig);
	}
	/* The last two are copied. */
	assert_int_equal(save->copying, 2);
	assert_int_equal(ckpt_pool_free(s->rig.pool), 2);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC, .path = SHARD, .hold = true});
	for (unsigned i = 0; i < 2; i++) {
		core_rig_do_jobs(&s->rig);
		core_rig_run(&s->rig);
	}
	/* All is written, and not durable yet. */
	assert_false(bits(save) & CKPT_DONE_END);
	assert_int_equal(ckpt_pool_free(s->rig.pool), 4);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_NONE), 0);
}

/* A tensor that was changed too early is named, and where. */
static void test_torn(void **state)
{
	struct scene *s = *state;

	open_rig(s, 8);
	struct ckpt_save *save = prepare(s, 1, 6);
	char *data = (char *)save->tensors[0].data;
	/* All of it from the second block on. */
	for (size_t i = BLOCK; i < FLOATS(6) * sizeof(float); i++)
		data[i] = (char)~data[i];
	assert_int_equal(core_rig_post(&s->rig, save), CKPT_ETORN);
	assert_int_equal(core_rig_end_save(&s->rig, save), CKPT_ETORN);
	assert_string_equal(s->rig.err.tensor, "w0");
	assert_non_null(strstr(s->rig.err.message, "tensor w0"));
	/* The part of it that the second block has. */
	assert_int_equal(s->rig.err.offset, BLOCK - 4096);
	assert_null(scratch_find(s->dir, SHARD));
}

/* Cancelled while it is copied: told as soon as nothing reads the tensors, whatever the disk does. */
static void test_cancelled(void **state)
{
	struct scene *s = *state;

	open_rig(s, 8);
	s->rig.hold_jobs = true;
	unsigned opens =
		add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = SHARD, .hold = true});
	struct ckpt_save *save = prepare(s, 1, 6);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	assert_int_equal(s->rig.fault.hits[opens], 1);
	ckpt_save_post_cancel(save);
	core_rig_run(&s->rig);
	assert_false(bits(save) & CKPT_DONE_END);
	core_rig_do_jobs(&s->rig);
	core_rig_run(&s->rig);
	assert_int_equal(bits(save), CKPT_DONE_EAGER | CKPT_DONE_END);
	assert_int_equal(atomic_load(&save->bytes_staged), 0);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ECANCELED);
}

/* A tensor, and an eager one behind it that is too large to be copied on the spot. Its jobs are held. */
static struct ckpt_save *post_eager(struct scene *s, unsigned slots, char *data)
{
	static const int64_t shapes[] = {3 * MIB, 18 * MIB};
	const struct core_rig_config config = {
		.dir = s->dir, .slots = slots, .block_bytes = MIB, .chunk_bytes = MIB};
	struct ckpt_save *save = NULL;

	core_rig_open(&s->rig, &config);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 1, false, 0, &save), 0);
	for (size_t i = 0; i < COUNT(shapes); i++) {
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = i ? "b" : "a",
			.dtype = CKPT_U8,
			.flags = i ? CKPT_TENSOR_EAGER : 0,
			.ndim = 1,
			.shape = &shapes[i],
			.data = data};
		assert_int_equal(ckpt_save_put_tensors(save, &tensor, 1, &s->rig.err), 0);
	}
	assert_int_equal(ckpt_save_prepare(save, &s->rig.plan, &s->rig.err), 0);
	assert_false(save->plan->blocks[0].eager);
	assert_true(save->plan->blocks[save->plan->block_count - 1].eager);
	s->rig.hold_jobs = true;
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	return save;
}

static void end_eager(struct scene *s, struct ckpt_save *save, char *data)
{
	assert_true(bits(save) & CKPT_DONE_EAGER);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	free(data);
}

/* Without room for all the blocks come in order: told when the last eager one is copied, and not before. */
static void test_eager_comes_last(void **state)
{
	struct scene *s = *state;
	char *data = calloc(18, MIB);
	struct ckpt_save *save = post_eager(s, 4, data);
	uint64_t ms = 0;

	for (; save->staged_count < save->plan->block_count; ms++) {
		assert_false(bits(save) & CKPT_DONE_EAGER);
		core_rig_sleep(&s->rig, 1);
		core_rig_do_jobs(&s->rig);
		core_rig_run(&s->rig);
	}
	assert_int_equal(atomic_load(&save->eager_ns), ms * MILLISECOND);
	end_eager(s, save, data);
}

static bool is_eager(const struct ckpt_job *job)
{
	return CKPT_CONTAINER(job, struct ckpt_copy, job)->eager;
}

/* With room for all the eager ones are copied before the others. */
static void test_eager_comes_first(void **state)
{
	struct scene *s = *state;
	char *data = calloc(18, MIB);
	struct ckpt_save *save = post_eager(s, 24, data);

	/* The newest is the first of the list. */
	assert_false(is_eager(s->rig.held));
	for (const struct ckpt_job *job = s->rig.held; job->next; job = job->next)
		assert_true(is_eager(job) <= is_eager(job->next));
	core_rig_do_jobs(&s->rig);
	core_rig_run(&s->rig);
	end_eager(s, save, data);
}

/* Stopped before all lanes have begun: the end is told, and none of them reads a tensor any more. */
static void no_memory(struct scene *s, unsigned slots)
{
	int code = -ENOMEM;

	open_rig(s, slots);
	for (size_t n = 1; code == -ENOMEM; n++) {
		struct ckpt_save *save = prepare(s, n, 6);
		s->rig.hold_jobs = true;
		core_rig_count_allocations(&s->rig, n);
		code = core_rig_post(&s->rig, save);
		(void)core_rig_allocations(&s->rig);
		if (code == -ENOMEM)
			assert_null(s->rig.held);
		else
			assert_true(n > ckpt_min_u64(slots, 6));
		core_rig_let_go(&s->rig);
		code = core_rig_end_save(&s->rig, save);
	}
	assert_int_equal(code, 0);
}

static void test_no_memory(void **state)
{
	no_memory(*state, 8);
}

static void test_no_memory_for_the_next(void **state)
{
	no_memory(*state, 4);
}

/* Ended before it had a single slot: it lets go only when nothing of it waits for one. */
static void test_failed_without_a_slot(void **state)
{
	struct scene *s = *state;
	struct ckpt_slot *slots[4];

	open_rig(s, COUNT(slots));
	for (size_t i = 0; i < COUNT(slots); i++)
		slots[i] = ckpt_pool_get(s->rig.pool);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_MKDIR, .error = -EIO});
	struct ckpt_save *save = prepare(s, 1, 6);
	told.save = save;
	assert_int_equal(core_rig_post(&s->rig, save), -EIO);
	told.save = NULL;
	assert_true(told.gone);
	assert_false(told.waits);
	assert_int_equal(core_rig_end_save(&s->rig, save), -EIO);
	for (size_t i = 0; i < COUNT(slots); i++)
		ckpt_pool_put(s->rig.pool, slots[i]);
	core_rig_run(&s->rig);
}

/* Slots for exactly all blocks: whatever was not written is written again. */
static void test_room_for_all(void **state)
{
	struct scene *s = *state;

	open_rig(s, 4);
	unsigned writes = add(
		s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARD, .error = -EIO});
	struct ckpt_save *save = prepare(s, 1, 4);
	assert_int_equal(core_rig_post(&s->rig, save), 0);
	assert_int_equal(s->rig.fault.hits[writes], 1);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_NONE), 0);
	/* With one block more there is no second time. */
	io_fault_clear(&s->rig.fault);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARD, .error = -EIO});
	save = prepare(s, 2, 5);
	assert_int_equal(core_rig_post(&s->rig, save), -EIO);
	assert_int_equal(core_rig_end_save(&s->rig, save), -EIO);
}

/* Where files are written in whole sectors nothing but zeros comes behind the last byte. */
static void test_sectors(void **state)
{
	struct scene *s = *state;

	open_rig(s, 4);
	s->rig.core.store->align = 4096;
	for (uint64_t step = 1; step <= 2; step++) {
		struct ckpt_save *save =
			core_rig_prepare(&s->rig, step, 1, FLOATS(4) - (step == 2 ? 100 : 0), 0);
		s->bytes = save->plan->layout->bytes;
		assert_int_equal(core_rig_post(&s->rig, save), 0);
		assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	}
	s->rig.core.store->align = 1;
	assert_true(s->beyond > 0);
	assert_int_equal(s->nonzero, 0);
	assert_int_equal(core_rig_read(&s->rig, 2, CKPT_SINK_NONE), 0);
}

/* Tensors that share chunks, which go on from block to block: each has the digest of its own bytes. */
static void test_own_digests(void **state)
{
	enum { TENSORS = 60, BYTES = 6000 };
	struct scene *s = *state;
	struct ckpt_save *save = NULL;
	unsigned char *data = malloc((size_t)TENSORS * BYTES);
	size_t across = 0;
	size_t before = 0;

	open_rig(s, 4);
	for (size_t i = 0; i < (size_t)TENSORS * BYTES; i++)
		data[i] = (unsigned char)(i * i >> 7);
	assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 1, false, 0, &save), 0);
	for (size_t i = 0; i < TENSORS; i++) {
		const int64_t shape = BYTES - (int64_t)(29 * i);
		char name[] = "a0";
		name[0] = (char)('a' + i / 10);
		name[1] = (char)('0' + i % 10);
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = name,
			.dtype = CKPT_U8,
			.flags = i % 4 ? CKPT_TENSOR_SHARED : 0,
			.ndim = 1,
			.shape = &shape,
			.data = data + i * BYTES};
		assert_int_equal(ckpt_save_put_tensors(save, &tensor, 1, &s->rig.err), 0);
	}
	assert_int_equal(ckpt_save_prepare(save, &s->rig.plan, &s->rig.err), 0);
	s->bytes = save->plan->layout->bytes;
	assert_int_equal(core_rig_post(&s->rig, save), 0);
	const struct ckpt_layout *l = save->plan->layout;
	assert_int_equal(l->digest_count, TENSORS * 3 / 4);
	for (const struct ckpt_entry *e = l->entries; e < l->entries + l->entry_count; e++) {
		const struct ckpt_chunk *c = &l->chunks[ckpt_layout_chunk_at(l, e->offset)];
		assert_int_equal(e->own > 0, e->source % 4 > 0);
		if (!e->own)
			continue;
		struct ckpt_digest own =
			ckpt_digest_of(data + (size_t)e->source * BYTES, e->nbytes);
		assert_true(ckpt_digest_equal(&own, &l->digests[e->own - 1]));
		uint64_t block = e->offset / BLOCK;
		across += (e->offset + e->nbytes - 1) / BLOCK > block;
		before += (e->offset + e->nbytes - 1) / BLOCK == block &&
			  (c->offset + c->length - 1) / BLOCK > block;
	}
	/* Both kinds are there: in two blocks, and in the block before that in which its chunk ends. */
	assert_true(across > 0 && before > 0);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	free(data);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_counts),
		SCENE(test_starved),
		SCENE(test_eager_comes_last),
		SCENE(test_eager_comes_first),
		SCENE(test_no_memory),
		SCENE(test_no_memory_for_the_next),
		SCENE(test_failed_without_a_slot),
		SCENE(test_torn),
		SCENE(test_cancelled),
		SCENE(test_slots_come_back),
		SCENE(test_room_for_all),
		SCENE(test_sectors),
		SCENE(test_own_digests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
