/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What S3 servers answer, and what users write for a store and an endpoint: the first byte says which. What
 * is read is bounded and in order, and lists that are written again are read as the same.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "s3/body_xml.h"
#include "s3/canonical.h"
#include "s3/date.h"
#include "s3/endpoint.h"
#include "s3/response_list.h"
#include "s3/response_session.h"
#include "s3/retry.h"

enum kind {
	UPLOAD,
	PARTS,
	DONE,
	OBJECTS,
	UPLOADS,
	DELETES,
	SESSION,
	ERROR,
	PLACE,
	QUERY,
	DATES,
	KINDS
};

/* Whatever was read; zero before. */
struct answer {
	char upload_id[CKPT_S3_UPLOAD_ID_MAX + 1];
	struct ckpt_s3_part_list parts;
	struct ckpt_s3_completed completed;
	struct ckpt_s3_object_list objects;
	struct ckpt_s3_upload_list uploads;
	struct ckpt_s3_delete_list deletes;
	struct ckpt_s3_session session;
	struct ckpt_s3_error_reply error;
};

static int read_answer(
	enum kind kind, const char *text, size_t length, struct ckpt_error *err, struct answer *a)
{
	switch (kind) {
	case UPLOAD:
		return ckpt_s3_upload_parse(text, length, FUZZ_FILE, err, a->upload_id);
	case PARTS:
		return ckpt_s3_part_list_parse(text, length, FUZZ_FILE, err, &a->parts);
	case DONE:
		return ckpt_s3_completed_parse(text, length, FUZZ_FILE, err, &a->completed);
	case OBJECTS:
		return ckpt_s3_object_list_parse(text, length, FUZZ_FILE, err, &a->objects);
	case UPLOADS:
		return ckpt_s3_upload_list_parse(text, length, FUZZ_FILE, err, &a->uploads);
	case DELETES:
		return ckpt_s3_delete_list_parse(text, length, FUZZ_FILE, err, &a->deletes);
	default:
		return ckpt_s3_session_parse(text, length, FUZZ_FILE, err, &a->session);
	}
}

static void clear(struct answer *a)
{
	ckpt_s3_part_list_clear(&a->parts);
	ckpt_s3_object_list_clear(&a->objects);
	ckpt_s3_upload_list_clear(&a->uploads);
	ckpt_s3_delete_list_clear(&a->deletes);
	ckpt_s3_session_clear(&a->session);
}

static void check_line(const char *text)
{
	FUZZ_CHECK(fuzz_is_line(text, strlen(text)));
}

static void check_error_reply(const struct ckpt_s3_error_reply *reply)
{
	check_line(reply->code);
	check_line(reply->message);
	check_line(reply->request_id);
	check_line(reply->host_id);
	check_line(reply->region);
	check_line(reply->endpoint);
	check_line(reply->bucket);
	check_line(reply->key);
	FUZZ_CHECK(!strcasestr(reply->message, "signature="));
}

/* Written again, the same is read of it. */
static void check_objects(const struct ckpt_s3_object_list *list)
{
	struct ckpt_s3_object_list again = {0};
	struct ckpt_buf text = {0};
	bool holds = true;

	ckpt_buf_puts(&text, "<ListBucketResult>");
	for (size_t i = 0; i < list->count; i++) {
		const char *kind = list->objects[i].prefix ? "CommonPrefixes" : "Contents";
		const char *name = list->objects[i].prefix ? "Prefix" : "Key";

		FUZZ_CHECK(list->objects[i].key && list->objects[i].key[0]);
		FUZZ_CHECK(list->objects[i].size <= INT64_MAX);
		holds = holds && ckpt_s3_xml_holds(list->objects[i].key);
		ckpt_buf_printf(&text, "<%s><%s>", kind, name);
		ckpt_s3_xml_put(&text, list->objects[i].key);
		ckpt_buf_printf(&text, "</%s></%s>", name, kind);
	}
	ckpt_buf_puts(&text, "</ListBucketResult>");
	if (holds) {
		FUZZ_CHECK(ckpt_s3_object_list_parse(
				   text.data, text.len, FUZZ_FILE, NULL, &again) == 0);
		FUZZ_CHECK(again.count == list->count && !again.next_token);
		for (size_t i = 0; i < list->count; i++)
			FUZZ_CHECK(strcmp(again.objects[i].key, list->objects[i].key) == 0);
	}
	ckpt_s3_object_list_clear(&again);
	ckpt_buf_free(&text);
}

static void check_parts(const struct ckpt_s3_part_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		const struct ckpt_s3_part *part = &list->parts[i];

		FUZZ_CHECK(part->number > (i > 0 ? part[-1].number : 0));
		FUZZ_CHECK(part->number <= CKPT_S3_PARTS_MAX && part->size <= CKPT_S3_OBJECT_MAX);
		FUZZ_CHECK(part->etag[0]);
		check_line(part->etag);
	}
	FUZZ_CHECK(!list->more || list->count > 0);
	FUZZ_CHECK(!list->more || list->next_marker >= list->parts[list->count - 1].number);
}

static void check_answer(enum kind kind, const struct answer *a)
{
	if (kind == UPLOAD)
		FUZZ_CHECK(a->upload_id[0]);
	check_line(a->upload_id);
	check_line(a->completed.etag);
	check_parts(&a->parts);
	check_objects(&a->objects);
	for (size_t i = 0; i < a->uploads.count; i++)
		FUZZ_CHECK(a->uploads.uploads[i].key[0] && a->uploads.uploads[i].upload_id[0]);
	FUZZ_CHECK(!a->uploads.more || a->uploads.next_key);
	for (size_t i = 0; i < a->deletes.count; i++)
		check_error_reply(&a->deletes.failed[i]);
	FUZZ_CHECK(kind != SESSION || (a->session.token[0] && a->session.expires_s > 0));
}

static void fuzz_answer(enum kind kind, const char *text, size_t length)
{
	uint64_t most = (UINT64_C(1) << 20) + 1024 * (uint64_t)length;
	struct answer a = {.upload_id = ""};
	struct answer again = {.upload_id = ""};
	struct ckpt_error err = {0};
	size_t count;
	int r;

	fuzz_memory_begin(0);
	r = read_answer(kind, text, length, &err, &a);
	count = fuzz_memory_end(most);
	fuzz_check_error(&err, r, length);
	if (r == 0)
		check_answer(kind, &a);
	clear(&a);
	/* Any one allocation fails: that is said, or what was found before is. */
	memset(&err, 0, sizeof(err));
	fuzz_memory_begin(1 + length % (count + 1));
	r = read_answer(kind, text, length, &err, &again);
	(void)fuzz_memory_end(most);
	fuzz_check_error(&err, r, length);
	clear(&again);
}

static void fuzz_error(const char *text, size_t length)
{
	struct ckpt_s3_error_reply reply;

	if (ckpt_s3_error_parse(text, length, &reply))
		check_error_reply(&reply);
}

/* A place, and the same text as an endpoint for it. */
static void fuzz_place(const char *text)
{
	struct ckpt_s3_uri place;
	struct ckpt_s3_endpoint endpoint;
	struct ckpt_s3_endpoint_config config = {.url = text, .bucket = "bucket"};
	struct ckpt_error err = {0};
	struct ckpt_buf url = {0};
	char key[CKPT_S3_KEY_MAX + 1];

	if (ckpt_s3_uri_parse(text, &err, &place) < 0) {
		check_line(err.message);
	} else if (place.remote) {
		ckpt_s3_uri_key(&place, "ckpt.json", key);
		FUZZ_CHECK(strcmp(ckpt_s3_uri_name(&place, key), "ckpt.json") == 0);
		FUZZ_CHECK(!strstr(key, "//") && ckpt_utf8_is_line(key));
	}
	memset(&err, 0, sizeof(err));
	if (ckpt_s3_endpoint_make(&config, &err, &endpoint) < 0) {
		check_line(err.message);
		return;
	}
	ckpt_s3_endpoint_url(&endpoint, "k", "", &url);
	for (size_t i = 0; i < url.len; i++)
		FUZZ_CHECK(url.data[i] > ' ' && url.data[i] < 0x7f && !strchr("@?#%", url.data[i]));
	ckpt_buf_free(&url);
}

/* In order once is in order. */
static void fuzz_query(const char *text)
{
	struct ckpt_buf once = {0};
	struct ckpt_buf twice = {0};
	int r = ckpt_s3_canonical_query(text, &once);

	FUZZ_CHECK(r == 0 || r == -EINVAL || r == -E2BIG);
	if (r == 0) {
		ckpt_buf_put(&once, "", 1);
		FUZZ_CHECK(ckpt_s3_canonical_query(once.data, &twice) == 0);
		FUZZ_CHECK(twice.len + 1 == once.len);
		FUZZ_CHECK(twice.len == 0 || memcmp(once.data, twice.data, twice.len) == 0);
	}
	ckpt_buf_free(&once);
	ckpt_buf_free(&twice);
}

static void fuzz_dates(const char *text)
{
	uint64_t s = 0;
	uint64_t parts;
	char date[CKPT_S3_DATE_SIZE];
	uint32_t crc;
	uint32_t count;

	if (ckpt_s3_date_http(text, &s) || ckpt_s3_date_iso(text, &s))
		ckpt_s3_date(s, date);
	FUZZ_CHECK(s <= CKPT_S3_TIME_MAX);
	parts = ckpt_s3_retry_after_ms(text, 1700000000);
	FUZZ_CHECK(parts <= 86400000 && ckpt_s3_amz_retry_after_ms(text) <= 86400000);
	if (ckpt_s3_crc32c_parse(text, &crc, &count) == CKPT_S3_SUM_WHOLE) {
		char again[CKPT_S3_CRC32C_TEXT];

		ckpt_s3_crc32c_text(crc, again);
		FUZZ_CHECK(strcmp(again, text) == 0 && count == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum kind kind;
	char *text;

	if (size < 1)
		return 0;
	kind = (enum kind)(data[0] % KINDS);
	/* Exactly so much memory, so that a byte too many is seen. */
	text = malloc(size);
	FUZZ_CHECK(text);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	if (kind == PLACE)
		fuzz_place(text);
	else if (kind == QUERY)
		fuzz_query(text);
	else if (kind == DATES)
		fuzz_dates(text);
	else if (kind == ERROR)
		fuzz_error((const char *)data + 1, size - 1);
	else
		fuzz_answer(kind, (const char *)data + 1, size - 1);
	free(text);
	return 0;
}

/* Words of all these put in, or put over what is there. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	static const char *const words[] = {"<ListBucketResult>", "<Contents>", "</Contents>",
		"<Key>", "</Key>", "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>",
		"<Size>0</Size>", "<IsTruncated>true</IsTruncated>",
		"<EncodingType>url</EncodingType>", "%2F", "%00", "+",
		"<NextContinuationToken>t</NextContinuationToken>", "<ListPartsResult>", "<Part>",
		"</Part>", "<PartNumber>2</PartNumber>", "<ETag>e</ETag>", "10000", "-1", "&amp;",
		"&#10;", "&lt;!", "<!DOCTYPE x [", "<![CDATA[", "]]>", "<!--", "-->",
		"<?xml version=\"1.0\"?>", "<Error>", "<Code>SlowDown</Code>",
		"<Message>Signature=", "x:", " xmlns:x=\"y\"", "</", "/>", "s3://", "file:///",
		"http://", "https://", "bucket", "..", ".", "/", ":", "[::1]", "@", "?", "#", "=",
		"&", "GMT", "Z", "\xf0\x9f\x98\x80", "\xef\xbf\xbe", "\xff"};
	struct prng prng = {seed};
	const char *word = words[prng_below(&prng, sizeof(words) / sizeof(words[0]))];
	size_t length = strlen(word);
	size_t at;

	if (size < 2 || size + length > max || prng_below(&prng, 3) == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (prng_below(&prng, 16) == 0)
		data[0] = (uint8_t)prng_below(&prng, KINDS);
	at = 1 + prng_below(&prng, size);
	if (at < size && prng_below(&prng, 3) == 0) {
		/* Over it, as far as it goes. */
		length = length < size - at ? length : size - at;
		memcpy(data + at, word, length);
		return size;
	}
	memmove(data + at + length, data + at, size - at);
	memcpy(data + at, word, length);
	return size + length;
}
