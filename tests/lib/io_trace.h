/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ckpt_io that writes down what it is asked, one line for each request when it is answered:
 *
 *	open a/manifest.json.tmp-* create
 *	write a/manifest.json.tmp-* 0+37
 *	rename a/manifest.json.tmp-* a/manifest.json = -17
 *
 * The random part of temporary names is a star; a result is shown only when it is negative.
 */
#ifndef CKPT_TESTS_IO_TRACE_H
#define CKPT_TESTS_IO_TRACE_H

#include "lib/io_tap.h"

struct io_trace {
	struct io_tap tap; /* &tap.io is what the code under test gets */
	char text[16384];
	size_t length;
	unsigned most_in_flight;
};

void io_trace_init(struct io_trace *trace, struct ckpt_io *inner);
void io_trace_clear(struct io_trace *trace);

#endif
