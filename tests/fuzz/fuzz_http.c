/* SPDX-License-Identifier: Apache-2.0 */
/* The head of an answer, line by line: what is kept is lines with a name, and is found again by it. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "net/http_head.h"
#include "s3/client.h"
#include "s3/date.h"

/* As libcurl gives them: each with its end, but for the last. */
static void take_lines(struct ckpt_http_head *head, const char *data, size_t size)
{
	while (size > 0 && head->text.len < CKPT_HTTP_HEADERS_MAX && !head->text.failed) {
		const char *end = memchr(data, '\n', size);
		size_t length = end ? (size_t)(end - data) + 1 : size;
		/* Exactly so much memory. */
		char *line = malloc(length);

		FUZZ_CHECK(line);
		memcpy(line, data, length);
		ckpt_http_head_line(head, line, length);
		free(line);
		FUZZ_CHECK(head->status >= 0 && head->status <= 999);
		FUZZ_CHECK(!head->answered || head->status >= 200);
		data += length;
		size -= length;
	}
}

/* Of those of one name the first counts; what does not fit is cut. */
static void check_found(const struct ckpt_http_req *req, const char *line)
{
	char name[64];
	char value[32];
	size_t length = (size_t)(strchr(line, ':') - line);

	if (length >= sizeof(name))
		return;
	memcpy(name, line, length);
	name[length] = 0;
	FUZZ_CHECK(ckpt_http_header(req, name, value, sizeof(value)));
	FUZZ_CHECK(strlen(value) < sizeof(value) && !strchr(value, '\n') && !strchr(value, '\r'));
	FUZZ_CHECK(ckpt_http_header(req, name, value, 1) && value[0] == 0);
}

static void check_text(const struct ckpt_http_req *req, const struct ckpt_buf *text)
{
	FUZZ_CHECK(strlen(req->header_text) == text->len);
	for (const char *line = req->header_text; *line; line = strchr(line, '\n') + 1) {
		const char *colon = strchr(line, ':');
		const char *end = strchr(line, '\n');

		FUZZ_CHECK(end && colon && colon > line && colon < end && colon[1] == ' ');
		for (const char *c = line; c < colon; c++)
			FUZZ_CHECK(*c < 'A' || *c > 'Z');
		FUZZ_CHECK(end == colon + 2 ||
			   (!strchr(" \t\r\v\f", colon[2]) && !strchr(" \t\r\v\f", end[-1])));
		check_found(req, line);
	}
}

/* What is asked of an answer's headers, as the client of S3 asks it. */
static void check_meaning(const struct ckpt_http_req *req)
{
	static struct ckpt_s3_call call;
	char etag[CKPT_S3_ETAG_MAX + 1];
	char value[64];
	uint64_t number = UINT64_MAX;

	call.req = *req;
	if (ckpt_s3_call_length(&call, &number))
		FUZZ_CHECK(number <= INT64_MAX);
	else
		FUZZ_CHECK(number == UINT64_MAX);
	ckpt_s3_call_etag(&call, etag);
	FUZZ_CHECK(strlen(etag) <= CKPT_S3_ETAG_MAX);
	if (ckpt_http_header(req, "retry-after", value, sizeof(value)))
		FUZZ_CHECK(ckpt_s3_retry_after_ms(value, 1700000000) <= 86400000);
	if (ckpt_http_header(req, "date", value, sizeof(value)) &&
		ckpt_s3_date_http(value, &number))
		FUZZ_CHECK(number <= CKPT_S3_TIME_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_http_head head = {.status = 0};
	struct ckpt_http_req req = {.status = 0};
	size_t count;

	fuzz_memory_begin(0);
	take_lines(&head, (const char *)data, size);
	count = fuzz_memory_end(4096 + 64 * (uint64_t)size);
	ckpt_buf_put(&head.text, "", 1);
	FUZZ_CHECK(!head.text.failed);
	head.text.len--;
	req.header_text = head.text.data;
	check_text(&req, &head.text);
	check_meaning(&req);
	ckpt_buf_free(&head.text);
	head = (struct ckpt_http_head){.status = 0};
	fuzz_memory_begin(1 + size % (count + 1));
	take_lines(&head, (const char *)data, size);
	(void)fuzz_memory_end(UINT64_MAX);
	ckpt_buf_free(&head.text);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	static const char *const pieces[] = {"HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.0 503 \r\n", "HTTP/2 206\r\n", "HTTP/", "ETag: \"e\"\r\n",
		"Content-Length: 7\r\n", "Content-Length: 9223372036854775808\r\n",
		"Retry-After: 120\r\n", "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
		"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "Content-Range: bytes 0-6/7\r\n",
		"x-amz-bucket-region: eu\r\n", "\r\n", "\n", "\r", " folded\r\n", ":", ": ", "\t",
		"date", "\xff"};
	struct prng prng = {seed};

	if (prng_below(&prng, 3) == 0)
		return LLVMFuzzerMutate(data, size, max);
	return fuzz_mutate_pieces(
		data, size, max, &prng, pieces, sizeof(pieces) / sizeof(pieces[0]));
}
