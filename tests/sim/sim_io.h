/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ckpt_io over the simulated disk. A request is in flight until the scheduler finishes it, in any
 * order, late, short, or with an error; a write takes its bytes from memory when it finishes, and
 * some writes of a dead process reach the disk when its successor runs already.
 */
#ifndef SIM_IO_H
#define SIM_IO_H

#include "io/io.h"
#include "sim_disk.h"

struct sim_io;

struct sim_io_config {
	struct ckpt_inbox *inbox;
	unsigned owner; /* process */
	unsigned node;  /* machine: locks do not reach beyond it */
	int root;       /* the number that stands for the store's directory */
	uint32_t align;
	bool direct;
	bool refuse_direct; /* says so only when a file is opened */
	bool refuse_allocate;
	uint64_t stuck_ns; /* how long a stuck request takes */
};

struct sim_io *sim_io_new(
	struct sim *sim, struct sim_disk *disk, const struct sim_io_config *config);
struct ckpt_io *sim_io_of(struct sim_io *io);
/* Nothing may be in flight. */
void sim_io_free(struct sim_io *io);

/* Requests that could finish now, and when the next one could; UINT64_MAX: none is in flight. */
unsigned sim_io_ready(const struct sim_io *io);
uint64_t sim_io_next(const struct sim_io *io);
unsigned sim_io_in_flight(const struct sim_io *io);
/* Finishes the n-th that is ready. */
void sim_io_finish(struct sim_io *io, unsigned n);

/* The run is over: frees it with all that is in flight, and nothing of that happens. */
void sim_io_forget(struct sim_io *io);

/*
 * The process is dead: nothing comes back. What was in flight has happened, has not, or, for writes,
 * happens later. Its files are closed. The power cut that follows, if it was one, is the disk's.
 */
void sim_io_die(struct sim_io *io);

#endif
