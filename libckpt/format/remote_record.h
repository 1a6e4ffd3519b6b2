/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote-NNNNNNNNNN.json: where the steps of a store are uploaded to, and what the uploading process knew when it was
 * written. For users and `ckpt upload`: nothing depends on it, and the remote store itself is asked before anything is
 * sent or deleted.
 */
#ifndef CKPT_FORMAT_REMOTE_RECORD_H
#define CKPT_FORMAT_REMOTE_RECORD_H

#include <ckpt/catalog.h>
#include "format/manifest.h"

#define CKPT_REMOTE_CHARS       4608 /* of a URL, with the NUL; a longer one has no record */
#define CKPT_RECORD_BYTES_MAX   (UINT64_C(1) << 20)
#define CKPT_RECORD_WAITING_MAX 4096
#define CKPT_RECORD_ABSENT_MAX  64
#define CKPT_RECORD_REASON      512

struct ckpt_record_step {
	uint64_t generation;
	uint64_t step;
	int code; /* of an absent step: why it was not uploaded; 0: it was deleted there */
};

struct ckpt_remote_record {
	char run_id[CKPT_RUN_ID_CHARS];
	char remote[CKPT_REMOTE_CHARS]; /* "s3://bucket/prefix", "file:///directory" */
	uint64_t every;                 /* only multiples of it are uploaded; 0: all steps */
	uint64_t generation;            /* of the writer */
	char node[CKPT_NODE_CHARS];
	uint64_t wall_ms;
	/* All commits up to it are uploaded, except the listed ones; generation 0: none. Nothing is known of others. */
	uint64_t known_generation;
	uint64_t known_step;
	/* Newest uploaded step, and when it was first seen there; generation 0: none. */
	uint64_t uploaded_generation;
	uint64_t uploaded_step;
	uint64_t uploaded_wall_ms;
	/* Sorted by generation and step. If not all fit, the oldest are listed. */
	struct ckpt_record_step *waiting;
	size_t waiting_count;
	uint64_t waiting_more;
	/* Steps that will not be uploaded. Sorted; if not all fit, the newest are listed. */
	struct ckpt_record_step absent[CKPT_RECORD_ABSENT_MAX];
	size_t absent_count;
	uint64_t absent_more;
	/* The failure since the last success; code 0: none. */
	int code;
	uint64_t tries; /* failures in a row */
	uint64_t since_ms;
	uint64_t next_ms; /* time of the next try; 0: none */
	char reason[CKPT_RECORD_REASON];
};

/* As in format/manifest.h. `remote` is one printable line. */
int ckpt_remote_record_encode(const struct ckpt_remote_record *record, struct ckpt_buf *out);
int ckpt_remote_record_decode(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_remote_record *ret_record);
/* Frees what decode has allocated inside. */
void ckpt_remote_record_clear(struct ckpt_remote_record *record);

/* The recorded state of a committed step of the lineage. */
enum ckpt_remote_state ckpt_remote_record_state(
	const struct ckpt_remote_record *record, uint64_t generation, uint64_t step);
/* Why it is FAILED; 0: it is not. */
int ckpt_remote_record_why(
	const struct ckpt_remote_record *record, uint64_t generation, uint64_t step);

#endif
