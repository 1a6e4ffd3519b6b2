/* SPDX-License-Identifier: Apache-2.0 */
/* Parses responses about multipart uploads. */
#include "s3/response_parts.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "s3/response_field.h"

#define UPLOAD "InitiateMultipartUploadResult"
#define LIST   "ListPartsResult"
#define DONE   "CompleteMultipartUploadResult"

/* Common to all parsers: the request, and whether the root element is right. */
struct parts_read {
	const char *file;
	struct ckpt_error *err;
	const char *root;
	char *upload_id;
	struct ckpt_s3_part_list list;
	bool has_marker;
	struct ckpt_s3_completed *completed;
};

static int begin(void *user, const char *path)
{
	struct parts_read *p = user;
	struct ckpt_s3_field field = {.file = p->file, .err = p->err, .path = path};
	void *items = p->list.parts;

	if (!strchr(path, '/') && strcmp(path, p->root) != 0)
		return ckpt_s3_field_fail(&field, "is not %s", p->root);
	if (strcmp(path, LIST "/Part") != 0)
		return 0;
	if (p->list.count == CKPT_S3_PARTS_MAX)
		return ckpt_s3_field_fail(&field, "comes more than %d times", CKPT_S3_PARTS_MAX);
	if (!ckpt_s3_field_more(&field, &items, p->list.count, sizeof(*p->list.parts)))
		return -ENOMEM;
	p->list.parts = items;
	p->list.count++;
	return 0;
}

static int end_upload(void *user, const char *path, const char *text, size_t length)
{
	struct parts_read *p = user;
	struct ckpt_s3_field field = {p->file, p->err, path, text, length};

	if (ckpt_s3_field_is(&field, UPLOAD "/UploadId"))
		return ckpt_s3_field_line(&field, p->upload_id, CKPT_S3_UPLOAD_ID_MAX + 1);
	if (ckpt_s3_field_is(&field, UPLOAD) && p->upload_id[0] == 0)
		return ckpt_s3_field_fail(&field, "has no UploadId");
	return 0;
}

/* The current part is complete. */
static int end_part(struct parts_read *p, const struct ckpt_s3_field *field)
{
	struct ckpt_s3_part *part = &p->list.parts[p->list.count - 1];
	uint64_t number = 0;
	uint32_t parts;
	int r = 0;

	if (ckpt_s3_field_is(field, LIST "/Part/PartNumber")) {
		r = ckpt_s3_field_u64(field, CKPT_S3_PARTS_MAX, &number);
		part->number = (uint32_t)number;
	} else if (ckpt_s3_field_is(field, LIST "/Part/Size")) {
		r = ckpt_s3_field_u64(field, CKPT_S3_OBJECT_MAX, &part->size);
	} else if (ckpt_s3_field_is(field, LIST "/Part/ETag")) {
		r = ckpt_s3_field_line(field, part->etag, sizeof(part->etag));
	} else if (ckpt_s3_field_is(field, LIST "/Part/ChecksumCRC32C")) {
		part->has_crc32c = ckpt_s3_crc32c_parse(field->text, &part->crc32c, &parts) ==
				   CKPT_S3_SUM_WHOLE;
	} else if (ckpt_s3_field_is(field, LIST "/Part")) {
		if (part->number == 0 || part->etag[0] == 0)
			return ckpt_s3_field_fail(field, "has no number or no ETag");
		if (p->list.count > 1 && part[-1].number >= part->number)
			return ckpt_s3_field_fail(
				field, "%u comes after %u", part->number, part[-1].number);
	}
	return r;
}

static int end_list(void *user, const char *path, const char *text, size_t length)
{
	struct parts_read *p = user;
	struct ckpt_s3_field field = {p->file, p->err, path, text, length};
	uint64_t marker;
	int r;

	if (strncmp(path, LIST "/Part", sizeof(LIST "/Part") - 1) == 0 && p->list.count > 0) {
		r = end_part(p, &field);
		if (r < 0)
			return r;
	}
	if (ckpt_s3_field_is(&field, LIST "/IsTruncated"))
		return ckpt_s3_field_bool(&field, &p->list.more);
	if (ckpt_s3_field_is(&field, LIST "/ChecksumAlgorithm"))
		p->list.crc32c = strcmp(field.text, "CRC32C") == 0;
	/* Some servers send an empty one on the last page. */
	if (ckpt_s3_field_is(&field, LIST "/NextPartNumberMarker") && length > 0) {
		r = ckpt_s3_field_u64(&field, CKPT_S3_PARTS_MAX, &marker);
		if (r < 0)
			return r;
		p->list.next_marker = (uint32_t)marker;
		p->has_marker = true;
	}
	if (!ckpt_s3_field_is(&field, LIST) || !p->list.more)
		return 0;
	if (!p->has_marker && p->list.count > 0)
		p->list.next_marker = p->list.parts[p->list.count - 1].number;
	/* Otherwise the same page would be requested forever. */
	if (p->list.count == 0 || p->list.next_marker < p->list.parts[p->list.count - 1].number)
		return ckpt_s3_field_fail(&field, "is truncated, but has no next marker");
	return 0;
}

static int end_completed(void *user, const char *path, const char *text, size_t length)
{
	struct parts_read *p = user;
	struct ckpt_s3_field field = {p->file, p->err, path, text, length};
	uint32_t parts;

	if (ckpt_s3_field_is(&field, DONE "/ETag"))
		return ckpt_s3_field_line(&field, p->completed->etag, sizeof(p->completed->etag));
	if (ckpt_s3_field_is(&field, DONE "/ChecksumCRC32C"))
		p->completed->sum = ckpt_s3_crc32c_parse(field.text, &p->completed->crc32c, &parts);
	if (ckpt_s3_field_is(&field, DONE) && p->completed->etag[0] == 0)
		return ckpt_s3_field_fail(&field, "has no ETag");
	return 0;
}

int ckpt_s3_upload_parse(const void *data, size_t length, const char *file, struct ckpt_error *err,
	char ret_upload_id[CKPT_S3_UPLOAD_ID_MAX + 1])
{
	static const struct ckpt_s3_xml_calls calls = {begin, end_upload};
	char upload_id[CKPT_S3_UPLOAD_ID_MAX + 1] = "";
	struct parts_read p = {.file = file, .err = err, .root = UPLOAD, .upload_id = upload_id};
	int r = ckpt_s3_xml_read(data, length, file, &calls, &p, err);

	memcpy(ret_upload_id, upload_id, sizeof(upload_id));
	return r;
}

int ckpt_s3_part_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_part_list *ret_list)
{
	static const struct ckpt_s3_xml_calls calls = {begin, end_list};
	struct parts_read p = {.file = file, .err = err, .root = LIST};
	int r = ckpt_s3_xml_read(data, length, file, &calls, &p, err);

	if (r < 0)
		ckpt_s3_part_list_clear(&p.list);
	else
		*ret_list = p.list;
	return r;
}

void ckpt_s3_part_list_clear(struct ckpt_s3_part_list *list)
{
	ckpt_free(list->parts);
	*list = (struct ckpt_s3_part_list){0};
}

int ckpt_s3_completed_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_completed *ret_completed)
{
	static const struct ckpt_s3_xml_calls calls = {begin, end_completed};
	struct ckpt_s3_completed completed = {.sum = CKPT_S3_SUM_NONE};
	struct parts_read p = {.file = file, .err = err, .root = DONE, .completed = &completed};
	int r = ckpt_s3_xml_read(data, length, file, &calls, &p, err);

	if (r == 0)
		*ret_completed = completed;
	return r;
}
