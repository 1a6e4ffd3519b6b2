/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys as JSON, of a process or a server by the first byte: a request can be signed with what is taken, and
 * nothing of what is not is told.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "s3/credentials_json.h"
#include "s3/date.h"

/* What stands for a secret in the corpus. */
#define CANARY "CANARY"

/* All that there is are values of secrets; mutants may have it elsewhere, too. */
static bool all_are_secrets(const char *data, size_t size)
{
	return fuzz_occurrences(data, size, CANARY) ==
	       fuzz_occurrences(data, size, "\"SecretAccessKey\":\"" CANARY) +
		       fuzz_occurrences(data, size, "Token\":\"" CANARY);
}

static void check_failure(const struct ckpt_error *err, int code, const char *data, size_t size)
{
	const char *message = err->message;

	FUZZ_CHECK(err->code == code);
	FUZZ_CHECK(code == CKPT_EFORMAT || code == CKPT_EAUTH || code == -ENOMEM);
	FUZZ_CHECK(fuzz_is_line(message, strlen(message)) && strstr(message, FUZZ_FILE));
	FUZZ_CHECK(!strstr(message, CANARY) || !all_are_secrets(data, size));
}

static void check_part(const char *text, size_t most)
{
	FUZZ_CHECK(text[0] && strlen(text) <= most);
	for (; *text; text++)
		FUZZ_CHECK(*text > ' ' && *text < 0x7f);
}

static void read_keys(enum ckpt_s3_credentials_kind kind, const char *text, size_t length)
{
	struct ckpt_s3_credentials keys;
	struct ckpt_error err = {0};
	int r = ckpt_s3_credentials_json(text, length, kind, FUZZ_FILE, &err, &keys);

	if (r < 0) {
		check_failure(&err, r, text, length);
		FUZZ_CHECK(!keys.access[0] && !keys.secret[0] && !keys.token);
		return;
	}
	FUZZ_CHECK(err.code == 0);
	check_part(keys.access, CKPT_S3_ACCESS_MAX);
	check_part(keys.secret, CKPT_S3_SECRET_MAX);
	if (keys.token)
		check_part(keys.token, CKPT_S3_TOKEN_MAX);
	FUZZ_CHECK(keys.expires_s <= CKPT_S3_TIME_MAX);
	ckpt_s3_credentials_clear(&keys);
	FUZZ_CHECK(!keys.secret[0] && !keys.token);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum ckpt_s3_credentials_kind kind;
	size_t count;
	char *text;

	if (size < 1)
		return 0;
	kind = data[0] % 2 ? CKPT_S3_CREDENTIALS_SERVER : CKPT_S3_CREDENTIALS_PROCESS;
	/* Exactly so much memory. */
	text = malloc(size - 1 ? size - 1 : 1);
	FUZZ_CHECK(text);
	memcpy(text, data + 1, size - 1);
	fuzz_memory_begin(0);
	read_keys(kind, text, size - 1);
	count = fuzz_memory_end(65536 + CKPT_S3_TOKEN_MAX);
	fuzz_memory_begin(1 + size % (count + 1));
	read_keys(kind, text, size - 1);
	(void)fuzz_memory_end(UINT64_MAX);
	free(text);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	static const char *const pieces[] = {"\"AccessKeyId\":\"A\",",
		"\"SecretAccessKey\":\"" CANARY "\",", "\"SessionToken\":\"" CANARY "\",",
		"\"Token\":\"" CANARY "\",", "\"Expiration\":\"2030-01-01T00:00:00Z\",",
		"\"Version\":1,", "\"Code\":\"Success\",", "\"Code\":\"Failed\",", "null",
		"\\u0000", "\\n", " ", "{", "}", "\"x\":[],"};
	struct prng prng = {seed};

	if (size < 2 || prng_below(&prng, 4) == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (prng_below(&prng, 2) == 0)
		return 1 + fuzz_mutate_json(data + 1, size - 1, max - 1, &prng);
	return 1 + fuzz_mutate_pieces(data + 1, size - 1, max - 1, &prng, pieces,
			   sizeof(pieces) / sizeof(pieces[0]));
}
