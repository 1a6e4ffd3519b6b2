/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed JSON, and checks of the format version. */
#include "format/sealed.h"

#include <ckpt/version.h>
#include <inttypes.h>
#include <string.h>

#include "base/digest.h"
#include "base/error.h"

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
			"does not end with a digest: it is truncated, or not a file of a store");
	memcpy(hex, seal + sizeof(SEAL_HEAD) - 1, CKPT_DIGEST_HEX - 1);
	if (!ckpt_digest_parse(hex, &said))
		return refuse(err, CKPT_EFORMAT, file, "ends with an invalid digest");
	found = ckpt_digest_of(data, length - SEAL_BYTES);
	if (!ckpt_digest_equal(&said, &found))
		return refuse(err, CKPT_EINTEGRITY, file,
			"differs from its digest: it is damaged, put it back from a copy");
	return 0;
}

static int check_version(
	uint64_t major, uint64_t minor, unsigned most, const char *file, struct ckpt_error *err)
{
	struct ckpt_where where = {.file = file};

	if (major == 0)
		return refuse(err, CKPT_EFORMAT, file, "has format 0, which does not exist");
	if (major <= most)
		return 0;
	return ckpt_fail_at(err, CKPT_EVERSION, &where,
		"%s is of format %" PRIu64 ".%" PRIu64
		", and this is libckpt %s, which reads formats "
		"up to %u: install libckpt %" PRIu64 ".0 or newer",
		file, major, minor, CKPT_VERSION, most, major);
}

int ckpt_format_check(uint64_t major, uint64_t minor, const char *file, struct ckpt_error *err)
{
	return check_version(major, minor, CKPT_FORMAT_MAJOR, file, err);
}

static bool read_format(struct ckpt_reader *r, uint64_t version[2])
{
	if (!ckpt_reader_open(r, '['))
		return false;
	for (int i = 0; i < 2; i++) {
		if (!ckpt_reader_item(r) || !ckpt_reader_u64(r, &version[i]))
			return false;
	}
	return ckpt_reader_take(r, ']');
}

/* Checks version and kind before anything that a newer version may change. */
static int check_head(const char *data, size_t length, const char *kind, unsigned major,
	const char *file, struct ckpt_error *err)
{
	static const char *const names[] = {CKPT_SEALED_FORMAT, CKPT_SEALED_KIND, NULL};
	uint64_t version[2] = {0};
	bool versioned = false;
	bool same = false;
	struct ckpt_reader r;
	uint32_t seen = 0;
	char text[32];
	int member;
	int rc;

	ckpt_reader_init(&r, data, length, 0, file, err);
	(void)ckpt_reader_open(&r, '{');
	while (seen != 3 && (member = ckpt_reader_member(&r, names, &seen)) != CKPT_READER_END) {
		struct ckpt_reader value = r;

		value.err = NULL;
		if (member == 0)
			versioned = read_format(&value, version);
		if (member == 1)
			same = ckpt_reader_text(&value, text, sizeof(text), NULL) &&
			       strcmp(text, kind) == 0;
		(void)ckpt_reader_skip(&r);
	}
	if (r.failed)
		return CKPT_EFORMAT;
	if (!versioned)
		return refuse(err, CKPT_EFORMAT, file, "has no \"format\":[major,minor]");
	rc = check_version(version[0], version[1], major, file, err);
	if (rc < 0)
		return rc;
	if (same)
		return 0;
	return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
		"%s is not of kind \"%s\"", file, kind);
}

int ckpt_sealed_check_major(const void *data, size_t length, const char *kind, unsigned major,
	const char *file, struct ckpt_error *err)
{
	int r = ckpt_sealed_open(data, length, file, err);

	if (r == 0)
		r = ckpt_json_scan(data, length, SIZE_MAX, CKPT_SEALED_DEPTH, file, err);
	if (r == 0)
		r = check_head(data, length, kind, major, file, err);
	return r;
}

int ckpt_sealed_check(
	const void *data, size_t length, const char *kind, const char *file, struct ckpt_error *err)
{
	return ckpt_sealed_check_major(data, length, kind, CKPT_FORMAT_MAJOR, file, err);
}

int ckpt_sealed_lacks(const char *key, const char *file, struct ckpt_error *err)
{
	return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
		"%s is malformed: \"%s\" is missing, or not what it must be", file, key);
}
