/* SPDX-License-Identifier: Apache-2.0 */
/* Dates of S3, in the proleptic Gregorian calendar and UTC, independent of the locale. */
#ifndef CKPT_S3_DATE_H
#define CKPT_S3_DATE_H

#include "base/compiler.h"

#define CKPT_S3_DATE_SIZE 17                     /* "20130524T000000Z" with its NUL */
#define CKPT_S3_TIME_MAX  UINT64_C(253402300799) /* 9999-12-31T23:59:59Z */

/* x-amz-date of SigV4; its first eight characters are the day. `unix_s` <= CKPT_S3_TIME_MAX. */
void ckpt_s3_date(uint64_t unix_s, char ret_date[CKPT_S3_DATE_SIZE]);

/* An HTTP date (RFC 9110 5.6.7) in any of its three forms, not before 1970. */
bool ckpt_s3_date_http(const char *text, uint64_t *ret_unix_s);
/* RFC 3339, as in XML and credentials: 2013-05-24T00:00:00Z, optionally with a fraction or an offset. */
bool ckpt_s3_date_iso(const char *text, uint64_t *ret_unix_s);

#endif
