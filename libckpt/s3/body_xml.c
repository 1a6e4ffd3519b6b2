/* SPDX-License-Identifier: Apache-2.0 */
/* XML bodies of requests. */
#include "s3/body_xml.h"

#include <string.h>

#include "base/utf8.h"

#define NAMESPACE " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

bool ckpt_s3_xml_holds(const char *text)
{
	size_t left = strlen(text);

	for (size_t n; left > 0; text += n, left -= n) {
		n = ckpt_utf8_char(text, left);
		if (n == 0)
			return false;
		if (n == 1 && (unsigned char)*text < 0x20 && !strchr("\t\n\r", *text))
			return false;
		if (n == 3 && (memcmp(text, "\xef\xbf\xbe", 3) == 0 ||
				      memcmp(text, "\xef\xbf\xbf", 3) == 0))
			return false;
	}
	return true;
}

void ckpt_s3_xml_put(struct ckpt_buf *out, const char *text)
{
	for (; *text; text++) {
		size_t plain = strcspn(text, "&<>\"'\t\n\r");

		ckpt_buf_put(out, text, plain);
		text += plain;
		if (*text == 0)
			return;
		ckpt_buf_printf(out, "&#%d;", *text);
	}
}

void ckpt_s3_body_complete(const struct ckpt_s3_part *parts, size_t count, struct ckpt_buf *out)
{
	CKPT_ASSERT(count > 0 && count <= CKPT_S3_PARTS_MAX);
	ckpt_buf_puts(out, "<CompleteMultipartUpload" NAMESPACE ">");
	for (size_t i = 0; i < count; i++) {
		CKPT_ASSERT(parts[i].number > (i > 0 ? parts[i - 1].number : 0));
		ckpt_buf_puts(out, "<Part><ETag>");
		ckpt_s3_xml_put(out, parts[i].etag);
		ckpt_buf_printf(out, "</ETag><PartNumber>%u</PartNumber>", parts[i].number);
		if (parts[i].has_crc32c) {
			char text[CKPT_S3_CRC32C_TEXT];

			ckpt_s3_crc32c_text(parts[i].crc32c, text);
			ckpt_buf_printf(out, "<ChecksumCRC32C>%s</ChecksumCRC32C>", text);
		}
		ckpt_buf_puts(out, "</Part>");
	}
	ckpt_buf_puts(out, "</CompleteMultipartUpload>");
}

void ckpt_s3_body_delete(const char *const *keys, size_t count, struct ckpt_buf *out)
{
	CKPT_ASSERT(count > 0 && count <= CKPT_S3_DELETE_MAX);
	ckpt_buf_puts(out, "<Delete" NAMESPACE "><Quiet>true</Quiet>");
	for (size_t i = 0; i < count; i++) {
		CKPT_ASSERT(ckpt_s3_xml_holds(keys[i]));
		ckpt_buf_puts(out, "<Object><Key>");
		ckpt_s3_xml_put(out, keys[i]);
		ckpt_buf_puts(out, "</Key></Object>");
	}
	ckpt_buf_puts(out, "</Delete>");
}
