/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/bucket_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "s3/bucket_xml.h"

#define PART_MINIMUM (5u << 20)
#define PARTS_MOST   10000u

void s3_create_upload(struct call *c)
{
	const char *algorithm = s3_header(c, "x-amz-checksum-algorithm");
	const char *type = s3_header(c, "x-amz-checksum-type");
	enum hash hash = algorithm ? hash_named(algorithm) : HASH_COUNT;
	struct text xml = {0};

	if (c->all->can.checksums_ignored)
		hash = HASH_COUNT;
	else if (algorithm && (hash == HASH_COUNT || hash == HASH_MD5)) {
		s3_fail(c, 400, "InvalidRequest", "Checksum algorithm provided is unsupported.");
		return;
	}
	struct upload *upload = need(sizeof(*upload));
	upload->id = need(DRAWN_MAX);
	s3_draw(c, upload->id);
	upload->key = need_text(c->req->key);
	upload->started_ns = c->now_ns;
	upload->hash = hash;
	upload->whole = hash == HASH_CRC64NVME || (type && strcasecmp(type, "FULL_OBJECT") == 0);
	s3_meta(&c->req->headers, &upload->meta);
	upload_keep(c->bucket, upload);
	disk_upload(c->all, c->bucket, upload);
	s3_changed(c, upload->key, upload->id, 0, NULL, "");

	text_add(&xml, "<InitiateMultipartUploadResult "
		       "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>");
	text_add_xml(&xml, c->bucket->name);
	text_add(&xml, "</Bucket><Key>");
	text_add_xml(&xml, upload->key);
	text_addf(
		&xml, "</Key><UploadId>%s</UploadId></InitiateMultipartUploadResult>", upload->id);
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
	if (hash == HASH_COUNT)
		return;
	s3_reply_header(c->reply, "x-amz-checksum-algorithm", algorithm);
	s3_reply_header(
		c->reply, "x-amz-checksum-type", upload->whole ? "FULL_OBJECT" : "COMPOSITE");
}

static struct upload *find_upload(struct call *c)
{
	struct upload *upload = upload_find(c->bucket, s3_query(c, "uploadId"));

	if (upload && strcmp(upload->key, c->req->key) == 0)
		return upload;
	s3_fail(c, 404, "NoSuchUpload",
		"The specified upload does not exist. The upload ID may be invalid, or the upload "
		"may "
		"have been aborted or completed.");
	return NULL;
}

void s3_upload_part(struct call *c)
{
	struct upload *upload = find_upload(c);
	unsigned most = c->all->can.parts_most ? c->all->can.parts_most : PARTS_MOST;
	struct part part = {.number = s3_part_number(c->req), .modified_ns = c->now_ns};
	struct rope content = {0};
	char name[64];

	if (!upload)
		return;
	if (part.number < 1 || part.number > most) {
		s3_fail(c, 400, "InvalidArgument",
			"Part number must be an integer between 1 and 10000, inclusive");
		return;
	}
	if (s3_header(c, "x-amz-copy-source")) {
		s3_fail(c, 501, "NotImplemented", "Copies are not made here.");
		return;
	}
	if (!s3_body_fits(c, &part.sum) || !s3_room(c, s3_request_length(c->req)))
		return;
	if (part.sum.hash != HASH_COUNT && upload->hash != part.sum.hash) {
		s3_fail(c, 400, "InvalidRequest",
			"Checksum Type mismatch occurred, expected checksum Type: that of the "
			"upload");
		return;
	}
	part.bytes = c->req->body ? bytes_hold(c->req->body) : bytes_new(0);
	if (part.bytes->hollow)
		s3_draw(c, part.etag);
	else {
		memcpy(part.md5, s3_request_hash(c->req, HASH_MD5), 16);
		hex_put(part.md5, 16, part.etag);
		if (c->all->can.etag_not_md5)
			s3_draw(c, part.etag);
	}
	upload_part(c->all, upload, &part);
	disk_part(c->all, c->bucket, upload, &part);
	rope_add(&content, part.bytes, 0, part.bytes->length);
	s3_changed(c, upload->key, upload->id, part.number, &content, part.etag);
	rope_clear(&content);
	c->reply->status = 200;
	s3_etag_header(c->reply, part.etag);
	if (part.sum.hash == HASH_COUNT)
		return;
	(void)snprintf(name, sizeof(name), "x-amz-checksum-%s", hash_name(part.sum.hash));
	s3_reply_header(c->reply, name, part.sum.text);
}

static const struct part *part_of(const struct upload *upload, unsigned number)
{
	for (size_t i = 0; i < upload->count; i++)
		if (upload->parts[i].number == number)
			return &upload->parts[i];
	return NULL;
}

static bool sum_is(const struct part *part, const struct xml_item *item)
{
	return !item->sum || part->sum.hash == HASH_COUNT ||
	       (item->hash == part->sum.hash && strcmp(item->sum, part->sum.text) == 0);
}

/* The parts that are named, in the order of their numbers; false: it was refused. */
static bool choose(struct call *c, const struct upload *upload, const struct xml_list *list,
	const struct part **chosen)
{
	uint64_t least = c->all->can.part_minimum ? c->all->can.part_minimum : PART_MINIMUM;
	unsigned before = 0;
	const char *wrong = NULL;

	for (size_t i = 0; i < list->count && !wrong; i++) {
		const struct xml_item *item = &list->items[i];
		if (item->number <= before && !c->all->can.order_ignored) {
			s3_fail(c, 400, "InvalidPartOrder",
				"The list of parts was not in ascending order.");
			return false;
		}
		before = item->number;
		chosen[i] = part_of(upload, item->number);
		if (!chosen[i] || strcmp(chosen[i]->etag, item->etag) != 0 ||
			!sum_is(chosen[i], item))
			wrong = "InvalidPart";
	}
	if (c->all->can.all_parts && list->count != upload->count)
		wrong = "InvalidPart";
	if (wrong) {
		s3_fail(c, 400, wrong, "One or more of the specified parts could not be found.");
		return false;
	}
	for (size_t i = 1; i < list->count; i++)
		for (size_t k = i; k && chosen[k - 1]->number > chosen[k]->number; k--) {
			const struct part *part = chosen[k];
			chosen[k] = chosen[k - 1];
			chosen[k - 1] = part;
		}
	for (size_t i = 0; i + 1 < list->count; i++)
		if (!chosen[i]->bytes->hollow && chosen[i]->bytes->length < least) {
			s3_fail(c, 400, "EntityTooSmall",
				"Your proposed upload is smaller than the minimum allowed size");
			return false;
		}
	return true;
}

/* The ETag of the whole, and its checksum, out of what the parts have. */
static void sum_up(struct call *c, const struct upload *upload, const struct part *const *parts,
	size_t count, struct object *object)
{
	struct text md5s = {0}, sums = {0};
	uint8_t sum[HASH_MAX];
	bool summed = upload->hash != HASH_COUNT, hollow = false;

	for (size_t i = 0; i < count; i++) {
		uint8_t of_part[HASH_MAX];
		text_add_bytes(&md5s, parts[i]->md5, 16);
		hollow = hollow || parts[i]->bytes->hollow;
		summed = summed && parts[i]->sum.hash == upload->hash &&
			 base64_get(parts[i]->sum.text, of_part, sizeof(of_part)) > 0;
		if (summed)
			text_add_bytes(&sums, of_part, hash_size(upload->hash));
	}
	if (c->all->can.etag_not_md5 || hollow) {
		s3_draw(c, object->etag);
	} else {
		hash_take(HASH_MD5, md5s.at, md5s.length, sum);
		hex_put(sum, 16, object->etag);
	}
	size_t length = strlen(object->etag);
	(void)snprintf(object->etag + length, sizeof(object->etag) - length, "-%zu", count);
	object->sum.hash = HASH_COUNT;
	if (summed && !hollow) {
		object->sum.hash = upload->hash;
		object->sum.composite = !upload->whole;
		if (upload->whole)
			hash_rope(upload->hash, &object->content, sum);
		else
			hash_take(upload->hash, sums.at, sums.length, sum);
		base64_put(sum, hash_size(upload->hash), object->sum.text);
		length = strlen(object->sum.text);
		if (!upload->whole)
			(void)snprintf(object->sum.text + length, sizeof(object->sum.text) - length,
				"-%zu", count);
	}
	text_clear(&md5s);
	text_clear(&sums);
}

static void answer_complete(
	struct call *c, const char *key, const char *etag, const struct checksum *sum)
{
	static const char *const names[] = {[HASH_SHA256] = "SHA256",
		[HASH_CRC32] = "CRC32",
		[HASH_CRC32C] = "CRC32C",
		[HASH_CRC64NVME] = "CRC64NVME"};
	struct text xml = {0};

	text_add(&xml, "<CompleteMultipartUploadResult "
		       "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>");
	text_add_xml(&xml, c->bucket->name);
	text_add(&xml, "</Bucket><Key>");
	text_add_xml(&xml, key);
	if (c->all->can.complete_untagged)
		text_add(&xml, "</Key><ETag></ETag>");
	else
		text_addf(&xml, "</Key><ETag>&quot;%s&quot;</ETag>", etag);
	if (sum && sum->hash != HASH_COUNT)
		text_addf(&xml, "<Checksum%s>%s</Checksum%s><ChecksumType>%s</ChecksumType>",
			names[sum->hash], sum->text, names[sum->hash],
			sum->composite ? "COMPOSITE" : "FULL_OBJECT");
	text_add(&xml, "</CompleteMultipartUploadResult>");
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
}

/* Whether it was done before: then it is answered as it was then. */
static bool done_before(struct call *c)
{
	for (size_t i = 0; i < NOTES_MAX; i++) {
		const struct note *note = &c->all->notes[i];
		if (!note->id || strcmp(note->id, s3_query(c, "uploadId")) != 0 ||
			strcmp(note->key, c->req->key) != 0 ||
			strcmp(note->bucket, c->bucket->name) != 0)
			continue;
		answer_complete(c, note->key, note->etag, NULL);
		return true;
	}
	return false;
}

/* What the whole is said to sum up to; false: it does not, and was refused. */
static bool whole_fits(struct call *c, const struct object *object)
{
	char name[64];

	if (object->sum.hash == HASH_COUNT || object->sum.composite)
		return true;
	(void)snprintf(name, sizeof(name), "x-amz-checksum-%s", hash_name(object->sum.hash));
	const char *said = s3_header(c, name);
	if (!said || strcmp(said, object->sum.text) == 0)
		return true;
	s3_fail(c, 400, "BadDigest", "The checksum you specified did not match what was computed.");
	return false;
}

static void finish(
	struct call *c, struct upload *upload, const struct part *const *parts, size_t count)
{
	struct object *object = need(sizeof(*object));

	object->key = need_text(upload->key);
	for (size_t i = 0; i < count; i++)
		rope_add(&object->content, parts[i]->bytes, 0, parts[i]->bytes->length);
	object->modified_ns = c->now_ns;
	object->upload = need_text(upload->id);
	pairs_copy(&object->meta, &upload->meta);
	sum_up(c, upload, parts, count, object);
	if (!whole_fits(c, object)) {
		object_free(object);
		return;
	}
	bucket_keep(c->all, c->bucket, object);
	disk_object(c->all, c->bucket, object);
	upload_note(c->all, c->bucket->name, object);
	s3_changed(c, object->key, upload->id, 0, &object->content, object->etag);
	answer_complete(c, object->key, object->etag, &object->sum);
}

static void drop_upload(struct call *c, struct upload *upload)
{
	struct bucket *b = c->bucket;
	size_t at = 0;

	disk_no_upload(c->all, b, upload);
	while (b->uploads[at] != upload)
		at++;
	upload_free(c->all, upload);
	b->upload_count--;
	memmove(&b->uploads[at], &b->uploads[at + 1],
		(b->upload_count - at) * sizeof(struct upload *));
}

void s3_complete_upload(struct call *c)
{
	struct xml_list list = {0};

	if (!upload_find(c->bucket, s3_query(c, "uploadId")) && done_before(c))
		return;
	struct upload *upload = find_upload(c);
	if (!upload ||
		!s3_may_write(c, c->all->can.complete, bucket_object(c->bucket, c->req->key)))
		return;
	if (!xml_read(c->req->body, "Part", &list) || list.count == 0) {
		xml_clear(&list);
		s3_fail(c, 400, "MalformedXML",
			"The XML you provided was not well-formed or did not validate against our "
			"published schema");
		return;
	}
	const struct part **parts = need(list.count * sizeof(*parts));
	if (choose(c, upload, &list, parts))
		finish(c, upload, parts, list.count);
	free(parts);
	xml_clear(&list);
	if (c->reply->status == 200)
		drop_upload(c, upload);
}

void s3_abort_upload(struct call *c)
{
	struct upload *upload = find_upload(c);

	if (!upload)
		return;
	s3_changed(c, upload->key, upload->id, 0, NULL, "");
	drop_upload(c, upload);
	c->reply->status = 204;
}
