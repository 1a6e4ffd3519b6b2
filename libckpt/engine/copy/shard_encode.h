/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain shard on its way into a store as an encoded one: the file is read once from its beginning, each chunk is
 * compared with its digest and encoded by a worker, and what comes out is written in the units of the store. Chunks lie
 * in the order of the index, without gaps. What was encoded is decoded again at once: a chunk that does not come back is
 * stored as it is. The fp32 elements that 16-bit weights are the rounding of are read and compared
 * again for that.
 *
 * The memory is bounded: one block of the file and the chunk before it, one chunk that is being encoded, another one and
 * the fp32 elements for it, and as many units as a plain copy has (see CKPT_SHARD_READ_OWN). The table is held, too, with 32
 * bytes for each chunk, and 56 for each tensor.
 */
#ifndef CKPT_ENGINE_COPY_SHARD_ENCODE_H
#define CKPT_ENGINE_COPY_SHARD_ENCODE_H

#include "base/task_job.h"
#include "engine/copy/master_search.h"
#include "engine/shard/chunk_decode.h"
#include "engine/shard/read.h"

/* A unit of the new file: it is filled, and then written. */
struct ckpt_shard_encode_part {
	struct ckpt_store_op op;
	struct ckpt_error said; /* by the store that is written */
	char *data;
	uint64_t counts; /* bytes of the shard whose last stored byte is in it */
	bool busy;       /* it is being written */
};

struct ckpt_shard_encode {
	/* Of it core, layout, store, file, generation, step, rank, dest, dest_file, unit, behind, rate_limit and from stop on. */
	struct ckpt_shard_read_config config;
	struct ckpt_task task; /* await `finished`, look at `result` */
	uint64_t bytes;        /* after success: of the new file */
	int code;              /* the first failure ... */
	bool code_read;        /* ... is that the file could not be read, or has a bad chunk */

	/* Its own. */
	struct ckpt_chunk_scratch scratch;
	struct ckpt_encoded table;
	struct ckpt_buf tail; /* table and trailer */
	uint64_t tail_sent;
	uint8_t *out; /* room for a chunk that is being encoded ... */
	char *back;   /* ... and for what it is decoded to */
	struct ckpt_chunk_decoder *decoder;
	size_t undone; /* chunks that did not come back */
	char *memory;
	char *window; /* aligned, a block of the file; before it there is room for a chunk */
	uint64_t window_bytes;
	uint64_t window_at; /* offset of the window in the file */
	uint64_t read_end;  /* the file is in the window up to here; 0: nothing was read */
	size_t chunk;       /* the next one to be encoded */
	size_t bad; /* a chunk that differs from its digest; CKPT_SHARD_READ_NO_CHUNK: none */
	struct ckpt_master_search search; /* zero: there are no masters */
	bool looked;                      /* at the next chunk; `ranges` are of it */
	bool fetched;                     /* these are in `masters` */
	struct ckpt_master_range ranges[CKPT_MASTER_RANGES];
	size_t range_count;
	size_t range;        /* that is fetched ... */
	size_t master;       /* ... of which this chunk is read, ... */
	uint64_t master_at;  /* ... from this place in the file on */
	char *masters;       /* 2 * CKPT_CODEC_CHUNK_BYTES */
	char *master_memory; /* a chunk of masters as it is read */
	char *master_room;   /* aligned */
	size_t ref_room;
	struct ckpt_shard_encode_part *parts;
	unsigned part_count;
	uint64_t unit;
	uint64_t length; /* bytes of the new file that are there; the worker's while it runs */
	uint64_t ready;  /* of them, what the core's thread knows of */
	uint64_t room;   /* for the worker: bytes that units which are not busy can take */
	uint64_t begun;  /* units whose write was begun */
	bool ended;      /* all bytes are there: the last unit is written, too */
	struct ckpt_store_op op;
	struct ckpt_error said; /* by the store that is read */
	struct ckpt_task_job job;
};

/* The most bytes that the new file can have. */
uint64_t ckpt_shard_encode_room(const struct ckpt_layout *layout);
/* Everything in `config` outlives the task. The file of `dest` is open, and is not sealed. */
void ckpt_shard_encode_start(
	struct ckpt_shard_encode *encode, const struct ckpt_shard_read_config *config);
/* After the end, or never started. */
void ckpt_shard_encode_clear(struct ckpt_shard_encode *encode);

#endif
