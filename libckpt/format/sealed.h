/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed JSON: how every small file of a store is written. One JSON object whose last member is
 * "digest", the XXH3-128 of all bytes before `,"digest"`; then "}\n". Reading takes no memory. Also the
 * bounded scan that any JSON passes first.
 */
#ifndef CKPT_FORMAT_SEALED_H
#define CKPT_FORMAT_SEALED_H

#include <ckpt/error.h>
#include "base/buf.h"
#include "base/json_reader.h"
#include "format/naming.h"

#define CKPT_SEALED_MAX   (UINT64_C(16) << 20)
#define CKPT_SEALED_DEPTH 32

/* Ends `out`, which holds an object without its closing brace, e.g. `{"a":1`. */
void ckpt_sealed_finish(struct ckpt_buf *out);

/* Checks the seal only. CKPT_EINTEGRITY: the digest does not fit; CKPT_EFORMAT: there is none. */
int ckpt_sealed_open(const void *data, size_t length, const char *file, struct ckpt_error *err);

/*
 * Checks the seal, the JSON, the version and the kind, in this order. CKPT_EVERSION with a sentence that
 * says what to install, for a greater major, whatever else is in the file; CKPT_EFORMAT if there is no
 * version or `kind` is not the object's "kind".
 */
int ckpt_sealed_check(const void *data, size_t length, const char *kind, const char *file,
	struct ckpt_error *err);

/*
 * Reads the members of a file that has passed: each of `names` (at most 32, NULL after the last) must be
 * there once. `read` takes the value of member `member` and returns false if it is not what it must be.
 */
typedef bool ckpt_sealed_read_fn(struct ckpt_reader *r, int member, void *user);
int ckpt_sealed_read(const void *data, size_t length, const char *const *names,
	ckpt_sealed_read_fn *read, void *user, const char *file, struct ckpt_error *err);

/* What every sealed file has beside its own members. */
#define CKPT_SEALED_FORMAT "format"
#define CKPT_SEALED_KIND   "kind"
#define CKPT_SEALED_DIGEST "digest"

/* Values that several kinds have. */
bool ckpt_sealed_number(struct ckpt_reader *r, uint64_t min, uint64_t max, uint64_t *ret);
bool ckpt_sealed_run_id(struct ckpt_reader *r, char *ret_run_id);
bool ckpt_sealed_attempt(struct ckpt_reader *r, char ret_attempt[CKPT_ATTEMPT_CHARS]);
/* A number of 64 bits, more than JSON's numbers carry everywhere, is written as an attempt is. */
bool ckpt_sealed_nonce(struct ckpt_reader *r, uint64_t *ret_nonce);
/* One printable line of less than `size` bytes: what people read. */
bool ckpt_sealed_line(struct ckpt_reader *r, char *ret_line, size_t size);

/* Refuses the version of a file that was read elsewhere, as ckpt_sealed_check() does. */
int ckpt_format_check(uint64_t major, uint64_t minor, const char *file, struct ckpt_error *err);

/* Words that `key` is missing or wrong. Returns CKPT_EFORMAT. */
int ckpt_sealed_lacks(const char *key, const char *file, struct ckpt_error *err);

#endif
