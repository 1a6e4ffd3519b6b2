/* SPDX-License-Identifier: Apache-2.0 */
/* The small sealed files: store marker, claim of a generation, manifest, quarantine note. */
#ifndef CKPT_FORMAT_MANIFEST_H
#define CKPT_FORMAT_MANIFEST_H

#include "base/buf.h"
#include "base/digest.h"
#include "format/naming.h"
#include <ckpt/error.h>

#define CKPT_RUN_ID_CHARS 33 /* 32 lower-case hexadecimal digits and NUL */
#define CKPT_NODE_CHARS   65
#define CKPT_WORLD_MAX    1000000
/* So many a manifest of CKPT_SEALED_MAX names, however long the names of their nodes are. */
#define CKPT_WORLD_SAVING 50000

/* ckpt.json */
struct ckpt_marker {
	char run_id[CKPT_RUN_ID_CHARS];
	bool shared;  /* one store for all nodes; else of one node */
	bool partial; /* of one that is not: any rank may be elsewhere, its own node's, too */
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

struct ckpt_manifest_rank {
	uint32_t rank;
	char node[CKPT_NODE_CHARS];
	char attempt[CKPT_ATTEMPT_CHARS];
	struct ckpt_digest index_digest; /* of the whole index file */
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
	char replicas[256]; /* of a commit: what its ranks differ in; "": nothing */
	bool node_stores;   /* of a commit: every node had a store, with all that its ranks need */
	struct ckpt_digest catalog;       /* of a commit: its name */
	uint64_t catalog_bytes;           /* of the whole file; 0: there is none */
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

/* A step that is about to be removed from a store that others may read or write. */
struct ckpt_tombstone {
	uint64_t generation;
	uint64_t step;
	uint64_t by;    /* generation of whoever removes it */
	uint64_t nonce; /* no two are alike */
	uint64_t wall_ms;
};

/*
 * Encode appends the file to `out`. The fields must hold what decode accepts; texts are made one
 * printable line. -ENOMEM; -ERANGE: a generation past CKPT_GENERATION_MAX; -E2BIG: more ranks than a
 * manifest may name. Decode gives CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION or -ENOMEM, worded with
 * `file`, and then leaves *ret as it was.
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
/* Frees what decode allocated inside. */
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
