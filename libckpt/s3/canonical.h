/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical form of a request, which SigV4 signs. */
#ifndef CKPT_S3_CANONICAL_H
#define CKPT_S3_CANONICAL_H

#include "base/buf.h"
#include "net/http_header.h"

#define CKPT_S3_PARAMETERS_MAX 32
#define CKPT_S3_HEADERS_MAX    48

/*
 * The parameters of a query ("b=1&a", in any encoding), sorted and encoded for SigV4, each with its '='. Send this
 * query, so that the sent and the signed one are equal. -EINVAL: a '%' without two hex digits; -E2BIG: more than
 * PARAMETERS_MAX; -ENOMEM.
 */
int ckpt_s3_canonical_query(const char *query, struct ckpt_buf *out);

/* Whether a header is signed. Those that a client library adds or a proxy may change are not. */
bool ckpt_s3_header_signed(const char *name);

/*
 * The signed headers as "name:value\n", sorted, with lower-case names and trimmed values, several values of a name
 * joined by commas; and their names as "name;name". -E2BIG: more than HEADERS_MAX; -ENOMEM.
 */
int ckpt_s3_canonical_headers(const struct ckpt_http_header *headers, size_t count,
	struct ckpt_buf *out, struct ckpt_buf *names);

#endif
