/* SPDX-License-Identifier: Apache-2.0 */
#include "device/copy_choice.h"

#define GIB     ((uint64_t)1 << 30)
#define SAMPLES ((unsigned)(CKPT_COPY_WAYS * CKPT_COPY_SAMPLES))

unsigned ckpt_copy_choice_now(struct ckpt_copy_choice *choice)
{
	int chosen = atomic_load_explicit(&choice->chosen, memory_order_relaxed);

	return chosen < 0 ? 0 : (unsigned)chosen;
}

unsigned ckpt_copy_choice_next(struct ckpt_copy_choice *choice, bool *ret_sample)
{
	*ret_sample = false;
	/* Checked first, because a counter that only grows would overflow. */
	if (atomic_load(&choice->begun) >= SAMPLES)
		return ckpt_copy_choice_now(choice);
	unsigned number = atomic_fetch_add(&choice->begun, 1);

	if (number >= SAMPLES)
		return ckpt_copy_choice_now(choice);
	*ret_sample = true;
	return number % CKPT_COPY_WAYS;
}

/* Way 0 unless another one is at least 5 % faster: less is noise. */
static unsigned fastest_way(struct ckpt_copy_choice *choice)
{
	uint64_t first = atomic_load(&choice->fastest[0]);
	uint64_t least = first - first / 20;
	unsigned way = 0;

	for (unsigned i = 1; i < CKPT_COPY_WAYS; i++) {
		uint64_t ns = atomic_load(&choice->fastest[i]);

		if (ns >= least)
			continue;
		least = ns;
		way = i;
	}
	return way;
}

void ckpt_copy_choice_note(
	struct ckpt_copy_choice *choice, unsigned way, uint64_t bytes, uint64_t ns)
{
	CKPT_ASSERT(way < CKPT_COPY_WAYS && bytes > 0);
	uint64_t speed = (uint64_t)((double)ns * (double)GIB / (double)bytes);
	uint64_t before = atomic_load(&choice->fastest[way]);

	while (speed < before &&
		!atomic_compare_exchange_weak(&choice->fastest[way], &before, speed))
		continue;
	if (atomic_fetch_add(&choice->ended, 1) + 1 == SAMPLES)
		atomic_store(&choice->chosen, (int)fastest_way(choice));
}
