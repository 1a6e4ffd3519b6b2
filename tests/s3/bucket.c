/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/bucket_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3/bucket_xml.h"

/* Every operation: what a request of it looks like, and who does it. */
struct route {
	const char *name;
	const char *method;
	enum { OF_ALL, OF_BUCKET, OF_KEY } of;
	const char *query;  /* that it has; NULL: none of those that mean something */
	const char *query2; /* the same, or NULL */
	void (*run)(struct call *c);
};

static void create_bucket(struct call *c)
{
	const char *region = c->all->region;
	struct xml_list list = {0};

	if (s3_request_length(c->req)) {
		if (!xml_read(c->req->body, "", &list)) {
			xml_clear(&list);
			s3_fail(c, 400, "MalformedXML", "The XML you provided was not well-formed");
			return;
		}
		if (list.region[0])
			region = list.region;
	}
	if (c->bucket && strcmp(region, "us-east-1") != 0) {
		s3_fail(c, 409, "BucketAlreadyOwnedByYou", "The bucket is yours already.");
	} else if (!c->bucket) {
		c->bucket = buckets_add(c->all, c->req->bucket, region, c->now_ns);
		disk_bucket(c->all, c->bucket);
		s3_changed(c, "", "", 0, NULL, "");
	}
	xml_clear(&list);
	if (c->reply->status)
		return;
	c->reply->status = 200;
	struct text place = {0};
	text_addf(&place, "/%.255s", c->req->bucket);
	s3_reply_header(c->reply, "location", place.at);
	text_clear(&place);
}

static void head_bucket(struct call *c)
{
	c->reply->status = 200;
	s3_reply_header(c->reply, "x-amz-bucket-region", c->bucket->region);
}

static void locate_bucket(struct call *c)
{
	struct text xml = {0};
	bool first = strcmp(c->bucket->region, "us-east-1") == 0;

	text_addf(&xml, "<LocationConstraint>%s</LocationConstraint>",
		first ? "" : c->bucket->region);
	c->reply->status = 200;
	s3_reply_xml(c->reply, &xml);
}

static void delete_bucket(struct call *c)
{
	struct buckets *all = c->all;

	if (c->bucket->count) {
		s3_fail(c, 409, "BucketNotEmpty", "The bucket you tried to delete is not empty");
		return;
	}
	disk_no_bucket(all, c->bucket);
	for (size_t i = 0; i < c->bucket->upload_count; i++)
		upload_free(all, c->bucket->uploads[i]);
	size_t at = 0;
	while (all->at[at] != c->bucket)
		at++;
	free(c->bucket->name);
	free(c->bucket->region);
	free(c->bucket->objects);
	free(c->bucket->uploads);
	free(c->bucket);
	c->bucket = NULL;
	all->count--;
	memmove(&all->at[at], &all->at[at + 1], (all->count - at) * sizeof(*all->at));
	s3_changed(c, "", "", 0, NULL, "");
	c->reply->status = 204;
}

static const struct route routes[] = {
	{"ListBuckets", "GET", OF_ALL, NULL, NULL, s3_list_buckets},
	{"CreateBucket", "PUT", OF_BUCKET, NULL, NULL, create_bucket},
	{"HeadBucket", "HEAD", OF_BUCKET, NULL, NULL, head_bucket},
	{"DeleteBucket", "DELETE", OF_BUCKET, NULL, NULL, delete_bucket},
	{"GetBucketLocation", "GET", OF_BUCKET, "location", NULL, locate_bucket},
	{"ListMultipartUploads", "GET", OF_BUCKET, "uploads", NULL, s3_list_uploads},
	{"ListObjectsV2", "GET", OF_BUCKET, "list-type", NULL, s3_list_objects},
	{"DeleteObjects", "POST", OF_BUCKET, "delete", NULL, s3_delete_objects},
	{"CreateMultipartUpload", "POST", OF_KEY, "uploads", NULL, s3_create_upload},
	{"UploadPart", "PUT", OF_KEY, "uploadId", "partNumber", s3_upload_part},
	{"ListParts", "GET", OF_KEY, "uploadId", NULL, s3_list_parts},
	{"CompleteMultipartUpload", "POST", OF_KEY, "uploadId", NULL, s3_complete_upload},
	{"AbortMultipartUpload", "DELETE", OF_KEY, "uploadId", NULL, s3_abort_upload},
	{"PutObject", "PUT", OF_KEY, NULL, NULL, s3_put_object},
	{"GetObject", "GET", OF_KEY, NULL, NULL, s3_get_object},
	{"HeadObject", "HEAD", OF_KEY, NULL, NULL, s3_get_object},
	{"DeleteObject", "DELETE", OF_KEY, NULL, NULL, s3_delete_object},
};

/* Parameters that make another operation of a request than its method says. */
static const char *const meaningful[] = {"acl", "attributes", "cors", "delete", "legal-hold",
	"lifecycle", "list-type", "location", "partNumber", "policy", "retention", "select",
	"tagging", "torrent", "uploadId", "uploads", "versionId", "versioning", "versions"};

static bool plain(const struct s3_request *req)
{
	for (size_t i = 0; i < sizeof(meaningful) / sizeof(meaningful[0]); i++)
		if (pairs_get(&req->query, meaningful[i]))
			return false;
	return true;
}

static const struct route *route_of(const struct s3_request *req)
{
	int of = !req->bucket[0] ? OF_ALL : !req->key[0] ? OF_BUCKET : OF_KEY;

	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
		const struct route *r = &routes[i];
		if ((int)r->of != of || strcmp(r->method, req->method) != 0)
			continue;
		if (r->query ? !pairs_get(&req->query, r->query) : !plain(req))
			continue;
		if (!r->query2 || pairs_get(&req->query, r->query2))
			return r;
	}
	return NULL;
}

const char *s3_operation(const struct s3_request *req)
{
	const struct route *r = route_of(req);

	return r ? r->name : "?";
}

unsigned s3_part_number(const struct s3_request *req)
{
	const char *number = pairs_get(&req->query, "partNumber");

	return number ? (unsigned)strtoul(number, NULL, 10) : 0;
}

bool s3_capabilities_named(const char *name, struct s3_capabilities *ret_capabilities)
{
	struct s3_capabilities can = {0};

	if (strcmp(name, "radosgw") == 0) {
		can.complete = S3_CONDITIONS_IGNORED;
		can.checksums_ignored = can.order_ignored = can.all_parts = true;
		can.bare_match = can.gone_is_key = can.complete_untagged = true;
	} else if (strcmp(name, "swift") == 0) {
		can.put = S3_CONDITIONS_REFUSED;
		can.checksums_ignored = true;
	} else if (strcmp(name, "old") == 0) {
		can.put = can.complete = S3_CONDITIONS_IGNORED;
		can.checksums_ignored = can.etag_not_md5 = true;
	} else if (strcmp(name, "aws") != 0) {
		return false;
	}
	*ret_capabilities = can;
	return true;
}

void s3_fail(struct call *c, int status, const char *code, const char *message)
{
	s3_reply_refuse(c->reply, status, code, message, NULL);
}

const char *s3_query(const struct call *c, const char *name)
{
	return pairs_get(&c->req->query, name);
}

const char *s3_header(const struct call *c, const char *name)
{
	return pairs_get(&c->req->headers, name);
}

bool s3_number(struct call *c, const char *name, unsigned fallback, unsigned least, unsigned most,
	unsigned *ret_number)
{
	const char *words = s3_query(c, name);
	char *end = NULL;

	*ret_number = fallback;
	if (!words || !*words)
		return true;
	unsigned long number = strtoul(words, &end, 10);
	if (*words < '0' || *words > '9' || *end || number < least) {
		char why[160];
		(void)snprintf(
			why, sizeof(why), "Provided %s not an integer or within range", name);
		s3_fail(c, 400, "InvalidArgument", why);
		return false;
	}
	*ret_number = number > most ? most : (unsigned)number;
	return true;
}

void s3_etag_header(struct s3_reply *reply, const char *etag)
{
	char quoted[HASH_TEXT_MAX + 16];

	(void)snprintf(quoted, sizeof(quoted), "\"%s\"", etag);
	s3_reply_header(reply, "etag", quoted);
}

void s3_draw(struct call *c, char out[DRAWN_MAX])
{
	uint64_t first = prng_next(&c->all->prng), second = prng_next(&c->all->prng);

	(void)snprintf(out, DRAWN_MAX, "%016" PRIx64 "%016" PRIx64, first, second);
}

bool s3_room(struct call *c, uint64_t length)
{
	if (!c->all->limit || (c->req->body && c->req->body->hollow) ||
		c->all->held + length <= c->all->limit)
		return true;
	s3_fail(c, 403, "QuotaExceeded", "What this server may hold is used up.");
	return false;
}

void s3_changed(struct call *c, const char *key, const char *upload, unsigned part,
	const struct rope *content, const char *etag)
{
	if (!c->all->journal)
		return;
	struct journal_entry e = {.kind = JOURNAL_APPLIED,
		.time_ns = c->now_ns,
		.label = c->label,
		.operation = s3_operation(c->req),
		.bucket = c->req->bucket,
		.key = (char *)key,
		.upload = (char *)upload,
		.part = part,
		.etag = (char *)etag,
		.length = content ? content->length : 0};
	uint8_t sum[HASH_MAX];
	char hex[HASH_TEXT_MAX] = "";
	if (content && !c->all->journal->digests_off) {
		/* What a request has put whole was summed before, where there is a body to it. */
		bool of_body = c->req->body && content->count == 1 &&
			       content->pieces[0].bytes == c->req->body;
		if (of_body)
			memcpy(sum, s3_request_hash(c->req, HASH_SHA256), HASH_MAX);
		else
			hash_rope(HASH_SHA256, content, sum);
		hex_put(sum, HASH_MAX, hex);
	}
	e.digest = hex;
	journal_add(c->all->journal, &e);
}

static bool good_bucket_name(const char *name)
{
	size_t length = strlen(name);

	return length >= 3 && length <= 63 && name[0] != '-' && name[0] != '.' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == length;
}

/* The bucket is there, and here; false: it was refused. */
static bool find_bucket(struct call *c, const struct route *r)
{
	if (r->of == OF_ALL)
		return true;
	c->bucket = buckets_find(c->all, c->req->bucket);
	if (strlen(c->req->key) > 1024) {
		s3_fail(c, 400, "KeyTooLongError", "Your key is too long");
		return false;
	}
	if (r->run == create_bucket) {
		if (good_bucket_name(c->req->bucket))
			return true;
		s3_fail(c, 400, "InvalidBucketName", "The specified bucket is not valid.");
		return false;
	}
	if (!c->bucket) {
		s3_fail(c, 404, "NoSuchBucket", "The specified bucket does not exist");
		return false;
	}
	if (strcmp(c->bucket->region, c->all->region) == 0)
		return true;
	char more[256];
	(void)snprintf(more, sizeof(more), "<Endpoint>%.64s.s3.%s.amazonaws.com</Endpoint>",
		c->bucket->name, c->bucket->region);
	s3_reply_refuse(c->reply, 301, "PermanentRedirect",
		"The bucket you are attempting to access must be addressed using the specified "
		"endpoint.",
		more);
	s3_reply_header(c->reply, "x-amz-bucket-region", c->bucket->region);
	return false;
}

/* False: it was refused. */
static const struct route *admit(struct call *c)
{
	const struct route *r = NULL;

	if (c->all->guard && !guard_admits(c->all->guard, c->req, c->now_ns / 1000000000, c->reply))
		return NULL;
	r = route_of(c->req);
	if (!r) {
		s3_fail(c, 501, "NotImplemented",
			"A header or query you provided implies functionality that is not "
			"implemented.");
		return NULL;
	}
	return find_bucket(c, r) ? r : NULL;
}

static void end_reply(struct call *c)
{
	struct s3_reply *reply = c->reply;
	char words[TIME_TEXT_MAX];

	time_http(c->now_ns / 1000000000, words);
	s3_reply_header(reply, "date", words);
	(void)snprintf(words, sizeof(words), "%016" PRIX64, prng_next(&c->all->prng));
	s3_reply_header(reply, "x-amz-request-id", words);
	s3_reply_header(reply, "server", "s3d");
}

bool buckets_refuse_early(
	struct buckets *buckets, uint64_t now_ns, struct s3_request *req, struct s3_reply *reply)
{
	struct call c = {.all = buckets, .now_ns = now_ns, .req = req, .reply = reply};

	if (admit(&c))
		return false;
	end_reply(&c);
	return true;
}

void buckets_do(struct buckets *buckets, uint64_t now_ns, uint64_t label, struct s3_request *req,
	struct s3_reply *reply)
{
	struct call c = {
		.all = buckets, .now_ns = now_ns, .label = label, .req = req, .reply = reply};

	*reply = (struct s3_reply){0};
	const struct route *r = admit(&c);
	if (r && (!buckets->guard || guard_admits_body(buckets->guard, req, reply)))
		r->run(&c);
	end_reply(&c);
}
