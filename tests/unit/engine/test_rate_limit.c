/* SPDX-License-Identifier: Apache-2.0 */
/* What goes to a remote store in a directory keeps to its bound, and is all there when its time has come. */
#include "lib/test.h"

#include "engine/copy/record_writer.h"
#include "engine/copy/upload_queue.h"
#include "engine/core/rate_limit.h"
#include "lib/core_scene.h"

#define RATE    UINT64_C(1000000)
#define BLOCK   UINT64_C(65536)
#define TENSORS 10
#define FLOATS  100000 /* 4 MB in all */
#define TICK_MS 50

static void open_at(struct core_tiers *s, uint64_t rate)
{
	core_rig_open(
		&s->rig, &(struct core_rig_config){
				 .dir = s->local, .remote = s->remote, .remote_bytes_per_s = rate});
	assert_int_equal(core_rig_claim(&s->rig), 0);
}

static void save(struct core_tiers *s, uint64_t step)
{
	struct ckpt_save *save = core_rig_prepare(&s->rig, step, TENSORS, FLOATS, 0);

	assert_int_equal(core_rig_post(&s->rig, save), 0);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
}

static uint64_t sent(struct core_tiers *s)
{
	return atomic_load(&s->rig.core.upload_queue->bytes);
}

static bool waits(struct core_tiers *s)
{
	return s->rig.core.upload_queue->first != NULL;
}

static void test_rate(void **state)
{
	struct core_tiers *s = *state;

	open_at(s, RATE);
	save(s, 1);
	uint64_t ms = 0;
	for (; waits(s) && ms < 10000; ms += TICK_MS) {
		/* What was let through at once before, and the block that was last. */
		assert_true(sent(s) <= RATE * ms / 1000 + RATE / 10 + 2 * BLOCK);
		core_rig_sleep(&s->rig, TICK_MS);
	}
	assert_false(waits(s));
	assert_true(sent(s) >= UINT64_C(4) * TENSORS * FLOATS);
	/* And not much less than that, either. */
	assert_true(ms >= 3800 && ms <= 4600);
	assert_int_equal(s->rig.core.upload_queue->record_writer->uploaded_step, 1);
	core_rig_close(&s->rig);
}

/* The bound is the node's, however many ranks it has; none is none for each. */
static void test_reader_quota(void **state)
{
	(void)state;
	assert_int_equal(ckpt_rate_limit_share(0, 8), 0);
	assert_int_equal(ckpt_rate_limit_share(1000, 0), 1000);
	assert_int_equal(ckpt_rate_limit_share(1000, 1), 1000);
	assert_int_equal(ckpt_rate_limit_share(1000, 8), 125);
	assert_int_equal(ckpt_rate_limit_share(3, 8), 1);
}

/* Without one nothing waits. */
static void test_no_bound(void **state)
{
	struct core_tiers *s = *state;

	open_at(s, 0);
	save(s, 1);
	core_rig_run(&s->rig);
	assert_false(waits(s));
	core_rig_close(&s->rig);
}

/* An engine that is closed does not wait for it. */
static void test_closed(void **state)
{
	struct core_tiers *s = *state;

	open_at(s, RATE);
	save(s, 1);
	core_rig_sleep(&s->rig, 1000);
	assert_true(waits(s));
	assert_true(sent(s) > 0);
	core_rig_close(&s->rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_rate, core_tiers_set_up, core_tiers_tear_down),
		cmocka_unit_test(test_reader_quota),
		cmocka_unit_test_setup_teardown(
			test_no_bound, core_tiers_set_up, core_tiers_tear_down),
		cmocka_unit_test_setup_teardown(
			test_closed, core_tiers_set_up, core_tiers_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
