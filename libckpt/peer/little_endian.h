/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers in slots and messages. */
#ifndef CKPT_PEER_LITTLE_ENDIAN_H
#define CKPT_PEER_LITTLE_ENDIAN_H

#include <endian.h>
#include <string.h>

#include "base/compiler.h"

static inline void ckpt_peer_put32(uint8_t *at, uint32_t value)
{
	value = htole32(value);
	memcpy(at, &value, sizeof(value));
}

static inline void ckpt_peer_put64(uint8_t *at, uint64_t value)
{
	value = htole64(value);
	memcpy(at, &value, sizeof(value));
}

static inline uint32_t ckpt_peer_get32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return le32toh(value);
}

static inline uint64_t ckpt_peer_get64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return le64toh(value);
}

#endif
