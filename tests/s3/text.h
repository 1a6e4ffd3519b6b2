/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows, and the ways in which S3 writes names: percent-encoded, in XML, in JSON; and times. */
#ifndef S3_TEXT_H
#define S3_TEXT_H

#include "s3/rope.h"

struct text {
	char *at; /* ends with a NUL once something was added */
	size_t length;
	size_t room;
};

void text_add(struct text *text, const char *words);
void text_add_bytes(struct text *text, const void *data, size_t length);
void text_addf(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As SigV4 wants it: unreserved characters stay, and slashes if `slashes`; all else is %XX. */
void text_add_url(struct text *text, const char *words, bool slashes);
void text_add_xml(struct text *text, const char *words);
void text_add_json(struct text *text, const char *words); /* with its quotes */
void text_clear(struct text *text);

/* NULL: a broken escape, or a NUL in it. `plus`: a plus is a space, as in queries. Freed with free(). */
char *url_decode(const char *words, size_t length, bool plus);

#define TIME_TEXT_MAX 40
void time_basic(uint64_t unix_s, char out[TIME_TEXT_MAX]); /* 20130524T000000Z */
void time_iso(uint64_t unix_ns, char out[TIME_TEXT_MAX]);  /* 2013-05-24T00:00:00.000Z */
void time_http(uint64_t unix_s, char out[TIME_TEXT_MAX]);  /* Fri, 24 May 2013 00:00:00 GMT */
/* Of 20130524T000000Z; false: it is none. */
bool time_read_basic(const char *words, uint64_t *ret_unix_s);

#endif
