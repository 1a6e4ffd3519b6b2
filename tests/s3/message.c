/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pairs_add(struct pairs *pairs, const char *name, const char *value)
{
	pairs->at = need_again(pairs->at, pairs->count + 1, sizeof(*pairs->at));
	pairs->at[pairs->count++] = (struct pair){need_text(name), need_text(value)};
}

const char *pairs_get(const struct pairs *pairs, const char *name)
{
	for (size_t i = 0; i < pairs->count; i++)
		if (strcmp(pairs->at[i].name, name) == 0)
			return pairs->at[i].value;
	return NULL;
}

void pairs_copy(struct pairs *to, const struct pairs *from)
{
	for (size_t i = 0; i < from->count; i++)
		pairs_add(to, from->at[i].name, from->at[i].value);
}

void pairs_clear(struct pairs *pairs)
{
	for (size_t i = 0; i < pairs->count; i++) {
		free(pairs->at[i].name);
		free(pairs->at[i].value);
	}
	free(pairs->at);
	*pairs = (struct pairs){0};
}

bool pairs_add_query(struct pairs *pairs, const char *query)
{
	bool good = true;

	while (*query && good) {
		size_t length = strcspn(query, "&");
		size_t before = strcspn(query, "=&");
		bool valued = before < length;
		char *name = url_decode(query, before, true);
		char *value = valued ? url_decode(query + before + 1, length - before - 1, true)
				     : need_text("");
		good = name && value;
		if (good && length)
			pairs_add(pairs, name, value);
		free(name);
		free(value);
		query += length + (query[length] == '&');
	}
	return good;
}

static bool set(struct s3_request *req, const char *method, const char *bucket, const char *target)
{
	size_t length = strcspn(target, "?");
	char *path = *target == '/' ? url_decode(target, length, false) : NULL;

	if (!path)
		return false;
	const char *rest = path + 1;
	req->method = need_text(method);
	req->path = path;
	if (bucket) {
		req->bucket = need_text(bucket);
		req->key = need_text(rest);
	} else {
		size_t named = strcspn(rest, "/");
		req->bucket = need_text(rest);
		req->bucket[named] = '\0';
		req->key = need_text(rest[named] ? rest + named + 1 : "");
	}
	return pairs_add_query(&req->query, target[length] ? target + length + 1 : "");
}

bool s3_request_set(struct s3_request *req, const char *method, const char *target)
{
	return set(req, method, NULL, target);
}

bool s3_request_set_hosted(
	struct s3_request *req, const char *method, const char *bucket, const char *target)
{
	return set(req, method, bucket, target);
}

void s3_request_copy(struct s3_request *to, const struct s3_request *from)
{
	*to = *from;
	to->method = need_text(from->method);
	to->bucket = need_text(from->bucket);
	to->key = need_text(from->key);
	to->path = need_text(from->path);
	to->query = to->headers = (struct pairs){0};
	pairs_copy(&to->query, &from->query);
	pairs_copy(&to->headers, &from->headers);
	to->body = bytes_hold(from->body);
}

void s3_request_clear(struct s3_request *req)
{
	free(req->method);
	free(req->bucket);
	free(req->key);
	free(req->path);
	pairs_clear(&req->query);
	pairs_clear(&req->headers);
	bytes_let_go(req->body);
	*req = (struct s3_request){0};
}

const uint8_t *s3_request_hash(struct s3_request *req, enum hash hash)
{
	if (!req->hashed[hash]) {
		struct rope rope = {0};
		if (req->body)
			rope_add(&rope, req->body, 0, req->body->length);
		hash_rope(hash, &rope, req->hashes[hash]);
		rope_clear(&rope);
		req->hashed[hash] = true;
	}
	return req->hashes[hash];
}

size_t s3_request_length(const struct s3_request *req)
{
	return req->body ? req->body->length : 0;
}

void s3_reply_header(struct s3_reply *reply, const char *name, const char *value)
{
	pairs_add(&reply->headers, name, value);
}

void s3_reply_xml(struct s3_reply *reply, struct text *xml)
{
	static const char head[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

	rope_clear(&reply->body);
	rope_add_copy(&reply->body, head, sizeof(head) - 1);
	rope_add_copy(&reply->body, xml->at, xml->length);
	s3_reply_header(reply, "content-type", "application/xml");
	text_clear(xml);
}

void s3_reply_refuse(
	struct s3_reply *reply, int status, const char *code, const char *message, const char *more)
{
	struct text xml = {0};

	s3_reply_clear(reply);
	reply->status = status;
	(void)snprintf(reply->code, sizeof(reply->code), "%s", code);
	text_addf(&xml, "<Error><Code>%s</Code><Message>", code);
	text_add_xml(&xml, message);
	text_add(&xml, "</Message>");
	text_add(&xml, more ? more : "");
	text_add(&xml, "</Error>");
	s3_reply_xml(reply, &xml);
}

void s3_reply_clear(struct s3_reply *reply)
{
	pairs_clear(&reply->headers);
	rope_clear(&reply->body);
	*reply = (struct s3_reply){0};
}
