/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/bucket_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "s3/bucket_xml.h"

#define SUM_HEADER "x-amz-checksum-"

void s3_meta(const struct pairs *headers, struct pairs *meta)
{
	static const char *const kept[] = {"content-type", "content-encoding",
		"content-disposition", "content-language", "cache-control", "expires"};

	for (size_t i = 0; i < headers->count; i++) {
		const struct pair *h = &headers->at[i];
		bool keep = strncmp(h->name, "x-amz-meta-", 11) == 0;
		for (size_t k = 0; k < sizeof(kept) / sizeof(kept[0]); k++)
			keep = keep || strcmp(h->name, kept[k]) == 0;
		if (keep)
			pairs_add(meta, h->name, h->value);
	}
	if (!pairs_get(meta, "content-type"))
		pairs_add(meta, "content-type", "binary/octet-stream");
}

static bool md5_fits(struct call *c)
{
	const char *said = s3_header(c, "content-md5");
	uint8_t md5[HASH_MAX];

	if (!said)
		return true;
	if (base64_get(said, md5, sizeof(md5)) != 16) {
		s3_fail(c, 400, "InvalidDigest", "The Content-MD5 you specified was invalid.");
		return false;
	}
	if (memcmp(md5, s3_request_hash(c->req, HASH_MD5), 16) == 0)
		return true;
	s3_fail(c, 400, "BadDigest",
		"The Content-MD5 you specified did not match what we received.");
	return false;
}

static bool sum_fits(struct call *c, enum hash hash, const char *said)
{
	uint8_t sum[HASH_MAX];
	char why[128];

	if (base64_get(said, sum, sizeof(sum)) != (int)hash_size(hash)) {
		(void)snprintf(why, sizeof(why), "Value for x-amz-checksum-%s header is invalid.",
			hash_name(hash));
		s3_fail(c, 400, "InvalidRequest", why);
		return false;
	}
	if (memcmp(sum, s3_request_hash(c->req, hash), hash_size(hash)) == 0)
		return true;
	(void)snprintf(why, sizeof(why),
		"The %s you specified did not match the calculated checksum.", hash_name(hash));
	s3_fail(c, 400, "BadDigest", why);
	return false;
}

bool s3_body_fits(struct call *c, struct checksum *ret_sum)
{
	*ret_sum = (struct checksum){.hash = HASH_COUNT};
	if (c->req->body && c->req->body->hollow)
		return true;
	if (!md5_fits(c))
		return false;
	if (c->all->can.checksums_ignored)
		return true;
	for (size_t i = 0; i < c->req->headers.count; i++) {
		const struct pair *h = &c->req->headers.at[i];
		enum hash hash = HASH_COUNT;
		if (strncmp(h->name, SUM_HEADER, strlen(SUM_HEADER)) == 0)
			hash = hash_named(h->name + strlen(SUM_HEADER));
		if (strcmp(h->name, SUM_HEADER "sha1") == 0) {
			s3_fail(c, 501, "NotImplemented", "SHA-1 is not taken here.");
			return false;
		}
		if (hash == HASH_COUNT || hash == HASH_MD5)
			continue;
		if (ret_sum->hash != HASH_COUNT) {
			s3_fail(c, 400, "InvalidRequest",
				"Expecting a single x-amz-checksum- header. Multiple were found.");
			return false;
		}
		if (!sum_fits(c, hash, h->value))
			return false;
		ret_sum->hash = hash;
		(void)snprintf(ret_sum->text, sizeof(ret_sum->text), "%s", h->value);
	}
	return true;
}

/* `bare`: only without its quotes. */
static bool matches(const char *said, const struct object *there, bool bare)
{
	char quoted[HASH_TEXT_MAX + 16];

	(void)snprintf(quoted, sizeof(quoted), "\"%s\"", there->etag);
	return strcmp(said, "*") == 0 || strcmp(said, there->etag) == 0 ||
	       (!bare && strcmp(said, quoted) == 0);
}

bool s3_may_write(struct call *c, enum s3_conditions conditions, const struct object *there)
{
	const char *none = s3_header(c, "if-none-match");
	const char *match = s3_header(c, "if-match");

	if ((!none && !match) || conditions == S3_CONDITIONS_IGNORED)
		return true;
	if (conditions == S3_CONDITIONS_REFUSED || (none && strcmp(none, "*") != 0)) {
		s3_fail(c, 501, "NotImplemented",
			"A header you provided implies functionality that is not implemented");
		return false;
	}
	if (match && !there && !c->all->can.bare_match) {
		s3_fail(c, 404, "NoSuchKey", "The specified key does not exist.");
		return false;
	}
	if ((!none || !there) &&
		(!match || (there && matches(match, there, c->all->can.bare_match))))
		return true;
	s3_reply_refuse(c->reply, 412, "PreconditionFailed",
		"At least one of the pre-conditions you specified did not hold",
		none ? "<Condition>If-None-Match</Condition>" : "<Condition>If-Match</Condition>");
	return false;
}

static void sum_header(struct s3_reply *reply, const struct checksum *sum)
{
	char name[64];

	if (sum->hash == HASH_COUNT)
		return;
	(void)snprintf(name, sizeof(name), SUM_HEADER "%s", hash_name(sum->hash));
	s3_reply_header(reply, name, sum->text);
	s3_reply_header(reply, SUM_HEADER "type", sum->composite ? "COMPOSITE" : "FULL_OBJECT");
}

void s3_put_object(struct call *c)
{
	struct checksum sum;

	if (s3_header(c, "x-amz-copy-source")) {
		s3_fail(c, 501, "NotImplemented", "Copies are not made here.");
		return;
	}
	if (!s3_body_fits(c, &sum) || !s3_room(c, s3_request_length(c->req)) ||
		!s3_may_write(c, c->all->can.put, bucket_object(c->bucket, c->req->key)))
		return;
	struct object *object = need(sizeof(*object));
	object->key = need_text(c->req->key);
	if (c->req->body)
		rope_add(&object->content, c->req->body, 0, c->req->body->length);
	if (c->all->can.etag_not_md5 || (c->req->body && c->req->body->hollow))
		s3_draw(c, object->etag);
	else
		hex_put(s3_request_hash(c->req, HASH_MD5), 16, object->etag);
	object->modified_ns = c->now_ns;
	object->sum = sum;
	s3_meta(&c->req->headers, &object->meta);
	bucket_keep(c->all, c->bucket, object);
	disk_object(c->all, c->bucket, object);
	s3_changed(c, object->key, "", 0, &object->content, object->etag);
	c->reply->status = 200;
	s3_etag_header(c->reply, object->etag);
	sum_header(c->reply, &sum);
}

/* The bytes that are asked for, as [*first, *first + *length). */
enum span { SPAN_ALL, SPAN_PART, SPAN_NONE };
static enum span span_of(const char *range, uint64_t size, uint64_t *first, uint64_t *length)
{
	char *end = NULL;
	uint64_t from, to = UINT64_MAX;

	*first = 0;
	*length = size;
	if (!range || strncmp(range, "bytes=", 6) != 0 || strchr(range, ','))
		return SPAN_ALL;
	range += 6;
	if (*range == '-') {
		from = strtoull(range + 1, &end, 10);
		if (end == range + 1 || *end)
			return SPAN_ALL;
		if (from == 0 || size == 0)
			return SPAN_NONE;
		*length = from < size ? from : size;
		*first = size - *length;
		return SPAN_PART;
	}
	from = strtoull(range, &end, 10);
	if (end == range || *end != '-')
		return SPAN_ALL;
	if (end[1]) {
		range = end + 1;
		to = strtoull(range, &end, 10);
		if (end == range || *end || to < from)
			return SPAN_ALL;
	}
	if (from >= size)
		return SPAN_NONE;
	*first = from;
	*length = (to < size ? to + 1 : size) - from;
	return SPAN_PART;
}

/* Whether what the reader has or wants is what is there; false: it was answered. */
static bool may_read(struct call *c, const struct object *object)
{
	const char *match = s3_header(c, "if-match");
	const char *none = s3_header(c, "if-none-match");

	if (match && !matches(match, object, false)) {
		s3_fail(c, 412, "PreconditionFailed",
			"At least one of the pre-conditions you specified did not hold");
		return false;
	}
	if (none && matches(none, object, false)) {
		c->reply->status = 304;
		s3_etag_header(c->reply, object->etag);
		return false;
	}
	return true;
}

void s3_get_object(struct call *c)
{
	const struct object *object = bucket_object(c->bucket, c->req->key);
	const char *mode = s3_header(c, SUM_HEADER "mode");
	char words[96];
	uint64_t first, length;

	if (!object) {
		s3_fail(c, 404, "NoSuchKey", "The specified key does not exist.");
		return;
	}
	if (!may_read(c, object))
		return;
	uint64_t size = object->content.length;
	enum span span = span_of(s3_header(c, "range"), size, &first, &length);
	if (span == SPAN_NONE) {
		s3_fail(c, 416, "InvalidRange", "The requested range is not satisfiable");
		(void)snprintf(words, sizeof(words), "bytes */%" PRIu64, size);
		s3_reply_header(c->reply, "content-range", words);
		return;
	}
	c->reply->status = span == SPAN_PART ? 206 : 200;
	pairs_copy(&c->reply->headers, &object->meta);
	s3_etag_header(c->reply, object->etag);
	time_http(object->modified_ns / 1000000000, words);
	s3_reply_header(c->reply, "last-modified", words);
	s3_reply_header(c->reply, "accept-ranges", "bytes");
	if (span == SPAN_PART) {
		(void)snprintf(words, sizeof(words), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64,
			first, first + length - 1, size);
		s3_reply_header(c->reply, "content-range", words);
	} else if (mode && strcasecmp(mode, "enabled") == 0) {
		sum_header(c->reply, &object->sum);
	}
	rope_add_part(&c->reply->body, &object->content, first, length);
}

void s3_delete_object(struct call *c)
{
	/* The key's memory may be the object's. */
	bool there = bucket_object(c->bucket, c->req->key) != NULL;

	bucket_drop(c->all, c->bucket, c->req->key);
	disk_no_object(c->all, c->bucket, c->req->key);
	if (there)
		s3_changed(c, c->req->key, "", 0, NULL, "");
	c->reply->status = 204;
}

static bool has_sum(const struct call *c)
{
	for (size_t i = 0; i < c->req->headers.count; i++) {
		const char *name = c->req->headers.at[i].name;
		if (strcmp(name, "content-md5") == 0 ||
			strncmp(name, SUM_HEADER, strlen(SUM_HEADER)) == 0)
			return true;
	}
	return false;
}

void s3_delete_objects(struct call *c)
{
	struct checksum sum;
	struct xml_list list = {0};
	struct text xml = {0};

	if (!has_sum(c) && !c->all->can.checksums_ignored) {
		s3_fail(c, 400, "InvalidRequest",
			"Missing required header for this request: Content-MD5 OR "
			"x-amz-checksum-*");
		return;
	}
	if (!s3_body_fits(c, &sum))
		return;
	if (!xml_read(c->req->body, "Object", &list) || list.count == 0 || list.count > 1000) {
		s3_fail(c, 400, "MalformedXML", "The XML you provided was not well-formed");
		xml_clear(&list);
		return;
	}
	text_add(&xml, "<DeleteResult>");
	for (size_t i = 0; i < list.count; i++) {
		const char *key = list.items[i].key ? list.items[i].key : "";
		bool there = bucket_object(c->bucket, key) != NULL;
		bucket_drop(c->all, c->bucket, key);
		disk_no_object(c->all, c->bucket, key);
		if (there)
			s3_changed(c, key, "", 0, NULL, "");
		if (list.quiet)
			continue;
		text_add(&xml, "<Deleted><Key>");
		text_add_xml(&xml, key);
		text_add(&xml, "</Key></Deleted>");
	}
	text_add(&xml, "</DeleteResult>");
	xml_clear(&list);
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
}
