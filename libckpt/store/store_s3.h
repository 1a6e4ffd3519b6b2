/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal header of the store in a bucket. Each verb is a task over calls of s3/client.h.
 *
 * A path of the store is a key below the prefix. There are no directories: MKDIR, RMDIR and SYNC do nothing, and LIST
 * returns the keys that begin with the path. There are no locks: LOCK succeeds and excludes nobody. An object is
 * complete
 * or absent, and durable when the server has acknowledged it.
 */
#ifndef CKPT_STORE_STORE_S3_H
#define CKPT_STORE_STORE_S3_H

#include "base/task_job.h"
#include "s3/client.h"
#include "s3/response_parts.h"
#include "store/store.h"

struct ckpt_s3_work;

/* An open object: being read, or being uploaded. */
struct ckpt_s3_file {
	bool used;
	uint64_t size;
	char etag[CKPT_S3_ETAG_MAX + 1]; /* reading: of the opened version; "": not known */
	bool made;                       /* this file has created the object */
	char *upload;                    /* id of the multipart upload; NULL: none */
	bool sums;                       /* the upload was begun with CRC32C of its parts */
	/* Opened for resuming: existing parts are kept, as only one content is possible. */
	bool resumed;
	bool varied; /* another one is, and `size` is the most: a part is kept if its CRC32C is right */
	uint64_t part_bytes;
	struct ckpt_s3_part *parts; /* number 0: not uploaded yet */
	uint32_t part_count;
	/* Allocated with the upload, so that its end cannot fail with -ENOMEM. */
	struct ckpt_s3_work *end;
};

/* Whether the server supports If-None-Match. */
enum ckpt_s3_conditions {
	CKPT_S3_UNPROBED = 0,
	CKPT_S3_HEEDED,
	CKPT_S3_IGNORED, /* or refused */
};

/* Whether the server checks x-amz-checksum-crc32c. */
enum ckpt_s3_sums {
	CKPT_S3_SUMS_UNPROBED = 0,
	CKPT_S3_SUMS_HEEDED,
	CKPT_S3_SUMS_IGNORED,
};

struct ckpt_store_s3 {
	struct ckpt_store store;
	struct ckpt_s3_client *client; /* borrowed */
	uint64_t block_bytes;          /* parts are a multiple of this size */
	enum ckpt_s3_conditions conditions;
	enum ckpt_s3_sums sums;
	bool unswept;               /* and the warning about it was logged */
	struct ckpt_s3_file *files; /* indexed by ckpt_object.fd */
	size_t file_room;
};

/* State of an operation in flight, allocated for it because most operations that wait need none. */
struct ckpt_s3_work {
	struct ckpt_s3_call call;
	struct ckpt_error aside; /* error of a call that may turn out to be no failure */
	struct ckpt_buf query;
	struct ckpt_buf body;
	struct ckpt_buf names;
	size_t name_count;
	unsigned replaced; /* uploads that this CREATE has aborted */
	char range[48];
	char upload[CKPT_S3_UPLOAD_ID_MAX + 1];
	char etag[CKPT_S3_ETAG_MAX + 1];
	char *token;  /* token of the next page of a listing; NULL: none */
	bool sums;    /* the upload was begun with checksums */
	bool strange; /* an existing part was cut differently */
	/* The CRC32C of bytes that may be there already. */
	struct ckpt_task_job sum;
	const void *sum_of;
	uint64_t sum_length;
	uint32_t crc32c;
};

struct ckpt_store_op *ckpt_s3_op(struct ckpt_task *task);
struct ckpt_store_s3 *ckpt_s3_store(const struct ckpt_store_op *op);
struct ckpt_s3_work *ckpt_s3_work(const struct ckpt_store_op *op);
/* Of op->object, which is open. */
struct ckpt_s3_file *ckpt_s3_file_of(const struct ckpt_store_op *op);

/*
 * Returns work->call, cleared and with the common fields set. Then ckpt_s3_call_start() and CKPT_AWAIT(task,
 * work->call.done).
 */
struct ckpt_s3_call *ckpt_s3_ask(struct ckpt_store_op *op, enum ckpt_http_method method,
	const char *path, const char *doing);
/* Has the prepared call set its error in work->aside. */
struct ckpt_s3_call *ckpt_s3_aside(struct ckpt_store_op *op);
/* It is a failure after all: copies the error to op->err. Returns the code. */
int ckpt_s3_tell(struct ckpt_store_op *op);
/* Sets an error that is not the server's: "cannot <what> in <store>: <why>". Returns the code. */
CKPT_PRINTF(3, 4)
int ckpt_s3_store_fail(struct ckpt_store_op *op, int code, const char *what, ...);
/* Allocates a file for op->object, which then is open. -ENOMEM. */
int ckpt_s3_file_give(struct ckpt_store_op *op, struct ckpt_s3_file *file);
/* Frees the file of op->object, which then is closed. */
void ckpt_s3_file_drop(struct ckpt_store_op *op);

/* One body for each verb that sends requests. */
/* Opens op->object as the upload work->upload, without known parts. -ENOMEM. */
int ckpt_s3_give_upload(struct ckpt_store_op *op);
/* Prepares the abort of the upload work->upload of `path`; work->query.failed: out of memory. */
struct ckpt_s3_call *ckpt_s3_ask_abort(struct ckpt_store_op *op, const char *path);
/* The complete key prefix of a directory: the client's prefix and the path, NUL-terminated; "" for a bucket's root. */
void ckpt_s3_put_prefix(struct ckpt_buf *out, const struct ckpt_store_s3 *s, const char *path);
ckpt_task_fn ckpt_s3_begin_body;
/* Tests once whether the server checks CRC32C, then continues with ckpt_s3_create_body. */
ckpt_task_fn ckpt_s3_probe_sums_body;
/* How a block of op->object is verified by the server. */
enum ckpt_s3_proof ckpt_s3_proof_of(const struct ckpt_store_op *op);
/* Whether the object has another checksum, by the answer to Complete, than what was sent. */
bool ckpt_s3_whole_differs(const struct ckpt_store_op *op);
/* Sets op->temp.path to a name for a test object, which no reader takes for a file of the store. */
void ckpt_s3_probe_name(struct ckpt_store_op *op);
ckpt_task_fn ckpt_s3_resume_body;
/* Whether the failure says nothing about the object's existence. */
bool ckpt_s3_is_outside(int code);
ckpt_task_fn ckpt_s3_create_body;
ckpt_task_fn ckpt_s3_write_body;
ckpt_task_fn ckpt_s3_seal_body;
ckpt_task_fn ckpt_s3_abandon_body;
ckpt_task_fn ckpt_s3_put_body; /* PUT and PUBLISH */
ckpt_task_fn ckpt_s3_get_body;
ckpt_task_fn ckpt_s3_open_body;
ckpt_task_fn ckpt_s3_read_body;
ckpt_task_fn ckpt_s3_list_body;
ckpt_task_fn ckpt_s3_remove_body;
ckpt_task_fn ckpt_s3_sweep_body;

#endif
