/* SPDX-License-Identifier: Apache-2.0 */
/* A request in the one form in which SigV4 signs it. */
#ifndef CKPT_S3_CANONICAL_H
#define CKPT_S3_CANONICAL_H

#include "base/buf.h"
#include "net/http_header.h"

#define CKPT_S3_PARAMETERS_MAX 32
#define CKPT_S3_HEADERS_MAX    48

/*
 * The parameters of a query ("b=1&a", encoded somehow) in order, encoded as SigV4 wants it, each with
 * its '='. Send this one: what is sent is then what was signed. -EINVAL: a '%' that is no escape;
 * -E2BIG: more than PARAMETERS_MAX; -ENOMEM.
 */
int ckpt_s3_canonical_query(const char *query, struct ckpt_buf *out);

/* Whether a header is signed: not what a client library adds, or a proxy may change. */
bool ckpt_s3_header_signed(const char *name);

/*
 * "name:value\n" of all that are signed, in order, names in lower case, values trimmed and their blanks
 * folded, those of one name joined by commas; and "name;name". -E2BIG: more than HEADERS_MAX; -ENOMEM.
 */
int ckpt_s3_canonical_headers(const struct ckpt_http_header *headers, size_t count,
	struct ckpt_buf *out, struct ckpt_buf *names);

#endif
