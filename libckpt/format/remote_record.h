/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote-NNNNNNNNNN.json: where the steps of a store go on to, and what whoever sends them knew of it when it was
 * written. It is for people and for `ckpt upload`: nothing depends on it, and the remote store itself is asked before
 * anything is sent or removed.
 */
#ifndef CKPT_FORMAT_REMOTE_RECORD_H
#define CKPT_FORMAT_REMOTE_RECORD_H

#include <ckpt/catalog.h>
#include "format/manifest.h"

#define CKPT_REMOTE_CHARS       4608 /* of a URL, and NUL; of a longer one there is no record */
#define CKPT_RECORD_BYTES_MAX   (UINT64_C(1) << 20)
#define CKPT_RECORD_WAITING_MAX 4096
#define CKPT_RECORD_ABSENT_MAX  64
#define CKPT_RECORD_REASON      512

struct ckpt_record_step {
	uint64_t generation;
	uint64_t step;
	int code; /* of one that is absent: why it was not sent; 0: it was removed there */
};

struct ckpt_remote_record {
	char run_id[CKPT_RUN_ID_CHARS];
	char remote[CKPT_REMOTE_CHARS]; /* "s3://bucket/prefix", "file:///directory" */
	uint64_t every;                 /* of the steps that go there; 0: all */
	uint64_t generation;            /* of the writer */
	char node[CKPT_NODE_CHARS];
	uint64_t wall_ms;
	/* All that was committed up to it is there, but what is listed; generation 0: none. Of others nothing is said. */
	uint64_t known_generation;
	uint64_t known_step;
	/* Newest step that was there, and when it was seen to be; generation 0: none. */
	uint64_t uploaded_generation;
	uint64_t uploaded_step;
	uint64_t uploaded_wall_ms;
	/* Ascending by generation and step. Of more than are listed the oldest are. */
	struct ckpt_record_step *waiting;
	size_t waiting_count;
	uint64_t waiting_more;
	/* Will not be there. Ascending; of more than are listed the newest are. */
	struct ckpt_record_step absent[CKPT_RECORD_ABSENT_MAX];
	size_t absent_count;
	uint64_t absent_more;
	/* The failure since which nothing has succeeded; code 0: none. */
	int code;
	uint64_t tries; /* that have failed in a row */
	uint64_t since_ms;
	uint64_t next_ms; /* when it is tried again; 0: it is not */
	char reason[CKPT_RECORD_REASON];
};

/* As those of format/manifest.h. `remote` is one printable line. */
int ckpt_remote_record_encode(const struct ckpt_remote_record *record, struct ckpt_buf *out);
int ckpt_remote_record_decode(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_remote_record *ret_record);
/* Frees what decode allocated inside. */
void ckpt_remote_record_clear(struct ckpt_remote_record *record);

/* What it says of a committed step of the lineage. */
enum ckpt_remote_state ckpt_remote_record_state(
	const struct ckpt_remote_record *record, uint64_t generation, uint64_t step);
/* Why it is FAILED; 0: it is not. */
int ckpt_remote_record_why(
	const struct ckpt_remote_record *record, uint64_t generation, uint64_t step);

#endif
