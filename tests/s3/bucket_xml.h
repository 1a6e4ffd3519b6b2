/* SPDX-License-Identifier: Apache-2.0 */
/* The XML that clients send: the parts of a Complete, the names of a DeleteObjects, a bucket's region. */
#ifndef S3_BUCKET_XML_H
#define S3_BUCKET_XML_H

#include "s3/message.h"

struct xml_item {
	char *key; /* of <Object> */
	unsigned number;
	char *etag;     /* without quotes; "": none */
	enum hash hash; /* of the checksum that it has; HASH_COUNT: none */
	char *sum;
};

struct xml_list {
	char *root; /* the outermost element's name */
	struct xml_item *items;
	size_t count;
	bool quiet;
	char region[64];
};

/* Items are the elements called `item`. False: it is no XML, or one of them lacks what it is known by. */
bool xml_read(const struct bytes *body, const char *item, struct xml_list *ret_list);
void xml_clear(struct xml_list *list);

#endif
