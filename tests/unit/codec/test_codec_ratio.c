/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How small a state of AdamW gets (bf16 weights, fp32 master and moments: 14 bytes a parameter), against what has been
 * measured on real ones. The bytes come back, and what a chunk is predicted from decides nothing but its size.
 */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "adam_states.h"

#define ROWS    256
#define COLUMNS 1024
#define STEPS   100

static struct states states, before, now, later;
static struct ckpt_codec *codec;

static int set_up(void **state)
{
	(void)state;
	codec = ckpt_codec_open(CKPT_SIMD_BEST);
	if (!codec || states_open(&states, ROWS, COLUMNS) < 0)
		return -1;
	for (unsigned i = 0; i < STEPS; i++)
		states_step(&states);
	if (states_copy(&states, &before) < 0)
		return -1;
	states_step(&states);
	now.hyper = states.hyper;
	if (states_copy(&states, &now) < 0)
		return -1;
	now.hyper = states.hyper;
	for (unsigned i = 1; i < 10; i++)
		states_step(&states);
	return states_copy(&states, &later);
}

static int tear_down(void **state)
{
	(void)state;
	states_close(&states);
	states_close(&before);
	states_close(&now);
	states_close(&later);
	ckpt_codec_close(codec);
	return 0;
}

static size_t encoded(const struct ckpt_codec_chunk *chunk, const void *data)
{
	size_t bytes = chunk->count * chunk->width, size;
	uint8_t *out = malloc(ckpt_encode_room(bytes)), *back = malloc(bytes);
	struct ckpt_codec_chunk refs = *chunk;

	assert_true(out && back);
	size = ckpt_encode(codec, chunk, data, out);
	refs.adam = NULL;
	assert_int_equal(ckpt_decode(codec, &refs, out, size, back), 0);
	assert_memory_equal(back, data, bytes);
	free(out);
	free(back);
	return size;
}

/* `base` may be NULL. With `hyper` the moments and weights are predicted. */
static double ratio(
	const struct states *s, const struct states *base, const struct ckpt_adam_step *hyper)
{
	size_t size = 0, n = s->count;
	struct ckpt_codec_chunk m = {.count = n, .width = 4, .kind = CKPT_KIND_FLOAT}, v = m,
				master = m;
	struct ckpt_codec_chunk w = {.count = n, .width = 2, .kind = CKPT_KIND_BF16};

	if (base) {
		m.base = base->m;
		v.base = base->v;
		master.base = base->master;
		w.base = base->w;
	}
	if (hyper) {
		m.role = CKPT_ADAM_M;
		v.role = CKPT_ADAM_V;
		master.role = CKPT_ADAM_W;
		m.v_base = base->v;
		m.adam = v.adam = master.adam = hyper;
		v.m = master.m = s->m;
		v.m_base = base->m;
		master.v = s->v;
	}
	w.master = s->master;
	size = encoded(&m, s->m) + encoded(&v, s->v) + encoded(&master, s->master) +
	       encoded(&w, s->w);
	return (double)(14 * n) / (double)size;
}

static void expect_ratio(const char *what, double found, double least)
{
	print_message("%s: %.3f, at least %.2f\n", what, found, least);
	if (found < least)
		fail_msg("%s: %.3f is less than %.2f", what, found, least);
}

static void test_ratios(void **state)
{
	struct ckpt_adam_step wrong = now.hyper;

	(void)state;
	expect_ratio("by itself", ratio(&now, NULL, NULL), 1.38);
	expect_ratio("one step apart", ratio(&now, &before, NULL), 1.63);
	expect_ratio("ten steps apart", ratio(&later, &before, NULL), 1.49);
	expect_ratio("one step apart, AdamW", ratio(&now, &before, &now.hyper), 4.2);
	/* Another rate than the optimizer had, as from a scheduler that has gone on already: it is found. */
	wrong.lr *= 0.99;
	wrong.weight_decay = 0;
	expect_ratio("one step apart, another rate", ratio(&now, &before, &wrong), 3.9);
}

static void test_ratio_of_bf16_gradients(void **state)
{
	(void)state;
	for (unsigned lerp = 0; lerp < 2; lerp++) {
		struct states s, base, next;

		assert_int_equal(states_open(&s, ROWS, COLUMNS), 0);
		s.bf16_gradients = true;
		s.lerp = lerp;
		for (unsigned i = 0; i < 20; i++)
			states_step(&s);
		assert_int_equal(states_copy(&s, &base), 0);
		states_step(&s);
		assert_int_equal(states_copy(&s, &next), 0);
		expect_ratio(lerp ? "bf16 gradients, lerp" : "bf16 gradients",
			ratio(&next, &base, &s.hyper), 10.3);
		states_close(&s);
		states_close(&base);
		states_close(&next);
	}
}

static void test_ratio_of_fine_tuned_weights(void **state)
{
	enum { COUNT_OF = 300000 };
	uint16_t *base = malloc(2 * COUNT_OF), *now_w = malloc(2 * COUNT_OF);
	struct ckpt_codec_chunk chunk = {
		.count = COUNT_OF, .width = 2, .kind = CKPT_KIND_BF16, .base = base};

	(void)state;
	assert_true(base && now_w);
	states_fine_tune(false, COUNT_OF, base, now_w);
	expect_ratio("bf16 weights, fine-tuned",
		(double)(2 * COUNT_OF) / (double)encoded(&chunk, now_w), 16.5);
	free(base);
	free(now_w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ratios),
		cmocka_unit_test(test_ratio_of_bf16_gradients),
		cmocka_unit_test(test_ratio_of_fine_tuned_weights),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
