/* SPDX-License-Identifier: Apache-2.0 */
/* What servers answer is read as they mean it; what is no answer is refused, and costs little. */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "s3/body_xml.h"
#include "s3/response_list.h"
#include "s3/response_session.h"
#include "s3/xml.h"

#define ASKED "ListParts of s3://b/k"
#define HEAD  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define NS    " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

static const char upload[] = HEAD "<InitiateMultipartUploadResult" NS "><Bucket>b</Bucket>"
				  "<Key>k</Key><UploadId>VXBsb2FkIElE&amp;~/+=</UploadId>"
				  "</InitiateMultipartUploadResult>";
static const char parts[] =
	HEAD "<ListPartsResult" NS "><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId>"
	     "<Initiator><ID>arn</ID></Initiator><StorageClass>STANDARD</StorageClass>"
	     "<PartNumberMarker>1</PartNumberMarker><NextPartNumberMarker>3</NextPartNumberMarker>"
	     "<MaxParts>2</MaxParts><IsTruncated>true</IsTruncated>"
	     "<Part><PartNumber>2</PartNumber><LastModified>2010-11-10T20:48:34.000Z</LastModified>"
	     "<ETag>\"7778aef83f66abc1fa1e8477f296d394\"</ETag><Size>10485760</Size>"
	     "<ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part>"
	     "<Part><PartNumber>3</PartNumber><ETag>&quot;aaaa&quot;</ETag><Size>0</Size></Part>"
	     "</ListPartsResult>";
static const char done[] =
	HEAD "   \n \n<CompleteMultipartUploadResult" NS "><Location>http://b/k</Location>"
	     "<Bucket>b</Bucket><Key>k</Key><ETag>\"3858f62230ac3c915f300c664312c11f-9\"</ETag>"
	     "<ChecksumCRC32C>4waSgw==-9</ChecksumCRC32C></CompleteMultipartUploadResult>";
static const char objects[] =
	HEAD "<ListBucketResult" NS "><Name>b</Name><Prefix>a/</Prefix><KeyCount>3</KeyCount>"
	     "<MaxKeys>3</MaxKeys><Delimiter>/</Delimiter><IsTruncated>true</IsTruncated>"
	     "<Contents><Key>a/x+y%2Bz%25%C3%A4%0A</Key><LastModified>2009-10-12T17:50:30.000Z</"
	     "LastModified>"
	     "<ETag>\"fba9dede5f27731c9771645a39863328\"</ETag><Size>434234</Size>"
	     "<Owner><ID>1</ID><DisplayName>d</DisplayName></Owner></Contents>"
	     "<Contents><Key>a/z</Key><Size>9223372036854775807</Size></Contents>"
	     "<CommonPrefixes><Prefix>a/gens/</Prefix></CommonPrefixes>"
	     "<NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</"
	     "NextContinuationToken><EncodingType>url</EncodingType></ListBucketResult>";
static const char uploads[] = HEAD
	"<ListMultipartUploadsResult" NS "><Bucket>b</Bucket><KeyMarker/><UploadIdMarker/>"
	"<NextKeyMarker>my%2Fmovie</NextKeyMarker><NextUploadIdMarker>Y</NextUploadIdMarker>"
	"<EncodingType>url</EncodingType><MaxUploads>1</MaxUploads><IsTruncated>true</IsTruncated>"
	"<Upload><Key>my%2Fdivisor</Key><UploadId>X</UploadId>"
	"<Initiated>2010-11-10T20:48:33.000Z</Initiated></Upload></ListMultipartUploadsResult>";
static const char deletes[] =
	HEAD "<DeleteResult" NS "><Deleted><Key>a</Key></Deleted><Error><Key>b</Key>"
	     "<Code>AccessDenied</Code><Message>Access Denied</Message></Error></DeleteResult>";
static const char session[] =
	"<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
	"<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>hunter2token</SessionToken>"
	"<SecretAccessKey>hunter2secret</SecretAccessKey>"
	"<Expiration>2014-10-24T23:00:23Z</Expiration><AccessKeyId>ASgeIAIOSFODNN7EXAMPLE"
	"</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>"
	"</AssumeRoleWithWebIdentityResponse>";
static const char refusal[] =
	HEAD "<Error><Code>PermanentRedirect</Code><Message>Use the endpoint.</Message>"
	     "<Endpoint>b.s3.eu-west-1.amazonaws.com</Endpoint><Bucket>b</Bucket>"
	     "<Region>eu-west-1</Region><RequestId>4442587FB7D0A2F9</RequestId><HostId>h/+=</"
	     "HostId></Error>";

/* All that there is, read by whichever is asked, and cleared again. */
enum kind { UPLOAD, PARTS, DONE, OBJECTS, UPLOADS, DELETES, SESSION, ERROR, KINDS };

static int read_any(enum kind kind, const char *text, size_t length, struct ckpt_error *err)
{
	static char upload_id[CKPT_S3_UPLOAD_ID_MAX + 1];
	struct ckpt_s3_part_list part_list = {0};
	struct ckpt_s3_completed completed;
	struct ckpt_s3_object_list object_list = {0};
	struct ckpt_s3_upload_list upload_list = {0};
	struct ckpt_s3_delete_list delete_list = {0};
	struct ckpt_s3_session keys = {.token = NULL};
	struct ckpt_s3_error_reply error;
	int r = 0;

	if (kind == UPLOAD)
		r = ckpt_s3_upload_parse(text, length, ASKED, err, upload_id);
	if (kind == PARTS)
		r = ckpt_s3_part_list_parse(text, length, ASKED, err, &part_list);
	if (kind == DONE)
		r = ckpt_s3_completed_parse(text, length, ASKED, err, &completed);
	if (kind == OBJECTS)
		r = ckpt_s3_object_list_parse(text, length, ASKED, err, &object_list);
	if (kind == UPLOADS)
		r = ckpt_s3_upload_list_parse(text, length, ASKED, err, &upload_list);
	if (kind == DELETES)
		r = ckpt_s3_delete_list_parse(text, length, ASKED, err, &delete_list);
	if (kind == SESSION)
		r = ckpt_s3_session_parse(text, length, ASKED, err, &keys);
	if (kind == ERROR && !ckpt_s3_error_parse(text, length, &error))
		r = CKPT_EFORMAT;
	ckpt_s3_part_list_clear(&part_list);
	ckpt_s3_object_list_clear(&object_list);
	ckpt_s3_upload_list_clear(&upload_list);
	ckpt_s3_delete_list_clear(&delete_list);
	ckpt_s3_session_clear(&keys);
	return r;
}

static const struct {
	const char *text;
	size_t length;
} good[KINDS] = {
	{upload, sizeof(upload) - 1},
	{parts, sizeof(parts) - 1},
	{done, sizeof(done) - 1},
	{objects, sizeof(objects) - 1},
	{uploads, sizeof(uploads) - 1},
	{deletes, sizeof(deletes) - 1},
	{session, sizeof(session) - 1},
	{refusal, sizeof(refusal) - 1},
};

static void test_uploads_in_parts(void **state)
{
	char upload_id[CKPT_S3_UPLOAD_ID_MAX + 1];
	struct ckpt_s3_part_list list;
	struct ckpt_s3_completed completed;

	(void)state;
	assert_int_equal(
		ckpt_s3_upload_parse(upload, sizeof(upload) - 1, ASKED, NULL, upload_id), 0);
	assert_string_equal(upload_id, "VXBsb2FkIElE&~/+=");
	assert_int_equal(ckpt_s3_part_list_parse(parts, sizeof(parts) - 1, ASKED, NULL, &list), 0);
	assert_true(list.count == 2 && list.more && list.next_marker == 3);
	assert_true(list.parts[0].number == 2 && list.parts[0].size == 10485760);
	assert_true(list.parts[0].has_crc32c && list.parts[0].crc32c == 0xe3069283);
	assert_string_equal(list.parts[0].etag, "\"7778aef83f66abc1fa1e8477f296d394\"");
	assert_true(list.parts[1].number == 3 && !list.parts[1].has_crc32c);
	assert_string_equal(list.parts[1].etag, "\"aaaa\"");
	ckpt_s3_part_list_clear(&list);
	assert_int_equal(
		ckpt_s3_completed_parse(done, sizeof(done) - 1, ASKED, NULL, &completed), 0);
	assert_string_equal(completed.etag, "\"3858f62230ac3c915f300c664312c11f-9\"");
	assert_true(completed.sum == CKPT_S3_SUM_PARTS && completed.crc32c == 0xe3069283);
}

static void test_lists(void **state)
{
	struct ckpt_s3_object_list list;
	struct ckpt_s3_upload_list under_way;
	struct ckpt_s3_delete_list deleted;

	(void)state;
	assert_int_equal(
		ckpt_s3_object_list_parse(objects, sizeof(objects) - 1, ASKED, NULL, &list), 0);
	assert_int_equal(list.count, 3);
	assert_string_equal(list.objects[0].key, "a/x y+z%\xc3\xa4\n");
	assert_true(list.objects[0].size == 434234 && list.objects[0].modified_s == 1255369830);
	assert_true(list.objects[1].size == INT64_MAX && !list.objects[1].prefix);
	assert_string_equal(list.objects[2].key, "a/gens/");
	assert_true(list.objects[2].prefix);
	assert_string_equal(list.next_token, "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=");
	ckpt_s3_object_list_clear(&list);

	assert_int_equal(
		ckpt_s3_upload_list_parse(uploads, sizeof(uploads) - 1, ASKED, NULL, &under_way),
		0);
	assert_true(under_way.count == 1 && under_way.more);
	assert_string_equal(under_way.uploads[0].key, "my/divisor");
	assert_string_equal(under_way.uploads[0].upload_id, "X");
	assert_int_equal(under_way.uploads[0].initiated_s, 1289422113);
	assert_string_equal(under_way.next_key, "my/movie");
	assert_string_equal(under_way.next_upload_id, "Y");
	ckpt_s3_upload_list_clear(&under_way);

	assert_int_equal(
		ckpt_s3_delete_list_parse(deletes, sizeof(deletes) - 1, ASKED, NULL, &deleted), 0);
	assert_int_equal(deleted.count, 1);
	assert_string_equal(deleted.failed[0].key, "b");
	assert_string_equal(deleted.failed[0].code, "AccessDenied");
	ckpt_s3_delete_list_clear(&deleted);
	/* What a request was signed with is told no more here than in an error of its own. */
	static const char quoting[] = "<DeleteResult><Error><Key>k</Key><Code>c</Code><Message>"
				      "x Signature=beef</Message></Error></DeleteResult>";
	assert_int_equal(
		ckpt_s3_delete_list_parse(quoting, sizeof(quoting) - 1, ASKED, NULL, &deleted), 0);
	assert_int_equal(deleted.count, 1);
	assert_string_equal(deleted.failed[0].key, "k");
	assert_string_equal(deleted.failed[0].message, "");
	ckpt_s3_delete_list_clear(&deleted);
}

static void test_session(void **state)
{
	struct ckpt_s3_session keys;

	(void)state;
	assert_int_equal(
		ckpt_s3_session_parse(session, sizeof(session) - 1, ASKED, NULL, &keys), 0);
	assert_string_equal(keys.access, "ASgeIAIOSFODNN7EXAMPLE");
	assert_string_equal(keys.secret, "hunter2secret");
	assert_string_equal(keys.token, "hunter2token");
	assert_int_equal(keys.expires_s, 1414191623);
	ckpt_s3_session_clear(&keys);
	for (size_t i = 0; i < sizeof(keys); i++)
		assert_int_equal(((const char *)&keys)[i], 0);
}

static void test_errors(void **state)
{
	static const char sts[] = "<ErrorResponse xmlns=\"x\"><Error><Type>Sender</Type>"
				  "<Code>ExpiredTokenException</Code><Message>old</Message></Error>"
				  "<RequestId>r</RequestId></ErrorResponse>";
	static const char cut[] = "<Error><Code>SlowDown</Code><Message>Please";
	static const char *const none[] = {"", " ", "<html><body>Error</body></html>", "Error",
		"<Errors/>", "{\"Error\":1}", "<x:ListBucketResult/>", "\xff\xfe<"};
	static const char *const quoting[] = {
		"<Error><Code>a</Code><Message>AWS4-HMAC-SHA256 Credential=x</Message></Error>",
		"<Error><Code>a</Code><Message>got Authorization: hunter2</Message></Error>",
		"<Error><Code>a</Code><Message>X-Amz-Security-Token is hunter2</Message></Error>"};
	struct ckpt_s3_error_reply reply;

	(void)state;
	assert_true(ckpt_s3_error_parse(refusal, sizeof(refusal) - 1, &reply));
	assert_string_equal(reply.code, "PermanentRedirect");
	assert_string_equal(reply.message, "Use the endpoint.");
	assert_string_equal(reply.region, "eu-west-1");
	assert_string_equal(reply.endpoint, "b.s3.eu-west-1.amazonaws.com");
	assert_string_equal(reply.bucket, "b");
	assert_string_equal(reply.request_id, "4442587FB7D0A2F9");
	assert_string_equal(reply.host_id, "h/+=");
	assert_true(ckpt_s3_error_parse(sts, sizeof(sts) - 1, &reply));
	assert_string_equal(reply.code, "ExpiredTokenException");
	assert_string_equal(reply.request_id, "r");
	assert_true(ckpt_s3_error_parse(cut, sizeof(cut) - 1, &reply));
	assert_string_equal(reply.code, "SlowDown");
	for (size_t i = 0; i < COUNT(none); i++)
		assert_false(ckpt_s3_error_parse(none[i], strlen(none[i]), &reply));
	for (size_t i = 0; i < COUNT(quoting); i++) {
		assert_true(ckpt_s3_error_parse(quoting[i], strlen(quoting[i]), &reply));
		assert_string_equal(reply.code, "a");
		assert_string_equal(reply.message, "");
	}
}

/* A message of any length and bytes becomes one line. */
static void test_error_of_much_text(void **state)
{
	struct ckpt_s3_error_reply reply;
	struct ckpt_buf text = {0};

	(void)state;
	ckpt_buf_puts(&text, "<Error><Code>A\nB\x7f</Code><Message>");
	for (unsigned i = 0; i < 3000; i++)
		ckpt_buf_puts(&text, "\xf0\x9f\x98\x80");
	ckpt_buf_puts(&text, "</Message></Error>");
	assert_true(ckpt_s3_error_parse(text.data, text.len, &reply));
	assert_string_equal(reply.code, "A?B?");
	assert_true(ckpt_utf8_is_line(reply.message));
	assert_int_equal(strlen(reply.message), 508);
	ckpt_buf_free(&text);
}

static void refused(enum kind kind, const char *text, const char *word)
{
	struct ckpt_error err = {0};
	int r = read_any(kind, text, strlen(text), &err);

	if (r != CKPT_EFORMAT || !strstr(err.message, word))
		fail_msg("%s: %d: %s", text, r, err.message);
	assert_non_null(strstr(err.message, ASKED));
	assert_string_equal(err.tier, "remote");
	assert_null(strstr(err.message, "hunter2"));
}

static void test_refused(void **state)
{
	(void)state;
	refused(UPLOAD, "", "no element found");
	refused(UPLOAD, "  \n", "no element found");
	refused(UPLOAD, "<html></html>", "is not InitiateMultipartUploadResult");
	refused(UPLOAD, "<InitiateMultipartUploadResult/>", "no UploadId");
	refused(UPLOAD,
		"<InitiateMultipartUploadResult><UploadId>a\nb</UploadId>"
		"</InitiateMultipartUploadResult>",
		"control characters");
	refused(DONE, "<Error><Code>InternalError</Code></Error>",
		"is not CompleteMultipartUploadResult");
	refused(DONE, "<CompleteMultipartUploadResult/>", "no ETag");
	refused(PARTS, "<ListPartsResult><Part/></ListPartsResult>", "number");
	refused(PARTS,
		"<ListPartsResult><Part><PartNumber>0</PartNumber><ETag>e</ETag></Part></"
		"ListPartsResult>",
		"number");
	refused(PARTS,
		"<ListPartsResult><Part><PartNumber>10001</PartNumber></Part></ListPartsResult>",
		"greater than 10000");
	refused(PARTS,
		"<ListPartsResult><Part><PartNumber>-1</PartNumber></Part></ListPartsResult>",
		"number");
	refused(PARTS,
		"<ListPartsResult><Part><Size>99999999999999999999</Size></Part></ListPartsResult>",
		"greater than");
	refused(PARTS,
		"<ListPartsResult><Part><PartNumber>2</PartNumber><ETag>e</ETag></Part>"
		"<Part><PartNumber>2</PartNumber><ETag>e</ETag></Part></ListPartsResult>",
		"2 comes after 2");
	refused(PARTS, "<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>",
		"no next marker");
	refused(PARTS,
		"<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>1"
		"</NextPartNumberMarker><Part><PartNumber>2</PartNumber><ETag>e</ETag></Part>"
		"</ListPartsResult>",
		"no next marker");
	refused(PARTS, "<ListPartsResult><IsTruncated>1</IsTruncated></ListPartsResult>",
		"neither true nor false");
	refused(OBJECTS, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
		"no continuation token");
	refused(OBJECTS, "<ListBucketResult><Contents/></ListBucketResult>", "no key");
	refused(OBJECTS, "<ListBucketResult><Contents><Key/></Contents></ListBucketResult>",
		"empty");
	refused(OBJECTS,
		"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%00b</Key></"
		"Contents></ListBucketResult>",
		"NUL");
	refused(OBJECTS,
		"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%2</Key></"
		"Contents></ListBucketResult>",
		"not encoded");
	refused(UPLOADS,
		"<ListMultipartUploadsResult><Upload><Key>k</Key></Upload>"
		"</ListMultipartUploadsResult>",
		"no UploadId");
	refused(UPLOADS,
		"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
		"</ListMultipartUploadsResult>",
		"no next marker");
	refused(SESSION, "<AssumeRoleResponse/>", "are incomplete");
	refused(SESSION,
		"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>hunter2\n</"
		"AccessKeyId></Credentials></AssumeRoleResult></AssumeRoleResponse>",
		"control characters");
}

/* What blows up in other readers. */
static void test_hostile(void **state)
{
	struct ckpt_buf text = {0};

	(void)state;
	refused(OBJECTS,
		"<!DOCTYPE l [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>"
		"<ListBucketResult><Name>&b;</Name></ListBucketResult>",
		"document type");
	refused(OBJECTS, "<!DOCTYPE l SYSTEM \"file:///etc/passwd\"><ListBucketResult/>",
		"document type");
	refused(OBJECTS, "<ListBucketResult>&a;</ListBucketResult>", "undefined entity");
	refused(OBJECTS, "<ListBucketResult>&#0;</ListBucketResult>", "character");
	refused(OBJECTS, "<ListBucketResult>\x01</ListBucketResult>", "not well-formed");
	refused(OBJECTS, "<ListBucketResult>\xff</ListBucketResult>", "not well-formed");
	refused(OBJECTS, "<ListBucketResult a=\"1\" a=\"1\"/>", "duplicate attribute");
	refused(OBJECTS, "<ListBucketResult/><ListBucketResult/>", "junk after");
	refused(OBJECTS, "<x:/>", "no name");
	refused(OBJECTS, "<ListBucketResult><a><b><c><d><e><f><g><h><i><j><k><l><m><n><o><p>",
		"nested too deeply");
	ckpt_buf_puts(&text, "<ListBucketResult><");
	ckpt_buf_fill(&text, 'n', 300);
	ckpt_buf_put(&text, "/>", 3);
	refused(OBJECTS, text.data, "nested too deeply");
	text.len = 0;
	ckpt_buf_puts(&text, "<ListBucketResult><Name>");
	ckpt_buf_fill(&text, 'n', CKPT_S3_XML_TEXT_MAX + 1);
	ckpt_buf_put(&text, "</Name></ListBucketResult>", 27);
	refused(OBJECTS, text.data, "too long");
	text.len = 0;
	ckpt_buf_puts(&text, "<ListBucketResult>");
	for (unsigned i = 0; i < CKPT_S3_XML_ELEMENTS_MAX; i++)
		ckpt_buf_puts(&text, "<a/>");
	ckpt_buf_put(&text, "</ListBucketResult>", 20);
	refused(OBJECTS, text.data, "too many elements");
	text.len = 0;
	ckpt_buf_puts(&text, "<ListBucketResult>");
	for (unsigned i = 0; i <= CKPT_S3_LIST_MAX; i++)
		ckpt_buf_puts(&text, "<Contents><Key>k</Key></Contents>");
	ckpt_buf_put(&text, "</ListBucketResult>", 20);
	refused(OBJECTS, text.data, "more than 10000 times");
	text.len = 0;
	ckpt_buf_fill(&text, 'n', CKPT_S3_XML_BYTES_MAX + 1);
	ckpt_buf_put(&text, "", 1);
	refused(OBJECTS, text.data, "too long");
	ckpt_buf_free(&text);
}

/* Cut anywhere and any byte changed: refused or read, in memory of exactly that size. */
static void test_damaged(void **state)
{
	static const char odd[] = "<>&;/\"\0 \xff"
				  "0a";

	(void)state;
	for (int kind = 0; kind < KINDS; kind++) {
		size_t length = good[kind].length;

		for (size_t cut = 0; cut < length; cut++) {
			char *text = ckpt_memdup(good[kind].text, cut);
			struct ckpt_error err = {0};
			int r = read_any((enum kind)kind, text, cut, &err);

			assert_true(kind == ERROR || r == CKPT_EFORMAT);
			ckpt_free(text);
		}
		for (size_t at = 0; at < length; at++) {
			for (size_t i = 0; i < sizeof(odd) - 1; i++) {
				char *text = ckpt_memdup(good[kind].text, length);
				struct ckpt_error err = {0};
				int r;

				text[at] = odd[i];
				r = read_any((enum kind)kind, text, length, &err);
				assert_true(r == 0 || r == CKPT_EFORMAT);
				assert_true(kind == ERROR || (r == 0) == (err.message[0] == 0));
				assert_true(kind != SESSION || !strstr(err.message, "hunter2"));
				ckpt_free(text);
			}
		}
	}
}

static struct {
	int left;
	uint64_t asked;
} heap;

static bool fail_one(void *user, size_t size)
{
	(void)user;
	heap.asked += size;
	return --heap.left == 0;
}

/* Every allocation in turn fails: that is said, and nothing is lost. */
static void test_no_memory(void **state)
{
	(void)state;
	for (int kind = 0; kind < KINDS; kind++) {
		int r = -ENOMEM;

		for (int at = 1; r != 0; at++) {
			struct ckpt_error err = {0};

			assert_true(at < 1000);
			heap.left = at;
			heap.asked = 0;
			ckpt_alloc_set_hook(fail_one, NULL);
			r = read_any((enum kind)kind, good[kind].text, good[kind].length, &err);
			ckpt_alloc_set_hook(NULL, NULL);
			if (kind == ERROR && heap.left > 0)
				break;
			assert_true(r == 0 || r == -ENOMEM || kind == ERROR);
			assert_true(heap.asked < 200000);
		}
	}
}

/* What expat had in its memory is not there any more when it is freed. */
static void test_nothing_is_left(void **state)
{
	static const char text[] =
		"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>A</AccessKeyId>"
		"<SecretAccessKey>swordfish</SecretAccessKey><SessionToken>swordfish</SessionToken>"
		"<Expiration>2014-10-24T23:00:23Z</Expiration></Credentials></AssumeRoleResult>"
		"</AssumeRoleResponse>";
	struct ckpt_s3_session keys;

	(void)state;
	assert_int_equal(ckpt_s3_session_parse(text, sizeof(text) - 1, ASKED, NULL, &keys), 0);
	ckpt_s3_session_clear(&keys);
	/* Freed blocks come back as they were left, where the heap does not fill them. */
	for (size_t size = 16; size < 40000; size += size / 2) {
		char *memory = malloc(size);

		assert_non_null(memory);
		assert_null(memmem(memory, size, "swordfish", 9));
		free(memory);
	}
}

static void test_bodies(void **state)
{
	static const struct ckpt_s3_part list[] = {
		{.number = 1, .etag = "\"a\""},
		{.number = 10000, .etag = "b&<>", .has_crc32c = true, .crc32c = 0xe3069283},
	};
	static const char *const keys[] = {"a/b", "x&y<z>\"'\t\n\r]]>\xf0\x9f\x98\x80"};
	struct ckpt_buf out = {0};

	(void)state;
	ckpt_s3_body_complete(list, COUNT(list), &out);
	ckpt_buf_put(&out, "", 1);
	assert_string_equal(out.data,
		"<CompleteMultipartUpload" NS
		"><Part><ETag>&#34;a&#34;</ETag><PartNumber>1</PartNumber>"
		"</Part><Part><ETag>b&#38;&#60;&#62;</ETag><PartNumber>10000</PartNumber>"
		"<ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part></CompleteMultipartUpload>");
	out.len = 0;
	ckpt_s3_body_delete(keys, COUNT(keys), &out);
	ckpt_buf_put(&out, "", 1);
	assert_string_equal(out.data,
		"<Delete" NS "><Quiet>true</Quiet><Object><Key>a/b</Key></Object><Object><Key>"
		"x&#38;y&#60;z&#62;&#34;&#39;&#9;&#10;&#13;]]&#62;\xf0\x9f\x98\x80</Key></Object></"
		"Delete>");
	ckpt_buf_free(&out);
}

/* Every character that XML holds comes back from an answer that quotes it. */
static void test_texts_come_back(void **state)
{
	(void)state;
	for (unsigned code = 1; code < 0x10000; code += code < 0x300 ? 1 : 97) {
		char key[8] = "";
		struct ckpt_buf text = {0};
		struct ckpt_s3_object_list list;
		size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : 3;

		key[0] = (char)(length == 1   ? code
				: length == 2 ? 0xc0 | code >> 6
					      : 0xe0 | code >> 12);
		if (length > 1)
			key[length - 1] = (char)(0x80 | (code & 63));
		if (length == 3)
			key[1] = (char)(0x80 | (code >> 6 & 63));
		ckpt_buf_puts(&text, "<ListBucketResult><Contents><Key>");
		ckpt_s3_xml_put(&text, key);
		ckpt_buf_puts(&text, "</Key></Contents></ListBucketResult>");
		if (!ckpt_s3_xml_holds(key)) {
			assert_true(
				code < 0x20 || (code >= 0xd800 && code < 0xe000) || code >= 0xfffe);
		} else {
			assert_int_equal(
				ckpt_s3_object_list_parse(text.data, text.len, ASKED, NULL, &list),
				0);
			assert_string_equal(list.objects[0].key, key);
			ckpt_s3_object_list_clear(&list);
		}
		ckpt_buf_free(&text);
	}
	assert_false(ckpt_s3_xml_holds("a\x01"));
	assert_false(ckpt_s3_xml_holds("\xef\xbf\xbe"));
	assert_false(ckpt_s3_xml_holds("\xef\xbf\xbf"));
	assert_false(ckpt_s3_xml_holds("\xc0\x80"));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_uploads_in_parts),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_session),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_error_of_much_text),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_nothing_is_left),
		cmocka_unit_test(test_bodies),
		cmocka_unit_test(test_texts_come_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
