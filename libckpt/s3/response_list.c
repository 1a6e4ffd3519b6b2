/* SPDX-License-Identifier: Apache-2.0 */
/* Parses responses to listings. */
#include "s3/response_list.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "s3/response_field.h"

#define OBJECTS "ListBucketResult"
#define UPLOADS "ListMultipartUploadsResult"
#define DELETES "DeleteResult"

#define DELETES_MAX 1000 /* most keys of one request */

struct list_read {
	const char *file;
	struct ckpt_error *err;
	const char *root;
	bool encoded; /* keys and markers are encoded; may occur anywhere in the response */
	bool more;
	struct ckpt_s3_object_list objects;
	struct ckpt_s3_upload_list uploads;
	struct ckpt_s3_delete_list deletes;
};

static int one_more(struct list_read *l, const char *path, void **items, size_t *count, size_t size,
	size_t most)
{
	struct ckpt_s3_field field = {.file = l->file, .err = l->err, .path = path};

	if (*count == most)
		return ckpt_s3_field_fail(&field, "comes more than %zu times", most);
	if (!ckpt_s3_field_more(&field, items, *count, size))
		return -ENOMEM;
	++*count;
	return 0;
}

static int begin(void *user, const char *path)
{
	struct list_read *l = user;
	struct ckpt_s3_field field = {.file = l->file, .err = l->err, .path = path};
	void *items;
	int r = 0;

	if (!strchr(path, '/') && strcmp(path, l->root) != 0)
		return ckpt_s3_field_fail(&field, "is not %s", l->root);
	if (strcmp(path, OBJECTS "/Contents") == 0 ||
		strcmp(path, OBJECTS "/CommonPrefixes") == 0) {
		items = l->objects.objects;
		r = one_more(l, path, &items, &l->objects.count, sizeof(*l->objects.objects),
			CKPT_S3_LIST_MAX);
		l->objects.objects = items;
	} else if (strcmp(path, UPLOADS "/Upload") == 0) {
		items = l->uploads.uploads;
		r = one_more(l, path, &items, &l->uploads.count, sizeof(*l->uploads.uploads),
			CKPT_S3_LIST_MAX);
		l->uploads.uploads = items;
	} else if (strcmp(path, DELETES "/Error") == 0) {
		items = l->deletes.failed;
		r = one_more(l, path, &items, &l->deletes.count, sizeof(*l->deletes.failed),
			DELETES_MAX);
		l->deletes.failed = items;
	}
	return r;
}

/* Common to lists of objects and of uploads. */
static int end_any(struct list_read *l, const struct ckpt_s3_field *field)
{
	const char *name = strchr(field->path, '/');

	if (!name)
		return 0;
	if (strcmp(name, "/EncodingType") == 0)
		l->encoded = strcmp(field->text, "url") == 0;
	if (strcmp(name, "/IsTruncated") == 0)
		return ckpt_s3_field_bool(field, &l->more);
	return 0;
}

static int end_object(struct list_read *l, const struct ckpt_s3_field *field)
{
	struct ckpt_s3_object *object = &l->objects.objects[l->objects.count - 1];

	if (ckpt_s3_field_is(field, OBJECTS "/Contents/Key"))
		return ckpt_s3_field_copy(field, &object->key);
	if (ckpt_s3_field_is(field, OBJECTS "/CommonPrefixes/Prefix")) {
		object->prefix = true;
		return ckpt_s3_field_copy(field, &object->key);
	}
	if (ckpt_s3_field_is(field, OBJECTS "/Contents/Size"))
		return ckpt_s3_field_u64(field, INT64_MAX, &object->size);
	if (ckpt_s3_field_is(field, OBJECTS "/Contents/LastModified"))
		ckpt_s3_field_date(field, &object->modified_s);
	if ((ckpt_s3_field_is(field, OBJECTS "/Contents") ||
		    ckpt_s3_field_is(field, OBJECTS "/CommonPrefixes")) &&
		!object->key)
		return ckpt_s3_field_fail(field, "has no key");
	return 0;
}

static int finish_objects(struct list_read *l, const struct ckpt_s3_field *field)
{
	struct ckpt_s3_object_list *list = &l->objects;
	int r = 0;

	if (l->more && !list->next_token)
		return ckpt_s3_field_fail(field, "is truncated, but has no continuation token");
	if (!l->more) {
		ckpt_free(list->next_token);
		list->next_token = NULL;
	}
	for (size_t i = 0; i < list->count && r == 0; i++)
		r = ckpt_s3_field_decode(l->file, l->encoded, list->objects[i].key, l->err);
	return r;
}

static int end_objects(void *user, const char *path, const char *text, size_t length)
{
	struct list_read *l = user;
	struct ckpt_s3_field field = {l->file, l->err, path, text, length};
	int r = end_any(l, &field);

	if (r < 0)
		return r;
	if (ckpt_s3_field_is(&field, OBJECTS "/NextContinuationToken") && length > 0)
		return ckpt_s3_field_copy(&field, &l->objects.next_token);
	if (ckpt_s3_field_is(&field, OBJECTS))
		return finish_objects(l, &field);
	return l->objects.count > 0 ? end_object(l, &field) : 0;
}

static int end_upload(struct list_read *l, const struct ckpt_s3_field *field)
{
	struct ckpt_s3_upload *upload = &l->uploads.uploads[l->uploads.count - 1];

	if (ckpt_s3_field_is(field, UPLOADS "/Upload/Key"))
		return ckpt_s3_field_copy(field, &upload->key);
	if (ckpt_s3_field_is(field, UPLOADS "/Upload/UploadId"))
		return ckpt_s3_field_copy(field, &upload->upload_id);
	if (ckpt_s3_field_is(field, UPLOADS "/Upload/Initiated"))
		ckpt_s3_field_date(field, &upload->initiated_s);
	if (ckpt_s3_field_is(field, UPLOADS "/Upload") &&
		(!upload->key || !upload->upload_id || !upload->upload_id[0]))
		return ckpt_s3_field_fail(field, "has no key or no UploadId");
	return 0;
}

static int finish_uploads(struct list_read *l, const struct ckpt_s3_field *field)
{
	struct ckpt_s3_upload_list *list = &l->uploads;
	int r = 0;

	list->more = l->more;
	if (l->more && !list->next_key)
		return ckpt_s3_field_fail(field, "is truncated, but has no next marker");
	if (list->next_key)
		r = ckpt_s3_field_decode(l->file, l->encoded, list->next_key, l->err);
	for (size_t i = 0; i < list->count && r == 0; i++)
		r = ckpt_s3_field_decode(l->file, l->encoded, list->uploads[i].key, l->err);
	return r;
}

static int end_uploads(void *user, const char *path, const char *text, size_t length)
{
	struct list_read *l = user;
	struct ckpt_s3_field field = {l->file, l->err, path, text, length};
	int r = end_any(l, &field);

	if (r < 0)
		return r;
	if (ckpt_s3_field_is(&field, UPLOADS "/NextKeyMarker") && length > 0)
		return ckpt_s3_field_copy(&field, &l->uploads.next_key);
	if (ckpt_s3_field_is(&field, UPLOADS "/NextUploadIdMarker") && length > 0)
		return ckpt_s3_field_copy(&field, &l->uploads.next_upload_id);
	if (ckpt_s3_field_is(&field, UPLOADS))
		return finish_uploads(l, &field);
	return l->uploads.count > 0 ? end_upload(l, &field) : 0;
}

static int end_deletes(void *user, const char *path, const char *text, size_t length)
{
	struct list_read *l = user;
	struct ckpt_s3_field field = {l->file, l->err, path, text, length};
	struct ckpt_s3_error_reply *failed;

	if (l->deletes.count == 0)
		return 0;
	failed = &l->deletes.failed[l->deletes.count - 1];
	if (ckpt_s3_field_is(&field, DELETES "/Error/Key"))
		ckpt_s3_field_words(&field, failed->key, sizeof(failed->key));
	if (ckpt_s3_field_is(&field, DELETES "/Error/Code"))
		ckpt_s3_field_words(&field, failed->code, sizeof(failed->code));
	if (ckpt_s3_field_is(&field, DELETES "/Error/Message")) {
		ckpt_s3_field_words(&field, failed->message, sizeof(failed->message));
		ckpt_s3_error_conceal(failed);
	}
	return 0;
}

int ckpt_s3_object_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_object_list *ret_list)
{
	static const struct ckpt_s3_xml_calls calls = {begin, end_objects};
	struct list_read l = {.file = file, .err = err, .root = OBJECTS};
	int r = ckpt_s3_xml_read(data, length, file, &calls, &l, err);

	if (r < 0)
		ckpt_s3_object_list_clear(&l.objects);
	else
		*ret_list = l.objects;
	return r;
}

void ckpt_s3_object_list_clear(struct ckpt_s3_object_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		ckpt_free(list->objects[i].key);
	ckpt_free(list->objects);
	ckpt_free(list->next_token);
	*list = (struct ckpt_s3_object_list){0};
}

int ckpt_s3_upload_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_upload_list *ret_list)
{
	static const struct ckpt_s3_xml_calls calls = {begin, end_uploads};
	struct list_read l = {.file = file, .err = err, .root = UPLOADS};
	int r = ckpt_s3_xml_read(data, length, file, &calls, &l, err);

	if (r < 0)
		ckpt_s3_upload_list_clear(&l.uploads);
	else
		*ret_list = l.uploads;
	return r;
}

void ckpt_s3_upload_list_clear(struct ckpt_s3_upload_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		ckpt_free(list->uploads[i].key);
		ckpt_free(list->uploads[i].upload_id);
	}
	ckpt_free(list->uploads);
	ckpt_free(list->next_key);
	ckpt_free(list->next_upload_id);
	*list = (struct ckpt_s3_upload_list){0};
}

int ckpt_s3_delete_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_delete_list *ret_list)
{
	static const struct ckpt_s3_xml_calls calls = {begin, end_deletes};
	struct list_read l = {.file = file, .err = err, .root = DELETES};
	int r = ckpt_s3_xml_read(data, length, file, &calls, &l, err);

	if (r < 0)
		ckpt_s3_delete_list_clear(&l.deletes);
	else
		*ret_list = l.deletes;
	return r;
}

void ckpt_s3_delete_list_clear(struct ckpt_s3_delete_list *list)
{
	ckpt_free(list->failed);
	*list = (struct ckpt_s3_delete_list){0};
}
