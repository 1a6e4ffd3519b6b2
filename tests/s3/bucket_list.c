/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/bucket_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What ended a page: the next begins behind this name, or behind all names that begin with it. */
struct mark {
	bool prefix;
	const char *name;
};

struct page {
	struct call *c;
	struct text *xml;
	const char *prefix;
	const char *delimiter; /* "": none */
	bool url;
	unsigned most;
	unsigned count;
	bool more;
	struct mark last; /* `name` is the object's, or `common` */
	char *common;
};

static void add_element(struct text *xml, const char *name, const char *value, bool url)
{
	text_addf(xml, "<%s>", name);
	if (url)
		text_add_url(xml, value, true);
	else
		text_add_xml(xml, value);
	text_addf(xml, "</%s>", name);
}

static void add_time(struct text *xml, const char *name, uint64_t unix_ns)
{
	char words[TIME_TEXT_MAX];

	time_iso(unix_ns, words);
	text_addf(xml, "<%s>%s</%s>", name, words, name);
}

static const char *const names_of_sums[] = {[HASH_SHA256] = "SHA256",
	[HASH_CRC32] = "CRC32",
	[HASH_CRC32C] = "CRC32C",
	[HASH_CRC64NVME] = "CRC64NVME"};

static void add_sum(struct text *xml, const struct checksum *sum)
{
	if (sum->hash != HASH_COUNT)
		text_addf(xml, "<Checksum%s>%s</Checksum%s>", names_of_sums[sum->hash], sum->text,
			names_of_sums[sum->hash]);
}

/* Of an upload that was begun with one. */
static void add_algorithm(struct text *xml, const struct upload *upload)
{
	if (upload->hash != HASH_COUNT)
		text_addf(xml, "<ChecksumAlgorithm>%s</ChecksumAlgorithm>",
			names_of_sums[upload->hash]);
}

static unsigned page_most(const struct call *c)
{
	return c->all->can.page_most ? c->all->can.page_most : 1000;
}

/* The request's encoding-type; false: it was refused. */
static bool encoding(struct call *c, bool *ret_url)
{
	const char *type = s3_query(c, "encoding-type");

	*ret_url = type != NULL;
	if (!type || strcmp(type, "url") == 0)
		return true;
	s3_fail(c, 400, "InvalidArgument", "Invalid Encoding Method specified in Request");
	return false;
}

void s3_list_buckets(struct call *c)
{
	struct text xml = {0};

	text_add(&xml, "<ListAllMyBucketsResult><Owner><ID>s3d</ID></Owner><Buckets>");
	for (size_t i = 0; i < c->all->count; i++) {
		text_add(&xml, "<Bucket>");
		add_element(&xml, "Name", c->all->at[i]->name, false);
		add_time(&xml, "CreationDate", c->all->at[i]->made_ns);
		text_add(&xml, "</Bucket>");
	}
	text_add(&xml, "</Buckets></ListAllMyBucketsResult>");
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
}

/* The part of a key up to the delimiter behind the prefix; NULL: it has none. Freed with free(). */
static char *common_of(const struct page *p, const char *key)
{
	const char *end = *p->delimiter ? strstr(key + strlen(p->prefix), p->delimiter) : NULL;

	return end ? strndup(key, (size_t)(end - key) + strlen(p->delimiter)) : NULL;
}

static bool begins(const char *words, const char *with)
{
	return strncmp(words, with, strlen(with)) == 0;
}

/* Adds a name that is on this page, by `add`, or the prefix that it stands for. False: the page is full. */
static bool add_name(
	struct page *p, const char *key, const void *what, void (*add)(struct page *, const void *))
{
	char *common = common_of(p, key);

	if (common && p->common && strcmp(common, p->common) == 0) {
		free(common);
		return true;
	}
	if (p->count == p->most) {
		p->more = true;
		free(common);
		return false;
	}
	p->count++;
	if (common) {
		free(p->common);
		p->common = common;
		p->last = (struct mark){true, common};
		text_add(p->xml, "<CommonPrefixes>");
		add_element(p->xml, "Prefix", common, p->url);
		text_add(p->xml, "</CommonPrefixes>");
	} else {
		p->last = (struct mark){false, key};
		add(p, what);
	}
	return true;
}

static void add_object(struct page *p, const void *what)
{
	const struct object *object = what;

	text_add(p->xml, "<Contents>");
	add_element(p->xml, "Key", object->key, p->url);
	add_time(p->xml, "LastModified", object->modified_ns);
	text_addf(p->xml, "<ETag>&quot;%s&quot;</ETag><Size>%" PRIu64 "</Size>", object->etag,
		object->content.length);
	text_add(p->xml, "<StorageClass>STANDARD</StorageClass></Contents>");
}

/* A token is k or p, and the name in hex. */
static void add_token(struct text *xml, const struct mark *mark)
{
	text_add(xml, mark->prefix ? "p" : "k");
	for (const char *c = mark->name; *c; c++)
		text_addf(xml, "%02x", (unsigned char)*c);
}

static char *token_name(const char *token, bool *ret_prefix)
{
	struct text escaped = {0};
	size_t length = strlen(token);

	*ret_prefix = *token == 'p';
	if ((*token != 'k' && *token != 'p') || length % 2 == 0)
		return NULL;
	text_add(&escaped, "");
	for (size_t i = 1; i < length; i += 2)
		text_addf(&escaped, "%%%c%c", token[i], token[i + 1]);
	char *name = url_decode(escaped.at, escaped.length, false);
	text_clear(&escaped);
	return name;
}

/* The first object that the page may show; false: it was refused. */
static bool first_object(struct call *c, size_t *ret_at)
{
	const char *token = s3_query(c, "continuation-token");
	const char *after = s3_query(c, "start-after");
	bool there = false, prefix = false;

	*ret_at = 0;
	if (!token) {
		if (after)
			*ret_at = bucket_place(c->bucket, after, &there) + there;
		return true;
	}
	char *name = token_name(token, &prefix);
	if (!name) {
		s3_fail(c, 400, "InvalidArgument", "The continuation token provided is incorrect");
		return false;
	}
	*ret_at = bucket_place(c->bucket, name, &there) + there;
	while (prefix && *ret_at < c->bucket->count &&
		begins(c->bucket->objects[*ret_at]->key, name))
		++*ret_at;
	free(name);
	return true;
}

void s3_list_objects(struct call *c)
{
	struct text names = {0}, xml = {0};
	struct page p = {.c = c, .xml = &names};
	size_t at;

	p.prefix = s3_query(c, "prefix") ? s3_query(c, "prefix") : "";
	p.delimiter = s3_query(c, "delimiter") ? s3_query(c, "delimiter") : "";
	if (!encoding(c, &p.url) ||
		!s3_number(c, "max-keys", page_most(c), 0, page_most(c), &p.most) ||
		!first_object(c, &at))
		return;
	for (; p.most && at < c->bucket->count; at++) {
		const struct object *object = c->bucket->objects[at];
		if (begins(object->key, p.prefix) && !add_name(&p, object->key, object, add_object))
			break;
	}
	text_add(&xml, "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	add_element(&xml, "Name", c->bucket->name, false);
	add_element(&xml, "Prefix", p.prefix, p.url);
	if (*p.delimiter)
		add_element(&xml, "Delimiter", p.delimiter, p.url);
	if (s3_query(c, "start-after"))
		add_element(&xml, "StartAfter", s3_query(c, "start-after"), p.url);
	if (s3_query(c, "continuation-token"))
		add_element(&xml, "ContinuationToken", s3_query(c, "continuation-token"), false);
	if (p.more) {
		text_add(&xml, "<NextContinuationToken>");
		add_token(&xml, &p.last);
		text_add(&xml, "</NextContinuationToken>");
	}
	text_addf(&xml, "<KeyCount>%u</KeyCount><MaxKeys>%u</MaxKeys><IsTruncated>%s</IsTruncated>",
		p.count, p.most, p.more ? "true" : "false");
	text_add(&xml, p.url ? "<EncodingType>url</EncodingType>" : "");
	text_add(&xml, names.at ? names.at : "");
	text_add(&xml, "</ListBucketResult>");
	text_clear(&names);
	free(p.common);
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
}

static void add_upload(struct page *p, const void *what)
{
	const struct upload *upload = what;

	text_add(p->xml, "<Upload>");
	add_element(p->xml, "Key", upload->key, p->url);
	add_element(p->xml, "UploadId", upload->id, false);
	text_add(p->xml, "<StorageClass>STANDARD</StorageClass>");
	add_time(p->xml, "Initiated", upload->started_ns);
	add_algorithm(p->xml, upload);
	text_add(p->xml, "</Upload>");
}

/* Behind the markers: a key alone skips all uploads of it; with an id, those up to that one. */
static bool behind(const struct upload *upload, const char *key, const char *id)
{
	int order = strcmp(upload->key, key);

	if (!*key || order > 0)
		return true;
	return order == 0 && *id && strcmp(upload->id, id) > 0;
}

void s3_list_uploads(struct call *c)
{
	struct text names = {0}, xml = {0};
	struct page p = {.c = c, .xml = &names};
	const char *key = s3_query(c, "key-marker") ? s3_query(c, "key-marker") : "";
	const char *id = s3_query(c, "upload-id-marker") ? s3_query(c, "upload-id-marker") : "";
	const struct upload *last = NULL;

	p.prefix = s3_query(c, "prefix") ? s3_query(c, "prefix") : "";
	p.delimiter = s3_query(c, "delimiter") ? s3_query(c, "delimiter") : "";
	if (!encoding(c, &p.url) ||
		!s3_number(c, "max-uploads", page_most(c), 1, page_most(c), &p.most))
		return;
	size_t delimited = strlen(p.delimiter), marker = strlen(key);
	/* A marker that is a prefix of this listing: all that it stands for was shown. */
	bool marked = delimited && marker >= delimited &&
		      strcmp(key + marker - delimited, p.delimiter) == 0;
	for (size_t i = 0; i < c->bucket->upload_count; i++) {
		const struct upload *upload = c->bucket->uploads[i];
		if (!begins(upload->key, p.prefix) || !behind(upload, key, id) ||
			(marked && begins(upload->key, key)))
			continue;
		if (!add_name(&p, upload->key, upload, add_upload))
			break;
		last = upload;
	}
	text_add(&xml,
		"<ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	add_element(&xml, "Bucket", c->bucket->name, false);
	add_element(&xml, "KeyMarker", key, p.url);
	add_element(&xml, "UploadIdMarker", id, false);
	add_element(&xml, "Prefix", p.prefix, p.url);
	if (*p.delimiter)
		add_element(&xml, "Delimiter", p.delimiter, p.url);
	if (p.more && last) {
		add_element(&xml, "NextKeyMarker", p.last.prefix ? p.last.name : last->key, p.url);
		add_element(&xml, "NextUploadIdMarker", p.last.prefix ? "" : last->id, false);
	}
	text_addf(&xml, "<MaxUploads>%u</MaxUploads><IsTruncated>%s</IsTruncated>", p.most,
		p.more ? "true" : "false");
	text_add(&xml, p.url ? "<EncodingType>url</EncodingType>" : "");
	text_add(&xml, names.at ? names.at : "");
	text_add(&xml, "</ListMultipartUploadsResult>");
	text_clear(&names);
	free(p.common);
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
}

void s3_list_parts(struct call *c)
{
	const struct upload *upload = upload_find(c->bucket, s3_query(c, "uploadId"));
	struct text xml = {0}, parts = {0};
	unsigned most, after, count = 0, last = 0;
	bool more = false;

	if (!upload || strcmp(upload->key, c->req->key) != 0) {
		s3_fail(c, 404, c->all->can.gone_is_key ? "NoSuchKey" : "NoSuchUpload",
			"The specified upload does not exist.");
		return;
	}
	if (!s3_number(c, "max-parts", page_most(c), 1, page_most(c), &most) ||
		!s3_number(c, "part-number-marker", 0, 0, 1000000, &after))
		return;
	for (size_t i = 0; i < upload->count && !more; i++) {
		const struct part *part = &upload->parts[i];
		if (part->number <= after)
			continue;
		more = count == most;
		if (more)
			break;
		count++;
		last = part->number;
		text_addf(&parts, "<Part><PartNumber>%u</PartNumber>", part->number);
		add_time(&parts, "LastModified", part->modified_ns);
		text_addf(&parts, "<ETag>&quot;%s&quot;</ETag><Size>%zu</Size>", part->etag,
			part->bytes->length);
		add_sum(&parts, &part->sum);
		text_add(&parts, "</Part>");
	}
	text_add(&xml, "<ListPartsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	add_element(&xml, "Bucket", c->bucket->name, false);
	add_element(&xml, "Key", upload->key, false);
	add_element(&xml, "UploadId", upload->id, false);
	text_addf(&xml, "<PartNumberMarker>%u</PartNumberMarker>", after);
	if (more)
		text_addf(&xml, "<NextPartNumberMarker>%u</NextPartNumberMarker>", last);
	text_addf(&xml, "<MaxParts>%u</MaxParts><IsTruncated>%s</IsTruncated>", most,
		more ? "true" : "false");
	text_add(&xml, parts.at ? parts.at : "");
	add_algorithm(&xml, upload);
	text_add(&xml, "</ListPartsResult>");
	text_clear(&parts);
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
}
