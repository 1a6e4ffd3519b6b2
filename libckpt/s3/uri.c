/* SPDX-License-Identifier: Apache-2.0 */
/* Locations of stores. */
#include "s3/uri.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/utf8.h"
#include "s3/escape.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS  "0123456789"

/* Length of a scheme: letters, digits, '+', '-' and '.' before a colon; 0: none. */
static size_t scheme_length(const char *text)
{
	size_t length = strspn(text, LETTERS DIGITS "+-.");

	return length > 1 && text[length] == ':' && strchr(LETTERS, text[0]) ? length : 0;
}

static bool is_scheme(const char *text, size_t length, const char *name)
{
	return strlen(name) == length && strncasecmp(text, name, length) == 0;
}

static int check_bucket(const char *text, const char *bucket, struct ckpt_error *err)
{
	size_t length = strlen(bucket);

	if (length == 0)
		return ckpt_fail(
			err, -EINVAL, "'%s' names no bucket: write s3://BUCKET/PREFIX", text);
	if (strncmp(bucket, "arn:", 4) == 0)
		return ckpt_fail(err, CKPT_EUNSUPPORTED,
			"'%s' is an ARN: use the alias of the access point as a bucket's name",
			text);
	if (length < 3 || strspn(bucket, LETTERS DIGITS ".-_") != length ||
		!strchr(LETTERS DIGITS, bucket[0]))
		return ckpt_fail(err, -EINVAL,
			"'%s' is not a bucket name (in '%s'): it must have 3 to %d letters, "
			"digits, '.', '-' and '_' and begin with a letter or digit",
			bucket, text, CKPT_S3_BUCKET_MAX);
	return 0;
}

/* No component may be empty, "." or "..". */
static int check_prefix(const char *text, const char *prefix, struct ckpt_error *err)
{
	if (!ckpt_utf8_is_line(prefix))
		return ckpt_fail(err, -EINVAL,
			"the prefix of '%s' is not printable UTF-8: choose another one", text);
	if (strlen(prefix) > CKPT_S3_PREFIX_MAX)
		return ckpt_fail(err, -ENAMETOOLONG,
			"the prefix of '%s' has %zu bytes: with the names of a store's files, a "
			"key of at most %d bytes leaves it %d",
			text, strlen(prefix), CKPT_S3_KEY_MAX, CKPT_S3_PREFIX_MAX);
	for (const char *at = prefix; *prefix; at++) {
		size_t length = strcspn(at, "/");

		if (length == 0)
			return ckpt_fail(err, -EINVAL,
				"the prefix of '%s' has an empty component: a '/' too many, which "
				"servers and proxies do not treat alike",
				text);
		if (length <= 2 && strspn(at, ".") == length)
			return ckpt_fail(err, -EINVAL,
				"the prefix of '%s' has the component '%.*s', which servers and "
				"proxies do not treat alike: leave it out",
				text, (int)length, at);
		at += length;
		if (*at == 0)
			return 0;
	}
	return 0;
}

static int parse_s3(
	const char *text, const char *rest, struct ckpt_error *err, struct ckpt_s3_uri *place)
{
	size_t length;
	int r;

	/* pathlib.Path("s3://bucket") is "s3:/bucket". */
	if (strncmp(rest, "//", 2) != 0)
		return ckpt_fail(err, -EINVAL,
			"'%s' begins with s3: but not with s3:// (objects for paths make one slash "
			"of two; a directory of that name is ./%s)",
			text, text);
	rest += 2;
	length = strcspn(rest, "/");
	/* It may be a secret, so it is not shown. */
	if (memchr(rest, '@', length))
		return ckpt_fail(err, -EINVAL,
			"there is an '@' before the bucket's name in an s3:// URI: keys do not "
			"belong there, but into the environment or a credentials file");
	if (length > CKPT_S3_BUCKET_MAX)
		return ckpt_fail(err, -ENAMETOOLONG,
			"the bucket's name in '%s' has %zu bytes, but at most %d are allowed", text,
			length, CKPT_S3_BUCKET_MAX);
	memcpy(place->bucket, rest, length);
	place->bucket[length] = 0;
	r = check_bucket(text, place->bucket, err);
	if (r < 0)
		return r;
	rest += length;
	if (*rest == '/')
		rest++;
	length = strlen(rest);
	if (length > 0 && rest[length - 1] == '/')
		length--;
	if (length >= sizeof(place->path))
		return ckpt_fail(err, -ENAMETOOLONG,
			"the prefix of an s3:// URI has %zu bytes, but at most %d are allowed",
			length, CKPT_S3_PREFIX_MAX);
	memcpy(place->path, rest, length);
	place->path[length] = 0;
	place->remote = true;
	/* "s3://bucket//": an empty prefix is probably a mistake. */
	if (length == 0 && *rest)
		return check_prefix(text, "/", err);
	return check_prefix(text, place->path, err);
}

static int copy_path(
	const char *text, size_t length, struct ckpt_error *err, struct ckpt_s3_uri *place)
{
	if (length == 0)
		return ckpt_fail(err, -EINVAL, "a store's name is empty");
	if (length >= sizeof(place->path))
		return ckpt_fail(err, -ENAMETOOLONG,
			"the path has %zu bytes, but at most %zu are allowed", length,
			sizeof(place->path) - 1);
	memcpy(place->path, text, length);
	place->path[length] = 0;
	return 0;
}

/* RFC 8089: file:/path, file:///path, file://localhost/path; percent-encoded. */
static int parse_file(
	const char *text, const char *rest, struct ckpt_error *err, struct ckpt_s3_uri *place)
{
	static const char here[] = "//localhost/";
	size_t length;
	int r;

	if (strncmp(rest, "///", 3) == 0)
		rest += 2;
	else if (strncasecmp(rest, here, sizeof(here) - 1) == 0)
		rest += sizeof(here) - 2;
	if (rest[0] != '/' || rest[1] == '/')
		return ckpt_fail(err, -EINVAL,
			"'%s' is not the URI of a local directory: write file:///DIRECTORY", text);
	if (strpbrk(rest, "?#"))
		return ckpt_fail(err, -EINVAL,
			"'%s' contains '?' or '#': write %%3F and %%23 in a URI", text);
	r = copy_path(rest, strlen(rest), err, place);
	if (r < 0)
		return r;
	if (!ckpt_s3_unescape(place->path, strlen(place->path), false, &length) ||
		memchr(place->path, 0, length))
		return ckpt_fail(err, -EINVAL,
			"'%s' contains a '%%' without two hexadecimal digits: in a URI it is "
			"written %%25",
			text);
	place->path[length] = 0;
	return 0;
}

int ckpt_s3_uri_parse(const char *text, struct ckpt_error *err, struct ckpt_s3_uri *ret_place)
{
	struct ckpt_s3_uri place = {.remote = false};
	size_t length = scheme_length(text);
	const char *rest = text + length + 1;
	int r;

	if (is_scheme(text, length, "s3"))
		r = parse_s3(text, rest, err, &place);
	else if (is_scheme(text, length, "file"))
		r = parse_file(text, rest, err, &place);
	else if (length > 0 && strncmp(rest, "//", 2) == 0)
		/* Nothing after the scheme is shown: URIs of other schemes may contain passwords. */
		r = ckpt_fail(err, CKPT_EUNSUPPORTED,
			"%.*s:// is not supported: use a directory, file:///DIRECTORY or "
			"s3://BUCKET/PREFIX",
			(int)length, text);
	else
		r = copy_path(text, strlen(text), err, &place);
	if (r == 0)
		*ret_place = place;
	return r;
}

void ckpt_s3_uri_key(
	const struct ckpt_s3_uri *place, const char *name, char ret_key[CKPT_S3_KEY_MAX + 1])
{
	size_t prefix = strlen(place->path);
	size_t length = strlen(name);

	CKPT_ASSERT(place->remote && prefix <= CKPT_S3_PREFIX_MAX);
	CKPT_ASSERT(length > 0 && length <= CKPT_S3_NAME_MAX);
	if (prefix > 0) {
		memcpy(ret_key, place->path, prefix);
		ret_key[prefix++] = '/';
	}
	memcpy(ret_key + prefix, name, length + 1);
}

const char *ckpt_s3_uri_name(const struct ckpt_s3_uri *place, const char *key)
{
	size_t prefix = strlen(place->path);

	if (prefix == 0)
		return *key ? key : NULL;
	if (strncmp(key, place->path, prefix) != 0 || key[prefix] != '/' || key[prefix + 1] == 0)
		return NULL;
	return key + prefix + 1;
}

uint64_t ckpt_s3_uri_number(const struct ckpt_s3_uri *place)
{
	uint64_t bucket = ckpt_hash64(place->bucket, strlen(place->bucket), 0);

	CKPT_ASSERT(place->remote);
	return ckpt_hash64(place->path, strlen(place->path), bucket) >> 2;
}
