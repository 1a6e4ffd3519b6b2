/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that are shared and never change: what an object holds, what a part was, what an answer sends.
 * A rope strings pieces of them together, so that nothing large is copied. Running out of memory ends
 * the program: nothing here is the product.
 */
#ifndef S3_ROPE_H
#define S3_ROPE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
	_Atomic unsigned holders;
	bool hollow; /* there are none: all of them read as zero */
	size_t length;
	uint8_t data[];
};

/* To be filled by whoever asked, before anybody else sees it. */
struct bytes *bytes_new(size_t length);
struct bytes *bytes_copy(const void *data, size_t length);
/* As many zeroes, without the memory. */
struct bytes *bytes_hollow(size_t length);
struct bytes *bytes_hold(struct bytes *bytes); /* NULL is ignored, here and below */
void bytes_let_go(struct bytes *bytes);

struct rope_piece {
	struct bytes *bytes;
	size_t offset;
	size_t length;
};

struct rope {
	struct rope_piece *pieces;
	size_t count;
	uint64_t length;
};

/* Holds `bytes` for as long as the rope is. */
void rope_add(struct rope *rope, struct bytes *bytes, size_t offset, size_t length);
void rope_add_copy(struct rope *rope, const void *data, size_t length);
/* Adds `length` bytes of `from` beginning at `offset`, which it must have. */
void rope_add_part(struct rope *rope, const struct rope *from, uint64_t offset, uint64_t length);
/* Copies at most `length` bytes from `offset`; how many there were. */
size_t rope_read(const struct rope *rope, uint64_t offset, void *data, size_t length);
void rope_clear(struct rope *rope);

/* Zeroed; ends the program rather than failing. Freed with free(). */
void *need(size_t size);
void *need_again(void *ptr, size_t count, size_t size);
char *need_text(const char *text);

#endif
