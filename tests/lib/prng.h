/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that a seed decides, so that what failed once fails again. */
#ifndef CKPT_TESTS_PRNG_H
#define CKPT_TESTS_PRNG_H

#include <stddef.h>
#include <stdint.h>

struct prng {
	uint64_t state;
};

static inline uint64_t prng_next(struct prng *d)
{
	uint64_t z = (d->state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* Below `n`, which is not 0. */
static inline uint64_t prng_below(struct prng *d, uint64_t n)
{
	return prng_next(d) % n;
}

#endif
