/* SPDX-License-Identifier: Apache-2.0 */
/* The way of copying that was the fastest is taken, however many threads copy, and is kept. */
#include "device/copy_choice.h"

#include "lib/test.h"

#include <pthread.h>

#define MIB     ((uint64_t)1 << 20)
#define THREADS 4

/* Ends all samples. The times of a way are 8, 4, 2, 1, 2, 4 times its `ns`. */
static unsigned sample_all(struct ckpt_copy_choice *choice, const uint64_t ns[CKPT_COPY_WAYS])
{
	static const uint64_t disturbed[CKPT_COPY_SAMPLES] = {8, 4, 2, 1, 2, 4};
	unsigned taken[CKPT_COPY_WAYS] = {0};
	bool sample;

	for (unsigned i = 0; i < CKPT_COPY_WAYS * CKPT_COPY_SAMPLES; i++) {
		assert_int_equal(ckpt_copy_choice_now(choice), 0);
		unsigned way = ckpt_copy_choice_next(choice, &sample);

		assert_true(sample);
		/* Copies of different sizes: the speed counts. */
		ckpt_copy_choice_note(choice, way, (1 + i % 3) * MIB,
			(1 + i % 3) * ns[way] * disturbed[taken[way]++]);
	}
	unsigned way = ckpt_copy_choice_next(choice, &sample);

	assert_false(sample);
	assert_int_equal(ckpt_copy_choice_now(choice), way);
	return way;
}

static void the_fastest_is_chosen(void **state)
{
	static const struct {
		uint64_t ns[CKPT_COPY_WAYS];
		unsigned way;
	} cases[] = {
		{{1000, 2000, 3000}, 0},
		{{3000, 1000, 2000}, 1},
		{{3000, 2000, 1000}, 2},
		{{3000, 1000, 999}, 2},
		/* Within the noise the first stays. */
		{{1000, 960, 970}, 0},
		{{1000, 940, 930}, 2},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_copy_choice choice = CKPT_COPY_CHOICE_INIT;

		assert_int_equal(sample_all(&choice, cases[i].ns), cases[i].way);
	}
}

/* A copy that has not ended is waited for by nobody: the first way is taken meanwhile. */
static void one_that_hangs(void **state)
{
	struct ckpt_copy_choice choice = CKPT_COPY_CHOICE_INIT;
	bool sample;

	(void)state;
	for (unsigned i = 0; i < CKPT_COPY_WAYS * CKPT_COPY_SAMPLES; i++) {
		unsigned way = ckpt_copy_choice_next(&choice, &sample);

		assert_true(sample);
		if (i > 0)
			ckpt_copy_choice_note(&choice, way, MIB, way == 2 ? 1000 : 9000);
	}
	assert_int_equal(ckpt_copy_choice_next(&choice, &sample), 0);
	assert_false(sample);
	ckpt_copy_choice_note(&choice, 0, MIB, 9000);
	assert_int_equal(ckpt_copy_choice_next(&choice, &sample), 2);
}

static void *copy_often(void *argument)
{
	struct ckpt_copy_choice *choice = argument;
	bool sample;

	for (unsigned i = 0; i < 1000; i++) {
		unsigned way = ckpt_copy_choice_next(choice, &sample);

		if (sample)
			ckpt_copy_choice_note(choice, way, MIB, 3000 - 1000 * way);
	}
	return NULL;
}

static void many_threads(void **state)
{
	struct ckpt_copy_choice choice = CKPT_COPY_CHOICE_INIT;
	pthread_t threads[THREADS];

	(void)state;
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, copy_often, &choice), 0);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(ckpt_copy_choice_now(&choice), 2);
	assert_int_equal(atomic_load(&choice.ended), CKPT_COPY_WAYS * CKPT_COPY_SAMPLES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_fastest_is_chosen),
		cmocka_unit_test(one_that_hangs),
		cmocka_unit_test(many_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
