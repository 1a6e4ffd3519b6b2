/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/hashes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

static const struct {
	const char *name;
	size_t size;
	uint64_t polynomial; /* reflected; 0: it is no CRC */
} kinds[HASH_COUNT] = {
	[HASH_MD5] = {"md5", 16, 0},
	[HASH_SHA256] = {"sha256", 32, 0},
	[HASH_CRC32] = {"crc32", 4, 0xedb88320},
	[HASH_CRC32C] = {"crc32c", 4, 0x82f63b78},
	[HASH_CRC64NVME] = {"crc64nvme", 8, UINT64_C(0x9a6c9329ac4bc9b5)},
};

/* tables[hash][k][byte]: that byte with k zero bytes behind it. */
static uint64_t tables[HASH_COUNT][8][256];
static pthread_once_t tables_made = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
	for (int hash = HASH_CRC32; hash < HASH_COUNT; hash++) {
		for (unsigned byte = 0; byte < 256; byte++) {
			uint64_t crc = byte;
			for (int bit = 0; bit < 8; bit++)
				crc = (crc >> 1) ^ ((crc & 1) ? kinds[hash].polynomial : 0);
			tables[hash][0][byte] = crc;
		}
		for (int k = 1; k < 8; k++)
			for (unsigned byte = 0; byte < 256; byte++) {
				uint64_t before = tables[hash][k - 1][byte];
				tables[hash][k][byte] =
					(before >> 8) ^ tables[hash][0][before & 255];
			}
	}
}

static uint64_t crc_add(enum hash hash, uint64_t crc, const uint8_t *data, size_t length)
{
	uint64_t(*table)[256] = tables[hash];

	for (; length >= 8; data += 8, length -= 8) {
		uint64_t word = 0;
		for (int i = 0; i < 8; i++)
			word |= (uint64_t)data[i] << (8 * i);
		word ^= crc;
		crc = 0;
		for (int i = 0; i < 8; i++)
			crc ^= table[7 - i][(word >> (8 * i)) & 255];
	}
	for (; length; data++, length--)
		crc = (crc >> 8) ^ table[0][(crc ^ *data) & 255];
	return crc;
}

size_t hash_size(enum hash hash)
{
	return kinds[hash].size;
}

const char *hash_name(enum hash hash)
{
	return kinds[hash].name;
}

enum hash hash_named(const char *name)
{
	for (int hash = 0; hash < HASH_COUNT; hash++)
		if (strcasecmp(kinds[hash].name, name) == 0)
			return hash;
	return HASH_COUNT;
}

static void must(int ok)
{
	if (ok)
		return;
	(void)fprintf(stderr, "hashes: OpenSSL refuses\n");
	abort();
}

struct running {
	enum hash hash;
	EVP_MD_CTX *context;
	uint64_t crc;
};

static void begin(struct running *r, enum hash hash)
{
	*r = (struct running){.hash = hash, .crc = kinds[hash].size == 4 ? UINT32_MAX : UINT64_MAX};
	if (kinds[hash].polynomial) {
		(void)pthread_once(&tables_made, make_tables);
		return;
	}
	r->context = EVP_MD_CTX_new();
	must(r->context != NULL);
	must(EVP_DigestInit_ex(r->context, hash == HASH_MD5 ? EVP_md5() : EVP_sha256(), NULL));
}

static void add(struct running *r, const void *data, size_t length)
{
	if (r->context)
		must(EVP_DigestUpdate(r->context, data, length));
	else
		r->crc = crc_add(r->hash, r->crc, data, length);
}

static void end(struct running *r, uint8_t out[HASH_MAX])
{
	unsigned length = 0;

	if (r->context) {
		must(EVP_DigestFinal_ex(r->context, out, &length));
		EVP_MD_CTX_free(r->context);
		return;
	}
	uint64_t crc = ~r->crc;
	for (size_t i = 0, size = kinds[r->hash].size; i < size; i++)
		out[i] = (uint8_t)(crc >> (8 * (size - 1 - i)));
}

void hash_take(enum hash hash, const void *data, size_t length, uint8_t out[HASH_MAX])
{
	struct running r;

	begin(&r, hash);
	add(&r, data, length);
	end(&r, out);
}

void hash_rope(enum hash hash, const struct rope *rope, uint8_t out[HASH_MAX])
{
	static const uint8_t zeroes[65536];
	struct running r;

	begin(&r, hash);
	for (size_t i = 0; i < rope->count; i++) {
		const struct rope_piece *piece = &rope->pieces[i];
		if (!piece->bytes->hollow) {
			add(&r, piece->bytes->data + piece->offset, piece->length);
			continue;
		}
		for (size_t left = piece->length; left;) {
			size_t take = left < sizeof(zeroes) ? left : sizeof(zeroes);
			add(&r, zeroes, take);
			left -= take;
		}
	}
	end(&r, out);
}

void hex_put(const uint8_t *data, size_t length, char *out)
{
	for (size_t i = 0; i < length; i++) {
		out[2 * i] = "0123456789abcdef"[data[i] >> 4];
		out[2 * i + 1] = "0123456789abcdef"[data[i] & 15];
	}
	out[2 * length] = '\0';
}

void base64_put(const uint8_t *data, size_t length, char *out)
{
	(void)EVP_EncodeBlock((unsigned char *)out, data, (int)length);
}

int base64_get(const char *text, uint8_t *out, size_t size)
{
	uint8_t room[HASH_TEXT_MAX];
	size_t length = strlen(text);

	if (length == 0 || length % 4 || length > sizeof(room))
		return -1;
	int n = EVP_DecodeBlock(room, (const unsigned char *)text, (int)length);
	n -= (text[length - 1] == '=') + (text[length - 2] == '=');
	if (n < 0 || (size_t)n > size)
		return -1;
	memcpy(out, room, (size_t)n);
	return n;
}

void hmac_take(const void *key, size_t key_length, const char *text, uint8_t out[HASH_MAX])
{
	unsigned length = 0;

	must(HMAC(EVP_sha256(), key, (int)key_length, (const unsigned char *)text, strlen(text),
		     out, &length) != NULL);
}
