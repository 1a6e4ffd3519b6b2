/* SPDX-License-Identifier: Apache-2.0 */
/* rank-RRRRR.ATTEMPT.index */
#include "fuzz_shard.h"

#include <errno.h>
#include <string.h>

/* What is taken and kept is less than four times the file, and a little. */
#define SLACK 4096

/* Meta is checked and otherwise left alone: it is given back byte for byte. */
static void check_again(const struct ckpt_index *index)
{
	struct ckpt_error err = {0};
	struct ckpt_buf first = {0};
	struct ckpt_buf second = {0};
	struct ckpt_index *again = NULL;
	int r;

	r = ckpt_index_encode(
		index->layout, index->rank, index->meta, index->meta_bytes, &first, &err);
	FUZZ_CHECK(r == 0);
	r = ckpt_index_decode(first.data, first.len, FUZZ_FILE, &err, &again);
	fuzz_check_error(&err, r, first.len);
	FUZZ_CHECK(r == 0);
	FUZZ_CHECK(fuzz_same_index(index, again));
	r = ckpt_index_encode(
		again->layout, again->rank, again->meta, again->meta_bytes, &second, &err);
	FUZZ_CHECK(r == 0);
	FUZZ_CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
	ckpt_index_free(again);
	ckpt_buf_free(&first);
	ckpt_buf_free(&second);
}

static void check_without_memory(
	const uint8_t *data, size_t size, size_t count, int code, const struct ckpt_index *index)
{
	struct ckpt_error err = {0};
	struct ckpt_index *again = NULL;
	int r;

	if (count == 0)
		return;
	fuzz_memory_begin(1 + size * 31 % count);
	r = ckpt_index_decode(data, size, FUZZ_FILE, &err, &again);
	(void)fuzz_memory_end(UINT64_MAX);
	FUZZ_CHECK(r == code || r == -ENOMEM);
	fuzz_check_error(&err, r, size);
	FUZZ_CHECK(r < 0 ? !again : fuzz_same_index(index, again));
	ckpt_index_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_error err = {0};
	struct ckpt_index *index = NULL;
	size_t count;
	int r;

	fuzz_memory_begin(0);
	r = ckpt_index_decode(data, size, FUZZ_FILE, &err, &index);
	fuzz_check_error(&err, r, size);
	count = fuzz_memory_end(4 * (uint64_t)size + SLACK);
	FUZZ_CHECK((r == 0) == (index != NULL));
	if (index) {
		fuzz_check_index(index);
		check_again(index);
	}
	check_without_memory(data, size, count, r, index);
	ckpt_index_free(index);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct dice dice = {seed};

	return fuzz_mutate_index(data, size, max, &dice);
}
