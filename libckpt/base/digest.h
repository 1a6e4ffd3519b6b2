/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-128, the digest of every chunk, index and sealed file. Canonical (big-endian) byte order. */
#ifndef CKPT_BASE_DIGEST_H
#define CKPT_BASE_DIGEST_H

#include "base/compiler.h"

#define CKPT_DIGEST_SIZE 16
#define CKPT_DIGEST_HEX  33 /* with the NUL */

struct ckpt_digest {
	uint8_t bytes[CKPT_DIGEST_SIZE];
};

struct ckpt_digest ckpt_digest_of(const void *data, size_t len);
/* The digest of `head` followed by `tail`. */
struct ckpt_digest ckpt_digest_of_two(
	const void *head, size_t head_len, const void *tail, size_t tail_len);
bool ckpt_digest_equal(const struct ckpt_digest *a, const struct ckpt_digest *b);
void ckpt_digest_hex(const struct ckpt_digest *digest, char ret_hex[CKPT_DIGEST_HEX]);
/* False unless `hex` is exactly 32 lower-case hexadecimal digits. */
bool ckpt_digest_parse(const char *hex, struct ckpt_digest *ret_digest);
/* XXH3-64: for samples, and for the number of a remote store (FORMAT.md, section 12). */
uint64_t ckpt_hash64(const void *data, size_t len, uint64_t seed);

#endif
