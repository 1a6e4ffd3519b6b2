/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed JSON, the form of every small file of a store: a JSON object whose last member is "digest", the XXH3-128 of
 * all bytes before `,"digest"`; then "}\n". Decoding allocates nothing. Also the bounded scan that all JSON passes
 * first.
 */
#ifndef CKPT_FORMAT_SEALED_H
#define CKPT_FORMAT_SEALED_H

#include <ckpt/error.h>
#include "base/buf.h"
#include "base/json_reader.h"
#include "format/naming.h"

#define CKPT_SEALED_MAX   (UINT64_C(16) << 20)
#define CKPT_SEALED_DEPTH 32

/* Completes `out`, an object without its closing brace, such as `{"a":1`. */
void ckpt_sealed_finish(struct ckpt_buf *out);

/* Checks the seal only. CKPT_EINTEGRITY: the digest differs; CKPT_EFORMAT: there is none. */
int ckpt_sealed_open(const void *data, size_t length, const char *file, struct ckpt_error *err);

/*
 * Checks the seal, the JSON, the version and the kind, in this order. CKPT_EVERSION for a greater major version,
 * whatever else the file contains; the message says what to install. CKPT_EFORMAT if there is no version or "kind" is
 * not `kind`.
 */
int ckpt_sealed_check(const void *data, size_t length, const char *kind, const char *file,
	struct ckpt_error *err);
/* The same of a kind of file of which major versions up to `major` are read. */
int ckpt_sealed_check_major(const void *data, size_t length, const char *kind, unsigned major,
	const char *file, struct ckpt_error *err);

/*
 * Reads the members of a checked file: each of `names` (at most 32, NULL after the last) must occur once. `read` takes
 * the value of member `member`, and returns false if it is invalid.
 */
typedef bool ckpt_sealed_read_fn(struct ckpt_reader *r, int member, void *user);
int ckpt_sealed_read(const void *data, size_t length, const char *const *names,
	ckpt_sealed_read_fn *read, void *user, const char *file, struct ckpt_error *err);

/* A member of all sealed files. */
#define CKPT_SEALED_FORMAT "format"
#define CKPT_SEALED_KIND   "kind"
#define CKPT_SEALED_DIGEST "digest"

/* Values that several kinds have. */
bool ckpt_sealed_number(struct ckpt_reader *r, uint64_t min, uint64_t max, uint64_t *ret);
bool ckpt_sealed_run_id(struct ckpt_reader *r, char *ret_run_id);
bool ckpt_sealed_attempt(struct ckpt_reader *r, char ret_attempt[CKPT_ATTEMPT_CHARS]);
/* A 64-bit number, which not all JSON parsers support, is written like an attempt. */
bool ckpt_sealed_nonce(struct ckpt_reader *r, uint64_t *ret_nonce);
/* One printable line of less than `size` bytes: a text for users. */
bool ckpt_sealed_line(struct ckpt_reader *r, char *ret_line, size_t size);

/* Refuses the version of another file, as ckpt_sealed_check() does. */
int ckpt_format_check(uint64_t major, uint64_t minor, const char *file, struct ckpt_error *err);

/* Sets the error that `key` is missing or invalid. Returns CKPT_EFORMAT. */
int ckpt_sealed_lacks(const char *key, const char *file, struct ckpt_error *err);

#endif
