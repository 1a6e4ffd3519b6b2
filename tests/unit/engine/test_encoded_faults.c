/* SPDX-License-Identifier: Apache-2.0 */
/* An encoded step that is read while something fails: a request, an allocation, or the patience of the caller. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/shard/read.h"
#include "lib/chain_fixture.h"
#include "lib/core_rig.h"
#include "lib/encode_fixture.h"
#include "lib/prng.h"
#include "lib/scratch.h"

#define ELEMENTS 60000

struct scene {
	char *dir;
	struct fixture_step step;
	struct ckpt_tensor tensors[2];
	float *master;
	uint16_t *model; /* its upper halves */
	struct encode_fixture made;
	struct core_rig rig;
};

static struct scene *make_scene(struct prng *prng)
{
	static const int64_t shape = ELEMENTS;
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	s->master = calloc(ELEMENTS, sizeof(*s->master));
	s->model = calloc(ELEMENTS, sizeof(*s->model));
	for (size_t i = 0; i < ELEMENTS; i++) {
		uint32_t bits = 0x3c000000 | (uint32_t)(prng_next(prng) & 0x00ff7fff);

		memcpy(&s->master[i], &bits, sizeof(bits));
		s->model[i] = (uint16_t)(bits >> 16);
	}
	s->tensors[0] = (struct ckpt_tensor){.size = sizeof(s->tensors[0]),
		.name = "master",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = &shape,
		.data = s->master};
	s->tensors[1] = s->tensors[0];
	s->tensors[1].name = "model";
	s->tensors[1].dtype = CKPT_BF16;
	s->tensors[1].data = s->model;
	s->step = fixture_one(s->dir, s->tensors);
	s->step.count = 2;
	fixture_begin(s->dir);
	return s;
}

static int set_up(void **state)
{
	struct prng prng = {3};
	struct scene *s = make_scene(&prng);

	fixture_commit(&s->step);
	encode_fixture_rank(&s->step, 0, &prng, &s->made);
	assert_true(s->made.refs > 0);
	*state = s;
	return 0;
}

/* The same, decoded with two earlier steps, of which the first is plain. */
static int set_up_chain(void **state)
{
	struct prng prng = {3};
	struct scene *s = make_scene(&prng);
	struct chain_fixture chain = {0};

	for (s->step.step = 8; s->step.step <= 10; s->step.step++) {
		for (size_t i = 0; i < ELEMENTS / 2; i++)
			s->master[i] *= 1 + (float)prng_below(&prng, 100) * 1e-6F;
		if (s->step.step == 8)
			chain_fixture_begin_plain(&chain, &s->step);
		else
			chain_fixture_add(&chain, &s->step);
	}
	s->step.step = 10;
	assert_true(chain.same > 0 && chain.based > 0);
	chain_fixture_clear(&chain);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	free(s->master);
	free(s->model);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void open_rig(struct scene *s)
{
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	/* As on a disk that is read past the page cache. */
	s->rig.core.store->align = 4096;
}

static int read_it(struct scene *s, size_t way)
{
	return core_rig_read(&s->rig, 10, way ? CKPT_SINK_NONE : CKPT_SINK_MEMORY);
}

static void test_every_request(void **state)
{
	struct scene *s = *state;

	for (size_t way = 0; way < 2; way++) {
		unsigned failed = 0;
		unsigned n = 0;
		bool reached = true;

		while (reached) {
			open_rig(s);
			s->rig.fault.fail_error = -EIO;
			s->rig.fault.fail_at = s->rig.fault.requests + ++n;
			failed += read_it(s, way) < 0;
			reached = s->rig.fault.requests >= s->rig.fault.fail_at;
			s->rig.fault.fail_at = 0;
			assert_int_equal(read_it(s, way), 0);
			core_rig_close(&s->rig);
		}
		/* Its marker, claim, manifest, index, the end of the file and what is in it. */
		assert_true(failed > 5);
	}
	assert_int_not_equal(access(fixture_quarantine(&s->step), F_OK), 0);
}

static void test_every_allocation(void **state)
{
	struct scene *s = *state;

	for (size_t way = 0; way < 2; way++) {
		int r = -ENOMEM;
		unsigned failed = 0;

		for (size_t n = 1; n < 10000; n++) {
			open_rig(s);
			core_rig_count_allocations(&s->rig, n);
			r = read_it(s, way);
			bool reached = core_rig_allocations(&s->rig) >= n;
			assert_true(r == 0 || r == -ENOMEM);
			failed += r < 0;
			assert_int_equal(read_it(s, way), 0);
			core_rig_close(&s->rig);
			if (!reached)
				break;
		}
		assert_true(failed > 20);
	}
}

/* A verification, whichever read of the file is under way. */
static void test_cancelled(void **state)
{
	struct scene *s = *state;
	unsigned cancelled = 0;

	for (unsigned n = 1; n < 100; n++) {
		open_rig(s);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_READ, .path = ".encoded", .nth = n, .hold = true});
		struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
		bool held = s->rig.fault.hits[0] > 0;
		if (held)
			ckpt_restore_post_cancel(r);
		core_rig_run(&s->rig);
		core_rig_let_go(&s->rig);
		int code = core_rig_end(&s->rig, r);
		assert_int_equal(code, held ? -ECANCELED : 0);
		cancelled += held;
		core_rig_close(&s->rig);
		if (!held)
			break;
	}
	/* The end of the file, and blocks. */
	assert_true(cancelled > 3);
}

/* What stops a read while a worker decodes a chunk, and what the read then says. */
static struct {
	struct core_rig *rig; /* NULL: nothing stops it */
	struct ckpt_restore *restore;
	bool cancels;    /* the restore is cancelled; false: a request fails */
	bool met;        /* it was stopped within a decoding */
	int code;        /* of the read */
	bool names_file; /* as the one that could not be read or is damaged */
} stop;

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
int __real_ckpt_stored_plan_decode(const struct ckpt_stored_plan *plan,
	struct ckpt_chunk_decoder *decoder, const atomic_bool *stopped, size_t chunk, char *out,
	const char **ret_bytes);
int __wrap_ckpt_stored_plan_decode(const struct ckpt_stored_plan *plan,
	struct ckpt_chunk_decoder *decoder, const atomic_bool *stopped, size_t chunk, char *out,
	const char **ret_bytes);
void __real_ckpt_shard_read_clear(struct ckpt_shard_read *fetch);
void __wrap_ckpt_shard_read_clear(struct ckpt_shard_read *fetch);

/*
 * The worker has begun with a chunk that refers to others. The request that is held ends here, and the core takes note of
 * it, as it may on its own thread at this point.
 */
int __wrap_ckpt_stored_plan_decode(const struct ckpt_stored_plan *plan,
	struct ckpt_chunk_decoder *decoder, const atomic_bool *stopped, size_t chunk, char *out,
	const char **ret_bytes)
{
	bool meets = stop.rig && !stop.met && stop.rig->fault.tap.held &&
		     plan->encoded->chunks[chunk].ref_count > 0;

	if (meets) {
		stop.met = true;
		assert_false(atomic_load(stopped));
		if (stop.cancels)
			ckpt_restore_post_cancel(stop.restore);
		(void)io_tap_release(&stop.rig->fault.tap);
		core_rig_run(stop.rig);
		assert_true(atomic_load(stopped));
	}
	int r = __real_ckpt_stored_plan_decode(plan, decoder, stopped, chunk, out, ret_bytes);
	/* The decoder was stopped before it had what the chunk refers to. */
	assert_true(!meets || r == CKPT_EINTEGRITY);
	return r;
}

void __wrap_ckpt_shard_read_clear(struct ckpt_shard_read *fetch)
{
	if (fetch->config.encoded) {
		stop.code = fetch->code;
		stop.names_file = ckpt_shard_read_bad_file(fetch) != NULL;
	}
	__real_ckpt_shard_read_clear(fetch);
}

/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* The request of this number for the file ends with this code while a chunk is decoded. False: there is none. */
static bool stop_while_decoding(struct scene *s, unsigned nth, int code)
{
	uint16_t *model = calloc(ELEMENTS, sizeof(*model));
	struct ckpt_target target = {.size = sizeof(target),
		.name = "model",
		.data = model,
		.length = ELEMENTS * sizeof(*model)};
	bool cancels = code == -ECANCELED;
	struct ckpt_restore *r;

	open_rig(s);
	r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
						  .path = ".encoded",
						  .nth = nth,
						  .error = cancels ? 0 : code,
						  .late = true,
						  .hold = true});
	memset(&stop, 0, sizeof(stop));
	stop.rig = &s->rig;
	stop.restore = r;
	stop.cancels = cancels;
	s->rig.hold_jobs = true;
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	while (s->rig.held) {
		core_rig_do_jobs(&s->rig);
		core_rig_run(&s->rig);
	}
	core_rig_let_go(&s->rig);
	bool held = s->rig.fault.hits[0] > 0;
	bool fails = cancels ? stop.met : held;
	assert_int_equal(core_rig_end(&s->rig, r), fails ? code : 0);
	core_rig_close(&s->rig);
	/* What was given up is nobody's failure. */
	assert_true(!stop.met || stop.code == (cancels ? 0 : code));
	assert_true(!stop.met || stop.names_file == !cancels);
	assert_true(fails || memcmp(model, s->model, target.length) == 0);
	stop.rig = NULL;
	free(model);
	return held;
}

/* A chunk whose decoding is stopped is not damaged, though it comes before what has failed. */
static void test_stopped_decoding(void **state)
{
	static const int codes[] = {-EIO, -ENOMEM, -ECANCELED};
	struct scene *s = *state;

	for (size_t i = 0; i < COUNT(codes); i++) {
		unsigned met = 0;

		for (unsigned n = 1; stop_while_decoding(s, n, codes[i]); n++)
			met += stop.met;
		assert_true(met > 0);
	}
	assert_int_not_equal(access(fixture_quarantine(&s->step), F_OK), 0);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define CHAIN(test) cmocka_unit_test_setup_teardown(test, set_up_chain, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_every_request),
		SCENE(test_every_allocation),
		SCENE(test_cancelled),
		SCENE(test_stopped_decoding),
		CHAIN(test_every_request),
		CHAIN(test_every_allocation),
		CHAIN(test_cancelled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
