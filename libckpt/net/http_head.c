/* SPDX-License-Identifier: Apache-2.0 */
/* Parses status lines and headers. They come from the server, so nothing is assumed. */
#include "net/http_head.h"

#include <ctype.h>
#include <string.h>

/* "HTTP/1.1 200 OK"; 0: there is no valid status. */
static int status_of(const char *line, size_t length)
{
	const char *digit = memchr(line, ' ', length);
	int status = 0;

	if (!digit || (size_t)(digit - line) + 4 > length)
		return 0;
	for (int i = 0; i < 3; i++) {
		digit++;
		if (*digit < '0' || *digit > '9')
			return 0;
		status = status * 10 + (*digit - '0');
	}
	return status;
}

static void on_status(struct ckpt_http_head *head, const char *line, size_t length)
{
	head->status = status_of(line, length);
	head->answered = head->status >= 200;
	ckpt_buf_free(&head->text);
	head->text = (struct ckpt_buf){0};
}

static void add_header(struct ckpt_buf *text, const char *line, size_t length)
{
	const char *colon = memchr(line, ':', length);
	const char *end = line + length;

	if (!colon || colon == line || memchr(line, 0, length) || isspace((unsigned char)line[0]))
		return;
	while (end > colon + 1 && isspace((unsigned char)end[-1]))
		end--;
	for (const char *c = line; c < colon; c++)
		ckpt_buf_fill(text, (char)tolower((unsigned char)*c), 1);
	ckpt_buf_puts(text, ": ");
	for (colon++; colon < end && isspace((unsigned char)*colon);)
		colon++;
	for (; colon < end; colon++) {
		bool breaks = *colon == '\n' || *colon == '\r';
		ckpt_buf_put(text, breaks ? " " : colon, 1);
	}
	ckpt_buf_fill(text, '\n', 1);
}

void ckpt_http_head_line(struct ckpt_http_head *head, const char *line, size_t length)
{
	if (length > 5 && strncmp(line, "HTTP/", 5) == 0)
		on_status(head, line, length);
	else
		add_header(&head->text, line, length);
}
