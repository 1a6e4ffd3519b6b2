/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C (Castagnoli), which S3 verifies at little cost: x-amz-checksum-crc32c. The checksum of a whole is joined from
 * those of its parts, so that nothing is read twice.
 */
#ifndef CKPT_S3_CRC32C_H
#define CKPT_S3_CRC32C_H

#include "base/compiler.h"

#define CKPT_S3_CRC32C_TEXT 9 /* base64 of the four bytes, big endian, and a NUL */

/* Continues `crc`, the checksum of the bytes before; 0: there are none. */
uint32_t ckpt_s3_crc32c(uint32_t crc, const void *data, size_t length);
/* The checksum of two concatenated byte ranges, the second of which has `second_length` bytes. */
uint32_t ckpt_s3_crc32c_join(uint32_t first, uint32_t second, uint64_t second_length);

void ckpt_s3_crc32c_text(uint32_t crc, char ret_text[CKPT_S3_CRC32C_TEXT]);

/* The kind of checksum in a header or element of a response. */
enum ckpt_s3_sum {
	CKPT_S3_SUM_NONE = 0, /* none that can be compared */
	CKPT_S3_SUM_WHOLE,    /* of the bytes */
	CKPT_S3_SUM_PARTS,    /* of the checksums of the parts; ends in "-" and their number */
};
enum ckpt_s3_sum ckpt_s3_crc32c_parse(const char *text, uint32_t *ret_crc, uint32_t *ret_parts);
/* The checksum of the parts' checksums, as a server computes it (COMPOSITE). */
uint32_t ckpt_s3_crc32c_of_parts(const uint32_t *crcs, size_t count);

#endif
