/* SPDX-License-Identifier: Apache-2.0 */
/* Packets on the agent's socket: what is taken is what is written, byte for byte, and its numbers are in their ranges. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "peer/message.h"

#define HEAD CKPT_PEER_MESSAGE_HEAD

static void check_ranges(const struct ckpt_peer_message *m)
{
	FUZZ_CHECK(m->rank < CKPT_PEER_RANKS && m->node_ranks <= CKPT_PEER_NODE_RANKS);
	FUZZ_CHECK(m->capacity <= CKPT_PEER_SLOT_CAPACITY && m->length <= CKPT_PEER_SLOT_CAPACITY);
	FUZZ_CHECK(m->state <= CKPT_PEER_SEALED);
	if (m->type == CKPT_PEER_ATTACH) {
		FUZZ_CHECK(m->slots >= CKPT_PEER_SLOTS_MIN && m->slots <= CKPT_PEER_SLOTS_MAX);
		FUZZ_CHECK(m->capacity > 0 && m->generation > 0);
	}
	if (m->type == CKPT_PEER_ERROR) {
		FUZZ_CHECK(m->code < 0);
		FUZZ_CHECK(strnlen(m->text, sizeof(m->text)) < sizeof(m->text));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_peer_message m;
	struct ckpt_error err = {0};
	/* Exactly so much memory. */
	uint8_t *packet = malloc(size ? size : 1);
	uint8_t again[CKPT_PEER_MESSAGE_MAX];
	int r;

	FUZZ_CHECK(packet);
	memcpy(packet, data, size);
	r = ckpt_peer_message_get(packet, size, &err, &m);
	FUZZ_CHECK((r < 0) == (err.message[0] != 0));
	if (r == 0) {
		FUZZ_CHECK(size <= CKPT_PEER_MESSAGE_MAX);
		check_ranges(&m);
		FUZZ_CHECK(ckpt_peer_message_put(&m, again) <= size);
		/* But for the text of an error, which is cleaned. */
		if (m.type != CKPT_PEER_ERROR)
			FUZZ_CHECK(ckpt_peer_message_put(&m, again) == size &&
				   memcmp(again, packet, size) == 0);
	}
	free(packet);
	return 0;
}

/* The head is put right again, so that what is behind it is looked at. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};

	size = LLVMFuzzerMutate(data, size, max);
	if (size < HEAD || prng_below(&prng, 8) == 0)
		return size;
	memcpy(data, "CKPT\1\0\0", 8);
	memset(data + 12, 0, 4);
	data[12] = (uint8_t)(size - HEAD);
	data[13] = (uint8_t)((size - HEAD) >> 8);
	return size;
}
