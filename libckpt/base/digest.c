/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 of libxxhash. */
#include "base/digest.h"

#include <string.h>

#include "base/digest_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH128_canonical_t) == CKPT_DIGEST_SIZE, "XXH3-128 is 16 bytes");

static struct ckpt_digest canonical(XXH128_hash_t hash)
{
	XXH128_canonical_t bytes;
	struct ckpt_digest digest;

	XXH128_canonicalFromHash(&bytes, hash);
	memcpy(digest.bytes, bytes.digest, sizeof(digest.bytes));
	return digest;
}

struct ckpt_digest ckpt_digest_of(const void *data, size_t len)
{
	struct ckpt_digest digest;

	if (!ckpt_digest_avx2_usable())
		return canonical(XXH3_128bits(data, len));
	ckpt_digest_avx2(data, len, digest.bytes);
	return digest;
}

struct ckpt_digest ckpt_digest_of_two(
	const void *head, size_t head_len, const void *tail, size_t tail_len)
{
	XXH3_state_t state;

	/* None of these fail: they refuse only a NULL state, or NULL data of some length. */
	(void)XXH3_128bits_reset(&state);
	if (head_len > 0)
		(void)XXH3_128bits_update(&state, head, head_len);
	if (tail_len > 0)
		(void)XXH3_128bits_update(&state, tail, tail_len);
	return canonical(XXH3_128bits_digest(&state));
}

bool ckpt_digest_equal(const struct ckpt_digest *a, const struct ckpt_digest *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

void ckpt_digest_hex(const struct ckpt_digest *digest, char ret_hex[CKPT_DIGEST_HEX])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < CKPT_DIGEST_SIZE; i++) {
		ret_hex[2 * i] = digits[digest->bytes[i] >> 4];
		ret_hex[2 * i + 1] = digits[digest->bytes[i] & 15];
	}
	ret_hex[CKPT_DIGEST_HEX - 1] = 0;
}

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

bool ckpt_digest_parse(const char *hex, struct ckpt_digest *ret_digest)
{
	struct ckpt_digest digest;

	/* A NUL is no digit, so nothing after the end is read. */
	for (size_t i = 0; i < CKPT_DIGEST_SIZE; i++) {
		int high = nibble(hex[2 * i]);
		int low = high < 0 ? -1 : nibble(hex[2 * i + 1]);

		if (low < 0)
			return false;
		digest.bytes[i] = (uint8_t)(high << 4 | low);
	}
	if (hex[CKPT_DIGEST_HEX - 1] != 0)
		return false;
	*ret_digest = digest;
	return true;
}

uint64_t ckpt_hash64(const void *data, size_t len, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, len, seed);
}
