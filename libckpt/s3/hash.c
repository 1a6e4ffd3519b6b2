/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes by OpenSSL, and their text forms. */
#include "s3/hash.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include <ckpt/error.h>

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Code of a failure of OpenSSL; empties OpenSSL's error queue. */
static int failed(void)
{
	unsigned long why = ERR_peek_error();

	ERR_clear_error();
	return why == 0 || ERR_GET_REASON(why) == ERR_R_MALLOC_FAILURE ? -ENOMEM
								       : CKPT_EUNSUPPORTED;
}

int ckpt_s3_sha256(const void *data, size_t length, uint8_t ret_hash[CKPT_S3_SHA256])
{
	return EVP_Digest(data, length, ret_hash, NULL, EVP_sha256(), NULL) == 1 ? 0 : failed();
}

int ckpt_s3_hmac(const void *key, size_t key_length, const void *data, size_t length,
	uint8_t ret_mac[CKPT_S3_SHA256])
{
	CKPT_ASSERT(key_length <= INT_MAX);
	return HMAC(EVP_sha256(), key, (int)key_length, data, length, ret_mac, NULL) ? 0 : failed();
}

/* The struct is an alias of OpenSSL's. */
static EVP_MD_CTX *context(struct ckpt_s3_hash *hash)
{
	return (EVP_MD_CTX *)(void *)hash;
}

int ckpt_s3_hash_begin(enum ckpt_s3_hash_kind kind, struct ckpt_s3_hash **ret_hash)
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();

	if (!ctx)
		return failed();
	if (EVP_DigestInit_ex(ctx, kind == CKPT_S3_HASH_MD5 ? EVP_md5() : EVP_sha256(), NULL) !=
		1) {
		EVP_MD_CTX_free(ctx);
		return failed();
	}
	*ret_hash = (struct ckpt_s3_hash *)(void *)ctx;
	return 0;
}

int ckpt_s3_hash_add(struct ckpt_s3_hash *hash, const void *data, size_t length)
{
	return EVP_DigestUpdate(context(hash), data, length) == 1 ? 0 : failed();
}

int ckpt_s3_hash_end(struct ckpt_s3_hash *hash, uint8_t *ret_bytes)
{
	int r = EVP_DigestFinal_ex(context(hash), ret_bytes, NULL) == 1 ? 0 : failed();

	EVP_MD_CTX_free(context(hash));
	return r;
}

void ckpt_s3_hash_drop(struct ckpt_s3_hash *hash)
{
	EVP_MD_CTX_free(context(hash));
}

void ckpt_s3_hex(const uint8_t *bytes, size_t count, char *ret_text)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < count; i++) {
		ret_text[2 * i] = digits[bytes[i] >> 4];
		ret_text[2 * i + 1] = digits[bytes[i] & 15];
	}
	ret_text[2 * count] = 0;
}

void ckpt_s3_base64(const uint8_t *bytes, size_t count, char *ret_text)
{
	for (size_t at = 0; at < count; at += 3) {
		size_t left = count - at;
		uint32_t three = (uint32_t)bytes[at] << 16;

		if (left > 1)
			three |= (uint32_t)bytes[at + 1] << 8;
		if (left > 2)
			three |= bytes[at + 2];
		ret_text[0] = letters[three >> 18];
		ret_text[1] = letters[three >> 12 & 63];
		ret_text[2] = (char)(left > 1 ? letters[three >> 6 & 63] : '=');
		ret_text[3] = (char)(left > 2 ? letters[three & 63] : '=');
		ret_text += 4;
	}
	*ret_text = 0;
}

bool ckpt_s3_base64_parse(const char *text, size_t count, uint8_t *ret_bytes)
{
	size_t length = (count + 2) / 3 * 4;
	size_t pads = (3 - count % 3) % 3;
	uint32_t bits = 0;
	unsigned have = 0;
	size_t out = 0;

	if (strlen(text) != length || strspn(text, letters) != length - pads)
		return false;
	for (size_t i = length - pads; i < length; i++) {
		if (text[i] != '=')
			return false;
	}
	for (size_t i = 0; i < length - pads; i++) {
		bits = bits << 6 | (uint32_t)(strchr(letters, text[i]) - letters);
		have += 6;
		if (have >= 8) {
			have -= 8;
			ret_bytes[out++] = (uint8_t)(bits >> have);
			bits &= (UINT32_C(1) << have) - 1;
		}
	}
	/* The unused bits of the last character must be zero, so that each value has one text. */
	return bits == 0;
}
