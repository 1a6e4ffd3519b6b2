/* SPDX-License-Identifier: Apache-2.0 */
/* The lineage and retention, against what they promise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gc/gc.h"
#include "engine/lineage/scan.h"
#include "lib/prng.h"

static void add_gen(struct ckpt_scan *scan, uint64_t g, uint64_t parent_g, uint64_t parent_step)
{
	struct ckpt_scan_gen gen = {.generation = g,
		.claimed = true,
		.claim = {.generation = g,
			.parent_generation = parent_g,
			.parent_step = parent_step}};

	assert_int_equal(ckpt_scan_put_gen(scan, &gen), 0);
}

static void add_step(struct ckpt_scan *scan, uint64_t g, uint64_t step, enum ckpt_step_state state)
{
	struct ckpt_scan_step s = {.generation = g, .step = step, .state = state};

	assert_int_equal(ckpt_scan_put(scan, &s), 0);
}

static uint64_t chosen(struct ckpt_scan *scan, uint64_t step)
{
	struct ckpt_scan_step *s = ckpt_lineage_choose(scan, step, NULL);

	return s ? s->generation * 1000000 + s->step : 0;
}

/* What has a tombstone is chosen by its number, and for the latest only when nothing else is left. */
static void test_going(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	unsigned passed = 0;
	add_gen(&scan, 1, 0, 0);
	for (uint64_t step = 100; step <= 400; step += 100)
		add_step(&scan, 1, step, CKPT_STEP_COMMITTED);
	ckpt_scan_find(&scan, 1, 100)->deleting = true;
	ckpt_scan_find(&scan, 1, 300)->deleting = true;
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_int_equal(chosen(&scan, CKPT_STEP_LATEST), 1000400);
	assert_int_equal(chosen(&scan, CKPT_STEP_BACK(1)), 1000200);
	assert_int_equal(chosen(&scan, CKPT_STEP_BACK(2)), 1000300);
	assert_int_equal(chosen(&scan, CKPT_STEP_BACK(3)), 1000100);
	assert_int_equal(chosen(&scan, CKPT_STEP_BACK(4)), 0);
	assert_int_equal(chosen(&scan, 300), 1000300);
	ckpt_scan_set_state(&scan, 1, 400, CKPT_STEP_QUARANTINED);
	ckpt_scan_set_state(&scan, 1, 200, CKPT_STEP_QUARANTINED);
	const struct ckpt_scan_step *s = ckpt_lineage_choose(&scan, CKPT_STEP_LATEST, &passed);
	assert_non_null(s);
	assert_int_equal(s->step, 300);
	assert_int_equal(passed, 2);
	ckpt_scan_clear(&scan);
}

/* A branch that was rolled back, and a zombie's late commit, are never chosen. */
static void test_branches(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 100, CKPT_STEP_COMMITTED);
	add_step(&scan, 1, 200, CKPT_STEP_COMMITTED);
	add_step(&scan, 1, 300, CKPT_STEP_COMMITTED); /* rolled back over */
	add_gen(&scan, 2, 1, 200);
	add_step(&scan, 2, 250, CKPT_STEP_COMMITTED);
	add_step(&scan, 2, 260, CKPT_STEP_ABORTED);
	add_step(&scan, 2, 270, CKPT_STEP_PENDING);
	add_step(&scan, 2, 280, CKPT_STEP_BROKEN);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_int_equal(ckpt_lineage_count(&scan), 3);
	assert_int_equal(chosen(&scan, CKPT_STEP_LATEST), 2000250);
	assert_int_equal(chosen(&scan, CKPT_STEP_BACK(1)), 1000200);
	assert_int_equal(chosen(&scan, CKPT_STEP_BACK(2)), 1000100);
	assert_int_equal(chosen(&scan, CKPT_STEP_BACK(3)), 0);
	assert_int_equal(chosen(&scan, 300), 0);
	assert_int_equal(chosen(&scan, 200), 1000200);
	assert_int_equal(chosen(&scan, 260), 0);
	/* By its number alone, whatever became of it. */
	assert_true(ckpt_lineage_holds(&scan, 2, 280));
	assert_true(ckpt_lineage_holds(&scan, 1, 200));
	assert_false(ckpt_lineage_holds(&scan, 1, 201));
	assert_false(ckpt_lineage_holds(&scan, 3, 280));
	ckpt_scan_clear(&scan);
}

/* A newest generation without commits still cuts its parent's at the claimed step. */
static void test_empty_generation(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	add_step(&scan, 1, 20, CKPT_STEP_COMMITTED);
	add_gen(&scan, 2, 1, 10);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_int_equal(chosen(&scan, CKPT_STEP_LATEST), 1000010);
	add_gen(&scan, 3, 0, 0); /* a new start */
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_int_equal(chosen(&scan, CKPT_STEP_LATEST), 0);
	ckpt_scan_clear(&scan);
}

/* A claim that does not verify is no reason to guess. */
static void test_broken_claim(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	struct ckpt_error err = {.size = sizeof(err)};
	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	add_gen(&scan, 2, 1, 10);
	scan.gens[1].broken = true;
	assert_int_equal(ckpt_lineage_mark(&scan, &err), CKPT_EINTEGRITY);
	assert_string_equal(err.file, "gens/000002.json");
	ckpt_scan_clear(&scan);
}

/* Nor is one that was lost: the store would pose as one without commits, or with fewer. */
static void test_lost_claim(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	struct ckpt_error err = {.size = sizeof(err)};
	add_gen(&scan, 2, 1, 10); /* of a store that was exported: nothing of 1 is here */
	add_step(&scan, 2, 20, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, &err), 0);
	add_step(&scan, 1, 15, CKPT_STEP_COMMITTED); /* rolled back: not on the way */
	add_step(&scan, 3, 30, CKPT_STEP_PENDING);
	assert_int_equal(ckpt_lineage_mark(&scan, &err), 0);
	assert_int_equal(chosen(&scan, CKPT_STEP_LATEST), 2000020);
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, &err), CKPT_EINCOMPLETE);
	assert_string_equal(err.file, "gens/000001.json");
	add_gen(&scan, 1, 0, 0);
	assert_int_equal(ckpt_lineage_mark(&scan, &err), 0);
	err = (struct ckpt_error){.size = sizeof(err)};
	add_step(&scan, 3, 31, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, &err), CKPT_EINCOMPLETE);
	assert_string_equal(err.file, "gens/000003.json");
	ckpt_scan_clear(&scan);
}

/* What a branch holds that was left says nothing of the lost claim of an older generation. */
static void test_lost_claim_below_branch(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	add_gen(&scan, 3, 1, 10);
	add_step(&scan, 3, 15, CKPT_STEP_COMMITTED);
	add_gen(&scan, 4, 2, 20);
	add_step(&scan, 4, 30, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_int_equal(chosen(&scan, CKPT_STEP_LATEST), 4000030);
	assert_int_equal(ckpt_lineage_count(&scan), 1);
	ckpt_scan_clear(&scan);
}

static void test_quarantine(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	unsigned passed = 0;
	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	add_step(&scan, 1, 20, CKPT_STEP_QUARANTINED);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_int_equal(ckpt_lineage_choose(&scan, CKPT_STEP_LATEST, &passed)->step, 10);
	assert_int_equal(passed, 1);
	assert_int_equal(chosen(&scan, 20), 1000020);
	ckpt_scan_clear(&scan);
}

/* Random stores: what retention lets go never includes what it promised to keep. */
static void test_retention(void **state)
{
	(void)state;
	struct prng prng = {7};
	for (int round = 0; round < 2000; round++) {
		struct ckpt_scan scan = {0};
		add_gen(&scan, 1, 0, 0);
		size_t count = (size_t)prng_below(&prng, 40);
		for (size_t i = 0; i < count; i++)
			add_step(&scan, 1, (uint64_t)(i + 1) * 10,
				prng_below(&prng, 5) ? CKPT_STEP_COMMITTED : CKPT_STEP_QUARANTINED);
		assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
		uint64_t pin = prng_below(&prng, 12) * 10;
		struct ckpt_retention keep = {.keep_last = prng_below(&prng, 5),
			.keep_every = prng_below(&prng, 4) * 10,
			.pins = &pin,
			.pin_count = 1};
		const struct ckpt_scan_step *s = ckpt_retention_next(&scan, &keep, 0, 0);
		uint64_t before = 0;
		for (; s; s = ckpt_retention_next(&scan, &keep, s->generation, s->step)) {
			assert_true(keep.keep_last > 0);
			assert_true(s->step != pin);
			assert_true(!keep.keep_every || s->step % keep.keep_every != 0);
			uint64_t newer_good = 0;
			for (size_t k = 0; k < scan.step_count; k++)
				newer_good += scan.steps[k].step > s->step &&
					      scan.steps[k].state == CKPT_STEP_COMMITTED;
			assert_true(newer_good >= keep.keep_last);
			assert_true(before < s->step);
			before = s->step;
		}
		ckpt_scan_clear(&scan);
	}
}

static uint64_t next_of(
	struct ckpt_scan *scan, uint64_t keep_last, uint64_t generation, uint64_t step)
{
	const struct ckpt_retention keep = {.keep_last = keep_last, .keep_every = 10};

	assert_int_equal(ckpt_lineage_mark(scan, NULL), 0);
	ckpt_lineage_mark_rolled_back(scan);
	const struct ckpt_scan_step *s = ckpt_retention_next(scan, &keep, generation, step);
	return s ? s->generation * 1000000 + s->step : 0;
}

static void need(struct ckpt_scan *scan, uint64_t step, uint64_t base)
{
	struct ckpt_scan_step *s = ckpt_scan_find(scan, 1, step);

	s->bases[s->base_count++] = (struct ckpt_base_step){.generation = 1, .step = base};
}

/* Random chains: no step goes before those that need it, and all that nobody needs goes. */
static void test_bases(void **state)
{
	(void)state;
	struct prng prng = {9};
	uint64_t gone = 0;
	for (int round = 0; round < 300; round++) {
		struct ckpt_scan scan = {0};
		struct ckpt_retention keep = {.keep_last = 1 + prng_below(&prng, 3)};
		size_t count = 1 + (size_t)prng_below(&prng, 40);
		uint64_t whole = 1;

		add_gen(&scan, 1, 0, 0);
		for (uint64_t i = 1; i <= count; i++) {
			add_step(&scan, 1, i, CKPT_STEP_COMMITTED);
			if (i - whole == CKPT_BASES_MAX || prng_below(&prng, 4) == 0)
				whole = i;
			for (uint64_t base = whole; base < i; base++)
				need(&scan, i, base);
		}
		assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
		for (;;) {
			ckpt_scan_mark_needed(&scan);
			const struct ckpt_scan_step *s = ckpt_retention_next(&scan, &keep, 0, 0);
			if (!s)
				break;
			assert_null(ckpt_scan_needs(&scan, 1, s->step));
			ckpt_scan_drop(&scan, 1, s->step);
			gone++;
		}
		/* What is left is kept, or something that is kept needs it. */
		for (size_t i = keep.keep_last; i < scan.step_count; i++) {
			const struct ckpt_scan_step *by =
				ckpt_scan_needs(&scan, 1, scan.steps[i].step);
			assert_non_null(by);
			assert_true(by->step > count - keep.keep_last);
		}
		ckpt_scan_clear(&scan);
	}
	assert_true(gone > 1000);
}

/* A step whose manifest could not be read this time may need any of those before it, as many as a step may need. */
static void test_unread(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	const struct ckpt_retention keep = {.keep_last = 1};

	add_gen(&scan, 1, 0, 0);
	for (uint64_t i = 1; i <= 2 * CKPT_BASES_MAX; i++)
		add_step(&scan, 1, i, CKPT_STEP_COMMITTED);
	struct ckpt_scan_step *unread = ckpt_scan_find(&scan, 1, CKPT_BASES_MAX + 3);
	unread->state = CKPT_STEP_BROKEN;
	unread->code = -EIO;
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	ckpt_scan_mark_needed(&scan);
	assert_int_equal(ckpt_retention_next(&scan, &keep, 0, 0)->step, 1);
	assert_int_equal(ckpt_retention_next(&scan, &keep, 1, 1)->step, 2);
	assert_int_equal(ckpt_retention_next(&scan, &keep, 1, 2)->step, CKPT_BASES_MAX + 4);
	assert_null(ckpt_scan_needs(&scan, 1, 2));
	assert_ptr_equal(ckpt_scan_needs(&scan, 1, 3), unread);
	assert_null(ckpt_scan_needs(&scan, 1, CKPT_BASES_MAX + 3));
	/* One that is damaged cannot be restored, whatever it needs. */
	unread->code = CKPT_EINTEGRITY;
	ckpt_scan_mark_needed(&scan);
	assert_int_equal(ckpt_retention_next(&scan, &keep, 1, 2)->step, 3);
	ckpt_scan_clear(&scan);
}

/* What is not whole in a remote store has been left there only if nothing was under way. */
static void test_left(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	struct ckpt_retention keep = {.keep_last = 1, .remote = true};

	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 8, CKPT_STEP_PENDING);
	add_step(&scan, 1, 9, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_null(ckpt_retention_next(&scan, &keep, 0, 0));
	keep.settled = true;
	assert_int_equal(ckpt_retention_next(&scan, &keep, 0, 0)->step, 8);
	ckpt_scan_clear(&scan);
}

/* What somebody removes does not count as kept; nor does it go by this retention as long as it would be kept. */
static void test_going_is_not_kept(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};

	add_gen(&scan, 1, 0, 0);
	for (uint64_t step = 7; step <= 9; step++)
		add_step(&scan, 1, step, CKPT_STEP_COMMITTED);
	ckpt_scan_find(&scan, 1, 9)->deleting = true;
	assert_int_equal(next_of(&scan, 1, 0, 0), 1000007);
	assert_int_equal(next_of(&scan, 1, 1, 7), 0);
	ckpt_scan_clear(&scan);
}

/* What was tried comes no more, whatever generation it is of. */
static void test_tried(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};

	add_gen(&scan, 1, 0, 0);
	add_gen(&scan, 2, 1, 9);
	add_step(&scan, 1, 9, CKPT_STEP_COMMITTED);
	for (uint64_t step = 11; step < 15; step++)
		add_step(&scan, 2, step, CKPT_STEP_COMMITTED);
	assert_int_equal(next_of(&scan, 1, 0, 0), 1000009);
	assert_int_equal(next_of(&scan, 1, 1, 9), 2000011);
	assert_int_equal(next_of(&scan, 1, 2, 11), 2000012);
	assert_int_equal(next_of(&scan, 1, 2, 13), 0);
	/* Nor when the last one that was tried is gone. */
	ckpt_scan_drop(&scan, 2, 11);
	assert_int_equal(next_of(&scan, 1, 2, 11), 2000012);
	ckpt_scan_clear(&scan);
}

/*
 * Branches that were rolled back go when as many good steps as are kept have come after them. What a
 * run left that was here before a new start stays.
 */
static void test_rolled_back(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	add_gen(&scan, 2, 0, 0); /* a new start */
	add_step(&scan, 2, 10, CKPT_STEP_COMMITTED);
	add_step(&scan, 2, 20, CKPT_STEP_COMMITTED);
	add_step(&scan, 2, 30, CKPT_STEP_COMMITTED);
	add_gen(&scan, 3, 2, 20);
	add_step(&scan, 3, 30, CKPT_STEP_COMMITTED);
	add_step(&scan, 3, 40, CKPT_STEP_PENDING);
	add_gen(&scan, 4, 2, 10); /* leaves 20 and 30 of the second and all of the third behind */
	add_step(&scan, 4, 11, CKPT_STEP_COMMITTED);
	assert_int_equal(next_of(&scan, 2, 0, 0), 0);
	add_step(&scan, 4, 12, CKPT_STEP_COMMITTED);
	assert_int_equal(next_of(&scan, 0, 0, 0), 0);
	assert_int_equal(next_of(&scan, 3, 0, 0), 0);
	assert_int_equal(next_of(&scan, 2, 0, 0), 2000020);
	assert_int_equal(next_of(&scan, 2, 2, 20), 2000030);
	assert_int_equal(next_of(&scan, 2, 2, 30), 3000030);
	assert_int_equal(next_of(&scan, 2, 3, 30), 0);
	/* What the lineage holds of an older generation was not rolled back. */
	assert_true(ckpt_scan_find(&scan, 2, 20)->rolled_back);
	assert_false(ckpt_scan_find(&scan, 2, 10)->rolled_back);
	scan.gens[2].broken = true; /* whose it is cannot be known */
	assert_int_equal(next_of(&scan, 2, 2, 30), 0);
	ckpt_scan_clear(&scan);
}

/* The list stays sorted and findable whatever the order of arrival. */
static void test_scan_order(void **state)
{
	(void)state;
	struct ckpt_scan scan = {0};
	struct prng prng = {3};
	for (int i = 0; i < 500; i++)
		add_step(&scan, prng_below(&prng, 5) + 1, prng_below(&prng, 50),
			CKPT_STEP_COMMITTED);
	for (size_t i = 1; i < scan.step_count; i++) {
		const struct ckpt_scan_step *a = &scan.steps[i - 1];
		const struct ckpt_scan_step *b = &scan.steps[i];
		assert_true(a->generation > b->generation ||
			    (a->generation == b->generation && a->step > b->step));
		assert_ptr_equal(ckpt_scan_find(&scan, b->generation, b->step), b);
	}
	size_t before = scan.step_count;
	ckpt_scan_set_state(&scan, scan.steps[3].generation, scan.steps[3].step, CKPT_STEP_ABORTED);
	ckpt_scan_set_state(&scan, 99, 99, CKPT_STEP_ABORTED);
	assert_int_equal(scan.step_count, before);
	for (size_t i = 0; i < scan.step_count; i++)
		assert_int_equal(
			scan.steps[i].state, i == 3 ? CKPT_STEP_ABORTED : CKPT_STEP_COMMITTED);
	ckpt_scan_drop(&scan, scan.steps[3].generation, scan.steps[3].step);
	ckpt_scan_drop(&scan, 99, 99);
	assert_int_equal(scan.step_count, before - 1);
	ckpt_scan_clear(&scan);
}

/* A directory without a claim, where a claim names it as the parent: it is as if it were not there. */
static void test_parent_without_claim(void **state)
{
	const struct ckpt_scan_gen bare = {.generation = 2};
	struct ckpt_scan scan = {0};

	(void)state;
	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_scan_put_gen(&scan, &bare), 0);
	add_gen(&scan, 3, 2, 20);
	add_step(&scan, 3, 30, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	assert_int_equal(ckpt_lineage_count(&scan), 1);
	assert_false(ckpt_lineage_holds(&scan, 1, 10));
	assert_false(ckpt_lineage_holds(&scan, 2, 10));
	assert_true(ckpt_lineage_holds(&scan, 3, 30));
	/* Where it began is not known, and so not what descends from there. */
	add_step(&scan, 2, 25, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), 0);
	ckpt_lineage_mark_rolled_back(&scan);
	for (size_t i = 0; i < scan.step_count; i++)
		assert_false(scan.steps[i].rolled_back);
	/* A commit up to where the next one went on: there was a claim. */
	add_step(&scan, 2, 20, CKPT_STEP_COMMITTED);
	assert_int_equal(ckpt_lineage_mark(&scan, NULL), CKPT_EINCOMPLETE);
	assert_false(ckpt_scan_find(&scan, 2, 20)->in_lineage);
	/* The same where not even a directory is left. */
	add_gen(&scan, 5, 4, 40);
	assert_false(ckpt_lineage_holds(&scan, 4, 10));
	ckpt_lineage_mark_rolled_back(&scan);
	assert_false(scan.steps[0].rolled_back);
	ckpt_scan_clear(&scan);
}

/* What came before a damaged claim is in no lineage that is known. */
static void test_before_broken_claim(void **state)
{
	struct ckpt_scan scan = {0};

	(void)state;
	add_gen(&scan, 1, 0, 0);
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	add_gen(&scan, 2, 1, 10);
	add_step(&scan, 2, 20, CKPT_STEP_COMMITTED);
	scan.gens[1].broken = true;
	assert_true(ckpt_lineage_holds(&scan, 2, 20));
	assert_false(ckpt_lineage_holds(&scan, 1, 10));
	ckpt_scan_clear(&scan);
}

/* Nothing is rolled back in a store that nobody has claimed; nor what a later writer left unmarked. */
static void test_nothing_rolled_back(void **state)
{
	struct ckpt_scan scan = {0};

	(void)state;
	add_step(&scan, 1, 10, CKPT_STEP_COMMITTED);
	ckpt_lineage_mark_rolled_back(&scan);
	assert_false(scan.steps[0].rolled_back);
	add_gen(&scan, 1, 0, 0);
	ckpt_lineage_mark_rolled_back(&scan);
	assert_false(scan.steps[0].rolled_back);
	ckpt_scan_clear(&scan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_branches),
		cmocka_unit_test(test_going),
		cmocka_unit_test(test_empty_generation),
		cmocka_unit_test(test_broken_claim),
		cmocka_unit_test(test_lost_claim),
		cmocka_unit_test(test_lost_claim_below_branch),
		cmocka_unit_test(test_quarantine),
		cmocka_unit_test(test_retention),
		cmocka_unit_test(test_bases),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_left),
		cmocka_unit_test(test_going_is_not_kept),
		cmocka_unit_test(test_tried),
		cmocka_unit_test(test_rolled_back),
		cmocka_unit_test(test_scan_order),
		cmocka_unit_test(test_parent_without_claim),
		cmocka_unit_test(test_before_broken_claim),
		cmocka_unit_test(test_nothing_rolled_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
