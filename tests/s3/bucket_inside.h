/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of bucket.h share. */
#ifndef S3_BUCKET_INSIDE_H
#define S3_BUCKET_INSIDE_H

#include "lib/prng.h"
#include "s3/bucket.h"

#define DRAWN_MAX 33
#define NOTES_MAX 64 /* uploads that are remembered after they were completed */

/* A checksum of the kind x-amz-checksum-*, and how it was taken. */
struct checksum {
	enum hash hash; /* HASH_COUNT: none */
	bool composite; /* of the parts' checksums; the text ends in -N */
	char text[HASH_TEXT_MAX + 8];
};

struct object {
	char *key;
	struct rope content;
	char etag[HASH_TEXT_MAX + 8]; /* without quotes */
	uint64_t modified_ns;
	struct pairs meta; /* headers that are given back */
	struct checksum sum;
	char *upload; /* that it came of; NULL: it was put whole */
};

struct part {
	unsigned number;
	struct bytes *bytes;
	uint8_t md5[HASH_MAX];
	char etag[HASH_TEXT_MAX + 8];
	uint64_t modified_ns;
	struct checksum sum;
};

struct upload {
	char *id;
	char *key;
	uint64_t started_ns;
	struct pairs meta;
	enum hash hash; /* what its parts are summed by; HASH_COUNT: nothing is said */
	bool whole;     /* FULL_OBJECT */
	struct part *parts;
	size_t count;
};

/* An upload that is done: asked once more, a Complete of it is answered as before. */
struct note {
	char *bucket;
	char *key;
	char *id;
	char etag[HASH_TEXT_MAX + 8];
};

struct bucket {
	char *name;
	char *region;
	uint64_t made_ns;
	struct object **objects; /* by key */
	size_t count;
	struct upload **uploads; /* by key, then id */
	size_t upload_count;
};

struct buckets {
	struct s3_capabilities can;
	struct guard *guard;
	struct journal *journal;
	char *region;
	char *directory;
	struct prng prng;
	uint64_t limit;
	uint64_t held;
	struct bucket **at; /* by name */
	size_t count;
	struct note notes[NOTES_MAX];
	size_t noted;
};

/* A request while it is done. */
struct call {
	struct buckets *all;
	uint64_t now_ns;
	uint64_t label;
	struct s3_request *req;
	struct s3_reply *reply;
	struct bucket *bucket;
};

void s3_fail(struct call *c, int status, const char *code, const char *message);
const char *s3_query(const struct call *c, const char *name);  /* NULL: it was not given */
const char *s3_header(const struct call *c, const char *name); /* the same */
/* A number of the query in [least, most]; false: it was refused. `fallback` where there is none. */
bool s3_number(struct call *c, const char *name, unsigned fallback, unsigned least, unsigned most,
	unsigned *ret_number);
void s3_etag_header(struct s3_reply *reply, const char *etag);
/* Notes what has come about; `content` is what was put, or NULL. */
void s3_changed(struct call *c, const char *key, const char *upload, unsigned part,
	const struct rope *content, const char *etag);

/* Where a key is, or would be. */
size_t bucket_place(const struct bucket *bucket, const char *key, bool *ret_there);
struct object *bucket_object(const struct bucket *bucket, const char *key);
/* Puts it there, in place of what there was; the bucket's from now on. */
void bucket_keep(struct buckets *all, struct bucket *bucket, struct object *object);
void bucket_drop(struct buckets *all, struct bucket *bucket, const char *key);
struct bucket *buckets_find(const struct buckets *all, const char *name);
struct bucket *buckets_add(
	struct buckets *all, const char *name, const char *region, uint64_t now_ns);
void object_free(struct object *object);
struct upload *upload_find(const struct bucket *bucket, const char *id);
void upload_keep(struct bucket *bucket, struct upload *upload);
/* Puts it among the parts in place of one of that number; takes `part->bytes` over. */
void upload_part(struct buckets *all, struct upload *upload, const struct part *part);
void upload_free(struct buckets *all, struct upload *upload);
void upload_note(struct buckets *all, const char *bucket, const struct object *object);

/* The headers of a request that an object gives back. */
void s3_meta(const struct pairs *headers, struct pairs *meta);
/* Content-MD5 and x-amz-checksum-* against the body; false: it was refused. */
bool s3_body_fits(struct call *c, struct checksum *ret_sum);
/* The conditions of a write against what is there; false: it was refused. */
bool s3_may_write(struct call *c, enum s3_conditions conditions, const struct object *there);
/* A number that nothing else has, in hex. */
void s3_draw(struct call *c, char out[DRAWN_MAX]);
/* There is room for `length` bytes more; false: it was refused. */
bool s3_room(struct call *c, uint64_t length);

/* bucket_object.c */
void s3_put_object(struct call *c);
void s3_get_object(struct call *c); /* and HEAD */
void s3_delete_object(struct call *c);
void s3_delete_objects(struct call *c);
/* bucket_list.c */
void s3_list_buckets(struct call *c);
void s3_list_objects(struct call *c);
void s3_list_uploads(struct call *c);
void s3_list_parts(struct call *c);
/* bucket_upload.c */
void s3_create_upload(struct call *c);
void s3_upload_part(struct call *c);
void s3_complete_upload(struct call *c);
void s3_abort_upload(struct call *c);

/* bucket_disk.c: the same in a directory, where there is one. */
bool disk_load(struct buckets *all);
void disk_bucket(const struct buckets *all, const struct bucket *bucket);
void disk_no_bucket(const struct buckets *all, const struct bucket *bucket);
void disk_object(
	const struct buckets *all, const struct bucket *bucket, const struct object *object);
void disk_no_object(const struct buckets *all, const struct bucket *bucket, const char *key);
void disk_upload(
	const struct buckets *all, const struct bucket *bucket, const struct upload *upload);
void disk_part(const struct buckets *all, const struct bucket *bucket, const struct upload *upload,
	const struct part *part);
void disk_no_upload(
	const struct buckets *all, const struct bucket *bucket, const struct upload *upload);

#endif
