/* SPDX-License-Identifier: Apache-2.0 */
/* Parses responses to listings: of objects, of uploads in progress, and of failed deletions. */
#ifndef CKPT_S3_RESPONSE_LIST_H
#define CKPT_S3_RESPONSE_LIST_H

#include <ckpt/error.h>
#include "s3/response_error.h"

#define CKPT_S3_LIST_MAX 10000 /* most items of a page; S3 sends 1,000 */

struct ckpt_s3_object {
	char *key; /* decoded; a common prefix ends in the delimiter */
	uint64_t size;
	uint64_t modified_s; /* Unix time; 0: unknown */
	bool prefix;
};

/* A page of ListObjectsV2, in the order of the response. */
struct ckpt_s3_object_list {
	struct ckpt_s3_object *objects;
	size_t count;
	char *next_token; /* of the next page; NULL: this is the last */
};

struct ckpt_s3_upload {
	char *key;
	char *upload_id;
	uint64_t initiated_s; /* 0: unknown */
};

/* A page of ListMultipartUploads. */
struct ckpt_s3_upload_list {
	struct ckpt_s3_upload *uploads;
	size_t count;
	bool more; /* use these as key-marker and upload-id-marker */
	char *next_key;
	char *next_upload_id; /* NULL: use only the key */
};

/* DeleteObjects: those that could not be deleted. */
struct ckpt_s3_delete_list {
	struct ckpt_s3_error_reply *failed;
	size_t count;
};

/* All return 0, CKPT_EFORMAT or -ENOMEM, with a message; `file` names the request in it. */
int ckpt_s3_object_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_object_list *ret_list);
void ckpt_s3_object_list_clear(struct ckpt_s3_object_list *list);
int ckpt_s3_upload_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_upload_list *ret_list);
void ckpt_s3_upload_list_clear(struct ckpt_s3_upload_list *list);
int ckpt_s3_delete_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_delete_list *ret_list);
void ckpt_s3_delete_list_clear(struct ckpt_s3_delete_list *list);

#endif
