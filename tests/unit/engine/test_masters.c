/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the fp32 tensors that 16-bit weights are the rounding of: what it finds, and how long it may take. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/save/masters.h"
#include "format/layout.h"
#include "lib/prng.h"

#define MASTERS  1500
#define WEIGHTS  600
#define ELEMENTS 8
#define BLOCK    UINT32_C(65536)
/* Elements that are compared of a tensor. */
#define SAMPLES  64

struct scene {
	struct ckpt_layout *layout;
	char *shard;
	struct ckpt_chunk_source source;
	atomic_bool stopped;
	size_t asked;   /* elements that were read */
	size_t stop_at; /* that one stops the search; 0: none */
};

static const void *bytes(void *user, uint64_t offset, size_t length, void *room)
{
	struct scene *s = user;

	(void)room;
	assert_true(length <= s->layout->bytes && offset <= s->layout->bytes - length);
	if (++s->asked == s->stop_at)
		atomic_store(&s->stopped, true);
	return s->shard + offset;
}

/* Weight i is the rounding of master i * 2, and all are of one size. `alike`: all are zeros. */
static void set_up(struct scene *s, bool alike)
{
	static const int64_t shape = ELEMENTS;
	static char names[MASTERS + WEIGHTS][16];
	struct ckpt_tensor *tensors = calloc(MASTERS + WEIGHTS, sizeof(*tensors));
	struct ckpt_error err = {.size = sizeof(err)};
	struct prng prng = {3};

	*s = (struct scene){0};
	for (size_t i = 0; i < MASTERS + WEIGHTS; i++) {
		bool weight = i >= MASTERS;

		(void)snprintf(names[i], sizeof(names[i]), weight ? "w%05zu" : "m%05zu",
			weight ? (i - MASTERS) * 2 : i);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = !weight ? CKPT_F32
				 : i % 2 ? CKPT_BF16
					 : CKPT_F16,
			.ndim = 1,
			.shape = &shape};
	}
	assert_int_equal(
		ckpt_layout_build(tensors, MASTERS + WEIGHTS, NULL, 0, 4096, &err, &s->layout), 0);
	free(tensors);
	s->shard = calloc(1, s->layout->bytes);
	for (size_t i = 0; i < MASTERS && !alike; i++) {
		const struct ckpt_entry *m = ckpt_layout_find(s->layout, names[i]);
		float values[ELEMENTS];

		for (size_t k = 0; k < ELEMENTS; k++)
			values[k] = (float)prng_below(&prng, 1 << 24) / (1 << 24);
		memcpy(s->shard + m->offset, values, sizeof(values));
		if (i % 2 || i / 2 >= WEIGHTS)
			continue;
		const struct ckpt_entry *w = ckpt_layout_find(s->layout, names[MASTERS + i / 2]);
		ckpt_codec_round(w->dtype == CKPT_BF16 ? CKPT_KIND_BF16 : CKPT_KIND_F16, values,
			ELEMENTS, (uint16_t *)(void *)(s->shard + w->offset));
	}
	s->source = (struct ckpt_chunk_source){.layout = s->layout, .bytes = bytes, .user = s};
}

static void tear_down(struct scene *s)
{
	free(s->shard);
	ckpt_layout_free(s->layout);
}

static struct ckpt_masters *list(struct scene *s)
{
	struct ckpt_masters *masters;

	assert_int_equal(ckpt_masters_new(s->layout, BLOCK, &s->stopped, &masters), 0);
	assert_non_null(masters);
	return masters;
}

/* Weights that have the master whose name has their number. */
static size_t count_found(const struct scene *s, const struct ckpt_masters *masters)
{
	size_t found = 0;

	for (size_t i = 0; i < masters->weight_count; i++) {
		const struct ckpt_entry *w = &s->layout->entries[masters->weights[i]];
		char name[16] = "m";

		memcpy(name + 1, w->name + 1, strlen(w->name));
		found += masters->of[masters->weights[i]] ==
			 ckpt_layout_find(s->layout, name)->offset;
	}
	return found;
}

/* Of many tensors of one size. */
static void test_many(void **state)
{
	struct scene s;

	(void)state;
	set_up(&s, false);
	struct ckpt_masters *masters = list(&s);
	ckpt_masters_find(masters, &s.source, &s.stopped);
	assert_int_equal(masters->weight_count, WEIGHTS);
	assert_int_equal(count_found(&s, masters), WEIGHTS);
	/* Each is sampled once; with a weight the one is compared that has its samples, and the next. */
	assert_int_equal(s.asked, (MASTERS + WEIGHTS) * SAMPLES);
	assert_true(masters->compared <= 2 * WEIGHTS);
	ckpt_masters_free(masters);
	tear_down(&s);
}

static void test_alike(void **state)
{
	struct scene s;

	(void)state;
	set_up(&s, true);
	struct ckpt_masters *masters = list(&s);
	ckpt_masters_find(masters, &s.source, &s.stopped);
	/* Names decide among the first few. */
	assert_true(count_found(&s, masters) >= 8);
	for (size_t i = 0; i < masters->weight_count; i++)
		assert_true(masters->of[masters->weights[i]] > 0);
	assert_true(masters->compared <= 16 * WEIGHTS);
	ckpt_masters_free(masters);
	tear_down(&s);
}

/* While tensors are sampled, and while weights are. */
static void test_stopped(void **state)
{
	static const size_t at[] = {1, 1000, (MASTERS + 3) * SAMPLES + 5};
	struct ckpt_masters *masters;
	struct scene s;

	(void)state;
	for (size_t i = 0; i < COUNT(at); i++) {
		set_up(&s, false);
		masters = list(&s);
		s.stop_at = at[i];
		ckpt_masters_find(masters, &s.source, &s.stopped);
		assert_true(atomic_load(&s.stopped) && s.asked < at[i] + SAMPLES);
		ckpt_masters_free(masters);
		assert_int_equal(
			ckpt_masters_new(s.layout, BLOCK, &s.stopped, &masters), -ECANCELED);
		assert_null(masters);
		tear_down(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_alike),
		cmocka_unit_test(test_stopped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
