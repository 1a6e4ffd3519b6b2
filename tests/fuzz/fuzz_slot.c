/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of slots: the first eight bytes are the size of the file, the rest is the header. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "peer/little_endian.h"
#include "peer/slot_header.h"

#define INPUT (8 + CKPT_PEER_SLOT_HEADER_USED)

/* What FORMAT.md asks of a slot. */
static void check_slot(uint64_t file_bytes, const struct ckpt_peer_slot_fixed *fixed,
	const struct ckpt_peer_slot_record *record)
{
	uint64_t table = (fixed->capacity + 1048575) / 1048576 * 16;

	FUZZ_CHECK(fixed->capacity > 0 && fixed->capacity % 4096 == 0);
	FUZZ_CHECK(fixed->capacity <= UINT64_C(1) << 44 && fixed->rank < 1000000);
	FUZZ_CHECK(fixed->number > 0 && file_bytes >= 4096 + fixed->capacity + table);
	FUZZ_CHECK(record->state <= CKPT_PEER_SEALED && record->length <= fixed->capacity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_peer_slot_fixed fixed;
	struct ckpt_peer_slot_record record;
	struct ckpt_error err = {0};
	uint8_t *header;
	int r;

	if (size < INPUT)
		return 0;
	/* Exactly so much memory. */
	header = malloc(CKPT_PEER_SLOT_HEADER_USED);
	FUZZ_CHECK(header);
	memcpy(header, data + 8, CKPT_PEER_SLOT_HEADER_USED);
	r = ckpt_peer_slot_get(header, ckpt_peer_get64(data), &err, &fixed, &record);
	FUZZ_CHECK((r < 0) == (err.message[0] != 0));
	if (r == 0) {
		check_slot(ckpt_peer_get64(data), &fixed, &record);
		/* Whatever the record was: one that is written is read. */
		record.state = CKPT_PEER_SEALED;
		ckpt_peer_slot_put_record(header, &record);
		FUZZ_CHECK(ckpt_peer_slot_get(
				   header, ckpt_peer_get64(data), &err, &fixed, &record) == 0);
		FUZZ_CHECK(record.state == CKPT_PEER_SEALED);
	}
	free(header);
	return 0;
}

/* The digests are put right again. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};
	struct ckpt_digest digest;
	uint8_t *header = data + 8;

	size = LLVMFuzzerMutate(data, size, max);
	if (size < INPUT || prng_below(&prng, 8) == 0)
		return size;
	if (prng_below(&prng, 4) == 0)
		ckpt_peer_put64(data, fuzz_edge(&prng));
	if (prng_below(&prng, 4) == 0)
		ckpt_peer_put64(header + 16 + 8 * prng_below(&prng, 5), fuzz_edge(&prng));
	memcpy(header, "CKPTSLOT\1\0\0", 12);
	digest = ckpt_digest_of(header, 64);
	memcpy(header + 64, digest.bytes, sizeof(digest.bytes));
	digest = ckpt_digest_of_two(header, 64, header + 128, 64);
	memcpy(header + 192, digest.bytes, sizeof(digest.bytes));
	return size;
}
