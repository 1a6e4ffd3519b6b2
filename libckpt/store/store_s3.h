/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store in a bucket, as its own files see it. Each verb is a task over calls of s3/client.h.
 *
 * A path of the store is a key below the prefix. There are no directories: MKDIR, RMDIR and SYNC are done at once,
 * and what a listing shows of one is there because a key begins so. Nor are there locks: LOCK gives one that keeps
 * nobody out. An object is there whole, or not at all, and durable when the server has said so.
 */
#ifndef CKPT_STORE_STORE_S3_H
#define CKPT_STORE_STORE_S3_H

#include "s3/client.h"
#include "s3/response_parts.h"
#include "store/store.h"

struct ckpt_s3_work;

/* What is open: to be read, or on its way into the bucket. */
struct ckpt_s3_file {
	bool used;
	uint64_t size;
	char etag[CKPT_S3_ETAG_MAX + 1]; /* to be read: of what was opened; "": not known */
	bool made;                       /* the object is there, made by this file */
	char *upload;                    /* id of the multipart upload; NULL: none */
	bool sums;                       /* the upload's parts have CRC32C: so it was begun */
	bool resumed; /* made to be gone on with: of one content, parts that are there stay */
	uint64_t part_bytes;
	struct ckpt_s3_part *parts; /* number 0: not there yet */
	uint32_t part_count;
	/* With an upload: for its end, which shall not be missed for want of memory. */
	struct ckpt_s3_work *end;
};

/* Whether the server heeds If-None-Match. */
enum ckpt_s3_conditions {
	CKPT_S3_UNPROBED = 0,
	CKPT_S3_HEEDED,
	CKPT_S3_IGNORED, /* or refused */
};

/* Whether the server heeds x-amz-checksum-crc32c. */
enum ckpt_s3_sums {
	CKPT_S3_SUMS_UNPROBED = 0,
	CKPT_S3_SUMS_HEEDED,
	CKPT_S3_SUMS_IGNORED,
};

struct ckpt_store_s3 {
	struct ckpt_store store;
	struct ckpt_s3_client *client; /* borrowed */
	uint64_t block_bytes;          /* parts are of as many as they must be */
	enum ckpt_s3_conditions conditions;
	enum ckpt_s3_sums sums;
	bool unswept;               /* and that was said */
	struct ckpt_s3_file *files; /* by ckpt_object.fd */
	size_t file_room;
};

/* An operation under way. Allocated for it: most that wait have none. */
struct ckpt_s3_work {
	struct ckpt_s3_call call;
	struct ckpt_error aside; /* words of a call that may turn out to be no failure */
	struct ckpt_buf query;
	struct ckpt_buf body;
	struct ckpt_buf names;
	size_t name_count;
	unsigned replaced; /* uploads that this CREATE has given up */
	char range[48];
	char upload[CKPT_S3_UPLOAD_ID_MAX + 1];
	char etag[CKPT_S3_ETAG_MAX + 1];
	char *token;  /* of a listing's next page; NULL: none */
	bool sums;    /* the upload was begun with them */
	bool strange; /* one that is there has parts that were cut otherwise */
};

struct ckpt_store_op *ckpt_s3_op(struct ckpt_task *task);
struct ckpt_store_s3 *ckpt_s3_store(const struct ckpt_store_op *op);
struct ckpt_s3_work *ckpt_s3_work(const struct ckpt_store_op *op);
/* Of op->object, which is open. */
struct ckpt_s3_file *ckpt_s3_file_of(const struct ckpt_store_op *op);

/*
 * A call with what is usual filled in: `call` of the work, cleared. Then ckpt_s3_call_start() and
 * CKPT_AWAIT(task, work->call.done).
 */
struct ckpt_s3_call *ckpt_s3_ask(struct ckpt_store_op *op, enum ckpt_http_method method,
	const char *path, const char *doing);
/* Has the call, which was asked just now, word its failure aside. */
struct ckpt_s3_call *ckpt_s3_aside(struct ckpt_store_op *op);
/* It is a failure after all: op->err has its words. Returns the code. */
int ckpt_s3_tell(struct ckpt_store_op *op);
/* Words a failure that is not the server's: "cannot <what> in <store>: <why>". Returns the code. */
CKPT_PRINTF(3, 4)
int ckpt_s3_store_fail(struct ckpt_store_op *op, int code, const char *what, ...);
/* A place in the table for op->object, which is open then. -ENOMEM. */
int ckpt_s3_file_give(struct ckpt_store_op *op, struct ckpt_s3_file *file);
/* Forgets op->object; it is open no more. */
void ckpt_s3_file_drop(struct ckpt_store_op *op);

/* One body for each verb that asks the server. */
/* Opens op->object as work->upload, of which no part is known. -ENOMEM. */
int ckpt_s3_give_upload(struct ckpt_store_op *op);
/* Asks that work->upload, of `path`, be given up; work->query.failed: no memory for that. */
struct ckpt_s3_call *ckpt_s3_ask_abort(struct ckpt_store_op *op, const char *path);
/* The prefix of a directory's keys, whole: the client's, and the path; "" of a bucket's root. With its end. */
void ckpt_s3_put_prefix(struct ckpt_buf *out, const struct ckpt_store_s3 *s, const char *path);
ckpt_task_fn ckpt_s3_begin_body;
/* Asks once whether the server heeds CRC32C; then ckpt_s3_create_body again. */
ckpt_task_fn ckpt_s3_probe_sums_body;
/* What proves a block of op->object. */
enum ckpt_s3_proof ckpt_s3_proof_of(const struct ckpt_store_op *op);
/* The whole is not made of what was sent, by the sum that the answer to a Complete gives. */
bool ckpt_s3_whole_differs(const struct ckpt_store_op *op);
/* A name for an object that nobody takes for anything, into op->temp.path. */
void ckpt_s3_probe_name(struct ckpt_store_op *op);
ckpt_task_fn ckpt_s3_resume_body;
/* A failure that says nothing about what is there. */
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
