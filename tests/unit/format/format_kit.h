/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensors and failing allocations for the tests of the format. */
#ifndef CKPT_TEST_FORMAT_KIT_H
#define CKPT_TEST_FORMAT_KIT_H

#include "lib/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "format/dtype.h"
#include "format/layout.h"

#define KIT __attribute__((unused)) static

#define KIT_TENSORS 64

struct kit {
	uint64_t seed;
	struct ckpt_tensor tensors[KIT_TENSORS];
	struct ckpt_alias aliases[KIT_TENSORS];
	char names[2 * KIT_TENSORS][64];
	int64_t shapes[KIT_TENSORS][4];
	size_t count;
	size_t alias_count;
	uint64_t chunk_bytes;
};

/* Of the processor, by this thread. */
KIT double kit_cpu_seconds(void)
{
	struct timespec now;

	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

KIT uint64_t kit_next(struct kit *kit)
{
	kit->seed ^= kit->seed << 13;
	kit->seed ^= kit->seed >> 7;
	kit->seed ^= kit->seed << 17;
	return kit->seed * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

/* A number below `end`, small ones more often. */
KIT uint64_t kit_below(struct kit *kit, uint64_t end)
{
	uint64_t value = kit_next(kit) % end;

	return kit_next(kit) % 2 ? value : kit_next(kit) % (value + 1);
}

/* Names are data: whatever is UTF-8 and has no NUL. The number makes it unique. */
KIT void kit_name(struct kit *kit, char *out, size_t number)
{
	static const char *const parts[] = {"layers.", "weight", "../", "/", "\"", "\\", "\n", "\t",
		"\x01", "\x7f", " ", "'", "%s", "{", "}", "\xc3\xa4", "\xf0\x9f\x98\x80",
		"\xe2\x80\xae", "module.", "0", "_", "a", "B"};
	size_t count = kit_next(kit) % 6;
	int length = 0;

	if (kit_next(kit) % 2)
		length += snprintf(out, 64, "%zu", number);
	for (size_t i = 0; i < count; i++)
		length += snprintf(out + length, 40, "%s",
			parts[kit_next(kit) % (sizeof(parts) / sizeof(*parts))]);
	(void)snprintf(out + length, 20, ":%zu", number);
}

/* Up to `max` tensors, from empty ones to some that are several chunks long. */
KIT void kit_draw(struct kit *kit, size_t max)
{
	static const uint64_t chunk_sizes[] = {1, 64, 100, 4096, 5000, 1 << 20};

	kit->chunk_bytes = chunk_sizes[kit_next(kit) % (sizeof(chunk_sizes) / sizeof(uint64_t))];
	kit->count = kit_next(kit) % (max + 1);
	kit->alias_count = kit->count ? kit_next(kit) % 4 : 0;
	for (size_t i = 0; i < kit->count; i++) {
		uint32_t ndim = (uint32_t)(kit_next(kit) % 5);
		uint64_t left = 3 * (kit->chunk_bytes < 8192 ? kit->chunk_bytes : 8192);

		for (uint32_t d = 0; d < ndim; d++) {
			kit->shapes[i][d] = (int64_t)kit_below(kit, left + 2);
			left /= (uint64_t)kit->shapes[i][d] + 1;
		}
		kit_name(kit, kit->names[i], i);
		kit->tensors[i] = (struct ckpt_tensor){.size = sizeof(kit->tensors[i]),
			.name = kit->names[i],
			.dtype = 1 + (uint32_t)(kit_next(kit) % (CKPT_DTYPE_END - 1)),
			.flags = i % 3 ? i % 7 ? 0 : CKPT_TENSOR_VARIES : CKPT_TENSOR_SHARED,
			.ndim = ndim,
			.shape = kit->shapes[i]};
	}
	for (size_t i = 0; i < kit->alias_count; i++) {
		char *name = kit->names[KIT_TENSORS + i];

		kit_name(kit, name, KIT_TENSORS + i);
		kit->aliases[i] = (struct ckpt_alias){
			.name = name, .target = kit->names[kit_next(kit) % kit->count]};
	}
}

KIT struct ckpt_layout *kit_build(const struct kit *kit)
{
	struct ckpt_layout *layout = NULL;
	struct ckpt_error err = {0};
	int r = ckpt_layout_build(kit->tensors, kit->count, kit->aliases, kit->alias_count,
		kit->chunk_bytes, &err, &layout);

	if (r != 0)
		fail_msg("%s", err.message);
	/* Digests that differ, so that a mix-up shows. */
	for (size_t i = 0; i < layout->chunk_count; i++)
		layout->chunks[i].digest = ckpt_digest_of(&i, sizeof(i));
	for (size_t i = 0; i < layout->digest_count; i++)
		layout->digests[i] = ckpt_digest_of(&i, sizeof(i) - 1);
	return layout;
}

/* Fails allocation number `fail_at`, and adds up what was asked for. */
struct kit_alloc {
	size_t count;
	size_t fail_at;
	size_t bytes;
};

KIT bool kit_alloc_hook(void *user, size_t size)
{
	struct kit_alloc *alloc = user;

	alloc->bytes += size;
	return ++alloc->count == alloc->fail_at;
}

#endif
