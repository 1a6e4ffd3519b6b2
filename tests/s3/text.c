/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void text_add_bytes(struct text *text, const void *data, size_t length)
{
	if (text->length + length + 1 > text->room) {
		text->room = 2 * (text->length + length + 1);
		text->at = need_again(text->at, text->room, 1);
	}
	if (length)
		memcpy(text->at + text->length, data, length);
	text->length += length;
	text->at[text->length] = '\0';
}

void text_add(struct text *text, const char *words)
{
	text_add_bytes(text, words, strlen(words));
}

void text_addf(struct text *text, const char *format, ...)
{
	char room[2048];
	va_list args;

	va_start(args, format);
	int n = vsnprintf(room, sizeof(room), format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(room))
		abort(); /* what may be long is added by itself */
	text_add_bytes(text, room, (size_t)n);
}

static bool unreserved(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '_' || c == '.' || c == '~';
}

void text_add_url(struct text *text, const char *words, bool slashes)
{
	text_add_bytes(text, "", 0);
	for (; *words; words++) {
		if (unreserved((unsigned char)*words) || (slashes && *words == '/'))
			text_add_bytes(text, words, 1);
		else
			text_addf(text, "%%%02X", (unsigned char)*words);
	}
}

void text_add_xml(struct text *text, const char *words)
{
	text_add_bytes(text, "", 0);
	for (; *words; words++) {
		unsigned char c = (unsigned char)*words;
		if (c == '&')
			text_add(text, "&amp;");
		else if (c == '<')
			text_add(text, "&lt;");
		else if (c == '>')
			text_add(text, "&gt;");
		else if (c == '"')
			text_add(text, "&quot;");
		else if (c < 0x20)
			text_addf(text, "&#x%x;", c);
		else
			text_add_bytes(text, words, 1);
	}
}

void text_add_json(struct text *text, const char *words)
{
	text_add(text, "\"");
	for (; *words; words++) {
		unsigned char c = (unsigned char)*words;
		if (c == '"' || c == '\\')
			text_addf(text, "\\%c", c);
		else if (c < 0x20)
			text_addf(text, "\\u%04x", c);
		else
			text_add_bytes(text, words, 1);
	}
	text_add(text, "\"");
}

void text_clear(struct text *text)
{
	free(text->at);
	*text = (struct text){0};
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

char *url_decode(const char *words, size_t length, bool plus)
{
	char *out = need(length + 1);
	size_t n = 0;

	for (size_t i = 0; i < length; i++) {
		char c = words[i];
		if (c == '%') {
			int high = length - i > 2 ? digit(words[i + 1]) : -1;
			int low = length - i > 2 ? digit(words[i + 2]) : -1;
			if (high < 0 || low < 0 || high + low == 0) {
				free(out);
				return NULL;
			}
			c = (char)(high * 16 + low);
			i += 2;
		} else if (c == '+' && plus) {
			c = ' ';
		}
		out[n++] = c;
	}
	return out;
}

static struct tm broken_down(uint64_t unix_s)
{
	time_t when = (time_t)unix_s;
	struct tm tm;

	(void)gmtime_r(&when, &tm);
	return tm;
}

void time_basic(uint64_t unix_s, char out[TIME_TEXT_MAX])
{
	struct tm tm = broken_down(unix_s);

	(void)strftime(out, TIME_TEXT_MAX, "%Y%m%dT%H%M%SZ", &tm);
}

void time_iso(uint64_t unix_ns, char out[TIME_TEXT_MAX])
{
	struct tm tm = broken_down(unix_ns / 1000000000);
	size_t n = strftime(out, TIME_TEXT_MAX, "%Y-%m-%dT%H:%M:%S", &tm);

	(void)snprintf(out + n, TIME_TEXT_MAX - n, ".%03uZ", (unsigned)(unix_ns / 1000000 % 1000));
}

void time_http(uint64_t unix_s, char out[TIME_TEXT_MAX])
{
	static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
	static const char *const months[] = {
		"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
	struct tm tm = broken_down(unix_s);

	(void)snprintf(out, TIME_TEXT_MAX, "%s, %02d %s %04d %02d:%02d:%02d GMT",
		days[tm.tm_wday % 7], tm.tm_mday % 100, months[tm.tm_mon % 12],
		(tm.tm_year + 1900) % 10000, tm.tm_hour % 100, tm.tm_min % 100, tm.tm_sec % 100);
}

bool time_read_basic(const char *words, uint64_t *ret_unix_s)
{
	struct tm tm = {0};

	if (strlen(words) != 16)
		return false;
	const char *end = strptime(words, "%Y%m%dT%H%M%SZ", &tm);
	if (!end || *end)
		return false;
	*ret_unix_s = (uint64_t)timegm(&tm);
	return true;
}
