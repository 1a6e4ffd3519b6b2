/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/bucket_xml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <expat.h>

#define ITEMS_MAX 10001
#define DEPTH_MAX 8

struct reading {
	XML_Parser parser;
	const char *item;
	struct xml_list *list;
	struct xml_item *now;
	struct text words;
	unsigned depth;
	bool bad;
};

static void XMLCALL open_element(void *user, const XML_Char *name, const XML_Char **attributes)
{
	struct reading *r = user;

	(void)attributes;
	text_clear(&r->words);
	text_add(&r->words, "");
	if (++r->depth > DEPTH_MAX || r->list->count >= ITEMS_MAX) {
		r->bad = true;
		(void)XML_StopParser(r->parser, XML_FALSE);
		return;
	}
	if (r->depth == 1)
		r->list->root = need_text(name);
	if (r->depth != 2 || strcmp(name, r->item) != 0)
		return;
	r->list->items = need_again(r->list->items, r->list->count + 1, sizeof(*r->list->items));
	r->now = &r->list->items[r->list->count++];
	*r->now = (struct xml_item){.hash = HASH_COUNT};
}

static void XMLCALL add_words(void *user, const XML_Char *words, int length)
{
	struct reading *r = user;

	text_add_bytes(&r->words, words, (size_t)length);
}

static char *without_quotes(const char *words)
{
	size_t length = strlen(words);

	if (length >= 2 && words[0] == '"' && words[length - 1] == '"')
		return strndup(words + 1, length - 2);
	return need_text(words);
}

static void close_in_item(struct reading *r, const char *name)
{
	if (strcmp(name, "Key") == 0 && !r->now->key) {
		r->now->key = need_text(r->words.at);
	} else if (strcmp(name, "PartNumber") == 0) {
		r->now->number = (unsigned)strtoul(r->words.at, NULL, 10);
	} else if (strcmp(name, "ETag") == 0 && !r->now->etag) {
		r->now->etag = without_quotes(r->words.at);
	} else if (strncmp(name, "Checksum", 8) == 0 && !r->now->sum) {
		r->now->hash = hash_named(name + 8);
		r->now->sum = need_text(r->words.at);
	}
}

static void XMLCALL close_element(void *user, const XML_Char *name)
{
	struct reading *r = user;

	if (r->depth == 3 && r->now)
		close_in_item(r, name);
	if (r->depth == 2) {
		r->now = NULL;
		if (strcmp(name, "Quiet") == 0)
			r->list->quiet = strcmp(r->words.at, "true") == 0;
		if (strcmp(name, "LocationConstraint") == 0)
			(void)snprintf(r->list->region, sizeof(r->list->region), "%s", r->words.at);
	}
	r->depth--;
	text_clear(&r->words);
	text_add(&r->words, "");
}

bool xml_read(const struct bytes *body, const char *item, struct xml_list *ret_list)
{
	struct reading r = {.item = item, .list = ret_list};
	bool good = body && !body->hollow && body->length < (8u << 20);

	*ret_list = (struct xml_list){0};
	if (!good)
		return false;
	r.parser = XML_ParserCreate(NULL);
	if (!r.parser)
		abort();
	XML_SetUserData(r.parser, &r);
	XML_SetElementHandler(r.parser, open_element, close_element);
	XML_SetCharacterDataHandler(r.parser, add_words);
	good = XML_Parse(r.parser, (const char *)body->data, (int)body->length, XML_TRUE) ==
		       XML_STATUS_OK &&
	       !r.bad;
	XML_ParserFree(r.parser);
	text_clear(&r.words);
	for (size_t i = 0; i < ret_list->count; i++) {
		struct xml_item *it = &ret_list->items[i];
		good = good && (it->key || it->number > 0);
		if (!it->etag)
			it->etag = need_text("");
	}
	return good;
}

void xml_clear(struct xml_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		free(list->items[i].key);
		free(list->items[i].etag);
		free(list->items[i].sum);
	}
	free(list->items);
	free(list->root);
	*list = (struct xml_list){0};
}
