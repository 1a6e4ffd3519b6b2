/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-256, MD5 and HMAC-SHA-256 by OpenSSL. They fail only without memory (-ENOMEM) or if OpenSSL does not offer them
 * (CKPT_EUNSUPPORTED, such as MD5 in FIPS mode).
 */
#ifndef CKPT_S3_HASH_H
#define CKPT_S3_HASH_H

#include "base/compiler.h"

#define CKPT_S3_SHA256     32
#define CKPT_S3_MD5        16
#define CKPT_S3_SHA256_HEX 65 /* including the NUL */
#define CKPT_S3_MD5_BASE64 25

#define CKPT_S3_UNSIGNED    "UNSIGNED-PAYLOAD"
#define CKPT_S3_SHA256_NONE "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

enum ckpt_s3_hash_kind {
	CKPT_S3_HASH_SHA256 = 1,
	CKPT_S3_HASH_MD5,
};

int ckpt_s3_sha256(const void *data, size_t length, uint8_t ret_hash[CKPT_S3_SHA256]);
int ckpt_s3_hmac(const void *key, size_t key_length, const void *data, size_t length,
	uint8_t ret_mac[CKPT_S3_SHA256]);

/* An incremental hash. */
struct ckpt_s3_hash;
int ckpt_s3_hash_begin(enum ckpt_s3_hash_kind kind, struct ckpt_s3_hash **ret_hash);
int ckpt_s3_hash_add(struct ckpt_s3_hash *hash, const void *data, size_t length);
/* Finishes and frees it. `ret_bytes` has room for SHA256 or MD5 bytes. */
int ckpt_s3_hash_end(struct ckpt_s3_hash *hash, uint8_t *ret_bytes);
/* Frees it without a result; NULL is ignored. */
void ckpt_s3_hash_drop(struct ckpt_s3_hash *hash);

/* Lower-case hexadecimal digits, and base64 of RFC 4648 with padding. Both add a NUL. */
void ckpt_s3_hex(const uint8_t *bytes, size_t count, char *ret_text);
void ckpt_s3_base64(const uint8_t *bytes, size_t count, char *ret_text);
/* Decodes exactly `count` bytes; accepts only the canonical encoding. */
bool ckpt_s3_base64_parse(const char *text, size_t count, uint8_t *ret_bytes);

#endif
