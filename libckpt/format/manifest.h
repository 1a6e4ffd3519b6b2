/* SPDX-License-Identifier: Apache-2.0 */
/* The small sealed files: store marker, claim of a generation, manifest, quarantine note, tombstone. */
#ifndef CKPT_FORMAT_MANIFEST_H
#define CKPT_FORMAT_MANIFEST_H

#include "base/buf.h"
#include "base/digest.h"
#include "format/naming.h"
#include <ckpt/error.h>

#define CKPT_RUN_ID_CHARS 33 /* 32 lower-case hexadecimal digits and NUL */
#define CKPT_NODE_CHARS   65
#define CKPT_WORLD_MAX    1000000
/* So many ranks fit into a manifest of CKPT_SEALED_MAX, however long their node names are. */
#define CKPT_WORLD_SAVING 50000
#define CKPT_BASES_MAX    16 /* steps that another one needs */

/* ckpt.json */
struct ckpt_marker {
	char run_id[CKPT_RUN_ID_CHARS];
	bool shared; /* one store for all nodes; else of one node */
	/* Not shared, and copied in part: any rank may be elsewhere, even one of its own node. */
	bool partial;
	uint64_t wall_ms;
};

/* gens/NNNNNN.json. Parent generation 0: none. */
struct ckpt_claim {
	char run_id[CKPT_RUN_ID_CHARS];
	uint64_t generation;
	uint64_t parent_generation;
	uint64_t parent_step;
	uint64_t nonce;
	uint32_t world;
	char node[CKPT_NODE_CHARS];
	uint64_t wall_ms;
};

/* A step that another one needs, because shards of it are decoded with its shards. */
struct ckpt_base_step {
	uint64_t generation;
	uint64_t step;
};

struct ckpt_manifest_rank {
	uint32_t rank;
	char node[CKPT_NODE_CHARS];
	char attempt[CKPT_ATTEMPT_CHARS];
	struct ckpt_digest index_digest; /* of the index file */
	uint64_t index_bytes;
	uint64_t shard_bytes; /* of the logical (plain) shard */
};

enum ckpt_manifest_kind {
	CKPT_MANIFEST_COMMIT = 1,
	CKPT_MANIFEST_ABORT = 2,
};

/* manifest.json: the register of (generation, step). */
struct ckpt_manifest {
	enum ckpt_manifest_kind kind;
	char run_id[CKPT_RUN_ID_CHARS];
	uint64_t generation;
	uint64_t step;
	char attempt[CKPT_ATTEMPT_CHARS]; /* of the publisher */
	uint64_t wall_ms;
	uint32_t world;
	char reason[256];   /* of an abort */
	char replicas[256]; /* of a commit: how its ranks differ; "": not */
	/* Of a commit: every node had its own store, with all that its ranks need. */
	bool node_stores;
	struct ckpt_digest catalog; /* of a commit: its name */
	uint64_t catalog_bytes;     /* size of the catalog file; 0: there is none */
	/* Of a commit: the steps that it needs, ascending. */
	struct ckpt_base_step bases[CKPT_BASES_MAX];
	unsigned base_count;
	struct ckpt_manifest_rank *ranks; /* of a commit: `world` of them, in order */
};

/* quarantine.json */
struct ckpt_quarantine {
	uint64_t generation;
	uint64_t step;
	int code;
	uint64_t wall_ms;
	char reason[512];
};

/* A step that will be deleted from a store that others may read or write. */
struct ckpt_tombstone {
	uint64_t generation;
	uint64_t step;
	uint64_t by;    /* generation of the process that deletes it */
	uint64_t nonce; /* unique */
	uint64_t wall_ms;
};

/*
 * Encode appends the file to `out`. The fields must be valid for decode; texts become one printable line. -ENOMEM;
 * -ERANGE: a generation above CKPT_GENERATION_MAX; -E2BIG: too many ranks for a manifest. Decode returns
 * CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION or -ENOMEM, with `file` in the message, and then leaves *ret unchanged.
 */
int ckpt_marker_encode(const struct ckpt_marker *marker, struct ckpt_buf *out);
int ckpt_marker_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_marker *ret_marker);
int ckpt_claim_encode(const struct ckpt_claim *claim, struct ckpt_buf *out);
int ckpt_claim_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_claim *ret_claim);
int ckpt_manifest_encode(const struct ckpt_manifest *manifest, struct ckpt_buf *out);
int ckpt_manifest_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_manifest *ret_manifest);
/* Frees what decode has allocated inside. */
void ckpt_manifest_clear(struct ckpt_manifest *manifest);
int ckpt_quarantine_encode(const struct ckpt_quarantine *note, struct ckpt_buf *out);
int ckpt_quarantine_decode(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_quarantine *ret_note);

int ckpt_tombstone_encode(const struct ckpt_tombstone *tombstone, struct ckpt_buf *out);
int ckpt_tombstone_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_tombstone *ret_tombstone);

/* Exactly 32 lower-case hexadecimal digits. */
bool ckpt_run_id_valid(const char *run_id);

#endif
