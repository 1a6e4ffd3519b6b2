/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict reader of JSON in memory, for what grows with the job: the tensors of an index, the ranks
 * of a manifest, the header of a shard. The caller asks for what must come next, so nothing is built
 * in between: a text costs what is kept of it, while a tree of jansson's costs a multiple of the text
 * (an empty object of three bytes takes more than 200). Nothing recurs.
 *
 * The first failure is worded (CKPT_EFORMAT, with the offset) and stays: every later call returns
 * false or END, so a caller may look once, at the end.
 */
#ifndef CKPT_BASE_JSON_READER_H
#define CKPT_BASE_JSON_READER_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_READER_DEPTH 32 /* of a member that is not known and passed over */
#define CKPT_READER_OTHER (-1)
#define CKPT_READER_END   (-2)

struct ckpt_reader {
	const char *text;
	const char *at;
	const char *end;
	const char *file;       /* for messages */
	uint64_t base;          /* offset of `text` in it */
	struct ckpt_error *err; /* may be NULL */
	bool fresh;             /* behind the bracket that opens an object or array */
	bool failed;
};

/* A string as it is read: unescaped, never more than `size` bytes of it. */
struct ckpt_reader_string {
	char *out; /* NULL: only checked */
	size_t size;
	size_t length; /* of what was stored */
	bool cut;      /* it is longer than `size` */
	bool nul;      /* it holds \u0000, which is left out: JSON, but no text of C */
};

/* Reads `length` bytes at `text`, which lie at offset `base` of `file`. All are borrowed. */
void ckpt_reader_init(struct ckpt_reader *r, const char *text, size_t length, uint64_t base,
	const char *file, struct ckpt_error *err);

/* Fails the reader where it stands. Returns false. */
CKPT_PRINTF(2, 3) bool ckpt_reader_fail(struct ckpt_reader *r, const char *fmt, ...);

/* The next byte behind white space; 0 at the end. Takes nothing. */
char ckpt_reader_peek(struct ckpt_reader *r);
/* Takes `c`, which must come next. */
bool ckpt_reader_take(struct ckpt_reader *r, char c);

/* The start of an object ('{') or array ('['). */
bool ckpt_reader_open(struct ckpt_reader *r, char bracket);
/* Within an array: true if an item follows; false at its end, which is taken, and on failure. */
bool ckpt_reader_item(struct ckpt_reader *r);
/* Within an object: reads the next key and its colon; false at its end, which is taken. */
bool ckpt_reader_key(struct ckpt_reader *r, struct ckpt_reader_string *key);
/*
 * The same for known names, at most 32, NULL after the last: the number of the name, OTHER (the value
 * is to be skipped), or END. Sets its bit in *seen; a name that comes twice is a failure.
 */
int ckpt_reader_member(struct ckpt_reader *r, const char *const *names, uint32_t *seen);

/* A string, any, but with half a surrogate pair, which no UTF-8 can hold. Precondition: `string` holds out and size, and zeros. */
bool ckpt_reader_string(struct ckpt_reader *r, struct ckpt_reader_string *string);
/* Text of less than `size` bytes, NUL-terminated, into `out`. */
bool ckpt_reader_text(struct ckpt_reader *r, char *out, size_t size, size_t *ret_length);
/* A whole number from 0 to 2^63-1. */
bool ckpt_reader_u64(struct ckpt_reader *r, uint64_t *ret_value);
/* A number, true, false or null, which is passed over. */
bool ckpt_reader_scalar(struct ckpt_reader *r);

/* Passes over one value of any kind, in json_scan.c. */
bool ckpt_reader_walk(struct ckpt_reader *r, size_t values_max, unsigned depth_max);
bool ckpt_reader_skip(struct ckpt_reader *r);

/*
 * Valid UTF-8 JSON, without half surrogate pairs: at most `values_max` values and `depth_max` levels (64
 * at most). Takes no memory. CKPT_EFORMAT with the offset if not.
 */
int ckpt_json_scan(const char *text, size_t length, size_t values_max, unsigned depth_max,
	const char *file, struct ckpt_error *err);

/* Nothing but white space is left. Returns 0, or CKPT_EFORMAT when anything has failed. */
int ckpt_reader_finish(struct ckpt_reader *r);

#endif
