/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed files by hand, and the damage that every one of them must notice. */
#ifndef CKPT_TEST_SEALED_KIT_H
#define CKPT_TEST_SEALED_KIT_H

#include "format_kit.h"

#include <stdlib.h>

#include "base/buf.h"
#include "format/manifest.h"
#include "format/sealed.h"

#define RUN     "00112233445566778899aabbccddeeff"
#define ATTEMPT "0123456789abcdef"

/* Decodes, and forgets what was read: the code. */
typedef int decode_fn(const void *data, size_t length, struct ckpt_error *err);

/* `body` without its closing brace, sealed; then decoded. */
KIT int kit_decode_body(const char *body, decode_fn *decode, struct ckpt_error *err)
{
	struct ckpt_buf out = {0};
	int r;

	ckpt_buf_puts(&out, body);
	ckpt_sealed_finish(&out);
	assert_false(out.failed);
	r = decode(out.data, out.len, err);
	ckpt_buf_free(&out);
	return r;
}

struct sealed_case {
	const char *body;
	int code;
	const char *says; /* "": anything */
};

KIT void kit_check_cases(const struct sealed_case *cases, size_t count, decode_fn *decode)
{
	for (size_t i = 0; i < count; i++) {
		struct ckpt_error err = {0};
		int r = kit_decode_body(cases[i].body, decode, &err);

		if (r != cases[i].code || !strstr(err.message, cases[i].says))
			fail_msg("%s: %d '%s'", cases[i].body, r, err.message);
		assert_int_equal(err.code, r);
		if (r < 0)
			assert_string_equal(err.file, "f.json");
	}
}

/* Every bit of a good file turned over, and every length that it may be cut to. */
KIT void kit_check_damage(struct ckpt_buf *good, decode_fn *decode)
{
	assert_int_equal(decode(good->data, good->len, NULL), 0);
	for (size_t at = 0; at < good->len; at++) {
		for (int bit = 0; bit < 8; bit++) {
			int r;

			good->data[at] ^= (char)(1 << bit);
			r = decode(good->data, good->len, NULL);
			good->data[at] ^= (char)(1 << bit);
			if (r != CKPT_EINTEGRITY && r != CKPT_EFORMAT)
				fail_msg("byte %zu bit %d: %d", at, bit, r);
			/* Damage to what is sealed is called damage. */
			if (at < good->len - 46)
				assert_int_equal(r, CKPT_EINTEGRITY);
		}
	}
	for (size_t length = 0; length < good->len; length++) {
		char *copy = malloc(length ? length : 1);

		assert_non_null(copy);
		memcpy(copy, good->data, length);
		assert_int_equal(decode(copy, length, NULL), CKPT_EFORMAT);
		free(copy);
	}
	ckpt_buf_puts(good, "\n");
	assert_int_equal(decode(good->data, good->len, NULL), CKPT_EFORMAT);
	good->len--;
}

/* The file less its seal is `body`, and the seal is right. */
KIT void kit_check_bytes(const struct ckpt_buf *file, const char *body)
{
	struct ckpt_buf out = {0};

	ckpt_buf_puts(&out, body);
	ckpt_sealed_finish(&out);
	ckpt_buf_put(&out, "", 1);
	if (file->len != out.len - 1 || memcmp(file->data, out.data, file->len) != 0)
		fail_msg("%.*s", (int)file->len, file->data);
	ckpt_buf_free(&out);
}

#endif
