/* SPDX-License-Identifier: Apache-2.0 */
/* The sums that S3 takes of bytes. None of the library's own: this is what is held against it. */
#ifndef S3_HASHES_H
#define S3_HASHES_H

#include "s3/rope.h"

enum hash {
	HASH_MD5 = 0,
	HASH_SHA256,
	HASH_CRC32,
	HASH_CRC32C,
	HASH_CRC64NVME,
	HASH_COUNT,
};

#define HASH_MAX      32
#define HASH_TEXT_MAX 72 /* in hex or in base64, with the NUL */

size_t hash_size(enum hash hash);
/* "crc32c" of x-amz-checksum-crc32c, in any case; HASH_COUNT: none of these. */
enum hash hash_named(const char *name);
const char *hash_name(enum hash hash); /* lower case */

void hash_take(enum hash hash, const void *data, size_t length, uint8_t out[HASH_MAX]);
void hash_rope(enum hash hash, const struct rope *rope, uint8_t out[HASH_MAX]);

void hex_put(const uint8_t *data, size_t length, char *out);
void base64_put(const uint8_t *data, size_t length, char *out);
/* How many bytes; -1: that is no base64 of at most `size` bytes. */
int base64_get(const char *text, uint8_t *out, size_t size);

void hmac_take(const void *key, size_t key_length, const char *text, uint8_t out[HASH_MAX]);

#endif
