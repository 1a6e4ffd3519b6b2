/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C by ISA-L, and joining of checksums. */
#include "s3/crc32c.h"

#include <isa-l/crc.h>
#include <string.h>

#include "s3/hash.h"

#define POLYNOMIAL UINT32_C(0x82f63b78) /* the least significant bit is x^31 */
#define ONCE       (UINT32_C(1) << 30)  /* ISA-L counts in int */
#define PARTS_MAX  10000

uint32_t ckpt_s3_crc32c(uint32_t crc, const void *data, size_t length)
{
	/* ISA-L takes a pointer without const, but only reads. */
	unsigned char *at = (unsigned char *)(uintptr_t)data;

	crc = ~crc;
	while (length > 0) {
		size_t now = ckpt_min_u64(length, ONCE);

		crc = crc32_iscsi(at, (int)now, crc);
		at += now;
		length -= now;
	}
	return ~crc;
}

/* The product of two polynomials modulo POLYNOMIAL. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (unsigned i = 0; i < 32; i++) {
		if (a & UINT32_C(1) << 31)
			product ^= b;
		a <<= 1;
		b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
	}
	return product;
}

/* Appending `second_length` zero bytes multiplies the checksum by x^(8 * second_length). */
uint32_t ckpt_s3_crc32c_join(uint32_t first, uint32_t second, uint64_t second_length)
{
	uint32_t power = UINT32_C(1) << 23; /* x^8 */

	for (; second_length > 0; second_length >>= 1) {
		if (second_length & 1)
			first = multiply(first, power);
		power = multiply(power, power);
	}
	return first ^ second;
}

static void big_endian(uint32_t crc, uint8_t bytes[4])
{
	for (unsigned i = 0; i < 4; i++)
		bytes[i] = (uint8_t)(crc >> (24 - 8 * i));
}

void ckpt_s3_crc32c_text(uint32_t crc, char ret_text[CKPT_S3_CRC32C_TEXT])
{
	uint8_t bytes[4];

	big_endian(crc, bytes);
	ckpt_s3_base64(bytes, sizeof(bytes), ret_text);
}

enum ckpt_s3_sum ckpt_s3_crc32c_parse(const char *text, uint32_t *ret_crc, uint32_t *ret_parts)
{
	char sum[CKPT_S3_CRC32C_TEXT] = "";
	uint8_t bytes[4];
	uint32_t parts = 0;
	const char *at = text + sizeof(sum) - 1;

	if (strnlen(text, sizeof(sum)) < sizeof(sum) - 1)
		return CKPT_S3_SUM_NONE;
	memcpy(sum, text, sizeof(sum) - 1);
	if (!ckpt_s3_base64_parse(sum, sizeof(bytes), bytes))
		return CKPT_S3_SUM_NONE;
	if (*at == '-') {
		for (at++; *at >= '0' && *at <= '9' && parts <= PARTS_MAX; at++)
			parts = parts * 10 + (uint32_t)(*at - '0');
		if (parts == 0 || parts > PARTS_MAX)
			return CKPT_S3_SUM_NONE;
	}
	if (*at)
		return CKPT_S3_SUM_NONE;
	*ret_crc = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 |
		   bytes[3];
	*ret_parts = parts;
	return parts > 0 ? CKPT_S3_SUM_PARTS : CKPT_S3_SUM_WHOLE;
}

uint32_t ckpt_s3_crc32c_of_parts(const uint32_t *crcs, size_t count)
{
	uint32_t crc = 0;
	uint8_t bytes[4];

	for (size_t i = 0; i < count; i++) {
		big_endian(crcs[i], bytes);
		crc = ckpt_s3_crc32c(crc, bytes, sizeof(bytes));
	}
	return crc;
}
