/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ckpt_io around another: sees every request before the other does and every answer before the
 * core does. What io_fault.h and io_trace.h are made of. Requests come from the core's thread.
 */
#ifndef CKPT_TESTS_IO_TAP_H
#define CKPT_TESTS_IO_TAP_H

#include "io/io.h"
#include "lib/rank_names.h"

#define IO_TAP_FILES 1024

struct io_tap;

struct io_tap_req {
	struct ckpt_io_req req; /* the copy that the inner io gets; `before` may change it */
	struct ckpt_io_req *outer;
	struct io_tap *tap;
	const char *path; /* of the file that it is about */
	char *closing;    /* that path, of a CLOSE */
	int verdict;      /* of the tap's user */
	bool keep;        /* its answer is held */
	bool done;        /* there it is */
	struct io_tap_req *next;
};

enum io_tap_way {
	IO_TAP_PASS = 0, /* to the inner io */
	IO_TAP_ANSWER,   /* req.result is the answer; the inner io hears nothing of it */
	IO_TAP_HOLD,     /* to the inner io when io_tap_release() is called */
	IO_TAP_KEEP,     /* to the inner io; the answer waits for io_tap_release() */
};

struct io_tap {
	struct ckpt_io io;
	struct ckpt_io *inner;
	enum io_tap_way (*before)(struct io_tap *tap, struct io_tap_req *req);
	void (*after)(struct io_tap *tap, struct io_tap_req *req);
	struct io_tap_req *held;
	unsigned in_flight;
	unsigned open_files;
	char *paths[IO_TAP_FILES]; /* by descriptor; NULL: not open */
	struct rank_names names;   /* of the files of ranks, each of which is used once */
};

/* Sets up `tap` around `inner`, which is closed with it. */
void io_tap_init(struct io_tap *tap, struct ckpt_io *inner);
/* Lets go what was held. Returns how many. */
unsigned io_tap_release(struct io_tap *tap);
/* "write", "open" and so on. */
const char *io_op_name(enum ckpt_io_op op);

#endif
