/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict JSON parser for text in memory, for files that grow with the job: the tensors of an index, the ranks of a
 * manifest, the header of a shard. The caller asks for the expected next item, so no tree is built: jansson's tree
 * would
 * use a multiple of the text (more than 200 bytes for an empty object). No recursion.
 *
 * The first error is kept (CKPT_EFORMAT, with the offset): every later call returns false or END, so the caller may
 * check
 * once, at the end.
 */
#ifndef CKPT_BASE_JSON_READER_H
#define CKPT_BASE_JSON_READER_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_READER_DEPTH 32 /* most levels of an unknown member that is skipped */
#define CKPT_READER_OTHER (-1)
#define CKPT_READER_END   (-2)

struct ckpt_reader {
	const char *text;
	const char *at;
	const char *end;
	const char *file;       /* for messages */
	uint64_t base;          /* offset of `text` in it */
	struct ckpt_error *err; /* may be NULL */
	bool fresh;             /* directly after the bracket that opens an object or array */
	bool failed;
};

/* A string being read: unescaped, at most `size` bytes of it are stored. */
struct ckpt_reader_string {
	char *out; /* NULL: only check */
	size_t size;
	size_t length; /* number of stored bytes */
	bool cut;      /* it is longer than `size` */
	/* It contains \u0000, which is left out, because a C string cannot contain it. */
	bool nul;
};

/* Parses `length` bytes at `text`, which are at offset `base` of `file`. All are borrowed. */
void ckpt_reader_init(struct ckpt_reader *r, const char *text, size_t length, uint64_t base,
	const char *file, struct ckpt_error *err);

/* Sets an error at the current position. Returns false. */
CKPT_PRINTF(2, 3) bool ckpt_reader_fail(struct ckpt_reader *r, const char *fmt, ...);

/* The next character after white space, without taking it; 0 at the end. */
char ckpt_reader_peek(struct ckpt_reader *r);
/* Takes `c`, which must be next. */
bool ckpt_reader_take(struct ckpt_reader *r, char c);

/* The start of an object ('{') or array ('['). */
bool ckpt_reader_open(struct ckpt_reader *r, char bracket);
/* In an array: true if an item follows; false at its end, which is taken, and on failure. */
bool ckpt_reader_item(struct ckpt_reader *r);
/* In an object: reads the next key and its colon; false at its end, which is taken. */
bool ckpt_reader_key(struct ckpt_reader *r, struct ckpt_reader_string *key);
/*
 * The same for known names, at most 32, NULL after the last: returns the index of the name, OTHER (skip the value), or
 * END. Sets its bit in *seen; a name that occurs twice is an error.
 */
int ckpt_reader_member(struct ckpt_reader *r, const char *const *names, uint32_t *seen);

/* Any string without unpaired surrogates. `string` has out and size set, and is zero otherwise. */
bool ckpt_reader_string(struct ckpt_reader *r, struct ckpt_reader_string *string);
/* Text of less than `size` bytes, NUL-terminated, into `out`. */
bool ckpt_reader_text(struct ckpt_reader *r, char *out, size_t size, size_t *ret_length);
/* An integer from 0 to 2^63-1. */
bool ckpt_reader_u64(struct ckpt_reader *r, uint64_t *ret_value);
/* Skips a number, true, false or null. */
bool ckpt_reader_scalar(struct ckpt_reader *r);

/* Skips one value of any kind; in json_scan.c. */
bool ckpt_reader_walk(struct ckpt_reader *r, size_t values_max, unsigned depth_max);
bool ckpt_reader_skip(struct ckpt_reader *r);

/*
 * Whether the text is valid UTF-8 JSON without unpaired surrogates, with at most `values_max` values and `depth_max`
 * levels (64 at most). Allocates nothing. Else CKPT_EFORMAT with the offset.
 */
int ckpt_json_scan(const char *text, size_t length, size_t values_max, unsigned depth_max,
	const char *file, struct ckpt_error *err);

/* Only white space may be left. Returns 0, or CKPT_EFORMAT if anything has failed. */
int ckpt_reader_finish(struct ckpt_reader *r);

#endif
