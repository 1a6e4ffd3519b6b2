/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages of S3 requests. */
#include "s3/error_text.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/utf8.h"

#define KEY_SHOWN 320 /* bytes: the rest of the message must fit, too */

struct meaning {
	const char *name; /* S3's error code; NULL: by status only */
	int status;       /* 0: any */
	int code;
	const char *advice; /* NULL: none */
};

/* The first match counts. Includes codes of stores other than AWS. */
static const struct meaning meanings[] = {
	{"NoSuchKey", 0, -ENOENT, NULL},
	{"NoSuchUpload", 0, -ESTALE,
		"it was completed or aborted, or a lifecycle rule removed it: the object is sent "
		"again"},
	{"NoSuchBucket", 0, CKPT_ENOSTORE, "check the bucket's name, the endpoint and the account"},
	{"PermanentRedirect", 0, CKPT_ENOSTORE, "set the bucket's region or endpoint"},
	{"TemporaryRedirect", 0, CKPT_ENETWORK,
		"a new bucket redirects for some minutes: try again later"},
	{"AuthorizationHeaderMalformed", 0, CKPT_ENOSTORE, "set the bucket's region"},
	{"IllegalLocationConstraintException", 0, CKPT_ENOSTORE, "set the bucket's region"},
	{"SignatureDoesNotMatch", 0, CKPT_EAUTH,
		"the secret access key is not that of the access key id, or a proxy changes "
		"requests"},
	{"InvalidAccessKeyId", 0, CKPT_EAUTH,
		"this server does not know the access key id: check the keys and the "
		"endpoint"},
	{"ExpiredToken", 0, CKPT_EAUTH,
		"the session's keys have expired, and there are no new ones"},
	{"ExpiredTokenException", 0, CKPT_EAUTH,
		"the session's keys have expired, and there are no new ones"},
	{"TokenRefreshRequired", 0, CKPT_EAUTH,
		"the session's keys have expired, and there are no new ones"},
	{"InvalidToken", 0, CKPT_EAUTH,
		"the session token does not belong to the keys: check where they come from"},
	{"RequestTimeTooSkewed", 0, CKPT_EAUTH, "set this machine's clock"},
	{"RequestExpired", 0, CKPT_EAUTH, "set this machine's clock"},
	{"InvalidObjectState", 0, CKPT_EUNSUPPORTED,
		"the object is archived: have the store restore it, or keep checkpoints out of "
		"archives"},
	{"QuotaExceeded", 0, -ENOSPC, "the quota of the bucket or of its owner is exceeded"},
	{"StorageQuotaExceeded", 0, -ENOSPC, "the quota of the bucket or of its owner is exceeded"},
	{"XMinioStorageFull", 0, -ENOSPC, "the store is full"},
	{"XMinioAdminBucketQuotaExceeded", 0, -ENOSPC, "the quota of the bucket is exceeded"},
	{"InsufficientStorage", 0, -ENOSPC, "the store is full"},
	{"EntityTooLarge", 0, -EFBIG, NULL},
	{"KeyTooLongError", 0, -ENAMETOOLONG, "choose a shorter prefix"},
	{"InvalidBucketName", 0, -EINVAL, "check the bucket's name"},
	{"BadDigest", 0, CKPT_EINTEGRITY, "the bytes were changed on their way to the server"},
	{"XAmzContentSHA256Mismatch", 0, CKPT_EINTEGRITY,
		"the bytes were changed on their way to the server"},
	{"XAmzContentChecksumMismatch", 0, CKPT_EINTEGRITY,
		"the bytes were changed on their way to the server"},
	{"NotImplemented", 0, CKPT_EUNSUPPORTED, "this store does not support that"},
	{"InvalidRange", 0, -ERANGE, NULL},
	{"ConditionalRequestConflict", 0, -EBUSY, NULL},
	{"OperationAborted", 0, -EBUSY, NULL},
	{"AccessDenied", 0, CKPT_EAUTH, "allow these keys to do that in this bucket and prefix"},
	{NULL, 401, CKPT_EAUTH, "check the keys"},
	{NULL, 403, CKPT_EAUTH,
		"allow these keys to do that in this bucket and prefix, or check the keys"},
	{NULL, 404, -ENOENT, NULL},
	{NULL, 405, CKPT_EUNSUPPORTED,
		"this store does not support that: check that the endpoint is one of S3"},
	{NULL, 409, -EBUSY, NULL},
	{NULL, 412, -EEXIST, NULL},
	{NULL, 416, -ERANGE, NULL},
	{NULL, 429, CKPT_ENETWORK,
		"the server receives too many requests: check what else uses it"},
	{NULL, 501, CKPT_EUNSUPPORTED, "this store does not support that"},
	{NULL, 503, CKPT_ENETWORK, "the server is overloaded, or receives too many requests"},
	{NULL, 507, -ENOSPC, "the store is full"},
	{NULL, 0, CKPT_ENETWORK, NULL},
};

static const struct meaning *find(const char *name, int status)
{
	for (size_t i = 0; i < CKPT_COUNT(meanings); i++) {
		const struct meaning *m = &meanings[i];

		if (m->name ? strcmp(m->name, name) == 0 : m->status == 0 || m->status == status)
			return m;
	}
	CKPT_ASSERT(false);
	return NULL;
}

/* The request that failed, and the number of tries. */
static void put_what(struct ckpt_buf *out, const struct ckpt_s3_asked *asked)
{
	size_t length = strlen(asked->key);
	size_t shown = ckpt_utf8_cut(asked->key, length, KEY_SHOWN);

	ckpt_buf_printf(out, "cannot %s s3://%s%s%.*s%s", asked->doing, asked->bucket,
		length > 0 ? "/" : "", (int)shown, asked->key, shown < length ? "..." : "");
	if (asked->tries > 1)
		ckpt_buf_printf(out, " (tried %u times)", asked->tries);
}

static void put_reply(struct ckpt_buf *out, const struct ckpt_s3_asked *asked, int status,
	const struct ckpt_s3_error_reply *reply)
{
	ckpt_buf_printf(out, ": the server answers %d", status);
	if (reply->code[0])
		ckpt_buf_printf(out, " %s", reply->code);
	if (reply->message[0])
		ckpt_buf_printf(out, " (%s)", reply->message);
	if (reply->region[0] && strcmp(reply->region, asked->region) != 0)
		ckpt_buf_printf(out, "; the bucket is in region %s, and the request went to %s",
			reply->region, asked->region);
	else if (reply->endpoint[0])
		ckpt_buf_printf(out, "; use the endpoint %s", reply->endpoint);
}

/* A header may contain anything: an invalid request id is not shown. */
static void put_request_id(struct ckpt_buf *out, const char *id)
{
	size_t length = strlen(id);

	for (size_t i = 0; i < length; i++)
		if (id[i] <= ' ' || id[i] > '~')
			return;
	if (length > 0)
		ckpt_buf_printf(out, " [request %s]", id);
}

/*
 * Sets the error as ckpt_fail_at() does, with the status. If the buffer is out of memory, the message is the code's
 * text.
 */
static int record(struct ckpt_error *err, int code, const struct ckpt_s3_asked *asked, int status,
	struct ckpt_buf *words)
{
	const struct ckpt_where where = {.tier = "remote", .file = asked->key};
	bool first = err && err->code == 0;

	ckpt_buf_put(words, "", 1);
	(void)ckpt_fail_at(
		err, code, &where, "%s", words->failed ? ckpt_code_text(code) : words->data);
	if (first)
		err->http_status = status;
	ckpt_buf_free(words);
	return code;
}

int ckpt_s3_refused(struct ckpt_error *err, const struct ckpt_s3_asked *asked, int status,
	const struct ckpt_s3_error_reply *reply)
{
	static const struct ckpt_s3_error_reply none = {.code = ""};
	const struct ckpt_s3_error_reply *said = reply ? reply : &none;
	const struct meaning *m = find(said->code, status);
	struct ckpt_buf words = {0};

	put_what(&words, asked);
	put_reply(&words, asked, status, said);
	if (m->advice)
		ckpt_buf_printf(&words, "; %s", m->advice);
	/* Last, because it may be cut off. */
	if (said->request_id[0])
		ckpt_buf_printf(&words, " [request %s]", said->request_id);
	else if (asked->request_id)
		put_request_id(&words, asked->request_id);
	return record(err, m->code, asked, status, &words);
}

int ckpt_s3_unanswered(
	struct ckpt_error *err, const struct ckpt_s3_asked *asked, int code, const char *words)
{
	struct ckpt_buf text = {0};

	CKPT_ASSERT(code < 0);
	put_what(&text, asked);
	ckpt_buf_printf(&text, ": %s", words[0] ? words : ckpt_code_text(code));
	return record(err, code, asked, 0, &text);
}
