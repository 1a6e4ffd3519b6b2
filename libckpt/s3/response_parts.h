/* SPDX-License-Identifier: Apache-2.0 */
/* Parses responses about multipart uploads. */
#ifndef CKPT_S3_RESPONSE_PARTS_H
#define CKPT_S3_RESPONSE_PARTS_H

#include <ckpt/error.h>
#include "base/compiler.h"
#include "s3/crc32c.h"

#define CKPT_S3_UPLOAD_ID_MAX 2048
#define CKPT_S3_ETAG_MAX      128 /* with its quotes, as it is sent back */
#define CKPT_S3_PARTS_MAX     10000
#define CKPT_S3_OBJECT_MAX    UINT64_C(53687091200000) /* 10,000 parts of 5 GiB: 48.8 TiB */

struct ckpt_s3_part {
	uint32_t number; /* from 1 */
	uint64_t size;
	char etag[CKPT_S3_ETAG_MAX + 1];
	bool has_crc32c;
	uint32_t crc32c;
};

/* A page of ListParts. Zero: none. */
struct ckpt_s3_part_list {
	struct ckpt_s3_part *parts; /* sorted by number, without duplicates */
	size_t count;
	bool more;            /* there are more: use next_marker as part-number-marker */
	uint32_t next_marker; /* if `more` */
	bool crc32c;          /* the upload was begun with these checksums */
};

/* The result of a completed upload. */
struct ckpt_s3_completed {
	char etag[CKPT_S3_ETAG_MAX + 1];
	enum ckpt_s3_sum sum; /* the kind of `crc32c` */
	uint32_t crc32c;
};

/* All return 0, CKPT_EFORMAT or -ENOMEM, with a message; `file` names the request in it. */
/* The id is set if it could be parsed, even after a failure, because the upload then exists. Else "". */
int ckpt_s3_upload_parse(const void *data, size_t length, const char *file, struct ckpt_error *err,
	char ret_upload_id[CKPT_S3_UPLOAD_ID_MAX + 1]);
int ckpt_s3_part_list_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_part_list *ret_list);
void ckpt_s3_part_list_clear(struct ckpt_s3_part_list *list);
/* Check for an error first: ckpt_s3_error_parse(). */
int ckpt_s3_completed_parse(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_s3_completed *ret_completed);

#endif
