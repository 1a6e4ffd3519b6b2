/* SPDX-License-Identifier: Apache-2.0 */
/* Parses error responses. */
#include "s3/response_error.h"

#include <string.h>
#include <strings.h>

#include "s3/response_field.h"

#define FILE_NAME "a request"

struct error_read {
	struct ckpt_s3_error_reply reply;
	bool is_error;
};

/* Ends parsing with an error if the root is another element. */
static int begin(void *user, const char *path)
{
	struct error_read *e = user;

	if (strchr(path, '/'))
		return 0;
	e->is_error = strcmp(path, "Error") == 0 || strcmp(path, "ErrorResponse") == 0;
	return e->is_error ? 0 : CKPT_EFORMAT;
}

static int end(void *user, const char *path, const char *text, size_t length)
{
	struct error_read *e = user;
	struct ckpt_s3_error_reply *r = &e->reply;
	const struct ckpt_s3_field field = {.path = path, .text = text, .length = length};
	const struct {
		const char *path;
		char *text;
		size_t size;
	} known[] = {
		{"Error/Code", r->code, sizeof(r->code)},
		{"Error/Message", r->message, sizeof(r->message)},
		{"Error/RequestId", r->request_id, sizeof(r->request_id)},
		{"Error/HostId", r->host_id, sizeof(r->host_id)},
		{"Error/Region", r->region, sizeof(r->region)},
		{"Error/Endpoint", r->endpoint, sizeof(r->endpoint)},
		{"Error/Bucket", r->bucket, sizeof(r->bucket)},
		{"Error/BucketName", r->bucket, sizeof(r->bucket)},
		{"Error/Key", r->key, sizeof(r->key)},
		{"ErrorResponse/Error/Code", r->code, sizeof(r->code)},
		{"ErrorResponse/Error/Message", r->message, sizeof(r->message)},
		{"ErrorResponse/RequestId", r->request_id, sizeof(r->request_id)},
	};

	for (size_t i = 0; i < CKPT_COUNT(known); i++) {
		/* The first value counts. */
		if (ckpt_s3_field_is(&field, known[i].path) && known[i].text[0] == 0)
			ckpt_s3_field_words(&field, known[i].text, known[i].size);
	}
	return 0;
}

/* Some servers and proxies quote the request. Signatures and tokens must not be logged. */
static bool quotes_secrets(const char *message)
{
	static const char *const marks[] = {"Signature=", "AWS4-HMAC",
		"Credential=", "x-amz-security-token", "authorization:", "SessionToken",
		"SecretAccessKey"};

	for (size_t i = 0; i < CKPT_COUNT(marks); i++) {
		if (strcasestr(message, marks[i]))
			return true;
	}
	return false;
}

void ckpt_s3_error_conceal(struct ckpt_s3_error_reply *reply)
{
	if (quotes_secrets(reply->message))
		(void)memset(reply->message, 0, sizeof(reply->message));
}

bool ckpt_s3_error_parse(const void *data, size_t length, struct ckpt_s3_error_reply *ret_reply)
{
	static const struct ckpt_s3_xml_calls calls = {begin, end};
	struct error_read e = {.is_error = false};

	/* If the XML is broken, what was parsed before is still useful. */
	(void)ckpt_s3_xml_read(data, length, FILE_NAME, &calls, &e, NULL);
	if (!e.is_error)
		return false;
	ckpt_s3_error_conceal(&e.reply);
	*ret_reply = e.reply;
	return true;
}
