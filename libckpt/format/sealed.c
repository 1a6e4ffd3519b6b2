/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed JSON, and what version of the format a file may be of. */
#include "format/sealed.h"

#include <ckpt/version.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/digest.h"
#include "base/fail.h"

/*
 * A value costs jansson at most some 330 bytes (a member that holds an empty object), so this many stay
 * near 20 MiB. The files that are parsed so hold a dozen values.
 */
#define VALUES_MAX 65536
#define DEPTH_MAX  32

#define SEAL_HEAD  ",\"digest\":\""
#define SEAL_TAIL  "\"}\n"
#define SEAL_BYTES (sizeof(SEAL_HEAD) - 1 + CKPT_DIGEST_HEX - 1 + sizeof(SEAL_TAIL) - 1)

static int refuse(struct ckpt_error *err, int code, const char *file, const char *why)
{
	struct ckpt_where where = {.file = file};

	return ckpt_fail_at(err, code, &where, "%s %s", file, why);
}

void ckpt_sealed_finish(struct ckpt_buf *out)
{
	struct ckpt_digest digest;
	char hex[CKPT_DIGEST_HEX];

	if (out->failed)
		return;
	digest = ckpt_digest_of(out->data, out->len);
	ckpt_digest_hex(&digest, hex);
	ckpt_buf_puts(out, SEAL_HEAD);
	ckpt_buf_puts(out, hex);
	ckpt_buf_puts(out, SEAL_TAIL);
}

int ckpt_sealed_open(const void *data, size_t length, const char *file, struct ckpt_error *err)
{
	const char *seal;
	char hex[CKPT_DIGEST_HEX] = {0};
	struct ckpt_digest said;
	struct ckpt_digest found;

	if (length > CKPT_SEALED_MAX)
		return refuse(err, CKPT_EFORMAT, file, "is longer than such a file may be");
	if (length <= SEAL_BYTES)
		return refuse(err, CKPT_EFORMAT, file, "is too short to have a digest");
	seal = (const char *)data + length - SEAL_BYTES;
	if (memcmp(seal, SEAL_HEAD, sizeof(SEAL_HEAD) - 1) != 0 ||
		memcmp(seal + SEAL_BYTES - (sizeof(SEAL_TAIL) - 1), SEAL_TAIL,
			sizeof(SEAL_TAIL) - 1) != 0)
		return refuse(err, CKPT_EFORMAT, file,
			"does not end with its digest: it is cut short, or no file of a store");
	memcpy(hex, seal + sizeof(SEAL_HEAD) - 1, CKPT_DIGEST_HEX - 1);
	if (!ckpt_digest_parse(hex, &said))
		return refuse(err, CKPT_EFORMAT, file, "ends with a digest that is none");
	found = ckpt_digest_of(data, length - SEAL_BYTES);
	if (!ckpt_digest_equal(&said, &found))
		return refuse(err, CKPT_EINTEGRITY, file,
			"differs from its digest: it is damaged, put it back from a copy");
	return 0;
}

/*
 * The bytes have passed the scan, so their syntax is right. What jansson may still refuse has a code of
 * its own; where it finds fault with the syntax all the same, an allocation has failed.
 */
static bool out_of_memory(const json_error_t *why)
{
	switch (json_error_code(why)) {
	case json_error_duplicate_key:
	case json_error_numeric_overflow:
	case json_error_null_character:
	case json_error_null_byte_in_key:
		return false;
	default:
		return true;
	}
}

int ckpt_sealed_parse(const void *data, size_t length, const char *file, struct ckpt_error *err,
	json_t **ret_object)
{
	json_error_t why;
	json_t *object;
	int r;

	r = ckpt_sealed_open(data, length, file, err);
	if (r < 0)
		return r;
	r = ckpt_json_scan(data, length, VALUES_MAX, DEPTH_MAX, file, err);
	if (r < 0)
		return r;
	object = json_loadb(data, length, JSON_REJECT_DUPLICATES, &why);
	if (!object && out_of_memory(&why))
		return ckpt_fail(err, -ENOMEM, "out of memory reading %s", file);
	if (!object)
		return refuse(err, CKPT_EFORMAT, file, why.text);
	/* An array cannot end in a digest, nor can a text or number. */
	CKPT_ASSERT(json_is_object(object));
	*ret_object = object;
	return 0;
}

int ckpt_format_check(uint64_t major, uint64_t minor, const char *file, struct ckpt_error *err)
{
	struct ckpt_where where = {.file = file};

	if (major == 0)
		return refuse(
			err, CKPT_EFORMAT, file, "says that it is of format 0, which is none");
	if (major <= CKPT_FORMAT_MAJOR)
		return 0;
	return ckpt_fail_at(err, CKPT_EVERSION, &where,
		"%s is of format %" PRIu64 ".%" PRIu64
		", and this is libckpt %s, which reads formats "
		"up to %d: install libckpt %" PRIu64 ".0 or newer",
		file, major, minor, CKPT_VERSION, CKPT_FORMAT_MAJOR, major);
}

int ckpt_sealed_check(
	const json_t *object, const char *kind, const char *file, struct ckpt_error *err)
{
	const json_t *format = json_object_get(object, "format");
	json_int_t major = json_integer_value(json_array_get(format, 0));
	json_int_t minor = json_integer_value(json_array_get(format, 1));
	const char *is;
	int r;

	if (json_array_size(format) != 2 || !json_is_integer(json_array_get(format, 0)) ||
		!json_is_integer(json_array_get(format, 1)) || major < 0 || minor < 0)
		return refuse(err, CKPT_EFORMAT, file, "has no \"format\":[major,minor]");
	r = ckpt_format_check((uint64_t)major, (uint64_t)minor, file, err);
	if (r < 0)
		return r;
	if (ckpt_json_text(object, "kind", &is) && strcmp(is, kind) == 0)
		return 0;
	return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
		"%s is not of kind \"%s\"", file, kind);
}

bool ckpt_json_u64(const json_t *object, const char *key, uint64_t *ret)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(value);
	return true;
}

int ckpt_sealed_lacks(const char *key, const char *file, struct ckpt_error *err)
{
	return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
		"%s is malformed: \"%s\" is missing, or not what it must be", file, key);
}

bool ckpt_json_text(const json_t *object, const char *key, const char **ret)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_string(value))
		return false;
	*ret = json_string_value(value);
	return true;
}

bool ckpt_json_copy(const json_t *object, const char *key, char *ret_text, size_t size)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_string(value) || json_string_length(value) >= size)
		return false;
	memcpy(ret_text, json_string_value(value), json_string_length(value) + 1);
	return true;
}
