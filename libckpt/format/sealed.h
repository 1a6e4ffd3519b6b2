/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed JSON: how every small file of a store is written. One JSON object whose last member is
 * "digest", the XXH3-128 of all bytes before `,"digest"`; then "}\n". Also the bounded scan that any
 * JSON passes before it is parsed.
 */
#ifndef CKPT_FORMAT_SEALED_H
#define CKPT_FORMAT_SEALED_H

#include <jansson.h>
#include <ckpt/error.h>
#include "base/buf.h"

#define CKPT_SEALED_MAX (UINT64_C(16) << 20)

/* Ends `out`, which holds an object without its closing brace, e.g. `{"a":1`. */
void ckpt_sealed_finish(struct ckpt_buf *out);

/* Checks the seal only. CKPT_EINTEGRITY, CKPT_EFORMAT as below. */
int ckpt_sealed_open(const void *data, size_t length, const char *file, struct ckpt_error *err);

/*
 * Checks the seal, scans, parses. For files of a fixed few members: what grows with the job is read
 * with format/json_reader.h. The object's reference is the caller's. CKPT_EINTEGRITY: the digest
 * does not fit; CKPT_EFORMAT: there is none, or no JSON object; -ENOMEM.
 */
int ckpt_sealed_parse(const void *data, size_t length, const char *file, struct ckpt_error *err,
	json_t **ret_object);

/*
 * Reads "format":[major,minor] and refuses a greater major with CKPT_EVERSION and a sentence that says
 * what to install; CKPT_EFORMAT if it is missing or `kind` is not the object's "kind".
 */
int ckpt_sealed_check(
	const json_t *object, const char *kind, const char *file, struct ckpt_error *err);

/* The same for a version that was read elsewhere. */
int ckpt_format_check(uint64_t major, uint64_t minor, const char *file, struct ckpt_error *err);

/* Words that `key` is missing or wrong. Returns CKPT_EFORMAT. */
int ckpt_sealed_lacks(const char *key, const char *file, struct ckpt_error *err);

/*
 * Valid UTF-8 JSON, without half surrogate pairs: at most `values_max` values and `depth_max` levels (64
 * at most), counted before any memory is taken. CKPT_EFORMAT with the offset if not.
 */
int ckpt_json_scan(const char *text, size_t length, size_t values_max, unsigned depth_max,
	const char *file, struct ckpt_error *err);

/* Members, type-checked. False: missing or of another type; *ret is untouched. */
bool ckpt_json_u64(const json_t *object, const char *key, uint64_t *ret);
bool ckpt_json_text(const json_t *object, const char *key, const char **ret);
/* Copies a text of less than `size` bytes. */
bool ckpt_json_copy(const json_t *object, const char *key, char *ret_text, size_t size);

#endif
